"""Export the messages of a DLedger store: as a CommitLog for a broker without DLedger, and as Parquet.

``python examples/export_store.py [PATH TARGET]``: without arguments it exports a store that RocketMQ 5.3.3 wrote, to a
temporary folder. Needs no Spark; with ``spark=SESSION`` the parts run as Spark tasks. ``dledger export`` does the same
on the command line.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow.dataset
from bundled import unpacked

import pyspark_dledger as dl


def export_commit_log(path: str, target: Path) -> None:
    """Write a storePathRootDir without DLedger, and read it back."""
    report = dl.export(path, str(target), to="commitlog")
    print(f"CommitLog: {report.rows} messages in {report.files} files, {report.skipped} left out")
    for name, value in report.broker_conf.items():
        print(f"  broker.conf: {name}={value}")
    rows = sum(batch.num_rows for batch in dl.open_log(target).scan(columns=["pos"]))
    print(f"  read back: {rows} messages")


def export_parquet(path: str, target: Path) -> None:
    """Write Parquet by topic and day, and read one topic back."""
    report = dl.export(path, str(target), to="parquet")
    print(f"Parquet: {report.rows} rows in {report.files} files, {report.skipped} left out")
    for why in report.first_skipped[:1]:
        print(f"  {why}")
    topic = pyarrow.dataset.field("topic") == "OrderTopic"
    found = pyarrow.dataset.dataset(target, format="parquet", partitioning="hive").count_rows(filter=topic)
    print(f"  read back: {found} messages of OrderTopic")


def show(path: str, target: Path) -> None:
    """Export the store at `path` in both formats, to folders in `target`."""
    target.mkdir(parents=True, exist_ok=True)
    export_commit_log(path, target / "plain")
    export_parquet(path, target / "parquet")


def main(arguments: list[str]) -> None:
    """Export the given store, or the bundled one."""
    if len(arguments) not in (0, 2):
        sys.exit("usage: python examples/export_store.py [PATH TARGET]")
    if arguments:
        show(arguments[0], Path(arguments[1]))
        return
    with unpacked("mq-53-upgrade") as path, tempfile.TemporaryDirectory(prefix="dledger-") as target:
        show(path, Path(target))


if __name__ == "__main__":
    main(sys.argv[1:])
