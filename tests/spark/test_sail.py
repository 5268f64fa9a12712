"""Sail (pysail) runs Spark's API without a JVM. It passes Arrow schemas to a data source; writes need Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_dledger.errors import OptionError
from pyspark_dledger.spark.source import DLedgerDataSource

WANTED = pa.schema([("INDEX", pa.int64()), ("storeTimestamp", pa.timestamp("us", "Etc/UTC")), ("topic", pa.string())])


@pytest.fixture
def source(case_folder: Callable[[str], Path]) -> DLedgerDataSource:
    return DLedgerDataSource({"path": str(case_folder("mq-53-upgrade"))})


def test_a_read_returns_the_arrow_schema_that_sail_asks_for(source: DLedgerDataSource) -> None:
    reader = source.reader(WANTED)
    found = pa.Table.from_batches(
        [batch for part in reader.partitions() for batch in reader.read(part)],  # type: ignore[misc]
        schema=WANTED,
    )
    assert (found.num_rows, found["storeTimestamp"].null_count) == (1082, 0)


def test_the_schema_is_one_that_sail_takes(source: DLedgerDataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    names = source.schema().fieldNames()  # type: ignore[union-attr]
    monkeypatch.setitem(sys.modules, "pysail", sys)
    schema = source.schema()
    assert isinstance(schema, pa.Schema)
    assert schema.names == names


def test_a_write_says_that_it_needs_spark(source: DLedgerDataSource) -> None:
    with pytest.raises(OptionError, match="Sail cannot write to dledger, only read: write with Spark"):
        source.writer(pa.schema([("body", pa.binary())]), overwrite=False)
