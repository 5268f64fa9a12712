"""Which connections a node accepts, and who may act as a member: requests of members are rejected from all others.

A connection proves it by the members' secret if the node has one, else by its certificate under TLS, else by its
network address, which must be that of the member in ``peers``.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.hello import MemberHello, read_hello
from pyspark_dledger.raft.messages import (
    Request,
    Response,
    TransferRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.raft.peers import Address, usual_host
from pyspark_dledger.raft.secret import Secrets
from pyspark_dledger.raft.wire import ReceivedRequest, WireError

MEMBER_UNIT = "dledger-member"
"""The organizational unit (OU) of certificates that may act as any member."""

_LOOPBACK = "127.0.0.1"
_LACKS = "expected the members' secret in the first request, found none"
# The kinds of subjectAltName that name a host, as `ssl` calls them; a DirName is no text, a URI or email no host.
_HOST_NAMES = ("DNS", "IP Address")


class Rejections:
    """Counts what a node has rejected since its start, for metrics."""

    def __init__(self) -> None:
        # Rejected or closed ones, by the kind of reason; ``hello``: the sender is no member of this group.
        self.connections: Counter[str] = Counter()
        # Requests whose response is an error, by its code: a `ResponseCode`, or that of a `Rejection`.
        self.requests: Counter[int] = Counter()
        # Requests of members that came from others, by the name of the request.
        self.member_requests: Counter[str] = Counter()


class Credentials(NamedTuple):
    """What a connection has shown: its network address, its certificate (``getpeercert``), the members' secret."""

    host: str | None
    certificate: Mapping[str, Any] | None = None
    has_secret: bool = False


def acting_member(request: Request) -> str | None:
    """The member that a request claims to be of; None for requests that clients may send."""
    if request.acts_as is None or (isinstance(request, TransferRequest) and request.transfer_id == request.remote_id):
        return None
    member_id: str | None = getattr(request, request.acts_as)
    return member_id or ""


def stranger_response(request: Request) -> Response:
    """The response to a member's request that came from another place. It has no term: nobody should adopt one."""
    response = request.response(
        group=request.group, local_id=request.local_id, remote_id=request.remote_id, code=ResponseCode.UNKNOWN_MEMBER
    )
    if isinstance(response, VoteResponse):
        response.vote_result = VoteResult.REJECT_UNKNOWN_LEADER
    return response


class Roles:
    """Judges connections. ``hosts_of`` gives the known network addresses of a member whose host is a name.

    ``takes_strangers``: the members may be old ones, so another one is accepted, too, that has the members' secret or
    mark, or the network address of any member.
    """

    def __init__(
        self,
        members: Mapping[str, Address],
        self_id: str,
        *,
        uses_secret: bool = False,
        uses_tls: bool = False,
        hosts_of: Callable[[str], Collection[str]] = lambda _: (),
        takes_strangers: bool = False,
    ) -> None:
        self._others = {key: address for key, address in members.items() if key != self_id}
        self._self_id = self_id
        self._members = dict(members)
        self._literal = {key: literal_hosts(address) for key, address in members.items()}
        self._uses_secret = uses_secret
        self._uses_tls = uses_tls
        self._hosts_of = hosts_of
        self._takes_strangers = takes_strangers

    def is_member_host(self, host: str | None) -> bool:
        """Whether another member has this network address."""
        return any(self._has_host(member_id, host) for member_id in self._others)

    def change_rejection(self, shown: Credentials) -> str | None:
        """Why a connection may not change the members; None if it may, because it may act as one of them."""
        if self._uses_secret:
            return None if shown.has_secret else f"{_LACKS}: give it with --secret-file"
        if self._uses_tls:
            reasons = [self._certificate_rejection(member_id, shown.certificate or {}) for member_id in self._members]
        else:
            reasons = [None if self._has_host(member_id, shown.host) else "" for member_id in self._members]
        if None in reasons:
            return None
        return f"expected a change of members from a member's address, or with its certificate, found {shown.host}"

    def rejection(self, member_id: str | None, shown: Credentials) -> str | None:
        """Why a connection may not act as that member; None if it may."""
        if self._takes_strangers and member_id and member_id != self._self_id and self._is_marked(shown):
            return None
        if member_id is None or member_id not in self._others:
            return f"expected another member of {', '.join(self._others) or 'a group of one'}, found {member_id}"
        if self._uses_secret:
            return None if shown.has_secret else f"{_LACKS}: start that member with --member-secret-file"
        if self._uses_tls:
            return self._certificate_rejection(member_id, shown.certificate or {})
        if self._has_host(member_id, shown.host):
            return None
        return (
            f"expected {member_id} at {self._others[member_id].host} of peers, found {shown.host}: correct peers, or "
            "use memberSecretFile or TLS"
        )

    def _is_marked(self, shown: Credentials) -> bool:
        """Whether a connection may act as any member, as far as it shows: by address, if it has that of one."""
        if self._uses_secret:
            return shown.has_secret
        if self._uses_tls:
            return _has_member_unit(shown.certificate or {})
        return self.is_member_host(shown.host)

    def _has_host(self, member_id: str, host: str | None) -> bool:
        if host is None:
            return False
        known = {*self._literal[member_id], *self._hosts_of(member_id)}
        # Linux connects from 127.0.0.1 to 127.0.1.1, the address of many machines' own names.
        return host in known or (host == _LOOPBACK and any(map(is_loopback, known)))

    def _certificate_rejection(self, member_id: str, certificate: Mapping[str, Any]) -> str | None:
        host = usual_host(self._members[member_id].host)
        subject = [pair for part in certificate.get("subject", ()) for pair in part]
        names = [text for key, text in subject if key == "commonName"]
        alternatives = [text for kind, text in certificate.get("subjectAltName", ()) if kind in _HOST_NAMES]
        wanted = {member_id.lower(), host, *literal_hosts(self._members[member_id])}
        if (domain := host.partition(".")[2]) and not literal_hosts(self._members[member_id]):
            # As where this member checks the other's certificate as a server.
            wanted.add(f"*.{domain}")
        if _has_member_unit(certificate) or member_id in names:
            return None
        if not wanted.isdisjoint(usual_host(text) for text in alternatives):
            return None
        found = ", ".join((*names, *alternatives)) or "no name"
        return f"expected a certificate of {member_id} (CN or subjectAltName {member_id} or {host}), found {found}"


class Access:
    """Judges one connection. `shown` is what the other side has shown."""

    def __init__(
        self,
        secrets: Secrets,
        own_hello: Callable[[], MemberHello] | None,
        roles: Callable[[], Roles],
        on_hello: Callable[[MemberHello], None],
    ) -> None:
        self.shown = Credentials(None)
        self.lacks_secret = secrets.client is not None
        self._secrets = secrets
        self._own_hello = own_hello
        self._roles = roles
        # Called with the hello of a connection that may act as that member.
        self._on_hello = on_hello
        self.rejected_for = "secret"
        # The hello for a sender that is not in the list of members.
        self.told: str | None = None
        self._acts_as: set[str] = set()

    def first_rejection(self, received: ReceivedRequest) -> str | None:
        """Why the connection is closed after its first request: a secret is missing, or the hello is wrong."""
        self.shown = self.shown._replace(has_secret=self._secrets.is_member(received.secret))
        reason = self._secrets.rejection(received.secret)
        if reason is None:
            self.rejected_for = "hello"
            reason = self._hello_rejection(received.member)
        self.lacks_secret = self.lacks_secret and reason is not None
        return reason

    def _hello_rejection(self, text: str | None) -> str | None:
        """Why the sender cannot be a member of this group; None if it can, or does not say that it is one."""
        if text is None or self._own_hello is None:
            return None
        try:
            hello = read_hello(text)
        except WireError as error:
            return str(error)
        own = self._own_hello()
        if (reason := own.mismatch(hello)) is not None:
            return reason
        reason = self._roles().rejection(hello.id, self.shown)
        if reason is not None:
            self.told = own.text()
        else:
            self._on_hello(hello)
        return reason

    def forget(self) -> None:
        """Other members: judge again."""
        self._acts_as.clear()

    def member_rejection(self, member_id: str) -> str | None:
        """Why the connection may not act as that member; None if it may."""
        if member_id in self._acts_as:
            return None
        reason = self._roles().rejection(member_id, self.shown)
        if reason is None:
            self._acts_as.add(member_id)
        return reason


def _has_member_unit(certificate: Mapping[str, Any]) -> bool:
    return any(("organizationalUnitName", MEMBER_UNIT) in part for part in certificate.get("subject", ()))


def literal_hosts(address: Address) -> set[str]:
    """The network addresses that a host text stands for without a lookup."""
    if address.host.lower() == "localhost":
        return {"127.0.0.1", "::1"}
    plain = usual_host(address.host)
    with suppress(ValueError):
        ipaddress.ip_address(plain)
        return {plain}
    return set()


def own_source(address: Address) -> str | None:
    """The network address that a member's connections come from, so that others find it in ``peers``.

    None if its host there is a name, or not an address of this machine, as with address translation.
    """
    host = usual_host(address.host)
    if literal_hosts(address) != {host}:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family) as probe:
        probe.bind((host, 0))
        return host
    return None


def is_loopback(host: str) -> bool:
    """Whether it is a loopback address; False for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
