"""Salvage of three damaged broker members by one process on one core.

The time is that of the whole process: comparing all copies, writing, fsync, queues, index, reading everything back. The
peer copies the log of one member, and reads the copy back.
Each member has other pages lost; together they have every message.
"""

from __future__ import annotations

import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.export import LOG, of_peer, on_one_core
from benchmarks.generate import BUILD, ensure, warm
from benchmarks.measure import Result, alternate, rounded, touch_memory
from benchmarks.spark_write import folders
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.rebuild.builder import build

VERSION = 1  # of the damage
MEMBERS = 3
PAGES, PAGE_SIZE = 100, 4096
ROUNDS, WARM_UPS = 3, 1
# A round writes the log once, and its queues and index.
ROUND_BYTES = 3 << 30


def damaged_members() -> list[Path]:
    """The storePathRootDirs of the members, in the page cache; they are generated if they do not exist."""
    folder = BUILD / f"salvage-v{VERSION}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _generate(partial)
        partial.rename(folder)
    for file in _segments(folder):
        warm(file)
    return [folder / f"m{number}" for number in range(MEMBERS)]


def _generate(folder: Path) -> None:
    ensure(LOG)
    for number in range(MEMBERS):
        member = folder / f"m{number}"
        shutil.copytree(LOG.path, member)
        (member / "dledger-n0").rename(member / f"dledger-n{number}")
        build(StoreView(str(member), ReadOptions()), member)
    draw = random.Random(7)
    pages = draw.sample(range(LOG.segment_size // PAGE_SIZE // 8), PAGES * MEMBERS)
    for number, file in enumerate(_segments(folder)):
        with file.open("r+b") as stream:
            for page in pages[number::MEMBERS]:
                stream.seek(page * PAGE_SIZE * 8)  # so far apart that no message is lost on two members
                stream.write(bytes(PAGE_SIZE))


def _segments(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("m*/dledger-*/data/*")))


def salvage(name: str) -> Result:
    members = [str(member) for member in damaged_members()]
    size = LOG.segment_size * LOG.segments
    processor: list[float] = []
    log = sorted((LOG.node / "data").iterdir())
    with folders(name) as fresh, folders(f"{name}-copy") as copies:

        def planned() -> float:
            began = time.perf_counter()
            on_one_core("salvage", *members, "--plan", "--undecided", "majority")
            return time.perf_counter() - began

        def salvaged() -> float:
            target = fresh()
            touch_memory(ROUND_BYTES)
            began, before = time.perf_counter(), _processor_seconds()
            on_one_core("salvage", *members, "--to", str(target), "--undecided", "majority")
            processor.append(_processor_seconds() - before)
            return time.perf_counter() - began

        sides = {"plan": planned, "all": salvaged, "copy": lambda: of_peer("copy", copies(), *log)}
        seconds = alternate(sides, ROUNDS, WARM_UPS)
    detail = {
        "seconds": {phase: rounded(taken) for phase, taken in seconds.items()},
        "processorSeconds": rounded(min(processor)),
        "resultBytes": size,
    }
    value, peer = (size / 1e6 / seconds[side] for side in ("all", "copy"))
    return Result(name, value, "MB/s", "a copy that is read back", peer, detail=detail).with_ratio_goal(0.5)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BENCHMARKS: dict[str, Callable[[str], Result]] = {"salvage": salvage}
