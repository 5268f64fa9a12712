"""Verdicts on the ranges of CommitLogs: who has which bytes, who lost them, and where two masters wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.state_files import epoch_at
from pyspark_dledger.log.copies.first_difference import first_difference
from pyspark_dledger.log.diff.commit_log.queue_checks import decided_by_units
from pyspark_dledger.log.diff.commit_log.ranges import DAMAGED as DAMAGED_STATE
from pyspark_dledger.log.diff.commit_log.ranges import ENDED, UNREAD, PosRange
from pyspark_dledger.log.diff.commit_log.ranges import EXPIRED as EXPIRED_STATE
from pyspark_dledger.log.diff.commit_log.replica import CommitLogReplica
from pyspark_dledger.log.diff.copy_ranges import DAMAGED
from pyspark_dledger.log.diff.diff_table import BEHIND, DIVERGED, EXPIRED, OTHER_BYTES, SAME, UNREADABLE

# Messages whose first difference is found.
MAX_EXPLAINED = 1_000


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

    @property
    def is_lost(self) -> bool:
        """Whether no replica has the bytes intact, and a message can have been there."""
        return self.verdict == DAMAGED and not self.terms and self.bytes >= MIN_MESSAGE_SIZE

    @property
    def unclear(self) -> tuple[str, ...]:
        """The nodes with copies that no check judges: they differ, only one is left, or it cannot be read."""
        if self.verdict == UNREADABLE:
            return self.nodes if not self.intact else ()
        if self.verdict == DAMAGED:
            return () if self.intact else tuple(self.terms)
        return self.nodes if self.verdict == OTHER_BYTES else ()


def pos_rows(replicas: Sequence[CommitLogReplica], ranges: Iterable[PosRange]) -> Iterator[PosRow]:
    """The rows for all ranges of a comparison, merged."""
    judge = _Judge(replicas, decided_by_units(replicas, list(ranges)))
    yield from merge_adjacent(judge.rows(), _joined)


def _joined(last: PosRow, row: PosRow) -> PosRow | None:
    same = ("verdict", "nodes", "terms", "damaged", "intact")
    if last.last_pos + 1 != row.first_pos or any(getattr(last, name) != getattr(row, name) for name in same):
        return None
    byte = last.first_byte if last.first_byte is not None else row.first_byte
    difference = last.first_difference or row.first_difference
    messages = last.messages + row.messages
    return replace(last, last_pos=row.last_pos, messages=messages, first_byte=byte, first_difference=difference)


class _Judge:
    """Decides by all ranges: where replicas differ up to the end of one of them, two masters wrote."""

    def __init__(self, replicas: Sequence[CommitLogReplica], ranges: list[PosRange]) -> None:
        self._replicas = replicas
        self._ranges = ranges
        self._explained = iter(range(MAX_EXPLAINED))
        last_epochs = [-1 if one.last_epoch is None else one.last_epoch for one in replicas]
        # The last master; the longest log if there are no epochs. The name only makes the result independent of order.
        order = range(len(replicas))
        self._foremost = max(order, key=lambda n: (last_epochs[n], replicas[n].end, replicas[n].name))
        self._diverged_at = [self._divergence(number) for number in order]

    def _divergence(self, number: int) -> int | None:
        """The position from which a replica has other messages than the foremost one, up to its end."""
        found = None
        for part in self._ranges:
            here, there = part.versions[number], part.versions[self._foremost]
            if here is None or there is None:
                continue
            if here == there:
                found = found if not part.messages else None
            elif (found is None and not part.is_message) or (found is None and self._has_more(part, number)):
                found = part.start
        return found

    def _has_more(self, part: PosRange, number: int) -> bool:
        """Whether a message with other bytes is followed by more that differ: one alone is damage."""
        for later in self._ranges:
            if later.start >= part.end and later.messages and later.versions[number] is not None:
                other = later.versions[self._foremost]
                return other is not None and other != later.versions[number]
        return False

    def rows(self) -> Iterator[PosRow]:
        names = [one.name for one in self._replicas]
        for part in self._ranges:
            diverged = self._diverged(part)
            verdict, about = self._verdict(part, diverged)
            # What another master wrote is no copy of what was damaged.
            holders = [n for n in part.holders if verdict != DAMAGED or n not in diverged]
            terms = {names[n]: epoch_at(self._replicas[n].epochs, part.start) for n in holders}
            is_one = len({part.versions[number] for number in holders}) == 1
            is_clear = is_one and not part.is_doubtful and not self._has_own_damage(part, diverged)
            yield PosRow(
                None,
                None,
                part.start,
                part.end - 1,
                verdict,
                tuple(names[number] for number in about),
                terms,
                part.messages,
                self._byte(part, verdict),
                tuple(name for name, state in zip(names, part.states, strict=True) if state == DAMAGED_STATE),
                tuple(names[number] for number in holders) if is_clear else (),
                self._difference(part, names),
            )

    def _difference(self, part: PosRange, names: Sequence[str]) -> str | None:
        """The first different field of a message with several intact versions; None without one, or after many."""
        versions = sorted({version for version in part.versions if version is not None})
        if len(versions) < 2 or not part.is_message or next(self._explained, None) is None:
            return None
        found = first_difference([self._replicas[version].read(part.start, part.end) for version in versions], 0)
        return found.text(part.versions, names) if found is not None else None

    def _byte(self, part: PosRange, verdict: str) -> int | None:
        return part.byte if verdict in (DAMAGED, OTHER_BYTES, DIVERGED) else None

    def _diverged(self, part: PosRange) -> list[int]:
        """The replicas that have another history from this range on, or from an earlier one."""
        return [number for number, at in enumerate(self._diverged_at) if at is not None and part.start >= at]

    def _has_own_damage(self, part: PosRange, diverged: Sequence[int]) -> bool:
        """Whether a diverged replica lost bytes that no other one has."""
        return any(part.states[number] == DAMAGED_STATE for number in diverged)

    def _verdict(self, part: PosRange, diverged: Sequence[int]) -> tuple[str, list[int]]:
        """The verdict on a range, and the replicas that it is about."""
        numbers = range(len(self._replicas))
        damaged = [n for n in numbers if part.states[n] == DAMAGED_STATE and n not in diverged]
        unread = [n for n in numbers if part.states[n] == UNREAD]
        if damaged and (part.holders or not unread):
            return DAMAGED, damaged
        if len({part.versions[number] for number in part.holders}) > 1:
            others = [n for n in diverged if part.versions[n] is not None]
            kept = [number for number in part.holders if number not in others]
            if others and len({part.versions[number] for number in kept}) <= 1:
                return DIVERGED, others
            return OTHER_BYTES, self._minority(part)
        if unread:
            return UNREADABLE, unread
        if self._has_own_damage(part, diverged):
            return DIVERGED, [number for number in diverged if part.states[number] == DAMAGED_STATE]
        ended = [number for number in numbers if part.states[number] == ENDED]
        # Of a diverged replica, what only it has is its own; what it lacks the master sends after a truncation.
        own = [number for number in part.holders if number in diverged]
        if ended and own and len(own) == len(part.holders):
            return DIVERGED, own
        if ended:
            return BEHIND, ended
        expired = [number for number in numbers if part.states[number] == EXPIRED_STATE]
        return (EXPIRED, expired) if expired else (SAME, part.holders)

    def _minority(self, part: PosRange) -> list[int]:
        """The replicas without the version that most have; all if no version is on more replicas than the others."""
        holders = part.holders
        versions = [part.versions[number] for number in holders]
        counts = sorted((versions.count(version) for version in set(versions)), reverse=True)
        if counts[0] == counts[1]:
            return holders
        expected = max(versions, key=versions.count)
        return [number for number in holders if part.versions[number] != expected]
