"""Lists the lost messages and entries of replicas: what units know of their damaged and missing places.

Also what units say of entries before the first file, and `Candidates`: texts whose hashes the lost messages have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.committed import promised_end
from pyspark_dledger.log.copies.commit_log_replica import MAX_LOST_END
from pyspark_dledger.log.copies.lost_ends import LostEnd
from pyspark_dledger.log.diff.commit_log_group import commit_log_group
from pyspark_dledger.log.diff.copy_ranges import Ranges
from pyspark_dledger.log.diff.diff_table import LogEvidence
from pyspark_dledger.log.diff.replica_group import ReplicaGroup
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error
from pyspark_dledger.log.io.queue_files import FOLDER
from pyspark_dledger.log.io.queue_units import messages_in
from pyspark_dledger.log.replicas import check_distinct
from pyspark_dledger.log.salvage.compared_stores import ComparedStores, Progress, map_in_threads
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.compared_log import MAX_LISTED, ComparedLog, Place
from pyspark_dledger.rocketmq.lost.known_units import (
    KnownMessage,
    Places,
    entries_of_index,
    known_messages,
    listed_messages,
    merged,
    topics_of,
)

NEIGHBOURS, REPLICAS = "neighbours", "replicas"


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

    @property
    def end(self) -> int:
        """The position after it, as far as its size is known."""
        return self.pos + (self.size or 0)


class GroupLosses(NamedTuple):
    """What replicas have lost, and the entries and the positions for which no check tells which copy is intact.

    ``rivals`` are replicas whose logs diverged, and nothing tells which one the last master wrote. ``lost_ends`` are
    messages of a CommitLog at unknown positions after the ends of all replicas.
    """

    messages: list[LostMessage]
    unclear: Ranges
    unclear_positions: Ranges
    unclear_reasons: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    lost_ends: tuple[LostEnd, ...] = ()


def lost_in_group(log: StoreView, progress: Progress | None = None) -> GroupLosses:
    """What a store and its replicas have lost, in the order of the log, with the replicas that lost it and have it.

    What is neither intact nor unclear on any of them is lost for good. Nothing is said of what cannot be read; see
    `StoreView.unread`. Raises StoreError.
    """
    stores = [log, *log.replicas]
    check_distinct(stores, "replica")
    compared = ComparedStores(stores, map_in_threads, progress)
    ledger, old = ReplicaGroup(compared, log.options.group_size), commit_log_group(compared)
    logs = [ComparedLog(compared, COMMITLOG, old)] if old is not None else []
    logs.append(ComparedLog(compared, DLEDGER, ledger))
    messages = [lost for each in logs for lost in _lost_of(each, log.on_unreadable)]
    # A broker that is running has appended meanwhile.
    ends = [(store.max_offset, store.refreshed().max_offset) for store in stores]
    now = dict(zip(compared.names, ends, strict=True))
    messages = [lost for lost in messages if not any(now[name][0] <= lost.pos < now[name][1] for name in lost.lost_on)]
    of_bytes = LogEvidence(old.ranges if old is not None else (), MIN_MESSAGE_SIZE)
    of_entries = LogEvidence(ledger.ranges)
    return GroupLosses(
        sorted(messages, key=lambda lost: (lost.pos, lost.size or 0)),
        of_entries.unclear.ranges_found(),
        of_bytes.unclear.ranges_found(),
        tuple(sorted({*of_entries.unclear_reasons, *of_bytes.unclear_reasons})),
        tuple(name for number, name in enumerate(old.names) if old.rivals(number)) if old is not None else (),
        tuple(each for each in old.lost_ends if each.is_after_all) if old is not None else (),
    )


def _lost_of(log: ComparedLog, on_unreadable: OnUnreadable = ignore_error) -> list[LostMessage]:
    """What is lost of a log or undecided, in the order of the log. Raises StoreError for a remote file."""
    places = log.places()
    found: list[LostMessage] = []
    by_replicas: dict[tuple[int, ...], list[Place]] = defaultdict(list)
    for place in places:
        key = (place.history, *log.numbers_of(place.history, place.key))
        by_replicas[key].append(place)
    for (_, *numbers), own in sorted(by_replicas.items()):
        stores = [log.stores[number] for number in numbers]
        known = _known(own, sorted(stores, key=lambda store: store.path), on_unreadable)
        segments = [segment for store in stores for segment in store.segments]
        for place, messages in zip(own, messages_of(own, known, segments), strict=True):
            found += [_placed(lost, place, log) for lost in _lost_in(place, messages)]
    return [lost for lost in found if _is_listed(lost)]


def _known(places: list[Place], stores: list[StoreView], on_unreadable: OnUnreadable) -> Iterable[KnownMessage]:
    """What the units of stores know of messages in places."""
    indexes = [(place.first, place.first + (place.entries or 0)) for place in places if place.first is not None]
    if any(place.source == DLEDGER and place.first is None for place in places):
        # Bytes have no indexes where nothing is intact. After the end that files promise, units are of truncated ones.
        promised = max(map(promised_end, stores))
        indexes = [(0, promised + 1 if promised >= 0 else INT64_MAX)]
    entries: list[KnownMessage] = []
    for store in stores:
        entries += entries_of_index(store.index_files, merged(indexes), on_unreadable)
        entries += listed_messages(store)
    roots = [store.paths.root for store in stores]
    return known_messages(roots, ((each.start, each.end) for each in places), on_unreadable, known=entries).values()


def _placed(lost: LostMessage, place: Place, log: ComparedLog) -> LostMessage:
    """The message with the replicas that lost it, have it, or have a copy that nothing judges."""
    key = lost.pos if place.first is None else lost.index or place.first
    having = log.having(place.history, key, lost.size or 1, is_one=lost.entries is not None)
    return replace(
        lost,
        lost_on=having.lost,
        intact_on=having.intact,
        unclear_on=having.unclear,
        restorable_from=place.restorable_from,
        is_diverged=place.history > 0,
    )


def _is_listed(lost: LostMessage) -> bool:
    """Whether it can have been a message: less space at the end of a file was a blank."""
    return lost.entries is not None or lost.size is None or lost.size >= _min_size(lost.source)


def _min_size(source: str) -> int:
    return ENTRY_HEADER_SIZE if source == DLEDGER else MIN_MESSAGE_SIZE


def count_of(found: Iterable[LostMessage]) -> tuple[int, bool]:
    """How many messages are lost, and whether that is all: else it is at least so many.

    Bytes of which nothing is known count as none: they may have been a filler.
    """
    counts = [lost.entries for lost in found]
    return sum(count or 0 for count in counts), None not in counts


def _lost_in(place: Place, found: list[KnownMessage]) -> list[LostMessage]:
    if place.is_exact:
        return [_of_entry(place, found[0] if found else KnownMessage(place.start + place.header))]
    _number(place, found)
    lost = [_of_message(place, message) for message in found]
    unknown = None if place.entries is None else place.entries - len(found)
    if unknown is not None and unknown <= 0:
        return lost
    if place.is_end:
        lost += _after_end(place, lost)
    elif unknown is not None and unknown <= MAX_LISTED and all(each.index is not None for each in lost):
        lost += _by_neighbours(place, lost)
    else:
        lost += _of_rest(place, lost, unknown)
    return sorted(lost, key=lambda each: (each.pos, each.index or 0))


def _after_end(place: Place, lost: Sequence[LostMessage]) -> Iterator[LostMessage]:
    """The entries that a checkpoint knows after the end of the log, between those that units know."""
    assert place.entries is not None
    at, first, nameless = place.start, place.key, 0
    ends = [*((each.index, each.end) for each in lost), (place.key + place.entries, place.end)]
    for index, end in ends:
        if index is None:
            nameless += 1  # a queue knows it: it is one of those up to the next index
            continue
        if index - first > nameless:
            rest = _of_bytes(place, at, at, index - first - nameless)
            yield replace(rest, index=first, size=None, witnesses=("checkpoint",))
        at, first, nameless = end, index + 1, 0


def _by_neighbours(place: Place, lost: list[LostMessage]) -> Iterator[LostMessage]:
    """The entries that no unit has, by the indexes around them."""
    known = {each.index: each for each in lost}
    assert place.entries is not None
    stop = place.key + place.entries
    at = place.start
    run: list[int] = []
    for index in range(place.key, stop + 1):
        if index < stop and index not in known:
            run.append(index)
            continue
        end = known[index].pos if index < stop else place.end
        for number in run:
            unknown = _of_bytes(place, at, max(end, at), 1)
            size = (unknown.size or None) if len(run) == 1 else None
            yield replace(unknown, index=number, size=size, witnesses=(NEIGHBOURS,))
        run.clear()
        at = known[index].end if index < stop else end


def _of_rest(place: Place, lost: list[LostMessage], unknown: int | None) -> Iterator[LostMessage]:
    """The bytes that no unit has; the largest piece stands for all entries that are not known."""
    rest = sorted(_uncovered(place, lost), key=lambda piece: piece[0] - piece[1])
    minimum = _min_size(place.source)
    for start, end in rest if unknown is None else rest[:1]:
        if end - start >= minimum:
            yield _of_bytes(place, start, end, unknown)


def _number(place: Place, found: list[KnownMessage]) -> None:
    """Give indexes to messages that only queues know: if all are known, else from the ends of the place on."""
    if place.first is None or place.last is None:
        return
    is_all = len(found) == place.entries
    at, index = place.start, place.first
    for message in found:
        if not is_all and (message.offset - place.header != at or message.size is None):
            break
        message.index = index
        at, index = message.end, index + 1
    at, index = place.end, place.last
    for message in reversed(found):
        if message.index is not None or message.end != at:
            break
        message.index = index
        at, index = message.offset - place.header, index - 1


def _uncovered(place: Place, lost: list[LostMessage]) -> list[tuple[int, int]]:
    """The bytes of a place that no known message has."""
    at, pieces = place.start, []
    for each in lost:
        pieces.append((at, each.pos))
        at = max(at, each.end if each.size is not None else each.pos + place.header + MIN_MESSAGE_SIZE)
    return [piece for piece in [*pieces, (at, place.end)] if piece[0] < piece[1]]


def _of_message(place: Place, message: KnownMessage) -> LostMessage:
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
        key_hashes=tuple(sorted(message.key_hashes)),
        first_store_timestamp=first,
        last_store_timestamp=last,
        entries=1,
        witnesses=tuple(message.witnesses),
        problem=place.problem,
    )


def _time_of(place: Place, message: KnownMessage) -> tuple[int | None, int | None]:
    """Between which times it was stored: by its IndexFile unit and its neighbours, or by those that are known."""
    firsts = [time for time in (message.first_stored, place.stored_before) if time is not None]
    lasts = [time for time in (message.last_stored, place.stored_after) if time is not None]
    first, last = max(firsts, default=None), min(lasts, default=None)
    if message.first_stored is not None and first is not None and last is not None and first > last:
        return message.first_stored, message.last_stored  # the neighbours were stored by another clock
    return first, last


def _of_entry(place: Place, message: KnownMessage) -> LostMessage:
    """One entry: the values of its row count where no unit has them."""
    witnesses, row = tuple(message.witnesses), place.row
    if row is not None and not place.is_held:
        witnesses = ("log", *witnesses)
    elif not witnesses and place.first is not None:
        witnesses = (NEIGHBOURS,)
    if row is not None and place.is_held and message.topic is None:
        witnesses = (*witnesses, REPLICAS)
    if row is not None and message.topic is None:
        message.topic, message.queue_id, message.queue_offset = row["topic"], row["queueId"], row["queueOffset"]
    if row is not None and row["storeTimestamp"] is not None and (place.is_held or message.first_stored is None):
        message.first_stored = message.last_stored = row["storeTimestamp"]
    return replace(
        _of_message(place, message),
        index=place.first,
        term=place.term if message.term is None else message.term,
        pos=place.start,
        size=place.end - place.start,
        witnesses=witnesses,
    )


def _of_bytes(place: Place, start: int, end: int, entries: int | None) -> LostMessage:
    unknown = _of_message(place, KnownMessage(start + place.header))
    return replace(unknown, pos=start, size=end - start, entries=entries)


def messages_of(
    ranges: Sequence[Place], known: Iterable[KnownMessage], segments: list[Segment]
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


def _is_inside(message: KnownMessage, place: Place) -> bool:
    start = message.offset - place.header
    entries = range(place.key, place.key + (place.entries or 0))
    if place.first is not None and message.index is not None and message.index not in entries:
        return False
    if place.is_exact:
        return start == place.start and message.size in (None, place.end - message.offset)
    return start >= place.start and message.end <= place.end


def _next_to_others(found: list[KnownMessage], place: Place, segments: list[Segment]) -> list[KnownMessage]:
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
        return pos < last.end + MAX_LOST_END and (pos - last.base) % last.size == 0
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


class Candidates:
    """Keys, uniqKeys and tags that lost messages may have had."""

    def __init__(self, lines: Iterable[str], logs: Sequence[StoreView]) -> None:
        self._lines = list(dict.fromkeys(lines))
        self._logs = logs
        self._by_tag = self._numbered(java_hash)
        self._by_key = cache(lambda topic: self._numbered(partial(key_hash, topic)))

    def _numbered(self, hash_of: Callable[[str], int]) -> dict[int, list[str]]:
        """The lines by their hash."""
        found: dict[int, list[str]] = {}
        for line in self._lines:
            found.setdefault(hash_of(line), []).append(line)
        return found

    def keys_of(self, lost: LostMessage) -> list[str]:
        """The lines that can be a key or uniqKey of a message; without its topic, those of any topic."""
        if not lost.key_hashes:
            return []
        topics = [lost.topic] if lost.topic is not None else self._topics
        found = {line for topic in topics for number in lost.key_hashes for line in self._by_key(topic).get(number, [])}
        return [line for line in self._lines if line in found] if found else []

    def tags_of(self, lost: LostMessage) -> list[str]:
        """The lines that can be the tag of a message."""
        return self._by_tag.get(lost.tags_code, []) if lost.tags_code else []

    @cached_property
    def _topics(self) -> list[str]:
        return sorted({topic for log in self._logs for topic in topics_of(log)})
