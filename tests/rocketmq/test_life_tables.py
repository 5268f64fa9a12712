"""The tables transactions, timers and pop: as RocketMQ's broker and clients say, and for damaged files."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format import layout
from pyspark_dledger.format.message import message_in
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.timer_files import TimerWheel, timer_units
from pyspark_dledger.rocketmq.lives.pops import parse_revive
from pyspark_dledger.rocketmq.lives.transactions import ended_offsets
from pyspark_dledger.rocketmq.tables import read_table
from tests.support.damage import write_at
from tests.support.generate import mq_message, write_commitlog, write_consume_queue
from tests.support.golden import GOLDENS, fingerprint

CASE = "mq-53-lives"
META = json.loads((GOLDENS / f"{CASE}.meta.json").read_text())["javaSaid"]
KEYS = {said["uniqKey"]: key for key, said in META["messages"].items()}
HALF, OP, REVIVE = layout.HALF_TOPIC, layout.OP_TOPIC, "rmq_sys_REVIVE_LOG_c"
DAY = 24 * 3600 * 1000

Row = dict[str, Any]


@pytest.fixture
def lives(case_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the golden's store."""
    return Path(shutil.copytree(case_folder(CASE), tmp_path / CASE))


def rows_of(path: Path, table: str, **options: Any) -> list[Row]:
    return [row for batch in read_table(open_log(path, **options), table) for row in batch.to_pylist()]


def codes_of(path: Path) -> set[str]:
    return {finding.code for finding in open_log(path).findings() if finding.severity != "info"}


def milliseconds(row: Row, column: str) -> int:
    return round(row[column].timestamp() * 1000)


@pytest.mark.parametrize("table", ["transactions", "timers", "pop"])
def test_reading_changes_nothing_and_the_engines_agree(table: str, case_folder: Callable[[str], Path]) -> None:
    folder = case_folder(CASE)
    before = fingerprint(folder)
    assert rows_of(folder, table, engine="python") == rows_of(folder, table)
    assert fingerprint(folder) == before


# Transactions


def test_transactions_end_as_their_producer_decided(case_folder: Callable[[str], Path]) -> None:
    rows = {KEYS[row["uniqKey"]]: row for row in rows_of(case_folder(CASE), "transactions")}
    assert {key: (row["state"], row["checks"] > 0) for key, row in rows.items()} == {
        "committed-1": ("committed", False),
        "rolled-1": ("rolledBack", False),
        "checked-1": ("committed", True),
        "discarded-1": ("checkedTooOften", True),
        "pending-1": ("prepared", True),
    }
    assert {(row["producerGroup"], row["topic"], row["queueId"]) for row in rows.values()} == {("sellers", "Orders", 0)}
    assert rows["pending-1"]["endTimestamp"] is None and rows["pending-1"]["ageMs"] > 0


def half(number: int, stored: int, *, key: str | None = None, checks: int = 0) -> Any:
    properties = [("UNIQ_KEY", key or f"K{number}"), ("REAL_TOPIC", "T"), ("REAL_QID", "0"), ("PGROUP", "g")]
    properties += [("TRANSACTION_CHECK_TIMES", str(checks))] if checks else []
    times = {"store_timestamp": stored, "born_timestamp": stored}
    return mq_message(HALF, b"half", properties=properties, queue_offset=number, **times)


def op(body: bytes, stored: int, number: int = 0) -> Any:
    return mq_message(OP, body, properties=[("TAGS", "d")], queue_offset=number, store_timestamp=stored)


@pytest.mark.parametrize("body", [b"0", b"0,", b"7,0,1,"])
def test_an_op_message_ends_the_half_messages_that_it_names(tmp_path: Path, body: bytes) -> None:
    write_commitlog(tmp_path, [half(0, 1000), op(body, 3000)])
    (row,) = rows_of(tmp_path, "transactions")
    assert (row["state"], row["ageMs"]) == ("rolledBack", 2000)


def test_a_check_after_the_end_is_no_new_transaction(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [half(0, 1000), op(b"0", 2000), half(1, 3000, key="K0", checks=1)])
    assert [row["state"] for row in rows_of(tmp_path, "transactions")] == ["rolledBack"]


def rocks_half(number: int, stored: int) -> Any:
    properties = [("UNIQ_KEY", f"K{number}"), ("REAL_TOPIC", "T"), ("REAL_QID", "0"), ("PGROUP", "g")]
    return mq_message(layout.ROCKS_HALF_TOPIC, b"half", properties=properties, store_timestamp=stored)


def rocks_op(half_offset: str, stored: int) -> Any:
    properties = [("TAGS", "d"), ("TRANS_OFFSET", half_offset)]
    return mq_message(layout.ROCKS_OP_TOPIC, b"d", properties=properties, store_timestamp=stored)


@pytest.mark.parametrize("offset", ["0", "00"])
def test_of_transactions_in_a_rocksdb_an_op_message_names_a_position(tmp_path: Path, offset: str) -> None:
    write_commitlog(tmp_path, [rocks_half(0, 1000), rocks_half(1, 2000), rocks_op(offset, 3000)])
    rows = {row["uniqKey"]: (row["state"], row["checks"]) for row in rows_of(tmp_path, "transactions")}
    assert rows == {"K0": ("rolledBack", None), "K1": ("prepared", None)}


@pytest.mark.parametrize("offset", ["7", "-1", "x", "99999999999999999999", ""])
def test_an_op_message_with_another_position_ends_nothing(tmp_path: Path, offset: str) -> None:
    write_commitlog(tmp_path, [rocks_half(0, 1000), rocks_op(offset, 3000)])
    assert [row["state"] for row in rows_of(tmp_path, "transactions")] == ["prepared"]


def test_a_half_message_is_known_by_its_copy_when_it_expired(tmp_path: Path) -> None:
    message = mq_message("T", store_timestamp=5000)
    copy = mq_message(
        HALF, properties=[("UNIQ_KEY", "K"), ("TRANSACTION_CHECK_TIMES", "2")], store_timestamp=6000, born_timestamp=10
    )
    write_commitlog(tmp_path, [message, copy])
    (row,) = rows_of(tmp_path, "transactions")
    assert (row["state"], row["checks"]) == ("prepared", 2)


@given(st.binary(max_size=80))
def test_any_body_of_an_op_message_gives_numbers(body: bytes) -> None:
    assert all(number >= 0 for number in ended_offsets("d", body))
    assert ended_offsets("x", body) == []


@pytest.mark.parametrize(("age", "found"), [(DAY + 1, {"transactionsUnchecked"}), (DAY, set())])
def test_half_messages_that_no_check_reaches_for_a_day_are_a_finding(tmp_path: Path, age: int, found: set[str]) -> None:
    write_consume_queue(tmp_path, write_commitlog(tmp_path, [half(0, 1000), half(1, 1000 + age)]).rows)
    (tmp_path / "config").mkdir()
    offsets = {"offsetTable": {f"{HALF}@CID_RMQ_SYS_TRANS": {"0": 0}}}
    (tmp_path / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    assert codes_of(tmp_path) & {"transactionsUnchecked"} == found


# Timers


def test_timers_are_those_that_the_broker_waits_for(case_folder: Callable[[str], Path]) -> None:
    rows = rows_of(case_folder(CASE), "timers")
    found = {(row["position"], milliseconds(row, "dueTimestamp"), row["commitLogOffset"], row["size"]) for row in rows}
    assert found == {
        (said["position"], said["deliverTime"], said["commitLogOffset"], said["size"]) for said in META["timers"]
    }
    assert {row["problem"] for row in rows} == {None}
    kinds = {KEYS[row["uniqKey"]]: row["kind"] for row in rows if row["topic"] == "Delays"}
    assert kinds == {"timed-2": "message", "timed-3": "message", "deletes-1": "delete"}


def test_timers_of_messages_that_the_log_lost_are_a_finding(lives: Path) -> None:
    file = lives / "commitlog" / f"{0:020}"
    write_at(file, 5324, bytes(file.stat().st_size - 5324))
    problems = [row["problem"] for row in rows_of(lives, "timers")]
    assert [problem is not None and "log's end at 5324" in problem for problem in problems] == [False] + [True] * 7
    assert {"timerBeyondEnd"} <= codes_of(lives)
    found = [finding for finding in open_log(lives).findings() if finding.code == "timerBeyondEnd"]
    assert [(finding.offset, finding.pos) for finding in found][:1] == [(104, 5324)]


def test_a_timer_checkpoint_after_the_end_of_its_queue_is_a_finding(lives: Path) -> None:
    assert codes_of(lives) == set()
    write_at(lives / "config" / "timercheck", 16, struct.pack(">q", 11))
    assert codes_of(lives) == {"timerQueueBeyondEnd"}


def test_a_unit_that_no_slot_leads_to_has_a_problem(lives: Path) -> None:
    # The log goes on for more than a file: a start does not correct the wheel by the first one.
    write_at(lives / "config" / "timercheck", 8, struct.pack(">q", 1 << 20))
    wheel = TimerWheel.opened(lives)
    assert wheel is not None and wheel.slots == 2 * 7 * 24 * 3600
    (lives / "timerwheel").write_bytes(b"")
    assert {row["problem"] for row in rows_of(lives, "timers")} == {
        "expected a slot of the timer wheel that leads to it, found none"
    }


def test_units_end_at_the_first_bytes_that_are_none(lives: Path) -> None:
    assert sum(len(block.units) for block in timer_units(lives)) == 10
    write_at(lives / "timerlog" / f"{0:020}", 2 * layout.TIMER_UNIT_SIZE, b"\xff")
    assert sum(len(block.units) for block in timer_units(lives)) == 2


@given(st.binary(max_size=300))
def test_any_timer_files_are_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("timers")
    (root / "timerlog").mkdir()
    (root / "timerlog" / f"{0:020}").write_bytes(data)
    (root / "timerwheel").write_bytes(data)
    wheel = TimerWheel.opened(root)
    assert wheel is not None
    for block in timer_units(root):
        assert len(wheel.has(block.positions, block.times)) == len(block.units)


# Pops


def test_with_light_queues_offsets_are_in_another_file(case_folder: Callable[[str], Path]) -> None:
    rows = rows_of(case_folder(CASE), "consumers", topic="Orders")
    assert [(row["consumerGroup"], row["consumerOffset"], row["lag"]) for row in rows] == [("buyers", 5, 1)]


def test_pops_are_those_of_the_consumer(case_folder: Callable[[str], Path]) -> None:
    rows = rows_of(case_folder(CASE), "pop")
    assert {(row["queueOffset"], row["state"], row["ackOffset"] is not None) for row in rows} == {
        (0, "acknowledged", True),
        (1, "inFlight", False),
        (2, "revived", False),
        (3, "inFlight", False),
        (4, "acknowledged", True),
    }
    assert {(row["topic"], row["queueId"], row["consumerGroup"]) for row in rows} == {("Pops", 0, "poppers")}
    assert milliseconds(rows[0], "visibleTimestamp") - milliseconds(rows[0], "popTimestamp") == 60_000


def revive(tags: str, fields: Row, stored: int = 1000) -> Any:
    known = {"t": "T", "c": "g", "q": 1, "so": 10, "pt": 500}
    return mq_message(
        REVIVE, json.dumps({**known, **fields}).encode(), properties=[("TAGS", tags)], store_timestamp=stored
    )


def test_one_acknowledgement_of_several_messages_is_joined(tmp_path: Path) -> None:
    checkpoint = revive("ck", {"it": 100, "bm": 1, "n": 3, "d": [0, 2, 5]})
    write_commitlog(tmp_path, [checkpoint, revive("bAck", {"aol": [15, 99]})])
    rows = rows_of(tmp_path, "pop")
    assert [(row["queueOffset"], row["state"]) for row in rows] == [
        (10, "acknowledged"),
        (12, "due"),
        (15, "acknowledged"),
    ]


@pytest.mark.parametrize(
    ("tags", "body"),
    [("ck", b"{"), ("ck", b"[]"), ("ack", b'{"t":"T"}'), ("other", b"{}"), ("ck", b"[" * 5000), ("ck", b"9" * 70_000)],
)
def test_a_message_that_is_no_checkpoint_has_a_problem(tmp_path: Path, tags: str, body: bytes) -> None:
    write_commitlog(tmp_path, [mq_message(REVIVE, body, properties=[("TAGS", tags)])], file_size=1 << 17)
    (row,) = rows_of(tmp_path, "pop")
    assert row["problem"].startswith("expected") and row["checkpointOffset"] == 0


NUMBERS = st.integers(-5, 2**70)
NAMES = st.sampled_from(["t", "c", "q", "so", "pt", "it", "bm", "n", "d", "ao", "aol"])


@given(st.dictionaries(NAMES, st.one_of(NUMBERS, st.text(max_size=3), st.lists(NUMBERS, max_size=40), st.none())))
def test_any_fields_are_a_checkpoint_or_a_value_error(fields: Row) -> None:
    message = message_in(mq_message(REVIVE, json.dumps(fields).encode(), properties=[("TAGS", "ck")]).make(0))
    assert message is not None
    with suppress(ValueError):
        assert parse_revive(0, message)
