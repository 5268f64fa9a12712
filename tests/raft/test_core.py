"""The core alone: rules as scripts, and the cases of Java's tests of election and replication.

Each test runs on the simulated network of tests/simulation, without faults except its own. Section comments name the
Java tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    PushRequest,
    PushType,
    Request,
    Response,
    Role,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.simulation.ledger import pack
from tests.simulation.node import SimNode
from tests.simulation.scenario import Scenario
from tests.simulation.script import Script
from tests.simulation.world import Call, World

RULES = sorted((Path(__file__).parent / "rules").glob("*.txt"))
HEADER_SIZE = 48


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_rule(path: Path) -> None:
    Script().run(path.read_text())


class Group:
    """A simulated group whose nodes are started one by one, with a client."""

    def __init__(self, nodes: int, *, is_java: bool = False, is_sync: bool = False, **options: Any) -> None:
        pairs = frozenset((a, b) for b in range(nodes) for a in range(b)) if is_java else frozenset()
        scenario = Scenario(0, nodes=nodes, is_sync=is_sync, tick=10, java_pairs=pairs, options=options)
        self.world = World(scenario)
        self.nodes = self.world.nodes

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.nodes[number].start()

    def elect(self, number: int) -> SimNode:
        """Start all nodes and make one the leader: vote requests of the others are dropped."""
        node = self.nodes[number]
        kept = self.world.filter
        self.world.filter = lambda call: not isinstance(call.request, VoteRequest) or call.source is node
        self.start(*(node.number for node in self.nodes))
        self.until(lambda: self.role(node) is Role.LEADER)
        self.world.filter = kept
        return node

    def lead_alone(self) -> SimNode:
        """Node 0 of two leads; node 1 has voted and is down."""
        leader = self.elect(0)
        self.nodes[1].stop("test", is_orderly=True)
        return leader

    def until(self, is_done: Any, time: int = 20_000) -> None:
        assert self.world.run_until(self.world.now + time, is_done), f"not within {time} ms"

    def role(self, node: SimNode) -> Role | None:
        return node.core.role if node.core is not None else None

    def leaders(self) -> list[SimNode]:
        return [node for node in self.nodes if self.role(node) is Role.LEADER]

    def followers(self) -> list[SimNode]:
        return [node for node in self.nodes if self.role(node) is Role.FOLLOWER]

    def request(self, node: SimNode, request: Request) -> list[Response]:
        """A list that gets the response."""
        responses: list[Response] = []
        self.world.send_client_request(node, request, responses.append)
        return responses

    def response_of(self, node: SimNode, request: Request) -> Any:
        """The response, which must come at once."""
        responses = self.request(node, request)
        self.world.run(0)
        assert len(responses) == 1
        return responses[0]

    def append(self, node: SimNode, *bodies: bytes) -> list[Response]:
        return self.request(node, AppendRequest(group="g", remote_id=node.id, bodies=pack(bodies)))

    def appended(self, node: SimNode, *bodies: bytes) -> AppendResponse:
        """The response to a successful append."""
        responses = self.append(node, *bodies)
        self.until(lambda: responses)
        (response,) = responses
        assert isinstance(response, AppendResponse)
        assert response.code == ResponseCode.SUCCESS
        return response

    def body(self, node: SimNode, index: int) -> bytes:
        response = self.response_of(node, GetRequest(group="g", remote_id=node.id, begin_index=index))
        assert isinstance(response, GetResponse)
        (entry,) = response.entries
        assert entry.index == index
        return entry.body


def span(nodes: Sequence[SimNode]) -> set[tuple[int, int]]:
    return {(node.store.ledger_begin_index, node.store.ledger_end_index) for node in nodes}


# LeaderElectorTest


def test_a_single_node_leads_and_keeps_its_term() -> None:
    group = Group(1)
    group.start(0)
    (node,) = group.nodes
    group.until(lambda: group.role(node) is Role.LEADER, 1000)
    for number in range(10):
        assert group.appended(node, b"Hello").index == number
    term = node.store.curr_term
    node.stop("test", is_orderly=True)
    node.start()
    group.until(lambda: group.role(node) is Role.LEADER, 1000)
    assert node.store.curr_term == term


def test_three_nodes_elect_one() -> None:
    group = Group(3)
    group.start(0, 1, 2)
    group.until(lambda: len(group.leaders()) == 1 and len(group.followers()) == 2)
    (leader,) = group.leaders()
    for _ in range(5):
        group.appended(leader, b"Hello")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_first_candidate_leads(number: int) -> None:
    group = Group(3)
    leader = group.elect(number)
    group.until(lambda: len(group.followers()) == 2)
    assert group.leaders() == [leader]


def test_a_restarted_follower_has_the_same_leader_and_term() -> None:
    group = Group(3)
    leader = group.elect(0)
    term = leader.store.curr_term
    for number in (1, 2):
        follower = group.nodes[number]
        follower.stop("test", is_orderly=True)
        follower.start()
        group.until(lambda node=follower: group.role(node) is Role.FOLLOWER)
        assert group.leaders() == [leader]
        assert {node.store.curr_term for node in group.nodes} == {term}


def test_another_node_leads_when_the_leader_is_gone() -> None:
    group = Group(3)
    leader = group.elect(0)
    group.world.run(1000)
    leader.stop("test", is_orderly=True)
    group.until(lambda: len(group.leaders()) == 1 and len(group.followers()) == 1, 3 * 2000 + 8000)


def test_a_leader_without_followers_is_a_candidate_of_the_same_term() -> None:
    group = Group(3)
    leader = group.elect(0)
    group.world.run(1000)
    term = leader.store.curr_term
    for number in (1, 2):
        group.nodes[number].stop("test", is_orderly=True)
    group.until(lambda: group.role(leader) is Role.CANDIDATE, 4 * 2000)
    assert leader.store.curr_term == term


def test_the_preferred_leader_leads_whenever_it_can() -> None:
    group = Group(3, preferred_leader_ids=("n2",))
    group.start(0, 1, 2)
    preferred = group.nodes[2]
    group.until(lambda: group.leaders() == [preferred] and len(group.followers()) == 2)
    preferred.stop("test", is_orderly=True)
    group.until(lambda: len(group.leaders()) == 1 and len(group.followers()) == 1)
    preferred.start()
    group.until(lambda: group.leaders() == [preferred] and len(group.followers()) == 2)


# VoteRequestTest


def vote(group: Group, node: SimNode, candidate: str, **fields: Any) -> VoteResult:
    request = VoteRequest(group="g", remote_id=node.id, local_id=candidate, leader_id=candidate, **fields)
    response = group.response_of(node, request)
    assert isinstance(response, VoteResponse)
    return response.vote_result


def test_votes() -> None:
    group = Group(2)
    leader = group.elect(0)
    follower = group.nodes[1]
    group.until(lambda: group.role(follower) is Role.FOLLOWER)
    term = leader.store.curr_term
    assert span(group.nodes) == {(-1, -1)}
    assert vote(group, leader, "n2", term=term) is VoteResult.REJECT_UNKNOWN_LEADER
    assert vote(group, follower, leader.id, term=term) is VoteResult.ACCEPT
    assert vote(group, leader, leader.id, term=term) is VoteResult.REJECT_UNEXPECTED_LEADER
    assert vote(group, leader, follower.id, term=term - 1) is VoteResult.REJECT_EXPIRED_VOTE_TERM
    assert vote(group, leader, follower.id, term=term) is VoteResult.REJECT_ALREADY_HAS_LEADER
    group.appended(leader, b"a")
    group.appended(leader, b"b")
    end = {"ledger_end_term": term, "ledger_end_index": 0}
    assert vote(group, follower, leader.id, term=term, **end) is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert vote(group, follower, leader.id, term=term, ledger_end_term=-1) is VoteResult.REJECT_EXPIRED_LEDGER_TERM
    assert {node.store.curr_term for node in group.nodes} == {term}
    assert group.leaders() == [leader]


def test_a_member_does_not_vote_in_a_term_below_its_logs() -> None:
    """The log may have entries of a later term than the saved one; the node first adopts that term."""
    group = Group(3)
    node = group.nodes[0]
    node.store.append_as_leader([b"a"], term=3)
    node.start()
    assert vote(group, node, "n1", term=2, ledger_end_index=0, ledger_end_term=3) is (
        VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    )
    alone = Group(1)
    (node,) = alone.nodes
    node.store.append_as_leader([b"a"], term=1)
    node.start()
    alone.until(lambda: alone.role(node) is Role.LEADER, 3000)
    assert node.store.curr_term == 1


def test_a_vote_is_given_once() -> None:
    group = Group(3)
    group.start(0)
    node = group.nodes[0]
    assert vote(group, node, "n1", term=5) is VoteResult.ACCEPT
    assert vote(group, node, "n2", term=5) is VoteResult.REJECT_ALREADY_VOTED
    assert vote(group, node, "n1", term=5) is VoteResult.ACCEPT
    node.stop("test")
    node.start()
    assert vote(group, node, "n2", term=5) is VoteResult.REJECT_ALREADY_VOTED


# HeartbeatRequestTest


def test_heartbeats() -> None:
    group = Group(3)
    leader = group.elect(0)
    follower = group.nodes[1]
    group.until(lambda: group.role(follower) is Role.FOLLOWER)
    term = leader.store.curr_term

    def beat(node: SimNode, sender: str, of_term: int) -> int:
        request = HeartBeatRequest(group="g", remote_id=node.id, local_id=sender, leader_id=sender, term=of_term)
        return int(group.response_of(node, request).code)

    assert beat(leader, "n3", term) == ResponseCode.UNKNOWN_MEMBER
    assert beat(leader, leader.id, term) == ResponseCode.UNEXPECTED_MEMBER
    assert beat(follower, leader.id, term - 1) == ResponseCode.EXPIRED_TERM
    assert beat(follower, "n2", term) == ResponseCode.INCONSISTENT_LEADER
    assert beat(follower, leader.id, term) == ResponseCode.SUCCESS
    assert beat(follower, leader.id, term + 1) == ResponseCode.TERM_NOT_READY
    assert beat(follower, leader.id, term + 1) == ResponseCode.SUCCESS


# AppendAndPushTest and BatchPushTest: with binary peers, and with Java peers without and with batches

PUSHES = pytest.mark.parametrize(
    "push",
    [{"is_java": False}, {"is_java": True, "enable_batch_push": False}, {"is_java": True, "enable_batch_push": True}],
    ids=["binary", "single", "batch"],
)


@PUSHES
def test_the_committed_index_reaches_followers(push: dict[str, Any]) -> None:
    group = Group(2, **push)
    leader = group.lead_alone()
    responses = [group.append(leader, bytes(256)) for _ in range(10)]
    group.world.run(1000)
    assert not any(responses)
    assert (leader.store.ledger_end_index, leader.store.committed_index) == (9, -1)
    group.start(1)
    group.until(lambda: group.nodes[1].store.committed_index == 9)
    assert leader.store.committed_index == 9
    assert [response.code for (response,) in responses] == [ResponseCode.SUCCESS] * 10


@PUSHES
def test_appends_without_a_quorum_time_out_and_later_ones_are_rejected(push: dict[str, Any]) -> None:
    group = Group(2, max_pending_requests_num=50, **push)
    leader = group.lead_alone()
    responses = [group.append(leader, bytes(128)) for _ in range(10)]
    group.world.run(2500 + 100)
    assert leader.store.ledger_end_index == 9
    assert [response.code for (response,) in responses] == [ResponseCode.WAIT_QUORUM_ACK_TIMEOUT] * 10
    responses = [group.append(leader, bytes(128)) for _ in range(60)]
    group.world.run(0)
    codes = [response.code for some in responses for response in some]
    assert codes == [ResponseCode.LEADER_PENDING_FULL] * len(codes)
    assert len(codes) >= 10
    assert leader.store.ledger_end_index == 69 - len(codes)


@PUSHES
def test_replication_continues_when_a_peer_comes_back(push: dict[str, Any]) -> None:
    group = Group(2, **push)
    leader = group.lead_alone()
    for _ in range(2):
        responses = group.append(leader, bytes(128))
        group.world.run(500)
        assert not responses
        group.start(1)
        group.until(lambda responses=responses: responses, 2000)
        assert responses[0].code == ResponseCode.SUCCESS
        group.nodes[1].stop("test", is_orderly=True)
    assert span(group.nodes) == {(0, 1)}


@PUSHES
def test_replication_succeeds_although_every_third_push_is_lost(push: dict[str, Any]) -> None:
    group = Group(2, **push)
    leader = group.elect(0)
    pushes = 0

    def is_kept(call: Call) -> bool:
        nonlocal pushes
        pushes += isinstance(call.request, PushRequest)
        return not isinstance(call.request, PushRequest) or pushes % 3 != 0

    group.world.filter = is_kept
    for number in range(10):
        assert group.appended(leader, bytes(128)).index == number
    assert span(group.nodes) == {(0, 9)}


@PUSHES
def test_a_new_leader_truncates_entries_that_it_lacks(push: dict[str, Any]) -> None:
    group = Group(2, **push)
    longer, shorter = group.nodes
    for number in range(10):
        longer.store.append_as_leader([b"%d" % number], term=1)
    shorter.store.append_as_follower(longer.store.read(0, 5 * (HEADER_SIZE + 1)).data, 1)
    # The shorter log becomes the newer one, so that its node can lead.
    shorter.store.append_as_leader([b"x"], term=2)
    for node in group.nodes:
        node.store.save_term(2, None)
    group.start(0, 1)
    # Groups without Java members get a NOOP.
    end = 5 if push["is_java"] else 6
    group.until(lambda: group.leaders() == [shorter] and span(group.nodes) == {(0, end)})
    for number in range(10):
        assert group.appended(shorter, bytes(128)).index == end + 1 + number
    group.until(lambda: span(group.nodes) == {(0, end + 10)})


@PUSHES
def test_a_batch_is_appended_and_pushed_as_one_entry_for_each_body(push: dict[str, Any]) -> None:
    group = Group(2, **push)
    leader = group.elect(0)
    response = group.appended(leader, *(bytes(128 * (number + 1)) for number in range(10)))
    assert (response.index, response.pos, response.count) == (0, 0, 10)
    positions = [leader.store.get(index).pos for index in range(10)]
    assert positions == [HEADER_SIZE * i + 128 * i * (i + 1) // 2 for i in range(10)]
    assert span(group.nodes) == {(0, 9)}


def test_pushes_to_java_nodes_have_one_entry_unless_batches_are_enabled() -> None:
    for is_batch in (False, True):
        group = Group(2, is_java=True, enable_batch_push=is_batch)
        sizes: list[int] = []

        def note(call: Call, sizes: list[int] = sizes) -> bool:
            if isinstance(call.request, PushRequest) and call.request.type is PushType.APPEND:
                sizes.append(call.request.count)
            return True

        group.world.filter = note
        leader = group.elect(0)
        group.appended(leader, b"first")
        group.appended(leader, *[b"more"] * 20)
        assert (max(sizes) > 1) is is_batch


# AppendAndGetTest


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
def test_everything_appended_is_read(nodes: int, is_sync: bool) -> None:
    group = Group(nodes, is_sync=is_sync)
    leader = group.elect(0)
    for number in range(10):
        response = group.appended(leader, b"Hello %d" % number)
        assert (response.index, response.pos) == (number, number * (HEADER_SIZE + 7))
    group.until(lambda: span(group.nodes) == {(0, 9)})
    assert [group.body(leader, number) for number in range(10)] == [b"Hello %d" % number for number in range(10)]


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
def test_pipelined_appends_keep_their_order(is_sync: bool) -> None:
    group = Group(3, is_sync=is_sync)
    leader = group.elect(1)
    responses = [group.append(leader, b"Hello %d" % number) for number in range(10)]
    group.until(lambda: span(group.nodes) == {(0, 9)} and all(responses))
    for number, (response,) in enumerate(responses):
        assert isinstance(response, AppendResponse)
        assert (response.code, response.index) == (ResponseCode.SUCCESS, number)
        assert group.body(leader, number) == b"Hello %d" % number
        assert leader.store.get(number).pos == response.pos


# QuotaTest


def test_a_peer_that_lags_far_gets_no_more_than_its_quota() -> None:
    """The quota limits the bytes of each second, for a lag above the throttle point."""
    group = Group(3, peer_push_quota=10_000, peer_push_throttle_point=0, max_push_bytes=2000)
    leader = group.elect(0)
    lagging = group.nodes[2]
    lagging.stop("test", is_orderly=True)
    for _ in range(40):
        group.appended(leader, *[bytes(952)] * 2)
    sent: dict[int, int] = {}

    def note(call: Call) -> bool:
        if call.target is lagging and isinstance(call.request, PushRequest):
            second = leader.clock // 1000
            sent[second] = sent.get(second, 0) + len(call.request.data)
        return True

    group.world.filter = note
    began = group.world.now
    lagging.start()
    group.until(lambda: lagging.store.ledger_end_index == 79, 60_000)
    assert group.world.now - began >= 6000
    # The push that exceeds the limit counts for its second.
    assert max(sent.values()) <= 2 * 10_000
