"""Who may act as a member, and secrets in files."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.messages import (
    AppendRequest,
    HeartBeatRequest,
    PushRequest,
    Request,
    TransferRequest,
    VoteRequest,
)
from pyspark_dledger.raft.node.access import MEMBER_UNIT, Credentials, Roles, acting_member
from pyspark_dledger.raft.node.peer_link import PeerLink
from pyspark_dledger.raft.node.settings import NodeSettings, node_config
from pyspark_dledger.raft.peers import Address, parse_peers
from pyspark_dledger.raft.secret import Secrets

PEERS = parse_peers("n0-10.0.0.1:1;n1-10.0.0.2:1;n2-db.example:1;n3-[fe80:0::1]:1")


@pytest.mark.parametrize(
    ("member_id", "host", "is_allowed"),
    [
        ("n1", "10.0.0.2", True),
        ("n1", "10.0.0.1", False),
        ("n1", None, False),
        ("n0", "10.0.0.1", False),  # itself
        ("n9", "10.0.0.2", False),
        ("", "10.0.0.2", False),
        ("n2", "10.7.7.7", True),
        ("n2", "10.0.0.2", False),
        ("n3", "fe80::1", True),
    ],
)
def test_a_member_is_known_by_its_address(member_id: str, host: str | None, is_allowed: bool) -> None:
    roles = Roles(PEERS, "n0", hosts_of=lambda found: {"n2": ["10.7.7.7"]}.get(found, []))
    reason = roles.rejection(member_id, Credentials(host))
    assert (reason is None) is is_allowed
    if member_id == "n1" and host:
        assert is_allowed or reason == (
            "expected n1 at 10.0.0.2 of peers, found 10.0.0.1: correct peers, or use memberSecretFile or TLS"
        )


@pytest.mark.parametrize(
    ("modes", "shown", "is_allowed"),
    [
        ({}, Credentials("10.0.0.2"), True),
        ({}, Credentials("10.0.0.9"), False),
        ({"uses_secret": True}, Credentials("10.0.0.9", has_secret=True), True),
        ({"uses_secret": True}, Credentials("10.0.0.2"), False),
        ({"uses_tls": True}, Credentials("10.0.0.9", {"subject": ((("organizationalUnitName", MEMBER_UNIT),),)}), True),
        ({"uses_tls": True}, Credentials("10.0.0.2", {"subject": ((("commonName", "n9"),),)}), False),
    ],
)
def test_a_member_with_an_old_list_accepts_others_that_show_that_they_are_members(
    modes: dict[str, bool], shown: Credentials, is_allowed: bool
) -> None:
    roles = Roles(PEERS, "n0", **modes, takes_strangers=True)
    assert (roles.rejection("n9", shown) is None) is is_allowed
    assert roles.rejection("", shown) and roles.rejection(None, shown) and roles.rejection("n0", shown)
    assert Roles(PEERS, "n0", **modes).rejection("n9", shown)


@pytest.mark.parametrize("peers", ["n0-127.0.1.1:1;n1-127.0.1.1:2", "n0-alpha:1;n1-alpha:2"])
def test_members_of_one_machine_connect_from_127_0_0_1(peers: str) -> None:
    """A machine's own name is often 127.0.1.1, and Java members do not choose where they connect from."""
    roles = Roles(parse_peers(peers), "n0", hosts_of=lambda _: ["127.0.1.1"] if "alpha" in peers else [])
    assert roles.rejection("n1", Credentials("127.0.0.1")) is None
    assert roles.rejection("n1", Credentials("127.0.0.9")) is not None
    assert Roles(PEERS, "n0").rejection("n1", Credentials("127.0.0.1")) is not None


@pytest.mark.parametrize(
    ("own", "peer", "source"),
    [
        ("127.0.0.1", "10.0.0.2", None),
        ("127.0.0.2", "127.0.0.3", "127.0.0.2"),
        ("10.0.0.1", "127.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "::1", None),
    ],
)
def test_a_loopback_address_is_no_source_of_connections_to_other_machines(
    own: str, peer: str, source: str | None
) -> None:
    link = PeerLink("n1", Address(peer, 1), *[None] * 5, own_host=own)  # type: ignore[arg-type]
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    found = link._source([(family, socket.SOCK_STREAM, 6, "", (peer, 1))])
    assert found == (None if source is None else (source, 0))


def certificate(*names: tuple[str, str], unit: str = "") -> dict[str, Any]:
    """As `ssl.SSLSocket.getpeercert` returns it."""
    subject = [((key, name),) for key, name in names]
    subject += [(("organizationalUnitName", unit),)] if unit else []
    return {"subject": tuple(subject)}


@pytest.mark.parametrize(
    ("shown", "is_allowed"),
    [
        (certificate(("commonName", "n1")), True),
        (certificate(("commonName", "n2")), False),
        (certificate(("commonName", "client")), False),
        (certificate(("organizationName", "n1")), False),
        ({"subjectAltName": (("IP Address", "10.0.0.2"),)}, True),
        ({"subjectAltName": (("IP Address", "10.0.0.3"),)}, False),
        ({"subjectAltName": (("DNS", "N1"),)}, True),
        ({"subjectAltName": (("URI", "n1"), ("email", "n1"), ("Registered ID", "n1"))}, False),
        ({"subjectAltName": (("DirName", ((("commonName", "n1"),),)),)}, False),
        (certificate(("commonName", "any"), unit="dledger-member"), True),
        (certificate(("commonName", "dledger-member")), False),
        (None, False),
    ],
)
def test_a_member_is_known_by_its_certificate(shown: dict[str, Any] | None, is_allowed: bool) -> None:
    roles = Roles(PEERS, "n0", uses_tls=True)
    assert (roles.rejection("n1", Credentials("10.0.0.2", shown)) is None) is is_allowed


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [("db.example", True), ("*.example", True), ("*.Example", True), ("*", False), ("*.", False), ("*.other", False)],
)
def test_a_certificate_may_name_all_hosts_of_a_domain(name: str, is_allowed: bool) -> None:
    roles = Roles(parse_peers("n0-10.0.0.1:1;n1-db:1;n2-db.example:1;n3-10.0.0.4:1"), "n0", uses_tls=True)
    shown = Credentials(None, {"subjectAltName": (("DNS", name),)})
    assert (roles.rejection("n2", shown) is None) is is_allowed
    assert roles.rejection("n1", shown) is not None
    assert roles.rejection("n3", shown) is not None


def test_the_members_secret_replaces_address_and_certificate() -> None:
    roles = Roles(PEERS, "n0", uses_secret=True, uses_tls=True)
    named = certificate(("commonName", "n1"))
    assert roles.rejection("n1", Credentials("10.0.0.2", named)) == (
        "expected the members' secret in the first request, found none: start that member with --member-secret-file"
    )
    assert roles.rejection("n1", Credentials("10.9.9.9", None, has_secret=True)) is None
    assert roles.rejection("n9", Credentials("10.0.0.2", None, has_secret=True)) is not None


@pytest.mark.parametrize(
    ("request_", "member_id"),
    [
        (PushRequest(leader_id="n1"), "n1"),
        (HeartBeatRequest(leader_id="n1"), "n1"),
        (VoteRequest(local_id="n1"), ""),
        (TransferRequest(remote_id="n0", transfer_id="n1", transferee_id="n0"), "n1"),
        (TransferRequest(remote_id="n0"), ""),
        # The command of an operator to the leader.
        (TransferRequest(remote_id="n0", transfer_id="n0", transferee_id="n1"), None),
        (AppendRequest(leader_id="n1"), None),
    ],
    ids=repr,
)
def test_requests_of_members(request_: Request, member_id: str | None) -> None:
    assert acting_member(request_) == member_id


@pytest.mark.parametrize(
    ("secrets", "given", "found"),
    [
        (Secrets(), "any", None),
        (Secrets("c"), "c", None),
        (Secrets("c"), None, "none"),
        (Secrets("c", "m"), "m", None),
        (Secrets("c", "m"), "x", "another"),
        (Secrets(None, "m"), None, None),
        (Secrets(None, "m"), "x", "another"),
    ],
)
def test_secrets_of_a_first_request(secrets: Secrets, given: str | None, found: str | None) -> None:
    reason = secrets.rejection(given)
    assert (reason is None) if found is None else (reason is not None and f"found {found}:" in reason)
    assert "'m'" not in repr(secrets) and secrets.is_member(given) is (given == "m")


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("of clients\n")
    (tmp_path / "members").write_text("of members")
    settings = NodeSettings()
    for name, text in {"group": "g", "selfId": "n0", "peers": "n0-127.0.0.1:1", "storeBaseDir": "s"}.items():
        settings.set(name, text, "test")
    settings.set("secretFile", str(tmp_path / "clients"), "--secret-file")
    settings.set("memberSecretFile", str(tmp_path / "members"), "--member-secret-file")
    config = node_config(settings)
    assert (config.secret, config.member_secret) == ("of clients", "of members")
    assert config.secrets().of_links == "of members" and "of members" not in repr(config)
    for content, text in (("", "expected one line in"), ("a\nb", "found 2"), ("ä", "printable ASCII")):
        (tmp_path / "members").write_text(content)
        with pytest.raises(OptionError, match=f"^memberSecretFile: .*{text}"):
            node_config(settings)
    (tmp_path / "clients").unlink()
    with pytest.raises(OptionError, match=r"^secretFile: .* cannot be read: No such file"):
        node_config(settings)


def test_members_change_only_by_members() -> None:
    """By the secret, by a certificate of any member, or at the address of any member, this one included."""
    roles = Roles(PEERS, "n0", uses_secret=True)
    assert roles.change_rejection(Credentials("10.9.9.9", has_secret=True)) is None
    assert roles.change_rejection(Credentials(PEERS["n1"].host)) is not None
    roles = Roles(PEERS, "n0", uses_tls=True)
    named = {"subject": ((("commonName", "n0"),),)}
    assert roles.change_rejection(Credentials("10.9.9.9", named)) is None
    other = {"subject": ((("commonName", "client"),),)}
    assert roles.change_rejection(Credentials(PEERS["n1"].host, other)) is not None
    roles = Roles(PEERS, "n0")
    assert all(roles.change_rejection(Credentials(PEERS[member_id].host)) is None for member_id in ("n0", "n1"))
    assert roles.change_rejection(Credentials("10.9.9.9")) is not None
