"""The members of a group from one entry of its log on, and their text in entries, files and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.peers import PEER_ID, parse_address
from pyspark_dledger.raft.wire.json_values import integer, shown

_DECODER = json.JSONDecoder()
MARK = b'{"dledgerMembers":'


class MemberList(NamedTuple):
    """``index`` and ``term`` are those of its entry; -1 is the list that all members were started with.

    ``voters`` and ``learners`` have the address of each member by its id. Learners get all entries, but do not vote:
    the leader makes them voters when they have caught up. ``leaving`` is the voter that is removed after that, or "".
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    voters: Mapping[str, str]
    learners: Mapping[str, str] = {}
    leaving: str = ""

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each member."""
        return {**self.voters, **self.learners}

    @property
    def quorum(self) -> int:
        """The number of voters of a majority."""
        return len(self.voters) // 2 + 1

    @property
    def is_final(self) -> bool:
        """Whether no further step of a change follows."""
        return not self.learners and not self.leaving

    def values(self) -> dict[str, Any]:
        """The values of its JSON object."""
        return {**self._asdict(), "voters": dict(self.voters), "learners": dict(self.learners)}

    def told(self, committed: int, sender: str = "") -> str:
        """The text for others, with this member's committed index and its address, if known; see `read_told`."""
        values = {**self.values(), "committed": committed, "sender": sender}
        return json.dumps(values, separators=(",", ":"))

    def body(self) -> bytes:
        """The body of its entry."""
        values = {"voters": dict(self.voters), "learners": dict(self.learners), "leaving": self.leaving}
        return b"%b%b}" % (MARK, json.dumps(values, separators=(",", ":")).encode())


def list_in(index: int, term: int, body: bytes) -> MemberList:
    """The list of an entry, whose body may have other bytes around it. Raises ValueError."""
    start = body.find(MARK)
    if start < 0:
        raise ValueError(f"entry {index}: expected a list of members, found {body[:80]!r}")
    try:
        values, _ = _DECODER.raw_decode(body[start + len(MARK) :].decode("ascii", "replace"))
        return list_of({**values, "index": index, "term": term})
    except (TypeError, RecursionError) as error:
        raise ValueError(f"entry {index}: expected a list of members, found {error!r}") from None


class Told(NamedTuple):
    """A list that another member has sent, its committed index, and its address, or ""."""

    members: MemberList
    committed: int
    sender: str


def read_told(text: str | None) -> Told:
    """Read the text of `MemberList.told`. Raises ValueError."""
    try:
        values = json.loads(text or "")
        found = Told(list_of(values), _integer(values["committed"]), str(values.get("sender", "")))
        if found.sender:
            parse_address(found.sender, "the sender")
        return found
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"expected a list of members and a committed index, found {error!r}") from None


def list_of(values: Any) -> MemberList:
    """The list with these values. Raises ValueError."""
    try:
        voters, learners = dict(values["voters"]), dict(values["learners"])
        numbers = _integer(values["index"]), _integer(values["term"])
        found = MemberList(*numbers, voters, learners, str(values["leaving"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a list of members, found {shown(values)} ({error!r})") from None
    for member_id, address in found.addresses.items():
        if not (isinstance(member_id, str) and isinstance(address, str) and PEER_ID.fullmatch(member_id)):
            raise ValueError(f"expected members with their addresses, found {shown(member_id)} at {shown(address)}")
        if address:
            parse_address(address, f"member {member_id}")
    if not voters or voters.keys() & learners.keys():
        raise ValueError(f"expected voters, and each member once, found {shown(values)}")
    return found


def _integer(value: Any) -> int:
    return integer(value, "a number of a list of members", 64)


def check_new_member(member_id: str, address: str) -> None:
    """Raises OptionError unless both are well-formed."""
    if not PEER_ID.fullmatch(member_id):
        raise OptionError(f"member {member_id!r}: expected an id such as n3, of up to 64 letters, digits, _ and .")
    parse_address(address, f"member {member_id}")
