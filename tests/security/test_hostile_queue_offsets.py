"""Nodes that serve messages: raw entries are messages with hostile offsets and topics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import encode_message
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.messages import AppendRequest, PutRequest
from tests.support.dispatching import units
from tests.support.groups import eventually
from tests.support.message_nodes import MessageNodes, message_nodes, puts, rows


@pytest.fixture
def group(tmp_path: Path) -> Iterator[MessageNodes]:
    with message_nodes(tmp_path, 1) as group:
        group.ready_leader()
        yield group


@pytest.fixture
def client(group: MessageNodes) -> Iterator[Client]:
    with dl.connect("g", group.peers) as client:
        yield client


def wait_for_dispatch(group: MessageNodes, client: Client) -> None:
    """Return when everything that was appended before is dispatched."""
    (put,) = client.put_messages(puts(rows(1, topic="Last"), queues=1, job="last"))
    eventually(lambda: put.pos + ENTRY_HEADER_SIZE in queued(group.root("n0"), "Last"))


def queued(root: Path, topic: str) -> set[int]:
    """Where the messages of queue 0 stand in the log, by the ConsumeQueue."""
    return {pos for pos, _, _ in units(root, topic)}


def test_hostile_queue_offset_hides_no_later_message(group: MessageNodes, client: Client) -> None:
    first = list(client.put_messages(puts(rows(2, topic="Victim"), queues=1, job="first")))
    with suppress(GroupError):
        client.append(encode_message(b"Victim", b"evil", 0, queue_offset=2**62 // 20))
    second = list(client.put_messages(puts(rows(2, topic="Victim"), queues=1, job="second")))
    wait_for_dispatch(group, client)
    found = queued(group.root("n0"), "Victim")
    assert {put.pos + ENTRY_HEADER_SIZE for put in first} <= found
    assert {put.pos + ENTRY_HEADER_SIZE for put in second} <= found, (
        f"acknowledged messages with queue offsets {[put.queue_offset for put in second]} are in no queue"
    )


def test_hostile_queue_offsets_make_no_large_files(group: MessageNodes, client: Client) -> None:
    """Files of queues are small here, 20 kB. By default they have 6 MB."""
    sent = 0
    for number in range(1, 9):
        message = encode_message(b"Victim", b"x", 0, queue_offset=2000 * number)
        sent += len(message)
        with suppress(GroupError):
            client.append(message)
    wait_for_dispatch(group, client)
    files = (group.root("n0") / "consumequeue" / "Victim").rglob("0*")
    size = sum(file.stat().st_blocks * 512 for file in files if file.is_file())
    assert size < 20 * sent, f"{sent} bytes were sent, and queue files take {size} bytes"


def test_hostile_topics_make_no_folders(group: MessageNodes, client: Client) -> None:
    for topic in (b"\x1b[31mred", b"\n", b"A" * 255):
        with suppress(GroupError):
            client.append(encode_message(topic, b"x", 0, queue_offset=0))
    wait_for_dispatch(group, client)
    names = [path.name for path in (group.root("n0") / "consumequeue").iterdir()]
    assert "Last" in names
    invalid = [name for name in names if not re.fullmatch("[%|a-zA-Z0-9_-]{1,127}", name)]
    assert not invalid, f"folders of topics that no broker takes: {invalid!r}"


def test_raw_messages_must_not_skip_queue_offsets(group: MessageNodes, client: Client) -> None:
    """They can continue a queue, also within one request and before they are dispatched."""
    client.append_batch([encode_message(b"Orders", b"%d" % number, 0, queue_offset=number) for number in range(3)])
    (put,) = client.put_messages(puts(rows(1, topic="Orders"), queues=1, job="after"))
    assert put.queue_offset == 3
    for offset in (5, 2**31, 2**62, -1):
        with pytest.raises(GroupError, match="UNEXPECTED_ARGUMENT"):
            client.append(encode_message(b"Orders", b"x", 0, queue_offset=offset))
    with pytest.raises(GroupError, match="UNEXPECTED_ARGUMENT"):
        client.append_batch([encode_message(b"New", b"x", 0, queue_offset=offset) for offset in (0, 2)])
    client.append(encode_message(b"Orders", b"4", 0, queue_offset=4))
    wait_for_dispatch(group, client)
    assert len(queued(group.root("n0"), "Orders")) == 5


@pytest.mark.parametrize(
    ("count", "block"),
    [(1, b"\xff\xff\xff\xff"), (1, b"\x00\x00\x00\x09x"), (1, bytes(5)), (2, b"\x00\x00\x00\x01\xff\xff\xff\xffx")],
)
def test_an_append_with_impossible_bodies_is_rejected(group: MessageNodes, count: int, block: bytes) -> None:
    with closing(group.caller("n0")) as caller:
        caller.hello()
        for request in (AppendRequest(bodies=Bodies(count, block)), PutRequest(bodies=Bodies(count, block))):
            assert caller.call(request).code == ResponseCode.UNEXPECTED_ARGUMENT
        assert caller.append(b"x").code == ResponseCode.SUCCESS
