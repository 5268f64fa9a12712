"""Runs an export in parts, each of which is written once, even if the export is interrupted and run again.

The state is in the target, see `target_folder`. If an export is interrupted, the same export continues it: parts with a
report are not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_remote, local_target, store_path
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log.healed_store import open_store
from pyspark_dledger.log.io.store_paths import with_data_dirs
from pyspark_dledger.log.io.unfinished import MANIFEST, RUNNING
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.export import forms, target_folder
from pyspark_dledger.rocketmq.export.forms import ExportReport, ExportSettings, FinishReport, Form, PartReport, Progress
from pyspark_dledger.rocketmq.export.lake.append import append_new
from pyspark_dledger.rocketmq.export.log_range import LogRange, current_last_row, range_from_json, range_of
from pyspark_dledger.rocketmq.export.lost_count import count_lost
from pyspark_dledger.rocketmq.export.target_folder import FINISHED, STATE_FOLDER, USE_NEW_FOLDER
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

_VERSION = 2
_FORMS = {
    "commitlog": "commit_log.commit_log_form.CommitLogForm",
    "parquet": "parquet.ParquetForm",
    "jsonl": "json_lines.JsonLinesForm",
}
# A file system may have the first at its root; a run that was killed in its first write leaves the second.
_IGNORED = {"lost+found", f"{MANIFEST}.tmp"}
_MAX_NAMED = 8


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str,
    *,
    run: MapParts = map_here,
    progress: Progress | None = None,
    **options: Any,
) -> ExportReport:
    """Export the log of the store at `source` to the folder `target`, in the form `to`.

    `options` are those of a read and of an export, by their names. The target is a new or empty folder, or one with an
    interrupted export of the same, which is continued. For ``iceberg`` and ``delta`` it is a table, see `append_new`.
    Raises OptionError for wrong options, StoreError if the source
    or the target cannot be used, MalformedError with mode=FAILFAST.
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
    if not os.fspath(target):
        raise OptionError("expected a folder to export to, found an empty path: name a folder")
    folder = Path(local_target(os.path.realpath(local_target(os.fspath(target)))))
    target_folder.check_apart(log, (path, *(read.replicas or ())), folder)
    try:
        with target_folder.locked_folder(folder):
            return _Job(log, path, folder, form, read, export_options, run, progress).run(began)
    except OSError as error:
        raise target_folder.cannot_write(folder, error) from error


def absolute_path(path: str) -> str:
    """The path of a store for any process: a URI, or an absolute path.

    Links are resolved, unless only a link avoids a name that is not UTF-8.
    """
    found = store_path(path)
    if is_remote(found):
        return found
    first, more = with_data_dirs(found)
    return ",".join(map(_real_path, (first, *more)))


def _real_path(path: str) -> str:
    real = os.path.realpath(path)
    return real if is_utf8(real) else str(Path(path).absolute())


def _absolute(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if paths is None else tuple(map(absolute_path, paths))


def _form(name: str) -> Form:
    module, class_name = _FORMS[name].rsplit(".", 1)
    form: Form = getattr(import_module(f"pyspark_dledger.rocketmq.export.{module}"), class_name)()
    return form


class _Job:
    """One run of an export; the caller has locked the target."""

    def __init__(
        self,
        log: StoreView,
        source: str,
        target: Path,
        form: Form,
        read: ReadOptions,
        export_options: dict[str, Any],
        map_parts: MapParts,
        progress: Progress | None,
    ) -> None:
        self._log, self._source, self._target, self._form = log, source, target, form
        self._read, self._export_options, self._map_parts, self._progress = read, export_options, map_parts, progress
        request = {"form": form.name, "source": source, "options": {**asdict(read), **export_options}}
        # As it is read back from a manifest.
        self._request: dict[str, Any] = json.loads(json.dumps(request))

    def run(self, began: float) -> ExportReport:
        earlier = self._earlier_manifest()
        found = self._resumed_range(earlier) if earlier is not None else range_of(self._log, self._read)
        settings = ExportSettings(self._read, found.start, found.end, found.committed_index, **self._export_options)
        parts = self._form.plan(self._log, settings)
        manifest = self._manifest(found, parts)
        if earlier is None:
            (self._target / STATE_FOLDER).mkdir()
            target_folder.write_manifest(self._target, manifest)
        elif earlier.get("plan") != manifest["plan"]:
            raise StoreError(
                f"{self._target}: the plan of the interrupted export differs from the current one: files of "
                f"{self._source} changed, or another version wrote the plan: {USE_NEW_FOLDER}"
            )
        shutil.rmtree(target_folder.temporary_folder(self._target), ignore_errors=True)
        reports, resumed = self._write_parts(parts, manifest["plan"], found.end - found.start)
        finish = self._form.finish(self._log, settings, self._target, reports)
        target_folder.check_files(self._target, reports, finish)
        now = self._log.refreshed()
        self._check_unchanged(now, found)
        report = self._report(found, reports, resumed, finish, began, now)
        manifest = {**manifest, "state": FINISHED, "report": asdict(report)}
        is_sealed = self._form.seal(settings, self._target, reports, manifest)
        shutil.rmtree(target_folder.temporary_folder(self._target), ignore_errors=True)
        target_folder.write_manifest(self._target, manifest)
        target_folder.delete_left(self._target, reports)
        if is_sealed:
            target_folder.delete_state(self._target)
        return report

    def _earlier_manifest(self) -> dict[str, Any] | None:
        """The manifest of an interrupted export; None in an empty target. Raises StoreError for anything else."""
        names = set(os.listdir(self._target)) - _IGNORED
        # The state folder is created before the manifest.
        if not names or (names == {STATE_FOLDER} and not os.listdir(self._target / STATE_FOLDER)):
            with suppress(FileNotFoundError):
                (self._target / STATE_FOLDER).rmdir()
            return None
        earlier = target_folder.read_manifest(self._target)
        if earlier is None:
            shown = ", ".join(sorted(names)[:_MAX_NAMED])
            raise StoreError(f"{self._target}: expected a new or empty folder, found {shown}: name another folder")
        file = self._target / MANIFEST
        if earlier.get("version") != _VERSION:
            found = earlier.get("version")
            raise StoreError(f"{file}: expected version {_VERSION}, found {found!r}: {USE_NEW_FOLDER}")
        if earlier.get("state") == FINISHED:
            raise StoreError(
                f"{self._target}: expected a new or empty folder, found a finished export of {earlier.get('source')}: "
                "name another folder"
            )
        for name, value in self._request.items():
            if earlier.get(name) != value:
                expected, found = _difference(earlier.get(name), value)
                raise StoreError(
                    f"{self._target}: the interrupted export has the {name} {expected}, this one {found}: use the same "
                    "to continue it, or name another folder"
                )
        return earlier

    def _resumed_range(self, earlier: dict[str, Any]) -> LogRange:
        """The range of the interrupted export. Raises StoreError if the log does not have it any more."""
        try:
            found = range_from_json(earlier)
        except (KeyError, TypeError, ValueError):
            raise target_folder.not_ours(self._target / MANIFEST) from None
        first = self._log.segments[0].base if self._log.segments else INT64_MAX
        if first > found.start:
            raise StoreError(
                f"{self._source}: the export begins at pos {found.start}, the log at pos {first}: the beginning has "
                f"expired: {USE_NEW_FOLDER}"
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
                f"{USE_NEW_FOLDER}"
            )

    def _manifest(self, found: LogRange, parts: Sequence[Any]) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "state": RUNNING,
            **self._request,
            **found.to_json(),
            "parts": len(parts),
            "plan": hashlib.sha256("\n".join(map(repr, parts)).encode("utf-8", "surrogatepass")).hexdigest(),
        }

    def _write_parts(self, parts: Sequence[Any], plan: str, total: int) -> tuple[list[PartReport], int]:
        """The reports of all parts in order, and how many of them are of earlier runs."""
        found = ((number, target_folder.complete_report(self._target, number)) for number in range(len(parts)))
        reports = {number: report for number, report in found if report is not None}
        resumed = len(reports)
        remaining = [(number, part) for number, part in enumerate(parts) if number not in reports]
        self._report_progress(reports, total)
        for report in self._map_parts(partial(_write_part, self._form, str(self._target), plan), remaining):
            reports[report.number] = report
            self._report_progress(reports, total)
        return [reports[number] for number in range(len(parts))], resumed

    def _report_progress(self, reports: dict[int, PartReport], total: int) -> None:
        if self._progress is not None:
            done = sum(report.source_bytes for report in reports.values())
            self._progress(min(done, total), total)

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


def _write_part(form: Form, target: str, plan: str, numbered: tuple[int, Any]) -> PartReport:
    """Write one part and its report, in this process or in a task.

    Raises StoreError and, with mode=FAILFAST, MalformedError.
    """
    number, part = numbered
    folder = Path(target)
    if (target_folder.read_manifest(folder) or {}).get("plan") != plan:
        raise StoreError(
            f"{target}: the target does not have the export of this part: it must be a folder that every executor sees "
            "at this path"
        )
    target_folder.check_running(folder)
    try:
        report = form.write(part, number, folder)
        rows = sum(file.rows for file in report.files)
        if report.rows != rows:
            raise StoreError(
                f"{target}: part {number}: expected {report.rows} rows in its files, found {rows}: export again"
            )
        with target_folder.new_file(folder, target_folder.report_path(number)) as file:
            target_folder.write_json(file, asdict(report))
    except OSError as error:
        raise target_folder.cannot_write(folder, error) from error
    return report


def _difference(earlier: Any, now: Any) -> tuple[str, str]:
    """The differing values of two manifests, as text."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
        return (
            ", ".join(f"{name} {earlier.get(name)!r}" for name in names),
            ", ".join(f"{name} {now.get(name)!r}" for name in names),
        )
    return repr(earlier), repr(now)
