"""Backs up one member of a group, running or stopped: what it knew to be committed, in a form that `restore` reads.

The source is only read. A backup that was interrupted, or an older one of the same member, is continued: data files
that were verified are not copied again. Until the new manifest is written, the old backup stays usable.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.state_files import parse_state_file
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import MAX_STATE_SIZE, read_start
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.state_files import read_checkpoint, read_current_term
from pyspark_dledger.log.io.store_paths import BACKUP_MANIFEST, StorePaths
from pyspark_dledger.log.io.store_use import taken_locks
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.backup.member_copy import (
    DATA_FOLDER,
    PROGRESS_FOLDER,
    CopiedRange,
    ExpiredError,
    LogCopy,
    Manifest,
    MemberFiles,
    read_manifest,
    write_manifest,
)
from pyspark_dledger.rocketmq.jobs import Progress
from pyspark_dledger.rocketmq.jobs.new_files import FileBlocks
from pyspark_dledger.rocketmq.jobs.store_files import index_file_size
from pyspark_dledger.rocketmq.jobs.target_folder import check_apart, locked_folder

_STATE = "state-"
_MAX_ATTEMPTS = 10
_CHECKPOINT_SECONDS = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class BackupReport:
    """A finished backup: the entries ``[first_index, last_index]``. ``kept_files`` of ``files`` were there already.

    ``copied_bytes`` are of the log. ``lacks_state`` as in `Manifest`.
    """

    target: str
    node: str
    first_index: int
    last_index: int
    last_term: int
    files: int
    kept_files: int
    copied_bytes: int
    seconds: float
    lacks_state: bool
    notes: tuple[str, ...]


def backup(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    options: ReadOptions | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Back up the member whose store is `source` to the folder `target`.

    Raises OptionError for a remote target; StoreError for a store that is not a member's, for a damaged entry, and for
    a target with something else; OSError if a disk fails.
    """
    if is_remote(os.fspath(target)):
        raise OptionError(f"{os.fspath(target)}: expected a local folder: back up to one, and copy that")
    folder = Path(os.path.realpath(target))
    chosen = options if options is not None else ReadOptions()
    store = StoreView(os.fspath(source), chosen)
    check_apart(store, (), folder)
    with locked_folder(folder, "backup", PRIVATE_FOLDER):
        for _ in range(_MAX_ATTEMPTS):
            try:
                return _Backup(os.fspath(source), chosen, folder, progress or (lambda _done, _total: None)).run()
            except ExpiredError:
                continue
    raise StoreError(f"{source}: in {_MAX_ATTEMPTS} attempts, files expired before they were copied: keep them longer")


class _Backup:
    """One attempt."""

    def __init__(self, source: str, options: ReadOptions, target: Path, progress: Progress) -> None:
        self._source, self._options, self._target, self._progress = source, options, target, progress
        self._began = time.monotonic()
        self._store = StoreView(source, options)
        paths = self._store.paths
        if paths.node is None or paths.node_dir is None or paths.only is not None:
            raise StoreError(f"{source}: expected the store of a member, found another one: give its root")
        has_old_log = len(self._store.ledger_segments) < len(self._store.segments)
        if self._store.dialect != "0.3" or has_old_log:
            found = "an old CommitLog" if has_old_log else "a store of DLedger 0.4.0"
            raise StoreError(f"{source}: found {found}, which is not backed up: stop the member and copy its root")
        self._node, self._node_dir = paths.node, paths.node_dir
        serves_messages = paths.root is not None and any((paths.root / name).is_dir() for name in (QUEUES, CONFIG))
        self._root = paths.root if serves_messages else None
        self._before = self._earlier()

    def _earlier(self) -> Manifest | None:
        """The manifest of the target. Raises StoreError unless it is a backup of this member."""
        names = {name for name in os.listdir(self._target) if name not in ("lost+found", f"{BACKUP_MANIFEST}.tmp")}
        known = {BACKUP_MANIFEST, DATA_FOLDER, PROGRESS_FOLDER}
        if other := sorted(name for name in names - known if not name.startswith(_STATE)):
            raise StoreError(f"{self._target}: expected a new folder or a backup, found {other[0]}: name another")
        before = read_manifest(self._target)
        cluster = _property(self._node_dir, "cluster")
        clusters = {cluster, before.cluster if before is not None else ""} - {""}
        if before is not None and (before.node != self._node or len(clusters) > 1):
            raise StoreError(
                f"{self._target}: expected a backup of {self._node}, cluster {cluster or 'unknown'}, found one of "
                f"{before.node}, cluster {before.cluster or 'unknown'}: name another folder"
            )
        return before

    def run(self) -> BackupReport:
        state = self._new_state()
        files = MemberFiles(self._node_dir, self._root, self._target, state)
        files.copy_state()
        last = self._store.refreshed().end.last_index
        _wait_until_committed(self._store.paths, self._node_dir, last)
        store = self._store = self._store.refreshed()
        wanted = self._range(max(files.last_identity, files.summary_index))
        copy = LogCopy(store, wanted, self._target, self._progress)
        log = copy.run()
        files.copy_queues(wanted.end)
        if self._store.refreshed().begin_index != wanted.first_index:
            # Entries expired meanwhile: queues and summary could begin after the copied log.
            raise ExpiredError
        is_ours = (self._node_dir / "identities").is_dir()
        # Neither log nor summary tells queue offsets of expired messages; those of brokers are in queues.
        lacks_state = self._root is not None and is_ours and wanted.first_index > files.summary_index + 1
        if last > wanted.last_index:
            files.notes.append(
                f"entries {wanted.last_index + 1} to {last} are left out: nothing here proves them committed. After a "
                "kill, start the member first; in a group of one, use -o committedBound=end"
            )
        if lacks_state:
            files.notes.append(
                "the member lacks the state of expired messages, so a restored one fetches it from another"
            )
        manifest = self._manifest(wanted, log, state, files, lacks_state)
        write_manifest(self._target, manifest)
        self._delete_unused(manifest)
        return BackupReport(
            target=str(self._target),
            node=self._node,
            first_index=wanted.first_index,
            last_index=wanted.last_index,
            last_term=wanted.last_term,
            files=len(log),
            kept_files=copy.kept_files,
            copied_bytes=copy.copied_bytes,
            seconds=round(time.monotonic() - self._began, 3),
            lacks_state=lacks_state,
            notes=manifest.notes,
        )

    def _manifest(
        self, wanted: CopiedRange, log: list[FileBlocks], state: str, files: MemberFiles, lacks_state: bool
    ) -> Manifest:
        """Raises StoreError for a log of files of different sizes, and for damaged files of the member."""
        sizes = sorted({file.file_size for file in log})
        if len(sizes) > 1:
            raise StoreError(
                f"{self._store.path}: expected data files of one size, found {sizes[0]} and {sizes[1]} bytes"
            )
        current, _ = read_current_term(self._node_dir)
        voted = current.curr_term if current is not None and current.curr_term is not None else 0
        return Manifest(
            id=uuid.uuid4().hex,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            source=self._store.path,
            node=self._node,
            members=tuple(filter(None, _property(self._node_dir, "members").split(";"))),
            cluster=_property(self._node_dir, "cluster"),
            term=max(voted, wanted.last_term) + 1,
            **vars(wanted),
            data_file_size=sizes[0],
            index_file_size=index_file_size([self._store]),
            log=tuple(log),
            state=state,
            files=files.finish(),
            has_root=self._root is not None,
            lacks_state=lacks_state,
            notes=tuple(files.notes),
        )

    def _new_state(self) -> str:
        """A new folder for the files of this backup; those of unfinished ones are deleted."""
        kept = self._before.state if self._before is not None else ""
        self._delete_state(kept)
        number = int(kept.removeprefix(_STATE)) + 1 if kept else 1
        make_dir(self._target / f"{_STATE}{number}")
        return f"{_STATE}{number}"

    def _delete_state(self, kept: str) -> None:
        for path in self._target.glob(f"{_STATE}*"):
            if path.name != kept:
                shutil.rmtree(path)

    def _range(self, dispatched: int) -> CopiedRange:
        """All entries that are known to be committed; those up to `dispatched` are. Raises StoreError without one."""
        store = self._store
        bound = committed_bound(store, self._options)
        committed = max(-1 if bound.index is None else bound.index, min(dispatched, store.end.last_index))
        first_entries = store.first_entries
        if (self._node_dir / "reset").exists():
            raise StoreError(f"{self._node_dir}: the leader is replacing its log: back up later, or another member")
        if not first_entries or committed < first_entries[0][1][1]:
            raise StoreError(f"{store.path}: expected committed entries, found none ({bound.reason or bound.index})")
        begin, first_index, _ = first_entries[0][1]
        pos = store.position_of(committed)
        segment = segment_at(store.ledger_segments, pos)
        header = entry_at(segment, pos) if segment is not None else None
        if header is None or header.index != committed:
            raise StoreError(f"{store.path}: expected entry {committed} at position {pos}, found none: dledger verify")
        return CopiedRange(first_index, committed, header.term, begin, pos + header.size)

    def _delete_unused(self, manifest: Manifest) -> None:
        """Delete files of expired entries, and those of the earlier backup."""
        used = {Path(file.path).name for file in manifest.log}
        for folder, suffix in ((DATA_FOLDER, ""), (PROGRESS_FOLDER, ".json")):
            for path in (self._target / folder).iterdir():
                if path.name.removesuffix(suffix) not in used:
                    path.unlink()
        self._delete_state(manifest.state)


def _property(node_dir: Path, name: str) -> str:
    """The property of a file of the same name; "" without the file. Raises StoreError for a damaged one."""
    try:
        return parse_state_file(read_start(node_dir / name, MAX_STATE_SIZE))[name]
    except FileNotFoundError:
        return ""
    except (KeyError, ValueError) as error:
        raise StoreError(f"{node_dir / name}: expected the line {name}=..., found {error}: back up another") from None


def _wait_until_committed(paths: StorePaths, node_dir: Path, index: int) -> None:
    """Wait until the checkpoint of a running member has that index: it is up to 3 s old, and lags after a slow disk."""
    deadline = time.monotonic() + _CHECKPOINT_SECONDS
    while taken_locks(paths) and time.monotonic() < deadline:
        committed = checkpoint.committed_index if (checkpoint := read_checkpoint(node_dir)[0]) is not None else None
        if committed is not None and committed >= index:
            return
        time.sleep(_POLL_SECONDS)
