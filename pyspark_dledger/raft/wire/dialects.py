"""Encodes messages to frames and decodes them, in JSON as in Java, or in the binary dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.messages import REQUESTS, Request, RequestCode, Response, is_extension
from pyspark_dledger.raft.wire import binary
from pyspark_dledger.raft.wire.framing import KIND_BINARY, KIND_JSON, WireFrame, frame
from pyspark_dledger.raft.wire.json_bodies import decode_request, decode_response, encode_body
from pyspark_dledger.raft.wire.remoting import (
    SUCCESS,
    SYSTEM_ERROR,
    Command,
    Rejection,
    decode_command,
    encode_command,
    hello_fields,
    not_supported,
)
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

NO_REQUEST = -1
"""The request code of a response without an outstanding request."""

_NO_OUTSTANDING: Mapping[int, int] = {}


class DecodedFrame(NamedTuple):
    """A decoded frame.

    ``message`` is a Rejection for a request that is unknown or unreadable: the caller sends it as the response. It is
    None for a response without an outstanding request. ``secret`` is that of a METADATA request, ``member`` a member's
    hello in a METADATA request or its response.
    """

    opaque: int
    request_code: int
    message: Request | Response | Rejection | None
    is_response: bool
    is_one_way: bool
    is_binary: bool
    offers_binary: bool
    secret: str | None = None
    member: str | None = None


def encode(
    message: Request | Response,
    opaque: int,
    is_binary: bool = False,
    offers_binary: bool = False,
    secret: str | None = None,
    member: str | None = None,
) -> list[Buffer]:
    """A request, or the response to that of this opaque, as buffers to send in order.

    Raises EncodeError for a message that the dialect cannot carry.
    """
    code, is_response = message.request_code, isinstance(message, Response)
    if offers_binary and (is_binary or code != RequestCode.METADATA):
        raise EncodeError(
            f"the binary dialect can be offered only with METADATA in JSON, found {type(message).__name__}"
        )
    if is_binary:
        return frame(KIND_BINARY, *binary.encode(message, opaque))
    fields = hello_fields(offers_binary, secret, member)
    header = Command(SUCCESS if is_response else code, opaque, is_response, fields=fields)
    return frame(KIND_JSON, encode_command(header), [encode_body(message)])


def encode_rejection(
    rejection: Rejection, opaque: int, is_binary: bool = False, request_code: int = 0, member: str | None = None
) -> list[Buffer]:
    """The rejection of the request with that opaque."""
    if is_binary:
        return frame(KIND_BINARY, *binary.encode_rejection(rejection, request_code, opaque))
    fields = hello_fields(False, None, member)
    header = Command(rejection.code, opaque, is_response=True, remark=rejection.remark, fields=fields)
    return frame(KIND_JSON, encode_command(header), [])


def decode(found: WireFrame, outstanding: Mapping[int, int] = _NO_OUTSTANDING) -> DecodedFrame:
    """The message of a frame; ``outstanding`` has the request code of each opaque without a response.

    Raises WireError for unreadable bytes. A request in JSON with an unreadable body becomes a Rejection, as in Java.
    """
    if found.kind == KIND_BINARY:
        return _decode_binary(found, outstanding)
    header = decode_command(found.header)
    if header.is_response:
        return _decode_response(header, found.body, outstanding)
    message = _request_or_rejection(header.code, found.body)
    is_hello = header.code == RequestCode.METADATA
    if not is_hello:
        return DecodedFrame(header.opaque, header.code, message, False, header.is_one_way, False, False)
    offers, shown = header.offers_binary, (header.secret, header.member)
    return DecodedFrame(header.opaque, header.code, message, False, header.is_one_way, False, offers, *shown)


def _decode_binary(found: WireFrame, outstanding: Mapping[int, int]) -> DecodedFrame:
    code, opaque, is_response, is_one_way, message = binary.decode(found.header, found.body)
    if not is_response:
        return DecodedFrame(opaque, code, message, False, is_one_way, True, False)  # type: ignore[arg-type]
    expected = outstanding.get(opaque, NO_REQUEST)
    if expected == NO_REQUEST:
        return DecodedFrame(opaque, NO_REQUEST, None, True, False, True, False)
    if expected != code and not isinstance(message, Rejection):
        raise WireError(f"expected the response to request code {expected} for opaque {opaque}, found one to {code}")
    return DecodedFrame(opaque, expected, message, True, False, True, False)  # type: ignore[arg-type]


def _decode_response(header: Command, body: memoryview, outstanding: Mapping[int, int]) -> DecodedFrame:
    code = outstanding.get(header.opaque, NO_REQUEST)
    message: Response | Rejection | None = None
    if code != NO_REQUEST:
        message = decode_response(code, body) if header.is_success else Rejection(header.code, header.remark or "")
    is_hello = code == RequestCode.METADATA
    offers, member = header.offers_binary and is_hello, header.member if is_hello else None
    return DecodedFrame(header.opaque, code, message, True, False, False, offers, None, member)


def _request_or_rejection(code: int, body: memoryview) -> Request | Rejection:
    if code not in REQUESTS or is_extension(code):
        return not_supported(code)
    try:
        return decode_request(code, body)
    except WireError as error:
        return Rejection(SYSTEM_ERROR, str(error))
