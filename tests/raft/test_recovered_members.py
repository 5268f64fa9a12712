"""Members after a power loss, with wrong peer lists, with a huge term, and with a replaced disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError, OptionError, StoreError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.log.io.queue_files import queues, read_units, written_units
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.client.results import Put
from pyspark_dledger.raft.core import Core, CoreConfig, Reply, Send
from pyspark_dledger.raft.messages import AppendRequest, AppendResponse, Request, Response, Role, VoteRequest
from pyspark_dledger.store.files.node_files import write_current_term
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.damage import write_at
from tests.support.groups import SMALL, THREE, eventually, packed
from tests.support.message_nodes import MessageNodes, message_nodes, puts, rows
from tests.support.stores import abandoned, bodies, data_files, opened

_NOT_DONE = (GroupError, UnknownOutcomeError)

Stores = dict[str, MmapFileStore]


def test_member_serves_no_zeros_for_what_a_power_loss_took(tmp_path: Path) -> None:
    body = b"payload " * 750
    with grouped(tmp_path, **SMALL) as (stores, members):
        members.start(*THREE)
        leader = members.leader()
        victim = next(node_id for node_id in THREE if node_id != leader)
        members.append(leader, *[body] * 40)
        members.run(1_000)
        assert stores[victim].committed_index == 39
        assert stores[victim].flushed_index < 0
        lost = stores[victim].get(10)
        members.stop(victim)
        # Of all pages that the system wrote before the power went, one was left out.
        (file,) = data_files(stores[victim])
        write_at(file, (lost.pos + 48 + 4095) // 4096 * 4096, bytes(1024))
        with suppress(StoreError):
            stores[victim] = abandoned(stores[victim])
            members.start(victim)
            members.run(10_000)
            found = stores[victim].get(10)
            assert found.body == body, f"entry 10 is served with {found.body.count(0)} zero bytes"


def test_flipped_term_hides_no_committed_entry(tmp_path: Path) -> None:
    with grouped(tmp_path, **SMALL) as (stores, members):
        members.start(*THREE)
        leader = members.leader()
        lagging, other = (node_id for node_id in THREE if node_id != leader)
        members.append(leader, *bodies(0, 10))
        members.run(1_000)
        assert stores[lagging].committed_index == 9
        last = stores[lagging].get(9)
        members.stop(lagging)
        members.append(leader, *bodies(10, 90))
        members.run(1_000)
        assert stores[other].committed_index == 99
        members.stop(leader, other)
        (file,) = data_files(stores[lagging])
        at = last.pos + 16 + 6  # the second byte from the end of the term
        write_at(file, at, bytes([file.read_bytes()[at] ^ 1]))
        try:
            stores[lagging] = abandoned(stores[lagging])
        except StoreError:
            members.start(leader, other)
        else:
            members.start(lagging, other)
            with suppress(TimeoutError):
                end = stores[members.leader()].ledger_end_index
                assert end >= 99, f"the leader's log ends at {end}, and 99 is committed"
            members.start(leader)
        assert stores[members.leader()].ledger_end_index >= 99


def test_members_with_different_peer_lists_acknowledge_one_entry_for_an_index(tmp_path: Path) -> None:
    def acknowledged(peers: tuple[str, ...], *ids: str) -> int:
        """The index of an entry that these members acknowledge when they run alone; -1 if they do not."""
        members = Members({node_id: stores[node_id] for node_id in peers})
        members.start(*ids)
        members.append(members.leader(), b"entry")
        members.run(1_000)
        return max(response.index for response in members.responses if isinstance(response, AppendResponse))

    five = (*THREE, "n3", "n4")
    with grouped(tmp_path, five) as (stores, _):
        assert acknowledged(THREE, *THREE) == 0
        assert [stores[node_id].committed_index for node_id in THREE] == [0, 0, 0]
        # A member of the three cannot count for a majority of five, and the two others are none.
        with pytest.raises(OptionError, match=r"^peers: expected the members n0, n1, n2 of this store's group"):
            acknowledged(five, "n0", "n3", "n4")
        with pytest.raises(TimeoutError):
            acknowledged(five, "n3", "n4")
        assert acknowledged(THREE, "n1", "n2") == 1


def test_group_elects_after_a_vote_request_with_a_huge_term(tmp_path: Path) -> None:
    """A group may still find one leader in the highest term, but no second one."""
    with grouped(tmp_path) as (stores, members):
        members.start(*THREE)
        leader = members.leader()
        ids = {"group": "g", "local_id": "n0", "leader_id": "n0", "remote_id": "n1"}
        members.receive("n1", VoteRequest(**ids, term=2**62, ledger_end_index=-1, ledger_end_term=-1))
        members.run(3_000)
        for _ in range(2):
            members.start(*THREE)
            with suppress(TimeoutError):
                leader = members.leader()
                continue
            pytest.fail(f"nobody leads after {leader}, in term {stores['n1'].curr_term}")


def test_follower_with_expired_front_and_conflicting_tail_catches_up(tmp_path: Path) -> None:
    with grouped(tmp_path, data_file_size=4096) as (stores, members):
        for node_id, store in stores.items():
            # 32 entries fill two files. n0 led, and has two more, which begin a file.
            store.append_as_leader([b"x" * 200] * (34 if node_id == "n0" else 32), 1)
            store.flush()
            store.update_committed_index(1, 31)
            store.save_term(1, "n0")
        stores["n0"].delete_expired(time.time() + 1, force=False)
        members.start("n1", "n2")
        leader = members.leader()
        for number in range(40):
            members.append(leader, b"%d" % number)
        members.start("n0")
        members.run(60_000)
        ends = [(store.ledger_end_index, store.committed_index) for store in stores.values()]
    assert ends[1] == ends[2] == (71, 71)
    assert ends[0] == ends[1]


@contextmanager
def grouped(folder: Path, ids: Sequence[str] = THREE, **config: Any) -> Iterator[tuple[Stores, Members]]:
    """Open stores of members, and a group of them on a clock of the test: nothing depends on the machine."""
    stores = {node_id: opened(folder, self_id=node_id, **config) for node_id in ids}
    try:
        yield stores, Members(stores)
    finally:
        for store in stores.values():
            store.shutdown()


class Members:
    """Cores of a group over real stores, connected without a network, on a clock that only `run` moves."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.responses: list[Response] = []
        """To clients."""
        self._cores: dict[str, Core] = {}
        self._now = 0

    def start(self, *ids: str) -> None:
        """Start members, also again."""
        times = {"heart_beat_time_interval_ms": 200, "min_vote_interval_ms": 20, "max_vote_interval_ms": 60}
        for node_id in ids:
            config = CoreConfig(group="g", self_id=node_id, peers=tuple(self._stores), **times)
            core = self._cores[node_id] = Core(config, self._stores[node_id], Random(node_id), self._now)
            for peer_id in self._stores:
                core.set_peer_binary(peer_id, True)

    def stop(self, *ids: str) -> None:
        for node_id in ids:
            del self._cores[node_id]

    def leader(self) -> str:
        for _ in range(1000):
            self.run(10)
            for node_id, core in self._cores.items():
                if core.role is Role.LEADER:
                    return node_id
        raise TimeoutError("no leader within 10 s")

    def append(self, leader: str, *new: bytes) -> None:
        self.receive(leader, AppendRequest(group="g", remote_id=leader, bodies=packed(*new)))

    def receive(self, node_id: str, request: Request) -> None:
        """Hand over a request of a client."""
        self._cores[node_id].handle(request, "client", self._now)
        self._deliver()

    def run(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 10):
            self._now += 10
            for core in self._cores.values():
                core.tick(self._now)
            self._deliver()

    def _deliver(self) -> None:
        """Hand over all messages, and those that come of them."""
        while effects := [(node_id, effect) for node_id, core in self._cores.items() for effect in core.drain()]:
            for node_id, effect in effects:
                if isinstance(effect, Reply) and effect.token == "client":
                    self.responses.append(effect.response)
                elif isinstance(effect, Reply):
                    sender, token = effect.token
                    self._cores[sender].handle_response(token, effect.response, self._now)
                elif isinstance(effect, Send) and effect.peer_id in self._cores:
                    self._cores[effect.peer_id].handle(effect.request, (node_id, effect.token), self._now)
                elif isinstance(effect, Send):
                    self._cores[node_id].handle_response(effect.token, None, self._now)


class Replaced(NamedTuple):
    """A group that leads with a replaced member, and acknowledged messages of two topics that have expired."""

    group: MessageNodes
    client: Client
    resent: list[Put]
    quiet: list[Put]


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaced]:
    """The steps of "A member that has lost its disk" in docs/operations.md."""
    folder = tmp_path_factory.mktemp("replaced")
    small = {"data_file_size": 1 << 16, "index_file_size": 32 * 1024}
    with message_nodes(folder, 3, store_options=small) as group, dl.connect("g", group.peers) as client:
        leader = group.ready_leader()
        resent = list(client.put_messages(_messages("Resent", 0, 40)))
        quiet = list(client.put_messages(_messages("Quiet", 0, 40)))
        client.put_messages(puts(rows(300, size=1000), job="traffic"))

        def is_level() -> bool:
            found = [group.status(node_id) for node_id in group.ids]
            names = ("endIndex", "committedIndex", "flushedIndex")
            return len({row[name] for row in found for name in names}) == 1

        eventually(is_level)
        # A member keeps files whose messages are not in its queues yet.
        for node in group.nodes.values():
            eventually(lambda node=node: node.store.delete_expired(time.time() + 9, force=False) > 0)
        new = next(node_id for node_id in group.ids if node_id != leader)
        group.stop(new)
        term = max(group.status(node_id)["term"] for node_id in group.nodes)
        shutil.rmtree(group.root(new))
        (group.root(new) / f"dledger-{new}").mkdir(parents=True)
        write_current_term(group.root(new) / f"dledger-{new}", term + 1, None)
        group.start(new)
        eventually(lambda: group.status(new)["committedIndex"] == group.status(leader)["endIndex"])
        for _ in range(50):
            with suppress(*_NOT_DONE):
                client.transfer(new)
            if group.ready_leader() == new:
                break
            time.sleep(0.2)
        assert group.status(new)["beginIndex"] > 80
        yield Replaced(group, client, resent, quiet)


def _messages(topic: str, first: int, count: int) -> Bodies:
    return puts(rows(count, first, topic=topic), queues=1, job=f"{topic}{first}")


def test_replaced_member_that_leads_appends_no_message_twice(replaced: Replaced) -> None:
    again = list(replaced.client.put_messages(_messages("Resent", 0, 40)))
    assert [put.index for put in again] == [put.index for put in replaced.resent], (
        f"messages 0 to 39 are appended a second time, at {again[0].index} to {again[-1].index}"
    )


def test_queues_continue_on_a_replaced_member_that_leads(replaced: Replaced) -> None:
    new = list(replaced.client.put_messages(_messages("Quiet", 100, 2)))
    assert min(put.queue_offset for put in new) >= len(replaced.quiet), (
        f"new messages have queue offsets {[put.queue_offset for put in new]}"
    )
    entries = {put.pos + 48 for put in new}
    eventually(lambda: all(entries <= _queued(replaced.group.root(node_id)) for node_id in replaced.group.ids))


def _queued(root: Path) -> set[int]:
    """Where the messages of topic Quiet stand in the log, by the ConsumeQueues of a member."""
    files = [file for queue in queues(root) if queue.topic == "Quiet" for file in queue.files]
    parts = [part for file in files for part in read_units(file, 0, written_units(file))]
    return {pos for part in parts for pos in part["commitLogOffset"].tolist()}
