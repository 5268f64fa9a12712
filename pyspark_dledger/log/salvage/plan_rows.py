"""The rows of a plan: ranges with their donor and reason, what becomes a filler, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.log.copies.segment_copy import Damages
from pyspark_dledger.log.io.salvage_fillers import TIE, UNCONFIRMED
from pyspark_dledger.log.salvage.lost_entries import LostEntry, Repair
from pyspark_dledger.log.salvage.pieces import Undecided, ranges_of
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.log.salvage.restored_log import RestoredLog

COPY, REPAIR, FILLER, UNDECIDED, LEFT_OUT = "copy", "repair", "filler", "undecided", "leftOut"
"""What happens to a range: copied; copied with a new header; replaced by a filler; nothing decides; in a source, but
not of the restored log.
"""


_SUSPECT = "suspect"
_TAKEN_TEXTS = {
    UNCONFIRMED: "no checksum covers the last copy, which is taken",
    TIE: "copies differ, no check shows which one is right, and one of them is taken",
    _SUSPECT: "every copy fails its checksum, and one of them is taken",
}


@dataclass(frozen=True)
class PlanRow:
    """Consecutive entries, or old messages, for which the plan is the same; positions and sizes in bytes.

    ``donor`` is the source that they are copied from; None if they are not copied. ``sources`` have the same bytes.
    ``problems`` says, for sources without an intact copy, what is wrong in the range; the first problem of each.
    """

    action: str
    source: str
    first_index: int | None
    last_index: int | None
    pos: int
    size: int
    term: int | None
    donor: str | None
    sources: tuple[str, ...]
    why: str
    problems: dict[str, str]


def plan_rows(plan: SalvagePlan) -> Iterator[PlanRow]:
    """The rows of a plan in the order of the log, then what is left out."""
    for log in plan.logs:
        damages = _Problems(plan, log)
        rows = [*_copied(plan, log, damages), *_repaired(plan, log, damages)]
        rows += [*_fillers(log, damages), *_undecided(plan, log, damages)]
        yield from sorted(rows, key=lambda row: row.pos)
        for tail in log.tails:
            names = tuple(plan.names[number] for number in tail.sources)
            reason = (
                f", as queues of {names[0]} show" if tail.is_put_back else f"; --log-of {names[0]} restores this one"
            )
            why = f"of another history than the log of {plan.names[log.leader]}{reason}"
            size = tail.end - tail.start
            indexes = _index(tail.first_index), _index(tail.last_index)
            yield PlanRow(LEFT_OUT, log.source, *indexes, tail.start, size, _index(tail.term), None, names, why, {})


def _copied(plan: SalvagePlan, log: RestoredLog, damages: _Problems) -> Iterator[PlanRow]:
    others = sorted([each.pos for each in log.lost] + [each.pos for each in log.repairs])
    for piece in ranges_of(log.pieces, others):
        names = tuple(plan.names[number] for number in piece.sources)
        yield PlanRow(
            COPY,
            log.source,
            _index(piece.first_index),
            _index(piece.last_index),
            piece.start,
            piece.end - piece.start,
            _index(piece.term),
            plan.names[piece.donor],
            names,
            piece.why,
            damages.within(piece.start, piece.end),
        )


def _repaired(plan: SalvagePlan, log: RestoredLog, damages: _Problems) -> Iterator[PlanRow]:
    """Entries that get a new header, those that follow each other in one row."""
    joined: list[Repair] = []
    for each in log.repairs:
        if joined and (each.pos != joined[-1].pos + joined[-1].size or _kind(each) != _kind(joined[-1])):
            yield _repair_row(plan, log, joined, damages)
            joined = []
        joined.append(each)
    if joined:
        yield _repair_row(plan, log, joined, damages)


def _kind(each: Repair) -> tuple[object, ...]:
    return each.term, each.donor, each.sources


def _repair_row(plan: SalvagePlan, log: RestoredLog, repairs: list[Repair], damages: _Problems) -> PlanRow:
    first, last = repairs[0], repairs[-1]
    end = last.pos + last.size
    return PlanRow(
        REPAIR,
        log.source,
        first.index,
        last.index,
        first.pos,
        end - first.pos,
        first.term,
        plan.names[first.donor],
        tuple(plan.names[number] for number in first.sources),
        "headerFromIndex",
        damages.within(first.pos, end),
    )


def _fillers(log: RestoredLog, damages: _Problems) -> Iterator[PlanRow]:
    """Lost entries, those that follow each other in one row."""
    undecided = {each.pos for each in log.undecided}
    joined: list[LostEntry] = []
    for lost in (each for each in log.lost if each.pos not in undecided):
        if joined and (lost.pos != joined[-1].pos + joined[-1].size or lost.term != joined[-1].term):
            yield _filler_row(log, joined, damages)
            joined = []
        joined.append(lost)
    if joined:
        yield _filler_row(log, joined, damages)


def _filler_row(log: RestoredLog, lost: list[LostEntry], damages: _Problems) -> PlanRow:
    first, last = lost[0], lost[-1]
    end = last.pos + last.size
    why = "nobody has it" if all(each.is_known for each in lost) else "nobody has it, and no index unit has its extent"
    return PlanRow(
        FILLER,
        log.source,
        _index(first.index),
        _index(last.index),
        first.pos,
        end - first.pos,
        _index(first.term),
        None,
        (),
        why,
        damages.within(first.pos, end),
    )


def _undecided(plan: SalvagePlan, log: RestoredLog, damages: _Problems) -> Iterator[PlanRow]:
    for each in log.undecided:
        yield PlanRow(
            UNDECIDED if plan.refused else FILLER,
            log.source,
            _index(each.index),
            _index(each.index),
            each.pos,
            each.size,
            _index(each.term),
            None,
            tuple(plan.names[number] for number in sorted(number for group in each.variants for number in group)),
            undecided_text(each, plan),
            damages.within(each.pos, each.pos + each.size),
        )


def undecided_text(each: Undecided, plan: SalvagePlan) -> str:
    """Why nothing decides, and the sources by equal bytes: ``copies differ: n0+n1 and n2``."""
    groups = sorted("+".join(sorted(plan.names[number] for number in group)) for group in each.variants)
    return f"{each.why}: {' and '.join(groups)}"


def _index(value: int) -> int | None:
    return value if value >= 0 else None


def problems_within(plan: SalvagePlan) -> Callable[[RestoredLog, int, int], dict[str, str]]:
    """A function that gives the first problem of each source between two positions of a log."""
    damages = {log.source: _Problems(plan, log) for log in plan.logs}
    return lambda log, start, end: damages[log.source].within(start, end)


class _Problems:
    """The damage of all sources where they have this log, found by position."""

    def __init__(self, plan: SalvagePlan, log: RestoredLog) -> None:
        self._names = plan.names
        self._stops = log.stops
        own = [each for each in log.damages if each.start < log.stops.get(each.source, INT64_MAX)]
        sources = sorted({each.source for each in own})
        self._of_sources = {number: Damages(each for each in own if each.source == number) for number in sources}

    def within(self, start: int, end: int) -> dict[str, str]:
        """The first problem in ``[start, end)`` of each source that has no other log there."""
        own = {number: each for number, each in self._of_sources.items() if self._stops.get(number, INT64_MAX) >= end}
        found = {number: damages.first_within(start, end) for number, damages in own.items()}
        return {self._names[number]: each.problem for number, each in found.items() if each is not None}


def headline(plan: SalvagePlan) -> str:
    """The first line: whether anything is lost for good."""
    undecided = {(log.source, each.pos): each for log in plan.logs for each in log.undecided}
    lost = [each for log in plan.logs for each in log.lost if (log.source, each.pos) not in undecided]
    after = [log.lost_after for log in plan.logs if log.lost_after is not None]
    parts = []
    unread = [each for each in lost if any(low < each.pos + each.size and each.pos < high for low, high in plan.unread)]
    lost = [each for each in lost if each not in unread]
    if lost:
        size = sum(each.size for each in lost)
        indexes = [(each.index, each.index) for each in lost if each.index >= 0]
        what = [f"{counted(len(indexes), 'entry')} (index {_listed(indexes)})"] if indexes else []
        others = len(lost) - len(indexes)
        what += [f"{counted(others, 'extent')} of messages"] if others else []
        parts.append(f"{' and '.join(what)}, {size} bytes: no source has {'it' if len(lost) == 1 else 'them'} intact")
    if after:
        end = max(log.last_index for log in plan.logs)
        readable = " that can be read" if plan.unreadable else ""
        proof = "committed, as a checkpoint or a ConsumeQueue says"
        parts.append(f"the entries {end + 1} to {after[0]}: {proof}, and in no source{readable}")
    ends = [(log.lost_from, log.lost_until - 1) for log in plan.logs if log.lost_until is not None]
    parts += [f"positions {start} to {end}: a source shows that messages were there" for start, end in ends]
    parts += [each.text for log in plan.logs for each in log.lost_ends]
    if undecided:
        becomes = "" if plan.refused else "; fillers take their place"
        places = _places((each.index, each.index, each.pos, each.pos + each.size - 1) for each in undecided.values())
        parts.append(f"{places}: nothing shows that a copy is right{becomes}")
    if unread:
        places = _places((each.index, each.index, each.pos, each.pos + each.size - 1) for each in unread)
        parts.append(f"{places}: only a file that cannot be read may have them")
    for why, text in _TAKEN_TEXTS.items():
        taken = [each for each in plan.unconfirmed if (_SUSPECT if each.is_suspect else each.why) == why]
        places = _places((each.first_index, each.last_index, each.start, each.end - 1) for each in taken)
        parts += [f"{places}: {text}"] if taken else []
    if plan.unreadable:
        parts.append(f"cannot tell if a log was longer: files of {', '.join(plan.unreadable)} cannot be read")
    return f"lost for good: {'; '.join(parts)}" if parts else "lost for good: nothing"


def _places(found: Iterable[tuple[int, int, int, int]]) -> str:
    """Entries by index; old messages by position: first and last index, first and last position of each."""
    extents = list(found)
    indexes = [(first, last) for first, last, *_ in extents if first >= 0]
    if not indexes:
        return f"cannot tell for positions {_listed([(start, end) for *_, start, end in extents])}"
    count = sum(last - first + 1 for first, last in indexes)
    return f"cannot tell for {counted(count, 'entry')}, {_listed(indexes)}"


def _listed(ranges: Iterable[tuple[int, int]], most: int = 8) -> str:
    """Ranges of numbers as text, joined where they are adjacent; at most `most` of them."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first == joined[-1][1] + 1:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    shown = [f"{first}" if first == last else f"{first} to {last}" for first, last in joined[:most]]
    more = f" and {counted(len(joined) - most, 'more range')}" if len(joined) > most else ""
    return ", ".join(shown) + more
