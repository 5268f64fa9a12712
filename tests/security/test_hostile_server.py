"""Clients that connect to a hostile server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError, GroupError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.messages import GetRequest, GetResponse, ReadRequest, ReadResponse, Request, Response
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.store.dledger_store import Entry
from tests.support.fake_members import FakeMember, fakes


@pytest.mark.parametrize("address", ["\x1b[31mevil\u202e\n:1", "a..b:1", "x" * 64 + ":1", "a b:1", "x." * 200 + ":1"])
def test_hostile_address_of_a_member_is_an_error_of_the_group(address: str) -> None:
    fake = FakeMember(leader_id="n1")
    fake.peers = {"n0": f"127.0.0.1:{fake.port}", "n1": address}
    with fakes(fake) as peers, dl.connect("g", peers, timeout_ms=300, max_retries=0) as client:
        try:
            client.get(0)
        except DLedgerError:
            return


def test_a_client_adds_few_of_the_members_that_a_server_names() -> None:
    """Each search for the leader connected to all that any earlier response had named, and its error named all."""
    members = Members("g", {"n0": Address("127.0.0.1", 1)}, None, 1.0)
    for response in range(100):
        members.learn({f"n{response}.{number}": "127.0.0.1:1" for number in range(100)} | {"\x1b[31m": "h:1"})
    assert len(members.addresses) == 64
    assert "\x1b[31m" not in members.addresses


def asked(request: type[Request], response: Response, ask: Callable[[dl.Client], object]) -> None:
    fake = FakeMember()
    fake.responses[request] = lambda _: response
    with fakes(fake) as peers, dl.connect("g", peers, timeout_ms=3000, max_retries=0) as client:
        ask(client)


def test_another_entry_than_the_requested_one_is_an_error() -> None:
    response = GetResponse(group="g", entries=[Entry(5, 1, 0, 1, b"another")])
    with pytest.raises(GroupError, match="expected entry 3 of its leader, found entry 5"):
        asked(GetRequest, response, lambda client: client.get(3))


def entries(*indexes: int) -> bytes:
    data = bytearray()
    for index in indexes:
        data += encode_entry(index, 1, len(data), b"body")
    get_engine().write_body_crcs(data)
    return bytes(data)


WITHOUT_SIZE = entries(3)[:4] + bytes(4) + entries(3)[8:]


@pytest.mark.parametrize(
    ("first_index", "count", "data", "found"),
    [
        (5, 1, entries(5), ""),
        (3, 2, entries(3, 5), ""),
        (3, 3, entries(3, 4, 5)[:-1], ""),
        (3, 1, WITHOUT_SIZE, ""),
        (3, 1, entries(3, 4), "2 entries that count as 1"),
        (3, 1, entries(3).replace(b"body", b"lies"), "a body that does not match its checksum"),
    ],
    ids=["first index", "gap", "torn", "size 0", "count", "body"],
)
def test_other_entries_than_the_requested_ones_are_an_error(
    first_index: int, count: int, data: bytes, found: str
) -> None:
    """They were returned as the requested ones; of size 0, they were read for ever."""
    response = ReadResponse(group="g", first_index=first_index, count=count, committed_index=9, data=data)
    with pytest.raises(GroupError, match=f"expected entries from index 3 on of n0, found .*{found}"):
        asked(ReadRequest, response, lambda client: client.read(3))
