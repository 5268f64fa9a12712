"""A part of the log as a broker dispatches it: messages with their units and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format import layout
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.column_values import column_of, is_valid, numbers_of, texts_of, values_of
from pyspark_dledger.format.columns import PUT_ID, arrow_schema
from pyspark_dledger.format.encode.puts import ID_SIZE, PutIds
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.spec import DLEDGER, Filters, ScanRequest, Segment
from pyspark_dledger.log.io.queue_files import Units
from pyspark_dledger.rocketmq.consume_queue.queue_writer import MAX_QUEUE_OFFSET, is_valid_queue, units_of
from pyspark_dledger.rocketmq.index_file.message_keys import Keys, keys_of
from pyspark_dledger.rocketmq.message_arrays import Longs, MessageArrays, QueueNames, arrays_of_rows

COLUMNS = (
    *("pos", "size", "index", "term", "topic", "queueId", "queueOffset", "storeSize", "sysFlag", "storeTimestamp"),
    *("tags", "keys", "uniqKey"),
)
"""The columns of the rows of a part; `PUT_ID` may be added."""

_KEY_COLUMNS = ("topic", "uniqKey", "keys", "tags")
_MAX_ROWS, _MAX_BYTES = 1_000_000, 1 << 28
_ROLLBACK = 0xC
# MessageStoreConfig.messageDelayLevel: 1s 5s 10s 30s 1m to 10m 20m 30m 1h 2h.
DELAYS_MS = tuple(1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))
_UNKNOWN_DELAY_MS = 1000
_LEVEL = r"^[+-]?[0-9]{1,9}$"

Flags = npt.NDArray[np.bool_]


class LogPart(NamedTuple):
    """The messages of ``[start, end)`` of a segment; ``end`` is where the next entry begins.

    ``rows`` has topics, keys and tags of the messages in ``found``, whose ``stored`` is 0 if unknown. Indexes and term
    are -1 in an old CommitLog, and without entries. ``skipped`` counts rows that no queue can have; ``first_skipped``
    describes the first one. ``ids`` are the identities of entries, if they were read.
    """

    segment: Segment
    start: int
    end: int
    first_index: int
    last_index: int
    last_term: int
    names: QueueNames
    found: MessageArrays
    rows: pa.RecordBatch
    skipped: int
    first_skipped: str
    ids: PutIds | None = None

    def units(self) -> tuple[Longs, Longs, Units]:
        """Queue, queueOffset and unit of the messages in queues: all but prepared and rolled back ones."""
        found, which = self.found, self.found.is_dispatched
        units = units_of(found.offset[which], found.size[which], found.tags_code[which])
        return found.queue[which], found.queue_offset[which], units

    def keys(self, engine: Engine, has_tags: bool = False) -> Keys:
        """The keys of all messages but rolled back ones; see `keys_of`."""
        found, rows = self.found, self.rows
        which = (found.sys_flag & _ROLLBACK) != _ROLLBACK
        if which.all():
            return keys_of(engine, rows, found.offset, found.stored, has_tags)
        rows = rows.filter(column_of(which))
        return keys_of(engine, rows, found.offset[which], found.stored[which], has_tags)

    @property
    def last_stored(self) -> int:
        """The last message's storeTimestamp in milliseconds; 0 without one."""
        known = self.found.stored[self.found.stored > 0]
        return int(known[-1]) if len(known) else 0

    @property
    def first_stored(self) -> int:
        known = self.found.stored[self.found.stored > 0]
        return int(known[0]) if len(known) else 0


def read_part(
    engine: Engine, segment: Segment, start: int, end: int, delays_ms: tuple[int, ...], *, has_ids: bool = False
) -> LogPart:
    """The messages that begin in ``[start, end)`` of a segment, which is complete on disk.

    Other entries, and messages that no queue can have, are skipped. Raises StoreError if the segment cannot be read.
    """
    request = ScanRequest(segment, start, end, (*COLUMNS, PUT_ID.name) if has_ids else COLUMNS, verify_crc=False)
    return part_of(engine, request, all_rows(engine, request), delays_ms)


def all_rows(engine: Engine, request: ScanRequest) -> pa.RecordBatch:
    """The rows of a scan in one batch; the request's batch limits are ignored."""
    request = replace(request, max_batch_rows=_MAX_ROWS, max_batch_bytes=_MAX_BYTES)
    batches = [batch for batch, _ in engine.scan(request)]
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], arrow_schema(request.columns))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def part_of(engine: Engine, request: ScanRequest, batch: pa.RecordBatch, delays_ms: tuple[int, ...]) -> LogPart:
    """The part that a scan has read into a batch with `COLUMNS`. Raises StoreError as `read_part`."""
    segment, start, end = request.segment, request.start, request.end
    first, last, term = _bounds(batch)
    names = QueueNames()
    is_good, known, topic = _topics(batch)
    skipped = int(np.count_nonzero(~is_good))
    first_skipped = _describe_first(batch, ~is_good) if skipped else ""
    rows = batch.filter(column_of(is_good)) if skipped else batch
    header = layout.ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0
    found = arrays_of_rows(
        engine,
        rows,
        values_of(rows["pos"]) + header,
        known,
        topic[is_good] if skipped else topic,
        names,
        unknown_time=0,
        is_committed=np.ones(len(rows), bool),
    )
    if any(topic == layout.SCHEDULE_TOPIC for topic, _ in names.names):
        found = _with_delays(engine, request, found, delays_ms)
    last_end = int(values_of(batch["pos"])[-1]) + int(values_of(batch["size"])[-1]) if len(batch) else end
    stop = min(max(end, last_end), segment.end)
    keyed = rows.select(_KEY_COLUMNS)
    ids = _ids(batch) if PUT_ID.name in batch.schema.names and last >= 0 else None
    return LogPart(segment, start, stop, first, last, term, names, found, keyed, skipped, first_skipped, ids)


def _ids(batch: pa.RecordBatch) -> PutIds:
    """The identities of entries. They have one size, so their column's bytes are consecutive identities."""
    column, index = batch[PUT_ID.name], values_of(batch["index"])
    stored = numbers_of(batch["storeTimestamp"], null=0) // 1000
    if column.null_count:
        which = np.flatnonzero(is_valid(column))
        column, index, stored = column.drop_null(), index[which], stored[which]
    _, ends, data = column.buffers()
    first = int(np.frombuffer(ends, np.int32)[column.offset]) if len(column) else 0
    ids = data[first : first + ID_SIZE * len(column)].to_pybytes() if data is not None else b""
    return PutIds(index, ids, stored)


def stored_at(engine: Engine, segment: Segment, pos: int) -> int | None:
    """The storeTimestamp of the message at a position, in milliseconds; None without one."""
    request = ScanRequest(segment, pos, pos + 1, ("storeTimestamp",), verify_crc=False)
    for batch, _ in engine.scan(request):
        value = batch.column(0)[0].value
        return None if value is None else int(value) // 1000
    return None


def _bounds(batch: pa.RecordBatch) -> tuple[int, int, int]:
    """First and last index of the entries, and the last one's term."""
    rows = np.flatnonzero(is_valid(batch["index"]))
    if not len(rows):
        return -1, -1, -1
    index, term = values_of(batch["index"]), values_of(batch["term"])
    return int(index[rows[0]]), int(index[rows[-1]]), int(term[rows[-1]])


def _topics(batch: pa.RecordBatch) -> tuple[Flags, list[str], Longs]:
    """Which rows are messages that a queue can have; the topics, and the number of each row's topic."""
    known, topic = texts_of(batch["topic"])
    is_good: Flags = np.array([*(is_valid_queue((each, 0)) for each in known), False])[topic]
    offset = values_of(batch["queueOffset"])
    is_good &= (values_of(batch["queueId"]) >= 0) & (offset >= 0) & (offset <= MAX_QUEUE_OFFSET)
    return is_good, known, topic


def _describe_first(batch: pa.RecordBatch, is_bad: Flags) -> str:
    """Position and queue of the first row with the flag."""
    row = batch.slice(int(np.argmax(is_bad)), 1).to_pylist()[0]
    if row["topic"] is None:
        return f"at {row['pos']}, no message that can be read"
    return f"at {row['pos']}, topic={row['topic']!r} queueId={row['queueId']} queueOffset={row['queueOffset']}"


def _with_delays(
    engine: Engine, request: ScanRequest, found: MessageArrays, delays_ms: tuple[int, ...]
) -> MessageArrays:
    """The messages, delayed ones with their delivery time as tagsCode.

    Source: ``CommitLog.checkMessageAndReturnSize``, ``ScheduleMessageService.computeDeliverTimestamp``.
    """
    delayed = Filters(kind=("message",), topic=(layout.SCHEDULE_TOPIC,))
    batch = all_rows(
        engine, replace(request, columns=("pos", "properties"), filters=delayed, mode="PERMISSIVE", verify_crc=False)
    )
    if not len(batch):
        return found
    texts = pc.map_lookup(batch["properties"], layout.PROPERTY_DELAY, "first")
    texts = pc.if_else(pc.match_substring_regex(texts, _LEVEL), texts, None)
    levels = pc.fill_null(pc.cast(texts, pa.int64()), 0)
    header = layout.ENTRY_HEADER_SIZE if request.segment.source == DLEDGER else 0
    number, is_found = found.find(values_of(batch["pos"]) + header)
    is_delayed = is_found & (values_of(levels) > 0)
    number, level = number[is_delayed], np.minimum(values_of(levels)[is_delayed], len(delays_ms))
    codes = found.tags_code.copy()
    codes[number] = found.stored[number] + np.array([_UNKNOWN_DELAY_MS, *delays_ms], np.int64)[level]
    return replace(found, tags_code=codes)
