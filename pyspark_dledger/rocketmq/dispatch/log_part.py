"""A part of the log as a broker dispatches it: messages with their units and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_dledger.format import layout
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.arrow_functions import numbers_of, values_of
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.dispatched_rows import DISPATCHED_COLUMNS, DispatchedRows
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.spec import DLEDGER, Filters, ScanRequest, Segment

_MAX_ROWS, _MAX_BYTES = 1_000_000, 1 << 28
# MessageStoreConfig.messageDelayLevel: 1s 5s 10s 30s 1m to 10m 20m 30m 1h 2h.
DELAYS_MS = tuple(1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))
_UNKNOWN_DELAY_MS = 1000
_LEVEL = r"^[+-]?[0-9]{1,9}$"


@dataclass(frozen=True)
class UnitRules:
    """How messages get units and keys: the delay levels in milliseconds, and if tags are keys, too.

    Topics in ``batch_topics`` have no ConsumeQueue. Without ``has_keys``, only units are wanted.
    """

    delays_ms: tuple[int, ...] = DELAYS_MS
    has_tags: bool = False
    batch_topics: frozenset[str] | None = None
    has_keys: bool = True


class LogPart(NamedTuple):
    """The messages of a part of a segment; ``end`` is where the next entry begins.

    ``first_skipped`` describes the first of the skipped ``rows``.
    """

    segment: Segment
    end: int
    rows: DispatchedRows
    first_skipped: str


def read_part(engine: Engine, segment: Segment, start: int, end: int, rules: UnitRules) -> LogPart:
    """The messages that begin in ``[start, end)`` of a segment, which is complete on disk; see `part_of`.

    Other entries, and messages that no queue can have, are skipped. Raises StoreError if the segment cannot be read.
    """
    request = ScanRequest(segment, start, end, DISPATCHED_COLUMNS, verify_crc=False)
    return part_of(engine, request, all_rows(engine, request), rules)


def all_rows(engine: Engine, request: ScanRequest) -> pa.RecordBatch:
    """The rows of a scan in one batch; the request's batch limits are ignored."""
    request = replace(request, max_batch_rows=_MAX_ROWS, max_batch_bytes=_MAX_BYTES)
    batches = [batch for batch, _ in engine.scan(request)]
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], arrow_schema(request.columns))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def part_of(engine: Engine, request: ScanRequest, batch: pa.RecordBatch, rules: UnitRules) -> LogPart:
    """The part that a scan has read into a batch with `DISPATCHED_COLUMNS`. Raises StoreError as `read_part`."""
    segment, end = request.segment, request.end
    header = layout.ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0
    rows = engine.dispatched_rows(batch, header, rules.has_tags, rules.batch_topics)
    if any(topic == layout.SCHEDULE_TOPIC for topic, _ in rows.queues):
        _set_delays(engine, request, header, rows, rules.delays_ms)
    last_end = int(values_of(batch["pos"])[-1]) + int(values_of(batch["size"])[-1]) if len(batch) else end
    described = _described(batch, rows.first_skipped) if rows.skipped else ""
    return LogPart(segment, min(max(end, last_end), segment.end), rows, described)


def stored_at(engine: Engine, segment: Segment, pos: int) -> int | None:
    """The storeTimestamp of the message at a position, in milliseconds; None without one."""
    request = ScanRequest(segment, pos, pos + 1, ("storeTimestamp",), verify_crc=False)
    for batch, _ in engine.scan(request):
        value = batch.column(0)[0].value
        return None if value is None else int(value) // 1000
    return None


def _described(batch: pa.RecordBatch, number: int) -> str:
    """Position and queue of a row."""
    (row,) = batch.slice(number, 1).to_pylist()
    if row["topic"] is None:
        return f"at {row['pos']}, no message that can be read"
    return f"at {row['pos']}, topic={row['topic']!r} queueId={row['queueId']} queueOffset={row['queueOffset']}"


def _set_delays(
    engine: Engine, request: ScanRequest, header_size: int, rows: DispatchedRows, delays_ms: tuple[int, ...]
) -> None:
    """Set the delivery time of delayed messages as tagsCode of their units.

    Source: ``CommitLog.checkMessageAndReturnSize``, ``ScheduleMessageService.computeDeliverTimestamp``.
    """
    delayed = Filters(kind=("message",), topic=(layout.SCHEDULE_TOPIC,))
    columns = ("pos", "properties", "storeTimestamp")
    batch = all_rows(engine, replace(request, columns=columns, filters=delayed, mode="PERMISSIVE", verify_crc=False))
    texts = pc.map_lookup(batch["properties"], layout.PROPERTY_DELAY, "first")
    texts = pc.if_else(pc.match_substring_regex(texts, _LEVEL), texts, None)
    levels = numbers_of(pc.cast(texts, pa.int64()), null=0)
    delays = np.array([_UNKNOWN_DELAY_MS, *delays_ms], np.int64)[np.clip(levels, 0, len(delays_ms))]
    codes = numbers_of(batch["storeTimestamp"], null=0) // 1000 + delays
    offsets = (values_of(batch["pos"]) + header_size)[levels > 0]
    # Only messages of this topic are delayed, and each has one unit at most.
    _, unit, number = np.intersect1d(rows.units["commitLogOffset"], offsets, return_indices=True)
    rows.units["tagsCode"][unit] = codes[levels > 0][number]
