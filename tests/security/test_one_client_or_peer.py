"""What one client or one lying peer must not be able to do to a member: each test is an attack that once succeeded."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_dledger.common.log_records import LOG, RateLimitedLog
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.raft.hello import MemberHello, read_hello
from pyspark_dledger.raft.member_list import MARK, list_in, read_told
from pyspark_dledger.raft.messages import ReadRequest, ReadResponse
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.raft.node.limits import Turns
from pyspark_dledger.raft.wire import WireConnection, WireError
from pyspark_dledger.rocketmq.broker import config_files
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata
from pyspark_dledger.rocketmq.service.log_entries import is_same_message
from tests.support.message_member import member
from tests.support.message_nodes import puts, rows
from tests.support.puts import block_of, messages_of, put, raw_properties_of

TOLD = {"index": 3, "term": 1, "voters": {"n0": "h:1"}, "learners": {}, "leaving": "", "committed": 5}


def test_a_rejection_is_no_request() -> None:
    """Its code would be counted: unknown codes failed every later response of /metrics."""
    wire = WireConnection()
    wire.peer_is_binary = True
    header = struct.pack(">BBHiiqH", 1, 4, 50002, 7, 424242, -1, 0xFFFF)
    with pytest.raises(WireError, match="a rejection as a response"):
        wire.feed(struct.pack(">iI", 4 + len(header), 0x44 << 24 | len(header)) + header)


class Timers:
    """Timers that the test ends."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later(self, _seconds: float, work: Any) -> Any:
        self.due.append(work)
        return SimpleNamespace(cancel=lambda: None)


def test_thousands_of_reads_time_out_at_once_and_quickly() -> None:
    """Each took a search of all: 8000 reads of one address stopped a leader for 20 s."""
    timers, lost = Timers(), object()
    responses: list[object] = []
    store = SimpleNamespace(committed_index=5, ledger_begin_index=0, is_recent=lambda _: True, read=None)
    threads = SimpleNamespace(is_busy=False)
    reads = CommittedReads(store, threads, "g", "n0", timers.call_later)  # type: ignore[arg-type]  # stand-ins

    def read(index: int, inbound: object) -> None:
        caller = SimpleNamespace(inbound=inbound, respond=responses.append, when_room=lambda _, work: work())
        reads.read(ReadRequest(group="g", remote_id="n0", first_index=index, wait_ms=1000), caller)  # type: ignore[arg-type]

    for number in range(4000):
        read(10**9 + number % 7, lost if number % 10 == 0 else None)
    began = time.process_time()
    reads.drop(lost)  # type: ignore[arg-type]
    for work in timers.due:
        work()
    assert time.process_time() - began < 1
    assert len(responses) == 3600
    assert all(isinstance(response, ReadResponse) and response.count == 0 for response in responses)
    assert not reads._waiting


@pytest.mark.parametrize(
    "text",
    [
        None,
        "[]",
        "[" * 60_000,
        json.dumps({**TOLD, "committed": float("inf")}),
        json.dumps({**TOLD, "index": float("inf")}),
        json.dumps({**TOLD, "index": 2**70}),
        json.dumps({**TOLD, "voters": {"n0": "no address"}}),
        json.dumps({**TOLD, "voters": {"n0": 1}}),
        json.dumps({**TOLD, "voters": [[[], "h:1"]]}),
    ],
)
def test_a_list_of_members_that_cannot_be_used_is_a_value_error(text: str | None) -> None:
    """Other errors ended the node that asked."""
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        read_told(text)
    assert read_told(json.dumps(TOLD))[1] == 5


@pytest.mark.parametrize("rest", [b"[" * 60_000, b"[]}", b"5}", b"", b'{"voters":{"n0":"no address"}}}'])
def test_an_entry_with_members_that_cannot_be_used_is_a_value_error(rest: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        list_in(1, 1, MARK + rest)


def test_records_that_clients_cause_are_short(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty names of 4 KB a second, escaped, filled 40 GB of log a day."""
    with caplog.at_level("WARNING", LOG.name):
        RateLimitedLog()(logging.WARNING, "request refused", reason="\x01" * 4000, count=7)
    assert caplog.records[0].__dict__["fields"] == {"reason": "\x01" * 500 + "...", "count": 7}


def test_a_hello_is_compared_quickly() -> None:
    """Hosts are compared as names of DNS: 64 KB of them took 0.1 s for each connection."""
    peers = "n0-" + "éa.éb." * 600 + ":1"
    own = MemberHello("n0", "1", "g", "n0-h:1")
    began = time.process_time()
    assert own.mismatch(read_hello(MemberHello("n1", "1", "g", peers).text()))
    assert time.process_time() - began < 0.05
    with pytest.raises(WireError, match="expected peers of at most 4096 characters"):
        read_hello(MemberHello("n1", "1", "g", "n0-h:1;" * 1000).text())


def test_timers_and_small_requests_go_before_large_ones() -> None:
    """Large requests of many connections, complete at one moment, kept heartbeats waiting until all were handled."""

    async def run() -> list[str]:
        turns = Turns()
        done: list[str] = []

        def handle(name: str) -> None:
            done.append(name)
            turns.tick_due -= 1  # that took long

        turns.tick_due -= 1
        assert turns.is_late
        for name, size in (("large", 100), ("small", 1), ("middle", 10)):
            turns.wait(lambda name=name: handle(name), size)  # type: ignore[misc]
        for tick in range(4):
            await asyncio.sleep(0)
            done.append(f"tick {tick}")
            turns.tick_due = asyncio.get_running_loop().time()
        return done

    assert asyncio.run(run()) == ["tick 0", "small", "tick 1", "middle", "tick 2", "large", "tick 3"]


def test_many_topics_are_not_encoded_for_each_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that creates topics and asks for a copy, again and again, stopped the node for 3 s each time."""
    metadata = BrokerMetadata(tmp_path)
    metadata.add_topics({f"t{number}": 1 for number in range(2500)})
    monkeypatch.setattr(metadata, "_write", lambda _: None)
    metadata.add_topics({"another": 1})
    monkeypatch.setattr(config_files, "fastjson_text", lambda _: pytest.fail("encoded"))
    assert b'"t2499"' in metadata.files()["topics.json"]
    assert b'"another"' not in metadata.files()["topics.json"]
    again = BrokerMetadata(tmp_path)
    assert again.files() == metadata.files()


def test_a_taken_identity_hides_no_message(tmp_path: Path) -> None:
    """A client that knows the next message of another one could put its identity first: that was lost."""
    honest = puts(rows(1))
    ((body, message),) = messages_of(honest)
    taken = block_of(put(body=b"another", properties=raw_properties_of(body, message)))
    with member(tmp_path) as node:
        node.lead()
        assert node.put(taken) == node.put(taken) == [(0, 0, 0)]
        with pytest.raises(RejectedError, match="found that of another message, entry 0"):
            node.service.admit(honest, 1)
        assert node.put(puts(rows(1), job="another")) == [(1, node.store.get(1).pos, 0)]


def test_a_retry_has_the_same_content() -> None:
    """Stamps of the leader, hosts, separators and the queue of a delayed message do not count."""

    def message(**changes: Any) -> bytes:
        return put(**{"properties": b"TAGS\x01t\x02REAL_QID\x011\x02", **changes})

    one = message()
    assert is_same_message(one, message(queue_offset=7, store_timestamp=9, properties=b"TAGS\x01t\x02REAL_QID\x012"))
    assert is_same_message(one, message(born_host=encode_host("::1", 1)))
    for other in ({"body": b"b"}, {"topic": b"U"}, {"properties": b"TAGS\x01u\x02REAL_QID\x011\x02"}):
        assert not is_same_message(one, message(**other))
