"""Puts single messages from the process of a node, and returns a broker's ``PutMessageStatus``.

A member of a group responds to a put with a ``DLedgerResponseCode``. A broker translates it for its producers into a
``PutMessageStatus`` and an ``AppendMessageStatus``. Sources: RocketMQ 4.5.1 to 5.3.3 ``DLedgerCommitLog.putMessage``
and ``asyncPutMessage``, ``DefaultMessageStore.checkMessage``, ``PutMessageStatus``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format import layout
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies, Buffer, PutSettings
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import MAX_PROPERTIES_SIZE, MAX_TOPIC_SIZE, MAX_V1_TOPIC_SIZE
from pyspark_dledger.format.message import offset_msg_id

PUT_OK = "PUT_OK"
MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
UNKNOWN_ERROR = "UNKNOWN_ERROR"
MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"

_VERSION = re.compile(r"([45])\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(-[A-Za-z]+)?")
_NOT_AVAILABLE = (
    ResponseCode.INCONSISTENT_LEADER,
    ResponseCode.NOT_LEADER,
    ResponseCode.LEADER_NOT_READY,
    ResponseCode.DISK_FULL,
)
WAIT_SECONDS = 3.0
"""How long a put waits for its outcome (``dledgerFuture.get(3, TimeUnit.SECONDS)``)."""

_LOCATION = struct.Struct(">qqq")


class BrokerVersion:
    """What differs between versions of RocketMQ. Raises OptionError for an unknown version."""

    def __init__(self, version: str) -> None:
        found = _VERSION.fullmatch(version)
        if found is None:
            raise OptionError(f"expected a version of RocketMQ such as 4.9.8 or 5.3.3, found {version!r}")
        self._number = (int(found[1]), int(found[2]), int(found[3] or 0))
        # 5.0.0-ALPHA and -PREVIEW have the names of 4.9.
        self._is_5 = self._number >= (5, 0, 0) and not (found[4] and self._number == (5, 0, 0))

    @property
    def max_topic_size(self) -> int:
        """In bytes: from 5.1 on longer topics have a message format of their own (V2)."""
        return MAX_TOPIC_SIZE if self._number >= (5, 1, 0) else MAX_V1_TOPIC_SIZE

    @property
    def has_trailing_separator(self) -> bool:
        """Whether properties end with 0x02: up to 4.9.1, and from 5.2.0 on."""
        return self._number <= (4, 9, 1) or self._number >= (5, 2, 0)

    def status(self, code: int, is_appended: bool) -> str:
        """The ``PutMessageStatus`` of a ``DLedgerResponseCode``, which came before or after the leader's append.

        Before the append, any rejection is a busy page cache to a broker.
        """
        page_cache_busy = "OS_PAGE_CACHE_BUSY" if self._is_5 else "OS_PAGECACHE_BUSY"
        if code == ResponseCode.SUCCESS:
            return PUT_OK
        if not is_appended or code == ResponseCode.LEADER_PENDING_FULL:
            return page_cache_busy
        if code == ResponseCode.WAIT_QUORUM_ACK_TIMEOUT:
            return "IN_SYNC_REPLICAS_NOT_ENOUGH" if self._is_5 else page_cache_busy
        return "SERVICE_NOT_AVAILABLE" if code in _NOT_AVAILABLE else UNKNOWN_ERROR


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to put; ``flag`` and the properties are the application's own."""

    topic: str
    body: bytes
    queue_id: int = 0
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    born_timestamp: int | None = None
    """Milliseconds since 1970; None for now."""
    transaction: str = "none"
    delay_level: int = 0


class PutOutcome(NamedTuple):
    """The outcome of a put of one message: response code, location (-1 if it was not appended), and reason."""

    code: int
    pos: int = -1
    queue_offset: int = -1
    reason: str = ""


class PutResponse(Protocol):
    """A member's response to a put (`raft.messages.PutResponse`)."""

    code: int
    pos: int
    positions: Buffer
    reason: str | None


def outcome_of(response: PutResponse) -> PutOutcome:
    """The outcome of a put of one message."""
    if response.code != ResponseCode.SUCCESS:
        return PutOutcome(response.code, response.pos, reason=response.reason or "")
    _, pos, queue_offset = _LOCATION.unpack(response.positions)
    return PutOutcome(response.code, pos, queue_offset)


class AppendMessageResult(NamedTuple):
    """``AppendMessageResult``: the message's offset in the log (``pos`` + 48), its size and its queueOffset."""

    status: str
    wrote_offset: int = 0
    wrote_bytes: int = 0
    msg_id: str = ""
    logics_offset: int = 0


class PutMessageResult(NamedTuple):
    """``PutMessageResult``; ``reason`` gives people details that the status lacks."""

    status: str
    append: AppendMessageResult | None
    reason: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == PUT_OK


Submit = Callable[[Bodies, int], "Future[PutOutcome]"]


@dataclass
class MessagePutter:
    """Puts messages one by one, from any thread but the one that `submit` needs.

    ``submit`` sends a put to a node and returns its outcome. ``version`` is the RocketMQ version of the status names.
    Messages have no identity: as with a broker, a retry is another message.
    """

    submit: Submit
    store_host: bytes
    version: str = "5.3.3"
    queue_nums: int = 4
    born_host: bytes | None = None
    max_message_size: int = MAX_BODY_SIZE
    wait_seconds: float = WAIT_SECONDS

    def __post_init__(self) -> None:
        """Raises OptionError for an unknown version."""
        self._version = BrokerVersion(self.version)

    def put_message(self, message: OutgoingMessage) -> PutMessageResult:
        """Put a message and wait up to 3 s until it is committed. Unless PUT_OK, it may be in the log now or later."""
        problem = self._problem(message)
        if problem is not None:
            status, reason = problem
            return PutMessageResult(status, None, reason)
        try:
            bodies = self._encoded(message)
        except ValueError as error:
            return PutMessageResult(MESSAGE_ILLEGAL, AppendMessageResult(UNKNOWN_ERROR), str(error))
        size = len(bodies.block) - 4
        if size > self.max_message_size:
            reason = f"expected a message of at most {self.max_message_size} bytes, found {size}"
            return PutMessageResult(MESSAGE_ILLEGAL, AppendMessageResult(MESSAGE_SIZE_EXCEEDED), reason)
        try:
            outcome = self.submit(bodies, self.queue_nums).result(self.wait_seconds)
        except FutureTimeoutError:
            reason = f"no outcome within {self.wait_seconds} s: the message may be in the log now or later"
            return PutMessageResult(UNKNOWN_ERROR, None, reason)
        except (DLedgerError, CancelledError, OSError) as error:
            return PutMessageResult(UNKNOWN_ERROR, AppendMessageResult(UNKNOWN_ERROR), str(error))
        return self._result(outcome, size)

    def _problem(self, message: OutgoingMessage) -> tuple[str, str] | None:
        """Status and reason for a message that a broker rejects before encoding it."""
        limit, size = self._version.max_topic_size, len(message.topic.encode("utf-8", "surrogatepass"))
        if size > limit:
            return MESSAGE_ILLEGAL, f"expected a topic of at most {limit} bytes, found {size}"
        if message.transaction not in layout.TRANSACTION_FLAGS:
            known = ", ".join(layout.TRANSACTION_FLAGS)
            return MESSAGE_ILLEGAL, f"expected transaction {known}, found {message.transaction!r}"
        given = {**message.properties, layout.PROPERTY_KEYS: message.keys, layout.PROPERTY_TAGS: message.tags}
        texts = (f"{name}={text};" for name, text in given.items() if text is not None)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > MAX_PROPERTIES_SIZE:
            return PROPERTIES_SIZE_EXCEEDED, f"expected at most {MAX_PROPERTIES_SIZE} bytes of properties, found {size}"
        return None

    def _encoded(self, message: OutgoingMessage) -> Bodies:
        import pyarrow as pa

        from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA

        row = {
            "topic": message.topic,
            "body": message.body,
            "queueId": message.queue_id,
            "tags": message.tags,
            "keys": message.keys,
            "properties": list(message.properties.items()),
            "flag": message.flag,
            "bornTimestamp": message.born_timestamp,
            "transaction": layout.TRANSACTION_FLAGS[message.transaction],
            "delayLevel": message.delay_level,
        }
        try:
            batch = pa.RecordBatch.from_pylist([row], schema=PUT_SCHEMA)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ValueError(f"expected a message whose values fit their types, found {error}") from None
        settings = PutSettings(
            producer=None,
            born_timestamp=now_ms(),
            born_host=self.born_host or self.store_host,
            store_host=self.store_host,
            # Only the leader knows the topic's queues, and checks the queueId.
            queue_counts={message.topic: message.queue_id + 1},
            has_trailing_separator=self._version.has_trailing_separator,
        )
        engine = get_engine()
        return engine.encode_messages(batch, settings, engine.new_ordinals())

    def _result(self, outcome: PutOutcome, size: int) -> PutMessageResult:
        status = self._version.status(outcome.code, outcome.pos >= 0)
        if status != PUT_OK:
            reason = outcome.reason or f"code {outcome.code}"
            return PutMessageResult(status, AppendMessageResult(UNKNOWN_ERROR), reason)
        offset = outcome.pos + layout.ENTRY_HEADER_SIZE
        msg_id = offset_msg_id(self.store_host, offset)
        return PutMessageResult(PUT_OK, AppendMessageResult(PUT_OK, offset, size, msg_id, outcome.queue_offset))
