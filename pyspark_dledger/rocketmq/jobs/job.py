"""Runs a job in parts, each of which is written once, even if the job is interrupted and run again.

The state is in the target, see `target_folder`. If a job is interrupted, the same request continues it: parts with a
report are not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.store_use import MANIFEST, RUNNING
from pyspark_dledger.rocketmq.jobs import MapParts, Progress
from pyspark_dledger.rocketmq.jobs.target_folder import (
    FINISHED,
    STATE_FOLDER,
    FileReport,
    PartReport,
    check_running,
    has_file,
    left_path,
    new_file,
    parsed,
    read_json,
    read_manifest,
    report_path,
    target_errors,
    temporary_folder,
    write_json,
    write_manifest,
)

VERSION = 2
WritePart = Callable[[Any, int, Path], PartReport]
"""Writes a part, by its number, into the target: picklable, and concurrent attempts at the same part are safe.

Files are written with `target_folder.new_file` and read back, and get their names once they are complete. Raises
StoreError and OSError.
"""
# A file system may have the first at its root; a run that was killed in its first write leaves the second.
_IGNORED = {"lost+found", f"{MANIFEST}.tmp"}
_MAX_NAMED = 8


class Job:
    """One run of a job; the caller has locked the target.

    ``request`` says what is written: it is in the manifest, and the same request continues an interrupted job.
    """

    def __init__(
        self, target: Path, verb: str, request: Mapping[str, Any], map_parts: MapParts, progress: Progress | None
    ) -> None:
        self._target, self._verb, self._map_parts, self._progress = target, verb, map_parts, progress
        # As it is read back from a manifest.
        self._manifest: dict[str, Any] = json.loads(json.dumps({"version": VERSION, "state": RUNNING, **request}))

    def earlier(self) -> dict[str, Any] | None:
        """The manifest of the interrupted job in the target; None in an empty target. Raises StoreError for others."""
        names = set(os.listdir(self._target)) - _IGNORED
        # The state folder is created before the manifest.
        if not names or (names == {STATE_FOLDER} and not os.listdir(self._target / STATE_FOLDER)):
            with suppress(FileNotFoundError):
                (self._target / STATE_FOLDER).rmdir()
            return None
        found = read_manifest(self._target)
        if found is None:
            shown = ", ".join(sorted(names)[:_MAX_NAMED])
            raise StoreError(f"{self._target}: expected a new or empty folder, found {shown}: name another folder")
        if found.get("version") != VERSION:
            raise StoreError(
                f"{self._target / MANIFEST}: expected version {VERSION}, found {found.get('version')!r}: {self.advice}"
            )
        if found.get("state") == FINISHED:
            raise StoreError(
                f"{self._target}: expected a new or empty folder, found a finished {self._verb} of "
                f"{found.get('source')}: name another folder"
            )
        for name, value in self._manifest.items():
            if found.get(name) != value:
                earlier, now = _difference(found.get(name), value)
                raise StoreError(
                    f"{self._target}: the interrupted {self._verb} has the {name} {earlier}, this one {now}: use the "
                    "same to continue it, or name another folder"
                )
        return found

    @property
    def advice(self) -> str:
        """The advice in errors of a job that cannot be continued."""
        return f"{self._verb} to a new folder"

    def write(
        self,
        write: WritePart,
        parts: Sequence[Any],
        total: int,
        *,
        earlier: Mapping[str, Any] | None,
        state: Mapping[str, Any] | None = None,
        stamp: str = "",
        first_number: int | None = None,
    ) -> tuple[list[PartReport], int]:
        """Write all parts. Returns their reports in order, and how many of them are of earlier runs.

        The repr of a part is the same for the same plan; `stamp` says which sources it is of. `state` is kept in the
        manifest. `earlier` is what `earlier` returned; StoreError if its plan is another one. `total` are the bytes to
        write. With `first_number`, that of the first part, the plan may grow: parts that changed are written again, and
        files of parts that it no longer has are deleted.
        """
        plan = "\n".join([stamp, *map(repr, parts)]).encode("utf-8", "surrogatepass")
        self._manifest |= {**(state or {}), "parts": len(parts), "plan": hashlib.sha256(plan).hexdigest()}
        if earlier is None:
            (self._target / STATE_FOLDER).mkdir()
            write_manifest(self._target, self._manifest)
        elif first_number is not None:
            write_manifest(self._target, self._manifest)
        elif earlier.get("plan") != self._manifest["plan"]:
            raise StoreError(
                f"{self._target}: the plan of the interrupted {self._verb} differs from the current one: files of "
                f"{self._manifest['source']} changed, or another version wrote the plan: {self.advice}"
            )
        shutil.rmtree(temporary_folder(self._target), ignore_errors=True)
        numbered = dict(enumerate(parts, first_number or 0))
        if first_number is not None:
            self._delete_others({number: _key(part) for number, part in numbered.items()})
        found = ((number, _complete_report(self._target, number)) for number in numbered)
        reports = {number: report for number, report in found if report is not None}
        resumed = len(reports)
        remaining = [(number, part) for number, part in numbered.items() if number not in reports]
        self._report_progress(reports, total)
        task = partial(_write_part, write, str(self._target), self._verb, self._manifest["plan"])
        for report in self._map_parts(task, remaining):
            reports[report.number] = report
            self._report_progress(reports, total)
        missing = next((number for number in numbered if number not in reports), None)
        if missing is not None:
            raise StoreError(
                f"{self._target}: expected reports of {len(parts)} parts, part {missing} is missing: run it again"
            )
        return [reports[number] for number in numbered], resumed

    def _delete_others(self, keys: Mapping[int, str]) -> None:
        """Delete the reports of parts with other keys or left out rows, and the files of parts without a key."""
        for path in sorted((self._target / STATE_FOLDER).glob("part-*.json")):
            number = int(path.stem.removeprefix("part-"))
            report = _complete_report(self._target, number)
            if report is not None and (report.key, report.skipped) == (keys.get(number), 0):
                continue
            if report is not None and number not in keys:
                for file in report.all_files:
                    (self._target / file.path).unlink(missing_ok=True)
            path.unlink()

    def _report_progress(self, reports: Mapping[int, PartReport], total: int) -> None:
        if self._progress is not None:
            self._progress(min(sum(report.source_bytes for report in reports.values()), total), total)

    def check_files(self, files: Iterable[FileReport]) -> None:
        """Raises StoreError unless every file exists with its size."""
        for file in files:
            if not has_file(self._target, file):
                raise StoreError(
                    f"{self._target / file.path}: the {self._verb} wrote a file of {file.size} bytes, which is missing "
                    "or changed: check that every executor sees the target, and that nobody else writes there"
                )

    def end(
        self,
        report: Mapping[str, Any],
        reports: Sequence[PartReport],
        seal: Callable[[dict[str, Any]], bool] = lambda _: False,
    ) -> None:
        """Record that the job is finished. If `seal` has kept the manifest elsewhere, the job's own files are deleted.

        Raises OSError.
        """
        manifest = {**self._manifest, "state": FINISHED, "report": report}
        is_sealed = seal(manifest)
        shutil.rmtree(temporary_folder(self._target), ignore_errors=True)
        write_manifest(self._target, manifest)
        for left in (each.left for each in reports if each.left is not None):
            with suppress(OSError):
                (self._target / left.path).unlink()
        if is_sealed:
            shutil.rmtree(self._target / STATE_FOLDER, ignore_errors=True)
            (self._target / MANIFEST).unlink()
            sync_dir(self._target)


def _complete_report(target: Path, number: int) -> PartReport | None:
    """The report of a part that an earlier run finished, if its files have their sizes. Raises StoreError."""
    file = target / report_path(number)
    if not file.exists():
        return None
    try:
        report: PartReport = parsed(PartReport, read_json(file))
        if report.left is not None and report.left.path != left_path(report.number):
            raise ValueError(report.left.path)
    except (StoreError, ValueError):
        raise StoreError(f"{file}: not a report of a part, or damaged: delete it to write the part again") from None
    return report if report.number == number and all(has_file(target, each) for each in report.all_files) else None


def _key(part: Any) -> str:
    """What tells two versions of a part apart: its own ``key``, by default its repr."""
    return hashlib.sha256(str(getattr(part, "key", part)).encode("utf-8", "surrogatepass")).hexdigest()


def _write_part(write: WritePart, target: str, verb: str, plan: str, numbered: tuple[int, Any]) -> PartReport:
    """Write one part and its report, in this process or in a task.

    Raises StoreError and, with mode=FAILFAST, MalformedError.
    """
    number, part = numbered
    folder = Path(target)
    if (read_manifest(folder) or {}).get("plan") != plan:
        raise StoreError(
            f"{target}: the target does not have the {verb} of this part: it must be a folder that every executor sees "
            "at this path"
        )
    check_running(folder)
    with target_errors(folder, verb):
        report = replace(write(part, number, folder), key=_key(part))
        with new_file(folder, report_path(number)) as file:
            write_json(file, asdict(report))
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
