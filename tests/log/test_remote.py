"""Stores on remote file systems: the same rows as from local files, with few requests, and errors instead of gaps.

S3 is moto's server on loopback. What does not depend on S3 runs over a file system of the test's own, which counts.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from benchmarks import generate as generate_large
from pyspark_dledger.cli.main import main
from pyspark_dledger.common import uris
from pyspark_dledger.common.uris import RemoteUri, Stamp, store_path
from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import Filters, ScanRequest, Segment, SurveyRequest
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.io import remote_reads, remote_segment
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.key_files import index_files
from pyspark_dledger.log.io.remote_segment import RemoteFile
from pyspark_dledger.log.io.rocks_database import NEEDS_LOCAL
from pyspark_dledger.log.io.store_engine import store_engine
from pyspark_dledger.log.options import TABLES, parse_options
from pyspark_dledger.log.plan import read_partition
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.rebuild import compare as rebuild_compare
from pyspark_dledger.rocketmq.rebuild import rebuild
from pyspark_dledger.rocketmq.recovery.plain_recovery import preview_plain
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from pyspark_dledger.rocketmq.tables import read_table
from tests.rocketmq.test_rocks_records import write_records
from tests.rocketmq.test_rocksdb import GOLDENS as ROCKSDB
from tests.salvage.groups import damage, differences, golden_group
from tests.salvage.heal import healed_rows
from tests.support import generate
from tests.support.damage import flip, write_at
from tests.support.long_runs import examples
from tests.support.sparse_copy import copy_tree

MIB = 1024 * 1024
KEY, SECRET = "AKIAEXAMPLE", "s3cr3t/key"


# A file system that is a folder of this machine, and counts.


@dataclass
class Requests:
    """The requests to a file system; ``reads`` are path, offset and size."""

    infos: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    opens: list[str] = field(default_factory=list)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    most_at_once: int = 0

    @property
    def count(self) -> int:
        return len(self.infos) + len(self.lists) + len(self.opens) + len(self.reads)

    def bytes_of(self, name: str) -> int:
        return sum(size for place, _, size in self.reads if name in place)


def _nothing(_place: str, _offset: int) -> None:
    pass


class CountedFile:
    def __init__(self, system: CountedSystem, place: str, file: Any) -> None:
        self._system, self._place, self._file = system, place, file

    def size(self) -> int:
        return self._file.size()

    def read_at(self, size: int, offset: int) -> bytes:
        self._system.begin(self._place, offset, size)
        try:
            self._system.before_read(self._place, offset)
            return self._file.read_at(size, offset)
        finally:
            self._system.end()


class CountedSystem:
    """The used calls of a ``pyarrow.fs.FileSystem``, for a folder."""

    def __init__(self, folder: Path) -> None:
        self._inner = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        self._lock = threading.Lock()
        self._now = 0
        self.requests = Requests()
        self.before_read: Callable[[str, int], None] = _nothing

    def begin(self, place: str, offset: int, size: int) -> None:
        with self._lock:
            self._now += 1
            self.requests.most_at_once = max(self.requests.most_at_once, self._now)
            self.requests.reads.append((place, offset, size))

    def end(self) -> None:
        with self._lock:
            self._now -= 1

    def get_file_info(self, request: str | fs.FileSelector) -> Any:
        is_list = isinstance(request, fs.FileSelector)
        (self.requests.lists if is_list else self.requests.infos).append(request.base_dir if is_list else request)
        return self._inner.get_file_info(request)

    def open_input_file(self, place: str) -> CountedFile:
        self.requests.opens.append(place)
        return CountedFile(self, place, self._inner.open_input_file(place))


class Mount(NamedTuple):
    """A folder as a remote file system."""

    system: CountedSystem
    name: str

    def uri(self, place: str = "") -> str:
        return f"hdfs://{self.name}/bucket/{place}".rstrip("/")


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Mount]:
    """Makes a folder readable under its own URI."""
    systems: dict[str, CountedSystem] = {}

    def opened(store: str, _pid: int) -> tuple[CountedSystem, str]:
        host, _, place = store.partition("://")[2].partition("/bucket")
        return systems[host], place.strip("/") or "/"

    def mounted(folder: Path) -> Mount:
        name = f"host{os.urandom(8).hex()}"
        systems[name] = CountedSystem(folder)
        return Mount(systems[name], name)

    monkeypatch.setattr(remote_reads, "_file_system", opened)
    return mounted


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one page and windows of four pages, so that small files are read like large ones."""
    monkeypatch.setattr(remote_segment, "CHUNK", mmap.PAGESIZE)
    monkeypatch.setattr(remote_segment, "WINDOW", 4 * mmap.PAGESIZE)


def test_databases_of_a_remote_store_are_not_read(
    mount: Callable[[Path], Mount], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    for archive, folder in (("rocks-533", root), ("config", tmp_path)):
        with tarfile.open(ROCKSDB / f"{archive}.tar.gz") as packed:
            packed.extractall(folder)
    shutil.copytree(tmp_path / "own-533/config", root / "config")
    write_records(root / "kvStore", "popState", {b"k": b"{}"})
    uri = mount(tmp_path).uri("root")
    for verb, code in (("verify", 0), ("check", 1)):
        assert main([verb, uri]) == code
        printed = capsys.readouterr().out
        assert f"queues in RocksDB: {NEEDS_LOCAL}" in printed.splitlines()[-1]
        assert f"topics, consumer groups and their offsets in RocksDB: {NEEDS_LOCAL}" in printed.splitlines()[-1]
        assert "consumers miss: nothing" not in printed
    for command in (["trace", uri, "java40"], ["consumers", uri], ["dump", uri, "--table", "pop"]):
        assert main(command) != 0
        assert NEEDS_LOCAL in capsys.readouterr().err


# S3


class S3(NamedTuple):
    """An S3 server, and a client that can write."""

    address: str
    client: fs.S3FileSystem

    def uri(self, place: str, address: str | None = None) -> str:
        user = f"{KEY}:{SECRET.replace('/', '%2F')}"
        return f"s3://{user}@stores/{place}?scheme=http&region=us-east-1&endpoint_override={address or self.address}"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path_factory.mktemp("s3") / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        address = f"127.0.0.1:{port}"
        client = fs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, scheme="http", endpoint_override=address, allow_bucket_creation=True
        )
        _wait_for(port, server)
        client.create_dir("stores")
        yield S3(address, client)
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < end, "the S3 server does not start"
            time.sleep(0.05)


class Twin(NamedTuple):
    """A local store, and the same one on S3."""

    local: str
    uri: str


@pytest.fixture(scope="module")
def stores(case_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Stores by the name of their golden. Index files are truncated to their used part: S3 has no sparse files."""
    folder = tmp_path_factory.mktemp("stores")

    def store(case: str) -> Path:
        local = folder / case
        if not local.exists():
            shutil.copytree(case_folder(case), local, copy_function=_copy_used)
            _damage(case, local)
        return local

    return store


def _copy_used(source: str, target: str) -> None:
    is_index = Path(source).parent.name == "index" and Path(source).parent.parent.name.startswith("dledger-")
    with Path(source).open("rb") as file:
        Path(target).write_bytes(file.read(64 * 1024 if is_index else -1))


@pytest.fixture(scope="module")
def twins(s3: S3, stores: Callable[[str], Path]) -> Callable[[str], Twin]:
    """Stores by the name of their golden and of a folder in it."""
    uploaded: set[str] = set()

    def twin(name: str) -> Twin:
        case, _, inner = name.partition("/")
        if case not in uploaded:
            fs.copy_files(str(stores(case)), f"stores/{case}", fs.LocalFileSystem(), s3.client)
            uploaded.add(case)
        return Twin(str(stores(case) / inner), s3.uri(name))

    return twin


def _damage(case: str, folder: Path) -> None:
    """Overwrite a page of one replica with zeros."""
    if case == "mq-53-three":
        write_at(folder / "n1" / "dledger-n1" / "data" / "00000000000000393216", 40960, bytes(4096))


def rows(path: str, table: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of a table, without the path."""
    return rows_of(open_log(path, **options), table, **options)


def rows_of(log: Log, table: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of a table of an open store, without the path."""
    batches = log.scan() if table == "log" else read_table(log, table, parse_options({"table": table, **options}))
    found = [row for batch in batches for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if name != "path"} for row in found]


@pytest.mark.slow
def test_every_table_on_s3_has_the_rows_of_the_local_store(twins: Callable[[str], Twin]) -> None:
    counts = _compare(twins("mq-53-upgrade"))
    assert counts["consumeQueue"] > 0 and counts["indexFile"] > 0 and counts["indexUnits"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mq-53-three/n1", "mq-53-retention", "raw-single"])
def test_every_table_elsewhere_has_the_rows_of_the_local_store(
    stores: Callable[[str], Path], mount: Callable[[Path], Mount], name: str
) -> None:
    case, _, inner = name.partition("/")
    counts = _compare(Twin(str(stores(case) / inner), mount(stores(case)).uri(inner)))
    assert counts["indexUnits"] > 0
    if name == "mq-53-three/n1":
        assert counts["findings"] > 5, "the damage is seen"


def _compare(twin: Twin) -> dict[str, int]:
    """The number of rows of each table; checks that they are the same on both."""
    counts = {}
    local, remote_log = open_log(twin.local), open_log(twin.uri)
    for table in TABLES:
        if table in ("diff", "consumers"):
            continue
        expected = rows_of(local, table)
        assert rows_of(remote_log, table) == expected, table
        counts[table] = len(expected)
    assert counts["log"] > 0 and counts["segments"] > 0 and counts["state"] == 1
    return counts


@pytest.mark.slow
def test_remote_replicas_and_config_are_read(twins: Callable[[str], Twin], s3: S3, tmp_path: Path) -> None:
    n1, n0 = twins("mq-53-three/n1"), twins("mq-53-three/n0")
    assert rows(n1.uri, "diff", replicas=[n0.uri]) == rows(n1.local, "diff", replicas=[n0.local])
    local = tmp_path / "config-store"
    generate.write_dledger(local, [generate.mq_message("T", b"x")])
    (local / "config").mkdir()
    offsets = {"offsetTable": {"T@G": {"0": 5}}}
    (local / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    fs.copy_files(str(local), "stores/config-store", fs.LocalFileSystem(), s3.client)
    expected = rows(str(local), "consumers")
    assert expected and rows(s3.uri("config-store"), "consumers") == expected


def test_commit_logs_of_remote_replicas_are_compared(
    case_folder: Callable[[str], Path], mount: Callable[[Path], Mount], tmp_path: Path
) -> None:
    folder = tmp_path / "controller"
    copy_tree(case_folder("mq-53-controller"), folder)
    last = folder / "b3" / "commitlog" / f"{0:020}"
    flip(last, 70_000)
    local = [str(folder / name) for name in ("b1", "b2", "b3")]
    remote = [mount(folder).uri(name) for name in ("b1", "b2", "b3")]
    expected = rows(local[0], "diff", replicas=local[1:])
    assert {row["verdict"] for row in expected} == {"same", "diverged", "damaged"}
    assert rows(remote[0], "diff", replicas=remote[1:]) == expected
    here, there = (preview_plain(open_log(path), "5.3.3").as_json() for path in (local[2], remote[2]))
    assert here == there


@pytest.mark.slow
def test_the_folders_of_a_store_and_one_file_can_be_given(twins: Callable[[str], Twin]) -> None:
    twin = twins("mq-53-upgrade")
    data = "dledger-n0/data"
    for inner in ("commitlog", data, f"{data}/00000000000000458752"):
        uri = twin.uri.replace("?", f"/{inner}?")
        assert rows(uri, "log") == rows(f"{twin.local}/{inner}", "log") != []
    extra = twin.uri.replace("?", f"/{data}?")
    local = rows(f"{twin.local}/commitlog", "log", dataDirs=[f"{twin.local}/{data}"])
    assert rows(twin.uri.replace("?", "/commitlog?"), "log", dataDirs=[extra]) == local


def test_spark_reads_partitions_of_s3(spark: SparkSession, twins: Callable[[str], Twin]) -> None:
    twin = twins("mq-53-three/n1")
    columns = ["pos", "index", "topic", "queueOffset", "committed", "problem"]
    read = spark.read.format("dledger").options(minPartitions=4)
    found = read.load(twin.uri).select(*columns, spark_partition_id()).collect()
    assert len({row[-1] for row in found}) >= 4
    local = open_log(twin.local).scan(columns=columns)
    expected = sorted(tuple(row.values()) for batch in local for row in batch.to_pylist())
    assert sorted(tuple(row)[:-1] for row in found) == expected
    named = spark.read.format("dledger").options(table="state").load(twin.uri).first()["path"]
    assert named.startswith("s3://***@stores/") and SECRET not in named and KEY not in named


def test_uses_that_need_a_local_store_reject_a_uri(
    spark: SparkSession, twins: Callable[[str], Twin], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = twins("mq-53-three/n1").uri
    problem = re.escape("path s3://***@stores/mq-53-three/n1: expected a local")
    stream = spark.readStream.format("dledger").load(uri).writeStream.format("noop")
    with pytest.raises(PySparkException, match=f"{problem} path to follow"):
        stream.option("checkpointLocation", str(tmp_path)).start().processAllAvailable()
    with pytest.raises(PySparkException, match=f"{problem} folder to write to"):
        spark.createDataFrame([("x",)], "body string").write.format("dledger").mode("append").save(uri)
    assert main(["follow", uri]) == 2
    assert "expected a local path to follow" in capsys.readouterr().err


@pytest.mark.slow
def test_commands_print_the_same_as_for_the_local_store(
    twins: Callable[[str], Twin], capsys: pytest.CaptureFixture[str]
) -> None:
    twin = twins("mq-53-three/n1")
    shown = str(open_log(twin.uri).path)
    verbs = [
        ["dump", "--limit", "3"],
        ["verify"],
        ["recovery", "--java", "0.3.1.2"],
        ["recovery", "--rocketmq", "5.3.3"],
    ]
    verbs += [["segments"], ["state"], ["audit"], ["stats"]]
    for verb, *more in verbs:
        printed = []
        for path in (twin.local, twin.uri):
            code = main([verb, path, *more])
            output = capsys.readouterr()
            # The next command can be one that works on local stores only, as rebuild does.
            text, _, following = output.out.replace(shown, "STORE").replace(twin.local, "STORE").partition("\nnext: ")
            printed.append((code, text))
        assert printed[0] == printed[1], verb
        assert "rebuild" not in following.partition("\n")[0]
        assert printed[0][1]


# Windows


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(recipe=generate.recipes(), damage=generate.damages(), target=st.sampled_from([60, 5000, 20_000]))
def test_every_call_returns_the_same_as_on_a_local_file(
    recipe: generate.Recipe, damage: Callable[[generate.Store], None], target: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_segment, "CHUNK", mmap.PAGESIZE)
        patch.setattr(remote_segment, "WINDOW", 2 * mmap.PAGESIZE)
        for name in ("native", "python"):
            for segment, twin in _segments_of(recipe, damage, patch):
                local, over = get_engine(name), store_engine(name)
                ask = _engine_calls(segment, target)
                for question, call in ask.items():
                    assert _result(call, over, twin) == _result(call, local, segment), (name, question)


def _segments_of(
    recipe: generate.Recipe, damage: Callable[[generate.Store], None], patch: pytest.MonkeyPatch
) -> Iterator[tuple[Segment, Segment]]:
    with tempfile.TemporaryDirectory() as folder:
        store = recipe.write(Path(folder))
        damage(store)
        patch.setattr(remote_reads, "_file_system", lambda _store, _pid: (CountedSystem(Path("/")), folder))
        for segment in store.segments:
            place = str(Path(segment.path).relative_to(folder))
            status = Path(segment.path).stat()
            stamp = Stamp(status.st_size, status.st_mtime_ns)
            file = RemoteFile(RemoteUri(f"hdfs://host{os.urandom(8).hex()}/", place, stamp))
            yield segment, replace(segment, file=file)


def _engine_calls(segment: Segment, target: int) -> dict[str, Callable[[Any, Segment], Any]]:
    start, end = segment.base, segment.end
    return {
        "scan": lambda engine, of: generate.rows_of(
            batch for batch, _ in engine.scan(ScanRequest(of, start, end, generate.COLUMN_NAMES, max_batch_rows=7))
        ),
        "log_end": lambda engine, of: engine.log_end(of, start, True),
        "seek": lambda engine, of: engine.seek(of, start, end, 3),
        "split": lambda engine, of: engine.split(of, start, end, target),
        "term_runs": lambda engine, of: engine.term_runs(of, start, end),
        "survey": lambda engine, of: engine.survey(SurveyRequest(of, start, end)),
    }


def _result(call: Callable[[Any, Segment], Any], engine: Any, segment: Segment) -> Any:
    try:
        return call(engine, segment)
    except DLedgerError as error:
        return str(error).replace(str(segment.path), "PATH")


BIG = generate_large.Store("remote", 1024, messages=True, segments=2, segment_size=64 * MIB)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of 64 MiB, full of messages of 1 KiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate_large, "BUILD", tmp_path_factory.mktemp("big"))
        patch.setattr(generate_large, "warm", lambda _path: None)
        return generate_large.ensure(BIG)


def test_only_a_part_of_a_large_segment_is_fetched(big: Path, mount: Callable[[Path], Mount]) -> None:
    place = mount(big)
    log = open_log(place.uri())
    last = log.state.end_index
    fetched_before = place.system.requests.bytes_of("/data/")
    assert fetched_before < 4 * MIB, "index and checkpoint have the end of the log"
    assert place.system.requests.count <= 40
    found = [batch.num_rows for batch in log.scan(columns=["index"], startingOffsets=last - 99)]
    assert sum(found) == 100
    assert place.system.requests.bytes_of("/data/") - fetched_before < 4 * MIB


def test_planning_reads_a_large_segment_only_around_its_cuts(big: Path, mount: Callable[[Path], Mount]) -> None:
    place = mount(big)
    log = open_log(place.uri())
    partitions = log.plan(("index",), parse_options({"maxPartitionBytes": "32m"}), Filters())
    assert len(partitions) >= 4
    assert place.system.requests.bytes_of("/data/") < 2 * 33 * MIB
    before = place.system.requests.bytes_of("/data/")
    one = pickle.loads(pickle.dumps(partitions[1]))  # as Spark sends it
    assert sum(batch.num_rows for batch in read_partition(one)) > 10_000
    assert place.system.requests.bytes_of("/data/") - before < one.size + 2 * MIB


@pytest.mark.slow
def test_an_export_fetches_each_byte_once(big: Path, mount: Callable[[Path], Mount], tmp_path: Path) -> None:
    place = mount(big)
    size = sum(file.stat().st_size for file in (big / "dledger-n0" / "data").iterdir())
    export(place.uri(), tmp_path / "remote", "commitlog", commitLogOnly=True, engine="native")
    assert place.system.requests.bytes_of("/data/") < 1.2 * size
    export(big, tmp_path / "local", "commitlog", commitLogOnly=True)
    for file in (tmp_path / "local" / "commitlog").iterdir():
        assert (tmp_path / "remote" / "commitlog" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what memory a process has is read from /proc")
def test_a_large_segment_is_fetched_once_in_parallel_with_little_memory(big: Path) -> None:
    """Measures the memory of a process of its own while it reads 128 MiB as one partition."""
    answer = subprocess.run(
        [sys.executable, "-c", f"from tests.log.test_remote import read_big; read_big({str(big)!r})"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(answer.stdout)
    assert found["rows"] == found["expected"] > 100_000
    size = sum(file.stat().st_size for file in (big / "dledger-n0" / "data").iterdir())
    assert size <= found["fetched"] < 1.05 * size
    assert found["atOnce"] >= 2
    assert found["memory"] < 100 * MIB


def read_big(folder: str) -> None:
    """Read the store and print the requests and the memory."""
    from benchmarks.memory import anonymous_bytes

    system = CountedSystem(Path(folder))
    remote_reads._file_system = lambda _store, _pid: (system, "")  # type: ignore[assignment]
    log = open_log("hdfs://host/")
    expected = sum(batch.num_rows for batch in open_log(folder).scan(columns=["index"]))
    partitions = log.plan(("index", "topic", "body"), parse_options({"maxPartitionBytes": "1g"}), Filters())
    system.requests.reads.clear()
    before, peak, done = anonymous_bytes(), [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous_bytes() - before)

    sampler = threading.Thread(target=sample)
    sampler.start()
    count = sum(batch.num_rows for partition in partitions for batch in read_partition(partition))
    done.set()
    sampler.join()
    requests = system.requests
    answer = {
        "rows": count,
        "expected": expected,
        "fetched": requests.bytes_of("/data/"),
        "atOnce": requests.most_at_once,
    }
    sys.stdout.write(json.dumps({**answer, "memory": peak[0]}))


# Requests


def test_a_store_is_opened_with_few_requests(
    case_folder: Callable[[str], Path], mount: Callable[[Path], Mount]
) -> None:
    place = mount(case_folder("mq-53-upgrade"))
    log = open_log(place.uri())
    assert log.segments
    requests = place.system.requests
    assert len(requests.lists) == len(set(requests.lists)), "no folder is listed twice"
    assert (len(requests.infos), len(requests.lists)) == (1, 4)
    state = log.state
    assert state.committed_from is not None
    queues = [place for place in requests.lists if "consumequeue" in place]
    assert queues == ["/consumequeue"], "all queues are listed with one call"


# Failures


def test_a_change_between_plan_and_read_is_an_error(tmp_path: Path, mount: Callable[[Path], Mount]) -> None:
    store = generate.write_dledger(tmp_path, [generate.raw(b"body %d" % number) for number in range(300)])
    file = Path(store.segments[1].path)
    content = file.read_bytes()

    def planned() -> Any:
        place = mount(tmp_path)
        return open_log(place.uri()).plan(("index",), parse_options({"maxPartitionBytes": 1}), Filters())

    def read(partitions: Any) -> int:
        return sum(batch.num_rows for partition in partitions for batch in read_partition(partition))

    assert read(planned()) == 300
    for change, said in (
        (lambda: os.truncate(file, 100), "4096 bytes that were listed, found 100 bytes"),
        (
            lambda: file.write_bytes(content),
            "4096 bytes that were listed, found 4096 bytes, written later: it was changed meanwhile",
        ),
        (file.unlink, "file that was listed, found none: it was deleted meanwhile, read again"),
    ):
        file.write_bytes(content)
        partitions = planned()
        time.sleep(0.01)  # a file system tells times apart that are some milliseconds from each other
        change()
        with pytest.raises(StoreError, match=f"^hdfs://host.*{file.name}: expected the {said}"):
            read(partitions)


def test_expired_remote_files_are_skipped_if_the_options_say_so(tmp_path: Path, mount: Callable[[Path], Mount]) -> None:
    store = generate.write_dledger(tmp_path, [generate.raw(b"body %d" % number) for number in range(300)])
    place = mount(tmp_path)
    options = parse_options({"maxPartitionBytes": 1, "failOnDataLoss": "false"})
    partitions = open_log(place.uri()).plan(("index",), options, Filters())

    def read() -> list[int]:
        return [row["index"] for part in partitions for batch in read_partition(part) for row in batch.to_pylist()]

    assert read() == list(range(300))
    Path(store.segments[0].path).unlink()
    left = read()
    assert 0 < left[0] < 300 and left == list(range(left[0], 300))
    Path(store.segments[2].path).unlink()
    with pytest.raises(StoreError, match=r"found no file on .*, and a log that begins at pos 4096"):
        read()


def test_a_store_that_was_replaced_is_read_again(tmp_path: Path, mount: Callable[[Path], Mount]) -> None:
    generate.write_dledger(tmp_path, [generate.raw(b"body")] * 20, committed=3)
    place = mount(tmp_path)
    assert open_log(place.uri()).state.committed_index == 3
    time.sleep(0.01)
    shutil.rmtree(tmp_path / "dledger-n0")
    generate.write_dledger(tmp_path, [generate.raw(b"body")] * 40, committed=5)
    state = open_log(place.uri()).state
    assert (state.committed_index, state.end_index) == (5, 39)


def test_a_failing_read_is_an_error_and_never_a_short_file(tmp_path: Path, mount: Callable[[Path], Mount]) -> None:
    generate.write_dledger(tmp_path, [generate.raw(b"body")] * 300)
    place = mount(tmp_path)
    log = open_log(place.uri())
    assert sum(batch.num_rows for batch in log.scan(columns=["index"])) == 300

    def fail(path: str, offset: int) -> None:
        if "/data/" in path and offset == 0:
            raise OSError("AWS Error SLOW_DOWN\n during GetObject operation")

    place.system.before_read = fail
    with pytest.raises(StoreError) as error:
        list(open_log(place.uri(), engine="python").scan(columns=["index"]))
    assert "cannot be read (AWS Error SLOW_DOWN during GetObject operation): check the URI" in str(error.value)


def test_a_full_disk_is_an_error(
    tmp_path: Path, mount: Callable[[Path], Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate.write_dledger(tmp_path, [generate.raw(b"body")] * 30)
    log = open_log(mount(tmp_path).uri())
    assert log.segments

    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    expected = r"^hdfs://.*: cannot be copied to .* \({}.*\): make room, or set TMPDIR"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match=expected.format("No space left")):
            list(log.scan(columns=["index"]))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(StoreError, match=expected.format("No usable temporary")):
        list(log.scan(columns=["index"]))


def test_a_scan_continues_if_the_handler_of_bus_errors_is_replaced(tmp_path: Path) -> None:
    """In a process of its own, which a failure would kill: faulthandler is enabled during a scan."""
    pytest.importorskip("pyspark_dledger._native")
    store = generate.write_dledger(tmp_path, [generate.raw(b"x" * 100)] * 600, file_size=16 * mmap.PAGESIZE)
    code = f"""
import faulthandler
from pyspark_dledger import _native
from pyspark_dledger.format.scan.segment_file import MissingBytes
from pyspark_dledger.format.spec import ScanRequest, Segment
from pyspark_dledger.format.store_file import LocalFile, PartialFile
path, size = {store.segments[0].path!r}, {store.segments[0].size}
file = PartialFile.of(LocalFile("s3://x"), path, ((0, {mmap.PAGESIZE}),))
segment = Segment(file, "0", 0, size, "dledger")
scan = _native.Scan(ScanRequest(segment, 0, size, ("index",), max_batch_rows=1))
assert scan.next() is not None
faulthandler.enable()
try:
    while scan.next() is not None:
        pass
except MissingBytes as missing:
    print(missing.offset)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == (f"{mmap.PAGESIZE}\n", "")


@pytest.mark.slow
def test_a_refused_connection_is_an_error(s3: S3) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreError) as error:
        open_log(s3.uri("a-store", f"127.0.0.1:{port}"))
    _check_no_secret(str(error.value), "s3://***@stores/a-store: cannot be read (")


@pytest.mark.slow
def test_a_server_that_does_not_respond_is_a_timeout(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_reads, "REQUEST_TIMEOUT", 0.3)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(StoreError) as error:
        open_log(s3.uri("a-store", f"127.0.0.1:{silent.getsockname()[1]}"))
    _check_no_secret(str(error.value), "s3://***@stores/a-store: cannot be read (")
    assert time.monotonic() - began < 30


def test_a_missing_store_is_an_error(s3: S3) -> None:
    for place in ("no-store", "no-store/dledger-n0/data/00000000000000000000"):
        with pytest.raises(StoreError) as error:
            open_log(s3.uri(place))
        _check_no_secret(str(error.value), f"s3://***@stores/{place}: expected a storePathRootDir")
        _check_no_secret(str(error.value), "found nothing there: check the path")


def test_an_error_names_a_missing_bucket(s3: S3, twins: Callable[[str], Twin]) -> None:
    uri = s3.uri("x").replace("@stores/", "@no-such-bucket/")
    said = "found no bucket no-such-bucket: check its name, the region and the endpoint"
    with pytest.raises(StoreError) as error:
        open_log(uri)
    _check_no_secret(str(error.value), said)
    with pytest.raises(StoreError) as error:
        open_log(twins("mq-53-upgrade").uri, dataDirs=[uri])
    _check_no_secret(str(error.value), said)


def test_without_permission_to_look_up_a_bucket_the_store_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def info(place: Any) -> fs.FileInfo:
        requests.append(place)
        if place == "bucket":
            raise OSError("AWS Error ACCESS_DENIED during HeadBucket operation")
        return fs.FileInfo(place, fs.FileType.NotFound)

    system = SimpleNamespace(get_file_info=info)
    monkeypatch.setattr(remote_reads, "_file_system", lambda _store, _pid: (system, "bucket/store"))
    with pytest.raises(StoreError, match="found nothing there: check the path"):
        open_log("s3://bucket/store")
    assert requests == ["bucket/store", "bucket"]


def _check_no_secret(text: str, expected: str) -> None:
    assert expected in text
    assert KEY not in text and SECRET not in text and SECRET.replace("/", "%2F") not in text


# URIs and paths


def test_a_uri_shows_no_secrets_and_keeps_them() -> None:
    given = f"s3a://{KEY}:s3cr3t%2Fkey@bucket/a b/store/?region=eu-1&session_token=tok%2Ben"
    uri = store_path(given)
    assert isinstance(uri, RemoteUri)
    assert (str(uri), f"{uri}") == ("s3a://***@bucket/a b/store", "s3a://***@bucket/a b/store")
    again = pickle.loads(pickle.dumps(RemoteUri(given, "data/0", Stamp(5, 7))))
    assert (again.store, again.subpath, again.stamp) == (given, "data/0", Stamp(5, 7))
    assert str(again) == "s3a://***@bucket/a b/store/data/0"
    assert parse_options({"replicas": [given]}).replicas == (uri,)
    with pytest.raises(StoreError) as error:
        remote_reads.remote_call(uri, lambda: _raise(OSError(f"no {KEY} with s3cr3t/key or s3cr3t%2Fkey and tok+en")))
    assert "(no *** with *** or *** and ***)" in str(error.value)


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "given",
    [
        "SCHEME://SECRETKEY:abSECRET/cdSECRET+ef@bucket/a/b",
        "SCHEME://SECRETKEY:abSECRET?cd=SECRET@bucket/a",
        "SCHEME://SECRETKEY:abSECRET#SECRET@bucket/a",
        "SCHEME://SECRETKEY:SECRET^1@[bucket/a?token=SECRET^2+%5E",
        "SCHEME:/SECRETKEY:SECRET@bucket/a",
        "SCHEME:///SECRETKEY:SECRET@bucket/a",
        "  SCHEME://SECRETKEY:SECRET@bucket/a?x=y",
    ],
)
def test_a_malformed_uri_shows_no_secrets(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str) -> None:
        raise OSError(f"Cannot parse URI: '{uri}'")

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=refuse))
    for scheme in ("s3", "S3A", "gs", "abfss", "hdfs", "s4"):
        uri = given.replace("SCHEME", scheme)
        for command in (["state", uri], ["follow", uri], ["state", "/nothing", "-o", f"replicas=[{uri}"]):
            assert main(command) == 2
            printed = capsys.readouterr().err
            assert "SECRET" not in printed and "***" in printed


def test_special_characters_in_a_secret_must_be_encoded() -> None:
    with pytest.raises(OptionError, match=r"^path s3://\*\*\*@bucket/a: expected %2F, %3F and %23 for /, \? and #"):
        open_log("s3://KEY:a/b@bucket/a")
    assert str(store_path("s3://bucket/a@b?c=d@e")) == "s3://bucket/a@b"
    assert str(store_path("hdfs://name:8020/a@b")) == "hdfs://name:8020/a@b"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("abfss://box@account.dfs.core.windows.net/s", "abfss://box@account.dfs.core.windows.net/s"),
        ("abfss://:key@account/s?account_key=x", "abfss://***@account/s"),
        ("hdfs://user@name:8020/a/b/", "hdfs://***@name:8020/a/b"),
        ("gs://anonymous@bucket", "gs://***@bucket"),
    ],
)
def test_how_uris_are_shown(given: str, shown: str) -> None:
    assert str(store_path(given)) == shown


@pytest.mark.slow
def test_other_file_systems_have_a_timeout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uris, "GS_RETRY_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreError) as error:
        open_log(f"gs://anonymous@bucket/store?scheme=http&endpoint_override=127.0.0.1:{port}")
    assert str(error.value).startswith("gs://***@bucket/store: cannot be read (")


def test_other_schemes_are_rejected() -> None:
    with pytest.raises(OptionError, match=r"expected a local path or one of s3://, .* found ftp"):
        store_path("ftp://host/a")
    with pytest.raises(OptionError, match=r"^path s4://bucket/a: expected .* one of s3://, .* found s4: [^?]*$"):
        open_log("s4://bucket/a?secret_key=x")
    assert store_path("file:///a") == store_path("file:/a") == "/a"


_names = st.text(alphabet="abc%é +0", min_size=1, max_size=4).filter(lambda name: name.strip(" ") == name)


@settings(max_examples=examples(15), deadline=None)
@given(files=st.lists(st.lists(_names, min_size=1, max_size=3), max_size=6))
def test_remote_paths_are_like_local_ones(files: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder) / "x" / "r"
        root.mkdir(parents=True)
        for parts in files:
            file = root.joinpath(*parts)
            if not any(path.is_file() for path in file.parents) and not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes("/".join(parts).encode())
        patch.setattr(remote_reads, "_file_system", lambda _store, _pid: (CountedSystem(Path(folder)), "x/r"))
        top = path_of(f"hdfs://host{os.urandom(8).hex()}/r")
        for path in [root, *root.rglob("*"), root / "nothing", root / "a" / "nothing"]:
            twin = top
            for part in path.relative_to(root).parts:
                twin = twin / part
            assert (twin.name, twin.exists(), twin.is_dir(), twin.is_file()) == (
                *(path.name, path.exists(), path.is_dir(), path.is_file()),
            )
            assert twin.relative_to(top).as_posix() == path.relative_to(root).as_posix()
            assert twin.parent / twin.name == twin
            assert pickle.loads(pickle.dumps(twin)) == twin
            if path.is_file():
                assert (twin.stat().st_size, twin.read_bytes()) == (path.stat().st_size, path.read_bytes())
            if path.is_dir():
                assert sorted(one.name for one in twin.iterdir()) == sorted(one.name for one in path.iterdir())
                assert {str(one.relative_to(top)) for one in twin.glob("*/*")} == {
                    str(one.relative_to(root)) for one in path.glob("*/*")
                }


# Rebuild and export


@pytest.mark.slow
def test_a_remote_store_is_rebuilt_and_exported_as_the_local_one(
    case_folder: Callable[[str], Path], mount: Callable[[Path], Mount], tmp_path: Path
) -> None:
    source = tmp_path / "store"
    copy_tree(case_folder("mq-53-retention"), source)
    (source / "config").mkdir()
    (source / "config" / "topics.json").write_text("{}")
    uri = mount(tmp_path).uri("store")
    made: list[dict[str, tuple[bytes, int]]] = []
    for number, path in enumerate((str(source), uri)):
        target = tmp_path / str(number)
        for what in ("consumequeue", "index"):
            rebuild(path, what, out=target / what)
            assert rebuild_compare(path, what).is_equal
        export(path, target / "export", "commitlog")
        assert (target / "export" / "config" / "topics.json").read_text() == "{}"
        files = [file for file in target.rglob("0*") if file.is_file()]
        times = {file: file.stat().st_mtime_ns if "consumequeue" in file.parts else 0 for file in files}
        made.append({str(file.relative_to(target)): (file.read_bytes(), times[file]) for file in files})
        for file in index_files(target / "index"):
            made[-1][f"index {len(made[-1])}"] = (file.read_bytes(), 0)
    assert len(made[0]) > 20
    assert made[0] == made[1]
    with pytest.raises(StoreError, match="found a remote one, which is only read"):
        rebuild(uri, "consumequeue")


def test_remote_replicas_are_salvaged(mount: Callable[[Path], Mount], tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    damage(group, 3, 10)
    place = mount(tmp_path)
    uris = [place.uri(str(member.relative_to(tmp_path))) for member in group.members]
    report = salvage(SalvageRequest.of(uris, undecided="majority"), tmp_path / "result")
    assert (report.lost, report.findings) == (0, ())
    assert list(differences(group, tmp_path / "result")) == []
    healed = open_log(uris[0], replicas=uris[1:], heal=True, minPartitions=3).scan()
    assert list(generate.rows_of(healed)) == healed_rows(group.members)
