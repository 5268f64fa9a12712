"""A broker's ``checkpoint``: up to which storeTimestamp its files are on disk.

One page of 4096 bytes, of which RocketMQ writes the first numbers in place. Source: RocketMQ 5.3.3 ``StoreCheckpoint``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import Field
from pyspark_dledger.log.io.entry_reads import read_at

FILE = "checkpoint"
SIZE = 4096
MARGIN_MS = 3000
"""Who goes by a timestamp begins so much before it: messages that are stored together do not ascend in time."""

LAYOUT = (
    Field("physicMsgTimestamp", 0, 8, ">i8"),
    Field("logicsMsgTimestamp", 8, 8, ">i8"),
    Field("indexMsgTimestamp", 16, 8, ">i8"),
    Field("masterFlushedOffset", 24, 8, ">i8"),
    Field("confirmPhyOffset", 32, 8, ">i8"),
)
_STRUCT = record_struct(LAYOUT)


class StoreCheckpoint(NamedTuple):
    """Timestamps in milliseconds since 1970, of the last message that the log, the queues and the index have on disk.

    Offsets are bytes of the log: ``confirm_phy_offset`` is where what is committed ends (from 5.2.0). 0 stands for
    nothing.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0


def read_store_checkpoint(root: Path) -> StoreCheckpoint:
    """The checkpoint of a storePathRootDir; zeros where there is none, or less than RocketMQ writes."""
    data = read_at(str(root / FILE), 0, _STRUCT.size)
    return StoreCheckpoint(*_STRUCT.unpack(data)) if len(data) == _STRUCT.size else StoreCheckpoint()


def write_store_checkpoint(root: Path, checkpoint: StoreCheckpoint) -> None:
    """Write the checkpoint durably, in place as RocketMQ does. Raises StoreError where that fails.

    The numbers lie within one sector, so that a crash leaves the old ones or the new ones.
    """
    try:
        descriptor = os.open(root / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size != SIZE:
                os.ftruncate(descriptor, SIZE)
            os.pwrite(descriptor, _STRUCT.pack(*checkpoint), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{root / FILE}: expected to write, found {error}: check the disk") from error
