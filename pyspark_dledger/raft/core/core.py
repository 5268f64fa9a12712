"""One member of a group: requests, answers and time in, requests, answers and writes to its store out."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.application import Application
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.raft.core.effects import Effect, PeerStatus, Status
from pyspark_dledger.raft.core.election import Election
from pyspark_dledger.raft.core.follower import Follower
from pyspark_dledger.raft.core.leader.appends import Appends
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.reads import Reads
from pyspark_dledger.raft.core.leader.replication import Replication
from pyspark_dledger.raft.core.leader.transfer import Transfer
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.core.serving import Serving
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    ConfigRequest,
    ConfigResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushRequest,
    PushResponse,
    PutRequest,
    PutResponse,
    Request,
    Response,
    Role,
    StatusRequest,
    StatusResponse,
    TopicsRequest,
    TopicsResponse,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
)
from pyspark_dledger.store.dledger_store import DLedgerStore

_ANSWERS: dict[type[Request], type[Response]] = {
    AppendRequest: AppendResponse,
    ConfigRequest: ConfigResponse,
    GetRequest: GetResponse,
    HeartBeatRequest: HeartBeatResponse,
    MetadataRequest: MetadataResponse,
    PushRequest: PushResponse,
    PutRequest: PutResponse,
    StatusRequest: StatusResponse,
    TopicsRequest: TopicsResponse,
    TransferRequest: TransferResponse,
    VoteRequest: VoteResponse,
}


class Core:
    """A member as a state machine without clock, network or threads (``DLedgerServer``).

    Times are integer milliseconds of any clock that does not run backwards. `store` has been started and is written by
    nobody else. After every call, `drain` gives what is to be sent. Under ``is_sync``, `persisted` is to be called when
    more of the log has become durable. Without an `application` puts are refused; one that raises ends the core, whose
    calls then raise `ApplicationError`. Constructing raises StoreError where a term cannot be saved.
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
        self._member = member = Member(config, store, random, now)
        self._serving = serving = Serving(member, application)
        self._addresses = dict(peer_addresses or {})
        self._election = Election(member)
        self._heartbeats = Heartbeats(member)
        self._follower = Follower(member)
        self._appends = Appends(member, serving)
        self._replication = Replication(member, self._appends)
        self._reads = Reads(member, self._replication, self._heartbeats)
        self._transfer = Transfer(member, self._election, self._heartbeats, self._replication)
        self._handlers: dict[type[Request], Callable[[Any, object], bool | None]] = {
            AppendRequest: self._append,
            ConfigRequest: serving.handle_config,
            GetRequest: self._reads.handle,
            HeartBeatRequest: self._election.handle_heartbeat,
            MetadataRequest: self._metadata,
            PushRequest: self._follower.handle,
            PutRequest: self._append,
            StatusRequest: self._status,
            TopicsRequest: serving.handle_topics,
            TransferRequest: self._transfer.handle,
            VoteRequest: self._election.handle_vote,
        }

    # What happens to this member

    def handle(self, request: Request, token: object, now: int) -> bool:
        """Take a request of another member or of a client; False for an append that was refused at once.

        It is answered by a Reply with that token, maybe later; not at all where it needs a term saved and the disk
        fails.
        """
        member = self._member
        member.now = now
        handler = self._handlers.get(type(request))
        if request.remote_id != member.self_id:
            code = ResponseCode.UNKNOWN_MEMBER
        elif request.group != member.group:
            code = ResponseCode.UNKNOWN_GROUP
        elif handler is None:
            code = ResponseCode.UNSUPPORTED
        else:
            try:
                return handler(request, token) is not False
            except DISK_FAILURES as error:
                member.problem(f"a {type(request).__name__} cannot be answered: {error}")
                code = ResponseCode.DISK_ERROR
        member.refuse(token, request, _ANSWERS.get(type(request), Response)(), code)
        return not isinstance(request, AppendRequest)

    def answered(self, token: int, answer: Response | None, now: int) -> None:
        """What came of the Send with that token; None where it was not sent, or not answered in time."""
        self._member.now = now
        self._member.answered(token, answer)

    def tick(self, now: int) -> None:
        """Time has passed; to be called about every 10 ms."""
        self._member.now = now
        self._member.forget_unanswered()
        self._election.tick()
        self._heartbeats.tick()
        self._replication.tick()
        self._transfer.tick()
        self._appends.tick()
        self._serving.tick()

    def persisted(self, index: int, now: int) -> None:
        """The log is durable up to that index."""
        self._member.now = now
        self._member.persisted(index)
        self._replication.advance()
        self._follower.persisted()

    def peer_is_ours(self, peer_id: str, yes: bool) -> None:
        """Whether a peer is known to be of our own kind: it takes larger pushes, and COMMIT more often."""
        if yes:
            self._member.ours.add(peer_id)
        else:
            self._member.ours.discard(peer_id)

    def drain(self) -> list[Effect]:
        """What is to be done now, in order; a leader's new entries are among it."""
        member = self._member
        if member.is_leader:
            self._heartbeats.pump()
            self._replication.pump()
        effects, member.effects = member.effects, []
        return effects

    # How it stands

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def term(self) -> int:
        return self._member.term

    @property
    def leader_id(self) -> str | None:
        """The leader of the present term, where it is known."""
        return self._member.leader_id

    @property
    def committed_index(self) -> int:
        return self._member.store.committed_index

    @property
    def transferee(self) -> str | None:
        """To whom this leader is handing its leadership."""
        return self._member.transferee

    @property
    def problems(self) -> deque[str]:
        """What an operator should see, newest last; whoever logs it takes it out."""
        return self._member.problems

    def status(self) -> Status:
        member, store = self._member, self._member.store
        peers: tuple[PeerStatus, ...] = ()
        if member.is_leader:
            peers = tuple(
                PeerStatus(
                    peer, self._replication.match_index(peer), self._heartbeats.is_live(peer), peer in member.ours
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
            problem=member.latest_problem,
        )

    # Requests that need little

    def _append(self, request: AppendRequest, token: object) -> bool:
        is_appended = self._appends.handle(request, token)
        if is_appended and not self._member.others:
            self._replication.advance()
        return is_appended

    def _metadata(self, request: MetadataRequest, token: object) -> None:
        member = self._member
        answer = MetadataResponse(
            group=member.group, leader_id=member.leader_id, term=member.term, peers=dict(self._addresses)
        )
        member.reply(token, answer)

    def _status(self, request: StatusRequest, token: object) -> None:
        member, status = self._member, self.status()
        answer = StatusResponse(
            group=member.group,
            leader_id=member.leader_id,
            term=member.term,
            role=status.role,
            begin_index=status.begin_index,
            end_index=status.end_index,
            end_term=status.end_term,
            committed_index=status.committed_index,
            peers=dict(self._addresses),
            problem=status.problem,
            serves_messages=self._serving.serves_messages,
        )
        member.reply(token, answer)
