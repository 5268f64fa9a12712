"""Maps work over parts in Spark tasks."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.rocketmq.jobs import MapParts
from pyspark_dledger.spark import NEEDS_PYSPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Task:
    """The function of a task: it does one part, and returns the pickled result or DLedgerError."""

    def __init__(self, work: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        self._work = work
        # A task unpickles its own part only.
        self._parts = [pickle.dumps(part) for part in parts]

    def __call__(self, number: int) -> bytes:
        try:
            return pickle.dumps(self._work(pickle.loads(self._parts[number])))  # noqa: S301 - from the driver
        except DLedgerError as error:
            # A retry would end in the same error. Any other error fails the task, and Spark retries it.
            return pickle.dumps(error.with_traceback(None))


def map_on(spark: SparkSession) -> MapParts:
    """Return a map that runs one task for each part, in a classic or a Connect session.

    Results come when all tasks are done; then a DLedgerError of a task is raised. Spark may run a task twice, also at
    the same time. Every executor needs the files of the work at the same paths.
    """

    def map_parts(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        if not parts:
            return
        from pyspark.sql.functions import col, udf

        # A map over Arrow batches would need pandas.
        task = udf(_Task(work, parts), "binary", useArrow=False).asNondeterministic()
        try:
            rows = spark.range(0, len(parts), 1, numPartitions=len(parts)).select(task(col("id"))).collect()
        except _spark_errors() as error:
            raise StoreError(f"a Spark task failed with {_innermost_cause(error)}: see Spark's log") from error
        results = [pickle.loads(row[0]) for row in rows]  # noqa: S301 - from our own tasks
        failed = next((result for result in results if isinstance(result, DLedgerError)), None)
        yield from (result for result in results if not isinstance(result, DLedgerError))
        if failed is not None:
            raise failed

    return map_parts


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _innermost_cause(error: Exception) -> str:
    """Return the last line of an error that is not part of a stack trace."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1] if lines else type(error).__name__


@contextmanager
def session_at(master: str) -> Iterator[SparkSession]:
    """Start a session at a master such as ``local[4]`` or ``spark://HOST:7077``, and stop it at the end.

    Tasks run in the Python of PYSPARK_PYTHON, by default this one. On a terminal Spark shows their progress. Raises
    OptionError if the session cannot start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise OptionError(f"a session at {master} {NEEDS_PYSPARK}") from error

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("dledger").config("spark.ui.enabled", "false")
    shows_progress = str(sys.stderr.isatty()).lower()
    builder = builder.config("spark.ui.showConsoleProgress", shows_progress).config("spark.log.level", "ERROR")
    try:
        spark = builder.getOrCreate()
    except _spark_errors() as error:
        raise OptionError(
            f"expected a Spark master such as local[4] or spark://HOST:7077, found {master}: {_innermost_cause(error)}"
        ) from error
    try:
        yield spark
    finally:
        spark.stop()
