"""The tail of a store: the time of a trigger without new rows, and from an append to its row.

``python -m benchmarks.tail FOLDER`` writes a store until it is killed, for the latency benchmark.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.generate import RAW_1K, SEGMENT_SIZE, Store, ensure, new_folder
from benchmarks.measure import Result
from benchmarks.tailing import LOOKS, TIME, delays, idle_seconds, latency_result
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import read_partition
from pyspark_dledger.log.tail.store_tail import StoreTail
from pyspark_dledger.log.tail.tail import TailOffset, stream_options
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.queues import Unit, write_units

RAW_8G = Store("raw-8g", 1024, messages=False, segments=8)
CHECKPOINT_MS = 100
QUEUES = 1000


def tail_of(path: Path, **options: str) -> StoreTail:
    return StoreTail(str(path), stream_options(parse_options(options), options), ("index", "body"))


def idle(name: str, store: Store) -> Result:
    """Compared with a log of one segment, an eighth of the size."""
    value, peer = idle_seconds(tail_of(ensure(store))), idle_seconds(tail_of(ensure(RAW_1K)))
    size = store.segments * SEGMENT_SIZE
    detail = {"logBytes": size, "looks": LOOKS}
    return Result(name, value * 1e3, "ms", "a log of 1 GiB", peer * 1e3, detail=detail).with_most(20)


def idle_queues(name: str) -> Result:
    """A log whose last entry is not committed, so that every trigger must read every queue."""
    with new_folder("tail-queues") as folder:
        store = MmapFileStore(StoreConfig(folder))
        store.startup()
        store.append_as_leader([b"x" * 1000] * (QUEUES + 1), 1)
        store.flush()
        units = [Unit(f"topic{number // 4}", number % 4, 0, 48 + 1048 * number, 1000, 0) for number in range(QUEUES)]
        write_units(folder, units, file_size=6_000_000)
        time.sleep(4)  # until the folders are old enough to be cached
        value = idle_seconds(tail_of(folder))
        store.shutdown()
    return Result(name, value * 1e3, "ms", detail={"queues": QUEUES, "looks": LOOKS}).with_most(20)


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """A process that appends an entry with the time every few milliseconds."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.tail", str(folder)])
    try:
        while not (folder / "dledger-n0" / "checkpoint").exists():
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def write(folder: Path) -> None:
    """Write until killed: checkpoints every `CHECKPOINT_MS`, a commit with every append."""
    store = MmapFileStore(StoreConfig(folder, check_point_interval_ms=CHECKPOINT_MS))
    store.startup(services=True)
    store.save_term(1, "n0")
    while True:
        store.append_as_leader([TIME.pack(time.time()) + b"x" * 1016], 1)
        store.update_committed_index(1, store.ledger_end_index)
        time.sleep(0.002)


def rows_behind(tail: StoreTail, start: TailOffset, end: TailOffset) -> Iterator[bytes]:
    for part in tail.plan(start, end):
        for batch in read_partition(part):
            yield from batch.column(1).to_pylist()


def latency(name: str) -> Result:
    """The time from an append to its row, without Spark, with a trigger every 100 ms and proof by checkpoint."""
    with new_folder("tail-latency") as folder, written(folder):
        tail = tail_of(folder)
        taken = delays(tail, partial(rows_behind, tail))
    # One interval of the checkpoint, and 150 ms.
    return latency_result(name, taken, CHECKPOINT_MS + 150, checkpointMs=CHECKPOINT_MS)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "tail-idle-1g": partial(idle, store=RAW_1K),
    "tail-idle-8g": partial(idle, store=RAW_8G),
    "tail-idle-queues": idle_queues,
    "tail-latency": latency,
}

if __name__ == "__main__":
    write(Path(sys.argv[1]))
