"""The table ``diff`` in parts: first the CommitLogs of the replicas, then their DLedger logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_dledger.log.diff.commit_log.lost_ends import commit_log_replicas
from pyspark_dledger.log.diff.commit_log.ranges import compare_positions
from pyspark_dledger.log.diff.commit_log.replica import CommitLogReplica
from pyspark_dledger.log.diff.commit_log.rows import PosRow, pos_rows
from pyspark_dledger.log.diff.diff_table import DiffPart, DiffRow, plan_diff, read_diff
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView


@dataclass(frozen=True)
class CommitLogPart:
    """The CommitLogs of all replicas, compared in one task: verdicts need all ranges."""

    replicas: tuple[CommitLogReplica, ...]


ReplicaPart = DiffPart | CommitLogPart


def plan_replicas(store: StoreView, options: ReadOptions) -> list[ReplicaPart]:
    """The parts of a comparison, as `plan_diff`. Raises OptionError without replicas."""
    parts: list[ReplicaPart] = [*plan_diff(store, options)]
    replicas = commit_log_replicas([store, *store.replicas])
    return [CommitLogPart(tuple(replicas)), *parts] if replicas else parts


def read_part(part: ReplicaPart) -> Iterator[DiffRow | PosRow]:
    """The rows of a part."""
    if isinstance(part, CommitLogPart):
        yield from pos_rows(part.replicas, compare_positions(part.replicas))
    else:
        yield from read_diff(part)
