"""A leader's changes of the members: one entry after the other, each of which adds or removes one voter.

A change begins when the list before is committed, and an entry of the leader's own term (Raft dissertation, chapter 4).
A new member is a learner first. The leader makes it a voter when it has caught up, and then removes the member that it
replaces. Any leader continues a change. A leader that removed itself ends its leadership when that is committed.
"""

from __future__ import annotations

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError, OptionError
from pyspark_dledger.format.codec import MEMBERS
from pyspark_dledger.format.encode.encoded import Bodies, RejectedError
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.cluster_id import ClusterId
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.noop import Noop
from pyspark_dledger.raft.core.leader.replication import Replication
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.member_list import MemberList, check_new_member
from pyspark_dledger.raft.messages import (
    ENTRY,
    LIST,
    MembersRequest,
    MembersResponse,
    Response,
    Role,
    SummaryRequest,
    SummaryResponse,
)

_STEP_MS = 100
_REPORT_MS = 60_000
# How long a member that has the state of expired messages is believed to have it, and a pause between questions for it.
_STATE_KNOWN_MS = 5000
_STATE_PAUSE_MS = 500
# A learner that lacks at most so many entries becomes a voter.
_MAX_LAG = 100
# A list has to fit a text of the binary dialect.
_MAX_BYTES = 3000
_KIND = "membership"


class MembershipChanges:
    """Handles requests for changes, and continues a change until it is complete."""

    def __init__(
        self,
        member: Member,
        application: ApplicationCaller,
        cluster_id: ClusterId,
        commit_index: CommitIndex,
        noop: Noop,
        replication: Replication,
        heartbeats: Heartbeats,
    ) -> None:
        self._member = member
        self._application = application
        self._cluster_id = cluster_id
        self._commit_index = commit_index
        self._noop = noop
        self._replication = replication
        self._heartbeats = heartbeats
        self._next_at = 0
        # A member that has the state of expired messages, when it said so, and when all were asked.
        self._state_holder = ""
        self._state_seen_at = self._state_asked_at = 0

    # Requests

    def handle(self, request: MembersRequest, token: object) -> None:
        member = self._member
        self._change(request)
        response = MembersResponse(group=member.group, leader_id=member.leader_id, term=member.term)
        response.members = member.members.shown(member.members.current)
        member.reply(token, response)

    def _change(self, request: MembersRequest) -> None:
        if not self._member.is_leader:
            raise RejectedError(ResponseCode.NOT_LEADER, "another member leads")
        if request.action == ENTRY:
            self._check_all_ours()
            self._noop.append()
        changed = None if request.action in (LIST, ENTRY) else self._changed(request)
        if changed is not None:
            self._check_all_ours()
            self._check_own_entry()
            self._check_majority(changed)
            if not self._is_state_kept(changed):
                raise RejectedError(
                    ResponseCode.LEADER_NOT_READY,
                    "no other member is known to have the queue offsets and identities of expired messages, which this "
                    "leader would take away: wait until another member has fetched them",
                )
            self._append(changed)

    def _changed(self, request: MembersRequest) -> MemberList | None:
        """The next list; None if it is the present one. Raises RejectedError."""
        found, name = self._member.members.current, request.member_id or ""
        if request.action == "add":
            if found.addresses.get(name) == request.address:
                return None
            self._check_no_change()
            return self._with_learner(found, name, request.address or "")
        if request.action == "remove":
            self._check_had(name)
            if name not in found.addresses or found.leaving == name:
                return None
            if name in found.learners:
                # This gives up the change that added it.
                self._check_committed()
                return found._replace(learners={}, leaving="")
            self._check_no_change()
            return _without(found, name)
        if request.action == "replace":
            new = request.new_id or ""
            if name:
                self._check_had(name)
            if found.addresses.get(new) == request.address and (name == found.leaving or name not in found.voters):
                return None
            self._check_no_change()
            if name not in found.voters:
                raise RejectedError(ResponseCode.UNKNOWN_MEMBER, f"{name!r} is no member of {_names(found)}")
            return self._with_learner(found, new, request.address or "")._replace(leaving=name)
        raise RejectedError(ResponseCode.UNSUPPORTED, f"{request.action!r} is no change of members")

    def _with_learner(self, found: MemberList, name: str, address: str) -> MemberList:
        if name in found.addresses:
            where = found.addresses[name]
            text = f"{name} is a member already, at {where}: use a new id, or remove it first"
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, text)
        if len(found.body()) > _MAX_BYTES:
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, f"expected at most {_MAX_BYTES} bytes of members")
        if address in found.addresses.values():
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, f"another member has the address {address}")
        try:
            check_new_member(name, address)
        except OptionError as error:
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, str(error)) from None
        return found._replace(learners={name: address})

    def _check_majority(self, changed: MemberList) -> None:
        """Reject a list that would be without a quorum at once."""
        live = [each for each in changed.voters if self._is_live(each)]
        if len(live) < changed.quorum and changed.voters != self._member.members.current.voters:
            raise RejectedError(
                ResponseCode.UNEXPECTED_ARGUMENT,
                f"only {', '.join(live) or 'none'} of the voters {', '.join(changed.voters)} would be up and level, no "
                "majority: start the others, or replace the one that is down",
            )

    def _is_live(self, member_id: str) -> bool:
        """Whether a member is up, and can vote: it knows a committed entry of this leader."""
        if member_id == self._member.self_id:
            return True
        is_level = self._commit_index.has_own(self._replication.committed_index(member_id))
        return is_level and self._heartbeats.is_live(member_id)

    def _is_state_kept(self, changed: MemberList) -> bool:
        """Whether a voter of a list has the state of expired messages, as this leader has.

        If the list is without this leader, the voters are asked, and the answer is known later.
        """
        member = self._member
        if member.self_id in changed.voters or not self._application.serves_messages:
            return True
        if self._state_holder in changed.voters and member.now < self._state_seen_at + _STATE_KNOWN_MS:
            return True
        if member.now >= self._state_asked_at + _STATE_PAUSE_MS:
            self._state_asked_at = member.now
            begin = member.store.ledger_begin_index
            for peer in sorted(member.binary_peers & changed.voters.keys()):
                request = SummaryRequest(
                    group=member.group, remote_id=peer, local_id=member.self_id, begin_index=begin, snapshot=0, offset=0
                )
                member.send(peer, request, self._on_summary, peer)
        return False

    def _on_summary(self, peer: str, response: Response | None) -> None:
        has_state = (ResponseCode.SUCCESS, ResponseCode.LEADER_NOT_READY)
        if isinstance(response, SummaryResponse) and response.code in has_state:
            self._state_holder, self._state_seen_at = peer, self._member.now

    # Rules

    def _check_had(self, name: str) -> None:
        members = self._member.members
        if not members.had(name):
            text = f"{name!r} never was a member of {_names(members.current)}"
            raise RejectedError(ResponseCode.UNKNOWN_MEMBER, text)

    def _check_all_ours(self) -> None:
        if strangers := self._member.members.not_taking_controls:
            raise RejectedError(
                ResponseCode.UNSUPPORTED,
                f"{', '.join(strangers)} may be Java members, or of an older version: the members of their group "
                "change only with --change-members",
            )

    def _check_committed(self) -> None:
        if not self._member.members.is_committed:
            raise RejectedError(ResponseCode.LEADER_NOT_READY, "the change before is not committed yet")

    def _check_no_change(self) -> None:
        self._check_committed()
        found = self._member.members.current
        if not found.is_final:
            what = f"{', '.join(found.learners) or 'a new member'} is joining"
            if found.leaving:
                what += f", then {found.leaving} leaves"
            text = f"another change is under way ({what}): wait, or give it up with remove {', '.join(found.learners)}"
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, text)

    def _check_own_entry(self) -> None:
        """A leader must have committed an entry of its own term, else lists of two terms could both be committed."""
        if self._member.transferee is not None:
            raise RejectedError(ResponseCode.LEADER_TRANSFERRING, "leadership is being transferred")
        if not self._has_own_entry():
            raise RejectedError(ResponseCode.LEADER_NOT_READY, "the leader has committed no entry of its term yet")

    def _has_own_entry(self) -> bool:
        if self._commit_index.has_own():
            return True
        self._noop.append()
        return False

    # Steps

    def _append(self, changed: MemberList) -> None:
        """Append the list. It counts at once."""
        member, store = self._member, self._member.store
        body = changed.body()
        bodies = self._application.control(body) if self._application.serves_messages else Bodies.of([body])
        try:
            member.members.appending(store.ledger_end_index + 1, member.term, body)
            store.append_as_leader(bodies, member.term, MEMBERS)
        except (DiskFullError, *DISK_FAILURES) as error:
            code = ResponseCode.DISK_FULL if isinstance(error, DiskFullError) else ResponseCode.DISK_ERROR
            raise RejectedError(code, f"the list of members cannot be saved: {error}") from None
        finally:
            member.members.refresh()
        self._commit_index.advance()

    def is_due(self, now: int) -> bool:
        """Whether the next `tick` at that time can save a list."""
        member = self._member
        is_done = member.members.current.is_final and not member.members.is_forced
        return member.is_leader and now >= self._next_at and not is_done

    def tick(self) -> None:
        member = self._member
        if not member.is_leader or member.now < self._next_at:
            return
        self._next_at = member.now + _STEP_MS
        found = member.members.current
        is_done = found.is_final and member.is_voter and not member.members.is_forced
        if is_done or not member.members.is_committed:
            return
        if not member.is_voter:
            member.become(Role.CANDIDATE, None)
            return
        if member.transferee is not None or member.members.not_taking_controls or not self._has_own_entry():
            return
        try:
            changed = found if found.is_final else self._next_list(found)
            if changed is not None:
                self._check_majority(changed)
                self._append(changed)
                member.resolve_problem(_KIND)
        except RejectedError as rejected:
            member.report_problem(f"the change of members waits: {rejected}", _KIND, _REPORT_MS)

    def _next_list(self, found: MemberList) -> MemberList | None:
        """The next step of a change; None while a learner has not caught up, or others lack what this leader has."""
        for name, address in found.learners.items():
            lag = self._member.store.ledger_end_index - self._replication.match_index(name)
            changed = found._replace(voters={**found.voters, name: address}, learners={})
            is_ready = lag <= _MAX_LAG and self._member.members.takes_controls(name)
            is_ready = is_ready and self._replication.has_committed(name)
            return changed if is_ready and self._is_live(name) else None
        if found.leaving not in found.voters:
            return found._replace(leaving="")
        changed = _without(found, found.leaving)
        return changed if self._cluster_id.is_known_by(changed.voters) and self._is_state_kept(changed) else None


def _without(found: MemberList, name: str) -> MemberList:
    """The list without that voter. Raises RejectedError if it is the last one."""
    voters = {each: address for each, address in found.voters.items() if each != name}
    if not voters:
        raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, f"{name} is the last member")
    return found._replace(voters=voters, leaving="")


def _names(found: MemberList) -> str:
    return ", ".join(found.addresses)
