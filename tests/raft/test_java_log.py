"""What the responses of Java members prove to be committed, with members that answer votes as Java does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError
from pyspark_dledger.raft.client import Client, java_log
from pyspark_dledger.raft.messages import GetRequest, GetResponse, Request, Response, VoteRequest, VoteResponse
from pyspark_dledger.raft.messages import VoteResult as Vote
from pyspark_dledger.store.dledger_store import Entry
from tests.support.fake_members import HOST, FakeMember


@pytest.fixture(autouse=True)
def _always_proves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_log, "_PROOF_SECONDS", 0.0)


class JavaMember:
    """A member in `term` with entries of the given terms, from index `begin` on."""

    def __init__(self, number: int, term: int, terms: list[int], begin: int = 0) -> None:
        self.term, self.terms, self.begin = term, terms, begin
        self.votes: list[VoteRequest] = []
        self.fake = FakeMember(f"n{number}", is_binary=False)
        self.fake.responses = {VoteRequest: self._vote, GetRequest: self._get}

    def _vote(self, request: Request) -> Response:
        """Compares as ``DLedgerLeaderElector.handleVote`` of 0.2.0 to 0.4.0."""
        assert isinstance(request, VoteRequest)
        assert request.leader_id in self.fake.peers and request.leader_id != self.fake.node_id
        self.votes.append(request)
        last = (self.terms or [-1])[-1]
        result = Vote.ACCEPT
        if request.ledger_end_term < last:
            result = Vote.REJECT_EXPIRED_LEDGER_TERM
        elif request.ledger_end_term == last and request.ledger_end_index < len(self.terms) - 1:
            result = Vote.REJECT_SMALL_LEDGER_END_INDEX
        elif request.term < self.term:
            result = Vote.REJECT_EXPIRED_VOTE_TERM
        return VoteResponse(group="g", term=self.term, vote_result=result)

    def _get(self, request: Request) -> Response:
        assert isinstance(request, GetRequest)
        index = request.begin_index
        if not self.begin <= index < len(self.terms):
            return GetResponse(group="g", code=ResponseCode.INDEX_OUT_OF_RANGE)
        # A file ends after every tenth entry.
        pos = 49 * index + 100 * (index // 10)
        return GetResponse(group="g", entries=[Entry(index, self.terms[index], pos, 1, b"x")])


@contextmanager
def group_of(*members: JavaMember, leader: int = 0, down: int | None = None) -> Iterator[Client]:
    peers = {member.fake.node_id: f"{HOST}:{member.fake.port}" for member in members}
    for member in members:
        member.fake.leader_id, member.fake.peers = f"n{leader}", peers
    if down is not None:
        members[down].fake.close()
    try:
        text = ";".join(f"{node}-{address}" for node, address in peers.items())
        with dl.connect(group="g", peers=text, timeout_ms=500) as client:
            yield client
    finally:
        for member in members:
            member.fake.close()
    assert not any(vote.term >= 0 for member in members for vote in member.votes), "no member grants such a vote"


def committed(*members: JavaMember, **more: int) -> int:
    with group_of(*members, **more) as client:
        return client.java_status().committed_index


def ones(count: int) -> list[int]:
    return [1] * count


@pytest.mark.parametrize(
    ("ends", "expected"), [((100, 70, 30), 69), ((100, 100, 0), 99), ((7, 7, 7), 6), ((3, 2, 1), 1), ((1, 1, 0), 0)]
)
def test_majority_proves_entries_of_the_leaders_term(ends: tuple[int, ...], expected: int) -> None:
    assert committed(*(JavaMember(number, 1, ones(end)) for number, end in enumerate(ends))) == expected


def test_member_that_is_down_does_not_count() -> None:
    assert committed(*(JavaMember(number, 1, ones(9 - number)) for number in range(3)), down=2) == 7
    assert committed(*(JavaMember(number, 1, ones(9 - number)) for number in range(5)), down=1) == 5


def test_member_in_another_term_does_not_count() -> None:
    """What it has may come from a later leader, and prove nothing (Raft, figure 8)."""
    members = [JavaMember(0, 1, ones(9)), JavaMember(1, 2, ones(9)), JavaMember(2, 1, ones(5))]
    assert committed(*members) == 4


def test_entries_of_older_terms_are_proven_by_all_members_only() -> None:
    def members(second: list[int], third_term: int = 3) -> list[JavaMember]:
        return [JavaMember(0, 3, ones(9)), JavaMember(1, 3, second), JavaMember(2, third_term, ones(2))]

    assert committed(*members(ones(7))) == 6
    for wrong in (members([1, 2]), members(ones(7), third_term=2)):
        with pytest.raises(
            GroupError, match=r"nothing proves yet .*: n0 leads in term 3, its last entry is of term 1, "
        ):
            committed(*wrong)
    with pytest.raises(GroupError, match="and n2 did not confirm it: append an entry, or start all members"):
        committed(*members(ones(7)), down=2)


def test_proof_stays_valid_under_a_new_leader() -> None:
    members = [JavaMember(number, 1, ones(9)) for number in range(3)]
    with group_of(*members) as client:
        assert client.java_status().committed_index == 8
        for member in members:
            member.term, member.terms = 2, ones(12)
        members[2].term = 3
        assert client.java_status().committed_index == 8
        members[0].terms = members[1].terms = [*ones(12), 2]
        assert client.java_status().committed_index == 12
        members[0].term = 1
        with pytest.raises(GroupError, match="n0 leads in an old term"):
            client.java_status()


def test_proof_is_not_searched_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_log, "_PROOF_SECONDS", 60.0)
    members = [JavaMember(number, 1, ones(9)) for number in range(3)]
    with group_of(*members) as client:
        client.java_status()
        asked = len(members[1].votes)
        assert client.java_status().committed_index == 8
        assert client.read_java(9).count == 0
        assert len(members[1].votes) == asked


def test_empty_log_of_a_leader_proves_that_nothing_is_committed() -> None:
    assert committed(*(JavaMember(number, 1, []) for number in range(3)), down=1) == -1


def test_entries_are_read_up_to_the_proof_and_the_end_of_a_file() -> None:
    members = [JavaMember(0, 1, ones(20), begin=3), JavaMember(1, 1, ones(15)), JavaMember(2, 1, [])]
    with group_of(*members) as client:
        found = client.read_java(3, max_bytes=1)
        assert (found.count, found.committed_index) == (1, 14)
        assert [entry.index for entry in client.read_java(3).entries()] == list(range(3, 10))
        assert [entry.index for entry in client.read_java(10).entries()] == list(range(10, 15))
        assert client.read_java(15).count == 0
        assert client.java_status().begin_index == 3
        with pytest.raises(IndexRangeError, match="index 2 has expired at n0"):
            client.read_java(2)


def test_groups_that_prove_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match=r"it has one member.*: tail the store .* with load\(path\)"):
        committed(JavaMember(0, 1, ones(3)))

    class OldMember(JavaMember):
        """0.1 compares terms first."""

        def _vote(self, request: Request) -> Response:
            return VoteResponse(group="g", term=self.term, vote_result=Vote.REJECT_EXPIRED_VOTE_TERM)

    with pytest.raises(OptionError, match=r"do not show the ends of logs, as those of DLedger 0\.1"):
        committed(*(OldMember(number, 1, ones(3)) for number in range(3)))


@pytest.mark.parametrize("found", [Entry(1, 1, 0, 1, b""), Entry(0, 1, -1, 1, b"")])
def test_impossible_entries_are_an_error(found: Entry) -> None:
    members = [JavaMember(number, 1, ones(3)) for number in range(3)]
    members[0].fake.responses[GetRequest] = lambda _: GetResponse(group="g", entries=[found])
    with group_of(*members) as client, pytest.raises(GroupError, match="expected responses of a Java member, found"):
        client.read_java(0)


def test_a_log_without_an_end_is_an_error() -> None:
    """The search for its end would double the index for ever."""

    def endless(request: Request) -> Response:
        assert isinstance(request, VoteRequest)
        is_before = request.ledger_end_term < 1
        result = Vote.REJECT_EXPIRED_LEDGER_TERM if is_before else Vote.REJECT_SMALL_LEDGER_END_INDEX
        return VoteResponse(group="g", term=1, vote_result=result)

    members = [JavaMember(number, 1, ones(3)) for number in range(3)]
    members[0].fake.responses[VoteRequest] = endless
    with group_of(*members) as client, pytest.raises(GroupError, match="found a log of more than"):
        client.java_status()
