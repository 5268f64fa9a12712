"""The ``controllerEvents`` table: the log of a controller, with what each event makes of its broker group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import TableColumn, row_of, whole_table
from pyspark_dledger.rocketmq.controller_events import ControllerEvent, ControllerState, parse_event

_ENTRY = (
    TableColumn("index", pa.int64(), "of the entry, or null"),
    TableColumn("term", pa.int64(), "of its entry"),
    TableColumn("pos", pa.int64(), "position in the log"),
    TableColumn("committed", pa.bool_(), "proven committed; null if no bound is known"),
)
_EVENT = (
    TableColumn(
        "event",
        pa.string(),
        "`ElectMaster`, `AlterSyncStateSet`, `ApplyBrokerId`, `UpdateBrokerAddress`, `CleanBrokerData`; `empty`: the "
        "first of a controller that leads, or a read",
    ),
    TableColumn("clusterName", pa.string(), "name of the cluster, where the event has it"),
    TableColumn("brokerName", pa.string(), "name of the broker group"),
    TableColumn("brokerIds", pa.list_(pa.int64()), "brokers in the event; of ElectMaster none if no broker could lead"),
    TableColumn("brokerAddress", pa.string(), "address in the event"),
)
_GROUP = (
    TableColumn("masterBrokerId", pa.int64(), "master after the event, as far as the log tells"),
    TableColumn("masterAddress", pa.string(), "its address"),
    TableColumn("masterEpoch", pa.int32(), "as in a broker's epochs; null if the log's begin is gone"),
    TableColumn("syncStateSet", pa.list_(pa.int64()), "brokers that a later master may be elected from"),
    TableColumn("syncStateSetEpoch", pa.int32(), "number of changes of that set"),
)
_READ = ("kind", "index", "term", "pos", "committed", "problem", "body")


def _rows(log: StoreView) -> Iterator[dict[str, Any]]:
    """The events in the order of the log; messages, which are of a broker's log, are left out. Raises StoreError."""
    state, expected = ControllerState(is_whole=log.begin_index == 0), None
    for partition in plan_read(log, _READ, log.options, Filters()):
        for batch in read_partition(partition):
            for row in batch.to_pylist():
                if row["index"] is None or expected not in (None, row["index"]):
                    state.forget()
                expected = row["index"] + 1 if row["index"] is not None else None
                if row["kind"] != "message":
                    yield _row(row, state)


def _row(row: dict[str, Any], state: ControllerState) -> dict[str, Any]:
    event, problem = ControllerEvent(None), row["problem"]
    if problem is None:
        try:
            event = parse_event(row["body"] or b"")
        except ValueError as error:
            problem = str(error)
    if problem is not None:
        state.forget()
    group = state.apply(event)
    found = row_of(_EVENT, event) | (row_of(_GROUP, group) if group is not None else {})
    return {**{each.name: row[each.name] for each in _ENTRY}, **found, "problem": problem}


TABLE = whole_table(
    "controllerEvents",
    "one row per entry of a controller's own log (DLedger, from 5.1.1), which has no times",
    (*_ENTRY, *_EVENT, *_GROUP, TableColumn("problem", pa.string(), "what was expected and found; null if sound")),
    _rows,
)
