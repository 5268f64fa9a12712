"""Entries of an earlier term are committed after an election, without another append."""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.format.codec import MEMBERS, NOOP
from pyspark_dledger.raft.core import Core
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import PushRequest, PushType, Role
from pyspark_dledger.store.files.node_files import load_member_state
from pyspark_dledger.store.memory_store import MemoryStore
from tests.raft.test_core import Group
from tests.simulation.world import Call
from tests.support.groups import eventually, nodes
from tests.support.one_core import OneCore, filled, pushes, respond_push


def after_a_crash(*, is_java: bool = False) -> Group:
    """A group of three: the leader of term 0 crashed after it had pushed an entry to n1 only; n1 leads next."""
    group = Group(3, is_java=is_java)
    leader = group.elect(0)
    group.appended(leader, b"first")
    group.until(lambda: all(node.store.committed_index == 0 for node in group.nodes))

    def only_n1(call: Call) -> bool:
        is_push = isinstance(call.request, PushRequest) and call.request.type is PushType.APPEND
        return call.target.number == 1 if is_push else not isinstance(call.request, PushRequest)

    group.world.filter = only_n1
    group.append(leader, b"second")
    group.until(lambda: group.nodes[1].store.ledger_end_index == 1)
    assert group.nodes[1].store.committed_index == 0
    leader.stop("crash")
    group.world.run(100)  # the push to n2 is lost
    group.world.filter = lambda _: True
    group.until(lambda: group.role(group.nodes[1]) is Role.LEADER, 60_000)
    return group


def test_the_committed_index_reaches_the_end_without_an_append() -> None:
    group = after_a_crash()
    survivors = group.nodes[1:]
    group.until(lambda: all(node.store.committed_index == 2 for node in survivors))
    for node in survivors:
        assert [node.store.get(index).channel for index in range(3)] == [0, 0, NOOP]
        assert node.store.get(2).body == b""


def test_a_group_with_java_members_gets_no_noop() -> None:
    group = after_a_crash(is_java=True)
    group.world.run(20_000)
    assert [node.store.ledger_end_index for node in group.nodes[1:]] == [1, 1]
    assert group.nodes[1].store.committed_index == 0


def leading(core: OneCore) -> list[int]:
    """The channels of the entries that a new leader has appended after one entry of an earlier term."""
    core.lead()
    core.tick(50)
    store = core.store
    return [store.get(index).channel for index in range(1, store.ledger_end_index + 1)]


def test_a_member_that_never_said_hello_may_be_java() -> None:
    core = OneCore(filled(1, saved=2))
    core.core.set_peer_binary("n1", True, True)
    assert leading(core) == []
    core.core.set_peer_binary("n2", True, False)
    core.tick(50)
    assert core.store.ledger_end_index == 0
    core.core.set_peer_binary("n2", True, True)
    core.tick(50)
    assert core.store.get(1).channel == NOOP


def test_members_that_take_control_entries_are_remembered() -> None:
    store = filled(1, saved=2)
    for is_java in (False, True):
        core = OneCore(store)
        core.core.set_peer_binary("n1", True, True)
        core.core.set_peer_binary("n2", not is_java, not is_java)
    assert OneCore(store).core.members.not_taking_controls == ["n2"]
    core = OneCore(store)
    core.core.set_peer_binary("n2", True, True)
    assert leading(OneCore(store)) == [NOOP]


def test_an_election_with_a_committed_log_appends_nothing() -> None:
    for store in (filled(1, saved=2, committed=0), MemoryStore()):
        core = OneCore(store)
        for peer in ("n1", "n2"):
            core.core.set_peer_binary(peer, True, True)
        core.lead()
        core.tick(2000)
        assert store.ledger_end_index in (0, -1)


def with_list(*voters: str) -> OneCore:
    """A leader whose log ends with a list of members of an earlier term."""
    core = OneCore(filled(1, saved=2, committed=0))
    for peer in ("n1", "n2"):
        core.core.set_peer_binary(peer, True, True)
    body = MemberList(1, 2, dict.fromkeys(voters, "a:1")).body()
    core.core.members.appending(1, 2, body)
    core.store.append_as_leader([body], 2, MEMBERS)
    core.core.members.refresh()
    return core


def test_that_all_of_a_list_have_an_older_entry_does_not_commit_it() -> None:
    """The member that the list removes may have another entry in its place, of a later term, and still be elected."""
    core = with_list("n0", "n1")
    core.core.members.connected("n1", False)  # so that no NOOP follows
    core.lead()
    ((token, _),) = pushes(core, PushType.COMPARE)
    respond_push(core, token, begin=0, end=1)
    core.tick(50)
    assert core.store.committed_index == 0
    core.append(b"own")
    (token, push), *_ = pushes(core, PushType.APPEND)
    assert push.first_index == 2
    respond_push(core, token, begin=0, end=2)
    assert core.store.committed_index == 2


def test_the_only_member_of_a_list_commits_it_with_a_noop() -> None:
    core = with_list("n0")
    core.tick(300)
    assert core.core.role is Role.LEADER
    assert core.store.get(2).channel == NOOP and core.store.committed_index == 2


def test_a_full_disk_delays_the_noop() -> None:
    core = OneCore(filled(1, saved=2))
    for peer in ("n1", "n2"):
        core.core.set_peer_binary(peer, True, True)
    append, core.store.append_as_leader = core.store.append_as_leader, _full  # type: ignore[method-assign, assignment]
    assert leading(core) == []
    core.store.append_as_leader = append  # type: ignore[method-assign]
    core.tick(1100)
    assert core.store.get(1).channel == NOOP
    assert isinstance(core.core, Core) and not core.core.status().problem


def _full(*_: object) -> None:
    raise DiskFullError("full")


def test_nodes_say_that_they_take_control_entries(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as group:
        group.leader()
        eventually(lambda: load_member_state(tmp_path / "dledger-n0"))
