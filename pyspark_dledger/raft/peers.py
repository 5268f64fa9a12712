"""The members of a group as text: ``n0-10.0.0.1:20911;n1-10.0.0.2:20911`` (``peers`` of Java's DLedgerConfig).

An id ends at the first ``-``, so a host may contain ``-``. An IPv6 address is in brackets.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import NamedTuple

from pyspark_dledger.errors import OptionError

_PORTS = range(1, 65536)
PEER_ID = re.compile(r"[A-Za-z0-9_.]{1,64}")
# What `localhost` stands for.
_LOOPBACK = ("127.0.0.1", "::1")
_MAX_HOST = 255
_EXAMPLE = "n0-127.0.0.1:20911;n1-127.0.0.1:20912"


class Address(NamedTuple):
    """Host and port of a member."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. The only name that counts is ``localhost``."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_peers(text: str) -> dict[str, Address]:
    """The address of each member by its id, in the given order. Raises OptionError for a malformed list."""
    peers: dict[str, Address] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        if "," in part:
            raise OptionError(f"peers: expected ; between members, as in {_EXAMPLE}, found a comma in {part!r}")
        peer_id, dash, address = part.partition("-")
        if not dash or not PEER_ID.fullmatch(peer_id):
            raise OptionError(f"peers: expected ID-HOST:PORT such as {_EXAMPLE}, found {part!r}")
        if peer_id in peers:
            raise OptionError(f"peers: expected each id once, found {peer_id} twice in {text!r}")
        peers[peer_id] = parse_address(address, f"peers: {peer_id}")
        if peers[peer_id] in list(peers.values())[:-1]:
            raise OptionError(f"peers: expected an address for each member, found {address} twice in {text!r}")
    if not peers:
        raise OptionError(f"peers: expected members such as {_EXAMPLE}, found {text!r}")
    return peers


def parse_address(text: str, what: str) -> Address:
    """``HOST:PORT``, an IPv6 address in brackets. Raises OptionError, whose text begins with `what`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise OptionError(f"{what}: expected an IPv6 address in brackets, such as [::1]:20911, found {text!r}")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port[:6]) not in _PORTS:
        raise OptionError(f"{what}: expected HOST:PORT with a port from 1 to 65535, found {text!r}")
    if not _is_host(host):
        raise OptionError(f"{what}: expected a host name or address before the port, found {text!r}")
    return Address(host, int(port))


def without_brackets(host: str) -> str:
    """A host whose IPv6 address may be in brackets, without these."""
    return host.removeprefix("[").removesuffix("]")


def _is_host(text: str) -> bool:
    """Whether a host can be looked up: without spaces and invisible characters, with labels of DNS."""
    if len(text) > _MAX_HOST or not text.isprintable() or " " in text:
        return False
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True


def format_peers(peers: dict[str, Address]) -> str:
    """The inverse of `parse_peers`."""
    return ";".join(f"{peer_id}-{address}" for peer_id, address in peers.items())


def usual_host(host: str) -> str:
    """A host name in lower case, or a network address in its usual spelling; an IPv4 one also if written as IPv6."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return host.lower().removesuffix(".")


def comparable_peers(text: str) -> str:
    """Peers in an order and a spelling that two lists of the same addresses share; a malformed list as it is.

    Nothing is looked up: a name differs from its address, except ``localhost``.
    """
    try:
        peers = parse_peers(text)
    except OptionError:
        return text
    return format_peers({key: Address(_comparable_host(peers[key].host), peers[key].port) for key in sorted(peers)})


def _comparable_host(host: str) -> str:
    # The zone of an IPv6 address is the name of an interface of one machine.
    host = usual_host(host.partition("%")[0])
    return "localhost" if host in _LOOPBACK else host
