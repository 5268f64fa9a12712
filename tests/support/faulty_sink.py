"""A driver whose streaming writer kills processes at chosen points of a micro-batch.

``python -m tests.support.faulty_sink FOLDER`` writes the files of ``FOLDER/source`` as messages to ``FOLDER/log``. It
restarts a failed query, and ends when all is written. ``FOLDER/faults`` has files named ``POINT-VICTIM``: the first
process at that point removes the file and kills the victim; the "driver" of a task in a cluster is its executor. The
victim "all" is driver and sink process at once: both are stopped, ``FOLDER/killed`` becomes what a kill leaves of log
and checkpoint, and the query ends. So one JVM is enough for many kills.

``python -m tests.support.faulty_sink --serve SETTINGS`` runs queries on request, see `serve`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_dledger.spark.sink.driver import driver_pid
from pyspark_dledger.spark.sink.targets import PathTarget
from pyspark_dledger.spark.sink.write_options import WriteOptions, parse_write_options
from pyspark_dledger.spark.sink.writers import StreamWriter
from pyspark_dledger.spark.source import DLedgerDataSource

POINTS = ("begin", "middle", "end", "commit", "committed")
VICTIMS = ("worker", "sink", "driver")
# When Spark asks for this batch, the first one is acknowledged.
_MIDDLE_BATCH = 4
_MAX_RUNS = 30
ROWS = 3000
STATE = ("log", "checkpoint")
WRITTEN, FAILED, REFUSED, KILLED = "written", "failed", "refused", "killed"


class Settings(NamedTuple):
    """Spark's master and configuration."""

    # A task may fail three times.
    master: str = "local[2,4]"
    conf: Mapping[str, str] = {}


class Query(NamedTuple):
    """The source's format, options of the sink, and how often a failed query may start."""

    source: str = "text"
    options: Mapping[str, str] = {}
    is_shuffled: bool = False
    max_runs: int = _MAX_RUNS


class FaultyWriter(StreamWriter):  # type: ignore[misc]
    def __init__(self, options: WriteOptions, schema: StructType, folder: Path, driver: int) -> None:
        super().__init__(options, schema)
        self.folder, self.driver = folder, driver
        # Spark also makes a writer to abort a micro-batch, and that starts a process if there is none.
        sinks = folder / "sinks"
        sinks.mkdir(exist_ok=True)
        (sinks / str(self.target.pid)).touch()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._strike("begin")
        written = super().write(self._strike_between(iterator))
        self._strike("end")
        return written

    def _strike_between(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches, 1):
            if number == _MIDDLE_BATCH:
                self._strike("middle")
            yield batch

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._strike("commit")
        super().commit(messages, batchId)
        self._strike("committed")

    def _strike(self, point: str) -> None:
        assert isinstance(self.target, PathTarget)
        for victim in (*VICTIMS, "all"):
            try:
                (self.folder / "faults" / f"{point}-{victim}").unlink()
            except FileNotFoundError:
                continue
            if victim == "all":
                _keep_state([self.driver, self.target.pid], self.folder)
            else:
                pid = {"worker": os.getpid(), "sink": self.target.pid, "driver": driver_pid()}[victim]
                os.kill(pid, signal.SIGKILL)
            # The victim's end ends this process, or fails its work.
            time.sleep(0.5)


def _keep_state(pids: list[int], folder: Path) -> None:
    """Copy what processes leave when they are killed now."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        while any(psutil.Process(pid).status() != psutil.STATUS_STOPPED for pid in pids):
            time.sleep(0.001)
        for name in STATE:
            shutil.copytree(folder / name, folder / "copied" / name)
        (folder / "copied").rename(folder / "killed")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class FaultySink(DLedgerDataSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        given = {name: value for name, value in self.options.items() if name not in ("folder", "driver")}
        folder, driver = Path(self.options["folder"]), int(self.options["driver"])
        return FaultyWriter(parse_write_options(given), schema, folder, driver)


class FixedPartitions(DataSourceStreamReader):
    """As Kafka's topics: numbered rows in three partitions, with any number of cores."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"end": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
        return {"end": ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(range(start["end"] + number, end["end"], 3)) for number in range(3)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        return ((str(number),) for number in partition.value)


class FixedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "fixed"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return FixedPartitions()


def new_session(settings: Settings) -> SparkSession:
    builder = SparkSession.builder.master(settings.master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    # Otherwise no file of less than 4 MiB is divided, with any number of cores.
    builder = builder.config("spark.sql.files.openCostInBytes", "1")
    spark = builder.config(map=dict(settings.conf)).getOrCreate()
    spark.dataSource.register(FaultySink)
    spark.dataSource.register(FixedSource)
    return spark


def read(spark: SparkSession, source: str, folder: str) -> DataFrame:
    """Return a stream of texts."""
    if source == "rate":
        return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    if source == "fixed":
        return spark.readStream.format("fixed").load()
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 2)
    return reader.format(source).load(folder)


def start(spark: SparkSession, query: Query, folder: Path) -> StreamingQuery:
    rows = read(spark, query.source, str((folder / "source").resolve()))
    messages = rows.selectExpr("string(value) body", "string(value) keys", "'T' topic")
    messages = messages.repartition("keys") if query.is_shuffled else messages
    jvm = spark._jvm
    assert jvm is not None
    driver = jvm.java.lang.ProcessHandle.current().pid()
    writer = messages.writeStream.format("faulty").option("folder", str(folder)).option("driver", driver)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.option("leaseMs", 5000).option("dataFileSize", "1m").option("indexFileSize", "32k")
    # Nothing replaces a killed sink process within a micro-batch.
    writer = writer.option("maxRetries", 2).options(**query.options)
    # A rate has no end.
    trigger = {"once": True} if query.source == "rate" else {"availableNow": True}
    return writer.trigger(**trigger).start(str(folder / "log"))


def run(spark: SparkSession, query: Query, folder: Path) -> str:
    """Return how a query ended, after its last start: one of WRITTEN, FAILED, REFUSED, KILLED."""
    for _ in range(query.max_runs):
        try:
            started = start(spark, query, folder)
            while not started.awaitTermination(0.1):
                if (folder / "killed").exists():
                    started.stop()
                    return KILLED
        except Exception as error:  # noqa: BLE001  # Spark has several errors for a killed process
            if (folder / "killed").exists():
                return KILLED
            sys.stderr.write(f"the query failed: {str(error)[:2000]}\n")
            if "an earlier attempt wrote" in str(error):
                return REFUSED
            continue
        return WRITTEN
    return FAILED


def serve(settings: Settings) -> None:
    """Run queries in one session: a line of standard input is JSON of a folder and a query; write how it ended.

    The sink process ends with the query, as with its driver.
    """
    spark = new_session(settings)
    for line in sys.stdin:
        folder, query = json.loads(line)
        outcome = run(spark, Query(**query), Path(folder))
        for sink in (Path(folder) / "sinks").glob("*"):
            # After its end another process may get its number.
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(sink.name))
                if "pyspark_dledger.spark.sink.sink_process" in process.cmdline():
                    process.kill()
            sink.unlink()
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> int:
    if arguments[0] == "--serve":
        serve(Settings(**json.loads(arguments[1])))
        return 0
    return 0 if run(new_session(Settings()), Query(), Path(arguments[0])) == WRITTEN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
