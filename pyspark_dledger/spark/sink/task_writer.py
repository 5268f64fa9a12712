"""How a task writes its rows: packed or encoded, then sent in order while the next batch is read.

Messages have an identity of job, run, partition, content and a duplicate counter (`job_identity`). The leader skips ids
that are already in the log: a repeated task with the same rows, in any order, writes each of them once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.encode.encoded import Bodies, BodyParts, PutSettings
from pyspark_dledger.format.encode.identities import run_tag
from pyspark_dledger.format.encode.put_rows import topic_problem
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.client.results import Topics
from pyspark_dledger.spark.sink.driver import own_address, session_of
from pyspark_dledger.spark.sink.job_identity import (
    Attempt,
    Identities,
    KeyIdentities,
    PartitionIdentities,
    WriteJob,
    begin,
    micro_batch_job,
)
from pyspark_dledger.spark.sink.repeated_job import LeftRows, PackedBodies
from pyspark_dledger.spark.sink.row_format import TOPIC, RowFormat
from pyspark_dledger.spark.sink.targets import Target
from pyspark_dledger.spark.sink.write_options import WriteOptions

# Encoded batches that are not acknowledged: one is sent, one waits, while Spark's next batch is read.
_MAX_PENDING = 2
# Bytes of rows that are encoded as messages together.
_MAX_ENCODED = 64 * 1024 * 1024


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task wrote: the number of entries, their lowest and highest index (-1: none), and its sink process."""

    partition: int
    count: int = 0
    first_index: int = -1
    last_index: int = -1
    pid: int = 0
    left: LeftRows | None = None

    def add(self, count: int, first_index: int, last_index: int) -> None:
        """Add acknowledged entries."""
        self.count += count
        self.first_index = first_index if self.first_index < 0 else min(self.first_index, first_index)
        self.last_index = max(self.last_index, last_index)


def write_partition(
    batches: Iterator[pa.RecordBatch], rows: RowFormat, options: WriteOptions, target: Target, job: WriteJob | None
) -> TaskCommit:
    """Write the rows of this task. Without a `job` they are those of a micro-batch. Raises DLedgerError."""
    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    job = micro_batch_job(context) if job is None and rows.is_message else job
    written = TaskCommit(partition, pid=target.pid)
    try:
        with target.connect(session_of(context.getLocalProperty)) as client:
            if job is None or not rows.is_message:
                _send(batches, RawSender(client, rows), written)
            else:
                _write_messages(batches, client, rows, options, job, written)
    except DLedgerError as error:
        error.args = (f"partition {partition}: {error}", *error.args[1:])
        raise error.with_traceback(None) from None
    return written


def _write_messages(
    batches: Iterator[pa.RecordBatch],
    client: Client,
    rows: RowFormat,
    options: WriteOptions,
    job: WriteJob,
    written: TaskCommit,
) -> None:
    """Write messages, but leave to the driver those of a repeated job, and with ``txnAppId`` the last one."""
    columns = rows.id_columns
    attempt = begin(client, job, written.partition, columns)
    sender = MessageSender(client, rows, options, attempt, written.partition)
    left: list[PackedBodies] = []
    if attempt.is_repeated:
        left += map(PackedBodies.of, _encoded(batches, sender))
    else:
        _send(batches, sender, written, left if options.txn_app_id is not None else None)
    tag = attempt.identities.tag if isinstance(attempt.identities, KeyIdentities) else None
    if not isinstance(attempt.identities, PartitionIdentities):
        run = run_tag(job.run) if attempt.identities.producer == job.producer else None
        written.left = LeftRows(job.title, attempt.identities.producer, attempt.is_repeated, tag, tuple(left), run)


def _send(
    batches: Iterator[pa.RecordBatch],
    sender: RawSender | MessageSender,
    written: TaskCommit,
    last: list[PackedBodies] | None = None,
) -> None:
    """Send batches in order, and add what is acknowledged to `written`. Stops at the first error.

    The last row is not sent, but added to `last`, if that is given.
    """
    pending: deque[Future[Any]] = deque()
    send = _until_error(sender.send)

    def add_first() -> None:
        result = pending.popleft().result()
        written.add(len(result), result.first_index, result.last_index)

    with ThreadPoolExecutor(1, "dledger-write") as pool:
        try:
            encoded = _encoded(batches, sender)
            for bodies in encoded if last is None else _without_last(encoded, last):
                while len(pending) >= _MAX_PENDING:
                    add_first()
                pending.append(pool.submit(send, bodies))
            while pending:
                add_first()
        finally:
            for future in pending:
                future.cancel()


def _encoded(batches: Iterator[pa.RecordBatch], sender: RawSender | MessageSender) -> Iterator[Any]:
    first_row = 0
    for batch in batches:
        yield from sender.encode(batch, first_row)
        first_row += batch.num_rows


def _without_last(encoded: Iterable[Bodies], last: list[PackedBodies]) -> Iterator[Bodies]:
    """Yield all messages but the last one, which is added to `last`."""
    held: Bodies | None = None
    for bodies in encoded:
        if held is not None:
            yield held
        held = bodies
    if held is not None:
        messages = get_engine().unpack_bodies(held)
        last.append(PackedBodies.of(Bodies.of([messages.pop()])))
        if messages:
            yield Bodies.of(messages)


def _until_error(send: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `send`, which sends nothing after an error: the next call may start before the error is seen."""
    failed: list[BaseException] = []

    def guarded(bodies: Any) -> Any:
        if failed:
            raise failed[0]
        try:
            return send(bodies)
        except BaseException as error:
            failed.append(error)
            raise

    return guarded


class RawSender:
    """Packs and sends raw rows. `encode` runs in the task's thread, `send` in another."""

    def __init__(self, client: Client, rows: RowFormat) -> None:
        self._client = client
        self._rows = rows

    def encode(self, batch: pa.RecordBatch, first_row: int) -> Iterator[BodyParts]:
        if batch.num_rows:
            yield self._rows.bodies(batch, first_row)

    def send(self, bodies: BodyParts) -> Any:
        return self._client.append_batch(bodies)


class KnowsTopics(Protocol):
    """A client of a group, or of a cluster."""

    def topics(self, names: Sequence[str], queue_nums: int) -> Topics: ...


class MakesPuts(Protocol):
    """A format of rows."""

    def puts(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch: ...


class MessageEncoder:
    """Encodes rows as messages. It first asks the leader, or the cluster, how many queues each topic has."""

    def __init__(
        self,
        client: KnowsTopics,
        rows: MakesPuts,
        queue_nums: int,
        identities: Identities,
        partition: int,
        born_host: bytes | None = None,
    ) -> None:
        self._client = client
        self._rows = rows
        self._queue_nums = queue_nums
        self._identities = identities
        self._engine = get_engine()
        self._ordinals = self._engine.new_ordinals()
        self._queue_counts: dict[str, int] = {}
        self._settings = PutSettings(
            producer=identities.producer,
            born_timestamp=0,
            born_host=encode_host(own_address(), 0) if born_host is None else born_host,
            store_host=b"",
            queue_counts=self._queue_counts,
            # Partitions begin with different queues.
            round_robin=partition,
        )

    def encode(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Bodies]:
        for start, part in _slices(batch, first_row):
            puts = self._rows.puts(part, start)
            self._fetch_queue_counts(puts.column(TOPIC), start)
            settings = self._settings._replace(
                born_timestamp=time.time_ns() // 1_000_000,
                round_robin=self._settings.round_robin + start,
                first_row=start,
            )
            yield self._identities.assign(self._encode_part(puts, settings), part, start)

    def _encode_part(self, puts: pa.RecordBatch, settings: PutSettings) -> Bodies:
        try:
            return self._engine.encode_messages(puts, settings, self._ordinals)
        except ValueError as error:
            raise OptionError(str(error)) from None

    def _fetch_queue_counts(self, topics: pa.Array, first_row: int) -> None:
        """Ask the leader about new topics. Raises OptionError for a name that no topic can have."""
        found = [name for name in pc.unique(topics).to_pylist() if name not in self._queue_counts]
        for name in found:
            if problem := topic_problem(name.encode()):
                row = first_row + pc.index(topics, name).as_py()
                raise OptionError(f"row {row}: {problem}: name another one")
        if found or not self._settings.store_host:
            response = self._client.topics(found, self._queue_nums)
            self._queue_counts.update(response.queue_counts)
            self._settings = self._settings._replace(store_host=response.store_host)


class MessageSender(MessageEncoder):
    """Encodes and sends rows as messages."""

    def __init__(
        self, client: Client, rows: RowFormat, options: WriteOptions, attempt: Attempt, partition: int
    ) -> None:
        super().__init__(client, rows, options.queue_nums, attempt.identities, partition)
        self._put = attempt.put

    def send(self, bodies: Bodies) -> Any:
        return self._put(bodies, self._queue_nums)


def _slices(batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield parts of at most `_MAX_ENCODED` bytes, or of one row, each with the number of its first row."""
    if batch.num_rows > 1 and batch.nbytes > _MAX_ENCODED:
        half = batch.num_rows // 2
        yield from _slices(batch.slice(0, half), first_row)
        yield from _slices(batch.slice(half), first_row + half)
    elif batch.num_rows:
        yield first_row, batch
