"""The sinks in Spark, end to end from a cached DataFrame, compared with Parquet's writer and with the plain client."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.generate import new_folder
from benchmarks.measure import Result, Seconds, alternate, rounded, timed, touch_memory
from benchmarks.replication import GROUP, Ours
from benchmarks.spark_jobs import spark

SIZE = 1024
COUNT = 1_000_000  # a round of some seconds, in which the cost of a job is small
PARTITIONS = 2
ROUNDS, WARM_UPS = 5, 2
# A round writes 1 GiB; meanwhile the host takes back some of the free memory.
ROUND_BYTES = 4 << 30
_HASH_SIZE = 32


@cache
def rows() -> DataFrame:
    """Incompressible bodies in memory."""
    numbers = spark().range(0, COUNT, 1, PARTITIONS)
    parts = [F.sha2(F.concat(F.col("id"), F.lit(f"-{number}")), 256) for number in range(SIZE // _HASH_SIZE)]
    frame = numbers.select(F.unhex(F.concat(*parts)).alias("body")).cache()
    if frame.count() != COUNT:
        raise AssertionError("expected all rows in memory")
    return frame


def messages() -> DataFrame:
    return rows().withColumn("topic", F.lit("Bench"))


def megabytes(seconds: float) -> float:
    """Bytes of bodies a second."""
    return COUNT * SIZE / 1e6 / seconds


@contextmanager
def folders(name: str) -> Iterator[Callable[[], Path]]:
    """A new folder at each call; the one before is removed, which is not timed."""
    numbers = itertools.count()
    with new_folder(name) as root:

        def fresh() -> Path:
            number = next(numbers)
            shutil.rmtree(root / str(number - 1), ignore_errors=True)
            return root / str(number)

        yield fresh


def saved(frame: Callable[[], DataFrame], form: str, fresh: Callable[[], Path], **options: str) -> Seconds:
    """Write all rows to a new folder."""

    def seconds() -> float:
        path = str(fresh())
        touch_memory(ROUND_BYTES)
        return timed(lambda: frame().write.format(form).mode("append").options(**options).save(path))()

    return seconds


def embedded(name: str, frame: Callable[[], DataFrame], flush: str, goal: float) -> Result:
    rows()
    with folders(f"{name}-ours") as ours, folders(f"{name}-parquet") as parquet:
        sides = {
            "ours": saved(frame, "dledger", ours, flush=flush),
            "parquet": saved(frame, "parquet", parquet, compression="none"),
        }
        seconds = alternate(sides, ROUNDS, WARM_UPS)
    detail = {"seconds": {side: rounded(taken) for side, taken in seconds.items()}, "flush": flush}
    value, peer = megabytes(seconds["ours"]), megabytes(seconds["parquet"])
    return Result(name, value, "MB/s", "Parquet's writer", peer, detail=detail).with_ratio_goal(goal)


def group(name: str) -> Result:
    """To three nodes, compared with one client that appends the same bytes."""
    rows()
    with new_folder(name) as folder, closing(Ours(folder, "async")) as ours:
        writer = rows().write.format("dledger").mode("append").option("timeoutMs", 20_000)
        save = writer.option("group", GROUP).option("peers", ours.peers).save
        sides: dict[str, Seconds] = {
            "ours": timed(save),
            "append_batch": lambda: float(ours.append("batch", COUNT, SIZE)["seconds"]),
        }
        seconds = alternate(sides, ROUNDS, WARM_UPS)
    detail = {"seconds": {side: rounded(taken) for side, taken in seconds.items()}}
    value, peer = megabytes(seconds["ours"]), megabytes(seconds["append_batch"])
    return Result(name, value, "MB/s", "append_batch", peer, detail=detail).with_ratio_goal(0.9)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "spark-write-raw": partial(embedded, frame=rows, flush="sync", goal=0.8),
    "spark-write-messages": partial(embedded, frame=messages, flush="sync", goal=0.6),
    "spark-write-async": partial(embedded, frame=rows, flush="async", goal=0.8),
    "spark-write-group": group,
}
