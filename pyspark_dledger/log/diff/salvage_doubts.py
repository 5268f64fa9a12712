"""The entries that may be damaged because nobody knew so when a salvage wrote a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.diff.copy_ranges import ALIKE, DIFFER, NO_RANGES, ONLY_COPY, RangeCounter, Ranges
from pyspark_dledger.log.io.salvage_fillers import TIE, UNCONFIRMED, unproven_entries
from pyspark_dledger.log.store_view import StoreView

_REASONS = {TIE: DIFFER, UNCONFIRMED: ONLY_COPY}


@dataclass(frozen=True)
class SalvageDoubts:
    """Entries of a salvaged store, and positions of its CommitLog, of which no check shows that their copy is right."""

    entries: Ranges = NO_RANGES
    positions: Ranges = NO_RANGES
    reasons: tuple[str, ...] = ()


def salvage_doubts(stores: Iterable[tuple[str, StoreView]]) -> dict[str, SalvageDoubts]:
    """The doubts that salvages left in stores, by their names; stores without any are left out."""
    found = {name: _doubts_of(store) for name, store in stores}
    return {name: doubts for name, doubts in found.items() if doubts.reasons}


def _doubts_of(store: StoreView) -> SalvageDoubts:
    entries, positions, reasons = RangeCounter(), RangeCounter(), set()
    for source, counter in ((DLEDGER, entries), (COMMITLOG, positions)):
        for row in unproven_entries(store.paths, source):
            if row["pos"] >= store.max_offset:
                continue
            pos, index, size = row["pos"], row.get("index"), row.get("size") or 1
            first, last = (pos, pos + size - 1) if index is None else (index, row.get("lastIndex", index))
            if all(isinstance(each, int) for each in (first, last, size)):  # the list is not damaged
                counter.add(first, last, size)
                reasons.add(_REASONS.get(row.get("why", ""), ALIKE))
    return SalvageDoubts(entries.ranges_found(), positions.ranges_found(), tuple(sorted(reasons)))
