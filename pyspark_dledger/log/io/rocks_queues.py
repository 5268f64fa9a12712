"""ConsumeQueues in a RocksDB (``storeType=defaultRocksDB``, ``rocksdbCQDoubleWriteEnable``), read as files of units.

A key has the topic's length, the topic, queueId and queueOffset; a value has the unit's fields and the storeTimestamp.
RocksDB writes into the folder that it opens, so it opens a temporary one with links to the files.
Source: RocketMQ 5.5.0 ``RocksDBConsumeQueueTable``, ``StorePathConfigHelper``.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.files import is_remote_path, names_in, unreadable

FOLDERS = ("consumequeue", "consumequeue_rocksdb")
"""Below storePathRootDir; the second one with ``useSeparateStorePathForRocksdbCQ`` from 5.5.0 on."""
NEEDS = "reading RocksDB needs rocksdict: pip install 'pyspark_dledger[rocksdb]'"

_DATABASE_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]+|[0-9]+\.(sst|log)")
_HEAD_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]+")
_LENGTH, _OFFSET = struct.Struct(">i"), struct.Struct(">q")
_VALUE_SIZE = 28
_LINKS = "dledger-rocksdb-"
# Each unit takes at least some bits of a file, so that a damaged key does not promise any number of units.
_MAX_UNITS_PER_BYTE = 64
# Others stay closed until they are read. Processes may open 1,024 files by default.
_MAX_OPEN_FILES = 256
_KEPT_OPEN = 8


class RocksQueue(NamedTuple):
    """A queue in a RocksDB: ``prefix`` begins its keys, ``[first, end)`` are its queueOffsets."""

    topic: str
    queue_id: int
    prefix: bytes
    first: int
    end: int


def rocks_folders(root: Path) -> list[Path]:
    """The folders below a storePathRootDir that are a RocksDB of queues."""
    found: list[Path] = []
    with suppress(OSError):
        for name in sorted({*FOLDERS} & {*names_in(root)}):
            # A database that lost a file of these is a damaged one.
            with suppress(OSError):
                if any(map(_HEAD_FILE.fullmatch, names_in(root / name))):
                    found.append(root / name)
    return found


def rocks_queues(folder: Path) -> list[RocksQueue]:
    """The queues that have units, by topic and queue id. Raises UnreadableError."""
    database = _opened(folder)
    with _errors_of(folder):
        return list(_queues_in(database, folder))


def _queues_in(database: _Database, folder: Path) -> Iterator[RocksQueue]:
    cursor = database.cursor()
    cursor.seek_to_first()
    while cursor.valid():
        key = bytes(cursor.key())
        prefix, topic, queue_id, first = _parts(key, folder)
        cursor.seek_for_prev(prefix + b"\x7f" + b"\xff" * 7)
        end = _parts(bytes(cursor.key()), folder)[3] + 1
        if end - first > database.size * _MAX_UNITS_PER_BYTE:
            place = folder / topic / str(queue_id)
            reason = f"expected queueOffsets of a database of {database.size} bytes, found {first} to {end - 1}"
            raise UnreadableError(str(place), reason)
        yield RocksQueue(topic, queue_id, prefix, first, end)
        cursor.next()
    if (problem := cursor.status()) is not None:
        raise UnreadableError(str(folder), _advice(problem))


def _parts(key: bytes, folder: Path) -> tuple[bytes, str, int, int]:
    """The part of a key that all units of the queue have, and the key's topic, queueId and queueOffset."""
    length = _LENGTH.unpack_from(key)[0] if len(key) >= _LENGTH.size else -1
    at = _LENGTH.size + 1 + length
    name = key[_LENGTH.size + 1 : at]
    topic = name.decode(errors="surrogateescape")
    if 0 <= length == len(key) - 19 and is_utf8(topic) and (key[4], key[at], key[at + 5]) == (1, 1, 1):
        queue_id, offset = _LENGTH.unpack_from(key, at + 1)[0], _OFFSET.unpack_from(key, at + 6)[0]
        if queue_id >= 0 and offset >= 0:
            return key[: at + 6], topic, queue_id, offset
    raise UnreadableError(str(folder), _advice(f"expected the key of a ConsumeQueue unit, found {key[:64].hex()}"))


@final
class OpenRocksUnits(OpenFile):
    """The units of a queue as the bytes of a ConsumeQueue file that begins with `first`; zeros where a unit is missing.

    Raises UnreadableError where the folder is no sound RocksDB.
    """

    def __init__(self, folder: Path, prefix: bytes, first: int, units: int) -> None:
        self._folder, self._prefix, self._first, self._units = folder, prefix, first, units
        self._database = _opened(folder)

    def size(self) -> int:
        return self._units * CONSUME_QUEUE_UNIT_SIZE

    def read(self, offset: int, size: int) -> bytes:
        first = offset // CONSUME_QUEUE_UNIT_SIZE
        stop = min(-(-(offset + size) // CONSUME_QUEUE_UNIT_SIZE), self._units)
        data = self._read_units(first, stop) if first < stop else b""
        start = offset - first * CONSUME_QUEUE_UNIT_SIZE
        return bytes(data[start : start + size])

    def _read_units(self, first: int, stop: int) -> bytearray:
        data = bytearray((stop - first) * CONSUME_QUEUE_UNIT_SIZE)
        begin = len(self._prefix)
        with _errors_of(self._folder):
            cursor = self._database.cursor()
            cursor.seek(self._prefix + _OFFSET.pack(self._first + first))
            while cursor.valid():
                key, value = cursor.key(), cursor.value()
                if not key.startswith(self._prefix) or len(key) != begin + _OFFSET.size:
                    break
                at = (_OFFSET.unpack_from(key, begin)[0] - self._first - first) * CONSUME_QUEUE_UNIT_SIZE
                if at >= len(data):
                    break
                if len(value) == _VALUE_SIZE:
                    data[at : at + CONSUME_QUEUE_UNIT_SIZE] = value[:CONSUME_QUEUE_UNIT_SIZE]
                cursor.next()
            if (problem := cursor.status()) is not None:
                raise UnreadableError(str(self._folder), _advice(problem))
        return data


class _Database:
    """An open database; ``size`` is that of its files in bytes."""

    def __init__(self, folder: Path) -> None:
        import rocksdict

        links = tempfile.mkdtemp(prefix=_LINKS)
        weakref.finalize(self, shutil.rmtree, links, ignore_errors=True)
        self.size = _link(folder, links)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(False)
        options.set_max_open_files(_MAX_OPEN_FILES)
        options.set_keep_log_file_num(1)
        families = {name: rocksdict.Options(raw_mode=True) for name in rocksdict.Rdict.list_cf(links)}
        access = rocksdict.AccessType.read_only()
        self._database = rocksdict.Rdict(links, options, column_families=families, access_type=access)
        # RocksDB opens a MANIFEST that was cut as an older state.
        if not self._database.live_files() and any(Path(links).glob("*.sst")):
            raise UnreadableError(str(folder), _advice("expected files of units in its MANIFEST, found none"))

    def cursor(self) -> Any:
        """An iterator over the units of all queues."""
        return self._database.iter()


def _link(folder: Path, links: str) -> int:
    """Link the files of a database into another folder. Returns their size in bytes.

    ``CURRENT`` is copied. Links to others leave their times and counts of links as they are.
    """
    size = 0
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if _DATABASE_FILE.fullmatch(entry.name) and entry.is_file()]
    for file in files:
        size += file.stat().st_size
        if file.name == "CURRENT":
            Path(links, file.name).write_bytes(Path(file.path).read_bytes()[: _LENGTH.size * 64])
        else:
            Path(links, file.name).symlink_to(Path(file.path).absolute())
    return size


def _opened(folder: Path) -> _Database:
    """The open database of a folder; opened again after a change of its files. Raises UnreadableError."""
    if is_remote_path(folder):
        raise UnreadableError(str(folder), "it is a RocksDB: copy its store to this machine")
    try:
        with os.scandir(folder) as entries:
            files = [(each.name, each.stat()) for each in entries if _DATABASE_FILE.fullmatch(each.name)]
    except OSError as error:
        raise unreadable(folder, error) or UnreadableError(str(folder), "the folder is gone") from None
    state = tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in files))
    with _errors_of(folder):
        return _database(folder, state)


@lru_cache(maxsize=_KEPT_OPEN)
def _database(folder: Path, _state: tuple[tuple[str, int, int], ...]) -> _Database:
    return _Database(folder)


@contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    """Errors of rocksdict, which are plain exceptions, become an UnreadableError."""
    try:
        yield
    except UnreadableError:
        raise
    except ModuleNotFoundError:
        raise UnreadableError(str(folder), NEEDS) from None
    except Exception as error:  # noqa: BLE001 - rocksdict has no class for what RocksDB reports
        raise UnreadableError(str(folder), _advice(error)) from None


def _advice(problem: object) -> str:
    """What RocksDB reports, and what to do; the links have the names of the files."""
    return (
        f"RocksDB: {problem}; copy the folder from a replica, or move it away while the broker is stopped: a broker "
        "builds it from the log when it starts"
    )
