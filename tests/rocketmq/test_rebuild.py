"""ConsumeQueues and index rebuilt from the log equal those of a broker; damage and missing messages become fillers."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pyspark_dledger
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.key_files import index_files
from pyspark_dledger.rocketmq.rebuild import FileSettings, builder, compare, rebuild
from pyspark_dledger.rocketmq.rebuild.builder import BuildSettings, build
from pyspark_dledger.rocketmq.rebuild.dispatched_units import NO_UNITS, save_units
from tests.support.damage import write_at
from tests.support.dispatching import Messages, audit, dispatch, files_of, index_units, units
from tests.support.generate import Store, mq_message, write_commitlog, write_dledger
from tests.support.golden import ALL, Golden
from tests.support.long_runs import mostly_slow
from tests.support.queues import FILLER, java_hash
from tests.support.rebuilds import SMALL, WHATS, index_bytes, store_of
from tests.support.sparse_copy import copy_tree

BROKERS = [golden for golden in ALL if not golden.is_raw]
# The first files of log and index were deleted.
EXPIRED = "mq-53-retention"
# In 4.5.1 `hashSlotCount` of a header is counted in another way.
OLDEST = "mq-oldest"
KILLED_EARLY = "mq-498-upgrade-killed-early"
# One of each kind of store, because the Python engine is slow.
SMALLEST = (EXPIRED, OLDEST, KILLED_EARLY, "mq-plain-crc")

Unpack = Callable[[str], Path]


pytestmark = pytest.mark.usefixtures("no_fsync")


def backwards(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
    """Maps parts and returns the results in reverse order."""
    return reversed([work(part) for part in parts])


# Equal to a broker's


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


@pytest.mark.parametrize(
    ("path", "at", "value"),
    [
        (f"consumequeue/SCHEDULE_TOPIC_XXXX/12/{0:020}", 569, b"\x14"),  # the position in a unit of an expired message
        (f"dledger-n0/data/{65536:020}", 12, b"\x60"),  # the index of the first entry
    ],
)
def test_one_changed_byte_of_an_expired_log_is_no_obstacle(
    case_folder: Unpack, tmp_path: Path, path: str, at: int, value: bytes
) -> None:
    copy_tree(case_folder(EXPIRED), tmp_path / "broker")
    write_at(tmp_path / "broker" / path, at, value)
    rebuild(tmp_path / "broker", "consumequeue", out=tmp_path / "out")
    assert (tmp_path / "out/consumequeue/SCHEDULE_TOPIC_XXXX/12").is_dir()


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_every_key_of_every_message_is_found(case_folder: Unpack, tmp_path: Path, golden: Golden) -> None:
    source = case_folder(golden.case) / golden.folder
    rebuild(source, "index", out=tmp_path / "out")
    by_hash: dict[int, set[int]] = {}
    for hashed, offset in index_units(tmp_path / "out"):
        by_hash.setdefault(hashed, set()).add(offset)
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


def test_messages_that_the_broker_did_not_dispatch_are_added(case_folder: Unpack, tmp_path: Path) -> None:
    """The whole log has two messages more than the broker's queues."""
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
def test_a_rebuild_would_change_nothing_that_a_broker_wrote(case_folder: Unpack, golden: Golden) -> None:
    source = case_folder(golden.case) / golden.folder
    for what in WHATS:
        found = compare(source, what)
        assert found.is_equal, [row for row in found.differences if not row.is_equal]
        assert found.built.messages > 0


@pytest.mark.parametrize("as_commit_log", [True, False])
def test_an_index_with_tags_is_built_with_tags(tmp_path: Path, as_commit_log: bool) -> None:
    """As RocketMQ 5.5.0 writes it: the unit of tags comes after those of uniqKey and keys."""
    tags = ["a", "a||b", None, ""]
    properties = [
        [("UNIQ_KEY", f"U{number}"), ("KEYS", "k1 k2"), *([("TAGS", tag)] if tag is not None else [])]
        for number, tag in enumerate(tags)
    ]
    payloads = [mq_message("T", b"x", queue_offset=number, properties=each) for number, each in enumerate(properties)]
    root = tmp_path / "root"
    (write_commitlog if as_commit_log else write_dledger)(root, payloads)
    rebuild(root, "index", files=SMALL)
    plain = index_bytes(root)
    assert compare(root, "index", files=SMALL).is_equal
    rebuild(root, "index", files=replace(SMALL, index_tags=True))
    found = index_units(root)
    offsets = list(dict.fromkeys(offset for _, offset in found))
    expected = [
        (key_hash("T", key), offset)
        for offset, number in zip(offsets, range(4), strict=True)
        for key in (f"U{number}", "k1", "k2", *(["T#a"], ["T#a||b"], [], [])[number])
    ]
    assert found == expected
    assert [each.code for each in open_log(root).findings() if each.code == "keyIndexUnit"] == []
    assert compare(root, "index", files=SMALL).is_equal
    rebuild(root, "index", files=SMALL)
    assert index_units(root) == expected
    assert main(["rebuild", "index", str(root), "--index-tags", "false"]) == 0
    assert index_bytes(root) == plain
    assert main(["rebuild", "consumequeue", str(root), "--index-tags", "true"]) == 2


def test_spark_builds_the_same_files(case_folder: Unpack, tmp_path: Path, spark: SparkSession) -> None:
    """The store has files of an old CommitLog and of DLedger."""
    source = case_folder("mq-53-upgrade")
    for what in WHATS:
        done = pyspark_dledger.rebuild(source, what, spark=spark, out=tmp_path / what)
        assert done.built == rebuild(source, what, out=tmp_path / "here" / what).built
    assert files_of(tmp_path / "consumequeue", "consumequeue") == files_of(source, "consumequeue")
    assert index_bytes(tmp_path / "index") == index_bytes(source)


def test_the_order_in_which_parts_finish_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_PART_BYTES", 1500)
    root = tmp_path / "root"
    store_of(root, 80)
    small = BuildSettings(10, 7, 20)
    done = build(open_log(str(root)), tmp_path / "out", settings=small, run=backwards)
    assert done.messages == 80
    assert files_of(tmp_path / "out", "consumequeue") == files_of(root, "consumequeue")
    assert index_bytes(tmp_path / "out") == index_bytes(root)
    assert sorted(os.listdir(tmp_path / "out")) == ["consumequeue", "index"]


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    with pytest.raises(StoreError, match=r"expected reports of \d+ parts, part 1 is missing"):
        rebuild(root, "index", out=tmp_path / "out", run=lambda work, parts: iter([work(parts[0])]))
    assert os.listdir(tmp_path / "out") == ["rebuild.parts"]
    rebuild(root, "index", out=tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["index"]


@pytest.mark.parametrize("is_outside", [False, True])
def test_an_interrupted_rebuild_in_tasks_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_outside: bool
) -> None:
    monkeypatch.setattr(builder, "_PART_BYTES", 1500)
    root = tmp_path / "root"
    store = store_of(root, 80)
    good, counts = files_of(root, "consumequeue"), []

    def first_only(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        yield work(parts[0])
        raise KeyboardInterrupt

    def counted(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        counts.append(len(parts))
        return map(work, parts)

    out = tmp_path / "out" if is_outside else None
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            rebuild(root, "consumequeue", out=out, run=first_only)
    rebuild(root, "consumequeue", out=out, run=counted)
    assert files_of(out or root, "consumequeue") == good
    rebuild(root, "consumequeue", out=tmp_path / "whole", run=counted)
    assert counts == [counts[1] - 2, counts[1]]
    with pytest.raises(KeyboardInterrupt):
        rebuild(root, "consumequeue", out=tmp_path / "other", run=first_only)
    os.utime(store.segments[0].path, ns=(0, 0))
    rebuild(root, "consumequeue", out=tmp_path / "other", run=counted)
    assert counts[2] == counts[1], "another log"
    assert not list(tmp_path.rglob("rebuild.parts"))


def test_a_rebuild_equals_dispatching_step_by_step(tmp_path: Path) -> None:
    """The log has duplicate and late queueOffsets, and gaps."""
    draw = random.Random(7)
    payloads = []
    for number in range(200):
        offset = max(0, number // 2 + draw.choice((0, 0, 0, 1, -1, -3, 12)))
        payloads.append(mq_message("T", b"%d" % number, queue_id=number % 2, queue_offset=offset))
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


def test_delayed_messages_have_their_delivery_time_by_the_levels_of_the_broker(tmp_path: Path) -> None:
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


# Messages that the log does not have


def damage_orders(store: Store, segment: int) -> dict[str, Any]:
    """Damage a message of Orders in a file of the log; it is not the last one of its queue there."""
    name = Path(store.segments[segment].path)
    rows = [row for row in store.rows_of(store.segments[segment]) if row["topic"] == "Orders"]
    victim: dict[str, Any] = next(row for row in rows[3:] if row["queueId"] == 0)
    write_at(name, victim["pos"] % 4096, b"\xff" * 60)
    return victim


@pytest.mark.parametrize("segment", [0, 1])
def test_the_filler_for_a_damaged_message_hides_no_other(tmp_path: Path, segment: int) -> None:
    """In the first file it is a copy of the next unit: with a filler RocketMQ would skip later messages of a pull."""
    root = tmp_path / "root"
    victim = damage_orders(store_of(root), segment)
    queue_offset = victim["queueOffset"]
    before = units(root, "Orders", victim["queueId"])
    wanted = FILLER if segment else before[queue_offset + 1]
    found = compare(root, "consumequeue")
    (row,) = [row for row in found.differences if not row.is_equal]
    assert (row.topic, row.queue_id, row.queue_offset) == ("Orders", victim["queueId"], queue_offset)
    assert (row.different, row.missing, row.extra, row.fillers) == ((0, 0, 1, 1) if segment else (1, 0, 0, 1))
    assert row.expected == ("a filler" if segment else "commitLogOffset {}, size {}, tagsCode {}".format(*wanted))
    done = rebuild(root, "consumequeue")
    assert (done.built.fillers, done.built.led_over) == ((1, 0) if segment else (0, 1))
    assert done.built.units == found.built.units == sum(map(len, _all_units(root))) - 1
    note, advice = done.notes[-2:]
    assert note.startswith("1 unit is a filler" if segment else "1 unit is a copy of a neighbouring unit")
    assert "restore the log" in advice
    after = units(root, "Orders", victim["queueId"])
    assert [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [
        queue_offset
    ]
    assert after[queue_offset] == wanted
    assert compare(root, "consumequeue").is_equal
    assert [each for each in audit(root) if each["queueOffset"] not in (queue_offset, queue_offset + 1)] == []


def _all_units(root: Path) -> list[list[tuple[int, int, int]]]:
    return [units(root, folder.parent.name, int(folder.name)) for folder in (root / "consumequeue").glob("*/*")]


def test_a_long_gap_has_copies_only_as_far_back_as_a_pull_can_begin(tmp_path: Path) -> None:
    """A consumer that begins in the gap gets the next message at most 1,024 times."""
    root = tmp_path / "root"
    payloads = [mq_message("T", queue_offset=offset) for offset in (3000, 3001)]
    write_dledger(root, payloads)
    done = rebuild(root, "consumequeue", files=FileSettings(units_per_file=5000))
    assert done.built.led_over == 1024
    found = [unit[0] for unit in units(root, "T")]
    assert found[:3001] == [0] * (3000 - 1024) + [48] * 1025
    for pull_size in (32, 800, 1024):
        for start in (0, 1, 1975, 1976, 1977, 2500, 2999, 3000):
            assert consumed(found[start:5000], pull_size, 4096) == {48, found[3001]}


@pytest.mark.parametrize("seed", mostly_slow(range(5), 2))
def test_consumers_get_every_message_from_any_queue_offset(tmp_path: Path, seed: int) -> None:
    """For a queue with gaps in the log's first files; the test does what a broker's pull does."""
    draw = random.Random(seed)
    queue_offsets = sorted(draw.sample(range(150), 70))
    store = write_dledger(
        tmp_path, [mq_message("T", b"x" * 40, queue_offset=queue_offset) for queue_offset in queue_offsets]
    )
    size = draw.choice((20, 1000))
    rebuild(tmp_path, "consumequeue", files=FileSettings(units_per_file=size))
    found = [unit[0] for unit in units(tmp_path, "T")]
    assert len(found) == queue_offsets[-1] + 1
    offsets = {row["queueOffset"]: row["commitLogOffset"] for row in store.rows}
    for start in range(len(found)):
        stop = start - start % size + size
        wanted = {offset for queue_offset, offset in offsets.items() if start <= queue_offset < stop}
        assert consumed(found[start:stop], draw.choice((3, 30, 800)), 4096) >= wanted


def consumed(offsets: list[int], pull_size: int, file_size: int) -> set[int]:
    """The messages that a consumer gets from a ConsumeQueue file with these commitLogOffsets.

    As in DefaultMessageStore.getMessage; no message is at 0, because an entry header comes first.
    """
    got = set()
    for start in range(0, len(offsets), pull_size + 1):
        skip_to = 0
        for offset in offsets[start : start + pull_size + 1]:
            if offset < skip_to:
                continue
            if offset:
                got.add(offset)
            skip_to = 0 if offset else file_size
    return got


def test_queue_files_have_the_times_of_their_last_messages(tmp_path: Path) -> None:
    """RocketMQ before 5.1 finds the file for a time by them; those of expired messages come from the old files."""
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


def test_a_missing_file_of_the_log_is_noted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = store_of(root)
    Path(store.segments[1].path).unlink()
    done = rebuild(root, "index")
    assert done.built.missing_bytes == 4096
    assert any("4096 bytes of the log are in missing files" in text for text in done.notes)
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
    # Without the old queues the beginning is filled up, and the queue of expired messages is unknown.
    shutil.rmtree(root / "consumequeue")
    assert rebuild(root, "consumequeue", files=SMALL).built.kept == 0
    assert not (root / "consumequeue" / "Old").exists()
    first_kept = next(number for number, unit in enumerate(units(root, "Both")) if unit != FILLER)
    assert first_kept > 3


@pytest.mark.parametrize("twice", [False, True])
def test_a_message_with_queue_offset_0_is_appended(tmp_path: Path, twice: bool) -> None:
    """As Java does, wherever its queue ends; a message that was dispatched is not appended again."""
    offsets = [0, 1, 2, 0, 4, 1, 0, 6]
    made = [mq_message("Orders", b"%d" % n, queue_offset=offset) for n, offset in enumerate(offsets)]
    positions = [row["pos"] for row in write_commitlog(tmp_path, made).rows]
    for _ in range(1 + twice):
        rebuild(tmp_path, "consumequeue", files=SMALL)
    assert [unit[0] for unit in units(tmp_path, "Orders")] == [positions[number] for number in (0, 1, 2, 3, 4, 6, 7)]
    assert compare(tmp_path, "consumequeue").is_equal
    # Java drops the message with queueOffset 1.
    assert [(row["code"], row["commitLogOffset"]) for row in audit(tmp_path)] == [("messageNotInQueue", positions[5])]
    assert [finding.code for finding in open_log(tmp_path).findings()] == ["queueOffsetRepeated"]


def test_a_copy_that_a_salvage_chose_is_in_a_queue_only_if_its_place_is_sure(tmp_path: Path) -> None:
    """Nothing shows that its queueOffset is right: no other message is left out because of it."""
    made = [mq_message("Orders", b"x", queue_offset=offset) for offset in (900, 1, 2, 10**6, 4, 5)]
    positions = [row["pos"] for row in write_commitlog(tmp_path, made).rows]
    lines = (json.dumps({"source": "commitlog", "pos": positions[number]}) for number in (0, 3, 5))
    (tmp_path / "decided.jsonl").write_text("\n".join(lines))
    assert rebuild(tmp_path, "consumequeue", files=SMALL).built.too_far == 2
    assert [unit[0] for unit in units(tmp_path, "Orders")] == [positions[number] for number in (1, 1, 2, 4, 4, 5)]
    assert audit(tmp_path) == [] and list(open_log(tmp_path).findings()) == []


def test_a_queue_does_not_begin_with_a_damaged_queue_offset(tmp_path: Path) -> None:
    made = [mq_message("Orders", b"x", queue_offset=offset) for offset in (900, 1, 2)]
    positions = [row["pos"] for row in write_commitlog(tmp_path, made).rows]
    assert rebuild(tmp_path, "consumequeue", files=SMALL).built.too_far == 1
    assert [unit[0] for unit in units(tmp_path, "Orders")] == [positions[1], positions[1], positions[2]]


def test_verify_asks_for_no_rebuild_that_leaves_a_message_out(tmp_path: Path) -> None:
    made = [mq_message("Orders", b"x", queue_offset=offset) for offset in (0, 10**6, 2)]
    positions = [row["pos"] for row in write_commitlog(tmp_path, made).rows]
    assert rebuild(tmp_path, "consumequeue", files=SMALL).built.too_far == 1
    assert [(row["code"], row["commitLogOffset"]) for row in audit(tmp_path)] == [("messageNotInQueue", positions[1])]
    assert [finding.code for finding in open_log(tmp_path).findings()] == ["queueOffsetTooFar"]


def test_without_a_committed_bound_nothing_is_built(tmp_path: Path) -> None:
    for what in WHATS:
        root = tmp_path / what
        write_dledger(root, Messages().some(5), checkpoint=False)
        with pytest.raises(StoreError, match="committedBound=end trusts the end of the log"):
            rebuild(root, what)
        assert rebuild(root, what, options={"committedBound": "end"}).built.messages == 5
        assert rebuild(root, what, options={"committedBound": 2}).built.messages == 3


# Queues of other kinds


def test_addresses_in_consumequeue_ext_are_kept(tmp_path: Path) -> None:
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
    assert any("1 unit has an address in consumequeue_ext" in text for text in done.notes)
    codes = [code for _, _, code in units(root)]
    assert codes[3] == -(2**31) - 77
    assert abs(codes[5]) < 2**31


def test_batch_queues_are_noted_and_not_built(tmp_path: Path) -> None:
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
    copy_tree(root / "consumequeue" / "Orders", root / "consumequeue" / "%LMQ%one")
    with pytest.raises(StoreError, match="light message queue %LMQ%one is not rebuilt and would be lost"):
        rebuild(root, "consumequeue")
    assert (root / "consumequeue" / "%LMQ%one").is_dir()
    rebuild(root, "consumequeue", out=tmp_path / "out")
    rebuild(root, "index")


def test_queues_in_rocksdb_are_rejected(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_dledger(root, Messages().some(3))
    (root / "consumequeue").mkdir()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(StoreError, match="found a RocksDB"):
        rebuild(root, "consumequeue")


# Options


def test_file_sizes_are_those_of_existing_files(tmp_path: Path) -> None:
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
        ("index", {"unitsPerFile": "many"}, "option unitsPerFile: expected an integer from 1"),
        ("index", {"unitsPerFile": 5}, "option unitsPerFile has no effect on a rebuild of index"),
        ("consumequeue", {"hashSlots": 5}, "option hashSlots has no effect on a rebuild of consumequeue"),
        ("consumequeue", {"indexUnits": 5}, "option indexUnits has no effect .*, only of index: leave it out"),
        ("index", {"hashSlots": 0}, "option hashSlots: expected an integer from 1"),
        ("index", {"indexUnits": 1}, "option indexUnits: expected an integer from 2"),
        ("index", {"brokerConf": "/nowhere"}, "broker-conf /nowhere"),
        ("index", {"dry_run": True, "out": "/tmp/x"}, "dry_run writes nothing"),
        ("index", {"out": "s3://bucket/x"}, "out: expected a local folder, found the URI s3://bucket/x"),
    ],
)
def test_wrong_options_are_rejected(tmp_path: Path, what: str, options: dict[str, Any], error: str) -> None:
    write_dledger(tmp_path, Messages().some(3))
    with pytest.raises(OptionError, match=error):
        pyspark_dledger.rebuild(tmp_path, what, **options)
    assert sorted(os.listdir(tmp_path)) == ["dledger-n0"]


def test_a_folder_without_a_root_is_rejected(tmp_path: Path) -> None:
    write_dledger(tmp_path / "root", Messages().some(3))
    shutil.move(tmp_path / "root" / "dledger-n0" / "data", tmp_path / "data")
    with pytest.raises(StoreError, match="expected a storePathRootDir"):
        rebuild(tmp_path / "data", "index")


def test_a_plain_commitlog_is_read_to_its_end(tmp_path: Path) -> None:
    write_commitlog(tmp_path, Messages().some(50))
    done = rebuild(tmp_path, "consumequeue")
    assert (done.before, done.committed, done.built.messages) == (None, "all of the CommitLog", 50)
    assert compare(tmp_path, "consumequeue").is_equal


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    store_of(root)
    assert main(["rebuild", "consumequeue", str(root), "--dry-run"]) == 0
    assert "5 queues are as a rebuild would write them, 0 differ" in capsys.readouterr().out
    shutil.rmtree(root / "consumequeue" / "Pays")
    assert main(["rebuild", "consumequeue", str(root), "--dry-run"]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[1].split()[:2] == ["Pays", "0"]
    assert "4 queues are as a rebuild would write them, 1 differ" in text
    assert main(["rebuild", "consumequeue", str(root), "--dry-run", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["topic"] for row in rows if row["missing"]] == ["Pays"]
    assert main(["rebuild", "consumequeue", str(root), "--units-per-file", "10", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["folder"] == str(root / "consumequeue")
    assert (root / done["before"]).is_dir()
    assert main(["rebuild", "consumequeue", str(root / "dledger-n0" / "data")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{root / 'consumequeue'}: "), "the changed folder is printed, not the given one"
    assert any(line.startswith("note: nothing changed: ") for line in lines)
    assert not any(line.startswith("the old folder is kept") for line in lines)
    assert main(["rebuild", "index", str(root), "--out", str(tmp_path / "out")]) == 0
    assert "of 60 messages up to index" in capsys.readouterr().out
    assert main(["rebuild", "index", str(root), "--dry-run", "--out", "x"]) == 2
    assert main(["rebuild", "index", str(tmp_path / "nothing")]) == 2


def test_a_full_disk_is_an_error_with_its_number_if_units_cannot_be_saved() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left") as caught:
        save_units(full, NO_UNITS)
    assert caught.value.errno == errno.ENOSPC
