"""Rejected appends of a client are retried, in order."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import wait

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.client import PartialAppendError, appender
from pyspark_dledger.raft.loops import backoff
from pyspark_dledger.raft.messages import MetadataRequest, MetadataResponse, Request
from tests.support.clients import BOTH, NOT_LEADER, PENDING_FULL, batch_of, bodies_of, connected
from tests.support.fake_members import ACK, FakeMember, reject


@BOTH
@pytest.mark.parametrize(
    "code", [NOT_LEADER, PENDING_FULL, ResponseCode.LEADER_TRANSFERRING, ResponseCode.DISK_FULL, 505], ids=int
)
def test_temporary_rejections_are_retried(is_binary: bool, code: int) -> None:
    fake = FakeMember(is_binary=is_binary, script=deque([reject(code), reject(code), ACK, reject(code)]))
    with connected(fake) as client:
        assert client.append(b"x").index == 0
        assert client.append(b"y").index == 1
    assert fake.log.bodies == [b"x", b"y"]
    assert [seen.bodies[0] for seen in fake.appends] == [b"x", b"x", b"x", b"y", b"y"]


@BOTH
def test_temporary_rejections_fail_after_max_retries(is_binary: bool) -> None:
    fake = FakeMember(is_binary=is_binary, script=deque([reject(PENDING_FULL)] * 3))
    with connected(fake, max_retries=2) as client:
        with pytest.raises(GroupError, match=r"LEADER_PENDING_FULL \(503\), 3 times in a row") as caught:
            client.append(b"x")
        assert client.append(b"y").index == 0
    assert caught.value.code == PENDING_FULL and type(caught.value) is GroupError
    assert fake.log.bodies == [b"y"]


def test_pauses_between_retries_grow() -> None:
    fake = FakeMember(script=deque([reject(PENDING_FULL)] * 5))
    with connected(fake) as client:
        started = time.monotonic()
        client.append(b"x")
        # 10 ms doubled five times; each pause is at least half of that.
        assert time.monotonic() - started > (20 + 40 + 80 + 160 + 320) / 2000


def test_rejected_batch_continues_in_order() -> None:
    fake = FakeMember(
        script=deque([ACK, ACK, reject(PENDING_FULL), ACK, reject(NOT_LEADER, "n0"), reject(PENDING_FULL)])
    )
    bodies = batch_of(10)
    with connected(fake) as client:
        result = client.append_batch(bodies)
    assert fake.log.bodies == bodies
    assert [appended.index for appended in result] == list(range(20))
    assert len([seen for seen in fake.appends if seen.is_restart]) >= 4


def test_rejected_submits_continue_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_TOGETHER", 10)
    fake = FakeMember(
        script=deque([ACK, reject(PENDING_FULL), ACK, ACK, reject(NOT_LEADER), ACK, reject(PENDING_FULL)])
    )
    bodies = bodies_of(500)
    with connected(fake) as client:
        results = [future.result() for future in [client.submit(body) for body in bodies]]
    assert fake.log.bodies == bodies
    assert [result.index for result in results] == list(range(500))


def test_permanent_rejection_fails_only_its_own_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_TOGETHER", 1)
    fake = FakeMember(
        script=deque([ACK, reject(ResponseCode.UNEXPECTED_ARGUMENT), ACK, reject(ResponseCode.UNEXPECTED_ARGUMENT)])
    )
    with connected(fake) as client:
        futures = [client.submit(b"%d" % number) for number in range(6)]
        wait(futures)
    errors = [future.exception() for future in futures]
    assert [number for number, error in enumerate(errors) if error] == [1, 3]
    assert all(isinstance(error, GroupError) and error.code == 411 for error in errors if error)
    assert fake.log.bodies == [b"0", b"2", b"4", b"5"]


def test_rejections_after_progress_are_not_counted() -> None:
    # One request is acknowledged in each round, and there are many more rounds than retries.
    fake = FakeMember(script=deque([ACK, reject(PENDING_FULL)] * 12))
    bodies = batch_of(14)
    with connected(fake, max_retries=1) as client:
        client.append_batch(bodies)
    assert fake.log.bodies == bodies


def test_rejected_rest_of_a_batch_is_not_appended() -> None:
    fake = FakeMember(script=deque([ACK, ACK, *[reject(ResponseCode.DISK_FULL)] * 9]))
    with connected(fake, max_retries=0) as client, pytest.raises(PartialAppendError) as caught:
        client.append_batch(batch_of(10))
    error = caught.value
    assert (error.unknown, error.not_appended, error.code) == ((), (range(4, 20),), ResponseCode.DISK_FULL)
    assert len(fake.log.bodies) == 4


def test_rejected_batch_is_a_group_error() -> None:
    fake = FakeMember(script=deque([reject(ResponseCode.DISK_FULL)] * 9))
    with connected(fake, max_retries=1) as client:
        with pytest.raises(GroupError) as caught:
            client.append_batch(batch_of(4))
        assert not isinstance(caught.value, UnknownOutcomeError)
        fake.script.clear()
        assert client.append(b"x").index == 0


@BOTH
def test_batch_continues_on_a_leader_with_the_other_dialect(is_binary: bool) -> None:
    first = FakeMember("n0", "n0", is_binary=is_binary, script=deque([ACK, ACK, reject(NOT_LEADER, "n1")]))
    second = FakeMember("n1", "n1", is_binary=not is_binary)
    bodies = bodies_of(600, 10_000)

    def leader_response(_: Request) -> MetadataResponse:
        leader = "n0" if first.script else "n1"
        return MetadataResponse(group="g", leader_id=leader, peers=first.peers)

    first.responses[MetadataRequest] = second.responses[MetadataRequest] = leader_response
    with connected(first, second) as client:
        result = client.append_batch(bodies)
    assert [first.log.bodies[appended.index] for appended in result] == bodies
    assert sorted(first.log.bodies) == sorted(bodies)


def test_backoff_has_a_maximum() -> None:
    bounds = [(0.5 * pause, pause) for pause in (0.01, 0.02, 0.04, 1.0, 1.0)]
    found = [backoff(failures, 0.01, 1.0) for failures in (0, 1, 2, 7, 100_000)]
    assert all(low <= pause <= high for pause, (low, high) in zip(found, bounds, strict=True)), found
