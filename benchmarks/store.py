"""The store without nodes: appends compared with Java's and with plain writes, and starts after a shutdown and a kill.

``python -m benchmarks.store FOLDER clean|killed`` writes a store of 2 GiB for the two benchmarks of starts.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.generate import new_folder
from benchmarks.measure import PeerMissing, Result, alternate, rounded
from benchmarks.peers import Process, java_command
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig

BODY_SIZE = 1024
BATCH = 1000  # bodies, about as many as nodes send at once
BATCHES = 500
SINGLES = 100_000
STORE_SIZE = 2 * 1024**3
ROUNDS = 5
STARTS = 3
WARM_UPS = 3  # rounds until Java's compiler is done and memory is allocated


class Times(NamedTuple):
    """Seconds of one round: until the last append returned, and until all was durable."""

    appended: float
    durable: float


@contextmanager
def opened(folder: Path, services: bool = False) -> Iterator[MmapFileStore]:
    store = MmapFileStore(StoreConfig(folder))
    store.startup(services)
    try:
        yield store
    finally:
        store.shutdown()


def batch_of(count: int) -> Bodies:
    source = random.Random(BODY_SIZE)
    return get_engine().pack_bodies([source.randbytes(BODY_SIZE) for _ in range(count)])


def append(batch: Bodies, times: int, services: bool = False) -> Times:
    with new_folder("append-ours") as folder, opened(folder, services) as store:
        start = time.perf_counter()
        for _ in range(times):
            store.append_as_leader(batch)
        appended = time.perf_counter() - start
        store.flush()
        return Times(appended, time.perf_counter() - start)


def write(data: bytes, times: int) -> Times:
    """Plain writes of the same bytes into a file of the same size."""
    with new_folder("append-bare") as folder:
        file = os.open(folder / "data", os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(file, 1024**3)
            start = time.perf_counter()
            for number in range(times):
                os.pwrite(file, data, number * len(data))
            appended = time.perf_counter() - start
            os.fdatasync(file)
            return Times(appended, time.perf_counter() - start)
        finally:
            os.close(file)


class Java(Process):
    """Java's store, with single appends, because it has no batches."""

    def __init__(self) -> None:
        super().__init__(java_command("StoreAppend", "-Xms1g", "-Xmx1g", "-XX:+AlwaysPreTouch"))

    def append(self, count: int) -> Times:
        with new_folder("append-java") as folder:
            answer = self.ask(f"{folder} {count} {BODY_SIZE}")
        return Times(answer["seconds"], answer["flushed"])


def store_append(name: str) -> Result:
    """MB of bodies a second, compared with Java's store (if Java can run) and with plain writes."""
    batch, single = batch_of(BATCH), batch_of(1)
    entries = get_engine().encode_entries(batch, 0, 0, 0, 0, 1024**3).data
    sides = {
        "ours": partial(append, batch, BATCHES),
        "flushing": partial(append, batch, BATCHES, services=True),
        "bare": partial(write, bytes(entries), BATCHES),
    }
    try:
        with closing(Java()) as java:
            found = both_times({**sides, "java": partial(java.append, BATCH * BATCHES)})
    except PeerMissing:
        found = both_times(sides)
    rate = {
        side: tuple(BODY_SIZE * BATCH * BATCHES / seconds / 1e6 for seconds in times) for side, times in found.items()
    }
    singles = both_times({"ours": partial(append, single, SINGLES)})["ours"].appended
    detail = {
        "durableMBps": rounded(rate["ours"][1]),
        "whileFlushingMBps": rounded(rate["flushing"][0]),
        "peerDurableMBps": rounded(rate["java"][1]) if "java" in rate else None,
        "bareWritesMBps": rounded(rate["bare"][0]),
        "bareWritesDurableMBps": rounded(rate["bare"][1]),
        "oneByOnePerSecond": rounded(SINGLES / singles),
    }
    peer_value = rate["java"][0] if "java" in rate else None
    return Result(name, rate["ours"][0], "MB/s", "Java appendAsLeader", peer_value, detail=detail).with_least(500)


def both_times(sides: Mapping[str, Callable[[], Times]]) -> dict[str, Times]:
    """The median of each side; the sides run in turns."""
    taken: dict[str, list[Times]] = {side: [] for side in sides}

    def once(side: str) -> float:
        taken[side].append(sides[side]())
        return taken[side][-1].appended

    alternate({side: partial(once, side) for side in sides}, ROUNDS, WARM_UPS)
    return {
        side: Times(*(statistics.median(each) for each in zip(*times[WARM_UPS:], strict=True)))
        for side, times in taken.items()
    }


def store_recovery(name: str, end: str, most: float) -> Result:
    """Seconds to start a store of 2 GiB, with its files in the page cache as after writing."""
    seconds, entries, cold = [], 0, 0.0
    for _ in range(STARTS):
        with new_folder(f"recovery-{end}") as folder:
            leave_store(folder, end)
            taken, entries = start_store(folder)
            seconds.append(taken)
    with new_folder(f"recovery-{end}") as folder:
        leave_store(folder, end)
        drop_from_cache(folder)
        cold, _ = start_store(folder)
    detail = {"entries": entries, "notCachedSeconds": rounded(cold)}
    return Result(name, statistics.median(seconds), "s", detail=detail).with_most(most)


def leave_store(folder: Path, end: str) -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.store", str(folder), end], check=False)
    expected = -signal.SIGKILL if end == "killed" else 0
    if done.returncode != expected:
        raise RuntimeError(f"expected the writer to end with {expected}, found {done.returncode}")


def start_store(folder: Path) -> tuple[float, int]:
    """The seconds of a start, and the number of entries."""
    store = MmapFileStore(StoreConfig(folder))
    start = time.perf_counter()
    store.startup()
    seconds = time.perf_counter() - start
    try:
        return seconds, store.ledger_end_index + 1
    finally:
        store.shutdown()


def drop_from_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_store(folder: Path, end: str) -> None:
    """Fill a store with committed entries, write a checkpoint half-way, and end as requested."""
    batch = batch_of(BATCH)
    with opened(folder) as store:
        is_noted = False
        while store.end_pos < STORE_SIZE - len(batch.block) * 2:
            last = store.append_as_leader(batch).last_index
            store.update_committed_index(store.ledger_end_term, last)
            if not is_noted and store.end_pos > STORE_SIZE // 2:
                store.flush()
                store.write_checkpoint()
                is_noted = True
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "store-append-1k": store_append,
    "store-recovery-clean": partial(store_recovery, end="clean", most=1),
    "store-recovery-killed": partial(store_recovery, end="killed", most=3),
}

if __name__ == "__main__":
    write_store(Path(sys.argv[1]), sys.argv[2])
