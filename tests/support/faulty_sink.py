"""A driver whose streaming writer kills processes at chosen points of a micro-batch.

``python -m tests.support.faulty_sink SOURCE LOG CHECKPOINT FAULTS`` writes the files of SOURCE as messages. It restarts
a failed query, and ends when all is written. FAULTS has files named ``POINT-VICTIM``: the first process at that point
removes the file and kills the victim.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
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


def main(source: str, log: str, checkpoint: str, faults: str) -> None:
    os.environ["FAULTS"] = faults
    # A task may fail three times.
    session = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100").getOrCreate()
    spark.dataSource.register(FaultySink)
    for _ in range(_MAX_RUNS):
        rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 2).text(source)
        messages = rows.selectExpr("value body", "value keys", "'T' topic")
        writer = messages.writeStream.format("faulty").option("checkpointLocation", checkpoint)
        writer = writer.option("leaseMs", 5000).option("dataFileSize", "1m").option("indexFileSize", "32k")
        # Nothing replaces a killed sink process within a micro-batch.
        writer = writer.option("maxRetries", 2)
        try:
            writer.trigger(availableNow=True).start(log).awaitTermination()
        except Exception as error:  # noqa: BLE001  # Spark has several errors for a killed process
            sys.stderr.write(f"restarting the failed query: {str(error)[:2000]}\n")
            continue
        return
    raise AssertionError(f"the query did not end within {_MAX_RUNS} runs")


if __name__ == "__main__":
    main(*sys.argv[1:])
