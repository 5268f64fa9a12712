"""Lists the lost messages and entries of a store: what units know of its damaged and missing places.

Also what units say of entries before the first file, and `Candidates`: texts whose hashes the lost messages have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error
from pyspark_dledger.log.io.queue_files import FOLDER, folders_in
from pyspark_dledger.log.io.queue_units import messages_in
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.damaged_ranges import DamagedRange
from pyspark_dledger.rocketmq.lost.known_units import (
    KnownMessage,
    Places,
    add_key_units,
    add_queue_units,
    entries_of_index,
)

NEIGHBOURS = "neighbours"
# More entries that only their neighbours know are one row.
_MAX_LISTED = 100_000


@dataclass(frozen=True)
class LostMessage:
    """A lost message or entry, or bytes of which nothing more is known; the fields are columns of the table ``lost``.

    ``pos`` and ``size`` are those of its row, with the entry's header. ``entries`` is 1 for a known message; for other
    bytes it is how many the indexes around them leave, or None. ``witnesses`` are the tables that know it. Times are in
    microseconds since 1970: of the message, or of its intact neighbours. A salvage restores the header of an entry with
    its message from those in ``restorable_from``. ``is_diverged``: it is of a tail that the group's log does not have.
    """

    source: str
    index: int | None
    term: int | None
    pos: int
    size: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    tags_code: int | None
    key_hashes: tuple[int, ...]
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    entries: int | None
    witnesses: tuple[str, ...]
    problem: str
    lost_on: tuple[str, ...] = ()
    intact_on: tuple[str, ...] = ()
    unclear_on: tuple[str, ...] = ()
    restorable_from: tuple[str, ...] = ()
    is_diverged: bool = False

    @property
    def is_for_good(self) -> bool:
        """Whether no replica has it, for sure, a salvage does not restore it, and it was of the group's log."""
        return not (self.intact_on or self.unclear_on or self.restorable_from or self.is_diverged)

    @property
    def committed(self) -> bool | None:
        """False for an entry of a diverged tail; None if it is not known."""
        return False if self.is_diverged else None

    @classmethod
    def of_header(cls, index: int, unit: KnownMessage | None, pos: int) -> LostMessage:
        """An entry whose header is that of another one: what its index `unit` says, or only its position."""
        known = unit or KnownMessage(pos + ENTRY_HEADER_SIZE)
        return cls(
            source=DLEDGER,
            index=index,
            term=known.term,
            pos=known.offset - ENTRY_HEADER_SIZE,
            size=known.size + ENTRY_HEADER_SIZE if known.size is not None else None,
            topic=None,
            queue_id=None,
            queue_offset=None,
            tags_code=None,
            key_hashes=(),
            first_store_timestamp=None,
            last_store_timestamp=None,
            entries=1,
            witnesses=tuple(known.witnesses) or (NEIGHBOURS,),
            problem="expected the header of this entry, found another on every replica",
        )

    @property
    def end(self) -> int:
        """The position after it, as far as its size is known."""
        return self.pos + (self.size or 0)


def lost_messages(log: StoreView, ranges: list[DamagedRange], on_unreadable: OnUnreadable) -> list[LostMessage]:
    """What is lost in damaged places, in the order of the log. Raises StoreError for a remote file."""
    places = Places((each.start, each.end) for each in ranges)
    known = [_of_index(log, each, on_unreadable) for each in ranges]
    others: dict[int, KnownMessage] = {message.offset: message for messages in known for message in messages}
    if log.paths.root is not None and len(places):
        add_queue_units(log.paths.root, places, others, on_unreadable)
        add_key_units(log.paths.root, places, others, on_unreadable)
    lost: list[LostMessage] = []
    listed = 0  # entries after the last intact one
    for place, found in zip(ranges, messages_of(ranges, others.values(), log.segments), strict=True):
        here = _of_end(log, place, found, listed) if place.is_end else _lost_in(place, found)
        lost += here
        if place.has_log_end:
            listed += sum(each.entries or 0 for each in here)
    return lost


def count_of(found: Iterable[LostMessage]) -> tuple[int, bool]:
    """How many messages are lost, and whether that is all: else it is at least so many.

    Bytes of which nothing is known count as none: they may have been a filler.
    """
    counts = [lost.entries for lost in found]
    return sum(count or 0 for count in counts), None not in counts


def _of_index(log: StoreView, place: DamagedRange, on_unreadable: OnUnreadable) -> list[KnownMessage]:
    """The entries of a place that the DLedger index knows."""
    files = log.index_files.files
    if place.source != DLEDGER or not files or place.row is not None:
        return []
    first = place.before.index + 1 if place.before.index is not None else files[0].base // 32
    if place.is_end:
        last = log.checkpoint_committed_index  # units of later entries may be stale
    else:
        last = place.after.index - 1 if place.after.index is not None else files[-1].end // 32
    found = entries_of_index(log.index_files, first, last, on_unreadable)
    return [each for each in found if place.start <= each.offset - ENTRY_HEADER_SIZE and each.end <= place.end]


def _lost_in(place: DamagedRange, found: list[KnownMessage]) -> list[LostMessage]:
    if place.row is not None:
        return [_of_row(place, found[0] if found else None)]
    _number(place, found)
    lost = [_of_message(place, message) for message in found]
    missing = _missing_indexes(place)
    unknown = None if missing is None else missing - len(found)
    if unknown is not None and unknown <= 0:
        return lost
    if unknown is not None and unknown <= _MAX_LISTED and all(each.index is not None for each in lost):
        lost += _by_neighbours(place, lost)
    else:
        lost += _of_rest(place, lost, unknown)
    return sorted(lost, key=lambda each: (each.pos, each.index or 0))


def _by_neighbours(place: DamagedRange, lost: list[LostMessage]) -> Iterator[LostMessage]:
    """The entries that no unit has, by the indexes around them."""
    known = {each.index: each for each in lost}
    first, stop = place.before.index, place.after.index
    assert first is not None and stop is not None
    at = place.start
    run: list[int] = []
    for index in range(first + 1, stop + 1):
        if index < stop and index not in known:
            run.append(index)
            continue
        end = known[index].pos if index < stop else place.end
        for number in run:
            unknown = _of_bytes(place, at, max(end, at), 1)
            size = unknown.size if len(run) == 1 else None
            yield replace(unknown, index=number, size=size, witnesses=(NEIGHBOURS,))
        run.clear()
        at = known[index].end if index < stop else end


def _of_rest(place: DamagedRange, lost: list[LostMessage], unknown: int | None) -> Iterator[LostMessage]:
    """The bytes that no unit has; the largest piece stands for all entries that are not known."""
    rest = sorted(_uncovered(place, lost), key=lambda piece: piece[0] - piece[1])
    minimum = ENTRY_HEADER_SIZE if place.source == DLEDGER else MIN_MESSAGE_SIZE
    for start, end in rest if unknown is None else rest[:1]:
        if end - start >= minimum:
            yield _of_bytes(place, start, end, unknown)


def _missing_indexes(place: DamagedRange) -> int | None:
    """How many entries the indexes around a place leave; None if they do not say it."""
    if place.before.index is None or place.after.index is None:
        return None
    return max(place.after.index - place.before.index - 1, 0)


def _number(place: DamagedRange, found: list[KnownMessage]) -> None:
    """Give indexes to messages that only queues know, where as many indexes are missing."""
    missing = _missing_indexes(place)
    if missing == len(found) and place.before.index is not None:
        for number, message in enumerate(found):
            message.index = place.before.index + 1 + number


def _uncovered(place: DamagedRange, lost: list[LostMessage]) -> list[tuple[int, int]]:
    """The bytes of a place that no known message has."""
    at, pieces = place.start, []
    for each in lost:
        pieces.append((at, each.pos))
        at = max(at, each.end, each.pos + place.header + MIN_MESSAGE_SIZE)
    return [piece for piece in [*pieces, (at, place.end)] if piece[0] < piece[1]]


def _of_message(place: DamagedRange, message: KnownMessage) -> LostMessage:
    first, last = _time_of(place, message)
    return LostMessage(
        source=place.source,
        index=message.index,
        term=message.term,
        pos=message.offset - place.header,
        size=message.size + place.header if message.size is not None else None,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        tags_code=message.tags_code,
        key_hashes=tuple(message.key_hashes),
        first_store_timestamp=first,
        last_store_timestamp=last,
        entries=1,
        witnesses=tuple(message.witnesses),
        problem=place.problem,
    )


def _time_of(place: DamagedRange, message: KnownMessage) -> tuple[int | None, int | None]:
    """Between which times it was stored: by its IndexFile unit and its neighbours, or by those that are known."""
    firsts = [time for time in (message.first_stored, place.before.stored) if time is not None]
    lasts = [time for time in (message.last_stored, place.after.stored) if time is not None]
    first, last = max(firsts, default=None), min(lasts, default=None)
    if message.first_stored is not None and first is not None and last is not None and first > last:
        return message.first_stored, message.last_stored  # the neighbours were stored by another clock
    return first, last


def _of_row(place: DamagedRange, message: KnownMessage | None) -> LostMessage:
    """An entry whose header is intact: its own values count where no unit has them."""
    row = place.row
    assert row is not None
    lost = _of_message(place, message or KnownMessage(place.start + place.header))
    stored = (row["storeTimestamp"],) * 2 if row["storeTimestamp"] is not None else (None, None)
    first, last = (lost.first_store_timestamp, lost.last_store_timestamp)
    if message is None or message.first_stored is None:
        first, last = stored if stored[0] is not None else (first, last)
    has_queue = lost.topic is not None
    return replace(
        lost,
        index=row["index"],
        pos=row["pos"],
        size=row["size"],
        topic=lost.topic if has_queue else row["topic"],
        queue_id=lost.queue_id if has_queue else row["queueId"],
        queue_offset=lost.queue_offset if has_queue else row["queueOffset"],
        first_store_timestamp=first,
        last_store_timestamp=last,
        witnesses=("log", *lost.witnesses),
    )


def _of_end(log: StoreView, place: DamagedRange, found: list[KnownMessage], listed: int) -> list[LostMessage]:
    """What was committed after the end of the log; `listed` entries after its last intact one are known before."""
    lost = [_of_message(place, message) for message in found]
    last = place.before.index
    missing = log.checkpoint_committed_index - last if last is not None and log.checkpoint is not None else 0
    known = listed + (sum(each.index is not None for each in lost) or len(lost))
    if missing > known:
        end = lost[-1].end if lost else place.start
        lost.append(replace(_of_bytes(place, end, INT64_MAX, missing - known), size=None, witnesses=("checkpoint",)))
    return lost


def _of_bytes(place: DamagedRange, start: int, end: int, entries: int | None) -> LostMessage:
    unknown = _of_message(place, KnownMessage(start + place.header))
    return replace(unknown, pos=start, size=end - start, entries=entries)


# Bytes. No log loses more at its end.
_MAX_LOST_END = 2**44


def messages_of(
    ranges: Sequence[DamagedRange], known: Iterable[KnownMessage], segments: list[Segment]
) -> list[list[KnownMessage]]:
    """The messages of each of the ascending ranges, by offset.

    A message is next to another one, or to the beginning or end of its range or of a file. Of two that overlap, the one
    with more witnesses counts.
    """
    ordered = sorted(known, key=lambda message: message.offset)
    places = Places((each.start, each.end) for each in ranges)
    numbers = places.number_of(np.array([message.offset for message in ordered], np.int64)).tolist()
    candidates: list[list[KnownMessage]] = [[] for _ in ranges]
    for number, message in zip(numbers, ordered, strict=True):
        if number >= 0 and _is_inside(message, ranges[number]):
            candidates[number].append(message)
    return [
        _without_overlaps(_next_to_others(found, place, segments))
        for found, place in zip(candidates, ranges, strict=True)
    ]


def _is_inside(message: KnownMessage, place: DamagedRange) -> bool:
    start = message.offset - place.header
    if place.row is not None:
        return start == place.start and message.size in (None, place.end - message.offset)
    return start >= place.start and message.end <= place.end


def _next_to_others(found: list[KnownMessage], place: DamagedRange, segments: list[Segment]) -> list[KnownMessage]:
    starts = {message.offset - place.header for message in found} | {place.end}
    ends = {message.end for message in found if message.size is not None} | {place.start}
    return [
        message
        for message in found
        if message.offset - place.header in ends
        or (message.size is not None and message.end in starts)
        or _begins_file(message.offset - place.header, segments)
    ]


def _begins_file(pos: int, segments: list[Segment]) -> bool:
    """Whether a file begins at a position, or one can have begun there after the last one that is left."""
    if not segments:
        return False
    last = segments[-1]
    if pos >= last.base:
        return pos < last.end + _MAX_LOST_END and (pos - last.base) % last.size == 0
    return any(segment.base == pos for segment in segments)


def _without_overlaps(found: list[KnownMessage]) -> list[KnownMessage]:
    kept: list[KnownMessage] = []
    for message in found:
        if kept and kept[-1].end > message.offset:
            if len(kept[-1].witnesses) >= len(message.witnesses):
                continue
            kept.pop()
        kept.append(message)
    return kept


def before_first_file(log: StoreView) -> str | None:
    """That units know entries or messages before the first file; None if none does, and for a remote store."""
    if not log.min_offset or is_remote(log.path) or log.paths.only is not None:
        return None
    found = list(_units(log))
    text = f"its files begin at pos {log.min_offset}: what was before has expired, or is lost with missing files"
    return f"{text}; {' and '.join(found)}" if found else None


def _units(log: StoreView) -> Iterator[str]:
    first = log.index_files.first_index
    if 0 <= first < log.begin_index:
        yield f"its index has the entries {first} to {log.begin_index - 1}"
    root = log.paths.root
    if root is not None and (root / FOLDER).is_dir():
        count = len(messages_in(0, log.min_offset, root).pos)
        if count:
            yield f"its queues have {counted(count, 'message')} from there"


def topics_of(log: StoreView, on_unreadable: OnUnreadable = ignore_error) -> list[str]:
    """The topics that have a folder for their ConsumeQueues."""
    root = log.paths.root
    return sorted(folder.name for folder in folders_in(root / FOLDER, on_unreadable)) if root is not None else []


class Candidates:
    """Keys, uniqKeys and tags that lost messages may have had."""

    def __init__(self, lines: Iterable[str], logs: Sequence[StoreView]) -> None:
        self._lines = list(dict.fromkeys(lines))
        self._logs = logs
        self._keys: dict[str, dict[int, list[str]]] = {}

    def keys_of(self, lost: LostMessage) -> list[str]:
        """The lines that can be a key or uniqKey of a message; without its topic, those of any topic."""
        if not lost.key_hashes:
            return []
        topics = [lost.topic] if lost.topic is not None else self._topics
        found = {
            line for topic in topics for number in lost.key_hashes for line in self._by_hash(topic).get(number, [])
        }
        return [line for line in self._lines if line in found] if found else []

    def tags_of(self, lost: LostMessage) -> list[str]:
        """The lines that can be the tag of a message."""
        return self._tags.get(lost.tags_code, []) if lost.tags_code else []

    @cached_property
    def _topics(self) -> list[str]:
        return sorted({topic for log in self._logs for topic in topics_of(log)})

    @cached_property
    def _tags(self) -> dict[int, list[str]]:
        tags: dict[int, list[str]] = {}
        for line in self._lines:
            tags.setdefault(java_hash(line), []).append(line)
        return tags

    def _by_hash(self, topic: str) -> dict[int, list[str]]:
        if topic not in self._keys:
            hashes: dict[int, list[str]] = {}
            for line in self._lines:
                hashes.setdefault(key_hash(topic, line), []).append(line)
            self._keys[topic] = hashes
        return self._keys[topic]
