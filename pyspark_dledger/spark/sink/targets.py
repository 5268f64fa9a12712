"""Where tasks write: a live group, or a path with a sink process. A target is pickled and sent to the tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.sink.control import SinkAddress, SinkGoneError, open_store, renewed_lease, send_request
from pyspark_dledger.spark.sink.driver import LOOPBACK, ON_DRIVER, TaskSession
from pyspark_dledger.spark.sink.write_options import WriteOptions


@dataclass(frozen=True)
class GroupTarget:
    """A live group."""

    address: GroupAddress
    timeout_ms: int
    max_retries: int
    pid: ClassVar[int] = 0

    @property
    def place(self) -> str:
        """Where the log is, for messages to the user."""
        return f"group {self.address.group}"

    def connect(self, session: TaskSession) -> Client:
        """Return a client for one task."""
        return self.address.connect(self.timeout_ms, self.max_retries)

    def flush(self, pids: Iterable[int]) -> None:
        """A group has made durable what it acknowledged."""

    def end(self) -> None:
        """A group does not end with the job."""


@dataclass(frozen=True)
class PathTarget:
    """A path, as the user named it, and the sink process that writes it."""

    path: str
    sink: SinkAddress
    is_sync: bool
    timeout_ms: int
    max_retries: int

    @property
    def pid(self) -> int:
        return self.sink.pid

    @property
    def place(self) -> str:
        """Where the log is, for messages to the user."""
        return f"{self.path} on {self.sink.machine}"

    @contextmanager
    def connect(self, session: TaskSession) -> Iterator[Client]:
        """Return a client for one task; the store stays open meanwhile."""
        sink = self._reached_from(session)
        address = open_store(sink)
        with renewed_lease(sink), address.connect(self.timeout_ms, self.max_retries) as client:
            yield client

    def _reached_from(self, session: TaskSession) -> SinkAddress:
        """Return the address that a task connects to. Raises DLedgerError if only the driver's machine has it."""
        sink, here = self.sink, socket.gethostname()
        if sink.listens_everywhere:
            return sink._replace(host=LOOPBACK if session.is_local else session.driver_host)
        if session.is_local or here == sink.machine or not Address(sink.host, sink.port).is_loopback:
            return sink
        raise DLedgerError(
            f"{self.path} is a folder of the driver's machine {sink.machine}, where the sink process listens at "
            f"{sink.host}; this task runs on {here}: set option listen to an address of the driver, such as "
            f"{session.driver_host or '0.0.0.0'}, or write to a group"  # noqa: S104  # advice
        )

    def flush(self, pids: Iterable[int]) -> None:
        """Make durable what the processes `pids` acknowledged. Raises DLedgerError if some of it may be lost."""
        self._request_durable("flush")
        if others := sorted(set(pids) - {self.pid}):
            self._check_lost(f"sink processes {others} acknowledged entries and have ended")

    def end(self) -> None:
        """Flush and close the store. Raises DLedgerError as `flush`."""
        self._request_durable("end")

    def _request_durable(self, operation: Literal["flush", "end"]) -> None:
        try:
            send_request(self.sink, operation)
        except SinkGoneError as error:
            self._check_lost(str(error))

    def _check_lost(self, problem: str) -> None:
        """With ``flush=sync`` acknowledged entries are on disk; a process that ended loses nothing."""
        if not self.is_sync:
            raise DLedgerError(
                f"{problem}; with flush=async acknowledged entries may not be on disk: read the log back, or write "
                "with flush=sync"
            )


Target = GroupTarget | PathTarget


def new_target(options: WriteOptions, is_message: bool, start: Callable[[WriteOptions, bool], SinkAddress]) -> Target:
    """Return the target of the options; `start` gives a path its sink process. Raises OptionError and StoreError."""
    if options.path is not None:
        sink = start(options, is_message)
        return PathTarget(options.path, sink, options.flush == "sync", options.timeout_ms, options.max_retries)
    target = GroupTarget(options.group_address(), options.timeout_ms, options.max_retries)
    # Checks the certificates; nothing is sent.
    target.connect(ON_DRIVER).close()
    return target
