"""Opening a store: its files, its end, its committed index, and the ranges that a read plans."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.common.uris import local_target
from pyspark_dledger.errors import MalformedError, OptionError, StoreError
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log import open_log
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import read_partition
from pyspark_dledger.store import StoreConfig
from tests.support.damage import write_at
from tests.support.generate import (
    Store,
    mq_message,
    raw,
    rows_of,
    write_commitlog,
    write_consume_queue,
    write_dledger,
)
from tests.support.sparse_copy import copy_tree

FILE = 4096
DATA = Path("dledger-n0/data")


def entries(count: int, size: int = 500) -> list[Any]:
    return [raw(bytes([65 + number % 26]) * size) for number in range(count)]


def messages(count: int, topic: str = "Orders") -> list[Any]:
    return [mq_message(topic, b"body %d" % number, queue_offset=number) for number in range(count)]


def indexes(path: Path, **options: Any) -> list[int]:
    """The indexes of the rows of a scan."""
    return [row["index"] for row in rows_of(open_log(path, **options).scan(["index"]))]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Twenty entries in three files: 7, 7 and 6."""
    return write_dledger(tmp_path / "root", entries(20), committed=11)


# Finding


@pytest.mark.parametrize("part", ["", "dledger-n0", "dledger-n0/data"])
def test_every_folder_of_a_store_opens_it(store: Store, part: str) -> None:
    log = open_log(store.path / part)
    assert [row["index"] for row in rows_of(log.scan())] == list(range(20))
    assert (log.state.node, log.state.committed_index) == ("n0", 11)


def test_a_segment_file_has_its_own_rows(store: Store) -> None:
    log = open_log(store.path / DATA / f"{FILE:020}")
    assert [row["index"] for row in rows_of(log.scan())] == list(range(7, 14))
    assert log.state.committed_index == 11


def test_a_copied_segment_with_another_name_finds_its_position(store: Store, tmp_path: Path, engine: str) -> None:
    copy = tmp_path / "incident.bin"
    shutil.copy(store.path / DATA / f"{FILE:020}", copy)
    rows = rows_of(open_log(copy, engine=engine).scan(["index", "pos", "segment", "problem"]))
    assert [row["index"] for row in rows] == list(range(7, 14))
    assert rows[0] == {"index": 7, "pos": FILE, "segment": "incident.bin", "problem": None}


def test_a_commitlog_folder_has_only_the_old_messages(tmp_path: Path, engine: str) -> None:
    old = write_commitlog(tmp_path, messages(40))
    write_dledger(tmp_path, messages(10), base=FILE * len(old.segments))
    rows = rows_of(open_log(tmp_path / "commitlog", engine=engine).scan(["source"]))
    assert len(rows) == 40 and {row["source"] for row in rows} == {"commitlog"}


def test_old_messages_come_before_the_divided_offset(tmp_path: Path, engine: str) -> None:
    old = write_commitlog(tmp_path, messages(40))
    divided = FILE * len(old.segments)
    write_dledger(tmp_path, messages(10), base=divided)
    log = open_log(tmp_path, engine=engine)
    rows = rows_of(log.scan(["source", "pos", "index", "committed"]))
    assert log.state.divided_commitlog_offset == divided
    assert [row["source"] for row in rows] == ["commitlog"] * 40 + ["dledger"] * 10
    assert all((row["pos"] < divided) == (row["source"] == "commitlog") for row in rows)


def test_without_dledger_files_the_divided_offset_is_the_end_of_the_last_old_file(tmp_path: Path) -> None:
    old = write_commitlog(tmp_path, messages(40))
    (tmp_path / DATA).mkdir(parents=True)
    assert open_log(tmp_path).state.divided_commitlog_offset == FILE * len(old.segments)


def test_a_plain_store_has_no_divided_offset(tmp_path: Path) -> None:
    write_commitlog(tmp_path, messages(4))
    assert open_log(tmp_path).state.divided_commitlog_offset == -1


def test_data_folders_of_a_multi_path_store_are_one_log(tmp_path: Path, engine: str) -> None:
    store = write_dledger(tmp_path, entries(30))
    folders = [tmp_path / "disk0", tmp_path / "disk1"]
    for number, segment in enumerate(store.segments):
        folders[number % 2].mkdir(exist_ok=True)
        shutil.move(segment.path, folders[number % 2])
    (tmp_path / DATA).rmdir()
    assert indexes(tmp_path, dataDirs=[str(folder) for folder in folders], engine=engine) == list(range(30))


def test_an_error_asks_for_the_folders_of_relocated_data(tmp_path: Path) -> None:
    write_dledger(tmp_path, entries(3))
    shutil.rmtree(tmp_path / DATA)
    with pytest.raises(StoreError, match=r"expected a data/ folder .*dataDirs"):
        open_log(tmp_path)


def test_one_of_several_nodes_is_chosen(tmp_path: Path) -> None:
    write_dledger(tmp_path, entries(3), node="n0")
    write_dledger(tmp_path, entries(5), node="n1")
    assert len(indexes(tmp_path, selfId="n1")) == 5
    with pytest.raises(StoreError, match=r"found n0, n1: choose one with the option selfId"):
        open_log(tmp_path)
    with pytest.raises(StoreError, match=r"expected a node n7 \(selfId\), found n0, n1"):
        open_log(tmp_path, selfId="n7")


def test_a_path_that_is_not_utf8_is_rejected(tmp_path: Path, store: Store) -> None:
    bad = tmp_path / os.fsdecode(b"caf\xe9")
    copy_tree(store.path, bad)
    for part in ("", DATA, DATA / f"{FILE:020}"):
        with pytest.raises(StoreError, match=r"/caf\\xe9.*: expected a path in UTF-8, .* another name by a link"):
            open_log(bad / part)
    with pytest.raises(StoreError, match="expected a path in UTF-8"):
        open_log(store.path, dataDirs=[str(bad / DATA)])
    (tmp_path / "link").symlink_to(bad)
    assert indexes(tmp_path / "link") == list(range(20))
    (store.path / "dledger-n0").rename(store.path / os.fsdecode(b"dledger-\xe9"))
    with pytest.raises(StoreError, match="expected a path in UTF-8"):
        open_log(store.path)


def test_a_target_path_must_be_utf8(tmp_path: Path) -> None:
    bad = str(tmp_path / os.fsdecode(b"caf\xe9"))
    with pytest.raises(OptionError, match=r"^target .*/caf\\xe9: expected a path in UTF-8, .*: choose another"):
        local_target(bad)
    for wrong in ({"base_dir": bad}, {"data_dirs": (bad,)}, {"self_id": os.fsdecode(b"\xe9")}):
        with pytest.raises(OptionError, match="expected a path in UTF-8"):
            StoreConfig(**{"base_dir": tmp_path, **wrong})
    assert not list(tmp_path.iterdir())


def test_a_path_without_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="found nothing there"):
        open_log(tmp_path / "missing")
    with pytest.raises(StoreError, match="found an empty folder"):
        open_log(tmp_path)
    (tmp_path / "notes.txt").write_text("no store")
    with pytest.raises(StoreError, match=r"found notes.txt: this is not a store"):
        open_log(tmp_path)


def test_a_pattern_is_no_store(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for pattern, found in {
        "*": f"a pattern of {tmp_path}/a, {tmp_path}/b: a log is one store",
        "c*": "a pattern: a log is one store",
        "{a,b}": "a pattern: a log is one store",
    }.items():
        with pytest.raises(StoreError, match=re.escape(f"found {found}")):
            open_log(tmp_path / pattern)
    (tmp_path / "[c]").mkdir()
    with pytest.raises(StoreError, match="found an empty folder"):
        open_log(tmp_path / "[c]")


def test_a_folder_of_stores_lists_them(tmp_path: Path) -> None:
    write_dledger(tmp_path / "replica-a", entries(3))
    write_dledger(tmp_path / "replica-b", entries(3))
    with pytest.raises(StoreError, match=r"found stores in replica-a, replica-b: give the path of one of them"):
        open_log(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_named(store: Store) -> None:
    (store.path / "dledger-n0").chmod(0)
    try:
        with pytest.raises(StoreError, match="Permission denied"):
            open_log(store.path)
    finally:
        (store.path / "dledger-n0").chmod(0o755)


def test_an_empty_log_has_no_rows(tmp_path: Path, engine: str) -> None:
    (tmp_path / DATA).mkdir(parents=True)
    assert indexes(tmp_path, engine=engine) == []
    (tmp_path / DATA / f"{0:020}").write_bytes(bytes(FILE))
    assert indexes(tmp_path, engine=engine) == []


@pytest.mark.parametrize("name", ["README.md", "checkpoint"])
def test_a_file_that_is_not_a_segment_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("committedIndex=5, and more text than an entry's header has bytes")
    with pytest.raises(StoreError, match="expected a segment, whose name has 20 digits"):
        open_log(tmp_path / name)


def test_the_index_folder_is_not_a_log(store: Store) -> None:
    with pytest.raises(StoreError, match="found the index of a node: give the node's folder"):
        open_log(store.path / "dledger-n0/index")


def test_damage_at_the_beginning_of_the_last_file_hides_no_entry(tmp_path: Path) -> None:
    size = 16 * 1024 * 1024
    store = write_dledger(tmp_path, [raw(b"x" * 60000)] * 500, file_size=size)
    write_at(store.segments[-1].path, 0, b"\xee" * (3 * 1024 * 1024) + bytes(6 * 1024 * 1024))
    found = indexes(tmp_path)
    assert found[-1] == 499 and None in found


def test_a_file_of_noise_is_a_corrupt_row(tmp_path: Path, engine: str) -> None:
    (tmp_path / DATA).mkdir(parents=True)
    (tmp_path / DATA / f"{0:020}").write_bytes(b"noise" * 1000)
    rows = rows_of(open_log(tmp_path, engine=engine).scan(["kind", "pos", "size"]))
    assert rows == [{"kind": "corrupt", "pos": 0, "size": 5000}]


def test_an_unknown_column_names_the_nearest(store: Store) -> None:
    with pytest.raises(OptionError, match="unknown column Topic: the nearest is topic"):
        open_log(store.path).scan(["Topic"])


# Missing, short and foreign files


def test_a_missing_file_is_a_corrupt_row_for_its_bytes(store: Store, engine: str) -> None:
    (store.path / DATA / f"{FILE:020}").unlink()
    rows = rows_of(open_log(store.path, engine=engine).scan(["index", "kind", "pos", "size", "segment", "problem"]))
    assert [row["index"] for row in rows] == [*range(7), None, *range(14, 20)]
    assert rows[7] == {
        "index": None,
        "kind": "corrupt",
        "pos": FILE,
        "size": FILE,
        "segment": f"{FILE:020}",
        "problem": f"expected the segment {FILE:020} and {FILE} bytes up to {2 * FILE}, found no file",
    }


def test_a_missing_file_is_an_error_only_with_failfast(store: Store) -> None:
    (store.path / DATA / f"{FILE:020}").unlink()
    assert len(indexes(store.path, mode="DROPMALFORMED")) == 13
    with pytest.raises(MalformedError, match="found no file"):
        indexes(store.path, mode="FAILFAST")


def test_a_gap_passes_only_filters_on_its_columns(store: Store) -> None:
    (store.path / DATA / f"{FILE:020}").unlink()
    log = open_log(store.path)
    options = parse_options({})

    def kinds(filters: Filters) -> list[str]:
        partitions = log.plan(("kind",), options, filters)
        return [row["kind"] for part in partitions for row in rows_of(read_partition(part))]

    assert kinds(Filters(kind=("corrupt",))) == ["corrupt"]
    assert kinds(Filters(pos=IntFilter(FILE, FILE))) == ["corrupt"]
    assert kinds(Filters(topic=("Orders",))) == []
    assert "corrupt" not in kinds(Filters(index=IntFilter(0, 100)))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_short_file_ends_in_a_corrupt_row(store: Store, engine: str, number: int) -> None:
    file = store.path / DATA / f"{number * FILE:020}"
    os.truncate(file, 1000)
    rows = rows_of(open_log(store.path, engine=engine).scan(["index", "kind", "pos", "size", "problem"]))
    assert [row["index"] for row in rows if row["pos"] // FILE == number] == [7 * number, None]
    (corrupt,) = (row for row in rows if row["kind"] == "corrupt")
    assert corrupt["pos"] + corrupt["size"] == (number + 1) * FILE
    assert corrupt["problem"] == f"expected {FILE} bytes in {number * FILE:020}, found 1000"
    assert len(rows) == 20 - (5 if number == 2 else 6) + 1


def test_foreign_files_are_not_segments(store: Store) -> None:
    (store.path / DATA / "notes.txt").write_text("copied by hand")
    (store.path / DATA / "00000000000000000000.bak").write_bytes(bytes(100))
    (store.path / DATA / "sub").mkdir()
    assert indexes(store.path) == list(range(20))


def test_a_file_far_away_makes_no_gap(store: Store) -> None:
    (store.path / DATA / "09000000000000000000").write_bytes(bytes(FILE))
    with pytest.raises(StoreError, match=r"09000000000000000000.*move it away"):
        open_log(store.path)


# The end of the log


def test_a_torn_last_entry_is_not_a_row(store: Store, engine: str) -> None:
    last = store.rows[-1]
    file = store.path / DATA / last["segment"]
    write_at(file, last["pos"] % FILE, bytes(20))
    log = open_log(store.path, engine=engine)
    assert [row["index"] for row in rows_of(log.scan())] == list(range(19))
    assert (log.state.end_index, log.state.max_offset) == (18, last["pos"])


def test_damage_in_the_last_file_is_not_its_end(store: Store, engine: str) -> None:
    damaged = store.rows[15]
    write_at(store.path / DATA / damaged["segment"], damaged["pos"] % FILE, b"\xee" * 40)
    log = open_log(store.path, engine=engine)
    rows = rows_of(log.scan(["index", "kind"]))
    assert [row["index"] for row in rows] == [*range(15), None, *range(16, 20)]
    assert rows[15]["kind"] == "corrupt" and log.state.end_index == 19


def test_a_file_created_ahead_is_not_read(store: Store, engine: str) -> None:
    (store.path / DATA / f"{3 * FILE:020}").write_bytes(bytes(FILE))
    assert indexes(store.path, engine=engine) == list(range(20))


# Committed


def committed(path: Path, **options: Any) -> tuple[int | None, str | None]:
    state = open_log(path, **options).state
    return state.committed_index, state.committed_from


def test_the_checkpoint_has_the_committed_index(store: Store) -> None:
    assert committed(store.path) == (11, "checkpoint")
    rows = rows_of(open_log(store.path).scan(["index", "committed"]))
    assert all(row["committed"] == (row["index"] <= 11) for row in rows)


@pytest.mark.parametrize(("name", "text"), [("checkpoint.tmp", 14), ("checkpoint.bak", 9)])
def test_a_crash_while_the_checkpoint_was_replaced_leaves_tmp_or_bak(store: Store, name: str, text: int) -> None:
    (store.path / "dledger-n0/checkpoint").unlink()
    (store.path / "dledger-n0" / name).write_text(f"endIndex=19\ncommittedIndex={text}\n")
    assert committed(store.path) == (text, name)


def test_a_torn_tmp_falls_back_to_bak(store: Store) -> None:
    (store.path / "dledger-n0/checkpoint").unlink()
    (store.path / "dledger-n0/checkpoint.tmp").write_text("committedIn")
    (store.path / "dledger-n0/checkpoint.bak").write_text("committedIndex=9\nendIndex=19\n")
    assert committed(store.path) == (9, "checkpoint.bak")


def test_a_checkpoint_beyond_the_end_counts_up_to_the_end(store: Store) -> None:
    (store.path / "dledger-n0/checkpoint").write_text("committedIndex=500\nendIndex=500\n")
    assert committed(store.path) == (19, "checkpoint")


def test_a_checkpoint_of_minus_one_proves_nothing_committed(store: Store) -> None:
    (store.path / "dledger-n0/checkpoint").write_text("committedIndex=-1\nendIndex=19\n")
    assert committed(store.path) == (-1, "checkpoint")
    assert indexes(store.path, isolationLevel="read_committed") == []


def test_a_consume_queue_proves_more_than_the_checkpoint(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, messages(30), committed=3)
    write_consume_queue(tmp_path, store.rows[:20])
    assert committed(tmp_path) == (19, "consumeQueue")
    assert committed(tmp_path, committedBound="checkpoint") == (3, "checkpoint")
    assert committed(tmp_path, committedBound="consumeQueue") == (19, "consumeQueue")


def test_a_unit_without_a_message_proves_nothing(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, messages(30), committed=3)
    beyond = dict(store.rows[29], commitLogOffset=store.end + 48, queueId=7, queueOffset=0)
    inside = dict(store.rows[29], commitLogOffset=store.rows[25]["commitLogOffset"] + 1, queueId=8, queueOffset=0)
    write_consume_queue(tmp_path, [*store.rows[:20], beyond, inside])
    assert committed(tmp_path) == (19, "consumeQueue")


@pytest.mark.parametrize(("bound", "index"), [("end", 19), (5, 5), (1000, 19)])
def test_a_bound_can_be_given(store: Store, bound: str | int, index: int) -> None:
    assert committed(store.path, committedBound=bound)[0] == index
    expected = list(range(index + 1))
    assert indexes(store.path, committedBound=bound, isolationLevel="read_committed") == expected


def test_without_a_bound_committed_is_null_and_read_committed_fails(tmp_path: Path, engine: str) -> None:
    write_dledger(tmp_path, entries(5), checkpoint=False)
    rows = rows_of(open_log(tmp_path, engine=engine).scan(["committed"]))
    assert [row["committed"] for row in rows] == [None] * 5
    with pytest.raises(StoreError, match=r"no checkpoint file.*committedBound=end"):
        indexes(tmp_path, isolationLevel="read_committed", engine=engine)


def test_read_committed_keeps_old_messages_and_committed_entries(tmp_path: Path, engine: str) -> None:
    old = write_commitlog(tmp_path, messages(40))
    write_dledger(tmp_path, messages(10), base=FILE * len(old.segments), committed=3)
    log = open_log(tmp_path, engine=engine)
    rows = rows_of(log.scan(["index", "committed"], isolationLevel="read_committed"))
    assert [row["index"] for row in rows] == [None] * 40 + [0, 1, 2, 3]
    assert all(row["committed"] for row in rows)


# Replicas


@pytest.fixture
def group(tmp_path: Path) -> Callable[..., list[Path]]:
    """Writes replicas, each of a list of terms; a body depends on its index and term."""

    def write(*replicas: list[int], committed: int | None = 0) -> list[Path]:
        paths = []
        for number, terms in enumerate(replicas):
            payloads = [raw(b"%d/%d" % (index, term)) for index, term in enumerate(terms)]
            path = tmp_path / f"replica{number}"
            write_dledger(path, payloads, node=f"n{number}", terms=terms, committed=committed)
            paths.append(path)
        return paths

    return write


def quorum(paths: list[Path], **options: Any) -> tuple[int | None, str | None]:
    replicas = [str(path) for path in paths[1:]]
    return committed(paths[0], replicas=replicas, committedBound="quorum", **options)


def test_a_majority_proves_an_index(group: Callable[..., list[Path]]) -> None:
    assert quorum(group([1] * 10, [1] * 8, [1] * 5)) == (7, "quorum")


def test_a_replica_with_a_higher_last_term_disproves_it(group: Callable[..., list[Path]]) -> None:
    index, reason = quorum(group([1] * 10, [1] * 8, [1] * 5 + [2]))
    assert index is None and reason is not None and "not proven committed" in reason and "term 2" in reason


def test_a_quorum_needs_all_members(group: Callable[..., list[Path]]) -> None:
    index, reason = quorum(group([1] * 10, [1] * 8), groupSize=3)
    assert index is None and reason is not None and "all 3 members" in reason


def test_auto_takes_the_quorum_where_it_proves_more(group: Callable[..., list[Path]]) -> None:
    paths = group([1] * 10, [1] * 8, [1] * 5)
    assert committed(paths[0], replicas=[str(path) for path in paths[1:]]) == (7, "quorum")


def test_a_replica_may_differ_above_the_committed_index(group: Callable[..., list[Path]]) -> None:
    first, second = group([1, 1, 1, 2], [1, 1, 1, 1, 1], committed=2)
    assert indexes(first, replicas=[str(second)], committedBound="checkpoint") == [0, 1, 2, 3]


def test_a_replica_that_contradicts_committed_entries_is_rejected(group: Callable[..., list[Path]]) -> None:
    first, second = group([1, 1, 2, 2], [1, 1, 1, 1, 1], committed=3)
    with pytest.raises(StoreError, match=r"replica1.*expected index 2 with term 2.*found term 1"):
        indexes(first, replicas=[str(second)], committedBound="checkpoint")


def test_a_replica_of_another_group_is_rejected(tmp_path: Path) -> None:
    write_dledger(tmp_path / "a", entries(5))
    write_dledger(tmp_path / "b", [raw(b"of another group") for _ in range(5)])
    with pytest.raises(StoreError, match="found other bytes: this replica is of another group"):
        indexes(tmp_path / "a", replicas=[str(tmp_path / "b")])


@pytest.mark.parametrize(("first", "committed_rows", "others"), [(0, 325, 0), (1, 300, 60), (2, 325, 0)])
@pytest.mark.parametrize("bound", ["auto", "quorum"])
def test_a_deposed_leaders_uncommitted_entries_are_read_with_its_group(
    case_folder: Callable[[str], Path], first: int, committed_rows: int, others: int, bound: str
) -> None:
    nodes = [case_folder("raw-three-diverged") / f"dledger-n{number}" for number in range(3)]
    replicas = [str(node) for node in nodes if node != nodes[first]]
    rows = rows_of(open_log(nodes[first], replicas=replicas, committedBound=bound).scan(["committed"]))
    assert [row["committed"] for row in rows] == [True] * committed_rows + [False] * others


def test_replicas_that_differ_above_the_committed_index_do_not_contradict(group: Callable[..., list[Path]]) -> None:
    first, second = group([1, 1], [2, 2], committed=-1)
    assert indexes(first, replicas=[str(second)]) == [0, 1]


# Offsets


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(20)),
        ({"startingOffsets": 5}, range(5, 20)),
        ({"endingOffsets": 5}, range(5)),
        ({"startingOffsets": '{"index": 6}', "endingOffsets": '{"index": 15}'}, range(6, 15)),
        ({"startingOffsets": 14}, range(14, 20)),
        ({"startingOffsets": 20}, range(0)),
        ({"startingOffsets": "latest"}, range(0)),
        ({"endingOffsets": "earliest"}, range(0)),
        ({"endingOffsets": 1000}, range(20)),
        ({"startingOffsets": {"pos": 1}}, range(1, 20)),
        ({"startingOffsets": {"pos": 548}}, range(1, 20)),
        ({"startingOffsets": {"pos": 549}, "endingOffsets": {"pos": FILE}}, range(2, 7)),
    ],
)
@pytest.mark.parametrize("with_index", [True, False])
def test_offsets(tmp_path: Path, engine: str, options: dict[str, Any], expected: range, with_index: bool) -> None:
    write_dledger(tmp_path, entries(20), with_index=with_index)
    assert indexes(tmp_path, engine=engine, **options) == list(expected)
    assert indexes(tmp_path, engine=engine, maxPartitionBytes=600, **options) == list(expected)


def test_a_starting_index_skips_old_messages_and_an_ending_index_keeps_them(tmp_path: Path, engine: str) -> None:
    old = write_commitlog(tmp_path, messages(40))
    write_dledger(tmp_path, messages(10), base=FILE * len(old.segments))
    assert indexes(tmp_path, startingOffsets=0, engine=engine) == list(range(10))
    assert indexes(tmp_path, endingOffsets=2, engine=engine) == [None] * 40 + [0, 1]


@pytest.mark.parametrize(("start", "found"), [(5, "index 100"), ({"pos": 10}, f"pos {5 * FILE}")])
def test_a_start_below_the_first_entry_is_an_error(tmp_path: Path, start: object, found: str) -> None:
    write_dledger(tmp_path, entries(5), base=5 * FILE, first_index=100)
    with pytest.raises(StoreError, match=rf"startingOffsets: expected .*{found}.*failOnDataLoss=false"):
        indexes(tmp_path, startingOffsets=start)
    assert indexes(tmp_path, startingOffsets=start, failOnDataLoss=False) == list(range(100, 105))


def test_a_wrong_index_file_does_not_mislead(store: Store) -> None:
    for file in (store.path / "dledger-n0/index").iterdir():
        data = bytearray(file.read_bytes())
        data[4:12] = (100).to_bytes(8, "big")
        data[36:44], data[68:76] = data[68:76], data[36:44]
        file.write_bytes(data)
    for start in (0, 1, 2, 3):
        assert indexes(store.path, startingOffsets=start) == list(range(start, 20))


# Planning


def planned(path: Path, columns: tuple[str, ...] = ("index", "body"), **options: Any) -> list[list[tuple[int, int]]]:
    parsed = parse_options(options)
    partitions = open_log(path).plan(columns, parsed, Filters())
    return [[(part.start, part.end) for part in partition.ranges] for partition in partitions]


def test_a_partition_for_each_segment(store: Store) -> None:
    assert planned(store.path) == [[(0, FILE)], [(FILE, 2 * FILE)], [(2 * FILE, store.end)]]


def test_larger_segments_are_split_at_entries(store: Store) -> None:
    starts = {row["pos"] for row in store.rows}
    partitions = planned(store.path, maxPartitionBytes=1000)
    assert len(partitions) > 6
    assert all(part[0][0] in starts for part in partitions)
    flat = [bound for part in partitions for bound in part]
    assert all(end == start for (_, end), (start, _) in pairwise(flat))


def test_min_partitions_splits_further(store: Store) -> None:
    assert len(planned(store.path, minPartitions=10)) >= 10


def test_a_large_max_partition_bytes_takes_segments_together(store: Store) -> None:
    assert len(planned(store.path, maxPartitionBytes="1m")) == 1


def test_a_selective_scan_plans_fewer_tasks(store: Store) -> None:
    assert len(planned(store.path, ("index", "term"))) == 1


def test_ranges_that_cannot_match_are_not_planned(store: Store) -> None:
    log = open_log(store.path)
    options = parse_options({})

    def ranges(**filters: Any) -> list[tuple[int, int]]:
        partitions = log.plan(("index", "body"), options, Filters(**filters))
        return [(part.start, part.end) for partition in partitions for part in partition.ranges]

    pos = {row["index"]: row["pos"] for row in store.rows}
    assert ranges(index=IntFilter(8, 9)) == [(pos[8], pos[10])]
    assert ranges(index=IntFilter(100, 200)) == []
    assert ranges(index=IntFilter(values=())) == []
    assert ranges(term=IntFilter(2, 9)) == []
    assert ranges(pos=IntFilter(FILE, FILE + 10)) == [(FILE, 2 * FILE)]
    assert ranges(committed=True) == [(0, FILE), (FILE, pos[12])]
    assert ranges(committed=False) == [(pos[12], 2 * FILE), (2 * FILE, store.end)]
    assert ranges(topic=()) == []


def test_a_range_filter_opens_no_other_segment(store: Store) -> None:
    log = open_log(store.path)
    partitions = log.plan(("index", "body"), parse_options({}), Filters(index=IntFilter(8, 9)))
    (store.path / DATA / f"{0:020}").unlink()
    assert [row["index"] for part in partitions for row in rows_of(read_partition(part))] == [8, 9]


def test_terms_leave_out_segments(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, entries(20), terms=[1] * 10 + [2] * 10)
    log = open_log(tmp_path)

    def segments(term: int) -> int:
        return len(log.plan(("index", "body"), parse_options({}), Filters(term=IntFilter(term, term))))

    assert (segments(1), segments(2), segments(3)) == (2, 2, 0)
    assert len(store.segments) == 3


def test_reading_changes_nothing(store: Store, engine: str) -> None:
    def print_of(path: Path) -> dict[str, tuple[int, int]]:
        return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in path.rglob("*")}

    before = print_of(store.path)
    log = open_log(store.path, engine=engine)
    assert log.state.end_index == 19
    assert len(rows_of(log.scan())) == 20
    assert print_of(store.path) == before
