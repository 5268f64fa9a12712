"""Stores whose queues and index were built by a rebuild."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark_dledger.log.io.key_files import index_files
from pyspark_dledger.rocketmq.rebuild import FileSettings, rebuild
from tests.support.dispatching import Messages, with_noise
from tests.support.generate import Store, write_dledger

# Small files.
SMALL = FileSettings(units_per_file=10, hash_slots=7, index_units=20)
WHATS = ("consumequeue", "index")


def index_bytes(root: Path) -> list[bytes]:
    """The bytes of the index files, without their names, which are creation times."""
    return [path.read_bytes() for path in index_files(root)]


def store_of(root: Path, count: int = 60, **more: Any) -> Store:
    """A store in DLedger mode with messages of several queues, with ConsumeQueues and index."""
    store = write_dledger(root, with_noise(Messages().some(count)), file_size=4096, **more)
    (root / "lock").write_bytes(b"lock")
    for what in WHATS:
        rebuild(root, what, files=SMALL)
    return store
