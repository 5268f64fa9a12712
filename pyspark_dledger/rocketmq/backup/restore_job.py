"""Writes a store from a backup: one member of a living group, or all members of a new group.

A member of a living group helped to commit entries, and voted in terms, that the backup does not know. So it begins
with a higher term, and the file ``restored`` keeps it from voting until its log is complete (`Member.can_vote`). A new
group gets another cluster id, so that no member of the old one can join it.

Files get the present time: they do not expire before ``fileReservedHours`` have passed. The store is written in the
folder ``restoring-ID`` by a job, and moved to its place at the end. The same call continues an interrupted restore.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir, sync_dir, write_durably
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.retention import Retention, used_ratio
from pyspark_dledger.errors import DiskFullError, OptionError, StoreError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.format.state_files import MAX_TERM, RESTORED, CurrentTerm, encode_state_file
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.files import open_local
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.state_files import CHECKPOINT
from pyspark_dledger.log.io.store_paths import BACKUP_MANIFEST
from pyspark_dledger.rocketmq.backup.member_copy import DATA_FOLDER, NODE, ROOT, Manifest, entry_ranges
from pyspark_dledger.rocketmq.backup.member_copy import read_manifest as read_backup
from pyspark_dledger.rocketmq.broker.root_files import ABORT
from pyspark_dledger.rocketmq.jobs import Progress, map_here
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.new_files import FileBlocks, read_blocks, write_blocks
from pyspark_dledger.rocketmq.jobs.store_files import write_checkpoint, write_current_term, write_index
from pyspark_dledger.rocketmq.jobs.target_folder import (
    FINISHED,
    FileReport,
    PartReport,
    locked_folder,
    new_file,
    read_manifest,
)

_VERB = "restore"
_ID = re.compile(r"[^/\0\s]+")
# What an interrupted restore may have moved to its place; the folder of the member is the last.
_ROOT_NAMES = (QUEUES, CONFIG, CHECKPOINT, ABORT)


@dataclass(frozen=True)
class RestoreReport:
    """A restored store: the entries ``[first_index, last_index]`` of member ``node``.

    It begins with term ``term``, and with ``votes_from`` set it neither votes nor leads before it has an entry of that
    term. ``lacks_state`` as in `Manifest`.
    """

    target: str
    node: str
    cluster: str
    first_index: int
    last_index: int
    term: int
    votes_from: int | None
    files: int
    resumed: int
    bytes: int
    seconds: float
    lacks_state: bool
    notes: tuple[str, ...]


def restore(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    node: str,
    *,
    term: int | None = None,
    new_group: str | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Write the store of member `node` from the backup `source` to the new or empty root `target`.

    For a member of a living group, `term` is above the terms of all other members. For a group that is restored whole,
    `new_group` is a name for it: the same at all members, another one at each restore. Raises OptionError unless one of
    both is given, StoreError for a damaged backup and for another target, OSError if a disk fails.
    """
    if (term is None) == (new_group is None):
        raise OptionError("expected either a term above those of all other members, or the name of a new group")
    if new_group is not None and not new_group.strip():
        raise OptionError(f"new group: expected a name, found {new_group!r}")
    if term is not None and not 0 < term < MAX_TERM:
        raise OptionError(f"term: expected 1 to {MAX_TERM - 1}, found {term}")
    node = node.removeprefix("dledger-")
    if not _ID.fullmatch(node):
        raise OptionError(f"id: expected that of a member such as n0, found {node!r}")
    backup_folder = Path(os.path.realpath(source))
    manifest = read_backup(backup_folder)
    if manifest is None:
        found = f"no {BACKUP_MANIFEST} in it" if backup_folder.is_dir() else "no such folder"
        raise StoreError(
            f"{source}: expected a finished backup, found {found}: give the folder of --to of dledger backup"
        )
    if new_group is None and manifest.members and node not in manifest.members:
        raise StoreError(f"{source}: expected one of the members {', '.join(manifest.members)}, found {node}")
    if new_group is None and len(manifest.members) == 1:
        raise StoreError(f"{source}: its group has one member, so nobody can complete a restored one: name a new group")
    folder = Path(os.path.realpath(target))
    if folder == backup_folder or backup_folder in folder.parents or folder in backup_folder.parents:
        raise StoreError(f"{target}: expected a folder apart from the backup, found {backup_folder}")
    with locked_folder(folder, _VERB, PRIVATE_FOLDER):
        return _Restore(backup_folder, manifest, folder, node, progress).run(term, new_group)


@dataclass(frozen=True)
class _RestoredFile:
    """A file to restore: its path in the folder of the unfinished restore, and what the backup has of it."""

    path: str
    record: FileBlocks


def _write_file(source: str, file: _RestoredFile, number: int, target: Path) -> PartReport:
    """Copy a file and check both copies. Raises StoreError if one does not match the manifest."""
    record, path = file.record, Path(source, file.record.path)
    try:
        stream = os.fdopen(open_local(path), "rb")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}): the backup is incomplete") from None
    with stream, new_file(target, file.path) as new:
        blocks = read_blocks(stream, str(path), record)
        written = write_blocks(new, file.path, blocks, record.file_size, is_full=True)
    report = FileReport(file.path, written.file_size, 0, 0)
    return PartReport(number, (report,), record.size)


class _Restore:
    def __init__(self, source: Path, manifest: Manifest, target: Path, node: str, progress: Progress | None) -> None:
        self._source, self._manifest, self._target, self._node = source, manifest, target, node
        self._staging = target / f"restoring-{node}"
        self._node_dir = self._staging / NODE / f"dledger-{node}"
        request = {"form": _VERB, "source": str(source), "backup": manifest.id}
        self._job = Job(self._staging, _VERB, request, map_here, progress)

    def run(self, term: int | None, new_group: str | None) -> RestoreReport:
        began, manifest = time.monotonic(), self._manifest
        files = list(map(self._placed, manifest.all_files))
        resumed = len(files) if self._is_written() else self._write_files(files)
        self._write_index([self._staging / file.path for file in files[: len(manifest.log)]])
        start = self._write_state(term, new_group)
        self._finish()
        return RestoreReport(
            target=str(self._target),
            node=self._node,
            cluster=self._cluster(new_group),
            first_index=manifest.first_index,
            last_index=manifest.last_index,
            term=start,
            votes_from=start if new_group is None else None,
            files=len(files),
            resumed=resumed,
            bytes=sum(file.size for file in manifest.all_files),
            seconds=round(time.monotonic() - began, 3),
            lacks_state=manifest.lacks_state,
            notes=tuple(self._notes()),
        )

    # Folders

    def _is_written(self) -> bool:
        """Whether an earlier run has written all files, and may have moved some to their places.

        Raises StoreError if the target has something else, or too little room.
        """
        names = set(os.listdir(self._target)) - {"lost+found", self._staging.name}
        earlier = (read_manifest(self._staging) if self._staging.is_dir() else None) or {}
        is_unfinished = earlier.get("backup") == self._manifest.id
        if others := names - set(_ROOT_NAMES) if is_unfinished else names:
            raise StoreError(f"{self._target}: expected a new or empty folder, found {min(others)}: name another one")
        if not is_unfinished:
            if self._staging.exists():
                shutil.rmtree(self._staging)
            needed = sum(file.size for file in self._manifest.all_files)
            free = shutil.disk_usage(self._target).free
            if needed > free:
                raise DiskFullError(
                    f"{self._target}: cannot be written: expected room for {needed} bytes, found {free}: make room"
                )
            make_dir(self._staging, PRIVATE_FOLDER)
        return is_unfinished and earlier.get("state") == FINISHED

    def _placed(self, file: FileBlocks) -> _RestoredFile:
        folder, kind, *rest = file.path.split("/")
        if folder == DATA_FOLDER:
            return _RestoredFile(f"{NODE}/{self._node_dir.name}/{file.path}", file)
        return _RestoredFile("/".join([*([NODE, self._node_dir.name] if kind == NODE else [ROOT]), *rest]), file)

    def _write_files(self, files: Sequence[_RestoredFile]) -> int:
        """Copy all files, and check both copies. Returns how many of them earlier runs had copied."""
        size = sum(file.record.size for file in files)
        write = partial(_write_file, str(self._source))
        reports, resumed = self._job.write(write, files, size, earlier=self._job.earlier())
        self._job.end({}, reports)
        return resumed

    def _finish(self) -> None:
        """Move everything to its place, the folder of the member last."""
        for folder, _, _ in os.walk(self._staging):
            sync_dir(Path(folder))
        root = self._staging / ROOT
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            path.replace(self._target / path.name)
        sync_dir(self._target)
        self._node_dir.replace(self._target / self._node_dir.name)
        sync_dir(self._target)
        shutil.rmtree(self._staging)

    # Files

    def _write_index(self, log: list[Path]) -> None:
        """Write the index from the entries, which are checked once more."""
        folder = self._node_dir / "index"
        if folder.exists():
            shutil.rmtree(folder)
        write_index(folder, self._manifest.first_index, self._units(log), self._manifest.index_file_size)

    def _units(self, log: list[Path]) -> Iterator[bytes]:
        """The index units of all entries. Raises StoreError if they are not those of the manifest."""
        manifest, engine = self._manifest, get_engine()
        index, term, pos = manifest.first_index, -1, manifest.begin
        for path in log:
            base = int(path.name)
            segment = Segment.local(str(path), path.name, base, manifest.data_file_size, DLEDGER)
            start, stop = max(base, manifest.begin), min(segment.end, manifest.end)
            with path.open("rb") as file:
                for low, high in entry_ranges(engine, segment, start, stop):
                    file.seek(low - base)
                    data = file.read(high - low)
                    try:
                        checked = engine.check_entries(data, index, low, term, INT64_MAX)
                    except ValueError as error:
                        raise StoreError(f"{path} at byte {low - base}: {error}: use another backup") from None
                    index, term, pos = index + checked.count, checked.last_term, high
                    yield bytes(checked.units)
        if (index - 1, term, pos) != (manifest.last_index, manifest.last_term, manifest.end):
            raise StoreError(
                f"{self._source}: expected entry {manifest.last_index} of term {manifest.last_term} at the end, found "
                f"{index - 1} of term {term}: use another backup"
            )

    # State

    def _cluster(self, new_group: str | None) -> str:
        """The cluster id; that of a new group is the same at all members restored from this backup."""
        if new_group is None:
            return self._manifest.cluster
        return hashlib.sha256(f"{self._manifest.id}/{new_group}".encode()).hexdigest()[:32]

    def _write_state(self, term: int | None, new_group: str | None) -> int:
        """Write the other files of the member. Returns its term."""
        manifest, folder = self._manifest, self._node_dir
        write_checkpoint(folder, manifest.last_index, manifest.last_index)
        start = max(term or 0, manifest.term)
        write_current_term(folder, CurrentTerm(start, None))
        if cluster := self._cluster(new_group):
            write_durably(folder / "cluster", encode_state_file({"cluster": cluster}))
        if new_group is not None:
            # `Membership` then takes the members that the node is started with, not those of the log.
            write_durably(folder / "members", encode_state_file({"members": "", "state": '{"newGroup":true}'}))
        else:
            write_durably(folder / RESTORED, encode_state_file({"term": start}))
            if manifest.members:
                write_durably(folder / "members", encode_state_file({"members": ";".join(manifest.members)}))
        if manifest.has_root:
            # The queues are as after a kill: the next start compares them with the log.
            write_durably(self._staging / ROOT / ABORT, b"0")
        return start

    def _notes(self) -> Iterator[str]:
        yield from self._manifest.notes
        used, limit = used_ratio(self._target), Retention().disk_space_ratio_to_force_clean
        if used > limit:
            yield (
                f"the disk is {used:.0%} full: above diskSpaceRatioToForceClean ({limit:.0%}) a member deletes its "
                "oldest files: make room, or start it with enableDiskForceClean=false"
            )
        if self._manifest.has_root:
            yield "a node rebuilds the index of keys when it starts; for a broker run dledger rebuild index"
