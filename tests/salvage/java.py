"""Lets Java read the result of a salvage: DLedger every entry, a broker without DLedger every message.

A process of this module has one Java process for each version, which ends with it.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pyspark_dledger.format.layout import TRANSACTION_FLAGS, TRANSACTIONS_OUTSIDE_QUEUES
from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.rebuild.builder import common_units_per_file, last_index_sizes
from tests.interop.java_stores import StoreOpener
from tests.interop.plain_stores import PlainStores
from tests.interop.test_java_opens_stores import expected_answer, open_store
from tests.support.generate import rows_of
from tests.support.sparse_copy import copy_tree

VERSIONS = ("0.2.7", "0.3.1.2", "0.3.2")
BROKERS = ("4.9.8", "5.3.3")


def java_differences(result: Path, brokers: Sequence[str] = BROKERS) -> Iterator[str]:
    """What Java reads otherwise than this package; brokers of these versions wrote the messages, or can read them."""
    with tempfile.TemporaryDirectory(prefix="salvage-java-") as folder:
        if node := next(result.glob("dledger-*"), None):
            yield from _of_dledger(node, Path(folder))
        elif (result / "consumequeue").is_dir():
            yield from _of_broker(result, Path(folder), brokers)


def _of_dledger(node: Path, folder: Path) -> Iterator[str]:
    name = node.name.removeprefix("dledger-")
    sizes = next((node / "data").iterdir()).stat().st_size, next((node / "index").iterdir()).stat().st_size
    store = open_store(_copied(node, folder / "ours").parent, name, sizes)
    expected = expected_answer(store)
    store.shutdown()
    for version in VERSIONS:
        found = _opener(version).open(_copied(node, folder / version).parent, name, *sizes, appends=0)
        yield from (
            f"DLedger {version}: {key} {found.get(key)}, expected {value}"
            for key, value in expected.items()
            if found.get(key) != value
        )


def _of_broker(result: Path, folder: Path, brokers: Sequence[str]) -> Iterator[str]:
    rows = rows_of(open_log(result).scan(columns=("kind", "pos", "transaction")))
    outside = {name for name, flag in TRANSACTION_FLAGS.items() if flag in TRANSACTIONS_OUTSIDE_QUEUES}
    wanted = {row["pos"] for row in rows if row["kind"] == "message" and row["transaction"] not in outside}
    slots, units = last_index_sizes(result) or (500, 1000)
    settings = {
        "mappedFileSizeConsumeQueue": str(20 * (common_units_per_file(result) or 100)),
        "maxHashSlotNum": str(slots),
        "maxIndexNum": str(units),
    }
    for version in brokers:
        java = _plain_stores(version)
        java.open_root(_copied(result, folder / version), settings)
        dump = java.dump()
        found = {each.physical_offset for each in dump.messages}
        java.close_store()
        if found != wanted:
            yield f"RocketMQ {version}: {len(found)} messages, expected {len(wanted)}"
        yield from (f"RocketMQ {version}: not found by {name}" for name in ("offset", "key") if _missing(dump, name))


def _missing(dump: object, name: str) -> bool:
    return bool(getattr(dump, f"missing_by_{name}"))


def _copied(source: Path, target: Path) -> Path:
    """A copy that Java may change."""
    return copy_tree(source, target / source.name)


@cache
def _opener(version: str) -> StoreOpener:
    opener = StoreOpener(version)
    atexit.register(opener.close)
    return opener


@cache
def _plain_stores(version: str) -> PlainStores:
    stores = PlainStores(version, Path(tempfile.mkdtemp(prefix="salvage-java-")))
    atexit.register(stores.close)
    return stores
