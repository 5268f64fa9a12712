"""Export of a log by one process on one core: in three forms, compared with Spark writing the same rows, and to tables.

The time is that of the whole process: reading, writing, fsync, reading back, and for a CommitLog its queues and index.
Spark has two cores, and neither syncs nor checks its files. The other peers have one core (`one_core_peers`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.generate import Store, ensure
from benchmarks.measure import Result, Seconds, alternate, rounded, timed, touch_memory
from benchmarks.spark_jobs import load
from benchmarks.spark_write import folders

LOG = Store("export-1k", 1024, messages=True)
ROUNDS, WARM_UPS = 3, 1
# A round writes the log once, and its queues and index.
ROUND_BYTES = 3 << 30


def on_one_core(*arguments: str) -> None:
    """Run the command line in its own process with one core and compiled modules."""
    code = (
        "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from pyspark_dledger.cli.main import main; sys.exit(main())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)


def of_peer(peer: str, target: Path, *files: Path) -> float:
    """The seconds of `copy` or `parquet` in `one_core_peers`."""
    touch_memory(ROUND_BYTES)
    command = [sys.executable, "-m", "benchmarks.one_core_peers", peer, str(target), *map(str, files)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def exported(form: str, fresh: Callable[[], Path], *arguments: str) -> Seconds:
    """Our export to a new folder."""

    def seconds() -> float:
        target = str(fresh())
        touch_memory(ROUND_BYTES)
        return timed(lambda: on_one_core("export", str(LOG.path), target, "--to", form, *arguments))()

    return seconds


def by_topic_and_day() -> DataFrame:
    return load(LOG.path).withColumn("day", F.to_date("storeTimestamp"))


def saved(form: str, fresh: Callable[[], Path]) -> Seconds:
    """The same rows, written by Spark to a new folder."""

    def seconds() -> float:
        target = str(fresh())
        touch_memory(ROUND_BYTES)
        writer = by_topic_and_day().write.mode("errorifexists")
        if form == "parquet":
            writer = writer.partitionBy("topic", "day").option("compression", "zstd")
        return timed(lambda: writer.format(form).save(target))()

    return seconds


def export_rows(name: str, form: str, ratio: float) -> Result:
    """Files of rows, compared with Spark's writer, and Parquet also with pyarrow's, which gets its rows from memory."""
    ensure(LOG)
    peer = {"jsonl": "json"}.get(form, form)
    size = sum(file.stat().st_size for file in (LOG.node / "data").iterdir())
    with folders(f"{name}-ours") as ours, folders(f"{name}-spark") as theirs, folders(f"{name}-writer") as bare:
        sides = {"ours": exported(form, ours), "spark": saved(peer, theirs)}
        if form == "parquet":
            sides["writer"] = lambda: of_peer("parquet", bare(), LOG.path)
        seconds = alternate(sides, ROUNDS, WARM_UPS)
    value, other = (size / 1e6 / seconds[side] for side in ("ours", "spark"))
    detail: dict[str, object] = {"seconds": {side: rounded(taken) for side, taken in seconds.items()}, "logBytes": size}
    if form == "parquet":
        detail |= {"ofWriter": rounded(seconds["writer"] / seconds["ours"]), "ofWriterGoal": 0.6}
    result = Result(name, value, "MB/s", f"Spark's {peer} writer, on two cores", other, detail=detail)
    return result.with_ratio_goal(ratio)


def export_log(name: str) -> Result:
    """A CommitLog with queues and index, compared with a copy of the log's files that is read back."""
    ensure(LOG)
    files = sorted((LOG.node / "data").iterdir())
    size = sum(file.stat().st_size for file in files)
    with folders(f"{name}-ours") as ours, folders(f"{name}-copy") as copies:
        sides = {"ours": exported("commitlog", ours), "copy": lambda: of_peer("copy", copies(), *files)}
        seconds = alternate(sides, ROUNDS, WARM_UPS)
    value, other = (size / 1e6 / seconds[side] for side in ("ours", "copy"))
    detail = {"seconds": {side: rounded(taken) for side, taken in seconds.items()}, "logBytes": size}
    return Result(name, value, "MB/s", "a copy that is read back", other, detail=detail).with_ratio_goal(0.5)


def appended(name: str, form: str) -> Result:
    """The log appended to a new table, without a peer."""
    ensure(LOG)
    size = sum(file.stat().st_size for file in (LOG.node / "data").iterdir())
    with folders(name) as fresh:

        def seconds() -> float:
            folder = fresh()
            folder.mkdir(parents=True)
            catalog = f"type=sql,uri=sqlite:///{folder}/catalog.db,warehouse=file://{folder}"
            table = ["rocketmq.messages", "-o", f"catalogProperties={catalog}"]
            target = table if form == "iceberg" else [str(folder / "table")]
            touch_memory(ROUND_BYTES)
            return timed(lambda: on_one_core("export", str(LOG.path), *target, "--to", form))()

        taken = alternate({"ours": seconds}, ROUNDS, WARM_UPS)["ours"]
    detail = {"seconds": rounded(taken), "logBytes": size}
    return Result(name, size / 1e6 / taken, "MB/s", detail=detail).with_least(100)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "export-commitlog": export_log,
    "export-parquet": partial(export_rows, form="parquet", ratio=3),
    "export-jsonl": partial(export_rows, form="jsonl", ratio=1),
    "export-iceberg": partial(appended, form="iceberg"),
    "export-delta": partial(appended, form="delta"),
}
