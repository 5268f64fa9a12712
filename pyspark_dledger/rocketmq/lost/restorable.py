"""Finds lost entries that a salvage restores: only the header is damaged, and an index unit has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.salvage.lost_entries import LostEntry
from pyspark_dledger.log.salvage.repairs import Repair, has_damaged_header, repaired
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.known_units import entries_of_index

MAX_ENTRIES = 10_000


def restorable_entries(logs: Sequence[StoreView], ranges: Iterable[tuple[int, int]]) -> list[Repair]:
    """What a salvage restores of the first `MAX_ENTRIES` entries that `ranges` of indexes lose.

    The sources of a repair are the numbers of the logs.
    """
    lost = set(islice(_known_entries(logs, ranges), MAX_ENTRIES))
    wanted = {each.pos + ENTRY_HEADER_SIZE: each for each in sorted(lost)}

    def read(number: int, start: int, end: int) -> bytes:
        segment, expected = segment_at(logs[number].ledger_segments, start), wanted[start]
        header = entry_at(segment, expected.pos) if segment is not None else None
        if segment is None or (header is not None and not has_damaged_header(expected, header.index, header.term)):
            return b""
        return segment.read(start, end - start)

    return repaired(wanted.values(), range(len(logs)), read)[1]


def _known_entries(logs: Sequence[StoreView], ranges: Iterable[tuple[int, int]]) -> Iterator[LostEntry]:
    for first, last in ranges:
        for log in logs:
            for each in entries_of_index(log.index_files, first, last, ignore_error):
                if each.size is not None and each.index is not None and each.term is not None:
                    size = each.size + ENTRY_HEADER_SIZE
                    yield LostEntry(each.offset - ENTRY_HEADER_SIZE, size, each.index, each.term, True)
