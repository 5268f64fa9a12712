"""What an answer to an append says: acknowledged, certainly not appended, or nobody knows."""

from __future__ import annotations

from enum import Enum

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.messages import PutResponse, Response, TopicsResponse
from pyspark_dledger.raft.wire import (
    NO_PERMISSION,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    Refusal,
)

AnyResponse = Response | Refusal

# Java's remoting layer: a request that it had no thread for was not begun; one that it does not know neither.
_REMOTING_NAMES = {
    SYSTEM_ERROR: "SYSTEM_ERROR",
    SYSTEM_BUSY: "SYSTEM_BUSY",
    REQUEST_CODE_NOT_SUPPORTED: "REQUEST_CODE_NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
}
# Of requests that a node does, or does not do, as long as it lives.
_NEVER_BEGUN = (REQUEST_CODE_NOT_SUPPORTED, NO_PERMISSION)


# Given by a node before it writes anything, and gone after a while or at another node.
_PASSING = frozenset(
    (
        ResponseCode.NOT_LEADER,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.DISK_FULL,
    )
)
# Given before anything is written as well, but they stay.
_LASTING = frozenset(
    (
        ResponseCode.UNSUPPORTED,
        ResponseCode.UNKNOWN_GROUP,
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.UNEXPECTED_ARGUMENT,
        ResponseCode.REQUEST_WITH_EMPTY_BODYS,
    )
)
# Given by a leader, or by the member that is to follow it, before either begins a transfer.
_TRANSFER_NOT_BEGUN = (
    _PASSING
    | _LASTING
    | {ResponseCode.INCONSISTENT_TERM, ResponseCode.INCONSISTENT_LEADER, ResponseCode.FALL_BEHIND_TOO_MUCH}
)
# A node that says so is of another group, or has another id.
STRANGERS = frozenset((ResponseCode.UNKNOWN_GROUP, ResponseCode.UNKNOWN_MEMBER))
# The leader is elsewhere, or about to be.
LEADER_MOVED = frozenset((ResponseCode.NOT_LEADER, ResponseCode.LEADER_TRANSFERRING))
# What to do about a refusal, where there is something.
_ADVICE: dict[int, str] = {
    ResponseCode.NOT_LEADER: "the group has no leader that stays, look at its nodes",
    ResponseCode.LEADER_PENDING_FULL: "its followers do not keep up, look at them or send less at a time",
    ResponseCode.DISK_FULL: "make room on its disk",
    ResponseCode.UNKNOWN_GROUP: "name the group as its nodes do",
    ResponseCode.UNKNOWN_MEMBER: "the ids in peers have to be those of the nodes at these addresses",
    ResponseCode.UNSUPPORTED: "it needs a node of pyspark_dledger, not one of Java",
    ResponseCode.UNEXPECTED_ARGUMENT: "the node takes no such body, it may be larger than a data file of its store",
}
_REMOTING_ADVICE = {
    SYSTEM_BUSY: "it was not begun, try again later",
    REQUEST_CODE_NOT_SUPPORTED: "it needs a node that knows it",
}

# What to do about an unknown outcome.
_LOOK_FIRST = "look for it there before it is sent again"
_ONCE_MORE = "put them again if they have identities, what is there is not appended twice"


class Outcome(Enum):
    """Of an append. Only what is `PASSING` may be sent again: a repeated `UNKNOWN` one could be in the log twice."""

    ACKNOWLEDGED = "acknowledged"
    PASSING = "not appended, for now"
    LASTING = "not appended, and never will be"
    UNKNOWN = "unknown"


def outcome_of(response: AnyResponse | None) -> Outcome:
    """What an answer says of the append; None stands for no answer at all."""
    if response is None:
        return Outcome.UNKNOWN
    if isinstance(response, Refusal):
        if response.code == SYSTEM_BUSY:
            return Outcome.PASSING
        return Outcome.LASTING if response.code in _NEVER_BEGUN else Outcome.UNKNOWN
    if response.code == ResponseCode.SUCCESS:
        return Outcome.ACKNOWLEDGED
    if response.code in _PASSING:
        return Outcome.PASSING
    return Outcome.LASTING if response.code in _LASTING else Outcome.UNKNOWN


def may_transfer(response: AnyResponse) -> bool:
    """Whether a transfer may still come about, whatever its answer says of it."""
    if isinstance(response, Refusal):
        return outcome_of(response) is Outcome.UNKNOWN
    return response.code not in _TRANSFER_NOT_BEGUN


def is_passing(response: AnyResponse) -> bool:
    """Whether it is worth asking again, for a request that changes nothing."""
    return outcome_of(response) is Outcome.PASSING


def code_name(response: AnyResponse) -> str:
    """``NOT_LEADER (404)``."""
    if isinstance(response, Refusal):
        return f"{_REMOTING_NAMES.get(response.code, 'remoting code')} ({response.code}) {response.remark}".rstrip()
    try:
        return f"{ResponseCode(response.code).name} ({response.code})"
    except ValueError:
        return f"code {response.code}"


def leader_named(response: AnyResponse) -> str | None:
    return response.leader_id if isinstance(response, Response) else None


def refused(group: str, what: str, member_id: str, response: AnyResponse, times: int = 1) -> GroupError:
    """The error for a request that was not done."""
    often = f", {times} times in a row" if times > 1 else ""
    text = (
        f"group {group}: expected {member_id} to take {what}, found {code_name(response)}{often}: {_advice(response)}"
    )
    return GroupError(text, int(response.code), leader_named(response))


def serves_no_messages(response: AnyResponse) -> bool:
    """Whether that is the answer of a leader that knows nothing of messages."""
    if isinstance(response, Refusal):
        return response.code == REQUEST_CODE_NOT_SUPPORTED
    return response.code == ResponseCode.UNSUPPORTED


def no_messages(group: str, member_id: str, found: str) -> GroupError:
    """The error where a leader serves no messages: it may be one of Java, or one of ours without an application."""
    return GroupError(
        f"group {group}: expected its leader to serve messages, found {member_id} {found}: start the nodes with "
        "--messages, or write with a RocketMQ producer where brokers lead",
        ResponseCode.UNSUPPORTED,
    )


def unknown(
    group: str, member_id: str, reason: str, code: int, leader_id: str | None = None, *, are_messages: bool = False
) -> UnknownOutcomeError:
    """The error for an append, or for messages, that may have been done."""
    what, it = ("messages", "they") if are_messages else ("an append", "it")
    return UnknownOutcomeError(
        f"group {group}: expected {member_id} to acknowledge {what}, found {reason}: {it} may be in the log, now or "
        f"later, or never: {_ONCE_MORE if are_messages else _LOOK_FIRST}",
        code,
        leader_id,
    )


def unknown_transfer(
    group: str, member_id: str, node_id: str, reason: str, code: int, leader_id: str | None = None
) -> UnknownOutcomeError:
    """The error for a transfer that may have been done, or may be yet."""
    return UnknownOutcomeError(
        f"group {group}: expected {member_id} to hand leadership to {node_id}, found {reason}: it may happen, now or "
        "later, or never: look with metadata who leads",
        code,
        leader_id,
    )


def _advice(response: AnyResponse) -> str:
    """What to do about it, or what the application says of it."""
    if isinstance(response, (PutResponse, TopicsResponse)) and response.reason:
        return response.reason
    if isinstance(response, Refusal):
        return _REMOTING_ADVICE.get(response.code, "look at the log of that node")
    return _ADVICE.get(response.code, "nothing was changed")
