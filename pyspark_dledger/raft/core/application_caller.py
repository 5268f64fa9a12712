"""Calls a member's application: notifies it, forwards a leader's requests to it, and ends the core if it raises.

A follower's application copies its leader's metadata from time to time (RocketMQ's ``SlaveSynchronize``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.format.encode.encoded import Admitted, Bodies, DiskNeededError, ProducerState, RejectedError
from pyspark_dledger.raft.core.application import Application
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import (
    POSITION_SIZE,
    ConfigRequest,
    ConfigResponse,
    ProducerRequest,
    PutRequest,
    Response,
    Role,
    TopicsRequest,
    TopicsResponse,
)
from pyspark_dledger.store.dledger_store import AppendedEntries

T = TypeVar("T")

# Codes of a new leader, and of one without messages: not worth a report.
_NORMAL_CODES = (ResponseCode.LEADER_NOT_READY, ResponseCode.UNSUPPORTED)


class ApplicationError(RuntimeError):
    """The application raised an exception. Its state no longer fits the log, so its node must end."""


class ApplicationCaller:
    """Calls the application, if there is one."""

    def __init__(self, member: Member, application: Application | None) -> None:
        self._member = member
        self._application = application
        self._is_leading = False
        self._copy_at = 0
        self._committed_index = member.store.committed_index
        if application is not None:
            member.needs_summary = self._needs_summary

    @property
    def serves_messages(self) -> bool:
        return self._application is not None

    def _call(self, method: Callable[[Application], T]) -> T:
        assert self._application is not None
        try:
            return method(self._application)
        except (DiskNeededError, RejectedError):
            raise
        except Exception as error:
            raise ApplicationError(f"the application raised {error!r}") from error

    def _ask(self, what: str, method: Callable[[Application], T]) -> T:
        """Call a method for a client's request, and report a rejection."""
        try:
            return self._call(method)
        except RejectedError as rejected:
            if rejected.code not in _NORMAL_CODES:
                self._member.report(f"a {what} was rejected: {rejected}", f"rejected {rejected.code.name}")
            raise

    # Notifications

    def role_changed(self) -> None:
        member = self._member
        self._copy_at = member.now + member.config.copy_config_first_ms
        if self._application is not None and (member.is_leader or self._is_leading):
            self._is_leading = member.is_leader
            self._call(lambda application: application.role_changed(member.is_leader, member.term))

    def committed(self, index: int) -> None:
        """After a reset of the log to an earlier index, entries are committed again."""
        if self._application is None or index <= self._committed_index:
            return
        self._committed_index = index
        self._call(lambda application: application.committed(index))

    # The summary

    def _needs_summary(self) -> bool:
        return self._call(lambda application: application.needs_summary)

    def summary(self, begin_index: int, snapshot: int, offset: int) -> SummaryPart:
        self._check_application()
        return self._call(lambda application: application.summary(begin_index, snapshot, offset))

    def take_summary(self, part: SummaryPart) -> bool:
        return self._call(lambda application: application.take_summary(part))

    # Copying the leader's metadata

    def tick(self) -> None:
        """Request the leader's metadata if it is time. Java leaders have none."""
        member = self._member
        if self._application is None or member.role is not Role.FOLLOWER or member.now < self._copy_at:
            return
        self._copy_at = member.now + member.config.copy_config_every_ms
        leader = member.leader_id
        if leader in member.binary_peers:
            request = ConfigRequest(group=member.group, remote_id=leader, local_id=member.self_id)
            member.send(leader, request, self._on_config, leader)

    def _on_config(self, leader: str, response: Response | None) -> None:
        if not isinstance(response, ConfigResponse) or response.code != ResponseCode.SUCCESS:
            return
        if self._member.role is Role.FOLLOWER and self._member.leader_id == leader:
            self._call(lambda application: application.copied(response.files))

    # Requests to a leader

    def admit(self, request: PutRequest) -> Admitted:
        """The entries to append for a put. Raises DiskNeededError; see `Core.handle`."""
        self._check_application().may_wait = self._member.may_wait
        return self._ask("PutRequest", lambda application: application.admit(request.bodies, request.queue_nums))

    def appended(self, admitted: Admitted, appended: AppendedEntries | None, count: int) -> bytes:
        """The positions of the `count` bodies of a put."""
        positions = self._call(lambda application: application.appended(admitted, appended))
        if len(positions) != count * POSITION_SIZE:
            raise ApplicationError(f"expected {count} positions of {POSITION_SIZE} bytes, found {len(positions)} bytes")
        return positions

    def check_entries(self, bodies: Bodies) -> object:
        """Check raw entries. Returns what `entries_appended` gets."""
        if self._application is None:
            return None
        return self._ask("raw append", lambda application: application.check_entries(bodies))

    def entries_appended(self, checked: object) -> None:
        if self._application is not None:
            self._call(lambda application: application.entries_appended(checked))

    def filler(self) -> Bodies:
        return self._call(lambda application: application.filler())

    def control(self, content: bytes) -> Bodies:
        return self._call(lambda application: application.control(content))

    def handle_topics(self, request: TopicsRequest, token: object) -> None:
        self.check_leads()
        member = self._member
        counts, host = self._ask(
            "TopicsRequest", lambda application: application.topics(request.names, request.queue_nums)
        )
        response = TopicsResponse(
            group=member.group,
            leader_id=member.leader_id,
            term=member.term,
            queue_counts=dict(counts),
            store_host=bytes(host),
        )
        member.reply(token, response)

    def producer(self, request: ProducerRequest) -> ProducerState:
        return self._ask(
            "ProducerRequest",
            lambda application: application.producer(request.producer, request.run, request.from_index),
        )

    def handle_config(self, request: ConfigRequest, token: object) -> None:
        self.check_leads()
        member, files = self._member, self._call(lambda application: application.config())
        response = ConfigResponse(group=member.group, leader_id=member.leader_id, term=member.term, files=dict(files))
        member.reply(token, response)

    def check_leads(self) -> None:
        """Raises RejectedError unless this is a leader with an application. Clients first look for the leader."""
        if not self._member.is_leader:
            raise RejectedError(ResponseCode.NOT_LEADER)
        self._check_application()

    def _check_application(self) -> Application:
        if self._application is None:
            raise RejectedError(ResponseCode.UNSUPPORTED, "no application")
        return self._application
