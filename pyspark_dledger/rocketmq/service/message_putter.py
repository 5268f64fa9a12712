"""Putting one message from the process of a node, with the statuses that a broker of some version answers.

What a member of a group says to a put is a ``DLedgerResponseCode``; a broker tells its producers a
``PutMessageStatus``, and of the append an ``AppendMessageStatus``. Sources: RocketMQ 4.5.1 to 5.3.3
``DLedgerCommitLog.putMessage`` and ``asyncPutMessage``, ``DefaultMessageStore.checkMessage``, ``PutMessageStatus``.
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
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies, Buffer
from pyspark_dledger.format.encode.puts import (
    LONGEST_V1_TOPIC,
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_SIZE,
    PutSettings,
)
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import offset_msg_id

WAIT_SECONDS = 3.0
"""How long a put waits for its outcome (``dledgerFuture.get(3, TimeUnit.SECONDS)``)."""

PUT_OK = "PUT_OK"
SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
UNKNOWN_ERROR = "UNKNOWN_ERROR"
MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"

_VERSION = re.compile(r"([45])\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(-[A-Za-z]+)?")
_PLACE = struct.Struct(">qqq")


@dataclass(frozen=True)
class OutgoingMessage:
    """What an application wants to be stored; ``flag`` and the properties are the application's own."""

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
    """What a member answered to a put of one message: its code, the place (-1 for what was not appended), and why."""

    code: int
    pos: int = -1
    queue_offset: int = -1
    reason: str = ""


class PutReply(Protocol):
    """A member's answer to a put (`raft.messages.PutAnswer`)."""

    code: int
    pos: int
    places: Buffer
    reason: str | None


def outcome_of(answer: PutReply) -> PutOutcome:
    """The outcome of a put of one message."""
    if answer.code != ResponseCode.SUCCESS:
        return PutOutcome(answer.code, answer.pos, reason=answer.reason or "")
    _, pos, queue_offset = _PLACE.unpack(answer.places)
    return PutOutcome(answer.code, pos, queue_offset)


class AppendMessageResult(NamedTuple):
    """``AppendMessageResult``: where the message stands (its ``pos`` and 48), its size and its place in its queue."""

    status: str
    wrote_offset: int = 0
    wrote_bytes: int = 0
    msg_id: str = ""
    logics_offset: int = 0


class PutMessageResult(NamedTuple):
    """``PutMessageResult``; ``reason`` is for people, and tells what the status hides."""

    status: str
    append: AppendMessageResult | None
    reason: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == PUT_OK


Submit = Callable[[Bodies, int], "Future[PutOutcome]"]


class MessagePutter:
    """Puts messages one by one, from any thread but the one that `submit` needs.

    ``submit`` hands a put to a node and gives what comes of it; ``version`` is the RocketMQ whose names are answered.
    Messages have no identity: as with a broker, one that is put again is another message.
    """

    def __init__(
        self,
        submit: Submit,
        store_host: bytes,
        *,
        version: str = "5.3.3",
        queue_nums: int = 4,
        born_host: bytes | None = None,
        max_message_size: int = MAX_BODY_SIZE,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._submit = submit
        self._host = store_host
        self._born_host = born_host or store_host
        self._names = _Names(version)
        self._queue_nums = queue_nums
        self._most = max_message_size
        self._wait = wait_seconds
        self._engine = get_engine()

    def put_message(self, message: OutgoingMessage) -> PutMessageResult:
        """Put a message, and wait until it is committed, 3 s at most. It may be there, or come to be, unless PUT_OK."""
        problem = self._checked(message)
        if problem is not None:
            return problem
        try:
            bodies = self._encoded(message)
        except ValueError as error:
            return PutMessageResult(MESSAGE_ILLEGAL, AppendMessageResult(UNKNOWN_ERROR), str(error))
        size = len(bodies.block) - 4
        if size > self._most:
            reason = f"expected a message of at most {self._most} bytes, found {size}"
            return PutMessageResult(MESSAGE_ILLEGAL, AppendMessageResult(MESSAGE_SIZE_EXCEEDED), reason)
        try:
            outcome = self._submit(bodies, self._queue_nums).result(self._wait)
        except FutureTimeoutError:
            reason = f"expected an outcome within {self._wait} s, found none: the message may be there, or come to be"
            return PutMessageResult(UNKNOWN_ERROR, None, reason)
        except (DLedgerError, CancelledError, OSError) as error:
            return PutMessageResult(UNKNOWN_ERROR, AppendMessageResult(UNKNOWN_ERROR), str(error))
        return self._result(outcome, size)

    def _checked(self, message: OutgoingMessage) -> PutMessageResult | None:
        """What a broker refuses before it encodes anything."""
        length = len(message.topic.encode("utf-8", "surrogatepass"))
        if length > self._names.longest_topic:
            reason = f"expected a topic of at most {self._names.longest_topic} bytes, found {length}"
            return PutMessageResult(MESSAGE_ILLEGAL, None, reason)
        if message.transaction not in layout.TRANSACTION_FLAGS:
            reason = f"expected transaction {', '.join(layout.TRANSACTION_FLAGS)}, found {message.transaction!r}"
            return PutMessageResult(MESSAGE_ILLEGAL, None, reason)
        given = {**message.properties, layout.PROPERTY_KEYS: message.keys, layout.PROPERTY_TAGS: message.tags}
        texts = (f"{name}={text};" for name, text in given.items() if text is not None)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > MAX_PROPERTIES_SIZE:
            reason = f"expected at most {MAX_PROPERTIES_SIZE} bytes of properties, found {size}"
            return PutMessageResult(PROPERTIES_SIZE_EXCEEDED, None, reason)
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
            born_host=self._born_host,
            store_host=self._host,
            # Whether the queue is one of the topic's is the leader's to say.
            queue_counts={message.topic: message.queue_id + 1},
            has_trailing_separator=self._names.has_trailing_separator,
        )
        return self._engine.encode_messages(batch, settings, self._engine.new_ordinals())

    def _result(self, outcome: PutOutcome, size: int) -> PutMessageResult:
        status = self._names.status(outcome.code, outcome.pos >= 0)
        if status != PUT_OK:
            return PutMessageResult(
                status, AppendMessageResult(UNKNOWN_ERROR), outcome.reason or f"code {outcome.code}"
            )
        offset = outcome.pos + layout.ENTRY_HEADER_SIZE
        msg_id = offset_msg_id(self._host, offset)
        return PutMessageResult(PUT_OK, AppendMessageResult(PUT_OK, offset, size, msg_id, outcome.queue_offset))


class _Names:
    """What differs between versions. Raises OptionError for one that is none."""

    def __init__(self, version: str) -> None:
        found = _VERSION.fullmatch(version)
        if found is None:
            raise OptionError(f"expected a version of RocketMQ such as 4.9.8 or 5.3.3, found {version!r}")
        self._number = (int(found[1]), int(found[2]), int(found[3] or 0))
        # 5.0.0-ALPHA and -PREVIEW have the names of 4.9.
        self._is_5 = self._number >= (5, 0, 0) and not (found[4] and self._number == (5, 0, 0))

    @property
    def longest_topic(self) -> int:
        """Bytes: from 5.1 on longer topics have a message format of their own (V2)."""
        return MAX_TOPIC_SIZE if self._number >= (5, 1, 0) else LONGEST_V1_TOPIC

    @property
    def has_trailing_separator(self) -> bool:
        """Whether properties end with 0x02: up to 4.9.1, and from 5.2.0 on."""
        return self._number <= (4, 9, 1) or self._number >= (5, 2, 0)

    @property
    def page_cache_busy(self) -> str:
        return "OS_PAGE_CACHE_BUSY" if self._is_5 else "OS_PAGECACHE_BUSY"

    def status(self, code: int, is_appended: bool) -> str:
        """The ``PutMessageStatus`` of a code. What was refused before the append is a busy page cache to a broker."""
        if code == ResponseCode.SUCCESS:
            return PUT_OK
        if not is_appended:
            return self.page_cache_busy
        return self._statuses.get(code, UNKNOWN_ERROR)

    @property
    def _statuses(self) -> dict[int, str]:
        return {
            **dict.fromkeys(
                (
                    ResponseCode.INCONSISTENT_LEADER,
                    ResponseCode.NOT_LEADER,
                    ResponseCode.LEADER_NOT_READY,
                    ResponseCode.DISK_FULL,
                ),
                SERVICE_NOT_AVAILABLE,
            ),
            ResponseCode.WAIT_QUORUM_ACK_TIMEOUT: IN_SYNC_REPLICAS_NOT_ENOUGH if self._is_5 else self.page_cache_busy,
            ResponseCode.LEADER_PENDING_FULL: self.page_cache_busy,
        }


def put_message_status(code: int, is_appended: bool, version: str) -> str:
    """The name of the ``PutMessageStatus`` that a broker of a version gives for a ``DLedgerResponseCode``.

    ``is_appended``: whether the leader had appended the message when it answered so. Raises OptionError for a version
    that is none.
    """
    return _Names(version).status(code, is_appended)
