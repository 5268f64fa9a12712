"""Elections: requesting votes, voting, and following heartbeats (``DLedgerLeaderElector``).

Stricter than Java: a candidate's larger term is adopted and saved at once, and the vote is in the same response. A
request that is rejected for the candidate's log changes nothing. No member leads a term without its own vote. A member
that may have led a term before a restart does not lead it again: it requests votes to learn whether it would win or
whether there is a leader. If it would win, it campaigns in the next term.

A member that lost its disk may have forgotten entries that it helped to commit, and votes, so its vote does not count.
With two voters it counts if the candidate kept its disk: nothing is committed and nobody elected without either.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.state_files import MAX_TERM
from pyspark_dledger.raft.core.cluster_id import ClusterId
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Response,
    Role,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

# The minimum time for responses; as in Java, up to the maximum vote interval is added.
_ROUND_MS = 2000
# The kind of a problem.
_EMPTY_DISK = "empty disk"


@dataclass(slots=True)
class _VoteRound:
    """The responses to one round of vote requests, including this member's own vote."""

    term: int
    deadline: int
    responses: int = 0
    valid: int = 0
    accepted: int = 0
    not_ready: int = 0
    newer_logs: int = 0
    has_leader: bool = False
    has_lost_log: bool = False


class Election:
    """Campaigns if there is no leader, and votes for candidates."""

    def __init__(self, member: Member, cluster_id: ClusterId) -> None:
        self._member = member
        self._cluster_id = cluster_id
        self._round: _VoteRound | None = None
        self._last_heartbeat = member.now
        self._take_leadership_term = -1
        # The log has a term that was not saved, so its vote is unknown: it counts as a vote for this member.
        if member.store.ledger_end_term > member.term:
            member.store.save_term(member.store.ledger_end_term, member.self_id)
            member.term, member.vote = member.store.ledger_end_term, member.self_id
        self._must_raise_term = False
        # It may have led that term and lost entries that others have.
        self._may_have_led = bool(member.others) and member.vote == member.self_id
        max_delay = member.config.min_vote_interval_ms if member.voters else 0
        self._next_vote_at = member.now + self._random(max_delay)
        self._leaderless_since = member.now

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
                self._campaign()

    def is_due(self, now: int) -> bool:
        """Whether `tick` may save a term: it begins a campaign."""
        return self._member.role is Role.CANDIDATE and self._round is None and now >= self._next_vote_at

    def _check_leader(self) -> None:
        member, config = self._member, self._member.config
        if member.now - self._last_heartbeat > config.leak_ms:
            member.become(Role.CANDIDATE, None)
            # All followers lose their leader at the same time, but should not campaign at the same time.
            self._next_vote_at = member.now + self._random(config.min_vote_interval_ms)

    def role_changed(self) -> None:
        member = self._member
        self._round = None
        if member.role is not Role.CANDIDATE:
            member.resolve_problem(_EMPTY_DISK)
            self._leaderless_since = -1
        elif self._leaderless_since < 0:
            self._leaderless_since = member.now
        if member.role is Role.CANDIDATE:
            self._next_vote_at = member.now + self._vote_delay()
            if member.was_transferring:
                # A Java transferee waits for a vote interval before it requests votes.
                self._next_vote_at += 2 * member.config.max_vote_interval_ms
        else:
            self._last_heartbeat = member.now
        if member.term != self._take_leadership_term or member.role is not Role.CANDIDATE:
            self._take_leadership_term = -1
        if member.role is not Role.CANDIDATE or member.vote != member.self_id:
            self._must_raise_term = False
        # A follower with its own vote may have truncated its log for a member that lied.
        self._may_have_led = member.vote == member.self_id and (self._may_have_led or member.role is Role.FOLLOWER)

    def members_changed(self) -> None:
        """Votes of earlier members do not count."""
        if self._round is not None:
            self._round, self._next_vote_at = None, self._member.now + self._vote_delay()

    def _random(self, limit: int) -> int:
        return self._member.random.randrange(limit) if limit > 0 else 0

    def _vote_delay(self) -> int:
        config = self._member.config
        minimum, maximum = config.min_vote_interval_ms, config.max_vote_interval_ms
        if self._take_leadership_term == self._member.term:
            minimum = config.min_take_leadership_vote_interval_ms
            maximum = config.max_take_leadership_vote_interval_ms
        return minimum + self._random(maximum - minimum)

    # Campaigning

    def take_leadership(self) -> bool:
        """Campaign in the next term at once. Returns False if that term cannot be saved."""
        member = self._member
        self._take_leadership_term = member.term + 1
        if self._take_leadership_term > MAX_TERM or not member.adopt(self._take_leadership_term):
            self._take_leadership_term = -1
            return False
        self._next_vote_at = member.now
        return True

    def _campaign(self) -> None:
        """Vote for itself and request votes. The term rises only if the last round showed that it must."""
        member, config = self._member, self._member.config
        if member.members.current.term >= member.term:
            # This term had a leader, whose majority need not overlap with one of the present members.
            self._must_raise_term = True
        needs_vote = self._must_raise_term or member.vote is None
        if not member.can_campaign or self._waits_for_others() or (needs_vote and not self._vote_for_self()):
            self._next_vote_at = member.now + self._vote_delay()
            return
        member.elections += 1
        deadline = member.now + _ROUND_MS + self._random(config.max_vote_interval_ms)
        self._round = votes = _VoteRound(member.term, deadline, responses=1, valid=int(member.is_voter))
        votes.accepted = int(member.is_voter and member.vote == member.self_id)
        for peer in sorted(member.voters):
            member.send(peer, self._request(peer), self._on_vote_response, votes)
        self._check(votes)

    def _waits_for_others(self) -> bool:
        """Whether members that can write should lead. Without any, one that only serves reads is better than none."""
        member = self._member
        if not member.others or not (problem := member.disk.problem(member.now)):
            return False
        is_waiting = member.now - self._leaderless_since < member.config.patience_ms
        if is_waiting:
            member.report(f"{problem}: this member leaves elections to others for a while", "full")
        return is_waiting

    def _vote_for_self(self) -> bool:
        member, is_raised = self._member, self._must_raise_term
        term = member.term + 1 if is_raised else member.term
        if term > MAX_TERM or not member.save_term(term, member.self_id):
            return False
        self._must_raise_term = self._may_have_led = False
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

    def _on_vote_response(self, votes: _VoteRound, response: Response | None) -> None:
        if votes is not self._round:
            return
        votes.responses += 1
        if isinstance(response, VoteResponse):
            self._count(votes, response)
        self._check(votes)

    def _count(self, votes: _VoteRound, response: VoteResponse) -> None:
        result = response.vote_result
        if response.is_without_log and self._member.needs_no_other_log:
            result, votes.has_lost_log = VoteResult.ACCEPT, True
        votes.valid += int(result is not VoteResult.UNKNOWN)
        if result is VoteResult.ACCEPT:
            votes.accepted += int(response.term == votes.term)
        elif result is VoteResult.REJECT_TERM_NOT_READY:
            votes.not_ready += 1
        elif result is VoteResult.REJECT_ALREADY_HAS_LEADER:
            votes.has_leader = True
        elif result in (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX):
            votes.newer_logs += 1

    def _check(self, votes: _VoteRound) -> None:
        """End the round when missing responses cannot change the result."""
        member = self._member
        is_enough = votes.accepted + votes.not_ready >= member.quorum
        if is_enough or votes.has_leader or votes.responses == len(member.voters) + 1:
            self._finish(votes)
        elif votes.valid >= member.quorum:
            # A member that is silent while a quorum responds most likely stays silent.
            votes.deadline = min(votes.deadline, member.now + member.config.min_vote_interval_ms)

    def _finish(self, votes: _VoteRound) -> None:
        """Become leader, or plan the next round and whether the term rises in it (``VoteResponse.ParseResult``)."""
        member, config = self._member, self._member.config
        self._round = None
        self._next_vote_at = member.now + self._vote_delay()
        has_own = member.vote == member.self_id
        if votes.accepted >= member.quorum:
            if has_own and not self._may_have_led:
                member.owes_entry = votes.has_lost_log
                member.become(Role.LEADER, member.self_id)
            else:
                self._must_raise_term, self._next_vote_at = True, member.now
        elif votes.has_leader:
            self._next_vote_at += config.leak_ms
        elif votes.valid < member.quorum:
            pass
        elif votes.valid - votes.newer_logs < member.quorum:
            self._next_vote_at += config.max_vote_interval_ms
        elif votes.accepted + votes.not_ready >= member.quorum and has_own:
            self._next_vote_at = member.now
        else:
            self._must_raise_term = True

    # Voting

    def handle_vote(self, request: VoteRequest, token: object) -> None:
        member = self._member
        if not request.leader_id or not member.members.may_lead(request.leader_id):
            self._respond_vote(request, token, VoteResult.REJECT_UNKNOWN_LEADER)
        elif request.leader_id == member.self_id or request.term > MAX_TERM:
            self._respond_vote(request, token, VoteResult.REJECT_UNEXPECTED_LEADER)
        elif (older_log := self._judge_log(request)) is not None and not self._votes_without_log(request.leader_id):
            self._respond_vote(request, token, older_log)
        elif request.term <= member.term or member.adopt(request.term):
            result, is_without_log = self._judge(request), False
            if result is VoteResult.ACCEPT and not self._can_vote_for(request):
                # To all others but the other one of two as if it did not respond.
                result, is_without_log = VoteResult.UNKNOWN, self._votes_without_log(request.leader_id)
            if (result is VoteResult.ACCEPT or is_without_log) and not self._give_vote(request):
                return
            self._respond_vote(request, token, result, is_without_log)

    def _judge_log(self, request: VoteRequest) -> VoteResult | None:
        """Why the candidate's log is rejected; None if it is not older than this one."""
        end_term, end_index = self._member.log_end
        if request.ledger_end_term < end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == end_term and request.ledger_end_index < end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        return None

    def _judge(self, request: VoteRequest) -> VoteResult:
        """The result for a candidate whose log and term were checked, in Java's order."""
        member = self._member
        end_term, end_index = member.log_end
        if request.term > member.term:
            # Its term was too far above: it has to ask again.
            return VoteResult.REJECT_TERM_NOT_READY
        if request.term < member.term:
            is_below_log = request.term < end_term
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER if is_below_log else VoteResult.REJECT_EXPIRED_VOTE_TERM
        if member.leader_id is not None and member.leader_id != request.leader_id:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if member.vote is not None and member.vote != request.leader_id:
            is_known = member.leader_id is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if is_known else VoteResult.REJECT_ALREADY_VOTED
        is_equal_log = request.ledger_end_term == end_term and request.ledger_end_index == end_index
        if self._take_leadership_term == member.term and is_equal_log:
            return VoteResult.REJECT_TAKING_LEADERSHIP
        return VoteResult.ACCEPT

    def _can_vote_for(self, request: VoteRequest) -> bool:
        """Whether this member has what it helped to commit; with an empty disk it does not know."""
        member = self._member
        has_entries = request.ledger_end_index >= 0
        is_lost = has_entries and member.members.may_have_lost_disk(request.leader_id, request.ledger_end_term)
        if is_lost:
            text = f"{request.leader_id} has entries, but the disk of this member is empty, and may have been lost: it "
            text += "does not vote for a member with entries; start another one that has them"
            member.report_problem(text, _EMPTY_DISK)
        return member.can_vote and not is_lost

    def _votes_without_log(self, candidate: str) -> bool:
        """Whether this member lost its disk, and that member of this package is the only other one.

        Its log does not matter then: an entry that only this member has, since that one lost it, is not committed.
        """
        member = self._member
        is_one_of_two = member.members.takes_controls(candidate) and member.peers == {member.self_id, candidate}
        return is_one_of_two and not member.can_vote

    def _give_vote(self, request: VoteRequest) -> bool:
        """Save the vote. Returns False (no response) if it cannot be saved."""
        member, candidate = self._member, request.leader_id
        assert candidate is not None
        try:
            member.members.voting(candidate, member.term, request.ledger_end_index)
        except DISK_FAILURES as error:
            member.report_problem(f"a vote for {candidate} cannot be saved: {error}")
            return False
        if member.vote is None and not member.save_term(member.term, candidate):
            return False
        # Leave the candidate time to win.
        self._next_vote_at = max(self._next_vote_at, member.now + self._vote_delay())
        return True

    def _respond_vote(
        self, request: VoteRequest, token: object, result: VoteResult, is_without_log: bool = False
    ) -> None:
        response = VoteResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=request.leader_id,
            term=self._member.term,
            vote_result=result,
            is_without_log=is_without_log,
        )
        self._member.reply(token, response)

    # Following

    def handle_heartbeat(self, request: HeartBeatRequest, token: object) -> None:
        code = self._follow(request)
        if code is not None:
            member = self._member
            response = HeartBeatResponse(group=member.group, term=member.term, code=code)
            if code is ResponseCode.SUCCESS and member.leader_id is not None:
                response.cluster_id = self._cluster_id.received(member.leader_id, request.cluster_id)
            member.reply(token, response)

    def _follow(self, request: HeartBeatRequest) -> ResponseCode | None:
        """The code for a leader; None (no response) if its term cannot be saved."""
        member, leader = self._member, request.leader_id
        code = member.leader_error(leader, request.term)
        if code is not None:
            return code
        if request.term > member.term:
            return ResponseCode.TERM_NOT_READY if member.adopt(request.term) else None
        if member.leader_id is None:
            member.become(Role.FOLLOWER, leader)
        elif member.leader_id != leader:
            member.report_problem(
                f"expected heartbeats of term {member.term} from {member.leader_id}, found one from {leader}: two "
                "members lead one term, stop the one of another version"
            )
            return ResponseCode.INCONSISTENT_LEADER
        self._last_heartbeat = member.now
        return ResponseCode.SUCCESS
