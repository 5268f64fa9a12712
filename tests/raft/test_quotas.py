"""Quotas of clients: requests and bytes a second of an address, topics and queues of a group."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_dledger.raft.messages import AppendRequest, MetadataRequest
from pyspark_dledger.raft.node.limits import Quotas
from pyspark_dledger.raft.wire import SYSTEM_BUSY
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata, TopicLimits
from tests.support.groups import nodes, packed
from tests.support.scrapes import scrape


def test_an_address_gets_its_quota_each_second() -> None:
    quotas = Quotas(2, 1000)
    assert [quotas.rejection("a", 0.0) is None for _ in range(3)] == [True, True, False]
    assert quotas.rejection("b", 0.0) is None
    assert "2 requests a second" in (quotas.rejection("a", 0.4) or "")
    assert quotas.rejection("a", 0.5) is None
    quotas.add_bytes("a", 3000, 10.0)
    assert "1000 bytes a second" in (quotas.rejection("a", 11.0) or "")
    assert quotas.rejection("a", 12.5) is None


def test_many_addresses_are_searched_once_a_second() -> None:
    """Each new address made a search of all: those of one second were 4 million steps."""
    quotas = Quotas(1000, None)
    searched = []
    quotas._forget = searched.append  # type: ignore[method-assign]
    for number in range(2000):
        quotas.rejection(str(number), 5.0 + number / 1000)
    assert len(searched) == 1


def test_unused_addresses_are_forgotten() -> None:
    quotas = Quotas(1, None)
    for number in range(3000):
        quotas.rejection(str(number), number / 100)
    assert len(quotas._used) <= 1200


def test_requests_above_the_quota_are_refused_and_counted(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={}, max_requests_per_second=20, metrics=True) as group:
        group.leader()
        with closing(group.caller("n0").hello()) as caller:
            requests = [AppendRequest(bodies=packed(b"%d" % number), is_restart=not number) for number in range(40)]
            opaques = [caller.send(request) for request in requests]
            codes = [caller.receive(opaque).code for opaque in opaques]
        found = Counter(codes)
        # Appends after a refused one are refused, too: none overtakes it.
        assert codes == sorted(codes, reverse=True)
        assert (found[200] >= 10, found[SYSTEM_BUSY] > 0, len(found)) == (True, True, 2)
        refused = group.nodes["n0"]._connections.rejected.requests
        assert refused[SYSTEM_BUSY] == found[SYSTEM_BUSY]
        scraped = scrape(group.metrics_ports["n0"])
        assert scraped["dledger_refused_requests_total{SYSTEM_BUSY}"] == found[SYSTEM_BUSY]
        # Those after the first one in a pipeline are refused with it.
        assert 1 <= scraped["dledger_quota_refused_requests_total{requests}"] <= found[SYSTEM_BUSY]


def test_bytes_above_the_quota_are_refused(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={}, max_bytes_per_second=10_000) as group:
        group.leader()
        with closing(group.caller("n0").hello()) as caller:
            assert caller.append(bytes(100)).code == 200
            caller.append(bytes(50_000))
            assert caller.call(MetadataRequest()).code == SYSTEM_BUSY


def test_members_have_no_quota(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, max_requests_per_second=1) as group:
        leader = group.leader()
        assert group.nodes[leader].core.term == group.status(leader)["term"]
        assert not any(node._connections.rejected.requests[SYSTEM_BUSY] for node in group.nodes.values())


def test_no_topic_and_no_queue_is_created_above_the_limits(tmp_path: Path) -> None:
    metadata = BrokerMetadata(tmp_path)
    own = metadata.topic_count, metadata.all_queues
    limits = TopicLimits(own[0] + 1, own[1] + 8)
    limits.check(metadata, {"A": 8})
    with pytest.raises(ValueError, match="maxTopics"):
        limits.check(metadata, {"A": 1, "B": 1})
    with pytest.raises(ValueError, match="maxQueues"):
        limits.check(metadata, {"A": 9})
    metadata.add_topics({"A": 8})
    limits.check(metadata, {"A": 4})
    with pytest.raises(ValueError, match="maxTopics"):
        limits.check(metadata, {"B": 1})
