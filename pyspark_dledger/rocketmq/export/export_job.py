"""Exports a log: what is exported, in which form, and what to tell of it. `jobs.job` writes the parts of a folder.

To a table, an export appends what was committed since the last run. A commit has the rows of ``commitBytes`` of the
log, and the position after them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.fields import camel_case, fields_row
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_local, local_target
from pyspark_dledger.errors import OptionError, StoreError, StoreInUseError
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.healed_store import open_store
from pyspark_dledger.log.io.store_use import MANIFEST, KnownLoss, known_loss
from pyspark_dledger.log.options import Offset, ReadOptions
from pyspark_dledger.log.plan import Partition, plan_between, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.store_tail import StoreTail
from pyspark_dledger.log.tail.tail import NOTHING, Limits, TailOffset, stream_options
from pyspark_dledger.log.tail.tail_view import entry_ref
from pyspark_dledger.log.units.stored import is_selected
from pyspark_dledger.rocketmq.export import forms
from pyspark_dledger.rocketmq.export.forms import ExportReport, ExportSettings, Form
from pyspark_dledger.rocketmq.export.lake_tables import (
    PARTITION_COLUMNS,
    ConflictError,
    DeltaLake,
    IcebergTable,
    LakePosition,
    LakeTable,
    check_same_log,
    filters_checksum,
    first_offset,
)
from pyspark_dledger.rocketmq.jobs import MapParts, Progress, map_here
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.target_folder import (
    Count,
    PartReport,
    absolute_path,
    check_apart,
    locked_folder,
    not_ours,
    parsed,
    target_path,
)
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, count_of, lost_in_group

_FORMS = {
    "commitlog": "commit_log_form.CommitLogForm",
    "parquet": "row_files.ParquetForm",
    "jsonl": "row_files.JsonLinesForm",
}


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str,
    *,
    run: MapParts = map_here,
    progress: Progress | None = None,
    verb: str = "export",
    **options: Any,
) -> ExportReport:
    """Export the log of the store at `source` to the folder `target`, in the form `to`.

    `options` are those of a read and of an export, by their names. The target is a new or empty folder, or one with an
    interrupted export of the same, which is continued. For ``iceberg`` and ``delta`` it is a table, to which a run
    appends what the log has committed after the table's position. Errors name the command `verb`.

    Raises OptionError for wrong options, StoreError if the source or the target cannot be used or a table has another
    log, StoreInUseError if another run appends at the same time, DataLossError if entries after the position are no
    longer in the log unless failOnDataLoss is false, MalformedError with mode=FAILFAST.
    """
    began = time.monotonic()
    name = forms.parse_form(to)
    read, export_options = forms.parse_export_options(name, options)
    path = absolute_path(os.fspath(source))
    read = with_absolute_paths(read)
    if name in forms.LAKES:
        if run is not map_here:
            raise OptionError(f"an export to {name} runs in one process: leave out spark")
        settings = ExportSettings(read, 0, 0, None, **export_options)
        return _Append(path, os.fspath(target), name, settings).run(began, progress)
    module, class_name = _FORMS[name].split(".")
    form: Form = getattr(import_module(f"pyspark_dledger.rocketmq.export.{module}"), class_name)()
    log = open_store(path, read)
    folder = target_path(target)
    check_apart(log, (path, *(read.replicas or ())), folder)
    request = {"form": form.name, "source": path, "options": {**asdict(read), **export_options}}
    with locked_folder(folder, verb):
        job = Job(folder, verb, request, run, progress)
        return _Export(job, log, path, folder, form, read, export_options).run(began)


def with_absolute_paths(read: ReadOptions) -> ReadOptions:
    """The same stores for any process, see `absolute_path`."""
    return replace(read, data_dirs=_absolute(read.data_dirs), replicas=_absolute(read.replicas))


def _absolute(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if paths is None else tuple(map(absolute_path, paths))


@dataclass(frozen=True)
class _Export:
    """One run of an export; the caller has locked the target."""

    job: Job
    log: StoreView
    source: str
    target: Path
    form: Form
    read: ReadOptions
    export_options: dict[str, Any]

    def run(self, began: float) -> ExportReport:
        earlier = self.job.earlier()
        advice = self.job.advice
        found = (
            range_of(self.log, self.read) if earlier is None else resumed_range(self.log, earlier, self.target, advice)
        )
        settings = ExportSettings(self.read, found.start, found.end, found.committed_index, **self.export_options)
        parts = self.form.plan(self.log, settings)
        size = found.end - found.start
        reports, resumed = self.job.write(self.form.write, parts, size, earlier=earlier, state=found.to_json())
        finish = self.form.finish(self.log, settings, self.target, reports)
        files = [*(file for report in reports for file in report.files), *finish.files]
        self.job.check_files(files)
        now = self.log.refreshed()
        check_last_row(now, found, advice)
        is_damaged = any(report.skipped or report.problems for report in reports)
        lost, lost_is_all = count_lost(self.log, self.read, found.start, found.end) if is_damaged else (0, True)
        known = known_loss(self.source) or KnownLoss()
        report = ExportReport(
            source=self.source,
            target=str(self.target),
            form=self.form.name,
            rows=sum(report.rows for report in reports),
            problems=sum(report.problems for report in reports),
            skipped=sum(report.skipped for report in reports),
            first_skipped=tuple(line for report in reports for line in report.first_skipped)[: forms.MAX_SKIPPED],
            lost=lost,
            lost_is_all=lost_is_all,
            committed_index=found.committed_index,
            beyond_committed=found.beyond_committed,
            parts=len(reports),
            resumed=resumed,
            files=len(files),
            bytes=sum(file.size for file in files),
            source_bytes=sum(report.source_bytes for report in reports),
            seconds=round(time.monotonic() - began, 3),
            notes=(*self._notes(found, now, reports), *finish.notes),
            lost_after=known.last_index if known.last_index >= 0 else None,
            lost_until=known.last_pos + 1 if known.last_pos >= 0 else None,
            broker_conf=finish.broker_conf,
        )
        self.job.end(asdict(report), reports, partial(self.form.seal, settings, self.target, reports))
        return report

    def _notes(self, found: LogRange, now: StoreView, reports: Sequence[PartReport]) -> Iterator[str]:
        if not any(report.rows or report.skipped for report in reports):
            filters = ", ".join(_filters(self.read)) or "none"
            yield f"no row passed the filters: {filters}; to export again, delete the target or name another"
        if self.log.ledger_segments and found.beyond_committed is None:
            yield "no committed bound is known: some exported entries may not be committed"
        elif found.beyond_committed:
            yield (
                f"exported: {counted(found.beyond_committed, 'entry')} after the committed index "
                f"{found.committed_index}, which may or may not be acknowledged; isolationLevel=read_committed leaves "
                "them out"
            )
        is_whole = self.read.ending_offsets.kind == "latest" and self.read.isolation_level != "read_committed"
        if is_whole and found.end < max(end.pos for _, end in now.ends.values()):
            yield f"the log has grown since the export began: rows after pos {found.end} are not exported"


def _filters(options: ReadOptions) -> Iterator[str]:
    """The options of a read that leave rows out; of times only the names."""
    for name, values in (("topic", options.topic), ("queueId", options.queue_id), ("tags", options.tags)):
        if values is not None:
            yield f"{name}={','.join(map(str, values))}"
    times = (("startingTimestamp", options.starting_timestamp), ("endingTimestamp", options.ending_timestamp))
    yield from (name for name, value in times if value is not None)
    if options.mode == "DROPMALFORMED":
        yield "mode=DROPMALFORMED"


def count_lost(log: StoreView, options: ReadOptions, start: int, end: int) -> tuple[int, bool]:
    """How many messages are lost that `options` select of ``[start, end)``, and whether that is all.

    Scans the range again. Units that cannot be read are no witnesses.
    """
    listed = lost_in_group(StoreView(log.path, ReadOptions(engine=options.engine))).messages
    found = [lost for lost in listed if start <= lost.pos < end and lost.lost_on]
    selected = [_is_wanted(lost, options) for lost in found]
    count, is_all = count_of(lost for lost, is_wanted in zip(found, selected, strict=True) if is_wanted)
    return count, is_all and None not in selected


def _is_wanted(lost: LostMessage, options: ReadOptions) -> bool | None:
    """Whether the options select a lost message; None if too little is known of it."""
    if options.topic is None and options.queue_id is None and options.tags is None:
        return True
    if lost.topic is None or lost.queue_id is None or (options.tags is not None and lost.tags_code is None):
        return None
    tags = options.tags
    has_tag = tags is None or lost.tags_code in {java_hash(tag) for tag in tags}
    return is_selected(lost.topic, lost.queue_id, options) and has_tag


# The range

_MAX_ROW_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class LogRange:
    """Positions ``[start, end)`` of a log, which are starts of rows or the log's end.

    ``committed_index`` is the committed bound; ``beyond_committed`` counts the entries of the range after it. Both are
    None if the bound is unknown. ``last`` is the last row of the range, with the CRC-32 of its bytes.
    """

    start: Count
    end: Count
    committed_index: int | None
    beyond_committed: int | None
    last: TailOffset

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest."""
        return {**fields_row(self), "last": self.last._asdict()}

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any], target: Path) -> LogRange:
        """The range in the manifest of a target. Raises StoreError without one."""
        try:
            found: LogRange = parsed(cls, {each.name: manifest[camel_case(each.name)] for each in fields(cls)})
            if found.last.pos is None:
                raise ValueError("a last row without a position")
        except (KeyError, ValueError):
            raise not_ours(target / MANIFEST) from None
        return found


def resumed_range(log: StoreView, earlier: Mapping[str, Any], target: Path, advice: str) -> LogRange:
    """The range of the interrupted job in `target`. Raises StoreError if the log does not have it any more."""
    found = LogRange.of_manifest(earlier, target)
    first = log.segments[0].base if log.segments else INT64_MAX
    if first > found.start:
        raise StoreError(
            f"{log.path}: its chosen range begins at pos {found.start}, the log at pos {first}: the beginning has "
            f"expired: {advice}"
        )
    check_last_row(log, found, advice)
    return found


def check_last_row(log: StoreView, found: LogRange, advice: str) -> None:
    """Raises StoreError unless the last row of a range that was exported is unchanged in the log."""
    if found.last.pos is not None and found.end <= max((end.pos for _, end in log.ends.values()), default=0):
        rows = (entry_ref(log, source, found.last.pos) for source in (DLEDGER, COMMITLOG))
        if any(row is not None and row.offset == found.last for row in rows):
            return
    last, _ = _last_row(log, found.start, found.end)
    if last != found.last:
        raise StoreError(
            f"{log.path}: expected {found.last} with CRC-32 {found.last.crc} at the end of the chosen range, found "
            f"{last} with CRC-32 {last.crc}: the log was truncated or replaced meanwhile: {advice}"
        )


def range_of(log: StoreView, options: ReadOptions) -> LogRange:
    """The range of the rows that the options choose. Raises StoreError if there are none."""
    committed = committed_bound(log, options).index if log.ledger_segments else None
    bound = options.committed_bound if committed is None else committed
    whole = replace(options, max_partition_bytes=INT64_MAX, min_partitions=None, committed_bound=bound)
    ranges = [part for partition in plan_read(log, ("pos",), whole, Filters()) for part in partition.ranges]
    nothing = StoreError(f"{log.path}: the options choose no rows: check dledger state and the options of the read")
    if not ranges:
        raise nothing
    # Positions in the options need not be starts of rows.
    start, end = ranges[0].start, ranges[-1].end
    if options.starting_offsets.kind == "pos" and options.starting_offsets.value > start:
        start = min(_first_value(log, "pos", options.starting_offsets.value, end), end)
    if options.ending_offsets.kind == "pos" and options.ending_offsets.value < end:
        end = min(_first_value(log, "pos", options.ending_offsets.value, end), end)
    if start >= end:
        raise nothing
    last, last_index = _last_row(log, start, end)
    return LogRange(start, end, committed, _count_beyond(log, committed, start, last_index), last)


def _count_beyond(log: StoreView, committed: int | None, start: int, last_index: int | None) -> int | None:
    """How many entries from position `start` to the last index are after the committed bound."""
    if committed is None or last_index is None or last_index <= committed:
        return None if committed is None else 0
    first = _first_value(log, "index", max(start, log.ledger_segments[0].base), 0)
    return last_index - max(committed, first - 1)


def _first_value(log: StoreView, column: str, pos: int, default: int) -> int:
    """The first value of a column that is not null, in rows at or after `pos`; without one the default."""
    options = ReadOptions(
        starting_offsets=Offset("pos", pos), fail_on_data_loss=False, max_batch_rows=1, verify_crc=False
    )
    for partition in plan_read(log, (column,), options, Filters()):
        for batch in read_partition(partition):
            known = batch[column].drop_null()
            if len(known):
                return int(known[0].as_py())
    return default


def _last_row(log: StoreView, start: int, end: int) -> tuple[TailOffset, int | None]:
    """The last row in ``[start, end)`` with the CRC-32 of its bytes, and the last index at or before it."""
    for segment, found in log.ends.values():
        if found.pos == end and found.last_pos >= start:
            index, term = (found.last_index, found.last_term) if segment.source == DLEDGER else (None, None)
            return TailOffset(index, term, found.last_pos, _crc(log, found.last_pos, end - found.last_pos)), index
    options = ReadOptions(max_partition_bytes=INT64_MAX, verify_crc=False)
    for segment in reversed([each for each in log.segments if each.base < end and each.end > start]):
        begin = max(start, segment.base)
        parts = plan_between(log, ("index", "term", "pos", "size"), options, Filters(), None, begin, end)
        last = index = None
        for batch in (batch for part in parts for batch in read_partition(part) if batch.num_rows):
            last, known = batch, batch["index"].drop_null()
            index = known[-1].as_py() if len(known) else index
        if last is not None:
            row = last.slice(last.num_rows - 1).to_pylist()[0]
            return TailOffset(row["index"], row["term"], row["pos"], _crc(log, row["pos"], row["size"])), index
    return TailOffset(pos=start), None


def _crc(log: StoreView, pos: int, size: int) -> int:
    """The CRC-32 of the bytes at a position; of a row that is too long for an entry, of its first bytes."""
    segment = next((each for each in log.segments if each.base <= pos < each.end), None)
    return log.engine.crc32(b"" if segment is None else segment.read(pos, min(size, _MAX_ROW_BYTES)))


# Tables

_TABLES: dict[str, Callable[[str, ExportSettings], LakeTable]] = {"iceberg": IcebergTable, "delta": DeltaLake}
# Other writers commit rarely, such as a compaction.
_MAX_TRIES = 5
_PROBLEM = "problem"


class _Append:
    """One run that appends to a table, and what it has appended so far: see `ExportReport`."""

    def __init__(self, source: str, target: str, form: str, settings: ExportSettings) -> None:
        table = _TABLES[form](target, settings)
        options = stream_options(settings.options, {"startingOffsets": settings.options.starting_offsets})
        log = StoreView(source, options)  # before a table is created
        if table.place is not None and is_local(table.place):
            check_apart(log, (source,), Path(os.path.realpath(local_target(table.place))))
        self._source, self._target, self._form, self._table = source, target, form, table
        self._names = tuple(dict.fromkeys((*settings.names, *PARTITION_COLUMNS)))
        self._commit_bytes = settings.commit_bytes
        self._tail = StoreTail(source, options, tuple(dict.fromkeys((*self._names, _PROBLEM))))
        self._tail.remedy = "restore the log, export to a new table"
        self._schema = arrow_schema(self._names)
        table.load(self._schema)
        self._position = table.position()
        self._first, self._filters = first_offset(log), filters_checksum(options)
        if self._position is not None:
            check_same_log(log, self._position, target)
            if self._filters != self._position.filters:
                raise StoreError(
                    f"{target}: the table was written with other filters (topic, queueId, tags, mode=DROPMALFORMED): "
                    "use the same, or export to a new table"
                )
        self._rows = self._problems = self._commits = self._source_bytes = 0

    def run(self, began: float, progress: Progress | None) -> ExportReport:
        """Append what is committed at this moment."""
        until = self._tail.available()
        begin = pos = self._offset.pos or 0
        while (end := self._tail.latest(self._offset, Limits(size=self._commit_bytes, until=until))) != self._offset:
            parts: Sequence[Partition] = self._tail.plan(self._offset, end)
            batches = [batch for part in parts for batch in read_partition(part, is_once=True) if batch.num_rows]
            self._commit([batch.select(self._names) for batch in batches], end)
            self._rows += sum(batch.num_rows for batch in batches)
            self._problems += sum(batch.num_rows - batch[_PROBLEM].null_count for batch in batches)
            self._source_bytes += sum(part.size for part in parts)
            pos = max(pos, end.pos or 0)
            if progress is not None:
                progress(pos - begin, max((until.pos or 0), pos) - begin)
        return ExportReport(
            source=self._source,
            target=self._target,
            form=self._form,
            rows=self._rows,
            problems=self._problems,
            lost_is_all=not self._problems,
            committed_index=self._tail.progress().committed,
            parts=self._commits,
            source_bytes=self._source_bytes,
            seconds=round(time.monotonic() - began, 3),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        """Where the next run begins, and what this one skipped."""
        if not self._offset.is_entry:
            yield "no committed entry is known: the table has none"
        else:
            yield f"the table has the log up to {self._offset}"
        if expired := self._tail.progress().expired:
            yield f"skipped: {expired} expired entries (failOnDataLoss=false)"

    @property
    def _offset(self) -> TailOffset:
        return self._position.last if self._position is not None else NOTHING

    def _commit(self, rows: list[pa.RecordBatch], end: TailOffset) -> None:
        """Append rows, again if a writer other than an export has changed the table meanwhile."""
        position = LakePosition(end, self._first, self._filters)
        for _ in range(_MAX_TRIES):
            try:
                self._table.append(rows, self._schema, position)
            except ConflictError:
                self._table.load(self._schema)
                if (found := self._table.position()) != self._position:
                    raise StoreInUseError(
                        f"{self._target}: another export has appended up to {found and found.last}, this one expected "
                        f"{self._offset}: this one appended none of these rows: run one export at a time"
                    ) from None
            else:
                self._position = position
                self._commits += 1
                return
        raise StoreError(f"{self._target}: the table was changed during each of {_MAX_TRIES} commits: try again later")
