"""Compares what replicas have lost: what is lost on one can be intact on another."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters
from pyspark_dledger.log.copies.lost_ends import commit_log_replicas, lost_ends_of
from pyspark_dledger.log.diff import copy_ranges
from pyspark_dledger.log.diff.commit_log_group import commit_log_group
from pyspark_dledger.log.diff.copy_ranges import Ranges
from pyspark_dledger.log.diff.diff_table import LogEvidence
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_between, read_judged, read_partition
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.salvage.compared_stores import ComparedStores
from pyspark_dledger.log.salvage.histories import Histories
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.segment_checks import SegmentCheckPart, messages_elsewhere
from pyspark_dledger.log.verify.verify_store import plan_findings
from pyspark_dledger.rocketmq.lost.damaged_ranges import (
    COLUMNS,
    DamagedRange,
    Progress,
    contradicted_ranges,
    damaged_ranges,
    damaged_rows,
    end_range,
    row_at,
)
from pyspark_dledger.rocketmq.lost.known_units import entries_of_index
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, lost_messages

_MAX_LISTED = 100_000
REPLICAS = "replicas"

Row = dict[str, Any]
_Extent = tuple[int, int]


class GroupLosses(NamedTuple):
    """What replicas have lost, and the entries and the positions for which no check tells which copy is intact."""

    messages: list[LostMessage]
    unclear: Ranges
    unclear_positions: Ranges
    unclear_reasons: tuple[str, ...] = ()


INTACT, DAMAGED, ABSENT, UNCLEAR = range(4)


class _Group:
    """The comparison of the logs of a group."""

    def __init__(self, compared: ComparedStores, size: int | None) -> None:
        self.ledger = ReplicaGroup(compared, size)
        self.old = commit_log_group(compared)
        of_bytes = LogEvidence(self.old.ranges if self.old is not None else ())
        of_entries = LogEvidence(self.ledger.ranges)
        self.unclear, self.unclear_positions = of_entries.unclear.ranges_found(), of_bytes.unclear.ranges_found()
        self.unclear_reasons = tuple(sorted({*of_entries.unclear_reasons, *of_bytes.unclear_reasons}))
        self.lost = (*of_entries.lost.ranges_found().ranges, *of_entries.filled.ranges_found().ranges)
        self.last_index = max(member.end for member in self.ledger.members)
        replicas = self.old.replicas if self.old is not None else []
        ends_known = bool(replicas) and all(each.donors for each in lost_ends_of(replicas))
        self.commit_log_end = max(each.end for each in replicas) if ends_known else INT64_MAX
        """Where the longest CommitLog ends, 2^63-1 if all may have been longer."""
        self.repairs = _repairs(self.ledger.histories, compared.names)
        self.is_indexed = compared.is_indexed

    def history_of(self, number: int, index: int) -> int:
        """The number of the history that a replica's log is of at an index; 0 is the main one."""
        return self.ledger.copies.history_of(number, index)

    def of_entry(self, number: int, index: int, losers: Iterable[int]) -> int:
        """How a replica has the entry that the replicas `losers` lost; one of another history counts as absent."""
        found = self.ledger.copies.at(index)
        histories = {self.history_of(loser, index) for loser in losers}
        if found is None or found.copies[number].history not in histories:
            return ABSENT
        return _state([found.copies[number]])

    def is_diverged(self, number: int, lost: LostMessage) -> bool:
        """Whether a message that a replica lost is of its diverged tail, which the group's log does not have."""
        if lost.source == DLEDGER:
            return lost.index is not None and self.history_of(number, lost.index) > 0
        return self.old is not None and self.old.copies.history_of(number, lost.pos) > 0

    def of_bytes(self, number: int, start: int, end: int, losers: Iterable[int]) -> int:
        """How a replica has the positions ``[start, end)`` of the CommitLog that the replicas `losers` lost."""
        copies = self.old.copies if self.old is not None else None
        histories = {copies.history_of(loser, start) for loser in losers} if copies is not None else set()
        if copies is not None and copies.history_of(number, start) not in histories:
            return ABSENT
        ranges = self.old.ranges if self.old is not None else []
        first = max(bisect_right(ranges, start, key=lambda each: each.first) - 1, 0)
        found = takewhile(lambda each: each.first < end, ranges[first:])
        return _state([each.copies[number] for each in found if each.last >= start])

    def of_positions(self, number: int, start: int, end: int, losers: Iterable[int]) -> int:
        """How a replica has what the replicas `losers` lost of DLedger logs at the positions ``[start, end)``."""
        copies, found = self.ledger.copies, []
        for first, last, history in copies.parts_at(start, end, set(losers)):
            entries = [copies.at(index) for index in (first, last)]
            found += [each.copies[number] for each in entries if each is not None]
            if any(copy.history != history for copy in found):
                return ABSENT
        return _state(found)

    def cuts(self, start: int, end: int) -> list[int]:
        """The positions of the CommitLog in between where one begins to be lost on all replicas, or ends to be."""
        ranges = self.old.ranges if self.old is not None else ()
        pairs = pairwise(each for each in ranges if each.last >= start and each.first < end)
        return [two.first for one, two in pairs if bool(one.holders) != bool(two.holders) and start < two.first]

    def silently_damaged(self, number: int) -> Iterator[tuple[int, int]]:
        """Where rows of a replica begin that are damaged, and where the next ones begin; those that look whole too."""
        for found in self.old.ranges if self.old is not None else ():
            if found.copies[number].state == copy_ranges.DAMAGED:
                yield found.first, found.last + 1
        member = self.ledger.members[number]
        for found in self.ledger.ranges:
            if found.copies[number].is_silent and not found.copies[number].is_undecided:
                yield member.position(found.first), member.position(found.last + 1)

    def pos_of(self, index: int) -> int:
        """The lowest position at which a replica has an entry, or had it."""
        return min(member.position(index) for member in self.ledger.members if member.begin <= index)


def _state(copies: list[copy_ranges.Copy]) -> int:
    if any(copy.state in (copy_ranges.DAMAGED, copy_ranges.FILLER) and not copy.is_undecided for copy in copies):
        return DAMAGED
    if any(copy.is_undecided or copy.state == copy_ranges.UNREAD for copy in copies):
        return UNCLEAR
    return INTACT if copies and all(copy.state == copy_ranges.INTACT for copy in copies) else ABSENT


def _repairs(found: Histories, names: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """The replicas with the message of each entry whose header a salvage writes again, by index."""
    repairs = [each for history in found.found[:1] for each in history.log.repairs]
    return {each.index: tuple(names[number] for number in each.sources) for each in repairs}


@dataclass(frozen=True)
class _Replica:
    """A replica, its number in the comparison of its group, and what it has lost."""

    name: str
    log: StoreView
    number: int
    states: _Group | None
    ranges: list[DamagedRange]

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self.ranges]

    def is_diverged(self, lost: LostMessage) -> bool:
        """Whether a message that the replica lost is of its diverged tail, which the group's log does not have."""
        return self.states is not None and self.states.is_diverged(self.number, lost)

    def state_of(self, lost: LostMessage) -> int:
        """Whether the replica has a message, lost it too, or never had it or let it expire."""
        end = max(lost.end, lost.pos + 1)
        if self.states is not None and lost.source == DLEDGER and lost.index is not None:
            names = self.states.ledger.names
            return self.states.of_entry(self.number, lost.index, map(names.index, lost.lost_on or (self.name,)))
        if self.states is not None and lost.source == COMMITLOG and self.states.old is not None:
            names = self.states.ledger.names
            return self.states.of_bytes(self.number, lost.pos, end, map(names.index, lost.lost_on or (self.name,)))
        if self.states is not None and lost.source == DLEDGER and not self.states.is_indexed:
            names = self.states.ledger.names
            return self.states.of_positions(self.number, lost.pos, end, map(names.index, lost.lost_on or (self.name,)))
        if self.log.unread.covers(lost.pos, end):
            return UNCLEAR
        place = bisect_right(self._starts, end - 1) - 1
        if place >= 0 and self.ranges[place].end > lost.pos:
            return DAMAGED
        return INTACT if self.log.min_offset <= lost.pos and end <= self.log.max_offset else ABSENT


def lost_in_group(log: StoreView, progress: Progress | None = None) -> GroupLosses:
    """What a store and its replicas have lost, in the order of the log, with the replicas that lost it and have it.

    What is neither intact nor unclear on any of them is lost for good. Nothing is said of what cannot be read; see
    `StoreView.unread`. Raises StoreError.
    """
    logs = [log, *log.replicas]
    states = _Group(compared(log), log.options.group_size) if len(logs) > 1 else None
    replicas: list[_Replica] = []
    for number, name in sorted(enumerate(replica_names(logs)), key=itemgetter(1)):
        each = logs[number]
        ranges = damaged_ranges(each, progress=_part_of(progress, len(replicas), len(logs)))
        doubted = states.silently_damaged(number) if states is not None else _elsewhere(each)
        ranges = sorted([*ranges, *contradicted_ranges(each, doubted)], key=_start)
        replicas.append(_Replica(name, each, number, states, ranges))
    found: dict[tuple[object, ...], LostMessage] = {}
    for replica in replicas:
        for lost in (piece for each in _lost_on(replica) for piece in _cut(each, states)):
            lost = replace(lost, is_diverged=replica.is_diverged(lost))
            place = (lost.index,) if lost.index is not None else (None, lost.pos, lost.size)
            key = (lost.source, lost.is_diverged, *place)
            found[key] = _joined(found[key], lost) if key in found else lost
    known = [lost for lost in found.values() if lost.entries == 1]
    rest = [piece for lost in found.values() if lost.entries != 1 for piece in _unknown(lost, known, len(logs) > 1)]
    placed = (_counted(_placed(lost, replicas), replicas) for lost in [*known, *rest])
    end = max((each.proven_end for each in commit_log_replicas(logs) if not each.is_old), default=INT64_MAX)
    placed = (lost for lost in placed if not _is_after_end(lost, end))
    kept = [lost for lost in placed if _is_listed(lost) and not _is_uncommitted(lost, replicas)]
    if states is not None:
        kept += [_placed(lost, replicas) for lost in _with_other_headers(states, kept, logs)]
    completed = completed_by_replicas(kept, {replica.name: replica.log for replica in replicas})
    messages = sorted(_with_restorable(list(completed), replicas), key=lambda lost: (lost.pos, lost.size or 0))
    if states is None:
        return GroupLosses(messages, Ranges(), Ranges())
    return GroupLosses(messages, states.unclear, states.unclear_positions, states.unclear_reasons)


def _with_other_headers(states: _Group, known: list[LostMessage], logs: list[StoreView]) -> Iterator[LostMessage]:
    """The entries that are lost on every replica, although their bytes look whole: their headers are of others."""
    listed = {each.index for each in known if each.source == DLEDGER}
    for first, last in states.lost:
        last = min(last, first + _MAX_LISTED)
        units = {
            each.index: each for log in logs for each in entries_of_index(log.index_files, first, last, ignore_error)
        }
        for index in range(first, last + 1):
            if index not in listed:
                yield LostMessage.of_header(index, units.get(index), states.pos_of(index))


def _with_restorable(messages: list[LostMessage], replicas: list[_Replica]) -> Iterator[LostMessage]:
    states = replicas[0].states
    repairs = states.repairs if states is not None else {}
    if states is None and any(lost.index is not None for lost in messages):
        found = ComparedStores([replica.log for replica in replicas])
        repairs = _repairs(found.histories(DLEDGER) or Histories(DLEDGER, (), {}, ()), found.names)
    for lost in messages:
        names = repairs.get(lost.index, ()) if lost.index is not None and lost.is_for_good else ()
        yield replace(lost, restorable_from=names) if names else lost


def _is_after_end(lost: LostMessage, end: int) -> bool:
    """Whether a unit points after the proven end of all CommitLogs, so that it is damaged."""
    return lost.source == COMMITLOG and lost.pos >= end and lost.entries == 1


def _is_listed(lost: LostMessage) -> bool:
    is_blank = lost.entries is None and lost.size is not None and lost.size < MIN_MESSAGE_SIZE
    return bool(lost.lost_on or lost.unclear_on) and lost.entries != 0 and not is_blank


def _elsewhere(log: StoreView) -> Iterator[tuple[int, int]]:
    """Where messages begin and end whose queue has them at another place than they say."""
    for part in plan_findings(log) if not is_remote(log.path) else ():
        yield from messages_elsewhere(part) if isinstance(part, SegmentCheckPart) else ()


def _cut(lost: LostMessage, states: _Group | None) -> Iterator[LostMessage]:
    """Unknown bytes in parts: what a replica has intact, and what all lost."""
    is_unknown = lost.source == COMMITLOG and lost.entries is None and lost.size is not None
    cuts = states.cuts(lost.pos, lost.end) if states is not None and is_unknown else []
    for start, end in pairwise([lost.pos, *cuts, lost.end]) if cuts else ():
        yield replace(lost, pos=start, size=end - start)
    if not cuts:
        yield lost


def _start(place: DamagedRange) -> int:
    return place.start


def _lost_on(replica: _Replica) -> list[LostMessage]:
    log = replica.log
    ends = [end_range(log, replica.ranges)] if not log.unread.has_end else []
    found = lost_messages(log, [*replica.ranges, *ends], log.on_unreadable)
    # A broker that is running has appended meanwhile.
    end = log.refreshed().max_offset
    return [replace(lost, lost_on=(replica.name,)) for lost in found if not log.max_offset <= lost.pos < end]


def _part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    if progress is None:
        return None
    whole: Callable[[int, int], None] = progress
    return lambda done, total: whole(number * total + done, count * total)


def _joined(first: LostMessage, second: LostMessage) -> LostMessage:
    """What two replicas know of one message."""
    known = {name: value for name, value in vars(second).items() if getattr(first, name) is None}
    if first.size is None and second.size is not None:
        known["pos"] = second.pos
    return replace(
        first,
        **known,
        key_hashes=tuple(sorted({*first.key_hashes, *second.key_hashes})),
        witnesses=tuple(dict.fromkeys(first.witnesses + second.witnesses)),
        lost_on=tuple(dict.fromkeys(first.lost_on + second.lost_on)),
    )


def _unknown(lost: LostMessage, known: list[LostMessage], has_replicas: bool) -> Iterator[LostMessage]:
    """The bytes of which no replica knows the messages."""
    if not has_replicas or lost.size is None:
        yield lost
        return
    at, minimum = lost.pos, ENTRY_HEADER_SIZE if lost.source == DLEDGER else MIN_MESSAGE_SIZE
    inside = sorted((each.pos, each.end) for each in known if lost.pos <= each.pos < lost.end)
    entries = lost.entries - len(inside) if lost.entries is not None else None
    if entries is not None and entries <= 0:
        return
    for start, end in [*inside, (lost.end, lost.end)]:
        if start - at >= minimum:
            is_whole = (at, start) == (lost.pos, lost.end)
            yield lost if is_whole else replace(lost, pos=at, size=start - at, entries=entries)
        at = max(at, end)


def _placed(lost: LostMessage, replicas: list[_Replica]) -> LostMessage:
    states = {replica.name: replica.state_of(lost) for replica in replicas}
    damaged = [
        name for name, state in states.items() if state == DAMAGED or (name in lost.lost_on and state != UNCLEAR)
    ]
    intact, unclear = (
        tuple(name for name, state in states.items() if state == wanted and name not in damaged)
        for wanted in (INTACT, UNCLEAR)
    )
    return replace(lost, lost_on=tuple(damaged), intact_on=intact, unclear_on=unclear)


def _is_uncommitted(lost: LostMessage, replicas: list[_Replica]) -> bool:
    """Whether the group has another entry at its index, or neither a log nor a checkpoint reaches this.

    Or unknown bytes follow the log of another replica that has all committed entries, or the longest log.
    """
    states = replicas[0].states
    committed = max(each.log.checkpoint_committed_index for each in replicas)
    if states is not None and lost.source == DLEDGER and lost.index is not None and lost.is_for_good:
        return lost.index > max(states.last_index, committed)
    if lost.entries is not None:
        return False
    if lost.source == COMMITLOG:
        return any(each.states is not None and lost.pos >= each.states.commit_log_end for each in replicas)
    return any(
        each.name not in lost.lost_on and each.log.max_offset <= lost.pos and 0 <= committed <= each.log.end.last_index
        for each in replicas
    )


def _counted(lost: LostMessage, replicas: list[_Replica]) -> LostMessage:
    """Lost bytes with the number of entries that a replica has intact there: 0 if they were a blank."""
    donor = next((replica.log for replica in replicas if replica.name in lost.intact_on), None)
    if lost.entries is not None or lost.size is None or donor is None:
        return lost
    options = ReadOptions(engine=donor.options.engine)
    partitions = plan_between(donor, ("kind", "pos"), options, Filters(), None, lost.pos, lost.end)
    return replace(lost, entries=sum(batch.num_rows for each in partitions for batch in read_partition(each)))


def completed_by_replicas(found: Iterable[LostMessage], logs: Mapping[str, StoreView]) -> list[LostMessage]:
    """The messages with what the first replica that has them intact says; lost bytes become its messages there.

    Raises StoreError.
    """
    listed = list(found)
    wanted: defaultdict[str, list[LostMessage]] = defaultdict(list)
    for lost in listed:
        if lost.intact_on and (lost.topic is None or lost.size is None or lost.entries != 1):
            wanted[lost.intact_on[0]].append(lost)
    rows = {name: _rows(logs[name], those) for name, those in wanted.items()}
    completed: list[LostMessage] = []
    for lost in listed:
        completed += _completed(lost, rows.get(lost.intact_on[0], {}) if lost.intact_on else {})
    return completed


def _completed(lost: LostMessage, rows: Mapping[tuple[str, int], Row]) -> Iterator[LostMessage]:
    if lost.entries == 1:
        key = ("index", lost.index) if lost.index is not None else ("pos", lost.pos)
        row = rows.get(key)  # none if it is known already
        yield lost if row is None else _with(lost, row)
        return
    here = [row for (kind, pos), row in rows.items() if kind == "pos" and lost.pos <= pos < lost.end]
    if not here or len(here) > _MAX_LISTED:
        yield lost
    else:
        yield from (_with(replace(lost, entries=1, size=None), row) for row in here)


def _with(lost: LostMessage, row: Row) -> LostMessage:
    stored = row["storeTimestamp"]
    is_placed = lost.size is not None
    return replace(
        lost,
        index=row["index"],
        pos=lost.pos if is_placed else row["pos"],
        size=lost.size if is_placed else row["size"],
        topic=row["topic"] if lost.topic is None else lost.topic,
        queue_id=row["queueId"] if lost.topic is None else lost.queue_id,
        queue_offset=row["queueOffset"] if lost.topic is None else lost.queue_offset,
        first_store_timestamp=lost.first_store_timestamp if stored is None else stored,
        last_store_timestamp=lost.last_store_timestamp if stored is None else stored,
        witnesses=(*lost.witnesses, REPLICAS),
    )


def _rows(log: StoreView, wanted: Iterable[LostMessage]) -> dict[tuple[str, int], Row]:
    """The intact rows of messages, by index and by pos."""
    options = ReadOptions(engine=log.options.engine)
    found: dict[tuple[str, int], Row] = {}
    for start, end in _places(log, wanted):
        for partition in plan_between(log, COLUMNS, options, Filters(), None, start, end):
            for batch in read_judged(partition):
                damaged = set(damaged_rows(batch))
                for number in sorted({*range(batch.num_rows)} - damaged):
                    row = row_at(batch, number)
                    found["pos", row["pos"]] = found["index", row["index"]] = row
    return found


def _places(log: StoreView, wanted: Iterable[LostMessage]) -> list[_Extent]:
    """Where the messages are in a replica; adjacent ones are one range."""
    indexes, places = [], []
    for lost in wanted:
        if lost.source == DLEDGER and lost.index is not None and lost.entries == 1:
            indexes.append((lost.index, lost.index + 1))
        else:
            places.append((lost.pos, max(lost.end, lost.pos + 1)))
    runs = merge_adjacent(iter(sorted(indexes)), _touching)
    places += [(log.position_of(first), log.position_of(stop)) for first, stop in runs]
    return list(merge_adjacent(iter(sorted(places)), _touching))


def _touching(first: _Extent, second: _Extent) -> _Extent | None:
    return (first[0], max(first[1], second[1])) if second[0] <= first[1] else None
