"""A driver without Spark, which starts at once: it plans, reads and commits micro-batches as Spark does.

The end of a micro-batch is stored before its rows are read, and a new driver reads that micro-batch again. Rows and
the files that commit them have the form of Spark's sink of files.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.cluster_reads import stream_reader


def write(file: Path, text: str) -> None:
    """Write a file that is whole or not there."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_text(text)
    hidden.rename(file)


def main() -> None:
    settings = json.loads(sys.argv[1])
    ends, rows = Path(settings["folder"]) / "ends", Path(settings["rows"])
    committed = rows / "_spark_metadata"
    for folder in (ends, committed):
        folder.mkdir(parents=True, exist_ok=True)
    options = {name: settings[name] for name in ("topic", "failOnDataLoss")}
    reader = stream_reader(settings["nameServer"], startingOffsets="earliest", **options)
    start: dict[str, Any] = reader.initialOffset()
    number = 0
    while True:
        known, commit = ends / str(number), committed / str(number)
        if not known.exists():
            write(known, json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        end = json.loads(known.read_text())
        if not commit.exists():
            file = rows / f"{number}-{time.monotonic_ns()}.parquet"
            batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
            if batches:
                pq.write_table(pa.Table.from_batches(batches), file)
            write(commit, "\n".join(["v1", *([json.dumps({"path": file.as_uri()})] if batches else [])]))
            time.sleep(0.1)
        start, number = end, number + 1


if __name__ == "__main__":
    main()
