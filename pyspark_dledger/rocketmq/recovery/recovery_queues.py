"""Models how a broker's recovery reads, extends and truncates ConsumeQueues, in memory only.

`BrokerStart` is what the starts of all brokers have in common, with DLedger and without.

Source: RocketMQ 4.9.8 and 5.3.3 ``ConsumeQueue.recover``, ``putMessagePositionInfo``, ``truncateDirtyLogicFiles``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.format.message import transaction
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.key_files import read_header
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    UNIT_DTYPE,
    QueueFile,
    folders_in,
    queues,
    read_units,
)
from pyspark_dledger.log.io.state_files import MARGIN_MS, read_store_checkpoint
from pyspark_dledger.log.recovery.java_files import JavaFile, list_folder
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.recovery.java_messages import JavaMessage, MessageRules, first_message

_FILES_SCANNED = 3
# RocketMQ's default: 300,000 units.
_DEFAULT_FILE_SIZE = 300_000 * CONSUME_QUEUE_UNIT_SIZE

Records = npt.NDArray[Any]


class RecoveredQueue:
    """One queue: its files, and how many bytes of each the broker counts as written.

    ``max_physical`` is the end in the log of the last message that the queue points to; -1 for none.
    """

    def __init__(self, files: list[QueueFile], file_size: int) -> None:
        self.file_size = file_size
        self.max_physical = -1
        self._files = {int(file.name): file for file in files}
        self._added: dict[int, list[tuple[int, int]]] = {}
        self._wrote = dict.fromkeys(self._files, file_size)
        if files:
            self._wrote[max(self._files)] = len(self._leading_units(max(self._files))) * CONSUME_QUEUE_UNIT_SIZE

    @property
    def max_offset(self) -> int:
        """The queueOffset after the last unit."""
        last = max(self._wrote, default=0)
        return (last + self._wrote.get(last, 0)) // CONSUME_QUEUE_UNIT_SIZE

    @property
    def has_empty_last_file(self) -> bool:
        """Whether nothing is left in the last file, which is not the first possible one.

        From 5.0 to 5.4, ``ConsumeQueue.correctMinOffset`` reads the unit before its position 0.
        """
        last = max(self._wrote, default=0)
        return last > 0 and not self._wrote[last]

    @property
    def units(self) -> int:
        """The number of units, with fillers."""
        return sum(self._wrote.values()) // CONSUME_QUEUE_UNIT_SIZE

    def recover(self) -> None:
        """Find the end, the first unit in the last three files without a message. Later files are deleted."""
        bases = sorted(self._files)
        for base in bases[-_FILES_SCANNED:]:
            units = self._leading_units(base)
            if len(units):
                self.max_physical = int(units[-1]["commitLogOffset"]) + int(units[-1]["size"])
            self._wrote[base] = len(units) * CONSUME_QUEUE_UNIT_SIZE
            if self._wrote[base] < self.file_size:
                for later in bases[bases.index(base) + 1 :]:
                    self._delete(later)
                return

    def put(self, queue_offset: int, offset: int, size: int) -> None:
        """Add the unit of a dispatched message, unless the queue has it already."""
        if offset + size <= self.max_physical:
            return
        end = self.max_offset * CONSUME_QUEUE_UNIT_SIZE
        wanted = queue_offset * CONSUME_QUEUE_UNIT_SIZE
        if not self._wrote and queue_offset:
            end = wanted  # a new queue has fillers up to its first unit
        elif queue_offset and wanted < end:
            return
        base = end - end % self.file_size
        self._wrote[base] = end - base + CONSUME_QUEUE_UNIT_SIZE
        self._added.setdefault(base, []).append((offset, size))
        self.max_physical = offset + size

    def truncate(self, end: int) -> None:
        """Remove the units of messages at or after `end`, file by file from the last one."""
        self.max_physical = end
        while self._wrote:
            base = max(self._wrote)
            kept = self._kept(base, end)
            if kept:
                self._wrote[base] = kept
                return
            self._delete(base)

    def delete(self) -> None:
        """Delete all files."""
        self.max_physical = -1
        for base in list(self._wrote):
            self._delete(base)

    def _delete(self, base: int) -> None:
        self._files.pop(base, None)
        self._wrote.pop(base, None)
        self._added.pop(base, None)

    def _kept(self, base: int, end: int) -> int:
        """How many bytes of a file stay. The first unit counts even if it is empty."""
        offsets, sizes = self._content(base)
        stays = (offsets >= 0) & (offsets < end) & (sizes > 0)
        if not len(offsets) or offsets[0] >= end:
            return 0
        stays[0] = True
        kept = _leading(stays)
        self.max_physical = int(offsets[kept - 1] + sizes[kept - 1])
        return kept * CONSUME_QUEUE_UNIT_SIZE

    def _content(self, base: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Offsets and sizes of all units of a file, also of those after its end, which an older log can have left."""
        records = self._records(base)
        offsets, sizes = (np.zeros(self.file_size // CONSUME_QUEUE_UNIT_SIZE, np.int64) for _ in range(2))
        offsets[: len(records)] = records["commitLogOffset"]
        sizes[: len(records)] = records["size"]
        if base in self._added:
            units = self._wrote[base] // CONSUME_QUEUE_UNIT_SIZE
            first = units - len(self._added[base])
            # A new queue begins with fillers, which point to 0.
            sizes[len(records) : first] = FILLER_SIZE
            offsets[first:units], sizes[first:units] = np.array(self._added[base], np.int64).T
        return offsets, sizes

    def _leading_units(self, base: int) -> Records:
        """The units before the first one without a message."""
        records = self._records(base)
        return records[: _leading((records["commitLogOffset"] >= 0) & (records["size"] > 0))]

    def _records(self, base: int) -> Records:
        file, count = self._files.get(base), self.file_size // CONSUME_QUEUE_UNIT_SIZE
        blocks = read_units(file, 0, count) if file is not None else ()
        return np.concatenate([np.empty(0, UNIT_DTYPE), *blocks])


class RecoveredQueues:
    """The queues of a store, by topic and queue id."""

    def __init__(self, root: Path) -> None:
        found = queues(root)
        sizes = Counter(file.units * CONSUME_QUEUE_UNIT_SIZE for queue in found for file in queue.files if file.units)
        usual = sizes.most_common(1)[0][0] if sizes else _DEFAULT_FILE_SIZE
        self.by_key: dict[tuple[str, int], RecoveredQueue] = {
            (queue.topic, queue.queue_id): RecoveredQueue(
                [file for file in queue.files if file.units],
                queue.files[0].units * CONSUME_QUEUE_UNIT_SIZE or usual,
            )
            for queue in found
        }
        # Java loads a folder without files as a queue, too: a truncation sets its end in the log.
        for topic in folders_in(root / FOLDER):
            for queue_id in (folder.name for folder in folders_in(root / FOLDER / topic.name)):
                if queue_id.isdecimal():
                    self.by_key.setdefault((topic.name, int(queue_id)), RecoveredQueue([], usual))
        self._before = self._max_offsets()
        self.units_before = self.units

    @property
    def units(self) -> int:
        return sum(queue.units for queue in self.by_key.values())

    @property
    def max_physical(self) -> int:
        """The end in the log of the last message of any queue; -1 for none."""
        return max((queue.max_physical for queue in self.by_key.values()), default=-1)

    def with_empty_last_file(self) -> str | None:
        """The first ``topic/queueId`` whose last file is empty."""
        found = (key for key, queue in sorted(self.by_key.items()) if queue.has_empty_last_file)
        return next((f"{topic}/{queue_id}" for topic, queue_id in found), None)

    def recover(self) -> None:
        for queue in self.by_key.values():
            queue.recover()

    def put(self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> None:
        """Dispatch a message."""
        key = (topic, queue_id)
        if key not in self.by_key:
            file_size = next((queue.file_size for queue in self.by_key.values()), _DEFAULT_FILE_SIZE)
            self.by_key[key] = RecoveredQueue([], file_size)
        self.by_key[key].put(queue_offset, offset, size)

    def truncate(self, end: int) -> None:
        for queue in self.by_key.values():
            queue.truncate(end)

    def delete(self) -> None:
        for queue in self.by_key.values():
            queue.delete()

    def changes(self) -> list[dict[str, Any]]:
        """The queues whose length has changed."""
        after = self._max_offsets()
        return [
            {
                "topic": topic,
                "queueId": queue_id,
                "maxOffsetBefore": self._before.get((topic, queue_id), 0),
                "maxOffsetAfter": max_offset,
            }
            for (topic, queue_id), max_offset in sorted(after.items())
            if max_offset != self._before.get((topic, queue_id), 0)
        ]

    def max_offsets(self) -> dict[str, int]:
        """The queueOffset after the last unit of each queue that has one, by ``topic/queueId``."""
        return {f"{topic}/{queue_id}": end for (topic, queue_id), end in sorted(self._max_offsets().items()) if end}

    def _max_offsets(self) -> dict[tuple[str, int], int]:
        return {key: queue.max_offset for key, queue in self.by_key.items()}


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first false one."""
    return int(np.argmin(good)) if not good.all() else len(good)


Release = tuple[int, ...]


class BrokerStart:
    """One start of a broker of a release on the store in `root`.

    ``abort``: it was not closed cleanly. ``cut_at``: queues lose their units from this offset on, None if none does.
    """

    def __init__(self, log: StoreView, root: Path, version: str, release: Release) -> None:
        self.log = log
        self.root = root
        self.version = version
        self.release = release
        self.rules = MessageRules.of(release)
        self.abort = (root / "abort").exists()
        # Messages after those of all queues are dispatched even after a clean end.
        self.dispatches_rest = release >= (5, 3, 2)
        self.checkpoint = read_store_checkpoint(root)
        self.queues = RecoveredQueues(root)
        self.notes: list[str] = []
        self.cut_at: int | None = None

    def deleted_index_files(self) -> list[str]:
        """After an unclean end: the IndexFiles whose last message is newer than the store checkpoint."""
        paths = list_folder(self.root / "index") if self.abort else []
        headers = ((path.name, read_header(path)) for path in paths if path.name.isdecimal() and path.is_file())
        limit = self.checkpoint.index_msg_timestamp
        return sorted(name for name, header in headers if header is not None and header.end_timestamp > limit)

    def queue_file_of_other_size(self) -> str | None:
        """A file of a ConsumeQueue with another size than the others, with which load() fails; None without one.

        4.9.2 ignores it; earlier lines are not modelled.
        """
        if self.release < (4, 9) or self.release == (4, 9, 2):
            return None
        found = queues(self.root)
        sizes = Counter(file.units * CONSUME_QUEUE_UNIT_SIZE for queue in found for file in queue.files)
        usual = sizes.most_common(1)[0][0] if sizes else 0
        for queue in found:
            for file in queue.files:
                size = path_of(file.path).stat().st_size
                is_deleted = size == 0 and file is queue.files[-1] and self.release >= (5, 1, 3)
                if size != usual and not is_deleted:
                    where = f"consumequeue/{queue.topic}/{queue.queue_id}/{file.name}"
                    return f"{where} has {size} bytes, not {usual}"
        return None

    @property
    def covered_until(self) -> int:
        """The store timestamp up to which the store checkpoint covers messages, in ms since 1970."""
        covered = min(self.checkpoint.physic_msg_timestamp, self.checkpoint.logics_msg_timestamp)
        return max(covered - MARGIN_MS, 0)

    def covered_file(self, files: list[JavaFile], magics: tuple[int, ...], shift: int = 0) -> int:
        """The number of the newest file whose first message the store checkpoint covers, else of the first file."""
        for number in range(len(files) - 1, 0, -1):
            magic, time = first_message(files[number], shift) or (0, 0)
            if magic in magics and 0 != time <= self.covered_until:
                return number
        return 0

    def dispatch(self, message: JavaMessage) -> None:
        """Add the message's unit to its queue."""
        if transaction(message.sys_flag) in ("none", "commit"):
            topic = decode_utf8(message.topic)
            self.queues.put(topic, message.queue_id, message.queue_offset, message.offset, message.size)


def paths_in(folders: Iterable[Path]) -> list[Path]:
    """The contents of the folders of a log, by name."""
    return sorted((path for folder in folders for path in list_folder(folder)), key=lambda path: path.name)
