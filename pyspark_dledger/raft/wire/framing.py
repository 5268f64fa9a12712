"""The outer frame of every message, and its parser (``RemotingCommand`` and ``NettyDecoder`` of RocketMQ's remoting).

A frame is ``i32 length | u8 kind | u24 header length | header | body``, big-endian; the length counts what follows it.
Kind 0 is a JSON header, 1 RocketMQ's own binary header (rejected: DLedger's codes do not fit its 16 bits), and 0x44
("D") the header of `binary`.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

MAX_FRAME_SIZE = 16 * 1024 * 1024
"""Java's limit (``com.rocketmq.remoting.frameMaxLength``), including the four bytes of the length."""

MAX_HEADER_SIZE = 64 * 1024
"""Our own limit: headers have some hundred bytes, or some thousand if Java sends a stack trace as remark."""

KIND_JSON = 0
KIND_ROCKETMQ = 1
KIND_BINARY = 0x44

# A bytearray whose bytes are not cleared: only received ones are read.
_new_block = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_block.restype, _new_block.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)

_PREFIX = struct.Struct(">iI")
_LENGTH_SIZE = 4
_FIRST_BLOCK = 16 * 1024
# A request or push of a busy connection fits with its header, so that it is received at once and never moved.
LAST_BLOCK_BYTES = 1024 * 1024 + 16 * 1024
# A buffer with less room is replaced, so that one system call can read more.
_MIN_ROOM = 4 * 1024
# The memory for a peer that announces a large frame and sends nothing.
_FIRST_LARGE_BLOCK = 2 * 1024 * 1024
_GROWTH = 4


class WireFrame(NamedTuple):
    """A complete frame: header and body are views of the receive buffer, which is never written again."""

    kind: int
    header: memoryview
    body: memoryview


class FrameReader:
    """Splits the received bytes of a connection into frames.

    Frames are views of the receive buffer. A buffer is never used twice, so a view stays valid as long as it is
    referenced. A frame that is too large for the buffer gets one of its own size.
    ``limit`` is the maximum size of a frame in bytes, and may be changed.
    """

    __slots__ = ("_block", "_end", "_needed", "_start", "_view", "limit", "next_size")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        self.limit = max_frame_size
        # The size of the buffer that the next `get_buffer` allocates; 0 if the present one has room.
        self.next_size = 0
        self._block = _FIRST_BLOCK
        self._view = memoryview(b"")
        self._start = 0  # of the first incomplete frame
        self._end = 0  # of the received bytes
        self._needed = 0  # bytes of the incomplete frame, 0 if unknown

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """The buffer for the next bytes, never empty (see ``asyncio.BufferedProtocol``; the hint is ignored)."""
        if self.next_size or self._end == len(self._view):
            self._move_to(self.next_size or self._block)
        return self._view[self._end :]

    def add(self, count: int) -> None:
        """Add ``count`` more bytes in the buffer. Take the frames with `next_frame` before the next `get_buffer`."""
        self._end += count
        if self._end == len(self._view):
            self._block = min(self._block * 2, LAST_BLOCK_BYTES)

    def next_frame(self) -> WireFrame | None:
        """The next complete frame. Raises WireError for a malformed one."""
        view, start, end = self._view, self._start, self._end
        self._needed = 0
        if end - start >= _PREFIX.size:
            length, mark = _PREFIX.unpack_from(view, start)
            header_size = mark & 0xFFFFFF
            if not 4 + header_size <= length <= self.limit - _LENGTH_SIZE or header_size > MAX_HEADER_SIZE:
                raise WireError(_size_error(length, header_size, self.limit))
            if mark >> 24 not in (KIND_JSON, KIND_BINARY):
                raise WireError(_kind_error(mark >> 24))
            stop = start + _LENGTH_SIZE + length
            if stop <= end:
                body = start + _PREFIX.size + header_size
                self._start = stop
                return WireFrame(mark >> 24, view[start + _PREFIX.size : body], view[body:stop])
            self._needed = stop - start
        self.next_size = self._size_of_next()
        return None

    def buffer_updated(self, count: int) -> list[WireFrame]:
        """The frames that are complete after ``count`` more bytes. Raises WireError for a malformed frame."""
        self.add(count)
        return list(iter(self.next_frame, None))

    def feed(self, data: Buffer) -> list[WireFrame]:
        """The frames that are complete after ``data``, which is copied."""
        frames = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            frames += self.buffer_updated(count)
            rest = rest[count:]
        return frames

    @property
    def buffer_size(self) -> int:
        """The size of the receive buffer in bytes."""
        return len(self._view)

    @property
    def unhandled(self) -> int:
        """Received bytes of frames that were not taken."""
        return self._end - self._start

    @property
    def is_between_frames(self) -> bool:
        """Whether all received bytes belong to complete frames."""
        return self._start == self._end

    def use_small_buffer(self) -> None:
        """Use a buffer of the first size next, if no incomplete frame needs more; at once if there is none."""
        if self._start == self._end:
            self._view = memoryview(b"")
            self._start = self._end = self.next_size = 0
        elif not self._needed and self.next_size:
            self.next_size = _FIRST_BLOCK
        self._block = _FIRST_BLOCK

    def _size_of_next(self) -> int:
        """The size of the next buffer, 0 while there is room in this one."""
        left = len(self._view) - self._end
        if self._needed > len(self._view) - self._start:
            if self._start or not left:
                received = self._end - self._start
                return min(self._needed, max(self._block, _FIRST_LARGE_BLOCK, received * _GROWTH))
        elif not self._needed and left < _MIN_ROOM:
            return self._block
        return 0

    def _move_to(self, size: int) -> None:
        """Continue in a new buffer; the incomplete frame is copied."""
        rest = self._view[self._start : self._end]
        self._view = memoryview(_new_block(None, max(size, len(rest) + 1)))
        self._view[: len(rest)] = rest
        self._start, self._end, self.next_size = 0, len(rest), 0


def frame(kind: int, header: bytes, body_parts: list[Buffer]) -> list[Buffer]:
    """A frame as buffers to send in order: the first ends with the header, the others are the body.

    Raises EncodeError for a frame that a peer would reject.
    """
    size = len(header)
    length = 4 + size + sum(map(len, body_parts))
    if length > MAX_FRAME_SIZE - _LENGTH_SIZE or size > MAX_HEADER_SIZE:
        raise EncodeError(
            f"expected a frame of at most {MAX_FRAME_SIZE} bytes and a header of at most {MAX_HEADER_SIZE}, "
            f"found {length + _LENGTH_SIZE} and {size}: send less at once"
        )
    return [_PREFIX.pack(length, kind << 24 | size) + header, *body_parts]


def _size_error(length: int, header_size: int, limit: int) -> str:
    if not 4 <= length <= limit - _LENGTH_SIZE:
        return (
            f"expected a frame of 8 to {limit} bytes, found {length + _LENGTH_SIZE}: "
            "the peer uses another protocol, or sends larger frames than this side accepts"
        )
    return f"expected a frame header of at most {min(length - 4, MAX_HEADER_SIZE)} bytes, found {header_size}"


def _kind_error(kind: int) -> str:
    if kind == KIND_ROCKETMQ:
        return (
            "expected a JSON header (kind 0), found RocketMQ's binary one (kind 1), which cannot hold DLedger's codes: "
            "unset ROCKETMQ_SERIALIZE_TYPE and rocketmq.serialize.type at the peer"
        )
    return f"expected a frame of kind 0 (JSON) or 68 (binary), found kind {kind}"
