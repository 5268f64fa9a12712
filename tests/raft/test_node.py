"""Nodes: their settings, connections and processes, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.log_records import ProblemLog, RateLimitedLog
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError, StoreError
from pyspark_dledger.raft.core import RoleChanged
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushRequest,
    PutRequest,
    PutResponse,
    ReadRequest,
    Request,
    Response,
    Role,
    StatusRequest,
)
from pyspark_dledger.raft.node import NodeConfig, inbound
from pyspark_dledger.raft.node.inbound import Caller as Token
from pyspark_dledger.raft.node.inbound import Inbound, Room
from pyspark_dledger.raft.node.link import Link
from pyspark_dledger.raft.node.service import Service
from pyspark_dledger.raft.node.settings import node_config, read_settings
from pyspark_dledger.raft.peers import Address, format_peers, parse_peers
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.raft.wire import ReceivedRequest, ReceivedResponse, Refusal, WireConnection
from pyspark_dledger.raft.wire.message_kinds import REQUEST_CODES
from pyspark_dledger.store.files.node_files import load_members
from tests.support.certificates import make_tls
from tests.support.groups import (
    HOST,
    Caller,
    Nodes,
    Served,
    eventually,
    free_ports,
    nodes,
    packed,
    peers_text,
)

THREE = ("n0", "n1", "n2")


# Addresses and settings.


def test_peers_are_split_at_the_first_dash() -> None:
    peers = parse_peers("n0-10.0.0.1:20911;n1-my-host-1.example:20912; n2-[fe80::1]:20913;")
    expected = {
        "n0": Address("10.0.0.1", 20911),
        "n1": Address("my-host-1.example", 20912),
        "n2": Address("fe80::1", 20913),
    }
    assert peers == expected
    assert format_peers(peers) == "n0-10.0.0.1:20911;n1-my-host-1.example:20912;n2-[fe80::1]:20913"
    assert parse_peers(format_peers(peers)) == peers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found ''"),
        ("n0", "found 'n0'"),
        ("-host:1", "found '-host:1'"),
        ("n0-host", "found 'host'"),
        ("n0-host:", "found 'host:'"),
        ("n0-host:0", "found 'host:0'"),
        ("n0-host:65536", "found 'host:65536'"),
        ("n0-host:1e3", "found 'host:1e3'"),
        ("n0-:20911", "found ':20911'"),
        ("n0-::1:20911", "in brackets"),
        ("n0-a:1;n0-b:2", "found n0 twice"),
    ],
)
def test_peers_that_are_none(text: str, found: str) -> None:
    with pytest.raises(OptionError, match=re.escape(found)):
        parse_peers(text)


@pytest.mark.parametrize(
    ("own", "listen", "expected"),
    [
        ("127.0.0.1:20911", None, Address("127.0.0.1", 20911)),
        ("localhost:20911", None, Address("localhost", 20911)),
        ("[::1]:20911", None, Address("::1", 20911)),
        ("10.0.0.1:20911", "10.0.0.1", Address("10.0.0.1", 20911)),
        ("10.0.0.1:20911", "127.0.0.1:7", Address("127.0.0.1", 7)),
        ("10.0.0.1:20911", "::", Address("::", 20911)),
        ("10.0.0.1:20911", "[::]", Address("::", 20911)),
        ("10.0.0.1:20911", "[::]:7", Address("::", 7)),
    ],
)
def test_where_a_node_listens(own: str, listen: str | None, expected: Address) -> None:
    assert NodeConfig("g", "n0", f"n0-{own}", listen=listen).listen_address() == expected


@pytest.mark.parametrize("own", ["10.0.0.1:20911", "0.0.0.0:20911", "[::]:20911", "host.example:20911"])
def test_only_loopback_is_listened_at_unasked(own: str) -> None:
    with pytest.raises(OptionError, match="allow that with listen"):
        NodeConfig("g", "n0", f"n0-{own}").listen_address()


def test_flush_is_sync_for_a_group_of_one() -> None:
    one, two = "n0-127.0.0.1:1", "n0-127.0.0.1:1;n1-127.0.0.1:2"
    assert NodeConfig("g", "n0", one).flush_mode() == "sync"
    assert NodeConfig("g", "n0", two).flush_mode() == "async"
    assert NodeConfig("g", "n0", two, flush="sync").flush_mode() == "sync"


def test_settings_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "n0.properties"
    path.write_text(
        "# as for Java\ngroup=g\nselfId = n0\npeers: n0-127.0.0.1:1;\\\n  n1-127.0.0.1:2\nstoreBaseDir=/data/a\n"
        "mappedFileSizeForEntryData=64m\nheartBeatTimeIntervalMs=500\npreferredLeaderIds=n0;n1\n"
        "dataStorePath=/a,/b\nflush=sync\nenableBatchPush=false\n"
    )
    config = node_config(read_settings(path))
    assert (config.group, config.self_id, config.flush) == ("g", "n0", "sync")
    assert config.peers == "n0-127.0.0.1:1;n1-127.0.0.1:2"
    assert config.store == Path("/data/a")
    assert config.store_options == {"data_file_size": 64 << 20, "data_dirs": (Path("/a"), Path("/b"))}
    core = {"heart_beat_time_interval_ms": 500, "preferred_leader_ids": ("n0", "n1"), "enable_batch_push": False}
    assert config.core_options == core


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"heartBeatTimeInterval": "1"},
            "unknown setting heartBeatTimeInterval: the nearest is heartBeatTimeIntervalMs",
        ),
        ({"entryCacheSize": "1"}, "config: unknown setting entryCacheSize: docs/node.md lists"),
        (
            {"heartBeatTimeIntervalMs": "soon"},
            "config: heartBeatTimeIntervalMs: expected an integer of at least 1, f",
        ),
        ({"heartBeatTimeIntervalMs": "0"}, "config: heartBeatTimeIntervalMs: expected an integer of at least 1, f"),
        ({"maxPendingRequestsNum": "0"}, "config: maxPendingRequestsNum: expected an integer of at least 1, found"),
        ({"maxConnections": "0"}, "config: maxConnections: expected an integer of at least 1, found '0'"),
        ({"maxWaitAckTimeMs": "0"}, "config: maxWaitAckTimeMs: expected an integer of at least 1, found '0'"),
        ({"deleteWhen": "25"}, "config: deleteWhen: expected hours of the day"),
        ({"mappedFileSizeForEntryData": "1"}, "config: mappedFileSizeForEntryData: expected 56 to"),
        ({"mappedFileSizeForEntryIndex": "33"}, "config: mappedFileSizeForEntryIndex: expected a multiple of 32"),
        ({"minVoteIntervalMs": "9000"}, "config: minVoteIntervalMs and maxVoteIntervalMs: expected a minimum below"),
        ({"preferredLeaderIds": "n0;n7"}, "config: preferredLeaderIds: expected members, of n0, found n7"),
        ({"flush": "never"}, "expected sync or async, found 'never'"),
        ({"mappedFileSizeForEntryData": "1x"}, "expected a size in bytes"),
        ({"enableLeaderElector": "false"}, "expected true"),
        ({"group": ""}, "group missing: set group, selfId and peers"),
        ({"storeBaseDir": None}, "expected storeBaseDir"),
        ({"tlsCert": "/a"}, "expected tlsCert, tlsKey and tlsCa"),
    ],
)
def test_settings_that_are_none(change: dict[str, str | None], text: str) -> None:
    settings = {"group": "g", "selfId": "n0", "peers": "n0-127.0.0.1:1", "storeBaseDir": "/data", **change}
    with pytest.raises(OptionError, match=re.escape(text)):
        node_config({name: value for name, value in settings.items() if value is not None})


def test_a_repair_is_no_setting_of_a_file(tmp_path: Path) -> None:
    """It would be done again at every start."""
    path = tmp_path / "n0.properties"
    path.write_text("truncateAt=7\n")
    with pytest.raises(OptionError, match="found truncateAt: say it once"):
        read_settings(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("deleteWhen=99\n", "line 6: deleteWhen: expected hours"),
        ("maxHeartBeatLeak=x\n", "line 6: maxHeartBeatLeak: expected an integer of at least 1, found 'x'"),
        ("\nmaxHeartBeatLeek=3\n", "line 7: unknown setting maxHeartBeatLeek: the nearest is maxHeartBeatLeak"),
        ("maxVoteIntervalMs=1\n", "line 6: minVoteIntervalMs and maxVoteIntervalMs: expected a minimum"),
        ("group=h\n", "line 6: expected each setting once, found group in line 1, too"),
    ],
)
def test_errors_of_a_file_name_its_lines(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "n0.properties"
    path.write_text(f"group=g\nselfId=n0\npeers=n0-127.0.0.1:1;\\\n n1-127.0.0.1:2\nstoreBaseDir=/data\n{text}")
    with pytest.raises(OptionError, match=re.escape(f"config {path} {found}")):
        node_config(read_settings(path))


def test_a_node_has_to_be_a_member() -> None:
    with pytest.raises(OptionError, match="expected this node's id n7 among them, found n0, n1"):
        NodeConfig("g", "n7", "n0-127.0.0.1:1;n1-127.0.0.1:2").members()


def test_what_strangers_cause_is_logged_so_often_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RateLimitedLog(lambda: now)
    with caplog.at_level("WARNING", "pyspark_dledger.node"):
        for _ in range(50):
            log(30, "noise")
        assert len(caplog.records) == 20
        now = 1.0
        log(30, "noise")
    assert caplog.records[-1].fields == {"leftOut": 30}  # type: ignore[attr-defined]  # an extra of the record


def test_a_problem_that_lasts_is_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    problem = ProblemLog(lambda: now)
    with caplog.at_level("ERROR", "pyspark_dledger.node"):
        for term in range(50):
            problem(40, "problem", f"term {term} cannot be saved")
            problem(40, "problem", f"entries for n{term % 2} cannot be read")
        assert len(caplog.records) == 3
        now = 10.0
        problem(40, "problem", "term 50 cannot be saved")
    expected = {"found": "term 50 cannot be saved", "leftOut": 49}
    assert caplog.records[-1].fields == expected  # type: ignore[attr-defined]  # an extra of the record


# Groups.


def test_one_node_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as group:
        group.leader()
        with closing(group.caller("n0")) as caller:
            first = caller.append(b"one")
            assert (first.code, first.index, first.pos, first.count) == (200, 0, 0, 1)
            caller.hello()
            batch = caller.append(b"two", b"", b"three" * 1000)
            assert (batch.code, batch.index, batch.pos, batch.count) == (200, 1, 51, 3)
        assert group.nodes["n0"].store.flushed_index == 3
        group.stop("n0")
        group.start("n0")
        group.leader()
        assert group.status("n0")["term"] == 0
        with closing(group.caller("n0")) as caller:
            bodies = [caller.call(GetRequest(begin_index=index)).entries[0].body for index in range(4)]
            assert bodies == [b"one", b"two", b"", b"three" * 1000]
            assert caller.append(b"more").index == 4


def data_of(folder: Path, node_id: str) -> bytes:
    """All bytes of a node's data files."""
    return b"".join(path.read_bytes() for path in sorted((folder / f"dledger-{node_id}" / "data").iterdir()))


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_three_nodes_elect_and_replicate(tmp_path: Path, flush: str) -> None:
    with nodes(tmp_path, 3, flush=flush) as group:
        leader = group.leader()
        with closing(group.caller(leader)) as caller:
            caller.hello()
            for number in range(40):
                response = caller.append(*[b"%d-%d" % (number, each) * 500 for each in range(20)])
                assert (response.code, response.index, response.count) == (200, number * 20, 20)
        eventually(lambda: all(group.status(each)["committedIndex"] == 799 for each in THREE))
    first, *others = (data_of(tmp_path, each) for each in THREE)
    assert first.count(b"39-19") == 500
    assert all(other == first for other in others)


def test_a_group_goes_on_without_its_leader_and_with_it_again(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group:
        old = group.leader()
        with closing(group.caller(old)) as caller:
            caller.append(b"before")
        group.stop(old)
        new = group.leader()
        assert new != old
        with closing(group.caller(new)) as caller:
            assert caller.append(b"after").index == 1
        group.start(old)
        eventually(lambda: group.status(old)["committedIndex"] == 1)
    assert data_of(tmp_path, old) == data_of(tmp_path, new)


def test_leader_stays_while_it_streams(tmp_path: Path) -> None:
    """A node answers heartbeats between the parts of much work."""
    with nodes(tmp_path, 3, store_options={"data_file_size": 64 << 20}) as group:
        leader = group.leader()
        term = group.status(leader)["term"]
        with closing(group.caller(leader)) as caller:
            caller.hello()
            bodies = packed(*[bytes(1024)] * 1000)
            asked = [caller.send(AppendRequest(bodies=bodies)) for _ in range(100)]
            assert {caller.receive(opaque).code for opaque in asked} == {200}
        assert group.leader() == leader
        assert group.status(leader)["term"] == term


def test_committed_entries_are_read_at_any_member(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group:
        leader = group.leader()
        follower = next(each for each in THREE if each != leader)
        with closing(group.caller(leader)) as writer, closing(group.caller(follower)) as reader:
            reader.hello()
            waiting = reader.send(ReadRequest(first_index=0, wait_ms=10_000))
            writer.append(b"first")
            response = reader.receive(waiting)
            assert (response.code, response.first_index, response.count) == (200, 0, 1)
            assert bytes(response.data[48:]) == b"first"
            empty = reader.call(ReadRequest(first_index=1, wait_ms=20))
            assert (empty.code, empty.count, empty.committed_index) == (200, 0, 0)
            assert reader.call(ReadRequest(first_index=-1)).code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
            assert reader.call(ReadRequest(group="other")).code == ResponseCode.UNKNOWN_GROUP
            assert reader.call(ReadRequest(remote_id="n9")).code == ResponseCode.UNKNOWN_MEMBER
            status = reader.call(StatusRequest())
            assert (status.role.value, status.end_index, status.committed_index) == ("FOLLOWER", 0, 0)


def test_a_reader_gets_no_entry_that_is_not_committed(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group:
        leader = group.leader()
        with closing(group.caller(leader)) as caller:
            caller.hello().append(b"committed")
            group.stop(*(each for each in THREE if each != leader))
            caller.send(AppendRequest(bodies=packed(b"alone")))
            eventually(lambda: group.status(leader)["endIndex"] == 1)
            response = caller.call(ReadRequest(first_index=0))
            assert (response.count, response.committed_index) == (1, 0)
            assert bytes(response.data[48:]) == b"committed"


# Connections.


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        yield group


def test_java_sees_json_only(one: Nodes) -> None:
    """A caller that offers nothing is offered nothing."""
    with closing(one.caller("n0")) as caller:
        caller.wire = WireConnection(offers_binary=False)
        response = caller.call(MetadataRequest())
        assert (response.leader_id, response.peers) == ("n0", {"n0": f"{HOST}:{one.port('n0')}"})
        assert not caller.wire.is_binary
        assert caller.append(b"json").code == 200


def test_requests_are_refused_as_java_does(one: Nodes) -> None:
    with closing(one.caller("n0")) as caller:
        assert caller.call(GetRequest(group="other")).code == ResponseCode.UNKNOWN_GROUP
        assert caller.call(GetRequest(remote_id="n9")).code == ResponseCode.UNKNOWN_MEMBER
        assert caller.call(GetRequest(begin_index=5)).code == ResponseCode.INDEX_OUT_OF_RANGE


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">iI", 16 * 1024 * 1024 + 1, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 8, 0x01000004) + b"rocketmq",
        struct.pack(">iI", 4, 0xFF),
        struct.pack(">iI", 8, 4) + b"nojs",
        struct.pack(">iI", 20, 0x44000010) + bytes(16),
    ],
    ids=["http", "oversized", "negative", "rocketmq", "header", "json", "binary-without-hello"],
)
def test_malformed_frames_close_their_connection_alone(
    one: Nodes, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(one.caller("n0")) as good, closing(one.caller("n0")) as bad:
        good.append(b"before")
        with caplog.at_level("WARNING", "pyspark_dledger.node"):
            bad.sock.sendall(data)
            assert bad.is_closed()
        records = [found for found in caplog.records if found.getMessage() == "connection closed"]
        assert "expected" in records[0].fields["reason"]  # type: ignore[attr-defined]  # an extra of the record
        assert good.append(b"after").code == 200


def test_half_a_frame_and_nothing_more_disturbs_nobody(one: Nodes) -> None:
    with closing(one.caller("n0")) as silent, closing(one.caller("n0")) as caller:
        silent.sock.sendall(struct.pack(">iI", 8 * 1024 * 1024, 100) + bytes(50))
        assert caller.append(b"x").code == 200


def test_unfinished_frames_of_many_connections_take_bounded_memory(one: Nodes) -> None:
    room = one.nodes["n0"]._room
    room.limit = 8 << 20
    hoarders = [one.caller("n0") for _ in range(4)]
    for hoarder in hoarders:
        with suppress(OSError):
            hoarder.sock.sendall(struct.pack(">iI", 15 << 20, 100) + bytes(3 << 20))
    eventually(lambda: len(one.nodes["n0"]._inbound) < 4)
    with closing(one.caller("n0")) as caller:
        assert caller.append(b"x").code == 200
    for hoarder in hoarders:
        hoarder.close()
    eventually(lambda: room.taken < 1 << 20)


def unsent(group: Nodes) -> list[int]:
    async def measure() -> list[int]:
        return [each.unsent for each in group.nodes["n0"]._inbound]

    return group.run(measure())


def test_who_does_not_read_answers_gets_no_more(tmp_path: Path) -> None:
    """Requests are left in the socket once answers pile up, and done when those are taken."""
    large = os.urandom(1 << 20)
    with nodes(tmp_path, 1, core_options={}, store_options={"data_file_size": 4 << 20}) as group:
        group.leader()
        with closing(group.caller("n0")) as slow, closing(group.caller("n0")) as quick:
            slow.hello()
            slow.append(large)
            asked = [slow.send(GetRequest(begin_index=0)) for _ in range(300)]
            eventually(lambda: max(unsent(group)) > 0)
            for _ in range(10):
                assert quick.append(b"quick").code == 200
                assert max(unsent(group)) < 40 << 20
            for opaque in asked:
                response = slow.receive(opaque)
                assert isinstance(response, GetResponse)
                assert response.entries[0].body == large
        eventually(lambda: not unsent(group))


def test_connections_are_limited(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={}, max_connections=3) as group:
        group.leader()
        admitted = [group.caller("n0") for _ in range(3)]
        for caller in admitted:
            caller.call(MetadataRequest())
        with closing(group.caller("n0")) as refused:
            assert refused.is_closed()
        admitted.pop().close()
        eventually(lambda: len(group.nodes["n0"]._inbound) == 2)
        with closing(group.caller("n0")) as later:
            later.call(MetadataRequest())
        for caller in admitted:
            caller.close()


def test_only_its_address_listens(one: Nodes) -> None:
    assert one.nodes["n0"].address == Address(HOST, one.port("n0"))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", one.port("n0")), 1)


def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    group = Nodes(tmp_path, 1)
    with closing(socket.create_server((HOST, group.ports[0]))), pytest.raises(DLedgerError, match="expected to listen"):
        group.start()
    group.start()  # the store was let go
    group.close()


class OneByOne:
    """A server that refuses the append of the body it is told, and answers when it is told."""

    def __init__(self, refused: bytes) -> None:
        self.refused = refused
        self.taken: list[Token] = []
        self.refusals: list[Token] = []

    def handle(self, request: Request, caller: Token) -> bool:
        assert isinstance(request, AppendRequest)
        refuses = bytes(request.bodies.block).endswith(self.refused)
        (self.refusals if refuses else self.taken).append(caller)
        return not refuses

    def dirty(self, channel: Any) -> None:
        channel.flush()


class Wire:
    """Stands for a transport, and gives what the other side receives."""

    def __init__(self) -> None:
        self.client = WireConnection(offers_binary=True)
        self.responses: dict[int, Response | Refusal] = {}

    def write(self, data: bytes) -> None:
        for item in self.client.feed(data):
            assert isinstance(item, ReceivedResponse)
            self.responses[item.opaque] = item.response

    def is_closing(self) -> bool:
        return False


def test_appends_behind_a_refused_one_are_refused() -> None:
    """What is behind in a pipeline must not overtake it, until its sender begins anew."""

    async def run() -> None:
        server, transport = OneByOne(b"no"), Wire()
        inbound = Inbound(server, 1 << 20, Room(1 << 30), RateLimitedLog(), lambda _: True, lambda _: None)
        inbound._transport = transport  # type: ignore[assignment]  # a stand-in
        opaques = iter(range(100))

        def ask(body: bytes, is_restart: bool) -> int:
            opaque = next(opaques)
            transport.client._outstanding[opaque] = 50001
            request = AppendRequest(bodies=packed(body), is_restart=is_restart)
            inbound.received([ReceivedRequest(opaque, request, False, False, False, 50001)])
            return opaque

        first, refused, behind = ask(b"yes", True), ask(b"no", False), ask(b"behind", False)
        assert len(server.taken) == 1
        server.refusals[0].response(AppendResponse(code=ResponseCode.LEADER_PENDING_FULL))
        later = ask(b"later", False)
        assert [transport.responses[each].code for each in (refused, behind, later)] == [503, 503, 503]
        assert first not in transport.responses
        again = ask(b"again", True)
        server.taken[0].response(AppendResponse(index=7))
        server.taken[1].response(AppendResponse(index=8))
        assert [transport.responses[each].index for each in (first, again)] == [7, 8]  # type: ignore[union-attr]
        assert len(server.taken) == 2

    asyncio.run(run())


def test_puts_and_appends_are_refused_behind_each_other() -> None:
    """Each with an answer of its own kind."""

    async def run() -> None:
        server, transport = OneByOne(b"no"), Wire()
        inbound = Inbound(server, 1 << 20, Room(1 << 30), RateLimitedLog(), lambda _: True, lambda _: None)
        inbound._transport = transport  # type: ignore[assignment]  # a stand-in

        def ask(opaque: int, request: AppendRequest) -> None:
            code = REQUEST_CODES[type(request)]
            transport.client._outstanding[opaque] = code
            transport.client._binary_requests.add(opaque)
            inbound.received([ReceivedRequest(opaque, request, True, False, False, code)])

        ask(0, PutRequest(bodies=packed(b"no")))
        ask(1, AppendRequest(bodies=packed(b"behind"), is_restart=False))
        ask(2, PutRequest(bodies=packed(b"behind"), is_restart=False))
        server.refusals[0].response(PutResponse(code=ResponseCode.LEADER_NOT_READY, leader_id="n0", reason="not yet"))
        ask(3, AppendRequest(bodies=packed(b"later"), is_restart=False))
        assert not server.taken
        found = [transport.responses[opaque] for opaque in range(4)]
        assert [type(response) for response in found] == [PutResponse, AppendResponse, PutResponse, AppendResponse]
        assert all((response.code, response.leader_id) == (505, "n0") for response in found)  # type: ignore[union-attr]
        ask(4, AppendRequest(bodies=packed(b"no"), is_restart=True))
        ask(5, PutRequest(bodies=packed(b"behind"), is_restart=False))
        server.refusals[1].response(AppendResponse(code=ResponseCode.DISK_FULL))
        assert isinstance(transport.responses[5], PutResponse) and transport.responses[5].code == 415
        ask(6, PutRequest(bodies=packed(b"again"), is_restart=True))
        assert len(server.taken) == 1

    asyncio.run(run())


# A secret.


SECRET = "of this test"


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path, 1, core_options={}, secret=SECRET) as group:
        group.leader()
        yield group


@pytest.mark.parametrize("given", [None, "another", SECRET + "x", ""])
@pytest.mark.parametrize(
    "request_", [MetadataRequest(), AppendRequest(bodies=packed(b"x")), GetRequest(begin_index=0)], ids=repr
)
def test_who_does_not_give_the_secret_is_refused_and_cut_off(
    secret: Nodes, given: str | None, request_: Request
) -> None:
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=given)
        response = caller.call(replace(request_))
        assert isinstance(response, Refusal)
        found = "another" if given is not None and isinstance(request_, MetadataRequest) else "none"
        assert response == Refusal(
            16, f"expected the secret of this node in the first request, found {found}: connect with it"
        )
        assert caller.is_closed()
    assert secret.status("n0")["endIndex"] == -1


def test_what_comes_behind_a_wrong_secret_is_not_done(secret: Nodes) -> None:
    """Also where it came in one piece with it, and with the right secret."""
    with closing(secret.caller("n0")) as caller:
        wrong, right = WireConnection(secret="wrong"), WireConnection(secret=SECRET)
        frames = [
            *wrong.request(MetadataRequest(group="g", remote_id="n0"))[1],
            *right.request(MetadataRequest(group="g", remote_id="n0"))[1],
            *right.request(AppendRequest(group="g", remote_id="n0", bodies=packed(b"x")))[1],
        ]
        caller.sock.sendall(b"".join(frames))
        assert caller.is_closed()
    time.sleep(0.1)
    assert secret.status("n0")["endIndex"] == -1


def test_who_gives_the_secret_once_may_ask_anything(secret: Nodes) -> None:
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=SECRET)
        caller.hello()
        assert caller.append(b"x").code == 200
        # As Java would, if it knew how to give it.
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(offers_binary=False, secret=SECRET)
        assert caller.call(MetadataRequest()).leader_id == "n0"
        assert caller.call(GetRequest(begin_index=0)).entries[0].body == b"x"


def test_large_frames_are_for_who_gave_the_secret(secret: Nodes) -> None:
    """Strangers take no memory, and no room from others."""
    with closing(secret.caller("n0")) as caller:
        caller.sock.sendall(struct.pack(">iI", 1 << 20, 100))
        assert caller.is_closed()
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=SECRET)
        caller.hello()
        assert caller.append(bytes(1 << 19)).code == 200


def test_who_gives_no_secret_soon_is_cut_off(secret: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "_HELLO_SECONDS", 0.2)
    with closing(secret.caller("n0")) as silent, closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=SECRET)
        caller.hello()
        assert silent.is_closed()
        time.sleep(0.1)
        assert caller.append(b"x").code == 200


def test_a_store_tells_which_group_its_node_ran_in_last(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as group:
        group.leader()
        folders = [tmp_path / f"dledger-{node}" for node in ("n0", "n1")]
        assert [load_members(folder) for folder in folders] == [("n0", "n1")] * 2
    with nodes(tmp_path, 1):
        assert [load_members(folder) for folder in folders] == [("n0",), ("n0", "n1")]


def test_members_and_clients_with_one_secret_work_together(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, secret=SECRET) as group:
        group.leader()
        with dl.connect("g", group.peers, secret=SECRET) as client:
            assert client.append(b"x").index == 0
            assert client.status("n1").end_index >= -1
        for wrong in (None, "wrong"):
            with dl.connect("g", group.peers, secret=wrong) as client:
                started = time.monotonic()
                with pytest.raises(GroupError, match="connect with the secret of that node") as caught:
                    client.append(b"y")
                assert caught.value.code == ResponseCode.UNKNOWN_MEMBER
                assert time.monotonic() - started < 2
        # A member with another secret is none.
        group.stop("n2")
        group.start("n2", secret="wrong")
        time.sleep(1)
        assert group.status("n2")["role"] == Role.CANDIDATE.value
        assert SECRET not in repr(group.nodes["n0"].config)


@pytest.mark.parametrize("value", ["", "x" * 1001, "gr\u00fcn", "a\nb", "\ud800"])
def test_what_is_no_secret_is_said_without_showing_it(value: str) -> None:
    for make in (
        lambda: NodeConfig("g", "n0", "n0-127.0.0.1:1", secret=value),
        lambda: dl.connect("g", "n0-127.0.0.1:1", secret=value),
    ):
        with pytest.raises(OptionError, match=f"^secret: expected .* found another text of length {len(value)}"):
            make()


# The connection to a peer.


class Peer:
    """A peer that is scripted: gets requests, answers what it wants."""

    def __init__(self, offers_binary: bool = True) -> None:
        self.wire = WireConnection(offers_binary=offers_binary)
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writer = writer
        self.wire = WireConnection(offers_binary=self.wire._offers_binary)
        while data := await reader.read(1 << 16):
            for asked in self.wire.feed(data):
                assert isinstance(asked, ReceivedRequest)
                if not isinstance(asked.request, MetadataRequest):
                    self.asked.append(asked)
                else:
                    self.response(asked, MetadataResponse())

    def response(self, asked: ReceivedRequest, response: Response) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(self.wire.respond(asked, response)))

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()


class Linked:
    """A link to a scripted peer, and what it told."""

    def __init__(self, port: int) -> None:
        self.responses: dict[int, Response | None] = {}
        self.binary_peers: list[bool] = []
        hello = MetadataRequest(group="g", remote_id="n1", local_id="n0")
        self.link = Link(
            "n1",
            Address(HOST, port),
            hello,
            None,
            1 << 20,
            self._answered,
            lambda _, is_ours: self.binary_peers.append(is_ours),
        )
        self.link.start()

    def _answered(self, token: int, response: Response | None) -> None:
        assert token not in self.responses
        self.responses[token] = response

    def send(self, token: int) -> None:
        request = HeartBeatRequest(group="g", remote_id="n1", leader_id="n0", term=token)
        self.link.send(token, request, int(asyncio.get_running_loop().time() * 1000))
        self.link.flush()


async def until(check: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("offers_binary", [True, False], ids=["ours", "java"])
def test_link_speaks_what_its_peer_does(offers_binary: bool) -> None:
    async def run() -> None:
        peer = Peer(offers_binary)
        linked = Linked(await peer.start())
        await until(lambda: linked.link.is_connected)
        assert linked.binary_peers == [offers_binary]
        linked.send(1)
        await until(lambda: peer.asked)
        assert peer.asked[0].is_binary is offers_binary
        peer.response(peer.asked[0], HeartBeatResponse(term=7))
        await until(lambda: linked.responses)
        response = linked.responses[1]
        assert response is not None
        assert response.term == 7
        await linked.link.stop()
        peer.server.close()

    asyncio.run(run())


def test_link_gives_every_request_one_answer_whatever_happens() -> None:
    async def run() -> None:
        peer = Peer()
        linked = Linked(await peer.start())
        linked.send(1)  # while it connects
        await until(lambda: linked.link.is_connected and peer.asked)
        linked.send(2)
        await until(lambda: len(peer.asked) == 2)
        peer.response(peer.asked[0], HeartBeatResponse(term=1))
        await until(lambda: 1 in linked.responses)
        peer.hang_up()
        await until(lambda: 2 in linked.responses)
        assert linked.responses[2] is None
        linked.send(3)
        await until(lambda: linked.link.is_connected and peer.connections == 2)
        linked.send(4)
        await until(lambda: len(peer.asked) >= 3)
        peer.response(peer.asked[-1], HeartBeatResponse(term=4))
        await until(lambda: len(linked.responses) == 4)
        peer.server.close()
        await linked.link.stop()

    asyncio.run(run())


def test_link_gives_up_on_a_silent_peer_and_connects_anew() -> None:
    async def run() -> None:
        peer = Peer()
        linked = Linked(await peer.start())
        await until(lambda: linked.link.is_connected)
        linked.send(1)
        await until(lambda: peer.asked)
        later = int(asyncio.get_running_loop().time() * 1000) + 3001
        linked.link.expire(later)
        assert linked.responses == {1: None}
        await until(lambda: peer.connections == 2 and linked.link.is_connected)
        await linked.link.stop()
        peer.server.close()

    asyncio.run(run())


def test_link_stops_whatever_it_does() -> None:
    """A cancellation can come together with the outcome of what is waited for, and must not be lost."""

    async def run() -> None:
        peer = Peer()
        port = await peer.start()
        nobody = free_ports(1)[0]
        for turns in range(40):
            linked = Linked(nobody if turns % 2 else port)
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            await asyncio.wait_for(linked.link.stop(), 5)
            assert not linked.link.is_connected
        peer.server.close()

    asyncio.run(run())


def test_link_to_nobody_fails_at_once() -> None:
    async def run() -> None:
        linked = Linked(free_ports(1)[0])
        await asyncio.sleep(0.2)
        for token in range(1000):
            linked.send(token)
        await until(lambda: len(linked.responses) == 1000)
        assert set(linked.responses.values()) == {None}
        await linked.link.stop()

    asyncio.run(run())


# TLS.


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """What members and clients show."""
    return make_tls(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """The same of another authority."""
    return make_tls(tmp_path_factory.mktemp("strange"))


def tls_caller(group: Nodes, node_id: str, context: ssl.SSLContext) -> Caller:
    plain = socket.create_connection((HOST, group.port(node_id)), 5)
    return Caller(0, remote_id=node_id, sock=context.wrap_socket(plain, server_hostname=HOST))


def handshakes(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The fields of the records of refused ones."""
    found = [each for each in caplog.records if each.getMessage() == "handshake refused"]
    return [each.fields for each in found]  # type: ignore[attr-defined]  # an extra of the record


def test_group_over_tls(tmp_path: Path, tls: Tls) -> None:
    with nodes(tmp_path, 3, tls=tls) as group:
        leader = group.leader()
        with closing(tls_caller(group, leader, tls.client_context())) as caller:
            caller.hello()
            large = os.urandom(2 << 20)
            group_of_large = caller.append(large[: 512 << 10], b"small", large[: 100 << 10])
            assert group_of_large.code == 200
            assert caller.call(GetRequest(begin_index=0)).entries[0].body == large[: 512 << 10]
        eventually(lambda: all(group.status(each)["committedIndex"] == 2 for each in THREE))


def test_tls_refuses_who_shows_no_certificate_of_the_authority(
    tmp_path: Path, tls: Tls, strange: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "pyspark_dledger.node")
    with nodes(tmp_path, 1, core_options={}, tls=tls) as group:
        group.leader()
        bare = ssl.create_default_context(cafile=str(tls.ca))
        stranger = strange.client_context()
        stranger.load_verify_locations(tls.ca)
        for context in (bare, stranger):
            with pytest.raises((ssl.SSLError, ConnectionError)), closing(tls_caller(group, "n0", context)) as caller:
                caller.call(MetadataRequest())
        with closing(group.caller("n0")) as plain, pytest.raises((ConnectionError, TimeoutError)):
            plain.call(MetadataRequest())
        eventually(lambda: not group.nodes["n0"]._inbound)
        refused = eventually(lambda: len(found := handshakes(caplog)) >= 3 and found)
        assert all(fields["address"].startswith(f"{HOST}:") and fields["reason"] for fields in refused)
        with closing(tls_caller(group, "n0", tls.client_context())) as caller:
            assert caller.call(MetadataRequest()).code == 200


def test_tls_clients_check_the_server(tmp_path: Path, tls: Tls, strange: Tls) -> None:
    with nodes(tmp_path, 1, core_options={}, tls=tls) as group, pytest.raises(ssl.SSLError):
        tls_caller(group, "n0", strange.client_context())


def test_tls_files_that_are_none(tmp_path: Path, tls: Tls) -> None:
    with pytest.raises(OptionError, match="tls cert: expected a PEM file, found none"):
        Tls(tmp_path / "none", tls.key, tls.ca).server_context()
    with pytest.raises(OptionError, match="tls: expected a certificate"):
        Tls(tls.key, tls.key, tls.ca).server_context()
    with pytest.raises(OptionError, match="tls: expected a certificate"):
        Tls(tls.cert, tls.ca, tls.ca).server_context()


# What goes wrong inside.


def test_a_core_that_raises_ends_the_node(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        node = group.nodes["n0"]

        def broken(*_: object) -> None:
            raise RuntimeError("a fault of the core")

        node.core.tick = broken  # type: ignore[method-assign]
        eventually(node.failed.done)
        assert "a fault of the core" in repr(node.failed.result())


def test_a_store_that_failed_ends_the_node(tmp_path: Path) -> None:
    """A leader that can write no more would keep the others from electing one that can."""
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        node = group.nodes["n0"]
        node.store._files.failure = "flushing failed (Input/output error)"  # type: ignore[attr-defined]
        eventually(node.failed.done)
        assert isinstance(node.failed.result(), StoreError)


def test_a_stopping_node_sends_the_answers_that_are_there(one: Nodes) -> None:
    with closing(one.caller("n0")) as caller:
        caller.hello()
        asked = [caller.send(AppendRequest(bodies=packed(bytes(1000)))) for _ in range(100)]
        eventually(lambda: one.status("n0")["committedIndex"] == 99)
        one.stop("n0")
        assert [caller.receive(opaque).index for opaque in asked] == list(range(100))


def test_problems_are_logged(one: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR", "pyspark_dledger.node"):
        one.nodes["n0"].core.problems.append("expected this, found that")
        found = eventually(lambda: [each for each in caplog.records if each.getMessage() == "problem"])
    assert found[0].fields == {"found": "expected this, found that"}  # type: ignore[attr-defined]


class Deposed:
    """A core that led in term 1, and takes what it is handed."""

    role, term = Role.LEADER, 1

    def __init__(self) -> None:
        self.effects: list[Any] = [RoleChanged(Role.LEADER, 1, "n0")]

    def handle(self, request: Request, token: object, now: int) -> bool:
        return True

    def drain(self) -> list[Any]:
        effects, self.effects = self.effects, []
        return effects


class Unsent:
    """A link that counts how often its unsent bytes were dropped."""

    dropped = 0

    def drop_unsent(self) -> None:
        self.dropped += 1

    def flush(self) -> None: ...


def test_views_of_a_log_that_may_be_cut_are_not_sent() -> None:
    """What a deposed leader has not sent yet must not be bytes of entries that came in place of its own."""

    async def run() -> None:
        core, link = Deposed(), Unsent()
        service = Service(core, None, lambda: None, pytest.fail)  # type: ignore[arg-type]  # stand-ins
        service._links = {"n1": link}  # type: ignore[dict-item]  # a stand-in
        service._drain()
        service.handle(PushRequest(term=1), None)  # type: ignore[arg-type]  # nobody
        assert link.dropped == 0
        service.handle(PushRequest(term=2), None)  # type: ignore[arg-type]  # nobody
        assert link.dropped == 1
        service.handle(PushRequest(term=2), None)  # type: ignore[arg-type]  # nobody
        assert link.dropped == 1

    asyncio.run(run())


# Processes.


@pytest.fixture
def served() -> Iterator[Callable[..., Served]]:
    """Starts processes of `dledger serve`, and ends those that are left."""
    started: list[Served] = []

    def start(*arguments: Any) -> Served:
        started.append(Served(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.close()


def try_append(ports: Sequence[int], body: bytes) -> int | None:
    """The index of an entry that some node acknowledged, of those at the ports: n0 and on."""
    return try_append_to(THREE[: len(ports)], ports, body)


def try_append_to(ids: Sequence[str], ports: Sequence[int], body: bytes) -> int | None:
    for node, port in zip(ids, ports, strict=True):
        with suppress(OSError), closing(Caller(port, remote_id=node)) as caller:
            response = caller.append(body)
            if response.code == 200:
                index: int = response.index
                return index
    return None


def body_at(port: int, index: int) -> bytes:
    with closing(Caller(port)) as caller:
        body: bytes = caller.call(GetRequest(begin_index=index)).entries[0].body
        return body


def test_serve_is_ready_and_ends_cleanly(tmp_path: Path, served: Callable[..., Served]) -> None:
    ports = free_ports(1)
    process = served("n0", peers_text(ports), tmp_path, "--log-format", "json")
    expected = {"event": "ready", "group": "g", "id": "n0", "address": f"{HOST}:{ports[0]}", "pid": process.process.pid}
    assert process.ready() == expected
    assert eventually(lambda: try_append(ports, b"x") is not None)
    assert process.terminate() == 0
    rows = [json.loads(line) for line in process.errors().splitlines()]
    assert {"time", "level", "event", "id"} <= set(rows[0])
    events = [row["event"] for row in rows]
    assert "started" in events
    assert events[-1] == "stopped"
    status = next(row for row in rows if row["event"] == "status")
    assert {"role", "term", "endIndex", "committedIndex"} <= set(status)
    assert (tmp_path / "dledger-n0" / "checkpoint").read_text().split() == ["committedIndex=0", "endIndex=0"]


def test_serve_shows_how_it_stands_on_a_terminal(tmp_path: Path) -> None:
    ports = free_ports(1)
    terminal, end = pty.openpty()
    line = [sys.executable, "-m", "pyspark_dledger", "serve", "--group", "g", "--id", "n0"]
    line += ["--peers", peers_text(ports), "--store", str(tmp_path), "--data-file-size", "1m"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=end, env=environment)
    os.close(end)
    shown = b""
    try:
        eventually(lambda: try_append(ports, b"x") is not None)
        deadline = time.monotonic() + 15
        while b"endIndex=0" not in shown:
            assert time.monotonic() < deadline
            shown += os.read(terminal, 1 << 16)
    finally:
        process.terminate()
        with suppress(OSError):
            while data := os.read(terminal, 1 << 16):
                shown += data
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()
        os.close(terminal)
    # The line is taken away for a record, and drawn again behind it.
    assert b"role=LEADER term=0 leaderId=n0" in shown
    records = [text for text in shown.decode().split("\r\n") if "INFO" in text]
    assert all(re.search(r"(?:^|\x1b\[[0-9;?]*[a-zA-Z]|\r)\d{4}-\d\d-\d\dT", text) for text in records)
    assert "INFO stopped" in records[-1]


def test_serve_is_interrupted(tmp_path: Path, served: Callable[..., Served]) -> None:
    process = served("n0", peers_text(free_ports(1)), tmp_path)
    process.ready()
    process.process.send_signal(signal.SIGINT)
    assert process.process.wait(20) == 130


def test_serve_ends_with_its_terminal(tmp_path: Path, served: Callable[..., Served]) -> None:
    process = served("n0", peers_text(free_ports(1)), tmp_path)
    process.ready()
    process.process.send_signal(signal.SIGHUP)
    assert process.process.wait(20) == 0
    assert "stopped" in process.errors()


def test_serve_after_kill_has_what_was_acknowledged(tmp_path: Path, served: Callable[..., Served]) -> None:
    ports = free_ports(1)
    for life in range(3):
        process = served("n0", peers_text(ports), tmp_path)
        process.ready()
        assert eventually(lambda life=life: try_append(ports, b"life %d" % life) is not None)
        process.kill()
    process = served("n0", peers_text(ports), tmp_path)
    process.ready()
    assert eventually(lambda: try_append(ports, b"end")) == 3
    assert [body_at(ports[0], index) for index in range(4)] == [b"life 0", b"life 1", b"life 2", b"end"]


def test_group_survives_kill_and_pause_of_its_leader(tmp_path: Path, served: Callable[..., Served]) -> None:
    ports = free_ports(3)
    running = {node: served(node, peers_text(ports), tmp_path) for node in THREE}
    for process in running.values():
        process.ready()

    def leader() -> str | None:
        for node, port in zip(THREE, ports, strict=True):
            with suppress(OSError), closing(Caller(port, remote_id=node)) as caller:
                if name := caller.call(MetadataRequest()).leader_id:
                    return str(name)
        return None

    def append(body: bytes) -> None:
        eventually(lambda: try_append(ports, body) is not None)

    append(b"one")
    killed = eventually(leader)
    running[killed].kill()
    append(b"two")
    running[killed] = served(killed, peers_text(ports), tmp_path)
    running[killed].ready()
    append(b"three")
    paused = eventually(leader)
    running[paused].pause()
    try:
        others = [node for node in THREE if node != paused]
        rest = [ports[THREE.index(node)] for node in others]
        eventually(lambda: try_append_to(others, rest, b"four") is not None)
    finally:
        running[paused].resume()
    append(b"five")
    eventually(lambda: data_of(tmp_path, "n0") == data_of(tmp_path, "n1") == data_of(tmp_path, "n2"))
    for process in running.values():
        assert process.terminate() == 0
    data = data_of(tmp_path, "n0")
    found = [data.find(body) for body in (b"one", b"two", b"three", b"four", b"five")]
    assert found == sorted(found)
    assert found[0] == 48


def test_two_writers_on_one_store_are_refused(tmp_path: Path, served: Callable[..., Served]) -> None:
    first = served("n0", peers_text(free_ports(1)), tmp_path)
    first.ready()
    second = served("n0", peers_text(free_ports(1)), tmp_path)
    assert second.process.wait(20) == 2
    assert str(first.process.pid) in second.errors()
    assert first.terminate() == 0


def test_serve_says_what_it_cannot_do(tmp_path: Path, served: Callable[..., Served]) -> None:
    cases = [
        (("n0", "n0-10.1.2.3:20911", tmp_path), "allow that with listen 10.1.2.3"),
        (("n5", peers_text([1]), tmp_path), "expected this node's id n5 among them"),
        (("n0", peers_text([1]), tmp_path, "--config", tmp_path / "none"), "expected key=value lines"),
        (("n0", peers_text([1]), tmp_path, "--set", "maxHeartBeatLeek=3"), "the nearest is maxHeartBeatLeak"),
        (("n0", peers_text([1]), tmp_path, "--set", "minVoteIntervalMs=9000"), "--set: minVoteInterval"),
    ]
    for arguments, text in cases:
        process = served(*arguments[:3], *map(str, arguments[3:]))
        assert process.process.wait(20) == 2
        lines = process.errors().splitlines()
        assert len(lines) == 1
        assert text in lines[0]


def test_serve_of_a_config_file(tmp_path: Path) -> None:
    ports = free_ports(1)
    config = tmp_path / "n0.properties"
    config.write_text(f"group=g\nselfId=n0\npeers={peers_text(ports)}\nstoreBaseDir={tmp_path}\nstoreType=MEMORY\n")
    line = [sys.executable, "-m", "pyspark_dledger", "serve", "--config", str(config)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready == ["event=ready", "group=g", "id=n0", f"address={HOST}:{ports[0]}", f"pid={process.pid}"]
    finally:
        process.terminate()
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()
    assert not (tmp_path / "dledger-n0").exists()


def base_port(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        first = free_ports(1)[0]
        with suppress(OSError, OverflowError):
            for port in range(first, first + count):
                socket.create_server((HOST, port)).close()
            return first


def test_cluster(tmp_path: Path) -> None:
    first = base_port(3)
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--json", "--nodes", "3"]
    line += ["--store", str(tmp_path), "--base-port", str(first), "--data-file-size", "1m"]
    line += ["--set", "heartBeatTimeIntervalMs=500"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(4)]
        ports = [first, first + 1, first + 2]
        assert rows[0] == {"event": "ready", "group": "g", "peers": peers_text(ports)}
        eventually(lambda: try_append(ports, b"hello") is not None)
        os.kill(rows[1]["pid"], signal.SIGKILL)
        told = process.stderr.readline()
        assert "n0 ended with exit code -9" in told
        command = shlex.split(told.partition("to start it: ")[2])
        assert command[:2] == ["dledger", "serve"]
        again = subprocess.Popen([sys.executable, "-m", "pyspark_dledger", *command[1:]], stdout=PIPE, stderr=DEVNULL)
        assert again.stdout is not None
        assert again.stdout.readline().startswith(b"event=ready group=g id=n0")
        eventually(lambda: try_append(ports, b"again") is not None)
        again.terminate()
        assert again.wait(20) == 0
        again.stdout.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    for row in rows[1:]:
        with pytest.raises(ProcessLookupError):
            os.kill(row["pid"], 0)


def test_cluster_that_cannot_start(tmp_path: Path) -> None:
    first = base_port(2)
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--nodes", "2", "--base-port", str(first)]
    with closing(socket.create_server((HOST, first + 1))):
        run = subprocess.run([*line, "--store", str(tmp_path)], capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 2
    assert "n1: expected it to start, found in its log" in run.stderr
    assert "expected to listen" in run.stderr
    assert "Unknown child" not in run.stderr
    assert len(run.stderr.splitlines()) == 1


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_members_end_with_a_cluster_that_is_killed(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--json", "--nodes", "2", "--data-file-size", "1m"]
    line += ["--store", str(tmp_path), "--base-port", str(base_port(2))]
    with subprocess.Popen(line, stdout=PIPE, stderr=DEVNULL, text=True) as process:
        assert process.stdout is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.kill()
    eventually(lambda: not any(is_running(row["pid"]) for row in rows[1:]))
    for row in rows[1:]:
        assert "INFO stopped" in Path(row["log"]).read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("count", "stores", "found"),
    [
        ("-1", [], "argument --nodes: expected a number of members, 1 or more, found -1"),
        ("2", ["n0", "n1", "n2"], "found dledger-n0, dledger-n1, dledger-n2: say --nodes 3"),
        ("3", ["n0", "n1"], "expected the stores of 3 members in"),
    ],
)
def test_cluster_of_another_number(tmp_path: Path, count: str, stores: list[str], found: str) -> None:
    for name in stores:
        (tmp_path / f"dledger-{name}").mkdir()
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--nodes", count, "--store", str(tmp_path)]
    run = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 2
    assert found in run.stderr
