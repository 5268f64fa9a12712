"""Metrics and health of nodes, scraped over HTTP."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.messages import GetRequest, MetadataRequest, PutRequest, TopicsRequest, VoteRequest
from pyspark_dledger.raft.node import NodeConfig, node
from pyspark_dledger.raft.node.metrics import endpoint, http_server
from pyspark_dledger.raft.node.metrics.catalogue import HISTOGRAM, METRICS
from pyspark_dledger.raft.node.metrics.watched_node import WatchedNode
from pyspark_dledger.raft.node.settings import NodeSettings, node_config
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire import WireConnection
from pyspark_dledger.rocketmq.broker.config_files import TopicLimits
from pyspark_dledger.store.files.services import CleanSpaceService
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.groups import FASTER, HOST, Caller, Nodes, Served, eventually, free_ports, nodes, peers_text
from tests.support.message_nodes import message_nodes, puts, rows
from tests.support.scrapes import get, reason, scrape

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Nodes]:
    """Three nodes with metrics."""
    with nodes(tmp_path, 3, core_options=FASTER, metrics=True) as group:
        group.leader()
        yield group


def test_metrics_of_a_group_agree_with_its_state(group: Nodes) -> None:
    with dl.connect("g", group.peers) as client:
        for number in range(20):
            client.append(b"%d" % number)
        leader = group.leader()

        def has_all() -> bool:
            return all(group.status(node_id)["committedIndex"] == 19 for node_id in group.nodes)

        eventually(has_all)
        time.sleep(0.5)
        for node_id in group.nodes:
            found, state = scrape(group.metrics_ports[node_id]), group.status(node_id)
            assert found[f"dledger_role{{{state['role']}}}"] == 1
            assert sum(value for name, value in found.items() if name.startswith("dledger_role")) == 1
            assert found["dledger_term"] == state["term"]
            assert found["dledger_ledger_begin_index"] == state["beginIndex"] == 0
            assert found["dledger_ledger_end_index"] == state["endIndex"] == 19
            assert found["dledger_committed_index"] == state["committedIndex"] == 19
            assert found["dledger_flushed_index"] == state["flushedIndex"]
            assert found["dledger_has_leader"] == 1
            assert found["dledger_lag_entries"] == 0
            assert found["dledger_flush_seconds_count"] > 0
            assert found["dledger_leader_changes_total"] >= 1
            assert found["dledger_store_failed"] == found["dledger_disk_full"] == 0
            folder = str(group.folder / f"dledger-{node_id}")
            assert found[f"dledger_disk_size_bytes{{{folder}}}"] == shutil.disk_usage(folder).total
        found = scrape(group.metrics_ports[leader])
        assert found["dledger_append_seconds_count"] == found["dledger_append_seconds_bucket{+Inf}"] == 20
        followers = [node_id for node_id in group.nodes if node_id != leader]
        assert [found[f"dledger_peer_lag_entries{{{node_id}}}"] for node_id in followers] == [0, 0]
        assert [found[f"dledger_peer_connected{{{node_id}}}"] for node_id in followers] == [1, 1]
        assert found["dledger_connections{member}"] == 2
        assert found["dledger_connections{client}"] >= 1
        assert get(group.metrics_ports[leader], "/healthz") == (200, b'{"ok": true}\n')
        assert get(group.metrics_ports[leader], "/readyz") == (200, b'{"ok": true}\n')
        scraped = {node_id: scrape(group.metrics_ports[node_id]) for node_id in group.nodes}
    group.stop()
    for node_id, found in scraped.items():
        stored = dl.open_log(group.folder / f"dledger-{node_id}").state
        names = ("ledger_begin_index", "ledger_end_index", "committed_index", "term", "ledger_end_position_bytes")
        values = (stored.begin_index, stored.end_index, stored.committed_index, stored.curr_term, stored.max_offset)
        assert tuple(found[f"dledger_{name}"] for name in names) == values


def test_every_metric_is_exported_and_documented(tmp_path: Path) -> None:
    """By a message group: each metric that the catalogue has, and no other one."""
    with message_nodes(tmp_path, 2, metrics=True) as group:
        leader = group.ready_leader()
        port = group.metrics_ports[leader]
        with closing(group.caller(leader)) as caller:
            caller.hello()
            assert caller.call(PutRequest(bodies=puts(rows(10)))).code == 200
        eventually(lambda: scrape(port)["dledger_dispatched_index"] == 9)
        found = scrape(port)
        assert (found["dledger_put_messages_total"], found["dledger_put_duplicates_total"]) == (10, 0)
        assert found["dledger_queues"] == 4
        families = {family.name for family in text_string_to_metric_families(get(port, "/metrics").body.decode())}
        declared = {metric.name.removesuffix("_total") for metric in METRICS}
        assert {name for name in families if name.startswith("dledger_")} == declared
        assert all(name.startswith(("dledger_", "process_")) for name in families)


# Health


def test_without_a_quorum_a_node_is_healthy_but_not_ready(group: Nodes) -> None:
    leader = group.leader()
    port = group.metrics_ports[leader]
    assert reason(port) == ""
    group.stop(*(node_id for node_id in group.ids if node_id != leader))
    assert eventually(lambda: reason(port)) == "no leader"
    assert get(port, "/healthz").status == 200
    found = scrape(port)
    assert (found["dledger_has_leader"], found["dledger_role{CANDIDATE}"]) == (0, 1)
    assert found["dledger_elections_total"] >= found["dledger_leader_changes_total"] >= 1
    assert [found[f"dledger_peer_connected{{{each}}}"] for each in group.ids if each != leader] == [0, 0]


def test_a_full_disk_and_a_failed_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [0.5]
    monkeypatch.setattr(CleanSpaceService.__init__, "__defaults__", (time.time, lambda _: used[0]))
    with nodes(tmp_path, 1, core_options={}, metrics=True) as group:
        group.leader()
        port = group.metrics_ports["n0"]
        assert reason(port) == ""
        used[0] = 0.99
        assert "the disk is full" in eventually(lambda: reason(port))
        assert reason(port, "/healthz") == ""
        with closing(group.caller("n0")) as caller:
            assert caller.append(b"x").code == ResponseCode.DISK_FULL
        found = eventually(lambda: scrape(port).get("dledger_refused_requests_total{DISK_FULL}") and scrape(port))
        assert (found["dledger_disk_full"], found["dledger_refused_requests_total{DISK_FULL}"]) == (1, 1)
        used[0] = 0.5
        eventually(lambda: not reason(port))
        store = group.nodes["n0"].store
        assert isinstance(store, MmapFileStore)
        store._files.failure = "flushing failed"
        assert "store has failed" in eventually(lambda: reason(port, "/healthz"))
        assert "store has failed" in reason(port)
        eventually(lambda: scrape(port)["dledger_store_failed"] == 1)


def test_a_node_that_opens_its_store_is_healthy_but_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_open, startup = threading.Event(), MmapFileStore.startup

    def slow(store: MmapFileStore, **options: Any) -> None:
        assert is_open.wait(30)
        startup(store, **options)

    monkeypatch.setattr(MmapFileStore, "startup", slow)
    group = Nodes(tmp_path, 1, core_options={}, metrics=True)
    port = group.metrics_ports["n0"] = free_ports(1)[0]
    starting = threading.Thread(target=group.start)
    starting.start()
    try:
        eventually(lambda: answers(port))
        assert reason(port) == "recovering: the store is being opened"
        assert reason(port, "/healthz") == ""
        found = scrape(port)
        assert (found["dledger_role{STARTING}"], found["dledger_role{LEADER}"]) == (1, 0)
        assert any(name.startswith("dledger_member_info{") and "g,n0" in name for name in found)
        is_open.set()
        starting.join(30)
        eventually(lambda: not reason(port))
        assert scrape(port)["dledger_role{STARTING}"] == 0
    finally:
        is_open.set()
        starting.join(30)
        group.close()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 1):
        return True
    return False


def test_a_slow_disk_is_not_ready(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={"max_flush_time_ms": 100}, metrics=True, flush="sync") as group:
        group.leader()
        port = group.metrics_ports["n0"]
        assert (reason(port), scrape(port)["dledger_disk_slow"]) == ("", 0)
        group.nodes["n0"].core._member.disk._slow_at = group.nodes["n0"].core._member.now
        assert reason(port) == "its disk needs more than 100 ms for a flush (maxFlushTimeMs)"
        eventually(lambda: scrape(port)["dledger_disk_slow"] == 1)


def test_puts_above_the_limits_are_counted_by_limit(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 1, metrics=True) as group:
        leader = group.ready_leader()
        port = group.metrics_ports[leader]
        handler = group.nodes[leader]._application._puts
        object.__setattr__(handler, "limits", TopicLimits(2, 99))
        with closing(group.caller(leader)) as caller:
            caller.hello()
            assert caller.call(PutRequest(bodies=puts(rows(1)))).code == 200
            assert caller.call(TopicsRequest(names=("another",), queue_nums=4)).code == 411
            object.__setattr__(handler, "limits", TopicLimits(9, 6))
            assert caller.call(TopicsRequest(names=("another",), queue_nums=4)).code == 411
            assert caller.call(PutRequest(bodies=Bodies.of([b"junk"]))).code == 411
        found = eventually(lambda: scrape(port).get("dledger_put_rejected_total{invalid}") and scrape(port))
        assert [found[f"dledger_put_rejected_total{{{each}}}"] for each in ("topics", "queues", "invalid")] == [1, 1, 1]


def test_a_member_that_lags_is_not_ready(group: Nodes) -> None:
    leader = group.leader()
    port = group.metrics_ports[next(node_id for node_id in group.ids if node_id != leader)]
    follower = group.nodes[next(node_id for node_id in group.ids if node_id != leader)]
    assert reason(port) == ""
    follower.core._follower._leader_committed = 1000
    assert reason(port) == "lacks 1001 committed entries: expected at most 1000 (maxLeadershipTransferWaitIndex)"


def test_a_node_whose_event_loop_hangs_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_LOOP_SECONDS", 0.2)
    with nodes(tmp_path, 1, core_options={}, metrics=True) as group:
        group.leader()
        port = group.metrics_ports["n0"]
        is_over = threading.Event()
        group._loop.call_soon_threadsafe(is_over.wait, 10)
        assert reason(port, "/healthz") == "the event loop does not respond within 0.2 s"
        assert get(port, "/metrics").status == 503
        is_over.set()
        eventually(lambda: not reason(port, "/healthz"))
        assert scrape(port)["dledger_term"] == 0


def test_a_member_of_another_group_is_named(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(nodes(tmp_path / "a", 2, core_options=FASTER, metrics=True))
        first.leader()
        first.stop("n1")
        first.start("n1", peers=f"{first.peers};n2-{HOST}:1", change_members=True)
        port = first.metrics_ports["n1"]
        text = eventually(lambda: "n0" in reason(port) and reason(port))
        assert "n0: expected" in text or "n0: member n0 of group g refuses this member" in text
        assert "list of peers" in reason(port)
        assert scrape(port)["dledger_peer_mismatch{n0}"] == 1
        other = eventually(lambda: scrape(first.metrics_ports["n0"]))
        assert other["dledger_refused_connections_total{hello}"] >= 1


def test_refused_requests_and_connections_are_counted(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, core_options=FASTER, metrics=True, secret="s3cret") as group:
        leader = group.leader()
        port, follower = group.metrics_ports[leader], next(node_id for node_id in group.ids if node_id != leader)
        with closing(group.caller(leader)) as stranger:
            stranger.call(MetadataRequest())
        with closing(group.caller(leader)) as stranger:
            stranger.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.is_closed()
        with closing(Caller(group.port(leader), remote_id=leader)) as caller:
            caller.wire = WireConnection(secret="s3cret")
            caller.call(MetadataRequest())
            assert caller.call(GetRequest(begin_index=7)).code == ResponseCode.INDEX_OUT_OF_RANGE
            vote = VoteRequest(leader_id="n9", local_id="n9", term=1)
            assert caller.call(vote).code == ResponseCode.UNKNOWN_MEMBER

        def counted() -> None:
            found = scrape(port)
            assert found["dledger_refused_connections_total{secret}"] == 1
            assert found["dledger_refused_connections_total{malformed}"] == 1
            assert found["dledger_refused_requests_total{NO_PERMISSION}"] == 1
            assert found["dledger_refused_requests_total{INDEX_OUT_OF_RANGE}"] == 1
            assert found["dledger_refused_member_requests_total{VoteRequest}"] == 1

        eventually(lambda: counted() is None)
        assert scrape(group.metrics_ports[follower])["dledger_connections{member}"] == 1


# Hostile clients


def send(port: int, data: bytes) -> bytes:
    """The whole response to some bytes; empty if the connection was closed."""
    with socket.create_connection((HOST, port), 10) as connection:
        connection.sendall(data)
        response = b""
        try:
            while part := connection.recv(1 << 16):
                response += part
        except ConnectionResetError:
            pass
        return response


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with nodes(tmp_path_factory.mktemp("hostile"), 1, core_options={}, metrics=True) as group:
        group.leader()
        yield group.metrics_ports["n0"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", 404),
        (b"GET \xff\x00 HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000, 431),
        (b"x" * 20_000, 431),
        (b"GET /healthz?probe=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /readyz HTTP/1.1\r\n\r\n", 200),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_only_small_get_requests_are_served(port: int, data: bytes, status: int) -> None:
    response = send(port, data)
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert response.count(b"HTTP/1.1") == 1
    assert reason(port) == ""


def test_slow_and_many_clients_do_not_keep_others_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MAX_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "_MAX_CONNECTIONS", 4)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HOST, port), 10)) for _ in range(20)]
        silent[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert reason(port, "/healthz") == ""
        # Closed by the node: displaced by later ones, or too slow.
        assert all(each.recv(1) == b"" for each in silent)
    assert scrape(port)["dledger_term"] == 0


def test_a_page_that_fails_is_an_error(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedNode, "values", lambda _: 1 // 0)
    eventually(lambda: get(port, "/metrics").status == 500)
    monkeypatch.undo()
    assert scrape(port)["dledger_term"] == 0


# Settings


def test_metrics_need_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "find_spec", lambda _: None)
    with pytest.raises(OptionError, match=re.escape("pip install 'pyspark_dledger[metrics]'")):
        nodes(tmp_path, 1, metrics=True).__enter__()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9100", Address("127.0.0.1", 9100)), ("10.0.0.1:9100", Address("10.0.0.1", 9100)), ("[::]:1", Address("::", 1))],
)
def test_metrics_are_on_loopback_unless_an_address_is_given(text: str, expected: Address) -> None:
    assert NodeConfig("g", "n0", "n0-10.0.0.1:1", metrics=text).metrics_address() == expected


@pytest.mark.parametrize("text", ["x", "0", "host:", "99999"])
def test_a_wrong_address_is_an_error(text: str) -> None:
    settings = NodeSettings()
    settings |= {"group": "g", "selfId": "n0", "peers": "n0-127.0.0.1:1", "storeType": "MEMORY"}
    settings.set("metrics", text, "--metrics")
    with pytest.raises(OptionError, match="--metrics: expected HOST:PORT"):
        node_config(settings)


def test_an_address_that_is_in_use_stops_the_start(tmp_path: Path) -> None:
    with nodes(tmp_path / "a", 1, core_options={}, metrics=True) as group:
        group.leader()
        with pytest.raises(DLedgerError, match="metrics: cannot listen at"):
            nodes(tmp_path / "b", 1, metrics=f"{HOST}:{group.metrics_ports['n0']}").__enter__()


def test_serve_has_metrics(tmp_path: Path) -> None:
    port, metrics = free_ports(2)
    process = Served("n0", peers_text([port]), tmp_path, "--metrics", str(metrics))
    try:
        process.ready()
        eventually(lambda: not reason(metrics))
        assert scrape(metrics)["dledger_role{LEADER}"] == 1
        assert process.terminate() == 0
    finally:
        process.close()


# Examples


def expressions() -> dict[str, str]:
    """The queries of the example dashboard and alerts, by the title of their panel or alert."""
    folder = ROOT / "examples" / "monitoring"
    panels = json.loads((folder / "grafana.json").read_text())["panels"]
    found = {f"{panel['title']} {each['refId']}": each["expr"] for panel in panels for each in panel["targets"]}
    alerts = re.findall(r"alert: (\w+)\n +expr: (.*)\n", (folder / "alerts.yml").read_text())
    assert len(alerts) == (folder / "alerts.yml").read_text().count("alert:")
    return found | dict(alerts)


@pytest.mark.parametrize("query", expressions().values(), ids=expressions().keys())
def test_queries_of_examples_use_metrics_that_exist(query: str) -> None:
    labels = {metric.name: {*metric.labels, "job", "instance"} for metric in METRICS if metric.kind != HISTOGRAM}
    labels |= {f"{metric.name}_bucket": {"le", "job", "instance"} for metric in METRICS if metric.kind == HISTOGRAM}
    labels |= {name: {"job", "instance"} for name in ("process_cpu_seconds_total", "process_open_fds")}
    names = re.findall(r"\b(?:dledger|process)_\w+", query)
    assert names
    for name in names:
        assert name in labels, name
        used = [label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")]
        used += re.findall(r"(\w+)=~?\"", "".join(re.findall(rf"{name}\{{([^}}]*)\}}", query)))
        assert set(used) <= labels[name], name
