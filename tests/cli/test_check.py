"""``dledger check``: the first minute of an incident, in at most 15 lines, with a next command that works."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pyspark_dledger
from pyspark_dledger.log.io.state_files import StoreCheckpoint, read_store_checkpoint
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.broker.root_files import locked
from pyspark_dledger.rocketmq.check import store_facts
from pyspark_dledger.rocketmq.check.restart import Restart
from tests.consistency.damages import damage
from tests.consistency.worlds import world
from tests.support.command_line import Ran
from tests.support.damage import write_at
from tests.support.generate import Store, mq_message, raw, write_dledger
from tests.support.sparse_copy import copy_tree

Run = Callable[..., Ran]
MAX_LINES = 15
MAX_COMMANDS = 7


def checked(run: Run, *arguments: object) -> tuple[Ran, list[str]]:
    """What check printed, with its lines; JSON has the same exit code, next command and number of members."""
    done, found = run("check", *arguments), run("check", *arguments, "--json")
    lines = done.out.splitlines()
    assert len(lines) <= MAX_LINES and not done.err
    assert lines[-1].startswith("not checked: ")
    (row,) = found.rows
    assert found.code == done.code == (0 if row["isClean"] else 1)
    command = [shlex.split(line.removeprefix("next: ")) for line in lines if line.startswith("next: ")]
    assert command == ([row["next"]] if row["next"] else [])
    return done, lines


def follow(run: Run, *paths: object) -> list[list[str]]:
    """Run check, then each next command that is printed, until none is; returns all commands."""
    commands = [["dledger", "check", *map(str, paths)]]
    while len(commands) <= MAX_COMMANDS:
        done = run(*commands[-1][1:])
        assert done.code in (0, 1), (commands[-1], done.err)
        found = [line.removeprefix("next: ") for line in done.out.splitlines() if line.startswith("next: ")]
        if not found:
            assert "done: " in done.out
            return commands
        commands.append(shlex.split(found[0]))
    raise AssertionError(commands)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, in which commands write."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)


@pytest.mark.parametrize("case", ["mq-53-three/n0", "mq-plain", "mq-53-upgrade", "raw-single", "raw-single-040"])
def test_a_healthy_store(case: str, case_folder: Callable[[str], Path], run: Run) -> None:
    name, _, member = case.partition("/")
    done, lines = checked(run, case_folder(name) / member)
    assert (done.code, lines[1]) == (0, "lost for good: nothing")
    assert any(line.startswith("done: start ") for line in lines)


def test_a_damaged_group_is_led_to_a_healthy_store(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    group = case_folder("mq-53-three")
    damaged = copy_tree(group / "n1", tmp_path / "damaged")
    write_at(damaged / "dledger-n1" / "data" / "00000000000000393216", 41123, bytes(4096))
    done, lines = checked(run, damaged, group / "n0", group / "n2")
    assert done.code == 1
    assert lines[1] == "lost for good: nothing"
    assert any(line.startswith("n1 (") and "must not start as it is: 12 entries damaged" in line for line in lines)
    assert any("n1 would drop 108 entries, of them committed: 503 to 610" in line for line in lines)
    assert any(line.startswith("consumers miss: n1: 12 units without a message") for line in lines)
    commands = follow(run, damaged, group / "n0", group / "n2")
    assert [command[1] for command in commands] == ["check", "salvage", "salvage", "check"]
    done, lines = checked(run, *commands[-1][2:])
    assert done.code == 0 and lines[1] == "lost for good: nothing"
    assert any(line.startswith("done: start this store instead of ") for line in lines)


@pytest.mark.parametrize("seed", range(6))
def test_random_damage(seed: int, tmp_path: Path, run: Run) -> None:
    made = world(tmp_path / "group", seed)
    damage(made)
    paths = [each.path for each in made.replicas]
    checked(run, *paths)


def test_one_damaged_store_alone(damaged: Store, run: Run) -> None:
    done, lines = checked(run, damaged.path)
    assert done.code == 1
    assert any("must not start as it is" in line for line in lines)
    assert any(line.startswith("next: dledger salvage ") and line.endswith(" --plan") for line in lines)


def test_a_folder_of_nodes_and_a_segment(case_folder: Callable[[str], Path], run: Run) -> None:
    done, lines = checked(run, case_folder("raw-three-diverged"))
    assert done.code == 1 and lines[0].startswith("3 replicas: DLedger log; ")
    assert "done: start n0 and n2 first; the other members follow" in lines
    done, lines = checked(run, case_folder("mq-53-three"))
    assert done.code == 0 and "done: start n0, n1 and n2" in lines
    segment = next(case_folder("mq-plain").glob("commitlog/*"))
    found = run("check", segment)
    assert found.code == 2 and f"{segment}: expected a whole store to check, found one segment" in found.err


def test_empty_members_that_are_a_majority_are_not_to_be_started_alone(tmp_path: Path, run: Run) -> None:
    """They elect one of them, and begin a new log."""
    write_dledger(tmp_path / "n0", [raw(b"one"), raw(b"two")])
    for node in ("n1", "n2"):
        (tmp_path / node / f"dledger-{node}" / "data").mkdir(parents=True)
    done, lines = checked(run, *(tmp_path / node for node in ("n0", "n1", "n2")))
    assert done.code == 0
    assert "n1 may start only after another member leads: elected, n0 would lose 0 to 1, committed" in lines
    assert any(
        line.startswith("done: most members have no entries, and would begin a new log: start n0 with")
        for line in lines
    )
    done, lines = checked(run, tmp_path / "n0", tmp_path / "n1")
    assert "n1 may start, and cannot be elected: n0 is ahead" in lines
    assert "done: start n0 first; the other members follow" in lines


def test_queues_are_rebuilt(broker: Store, run: Run) -> None:
    shutil.rmtree(broker.path / "consumequeue" / "Orders")
    done, lines = checked(run, broker.path)
    assert done.code == 1
    assert any(line.startswith("consumers miss: 8 messages that are in no queue") for line in lines)
    commands = follow(run, broker.path)
    assert [command[1] for command in commands] == ["check", "rebuild", "rebuild", "check"]
    assert checked(run, broker.path)[0].code == 0


def test_queues_of_a_group_are_rebuilt_with_the_sizes_of_its_members(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    paths = [copy_tree(case_folder("mq-53-three") / name, tmp_path / name) for name in ("n0", "n1", "n2")]
    shutil.rmtree(paths[0] / "consumequeue")
    shutil.rmtree(paths[1] / "consumequeue" / "PayTopic")
    commands = follow(run, *paths)
    verbs = ["check", "rebuild", "rebuild", "check", "rebuild", "rebuild", "check"]
    assert [command[1] for command in commands] == verbs
    assert all(set(map(str, paths)) <= set(command) for command in commands)
    assert checked(run, *paths)[0].code == 0
    old, new = ({file.stat().st_size for file in path.glob("consumequeue/*/*/*")} for path in (paths[2], paths[0]))
    assert new == old


def test_queues_of_another_size_than_those_of_most_members_are_rebuilt(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    paths = [copy_tree(case_folder("mq-53-three") / name, tmp_path / name) for name in ("n0", "n1", "n2")]
    assert run("rebuild", "consumequeue", paths[1], "--units-per-file", 70).code == 0
    assert checked(run, paths[1])[0].code == 0, "alone, nothing shows it"
    _, lines = checked(run, *paths)
    assert [line.split()[0] for line in lines if "must not start" in line and "another size" in line] == ["n1"]
    assert [command[1] for command in follow(run, *paths)] == ["check", "rebuild", "rebuild", "check"]


@pytest.mark.parametrize("name", ["n0", "n1", "n2"])
def test_an_index_of_keys_that_other_members_have_is_built_again(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run, name: str
) -> None:
    group = case_folder("mq-53-three")
    lost = copy_tree(group / name, tmp_path / "root")
    shutil.rmtree(lost / "index")
    (lost / "checkpoint").unlink()
    paths = [lost, *(group / other for other in ("n0", "n1", "n2") if other != name)]
    done, lines = checked(run, *paths)
    assert done.code == 1 and any("it lost its index of keys" in line for line in lines)
    assert [command[1] for command in follow(run, *paths)] == ["check", "rebuild", "rebuild", "check"]
    assert not any("lost its index" in line for line in checked(run, *paths)[1])


def test_an_index_of_keys_that_is_missing_is_lost_if_the_checkpoint_shows_it(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    """A broker with messageIndexEnable=false has none."""
    root = copy_tree(case_folder("mq-53-single"), tmp_path / "root")
    assert checked(run, root)[1][2].endswith("may start")
    shutil.rmtree(root / "index")
    times = read_store_checkpoint(root)
    (root / "checkpoint").write_bytes(times._replace(index_msg_timestamp=0).pack())
    done, lines = checked(run, root)
    assert done.code == 0
    assert lines[2].endswith("may start; it has no index of keys, although its messages have keys")
    (root / "checkpoint").write_bytes(times.pack())
    done, lines = checked(run, root)
    assert done.code == 1
    assert lines[2].endswith("may start; it lost its index of keys, so queries by key find nothing")


def test_the_folders_of_one_log_are_no_replicas(case_folder: Callable[[str], Path], run: Run) -> None:
    root = case_folder("raw-multipath")
    folders = sorted(map(str, root.glob("path*")))
    for given in ([root / "dledger-n0"], folders, [root]):
        found = run("check", *given)
        command = shlex.split(found.err.splitlines()[0].rpartition(": ")[2])
        whole = ",".join(folders if given == folders else [str(given[0]), *folders])
        assert found.code == 2 and command == ["dledger", "check", whole]
        assert checked(run, *command[2:])[0].code == 0


@pytest.mark.parametrize("name", ["mq-53-single", "mq-plain"])
def test_check_verify_and_audit_agree_that_all_queues_are_missing(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run, name: str
) -> None:
    root = shutil.copytree(case_folder(name), tmp_path / "root")
    shutil.rmtree(root / "consumequeue")
    done, lines = checked(run, root)
    assert done.code == 1 and lines[0].startswith(("RocketMQ broker in DLedger mode", "Plain CommitLog of RocketMQ"))
    verified, audited = run("verify", root, "--json"), run("audit", root, "--json")
    assert (verified.code, audited.code) == (1, 1)
    for found in verified, audited:
        assert {row["code"] for row in found.rows if row.get("severity", "error") == "error"} == {"messageNotInQueue"}
    assert any(line.startswith(f"consumers miss: {len(audited.rows)} messages ") for line in lines)


def test_what_was_before_the_first_file_of_one_store_expired_or_is_lost(tmp_path: Path, run: Run) -> None:
    store = write_dledger(tmp_path / "root", [raw(b"x" * 500)] * 30)
    min((tmp_path / "root").glob("dledger-*/data/*")).unlink()
    _, lines = checked(run, tmp_path / "root")
    begin = store.segments[1].base
    lost = "lost for good: nothing"
    assert f"{lost}; what was before position {begin} expired, or its files are lost: cannot tell" in lines


def test_a_file_of_a_queue_with_a_wrong_size_is_rebuilt(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    root = shutil.copytree(case_folder("mq-53-single"), tmp_path / "root")
    file = min(root.glob("consumequeue/*/*/*"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    _, lines = checked(run, root)
    assert f"next: dledger rebuild consumequeue {root} --dry-run" in lines


def test_a_store_in_use_is_said(broker: Store, run: Run) -> None:
    assert "in use" not in checked(run, broker.path)[1][0]
    with locked(broker.path):
        done, lines = checked(run, broker.path)
    assert lines[0].endswith("; in use: n0")
    assert done.code == 0


def test_an_entry_that_is_being_written_does_not_forbid_a_start(
    broker: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of a restart can read the log between the writes of an entry and of its index unit."""

    def torn(_log: StoreView, software: str, version: str) -> Restart:
        return Restart(software, version, "throws", False, is_trouble=True, reason="expected pos 9, found 0")

    monkeypatch.setattr(store_facts, "restart_of", torn)
    assert run("check", broker.path).code == 1
    with locked(broker.path):
        done = run("check", broker.path)
    assert done.code == 0
    assert "cannot tell (a process uses the store)" in done.out


def test_the_version_that_restarts(case_folder: Callable[[str], Path], run: Run) -> None:
    store = case_folder("mq-53-three") / "n0"
    assert any("RocketMQ 5.3.3 (assumed, " in line for line in checked(run, store)[1])
    assert "restart with RocketMQ 4.9.8: would change nothing" in checked(run, store, "--rocketmq", "4.9.8")[1]
    assert "restart with DLedger 0.3.1: would change nothing" in checked(run, store, "--java", "0.3.1")[1]
    assert run("check", store, "--rocketmq", "9.0.0").code == 2
    assert run("check", case_folder("mq-plain"), "--java", "0.3").code == 2


def test_python_returns_the_same(case_folder: Callable[[str], Path], run: Run) -> None:
    paths = [case_folder("mq-498-three-diverged") / name for name in ("n0", "n1", "n2")]
    (row,) = run("check", *paths, "--json").rows
    assert pyspark_dledger.check(paths).as_json() == row
    assert pyspark_dledger.check(paths[0]).is_clean


def test_many_members_fit_the_lines(tmp_path: Path, run: Run) -> None:
    payloads = [mq_message("T", b"x" * 200, queue_offset=number) for number in range(9)]
    stores = [write_dledger(tmp_path / f"n{number}", payloads, node=f"n{number}") for number in range(9)]
    paths = [store.path for store in stores]
    done, lines = checked(run, *paths)
    assert done.code == 0 and "2 other members: nothing is wrong with 2; --json lists them" in lines
    for store in stores[1:]:
        write_at(store.segments[0].path, store.rows[3]["pos"], b"\xff\xee")
    done, lines = checked(run, *paths)
    assert done.code == 1 and lines[1] == "lost for good: nothing"
    assert "2 other members: nothing is wrong with 1; --json lists them" in lines


def test_a_verdict_names_the_reason_that_applies(tmp_path: Path, run: Run) -> None:
    payloads = [raw(b"x" * 200)] * 9
    stores = [write_dledger(tmp_path / f"n{number}", payloads, node=f"n{number}") for number in range(2)]
    write_at(stores[1].segments[0].path, stores[1].rows[3]["pos"] + 100, b"y")
    paths = [store.path for store in stores]
    text = "cannot tell for 1 entry, 3: copies differ, and no check shows which one is right"
    assert run("diff", *paths).out.splitlines()[0] == f"lost for good: {text}"
    assert checked(run, *paths)[1][1] == f"lost for good: {text}"
    (group, *_) = run("diff", *paths, "--json").rows
    assert (group["lost"], group["unclearReasons"]) == ("unknown", ["differ"])
    step = next(line for line in run("salvage", *paths, "--plan").out.splitlines() if line.startswith("next: "))
    assert step.endswith("--undecided majority --to healthy")


def test_diverged_logs_of_which_none_may_lead(case_folder: Callable[[str], Path], tmp_path: Path, run: Run) -> None:
    group = copy_tree(case_folder("mq-53-controller"), tmp_path / "group")
    for name, pos, data in (("b2", 40960, bytes(4096)), ("b3", 100000, b"\xff")):
        write_at(group / name / "commitlog" / ("0" * 20), pos, data)
    paths = [group / name for name in ("b1", "b2", "b3")]
    (step,) = (shlex.split(line) for line in checked(run, *paths)[1] if line.startswith("next: "))
    assert step[-3:] == ["--log-of", "b2", "--plan"]
    assert any(line.endswith(" --log-of b2 --plan") for line in run("diff", *paths).out.splitlines())
    assert [command[1] for command in follow(run, *paths)] == ["check", "salvage", "salvage", "check"]
    (saved,) = (line for line in checked(run, *paths)[1] if "before it, save what this log leaves out: " in line)
    command = shlex.split(saved.partition("out: ")[2])
    assert command[:4] == ["dledger", "export", str(paths[0]), "b1-rest"]
    assert run(*command[1:]).code in (0, 1)
    planned = run(*step[2:])
    salvaged = run(*step[2:-1], "--undecided", "filler", "--to", "other")
    for done in planned, salvaged:
        (note,) = (line for line in done.out.splitlines() if "; to save it: " in line)
        assert note.startswith("note: left out: what b1 has of another history from position ")
        assert shlex.split(note.partition("it: ")[2])[:4] == ["dledger", "export", str(paths[0]), "b1-rest-2"]
    refused = run("salvage", *paths, "--plan")
    assert refused.code == 2 and "Choose the one to restore (--log-of)" in refused.err
    (command,) = (line for line in refused.out.splitlines() if line.startswith("next: "))
    assert shlex.split(command)[1:] == ["dledger", "salvage", *map(str, paths), "--log-of", "b2", "--plan"]
    assert run(*shlex.split(command)[2:]).code in (0, 1)


@pytest.mark.parametrize("is_first_missing", [True, False])
def test_what_a_salvage_leaves_out_is_saved_from_its_first_position_on(
    is_first_missing: bool, case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    group = copy_tree(case_folder("mq-53-controller"), tmp_path / "group")
    pos = 57140
    if is_first_missing:
        (group / "b1" / "commitlog" / ("0" * 20)).unlink()
        pos = 131072
    else:
        # Java truncates b1 at its end then, which is after the first of the messages that b2 does not have.
        (group / "b2" / "epochFileCheckpoint").write_bytes(b"")
        write_at(group / "b3" / "commitlog" / ("0" * 20), 90000, bytes(41072))
    paths = [group / name for name in ("b1", "b2", "b3")]
    (saved,) = (line for line in checked(run, *paths)[1] if "before it, save what this log leaves out: " in line)
    command = shlex.split(saved.partition("out: ")[2])
    assert command[-1] == f'startingOffsets={{"pos": {pos}}}' and run(*command[1:]).code == 0
    (step,) = (shlex.split(line) for line in checked(run, *paths)[1] if line.startswith("next: "))
    assert f"has of another history from position {pos} on" in run(*step[2:]).out


@pytest.mark.parametrize("place", [".", "n1/dledger-n1", "n1"])
def test_commands_in_the_folder_of_a_store_write_outside(
    place: str, case_folder: Callable[[str], Path], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_tree(case_folder("mq-53-three") / "n1", tmp_path / "n1")
    write_at(max((root / "dledger-n1" / "data").iterdir()), 0, bytes(100_000))
    monkeypatch.chdir(tmp_path / ("n1" if place == "." else place))
    commands = follow(run, "." if place == "." else tmp_path / "n1")
    assert [command[1] for command in commands] == ["check", "salvage", "salvage", "check"]
    assert (tmp_path / "healthy").is_dir()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mq-53-three/n0", "mq-498-three-diverged/n1"),
        ("mq-53-three/n0", "mq-plain"),
        ("mq-plain", "mq-plain-crc"),
    ],
    ids=["ledgers", "ledger_and_commitlog", "commitlogs"],
)
def test_stores_of_different_groups(one: str, other: str, case_folder: Callable[[str], Path], run: Run) -> None:
    paths = [case_folder(case) / member for case, _, member in (one.partition("/"), other.partition("/"))]
    names = f"{paths[0].name} and {paths[1].name}"
    done, lines = checked(run, *paths)
    assert done.code == 1 and lines[0].startswith("2 stores, not replicas of one log: ")
    text = f"lost for good: cannot tell: {names} are not replicas of one log; no member may start by this"
    assert lines[1] == text
    assert all("cannot tell if it may start: it is not a replica of the log of " in line for line in lines[2:4])
    assert f"next: dledger check {paths[0]}" in lines
    assert [command[1] for command in follow(run, *paths)] == ["check", "check"]
    found = run("diff", *paths)
    assert found.code == 1 and text in found.out.splitlines()[:3]
    assert f"next: dledger check {paths[0]}" in found.out.splitlines()


def test_replicas_are_checked_without_a_store_of_another_group(case_folder: Callable[[str], Path], run: Run) -> None:
    group, other = case_folder("mq-53-three"), case_folder("mq-498-three-diverged") / "n1"
    for paths in ([group / "n0", other, group / "n2"], [other, group / "n0", group / "n2"]):
        assert f"next: dledger check {group / 'n0'} {group / 'n2'}" in checked(run, *paths)[1]
        assert [command[1] for command in follow(run, *paths)] == ["check", "check"]


def test_damage_of_an_old_commit_log_is_said_without_what_the_log_of_dledger_would_allow(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    root = copy_tree(case_folder("mq-53-upgrade"), tmp_path / "root")
    write_at(min((root / "dledger-n0" / "data").parent.parent.glob("commitlog/*")), 4000, bytes(600))
    done, lines = checked(run, root)
    assert done.code == 1 and lines[1].startswith("lost for good: in the old CommitLog: ")
    assert " must not start as it is: " in lines[2] and "may start" not in lines[2]


def test_a_member_without_its_first_files(case_folder: Callable[[str], Path], tmp_path: Path, run: Run) -> None:
    group = copy_tree(case_folder("mq-53-three"), tmp_path / "group")
    (group / "n2" / "dledger-n2" / "data" / ("0" * 20)).unlink()
    paths = [group / name for name in ("n0", "n1", "n2")]
    text = "its log begins at 207, and another one at 0: cannot tell if its first files expired or are lost"
    (done, lines), found = checked(run, *paths), run("diff", *paths)
    (line,) = (each for each in lines if text in each)
    assert line.startswith("n2 ") and line in found.out.splitlines()
    assert (done.code, found.code) == (1, 1)
    assert [command[1] for command in follow(run, *paths)] == ["check", "salvage", "salvage", "check"]
    for name in ("n0", "n1"):
        (group / name / f"dledger-{name}" / "data" / ("0" * 20)).unlink()
    lost = "lost for good: nothing; what was before position 131072 expired, or its files are lost: cannot tell"
    (done, lines), found = checked(run, *paths), run("diff", *paths)
    assert (done.code, found.code, lines[1], found.out.splitlines()[0]) == (0, 0, lost, lost)


@pytest.mark.parametrize("count", [3, 1])
def test_a_store_that_no_salvage_writes_is_replaced_by_hand(
    count: int, case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    group = copy_tree(case_folder("raw-040-snapshot-blank"), tmp_path / "group")
    paths = [group / f"dledger-n{number}" for number in range(count)]
    last = max(paths[0].glob("data/*"))
    os.truncate(last, last.stat().st_size - 100)
    assert follow(run, *paths) == [["dledger", "check", *map(str, paths)]]
    names, donor = ("n0 and n2", "n1") if count == 3 else ("n0", "a complete member")
    text = f"done: a salvage does not write stores of DLedger 0.4.0: stop {names}; of each, move its folder away, copy "
    for verb in ("check", "diff")[:count]:
        assert any(line.startswith(f"{text}that of {donor} there") for line in run(verb, *paths).out.splitlines())


def test_stores_that_no_salvage_writes_are_kept_if_none_is_known_to_be_complete(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    group = copy_tree(case_folder("raw-040-snapshot-blank"), tmp_path / "group")
    paths = [group / f"dledger-n{number}" for number in range(3)]
    write_at(max(paths[0].glob("data/*")), 2000, bytes(600))
    for verb in ("check", "diff"):
        (said,) = (line for line in run(verb, *paths).out.splitlines() if line.startswith("done: "))
        assert "no member is known to be complete: keep all stores of n0, n1 and n2" in said


def test_a_member_whose_restart_fails_may_not_start(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    group = copy_tree(case_folder("mq-53-three"), tmp_path / "group")
    checkpoint = group / "n2" / "dledger-n2" / "checkpoint"
    checkpoint.write_text(re.sub(r"committedIndex=.*", "committedIndex=abc", checkpoint.read_text()))
    paths = [group / name for name in ("n0", "n1", "n2")]
    reason = "must not start as it is: RocketMQ 5.3.3 would not start: java.lang.NumberFormatException: "
    for given in (paths, paths[2:]):
        (line,) = (each for each in checked(run, *given)[1] if each.startswith("n2 "))
        assert line.startswith(f"n2 {reason}") and "may start" not in line


@pytest.mark.parametrize("case", ["mq-53-three/n1", "mq-plain"])
def test_a_salvaged_log_without_its_end_is_known_to_lack_it(
    case: str, case_folder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    store = copy_tree(case_folder(case.partition("/")[0]) / case.partition("/")[2], tmp_path / "n1")
    files, text = store / "commitlog", "positions up to 430336"
    if case != "mq-plain":
        files, text = store / "dledger-n1" / "data", "committed entries up to 610"
        shutil.rmtree(store / "dledger-n1" / "index")
    max(files.iterdir()).unlink()
    assert run("salvage", store, "--to", "healthy").code == 1
    done, lines = checked(run, "healthy")
    assert done.code == 1
    assert lines[1].startswith(f"lost for good: {text}, after the end of the log that a salvage wrote as ")
    assert any(line.startswith("done: start this store instead of ") for line in lines)
    (row,) = run("check", "healthy", "--json").rows
    assert row["lost"] == "some" and row["members"][0]["knownLoss"] in (
        {"lastIndex": 610, "lastPos": -1},
        {"lastIndex": -1, "lastPos": 430336},
    )


def test_a_damaged_copy_that_a_salvage_was_told_to_take_is_known(tmp_path: Path, run: Run) -> None:
    payloads = [mq_message("T", b"x" * 200, queue_offset=number) for number in range(9)]
    stores = [write_dledger(tmp_path / f"n{number}", payloads, node=f"n{number}") for number in range(3)]
    for number, store in enumerate(stores):
        with Path(store.segments[0].path).open("r+b") as file:
            for row in (store.rows[3], store.rows[5 + number]):
                file.seek(row["pos"] + row["size"] - 100)
                file.write(b"y")
    paths = [store.path for store in stores]
    commands = follow(run, *paths)
    assert "--undecided" in commands[2]
    known = "when a salvage wrote n0: cannot tell for 1 entry, 3: equal copies fail their checksum"
    for sources, target in ((paths, "second"), (["second"], "third")):
        salvaged = run("salvage", *sources, "--undecided", "majority", "--to", target)
        text = "lost for good: cannot tell for 1 entry, 3: every copy fails its checksum, and one of them is taken"
        assert salvaged.code == 1 and salvaged.out.splitlines()[0] == text
        done, lines = checked(run, target)
        assert done.code == 1 and lines[1] == f"lost for good: {known}"
    assert run("salvage", "second", "--plan").code == 1


def test_what_another_member_has_is_no_known_loss(case_folder: Callable[[str], Path], tmp_path: Path, run: Run) -> None:
    group = copy_tree(case_folder("mq-53-three"), tmp_path / "group")
    shutil.rmtree(group / "n1" / "dledger-n1" / "index")
    max((group / "n1" / "dledger-n1" / "data").iterdir()).unlink()
    assert run("salvage", group / "n1", "--to", "healthy").code == 1
    assert checked(run, "healthy", group / "n0")[1][1] == "lost for good: nothing"


def test_a_store_whose_messages_have_no_keys_lost_no_index_of_them(tmp_path: Path, run: Run) -> None:
    payloads = [mq_message("T", b"x", queue_offset=number) for number in range(9)]
    stores = [write_dledger(tmp_path / f"n{number}", payloads, node=f"n{number}") for number in range(2)]
    for store in stores:
        assert run("rebuild", "consumequeue", store.path).code == 0
        (Path(store.path) / "checkpoint").write_bytes(StoreCheckpoint(1, 1, 1).pack())
    done, lines = checked(run, *(store.path for store in stores))
    assert done.code == 0 and not any("index of keys" in line for line in lines[2:4])
