"""Bundled stores and a Spark session that prints errors only, for all examples."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
STORES = HERE.parent / "tests" / "goldens"


@contextmanager
def unpacked(case: str) -> Iterator[str]:
    """Unpack a store that RocketMQ wrote, until the end of the block; tests/goldens/README.md lists them."""
    with tempfile.TemporaryDirectory(prefix="dledger-") as folder:
        with tarfile.open(STORES / f"{case}.tar.gz") as archive:
            # The safe filter, which Python 3.10 and 3.11 have only in their later patch versions.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(folder)
        yield str(Path(folder) / case)


def start_spark(name: str) -> SparkSession:
    """Start a local session."""
    from pyspark.sql import SparkSession

    # Spark's workers must be a Python that has this package: the one that runs the example.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))
    return (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
