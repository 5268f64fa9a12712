"""Reads the entries of one replica for a comparison, in slices with consecutive indexes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.facts import TIMES, ProblemCode
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.copies.control_rows import are_controls
from pyspark_dledger.log.copies.problems import TIMES_AND_POSITION, is_damage
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import check_rest
from pyspark_dledger.log.plan import Partition

HEADER = ("term", "magic", "channel", "chainCrc", "bodyCrc")
"""All fields of an entry's header that are compared, but its position. `size` follows from the body."""
POSITION_COLUMNS = ("index", "pos", "size", "term", "kind", "topic", "problemCode")
ENTRY_COLUMNS = ("index", "pos", "size", *HEADER, "kind", "topic", "problemCode", "entryBody")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ReplicaShare:
    """The read of one replica: `partition` has its entries; ``[begin, end]`` are the indexes of its log.

    ``committed`` is its committed index, -1 if not known. ``check_pos`` as in `Segment`. ``term_starts`` has the first
    index of each term and the term. ``index_folder`` and ``root`` are where its index units and ConsumeQueues are.
    ``fillers`` tells what a salvage wrote for entries that no source had.
    """

    partition: Partition
    begin: int
    end: int
    committed: int
    check_pos: bool
    term_starts: tuple[tuple[int, int], ...] = ()
    index_folder: Path | None = None
    root: Path | None = None
    fillers: SalvageFillers | None = None


@dataclass(frozen=True)
class EntrySlice:
    """Entries of one replica with consecutive indexes.

    The column ``position`` has their positions; there is a column ``pos`` only if the replica checks it. ``isWrong``:
    a checksum, the structure or a field that no version of Java sets shows damage. ``isFiller``: a salvage wrote it.
    ``isOdd``: it has a time outside the years 1 to 9999. ``isChecked``: a checksum confirms the body.
    """

    first: int
    columns: dict[str, Array]
    bodies: pa.Array

    def __len__(self) -> int:
        return len(self.bodies)

    def part(self, start: int, count: int, first: int) -> EntrySlice:
        """`count` entries from row `start`, which has the index `first`."""
        columns = {name: column[start : start + count] for name, column in self.columns.items()}
        return EntrySlice(first, columns, self.bodies.slice(start, count))

    def entry(self, row: int) -> bytes:
        """The bytes of an entry, with zeros for a position that the replica does not check."""
        values = {name: int(column[row]) for name, column in self.columns.items()}
        body = self.bodies[row].as_py()
        values.update(pos=values.get("pos", 0), bodySize=len(body))
        return record_struct(ENTRY_HEADER).pack(*(values[field.name] for field in ENTRY_HEADER)) + body


def terms_of(share: ReplicaShare, first: int, count: int) -> Array | None:
    """The terms of `count` entries of a replica from index `first`, by the terms of its log; None without entries."""
    if not share.term_starts:
        return None
    starts, terms = np.array(share.term_starts, np.int64).T
    found: Array = terms[np.maximum(np.searchsorted(starts, np.arange(first, first + count), "right") - 1, 0)]
    return found


class Cursor:
    """Reads the entries of one replica in slices."""

    def __init__(self, share: ReplicaShare) -> None:
        self._slices = _read_slices(share)
        self._slice: EntrySlice | None = None
        self._is_read = False

    def head(self) -> EntrySlice | None:
        """The next entries; None at the end."""
        if not self._is_read:
            self._slice, self._is_read = next(self._slices, None), True
        return self._slice

    def skip(self, count: int) -> None:
        assert self._slice is not None
        if count == len(self._slice):
            self._slice, self._is_read = None, False
        else:
            self._slice = self._slice.part(count, len(self._slice) - count, self._slice.first + count)


def _read_slices(share: ReplicaShare) -> Iterator[EntrySlice]:
    """The entries of a replica. One whose index does not match its position has a damaged header and is left out."""
    last: tuple[int, int] | None = None
    for batch in _batches(share.partition):
        columns = _columns(batch, share)
        index = columns["index"]
        ends = columns["pos"] + columns["size"]
        kept = _fitting(index, columns["pos"], ends, last)
        if not len(kept):
            continue
        last = int(index[kept[-1]]), int(ends[kept[-1]])
        columns["position"] = columns["pos"] if share.check_pos else columns.pop("pos")
        # Without bodies, only the length of this column is used.
        whole = EntrySlice(0, columns, batch.column("entryBody" if "entryBody" in batch.schema.names else "index"))
        # Adjacent rows with consecutive indexes are one slice.
        cuts = (np.flatnonzero((np.diff(index[kept]) != 1) | (np.diff(kept) != 1)) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, len(kept)], strict=True):
            row = int(kept[start])
            yield whole.part(row, end - start, int(index[row]))


def _batches(partition: Partition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Bodies stay compressed: their checksum is of the compressed bytes.

    Raises UnreadableError for a file that cannot be read from some byte on.
    """
    for part in partition.ranges:
        if isinstance(part, ScanRequest):
            reached = part.start
            for batch, _ in engine_of(partition.engine, part.segment).scan(part):
                if len(batch):
                    reached = batch["pos"][-1].as_py() + batch["size"][-1].as_py()
                yield batch
            check_rest(part.segment, reached, part.end)


def _columns(batch: pa.RecordBatch, share: ReplicaShare) -> dict[str, Array]:
    texts = ("kind", "topic", "problemCode", "entryBody")
    columns = {name: batch.column(name).to_numpy() for name in batch.schema.names if name not in texts}
    codes = batch.column("problemCode")
    columns["isWrong"] = is_damage(codes, TIMES if share.check_pos else TIMES_AND_POSITION)
    columns["isFiller"] = np.zeros(len(batch), bool)
    columns["isFiller"][share.fillers.numbers(batch) if share.fillers is not None else []] = True
    if "entryBody" in batch.schema.names:
        is_set = (columns["channel"] != 0) | (columns["chainCrc"] != 0)
        # No version of Java sets these fields.
        columns["isWrong"] |= is_set & ~are_controls(columns)
        columns["isOdd"] = is_damage(codes, {ProblemCode.MESSAGE_OFFSET})
        is_message = pc.equal(batch.column("kind"), "message").to_numpy(zero_copy_only=False)
        columns["isChecked"] = is_message | (columns["bodyCrc"] != 0) | (columns["size"] == ENTRY_HEADER_SIZE)
    return columns


def _fitting(index: Array, pos: Array, ends: Array, last: tuple[int, int] | None) -> Array:
    """The numbers of the rows of a batch that continue the log after the entry `last` (its index and end)."""
    rows = np.arange(len(index))
    if not len(index):
        return rows
    start = int(index[0])
    if (last is None or _has_room(*last, start, int(pos[0]))) and np.array_equal(index, rows + start):
        return rows
    start = 0
    kept: list[int] = []
    if last is None:
        # Trust the first entry that is followed by the next index, and those before it that match it.
        start = int(next(iter(np.flatnonzero(np.diff(index) == 1)), 0))
        kept = _fitting_before(index, pos, ends, start)
        last = int(index[start]) - 1, int(pos[start])
    values = zip(index[start:].tolist(), pos[start:].tolist(), ends[start:].tolist(), strict=True)
    for row, (here, position, end) in enumerate(values, start):
        if _has_room(last[0], last[1], here, position):
            kept.append(row)
            last = here, end
    return np.array(kept, rows.dtype)


def _fitting_before(index: Array, pos: Array, ends: Array, start: int) -> list[int]:
    """The numbers of the rows before `start` that match the row `start`."""
    kept: list[int] = []
    following = start
    for row in range(start - 1, -1, -1):
        if _has_room(int(index[row]), int(ends[row]), int(index[following]), int(pos[following])):
            kept.insert(0, row)
            following = row
    return kept


def _has_room(last: int, end: int, index: int, pos: int) -> bool:
    """Whether an entry `index` at `pos` can follow the entry `last` with end `end`; each missing one needs 48 bytes."""
    return last < index and index - last - 1 <= (pos - end) // ENTRY_HEADER_SIZE
