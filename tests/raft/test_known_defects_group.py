"""Known defects of groups: lost data after a power loss, wrong peer lists, wrong terms and replaced members."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError, GroupError, IndexRangeError, StoreError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.log.io.queue_files import queues, read_units, written_units
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.client.results import Put
from pyspark_dledger.raft.core import Core, CoreConfig, Reply, Send
from pyspark_dledger.raft.messages import AppendRequest, Request, Role, VoteRequest
from pyspark_dledger.store.files.node_files import write_current_term
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.known_defects import DefectShown, should
from tests.support.groups import FASTER, SMALL, THREE, Nodes, eventually, nodes, packed, peers_text
from tests.support.message_nodes import MessageNodes, message_nodes, puts, rows
from tests.support.stores import change, opened

_NOT_DONE = (GroupError, UnknownOutcomeError)


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="after a power loss under flush=async a member trusts index units and serves lost bodies as zeros",
)
def test_member_serves_no_zeros_for_what_a_power_loss_took(tmp_path: Path) -> None:
    body = b"payload " * 750
    with nodes(tmp_path, 3) as group, dl.connect("g", group.peers) as client:
        leader = group.leader()
        victim = next(node_id for node_id in group.ids if node_id != leader)
        # The victim syncs nothing while the test lasts.
        group.stop(victim)
        group.start(victim, store_options={**SMALL, "flush_file_interval_ms": 600_000})
        acknowledged = [client.append(body) for _ in range(40)]
        eventually(lambda: group.status(victim)["endIndex"] == acknowledged[-1].index)
        assert group.status(victim)["flushedIndex"] < acknowledged[0].index
        folder, crashed = tmp_path / f"dledger-{victim}", tmp_path / "crashed"
        shutil.copytree(folder, crashed)
        group.stop(victim)
        # Of all pages that the system wrote before the power went, one was left out.
        lost = acknowledged[10]
        (file,) = (crashed / "data").iterdir()
        change(file, (lost.pos + 48 + 4095) // 4096 * 4096, bytes(1024))
        shutil.rmtree(folder)
        crashed.rename(folder)
        with suppress(DLedgerError):
            group.start(victim)
            eventually(lambda: group.status(victim)["committedIndex"] >= acknowledged[-1].index)
            (found,) = client.read(lost.index, victim, max_bytes=1).entries()
            should(found.body == body, f"entry {lost.index} is served with {found.body.count(0)} zero bytes")


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a flipped bit in the term of its last entry makes a member that lags win an election",
)
def test_flipped_term_hides_no_committed_entry(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, core_options=FASTER, flush="sync") as group:
        lagging, *others = (node_id for node_id in group.ids if node_id != group.leader())
        others.append(group.leader())
        with dl.connect("g", group.peers) as client:
            *_, last = client.append_batch([b"%d" % number for number in range(10)])
            eventually(lambda: group.status(lagging)["committedIndex"] == last.index)
            group.stop(lagging)
            committed = client.append_batch([b"%d" % number for number in range(90)]).last_index
        group.stop()
        (file,) = (tmp_path / f"dledger-{lagging}" / "data").iterdir()
        at = last.pos + 16 + 6  # the second byte from the end of the term
        change(file, at, bytes([file.read_bytes()[at] ^ 1]))
        try:
            group.start(lagging)
        except StoreError:
            pass
        else:
            group.start(others[0])
            with suppress(AssertionError):
                group.leader(20)
            should(not _is_hidden(group, committed), f"the leader has no entry {committed}, which is committed")
        group.start(*(node_id for node_id in others if node_id not in group.nodes))
        group.leader()
        assert not _is_hidden(group, committed)


def _is_hidden(group: Nodes, index: int) -> bool:
    """Whether a leader says that it has no such entry."""
    with dl.connect("g", group.peers, timeout_ms=3000) as client, suppress(GroupError):
        try:
            client.get(index)
        except IndexRangeError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="nothing compares the peer lists of members, so two leaders of one term acknowledge",
)
def test_members_with_different_peer_lists_acknowledge_one_entry_for_an_index(tmp_path: Path) -> None:
    group = Nodes(tmp_path, 5, core_options=FASTER)
    three, five = peers_text(group.ports[:3]), group.peers

    def acknowledged(peers: str, *ids: str) -> tuple[int, bytes] | None:
        """Index and body of an entry that these members acknowledge when they run alone."""
        for node_id in ids:
            with suppress(DLedgerError):
                group.start(node_id, peers=peers)
        body = " ".join(ids).encode()
        own = peers_text({node_id: group.port(node_id) for node_id in ids})
        with dl.connect("g", own) as client, suppress(*_NOT_DONE):
            return client.append(body).index, body
        return None

    with closing(group):
        assert acknowledged(three, "n0", "n1", "n2") is not None
        eventually(lambda: all(group.status(node_id)["committedIndex"] == 0 for node_id in group.nodes))
        group.stop()
        of_five = acknowledged(five, "n0", "n3", "n4")
        group.stop()
        of_three = acknowledged(three, "n1", "n2")
    should(
        of_five is None or of_three is None or of_five[0] != of_three[0],
        f"both {of_five} and {of_three} are acknowledged",
    )


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="members adopt the term of any vote request, and after the highest term there is none to elect in",
)
def test_group_elects_after_a_vote_request_with_a_huge_term(tmp_path: Path) -> None:
    """On a clock of the test: a real group may still find one leader in the highest term, but no second one."""
    stores = {node_id: opened(tmp_path, self_id=node_id) for node_id in THREE}
    members = Members(stores)
    members.start(*THREE)
    leader = members.leader()
    ids = {"group": "g", "local_id": "n0", "leader_id": "n0", "remote_id": "n1"}
    members.receive("n1", VoteRequest(**ids, term=2**62, ledger_end_index=-1, ledger_end_term=-1))
    members.run(3_000)
    for _ in range(2):
        members = Members(stores)
        members.start(*THREE)
        with suppress(TimeoutError):
            leader = members.leader()
            continue
        should(False, f"nobody leads after {leader}, in term {stores['n1'].curr_term}")
    for store in stores.values():
        store.shutdown()


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a leader never finds a common entry with a follower whose log begins with a conflicting one",
)
def test_follower_with_expired_front_and_conflicting_tail_catches_up(tmp_path: Path) -> None:
    """On a clock of the test: in a real group the follower would have to be cut off while its files expire."""
    ids = ("n0", "n1", "n2")
    stores = {node_id: opened(tmp_path, self_id=node_id, data_file_size=4096) for node_id in ids}
    for node_id, store in stores.items():
        # 32 entries fill two files. n0 led, and has two more, which begin a file.
        store.append_as_leader([b"x" * 200] * (34 if node_id == "n0" else 32), 1)
        store.flush()
        store.update_committed_index(1, 31)
        store.save_term(1, "n0")
    stores["n0"].delete_expired(time.time() + 1, force=False)
    members = Members(stores)
    members.start("n1", "n2")
    leader = members.leader()
    for number in range(40):
        members.append(leader, b"%d" % number)
    members.start("n0")
    members.run(60_000)
    ends = [(store.ledger_end_index, store.committed_index) for store in stores.values()]
    for store in stores.values():
        store.shutdown()
    assert ends[1] == ends[2] == (71, 71)
    should(ends[0] == ends[1], f"after a minute the follower's end and committed index are {ends[0]}, not {ends[1]}")


class Members:
    """Cores of a group over real stores, connected without a network, on a clock that only `run` moves."""

    def __init__(self, stores: Mapping[str, MmapFileStore]) -> None:
        self._stores = stores
        self._cores: dict[str, Core] = {}
        self._now = 0

    def start(self, *ids: str) -> None:
        times = {"heart_beat_time_interval_ms": 200, "min_vote_interval_ms": 20, "max_vote_interval_ms": 60}
        for node_id in ids:
            config = CoreConfig(group="g", self_id=node_id, peers=tuple(self._stores), **times)
            self._cores[node_id] = Core(config, self._stores[node_id], Random(node_id), self._now)

    def leader(self) -> str:
        for _ in range(1000):
            self.run(10)
            for node_id, core in self._cores.items():
                if core.role is Role.LEADER:
                    return node_id
        raise TimeoutError("no leader within 10 s")

    def append(self, leader: str, body: bytes) -> None:
        self.receive(leader, AppendRequest(group="g", remote_id=leader, bodies=packed(body)))

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
                if isinstance(effect, Reply) and effect.token != "client":
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
        for node in group.nodes.values():
            node.store.delete_expired(time.time() + 9, force=False)
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
        yield Replaced(group, client, resent, quiet)


def _messages(topic: str, first: int, count: int) -> Bodies:
    return puts(rows(count, first, topic=topic), queues=1, job=f"{topic}{first}")


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a replaced member gets only the log, so it leads without the identities of messages that have expired",
)
def test_replaced_member_that_leads_appends_no_message_twice(replaced: Replaced) -> None:
    again = list(replaced.client.put_messages(_messages("Resent", 0, 40)))
    should(
        [put.index for put in again] == [put.index for put in replaced.resent],
        f"messages 0 to 39 are appended a second time, at {again[0].index} to {again[-1].index}",
    )


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a replaced member gets only the log, so it leads without the ends of queues whose messages have expired",
)
def test_queues_continue_on_a_replaced_member_that_leads(replaced: Replaced) -> None:
    new = list(replaced.client.put_messages(_messages("Quiet", 100, 2)))
    should(
        min(put.queue_offset for put in new) >= len(replaced.quiet),
        f"new messages have queue offsets {[put.queue_offset for put in new]}",
    )
    entries = {put.pos + 48 for put in new}
    eventually(lambda: all(entries <= _queued(replaced.group.root(node_id)) for node_id in replaced.group.ids))


def _queued(root: Path) -> set[int]:
    """Where the messages of topic Quiet stand in the log, by the ConsumeQueues of a member."""
    files = [file for queue in queues(root) if queue.topic == "Quiet" for file in queue.files]
    parts = [part for file in files for part in read_units(file, 0, written_units(file))]
    return {pos for part in parts for pos in part["commitLogOffset"].tolist()}
