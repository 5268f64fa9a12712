"""Writes a broker's ``checkpoint``; `log.io.store_checkpoint` reads it."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark_dledger.common.durable import cannot_write, open_own
from pyspark_dledger.log.io.store_checkpoint import FILE, SIZE, StoreCheckpoint


def write_store_checkpoint(root: Path, checkpoint: StoreCheckpoint) -> None:
    """Write the checkpoint durably, in place as RocketMQ does. Raises StoreError if that fails.

    The numbers are in one sector: a crash leaves the old ones or the new ones.
    """
    try:
        descriptor = open_own(root / FILE, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size != SIZE:
                os.ftruncate(descriptor, SIZE)
            os.pwrite(descriptor, checkpoint.pack(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(root / FILE, error, "try again") from error
