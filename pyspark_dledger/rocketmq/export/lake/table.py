"""The interface of a table that a log is appended to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from pyspark_dledger.common.uris import without_secrets
from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.rocketmq.export.lake.position import LakePosition

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
