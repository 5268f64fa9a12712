"""Finds, many at a time, the entries that Java's scan accepts: complete, in order, and in agreement with the index.

While Java rewrites the index, there is no index to compare with; then the engine walks over the entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import IndexUnit, decode_records, encode_index_unit
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE
from pyspark_dledger.format.spec import ScanRequest, Segment
from pyspark_dledger.log.recovery.java_files import JavaFile, JavaFileList

_MAX_UNITS = 4096
# Bytes. Above this mean size of an entry, headers are read one by one.
_MAX_MEAN_SIZE = 4096
_ROWS = 2**18

_COLUMNS = ("magic", "size", "index", "term", "pos")

Records = npt.NDArray[Any]


class AgreedEntries:
    """Adjacent entries, numbered from 0."""

    def __init__(self, columns: dict[str, Records], count: int) -> None:
        self.count = count
        self._columns = columns

    def unit(self, number: int) -> bytes:
        """The index unit of an entry."""
        magic, size, index, term, pos = (int(self._columns[name][number]) for name in _COLUMNS)
        return encode_index_unit(IndexUnit(magic, pos, size, index, term))

    def term(self, number: int) -> int:
        return int(self._columns["term"][number])

    def end(self, number: int) -> int:
        """The position after an entry."""
        return int(self._columns["pos"][number] + self._columns["size"][number])


def continuing_entries(
    engine: Engine, segment: Segment, start: int, end: int, last: tuple[int, int], magics: tuple[int, ...]
) -> Iterator[AgreedEntries]:
    """The entries in ``[start, end)`` that continue index and term `last`, up to the first one that does not."""
    pos, (index, term) = start, last
    request = ScanRequest(segment, start, end, _COLUMNS, verify_crc=False, max_batch_rows=_ROWS)
    for batch, _ in engine.scan(request):
        # A corrupt row has no index; -2 never matches.
        columns = {name: batch.column(name).fill_null(-2).to_numpy().astype(np.int64) for name in _COLUMNS}
        starts = pos + np.concatenate(([0], np.cumsum(columns["size"])[:-1]))
        terms = np.concatenate(([term], columns["term"]))
        good = np.isin(columns["magic"], magics) & (columns["pos"] == starts) & (terms[1:] >= terms[:-1])
        good &= columns["index"] == np.arange(index + 1, index + 1 + len(starts))
        found = AgreedEntries(columns, _leading(good))
        if found.count:
            yield found
            index, term, pos = index + found.count, found.term(found.count - 1), found.end(found.count - 1)
        if found.count < len(good):
            return


def agreeing_entries(
    file: JavaFile,
    offset: int,
    index: JavaFileList,
    last_index: int,
    last_term: int,
    magics: tuple[int, ...],
    checks_pos: bool,
) -> tuple[int, int, int] | None:
    """Last index, last term and size in bytes of the valid entries from `offset`; None without any.

    They follow `last_index` and `last_term`. With `checks_pos`, their headers must have their position.
    """
    units = _following_units(file, offset, index, last_index, last_term, magics)
    if len(units) == 0:
        return None
    headers = _headers(file, units)
    same = headers["bodySize"].astype(np.int64) + ENTRY_HEADER_SIZE == units["size"]
    for name in ("magic", "size", "index", "term", *(["pos"] if checks_pos else [])):
        same &= headers[name] == units[name]
    count = _leading(same)
    if count == 0:
        return None
    last = units[count - 1]
    return int(last["index"]), int(last["term"]), int(last["pos"] + last["size"] - units[0]["pos"])


def _following_units(
    file: JavaFile, offset: int, index: JavaFileList, last_index: int, last_term: int, magics: tuple[int, ...]
) -> Records:
    """The index units after `last_index` whose entries are adjacent from `offset`, up to the end of the data file."""
    none = decode_records(b"", INDEX_UNIT)
    index_offset = (last_index + 1) * INDEX_UNIT_SIZE
    found = index.find(index_offset) if last_index >= 0 else None
    if found is None or not found.is_untouched or found.wrote != found.size or not file.is_untouched:
        return none
    at = index_offset - found.base
    units = decode_records(found.read_disk(at, min(_MAX_UNITS * INDEX_UNIT_SIZE, found.size - at)), INDEX_UNIT)
    sizes = units["size"].astype(np.int64)
    starts = file.base + offset + np.concatenate(([0], np.cumsum(np.maximum(sizes, 0))[:-1])) if len(units) else sizes
    terms = np.concatenate(([last_term], units["term"].astype(np.int64)))
    good = np.isin(units["magic"], magics) & (sizes >= ENTRY_HEADER_SIZE) & (units["pos"] == starts)
    good &= units["index"] == np.arange(last_index + 1, last_index + 1 + len(units))
    good &= (terms[1:] >= terms[:-1]) & (starts + sizes <= file.end)
    return units[: _leading(good)]


def _headers(file: JavaFile, units: Records) -> Records:
    """The entry headers at the positions of the units."""
    starts = units["pos"].astype(np.int64) - file.base
    end = int(starts[-1]) + int(units["size"][-1])
    if end - int(starts[0]) > _MAX_MEAN_SIZE * len(units):
        return decode_records(b"".join(file.read_disk(int(at), ENTRY_HEADER_SIZE) for at in starts), ENTRY_HEADER)
    data = np.frombuffer(file.read_disk(int(starts[0]), end - int(starts[0])), np.uint8)
    rows = (starts - starts[0])[:, None] + np.arange(ENTRY_HEADER_SIZE)
    return decode_records(data[rows].tobytes(), ENTRY_HEADER)


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """The number of true values before the first false one."""
    return int(np.argmin(good)) if not good.all() else len(good)
