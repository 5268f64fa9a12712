"""The ``indexFile`` table: the units of RocketMQ's index of message keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.io import key_files
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, relative_file, table_schema, timestamps

_PART_UNITS = 2_000_000

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
class IndexFilePart:
    """The units ``[start, stop)`` of a file with ``slots`` hash slots."""

    path: str
    relative_path: str
    begin_timestamp: int
    slots: int
    start: int
    stop: int
    batch_rows: int


def plan(log: StoreView, options: ReadOptions) -> list[IndexFilePart]:
    """Parts of at most two million units. Raises StoreError if no root is known."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir with the folder {key_files.FOLDER}, found a log folder without "
            "its root: give the root's path"
        )
    parts = []
    for file in key_files.key_files(root):
        name, begin = relative_file(log.paths, str(file.path)), file.header.begin_timestamp
        for start in range(1, file.count, _PART_UNITS):
            stop = min(start + _PART_UNITS, file.count)
            parts.append(IndexFilePart(str(file.path), name, begin, file.slots, start, stop, options.max_batch_rows))
    return parts


def read(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """The units of a part, in the order of writing."""
    for start in range(part.start, part.stop, part.batch_rows):
        units = key_files.read_units(path_of(part.path), part.slots, start, min(start + part.batch_rows, part.stop))
        if not len(units):
            return
        stored = part.begin_timestamp + units["seconds"].astype(np.int64) * 1000
        columns = {
            "file": pa.repeat(pa.scalar(part.relative_path, pa.string()), len(units)),
            "position": pa.array(np.arange(start, start + len(units), dtype=np.int32)),
            "keyHash": pa.array(units["keyHash"].astype(np.int32)),
            "commitLogOffset": pa.array(units["commitLogOffset"].astype(np.int64)),
            "storeTimestamp": timestamps(stored),
            "previous": pa.array(units["previous"].astype(np.int32)),
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


TABLE = Table("indexFile", "one row per unit of RocketMQ's index of keys", COLUMNS, plan, read)
