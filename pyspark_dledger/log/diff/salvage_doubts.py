"""The entries that may be damaged because nobody knew so when a salvage wrote a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.diff.copy_ranges import ALIKE, DIFFER, NO_RANGES, ONLY_COPY, RangeCounter, Ranges
from pyspark_dledger.log.io.salvage_fillers import SOURCE_POS, TIE, UNCONFIRMED, exported_doubts, unproven_entries
from pyspark_dledger.log.store_view import StoreView

_REASONS = {TIE: DIFFER, UNCONFIRMED: ONLY_COPY}


@dataclass(frozen=True)
class SalvageDoubts:
    """Entries of a salvaged store, and positions of its CommitLog, of which no check shows that their copy is right.

    ``source_entries`` and ``source_positions`` are those of the salvaged store that the CommitLog was exported from.
    """

    entries: Ranges = NO_RANGES
    positions: Ranges = NO_RANGES
    source_entries: Ranges = NO_RANGES
    source_positions: Ranges = NO_RANGES
    reasons: tuple[str, ...] = ()


def salvage_doubts(stores: Iterable[tuple[str, StoreView]]) -> dict[str, SalvageDoubts]:
    """The doubts that salvages left in stores, by their names; stores without any are left out."""
    found = {name: doubts_of(store) for name, store in stores}
    return {name: doubts for name, doubts in found.items() if doubts.reasons}


def doubts_of(store: StoreView) -> SalvageDoubts:
    """The doubts that a salvage left in a store."""
    own = [row for source in (DLEDGER, COMMITLOG) for row in unproven_entries(store.paths, source)]
    own = [row for row in own if row["pos"] < store.max_offset]
    entries, positions = _ranges_of(own, "pos")
    exported = exported_doubts(store.paths)
    reasons = {_REASONS.get(row.get("why", ""), ALIKE) for row in (*own, *exported)}
    return SalvageDoubts(entries, positions, *_ranges_of(exported, SOURCE_POS), tuple(sorted(reasons)))


def _ranges_of(rows: Iterable[dict[str, Any]], name: str) -> tuple[Ranges, Ranges]:
    """The indexes of DLedger's entries, and the positions of old messages, which are in the column `name`."""
    entries, positions = RangeCounter(), RangeCounter()
    for row in rows:
        pos, index, size = row[name], row.get("index"), row.get("size") or 1
        first, last = (pos, pos + size - 1) if index is None else (index, row.get("lastIndex", index))
        if all(isinstance(each, int) for each in (first, last, size)):  # the list is not damaged
            (positions if index is None else entries).add(first, last, size)
    return entries.ranges_found(), positions.ranges_found()
