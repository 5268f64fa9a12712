"""Messages as bytes: RocketMQ remoting frames with DLedger's JSON, and the binary frames between our own."""

from pyspark_dledger.raft.wire.dialects import (
    DecodedFrame,
    decode,
    encode_answer,
    encode_refusal,
    encode_request,
)
from pyspark_dledger.raft.wire.framing import MAX_FRAME_SIZE, FrameReader, WireFrame
from pyspark_dledger.raft.wire.remoting import (
    NO_PERMISSION,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    Refusal,
)
from pyspark_dledger.raft.wire.wire_connection import Connection, ReceivedRequest, ReceivedResponse
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

__all__ = [
    "MAX_FRAME_SIZE",
    "NO_PERMISSION",
    "REQUEST_CODE_NOT_SUPPORTED",
    "SYSTEM_BUSY",
    "SYSTEM_ERROR",
    "Connection",
    "DecodedFrame",
    "EncodeError",
    "FrameReader",
    "ReceivedRequest",
    "ReceivedResponse",
    "Refusal",
    "WireError",
    "WireFrame",
    "decode",
    "encode_answer",
    "encode_refusal",
    "encode_request",
]
