"""Checks and stamps puts for a leader: the reference of these calls of `Engine`.

Puts come from the network, so every length and field is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import (
    ID_SIZE,
    LENGTH_SIZE,
    MAX_BLOCK_SIZE,
    MAX_BODY_SIZE,
    Bodies,
    MalformedPut,
    NumberedPuts,
    Puts,
    check_stamps,
)
from pyspark_dledger.format.encode.entry_encoding import unpack_bodies
from pyspark_dledger.format.encode.put_rows import is_text, topic_problem
from pyspark_dledger.format.message import (
    MESSAGE_MAGICS,
    Message,
    decode_put_id,
    encode_message,
    has_message_magic,
    message_crc,
    parse_message,
)

_UNIT = record_struct(layout.INDEX_UNIT)
_ID = layout.PROPERTY_ID.encode()
_LOCATION = struct.Struct(">qqq")
_NOT_IN_QUEUE = layout.TRANSACTION_FLAGS["prepared"]
# An inner batch is not known: its messages would need a queue offset each.
_KNOWN_FLAGS = (
    layout.FLAG_COMPRESSED
    | layout.FLAG_MULTI_TAGS
    | layout.FLAG_TRANSACTION_MASK
    | layout.FLAG_BORN_HOST_V6
    | layout.FLAG_STORE_HOST_V6
    | layout.FLAG_COMPRESSION_MASK << layout.FLAG_COMPRESSION_SHIFT
)


class _Put(NamedTuple):
    """The fields that `read_puts` returns of a put."""

    queue: tuple[str, int]
    sys_flag: int
    identity: bytes | None


def read_puts(bodies: Bodies) -> Puts:
    puts = [_checked(number, body) for number, body in enumerate(unpack_bodies(bodies))]
    numbers: dict[tuple[str, int], int] = {}
    for put in puts:
        numbers.setdefault(put.queue, len(numbers))
    return Puts(
        list(numbers),
        np.array([numbers[put.queue] for put in puts], np.int32),
        np.array([put.sys_flag for put in puts], np.int32),
        b"".join(put.identity or bytes(ID_SIZE) for put in puts),
        np.array([put.identity is not None for put in puts], np.bool_),
    )


def number_puts(puts: Puts, keep: npt.NDArray[np.bool_], ends: list[int]) -> NumberedPuts:
    ends, offsets = list(ends), np.zeros(len(keep), np.int64)
    for number in np.flatnonzero(keep & ((puts.sys_flag & _NOT_IN_QUEUE) == 0)):
        offsets[number] = ends[puts.queue[number]]
        ends[puts.queue[number]] += 1
    return NumberedPuts(offsets, ends)


def locate_puts(
    bodies: Bodies, first_index: int, runs: Sequence[tuple[int, int]], queue_offsets: npt.NDArray[np.int64]
) -> bytes:
    starts, pos, located = dict(runs), 0, []
    for index, (body, queue_offset) in enumerate(zip(unpack_bodies(bodies), queue_offsets, strict=True), first_index):
        pos = starts.get(index, pos)
        located.append(_LOCATION.pack(index, pos, queue_offset))
        pos += layout.ENTRY_HEADER_SIZE + len(body)
    return b"".join(located)


def stamp_puts(
    bodies: Bodies,
    keep: npt.NDArray[np.bool_],
    queue_offsets: npt.NDArray[np.int64],
    store_timestamp: int,
    store_host: bytes,
) -> Bodies:
    check_stamps(bodies, keep, queue_offsets, store_timestamp, store_host)
    stamped = [
        _stamped(number, body, int(queue_offset), store_timestamp, store_host)
        for number, (body, is_kept, queue_offset) in enumerate(
            zip(unpack_bodies(bodies), keep, queue_offsets, strict=True)
        )
        if is_kept
    ]
    size = LENGTH_SIZE * len(stamped) + sum(map(len, stamped))
    if size > MAX_BLOCK_SIZE:
        raise ValueError(f"expected at most {MAX_BLOCK_SIZE} bytes of messages with their lengths, found {size}")
    return Bodies.of(stamped)


def patch_physical_offsets(data: bytearray, units: bytearray) -> None:
    check_units(data, units)
    start = 0
    for _, pos, size, _, _ in _UNIT.iter_unpack(units):
        body, body_size = start + layout.ENTRY_HEADER_SIZE, size - layout.ENTRY_HEADER_SIZE
        if _is_message(bytes(data[body : body + layout.PHYSICAL_OFFSET_AT]), body_size):
            struct.pack_into(">q", data, body + layout.PHYSICAL_OFFSET_AT, pos + layout.ENTRY_HEADER_SIZE)
        start += size


def check_units(data: bytearray, units: bytearray) -> None:
    """Raises ValueError unless the sizes in index units add up to the bytes of the entries."""
    if len(units) % layout.INDEX_UNIT_SIZE:
        raise ValueError(f"expected units of 32 bytes, found {len(units)} bytes")
    size = 0
    for number, unit in enumerate(_UNIT.iter_unpack(units)):
        if unit[2] < layout.ENTRY_HEADER_SIZE:
            raise ValueError(f"unit {number}: expected a size of at least 48, found {unit[2]}")
        size += unit[2]
    if size != len(data):
        raise ValueError(f"expected {size} bytes of entries by their units, found {len(data)}")


def _is_message(front: bytes, size: int) -> bool:
    """Whether the first bytes of a body have a message's magic, and its size."""
    if size < layout.MIN_MESSAGE_SIZE or not has_message_magic(front, 0, size):
        return False
    return int.from_bytes(front[:4], "big", signed=True) == size


def _checked(number: int, body: bytes) -> _Put:
    try:
        return _check(body)
    except MalformedPut as problem:
        raise ValueError(f"message {number}: {problem}") from None


def _check(body: bytes) -> _Put:
    message = _parsed(body)
    topic = message.raw_topic
    is_v1 = len(topic) <= layout.MAX_V1_TOPIC_SIZE
    magic = layout.MESSAGE_MAGIC_V1 if is_v1 else layout.MESSAGE_MAGIC_V2
    if message.magic != magic:
        raise MalformedPut(f"expected magic {magic} for a topic of {len(topic)} bytes, found {message.magic}")
    problem = topic_problem(topic)
    if problem:
        raise MalformedPut(problem)
    if message.queue_id < 0:
        raise MalformedPut(f"expected a queueId of at least 0, found {message.queue_id}")
    if message.sys_flag & ~_KNOWN_FLAGS:
        raise MalformedPut(
            f"expected only bits of {_KNOWN_FLAGS:#x} in sysFlag, found {message.sys_flag & 0xFFFFFFFF:#x}"
        )
    computed = message_crc(message.body)
    if message.body_crc != computed:
        raise MalformedPut(f"expected message CRC {message.body_crc}, found {computed}")
    return _Put((topic.decode(), message.queue_id), message.sys_flag, _checked_properties(message.raw_properties))


def _parsed(body: bytes) -> Message:
    if len(body) >= layout.MIN_MESSAGE_SIZE and not has_message_magic(body, 0, len(body)):
        found = int.from_bytes(body[4:8], "big", signed=True)
        raise MalformedPut(f"expected message magic {MESSAGE_MAGICS[0]} or {MESSAGE_MAGICS[1]}, found {found}")
    message = parse_message(body, 0, len(body), 0)
    if not isinstance(message, Message):
        raise MalformedPut(message.sentence())
    return message


def _checked_properties(properties: bytes) -> bytes | None:
    """Check that every property has a name and one value. Returns the identity among them."""
    if len(properties) > layout.MAX_PROPERTIES_SIZE:
        raise MalformedPut(
            f"expected at most {layout.MAX_PROPERTIES_SIZE} bytes of properties, found {len(properties)}"
        )
    if not is_text(properties):
        raise MalformedPut("expected UTF-8 as properties, found other bytes")
    identity = None
    for number, part in enumerate(properties.removesuffix(b"\x02").split(b"\x02") if properties else ()):
        name, *values = part.split(b"\x01")
        if not name or len(values) != 1:
            raise MalformedPut(f"expected a name, character 1 and a value as property {number}, found other bytes")
        if name != _ID:
            continue
        if identity is not None:
            raise MalformedPut(f"expected property {layout.PROPERTY_ID} once, found it twice")
        identity = decode_put_id(values[0])
        if identity is None:
            raise MalformedPut(f"expected 32 characters of a-zA-Z0-9_- as {layout.PROPERTY_ID}, found other bytes")
    return identity


def _stamped(number: int, body: bytes, queue_offset: int, store_timestamp: int, store_host: bytes) -> bytes:
    try:
        message = _parsed(body)
        stamped = _restored(body, message, queue_offset, store_timestamp, store_host)
        if len(stamped) > MAX_BODY_SIZE:
            raise MalformedPut(f"expected at most {MAX_BODY_SIZE} bytes with the store's host, found {len(stamped)}")
    except MalformedPut as problem:
        raise ValueError(f"message {number}: {problem}") from None
    return stamped


def _restored(body: bytes, message: Message, queue_offset: int, store_timestamp: int, store_host: bytes) -> bytes:
    """The message as it is stored, without its physicalOffset."""
    return encode_message(
        body[message.topic_start : message.topic_start + message.topic_length],
        body[message.body_start : message.body_start + message.body_length],
        message.physical_offset,
        magic=message.magic,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=queue_offset,
        sys_flag=message.sys_flag & ~layout.FLAG_STORE_HOST_V6,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        properties=body[message.properties_start : message.properties_start + message.properties_length],
        body_crc=message.body_crc,
    )
