"""The protocol state of one connection, for either side: received bytes to messages, messages to bytes.

How both sides agree on the binary dialect:

1. Every connection begins in JSON. The side that opened it sends METADATA as its first request (the hello). To offer
   the binary dialect, the JSON header's ``extFields`` has ``"dledgerBinary": "1"`` (versions, separated by commas).
2. A node that accepts it puts the same into the header of the METADATA response, for any response code. Java ignores
   the offer and never accepts.
3. After it, the side that opened the connection sends binary requests. A response uses its request's dialect.
4. If the node requires a secret, the hello's ``extFields`` has it too (``dledgerSecret``). Otherwise it is rejected.
   Members also send what they know of the group (``dledgerMember``), and a node answers such a hello with its own.
5. A binary request without such a hello, and a binary response to a JSON request, are errors: the connection is closed.
   JSON requests are always allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.messages import MetadataRequest, Request, Response
from pyspark_dledger.raft.wire.dialects import (
    NO_REQUEST,
    DecodedFrame,
    decode,
    encode,
    encode_rejection,
)
from pyspark_dledger.raft.wire.framing import MAX_FRAME_SIZE, FrameReader, WireFrame
from pyspark_dledger.raft.wire.remoting import Rejection
from pyspark_dledger.raft.wire.wire_errors import WireError

_MAX_OPAQUE = 2**31 - 1


class ReceivedRequest(NamedTuple):
    """A request of the other side. If ``request`` is a Rejection, the caller sends it with `WireConnection.reject`.

    ``secret`` is the secret of a hello, ``member`` what a member tells of itself in one.
    """

    opaque: int
    request: Request | Rejection
    is_binary: bool
    is_one_way: bool
    offers_binary: bool
    request_code: int
    secret: str | None = None
    member: str | None = None


class ReceivedResponse(NamedTuple):
    """The response to a request of this side."""

    opaque: int
    response: Response | Rejection
    member: str | None = None


class WireConnection:
    """Decodes received bytes, encodes messages, and tracks outstanding requests.

    ``is_binary``: this side sends binary requests. ``peer_is_binary``: both sides have offered the binary dialect.
    ``secret`` and `member` are sent with every METADATA in JSON, `member` also with the response to such a one.
    ``reader`` has the receive buffer.
    """

    def __init__(
        self,
        offers_binary: bool = True,
        max_frame_size: int = MAX_FRAME_SIZE,
        secret: str | None = None,
        member: Callable[[], str] | None = None,
    ) -> None:
        self.is_binary = False
        self.peer_is_binary = False
        self._offers_binary = offers_binary
        self._secret = secret
        self._member = member
        self.reader = FrameReader(max_frame_size)
        self._next_opaque = 0
        self._outstanding: dict[int, int] = {}  # opaque -> request code, oldest first
        self._binary_requests: set[int] = set()
        self.get_buffer = self.reader.get_buffer

    def add(self, count: int) -> None:
        """Add ``count`` more bytes in the buffer of `get_buffer`, for `next_message`."""
        self.reader.add(count)

    def next_message(self) -> ReceivedRequest | ReceivedResponse | None:
        """The next message that is complete.

        Raises WireError for unreadable bytes; the connection must be closed then.
        """
        while (frame := self.reader.next_frame()) is not None:
            if (message := self._message(frame)) is not None:
                return message
        return None

    def set_max_frame_size(self, max_frame_size: int) -> None:
        """Set the limit for the next frames, in bytes."""
        self.reader.limit = max_frame_size

    def feed(self, data: Buffer) -> list[ReceivedRequest | ReceivedResponse]:
        """The messages that are complete after ``data``, which is copied."""
        return [message for frame in self.reader.feed(data) if (message := self._message(frame)) is not None]

    def request(self, request: Request) -> tuple[int, list[Buffer]]:
        """The opaque of the request, and the buffers to send. Raises EncodeError."""
        opaque = self._free_opaque()
        is_hello = not self.is_binary and isinstance(request, MetadataRequest)
        offers, secret = is_hello and self._offers_binary, self._secret if is_hello else None
        member = self._member() if is_hello and self._member is not None else None
        buffers = encode(request, opaque, self.is_binary, offers, secret, member)
        self._outstanding[opaque] = request.request_code
        if self.is_binary:
            self._binary_requests.add(opaque)
        return opaque, buffers

    def forget(self, opaque: int) -> None:
        """Drop the response to this request when it comes."""
        self._outstanding.pop(opaque, None)
        self._binary_requests.discard(opaque)

    def outstanding(self) -> list[int]:
        """The opaques of requests without a response, oldest first."""
        return list(self._outstanding)

    def respond(self, received: ReceivedRequest, response: Response) -> list[Buffer]:
        """The buffers of a response, in the request's dialect. Raises EncodeError."""
        offers = self._offers_binary and received.offers_binary
        member = None if received.member is None or self._member is None else self._member()
        return encode(response, received.opaque, received.is_binary, offers, member=member)

    def reject(self, received: ReceivedRequest, rejection: Rejection, member: str | None = None) -> list[Buffer]:
        """The buffers of a rejection. ``member`` is the hello for a member that is rejected."""
        return encode_rejection(rejection, received.opaque, received.is_binary, received.request_code, member)

    def _free_opaque(self) -> int:
        """The next number that no outstanding request has."""
        while self._next_opaque in self._outstanding:
            self._next_opaque = (self._next_opaque + 1) & _MAX_OPAQUE
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & _MAX_OPAQUE
        return opaque

    def _message(self, frame: WireFrame) -> ReceivedRequest | ReceivedResponse | None:
        decoded = decode(frame, self._outstanding)
        return self._response_of(decoded) if decoded.is_response else self._request_of(decoded)

    def _request_of(self, decoded: DecodedFrame) -> ReceivedRequest:
        if decoded.is_binary and not self.peer_is_binary:
            raise WireError("expected JSON requests before both sides agree on the binary dialect, found a binary one")
        if decoded.offers_binary and self._offers_binary:
            self.peer_is_binary = True
        request = decoded.message
        assert isinstance(request, (Request, Rejection))
        opaque, code = decoded.opaque, decoded.request_code
        is_one_way, offers = decoded.is_one_way, decoded.offers_binary
        shown = decoded.secret, decoded.member
        return ReceivedRequest(opaque, request, decoded.is_binary, is_one_way, offers, code, *shown)

    def _response_of(self, decoded: DecodedFrame) -> ReceivedResponse | None:
        if decoded.request_code == NO_REQUEST:
            return None
        opaque, response = decoded.opaque, decoded.message
        if decoded.is_binary and opaque not in self._binary_requests:
            raise WireError("expected the response to a JSON request in JSON, found a binary one")
        self.forget(opaque)
        if decoded.offers_binary and self._offers_binary:
            self.is_binary = self.peer_is_binary = True
        assert isinstance(response, (Response, Rejection))
        return ReceivedResponse(opaque, response, decoded.member)
