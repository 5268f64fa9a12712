"""The client: it finds the leader and follows it, and never appends twice, nor calls missing, what nobody can know."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, IndexRangeError, OptionError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.entry_encoding import pack_bodies
from pyspark_dledger.raft.client import Appended, Client, PartialAppendError, appender, request_units
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.results import positions
from pyspark_dledger.raft.loops import backoff
from pyspark_dledger.raft.messages import (
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Role,
    StatusRequest,
    StatusResponse,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.raft.wire import SYSTEM_BUSY, SYSTEM_ERROR, Refusal
from pyspark_dledger.store.dledger_store import EntryRun
from tests.support.certificates import make_tls
from tests.support.fake_members import (
    ACK,
    APPENDED_AND_CUT,
    CUT,
    SILENT,
    Act,
    Fake,
    appended_but,
    fakes,
    refuse,
)
from tests.support.groups import FASTER, HOST, eventually, free_ports, nodes

NOT_LEADER, PENDING_FULL = ResponseCode.NOT_LEADER, ResponseCode.LEADER_PENDING_FULL
BOTH = pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "java"])


@contextmanager
def connected(*members: Fake, **options: Any) -> Iterator[Client]:
    """A client of members that answer as they are told."""
    with fakes(*members) as peers, dl.connect("g", peers, **{"timeout_ms": 1000, **options}) as client:
        yield client


def bodies_of(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + bytes(size) for number in range(count)]


def batch_of(units_wanted: int) -> list[bytes]:
    """Bodies that take so many requests."""
    return bodies_of(2 * units_wanted, request_units.UNIT_BYTES // 2 - 100)


# What is appended, and where it stands.


@BOTH
def test_append_get_and_metadata(is_ours: bool) -> None:
    fake = Fake(is_ours=is_ours)
    with connected(fake) as client:
        assert client.append(b"one") == Appended(0, 0, 1)
        assert client.append(b"") == Appended(1, 51, 1)
        assert client.append(bytearray(b"two")) == client.submit(memoryview(b"three")).result()._replace(
            index=2, pos=99
        )
        assert client.get(2).body == b"two"
        with pytest.raises(IndexRangeError, match="expected index 9, found it not in the log"):
            client.get(9)
        assert client.metadata() == ("g", "n0", {"n0": f"{HOST}:{fake.port}"})
    assert fake.log.bodies == [b"one", b"", b"two", b"three"]


@BOTH
def test_submits_are_appended_and_have_their_own_results(is_ours: bool) -> None:
    fake = Fake(is_ours=is_ours)
    bodies = bodies_of(3000, 10)
    with connected(fake) as client:
        results = [future.result() for future in [client.submit(body) for body in bodies]]
    assert sorted(fake.log.bodies) == sorted(bodies)
    assert [fake.log.bodies[result.index] for result in results] == bodies
    assert all(fake.log.get(result.index).pos == result.pos for result in results[::100])
    if is_ours:
        assert fake.log.bodies == bodies
        assert len(fake.seen) < 1000  # they travel together
    else:
        assert len(fake.seen) == 3000


@BOTH
@pytest.mark.parametrize("form", [list, tuple, pack_bodies, iter])
def test_batch(is_ours: bool, form: Callable[[list[bytes]], Any]) -> None:
    fake = Fake(is_ours=is_ours)
    bodies = [b"x" * (number % 7) for number in range(200)]
    with connected(fake) as client:
        result = client.append_batch(form(bodies))
        assert client.append(b"end").index == 200
    assert fake.log.bodies == [*bodies, b"end"]
    assert len(result) == 200 and (result.first_index, result.last_index) == (0, 199)
    assert [appended.index for appended in result] == list(range(200))
    assert [appended.pos for appended in result] == [fake.log.get(index).pos for index in range(200)]


def test_large_batch_goes_in_several_requests_in_order() -> None:
    fake = Fake()
    bodies = batch_of(12)
    with connected(fake) as client:
        assert len(client.append_batch(bodies)) == len(bodies)
        assert len(client.append_batch(pack_bodies(bodies))) == len(bodies)
    assert fake.log.bodies == bodies * 2
    assert {len(seen.bodies) for seen in fake.seen} == {2}
    assert [seen.is_restart for seen in fake.seen] == [True] + [False] * 23


def test_a_body_larger_than_a_request_goes_alone() -> None:
    fake = Fake()
    bodies = [b"a", bytes(request_units.MAX_BODY_SIZE), b"b"]
    with connected(fake) as client:
        client.append_batch(bodies)
        client.append(bodies[1])
    assert fake.log.bodies == [*bodies, bodies[1]]


def test_what_is_no_batch_is_said_before_anything_is_sent() -> None:
    fake = Fake()
    too_large = bytes(request_units.MAX_BODY_SIZE + 1)
    with connected(fake) as client:
        for wrong, error, text in [
            ([], ValueError, "expected at least one, found none"),
            ([b"", too_large], ValueError, "found 4194257 in body 1"),
            ([b"", "text"], TypeError, "found str"),
            (Bodies(2, b"\0\0\0\1\0\0\0\1x"), ValueError, "expected a block of 10 bytes for 2 lengths, found 9"),
            (Bodies(2, b"\0\0\0\1"), ValueError, "expected a block of"),
        ]:
            with pytest.raises(error, match=text):
                client.append_batch(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected at most 4194256 bytes, found 4194257"):
            client.submit(too_large)
        with pytest.raises(TypeError, match="found str"):
            client.append("text")  # type: ignore[arg-type]
    assert not fake.connections


def test_places_go_on_in_a_new_file() -> None:
    found = list(positions(5, 2, (EntryRun(5, 100), EntryRun(7, 1024)), [1, 2, 3, 4]))
    assert found == [(5, 100, 2), (6, 149, 2), (7, 1024, 2), (8, 1075, 2)]


def test_threads_share_a_client() -> None:
    fake = Fake()
    results: list[int] = []

    def work(number: int) -> None:
        mine = [b"%d-%d" % (number, count) for count in range(300)]
        futures = [client.submit(body) for body in mine[:150]]
        indexes = [appended.index for appended in client.append_batch(mine[150:])]
        indexes = [future.result().index for future in futures] + indexes
        # What one thread appends stands in the order of its calls.
        assert indexes == sorted(indexes)
        assert [fake.log.bodies[index] for index in indexes] == mine
        results.extend(indexes)

    with connected(fake) as client:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == list(range(1800))


# Finding the leader and following it.


@BOTH
def test_leader_is_found_through_any_member(is_ours: bool) -> None:
    leader = Fake("n1", "n1", is_ours=is_ours)
    follower = Fake("n0", "n1", is_ours=is_ours)
    peers = {"n0": f"{HOST}:{follower.port}", "n1": f"{HOST}:{leader.port}"}
    leader.peers = follower.peers = peers
    with fakes(follower, leader), dl.connect("g", follower.peer) as client:
        assert client.append(b"x").index == 0
        assert client.metadata().peers == peers
    assert not follower.seen


@BOTH
def test_not_leader_is_followed_along_a_chain(is_ours: bool) -> None:
    members = [Fake(f"n{number}", f"n{number}", is_ours=is_ours) for number in range(3)]
    for number, member in enumerate(members[:2]):
        member.script.append(refuse(NOT_LEADER, f"n{number + 1}"))
        # It believes so until then.
        member.responses[MetadataRequest] = lambda _, member=member: MetadataResponse(  # type: ignore[misc]
            group="g", leader_id=member.node_id if member.script else "n2", peers=member.peers
        )
    members[2].responses[MetadataRequest] = lambda _: MetadataResponse(
        group="g", leader_id=None if members[0].script and members[1].script else "n2", peers=members[2].peers
    )
    with connected(*members) as client:
        results = [future.result() for future in [client.submit(b"%d" % number) for number in range(10)]]
    assert sorted(result.index for result in results) == list(range(10))
    assert len(members[2].seen) >= 1
    assert sorted(members[0].log.bodies) == [b"%d" % number for number in range(10)]


def test_waits_for_a_leader() -> None:
    fake = Fake(leader_id=None)
    with connected(fake, timeout_ms=300) as client:
        future = client.submit(b"x")
        time.sleep(0.8)  # more than one attempt
        assert not future.done()
        fake.leader_id = "n0"
        assert future.result(5).index == 0
        assert client.get(0).body == b"x"


def test_a_leader_that_others_name_but_that_is_gone_is_not_asked() -> None:
    left = [Fake("n1", "n0"), Fake("n2", "n0")]
    port = free_ports(1)[0]
    with fakes(*left) as peers, dl.connect("g", f"n0-{HOST}:{port};{peers}", timeout_ms=300) as client:
        future = client.submit(b"x")
        time.sleep(0.5)
        left[0].leader_id = left[1].leader_id = "n2"
        assert future.result(5).index == 0
    assert not left[0].seen


def test_no_leader_is_said_with_what_each_member_says() -> None:
    fake, stranger = Fake("n0", None), Fake("n1", hello_code=ResponseCode.UNKNOWN_GROUP)
    port = free_ports(1)[0]
    with (
        fakes(fake, stranger) as peers,
        dl.connect("g", f"{peers};n2-{HOST}:{port}", timeout_ms=200, max_retries=1) as client,
    ):
        started = time.monotonic()
        with pytest.raises(GroupError) as caught:
            client.append(b"x")
        assert time.monotonic() - started < 3
        started = time.monotonic()
        with pytest.raises(GroupError, match=r"expected a leader within \d+ ms") as of_get:
            client.get(0)
        # What is said is how long it took, in all attempts together.
        assert said_ms(of_get.value) == pytest.approx((time.monotonic() - started) * 1000, abs=200)
        assert min(map(said_ms, (caught.value, of_get.value))) > 400
        with pytest.raises(GroupError):
            client.append_batch([b"x", b"y"])
        assert client.metadata().leader_id is None
    text = str(caught.value)
    assert f"n0: names nobody; n1: expected member n1 of group g at {HOST}:{stranger.port}, found UNKNOWN_GROUP" in text
    assert f"n2: {HOST}:{port}: Connection refused" in text
    assert caught.value.code == ResponseCode.METADATA_ERROR
    assert not isinstance(caught.value, UnknownOutcomeError)


def said_ms(error: GroupError) -> int:
    return int(str(error).partition(" within ")[2].partition(" ms")[0])


@BOTH
@pytest.mark.parametrize("code", [ResponseCode.UNKNOWN_GROUP, ResponseCode.UNKNOWN_MEMBER])
def test_a_wrong_group_and_wrong_ids_are_said_at_once(is_ours: bool, code: ResponseCode) -> None:
    members = [Fake(f"n{number}", "n0", is_ours=is_ours, hello_code=code) for number in range(2)]
    with fakes(*members) as peers, dl.connect("g", f"{peers};n2-{HOST}:{free_ports(1)[0]}") as client:
        calls: list[Callable[[], object]] = [
            lambda: client.append(b"x"),
            lambda: client.append_batch([b"x", b"y"]),
            lambda: client.get(0),
            lambda: client.transfer("n1"),
        ]
        for call in calls:
            started = time.monotonic()
            with pytest.raises(GroupError, match=f"expected members of it, found none: .*{code.name}") as caught:
                call()
            assert time.monotonic() - started < 1 and caught.value.code == code
            assert all(f"{HOST}:{member.port}" in str(caught.value) for member in members)


def test_addresses_that_were_given_win_over_those_that_members_tell() -> None:
    fake = Fake(peers={"n0": "127.0.0.1:1", "n1": "no address", "n2": "127.0.0.1:2"})
    with connected(fake) as client:
        client.append(b"x")
        fake.cut()
        time.sleep(0.1)  # until that is noticed
        assert client.append(b"y").index == 1
        assert client.metadata().peers == {"n0": f"{HOST}:{fake.port}", "n1": "no address", "n2": "127.0.0.1:2"}


def test_a_member_that_hangs_does_not_hold_up_the_search() -> None:
    hanging, leader = Fake("n0", "n1"), Fake("n1", "n1")
    hanging.is_halted.clear()
    with connected(hanging, leader, timeout_ms=3000) as client:
        started = time.monotonic()
        client.append(b"x")
        assert time.monotonic() - started < 1.5
        assert client.metadata().leader_id == "n1"


# What is tried again.


@BOTH
@pytest.mark.parametrize(
    "code", [NOT_LEADER, PENDING_FULL, ResponseCode.LEADER_TRANSFERRING, ResponseCode.DISK_FULL, 505], ids=int
)
def test_refusals_that_pass_are_tried_again(is_ours: bool, code: int) -> None:
    fake = Fake(is_ours=is_ours, script=deque([refuse(code), refuse(code), ACK, refuse(code)]))
    with connected(fake) as client:
        assert client.append(b"x").index == 0
        assert client.append(b"y").index == 1
    assert fake.log.bodies == [b"x", b"y"]
    assert [seen.bodies[0] for seen in fake.seen] == [b"x", b"x", b"x", b"y", b"y"]


@BOTH
def test_refusals_that_stay_end_after_the_retries(is_ours: bool) -> None:
    fake = Fake(is_ours=is_ours, script=deque([refuse(PENDING_FULL)] * 3))
    with connected(fake, max_retries=2) as client:
        with pytest.raises(GroupError, match=r"LEADER_PENDING_FULL \(503\), 3 times in a row") as caught:
            client.append(b"x")
        assert client.append(b"y").index == 0
    assert caught.value.code == PENDING_FULL and type(caught.value) is GroupError
    assert fake.log.bodies == [b"y"]


def test_pauses_grow() -> None:
    fake = Fake(script=deque([refuse(PENDING_FULL)] * 5))
    with connected(fake) as client:
        started = time.monotonic()
        client.append(b"x")
        # 10 ms doubled five times, and of each pause at least a half.
        assert time.monotonic() - started > (20 + 40 + 80 + 160 + 320) / 2000


def test_java_busy_is_tried_again_and_its_system_error_is_unknown() -> None:
    busy, failed = (Act(False, None, refusal=Refusal(code, "x")) for code in (SYSTEM_BUSY, SYSTEM_ERROR))
    fake = Fake(is_ours=False, script=deque([busy, ACK, failed]))
    with connected(fake) as client:
        assert client.append(b"x").index == 0
        with pytest.raises(UnknownOutcomeError, match=r"SYSTEM_ERROR \(1\) x"):
            client.append(b"y")


def test_a_connection_lost_while_idle_is_made_anew() -> None:
    fake = Fake()
    with connected(fake) as client:
        for number in range(3):
            assert client.append(b"x").index == number
            fake.cut()
            time.sleep(0.05)
        assert client.get(0).body == b"x"
    assert len(fake.seen) == 3


def test_a_leader_that_comes_late() -> None:
    port = free_ports(1)[0]
    with dl.connect("g", f"n0-{HOST}:{port}", timeout_ms=300) as client:
        future = client.submit(b"x")
        time.sleep(0.4)
        with nodes_at(port):
            assert future.result(10).index == 0


@contextmanager
def nodes_at(port: int) -> Iterator[None]:
    """A fake member at that port."""
    fake = Fake()
    fake.server.close()
    import socket

    fake.server = socket.create_server((HOST, port))
    fake.port = port
    threading.Thread(target=fake._accept, daemon=True).start()
    with fakes(fake):
        yield


# What is never tried again.


@BOTH
@pytest.mark.parametrize(
    "act",
    [CUT, APPENDED_AND_CUT, Act(raw=b"\0\0\0\1garbage", code=None)],
    ids=["cut", "appended and cut", "garbage"],
)
def test_sent_and_cut_is_unknown(is_ours: bool, act: Act) -> None:
    fake = Fake(is_ours=is_ours, script=deque([act]))
    with connected(fake) as client:
        with pytest.raises(
            UnknownOutcomeError, match="expected n0 to acknowledge an append, found the connection was lost"
        ):
            client.append(b"x")
        client.append(b"y")
    assert [seen.bodies for seen in fake.seen] == [[b"x"], [b"y"]]


@BOTH
@pytest.mark.parametrize("code", [501, 502, 500, -1, ResponseCode.DISK_ERROR, 300, 406, 999])
def test_answers_that_leave_it_open_are_unknown(is_ours: bool, code: int) -> None:
    fake = Fake(is_ours=is_ours, script=deque([appended_but(code)]))
    with connected(fake) as client:
        with pytest.raises(UnknownOutcomeError, match=f"{code}.*look for it there before it is sent again") as caught:
            client.append(b"x")
        assert client.append(b"y").index == 1
    assert caught.value.code == code
    assert fake.log.bodies == [b"x", b"y"]


@BOTH
def test_no_answer_is_unknown(is_ours: bool) -> None:
    fake = Fake(is_ours=is_ours, script=deque([SILENT]))
    with connected(fake, timeout_ms=200) as client:
        started = time.monotonic()
        with pytest.raises(UnknownOutcomeError, match="found no answer in 200 ms") as caught:
            client.append(b"x")
        assert 0.2 <= time.monotonic() - started < 1.5
        assert caught.value.code == ResponseCode.NETWORK_ERROR
        assert client.append(b"y").index == 1
    assert fake.log.bodies == [b"x", b"y"]


@BOTH
def test_answers_that_came_while_this_process_stood_still_count(is_ours: bool) -> None:
    fake = Fake(is_ours=is_ours, script=deque([ACK, Act(delay=0.2)]))

    def response(_: Request) -> GetResponse:
        time.sleep(0.2)
        return GetResponse(group="g", entries=[fake.log.get(0)])

    fake.responses[GetRequest] = response
    with connected(fake, timeout_ms=300) as client:
        client.append(b"x")
        # It stands still from when the request is sent until long after its time is over.
        future = client.submit(b"y")
        eventually(lambda: len(fake.seen) == 2)
        client._loop.call_soon_threadsafe(time.sleep, 1.0)
        assert future.result().index == 1
        asked = threading.Timer(0.05, client._loop.call_soon_threadsafe, (time.sleep, 1.0))
        asked.start()
        assert client.get(0).body == b"x"
    assert len(fake.connections) == 1


def test_an_answer_for_another_number_of_entries_is_unknown() -> None:
    fake = Fake(script=deque([Act(count_off=1)]))
    with connected(fake) as client, pytest.raises(UnknownOutcomeError, match="an answer for another number of entries"):
        client.append(b"x")


def test_slow_but_steady_answers_are_no_time_out() -> None:
    fake = Fake(script=deque([Act(delay=0.15)] * 8))
    with connected(fake, timeout_ms=400) as client:
        # All are under way at a time, and the last is answered after more than the time-out.
        assert len(client.append_batch(batch_of(8))) == 16


# Pipelines.


def test_refused_in_the_middle_goes_on_in_order() -> None:
    fake = Fake(script=deque([ACK, ACK, refuse(PENDING_FULL), ACK, refuse(NOT_LEADER, "n0"), refuse(PENDING_FULL)]))
    bodies = batch_of(10)
    with connected(fake) as client:
        result = client.append_batch(bodies)
    assert fake.log.bodies == bodies
    assert [appended.index for appended in result] == list(range(20))
    assert len([seen for seen in fake.seen if seen.is_restart]) >= 4


def test_submits_refused_in_the_middle_go_on_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_TOGETHER", 10)
    fake = Fake(script=deque([ACK, refuse(PENDING_FULL), ACK, ACK, refuse(NOT_LEADER), ACK, refuse(PENDING_FULL)]))
    bodies = bodies_of(500)
    with connected(fake) as client:
        results = [future.result() for future in [client.submit(body) for body in bodies]]
    assert fake.log.bodies == bodies
    assert [result.index for result in results] == list(range(500))


def test_a_body_that_is_refused_for_good_harms_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_TOGETHER", 1)
    fake = Fake(
        script=deque([ACK, refuse(ResponseCode.UNEXPECTED_ARGUMENT), ACK, refuse(ResponseCode.UNEXPECTED_ARGUMENT)])
    )
    with connected(fake) as client:
        futures = [client.submit(b"%d" % number) for number in range(6)]
        wait(futures)
    errors = [future.exception() for future in futures]
    assert [number for number, error in enumerate(errors) if error] == [1, 3]
    assert all(isinstance(error, GroupError) and error.code == 411 for error in errors if error)
    assert fake.log.bodies == [b"0", b"2", b"4", b"5"]


def test_progress_between_refusals_is_no_failure() -> None:
    # One request is acknowledged in each round, and there are many more rounds than retries.
    fake = Fake(script=deque([ACK, refuse(PENDING_FULL)] * 12))
    bodies = batch_of(14)
    with connected(fake, max_retries=1) as client:
        client.append_batch(bodies)
    assert fake.log.bodies == bodies


@pytest.mark.parametrize(
    "act", [CUT, APPENDED_AND_CUT, appended_but(502), SILENT], ids=["cut", "appended", "502", "silent"]
)
def test_batch_that_ends_midway_says_what_is_known(act: Act) -> None:
    fake = Fake(script=deque([ACK, ACK, act, refuse(NOT_LEADER)]))
    bodies = batch_of(40)
    with connected(fake, timeout_ms=500) as client, pytest.raises(PartialAppendError) as caught:
        client.append_batch(bodies)
    error = caught.value
    count = len(error.acknowledged)
    # A connection that is cut may take acknowledgements with it that were not read yet.
    assert count == 4 or (act in (CUT, APPENDED_AND_CUT) and count in (0, 2))
    assert isinstance(error, UnknownOutcomeError) and str(error).startswith(f"of 80 entries {count} were appended, of ")
    assert [found.index for found in error.acknowledged] == list(range(count))
    unknown = [number for part in error.unknown for number in part]
    missing = [number for part in error.not_appended for number in part]
    assert count in unknown and missing and missing[-1] == 79
    assert sorted([*range(count), *unknown, *missing]) == list(range(80))
    # What is said to be missing is; what comes behind it was not sent.
    assert not {bodies[number] for number in missing} & set(fake.log.bodies)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.unknown) == (str(error), error.code, error.unknown)
    assert list(again.acknowledged) == list(error.acknowledged)


def test_batch_refused_midway_is_partial_and_nothing_is_unknown() -> None:
    fake = Fake(script=deque([ACK, ACK, *[refuse(ResponseCode.DISK_FULL)] * 9]))
    with connected(fake, max_retries=0) as client, pytest.raises(PartialAppendError) as caught:
        client.append_batch(batch_of(10))
    error = caught.value
    assert (error.unknown, error.not_appended, error.code) == ((), (range(4, 20),), ResponseCode.DISK_FULL)
    assert len(fake.log.bodies) == 4


def test_batch_of_which_nothing_was_appended_is_a_plain_error() -> None:
    fake = Fake(script=deque([refuse(ResponseCode.DISK_FULL)] * 9))
    with connected(fake, max_retries=1) as client:
        with pytest.raises(GroupError) as caught:
            client.append_batch(batch_of(4))
        assert not isinstance(caught.value, UnknownOutcomeError)
        fake.script.clear()
        assert client.append(b"x").index == 0


@BOTH
def test_leader_moves_to_java_and_back_in_the_middle_of_a_batch(is_ours: bool) -> None:
    first = Fake("n0", "n0", is_ours=is_ours, script=deque([ACK, ACK, refuse(NOT_LEADER, "n1")]))
    second = Fake("n1", "n1", is_ours=not is_ours)
    bodies = bodies_of(600, 10_000)

    def says(_: Request) -> MetadataResponse:
        leader = "n0" if first.script else "n1"
        return MetadataResponse(group="g", leader_id=leader, peers=first.peers)

    first.responses[MetadataRequest] = second.responses[MetadataRequest] = says
    with connected(first, second) as client:
        result = client.append_batch(bodies)
    assert [first.log.bodies[appended.index] for appended in result] == bodies
    assert sorted(first.log.bodies) == sorted(bodies)


ACTS = [
    *(ACK, ACK, ACK, CUT, APPENDED_AND_CUT, appended_but(501), appended_but(502), Act(delay=0.005)),
    *(refuse(NOT_LEADER), refuse(NOT_LEADER, "n1"), refuse(PENDING_FULL), refuse(ResponseCode.LEADER_TRANSFERRING)),
    refuse(ResponseCode.UNEXPECTED_ARGUMENT),
]


@pytest.mark.parametrize("seed", range(20))
def test_outcomes_are_true_whatever_members_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged is in the log once, where it was said; refused is not; unknown is there once at most."""
    monkeypatch.setattr(appender, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(appender, "_MAX_PAUSE", 0.004)
    monkeypatch.setattr(appender, "_MAX_TOGETHER", 5)
    monkeypatch.setattr(request_units, "UNIT_BYTES", 2000)
    chance = random.Random(seed)
    members = [Fake(f"n{number}", f"n{number}", is_ours=chance.random() < 0.7) for number in range(2)]
    for member in members:
        member.script = deque(chance.choices(ACTS, k=chance.randrange(40)))
    # In the order of the calls: the index, UNKNOWN or MISSING.
    outcomes: dict[bytes, object] = {}
    with connected(*members, max_retries=3) as client:
        futures: dict[bytes, Future[Appended]] = {}
        for turn in range(30):
            for number in range(chance.randrange(20)):
                body = b"s%d-%d" % (turn, number)
                outcomes[body] = futures[body] = client.submit(body)
            sizes = chance.choices(range(300), k=chance.randrange(1, 40))
            outcomes |= batch_outcomes(client, [b"b%d-%d" % (turn, n) + bytes(size) for n, size in enumerate(sizes)])
        wait(futures.values())
    outcomes |= {body: outcome_of(future) for body, future in futures.items()}
    log = members[0].log.bodies
    assert set(log) <= set(outcomes) and len(log) == len(set(log))
    assert not [body for body, outcome in outcomes.items() if outcome is MISSING and body in log]
    known = {body: outcome for body, outcome in outcomes.items() if isinstance(outcome, int)}
    assert all(log[index] == body for body, index in known.items())
    if all(member.is_ours for member in members):
        assert list(known.values()) == sorted(known.values())


UNKNOWN, MISSING = "unknown", "missing"


def outcome_of(future: Future[Appended]) -> object:
    error = future.exception()
    if error is None:
        return future.result().index
    assert isinstance(error, (GroupError, UnknownOutcomeError))
    return outcome_of_error(error)


def batch_outcomes(client: Client, bodies: list[bytes]) -> dict[bytes, object]:
    found: dict[bytes, object] = dict.fromkeys(bodies, MISSING)
    try:
        acknowledged = client.append_batch(bodies)
        unknown: tuple[range, ...] = ()
        missing: tuple[range, ...] = ()
    except PartialAppendError as error:
        acknowledged, unknown, missing = error.acknowledged, error.unknown, error.not_appended
    except (GroupError, UnknownOutcomeError) as error:
        return dict.fromkeys(bodies, outcome_of_error(error))
    found |= {bodies[number]: UNKNOWN for part in unknown for number in part}
    rest = iter(acknowledged)
    others = {number for part in (*unknown, *missing) for number in part}
    found |= {body: next(rest).index for number, body in enumerate(bodies) if number not in others}
    assert next(rest, None) is None
    return found


def outcome_of_error(error: GroupError | UnknownOutcomeError) -> object:
    return UNKNOWN if isinstance(error, UnknownOutcomeError) else MISSING


# Closing, cancelling, callbacks, forks.


def test_close_waits_for_what_was_submitted() -> None:
    fake = Fake(script=deque([Act(delay=0.3)]))
    with connected(fake) as client:
        futures = [client.submit(b"%d" % number) for number in range(2000)]
    assert all(future.done() for future in futures)
    assert len({future.result().index for future in futures}) == 2000
    client.close()
    for call in (lambda: client.append(b""), lambda: client.get(0), lambda: client.append_batch([b""])):
        with pytest.raises(GroupError, match="the client is closed: call connect anew"):
            call()


def test_close_says_what_is_unknown_and_what_was_not_sent() -> None:
    fake = Fake(script=deque([SILENT] * 1000))
    futures: list[Future[Appended]] = []
    with connected(fake, timeout_ms=300) as client:
        futures += [client.submit(bytes(100_000)) for _ in range(200)]
        started = time.monotonic()
    assert time.monotonic() - started < 3
    errors = [future.exception(0) for future in futures]
    kinds = [type(error) for error in errors]
    assert kinds[0] is UnknownOutcomeError and kinds[-1] is GroupError
    assert str(errors[-1]).startswith("group g: an append was not sent, for the client was closed")
    sent = {body for seen in fake.seen for body in seen.bodies}
    assert sum(kind is UnknownOutcomeError for kind in kinds) >= len(sent)


def test_close_in_the_middle_of_other_threads_calls() -> None:
    fake = Fake(script=deque([SILENT] * 1000))
    fake.responses[GetRequest] = lambda _: None
    errors: list[type[BaseException]] = []

    def work(call: Callable[[], object]) -> None:
        with pytest.raises((GroupError, UnknownOutcomeError)) as caught:
            call()
        errors.append(caught.type)

    with connected(fake, timeout_ms=400) as client:
        calls: list[Callable[[], object]] = [lambda: client.append_batch(batch_of(30)), lambda: client.get(0)]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        eventually(lambda: fake.seen)
    for thread in threads:
        thread.join(5)
    assert set(errors) == {GroupError, PartialAppendError}


def test_what_is_not_sent_yet_can_be_cancelled() -> None:
    fake = Fake(leader_id=None)
    with connected(fake) as client:
        futures = [client.submit(b"%d" % number) for number in range(4)]
        assert futures[1].cancel()
        fake.leader_id = "n0"
        assert [future.result(5).index for future in futures if not future.cancelled()] == [0, 1, 2]
        assert not futures[0].cancel()
    assert fake.log.bodies == [b"0", b"2", b"3"]


def test_in_a_callback_submit_works_and_what_waits_says_so() -> None:
    fake = Fake()
    found: list[object] = []

    def called(_: Future[Appended]) -> None:
        for call in (
            lambda: client.append(b""),
            lambda: client.get(0),
            client.close,
            lambda: client.append_batch([b""]),
        ):
            with pytest.raises(DLedgerError, match="found it in a callback of a future"):
                call()
        found.append(client.submit(b"second"))

    with connected(fake) as client:
        client.submit(b"first").add_done_callback(called)
        eventually(lambda: found)
    assert found[0].result(1).index == 1  # type: ignore[attr-defined]


def test_submit_waits_while_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_WAITING", 10_000)
    fake = Fake(leader_id=None)
    with connected(fake, timeout_ms=5000) as client:
        futures: list[Future[Appended]] = []
        thread = threading.Thread(target=lambda: futures.extend(client.submit(b"x") for _ in range(100)))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        fake.leader_id = "n0"
        thread.join(5)
        assert sorted(future.result(5).index for future in futures) == list(range(100))


def test_a_child_process_is_told_to_connect_anew() -> None:
    fake = Fake()
    with connected(fake) as client:
        client.append(b"x")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    client.append(b"of the child")
                except DLedgerError as error:
                    status = 0 if "call connect after the fork" in str(error) else 2
                client.close()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.append(b"y").index == 1


def test_nobody_waits_for_a_client_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Members) -> None:
        raise AssertionError("a mistake in the client")

    monkeypatch.setattr(Members, "leader", fail)
    with connected(Fake()) as client:
        with pytest.raises(GroupError, match="was not sent, for the client failed: nothing was appended"):
            client.append(b"x")
        with pytest.raises(GroupError, match="the client failed"):
            client.append_batch([b"x"])
    assert "a mistake in the client" in caplog.text


def test_a_client_that_nobody_has_ends() -> None:
    fake = Fake()
    with fakes(fake) as peers:
        client = dl.connect("g", peers)
        client.append(b"x")
        thread = client._thread
        del client
        gc.collect()
        thread.join(5)
        assert not thread.is_alive()


def test_a_process_ends_though_its_client_was_not_closed() -> None:
    fake = Fake()
    with fakes(fake) as peers:
        code = f"import pyspark_dledger as dl; client = dl.connect('g', {peers!r}); print(client.append(b'x'))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Appended(index=0, pos=0, term=1)\n", "")


def test_options_that_cannot_be_meant() -> None:
    for options in ({"timeout_ms": 0}, {"max_retries": -1}):
        with pytest.raises(OptionError, match="expected a positive timeout_ms"):
            dl.connect("g", "n0-127.0.0.1:1", **options)
    with pytest.raises(OptionError, match="expected ID-HOST:PORT"):
        dl.connect("g", "127.0.0.1")
    for group in ("", None):
        with pytest.raises(OptionError, match="group: expected the name of a group"):
            dl.connect(group, "n0-127.0.0.1:1")  # type: ignore[arg-type]
    for peers in (None, {"n0": "127.0.0.1:1"}):
        with pytest.raises(OptionError, match="peers: expected a text such as n0-"):
            dl.connect("g", peers)  # type: ignore[arg-type]


def test_numbers_that_cannot_be_meant() -> None:
    with connected(Fake()) as client:
        calls: list[tuple[str, Callable[[], object]]] = [
            ("index: .* found -1", lambda: client.get(-1)),
            ("index: .* found 'x'", lambda: client.get("x")),  # type: ignore[arg-type]
            (f"index: .* found {1 << 63}", lambda: client.get(1 << 63)),
            ("first_index: .* found -5", lambda: client.read(-5)),
            ("wait_ms: .* found -1", lambda: client.read(0, wait_ms=-1)),
            ("max_bytes: .* found 0", lambda: client.read(0, max_bytes=0)),
        ]
        for text, call in calls:
            with pytest.raises(OptionError, match=text):
                call()


def test_a_process_that_ends_in_the_middle_of_an_append_prints_nothing() -> None:
    with fakes(Fake(leader_id=None)) as peers:
        code = f"import time, pyspark_dledger as dl; client = dl.connect('g', {peers!r}); client.submit(b'x'); "
        ran = subprocess.run(
            [sys.executable, "-c", code + "time.sleep(0.3)"], capture_output=True, text=True, timeout=30
        )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# Reading, status, transfer.


def test_get_is_asked_again_until_it_can_be_answered() -> None:
    fake = Fake()
    responses = deque(
        [GetResponse(code=505), GetResponse(code=NOT_LEADER), GetResponse(code=419), GetResponse(code=410)]
    )
    asked: list[GetRequest] = []

    def response(request: Request) -> GetResponse:
        assert isinstance(request, GetRequest)
        asked.append(request)
        return responses.popleft()

    fake.responses[GetRequest] = response
    with connected(fake) as client:
        with pytest.raises(IndexRangeError, match="expected index 7, found it expired"):
            client.get(7)
        with pytest.raises(IndexRangeError, match="expected index 8, found it not in the log"):
            client.get(8)
        responses.append(GetResponse(code=500))
        with pytest.raises(GroupError, match="INTERNAL_ERROR"):
            client.get(8)
    assert all(request.is_committed for request in asked)


def test_get_without_an_answer_is_asked_again() -> None:
    fake = Fake(script=deque([ACK]))
    silent = deque([None, None])
    fake.responses[GetRequest] = lambda request: (
        silent.popleft() if silent else GetResponse(group="g", entries=[fake.log.get(request.begin_index)])  # type: ignore[attr-defined]
    )
    with connected(fake, timeout_ms=150) as client:
        client.append(b"x")
        assert client.get(0).body == b"x"


def test_reading_and_status_of_ours_and_of_java() -> None:
    ours, java = Fake("n0", "n0"), Fake("n1", "n0", is_ours=False)
    ours.responses[StatusRequest] = lambda _: StatusResponse(
        group="g", role=Role.LEADER, term=3, leader_id="n0", begin_index=1, end_index=5, end_term=3, committed_index=4,
        problem="disk broken",
    )  # fmt: skip
    ours.responses[ReadRequest] = lambda request: ReadResponse(group="g", begin_index=1, committed_index=4, code=(
        200 if request.first_index else 419))  # type: ignore[attr-defined]  # fmt: skip
    with connected(java, ours) as client:
        assert client.status("n0") == ("n0", Role.LEADER, 3, "n0", 1, 5, 3, 4, "disk broken", False)
        found = client.read(5)
        assert (found.first_index, found.count, found.committed_index, list(found.entries())) == (5, 0, 4, [])
        with pytest.raises(IndexRangeError, match="found it expired"):
            client.read(0, "n0")
        for call in (lambda: client.status("n1"), lambda: client.read(0, "n1")):
            with pytest.raises(GroupError, match="found n1 to be one of Java"):
                call()
        with pytest.raises(OptionError, match="expected a member of n1, n0, found 'n9'"):
            client.status("n9")


@BOTH
def test_transfer(is_ours: bool) -> None:
    members = [Fake(f"n{number}", "n0", is_ours=is_ours) for number in range(2)]
    term = 4
    asked: list[TransferRequest] = []

    def transferred(request: Request) -> TransferResponse:
        assert isinstance(request, TransferRequest)
        asked.append(request)
        if request.term != 5:
            return TransferResponse(code=ResponseCode.INCONSISTENT_TERM)
        for member in members:
            member.leader_id = "n1"
        return TransferResponse()

    def voted(request: Request) -> VoteResponse:
        assert isinstance(request, VoteRequest) and request.leader_id == "client" and request.term == -1
        return VoteResponse(term=term, vote_result=VoteResult.REJECT_UNKNOWN_LEADER)

    members[0].responses = {
        TransferRequest: transferred,
        VoteRequest: voted,
        StatusRequest: lambda _: StatusResponse(term=term),
    }
    with connected(*members) as client:
        with pytest.raises(GroupError, match=r"a transfer of leadership to n1, found INCONSISTENT_TERM"):
            client.transfer("n1")
        term = 5
        client.transfer("n1")
        assert (asked[-1].transfer_id, asked[-1].transferee_id) == ("n0", "n1")
        client.transfer("n1")  # it leads already
        assert len(asked) == 2
        assert client.append(b"x").index == 0
        with pytest.raises(OptionError, match="to transfer to, found 'n7'"):
            client.transfer("n7")
    assert members[1].seen and not members[0].seen


@BOTH
@pytest.mark.parametrize("code", [302, 300, 403, 418, 500, -1, 999])
def test_a_transfer_that_may_happen_yet_is_unknown(is_ours: bool, code: int) -> None:
    fake = Fake(is_ours=is_ours, peers={"n0": f"{HOST}:1", "n1": f"{HOST}:1"})
    fake.responses = {
        TransferRequest: lambda _: TransferResponse(code=code),
        VoteRequest: lambda _: VoteResponse(term=1),
        StatusRequest: lambda _: StatusResponse(term=1),
    }
    with connected(fake) as client, pytest.raises(UnknownOutcomeError, match="look with metadata") as caught:
        client.transfer("n1")
    assert caught.value.code == code and "nothing was changed" not in str(caught.value)


def test_a_transfer_without_an_answer_is_unknown() -> None:
    fake = Fake(peers={"n0": f"{HOST}:1", "n1": f"{HOST}:1"})
    asked = threading.Event()
    fake.responses = {TransferRequest: lambda _: asked.set(), StatusRequest: lambda _: StatusResponse(term=1)}
    for end in (fake.cut, lambda: client.close()):
        asked.clear()
        with connected(fake) as client:
            errors: list[BaseException] = []

            def transfer(client: Client = client, errors: list[BaseException] = errors) -> None:
                with pytest.raises(UnknownOutcomeError, match="look with metadata") as caught:
                    client.transfer("n1")
                errors.append(caught.value)

            thread = threading.Thread(target=transfer)
            thread.start()
            assert asked.wait(5)
            end()
            thread.join(5)
            assert errors
        fake = Fake(peers=fake.peers, responses=fake.responses)


# A group of real nodes.


def test_group_of_nodes(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group, dl.connect("g", group.peers) as client:
        assert client.append(b"first") == (0, 0, client.get(0).term)
        result = client.append_batch(pack_bodies(bodies_of(5000, 500)))
        assert [appended.index for appended in result] == list(range(1, 5001))
        # Files of 1 MiB: positions go on behind the blank at a file's end.
        for appended in list(result)[::499]:
            entry = client.get(appended.index)
            assert (entry.pos, entry.body) == (appended.pos, b"%d" % (appended.index - 1) + bytes(500))
        leader = client.metadata().leader_id
        assert leader == group.leader()
        follower = next(node_id for node_id in group.ids if node_id != leader)
        eventually(lambda: client.status(follower).committed_index == 5000)
        found = [entry for start in (0, 5000) for entry in client.read(start, follower).entries()]
        assert found[0].body == b"first" and found[-1].index == 5000
        client.transfer(follower)
        assert client.metadata().leader_id == follower
        assert client.append(b"last").index == 5001
        assert client.read(5001, leader, wait_ms=5000).count == 1
        assert client.read(5002, wait_ms=50).count == 0
        with pytest.raises(IndexRangeError):
            client.get(5002)


def test_tls(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with nodes(tmp_path, 1, core_options={}, tls=tls) as group:
        with dl.connect("g", group.peers, tls=tls) as client:
            bodies = bodies_of(100, 50_000)
            client.append_batch(bodies)
            assert client.get(99).body == bodies[99]
        for wrong in (None, make_tls(other)):
            with (
                dl.connect("g", group.peers, tls=wrong, timeout_ms=300, max_retries=0) as client,
                pytest.raises(GroupError, match="expected a leader") as caught,
            ):
                client.append(b"x")
            if wrong is None:
                assert "does that node expect TLS?" in str(caught.value)
    plain = tmp_path / "plain"
    plain.mkdir()
    with (
        nodes(plain, 1, core_options={}) as group,
        dl.connect("g", group.peers, tls=tls, timeout_ms=300, max_retries=0) as client,
        pytest.raises(GroupError, match=r"n0: 127.0.0.1:\d+: \w.* \(does that node expect TLS\?\)"),
    ):
        client.append(b"x")


def test_outcomes_are_true_while_leaders_go(tmp_path: Path) -> None:
    """Leaders stop under load, one after the other: the log holds what was acknowledged, once, and nothing refused."""
    outcomes: dict[bytes, object] = {}
    with (
        nodes(tmp_path, 3, core_options=FASTER) as group,
        dl.connect("g", group.peers, timeout_ms=2000) as client,
    ):
        futures: dict[bytes, Future[Appended]] = {}
        is_over = threading.Event()

        def submit() -> None:
            while not is_over.is_set():
                body = b"s%d" % len(futures)
                futures[body] = client.submit(body)
                time.sleep(0.0005)

        def append_batches() -> None:
            for turn in range(1_000_000):
                if is_over.is_set():
                    return
                outcomes.update(
                    batch_outcomes(client, [b"b%d-%d" % (turn, number) + bytes(900) for number in range(50)])
                )

        threads = [threading.Thread(target=work) for work in (submit, append_batches)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            leader = group.leader()
            time.sleep(0.3)
            group.stop(leader)
            group.leader()
            time.sleep(0.3)
            group.start(leader)
        is_over.set()
        for thread in threads:
            thread.join(60)
        wait(futures.values(), 60)
        outcomes |= {body: outcome_of(future) for body, future in futures.items()}
        last = client.append(b"end").index
        log = log_of(client, last)
    assert len(set(log)) == len(log)
    known = {body: index for body, index in outcomes.items() if isinstance(index, int)}
    assert len(known) > 100 and all(log[index] == body for body, index in known.items())
    assert not {body for body, outcome in outcomes.items() if outcome is MISSING} & set(log)


def log_of(client: Client, last: int) -> list[bytes]:
    log: list[bytes] = []
    while len(log) <= last:
        log += [entry.body for entry in client.read(len(log), wait_ms=1000).entries()]
    return log


# The command line.

Verb = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Runs a verb with ``--json``; the exit code, the rows and standard error."""

    def run_here(*arguments: object) -> tuple[int, list[Any], str]:
        capsys.readouterr()
        code = main([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    return run_here


def test_verbs(run: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\r\ntwo\n\nfour")
    with nodes(tmp_path, 3) as group:
        group.leader()
        given = ("--group", "g", "--peers", group.peers)
        code, rows, _ = run("append", *given, "a", "é")
        term = rows[0]["term"]
        assert (code, rows) == (0, [{"index": 0, "pos": 0, "term": term}, {"index": 1, "pos": 49, "term": term}])
        assert [row["index"] for row in run("append", *given, "--file", lines)[1]] == [2]
        assert [row["index"] for row in run("append", *given, "b", "--file", lines, "--lines")[1]] == [3, 4, 5, 6, 7]
        code, rows, _ = run("get", *given, "--index", 1, "--body", "text")
        assert (code, rows) == (0, [{"index": 1, "term": term, "pos": 49, "magic": 1, "body": "é"}])
        assert run("get", *given, "--index", 2)[1][0]["body"] == "b25lDQp0d28KCmZvdXI="
        assert [run("get", *given, "--index", n, "--body", "text")[1][0]["body"] for n in (4, 6, 7)] == [
            "one",
            "",
            "four",
        ]
        assert "body" not in run("get", *given, "--index", 2, "--body", "none")[1][0]
        code, rows, err = run("get", *given, "--index", 8)
        assert (code, rows) == (1, []) and "expected index 8, found it not in the log" in err
        code, [row], _ = run("metadata", *given)
        assert code == 0 and row["group"] == "g" and sorted(row["peers"]) == ["n0", "n1", "n2"]
        assert {member["role"] for member in row["members"]} == {"LEADER", "FOLLOWER"}
        assert {member["endIndex"] for member in row["members"]} == {7}
        target = next(node_id for node_id in group.ids if node_id != row["leaderId"])
        assert run("transfer", *given, "--to", target)[:2] == (0, [{"group": "g", "leaderId": target}])
        assert main(["get", *given, "--index", "0"]) == 0
        assert capsys.readouterr().out == f"index=0 term={term} pos=0 magic=1 body=a\n"
        assert main(["metadata", *given]) == 0
        assert "n0  127.0.0.1:" in capsys.readouterr().out


def test_verbs_that_fail(run: Verb) -> None:
    fake = Fake(script=deque([ACK, appended_but(502), refuse(ResponseCode.DISK_FULL)]))
    fake.responses[TransferRequest] = lambda _: TransferResponse(code=ResponseCode.FALL_BEHIND_TOO_MUCH)
    fake.responses[StatusRequest] = lambda _: StatusResponse(term=1)
    with fakes(fake) as peers:
        given = ("--group", "g", "--peers", peers, "--max-retries", 0, "--timeout-ms", 500)
        assert run("append", *given, "x")[:2] == (0, [{"index": 0, "pos": 0, "term": 1}])
        code, rows, err = run("append", *given, "x")
        assert (code, rows) == (1, []) and "it may be in the log, now or later, or never" in err
        code, rows, err = run("append", *given, "x")
        assert (code, rows) == (2, []) and "DISK_FULL (415): make room on its disk" in err
        code, _, err = run("transfer", *given, "--to", "n1")
        assert code == 2 and "to transfer to, found 'n1'" in err
        fake.peers["n1"] = f"{HOST}:{free_ports(1)[0]}"
        code, _, err = run("transfer", *given, "--to", "n1")
        assert code == 2 and "FALL_BEHIND_TOO_MUCH (417)" in err
        code, [row], _ = run("metadata", *given)
        assert code == 0 and "expected to reach n1" in row["members"][1]["problem"]
        for arguments, text in [
            (("append", *given), "expected bodies to append, or --file, found neither"),
            (("append", *given, "--lines", "x"), "--lines: expected --file"),
            (("append", *given, "--tls-ca", "x", "y"), "expected --tls-cert, --tls-key and --tls-ca together"),
            (("get", *given[:2], "--peers", "nonsense", "--index", 1), "expected ID-HOST:PORT"),
            (("append", *given, "--file", "/nonexistent"), "No such file"),
        ]:
            code, rows, err = run(*arguments)
            assert (code, rows) == (2, []) and text in err


def test_a_batch_that_ends_midway_prints_what_was_appended(run: Verb, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"x" * 600_000 + b"\n" + b"y" * 600_000)
    fake = Fake(script=deque([ACK, CUT]))
    with fakes(fake) as peers:
        code, rows, err = run("append", "--group", "g", "--peers", peers, "--file", lines, "--lines")
    assert (code, rows) == (1, [{"index": 0, "pos": 0, "term": 1}])
    assert "of 2 entries 1 were appended, of 1 it is unknown" in err


def test_a_transfer_of_which_nobody_knows_exits_1(run: Verb) -> None:
    fake = Fake(peers={"n0": f"{HOST}:1", "n1": f"{HOST}:1"})
    fake.responses[TransferRequest] = lambda _: TransferResponse(code=ResponseCode.NETWORK_ERROR)
    fake.responses[StatusRequest] = lambda _: StatusResponse(term=1, role=Role.LEADER, problem="is stuck")
    with fakes(fake) as peers:
        given = ("--group", "g", "--peers", peers)
        code, rows, err = run("transfer", *given, "--to", "n1")
        assert (code, rows) == (1, []) and "look with metadata who leads" in err
        assert run("metadata", *given)[1][0]["members"][0]["problem"] == "is stuck"


def command_line(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pyspark_dledger", *map(str, arguments)]


@pytest.mark.parametrize("is_full", [False, True], ids=["broken", "full"])
def test_an_output_that_ends_does_not_hide_what_was_appended(is_full: bool) -> None:
    fake = Fake()
    with fakes(fake) as peers:
        line = command_line("append", "--group", "g", "--peers", peers, "--file", "-", "--lines")
        read_end, write_end = os.pipe()
        os.close(read_end)
        if is_full:
            os.close(write_end)
        with open("/dev/full" if is_full else write_end, "wb") as output:
            ran = subprocess.run(
                line, input=b"x\n" * 250_000, stdout=output, stderr=subprocess.PIPE, timeout=60, check=False
            )
    # It ends after the first 100,000, of which nobody was told.
    assert ran.returncode == 1 and len(fake.log.bodies) == 100_000
    assert b": 100000 entries were appended, up to index 99999, and not all of them printed" in ran.stderr


def test_an_append_that_is_interrupted_says_so_at_once() -> None:
    fake = Fake(leader_id=None)
    with fakes(fake) as peers:
        line = command_line("append", "--group", "g", "--peers", peers, "x")
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            eventually(lambda: fake.connections)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            sent_at = time.monotonic()
            printed, err = process.communicate(timeout=30)
    assert time.monotonic() - sent_at < 2
    assert (process.returncode, printed) == (130, b"")
    assert b"interrupted: 0 entries were appended; 1 more may be in the log" in err and b"Task" not in err


def test_pauses_grow_and_have_a_longest_however_often_something_failed() -> None:
    bounds = [(0.5 * pause, pause) for pause in (0.01, 0.02, 0.04, 1.0, 1.0)]
    found = [backoff(failures, 0.01, 1.0) for failures in (0, 1, 2, 7, 100_000)]
    assert all(low <= pause <= high for pause, (low, high) in zip(found, bounds, strict=True)), found
