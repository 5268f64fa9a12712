"""Messages as bytes: RocketMQ remoting frames with DLedger's JSON, and the binary frames between our own."""

from pyspark_dledger.raft.wire.connection import Answered, Asked, Connection
from pyspark_dledger.raft.wire.dialects import Decoded, decode, encode_answer, encode_refusal, encode_request
from pyspark_dledger.raft.wire.errors import EncodeError, WireError
from pyspark_dledger.raft.wire.frames import MAX_FRAME_SIZE, Frame, FrameReader
from pyspark_dledger.raft.wire.remoting import (
    NO_PERMISSION,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    Refusal,
)

__all__ = [
    "MAX_FRAME_SIZE",
    "NO_PERMISSION",
    "REQUEST_CODE_NOT_SUPPORTED",
    "SYSTEM_BUSY",
    "SYSTEM_ERROR",
    "Answered",
    "Asked",
    "Connection",
    "Decoded",
    "EncodeError",
    "Frame",
    "FrameReader",
    "Refusal",
    "WireError",
    "decode",
    "encode_answer",
    "encode_refusal",
    "encode_request",
]
