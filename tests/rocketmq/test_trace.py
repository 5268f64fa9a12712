"""The trace of messages: as clients and broker dealt with them, in Python, on the command line and as a table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.io.key_files import index_files
from pyspark_dledger.log.plan import plan_between
from pyspark_dledger.log.tables.table import row_of
from pyspark_dledger.rocketmq.lives import trace as trace_module
from pyspark_dledger.rocketmq.tables import read_table
from pyspark_dledger.rocketmq.tables.life_tables import TRACE_COLUMNS
from tests.support.damage import write_at
from tests.support.generate import mq_message, write_commitlog, write_consume_queue
from tests.support.golden import GOLDENS, fingerprint

CASE = "mq-53-lives"
MESSAGES = json.loads((GOLDENS / f"{CASE}.meta.json").read_text())["javaSaid"]["messages"]
LIVES = {
    "plain-1": "stored passed",
    "unread-1": "stored",
    "committed-1": "prepared committed ended passed",
    "rolled-1": "prepared ended",
    "checked-1": "prepared checked checked committed ended passed",
    "discarded-1": "prepared checked checked checked checked checked checked checked checked checkedTooOften",
    "pending-1": "prepared checked checked checked checked checked",
    "delayed-1": "delayed delivered",
    "delayed-2": "delayed",
    "timed-1": "timed delivered",
    "timed-2": "timed",
    "retried-1": "stored delayed retried passed passed",
    "dead-1": "stored delayed retried dead passed passed",
    "light-1": "stored passed",
    "popped-1": "stored popped acknowledged passed",
    "popped-2": "stored popped passed",
    "popped-3": "stored popped retried passed",
    "popped-4": "stored popped passed",
    "popped-5": "stored popped acknowledged passed",
}


@pytest.fixture
def lives(case_folder: Callable[[str], Path]) -> Path:
    return case_folder(CASE)


def steps(path: Path, *names: str, scan: bool = False) -> str:
    return " ".join(event.event for event in dl.trace(path, names, scan=scan).events)


@pytest.mark.parametrize("key", LIVES)
def test_a_message_has_the_life_that_its_clients_gave_it(lives: Path, key: str) -> None:
    assert steps(lives, key) == LIVES[key]
    found = dl.trace(lives, key)
    assert {event.uniq_key for event in found.events} == {MESSAGES[key]["uniqKey"]}
    assert [event.is_in_queue for event in found.events if event.is_in_queue is not None].count(False) == 0
    assert dl.trace(lives, [MESSAGES[key]["uniqKey"]]) == found
    assert dl.trace(lives, [key], scan=True) == found


def test_every_kind_of_name_leads_to_the_same_life(lives: Path) -> None:
    said = MESSAGES["dead-1"]
    for name in (said["uniqKey"], said["offsetMsgId"], "Retries/0/1", "%DLQ%retriers/0/0"):
        assert steps(lives, name) == LIVES["dead-1"], name


def test_times_and_groups_of_the_steps(lives: Path) -> None:
    *_, retried, dead, _, passed = dl.trace(lives, "dead-1").events
    assert (retried.attempt, retried.consumer_group, dead.attempt) == (1, "retriers", 2)
    assert (passed.event, passed.time, passed.consumer_group, passed.topic) == ("passed", None, "retriers", "Retries")
    delayed, *_ = dl.trace(lives, "delayed-2").events
    assert delayed.until is not None and delayed.time is not None and delayed.until - delayed.time == 2 * 3_600_000
    popped = dl.trace(lives, "popped-2").events[1]
    assert popped.until is not None and popped.time is not None and popped.until - popped.time == 3_600_000


def test_lives_of_several_messages_come_one_after_the_other(lives: Path) -> None:
    found = dl.trace(lives, ["timed-1", "plain-1", "no such key", "Orders/7/7"])
    assert found.missing == ["no such key", "Orders/7/7"]
    assert [event.event for event in found.events] == [*LIVES["plain-1"].split(), *LIVES["timed-1"].split()]


def test_the_table_has_every_step(lives: Path) -> None:
    rows = [row for batch in read_table(dl.open_log(lives), "trace") for row in batch.to_pylist()]
    log = dl.open_log(lives)
    for key, said in MESSAGES.items():
        events = [event for event in dl.trace(lives, key).events if event.event != "passed"]
        of_message = [row for row in rows if row["uniqKey"] == said["uniqKey"]]
        ordered = sorted(of_message, key=lambda row: (row["timestamp"], row["commitLogOffset"]))
        assert [(row["event"], row["commitLogOffset"]) for row in ordered] == [(e.event, e.offset) for e in events]
        assert [row["passedBy"] for row in ordered] == [
            list(row_of(TRACE_COLUMNS, event)["passedBy"]) for event in events
        ]
    assert log.max_offset > 0 and len(rows) > len(MESSAGES)


def test_without_its_index_of_keys_the_log_is_read(lives: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(lives, tmp_path / "copy"))
    (file,) = index_files(copy)
    write_at(file, 40, b"\x7f" * 400)
    assert steps(copy, "dead-1") == LIVES["dead-1"]
    shutil.rmtree(copy / "index")
    assert steps(copy, "checked-1") == LIVES["checked-1"]


def test_messages_after_the_end_of_the_index_are_found(tmp_path: Path, lives: Path) -> None:
    copy = Path(shutil.copytree(lives, tmp_path / "copy"))
    (file,) = index_files(copy)
    # It has one unit: the broker stopped before it indexed more.
    write_at(file, 24, bytes(8))
    write_at(file, 36, (2).to_bytes(4, "big"))
    write_at(file, 40, bytes(400))
    assert steps(copy, "popped-3") == LIVES["popped-3"]


@pytest.mark.parametrize("names", [["dead-1", "timed-1", "no such key"], ["Retries/0/1", "plain-1"]])
def test_the_log_is_read_once_for_many_names(lives: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, plans = dl.trace(lives, names), []

    def counted(*arguments: object) -> object:
        plans.append(arguments)
        return plan_between(*arguments)

    monkeypatch.setattr(trace_module, "plan_between", counted)
    assert dl.trace(lives, names, scan=True) == expected
    assert len(plans) == 1


def test_a_message_without_unit_is_not_in_its_queue(tmp_path: Path) -> None:
    messages = [mq_message("T", properties=[("KEYS", "a b"), ("UNIQ_KEY", f"U{i}")], queue_offset=i) for i in range(2)]
    rows = write_commitlog(tmp_path, messages).rows
    write_consume_queue(tmp_path, rows[:1])
    found = dl.trace(tmp_path, "b").events
    assert [(event.uniq_key, event.event, event.is_in_queue) for event in found] == [
        ("U0", "stored", True),
        ("U1", "stored", False),
    ]


@pytest.mark.parametrize("name", ["../../etc/0/0", "./0/0", "Orders/0/999999999999999999", "%/%/0"])
def test_names_of_places_lead_nowhere_else(lives: Path, name: str) -> None:
    assert dl.trace(lives, name).missing == [name]


def test_a_name_is_needed(lives: Path) -> None:
    with pytest.raises(OptionError, match="found none"):
        dl.trace(lives, [])


def test_the_command_prints_each_life(lives: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = fingerprint(lives)
    assert main(["trace", str(lives), "committed-1"]) == 0
    shown = capsys.readouterr().out
    assert [word for word in LIVES["committed-1"].split() if word not in shown] == []
    assert main(["trace", str(lives), "plain-1", "nothing", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["event"] for line in out.splitlines()] == LIVES["plain-1"].split()
    assert "expected a message nothing, found none" in err and "--scan" in err
    assert fingerprint(lives) == before
