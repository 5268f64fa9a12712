"""Messages as bytes: RocketMQ remoting frames with DLedger's JSON, and binary frames between nodes of this package."""

from pyspark_dledger.raft.wire.dialects import (
    DecodedFrame,
    decode,
    encode,
    encode_rejection,
)
from pyspark_dledger.raft.wire.framing import MAX_FRAME_SIZE, FrameReader, WireFrame
from pyspark_dledger.raft.wire.remoting import (
    NO_PERMISSION,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    Rejection,
)
from pyspark_dledger.raft.wire.wire_connection import ReceivedRequest, ReceivedResponse, WireConnection
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

__all__ = [
    "MAX_FRAME_SIZE",
    "NO_PERMISSION",
    "REQUEST_CODE_NOT_SUPPORTED",
    "SYSTEM_BUSY",
    "SYSTEM_ERROR",
    "DecodedFrame",
    "EncodeError",
    "FrameReader",
    "ReceivedRequest",
    "ReceivedResponse",
    "Rejection",
    "WireConnection",
    "WireError",
    "WireFrame",
    "decode",
    "encode",
    "encode_rejection",
]
