"""The messages of DLedger's protocol as values, whatever bytes carry them (protocol package of the Java DLedger).

Indexes and terms are -1 where there is none, as in Java. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.store.dledger_store import Entry, EntryRun


class RequestCode(IntEnum):
    """``DLedgerRequestCode``. 51006 and 59999 are 0.4.0's, answered as unsupported; 58001 to 58005 are our own."""

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
    """What every request and every answer has (``RequestOrResponse``)."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: int = ResponseCode.SUCCESS
    leader_id: str | None = None
    term: int = -1


class Request(WireMessage):
    """What one node or client asks of one node."""

    __slots__ = ()


class Response(WireMessage):
    """What that node answers; ``code`` tells whether it did it."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class VoteRequest(Request):
    """A candidate (``leader_id``) asks for a vote; ``ledger_end_*`` are those of its log."""

    ledger_end_index: int = -1
    ledger_end_term: int = -1


@dataclass(slots=True, kw_only=True)
class VoteResponse(Response):
    """Whether it gets the vote, and if not, why."""

    vote_result: VoteResult = VoteResult.UNKNOWN


@dataclass(slots=True, kw_only=True)
class HeartBeatRequest(Request):
    """A leader (``leader_id``) tells that it leads ``term``."""


@dataclass(slots=True, kw_only=True)
class HeartBeatResponse(Response):
    """Whether it is followed, by ``code``."""


@dataclass(slots=True, kw_only=True)
class PushRequest(Request):
    """``data`` holds ``count`` consecutive encoded entries, the first with ``first_index``.

    COMPARE and TRUNCATE have exactly one, COMMIT none (``first_index`` -1). ``is_batch`` is for Java followers: the
    entries go as ``batchEntry`` even where it is one.
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
    """``index`` and ``count`` are the request's (``index`` None for COMMIT), begin and end those of the follower."""

    index: int | None = None
    count: int = 0
    begin_index: int = -1
    end_index: int = -1


@dataclass(slots=True, kw_only=True)
class AppendRequest(Request):
    """``is_restart`` is ours: it begins a pipeline anew on a connection where an append was refused before.

    After a refused append the node refuses all that follow on that connection with the same code, so that a pipeline
    never comes to stand in another order, until one says ``is_restart``. Java peers know neither this nor batches.
    """

    bodies: Bodies = field(default_factory=lambda: Bodies(0, b""))
    is_restart: bool = True


@dataclass(slots=True, kw_only=True)
class AppendResponse(Response):
    """``index`` and ``pos`` of the first entry; how many; and every run of them (empty from Java)."""

    index: int = -1
    pos: int = -1
    count: int = 1
    runs: tuple[EntryRun, ...] = ()


@dataclass(slots=True, kw_only=True)
class GetRequest(Request):
    """``is_committed`` is ours: only a committed entry is wanted, and an absence that is certain."""

    begin_index: int = -1
    is_committed: bool = False


@dataclass(slots=True, kw_only=True)
class GetResponse(Response):
    """The entry, or none."""

    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MetadataRequest(Request):
    """Asks who the members are, and who leads."""


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
    """Whether leadership was handed over, by ``code``."""


@dataclass(slots=True, kw_only=True)
class StatusRequest(Request):
    """Ours: how a member stands. Binary only."""


@dataclass(slots=True, kw_only=True)
class StatusResponse(Response):
    """How the member stands; ``peers`` maps id to address, ``problem`` is the latest that is not solved, or "".

    ``serves_messages``: it answers `TopicsRequest`, `PutRequest` and `ConfigRequest` while it leads.
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
    """Ours: committed entries of any member, from ``first_index`` on. Binary only.

    Waits up to ``wait_ms`` for that entry to be committed, then answers without entries.
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
    """Ours: how many queues topics have, which a leader makes with ``queue_nums`` where they are new. Binary only."""

    names: tuple[str, ...] = ()
    queue_nums: int = 4


@dataclass(slots=True, kw_only=True)
class TopicsResponse(Response):
    """The queues of each topic, and the host that messages are stored with: 8 (IPv4 and port) or 20 bytes.

    ``reason`` says why it was refused, where the application says so.
    """

    queue_counts: dict[str, int] = field(default_factory=dict)
    store_host: bytes = b""
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class PutRequest(AppendRequest):
    """Ours: bodies are messages, of which the leader's application makes entries. Binary only.

    In a pipeline it counts as an append. ``queue_nums`` is of topics that are new.
    """

    queue_nums: int = 4


PLACE_SIZE = 24
"""Bytes of index, pos and queueOffset of one message."""


@dataclass(slots=True, kw_only=True)
class PutResponse(Response):
    """Where the ``count`` messages of the request stand, once all of them are committed.

    ``places`` has index, pos and queueOffset (i64, big-endian) of each, in the request's order, whether it was appended
    by this put or was there already; empty where the put was not done. ``index`` and ``pos`` are of the first entry
    that this put appended, -1 where it appended none. ``reason`` says why it was refused, where the application does.
    """

    index: int = -1
    pos: int = -1
    count: int = 0
    places: Buffer = b""
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class ConfigRequest(Request):
    """Ours: asks a leader for the metadata that is kept beside the log. Binary only."""


@dataclass(slots=True, kw_only=True)
class ConfigResponse(Response):
    """The metadata by file name."""

    files: dict[str, bytes] = field(default_factory=dict)
