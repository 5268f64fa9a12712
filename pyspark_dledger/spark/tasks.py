"""Maps work over parts in Spark tasks."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.rocketmq.work_parts import MapParts
from pyspark_dledger.spark import NEEDS_PYSPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Task:
    """What a task does: the work for the part of its number. Gives the result, or an error of ours, pickled."""

    def __init__(self, work: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        self._work = work
        # Each by itself: a task unpickles its own only.
        self._parts = [pickle.dumps(part) for part in parts]

    def __call__(self, number: int) -> bytes:
        try:
            return pickle.dumps(self._work(pickle.loads(self._parts[number])))  # noqa: S301 - from the driver
        except DLedgerError as error:
            # Another attempt would end in the same; what is no error of ours fails the task, and Spark tries again.
            return pickle.dumps(error.with_traceback(None))


def run_on(spark: SparkSession) -> MapParts:
    """A run in tasks of a session, classic or Connect: one task for each part.

    The results come when all are done; then an error of ours that a task ended in is raised. Work may be done twice, by
    a task that is tried again or twice at once. What it reads and writes has to be at the same path for every executor.
    """

    def run(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        if not parts:
            return
        from pyspark.sql.functions import col, udf

        # A plain function of Python: a map over Arrow batches would need pandas.
        task = udf(_Task(work, parts), "binary", useArrow=False).asNondeterministic()
        try:
            rows = spark.range(0, len(parts), 1, numPartitions=len(parts)).select(task(col("id"))).collect()
        except _errors_of_spark() as error:
            found = _said_by(error)
            raise StoreError(f"expected {len(parts)} tasks of Spark to end well, found {found}: see its log") from error
        results = [pickle.loads(row[0]) for row in rows]  # noqa: S301 - from our own tasks
        failed = next((result for result in results if isinstance(result, DLedgerError)), None)
        yield from (result for result in results if not isinstance(result, DLedgerError))
        if failed is not None:
            raise failed

    return run


def _errors_of_spark() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _said_by(error: Exception) -> str:
    """What the innermost cause says: the last line of an error that is of no stack."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1] if lines else type(error).__name__


@contextmanager
def session_at(master: str) -> Iterator[SparkSession]:
    """A session of its own at a master such as ``local[4]`` or ``spark://HOST:7077``, stopped at the end.

    Its tasks run in the Python of this process, or in the one that PYSPARK_PYTHON names. On a terminal Spark shows how
    many of them are done. Raises OptionError where there is no such session.
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
    except _errors_of_spark() as error:
        raise OptionError(
            f"expected a master of Spark such as local[4] or spark://HOST:7077, found {master}: {_said_by(error)}"
        ) from error
    try:
        yield spark
    finally:
        spark.stop()
