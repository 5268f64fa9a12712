"""`scan_once` has the rows of a scan, and drops from the page cache what it read from the disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import pyspark_dledger as dl
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.conditions import ALL_ROWS
from pyspark_dledger.log.io import store_engine
from pyspark_dledger.log.io.store_engine import scan_once
from pyspark_dledger.log.plan import plan_read
from tests.support.generate import mq_message, write_dledger

PART_BYTES = 64 * 1024
FILE_BYTES = 8 * PART_BYTES


@pytest.fixture
def damaged(tmp_path: Path) -> ScanRequest:
    """A scan of eight parts, of which the third is damaged."""
    store = write_dledger(tmp_path, [mq_message("Orders", b"x" * 4000)] * 120, file_size=FILE_BYTES)
    with Path(store.segments[0].path).open("r+b") as file:
        file.seek(store.rows[40]["pos"])
        file.write(b"\x01\x02\x03")
        os.fsync(file.fileno())
    log = dl.open_log(store.path)
    (part,) = plan_read(log, ("pos", "problem", "body"), log.options, ALL_ROWS)
    (request,) = part.ranges
    assert isinstance(request, ScanRequest)
    return request


def rows_of(batches: object) -> pa.Table:
    return pa.Table.from_batches([batch for batch, _ in batches])  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_cold", [True, False])
def test_a_scan_once_drops_what_was_not_in_the_page_cache(
    damaged: ScanRequest, is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = get_engine()
    rows = rows_of(engine.scan(damaged))
    assert rows["problem"].null_count == len(rows) - 1
    # The kernel reads this small file at once, as one large page.
    monkeypatch.setattr(store_engine, "map_whole", lambda _: SimpleNamespace(is_loaded=lambda _: not is_cold))
    monkeypatch.setattr(store_engine, "_PART_BYTES", PART_BYTES)
    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, size, __: dropped.append((start, start + size)))
    assert rows_of(scan_once(engine, damaged)) == rows
    if not is_cold:
        assert dropped == []
        return
    ends = [0, *(end for _, end in dropped)]
    assert [start for start, _ in dropped] == ends[:-1]
    assert len(dropped) >= 4, "all but the last part"
    assert set(ends) <= {*rows["pos"].to_pylist()}, "each part begins with a row"


def test_a_small_file_is_scanned_at_once(damaged: ScanRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_engine, "map_whole", None)
    assert len(rows_of(scan_once(get_engine(), damaged))) == 120
