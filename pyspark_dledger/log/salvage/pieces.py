"""The pieces of a restored log: adjacent entries with the source that they are copied from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.io.salvage_fillers import TIE, UNCONFIRMED
from pyspark_dledger.log.salvage.matching import without_overlaps

ONE, SAME, QUEUE_UNIT, MAJORITY, TAKEN = "onlyCopy", "sameBytes", "queueUnit", "majority", "taken"
WRITTEN_SO, DECIDED = "writtenSo", "decided"
"""Why a copy was chosen:

- no other source has it intact;
- all sources that have it intact have the same bytes;
- it alone is the message that units of ConsumeQueues and of the index of keys know;
- at each byte, most sources have its value, or it is the only copy left;
- the request takes it;
- its checksums fail, but several sources have the same bytes;
- a salvage that wrote one of the stores decided so;
- ``UNCONFIRMED``: it is the only copy left, and no checksum covers it;
- ``TIE``: no copy has a majority: most sources have this one, or its bytes are the greatest.
"""


CHOSEN = (MAJORITY, TAKEN, WRITTEN_SO, TIE)
"""The reasons that prove nothing: the user chose them."""

DIFFER, FAIL_ALIKE, ELSEWHERE = "copies differ", "all fail the same checks alike", "the last copy, no queue knows it"
"""Why nothing decides about an entry."""

# A plan with more rows joins ranges with different sources.
_MAX_ROWS = 1000


class Piece(NamedTuple):
    """Adjacent entries ``[start, end)`` that are copied from the source ``donor``.

    ``sources`` have the same bytes, ``others`` have other ones. Indexes and term are -1 for old messages.
    ``unequal`` are all sources whose copy is not the chosen one. ``messages`` counts those in it. ``is_suspect``: its
    checksums fail.
    """

    start: int
    end: int
    last_pos: int
    first_index: int
    last_index: int
    term: int
    donor: int
    sources: tuple[int, ...]
    why: str
    others: tuple[tuple[int, ...], ...] = ()
    is_suspect: bool = False
    unequal: tuple[int, ...] = ()
    messages: int = 0


class Undecided(NamedTuple):
    """An entry whose copies are the ``variants``, and nothing says which is right, or if one is: ``why`` says what."""

    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    variants: tuple[tuple[int, ...], ...]
    why: str


Decide = Callable[[Run], tuple[tuple[int, ...], str] | None]
"""Chooses among the variants of a doubtful run: the sources with the right bytes, and why; None if nothing decides."""


def chosen_pieces(
    runs: Iterable[Run], limits: dict[int, int], decide: Decide
) -> tuple[list[Piece], list[Undecided], list[Run]]:
    """The pieces of the restored log by position, the undecided entries in it, and runs that contradict others.

    ``limits`` are the highest indexes of the sources in that log.
    """
    accepted = [clipped for run in runs if (clipped := _clipped(run, limits)) is not None]
    kept, contradicting = without_overlaps(accepted)
    pieces: list[Piece] = []
    undecided: list[Undecided] = []
    others_at = {run.start: run for run in contradicting}
    for run in kept:
        twin = others_at.get(run.start)
        if twin is not None and _are_twins(run, twin):
            contradicting.remove(twin)
            run = run._replace(variants=(*run.variants, *twin.variants), majority=-1, end=max(run.end, twin.end))
        found = _donors(run, decide)
        if found is not None:
            donors, why = found
            if twin is not None and donors[0] in twin.sources:
                run = run._replace(end=twin.end)
            others = tuple(group for group in run.variants if donors[0] not in group)
            others = others if why in CHOSEN else ()
            unequal = tuple(number for number in run.sources if number not in donors)
            pieces.append(Piece(*run[:6], donors[0], donors, why, others, run.is_suspect, unequal, run.messages))
        elif (doubt := _doubt(run)) is not None:
            size = run.end - run.start
            undecided.append(Undecided(run.start, size, run.first_index, run.term, run.variants, doubt))
    return pieces, undecided, contradicting


def _are_twins(one: Run, two: Run) -> bool:
    """Whether two runs are intact copies of one entry with different sizes, and nothing shows that one is right."""
    is_one = one.first_index == one.last_index == two.first_index == two.last_index >= 0 and one.term == two.term
    return is_one and not (one.is_suspect or two.is_suspect) and bool(one.confirmed) == bool(two.confirmed)


def _clipped(run: Run, limits: dict[int, int]) -> Run | None:
    """The run with the sources for which it is of the restored log; None without any."""
    own = {source for source in run.sources if run.last_index <= limits.get(source, -2)}
    return run if len(own) == len(run.sources) else run.of(own) if own else None


def _donors(run: Run, decide: Decide) -> tuple[tuple[int, ...], str] | None:
    doubt = _doubt(run)
    if doubt is not None or run.is_suspect:
        found = decide(run)
        return found if doubt is not None or (found is not None and found[1] == DECIDED) else None
    if run.is_unconfirmed:
        return run.variants[0], UNCONFIRMED
    return run.variants[0], SAME if len(run.variants[0]) > 1 else ONE


def _doubt(run: Run) -> str | None:
    """Why nothing decides about a run; None if it is right, or no copy of its entry."""
    if run.is_suspect:
        return FAIL_ALIKE if len(run.alike) == 1 else None
    if len(run.variants) > 1:
        return DIFFER
    return ELSEWHERE if run.is_contradicted else None


def ranges_of(pieces: Sequence[Piece], others: Sequence[int] = ()) -> list[Piece]:
    """The pieces, joined where they have the same sources for the same reason; the term is that of the first.

    ``others`` are the positions of what is not copied, in order: it separates ranges. If these are very many, only the
    donor counts, and ``sources`` have all of a range.
    """
    kinds = [(piece.why, bisect_left(others, piece.start), piece.donor) for piece in pieces]
    ranges = list(_joined(pieces, [(*kind, piece.sources) for kind, piece in zip(kinds, pieces, strict=True)]))
    return ranges if len(ranges) <= _MAX_ROWS else list(_joined(pieces, kinds))


def _joined(pieces: Sequence[Piece], kinds: Sequence[object]) -> Iterator[Piece]:
    joined: Piece | None = None
    last_kind: object = None
    for piece, kind in zip(pieces, kinds, strict=True):
        if joined is not None and kind == last_kind and piece.first_index in (-1, joined.last_index + 1):
            sources = tuple(sorted({*joined.sources} & {*piece.sources}))
            joined = joined._replace(
                end=piece.end, last_pos=piece.last_pos, last_index=piece.last_index, sources=sources
            )
            continue
        if joined is not None:
            yield joined
        joined, last_kind = piece, kind
    if joined is not None:
        yield joined
