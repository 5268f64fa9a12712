"""The table ``diff``: first the CommitLogs of the replicas, then their DLedger logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_dledger.log.diff.commit_log.group import commit_log_group
from pyspark_dledger.log.diff.commit_log.rows import PosRow, pos_rows
from pyspark_dledger.log.diff.diff_table import DiffRow, ledger_rows
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView


@dataclass(frozen=True)
class ReplicasPart:
    """The whole table: a verdict depends on all logs."""

    path: str
    options: ReadOptions


def plan_replicas(store: StoreView, options: ReadOptions) -> list[ReplicasPart]:
    """One part, which reads the store and its replicas."""
    return [ReplicasPart(store.path, options)]


def read_part(part: ReplicasPart) -> Iterator[DiffRow | PosRow]:
    """The rows of a comparison. Raises OptionError without replicas."""
    store = StoreView(part.path, part.options)
    found = compared(store)
    old = commit_log_group(found)
    if old is not None:
        yield from pos_rows(old)
    yield from ledger_rows(ReplicaGroup(found, part.options.group_size))
