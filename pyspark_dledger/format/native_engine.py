"""The native engine behind the same calls as `python_engine`. Importing it fails where the extension is not built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyspark_dledger._native as _native
from pyspark_dledger.format.layout import COMPRESSIONS
from pyspark_dledger.format.spec import (
    Compressed,
    Extent,
    LogEnd,
    Problem,
    ScanRequest,
    Segment,
    Survey,
    SurveyRequest,
    TermRun,
)

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "native"

crc32 = _native.crc32
split = _native.split
seek = _native.seek


def scan(request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
    """Raw batches of the requested rows, and the compressed bodies that were left out of each."""
    import pyarrow as pa  # the other calls need no Arrow

    native = _native.Scan(request)
    while (batch := native.next()) is not None:
        bodies = [
            Compressed(row, COMPRESSIONS.get(kind, f"unknown {kind}"), stored, pos)
            for row, pos, kind, stored in batch.compressed
        ]
        yield pa.record_batch(batch), bodies


def log_end(segment: Segment, start: int, search_all: bool) -> LogEnd:
    """Where the log ends inside the segment, looked for from the entry at ``start`` on."""
    return LogEnd(*_native.log_end(segment, start, search_all))


def term_runs(segment: Segment, start: int, end: int) -> list[TermRun]:
    """Runs of consecutive entries of one term in ``[start, end)``."""
    return [TermRun(*run) for run in _native.term_runs(segment, start, end)]


def survey(request: SurveyRequest) -> Survey:
    """What every byte of a segment is, and what is wrong with it."""
    found = Survey(*_native.survey(request))
    extents = [Extent(*extent) for extent in found.extents]
    return found._replace(extents=extents, problems=[Problem(*problem) for problem in found.problems])
