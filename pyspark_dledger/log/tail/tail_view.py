"""A store at one refresh of its tail: what is committed, and up to where it may be read.

Of the ConsumeQueues, a refresh reads only what follows the last known unit of each. Also data loss, when an entry that
was read is no longer in the log: why, and where reading continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import decode_consume_queue_unit
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, ENTRY_HEADER_SIZE, segment_name
from pyspark_dledger.format.message import Message, message_in, transaction
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.committed import Bound, committed_bound, proven_by_queues, queue_bound
from pyspark_dledger.log.io.entry_reads import read_at, row_at, segment_at
from pyspark_dledger.log.io.files import ignore_error, open_file
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    Queue,
    file_queues,
    folders_in,
    index_proven_by,
    written_units,
)
from pyspark_dledger.log.io.store_paths import Stamps, folder_stamps, is_settled
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import TailOffset

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
        found = file_queues(self.root, ignore_error)
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


class EntryRef(NamedTuple):
    """An entry, or a message of the old CommitLog, and the position after it."""

    offset: TailOffset
    end: int

    @property
    def pos(self) -> int:
        return -1 if self.offset.pos is None else self.offset.pos


def entry_ref(store: StoreView, source: str, pos: int) -> EntryRef | None:
    """The entry or message at a position of a source, or None."""
    found = row_at(segment_at([each for each in store.segments if each.source == source], pos), pos)
    if found is None:
        return None
    index, term = (found.header.index, found.header.term) if found.header is not None else (None, None)
    return EntryRef(TailOffset(index, term, pos, store.engine.crc32(found.read())), found.end)


def is_complete_message(store: StoreView, message: EntryRef) -> bool:
    """Whether a message of the old CommitLog is written completely: by its lengths, its CRC and its last byte.

    The last byte is never 0. It belongs to the properties, or to the topic if there are none.
    """
    segment = segment_at([part for part in store.segments if part.source == COMMITLOG], message.pos)
    if segment is None:
        return False
    data = segment.read(message.pos, message.end - message.pos)
    parsed = message_in(data)
    if parsed is None:
        return False
    written = data if parsed.properties_length else data[: parsed.properties_start - 2]
    return parsed.has_right_crc and written[-1] != 0


def message_of(store: StoreView, index: int) -> Message | None:
    """The message of an entry that the index file has, or None."""
    pos = store.indexed(index)
    found = row_at(segment_at(store.ledger_segments, pos), pos) if pos is not None else None
    return message_in(found.read(), ENTRY_HEADER_SIZE) if found is not None else None


class TailView:
    """A store at one refresh. ``end`` is the last entry that may be read, ``last_known`` that of the refresh before."""

    def __init__(self, store: StoreView, bound: Bound, last_known: EntryRef | None) -> None:
        self.store = store
        self.bound = bound
        self.last_known = last_known
        self.end: EntryRef | None = None

    @property
    def begin(self) -> int:
        """The position of the first row."""
        return self.store.min_offset

    @property
    def begin_index(self) -> int | None:
        """The first index of the log; None without one."""
        first = next(filter(None, map(self.store.first_entry, self.store.ledger_segments)), None)
        return first[1] if first is not None and self.store.end.entries > 0 else None

    def entry_ref(self, source: str, pos: int) -> EntryRef | None:
        """The entry or message at a position of a source, or None."""
        return entry_ref(self.store, source, pos)

    def position_of(self, index: int) -> int:
        """The position of the first entry with at least `index`; without a walk if the index file has it."""
        end, known = self.store.end, self.last_known
        if index == end.last_index:
            return end.last_pos
        indexed = self.store.indexed(index)
        if indexed is not None:
            return indexed
        is_before = known is not None and known.offset.index is not None and known.offset.index <= index
        if known is not None and is_before and index <= end.last_index and known.end <= end.pos:
            segment = segment_at(self.store.ledger_segments, known.pos)
            if segment is not None and self.entry_ref(DLEDGER, known.pos) == known:
                stop = self.store.segment_end(segment)
                pos = self.store.engine.seek(segment, known.pos, stop, index)
                if pos < stop:
                    return pos
        return self.store.position_of(index)

    def entry(self, index: int) -> EntryRef | None:
        """The entry `index`, or the first one after it if that entry is damaged."""
        return self.entry_ref(DLEDGER, self.position_of(index))

    def last_old_message(self) -> EntryRef | None:
        """The last message of the old CommitLog."""
        found = self.store.ends.get(COMMITLOG)
        return self.entry_ref(COMMITLOG, found[1].last_pos) if found is not None else None


class TailBound:
    """Finds the committed index, and reads only what is new in the queues."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._queues: QueueTails | None = None

    def find(self, store: StoreView, before: TailView | None) -> Bound:
        """The committed index of the store; `before` is the last view of it."""
        return committed_bound(store, self._options, lambda each: self._queue_bound(each, before))

    def _queue_bound(self, store: StoreView, last_view: TailView | None) -> Bound:
        """What the queues prove."""
        root, index = store.paths.root, None
        if root is not None and store.paths.node_dir is not None:
            if self._queues is None or self._queues.root != root:
                self._queues = QueueTails(root)
            before = _committed_before(store, last_view)
            following = message_of(store, before + 1) if before is not None else None
            if following is not None and self._queues.has_unit_of(following) is False:
                return queue_bound(before)
            self._queues.refresh()
            index = proven_by_queues(store, self._queues.proven_index)
        return queue_bound(index)


def _committed_before(store: StoreView, before: TailView | None) -> int | None:
    """The highest index that was known to be committed before; None if the log was replaced since."""
    if before is None or before.end is None or before.end.offset.index is None:
        return None
    is_there = entry_ref(store, DLEDGER, before.end.pos) == before.end
    return before.bound.index if is_there else None


@dataclass(frozen=True)
class ResumePoint:
    """The position at which reading continues; None if it is not known yet.

    ``pinned`` is set if the entry that was read is no longer in the log. The next batch is then empty and ends at
    ``pinned``, so that the checkpoint has an offset of the present log.
    """

    pos: int | None
    pinned: TailOffset | None = None


@dataclass(frozen=True)
class DataLoss:
    """The problem with an offset, and how reading continues, both as text.

    ``truncated_at`` is the first index that is known to have another entry now; ``expired`` entries are skipped.
    """

    problem: str
    resumed: str
    resume: ResumePoint
    truncated_at: int | None = None
    expired: int = 0


def expired_positions(view: TailView, start: TailOffset) -> DataLoss:
    """The loss for a `start` that is only a position, below the beginning of the log."""
    return DataLoss(
        f"expected the log from {start} on, found that it begins at pos {view.begin}: older data has expired",
        f"reading continues at pos {view.begin}, and data from {start} up to there is skipped",
        ResumePoint(view.begin),
    )


def lost_message(view: TailView, start: TailOffset) -> DataLoss:
    """The loss for a message of the old CommitLog."""
    assert start.pos is not None
    divided = view.store.divided_commitlog_offset
    if view.store.ledger_segments and start.pos >= divided:
        at = max(divided, view.begin)
        return DataLoss(
            f"expected {start} in the old CommitLog, found that dividedCommitlogOffset is {divided} now",
            f"reading continues there, with the first entry of DLedger at pos {at}",
            ResumePoint(None, TailOffset(pos=at)),
        )
    if start.pos < view.begin:
        return expired_positions(view, start)
    found = view.entry_ref(COMMITLOG, start.pos)
    return DataLoss(
        f"expected {start} with CRC {start.crc}, found {_with_crc(found)}: the log was replaced or overwritten",
        f"reading continues after {_offset_of(view.end)}, and the log up to there is skipped",
        ResumePoint(None, view.end.offset if view.end is not None else TailOffset(pos=view.begin)),
    )


def lost_entry(view: TailView, start: TailOffset, begin: int | None) -> DataLoss:
    """The loss for an entry of DLedger; `begin` is the first index of the log."""
    assert start.index is not None and start.term is not None
    end = view.store.end
    if begin is not None and begin > start.index + 1:
        return DataLoss(
            f"expected index {start.index + 1} next, found that the log begins with {begin}: older ones have expired",
            f"reading continues with index {begin}, and indexes {start.index + 1} to {begin - 1} are skipped",
            ResumePoint(view.position_of(begin)),
            expired=begin - start.index - 1,
        )
    if begin is None or start.index > end.last_index:
        found = f"that the log ends with index {end.last_index}: it was truncated or replaced"
    else:
        found = f"{_with_crc(view.entry(start.index))}: the log was overwritten from there or before, or replaced"
    problem = f"expected {start} with CRC {start.crc}, found {found}"
    truncated_at = _first_with_higher_term(view.store, start)
    if truncated_at is not None:
        before = view.entry(truncated_at - 1) if begin is not None and truncated_at > begin else None
        skipped = "nothing is skipped"
        if before is not None and before.offset.term != start.term:
            # A later leader can also bring entries of earlier terms.
            skipped = f"nothing tells if others, before index {truncated_at}, were overwritten and are skipped"
        return DataLoss(
            problem,
            f"reading continues with index {truncated_at}, the first of a later term; the entries read before, from "
            f"there to index {start.index}, are no longer in the log, and {skipped}",
            ResumePoint(None, before.offset if before is not None else TailOffset(pos=view.begin)),
            truncated_at,
        )
    # The entry there counts as read, committed or not, so that nothing is read twice.
    last = view.entry(min(start.index, end.last_index)) if begin is not None else None
    return DataLoss(
        problem,
        f"reading continues after {_offset_of(last)}; overwritten entries up to there are skipped, and the first of "
        "them is not known",
        ResumePoint(None, last.offset if last is not None else TailOffset(pos=view.begin)),
    )


def _first_with_higher_term(store: StoreView, start: TailOffset) -> int | None:
    """The first index up to that of `start` whose entry has a later term: a leader elected since wrote it."""
    assert start.index is not None and start.term is not None
    runs = store.term_runs()
    return next((run.index for run in runs if run.term > start.term and run.index <= start.index), None)


def _offset_of(entry: EntryRef | None) -> str:
    return str(entry.offset) if entry is not None else "the log's begin"


def _with_crc(entry: EntryRef | None) -> str:
    return f"{entry.offset} with CRC {entry.offset.crc}" if entry is not None else "no entry"
