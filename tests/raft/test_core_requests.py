"""The core and invalid requests, responses and settings."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core import CoreConfig
from pyspark_dledger.raft.messages import (
    AppendRequest,
    ConfigRequest,
    GetRequest,
    HeartBeatRequest,
    MetadataRequest,
    ProducerRequest,
    PushRequest,
    PushResponse,
    PushType,
    PutRequest,
    ReadRequest,
    Request,
    Response,
    StatusRequest,
    TopicsRequest,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.support.one_core import SIZE, OneCore, entry, filled


def test_requests_to_another_member_or_group_are_rejected() -> None:
    core = OneCore()
    for request in (VoteRequest(), MetadataRequest(), PushRequest(), Request(), StatusRequest()):
        response = core.request(request, remote="n1")
        assert response is not None and response.code == ResponseCode.UNKNOWN_MEMBER
        response = core.request(request, group="h")
        assert response is not None and response.code == ResponseCode.UNKNOWN_GROUP
    for request in (Request(), ReadRequest()):
        response = core.request(request)
        assert response is not None and response.code == ResponseCode.UNSUPPORTED


def test_leaders_that_are_no_other_member_are_rejected() -> None:
    core = OneCore()
    for leader, code in ((None, 401), ("n9", 401), ("n0", 402)):
        request = PushRequest(leader_id=leader, term=5, type=PushType.COMMIT)
        response = core.request(request)
        assert response is not None and response.code == code
    assert core.core.term == 0


def test_handle_returns_false_for_rejected_appends_only() -> None:
    core = OneCore()
    request = AppendRequest(group="g", remote_id="n0", bodies=Bodies(1, bytes(4)))
    assert not core.core.handle(request, 1, 0)
    assert not core.core.handle(AppendRequest(group="h", remote_id="n0"), 1, 0)
    assert core.core.handle(GetRequest(group="g", remote_id="n0"), 1, 0)
    core.lead()
    assert core.core.handle(request, 1, core.now)


@pytest.mark.parametrize(
    "options",
    [
        {"peers": ("n1",)},
        {"peers": ("n0", "n0")},
        {"min_vote_interval_ms": 1000},
        {"max_push_bytes": 0},
        {"max_take_leadership_vote_interval_ms": 30},
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        CoreConfig(**{"group": "g", "self_id": "n0", "peers": ("n0",), **options})


def hostile(random: Random) -> Request:
    """A random request: valid and invalid fields, entries and parts of entries."""
    number = lambda: random.choice([-(2**63), -2, -1, 0, 1, 2, 3, 5, 9, 2**62, 2**63 - 1])  # noqa: E731
    node = lambda: random.choice([None, "", "n0", "n1", "n2", "n9"])  # noqa: E731
    index = random.randrange(6)
    data = b"".join(entry(index + at, random.randrange(4)) for at in range(random.randrange(4)))
    data = data[: random.choice([len(data), len(data), len(data), random.randrange(200)])]
    leader = random.choice(["n1", "n1", "n2", node()])
    term = random.choice([3, 3, 3, number()])
    base: dict[str, Any] = {"leader_id": leader, "term": term}
    kind = random.randrange(11)
    if kind == 0:
        return VoteRequest(**base, ledger_end_index=number(), ledger_end_term=number())
    if kind == 1:
        return HeartBeatRequest(**base)
    if kind == 2:
        return TransferRequest(**base, transfer_id=node(), transferee_id=node(), take_leadership_ledger_index=number())
    if kind == 3:
        return GetRequest(begin_index=number(), is_committed=random.random() < 0.5)
    if kind == 4:
        return AppendRequest(bodies=Bodies(random.randrange(-1, 3), random.randbytes(random.randrange(12))))
    if kind == 8:
        return PutRequest(bodies=Bodies(random.randrange(-1, 3), random.randbytes(random.randrange(12))))
    if kind == 9:
        return random.choice([TopicsRequest(names=("x",)), ProducerRequest(from_index=number()), ConfigRequest()])
    count = random.choice([len(data) // SIZE, number()])
    first = random.choice([index, index, number()])
    return PushRequest(
        **base, type=random.choice(list(PushType)), commit_index=number(), first_index=first, count=count, data=data
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_requests_and_responses_do_not_break_the_core(seed: int) -> None:
    random = Random(seed)
    store = filled(*sorted(random.randrange(3) for _ in range(random.randrange(5))), saved=2)
    core = OneCore(store, is_sync=random.random() < 0.5)
    for _ in range(400):
        core.request(hostile(random))
        if core.sent and random.random() < 0.5:
            send = core.sent.pop(random.randrange(len(core.sent)))
            responses = [
                VoteResponse(vote_result=VoteResult.ACCEPT),
                PushResponse(index=1, end_index=random.randrange(-2, 9)),
            ]
            response = random.choice([None, Response(), *responses])
            if response is not None:
                response.code = random.choice([200, 200, 200, 406, 411, 416, 9])
                response.term = random.choice([core.core.term, -1, 2**63 - 1])
            core.core.handle_response(send.token, response, core.now)
        core.tick(10 * random.randrange(20))
        store.flush()
        core.core.persisted(store.flushed_index, core.now)
        assert store.committed_index <= store.ledger_end_index or store.ledger_end_index == -1
