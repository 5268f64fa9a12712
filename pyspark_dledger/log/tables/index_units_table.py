"""The ``indexUnits`` table: the units of a node's DLedger index, each compared with its entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.layout import ENTRY_MAGICS, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_NOOP, MAGIC_NORMAL
from pyspark_dledger.format.spec import Filters, IntFilter, Segment
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import raise_error
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, relative_file, table_schema

# The same number of entries is read.
_PART_UNITS = 256 * 1024
_ENTRY_COLUMNS = ("pos", "index", "term", "size", "magic")

Units = npt.NDArray[Any]

COLUMNS = (
    TableColumn("node", pa.string(), "id of the node; null for a plain CommitLog"),
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("position", pa.int64(), "byte in the file"),
    TableColumn("index", pa.int64(), "of its entry"),
    TableColumn("magic", pa.int32(), "of its entry"),
    TableColumn("pos", pa.int64(), "of its entry"),
    TableColumn("size", pa.int32(), "of its entry"),
    TableColumn("term", pa.int64(), "of its entry"),
    TableColumn(
        "problem",
        pa.string(),
        "what was expected and found; null if sound",
    ),
)
_SCHEMA = table_schema(COLUMNS)


@dataclass(frozen=True)
class IndexPart:
    """The units of the indexes ``[first, stop)``."""

    path: str
    options: ReadOptions
    first: int
    stop: int


def plan(store: StoreView, options: ReadOptions) -> list[IndexPart]:
    """Parts that cover the written bytes of the index; holes are not read."""
    parts: list[IndexPart] = []
    for _, first, stop in store.index_files.extents():
        first = max(first, parts[-1].stop if parts else 0)
        parts += [
            IndexPart(store.path, options, at, min(at + _PART_UNITS, stop)) for at in range(first, stop, _PART_UNITS)
        ]
    return parts


def read(part: IndexPart) -> Iterator[pa.RecordBatch]:
    """The written units of a part."""
    store = StoreView(part.path, part.options)
    for block in store.index_files.blocks(part.first, part.stop, raise_error):
        numbers = np.flatnonzero(block.is_written)
        units = block.units[numbers]
        positions = (block.first + numbers) * INDEX_UNIT_SIZE - block.file.base
        if len(units):
            problems = _problems(store, block.file, positions, units)
            for at in range(0, len(units), part.options.max_batch_rows):
                rows = slice(at, at + part.options.max_batch_rows)
                yield _batch(store, block.file, positions[rows], units[rows], problems[rows])


def _batch(
    store: StoreView, file: Segment, positions: npt.NDArray[np.int64], units: Units, problems: list[str | None]
) -> pa.RecordBatch:
    columns = {
        "node": pa.array([store.paths.node] * len(units), pa.string()),
        "file": pa.array([relative_file(store.paths, file.path)] * len(units), pa.string()),
        "position": pa.array(positions),
        "problem": pa.array(problems, pa.string()),
    }
    for field in INDEX_UNIT:
        values = units[field.name]
        columns[field.name] = pa.array(values.astype(values.dtype.newbyteorder("=")))
    return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


def _problems(store: StoreView, file: Segment, positions: npt.NDArray[np.int64], units: Units) -> list[str | None]:
    """The problem of each unit: its index, its entry, or its position after the end of the log."""
    expected = (file.base + positions) // INDEX_UNIT_SIZE
    begin, end = store.begin_index, store.end.last_index
    found = _entries(store, int(expected[0]), int(expected[-1]))
    rows = np.searchsorted(found["pos"], units["pos"])
    rows[rows == len(found["pos"])] = 0
    agrees = (units["index"] == expected) & (expected <= end) & (len(found["pos"]) > 0)
    if len(found["pos"]):
        for name in ("pos", "index", "term", "size"):
            agrees = agrees & (found[name][rows] == units[name])
        # A leader of 0.4.0 writes the index unit of a NOOP with magic 1.
        is_noop = (found["magic"][rows] == MAGIC_NOOP) & (units["magic"] == MAGIC_NORMAL)
        agrees = agrees & ((found["magic"][rows] == units["magic"]) | is_noop)
    problems: list[str | None] = [None] * len(units)
    for number in np.flatnonzero(np.logical_not(agrees)).tolist():
        unit = {field.name: int(units[number][field.name]) for field in INDEX_UNIT}
        problems[number] = _problem(store, unit, int(expected[number]), begin, end)
    return problems


def _entries(store: StoreView, first: int, last: int) -> dict[str, npt.NDArray[np.int64]]:
    """The columns of the log's entries with the indexes ``[first, last]``, by position."""
    # The committed index is not used here; the checkpoint is the cheapest bound.
    options = ReadOptions(committed_bound="checkpoint")
    filters = Filters(index=IntFilter(first, last))
    batches = []
    if store.end.last_index >= first:
        for partition in plan_read(store, _ENTRY_COLUMNS, options, filters):
            batches += [batch for batch in read_partition(partition) if batch.num_rows]
    found = {
        name: np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in batches] or [np.empty(0)])
        for name in _ENTRY_COLUMNS
    }
    return {name: values.astype(np.int64) for name, values in found.items()}


def _problem(store: StoreView, unit: dict[str, int], expected: int, begin: int, end: int) -> str | None:
    """The problem of one unit that does not agree with an entry; None if the entry has expired."""
    if unit["magic"] not in ENTRY_MAGICS:
        return f"expected magic 1, 2 or 3, found {unit['magic']}"
    if unit["index"] != expected:
        return f"expected index {expected} at {expected * INDEX_UNIT_SIZE}, found {unit['index']}"
    if expected > end:
        return f"expected no unit after index {end}, the end of the log, found index {expected}"
    if expected < begin:
        return None  # its file has expired
    segment = segment_at(store.ledger_segments, unit["pos"])
    header = entry_at(segment, unit["pos"]) if segment is not None else None
    if header is None:
        return f"expected an entry at {unit['pos']}, found none"
    for name in ("index", "term", "size", "magic"):
        if getattr(header, name) != unit[name]:
            return f"expected {name} {getattr(header, name)} of the entry at {unit['pos']}, found {unit[name]}"
    return None


TABLE = Table("indexUnits", "one row per written unit of the DLedger index", COLUMNS, plan, read)
