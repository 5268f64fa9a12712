"""Decides the logs of a group: the main history, and another one for each log that diverged from it.

All are decided alike, each by the replicas that belong to it: an entry of one history is no copy of one of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.copies.runs import Evidence, Run
from pyspark_dledger.log.salvage.last_master import LastMaster
from pyspark_dledger.log.salvage.lost_entries import LostEntry, ReadSource, has_damaged_header, repaired
from pyspark_dledger.log.salvage.matching import (
    LastEntry,
    StaleRuns,
    Tail,
    last_entries,
    matching,
    tails,
    without_old_bytes,
    without_overlaps,
)
from pyspark_dledger.log.salvage.old_messages import repeating, without_old_messages
from pyspark_dledger.log.salvage.pieces import Decide, chosen_pieces
from pyspark_dledger.log.salvage.restored_log import LogBuilder, RestoredLog, Witnesses, indexes_of, start_of

_T = TypeVar("_T")

Judge = Callable[[Sequence[Run], "dict[int, tuple[int, int]]"], "list[Run]"]
"""Marks last copies that nothing confirms; the positions ``[start, end)`` are those of each replica's log."""


@dataclass(frozen=True)
class History:
    """A log that entries can be of, as its replicas decide it.

    ``since`` has the replicas that belong to it, with the first index at which they do; without DLedger the position.
    """

    log: RestoredLog
    since: dict[int, int]


@dataclass(frozen=True)
class Histories:
    """The logs of one kind: the main one first, which a salvage restores.

    ``lasts`` are the last intact entries of the replicas. ``stale`` entries follow the ends of logs, left by
    truncations. ``why_not`` says why a salvage must be told which log to restore (``is_choice``), or cannot write one.
    ``rivals`` are replicas of which nothing tells if a later master wrote their logs than the main one.
    """

    source: str
    found: tuple[History, ...]
    lasts: dict[int, LastEntry]
    stale: tuple[Tail, ...]
    why_not: str = ""
    is_choice: bool = False
    rivals: frozenset[int] = frozenset()

    @property
    def undecided(self) -> set[int]:
        """The positions of entries of the main log about which nothing decides."""
        return {each.pos for history in self.found[:1] for each in history.log.undecided}

    def log_to_choose(self, names: Sequence[str], foremost: int | None = None) -> str | None:
        """The replica whose log a salvage is to be told to restore, `foremost` if it has one.

        None if none is to be, or nothing tells which one.
        """
        if not self.is_choice or self.rivals:
            return None
        return names[foremost if foremost is not None and foremost in self.lasts else self.found[0].log.leader]

    def with_copies(self, duplicates: Mapping[int, int]) -> Histories:
        """The same, with replicas that are copies of others: each is where the other one is."""

        def with_own(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted({*numbers, *(copy for copy, first in duplicates.items() if first in numbers)}))

        def known(found: dict[int, _T]) -> dict[int, _T]:
            kept = {number: each for number, each in found.items() if number not in duplicates}
            return kept | {copy: found[first] for copy, first in duplicates.items() if first in found}

        logs = (replace(each.log.with_sources(with_own), stops=known(each.log.stops)) for each in self.found)
        histories = (History(log, known(each.since)) for log, each in zip(logs, self.found, strict=True))
        stale = tuple(each._replace(sources=with_own(each.sources)) for each in self.stale)
        rivals = frozenset(with_own(tuple(self.rivals)))
        return replace(self, found=tuple(histories), lasts=known(self.lasts), stale=stale, rivals=rivals)

    def of_replica(self, number: int) -> list[tuple[int, int]]:
        """The histories of a replica's log, each with the first index (position) of the replica that is of it."""
        own = ((each.since[number], place) for place, each in enumerate(self.found) if number in each.since)
        return [(place, since) for since, place in sorted(own)]


class _Members(NamedTuple):
    """The replicas of a history: the leader, and the highest index of each that is of it; -1 for old messages.

    ``runs`` are what they have, ``rest`` what is of other histories.
    """

    leader: int
    limits: dict[int, int]
    runs: list[Run]
    rest: list[Run]


def decide_histories(
    evidence: Sequence[Evidence],
    file_size: int,
    witnesses: Witnesses,
    decide: Decide,
    judge: Judge,
    log_of: int | None = None,
) -> Histories:
    """Put the logs of all segments together.

    `log_of` is the number of the source whose log is the main one, by default that with the last entry.
    """
    return _Decider(evidence, file_size, witnesses, decide, judge).histories(log_of)


class _Decider:
    def __init__(
        self, evidence: Sequence[Evidence], file_size: int, witnesses: Witnesses, decide: Decide, judge: Judge
    ) -> None:
        self._evidence, self._file_size, self._witnesses = evidence, file_size, witnesses
        self._decide, self._judge = decide, judge
        self._source = evidence[0].source
        self._base = min(each.base for each in evidence)
        self._damages = tuple(damage for each in evidence for damage in each.damages)
        self._why_not, self._is_choice = "", False
        self._rivals: frozenset[int] = frozenset()
        self._diverged: dict[int, int] = {}
        """The positions from which CommitLogs differ from the main one, as their epochs say."""
        units = [units for each in evidence for units in each.units]
        self._old_indexes = {each.source for each in units if self._has_old_index(each.source)}
        self._units = [each for each in units if each.source not in self._old_indexes]
        self._is_decided = False
        """Whether the main log is."""

    def histories(self, log_of: int | None) -> Histories:
        witnesses = self._witnesses
        runs = _checked([run for each in self._evidence for run in each.runs], witnesses)
        old = self._old_indexes
        runs = [run._replace(known_to=tuple(each for each in run.known_to if each not in old)) for run in runs]
        stale: list[Run] = []
        if self._source == DLEDGER and log_of is None:
            committed = max(witnesses.committed.values(), default=-1)
            max_term = max(witnesses.terms.values(), default=None)
            found_by = StaleRuns(witnesses.ends, committed, max_term, witnesses.index_files, self._file_size)
            stale = found_by.among(runs)
        others = repeating(runs, witnesses.read, witnesses.place_of, log_of) if self._source != DLEDGER else []
        dropped = {*stale, *others}
        runs, after = without_old_bytes([run for run in runs if run not in dropped], self._units)
        stale += after
        old_messages: list[Run] = []
        if self._source != DLEDGER:
            runs, old_messages = without_old_messages(runs, witnesses.read, witnesses.units, self._file_size)
        lasts = last_entries(runs, range(len(witnesses.names)))
        if not lasts:
            names = ", ".join(witnesses.names)
            why_not = f"expected intact entries in {names}, found none: there is nothing to salvage"
            return Histories(self._source, (), {}, tuple(tails(stale, {}, -1)), why_not)
        members = self._main_members(runs, lasts, log_of)
        members = members._replace(rest=sorted([*members.rest, *others]))
        if log_of is None:
            # Of a source without an intact entry, checkpoint and index still count.
            known = {number: index for number, index in witnesses.committed.items() if number not in lasts}
            members = members._replace(limits=members.limits | known)
        log = self._log(members, lasts, self._base, None)
        damaged = {(each.pos, each.size): each for each in log.lost if each.is_known}
        stale, rest = ([run for run in each if not _has_damaged_header(run, damaged)] for each in (stale, members.rest))
        # What replicas had before their first intact entry was of the main log: nothing shows that it diverged.
        damaged_first = {number for number in range(len(witnesses.names)) if self._begins_damaged(number, runs)}
        found = [History(log, dict.fromkeys({*members.limits, *damaged_first}, -1))]
        while any(not run.is_suspect for run in rest):
            members = self._next_members(rest)
            since = {number: self._since(number, members.runs, found) for number in members.limits}
            first = min(since.values())
            starts = (run.start for run in members.runs if not run.is_suspect and members.limits.keys() & run.sources)
            base = min([*starts, *(start_of(each) for each in log.extents if indexes_of(each)[0] == first >= 0)])
            base = first if self._source != DLEDGER else base
            found.append(History(self._log(members, lasts, base, first), since))
            rest = members.rest
        ends = tuple(tails(stale, {}, -1))
        put_back = (Tail(run.sources, -1, -1, -1, run.start, run.end, True) for run in old_messages)
        left_out = (*(tail for each in found[1:] for tail in tails_of(each.log)), *ends, *put_back)
        found[0] = replace(found[0], log=replace(log, tails=left_out))
        return Histories(self._source, tuple(found), lasts, ends, self._why_not, self._is_choice, self._rivals)

    def _has_old_index(self, number: int) -> bool:
        """Whether the log ends as its checkpoint says, and the index does not: it is of another time.

        A unit of which position and term differ is no damaged one, but of another entry. If the index ends there, too,
        the later term is the log's.
        """
        end, index = self._witnesses.ends[number], self._witnesses.index_files[number]
        unit = index.unit(end.last_index)
        is_other = unit is None or (
            unit.pos != end.last_pos
            and unit.term != end.last_term
            and (unit.term < end.last_term or index.unit(end.last_index + 1) is not None)
        )
        return is_other and end.last_index == end.checkpoint_end

    def _begins_damaged(self, number: int, runs: Sequence[Run]) -> bool:
        """Whether a replica has no intact entry, or damage before the first one."""
        first = min((run.start for run in runs if number in run.sources and not run.is_suspect), default=INT64_MAX)
        return first == INT64_MAX or any(each.source == number and each.start < first for each in self._damages)

    def _main_members(self, runs: list[Run], lasts: dict[int, LastEntry], log_of: int | None) -> _Members:
        if log_of is not None and log_of not in lasts:
            name = self._witnesses.names[log_of]
            raise StoreError(f"{name}: expected intact entries, found none: choose another log")
        if self._source != DLEDGER:
            return self._main_commit_log(runs, lasts, log_of)
        leader, limits = self._leader(runs, lasts, log_of)
        self._check_same_group(runs, lasts, limits)
        return _Members(leader, limits, runs, _beyond(runs, limits))

    def _main_commit_log(self, runs: list[Run], lasts: dict[int, LastEntry], log_of: int | None) -> _Members:
        names, leader = self._witnesses.names, log_of
        if leader is None:
            leader, self._rivals = LastMaster(runs, self._witnesses, self._file_size).found(lasts)
        members, ends = self._commit_log_of(runs, leader, lasts)
        diverged = LastMaster(runs, self._witnesses, self._file_size).diverged
        if log_of is not None and any(
            lasts[log_of].end <= end and diverged(log_of, other)[0] is None for other, end in ends.items()
        ):
            # The chosen log can be the begin of either one.
            members = self._main_commit_log(runs, lasts, None)
            self._why_not = f"{names[log_of]} ends before the others diverged. {self._why_not}"
            self._is_choice = False
        elif log_of is None and ends:
            number = min(ends, key=lambda number: names[number])
            self._is_choice = True
            which = ", and nothing tells which one the last master wrote" if self._rivals else ""
            self._why_not = (
                f"{names[number]}: from position {ends[number]} on the log differs from that of {names[leader]}: the "
                f"logs diverged{which}. Choose the one to restore (--log-of); dledger diff shows both"
            )
        return members

    def _commit_log_of(self, runs: list[Run], leader: int, sources: Iterable[int]) -> tuple[_Members, dict[int, int]]:
        """The members of a CommitLog, and the position from which each other source has another log.

        A source that shows nothing against the leader's log can contradict another one that is of this log. Of two that
        contradict each other, the one that has later bytes with the leader is of its log.
        """
        ends: dict[int, int] = {}
        epochs, names = self._witnesses.epochs, self._witnesses.names
        pairs = LastMaster(runs, self._witnesses, self._file_size)
        others = sorted({*sources} - {leader}, key=lambda number: names[number])
        others.sort(key=lambda number: epochs.get(number, ()) != epochs.get(leader, ()))
        for place, other in enumerate(others):
            for member in (leader, *others[:place]):
                end, is_by_epochs = pairs.diverged(member, other)
                if end is not None and end < min(ends.get(member, INT64_MAX), ends.get(other, INT64_MAX)):
                    is_of_log = pairs.shared_end(leader, other) > end >= pairs.shared_end(leader, member)
                    stranger = member if is_of_log else other
                    ends[stranger] = end
                    if is_by_epochs:
                        self._diverged.setdefault(stranger, end)
        own, rest = _split(runs, lambda run, number: run.start < ends.get(number, INT64_MAX))
        return _Members(leader, dict.fromkeys(sources, -1), own, rest), ends

    def _next_members(self, rest: list[Run]) -> _Members:
        names = self._witnesses.names
        lasts = last_entries(rest, range(len(names)))
        order = sorted(lasts, key=lambda number: names[number])
        leader = max(order, key=lambda number: lasts[number])
        if self._source != DLEDGER:
            members, ends = self._commit_log_of(rest, leader, lasts)
            starts = {number: min(run.start for run in rest if number in run.sources) for number in lasts}
            kept = [number for number in lasts if starts[number] < ends.get(number, INT64_MAX)]
            return members._replace(limits=dict.fromkeys(kept, -1))
        limits = matching(rest, leader, lasts[leader].index, {})
        return _Members(leader, limits, rest, _beyond(rest, limits))

    def _since(self, number: int, runs: Sequence[Run], found: Sequence[History]) -> int:
        """The first index (position) from which the log of a replica is the one with `runs`.

        Terms never decrease, so damaged entries before the first run are of it where the earlier history has a higher
        term.
        """
        having = [run for run in runs if not run.is_suspect]
        first = min(run for run in having if number in {*run.sources, *run.known_to})
        if self._source != DLEDGER:
            begin = min(self._diverged.get(number, first.start), self._begin_of_epoch(number, first.start, found))
            return min(begin, found[0].log.end)
        before = [each.log for each in found if number in each.since]
        later = (indexes_of(each)[0] for log in before[-1:] for each in log.extents if each.term > first.term)
        reached = max(
            (run.last_index for log in before[-1:] for run in log.pieces if number in run.sources), default=-1
        )
        return min([first.first_index, *(index for index in later if index > reached)])

    def _begin_of_epoch(self, number: int, start: int, found: Sequence[History]) -> int:
        """Where a replica's epoch at a position began, if it has nothing of the earlier history since then.

        A master writes one log, so another replica of the earlier history does not know that epoch.
        """
        epochs = self._witnesses.epochs
        own = next((each for each in reversed(epochs.get(number, ())) if each.start <= start), None)
        others = {each for other, known in epochs.items() if other != number for each in known}
        logs = [each.log for each in found if number in each.since]
        reached = max((each.end for log in logs for each in log.pieces if number in each.sources), default=0)
        return own.start if own is not None and own not in others and reached <= own.start else start

    def _log(self, members: _Members, lasts: dict[int, LastEntry], base: int, first: int | None) -> RestoredLog:
        """The log of the members from position `base` on, which has the index `first` if that is given."""
        limits, witnesses = members.limits, self._witnesses
        stops = {
            number: min((run.start for run in members.rest if number in run.sources), default=INT64_MAX)
            for number in range(len(witnesses.names))
        }
        runs = self._judge(members.runs, {number: (base, stops[number]) for number in limits})
        pieces, undecided, contradicting = chosen_pieces(runs, limits, self._decide)
        builder = LogBuilder(self._source, base, self._file_size, witnesses, limits, members.leader, first)
        lost = list(builder.lost_between(pieces, undecided))
        whole = {number for number in limits if number in lasts and lasts[number].index <= limits[number]}
        lost += builder.lost_at_end(pieces, lost, limits[members.leader], whole, runs)
        ends = [*(each.end for each in pieces[-1:]), *(each.pos + each.size for each in lost[-1:])]
        unclear = {each.pos for each in undecided}
        damaged = {(each.pos, each.size): each for each in lost if each.is_known}
        rest = [run for run in members.rest if not _has_damaged_header(run, damaged)]
        kept, repairs = repaired(
            [each for each in lost if each.pos not in unclear],
            sorted(limits),
            _without(witnesses.read, rest),
            witnesses.is_elsewhere,
        )
        lost = sorted([*kept, *(each for each in lost if each.pos in unclear)])
        if not self._is_decided:
            none = f"expected entries that can be decided, found {len(undecided)} that cannot: the copies differ"
            self._why_not = self._why_not or builder.problem or (none if not pieces else "")
            self._is_decided = True
        log = RestoredLog(
            source=self._source,
            base=base,
            end=max(ends),
            file_size=self._file_size,
            leader=members.leader,
            pieces=tuple(pieces),
            lost=tuple(lost),
            repairs=tuple(repairs),
            undecided=tuple(undecided),
            tails=(),
            damages=self._damages,
            contradicting=tuple(contradicting),
            messages=sum(run.messages for run in members.runs if not run.is_suspect),
            stops=stops,
        )
        committed = max((index for number, index in witnesses.committed.items() if number in limits), default=-1)
        is_whole = self._source != DLEDGER or first is not None or committed <= log.last_index
        return log if is_whole else replace(log, lost_after=committed)

    def _leader(
        self, runs: Sequence[Run], lasts: dict[int, LastEntry], log_of: int | None
    ) -> tuple[int, dict[int, int]]:
        """The source with the last entry whose log has all committed entries, and the limits of `matching`.

        An entry counts, too, that only units of a later term know: what is older is not the group's log.
        """
        committed, names = self._witnesses.committed, self._witnesses.names
        if log_of is not None:
            return log_of, matching(runs, log_of, lasts[log_of].index, committed)
        order = sorted(lasts, key=lambda number: names[number])
        known: dict[int, tuple[int, int]] = {}
        for each in self._units:
            if each.first_index < each.last_index:
                known[each.source] = max(known.get(each.source, (-1, -1)), (each.term, each.last_index))
        order.sort(key=lambda number: max((*lasts[number][:2],), known.get(number, (-1, -1))), reverse=True)
        found = [(number, matching(runs, number, lasts[number].index, committed)) for number in order]
        for number, limits in found:
            if all(
                limits.get(other, -1) >= min(index, lasts[other].index)
                for other, index in committed.items()
                if other in lasts and other in limits
            ):
                return number, limits
        listed = ", ".join(names[number] for number in order)
        self._is_choice = True
        self._why_not = (
            f"no log of {listed} has all entries that the others have committed: choose one (--log-of), and export the "
            "others"
        )
        return found[0]

    def _check_same_group(self, runs: Sequence[Run], lasts: dict[int, LastEntry], limits: dict[int, int]) -> None:
        """Sets `_why_not` for a source that has indexes of the log, but no entry of it."""
        for number in sorted(set(lasts) - set(limits)):
            own = [run for run in runs if number in run.sources and not run.is_suspect]
            others = [
                run for run in runs if number not in run.sources and not run.is_suspect and limits.keys() & run.sources
            ]
            if any(one.start < two.end and two.start < one.end for one in own for two in others):
                names = self._witnesses.names
                self._why_not = self._why_not or (
                    f"{names[number]}: expected entries of {names[min(limits)]}, found none in common: it is of "
                    "another group: leave it out"
                )


def tails_of(log: RestoredLog) -> Iterator[Tail]:
    """What a log has intact, in ranges with the same sources and term."""
    joined: Tail | None = None
    for piece in log.pieces:
        tail = Tail(piece.sources, piece.first_index, piece.last_index, piece.term, piece.start, piece.end)
        if joined is not None and (joined.sources, joined.term, joined.end) == (tail.sources, tail.term, tail.start):
            joined = joined._replace(last_index=tail.last_index, end=tail.end)
            continue
        if joined is not None:
            yield joined
        joined = tail
    if joined is not None:
        yield joined


def _beyond(runs: Sequence[Run], limits: dict[int, int]) -> list[Run]:
    """What the sources have after their limits, without runs that contradict longer parts of their logs."""
    sources = {number for run in runs for number in run.sources}
    kept = {
        number: set(without_overlaps(run for run in runs if number in run.sources and not run.is_suspect)[0])
        for number in sources
    }
    _, rest = _split(
        runs,
        lambda run, number: run.last_index <= limits.get(number, -1) or not (run.is_suspect or run in kept[number]),
    )
    return rest


def _split(runs: Sequence[Run], is_own: Callable[[Run, int], bool]) -> tuple[list[Run], list[Run]]:
    """The runs with the sources for which they are of a log, and with the others."""
    own, rest = [], []
    for run in runs:
        mine = {number for number in run.sources if is_own(run, number)}
        if len(mine) == len(run.sources):
            own.append(run)
        elif not mine:
            rest.append(run)
        else:
            own.append(run.of(mine))
            rest.append(run.of({*run.sources} - mine))
    return own, rest


def _has_damaged_header(run: Run, damaged: dict[tuple[int, int], LostEntry]) -> bool:
    """Whether the run is one entry, at the place of a lost one, whose header is damaged."""
    expected = damaged.get((run.start, run.end - run.start))
    return expected is not None and has_damaged_header(expected, run.first_index, run.term)


def _without(read: ReadSource, rest: Sequence[Run]) -> ReadSource:
    """Reads nothing where a source has entries of another log."""

    def read_own(number: int, start: int, end: int) -> bytes:
        is_other = any(
            number in run.sources and run.start < end and start < run.end for run in rest if not run.is_suspect
        )
        return b"" if is_other else read(number, start, end)

    return read_own


def _checked(runs: Sequence[Run], witnesses: Witnesses) -> list[Run]:
    """The runs; those of one source that no unit confirms are suspect if damage changed their term or index.

    No entry has a higher term than every current one, but of several with the same one a file of current terms is
    wrong. A term must be between those of the intact entries around it, an index the one between those of adjacent
    entries.
    """
    ends = witnesses.ends
    highest = max(witnesses.terms.values(), default=INT64_MAX)
    alike = Counter((number, run.term) for run in runs for number in run.sources)
    intact = [(number, run) for run in runs if not run.is_suspect for number in run.sources]
    sure = [(number, run) for number, run in intact if run.confirmed or run.start < run.last_pos]
    expected = {(number, run.end): run.last_index + 1 for number, run in sure}
    before = {(number, run.start): run.first_index - 1 for number, run in sure}
    term_before: dict[tuple[int, int], int] = {}
    term_after: dict[tuple[int, int], int] = {}
    for (number, run), (other, following) in pairwise(sorted(intact)):
        if number == other:
            term_before[number, following.start] = run.term
            if following.first_index <= ends[number].last_index:
                term_after[number, run.end] = following.term

    def is_changed(run: Run, number: int) -> bool:
        is_one = run.start == run.last_pos
        found = {expected.get((number, run.start)), before.get((number, run.end))} - {None}
        is_odd = run.term > highest and is_one and alike[number, run.term] == 1
        low, high = term_before.get((number, run.start)), term_after.get((number, run.end))
        if is_one and low is not None and high is not None:
            is_odd = is_odd or (low <= high and not low <= run.term <= high)
        return is_odd or (is_one and len(found) == 1 and run.first_index >= 0 and run.first_index not in found)

    return [
        run._replace(is_suspect=True)
        if not run.confirmed and len(run.sources) == 1 and is_changed(run, run.sources[0])
        else run
        for run in runs
    ]
