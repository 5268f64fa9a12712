"""Chooses the log to restore: the one of the source that Raft would elect, and what of the other sources belongs to it.

Two logs that have one entry in common (index and term) are the same up to that entry (Raft, log matching).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX, MAX_TIMESTAMP, MIN_TIMESTAMP
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import host_sizes, message_in
from pyspark_dledger.log.copies.lost_ends import OwnEnd
from pyspark_dledger.log.copies.message_units import MessageUnits
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.copies.segment_copy import TermRange
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.salvage.lost_entries import PlaceOf, ReadSource, file_end, known_after


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


def common_end(
    runs: Sequence[Run],
    leader: int,
    other: int,
    is_one: Callable[[Run], bool],
    diverged: int | None,
    file_size: int,
) -> int | None:
    """The position up to which two logs without terms are the same; None if they never contradict each other.

    Messages have no terms: after the last one that both have, either all bytes fit together, or the logs diverged.
    `is_one` says whether different bytes at one place are copies of one message. Their epochs say that they `diverged`.
    """
    after_shared = shared_end(runs, leader, other, is_one)
    own = [run for run in runs if run.start >= after_shared and other in run.sources and not run.is_suspect]
    contradiction = first_contradiction(runs, leader, other, after_shared, file_size)
    until = contradiction.start if contradiction is not None else INT64_MAX
    if diverged is not None and after_shared <= diverged <= until and any(run.start >= diverged for run in own):
        return diverged
    return max(after_shared, 0) if contradiction is not None else None


def shared_end(runs: Sequence[Run], one: int, other: int, is_one: Callable[[Run], bool]) -> int:
    """The end of the last message that both logs have; -1 without one."""
    both = {one, other}
    shared = (
        run.end
        for run in runs
        if both <= {*run.sources} and (any(both <= {*group} for group in run.variants) or is_one(run))
    )
    return max(shared, default=-1)


def first_contradiction(runs: Sequence[Run], leader: int, other: int, after: int, file_size: int) -> Run | None:
    """The first run of `other` from a position on that cannot be in one log with a run of the leader.

    They overlap, or no message fits between them.
    """
    intact = [run for run in runs if run.start >= after and not run.is_suspect]
    leaders = sorted((run for run in intact if leader in run.sources), key=lambda run: run.end)
    for run in intact:
        place = bisect_right(leaders, run.start, key=lambda each: each.end)
        around = leaders[max(place - 1, 0) : place + 1]
        if other in run.sources and not all(_fit(min(run, each), max(run, each), file_size) for each in around):
            return run
    return None


def _fit(before: Run, after: Run, file_size: int) -> bool:
    """Whether two runs of messages can be in one log: the rest of a file can be shorter than a message."""
    room = after.start - before.end
    return room == 0 or room >= MIN_MESSAGE_SIZE or (room > 0 and after.start % file_size == 0)


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


_MAX_MESSAGES = 100
"""Of a run, so many messages are looked up in queues."""
_MAX_RUNS = 100
"""Of so many runs, two logs are compared by their queues."""


def are_contradicted(
    runs: Sequence[Run], one: int, other: int, after: int, read: ReadSource, units: Sequence[MessageUnits]
) -> bool:
    """Whether a replica's queue has another message of its log at the place of a message of the other replica.

    Of one log, the queue would have the first of the two. Runs from the position `after` on are compared.
    """
    intact = [run for run in runs if not run.is_suspect]
    later = [
        run
        for run in intact
        if run.start >= after and ({one, other} - {*run.sources}) and {one, other} & {*run.sources}
    ]
    for run in later[:_MAX_RUNS]:
        source, judge = (one, other) if one in run.sources else (other, one)
        own = [each for each in intact if judge in each.sources]
        for at, data in _messages(run, source, read):
            places = units[judge].places_of(data) - {at}
            if any(_has_same_place(data, place, own, read) for place in places):
                return True
    return False


def repeating(runs: Sequence[Run], read: ReadSource, place_of: PlaceOf, log_of: int | None) -> list[Run]:
    """The runs of old messages that are of another history, because they repeat queueOffsets of earlier messages.

    A truncation left them, or their log diverged: they are after a hole, one source has them, and no queue. What the
    chosen source `log_of` has follows its own messages.
    """
    found: list[Run] = []
    kept: list[Run] = []
    reached = 0
    for run in sorted(each for each in runs if not each.is_suspect):
        is_after_hole = len(run.sources) == 1 and bool(kept) and run.start > reached
        before = kept if log_of not in run.sources else [each for each in kept if log_of in each.sources]
        if is_after_hole and _repeats(run, before, read, place_of):
            found.append(run)
            continue
        kept.append(run)
        reached = max(reached, run.end)
    return found


HEAD_BYTES = 88
"""Of a message, up to its storeTimestamp and some more."""


def without_old_messages(
    runs: Sequence[Run], read: ReadSource, units: Sequence[MessageUnits], file_size: int
) -> tuple[list[Run], list[Run]]:
    """The runs without what a source has of a file that was put back, or is of another replica; and that.

    Where sources have different messages, those are old of which the source's own queues have another one at the place
    of most. So is the rest of that file. `units` are those of each source.
    """
    contested = _contested(runs, read)
    old = {
        source: _old_messages(source, runs, contested, read, units[source], file_size) for source in range(len(units))
    }
    found: list[Run] = []
    dropped: list[Run] = []
    for run in runs:
        others = {source for source in run.sources if run in old[source]}
        found += [run.of({*run.sources} - others)] if others < {*run.sources} else []
        dropped += [run.of(others)] if others else []
    return found, dropped


def _contested(runs: Sequence[Run], read: ReadSource) -> set[Run]:
    """The runs in whose place sources have different messages."""
    found = {run for run in runs if len(run.variants) > 1 and not is_one_message(read, run.sources, run)}
    reached: Run | None = None
    for run in sorted(each for each in runs if not each.is_suspect):
        found |= {reached, run} if reached is not None and run.start < reached.end else set()
        reached = run if reached is None or run.end > reached.end else reached
    return found


def _old_messages(
    source: int, runs: Sequence[Run], contested: set[Run], read: ReadSource, units: MessageUnits, file_size: int
) -> set[Run]:
    """The runs of a source that are of a file of another time or replica: from its first different message on."""
    own = sorted(run for run in runs if source in run.sources and not run.is_suspect)
    votes: dict[Run, int] = {}
    for run in own if not contested.isdisjoint(own) else ():
        votes[run] = sum(_vote(units, at, data) for at, data in _messages(run, source, read))
    old: set[Run] = set()
    for place, run in enumerate(own):
        if run in old or run not in contested or votes[run] <= 0:
            continue
        while place and own[place - 1] in contested and own[place - 1].end == own[place].start:
            place -= 1
        rest = [each for each in own[place:] if each.start // file_size == run.start // file_size]
        old |= {*rest} if sum(votes[each] for each in rest) > 0 else {run}
    return old


def _vote(units: MessageUnits, at: int, data: bytes) -> int:
    """1 for a message instead of which a queue has another one, -1 for one that it has, 0 where nothing tells.

    A message that its queue has at another offset is the source's own: only its queueOffset is damaged.
    """
    if units.is_other(at, data):
        return int(not units.has_position(at, data))
    return -int(units.place_of(at, data) == at)


def is_one_message(read: ReadSource, sources: Iterable[int], run: Run) -> bool:
    """Whether intact copies at one place are of one message: others differ in the CRC of the body, or in both times.

    A time that no clock has is damaged.
    """
    copies = [identity(read(number, run.start, run.start + HEAD_BYTES)) for number in sources]
    crcs, offsets, *times = ({*values} for values in zip(*copies, strict=True))
    known = [
        {each for each in values if MIN_TIMESTAMP <= int.from_bytes(each, "big", signed=True) <= MAX_TIMESTAMP}
        for values in times
    ]
    return len(crcs) == 1 and sum(len(values) <= 1 for values in (offsets, *known)) >= 2


def identity(head: bytes) -> tuple[bytes, ...]:
    """The fields bodyCRC, queueOffset, bornTimestamp and storeTimestamp of a message."""
    born_host, _ = host_sizes(int.from_bytes(head[36:40], "big"))
    return head[8:12], head[20:28], head[40:48], head[48 + born_host : 56 + born_host]


def _repeats(run: Run, before: Sequence[Run], read: ReadSource, place_of: PlaceOf) -> bool:
    """Whether messages of a run have places in queues that those `before` have, and none is in a queue."""
    is_repeated = False
    for at, data in _messages(run, run.sources[0], read) if before else ():
        place = place_of(at, data)
        if place == at:
            return False
        is_repeated = is_repeated or (place is not None and _has_same_place(data, place, before, read))
    return is_repeated


def _messages(run: Run, source: int, read: ReadSource) -> Iterator[tuple[int, bytes]]:
    """The first messages of a run, each with its position."""
    at = run.start
    for _ in range(_MAX_MESSAGES):
        size = int.from_bytes(read(source, at, at + 4), "big") if at < run.end else 0
        if not size:
            return
        yield at, read(source, at, min(at + size, run.end))
        at += size


def _has_same_place(data: bytes, place: int, before: Sequence[Run], read: ReadSource) -> bool:
    """Whether the log has a message at a position that has the queue and the queueOffset of a copy."""
    run = next((each for each in before if each.start <= place < each.end), None)
    size = int.from_bytes(read(run.sources[0], place, place + 4), "big") if run is not None else 0
    other = message_in(read(run.sources[0], place, min(place + size, run.end))) if run is not None else None
    one = message_in(data)
    keys = [(each.topic, each.queue_id, each.queue_offset) for each in (one, other) if each is not None]
    return len(keys) == 2 and keys[0] == keys[1]
