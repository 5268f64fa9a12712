"""The JSON that a job writes into its folder: the manifest, and a report for each part.

`parsed` checks what is read back, by the types of a dataclass.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pyspark_dledger.common.durable import sync_dir, sync_file, write_durably
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.io.files import read_start
from pyspark_dledger.log.io.store_use import MANIFEST

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_BYTES = 256 * 1024 * 1024
_CRC = "crc32"


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
    ``left`` are for the end of the job, when the file is deleted.
    """

    number: Count
    rows: Count
    skipped: Count
    first_skipped: tuple[str, ...]
    files: tuple[FileReport, ...]
    source_bytes: Count
    notes: tuple[str, ...] = ()
    counts: dict[str, Count] = field(default_factory=dict)
    problems: Count = 0
    left: FileReport | None = None


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


def with_crc(value: Mapping[str, Any]) -> dict[str, Any]:
    """An object with the CRC-32 of its JSON as the last field."""
    return {**value, _CRC: _crc_of(value)}


def without_crc(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object before `with_crc`. Raises ValueError if its CRC-32 is another one."""
    rest = {name: each for name, each in value.items() if name != _CRC}
    if value.get(_CRC) != _crc_of(rest):
        raise ValueError(f"CRC-32 {_crc_of(rest)}, not {value.get(_CRC)}")
    return rest


def _crc_of(value: Mapping[str, Any]) -> int:
    return crc32(json.dumps(value, sort_keys=True).encode())


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

    pq.write_table(schema.with_metadata({_KEY: json.dumps(manifest)}).empty_table(), file)
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
