"""Elections: votes asked and given, heartbeats followed (``DLedgerLeaderElector``).

Stricter than Java: a larger term is adopted and saved at once, a vote is given in the same answer, nobody leads a term
without its own vote, and a member that may have led a term before it restarted does not lead that term again: it asks
whether it would win (or whether there is a leader, which it then leaves alone), and stands in the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.member import MOST_TERM, Member
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Response,
    Role,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

# How long a round waits for answers at least; Java adds up to the longest vote interval.
_ROUND_MS = 2000


@dataclass(slots=True)
class _Round:
    """One time of asking for votes: what was answered so far, this member's own vote included."""

    term: int
    deadline: int
    answers: int = 0
    valid: int = 0
    accepted: int = 0
    not_ready: int = 0
    bigger_log: int = 0
    has_leader: bool = False


class Election:
    """Makes a leader where there is none, and votes when others want to lead."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._round: _Round | None = None
        self._last_heartbeat = member.now
        self._taking_term = -1
        # The log tells of a term that was not saved, so the vote in it is unknown: it counts as this member's own.
        if member.store.ledger_end_term > member.term:
            member.store.save_term(member.store.ledger_end_term, member.self_id)
            member.term, member.vote = member.store.ledger_end_term, member.self_id
        self._is_raising = False
        # It may have led that term, and lost what others have of it.
        self._may_have_led = bool(member.others) and member.vote == member.self_id
        spread = member.config.min_vote_interval_ms if member.others else 0
        self._next_vote_at = member.now + self._below(spread)
        member.role_listeners.append(self._role_changed)

    # Time

    def tick(self) -> None:
        member = self._member
        if member.role is Role.FOLLOWER:
            self._check_leader()
        elif member.role is Role.CANDIDATE:
            if self._round is not None:
                if member.now >= self._round.deadline:
                    self._finish(self._round)
            elif member.now >= self._next_vote_at:
                self._stand()

    def _check_leader(self) -> None:
        member, config = self._member, self._member.config
        if member.now - self._last_heartbeat > config.leak_ms:
            member.become(Role.CANDIDATE, None)
            # Followers lose their leader at the same time and should not all stand at the same time.
            self._next_vote_at = member.now + self._below(config.min_vote_interval_ms)

    def _role_changed(self) -> None:
        member = self._member
        self._round = None
        if member.role is Role.CANDIDATE:
            self._next_vote_at = member.now + self._vote_delay()
            if member.was_transferring:
                # The transferee needs a vote interval before it asks for votes, if it is a Java member.
                self._next_vote_at += 2 * member.config.max_vote_interval_ms
        else:
            self._last_heartbeat = member.now
        if member.term != self._taking_term or member.role is not Role.CANDIDATE:
            self._taking_term = -1
        if member.role is not Role.CANDIDATE or member.vote != member.self_id:
            self._is_raising = self._may_have_led = False

    def _below(self, limit: int) -> int:
        return self._member.random.randrange(limit) if limit > 0 else 0

    def _vote_delay(self) -> int:
        config = self._member.config
        least, most = config.min_vote_interval_ms, config.max_vote_interval_ms
        if self._taking_term == self._member.term:
            least = config.min_take_leadership_vote_interval_ms
            most = config.max_take_leadership_vote_interval_ms
        return least + self._below(most - least)

    # Standing

    def take_leadership(self) -> bool:
        """Stand in the next term, now; False where that term cannot be saved."""
        member = self._member
        self._taking_term = member.term + 1
        if self._taking_term > MOST_TERM or not member.adopt(self._taking_term):
            self._taking_term = -1
            return False
        self._next_vote_at = member.now
        return True

    def _stand(self) -> None:
        """Vote for itself and ask the others. The term rises only where the last round showed that it has to."""
        member, config = self._member, self._member.config
        needs_vote = self._is_raising or member.vote is None
        if not member.may_stand or (needs_vote and not self._vote_for_itself()):
            self._next_vote_at = member.now + self._vote_delay()
            return
        deadline = member.now + _ROUND_MS + self._below(config.max_vote_interval_ms)
        self._round = vote_round = _Round(member.term, deadline, answers=1, valid=1)
        vote_round.accepted = int(member.vote == member.self_id)
        for peer in member.others:
            member.send(peer, self._request(peer), self._voted, vote_round)
        self._check(vote_round)

    def _vote_for_itself(self) -> bool:
        member, is_raised = self._member, self._is_raising
        term = member.term + 1 if is_raised else member.term
        if term > MOST_TERM or not member.save_term(term, member.self_id):
            return False
        self._is_raising = self._may_have_led = False
        if is_raised:
            member.become(Role.CANDIDATE, None)
        return True

    def _request(self, peer: str) -> VoteRequest:
        member, store = self._member, self._member.store
        return VoteRequest(
            group=member.group,
            remote_id=peer,
            local_id=member.self_id,
            leader_id=member.self_id,
            term=member.term,
            ledger_end_index=store.ledger_end_index,
            ledger_end_term=store.ledger_end_term,
        )

    def _voted(self, vote_round: _Round, answer: Response | None) -> None:
        if vote_round is not self._round:
            return
        vote_round.answers += 1
        if isinstance(answer, VoteResponse) and answer.vote_result is not VoteResult.UNKNOWN:
            vote_round.valid += 1
            self._count(vote_round, answer)
        self._check(vote_round)

    def _count(self, vote_round: _Round, answer: VoteResponse) -> None:
        result = answer.vote_result
        if result is VoteResult.ACCEPT:
            vote_round.accepted += int(answer.term == vote_round.term)
        elif result is VoteResult.REJECT_TERM_NOT_READY:
            vote_round.not_ready += 1
        elif result is VoteResult.REJECT_ALREADY_HAS_LEADER:
            vote_round.has_leader = True
        elif result in (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX):
            vote_round.bigger_log += 1

    def _check(self, vote_round: _Round) -> None:
        """End the round once what is still missing cannot matter."""
        member = self._member
        is_enough = vote_round.accepted + vote_round.not_ready >= member.quorum
        if is_enough or vote_round.has_leader or vote_round.answers == len(member.peers):
            self._finish(vote_round)
        elif vote_round.valid >= member.quorum:
            # A member that is silent while a quorum answers most likely stays so.
            vote_round.deadline = min(vote_round.deadline, member.now + member.config.min_vote_interval_ms)

    def _finish(self, vote_round: _Round) -> None:
        """Lead, or say when to ask again, and whether in a larger term (``VoteResponse.ParseResult``)."""
        member, config = self._member, self._member.config
        self._round = None
        self._next_vote_at = member.now + self._vote_delay()
        has_own = member.vote == member.self_id
        if vote_round.accepted >= member.quorum:
            if has_own and not self._may_have_led:
                member.become(Role.LEADER, member.self_id)
            else:
                self._is_raising, self._next_vote_at = True, member.now
        elif vote_round.has_leader:
            self._next_vote_at += config.leak_ms
        elif vote_round.valid < member.quorum:
            pass
        elif vote_round.valid - vote_round.bigger_log < member.quorum:
            self._next_vote_at += config.max_vote_interval_ms
        elif vote_round.accepted + vote_round.not_ready >= member.quorum and has_own:
            self._next_vote_at = member.now
        else:
            self._is_raising = True

    # Voting

    def handle_vote(self, request: VoteRequest, token: object) -> None:
        member = self._member
        if request.leader_id not in member.peers:
            self._answer_vote(request, token, VoteResult.REJECT_UNKNOWN_LEADER)
        elif request.leader_id == member.self_id or request.term > MOST_TERM:
            self._answer_vote(request, token, VoteResult.REJECT_UNEXPECTED_LEADER)
        elif request.term <= member.term or member.adopt(request.term):
            result = self._judge(request)
            if result is VoteResult.ACCEPT and not self._give_vote(request.leader_id):
                return
            self._answer_vote(request, token, result)

    def _judge(self, request: VoteRequest) -> VoteResult:
        """What to answer a member that wants to lead, in Java's order, but for the term, which was adopted before."""
        member = self._member
        end_term, end_index = member.log_end
        if request.ledger_end_term < end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == end_term and request.ledger_end_index < end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < member.term:
            is_below_log = request.term < end_term
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER if is_below_log else VoteResult.REJECT_EXPIRED_VOTE_TERM
        if member.leader_id is not None and member.leader_id != request.leader_id:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if member.vote is not None and member.vote != request.leader_id:
            is_known = member.leader_id is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if is_known else VoteResult.REJECT_ALREADY_VOTED
        is_equal_log = request.ledger_end_term == end_term and request.ledger_end_index == end_index
        if self._taking_term == member.term and is_equal_log:
            return VoteResult.REJECT_TAKING_LEADERSHIP
        return VoteResult.ACCEPT

    def _give_vote(self, candidate: str) -> bool:
        """Save the vote; False for no answer, where it cannot be saved."""
        member = self._member
        if member.vote is None and not member.save_term(member.term, candidate):
            return False
        # Whoever got this vote should have the time to win.
        self._next_vote_at = max(self._next_vote_at, member.now + self._vote_delay())
        return True

    def _answer_vote(self, request: VoteRequest, token: object, result: VoteResult) -> None:
        answer = VoteResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=request.leader_id,
            term=self._member.term,
            vote_result=result,
        )
        self._member.reply(token, answer)

    # Following

    def handle_heartbeat(self, request: HeartBeatRequest, token: object) -> None:
        code = self._heard(request)
        if code is not None:
            member = self._member
            self._member.reply(token, HeartBeatResponse(group=member.group, term=member.term, code=code))

    def _heard(self, request: HeartBeatRequest) -> ResponseCode | None:
        """What to answer a leader; None for nothing, where its term cannot be saved."""
        member, leader = self._member, request.leader_id
        code = member.refusal_of(leader, request.term)
        if code is not None:
            return code
        if request.term > member.term:
            return ResponseCode.TERM_NOT_READY if member.adopt(request.term) else None
        if member.leader_id is None:
            member.become(Role.FOLLOWER, leader)
        elif member.leader_id != leader:
            member.problem(
                f"expected heartbeats of term {member.term} from {member.leader_id}, found one of {leader}: "
                "two members lead one term, stop one that is not of this version"
            )
            return ResponseCode.INCONSISTENT_LEADER
        self._last_heartbeat = member.now
        return ResponseCode.SUCCESS
