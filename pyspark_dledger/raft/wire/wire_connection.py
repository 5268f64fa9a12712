"""One connection, seen from either side: received bytes in, messages out, and which dialect they are sent in.

How the two sides agree on the binary dialect:

1. Every connection begins in JSON. Who opened it sends METADATA as its first request (the hello); if it speaks binary,
   the JSON header's ``extFields`` says ``"dledgerBinary": "1"`` (a version, or several with commas between).
2. Who speaks binary, too, answers that METADATA, whatever its response code, with the same in the header of the answer.
   Java ignores the one and never sends the other.
3. From that answer on, who opened the connection sends binary requests. An answer comes in the dialect of its request.
4. Where the node wants a secret, the hello's ``extFields`` has it, too (``dledgerSecret``); without it nothing is done.
5. A binary request on a connection without such a hello, and a binary answer to a request in JSON, are errors: the
   connection is closed. JSON stays allowed for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.messages import MetadataRequest, Request, Response
from pyspark_dledger.raft.wire.dialects import (
    NOT_ASKED,
    DecodedFrame,
    decode,
    encode_answer,
    encode_refusal,
    encode_request,
)
from pyspark_dledger.raft.wire.framing import MAX_FRAME_SIZE, FrameReader, WireFrame
from pyspark_dledger.raft.wire.message_kinds import REQUEST_CODES
from pyspark_dledger.raft.wire.remoting import Refusal
from pyspark_dledger.raft.wire.wire_errors import WireError

_MAX_OPAQUE = 2**31 - 1


class ReceivedRequest(NamedTuple):
    """A request of the other side. A Refusal in its place is to be given to `Connection.refuse`, and that is all.

    ``secret`` is what a hello gives to be let in.
    """

    opaque: int
    request: Request | Refusal
    is_binary: bool
    is_one_way: bool
    offers_binary: bool
    request_code: int
    secret: str | None = None


class ReceivedResponse(NamedTuple):
    """The answer to a request of this side."""

    opaque: int
    answer: Response | Refusal


class Connection:
    """Turns bytes into messages and messages into bytes, and keeps what was asked and is not answered.

    ``is_binary``: requests are sent in binary now. ``peer_is_ours``: the other side has offered the binary dialect, and
    so has this one. ``secret`` is given with every METADATA in JSON.
    """

    def __init__(
        self, offers_binary: bool = True, max_frame_size: int = MAX_FRAME_SIZE, secret: str | None = None
    ) -> None:
        self.is_binary = False
        self.peer_is_ours = False
        self._offers_binary = offers_binary
        self._secret = secret
        self._reader = FrameReader(max_frame_size)
        self._next_opaque = 0
        self._asked: dict[int, int] = {}  # opaque -> request code, in the order they were asked
        self._asked_in_binary: set[int] = set()
        self.get_buffer = self._reader.get_buffer

    def buffer_updated(self, count: int) -> list[ReceivedRequest | ReceivedResponse]:
        """What is whole now that ``count`` bytes were received into `get_buffer`'s buffer.

        Raises WireError for what cannot be read: the connection has to be closed then.
        """
        return self._messages(self._reader.buffer_updated(count))

    def take_up_to(self, max_frame_size: int) -> None:
        """Frames that come from now on may have so many bytes."""
        self._reader.limit = max_frame_size

    @property
    def held(self) -> int:
        """How many bytes of memory what is received takes until a frame is whole."""
        return self._reader.held

    def feed(self, data: Buffer) -> list[ReceivedRequest | ReceivedResponse]:
        """The same for bytes that were received elsewhere, which are copied."""
        return self._messages(self._reader.feed(data))

    def request(self, request: Request) -> tuple[int, list[Buffer]]:
        """The opaque that the answer will have, and the buffers to send. Raises EncodeError."""
        opaque = self._free_opaque()
        is_hello = not self.is_binary and isinstance(request, MetadataRequest)
        offers, secret = is_hello and self._offers_binary, self._secret if is_hello else None
        buffers = encode_request(request, opaque, self.is_binary, offers, secret)
        self._asked[opaque] = REQUEST_CODES[type(request)]
        if self.is_binary:
            self._asked_in_binary.add(opaque)
        return opaque, buffers

    def forget(self, opaque: int) -> None:
        """Wait no longer for that answer; if it comes, it is dropped."""
        self._asked.pop(opaque, None)
        self._asked_in_binary.discard(opaque)

    def pending(self) -> list[int]:
        """What was asked and is not answered, oldest first."""
        return list(self._asked)

    def answer(self, asked: ReceivedRequest, answer: Response) -> list[Buffer]:
        """The buffers that answer a request, in its dialect. Raises EncodeError."""
        offers = self._offers_binary and asked.offers_binary
        return encode_answer(answer, asked.opaque, asked.is_binary, offers)

    def refuse(self, asked: ReceivedRequest, refusal: Refusal) -> list[Buffer]:
        """The buffers that say that a request was not done."""
        return encode_refusal(refusal, asked.opaque, asked.is_binary, asked.request_code)

    def _free_opaque(self) -> int:
        """The next number that no unanswered request has."""
        while self._next_opaque in self._asked:
            self._next_opaque = (self._next_opaque + 1) & _MAX_OPAQUE
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & _MAX_OPAQUE
        return opaque

    def _messages(self, frames: list[WireFrame]) -> list[ReceivedRequest | ReceivedResponse]:
        found: list[ReceivedRequest | ReceivedResponse] = []
        for frame in frames:
            decoded = decode(frame, self._asked)
            message = self._answered(decoded) if decoded.is_answer else self._asked_for(decoded)
            if message is not None:
                found.append(message)
        return found

    def _asked_for(self, decoded: DecodedFrame) -> ReceivedRequest:
        if decoded.is_binary and not self.peer_is_ours:
            raise WireError("expected requests in JSON before the binary dialect is agreed on, found one in binary")
        if decoded.offers_binary and self._offers_binary:
            self.peer_is_ours = True
        request = decoded.message
        assert isinstance(request, (Request, Refusal))
        opaque, code = decoded.opaque, decoded.request_code
        is_one_way, offers = decoded.is_one_way, decoded.offers_binary
        return ReceivedRequest(opaque, request, decoded.is_binary, is_one_way, offers, code, decoded.secret)

    def _answered(self, decoded: DecodedFrame) -> ReceivedResponse | None:
        if decoded.request_code == NOT_ASKED:
            return None
        opaque, answer = decoded.opaque, decoded.message
        if decoded.is_binary and opaque not in self._asked_in_binary:
            raise WireError("expected the answer to a request in JSON in JSON, found one in binary")
        self.forget(opaque)
        if decoded.offers_binary and self._offers_binary:
            self.is_binary = self.peer_is_ours = True
        assert isinstance(answer, (Response, Refusal))
        return ReceivedResponse(opaque, answer)
