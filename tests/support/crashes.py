"""Kills a process that writes a store, at random moments, and checks the store that the next one opens.

``make crashes`` runs it. The writer appends batches of random sizes, raises the committed index, truncates and commits
again, and reports acknowledged indexes through a pipe. Acknowledged entries must be there afterwards, and every entry
must be one that it wrote.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.seeds import Kit, Result


def body_of(index: int, attempt: int) -> bytes:
    """A body made of its index and attempt, without zeros, of up to 20,000 bytes."""
    size = random.Random(f"{index}-{attempt}").choice((10, 100, 1000, 20_000))
    return (b"%d/%d;" % (index, attempt) * size)[:size]


def config(folder: Path, flush: str) -> StoreConfig:
    return StoreConfig(
        folder,
        data_file_size=256 * 1024,
        index_file_size=32 * 1024,
        flush=flush,
        flush_file_interval_ms=5,
        check_point_interval_ms=20,
    )


def write(folder: Path, flush: str, attempt: int, pipe: int) -> None:
    """Write until killed. Reports each acknowledged index to `pipe`."""
    store = MmapFileStore(config(folder, flush))
    if flush == "sync":
        store.on_flushed(lambda index: report(pipe, min(index, store.committed_index)))
    store.startup(services=True)
    draw = random.Random(attempt)
    while True:
        first = store.ledger_end_index + 1
        store.append_as_leader([body_of(first + number, attempt) for number in range(draw.randrange(1, 200))], attempt)
        if draw.random() < 0.2:
            store.truncate(draw.randrange(max(store.committed_index, first - 1) + 1, store.ledger_end_index + 1))
        store.update_committed_index(attempt, store.ledger_end_index)
        if flush == "async":
            report(pipe, store.committed_index)


def report(pipe: int, index: int) -> None:
    os.write(pipe, b"%020d" % index)


def check(folder: Path, flush: str, attempt: int, acknowledged: int) -> int:
    """Open the store as the next process does, and check it. Returns its end index."""
    store = MmapFileStore(config(folder, flush))
    store.startup()
    assert store.ledger_end_index >= acknowledged, f"{acknowledged} was acknowledged, found {store.ledger_end_index}"
    for index in range(store.ledger_end_index + 1):
        entry = store.get(index)
        assert 0 <= entry.term <= attempt, f"entry {index}: term {entry.term} in attempt {attempt}"
        assert entry.body == body_of(index, entry.term), f"entry {index}: {entry.body[:40]!r} in attempt {attempt}"
    end = store.ledger_end_index
    store.save_term(attempt + 1, "n0")
    store.shutdown()
    return end


def one_round(folder: Path, flush: str, attempt: int, draw: random.Random) -> int:
    """Kill one writer during its start or within a tenth of a second of work. Returns the acknowledged index."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(folder, flush, attempt, writing)
        finally:
            os._exit(1)
    os.close(writing)
    if draw.random() < 0.8:
        select.select([reading], [], [], 10)
    time.sleep(draw.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = -1
    while data := os.read(reading, 20 * 4096):
        acknowledged = max(acknowledged, int(data[-20:]))
    os.close(reading)
    return acknowledged


def kill_writers(folder: Path, flush: str, rounds: int, seed: int) -> Counter[str]:
    """Kill writers of a store and check it after each. Returns how many, and how many had acknowledged entries."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    for attempt in range(rounds):
        acknowledged = one_round(folder, flush, attempt, draw)
        end = check(folder, flush, attempt, acknowledged)
        counts += Counter({"killed": 1, "killed after they acknowledged": acknowledged >= 0, "entries": end + 1})
        if end > 4000:
            shutil.rmtree(folder)
            folder.mkdir()
    return counts


def check_seed(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    return Result(counts=kill_writers(folder, options.flush, options.rounds, seed))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")


KIT = Kit("tests.support.crashes", check_seed, __doc__, 1, add_options, processes=1)

if __name__ == "__main__":
    sys.exit(KIT.main())
