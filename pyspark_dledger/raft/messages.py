"""The messages of DLedger's protocol as values (protocol package of the Java DLedger), and how each field is sent.

A missing index or term is -1, as in Java. Times are milliseconds. The package `wire` encodes messages by what is
declared here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from operator import attrgetter
from typing import ClassVar, TypeVar

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.raft.message_fields import counted, in_body, number, one_of, text
from pyspark_dledger.store.dledger_store import Entry, EntryRun


class RequestCode(IntEnum):
    """``DLedgerRequestCode``. 51006 and 59999 (of 0.4.0) are unsupported; 58001 to 58009 are our own."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    INSTALL_SNAPSHOT = 51006
    STATUS = 58001
    READ = 58002
    TOPICS = 58003
    PUT_MESSAGES = 58004
    CONFIG = 58005
    SUMMARY = 58006
    MEMBERS = 58008
    PRODUCER = 58009
    USER_DEFINE_REQUEST = 59999


class VoteResult(Enum):
    """``VoteResponse.RESULT``, by name on the wire."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(Enum):
    """``PushEntryRequest.Type``."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


class Role(Enum):
    """``MemberState.Role``."""

    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


@dataclass(slots=True, kw_only=True)
class WireMessage:
    """The fields of every request and response (``RequestOrResponse``)."""

    request_code: ClassVar[int] = -1
    """Of the request, also for its response."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: int = ResponseCode.SUCCESS
    leader_id: str | None = None
    term: int = -1


class Response(WireMessage):
    """The response of a node; ``code`` is the result."""

    __slots__ = ()


class Request(WireMessage):
    """A request of a node or client to a node.

    ``acts_as`` is the field with the member that alone may send it; None for requests of clients. ``saves``: handling
    it may wait for the disk.
    """

    __slots__ = ()
    response: ClassVar[type[Response]] = Response
    acts_as: ClassVar[str | None] = None
    saves: ClassVar[bool] = False


_AnyRequest = TypeVar("_AnyRequest", bound=Request)
REQUESTS: dict[int, type[Request]] = {}
"""The class of each request code."""


def _sent_as(
    code: RequestCode, response: type[Response], acts_as: str | None = None, saves: bool = False
) -> Callable[[type[_AnyRequest]], type[_AnyRequest]]:
    """Declares the code of a request, and its response."""

    def declare(kind: type[_AnyRequest]) -> type[_AnyRequest]:
        kind.request_code = response.request_code = int(code)
        kind.response, kind.acts_as, kind.saves = response, acts_as, saves
        REQUESTS[code] = kind
        return kind

    return declare


def is_extension(code: int) -> bool:
    """Whether Java lacks the request, so that it is sent in the binary dialect only."""
    return 58000 < code < 59000


_PEERS = "`peers` times two texts: id, address"
_ENTRIES = "`count` entries"
_BODIES = "`count` lengths (u32), then the bodies"
_TOPICS = "`topics` queue counts (u32), then the names as texts, then storeHost (0, 8 or 20 bytes)"
_FILES = "`files` sizes (u32), then the names as texts, then the contents"


@dataclass(slots=True, kw_only=True)
class VoteResponse(Response):
    """Whether it gets the vote, or the reason.

    ``is_without_log``: the vote of a member that lost its disk; the result is UNKNOWN. Binary dialect only.
    """

    vote_result: VoteResult = one_of(VoteResult.UNKNOWN)
    is_without_log: bool = number("B", "1: the vote of a member that lost its disk", False, in_json=False)


@_sent_as(RequestCode.VOTE, VoteResponse, "leader_id", saves=True)
@dataclass(slots=True, kw_only=True)
class VoteRequest(Request):
    """A candidate (``leader_id``) requests a vote; ``ledger_end_*`` are those of its log."""

    ledger_end_index: int = number("q")
    ledger_end_term: int = number("q")


@dataclass(slots=True, kw_only=True)
class HeartBeatResponse(Response):
    """``code``: whether the receiver follows that leader. ``cluster_id`` is its own, "" if it has none."""

    cluster_id: str | None = text(in_json=False)


@_sent_as(RequestCode.HEART_BEAT, HeartBeatResponse, "leader_id")
@dataclass(slots=True, kw_only=True)
class HeartBeatRequest(Request):
    """A heartbeat of the leader (``leader_id``) of ``term``, with its ``cluster_id``, "" if it has none."""

    cluster_id: str | None = text(in_json=False)


@dataclass(slots=True, kw_only=True)
class PushResponse(Response):
    """``index`` and ``count`` repeat the request's (``index`` None for COMMIT); begin and end are the follower's."""

    index: int | None = number("q", "the request's firstIndex", None)
    count: int = number("I", "the request's", 0)
    begin_index: int = number("q", "the follower's first")
    end_index: int = number("q", "the follower's last")


@_sent_as(RequestCode.PUSH, PushResponse, "leader_id")
@dataclass(slots=True, kw_only=True)
class PushRequest(Request):
    """``data`` contains ``count`` consecutive encoded entries, the first with ``first_index``.

    COMPARE and TRUNCATE have exactly one, COMMIT has none (``first_index`` -1). TRUNCATE has the list of members before
    that entry. ``is_batch`` is for Java followers: even a single entry is sent as ``batchEntry``.
    """

    type: PushType = one_of(PushType.APPEND)
    commit_index: int = number("q")
    first_index: int = number("q", in_json=False)
    count: int = number("I", "", 0)
    data: Buffer = in_body(b"", _ENTRIES)
    members: str | None = text(in_json=False)
    is_batch: bool = False

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1 if self.count else -1


@dataclass(slots=True, kw_only=True)
class AppendResponse(Response):
    """``index`` and ``pos`` of the first entry, the number of entries, and their runs (empty from Java)."""

    index: int = number("q", "of the first entry")
    pos: int = number("q", "of the first entry")
    count: int = number("I", "entries appended", 1, in_json=False)
    runs: tuple[EntryRun, ...] = in_body((), "index (i64) and pos (i64) of the first entry of each consecutive run")


@_sent_as(RequestCode.APPEND, AppendResponse)
@dataclass(slots=True, kw_only=True)
class AppendRequest(Request):
    """``is_restart`` is an extension: it restarts the pipeline of a connection after a rejected append.

    After a rejected append the node rejects all later ones on that connection with the same code, until one has
    ``is_restart``. So a pipeline keeps its order. Java peers know neither this nor batches.
    """

    bodies: Bodies = counted("I", "count", _BODIES, lambda: Bodies(0, b""), attrgetter("count"))
    is_restart: bool = number("B", "1 restarts a rejected pipeline", True, in_json=False)


@dataclass(slots=True, kw_only=True)
class GetResponse(Response):
    """The entry, or none."""

    entries: list[Entry] = counted("I", "count", _ENTRIES, list)


@_sent_as(RequestCode.GET, GetResponse)
@dataclass(slots=True, kw_only=True)
class GetRequest(Request):
    """``is_committed`` is an extension: return only a committed entry, and report only a certain absence."""

    begin_index: int = number("q")
    is_committed: bool = number("B", "1: a committed entry only", False, in_json=False)


@dataclass(slots=True, kw_only=True)
class MetadataResponse(Response):
    """``peers`` maps id to address."""

    peers: dict[str, str] = counted("H", "peers", _PEERS, dict)


@_sent_as(RequestCode.METADATA, MetadataResponse)
@dataclass(slots=True, kw_only=True)
class MetadataRequest(Request):
    """Requests the members and the leader."""


@dataclass(slots=True, kw_only=True)
class TransferResponse(Response):
    """``code``: whether the transfer succeeded."""


@_sent_as(RequestCode.LEADERSHIP_TRANSFER, TransferResponse, "transfer_id", saves=True)
@dataclass(slots=True, kw_only=True)
class TransferRequest(Request):
    """``LeadershipTransferRequest``: to the leader ``transfer_id``, or from it to ``transferee_id``."""

    transfer_id: str | None = text()
    transferee_id: str | None = text()
    take_leadership_ledger_index: int = number("q")


@dataclass(slots=True, kw_only=True)
class StatusResponse(Response):
    """The state of the member; ``peers`` maps id to address, ``problem`` is the latest unresolved one, or "".

    ``serves_messages``: as leader it accepts `TopicsRequest`, `PutRequest`, `ProducerRequest` and
    `ConfigRequest`.
    """

    role: Role = one_of(Role.CANDIDATE)
    begin_index: int = number("q")
    end_index: int = number("q")
    end_term: int = number("q")
    committed_index: int = number("q")
    peers: dict[str, str] = counted("H", "peers", _PEERS, dict)
    problem: str = in_body("", "; then a text: the latest problem, or empty")
    serves_messages: bool = number("B", "1 if it does as leader", False)


@_sent_as(RequestCode.STATUS, StatusResponse)
@dataclass(slots=True, kw_only=True)
class StatusRequest(Request):
    """Extension: requests the state of a member. Binary only."""


@dataclass(slots=True, kw_only=True)
class ReadResponse(Response):
    """``data``: ``count`` encoded entries from ``first_index`` on."""

    first_index: int = number("q")
    count: int = number("I", "", 0)
    begin_index: int = number("q", "the member's first")
    committed_index: int = number("q")
    data: Buffer = in_body(b"", _ENTRIES)


@_sent_as(RequestCode.READ, ReadResponse)
@dataclass(slots=True, kw_only=True)
class ReadRequest(Request):
    """Extension: requests committed entries of any member, from ``first_index`` on. Binary only.

    The member waits up to ``wait_ms`` for that entry to be committed, then responds without entries.
    """

    first_index: int = number("q", "", 0)
    max_bytes: int = number("I", "of entries in the response", 1 << 20)
    wait_ms: int = number("I", "for the first entry", 0)


@dataclass(slots=True, kw_only=True)
class TopicsResponse(Response):
    """The number of queues of each topic, and the store host of messages: 8 (IPv4 and port) or 20 bytes.

    ``reason`` is the application's reason for a rejection.
    """

    queue_counts: dict[str, int] = counted("H", "topics", _TOPICS, dict)
    store_host: bytes = in_body(b"")
    reason: str | None = text()


@_sent_as(RequestCode.TOPICS, TopicsResponse)
@dataclass(slots=True, kw_only=True)
class TopicsRequest(Request):
    """Extension: requests the number of queues of topics. New topics get ``queue_nums``. Binary only."""

    names: tuple[str, ...] = counted("H", "names", "`names` texts", tuple)
    queue_nums: int = number("I", "of new topics", 4)


@dataclass(slots=True, kw_only=True)
class PutResponse(Response):
    """The positions of the ``count`` messages of the request, sent when all are committed.

    ``positions`` has index, pos and queueOffset (i64, big-endian) of each message, also of duplicates, in the request's
    order; it is empty if the put failed. ``index`` and ``pos`` are those of the first entry that this put appended, -1
    if it appended none. ``reason`` is the application's reason for a rejection.
    """

    index: int = number("q", "of the first new entry")
    pos: int = number("q", "of the first new entry")
    count: int = number("I", "messages of the request", 0)
    positions: Buffer = in_body(b"", "nothing, or `count` times index, pos and queueOffset (i64)")
    reason: str | None = text()


@_sent_as(RequestCode.PUT_MESSAGES, PutResponse)
@dataclass(slots=True, kw_only=True)
class PutRequest(AppendRequest):
    """Extension: the bodies are messages that the leader's application turns into entries. Binary only.

    In a pipeline it counts as an append. New topics get ``queue_nums`` queues. A leader of another term than ``term``
    rejects it with EXPIRED_TERM; with -1 any leader takes it.
    """

    queue_nums: int = number("I", "of new topics", 4)


POSITION_SIZE = 24
"""Bytes of index, pos and queueOffset of one message."""


@dataclass(slots=True, kw_only=True)
class ProducerResponse(Response):
    """See `encoded.ProducerState`. ``reason`` is the application's reason for a rejection."""

    count: int = number("q", "", 0)
    other_runs: int = number("q", "", 0)
    last_number: int = number("q")
    next_index: int = number("q")
    ids: Buffer = in_body(b"", "identities")
    reason: str | None = text()


@_sent_as(RequestCode.PRODUCER, ProducerResponse)
@dataclass(slots=True, kw_only=True)
class ProducerRequest(Request):
    """Extension: requests what the leader's log has of a producer's messages. Binary only.

    ``producer`` is the first 8 bytes of their identities, ``run`` a run of its job. Identities of entries from
    ``from_index`` on are returned, none for -1. With -2 the leader also takes new messages from no other run, in its
    term.
    """

    producer: bytes = in_body(bytes(8), "producer")
    run: int = number("I", "", 0)
    from_index: int = number("q")


@dataclass(slots=True, kw_only=True)
class ConfigResponse(Response):
    """Metadata by file name."""

    files: dict[str, bytes] = counted("H", "files", _FILES, dict)


@_sent_as(RequestCode.CONFIG, ConfigResponse)
@dataclass(slots=True, kw_only=True)
class ConfigRequest(Request):
    """Extension: requests the leader's metadata files, which are stored next to the log. Binary only."""


@dataclass(slots=True, kw_only=True)
class SummaryResponse(Response):
    """``data`` begins at ``offset`` of a snapshot of ``size`` bytes.

    Codes: LEADER_NOT_READY while it is being made, INDEX_OUT_OF_RANGE if the member lacks the state itself,
    REPEATED_REQUEST if the snapshot is gone.
    """

    snapshot: int = number("q", "", 0)
    offset: int = number("q", "", 0)
    size: int = number("q", "", 0)
    data: Buffer = in_body(b"", "bytes of the snapshot")


@_sent_as(RequestCode.SUMMARY, SummaryResponse, "local_id", saves=True)
@dataclass(slots=True, kw_only=True)
class SummaryRequest(Request):
    """Extension: requests a part of a member's summary, the state of its application that its log does not tell.

    ``begin_index``: the requester's log begins there, so it needs the state of all earlier entries. ``snapshot`` 0 asks
    for a new one, with ``offset`` 0. Binary only.
    """

    begin_index: int = number("q")
    snapshot: int = number("q", "0: a new one", 0)
    offset: int = number("q", "", 0)


LIST = "list"
"""The action that only returns the leader's list."""
ENTRY = "entry"


@dataclass(slots=True, kw_only=True)
class MembersResponse(Response):
    """``members``: JSON of the list and of the committed index; ``reason`` says why a change was rejected."""

    members: str | None = text("")
    reason: str | None = text()


@_sent_as(RequestCode.MEMBERS, MembersResponse, saves=True)
@dataclass(slots=True, kw_only=True)
class MembersRequest(Request):
    """Extension: requests the list of members, or a change of it. Binary only.

    ``action`` is list, add, remove, or replace ``member_id`` by ``new_id``. ``address`` is the new one's. A restored or
    new member asks for an entry of the leader's term with action entry.
    """

    action: str | None = text(LIST)
    member_id: str | None = text("")
    new_id: str | None = text("")
    address: str | None = text("")

    @property
    def is_change(self) -> bool:
        return self.action != LIST
