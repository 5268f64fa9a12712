"""Reads index units of many entries, and compares them with entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import INDEX_UNIT, INDEX_UNIT_SIZE
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, segment_at

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
            units = read_units(files, int(index[start]), stop - start)
            is_same[start:stop] = (units["index"] == index[start:stop]) & (units["pos"] == pos[start:stop])
            is_same[start:stop] &= units["size"] == size[start:stop]
            term[start:stop], magic[start:stop] = units["term"], units["magic"]
    return is_same, term, magic


def read_units(files: DLedgerIndex, first: int, count: int) -> npt.NDArray[Any]:
    """`count` index units from index `first` on, big-endian; zeros where none can be read."""
    wanted = count * INDEX_UNIT_SIZE
    data = bytearray(wanted)
    at = 0
    while first >= 0 and at < wanted:
        offset = first * INDEX_UNIT_SIZE + at
        file = segment_at(files.files, offset)
        if file is None:
            following = min((each.base for each in files.files if each.base > offset), default=offset + wanted)
            at += following - offset
            continue
        found = file.read(offset, min(wanted - at, file.end - offset))
        data[at : at + len(found)] = found
        at += min(wanted - at, file.end - offset)
    return decode_records(bytes(data), INDEX_UNIT)
