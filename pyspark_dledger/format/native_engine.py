"""The native engine: the calls of `engine.Engine` in C++. The import fails if the extension is not built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyspark_dledger._native as _native
from pyspark_dledger.format.encode.encoded import (
    Bodies,
    CheckedEntries,
    EncodedEntries,
    NumberedPuts,
    Ordinals,
    PutIds,
    Puts,
    PutSettings,
    check_stamps,
)
from pyspark_dledger.format.facts import PROBLEM_CODES, Fact
from pyspark_dledger.format.scan.segment_file import read_exactly
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
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pyspark_dledger.format.dispatched_rows import DispatchedRows
    from pyspark_dledger.format.json_text import BytesForm
    from pyspark_dledger.format.message import CopiedMessages, Longs


NAME = "native"
_Result = TypeVar("_Result")

# A piece of this size stays in the processor's cache.
_JSON_PIECE_BYTES = 512 * 1024

_native.set_catalogue([code.finding for code in PROBLEM_CODES], [code.sentence for code in PROBLEM_CODES])

crc32 = _native.crc32
split = _native.split
seek = _native.seek
find_torn = _native.find_torn
find_damaged = _native.find_damaged
find_wrong_body = _native.find_wrong_body
write_body_crcs = _native.write_body_crcs
patch_physical_offsets = _native.patch_physical_offsets
new_ordinals = _native.Ordinals
new_identity_table = _native.IdentityTable
new_identity_filter = _native.IdentityFilter


def _made(kind: Callable[..., _Result], call: Callable[..., tuple[Any, ...]]) -> Callable[..., _Result]:
    """A call whose result is a named tuple."""
    return lambda *values: kind(*call(*values))


log_end = _made(LogEnd, _native.log_end)
pack_bodies = _made(Bodies, _native.pack_bodies)
check_entries = _made(CheckedEntries, _native.check_entries)


class MappedBytes:
    """A `FileBytes` without copies. Once a byte could not be read, all later ones of ``view`` are zeros."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mapped = _native.MappedBytes(path)
        self.view = memoryview(self._mapped)

    def read(self, start: int, stop: int) -> memoryview:
        if self._mapped.load(start, stop):
            return self.view[start:stop]
        return memoryview(read_exactly(self._path, start, stop))

    def peek(self, start: int, stop: int) -> memoryview:
        return self.view[start:stop]

    def is_loaded(self, at: int) -> bool:
        """Whether reading that byte of ``view`` needs no disk."""
        return self._mapped.is_loaded(at)

    def is_intact(self) -> bool:
        """Whether the bytes of ``view`` that were read so far are the file's."""
        return self._mapped.readable() >= len(self.view)


map_file = MappedBytes


def scan(request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
    import pyarrow as pa  # only this call needs it

    native = _native.Scan(request)
    while (batch := native.next()) is not None:
        bodies = [Compressed(row, kind, stored, pos) for row, pos, kind, stored in batch.compressed]
        yield pa.record_batch(batch), bodies


def term_runs(segment: Segment, start: int, end: int) -> list[TermRun]:
    return [TermRun(*run) for run in _native.term_runs(segment, start, end)]


def survey(request: SurveyRequest) -> Survey:
    found = Survey(*_native.survey(request))
    problems: list[Any] = found.problems
    return found._replace(
        extents=[Extent(*extent) for extent in found.extents],
        problems=[
            Problem(_finding(finding), pos, size, index, Fact(PROBLEM_CODES[code - 1], *values))
            for finding, pos, size, index, (code, *values) in problems
        ],
        counts={_finding(int(finding)): count for finding, count in found.counts.items()},
    )


def _finding(code: int) -> str:
    return PROBLEM_CODES[code - 1].finding


def copy_messages(
    segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
) -> CopiedMessages:
    from pyspark_dledger.format.message import CopiedMessages  # only this call needs it

    size, outcomes = _native.copy_messages(segment, _contiguous(starts), _contiguous(sizes), into, position)
    return CopiedMessages(size, _array(outcomes, "u1"))


def unpack_bodies(bodies: Bodies) -> list[bytes]:
    return _native.unpack_bodies(bodies.count, bodies.block)


def encode_entries(bodies: Bodies, first: int, index: int, term: int, pos: int, space: int) -> EncodedEntries:
    return EncodedEntries(*_native.encode_entries(bodies.count, bodies.block, first, index, term, pos, space))


def encode_messages(batch: pa.RecordBatch, settings: PutSettings, ordinals: Ordinals) -> Bodies:
    from pyspark_dledger.format.encode.put_rows import check_batch, check_settings

    check_batch(batch)
    check_settings(settings)
    if not isinstance(ordinals, _native.Ordinals):
        raise TypeError(f"expected ordinals of this engine's new_ordinals, found {type(ordinals).__name__}")
    return Bodies(*_native.encode_messages(batch, settings, ordinals))


def read_puts(bodies: Bodies) -> Puts:
    queues, queue, sys_flag, ids, has_id = _native.read_puts(bodies.count, bodies.block)
    return Puts(queues, _array(queue, "i4"), _array(sys_flag, "i4"), ids, _array(has_id, "?"))


def number_puts(puts: Puts, keep: npt.NDArray[np.bool_], ends: list[int]) -> NumberedPuts:
    queue_offsets, new_ends = _native.number_puts(puts.queue, puts.sys_flag, keep, ends)
    return NumberedPuts(_array(queue_offsets, "i8"), new_ends)


def locate_puts(
    bodies: Bodies, first_index: int, runs: Sequence[tuple[int, int]], queue_offsets: npt.NDArray[np.int64]
) -> bytes:
    return _native.locate_puts(bodies.count, bodies.block, first_index, runs, queue_offsets)


def stamp_puts(
    bodies: Bodies,
    keep: npt.NDArray[np.bool_],
    queue_offsets: npt.NDArray[np.int64],
    store_timestamp: int,
    store_host: bytes,
) -> Bodies:
    check_stamps(bodies, keep, queue_offsets, store_timestamp, store_host)
    # A slice with a step is not contiguous.
    kept, offsets = (values if values.flags.c_contiguous else values.copy() for values in (keep, queue_offsets))
    return Bodies(*_native.stamp_puts(bodies.count, bodies.block, kept, offsets, store_timestamp, store_host))


def java_hashes(strings: pa.StringArray) -> npt.NDArray[np.int32]:
    return _array(_native.java_hashes(strings), "i4")


def dispatched_rows(
    batch: pa.RecordBatch, header_size: int, has_tags: bool, batch_topics: Collection[str] | None
) -> DispatchedRows:
    from pyspark_dledger.format.dispatched_rows import UNIT_DTYPE, DispatchedRows, Keys  # only this call needs it

    topics = None if batch_topics is None else list(batch_topics)
    queues, counts, queue_offset, units, keys, (index, ids, stored), *rest = _native.dispatched_rows(
        batch, header_size, has_tags, topics
    )
    return DispatchedRows(
        queues,
        counts,
        _array(queue_offset, "i8"),
        _array(units, UNIT_DTYPE),
        Keys(*(_array(each, "i8") for each in keys)),
        PutIds(_array(index, "i8"), ids, _array(stored, "i8")),
        *rest,
    )


def json_lines(batch: pa.RecordBatch, form: BytesForm) -> Iterator[bytes]:
    from pyspark_dledger.format import json_text
    from pyspark_dledger.format.columns import ALL_COLUMNS

    batch.validate()
    if not {column.type for column in ALL_COLUMNS}.issuperset(batch.schema.types):
        yield from json_text.json_lines(batch, form)  # a small table with columns of other types
        return
    lines = _native.JsonLines(batch, form)
    while text := lines.next(_JSON_PIECE_BYTES):
        yield text


def _contiguous(values: Longs) -> Longs:
    import numpy as np

    return np.ascontiguousarray(values, np.int64)


def _array(data: bytearray, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    import numpy as np  # most calls do not need it

    return np.frombuffer(data, kind)
