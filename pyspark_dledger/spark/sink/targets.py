"""Where tasks write: a group that is there, or the embedded sink of their job. Pickled, and sent to the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.raft.client import Client, connect
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.spark.sink.driver import is_local
from pyspark_dledger.spark.sink.lease import Lease, SinkGoneError, SinkProcess, ask, open_store
from pyspark_dledger.spark.sink.write_options import WriteOptions


class Target(Protocol):
    """Where a job writes."""

    @property
    def name(self) -> str:
        """For reports."""

    def connected(self, master: str) -> AbstractContextManager[Client]:
        """A client, for as long as a task writes."""

    @property
    def process(self) -> int:
        """The process of an embedded sink, else 0."""

    def made_durable(self, processes: Iterable[int]) -> None:
        """What `processes` acknowledged survives a loss of power, as far as the target promises that."""

    def ended(self) -> None:
        """No task of the job writes any more."""


@dataclass(frozen=True)
class GroupTarget:
    """A group that is there."""

    group: str
    peers: str
    tls: Tls | None
    timeout_ms: int
    max_retries: int

    @classmethod
    def of(cls, options: WriteOptions) -> GroupTarget:
        """Checks what can be checked without a connection. Raises OptionError."""
        assert options.group is not None
        assert options.peers is not None
        tls = None
        if options.tls_cert and options.tls_key and options.tls_ca:
            tls = Tls(Path(options.tls_cert), Path(options.tls_key), Path(options.tls_ca))
            tls.client_context()
        target = cls(options.group, options.peers, tls, options.timeout_ms, options.max_retries)
        target._connect().close()
        return target

    @property
    def name(self) -> str:
        return f"group {self.group}"

    @contextmanager
    def connected(self, master: str) -> Iterator[Client]:
        with self._connect() as client:
            yield client

    def _connect(self) -> Client:
        return connect(self.group, self.peers, tls=self.tls, timeout_ms=self.timeout_ms, max_retries=self.max_retries)

    @property
    def process(self) -> int:
        return 0

    def made_durable(self, processes: Iterable[int]) -> None:
        """It keeps what it acknowledged."""

    def ended(self) -> None:
        """It goes on."""


@dataclass(frozen=True)
class EmbeddedTarget:
    """The embedded sink of a job."""

    path: str
    sink: SinkProcess
    is_sync: bool
    timeout_ms: int
    max_retries: int

    @property
    def name(self) -> str:
        return self.path

    @contextmanager
    def connected(self, master: str) -> Iterator[Client]:
        try:
            opened = open_store(self.sink)
        except SinkGoneError as error:
            raise self._hinted(error, master) from None
        client = connect(
            opened.group,
            opened.peers,
            timeout_ms=self.timeout_ms,
            max_retries=self.max_retries,
            secret=self.sink.secret,
        )
        with Lease(self.sink), client:
            yield client

    def _hinted(self, error: SinkGoneError, master: str) -> DLedgerError:
        if is_local(master) or not Address(self.sink.host, self.sink.port).is_loopback:
            return error
        return DLedgerError(
            f"{error}. It listens at {self.sink.host}, which executors on other machines do not reach: say with the "
            "option listen at which address they reach the driver's machine"
        )

    @property
    def process(self) -> int:
        return self.sink.pid

    def made_durable(self, processes: Iterable[int]) -> None:
        """Raises DLedgerError where it is not known to be."""
        try:
            ask(self.sink, "flush")
        except SinkGoneError as error:
            self._lost(str(error))
        if gone := set(processes) - {self.process}:
            self._lost(f"expected the embedded sink in process {self.process}, found that {gone} acknowledged entries")

    def ended(self) -> None:
        """The store is flushed and closed when this returns. Raises as `made_durable`."""
        try:
            ask(self.sink, "end")
        except SinkGoneError as error:
            self._lost(str(error))

    def _lost(self, found: str) -> None:
        """With ``flush=sync`` nothing is lost with the process: all that was acknowledged is on disk."""
        if not self.is_sync:
            raise DLedgerError(
                f"{found}; with flush=async it may not be on disk yet, and nobody is left to see to that: read the "
                "log back, or write with flush=sync"
            )
