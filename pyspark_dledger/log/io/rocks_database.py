"""Opens a RocksDB of a broker to read it, and reads the popped messages and the timers that it can have.

RocksDB writes into the folder that it opens, so it opens a temporary one with links to the files.

``kvStore`` has the popped messages that are not acknowledged (``popConsumerKVServiceEnable``, from 5.3.2 on),
``rocksdbstore`` the timers of a week (``timerRocksDBEnable``, from 5.4.0 on). Sources: RocketMQ 5.3.3
``PopConsumerRecord``, ``PopConsumerRocksdbStore``; 5.4.0 ``TimerRocksDBRecord``, ``MessageRocksDBStorage``.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.common.fastjson import number_in, parse_fastjson
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.log.io.files import is_remote_path, names_in, scan_folder, unreadable

NEEDS = "reading RocksDB needs rocksdict: pip install 'pyspark_dledger[rocksdb]'"
NEEDS_LOCAL = "reading RocksDB needs local files: copy the store to this machine"
DEFAULT_FAMILY = "default"

_DATABASE_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]+|[0-9]+\.(sst|log)")
_HEAD_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]+")
_MAX_CURRENT_SIZE = 256
_LINKS = "dledger-rocksdb-"
_LINKS_PATH = re.compile(rf"[^\s:'\"]*/{_LINKS}[a-z0-9_]+")
# Others stay closed until they are read. Processes may open 1,024 files by default.
_MAX_OPEN_FILES = 256
_KEPT_OPEN = 8


class UnreadDatabaseError(UnreadableError):
    """A database that nothing is known of: it is remote, or the library that reads it is not installed."""

    def __init__(self, path: str, reason: str = NEEDS, offset: int | None = None) -> None:
        super().__init__(path, reason, offset)
        self.args = (f"{path}: {reason}",)


def why_unread(root: Path) -> str | None:
    """Why no RocksDB of a store can be read; None if they can."""
    if is_remote_path(root):
        return NEEDS_LOCAL
    return NEEDS if find_spec("rocksdict") is None else None


def has_database(folder: Path) -> bool:
    """Whether a folder is a RocksDB; also one that lost its CURRENT or its MANIFEST."""
    with suppress(OSError):
        return any(map(_HEAD_FILE.fullmatch, names_in(folder)))
    return False


class Database:
    """An open database; ``size`` is that of its files in bytes, ``families`` are its column families."""

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
        self.families = frozenset(families)
        self._database = rocksdict.Rdict(links, options, column_families=families, access_type=access)
        # RocksDB opens a MANIFEST that was cut as an older state.
        if not self._database.live_files() and any(Path(links).glob("*.sst")):
            raise ValueError("expected the database's files in its MANIFEST, found none")

    def cursor(self, family: str = DEFAULT_FAMILY) -> Any:
        """An iterator over the keys of a column family. Check its ``status()`` at the end."""
        found = self._database if family == DEFAULT_FAMILY else self._database.get_column_family(family)
        return found.iter()

    def rows(self, family: str = DEFAULT_FAMILY, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with `prefix`, with their values; nothing without the family."""
        if family not in self.families:
            return
        cursor = self.cursor(family)
        cursor.seek(prefix)
        while cursor.valid() and (key := bytes(cursor.key())).startswith(prefix):
            yield key, bytes(cursor.value())
            cursor.next()
        check_end(cursor)


def check_end(cursor: Any) -> None:
    """Raises ValueError if an iterator ended at damage."""
    if (problem := cursor.status()) is not None:
        raise ValueError(str(problem))


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
            Path(links, file.name).write_bytes(Path(file.path).read_bytes()[:_MAX_CURRENT_SIZE])
        else:
            Path(links, file.name).symlink_to(Path(file.path).absolute())
    return size


def open_database(folder: Path, advice: str) -> Database:
    """The database of a folder; opened again after a change of its files. Raises UnreadableError as `rocks_errors`."""
    if is_remote_path(folder):
        raise UnreadDatabaseError(str(folder), NEEDS_LOCAL)
    try:
        with os.scandir(folder) as entries:
            files = [(each.name, each.stat()) for each in entries if _DATABASE_FILE.fullmatch(each.name)]
    except OSError as error:
        raise unreadable(folder, error) or UnreadableError(str(folder), "the folder is gone") from None
    state = tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in files))
    with rocks_errors(folder, advice):
        return _database(folder, state)


@contextmanager
def rocks_errors(folder: Path, advice: str) -> Iterator[None]:
    """What goes wrong in a database becomes an UnreadableError with its folder and `advice`."""
    try:
        yield
    except UnreadableError:
        raise
    except ModuleNotFoundError:
        raise UnreadDatabaseError(str(folder)) from None
    except Exception as error:  # noqa: BLE001 - rocksdict has no class for what RocksDB reports
        problem = _LINKS_PATH.sub(lambda _: str(folder), str(error))
        raise UnreadableError(str(folder), f"RocksDB: {problem}; {advice}") from None


@lru_cache(maxsize=_KEPT_OPEN)
def _database(folder: Path, _state: tuple[tuple[str, int, int], ...]) -> Database:
    return Database(folder)


# Popped messages and timers

POPS, TIMERS = "kvStore", "rocksdbstore"
_POP_FAMILY, _TIMER_FAMILY = "popState", "timer"
_ADVICE = "copy the folder from a replica while the broker is stopped"
_RETRY_TOPICS = {0: "{topic}", 1: "%RETRY%{group}_{topic}", 2: "%RETRY%{group}+{topic}"}
_TIME, _PLACE = struct.Struct(">q"), struct.Struct(">iq")
_NEXT_TIMER = b"timeline_checkpoint"


class PopRecord(NamedTuple):
    """A popped message that is not acknowledged; times in milliseconds since 1970."""

    topic: str
    group: str
    queue_id: int
    queue_offset: int
    popped: int
    visible: int


class TimerRecord(NamedTuple):
    """A timer that waits: when it is due (ms since 1970), and its message."""

    due: int
    uniq_key: str
    offset: int
    size: int


def pop_records(root: Path) -> Iterator[PopRecord]:
    """The popped messages in a RocksDB, by the time when they are visible again. Raises UnreadableError."""
    with rocks_errors(root / POPS, _ADVICE):
        yield from (_pop(parse_fastjson(value)) for _, value in _rows(root / POPS, _POP_FAMILY))


def timer_records(root: Path) -> Iterator[TimerRecord]:
    """The timers in a RocksDB that the broker has not delivered, by their time. Raises UnreadableError."""
    with rocks_errors(root / TIMERS, _ADVICE):
        rows = dict(_rows(root / TIMERS, _TIMER_FAMILY))
        delivered = rows.get(_NEXT_TIMER, b"")
        first = _TIME.unpack(delivered)[0] if len(delivered) == _TIME.size else 0
        for key, value in rows.items():
            if len(value) == _PLACE.size and len(key) > _TIME.size:
                (due,), (size, offset) = _TIME.unpack_from(key), _PLACE.unpack(value)
                if due >= first:
                    yield TimerRecord(due, key[_TIME.size :].decode(errors="replace"), offset, size)


def _rows(folder: Path, family: str) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a column family; nothing from a database into which nothing was written."""
    if has_database(folder) and _is_written(folder):
        yield from open_database(folder, _ADVICE).rows(family)


def _is_written(folder: Path) -> bool:
    with suppress(OSError):
        return any(file.name.endswith((".sst", ".log")) and file.stat().st_size for file in scan_folder(folder))
    return False


def _pop(fields: Mapping[str, Any]) -> PopRecord:
    retry, topic, group = (fields.get(name) for name in ("retryFlag", "topicId", "groupId"))
    if retry not in _RETRY_TOPICS or not isinstance(topic, str) or not isinstance(group, str):
        raise ValueError(f"expected a popped message, found {str(dict(fields))[:200]}")
    popped, invisible, offset = (number_in(fields, each) for each in ("popTime", "invisibleTime", "offset"))
    name = _RETRY_TOPICS[retry].format(group=group, topic=topic)
    return PopRecord(name, group, number_in(fields, "queueId", INT32_MAX), offset, popped, popped + invisible)
