"""The ``segments`` table: the contents of each file of the log, down to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.integers import microseconds
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.spec import Survey, SurveyRequest
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import check_whole
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import (
    Table,
    TableColumn,
    batches_of,
    relative_file,
    table_schema,
)
from pyspark_dledger.log.verify.findings import CODES, INFO

COLUMNS = (
    TableColumn("node", pa.string(), "id of the node; null for a plain CommitLog"),
    TableColumn("source", pa.string(), "`dledger`, or `commitlog` before dividedCommitlogOffset"),
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("segment", pa.string(), "name of the file"),
    TableColumn("baseOffset", pa.int64(), "position of its first byte"),
    TableColumn("fileSize", pa.int64(), "bytes on disk"),
    TableColumn("entries", pa.int64(), "entries in it; messages in the old CommitLog"),
    TableColumn("firstIndex", pa.int64(), "null without entries, and in the old CommitLog"),
    TableColumn("lastIndex", pa.int64(), "null without entries, and in the old CommitLog"),
    TableColumn("firstTerm", pa.int64(), "terms of these entries"),
    TableColumn("lastTerm", pa.int64(), "terms of these entries"),
    TableColumn("usedBytes", pa.int64(), "entries and messages"),
    TableColumn("blankBytes", pa.int64(), "skipped: the next entry did not fit"),
    TableColumn("unwrittenBytes", pa.int64(), "zeros after the end of the log"),
    TableColumn("staleBytes", pa.int64(), "entries after the end of the log, left by a truncation"),
    TableColumn("corruptBytes", pa.int64(), "everything else, and missing bytes"),
    TableColumn("firstStoreTimestamp", TIMESTAMP, "of the first and last message"),
    TableColumn("lastStoreTimestamp", TIMESTAMP, "of the first and last message"),
    TableColumn("findings", pa.int64(), "number of warnings and errors here"),
)
_SCHEMA = table_schema(COLUMNS)


@dataclass(frozen=True)
class SegmentPart:
    """One file to survey."""

    node: str | None
    file: str
    engine: str
    request: SurveyRequest


def plan(store: StoreView, options: ReadOptions) -> list[SegmentPart]:
    """One part for each file of the log. Raises StoreError."""
    store.check_segments(gaps_are_rows=False)
    return [
        SegmentPart(
            store.paths.node,
            relative_file(store.paths, segment.path),
            store.engine.NAME,
            SurveyRequest(segment, segment.base, store.segment_end(segment), options.verify_crc, max_problems=0),
        )
        for segment in store.segments
    ]


def read(part: SegmentPart) -> Iterator[pa.RecordBatch]:
    """The row of a file. Raises UnreadableError if bytes of it cannot be read."""
    survey = engine_of(part.engine, part.request.segment).survey(part.request)
    if "unreadableFile" in survey.counts:
        check_whole(part.request.segment)
    yield from batches_of(_SCHEMA, [_row(part, survey)], 1)


def _row(part: SegmentPart, survey: Survey) -> dict[str, Any]:
    segment = part.request.segment
    has_index = survey.entries > 0 and survey.first_index >= 0
    return {
        "node": part.node,
        "source": segment.source,
        "file": part.file,
        "segment": segment.name,
        "baseOffset": segment.base,
        "fileSize": segment.file.size(),
        "entries": survey.entries,
        "firstIndex": survey.first_index if has_index else None,
        "lastIndex": survey.last_index if has_index else None,
        "firstTerm": survey.first_term if has_index else None,
        "lastTerm": survey.last_term if has_index else None,
        "usedBytes": survey.sizes.get("entry", 0) + survey.sizes.get("message", 0),
        **{f"{kind}Bytes": survey.sizes.get(kind, 0) for kind in ("blank", "unwritten", "stale", "corrupt")},
        "firstStoreTimestamp": _timestamp(survey.first_store_timestamp),
        "lastStoreTimestamp": _timestamp(survey.last_store_timestamp),
        "findings": sum(count for code, count in survey.counts.items() if CODES[code].severity != INFO),
    }


def _timestamp(milliseconds: int) -> int | None:
    return microseconds(milliseconds) if milliseconds != -1 else None


TABLE = Table(
    "segments",
    "one row per file of the log; its byte counts add up to the segment",
    COLUMNS,
    plan,
    read,
)
