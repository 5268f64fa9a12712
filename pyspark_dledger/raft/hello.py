"""What members of this package tell each other at the begin of every connection, and what must be equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from json import dumps
from typing import Any

from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.raft.peers import comparable_peers
from pyspark_dledger.raft.wire.json_values import parse_object
from pyspark_dledger.raft.wire.wire_errors import WireError

_MAX_SHOWN = 500
_MAX_TEXT = 64 * 1024
# Peers are compared host by host, which takes time.
_MAX_PEERS = 4096
_NUMBERS = ("dataFileSize", "indexFileSize", "controls")
# The fields that must be equal, with their names in messages, and what to do. Empty values are unknown.
# Positions in the log depend on the size of data files. Index files are each member's own.
_COMPARED = {
    "group": ("group", "correct group or peers"),
    "cluster": (
        "cluster id",
        "two groups have one name, correct peers; or members were restored with different --new-group",
    ),
    "peers": ("list of peers", "correct peers, or set one commonPeers at all members"),
    "dataFileSize": ("data file size", "start an empty member with mappedFileSizeForEntryData of the group"),
}


@dataclass(frozen=True)
class MemberHello:
    """A member's view of the group. ``peers`` is sorted by id, sizes are bytes; 0 and "" are unknown.

    ``controls`` is the highest kind of control entry that it knows, ``members`` the committed list of its log, or "".
    """

    id: str
    version: str
    group: str
    peers: str
    cluster: str = ""
    dataFileSize: int = 0  # noqa: N815  # names on the wire
    indexFileSize: int = 0  # noqa: N815
    controls: int = 0
    members: str = ""

    def text(self) -> str:
        return dumps(asdict(self), separators=(",", ":"))

    def mismatch(self, other: MemberHello, expected_id: str | None = None) -> str | None:
        """Why both cannot be members of one group, with both values; None if they can.

        ``expected_id`` is the id that the other side should have.
        """
        if expected_id is not None and other.id != expected_id:
            return f"expected member {expected_id}, found {_short(other.id)}"
        for name, (what, remedy) in _COMPARED.items():
            own, its = getattr(self, name), getattr(other, name)
            if own and its and own != its and not (name == "peers" and comparable_peers(own) == comparable_peers(its)):
                found = f"{own} at {self.id} and {_short(its)} at {_short(other.id)}"
                return f"expected one {what} in a group, found {found}: {remedy}"
        return None


def _short(value: object) -> str:
    """A value of the other side, which may be long."""
    return str(value)[:_MAX_SHOWN]


def read_hello(text: str) -> MemberHello:
    """The inverse of `MemberHello.text`; unknown fields are ignored. Raises WireError."""
    if len(text) > _MAX_TEXT:
        raise WireError(f"expected a member's hello of at most {_MAX_TEXT} characters, found {len(text)}")
    found = parse_object(text.encode(errors="replace"), "a member's hello") or {}
    values = {field.name: found.get(field.name, field.default) for field in fields(MemberHello)}
    _check(values)
    return MemberHello(**values)


def _check(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        kind = int if name in _NUMBERS else str
        if type(value) is not kind:
            raise WireError(f"expected {name} of a member's hello as {kind.__name__}, found {type(value).__name__}")
        if isinstance(value, str) and not is_utf8(value):
            raise WireError(f"expected {name} of a member's hello as Unicode text, found half of a surrogate pair")
    if len(values["peers"]) > _MAX_PEERS:
        raise WireError(f"expected peers of at most {_MAX_PEERS} characters, found {len(values['peers'])}")
