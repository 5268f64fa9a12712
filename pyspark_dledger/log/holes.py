"""Missing files: the rows that stand for bytes that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_dledger.errors import MalformedError
from pyspark_dledger.format.layout import SEGMENT_NAME_DIGITS
from pyspark_dledger.format.spec import COMMITLOG, Filters, ScanRequest

if TYPE_CHECKING:
    import pyarrow as pa

# The size column has 32 bits; a longer hole is several rows.
_LONGEST_ROW = 2**31 - 1
_PIECE = 2**30


@dataclass(frozen=True)
class Hole:
    """Positions ``[start, end)`` that no file holds; `request` says what rows are wanted."""

    request: ScanRequest
    start: int
    end: int
    source: str

    @property
    def name(self) -> str:
        """The name of the first missing file."""
        return f"{self.start:0{SEGMENT_NAME_DIGITS}d}"

    @property
    def problem(self) -> str:
        return f"expected the segment {self.name} and {self.end - self.start} bytes up to {self.end}, found no file"


def hole_batches(hole: Hole) -> Iterator[pa.RecordBatch]:
    """The corrupt rows of a hole. Raises MalformedError with mode=FAILFAST."""
    import pyarrow as pa

    from pyspark_dledger.format.columns import arrow_schema

    request = hole.request
    rows = [row for row in _rows(hole) if _passes(row, request.filters)]
    if not rows or request.mode == "DROPMALFORMED":
        return
    if request.mode == "FAILFAST":
        raise MalformedError(f"{hole.problem}; mode=PERMISSIVE shows it as a row, DROPMALFORMED leaves it out")
    for start in range(0, len(rows), request.max_batch_rows):
        part = [
            {name: row.get(name) for name in request.columns} for row in rows[start : start + request.max_batch_rows]
        ]
        yield pa.RecordBatch.from_pylist(part, schema=arrow_schema(request.columns))


def _rows(hole: Hole) -> Iterator[dict[str, object]]:
    length = hole.end - hole.start
    piece = _PIECE if length > _LONGEST_ROW else length
    for pos in range(hole.start, hole.end, piece):
        yield {
            "kind": "corrupt",
            "source": hole.source,
            "pos": pos,
            "size": min(piece, hole.end - pos),
            "committed": True if hole.source == COMMITLOG else None,
            "problem": hole.problem,
            "segment": hole.name,
        }


def _passes(row: dict[str, object], filters: Filters) -> bool:
    """Whether a corrupt row passes: every condition on a column that is null in it fails."""
    needs_values = (filters.index, filters.term, filters.queue_id, filters.store_timestamp, filters.topic, filters.tags)
    if any(condition is not None for condition in needs_values):
        return False
    if filters.kind is not None and "corrupt" not in filters.kind:
        return False
    if filters.committed is not None and row["committed"] is not filters.committed:
        return False
    pos, where = row["pos"], filters.pos
    if where is None:
        return True
    assert isinstance(pos, int)
    return where.low <= pos <= where.high and (where.values is None or pos in where.values)
