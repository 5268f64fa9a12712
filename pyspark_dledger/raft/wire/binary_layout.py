"""The layouts of the binary dialect, made of the fields that `messages` declares. All integers are big-endian.

A frame's header is `COMMON`, then the message's own numbers, then the texts of every message (`COMMON_TEXTS`) and the
message's own. A text is its length in bytes (u16), then UTF-8; length 65535 is null. A rejection has only `COMMON` and
one text, its remark.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import NamedTuple

from pyspark_dledger.raft.message_fields import wire_fields
from pyspark_dledger.raft.messages import WireMessage

VERSION = 1

FLAG_RESPONSE = 1
FLAG_ONE_WAY = 2
FLAG_REJECTION = 4

NO_TEXT = 0xFFFF


class WireField(NamedTuple):
    """One field of a fixed layout: name, `struct` format, meaning. An index, pos or term of -1 means none."""

    name: str
    format: str
    meaning: str = ""


COMMON = (
    WireField("version", "B", "1"),
    WireField("flags", "B", "1 response, 2 one-way, 4 rejection"),
    WireField("requestCode", "H", "a response repeats it"),
    WireField("opaque", "i", "a response repeats it"),
    WireField("code", "i", "response code; remoting code of a rejection"),
    WireField("term", "q"),
)
COMMON_TEXTS = ("group", "remoteId", "localId", "leaderId")


def camel_case(name: str) -> str:
    """The name of a field on the wire."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def own_numbers(kind: type[WireMessage]) -> list[WireField]:
    """The numbers after `COMMON`. A number that may be None has a flag before it."""
    defaults = {each.name: each.default for each in fields(kind)}
    found = []
    for name, wire in wire_fields(kind).items():
        if wire.format and defaults[name] is None:
            found.append(WireField(camel_case(f"has_{name}"), "B", "0 for COMMIT"))
        if wire.format:
            found.append(WireField(wire.name or camel_case(name), wire.format, wire.meaning))
    return found


def own_texts(kind: type[WireMessage]) -> list[str]:
    """The names of the texts after those of every message."""
    return [camel_case(name) for name, wire in wire_fields(kind).items() if wire.is_text]


def body_of(kind: type[WireMessage]) -> str:
    """What the frame's body contains; empty without one."""
    return "".join(wire.body for wire in wire_fields(kind).values())


def fixed_struct(own: list[WireField] | tuple[WireField, ...] = ()) -> struct.Struct:
    """The struct of `COMMON` and own fields."""
    return struct.Struct(">" + "".join(field.format for field in (*COMMON, *own)))
