"""The ``indexFile`` table: RocketMQ's index of keys, ``index/<time>``.

A file is a header, hash slots of 4 bytes and units of 20 bytes. A slot holds the number of the newest unit of its
hashes, a unit the number of the one before it. How many slots and units there are is a setting of the broker that no
file holds. Sources: RocketMQ 5.3.3 ``IndexFile``, ``IndexHeader``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_records, record_struct
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.layout import (
    INDEX_FILE_HEADER,
    INDEX_FILE_HEADER_SIZE,
    INDEX_FILE_SLOT_SIZE,
    INDEX_FILE_UNIT,
    INDEX_FILE_UNIT_SIZE,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.store_paths import file_size
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, relative_file, table_schema, timestamps

FOLDER = "index"

_HEADER = record_struct(INDEX_FILE_HEADER)
_NAME = re.compile(r"\d{17}")  # yyyyMMddHHmmssSSS
# RocketMQ's default is four units to a slot (5,000,000 slots); a file of other proportions is searched.
_UNITS_PER_SLOT = 4
_PART_UNITS = 2_000_000
_CHUNK_UNITS = 64 * 1024

COLUMNS = (
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("position", pa.int32(), "number in the file, from 1"),
    TableColumn("keyHash", pa.int32(), "absolute Java hash of `topic#key`"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
    TableColumn("storeTimestamp", TIMESTAMP, "whole seconds after the file's begin"),
    TableColumn("previous", pa.int32(), "unit before it in the hash slot; 0 for none"),
)
_SCHEMA = table_schema(COLUMNS)


@dataclass(frozen=True)
class IndexHeader:
    """The first 40 bytes of a file; times in milliseconds since 1970. ``index_count`` is the next unit's number."""

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int


@dataclass(frozen=True)
class IndexFilePart:
    """The units ``[start, stop)`` of a file, which has ``slots`` hash slots."""

    path: str
    shown: str
    begin_timestamp: int
    slots: int
    start: int
    stop: int
    batch_rows: int


def index_files(root: Path) -> list[Path]:
    """The index files of a broker, oldest first."""
    try:
        return sorted(path for path in (root / FOLDER).iterdir() if _NAME.fullmatch(path.name) and path.is_file())
    except OSError:
        return []


def plan(log: StoreView, options: ReadOptions) -> list[IndexFilePart]:
    """Parts of at most two million units. Raises StoreError where no root is known."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir, whose index/ lies beside the log, found a folder alone: give "
            "the root's path"
        )
    parts = []
    for path in index_files(root):
        header, slots = read_header(path), hash_slots(path)
        if header is None or slots is None:
            continue
        stop = min(max(header.index_count, 1), _capacity(file_size(path) or 0, slots))
        shown = relative_file(log.paths, str(path))
        parts += [
            IndexFilePart(
                str(path),
                shown,
                header.begin_timestamp,
                slots,
                start,
                min(start + _PART_UNITS, stop),
                options.max_batch_rows,
            )
            for start in range(1, stop, _PART_UNITS)
        ]
    return parts


def read_header(path: Path) -> IndexHeader | None:
    data = read_at(str(path), 0, INDEX_FILE_HEADER_SIZE)
    return IndexHeader(*_HEADER.unpack(data)) if len(data) == INDEX_FILE_HEADER_SIZE else None


def hash_slots(path: Path) -> int | None:
    """How many hash slots a file has, found by where its first and last unit stand; None where nothing fits."""
    header, size = read_header(path), file_size(path)
    if header is None or size is None or size <= INDEX_FILE_HEADER_SIZE:
        return None
    usual = (size - INDEX_FILE_HEADER_SIZE) // (INDEX_FILE_SLOT_SIZE + _UNITS_PER_SLOT * INDEX_FILE_UNIT_SIZE)
    if _fits(path, header, size, usual):
        return usual
    # Units lie in steps of 20 bytes, wherever the slots end.
    first = INDEX_FILE_HEADER_SIZE + (size - INDEX_FILE_HEADER_SIZE) % INDEX_FILE_UNIT_SIZE
    for start in range(first, size, _CHUNK_UNITS * INDEX_FILE_UNIT_SIZE):
        cells = decode_records(read_at(str(path), start, (_CHUNK_UNITS + 1) * INDEX_FILE_UNIT_SIZE), INDEX_FILE_UNIT)
        is_first = (cells["commitLogOffset"][1:] == header.begin_phy_offset) & (cells["keyHash"][1:] != 0)
        for number in np.flatnonzero(is_first).tolist():
            slots = (start + number * INDEX_FILE_UNIT_SIZE - INDEX_FILE_HEADER_SIZE) // INDEX_FILE_SLOT_SIZE
            if not cells[number : number + 1].view(np.uint8).any() and _fits(path, header, size, slots):
                return slots
    return (
        usual
        if (size - INDEX_FILE_HEADER_SIZE) % (INDEX_FILE_SLOT_SIZE + _UNITS_PER_SLOT * INDEX_FILE_UNIT_SIZE) == 0
        else None
    )


def _fits(path: Path, header: IndexHeader, size: int, slots: int) -> bool:
    """Whether with so many slots the first and the last unit are what the header and the last one's slot say."""
    last = header.index_count - 1
    if (
        slots < 1
        or (size - INDEX_FILE_HEADER_SIZE - slots * INDEX_FILE_SLOT_SIZE) % INDEX_FILE_UNIT_SIZE
        or not 1 <= last < _capacity(size, slots)
    ):
        return False
    units = [_units(path, slots, number, number + 1) for number in (1, last)]
    if not all(map(len, units)):
        return False
    slot = INDEX_FILE_HEADER_SIZE + int(units[1]["keyHash"][0]) % slots * INDEX_FILE_SLOT_SIZE
    return (
        int(units[0]["commitLogOffset"][0]) == header.begin_phy_offset
        and int(units[1]["commitLogOffset"][0]) == header.end_phy_offset
        and int.from_bytes(read_at(str(path), slot, INDEX_FILE_SLOT_SIZE), "big", signed=True) == last
    )


def _capacity(size: int, slots: int) -> int:
    return (size - INDEX_FILE_HEADER_SIZE - slots * INDEX_FILE_SLOT_SIZE) // INDEX_FILE_UNIT_SIZE


def _units(path: Path, slots: int, start: int, stop: int) -> npt.NDArray[Any]:
    at = INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE + start * INDEX_FILE_UNIT_SIZE
    return decode_records(read_at(str(path), at, (stop - start) * INDEX_FILE_UNIT_SIZE), INDEX_FILE_UNIT)


def read(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """The units of a part, in the order in which they were written."""
    for start in range(part.start, part.stop, part.batch_rows):
        units = _units(path_of(part.path), part.slots, start, min(start + part.batch_rows, part.stop))
        if not len(units):
            return
        stored = part.begin_timestamp + units["seconds"].astype(np.int64) * 1000
        columns = {
            "file": pa.repeat(pa.scalar(part.shown, pa.string()), len(units)),
            "position": pa.array(np.arange(start, start + len(units), dtype=np.int32)),
            "keyHash": pa.array(units["keyHash"].astype(np.int32)),
            "commitLogOffset": pa.array(units["commitLogOffset"].astype(np.int64)),
            "storeTimestamp": timestamps(stored),
            "previous": pa.array(units["previous"].astype(np.int32)),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


TABLE = Table("indexFile", "one row per unit of RocketMQ's index of keys", COLUMNS, plan, read)
