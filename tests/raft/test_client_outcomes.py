"""Appends of a client whose outcome is unknown are never sent again."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections import deque
from concurrent.futures import Future, wait

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import UnknownOutcomeError
from pyspark_dledger.raft.client import Appended, PartialAppendError, appender, request_units
from pyspark_dledger.raft.messages import GetRequest, GetResponse, Request
from pyspark_dledger.raft.wire import SYSTEM_BUSY, SYSTEM_ERROR, Rejection
from tests.support.clients import (
    BOTH,
    NOT_APPENDED,
    NOT_LEADER,
    PENDING_FULL,
    batch_of,
    batch_outcomes,
    connected,
    outcome_of,
)
from tests.support.fake_members import (
    ACK,
    APPENDED_AND_DISCONNECTED,
    DISCONNECTED,
    SILENT,
    Act,
    FakeMember,
    appended_but,
    reject,
)
from tests.support.groups import eventually
from tests.support.long_runs import mostly_slow


def test_java_system_busy_is_retried_and_system_error_is_unknown() -> None:
    busy, failed = (Act(False, None, rejection=Rejection(code, "x")) for code in (SYSTEM_BUSY, SYSTEM_ERROR))
    fake = FakeMember(is_binary=False, script=deque([busy, ACK, failed]))
    with connected(fake) as client:
        assert client.append(b"x").index == 0
        with pytest.raises(UnknownOutcomeError, match=r"SYSTEM_ERROR \(1\) x"):
            client.append(b"y")


@BOTH
@pytest.mark.parametrize(
    "act",
    [DISCONNECTED, APPENDED_AND_DISCONNECTED, Act(raw=b"\0\0\0\1garbage", code=None)],
    ids=["disconnected", "appended and disconnected", "garbage"],
)
def test_append_without_response_on_a_lost_connection_is_unknown(is_binary: bool, act: Act) -> None:
    fake = FakeMember(is_binary=is_binary, script=deque([act]))
    with connected(fake) as client:
        with pytest.raises(UnknownOutcomeError, match=r"n0 did not acknowledge an append \(the connection was lost"):
            client.append(b"x")
        client.append(b"y")
    assert [seen.bodies for seen in fake.appends] == [[b"x"], [b"y"]]


@BOTH
@pytest.mark.parametrize("code", [501, 502, 500, -1, ResponseCode.DISK_ERROR, 300, 406, 999])
def test_codes_with_unknown_outcome(is_binary: bool, code: int) -> None:
    fake = FakeMember(is_binary=is_binary, script=deque([appended_but(code)]))
    with connected(fake) as client:
        with pytest.raises(
            UnknownOutcomeError, match=f"{code}.*look for it in the log before you send it again"
        ) as caught:
            client.append(b"x")
        assert client.append(b"y").index == 1
    assert caught.value.code == code
    assert fake.log.bodies == [b"x", b"y"]


@BOTH
def test_append_without_response_in_time_is_unknown(is_binary: bool) -> None:
    fake = FakeMember(is_binary=is_binary, script=deque([SILENT]))
    with connected(fake, timeout_ms=500) as client:
        started = time.monotonic()
        with pytest.raises(UnknownOutcomeError, match="no response in 500 ms") as caught:
            client.append(b"x")
        assert 0.5 <= time.monotonic() - started < 10
        assert caught.value.code == ResponseCode.NETWORK_ERROR
        assert client.append(b"y").index == 1
    assert fake.log.bodies == [b"x", b"y"]


@pytest.mark.slow
@BOTH
def test_responses_received_while_the_process_was_stopped_count(is_binary: bool) -> None:
    fake = FakeMember(is_binary=is_binary, script=deque([ACK, Act(delay=0.2)]))

    def response(_: Request) -> GetResponse:
        time.sleep(0.2)
        return GetResponse(group="g", entries=[fake.log.get(0)])

    fake.responses[GetRequest] = response
    with connected(fake, timeout_ms=600) as client:
        client.append(b"x")
        # The process is stopped from the request until long after its deadline.
        future = client.submit(b"y")
        eventually(lambda: len(fake.appends) == 2)
        client._loop.call_soon_threadsafe(time.sleep, 1.0)
        assert future.result().index == 1
        threading.Timer(0.05, client._loop.call_soon_threadsafe, (time.sleep, 1.0)).start()
        assert client.get(0).body == b"x"
    assert len(fake.connections) == 1


@pytest.mark.parametrize("act", [Act(count_off=1), Act(index_off=-5)])
def test_response_with_another_count_or_without_an_index_is_unknown(act: Act) -> None:
    fake = FakeMember(script=deque([act]))
    with (
        connected(fake) as client,
        pytest.raises(UnknownOutcomeError, match="for another number of entries"),
    ):
        client.append(b"x")


@pytest.mark.slow
def test_slow_but_steady_responses_do_not_time_out() -> None:
    fake = FakeMember(script=deque([Act(delay=0.15)] * 8))
    with connected(fake, timeout_ms=600) as client:
        # All are sent at once; the response to the last comes after more than the timeout.
        assert len(client.append_batch(batch_of(8))) == 16


@pytest.mark.parametrize(
    "act",
    [DISCONNECTED, APPENDED_AND_DISCONNECTED, appended_but(502), SILENT],
    ids=["disconnected", "appended", "502", "silent"],
)
def test_partial_append_error_lists_all_outcomes(act: Act) -> None:
    fake = FakeMember(script=deque([ACK, ACK, act, reject(NOT_LEADER)]))
    bodies = batch_of(40)
    with connected(fake, timeout_ms=500) as client, pytest.raises(PartialAppendError) as caught:
        client.append_batch(bodies)
    error = caught.value
    count = len(error.acknowledged)
    # With a lost connection, acknowledgements that were not read yet may be lost.
    assert count == 4 or (act in (DISCONNECTED, APPENDED_AND_DISCONNECTED) and count in (0, 2))
    assert isinstance(error, UnknownOutcomeError) and str(error).startswith(f"of 80 entries {count} were appended, ")
    assert [found.index for found in error.acknowledged] == list(range(count))
    unknown = [number for numbers in error.unknown for number in numbers]
    not_appended = [number for numbers in error.not_appended for number in numbers]
    assert count in unknown and not_appended and not_appended[-1] == 79
    assert sorted([*range(count), *unknown, *not_appended]) == list(range(80))
    # Entries reported as not appended are not in the log.
    assert not {bodies[number] for number in not_appended} & set(fake.log.bodies)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.unknown) == (str(error), error.code, error.unknown)
    assert list(again.acknowledged) == list(error.acknowledged)


ACTS = [
    *(ACK, ACK, ACK, DISCONNECTED, APPENDED_AND_DISCONNECTED, appended_but(501), appended_but(502), Act(delay=0.005)),
    *(reject(NOT_LEADER), reject(NOT_LEADER, "n1"), reject(PENDING_FULL), reject(ResponseCode.LEADER_TRANSFERRING)),
    reject(ResponseCode.UNEXPECTED_ARGUMENT),
]


@pytest.mark.parametrize("seed", mostly_slow(range(20), 5, suite=8))
def test_outcomes_are_true_for_random_responses(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged entries are in the log once, at their index; rejected ones are not; unknown ones at most once."""
    monkeypatch.setattr(appender, "_MIN_PAUSE", 0.001)
    monkeypatch.setattr(appender, "_MAX_PAUSE", 0.004)
    monkeypatch.setattr(appender, "_MAX_TOGETHER", 5)
    monkeypatch.setattr(request_units, "UNIT_BYTES", 2000)
    rng = random.Random(seed)
    members = [FakeMember(f"n{number}", f"n{number}", is_binary=rng.random() < 0.7) for number in range(2)]
    for member in members:
        member.script = deque(rng.choices(ACTS, k=rng.randrange(40)))
    # In the order of the calls: the index, UNKNOWN or NOT_APPENDED.
    outcomes: dict[bytes, object] = {}
    with connected(*members, max_retries=3) as client:
        futures: dict[bytes, Future[Appended]] = {}
        for turn in range(30):
            for number in range(rng.randrange(20)):
                body = b"s%d-%d" % (turn, number)
                outcomes[body] = futures[body] = client.submit(body)
            sizes = rng.choices(range(300), k=rng.randrange(1, 40))
            outcomes |= batch_outcomes(client, [b"b%d-%d" % (turn, n) + bytes(size) for n, size in enumerate(sizes)])
        wait(futures.values())
    outcomes |= {body: outcome_of(future) for body, future in futures.items()}
    log = members[0].log.bodies
    assert set(log) <= set(outcomes) and len(log) == len(set(log))
    assert not [body for body, outcome in outcomes.items() if outcome is NOT_APPENDED and body in log]
    known = {body: outcome for body, outcome in outcomes.items() if isinstance(outcome, int)}
    assert all(log[index] == body for body, index in known.items())
    if all(member.is_binary for member in members):
        assert list(known.values()) == sorted(known.values())
