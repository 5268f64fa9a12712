"""The target folder of a job: its lock, its JSON, and files that get their names once they are complete.

The manifest ``_export.json`` says what is written, from where, and whether it is finished. ``_export/part-NNNNN.json``
is the report of a part, written when all files of the part are there and verified. ``_export/part-NNNNN.left`` is the
file that a part leaves for the end of the job. Spark and Hive ignore names that begin with an underscore.
`parsed` checks what is read back, by the types of a dataclass.
"""

from __future__ import annotations

import fcntl
import json
import os
import types
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pyspark_dledger.common.durable import cannot_write, full_disk, make_dir, sync_dir, sync_file, write_durably
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.common.uris import is_remote, local_target, store_path
from pyspark_dledger.errors import OptionError, StoreError, StoreInUseError, UnreadableError
from pyspark_dledger.log.io.files import is_remote_path, path_of, read_start, unreadable
from pyspark_dledger.log.io.store_paths import with_data_dirs
from pyspark_dledger.log.io.store_use import MANIFEST, RUNNING, written_here
from pyspark_dledger.log.store_view import StoreView

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_BYTES = 256 * 1024 * 1024


class Limits(NamedTuple):
    """The lowest and the highest value of a number."""

    low: int
    high: int

    def __call__(self, value: int) -> None:
        """Raises ValueError for any other number."""
        if not self.low <= value <= self.high:
            raise ValueError(f"{value!r} where a number from {self.low} to {self.high} is expected")


def check_relative(path: str) -> None:
    """Raises ValueError for a path that could lead out of its folder."""
    if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError(f"the path {path!r}")


Count = Annotated[int, Limits(0, INT64_MAX)]
"""A number, size or position. A plain ``int`` can also be -1, as the index before the first."""
Crc = Annotated[int, Limits(0, 2**32 - 1)]
RelativePath = Annotated[str, check_relative]
"""A type and the functions that raise ValueError for wrong values of it."""


@dataclass(frozen=True)
class FileReport:
    """A file that a job wrote: its path relative to the target with ``/``, its size in bytes, and its number of rows.

    ``crc32`` is of the bytes as they were read back; of a sparse file, without the zeros after its content.
    """

    path: RelativePath
    size: Count
    crc32: Crc
    rows: Count


@dataclass(frozen=True)
class PartReport:
    """The result of a part. ``source_bytes`` are the bytes of the log that it covers.

    ``skipped`` counts rows that passed the filters and were left out; ``first_skipped`` lists the first of them as
    ``pos=... index=...: why``. ``problems`` counts written rows with a ``problem``. ``notes``, ``counts`` and the file
    ``left`` are for the end of the job, when the file is deleted. ``key`` tells which version of the part was written.
    """

    number: Count
    files: tuple[FileReport, ...]
    source_bytes: Count
    skipped: Count = 0
    first_skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, Count] = field(default_factory=dict)
    problems: Count = 0
    left: FileReport | None = None
    key: str = ""

    @property
    def all_files(self) -> tuple[FileReport, ...]:
        """Its files, and the one that it left."""
        return self.files if self.left is None else (*self.files, self.left)

    @property
    def rows(self) -> int:
        """The number of rows in its files."""
        return sum(file.rows for file in self.files)


def parsed(kind: Any, value: Any) -> Any:
    """A value from JSON as the type `kind`: a dataclass, a tuple, a dict, a number, a text or None.

    Raises ValueError for a value of another type, one that a function in its Annotated rejects, and unknown or missing
    fields.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = parsed(arguments[0], value)
        for check in arguments[1:]:
            check(found)
        return found
    if origin in (Union, types.UnionType):
        return None if value is None else parsed(arguments[0], value)
    if origin is tuple:
        return tuple(parsed(arguments[0], each) for each in _typed(list, value))
    if origin is dict:
        return {_typed(str, name): parsed(arguments[1], each) for name, each in _typed(dict, value).items()}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _record(kind, _typed(dict, value))
    if kind is int:
        Limits(-1, INT64_MAX)(_typed(int, value))
    if kind is float and type(value) is int:
        return float(value)
    if kind is str:
        os.fsencode(_typed(str, value))  # a ValueError for half of a surrogate pair
    return _typed(kind, value)


def _record(kind: Any, value: Mapping[str, Any]) -> Any:
    types_of = get_type_hints(kind, include_extras=True)
    if unknown := set(value) - set(types_of):
        raise ValueError(f"the field {min(unknown)!r}")
    try:
        return kind(**{name: parsed(types_of[name], each) for name, each in value.items()})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} where {kind.__name__} is expected")
    return value


def write_json(file: Path, value: object) -> None:
    """Write JSON and sync it. Raises OSError."""
    write_durably(file, f"{json.dumps(value, indent=1)}\n".encode(), 0o666)


def load_json(file: Path, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """A JSON object in a file. Raises OSError, and ValueError for anything else."""
    data = read_start(file, max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    try:
        value: dict[str, Any] = _typed(dict, json.loads(data))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return value


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object that a job wrote. Raises StoreError for anything else."""
    try:
        return load_json(file)
    except (OSError, ValueError):
        raise not_ours(file) from None


def write_manifest(target: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest, atomically and durably. Raises OSError."""
    temporary = target / f"{MANIFEST}.tmp"
    write_json(temporary, manifest)
    temporary.replace(target / MANIFEST)
    sync_dir(target)


def read_manifest(target: Path) -> dict[str, Any] | None:
    """The manifest of the job in `target`; None without one. Raises StoreError for a damaged one."""
    if (target / MANIFEST).exists():
        return read_json(target / MANIFEST)
    return read_parquet_manifest(target)


def not_ours(file: Path) -> StoreError:
    """An error for a manifest that no job wrote."""
    return StoreError(f"{file}: not a file of a job, or damaged: write to a new folder")


# A finished export to Parquet has its manifest in the metadata of a Parquet file without rows, because Polars reads all
# files of a folder. The file is in one of the export's partitions: DuckDB finds partitions only where every file has
# one, and pandas fails where one more is null. An export without rows gets its schema from it.
PARQUET_MANIFEST = "export.parquet"
_PARTITIONS = "topic=*/day=*"
_KEY = b"dledger.export"


def write_parquet_manifest(file: Path, schema: pa.Schema, manifest: Mapping[str, Any]) -> None:
    """Write the file and sync it. Raises OSError."""
    import pyarrow.parquet as pq  # other jobs do not need it

    # An empty table would be made by way of pandas, whose import takes longer than a small export.
    pq.ParquetWriter(file, schema.with_metadata({_KEY: json.dumps(manifest)})).close()
    sync_file(file)


def read_parquet_manifest(target: Path) -> dict[str, Any] | None:
    """The manifest of the finished Parquet export in `target`; None without one."""
    file = next(target.glob(f"{_PARTITIONS}/{PARQUET_MANIFEST}"), target / PARQUET_MANIFEST)
    if not file.exists():
        return None
    import pyarrow.parquet as pq  # other jobs do not need it

    try:
        manifest = json.loads((pq.read_schema(file).metadata or {})[_KEY])
    except (OSError, KeyError, ValueError, RecursionError):  # ArrowInvalid is a ValueError
        return None
    return manifest if isinstance(manifest, dict) else None


# The folder

STATE_FOLDER = "_export"
FINISHED = "finished"
"""The ``state`` of a manifest that is not `RUNNING`."""

_PART = "part-{:05d}"
_TEMPORARY = "tmp"
_STORE_FOLDERS = ("consumequeue", "batchconsumequeue", "index", "config")
# A page of a mapped file that has holes needs this much memory of a tmpfs, which can be full.
_FULL_BELOW = 64 * 1024


def target_path(target: str | os.PathLike[str]) -> Path:
    """The folder to write to. Raises OptionError for an empty or remote path."""
    if not os.fspath(target):
        raise OptionError("expected a folder to write to, found an empty path: name a folder")
    return Path(local_target(os.path.realpath(local_target(os.fspath(target)))))


def absolute_path(path: str) -> str:
    """The path of a store for any process: a URI, or an absolute path.

    Links are resolved, unless only a link avoids a name that is not UTF-8.
    """
    found = store_path(path)
    if is_remote(found):
        return found
    first, more = with_data_dirs(found)
    paths = [(each, os.path.realpath(each)) for each in (first, *more)]
    return ",".join(real if is_utf8(real) else str(Path(each).absolute()) for each, real in paths)


def file_state(path: str) -> tuple[int, int] | None:
    """Size and time of a file of a source, which tell that it has not changed; None if there is none."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


@contextmanager
def source_errors(path: str | Path) -> Iterator[None]:
    """Raises errors of the system as UnreadableError: for a read of a source while the target is written."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) or StoreError(f"{path}: the file is gone: stop what deletes it") from error


@contextmanager
def target_errors(target: Path, verb: str) -> Iterator[None]:
    """Raises errors of the system as StoreError: that the target of a `verb` cannot be written, and why.

    On a full disk DiskFullError, also if a file of the target cannot be read because of that.
    """
    advice = f"run the same {verb} again to continue"
    try:
        yield
    except OSError as error:
        raise cannot_write(error.filename or target, error, advice) from error
    except UnreadableError as error:
        if not Path(error.path).is_relative_to(target) or _free_space(target) >= _FULL_BELOW:
            raise
        raise cannot_write(target, full_disk(), advice) from error


def _free_space(folder: Path) -> int:
    found = os.statvfs(next(each for each in (folder, *folder.parents) if each.exists()))
    return found.f_bavail * found.f_frsize


def check_apart(log: StoreView, sources: Sequence[str], target: Path) -> None:
    """Raises StoreError if the target is in the store or its replicas, or they in an earlier job's target."""
    paths = log.paths
    found = [*map(path_of, sources), paths.node_dir, *paths.data_dirs, *paths.commitlog_dirs]
    found += [paths.root / name for name in _STORE_FOLDERS] if paths.root is not None else []
    for path in found:
        if path is None or is_remote_path(path):
            continue
        real = Path(os.path.realpath(path))
        if target == real or real in target.parents:
            raise StoreError(f"{target}: the target is in the store {real}: name another folder")
        if target in real.parents and any(name in os.listdir(target) for name in (MANIFEST, STATE_FOLDER)):
            raise StoreError(f"{target}: the store {real} is in the target: name another folder")


@contextmanager
def locked_folder(target: Path, verb: str, mode: int = 0o777) -> Iterator[None]:
    """Lock the target, creating it and its parents if needed; new folders that stay empty are removed at the end.

    A new target gets `mode`. Errors are those of `target_errors`.

    Raises StoreError if it is a file, StoreInUseError if another `verb` has it locked.
    """
    with target_errors(target, verb):
        new = [folder for folder in (target, *target.parents) if not folder.exists()]
        if target.exists() and not target.is_dir():
            raise StoreError(f"{target}: expected a new or empty folder, found a file: name a folder")
        make_dir(target.parent)
        make_dir(target, mode)
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreInUseError(
                    f"{target}: another {verb} is writing to this folder: wait for its end, or name another folder"
                ) from None
            try:
                with written_here(target):
                    yield
            finally:
                with suppress(OSError):
                    for folder in new:
                        folder.rmdir()  # fails if it is not empty
        finally:
            os.close(descriptor)


def report_path(number: int) -> str:
    """The path of a part's report, relative to the target."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.json"


def left_path(number: int) -> str:
    """The path of the file that a part leaves for the end of the job."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.left"


def temporary_folder(target: Path) -> Path:
    """The folder of incomplete files. It is emptied at the start of a run, and removed at the end of a job."""
    return target / STATE_FOLDER / _TEMPORARY


def check_running(target: Path) -> None:
    """Raises StoreError unless the job is running: a broker may use the files of a finished one."""
    try:
        state = (read_manifest(target) or {}).get("state", "none")
    except StoreError:
        state = "none"
    if state != RUNNING:
        raise StoreError(
            f"{target}: expected the export of this part in state {RUNNING}, found {state}: the task is too late; it "
            "changed nothing"
        )


@contextmanager
def new_file(target: Path, path: str) -> Iterator[Path]:
    """Gives a unique temporary name for a file, and moves the file to `path` below the target after the block.

    The block must sync and verify the file; if it raises, nothing appears at `path`. New folders get the target's mode.
    Raises OSError, and StoreError if the job ended meanwhile.
    """
    folder = temporary_folder(target)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{uuid.uuid4().hex}{Path(path).suffix}"
    try:
        yield temporary
        final = target / path
        check_running(target)
        make_dir(final.parent, target.stat().st_mode & 0o777)
        temporary.replace(final)
        sync_dir(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def has_file(target: Path, file: FileReport) -> bool:
    """Whether a file exists with its size."""
    try:
        return (target / file.path).stat().st_size == file.size
    except OSError:
        return False
