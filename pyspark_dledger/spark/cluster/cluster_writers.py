"""The writers of a running cluster, batch and stream. Tasks send to brokers themselves, each row at least once.

A row that is sent again has the same UNIQ_KEY: it is made of the job, the partition and the row, or of `idColumns`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.producer import MAX_BATCH_BYTES, Batch, Producer
from pyspark_dledger.errors import ClusterError, DLedgerError
from pyspark_dledger.format.encode.identities import run_tag
from pyspark_dledger.spark.cluster.cluster_rows import NO_HOST, ClusterRows
from pyspark_dledger.spark.cluster.cluster_write_options import ClusterWriteOptions
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.sent_to_tasks import SentToTasks
from pyspark_dledger.spark.sink.job_identity import (
    KeyIdentities,
    PartitionIdentities,
    WriteJob,
    batch_job,
    micro_batch_job,
)
from pyspark_dledger.spark.sink.row_format import NOT_IN_CLUSTERS, row_format
from pyspark_dledger.spark.sink.task_writer import MessageEncoder, TaskCommit
from pyspark_dledger.spark.sink.writers import STREAM_BASES, print_result, reject_version

log = logging.getLogger(__name__)


class _ClusterWriter(SentToTasks):
    """A job, or a micro-batch if there is none."""

    job: WriteJob | None = None

    def __init__(self, options: ClusterWriteOptions, schema: StructType) -> None:
        self.options = options
        self.format = row_format(schema, options.write, NOT_IN_CLUSTERS)
        self.place = f"the cluster at {options.address}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition. Raises ClusterError if a message is not acknowledged: others of it may be written."""
        context = TaskContext.get()
        assert context is not None
        written = TaskCommit(context.partitionId())
        job = micro_batch_job(context) if self.job is None else self.job
        try:
            with Cluster(self.options.address) as cluster, closing(Producer(cluster, self.options.sending)) as producer:
                for sent in producer.send(self._batches(iterator, producer, job, written.partition)):
                    if sent.problem:
                        raise ClusterError(f"{sent.problem} (rows that are sent again have the same UNIQ_KEY)")
                    written.count += len(sent.offsets)
        except DLedgerError as error:
            error.args = (f"partition {written.partition}: {error}", *error.args[1:])
            raise error.with_traceback(None) from None
        return written

    def _batches(
        self, rows: Iterator[pa.RecordBatch], producer: Producer, job: WriteJob, partition: int
    ) -> Iterator[Batch]:
        columns = self.format.id_columns
        identities = (
            PartitionIdentities(job.name, partition)
            if columns is None
            else KeyIdentities(job.key_producer, columns, run_tag(columns.text))
        )
        made = ClusterRows(self.format, producer, self.options.max_message_size)
        encoder = MessageEncoder(made, made, self.options.write.queue_nums, identities, partition, NO_HOST)
        max_bytes = min(MAX_BATCH_BYTES, self.options.max_message_size)
        first_row = 0
        for batch in rows:
            for bodies in encoder.encode(batch, first_row):
                yield from made.batches(bodies, first_row, max_bytes)
                first_row += bodies.count


class ClusterBatchWriter(_ClusterWriter, DataSourceArrowWriter):
    """Writes one job."""

    def __init__(self, options: ClusterWriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.job = batch_job(options.write)
        if options.write.topic is not None:
            with Cluster(options.address) as cluster:
                Producer(cluster, options.sending).queues(options.write.topic)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what was written."""
        print_result(f"wrote {_count(messages)} messages to {self.place}")

    @plain_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what stays: messages of a topic cannot be taken back."""
        print_result(
            f"the job failed; completed tasks wrote {_count(messages)} messages to {self.place}, other tasks possibly "
            "more; these messages stay"
        )


class ClusterStreamWriter(_ClusterWriter, *STREAM_BASES):  # type: ignore[misc]  # the bases depend on the version
    """Writes one micro-batch. A micro-batch that is repeated after a crash keeps the identities of its rows."""

    def __init__(self, options: ClusterWriteOptions, schema: StructType) -> None:
        reject_version(options.write)
        super().__init__(options, schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The brokers acknowledged all rows."""
        log.info("batch %d: wrote %d messages to %s", batchId, _count(messages), self.place)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Report what stays."""
        log.warning("batch %d failed: completed tasks wrote %d messages", batchId, _count(messages))


def _count(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(message.count for message in messages if isinstance(message, TaskCommit))
