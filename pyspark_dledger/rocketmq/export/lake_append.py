"""Appends to a table what was committed since the last run.

A commit has the rows of ``commitBytes`` of the log, and the position after them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pyspark_dledger.common.uris import is_local, local_target
from pyspark_dledger.errors import StoreError, StoreInUseError
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.log.plan import Partition, read_once
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.store_tail import StoreTail
from pyspark_dledger.log.tail.tail import NOTHING, Limits, TailOffset, stream_options
from pyspark_dledger.rocketmq.export.forms import ExportReport, ExportSettings
from pyspark_dledger.rocketmq.export.lake_tables import (
    PARTITION_COLUMNS,
    ConflictError,
    DeltaLake,
    IcebergTable,
    LakePosition,
    LakeTable,
    check_same_log,
    filters_checksum,
    first_offset,
)
from pyspark_dledger.rocketmq.jobs import Progress
from pyspark_dledger.rocketmq.jobs.target_folder import check_apart

_TABLES: dict[str, Callable[[str, ExportSettings], LakeTable]] = {"iceberg": IcebergTable, "delta": DeltaLake}
# Other writers commit rarely, such as a compaction.
_MAX_TRIES = 5
_PROBLEM = "problem"


def append_new(
    source: str, target: str, form: str, settings: ExportSettings, progress: Progress | None
) -> ExportReport:
    """Append to the table `target` what the log at `source` has committed after the table's position.

    Raises DataLossError if entries after the position are no longer in the log, unless failOnDataLoss is false;
    StoreError if the table has another log; StoreInUseError if another run appends at the same time.
    """
    began = time.monotonic()
    run = _Run(source, target, settings, _TABLES[form](target, settings))
    run.append_all(progress)
    return ExportReport(
        source=source,
        target=target,
        form=form,
        rows=run.rows,
        problems=run.problems,
        lost_is_all=not run.problems,
        committed_index=run.tail.progress().committed,
        parts=run.commits,
        source_bytes=run.source_bytes,
        seconds=round(time.monotonic() - began, 3),
        notes=tuple(run.notes()),
    )


class _Run:
    """One run, and what it has appended so far: see `ExportReport`."""

    def __init__(self, source: str, target: str, settings: ExportSettings, table: LakeTable) -> None:
        options = stream_options(settings.options, {"startingOffsets": settings.options.starting_offsets})
        log = StoreView(source, options)  # before a table is created
        if table.place is not None and is_local(table.place):
            check_apart(log, (source,), Path(os.path.realpath(local_target(table.place))))
        self._target, self._table = target, table
        self._names = tuple(dict.fromkeys((*settings.names, *PARTITION_COLUMNS)))
        self._columns = tuple(dict.fromkeys((*self._names, _PROBLEM)))
        self._commit_bytes = settings.commit_bytes
        self.tail = StoreTail(source, options, self._columns)
        self.tail.remedy = "restore the log, export to a new table"
        self._schema = arrow_schema(self._names)
        table.load(self._schema)
        self._position = table.position()
        self._first, self._filters = first_offset(log), filters_checksum(options)
        if self._position is not None:
            check_same_log(log, self._position, target)
            if self._filters != self._position.filters:
                raise StoreError(
                    f"{target}: the table was written with other filters (topic, queueId, tags, mode=DROPMALFORMED): "
                    "use the same, or export to a new table"
                )
        self.rows = self.problems = self.commits = self.source_bytes = 0

    def append_all(self, progress: Progress | None) -> None:
        """Append what is committed at this moment."""
        until = self.tail.available()
        begin = pos = self._offset.pos or 0
        while (end := self.tail.latest(self._offset, Limits(size=self._commit_bytes, until=until))) != self._offset:
            parts: Sequence[Partition] = self.tail.plan(self._offset, end)
            batches = [batch for part in parts for batch in read_once(part) if batch.num_rows]
            self._commit([batch.select(self._names) for batch in batches], end)
            self.rows += sum(batch.num_rows for batch in batches)
            self.problems += sum(batch.num_rows - batch[_PROBLEM].null_count for batch in batches)
            self.source_bytes += sum(part.size for part in parts)
            pos = max(pos, end.pos or 0)
            if progress is not None:
                progress(pos - begin, max((until.pos or 0), pos) - begin)

    def notes(self) -> Iterator[str]:
        """Where the next run begins, and what this one skipped."""
        if not self._offset.is_entry:
            yield "no committed entry is known: the table has none"
        else:
            yield f"the table has the log up to {self._offset}"
        if expired := self.tail.progress().expired:
            yield f"skipped: {expired} expired entries (failOnDataLoss=false)"

    @property
    def _offset(self) -> TailOffset:
        return self._position.last if self._position is not None else NOTHING

    def _commit(self, rows: list[pa.RecordBatch], end: TailOffset) -> None:
        """Append rows, again if a writer other than an export has changed the table meanwhile."""
        position = LakePosition(end, self._first, self._filters)
        for _ in range(_MAX_TRIES):
            try:
                self._table.append(rows, self._schema, position)
            except ConflictError:
                self._table.load(self._schema)
                if (found := self._table.position()) != self._position:
                    raise StoreInUseError(
                        f"{self._target}: another export has appended up to {found and found.last}, this one expected "
                        f"{self._offset}: this one appended none of these rows: run one export at a time"
                    ) from None
            else:
                self._position = position
                self.commits += 1
                return
        raise StoreError(f"{self._target}: the table was changed during each of {_MAX_TRIES} commits: try again later")
