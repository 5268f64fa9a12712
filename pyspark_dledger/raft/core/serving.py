"""A member's application, as its core sees it: told in time, asked by a leader only, ended with what it raises.

A follower's application gets the metadata of the leader's (RocketMQ's ``SlaveSynchronize``), now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core.application import Admitted, Application, Refused
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import (
    PLACE_SIZE,
    ConfigRequest,
    ConfigResponse,
    PutRequest,
    PutResponse,
    Request,
    Response,
    Role,
    TopicsRequest,
    TopicsResponse,
)
from pyspark_dledger.store.dledger_store import AppendedEntries

T = TypeVar("T")

# Nothing is wrong with a leader that has only begun, or that serves no messages.
_EXPECTED = (ResponseCode.LEADER_NOT_READY, ResponseCode.UNSUPPORTED)


class ApplicationError(RuntimeError):
    """An application raised: what it knows no longer fits the log, so its node must end."""


class Serving:
    """Asks the application, where there is one, and tells it of leadership and of what is committed.

    To be made before the parts that append and commit: a role is told before anything happens in it.
    """

    def __init__(self, member: Member, application: Application | None) -> None:
        self._member = member
        self._application = application
        self._is_leading = False
        self._copy_at = 0
        if application is not None:
            member.role_listeners.append(self._role_changed)
            member.commit_listeners.append(self._committed)

    @property
    def serves_messages(self) -> bool:
        return self._application is not None

    # Telling

    def _role_changed(self) -> None:
        member = self._member
        self._copy_at = member.now + member.config.copy_config_first_ms
        if member.is_leader or self._is_leading:
            self._is_leading = member.is_leader
            self._ask(lambda application: application.role_changed(member.is_leader, member.term))

    def _committed(self, index: int) -> None:
        self._ask(lambda application: application.committed(index))

    # Copying

    def tick(self) -> None:
        """Ask the leader for its metadata where it is time. Java's has none to give."""
        member = self._member
        if self._application is None or member.role is not Role.FOLLOWER or member.now < self._copy_at:
            return
        self._copy_at = member.now + member.config.copy_config_every_ms
        leader = member.leader_id
        if leader in member.ours:
            request = ConfigRequest(group=member.group, remote_id=leader, local_id=member.self_id)
            member.send(leader, request, self._copied, leader)

    def _copied(self, leader: str, answer: Response | None) -> None:
        """Take what came, as long as that member is followed."""
        if not isinstance(answer, ConfigResponse) or answer.code != ResponseCode.SUCCESS:
            return
        if self._member.role is Role.FOLLOWER and self._member.leader_id == leader:
            self._ask(lambda application: application.copied(answer.files))

    # Asking

    def _ask(self, call: Callable[[Application], T]) -> T:
        assert self._application is not None
        try:
            return call(self._application)
        except Exception as error:
            raise ApplicationError(f"expected an application that works, found {error!r}") from error

    def admit(self, request: PutRequest) -> Admitted | Refused:
        """What is to be appended for a put."""
        if self._application is None:
            return Refused(ResponseCode.UNSUPPORTED, "no application")
        return self._ask(lambda application: application.admit(request.bodies, request.queue_nums))

    def appended(self, admitted: Admitted, appended: AppendedEntries | None, count: int) -> bytes:
        """The places of the `count` bodies of a put."""
        places = self._ask(lambda application: application.appended(admitted, appended))
        if len(places) != count * PLACE_SIZE:
            raise ApplicationError(f"expected {count} places of {PLACE_SIZE} bytes, found {len(places)} bytes")
        return places

    def filler(self) -> Bodies:
        return self._ask(lambda application: application.filler())

    def handle_topics(self, request: TopicsRequest, token: object) -> None:
        if self._is_refused(request, token, TopicsResponse()):
            return
        found = self._ask(lambda application: application.topics(request.names, request.queue_nums))
        if isinstance(found, Refused):
            self.refuse(request, token, TopicsResponse(), found)
            return
        member, (counts, host) = self._member, found
        answer = TopicsResponse(
            group=member.group,
            leader_id=member.leader_id,
            term=member.term,
            queue_counts=dict(counts),
            store_host=bytes(host),
        )
        member.reply(token, answer)

    def handle_config(self, request: ConfigRequest, token: object) -> None:
        if self._is_refused(request, token, ConfigResponse()):
            return
        member, files = self._member, self._ask(lambda application: application.config())
        answer = ConfigResponse(group=member.group, leader_id=member.leader_id, term=member.term, files=dict(files))
        member.reply(token, answer)

    # Refusing

    def _is_refused(self, request: Request, token: object, answer: Response) -> bool:
        """Refuses what only a leader with an application answers; a client looks for the leader first."""
        if not self._member.is_leader:
            self._member.refuse(token, request, answer, ResponseCode.NOT_LEADER)
        elif self._application is None:
            self._member.refuse(token, request, answer, ResponseCode.UNSUPPORTED)
        else:
            return False
        return True

    def refuse(self, request: Request, token: object, answer: PutResponse | TopicsResponse, refused: Refused) -> None:
        """Answer with the application's code and reason."""
        code = _code(refused.code)
        if code not in _EXPECTED:
            self._member.tell(f"a {type(request).__name__} was refused: {refused.reason}", f"refused {code.name}")
        answer.reason = refused.reason
        self._member.refuse(token, request, answer, code)


def _code(code: int) -> ResponseCode:
    try:
        return ResponseCode(code)
    except ValueError:
        raise ApplicationError(f"expected a response code of DLedger, found {code}") from None
