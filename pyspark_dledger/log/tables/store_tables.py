"""The tables about a store and the files of its log: ``state``, ``segments``, ``findings``, and with replicas ``diff``.

In ``diff``, the ranges of CommitLogs come first, then those of DLedger logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_dledger.common.fields import camel_case
from pyspark_dledger.common.integers import microseconds
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.spec import Survey, SurveyRequest
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import check_whole
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.state import State, state_of
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, relative_file, whole_table
from pyspark_dledger.log.verify.findings import CODES, INFO

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log_group import PosRow
    from pyspark_dledger.log.diff.diff_table import DiffRow
    from pyspark_dledger.log.verify.verify_store import FindingsPart

_ARROW = {"int": pa.int64(), "str": pa.string(), "bool": pa.bool_(), "dict[int, int]": pa.map_(pa.int64(), pa.int64())}

STATE_COLUMNS = tuple(
    TableColumn(
        camel_case(field.name),
        TIMESTAMP if field.name.endswith("timestamp") else _ARROW[str(field.type).removesuffix(" | None")],
        field.metadata["doc"],
    )
    for field in fields(State)
)


STATE = Table(
    "state",
    "one row: what the store is and how far it goes",
    STATE_COLUMNS,
    lambda log, _: [state_of(log)],
    lambda state: batches_of(STATE_COLUMNS, [state], 1),
)

SEGMENT_COLUMNS = (
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


@dataclass(frozen=True)
class SegmentPart:
    """One file to survey."""

    node: str | None
    file: str
    engine: str
    request: SurveyRequest


def _plan_segments(store: StoreView, options: ReadOptions) -> list[SegmentPart]:
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


def _read_segment(part: SegmentPart) -> Iterator[pa.RecordBatch]:
    """The row of a file. Raises UnreadableError if bytes of it cannot be read."""
    survey = engine_of(part.engine, part.request.segment).survey(part.request)
    if "unreadableFile" in survey.counts:
        check_whole(part.request.segment)
    yield from batches_of(SEGMENT_COLUMNS, [_segment_row(part, survey)], 1)


def _segment_row(part: SegmentPart, survey: Survey) -> dict[str, Any]:
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


SEGMENTS = Table(
    "segments",
    "one row per file of the log; its byte counts add up to the segment",
    SEGMENT_COLUMNS,
    _plan_segments,
    _read_segment,
)

FINDING_COLUMNS = (
    TableColumn("severity", pa.string(), "`info`, `warning` or `error`"),
    TableColumn("code", pa.string(), "see [findings.md](findings.md)"),
    TableColumn("node", pa.string(), "id of the node; null for a plain CommitLog"),
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("offset", pa.int64(), "byte in the file, or null"),
    TableColumn("index", pa.int64(), "of the entry, or null"),
    TableColumn("pos", pa.int64(), "position in the log"),
    TableColumn("size", pa.int64(), "damaged or missing bytes there"),
    TableColumn("expected", pa.string(), "what was expected"),
    TableColumn("found", pa.string(), "what was found"),
    TableColumn("javaDoes", pa.string(), "what Java does about it"),
)


def _plan_findings(log: StoreView, options: ReadOptions) -> list[FindingsPart]:
    """The parts, with files that cannot be read: they have findings."""
    from pyspark_dledger.log.verify.verify_store import plan_findings  # loads all checks

    return plan_findings(log if options.unread is None else StoreView(log.path, replace(options, unread=None)))


def _read_findings(part: FindingsPart) -> Iterator[pa.RecordBatch]:
    from pyspark_dledger.log.verify.verify_store import read_findings  # loads all checks

    yield from batches_of(FINDING_COLUMNS, read_findings(part), ReadOptions().max_batch_rows)


FINDINGS = Table("findings", "one row per finding", FINDING_COLUMNS, _plan_findings, _read_findings)


def diff_rows(store: StoreView) -> Iterator[DiffRow | PosRow]:
    """The rows of a comparison. Raises OptionError without replicas."""
    from pyspark_dledger.log.diff.commit_log_group import commit_log_group, pos_rows  # loads all comparisons
    from pyspark_dledger.log.diff.diff_table import ledger_rows
    from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared

    found = compared(store)
    old = commit_log_group(found)
    if old is not None:
        yield from pos_rows(old)
    yield from ledger_rows(ReplicaGroup(found, store.options.group_size))


DIFF_COLUMNS = (
    TableColumn("firstIndex", pa.int64(), "range of indexes; null for a CommitLog"),
    TableColumn("lastIndex", pa.int64(), "range of indexes; null for a CommitLog"),
    TableColumn("firstPos", pa.int64(), "position of the first entry or byte"),
    TableColumn("lastPos", pa.int64(), "position of the last byte, for a CommitLog"),
    TableColumn("verdict", pa.string(), "see below"),
    TableColumn("nodes", pa.list_(pa.string()), "replicas of the verdict"),
    TableColumn(
        "terms", pa.map_(pa.string(), pa.int64()), "term (CommitLog: epoch) on each replica that has the entries"
    ),
    TableColumn("damaged", pa.list_(pa.string()), "replicas that lost them or have a damaged copy"),
    TableColumn("intact", pa.list_(pa.string()), "replicas to copy them from; empty where no check tells"),
    TableColumn("firstByte", pa.int64(), "first different byte of the entry; for a CommitLog its position"),
    TableColumn("firstDifference", pa.string(), "its field and the values"),
)


DIFF = whole_table(
    "diff",
    "one row per range of indexes (CommitLog: positions) on which replicas agree or differ; needs `replicas`",
    DIFF_COLUMNS,
    diff_rows,
)
