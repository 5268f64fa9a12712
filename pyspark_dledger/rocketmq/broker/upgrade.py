"""The first start of DLedger over an old CommitLog, which is closed; DLedger's log begins after it.

In the old files only the 8 bytes of a filler after the last message are written. Source: RocketMQ 5.3.3
``DLedgerCommitLog.recover``, ``CommitLog.recoverNormally``, ``MappedFileQueue.truncateDirtyFiles``.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, open_own, sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, is_segment_name, segment_name
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import OpenLocalFile, last_data
from pyspark_dledger.log.io.store_paths import list_segments
from pyspark_dledger.rocketmq.log_files import OLD_FOLDER

_LOG = logging.getLogger(__name__)

_FILLER = struct.Struct(">ii")


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
    bases = [int(path.name) for folder in data_dirs for path in _data_files(folder)]
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


def _data_files(folder: Path) -> list[Path]:
    """Data files, without empty ones, which a crash left."""
    found = folder.iterdir() if folder.is_dir() else iter(())
    return [path for path in found if is_segment_name(path.name) and path.stat().st_size]


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
    _create_data_file(Path(folders[divided // last.size % len(folders)]), divided, last.size)
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
            if torn > _FILLER.size:
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
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return file.base + last_data(OpenLocalFile(descriptor), 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _write_filler(file: Segment, end: int) -> None:
    """Mark the end in an old file, unless it is marked or has no room for it."""
    at, rest = end - file.base, file.end - end
    found = read_at(file.path, at, _FILLER.size)
    if rest < _FILLER.size or (len(found) == _FILLER.size and _FILLER.unpack(found)[1] == MESSAGE_MAGIC_BLANK):
        return
    descriptor = open_own(Path(file.path), os.O_RDWR)
    try:
        os.pwrite(descriptor, _FILLER.pack(rest, MESSAGE_MAGIC_BLANK), at)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_data_file(folder: Path, base: int, size: int) -> None:
    """Create an empty data file, sparse and of full size."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    path = folder / segment_name(base)
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    for each in (folder, *list(folder.parents)[:2]):
        sync_dir(each)
