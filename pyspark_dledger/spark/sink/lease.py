"""What tasks and commits ask the process of an embedded sink, and the lease by which running tasks keep its store open.

One request a connection: a line of JSON with the job's secret and an operation, answered by a line of JSON.
"""

from __future__ import annotations

import json
import socket
import threading
from types import TracebackType
from typing import Any, Literal, NamedTuple

from pyspark_dledger.errors import DLedgerError, StoreError

Operation = Literal["open", "flush", "end"]
MOST_LINE = 64 * 1024
# Of one lease so many renewals, all but one of which may be lost.
_RENEWALS = 6
# Seconds, beside the lease itself: a store that was not closed cleanly is recovered when it is opened.
_CONNECT_SECONDS, _WORK_SECONDS = 10.0, 120.0


class SinkGoneError(DLedgerError):
    """The process of an embedded sink that does not answer: it has ended."""


class SinkProcess(NamedTuple):
    """A process of an embedded sink: where it listens, the secret that it wants, and its lease in milliseconds."""

    host: str
    port: int
    pid: int
    secret: str
    lease_ms: int

    def __repr__(self) -> str:
        """Without the secret."""
        return f"<Sink of process {self.pid} at {self.host}:{self.port}>"

    @property
    def longest_wait(self) -> float:
        """Seconds after which an answer does not come any more: another job's lease may have to run out first."""
        return 2 * self.lease_ms / 1000 + _WORK_SECONDS


class OpenedStore(NamedTuple):
    """A store that is open: the group that serves it, as a client names it."""

    group: str
    peers: str


def ask(sink: SinkProcess, operation: Operation) -> dict[str, Any]:
    """What the process answers. Raises SinkGoneError where there is none, and StoreError for what it cannot do."""
    request = json.dumps({"secret": sink.secret, "operation": operation}).encode() + b"\n"
    try:
        with socket.create_connection((sink.host, sink.port), _CONNECT_SECONDS) as connection:
            connection.settimeout(sink.longest_wait)
            connection.sendall(request)
            line = _read_line(connection)
    except TimeoutError:
        raise StoreError(f"expected an answer of the embedded sink (process {sink.pid}), found none in time") from None
    except OSError as error:
        raise _gone(sink, str(error)) from None
    answer = _parsed(line)
    if answer is None:
        raise _gone(sink, f"{line[:80]!r} for an answer")
    if answer.get("pid") != sink.pid:
        raise _gone(sink, "another process there")
    if "error" in answer:
        raise StoreError(answer["error"])
    return answer


def open_store(sink: SinkProcess) -> OpenedStore:
    """Have the store open, and renew the lease: it stays open as long again."""
    answer = ask(sink, "open")
    return OpenedStore(answer["group"], answer["peers"])


class Lease:
    """Renews the lease of a sink from a thread of its own, from ``with`` to its end, whatever the task waits for."""

    def __init__(self, sink: SinkProcess) -> None:
        self._sink = sink
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="dledger-lease", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        # One that is being renewed does not hold up the task's end.

    def _renew(self) -> None:
        while not self._ended.wait(self._sink.lease_ms / 1000 / _RENEWALS):
            try:
                ask(self._sink, "open")
            except DLedgerError:
                # The task's next append says what is wrong.
                continue


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < MOST_LINE:
        part = connection.recv(MOST_LINE)
        if not part:
            break
        line += part
    return line


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _gone(sink: SinkProcess, found: str) -> SinkGoneError:
    return SinkGoneError(
        f"expected the process {sink.pid} of the embedded sink at {sink.host}:{sink.port}, found {found}: it ended "
        "(killed, or the job was committed or aborted); what it acknowledged is in the log"
    )
