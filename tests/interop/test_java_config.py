"""RocketMQ's classes read our metadata files, and we read theirs.

Files are those of RocketMQ 5.3.3: Maven Central has no broker of 4.9.8.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.log.io.broker_config import read_config, unused_offsets
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata
from pyspark_dledger.rocketmq.jobs.store_files import copy_config
from tests.interop.java_broker import VERSION
from tests.interop.java_group import JavaProcess
from tests.rocketmq.test_rocks_config import write_offsets
from tests.support.long_runs import BREADTH, SECONDS, first

ROCKSDB = "storeType=defaultRocksDB"
# A broker makes it at each start and stores it in no RocksDB.
TIMER_TOPIC = "rmq_sys_wheel_timer"
COUNTS = {"Orders": 4, "%RETRY%group": 1, "with|bar-and_more": 16, "T" * 200: 8}


class JavaConfig(JavaProcess):
    def __init__(self, folder: Path, version: str = VERSION, settings: tuple[str, ...] = ()) -> None:
        """Starts the program. Skips the test without Java. `settings` are those of the broker, NAME=VALUE."""
        options = (f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}")
        self._settings = settings
        super().__init__("RunConfig", version, compiled_with=VERSION, options=options)

    def read(self, root: Path) -> dict[str, Any]:
        return self.ask("\t".join(("read", str(root), *self._settings)))

    def write(self, root: Path) -> None:
        """Adds topic JavaTopic (6 read and 5 write queues), group JavaGroup with offset 77 and a delay offset of 21."""
        self.ask("\t".join(("write", str(root), *self._settings)))


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaConfig]:
    process = JavaConfig(tmp_path_factory.mktemp("broker"))
    yield process
    process.close()


def topics_of(found: dict[str, Any]) -> dict[str, list[int]]:
    """Returns read queues, write queues and permission of each topic."""
    return dict(found["topics"])


def test_broker_reads_our_topics(java: JavaConfig, tmp_path: Path) -> None:
    metadata = BrokerMetadata(tmp_path)
    metadata.add_topics(COUNTS)
    found = java.read(tmp_path)
    assert topics_of(found) == {name: [count, count, 6] for name, count in COUNTS.items()}
    metadata.add_topics({"Orders": 7})
    again = java.read(tmp_path)
    assert topics_of(again) == {**topics_of(found), "Orders": [7, 7, 6]}
    assert again["topicsVersion"] > found["topicsVersion"]


def test_broker_falls_back_to_our_backup_copy(java: JavaConfig, tmp_path: Path) -> None:
    metadata = BrokerMetadata(tmp_path)
    metadata.add_topics(COUNTS)
    metadata.add_topics({"Late": 1})
    assert "Late" in topics_of(java.read(tmp_path))
    (tmp_path / "config" / "topics.json").write_bytes(b"")
    assert topics_of(java.read(tmp_path)) == {name: [count, count, 6] for name, count in COUNTS.items()}


def test_follower_copies_a_brokers_metadata(java: JavaConfig, tmp_path: Path) -> None:
    """A broker reads the same from a follower's copy. Adding a topic keeps the others."""
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    java.write(leader)
    copied = BrokerMetadata(follower)
    copied.take_over(BrokerMetadata(leader).files())
    written = java.read(leader)
    assert java.read(follower) == written
    assert topics_of(written) == {"JavaTopic": [6, 5, 6]}
    assert written["consumerOffsets"] == {"JavaTopic@JavaGroup": {"3": 77}}
    assert written["delayOffsets"] == {"5": 21}
    assert written["groups"] == ["JavaGroup"]
    assert copied.queue_count("JavaTopic") == 6
    copied.add_topics(COUNTS)
    grown = java.read(follower)
    assert topics_of(grown) == {"JavaTopic": [6, 5, 6], **{name: [count, count, 6] for name, count in COUNTS.items()}}
    assert grown["topicsVersion"] > written["topicsVersion"]
    java.write(follower)
    assert read_config(follower).topic_queues == {"JavaTopic": 6, **COUNTS}


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("5.3.3", (ROCKSDB,)),
        ("5.5.0", (ROCKSDB,)),
        ("5.5.0", (ROCKSDB, "useSingleRocksDBForAllConfigs=true")),
        ("5.5.0", ("configManagerVersion=v2",)),
        ("5.3.3", ("configManagerVersion=v2",)),
        ("5.4.0", (ROCKSDB, "useSingleRocksDBForAllConfigs=true")),
    ][: None if SECONDS or BREADTH else 4],
)
def test_we_read_what_java_reads_from_a_rocksdb(version: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    root, copy = tmp_path / "root", tmp_path / "copy"
    copy.mkdir()
    with closing(JavaConfig(tmp_path, version, settings)) as java:
        java.write(root)
        ours, theirs = read_config(root), java.read(root)
        known = {name: queues[0] for name, queues in topics_of(theirs).items() if name != TIMER_TOPIC}
        assert {name: count for name, count in ours.topic_queues.items() if name != TIMER_TOPIC} == known
        assert sorted(ours.groups) == sorted(theirs["groups"])
        assert ours.offsets == {("JavaTopic", "JavaGroup"): {3: 77}}
        assert theirs["consumerOffsets"] == {"JavaTopic@JavaGroup": {"3": 77}}
        for counter, offset in ((0, 5), (9, 6)):
            write_offsets(root, {"counter": counter, "stateVersion": 0, "timestamp": 1000}, offset)
            expected = {str(queue): at for queue, at in read_config(root).offsets["JavaTopic", "JavaGroup"].items()}
            assert java.read(root)["consumerOffsets"] == {"JavaTopic@JavaGroup": expected}
        assert not list(unused_offsets(root))
        list(copy_config([root], copy))
        if ROCKSDB in settings:
            assert java.read(copy)["consumerOffsets"] == {"JavaTopic@JavaGroup": expected}
            assert topics_of(java.read(copy))["JavaTopic"] == [6, 5, 6]


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("version", first(["5.3.3", "5.5.0", "5.4.0"], 2))
def test_a_switch_to_a_rocksdb_uses_and_drops_the_offsets_that_we_name(version: str, tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")

    def stored(counter: int, offset: int) -> None:
        root.joinpath("config").mkdir(parents=True, exist_ok=True)
        write_offsets(root, {"counter": counter, "stateVersion": 0, "timestamp": 1000}, offset)

    def dropped() -> list[tuple[str, dict[tuple[str, str, int], tuple[int, int]]]]:
        return [(each.unused.path.name, each.queues) for each in unused_offsets(root)]

    def used(java: JavaConfig, of: Path | None = None) -> int | None:
        offsets = java.read(of or root)["consumerOffsets"].get("JavaTopic@JavaGroup", {})
        return offsets.get("3")

    queue = ("JavaTopic", "JavaGroup", 3)
    with closing(JavaConfig(tmp_path, version, (ROCKSDB,))) as java:
        root = tmp_path / "never changed"
        stored(0, 5)
        assert used(java) is None
        assert dropped() == [("consumerOffset.json", {queue: (5, -1)})]
        shutil.rmtree(root / "config" / "consumerOffsets")
        migrated = tmp_path / "migrated"
        migrated.mkdir()
        list(copy_config([root], migrated, for_new_broker=True))
        assert (used(java, migrated), used(java, root)) == (5, None)
        java.write(root)
        assert used(java) == 77
        assert dropped() == [("consumerOffset.json", {queue: (5, 77)})]
        root = tmp_path / "changed"
        stored(3, 5)
        assert used(java) == 5
        java.write(root)
        assert used(java) == 77
        assert not dropped()
        stored(4, 99)  # Of a broker that was switched back for a while.
        assert used(java) == 77
        assert dropped() == [("consumerOffset.json", {queue: (99, 77)})]
        stored(5, 99)
        assert not dropped()
        assert used(java) == 99
        root = tmp_path / "one for all"
        stored(3, 5)
        assert used(java) == 5
        java.write(root)
    if version != "5.3.3":
        settings = (ROCKSDB, "useSingleRocksDBForAllConfigs=true")
        with closing(JavaConfig(tmp_path, version, settings)) as java:
            assert used(java) == 5  # It takes over the file first, which gives it the counter of the separate database.
            assert dropped() == [("consumerOffsets", {queue: (77, 5)})]
