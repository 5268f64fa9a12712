"""Finds the first field in which copies of an entry differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format.layout import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    MESSAGE_HEADER,
    MESSAGE_HEADER_SIZE,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)
from pyspark_dledger.format.message import host_sizes, message_in

_SHOWN_BYTES, _SHOWN_NAME = 32, 8


class Difference(NamedTuple):
    """The first difference of copies: the offset of its byte in the entry, its field, and the value of each copy.

    Numbers are decimal, hosts in hex. Of other fields, the values are the bytes from the first different one on; of
    properties the first different one, of a long one its begin and the bytes from there on.
    """

    byte: int
    field: str
    values: tuple[str, ...]

    def text(self, versions: Sequence[int | None], names: Sequence[str]) -> str:
        """``queueOffset: n0 and n2 53, n1 54``. `versions` has the number of the copy of each name."""
        numbers = sorted({version for version in versions if version is not None})
        nodes = (
            " and ".join(name for name, version in zip(names, versions, strict=True) if version == number)
            for number in numbers
        )
        return f"{self.field}: {', '.join(map(' '.join, zip(nodes, self.values, strict=True)))}"


class _Part(NamedTuple):
    name: str
    start: int
    end: int
    is_number: bool = True


def first_difference(entries: Sequence[bytes], header: int = ENTRY_HEADER_SIZE) -> Difference | None:
    """The first difference of entries, or of messages with a `header` of 0 bytes; None without one."""
    common = min(map(len, entries))
    first, *others = (np.frombuffer(entry, np.uint8, common) for entry in entries)
    differs = np.any([other != first for other in others], axis=0)
    if not differs.any():
        return None
    byte = int(np.argmax(differs))
    parts = max((list(_parts(entry, header)) for entry in entries), key=len)
    rest = _Part("body", header, max(map(len, entries)), is_number=False)
    part = next((part for part in parts if part.start <= byte < part.end), rest)
    return Difference(byte, part.name, tuple(_value(entry, part, byte) for entry in entries))


def _parts(entry: bytes, start: int) -> Iterator[_Part]:
    """The fields of the header, which ends at `start`, and those of the message if there is one."""
    for field in ENTRY_HEADER if start else ():
        yield _Part(field.name, field.offset, field.offset + field.length)
    message = message_in(entry, start)
    if message is None:
        return
    for field in MESSAGE_HEADER:
        name = f"message {field.name}" if start and field.name in ("magic", "bodyCrc") else field.name
        yield _Part(name, start + field.offset, start + field.offset + field.length)
    at = start + MESSAGE_HEADER_SIZE
    born, store = host_sizes(message.sys_flag)
    fixed = (("bornHost", born), ("storeTimestamp", 8), ("storeHost", store), ("reconsumeTimes", 4))
    for name, length in (*fixed, ("preparedTransactionOffset", 8), ("bodyLength", 4)):
        yield _Part(name, at, at + length, not name.endswith("Host"))
        at += length
    body_end = message.body_start + message.body_length
    topic_end = message.topic_start + message.topic_length
    yield _Part("body", message.body_start, body_end, is_number=False)
    yield _Part("topicLength", body_end, message.topic_start)
    yield _Part("topic", message.topic_start, topic_end, is_number=False)
    yield _Part("propertiesLength", topic_end, message.properties_start)
    yield _Part("properties", message.properties_start, len(entry), is_number=False)


def _value(entry: bytes, part: _Part, byte: int) -> str:
    if part.is_number:
        return str(int.from_bytes(entry[part.start : part.end], "big", signed=True))
    if part.name.endswith("Host"):
        return entry[part.start : part.end].hex()
    start, end = byte, part.end
    if part.name == "properties":
        separator = bytes([PROPERTY_SEPARATOR])
        start = max(entry.rfind(separator, part.start, byte) + 1, part.start)
        found = entry.find(separator, byte)
        end = found if found >= 0 else end
    shown = entry[start : min(end, start + _SHOWN_BYTES)]
    if byte >= start + _SHOWN_BYTES:
        shown = entry[start : start + _SHOWN_NAME] + b"..." + entry[byte : min(end, byte + _SHOWN_BYTES)]
    shown = shown.replace(bytes([NAME_VALUE_SEPARATOR]), b"=")
    return repr(shown)[2:-1]
