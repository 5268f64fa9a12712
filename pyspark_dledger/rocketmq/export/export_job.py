"""An export from the first look at the target to the last check: in parts, each done once, whatever ends it between.

A target holds, beside what is exported, ``_export.json`` (what is exported, from where, how far, and whether it is
done) and ``_export/part-NNNNN.json``, the report of a part, written when all of the part is there and verified. What a
part leaves for the end of the export stands beside its report, as ``_export/part-NNNNN.left``, until that is done. An
export that ended early goes on when it is asked for again: parts with a report stay as they are.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.common.uris import is_remote, local_target, store_path
from pyspark_dledger.errors import DiskFullError, OptionError, StoreError, StoreInUseError
from pyspark_dledger.log.io.files import is_remote_path, path_of
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.export.export_options import parse_export_options, parse_form
from pyspark_dledger.rocketmq.export.forms import (
    FINISHED,
    MANIFEST,
    MOST_SKIPPED,
    RUNNING,
    STATE_FOLDER,
    ExportReport,
    ExportSettings,
    FileReport,
    FinishReport,
    Form,
    PartReport,
    Progress,
    check_running,
    left_path,
    make_folders,
    new_file,
    report_path,
    temporary_folder,
)
from pyspark_dledger.rocketmq.export.ranges import LogRange, range_from_json, range_of, row_again
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

_VERSION = 2
_FORMS = {
    "commitlog": "commit_log.commit_log_form.CommitLogForm",
    "parquet": "parquet.ParquetForm",
    "jsonl": "json_lines.JsonLinesForm",
}
# What a new target may hold: a file system has this at its own root, and a first run may have ended in its first write.
_NOTHING_YET = {"lost+found", f"{MANIFEST}.tmp"}
_MOST_NAMED = 8
_MOST_STATE_BYTES = 256 * 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PLACES_OF_A_STORE = ("consumequeue", "batchconsumequeue", "index", "config")


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

    `options` are those of a read and of an export, by the same names. `progress` is called with bytes of the log that
    are done, and all. The target is a new or empty folder, or one with an export of the same that ended early, which
    goes on. Raises OptionError for wrong options, StoreError for a source or a target that cannot be used,
    MalformedError with mode=FAILFAST.
    """
    began = time.monotonic()
    name = parse_form(to)
    parsed = parse_export_options(name, options)
    form = _form(name)
    path = absolute_path(os.fspath(source))
    read = replace(parsed.read, data_dirs=_absolute(parsed.read.data_dirs), replicas=_absolute(parsed.read.replicas))
    log = StoreView(path, read)
    if not os.fspath(target):
        raise OptionError("expected a folder to export to, found an empty path: name one")
    place = Path(local_target(os.path.realpath(local_target(os.fspath(target)))))
    _check_apart(log, (path, *(read.replicas or ())), place)
    try:
        with _locked_folder(place):
            return _Job(log, path, place, form, read, parsed.export, run, progress).done(began)
    except OSError as error:
        raise cannot_write(place, error) from error


def absolute_path(path: str) -> str:
    """A path that means the same in another process: a URI, or an absolute path.

    It has no links in it, but where those are the way around a name that is not UTF-8.
    """
    found = store_path(path)
    if is_remote(found):
        return found
    real = os.path.realpath(found)
    return real if is_utf8(real) else str(Path(found).absolute())


def _absolute(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if paths is None else tuple(map(absolute_path, paths))


def cannot_write(target: Path, error: OSError) -> StoreError:
    """What the user is told of an error of the system."""
    where = error.filename or target
    goes_on = "the same export goes on where it ended"
    if error.errno in _FULL:
        return DiskFullError(f"{where}: has no room left ({error.strerror or error}): make some, then {goes_on}")
    return StoreError(f"{where}: expected to write an export ({error.strerror or error}): mend that, then {goes_on}")


def _form(name: str) -> Form:
    module, class_name = _FORMS[name].rsplit(".", 1)
    form: Form = getattr(import_module(f"pyspark_dledger.rocketmq.export.{module}"), class_name)()
    return form


def _check_apart(log: StoreView, sources: Sequence[str], target: Path) -> None:
    """Neither the target may lie in what is read, the store and its replicas, nor that in it. Raises StoreError."""
    paths = log.paths
    found = [*map(path_of, sources), paths.node_dir, *paths.data_dirs, *paths.commitlog_dirs]
    found += [paths.root / name for name in _PLACES_OF_A_STORE] if paths.root is not None else []
    for part in found:
        if part is None or is_remote_path(part):
            continue
        real = Path(os.path.realpath(part))
        if target == real or real in target.parents:
            raise StoreError(f"{target}: expected a place outside the store, found it in {real}: name another folder")
        if target in real.parents and any(name in os.listdir(target) for name in (MANIFEST, STATE_FOLDER)):
            raise StoreError(
                f"{target}: expected a place of its own, found the store {real} in it: name another folder"
            )


@contextmanager
def _locked_folder(target: Path) -> Iterator[None]:
    """The folder, made if it is not there, while nobody else exports to it; gone again if nothing was put there."""
    is_new = not target.exists()
    if not is_new and not target.is_dir():
        raise StoreError(f"{target}: expected a new or an empty folder, found a file: name a folder")
    make_folders(Path(target.anchor), target)
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, target)
        try:
            yield
        finally:
            if is_new:
                with suppress(OSError):
                    target.rmdir()  # fails where there is something
    finally:
        os.close(descriptor)


def _lock(descriptor: int, target: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreInUseError(
            f"{target}: expected a folder that no export is writing, found one: wait for its end, or name another"
        ) from None


class _Job:
    """One run of an export; the target is locked."""

    def __init__(
        self,
        log: StoreView,
        source: str,
        target: Path,
        form: Form,
        read: ReadOptions,
        given: dict[str, Any],
        run: MapParts,
        progress: Progress | None,
    ) -> None:
        self._log, self._source, self._target, self._form = log, source, target, form
        self._read, self._given, self._run, self._progress = read, given, run, progress
        self._asked = _as_json({"form": form.name, "source": source, "options": {**asdict(read), **given}})

    def done(self, began: float) -> ExportReport:
        recorded = self._recorded()
        found = self._resumed(recorded) if recorded is not None else range_of(self._log, self._read)
        settings = ExportSettings(self._read, found.start, found.end, found.committed_index, **self._given)
        parts = self._form.plan(self._log, settings)
        manifest = self._manifest(found, parts)
        if recorded is None:
            (self._target / STATE_FOLDER).mkdir()
            self._note(manifest)
        elif recorded.get("plan") != manifest["plan"]:
            raise StoreError(
                f"{self._target}: expected to go on with the parts that {self._source} was planned in, found that it "
                f"is planned otherwise now: its files were changed, or this version plans otherwise; {_ANEW}"
            )
        shutil.rmtree(temporary_folder(self._target), ignore_errors=True)
        reports, resumed = self._write_parts(parts, manifest["plan"], found.end - found.start)
        finish = self._form.finish(self._log, settings, self._target, reports)
        check_files(self._target, reports, finish)
        now = self._log.refreshed()
        self._check_unchanged(now, found)
        report = self._report(found, reports, resumed, finish, began, now)
        shutil.rmtree(temporary_folder(self._target), ignore_errors=True)
        self._note({**manifest, "state": FINISHED, "report": asdict(report)})
        _delete_left(self._target, reports)
        return report

    def _note(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, atomically and durably."""
        temporary = self._target / f"{MANIFEST}.tmp"
        _write_synced(temporary, manifest)
        temporary.replace(self._target / MANIFEST)
        sync_dir(self._target)

    def _recorded(self) -> dict[str, Any] | None:
        """What an earlier run noted; None for a new export. Raises StoreError where the target holds anything else."""
        names = set(os.listdir(self._target)) - _NOTHING_YET
        # The folder comes before the manifest.
        if not names or (names == {STATE_FOLDER} and not os.listdir(self._target / STATE_FOLDER)):
            with suppress(FileNotFoundError):
                (self._target / STATE_FOLDER).rmdir()
            return None
        if MANIFEST not in names:
            shown = ", ".join(sorted(names)[:_MOST_NAMED])
            raise StoreError(f"{self._target}: expected a new or an empty folder, found {shown}: name another folder")
        file = self._target / MANIFEST
        recorded = read_json(file)
        if recorded.get("version") != _VERSION:
            raise StoreError(f"{file}: expected version {_VERSION}, found {recorded.get('version')!r}; {_ANEW}")
        if recorded.get("state") == FINISHED:
            raise StoreError(
                f"{self._target}: expected a new or an empty folder, found a finished export of "
                f"{recorded.get('source')}: name another folder"
            )
        for name, value in self._asked.items():
            if recorded.get(name) != value:
                was, now = _difference(recorded.get(name), value)
                raise StoreError(
                    f"{self._target}: expected to go on with an export of {name} {was}, found {now}: say the same, or "
                    "name another folder"
                )
        return recorded

    def _resumed(self, recorded: dict[str, Any]) -> LogRange:
        """The range of an earlier run, if the log still holds it. Raises StoreError."""
        try:
            found = range_from_json(recorded)
        except (KeyError, TypeError, ValueError):
            raise StoreError(
                f"{self._target / MANIFEST}: expected what an export noted, found something else; {_ANEW}"
            ) from None
        first = self._log.segments[0].base if self._log.segments else INT64_MAX
        if first > found.start:
            raise StoreError(
                f"{self._source}: expected the log from pos {found.start} on, found that it begins at pos {first}: "
                f"what stood before has expired since the export began; {_ANEW}"
            )
        self._check_unchanged(self._log, found)
        return found

    def _check_unchanged(self, log: StoreView, found: LogRange) -> None:
        """The last row has to stand where it stood. Raises StoreError."""
        last = row_again(log, found)
        if last != found.last:
            raise StoreError(
                f"{self._source}: expected {found.last} with CRC {found.last.crc} at the end of what is exported, "
                f"found {last} with CRC {last.crc}: the log was cut or written anew since the export began; {_ANEW}"
            )

    def _manifest(self, found: LogRange, parts: Sequence[Any]) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "state": RUNNING,
            **self._asked,
            **found.to_json(),
            "parts": len(parts),
            "plan": hashlib.sha256("\n".join(map(repr, parts)).encode("utf-8", "surrogatepass")).hexdigest(),
        }

    def _write_parts(self, parts: Sequence[Any], plan: str, total: int) -> tuple[list[PartReport], int]:
        """The reports of all parts in order, and how many of them an earlier run had written."""
        reports = {number: report for number in range(len(parts)) if (report := self._whole_report(number)) is not None}
        resumed = len(reports)
        left = [(number, part) for number, part in enumerate(parts) if number not in reports]
        self._tell(reports, total)
        for report in self._run(partial(write_part, self._form, str(self._target), plan), left):
            reports[report.number] = report
            self._tell(reports, total)
        return [reports[number] for number in range(len(parts))], resumed

    def _tell(self, reports: dict[int, PartReport], total: int) -> None:
        if self._progress is not None:
            done = sum(report.source_bytes for report in reports.values())
            self._progress(min(done, total), total)

    def _whole_report(self, number: int) -> PartReport | None:
        """The report of a part that an earlier run finished, if its files are there."""
        file = self._target / report_path(number)
        if not file.exists():
            return None
        report = _part_report(file)
        files = report.files if report.left is None else (*report.files, report.left)
        is_there = report.number == number and all(_has(self._target, each) for each in files)
        return report if is_there else None

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
        return ExportReport(
            source=self._source,
            target=str(self._target),
            form=self._form.name,
            rows=sum(report.rows for report in reports),
            problems=sum(report.problems for report in reports),
            skipped=sum(report.skipped for report in reports),
            first_skipped=tuple(skipped[:MOST_SKIPPED]),
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
            given = ", ".join(_filters(self._read)) or "none was given"
            yield f"no row passed the filters: {given}; delete the target, or name another, before you export again"
        if self._log.ledger_segments and found.beyond_committed is None:
            yield "no committed bound is known: whether what is exported was committed cannot be told"
        elif found.beyond_committed:
            yield (
                f"{found.beyond_committed} entries behind the committed index {found.committed_index} are in the "
                "exported range: they may have been acknowledged, or not; isolationLevel=read_committed leaves them out"
            )
        is_whole = self._read.ending_offsets.kind == "latest" and self._read.isolation_level != "read_committed"
        if is_whole and found.end < max(end.pos for _, end in now.ends.values()):
            yield f"the log has grown since the export began: what stands behind pos {found.end} is not in it"


def _filters(options: ReadOptions) -> Iterator[str]:
    """The options of a read that leave out rows, times by their names alone."""
    for name, values in (("topic", options.topic), ("queueId", options.queue_id), ("tags", options.tags)):
        if values is not None:
            yield f"{name}={','.join(map(str, values))}"
    times = (("startingTimestamp", options.starting_timestamp), ("endingTimestamp", options.ending_timestamp))
    yield from (name for name, value in times if value is not None)
    if options.mode == "DROPMALFORMED":
        yield "mode=DROPMALFORMED"


_ANEW = "begin anew in another folder"


def write_part(form: Form, target: str, plan: str, numbered: tuple[int, Any]) -> PartReport:
    """Write one part and its report, in this process or in a task.

    Raises StoreError and, with mode=FAILFAST, MalformedError.
    """
    number, part = numbered
    place = Path(target)
    if not (place / MANIFEST).exists() or read_json(place / MANIFEST).get("plan") != plan:
        raise StoreError(
            f"{target}: expected the export that this is a part of, found none here: the target has to be a folder "
            "that every executor sees under this path"
        )
    check_running(place)
    try:
        report = form.write(part, number, place)
        if report.rows != sum(file.rows for file in report.files):
            raise StoreError(
                f"{target}: part {number}: expected {report.rows} rows in its files, found "
                f"{sum(file.rows for file in report.files)}: export again"
            )
        with new_file(place, report_path(number)) as file:
            _write_synced(file, asdict(report))
    except OSError as error:
        raise cannot_write(place, error) from error
    return report


def check_files(target: Path, reports: Sequence[PartReport], finish: FinishReport) -> None:
    """Every file of every report has to be there with its size. Raises StoreError."""
    for file in (*(file for report in reports for file in report.files), *finish.files):
        if not _has(target, file):
            raise StoreError(
                f"{target / file.path}: expected a file of {file.size} bytes that the export has written, found "
                "another, or none: is the target a folder that every executor sees, and does nobody else write there?"
            )


def _has(target: Path, file: FileReport) -> bool:
    try:
        return (target / file.path).stat().st_size == file.size
    except OSError:
        return False


def _delete_left(target: Path, reports: Sequence[PartReport]) -> None:
    """Delete what parts left for the end of an export, which is done: where that fails, it is in nobody's way."""
    for report in reports:
        if report.left is not None:
            with suppress(OSError):
                (target / report.left.path).unlink()


def _write_synced(file: Path, value: object) -> None:
    with file.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object that an export wrote. Raises StoreError for anything else."""
    try:
        if file.stat().st_size > _MOST_STATE_BYTES:
            raise ValueError
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError
    except (OSError, ValueError, TypeError, RecursionError):
        raise StoreError(f"{file}: expected what an export noted, found something else; {_ANEW}") from None
    return value


def _part_report(file: Path) -> PartReport:
    try:
        value = read_json(file)
        files = tuple(FileReport(**each) for each in value.pop("files"))
        left = value.pop("left")
        left = None if left is None else FileReport(**left)
        first_skipped, notes = tuple(value.pop("first_skipped")), tuple(value.pop("notes"))
        report = PartReport(files=files, left=left, first_skipped=first_skipped, notes=notes, **value)
        numbers = [report.number, report.rows, report.problems, report.skipped, report.source_bytes]
        numbers += report.counts.values()
        all_files = (*files, left) if left is not None else files
        numbers += [number for each in all_files for number in (each.size, each.crc32, each.rows)]
        texts = [each.path for each in all_files] + [*first_skipped, *notes]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError
        if not all(type(text) is str for text in texts):
            raise ValueError
        if left is not None and left.path != left_path(report.number):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StoreError(
            f"{file}: expected the report of a part, found something else: delete it, and the part is written anew"
        ) from None
    return report


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """A value as it comes back from a JSON file."""
    back: dict[str, Any] = json.loads(json.dumps(value))
    return back


def _difference(was: Any, now: Any) -> tuple[str, str]:
    """What differs of two values of a manifest, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        return (
            ", ".join(f"{name} {was.get(name)!r}" for name in names),
            ", ".join(f"{name} {now.get(name)!r}" for name in names),
        )
    return repr(was), repr(now)
