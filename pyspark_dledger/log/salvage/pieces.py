"""The pieces of a restored log: adjacent entries with the source that they are copied from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.salvage.matching import without_overlaps

ONE, SAME, QUEUE_UNIT, MAJORITY, TAKEN = "onlyCopy", "sameBytes", "queueUnit", "majority", "taken"
WRITTEN_SO = "writtenSo"
"""Why a copy was chosen:

- no other source has it intact;
- all sources that have it intact have the same bytes;
- it alone is the message that units of ConsumeQueues and of the index of keys know;
- at each byte, most sources have its value;
- the request takes it;
- its checksums fail, but several sources have the same bytes.
"""


CHOSEN = (MAJORITY, TAKEN)
"""The reasons that prove nothing: the user chose them."""

# A plan with more rows joins ranges with different sources.
_MAX_ROWS = 1000


class Piece(NamedTuple):
    """Adjacent entries ``[start, end)`` that are copied from the source ``donor``.

    ``sources`` have the same bytes, ``others`` have other ones. Indexes and term are -1 for old messages.
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


class Undecided(NamedTuple):
    """An entry with several intact copies whose bytes differ, and no checksum says which is right."""

    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    variants: tuple[tuple[int, ...], ...]


Decide = Callable[[Run], tuple[tuple[int, ...], str] | None]
"""Chooses among the variants of a run: the sources with the right bytes, and why; None if nothing decides."""


def chosen_pieces(
    runs: Iterable[Run], limits: dict[int, int], decide: Decide
) -> tuple[list[Piece], list[Undecided], list[Run]]:
    """The pieces of the restored log by position, the undecided entries in it, and runs that contradict others.

    ``limits`` are the highest indexes of the sources in that log.
    """
    accepted = [run for run in map(_clipped(limits), runs) if run is not None]
    kept, contradicting = without_overlaps(accepted)
    pieces: list[Piece] = []
    undecided: list[Undecided] = []
    for run in kept:
        found = _donors(run, decide)
        if found is not None:
            donors, why = found
            others = tuple(group for group in run.variants if donors[0] not in group)
            pieces.append(Piece(*run[:6], donors[0], donors, why, others if why in CHOSEN else ()))
        elif not run.is_suspect:
            size = run.end - run.start
            undecided.append(Undecided(run.start, size, run.first_index, run.term, run.variants))
    return pieces, undecided, contradicting


def _clipped(limits: dict[int, int]) -> Callable[[Run], Run | None]:
    """A function that leaves the sources in a run for which it is of the restored log; None without any."""

    def clipped(run: Run) -> Run | None:
        variants = [
            tuple(source for source in group if run.last_index <= limits.get(source, -2)) for group in run.variants
        ]
        kept = tuple(group for group in variants if group)
        majority = kept.index(variants[run.majority]) if run.majority >= 0 and variants[run.majority] else -1
        return run._replace(variants=kept, majority=majority) if kept else None

    return clipped


def _donors(run: Run, decide: Decide) -> tuple[tuple[int, ...], str] | None:
    if run.is_suspect:
        groups = [group for group in run.variants if len(group) > 1]
        return (groups[0], WRITTEN_SO) if len(groups) == 1 else None
    if len(run.variants) > 1:
        return decide(run)
    return run.variants[0], SAME if len(run.variants[0]) > 1 else ONE


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
