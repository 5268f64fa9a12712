"""Writing bodies as entries, piece by piece, over as many data files as they take (``MmapFileList.preAppend``)."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.codec import encode_blank
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.store.dledger_store import AppendHook, EntryRun
from pyspark_dledger.store.files.mapped_files import MappedFileList

# Entries are encoded and written in pieces that stay in the processor's cache. Each piece looks at the lengths of the
# whole block again, so that pieces grow with the count of bodies: all of them together then take linear time.
_PIECE = 1 << 20
_PIECE_PER_BODY = 8


class WrittenEntries(NamedTuple):
    """Entries that stand in data files: where each file's begin, their index units, and where the last one ends.

    ``is_doubtful`` where one of them looks like one that a loss of power tore (``find_torn``), if that was asked.
    """

    runs: tuple[EntryRun, ...]
    units: bytes | bytearray
    end_pos: int
    is_doubtful: bool


def write_bodies(
    engine: Engine,
    data: MappedFileList,
    bodies: Bodies,
    index: int,
    term: int,
    pos: int,
    hook: AppendHook | None,
    asks_doubt: bool,
) -> WrittenEntries:
    """Write all bodies as entries from an index and a position on; `hook` sees all before they are written.

    Each fits a data file. Raises ValueError for a block that is none, OSError where the disk fails: some may be there.
    """
    wrote = 0
    is_doubtful = False
    runs: list[EntryRun] = []
    units: list[bytearray] = []
    size, piece = data.file_size, max(_PIECE, _PIECE_PER_BODY * bodies.count)
    while wrote < bodies.count:
        left = size - pos % size
        encoded = engine.encode_entries(bodies, wrote, index, term, pos, min(left, piece))
        if encoded.count == 0 and left > piece:
            encoded = engine.encode_entries(bodies, wrote, index, term, pos, left)
        if encoded.count == 0:
            data.write(pos, encode_blank(left))
            pos += left
            continue
        if hook is not None:
            hook(encoded.data, encoded.units)
        if asks_doubt and not is_doubtful:
            is_doubtful = engine.find_torn(encoded.data, pos % size) is not None
        data.write(pos, encoded.data)
        if not runs or pos % size == 0:
            runs.append(EntryRun(index, pos))
        units.append(encoded.units)
        index, wrote, pos = index + encoded.count, wrote + encoded.count, pos + len(encoded.data)
    return WrittenEntries(tuple(runs), units[0] if len(units) == 1 else b"".join(units), pos, is_doubtful)
