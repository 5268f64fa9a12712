"""Decodes and encodes RocketMQ's CommitLog messages: V1 and V2, IPv4 and IPv6 hosts, properties, flags. Big-endian.

Source: RocketMQ 5.3.3 ``MessageDecoder``, ``MessageExtEncoder``, ``MessageSysFlag``, and for copies
``CommitLog.checkMessageAndReturnSize``.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import Buffer, crc32, record_struct
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.scan.segment_file import SegmentFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]
MESSAGE_MAGICS = (layout.MESSAGE_MAGIC_V1, layout.MESSAGE_MAGIC_V2)

_FIXED = record_struct(layout.MESSAGE_HEADER)
# bornHost, storeTimestamp, storeHost, reconsumeTimes, preparedTransactionOffset, bodyLength
_MIDDLE = {
    (born, store): struct.Struct(f">{born}sq{store}siqi") for born in layout.HOST_SIZES for store in layout.HOST_SIZES
}
_MAX_FRONT_SIZE = _FIXED.size + _MIDDLE[layout.HOST_SIZES[1], layout.HOST_SIZES[1]].size
_TOPIC_LENGTH_SIZES = {layout.MESSAGE_MAGIC_V1: 1, layout.MESSAGE_MAGIC_V2: 2}
_PROPERTIES_LENGTH_SIZE = 2
_CRC_DIGITS = 10
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PROPERTY_CRC = re.compile(re.escape(layout.PROPERTY_CRC.encode()) + rb"\x01([0-9]{10})\x02")
MESSAGE_CRC_MASK = 0x7FFFFFFF
_PUT_ID_TEXT = re.compile(rb"[a-zA-Z0-9_-]{32}")
STORED_SIZE = _FIXED.size + layout.HOST_SIZES[1] + 8
"""Bytes of a message's beginning that have its store timestamp."""


class Message(NamedTuple):
    """A parsed message in a buffer: its fixed fields as stored, and the extents of its variable parts.

    Timestamps are in milliseconds since 1970. Hosts are an address (4 or 16 bytes) and a port (4 bytes).
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int
    body_start: int
    topic_start: int
    topic_length: int
    properties_start: int
    properties_length: int
    data: Buffer

    @property
    def has_compressed_body(self) -> bool:
        return bool(self.sys_flag & layout.FLAG_COMPRESSED) and self.body_length > 0

    @property
    def body(self) -> bytes:
        """The body as stored."""
        return self.data[self.body_start : self.body_start + self.body_length]

    @property
    def raw_topic(self) -> bytes:
        return self.data[self.topic_start : self.topic_start + self.topic_length]

    @property
    def topic(self) -> str:
        return decode_utf8(self.raw_topic)

    @property
    def raw_properties(self) -> bytes:
        return self.data[self.properties_start : self.properties_start + self.properties_length]

    @property
    def properties(self) -> dict[str, str]:
        return parse_properties(self.raw_properties)

    @property
    def has_right_crc(self) -> bool:
        """Whether the body, unless it is empty, matches its CRC."""
        return not self.body_length or message_crc(self.body) == self.body_crc


def has_message_magic(data: Buffer, start: int, size: int) -> bool:
    """Whether the ``size`` bytes at ``start`` have a message's magic."""
    if size < 8:
        return False
    return int.from_bytes(data[start + 4 : start + 8], "big", signed=True) in MESSAGE_MAGICS


def stored_at(data: bytes, start: int, size: int, position: int) -> int | None:
    """When the message of `size` bytes at `start` was stored, in milliseconds since 1970, from its first bytes alone.

    None if it is none, or if it does not say that it stands at `position` of the log.
    """
    if size < layout.MIN_MESSAGE_SIZE or len(data) - start < STORED_SIZE or not has_message_magic(data, start, size):
        return None
    fixed = _FIXED.unpack_from(data, start)
    if fixed[0] != size or fixed[6] != position:
        return None
    return store_timestamp(data, start)


def store_timestamp(data: bytes, start: int) -> int:
    """The storeTimestamp of the message at `start` in milliseconds since 1970, from its first `STORED_SIZE` bytes."""
    at = start + _FIXED.size + host_sizes(_FIXED.unpack_from(data, start)[7])[0]
    return int.from_bytes(data[at : at + 8], "big", signed=True)


def parse_message(data: Buffer, start: int, size: int, position: int) -> Message | Fact:
    """The message in the ``size`` bytes at ``start``, or the problem of its lengths.

    ``position`` is its position in the log, for the problem. Every magic except V2 counts as V1: the caller checks it.
    """
    if size < layout.MIN_MESSAGE_SIZE:
        return Fact(ProblemCode.SHORT_MESSAGE, position, 0, size)
    front = data[start : start + min(size, _MAX_FRONT_SIZE)]
    fixed = _FIXED.unpack_from(front)
    total_size, magic, sys_flag = fixed[0], fixed[1], fixed[7]
    if total_size != size:
        return Fact(ProblemCode.TOTAL_SIZE, position, size, total_size)

    middle = _MIDDLE[host_sizes(sys_flag)]
    at = _FIXED.size + middle.size
    if at > size:
        return Fact(ProblemCode.BODY_LENGTH, position, size, -1)
    variable = middle.unpack_from(front, _FIXED.size)
    body_start, body_length = at, variable[-1]
    at += body_length
    if body_length < 0 or at > size:
        return Fact(ProblemCode.BODY_LENGTH, position, size, body_length)

    topic_start = at + _TOPIC_LENGTH_SIZES.get(magic, 1)
    topic_length = _unsigned(data, start + at, start + topic_start) if topic_start <= size else -1
    at = topic_start + topic_length
    if topic_length < 0 or at > size:
        return Fact(ProblemCode.TOPIC_LENGTH, position, size, topic_length)

    properties_start = at + _PROPERTIES_LENGTH_SIZE
    properties_length = _unsigned(data, start + at, start + properties_start) if properties_start <= size else -1
    at = properties_start + properties_length
    if properties_length < 0 or at > size:
        return Fact(ProblemCode.PROPERTIES_LENGTH, position, size, properties_length)
    if at != size:
        return Fact(ProblemCode.MESSAGE_LENGTHS, position, size, at)
    return Message._make((
        *fixed,
        *variable,
        start + body_start,
        start + topic_start,
        topic_length,
        start + properties_start,
        properties_length,
        data,
    ))  # fmt: skip


def message_in(data: bytes, start: int = 0) -> Message | None:
    """The message that `data` is from `start` on, by its magic and its lengths; None for other bytes."""
    size = len(data) - start
    found = parse_message(data, start, size, start) if has_message_magic(data, start, size) else None
    return found if isinstance(found, Message) else None


def _unsigned(data: Buffer, start: int, stop: int) -> int:
    return int.from_bytes(data[start:stop], "big")


def host_sizes(sys_flag: int) -> tuple[int, int]:
    """Bytes of bornHost and storeHost, ports included."""
    born_v6, store_v6 = sys_flag & layout.FLAG_BORN_HOST_V6, sys_flag & layout.FLAG_STORE_HOST_V6
    return layout.HOST_SIZES[born_v6 != 0], layout.HOST_SIZES[store_v6 != 0]


def transaction(sys_flag: int) -> str:
    """``none``, ``prepared``, ``commit`` or ``rollback``."""
    return layout.TRANSACTIONS[sys_flag & layout.FLAG_TRANSACTION_MASK]


def compression_type(sys_flag: int) -> int:
    """The three type bits, which are valid if `layout.FLAG_COMPRESSED` is set."""
    return sys_flag >> layout.FLAG_COMPRESSION_SHIFT & layout.FLAG_COMPRESSION_MASK


def compression(sys_flag: int) -> str | None:
    """``none``, ``zlib``, ``lz4`` or ``zstd``; None for a type that RocketMQ does not know."""
    if not sys_flag & layout.FLAG_COMPRESSED:
        return "none"
    return layout.COMPRESSIONS.get(compression_type(sys_flag))


def decode_put_id(text: bytes) -> bytes | None:
    """The 24 bytes of a value of `layout.PROPERTY_ID`; None for an invalid one."""
    return base64.urlsafe_b64decode(text) if _PUT_ID_TEXT.fullmatch(text) else None


def parse_properties(raw: bytes) -> dict[str, str]:
    """A message's properties as ``MessageDecoder.string2messageProperties`` reads them.

    Parts without a name or a value are skipped. Of equal names the last value wins, in the order of the first.
    """
    properties: dict[str, str] = {}
    for part in raw.split(bytes([layout.PROPERTY_SEPARATOR])):
        name, separator, value = part.partition(bytes([layout.NAME_VALUE_SEPARATOR]))
        if name and separator and value:
            properties[decode_utf8(name)] = decode_utf8(value)
    return properties


def are_written_properties(raw: bytes) -> bool:
    """Whether a broker can have written these properties: names and values are UTF-8 text without control characters.

    ``MessageDecoder.messageProperties2String`` ends each value with a separator, of which the last one can be left out.
    """
    parts = raw.removesuffix(bytes([layout.PROPERTY_SEPARATOR])).split(bytes([layout.PROPERTY_SEPARATOR]))
    has_names = all(part.count(bytes([layout.NAME_VALUE_SEPARATOR])) == 1 for part in parts)
    return not raw or (has_names and all(is_written_text(part.replace(b"\x01", b"")) for part in parts))


def is_written_text(raw: bytes) -> bool:
    """Whether bytes are UTF-8 text without control characters, except for those of lines and columns."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return _CONTROL.search(raw) is None


def message_crc(data: bytes) -> int:
    """CRC-32 without its sign bit, as in a message's bodyCRC and in `layout.PROPERTY_CRC`."""
    return crc32(data) & MESSAGE_CRC_MASK


def stored_property_crc(properties: bytes) -> int | None:
    """The value of a trailing `layout.PROPERTY_CRC`, or None. Its least significant digit is first."""
    found = _PROPERTY_CRC.fullmatch(properties[-layout.PROPERTY_CRC_SIZE :])
    return int(found[1][::-1]) if found else None


def encode_property_crc(value: int) -> bytes:
    """The 20 bytes of `layout.PROPERTY_CRC`."""
    return layout.PROPERTY_CRC.encode() + b"\x01" + f"{value:0{_CRC_DIGITS}}"[::-1].encode() + b"\x02"


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """The message id of RocketMQ's console: store host and offset in upper-case hex."""
    return (store_host + struct.pack(">q", physical_offset)).hex().upper()


def encode_host(address: str, port: int) -> bytes:
    """A host: 4 or 16 bytes of address, 4 of port."""
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


def encode_message(
    topic: bytes,
    body: bytes,
    physical_offset: int,
    *,
    magic: int | None = None,
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(8),
    store_timestamp: int = 0,
    store_host: bytes = bytes(8),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    properties: bytes = b"",
    body_crc: int | None = None,
    property_crc: bool = False,
) -> bytes:
    """A message as ``MessageExtEncoder`` writes it, for the log position ``physical_offset``.

    ``body`` is stored as given: compress it first if ``sys_flag`` has that flag. The flags of IPv6 hosts are set by
    their lengths. Without ``magic``, topics of more than 127 bytes get V2. ``property_crc`` appends that property.
    """
    if magic is None:
        magic = layout.MESSAGE_MAGIC_V2 if len(topic) > layout.MAX_V1_TOPIC_SIZE else layout.MESSAGE_MAGIC_V1
    sys_flag |= layout.FLAG_BORN_HOST_V6 if len(born_host) == layout.HOST_SIZES[1] else 0
    sys_flag |= layout.FLAG_STORE_HOST_V6 if len(store_host) == layout.HOST_SIZES[1] else 0
    crc_size = layout.PROPERTY_CRC_SIZE if property_crc else 0
    middle = _MIDDLE[host_sizes(sys_flag)].pack(
        born_host, store_timestamp, store_host, reconsume_times, prepared_transaction_offset, len(body)
    )
    tail = b"".join((
        body,
        len(topic).to_bytes(_TOPIC_LENGTH_SIZES[magic], "big"),
        topic,
        (len(properties) + crc_size).to_bytes(_PROPERTIES_LENGTH_SIZE, "big"),
        properties,
    ))  # fmt: skip
    fixed = _FIXED.pack(
        _FIXED.size + len(middle) + len(tail) + crc_size,
        magic,
        message_crc(body) if body_crc is None else body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
    )
    message = fixed + middle + tail
    return message + encode_property_crc(message_crc(message)) if property_crc else message


V1, V2, LONG_TOPIC, LONG_PROPERTIES, CHANGED = range(5)
"""The outcome for a message: copied, with a magic of V1 or V2; or left out, because a broker cannot read such a long
topic or such long properties, or because the bytes are not a message of that size."""


class CopiedMessages(NamedTuple):
    """The number of copied bytes, and the outcome for each message."""

    size: int
    outcomes: npt.NDArray[np.uint8]


def copy_messages(
    file: SegmentFile, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
) -> tuple[int, bytearray]:
    """The fields of `CopiedMessages`."""
    if len(starts) != len(sizes):
        raise ValueError(f"expected as many starts as sizes, found {len(starts)} and {len(sizes)}")
    if (sizes < 0).any() or sum(sizes.tolist()) > len(into):
        raise ValueError(f"the sizes do not fit a buffer of {len(into)} bytes")
    outcomes = bytearray()
    end = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        outcome = CHANGED
        if file.segment.base <= start <= start + size <= file.end:
            message = bytearray(file[start : start + size])
            outcome = _move(message, position + end)
            if outcome <= V2:
                into[end : end + size] = message
                end += size
        outcomes.append(outcome)
    return end, outcomes


def _move(message: bytearray, position: int) -> int:
    """Give a message another position. Returns the outcome."""
    data = bytes(message)
    parsed = message_in(data)
    if parsed is None:
        return CHANGED
    is_v2 = parsed.magic == layout.MESSAGE_MAGIC_V2
    if parsed.topic_length > (layout.MAX_V2_TOPIC_SIZE if is_v2 else layout.MAX_V1_TOPIC_SIZE):
        return LONG_TOPIC
    if parsed.properties_length > layout.MAX_PROPERTIES_SIZE:
        return LONG_PROPERTIES
    if parsed.physical_offset != position:
        struct.pack_into(">q", message, layout.PHYSICAL_OFFSET_AT, position)
        if stored_property_crc(parsed.raw_properties) is not None:
            begin = len(message) - layout.PROPERTY_CRC_SIZE
            message[begin:] = encode_property_crc(message_crc(bytes(message[:begin])))
    return V2 if is_v2 else V1


_MAX_FILLER_SIZE = 1024 * 1024


def filler_messages(topic: bytes, start: int, end: int, store_timestamp: int) -> Iterator[bytes]:
    """Rolled-back messages that fill positions ``[start, end)``, see `filler_message`."""
    count = -(-(end - start) // _MAX_FILLER_SIZE)
    cuts = [start + (end - start) * number // count for number in range(count + 1)]
    return (filler_message(topic, *cut, store_timestamp) for cut in pairwise(cuts))


def filler_message(topic: bytes, start: int, end: int, store_timestamp: int) -> bytes:
    """A rolled-back message at positions ``[start, end)``, longer than `layout.MIN_MESSAGE_SIZE`: it is in no queue.

    Its storeTimestamp is in milliseconds. In a small space the topic is cut.
    """
    space = end - start - layout.MIN_MESSAGE_SIZE
    # With a CRC for brokers with forceVerifyPropCRC, if there is space.
    has_crc = space >= layout.PROPERTY_CRC_SIZE + len(topic)
    space -= layout.PROPERTY_CRC_SIZE if has_crc else 0
    return encode_message(
        topic[:space],
        bytes(max(space - len(topic), 0)),
        start,
        sys_flag=layout.TRANSACTION_FLAGS["rollback"],
        born_timestamp=store_timestamp,
        store_timestamp=store_timestamp,
        property_crc=has_crc,
    )
