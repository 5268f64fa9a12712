"""The messages of DLedger's protocol as values, independent of their encoding (protocol package of the Java DLedger).

A missing index or term is -1, as in Java. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
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
    IDENTITY = 58007
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

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: int = ResponseCode.SUCCESS
    leader_id: str | None = None
    term: int = -1


class Request(WireMessage):
    """A request of a node or client to a node."""

    __slots__ = ()


class Response(WireMessage):
    """The response of that node; ``code`` is the result."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class VoteRequest(Request):
    """A candidate (``leader_id``) requests a vote; ``ledger_end_*`` are those of its log."""

    ledger_end_index: int = -1
    ledger_end_term: int = -1


@dataclass(slots=True, kw_only=True)
class VoteResponse(Response):
    """Whether it gets the vote, or the reason.

    ``is_without_log``: the vote of a member that lost its disk; the result is UNKNOWN. Binary dialect only.
    """

    vote_result: VoteResult = VoteResult.UNKNOWN
    is_without_log: bool = False


@dataclass(slots=True, kw_only=True)
class HeartBeatRequest(Request):
    """A heartbeat of the leader (``leader_id``) of ``term``."""


@dataclass(slots=True, kw_only=True)
class HeartBeatResponse(Response):
    """``code``: whether the receiver follows that leader."""


@dataclass(slots=True, kw_only=True)
class PushRequest(Request):
    """``data`` contains ``count`` consecutive encoded entries, the first with ``first_index``.

    COMPARE and TRUNCATE have exactly one, COMMIT has none (``first_index`` -1). ``is_batch`` is for Java followers:
    even a single entry is sent as ``batchEntry``.
    """

    type: PushType = PushType.APPEND
    commit_index: int = -1
    first_index: int = -1
    count: int = 0
    data: Buffer = b""
    is_batch: bool = False

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1 if self.count else -1


@dataclass(slots=True, kw_only=True)
class PushResponse(Response):
    """``index`` and ``count`` repeat the request's (``index`` None for COMMIT); begin and end are the follower's."""

    index: int | None = None
    count: int = 0
    begin_index: int = -1
    end_index: int = -1


@dataclass(slots=True, kw_only=True)
class AppendRequest(Request):
    """``is_restart`` is an extension: it restarts the pipeline of a connection after a rejected append.

    After a rejected append the node rejects all later ones on that connection with the same code, until one has
    ``is_restart``. So a pipeline keeps its order. Java peers know neither this nor batches.
    """

    bodies: Bodies = field(default_factory=lambda: Bodies(0, b""))
    is_restart: bool = True


@dataclass(slots=True, kw_only=True)
class AppendResponse(Response):
    """``index`` and ``pos`` of the first entry, the number of entries, and their runs (empty from Java)."""

    index: int = -1
    pos: int = -1
    count: int = 1
    runs: tuple[EntryRun, ...] = ()


@dataclass(slots=True, kw_only=True)
class GetRequest(Request):
    """``is_committed`` is an extension: return only a committed entry, and report only a certain absence."""

    begin_index: int = -1
    is_committed: bool = False


@dataclass(slots=True, kw_only=True)
class GetResponse(Response):
    """The entry, or none."""

    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MetadataRequest(Request):
    """Requests the members and the leader."""


@dataclass(slots=True, kw_only=True)
class MetadataResponse(Response):
    """``peers`` maps id to address."""

    peers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TransferRequest(Request):
    """``LeadershipTransferRequest``: to the leader ``transfer_id``, or from it to ``transferee_id``."""

    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: int = -1


@dataclass(slots=True, kw_only=True)
class TransferResponse(Response):
    """``code``: whether the transfer succeeded."""


@dataclass(slots=True, kw_only=True)
class StatusRequest(Request):
    """Extension: requests the state of a member. Binary only."""


@dataclass(slots=True, kw_only=True)
class StatusResponse(Response):
    """The state of the member; ``peers`` maps id to address, ``problem`` is the latest unresolved one, or "".

    ``serves_messages``: as leader it accepts `TopicsRequest`, `PutRequest`, `ProducerRequest` and
    `ConfigRequest`.
    """

    role: Role = Role.CANDIDATE
    begin_index: int = -1
    end_index: int = -1
    end_term: int = -1
    committed_index: int = -1
    peers: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    serves_messages: bool = False


@dataclass(slots=True, kw_only=True)
class ReadRequest(Request):
    """Extension: requests committed entries of any member, from ``first_index`` on. Binary only.

    The member waits up to ``wait_ms`` for that entry to be committed, then responds without entries.
    """

    first_index: int = 0
    max_bytes: int = 1 << 20
    wait_ms: int = 0


@dataclass(slots=True, kw_only=True)
class ReadResponse(Response):
    """``data``: ``count`` encoded entries from ``first_index`` on."""

    first_index: int = -1
    count: int = 0
    begin_index: int = -1
    committed_index: int = -1
    data: Buffer = b""


@dataclass(slots=True, kw_only=True)
class TopicsRequest(Request):
    """Extension: requests the number of queues of topics. New topics get ``queue_nums``. Binary only."""

    names: tuple[str, ...] = ()
    queue_nums: int = 4


@dataclass(slots=True, kw_only=True)
class TopicsResponse(Response):
    """The number of queues of each topic, and the store host of messages: 8 (IPv4 and port) or 20 bytes.

    ``reason`` is the application's reason for a rejection.
    """

    queue_counts: dict[str, int] = field(default_factory=dict)
    store_host: bytes = b""
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class PutRequest(AppendRequest):
    """Extension: the bodies are messages that the leader's application turns into entries. Binary only.

    In a pipeline it counts as an append. New topics get ``queue_nums`` queues. A leader of another term than ``term``
    rejects it with EXPIRED_TERM; with -1 any leader takes it.
    """

    queue_nums: int = 4


POSITION_SIZE = 24
"""Bytes of index, pos and queueOffset of one message."""


@dataclass(slots=True, kw_only=True)
class PutResponse(Response):
    """The positions of the ``count`` messages of the request, sent when all are committed.

    ``positions`` has index, pos and queueOffset (i64, big-endian) of each message, also of duplicates, in the request's
    order; it is empty if the put failed. ``index`` and ``pos`` are those of the first entry that this put appended, -1
    if it appended none. ``reason`` is the application's reason for a rejection.
    """

    index: int = -1
    pos: int = -1
    count: int = 0
    positions: Buffer = b""
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class ProducerRequest(Request):
    """Extension: requests what the leader's log has of a producer's messages. Binary only.

    ``producer`` is the first 8 bytes of their identities, ``run`` a run of its job. Identities of entries from
    ``from_index`` on are returned, none for -1. With -2 the leader also takes new messages from no other run, in its
    term.
    """

    producer: bytes = bytes(8)
    run: int = 0
    from_index: int = -1


@dataclass(slots=True, kw_only=True)
class ProducerResponse(Response):
    """See `encoded.ProducerState`. ``reason`` is the application's reason for a rejection."""

    count: int = 0
    other_runs: int = 0
    last_number: int = -1
    next_index: int = -1
    ids: Buffer = b""
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class ConfigRequest(Request):
    """Extension: requests the leader's metadata files, which are stored next to the log. Binary only."""


@dataclass(slots=True, kw_only=True)
class ConfigResponse(Response):
    """Metadata by file name."""

    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SummaryRequest(Request):
    """Extension: requests a part of a member's summary, the state of its application that its log does not tell.

    ``begin_index``: the requester's log begins there, so it needs the state of all earlier entries. ``snapshot`` 0 asks
    for a new one, with ``offset`` 0. Binary only.
    """

    begin_index: int = -1
    snapshot: int = 0
    offset: int = 0


@dataclass(slots=True, kw_only=True)
class SummaryResponse(Response):
    """``data`` begins at ``offset`` of a snapshot of ``size`` bytes.

    Codes: LEADER_NOT_READY while it is being made, INDEX_OUT_OF_RANGE if the member lacks the state itself,
    REPEATED_REQUEST if the snapshot is gone.
    """

    snapshot: int = 0
    offset: int = 0
    size: int = 0
    data: Buffer = b""


@dataclass(slots=True, kw_only=True)
class IdentityRequest(Request):
    """Extension: the leader asks for the member's cluster id, and gives it its own if it has one. Binary only."""

    cluster_id: str | None = ""


@dataclass(slots=True, kw_only=True)
class IdentityResponse(Response):
    """The member's cluster id, "" if it has none."""

    cluster_id: str | None = ""


LIST = "list"
ENTRY = "entry"
"""The action that only returns the leader's list."""


@dataclass(slots=True, kw_only=True)
class MembersRequest(Request):
    """Extension: requests the list of members, or a change of it. Binary only.

    ``action`` is "" at any member, or at the leader list, add, remove, or replace ``member_id`` by ``new_id``.
    ``address`` is the new one's. A restored or new member asks for an entry of the leader's term with action entry.
    """

    action: str | None = ""
    member_id: str | None = ""
    new_id: str | None = ""
    address: str | None = ""

    @property
    def is_change(self) -> bool:
        return self.action not in (None, "", LIST)


@dataclass(slots=True, kw_only=True)
class MembersResponse(Response):
    """``members``: JSON of the list, the latest committed one if there was no ``action``, and of the committed index.

    ``reason`` says why a change was rejected.
    """

    members: str | None = ""
    reason: str | None = None
