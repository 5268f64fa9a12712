"""What a comparison found, counted for the group's log and for each member."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark_dledger.log.diff.copy_ranges import DAMAGED, FILLER, INTACT, ONLY_COPY, Copy, CopyRange
from pyspark_dledger.log.diff.diff_table import intact_of
from pyspark_dledger.log.diff.ranges import RangeCounter


class LogEvidence:
    """What is lost, filled, undecided and restorable of the main log of a group."""

    def __init__(self, ranges: Iterable[CopyRange], least: int = 0) -> None:
        """Lost ranges with fewer than `least` bytes were no message."""
        self.lost, self.filled, self.unclear = RangeCounter(), RangeCounter(), RangeCounter()
        self.restorable = RangeCounter()
        self._reasons: set[str] = set()
        for found in ranges:
            extent = found.first, found.last, found.size
            if found.is_lost and found.size >= least:
                (self.filled if found.having(FILLER) else self.lost).add(*extent)
            elif found.is_undecided:
                self.unclear.add(*extent)
                self._reasons.add(found.why_undecided)
            if found.is_restorable:
                self.restorable.add(*extent)

    @property
    def unclear_reasons(self) -> tuple[str, ...]:
        """Why nothing decides about the undecided ones."""
        return tuple(sorted(self._reasons))


class MemberEvidence:
    """What a comparison found about the entries of one member.

    ``tail`` is its diverged tail, ``damaged`` are also of it, ``damaged_in_log`` not.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self.alone, self.damaged, self.silent, self.unclear = (RangeCounter() for _ in range(4))
        self.fillers, self.left_out, self.tail, self.damaged_in_log = (RangeCounter() for _ in range(4))
        self.donors = set(others)
        self.is_filled = False

    def add(self, found: CopyRange, copy: Copy, donors: set[str]) -> None:
        """Count a range; `donors` have what is lost of the main log."""
        extent = found.first, found.last, found.size
        # A filler is right where nothing shows that a copy is: a salvage was told to write it.
        is_taken = found.why_undecided == ONLY_COPY or not all(found.copies[n].is_undecided for n in found.holders)
        is_in_log, is_held = copy.history == 0, bool(found.holders) and is_taken
        if not is_in_log and copy.state in (INTACT, DAMAGED):
            self.tail.add(*extent)
        if copy.is_undecided:
            self.unclear.add(*extent)
        elif copy.state == INTACT and [each.version for each in found.copies].count(copy.version) == 1:
            self.alone.add(*extent)
        elif copy.state == FILLER:
            self.fillers.add(*extent)
            if is_held:
                self.left_out.add(*extent)
        elif copy.state == DAMAGED:
            self.damaged.add(*extent)
            if is_in_log:
                self.damaged_in_log.add(*extent)
            if copy.is_silent:
                self.silent.add(*extent)
            self.is_filled |= not is_held and bool(found.having(FILLER))
        if is_in_log and not copy.is_undecided and (copy.state == DAMAGED or (copy.state == FILLER and is_held)):
            self.donors &= donors


def member_evidence(ranges: Iterable[CopyRange], names: Sequence[str]) -> list[MemberEvidence]:
    """What a comparison found about each member."""
    members = [MemberEvidence(names) for _ in names]
    for found in ranges:
        donors = {names[number] for number in intact_of(found)}
        if not found.holders:
            donors |= {names[number] for number in found.having(FILLER)}
        for copy, member in zip(found.copies, members, strict=True):
            member.add(found, copy, donors)
    return members
