"""Known defects of plans and partitions, shown by the data source alone, without a Spark session."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import pyspark_dledger as dl
from tests.known_defects import DefectShown, should
from tests.support.generate import mq_message, write_dledger
from tests.support.opened_files import opened_files
from tests.support.stores import FILE, bodies, data_files, opened

SCHEMA = StructType([StructField("index", LongType()), StructField("body", BinaryType())])
COUNT = 50
HOUR_MS = 3_600_000
FIRST_HOUR_MS = 1_700_000_000_000
SEGMENTS = 100
MESSAGES = 6  # of one segment of `TIMED_FILE` bytes, ten minutes apart
TIMED_FILE = 1024
MEBIBYTE = 1 << 20
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
    # Without a starting index failOnDataLoss has no effect on a batch, and is refused.
    start = {"startingOffsets": "0"} if "failOnDataLoss" in options else {}
    reader = dl.DefaultSource({"path": str(path), **ONE_FILE, **start, **options}).reader(SCHEMA)
    return reader, reader.partitions()


def stream(path: Path, **options: Any) -> Planned:
    """The first micro-batch of a stream, planned and not yet read."""
    options = {"startingOffsets": "earliest", "committedBound": "end", **ONE_FILE, **options}
    reader = dl.DefaultSource({"path": str(path), **options}).streamReader(SCHEMA)
    start = reader.initialOffset()
    return reader, reader.partitions(start, reader.latestOffset(start))


def rows(planned: Planned) -> list[tuple[int, bytes]]:
    reader, partitions = planned
    found = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return [(row["index"], row["body"]) for row in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a partition does not say which log it was planned on: rows of another log at the same path are read",
)
def test_partition_is_not_read_from_another_log(path: Path, plan: Callable[..., Planned], fails: str) -> None:
    write_log(path)
    planned = plan(path, failOnDataLoss=fails)
    path.rename(path.with_name("planned"))
    write_log(path, first=COUNT)
    try:
        found = rows(planned)
    except dl.StoreError:
        return
    should(not found, f"{len(found)} rows of another log were read")


@pytest.mark.xfail(
    strict=True, raises=DefectShown, reason="files that an executor cannot see are skipped as if they had expired"
)
def test_absent_folder_is_an_error_with_fail_on_data_loss_off(path: Path) -> None:
    write_log(path)
    planned = stream(path, failOnDataLoss="false")
    assert planned[1]
    path.rename(path.with_name("mounted-elsewhere"))
    try:
        found = rows(planned)
    except dl.StoreError:
        return
    should(False, f"the folder is absent, and {len(found)} of {COUNT} rows were read without an error")


@pytest.mark.xfail(
    strict=True, raises=DefectShown, reason="the error of an executor that sees no folder recommends to skip the rows"
)
def test_error_of_an_absent_folder_does_not_recommend_to_skip_it(path: Path) -> None:
    write_log(path)
    planned = stream(path)
    path.rename(path.with_name("mounted-elsewhere"))
    with pytest.raises(dl.StoreError) as error:
        rows(planned)
    should("failOnDataLoss" not in str(error.value), str(error.value))


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a batch with failOnDataLoss=false fails at a file that expired after planning",
)
def test_batch_skips_an_expired_file_with_fail_on_data_loss_off(path: Path) -> None:
    oldest, *_ = write_log(path)
    kept = rows(batch(path))[5:]
    planned = batch(path, failOnDataLoss="false")
    oldest.unlink()
    assert rows(batch(path)) == kept
    try:
        found = rows(planned)
    except dl.StoreError as error:
        raise DefectShown(str(error)) from None
    assert found == kept


# Times


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of `SEGMENTS` segments of one hour each; to be read only."""
    root = tmp_path_factory.mktemp("timed")
    times = range(FIRST_HOUR_MS, FIRST_HOUR_MS + SEGMENTS * HOUR_MS, HOUR_MS // MESSAGES)
    payloads = [mq_message(body=b"%d" % time, store_timestamp=time) for time in times]
    assert len(write_dledger(root, payloads, file_size=TIMED_FILE).segments) == SEGMENTS
    return root


LAST_HOUR = {"startingTimestamp": FIRST_HOUR_MS + (SEGMENTS - 1) * HOUR_MS}
TIMES = {
    "last hour": (LAST_HOUR, MESSAGES),
    "first hour": ({"endingTimestamp": FIRST_HOUR_MS + HOUR_MS}, MESSAGES),
    "an hour between": (
        {"startingTimestamp": FIRST_HOUR_MS + 50 * HOUR_MS, "endingTimestamp": FIRST_HOUR_MS + 51 * HOUR_MS},
        MESSAGES,
    ),
    "future": ({"startingTimestamp": "2100-01-01"}, 0),
    "past": ({"endingTimestamp": "1980-01-01"}, 0),
}

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify, or a limit of the address space")


@only_linux
@pytest.mark.parametrize("case", TIMES)
@pytest.mark.xfail(strict=True, raises=DefectShown, reason="a time range leaves no segment out: all of them are read")
def test_time_range_reads_few_segments(timed: Path, case: str) -> None:
    options, count = TIMES[case]
    planned = batch(timed, **{**options, "maxPartitionBytes": TIMED_FILE})
    with opened_files(timed / "dledger-n0" / "data") as names:
        found = rows(planned)
    assert len(found) == count
    should(len(set(names)) <= 3, f"{len(set(names))} segments are read for {count} rows")


@only_linux
@pytest.mark.xfail(strict=True, raises=DefectShown, reason="a stream by time searches its start in all segments")
def test_stream_finds_its_starting_time_in_few_segments(timed: Path) -> None:
    """Opening the log may look at each segment once; a binary search of 100 segments looks at 7 of them."""
    opened_by = {}
    for case, options in {"earliest": {}, "last hour": LAST_HOUR}.items():
        with opened_files(timed / "dledger-n0" / "data") as opened_by[case]:
            planned = stream(timed, **{**options, "maxPartitionBytes": TIMED_FILE})
    assert len(rows(planned)) == MESSAGES
    more = len(opened_by["last hour"]) - len(opened_by["earliest"])
    should(more <= 25, f"{more} segments are opened to find the first row")


# Memory


def limit_memory(room: int) -> None:
    """Let this process map `room` more bytes than it has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def count_rows(path: Path) -> int:
    return len(rows(batch(path)))


@pytest.mark.slow
@only_linux
@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a segment is mapped as a whole, which spark.executor.pyspark.memory forbids",
)
def test_large_segment_is_read_within_a_small_address_space(path: Path) -> None:
    """Spark limits the address space of its Python workers to spark.executor.pyspark.memory."""
    small = path.with_name("small")
    write_log(small)
    write_log(path, data_file_size=1024 * MEBIBYTE)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, limit_memory, (512 * MEBIBYTE,)) as process:
        assert process.submit(count_rows, small).result() == COUNT
        try:
            found = process.submit(count_rows, path).result()
        except dl.StoreError as error:
            raise DefectShown(str(error)) from None
    assert found == COUNT
