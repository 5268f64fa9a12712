"""All tables but ``log``, for Spark, the command line and the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import ReadOptions, check_use
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log.arrow.log_dataset import LogDataset

_MODULES = {
    "segments": "log.tables.store_tables:SEGMENTS",
    "state": "log.tables.store_tables:STATE",
    "findings": "log.tables.store_tables:FINDINGS",
    "indexUnits": "log.tables.index_units_table",
    "consumeQueue": "rocketmq.tables.broker_tables:CONSUME_QUEUE",
    "indexFile": "rocketmq.tables.broker_tables:INDEX_FILE",
    "audit": "rocketmq.tables.audit_table",
    "consumers": "rocketmq.tables.broker_tables:CONSUMERS",
    "lost": "rocketmq.tables.lost_table",
    "diff": "log.tables.store_tables:DIFF",
    "transactions": "rocketmq.tables.life_tables:TRANSACTIONS",
    "timers": "rocketmq.tables.life_tables:TIMERS",
    "pop": "rocketmq.tables.life_tables:POP",
    "trace": "rocketmq.tables.life_tables:TRACE",
    "controllerEvents": "rocketmq.controller_events",
}


class _Tables(Mapping[str, Table]):
    """Imports the module of a table when the table is used: each has ``TABLE``, or the name after a colon."""

    def __getitem__(self, name: str) -> Table:
        module, _, attribute = _MODULES[name].partition(":")
        table: Table = getattr(import_module(f"pyspark_dledger.{module}"), attribute or "TABLE")
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


TABLES = _Tables()
"""The tables by name, in the order of the documentation."""


def read_table(log: StoreView, name: str, options: ReadOptions | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a table, part by part; by default with the options of `log`.

    Raises OptionError for an unknown table or an option without effect, StoreError if the store cannot be read.
    """
    if name not in TABLES:
        raise OptionError(f"unknown table {name}: {nearest(name, TABLES)}")
    chosen = log.options if options is None else options
    check_use(chosen, f"table {name}")
    for part in TABLES[name].plan(log, chosen):
        yield from TABLES[name].read(part)


def table_dataset(log: StoreView, name: str) -> LogDataset:
    """A table as a pyarrow dataset, which reads all of it for each query; see `Log.dataset`."""
    from pyspark_dledger.log.arrow.log_dataset import LogDataset  # loads pyarrow.dataset
    from pyspark_dledger.log.arrow.parallel import stream_of
    from pyspark_dledger.log.tables.table import table_schema

    columns = {column.name: column for column in TABLES[name].columns}

    def open_reader(names: tuple[str, ...], *_: Any, **_options: Any) -> pa.RecordBatchReader:
        batches = (batch.select(list(names)) for batch in read_table(log, name))
        return stream_of(table_schema(columns[column] for column in names), batches)

    return LogDataset(TABLES[name].schema, open_reader, pushes_filters=False)
