"""Reads committed messages of a broker's store: by position in the log, by queueOffset, and by key.

Source: RocketMQ 5.3.3 ``DLedgerCommitLog.getMessage``, ``DefaultMessageStore.getMessage``, ``queryMessage``,
``IndexFile.selectPhyOffset``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.dispatched_rows import is_valid_queue, key_hash
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import has_message_magic, message_in
from pyspark_dledger.format.spec import COMMITLOG, Segment
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.log.io.key_files import KeyFile, index_files
from pyspark_dledger.log.io.queue_files import FOLDER, Queue, queue_files
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.rocketmq.broker.root_files import LogSegments

Status = Literal[
    "FOUND",
    "MESSAGE_WAS_REMOVING",
    "NO_MATCHED_LOGIC_QUEUE",
    "NO_MESSAGE_IN_QUEUE",
    "OFFSET_OVERFLOW_BADLY",
    "OFFSET_OVERFLOW_ONE",
    "OFFSET_TOO_SMALL",
]
"""``GetMessageStatus``."""


class QueueResult(NamedTuple):
    """Messages of a queue; ``next_offset`` is the next one to read. The queue has ``[min_offset, max_offset)``."""

    status: Status
    messages: list[bytes]
    next_offset: int
    min_offset: int
    max_offset: int


class MessageReader:
    """Reads the files of a store that may be running. Not thread-safe.

    `committed_pos` returns the end of the last committed entry of DLedger's log; an old CommitLog is all committed.
    Messages are returned as in the log.
    """

    def __init__(
        self, root: Path, data_dirs: Iterable[Path], committed_pos: Callable[[], int], engine: str = "auto"
    ) -> None:
        self._root = root
        self._files = LogSegments(root, data_dirs)
        self._committed_pos = committed_pos
        self._engine = get_engine(engine)

    def get_message(self, offset: int, size: int | None = None) -> bytes | None:
        """The message at an offset of the log, in DLedger that of an entry's body.

        None if no message begins there, or if it has another `size`, has expired or is not committed.
        """
        # `at` finds new files, such as DLedger's first one, which changes `pos_of`.
        segment = self._files.at(self._files.pos_of(offset))
        pos = self._files.pos_of(offset)
        if segment is None or not segment.base <= pos < segment.end:
            return None
        found = self._size_in_old(segment, pos) if segment.source == COMMITLOG else self._size_in_ledger(segment, pos)
        if found is None or (size is not None and size != found):
            return None
        data = segment.read(offset, found)
        is_message = len(data) == found and has_message_magic(data, 0, found)
        return data if is_message and int.from_bytes(data[:4], "big", signed=True) == found else None

    def _size_in_old(self, segment: Segment, pos: int) -> int | None:
        size = int.from_bytes(segment.read(pos, 4), "big", signed=True)
        return size if layout.MIN_MESSAGE_SIZE <= size <= segment.end - pos else None

    def _size_in_ledger(self, segment: Segment, pos: int) -> int | None:
        header = entry_at(segment, pos)
        return header.body_size if header is not None and pos + header.size <= self._committed_pos() else None

    # By queue

    def by_queue(self, topic: str, queue_id: int, queue_offset: int, count: int = 32) -> QueueResult:
        """Up to `count` messages of a queue from a queueOffset on; without those that have expired."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return QueueResult("NO_MATCHED_LOGIC_QUEUE", [], 0, 0, 0)
        units = QueueUnits(queue)
        low, high = units.bounds(self._files.begin(self._engine))
        outside = _outside(queue_offset, low, high)
        if outside is not None:
            return QueueResult(outside[0], [], outside[1], low, high)
        rank = units.rank_of(queue_offset)
        if rank is None:
            return QueueResult("MESSAGE_WAS_REMOVING", [], queue_offset + 1, low, high)
        offsets, found = units.read(rank, min(rank + max(count, 1), units.count))
        rows = zip(found["commitLogOffset"].tolist(), found["size"].tolist(), strict=True)
        messages = [message for row in rows if (message := self.get_message(*row)) is not None]
        following = int(offsets[-1]) + 1 if len(offsets) else queue_offset
        return QueueResult("FOUND" if messages else "MESSAGE_WAS_REMOVING", messages, following, low, high)

    def _queue(self, topic: str, queue_id: int) -> Queue | None:
        if not is_valid_queue((topic, queue_id)):
            return None
        files = queue_files(self._root / FOLDER / topic / str(queue_id))
        return Queue(topic, queue_id, files) if files else None

    # By key

    def by_key(self, topic: str, key: str, count: int = 32, begin: int = 0, end: int = INT64_MAX) -> list[bytes]:
        """The newest `count` messages of a topic with a key or UNIQ_KEY, in the order of the log.

        Their storeTimestamps are in ``[begin, end]``, in milliseconds. Keys are found once the index is flushed.
        """
        found: dict[int, bytes] = {}
        for path in reversed(index_files(self._root)):
            for offset in offsets_of_key(path, topic, key, begin, end):
                message = self.get_message(offset) if offset not in found else None
                if message is not None and _has_key(message, topic, key, begin, end):
                    found[offset] = message
                    if len(found) >= count:
                        return [found[each] for each in sorted(found)]
        return [found[each] for each in sorted(found)]


def _outside(queue_offset: int, low: int, high: int) -> tuple[Status, int] | None:
    """The status and the next queueOffset for a queueOffset outside of the queue; None inside."""
    if high == 0:
        return "NO_MESSAGE_IN_QUEUE", 0
    if queue_offset < low:
        return "OFFSET_TOO_SMALL", low
    if queue_offset == high:
        return "OFFSET_OVERFLOW_ONE", high
    return ("OFFSET_OVERFLOW_BADLY", high) if queue_offset > high else None


def _has_key(data: bytes, topic: str, key: str, begin: int, end: int) -> bool:
    """Whether a message has that topic and key: different keys may have the same hash."""
    found = message_in(data)
    if found is None or found.topic != topic or not begin <= found.store_timestamp <= end:
        return False
    keys = found.properties.get(layout.PROPERTY_KEYS, "").split(" ")
    return key in keys or key == found.properties.get(layout.PROPERTY_UNIQ_KEY)


def offsets_of_key(path: Path, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
    """The commitLogOffsets of the units with a key's hash, newest first.

    Yields nothing if the file has no message stored in ``[begin, end]``, in milliseconds since 1970.
    """
    file = KeyFile.opened(path)
    if file is None or file.header.end_timestamp < begin or file.header.begin_timestamp > end:
        return
    wanted = key_hash(topic, key)
    number = file.newest(wanted % file.slots)
    limit = file.header.index_count
    # Numbers in a chain only fall, so that a damaged chain cannot loop.
    while 0 < number < limit:
        limit = number
        units = file.read(number, number + 1)
        if not len(units):
            return
        if int(units["keyHash"][0]) == wanted:
            yield int(units["commitLogOffset"][0])
        number = int(units["previous"][0])
