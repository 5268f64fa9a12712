"""Micro-batches and versions that fail anywhere and are repeated with other partitions: each message is there once."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import Client, connect
from pyspark_dledger.raft.client.results import PutResult
from pyspark_dledger.spark.sink import repeated_job
from pyspark_dledger.spark.sink.job_identity import WriteJob, begin, txn_producer
from pyspark_dledger.spark.sink.task_writer import MessageSender, TaskCommit, _write_messages
from tests.support.jobs import Jobs, Killed, divided, rows_of
from tests.support.long_runs import mostly_slow
from tests.support.message_nodes import MessageNodes, message_nodes

DISTINCT = [f"row {number}" for number in range(60)]
# In every partition, and several times in some.
EQUAL = [*DISTINCT[:30], *["same"] * 20, *["other"] * 3]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageNodes]:
    with message_nodes(tmp_path_factory.mktemp("group"), 1) as found:
        yield found


@pytest.fixture(scope="module")
def client(group: MessageNodes) -> Iterator[Client]:
    with connect(group="g", peers=group.peers) as found:
        yield found


@pytest.fixture
def start(group: MessageNodes) -> int:
    """The index of the next entry."""
    end: int = group.status("n0")["endIndex"]
    return end + 1


def bodies(group: MessageNodes, start: int, node_id: str = "n0") -> Counter[str]:
    log = open_log(group.root(node_id), committedBound="end")
    rows = [row for batch in log.scan(columns=["index", "body"]) for row in batch.to_pylist()]
    # A new leader may append an entry without a body.
    return Counter(row["body"].decode() for row in rows if row["index"] >= start and row["body"])


def new_jobs(client: Client, **options: Any) -> Jobs:
    return Jobs(client, str(uuid.uuid4()), **options)


MODES: dict[str, dict[str, Any]] = {
    "rows": {},
    "idColumns": {"id_columns": ("keys",)},
    "txn": {"txn_version": 1},
    "txn with idColumns": {"txn_version": 1, "id_columns": ("keys",)},
}


@pytest.mark.parametrize("seed", mostly_slow(range(100), 3, 3))
@pytest.mark.parametrize("mode", MODES)
def test_distinct_rows_are_exact_in_any_partitions(
    group: MessageNodes, client: Client, start: int, mode: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_job, "_MAX_PUT", 300)
    chance = random.Random(seed)
    app = {"txn_app_id": str(uuid.uuid4())} if "txn_version" in MODES[mode] else {}
    jobs = new_jobs(client, **MODES[mode], **app)
    for _ in range(chance.randint(1, 4)):
        with suppress(Killed):
            jobs.run(divided(DISTINCT, chance), chance, is_killed=True)
        assert bodies(group, start) <= Counter(DISTINCT)
    jobs.run(divided(DISTINCT, chance), chance, is_killed=False)
    assert bodies(group, start) == Counter(DISTINCT)
    if app:
        assert client.producer(txn_producer(app["txn_app_id"]), from_index=2**62).last_number == 1


@pytest.mark.parametrize("seed", mostly_slow(range(400), 8, 8))
def test_equal_rows_are_exact_or_refused(group: MessageNodes, client: Client, start: int, seed: int) -> None:
    """In the same partitions they are exact, in any order."""
    chance = random.Random(seed)
    jobs, first = new_jobs(client), divided(EQUAL, chance)
    with suppress(Killed):
        jobs.run(first, chance, is_killed=True)
    try:
        jobs.run(divided(EQUAL, chance), chance, is_killed=False)
    except DLedgerError as error:
        if "equal rows are in other partitions" not in str(error):
            raise
        assert bodies(group, start) <= Counter(EQUAL)
        jobs.run([chance.sample(rows, len(rows)) for rows in first], chance, is_killed=False)
    assert bodies(group, start) == Counter(EQUAL)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 1, 1))
@pytest.mark.parametrize("mode", MODES)
def test_a_task_of_an_earlier_run_writes_no_row_again(
    group: MessageNodes, client: Client, start: int, mode: str, seed: int
) -> None:
    """A later run writes all rows while the task waits for the source."""
    chance = random.Random(seed)
    app = {"txn_app_id": str(uuid.uuid4())} if "txn_version" in MODES[mode] else {}
    jobs = new_jobs(client, **MODES[mode], **app)
    job = WriteJob(jobs.name, str(uuid.uuid4()), "the batch", is_micro_batch=not app)
    batches = list(rows_of(DISTINCT, len(DISTINCT)))
    waits = chance.randrange(len(batches) - 1)

    def source() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == waits:
                jobs.run(divided(DISTINCT, chance), chance, is_killed=False)
            yield batch

    is_same = mode == "idColumns"  # in all runs
    with nullcontext() if is_same else pytest.raises(DLedgerError, match="messages of the job's last run"):
        _write_messages(source(), client, jobs.format, jobs.options, job, TaskCommit(0))
    assert bodies(group, start) == Counter(DISTINCT)


class _Interrupted:
    """A client of a driver that does something else before its first put."""

    def __init__(self, client: Client, interrupt: Callable[[], None]) -> None:
        self._client, self._interrupts = client, [interrupt]
        self.producer, self.topics = client.producer, client.topics

    def put_messages(self, *given: Any, **options: Any) -> PutResult:
        while self._interrupts:
            self._interrupts.pop()()
        return self._client.put_messages(*given, **options)


class _Task:
    """A task of a first run, which outlives its driver."""

    def __init__(self, client: Client, jobs: Jobs) -> None:
        job = WriteJob(jobs.name, str(uuid.uuid4()), "the batch", is_micro_batch=jobs.options.txn_app_id is None)
        attempt = begin(client, job, 0, jobs.format.id_columns)
        self._sender = MessageSender(client, jobs.format, jobs.options, attempt, 0)

    def write(self, first: int, last: int) -> None:
        for batch in rows_of(DISTINCT[first:last], last):
            for part in self._sender.encode(batch, first):
                self._sender.send(part)
            first += len(batch)


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[MessageNodes]:
    """New nodes for each test: a leader makes only a few transfers for clients in a while."""
    with message_nodes(tmp_path, 3) as found:
        yield found


def _change_leader(trio: MessageNodes, client: Client) -> None:
    leader = trio.ready_leader()
    client.transfer(next(node_id for node_id in trio.ids if node_id != leader))


@pytest.mark.parametrize("moment", ["before a put of the later run", "after the later run"])
@pytest.mark.parametrize("mode", MODES)
def test_a_task_writes_no_row_again_after_a_change_of_the_leader(trio: MessageNodes, mode: str, moment: str) -> None:
    """The new leader knows nothing of the later run that claimed the job."""
    app = {"txn_app_id": str(uuid.uuid4())} if "txn_version" in MODES[mode] else {}
    with connect(group="g", peers=trio.peers) as client:
        start = client.status(trio.leader()).end_index + 1
        jobs = new_jobs(client, **MODES[mode], **app)
        task = _Task(client, jobs)
        task.write(0, 10)
        _change_leader(trio, client)
        task.write(10, 20)
        change = partial(_change_leader, trio, client)
        if moment == "after the later run":
            jobs.run([DISTINCT], random.Random(0), is_killed=False)
            change()
            with nullcontext() if mode == "idColumns" else pytest.raises(DLedgerError, match="another run wrote"):
                task.write(20, 40)
        else:
            driver: Any = _Interrupted(client, lambda: (change(), task.write(20, 40)))
            jobs.client = driver
            jobs.run([DISTINCT], random.Random(0), is_killed=False)
        assert bodies(trio, start, trio.leader()) == Counter(DISTINCT)


def test_a_repeated_job_with_other_rows_is_refused(group: MessageNodes, client: Client, start: int) -> None:
    jobs, chance = new_jobs(client), random.Random(0)
    jobs.run([DISTINCT], chance, is_killed=False)
    with pytest.raises(DLedgerError, match=r"wrote 60 messages of the batch; 10 of them are not among the 50 rows"):
        jobs.run([DISTINCT[10:]], chance, is_killed=False)
    assert bodies(group, start) == Counter(DISTINCT)


@pytest.mark.parametrize(("before", "after"), [("", "keys"), ("keys", ""), ("keys", "body")])
def test_changed_id_columns_are_refused(
    group: MessageNodes, client: Client, start: int, before: str, after: str
) -> None:
    name, chance = str(uuid.uuid4()), random.Random(0)
    columns = [(column,) if column else () for column in (before, after)]
    Jobs(client, name, id_columns=columns[0]).run([DISTINCT], chance, is_killed=False)
    with pytest.raises(DLedgerError, match=r"an earlier attempt wrote messages of the batch with"):
        Jobs(client, name, id_columns=columns[1]).run([DISTINCT], chance, is_killed=False)
    assert bodies(group, start) == Counter(DISTINCT)


def test_equal_values_of_id_columns_are_an_error(client: Client) -> None:
    """In one partition the row is named, in two the driver counts."""
    chance = random.Random(0)
    with pytest.raises(OptionError, match=r"row 9: expected other values .* found keys='3' again"):
        new_jobs(client, id_columns=("keys",)).run([[*"0123456783"]], chance, is_killed=False)
    with pytest.raises(DLedgerError, match=r"each of its 4 rows, found 3 different"):
        new_jobs(client, id_columns=("keys",)).run([["a", "b"], ["b", "c"]], chance, is_killed=False)


@pytest.mark.slow
def test_the_example_of_foreach_batch_writes_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    """The driver is killed between the commit of the write and that of the micro-batch."""
    page = Path("docs/write.md").read_text()
    code = page[page.index("## Exactly once") :].split("```python\n")[1].split("```")[0]
    code = code.replace("/data/", f"{tmp_path}/").replace(".start()", ".trigger(once=True).start().awaitTermination()")
    code = code.replace(".options(", ".options(dataFileSize='1m', indexFileSize='32k', ")
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    given = {"stream": stream.selectExpr("string(value) body")}
    exec(code, given)  # the example
    for file in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        file.unlink()
    exec(code, given)
    rows = open_log(tmp_path / "mylog").scan(columns=["body"])
    found = Counter(row["body"].decode() for batch in rows for row in batch.to_pylist())
    assert found == Counter(str(number) for number in range(100))
