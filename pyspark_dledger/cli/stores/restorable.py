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
    from pyspark_dledger.log.diff.ranges import RangeCounter
    from pyspark_dledger.rocketmq.lost.restorable import MAX_ENTRIES, restorable_entries

    lost = verdict.lost_entries
    counter = RangeCounter()
    repairs = restorable_entries(logs, lost.ranges) if lost.entries <= MAX_ENTRIES else []
    for index in sorted({repair.index for repair in repairs}):
        counter.add(index, index)
    return counter.ranges_found()
