"""RocketMQ opens stores with our rebuilt ConsumeQueues and index, and finds every message by queue and by key."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_dledger.log.io.state_files import CHECKPOINT as STORE_CHECKPOINT
from pyspark_dledger.rocketmq.rebuild import FileSettings, compare, rebuild
from tests.interop.java_store import Dump, serving_store
from tests.interop.plain_stores import ByVersion
from tests.support import golden
from tests.support.golden import Golden, Record
from tests.support.rebuilds import index_bytes

KINDS = ("consumequeue", "index")
# The sizes of every case.
SIZES = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "500", "maxIndexNum": "1000"}
FILES = FileSettings(units_per_file=100, hash_slots=500, index_units=1000)
OUTSIDE_QUEUES = 0x4  # of sysFlag: prepared, and with 0x8 rolled back
MAX_KEYS = 40


def rebuilt(case: str, folder: Path) -> Path:
    """Unpacks a case and replaces its queues and index by rebuilt ones."""
    root = golden.unpack(case, folder)
    if case != "mq-53-retention":
        shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / STORE_CHECKPOINT).unlink()
    for kind in KINDS:
        rebuild(root, kind, files=FILES, options={"committedBound": "end"})
        assert compare(root, kind, files=FILES, options={"committedBound": "end"}).is_equal
    return root


def check_messages(
    expected: list[Record], found: Dump, ranges: dict[tuple[str, int], tuple[int, int]], case: Golden
) -> None:
    """Checks that every message in a queue is read from there and by its offset."""
    by_place = {(*each.queue, each.queue_offset): each for each in found.messages}
    for each in in_queues(expected):
        got = by_place[each["topic"], each["queueId"], each["queueOffset"]]
        assert (got.physical_offset, got.store_size) == (each["physicalOffset"], each["storeSize"])
        assert got.properties == {name: value for name, value in each["properties"].items() if value}
    assert found.missing_by_offset == []
    expected_ranges = {
        (each["topic"], each["queueId"]): (each["min"], each["max"]) for each in case.expected().head["queues"]
    }
    for name, (minimum, maximum) in expected_ranges.items():
        if maximum and name[0] != "SCHEDULE_TOPIC_XXXX":
            assert ranges[name][0] == minimum, name
            assert ranges[name][1] >= maximum, name
    assert len(by_place) > 100


def check_keys(
    expected: list[Record], case: Golden, by_key: Callable[[str, str], set[int]], lost: Collection[int] = ()
) -> None:
    """Checks RocketMQ's recorded key queries, and every message by its first key."""
    for query in case.expected().queries[:MAX_KEYS]:
        assert set(query["phyOffsets"]) - set(lost) <= by_key(query["topic"], query["key"])
    for each in expected[:: max(len(expected) // MAX_KEYS, 1)]:
        key = each["properties"].get("UNIQ_KEY")
        if key and each["sysFlag"] & 0xC != 0xC:
            assert each["physicalOffset"] in by_key(each["topic"], key)


def damage(root: Path, messages: list[Record], file: Path) -> set[int]:
    """Corrupts every twentieth queued message of a file of the old CommitLog. Returns their offsets."""
    base, size = int(file.name), file.stat().st_size
    inside = [each["physicalOffset"] for each in messages if base < each["physicalOffset"] < base + size]
    # Also two consecutive ones, of the same queue or not, and the last.
    lost = {*inside[::20], *inside[1::60], inside[-1]}
    with file.open("r+b") as stream:
        for offset in lost:
            stream.seek(offset - base)
            stream.write(b"\xff" * 40)
    built = rebuild(root, "consumequeue").built
    # In the very first file, RocketMQ would also skip the message after a filler in the same pull.
    assert (built.led_over > 0) == (base == 0)
    assert built.fillers + built.led_over > 5
    return lost


def in_queues(messages: list[Record]) -> list[Record]:
    return [each for each in messages if not each["sysFlag"] & OUTSIDE_QUEUES]


@pytest.mark.parametrize(
    ("case", "version"),
    [("mq-498-upgrade-killed", "4.9.8"), ("mq-53-retention", "5.3.3"), ("mq-53-upgrade", "5.3.3")],
)
def test_broker_in_dledger_mode_serves_rebuilt_store(tmp_path: Path, case: str, version: str) -> None:
    """mq-53-upgrade is damaged: its queues have fillers. RocketMQ itself would not rebuild the killed one's index."""
    root = rebuilt(case, tmp_path)
    store = Golden(case, "")
    expected, lost = store.expected().entries, set[int]()
    if case == "mq-53-upgrade":
        lost = damage(root, in_queues(expected), root / "commitlog" / f"{65536:020d}")
        expected = [each for each in expected if each["physicalOffset"] not in lost]
    fields: dict[str, object] = {**SIZES, "mappedFileSizeCommitLog": 65536}
    with serving_store(version, root, fields, group="golden") as java:
        found = java.dump()
        check_messages(expected, found, java.queues(), store)
        check_keys(expected, store, java.by_key, lost)
        assert found.missing_by_key == []


def test_broker_without_dledger_serves_rebuilt_store(tmp_path: Path, plain_stores: ByVersion) -> None:
    java = plain_stores("5.3.3")
    for case in ("mq-plain", "mq-plain-crc"):
        root = rebuilt(case, tmp_path)
        store = Golden(case, "")
        java.open_root(root, SIZES)
        expected = store.expected().entries
        check_messages(expected, java.dump(), java.queues(), store)
        check_keys(expected, store, lambda topic, key: java.by_keys([(topic, key)])[0])
    root = golden.unpack("mq-plain", tmp_path / "damaged")
    expected = in_queues(Golden("mq-plain", "").expected().entries)
    lost = damage(root, expected, root / "commitlog" / f"{0:020d}")
    java.open_root(root, SIZES)
    wanted = {each["physicalOffset"] for each in expected} - lost
    assert {each.physical_offset for each in java.dump().messages} == wanted


def test_the_index_of_5_5_is_rebuilt_with_its_units_of_tags(tmp_path: Path, plain_stores: ByVersion) -> None:
    root = tmp_path / "root"
    sizes = {**SIZES, "mappedFileSizeCommitLog": "131072"}
    paths = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    java = plain_stores("5.5.0")
    java.open({**paths, **sizes}, "ASYNC_MASTER")
    java.put(600, "Orders", 4)
    java.close_store()
    written = index_bytes(root)
    assert compare(root, "index").is_equal
    rebuild(root, "index", out=tmp_path / "out")
    assert index_bytes(tmp_path / "out") == written
    shutil.rmtree(root / "index")
    rebuild(root, "index", files=replace(FILES, units_per_file=None, index_tags=True))
    assert index_bytes(root) == written
