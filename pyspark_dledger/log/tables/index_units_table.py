"""The ``indexUnits`` table: the units of a node's DLedger index, each compared with its entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.codec import decode_blank, decode_records
from pyspark_dledger.format.layout import ENTRY_MAGICS, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_NOOP, MAGIC_NORMAL
from pyspark_dledger.format.spec import Filters, IntFilter, Segment
from pyspark_dledger.log.io.entry_reads import entry_at, read_existing, segment_at
from pyspark_dledger.log.io.files import open_file, unreadable
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, relative_file, table_schema

# 262,144 units; the same number of entries is read.
_PART_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
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
    """Bytes ``[start, end)`` of one index file, in whole units."""

    path: str
    options: ReadOptions
    file: Segment
    start: int
    end: int


def plan(store: StoreView, options: ReadOptions) -> list[IndexPart]:
    """Parts that cover the written bytes of the index; holes are not read."""
    parts: list[IndexPart] = []
    for file in store.index_files.files:
        for start, end in _extents(file):
            first = start - start % INDEX_UNIT_SIZE
            last = min(-(-end // INDEX_UNIT_SIZE) * INDEX_UNIT_SIZE, file.size)
            if parts and parts[-1].file == file:
                first = max(first, parts[-1].end)
            parts += [
                IndexPart(store.path, options, file, at, min(at + _PART_BYTES, last))
                for at in range(first, last, _PART_BYTES)
            ]
    return parts


def _extents(file: Segment) -> list[tuple[int, int]]:
    """The parts of a file that are not holes, in bytes from its start."""
    try:
        opened = open_file(file.path)
    except OSError as error:
        if problem := unreadable(file.path, error):
            raise problem from None
        return []
    with opened:
        return list(opened.extents(0, min(file.size, opened.size())))


def read(part: IndexPart) -> Iterator[pa.RecordBatch]:
    """The written units of a part."""
    store = StoreView(part.path, part.options)
    for start in range(part.start, part.end, _CHUNK_BYTES):
        positions, units = _written(part.file, start, min(start + _CHUNK_BYTES, part.end))
        if len(units):
            problems = _problems(store, part.file, positions, units)
            for at in range(0, len(units), part.options.max_batch_rows):
                rows = slice(at, at + part.options.max_batch_rows)
                yield _batch(store, part.file, positions[rows], units[rows], problems[rows])


def _written(file: Segment, start: int, end: int) -> tuple[npt.NDArray[np.int64], Units]:
    """The units in ``[start, end)`` of a file that are not zeros, and their offsets in the file."""
    data = read_existing(file.path, start, end - start)
    whole = len(data) - len(data) % INDEX_UNIT_SIZE
    words = np.frombuffer(data, np.uint64, count=whole // 8).reshape(-1, INDEX_UNIT_SIZE // 8)
    written: npt.NDArray[np.bool_] = np.asarray(words.any(axis=1))
    if start == 0 and whole and decode_blank(data) is not None:
        written[0] = False  # 0.4.0 writes a blank in place of the units before a snapshot
    numbers = np.flatnonzero(written)
    return start + numbers * INDEX_UNIT_SIZE, decode_records(data, INDEX_UNIT)[numbers]


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
