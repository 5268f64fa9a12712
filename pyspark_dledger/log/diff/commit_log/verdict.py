"""Which replicas of a CommitLog may start, as a master or only as a slave, and which must not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, CommitLogState, ConsistentPoint
from pyspark_dledger.log.diff.commit_log.rows import PosRow
from pyspark_dledger.log.diff.diff_table import DAMAGED, DIVERGED, OTHER_BYTES


@dataclass(frozen=True)
class MemberVerdict:
    """What may be done with one replica as it is.

    ``start``: ``no`` (damaged, or its end is lost), ``unknown`` (no check tells which copy is intact), ``slave``
    (another one has more, or is of a later epoch), ``master``. ``damaged``, ``unclear`` and ``diverged`` are its rows
    with these verdicts; ``donors`` have all of the damaged ones intact. ``ahead`` is the replica to follow,
    ``truncation`` where Java would truncate this one to follow it; None where it would not.
    """

    node: str
    path: str
    start: str
    damaged: tuple[PosRow, ...]
    unclear: tuple[PosRow, ...]
    diverged: tuple[PosRow, ...]
    donors: tuple[str, ...]
    ahead: str | None
    ahead_bytes: int
    truncation: ConsistentPoint | None


def member_verdicts(found: CommitLogComparison) -> list[MemberVerdict]:
    """A verdict for each replica, in their order."""
    return [_verdict(state, found) for state in found.states]


def _verdict(state: CommitLogState, found: CommitLogComparison) -> MemberVerdict:
    damaged, unclear, diverged = (
        tuple(_rows(found.rows, verdict, state.node)) for verdict in (DAMAGED, OTHER_BYTES, DIVERGED)
    )
    first = _first(found.states)
    is_behind = (first.epoch or -1, first.end) > (state.epoch or -1, state.end)
    ahead = first.node if is_behind else None
    truncation = next(
        (point for point in found.consistent_points if (point.slave, point.master) == (state.node, ahead)), None
    )
    start = "no" if damaged else "unknown" if unclear else "slave" if is_behind else "master"
    return MemberVerdict(
        node=state.node,
        path=state.path,
        start=start,
        damaged=damaged,
        unclear=unclear,
        diverged=diverged,
        donors=tuple(
            other.node for other in found.states if damaged and all(other.node in row.terms for row in damaged)
        ),
        ahead=ahead,
        ahead_bytes=first.end - state.end if is_behind else 0,
        truncation=truncation,
    )


def _rows(rows: Sequence[PosRow], verdict: str, node: str) -> Iterator[PosRow]:
    return (row for row in rows if row.verdict == verdict and node in row.nodes)


def _first(states: Sequence[CommitLogState]) -> CommitLogState:
    """The replica to follow: of the last epoch, then the longest; the first of equal ones."""
    return max(states, key=lambda state: (state.epoch or -1, state.end))
