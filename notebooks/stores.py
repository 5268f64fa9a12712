"""What the notebooks share: the bundled stores, their tables, a Spark session, and how a figure is shown."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from IPython.display import display

from pyspark_dledger.cli.report import figures
from pyspark_dledger.log import Log
from pyspark_dledger.rocketmq.tables.registry import TABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"

pd.set_option("display.max_colwidth", None)
pd.set_option("display.max_columns", None)
pd.set_option("display.width", 160)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="dledger-")
    os.chdir(folder.name)
    return folder


def unpack(case: str, name: str = "") -> str:
    """Unpack a bundled store below a temporary folder, as `name` where one is given; the path to it.

    The temporary folder becomes the current one, so that paths are short. Holes in files stay holes.
    """
    _folder()
    with tempfile.TemporaryDirectory(dir=".") as beside, tarfile.open(GOLDENS / f"{case}.tar.gz") as archive:
        # The safe filter, which Python 3.10 and 3.11 have only in their later patch versions.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(beside)  # noqa: S202 an archive of this repository
        shutil.move(Path(beside) / case, name or case)
    return name or case


def start_spark() -> SparkSession:
    """Start a local session that prints errors only."""
    from pyspark.sql import SparkSession

    # Spark's workers must be a Python that has this package: the one that runs this notebook.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "examples" / "conf"))
    return (
        SparkSession.builder.master("local[2]")
        .appName("notebook")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def frame(log: Log, table: str) -> pd.DataFrame:
    """A table beside the log, without Spark."""
    chosen = TABLES[table]
    batches = [batch for part in chosen.plan(log, log.options) for batch in chosen.read(part)]
    return pa.Table.from_batches(batches, chosen.schema).to_pandas(maps_as_pydicts="strict")


def rows(items: list[dict[str, Any]], index: str | list[str]) -> pd.DataFrame:
    """Rows as a table to look at, with one column in front, or some."""
    return pd.DataFrame(items).set_index(index)


def facts(items: dict[str, Any]) -> pd.DataFrame:
    """Names and what is known of them, as a table to look at."""
    return pd.DataFrame({"": [str(value) for value in items.values()]}, index=list(items))


def show(figure: Figure) -> None:
    """Show a figure. Its text is its title, for those who see no pictures."""
    title = " ".join(figure.get_suptitle().split())
    bundle = {"image/png": figures.png(figure), "text/plain": title}
    display(bundle, raw=True, metadata={"image/png": {"alt": title}})
