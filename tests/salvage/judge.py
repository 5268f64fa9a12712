"""``make salvage-java``: real brokers and DLedger open salvaged stores, and serve what they serve of the undamaged one.

Each seed damages a group that Java wrote, so that every entry stays intact somewhere, and salvages it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.interop.damages import file_sizes
from tests.interop.java_store import Dump, serving_store
from tests.interop.java_stores import StoreOpener
from tests.interop.plain_stores import PlainStores
from tests.salvage.groups import Group, damage, golden_group, group_at
from tests.support.golden import unpack
from tests.support.seeds import Kit, Problem, Result
from tests.support.sparse_copy import copy_tree

CONTROLLER = "mq-53-controller"
CASES: Mapping[str, tuple[str, ...]] = {
    CONTROLLER: ("5.3.3", "5.1.4", "5.5.0"),
    "mq-498-three-diverged": ("4.9.8",),
    "mq-53-three": ("5.3.3",),
    "raw-three": ("0.3.1.2", "0.3.2"),
}
"""Groups, and the versions that open them: of RocketMQ, of `raw-three` of DLedger."""
SIZES = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "500", "maxIndexNum": "1000"}
_LEDGER_FILE = 131072


class Served(NamedTuple):
    """What a broker, or DLedger, serves of a store."""

    queues: dict[tuple[str, int], tuple[int, int]]
    messages: set[tuple[object, ...]]
    answer: dict[str, object]

    def delivered(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The queues up to the last message that is delivered.

        After a truncation of the log, Java can leave units of other messages at the end of a queue.
        """
        ends: dict[object, int] = {}
        for queue, _, _, offset, *_ in (each for each in self.messages if isinstance(each[0], tuple)):
            ends[queue] = max(ends.get(queue, 0), int(str(offset)) + 1)
        return {name: (first, ends.get(name, first)) for name, (first, _) in self.queues.items()}


class Judges:
    """Opens copies of stores with the real programs, which end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brokers: dict[str, PlainStores] = {}
        self._ledgers: dict[str, StoreOpener] = {}

    def served(self, case: str, version: str, store: Path) -> Served:
        """What a version serves of a copy of a store."""
        copy = copy_tree(store, Path(tempfile.mkdtemp(dir=self._folder)) / store.name)
        try:
            if case.startswith("raw-"):
                return self._of_ledger(case, version, copy)
            return self._of_controller(version, copy) if case == CONTROLLER else self._of_broker(version, copy)
        finally:
            shutil.rmtree(copy.parent, ignore_errors=True)

    def _of_ledger(self, case: str, version: str, copy: Path) -> Served:
        node = copy if copy.name.startswith("dledger-") else next(copy.glob("dledger-*"))
        opener = self._ledgers.setdefault(version, StoreOpener(version))
        answer = opener.open(node.parent, node.name.removeprefix("dledger-"), *file_sizes(case), appends=0)
        # A salvage knows of the committed index what the files prove; a node votes with its own term.
        kept = ("outcome", "beginIndex", "endIndex", "endTerm", "writePos", "digest")
        return Served({}, set(), {name: answer.get(name) for name in kept})

    def _of_controller(self, version: str, copy: Path) -> Served:
        if version not in self._brokers:
            self._brokers[version] = PlainStores(version, self._folder)
        java = self._brokers[version]
        java.open_root(copy, {**SIZES, "enableControllerMode": "true"})
        served = Served(java.queues(), messages_of(java.dump()), {})
        java.close_store()
        return served

    def _of_broker(self, version: str, copy: Path) -> Served:
        node = next(copy.glob("dledger-*")).name.removeprefix("dledger-")
        settings = {**SIZES, "mappedFileSizeCommitLog": _LEDGER_FILE}
        with serving_store(version, copy, settings, group="golden", node=node) as java:
            return Served(java.queues(), messages_of(java.dump()), {})

    def close(self) -> None:
        for opened in (*self._brokers.values(), *self._ledgers.values()):
            opened.close()


def messages_of(dump: Dump) -> set[tuple[object, ...]]:
    """The messages of a dump, and what lookups do not find."""
    found: set[tuple[object, ...]] = {(*each[:-1], tuple(sorted(each.properties.items()))) for each in dump.messages}
    missing = {"offset": dump.missing_by_offset, "key": dump.missing_by_key}
    return found | {(name, offset) for name, offsets in missing.items() for offset in offsets}


def group_of(folder: Path, case: str) -> Group:
    """The undamaged group: of controller mode two brokers with the log of the last epoch, and a third one with it."""
    if case != CONTROLLER:
        return golden_group(folder, case)
    root = unpack(case, folder)
    copy_tree(root / "b3", root / "b4")
    return group_at(folder, case, [root / name for name in ("b2", "b3", "b4")])


def differences(judges: Judges, case: str, seed: int, folder: Path, versions: Sequence[str]) -> Iterator[str]:
    """What Java serves otherwise of the salvage of a damaged group than of the undamaged store."""
    with patch.object(os, "fsync", lambda _: None):  # many small files
        group = group_of(folder, case)
        damage(group, seed, 4 + seed % 12)
        try:
            salvage(SalvageRequest.of(group.members, undecided="majority"), folder / "result")
        except DLedgerError as error:
            yield f"not salvaged: {error}"
            return
    for version in versions:
        expected = judges.served(case, version, group.original)
        try:
            found = judges.served(case, version, folder / "result")
        except (AssertionError, ConnectionError) as error:
            yield f"{version}: not opened: {str(error)[:300]}"
            continue
        if found.answer != expected.answer:
            yield f"{version}: {found.answer}, expected {expected.answer}"
        none = (0, 0)  # Java makes a queue when somebody asks for it
        delivered = expected.delivered()
        names = found.queues | delivered
        queues = {name: (found.queues.get(name, none), delivered.get(name, none)) for name in names}
        if wrong := {name: ranges for name, ranges in queues.items() if ranges[0] != ranges[1]}:
            yield f"{version}: {len(wrong)} queues: {dict(sorted(wrong.items())[:3])}"
        if missing := expected.messages - found.messages:
            yield f"{version}: {len(missing)} messages are missing, such as {str(min(missing, key=str))[:200]}"
        if more := found.messages - expected.messages:
            yield f"{version}: {len(more)} messages are new, such as {str(min(more, key=str))[:200]}"


def check(seed: int, folder: Path, _options: argparse.Namespace) -> Result:
    """Judge one group in controller mode, and one of the others."""
    others = [case for case in CASES if case != CONTROLLER]
    judges = Judges(folder)
    try:
        return Result(
            [
                Problem(case, problem)
                for case in (CONTROLLER, others[seed % len(others)])
                for problem in differences(judges, case, seed, folder / case, CASES[case])
            ]
        )
    finally:
        judges.close()


KIT = Kit("tests.salvage.judge", check, __doc__, 100, processes=1)

if __name__ == "__main__":
    sys.exit(KIT.main())
