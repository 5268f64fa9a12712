"""Nodes and groups of them in this process: replication, reads, TLS, failures."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.raft.core import RoleChanged
from pyspark_dledger.raft.messages import (
    AppendRequest,
    GetRequest,
    MetadataRequest,
    PushRequest,
    ReadRequest,
    Request,
    Role,
    StatusRequest,
)
from pyspark_dledger.raft.node.core_driver import CoreDriver
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.store.files.node_files import load_members
from tests.support.certificates import make_tls
from tests.support.groups import (
    HOST,
    THREE,
    Caller,
    Nodes,
    data_of,
    eventually,
    nodes,
    packed,
)


def test_one_node_keeps_acknowledged_entries(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_group_continues_without_its_leader_and_when_it_is_back(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group:
        old = group.leader()
        with closing(group.caller(old)) as caller:
            caller.append(b"before")
        # Else the next leader commits it with a NOOP.
        eventually(lambda: all(group.status(each)["committedIndex"] == 0 for each in THREE))
        group.stop(old)
        new = group.leader()
        assert new != old
        with closing(group.caller(new)) as caller:
            assert caller.append(b"after").index == 1
        group.start(old)
        eventually(lambda: group.status(old)["committedIndex"] == 1)
    assert data_of(tmp_path, old) == data_of(tmp_path, new)


def test_a_leader_stays_leader_while_it_streams(tmp_path: Path) -> None:
    """A busy node responds to heartbeats in time."""
    with nodes(tmp_path, 3, store_options={"data_file_size": 64 << 20}) as group:
        leader = group.leader()
        term = group.status(leader)["term"]
        with closing(group.caller(leader)) as caller:
            caller.hello()
            bodies = packed(*[bytes(1024)] * 1000)
            opaques = [caller.send(AppendRequest(bodies=bodies)) for _ in range(100)]
            assert {caller.receive(opaque).code for opaque in opaques} == {200}
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


def test_a_reader_gets_only_committed_entries(tmp_path: Path) -> None:
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


def test_only_its_address_listens(one_node: Nodes) -> None:
    assert one_node.nodes["n0"].address == Address(HOST, one_node.port("n0"))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", one_node.port("n0")), 1)


def test_an_address_in_use_is_an_error(tmp_path: Path) -> None:
    group = Nodes(tmp_path, 1)
    with closing(socket.create_server((HOST, group.ports[0]))), pytest.raises(DLedgerError, match="cannot listen at"):
        group.start()
    group.start()  # the store was closed
    group.close()


def test_a_store_has_the_members_of_its_last_group(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as group:
        group.leader()
        folders = [tmp_path / f"dledger-{node}" for node in ("n0", "n1")]
        assert [load_members(folder) for folder in folders] == [("n0", "n1")] * 2
    one = Nodes(tmp_path, 1)
    with pytest.raises(OptionError, match=r"^peers: expected the members n0, n1 of this store's group, found n0: "):
        one.start()
    one.start(change_members=True)
    assert [load_members(folder) for folder in folders] == [("n0",), ("n0", "n1")]
    one.stop()
    one.start()
    one.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A certificate for members and clients."""
    return make_tls(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A certificate of another CA."""
    return make_tls(tmp_path_factory.mktemp("strange"))


def tls_caller(group: Nodes, node_id: str, context: ssl.SSLContext) -> Caller:
    plain = socket.create_connection((HOST, group.port(node_id)), 5)
    return Caller(0, remote_id=node_id, sock=context.wrap_socket(plain, server_hostname=HOST))


def handshakes(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The fields of the records of failed handshakes."""
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


def test_tls_rejects_clients_without_a_certificate_of_the_ca(
    tmp_path: Path, tls: Tls, other_ca: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "pyspark_dledger.node")
    with nodes(tmp_path, 1, core_options={}, tls=tls) as group:
        group.leader()
        bare = ssl.create_default_context(cafile=str(tls.ca))
        stranger = other_ca.client_context()
        stranger.load_verify_locations(tls.ca)
        for context in (bare, stranger):
            with pytest.raises((ssl.SSLError, ConnectionError)), closing(tls_caller(group, "n0", context)) as caller:
                caller.call(MetadataRequest())
        with closing(group.caller("n0")) as plain, pytest.raises((ConnectionError, TimeoutError)):
            plain.call(MetadataRequest())
        eventually(lambda: not group.nodes["n0"]._connections.all())
        refused = eventually(lambda: len(found := handshakes(caplog)) >= 3 and found)
        assert all(fields["address"].startswith(f"{HOST}:") and fields["reason"] for fields in refused)
        with closing(tls_caller(group, "n0", tls.client_context())) as caller:
            assert caller.call(MetadataRequest()).code == 200


def test_tls_clients_check_the_server(tmp_path: Path, tls: Tls, other_ca: Tls) -> None:
    with nodes(tmp_path, 1, core_options={}, tls=tls) as group, pytest.raises(ssl.SSLError):
        tls_caller(group, "n0", other_ca.client_context())


def test_replaced_certificates_count_for_the_next_connection(
    tmp_path: Path, tls: Tls, other_ca: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pyspark_dledger.node")
    files = Tls(*(tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")))

    def replace(cert: Path, key: Path, ca: Path) -> None:
        for source, target in zip((cert, key, ca), (files.cert, files.key, files.ca), strict=True):
            (tmp_path / "new").write_bytes(source.read_bytes())
            (tmp_path / "new").replace(target)

    def is_accepted(used: Tls) -> bool:
        try:
            with closing(tls_caller(group, "n0", used.client_context())) as caller:
                return bool(caller.call(MetadataRequest()).code == 200)
        except (ssl.SSLError, ConnectionError):
            return False

    replace(tls.cert, tls.key, tls.ca)
    with nodes(tmp_path, 1, core_options={}, tls=files) as group:
        group.leader()
        contexts = files.client_contexts()
        old = contexts()
        with closing(tls_caller(group, "n0", tls.client_context())) as opened:
            # A half of a replacement changes nothing.
            replace(other_ca.cert, tls.key, tls.ca)
            assert is_accepted(tls) and contexts() is old
            replace(other_ca.cert, other_ca.key, other_ca.ca)
            assert is_accepted(other_ca) and not is_accepted(tls) and contexts() is not old
            assert opened.call(MetadataRequest()).code == 200
    events = [each.getMessage() for each in caplog.records]
    assert events.count("certificates loaded") == events.count("certificates not loaded") == 2


def test_invalid_tls_files_are_rejected(tmp_path: Path, tls: Tls) -> None:
    with pytest.raises(OptionError, match="tls cert: expected a PEM file, found none"):
        Tls(tmp_path / "none", tls.key, tls.ca).server_context()
    with pytest.raises(OptionError, match="tls: expected a certificate"):
        Tls(tls.key, tls.key, tls.ca).server_context()
    with pytest.raises(OptionError, match="tls: expected a certificate"):
        Tls(tls.cert, tls.ca, tls.ca).server_context()


def test_an_exception_of_the_core_fails_the_node(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        node = group.nodes["n0"]

        def broken(*_: object) -> None:
            raise RuntimeError("a fault of the core")

        node.core.tick = broken  # type: ignore[method-assign]
        eventually(node.failed.done)
        assert "a fault of the core" in repr(node.failed.result())


def test_a_failed_store_fails_the_node(tmp_path: Path) -> None:
    """A leader that cannot write would keep the others from electing one that can."""
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        node = group.nodes["n0"]
        node.store._files.failure = "flushing failed (Input/output error)"  # type: ignore[attr-defined]
        eventually(node.failed.done)
        assert isinstance(node.failed.result(), StoreError)


def test_a_stopping_node_sends_pending_responses(one_node: Nodes) -> None:
    with closing(one_node.caller("n0")) as caller:
        caller.hello()
        opaques = [caller.send(AppendRequest(bodies=packed(bytes(1000)))) for _ in range(100)]
        eventually(lambda: one_node.status("n0")["committedIndex"] == 99)
        one_node.stop("n0")
        assert [caller.receive(opaque).index for opaque in opaques] == list(range(100))


def test_problems_are_logged(one_node: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR", "pyspark_dledger.node"):
        one_node.nodes["n0"].core.problems.append("expected this, found that")
        found = eventually(lambda: [each for each in caplog.records if each.getMessage() == "problem"])
    assert found[0].fields == {"found": "expected this, found that"}  # type: ignore[attr-defined]


class Deposed:
    """A core that led in term 1, and accepts every request."""

    role, term = Role.LEADER, 1
    disk_waits = SimpleNamespace(in_request=lambda _: False, in_drain=False)

    def __init__(self) -> None:
        self.effects: list[Any] = [RoleChanged(Role.LEADER, 1, "n0")]

    def handle(self, request: Request, token: object, now: int, *, may_wait: bool) -> bool:
        return True

    def drain(self) -> list[Any]:
        effects, self.effects = self.effects, []
        return effects


class Unsent:
    """A link that counts the calls of `drop_unsent`."""

    dropped = 0

    def drop_unsent(self) -> None:
        self.dropped += 1

    def flush(self) -> None: ...


def test_views_of_a_log_that_may_be_truncated_are_not_sent() -> None:
    """A deposed leader must not send bytes of entries that overwrote its own."""

    async def run() -> None:
        core, link = Deposed(), Unsent()
        driver = CoreDriver(core, None, DiskThreads(None), lambda: None, pytest.fail)  # type: ignore[arg-type]  # stand-ins
        driver._links = {"n1": link}  # type: ignore[dict-item]  # a stand-in
        driver._drain()
        driver.handle(PushRequest(term=1), None)  # type: ignore[arg-type]  # nobody
        assert link.dropped == 0
        driver.handle(PushRequest(term=2), None)  # type: ignore[arg-type]  # nobody
        assert link.dropped == 1
        driver.handle(PushRequest(term=2), None)  # type: ignore[arg-type]  # nobody
        assert link.dropped == 1

    asyncio.run(run())
