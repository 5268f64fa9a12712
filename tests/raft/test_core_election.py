"""The core in elections: votes, terms, and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.codec import MEMBERS
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    PushRequest,
    PushType,
    Role,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.store.memory_store import MemoryStore
from tests.support.one_core import OneCore, entry, filled, lead_with_equal_peer, problem_of, requested_terms


class FullAfterReset(MemoryStore):
    """A store with a switch for a full disk."""

    is_full = False

    def append_as_follower(self, data: Any, leader_term: int) -> int:
        if self.is_full:
            raise DiskFullError("no room")
        return super().append_as_follower(data, leader_term)


def test_a_member_with_an_emptied_log_does_not_vote_for_a_shorter_one() -> None:
    store = FullAfterReset()
    for term in (1, 1, 2):
        store.append_as_leader([b"0000"], term)
    core = OneCore(store)
    core.follow()
    store.is_full = True
    assert core.reset_code(entry(9, 3)) == ResponseCode.INCONSISTENT_STATE
    assert store.ledger_end_index == -1
    request = VoteRequest(leader_id="n2", term=4, ledger_end_index=1, ledger_end_term=2)
    response = core.request(request)
    assert isinstance(response, VoteResponse) and response.vote_result is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    core.sent.clear()
    core.tick(10_000)
    assert core.sent == []


def check_leads_a_later_term_only(core: OneCore) -> None:
    """A vote for term 4, which the core has asked for, does not make it the leader: it asks for votes of term 5."""
    vote = core.sent[0].token
    assert requested_terms(core) == [4]
    core.core.handle_response(vote, VoteResponse(vote_result=VoteResult.ACCEPT, term=4), core.now)
    assert core.core.role is Role.CANDIDATE
    core.tick(10)
    assert requested_terms(core) == [5]


@pytest.mark.parametrize("saved", [4, 0])
def test_a_member_that_may_have_led_a_term_does_not_lead_it_again(saved: int) -> None:
    """Also if the term was lost, and the vote with it."""
    store = filled(1, 4)
    store.save_term(saved, "n0" if saved else None)
    core = OneCore(store)
    core.tick(300)
    check_leads_a_later_term_only(core)
    assert (store.curr_term, store.vote_leader) == (5, "n0")


def test_a_member_that_may_have_led_follows_a_leader() -> None:
    store = filled(1, 4)
    store.save_term(4, "n0")
    core = OneCore(store)
    core.tick(300)
    response = VoteResponse(vote_result=VoteResult.REJECT_ALREADY_HAS_LEADER, term=4)
    core.core.handle_response(core.sent[0].token, response, core.now)
    core.tick(2000)
    assert requested_terms(core) == [4]
    core.follow(4)
    assert (core.core.term, core.core.leader_id) == (4, "n1")


def test_a_member_that_may_have_led_and_follows_does_not_lead_that_term_later() -> None:
    """A member that lied was its leader, and it may have truncated its log for that one."""
    store = filled(1, 4)
    store.save_term(4, "n0")
    core = OneCore(store)
    core.follow(4)
    core.sent.clear()
    while not core.sent:
        core.tick(10)
    check_leads_a_later_term_only(core)


def test_a_member_that_voted_for_another_does_not_lead_that_term() -> None:
    store = filled(1, 4)
    store.save_term(4, "n2")
    core = OneCore(store)
    core.tick(300)
    for send in list(core.sent):
        core.core.handle_response(send.token, VoteResponse(vote_result=VoteResult.ACCEPT, term=4), core.now)
    assert requested_terms(core) == [4] and core.core.role is Role.CANDIDATE
    core.tick(10)
    assert requested_terms(core) == [5]


def test_one_node_keeps_its_term() -> None:
    store = MemoryStore()
    for _ in range(3):
        core = OneCore(store, peers=1)
        core.tick(10)
        assert (core.core.role, core.core.term) == (Role.LEADER, 0)
        response = core.append(b"a", b"b")
        assert response is not None and response.code == ResponseCode.SUCCESS
    assert core.core.committed_index == 5


def test_a_lost_term_comes_from_the_log_and_its_vote_is_taken() -> None:
    store = filled(1, 7, saved=0)
    core = OneCore(store)
    assert (store.curr_term, core.core.term) == (7, 7)
    request = VoteRequest(leader_id="n1", term=7, ledger_end_index=9, ledger_end_term=7)
    response = core.request(request)
    assert isinstance(response, VoteResponse) and response.vote_result is VoteResult.REJECT_ALREADY_VOTED


@pytest.mark.parametrize("term", [2**62 + 1, 2**63 - 1])
def test_a_term_near_the_overflow_is_not_adopted(term: int) -> None:
    core = OneCore()
    for request in (
        VoteRequest(leader_id="n1", term=term),
        HeartBeatRequest(leader_id="n1", term=term),
        PushRequest(leader_id="n1", term=term, type=PushType.COMMIT),
    ):
        assert core.request(request) is not None
    assert core.core.term == 0


class BrokenTerm(MemoryStore):
    """A store that cannot save terms."""

    def save_term(self, term: int, vote_leader: str | None) -> None:
        raise StoreError("disk broken")


def test_a_member_that_cannot_save_its_term_stays_silent() -> None:
    core = OneCore(BrokenTerm())
    assert core.request(VoteRequest(leader_id="n1", term=1)) is None
    assert core.request(HeartBeatRequest(leader_id="n1", term=1)) is None
    assert core.code(PushType.COMMIT, term=1) == ResponseCode.TERM_NOT_READY
    core.tick(5000)
    assert core.sent == [] and core.core.term == 0
    assert "disk broken" in core.core.problems[0]


def test_a_silent_member_does_not_delay_an_election() -> None:
    core = OneCore()
    core.tick(300)
    vote = next(send for send in core.sent if send.peer_id == "n1")
    core.sent.clear()
    response = VoteResponse(vote_result=VoteResult.REJECT_ALREADY_VOTED, term=0)
    core.core.handle_response(vote.token, response, core.now)
    core.tick(300 + 1000)
    assert core.core.term == 1 and core.sent


def test_a_leader_does_not_compete_with_its_transferee() -> None:
    core = lead_with_equal_peer()
    core.sent.clear()
    core.request(TransferRequest(transfer_id="n0", transferee_id="n1", term=0))
    core.tick(1990)
    assert {send.peer_id for send in core.sent if isinstance(send.request, HeartBeatRequest)} <= {"n2"}
    core.sent.clear()
    core.request(VoteRequest(leader_id="n1", term=1, ledger_end_index=1, ledger_end_term=0))
    assert (core.core.role, core.core.term) == (Role.CANDIDATE, 1)
    core.tick(2000)
    assert core.sent == []
    core.tick(1200)
    assert core.sent


def test_a_restored_member_neither_votes_nor_leads_before_it_has_an_entry_of_its_new_term() -> None:
    store = filled(1, 4, saved=9)
    store.restored_term = 9
    core = OneCore(store)
    core.tick(20_000)
    assert core.sent == [] and "restored from a backup" in problem_of(core)
    newer = VoteRequest(leader_id="n1", term=9, ledger_end_index=2, ledger_end_term=8)
    response = core.request(newer)
    assert isinstance(response, VoteResponse) and response.vote_result is VoteResult.UNKNOWN
    core.follow(10)
    assert core.code(PushType.COMPARE, entry(1, 4), term=10) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(2, 8), term=10) == ResponseCode.SUCCESS
    transfer = TransferRequest(transfer_id="n1", transferee_id="n0", term=10, take_leadership_ledger_index=2)
    rejected = core.request(transfer)
    assert rejected is not None and rejected.code == ResponseCode.FALL_BEHIND_TOO_MUCH
    response = core.request(VoteRequest(leader_id="n2", term=11, ledger_end_index=2, ledger_end_term=8))
    assert isinstance(response, VoteResponse) and response.vote_result is VoteResult.UNKNOWN
    core.follow(12)
    assert core.code(PushType.COMPARE, entry(2, 8), term=12) == ResponseCode.SUCCESS
    core.tick(1000)
    assert "restored from a backup" in problem_of(core)
    assert core.code(PushType.APPEND, entry(3, 12), term=12) == ResponseCode.SUCCESS
    core.tick(10)
    assert problem_of(core) == ""
    response = core.request(VoteRequest(leader_id="n2", term=13, ledger_end_index=3, ledger_end_term=12))
    assert isinstance(response, VoteResponse) and response.vote_result is VoteResult.ACCEPT


def lost_disk(peers: int, *, joins: bool, is_ours: bool = True) -> OneCore:
    """A member that joins with an empty disk, or was restored from a backup, and is connected to n1."""
    store = filled(1, 1, saved=9)
    store.restored_term = 9
    core = OneCore(MemoryStore() if joins else store, peers, joins=joins)
    core.core.set_peer_binary("n1", is_ours, is_ours)
    return core


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize(("peers", "is_ours"), [(2, True), (3, True), (2, False)])
def test_a_member_that_lost_its_disk_says_so_in_its_vote_for_the_other_one_of_two(
    joins: bool, peers: int, is_ours: bool
) -> None:
    core = lost_disk(peers, joins=joins, is_ours=is_ours)
    vote = VoteRequest(leader_id="n1", term=10, ledger_end_index=5, ledger_end_term=8)
    response = core.request(vote)
    assert isinstance(response, VoteResponse) and core.core.term == response.term == 10
    is_given = peers == 2 and is_ours
    assert (response.vote_result, response.is_without_log) == (VoteResult.UNKNOWN, is_given)
    assert core.store.vote_leader == ("n1" if is_given else None)
    core.tick(20_000)
    assert not requested_terms(core)


@pytest.mark.parametrize("peers", [2, 3])
def test_a_member_that_lost_its_disk_does_not_compare_its_log_with_that_of_the_other_one_of_two(peers: int) -> None:
    """The other one lost an entry that it sent: it was not committed, because both must have it on disk."""
    core = lost_disk(peers, joins=True, is_ours=True)
    core.follow(9)
    assert core.code(PushType.TRUNCATE, entry(0, 9), term=9) == 200
    response = core.request(VoteRequest(leader_id="n1", term=10, ledger_end_index=-1, ledger_end_term=-1))
    expected = VoteResult.UNKNOWN if peers == 2 else VoteResult.REJECT_EXPIRED_LEDGER_TERM
    assert isinstance(response, VoteResponse)
    assert (response.vote_result, response.is_without_log) == (expected, peers == 2)


def voted_without_log(core: OneCore) -> Role:
    """The role after a vote of n1, which lost its disk."""
    core.core.set_peer_binary("n1", True, True)
    core.tick(400)
    vote = next(send for send in core.sent if isinstance(send.request, VoteRequest) and send.peer_id == "n1")
    response = VoteResponse(is_without_log=True, term=core.core.term)
    core.core.handle_response(vote.token, response, core.now)
    core.drain()
    return core.core.role


def test_one_of_two_that_kept_its_disk_leads_with_the_vote_of_one_that_did_not() -> None:
    core = OneCore(filled(1, 1, saved=9, committed=1), peers=2)
    assert voted_without_log(core) is Role.LEADER
    core.tick(10)
    # The other one needs an entry of this term before it counts again.
    assert (core.store.ledger_end_index, core.store.ledger_end_term) == (2, core.core.term)


def test_one_of_three_does_not() -> None:
    assert voted_without_log(OneCore(filled(1, 1, saved=9))) is Role.CANDIDATE


@pytest.mark.parametrize(
    ("committed", "voters", "learners"),
    [(1, "n0 n1", ""), (0, "n0 n1", ""), (1, "n0 n1", "n2"), (1, "n0 n1 n2", "")],
    ids=["final", "uncommitted", "with a learner", "of three"],
)
def test_a_list_of_two_voters_must_be_committed_and_final(committed: int, voters: str, learners: str) -> None:
    store = filled(1, saved=9)
    found = MemberList(1, 1, dict.fromkeys(voters.split(), "a:1"), dict.fromkeys(learners.split(), "a:1"))
    store.append_as_leader([found.body()], 1, MEMBERS)
    store.update_committed_index(9, committed)
    is_safe = (committed, voters, learners) == (1, "n0 n1", "")
    assert voted_without_log(OneCore(store, peers=2)) is (Role.LEADER if is_safe else Role.CANDIDATE)


def test_a_member_that_joins_says_so_at_once() -> None:
    """An operator waits until it has no problem."""
    core = OneCore(joins=True)
    assert "this member joins with an empty disk: it does not vote" in problem_of(core)


def with_empty_disk(peers: int = 3, store: MemoryStore | None = None) -> OneCore:
    """A member that was started as always, and has an empty disk: that of a new group, or one that was lost."""
    core = OneCore(store, peers)
    for number in range(1, peers):
        core.core.set_peer_binary(f"n{number}", True, True)
    return core


def vote_of(core: OneCore, leader_id: str, term: int, end_index: int, end_term: int) -> VoteResult:
    request = VoteRequest(leader_id=leader_id, term=term, ledger_end_index=end_index, ledger_end_term=end_term)
    response = core.request(request)
    assert isinstance(response, VoteResponse)
    return response.vote_result


def test_members_of_a_new_group_vote_for_each_other_and_follow_without_joining() -> None:
    core = with_empty_disk()
    assert vote_of(core, "n1", 1, -1, -1) is VoteResult.ACCEPT
    assert core.code(PushType.APPEND, entry(0, 1), term=1) == ResponseCode.SUCCESS
    assert vote_of(core, "n2", 2, 0, 1) is VoteResult.ACCEPT
    assert not core.core.members.is_joining


def test_a_member_whose_disk_was_lost_votes_for_no_candidate_that_has_entries() -> None:
    """It may have helped to commit entries that the candidate lacks."""
    core = with_empty_disk()
    assert vote_of(core, "n1", 2, 3, 1) is VoteResult.UNKNOWN
    assert "n1 has entries, but the disk of this member is empty" in problem_of(core)
    assert vote_of(core, "n2", 2, -1, -1) is VoteResult.ACCEPT, "it has none either: the group may be new"
    assert vote_of(core, "n1", 3, 3, 2) is VoteResult.UNKNOWN
    core.follow(4)
    assert not problem_of(core)


def test_a_member_whose_disk_was_lost_joins_with_entries_of_a_leader_that_it_did_not_elect() -> None:
    core = with_empty_disk()
    core.follow(3)
    assert core.code(PushType.APPEND, entry(0, 1), term=3) == ResponseCode.SUCCESS
    assert vote_of(core, "n2", 4, 5, 2) is VoteResult.UNKNOWN
    core.tick(1000)
    assert "this member joins with an empty disk: it does not vote" in problem_of(core)
    core.tick(20_000)
    assert not requested_terms(core)
    assert OneCore(core.store).core.members.is_joining, "also after a restart"
    core.follow(5)
    assert core.code(PushType.COMPARE, entry(0, 1), term=5) == ResponseCode.SUCCESS
    core.push(PushType.APPEND, entry(1, 5), term=5, commit_index=1)
    core.store.flush()
    core.core.persisted(1, core.now)
    assert vote_of(core, "n2", 6, 1, 5) is VoteResult.ACCEPT


def test_entries_that_cannot_be_appended_do_not_make_a_member_join() -> None:
    core = with_empty_disk()
    core.follow(3)
    assert core.code(PushType.APPEND, entry(0, 1)[:-1], term=3) != ResponseCode.SUCCESS
    assert not core.core.members.is_joining and not OneCore(core.store).core.members.is_joining


def test_a_member_joins_though_its_disk_was_full_while_it_wrote_the_first_entry() -> None:
    """The entry can be in the log after a restart, and would look like all that the member ever had."""
    store = FullAfterReset()
    store.is_full = True
    core = with_empty_disk(store=store)
    core.follow(3)
    assert core.code(PushType.APPEND, entry(0, 1), term=3) == ResponseCode.DISK_FULL
    assert core.core.members.is_joining and OneCore(store).core.members.is_joining


def test_an_empty_member_that_had_wrong_peers_joins_with_the_right_ones() -> None:
    members = OneCore(with_empty_disk().store, 5, joins=True).core.members
    assert members.is_joining and set(members.current.addresses) == {"n0", "n1", "n2", "n3", "n4"}


def test_a_vote_for_the_first_leader_is_known_after_a_restart() -> None:
    """Else nobody would vote for it, if it alone has entries."""
    core = with_empty_disk()
    assert vote_of(core, "n1", 1, -1, -1) is VoteResult.ACCEPT
    again = OneCore(core.store)
    assert vote_of(again, "n1", 2, 0, 1) is VoteResult.ACCEPT
    assert vote_of(again, "n2", 3, 0, 2) is VoteResult.UNKNOWN


def test_one_of_two_need_not_join_because_the_other_one_has_all_that_is_committed() -> None:
    assert vote_of(with_empty_disk(peers=2), "n1", 2, 3, 1) is VoteResult.ACCEPT


class SlowStore(MemoryStore):
    """A store whose flushes take a while; the test ends them."""

    def flush_soon(self) -> None:
        pass


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_member_joins_when_its_entries_are_on_its_disk_also_if_later_ones_are_committed_in_the_meantime(
    is_sync: bool,
) -> None:
    core = OneCore(SlowStore(), joins=True, is_sync=is_sync)
    core.core.set_peer_binary("n1", True, True)
    core.follow(9)
    core.push(PushType.TRUNCATE, entry(0, 9), term=9)
    core.push(PushType.APPEND, entry(1, 9), term=9, commit_index=1)
    assert (core.store.committed_index, core.core.members.is_joining) == (1, True)
    core.store.flush()
    core.push(PushType.APPEND, entry(2, 9), term=9, commit_index=2)
    core.core.persisted(1, core.now)
    assert (core.store.committed_index, core.store.flushed_index) == (2, 1)
    assert not core.core.members.is_joining
