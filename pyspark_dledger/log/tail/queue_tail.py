"""The ends of a broker's ConsumeQueues. A refresh reads only what follows the last known unit of each queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import decode_consume_queue_unit
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, segment_name
from pyspark_dledger.format.message import Message, transaction
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import ignore_error, open_file
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    Queue,
    folders_in,
    index_proven_by,
    queues,
    written_units,
)
from pyspark_dledger.log.io.store_paths import Stamps, folder_stamps, is_settled

_READ_BYTES = 512 * CONSUME_QUEUE_UNIT_SIZE
# Prepared and rolled back messages are in no queue.
_QUEUED = ("none", "commit")
_ZEROS = bytes(CONSUME_QUEUE_UNIT_SIZE)


class _QueueEnd:
    """The last unit of a queue: its file (of `size` bytes), its offset in the file, and its bytes.

    Without a unit the offset is before the file, and there are no bytes. ``commit_log_offset`` is the position of its
    message, -1 without a unit and for a filler; ``message_size`` is in bytes.
    """

    __slots__ = ("at", "commit_log_offset", "file", "message_size", "size", "unit")

    def __init__(self, file: str, size: int, at: int = -CONSUME_QUEUE_UNIT_SIZE, unit: bytes = b"") -> None:
        self.file = file
        self.size = size
        self._set(at, unit)

    def _set(self, at: int, unit: bytes) -> None:
        self.at, self.unit = at, unit
        decoded = decode_consume_queue_unit(unit) if unit else None
        is_message = decoded is not None and 0 < decoded.size < FILLER_SIZE
        self.commit_log_offset = decoded.commit_log_offset if decoded is not None and is_message else -1
        self.message_size = decoded.size if decoded is not None else 0

    def refresh(self) -> bool:
        """Read units that were written since. False if the known unit is no longer there."""
        try:
            with open_file(self.file) as file:
                return self._read(file)
        except OSError:
            return False

    def _read(self, file: OpenFile) -> bool:
        self.size = max(self.size, file.size())  # a new file is empty at first
        size = 2 * CONSUME_QUEUE_UNIT_SIZE  # usually there is nothing new
        while True:
            data = file.read(max(self.at, 0), size)
            start = CONSUME_QUEUE_UNIT_SIZE if self.unit else 0
            if data[:start] != self.unit:
                return False
            written = _written(data, start)
            if written > start:
                unit = data[written - CONSUME_QUEUE_UNIT_SIZE : written]
                self._set(max(self.at, 0) + written - CONSUME_QUEUE_UNIT_SIZE, unit)
            if written < size:
                return True
            size = _READ_BYTES

    @property
    def is_full(self) -> bool:
        return self.at + 2 * CONSUME_QUEUE_UNIT_SIZE > self.size


def _written(data: bytes, start: int) -> int:
    """The end of the units from `start` that are not zeros."""
    whole = len(data) - len(data) % CONSUME_QUEUE_UNIT_SIZE
    for at in range(start, whole, CONSUME_QUEUE_UNIT_SIZE):
        if data[at : at + CONSUME_QUEUE_UNIT_SIZE] == _ZEROS:
            return at
    return whole


@dataclass
class QueueTails:
    """The last units of the queues below ``root/consumequeue``. A refresh costs one read for each queue."""

    root: Path
    _lasts: dict[tuple[str, int], _QueueEnd] = field(default_factory=dict)
    _folders: tuple[Path, ...] = ()
    _stamps: Stamps | None = None

    def refresh(self) -> None:
        """Read the units that were written since the last refresh."""
        self._find_queues()
        for key, last in list(self._lasts.items()):
            if not last.refresh():
                # Its file was deleted or truncated: the queue is listed again.
                del self._lasts[key]
                self._stamps = None
            elif last.is_full:
                self._lasts[key] = _following(last)

    def proven_index(self, segments: list[Segment], end: int) -> int | None:
        """The highest index below the log's `end` whose message a queue points to; see `queue_files.proven_index`."""
        found = [last for last in self._lasts.values() if last.commit_log_offset >= 0]
        return index_proven_by(((last.commit_log_offset, last.message_size) for last in found), segments, end)

    def has_unit_of(self, message: Message) -> bool | None:
        """Whether the message's queue has its unit; None if the message has no unit, or that is not known.

        A broker dispatches in the order of the log: without this unit, later messages have none either.
        """
        last = self._lasts.get((message.topic, message.queue_id))
        if transaction(message.sys_flag) not in _QUEUED or last is None or not last.refresh() or last.is_full:
            return None
        return message.queue_offset * CONSUME_QUEUE_UNIT_SIZE <= int(Path(last.file).name) + last.at

    def _find_queues(self) -> None:
        """List the queues again if a topic or a queue was added or removed."""
        if self._stamps is not None and folder_stamps(self._folders) == self._stamps:
            return
        found = queues(self.root, ignore_error)
        self._folders = tuple(_watched(self.root / FOLDER, found))
        stamps = folder_stamps(self._folders)
        self._stamps = stamps if is_settled(stamps) else None
        known = self._lasts
        self._lasts = {}
        for queue in found:
            key = (queue.topic, queue.queue_id)
            self._lasts[key] = known[key] if key in known else _last_of(queue)


def _watched(folder: Path, found: Iterable[Queue]) -> Iterator[Path]:
    """The folders that change when a queue is added or removed: those of topics, and those of queues without files."""
    known = {(queue.topic, str(queue.queue_id)) for queue in found}
    yield folder
    for topic in folders_in(folder, ignore_error):
        yield Path(topic.path)
        for queue in folders_in(Path(topic.path), ignore_error):
            if (topic.name, queue.name) not in known:
                yield Path(queue.path)


def _last_of(queue: Queue) -> _QueueEnd:
    """The last unit of a queue, searched from its end."""
    for file in reversed(queue.files):
        try:
            written = written_units(file)
        except UnreadableError:
            written = 0  # it proves nothing
        if written or file is queue.files[0]:
            at = (written - 1) * CONSUME_QUEUE_UNIT_SIZE
            unit = read_at(file.path, at, CONSUME_QUEUE_UNIT_SIZE) if written else b""
            return _QueueEnd(file.path, file.units * CONSUME_QUEUE_UNIT_SIZE, at, unit)
    raise AssertionError("a queue has files")


def _following(last: _QueueEnd) -> _QueueEnd:
    """The queue's next file if it has a unit, else `last`."""
    file = Path(last.file)
    following = file.with_name(segment_name(int(file.name) + last.size))
    if not following.exists():
        return last
    following_end = _QueueEnd(str(following), last.size)
    return following_end if following_end.refresh() and following_end.unit else last
