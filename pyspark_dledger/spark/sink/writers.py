"""The writers that Spark calls: a batch job, or a micro-batch of a stream.

Raw entries are written at least once: a repeated task writes its rows again. Messages are written once: see
`task_writer`, and for repeated jobs `repeated_job`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import OptionError
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.sent_to_tasks import SentToTasks
from pyspark_dledger.spark.sink.driver import ON_DRIVER
from pyspark_dledger.spark.sink.job_identity import batch_job, txn_producer
from pyspark_dledger.spark.sink.launch import start_sink, stream_sink
from pyspark_dledger.spark.sink.repeated_job import complete, needs_driver
from pyspark_dledger.spark.sink.row_format import row_format
from pyspark_dledger.spark.sink.targets import Target, new_target
from pyspark_dledger.spark.sink.task_writer import TaskCommit, write_partition
from pyspark_dledger.spark.sink.write_options import WriteOptions

log = logging.getLogger(__name__)


class BatchWriter(SentToTasks, DataSourceArrowWriter):
    """Writes one job. It is made on the driver, and pickled for the tasks and the commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.format = row_format(schema, options)
        self.options = options
        self.job = batch_job(options)
        self.target = new_target(options, self.format.is_message, start_sink)
        self.complete_version = self._find_complete_version()

    def _find_complete_version(self) -> int | None:
        """The last version of ``txnAppId`` that is complete, if that is this version or a later one."""
        if self.options.txn_app_id is None or self.options.txn_version is None:
            return None
        try:
            with self.target.connect(ON_DRIVER) as client:
                found = client.producer(txn_producer(self.options.txn_app_id), from_index=INT64_MAX).last_number
        except BaseException:
            self.target.end()
            raise
        return found if found >= self.options.txn_version else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition."""
        if self.complete_version is not None:
            for _ in iterator:
                pass
            return TaskCommit(-1, pid=self.target.pid)
        return write_partition(iterator, self.format, self.options, self.target, self.job)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the sink process, with everything on disk, and report what was written."""
        app, version = self.options.txn_app_id, self.options.txn_version
        if self.complete_version is not None:
            self.target.end()
            print_result(
                f"wrote nothing to {self.target.place}: version {version} of {app} (txnAppId) is already written; the "
                f"last one is {self.complete_version}"
            )
            return
        number = None if app is None or version is None else (txn_producer(app), version)
        written = _complete(self.target, self.options, messages, number)
        self.target.end()
        print_result(f"wrote {_summary(written)} to {self.target.place}")

    @plain_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the sink process. What tasks wrote stays: a log is append-only."""
        self.target.end()
        print_result(
            f"the job failed; completed tasks wrote {_summary(messages)} to {self.target.place}, other tasks possibly "
            "more; a log is append-only: these entries stay"
        )


STREAM_BASES: tuple[type, ...] = (
    (datasource.DataSourceStreamArrowWriter,)
    if hasattr(datasource, "DataSourceStreamArrowWriter")
    # PySpark 4.0 gives Arrow to any subclass of the Arrow writer.
    else (DataSourceStreamWriter, DataSourceArrowWriter)
)


def reject_version(options: WriteOptions) -> None:
    """Raise OptionError for a version: micro-batches have numbers."""
    if options.txn_app_id is not None:
        raise OptionError("option txnAppId is for batch writes; a stream numbers its micro-batches: leave it out")


class StreamWriter(SentToTasks, *STREAM_BASES):  # type: ignore[misc]  # the bases depend on the version
    """Writes one micro-batch. Spark makes one for the tasks, and another in another process for the commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        reject_version(options)
        self.format = row_format(schema, options)
        self.options = options
        self.target = new_target(options, self.format.is_message, stream_sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of a micro-batch. A micro-batch that is repeated after a crash keeps its identity."""
        return write_partition(iterator, self.format, self.options, self.target, None)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the micro-batch durable."""
        written = _complete(self.target, self.options, messages, None)
        self.target.flush({message.pid for message in written if isinstance(message, TaskCommit)})
        log.info("batch %d: wrote %s to %s", batchId, _summary(written), self.target.place)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Report what stays. The sink process serves the next attempt, or its lease expires."""
        log.warning("batch %d failed: completed tasks wrote %s", batchId, _summary(messages))


def _complete(
    target: Target,
    options: WriteOptions,
    messages: Sequence[WriterCommitMessage | None],
    version: tuple[bytes, int] | None,
) -> Sequence[WriterCommitMessage | None]:
    """Write what the tasks left to the driver. Return the commit messages, with one for that."""
    ranges = [message for message in messages if isinstance(message, TaskCommit)]
    left = [message.left for message in ranges if message.left is not None]
    if not needs_driver(left):
        return messages
    written = TaskCommit(-1, pid=target.pid)
    with target.connect(ON_DRIVER) as client:
        for result in complete(client, left, sum(each.count for each in ranges), options.queue_nums, version):
            written.add(len(result), result.first_index, result.last_index)
    return [*messages, written]


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return ``1000 entries, indexes 0 to 999``."""
    total = TaskCommit(-1)
    for message in messages:
        if isinstance(message, TaskCommit) and message.count:
            total.add(message.count, message.first_index, message.last_index)
    if not total.count:
        return "no entries"
    return f"{total.count} entries, indexes {total.first_index} to {total.last_index}"


def print_result(text: str) -> None:
    """Report to the user's terminal: Spark shows no result of a write."""
    sys.stderr.write(f"dledger: {text}\n")
    sys.stderr.flush()
