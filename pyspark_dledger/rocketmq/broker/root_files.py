"""The files of a broker's root: ``lock``, ``abort`` and ``checkpoint``, and those of its log.

The log is an old CommitLog and then DLedger's. An old CommitLog's files expire, and ConsumeQueues and IndexFiles of
deleted messages. The store deletes DLedger's own files, once an old CommitLog has no more. The first start over an old
CommitLog closes it: DLedger's log begins after it. In the old files only the 8 bytes of a filler after the last message
are written.

Sources: RocketMQ 5.3.3 ``DefaultMessageStore.start``, ``createTempFile``, ``isTempFileExist``;
``DLedgerCommitLog.deleteExpiredFile``, ``DefaultMessageStore.CleanCommitLogService``, ``CleanConsumeQueueService``;
``DLedgerCommitLog.recover``, ``CommitLog.recoverNormally``, ``MappedFileQueue.truncateDirtyFiles``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.durable import (
    PRIVATE_FOLDER,
    cannot_write,
    open_own,
    sync_dir,
    write_durably,
    write_in_place,
)
from pyspark_dledger.common.integers import INT64_MIN
from pyspark_dledger.common.retention import Retention, used_ratio
from pyspark_dledger.errors import StoreError, StoreInUseError
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.codec import encode_message_blank
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_BLANK_SIZE, is_segment_name, segment_name
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, ScanRequest, Segment
from pyspark_dledger.log.io.entry_reads import entry_at, read_at
from pyspark_dledger.log.io.files import last_data, open_file
from pyspark_dledger.log.io.state_files import CHECKPOINT, CHECKPOINT_SIZE, StoreCheckpoint
from pyspark_dledger.log.io.store_paths import list_segments
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.broker.queue_writer import QueueWriter

LOCK = "lock"
ABORT = "abort"

# POSIX locks, which Java's FileChannel.tryLock takes, do not exclude a second lock in the same process.
_locked: set[tuple[int, int]] = set()


class RootLock:
    """The lock of a storePathRootDir, and its abort file, from `acquire` to `release`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor = -1
        self._file = (0, 0)

    def acquire(self) -> bool:
        """Lock the store and create `ABORT`. Returns whether it existed: the store was not closed cleanly.

        Raises StoreError if a broker or a node uses the store, or if the files cannot be written.
        """
        try:
            self._root.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            self.lock()
            abort = self._root / ABORT
            is_unclean = abort.exists()
            if not is_unclean:
                write_durably(abort, f"{os.getpid()}".encode())
                sync_dir(self._root)
        except OSError as error:
            self.unlock()
            raise StoreError(f"{self._root}: cannot be written: {error}: check permissions") from error
        return is_unclean

    def lock(self) -> None:
        """Lock the first byte, as Java does: broker and node exclude each other."""
        path = self._root / LOCK
        # Before it is opened: closing any descriptor of a file releases all locks of the process on it.
        if path.exists() and _identity(path.stat()) in _locked:
            raise StoreInUseError(f"{path}: the store is open in this process: close it")
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            os.close(descriptor)
            raise StoreInUseError(
                f"{path}: the store is in use by a broker, a node or a job of Spark: stop it, or use another folder"
            ) from None
        self._descriptor, self._file = descriptor, _identity(os.fstat(descriptor))
        _locked.add(self._file)
        os.pwrite(descriptor, b"lock", 0)

    def release(self, is_clean: bool) -> None:
        """Unlock the store. Unless `is_clean`, `ABORT` stays."""
        if self._descriptor < 0:
            return
        if is_clean:
            (self._root / ABORT).unlink(missing_ok=True)
            sync_dir(self._root)
        self.unlock()

    def unlock(self) -> None:
        """Release the lock only."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _locked.discard(self._file)
            os.close(descriptor)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock a storePathRootDir without opening it, so that neither a broker nor a node opens it meanwhile.

    Raises StoreError if one uses it, or if its lock cannot be written.
    """
    lock = RootLock(root)
    try:
        lock.lock()
    except OSError as error:
        raise cannot_write(root / LOCK, error, "try again") from error
    try:
        yield
    finally:
        lock.unlock()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def write_store_checkpoint(root: Path, checkpoint: StoreCheckpoint) -> None:
    """Write the checkpoint durably, in place as RocketMQ does. Raises StoreError if that fails.

    The numbers are in one sector: a crash leaves the old ones or the new ones.
    """
    try:
        write_in_place(root / CHECKPOINT, checkpoint.pack(), 0, CHECKPOINT_SIZE)
    except OSError as error:
        raise cannot_write(root / CHECKPOINT, error, "try again") from error


# The log

OLD_FOLDER = "commitlog"


class LogSegments:
    """Segments below ``root/commitlog`` and in `data_dirs`; `refresh` lists them again."""

    def __init__(self, root: Path, data_dirs: Iterable[Path]) -> None:
        self.old_dir = root / OLD_FOLDER
        self.data_dirs = tuple(data_dirs)
        self.segments: list[Segment] = []
        self.divided = -1
        """Where DLedger's files begin; -1 without any."""
        self.refresh()

    def refresh(self) -> None:
        """List the files. Raises StoreError if two have the same name."""
        ledger = list_segments([folder for folder in self.data_dirs if folder.is_dir()], DLEDGER, True)
        old = list_segments([self.old_dir] if self.old_dir.is_dir() else [], COMMITLOG, True)
        self.divided = ledger[0].base if ledger else -1
        if ledger:
            # From DLedger's first file on, files of the old folder do not count.
            first = ledger[0].base
            old = [replace(part, size=min(part.size, first - part.base)) for part in old if part.base < first]
        self.segments = old + ledger

    def at(self, pos: int) -> Segment | None:
        """The segment with a position, or the next one if it has expired. None if it does not exist yet."""
        for is_fresh in (False, True):
            if is_fresh:
                self.refresh()
            number = bisect_right(self.segments, pos, key=lambda segment: segment.base) - 1
            if number >= 0 and pos < self.segments[number].end:
                return self.segments[number]
        return self.segments[number + 1] if number + 1 < len(self.segments) else None

    def begin(self, engine: Engine) -> int:
        """The position of the first entry or message, or where it will be; 0 without files."""
        return self.first_in(engine, self.segments[0]) if self.segments else 0

    def first_in(self, engine: Engine, segment: Segment) -> int:
        """The position of a segment's first entry: after its beginning if the log was reset."""
        if segment.source == COMMITLOG or entry_at(segment, segment.base) is not None:
            return segment.base
        pos = engine.seek(segment, segment.base, segment.end, INT64_MIN)
        return pos if pos < segment.end else segment.base

    def pos_of(self, offset: int) -> int:
        """The position of the entry whose body is at `offset`; in an old CommitLog the offset itself."""
        return offset - ENTRY_HEADER_SIZE if 0 <= self.divided <= offset else offset


_LOG = logging.getLogger(__name__)
_MAX_DELETED = 10


class DeletedCounts(NamedTuple):
    """How many files were deleted."""

    old_files: int
    queue_files: int
    index_files: int


@dataclass
class FileCleaner:
    """`run_once` deletes. `now` returns seconds since 1970, `used` the used part of a folder's disk (0 to 1).

    ``before_old_expiry`` is called before files of an old CommitLog are deleted.
    """

    root: Path
    files: LogSegments
    settings: Retention
    queues: QueueWriter
    index: IndexWriter
    now: Callable[[], float] = time.time
    used: Callable[[Path], float] = used_ratio
    before_old_expiry: Callable[[], object] = lambda: None
    _begin: int = field(default=-1, init=False)

    def run_once(self) -> DeletedCounts:
        """Delete expired files. From the thread that writes queues and index. Raises OSError."""
        self.files.refresh()
        old = self._delete_old()
        if old:
            self.files.refresh()
        begin = self.files.segments[0].base if self.files.segments else 0
        if begin == self._begin:
            return DeletedCounts(old, 0, 0)
        cleaned = DeletedCounts(old, self.queues.delete_before(begin), self.index.delete_before(begin))
        self._begin = begin
        if any(cleaned):
            _LOG.info("the log begins at %d: deleted %d files of queues and %d of the index", begin, *cleaned[1:])
        return cleaned

    def _delete_old(self) -> int:
        """Delete the first files of an old CommitLog that have expired, at most ten, the last one among them."""
        files = [segment for segment in self.files.segments if segment.source == COMMITLOG]
        if not files:
            return 0
        settings = self.settings
        fullest = self.used(self.root)
        force = fullest > settings.disk_space_ratio_to_force_clean and settings.enable_disk_force_clean
        now = self.now()
        if not settings.is_due(now, fullest):
            return 0
        changed_before = settings.expires_before(now)
        expired = list(
            takewhile(lambda each: force or Path(each.path).stat().st_mtime <= changed_before, files[:_MAX_DELETED])
        )
        if expired:
            self.before_old_expiry()
            for segment in expired:
                Path(segment.path).unlink()
            _LOG.info("deleted %d files of the old CommitLog, up to %d", len(expired), expired[-1].end)
        return len(expired)


def begin_over_old_log(
    root: Path, data_dirs: Sequence[Path], engine_name: str = "auto", read_only: Collection[Path] = ()
) -> int:
    """Where DLedger's log begins (``dividedCommitlogOffset``); -1 without an old log and DLedger files.

    Before DLedger's first start over ``root/commitlog`` this closes the old log and creates DLedger's first file, in
    one of `data_dirs` that is not `read_only`, with the size of the old ones. Everything is durable, and an interrupted
    start is completed. The caller holds the store's lock.

    Raises StoreError if the old log does not end before DLedger's begins, or if files cannot be read or written.
    """
    engine = get_engine(engine_name)
    folder = root / OLD_FOLDER
    files = list_segments([folder], COMMITLOG, True) if folder.is_dir() else []
    old = [file for file in files if Path(file.path).stat().st_size]
    paths = (path for folder in data_dirs if folder.is_dir() for path in folder.iterdir())
    # A crash left empty ones.
    bases = [int(path.name) for path in paths if is_segment_name(path.name) and path.stat().st_size]
    if bases:
        _check_before(engine, old, min(bases))
        return min(bases)
    if not old:
        return -1
    writable = sorted({*map(str, data_dirs)} - {*map(str, read_only)})
    if not writable:
        raise StoreError(f"{root}: expected a folder for new data files, found read-only ones only: add one")
    try:
        return _close(engine, old, writable)
    except OSError as error:
        raise StoreError(f"{root}: the old CommitLog cannot be closed: {error}: check the disk") from error


def _check_before(engine: Engine, old: list[Segment], begin: int) -> None:
    """Raises StoreError if the old log has a message at or after DLedger's beginning."""
    for file in old:
        if file.base >= begin and _intact_end(engine, file) > file.base:
            raise StoreError(
                f"{file.path}: expected the old CommitLog to end before {begin}, where DLedger's files begin, found "
                "later messages: if DLedger was started here without the old files, move one of both away"
            )


def _close(engine: Engine, old: list[Segment], folders: list[str]) -> int:
    last, end = _find_end(engine, old)
    divided = last.end
    if divided % last.size:
        raise StoreError(
            f"{last.path}: expected a name that is a multiple of the file size {last.size}, found this one: DLedger "
            "cannot continue after it"
        )
    for file in old:
        if file.base > last.base:
            # Created ahead and never written.
            Path(file.path).unlink()
    _write_filler(last, end)
    sync_dir(Path(last.path).parent)
    folder = Path(folders[divided // last.size % len(folders)])
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    write_in_place(folder / segment_name(divided), b"", 0, last.size)
    for each in (folder, *list(folder.parents)[:2]):
        sync_dir(each)
    _LOG.info("the old CommitLog ends at %d; DLedger begins at %d", end, divided)
    return divided


def _find_end(engine: Engine, old: list[Segment]) -> tuple[Segment, int]:
    """The last written file, and the end of its last intact message.

    Unlike Java, which ends the log at the first damage, this continues if messages follow.
    """
    for file in reversed(old):
        if _written_end(file) > file.base:
            end = _intact_end(engine, file)
            torn = _written_end(file) - end
            if torn > MIN_BLANK_SIZE:
                _LOG.warning(
                    "%s: %d bytes from byte %d on are no messages: truncated", file.path, torn, end - file.base
                )
            return file, end
    return old[0], old[0].base


def _intact_end(engine: Engine, file: Segment) -> int:
    """The end of a file's last message with correct lengths and CRC; the file's beginning without one."""
    end = file.base
    request = ScanRequest(file, file.base, file.end, ("kind", "pos", "size", "problem"), max_batch_rows=1_000_000)
    for batch, _ in engine.scan(request):
        is_intact = pc.and_(pc.equal(batch["kind"], "message"), pc.is_null(batch["problem"]))
        intact = batch.filter(is_intact)
        if len(intact):
            end = intact["pos"][-1].as_py() + intact["size"][-1].as_py()
    return end


def _written_end(file: Segment) -> int:
    with open_file(file.path) as opened:
        return file.base + last_data(opened, 0, opened.size())


def _write_filler(file: Segment, end: int) -> None:
    """Mark the end in an old file, unless it is marked or has no room for it."""
    at, rest = end - file.base, file.end - end
    blank = encode_message_blank(rest)
    # Its magic is the second number.
    if rest >= MIN_BLANK_SIZE and read_at(file.path, at, MIN_BLANK_SIZE)[4:] != blank[4:]:
        write_in_place(Path(file.path), blank, at)
