"""Sink processes without Spark, and the logs that they wrote."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import StoreError
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import Client
from pyspark_dledger.spark.sink.control import (
    SinkAddress,
    SinkGoneError,
    SinkSettings,
    open_store,
    renewed_lease,
    send_request,
)
from pyspark_dledger.spark.sink.launch import start
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.groups import SMALL, eventually

SECRET = "s3cret" * 8


class Sinks:
    """The sink processes of one test, which are killed at its end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pids: list[int] = []

    def start(self, **changed: Any) -> SinkAddress:
        """Start a process with small files."""
        sink = start(settings_of(self.root, **changed))
        self._pids.append(sink.pid)
        return sink

    def close(self) -> None:
        for pid in self._pids:
            kill(pid)


def settings_of(root: Path, **changed: Any) -> SinkSettings:
    """Return settings with small files, of a process that ends with this one."""
    settings = SinkSettings(
        root=str(root),
        self_id="n0",
        host="127.0.0.1",
        secret=SECRET,
        driver=os.getpid(),
        lease_ms=30_000,
        flush="sync",
        data_file_size=SMALL["data_file_size"],
        index_file_size=SMALL["index_file_size"],
        is_message=False,
        producer_id_expiry_ms=1000,
    )
    return settings._replace(**changed)


@pytest.fixture
def sinks(tmp_path: Path) -> Iterator[Sinks]:
    found = Sinks(tmp_path / "log")
    yield found
    found.close()


def kill(pid: int) -> None:
    """Send SIGKILL, and wait for the end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@contextmanager
def client_of(sink: SinkAddress) -> Iterator[Client]:
    """A client that renews the lease, as that of a task."""
    opened = open_store(sink)
    with renewed_lease(sink), opened.connect(3000) as client:
        yield client


def end(sink: SinkAddress) -> None:
    """End a process as a commit does."""
    send_request(sink, "end")
    assert eventually(lambda: not is_running(sink.pid))


def is_gone(sink: SinkAddress) -> bool:
    try:
        send_request(sink, "flush")
    except SinkGoneError:
        return True
    return False


def bodies(root: Path, *, all_committed: bool = True) -> list[bytes]:
    """Return all bodies of a log without a problem, in order."""
    rows = [row for batch in open_log(root).scan(["kind", "committed", "problem", "body"]) for row in batch.to_pylist()]
    assert {(row["kind"], row["problem"]) for row in rows} <= {("entry", None)}
    assert not all_committed or all(row["committed"] for row in rows)
    return [row["body"] for row in rows]


def is_free(root: Path) -> bool:
    """Return whether no process has the store open."""
    store = MmapFileStore(StoreConfig(root, **SMALL))
    try:
        store.startup()
    except StoreError:
        return False
    store.shutdown()
    return True
