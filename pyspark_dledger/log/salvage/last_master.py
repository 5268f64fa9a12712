"""Which of several CommitLogs is the last master's, and from where on others differ from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.state_files import diverged_at, epoch_at
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.salvage.matching import LastEntry
from pyspark_dledger.log.salvage.old_messages import (
    HEAD_BYTES,
    are_contradicted,
    common_end,
    first_contradiction,
    identity,
    is_one_message,
    shared_end,
)
from pyspark_dledger.log.salvage.restored_log import Witnesses


class LastMaster:
    """Orders CommitLogs in pairs, by what they have in ``runs``."""

    def __init__(self, runs: Sequence[Run], witnesses: Witnesses, file_size: int) -> None:
        self._runs, self._witnesses, self._file_size = runs, witnesses, file_size
        self._epochs = witnesses.epochs

    def found(self, lasts: Mapping[int, LastEntry]) -> tuple[int, frozenset[int]]:
        """The replica with the log of the last master, of equal ones the longest; and its rivals.

        Those are replicas whose logs diverged from it, and nothing tells that they are of an earlier master.
        """
        names = self._witnesses.names
        order = sorted(lasts, key=lambda number: (-lasts[number].end, names[number]))
        foremost = [one for one in order if not any(self._is_later(two, one, lasts) for two in order if two != one)]
        leader = (foremost or order)[0]
        rivals = (one for one in foremost or order if one != leader and self._is_later(one, leader, lasts) is None)
        return leader, frozenset(rivals)

    def diverged(self, one: int, other: int) -> tuple[int | None, bool]:
        """The position from which the log of `other` differs from that of `one`, and whether only epochs say so."""
        by_epochs = diverged_at(self._epochs.get(one, ()), self._epochs.get(other, ()))
        end = common_end(self._runs, one, other, self._is_one(one, other), by_epochs, self._file_size)
        after, witnesses = self.shared_end(one, other), self._witnesses
        if end is None and are_contradicted(self._runs, one, other, after, witnesses.read, witnesses.units):
            end = max(after, 0)
        return end, end is not None and end == by_epochs

    def shared_end(self, one: int, other: int) -> int:
        """The end of the last message that both logs have; -1 without one."""
        return shared_end(self._runs, one, other, self._is_one(one, other)) if one != other else INT64_MAX

    def _is_one(self, *numbers: int) -> Callable[[Run], bool]:
        return partial(is_one_message, self._witnesses.read, numbers)

    def _is_later(self, one: int, two: int, lasts: Mapping[int, LastEntry]) -> bool | None:
        """Whether the first log is of a later master, or longer if no master wrote only one; None if nothing tells."""
        end, is_by_epochs = self.diverged(two, one)
        ends = lasts[one].end, lasts[two].end
        if {one, two} <= self._epochs.keys() and (end is None or is_by_epochs or self._epochs_differ(one, two, end)):
            last = self._witnesses.last_epochs
            return (last.get(one, -1), ends[0]) > (last.get(two, -1), ends[1])
        if end is None:
            return ends[0] > ends[1]
        found = {self._is_written_after(one, two, end), self._has_followed(one, two, end)} - {None}
        return found.pop() if len(found) == 1 else None

    def _epochs_differ(self, one: int, two: int, end: int) -> bool:
        """Whether the epochs differ where the bytes do: a master writes one log, so else a file of epochs is old."""
        run = first_contradiction(self._runs, two, one, end, self._file_size)
        return run is None or epoch_at(self._epochs[one], run.start) != epoch_at(self._epochs[two], run.start)

    def _is_written_after(self, one: int, two: int, end: int) -> bool | None:
        """Whether the first log got its first message after `end` when the other one had its last, or the reverse."""
        times = [time for number in (one, two) if (time := self._times(number, end)) is not None]
        if len(times) < 2:
            return None
        (first, last), (other_first, other_last) = times
        if first > other_last:
            return True
        return False if other_first > last else None

    def _times(self, number: int, end: int) -> tuple[int, int] | None:
        """The storeTimestamps (ms) of the first and the last message after `end`; None if one of them is damaged."""
        own = [run for run in self._runs if run.start >= end and number in run.sources and not run.is_suspect]
        if not own or own[0].start > end:
            return None
        first, last = self._time(number, own[0].start), self._time(number, own[-1].last_pos)
        return None if first is None or last is None else (first, last)

    def _time(self, number: int, pos: int) -> int | None:
        head = self._witnesses.read(number, pos, pos + HEAD_BYTES)
        return int.from_bytes(identity(head)[-1], "big", signed=True) if len(head) == HEAD_BYTES else None

    def _has_followed(self, one: int, two: int, end: int) -> bool | None:
        """Whether the first log has another master within the last epoch of the other one, or the reverse.

        Both have bytes of that epoch, so the master of other bytes came later. It needs the epochs of only one log.
        """
        answers = {number: self._ends_within(number, end) for number in (one, two) if number in self._epochs}
        within = [number for number, is_within in answers.items() if is_within]
        return within == [two] if len(answers) == len(within) == 1 else None

    def _ends_within(self, number: int, end: int) -> bool:
        return epoch_at(self._epochs[number], end - 1) == self._witnesses.last_epochs.get(number, -1)
