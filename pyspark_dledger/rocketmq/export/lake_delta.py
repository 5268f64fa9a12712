"""Appends to a Delta table with deltalake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError
from pyspark_dledger.rocketmq.export.forms import ExportSettings
from pyspark_dledger.rocketmq.export.lake_table import (
    NAMES,
    ConflictError,
    LakePosition,
    position_from_numbers,
    table_errors,
)
from pyspark_dledger.rocketmq.export.parquet import MAX_NAME_BYTES, folder_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

APP_ID = "dledger.{}"
"""The application ids of the transactions with the numbers of the position. Two commits with the same one conflict."""

_DAY = pa.field("day", pa.date32())
_RETENTION = "delta.setTransactionRetentionDuration"
_PARTITIONS = ["topic", _DAY.name]


class DeltaLake:
    """The table at a path or URL."""

    def __init__(self, name: str, settings: ExportSettings) -> None:
        self._name, self._settings = name, settings
        self.place: str | None = name
        self._table: DeltaTable | None = None

    def load(self, schema: pa.Schema) -> None:
        """See `LakeTable.load`."""
        with table_errors(self._name):
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError

            storage = self._settings.storage_options
            try:
                self._table = DeltaTable(self._name, storage_options=storage)
            except TableNotFoundError:
                self._create(schema)
                self._table = DeltaTable(self._name, storage_options=storage)

    def position(self) -> LakePosition | None:
        """See `LakeTable.position`. Raises StoreError if the table forgets positions."""
        if _RETENTION in self._loaded().metadata().configuration:
            raise StoreError(
                f"{self._name}: expected a table that keeps transactions, which have the position, found its property "
                f"{_RETENTION} set: unset it, or export to a new table"
            )
        with table_errors(self._name):
            numbers = {name: self._loaded().transaction_version(APP_ID.format(name)) for name in NAMES}
            return position_from_numbers(numbers, self._name)

    def _loaded(self) -> DeltaTable:
        assert self._table is not None, "the table is loaded first"
        return self._table

    def append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        """See `LakeTable.append`."""
        with table_errors(self._name):
            from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake
            from deltalake.exceptions import CommitFailedError

            partitions = self._loaded().metadata().partition_columns
            table = pa.Table.from_batches(rows, schema)
            if _DAY.name in partitions:
                table = table.append_column(_DAY, table["storeTimestamp"].cast(_DAY.type))
            if "topic" in partitions and not is_remote(self._name):
                self._check_names(table)
            numbers = position.to_numbers()
            properties = CommitProperties(
                custom_metadata={"dledger": numbers},
                app_transactions=[Transaction(APP_ID.format(name), number) for name, number in numbers.items()],
            )
            try:
                write_deltalake(
                    self._loaded(),
                    table,
                    mode="append",
                    schema_mode="merge",
                    writer_properties=WriterProperties(compression="ZSTD"),
                    commit_properties=properties,
                )
            except CommitFailedError as error:
                raise ConflictError from error

    def _create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        is_flat = self._settings.flat
        # Another run may be first.
        DeltaTable.create(
            self._name,
            schema=schema if is_flat else schema.append(_DAY),
            mode="ignore",
            partition_by=None if is_flat else _PARTITIONS,
            storage_options=self._settings.storage_options,
        )

    def _check_names(self, table: pa.Table) -> None:
        """Raises StoreError for a topic that is too long for the name of a partition's folder."""
        for topic in table["topic"].unique().to_pylist():
            size = len(folder_of(topic, None).partition("/")[0].encode())
            if size > MAX_NAME_BYTES:
                raise StoreError(
                    f"{self._name}: the partition of a topic of {len(topic)} characters has a folder with a name of "
                    f"{size} bytes, at most {MAX_NAME_BYTES} fit: export to a new table with option flat"
                )
