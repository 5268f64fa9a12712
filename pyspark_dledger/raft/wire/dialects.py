"""Messages to frames and back, in either dialect: JSON as Java speaks it, or binary between our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.messages import Request, RequestCode, Response, WireMessage
from pyspark_dledger.raft.wire import binary
from pyspark_dledger.raft.wire.framing import KIND_BINARY, KIND_JSON, WireFrame, frame
from pyspark_dledger.raft.wire.json_bodies import decode_answer, decode_request, encode_body
from pyspark_dledger.raft.wire.message_kinds import BINARY_ONLY, REQUEST_CODES, REQUESTS
from pyspark_dledger.raft.wire.remoting import (
    SUCCESS,
    SYSTEM_ERROR,
    Header,
    Refusal,
    decode_header,
    encode_header,
    not_supported,
)
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

NOT_ASKED = -1
"""The request code of an answer that nobody waits for."""

_NOBODY: Mapping[int, int] = {}


class DecodedFrame(NamedTuple):
    """What a frame says.

    A Refusal for a request: it is unknown or its body cannot be read, and this is what to answer. None: an answer that
    nobody waits for. ``secret`` is that of a METADATA request.
    """

    opaque: int
    request_code: int
    message: Request | Response | Refusal | None
    is_answer: bool
    is_one_way: bool
    is_binary: bool
    offers_binary: bool
    secret: str | None = None


def encode_request(
    request: Request,
    opaque: int,
    is_binary: bool = False,
    offers_binary: bool = False,
    secret: str | None = None,
) -> list[Buffer]:
    """A request as buffers to be sent one behind the other. Raises EncodeError for what that dialect cannot carry."""
    return _encode(request, opaque, is_binary, offers_binary, is_answer=False, secret=secret)


def encode_answer(answer: Response, opaque: int, is_binary: bool = False, offers_binary: bool = False) -> list[Buffer]:
    """The answer to the request with that opaque, in the dialect of the request. Raises EncodeError."""
    return _encode(answer, opaque, is_binary, offers_binary, is_answer=True)


def encode_refusal(refusal: Refusal, opaque: int, is_binary: bool = False, request_code: int = 0) -> list[Buffer]:
    """What says that the request with that opaque was not done, and why."""
    if is_binary:
        return frame(KIND_BINARY, *binary.encode_refusal(refusal, request_code, opaque))
    header = Header(refusal.code, opaque, is_answer=True, remark=refusal.remark)
    return frame(KIND_JSON, encode_header(header), [])


def decode(found: WireFrame, asked: Mapping[int, int] = _NOBODY) -> DecodedFrame:
    """The message of a frame; ``asked`` has the request code for each opaque that waits for an answer.

    Raises WireError for what cannot be read, except a request in JSON whose body cannot: Java, too, answers that one.
    """
    if found.kind == KIND_BINARY:
        return _decode_binary(found, asked)
    header = decode_header(found.header)
    if header.is_answer:
        return _decode_answer(header, found.body, asked)
    message = _request_or_refusal(header.code, found.body)
    is_hello = header.code == RequestCode.METADATA
    offers, secret = header.offers_binary and is_hello, header.secret if is_hello else None
    return DecodedFrame(header.opaque, header.code, message, False, header.is_one_way, False, offers, secret)


def _encode(
    message: WireMessage, opaque: int, is_binary: bool, offers_binary: bool, is_answer: bool, secret: str | None = None
) -> list[Buffer]:
    code = REQUEST_CODES[type(message)]
    if offers_binary and (is_binary or code != RequestCode.METADATA):
        raise EncodeError(
            f"expected the binary dialect to be offered with METADATA in JSON, found {type(message).__name__}"
        )
    if is_binary:
        return frame(KIND_BINARY, *binary.encode(message, opaque))
    header = Header(SUCCESS if is_answer else code, opaque, is_answer, offers_binary=offers_binary, secret=secret)
    return frame(KIND_JSON, encode_header(header), [encode_body(message)])


def _decode_binary(found: WireFrame, asked: Mapping[int, int]) -> DecodedFrame:
    code, opaque, is_answer, is_one_way, message = binary.decode(found.header, found.body)
    if not is_answer:
        return DecodedFrame(opaque, code, message, False, is_one_way, True, False)  # type: ignore[arg-type]
    expected = asked.get(opaque, NOT_ASKED)
    if expected == NOT_ASKED:
        return DecodedFrame(opaque, NOT_ASKED, None, True, False, True, False)
    if expected != code and not isinstance(message, Refusal):
        raise WireError(f"expected the answer to request code {expected} for opaque {opaque}, found one to {code}")
    return DecodedFrame(opaque, expected, message, True, False, True, False)  # type: ignore[arg-type]


def _decode_answer(header: Header, body: memoryview, asked: Mapping[int, int]) -> DecodedFrame:
    code = asked.get(header.opaque, NOT_ASKED)
    message: Response | Refusal | None = None
    if code != NOT_ASKED:
        message = decode_answer(code, body) if header.is_success else Refusal(header.code, header.remark or "")
    offers = header.offers_binary and code == RequestCode.METADATA
    return DecodedFrame(header.opaque, code, message, True, False, False, offers)


def _request_or_refusal(code: int, body: memoryview) -> Request | Refusal:
    if code not in REQUESTS or code in BINARY_ONLY:
        return not_supported(code)
    try:
        return decode_request(code, body)
    except WireError as error:
        return Refusal(SYSTEM_ERROR, str(error))
