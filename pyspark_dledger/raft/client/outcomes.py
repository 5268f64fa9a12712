"""The meaning of a response to an append: acknowledged, certainly not appended, or unknown."""

from __future__ import annotations

from enum import Enum

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.messages import ProducerResponse, PutResponse, Response, TopicsResponse
from pyspark_dledger.raft.wire import (
    NO_PERMISSION,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    Rejection,
)

AnyResponse = Response | Rejection

# Codes of the remoting layer.
_REMOTING_NAMES = {
    SYSTEM_ERROR: "SYSTEM_ERROR",
    SYSTEM_BUSY: "SYSTEM_BUSY",
    REQUEST_CODE_NOT_SUPPORTED: "REQUEST_CODE_NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
}
# The node rejects such requests until it is restarted.
_NEVER_EXECUTED = (REQUEST_CODE_NOT_SUPPORTED, NO_PERMISSION)
# Before anything was written; later, or at another node, the request may succeed.
_TEMPORARY = frozenset(
    (
        ResponseCode.NOT_LEADER,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.DISK_FULL,
    )
)
# Before anything was written; a retry cannot succeed.
_PERMANENT = frozenset(
    (
        ResponseCode.UNSUPPORTED,
        ResponseCode.EXPIRED_TERM,
        ResponseCode.UNKNOWN_GROUP,
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.UNEXPECTED_ARGUMENT,
        ResponseCode.REQUEST_WITH_EMPTY_BODYS,
    )
)
# From a leader or the transferee, before the transfer started.
_TRANSFER_NOT_STARTED = (
    _TEMPORARY
    | _PERMANENT
    | {ResponseCode.INCONSISTENT_TERM, ResponseCode.INCONSISTENT_LEADER, ResponseCode.FALL_BEHIND_TOO_MUCH}
) - {ResponseCode.EXPIRED_TERM}
# The node is of another group, or has another id.
WRONG_MEMBER = frozenset((ResponseCode.UNKNOWN_GROUP, ResponseCode.UNKNOWN_MEMBER))
# Another member leads, or will soon.
LEADER_MOVED = frozenset((ResponseCode.NOT_LEADER, ResponseCode.LEADER_TRANSFERRING))
# Advice for rejections.
_ADVICE: dict[int, str] = {
    ResponseCode.NOT_LEADER: "the group has no stable leader, look at its nodes",
    ResponseCode.LEADER_PENDING_FULL: "its followers do not keep up, look at them or send less at a time",
    ResponseCode.DISK_FULL: "make room on its disk",
    ResponseCode.EXPIRED_TERM: "the leader has changed, put them again",
    ResponseCode.UNKNOWN_GROUP: "use the group name of its nodes",
    ResponseCode.UNKNOWN_MEMBER: "the ids in peers must be those of the nodes at these addresses",
    ResponseCode.UNSUPPORTED: "it needs a node of pyspark_dledger, not a Java node",
    ResponseCode.UNEXPECTED_ARGUMENT: "the node rejects such a body, it may be larger than a data file of its store",
}
_REMOTING_ADVICE = {
    SYSTEM_BUSY: "it was not executed, try again later",
    REQUEST_CODE_NOT_SUPPORTED: "it needs a node that supports it",
}

# Advice for unknown outcomes.
_LOOK_FIRST = "look for it in the log before you send it again"
_PUT_AGAIN = "put them again if they have identities: duplicates are not appended"

# The reason of `no_messages_error` for a Java leader.
JAVA_LEADER = "to be a Java node, which accepts raw entries only"


class Outcome(Enum):
    """The outcome of an append. Only a `TEMPORARY` one may be sent again: an `UNKNOWN` one could be appended twice."""

    ACKNOWLEDGED = "acknowledged"
    TEMPORARY = "not appended, a retry may succeed"
    PERMANENT = "not appended, a retry cannot succeed"
    UNKNOWN = "unknown"


def outcome_of(response: AnyResponse | None) -> Outcome:
    """The outcome by the response; None is no response."""
    if response is None:
        return Outcome.UNKNOWN
    if isinstance(response, Rejection):
        if response.code == SYSTEM_BUSY:
            return Outcome.TEMPORARY
        return Outcome.PERMANENT if response.code in _NEVER_EXECUTED else Outcome.UNKNOWN
    if response.code == ResponseCode.SUCCESS:
        return Outcome.ACKNOWLEDGED
    if response.code in _TEMPORARY:
        return Outcome.TEMPORARY
    return Outcome.PERMANENT if response.code in _PERMANENT else Outcome.UNKNOWN


def may_transfer(response: AnyResponse) -> bool:
    """Whether a transfer may still succeed after this response."""
    if isinstance(response, Rejection):
        return outcome_of(response) is Outcome.UNKNOWN
    return response.code not in _TRANSFER_NOT_STARTED


def is_temporary(response: AnyResponse) -> bool:
    """Whether a retry of a request may succeed."""
    return outcome_of(response) is Outcome.TEMPORARY


def code_name(response: AnyResponse) -> str:
    """``NOT_LEADER (404)``."""
    if isinstance(response, Rejection):
        return f"{_REMOTING_NAMES.get(response.code, 'remoting code')} ({response.code}) {response.remark}".rstrip()
    try:
        return f"{ResponseCode(response.code).name} ({response.code})"
    except ValueError:
        return f"code {response.code}"


def leader_named(response: AnyResponse) -> str | None:
    return response.leader_id if isinstance(response, Response) else None


def rejected_error(group: str, what: str, member_id: str, response: AnyResponse, times: int = 1) -> GroupError:
    """The error for a rejected request."""
    repeated = f", {times} times in a row" if times > 1 else ""
    text = f"group {group}: {member_id} rejected {what} with {code_name(response)}{repeated}: {_advice(response)}"
    return GroupError(text, int(response.code), leader_named(response))


def serves_no_messages(response: AnyResponse) -> bool:
    """Whether it is the response of a leader that does not serve messages."""
    if isinstance(response, Rejection):
        return response.code == REQUEST_CODE_NOT_SUPPORTED
    return response.code == ResponseCode.UNSUPPORTED


def no_messages_error(group: str, member_id: str, found: str) -> GroupError:
    """The error if the leader does not serve messages: a Java node, or a node without an application."""
    return GroupError(
        f"group {group}: expected its leader to serve messages, found {member_id} {found}: start the nodes with "
        "--messages, or write with a RocketMQ producer where brokers lead",
        ResponseCode.UNSUPPORTED,
    )


def unknown_error(
    group: str, member_id: str, reason: str, code: int, leader_id: str | None = None, *, are_messages: bool = False
) -> UnknownOutcomeError:
    """The error for an append, or messages, with an unknown outcome."""
    what, it = ("messages", "they") if are_messages else ("an append", "it")
    return UnknownOutcomeError(
        f"group {group}: {member_id} did not acknowledge {what} ({reason}): {it} may be in the log, now or later, or "
        f"never: {_PUT_AGAIN if are_messages else _LOOK_FIRST}",
        code,
        leader_id,
    )


def unknown_transfer_error(
    group: str, member_id: str, node_id: str, reason: str, code: int, leader_id: str | None = None
) -> UnknownOutcomeError:
    """The error for a leadership transfer with an unknown outcome."""
    return UnknownOutcomeError(
        f"group {group}: {member_id} did not confirm the transfer of leadership to {node_id} ({reason}): it may "
        "happen, now or later, or never: look at the leader with metadata",
        code,
        leader_id,
    )


def _advice(response: AnyResponse) -> str:
    """The application's reason, or advice."""
    if isinstance(response, (PutResponse, TopicsResponse, ProducerResponse)) and response.reason:
        return response.reason
    if isinstance(response, Rejection):
        return _REMOTING_ADVICE.get(response.code, "look at the log of that node")
    return _ADVICE.get(response.code, "nothing was changed")
