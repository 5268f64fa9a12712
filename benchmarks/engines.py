"""The same query of a log in DuckDB, over the log as an Arrow dataset, and in Spark; and on one thread.

Times are end to end: plan, read, aggregate. Spark's session exists, and its workers are warm.
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from benchmarks.generate import MESSAGES_1K
from benchmarks.measure import Result, Seconds, alternate, rounded, timed
from benchmarks.spark_jobs import ensured, load
from pyspark_dledger import open_log

QUERY = "SELECT topic, queueId, count(*), sum(size) FROM log GROUP BY topic, queueId"
COLUMNS = "topic string, queueId int, size int"
THREADS = 2  # Spark has as many cores


def by_duckdb(threads: int) -> Seconds:
    connection = duckdb.connect(config={"threads": threads})
    connection.register("log", open_log(ensured(MESSAGES_1K)).dataset(threads=threads))
    return timed(lambda: connection.execute(QUERY).fetchall())


def by_spark() -> Seconds:
    def query() -> None:
        frame = load(ensured(MESSAGES_1K), COLUMNS)
        frame.createOrReplaceTempView("log")
        frame.sparkSession.sql(QUERY).collect()

    return timed(query)


def query(name: str) -> Result:
    sides = {"duckdb": by_duckdb(THREADS), "spark": by_spark()}
    seconds = alternate(sides, rounds=5)
    rows = open_log(ensured(MESSAGES_1K)).end.last_index + 1
    value, peer = rows / seconds["duckdb"], rows / seconds["spark"]
    detail = {"seconds": {side: rounded(taken) for side, taken in seconds.items()}}
    return Result(name, value, "rows/s", "Spark, two cores", peer, detail=detail).with_ratio_goal(5)


def threads(name: str) -> Result:
    """All columns of the log, read by threads into Arrow."""
    log = open_log(ensured(MESSAGES_1K))

    def read(count: int) -> Seconds:
        return timed(lambda: sum(batch.num_rows for batch in log.reader(threads=count)))

    seconds = alternate({"two": read(THREADS), "one": read(1)}, rounds=5)
    rows = log.end.last_index + 1
    value, peer = rows / seconds["two"], rows / seconds["one"]
    return Result(name, value, "rows/s", "one thread", peer).with_ratio_goal(1.7)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"engines-query": query, "engines-threads": threads}
