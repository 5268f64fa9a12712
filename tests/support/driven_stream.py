"""A Spark driver in a process that is killed and started again, and the rows that its query commits as Parquet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from tests.support import spark_archive
from tests.support.spark_cluster import ROOT, SHORT_LIVED, kill_tree

MAX_WAIT = 600.0
"""Seconds in which a query must give a row after a fault."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class DrivenStream:
    """The driver is a Python program, which ends when a query ends.

    Its argument is a JSON object: `settings`, and the folders ``rows`` and ``folder``.
    """

    def __init__(self, program: Path, folder: Path, settings: dict[str, str]) -> None:
        self._program, self._folder = program, folder
        self.rows = folder / "rows"
        self._settings = {**settings, "rows": str(self.rows), "folder": str(folder)}
        self._driver: subprocess.Popen[bytes] | None = None
        self.started = self.ended = 0
        """Drivers, and how many of them ended by themselves."""

    def heal(self) -> None:
        """Start the driver if it does not run, also one that ended by itself."""
        if self._driver is not None and self._driver.poll() is not None:
            self.ended += 1
            self.kill()
        if self._driver is None:
            self._start()

    def _start(self) -> None:
        submit = " ".join(f"--conf {name}={value}" for name, value in _SETTINGS.items())
        environment = {
            **os.environ,
            **SHORT_LIVED,
            **spark_archive.environment(),
            "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
            "PYSPARK_PYTHON": os.path.relpath(sys.executable, ROOT),
        }
        with (self._folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, str(self._program), json.dumps(self._settings)],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started += 1

    def kill(self) -> None:
        """Kill the driver with its JVM and its Python workers."""
        if self._driver is not None:
            kill_tree(self._driver)
            self._driver = None

    def await_rows(self, count: int, heal: Callable[[], None]) -> bool:
        """Return whether the query gives so many rows, and never none for too long. `heal` is called all the time."""
        best, deadline = -1, 0.0
        while (found := self.count_rows()) < count:
            if found > best:
                best, deadline = found, time.monotonic() + MAX_WAIT
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
            heal()
        return True

    def count_rows(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self._committed_files())

    def read_rows(self, columns: list[str]) -> list[dict[str, Any]]:
        return [row for file in self._committed_files() for row in pq.read_table(file).select(columns).to_pylist()]

    def _committed_files(self) -> list[Path]:
        """Return the files in the metadata of a streaming file sink. Other files are of failed micro-batches."""
        files: dict[Path, None] = {}
        for batch in sorted((self.rows / "_spark_metadata").glob("[0-9]*")):
            with suppress(FileNotFoundError):  # Spark deletes old ones, whose files a later one has
                for line in batch.read_text().splitlines()[1:]:
                    files[Path(unquote(urlparse(json.loads(line)["path"]).path))] = None
        return list(files)
