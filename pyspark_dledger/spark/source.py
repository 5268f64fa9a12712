"""The Spark data source ``dledger``.

Spark imports this module at the first use of any Python data source. So it imports nothing but pyspark; the methods
import the rest.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import MutableMapping
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import OptionError
from pyspark_dledger.spark import NEEDS_PYSPARK
from pyspark_dledger.spark.plain_errors import plain_errors

try:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType
except ImportError as error:
    raise ImportError(f"the data source dledger {NEEDS_PYSPARK}") from error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import datasource

    from pyspark_dledger.log.options import ReadOptions
    from pyspark_dledger.spark.sink.write_options import WriteOptions

_PUSHDOWN_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
# The extension adds this to the options of a scan that no other query uses. No user sets it.
_PLANNED_BY_EXTENSION = "plannedByExtension"
_IN_SQL = (
    "use CREATE TEMPORARY VIEW name USING dledger OPTIONS (path '...'), or switch on the extension of Spark's "
    "optimizer (docs/reading.md)"
)
_NO_PATH = f"no path is given: name the store in load(path). Of a catalog's table Spark passes none: {_IN_SQL}"


class DLedgerDataSource(DataSource):
    """Read and write DLedger logs of Apache RocketMQ: one row per log entry, and tables about the store.

    Name
    ----
    ``dledger``

    Options
    -------
    ``load(path)`` takes a broker's ``storePathRootDir``, a node's folder ``dledger-<id>``, a ``data`` or ``commitlog``
    folder, or a segment file. ``load([a, b])`` reads ``a``; ``b`` is a replica of it. Reading never modifies a store.
    All options are in `pyspark_dledger.log.options.OPTIONS` and `docs/reading.md`. The most used ones:

    - ``table``: ``log`` (default), ``segments``, ``findings``, ``audit``, ``diff`` and more
    - ``mode``: ``PERMISSIVE`` (default), ``DROPMALFORMED`` or ``FAILFAST``
    - ``topic``, ``queueId``, ``tags``: comma-separated; other messages are skipped before rows are built
    - ``startingOffsets``, ``endingOffsets``, ``startingTimestamp``, ``endingTimestamp``: which part of the log
    - ``isolationLevel``: ``read_committed`` skips entries that are not known to be committed
    - ``selfId``: the node to read, if the root has several
    - ``includeEntryBody``: adds the column ``entryBody``, the bytes that DLedger replicated

    ``.schema("index long, topic string")`` reads only these columns; the others cost nothing.

    A write goes to a path, or to ``group`` and ``peers``. With a topic, a column or an option, rows become RocketMQ
    messages; else raw entries of column ``body``. Its options are in
    `pyspark_dledger.spark.sink.write_options.WRITE_OPTIONS` and `docs/write.md`.

    Modes
    -----
    Reads and writes, batch and streaming. A stream reads committed entries: see `docs/tail.md`.

    Examples
    --------
    >>> spark.read.format("dledger").load("/data/rocketmq/store").groupBy("topic").count().show()

    >>> log = spark.read.format("dledger").option("topic", "Orders").schema("index long, keys string, body binary")
    >>> log.load("/data/rocketmq/store").show()

    >>> orders.write.format("dledger").mode("append").option("topic", "Orders").save("/data/mylog")

    """

    @plain_errors
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if "provider" in options:  # a table of a catalog: Spark drops its options
            raise OptionError(f"Spark does not pass the path of a catalog's table to dledger: {_IN_SQL}")

    @cached_property
    def read_options(self) -> ReadOptions:
        """The parsed options of a read. Raises OptionError."""
        from pyspark_dledger.log.options import parse_options
        from pyspark_dledger.spark.sink.write_options import write_only_option

        for name in filter(None, map(write_only_option, self.options)):
            raise OptionError(f"option {name} is for writing: leave it out of a read")
        return parse_options(self.options)

    @classmethod
    def name(cls) -> str:
        return "dledger"

    @plain_errors
    def schema(self) -> StructType:
        """Return the schema of the table. Checks the path, at ``load``; a live group is not connected.

        Raises StoreError for a path without a readable store, OptionError for wrong options.
        """
        from pyspark_dledger.log.store_view import StoreView
        from pyspark_dledger.spark.schema import arrow_schema, whole_schema

        if not self._is_group:
            StoreView(self._path(), self.read_options)
        schema = whole_schema(self.read_options)
        # Sail cannot convert Spark's timestamps.
        return arrow_schema(schema, self.read_options.table) if "pysail" in sys.modules else schema

    @plain_errors
    def reader(self, schema: StructType | pa.Schema) -> datasource.DataSourceReader:
        """Return the reader of the columns in `schema`, of a store or a live group.

        That of a log takes filters only from the extension: Spark itself plans other queries of one ``load()`` with
        the filters of the first. Sail gives an Arrow schema, with its own name of the time zone UTC.
        """
        if not isinstance(schema, StructType):
            from pyspark.sql.pandas.types import from_arrow_schema

            reader: Any = self._reader(from_arrow_schema(schema))
            reader.schema, reader.is_for_sail = schema, True
            return reader
        return self._reader(schema)

    def _reader(self, schema: StructType) -> datasource.DataSourceReader:
        from pyspark_dledger.log.options import SPARK_LOG, check_use, read_paths
        from pyspark_dledger.spark.read import batch_reader

        takes_filters = self.options.pop(_PLANNED_BY_EXTENSION, None) is not None and _pushes_filters()
        if self._is_group:
            return self._group_reader(schema, takes_filters)
        if not read_paths(self.options) and _pushes_filters():
            return batch_reader.UnknownTable(_NO_PATH)  # the extension replaces it by one with the catalog's path
        path, options = self._path(), self.read_options
        check_use(options, SPARK_LOG if options.table == "log" else f"table {options.table}")
        if options.table != "log":
            return batch_reader.TableReader(path, options, schema)
        if takes_filters:
            from pyspark_dledger.spark.read.pushdown import PushdownReader

            return PushdownReader(path, options, schema)
        return batch_reader.LogReader(path, options, schema)

    def _group_reader(self, schema: StructType, takes_filters: bool) -> datasource.DataSourceReader:
        from pyspark_dledger.log.options import GROUP_READ, check_use
        from pyspark_dledger.spark.group.group_plan import GroupReader, check_group_options

        check_use(self.read_options, GROUP_READ)
        check_group_options(self.read_options)
        if takes_filters:
            from pyspark_dledger.spark.group.group_pushdown import GroupPushdownReader

            return GroupPushdownReader(self.read_options, schema)
        return GroupReader(self.read_options, schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader of a store on disk, or of a live group."""
        from pyspark_dledger.log.tail.tail import stream_options

        options = stream_options(self.read_options, self.options)
        if self._is_group:
            from pyspark_dledger.spark.group.group_plan import check_group_options
            from pyspark_dledger.spark.stream.group_tail import GroupStreamReader

            check_group_options(options)
            return GroupStreamReader(options, schema)
        from pyspark_dledger.spark.stream.stream_reader import StoreStreamReader

        return StoreStreamReader(self._path(), options, schema)

    @cached_property
    def _is_group(self) -> bool:
        """Whether a live group is read. Raises OptionError if a path is given, too."""
        from pyspark_dledger.log.options import read_paths

        is_group = bool(self.read_options.group or self.read_options.peers)
        if is_group and read_paths(self.options):
            raise OptionError("a path and options group and peers are both given: load() a group without a path")
        return is_group

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Return the writer of a batch job. Raises all errors that need no row here, on the driver."""
        if not isinstance(schema, StructType):
            raise OptionError(
                "Sail cannot write to dledger, only read: write with Spark, or use dl.connect (docs/client.md)"
            )
        from pyspark_dledger.spark.sink.writers import BatchWriter

        return BatchWriter(self._write_options(overwrite), schema)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a micro-batch, for its tasks or its commit."""
        from pyspark_dledger.spark.sink.writers import StreamWriter

        return StreamWriter(self._write_options(overwrite), schema)

    def _write_options(self, overwrite: bool) -> WriteOptions:
        from pyspark_dledger.spark.sink.write_options import parse_write_options

        if overwrite:
            raise OptionError(
                "mode overwrite is not possible: a log is append-only, and replicas and streams rely on it; use mode "
                "append, or write to a new folder"
            )
        return parse_write_options(self.options)

    def _path(self) -> str:
        from pyspark_dledger.log.options import read_paths

        paths = read_paths(self.options)
        if not paths:
            raise OptionError(_NO_PATH)
        return paths[0]


DefaultSource = DLedgerDataSource


def _pushes_filters() -> bool:
    """Return whether the caller is the planner that pushes filters.

    The other planner rejects a reader with ``pushFilters`` if the session has pushdown off. With pushdown on, it asks
    for a reader only if there is no filter to push.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHDOWN_PLANNER:
            return True
        frame = frame.f_back
    return False
