"""Stores with queues and index that a `Dispatcher` builds, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyspark_dledger.common.retention import Retention
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT, CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchedPart, Dispatcher, DispatchSettings
from pyspark_dledger.rocketmq.tables import read_table
from tests.support.generate import Payload, Store, mq_message, raw

SMALL = DispatchSettings(units_per_file=10, hash_slots=7, index_units=20, chunk_bytes=1500, engine="native")
# Goldens are old, and the disk may be full: no file expires.
KEPT = Retention(file_reserved_hours=1_000_000, enable_disk_force_clean=False)
LONG_AGO = 1_700_000_000_137
STEP_MS = 1_000


class Messages:
    """Makes messages one second apart, with the queueOffsets that a leader would assign."""

    def __init__(self, stored: int = LONG_AGO) -> None:
        self.stored = stored
        self.next_offsets: Counter[tuple[str, int]] = Counter()

    def make(self, topic: str = "Orders", queue_id: int = 0, body: bytes = b"x", **more: Any) -> Payload:
        counts = more.get("transaction", "none") in ("none", "commit")
        queue_offset = self.next_offsets[topic, queue_id] if counts else 0
        self.next_offsets[topic, queue_id] += counts
        self.stored += STEP_MS
        return mq_message(
            topic, body, queue_id=queue_id, **{"queue_offset": queue_offset, "store_timestamp": self.stored, **more}
        )

    def some(self, count: int, **more: Any) -> list[Payload]:
        """Messages of several queues, with keys, tags, transactions and delays."""
        made = []
        for number in range(count):
            if number % 6 == 5:
                kind = ["prepared", "rollback", "commit"][number // 6 % 3]
                made.append(self.make("Pays", 0, b"p", transaction=kind, properties=[("KEYS", f"pay{number}")], **more))
            elif number % 11 == 7:
                properties = [("DELAY", "3"), ("KEYS", "late"), ("REAL_TOPIC", "Orders")]
                made.append(self.make("SCHEDULE_TOPIC_XXXX", 2, b"d", properties=properties, **more))
            else:
                properties = [("UNIQ_KEY", f"U{number}"), ("TAGS", ["paid", "付款"][number % 2])]
                properties += [("KEYS", f"a{number % 4}  b{number}")] if number % 3 == 0 else []
                made.append(self.make("Orders", number % 3, b"%d" % number, properties=properties, **more))
        return made


def dispatcher(
    root: Path, listener: Any = None, settings: DispatchSettings = SMALL, dirs: Sequence[Path] = ()
) -> Dispatcher:
    kept = replace(settings, clean=KEPT)
    return Dispatcher(root, dirs or [root / "dledger-n0" / "data"], listener or (lambda _: None), kept)


def end_of(store: Store, index: int) -> int:
    """The end position of the entry with an index."""
    row = next(row for row in store.rows if row["index"] == index)
    return row["pos"] + row["size"]


def dispatch(
    root: Path, log_end: int, committed: int, *, is_unclean: bool = False, is_clean: bool = True, **more: Any
) -> list[DispatchedPart]:
    """Run a dispatcher up to a committed index; returns what its listener got."""
    parts: list[DispatchedPart] = []
    one = dispatcher(root, parts.append, **more)
    one.recover(log_end, is_unclean)
    one.start()
    one.committed(committed)
    assert one.stop(60) == is_clean
    assert one.failure is None
    return parts


def abandon(root: Path, log_end: int, committed: int, *, flush_after: int | None = None, **more: Any) -> Dispatcher:
    """Run a dispatcher and kill it; with `flush_after` it flushed after so many chunks."""
    one = dispatcher(root, **more)
    one.recover(log_end, False)
    one.committed(committed)
    steps = 0
    while one._step():
        steps += 1
        if steps == flush_after:
            one.flush()
    one._queues.close()
    return one


def files_of(root: Path, *folders: str) -> dict[str, bytes]:
    """The bytes of every file below some folders of a root."""
    paths = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def units(root: Path, topic: str = "Orders", queue_id: int = 0) -> list[tuple[int, int, int]]:
    """Every written unit of a queue, including fillers, in order."""
    folder = root / "consumequeue" / topic / str(queue_id)
    found: list[tuple[int, int, int]] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        dtype = np.dtype([(each.name, each.dtype) for each in CONSUME_QUEUE_UNIT])
        assert path.stat().st_size % CONSUME_QUEUE_UNIT_SIZE == 0
        found += [unit for unit in np.frombuffer(path.read_bytes(), dtype).tolist() if any(unit)]
    return found


def audit(root: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of `dledger audit`."""
    return [row for batch in read_table(open_log(str(root), **options), "audit") for row in batch.to_pylist()]


def index_units(root: Path) -> list[tuple[int, int]]:
    """Hash and offset of every unit of the index of keys, in the order of writing."""
    from pyspark_dledger.log.io.key_files import KeyFile, index_files

    found: list[tuple[int, int]] = []
    for path in index_files(root):
        file = KeyFile.opened(path)
        assert file is not None
        rows = file.read(1, file.header.index_count)
        found += zip(rows["keyHash"].tolist(), rows["commitLogOffset"].tolist(), strict=True)
    return found


def with_noise(payloads: Iterable[Payload]) -> list[Payload]:
    """Payloads, with an entry that is no message after each fifth."""
    made: list[Payload] = []
    for number, payload in enumerate(payloads):
        made.append(payload)
        if number % 5 == 4:
            made.append(raw(b"no message"))
    return made
