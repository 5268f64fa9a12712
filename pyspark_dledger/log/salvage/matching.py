"""Chooses the log to restore: the one of the source that Raft would elect, and what of the other sources belongs to it.

Two logs that have one entry in common (index and term) are the same up to that entry (Raft, log matching).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.log.copies.lost_ends import OwnEnd
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.copies.segment_copy import TermRange
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.salvage.lost_entries import file_end, known_after


class LastEntry(NamedTuple):
    """The last intact entry of a source; for old messages index and term are -1."""

    term: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    end: int


class Tail(NamedTuple):
    """Entries that only the sources with these numbers have, and that are not of the restored log.

    With ``is_put_back``, these are old messages, of a file that is of another time or of another replica.
    """

    sources: tuple[int, ...]
    first_index: int
    last_index: int
    term: int
    start: int
    end: int
    is_put_back: bool = False


def last_entries(runs: Sequence[Run], sources: Iterable[int]) -> dict[int, LastEntry]:
    """The last intact entry of each source that has one, without entries that contradict longer parts of its log."""
    lasts: dict[int, LastEntry] = {}
    for source in sources:
        own = [run for run in runs if not run.is_suspect and source in run.sources]
        kept, _ = without_overlaps(own)
        if kept:
            lasts[source] = LastEntry(kept[-1].term, kept[-1].last_index, kept[-1].end)
    return lasts


def without_overlaps(runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
    """The runs that can follow each other in a log, and those that contradict better ones."""
    kept: list[Run] = []
    dropped: list[Run] = []
    for run in sorted(runs):
        place = len(kept)
        while place and not _follows(kept[place - 1], run) and _rank(kept[place - 1]) < _rank(run):
            place -= 1
        if place and not _follows(kept[place - 1], run):
            dropped.append(run)
        else:
            dropped += kept[place:]
            kept[place:] = [run]
    return kept, dropped


def _rank(run: Run) -> tuple[bool, bool, int, int]:
    return not run.is_suspect, run.confirmed > 0, len(run.sources), run.end - run.start


def _follows(before: Run, run: Run) -> bool:
    if run.start < before.end:
        return False
    if run.first_index < 0:
        return True
    lost = run.first_index - before.last_index - 1
    return 0 <= lost <= (run.start - before.end) // ENTRY_HEADER_SIZE and run.term >= before.term


def matching(runs: Sequence[Run], leader: int, last: int, committed: dict[int, int]) -> dict[int, int]:
    """For each source with an entry of the leader's log, the highest index up to which its entries are of that log.

    ``last`` is the leader's last index. Sources that share an entry with another matching source match as well, up to
    their ``committed`` indexes unless they have other entries: a later leader has all that was committed. An entry
    whose bytes are damaged is known by its index unit. A term has one leader, so up to an entry of a term, the log
    has all of that term.
    """
    limits = {leader: last}
    while True:
        before = dict(limits)
        for run in runs:
            if run.is_suspect:
                continue
            common = max((limits[source] for source in run.sources if source in limits), default=-2)
            known = max((limits[source] for source in run.known_to if source in limits), default=-2)
            common = max(common, known if known >= run.last_index else -2)
            if common < run.first_index:
                continue
            for source in (*run.sources, *(run.known_to if common >= run.last_index else ())):
                limits[source] = max(limits.get(source, -1), min(common, run.last_index))
        lasts = _last_of_terms(runs, limits)
        for run in runs:
            high = lasts.get(run.term, -1)
            if not run.is_suspect and run.first_index <= high:
                for source in limits.keys() & run.sources:
                    limits[source] = max(limits[source], min(run.last_index, high))
        for source in limits:
            known = min(committed.get(source, -1), last)
            if known > limits[source]:
                limits[source] = max(limits[source], min(known, _other_entry(runs, source, limits) - 1))
        if limits == before:
            return limits


def _last_of_terms(runs: Sequence[Run], limits: dict[int, int]) -> dict[int, int]:
    """The last index of each term in the log of the `limits`."""
    own = [run for run in runs if any(run.last_index <= limits.get(source, -1) for source in run.sources)]
    return {run.term: run.last_index for run in without_overlaps(run for run in own if not run.is_suspect)[0]}


def without_old_bytes(runs: Sequence[Run], units: Sequence[TermRange]) -> tuple[list[Run], list[Run]]:
    """The runs without what a source has of a time before its index units, and what follows its last unit of these.

    A file that was put back, or is of another replica, has intact entries that were not in the log any more. Terms
    never decrease, so of an entry and a unit that another replica's entry confirms, the one with the lower term is old;
    so is an entry for which `units` have a later term.
    """
    rewritten = [each for each in units if each.is_rewritten]
    runs, truncated = _without_truncated(runs, rewritten)
    of_units = _latest([*_ranges(runs, lambda run: run.known_to), *units])
    of_entries = _latest(_ranges(runs, lambda run: run.sources))
    of_others = _of_others(runs, units)
    found: list[Run] = []
    after = truncated
    for run in runs:
        old_units = {source for source in run.known_to if _is_old(run, of_entries.get(source, []))}
        old = {source for source in run.sources if _is_old(run, of_units.get(source, []))}
        foreign = {source for source in run.sources if (source, run) in of_others}
        # The last copy counts wherever it is.
        old |= foreign if foreign < {*run.sources} else set()
        beyond = {source for source in old - foreign if run.first_index > _before(of_units[source], run).last_index}
        own = run._replace(known_to=tuple(each for each in run.known_to if each not in old_units))
        after += [run.of(beyond)] if beyond else []
        found += [own.of({*run.sources} - old)] if old < {*run.sources} else []
    return found, after


def _without_truncated(runs: Sequence[Run], rewritten: Sequence[TermRange]) -> tuple[list[Run], list[Run]]:
    """The runs without what a source has of entries over whose units it wrote others, and what follows those units."""
    found: list[Run] = []
    after: list[Run] = []
    for run in runs:
        before = [each for each in rewritten if each.source in run.sources and each.first_index <= run.first_index]
        before = [each for each in before if each.term < run.term and not run.is_suspect]
        old = {each.source for each in before}
        beyond = old - {each.source for each in before if run.first_index <= each.last_index}
        found += [run.of({*run.sources} - old)] if old < {*run.sources} else []
        after += [run.of(beyond)] if beyond else []
    return found, after


def _of_others(runs: Sequence[Run], units: Iterable[TermRange]) -> set[tuple[int, Run]]:
    """The sources that have runs of another replica: entries of the earlier term that units have follow."""
    own: dict[int, list[TermRange]] = defaultdict(list)
    for each in sorted(units, key=lambda each: each.first_index):
        own[each.source].append(each)
    lasts: dict[tuple[int, int], int] = {}
    for run in runs:
        lasts |= {(source, run.term): run.start for source in run.sources if run.confirmed > 1 and not run.is_suspect}
    found: set[tuple[int, Run]] = set()
    for run in runs:
        for source in run.sources if not run.is_suspect else ():
            unit = _before(own[source], run)
            is_earlier = unit.term < run.term and run.first_index <= unit.last_index
            if is_earlier and lasts.get((source, unit.term), -1) >= run.end:
                found.add((source, run))
    return found


def _ranges(runs: Iterable[Run], sources: Callable[[Run], tuple[int, ...]]) -> Iterator[TermRange]:
    for run in runs:
        for source in sources(run) if not run.is_suspect else ():
            yield TermRange(source, run.first_index, run.last_index, run.term)


def _latest(having: Iterable[TermRange]) -> dict[int, list[TermRange]]:
    """By source, for each first index of what it has, the highest term up to it, and the last index that has it."""
    found: dict[int, list[TermRange]] = defaultdict(list)
    for each in sorted(having, key=lambda each: each.first_index):
        highest = max([*found[each.source][-1:], each], key=lambda one: (one.term, one.last_index))
        found[each.source].append(highest._replace(first_index=each.first_index))
    return found


def _before(latest: Sequence[TermRange], run: Run) -> TermRange:
    """What a source has up to the first index of a run; term -1 for nothing."""
    place = bisect_right(latest, run.first_index, key=lambda each: each.first_index)
    return latest[place - 1] if place else TermRange(-1, -1, -1, -1)


def _is_old(run: Run, latest: Sequence[TermRange]) -> bool:
    """Whether no log that has these has the run at the same index, or after them."""
    return not run.is_suspect and run.term < _before(latest, run).term


def _other_entry(runs: Sequence[Run], source: int, limits: dict[int, int]) -> int:
    """The first index at which a source has an entry of another term than the log of the `limits`."""
    own = [run for run in runs if source in run.sources and not run.is_suspect and run.last_index > limits[source]]
    others = [
        run
        for run in runs
        if not run.is_suspect and any(run.first_index <= limits.get(number, -1) for number in run.sources)
    ]
    found = (
        max(one.first_index, two.first_index)
        for one in own
        for two in others
        if one.term != two.term and one.first_index <= two.last_index and two.first_index <= one.last_index
    )
    return min((index for index in found if index > limits[source]), default=INT64_MAX)


def tails(runs: Sequence[Run], limits: dict[int, int], leader: int) -> list[Tail]:
    """What is in a source, but not in the restored log. What the `leader` has besides its log is damage."""
    found: list[Tail] = []
    for run in runs:
        sources = tuple(source for source in run.sources if run.last_index > limits.get(source, -1))
        if run.is_suspect or leader in sources or len(sources) < len(run.sources):
            continue
        before = found[-1] if found else None
        if before is not None and (before.sources, before.term, before.end) == (sources, run.term, run.start):
            found[-1] = before._replace(last_index=run.last_index, end=run.end)
        else:
            found.append(Tail(sources, run.first_index, run.last_index, run.term, run.start, run.end))
    return found


class StaleRuns(NamedTuple):
    """Finds entries after the end of a log that a leader had truncated, where no index unit shows it any more.

    Java overwrites truncated entries from the first one on. So what remains of them begins after a hole in which no
    header is left, or at another position than the log's next entry has.

    ``ends`` are those of the sources' own logs, ``committed`` is the highest committed index of all (-1: none known),
    ``max_term`` the highest current term.
    """

    ends: Sequence[OwnEnd]
    committed: int
    max_term: int | None
    index_files: Sequence[DLedgerIndex]
    file_size: int

    def among(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that are not of the log."""
        found: list[Run] = []
        reached: Run | None = None
        headers = sorted(run.first_index for run in runs if run.is_suspect)
        continued: set[tuple[int, int, int]] = set()
        for run in sorted((each for each in runs if not each.is_suspect), key=lambda each: each.first_index):
            is_continued = not continued.isdisjoint((number, run.start, run.first_index) for number in run.sources)
            if reached is not None and len(run.sources) == 1 and self._is_over(run) and not is_continued:
                place = bisect_right(headers, reached.last_index)
                has_header = place < len(headers) and headers[place] < run.first_index
                # Of the same leader, what follows the hole is as much of the log as what precedes it.
                is_after_hole = run.first_index > reached.last_index + 1 and run.term != reached.term
                is_after_hole = is_after_hole and (bool(found) or not has_header)
                is_end = any(end.is_at(reached.last_index) for end in self.ends)
                if (is_after_hole and is_end) or self._is_misplaced(run, reached, is_end):
                    found.append(run)
                    continue
            continued |= {(number, run.end, run.last_index + 1) for number in run.sources}
            if reached is None or run.last_index > reached.last_index:
                reached = run
        return found

    def _is_over(self, run: Run) -> bool:
        """Whether the term of the entries is over, and nothing proves them committed, or of their replica's log."""
        is_own = run.confirmed and run.last_index <= self.ends[run.sources[0]].last_index
        is_over = self.max_term is not None and run.term < self.max_term
        return is_over and run.first_index > self.committed and not is_own

    def _is_misplaced(self, run: Run, reached: Run, is_end: bool) -> bool:
        """Whether the log's entries up to this run, as units show them, are of later terms, or do not end at its begin.

        A log of a later term can have other entries before the run, unless the one with these is complete, or they are
        committed.
        """
        last = run.first_index - 1
        can_have_others = run.term > reached.term and not is_end and last > self.committed
        for files in self.index_files if last > reached.last_index else (DLedgerIndex(None),):
            known = known_after(reached.last_index, reached.end, reached.term, last, files, self.file_size)
            if any(each.term > run.term for each in known):
                return True
            end = known[-1].pos + known[-1].size if known else reached.end
            is_whole = len(known) == last - reached.last_index and not can_have_others
            # What the log's entries overwrote is gone, so a run that overlaps them is of a log without them.
            if is_whole and end < run.start != file_end(end, self.file_size):
                return True
        return False
