"""Reads a broker's ``checkpoint``: the storeTimestamps up to which its files are on disk.

One page of 4096 bytes; RocketMQ overwrites the numbers at its beginning. Source: RocketMQ 5.3.3 ``StoreCheckpoint``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import Field
from pyspark_dledger.log.io.entry_reads import read_existing

FILE = "checkpoint"
SIZE = 4096
MARGIN_MS = 3000
"""Reading from a timestamp begins so much earlier: timestamps of messages stored together do not ascend."""

LAYOUT = (
    Field("physicMsgTimestamp", 0, 8, ">i8"),
    Field("logicsMsgTimestamp", 8, 8, ">i8"),
    Field("indexMsgTimestamp", 16, 8, ">i8"),
    Field("masterFlushedOffset", 24, 8, ">i8"),
    Field("confirmPhyOffset", 32, 8, ">i8"),
)
_STRUCT = record_struct(LAYOUT)


class StoreCheckpoint(NamedTuple):
    """Timestamps in milliseconds since 1970: the last message that log, queues and index have on disk.

    Offsets are bytes of the log. ``confirm_phy_offset`` is the end of the confirmed part (from 5.1.1). 0 means none.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    def pack(self) -> bytes:
        """The numbers as they are on disk."""
        return _STRUCT.pack(*self)


def read_store_checkpoint(root: Path) -> StoreCheckpoint:
    """The checkpoint of a storePathRootDir; zeros if it is missing or too short. Raises UnreadableError."""
    data = read_existing(str(root / FILE), 0, _STRUCT.size)
    return StoreCheckpoint(*_STRUCT.unpack(data)) if len(data) == _STRUCT.size else StoreCheckpoint()
