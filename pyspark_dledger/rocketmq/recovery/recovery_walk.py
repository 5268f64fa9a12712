"""The scan of a broker's recovery over messages, up to the first damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format import layout
from pyspark_dledger.format.message import MESSAGE_MAGICS, Message, message_crc, parse_message, transaction
from pyspark_dledger.log.recovery.java_files import JavaFile

_BLANK = layout.MAGIC_BLANK.to_bytes(4, "big", signed=True)
# Position of a message's storeTimestamp; 12 bytes later if bornHost is IPv6.
_STORE_TIMESTAMP = 56
_V6_LONGER = 12
_HEAD_SIZE = _STORE_TIMESTAMP + _V6_LONGER + 8

Dispatch = Callable[[str, int, int, int, int], None]
"""Called with topic, queue id, queueOffset, position in the log, and size in bytes."""


class WalkEnd(NamedTuple):
    """The end that the broker computes: the base of the last file plus the sizes of its messages, in bytes."""

    end: int
    messages: int


def walk_messages(
    files: list[JavaFile],
    in_dledger: bool,
    wants_duplicate_info: bool,
    dispatch: Dispatch | None,
    magics: tuple[int, ...] = MESSAGE_MAGICS,
) -> WalkEnd:
    """Scan the messages of `files`, and dispatch each that belongs in a queue.

    `in_dledger`: each has 48 bytes of DLedger before it, which the broker does not count. `wants_duplicate_info`: a
    message with properties counts as damaged, because none has duplicate information. `magics` are those that the
    version knows.
    """
    shift = layout.ENTRY_HEADER_SIZE if in_dledger else 0
    end, messages = files[0].base, 0
    for file in files:
        end, at = file.base, 0
        while (size := _message_size(file, at, in_dledger, magics)) > 0:
            data = file.read(at + shift, size)
            message = _intact_message(data, size, file.base + at + shift)
            if message is None or (wants_duplicate_info and message.properties_length):
                return WalkEnd(end, messages)
            if dispatch is not None and transaction(message.sys_flag) in ("none", "commit"):
                topic = decode_utf8(data[message.topic_start : message.topic_start + message.topic_length])
                dispatch(topic, message.queue_id, message.queue_offset, message.physical_offset, size)
            end += size
            messages += 1
            at += shift + size
        if size < 0:
            break
    return WalkEnd(end, messages)


def first_message(file: JavaFile, in_dledger: bool) -> tuple[int, int] | None:
    """Magic and store timestamp (ms since 1970) of a file's first message; None if the file is too short."""
    head = file.read(layout.ENTRY_HEADER_SIZE if in_dledger else 0, _HEAD_SIZE)
    if len(head) < _HEAD_SIZE:
        return None
    born_v6 = int.from_bytes(head[36:40], "big") & layout.FLAG_BORN_HOST_V6
    at = _STORE_TIMESTAMP + (_V6_LONGER if born_v6 else 0)
    return int.from_bytes(head[4:8], "big", signed=True), int.from_bytes(head[at : at + 8], "big", signed=True)


def _message_size(file: JavaFile, at: int, in_dledger: bool, magics: tuple[int, ...]) -> int:
    """The size of the message at `at`; 0 for the blank at the end of a file, -1 for anything else."""
    if in_dledger:
        if file.read(at, 4) == _BLANK:
            return 0
        at += layout.ENTRY_HEADER_SIZE
    head = file.read(at, 8)
    size, magic = (int.from_bytes(part, "big", signed=True) for part in (head[:4], head[4:]))
    if magic == layout.MESSAGE_MAGIC_BLANK:
        return 0
    return size if magic in magics and 0 < size <= file.size - at else -1


def _intact_message(data: bytes, size: int, pos: int) -> Message | None:
    """The message that fills `data`, if its lengths and its body's CRC are correct."""
    message = parse_message(data, 0, size, pos) if len(data) == size else None
    if not isinstance(message, Message):
        return None
    body = data[message.body_start : message.body_start + message.body_length]
    return message if not body or message_crc(body) == message.body_crc else None
