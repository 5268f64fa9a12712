"""The data source in Spark, compared with its transport's ceiling, and the gain from filters and few columns.

Times are end to end: load, plan, read, and a sink that discards the rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.ceiling import Ceiling, Plan, builds_file
from benchmarks.generate import BUILD, MESSAGES_1K, MESSAGES_128, RARE_TOPIC, Store, ensure, stored_at
from benchmarks.measure import Result, Seconds, alternate, rounded, timed
from pyspark_dledger import enable, open_log
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import parse_options

BODY_SCHEMA = "index long, body binary"
INDEX_SCHEMA = "index long, term long"
MOST_TRIES = 10


@cache
def spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers import this package for the ceiling, and do not inherit the working directory.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    # As in an installed package: the sink's process, which starts with each job, finds compiled modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(Ceiling)
    return session


def load(path: Path, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark().read.format("dledger").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def ceiling(plan: Path) -> DataFrame:
    return spark().read.format("ceiling").option("plan", str(plan.absolute())).load()


def job(frame: Callable[[], DataFrame]) -> Seconds:
    """Read all rows and discard them."""
    return timed(lambda: frame().write.format("noop").mode("overwrite").save())


def empty_job(tasks: int) -> Seconds:
    """A job of so many empty tasks with the same source API."""
    plan = BUILD / "plans" / f"empty-{tasks}.plan"
    Plan(load(ensured(MESSAGES_1K)).schema, [None] * tasks, empty=True).write(plan)
    return job(lambda: ceiling(plan))


@cache
def ensured(store: Store) -> Path:
    return ensure(store)


def against_ceiling(name: str, store: Store, schema: str | None = None) -> Result:
    """One segment of the store, compared with the same batches from memory."""
    ensured(store)
    path = store.segment(0)
    frame = load(path, schema)
    columns = tuple(frame.columns)
    partitions = open_log(path).plan(columns, parse_options({"path": str(path)}), Filters())
    tasks = frame.rdd.getNumPartitions()
    if len(partitions) != tasks:
        raise AssertionError(f"planned {len(partitions)} partitions, Spark has {tasks}")
    plan = BUILD / "plans" / f"{name}.plan"
    Plan(frame.schema, partitions).write(plan)
    rows = frame.count() if schema else load(path, INDEX_SCHEMA).count()

    sides = {
        "ours": job(lambda: load(path, schema)),
        "ceiling": without_builds(plan, job(lambda: ceiling(plan))),
        "empty": empty_job(tasks),
    }
    seconds = alternate(sides)
    net = {side: taken - seconds["empty"] for side, taken in seconds.items()}
    detail = {
        "ratioLessEmptyJob": rounded(net["ceiling"] / net["ours"]),
        "segmentMBps": rounded(store.segment_size / 1e6 / seconds["ours"]),
        "tasks": tasks,
        "seconds": {side: rounded(taken) for side, taken in seconds.items()},
    }
    value, peer = rows / seconds["ours"], rows / seconds["ceiling"]
    return Result(name, value, "rows/s", "prebuilt batches", peer, detail=detail).with_ratio_goal(0.9)


def without_builds(plan: Path, run: Seconds) -> Seconds:
    """`run`, repeated until no worker built batches in it."""

    def seconds() -> float:
        for _ in range(MOST_TRIES):
            before = builds_file(plan).read_text()
            taken = run()
            if builds_file(plan).read_text() == before:
                return taken
        raise AssertionError(f"in each of {MOST_TRIES} runs a new worker built its batches")

    return seconds


def selective(
    name: str, small: Callable[[Path], DataFrame], whole: Callable[[Path], DataFrame], least: float = 10
) -> Result:
    """Two jobs over the whole store, each without the time of an empty job with as many tasks."""
    path = ensured(MESSAGES_1K)
    frames = {"small": lambda: small(path), "whole": lambda: whole(path)}
    tasks = {side: frame().rdd.getNumPartitions() for side, frame in frames.items()}
    empty = {count: empty_job(count) for count in sorted(set(tasks.values()))}
    sides = {side: job(frame) for side, frame in frames.items()}
    seconds = alternate({**sides, **{f"empty-{count}": run for count, run in empty.items()}}, rounds=5, warm_ups=1)
    net = {side: seconds[side] - seconds[f"empty-{count}"] for side, count in tasks.items()}
    detail = {
        "ratioWithEmptyJobs": rounded(seconds["whole"] / seconds["small"]),
        "tasks": tasks,
        "seconds": {side: rounded(taken) for side, taken in seconds.items()},
    }
    gigabytes = MESSAGES_1K.segments * MESSAGES_1K.segment_size / 1e9
    value, peer = gigabytes / net["small"], gigabytes / net["whole"]
    return Result(name, value, "GB/s of log", "all columns", peer, detail=detail).with_ratio_goal(least)


def by_filter(name: str) -> Result:
    return selective(
        name,
        lambda path: load(path, topic=RARE_TOPIC),
        lambda path: load(path).filter(F.col("topic") == RARE_TOPIC),
    )


def by_columns(name: str) -> Result:
    return selective(name, lambda path: load(path, INDEX_SCHEMA), load)


def by_times(name: str) -> Result:
    """One percent of the log's times. It has three minutes, so the tolerance for clocks is a second."""
    last = open_log(ensured(MESSAGES_1K)).end.last_index
    start, end = (stored_at(last * percent // 100) for percent in (50, 51))
    options = {"startingTimestamp": str(start), "endingTimestamp": str(end), "clockTolerance": "1s"}
    return selective(name, lambda path: load(path, **options), load, 20)


def by_sql(name: str) -> Result:
    """A query of a view over two columns, with the extension of the optimizer and without."""
    sessions = {"small": spark().newSession(), "whole": spark()}
    enable(sessions["small"])

    def query(side: str, path: Path) -> DataFrame:
        sessions[side].read.format("dledger").load(str(path)).createOrReplaceTempView("log")
        return sessions[side].sql("SELECT index, term FROM log")

    return selective(name, partial(query, "small"), partial(query, "whole"))


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "spark-all-1k": partial(against_ceiling, store=MESSAGES_1K),
    "spark-all-128": partial(against_ceiling, store=MESSAGES_128),
    "spark-body-1k": partial(against_ceiling, store=MESSAGES_1K, schema=BODY_SCHEMA),
    "spark-body-128": partial(against_ceiling, store=MESSAGES_128, schema=BODY_SCHEMA),
    "spark-filter": by_filter,
    "spark-columns": by_columns,
    "spark-times": by_times,
    "spark-sql": by_sql,
}
