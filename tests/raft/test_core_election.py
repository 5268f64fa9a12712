"""The core in elections: votes, terms, and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError, StoreError
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


@pytest.mark.parametrize("saved", [4, 0])
def test_a_member_that_may_have_led_a_term_does_not_lead_it_again(saved: int) -> None:
    """Also if the term was lost, and the vote with it."""
    store = filled(1, 4)
    store.save_term(saved, "n0" if saved else None)
    core = OneCore(store)
    core.tick(300)
    vote = core.sent[0].token
    assert requested_terms(core) == [4]
    core.core.handle_response(vote, VoteResponse(vote_result=VoteResult.ACCEPT, term=4), core.now)
    assert core.core.role is Role.CANDIDATE
    core.tick(10)
    assert requested_terms(core) == [5] and (store.curr_term, store.vote_leader) == (5, "n0")


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
