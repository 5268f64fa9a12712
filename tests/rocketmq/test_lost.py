"""The table ``lost`` and `dledger lost`: of any damage, exactly the lost messages are listed, with what is known."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.format.dispatched_rows import Keys, key_hash
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.lost.lost_messages import count_of, lost_in_group
from pyspark_dledger.rocketmq.tables import read_table
from tests.support.damage import flip, write_at
from tests.support.generate import Store, mq_message, write_commitlog, write_consume_queue, write_dledger
from tests.support.golden import unpack
from tests.support.long_runs import mostly_slow
from tests.support.queues import tags_code, units_of, write_units
from tests.support.sparse_copy import copy_tree

pytestmark = pytest.mark.slow

Row = dict[str, Any]

CASES = ("mq-53-single", "mq-498-single", "mq-53-upgrade", "mq-plain", "mq-53-retention")
SEEDS = range(6)


def rows_of(path: Path, **options: Any) -> list[Row]:
    columns = (
        *("kind", "source", "pos", "size", "index", "problem", "topic", "queueId", "queueOffset", "keys", "uniqKey"),
        *("tags", "storeTimestamp", "transaction"),
    )
    rows = [row for batch in open_log(path, **options).scan(columns) for row in batch.to_pylist()]
    for row in rows:
        row["storeTimestamp"] = row["storeTimestamp"] and round(row["storeTimestamp"].timestamp() * 1e6)
    return rows


def lost_of(path: Path, *replicas: Path) -> list[Row]:
    given = {"replicas": json.dumps([str(replica) for replica in replicas])} if replicas else {}
    return [row for batch in read_table(open_log(path, **given), "lost") for row in batch.to_pylist()]


def patch(store: Store, row: Row, offset: int) -> None:
    """Change one byte of a row."""
    segment = next(each for each in store.segments if each.name == row["segment"])
    write_at(segment.path, row["pos"] - segment.base + offset, b"Q")


def damage(root: Path, seed: int) -> None:
    """One to four places of the log get other bytes; sometimes a file is lost that others follow."""
    draw = random.Random(seed)
    segments = open_log(root)
    end = segments.max_offset
    for _ in range(draw.randint(1, 4)):
        segment = draw.choice([each for each in segments.segments if each.base < end])
        size = draw.choice([1, 16, 512, 4096, 9000])
        at = draw.randrange(max(min(segment.end, end) - segment.base - size, 1))
        data = draw.choice([bytes(size), draw.randbytes(size)])
        write_at(segment.path, at, data)


def intact(rows: list[Row]) -> dict[int, Row]:
    """The rows without damage; producers may set any time of birth."""
    problems = {row["pos"]: row["problem"] or "expected bornTimestamp" for row in rows}
    return {
        row["pos"]: row
        for row in rows
        if row["kind"] != "corrupt" and problems[row["pos"]].startswith("expected bornTimestamp")
    }


def place_of(row: Row | None) -> tuple[object, ...] | None:
    """Where a message says that it is in its queue: no checksum covers that."""
    return (row["topic"], row["queueId"], row["queueOffset"]) if row is not None else None


@pytest.fixture
def store(request: pytest.FixtureRequest, case_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    copy = tmp_path / "store"
    copy_tree(case_folder(request.param), copy)
    return copy


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 2, suite=3))
@pytest.mark.parametrize("store", CASES, indirect=True)
def test_exactly_the_lost_messages_are_listed(store: Path, seed: int) -> None:
    """Units of index and queues are intact, so each lost message is known by its place and its queue.

    Prepared and rolled back messages are in no queue: of a plain CommitLog, only their bytes are known.
    """
    before = intact(rows_of(store))
    damage(store, seed)
    after = intact(rows_of(store))
    found_rows = lost_of(store)
    lost = {row["pos"]: row for row in found_rows if row["entries"] == 1}
    ranges = [range(row["pos"], row["pos"] + row["size"]) for row in found_rows if row["entries"] != 1]
    gone = {pos: row for pos, row in before.items() if place_of(row) != place_of(after.get(pos))}
    in_queue = {pos: row for pos, row in gone.items() if row["transaction"] not in ("prepared", "rollback")}
    assert set(in_queue) <= set(lost) <= set(gone)
    for pos, row in gone.items():
        if pos not in lost:
            assert row["index"] is None and any(pos in each for each in ranges)
            continue
        found = lost[pos]
        assert found["source"] == row["source"]
        assert found["size"] == row["size"] or (found["size"] is None and found["witnesses"] == ["indexFile"])
        assert found["index"] == row["index"]
        if row["storeTimestamp"] and found["firstStoreTimestamp"] and found["lastStoreTimestamp"]:
            times = [round(found[name].timestamp() * 1e6) for name in ("firstStoreTimestamp", "lastStoreTimestamp")]
            assert times[0] <= row["storeTimestamp"] <= times[1]
        if row["kind"] == "message" and pos in in_queue:
            names = ("topic", "queueId", "queueOffset")
            assert [found[name] for name in names] == [row[name] for name in names]
        if row["uniqKey"] and found["keyHashes"]:
            assert key_hash(row["topic"], row["uniqKey"]) in found["keyHashes"]


def damage_units(root: Path, seed: int) -> None:
    """One to six places of indexes and queues get other bytes, also after their last unit."""
    draw = random.Random(seed + 10**6)
    folders = ("consumequeue", "index", "dledger-n0/index")
    files = sorted(file for folder in folders for file in (root / folder).rglob("*") if file.is_file())
    for _ in range(draw.randint(1, 6)):
        file, size = draw.choice(files), draw.choice([1, 8, 20, 200, 2000])
        at = draw.randrange(max(file.stat().st_size - size, 1))
        write_at(file, at, draw.choice([bytes(size), draw.randbytes(size)]))


@pytest.mark.parametrize("seed", mostly_slow(range(10), 3, suite=4))
@pytest.mark.parametrize("store", ["mq-53-single", "mq-plain"], indirect=True)
def test_damaged_units_invent_no_message(store: Path, seed: int) -> None:
    before = intact(rows_of(store))
    damage(store, seed)
    damage_units(store, seed)
    after = intact(rows_of(store))
    gone = {pos: row for pos, row in before.items() if place_of(row) != place_of(after.get(pos))}
    indexes = {row["index"] for row in gone.values()}
    found = lost_of(store)
    for row in found:
        if row["entries"] == 1 and row["witnesses"] != ["neighbours"]:
            assert row["pos"] in gone, row
            assert row["topic"] in (None, gone[row["pos"]]["topic"])
        assert row["index"] is None or row["index"] in indexes
    count, is_all = sum(row["entries"] or 0 for row in found), all(row["entries"] is not None for row in found)
    assert count == len(gone) if is_all else count <= len(gone)


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 2, suite=3))
def test_without_units_the_count_is_never_too_high(
    case_folder: Callable[[str], Path], tmp_path: Path, seed: int
) -> None:
    """Indexes around a place tell how many entries it had; a plain CommitLog only has the bytes."""
    for case in ("mq-53-single", "mq-plain"):
        root = tmp_path / case
        copy_tree(case_folder(case), root)
        before = intact(rows_of(root))
        for folder in ("consumequeue", "index", "dledger-n0/index"):
            shutil.rmtree(root / folder, ignore_errors=True)
        damage(root, seed)
        after = intact(rows_of(root))
        gone = len(before.keys() - after.keys())
        found = lost_of(root)
        counted = [row["entries"] for row in found]
        lost = [row["index"] for pos, row in before.items() if pos not in after and row["index"] is not None]
        assert [row["index"] for row in found if row["index"] is not None] == lost
        count, is_all = sum(number or 0 for number in counted), None not in counted
        assert count <= gone
        assert not is_all or count == gone, case
        if case == "mq-53-single":
            assert is_all


@pytest.mark.slow
def test_what_one_replica_has_is_not_lost_for_good(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Three replicas, each damaged elsewhere, and one place on all of them."""
    for node in ("n0", "n1", "n2"):
        copy_tree(case_folder("mq-53-three") / node, tmp_path / node)
    rows = [row for row in rows_of(tmp_path / "n0") if row["kind"] == "message"]
    one, everywhere = rows[20], rows[40]
    for node in ("n0", "n1", "n2"):
        overwrite(tmp_path / node, everywhere)
    overwrite(tmp_path / "n1", one)
    found = {row["index"]: row for row in lost_of(tmp_path / "n0", tmp_path / "n1", tmp_path / "n2")}
    assert found.keys() == {one["index"], everywhere["index"]}
    assert (found[one["index"]]["lostOn"], found[one["index"]]["intactOn"]) == (["n1"], ["n0", "n2"])
    assert found[everywhere["index"]]["lostOn"] == ["n0", "n1", "n2"]
    assert found[everywhere["index"]]["intactOn"] == []


def test_what_several_replicas_lost_counts_once(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Places that overlap, on replicas without units: the indexes around them tell what is lost where."""
    paths = [tmp_path / node for node in ("n0", "n1", "n2")]
    for path in paths:
        copy_tree(case_folder("mq-53-three") / path.name, path)
        for folder in ("consumequeue", "index", f"dledger-{path.name}/index"):
            shutil.rmtree(path / folder)
    rows = rows_of(paths[0])
    for path, numbers in zip(paths, ((50, 51, 52), (51, 52, 53), (52, 53, 54, 80)), strict=True):
        for number in numbers:
            overwrite(path, rows[number])
    found = {row["index"]: row for row in lost_of(*paths)}
    expected = {50: "n0", 51: "n0 n1", 52: "n0 n1 n2", 53: "n1 n2", 54: "n2", 80: "n2"}
    assert {index: " ".join(row["lostOn"]) for index, row in found.items()} == {
        rows[number]["index"]: nodes for number, nodes in expected.items()
    }
    assert [index for index, row in found.items() if not row["intactOn"]] == [rows[52]["index"]]
    known = {row["index"]: row for row in rows}
    columns = ("pos", "size", "topic", "queueId", "queueOffset")
    for index, row in found.items():
        if row["intactOn"]:
            assert row["witnesses"] == ["neighbours", "replicas"]
            assert {name: row[name] for name in columns} == {name: known[index][name] for name in columns}
        else:
            assert row["witnesses"] == ["neighbours"] and row["topic"] is None


def test_lost_bytes_are_the_messages_that_another_replica_has(tmp_path: Path) -> None:
    """Of plain CommitLogs nothing but an intact copy tells what was in a place that no unit knows."""
    for name in "ab":
        store = write_commitlog(tmp_path / name, [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(9)])
    first, last = store.rows[3], store.rows[5]
    change(tmp_path / "b", first["pos"], bytes(last["pos"] + last["size"] - first["pos"]))
    found = lost_of(tmp_path / "b", tmp_path / "a")
    assert [(row["pos"], row["size"]) for row in found] == [(row["pos"], row["size"]) for row in store.rows[3:6]]
    assert [(row["topic"], row["queueOffset"]) for row in found] == [("Orders", n) for n in (3, 4, 5)]


def test_the_key_hashes_are_those_that_any_replica_has(tmp_path: Path) -> None:
    """An index of keys can lack units: the last replica's does not hide what another one knows."""
    for name, keys in (("a", (7, 8)), ("b", (8,)), ("c", (7,))):
        store = write_commitlog(tmp_path / name, [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(9)])
        lost = store.rows[3]
        index = IndexWriter(tmp_path / name, hash_slots=7, index_units=5)
        index.put(Keys(np.full(len(keys), lost["pos"]), np.full(len(keys), 1_700_000_000_000), np.array(keys)))
        index.flush()
        index.close()
        change(tmp_path / name, lost["pos"], bytes(lost["size"]))
    found = lost_of(*(tmp_path / name for name in "abc"))
    assert [(row["pos"], row["keyHashes"]) for row in found] == [(lost["pos"], [7, 8])]


def test_unknown_bytes_are_lost_only_where_no_replica_has_a_message(tmp_path: Path) -> None:
    """One replica lost more than the others in one place: what they have is a row of its own."""
    for name in "abc":
        store = write_commitlog(tmp_path / name, [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(9)])
    first, last = store.rows[3], store.rows[5]
    change(tmp_path / "c", first["pos"], bytes(last["pos"] - first["pos"]))
    for name in "abc":
        change(tmp_path / name, last["pos"], bytes(last["size"]))
    found = [(row["pos"], row["size"], row["intactOn"]) for row in lost_of(*(tmp_path / name for name in "cab"))]
    intact = [(row["pos"], row["size"], ["a", "b"]) for row in store.rows[3:5]]
    assert found == [*intact, (last["pos"], last["size"], [])]


def test_the_order_of_the_replicas_changes_nothing(tmp_path: Path) -> None:
    """What a replica without units lost at its end is intact on one of its own history, not on a diverged one."""
    bodies = [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(20)]
    others = [mq_message("Orders", b"y" * n, queue_offset=n) for n in range(20)]
    terms = {"a": 3, "b": 2, "c": 3}
    for name, term in terms.items():
        own = bodies if term == 3 else [*bodies[:15], *others[15:]]
        store = write_dledger(tmp_path / name, own, terms=[1] * 15 + [term] * 5, node=name, with_index=False)
        write_consume_queue(tmp_path / name, store.rows)
    for row in store.rows[16:]:
        change(tmp_path / "c", row["pos"], bytes(row["size"]))
    rows = [lost_of(*(tmp_path / name for name in order)) for order in ("abc", "cba", "bca")]
    assert rows[0] == rows[1] == rows[2]
    assert all("b" not in row["intactOn"] for row in rows[0])


def test_a_slave_has_what_its_master_lost(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Copies of a plain CommitLog have the same positions; without units only the bytes are compared."""
    master, slave = tmp_path / "master", tmp_path / "slave"
    for path in (master, slave):
        copy_tree(case_folder("mq-plain"), path)
    rows = [row for row in rows_of(master) if row["transaction"] == "none"]
    one, both = rows[20], rows[40]
    for path, row in ((master, one), (master, both), (slave, both)):
        overwrite(path, row)
    found = {row["pos"]: (row["lostOn"], row["intactOn"]) for row in lost_of(master, slave)}
    assert found == {
        one["pos"]: (["master"], ["slave"]),
        both["pos"]: (["master", "slave"], []),
    }
    shutil.rmtree(master / "consumequeue")
    shutil.rmtree(master / "index")
    assert {row["pos"]: (row["lostOn"], row["intactOn"]) for row in lost_of(master, slave)} == found


def test_a_copy_that_units_contradict_is_lost(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    master, slave = tmp_path / "master", tmp_path / "slave"
    for path in (master, slave):
        copy_tree(case_folder("mq-plain"), path)
    row = next(row for row in rows_of(slave) if row["transaction"] == "none" and row["queueOffset"] > 3)
    change(slave, row["pos"] + 27, b"\x7f")  # the queue offset
    (found,) = lost_of(master, slave)
    assert (found["pos"], found["queueOffset"], found["topic"]) == (row["pos"], row["queueOffset"], row["topic"])
    assert (found["lostOn"], found["intactOn"]) == (["slave"], ["master"])


def overwrite(root: Path, row: Row) -> None:
    """Overwrite the header of a row, also if its segment is in another place."""
    change(root, row["pos"], b"\xee" * 60)


def change(root: Path, pos: int, data: bytes) -> None:
    """Overwrite bytes at a position of the log."""
    segment = next(each for each in open_log(root).segments if each.base <= pos < each.end)
    write_at(segment.path, pos - segment.base, data)


def test_a_message_that_its_queue_knows_by_another_topic_is_lost(tmp_path: Path) -> None:
    """No checksum covers the topic; without the unit nobody could name the message."""
    store = write_commitlog(tmp_path, [mq_message("Orders", b"x" * 90, queue_offset=n) for n in range(20)])
    write_consume_queue(tmp_path, store.rows)
    assert lost_of(tmp_path) == []
    row = store.rows[7]
    patch(store, row, row["entryBody"].index(b"Orders"))
    (found,) = lost_of(tmp_path)
    assert [found[name] for name in ("pos", "topic", "queueOffset")] == [row["pos"], "Orders", 7]
    assert (found["lostOn"], found["unclearOn"]) == ([], [tmp_path.name]), "a salvage cannot decide about it either"


def test_a_last_copy_that_its_queue_contradicts_is_unclear_alone_and_in_a_group(tmp_path: Path) -> None:
    """The other replica is behind, so that it has no evidence of its own."""
    messages = [mq_message("Orders", b"x" * 90, queue_offset=n) for n in range(20)]
    for name, count in (("a", 20), ("b", 10)):
        store = write_commitlog(tmp_path / name, messages[:count])
        write_consume_queue(tmp_path / name, store.rows)
        if name == "a":
            row = store.rows[15]
            patch(store, row, row["entryBody"].index(b"Orders"))
    alone, together = lost_of(tmp_path / "a"), lost_of(tmp_path / "b", tmp_path / "a")
    assert [(each["pos"], each["lostOn"], each["unclearOn"]) for each in alone] == [(row["pos"], [], ["a"])]
    assert [(each["pos"], each["lostOn"], each["unclearOn"]) for each in together] == [(row["pos"], [], ["a"])]


def test_a_damaged_entry_of_a_diverged_tail_is_not_committed(tmp_path: Path) -> None:
    """It has its own row, although others have another entry at its index."""
    ours = [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(1, 21)]
    others = [mq_message("Orders", b"y" * n, queue_offset=n) for n in range(1, 21)]
    for name, term in (("a", 3), ("b", 2), ("c", 3)):
        bodies = ours if term == 3 else [*ours[:15], *others[15:]]
        store = write_dledger(tmp_path / name, bodies, terms=[1] * 15 + [term] * 5, node=name)
        if name == "b":
            change(tmp_path / "b", store.rows[17]["pos"] + 60, b"\xee" * 40)
    (found,) = lost_of(*(tmp_path / name for name in "abc"))
    assert (found["index"], found["term"], found["committed"]) == (17, 2, False)
    assert (found["lostOn"], found["intactOn"], found["unclearOn"]) == (["b"], [], [])


def test_a_store_without_an_intact_entry_has_lost_what_its_index_knows(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(1, 9)])
    for row in store.rows:
        change(tmp_path, row["pos"], b"\xee" * row["size"])
    found = lost_of(tmp_path)
    assert [row["index"] for row in found if row["entries"] == 1] == [row["index"] for row in store.rows]
    assert {tuple(row["lostOn"]) for row in found} == {("n0",)}


def test_a_blank_that_another_replica_has_is_no_lost_message(tmp_path: Path) -> None:
    for name in "ab":
        store = write_commitlog(tmp_path / name, [mq_message("Orders", b"x" * 90, queue_offset=n) for n in range(60)])
        write_consume_queue(tmp_path / name, store.rows)
    lost = [row["pos"] for row in store.rows if row["segment"] == store.segments[1].name]
    Path(store.segments[1].path).unlink()
    found = lost_of(tmp_path / "b", tmp_path / "a")
    assert [row["pos"] for row in found] == lost
    assert {(*row["lostOn"], *row["intactOn"]) for row in found} == {("b", "a")}


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_copy_that_no_check_judges_is_neither_lost_nor_intact(
    tmp_path: Path, is_checked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The body of one copy is damaged, the topic of the other one."""
    for name in "ab":
        store = write_commitlog(tmp_path / name, [mq_message("Orders", b"x" * 90, queue_offset=n) for n in range(9)])
        write_consume_queue(tmp_path / name, store.rows)
        row = store.rows[4]
        patch(store, row, row["entryBody"].index(b"Orders" if name == "b" else b"xx"))
    if not is_checked:
        shutil.rmtree(tmp_path / "a" / "consumequeue")
        shutil.rmtree(tmp_path / "b" / "consumequeue")
    assert main(["lost", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    printed = capsys.readouterr().out
    if is_checked:
        unclear = f"cannot tell for positions {row['pos']} to {row['pos'] + row['size'] - 1}"
        assert printed.startswith(f"lost for good: {unclear}") and "intact on others" not in printed
    else:
        assert "\nlost on some replicas and intact on others: 1 message\n" in printed


def test_a_lost_end_is_lost(tmp_path: Path) -> None:
    """The last file is gone: its messages were committed, as queues and checkpoint say."""
    store = write_dledger(
        tmp_path, [mq_message("Orders", b"body %d" % n, queue_offset=n) for n in range(60)], file_size=2048
    )
    write_units(tmp_path, units_of(store.rows))
    assert lost_of(tmp_path) == []
    last = store.segments[-1]
    Path(last.path).unlink()
    found = lost_of(tmp_path)
    assert [row["index"] for row in found] == [row["index"] for row in store.rows if row["pos"] >= last.base]
    assert {tuple(row["witnesses"]) for row in found} == {("indexUnits", "consumeQueue")}
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "dledger-n0" / "index")
    (rest,) = lost_of(tmp_path)
    assert (rest["entries"], rest["witnesses"]) == (len(found), ["checkpoint"])


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1))
def test_a_file_that_ends_early_counts_once(case_folder: Callable[[str], Path], tmp_path: Path, seed: int) -> None:
    """The last file of one replica is cut anywhere, cut and filled with zeros, or gone; the others have all of it."""
    paths = [tmp_path / node for node in ("n0", "n1", "n2")]
    for path in paths:
        copy_tree(case_folder("mq-53-three") / path.name, path)
    rows = [row for row in rows_of(paths[2]) if row["kind"] != "corrupt"]
    last = max((paths[2] / "dledger-n2" / "data").iterdir())
    base, size = int(last.name), last.stat().st_size
    cut = random.Random(seed).randrange(rows[-1]["pos"] + rows[-1]["size"] - base)
    expected = {row["index"] for row in rows if row["pos"] + row["size"] > base + cut}
    for how in ("cut", "zeros", "gone"):
        os.truncate(last, cut)
        if how == "zeros":
            os.truncate(last, size)
        if how == "gone":
            last.unlink()
            expected |= {row["index"] for row in rows if row["pos"] >= base}
        assert sum(row["entries"] or 0 for row in lost_of(paths[2])) == len(expected), how
        found = lost_of(*paths)
        assert {row["index"] for row in found} >= expected, how
        assert [row for row in found if not row["intactOn"]] == [], how


def test_expired_messages_are_not_lost(tmp_path: Path) -> None:
    store = write_dledger(
        tmp_path, [mq_message("Orders", b"body %d" % n, queue_offset=n) for n in range(60)], file_size=2048
    )
    write_units(tmp_path, units_of(store.rows))
    Path(store.segments[0].path).unlink()
    assert lost_of(tmp_path) == []


def test_a_message_with_a_wrong_crc_is_lost(tmp_path: Path) -> None:
    store = write_commitlog(tmp_path, [mq_message("Orders", b"body %d" % n * 9, queue_offset=n) for n in range(9)])
    write_units(tmp_path, units_of(store.rows))
    row, file = store.rows[4], Path(store.segments[0].path)
    flip(file, file.read_bytes().index(b"body 4"))
    (found,) = lost_of(tmp_path)
    assert (found["pos"], found["queueOffset"], found["tagsCode"]) == (row["pos"], 4, tags_code(row))
    assert found["witnesses"] == ["log", "consumeQueue"]
    assert "CRC" in found["problem"]


def test_a_damaged_unit_is_no_witness(tmp_path: Path) -> None:
    """A unit that points into a damaged place, unlike its neighbours, does not make a message there."""
    store = write_commitlog(tmp_path, [mq_message("Orders", b"x" * 99, queue_offset=n) for n in range(40)])
    hit = store.rows[20]
    units = units_of(store.rows)
    units[3] = units[3]._replace(commit_log_offset=hit["pos"] + 40, size=100)
    write_units(tmp_path, units)
    overwrite(tmp_path, hit)
    (found,) = lost_of(tmp_path)
    assert (found["pos"], found["queueOffset"], found["size"]) == (hit["pos"], 20, hit["size"])


def test_candidates_are_named(
    case_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), root)
    rows = [row for row in rows_of(root) if row["keys"] and row["tags"]]
    row = rows[len(rows) // 2]
    overwrite(root, row)
    names = tmp_path / "names"
    names.write_text("\n".join(["no-such-key", row["uniqKey"], row["keys"].split()[0], row["tags"], "NoTag"]))
    assert main(["lost", str(root), "--candidates", str(names), "--json"]) == 1
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found["candidateKeys"] == [row["uniqKey"], row["keys"].split()[0]]
    assert found["candidateTags"] == [row["tags"]]
    assert main(["lost", str(root), "--candidates", str(names)]) == 1
    printed = capsys.readouterr().out
    assert row["uniqKey"] in printed and printed.startswith("lost: 1 message; ")


def test_nothing_is_lost_of_the_goldens(case_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    for case in ("mq-53-single", "mq-plain", "mq-498-upgrade-killed", "mq-53-retention", "mq-oldest"):
        assert main(["lost", str(case_folder(case))]) == 0, case
        assert capsys.readouterr().out.startswith("lost: nothing\nnot checked: ")
    three = case_folder("mq-53-three")
    assert main(["lost", *(str(three / node) for node in ("n0", "n1", "n2"))]) == 0
    assert capsys.readouterr().out.startswith("lost for good: nothing\nnot checked: ")


def test_bytes_of_a_short_entry_without_a_unit_are_listed_where_nothing_is_intact(tmp_path: Path) -> None:
    node = next(unpack("raw-three-diverged", tmp_path).rglob("dledger-n0"))
    units = open_log(node).index_files.read(0, 4)
    write_at(min((node / "index").iterdir()), 3 * INDEX_UNIT_SIZE, bytes(INDEX_UNIT_SIZE))
    for file in (node / "data").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    lost = {(row["pos"], row["size"], row["index"]) for row in lost_of(node)}
    assert (units[2]["pos"], units[2]["size"], 2) in lost
    assert (units[3]["pos"], units[3]["size"], None) in lost


def test_a_count_is_a_minimum_where_nothing_is_known(tmp_path: Path) -> None:
    store = write_commitlog(tmp_path, [mq_message("Orders", b"x" * 99, queue_offset=n) for n in range(9)])
    overwrite(tmp_path, store.rows[4])
    (found,) = lost_of(tmp_path)
    assert (found["entries"], found["witnesses"]) == (None, [])
    assert count_of(lost_in_group(open_log(tmp_path)).messages) == (0, False)


# Counts of other verbs


@pytest.mark.parametrize("seed", mostly_slow(range(10), 3, suite=4))
def test_an_export_counts_the_lost_messages(
    case_folder: Callable[[str], Path], tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One corrupt row can stand for many messages; the audit of the result sees at most those that are missing."""
    root = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), root)
    before = intact(rows_of(root))
    damage(root, seed)
    gone = len(before.keys() - intact(rows_of(root)).keys())
    for form in ("commitlog", "jsonl"):
        report = export(root, tmp_path / form, form)
        assert (report.lost, report.lost_is_all) == (gone, True), form
    assert (report.problems > 0) == (gone > 0)
    assert main(["audit", str(tmp_path / "commitlog")]) in (0, 1)
    noted = re.search(r"at least (\d+) messages? (is|are) missing", capsys.readouterr().err)
    wrong_headers = sum(row["queueOffset"] is not None and row["queueOffset"] > 10**6 for row in rows_of(root))
    assert int(noted[1] if noted else 0) <= gone + wrong_headers


def test_an_export_counts_only_the_messages_that_it_wants(
    case_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), root)
    rows = [row for row in rows_of(root) if row["kind"] == "message"]
    hit = next(row for row in rows[30:] if row["topic"] == "PayTopic" and row["transaction"] == "none")
    overwrite(root, hit)
    assert export(root, tmp_path / "pay", "jsonl", topic="PayTopic", mode="PERMISSIVE").lost == 0, "no row was left out"
    assert main(["export", str(root), str(tmp_path / "all"), "--to", "commitlog"]) == 1
    assert "lost in damaged places of the log: 1 message; dledger lost lists them\n" in capsys.readouterr().out
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "dledger-n0" / "index")
    assert export(root, tmp_path / "unknown", "commitlog").lost == 1, "the indexes of the neighbours tell it"


def test_copies_of_the_next_unit_count_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_commitlog(tmp_path, [mq_message("Orders", b"x" * 99, queue_offset=n) for n in range(40)])
    units = units_of(store.rows)
    units[5] = units[6]._replace(queue_offset=5)
    units[9] = units[9]._replace(commit_log_offset=0, size=0x7FFFFFFF, tags_code=0)
    write_units(tmp_path, units)
    assert main(["audit", str(tmp_path)]) == 1
    text = "at least 2 messages are missing: 1 unit is a filler, 1 unit is a copy of a neighbour\n"
    assert capsys.readouterr().err == f"dledger: {tmp_path}: {text}"


def test_adjacent_lost_entries_are_listed_one_by_one(tmp_path: Path) -> None:
    messages = [mq_message("Orders", b"x" * 200, queue_offset=n) for n in range(60)]
    store = write_dledger(tmp_path, messages, file_size=2**20)
    first, last = store.rows[20], store.rows[49]
    change(tmp_path, first["pos"], b"\xee" * (last["pos"] + last["size"] - first["pos"]))
    found = lost_in_group(open_log(tmp_path)).messages
    assert [lost.index for lost in found] == list(range(20, 50))
    assert not any(lost.restorable_from for lost in found)


def test_an_entry_of_a_single_store_whose_header_is_damaged_is_restorable(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Orders", b"x" * 200, queue_offset=n) for n in range(60)])
    change(tmp_path, store.rows[20]["pos"], b"\x55\x55")
    (lost,) = lost_in_group(open_log(tmp_path)).messages
    assert (lost.index, lost.restorable_from) == (20, ("n0",))


def test_units_of_a_missing_first_file_are_named(
    case_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may have expired, so this is no finding."""
    copy_tree(case_folder("mq-53-single"), tmp_path / "single")
    copy_tree(case_folder("mq-plain"), tmp_path / "plain")
    (tmp_path / "single" / "dledger-n0" / "data" / f"{0:020}").unlink()
    (tmp_path / "plain" / "commitlog" / f"{0:020}").unlink()
    assert main(["lost", str(tmp_path / "single")]) == main(["lost", str(tmp_path / "plain")]) == 0
    single, plain = capsys.readouterr().err.splitlines()
    assert re.search(r"its index has the entries 0 to \d+ and its queues have \d+ messages from there", single)
    assert plain.endswith("its queues have 247 messages from there")


@pytest.mark.parametrize("is_created_ahead", [False, True])
def test_what_an_unreadable_last_file_had_is_unknown(tmp_path: Path, is_created_ahead: bool) -> None:
    """Units and the checkpoint know its entries, and a file that was created ahead follows."""
    messages = [mq_message("Orders", b"body %d" % n, queue_offset=n) for n in range(60)]
    store = write_dledger(tmp_path, messages, file_size=2048)
    write_units(tmp_path, units_of(store.rows))
    last = Path(store.segments[-1].path)
    if is_created_ahead:
        (last.parent / f"{store.segments[-1].end:020}").write_bytes(bytes(2048))
    last.unlink()
    last.mkdir()
    log = Log(str(tmp_path), ReadOptions(unread=()))
    assert lost_in_group(log).messages == []
    (text,) = log.unread.texts()
    first = next(row for row in store.rows if row["pos"] >= store.segments[-1].base)
    assert text == f"{last}: not a file; unknown: index {first['index']} and after, pos {first['pos']} and after"
