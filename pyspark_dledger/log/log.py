"""The log of a store, for reading with plain Python: its state, its findings and its rows."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.conditions import ALL_ROWS, intersect
from pyspark_dledger.log.options import SCAN, ReadOptions, check_use, find_option, option_filters, parse_options
from pyspark_dledger.log.plan import Partition, plan_read, read_known, read_partition
from pyspark_dledger.log.state import State, state_of
from pyspark_dledger.log.store_view import StoreView

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from pyspark_dledger.log.arrow.log_dataset import LogDataset
    from pyspark_dledger.log.arrow.parallel import PlanParts
    from pyspark_dledger.log.conditions import Lookup
    from pyspark_dledger.log.verify.findings import Finding


def open_log(path: str | os.PathLike[str], **options: Any) -> Log:
    """Open the store at `path`, read-only.

    `options` are those of a batch read, by the same names: they choose the store (selfId, dataDirs, replicas), its
    committed bound, and what `Log.scan` reads. Raises StoreError where `path` has no readable store, OptionError for a
    wrong option or one without an effect.
    """
    parsed = parse_options(options)
    check_use(parsed, SCAN)
    return Log(os.fspath(path), parsed)


class Log(StoreView):
    """The log of one store: its rows, its state and its findings."""

    @cached_property
    def state(self) -> State:
        """The state of the store when it was first asked for."""
        return state_of(self)

    def findings(self) -> list[Finding]:
        """What is wrong with the store or worth knowing; see `findings.CATALOGUE`. Reads the whole store."""
        from pyspark_dledger.log.verify.verify_store import verify

        check_use(self.options, "table findings")
        return list(verify(self))

    def plan(self, columns: tuple[str, ...], options: ReadOptions, filters: Filters) -> list[Partition]:
        """The partitions that together have the wanted rows, each once, in the order of the log."""
        return plan_read(self, columns, options, filters)

    def scan(self, columns: list[str] | tuple[str, ...] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Rows of the log as record batches of `columns` (all of the ``log`` table by default), in order.

        `options` are those of a Spark read, by the same names, and override those of `open_log`. Raises OptionError,
        StoreError and, with mode=FAILFAST, MalformedError.
        """
        names, plan = self._planner(columns, options)
        return (batch for partition in plan(names) for batch in self._read(partition))

    def reader(
        self,
        columns: list[str] | tuple[str, ...] | None = None,
        *,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name
        threads: int | None = None,
        ordered: bool = True,
        **options: Any,
    ) -> pa.RecordBatchReader:
        """The rows of `scan` that meet `filter`, as a reader that other libraries take (``__arrow_c_stream__``).

        So many `threads` read, by default one for each core. Without `ordered`, rows come as they are read. The schema
        is there without rows, too. Raises what `scan` does.
        """
        from pyspark_dledger.format.columns import COLUMN_BY_NAME, arrow_schema
        from pyspark_dledger.log.arrow.parallel import reader_opener, stream_of

        names, plan = self._planner(columns, options)
        open_reader = reader_opener(plan, self._read, threads, ordered)
        if filter is None:
            return open_reader(names)
        from pyspark_dledger.log.arrow.log_dataset import LogDataset  # loads pyarrow.dataset

        rows = LogDataset(arrow_schema(tuple(COLUMN_BY_NAME)), open_reader).scanner(names, filter)
        return stream_of(rows.projected_schema, rows.to_batches())

    def dataset(self, *, threads: int | None = None, ordered: bool = True, **options: Any) -> LogDataset:
        """The rows of `scan` as a pyarrow dataset; see `reader`.

        DuckDB and Polars ask it for the columns and rows of a query only.
        """
        from pyspark_dledger.format.columns import arrow_schema
        from pyspark_dledger.log.arrow.log_dataset import LogDataset  # loads pyarrow.dataset
        from pyspark_dledger.log.arrow.parallel import reader_opener

        names, plan = self._planner(None, options)
        return LogDataset(arrow_schema(names), reader_opener(plan, self._read, threads, ordered))

    def _planner(self, columns: Iterable[str] | None, options: Mapping[str, Any]) -> tuple[tuple[str, ...], PlanParts]:
        """The columns of a scan, and a call that plans one. Raises OptionError."""
        given = parse_options(options)
        if given.include_entry_body and columns is not None and "entryBody" not in columns:
            raise OptionError("option includeEntryBody has no effect on given columns: add entryBody to them")
        merged = replace(
            self.options,
            **{field: getattr(given, field) for field in (find_option(option).field for option in options)},
        )
        check_use(merged, SCAN)
        log = self if _chooses_same(merged, self.options) else Log(self.path, merged)

        def plan(
            names: tuple[str, ...],
            filters: Filters = ALL_ROWS,
            lookup: Lookup | None = None,
            part_bytes: int | None = None,
        ) -> list[Partition]:
            chosen = replace(merged, max_partition_bytes=merged.max_partition_bytes or part_bytes)
            return plan_read(log, names, chosen, intersect(option_filters(merged), filters), lookup)

        return _checked_columns(columns, merged), plan

    def _read(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition) if self.options.unread is None else read_known(partition, unread=self.unread)


def _chooses_same(first: ReadOptions, second: ReadOptions) -> bool:
    """Whether two sets of options open a store in the same way."""
    chosen = operator.attrgetter("self_id", "data_dirs", "replicas", "engine")
    return bool(chosen(first) == chosen(second))


def _checked_columns(columns: Iterable[str] | None, options: ReadOptions) -> tuple[str, ...]:
    from pyspark_dledger.format.columns import COLUMN_BY_NAME, DEFAULT_NAMES, ENTRY_BODY

    if columns is None:
        return (*DEFAULT_NAMES, *((ENTRY_BODY.name,) if options.include_entry_body else ()))
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in COLUMN_BY_NAME:
            raise OptionError(f"unknown column {name}: {nearest(name, COLUMN_BY_NAME)}")
    return names
