"""Real brokers without DLedger continue with the stores that a migration wrote of a real DLedger group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyspark_dledger as dl
from pyspark_dledger.rocketmq.broker.config_files import read_config
from pyspark_dledger.rocketmq.migrate import migrate
from tests.interop.broker_set import BrokerSet, broker_set

Messages = dict[tuple[int, int], str]
"""Bodies by queue id and queue offset."""


def test_controller_mode_continues_where_the_group_ended(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Each message has its queue offset, groups continue, and nothing is lost when the master is killed."""
    sources = [case_folder("mq-53-live") / node for node in ("n0", "n1", "n2")]
    targets = [tmp_path / name for name in ("a", "b", "c")]
    report = migrate(sources, targets)
    assert report.findings == ()
    with broker_set(tmp_path, [store.broker_conf for store in report.stores]) as brokers:
        brokers.start()
        master = brokers.master()
        before = {topic: stored(sources[0], topic) for topic in ("OrderTopic", "AlertTopic")}
        assert {topic: consumed(brokers, topic) for topic in before} == before
        offsets = read_config(Path(report.source)).offsets["OrderTopic", "billing"]
        assert brokers.clients.committed_offsets("billing", "OrderTopic") == offsets
        brokers.clients.start_load("OrderTopic", 2)
        brokers.clients.wait_for(100)
        brokers.kill(master)
        assert brokers.master() != master
        brokers.clients.wait_for(100)
        sent = {(each.queue_id, each.queue_offset): str(each.number) for each in brokers.clients.end_load()}
        after = consumed(brokers, "OrderTopic")
        assert before["OrderTopic"].items() <= after.items()
        assert sent.items() <= after.items()
        brokers.start(master)
        brokers.wait_until_equal()
        brokers.stop()
    found = dl.check(targets)
    assert found.is_clean, found.as_json()


def stored(store: Path, topic: str) -> Messages:
    """Returns the messages of a topic that consumers of a store can get."""
    log = dl.open_log(str(store))
    rows = [row for batch in log.scan(columns=["queueId", "queueOffset", "body"], topic=topic) for row in batch.to_pylist()]
    return {(row["queueId"], row["queueOffset"]): row["body"].decode() for row in rows}


def consumed(brokers: BrokerSet, topic: str) -> Messages:
    """Returns the messages of a topic as a consumer gets them."""
    return {(each.queue_id, each.queue_offset): each.text for each in brokers.clients.consume(topic)}
