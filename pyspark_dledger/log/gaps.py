"""Data that is missing: files, shown as corrupt rows, and what a stream did not read before it was deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_dledger.errors import DataLossError, MalformedError
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.layout import segment_name
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest

if TYPE_CHECKING:
    import pyarrow as pa


_LOG = logging.getLogger(__name__)


OF_STREAMS = "restore the log, start a new checkpointLocation"


def report_loss(problem: str, resumed: str, fail: bool, remedy: str = OF_STREAMS) -> None:
    """Report that data before an offset was lost: raise DataLossError if `fail`, else log a warning.

    `problem` has the log, expected and found; `resumed` says where reading continues and what is skipped.
    """
    if fail:
        raise DataLossError(f"{problem}: {remedy}, or set failOnDataLoss=false, and then {resumed}")
    _LOG.warning("%s (failOnDataLoss=false): %s", problem, resumed)


# The size column has 32 bits; a longer gap becomes several rows.
_MAX_ROW_SIZE = 2**31 - 1
_SPLIT_ROW_SIZE = 2**30


@dataclass(frozen=True)
class FileGap:
    """Positions ``[start, end)`` for which there is no file. `request` has the wanted columns and filters."""

    request: ScanRequest
    start: int
    end: int
    source: str

    @property
    def name(self) -> str:
        """The name of the first missing file."""
        return self.request.segment.name or segment_name(self.start)

    @property
    def fact(self) -> Fact:
        return Fact(ProblemCode.NO_FILE, self.end, self.end - self.start)

    @property
    def problem(self) -> str:
        return self.fact.sentence(self.name)


def gap_batches(gap: FileGap) -> Iterator[pa.RecordBatch]:
    """The corrupt rows of a gap. Raises MalformedError with mode=FAILFAST."""
    import pyarrow as pa

    from pyspark_dledger.format.columns import arrow_schema
    from pyspark_dledger.format.scan.row_values import conditions_of, meets

    request = gap.request
    conditions = conditions_of(request.filters)
    rows = [row for row in _rows(gap) if all(meets(row.get(column), condition) for column, condition in conditions)]
    if not rows or request.mode == "DROPMALFORMED":
        return
    if request.mode == "FAILFAST":
        raise MalformedError(f"{gap.problem}; mode=PERMISSIVE shows it as a row, DROPMALFORMED leaves it out")
    for start in range(0, len(rows), request.max_batch_rows):
        part = [
            {name: row.get(name) for name in request.columns} for row in rows[start : start + request.max_batch_rows]
        ]
        yield pa.RecordBatch.from_pylist(part, schema=arrow_schema(request.columns))


def _rows(gap: FileGap) -> Iterator[dict[str, object]]:
    length = gap.end - gap.start
    row_size = _SPLIT_ROW_SIZE if length > _MAX_ROW_SIZE else length
    for pos in range(gap.start, gap.end, row_size):
        yield {
            "kind": "corrupt",
            "source": gap.source,
            "pos": pos,
            "size": min(row_size, gap.end - pos),
            "committed": True if gap.source == COMMITLOG else None,
            **gap.fact.columns(gap.name),
            "segment": gap.name,
        }
