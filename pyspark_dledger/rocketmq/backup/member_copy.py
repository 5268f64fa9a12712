"""Copies a member: the committed part of its log, each entry checked, then its other files; all are read back.

A data file of the backup ends with its last entry, or with the blank after it. What an earlier run has verified stays:
``progress/NAME.json`` records it. Committed entries never change, so a file only grows until the next one begins.

Summary, identities and configuration are copied before the end of the backup is chosen, so they name no later entry.
ConsumeQueues are copied after the log; units of later messages are left out.

The manifest ``backup.json`` has each file with its size and the CRC-32 of each block. Without it, the backup is
unfinished.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pyspark_dledger.common.durable import make_dir, replace_durably, sync_dir
from pyspark_dledger.common.integers import INT32_MAX, INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_blank, decode_entry_header, encode_blank
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    CONSUME_QUEUE_UNIT_SIZE,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MIN_BLANK_SIZE,
    is_segment_name,
)
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.format.state_files import MAX_TERM, crc32
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.entry_reads import entry_at, read_existing
from pyspark_dledger.log.io.files import open_file, open_local, read_start
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import QueueFile, file_queues, read_units
from pyspark_dledger.log.io.state_files import CHECKPOINT, read_store_checkpoint
from pyspark_dledger.log.io.store_paths import BACKUP_MANIFEST
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.broker.queue_writer import units_before
from pyspark_dledger.rocketmq.broker.root_files import write_store_checkpoint
from pyspark_dledger.rocketmq.jobs import Progress
from pyspark_dledger.rocketmq.jobs.new_files import BLOCK_BYTES, BlockFile, FileBlocks, read_blocks, write_blocks
from pyspark_dledger.rocketmq.jobs.store_files import copy_config, notes_of_left_out
from pyspark_dledger.rocketmq.jobs.target_folder import Limits, load_json, parsed, source_errors
from pyspark_dledger.rocketmq.service.committed_identities import FOLDER as IDENTITIES
from pyspark_dledger.rocketmq.service.sorted_run import SortedRun
from pyspark_dledger.rocketmq.service.summary import MAX_SUMMARY_SIZE, SUMMARY, parse_summary

FORMAT = 1
_CRC = "crc32"
DATA_FOLDER = "data"
NODE, ROOT = "node", "root"
"""The folders of a backup's state: files of ``dledger-<id>/``, and of the storePathRootDir."""

# Enough for a log of 4 TiB; parsed, it takes some 25 times as much memory.
_MAX_MANIFEST = 16 << 20
_STATE = re.compile(r"state-\d{1,18}")
# The files of a member and of its root, in its state.
# Elections raise the term, so a group that began near the last term could elect nobody.
_MAX_SAVED_TERM = MAX_TERM // 2
_MAX_DEPTH = 16
_OTHER_FILE = re.compile(rf"state-\d{{1,18}}/(?:{NODE}|{ROOT})/.+", re.DOTALL)


def _check_name(value: str) -> None:
    if not value.isprintable():
        raise ValueError(f"{value!r} where a name is expected")


_Name = Annotated[str, _check_name]
_Number = Annotated[int, Limits(-1, INT64_MAX - 1)]
_FileSize = Annotated[int, Limits(INDEX_UNIT_SIZE, INT32_MAX)]


@dataclass(frozen=True)
class Manifest:
    """What a backup has.

    Its log has the entries ``[first_index, last_index]`` at the positions ``[begin, end)``, in the files ``log``, in
    order. ``term`` is above every term in which the member voted until then. ``files`` are the others, in the folder
    ``state``. ``has_root``: the member serves messages. ``lacks_state``: the log and the files do not tell queue
    offsets and identities of expired messages.
    """

    id: _Name
    created: str
    source: str
    node: _Name
    members: tuple[_Name, ...]
    cluster: _Name
    term: Annotated[int, Limits(-1, _MAX_SAVED_TERM)]
    first_index: _Number
    last_index: _Number
    last_term: _Number
    begin: _Number
    end: _Number
    data_file_size: _FileSize
    index_file_size: _FileSize
    log: tuple[FileBlocks, ...]
    state: _Name
    files: tuple[FileBlocks, ...]
    has_root: bool = False
    lacks_state: bool = False
    notes: tuple[str, ...] = ()
    format: Annotated[int, Limits(FORMAT, FORMAT)] = FORMAT

    def __post_init__(self) -> None:
        """Raises ValueError for values that do not fit together."""
        if self.index_file_size % INDEX_UNIT_SIZE:
            raise ValueError(f"the size {self.index_file_size} of an index file")
        if not _STATE.fullmatch(self.state):
            raise ValueError(f"the state {self.state!r}")
        for file in self.log:
            folder, name = os.path.split(file.path)
            if folder != DATA_FOLDER or not is_segment_name(name) or file.file_size != self.data_file_size:
                raise ValueError(f"the data file {file}")
        for file in self.files:
            if not _OTHER_FILE.fullmatch(file.path) or file.path.count("/") > _MAX_DEPTH:
                raise ValueError(f"the file {file.path!r} of a member")

    @property
    def all_files(self) -> tuple[FileBlocks, ...]:
        return (*self.log, *self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, atomically and durably. Raises OSError, and StoreError for a log above 4 TiB."""
    fields = asdict(manifest)
    data = f"{json.dumps({**fields, _CRC: _crc_of(fields)}, indent=1)}\n".encode()
    if len(data) > _MAX_MANIFEST:
        raise StoreError(f"{manifest.source}: expected a log of at most about 4 TiB, found {manifest.end} bytes")
    replace_durably(folder / BACKUP_MANIFEST, data)


def _crc_of(fields: Mapping[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True).encode())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished backup, None without one. Raises StoreError for a damaged one."""
    file = folder / BACKUP_MANIFEST
    try:
        fields = load_json(file, _MAX_MANIFEST)
        crc = fields.pop(_CRC, None)
        if crc != _crc_of(fields):
            raise ValueError(f"CRC-32 {_crc_of(fields)}, not {crc}")
        found: Manifest = parsed(Manifest, fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{file}: expected the manifest of a backup, format {FORMAT}, found {error}: use another backup"
        ) from None
    return found


def damaged_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What is wrong with each damaged file of a backup. All of its bytes are read."""
    return filter(None, (_damage_of(folder, file) for file in manifest.all_files))


def _damage_of(folder: Path, file: FileBlocks, first_block: int = 0) -> str | None:
    """What is wrong with the blocks of a file from that one on; None if they are intact."""
    path = folder / file.path
    try:
        with os.fdopen(open_local(path), "rb") as stream:
            for _ in read_blocks(stream, str(path), file, first_block):
                pass
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    except StoreError as error:
        return str(error)
    return None


# Copies

PROGRESS_FOLDER = "progress"


class ExpiredError(Exception):
    """A file of the source has expired meanwhile: the backup has to begin later."""


@dataclass(frozen=True)
class CopiedRange:
    """The entries ``[first_index, last_index]`` at ``[begin, end)``; ``last_term`` is that of the last one."""

    first_index: int
    last_index: int
    last_term: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Verified:
    """What the backup has of a file, durably: the entries at ``[begin, end)``, all before ``next_index``.

    The last one is at ``last_pos`` and of ``term``.
    """

    file: FileBlocks
    begin: int
    next_index: int
    term: int
    last_pos: int
    end: int


class LogCopy:
    """Copies the entries `wanted` of `store` to the folder `target`. Memory does not grow with the log."""

    def __init__(self, store: StoreView, wanted: CopiedRange, target: Path, progress: Progress) -> None:
        self._store = store
        self._wanted = wanted
        self._target = target
        self._progress = progress
        self._next_index, self._term = wanted.first_index, -1
        self.copied_bytes = 0
        self.kept_files = 0

    def run(self) -> list[FileBlocks]:
        """Copy and verify all files. Raises StoreError for damage, ExpiredError for a file that expired, OSError."""
        make_dir(self._target / DATA_FOLDER)
        make_dir(self._target / PROGRESS_FOLDER)
        wanted = self._wanted
        segments = [each for each in self._store.ledger_segments if wanted.begin < each.end and each.base < wanted.end]
        found = []
        for number, segment in enumerate(segments):
            self._progress(number, len(segments))
            try:
                found.append(self._copy_file(segment))
            except (OSError, StoreError) as error:
                if not Path(segment.path).exists():
                    raise ExpiredError from error
                raise
        self._progress(len(segments), len(segments))
        if self._next_index != wanted.last_index + 1 or self._term != wanted.last_term:
            raise StoreError(
                f"{self._store.path}: expected entry {wanted.last_index} of term {wanted.last_term} at the end of the "
                f"backup, found {self._next_index - 1} of term {self._term}: run dledger verify"
            )
        return found

    def _copy_file(self, segment: Segment) -> FileBlocks:
        begin = start = max(self._wanted.begin, segment.base)
        stop = min(segment.end, self._wanted.end)
        before = self._verified(segment, start, stop)
        if before is not None:
            self._next_index, self._term = before.next_index, before.term
            if (
                before.file.size == stop - segment.base
                or before.end + MIN_BLANK_SIZE == segment.base + before.file.size
            ):
                self.kept_files += 1
                return before.file
            start = before.end
        path = f"{DATA_FOLDER}/{segment.name}"
        named = self._target / path
        # Without an earlier file it gets its name at the end: until then an earlier backup has its own.
        written = named if before is not None else named.with_suffix(".tmp")
        with BlockFile(written, before.file if before is not None else None) as copy:
            last_pos = -1
            for pos, data in self._entries(segment, start, stop):
                copy.skip_to(pos - segment.base)
                copy.write(data)
                self.copied_bytes += len(data)
                start, last_pos = pos + len(data), pos
            end = start
            if stop == segment.end and start < stop:
                copy.write(self._blank(segment, start))
            file = copy.finish(path, segment.size)
        written.replace(named)
        sync_dir(named.parent)
        if last_pos >= 0:
            last_pos = self._store.engine.seek(segment, last_pos, end, self._next_index - 1)
        else:
            last_pos = before.last_pos if before is not None else start
        known = _Verified(file, begin, self._next_index, self._term, last_pos, end)
        replace_durably(self._progress_file(segment), json.dumps(asdict(known)).encode())
        return file

    # What an earlier run has

    def _progress_file(self, segment: Segment) -> Path:
        return self._target / PROGRESS_FOLDER / f"{segment.name}.json"

    def _verified(self, segment: Segment, start: int, stop: int) -> _Verified | None:
        """What an earlier run has of this file, if that is of this log, and not more than is wanted.

        Without a readable record the file is copied again.
        """
        try:
            known: _Verified = parsed(_Verified, load_json(self._progress_file(segment)))
        except (OSError, ValueError):
            return None
        if known.file.file_size != segment.size or known.begin != start:
            return None
        header = entry_at(segment, known.last_pos)
        is_same = header is not None and (header.index, header.term) == (known.next_index - 1, known.term)
        first = entry_at(segment, start)
        is_first = first is not None and first.index == self._next_index
        return known if is_same and is_first and known.end <= stop and self._is_there(known.file) else None

    def _is_there(self, file: FileBlocks) -> bool:
        """Whether the backup has a file, and its last block, which is added to, is intact."""
        return _damage_of(self._target, file, max(len(file.crc32) - 1, 0)) is None

    # Reading and checking

    def _entries(self, segment: Segment, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Checked consecutive entries, about `BLOCK_BYTES` at once, each with the position of its first byte."""
        for low, high in entry_ranges(self._store.engine, segment, start, stop):
            data = read_existing(segment.path, low - segment.base, high - low)
            self._check(segment, low, high, data)
            yield low, data

    def _check(self, segment: Segment, low: int, high: int, data: bytes) -> None:
        engine, first = self._store.engine, self._next_index
        try:
            if len(data) != high - low:
                raise ValueError(f"expected {high - low} bytes, found {len(data)}")
            checked = engine.check_entries(data, first, low, self._term, INT64_MAX)
            wrong = engine.find_damaged(data)
        except ValueError as error:
            raise _damaged(segment, low, first, str(error)) from None
        if wrong is not None:
            index = decode_entry_header(data[wrong : wrong + ENTRY_HEADER_SIZE]).index
            raise _damaged(segment, low + wrong, index, "expected the body to match its checksum, found other bytes")
        units = self._store.index_files.read(first, checked.count).tobytes()
        if units != checked.units:
            self._check_units(segment, low, bytes(checked.units), units)
        self._next_index, self._term = first + checked.count, checked.last_term

    def _check_units(self, segment: Segment, low: int, expected: bytes, found: bytes) -> None:
        """Index units that were written must agree with the entries."""
        for number in range(len(expected) // INDEX_UNIT_SIZE):
            part = slice(number * INDEX_UNIT_SIZE, (number + 1) * INDEX_UNIT_SIZE)
            if found[part] != expected[part] and found[part].strip(b"\0"):
                text = f"expected the index unit {expected[part].hex()}, found {found[part].hex()}"
                raise _damaged(segment, low, self._next_index + number, text)

    def _blank(self, segment: Segment, pos: int) -> bytes:
        found = read_existing(segment.path, pos - segment.base, MIN_BLANK_SIZE)
        if len(found) != MIN_BLANK_SIZE or decode_blank(found) != segment.end - pos:
            raise _damaged(segment, pos, self._next_index, f"expected an entry or a blank, found {found.hex()}")
        return encode_blank(segment.end - pos)


def entry_ranges(engine: Engine, segment: Segment, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole entries, about `BLOCK_BYTES` each, from the entry at `start` to `stop` or to a blank."""
    end = engine.log_end(segment, start, False).pos if stop == segment.end else stop
    if start < end:
        yield from pairwise([start, *engine.split(segment, start, end, BLOCK_BYTES), end])


def _damaged(segment: Segment, pos: int, index: int, problem: str) -> StoreError:
    return StoreError(
        f"{segment.path} at byte {pos - segment.base}, index {index}: {problem}: nothing damaged is backed up; back up "
        "another member, or repair this one first (dledger verify)"
    )


class MemberFiles:
    """Copies to `folder` in the backup `target`."""

    def __init__(self, node_dir: Path, root: Path | None, target: Path, folder: str) -> None:
        self._node_dir, self._root = node_dir, root
        self._target, self._folder = target, folder
        self.notes: list[str] = []
        self.summary_index = self.last_identity = -1
        """The last entry that the summary covers, and the last one that the identities do."""
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
            self.summary_index = parse_summary(data).index
        except FileNotFoundError:
            return
        except ValueError as error:
            self.notes.append(f"{self._node_dir / SUMMARY} is damaged, so it is left out: {error}")
            return
        self._write(f"{NODE}/{SUMMARY}", (data,), len(data))

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
        for queue in file_queues(self._root) if self._root is not None else ():
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
    for units in read_units(file, 0, units_before(file, end)):
        kept = units.copy()
        kept[units["commitLogOffset"] >= end] = 0
        yield kept.tobytes()
    if not Path(file.path).exists():
        raise ExpiredError
