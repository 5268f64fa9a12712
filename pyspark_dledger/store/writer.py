"""Writing bodies as entries, piece by piece, over as many data files as they take (``MmapFileList.preAppend``)."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.codec import encode_blank, record_struct
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.entries import Bodies
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT
from pyspark_dledger.store.base import AppendHook, Run
from pyspark_dledger.store.files import FileList

_UNIT = record_struct(INDEX_UNIT)
# Entries are encoded and written in pieces that stay in the processor's cache.
_PIECE = 1 << 20


class Written(NamedTuple):
    """Entries that stand in data files: where each file's begin, their index units, and where the last one ends."""

    runs: tuple[Run, ...]
    units: bytes | bytearray
    end_pos: int


def write_bodies(
    engine: Engine, data: FileList, bodies: Bodies, index: int, term: int, pos: int, hook: AppendHook | None
) -> Written:
    """Write all bodies as entries from an index and a position on; `hook` sees each before it is written.

    Each fits a data file. Raises ValueError for a block that is none, OSError where the disk fails: some may be there.
    """
    wrote = 0
    runs: list[Run] = []
    units: list[bytearray] = []
    size = data.file_size
    while wrote < bodies.count:
        left = size - pos % size
        encoded = engine.encode_entries(bodies, wrote, index, term, pos, min(left, _PIECE))
        if encoded.count == 0 and left > _PIECE:
            encoded = engine.encode_entries(bodies, wrote, index, term, pos, left)
        if encoded.count == 0:
            data.write(pos, encode_blank(left))
            pos += left
            continue
        if hook is not None:
            _call(hook, encoded.data, encoded.units)
        data.write(pos, encoded.data)
        if not runs or pos % size == 0:
            runs.append(Run(index, pos))
        units.append(encoded.units)
        index, wrote, pos = index + encoded.count, wrote + encoded.count, pos + len(encoded.data)
    return Written(tuple(runs), units[0] if len(units) == 1 else b"".join(units), pos)


def _call(hook: AppendHook, data: bytearray, units: bytearray) -> None:
    view = memoryview(data)
    start = 0
    for _, _, size, _, _ in _UNIT.iter_unpack(units):
        hook(view[start : start + size], ENTRY_HEADER_SIZE)
        start += size
