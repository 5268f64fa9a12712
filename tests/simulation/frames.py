"""Messages encoded and decoded with the frames of raft.wire, and described in a transcript."""

from __future__ import annotations

from typing import TypeVar

from pyspark_dledger.raft.messages import Request, Response, WireMessage
from pyspark_dledger.raft.wire import FrameReader, decode, encode

OPAQUE = 7
M = TypeVar("M", bound=WireMessage)
_READER = FrameReader()


def through_frames(message: M, is_binary: bool, request: Request | None) -> M:
    """The message as decoded from its frame; `request` is the request of a response."""
    assert isinstance(message, (Request, Response))
    buffers = encode(message, OPAQUE, is_binary)
    (frame,) = _READER.feed(b"".join(buffers))
    codes = {} if request is None else {OPAQUE: request.request_code}
    found = decode(frame, codes).message
    assert type(found) is type(message), found
    return found


def describe(message: Request | Response | None) -> str:
    """A message in one line: its type and the fields that differ from the defaults."""
    if message is None:
        return "no response"
    shown = []
    for name in dir(message):
        if name.startswith("_") or name in ("group", "local_id", "remote_id", "last_index"):
            continue
        value = getattr(message, name)
        if callable(value) or value in (-1, None, (), [], b"") or (name == "code" and isinstance(message, Request)):
            continue
        if name in ("data", "bodies", "positions"):
            value = f"{value.count} bodies" if name == "bodies" else f"{len(value)} bytes"
        shown.append(f"{name}={getattr(value, 'name', value)}")
    return f"{type(message).__name__} {' '.join(shown)}"
