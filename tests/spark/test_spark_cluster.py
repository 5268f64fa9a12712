"""The data source on a Spark standalone cluster: executors work without the driver's Python."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

import pyspark_dledger as dl
from tests.chaos.group import GROUP
from tests.exactly_once.group import MessageGroup
from tests.support.groups import Nodes, eventually, nodes
from tests.support.spark_cluster import SparkCluster, kill_tree, spark_cluster

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).parent.parent / "support" / "cluster_driver.py"
BODIES = [b"%d " % number * 300 for number in range(1500)]
SECONDS = 300.0
BATCH_ROWS = 1000
# Under load a Python process on the driver may take longer to start than the ten seconds that Spark allows.
NO_WORKER = "Python worker failed to connect back"
MAX_TRIES = 5


class Driver:
    """A driver program (`cluster_driver`) that runs jobs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._errors: list[str] = []
        self._responses: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A full pipe would stop the driver.
        for read in (self._read_errors, self._read_responses):
            threading.Thread(target=read, daemon=True).start()
        self.response()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def _read_responses(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._responses.put(line)
        self._responses.put("")

    def begin(self, job: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"job": job, **arguments}) + "\n")
        self.process.stdin.flush()

    def response(self) -> dict[str, Any]:
        line = self._responses.get(timeout=SECONDS)
        assert line, "".join(self._errors)[-4000:]
        response: dict[str, Any] = json.loads(line)
        assert "error" not in response, response["error"]
        return response

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop its Python processes except a sink process. Its JVM runs, and schedules tasks."""
        tree = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        pythons = [process for process in tree if "python" in process.name() and not _is_sink(process)]
        for process in pythons:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in pythons:
                if process.is_running():
                    process.send_signal(signal.SIGCONT)

    def run(self, folder: Path, tasks: int, job: str, **arguments: Any) -> None:
        """Run a job whose tasks end while no Python of the driver runs."""
        gate = folder / "gate"
        gate.mkdir()
        for _ in range(MAX_TRIES):
            self.begin(job, gate=str(gate), **arguments)
            eventually(lambda: not self._responses.empty() or list(gate.glob("begun-*")), SECONDS)
            if self._responses.empty():
                break
            with pytest.raises(AssertionError, match=NO_WORKER):
                self.response()
        with self.paused():
            (gate / "go").touch()
            eventually(lambda: len(list(gate.glob("ended-*"))) == tasks, SECONDS)
        self.response()
        assert len(list(gate.glob("ended-*"))) == tasks


def _is_sink(process: psutil.Process) -> bool:
    return "pyspark_dledger.spark.sink.sink_process" in process.cmdline()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers. The last test kills one."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def driver(cluster: SparkCluster) -> Iterator[Driver]:
    """A driver on the cluster. Its Arrow batches have `BATCH_ROWS` rows."""
    process = cluster.driver(DRIVER, spark_sql_execution_arrow_maxRecordsPerBatch=str(BATCH_ROWS))
    try:
        yield Driver(process)
    finally:
        kill_tree(process)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes with `BODIES`. Tests only read them."""
    with nodes(tmp_path_factory.mktemp("group"), 3) as started:
        with dl.connect(group="g", peers=started.peers) as client:
            client.append_batch(BODIES)
        last = len(BODIES) - 1
        eventually(lambda: all(started.status(node)["committedIndex"] >= last for node in started.nodes))
        yield started


def rows_of(folder: Path) -> list[tuple[int, bytes]]:
    rows = pq.read_table(folder).sort_by("index").to_pylist()
    return [(row["index"], row["body"]) for row in rows]


def bodies_of(store: Path) -> list[bytes]:
    return [body for batch in dl.open_log(store).scan(["body"]) for body in batch.column("body").to_pylist()]


def numbers_of(store: Path) -> list[int]:
    """Return the bodies of the messages of topic T as numbers."""
    batches = dl.open_log(store).scan(["body"], topic="T")
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


def test_a_store_is_read_by_executors_with_their_own_python(
    cluster: SparkCluster, driver: Driver, group: Nodes, tmp_path: Path
) -> None:
    store, rows = str(group.folder / "dledger-n0"), tmp_path / "rows"
    driver.run(tmp_path, 4, "read", path=store, rows=str(rows), options={"minPartitions": "4"})
    assert rows_of(rows) == list(enumerate(BODIES))
    packages = {Path(file.read_text()) for file in (tmp_path / "gate").glob("begun-*")}
    assert {package.relative_to(cluster.folder).parts[0] for package in packages} <= {"worker0", "worker1"}


def test_a_store_is_exported_by_executors(driver: Driver, group: Nodes, tmp_path: Path) -> None:
    store, options = str(group.folder / "dledger-n0"), {"minPartitions": "4", "columns": "index,body"}
    driver.begin("export", path=store, target=str(tmp_path / "out"), form="jsonl", options=options)
    driver.response()
    dl.export(store, tmp_path / "here", "jsonl", **options)
    names = [f"part-{number:05d}.jsonl" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == names
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_a_group_is_tailed_by_executors(driver: Driver, group: Nodes, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    options = {"group": "g", "peers": group.peers, "startingOffsets": "earliest", "maxPartitionBytes": "300k"}
    driver.run(tmp_path, 7, "tail", rows=str(rows), checkpoint=str(tmp_path / "checkpoint"), options=options)
    assert rows_of(rows) == list(enumerate(BODIES))


def test_a_group_is_written_by_executors(driver: Driver, tmp_path: Path) -> None:
    with nodes(tmp_path / "nodes", 3) as group:
        options = {"group": "g", "peers": group.peers}
        driver.run(tmp_path, 4, "write", count=2000, partitions=4, options=options)
    assert sorted(map(int, bodies_of(tmp_path / "nodes" / "dledger-n1"))) == list(range(2000))


def test_a_path_is_written_by_executors(driver: Driver, tmp_path: Path) -> None:
    store = tmp_path / "store"
    # Tasks know the driver's host; that of a loopback address would need no option.
    options = {"path": str(store), "listen": "0.0.0.0"}
    driver.run(tmp_path, 4, "write", count=2000, partitions=4, options=options)
    assert sorted(map(int, bodies_of(store))) == list(range(2000))


@pytest.mark.skipif(not os.environ.get("DLEDGER_SINK_FAULTS"), reason="make sink-faults runs it")
def test_messages_of_a_worker_that_is_killed_are_written_once(
    cluster: SparkCluster, driver: Driver, tmp_path: Path
) -> None:
    """Its tasks wrote a part, and the other worker repeats them. Must be the last test: it leaves one worker."""
    gate = tmp_path / "gate"
    gate.mkdir()
    for name in ("go", "hold"):
        (gate / name).touch()
    group = MessageGroup(tmp_path, 3, "async")
    try:
        group.start_all()
        eventually(group.leader, SECONDS)
        options = {"group": GROUP, "peers": group.peers, "topic": "T"}
        count = 8 * BATCH_ROWS
        driver.begin("write", gate=str(gate), count=count, partitions=2, size=1000, options=options)
        # Wait until both tasks have written.
        eventually(lambda: {number < count // 2 for number in numbers_of(group.root("n0"))} == {True, False}, SECONDS)
        assert len(numbers_of(group.root("n0"))) < count
        cluster.kill_worker(0)
        (gate / "hold").unlink()
        driver.response()
    finally:
        group.stop()
    assert sorted(numbers_of(group.root("n0"))) == list(range(count))
