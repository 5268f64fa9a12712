"""Comparison of CommitLogs without DLedger: damage, lags, lost ends, two masters, epochs and consistent points."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import zlib
from collections.abc import Callable, Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.format.state_files import Epoch, consistent_point, diverged_at, parse_epochs
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison, compare_commit_logs
from pyspark_dledger.log.io.state_files import read_epochs
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.store_tables import DIFF, diff_rows
from tests.support.damage import flip
from tests.support.generate import Store, mq_message, write_commitlog, write_consume_queue
from tests.support.golden import GOLDENS
from tests.support.sparse_copy import copy_tree

Unpack = Callable[[str], Path]
Short = tuple[str, int, int, tuple[str, ...], tuple[str, ...]]


def messages(count: int, first: int = 0, text: str = "", size: int = 400) -> list[Any]:
    """Messages of one queue, each with a body of its own."""
    return [
        mq_message(
            "Orders", f"{text}{n} ".encode().ljust(size, b"x"), queue_offset=n, store_timestamp=1700000000000 + n
        )
        for n in range(first, first + count)
    ]


def write(root: Path, payloads: list[Any], with_queue: bool = False) -> Store:
    store = write_commitlog(root, payloads)
    if with_queue:
        write_consume_queue(root, store.rows)
    return store


def opened(paths: Iterable[Path], engine: str = "auto") -> Log:
    first, *others = map(str, paths)
    return open_log(first, replicas=others, engine=engine)


def compared(paths: Iterable[Path], engine: str = "auto") -> CommitLogComparison:
    log = opened(paths, engine)
    found = compare_commit_logs(log)
    assert found is not None
    parts = pickle.loads(pickle.dumps(DIFF.plan(log, log.options)))
    assert tuple(row for part in parts for row in diff_rows(StoreView(*part))) == found.rows
    return found


def short(found: CommitLogComparison) -> list[Short]:
    """Verdict, positions, nodes and donors of the rows, with the folders' names."""
    return [
        (
            row.verdict,
            row.first_pos,
            row.last_pos,
            tuple(Path(node).name for node in row.nodes),
            tuple(Path(node).name for node in row.terms),
        )
        for row in found.rows
    ]


def flip_row(store: Store, number: int, offset: int) -> tuple[int, int]:
    """Flip a bit of a message; returns its first and last position."""
    row = store.rows[number]
    segment = next(segment for segment in store.segments if segment.name == row["segment"])
    at = row["pos"] - segment.base + offset
    flip(segment.path, at)
    return row["pos"], row["pos"] + row["size"] - 1


def orders(paths: list[Path]) -> list[tuple[Path, ...]]:
    return list(permutations(paths))


def test_equal_replicas_are_the_same(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(30)) for name in "ab"]
    found = compared([store.path for store in stores], engine)
    assert short(found) == [("same", 0, stores[0].end - 1, ("a", "b"), ("a", "b"))]
    assert found.rows[0].messages == 30
    assert found.is_lagging_only
    assert found.first_difference is None
    assert found.common_prefix == stores[0].end


def test_a_damaged_body_is_damaged_in_any_order(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(30)) for name in "abc"]
    low, high = flip_row(stores[0], 12, 100)
    for paths in orders([store.path for store in stores]):
        found = compared(paths, engine)
        (row,) = (row for row in found.rows if row.verdict != "same")
        assert (row.verdict, row.first_pos, row.last_pos) == ("damaged", low, high)
        assert ([Path(node).name for node in row.nodes], {Path(node).name for node in row.terms}) == (["a"], {"b", "c"})
        first = found.first_difference
        assert first is not None
        assert (first.pos, first.byte, first.topic, first.queue_id, first.queue_offset) == (
            low,
            low + 100,
            "Orders",
            0,
            12,
        )
        assert {Path(node).name for node in first.places} == {"a", "b", "c"}
        assert found.common_prefix == low
        assert not found.verdict.lost_entries.entries
        assert not found.is_lagging_only


@pytest.mark.parametrize("offset", [0, 4, 30, 95])
def test_two_replicas_with_one_damaged_header_or_body(tmp_path: Path, engine: str, offset: int) -> None:
    stores = [write(tmp_path / name, messages(30)) for name in "ab"]
    low, high = flip_row(stores[1], 7, offset)
    for paths in orders([store.path for store in stores]):
        found = compared(paths, engine)
        rows = [each for each in short(found) if each[0] != "same"]
        assert [each[:4] for each in rows] == [("damaged", low, high, ("b",))]
        assert rows[0][4] == ("a",)


def test_bytes_that_no_checksum_covers_blame_nobody(tmp_path: Path, engine: str) -> None:
    """With two replicas nothing decides; with three most do."""
    stores = [write(tmp_path / name, messages(30)) for name in "abc"]
    low, high = flip_row(stores[1], 7, 16)  # flag
    paths = [store.path for store in stores]
    two = [each for each in short(compared(paths[:2], engine)) if each[0] != "same"]
    assert [each[:4] for each in two] == [("otherBytes", low, high, ("a", "b"))]
    all_three = compared(paths, engine)
    three = [each for each in short(all_three) if each[0] != "same"]
    assert [each[:4] for each in three] == [("otherBytes", low, high, ("b",))]
    assert all_three.first_difference is not None
    assert all_three.first_difference.difference == f"flag: a and c 0, b {1 << 24}"


def test_a_message_damaged_everywhere_is_lost_for_good(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(30)) for name in "ab"]
    low, high = flip_row(stores[0], 12, 100)
    flip_row(stores[1], 12, 200)
    found = compared([store.path for store in stores], engine)
    assert found.verdict.lost_entries.ranges == ((low, high),)
    shutil.rmtree(stores[1].path)
    copy_tree(stores[0].path, stores[1].path)
    found = compared([store.path for store in stores], engine)
    assert found.verdict.lost_entries.ranges == ((low, high),), "files of the same times are of a copied folder"
    for file in Path(stores[1].path).rglob("*"):
        os.utime(file)
    found = compared([store.path for store in stores], engine)
    # Equal copies of two replicas of which the check fails may have been written so.
    assert (found.verdict.lost_entries.ranges, found.verdict.unclear_entries.ranges) == ((), ((low, high),))
    assert [member.start for member in found.verdict.members] == ["unknown", "unknown"]


def test_a_slave_that_lags_is_no_finding(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / "a", messages(30), True), write(tmp_path / "b", messages(20), True)]
    for paths in orders([store.path for store in stores]):
        found = compared(paths, engine)
        assert [each[0] for each in short(found)] == ["same", "behind"]
        assert short(found)[1][1:4] == (stores[1].end, stores[0].end - 1, ("b",))
        assert found.is_lagging_only


def test_a_store_without_its_last_file_lost_it_if_its_queues_know(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(30), True) for name in "ab"]
    last = stores[1].segments[-1]
    Path(last.path).unlink()
    for paths in orders([store.path for store in stores]):
        found = compared(paths, engine)
        rows = [each for each in short(found) if each[0] != "same"]
        assert [(each[0], *each[2:]) for each in rows] == [("damaged", stores[0].end - 1, ("b",), ("a",))]
        (lost,) = found.lost_ends
        assert (lost.node, lost.is_row) == ("b", True)
        assert lost.proof.startswith("its ConsumeQueue shows messages up to ")
        assert not found.is_lagging_only


def test_a_missing_and_a_short_file(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(30)) for name in "ab"]
    second, third = stores[1].segments[1:3]
    Path(second.path).unlink()
    os.truncate(third.path, 1000)
    found = compared([store.path for store in stores], engine)
    state = found.states[1]
    assert state.missing == ((second.base, second.end),)
    assert state.short == (f"commitlog/{third.name}",)
    damaged = [each for each in short(found) if each[0] == "damaged"]
    assert damaged[0][1] == second.base
    assert all(each[3] == ("b",) and each[4] == ("a",) for each in damaged)
    assert third.base < damaged[-1][2] < third.end


def test_expired_files_are_no_difference(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(30)) for name in "ab"]
    Path(stores[1].segments[0].path).unlink()
    found = compared([store.path for store in stores], engine)
    assert [each[:4] for each in short(found)] == [
        ("expired", 0, stores[0].segments[0].end - 1, ("b",)),
        ("same", stores[0].segments[1].base, stores[0].end - 1, ("a", "b")),
    ]
    assert found.is_lagging_only


def test_what_stands_after_a_blank_does_not_count(tmp_path: Path, engine: str) -> None:
    stores = [
        write_commitlog(tmp_path / name, messages(30), stale=stale)
        for name, stale in (("a", None), ("b", lambda size: b"\x07" * size))
    ]
    found = compared([store.path for store in stores], engine)
    assert {each[0] for each in short(found)} == {"same"}


def test_two_masters_diverge(tmp_path: Path, engine: str) -> None:
    common = messages(10)
    stores = [
        write(tmp_path / "a", [*common, *messages(12, 10, "mine ", 300)]),
        write(tmp_path / "b", [*common, *messages(15, 10, "other ", 420)]),
    ]
    at = stores[0].rows[10]["pos"]
    for paths in orders([store.path for store in stores]):
        found = compared(paths, engine)
        rows = [row for row in found.rows if row.verdict == "diverged"]
        assert found.common_prefix == rows[0].first_pos == at
        assert {Path(node).name for row in rows for node in row.nodes} == {"a"}, "the longer one is followed"
        assert not found.verdict.lost_entries.entries


# Controller mode


def write_epochs(root: Path, *epochs: tuple[int, int]) -> None:
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs)
    crc = zlib.crc32(lines.encode()) & 0x7FFFFFFF
    (root / "epochFileCheckpoint").write_text(f"{len(epochs)}\n{crc}\n{lines}")


def test_the_golden_of_controller_mode(case_folder: Unpack, engine: str) -> None:
    folder = case_folder("mq-53-controller")
    said = json.loads((GOLDENS / "mq-53-controller.meta.json").read_text())["harnessSaid"]
    for paths in orders([folder / name for name in ("b1", "b2", "b3")]):
        found = compared(paths, engine)
        assert [
            (row.verdict, row.first_pos, row.last_pos, {Path(node).name: epoch for node, epoch in row.terms.items()})
            for row in found.rows
        ] == [
            ("same", 0, 57139, {"b1": 1, "b2": 1, "b3": 1}),
            ("diverged", 57140, 108350, {"b1": 1, "b2": 4, "b3": 4}),
            ("diverged", 108351, 216198, {"b1": 1}),
            ("diverged", 216199, 231821, {"b1": 3}),
        ]
        assert all({Path(node).name for node in row.nodes} == {"b1"} for row in found.rows[1:])
        assert found.common_prefix == 57140
        points = {(Path(each.slave).name, Path(each.master).name): each.pos for each in found.consistent_points}
        assert points == {
            (each["of"], each["with"]): each["offset"] for each in said if each.get("kind") == "consistentPoint"
        }
        lost = {(Path(each.slave).name, Path(each.master).name): each.lost_bytes for each in found.consistent_points}
        assert lost["b1", "b2"] == 231822 - 57140
        assert found.epochs[1] == {"b1": (0, 216199), "b2": (0, 57140), "b3": (0, 57140)}
        confirmed = {Path(each.node).name: each.confirm_offset for each in found.states}
        assert confirmed == {"b1": 216199, "b2": 108351, "b3": 108351}


def test_epoch_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    write_epochs(tmp_path, (1, 0), (3, 500))
    assert read_epochs(tmp_path) == ((Epoch(1, 0), Epoch(3, 500)), "epochFileCheckpoint")
    write_epochs(tmp_path, (3, 500), (1, 0), (3, 700))
    assert read_epochs(tmp_path)[0] == (Epoch(1, 0), Epoch(3, 700)), "a sorted map, in which the last one counts"
    (tmp_path / "epochFileCheckpoint.bak").write_text("1\n1725254278\n1-0\n")
    for damage in (
        *("", "x\n", "1\n1-0\n", "2\n1725254278\n1-0\n", "1\n1725254279\n1-0\n", f"{'9' * 5000}\n0\n1-0\n"),
        *("1\n0\n9999999999-0\n", "1\n0\n1-9999999999999999999\n", "\n\n\n"),
    ):
        (tmp_path / "epochFileCheckpoint").write_text(damage)
        assert isinstance(parse_epochs(damage.encode()), str)
        assert read_epochs(tmp_path) == ((Epoch(1, 0),), "epochFileCheckpoint.bak")
    assert parse_epochs(b"1\n0\n1-0\n") == (Epoch(1, 0),), "0 is not checked"
    assert read_epochs(tmp_path / "none")[0] == ()


def test_consistent_points() -> None:
    one, other = [Epoch(1, 0), Epoch(3, 500)], [Epoch(1, 0), Epoch(4, 300)]
    assert consistent_point(one, 900, other, 700) == 300
    assert consistent_point(other, 700, one, 900) == 300
    assert consistent_point(one, 900, one, 700) == 700
    assert consistent_point([Epoch(2, 0)], 900, one, 700) is None


def test_epochs_tell_where_logs_diverged() -> None:
    common = [Epoch(3, 0), Epoch(4, 4383)]
    assert diverged_at([*common, Epoch(5, 9000)], [*common, Epoch(6, 9269)]) == 9000
    assert diverged_at([*common, Epoch(5, 9000)], common) == 9000
    assert diverged_at(common, common) is None
    assert diverged_at([Epoch(1, 0)], [Epoch(2, 0)]) is None


def test_different_bytes_before_the_consistent_point_are_named(tmp_path: Path, engine: str) -> None:
    stores = [write(tmp_path / name, messages(20)) for name in "ab"]
    for store in stores:
        write_epochs(store.path, (1, 0))
    flip_row(stores[1], 4, 200)
    found = compared([store.path for store in stores], engine)
    assert {(each.pos, each.is_common) for each in found.consistent_points} == {(stores[0].end, False)}


def test_random_damage_never_blames_the_intact_copy(tmp_path: Path) -> None:
    """Bytes that a CRC or the structure covers: the damaged copy is named, in any order."""
    source = random.Random(17)
    for round_number in range(30):
        stores = [write(tmp_path / f"{round_number}" / name, messages(20)) for name in "ab"]
        for _ in range(source.randrange(1, 4)):
            flip_row(stores[0], source.randrange(20), source.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 30, 88, 120, 300]))
        paths = [store.path for store in stores]
        source.shuffle(paths)
        for row in compared(paths).rows:
            if row.verdict != "same":
                names = {Path(node).name for node in row.nodes}
                assert (row.verdict, names) == ("damaged", {"a"}), row


def test_the_old_part_of_an_upgraded_store_is_compared(case_folder: Unpack, tmp_path: Path) -> None:
    original = case_folder("mq-53-upgrade")
    copy = copy_tree(original, tmp_path / "copy")
    log = opened([original, copy])
    verdicts = [row.verdict for row in diff_rows(log)]
    assert verdicts[0] == "same"
    assert set(verdicts) <= {"same", "committed"}
    file = copy / "commitlog" / f"{131072:020}"
    flip(file, 120)
    for paths in ([original, copy], [copy, original]):
        found = compared_old(paths)
        damaged = [row for row in found.rows if row.verdict == "damaged"]
        assert [(row.first_pos, row.nodes) for row in damaged] == [(131072, ("copy",))]
        assert all(row.last_pos < 393216 for row in found.rows)


def compared_old(paths: list[Path]) -> CommitLogComparison:
    """The result for the old CommitLogs of upgraded stores."""
    found = compare_commit_logs(opened(paths))
    assert found is not None
    return found


@pytest.mark.parametrize("offset", [12, 27, 88 + 400 + 1])
def test_queues_decide_about_bytes_without_a_checksum(tmp_path: Path, engine: str, offset: int) -> None:
    """The queue id, the queue offset and the topic of a message."""
    stores = [write(tmp_path / name, messages(30), True) for name in "ab"]
    low, high = flip_row(stores[0], 7, offset)
    for paths in orders([store.path for store in stores]):
        rows = [each for each in short(compared(paths, engine)) if each[0] != "same"]
        assert rows == [("damaged", low, high, ("a",), ("b",))]
    shutil.rmtree(stores[0].path / "consumequeue")
    rows = [each for each in short(compared([store.path for store in stores], engine)) if each[0] != "same"]
    assert rows == [("damaged", low, high, ("a",), ("b",))], "the queues of either replica count"
    shutil.rmtree(stores[1].path / "consumequeue")
    rows = [each for each in short(compared([store.path for store in stores], engine)) if each[0] != "same"]
    assert [each[:4] for each in rows] == [("otherBytes", low, high, ("a", "b"))]


def test_queues_decide_about_damaged_tags(case_folder: Unpack, tmp_path: Path) -> None:
    original = case_folder("mq-plain")
    copy = copy_tree(original, tmp_path / "copy")
    file = copy / "commitlog" / f"{131072:020}"
    data = bytearray(file.read_bytes())
    at = data.index(b"TAGS\x01", data.index(b"OrderTopic")) + 5
    data[at] ^= 1
    file.write_bytes(data)
    for paths in ([original, copy], [copy, original]):
        rows = [each for each in short(compared_old(paths)) if each[0] != "same"]
        assert [(each[0], each[3]) for each in rows] == [("damaged", ("copy",))]
        assert rows[0][1] < 131072 + at < rows[0][2]


def test_damage_of_diverged_logs_has_no_donor_of_another_master(case_folder: Unpack, tmp_path: Path) -> None:
    """b1 wrote its own messages; b2 and b3 have the same ones."""
    for name, donors in (("b3", ["b2"]), ("b1", None)):
        folder = tmp_path / name
        copy_tree(case_folder("mq-53-controller"), folder)
        file = folder / name / "commitlog" / f"{0:020}"
        flip(file, 70_000)
        for paths in orders([folder / each for each in ("b1", "b2", "b3")]):
            found = compared(paths)
            row = next(row for row in found.rows if row.first_pos <= 70_000 <= row.last_pos)
            assert row.damaged == (name,)
            assert not found.verdict.lost_entries.entries
            if donors is not None:
                assert (row.verdict, row.nodes, list(row.terms), list(row.intact)) == (
                    "damaged",
                    (name,),
                    donors,
                    donors,
                )
            else:
                assert (row.verdict, row.nodes, row.intact) == ("diverged", (name,), ())


def test_a_store_without_its_last_file_and_without_queues(tmp_path: Path, engine: str) -> None:
    """The blank at the end of a file shows that another one followed."""
    stores = [write(tmp_path / name, messages(30)) for name in "ab"]
    Path(stores[1].segments[-1].path).unlink()
    found = compared([store.path for store in stores], engine)
    assert [each[0] for each in short(found)] == ["same", "behind"]
    assert [(each.node, each.proof) for each in found.lost_ends] == [
        ("b", "its last file ends with a blank, so a later one existed")
    ]
    assert not found.is_lagging_only
