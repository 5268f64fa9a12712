"""The interface of a table that a log is appended to, how far it has a log, and whether a store has that log.

The position is in the table, in the same commit as the rows. A run that is killed has committed both or none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pyspark_dledger.common.uris import without_secrets
from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import NOTHING, TailOffset
from pyspark_dledger.log.tail.tail_view import entry_ref

PARTITION_COLUMNS = ("topic", "storeTimestamp")
"""The columns that the partitions of a table are made of."""


class ConflictError(Exception):
    """Another writer changed the table after it was loaded. Nothing was appended."""


class LakeTable(Protocol):
    """A table as it was loaded last.

    What `position` returns and what `append` commits on is the same version: else two runs could append the same rows.
    """

    place: str | None
    """The path or URL below which its files are, if it is known before they are written."""

    def load(self, schema: pa.Schema) -> None:
        """Load the current version. A table that does not exist is created, for rows of `schema`."""

    def position(self) -> LakePosition | None:
        """The position in the loaded version."""

    def append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        """Append rows and set the position in one commit on the loaded version.

        Columns of `schema` that the table lacks are added. Raises ConflictError if the position may have changed.
        """


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """Raises errors of a table's library as StoreError. These are of any class."""
    try:
        yield
    except (DLedgerError, ConflictError):
        raise
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{table}: expected the package {error.name}, found none: pip install 'pyspark_dledger[iceberg,delta]'"
        ) from error
    except Exception as error:
        text = without_secrets(str(error))
        raise StoreError(f"{table}: the table cannot be used ({type(error).__name__}: {text})") from error


_VERSION = 1
_OFFSETS = ("last", "first")
_NONE = -1
NAMES = (
    *("version", "filters"),
    *(f"{each}{field.title()}" for each in _OFFSETS for field in TailOffset._fields),
)
"""The names of a position's numbers."""


@dataclass(frozen=True)
class LakePosition:
    """The ``last`` entry that a table has, the ``first`` one that the log had then, and a checksum of the filters."""

    last: TailOffset
    first: TailOffset
    filters: int

    def to_numbers(self) -> dict[str, int]:
        """The form in a table: 64-bit integers, -1 for None."""
        values = (number for offset in (self.last, self.first) for number in offset)
        numbers = (_VERSION, self.filters, *(_NONE if number is None else number for number in values))
        return dict(zip(NAMES, numbers, strict=True))


def position_from_numbers(numbers: Mapping[str, int | None], table: str) -> LakePosition | None:
    """A position from `LakePosition.to_numbers`; None if the table has none. Raises StoreError for anything else."""
    found = [numbers.get(name) for name in NAMES]
    if found[0] is None:
        return None
    if found[0] != _VERSION or not all(type(number) is int for number in found):
        raise StoreError(
            f"{table}: expected a position of version {_VERSION}, found {json.dumps(dict(numbers))}: use the release "
            "that wrote it, or export to a new table"
        )
    values = [None if number == _NONE else number for number in found[2:]]
    last, first = TailOffset(*values[:4]), TailOffset(*values[4:])
    return LakePosition(last, first, found[1] or 0)


def filters_checksum(options: ReadOptions) -> int:
    """A checksum of the options that leave out rows; 0 without."""
    chosen = (options.topic, options.queue_id, options.tags, options.mode == "DROPMALFORMED" or None)
    return zlib.crc32(json.dumps(chosen).encode()) if any(each is not None for each in chosen) else 0


def first_offset(log: StoreView) -> TailOffset:
    """The first entry or message of the files' starts, which identifies the log; `NOTHING` without one."""
    found = (entry_ref(log, segment.source, segment.base) for segment in log.segments)
    return next((each.offset for each in found if each is not None), NOTHING)


def check_same_log(log: StoreView, position: LakePosition, table: str) -> None:
    """Raises StoreError unless the store has the log of a position, or a later part of it as far as terms show."""
    known = [offset for offset in (position.last, position.first) if offset.is_entry]
    if not known or any(_is_in(log, offset) for offset in known):
        return
    begin = first_offset(log)
    is_older = all(offset.pos is not None and offset.pos < log.min_offset for offset in known)
    if is_older and (begin.term or 0) >= (position.last.term or 0):
        return
    raise StoreError(
        f"{table}: the table has the log up to {position.last} with CRC {position.last.crc}; {log.path} is another "
        f"log, or was overwritten: it begins with {begin} with CRC {begin.crc}: name the store of that log, or export "
        "to a new table"
    )


def _is_in(log: StoreView, offset: TailOffset) -> bool:
    found = entry_ref(log, COMMITLOG if offset.index is None else DLEDGER, offset.pos or 0)
    return found is not None and found.offset == offset
