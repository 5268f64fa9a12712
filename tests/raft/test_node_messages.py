"""Messages put into real nodes with the application of the simulation."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.client import Client, PartialAppendError, Put
from pyspark_dledger.raft.messages import PutRequest, ReadRequest, Request
from pyspark_dledger.store import MmapFileStore, StoreConfig
from tests.simulation.ledger import FILLER, Ledger, Message, pack, parse
from tests.support.groups import FAST, FASTER, SMALL, Nodes, eventually, nodes


class Application(Ledger):
    """The ledger of the simulation, with the id of its node; fails if `is_broken`."""

    is_broken = False

    def __init__(self, node_id: str = "n0") -> None:
        super().__init__()
        self.node_id = node_id
        self.is_running = False

    def started(self, store: Any) -> None:
        super().started(store)
        self.is_running = True

    def stopped(self) -> None:
        assert self.is_running
        self.is_running = False

    def admit(self, bodies: Bodies, queue_nums: int) -> Any:
        if self.is_broken:
            raise OSError("broken")
        return super().admit(bodies, queue_nums)


def message(number: int, client: int = 1, size: int = 900) -> bytes:
    return Message((client, number), number % 3, 0, bytes(size)).body()


@pytest.mark.slow
def test_puts_while_leaders_stop(tmp_path: Path) -> None:
    """Leaders stop under load: each message is in the log once, and queue offsets have no gaps."""
    failures: list[DLedgerError] = []
    done: list[int] = []
    results: dict[int, Put] = {}
    with (
        nodes(tmp_path, 3, application=Application, core_options=FASTER) as group,
        dl.connect("g", group.peers, timeout_ms=2000, max_retries=20) as client,
    ):
        is_over = threading.Event()

        def put_messages() -> None:
            for turn in count():
                if is_over.is_set():
                    return
                numbers = list(range(50 * turn, 50 * turn + 50)) + done[-3:]
                try:
                    result = client.put_messages([message(number) for number in numbers])
                except DLedgerError as error:
                    failures.append(error)
                    return
                for number, put in zip(numbers, result, strict=True):
                    assert results.setdefault(number, put) == put
                done.extend(numbers[:50])

        thread = threading.Thread(target=put_messages)
        thread.start()
        group.replace_leaders(3)
        is_over.set()
        thread.join(60)
        assert not failures and len(done) > 100
        check_log(client, results)


def check_log(client: Client, results: dict[int, Put]) -> None:
    """Each message is in the log once, at the position of its result, and queue offsets have no gaps."""
    last = client.append(b"end").index
    found: dict[int, Put] = {}
    ends = [0, 0, 0]
    index = 0
    while index <= last:
        for entry in client.read(index, wait_ms=1000).entries():
            index = entry.index + 1
            if (known := parse(entry.body)) is not None:
                assert known.identity[1] not in found, f"{known.identity} is there twice"
                assert known.offset == ends[known.queue]
                ends[known.queue] += 1
                found[known.identity[1]] = Put(entry.index, entry.pos, known.offset)
    assert found == results


def write_uncommitted(folder: Path, node_id: str, bodies: list[bytes]) -> None:
    """The store of a member that has entries of n2's term, of which it does not know whether they are committed."""
    store = MmapFileStore(StoreConfig(folder, node_id, **SMALL))  # type: ignore[arg-type]
    store.startup()
    store.save_term(1, "n2")
    store.append_as_leader(bodies, 1)
    store.shutdown()


@pytest.mark.slow
def test_put_of_duplicates_alone_commits_them(tmp_path: Path) -> None:
    """The leader stopped before the last messages of a job were committed; nothing else is put."""
    bodies = [Message((1, number), 0, number, b"").body() for number in range(10)]
    group = Nodes(tmp_path, 3, application=Application, core_options={**FAST, "max_wait_ack_time_ms": 1000})
    for node_id in ("n0", "n1"):
        write_uncommitted(tmp_path, node_id, bodies)
    try:
        leader = group.start("n0", "n1").leader()
        with dl.connect("g", group.peers, max_retries=2) as client:
            time.sleep(0.3)
            assert group.status(leader)["committedIndex"] == -1
            result = client.put_messages(bodies)
            assert [(put.index, put.queue_offset) for put in result] == [(index, index) for index in range(10)]
            assert client.get(10).body == FILLER
            new = client.put_messages([Message((1, 10), 0, 0, b"").body(), bodies[3]])
            assert [(put.index, put.queue_offset) for put in new] == [(11, 10), (3, 3)]
    finally:
        group.close()


def test_restarted_node_detects_duplicates(tmp_path: Path) -> None:
    bodies = [message(number) for number in range(30)]
    with nodes(tmp_path, 1, application=Application) as group:
        with dl.connect("g", group.peers) as client:
            first = list(client.put_messages(bodies))
            status = client.status("n0")
            assert status.serves_messages and status.committed_index == 29
            assert client.topics(["x"], 3).queue_counts == {"x": 3}
        node = group.nodes["n0"]
        group.stop("n0")
        assert not node._application.is_running  # type: ignore[union-attr]
        group.start("n0")
        with dl.connect("g", group.peers) as client:
            assert list(client.put_messages(bodies)) == first
            assert client.append(b"raw").index == 30


def test_application_error_stops_its_node(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, application=Application) as group:
        group.leader()
        node = group.nodes["n0"]
        with dl.connect("g", group.peers, timeout_ms=1000, max_retries=0) as client:
            client.topics(["x"])
            node._application.is_broken = True  # type: ignore[union-attr]
            with pytest.raises(PartialAppendError) as caught:
                client.put_messages([message(1)])
            assert caught.value.unknown == (range(1),)
        eventually(node.failed.done)
        assert "the application raised OSError('broken')" in str(node.failed.result())


def test_followers_copy_the_metadata_of_the_leader(tmp_path: Path) -> None:
    options = {**FAST, "copy_config_first_ms": 100, "copy_config_every_ms": 200}
    with nodes(tmp_path, 3, application=Application, core_options=options) as group:
        leader = group.leader()
        followers = [group.nodes[node_id]._application for node_id in group.ids if node_id != leader]
        for follower in followers:
            assert isinstance(follower, Application)
            eventually(lambda follower=follower: len(follower.copies) > 1)  # type: ignore[misc]
        assert group.nodes[leader]._application.copies == []  # type: ignore[union-attr]


def test_metadata_larger_than_a_frame_is_logged_by_the_leader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Large(Application):
        def config(self) -> dict[str, bytes]:
            return {"topics.json": bytes(17 << 20)}

    with nodes(tmp_path, 1, application=Large) as group, dl.connect("g", group.peers) as client:
        group.leader()
        with caplog.at_level("ERROR", "pyspark_dledger.node"), pytest.raises(GroupError, match="look at the log"):
            client.config()
    (record,) = caplog.records
    assert record.getMessage() == "answer not sent"
    assert "expected a frame of at most 16777216 bytes" in record.fields["reason"]  # type: ignore[attr-defined]  # an extra


def test_requests_of_a_process_to_its_own_node(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, application=Application) as group:
        group.leader()
        node = group.nodes["n0"]

        def send(request: Request) -> Any:
            return group.run(node.request(request))

        response = send(PutRequest(bodies=pack([message(1)])))
        if response.code == ResponseCode.LEADER_NOT_READY:
            response = send(PutRequest(bodies=pack([message(1)])))
        assert (response.code, response.index, response.count) == (ResponseCode.SUCCESS, 0, 1)
        assert send(ReadRequest(first_index=0)).count == 1
        waiting = asyncio.run_coroutine_threadsafe(
            node.request(ReadRequest(first_index=9, wait_ms=50_000)), group._loop
        )
        group.stop("n0")
        with pytest.raises(GroupError, match="is not running"):
            waiting.result(10)
        with pytest.raises(GroupError, match="is not running"):
            send(PutRequest(bodies=pack([message(1)])))


def test_store_is_closed_if_the_application_cannot_start_or_stop(tmp_path: Path) -> None:
    class Stubborn(Application):
        fails_in = "started"

        def started(self, store: Any) -> None:
            if self.fails_in == "started":
                raise DLedgerError("cannot start")
            super().started(store)

        def stopped(self) -> None:
            super().stopped()
            raise DLedgerError("cannot stop")

    group = Nodes(tmp_path, 1, application=Stubborn)
    try:
        with pytest.raises(DLedgerError, match="cannot start"):
            group.start()
        Stubborn.fails_in = ""
        group.start()
        with pytest.raises(DLedgerError, match="cannot stop"):
            group.stop("n0")
        group.start(application=None)
        assert group.leader() == "n0"
    finally:
        group.close()
