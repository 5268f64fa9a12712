"""Popped messages and timers that a broker keeps in a RocksDB: our tables have what Java's own scans find."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.format.layout import TIMER_TOPIC
from pyspark_dledger.rocketmq.tables import read_table
from tests.interop.java_group import JavaProcess
from tests.interop.make_lives_golden import SETTINGS, run_lives
from tests.rocketmq.test_rocksdb import files_of
from tests.support.generate import mq_message, write_commitlog, write_consume_queue
from tests.support.long_runs import first, takes_long

NOW = 1_700_000_000_000
PROPERTIES = [("REAL_TOPIC", "Orders"), ("REAL_QID", "1"), ("UNIQ_KEY", "K")]


def rows_of(root: Path, table: str) -> list[dict[str, Any]]:
    return [row for batch in read_table(dl.open_log(root), table) for row in batch.to_pylist()]


def milliseconds(row: dict[str, Any], column: str) -> int:
    return round(row[column].timestamp() * 1000)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "has_timers"), first([("5.3.3", False), ("5.5.0", True), ("5.4.0", True)], 2))
def test_tables_have_what_java_reads(version: str, has_timers: bool, tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    root = tmp_path / "root"
    payloads = [
        mq_message(TIMER_TOPIC, queue_offset=n, store_timestamp=NOW + n, properties=PROPERTIES) for n in range(4)
    ]
    log = write_commitlog(root, payloads)
    write_consume_queue(root, log.rows)
    with closing(JavaProcess("WriteRecords", version, str(root), compiled_with="5.3.3")) as java:

        def ask(command: str) -> dict[str, Any]:
            answer = java.ask(command, 60)
            assert "error" not in answer, (command, answer)
            return answer

        for number in range(5):
            ask(f"pop Orders group {number % 2} {number} {NOW - 10_000} {9_000 + 600 * number} {number % 3}")
        ask(f"ack Orders group 1 1 {NOW - 10_000} 9600 1")
        for number, row in enumerate(log.rows if has_timers else ()):
            ask(f"timer {NOW + 1000 * number} K{number} {row['commitLogOffset']} {row['storeSize']}")
        found = ask("read")
        if has_timers:
            ask(f"delivered {NOW + 1000}")
        ask("close")
    before = list(files_of(root))
    pops = rows_of(root, "pop")
    assert [
        [row["consumerGroup"], row["queueId"], row["queueOffset"], milliseconds(row, "popTimestamp")] for row in pops
    ] == [[group, *rest[:3]] for _, group, *rest in found["pops"]]
    assert [milliseconds(row, "visibleTimestamp") for row in pops] == [visible for *_, visible in found["pops"]]
    topics = ["Orders", "%RETRY%group+Orders", "Orders", "%RETRY%group_Orders"]
    assert [row["topic"] for row in pops] == topics
    assert [row["state"] for row in pops] == ["due", "inFlight", "inFlight", "inFlight"]
    timers = rows_of(root, "timers")
    read = [[milliseconds(row, "dueTimestamp"), row["commitLogOffset"], row["size"]] for row in timers]
    assert read == [[due, *place] for due, _, *place in found["timers"] if due >= NOW + 1000]
    assert len(timers) == 3 * has_timers
    assert {(row["file"], row["topic"], row["problem"]) for row in timers} <= {("rocksdbstore", "Orders", None)}
    for verb in ("check", "verify", "recovery"):
        main([verb, str(root)])
    assert list(files_of(root)) == before


@takes_long
def test_transactions_of_a_broker_that_keeps_them_in_a_rocksdb(tmp_path: Path) -> None:
    root = tmp_path / "root"
    settings = {"transRocksDBEnable": "true", "transWriteOriginTransHalfEnable": "false"}
    said = run_lives(root, "5.5.0", SETTINGS | settings, 22_000)
    keys = {message["uniqKey"]: key for key, message in said["messages"].items()}
    rows = {keys[row["uniqKey"]]: row for row in rows_of(root, "transactions")}
    assert {key: (row["state"], row["checks"]) for key, row in rows.items()} == {
        "committed-1": ("committed", None),
        "rolled-1": ("rolledBack", None),
        "checked-1": ("committed", None),
        "discarded-1": ("prepared", None),
        "pending-1": ("prepared", None),
    }
    assert [event.event for event in dl.trace(root, "rolled-1").events] == ["prepared", "ended"]
