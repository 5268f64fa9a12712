"""The data source reads what it planned: the log, its tables, and nothing of another store. Without a Spark session."""

from __future__ import annotations

import multiprocessing
import pickle
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import pyspark_dledger as dl
from pyspark_dledger.errors import DataLossError
from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.spark.schema import whole_schema
from tests.support.generate import mq_message, write_consume_queue, write_dledger
from tests.support.stores import FILE, bodies, data_files, opened

SCHEMA = StructType([StructField("index", LongType()), StructField("body", BinaryType())])
COUNT = 50
# Every data file is a partition of its own.
ONE_FILE = {"maxPartitionBytes": str(FILE)}

Reader = DataSourceReader | DataSourceStreamReader
Planned = tuple[Reader, Sequence[InputPartition]]


def write_log(path: Path, first: int = 0, **config: Any) -> list[Path]:
    """A log of `COUNT` bodies that differ for each `first`; returns its data files."""
    store = opened(path, **config)
    store.append_as_leader(bodies(first, COUNT), 0)
    store.update_committed_index(0, COUNT - 1)
    store.shutdown()
    return data_files(store)


def batch(path: Path, **options: Any) -> Planned:
    """A batch read that was planned and not yet read."""
    reader = dl.DefaultSource({"path": str(path), **ONE_FILE, **options}).reader(SCHEMA)
    return reader, sent(reader.partitions())


def stream(path: Path, **options: Any) -> Planned:
    """The first micro-batch of a stream, planned and not yet read."""
    options = {"startingOffsets": "earliest", "committedBound": "end", **ONE_FILE, **options}
    reader = dl.DefaultSource({"path": str(path), **options}).streamReader(SCHEMA)
    start = reader.initialOffset()
    return reader, sent(reader.partitions(start, reader.latestOffset(start)))


def sent(partitions: Sequence[InputPartition]) -> list[InputPartition]:
    """Partitions as tasks get them."""
    return [pickle.loads(pickle.dumps(each)) for each in partitions]


def rows(planned: Planned) -> list[tuple[int, bytes]]:
    reader, partitions = planned
    found = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return [(row["index"], row["body"]) for row in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_tasks_get_the_partitions_of_the_plan(path: Path) -> None:
    write_log(path)[1].unlink()
    planned = dl.DefaultSource({"path": str(path), **ONE_FILE}).reader(SCHEMA).partitions()
    ranges = [part for each in planned for part in each.value.ranges]
    assert {type(part) for part in ranges} == {ScanRequest, FileGap}
    assert [each.value for each in sent(planned)] == [each.value for each in planned]
    assert all(each.value.origin == planned[0].value.origin for each in sent(planned))
    assert b"dledger-statistics rows=" in pickle.dumps(planned[0])


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_partition_is_not_read_from_another_log(path: Path, plan: Callable[..., Planned], fails: str) -> None:
    write_log(path)
    planned = plan(path, failOnDataLoss=fails)
    path.rename(path.with_name("planned"))
    write_log(path, first=COUNT)
    reader, partitions = planned
    for partition in partitions:
        with pytest.raises(dl.StoreError, match=r"expected .* as planned on .*, found .*: mount the same store"):
            rows((reader, [partition]))


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_absent_folder_is_an_error_whatever_fail_on_data_loss_says(
    path: Path, plan: Callable[..., Planned], fails: str
) -> None:
    write_log(path)
    reader, partitions = plan(path, failOnDataLoss=fails)
    path.rename(path.with_name("mounted-elsewhere"))
    assert partitions
    for partition in partitions:
        with pytest.raises(dl.StoreError, match="expected the folder as planned on") as error:
            rows((reader, [partition]))
        assert "failOnDataLoss" not in str(error.value)


def test_batch_skips_an_expired_file_with_fail_on_data_loss_off(path: Path) -> None:
    oldest, *_ = write_log(path)
    kept = rows(batch(path))[5:]
    strict, careless = batch(path), batch(path, failOnDataLoss="false")
    oldest.unlink()
    assert rows(batch(path)) == rows(careless) == kept
    with pytest.raises(DataLossError, match="set failOnDataLoss=false"):
        rows(strict)


TABLES = ("segments", "findings", "indexUnits", "consumeQueue", "audit", "consumers", "lost", "diff")


def write_broker(root: Path, text: bytes) -> None:
    payloads = [mq_message("Orders", text % number, queue_offset=number) for number in range(20)]
    write_consume_queue(root, write_dledger(root, payloads, file_size=1024).rows)
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@billing":{0:5}}}')


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_not_read_from_another_store(path: Path, table: str) -> None:
    write_broker(path, b"first %d")
    options = {"path": str(path), "table": table}
    if table == "diff":
        shutil.copytree(path, path.with_name("replica"))
        options["replicas"] = str(path.with_name("replica"))
    made = dl.DefaultSource(options).reader(whole_schema(ReadOptions(table=table)))
    reader, partitions = pickle.loads(pickle.dumps((made, made.partitions())))

    def read() -> list[Any]:
        return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]

    expected = read()
    path.rename(path.with_name("planned"))
    for write in (lambda: write_broker(path, b"other %d"), lambda: path.mkdir()):
        with pytest.raises(dl.StoreError, match=r"as planned on .* found .*: mount the same store at this path"):
            read()
        write()
        with pytest.raises(dl.StoreError, match=r"as planned on .* found .*: mount the same store at this path"):
            read()
        shutil.rmtree(path)
    path.with_name("planned").rename(path)
    assert read() == expected


def limit_memory(room: int) -> None:
    """Let this process map `room` more bytes than it has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def count_rows(path: Path, engine: str) -> int:
    return len(rows(batch(path, engine=engine)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_large_segment_is_read_within_a_small_address_space(tmp_path: Path) -> None:
    """Spark limits the address space of its Python workers to spark.executor.pyspark.memory."""
    small, path = tmp_path / "small", tmp_path / "log"
    write_log(small)
    write_log(path, data_file_size=1 << 30)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, limit_memory, (192 << 20,)) as process:
        for engine in ("native", "python"):
            assert process.submit(count_rows, small, engine).result() == COUNT
            assert process.submit(count_rows, path, engine).result() == COUNT


def size_of_bodies(path: Path) -> int:
    reader = dl.DefaultSource({"path": str(path)}).reader(whole_schema(ReadOptions()))
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return sum(batch["body"].nbytes for batch in batches)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_bodies_are_read_within_the_address_space_of_a_worker(tmp_path: Path) -> None:
    """A worker of Spark with 512 MiB has 80 MiB left. Batches of the default size would need more."""
    store = opened(tmp_path, data_file_size=1 << 30)
    payloads = [bytes([number]) * (1 << 19) for number in range(100)]
    store.append_as_leader(payloads, 0)
    store.update_committed_index(0, len(payloads) - 1)
    store.shutdown()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, limit_memory, (80 << 20,)) as process:
        assert process.submit(size_of_bodies, tmp_path).result() >= sum(map(len, payloads))
