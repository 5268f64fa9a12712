"""Verdicts that were once wrong, on stores that Java wrote: each verb says of the same damage what the others say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, ENTRY_HEADER_SIZE
from pyspark_dledger.log import open_log
from tests.consistency.verbs import Ran, Row, run
from tests.support.generate import rows_of
from tests.support.golden import unpack
from tests.support.sparse_copy import copy_tree

pytestmark = [pytest.mark.usefixtures("no_fsync")]

STRANDED, RAW_STRANDED = "n2", "dledger-n1"
BORN_HOST_AT = ENTRY_HEADER_SIZE + 49


def nodes(group: Path) -> list[str]:
    return sorted(each.name for each in group.iterdir() if each.is_dir())


def last_rows(store: Path, count: int) -> list[Row]:
    rows = rows_of(open_log(store).scan(columns=["kind", "index", "pos", "size"]))
    return [row for row in rows if row["kind"] != "corrupt"][-count:]


def write(store: Path, pos: int, change: Callable[[bytes], bytes], size: int) -> None:
    """Change bytes of a log."""
    folder = next(
        (each for each in (*store.glob("dledger-*/data"), store / "data") if each.is_dir()), store / "commitlog"
    )
    file = max(each for each in folder.iterdir() if int(each.name) <= pos)
    with file.open("r+b") as stream:
        stream.seek(pos - int(file.name))
        found = stream.read(size)
        stream.seek(pos - int(file.name))
        stream.write(change(found))


def zero(store: Path, pos: int, size: int) -> None:
    write(store, pos, lambda found: bytes(len(found)), size)


@pytest.fixture
def diverged(tmp_path: Path) -> tuple[Path, list[Row]]:
    """A group with a stranded leader, whose tail is damaged; the damaged entries."""
    group = unpack("mq-498-three-diverged", tmp_path)
    damaged = last_rows(group / STRANDED, 20)[5:15]
    zero(group / STRANDED, damaged[0]["pos"] + 60, sum(row["size"] for row in damaged))
    return group, damaged


@pytest.fixture
def raw_diverged(tmp_path: Path) -> Path:
    group = unpack("raw-three-diverged", tmp_path)
    damaged = last_rows(group / RAW_STRANDED, 20)[5:9]
    zero(group / RAW_STRANDED, damaged[0]["pos"], sum(row["size"] for row in damaged))
    return group


def test_lost_names_no_copy_of_another_history_as_intact(diverged: tuple[Path, list[Row]]) -> None:
    group, _ = diverged
    tail = {row["index"] for row in last_rows(group / STRANDED, 20)}
    found = run(group, "lost", *nodes(group)).rows
    wrong = [row for row in found if row["index"] in tail and row["intactOn"]]
    assert not wrong, str(wrong[:1])


def test_lost_lists_the_damaged_messages_of_a_diverged_tail(diverged: tuple[Path, list[Row]]) -> None:
    group, damaged = diverged
    listed = {row["index"] for row in run(group, "lost", *nodes(group)).rows}
    assert bool({row["index"] for row in damaged} & listed), str(listed)


def test_diff_calls_members_complete_that_a_diverged_tail_does_not_concern(diverged: tuple[Path, list[Row]]) -> None:
    group, _ = diverged
    _assert_complete(run(group, "diff", *nodes(group)))


def test_diff_calls_members_of_a_raw_log_complete_in_the_same_way(raw_diverged: Path) -> None:
    _assert_complete(run(raw_diverged, "diff", *nodes(raw_diverged)))


def _assert_complete(found: Ran) -> None:
    verdict = found.rows[0]
    assert "no member is complete" not in str(verdict["next"]), str(verdict["next"])
    assert sum(member["start"] == "yes" for member in verdict["members"]) == 2, str(verdict["members"])


DAMAGED_QUEUES = pytest.mark.parametrize("what", ["removed", "emptied", "cut"])


@DAMAGED_QUEUES
def test_verify_names_a_queue_that_is_not_as_the_log_says(tmp_path: Path, what: str) -> None:
    group = with_damaged_queue(tmp_path, what)
    found = run(group, "verify", "n0")
    assert found.code == 1, found.out[-200:]


@DAMAGED_QUEUES
def test_check_lets_no_member_serve_of_which_verify_faults_the_queues(tmp_path: Path, what: str) -> None:
    """`diff` reads no queues, and says so."""
    group = with_damaged_queue(tmp_path, what)
    member = next(each for each in run(group, "check", *nodes(group)).rows[0]["members"] if each["name"] == "n0")
    assert (member["serve"], member["start"]) == ("no", "no" if what == "cut" else "yes")
    assert "queues" in run(group, "diff", *nodes(group), as_json=False).out.splitlines()[-1]


def with_damaged_queue(folder: Path, what: str) -> Path:
    """A group of which n0 has a damaged queue, the one with the most units."""
    group = unpack("mq-53-three", folder)
    queue = max((group / "n0" / "consumequeue").glob("*/*"), key=_units)
    file = min(queue.iterdir())
    if what == "removed":
        shutil.rmtree(queue)
    elif what == "emptied":
        data = file.read_bytes()
        start = _written(data)[-10]
        file.write_bytes(data[:start] + bytes(200) + data[start + 200 :])
    else:
        os.truncate(file, file.stat().st_size // 2)
    return group


def _units(queue: Path) -> int:
    return sum(len(_written(file.read_bytes())) for file in queue.iterdir())


def _written(data: bytes) -> list[int]:
    size = CONSUME_QUEUE_UNIT_SIZE
    return [at for at in range(0, len(data), size) if data[at : at + size].strip(b"\0")]


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    return unpack("mq-53-controller", tmp_path)


def test_a_broker_opens_the_salvage_of_a_group_in_controller_mode(controller: Path) -> None:
    before = [run(controller, "recovery", name, "--rocketmq", "5.3.3").rows[0]["outcome"] for name in ("b2", "b3")]
    assert "fails" not in before
    assert run(controller, "salvage", "b2", "b3", "--log-of", "b3", "--to", "result").code == 0
    (after,) = run(controller, "recovery", "result", "--rocketmq", "5.3.3").rows
    assert after["outcome"] != "fails", str(after["reason"])


def test_a_salvage_keeps_the_units_of_all_sources_in_queues(controller: Path) -> None:
    assert run(controller, "salvage", "b2", "b3", "--log-of", "b3", "--to", "result").code == 0
    end = run(controller, "state", "result").rows[0]["maxOffset"]
    wanted = {unit for unit in _queue_units(controller, "b2") & _queue_units(controller, "b3") if unit[2] < end}
    missing = wanted - _queue_units(controller, "result")
    assert not missing, f"{len(missing)} missing: {sorted(missing)[:2]}"


def _queue_units(folder: Path, store: str) -> set[tuple[str, int, int]]:
    rows = run(folder, "dump", store, "--table", "consumeQueue").rows
    kept = (row for row in rows if row["kind"] != "filler" and not row["problem"])
    return {(row["topic"], row["queueId"], row["commitLogOffset"]) for row in kept}


def test_log_of_takes_the_name_that_diff_prints(raw_diverged: Path) -> None:
    names = [member["node"] for member in run(raw_diverged, "diff", *nodes(raw_diverged)).rows[0]["members"]]
    for name in names:
        found = run(raw_diverged, "salvage", *nodes(raw_diverged), "--plan", "--log-of", name)
        assert found.code != 2, found.err


def test_log_of_takes_the_name_that_diff_prints_of_a_broker(controller: Path) -> None:
    names = [member["node"] for member in run(controller, "diff", "b2", "b3").rows[0]["members"]]
    for name in names:
        found = run(controller, "salvage", "b2", "b3", "--plan", "--log-of", name)
        assert found.code != 2, found.err


def test_diff_agrees_with_what_a_salvage_decided(tmp_path: Path) -> None:
    """A byte that no checksum covers differs on one of three members."""
    group = unpack("mq-53-three", tmp_path)
    row = last_rows(group / "n1", 300)[0]
    write(group / "n1", row["pos"] + BORN_HOST_AT, lambda found: bytes([found[0] ^ 1]), 1)
    run(group, "salvage", *nodes(group), "--undecided", "majority", "--to", "result")
    verdict = run(group, "diff", "result", "n0", "n1", "n2").rows[0]
    starts = {Path(member["path"]).name: member["start"] for member in verdict["members"]}
    assert starts["result"] == "yes", str(verdict["members"])


def test_a_copied_folder_does_not_outvote_the_intact_replica(tmp_path: Path) -> None:
    group = unpack("mq-53-three", tmp_path)
    row = last_rows(group / "n1", 300)[0]
    write(group / "n1", row["pos"] + BORN_HOST_AT, lambda found: bytes([found[0] ^ 1]), 1)
    copy_tree(group / "n1", group / "copy")
    found = run(group, "salvage", "n0", "n1", "copy", "--plan")
    undecided = [each["firstIndex"] for each in found.rows if each["action"] == "undecided"]
    assert undecided == [row["index"]]
    run(group, "salvage", "n1", "copy", "n0", "--undecided", "majority", "--to", "result")
    run(group, "salvage", "n1", "n0", "--undecided", "majority", "--to", "without")
    assert log_of(group / "result") == log_of(group / "without"), "the copied bytes were taken"


def log_of(store: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(next(store.glob("dledger-*/data")).iterdir())]
