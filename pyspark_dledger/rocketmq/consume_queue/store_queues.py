"""Which ConsumeQueues a store has, and which of them the options select."""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import BATCH_UNIT_SIZE, SEGMENT_NAME_DIGITS
from pyspark_dledger.log.io.queue_files import FOLDER, Queue, QueueFile
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView

BATCH_FOLDER = "batchconsumequeue"


def queue_root(log: StoreView) -> Path:
    """The storePathRootDir that has the queues. Raises StoreError if it is unknown, or if they are in RocksDB."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir with the folder {FOLDER}, found a log folder without its root: "
            "give the root's path"
        )
    if (root / FOLDER / "CURRENT").is_file():
        raise StoreError(
            f"{root / FOLDER}: expected ConsumeQueue files, found a RocksDB (storeType=defaultRocksDB): its queues "
            "cannot be read"
        )
    return root


def is_selected(topic: str, queue_id: int, options: ReadOptions) -> bool:
    """Whether the options topic and queueId select a queue."""
    return (options.topic is None or topic in options.topic) and (
        options.queue_id is None or queue_id in options.queue_id
    )


def batch_queues(root: Path) -> list[Queue]:
    """The queues of batch messages (``BatchConsumeQueue``); a file's ``units`` are of 46 bytes."""
    files: dict[tuple[str, int], list[QueueFile]] = {}
    for path in sorted(root.glob(f"{BATCH_FOLDER}/*/*/*")):
        queue_id = path.parent.name
        if queue_id.isdecimal() and len(path.name) == SEGMENT_NAME_DIGITS and path.name.isdecimal() and path.is_file():
            units = path.stat().st_size // BATCH_UNIT_SIZE
            file = QueueFile(str(path), path.name, int(path.name) // BATCH_UNIT_SIZE, units)
            files.setdefault((path.parent.parent.name, int(queue_id)), []).append(file)
    return [Queue(topic, queue_id, tuple(found)) for (topic, queue_id), found in sorted(files.items())]
