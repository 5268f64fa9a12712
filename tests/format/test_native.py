"""The native engine: mapped memory, its CRC-32, its constants, Arrow batches without a copy."""

from __future__ import annotations

import gc
import os
import random
import resource
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import psutil
import pytest

import pyspark_dledger._native as _native
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format import layout, native_engine
from pyspark_dledger.format.columns import ALL_COLUMNS, SCANNED_COLUMNS, arrow_schema
from pyspark_dledger.format.spec import ScanRequest, Segment
from tests.support.generate import Store, mq_message, raw, rows_of, write_dledger

MEBIBYTE = 1024 * 1024
NAMES = tuple(column.name for column in ALL_COLUMNS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One file of 8 MiB with 8,000 entries of 1 KiB."""
    return write_dledger(tmp_path, [raw(b"x" * 976)] * 8000, file_size=8 * MEBIBYTE)


def request(store: Store, columns: tuple[str, ...] = ("pos", "size", "kind", "problem"), **options: int) -> ScanRequest:
    segment = store.segments[0]
    return ScanRequest(segment, segment.base, store.end, columns, **options)


def test_native_constants_are_those_of_the_layouts() -> None:
    assert _native.layout() == {
        "entryHeaderSize": layout.ENTRY_HEADER_SIZE,
        "maxEntrySize": layout.MAX_ENTRY_SIZE,
        "minBlankSize": layout.MIN_BLANK_SIZE,
        "minMessageSize": layout.MIN_MESSAGE_SIZE,
        "messageMagicV1": layout.MESSAGE_MAGIC_V1,
        "messageMagicV2": layout.MESSAGE_MAGIC_V2,
        "messageMagicBlank": layout.MESSAGE_MAGIC_BLANK,
        "propertyCrcSize": layout.PROPERTY_CRC_SIZE,
    }
    assert _native.column_names() == list(SCANNED_COLUMNS)


@pytest.mark.parametrize("crc32", [_native.crc32, _native.crc32_portable])
def test_crc32_is_that_of_zlib_for_every_length_and_alignment(crc32: object) -> None:
    assert callable(crc32)
    data = random.Random(7).randbytes(3000)
    for length in [*range(400), 1023, 1024, 1025, 2900]:
        for start in (0, 1, 7, 33):
            part = memoryview(data)[start : start + length]
            assert crc32(part) == zlib.crc32(part)
            assert crc32(part, zlib.crc32(data[:start])) == zlib.crc32(data[: start + length])


def test_batches_have_the_schema_of_the_columns(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message(), raw(b"raw"), raw(b"", "noop")])
    for batch, _ in native_engine.scan(request(store, NAMES)):
        assert batch.schema.equals(arrow_schema(NAMES), check_metadata=True)
        batch.validate(full=True)


def test_an_unknown_column_is_rejected(store: Store) -> None:
    with pytest.raises(ValueError, match="unknown column nothing"):
        next(native_engine.scan(request(store, ("nothing",))))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 1, 4096, 4 * MEBIBYTE, 4 * MEBIBYTE + 5000])
def test_a_file_truncated_during_a_scan_raises_no_signal(store: Store, keep: int) -> None:
    segment = store.segments[0]
    batches = native_engine.scan(request(store, max_batch_rows=1000))
    first, _ = next(batches)
    os.truncate(segment.path, keep)
    rows = rows_of([first, *(batch for batch, _ in batches)])
    kept = max(keep // 1024, 1000)
    assert [row["pos"] for row in rows[:-1]] == [1024 * number for number in range(kept)]
    hole = rows[-1]
    assert hole == {
        "pos": 1024 * kept,
        "size": store.end - 1024 * kept,
        "kind": "corrupt",
        "problem": f"expected {segment.size} bytes in {segment.name}, found {keep}",
    }


def test_a_file_truncated_while_another_thread_scans_it_raises_no_signal(store: Store) -> None:
    segment = store.segments[0]
    started, faults = threading.Event(), []

    def scan() -> None:
        for _ in range(200):
            rows = sum(batch.num_rows for batch, _ in native_engine.scan(request(store, ("index", "body"))))
            started.set()
            if rows < 8000:
                faults.append(rows)

    thread = threading.Thread(target=scan)
    thread.start()
    started.wait()
    os.truncate(segment.path, MEBIBYTE)
    thread.join()
    assert faults and faults[-1] == 1025


def test_other_bus_errors_still_end_the_process(store: Store) -> None:
    code = (
        "import mmap, os, sys, signal, resource\n"
        "from pyspark_dledger.format import native_engine\n"
        "from pyspark_dledger.format.spec import Segment\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "path = sys.argv[1]\n"
        "native_engine.log_end(Segment.local(path, '0', 0, os.path.getsize(path), 'dledger'), 0, False)\n"
        "file = open(path, 'r+b')\n"
        "mapped = mmap.mmap(file.fileno(), 0)\n"
        "os.truncate(path, 0)\n"
        "mapped[4096]\n"
        "print('survived')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, store.segments[0].path], capture_output=True, text=True, check=False
    )
    assert "survived" not in done.stdout
    assert done.returncode == -10 or done.returncode == -7  # SIGBUS on macOS and on Linux


def test_a_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a readable file"):
        native_engine.log_end(Segment.local(str(tmp_path), "x", 0, 100, "dledger"), 0, False)


def test_batches_outlive_the_scan(store: Store) -> None:
    batches = [batch for batch, _ in native_engine.scan(request(store, ("index", "body"), max_batch_rows=500))]
    gc.collect()
    assert [index for batch in batches for index in batch.column("index").to_pylist()] == list(range(8000))
    assert all(set(batch.column("body").to_pylist()) == {b"x" * 976} for batch in batches)


def test_a_batch_that_is_not_imported_is_freed(store: Store) -> None:
    scan = _native.Scan(request(store, NAMES, max_batch_rows=1000))
    rows = 0
    while (batch := scan.next()) is not None:
        if rows % 2000 == 0:
            capsules = batch.__arrow_c_array__()
            assert len(capsules) == 2
        rows += 1000
    assert rows == 8000


def test_scans_do_not_leak_memory(store: Store) -> None:
    process = psutil.Process()

    def scan(times: int) -> int:
        for _ in range(times):
            for batch, _ in native_engine.scan(request(store, NAMES, max_batch_rows=1000)):
                assert batch.num_rows > 0
        gc.collect()
        return process.memory_info().rss

    before = scan(5)
    assert scan(40) - before < 16 * MEBIBYTE
    assert process.num_fds() < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert [file for file in process.open_files() if file.path == store.segments[0].path] == []
