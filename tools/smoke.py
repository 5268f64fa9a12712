"""Reads a store that a broker wrote with the installed package: ``python tools/smoke.py``. Needs no Spark.

It tests every wheel that is built (pyproject.toml), so it must not import the package of this checkout.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import pyspark_dledger

ROOT = Path(__file__).resolve().parent.parent
ROWS = 1082


def main() -> None:
    if Path(pyspark_dledger.__file__).is_relative_to(ROOT / "pyspark_dledger"):
        sys.exit("expected an installed package, found that of the checkout: run in a fresh environment")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(ROOT / "tests" / "goldens" / "mq-53-upgrade.tar.gz") as archive:
            archive.extractall(folder)
        store = Path(folder, "mq-53-upgrade")
        log = pyspark_dledger.open_log(store, engine="native")
        rows = sum(batch.num_rows for batch in log.scan(columns=["index", "topic"]))
        if rows != ROWS:
            sys.exit(f"expected {ROWS} rows, found {rows}")
        dledger = Path(sysconfig.get_path("scripts"), "dledger")
        for line in (["--version"], ["verify", str(store)]):
            subprocess.run([dledger, *line], check=True)


if __name__ == "__main__":
    main()
