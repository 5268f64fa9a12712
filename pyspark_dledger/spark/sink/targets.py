"""Where tasks write: a live group, or a path with a sink process. A target is pickled and sent to the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.sink.control import SinkAddress, SinkGoneError, open_store, renewed_lease, send_request
from pyspark_dledger.spark.sink.driver import is_local
from pyspark_dledger.spark.sink.write_options import WriteOptions


@dataclass(frozen=True)
class GroupTarget:
    """A live group."""

    address: GroupAddress
    timeout_ms: int
    max_retries: int
    pid: ClassVar[int] = 0

    @property
    def name(self) -> str:
        """For messages to the user."""
        return f"group {self.address.group}"

    def connect(self, master: str) -> Client:
        """Return a client for one task."""
        return self.address.connect(self.timeout_ms, self.max_retries)

    def flush(self, pids: Iterable[int]) -> None:
        """A group has made durable what it acknowledged."""

    def end(self) -> None:
        """A group does not end with the job."""


@dataclass(frozen=True)
class PathTarget:
    """A path, as the user named it, and the sink process that writes it."""

    name: str
    sink: SinkAddress
    is_sync: bool
    timeout_ms: int
    max_retries: int

    @property
    def pid(self) -> int:
        return self.sink.pid

    @contextmanager
    def connect(self, master: str) -> Iterator[Client]:
        """Return a client for one task of a session at `master`; the store stays open meanwhile."""
        try:
            address = open_store(self.sink)
        except SinkGoneError as error:
            if is_local(master) or not Address(self.sink.host, self.sink.port).is_loopback:
                raise
            raise DLedgerError(
                f"{error}. It listens at {self.sink.host}, which executors on other machines cannot reach: set the "
                "option listen to an address of the driver's machine"
            ) from None
        with renewed_lease(self.sink), address.connect(self.timeout_ms, self.max_retries) as client:
            yield client

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
    target.connect("").close()
    return target
