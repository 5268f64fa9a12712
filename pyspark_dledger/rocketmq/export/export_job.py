"""Exports a log: what is exported, in which form, and what to tell of it. `jobs.job` writes the parts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log.healed_store import open_store
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.store_use import MANIFEST
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import is_selected
from pyspark_dledger.rocketmq.export import forms
from pyspark_dledger.rocketmq.export.forms import ExportReport, ExportSettings, FinishReport, Form
from pyspark_dledger.rocketmq.export.lake_append import append_new
from pyspark_dledger.rocketmq.export.log_range import LogRange, current_last_row, range_from_json, range_of
from pyspark_dledger.rocketmq.jobs import MapParts, Progress, map_here
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.manifest import PartReport, not_ours
from pyspark_dledger.rocketmq.jobs.target_folder import absolute_path, check_apart, locked_folder, target_path
from pyspark_dledger.rocketmq.lost.damaged_ranges import damaged_ranges
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, count_of, lost_messages

_FORMS = {
    "commitlog": "commit_log_form.CommitLogForm",
    "parquet": "parquet.ParquetForm",
    "jsonl": "json_lines.JsonLinesForm",
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
    interrupted export of the same, which is continued. For ``iceberg`` and ``delta`` it is a table, see `append_new`.
    Errors name the command `verb`.

    Raises OptionError for wrong options, StoreError if the source or the target cannot be used, MalformedError with
    mode=FAILFAST.
    """
    began = time.monotonic()
    name = forms.parse_form(to)
    read, export_options = forms.parse_export_options(name, options)
    path = absolute_path(os.fspath(source))
    read = replace(read, data_dirs=_absolute(read.data_dirs), replicas=_absolute(read.replicas))
    if name in forms.LAKES:
        if run is not map_here:
            raise OptionError(f"an export to {name} runs in one process: leave out spark")
        settings = ExportSettings(read, 0, 0, None, **export_options)
        return append_new(path, os.fspath(target), name, settings, progress)
    form = _form(name)
    log = open_store(path, read)
    folder = target_path(target)
    check_apart(log, (path, *(read.replicas or ())), folder)
    request = {"form": form.name, "source": path, "options": {**asdict(read), **export_options}}
    with locked_folder(folder, verb):
        job = Job(folder, verb, request, run, progress)
        return _Export(job, log, path, folder, form, read, export_options).run(began)


def _absolute(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if paths is None else tuple(map(absolute_path, paths))


def _form(name: str) -> Form:
    module, class_name = _FORMS[name].rsplit(".", 1)
    form: Form = getattr(import_module(f"pyspark_dledger.rocketmq.export.{module}"), class_name)()
    return form


class _Export:
    """One run of an export; the caller has locked the target."""

    def __init__(
        self,
        job: Job,
        log: StoreView,
        source: str,
        target: Path,
        form: Form,
        read: ReadOptions,
        export_options: dict[str, Any],
    ) -> None:
        self._job, self._log, self._source, self._target, self._form = job, log, source, target, form
        self._read, self._export_options = read, export_options

    def run(self, began: float) -> ExportReport:
        earlier = self._job.earlier()
        found = self._resumed_range(earlier) if earlier is not None else range_of(self._log, self._read)
        settings = ExportSettings(self._read, found.start, found.end, found.committed_index, **self._export_options)
        parts = self._form.plan(self._log, settings)
        size = found.end - found.start
        reports, resumed = self._job.write(self._form.write, parts, size, earlier=earlier, state=found.to_json())
        finish = self._form.finish(self._log, settings, self._target, reports)
        self._job.check_files((*(file for report in reports for file in report.files), *finish.files))
        now = self._log.refreshed()
        self._check_unchanged(now, found)
        report = self._report(found, reports, resumed, finish, began, now)
        self._job.end(asdict(report), reports, partial(self._form.seal, settings, self._target, reports))
        return report

    def _resumed_range(self, earlier: dict[str, Any]) -> LogRange:
        """The range of the interrupted export. Raises StoreError if the log does not have it any more."""
        try:
            found = range_from_json(earlier)
        except (KeyError, TypeError, ValueError):
            raise not_ours(self._target / MANIFEST) from None
        first = self._log.segments[0].base if self._log.segments else INT64_MAX
        if first > found.start:
            raise StoreError(
                f"{self._source}: the export begins at pos {found.start}, the log at pos {first}: the beginning has "
                f"expired: {self._job.advice}"
            )
        self._check_unchanged(self._log, found)
        return found

    def _check_unchanged(self, log: StoreView, found: LogRange) -> None:
        """Raises StoreError unless the last row of the range is unchanged."""
        last = current_last_row(log, found)
        if last != found.last:
            raise StoreError(
                f"{self._source}: expected {found.last} with CRC-32 {found.last.crc} at the end of the exported range, "
                f"found {last} with CRC-32 {last.crc}: the log was truncated or replaced during the export: "
                f"{self._job.advice}"
            )

    def _report(
        self,
        found: LogRange,
        reports: Sequence[PartReport],
        resumed: int,
        finish: FinishReport,
        began: float,
        now: StoreView,
    ) -> ExportReport:
        files = [file for report in reports for file in report.files] + list(finish.files)
        skipped = [line for report in reports for line in report.first_skipped]
        is_damaged = any(report.skipped or report.problems for report in reports)
        lost, lost_is_all = count_lost(self._log, self._read, found.start, found.end) if is_damaged else (0, True)
        return ExportReport(
            source=self._source,
            target=str(self._target),
            form=self._form.name,
            rows=sum(report.rows for report in reports),
            problems=sum(report.problems for report in reports),
            skipped=sum(report.skipped for report in reports),
            first_skipped=tuple(skipped[: forms.MAX_SKIPPED]),
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
            broker_conf=dict(finish.broker_conf),
        )

    def _notes(self, found: LogRange, now: StoreView, reports: Sequence[PartReport]) -> Iterator[str]:
        if not any(report.rows or report.skipped for report in reports):
            filters = ", ".join(_filters(self._read)) or "none"
            yield f"no row passed the filters: {filters}; to export again, delete the target or name another"
        if self._log.ledger_segments and found.beyond_committed is None:
            yield "no committed bound is known: some exported entries may not be committed"
        elif found.beyond_committed:
            yield (
                f"exported: {counted(found.beyond_committed, 'entry')} after the committed index "
                f"{found.committed_index}, which may or may not be acknowledged; isolationLevel=read_committed leaves "
                "them out"
            )
        is_whole = self._read.ending_offsets.kind == "latest" and self._read.isolation_level != "read_committed"
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
    found = lost_messages(log, damaged_ranges(log, start, end), ignore_error)
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
