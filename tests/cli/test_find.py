"""``dledger find``: each message is found by everything that identifies it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.verbs.find import kinds_of
from tests.support.command_line import Ran
from tests.support.damage import flip, write_at
from tests.support.generate import Store, mq_message, write_dledger
from tests.support.sparse_copy import copy_tree

Row = dict[str, Any]


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        ("17", ["index"]),
        ("126204270130", ["index"]),
        ("1700000000000", ["time"]),
        ("2023-11-14", ["time"]),
        ("2023-11-14T22:13:20Z", ["time"]),
        ("order-17", ["key"]),
        ("Orders/3/17", ["queueOffset", "key"]),
        ("7F00000100002A9F0000000000000030", ["offsetMsgId", "key"]),
        ("7F0000010A2B3C4D5E6F000000000030", ["key"]),
        ("20010DB8F2F9EDCE2F47B319586B00810000F2B50000000000000261", ["offsetMsgId", "key"]),
    ],
)
def test_the_form_of_the_argument_says_what_it_is(what: str, kinds: list[str]) -> None:
    assert kinds_of(what) == kinds


def test_each_message_is_found_by_id_index_key_and_time(
    case_folder: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    path = case_folder("mq-53-upgrade")
    rows = run("dump", path, "--json").rows
    picked = [row for row in rows[::97] if row["index"] is not None] + [
        row for row in rows[::211] if row["index"] is None
    ]
    assert {row["source"] for row in picked} == {"commitlog", "dledger"}
    for row in picked:
        assert run("find", path, row["offsetMsgId"], "--json").rows == [row]
        assert run("find", path, row["offsetMsgId"].lower(), "--json").rows == [row]
        if row["index"] is not None:
            assert run("find", path, row["index"], "--json").rows == [row]
        for key in (row["keys"] or "").split():
            found = run("find", path, "--by", "key", key, "--json").rows
            assert found == [other for other in rows if key in (other["keys"] or "").split()]
        after = run("find", path, row["storeTimestamp"], "--json").rows
        assert after == [next(other for other in rows if other["storeTimestamp"] >= row["storeTimestamp"])]


def test_a_unique_key_is_found(broker: Store, run: Callable[..., Ran]) -> None:
    path = broker.path
    assert [row["index"] for row in run("find", path, "U3", "--json").rows] == [3]
    assert [row["index"] for row in run("find", path, "--by", "uniqKey", "U3", "--json").rows] == [3]
    assert run("find", path, "--by", "key", "U3").code == 1
    assert len(run("find", path, "all", "--json").rows) == 8
    assert run("find", path, "al").code == 1, "a part of a key is none"


def test_a_time_between_two_messages_finds_the_later(broker: Store, run: Callable[..., Ran]) -> None:
    assert [row["index"] for row in run("find", broker.path, "1700000002001", "--json").rows] == [3]
    assert run("find", broker.path, "1700000009000").code == 1


def test_a_time_is_found_where_an_earlier_segment_was_stored_later(tmp_path: Path, run: Callable[..., Ran]) -> None:
    start = 1700000000000
    seconds = [*range(60), 30, *range(31, 90)]
    payloads = [mq_message("T", b"x" * 200, store_timestamp=start + 1000 * second) for second in seconds]
    path = write_dledger(tmp_path, payloads, file_size=2048).path
    for second in (0, 29, 31, 45, 60, 89):
        (found,) = run("find", path, start + 1000 * second, "--json").rows
        assert found["index"] == next(i for i, other in enumerate(seconds) if other >= second)


def test_a_missing_message_is_reported_with_exit_code_1(store: Store, run: Callable[..., Ran]) -> None:
    for what in ("10", "2099-01-01", "no-such-key", "7F00000100002A9F0000000000000031"):
        done = run("find", store.path, what)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), what
        assert "expected" in done.err


def test_another_message_at_the_offset_of_an_id_is_printed_with_a_note(broker: Store, run: Callable[..., Ran]) -> None:
    done = run("find", broker.path, "--by", "offsetMsgId", "0A00000100002A9F0000000000000030", "--json")
    assert (done.code, done.rows[0]["index"]) == (0, 0)
    assert "has the offsetMsgId 7F00000100002A9F0000000000000030" in done.err


# What only indexes and queues know


def with_lost_message(case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]) -> tuple[Path, Row]:
    """A broker's store with one damaged message, which had keys; and its row."""
    path = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), path)
    rows = [row for row in run("dump", path, "--json").rows if row["keys"] and row["uniqKey"]]
    row = rows[len(rows) // 2]
    write_at(path / "dledger-n0" / "data" / row["segment"], row["pos"] - int(row["segment"]), b"\xee" * 60)
    return path, row


def test_a_lost_message_is_known_to_the_indexes(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    path, row = with_lost_message(case_folder, tmp_path, run)
    queue = f"{row['topic']}/{row['queueId']}/{row['queueOffset']}"
    for what in (row["uniqKey"], row["index"], row["offsetMsgId"], queue):
        done = run("find", path, what)
        assert (done.code, done.out) == (1, ""), what
        assert "it is lost, the bytes there are damaged" in done.err, what
        assert f"at queueOffset {row['queueOffset']}" in done.err and f"{row['topic']}/{row['queueId']}" in done.err
        assert "whole log" not in done.err
    key = row["keys"].split()[0]
    done = run("find", path, "--by", "key", key, "--json")
    assert done.code == 1 and "it is lost" in done.err, "also where others with this key are found"
    assert row["index"] not in [found["index"] for found in done.rows]


def test_each_of_several_stores_is_searched(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    path, row = with_lost_message(case_folder, tmp_path, run)
    others = [tmp_path / "other", tmp_path / "third"]
    for other in others:
        copy_tree(case_folder("mq-53-single"), other)
    for what in (row["index"], row["uniqKey"], row["offsetMsgId"]):
        for paths in ((path, *others), (others[0], path, others[1])):
            done = run("find", *paths, what, "--json")
            assert done.code == 1 and [found["index"] for found in done.rows] == [row["index"]], "once"
            assert all(f"{other}: found, 1 row, intact" in done.err for other in others)
            assert f"{path}: the DLedger index has" in done.err or f"{path}: the ConsumeQueue" in done.err


def test_a_queue_offset_leads_to_the_message_that_has_it(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        copy_tree(case_folder("mq-53-single"), path)
    row = next(row for row in run("dump", paths[0], "--topic", "PayTopic", "--json").rows)
    what = f"PayTopic/{row['queueId']}/{row['queueOffset']}"
    assert (found := run("find", paths[0], what, "--json")).code == 0 and found.rows == [row]
    file = paths[0] / "dledger-n0" / "data" / row["segment"]
    flip(file, file.read_bytes().index(b"PayTopic", row["pos"] - int(row["segment"])), 2)
    done = run("find", paths[0], what)
    place = what.replace("PayTopic", "RayTopic")
    assert done.code == 1 and f"says that it is {place}: it or its ConsumeQueue unit is damaged" in done.err
    shutil.rmtree(paths[0] / "consumequeue" / "PayTopic")
    done = run("find", *paths, what, "--json", "-o", "heal=true")
    assert [found["index"] for found in done.rows] == [row["index"]], "a queue of any replica knows it"


def test_a_store_that_cannot_be_read_does_not_end_the_search(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        copy_tree(case_folder("mq-53-single"), path)
    row = next(row for row in run("dump", paths[0], "--json").rows if row["uniqKey"])
    file = next(path for path in (paths[0] / "index").iterdir())
    file.unlink()
    file.mkdir()
    done = run("find", *paths, row["uniqKey"], "--json")
    assert done.code == 1 and {found["index"] for found in done.rows} == {row["index"]}
    assert f"{file}: not a file" in done.err and f"{paths[1]}: found, 1 row, intact" in done.err


def test_a_damaged_property_name_hides_no_key(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    path = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), path)
    row = next(row for row in run("dump", path, "--json").rows if row["uniqKey"])
    file = path / "dledger-n0" / "data" / row["segment"]
    flip(file, file.read_bytes().index(b"UNIQ_KEY", row["pos"] - int(row["segment"])))
    done = run("find", path, row["uniqKey"])
    assert (done.code, done.out) == (1, "")
    assert f"found a message with other keys at commitLogOffset {row['pos'] + 48}" in done.err


def test_a_key_may_have_been_in_a_damaged_place(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """Without an index nothing is known, but the whole log was not read either."""
    path, row = with_lost_message(case_folder, tmp_path, run)
    shutil.rmtree(path / "index")
    done = run("find", path, row["uniqKey"])
    assert done.code == 1
    assert "found none in the intact part of the log; 1 place is damaged" in done.err


def test_a_message_in_a_missing_file_or_after_the_end_is_lost(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    path = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), path)
    rows = [row for row in run("dump", path, "--json").rows if row["uniqKey"]]
    files = sorted((path / "dledger-n0" / "data").iterdir())
    written = [file for file in files if any(row["segment"] == file.name for row in rows)]
    assert len(written) > 2
    middle = next(row for row in rows if row["segment"] == written[1].name)
    (path / "dledger-n0" / "data" / written[1].name).unlink()
    done = run("find", path, middle["uniqKey"])
    assert done.code == 1 and "it is lost" in done.err
    for file in files[files.index(written[-1]) :]:
        file.unlink()
    done = run("find", path, rows[-1]["uniqKey"])
    assert done.code == 1 and "it is lost, the log ends at" in done.err


def test_an_expired_message_has_expired(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    path = tmp_path / "store"
    copy_tree(case_folder("mq-53-single"), path)
    row = next(row for row in run("dump", path, "--json").rows if row["uniqKey"])
    (path / "dledger-n0" / "data" / row["segment"]).unlink()
    for what in (row["uniqKey"], row["index"], row["offsetMsgId"]):
        done = run("find", path, what)
        assert done.code == 1
        assert "it has expired" in done.err and "lost" not in done.err, what


def test_a_message_is_found_by_its_queue_offset(broker: Store, run: Callable[..., Ran]) -> None:
    assert [row["index"] for row in run("find", broker.path, "Orders/0/5", "--json").rows] == [5]
    done = run("find", broker.path, "Orders/0/8")
    assert done.code == 1 and "expected the queueOffset 8 of Orders/0, found the units 0 to 7" in done.err
    assert "no such queue" in run("find", broker.path, "--by", "queueOffset", "Orders/1/5").err
    assert run("find", broker.path, "--by", "queueOffset", "Orders").code == 2


@pytest.mark.parametrize("damaged", [bytes(20), b"\1" * 20, None])
def test_a_message_without_a_unit_is_found_by_its_queue_offset(
    broker: Store, run: Callable[..., Ran], damaged: bytes | None
) -> None:
    (file,) = (Path(broker.path) / "consumequeue" / "Orders" / "0").iterdir()
    data = file.read_bytes()
    if damaged is None:
        shutil.rmtree(file.parents[2])
    else:
        file.write_bytes(data[:100] + damaged + data[120:])
    assert [row["index"] for row in run("find", broker.path, "Orders/0/5", "--json").rows] == [5]


def test_a_trusted_index_leads_to_a_key(tmp_path: Path, run: Callable[..., Ran]) -> None:
    payloads = [
        mq_message(
            "Orders", properties=[("KEYS", f"k{number % 50}")], transaction="rollback" if number == 57 else "none"
        )
        for number in range(100)
    ]
    write_dledger(tmp_path, payloads)
    dl.rebuild(tmp_path, "index")
    trust = ("--topic", "Orders", "-o", "trustKeyIndex=true", "--json")
    for key, untrusted, trusted in (("k7", [7, 57], [7]), ("k47", [47, 97], [47, 97]), ("none", [], [])):
        assert [row["index"] for row in run("find", tmp_path, key, "--json").rows] == untrusted
        assert [row["index"] for row in run("find", tmp_path, key, *trust).rows] == trusted
    assert "needs --topic" in run("find", tmp_path, "k7", "-o", "trustKeyIndex=true").err
