"""Runs a salvage: what is restored from which source, the files of the result, and what to tell of it.

`jobs.job` writes the files of the log. A salvage whose result is a CommitLog without DLedger is a salvage to a folder
next to the target, then an export. Both continue an interrupted run of the same; the folder between is deleted at the
end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import PRIVATE_FOLDER, sync_dir
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import segment_name
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.salvage_fillers import exported_doubts
from pyspark_dledger.log.io.state_files import is_of_controller_mode
from pyspark_dledger.log.io.store_use import MANIFEST
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.replicas import replica_names
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
from pyspark_dledger.log.units.stored import has_tag_units
from pyspark_dledger.log.verify.findings import INFO, Finding
from pyspark_dledger.log.verify.verify_store import StoreCheckPart, plan_findings, read_findings, verify
from pyspark_dledger.rocketmq.dispatch.log_part import UnitRules
from pyspark_dledger.rocketmq.export.export_job import export
from pyspark_dledger.rocketmq.jobs import MapParts, Progress, map_here, store_files
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.new_files import left_file
from pyspark_dledger.rocketmq.jobs.target_folder import (
    FINISHED,
    PartReport,
    absolute_path,
    check_apart,
    file_state,
    locked_folder,
    parsed,
    read_json,
    target_path,
)
from pyspark_dledger.rocketmq.rebuild import builder
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, load_units
from pyspark_dledger.rocketmq.salvage.lost_list import LostList, unproven_rows
from pyspark_dledger.rocketmq.salvage.segment_file import SegmentPart, write_file

_VERB = "salvage"
_FORM = "commitlog"


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

    ``entries`` counts entries and old messages, fillers included; ``lost`` those that no source has, which are fillers,
    listed in the target's ``lost.jsonl``. ``lost_after`` is the highest committed index after the end, and
    ``lost_until`` the position up to which a CommitLog had messages; None without one. ``findings`` are those of
    `verify` on the result. Of ``decided`` entries only the request chose the copy; ``unconfirmed`` ones are the last
    copy, which no checksum covers, or one of several without a majority: ``decided.jsonl`` lists both.
    ``unreadable`` sources have checkpoints, queues or indexes that cannot be read. ``broker_conf`` are the settings
    that a broker without DLedger needs for the result.
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


def salvage(
    request: SalvageRequest,
    target: str | os.PathLike[str],
    *,
    run: MapParts = map_here,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write one store from the sources to the folder `target`, which is new or has an interrupted salvage of the same.

    Raises OptionError for wrong options; StoreError if a source or the target cannot be used, if copies differ and
    nothing decides, and if the result differs when it is read back.
    """
    began = time.monotonic()
    folder = target_path(target)
    as_store = replace(request, store_as=None)
    sources = _Sources(as_store)
    if request.store_as is None or not any(store.ledger_segments for store in sources.stores):
        return _salvage_store(sources, folder, run, progress)
    between = folder.with_name(f"{folder.name}.dledger")
    is_exported = _is_exported(folder, between)
    salvaged = _finished_report(as_store, between) or _salvage_store(sources, between, run, progress, False)
    if not is_exported:
        export(between, folder, _FORM, run=run, progress=progress, verb=_VERB, engine=request.engine)
    report = _converted_report(salvaged, folder, request.engine, began)
    shutil.rmtree(between)
    return report


def _salvage_store(
    sources: _Sources, folder: Path, run: MapParts, progress: Progress | None, is_result: bool = True
) -> SalvageReport:
    """As `salvage`; the folder has the logs of the sources, that of DLedger included, and is the result or not."""
    began = time.monotonic()
    for store in sources.stores:
        check_apart(store, (store.path,), folder)
    with locked_folder(folder, _VERB, PRIVATE_FOLDER):
        return _Salvage(sources, folder, run, progress, is_result).run(began)


def _request(request: SalvageRequest) -> dict[str, Any]:
    """The request as in a manifest."""
    return {"form": _VERB, "source": ", ".join(request.sources), **asdict(request)}


# A result without DLedger


def _is_exported(folder: Path, between: Path) -> bool:
    """Whether an interrupted salvage already wrote the target. Raises StoreError if it has anything else."""
    names = os.listdir(folder) if folder.is_dir() else []
    state = read_json(folder / MANIFEST).get("state") if MANIFEST in names else None
    if not between.exists() and names and state in (None, FINISHED):
        found = "a finished salvage or export" if state is not None else ", ".join(sorted(names)[:8])
        raise StoreError(f"{folder}: expected a new or empty folder, found {found}: name another folder")
    return state == FINISHED


def _finished_report(request: SalvageRequest, folder: Path) -> SalvageReport | None:
    """The report of a finished salvage of this request in a folder; None without one."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_json(folder / MANIFEST)
    wanted = json.loads(json.dumps({**_request(request), "state": FINISHED}))
    if any(manifest.get(name) != value for name, value in wanted.items()):
        return None
    found: SalvageReport = parsed(SalvageReport, manifest["report"])
    return found


def _converted_report(salvaged: SalvageReport, folder: Path, engine: str, began: float) -> SalvageReport:
    """The report of a salvage whose result was exported to a folder."""
    exported = read_json(folder / MANIFEST)["report"]
    found = verify(StoreView(str(folder), ReadOptions(engine=engine)))
    notes = [*salvaged.notes]
    if exported["skipped"]:
        first = exported["first_skipped"][0]
        notes.append(f"not in the result: {counted(exported['skipped'], 'entry')} that are no messages; first {first}")
    return replace(
        salvaged,
        target=str(folder),
        node=None,
        entries=exported["rows"],
        parts=exported["parts"],
        resumed=exported["resumed"],
        bytes=exported["bytes"],
        seconds=round(time.monotonic() - began, 3),
        findings=tuple(map(str, filter(_is_told, found))),
        notes=tuple(dict.fromkeys([*notes, *exported["notes"]])),
        broker_conf=exported["broker_conf"],
    )


# The salvage


class _Sources:
    """The opened sources of a request, by their names: of equal copies, that of the first one is written."""

    def __init__(self, request: SalvageRequest) -> None:
        self.request = request
        opened = open_sources(request.sources, request.engine)
        self._own_node = opened[0].paths.node
        self.stores = [opened[number] for number, _ in sorted(enumerate(replica_names(opened)), key=itemgetter(1))]
        self._states = self._file_states()

    @property
    def stamp(self) -> str:
        """What tells that no file of the logs changed: it depends on sizes and times."""
        return hashlib.sha256(repr(sorted(self._states.items())).encode("utf-8", "surrogatepass")).hexdigest()

    def _file_states(self) -> dict[str, tuple[int, int] | None]:
        """Size and time of each local file of the logs; None if there is none."""
        paths = (part.path for store in self.stores for part in store.segments if part.file.is_local)
        return {path: file_state(path) for path in paths}

    def check_unchanged(self) -> None:
        """Raises StoreError if a file of the logs changed since the sources were opened."""
        changed = next((path for path, state in self._states.items() if file_state(path) != state), None)
        if changed is not None:
            raise StoreError(f"{changed}: the file changed during the salvage: stop its broker, then salvage again")

    def plan(self, run: MapParts, progress: Progress | None) -> SalvagePlan:
        request = self.request
        options = SalvageOptions(request.undecided, request.log_of, request.take, request.engine)
        found = plan_salvage(self.stores, options, run, progress)
        self.check_unchanged()
        return found

    def node(self) -> str:
        return store_files.check_node_id(self.request.node or self._own_node)


class _Salvage:
    """One run of a salvage; the caller has locked the target."""

    def __init__(
        self, sources: _Sources, target: Path, run: MapParts, progress: Progress | None, is_result: bool
    ) -> None:
        self._sources, self._target, self._run, self._progress = sources, target, run, progress
        self._is_result = is_result
        self._job = Job(target, _VERB, _request(sources.request), run, progress)
        # That have been checked, by the number of their part.
        self._left_files: dict[int, Path] = {}

    def run(self, began: float) -> SalvageReport:
        earlier = self._job.earlier()
        plan = self._sources.plan(self._run, self._progress)
        check_decided(plan)
        parts = list(self._file_parts(plan))
        size, stamp = sum(part.size for part in parts), self._sources.stamp
        reports, resumed = self._job.write(write_file, parts, size, earlier=earlier, stamp=stamp)
        self._job.check_files(file for report in reports for file in report.files)
        self._sources.check_unchanged()
        notes = [*plan.notes, *self._finish(plan, reports)]
        findings = tuple(map(str, self._findings({parts[report.number].base for report in reports if report.problems})))
        report = self._report(plan, reports, resumed, notes, findings, began)
        self._job.end(asdict(report), reports)
        return report

    def _file_parts(self, plan: SalvagePlan) -> Iterator[SegmentPart]:
        engine = self._sources.request.engine
        units = self._unit_rules
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
                yield SegmentPart(
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

    def _finish(self, plan: SalvagePlan, reports: Sequence[PartReport]) -> Iterator[str]:
        """Write all other files; runs again from its start if it was interrupted. Returns notes."""
        roots = store_files.roots_of(self._sources.stores)
        lost = LostList(plan, roots)
        earlier = chain.from_iterable(exported_doubts(store.paths) for store in self._sources.stores)
        store_files.write_lists(self._target, lost.rows(), chain(unproven_rows(plan), earlier))
        log = plan.log(DLEDGER)
        if log is not None:
            yield from self._finish_node(plan, log, reports)
        plain = plan.log(COMMITLOG)
        if plain is not None and log is None:
            stores = self._sources.stores
            members = [store for number, store in enumerate(stores) if plain.stops[number] >= plain.end]
            yield from store_files.write_epochs([stores[plain.leader], *members], plain.end, self._target)
        store_files.clear(self._target)
        if self._unit_rules is not None:
            result = StoreView(str(self._target), ReadOptions(engine=self._sources.request.engine))
            root, sizes = store_files.root_with_queues(roots), store_files.sizes_of(roots)
            units, ends = self._left(reports), lost.queue_ends()
            built = store_files.build_queues_and_index(units, result, self._target, sizes, root, ends)
            yield from builder.notes_of_queues(built)
        yield from store_files.copy_config(roots, self._target)
        if self._sources.request.topics_from_log:
            yield from store_files.write_topics(roots, self._target)
        yield from store_files.notes_of_left_out(roots, "salvaged")
        sync_dir(self._target)

    @cached_property
    def _unit_rules(self) -> UnitRules | None:
        """The rules of the log's units and keys; None if no source has queues, and nothing needs them."""
        stores, request = self._sources.stores, self._sources.request
        roots = store_files.roots_of(stores)
        root = store_files.root_with_queues(roots)
        if root is None and not request.topics_from_log and not any(map(is_of_controller_mode, roots)):
            return None
        has_tags = any(map(has_tag_units, stores))
        return UnitRules(has_tags=has_tags, batch_topics=builder.batch_topics_of(root))

    def _left(self, reports: Sequence[PartReport]) -> Iterator[DispatchedUnits]:
        """What the tasks left of their files, in the log's order."""
        for report in reports:
            if report.left is not None:
                path = self._left_files.get(report.number) or left_file(self._target, report.left)
                self._left_files[report.number] = path
                yield from load_units(path)

    def _finish_node(self, plan: SalvagePlan, log: RestoredLog, reports: Sequence[PartReport]) -> Iterator[str]:
        stores, node = self._sources.stores, self._sources.node()
        node_dir = self._target / f"dledger-{node}"
        shutil.rmtree(node_dir / "index", ignore_errors=True)
        chunks = (each.index_units.tobytes() for each in self._left(reports) if len(each.index_units))
        store_files.write_index(node_dir / "index", log.first_index, chunks, store_files.index_file_size(stores))
        store_files.write_checkpoint(node_dir, committed_index(plan, log), log.last_index)
        term, note = store_files.current_term(stores, node, log.last_term)
        store_files.write_current_term(node_dir, term)
        if note is not None and self._is_result:
            yield note

    def _findings(self, damaged: Collection[int]) -> Iterator[Finding]:
        """What `verify` finds in the result; of its files only in those at the `damaged` positions.

        All entries, index units and queues were read back and compared when they were written.
        """
        store = StoreView(str(self._target), ReadOptions(engine=self._sources.request.engine))
        for part in plan_findings(store):
            if isinstance(part, StoreCheckPart) or part.segment.base in damaged:
                yield from filter(_is_told, read_findings(part))

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
        f"{undecided_text(first, plan)}. --undecided majority takes the bytes that most copies have, or one of the "
        "copies if there is no majority; --take INDEX=ID takes the copy of a source, --undecided filler none"
    )


def _is_told(finding: Finding) -> bool:
    """Whether the report has a finding: also a copy that was taken although it fails its checks."""
    return finding.severity != INFO or finding.code == "decidedCopy"


def _donors(extents: Sequence[Extent]) -> set[int]:
    return {extent.donor for extent in extents if not isinstance(extent, LostEntry)}
