"""The replicas of CommitLogs, the comparison of their messages, and its rows of the table ``diff``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.codec import encode_message_blank
from pyspark_dledger.format.layout import MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.format.state_files import epoch_at
from pyspark_dledger.log.copies.commit_log_replica import CommitLogReplica
from pyspark_dledger.log.copies.first_difference import first_difference
from pyspark_dledger.log.copies.lost_ends import commit_log_replicas, lost_ends_of
from pyspark_dledger.log.copies.segment_copy import SegmentCopy, read_copy
from pyspark_dledger.log.diff.copy_ranges import DAMAGED, INTACT, UNREAD, CopyRange, CopyRanges, LogBounds
from pyspark_dledger.log.diff.diff_table import DIVERGED, MAX_EXPLAINED, OTHER_BYTES, intact_of, verdict_of
from pyspark_dledger.log.diff.salvage_doubts import doubts_of
from pyspark_dledger.log.salvage.compared_stores import ComparedStores
from pyspark_dledger.log.salvage.histories import Histories


class CommitLogGroup:
    """The replicas, numbered in the order given, and the ranges of positions that each has alike.

    ``foremost`` is the replica whose log is the main one: that of the last master. ``doubts`` are those that salvages
    left in the replicas.
    """

    def __init__(self, compared: ComparedStores, replicas: list[CommitLogReplica]) -> None:
        self.replicas = replicas
        self.doubts = tuple(map(doubts_of, compared.stores))
        self.histories = compared.histories(COMMITLOG) or Histories(COMMITLOG, (), {}, ())
        self.names = tuple(one.name for one in replicas)
        self.lost_ends = tuple(lost_ends_of(replicas, self.histories.undecided))
        # Rows name the epoch, so a range is in one.
        starts = {epoch.start for one in replicas for epoch in one.epochs}
        self.copies = CopyRanges(self.histories, [_bounds(one) for one in replicas], starts, self._has_blank)
        self.ranges = list(self.copies)
        self._leaders = {each.log.leader for each in self.histories.found[:1]}
        self.foremost = min(range(len(replicas)), key=self.rank)

    def rank(self, number: int) -> tuple[bool, bool, int, str]:
        """The order of replicas, the foremost first, then the longest one that has its log."""
        one = self.replicas[number]
        return number not in self._leaders, self.is_diverged(number), -one.end, one.name

    def is_diverged(self, number: int) -> bool:
        """Whether the log of a replica ends in another history than the main one."""
        return self.copies.history_of(number, INT64_MAX) > 0

    def rivals(self, number: int) -> tuple[str, ...]:
        """The replicas with another log than this one, where nothing tells which of both logs a later master wrote."""
        rivals = self.histories.rivals
        if number in rivals:
            return (self.names[self.foremost],)
        return () if self.is_diverged(number) else tuple(sorted(self.names[each] for each in rivals))

    def strangers(self, first: int, second: int) -> bool:
        """Whether two stores are no replicas of one log: no message that both have at a position is alike.

        In controller mode these are messages of one epoch; other epochs show masters of one group.
        """
        both = [found for found in self.ranges if {first, second} <= set(found.holders)]
        if first == second or not both or any(one.copies[first].history == one.copies[second].history for one in both):
            return False
        epochs = {epoch_at(self.replicas[number].epochs, both[0].first) for number in (first, second)}
        return len(epochs) == 1 or None in epochs

    def diverged(self, _: int, holder: int) -> bool:
        """Whether what `holder` has at its end is of no other history; of the main one, the master sends it."""
        return self.is_diverged(holder)

    def contradicts(self, _: CopyRange) -> bool:
        """Nothing shows that messages are committed."""
        return False

    def messages(self, found: CopyRange) -> int:
        """The intact messages of a range on the replica that has most."""
        return self.copies.messages(found, self._count)

    def _has_blank(self, number: int, start: int, end: int) -> bool:
        expected = encode_message_blank(end - start)[: end - start]
        return self.replicas[number].read(start, start + MIN_BLANK_SIZE) == expected

    def _count(self, number: int, start: int, end: int) -> int:
        one = self.replicas[number]
        place = one.segment_at(start)
        if place is None:
            return 0
        entries, _ = read_copy(SegmentCopy(number, one.segments[place], end), one.engine, [(start, end)])
        return int((entries.is_intact & (entries.pos >= start) & (entries.pos < end)).sum())


def commit_log_group(compared: ComparedStores) -> CommitLogGroup | None:
    """The CommitLogs of stores; None if they have none, or not all can have one."""
    replicas = commit_log_replicas(compared.stores)
    return CommitLogGroup(compared, replicas) if replicas else None


def _bounds(one: CommitLogReplica) -> LogBounds:
    unread = tuple((low, high if high == INT64_MAX else high - 1) for low, high in one.unread)
    end = max(one.proven_end, one.blank_end)
    return LogBounds(one.begin, end - 1, unread) if end > one.begin else LogBounds(-1, -1, unread)


_WINDOW = 4096
_MAX_COMPARED = 64 * 1024 * 1024


@dataclass(frozen=True)
class PosRow:
    """One verdict on the positions ``[first_pos, last_pos]`` of the CommitLog; last_pos is that of the last byte.

    ``first_index`` and ``last_index`` are None: messages have none. ``terms`` has the epoch on each node that has the
    bytes intact, None without epochs. ``damaged`` are the nodes that lost the bytes, ``intact`` those to copy them
    from; empty where intact copies differ. ``messages`` is the number of intact messages on the node that has most,
    ``first_byte`` the first different byte; None if bytes are missing. ``first_difference`` is the first different
    field of the first message with several intact versions, and its values; None without one.
    """

    first_index: None
    last_index: None
    first_pos: int
    last_pos: int
    verdict: str
    nodes: tuple[str, ...]
    terms: dict[str, int | None]
    messages: int
    first_byte: int | None
    damaged: tuple[str, ...] = ()
    intact: tuple[str, ...] = ()
    first_difference: str | None = None

    @property
    def bytes(self) -> int:
        return self.last_pos - self.first_pos + 1


def pos_rows(group: CommitLogGroup) -> Iterator[PosRow]:
    """The rows for all ranges of a comparison, merged."""
    explained = iter(range(MAX_EXPLAINED))
    yield from merge_adjacent((_row(found, group, explained) for found in group.ranges), _joined)


def _joined(last: PosRow, row: PosRow) -> PosRow | None:
    same = ("verdict", "nodes", "terms", "damaged", "intact")
    if last.last_pos + 1 != row.first_pos or any(getattr(last, name) != getattr(row, name) for name in same):
        return None
    byte = last.first_byte if last.first_byte is not None else row.first_byte
    difference = last.first_difference or row.first_difference
    messages = last.messages + row.messages
    return replace(last, last_pos=row.last_pos, messages=messages, first_byte=byte, first_difference=difference)


def _row(found: CopyRange, group: CommitLogGroup, explained: Iterator[int]) -> PosRow:
    verdict, about = _verdict(found, group)
    # What another master wrote is no copy of what was damaged.
    is_copy = [verdict != DAMAGED or found.copies[number].history == 0 for number in found.holders]
    holders = [number for number, is_of_log in zip(found.holders, is_copy, strict=True) if is_of_log]
    names, replicas = group.names, group.replicas
    return PosRow(
        first_index=None,
        last_index=None,
        first_pos=found.first,
        last_pos=found.last,
        verdict=verdict,
        nodes=tuple(names[number] for number in about),
        terms={names[number]: epoch_at(replicas[number].epochs, found.first) for number in holders},
        messages=group.messages(found),
        first_byte=_first_byte(found, replicas) if verdict in (DAMAGED, OTHER_BYTES, DIVERGED) else None,
        damaged=tuple(names[number] for number in found.having(DAMAGED)),
        intact=tuple(names[number] for number in intact_of(found)),
        first_difference=_difference(found, group, explained),
    )


def _verdict(found: CopyRange, group: CommitLogGroup) -> tuple[str, list[int]]:
    """The verdict on a range: damage of the main log first, then differences, then damage of a diverged tail."""
    damaged = found.having(DAMAGED)
    in_log = [number for number in damaged if found.copies[number].history == 0]
    if in_log and (found.holders or not found.having(UNREAD)):
        return DAMAGED, in_log
    verdict, about = verdict_of(found, group)
    return (DIVERGED, damaged) if verdict == DAMAGED else (verdict, about)


def _difference(found: CopyRange, group: CommitLogGroup, explained: Iterator[int]) -> str | None:
    """The first different field of a message with several intact copies of one history; None without one."""
    versions = [copy.version if copy.state == INTACT else None for copy in found.copies]
    numbers = sorted({version for version in versions if version is not None})
    is_one = len({found.copies[number].history for number in found.holders}) == 1
    if len(numbers) < 2 or not is_one or next(explained, None) is None:
        return None
    difference = first_difference([group.replicas[number].read(found.first, found.last + 1) for number in numbers], 0)
    return difference.text(versions, group.names) if difference is not None else None


def _first_byte(found: CopyRange, replicas: list[CommitLogReplica]) -> int | None:
    """The position of the first byte that differs; None if those that have the file have the same bytes."""
    present = [one for one in replicas if found.first < one.blank_end and one.segment_at(found.first) is not None]
    for start in range(found.first, min(found.last + 1, found.first + _MAX_COMPARED), _WINDOW):
        end = min(start + _WINDOW, found.last + 1)
        parts = [one.read(start, end) for one in present]
        if any(part != parts[0] for part in parts):
            size = min(map(len, parts))
            return next((start + at for at in range(size) if len({part[at] for part in parts}) > 1), start + size)
    return None


@dataclass(frozen=True)
class CommitLogState:
    """The state of one replica's CommitLog; positions in bytes.

    ``lag_bytes`` is what the longest replica has after its end. ``damaged_bytes`` it lost, or has damaged;
    ``diverged_bytes`` another master wrote, ``unread`` positions are of files that cannot be read. ``epoch`` is the
    last that begins in the log; it and ``confirm_offset`` are None if it has none. ``epoch_problem`` is what is wrong
    with its epoch file, ``unreadable`` what cannot be read of its log, checkpoint, queues and indexes.
    """

    node: str
    path: str
    begin: int
    end: int
    files: int
    missing: tuple[tuple[int, int], ...]
    short: tuple[str, ...]
    epoch: int | None
    epoch_problem: str | None
    confirm_offset: int | None
    lag_bytes: int
    damaged_bytes: int
    diverged_bytes: int
    abort: bool
    unread: tuple[tuple[int, int], ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class ConsistentPoint:
    """Where `slave` would truncate its log to follow `master` (``EpochFileCache.findConsistentPoint``).

    ``pos`` is None if Java finds no position: the slave then does not replicate. ``lost_bytes`` are those of the slave
    from there on that the master does not have, ``confirmed_bytes`` the part of them that it had confirmed.
    ``equal_bytes`` are those that both have, without a position all: one of their files lacks an epoch. ``is_common``:
    both have the same bytes before it.
    """

    slave: str
    master: str
    pos: int | None
    lost_bytes: int
    confirmed_bytes: int
    is_common: bool
    equal_bytes: int = 0
