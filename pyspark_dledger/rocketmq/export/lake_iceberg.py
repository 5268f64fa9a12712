"""Appends to an Iceberg table with pyiceberg."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_dledger.errors import OptionError
from pyspark_dledger.rocketmq.export.forms import ExportSettings
from pyspark_dledger.rocketmq.export.lake_table import (
    PARTITION_COLUMNS,
    ConflictError,
    LakePosition,
    position_from_numbers,
    table_errors,
)
from pyspark_dledger.rocketmq.export.parquet import TopicDay, by_topic_and_day

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table, Transaction, WriteTask

POSITION = "dledger.position"
"""The property of snapshots and of the table with the position as JSON."""

_TRANSFORMS = ("identity", "day")
_DAY = "day"
# Paths of files do not contain the topic: it can be longer than a file name.
_PROPERTIES = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
# The sequence number of the snapshot, in the position.
_SEQUENCE = "sequence"
_RETRIES = "commit.retry.num-retries"


class IcebergTable:
    """The table ``NAMESPACE.TABLE`` of a catalog."""

    def __init__(self, name: str, settings: ExportSettings) -> None:
        if "." not in name.strip("."):
            raise OptionError(f"expected a table NAMESPACE.TABLE of an Iceberg catalog, found {name}")
        self._name, self._is_flat = name, settings.flat
        self._table: Table | None = None
        with table_errors(name):
            from pyiceberg.catalog import load_catalog

            self._catalog = load_catalog(settings.catalog or "default", **(settings.catalog_properties or {}))
        self.place = self._catalog.properties.get("warehouse")

    def load(self, schema: pa.Schema) -> None:
        """See `LakeTable.load`."""
        with table_errors(self._name):
            from pyiceberg.exceptions import NoSuchTableError

            try:
                self._table = self._catalog.load_table(self._name)
            except NoSuchTableError:
                self._create(schema)
                self._table = self._catalog.load_table(self._name)

    def position(self) -> LakePosition | None:
        """The position of the last snapshot that has one: a rollback takes it back with the rows.

        If that snapshot has expired, it is in the property of the table.
        """
        with table_errors(self._name):
            text = self._position_text()
            return position_from_numbers(json.loads(text), self._name) if text is not None else None

    def _position_text(self) -> str | None:
        table = self._loaded()
        snapshot = table.current_snapshot()
        while snapshot is not None:
            if snapshot.summary is not None and (found := snapshot.summary.get(POSITION)) is not None:
                return found
            first, parent = snapshot, snapshot.parent_snapshot_id
            snapshot = table.snapshot_by_id(parent) if parent is not None else None
            if snapshot is None and (found := table.properties.get(POSITION)) is not None:
                # Expired snapshots are older than those that are left. One that was rolled back is not.
                return None if (first.sequence_number or 0) < json.loads(found)[_SEQUENCE] else found
        return None

    def _loaded(self) -> Table:
        assert self._table is not None, "the table is loaded first"
        return self._table

    def append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        """See `LakeTable.append`."""
        with table_errors(self._name):
            from pyiceberg.exceptions import CommitFailedException

            table = self._loaded()
            # In memory only. A retry of pyiceberg would append after another run has appended the same rows.
            table.metadata.properties[_RETRIES] = "0"
            numbers = {**position.to_numbers(), _SEQUENCE: table.metadata.next_sequence_number()}
            properties = {POSITION: json.dumps(numbers)}
            try:
                with table.transaction() as transaction:
                    _add_columns(transaction, schema)
                    transaction.set_properties(properties)
                    self._append(transaction, rows, schema, properties)
            except CommitFailedException as error:
                raise ConflictError from error

    def _create(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        namespace = self._name.rpartition(".")[0]
        if not self._catalog.namespace_exists(namespace):
            try:
                self._catalog.create_namespace(namespace)
            except Exception:
                # Another run was first. Errors of an SQL catalog are then those of its database.
                if not self._catalog.namespace_exists(namespace):
                    raise
        # Another run may be first.
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),
            self._catalog.create_table_transaction(self._name, schema, properties=_PROPERTIES) as transaction,
        ):
            if not self._is_flat:
                with transaction.update_spec() as update:
                    for column, transform in zip(PARTITION_COLUMNS, _TRANSFORMS, strict=True):
                        update.add_field(column, transform, _DAY if transform == _DAY else column)

    def _append(
        self, transaction: Transaction, rows: Sequence[pa.RecordBatch], schema: pa.Schema, properties: dict[str, str]
    ) -> None:
        if not _is_by_topic_and_day(transaction):
            transaction.append(pa.Table.from_batches(rows, schema), snapshot_properties=properties)
            return
        from pyiceberg.io.pyarrow import write_file

        # `Transaction.append` needs pyiceberg-core for days, and filters all rows once for each partition.
        with transaction.update_snapshot(snapshot_properties=properties).fast_append() as snapshot:
            metadata = transaction.table_metadata
            for file in write_file(self._loaded().io, metadata, _tasks(transaction, rows, schema)):
                snapshot.append_data_file(file)


def _add_columns(transaction: Transaction, schema: pa.Schema) -> None:
    if set(schema.names) - set(transaction.table_metadata.schema().column_names):
        with transaction.update_schema() as update:
            update.union_by_name(schema)


def _is_by_topic_and_day(transaction: Transaction) -> bool:
    metadata = transaction.table_metadata
    fields = [
        (metadata.schema().find_column_name(each.source_id), str(each.transform)) for each in metadata.spec().fields
    ]
    return fields == list(zip(PARTITION_COLUMNS, _TRANSFORMS, strict=True))


def _tasks(transaction: Transaction, rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[WriteTask]:
    """A file for each topic and day."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.table import WriteTask

    mapping = transaction.table_metadata.schema().name_mapping
    file_schema = pyarrow_to_schema(schema, mapping, format_version=transaction.table_metadata.format_version)
    groups: dict[TopicDay, list[pa.RecordBatch]] = {}
    for batch in rows:
        for each, part in by_topic_and_day(batch):
            groups.setdefault(each, []).append(part)
    commit, numbers = uuid.uuid4(), itertools.count()
    for each, batches in groups.items():
        key = _partition_key(transaction, each)
        yield WriteTask(commit, next(numbers), file_schema, batches, partition_key=key)


def _partition_key(transaction: Transaction, values: TopicDay) -> PartitionKey:
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    metadata = transaction.table_metadata
    fields = [PartitionFieldValue(*each) for each in zip(metadata.spec().fields, values, strict=True)]
    return PartitionKey(fields, metadata.spec(), metadata.schema())
