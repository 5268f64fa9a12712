"""What of several logs belongs together, by their entries alone."""

from __future__ import annotations

from pyspark_dledger.log.copies.lost_ends import OwnEnd
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.salvage.matching import StaleRuns, matching, without_overlaps


def run(first: int, last: int, term: int, *sources: int, start: int | None = None, size: int = 100) -> Run:
    """Entries of equal size without gaps before them, unless `start` is given."""
    start = first * 100 if start is None else start
    end = start + (last - first + 1) * size
    return Run(start, end, end - size, first, last, term, (sources,), False, 0, 0)


def test_an_entry_that_fits_nowhere_does_not_push_out_those_that_do() -> None:
    """Its term is damaged: it is longer than each of two entries, but shorter than what is before them."""
    before, one, two = run(0, 9, 3, 0), run(10, 10, 6, 0), run(12, 12, 6, 0)
    odd = run(13, 13, 0, 0, size=300)
    assert without_overlaps([before, one, two, odd]) == ([before, one, two], [odd])
    longer = run(11, 12, 6, 0, start=1050, size=400)
    assert without_overlaps([before, one, longer]) == ([before, longer], [one])


def test_up_to_an_entry_of_a_term_a_log_has_all_of_that_term() -> None:
    """One leader wrote them: the entries before the first one that is left, too."""
    shared, only_first, last = run(0, 5, 1, 0, 1), run(6, 8, 3, 0), run(9, 11, 3, 1)
    assert matching([shared, only_first, last], 1, 11, {}) == {0: 8, 1: 11}
    later = run(12, 12, 3, 0)
    assert matching([shared, only_first, last, later], 1, 11, {}) == {0: 8, 1: 11}
    other = only_first._replace(term=2)
    assert matching([shared, other, last], 1, 11, {}) == {0: 5, 1: 11}


def test_entries_after_a_hole_are_stale_only_if_another_leader_wrote_them() -> None:
    ends = OwnEnd(8, 800, 3, 8), OwnEnd(11, 1100, 3, 8)
    found = StaleRuns(ends, 5, 4, (DLedgerIndex(None), DLedgerIndex(None)), 4096)
    reached, after = run(0, 8, 3, 0), run(10, 11, 3, 1)
    assert found.among([reached, after]) == []
    older = after._replace(term=2)
    assert found.among([reached, older]) == [older]
