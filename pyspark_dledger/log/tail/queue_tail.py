"""What a broker's ConsumeQueues prove from one look to the next: of each only what follows its last unit is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_dledger.format.codec import decode_consume_queue_unit
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, SEGMENT_NAME_DIGITS
from pyspark_dledger.format.message import Message, transaction
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    Queue,
    folder_entries,
    index_proven_by,
    queues,
    written_units,
)
from pyspark_dledger.log.io.segment_listing import Stamps, folder_stamps, is_settled

_BYTES_AT_ONCE = 512 * CONSUME_QUEUE_UNIT_SIZE
# Prepared and rolled back messages are in no queue.
_HAVE_UNITS = ("none", "commit")
_ZEROS = bytes(CONSUME_QUEUE_UNIT_SIZE)


class _Last:
    """The last unit of a queue: its file, of `size` bytes, where it stands there in bytes, and its bytes.

    Without a unit it stands before the file and has no bytes. ``commit_log_offset`` is where its message stands, -1
    without a unit and for a filler; ``message_size`` is in bytes.
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

    def look(self) -> bool:
        """Go on to the last unit that was written since. False where the unit itself is not there any more."""
        try:
            descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return self._look(descriptor)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _look(self, descriptor: int) -> bool:
        self.size = max(self.size, os.fstat(descriptor).st_size)  # a file that was just created is still empty
        size = 2 * CONSUME_QUEUE_UNIT_SIZE  # mostly nothing is new
        while True:
            data = os.pread(descriptor, size, max(self.at, 0))
            start = CONSUME_QUEUE_UNIT_SIZE if self.unit else 0
            if data[:start] != self.unit:
                return False
            written = _written(data, start)
            if written > start:
                unit = data[written - CONSUME_QUEUE_UNIT_SIZE : written]
                self._set(max(self.at, 0) + written - CONSUME_QUEUE_UNIT_SIZE, unit)
            if written < size:
                return True
            size = _BYTES_AT_ONCE

    @property
    def is_full(self) -> bool:
        return self.at + 2 * CONSUME_QUEUE_UNIT_SIZE > self.size


def _written(data: bytes, start: int) -> int:
    """Where the units from `start` on end that are not zeros."""
    whole = len(data) - len(data) % CONSUME_QUEUE_UNIT_SIZE
    for at in range(start, whole, CONSUME_QUEUE_UNIT_SIZE):
        if data[at : at + CONSUME_QUEUE_UNIT_SIZE] == _ZEROS:
            return at
    return whole


@dataclass
class QueueTails:
    """The last units of the queues below ``root/consumequeue``. A look costs one read for each queue."""

    root: Path
    _lasts: dict[tuple[str, int], _Last] = field(default_factory=dict)
    _folders: tuple[Path, ...] = ()
    _stamps: Stamps | None = None

    def look(self) -> None:
        """Read what was written to the queues since the last look."""
        self._find_queues()
        for key, last in list(self._lasts.items()):
            if not last.look():
                # Its file was deleted, or cut: it is found anew.
                del self._lasts[key]
                self._stamps = None
            elif last.is_full:
                self._lasts[key] = _following(last)

    def proven_index(self, segments: list[Segment], end: int) -> int | None:
        """The highest index below the log's `end` whose message a queue points to; see `consume_queue.proven_index`."""
        found = [last for last in self._lasts.values() if last.commit_log_offset >= 0]
        return index_proven_by(((last.commit_log_offset, last.message_size) for last in found), segments, end)

    def has_unit_of(self, message: Message, topic: str) -> bool | None:
        """Whether the message's own queue has its unit by now; None where it has no unit, or that cannot be told.

        A broker dispatches in the order of the log: without this unit there is none of a later message.
        """
        last = self._lasts.get((topic, message.queue_id))
        if transaction(message.sys_flag) not in _HAVE_UNITS or last is None or not last.look() or last.is_full:
            return None
        return message.queue_offset * CONSUME_QUEUE_UNIT_SIZE <= int(Path(last.file).name) + last.at

    def _find_queues(self) -> None:
        """List the queues anew where a topic or a queue was added or removed."""
        if self._stamps is not None and folder_stamps(self._folders) == self._stamps:
            return
        found = queues(self.root)
        self._folders = tuple(_watched(self.root / FOLDER, found))
        stamps = folder_stamps(self._folders)
        self._stamps = stamps if is_settled(stamps) else None
        known = self._lasts
        self._lasts = {}
        for queue in found:
            key = (queue.topic, queue.queue_id)
            self._lasts[key] = known[key] if key in known else _last_of(queue)


def _watched(folder: Path, found: Iterable[Queue]) -> Iterator[Path]:
    """The folders that change where a queue comes or goes: of all topics, and of queues that were cut to nothing."""
    held = {(queue.topic, str(queue.queue_id)) for queue in found}
    yield folder
    for topic in (entry for entry in folder_entries(folder) if entry.is_dir()):
        yield Path(topic.path)
        for queue in (entry for entry in folder_entries(Path(topic.path)) if entry.is_dir()):
            if (topic.name, queue.name) not in held:
                yield Path(queue.path)


def _last_of(queue: Queue) -> _Last:
    """The last unit of a queue, looked for in all of it."""
    for file in reversed(queue.files):
        written = written_units(file)
        if written or file is queue.files[0]:
            at = (written - 1) * CONSUME_QUEUE_UNIT_SIZE
            unit = read_at(file.path, at, CONSUME_QUEUE_UNIT_SIZE) if written else b""
            return _Last(file.path, file.units * CONSUME_QUEUE_UNIT_SIZE, at, unit)
    raise AssertionError("a queue has files")


def _following(last: _Last) -> _Last:
    """The queue's next file, once it is there; `last` keeps what is proven until a unit is in it."""
    file = Path(last.file)
    name = int(file.name) + last.size
    following = file.with_name(f"{name:0{SEGMENT_NAME_DIGITS}d}")
    if not following.exists():
        return last
    begun = _Last(str(following), last.size)
    return begun if begun.look() and begun.unit else last
