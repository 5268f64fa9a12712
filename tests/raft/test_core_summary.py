"""A core whose application needs the summary of another member."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.raft.core import Send
from pyspark_dledger.raft.messages import (
    MembersRequest,
    MembersResponse,
    Response,
    Role,
    SummaryRequest,
    SummaryResponse,
    TransferRequest,
    TransferResponse,
    VoteRequest,
)
from pyspark_dledger.store.memory_store import MemoryStore
from tests.simulation.clients import Client
from tests.simulation.ledger import Ledger, Message
from tests.simulation.scenario import Scenario
from tests.simulation.world import World
from tests.support.one_core import OneCore, problem_of


def late_core(peers: int = 3, binary: tuple[str, ...] = ("n1", "n2")) -> tuple[OneCore, Ledger]:
    """A core whose log begins at entry 5."""
    store = MemoryStore()
    store.reset(5, 500)
    store.append_as_leader([Message((1, 5), 0, 5, b"").body()], 1)
    application = Ledger()
    application.started(store)
    core = OneCore(store, peers=peers, application=application)
    for peer in binary:
        core.core.set_peer_binary(peer, True)
    return core, application


def asked(core: OneCore) -> list[Send]:
    """The requests for summaries since the last call."""
    found = [send for send in core.sent if isinstance(send.request, SummaryRequest)]
    core.sent.clear()
    return found


def respond(core: OneCore, send: Send, response: Response | None) -> None:
    core.core.handle_response(send.token, response, core.now)
    core.drain()


def test_it_does_not_campaign_until_it_has_the_summary() -> None:
    core, application = late_core()
    core.tick(20_000)
    assert core.core.role is Role.CANDIDATE
    assert not any(isinstance(send.request, VoteRequest) for send in core.sent)
    application.complete = 4
    core.tick(2000)
    assert any(isinstance(send.request, VoteRequest) for send in core.sent)


def test_it_takes_over_no_leadership() -> None:
    core, _ = late_core()
    core.follow()
    response = core.request(
        TransferRequest(transfer_id="n1", transferee_id="n0", take_leadership_ledger_index=5, term=3)
    )
    assert isinstance(response, TransferResponse)
    assert response.code == ResponseCode.FALL_BEHIND_TOO_MUCH


def test_it_requests_the_parts_of_its_leaders_summary_in_order() -> None:
    core, application = late_core()
    taken: list[SummaryPart] = []
    application.take_summary = lambda part: taken.append(part) is None  # type: ignore[method-assign]
    core.follow()
    core.tick(10)
    (first,) = asked(core)
    assert (first.peer_id, first.request.begin_index) == ("n1", 5)
    assert (first.request.snapshot, first.request.offset) == (0, 0)
    respond(core, first, SummaryResponse(code=ResponseCode.LEADER_NOT_READY))
    core.tick(200)
    (again,) = asked(core)
    respond(core, again, SummaryResponse(snapshot=9, size=10, data=b"123456"))
    (second,) = asked(core)
    assert (second.request.snapshot, second.request.offset) == (9, 6)
    respond(core, second, SummaryResponse(snapshot=9, offset=6, size=10, data=b"7890"))
    assert [bytes(part.data) for part in taken] == [b"123456", b"7890"]
    core.tick(2000)
    assert not asked(core), "the application has some time to take it over"
    application.complete = 4
    core.tick(20_000)
    assert not asked(core)


@pytest.mark.parametrize(
    "response",
    [
        None,
        SummaryResponse(code=ResponseCode.INDEX_OUT_OF_RANGE),
        SummaryResponse(code=12345),
        SummaryResponse(snapshot=9, offset=1, size=10, data=b"1"),
        SummaryResponse(snapshot=9, size=10),
        SummaryResponse(snapshot=9, size=1, data=b"12"),
        SummaryResponse(snapshot=9, size=2, data=b"{]"),
    ],
    ids=["none", "lacks it", "code", "offset", "empty", "long", "not usable"],
)
def test_after_a_failure_it_asks_the_next_member(response: Response | None) -> None:
    core, application = late_core()
    application.take_summary = lambda _: False  # type: ignore[method-assign]
    core.tick(10)
    (first,) = asked(core)
    respond(core, first, response)
    core.tick(10)
    (second,) = asked(core)
    assert {first.peer_id, second.peer_id} == {"n1", "n2"}
    assert (second.request.snapshot, second.request.offset) == (0, 0)


def test_a_member_that_sends_too_slowly_is_not_asked_further() -> None:
    """One byte for each request would keep others from being asked for days."""
    core, application = late_core()
    application.take_summary = lambda _: True  # type: ignore[method-assign]
    core.tick(10)
    (first,) = sent = asked(core)
    for offset in range(70):
        core.tick(1000)
        respond(core, sent[-1], SummaryResponse(snapshot=9, offset=offset, size=10**6, data=b"1"))
        sent += asked(core)
        if sent[-1].peer_id != first.peer_id:
            break
    assert offset in range(58, 65)
    assert sent[-1].request.offset == 0


def test_the_problem_says_what_each_member_lacks_and_what_to_do() -> None:
    core, application = late_core(peers=4)
    for _ in range(20):
        for send in asked(core):
            lacks = SummaryResponse(code=ResponseCode.INDEX_OUT_OF_RANGE)
            respond(core, send, None if send.peer_id == "n2" else lacks)
        core.tick(500)
    problem = problem_of(core)
    assert "n1 lacks it, too, n2 does not respond, n3 is no connected member of ours" in problem
    assert problem.endswith("If no member has them, restart one with --accept-lost-state")
    application.complete = 4
    core.tick(10)
    assert not problem_of(core)


def test_a_member_without_an_application_sends_none() -> None:
    response = OneCore().request(SummaryRequest())
    assert isinstance(response, SummaryResponse)
    assert response.code == ResponseCode.UNSUPPORTED


def test_a_member_that_has_the_state_sends_it_and_one_that_lacks_it_does_not() -> None:
    core, application = late_core()
    response = core.request(SummaryRequest())
    assert isinstance(response, SummaryResponse)
    assert response.code == ResponseCode.INDEX_OUT_OF_RANGE
    application.complete = 5
    core.request(SummaryRequest())
    response = core.request(SummaryRequest())
    assert isinstance(response, SummaryResponse)
    assert (response.code, response.offset, len(response.data)) == (ResponseCode.SUCCESS, 0, response.size)
    gone = core.request(SummaryRequest(snapshot=77, offset=3))
    assert gone is not None
    assert gone.code == ResponseCode.REPEATED_REQUEST


@pytest.mark.parametrize("holders", [0, 1])
def test_a_leader_removes_itself_when_another_member_has_the_state_too(holders: int) -> None:
    world = World(Scenario(seed=1, putters=1))
    for node in world.nodes:
        node.start()
    assert world.run_until(60_000, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    Client(world, 0).append(leader, 3)
    world.run(5000)
    applications = {node: node.application for node in world.nodes if node.application is not None}
    own = applications.pop(leader)
    own.summary = Mock(side_effect=RejectedError(ResponseCode.DISK_ERROR))  # type: ignore[method-assign]
    for application in list(applications.values())[holders:]:
        application.complete = -2
        assert application.needs_summary

    def removed() -> tuple[int, str]:
        """The last outcome of three requests."""
        found: list[Response] = []
        request = MembersRequest(group="g", remote_id=leader.id, action="remove", member_id=leader.id)
        for _ in range(3):
            world.send_client_request(leader, request, found.append)
            world.run(1000)
        assert isinstance(found[-1], MembersResponse)
        return found[-1].code, found[-1].reason

    if not holders:
        code, reason = removed()
        assert (code, "wait until another member has fetched them" in reason) == (ResponseCode.LEADER_NOT_READY, True)
        del own.summary  # type: ignore[misc]
        world.run(20_000)
    assert removed()[0] != ResponseCode.LEADER_NOT_READY
    assert world.run_until(world.now + 60_000, lambda: world.leader not in (None, leader))
    assert leader.id not in world.checker.members_of(world.leader.store).voters  # type: ignore[union-attr]
