"""Feeds damaged and random frames to the wire protocol.

The parser gets a stream in pieces of any size and must find the same frames as a simple parser. Each frame is read as
any response, and written again if that succeeds. Only WireError is allowed, within a few seconds.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.messages import RequestCode, WireMessage
from pyspark_dledger.raft.wire import (
    MAX_FRAME_SIZE,
    FrameReader,
    Rejection,
    WireConnection,
    WireError,
    WireFrame,
    decode,
    encode_rejection,
)
from pyspark_dledger.raft.wire.framing import KIND_BINARY, KIND_JSON, MAX_HEADER_SIZE
from pyspark_dledger.raft.wire.remoting import decode_command
from tests.support.seeds import Kit, Result
from tests.support.wire_messages import SAMPLES, encoded, has_json_form

# Seconds for a case, even on a busy machine.
PATIENCE = 5
OPAQUE = 1
FRAMES = [
    encoded(message, OPAQUE, is_binary)
    for message in SAMPLES
    for is_binary in (False, True)
    if is_binary or has_json_form(message)
]
# Numbers at the limits of types.
EDGES = (0, 1, 2, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
# Wrong values in JSON.
VALUES = (
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1e3",
        b"1e999",
        b"0.5",
        b"9223372036854775808",
        b'"7"',
        b'""',
        b'"\\ud800"',
        b'"x"',
    ),
    *(
        b"[]",
        b"{}",
        b"[[]]",
        b'{"$ref":"$.entry"}',
        b'{"$ref":"$.batchEntry[0]"}',
        b'{"$ref":"$"}',
        b"-",
        b"NaN",
        b"[" * 50,
    ),
    *(b'"aGk"', b'"aGk="', b'"=="', b"{", b",", b'"', b"\\", b"\xff", b"\xed\xa0\x80"),
)


class Harm(Exception):
    """Bytes led to a wrong result; the text says which."""


def damage(random: Random, data: bytes) -> bytes:
    """The frame with damage, usually with corrected lengths."""
    result = bytearray(data)
    header_size = int.from_bytes(data[5:8], "big")
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        random.choice((_flip, _overwrite, _cut, _insert, _replace_value))(random, result)
    if random.random() < 0.85 and len(result) >= 8:
        # The header's end stays correct if the header grew or shrank.
        struct.pack_into(">i", result, 0, len(result) - 4)
        if random.random() < 0.5 and result[8:].startswith(b"{"):
            header_size = _end_of_object(result) - 8
        result[5:8] = min(header_size, len(result) - 8).to_bytes(3, "big")
    return bytes(result)


def _enum_value(random: Random, data: bytearray) -> int:
    return (
        random.randrange(min(8, len(data)), len(data) + 1)
        if random.random() < 0.95
        else random.randrange(len(data) + 1)
    )


def _flip(random: Random, data: bytearray) -> None:
    at = _enum_value(random, data)
    data[at : at + 1] = bytes(byte ^ 1 << random.randrange(8) for byte in data[at : at + 1])


def _overwrite(random: Random, data: bytearray) -> None:
    at, size = _enum_value(random, data), random.choice((1, 2, 4, 8))
    data[at : at + size] = (random.choice(EDGES) % 2 ** (8 * size)).to_bytes(size, "big")


def _cut(random: Random, data: bytearray) -> None:
    at = _enum_value(random, data)
    del data[at : at + random.choice((1, 2, 8, 1 << 20))]


def _insert(random: Random, data: bytearray) -> None:
    at = _enum_value(random, data)
    data[at:at] = random.choice((random.randbytes(random.randrange(12)), data[at : at + 40]))


def _replace_value(random: Random, data: bytearray) -> None:
    """Replace the value of a key of a JSON object."""
    colons = [at for at, byte in enumerate(data) if byte == ord(":")]
    if colons:
        start = random.choice(colons) + 1
        ends = [end for end in (data.find(b",", start), data.find(b"}", start)) if end > 0]
        data[start : min(ends, default=start)] = random.choice(VALUES)


def _end_of_object(data: bytearray) -> int:
    end = data.find(b"}", 8)
    return end + 1 if end > 0 else len(data)


def cut_simply(stream: bytes) -> tuple[list[tuple[int, bytes, bytes]], bool]:
    """The frames of a stream up to the first invalid one, and whether there is one."""
    found = []
    start = 0
    while len(stream) - start >= 8:
        length = int.from_bytes(stream[start : start + 4], "big", signed=True)
        kind, header_size = stream[start + 4], int.from_bytes(stream[start + 5 : start + 8], "big")
        if not 4 <= length <= MAX_FRAME_SIZE - 4 or header_size > min(length - 4, MAX_HEADER_SIZE):
            return found, True
        if kind not in (KIND_JSON, KIND_BINARY):
            return found, True
        if start + 4 + length > len(stream):
            break
        body = start + 8 + header_size
        found.append((kind, stream[start + 8 : body], stream[body : start + 4 + length]))
        start += 4 + length
    return found, False


def cut_in_pieces(random: Random, stream: bytes) -> tuple[list[WireFrame], bool]:
    """The same by the parser, from pieces of any size."""
    reader, found, start = FrameReader(), [], 0
    while start < len(stream):
        room = reader.get_buffer()
        size = min(random.choice((1, 3, 7, 8, 100, 5000, 1 << 20)), len(room), len(stream) - start)
        room[:size] = stream[start : start + size]
        try:
            found += reader.buffer_updated(size)
        except WireError:
            return found, True
        start += size
    return found, False


def read(frame: WireFrame, code: int) -> tuple[str, Any]:
    """The outcome of a frame as the response to a request with that code."""
    try:
        message = decode(frame, {OPAQUE: code}).message
    except WireError:
        return "unreadable", None
    if message is None:
        return "late", None
    if isinstance(message, Rejection):
        return "refused", message
    return ("request" if isinstance(message, m.Request) else "answer"), message


def write_again(message: WireMessage | Rejection, is_binary: bool) -> None:
    """Check that a message can be written, and is read as the same."""
    if isinstance(message, Rejection):
        encode_rejection(message, OPAQUE, is_binary)
        return
    for as_binary in (True, is_binary):
        if as_binary or has_json_form(message):
            frames = FrameReader().feed(encoded(message, OPAQUE, as_binary))
            found = decode(frames[0], {OPAQUE: message.request_code}).message
            if found != message:
                raise Harm(f"written again, {message} is read as {found}")


def check_header(header: bytes) -> None:
    """Check that the fast reading of a header gives the same as the JSON parser."""
    try:
        found = decode_command(memoryview(header))
    except WireError:
        return
    fields = json.loads(header.removeprefix(b"\xef\xbb\xbf"), strict=False)
    flag = int(fields.get("flag") or 0)
    expected = int(fields["code"]), int(fields["opaque"]), bool(flag & 1), bool(flag & 2)
    if found[:4] != expected:
        raise Harm(f"expected {expected} of the header, found {found[:4]}")


def check_case(seed: int) -> list[str]:
    """Make a stream and read it. Returns the outcome of each frame. Raises Harm."""
    random = Random(seed)
    stream = b"".join(damage(random, random.choice(FRAMES)) for _ in range(random.choice((1, 1, 2, 5))))
    code = random.choice([int(code) for code in RequestCode])
    started = time.monotonic()
    try:
        return _check_stream(random, stream, code)
    except Exception as error:
        raise Harm(f"{stream!r:.3000}\n{traceback.format_exc()}") from error
    finally:
        if time.monotonic() - started > PATIENCE:
            raise Harm(f"expected an end within {PATIENCE} s, found none: {stream!r:.3000}")


def _check_stream(random: Random, stream: bytes, code: int) -> list[str]:
    frames, is_wrong = cut_in_pieces(random, stream)
    expected, expected_wrong = cut_simply(stream)
    found = [(kind, bytes(header), bytes(body)) for kind, header, body in frames]
    # No frame is returned from a piece with valid and invalid frames.
    if is_wrong != expected_wrong or found != expected[: len(found)] or (not is_wrong and found != expected):
        raise Harm(f"expected frames {expected}, found {found}")
    outcomes = ["no frame"] if is_wrong else []
    for frame in frames:
        if frame.kind == KIND_JSON:
            check_header(bytes(frame.header))
        outcome, message = read(frame, code)
        outcomes.append(outcome)
        if message is not None:
            write_again(message, frame.kind == KIND_BINARY)
    connection = WireConnection()
    connection.peer_is_binary = random.random() < 0.5
    try:
        connection.feed(stream)
    except WireError:
        outcomes.append("closed")
    return outcomes


def check_seed(seed: int, _folder: Path, _options: argparse.Namespace) -> Result:
    return Result(counts=Counter(check_case(seed)))


KIT = Kit("tests.fuzz.wire", check_seed, __doc__, 1_000_000)

if __name__ == "__main__":
    sys.exit(KIT.main())
