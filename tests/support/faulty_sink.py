"""A streaming writer in which somebody is killed at chosen points of a micro-batch, run as a driver of its own.

``python -m tests.support.faulty_sink SOURCE LOG CHECKPOINT FAULTS`` writes the files of SOURCE as messages, restarts
its query
as often as that fails, and ends when all is written. FAULTS holds files named ``POINT-VICTIM``: whoever comes to that
point first takes the file away and kills the victim.
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
from pyspark_dledger.spark.sink.sink_writer import StreamWriter
from pyspark_dledger.spark.sink.targets import EmbeddedTarget
from pyspark_dledger.spark.sink.write_options import parse_write_options
from pyspark_dledger.spark.source import DLedgerDataSource

POINTS = ("begin", "middle", "end", "commit", "committed")
VICTIMS = ("worker", "sink", "driver")
# The batch at whose request the first has been acknowledged, as the next were sent behind it.
_MIDDLE = 4
_MOST_RUNS = 30


class FaultyWriter(StreamWriter):  # type: ignore[misc]
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._strike("begin")
        written = super().write(self._struck_between(iterator))
        self._strike("end")
        return written

    def _struck_between(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches, 1):
            if number == _MIDDLE:
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
            assert isinstance(self.target, EmbeddedTarget)
            pid = {"worker": os.getpid(), "sink": self.target.sink.pid, "driver": driver_pid()}[victim]
            os.kill(pid, signal.SIGKILL)
            # What is killed from here takes this process along, or is missed by it.
            time.sleep(0.5)


class FaultySink(DLedgerDataSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FaultyWriter(parse_write_options(self.options), schema)


def main(source: str, log: str, checkpoint: str, faults: str) -> None:
    os.environ["FAULTS"] = faults
    # A task may fail three times before the micro-batch does.
    session = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100").getOrCreate()
    spark.dataSource.register(FaultySink)
    for _ in range(_MOST_RUNS):
        rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 2).text(source)
        messages = rows.selectExpr("value body", "value keys", "'T' topic")
        writer = messages.writeStream.format("faulty").option("checkpointLocation", checkpoint)
        writer = writer.option("leaseMs", 5000).option("dataFileSize", "1m").option("indexFileSize", "32k")
        # Of a sink that is gone nobody takes over.
        writer = writer.option("maxRetries", 2)
        try:
            writer.trigger(availableNow=True).start(log).awaitTermination()
        except Exception as error:  # noqa: BLE001  # whatever the victim's end looks like to Spark
            sys.stderr.write(f"the query failed, it is started again: {str(error)[:2000]}\n")
            continue
        return
    raise AssertionError(f"expected the query to end within {_MOST_RUNS} runs")


if __name__ == "__main__":
    main(*sys.argv[1:])
