"""Reads index units of many entries, and compares them with entries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyspark_dledger.log.io.entry_reads import DLedgerIndex

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def units_agree(files: DLedgerIndex, index: Longs, pos: Longs, size: Longs) -> tuple[Bools, Longs, Longs]:
    """Whether each entry's index unit has its extent, and the term and the magic in the unit."""
    is_same, term, magic = (
        np.zeros(len(index), np.bool_),
        np.zeros(len(index), np.int64),
        np.zeros(len(index), np.int64),
    )
    cuts = (np.flatnonzero(np.diff(index) != 1) + 1).tolist()
    for start, stop in zip([0, *cuts], [*cuts, len(index)], strict=True):
        if start < stop:
            units = files.read(int(index[start]), stop - start)
            is_same[start:stop] = (units["index"] == index[start:stop]) & (units["pos"] == pos[start:stop])
            is_same[start:stop] &= units["size"] == size[start:stop]
            term[start:stop], magic[start:stop] = units["term"], units["magic"]
    return is_same, term, magic
