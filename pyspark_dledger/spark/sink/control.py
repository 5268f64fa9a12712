"""The control protocol of a sink process, and the lease by which tasks keep its store open.

One request per connection: a line of JSON with the job's secret and an operation. The response is a line of JSON.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from pyspark_dledger.errors import DLedgerError, StoreError
from pyspark_dledger.raft.peers import Address, format_peers, parse_peers
from pyspark_dledger.raft.tls import Tls, tls_of
from pyspark_dledger.spark.group.group_address import GroupAddress

Operation = Literal["open", "flush", "end"]
MAX_LINE = 64 * 1024
# All but one renewal of a lease may fail.
_RENEWALS_PER_LEASE = 6
# Opening a store that was not closed cleanly runs a recovery.
_CONNECT_SECONDS, _RECOVERY_SECONDS = 10.0, 120.0


class SinkGoneError(DLedgerError):
    """The sink process has ended."""


class SinkAddress(NamedTuple):
    """How to reach a sink process, which listens at ``host`` on the machine of that name.

    ``tls`` names certificate, key and CA, files on the machine that connects; empty without TLS.
    """

    host: str
    port: int
    pid: int
    secret: str
    lease_ms: int
    tls: tuple[str, ...] = ()
    machine: str = ""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"<sink process {self.pid} at {self.host}:{self.port}>"

    @property
    def listens_everywhere(self) -> bool:
        """Whether it listens at all addresses of its machine, so that ``host`` is none to connect to."""
        return is_everywhere(self.host)

    @property
    def timeout(self) -> float:
        """Seconds to wait for a response. The process may first have to wait for the lease of another job."""
        return 2 * self.lease_ms / 1000 + _RECOVERY_SECONDS


class SinkSettings(NamedTuple):
    """The settings of a sink process. Times are milliseconds, sizes bytes.

    It listens at `port` for requests and at the next one for entries, or at free ones if it is 0. The process ends when
    the process `driver` ends. `registry_file` lets a stream find it (`registry`).
    """

    root: str
    self_id: str
    host: str
    secret: str
    driver: int
    lease_ms: int
    flush: str
    data_file_size: int
    index_file_size: int
    is_message: bool
    producer_id_expiry_ms: int
    port: int = 0
    tls: tuple[str, ...] = ()
    registry_file: str = ""


def is_everywhere(host: str) -> bool:
    """Return whether it stands for all addresses of a machine."""
    return host in ("0.0.0.0", "::")  # noqa: S104  # only compared


def send_request(sink: SinkAddress, operation: Operation) -> dict[str, Any]:
    """Return the response. Raises SinkGoneError without a process, and StoreError if the operation fails."""
    request = json.dumps({"secret": sink.secret, "operation": operation}).encode() + b"\n"
    try:
        with _connected(sink) as connection:
            connection.settimeout(sink.timeout)
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_LINE)
    except TimeoutError:
        raise StoreError(f"the sink process {sink.pid} did not respond in time") from None
    except ssl.SSLError as error:
        raise DLedgerError(
            f"no TLS connection with the sink process at {sink.host}:{sink.port} ({error}): tlsCert has to name that "
            "host, and tlsCa its signer, in the files of every machine"
        ) from None
    except OSError as error:
        raise _gone(sink, str(error)) from None
    response = parse_object(line)
    if response.get("pid") != sink.pid:
        raise _gone(sink, f"its port responds {line[:80]!r}")
    if "error" in response:
        raise StoreError(response["error"])
    return response


def _connected(sink: SinkAddress) -> socket.socket:
    """Connect to a process. One that listens everywhere is on this machine."""
    host = "localhost" if sink.listens_everywhere else sink.host
    connection = socket.create_connection((host, sink.port), _CONNECT_SECONDS)
    tls = tls_of_files(sink.tls)
    if tls is None:
        return connection
    try:
        return tls.client_context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def tls_of_files(files: tuple[str, ...]) -> Tls | None:
    """Return TLS with the files of an address or of settings."""
    return tls_of(*files) if files else None


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line, or an empty one."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def open_store(sink: SinkAddress) -> GroupAddress:
    """Open the store if it is closed, and start its lease again. Return the group that serves it."""
    response = send_request(sink, "open")
    # It may listen at an address that only this task can use.
    peers = {node: Address(sink.host, address.port) for node, address in parse_peers(response["peers"]).items()}
    return GroupAddress(response["group"], format_peers(peers), tls_of_files(sink.tls), sink.secret)


@contextmanager
def renewed_lease(sink: SinkAddress) -> Iterator[None]:
    """Renew the lease of a sink process from a thread. The end does not wait for a renewal in progress."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(sink.lease_ms / 1000 / _RENEWALS_PER_LEASE):
            # The task's next append reports the problem.
            with suppress(DLedgerError):
                open_store(sink)

    threading.Thread(target=renew, name="dledger-lease", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _gone(sink: SinkAddress, found: str) -> SinkGoneError:
    return SinkGoneError(
        f"the sink process {sink.pid} at {sink.host}:{sink.port} has ended ({found}): it was killed, or the job was "
        "committed or aborted; acknowledged entries are in the log"
    )
