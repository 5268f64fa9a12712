"""Reads messages as a broker's recovery does, with Java's signed lengths.

Source: RocketMQ 4.9.0 to 5.3.3 ``CommitLog.checkMessageAndReturnSize``; CRC of bodies only, as by default.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import MESSAGE_HEADER, MESSAGE_MAGIC_BLANK, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from pyspark_dledger.format.message import host_sizes, message_crc, parse_properties
from pyspark_dledger.log.recovery.java_files import JavaFile

_HEADER = record_struct(MESSAGE_HEADER)
_SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
# Properties that Java parses as numbers.
_NUMBERS = (b"DELAY", b"INNER_")
_SIZE_AND_MAGIC = struct.Struct(">ii")
# After the fixed header: bornHost, storeTimestamp, storeHost, 12 bytes, bodyLength.
_MIDDLE = {
    (born, store): struct.Struct(f">{born}xq{store + 12}xi")
    for born in layout.HOST_SIZES
    for store in layout.HOST_SIZES
}
TOO_OLD = "a message with a topic of more than 127 bytes, which versions before 5.1 do not read"
_JAVA_INT = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class JavaRules:
    """How one RocketMQ version reads messages.

    ``allocates``: it allocates ``totalSize`` bytes before it looks whether the file has them. ``magics`` are those of
    messages.
    """

    magics: tuple[int, ...]
    allocates: bool
    has_batches: bool

    @classmethod
    def of(cls, release: tuple[int, ...]) -> JavaRules:
        magics = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) if release >= (5, 1) else (MESSAGE_MAGIC_V1,)
        return cls(magics, release < (5, 3, 2), release >= (5,))


class JavaMessage(NamedTuple):
    """A message that the scan accepts. ``offset`` is its own physicalOffset, wherever it is; sizes are in bytes."""

    topic: bytes
    queue_id: int
    queue_offset: int
    offset: int
    size: int
    sys_flag: int
    store_timestamp: int


@dataclass(frozen=True)
class ScanStop:
    """Why the scan ends: the text, and the bytes of memory that the broker needs to say so; 0 for few."""

    text: str
    heap: int = 0


def read_message(file: JavaFile, at: int, rules: JavaRules) -> JavaMessage | ScanStop | None:
    """The message at byte `at` of a file; None for the blank at the end of its messages."""
    head = file.read(at, 8)
    if len(head) < 8:
        return ScanStop("the file ends")
    size, magic = _SIZE_AND_MAGIC.unpack(head)
    if magic == MESSAGE_MAGIC_BLANK and (rules.allocates or size <= file.size - at):
        return None
    if magic not in rules.magics and magic == MESSAGE_MAGIC_V2:
        return ScanStop(TOO_OLD)
    if magic not in rules.magics:
        return ScanStop("no message begins here" if head.strip(b"\0") else "unwritten bytes")
    heap = size if rules.allocates and size > file.size else 0
    if size > file.size - at:
        return ScanStop(f"totalSize {size} is beyond the end of the file", heap)
    data = file.read(at, size) if size > 0 else b""
    found = _parse(data, size, magic, rules)
    return ScanStop(found, heap) if isinstance(found, str) else found


def _parse(data: bytes, size: int, magic: int, rules: JavaRules) -> JavaMessage | str:
    """The message in `data`, or why Java rejects it."""
    if len(data) < layout.MIN_MESSAGE_SIZE:
        return f"totalSize {size} is too small"
    _, _, body_crc, queue_id, _, queue_offset, offset, sys_flag, _ = _HEADER.unpack_from(data)
    middle = _MIDDLE[host_sizes(sys_flag)]
    start = _HEADER.size + middle.size
    store_timestamp, body_length = middle.unpack_from(data, _HEADER.size) if start <= size else (0, 0)
    at = start + body_length if body_length > 0 else start
    if at > start and message_crc(data[start:at]) != body_crc:
        return f"message CRC is {message_crc(data[start:at])}, not {body_crc}"
    width = 2 if magic == MESSAGE_MAGIC_V2 else 1
    topic_start = at + width
    topic_length = int.from_bytes(data[at:topic_start], "big", signed=True)
    at = topic_start + topic_length if topic_length > 0 else topic_start
    topic = data[topic_start:at]
    properties_start = at + 2
    properties_length = int.from_bytes(data[at:properties_start], "big", signed=True)
    at = properties_start + properties_length if properties_length > 0 else properties_start
    raw = data[properties_start:at]
    if topic_length < 0 or at != size:
        return f"its lengths add up to {at}, not {size}"
    if raw and any(name in raw for name in _NUMBERS) and not _are_numbers(parse_properties(raw), topic, rules):
        return "a property is no number"
    return JavaMessage(topic, queue_id, queue_offset, offset, size, sys_flag, store_timestamp)


def _are_numbers(properties: dict[str, str], topic: bytes, rules: JavaRules) -> bool:
    """Whether Java can parse the properties that are numbers."""
    delay = properties.get("DELAY")
    if topic == _SCHEDULE_TOPIC and delay is not None and not _is_number(delay, 32):
        return False
    base, number = properties.get("INNER_BASE"), properties.get("INNER_NUM")
    if rules.has_batches and base is not None and number is not None:
        return _is_number(base, 64) and _is_number(number, 16)
    return True


def _is_number(text: str, bits: int) -> bool:
    return bool(_JAVA_INT.fullmatch(text)) and -(1 << bits - 1) <= int(text) < 1 << bits - 1
