"""ConsumeQueues and the index of keys built anew from the log: as the broker has them, and in their place."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import pyspark_dledger
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.queue_files import UNIT_DTYPE
from pyspark_dledger.rocketmq.broker.store_lock import StoreLock, locked
from pyspark_dledger.rocketmq.consume_queue.queue_writer import QueueWriter
from pyspark_dledger.rocketmq.index_file.index_file import index_files, read_header
from pyspark_dledger.rocketmq.index_file.message_keys import Keys
from pyspark_dledger.rocketmq.rebuild import (
    BuildSettings,
    FileSettings,
    build,
    builder,
    compare,
    rebuild,
    rebuild_job,
    swap,
)
from pyspark_dledger.rocketmq.rebuild.parts import PartCounts, TakenUnits, write_taken
from pyspark_dledger.rocketmq.store_checkpoint import StoreCheckpoint, read_store_checkpoint, write_store_checkpoint
from tests.support.dispatching import Messages, audit, dispatch, files_of, index_units, units, with_noise
from tests.support.generate import Store, mq_message, write_commitlog, write_dledger
from tests.support.golden import ALL, Golden
from tests.support.queues import FILLER, java_hash

BROKERS = [golden for golden in ALL if not golden.is_raw]
# The first files were deleted, and with them what the index has of their messages.
EXPIRED = "mq-53-retention"
# 4.5.1 counts slots in its own way: `hashSlotCount` of a header.
OLDEST = "mq-oldest"
KILLED_EARLY = "mq-498-upgrade-killed-early"
# Of all kinds of stores; the reference engine is slow.
SMALLEST = (EXPIRED, OLDEST, KILLED_EARLY, "mq-plain-crc")
SMALL = FileSettings(units_per_file=10, hash_slots=7, index_units=20)
WHATS = ("consumequeue", "index")

Unpack = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_loss_of_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, and no machine is: to wait for a disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def index_bytes(root: Path) -> list[bytes]:
    """The index files, whose names are the times when they were made."""
    return [path.read_bytes() for path in index_files(root)]


def store_of(root: Path, count: int = 60, **more: Any) -> Store:
    """A store in DLedger mode with messages of some queues, and what its broker dispatched."""
    store = write_dledger(root, with_noise(Messages().some(count)), file_size=4096, **more)
    (root / "lock").write_bytes(b"lock")
    for what in WHATS:
        rebuild(root, what, files=SMALL)
    return store


def backwards(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
    """A run whose results come in the wrong order."""
    return reversed([work(part) for part in parts])


# As RocketMQ


@pytest.mark.parametrize(
    ("golden", "engine"),
    [(golden, "native") for golden in BROKERS] + [(golden, "python") for golden in BROKERS if golden.case in SMALLEST],
    ids=str,
)
def test_queues_and_index_are_those_of_the_broker_byte_for_byte(
    case_folder: Unpack, tmp_path: Path, golden: Golden, engine: str
) -> None:
    source = case_folder(golden.case) / golden.folder
    for what in WHATS:
        rebuild(source, what, out=tmp_path / what, options={"engine": engine})
    assert files_of(tmp_path / "consumequeue", "consumequeue") == files_of(source, "consumequeue")
    ours, java = index_bytes(tmp_path / "index"), index_bytes(source)
    if golden.case == OLDEST:
        ours, java = ([data[:32] + data[36:] for data in files] for files in (ours, java))
    if golden.case != EXPIRED:
        assert ours == java


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_every_key_of_every_message_is_found(case_folder: Unpack, tmp_path: Path, golden: Golden) -> None:
    source = case_folder(golden.case) / golden.folder
    rebuild(source, "index", out=tmp_path / "out")
    by_hash: dict[int, set[int]] = {}
    for key_hash, offset in index_units(tmp_path / "out"):
        by_hash.setdefault(key_hash, set()).add(offset)
    expected = golden.expected()
    assert expected.queries
    begin = open_log(str(source)).state.min_offset
    for query in expected.queries:
        found = by_hash.get(_hash_of(query["topic"], query["key"]), set())
        assert {offset for offset in query["phyOffsets"] if offset >= begin} <= found
    end = max(end for _, end in index_units(tmp_path / "out"))
    for entry in expected.entries:
        words = (entry["keys"] or "").split(" ") if entry.get("keys") else []
        if (entry["sysFlag"] & 0xC) != 0xC and entry["commitLogOffset"] <= end:
            for word in filter(None, [entry["properties"].get("UNIQ_KEY"), *words]):
                assert entry["commitLogOffset"] in by_hash[_hash_of(entry["topic"], word)]


def _hash_of(topic: str, key: str) -> int:
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 2**31 else value


def test_beyond_what_the_broker_dispatched_queues_go_on(case_folder: Unpack, tmp_path: Path) -> None:
    """Its queues are the beginning of those that the whole log gives, which has two messages more."""
    source = case_folder(KILLED_EARLY)
    done = rebuild(source, "consumequeue", out=tmp_path / "out", options={"committedBound": "end"})
    assert done.built.messages == open_log(str(source)).end.last_index + 1 + 163
    ours, java = (files_of(root, "consumequeue") for root in (tmp_path / "out", source))
    more = 0
    for name, data in java.items():
        written = len(data.rstrip(b"\0")) + 19
        written -= written % 20
        assert ours[name][:written] == data[:written]
    for name, data in ours.items():
        more += (len(data.rstrip(b"\0")) + 19) // 20 - (len(java.get(name, b"").rstrip(b"\0")) + 19) // 20
    assert more == 2


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_nothing_would_change_in_what_a_broker_left(case_folder: Unpack, golden: Golden) -> None:
    source = case_folder(golden.case) / golden.folder
    for what in WHATS:
        found = compare(source, what)
        assert found.is_equal, [row for row in found.differences if not row.is_equal]
        assert found.built.messages > 0


def test_spark_builds_the_same(case_folder: Unpack, tmp_path: Path, spark: SparkSession) -> None:
    """The store has files of an old CommitLog, and DLedger's."""
    source = case_folder("mq-53-upgrade")
    for what in WHATS:
        done = pyspark_dledger.rebuild(source, what, spark=spark, out=tmp_path / what)
        assert done.built == rebuild(source, what, out=tmp_path / "here" / what).built
    assert files_of(tmp_path / "consumequeue", "consumequeue") == files_of(source, "consumequeue")
    assert index_bytes(tmp_path / "index") == index_bytes(source)


def test_parts_that_come_in_any_order_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_PART_BYTES", 1500)
    root = tmp_path / "root"
    store_of(root, 80)
    small = BuildSettings(10, 7, 20)
    done = build(open_log(str(root)), tmp_path / "out", settings=small, run=backwards)
    assert done.messages == 80
    assert files_of(tmp_path / "out", "consumequeue") == files_of(root, "consumequeue")
    assert index_bytes(tmp_path / "out") == index_bytes(root)
    assert sorted(os.listdir(tmp_path / "out")) == ["consumequeue", "index"]


def test_a_run_that_loses_a_part_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    with pytest.raises(StoreError, match=r"expected \d+ parts, found no end of number 1"):
        rebuild(root, "index", out=tmp_path / "out", run=lambda work, parts: iter([work(parts[0])]))
    assert not (tmp_path / "out" / "rebuild.parts").exists()


def test_the_same_as_a_broker_dispatches(tmp_path: Path) -> None:
    """Messages of one queueOffset, ones that come late, and holes: what a leader dispatches step by step."""
    draw = random.Random(7)
    payloads = []
    for number in range(200):
        place = max(0, number // 2 + draw.choice((0, 0, 0, 1, -1, -3, 12)))
        payloads.append(mq_message("T", b"%d" % number, queue_id=number % 2, queue_offset=place))
    root = tmp_path / "root"
    store = write_dledger(root, payloads, file_size=4096)
    done = rebuild(root, "consumequeue", files=SMALL)
    assert min(done.built.repeated, done.built.fillers, done.built.led_over) > 0
    ours = files_of(root, "consumequeue")
    shutil.rmtree(root / "consumequeue")
    dispatch(root, store.end, store.rows[-1]["index"])
    assert ours == files_of(root, "consumequeue")
    count = sum(len([unit for unit in units(root, "T", queue_id) if unit != FILLER]) for queue_id in range(2))
    count -= done.built.led_over
    assert (done.built.units, done.built.repeated) == (count, 200 - count)


def test_delayed_messages_have_their_time_by_the_levels_of_the_broker(tmp_path: Path) -> None:
    root = tmp_path / "root"
    properties = [("DELAY", "2"), ("REAL_TOPIC", "T")]
    write_dledger(root, [Messages().make("SCHEDULE_TOPIC_XXXX", 1, b"d", properties=properties)])
    stored = open_log(str(root)).scan(columns=["storeTimestamp"])
    millis = next(iter(stored)).column(0).cast("int64")[0].as_py() // 1000
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "messageDelayLevel = 1s 7s 9s\nmappedFileSizeConsumeQueue = 400\nmaxHashSlotNum = 5\nmaxIndexNum = 9\n"
    )
    for options, delay in (({}, 5000), ({"brokerConf": str(conf)}, 7000)):
        shutil.rmtree(root / "consumequeue", ignore_errors=True)
        pyspark_dledger.rebuild(root, "consumequeue", **options)
        assert [code for _, _, code in units(root, "SCHEDULE_TOPIC_XXXX", 1)] == [millis + delay]
    (file,) = (root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1").iterdir()
    assert file.stat().st_size == 400


# What the log does not have


def damage_orders(store: Store, segment: int) -> dict[str, Any]:
    """Spoil a message of Orders in a file of the log, which is not the last of its queue there."""
    name = Path(store.segments[segment].path)
    rows = [row for row in store.rows_of(store.segments[segment]) if row["topic"] == "Orders"]
    victim: dict[str, Any] = next(row for row in rows[3:] if row["queueId"] == 0)
    with name.open("r+b") as file:
        file.seek(victim["pos"] % 4096)
        file.write(b"\xff" * 60)
    return victim


@pytest.mark.parametrize("segment", [0, 1])
def test_the_place_of_a_damaged_message_hides_no_other(tmp_path: Path, segment: int) -> None:
    """A filler, but in the first file: with it RocketMQ would pass over the messages behind it in the same pull."""
    root = tmp_path / "root"
    victim = damage_orders(store_of(root), segment)
    place = victim["queueOffset"]
    before = units(root, "Orders", victim["queueId"])
    wanted = FILLER if segment else before[place + 1]
    found = compare(root, "consumequeue")
    (row,) = [row for row in found.differences if not row.is_equal]
    assert (row.topic, row.queue_id, row.queue_offset) == ("Orders", victim["queueId"], place)
    assert (row.different, row.missing, row.extra, row.fillers) == ((0, 0, 1, 1) if segment else (1, 0, 0, 1))
    assert row.expected == ("a filler" if segment else "commitLogOffset {}, size {}, tagsCode {}".format(*wanted))
    done = rebuild(root, "consumequeue")
    assert (done.built.fillers, done.built.led_over) == ((1, 0) if segment else (0, 1))
    assert done.built.units == found.built.units == sum(map(len, _all_units(root))) - 1
    told, advice = done.notes[-2:]
    assert told.startswith("1 units are fillers" if segment else "1 units are copies of the unit behind them")
    assert "restore the log" in advice
    after = units(root, "Orders", victim["queueId"])
    assert [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [place]
    assert after[place] == wanted
    assert compare(root, "consumequeue").is_equal
    assert [each for each in audit(root) if each["queueOffset"] not in (place, place + 1)] == []


def _all_units(root: Path) -> list[list[tuple[int, int, int]]]:
    return [units(root, folder.parent.name, int(folder.name)) for folder in (root / "consumequeue").glob("*/*")]


def test_a_long_hole_leads_on_only_from_where_a_pull_reaches(tmp_path: Path) -> None:
    """The beginning of the queue is not in the log: who begins there gets one message at most so many times."""
    root = tmp_path / "root"
    payloads = [mq_message("T", queue_offset=place) for place in (3000, 3001)]
    write_dledger(root, payloads)
    done = rebuild(root, "consumequeue", files=FileSettings(units_per_file=5000))
    assert done.built.led_over == 1024
    found = [unit[0] for unit in units(root, "T")]
    assert found[:3001] == [0] * (3000 - 1024) + [48] * 1025
    for most in (32, 800, 1024):
        for start in (0, 1, 1975, 1976, 1977, 2500, 2999, 3000):
            assert consumed(found[start:5000], most, 4096) == {48, found[3001]}


@pytest.mark.parametrize("seed", range(5))
def test_consumers_get_every_message_wherever_they_begin(tmp_path: Path, seed: int) -> None:
    """Of a queue with holes in the log's first files; a broker's pull is played."""
    draw = random.Random(seed)
    places = sorted(draw.sample(range(150), 70))
    store = write_dledger(tmp_path, [mq_message("T", b"x" * 40, queue_offset=place) for place in places])
    size = draw.choice((20, 1000))
    rebuild(tmp_path, "consumequeue", files=FileSettings(units_per_file=size))
    found = [unit[0] for unit in units(tmp_path, "T")]
    assert len(found) == places[-1] + 1
    offsets = {row["queueOffset"]: row["commitLogOffset"] for row in store.rows}
    for start in range(len(found)):
        stop = start - start % size + size
        wanted = {offset for place, offset in offsets.items() if start <= place < stop}
        assert consumed(found[start:stop], draw.choice((3, 30, 800)), 4096) >= wanted


def consumed(offsets: list[int], most: int, file_size: int) -> set[int]:
    """What a consumer gets from a ConsumeQueue file by its units' commitLogOffsets, by pulls that look at so many.

    As DefaultMessageStore.getMessage does; at 0 stands no message, for it has the header of an entry before it.
    """
    got = set()
    for start in range(0, len(offsets), most + 1):
        passed_over = 0
        for offset in offsets[start : start + most + 1]:
            if offset < passed_over:
                continue
            if offset:
                got.add(offset)
            passed_over = 0 if offset else file_size
    return got


def test_files_of_queues_have_the_times_of_their_messages(tmp_path: Path) -> None:
    """RocketMQ before 5.1 finds by them the file for a time; of what has expired the old files know them."""
    root = tmp_path / "root"
    messages = Messages()
    store = write_dledger(root, [messages.make("T", body=b"x" * 300) for _ in range(35)], file_size=4096)
    stored = [row["storeTimestamp"] // 1000 * 1_000_000 for row in store.rows if row["kind"] == "message"]
    expected = [stored[9], stored[19], stored[29], stored[34]]
    for is_expired in (False, True):
        if is_expired:
            for segment in store.segments[:2]:
                Path(segment.path).unlink()
        done = rebuild(root, "consumequeue", files=SMALL)
        assert (done.built.kept > 10) == is_expired
        files = sorted((root / "consumequeue" / "T" / "0").iterdir())
        assert [file.stat().st_mtime_ns for file in files] == expected


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = store_of(root)
    Path(store.segments[1].path).unlink()
    done = rebuild(root, "index")
    assert done.built.missing_bytes == 4096
    assert any("4096 bytes of the log are in files that are gone" in text for text in done.notes)
    assert compare(root, "index").is_equal


def test_a_queue_whose_messages_have_all_expired_keeps_its_end(tmp_path: Path) -> None:
    root = tmp_path / "root"
    messages = Messages()
    first = [messages.make("Old", 0, b"x" * 900) for _ in range(8)] + [messages.make("Both", 0) for _ in range(3)]
    store = write_dledger(root, [*first, *(messages.make("Both", 0, b"y" * 900) for _ in range(9))])
    rebuild(root, "consumequeue", files=SMALL)
    whole = files_of(root, "consumequeue")
    for segment in store.segments[:3]:
        Path(segment.path).unlink()
    assert compare(root, "consumequeue").is_equal
    done = rebuild(root, "consumequeue")
    assert files_of(root, "consumequeue") == whole
    assert done.built.kept > 8
    # Without what was there the beginning is filled up, and the queue of what is gone is not known.
    shutil.rmtree(root / "consumequeue")
    assert rebuild(root, "consumequeue", files=SMALL).built.kept == 0
    assert not (root / "consumequeue" / "Old").exists()
    first_kept = next(place for place, unit in enumerate(units(root, "Both")) if unit != FILLER)
    assert first_kept > 3


def test_without_a_committed_bound_nothing_is_built(tmp_path: Path) -> None:
    for what in WHATS:
        root = tmp_path / what
        write_dledger(root, Messages().some(5), checkpoint=False)
        with pytest.raises(StoreError, match="committedBound=end trusts the end of the log"):
            rebuild(root, what)
        assert rebuild(root, what, options={"committedBound": "end"}).built.messages == 5
        assert rebuild(root, what, options={"committedBound": 2}).built.messages == 3


# Queues of other kinds


def test_addresses_in_consumequeue_ext_stay(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    file = root / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    struct.pack_into(">q", data, 3 * 20 + 12, -(2**31) - 77)
    struct.pack_into(">qiq", data, 5 * 20, 1, 200, -(2**31) - 99)  # of no message
    file.write_bytes(data)
    (root / "consumequeue_ext").mkdir()
    (row,) = [row for row in compare(root, "consumequeue").differences if not row.is_equal]
    assert (row.different, row.queue_offset) == (1, 5)
    done = rebuild(root, "consumequeue")
    assert done.built.ext_units == 1
    assert any("1 units keep their address in consumequeue_ext" in text for text in done.notes)
    codes = [code for _, _, code in units(root)]
    assert codes[3] == -(2**31) - 77
    assert abs(codes[5]) < 2**31


def test_batch_queues_are_told_and_not_built(tmp_path: Path) -> None:
    root = tmp_path / "root"
    folder = root / "batchconsumequeue" / "Batched" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(46))
    messages = Messages()
    payloads = [messages.make("Batched"), messages.make("Inner", other_flags=0x80), messages.make("Orders")]
    write_dledger(root, payloads)
    done = rebuild(root, "consumequeue", files=SMALL)
    assert sorted(os.listdir(root / "consumequeue")) == ["Orders"]
    assert (done.built.batches, done.built.units) == (2, 1)
    assert done.notes == ("2 messages are in batchconsumequeue: its queues, such as those of Batched, are not rebuilt",)


def test_light_message_queues_are_not_lost(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    shutil.copytree(root / "consumequeue" / "Orders", root / "consumequeue" / "%LMQ%one")
    with pytest.raises(StoreError, match="light message queue %LMQ%one, which would be lost"):
        rebuild(root, "consumequeue")
    assert (root / "consumequeue" / "%LMQ%one").is_dir()
    rebuild(root, "consumequeue", out=tmp_path / "out")
    rebuild(root, "index")


def test_queues_in_rocksdb_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_dledger(root, Messages().some(3))
    (root / "consumequeue").mkdir()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(StoreError, match="found a RocksDB"):
        rebuild(root, "consumequeue")


# What would change


def test_differences_are_told_queue_by_queue(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    shutil.rmtree(root / "consumequeue" / "Pays")
    shutil.copytree(root / "consumequeue" / "Orders" / "0", root / "consumequeue" / "Ghost" / "0")
    file = root / "consumequeue" / "Orders" / "1" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[40:60] = bytes(20)
    data[68:72] = b"\1\2\3\4"
    file.write_bytes(data)
    before = files_of(root, *WHATS)
    rows = {(row.topic, row.queue_id): row for row in compare(root, "consumequeue").differences if not row.is_equal}
    assert set(rows) == {("Pays", 0), ("Ghost", 0), ("Orders", 1)}
    assert (rows["Pays", 0].missing, rows["Pays", 0].found) == (len(_dispatched(root, "Pays", 0)), "nothing written")
    ghost, orders = rows["Ghost", 0], rows["Orders", 1]
    assert (ghost.extra, ghost.equal, ghost.queue_offset, ghost.expected) == (len(units(root, "Ghost")), 0, 0, "none")
    assert (orders.missing, orders.different, orders.queue_offset) == (1, 1, 2)
    assert files_of(root, *WHATS) == before
    assert not list(root.glob("*.rebuilding"))


def _dispatched(root: Path, topic: str, queue_id: int) -> list[dict[str, Any]]:
    batches = open_log(str(root)).scan(columns=["transaction"], topic=topic, queueId=queue_id)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row for row in rows if row["transaction"] in ("none", "commit")]


def test_differences_are_told_index_file_by_index_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root, 120)
    first, second, third, *_ = index_files(root)
    header = read_header(second)
    assert header is not None
    third.unlink()
    at = 40 + 7 * 4 + 20 * 5
    data = bytearray(second.read_bytes())
    hash_before, offset_before = struct.unpack_from(">iq", data, at)
    struct.pack_into(">iq", data, at, hash_before + 7, offset_before)  # of the same slot
    second.write_bytes(data)
    found = compare(root, "index")
    rows = {row.file: row for row in found.differences if not row.is_equal}
    row = rows[second.name]
    assert (row.extra, row.unlinked, row.commit_log_offset) == (1, 0, offset_before)
    # Of the file that is gone, some may be of messages that its neighbours have other keys of.
    assert sum(each.missing for each in rows.values()) == 1 + 19
    assert rows[None].missing >= 15
    data[40 : 40 + 28] = bytes(28)
    second.write_bytes(data)
    rows = {row.file: row for row in compare(root, "index").differences}
    assert rows[second.name].unlinked + (rows[second.name].problem is not None) > 0
    assert not rows[second.name].is_equal
    assert rows[first.name].is_equal


def test_an_index_file_may_say_any_number_of_units(tmp_path: Path) -> None:
    """No more memory is taken than the file has room for."""
    root = tmp_path / "root"
    store_of(root)
    first = index_files(root)[0]
    with first.open("r+b") as file:
        file.seek(36)
        file.write(struct.pack(">i", 30_000_000))
    tracemalloc.start()
    try:
        (row,) = [row for row in compare(root, "index").differences if not row.is_equal]
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert row.file == first.name


def test_a_queue_file_that_no_broker_can_map_gives_no_size(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, "consumequeue")
    ghost = root / "consumequeue" / "Ghost" / "0"
    ghost.mkdir(parents=True)
    for number in range(40):
        file = ghost / f"{number << 40:020d}"
        file.touch()
        os.truncate(file, 1 << 40)
    rebuild(root, "consumequeue")
    assert files_of(root, "consumequeue") == before


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store whose queues are as its broker left them."""
    root = tmp_path_factory.mktemp("sound") / "root"
    store_of(root, 40)
    return root


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_becomes_of_the_queues_they_are_told_and_made_good(
    sound: Path, folder: Callable[[], Path], data: st.DataObject
) -> None:
    root = folder() / "root"
    shutil.copytree(sound, root)
    good = files_of(root, "consumequeue")
    for _ in range(data.draw(st.integers(0, 3))):
        change_something(root / "consumequeue", data)
    found = compare(root, "consumequeue", files=SMALL)
    written = {name: each.rstrip(b"\0") for name, each in files_of(root, "consumequeue").items() if each.strip(b"\0")}
    assert found.is_equal == (written == {name: each.rstrip(b"\0") for name, each in good.items()})
    rebuild(root, "consumequeue", files=SMALL)
    assert files_of(root, "consumequeue") == good
    assert compare(root, "consumequeue", files=SMALL).is_equal


def change_something(folder: Path, data: st.DataObject) -> None:
    """Change some bytes of a file, cut it, or remove it."""
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    content = path.read_bytes()
    at = data.draw(st.integers(0, max(len(content) - 1, 0)))
    change = data.draw(st.binary(min_size=1, max_size=40))
    kinds = {"change": content[:at] + change + content[at + len(change) :], "cut": content[:at], "gone": None}
    changed = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_becomes_of_the_index_it_is_told_and_made_good(
    sound: Path, folder: Callable[[], Path], data: st.DataObject
) -> None:
    root = folder() / "root"
    shutil.copytree(sound, root)
    good = index_bytes(root)
    for _ in range(data.draw(st.integers(0, 2))):
        change_something(root / "index", data)
    found = compare(root, "index")
    if index_bytes(root) == good:
        assert found.is_equal
    keys = {(key, offset) for key, offset in _keys_on_disk(root) if found.is_equal}
    assert not found.is_equal or keys == set(index_units(sound))
    rebuild(root, "index", files=SMALL)
    assert index_bytes(root) == good


def _keys_on_disk(root: Path) -> list[tuple[int, int]]:
    """Hash and offset of every unit, as far as files say that they have any."""
    units = []
    for path in index_files(root):
        header, content = read_header(path), path.read_bytes()[40 + 7 * 4 :]
        count = header.index_count if header is not None else 0
        units += [
            struct.unpack_from(">iq", content, 20 * number) for number in range(1, min(count, len(content) // 20))
        ]
    return units


# In the place of the old ones


@pytest.mark.parametrize("what", WHATS)
def test_the_old_one_is_kept_beside(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    store_of(root)
    file = next(path for path in (root / what).rglob("*") if path.is_file())
    file.write_bytes(b"not any more")
    before = files_of(root, what)
    log = files_of(root, "dledger-n0")
    done = rebuild(root, what, files=SMALL)
    assert done.before is not None
    kept = {name.replace(done.before, what, 1): data for name, data in files_of(root, done.before).items()}
    assert kept == before
    assert compare(root, what).is_equal
    assert files_of(root, "dledger-n0") == log
    assert not list(root.glob("*.rebuilding"))
    assert done.before in os.listdir(root)


@pytest.mark.parametrize("what", WHATS)
def test_what_would_not_change_stays(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    store_of(root)
    before, inode = files_of(root, *WHATS), (root / what).stat().st_ino
    done = rebuild(root, what)
    assert done.before is None
    assert done.notes[0] == "nothing changed: what was built is, byte for byte, what is there, which stays"
    assert (files_of(root, *WHATS), (root / what).stat().st_ino) == (before, inode)
    assert not list(root.glob(f"{what}.*")), "neither what was built nor an old folder is beside it"


def _change_a_byte(files: list[Path]) -> None:
    data = files[-1].read_bytes()
    files[-1].write_bytes(data[:-1] + b"\x55")


def _lengthen(files: list[Path]) -> None:
    with files[0].open("ab") as file:
        file.write(bytes(20))


def _link(files: list[Path]) -> None:
    elsewhere = files[0].parents[5] / "elsewhere"
    files[0].rename(elsewhere)
    files[0].symlink_to(elsewhere)


def _rename(files: list[Path]) -> None:
    files[-1].rename(files[-1].with_name("9" * 20))


def _add(files: list[Path]) -> None:
    (files[0].parent / "notes").touch()


@pytest.mark.parametrize("change", [_change_a_byte, _lengthen, _link, _rename, _add])
def test_what_is_not_the_same_to_the_last_byte_is_replaced(tmp_path: Path, change: Callable[[list[Path]], Any]) -> None:
    root = tmp_path / "store" / "root"
    store_of(root)
    before = files_of(root, "consumequeue")
    change(sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file()))
    done = rebuild(root, "consumequeue", files=SMALL)
    assert done.before is not None
    assert not any(text.startswith("nothing changed") for text in done.notes)
    assert files_of(root, "consumequeue") == before


def test_an_index_is_the_same_whatever_its_files_are_called(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    for number, file in enumerate(index_files(root)):
        file.rename(file.with_name(f"{number:017d}"))
    before = files_of(root, "index")
    assert rebuild(root, "index").before is None
    assert files_of(root, "index") == before


def test_queues_that_stay_get_their_times(tmp_path: Path) -> None:
    """RocketMQ before 5.1 needs them, and a copy of a store may have lost them."""
    root = tmp_path / "root"
    store_of(root)
    files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
    times = [file.stat().st_mtime_ns for file in files]
    for file in files[:2]:
        os.utime(file, (5, 5))
    done = rebuild(root, "consumequeue")
    assert done.before is None
    assert done.notes[0].endswith("which stays; 2 of its files got the times of their last messages")
    assert [file.stat().st_mtime_ns for file in files] == times


def test_queues_whose_times_may_not_be_set_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    store_of(root)

    def refuse(_new: Path, _old: Path) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(rebuild_job, "take_times", refuse)
    done = rebuild(root, "consumequeue")
    assert done.before is not None
    assert (root / done.before).is_dir()


class _Killed(BaseException):
    """Ends a run as a kill does: nothing in it catches it."""


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    root, start = tmp_path / "root", tmp_path / "start"
    store_of(start)
    new = files_of(start, "consumequeue")
    shutil.rmtree(start / "consumequeue" / "Pays")
    old = files_of(start, "consumequeue")
    seen = set()
    for step in range(1, 50):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(start, root)
        with monkeypatch.context() as patched:
            _kill_at(patched, step, can_exchange)
            try:
                rebuild(root, "consumequeue")
                break
            except _Killed:
                pass
        there = files_of(root, "consumequeue")
        kept = [name for name in os.listdir(root) if ".before-" in name]
        # Where names cannot be exchanged there is a moment with neither; the old one is kept then.
        is_between = not can_exchange and not there and len(kept) == 1
        assert there in (old, new) or is_between
        seen.add("between" if is_between else "new" if there == new else "old")
        done = rebuild(root, "consumequeue")
        assert files_of(root, "consumequeue") == new
        assert not list(root.glob("*.rebuilding"))
        seen |= {text.partition(" its ")[0] for text in done.notes if text.startswith("an earlier")}
        keeps = [name for name in sorted(os.listdir(root)) if ".before-" in name]
        assert any(_named(root, name) == old for name in keeps)
    else:
        pytest.fail("the run has more steps than were tried")
    assert step > 8
    told = [f"an earlier run was broken off {when}" for when in ("before", "when", "while it put")]
    assert seen == ({"old", "new", *told[:2]} if can_exchange else {"old", "new", "between", *told})


def _named(root: Path, name: str) -> dict[str, bytes]:
    return {path.replace(name, "consumequeue", 1): data for path, data in files_of(root, name).items()}


def _kill_at(patched: pytest.MonkeyPatch, step: int, can_exchange: bool) -> None:
    """Kill a run before its n-th call of one that changes names, or makes them durable."""
    left = [step]

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise _Killed
            return function(*given, **named)

        return call

    patched.setattr(Path, "rename", killing(Path.rename))
    patched.setattr(swap, "sync_dir", killing(swap.sync_dir))
    patched.setattr(builder, "sync_dir", killing(builder.sync_dir))
    patched.setattr(swap, "_exchange", killing(swap._exchange) if can_exchange else lambda *_: False)
    patched.setattr(swap.shutil, "rmtree", killing(shutil.rmtree))


def test_a_killed_process_leaves_the_old_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)
    code = """
import os, signal, sys
from pyspark_dledger.rocketmq.rebuild import rebuild
rebuild(sys.argv[1], "index", progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""
    killed = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (root / "index.rebuilding").is_dir()
    assert files_of(root, *WHATS) == before
    done = rebuild(root, "index")
    assert done.notes[0].startswith("an earlier run was broken off before its index was in place")
    assert compare(root, "index").is_equal


def test_a_store_that_somebody_has_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)
    take = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); print(); input()"
    line = [sys.executable, "-c", take, str(root / "lock")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreError, match="in use by a broker, a node or a job"):
            rebuild(root, "index")
        rebuild(root, "index", out=tmp_path / "out")
        assert compare(root, "index").is_equal
        holder.communicate("\n")
    with locked(root), pytest.raises(StoreError, match="the store is open in this process"):
        rebuild(root, "index")
    assert files_of(root, *WHATS) == before
    rebuild(root, "index")


def test_a_log_that_is_written_meanwhile_keeps_what_it_has(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root, 40)
    before = files_of(root, *WHATS)

    def grow(_done: int, _total: int) -> None:
        write_dledger(root, with_noise(Messages().some(45)), file_size=4096)

    with pytest.raises(StoreError, match="expected a log that nobody writes, found that it has changed meanwhile"):
        rebuild(root, "consumequeue", progress=grow)
    assert files_of(root, *WHATS) == before


def test_what_is_read_back_wrong_is_not_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)

    def spoil(folder: str, at: int) -> None:
        path = next(path for path in sorted((root / f"{folder}.rebuilding").rglob("*")) if path.is_file())
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x55")

    sync = QueueWriter.sync
    monkeypatch.setattr(QueueWriter, "sync", lambda self: (sync(self), spoil("consumequeue", 25)))
    with pytest.raises(StoreError, match="bytes that were written, with CRC"):
        rebuild(root, "consumequeue")
    verify = builder._Index._verify
    for at, error in ((40 + 7 * 4 + 20 * 3 + 11, "keys that were written"), (40 + 3, "slots that lead to all units")):
        monkeypatch.setattr(
            builder._Index, "_verify", lambda self, files, at=at: (spoil("index", at), verify(self, files))
        )
        with pytest.raises(StoreError, match=error):
            rebuild(root, "index")
    assert files_of(root, *WHATS) == before


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_full_disk_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_outside: bool
) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)

    def full(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for what in WHATS:
        out = tmp_path / "out" / what if is_outside else None
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            # The lock of a store is written, too.
            patched.setattr(StoreLock, "lock", lambda _: None)
            with pytest.raises(StoreError, match="found No space left on device: check the disk"):
                rebuild(root, what, out=out)
        assert files_of(root, *WHATS) == before
        assert not list(root.glob("*.rebuilding/*"))
        rebuild(root, what, out=out)


def test_the_store_checkpoint_says_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = store_of(root)
    last = next(row["storeTimestamp"] for row in reversed(store.rows) if row["kind"] == "message")
    millis = int(last.timestamp() * 1000) if hasattr(last, "timestamp") else last // 1000
    # An unclean end lets RocketMQ delete index files that are newer than this.
    behind = StoreCheckpoint(millis, millis, millis - 9000, 0, 5)
    write_store_checkpoint(root, behind)
    rebuild(root, "consumequeue")
    assert read_store_checkpoint(root) == behind
    rebuild(root, "index")
    assert read_store_checkpoint(root) == behind._replace(index_msg_timestamp=millis)
    # Queues that end earlier are dispatched to from there on.
    rebuild(root, "consumequeue", options={"committedBound": 10})
    assert read_store_checkpoint(root).logics_msg_timestamp < millis
    assert read_store_checkpoint(root).physic_msg_timestamp == millis


def test_links_and_files_are_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    (root / "index").rename(tmp_path / "elsewhere")
    (root / "index").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="found a link or a mounted file system"):
        rebuild(root, "index")
    (root / "index").unlink()
    (root / "index").write_text("x")
    with pytest.raises(StoreError, match="expected a folder, found a file"):
        rebuild(root, "index")


def test_another_place_has_to_be_empty_and_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    for out, error in ((root, "outside of the store"), (root / "new", "outside of the store"), (tmp_path, "an empty")):
        with pytest.raises(StoreError, match=error):
            rebuild(root, "index", out=out)
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(StoreError, match="outside of the store"):
        rebuild(root, "index", out=tmp_path / "link" / "new")


@pytest.mark.parametrize("is_unclean", [False, True])
def test_a_node_of_ours_goes_on_where_they_end(tmp_path: Path, is_unclean: bool) -> None:
    payloads = Messages().some(90)
    ours, other = tmp_path / "ours", tmp_path / "other"
    for root in (ours, other):
        write_dledger(root, payloads, file_size=4096, committed=59)
    for what in WHATS:
        rebuild(ours, what, files=SMALL)
    store = write_dledger(tmp_path / "end", payloads, file_size=4096)
    for root in (ours, other):
        dispatch(root, store.end, 89, is_unclean=is_unclean)
    assert files_of(ours, "consumequeue") == files_of(other, "consumequeue")
    assert index_bytes(ours) == index_bytes(other)


# How it is asked for


def test_sizes_are_those_that_are_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    rebuild(root, "consumequeue")
    rebuild(root, "index")
    sizes = {path.stat().st_size for path in (root / "consumequeue").rglob("*") if path.is_file()}
    assert sizes == {200}
    assert {path.stat().st_size for path in index_files(root)} == {40 + 7 * 4 + 20 * 20}
    pyspark_dledger.rebuild(root, "index", hashSlots=11, INDEXUNITS="30")
    assert {path.stat().st_size for path in index_files(root)} == {40 + 11 * 4 + 30 * 20}
    shutil.rmtree(root / "consumequeue")
    rebuild(root, "consumequeue")
    sizes = {path.stat().st_size for path in (root / "consumequeue").rglob("*") if path.is_file()}
    assert sizes == {6_000_000}


@pytest.mark.parametrize(
    ("what", "options", "error"),
    [
        ("queues", {}, "expected consumequeue or index to rebuild, found queues"),
        ("index", {"topic": "x"}, "option topic has no effect on a rebuild"),
        ("index", {"committdBound": "end"}, "committedBound"),
        ("index", {"unitsPerFile": "many"}, "unitsPerFile: expected a whole number"),
        ("index", {"hashSlots": 0}, "hash_slots: expected a number from 1"),
        ("index", {"indexUnits": 1}, "index_units: expected a number from 2"),
        ("index", {"brokerConf": "/nowhere"}, "broker-conf /nowhere"),
        ("index", {"dry_run": True, "out": "/tmp/x"}, "dry_run writes nothing"),
        ("index", {"out": "s3://bucket/x"}, "out s3://bucket/x: expected a folder of this machine"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, what: str, options: dict[str, Any], error: str) -> None:
    write_dledger(tmp_path, Messages().some(3))
    with pytest.raises(OptionError, match=error):
        pyspark_dledger.rebuild(tmp_path, what, **options)
    assert sorted(os.listdir(tmp_path)) == ["dledger-n0"]


def test_a_folder_without_a_root_is_refused(tmp_path: Path) -> None:
    write_dledger(tmp_path / "root", Messages().some(3))
    shutil.move(tmp_path / "root" / "dledger-n0" / "data", tmp_path / "data")
    with pytest.raises(StoreError, match="expected a storePathRootDir"):
        rebuild(tmp_path / "data", "index")


def test_a_plain_commitlog_is_rebuilt_whole(tmp_path: Path) -> None:
    write_commitlog(tmp_path, Messages().some(50))
    done = rebuild(tmp_path, "consumequeue")
    assert (done.before, done.committed, done.built.messages) == (None, "all of the CommitLog", 50)
    assert compare(tmp_path, "consumequeue").is_equal


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    store_of(root)
    assert main(["rebuild", "consumequeue", str(root), "--dry-run"]) == 0
    assert "5 queues are as they would be built, 0 are not" in capsys.readouterr().out
    shutil.rmtree(root / "consumequeue" / "Pays")
    assert main(["rebuild", "consumequeue", str(root), "--dry-run"]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[1].split()[:2] == ["Pays", "0"]
    assert "4 queues are as they would be built, 1 are not" in text
    assert main(["rebuild", "consumequeue", str(root), "--dry-run", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["topic"] for row in rows if row["missing"]] == ["Pays"]
    assert main(["rebuild", "consumequeue", str(root), "--units-per-file", "10", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["folder"] == str(root / "consumequeue")
    assert (root / done["before"]).is_dir()
    assert main(["rebuild", "consumequeue", str(root / "dledger-n0" / "data")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{root / 'consumequeue'}: "), "what is changed is named, not what was given"
    assert any(line.startswith("note: nothing changed: ") for line in lines)
    assert not any(line.startswith("what was there is kept") for line in lines)
    assert main(["rebuild", "index", str(root), "--out", str(tmp_path / "out")]) == 0
    assert "of 60 messages up to index" in capsys.readouterr().out
    assert main(["rebuild", "index", str(root), "--dry-run", "--out", "x"]) == 2
    assert main(["rebuild", "index", str(tmp_path / "nothing")]) == 2


def test_a_full_disk_is_said_where_parts_leave_what_they_have() -> None:
    nothing = np.empty(0, np.int64)
    keys = Keys(nothing, nothing, nothing)
    taken = TakenUnits(0, [], nothing, nothing, np.zeros(0, UNIT_DTYPE), keys, PartCounts(0, 0, "", 0, 0))
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left") as caught:
        write_taken(full, taken)
    assert caught.value.errno == errno.ENOSPC
