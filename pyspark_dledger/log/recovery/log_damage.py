"""What the models of Java's recovery do not tell: damage that Java keeps, and where the log ended before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_dledger.format.spec import DLEDGER, SurveyRequest
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import check_fact
from pyspark_dledger.log.store_view import StoreView

SILENT_CODES = frozenset(("bodyCrc", "messageStructure", "messageOffset", "messageCrc", "propertyCrc"))
"""Findings about such entries."""
MAX_LISTED = 100
"""Entries listed of each file and kind; `verify` counts the others."""


@dataclass(frozen=True)
class SilentDamage:
    """A damaged entry. ``code`` is that of a finding, ``text`` says what was expected and found."""

    index: int | None
    pos: int
    file: str
    code: str
    text: str


def silent_damage(store: StoreView) -> Iterator[SilentDamage]:
    """The damaged entries, in the order of the log. Reads the whole log. Raises StoreError."""
    for segment in store.segments:
        end = store.segment_end(segment)
        if segment.base >= end:
            continue
        request = SurveyRequest(segment, segment.base, end, verify_crc=True, max_problems=MAX_LISTED)
        for problem in engine_of(store.engine.NAME, segment).survey(request).problems:
            check_fact(segment, problem.fact)
            is_moved = problem.code == "messageOffset" and segment.source == DLEDGER and not segment.check_pos
            if problem.code in SILENT_CODES and not is_moved:
                yield SilentDamage(problem.index, problem.pos, segment.path, problem.code, problem.fact.sentence())


def truncated(store: StoreView, end: int) -> tuple[int, int] | None:
    """The positions, inclusive, that a start truncates which ends the log at `end`; None if it truncates nothing."""
    last = store.claimed_end - 1
    return (end, last) if end <= last else None
