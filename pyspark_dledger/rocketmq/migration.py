"""Moves a DLedger group to brokers without DLedger: a store for each of them, all with the same CommitLog.

While brokers of the group run, a run copies what is committed. When all are stopped, the same call adds the rest, and
writes queues, index, configuration and epochs. Each store is an export to a CommitLog (`export.commit_log_form`): equal
logs give equal files. Files that an earlier run has written stay, whichever replica they came from, because committed
entries never change. Only the file with the end of the log is written again. Likewise,
only the first run checks all of the logs: a later one looks at what was appended since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import write_durably
from pyspark_dledger.common.plurals import counted, enumerated
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.format.state_files import EPOCH_FILE, Epoch, crc32, encode_epochs
from pyspark_dledger.log.committed import promised_end
from pyspark_dledger.log.diff.verdict import GroupVerdict
from pyspark_dledger.log.io.broker_config import read_config
from pyspark_dledger.log.io.store_use import StoreWatch
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_between, read_partition
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.store_view import StoreView, answer, with_end
from pyspark_dledger.rocketmq.check import check_stores
from pyspark_dledger.rocketmq.check.check_report import NOTHING, WITH_LOSS, CheckReport, MemberCheck
from pyspark_dledger.rocketmq.check.store_facts import YES, watch_of
from pyspark_dledger.rocketmq.export.commit_log_form import CommitLogForm
from pyspark_dledger.rocketmq.export.export_job import LogRange, check_last_row, range_of
from pyspark_dledger.rocketmq.export.forms import MAX_SKIPPED, ExportSettings
from pyspark_dledger.rocketmq.jobs import Progress, map_here
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.store_files import copy_rest, paths_in_conf
from pyspark_dledger.rocketmq.jobs.target_folder import (
    FINISHED,
    FileReport,
    PartReport,
    absolute_path,
    check_apart,
    locked_folder,
    parsed,
    read_manifest,
    target_path,
)

CONTROLLER, SLAVES = "controller", "slaves"
MODES = (CONTROLLER, SLAVES)
_VERB = "migration"
_FIRST_EPOCH = Epoch(0, 0)
"""The epoch of all that the group has written. The first master of a controller has epoch 1.

With it, a master finds an epoch for every position, also when an empty broker joins. A broker that was master and lost
an election finds the point up to which it agrees with the next one. Source: RocketMQ 5.3.3 ``AutoSwitchHAClient``,
``AutoSwitchHAConnection``, ``EpochFileCache``.
"""


class NotSafeError(StoreError):
    """No replica has all that the group has written: ``report`` says what would be lost, and what to do."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__("no replica has all of the log intact: nothing was written")
        self.report = report


@dataclass(frozen=True)
class NewStore:
    """A store that a migration wrote: the settings that its broker needs, and a checksum of its CommitLog."""

    path: str
    rows: int
    skipped: int
    first_skipped: tuple[str, ...]
    files: int
    bytes: int
    log_crc32: int
    notes: tuple[str, ...]
    broker_conf: dict[str, str]


@dataclass(frozen=True)
class MigrationReport:
    """A run of a migration, from the replica ``source``.

    ``stores`` are finished; without any, brokers are ``in_use`` and the targets have the log up to index ``end_index``.
    ``kept`` of all ``files`` of the log were there already.
    """

    source: str
    targets: tuple[str, ...]
    mode: str
    in_use: tuple[str, ...]
    end_index: int | None
    files: int
    kept: int
    bytes: int
    seconds: float
    stores: tuple[NewStore, ...] = ()
    notes: tuple[str, ...] = ()


def migrate(
    sources: Sequence[str | os.PathLike[str]],
    targets: Sequence[str | os.PathLike[str]],
    mode: str = CONTROLLER,
    *,
    progress: Progress | None = None,
) -> MigrationReport:
    """Write a store to each of the `targets` from the replicas of a group, for brokers of that `mode`.

    The first target is the master's. The same call continues a migration, also one that was interrupted.

    Raises NotSafeError if something would be lost, OptionError for wrong arguments, StoreError if a source or a target
    cannot be used.
    """
    began = time.monotonic()
    if mode not in MODES:
        raise OptionError(f"expected a migration for {' or '.join(MODES)}, found {mode}")
    folders = list(map(target_path, targets))
    if not folders or len(set(folders)) < len(folders):
        raise OptionError("expected a folder of its own for each new broker, found none or one twice")
    first, *others = (absolute_path(os.fspath(source)) for source in sources)
    group = answer(StoreView(first, ReadOptions(replicas=tuple(others) or None, unread=())), with_end)
    stores = [group, *group.replicas]
    for store in stores:
        if not store.ledger_segments:
            raise StoreError(f"{store.path}: expected a store of a broker in DLedger mode, found no DLedger log")
        for folder in folders:
            check_apart(store, (store.path,), folder)
    request = {"form": _VERB, "source": ", ".join((first, *others)), "mode": mode}
    watches = list(map(watch_of, stores))
    names = replica_names(stores)
    source = _source_of_rest(stores, [_copied_range(folder, request) for folder in folders])
    while True:
        source = source if source is not None else _checked_source(answer(group, check_stores))
        members = zip(names, stores, watches, strict=True)
        in_use = (name for name, store, watch in members if _is_in_use(store, watch))
        run = _Run(source, tuple(in_use), folders, request)
        try:
            written = [run.write(number, folder, progress) for number, folder in enumerate(folders)]
            break
        except _LeftOutError:
            source = None
    return run.report(written, time.monotonic() - began)


def _is_in_use(store: StoreView, watch: StoreWatch) -> bool:
    """Whether a process uses a store, or its log has grown since the view was opened."""
    return watch.use() is not None or store.refreshed().end.pos != store.end.pos


def _copied_range(folder: Path, request: Mapping[str, Any]) -> LogRange | None:
    """The range of the log that an earlier run of the same has written or begun to write."""
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or any(manifest.get(name) != value for name, value in request.items()):
        return None
    return LogRange.of_manifest(manifest, folder)


# The replica to copy


@dataclass(frozen=True)
class _Source:
    """The replica to copy, whether all of its log was checked, and notes on what others have."""

    path: str
    is_checked: bool
    notes: tuple[str, ...] = ()


def _checked_source(checked: CheckReport) -> _Source:
    """The replica to copy, by a check of all of the logs: one that may lead. Raises NotSafeError without one."""
    leaders = [member for member in checked.members if member.lead == YES or _loses_only_a_minority(member)]
    if _is_lost(checked) or not leaders:
        raise NotSafeError(checked)
    states = {member.name: member.facts.state for member in leaders}
    found = max(
        leaders,
        key=lambda each: (
            each.lead == YES,
            states[each.name].end_term,
            states[each.name].end_index,
            _consumed(each.facts.path),
        ),
    )
    return _Source(found.facts.path, True, tuple(_notes(found, checked)))


class _LeftOutError(Exception):
    """Rows of a replica were left out of which only the end was checked."""


def _source_of_rest(stores: Sequence[StoreView], copied: Sequence[LogRange | None]) -> _Source | None:
    """The replica to copy if an earlier run has checked all of the logs up to the end of the ranges that it copied.

    Of stopped members, the one with the highest term and index at its end has all committed entries. None without an
    earlier run, or if the replica is not intact after the ranges, or was longer: then a check of all tells what to do.
    """
    ends = [found.last.pos for found in copied if found is not None and found.last.pos is not None]
    if len(ends) < len(copied):
        return None
    last = max(stores, key=lambda store: (store.end.last_term, store.end.last_index, _consumed(store.argument)))
    parts = plan_between(last, ("problem",), ReadOptions(), Filters(), None, min(ends), last.end.pos)
    batches = (batch for part in parts for batch in read_partition(part))
    is_intact = all(batch["problem"].null_count == batch.num_rows for batch in batches)
    was_longer = any(promised_end(store) > last.end.last_index for store in stores)
    return _Source(last.argument, False) if is_intact and not was_longer else None


def _consumed(path: str) -> int:
    """The sum of all consumer offsets of a broker; -1 if its configuration has none.

    Brokers that are not the leader have those of up to 10 s before.
    """
    root = StoreView(path, ReadOptions()).paths.root
    try:
        offsets = read_config(root).offsets if root is not None else {}
    except StoreError:
        return -1
    return sum(offset for queues in offsets.values() for offset in queues.values())


def _loses_only_a_minority(member: MemberCheck) -> bool:
    """Whether an election of a member truncates entries of others, none of which can be acknowledged."""
    losses = member.entries.losses if member.entries is not None else ()
    return member.lead == WITH_LOSS and not any(loss.on_majority for loss in losses)


def _is_lost(checked: CheckReport) -> bool:
    """Whether the logs lost something for good. What a salvage has replaced by fillers is known to be lost."""
    logs = (checked.comparison, checked.commit_logs)
    return any(
        each.verdict.answer != NOTHING and not _has_only_fillers(each.verdict) for each in logs if each is not None
    )


def _has_only_fillers(found: GroupVerdict) -> bool:
    others = found.lost_entries.entries + found.unclear_entries.entries
    return found.filled_entries.entries > 0 and not (others or found.lost_end or found.lost_ends)


def _notes(source: MemberCheck, checked: CheckReport) -> Iterator[str]:
    """Notes on replicas that have something else."""
    for loss in source.entries.losses if source.entries is not None else ():
        yield (
            f"left out: entries {loss.first_index} to {loss.last_index} of {loss.node}, which are on no majority and "
            f"not in the log of {source.name}"
        )
    if wrong := [member.name for member in checked.members if member.is_damaged]:
        yield f"{enumerated(wrong)}: damaged; {source.name} has all of the log"
    filled = checked.comparison.verdict.filled_entries.entries if checked.comparison is not None else 0
    if filled:
        yield f"{counted(filled, 'entry')} lost for good: an earlier salvage wrote fillers instead"


# The targets


@dataclass(frozen=True)
class _Written:
    """What one run wrote to one target: of ``files`` of the log ``kept`` ones were there already."""

    files: int
    kept: int
    bytes: int
    store: NewStore | None = None


class _Run:
    """One run: the range of the log is the same for all targets."""

    def __init__(
        self, source: _Source, in_use: tuple[str, ...], folders: Sequence[Path], request: Mapping[str, Any]
    ) -> None:
        self._source, self._in_use, self._folders, self._request = source, in_use, folders, request
        self._log = StoreView(source.path, ReadOptions())
        options = ReadOptions(isolation_level="read_committed") if in_use else ReadOptions()
        self._range = range_of(self._log, options)
        self._settings = ExportSettings(options, self._range.start, self._range.end, self._range.committed_index)
        self._form = CommitLogForm()
        self._first: NewStore | None = None

    def write(self, number: int, folder: Path, progress: Progress | None) -> _Written:
        """Write or continue one target."""
        with locked_folder(folder, _VERB):
            if (done := self._finished(folder)) is not None:
                self._first = self._first or done
                return _Written(done.files, done.files, done.bytes, done)
            job = Job(folder, _VERB, self._request, map_here, progress)
            earlier = job.earlier()
            if earlier is not None:
                self._check_same_log(LogRange.of_manifest(earlier, folder), job.advice)
            parts = self._form.plan(self._log, self._settings)
            found, size = self._range, self._range.end - self._range.start
            first = parts[0].segment.base // parts[0].segment.size
            reports, kept = job.write(
                self._form.write, parts, size, earlier=earlier, state=found.to_json(), first_number=first
            )
            if not self._source.is_checked and any(report.skipped for report in reports):
                raise _LeftOutError
            files = [file for report in reports for file in report.files]
            job.check_files(files)
            check_last_row(self._log.refreshed(), found, job.advice)
            written = _Written(len(files), kept, sum(file.size for file in files))
            if self._in_use:
                return written
            store = self._finish(number, folder, reports, written)
            job.end(asdict(store), reports)
            self._first = self._first or store
            return replace(written, store=store)

    def _finished(self, folder: Path) -> NewStore | None:
        """What an earlier run of the same wrote, if it has finished the target and the log has not changed since."""
        manifest = read_manifest(folder) if folder.is_dir() else None
        wanted = {**self._request, **self._range.to_json(), "state": FINISHED}
        if self._in_use or manifest is None or any(manifest.get(name) != value for name, value in wanted.items()):
            return None
        found: NewStore = parsed(NewStore, manifest["report"])
        return found

    def _check_same_log(self, earlier: LogRange, advice: str) -> None:
        """Raises StoreError unless the log has what an earlier run copied, except what has expired."""
        first = self._log.segments[0].base
        if earlier.last.pos is not None and earlier.last.pos >= first:
            check_last_row(self._log, earlier, advice)

    def _finish(self, number: int, folder: Path, reports: Sequence[PartReport], written: _Written) -> NewStore:
        """Write all files but those of the log. Those of the first target are built, the others get copies."""
        log = _checksum(file for report in reports for file in report.files)
        if self._first is None:
            done = self._form.finish(self._log, self._settings, folder, reports)
            (folder / EPOCH_FILE).unlink(missing_ok=True)
            if self._request["mode"] == CONTROLLER:
                write_durably(folder / EPOCH_FILE, encode_epochs([_FIRST_EPOCH]))
            notes, conf = done.notes, done.broker_conf
        else:
            if self._first.log_crc32 != log:
                raise StoreError(
                    f"{folder}: expected the CommitLog of {self._first.path}, found another one: check the disks, and "
                    "migrate to new folders"
                )
            copy_rest(Path(self._first.path), folder)
            notes, conf = (), {**self._first.broker_conf, **paths_in_conf(folder)}
        return NewStore(
            path=str(folder),
            rows=sum(report.rows for report in reports),
            skipped=sum(report.skipped for report in reports),
            first_skipped=tuple(line for report in reports for line in report.first_skipped)[:MAX_SKIPPED],
            files=written.files,
            bytes=written.bytes,
            log_crc32=log,
            notes=notes,
            broker_conf={**conf, **self._role(number)},
        )

    def _role(self, number: int) -> dict[str, str]:
        """The settings of a broker's role. As in DLedger mode, a majority has what is acknowledged."""
        majority = str(len(self._folders) // 2 + 1)
        if self._request["mode"] == CONTROLLER:
            return {"enableControllerMode": "true", "allAckInSyncStateSet": "true", "minInSyncReplicas": majority}
        if number > 0:
            return {"brokerRole": "SLAVE", "brokerId": str(number)}
        role = "SYNC_MASTER" if len(self._folders) > 1 else "ASYNC_MASTER"
        return {"brokerRole": role, "brokerId": "0", "inSyncReplicas": majority}

    def report(self, written: Sequence[_Written], seconds: float) -> MigrationReport:
        stores = tuple(each.store for each in written if each.store is not None)
        return MigrationReport(
            source=self._source.path,
            targets=tuple(map(str, self._folders)),
            mode=self._request["mode"],
            in_use=self._in_use,
            end_index=self._range.last.index,
            files=sum(each.files for each in written),
            kept=sum(each.kept for each in written),
            bytes=sum(each.bytes for each in written),
            seconds=round(seconds, 3),
            stores=stores,
            notes=(*self._notes(), *dict.fromkeys(note for store in stores for note in store.notes)),
        )

    def _notes(self) -> Iterator[str]:
        yield from self._source.notes
        if self._range.beyond_committed and not self._in_use:
            later = counted(self._range.beyond_committed, "entry")
            yield f"{later} after the committed index {self._range.committed_index} may not be acknowledged"


def _checksum(files: Iterable[FileReport]) -> int:
    """A checksum of names, sizes and contents of files."""
    found = sorted((file.path, file.size, file.crc32) for file in files)
    return crc32(repr(found).encode())
