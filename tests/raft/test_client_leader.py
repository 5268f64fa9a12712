"""A client's search for the leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.messages import MetadataRequest, MetadataResponse
from tests.support.clients import BOTH, NOT_LEADER, connected
from tests.support.fake_members import FakeMember, fakes, reject
from tests.support.groups import HOST, free_ports


@BOTH
def test_leader_is_found_through_any_member(is_binary: bool) -> None:
    leader = FakeMember("n1", "n1", is_binary=is_binary)
    follower = FakeMember("n0", "n1", is_binary=is_binary)
    peers = {"n0": f"{HOST}:{follower.port}", "n1": f"{HOST}:{leader.port}"}
    leader.peers = follower.peers = peers
    with fakes(follower, leader), dl.connect("g", follower.peer) as client:
        assert client.append(b"x").index == 0
        assert client.metadata().peers == peers
    assert not follower.appends


@BOTH
def test_not_leader_responses_are_followed_to_the_leader(is_binary: bool) -> None:
    members = [FakeMember(f"n{number}", f"n{number}", is_binary=is_binary) for number in range(3)]
    for number, member in enumerate(members[:2]):
        member.script.append(reject(NOT_LEADER, f"n{number + 1}"))
        # Each names itself as leader until it has rejected the append.
        member.responses[MetadataRequest] = lambda _, member=member: MetadataResponse(  # type: ignore[misc]
            group="g", leader_id=member.node_id if member.script else "n2", peers=member.peers
        )
    members[2].responses[MetadataRequest] = lambda _: MetadataResponse(
        group="g", leader_id=None if members[0].script and members[1].script else "n2", peers=members[2].peers
    )
    with connected(*members) as client:
        results = [future.result() for future in [client.submit(b"%d" % number) for number in range(10)]]
    assert sorted(result.index for result in results) == list(range(10))
    assert len(members[2].appends) >= 1
    assert sorted(members[0].log.bodies) == [b"%d" % number for number in range(10)]


@pytest.mark.slow
def test_waits_for_a_leader() -> None:
    fake = FakeMember(leader_id=None)
    with connected(fake, timeout_ms=500) as client:
        future = client.submit(b"x")
        time.sleep(1.1)  # more than one attempt
        assert not future.done()
        fake.leader_id = "n0"
        assert future.result(30).index == 0
        assert client.get(0).body == b"x"


def test_unreachable_leader_that_others_name_gets_no_appends() -> None:
    followers = [FakeMember("n1", "n0"), FakeMember("n2", "n0")]
    port = free_ports(1)[0]
    with fakes(*followers) as peers, dl.connect("g", f"n0-{HOST}:{port};{peers}", timeout_ms=500) as client:
        future = client.submit(b"x")
        time.sleep(0.5)
        followers[0].leader_id = followers[1].leader_id = "n2"
        assert future.result(30).index == 0
    assert not followers[0].appends


@pytest.mark.slow
def test_no_leader_error_has_the_reason_of_each_member() -> None:
    fake, wrong = FakeMember("n0", None), FakeMember("n1", hello_code=ResponseCode.UNKNOWN_GROUP)
    port = free_ports(1)[0]
    with (
        fakes(fake, wrong) as peers,
        dl.connect("g", f"{peers};n2-{HOST}:{port}", timeout_ms=200, max_retries=1) as client,
    ):
        started = time.monotonic()
        with pytest.raises(GroupError) as caught:
            client.append(b"x")
        assert time.monotonic() - started < 20
        started = time.monotonic()
        with pytest.raises(GroupError, match=r"no leader within \d+ ms") as of_get:
            client.get(0)
        # The time in the error is that of all attempts.
        assert stated_ms(of_get.value) <= (time.monotonic() - started) * 1000
        assert min(map(stated_ms, (caught.value, of_get.value))) > 400
        with pytest.raises(GroupError):
            client.append_batch([b"x", b"y"])
        assert client.metadata().leader_id is None
    text = str(caught.value)
    assert f"n0: names nobody; n1: expected member n1 of group g at {HOST}:{wrong.port}, found UNKNOWN_GROUP" in text
    assert f"n2: {HOST}:{port}: Connection refused" in text
    assert caught.value.code == ResponseCode.METADATA_ERROR
    assert not isinstance(caught.value, UnknownOutcomeError)


def test_group_without_a_response_is_given_up_early() -> None:
    ports = free_ports(2)
    with dl.connect("g", f"n0-{HOST}:{ports[0]};n1-{HOST}:{ports[1]}", timeout_ms=100, max_retries=1000) as client:
        calls: list[Callable[[], object]] = [lambda: client.append(b"x"), lambda: client.get(0)]
        for call in calls:
            started = time.monotonic()
            refused = "; ".join(f"n{number}: {HOST}:{port}: Connection refused" for number, port in enumerate(ports))
            with pytest.raises(GroupError, match=rf"no leader within \d+ ms, no member responded \({refused}\)"):
                call()
            assert time.monotonic() - started < 5


def stated_ms(error: GroupError) -> int:
    return int(str(error).partition(" within ")[2].partition(" ms")[0])


@BOTH
@pytest.mark.parametrize("code", [ResponseCode.UNKNOWN_GROUP, ResponseCode.UNKNOWN_MEMBER])
def test_wrong_group_or_id_fails_at_once(is_binary: bool, code: ResponseCode) -> None:
    members = [FakeMember(f"n{number}", "n0", is_binary=is_binary, hello_code=code) for number in range(2)]
    with (
        fakes(*members) as peers,
        dl.connect("g", f"{peers};n2-{HOST}:{free_ports(1)[0]}", timeout_ms=30_000) as client,
    ):
        calls: list[Callable[[], object]] = [
            lambda: client.append(b"x"),
            lambda: client.append_batch([b"x", b"y"]),
            lambda: client.get(0),
            lambda: client.transfer("n1"),
        ]
        for call in calls:
            started = time.monotonic()
            with pytest.raises(GroupError, match=f"no member of it found: .*{code.name}") as caught:
                call()
            assert time.monotonic() - started < 20 and caught.value.code == code
            assert all(f"{HOST}:{member.port}" in str(caught.value) for member in members)


def test_given_addresses_are_kept() -> None:
    fake = FakeMember(peers={"n0": "127.0.0.1:1", "n1": "no address", "n2": "127.0.0.1:2"})
    with connected(fake) as client:
        client.append(b"x")
        fake.disconnect()
        time.sleep(0.1)  # until the client notices
        assert client.append(b"y").index == 1
        assert client.metadata().peers == {"n0": f"{HOST}:{fake.port}", "n1": "no address", "n2": "127.0.0.1:2"}


def test_hanging_member_does_not_delay_the_search() -> None:
    hanging, leader = FakeMember("n0", "n1"), FakeMember("n1", "n1")
    hanging.is_running.clear()
    with connected(hanging, leader, timeout_ms=30_000) as client:
        started = time.monotonic()
        client.append(b"x")
        assert time.monotonic() - started < 20
        assert client.metadata().leader_id == "n1"


def test_idle_lost_connection_is_replaced() -> None:
    fake = FakeMember()
    with connected(fake) as client:
        for number in range(3):
            assert client.append(b"x").index == number
            fake.disconnect()
            time.sleep(0.05)
        assert client.get(0).body == b"x"
    assert len(fake.appends) == 3


def test_leader_that_starts_late() -> None:
    port = free_ports(1)[0]
    with dl.connect("g", f"n0-{HOST}:{port}", timeout_ms=500) as client:
        future = client.submit(b"x")
        time.sleep(0.4)
        with fake_at(port):
            assert future.result(30).index == 0


@contextmanager
def fake_at(port: int) -> Iterator[None]:
    """A scripted member at that port."""
    fake = FakeMember()
    fake.server.close()
    import socket

    fake.server = socket.create_server((HOST, port))
    fake.port = port
    threading.Thread(target=fake._accept, daemon=True).start()
    with fakes(fake):
        yield
