"""The manifest of a backup, ``backup.json``: each file with its size and the CRC-32 of each block.

The last key, ``crc32``, is that of the JSON without it. A backup whose manifest is missing is unfinished.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from pyspark_dledger.common.durable import replace_durably
from pyspark_dledger.common.integers import INT32_MAX, INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE, is_segment_name
from pyspark_dledger.format.state_files import MAX_TERM
from pyspark_dledger.log.io.files import open_local
from pyspark_dledger.log.io.unfinished import BACKUP_MANIFEST
from pyspark_dledger.rocketmq.jobs.target_folder import source_errors

FORMAT = 1
BLOCK_BYTES = 4 << 20
"""A damaged backup is located to a block."""
DATA_FOLDER = "data"
# Enough for a log of 4 TiB; parsed, it takes some 25 times as much memory.
_MAX_MANIFEST = 16 << 20
_NUMBERS = ("first_index", "last_index", "last_term", "begin", "end")
_FILE_SIZES = ("data_file_size", "index_file_size")
_NAMES = ("id", "node", "cluster", "state")
_STATE = re.compile(r"state-\d{1,18}")
# The files of a member and of its root, in its state.
_OTHER_FILE = re.compile(r"state-\d{1,18}/(?:node|root)/.+", re.DOTALL)


@dataclass(frozen=True)
class BackupFile:
    """A file at ``path`` in the backup: its first ``size`` bytes, with the CRC-32 of each block of `BLOCK_BYTES`.

    The restored file has ``file_size`` bytes; the others are zeros.
    """

    path: str
    size: int
    file_size: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """What a backup has.

    Its log has the entries ``[first_index, last_index]`` at the positions ``[begin, end)``, in the files ``log``, in
    order. ``term`` is above every term in which the member voted until then. ``files`` are the others, in the folder
    ``state``. ``has_root``: the member serves messages. ``lacks_state``: the log and the files do not tell queue
    offsets and identities of expired messages.
    """

    id: str
    created: str
    source: str
    node: str
    members: tuple[str, ...]
    cluster: str
    term: int
    first_index: int
    last_index: int
    last_term: int
    begin: int
    end: int
    data_file_size: int
    index_file_size: int
    log: tuple[BackupFile, ...]
    state: str
    files: tuple[BackupFile, ...]
    has_root: bool = False
    lacks_state: bool = False
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def all_files(self) -> tuple[BackupFile, ...]:
        return (*self.log, *self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, atomically and durably. Raises OSError, and StoreError for a log above 4 TiB."""
    value = asdict(manifest)
    value["crc32"] = _crc_of(value)
    data = f"{json.dumps(value, indent=1)}\n".encode()
    if len(data) > _MAX_MANIFEST:
        raise StoreError(f"{manifest.source}: expected a log of at most about 4 TiB, found {manifest.end} bytes")
    replace_durably(folder / BACKUP_MANIFEST, data)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished backup, None without one. Raises StoreError for a damaged one."""
    file = folder / BACKUP_MANIFEST
    try:
        with os.fdopen(open_local(file), "rb") as opened:
            data = opened.read(_MAX_MANIFEST + 1)
        if len(data) > _MAX_MANIFEST:
            raise ValueError(f"more than {_MAX_MANIFEST} bytes")
        value = json.loads(data)
        expected = value.pop("crc32")
        if expected != _crc_of(value):
            raise ValueError(f"CRC-32 {_crc_of(value):08x}, not {expected:08x}")
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}")
        return _parsed(value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{file}: expected the manifest of a backup, format {FORMAT}, found {error}: use another backup"
        ) from None


def _crc_of(value: dict[str, Any]) -> int:
    return crc32(json.dumps(value, sort_keys=True).encode())


def _parsed(value: dict[str, Any]) -> Manifest:
    for name in ("log", "files"):
        value[name] = tuple(backup_file(each) for each in value[name])
    value["members"] = tuple(map(_name, value["members"]))
    value["notes"] = tuple(map(str, value["notes"]))
    for name in _NAMES:
        _name(value[name])
    for name in _NUMBERS:
        _number(value[name], -1, INT64_MAX - 1)
    _number(value["term"], -1, MAX_TERM)
    for name in _FILE_SIZES:
        _number(value[name], INDEX_UNIT_SIZE, INT32_MAX)
    if value["index_file_size"] % INDEX_UNIT_SIZE:
        raise ValueError(f"the size {value['index_file_size']} of an index file")
    if not _STATE.fullmatch(value["state"]):
        raise ValueError(f"the state {value['state']!r}")
    for file in value["log"]:
        if not is_segment_name(Path(file.path).name) or file.file_size != value["data_file_size"]:
            raise ValueError(f"the data file {file}")
    for file in value["files"]:
        if not _OTHER_FILE.fullmatch(file.path):
            raise ValueError(f"the file {file.path!r} of a member")
    return Manifest(**value)


def _number(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} where a number from {low} to {high} is expected")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{value!r} where a name is expected")
    return value


def backup_file(value: dict[str, Any]) -> BackupFile:
    """A file from its JSON. Raises ValueError for a path out of the backup or other CRCs, KeyError and TypeError."""
    path, file_size = value["path"], _number(value["file_size"], 0, INT32_MAX)
    size = _number(value["size"], 0, file_size)
    crcs = tuple(_number(each, 0, 2**32 - 1) for each in value["crc32"])
    if len(crcs) != -(-size // BLOCK_BYTES):
        raise ValueError(f"{size} bytes with {len(crcs)} CRCs")
    if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError(f"the path {path!r}")
    os.fsencode(path)  # a ValueError for half of a surrogate pair
    return BackupFile(path, size, file_size, crcs)


class BlockCrcs:
    """The CRC-32 of each block of a file, whose bytes come in order."""

    def __init__(self, known: tuple[int, ...] = (), size: int = 0) -> None:
        """``known`` are those of the whole blocks of the first `size` bytes, a multiple of `BLOCK_BYTES`."""
        self._crcs = list(known)
        self._crc, self.size = 0, size

    def add(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            part = view[: BLOCK_BYTES - self.size % BLOCK_BYTES]
            self._crc = crc32(part, self._crc)
            self.size += len(part)
            if self.size % BLOCK_BYTES == 0:
                self._crcs.append(self._crc)
                self._crc = 0
            view = view[len(part) :]

    def result(self) -> tuple[int, ...]:
        return (*self._crcs, *([self._crc] if self.size % BLOCK_BYTES else ()))


def checked_blocks(file: BinaryIO, name: str, record: BackupFile, first_block: int = 0) -> Iterator[bytes]:
    """The blocks of an open file from that one on. Raises StoreError for the first that does not match its CRC."""
    file.seek(first_block * BLOCK_BYTES)
    for number in range(first_block, len(record.crc32)):
        start = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, record.size - start)
        with source_errors(name):
            data = file.read(size)
        found = crc32(data)
        if len(data) != size or found != record.crc32[number]:
            raise StoreError(
                f"{name} at byte {start} to {start + size - 1}: expected {size} bytes with CRC-32 "
                f"{record.crc32[number]:08x}, found {len(data)} with {found:08x}"
            )
        yield data


def truncated(record: BackupFile, size: int) -> BackupFile:
    """The whole blocks of a file up to `size`."""
    blocks = min(size, record.size) // BLOCK_BYTES
    return replace(record, size=blocks * BLOCK_BYTES, crc32=record.crc32[:blocks])
