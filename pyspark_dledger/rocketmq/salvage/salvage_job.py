"""Runs a salvage: plan, write, read back, verify.

The state is in the target, see `target_folder`. An interrupted salvage is continued by the same salvage: files with a
report are not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import PRIVATE_FOLDER, write_durably
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import local_target
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import segment_name
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.files import is_remote_path, path_of
from pyspark_dledger.log.io.salvage_fillers import LOST_FILE
from pyspark_dledger.log.io.unfinished import MANIFEST, RUNNING
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.salvage.lost_entries import LostEntry
from pyspark_dledger.log.salvage.plan import (
    REFUSE,
    UNDECIDED,
    SalvageOptions,
    SalvagePlan,
    committed_index,
    open_sources,
    plan_salvage,
)
from pyspark_dledger.log.salvage.plan_rows import headline, undecided_text
from pyspark_dledger.log.salvage.restored_log import Extent, RestoredLog, start_of
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.verify_store import StoreCheckPart, plan_findings, read_findings
from pyspark_dledger.rocketmq.export import target_folder
from pyspark_dledger.rocketmq.export.export_job import absolute_path
from pyspark_dledger.rocketmq.export.forms import PartReport, Progress
from pyspark_dledger.rocketmq.export.target_folder import FINISHED, STATE_FOLDER
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, UnitSpec
from pyspark_dledger.rocketmq.salvage import broker_files, node_files
from pyspark_dledger.rocketmq.salvage.known_messages import chosen_rows, lost_rows
from pyspark_dledger.rocketmq.salvage.left_units import IndexUnits, load_left
from pyspark_dledger.rocketmq.salvage.segment_file import FilePart, write_file
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

_VERSION = 3
_FORM = "salvage"
_IGNORED = {"lost+found", f"{MANIFEST}.tmp"}
DECIDED_FILE = "decided.jsonl"
"""The list of the entries that only the request decided, in the target."""


@dataclass(frozen=True)
class SalvageRequest:
    """The sources of a salvage and how to choose among them.

    ``node`` is the id of the new DLedger node, by default that of the first source. With ``store_as`` "commitlog" the
    result is a CommitLog without DLedger. With ``topics_from_log``, ``topics.json`` is built from the log if no source
    has an intact one. The others as in `SalvageOptions`.
    """

    sources: tuple[str, ...]
    node: str | None = None
    undecided: str = REFUSE
    log_of: str | None = None
    take: tuple[tuple[int, str], ...] = ()
    engine: str = "auto"
    store_as: str | None = None
    topics_from_log: bool = False

    @classmethod
    def of(cls, sources: Sequence[str | os.PathLike[str]], **options: Any) -> SalvageRequest:
        """The request for these sources. Raises OptionError for an unknown option or value."""
        known = [each.name for each in fields(cls) if each.name != "sources"]
        if unknown := set(options) - set(known):
            raise OptionError(f"unknown option {min(unknown)}: expected one of {', '.join(known)}")
        if options.get("store_as") not in (None, "commitlog"):
            raise OptionError(f"store_as: expected commitlog, found {options['store_as']}")
        if options.get("undecided", REFUSE) not in UNDECIDED:
            raise OptionError(f"undecided: expected {', '.join(UNDECIDED)}, found {options['undecided']}")
        if options.get("take"):
            options["take"] = tuple(sorted(dict(options["take"]).items()))
        given = {name: value for name, value in options.items() if value is not None}
        return cls(tuple(absolute_path(os.fspath(source)) for source in sources), **given)


@dataclass(frozen=True)
class SalvageReport:
    """The result of a finished salvage.

    ``entries`` counts entries and old messages, fillers included; ``lost`` those that no source has, which are
    fillers, listed in the target's ``lost.jsonl``. ``lost_after`` is the highest committed index after the end, and
    ``lost_until`` the position up to which a CommitLog had messages; None without one. ``findings`` are those of
    `verify` on the result. Of ``decided`` entries only the request chose the copy: they are listed in
    ``decided.jsonl``. ``unconfirmed`` entries are the last copy, which no checksum covers. ``unreadable`` sources have
    checkpoints, queues or indexes that cannot be read. ``broker_conf`` are the settings that a broker without DLedger
    needs for the result.
    """

    target: str
    headline: str
    sources: tuple[str, ...]
    node: str | None
    entries: int
    lost: int
    lost_bytes: int
    parts: int
    resumed: int
    bytes: int
    seconds: float
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    committed_index: int | None = None
    lost_after: int | None = None
    decided: int = 0
    broker_conf: dict[str, str] = field(default_factory=dict)
    unconfirmed: int = 0
    lost_until: int | None = None
    unreadable: tuple[str, ...] = ()


def plan(request: SalvageRequest, run: MapParts = map_here, progress: Progress | None = None) -> SalvagePlan:
    """Compare the sources and decide. Writes nothing. Raises StoreError, OptionError."""
    return _Sources(request).plan(run, progress)


def salvage_store(
    request: SalvageRequest,
    target: str | os.PathLike[str],
    *,
    run: MapParts = map_here,
    progress: Progress | None = None,
) -> SalvageReport:
    """As `salvage`; the result has the logs of the sources, that of DLedger included."""
    began = time.monotonic()
    sources = _Sources(request)
    folder = target_path(target)
    for store in sources.stores:
        target_folder.check_apart(store, (store.path,), folder)
    try:
        with target_folder.locked_folder(folder, PRIVATE_FOLDER):
            return _Job(sources, folder, run, progress).run(began)
    except OSError as error:
        raise target_folder.cannot_write(folder, error) from error


def target_path(target: str | os.PathLike[str]) -> Path:
    """The folder to write to. Raises OptionError for an empty or remote path."""
    if not os.fspath(target):
        raise OptionError("expected a folder to write to, found an empty path: name a folder")
    return Path(local_target(os.path.realpath(local_target(os.fspath(target)))))


def finished_report(request: SalvageRequest, folder: Path) -> SalvageReport | None:
    """The report of a finished salvage of this request in a folder; None without one."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = target_folder.read_json(folder / MANIFEST)
    if manifest.get("state") != FINISHED or any(manifest.get(name) != value for name, value in _json(request).items()):
        return None
    report: dict[str, Any] = manifest["report"]
    report = {name: tuple(value) if isinstance(value, list) else value for name, value in report.items()}
    return SalvageReport(**report)


def _json(request: SalvageRequest) -> dict[str, Any]:
    """The request as in a manifest."""
    found: dict[str, Any] = json.loads(
        json.dumps({"form": _FORM, "source": ", ".join(request.sources), **asdict(request)})
    )
    return found


class _Sources:
    """The opened sources of a request."""

    def __init__(self, request: SalvageRequest) -> None:
        self.request = request
        self.stores = open_sources(request.sources, request.engine)
        self._states = self._file_states()

    @property
    def stamp(self) -> str:
        """What tells that no file of the logs changed: it depends on sizes and times."""
        return hashlib.sha256(repr(sorted(self._states.items())).encode("utf-8", "surrogatepass")).hexdigest()

    def _file_states(self) -> dict[str, tuple[int, int] | None]:
        """Size and time of each local file of the logs; None if there is none."""
        paths = (
            part.path for store in self.stores for part in store.segments if not is_remote_path(path_of(part.path))
        )
        return {path: _state_of(path) for path in paths}

    def check_unchanged(self) -> None:
        """Raises StoreError if a file of the logs changed since the sources were opened."""
        changed = next((path for path, state in self._states.items() if _state_of(path) != state), None)
        if changed is not None:
            raise StoreError(f"{changed}: the file changed during the salvage: stop its broker, then salvage again")

    def plan(self, run: MapParts, progress: Progress | None) -> SalvagePlan:
        request = self.request
        options = SalvageOptions(request.undecided, request.log_of, request.take, request.engine)
        found = plan_salvage(self.stores, options, run, progress)
        self.check_unchanged()
        return found

    def node(self) -> str:
        return node_files.check_node_id(self.request.node or self.stores[0].paths.node)


def _state_of(path: str) -> tuple[int, int] | None:
    try:
        state = path_of(path).stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


class _Job:
    """One run of a salvage; the caller has locked the target."""

    def __init__(self, sources: _Sources, target: Path, run: MapParts, progress: Progress | None) -> None:
        self._sources, self._target, self._run, self._progress = sources, target, run, progress
        self._request = _json(sources.request)
        # That have been checked, by the number of their part.
        self._left_files: dict[int, Path] = {}

    def run(self, began: float) -> SalvageReport:
        is_new = self._check_target()
        plan = self._sources.plan(self._run, self._progress)
        check_decided(plan)
        parts = list(self._file_parts(plan))
        manifest = {
            "version": _VERSION,
            "state": RUNNING,
            **self._request,
            "parts": len(parts),
            "plan": hashlib.sha256(
                "\n".join([self._sources.stamp, *map(repr, parts)]).encode("utf-8", "surrogatepass")
            ).hexdigest(),
        }
        if is_new:
            (self._target / STATE_FOLDER).mkdir()
        elif target_folder.read_json(self._target / MANIFEST).get("plan") != manifest["plan"]:
            raise StoreError(
                f"{self._target}: the plan of the interrupted salvage differs from the current one: a source changed, "
                "or another version wrote the plan: salvage to a new folder"
            )
        if is_new:
            target_folder.write_manifest(self._target, manifest)
        shutil.rmtree(target_folder.temporary_folder(self._target), ignore_errors=True)
        reports, resumed = self._write_parts(parts)
        self._sources.check_unchanged()
        notes = [*plan.notes, *self._finish(plan, reports)]
        findings = tuple(map(str, self._findings({parts[report.number].base for report in reports if report.problems})))
        report = self._report(plan, reports, resumed, notes, findings, began)
        shutil.rmtree(target_folder.temporary_folder(self._target), ignore_errors=True)
        target_folder.write_manifest(self._target, {**manifest, "state": FINISHED, "report": asdict(report)})
        target_folder.delete_left(self._target, reports)
        return report

    def _check_target(self) -> bool:
        """Whether the target is empty; false if it has an interrupted salvage of the same. Raises StoreError else."""
        names = set(os.listdir(self._target)) - _IGNORED
        if not names or (names == {STATE_FOLDER} and not os.listdir(self._target / STATE_FOLDER)):
            with suppress(FileNotFoundError):
                (self._target / STATE_FOLDER).rmdir()
            return True
        if MANIFEST not in names:
            raise StoreError(f"{self._target}: expected a new or empty folder, found {', '.join(sorted(names)[:8])}")
        earlier = target_folder.read_json(self._target / MANIFEST)
        if earlier.get("state") == FINISHED:
            raise StoreError(f"{self._target}: expected a new or empty folder, found a finished {earlier.get('form')}")
        for name, value in {"version": _VERSION, **self._request}.items():
            if earlier.get(name) != value:
                raise StoreError(
                    f"{self._target}: the interrupted salvage has {name} {earlier.get(name)!r}, this one {value!r}: "
                    "use the same to continue it, or name another folder"
                )
        return False

    def _file_parts(self, plan: SalvagePlan) -> Iterator[FilePart]:
        engine = self._sources.request.engine
        units = self._unit_spec
        for log in plan.logs:
            folder = "commitlog" if log.source == COMMITLOG else f"dledger-{self._sources.node()}/data"
            extents = log.extents
            at = 0
            for base in range(log.base, log.end, log.file_size):
                first = at
                while at < len(extents) and start_of(extents[at]) < base + log.file_size:
                    at += 1
                own = tuple(extents[first:at])
                continues = base + log.file_size < log.end or (log.source == COMMITLOG and len(plan.logs) > 1)
                donors = {number: self._file_of(number, log, base) for number in _donors(own)}
                path = f"{folder}/{segment_name(base)}"
                yield FilePart(
                    path,
                    base,
                    log.file_size,
                    log.source,
                    own,
                    donors,
                    continues,
                    log.messages > 0,
                    engine,
                    committed_index(plan, log) if log.source == DLEDGER else None,
                    units,
                )

    def _file_of(self, number: int, log: RestoredLog, base: int) -> str:
        segments = [segment for segment in self._sources.stores[number].segments if segment.source == log.source]
        segment = segment_at(segments, base)
        assert segment is not None
        return segment.path

    def _write_parts(self, parts: Sequence[FilePart]) -> tuple[list[PartReport], int]:
        """The reports of all parts in order, and how many of them are of earlier runs."""
        found = ((number, target_folder.complete_report(self._target, number)) for number in range(len(parts)))
        reports = {number: report for number, report in found if report is not None}
        resumed = len(reports)
        remaining = [(number, part) for number, part in enumerate(parts) if number not in reports]
        total = sum(part.size for part in parts)
        for report in self._run(partial(_write_part, str(self._target)), remaining):
            reports[report.number] = report
            if self._progress is not None:
                self._progress(sum(each.source_bytes for each in reports.values()), total)
        return [reports[number] for number in range(len(parts))], resumed

    def _finish(self, plan: SalvagePlan, reports: Sequence[PartReport]) -> Iterator[str]:
        """Write all other files; runs again from its start if it was interrupted. Returns notes."""
        roots = broker_files.roots_of(self._sources.stores)
        self._list(LOST_FILE, lost_rows(plan, roots))
        self._list(DECIDED_FILE, chosen_rows(plan))
        log = plan.log(DLEDGER)
        if log is not None:
            yield from self._finish_node(plan, log, reports)
        plain = plan.log(COMMITLOG)
        if plain is not None and log is None:
            leader = self._sources.stores[plain.leader]
            # With a chosen log, others can have diverged.
            others = self._sources.stores if self._sources.request.log_of is None else []
            yield from broker_files.write_epochs([leader, *others], plain.end, self._target)
        broker_files.clear(self._target)
        result = StoreView(str(self._target), ReadOptions(engine=self._sources.request.engine))
        units = (each for _, each in self._left(reports) if each is not None)
        has_units, topics = self._unit_spec is not None, self._sources.request.topics_from_log
        yield from broker_files.write_broker_files(roots, result, self._target, units if has_units else None, topics)

    @cached_property
    def _unit_spec(self) -> UnitSpec | None:
        request = self._sources.request
        return broker_files.unit_spec(self._sources.stores, request.engine, request.topics_from_log)

    def _left(self, reports: Sequence[PartReport]) -> Iterator[tuple[IndexUnits, DispatchedUnits | None]]:
        """What the tasks left of their files, in the log's order."""
        has_units = self._unit_spec is not None
        for report in reports:
            if report.left is not None:
                path = self._left_files.get(report.number) or target_folder.left_file(self._target, report.left)
                self._left_files[report.number] = path
                yield from load_left(path, has_units)

    def _list(self, name: str, rows: Iterator[dict[str, Any]]) -> None:
        """Write rows to a file, a JSON object a line; no file without rows."""
        file = self._target / name
        file.unlink(missing_ok=True)
        if text := "".join(f"{json.dumps(row)}\n" for row in rows):
            write_durably(file, text.encode())

    def _finish_node(self, plan: SalvagePlan, log: RestoredLog, reports: Sequence[PartReport]) -> Iterator[str]:
        stores, node = self._sources.stores, self._sources.node()
        node_dir = self._target / f"dledger-{node}"
        shutil.rmtree(node_dir / "index", ignore_errors=True)
        chunks = (index.tobytes() for index, _ in self._left(reports) if len(index))
        node_files.write_index(node_dir / "index", log.first_index, chunks, node_files.index_file_size(stores))
        node_files.write_checkpoint(node_dir, committed_index(plan, log), log.last_index)
        term, note = node_files.current_term(stores, node, log.last_term)
        node_files.write_current_term(node_dir, term)
        if note is not None:
            yield note

    def _findings(self, damaged: Collection[int]) -> Iterator[Any]:
        """What `verify` finds in the result; of its files only in those at the `damaged` positions.

        All entries, index units and queues were read back and compared when they were written.
        """
        store = StoreView(str(self._target), ReadOptions(engine=self._sources.request.engine))
        for part in plan_findings(store):
            if isinstance(part, StoreCheckPart) or part.segment.base in damaged:
                yield from (finding for finding in read_findings(part) if finding.severity != "info")

    def _report(
        self,
        plan: SalvagePlan,
        reports: Sequence[PartReport],
        resumed: int,
        notes: Sequence[str],
        findings: tuple[str, ...],
        began: float,
    ) -> SalvageReport:
        ledger, plain = plan.log(DLEDGER), plan.log(COMMITLOG)
        lost = [each for log in plan.logs for each in log.lost]
        return SalvageReport(
            target=str(self._target),
            headline=headline(plan),
            sources=self._sources.request.sources,
            node=self._sources.node() if ledger is not None else None,
            entries=sum(report.rows for report in reports),
            lost=len(lost),
            lost_bytes=sum(each.size for each in lost),
            parts=len(reports),
            resumed=resumed,
            bytes=sum(file.size for report in reports for file in report.files),
            seconds=round(time.monotonic() - began, 3),
            findings=findings,
            notes=tuple(notes),
            committed_index=committed_index(plan, ledger) if ledger is not None else None,
            lost_after=ledger.lost_after if ledger is not None else None,
            decided=len(plan.chosen),
            unconfirmed=sum(max(piece.last_index - piece.first_index, 0) + 1 for piece in plan.unconfirmed),
            lost_until=plain.lost_until if plain is not None else None,
            unreadable=tuple(plan.unreadable),
        )


class UndecidedError(StoreError):
    """Nothing shows which copies are right, and the request does not choose."""


def check_decided(plan: SalvagePlan) -> None:
    """Raises UndecidedError if the plan has undecided entries without a filler."""
    if not plan.refused:
        return
    first = plan.refused[0]
    index = f"index {first.index} " if first.index >= 0 else ""
    raise UndecidedError(
        f"{counted(len(plan.refused), 'entry')}: nothing shows that a copy is right; the first: {index}at {first.pos}: "
        f"{undecided_text(first, plan)}. --undecided majority takes the bytes that most copies have, --undecided "
        "filler none of them, --take INDEX=ID that of a source"
    )


def _donors(extents: Sequence[Extent]) -> set[int]:
    return {extent.donor for extent in extents if not isinstance(extent, LostEntry)}


def _write_part(target: str, numbered: tuple[int, FilePart]) -> PartReport:
    """Write one file and its report, in this process or in a task. Raises StoreError."""
    number, part = numbered
    folder = Path(target)
    target_folder.check_running(folder)
    try:
        report = write_file(part, number, folder)
        with target_folder.new_file(folder, target_folder.report_path(number)) as file:
            target_folder.write_json(file, asdict(report))
    except OSError as error:
        raise target_folder.cannot_write(folder, error) from error
    return report
