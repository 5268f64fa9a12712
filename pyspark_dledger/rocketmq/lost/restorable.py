"""Finds lost entries that a salvage restores: only the header is damaged, and an index unit has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pyspark_dledger.log.io.entry_reads import read_at, segment_at
from pyspark_dledger.log.salvage.lost_entries import LostEntry
from pyspark_dledger.log.salvage.repairs import Repair, repaired
from pyspark_dledger.log.store_view import StoreView

MAX_ENTRIES = 10_000


def restorable_entries(logs: Sequence[StoreView], lost: Iterable[LostEntry]) -> list[Repair]:
    """What a salvage restores of the first `MAX_ENTRIES` lost entries; sources are the numbers of the logs."""

    def read(number: int, start: int, end: int) -> bytes:
        segment = segment_at(logs[number].ledger_segments, start)
        return read_at(segment.path, start - segment.base, end - start) if segment is not None else b""

    return repaired(islice(sorted(set(lost)), MAX_ENTRIES), range(len(logs)), read)[1]
