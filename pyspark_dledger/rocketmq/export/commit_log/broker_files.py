"""Writes a broker's files other than the CommitLog: queues, index, configuration and checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir, sync_file
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.files import is_remote_path, read_start
from pyspark_dledger.log.io.key_files import FOLDER as INDEX
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.store_checkpoint import FILE as CHECKPOINT
from pyspark_dledger.log.io.store_checkpoint import StoreCheckpoint
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.consume_queue.queue_writer import UNITS_PER_FILE
from pyspark_dledger.rocketmq.export.forms import FileReport
from pyspark_dledger.rocketmq.export.target_folder import file_report, left_file, new_file
from pyspark_dledger.rocketmq.index_file.index_writer import HASH_SLOTS, INDEX_UNITS
from pyspark_dledger.rocketmq.rebuild import builder
from pyspark_dledger.rocketmq.rebuild.builder import BuildReport, BuildSettings
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, load_units
from pyspark_dledger.rocketmq.store_checkpoint import write_store_checkpoint

CONFIG = "config"
ABORT = "abort"
BROKER_FILES = (QUEUES, INDEX, CONFIG, CHECKPOINT, ABORT)
"""What the export writes into a storePathRootDir, except the CommitLog."""

_MAX_CONFIG_BYTES = 256 * 1024 * 1024
_DEFAULT_FILE_SIZE = 1024**3


def sizes_of(root: Path | None) -> BuildSettings:
    """The sizes of a broker's files in its storePathRootDir; RocketMQ's defaults where there are none."""
    units = builder.common_units_per_file(root) if root is not None else None
    slots, index_units = (builder.last_index_sizes(root) if root is not None else None) or (HASH_SLOTS, INDEX_UNITS)
    return BuildSettings(units or UNITS_PER_FILE, slots, index_units)


def clear(target: Path) -> None:
    """Remove what an earlier run wrote."""
    for name in BROKER_FILES:
        path = target / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def build_queues_and_index(
    target: Path, engine: str, sizes: BuildSettings, left: Sequence[FileReport], messages: int, keep_from: Path | None
) -> BuildReport:
    """Build ConsumeQueues and index of the CommitLog at the target, from the `left` files of its parts.

    Raises StoreError if these files changed, or do not have `messages` messages.
    """
    log = StoreView(str(target / "commitlog"), ReadOptions(engine=engine))
    built = builder.build_from_units(_load_left(target, left), log, target, sizes, keep_from)
    found = built.messages + built.skipped
    if found != messages:
        raise StoreError(f"{target}: expected {messages} messages in the new log, found {found}: check the disk")
    return built


def _load_left(target: Path, left: Sequence[FileReport]) -> Iterator[DispatchedUnits]:
    for file in left:
        yield from load_units(left_file(target, file))


def copy_config(root: Path, target: Path) -> list[FileReport]:
    """Copy ``config/*.json`` of a storePathRootDir: topics, subscription groups and consumer offsets."""
    return [_copied(file, target) for file in sorted(_config_files(root))]


def _config_files(root: Path) -> Iterator[Path]:
    folder = root / CONFIG
    for file in folder.glob("*.json") if folder.is_dir() else ():
        is_link = not is_remote_path(file) and file.is_symlink()
        if not is_link and file.is_file() and file.stat().st_size <= _MAX_CONFIG_BYTES:
            yield file


def _copied(file: Path, target: Path) -> FileReport:
    path = f"{CONFIG}/{file.name}"
    with new_file(target, path) as temporary:
        temporary.write_bytes(read_start(file, _MAX_CONFIG_BYTES))
        sync_file(temporary)
        return file_report(temporary, path, 0)


def write_checkpoint(target: Path, last_stored: int) -> FileReport:
    """Record that log, queues and index are on disk up to a storeTimestamp, in milliseconds since 1970."""
    write_store_checkpoint(target, StoreCheckpoint(last_stored, last_stored, last_stored))
    sync_dir(target)
    return file_report(target / CHECKPOINT, CHECKPOINT, 0)


def write_abort(target: Path) -> FileReport:
    """Let a broker recover as after a crash: 5.x builds missing queues only then."""
    descriptor = os.open(target / ABORT, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.close(descriptor)
    sync_dir(target)
    return FileReport(ABORT, 0, 0, 0)


def broker_conf(target: Path, file_size: int, sizes: BuildSettings) -> dict[str, str]:
    """The settings that a broker needs to serve a storePathRootDir with files of these sizes."""
    sizes_and_defaults = {
        "mappedFileSizeCommitLog": (file_size, _DEFAULT_FILE_SIZE),
        "mappedFileSizeConsumeQueue": (
            sizes.units_per_file * CONSUME_QUEUE_UNIT_SIZE,
            UNITS_PER_FILE * CONSUME_QUEUE_UNIT_SIZE,
        ),
        "maxHashSlotNum": (sizes.hash_slots, HASH_SLOTS),
        "maxIndexNum": (sizes.index_units, INDEX_UNITS),
    }
    return {
        "enableDLegerCommitLog": "false",
        "storePathRootDir": str(target),
        "storePathCommitLog": str(target / "commitlog"),
        **{name: str(value) for name, (value, default) in sizes_and_defaults.items() if value != default},
    }
