"""Copies the files of a member other than its log: summary, identities, ConsumeQueues and configuration.

The first three groups are copied before the end of the backup is chosen, so they name no later entry. ConsumeQueues are
copied after the log; units of later messages are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark_dledger.common.durable import make_dir, sync_dir, write_durably
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.files import open_file, read_start
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import QueueFile, queues, read_units
from pyspark_dledger.log.io.store_checkpoint import FILE as CHECKPOINT
from pyspark_dledger.log.io.store_checkpoint import read_store_checkpoint
from pyspark_dledger.rocketmq.backup.log_copy import ExpiredError
from pyspark_dledger.rocketmq.backup.manifest import NODE, ROOT
from pyspark_dledger.rocketmq.broker.config_files import FOLDER as CONFIG
from pyspark_dledger.rocketmq.dedup.committed_identities import FOLDER as IDENTITIES
from pyspark_dledger.rocketmq.dedup.sorted_run import SortedRun
from pyspark_dledger.rocketmq.jobs.block_file import BLOCK_BYTES, FileBlocks, write_blocks
from pyspark_dledger.rocketmq.jobs.broker_files import copy_config, notes_of_left_out
from pyspark_dledger.rocketmq.jobs.target_folder import source_errors
from pyspark_dledger.rocketmq.store_checkpoint import write_store_checkpoint
from pyspark_dledger.rocketmq.summary.summary_file import MAX_SUMMARY_SIZE, SUMMARY, Summary, parse_summary


def serves_messages(root: Path) -> bool:
    """Whether a broker or a node with messages has this root."""
    return any((root / name).is_dir() for name in (QUEUES, CONFIG))


class MemberFiles:
    """Copies to `folder` in the backup `target`."""

    def __init__(self, node_dir: Path, root: Path | None, target: Path, folder: str) -> None:
        self._node_dir, self._root = node_dir, root
        self._target, self._folder = target, folder
        self.notes: list[str] = []
        self.summary: Summary | None = None
        self.last_identity = -1
        """The last entry that the identities cover."""
        self._found: list[FileBlocks] = []

    def copy_state(self) -> None:
        """Copy all but the queues. Raises OSError, StoreError, and ExpiredError if identities were merged meanwhile."""
        self._copy_summary()
        self._copy_identities()
        if self._root is not None:
            own = self._target / self._folder / ROOT
            make_dir(own)
            # Before the queues are copied, so they have all that it names.
            write_store_checkpoint(own, read_store_checkpoint(self._root)._replace(index_msg_timestamp=0))
            self.notes += copy_config([self._root], own)
            self._found += map(self._record, [own / CHECKPOINT, *sorted((own / CONFIG).glob("*"))])
            self.notes += notes_of_left_out([self._root], "backed up")

    def _copy_summary(self) -> None:
        try:
            data = read_start(self._node_dir / SUMMARY, MAX_SUMMARY_SIZE + 1)
            self.summary = parse_summary(data)
        except FileNotFoundError:
            return
        except ValueError as error:
            self.notes.append(f"{self._node_dir / SUMMARY} is damaged, so it is left out: {error}")
            return
        file = self._target / self._folder / NODE / SUMMARY
        make_dir(file.parent)
        write_durably(file, data)
        self._found.append(self._record(file))

    def _copy_identities(self) -> None:
        folder = self._node_dir / IDENTITIES
        for path in sorted(folder.glob("*.ids")):
            try:
                self.last_identity = max(self.last_identity, SortedRun(path).range.last_index)
                self._write(f"{NODE}/{IDENTITIES}/{path.name}", _blocks(path), path.stat().st_size)
            except FileNotFoundError:
                raise ExpiredError from None
            except ValueError as error:
                self.notes.append(f"{path} is damaged, so it is left out: {error}")

    def copy_queues(self, end: int) -> None:
        """Copy the ConsumeQueues: units of messages before `end`. Raises ExpiredError, OSError, StoreError."""
        for queue in queues(self._root) if self._root is not None else ():
            for file in queue.files:
                path = f"{ROOT}/{QUEUES}/{queue.topic}/{queue.queue_id}/{file.name}"
                self._write(path, _units_before(file, end), file.units * CONSUME_QUEUE_UNIT_SIZE)

    def finish(self) -> tuple[FileBlocks, ...]:
        """The copied files; their folders are durable."""
        for folder, _, _ in os.walk(self._target / self._folder):
            sync_dir(Path(folder))
        return tuple(self._found)

    def _write(self, path: str, parts: Iterable[bytes], file_size: int) -> None:
        """Write a file, and read it back; none without bytes."""
        file = self._target / self._folder / path
        make_dir(file.parent)
        record = write_blocks(file, f"{self._folder}/{path}", parts, file_size, is_full=False)
        if record.size:
            self._found.append(record)
        else:
            file.unlink()

    def _record(self, file: Path) -> FileBlocks:
        blocks, size = tuple(map(crc32, _blocks(file))), file.stat().st_size
        return FileBlocks(str(file.relative_to(self._target)), size, size, blocks)


def _blocks(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        for at in range(0, file.size(), BLOCK_BYTES):
            with source_errors(path):
                block = file.read(at, BLOCK_BYTES)
            yield block


def _units_before(file: QueueFile, end: int) -> Iterator[bytes]:
    """The units of a queue's file up to the last one of a message before `end`.

    Raises ExpiredError if the file is deleted meanwhile.
    """
    zeros = 0
    for units in read_units(file):
        is_later = units["commitLogOffset"] >= end
        kept = units.copy()
        kept[is_later] = 0
        data = kept.tobytes()
        written = len(data.rstrip(b"\0"))
        written += -written % CONSUME_QUEUE_UNIT_SIZE
        if written:
            while zeros:
                part = min(zeros, BLOCK_BYTES)
                yield bytes(part)
                zeros -= part
            yield data[:written]
        zeros += len(data) - written
    if not Path(file.path).exists():
        raise ExpiredError
