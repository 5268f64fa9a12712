"""Clients that pretend to be members of the group."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    PushRequest,
    PushType,
    Request,
    TransferRequest,
    VoteRequest,
    VoteResult,
)
from pyspark_dledger.raft.wire import WireConnection
from tests.support.certificates import make_client_tls, make_tls
from tests.support.groups import HOST, SMALL, Caller, Nodes, eventually, nodes

# A loopback address that no member has.
STRANGER = "127.0.0.9"
FAR = 1_000_000
BODIES = [b"acknowledged %d" % number for number in range(20)]


def forged(leader: str, term: int) -> Iterator[Request]:
    """Requests of members that would do harm if they were taken for those of a leader."""
    data = encode_entry(FAR, term, SMALL["data_file_size"], b"forged")
    yield VoteRequest(leader_id=leader, term=2**62, ledger_end_index=FAR, ledger_end_term=2**62)
    yield HeartBeatRequest(leader_id=leader, term=term)
    for kind in (PushType.TRUNCATE, PushType.APPEND, PushType.COMPARE):
        yield PushRequest(type=kind, leader_id=leader, term=term, first_index=FAR, count=1, data=data, commit_index=FAR)
    yield PushRequest(type=PushType.COMMIT, leader_id=leader, term=term, commit_index=FAR)
    yield TransferRequest(transfer_id=leader, transferee_id="", leader_id=leader, term=term)


def test_forged_truncate_erases_no_committed_entry(tmp_path: Path) -> None:
    """Nobody can tell a client at a member's address from the member, but a reset needs the leader's own word."""
    with nodes(tmp_path, 3) as group:
        client = _filled(group)
        leader = group.leader()
        term = group.status(leader)["term"]
        for node_id in group.ids:
            other = next(each for each in group.ids if each != node_id)
            # As the present leader, and as that of a later term.
            for name, its_term in ((leader, term), (other, term + 5)):
                requests = [each for each in forged(name, its_term) if isinstance(each, PushRequest)]
                beats = [HeartBeatRequest(leader_id=name, term=its_term)] * 2
                with closing(group.caller(node_id)) as caller, suppress(ConnectionError):
                    caller.hello()
                    codes = [caller.call(each).code for each in (requests[0], *beats, requests[0], requests[0])]
                    assert ResponseCode.SUCCESS not in (codes[0], *codes[3:])
        group.leader()
        with client:
            assert [client.get(index).body for index in range(len(BODIES))] == BODIES
            assert client.append(b"more").index == len(BODIES)


def test_requests_of_members_from_another_address_are_refused(tmp_path: Path) -> None:
    def connect(group: Nodes, node_id: str) -> Caller:
        sock = socket.create_connection((HOST, group.port(node_id)), 30, source_address=(STRANGER, 0))
        return Caller(0, remote_id=node_id, sock=sock)

    with nodes(tmp_path, 3) as group:
        _all_refused(group, connect)


def test_members_connect_from_their_addresses_in_peers(tmp_path: Path) -> None:
    """A machine with several addresses would choose another one: 127.0.0.1 for all."""
    group = Nodes(tmp_path, 2)
    with closing(group):
        group.start(peers=f"n0-127.0.0.2:{group.ports[0]};n1-127.0.0.3:{group.ports[1]}")
        assert group.leader() in ("n0", "n1")

        def hosts() -> set[str]:
            return {each.host for node in group.nodes.values() for each in list(node._connections.all())}

        eventually(lambda: len(hosts()) == 2)
        assert hosts() == {"127.0.0.2", "127.0.0.3"}


def test_requests_of_members_need_the_members_secret(tmp_path: Path) -> None:
    def connect(group: Nodes, node_id: str) -> Caller:
        caller = group.caller(node_id)
        caller.wire = WireConnection(secret="of clients")
        return caller

    with nodes(tmp_path, 3, secret="of clients", member_secret="of members") as group:
        _all_refused(group, connect, secret="of clients")
        with (
            dl.connect("g", group.peers, secret="of nobody", timeout_ms=5000, max_retries=0) as client,
            pytest.raises(GroupError, match="give it with --secret-file"),
        ):
            client.append(b"x")


@pytest.mark.slow
def test_client_certificate_erases_no_committed_entry(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    client_tls = make_client_tls(tmp_path)
    context = client_tls.client_context()
    with nodes(tmp_path, 3, tls=tls) as group:
        _all_refused(group, lambda group, node_id: group.caller(node_id, context), tls=client_tls)


def _all_refused(group: Nodes, connect: Callable[[Nodes, str], Caller], **options: object) -> None:
    """All members refuse every forged request of the connection, count it, and serve it as a client."""
    with _filled(group, **options) as client:
        leader = group.leader()
        term = group.status(leader)["term"]
        for node_id in group.ids:
            name = leader if leader != node_id else next(each for each in group.ids if each != node_id)
            with closing(connect(group, node_id)) as caller:
                caller.hello()
                for its_term in (term, term + 5):
                    for request in forged(name, its_term):
                        response = caller.call(request)
                        assert (response.code, response.term) == (ResponseCode.UNKNOWN_MEMBER, -1)
                        if isinstance(request, VoteRequest):
                            assert response.vote_result is VoteResult.REJECT_UNKNOWN_LEADER
                assert caller.append(b"").code in (ResponseCode.SUCCESS, ResponseCode.NOT_LEADER)
            refused = group.nodes[node_id]._connections.rejected.member_requests
            assert refused == {"VoteRequest": 2, "HeartBeatRequest": 2, "PushRequest": 8, "TransferRequest": 2}
        assert (group.leader(), group.status(leader)["term"]) == (leader, term)
        assert [client.get(index).body for index in range(len(BODIES))] == BODIES


def _filled(group: Nodes, **options: object) -> dl.Client:
    """A client of the group, which has committed entries at all members."""
    group.leader()
    client = dl.connect("g", group.peers, timeout_ms=10_000, **options)  # type: ignore[arg-type]  # options of connect
    client.append_batch(BODIES)
    eventually(lambda: all(group.status(node_id)["committedIndex"] == 19 for node_id in group.ids))
    return client
