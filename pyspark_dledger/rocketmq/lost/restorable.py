"""Finds lost entries that a salvage restores: only the header is damaged, and an index unit has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.log.io.entry_reads import entry_at, read_at, segment_at
from pyspark_dledger.log.salvage.lost_entries import LostEntry
from pyspark_dledger.log.salvage.repairs import Repair, repaired
from pyspark_dledger.log.store_view import StoreView

MAX_ENTRIES = 10_000


def restorable_entries(logs: Sequence[StoreView], lost: Iterable[LostEntry]) -> list[Repair]:
    """What a salvage restores of the first `MAX_ENTRIES` lost entries; sources are the numbers of the logs."""
    wanted = {each.pos + ENTRY_HEADER_SIZE: each for each in islice(sorted(set(lost)), MAX_ENTRIES)}

    def read(number: int, start: int, end: int) -> bytes:
        segment, expected = segment_at(logs[number].ledger_segments, start), wanted[start]
        header = entry_at(segment, expected.pos) if segment is not None else None
        # With an intact header, it is of a log that diverged.
        is_intact = header is not None and header.index == expected.index and header.term <= expected.term
        return b"" if segment is None or is_intact else read_at(segment.path, start - segment.base, end - start)

    return repaired(wanted.values(), range(len(logs)), read)[1]
