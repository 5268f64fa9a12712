"""Which entries that are damaged on every replica `dledger salvage` can restore: only their headers are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.ranges import Ranges
    from pyspark_dledger.log.diff.verdict import GroupVerdict


def restorable(logs: Sequence[Log], verdict: GroupVerdict) -> Ranges:
    """The lost entries with an index unit and an intact message. Empty if very many are lost."""
    from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
    from pyspark_dledger.log.diff.ranges import RangeCounter
    from pyspark_dledger.log.salvage.lost_entries import LostEntry
    from pyspark_dledger.rocketmq.lost.known_units import entries_of_index
    from pyspark_dledger.rocketmq.lost.restorable import MAX_ENTRIES, restorable_entries

    lost = (
        LostEntry(each.offset - ENTRY_HEADER_SIZE, each.size + ENTRY_HEADER_SIZE, each.index, each.term, True)
        for log in logs
        for first, last in (verdict.lost_entries.ranges if verdict.lost_entries.entries <= MAX_ENTRIES else ())
        for each in entries_of_index(log.index_files.files, first, last, lambda _: None)
        if each.size is not None and each.index is not None and each.term is not None
    )
    counter = RangeCounter()
    for index in sorted({repair.index for repair in restorable_entries(logs, lost)}):
        counter.add(index, index)
    return counter.ranges_found()
