"""The identity of a write job, the same in every attempt, and how the messages of its tasks get theirs.

A micro-batch is a job of its query, with a run for each start of the query. A batch write with ``txnAppId`` and
``txnVersion`` is a job, too, with a run for each ``save()``. Tasks of the first run write. Tasks of a later run, which
may have other partitions, write nothing: the driver compares the job's rows with the log, and writes the missing ones
(`repeated_job`). Only in a micro-batch with ``idColumns`` do they write: identities do not contain the run then.

Each task claims the job for its run, and so does the driver: the leader then rejects new messages of earlier runs, as
of a task that outlived its driver. Claims end with the leadership, see `JobClaim`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies, producer_of
from pyspark_dledger.format.encode.identities import (
    CLAIM,
    MAX_PARTITIONS,
    digest_word,
    read_ids,
    replace_ids,
    run_tag,
    tagged,
)
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.client.results import PutResult
from pyspark_dledger.spark.sink.id_columns import IdColumns
from pyspark_dledger.spark.sink.write_options import WriteOptions

_QUERY_ID, _BATCH_ID, _RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


class WriteJob(NamedTuple):
    """A write job: its name, a run of it, and whether another run may repeat it. ``title`` is for messages."""

    name: str
    run: str
    title: str
    is_repeatable: bool = True
    is_micro_batch: bool = True

    @property
    def producer(self) -> bytes:
        """The first bytes of its messages' identities."""
        return digest_word(f"{self.name}\0rows")

    @property
    def key_producer(self) -> bytes:
        """The same for a micro-batch with ``idColumns``."""
        return digest_word(f"{self.name}\0idColumns")


def batch_job(options: WriteOptions) -> WriteJob:
    """The job of one ``save()``. Raises OptionError for `idColumns` in a job without a name."""
    run = str(uuid.uuid4())
    if options.id_columns and options.txn_app_id is None:
        raise OptionError("option idColumns of a batch write needs txnAppId and txnVersion: they name the job")
    if options.txn_app_id is None:
        return WriteJob(run, run, "the job", is_repeatable=False, is_micro_batch=False)
    name = f"txn\0{options.txn_app_id}\0{options.txn_version}"
    return WriteJob(name, run, f"version {options.txn_version} of {options.txn_app_id}", is_micro_batch=False)


def txn_producer(app_id: str) -> bytes:
    """The producer of the messages whose identities number the complete versions of an application."""
    return digest_word(f"txn\0{app_id}\0versions")


def micro_batch_job(context: TaskContext) -> WriteJob:
    """The job of a micro-batch. Raises DLedgerError without its identity: such micro-batches would be duplicates."""
    names = (_QUERY_ID, _BATCH_ID, _RUN_ID)
    query, batch, run = found = [context.getLocalProperty(name) for name in names]
    if query is None or batch is None or run is None:
        raise DLedgerError(f"expected the local properties {', '.join(names)}, found {found}: let Spark set them")
    return WriteJob(f"{query}/{batch}", run, f"batch {batch} of query {query}")


class Identities(Protocol):
    """Gives the messages of one task their identities."""

    producer: bytes

    def assign(self, bodies: Bodies, rows: pa.RecordBatch, first_row: int) -> Bodies:
        """Return encoded messages with their identities. `first_row` is the number of the first in its partition."""


class PartitionIdentities:
    """Identities of rows in their partition, for a job that no other run repeats."""

    def __init__(self, job: str, partition: int) -> None:
        self.producer = producer_of(job, partition)

    def assign(self, bodies: Bodies, rows: pa.RecordBatch, first_row: int) -> Bodies:
        return bodies


class RunIdentities:
    """Identities that another run of the job finds in any partition."""

    def __init__(self, job: WriteJob, partition: int) -> None:
        self.producer = job.producer
        self._run, self._partition = run_tag(job.run), partition

    def assign(self, bodies: Bodies, rows: pa.RecordBatch, first_row: int) -> Bodies:
        return replace_ids(bodies, self.producer, tagged(read_ids(bodies), self._run, self._partition))


class KeyIdentities:
    """Identities of the values of ``idColumns``."""

    def __init__(self, producer: bytes, columns: IdColumns, tag: int) -> None:
        self.producer = producer
        self._columns, self._ordinals = columns, get_engine().new_ordinals()
        self.tag = tag

    def assign(self, bodies: Bodies, rows: pa.RecordBatch, first_row: int) -> Bodies:
        ids = self._columns.ids(rows, first_row, self._ordinals)
        return replace_ids(bodies, self.producer, tagged(ids, self.tag, 0))


class Attempt(NamedTuple):
    """How a task writes: with these identities by ``put``, or, in a later run, not at all."""

    identities: Identities
    put: Callable[[Bodies, int], PutResult]
    is_repeated: bool = False


def begin(client: Client, job: WriteJob, partition: int, columns: IdColumns | None) -> Attempt:
    """Find out from the log how a task has to write. Raises DLedgerError if an earlier run had other identities."""
    if not job.is_repeatable:
        return Attempt(PartitionIdentities(job.name, partition), client.put_messages)
    if partition >= MAX_PARTITIONS:
        raise OptionError(f"expected at most {MAX_PARTITIONS} partitions, found partition {partition}: coalesce them")
    if job.is_micro_batch:
        if columns is not None:
            return _begin_with_keys(client, job, columns)
        _reject_if_written(client, job, job.key_producer, "with idColumns")
    run = run_tag(job.run)
    claim = JobClaim(client, job.title, job.producer, run)
    identities = RunIdentities(job, partition) if columns is None else KeyIdentities(job.producer, columns, run)

    def put(bodies: Bodies, queue_nums: int) -> PutResult:
        return claim.repeated(lambda: claim.put(bodies, queue_nums), is_first_run=True)

    return Attempt(identities, put, claim.is_repeated)


def _begin_with_keys(client: Client, job: WriteJob, columns: IdColumns) -> Attempt:
    tag = run_tag(columns.text)
    if client.producer(job.key_producer, tag).other_runs:
        raise _changed(job, "with other idColumns")
    _reject_if_written(client, job, job.producer, "without idColumns")
    return Attempt(KeyIdentities(job.key_producer, columns, tag), client.put_messages)


def _reject_if_written(client: Client, job: WriteJob, producer: bytes, how: str) -> None:
    if client.producer(producer).count:
        raise _changed(job, how)


def _changed(job: WriteJob, how: str) -> DLedgerError:
    return DLedgerError(
        f"an earlier attempt wrote messages of {job.title} {how}: repeat it with the same idColumns, and change them "
        "for later batches; nothing was written"
    )


T = TypeVar("T")

# Then the leader changes too often.
_MAX_CLAIMS = 10


class ClaimEndedError(DLedgerError):
    """The leader has changed since the claim. Some messages of the put may be in the log."""


class JobClaim:
    """A claim of the job of ``producer`` by ``run``: while it lasts, the leader takes new messages from this run only.

    It ends with the leadership, or when another run claims the job. Puts name the term of the claim, so that no other
    leader takes them. A new leader's claim says what other runs have written until then. ``title`` is for messages.
    """

    def __init__(self, client: Client, title: str, producer: bytes, run: int) -> None:
        self._client, self._title = client, title
        self._producer, self._run = producer, run
        self.renew()

    def renew(self) -> None:
        """Claim the job at the present leader."""
        state = self._client.producer(self._producer, self._run, CLAIM)
        self.is_repeated = state.other_runs > 0
        self._term = state.term

    def put(self, bodies: Bodies, queue_nums: int) -> PutResult:
        """Put messages of the job. Raises ClaimEndedError, and what `Client.put_messages` raises."""
        try:
            return self._client.put_messages(bodies, queue_nums, term=self._term)
        except (GroupError, UnknownOutcomeError) as error:
            if error.code != ResponseCode.EXPIRED_TERM:
                raise
            raise ClaimEndedError(str(error)) from None

    def repeated(self, work: Callable[[], T], *, is_first_run: bool) -> T:
        """Do work that puts messages, again with a new claim after each change of the leader.

        Raises DLedgerError if this is the first run and another one wrote before the claim.
        """
        for _ in range(_MAX_CLAIMS):
            if is_first_run and self.is_repeated:
                raise DLedgerError(
                    f"another run wrote messages of {self._title} at the same time: end it, and repeat this one"
                )
            try:
                return work()
            except ClaimEndedError as error:
                ended = error
                self.renew()
        raise ended
