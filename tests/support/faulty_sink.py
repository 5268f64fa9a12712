"""A driver whose streaming writer kills processes at chosen points of a micro-batch.

``python -m tests.support.faulty_sink SOURCE LOG CHECKPOINT FAULTS [SETTINGS]`` writes the files of SOURCE as messages.
It restarts a failed query, and ends when all is written, with exit code 3 if a repeated micro-batch is refused. FAULTS
has files named ``POINT-VICTIM``: the first process at that point removes the file and kills the victim; the "driver" of
a task in a cluster is its executor. SETTINGS is JSON, see `Settings`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_dledger.spark.sink.driver import driver_pid
from pyspark_dledger.spark.sink.targets import PathTarget
from pyspark_dledger.spark.sink.write_options import parse_write_options
from pyspark_dledger.spark.sink.writers import StreamWriter
from pyspark_dledger.spark.source import DLedgerDataSource

POINTS = ("begin", "middle", "end", "commit", "committed")
VICTIMS = ("worker", "sink", "driver")
# When Spark asks for this batch, the first one is acknowledged.
_MIDDLE_BATCH = 4
_MAX_RUNS = 30
ROWS = 3000
REFUSED = 3


class Settings(NamedTuple):
    """The source's format, Spark's master and configuration, and options of the sink."""

    source: str = "text"
    # A task may fail three times.
    master: str = "local[2,4]"
    conf: Mapping[str, str] = {}
    options: Mapping[str, str] = {}
    is_shuffled: bool = False


class FaultyWriter(StreamWriter):  # type: ignore[misc]
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
        for victim in VICTIMS:
            try:
                (Path(os.environ["FAULTS"]) / f"{point}-{victim}").unlink()
            except FileNotFoundError:
                continue
            assert isinstance(self.target, PathTarget)
            pid = {"worker": os.getpid(), "sink": self.target.pid, "driver": driver_pid()}[victim]
            os.kill(pid, signal.SIGKILL)
            # The victim's end ends this process, or fails its work.
            time.sleep(0.5)


class FaultySink(DLedgerDataSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FaultyWriter(parse_write_options(self.options), schema)


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


def read(spark: SparkSession, source: str, settings: Settings) -> DataFrame:
    """Return a stream of texts."""
    if settings.source == "rate":
        return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    if settings.source == "fixed":
        spark.dataSource.register(FixedSource)
        return spark.readStream.format("fixed").load()
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 2)
    return reader.format(settings.source).load(source)


def main(source: str, log: str, checkpoint: str, faults: str, given: str = "{}") -> int:
    os.environ["FAULTS"] = faults
    settings = Settings(**json.loads(given))
    session = (
        SparkSession.builder.master(settings.master)
        .config("spark.ui.enabled", "false")
        .config(map={"spark.executorEnv.FAULTS": faults, **settings.conf})
    )
    spark = session.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100").getOrCreate()
    spark.dataSource.register(FaultySink)
    for _ in range(_MAX_RUNS):
        rows = read(spark, source, settings)
        messages = rows.selectExpr("string(value) body", "string(value) keys", "'T' topic")
        messages = messages.repartition("keys") if settings.is_shuffled else messages
        writer = messages.writeStream.format("faulty").option("checkpointLocation", checkpoint)
        writer = writer.option("leaseMs", 5000).option("dataFileSize", "1m").option("indexFileSize", "32k")
        # Nothing replaces a killed sink process within a micro-batch.
        writer = writer.option("maxRetries", 2).options(**settings.options)
        # A rate has no end.
        trigger = {"once": True} if settings.source == "rate" else {"availableNow": True}
        try:
            writer.trigger(**trigger).start(log).awaitTermination()
        except Exception as error:  # noqa: BLE001  # Spark has several errors for a killed process
            sys.stderr.write(f"restarting the failed query: {str(error)[:2000]}\n")
            if "an earlier attempt wrote" in str(error):
                return REFUSED
            continue
        return 0
    raise AssertionError(f"the query did not end within {_MAX_RUNS} runs")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
