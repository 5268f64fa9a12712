"""Writes bodies as entries, in chunks, over as many data files as needed (``MmapFileList.preAppend``)."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.codec import encode_blank
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.store.dledger_store import AppendHook, EntryRun
from pyspark_dledger.store.files.mapped_files import MappedFileList

# Chunks of this size stay in the CPU cache. Each chunk scans the lengths of the whole block again, so chunks grow with
# the number of bodies to keep the total time linear.
_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_PER_BODY = 8


class WrittenEntries(NamedTuple):
    """Entries written to data files: their runs, their index units, and the end of the last entry.

    ``looks_torn``: an entry looks as if a power loss tore it (``find_torn``). Set only if the caller asked for it.
    """

    runs: tuple[EntryRun, ...]
    units: bytes | bytearray
    end_pos: int
    looks_torn: bool


def write_bodies(
    engine: Engine,
    data: MappedFileList,
    bodies: Bodies,
    index: int,
    term: int,
    pos: int,
    hook: AppendHook | None,
    checks_torn: bool,
) -> WrittenEntries:
    """Write all bodies as entries from `index` and `pos` on; `hook` is called before each write.

    Each body fits a data file. Raises ValueError for a malformed block. Raises OSError if the disk fails; some entries
    may be written then.
    """
    written = 0
    looks_torn = False
    runs: list[EntryRun] = []
    units: list[bytearray] = []
    size, chunk = data.file_size, max(_CHUNK_BYTES, _CHUNK_BYTES_PER_BODY * bodies.count)
    while written < bodies.count:
        left = size - pos % size
        encoded = engine.encode_entries(bodies, written, index, term, pos, min(left, chunk))
        if encoded.count == 0 and left > chunk:
            encoded = engine.encode_entries(bodies, written, index, term, pos, left)
        if encoded.count == 0:
            data.write(pos, encode_blank(left))
            pos += left
            continue
        if hook is not None:
            hook(encoded.data, encoded.units)
        if checks_torn and not looks_torn:
            looks_torn = engine.find_torn(encoded.data, pos % size) is not None
        data.write(pos, encoded.data)
        if not runs or pos % size == 0:
            runs.append(EntryRun(index, pos))
        units.append(encoded.units)
        index, written, pos = index + encoded.count, written + encoded.count, pos + len(encoded.data)
    return WrittenEntries(tuple(runs), units[0] if len(units) == 1 else b"".join(units), pos, looks_torn)
