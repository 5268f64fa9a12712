"""Reads messages as a broker's recovery does, with Java's signed lengths.

Source: RocketMQ 4.9.0 to 5.3.3 ``CommitLog.checkMessageAndReturnSize``; CRC of bodies only, as by default. 5.2.0 to
5.5.0 ``ConsumeQueueStore.compensateForHA``: it reads every message after the confirmed offset of controller mode.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
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
# How far into a message its storeTimestamp can end.
_TIMESTAMP_END = layout.MESSAGE_HEADER_SIZE + 20 + 8
_BLANK = layout.MAGIC_BLANK.to_bytes(4, "big", signed=True)
_HEAD_SIZE = 8
_MAX_INT = 2**31 - 1
_JAVA_INT = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class MessageRules:
    """How one RocketMQ version reads messages.

    ``allocates``: it allocates ``totalSize`` bytes before it looks whether the file has them. ``magics`` are those of
    messages. ``wants_duplicate_info``: a message with properties counts as damaged, because none has this information
    (apache/rocketmq issue 8032).
    """

    magics: tuple[int, ...]
    allocates: bool
    has_batches: bool
    wants_duplicate_info: bool = False

    @classmethod
    def of(cls, release: tuple[int, ...]) -> MessageRules:
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


def read_message(file: JavaFile, at: int, rules: MessageRules) -> JavaMessage | ScanStop | None:
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


def _parse(data: bytes, size: int, magic: int, rules: MessageRules) -> JavaMessage | str:
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
    if raw and rules.wants_duplicate_info:
        return "it has no duplicate information"
    return JavaMessage(topic, queue_id, queue_offset, offset, size, sys_flag, store_timestamp)


def _are_numbers(properties: dict[str, str], topic: bytes, rules: MessageRules) -> bool:
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


Stop = tuple[JavaFile, int, ScanStop]
"""Where a scan ends: the file, the byte in it, and why."""


def scan_messages(
    files: Sequence[JavaFile], rules: MessageRules, take: Callable[[JavaMessage], None], shift: int = 0
) -> tuple[int, Stop | None]:
    """Call `take` for each message of `files`, up to the first that is damaged.

    Returns the end that the broker computes: the base of the last file plus the sizes of its messages, in bytes. It
    does not count the `shift` bytes of DLedger before each message.
    """
    end = files[0].base
    for file in files:
        end, at = file.base, 0
        while True:
            is_blank = shift and file.read(at, 4) == _BLANK
            message = None if is_blank else read_message(file, at + shift, rules)
            if not isinstance(message, JavaMessage):
                break
            take(message)
            end += message.size
            at += shift + message.size
        if message is not None:
            return end, (file, at, message)
    return end, None


def first_message(file: JavaFile, shift: int = 0) -> tuple[int, int] | None:
    """Magic and store timestamp (ms since 1970) of a file's first message; None if the file is too short."""
    head = file.read(shift, _TIMESTAMP_END)
    if len(head) < _TIMESTAMP_END:
        return None
    _, magic, _, _, _, _, _, sys_flag, _ = _HEADER.unpack_from(head)
    at = _HEADER.size + host_sizes(sys_flag)[0]
    return magic, int.from_bytes(head[at : at + 8], "big", signed=True)


def unconfirmed_problem(files: Sequence[JavaFile], confirmed: int, end: int, rules: MessageRules) -> str | None:
    """Why load() fails on the log from the offset `confirmed` to its `end`; None if it does not."""
    pos = confirmed
    while (file := next((each for each in files if each.base <= pos < each.base + each.size), None)) is not None:
        at = pos - file.base
        # How far Java takes the file to be written.
        written = min(end - file.base, file.size)
        if at + 4 > written:
            return None
        head = file.read(at, _HEAD_SIZE).ljust(_HEAD_SIZE, b"\0")
        size, magic = (int.from_bytes(part, "big", signed=True) for part in (head[:4], head[4:]))
        if written < at + size <= _MAX_INT:
            return None
        where = f"commitlog/{file.name} at byte {at}, after the confirmed offset {confirmed}"
        if not _HEAD_SIZE <= size <= _MAX_INT - at:
            return f"load() reads {where}, and finds no message there"
        if magic == MESSAGE_MAGIC_V2:
            return f"load() does not know the message in {where}: its topic has more than 127 bytes"
        if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_BLANK):
            return f"load() reads {where}, and finds no message there"
        if magic == MESSAGE_MAGIC_V1 and not isinstance(read_message(file, at, rules), JavaMessage):
            return None
        pos += size
    return None
