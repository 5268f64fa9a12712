"""Tables that a log is appended to, Delta and Iceberg: how far each has a log, and whether a store has that log.

The position is in the table, in the same commit as the rows. A run that is killed has committed both or none.
"""

from __future__ import annotations

import itertools
import json
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_dledger.common.uris import is_remote, without_secrets
from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import NOTHING, TailOffset
from pyspark_dledger.log.tail.tail_view import entry_ref
from pyspark_dledger.rocketmq.export.forms import ExportSettings
from pyspark_dledger.rocketmq.export.row_files import MAX_NAME_BYTES, TopicDay, by_topic_and_day, folder_of

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table, Transaction, WriteTask


PARTITION_COLUMNS = ("topic", "storeTimestamp")
"""The columns that the partitions of a table are made of."""


class ConflictError(Exception):
    """Another writer changed the table after it was loaded. Nothing was appended."""


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
    refs = (entry_ref(log, COMMITLOG if each.index is None else DLEDGER, each.pos or 0) for each in known)
    if not known or any(ref is not None and ref.offset == each for ref, each in zip(refs, known, strict=True)):
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


class LakeTable:
    """The table with a name as it was loaded last.

    What `position` returns and what `append` commits on is the same version: else two runs could append the same rows.
    """

    place: str | None
    """The path or URL below which its files are, if it is known before they are written."""

    def __init__(self, name: str, settings: ExportSettings) -> None:
        self._name, self._settings = name, settings
        self._table: Any = None

    def load(self, schema: pa.Schema) -> None:
        """Load the current version. A table that does not exist is created, for rows of `schema`."""
        with table_errors(self._name):
            self._table = self._opened()
            if self._table is None:
                self._create(schema)
                self._table = self._opened()

    def position(self) -> LakePosition | None:
        """The position in the loaded version. Raises StoreError if the table forgets positions."""
        with table_errors(self._name):
            return position_from_numbers(self._numbers(), self._name)

    def append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        """Append rows and set the position in one commit on the loaded version.

        Columns of `schema` that the table lacks are added. Raises ConflictError if the position may have changed.
        """
        with table_errors(self._name):
            self._append(rows, schema, position)

    def _opened(self) -> Any:
        """The current version; None if the table does not exist."""
        raise NotImplementedError

    def _create(self, schema: pa.Schema) -> None:
        """Create the table, unless another run is first."""
        raise NotImplementedError

    def _numbers(self) -> Mapping[str, int | None]:
        """The numbers of the position; none without one."""
        raise NotImplementedError

    def _append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        raise NotImplementedError


APP_ID = "dledger.{}"
"""The application ids of the transactions with the numbers of the position. Two commits with the same one conflict."""

_DAY = "day"
_DAY_FIELD = pa.field(_DAY, pa.date32())
_RETENTION = "delta.setTransactionRetentionDuration"
_PARTITIONS = ["topic", _DAY]


class DeltaLake(LakeTable):
    """The table at a path or URL."""

    def __init__(self, name: str, settings: ExportSettings) -> None:
        super().__init__(name, settings)
        self.place = name

    def _opened(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._name, storage_options=self._settings.storage_options)
        except TableNotFoundError:
            return None

    def _create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        is_flat = self._settings.flat
        DeltaTable.create(
            self._name,
            schema=schema if is_flat else schema.append(_DAY_FIELD),
            mode="ignore",
            partition_by=None if is_flat else _PARTITIONS,
            storage_options=self._settings.storage_options,
        )

    def _numbers(self) -> Mapping[str, int | None]:
        if _RETENTION in self._table.metadata().configuration:
            raise StoreError(
                f"{self._name}: expected a table that keeps transactions, which have the position, found its property "
                f"{_RETENTION} set: unset it, or export to a new table"
            )
        return {name: self._table.transaction_version(APP_ID.format(name)) for name in NAMES}

    def _append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        partitions = self._table.metadata().partition_columns
        table = pa.Table.from_batches(rows, schema)
        if _DAY in partitions:
            table = table.append_column(_DAY_FIELD, table["storeTimestamp"].cast(_DAY_FIELD.type))
        if "topic" in partitions and not is_remote(self._name):
            self._check_names(table)
        numbers = position.to_numbers()
        properties = CommitProperties(
            custom_metadata={"dledger": numbers},
            app_transactions=[Transaction(APP_ID.format(name), number) for name, number in numbers.items()],
        )
        try:
            write_deltalake(
                self._table,
                table,
                mode="append",
                schema_mode="merge",
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise ConflictError from error

    def _check_names(self, table: pa.Table) -> None:
        """Raises StoreError for a topic that is too long for the name of a partition's folder."""
        for topic in table["topic"].unique().to_pylist():
            size = len(folder_of(topic, None).partition("/")[0].encode())
            if size > MAX_NAME_BYTES:
                raise StoreError(
                    f"{self._name}: the partition of a topic of {len(topic)} characters has a folder with a name of "
                    f"{size} bytes, at most {MAX_NAME_BYTES} fit: export to a new table with option flat"
                )


POSITION = "dledger.position"
"""The property of snapshots and of the table with the position as JSON."""

_TRANSFORMS = ("identity", _DAY)
# Paths of files do not contain the topic: it can be longer than a file name.
_PROPERTIES = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
# The sequence number of the snapshot, in the position.
_SEQUENCE = "sequence"
_RETRIES = "commit.retry.num-retries"


class IcebergTable(LakeTable):
    """The table ``NAMESPACE.TABLE`` of a catalog."""

    def __init__(self, name: str, settings: ExportSettings) -> None:
        super().__init__(name, settings)
        if "." not in name.strip("."):
            raise OptionError(f"expected a table NAMESPACE.TABLE of an Iceberg catalog, found {name}")
        with table_errors(name):
            from pyiceberg.catalog import load_catalog

            self._catalog = load_catalog(settings.catalog or "default", **(settings.catalog_properties or {}))
        self.place = self._catalog.properties.get("warehouse")

    def _opened(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

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
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),
            self._catalog.create_table_transaction(self._name, schema, properties=_PROPERTIES) as transaction,
        ):
            if not self._settings.flat:
                with transaction.update_spec() as update:
                    for column, transform in zip(PARTITION_COLUMNS, _TRANSFORMS, strict=True):
                        update.add_field(column, transform, _DAY if transform == _DAY else column)

    def _numbers(self) -> Mapping[str, int | None]:
        """The position of the last snapshot that has one: a rollback takes it back with the rows.

        If that snapshot has expired, it is in the property of the table.
        """
        snapshot, text = self._table.current_snapshot(), None
        first = snapshot
        while snapshot is not None and (text := (snapshot.summary or {}).get(POSITION)) is None:
            first, parent = snapshot, snapshot.parent_snapshot_id
            snapshot = self._table.snapshot_by_id(parent) if parent is not None else None
        if first is None or (text := text or self._table.properties.get(POSITION)) is None:
            return {}
        found: dict[str, int] = json.loads(text)
        # Expired snapshots are older than those that are left. One that was rolled back is not.
        is_rolled_back = snapshot is None and (first.sequence_number or 0) < found[_SEQUENCE]
        return {} if is_rolled_back else found

    def _append(self, rows: Sequence[pa.RecordBatch], schema: pa.Schema, position: LakePosition) -> None:
        from pyiceberg.exceptions import CommitFailedException

        table = self._table
        # In memory only. A retry of pyiceberg would append after another run has appended the same rows.
        table.metadata.properties[_RETRIES] = "0"
        numbers = {**position.to_numbers(), _SEQUENCE: table.metadata.next_sequence_number()}
        properties = {POSITION: json.dumps(numbers)}
        try:
            with table.transaction() as transaction:
                if set(schema.names) - set(transaction.table_metadata.schema().column_names):
                    with transaction.update_schema() as update:
                        update.union_by_name(schema)
                transaction.set_properties(properties)
                self._append_rows(transaction, rows, schema, properties)
        except CommitFailedException as error:
            raise ConflictError from error

    def _append_rows(
        self, transaction: Transaction, rows: Sequence[pa.RecordBatch], schema: pa.Schema, properties: dict[str, str]
    ) -> None:
        if not _is_by_topic_and_day(transaction):
            transaction.append(pa.Table.from_batches(rows, schema), snapshot_properties=properties)
            return
        from pyiceberg.io.pyarrow import write_file

        # `Transaction.append` needs pyiceberg-core for days, and filters all rows once for each partition.
        with transaction.update_snapshot(snapshot_properties=properties).fast_append() as snapshot:
            metadata = transaction.table_metadata
            for file in write_file(self._table.io, metadata, _tasks(transaction, rows, schema)):
                snapshot.append_data_file(file)


def _is_by_topic_and_day(transaction: Transaction) -> bool:
    metadata = transaction.table_metadata
    fields = [
        (metadata.schema().find_column_name(each.source_id), str(each.transform)) for each in metadata.spec().fields
    ]
    return fields == list(zip(PARTITION_COLUMNS, _TRANSFORMS, strict=True))


def _tasks(transaction: Transaction, rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[WriteTask]:
    """A file for each topic and day."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
    from pyiceberg.table import WriteTask

    metadata = transaction.table_metadata
    mapping, version = metadata.schema().name_mapping, metadata.format_version
    file_schema = pyarrow_to_schema(schema, mapping, format_version=version)
    groups: dict[TopicDay, list[pa.RecordBatch]] = {}
    for batch in rows:
        for each, part in by_topic_and_day(batch):
            groups.setdefault(each, []).append(part)
    commit, numbers = uuid.uuid4(), itertools.count()
    for each, batches in groups.items():
        values = [PartitionFieldValue(*pair) for pair in zip(metadata.spec().fields, each, strict=True)]
        key = PartitionKey(values, metadata.spec(), metadata.schema())
        yield WriteTask(commit, next(numbers), file_schema, batches, partition_key=key)
