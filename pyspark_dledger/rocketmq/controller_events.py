"""The events of a controller's log, what they make of its broker groups, and their table ``controllerEvents``.

An event is two bytes of type and a JSON object. Sources: RocketMQ 5.3.3 ``EventSerializer``, ``ReplicasInfoManager``,
``SyncStateInfo``. RocketMQ 5.0 to 5.1.0 write addresses in place of broker ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import TableColumn, row_of, whole_table

EMPTY = "empty"
"""The first entry of a new leader, or of a read (``isProcessReadEvent``)."""
ALTER_SYNC_STATE_SET, APPLY_BROKER_ID, ELECT_MASTER = "AlterSyncStateSet", "ApplyBrokerId", "ElectMaster"
CLEAN_BROKER_DATA, UPDATE_BROKER_ADDRESS = "CleanBrokerData", "UpdateBrokerAddress"
_EVENTS = {
    1: ALTER_SYNC_STATE_SET,
    2: APPLY_BROKER_ID,
    3: ELECT_MASTER,
    5: CLEAN_BROKER_DATA,
    6: UPDATE_BROKER_ADDRESS,
}
_TYPE_BYTES = 2
# The field with the ids of an event's brokers.
_IDS = {
    ALTER_SYNC_STATE_SET: "newSyncStateSet",
    APPLY_BROKER_ID: "newBrokerId",
    ELECT_MASTER: "newMasterBrokerId",
    CLEAN_BROKER_DATA: "brokerIdSetToClean",
    UPDATE_BROKER_ADDRESS: "brokerId",
}


@dataclass(frozen=True)
class ControllerEvent:
    """One event, None if it is not known; ``broker_ids`` are those that it names, in order, none for `EMPTY`."""

    event: str | None
    broker_name: str | None = None
    cluster_name: str | None = None
    broker_ids: tuple[int, ...] = ()
    broker_address: str | None = None


def parse_event(body: bytes) -> ControllerEvent:
    """The event of an entry's body. Raises ValueError."""
    if not body:
        return ControllerEvent(EMPTY)
    number = int.from_bytes(body[:_TYPE_BYTES], "big", signed=True)
    event = _EVENTS.get(number)
    if event is None or len(body) <= _TYPE_BYTES:
        raise ValueError(f"expected an event of a controller, found type {number} in {len(body)} bytes")
    fields = parse_fastjson(body[_TYPE_BYTES:])
    name = _text(fields, "brokerName")
    if name is None:
        raise ValueError("expected a brokerName, found none")
    ids = _ids(fields, _IDS[event])
    needs_ids = event != CLEAN_BROKER_DATA and (event != ELECT_MASTER or fields.get("newMasterElected") is not False)
    if needs_ids and not ids:
        raise ValueError(f"expected {_IDS[event]}, found none, as before RocketMQ 5.1.1")
    return ControllerEvent(event, name, _text(fields, "clusterName"), ids, _text(fields, "brokerAddress"))


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"expected a text as {name}, found {type(value).__name__}")
    return value


def _ids(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The broker ids of a field, which is one or a list."""
    found = fields.get(name)
    values = found if isinstance(found, list) else [found] if found is not None else []
    for value in values:
        if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
            raise ValueError(f"expected broker ids as {name}, found {str(value)[:40]!r}")
    return tuple(sorted(values))


@dataclass
class BrokerGroup:
    """What a controller knows of the brokers of one name; an epoch is None after events that are not known."""

    cluster_name: str | None
    master_epoch: int | None
    sync_state_set_epoch: int | None
    addresses: dict[int, str | None] = field(default_factory=dict)
    master_broker_id: int | None = None
    sync_state_set: tuple[int, ...] | None = ()

    @property
    def master_address(self) -> str | None:
        return self.addresses.get(self.master_broker_id) if self.master_broker_id is not None else None


class ControllerState:
    """The broker groups by name, after the events so far. `is_whole`: no event is missing before the first one."""

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        self._groups: dict[str, BrokerGroup] = {}
        self._apply: dict[str, Callable[[ControllerEvent], None]] = {
            ALTER_SYNC_STATE_SET: self._alter,
            APPLY_BROKER_ID: self._add,
            ELECT_MASTER: self._elect,
            CLEAN_BROKER_DATA: self._clean,
            UPDATE_BROKER_ADDRESS: self._move,
        }

    def forget(self) -> None:
        """An event is not known: nothing is, until the next events tell."""
        self._is_whole = False
        self._groups.clear()

    def apply(self, event: ControllerEvent) -> BrokerGroup | None:
        """The group of the event after it; None where the controller has none, which ignores the event."""
        if event.broker_name is None:
            return None
        if event.event in self._apply:
            self._apply[event.event](event)
        return self._groups.get(event.broker_name)

    def _group(self, event: ControllerEvent) -> BrokerGroup | None:
        """The group; one of which nothing is known if the event that made it can be missing."""
        assert event.broker_name is not None
        if event.broker_name not in self._groups and not self._is_whole:
            self._groups[event.broker_name] = BrokerGroup(event.cluster_name, None, None, sync_state_set=None)
        return self._groups.get(event.broker_name)

    def _add(self, event: ControllerEvent) -> None:
        assert event.broker_name is not None
        group = self._group(event) or self._groups.setdefault(event.broker_name, BrokerGroup(event.cluster_name, 0, 0))
        group.addresses.setdefault(event.broker_ids[0], event.broker_address)

    def _alter(self, event: ControllerEvent) -> None:
        if group := self._group(event):
            _set_sync_state(group, event.broker_ids)

    def _elect(self, event: ControllerEvent) -> None:
        if group := self._group(event):
            group.master_epoch = _next(group.master_epoch)
            group.master_broker_id = event.broker_ids[0] if event.broker_ids else None
            if event.broker_ids:
                _set_sync_state(group, event.broker_ids)

    def _clean(self, event: ControllerEvent) -> None:
        assert event.broker_name is not None
        group = self._group(event)
        if group is not None and event.broker_ids:
            for number in event.broker_ids:
                group.addresses.pop(number, None)
            if group.sync_state_set is not None:
                group.sync_state_set = tuple(each for each in group.sync_state_set if each not in event.broker_ids)
        # Java forgets the group where either table becomes empty, as it needs both.
        if group is None or not event.broker_ids or not group.addresses or group.sync_state_set == ():
            self._groups.pop(event.broker_name, None)

    def _move(self, event: ControllerEvent) -> None:
        group = self._group(event)
        if group is not None and (event.broker_ids[0] in group.addresses or not self._is_whole):
            group.addresses[event.broker_ids[0]] = event.broker_address


def _set_sync_state(group: BrokerGroup, ids: tuple[int, ...]) -> None:
    group.sync_state_set = ids
    group.sync_state_set_epoch = _next(group.sync_state_set_epoch)


def _next(epoch: int | None) -> int | None:
    return epoch + 1 if epoch is not None else None


# The table

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
