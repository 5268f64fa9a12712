"""The table of a controller's events: as RocketMQ's own reader and state machine say, and for damaged logs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.controller_events import ControllerEvent, parse_event
from pyspark_dledger.rocketmq.tables import read_table
from tests.support.damage import write_at
from tests.support.generate import mq_message, raw, write_dledger
from tests.support.golden import GOLDENS

CASE = "controller-53"
_OF_GROUP = ("masterBrokerId", "masterEpoch", "syncStateSet", "syncStateSetEpoch")


def events_of(path: Path) -> list[dict[str, Any]]:
    return [row for batch in read_table(open_log(path), "controllerEvents") for row in batch.to_pylist()]


def event(number: int, **fields: Any) -> bytes:
    """An event as a controller writes it."""
    return number.to_bytes(2, "big") + json.dumps({"brokerName": "b", **fields}).encode()


def _logged(folder: Path, *bodies: bytes) -> list[dict[str, Any]]:
    write_dledger(folder, [raw(body) for body in bodies])
    return events_of(folder)


def test_events_and_states_are_those_of_java(case_folder: Callable[[str], Path]) -> None:
    with gzip.open(GOLDENS / f"{CASE}.java.jsonl.gz", "rt", encoding="utf-8") as lines:
        java = [json.loads(line) for line in lines]
    rows = events_of(case_folder(CASE) / "dledger-n0")
    assert [row["problem"] for row in rows] == [None] * len(java)
    for row, said in zip(rows, java, strict=True):
        name = row["event"] + "Event" if row["event"] != "empty" else None
        assert (row["index"], row["term"], name) == (said["index"], said["term"], said["event"])
        assert {each: row[each] for each in _OF_GROUP} == {each: said[each] for each in _OF_GROUP}
        for field in ("brokerName", "brokerAddress", "clusterName"):
            assert row[field] is None or f"{field}='{row[field]}'" in said["text"]
        ids = ", ".join(map(str, row["brokerIds"]))
        assert not ids or f"Id={ids}" in said["text"] or f"=[{ids}]" in said["text"]


def test_the_address_of_a_master_is_the_one_it_registered_last(case_folder: Callable[[str], Path]) -> None:
    masters = [row["masterAddress"] for row in events_of(case_folder(CASE)) if row["event"] == "ElectMaster"]
    assert masters == ["10.0.0.1:10911", "10.0.1.1:10911", "10.0.0.2:10911", None, "10.0.0.2:10911"]


def test_after_a_damaged_event_epochs_are_unknown_and_masters_known_again(tmp_path: Path) -> None:
    elected = event(3, newMasterElected=True, newMasterBrokerId=7)
    write_dledger(tmp_path, [raw(event(2, newBrokerId=7, brokerAddress="a:1")), raw(elected), raw(elected)])
    log = open_log(tmp_path)
    write_at(Path(log.segments[0].path), log.position_of(0), b"\xff" * 8)
    damaged, first, second = events_of(tmp_path)
    assert damaged["problem"] is not None and damaged["event"] is None
    for row in (first, second):
        assert (row["masterBrokerId"], row["syncStateSet"], row["masterAddress"]) == (7, [7], None)
        assert (row["masterEpoch"], row["syncStateSetEpoch"]) == (None, None)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"\x00", "type 0 in 1 bytes"),
        (b"\x00\x03", "type 3 in 2 bytes"),
        (b"\x00\x04{}", "type 4 in 4 bytes"),
        (event(3, newMasterElected=True, newMasterAddress="10.0.0.1:1"), "before RocketMQ 5.1.1"),
        (event(1, newSyncStateSet=["10.0.0.1:1"]), "expected broker ids as newSyncStateSet"),
        (event(2, newBrokerId=2**63), "expected broker ids as newBrokerId"),
        (event(2, newBrokerId=True), "expected broker ids as newBrokerId"),
        (b"\x00\x02[]", "expected an object"),
        (event(2, brokerName=5, newBrokerId=1), "expected a text as brokerName"),
    ],
)
def test_what_is_no_event_has_a_problem(tmp_path: Path, body: bytes, found: str) -> None:
    row = _logged(tmp_path, body)[0]
    assert found in row["problem"]
    assert row["event"] is None


def test_an_election_of_a_group_that_did_not_register_is_ignored_as_java_does(tmp_path: Path) -> None:
    row = _logged(tmp_path, event(3, newMasterElected=True, newMasterBrokerId=1))[0]
    assert (row["event"], row["brokerIds"], row["masterBrokerId"]) == ("ElectMaster", [1], None)


def test_messages_of_a_broker_are_no_events(tmp_path: Path) -> None:
    write_dledger(tmp_path, [mq_message(), mq_message()])
    assert events_of(tmp_path) == []


@given(st.binary(max_size=60) | st.builds(lambda n, b: n.to_bytes(2, "big") + b, st.integers(0, 7), st.binary()))
def test_any_bytes_are_an_event_or_a_value_error(body: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(parse_event(body), ControllerEvent)
