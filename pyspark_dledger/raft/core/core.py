"""The core of a member: dispatches requests, responses and time to its parts."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark_dledger.common.histogram import Histogram
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.raft.core.application import Application
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.cluster_id import ClusterId
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.raft.core.disk_waits import DiskWaits
from pyspark_dledger.raft.core.effects import Effect, Load, PeerStatus, Status
from pyspark_dledger.raft.core.election import Election
from pyspark_dledger.raft.core.follower import Follower
from pyspark_dledger.raft.core.leader.appends import Appends
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.membership_changes import MembershipChanges
from pyspark_dledger.raft.core.leader.noop import Noop
from pyspark_dledger.raft.core.leader.peer_progress import PeerProgress
from pyspark_dledger.raft.core.leader.producer_reads import ProducerReads
from pyspark_dledger.raft.core.leader.reads import Reads
from pyspark_dledger.raft.core.leader.replication import Replication
from pyspark_dledger.raft.core.leader.transfer import Transfer
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.core.membership import Membership
from pyspark_dledger.raft.core.repairs import Repairs
from pyspark_dledger.raft.core.standing import Standing
from pyspark_dledger.raft.core.summary_copy import SummaryCopy
from pyspark_dledger.raft.member_list import read_told
from pyspark_dledger.raft.messages import (
    AppendRequest,
    ConfigRequest,
    GetRequest,
    HeartBeatRequest,
    MembersRequest,
    MetadataRequest,
    MetadataResponse,
    ProducerRequest,
    PushRequest,
    PutRequest,
    Request,
    Response,
    Role,
    StatusRequest,
    StatusResponse,
    SummaryRequest,
    TopicsRequest,
    TransferRequest,
    VoteRequest,
)
from pyspark_dledger.store.dledger_store import DLedgerStore, EntryRange


class Core:
    """A member as a state machine without clock, network or threads (``DLedgerServer``).

    Times are integer milliseconds of a monotonic clock. If it goes back, the core's time stands still for that moment.
    The core owns `store`, which is started. The driver calls `drain` after every call and executes the effects. Under
    ``is_sync`` it calls `persisted` when more of the log is durable. Without an `application` puts are rejected. If the
    application raises, calls raise `ApplicationError` and the core must not be used again. Constructing raises
    StoreError if a term cannot be saved, and OptionError if the store is of a group with other members.
    """

    def __init__(
        self,
        config: CoreConfig,
        store: DLedgerStore,
        random: random.Random,
        now: int,
        peer_addresses: Mapping[str, str] | None = None,
        application: Application | None = None,
    ) -> None:
        members = Membership(config, store, peer_addresses or {})
        self._member = member = Member(config, store, random, now, members)
        self._application = caller = ApplicationCaller(member, application)
        self._summary_copy = SummaryCopy(member, caller)
        self._cluster_id = ClusterId(member)
        self._election = Election(member, self._cluster_id)
        self._heartbeats = Heartbeats(member, self._cluster_id)
        self._follower = Follower(member)
        self._appends = Appends(member, caller)
        peers = [PeerProgress(member, peer_id) for peer_id in member.others]
        self._peers = peers
        self._commit_index = CommitIndex(member, self._appends, peers)
        self._replication = Replication(member, self._commit_index, peers)
        self._repairs = Repairs(member)
        self._reads = Reads(member, self._commit_index, self._heartbeats)
        self._noop = Noop(member, caller, self._appends, self._commit_index)
        self._transfer = Transfer(member, self._election, self._heartbeats, self._replication)
        self._changes = MembershipChanges(
            member, caller, self._cluster_id, self._commit_index, self._noop, self._replication, self._heartbeats
        )
        self._standing = Standing(member)
        self.disk_waits = DiskWaits(member, self._election, self._transfer, self._cluster_id, self._changes)
        member.on_role, member.on_members, member.on_commit = (
            self._role_changed,
            self._members_changed,
            caller.committed,
        )
        # What is wrong with connections, which others than the core know.
        self.connection_problems: Callable[[], Iterable[str]] = tuple
        self._handlers: dict[type[Request], Callable[[Any, object], None]] = {
            AppendRequest: self._append,
            ConfigRequest: caller.handle_config,
            GetRequest: self._reads.handle,
            HeartBeatRequest: self._election.handle_heartbeat,
            MembersRequest: self._changes.handle,
            MetadataRequest: self._metadata,
            ProducerRequest: ProducerReads(member, caller, self._noop, self._commit_index, self._heartbeats).handle,
            PushRequest: self._follower.handle,
            PutRequest: self._append,
            StatusRequest: self._status,
            SummaryRequest: self._summary_copy.handle,
            TopicsRequest: caller.handle_topics,
            TransferRequest: self._transfer.handle,
            VoteRequest: self._election.handle_vote,
        }

    # Input

    def handle(self, request: Request, token: object, now: int, *, may_wait: bool = True) -> bool:
        """Handle a request of another member or of a client. Returns False for an append that was rejected at once.

        The response is a Reply with that token, possibly later. There is none if a term must be saved and the disk
        fails. If a put or a push must not wait for the disk, but has to, DiskNeededError is raised: handle it again.
        """
        member = self._member
        member.set_clock(now)
        member.may_wait = may_wait
        handler = self._handlers.get(type(request))
        try:
            if request.remote_id != member.self_id:
                raise RejectedError(ResponseCode.UNKNOWN_MEMBER)
            if request.group != member.group:
                raise RejectedError(ResponseCode.UNKNOWN_GROUP)
            if handler is None:
                raise RejectedError(ResponseCode.UNSUPPORTED)
            handler(request, token)
            return True
        except RejectedError as error:
            rejected = error
        except DISK_FAILURES as error:
            member.report_problem(f"a {type(request).__name__} failed: {error}")
            rejected = RejectedError(ResponseCode.DISK_ERROR)
        member.reject(token, request, rejected)
        return not isinstance(request, AppendRequest)

    def handle_response(self, token: int, response: Response | None, now: int) -> None:
        """The outcome of the Send with that token: None if it was not sent, or got no response in time."""
        self._member.set_clock(now)
        self._member.handle_response(token, response)

    def loaded(self, request: Load, result: EntryRange | Exception, now: int) -> None:
        """The result of a Load: the entries, or the exception of the store."""
        self._member.set_clock(now)
        self._member.loaded(request, result)

    def tick(self, now: int) -> None:
        """Time has passed. Call about every 10 ms."""
        self._member.set_clock(now)
        self._member.expire_requests()
        self._member.disk.tick(now)
        self._election.tick()
        self._heartbeats.tick()
        self._replication.tick()
        self._transfer.tick()
        self._cluster_id.tick()
        self._appends.tick()
        self._noop.tick()
        self._changes.tick()
        self._standing.tick()
        self._application.tick()
        self._summary_copy.tick()
        self._repairs.tick()

    def found_damage(self, damaged: Mapping[int, str], now: int) -> None:
        """Entries of this member's log are damaged: their indexes, and what is wrong with them."""
        self._member.set_clock(now)
        self._repairs.found(damaged)

    def persisted(self, index: int, now: int) -> None:
        """The log is durable up to that index."""
        self._member.set_clock(now)
        self._member.persisted(index)
        self._commit_index.advance()
        self._follower.persisted()

    def set_peer_binary(self, peer_id: str, is_binary: bool, takes_controls: bool = False) -> None:
        """A peer is connected. With the binary dialect it gets larger pushes, and COMMIT more often.

        ``takes_controls``: it knows control entries, and said so.
        """
        try:
            self._member.members.connected(peer_id, takes_controls)
        except DISK_FAILURES as error:
            self._member.report_problem(f"{peer_id} cannot be saved as a member that takes control entries: {error}")
        self._cluster_id.connected(peer_id)
        if is_binary:
            self._member.binary_peers.add(peer_id)
        else:
            self._member.binary_peers.discard(peer_id)

    def heard(self, member_id: str, text: str, now: int, *, is_rejection: bool) -> None:
        """The hello of another member, with the latest committed list of its log, or "".

        With a rejection, that can only say that this member was removed.
        """
        member = self._member
        member.set_clock(now)
        if not is_rejection:
            member.members.met(member_id)
        if not text:
            return
        try:
            found = read_told(text).members
        except ValueError as error:
            member.report_problem(f"a member sent a list of members that cannot be used: {error}", "list")
            return
        is_listed = member.self_id in found.addresses or member.members.is_joining
        if not (is_listed and is_rejection) and not member.is_leader:
            member.members.heard(found, is_rejection=is_rejection)

    def drain(self) -> list[Effect]:
        """The effects to execute, in order; a leader's new entries are among them.

        What a failed append wrote is removed before its response. Raises StoreError if that fails.
        """
        self.finish_undo()
        member = self._member
        if member.is_leader:
            self._heartbeats.pump()
            self._replication.pump()
        effects, member.effects = member.effects, []
        return effects

    def finish_undo(self) -> None:
        """Remove what a failed append wrote, durably. Raises StoreError if that fails."""
        self._member.store.finish_undo()

    # State

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def term(self) -> int:
        return self._member.term

    @property
    def leader_id(self) -> str | None:
        """The leader of the current term, if known."""
        return self._member.leader_id

    @property
    def committed_index(self) -> int:
        return self._member.store.committed_index

    @property
    def transferee(self) -> str | None:
        """The member that this leader is transferring leadership to."""
        return self._member.transferee

    @property
    def damaged_entries(self) -> int:
        """The number of entries that are known to be damaged, and not repaired yet."""
        return len(self._repairs)

    @property
    def max_lag(self) -> int:
        """The number of entries that a member may lack and lead soon, or be ready."""
        return self._member.config.max_leadership_transfer_wait_index

    @property
    def append_latencies(self) -> Histogram:
        """From each append of this leader to its commit."""
        return self._appends.latencies

    @property
    def needs_summary(self) -> bool:
        """Whether it lacks the application's state of expired entries, and therefore must not lead."""
        return self._member.needs_summary()

    @property
    def knows_members(self) -> bool:
        """Whether its list is the group's present one, so that others are no members."""
        return self._member.knows_members

    @property
    def is_removed(self) -> bool:
        """Whether the group removed this member."""
        return self._member.members.removed_by is not None

    @property
    def flush_problem(self) -> str:
        """Why flushes are too slow for a leader; "" if they are not."""
        return self._member.disk.flush_problem(self._member.now)

    @property
    def problems(self) -> deque[str]:
        """Problems for operators, newest last. The driver logs and removes them."""
        return self._member.problems

    def status(self) -> Status:
        member, store = self._member, self._member.store
        peers: tuple[PeerStatus, ...] = ()
        if member.is_leader:
            peers = tuple(
                PeerStatus(
                    peer,
                    self._replication.match_index(peer),
                    self._heartbeats.is_live(peer),
                    peer in member.binary_peers,
                )
                for peer in member.others
            )
        return Status(
            role=member.role,
            term=member.term,
            leader_id=member.leader_id,
            begin_index=store.ledger_begin_index,
            end_index=store.ledger_end_index,
            end_term=store.ledger_end_term,
            committed_index=store.committed_index,
            pending_appends=self._appends.count,
            problems=member.problem_count,
            peers=peers,
            problem="; ".join(filter(None, (member.latest_problem, *self.connection_problems()))),
            elections=member.elections,
            found_damaged=member.found_damaged,
            repaired=member.repaired,
            lag=0 if member.is_leader else self._follower.lag,
        )

    @property
    def members(self) -> Membership:
        return self._member.members

    def _role_changed(self) -> None:
        """The application learns of it before appends that are not committed get their responses."""
        self._application.role_changed()
        self._election.role_changed()
        self._heartbeats.role_changed()
        self._follower.role_changed()
        self._appends.role_changed()
        self._commit_index.role_changed()
        self._replication.role_changed()
        self._cluster_id.role_changed()
        self._transfer.role_changed()

    def _members_changed(self) -> None:
        """Replicate to new members, and to removed ones no more."""
        self._election.members_changed()
        self._heartbeats.members_changed()
        member, before = self._member, {progress.peer_id: progress for progress in self._peers}
        self._peers[:] = [before.get(peer_id) or PeerProgress(member, peer_id) for peer_id in member.others]
        if member.is_leader:
            self._commit_index.advance()

    # Simple requests

    def _append(self, request: AppendRequest, token: object) -> None:
        self._appends.handle(request, token)
        if self._member.has_lone_vote:
            self._commit_index.advance()

    def _metadata(self, request: MetadataRequest, token: object) -> None:
        member = self._member
        response = MetadataResponse(
            group=member.group, leader_id=member.leader_id, term=member.term, peers=member.members.known_addresses
        )
        member.reply(token, response)

    def _status(self, request: StatusRequest, token: object) -> None:
        member, status = self._member, self.status()
        response = StatusResponse(
            group=member.group,
            leader_id=member.leader_id,
            term=member.term,
            role=status.role,
            begin_index=status.begin_index,
            end_index=status.end_index,
            end_term=status.end_term,
            committed_index=status.committed_index,
            peers=member.members.known_addresses,
            problem=status.problem,
            serves_messages=self._application.serves_messages,
        )
        member.reply(token, response)
