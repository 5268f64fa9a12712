"""A log that is not in the page cache: scanned, against ``dd`` with direct I/O; exported, against the cached log.

The log has one file. Before each round its pages are dropped from the cache, or read into it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.export import LOG, exported
from benchmarks.export import ROUNDS as EXPORT_ROUNDS
from benchmarks.generate import ensure, warm
from benchmarks.measure import PeerMissing, Result, Seconds, alternate, timed, touch_memory
from benchmarks.spark_write import folders
from pyspark_dledger import open_log

FILE = LOG.segment(0)
COLUMNS = ["index", "term", "size"]
ROUNDS, WARM_UPS = 5, 1


def drop(file: Path) -> None:
    """Drop the file's pages from the page cache."""
    with open(file, "rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def after(prepare: Callable[[Path], None], seconds: Seconds) -> Seconds:
    """The seconds after `prepare` of the log's file, which is not timed."""

    def prepared() -> float:
        prepare(FILE)
        touch_memory(2 * LOG.segment_size)
        return seconds()

    return prepared


def read_directly() -> None:
    command = ["dd", f"if={FILE}", "of=/dev/null", "bs=16M", "iflag=direct"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerMissing(f"dd cannot read with direct I/O: {error}") from None


def scan(name: str) -> Result:
    log = open_log(ensure(LOG))
    ours = timed(lambda: sum(batch.num_rows for batch in log.scan(columns=COLUMNS)))
    sides = {"ours": after(drop, ours), "dd": after(drop, timed(read_directly))}
    seconds = alternate(sides, ROUNDS, WARM_UPS)
    value, peer = (LOG.segment_size / 1e9 / seconds[side] for side in sides)
    return Result(name, value, "GB/s", "dd with direct I/O", peer).with_ratio_goal(0.95)


def export(name: str) -> Result:
    ensure(LOG)
    with folders(name) as fresh:
        run = exported("commitlog", fresh)
        seconds = alternate({"cold": after(drop, run), "warm": after(warm, run)}, EXPORT_ROUNDS, WARM_UPS)
    return Result(name, seconds["cold"], "s", "the cached log", seconds["warm"]).with_ratio_at_most(1.2)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"cold-scan": scan, "cold-export": export}
