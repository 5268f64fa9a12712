"""A connection to a name server or a broker: requests can be sent before the responses of earlier ones are read."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.codes import BrokerCode, code_name
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire.framing import KIND_JSON, MAX_FRAME_SIZE, FrameReader, WireFrame, frame
from pyspark_dledger.raft.wire.json_values import integer
from pyspark_dledger.raft.wire.remoting import Command, decode_command, encode_command
from pyspark_dledger.raft.wire.wire_errors import WireError

TIMEOUT = 5.0
"""Seconds for connecting, and for each next response."""

# Bytes a second of a response that is not lost yet after `TIMEOUT`.
_MIN_RATE = 64 * 1024
_MAX_KEPT = 64 * 1024 * 1024
_SOCKET_BUFFER = 4 * 1024 * 1024
# Requests that are sent with one call: both sides then wake up less often.
_SENT_TOGETHER = 8
# A request with so many bytes is sent at once: to receive it takes the broker longer.
_LARGE_BODY = 64 * 1024


class LostError(Exception):
    """No connection, no response in time, or one that cannot be read. The text names the server."""


class Response(NamedTuple):
    """A response. `body` is a view of the receive buffer, which is never written again."""

    code: int
    fields: Mapping[str, str]
    remark: str | None
    body: memoryview

    @property
    def problem(self) -> str:
        """The code and what the server says."""
        return f"{code_name(self.code)}: {self.remark or 'no reason given'}"

    def number(self, name: str) -> int:
        """The number in a field. Raises WireError."""
        return integer(self.fields.get(name), name, 64)


class Connection:
    """Used by one thread. Raises LostError if it cannot be established.

    With more than `max_kept` bytes of responses that nobody has waited for yet, it is lost.
    """

    max_kept: int = _MAX_KEPT

    def __init__(self, server: Address, cluster: ClusterAddress, timeout: float = TIMEOUT) -> None:
        self.server = server
        self.is_lost = False
        self._timeout = timeout
        self._credentials = cluster.credentials
        self._reader = FrameReader()
        self._next_opaque = 0
        self._unsent: list[bytes] = []
        self._outstanding: set[int] = set()
        self._responses: dict[int, Response] = {}
        # Bytes of a response that is not complete, and of the responses that are kept.
        self._received = self._kept = 0
        self._socket = _connected(server, cluster, timeout)

    def send(self, code: int, fields: Mapping[str, str], body: Buffer = b"") -> int:
        """Send a request, with the next ones or at the next `wait`, and return its number. Raises LostError."""
        self._next_opaque = opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        if self._credentials is not None:
            fields = self._credentials.signed(fields, body)
        header = encode_command(Command(code, opaque, fields=fields))
        self._unsent.append(b"".join(frame(KIND_JSON, header, [body])))
        self._outstanding.add(opaque)
        if len(self._unsent) >= _SENT_TOGETHER or len(body) >= _LARGE_BODY:
            self._flush()
        return opaque

    def wait(self, opaque: int) -> Response:
        """The response to a request. Those to others are kept. Raises LostError."""
        deadline = time.monotonic() + self._timeout
        while opaque not in self._responses:
            self._flush()
            if self._kept > self.max_kept:
                raise self._lost(f"{self._kept} bytes of other responses before the one to the oldest request")
            count = self._receive()
            if count is None:
                deadline = time.monotonic() + self._timeout
            elif time.monotonic() > deadline + min(count, MAX_FRAME_SIZE) / _MIN_RATE:
                raise self._lost(f"no response in {self._timeout:g} s, and less than {_MIN_RATE} bytes a second")
        response = self._responses.pop(opaque)
        self._kept -= len(response.body)
        return response

    def call(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Response:
        """Send a request and wait for its response. Raises LostError."""
        return self.wait(self.send(code, fields, body))

    def close(self) -> None:
        self.is_lost = True
        self._socket.close()

    def _flush(self) -> None:
        if self._unsent and not self.is_lost:
            try:
                self._socket.sendall(b"".join(self._unsent))
            except OSError as error:
                raise self._lost(str(error)) from None
            self._unsent.clear()

    def _receive(self) -> int | None:
        """Receive bytes. Returns how many of the next response are there, None if a response is complete."""
        if self.is_lost:
            raise LostError(f"{self.server}: the connection was lost")
        buffer = self._reader.get_buffer()
        try:
            count = self._socket.recv_into(buffer)
        except TimeoutError:
            raise self._lost(f"no response in {self._timeout:g} s") from None
        except OSError as error:
            raise self._lost(str(error)) from None
        if not count:
            raise self._lost("the server closed the connection (does it expect TLS, or none?)")
        before = len(self._outstanding)
        try:
            for found in self._reader.buffer_updated(count):
                self._add(found)
        except WireError as error:
            raise self._lost(str(error)) from None
        self._received = 0 if len(self._outstanding) < before else self._received + count
        return self._received or None

    def _add(self, found: WireFrame) -> None:
        """Keep a response. Requests of the server and responses that nobody waits for are ignored."""
        if found.kind != KIND_JSON:
            raise WireError(f"expected a JSON header (kind {KIND_JSON}), found kind {found.kind}")
        command = decode_command(found.header)
        if command.is_response and command.opaque in self._outstanding:
            self._outstanding.remove(command.opaque)
            self._kept += len(found.body)
            self._responses[command.opaque] = Response(command.code, command.fields, command.remark, found.body)

    def _lost(self, reason: str) -> LostError:
        self.close()
        return LostError(f"{self.server}: {reason}")


def _connected(server: Address, cluster: ClusterAddress, timeout: float) -> socket.socket:
    try:
        opened = socket.create_connection(server, timeout)
    except (OSError, UnicodeError) as error:
        raise LostError(f"{server}: {error}") from None
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if cluster.tls is None:
        return opened
    try:
        return cluster.tls.client_context().wrap_socket(opened, server_hostname=server.host)
    except (OSError, ssl.SSLError) as error:
        opened.close()
        raise LostError(f"{server}: {error} (does that server accept TLS, and this certificate?)") from None


def check_success(response: Response, asked: str) -> None:
    """Raise ClusterError unless the response says success; `asked` says what for, and where."""
    if response.code != BrokerCode.SUCCESS:
        advice = "check the request's permissions" if response.code == BrokerCode.NO_PERMISSION else "see its log"
        raise ClusterError(f"{asked}: expected success, found {response.problem}: {advice}")
