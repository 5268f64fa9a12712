"""Real brokers without DLedger continue with the stores that a migration wrote of a real DLedger group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

import pyspark_dledger as dl
from pyspark_dledger.log.io.broker_config import BrokerConfig, read_config
from pyspark_dledger.rocketmq.jobs.store_files import write_topics
from pyspark_dledger.rocketmq.migration import MigrationReport, migrate
from tests.interop.broker_set import DLEDGER, JRAFT, BrokerSet, broker_set
from tests.interop.java_broker import SMALL_FILES, cluster
from tests.interop.java_store import serving_store
from tests.interop.make_live_golden import Traffic
from tests.interop.plain_stores import ByVersion
from tests.interop.test_java_config import JavaConfig
from tests.support.groups import eventually
from tests.support.long_runs import takes_long
from tests.support.sparse_copy import copy_tree

MEMBERS = ("n0", "n1", "n2")
TARGETS = ("a", "b", "c")
TOPIC, GROUP = "OrderTopic", "billing"
ROLE = ("brokerRole", "brokerId", "inSyncReplicas")
Unpack = Callable[[str], Path]
Messages = dict[tuple[int, int], int]
"""The CRC-32 of bodies by queue id and queue offset."""


def test_controller_mode_continues_where_the_group_ended(case_folder: Unpack, tmp_path: Path) -> None:
    """Each message has its queue offset, the group continues, and nothing is lost when the master is killed."""
    sources = [case_folder("mq-53-live") / node for node in MEMBERS]
    report = migrate(sources, [tmp_path / name for name in TARGETS[:2]])
    # The broker that is left is no majority of two.
    settings = [{**each, "minInSyncReplicas": "1"} for each in settings_of(report)]
    with broker_set(tmp_path, settings) as brokers:
        brokers.start()
        before = stored(report.source, TOPIC)
        assert consumed(brokers, TOPIC) == before
        assert brokers.clients.committed_offsets(GROUP, TOPIC) == config_of(report).offsets[TOPIC, GROUP]
        sent = send_while_the_master_is_killed(brokers, TOPIC)
        assert (before | sent).items() <= consumed(brokers, TOPIC).items()


@pytest.mark.java
@pytest.mark.slow
def test_configuration_in_a_rocksdb_arrives(tmp_path: Path) -> None:
    """A group that keeps topics, consumer groups and their offsets in a RocksDB; new brokers keep them in files."""
    pytest.importorskip("rocksdict")
    with (
        cluster(tmp_path, 1, {"storeType": "defaultRocksDB"}) as old,
        closing(Traffic(old.clients.port, tmp_path)) as shop,
    ):
        old.master()
        shop.ask("rate\t50")
        shop.ask("\t".join(("consume", GROUP, "0", TOPIC)), 60)
        eventually(lambda: sum(old.clients.committed_offsets(GROUP, TOPIC).values()) > 100, 120)
        shop.ask("rate\t0")
        eventually(shop.is_settled, 60)
        shop.ask(f"leave\t{GROUP}", 60)
        shop.close()
        old.brokers.pop("n0").stop()
    files = {path.name for path in (tmp_path / "n0/config").iterdir()}
    assert {"topics", "subscriptionGroups", "consumerOffsets"} < files
    assert not files & {"topics.json", "subscriptionGroup.json", "consumerOffset.json"}
    report = migrate([tmp_path / "n0"], [tmp_path / "a"])
    config = config_of(report)
    assert GROUP in config.groups
    with closing(JavaConfig(tmp_path)) as java:
        assert GROUP in java.read(tmp_path / "a")["groups"]
    with broker_set(tmp_path / "new", settings_of(report)) as brokers:
        brokers.start()
        found = brokers.clients.committed_offsets(GROUP, TOPIC)
        # Java can list queues of which the group has read nothing, with offset 0.
        assert {queue: offset for queue, offset in found.items() if offset} == config.offsets[TOPIC, GROUP]
        for topic in user_topics(report):
            assert consumed(brokers, topic) == stored(report.source, topic)


@takes_long
@pytest.mark.parametrize("kernel", [DLEDGER, JRAFT])
@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_controller_mode_survives_each_broker(case_folder: Unpack, tmp_path: Path, version: str, kernel: str) -> None:
    """Each broker is killed while it is the master, and comes back with the same log."""
    report = migrated([case_folder("mq-53-live") / node for node in MEMBERS], tmp_path)
    with broker_set(tmp_path, settings_of(report), version=version, kernel=kernel) as brokers:
        brokers.start()
        expected = {topic: stored(report.source, topic) for topic in user_topics(report)}
        assert sum(map(len, expected.values())) > 1000
        for topic, group in config_of(report).offsets:
            if topic in expected:
                assert brokers.clients.committed_offsets(group, topic) == config_of(report).offsets[topic, group]
        for _ in TARGETS:
            master = brokers.master()
            expected[TOPIC] |= send_while_the_master_is_killed(brokers, TOPIC)
            brokers.start(master)
            brokers.wait_until_equal()
        for topic, messages in expected.items():
            assert messages.items() <= consumed(brokers, topic).items()
        brokers.stop()
    check(report)


@takes_long
@pytest.mark.parametrize("case", ["mq-53-three", "mq-53-single", "mq-53-upgrade", "mq-53-retention", "mq-498-single"])
def test_each_message_of_each_group_is_consumed(case_folder: Unpack, tmp_path: Path, case: str) -> None:
    sources = with_topics(case_folder(case), tmp_path / "sources")
    report = migrated(sources, tmp_path)
    check_that_brokers_continue(report, tmp_path)


@takes_long
@pytest.mark.parametrize("version", ["5.1.4", "5.4.0"])
def test_group_of_another_version_continues(tmp_path: Path, version: str) -> None:
    source = tmp_path / "source"
    with serving_store(version, source, SMALL_FILES) as java:
        java.put(3000, TOPIC, 4)
        java.settle()
        java.stop()
    list(write_topics([], source))
    report = migrated([source], tmp_path)
    assert report.stores[0].rows >= 3000
    check_that_brokers_continue(report, tmp_path)


@takes_long
def test_damaged_group_is_salvaged_first(case_folder: Unpack, tmp_path: Path) -> None:
    sources = with_topics(case_folder("mq-53-three"), tmp_path / "sources")
    for number, source in enumerate(sources):
        # Each replica lacks other entries.
        file = sorted((source / f"dledger-n{number}" / "data").iterdir())[number]
        with file.open("r+b") as stream:
            stream.seek(30_000)
            stream.write(bytes(4096))
    dl.salvage(sources, tmp_path / "healthy")
    report = migrated([tmp_path / "healthy"], tmp_path)
    assert report.stores[0].rows == 611
    check_that_brokers_continue(report, tmp_path)


@takes_long
def test_empty_broker_joins_later(case_folder: Unpack, tmp_path: Path) -> None:
    """The master has an epoch for every position, so it can send all of the log."""
    report = migrated([case_folder("mq-53-live") / node for node in MEMBERS], tmp_path)
    settings = settings_of(report)
    joining = tmp_path / "new"
    paths = {"storePathRootDir": str(joining), "storePathCommitLog": str(joining / "commitlog")}
    with broker_set(tmp_path, [*settings[:2], {**settings[2], **paths}]) as brokers:
        brokers.start(0, 1)
        brokers.master()
        brokers.start(2)
        brokers.wait_until_equal()
        before = stored(report.source, TOPIC)
        sent = send_while_the_master_is_killed(brokers, TOPIC)
        assert (before | sent).items() <= consumed(brokers, TOPIC).items()


@takes_long
@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_slaves_follow_the_master(case_folder: Unpack, tmp_path: Path, version: str) -> None:
    report = migrated([case_folder("mq-53-live") / node for node in MEMBERS], tmp_path, "slaves")
    with broker_set(tmp_path, settings_of(report), version=version, kernel=None) as brokers:
        brokers.start()
        before = stored(report.source, TOPIC)
        brokers.clients.start_load(TOPIC, 2)
        brokers.clients.wait_for(1000)
        sent = {(each.queue_id, each.queue_offset): crc32(b"%d" % each.number) for each in brokers.clients.end_load()}
        brokers.wait_until_equal()
        assert (before | sent).items() <= consumed(brokers, TOPIC).items()
        brokers.stop()
    check(report)


@takes_long
def test_oldest_version_reads_each_store(case_folder: Unpack, tmp_path: Path, plain_stores: ByVersion) -> None:
    """Brokers of 4.9.8 are not in Maven Central, but their store is."""
    report = migrated([case_folder("mq-498-single")], tmp_path, "slaves")
    plain = plain_stores("4.9.8")
    for store in report.stores:
        role = store.broker_conf["brokerRole"]
        plain.open({name: value for name, value in store.broker_conf.items() if name not in ROLE}, role)
        found = plain.dump().messages
        topics = {message.topic for message in found}
        assert len(found) == sum(len(stored(report.source, topic)) for topic in topics) > 1000
        plain.close_store()


@takes_long
@pytest.mark.parametrize("version", ["5.3.3"])
def test_group_migrates_while_producers_send(tmp_path: Path, version: str) -> None:
    """A run copies what is committed while the group works; the run after the stop adds only the rest."""
    members = [tmp_path / node for node in MEMBERS]
    topic = "Moving"
    with cluster(tmp_path, len(members)) as group:
        group.master()
        group.clients.send_first(topic)
        group.clients.start_load(topic, 2)
        group.clients.wait_for(6000)
        first = migrate(members, [tmp_path / name for name in TARGETS])
        assert first.stores == ()
        assert set(first.in_use) == set(MEMBERS)
        group.clients.wait_for(1000)
        sent = {(each.queue_id, each.queue_offset): crc32(b"%d" % each.number) for each in group.clients.end_load()}
        for node in sorted(group.brokers, key=lambda node: group.brokers[node].is_master()):
            group.brokers.pop(node).stop()
        report = migrated(members, tmp_path)
        assert report.kept == first.files - len(TARGETS)
        with broker_set(tmp_path / "new", settings_of(report), version=version) as brokers:
            brokers.start()
            assert sent.items() <= consumed(brokers, topic).items()
            sent |= send_while_the_master_is_killed(brokers, topic)
            assert sent.items() <= consumed(brokers, topic).items()


def migrated(sources: Sequence[Path], folder: Path, mode: str = "controller") -> MigrationReport:
    report = migrate(sources, [folder / name for name in TARGETS], mode)
    assert [store.skipped for store in report.stores] == [0] * len(TARGETS)
    return report


def settings_of(report: MigrationReport) -> list[dict[str, str]]:
    return [store.broker_conf for store in report.stores]


def config_of(report: MigrationReport) -> BrokerConfig:
    return read_config(Path(report.source))


def user_topics(report: MigrationReport) -> list[str]:
    """Returns the topics that applications created."""
    return [topic for topic in config_of(report).topic_queues if topic.endswith("Topic")]


def with_topics(source: Path, folder: Path) -> list[Path]:
    """Copies the replicas of a case that has no topics.json, and writes it."""
    copy = copy_tree(source, folder)
    roots = [copy / node for node in MEMBERS if (copy / node).is_dir()] or [copy]
    for root in roots:
        list(write_topics([], root))
    return roots


def check_that_brokers_continue(report: MigrationReport, folder: Path) -> None:
    """Checks that consumers get each message of each topic, that producers continue, and that the logs stay equal.

    The new master delivers delayed messages that were waiting.
    """
    topics = config_of(report).topic_queues
    with broker_set(folder, settings_of(report)) as brokers:
        brokers.start()
        before = {topic: stored(report.source, topic) for topic in topics}
        assert sum(map(len, before.values())) > 100
        topic = min(topics)
        before[topic] |= send_while_the_master_is_killed(brokers, topic)
        for topic, messages in before.items():
            assert messages.items() <= consumed(brokers, topic).items(), topic
        brokers.wait_until_equal()


def send_while_the_master_is_killed(brokers: BrokerSet, topic: str) -> Messages:
    """Returns the messages that the old and the new master acknowledged."""
    master = brokers.master()
    brokers.wait_until_equal()
    brokers.clients.start_load(topic, 2)
    brokers.clients.wait_for(100)
    brokers.kill(master)
    assert brokers.master() != master
    brokers.clients.wait_for(100)
    return {(each.queue_id, each.queue_offset): crc32(b"%d" % each.number) for each in brokers.clients.end_load()}


def check(report: MigrationReport) -> None:
    found = dl.check(report.targets)
    assert found.is_clean, found.as_json()


def stored(store: Path | str, topic: str) -> Messages:
    """Returns the messages of a topic that consumers of a store can get."""
    columns = ["queueId", "queueOffset", "body", "transaction"]
    rows = [row for batch in dl.open_log(store).scan(columns=columns, topic=topic) for row in batch.to_pylist()]
    in_queues = [row for row in rows if row["transaction"] in ("none", "commit")]
    return {(row["queueId"], row["queueOffset"]): crc32(row["body"]) for row in in_queues}


def consumed(brokers: BrokerSet, topic: str) -> Messages:
    """Returns the messages of a topic as a consumer gets them."""
    return {(each.queue_id, each.queue_offset): each.crc for each in brokers.clients.consume(topic)}
