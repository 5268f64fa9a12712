"""Known defects of plans and partitions, shown by the data source alone, without a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import pyspark_dledger as dl
from tests.known_defects import DefectShown, should
from tests.stores import FILE, bodies, data_files, opened

SCHEMA = StructType([StructField("index", LongType()), StructField("body", BinaryType())])
COUNT = 50
# Every data file is a partition of its own.
ONE_FILE = {"maxPartitionBytes": str(FILE)}

Reader = DataSourceReader | DataSourceStreamReader
Planned = tuple[Reader, Sequence[InputPartition]]


def write_log(path: Path, first: int = 0) -> list[Path]:
    """A log of `COUNT` bodies that differ for each `first`; returns its data files."""
    store = opened(path)
    store.append_as_leader(bodies(first, COUNT), 0)
    store.update_committed_index(0, COUNT - 1)
    store.shutdown()
    return data_files(store)


def batch(path: Path, **options: Any) -> Planned:
    """A batch read that was planned and not yet read."""
    reader = dl.DefaultSource({"path": str(path), **ONE_FILE, **options}).reader(SCHEMA)
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
def test_absent_folder_is_an_error_whatever_fail_on_data_loss_says(path: Path) -> None:
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
    should("failOnDataLoss=false" not in str(error.value), str(error.value))


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
