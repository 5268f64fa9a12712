"""Verdicts on groups of CommitLogs: generated damages against what an undamaged store has, and hostile files."""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.cli.stores.verdict_text import lost_text, member_text
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.state_files import EPOCH_FILE, EPOCH_FILES
from pyspark_dledger.log import open_log
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison, compare_commit_logs
from pyspark_dledger.log.diff.copy_ranges import DAMAGED, Copy, CopyRange
from pyspark_dledger.log.diff.diff_table import LogEvidence
from pyspark_dledger.log.io.state_files import CHECKPOINT_SIZE, StoreCheckpoint
from pyspark_dledger.log.next_step import CHECK, PLAN
from pyspark_dledger.rocketmq.check.check_report import step_after_comparison
from tests.support.damage import flip
from tests.support.generate import Store, mq_message, write_commitlog, write_consume_queue
from tests.support.long_runs import mostly_slow

COUNT = 40


def messages(count: int, text: str = "") -> list[Any]:
    """Messages of one queue, of different sizes."""
    return [
        mq_message(
            "Orders",
            f"{text}{n} ".encode().ljust(200 + n * 37 % 300, b"x"),
            queue_offset=n,
            store_timestamp=1700000000000 + n,
        )
        for n in range(count)
    ]


def compared(*roots: Path) -> CommitLogComparison:
    found = compare_commit_logs(open_log(str(roots[0]), replicas=list(map(str, roots[1:]))))
    assert found is not None
    return found


def starts(found: CommitLogComparison) -> list[str]:
    return [member.start for member in found.verdict.members]


@dataclass
class Replica:
    """A replica, and the state of each message: ok, ended, expired or damaged."""

    name: str
    store: Store
    states: dict[int, str]
    gone: set[str] = field(default_factory=set)

    @property
    def files(self) -> list[Any]:
        return [segment for segment in self.store.segments if segment.name not in self.gone]

    def remove(self, segment: Any, state: str) -> None:
        Path(segment.path).unlink()
        self.gone.add(segment.name)
        for number, row in enumerate(self.store.rows):
            if row["segment"] == segment.name:
                self.states[number] = state

    def damage(self, source: random.Random) -> None:
        """One random damage; files before the first one that is left count as expired."""
        files, kind = self.files, source.choice(("expire", "middle", "last", "flip", "short"))
        intact = [number for number, state in self.states.items() if state == "ok"]
        if len(files) < 3 or not intact:
            return
        if kind == "expire":
            self.remove(files[0], "expired")
        elif kind == "middle":
            self.remove(source.choice(files[1:-1]), "damaged")
        elif kind == "last":
            self.remove(files[-1], "damaged")
        elif kind == "flip":
            row = self.store.rows[number := source.choice(intact[:-1] or intact)]
            segment = next(each for each in files if each.name == row["segment"])
            flip(segment.path, row["pos"] - segment.base + source.choice((0, 1, 4, 90, 150)), 2)
            self.states[number] = "damaged"
        else:
            segment, size = source.choice(files[1:-1]), source.randrange(4000)
            os.truncate(segment.path, size)
            for number, row in enumerate(self.store.rows):
                if row["segment"] == segment.name and row["pos"] - segment.base + row["size"] > size:
                    self.states[number] = "damaged"
        first = self.files[0].base
        for number, row in enumerate(self.store.rows):
            if row["pos"] < first:
                self.states[number] = "expired"


def generated(root: Path, source: random.Random) -> list[Replica]:
    replicas = []
    for name in "abc"[: source.choice((2, 3))]:
        count = COUNT - source.choice((0, 0, source.randrange(25)))
        store = write_commitlog(root / name, messages(count))
        write_consume_queue(root / name, store.rows)
        replica = Replica(name, store, {n: "ok" if n < count else "ended" for n in range(COUNT)})
        for _ in range(source.choice((0, 1, 1, 2))):
            replica.damage(source)
        replicas.append(replica)
    return replicas


@pytest.mark.parametrize("seed", mostly_slow(range(12), 4, suite=6))
def test_verdicts_agree_with_what_an_undamaged_store_has(seed: int, tmp_path: Path) -> None:
    """Slaves that lag, missing files in the middle and at the end, short files, expired ones, and damaged messages."""
    replicas = generated(tmp_path, random.Random(seed))
    found = compared(*(tmp_path / replica.name for replica in replicas))
    lost = set()
    for number, row in enumerate(write_commitlog(tmp_path / "whole", messages(COUNT)).rows):
        states = [replica.states[number] for replica in replicas]
        named = {state: {each.name for each in replicas if each.states[number] == state} for state in states}
        got = next((each for each in found.rows if each.first_pos <= row["pos"] <= each.last_pos), None)
        if got is None:
            assert not {"ok", "damaged"} & set(states), (seed, number)
            continue
        wanted = next((state for state in ("damaged", "ended", "expired") if state in named), "ok")
        verdict = {"ended": "behind", "ok": "same"}.get(wanted, wanted)
        assert (got.verdict, set(got.terms)) == (verdict, named.get("ok", set())), (seed, number)
        if wanted == "damaged":
            assert set(got.nodes) == named["damaged"], (seed, number)
            lost |= {row["pos"]} - ({row["pos"]} if "ok" in named else set())
    assert lost == {pos for pos in lost if any(low <= pos <= high for low, high in found.verdict.lost_entries.ranges)}
    assert bool(lost) == bool(found.verdict.lost_entries.entries)
    for replica, member in zip(replicas, found.verdict.members, strict=True):
        if "damaged" in replica.states.values():
            assert member.start == "no", seed
        elif member.start == "no":
            assert member.missing is not None, "its master has expired what it needs"


def test_a_damaged_master_that_is_ahead_is_not_replaced_by_its_slave(tmp_path: Path) -> None:
    master = write_commitlog(tmp_path / "master", messages(COUNT))
    write_commitlog(tmp_path / "slave", messages(COUNT - 5))
    flip(master.segments[0].path, 150, 2)
    found = compared(tmp_path / "master", tmp_path / "slave")
    assert starts(found) == ["no", "slave"]
    assert step_after_comparison(found, ()).step == PLAN, "the slave lacks the last five messages"


def test_a_slave_whose_master_has_expired_what_it_needs_cannot_follow(tmp_path: Path) -> None:
    master = write_commitlog(tmp_path / "master", messages(COUNT))
    slave = write_commitlog(tmp_path / "slave", messages(5))
    for segment in master.segments[:2]:
        Path(segment.path).unlink()
    found = compared(tmp_path / "master", tmp_path / "slave")
    assert starts(found) == ["master", "no"]
    assert found.verdict.members[1].missing == (slave.end, master.segments[2].base - 1)
    assert not found.is_lagging_only


def test_nobody_follows_a_log_of_which_nothing_is_left(tmp_path: Path) -> None:
    write_commitlog(tmp_path / "a", messages(3))
    _, left, *others = write_commitlog(tmp_path / "b", messages(COUNT)).segments
    Path(left.path).write_bytes(bytes(left.size))
    for segment in (_, *others):
        Path(segment.path).unlink()
    found = compared(tmp_path / "a", tmp_path / "b")
    assert (found.verdict.members[0].start, found.verdict.members[0].missing) == ("master", None)
    assert open_log(str(tmp_path / "b")).max_offset == left.base


def test_two_masters_without_epochs_cannot_both_start(tmp_path: Path) -> None:
    """Nothing truncates what the shorter one wrote."""
    write_commitlog(tmp_path / "a", [*messages(COUNT)[:20], *messages(COUNT, "other ")[20:]])
    write_commitlog(tmp_path / "b", messages(COUNT)[:30])
    found = compared(tmp_path / "a", tmp_path / "b")
    assert starts(found) == ["unknown", "unknown"], "the times of both masters are the same"
    assert [member.rivals for member in found.verdict.members] == [("b",), ("a",)]
    assert not found.verdict.members[1].can_follow
    assert found.verdict.members[0].overwritten == ("b",)


def test_without_epochs_the_log_that_was_written_later_is_the_last_masters(tmp_path: Path) -> None:
    """It is the shorter one, and the times of its messages begin after those of the other one end."""
    later = [
        mq_message("Orders", b"later".ljust(200, b"x"), queue_offset=n, store_timestamp=1700000100000 + n)
        for n in range(20, 25)
    ]
    write_commitlog(tmp_path / "a", messages(COUNT))
    write_commitlog(tmp_path / "b", [*messages(COUNT)[:20], *later])
    found = compared(tmp_path / "a", tmp_path / "b")
    assert starts(found) == ["no", "master"]
    assert found.log_of == "b"


def test_another_log_that_began_within_the_last_epoch_is_of_a_later_one(tmp_path: Path) -> None:
    """Only the epochs of the other log are left: a master has one log, so both are not of that epoch."""
    write_commitlog(tmp_path / "a", messages(COUNT))
    write_commitlog(tmp_path / "b", [*messages(COUNT)[:20], *messages(COUNT, "other ")[20:25]])
    controller(tmp_path / "a", epoch_file("1-0"))
    assert starts(compared(tmp_path / "a", tmp_path / "b")) == ["no", "master"]
    controller(tmp_path / "b", epoch_file("1-0"))
    assert starts(compared(tmp_path / "a", tmp_path / "b")) == ["unknown", "unknown"], "one of the files is old"


EPOCH_DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": lambda root: [(root / name).unlink(missing_ok=True) for name in EPOCH_FILES],
    "backup": lambda root: (root / EPOCH_FILE).unlink(),
    "cut": lambda root: [(root / name).write_bytes((root / name).read_bytes()[:9]) for name in EPOCH_FILES],
    "old": lambda root: (root / EPOCH_FILE).write_text(epoch_file("1-0")),
    "empty": lambda root: [(root / name).write_bytes(b"") for name in EPOCH_FILES],
}


@pytest.mark.parametrize("damage", EPOCH_DAMAGES)
@pytest.mark.parametrize("nodes", ["b1", "b2", "b2 b3", "b1 b2 b3"])
def test_lost_epochs_never_make_the_log_of_an_earlier_master_the_one_to_follow(
    damage: str, nodes: str, case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """b1 has the longest log, and confirmed bytes of it; but b2 was elected later, and b3 follows it."""
    folder = shutil.copytree(case_folder("mq-53-controller"), tmp_path / "group")
    for node in nodes.split():
        EPOCH_DAMAGES[damage](folder / node)
    found = compared(*(folder / name for name in ("b1", "b2", "b3")))
    assert starts(found)[0] in ("no", "slave")
    assert found.log_of in ("b2", "b3")
    assert "confirmed bytes" in lost_text(found.verdict)
    step = step_after_comparison(found, ())
    assert "export" in (step.before if step.step == PLAN else step.arguments)


@pytest.mark.parametrize(("count", "equal_count"), [(COUNT, 20), (30, 10), (20, 0)])
def test_a_slave_that_never_heard_of_an_epoch_copies_equal_bytes_again(
    count: int, equal_count: int, tmp_path: Path
) -> None:
    """It lost nothing, so nothing is to be saved."""
    rows = write_commitlog(tmp_path / "master", messages(COUNT)).rows
    slave = write_commitlog(tmp_path / "slave", messages(count))
    controller(tmp_path / "master", epoch_file("1-0", f"2-{rows[20]['pos']}"))
    controller(tmp_path / "slave", epoch_file("1-0"))
    found = compared(tmp_path / "master", tmp_path / "slave")
    (point,) = [each for each in found.consistent_points if each.slave == "slave"]
    assert (point.pos, point.lost_bytes) == (rows[20]["pos"], 0)
    assert point.equal_bytes == (slave.end - rows[20]["pos"] if equal_count else 0)
    assert starts(found) == ["master", "slave"]
    assert ("RocketMQ issue 9689" in member_text(found.verdict.members[1])) == bool(equal_count)
    assert found.is_lagging_only != bool(equal_count)
    assert step_after_comparison(found, ()).step == CHECK


def test_a_slave_whose_epoch_the_master_has_expired_does_not_follow(tmp_path: Path) -> None:
    master = write_commitlog(tmp_path / "master", messages(COUNT))
    write_commitlog(tmp_path / "slave", messages(30))
    for segment in master.segments[:2]:
        Path(segment.path).unlink()
    controller(tmp_path / "master", epoch_file(f"2-{master.rows[20]['pos']}"))
    controller(tmp_path / "slave", epoch_file("1-0"))
    found = compared(tmp_path / "master", tmp_path / "slave")
    assert starts(found) == ["master", "no"]
    assert "RocketMQ issue 9689); without epochFileCheckpoint and its .bak it follows" in member_text(
        found.verdict.members[1]
    )


def test_damage_after_many_other_rows_counts(tmp_path: Path) -> None:
    """Only the first 1,000 rows are listed; the verdict knows all."""
    small = [mq_message("T", b"x" * 20, queue_offset=n, store_timestamp=1700000000000 + n) for n in range(1100)]
    stores = [write_commitlog(tmp_path / name, small, file_size=1 << 20) for name in "ab"]
    for number in range(0, 1040, 2):
        row = stores[1].rows[number]
        flip(stores[1].segments[0].path, row["pos"] + 90, 2)
    flip(stores[0].segments[0].path, stores[0].rows[1090]["pos"] + 90, 2)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert found.more_rows > 0
    assert starts(found) == ["no", "no"]


# Hostile files


def controller(root: Path, epochs: str, confirmed: int = 0) -> None:
    (root / "epochFileCheckpoint").write_text(epochs)
    (root / "checkpoint").write_bytes(
        StoreCheckpoint(confirm_phy_offset=confirmed).pack().ljust(CHECKPOINT_SIZE, b"\0")
    )


def epoch_file(*lines: str) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return f"{len(lines)}\n{zlib.crc32(text.encode()) & 0x7FFFFFFF}\n{text}"


@pytest.mark.parametrize(
    ("epochs", "code", "problem"),
    [
        ("x", "epochFileUnreadable", "expected the number of epochs, found 'x'"),
        ("", "epochFileUnreadable", "expected the number of epochs, found 'an empty line'"),
        (epoch_file("2-500", "1-0"), "epochsWrong", "found epoch 2 from 500 on, then epoch 1 from 0 on"),
        (epoch_file("1-0", "2-99999999"), "epochsWrong", "found epoch 2 from 99999999 on"),
    ],
)
def test_a_wrong_epoch_file_is_named(epochs: str, code: str, problem: str, tmp_path: Path) -> None:
    for name in "ab":
        write_commitlog(tmp_path / name, messages(20))
        controller(tmp_path / name, epoch_file("1-0"))
    assert starts(compared(tmp_path / "a", tmp_path / "b")) == ["master", "master"]
    assert "epoch" not in "".join(finding.code for finding in open_log(str(tmp_path / "a")).findings())
    controller(tmp_path / "a", epochs)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert starts(found)[0] == "no"
    assert problem in (found.verdict.members[0].epoch_problem or "")
    assert [each.code for each in open_log(str(tmp_path / "a")).findings() if "epoch" in each.code] == [code]


@pytest.mark.parametrize(("confirmed", "is_row"), [(10_000, True), (2**62, False)])
def test_a_confirmed_offset_after_the_end_is_a_lost_end(confirmed: int, is_row: bool, tmp_path: Path) -> None:
    for name in "ab":
        write_commitlog(tmp_path / name, messages(20))
        controller(tmp_path / name, epoch_file("1-0"), confirmed if name == "a" else 0)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert starts(found) == ["no", "master"]
    assert [(each.node, each.is_row) for each in found.lost_ends] == [("a", is_row)]
    assert bool(found.verdict.lost_entries.entries) == is_row
    assert "confirmedBeyondEnd" in {each.code for each in open_log(str(tmp_path / "a")).findings()}


def test_lost_ranges_that_adjoin_are_one_message_and_a_lone_short_one_was_a_blank() -> None:
    """Ranges end where logs of other replicas do."""

    def lost_range(first: int, last: int) -> CopyRange:
        return CopyRange(first, last, (Copy(DAMAGED, 0),), (-1,), last - first + 1, True, False, False)

    parts = [lost_range(0, 16), lost_range(17, MIN_MESSAGE_SIZE)]
    assert LogEvidence(parts, MIN_MESSAGE_SIZE).lost.ranges == [(0, MIN_MESSAGE_SIZE)]
    assert LogEvidence(parts[:1], MIN_MESSAGE_SIZE).lost.ranges == []


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    for name in "ab":
        write_commitlog(tmp_path / name, messages(20))
        os.mkfifo(tmp_path / name / "checkpoint")
    log = open_log(str(tmp_path / "a"))
    assert "not a file" in (log.state.problem or "")
    found = compared(tmp_path / "a", tmp_path / "b")
    assert starts(found) == ["unknown", "unknown"]
    assert found.verdict.members[0].unreadable == ("checkpoint cannot be read (not a file)",)


# What cannot be read


@pytest.mark.parametrize("file", ["checkpoint", "consumequeue/Orders/0/00000000000000000000", "consumequeue/Orders/0"])
def test_what_cannot_be_read_leaves_the_verdict_open(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        write_consume_queue(root, write_commitlog(root, messages(20)).rows)
        (root / "checkpoint").write_bytes(bytes(CHECKPOINT_SIZE))
    hidden = roots[0] / file
    hidden.rename(tmp_path / "hidden")
    hidden.symlink_to("nowhere")
    found = compared(*roots)
    assert starts(found) == ["unknown", "master"]
    assert [text.partition(" ")[0] for text in found.verdict.members[0].unreadable] == [file]
    assert lost_text(found.verdict) == "cannot tell if a log was longer: files of a cannot be read"
    assert main(["diff", *map(str, roots)]) == 1
    printed = capsys.readouterr().out
    assert f"\na cannot tell if it may start: {file} cannot be read" in printed
    assert f"\nnext: dledger verify {roots[0]} --least warning\n  it lists the files that cannot be read" in printed
    assert main(["diff", *map(str, roots), "--json"]) == 1
    assert f"{roots[0]}: {file} cannot be read" in capsys.readouterr().err
    assert main(["report", *map(str, roots), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["findings"]["counts"]["unreadableFile"] == 1
    assert main(["report", *map(str, roots), "--json", "--redact"]) == 1
    report = capsys.readouterr().out
    assert "cannot be read" in report and "Orders" not in report


# The only copy left


@pytest.mark.parametrize("others", ["damaged", "without the file"])
def test_the_only_copy_left_must_be_what_its_queue_knows(others: str, tmp_path: Path) -> None:
    """The CRC of a message covers its body only: another topic can be damage."""
    stores = {name: write_commitlog(tmp_path / name, messages(COUNT)) for name in "ab"}
    for store in stores.values():
        write_consume_queue(store.path, store.rows)
    row = stores["a"].rows[20]
    segment = next(each for each in stores["a"].segments if each.name == row["segment"])
    if others == "damaged":
        flip(segment.path.replace("/a/", "/b/"), row["pos"] - segment.base + 150, 2)
    else:
        Path(segment.path.replace("/a/", "/b/")).unlink()
    found = compared(tmp_path / "a", tmp_path / "b")
    assert (starts(found), lost_text(found.verdict)) == (["master", "no"], "nothing")
    flip(segment.path, Path(segment.path).read_bytes().index(b"Orders", row["pos"] - segment.base), 2)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert starts(found) == ["unknown", "no"]
    assert found.verdict.unclear_entries.ranges == ((row["pos"], row["pos"] + row["size"] - 1),)
    assert not found.verdict.lost_entries.entries


def test_the_only_copy_left_need_not_be_in_a_queue_that_is_behind(tmp_path: Path) -> None:
    for name in "ab":
        store = write_commitlog(tmp_path / name, messages(COUNT))
        write_consume_queue(tmp_path / name, store.rows[: COUNT - 3])
    for number, start in ((COUNT - 2, "master"), (COUNT - 9, "unknown")):
        row = store.rows[number]
        segment = next(each for each in store.segments if each.name == row["segment"])
        flip(segment.path, row["pos"] - segment.base + 150, 2)
        if start == "unknown":
            unit = tmp_path / "a" / "consumequeue" / "Orders" / "0" / f"{0:020}"
            flip(str(unit), number * 20 + 7, 2)
            flip(str(unit).replace("/a/", "/b/"), number * 20 + 7, 2)
        assert starts(compared(tmp_path / "a", tmp_path / "b")) == [start, "no"]


def test_copies_that_differ_where_another_is_damaged_are_unclear(tmp_path: Path) -> None:
    stores = [write_commitlog(tmp_path / name, messages(20)) for name in "abc"]
    row = stores[0].rows[3]
    flip(stores[0].segments[0].path, row["pos"] + 150, 2)
    flip(stores[1].segments[0].path, row["pos"] + 50, 2)
    found = compared(*(tmp_path / name for name in "abc"))
    assert starts(found) == ["no", "unknown", "unknown"]
    assert found.verdict.unclear_entries.ranges == ((row["pos"], row["pos"] + row["size"] - 1),)
