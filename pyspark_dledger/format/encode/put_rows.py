"""Encodes rows as puts: CommitLog messages as RocketMQ's broker encodes them, each with its identity.

The reference of `engine.Engine.encode_messages`. Source: RocketMQ 4.9.8 and 5.3.3
``DLedgerCommitLog.MessageSerializer``, ``MessageDecoder.messageProperties2String``, ``SelectMessageQueueByHash``; 5.3.3
``HookUtils.handleScheduleMessage``.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.format.columns import PROPERTIES
from pyspark_dledger.format.encode.encoded import (
    LENGTH_SIZE,
    MAX_BLOCK_SIZE,
    MAX_BODY_SIZE,
    PRODUCER_SIZE,
    Bodies,
    MalformedPut,
    Ordinals,
    PutSettings,
)
from pyspark_dledger.format.message import encode_message

PUT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("queueId", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", PROPERTIES),
        ("flag", pa.int32()),
        ("bornTimestamp", pa.int64()),
        ("transaction", pa.int32()),
        ("delayLevel", pa.int32()),
    ]
)
"""The columns of rows that become messages. A batch can have any of them, in any order; a missing one is null in every
row. Only the topic must not be null. ``bornTimestamp`` is in milliseconds since 1970; ``transaction`` is in the bits of
sysFlag (0 none, 4 prepared, 8 commit, 12 rollback); ``delayLevel`` 0 is none, and levels above 18 count as 18."""

_MAX_QUEUES = 2**31 - 1
_TOPIC_BYTE = re.compile(rb"[%|a-zA-Z0-9_-]*")
_SEPARATOR = re.compile(rb"[\x01\x02]")

_KEYS = layout.PROPERTY_KEYS.encode()
_DELAY = layout.PROPERTY_DELAY.encode()
_ID = layout.PROPERTY_ID.encode()
_SCHEDULE_TOPIC = layout.SCHEDULE_TOPIC.encode()

_Pair = tuple[bytes, bytes | None]


class _Row(NamedTuple):
    """The values of a row in the order of `PUT_SCHEMA`, texts as UTF-8."""

    topic: bytes | None
    body: bytes | None
    queue_id: int | None
    tags: bytes | None
    keys: bytes | None
    properties: list[_Pair] | None
    flag: int | None
    born_timestamp: int | None
    transaction: int | None
    delay_level: int | None


class _Message(NamedTuple):
    """The message of a row, without its identity."""

    row: _Row
    topic: bytes
    queue_id: int
    properties: list[tuple[bytes, bytes]]


new_ordinals = Ordinals


def encode_messages(batch: pa.RecordBatch, settings: PutSettings, ordinals: Ordinals) -> Bodies:
    check_batch(batch)
    check_settings(settings)
    if not isinstance(ordinals, Ordinals):
        raise TypeError(f"expected ordinals of this engine's new_ordinals, found {type(ordinals).__name__}")
    encoder = _Encoder(settings)
    messages = [encoder.message(number, row) for number, row in enumerate(_rows(batch))]
    if encoder.size > MAX_BLOCK_SIZE:
        raise ValueError(
            f"expected at most {MAX_BLOCK_SIZE} bytes of messages with their lengths, found {encoder.size}: "
            "encode fewer rows at once"
        )
    encoded = [encoder.encode(message, ordinals) for message in messages]
    return Bodies.of(encoded)


def check_batch(batch: pa.RecordBatch) -> None:
    """Raises ValueError for no rows, TypeError for columns that are not in `PUT_SCHEMA` or have another type."""
    seen = set()
    for field in batch.schema:
        if field.name not in PUT_SCHEMA.names or field.name in seen:
            raise TypeError(f"expected each column once of {', '.join(PUT_SCHEMA.names)}, found {field.name}")
        seen.add(field.name)
        expected = PUT_SCHEMA.field(field.name).type
        if field.type != expected:
            raise TypeError(f"expected column {field.name} of type {expected}, found {field.type}")
    if batch.num_rows == 0:
        raise ValueError("expected at least one row, found none")


def check_settings(settings: PutSettings) -> None:
    """Raises ValueError for invalid settings."""
    if settings.producer is not None and len(settings.producer) != PRODUCER_SIZE:
        raise ValueError(f"expected a producer of {PRODUCER_SIZE} bytes, found {len(settings.producer)}")
    for name in ("born_host", "store_host"):
        if len(getattr(settings, name)) not in layout.HOST_SIZES:
            raise ValueError(f"expected {name} of 8 or 20 bytes, found {len(getattr(settings, name))}")
    if not INT64_MIN <= settings.born_timestamp <= INT64_MAX:
        raise ValueError(f"expected born_timestamp of 64 bits, found {settings.born_timestamp}")
    if not 0 <= settings.round_robin <= INT64_MAX:
        raise ValueError(f"expected round_robin from 0 to {INT64_MAX}, found {settings.round_robin}")
    for topic, count in settings.queue_counts.items():
        if not 1 <= count <= _MAX_QUEUES:
            raise ValueError(f"expected from 1 to {_MAX_QUEUES} queues of topic {topic}, found {count}")


def topic_problem(topic: bytes) -> str | None:
    """The problem of an invalid topic name (``TopicValidator``)."""
    if not 1 <= len(topic) <= layout.MAX_TOPIC_SIZE:
        return f"expected a topic of 1 to {layout.MAX_TOPIC_SIZE} characters, found {len(topic)}"
    found = _TOPIC_BYTE.match(topic)
    assert found
    if found.end() < len(topic):
        return f"expected a topic of %|a-zA-Z0-9_-, found byte {topic[found.end()]} in it"
    return None


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    nothing = [None] * batch.num_rows
    columns = [_values(batch.column(name)) if name in batch.schema.names else nothing for name in PUT_SCHEMA.names]
    return map(_Row._make, zip(*columns, strict=True))


def _values(column: pa.Array) -> list[object]:
    """The values of a column. Texts are bytes, so that the checks find invalid UTF-8."""
    if pa.types.is_string(column.type):
        return column.cast(pa.binary()).to_pylist()
    if pa.types.is_map(column.type):
        return column.cast(pa.map_(pa.binary(), pa.binary())).to_pylist()
    return column.to_pylist()


class _Encoder:
    """Encodes the rows of one batch; `size` is the block's size so far, in bytes."""

    def __init__(self, settings: PutSettings) -> None:
        self._settings = settings
        self._queue_counts = {topic.encode(): count for topic, count in settings.queue_counts.items()}
        self._in_turn: Counter[bytes] = Counter()
        self.size = 0

    def message(self, number: int, row: _Row) -> _Message:
        """The message of a row. Raises ValueError with the row's number."""
        try:
            message = self._message(row)
            self.size += LENGTH_SIZE + self._message_size(message)
        except MalformedPut as problem:
            raise ValueError(f"row {self._settings.first_row + number}: {problem}") from None
        return message

    def _message(self, row: _Row) -> _Message:
        topic = _checked_topic(row.topic)
        if (row.transaction or 0) not in layout.TRANSACTIONS:
            raise MalformedPut(f"expected transaction 0, 4, 8 or 12, found {row.transaction}: 0 is none")
        if (row.delay_level or 0) < 0:
            raise MalformedPut(f"expected a delayLevel of at least 0, found {row.delay_level}: 0 is none")
        queues = self._queue_counts.get(topic)
        if queues is None:
            raise MalformedPut(
                f"expected the number of queues of topic {topic.decode()}, found none: request it from the leader"
            )
        if row.queue_id is not None and not 0 <= row.queue_id < queues:
            raise MalformedPut(
                f"expected a queueId from 0 to {queues - 1}, found {row.queue_id}: add queues to the topic, or "
                "leave queueId null"
            )
        properties = _Properties(topic)
        for name, value in row.properties or ():
            properties.add(name, value)
        properties.add(_KEYS, row.keys)
        properties.add(layout.PROPERTY_TAGS.encode(), row.tags)
        queue_id = self._queue_id(topic, row.queue_id, properties.value_of(_KEYS), queues)
        if row.delay_level:
            topic, queue_id = _delay(row.delay_level, row.transaction or 0, topic, queue_id, properties)
        return _Message(row, topic, queue_id, properties.pairs)

    def _queue_id(self, topic: bytes, given: int | None, keys: bytes, queues: int) -> int:
        if given is not None:
            return given
        if keys:
            return abs(java_hash(keys.decode())) % queues
        self._in_turn[topic] += 1
        return (self._settings.round_robin + self._in_turn[topic] - 1) % queues

    def _message_size(self, message: _Message) -> int:
        pairs = message.properties + ([(_ID, bytes(32))] if self._settings.producer is not None else [])
        properties_size = len(self._joined(pairs))
        if properties_size > layout.MAX_PROPERTIES_SIZE:
            raise MalformedPut(
                f"expected at most {layout.MAX_PROPERTIES_SIZE} bytes of properties, found {properties_size}: "
                "move long values into the body"
            )
        hosts_size = len(self._settings.born_host) + len(self._settings.store_host)
        topic_size = len(message.topic) + (2 if len(message.topic) > layout.MAX_V1_TOPIC_SIZE else 1)
        size = layout.MIN_MESSAGE_SIZE - 17 + hosts_size + topic_size + properties_size + len(message.row.body or b"")
        if size > MAX_BODY_SIZE:
            raise MalformedPut(
                f"expected a message of at most {MAX_BODY_SIZE} bytes, found {size}: shorten or compress the body"
            )
        return size

    def _joined(self, pairs: list[tuple[bytes, bytes]]) -> bytes:
        joined = b"\x02".join(name + b"\x01" + value for name, value in pairs)
        return joined + b"\x02" if pairs and self._settings.has_trailing_separator else joined

    def encode(self, message: _Message, ordinals: Ordinals) -> bytes:
        """The bytes of a message with its identity."""
        row, settings = message.row, self._settings
        pairs = message.properties
        if settings.producer is not None:
            content = murmur128(_content(row))
            counted = murmur128(content + ordinals.next(content).to_bytes(8, "little"))
            pairs = [*pairs, (_ID, base64.urlsafe_b64encode(settings.producer + counted))]
        return encode_message(
            message.topic,
            row.body or b"",
            0,
            queue_id=message.queue_id,
            flag=row.flag or 0,
            sys_flag=row.transaction or 0,
            born_timestamp=settings.born_timestamp if row.born_timestamp is None else row.born_timestamp,
            born_host=settings.born_host,
            store_host=settings.store_host,
            properties=self._joined(pairs),
        )


class _Properties:
    """The checked properties of a message."""

    def __init__(self, topic: bytes) -> None:
        self._may_delay = topic == _SCHEDULE_TOPIC
        self._by_name: dict[bytes, bytes] = {}

    def add(self, name: bytes, value: bytes | None) -> None:
        """Add a property of the row."""
        if value is None:
            return
        if not name:
            raise MalformedPut("expected a property with a name, found an empty name: remove the property")
        for what, text in (("name", name), ("value", value)):
            if not is_text(text):
                raise MalformedPut(
                    f"expected UTF-8 as the {what} of a property, found other bytes: encode them as text"
                )
            if _SEPARATOR.search(text):
                raise MalformedPut(
                    f"expected no character 1 or 2 in the {what} of a property, found one: these separate properties"
                )
        if name == _ID:
            raise MalformedPut(
                f"expected no property {layout.PROPERTY_ID}, found one: remove it, messages get their own"
            )
        if name == _DELAY and not self._may_delay:
            raise MalformedPut(f"expected no property {layout.PROPERTY_DELAY}, found one: use the column delayLevel")
        self.put(name, value)

    def put(self, name: bytes, value: bytes) -> None:
        """Add a property that is valid by itself."""
        if name in self._by_name:
            raise MalformedPut(
                f"expected property {name.decode()} once, found it twice: remove one, in "
                "properties or in its own column"
            )
        self._by_name[name] = value

    def value_of(self, name: bytes) -> bytes:
        return self._by_name.get(name, b"")

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        return list(self._by_name.items())


def _checked_topic(topic: bytes | None) -> bytes:
    if topic is None:
        raise MalformedPut("expected a topic, found null: set one in every row, or one for all rows")
    problem = topic_problem(topic)
    if problem:
        raise MalformedPut(f"{problem}: choose another name")
    return topic


def _delay(level: int, transaction: int, topic: bytes, queue_id: int, properties: _Properties) -> tuple[bytes, int]:
    """The topic and queue in which a delayed message waits. Its properties get the real topic and queue."""
    if transaction in layout.TRANSACTIONS_OUTSIDE_QUEUES:  # delayed when it is committed
        properties.put(_DELAY, str(level).encode())
        return topic, queue_id
    level = min(level, layout.MAX_DELAY_LEVEL)
    properties.put(_DELAY, str(level).encode())
    properties.put(layout.PROPERTY_REAL_TOPIC.encode(), topic)
    properties.put(layout.PROPERTY_REAL_QUEUE_ID.encode(), str(queue_id).encode())
    return _SCHEDULE_TOPIC, level - 1


def _content(row: _Row) -> bytes:
    """The user's values without defaults and assigned values: the same when a row is written again.

    Null flags and text lengths are included, so that different rows have different bytes. The body is included as the
    hashes of its halves. A hash collision matters only if a retry has the rows in another order: then the ordinals of
    the colliding rows are exchanged.
    """
    parts = [_text(row.topic), _length(row.body), murmur128_halves(row.body) if row.body is not None else b""]
    parts += [_text(row.tags), _text(row.keys), _length(row.properties)]
    parts += [_text(text) for pair in row.properties or () for text in pair]
    numbers = row.flag, row.born_timestamp, row.transaction, row.delay_level, row.queue_id
    return b"".join([*parts, *_numbers(numbers)])


def _length(value: bytes | list[_Pair] | None) -> bytes:
    """The length + 1, or 0 for null."""
    return (0 if value is None else len(value) + 1).to_bytes(4, "little")


def _text(value: bytes | None) -> bytes:
    return _length(value) + (value or b"")


def _numbers(values: Iterable[int | None]) -> Iterator[bytes]:
    for value in values:
        yield b"\0" if value is None else b"\1" + value.to_bytes(8, "little", signed=True)


_MASK = 2**64 - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


def murmur128(data: bytes) -> bytes:
    """The 16 bytes of the hash, both halves little-endian."""
    length = len(data)
    h1 = h2 = 0
    whole = length - length % _BLOCK.size
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 = (_rotate(h1 ^ _mix1(k1), 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 = (_rotate(h2 ^ _mix2(k2), 31) + h1) * 5 + 0x38495AB5 & _MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(_BLOCK.size, b"\0"))
    h1 ^= _mix1(k1) ^ length
    h2 ^= _mix2(k2) ^ length
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2 & _MASK
    return _BLOCK.pack(h1, h2 + h1 & _MASK)


def murmur128_halves(data: bytes) -> bytes:
    """The hashes of both halves, cut at a multiple of 16 bytes; a processor computes them in parallel."""
    half = len(data) // (2 * _BLOCK.size) * _BLOCK.size
    return murmur128(data[:half]) + murmur128(data[half:])


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _mix1(value: int) -> int:
    return _rotate(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(value: int) -> int:
    return _rotate(value * _C2 & _MASK, 33) * _C1 & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
