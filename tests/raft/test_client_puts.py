"""Messages that a client puts: without duplicates, and only to leaders that serve messages."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, OptionError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.entry_encoding import pack_bodies
from pyspark_dledger.raft.client import PartialAppendError, Put, PutResult, appender, request_units
from pyspark_dledger.raft.messages import (
    ConfigRequest,
    ConfigResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    TopicsRequest,
)
from pyspark_dledger.raft.wire import SYSTEM_BUSY, SYSTEM_ERROR, Rejection
from tests.support.clients import batch_of, connected
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

UNSUPPORTED, DISK_FULL = ResponseCode.UNSUPPORTED, ResponseCode.DISK_FULL


def serving(**options: Any) -> FakeMember:
    """A member that serves messages; equal bodies are the same message."""
    return FakeMember(serves_messages=True, **options)


def messages_of(number: int) -> list[bytes]:
    return [b"message %d" % each for each in range(number)]


@pytest.mark.parametrize("form", [list, tuple, pack_bodies, iter])
def test_put(form: Callable[[list[bytes]], Any]) -> None:
    fake = serving()
    bodies = messages_of(200)
    with connected(fake) as client:
        result = client.put_messages(form(bodies), queue_nums=8)
        again = client.put_messages([bodies[7], b"new", bodies[3]])
    assert fake.log.bodies == [*bodies, b"new"]
    assert (len(result), result.count, result.first_index, result.last_index) == (200, 200, 0, 199)
    assert list(result) == [Put(index, fake.log.get(index).pos, index % 100) for index in range(200)]
    assert [put.index for put in again] == [7, 200, 3]
    assert (again.first_index, again.last_index) == (3, 200)
    assert len(result.positions) == 200 * 24
    assert [seen.queue_nums for seen in fake.appends] == [8, 4]


def test_large_put_is_several_requests_in_order() -> None:
    fake = serving()
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(12))]
    with connected(fake) as client:
        result = client.put_messages(bodies)
        client.append(b"raw")
    assert fake.log.bodies == [*bodies, b"raw"]
    assert [put.index for put in result] == list(range(24))
    assert [seen.is_restart for seen in fake.appends] == [True] + [False] * 12


def test_empty_put_result() -> None:
    assert (PutResult([]).first_index, PutResult([]).last_index, len(PutResult([])), list(PutResult([]))) == (
        *(-1, -1, 0),
        [],
    )


@pytest.mark.parametrize(
    ("bodies", "queue_nums", "error"),
    [
        ([], 4, ValueError),
        ([1], 4, TypeError),
        ([bytes(request_units.MAX_BODY_SIZE + 1)], 4, ValueError),
        (Bodies(2, b""), 4, ValueError),
        ([b"x"], 0, OptionError),
        ([b"x"], "4", OptionError),
    ],
)
def test_invalid_puts_are_rejected_before_anything_is_sent(bodies: Any, queue_nums: Any, error: type) -> None:
    fake = serving()
    with connected(fake) as client, pytest.raises(error):
        client.put_messages(bodies, queue_nums)
    assert not fake.appends


def test_topics() -> None:
    requests: list[TopicsRequest] = []
    fake = serving()
    with connected(fake) as client:
        topics = client.topics(["a", "%RETRY%g"], 8)
        assert topics.queue_counts == {"a": 8, "%RETRY%g": 8}
        assert topics.store_host == bytes(range(8))
        assert client.topics([]).queue_counts == {}
        with pytest.raises(TypeError, match="expected a sequence of texts, found 'a'"):
            client.topics("a")
        with pytest.raises(OptionError, match="queue_nums"):
            client.topics(["a"], 0)

        def not_ready(request: Request) -> Any:
            assert isinstance(request, TopicsRequest)
            requests.append(request)
            if len(requests) == 2:
                fake.responses.clear()
            return rejection(TopicsRequest, ResponseCode.LEADER_NOT_READY)

        fake.responses[TopicsRequest] = not_ready
        assert client.topics(["b"]).queue_counts == {"b": 4}
        fake.responses[TopicsRequest] = lambda _: rejection(TopicsRequest, 411, "expected a topic, found 'b b'")
        with pytest.raises(GroupError, match=r"UNEXPECTED_ARGUMENT.*: expected a topic, found 'b b'"):
            client.topics(["b b"])
    assert len(requests) == 2


@pytest.mark.parametrize("names", [["x" * 5000], ["\ud800"], ["x"] * 65536], ids=["long", "surrogate", "many"])
def test_unencodable_topics_are_rejected(names: list[str]) -> None:
    with connected(serving(), timeout_ms=30_000) as client:
        started = time.monotonic()
        with pytest.raises(GroupError, match=r"^group g: expected") as caught:
            client.topics(names)
        assert caught.value.code == ResponseCode.UNEXPECTED_ARGUMENT
        assert time.monotonic() - started < 20


def rejection(kind: type[Request], code: int, reason: str | None = None) -> Any:
    return kind.response(group="g", code=code, reason=reason)  # type: ignore[call-arg]


def test_config() -> None:
    fake = serving()
    fake.responses[ConfigRequest] = lambda _: ConfigResponse(group="g", files={"topics.json": b"{}"})
    with connected(fake) as client:
        assert client.config() == {"topics.json": b"{}"}


@pytest.mark.parametrize(
    "act",
    [
        *(
            DISCONNECTED,
            APPENDED_AND_DISCONNECTED,
            SILENT,
            appended_but(501),
            appended_but(502),
            appended_but(414),
            Act(count_off=1),
        ),
        *(reject(404), reject(503), reject(505), reject(506), reject(415)),
        *(Act(rejection=Rejection(SYSTEM_ERROR, "?")), Act(is_appended=False, rejection=Rejection(SYSTEM_BUSY, ""))),
    ],
    ids=str,
)
def test_unacknowledged_messages_are_put_again(act: Act) -> None:
    fake = serving(script=deque([act, ACK, act, act, ACK, ACK, act]))
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(8))]
    with connected(fake, timeout_ms=500, max_retries=5) as client:
        result = client.put_messages(bodies)
    assert sorted(fake.log.bodies) == sorted(bodies)
    assert [fake.log.bodies[put.index] for put in result] == bodies
    assert len(fake.appends) > 8


def test_puts_fail_after_max_retries_without_progress() -> None:
    fake = serving(script=deque([ACK] + [appended_but(502)] * 100))
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(2))]
    with connected(fake, max_retries=3) as client, pytest.raises(PartialAppendError) as caught:
        client.put_messages(bodies)
    error = caught.value
    assert (error.code, error.unknown, error.not_appended) == (502, (range(2, 4),), ())
    assert str(error).startswith("of 4 messages 2 were appended, 2 have an unknown outcome, and 0 were not appended")
    assert [put.index for put in error.acknowledged] == [0, 1]
    # Sent once with the acknowledged request, then one attempt and three retries.
    assert sum(seen.bodies == bodies[2:] for seen in fake.appends) == 5
    again = pickle.loads(pickle.dumps(error))
    assert list(again.acknowledged) == list(error.acknowledged)
    assert (again.unknown, again.code) == (error.unknown, error.code)


def test_progress_resets_the_attempts_of_puts() -> None:
    # One request is acknowledged in each round, and there are many more rounds than retries.
    fake = serving(script=deque([ACK, DISCONNECTED] * 12))
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(14))]
    with connected(fake, max_retries=2) as client:
        client.put_messages(bodies)
    assert sorted(fake.log.bodies) == sorted(bodies)


def test_messages_without_identity_are_not_put_again() -> None:
    fake = serving(script=deque([APPENDED_AND_DISCONNECTED]))
    with connected(fake) as client:
        with pytest.raises(PartialAppendError) as caught:
            client.put_messages([b"anonymous"], is_idempotent=False)
        assert caught.value.unknown == (range(1),)
        # Temporary rejections are still retried.
        fake.script.append(reject(503))
        assert client.put_messages([b"anonymous"], is_idempotent=False).first_index == 1
    assert fake.log.bodies == [b"anonymous"] * 2


def test_wrong_is_idempotent_may_duplicate_messages() -> None:
    """The documentation warns of it."""
    fake = serving(script=deque([APPENDED_AND_DISCONNECTED]))
    with connected(fake) as client:
        client.put_messages([b"anonymous"])
    assert fake.log.bodies == [b"anonymous"] * 2


def test_permanently_rejected_put_has_the_reason() -> None:
    fake = serving(script=deque([reject(ResponseCode.UNEXPECTED_ARGUMENT)]))
    with connected(fake) as client, pytest.raises(GroupError) as caught:
        client.put_messages([b"x"])
    assert caught.value.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert str(caught.value) == (
        "group g: n0 rejected messages with UNEXPECTED_ARGUMENT (411): message 3: expected a topic, found none"
    )


def test_put_rejected_after_an_unknown_outcome_stays_unknown() -> None:
    """The first attempt may have appended it."""
    fake = serving(script=deque([appended_but(502), reject(ResponseCode.UNEXPECTED_ARGUMENT)]))
    with connected(fake) as client, pytest.raises(PartialAppendError) as caught:
        client.put_messages([b"x"])
    assert caught.value.unknown == (range(1),)
    assert "WAIT_QUORUM_ACK_TIMEOUT (502)" in str(caught.value) and "UNEXPECTED_ARGUMENT (411)" in str(caught.value)
    assert caught.value.code == ResponseCode.UNEXPECTED_ARGUMENT


def test_close_fails_puts_as_unknown() -> None:
    fake = serving(script=deque([Act(code=None)] * 100))
    errors: list[Exception] = []

    def put() -> None:
        try:
            client.put_messages([b"x"])
        except (GroupError, UnknownOutcomeError) as error:
            errors.append(error)

    with connected(fake, timeout_ms=300) as client:
        thread = threading.Thread(target=put)
        thread.start()
        eventually(lambda: fake.appends)
        client.close()
        thread.join(10)
    assert [type(error) for error in errors] == [PartialAppendError]


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "java"])
def test_leader_that_serves_no_messages_gets_none(is_binary: bool) -> None:
    fake = FakeMember(is_binary=is_binary)
    with connected(fake, timeout_ms=30_000) as client:
        for call in (
            lambda: client.put_messages([b"x"]),
            lambda: client.put_messages(batch_of(20), is_idempotent=False),
            lambda: client.topics(["x"]),
        ):
            started = time.monotonic()
            with pytest.raises(GroupError, match="or write with a RocketMQ producer where brokers lead") as caught:
                call()
            assert caught.value.code == UNSUPPORTED
            assert not isinstance(caught.value, UnknownOutcomeError)
            assert time.monotonic() - started < 20
        assert fake.log.bodies == []
        if not is_binary:
            assert not fake.appends
        assert client.append(b"raw").index == 0


def test_node_without_the_put_request_serves_no_messages() -> None:
    unknown = Rejection(3, "request code 58004 is not supported")
    fake = serving(script=deque([Act(is_appended=False, rejection=unknown)]))
    with connected(fake) as client, pytest.raises(GroupError, match="RocketMQ producer") as caught:
        client.put_messages([b"x"])
    assert caught.value.code == UNSUPPORTED


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "java"])
def test_put_fails_if_the_next_leader_serves_no_messages(is_binary: bool) -> None:
    first = serving(script=deque([ACK, ACK, reject(404, "n1")]))
    second = FakeMember("n1", "n1", is_binary=is_binary)
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(20))]

    def leader_response(_: Request) -> MetadataResponse:
        leader = "n0" if first.script else "n1"
        return MetadataResponse(group="g", leader_id=leader, peers=first.peers)

    first.responses[MetadataRequest] = second.responses[MetadataRequest] = leader_response
    with connected(first, second) as client, pytest.raises(PartialAppendError, match="RocketMQ producer") as caught:
        client.put_messages(bodies)
    error = caught.value
    assert error.code == UNSUPPORTED
    assert isinstance(error.acknowledged, PutResult)
    assert [put.index for put in error.acknowledged] == [0, 1, 2, 3]
    assert (error.unknown, error.not_appended) == ((), (range(4, 40),))
    assert first.log.bodies == bodies[:4]


def test_put_continues_on_the_next_leader() -> None:
    first = serving(script=deque([ACK, ACK, APPENDED_AND_DISCONNECTED]))
    second = serving(node_id="n1", leader_id="n1")
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(20))]

    def leader_response(_: Request) -> MetadataResponse:
        leader = "n0" if first.script else "n1"
        return MetadataResponse(group="g", leader_id=leader, peers=first.peers)

    first.responses[MetadataRequest] = second.responses[MetadataRequest] = leader_response
    with connected(first, second) as client:
        result = client.put_messages(bodies)
    assert sorted(first.log.bodies) == sorted(bodies)
    assert [first.log.bodies[put.index] for put in result] == bodies


ACTS = [
    *(ACK, ACK, ACK, DISCONNECTED, APPENDED_AND_DISCONNECTED, appended_but(501), appended_but(502), Act(delay=0.005)),
    *(reject(404), reject(404, "n1"), reject(503), reject(505), reject(506), appended_but(414)),
]


@pytest.mark.parametrize("seed", mostly_slow(range(10), 3))
def test_messages_are_appended_once_for_random_responses(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MIN_PAUSE", 0.001)
    monkeypatch.setattr(appender, "_MAX_PAUSE", 0.004)
    monkeypatch.setattr(request_units, "UNIT_BYTES", 2000)
    rng = random.Random(seed)
    members = [serving(node_id=f"n{number}", leader_id=f"n{number}") for number in range(2)]
    for member in members:
        member.script = deque(rng.choices(ACTS, k=rng.randrange(60)))
    made: list[bytes] = []
    raw: list[bytes] = []
    with connected(*members, max_retries=60) as client:
        for turn in range(15):
            new = [b"%d-%d " % (turn, n) + bytes(rng.randrange(300)) for n in range(rng.randrange(1, 40))]
            chosen = new + rng.sample(made, min(len(made), 3))
            result = client.put_messages(chosen)
            assert [members[0].log.bodies[put.index] for put in result] == chosen
            made += new
            try:
                raw.append(b"raw %d" % turn)
                client.append(raw[-1])
            except UnknownOutcomeError:
                pass
    log = members[0].log.bodies
    assert sorted(body for body in log if body not in raw) == sorted(made)
