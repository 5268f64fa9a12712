"""The native engine behind the same calls as `python_engine`. Importing it fails where the extension is not built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyspark_dledger._native as _native
from pyspark_dledger.format.entries import Bodies, Buffer, Checked, Encoded
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
find_torn = _native.find_torn


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


def pack_bodies(bodies: Sequence[Buffer]) -> Bodies:
    """Bodies as one block."""
    return Bodies(*_native.pack_bodies(bodies))


def unpack_bodies(bodies: Bodies) -> list[bytes]:
    """The bodies of a block."""
    return _native.unpack_bodies(bodies.count, bodies.block)


def encode_entries(bodies: Bodies, first: int, index: int, term: int, pos: int, space: int) -> Encoded:
    """Bodies from ordinal ``first`` on as consecutive entries, as many as fit into ``space`` bytes."""
    return Encoded(*_native.encode_entries(bodies.count, bodies.block, first, index, term, pos, space))


def check_entries(data: Buffer, index: int, pos: int, least_term: int, most_term: int) -> Checked:
    """What consecutive whole entries are, which begin with ``index`` at ``pos``; ValueError where they are not."""
    return Checked(*_native.check_entries(data, index, pos, least_term, most_term))
