"""The native engine behind the same calls as `python_engine`. Importing it fails where the extension is not built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyspark_dledger._native as _native
from pyspark_dledger.format.encode.encoded import Bodies, Buffer, Checked, Encoded
from pyspark_dledger.format.encode.puts import Ordinals, PutIds, Puts, PutSettings, check_stamps
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
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pyspark_dledger.format.encode.message_copies import CopiedMessages, Longs
    from pyspark_dledger.format.json_text import BytesForm


NAME = "native"

# What is made of a piece stays in the processor's cache.
_JSON_PIECE_BYTES = 512 * 1024

crc32 = _native.crc32
split = _native.split
seek = _native.seek
find_torn = _native.find_torn
patch_physical_offsets = _native.patch_physical_offsets


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


def place_messages(
    segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
) -> CopiedMessages:
    """Messages of a segment, one behind the other into memory that is to stand at a position; see `place`."""
    from pyspark_dledger.format.encode.message_copies import CopiedMessages  # loads what only this needs

    size, outcomes = _native.place_messages(segment, _contiguous(starts), _contiguous(sizes), into, position)
    return CopiedMessages(size, _array(outcomes, "u1"))


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


def new_ordinals() -> Ordinals:
    """Counts of equal contents, for all batches of one attempt of a task."""
    return _native.Ordinals()


def encode_messages(batch: pa.RecordBatch, settings: PutSettings, ordinals: Ordinals) -> Bodies:
    """The rows of a batch as puts, in their order; ValueError names the first row that is no message."""
    from pyspark_dledger.format.encode.put_rows import check_batch, check_settings

    check_batch(batch)
    check_settings(settings)
    if not isinstance(ordinals, _native.Ordinals):
        raise TypeError(f"expected ordinals of this engine's new_ordinals, found {type(ordinals).__name__}")
    return Bodies(*_native.encode_messages(batch, settings, ordinals))


def read_puts(bodies: Bodies) -> Puts:
    """What a leader has to know of puts; ValueError names the first that is no message as RocketMQ encodes it."""
    queues, queue, sys_flag, ids, has_id = _native.read_puts(bodies.count, bodies.block)
    return Puts(queues, _array(queue, "i4"), _array(sys_flag, "i4"), ids, _array(has_id, "?"))


def stamp_puts(
    bodies: Bodies,
    keep: npt.NDArray[np.bool_],
    queue_offsets: npt.NDArray[np.int64],
    store_timestamp: int,
    store_host: bytes,
) -> Bodies:
    """The puts to keep, each with its queue offset, and all with the store's time (ms) and host."""
    check_stamps(bodies, keep, queue_offsets, store_timestamp, store_host)
    # A copy where a slice with a step has no bytes in one piece.
    kept, offsets = (values if values.flags.c_contiguous else values.copy() for values in (keep, queue_offsets))
    return Bodies(*_native.stamp_puts(bodies.count, bodies.block, kept, offsets, store_timestamp, store_host))


def put_ids(segment: Segment, start: int, end: int) -> PutIds:
    """The identities of the messages among the entries of ``[start, end)``."""
    index, ids, store_timestamps = _native.put_ids(segment, start, end)
    return PutIds(_array(index, "i8"), ids, _array(store_timestamps, "i8"))


def java_hashes(strings: pa.StringArray) -> npt.NDArray[np.int32]:
    """Java's ``String.hashCode`` of each; 0 for a null."""
    return _array(_native.java_hashes(strings), "i4")


def json_lines(batch: pa.RecordBatch, form: BytesForm) -> Iterator[bytes]:
    """The rows of a batch as lines of JSON, in pieces of whole lines; see `json_text.json_lines`."""
    from pyspark_dledger.format import json_text
    from pyspark_dledger.format.columns import ALL_COLUMNS

    batch.validate()
    if not {column.type for column in ALL_COLUMNS}.issuperset(batch.schema.types):
        yield from json_text.json_lines(batch, form)  # of a table with columns of other types, which are small
        return
    lines = _native.JsonLines(batch, form)
    while text := lines.next(_JSON_PIECE_BYTES):
        yield text


def _contiguous(values: Longs) -> Longs:
    import numpy as np

    return np.ascontiguousarray(values, np.int64)


def _array(data: bytearray, kind: str) -> npt.NDArray[Any]:
    import numpy as np  # most calls need none

    return np.frombuffer(data, kind)
