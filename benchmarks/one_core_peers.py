"""What an export and a salvage are compared with, on one core in a process of their own. Prints the seconds.

``copy TARGET FILE...`` copies files, syncs them, and reads the copies back from the disk, with a CRC-32 of both.
``parquet TARGET LOG`` writes all rows of a log with pyarrow's ParquetWriter and syncs the file; reading is not timed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow as pa

import pyspark_dledger as dl
from pyspark_dledger.common.durable import drop_cached, sync_file
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.rocketmq.export.row_files import parquet_writer

_BLOCK = 1 << 20
# As many rows as there are in a row group of an export.
_ROWS = 28_000


def copy(target: Path, files: list[Path]) -> float:
    began = time.perf_counter()
    target.mkdir()
    for number, file in enumerate(files):
        copied, written, found = target / str(number), 0, 0
        with file.open("rb") as source, copied.open("xb") as out:
            while block := source.read(_BLOCK):
                written = crc32(block, written)
                out.write(block)
        sync_file(copied)
        with copied.open("rb") as back:
            drop_cached(back.fileno())
            while block := back.read(_BLOCK):
                found = crc32(block, found)
        if found != written:
            raise AssertionError(f"{copied}: expected the CRC-32 {written:08x}, found {found:08x}")
    return time.perf_counter() - began


def parquet(target: Path, log: Path) -> float:
    table = pa.Table.from_batches(dl.open_log(log).scan())
    began = time.perf_counter()
    with target.open("xb") as stream, parquet_writer(stream, table.schema, "zstd") as writer:
        writer.write_table(table, row_group_size=_ROWS)
    sync_file(target)
    return time.perf_counter() - began


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    peer, into, *given = sys.argv[1:]
    paths = [Path(each) for each in given]
    print(copy(Path(into), paths) if peer == "copy" else parquet(Path(into), paths[0]))
