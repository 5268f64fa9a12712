"""Reading messages of a broker's store: by offset, by queue, by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.log import open_log
from tests.support.dispatching import LONG_AGO, STEP_MS, Messages, dispatch, end_of
from tests.support.generate import Payload, Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.golden import ALL, Golden
from tests.support.message_reader import MessageReader

COMMITTED = 44


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Store, Store, MessageReader]:
    """An old CommitLog, then DLedger with entries that are not committed."""
    messages = Messages()
    old = write_commitlog(tmp_path, messages.some(30), file_size=2048)
    payloads = messages.some(60)
    payloads[10:10] = [raw(b"no message")]
    store = write_dledger(tmp_path, payloads, file_size=2048, base=old.segments[-1].end, committed=COMMITTED)
    dispatch(tmp_path, store.end, COMMITTED)
    return old, store, reader(tmp_path, end_of(store, COMMITTED))


def reader(root: Path, committed_pos: int) -> MessageReader:
    return MessageReader(root, [root / "dledger-n0" / "data"], lambda: committed_pos)


# By offset


def test_committed_messages_are_found_in_commitlog_and_dledger(mixed: tuple[Store, Store, MessageReader]) -> None:
    old, store, reads = mixed
    for row in [*old.rows, *store.rows]:
        if row["kind"] != "message":
            continue
        is_committed = row["index"] is None or row["index"] <= COMMITTED
        expected = row["entryBody"] if is_committed else None
        assert reads.get_message(row["commitLogOffset"], row["storeSize"]) == expected
        assert reads.get_message(row["commitLogOffset"]) == expected
        assert reads.get_message(row["commitLogOffset"], row["storeSize"] + 1) is None
        assert reads.get_message(row["commitLogOffset"] + 1) is None
        assert reads.get_message(row["commitLogOffset"] - 1) is None


def test_offsets_without_a_message_give_none(mixed: tuple[Store, Store, MessageReader]) -> None:
    old, store, reads = mixed
    entry = next(row for row in store.rows if row["kind"] == "entry")
    divided = store.segments[0].base
    for offset in (-1, entry["pos"] + 48, old.end, divided - 1, divided, store.segments[-1].end + 5, 1 << 62):
        assert reads.get_message(offset) is None


def test_messages_are_found_once_they_are_committed(mixed: tuple[Store, Store, MessageReader], tmp_path: Path) -> None:
    _, store, _ = mixed
    committed = -1
    reads = MessageReader(tmp_path, [tmp_path / "dledger-n0" / "data"], lambda: committed)
    row = next(row for row in store.rows if row["index"] == 3)
    assert reads.get_message(row["commitLogOffset"]) is None
    committed = end_of(store, 2)
    assert reads.get_message(row["commitLogOffset"]) is None
    committed = end_of(store, 3)
    assert reads.get_message(row["commitLogOffset"]) == row["entryBody"]


def test_new_and_deleted_files_are_noticed(tmp_path: Path) -> None:
    reads = reader(tmp_path, 1 << 60)
    assert reads.get_message(48) is None
    store = write_dledger(tmp_path, Messages().some(40), file_size=2048)
    first, last = store.rows[0], store.rows[-1]
    assert reads.get_message(first["commitLogOffset"]) == first["entryBody"]
    assert reads.get_message(last["commitLogOffset"]) == last["entryBody"]
    Path(store.segments[0].path).unlink()
    assert reads.get_message(first["commitLogOffset"]) is None
    assert reads.get_message(last["commitLogOffset"]) == last["entryBody"]


# By queue


def queue_of(rows: list[dict[str, Any]], topic: str, queue_id: int) -> list[bytes]:
    return [
        row["entryBody"]
        for row in rows
        if (row["topic"], row["queueId"]) == (topic, queue_id) and row["transaction"] in ("none", "commit")
    ]


def test_messages_of_a_queue_are_read_in_order(mixed: tuple[Store, Store, MessageReader]) -> None:
    old, store, reads = mixed
    committed = [row for row in store.rows if row["index"] <= COMMITTED]
    for queue_id in range(3):
        expected = queue_of([*old.rows, *committed], "Orders", queue_id)
        found: list[bytes] = []
        offset = 0
        while True:
            result = reads.by_queue("Orders", queue_id, offset, 4)
            if result.status != "FOUND":
                break
            assert len(result.messages) <= 4
            found += result.messages
            offset = result.next_offset
        assert found == expected
        assert result == ("OFFSET_OVERFLOW_ONE", [], len(expected), 0, len(expected))


def test_offsets_outside_a_queue_have_rocketmqs_statuses(mixed: tuple[Store, Store, MessageReader]) -> None:
    old, store, reads = mixed
    committed = [row for row in store.rows if row["index"] <= COMMITTED]
    high = len(queue_of([*old.rows, *committed], "Orders", 0))
    assert reads.by_queue("Orders", 0, high + 5) == ("OFFSET_OVERFLOW_BADLY", [], high, 0, high)
    assert reads.by_queue("Orders", 0, -1) == ("OFFSET_TOO_SMALL", [], 0, 0, high)
    for topic, queue_id in (("Orders", 9), ("Nobody", 0), ("../Orders", 0), ("Orders", -1)):
        assert reads.by_queue(topic, queue_id, 0).status == "NO_MATCHED_LOGIC_QUEUE"


def test_a_queue_begins_with_the_log(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, Messages().some(60), file_size=2048)
    dispatch(tmp_path, store.end, 59)
    for segment in store.segments[:2]:
        Path(segment.path).unlink()
    begin = store.segments[2].base
    expired = queue_of([row for row in store.rows if row["pos"] < begin], "Orders", 1)
    result = reader(tmp_path, store.end).by_queue("Orders", 1, 0)
    assert result.status == "OFFSET_TOO_SMALL"
    assert result.next_offset == result.min_offset == len(expired)
    left = reader(tmp_path, store.end).by_queue("Orders", 1, result.next_offset, 100).messages
    assert left == queue_of([row for row in store.rows if row["pos"] >= begin], "Orders", 1)


def test_fillers_of_a_queue_are_skipped(tmp_path: Path) -> None:
    messages = [mq_message("Orders", queue_offset=offset) for offset in (3, 6, 7)]
    store = write_dledger(tmp_path, messages, base=4096)
    dispatch(tmp_path, store.end, 2)
    reads = reader(tmp_path, store.end)
    assert reads.by_queue("Orders", 0, 0).min_offset == 3
    result = reads.by_queue("Orders", 0, 4, 2)
    assert (result.status, result.messages, result.next_offset) == ("MESSAGE_WAS_REMOVING", [], 6)
    assert len(reads.by_queue("Orders", 0, 3, 100).messages) == 3


# By key


def keyed(*keys: list[tuple[str, str]]) -> list[Payload]:
    return [
        mq_message(
            "T", b"%d" % number, properties=each, queue_offset=number, store_timestamp=LONG_AGO + number * STEP_MS
        )
        for number, each in enumerate(keys)
    ]


def bodies(messages: list[bytes]) -> list[int]:
    """The numbers in the bodies of `keyed` messages, which begin after 88 bytes."""
    return [int(data[88 : 88 + int.from_bytes(data[84:88], "big")]) for data in messages]


def test_messages_are_found_by_their_keys(tmp_path: Path) -> None:
    payloads = keyed(
        [("KEYS", "a b"), ("UNIQ_KEY", "u0")], [("KEYS", "b")], [("UNIQ_KEY", "b")], [], [("KEYS", "键"), ("TAGS", "b")]
    )
    store = write_dledger(tmp_path, payloads)
    dispatch(tmp_path, store.end, 4)
    reads = reader(tmp_path, store.end)
    assert bodies(reads.by_key("T", "a")) == [0]
    assert bodies(reads.by_key("T", "b")) == [0, 1, 2]
    assert bodies(reads.by_key("T", "u0")) == [0]
    assert bodies(reads.by_key("T", "键")) == [4]
    assert reads.by_key("T", "") == []
    assert reads.by_key("Other", "a") == []
    assert bodies(reader(tmp_path, end_of(store, 1)).by_key("T", "b")) == [0, 1]


def test_the_newest_messages_are_found_across_index_files(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, keyed(*([("KEYS", f"k{number % 2} x")] for number in range(90))))
    dispatch(tmp_path, store.end, 89)
    reads = reader(tmp_path, store.end)
    assert bodies(reads.by_key("T", "x", 1000)) == list(range(90))
    assert bodies(reads.by_key("T", "k1", 5)) == [81, 83, 85, 87, 89]
    begin, end = LONG_AGO + 20 * STEP_MS, LONG_AGO + 25 * STEP_MS
    assert bodies(reads.by_key("T", "x", 1000, begin, end)) == list(range(20, 26))


def test_keys_with_equal_hashes_are_distinguished(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, keyed([("KEYS", "Aa")], [("KEYS", "BB")], [("KEYS", "Aa")]))
    dispatch(tmp_path, store.end, 2)
    reads = reader(tmp_path, store.end)
    assert bodies(reads.by_key("T", "Aa")) == [0, 2]
    assert bodies(reads.by_key("T", "BB")) == [1]


def test_a_damaged_index_file_ends_its_chains(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, keyed(*([("KEYS", "x")] for _ in range(9))))
    dispatch(tmp_path, store.end, 8)
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    at = 40 + 4 * 7 + 20 * 5
    data[at + 16 : at + 20] = (9).to_bytes(4, "big")
    path.write_bytes(data)
    assert bodies(reader(tmp_path, store.end).by_key("T", "x")) == [4, 5, 6, 7, 8]


# RocketMQ's own results


@pytest.mark.parametrize("golden", [each for each in ALL if each.case in ("mq-53-single", "mq-53-upgrade")], ids=str)
def test_rocketmq_finds_the_same(case_folder: Any, golden: Golden) -> None:
    root = case_folder(golden.case) / golden.folder
    log = open_log(str(root))
    reads = MessageReader(root, log.paths.data_dirs, lambda: log.state.max_offset)
    expected = golden.expected()
    for message in expected.entries:
        found = reads.get_message(message["physicalOffset"], message["storeSize"])
        assert found is not None
        assert len(found) == message["storeSize"]
        result = reads.by_queue(message["topic"], message["queueId"], message["queueOffset"], 1)
        if message["sysFlag"] & 0xC in (0, 8):
            assert result.messages == [found]
        unique = message["properties"].get("UNIQ_KEY")
        if unique and message["sysFlag"] & 0xC != 0xC:
            assert found in reads.by_key(message["topic"], unique)
