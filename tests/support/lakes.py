"""Tables that a log is appended to, and a run that kills the appending process at random moments.

``make lakes`` runs it. Exports are killed while the log grows, sometimes two at once. In the end the rows of the table
are those of the log.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark_dledger as dl
from pyspark_dledger.errors import StoreInUseError
from pyspark_dledger.rocketmq.export.forms import LAKES, ExportReport
from tests.support.generate import Payload, Row, mq_message, rows_of, write_dledger
from tests.support.seeds import Kit, Result

DAY_MS = 86_400_000
LONGEST_SECONDS = 0.6


@dataclass(frozen=True)
class Lake:
    """A table of that form in a folder."""

    form: str
    folder: Path

    @property
    def name(self) -> str:
        return "rocketmq.messages" if self.form == "iceberg" else str(self.folder / "delta")

    @property
    def catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}"}

    @property
    def options(self) -> dict[str, Any]:
        return {"catalogProperties": self.catalog} if self.form == "iceberg" else {}

    def export(self, store: Path, **options: Any) -> ExportReport:
        return dl.export(store, self.name, self.form, **self.options, **options)

    def open_catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog)

    def table(self) -> Any:
        """The table as its library loads it."""
        if self.form == "iceberg":
            return self.open_catalog().load_table(self.name)
        from deltalake import DeltaTable

        return DeltaTable(self.name)

    def rows(self, *columns: str) -> list[Row]:
        """The rows in the order of the log."""
        table = self.table().scan().to_arrow() if self.form == "iceberg" else self.table().to_pyarrow_table()
        kept = table.drop_columns("day") if "day" in table.schema.names and not columns else table
        return rows_of(kept.select(list(columns) or kept.schema.names).sort_by("pos").to_batches())


def log_rows(store: Path, *columns: str) -> list[Row]:
    """The committed rows of a log, in its order."""
    found = rows_of(dl.open_log(store).scan(list(columns) or None, isolationLevel="read_committed"))
    return sorted(found, key=lambda row: row["pos"])


def message(number: int) -> Payload:
    """A message of one of three topics and two days."""
    time_ms = 1_700_000_000_000 + number % 2 * DAY_MS
    return mq_message(f"Topic{number % 3}", b"%d," % number * 40, queue_offset=number, store_timestamp=time_ms)


def _in_child(action: Callable[[], object]) -> int:
    """Start `action` in a process of its own. The libraries of tables start threads there, and not in this one."""
    if child := os.fork():
        return child
    code = 0
    try:
        action()
    except StoreInUseError:
        pass
    except BaseException:  # noqa: BLE001 - the parent fails with its traceback
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def _ended(child: int, seconds: float) -> bool:
    """Whether a child ended by itself within that time; else it is killed. Fails if the child failed."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"an export failed with status {status}"
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def kill_exports(form: str, folder: Path, kills: int, draw: random.Random) -> int:
    """Kill exports while the log grows, then compare the rows. Returns the number of messages."""
    folder.mkdir()
    lake, store, count, killed = Lake(form, folder), folder / "store", 60, 0
    # pyiceberg fails if two processes make the tables of an SQL catalog at once.
    assert form != "iceberg" or _ended(_in_child(lake.open_catalog), 60)
    while killed < kills:
        count += draw.randrange(60)
        write_dledger(store, [message(number) for number in range(count)])
        is_done = False
        while not is_done and killed < kills:
            children = [_in_child(lambda: lake.export(store, commitBytes=2048)) for _ in range(draw.choice((1, 1, 2)))]
            ended = [_ended(child, draw.random() * LONGEST_SECONDS) for child in children]
            killed += ended.count(False)
            is_done = any(ended)

    def check() -> None:
        lake.export(store)
        assert lake.rows() == log_rows(store)
        assert len(lake.rows("pos")) == count

    assert _ended(_in_child(check), 60)
    return count


def check_seed(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    """Kill exports to tables of each form."""
    # Loaded once, before the children: a kill should hit an export, not its imports.
    for module in (
        "deltalake",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "pyspark_dledger.rocketmq.export.export_job",
    ):
        import_module(module)
    forms = [options.form] if options.form else LAKES
    counts = {form: kill_exports(form, folder / form, options.kills, random.Random(seed)) for form in forms}
    return Result(counts=Counter({f"messages, each once in a table of {form}": counts[form] for form in forms}))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--form", choices=LAKES)


KIT = Kit("tests.support.lakes", check_seed, __doc__, 1, add_options, processes=1, seed=random.randrange(1 << 30))

if __name__ == "__main__":
    sys.exit(KIT.main())
