"""The sinks: what Spark calls on the driver, and what its tasks do with their rows.

Raw entries are written at least once: a task that Spark repeats writes its rows again. Messages carry identities, made
of the job, the partition, the row's content and how often that came before; the leader drops what it has already, so
a task that is repeated with the same rows, in any order, writes each of them once.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.put_rows import topic_problem
from pyspark_dledger.format.encode.puts import PutSettings, producer_of
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.raft.client import Client
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.sink.driver import own_address
from pyspark_dledger.spark.sink.launch import start_sink, stream_sink
from pyspark_dledger.spark.sink.row_shape import TOPIC, RowShape, shape_of
from pyspark_dledger.spark.sink.targets import EmbeddedTarget, GroupTarget, Target
from pyspark_dledger.spark.sink.write_options import WriteOptions

log = logging.getLogger(__name__)

_QUERY_ID, _BATCH_ID, _MASTER = "sql.streaming.queryId", "streaming.sql.batchId", "spark.master"
# Batches that are packed and not yet acknowledged: one is sent, one waits, while the next is read from Spark.
_MOST_AHEAD = 2
# Bytes of rows that are encoded as messages at a time.
_MOST_ENCODED = 64 * 1024 * 1024
_ROW = re.compile(r"\brow (\d+)")


@dataclass
class WrittenRange(WriterCommitMessage):
    """What a task wrote: so many entries, and the lowest and highest of their indexes (-1 without one).

    ``process`` is that of the embedded sink.
    """

    partition: int
    count: int = 0
    first_index: int = -1
    last_index: int = -1
    process: int = 0

    def add(self, count: int, first_index: int, last_index: int) -> None:
        """Take note of entries that were acknowledged."""
        self.count += count
        self.first_index = first_index if self.first_index < 0 else min(self.first_index, first_index)
        self.last_index = max(self.last_index, last_index)


class BatchWriter(DataSourceArrowWriter):
    """Of one job, which it names: made on the driver, pickled, and sent to the tasks and to the commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.shape = shape_of(schema, options)
        self.options = options
        self.job = str(uuid.uuid4())
        self.target = _target(options, self.shape, start_sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition."""
        return _write(iterator, self.shape, self.options, self.target, self.job)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the embedded sink, with everything on disk, and say what was written."""
        self.target.ended()
        _say(f"wrote {_summary(messages)} to {self.target.name}")

    @plain_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the embedded sink. What tasks wrote stays: a log is append-only."""
        self.target.ended()
        _say(
            f"the job failed; tasks that were done had written {_summary(messages)} to {self.target.name}, others "
            "possibly more; a log is append-only, so that stays"
        )


_StreamBases: tuple[type, ...] = (
    (datasource.DataSourceStreamArrowWriter,)
    if hasattr(datasource, "DataSourceStreamArrowWriter")
    # PySpark 4.0 hands Arrow to what is an Arrow writer, whatever else it is.
    else (DataSourceStreamWriter, DataSourceArrowWriter)
)


class StreamWriter(*_StreamBases):  # type: ignore[misc]  # which depends on the version
    """Of one micro-batch: Spark makes one for its tasks and another, in another process, for its commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.shape = shape_of(schema, options)
        self.options = options
        self.target = _target(options, self.shape, stream_sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of a micro-batch, which keeps its name when it is repeated after a crash."""
        return _write(iterator, self.shape, self.options, self.target, None)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Have the micro-batch on disk."""
        self.target.made_durable({message.process for message in messages if isinstance(message, WrittenRange)})
        log.info("batch %d: wrote %s to %s", batchId, _summary(messages), self.target.name)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what stays. The embedded sink ends by its lease, or serves the next attempt."""
        log.warning("batch %d failed: tasks that were done had written %s", batchId, _summary(messages))


def _target(options: WriteOptions, shape: RowShape, start: Callable[[WriteOptions, bool], Any]) -> Target:
    if options.group is not None:
        return GroupTarget.of(options)
    sink = start(options, shape.is_message)
    assert options.path is not None
    return EmbeddedTarget(options.path, sink, options.flush == "sync", options.timeout_ms, options.max_retries)


class _Task(NamedTuple):
    """The attempt of a task: which job and partition it is of, and the master of its session."""

    job: str
    partition: int
    master: str


def _task(job: str | None) -> _Task:
    context = TaskContext.get()
    assert context is not None
    if job is None:
        job = _micro_batch(context)
    return _Task(job, context.partitionId(), context.getLocalProperty(_MASTER) or "")


def _micro_batch(context: TaskContext) -> str:
    """The name that a micro-batch keeps. Raises DLedgerError without one: all such would be taken for the same."""
    names = [context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID)]
    if not all(names):
        raise DLedgerError(
            f"expected the local properties {_QUERY_ID} and {_BATCH_ID}, found {names}: let Spark set them"
        )
    return "/".join(str(name) for name in names)


def _write(
    batches: Iterator[pa.RecordBatch], shape: RowShape, options: WriteOptions, target: Target, job: str | None
) -> WrittenRange:
    task = _task(job)
    try:
        with target.connected(task.master) as client:
            rows = _Messages(client, shape, options, task) if shape.is_message else _Raw(client, shape)
            written = WrittenRange(task.partition, process=target.process)
            _send(batches, rows, written)
            return written
    except DLedgerError as error:
        raise _of_partition(error, task.partition) from None


def _of_partition(error: DLedgerError, partition: int) -> DLedgerError:
    """The same error, whose text begins with the partition; errors keep what else they carry."""
    error.args = (f"partition {partition}: {error}", *error.args[1:])
    return error.with_traceback(None)


class _Rows:
    """Rows on their way: `parts` packs a batch, in the task's thread, and `put` writes a part of it, in another."""

    def parts(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Bodies]:
        raise NotImplementedError

    def put(self, bodies: Bodies) -> Any:
        raise NotImplementedError


def _send(batches: Iterator[pa.RecordBatch], rows: _Rows, written: WrittenRange) -> None:
    """Write batch after batch, in order, each while the next is read. An error ends it at the batch that failed."""
    pending: deque[Future[Any]] = deque()
    first_row = 0
    put = _until_it_fails(rows.put)
    with ThreadPoolExecutor(1, "dledger-write") as pool:
        try:
            for batch in batches:
                for bodies in rows.parts(batch, first_row):
                    while len(pending) >= _MOST_AHEAD:
                        _note(pending.popleft().result(), written)
                    pending.append(pool.submit(put, bodies))
                first_row += batch.num_rows
            while pending:
                _note(pending.popleft().result(), written)
        finally:
            # What was not begun is not to be written behind what failed.
            for future in pending:
                future.cancel()


def _until_it_fails(put: Callable[[Bodies], Any]) -> Callable[[Bodies], Any]:
    """The same, but nothing is written behind what failed: the next may have begun when that is heard of."""
    failed: list[BaseException] = []

    def guarded(bodies: Bodies) -> Any:
        if failed:
            raise failed[0]
        try:
            return put(bodies)
        except BaseException as error:
            failed.append(error)
            raise

    return guarded


def _note(result: Any, written: WrittenRange) -> None:
    written.add(len(result), result.first_index, result.last_index)


class _Raw(_Rows):
    def __init__(self, client: Client, shape: RowShape) -> None:
        self._client = client
        self._shape = shape

    def parts(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Bodies]:
        return self._shape.bodies(batch, first_row)

    def put(self, bodies: Bodies) -> Any:
        return self._client.append_batch(bodies)


class _Messages(_Rows):
    """Rows as messages. Who leads tells, before the first is sent, how many queues each topic has."""

    def __init__(self, client: Client, shape: RowShape, options: WriteOptions, task: _Task) -> None:
        self._client = client
        self._shape = shape
        self._queue_nums = options.queue_nums
        self._engine = get_engine()
        self._ordinals = self._engine.new_ordinals()
        self._queue_counts: dict[str, int] = {}
        self._settings = PutSettings(
            producer=producer_of(task.job, task.partition),
            born_timestamp=0,
            born_host=encode_host(own_address(), 0),
            store_host=b"",
            queue_counts=self._queue_counts,
            # Partitions do not all begin with queue 0.
            round_robin=task.partition,
        )

    def parts(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Bodies]:
        for start, part in _slices(batch, first_row):
            puts = self._shape.puts(part, start)
            self._learn(puts.column(TOPIC), start)
            settings = self._settings._replace(
                born_timestamp=time.time_ns() // 1_000_000, round_robin=self._settings.round_robin + start
            )
            yield self._encoded(puts, settings, start)

    def _encoded(self, part: pa.RecordBatch, settings: PutSettings, first_row: int) -> Bodies:
        try:
            return self._engine.encode_messages(part, settings, self._ordinals)
        except ValueError as error:
            text = _ROW.sub(lambda found: f"row {first_row + int(found[1])}", str(error), count=1)
            raise OptionError(text) from None

    def _learn(self, topics: pa.Array, first_row: int) -> None:
        """Ask the leader for the topics that are new to this task. Raises OptionError for one that cannot be."""
        found = [name for name in pc.unique(topics).to_pylist() if name not in self._queue_counts]
        for name in found:
            if problem := topic_problem(name.encode()):
                row = first_row + pc.index(topics, name).as_py()
                raise OptionError(f"row {row}: {problem}: name another one")
        if found or not self._settings.store_host:
            answer = self._client.topics(found, self._queue_nums)
            self._queue_counts.update(answer.queue_counts)
            self._settings = self._settings._replace(store_host=answer.store_host)

    def put(self, bodies: Bodies) -> Any:
        return self._client.put_messages(bodies, self._queue_nums)


def _slices(batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A batch in parts of at most `_MOST_ENCODED` bytes, or of one row, with the number of each one's first row."""
    if batch.num_rows > 1 and batch.nbytes > _MOST_ENCODED:
        half = batch.num_rows // 2
        yield from _slices(batch.slice(0, half), first_row)
        yield from _slices(batch.slice(half), first_row + half)
    elif batch.num_rows:
        yield first_row, batch


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """``1000 entries, indexes 0 to 999``."""
    total = WrittenRange(-1)
    for message in messages:
        if isinstance(message, WrittenRange) and message.count:
            total.add(message.count, message.first_index, message.last_index)
    if not total.count:
        return "no entries"
    return f"{total.count} entries, indexes {total.first_index} to {total.last_index}"


def _say(text: str) -> None:
    """For who looks at the job: Spark shows no result of a write."""
    sys.stderr.write(f"dledger: {text}\n")
    sys.stderr.flush()
