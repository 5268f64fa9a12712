"""What members tell each other at the begin of a connection, the cluster id, and members that do not fit."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.codec import MEMBERS
from pyspark_dledger.raft.hello import MemberHello, read_hello
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import AppendResponse, HeartBeatRequest, HeartBeatResponse, MetadataRequest, Role
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.wire import Rejection, WireConnection, WireError
from pyspark_dledger.store.files.node_files import CLUSTER, load_cluster_id, write_cluster_id
from tests.raft.test_core import Group
from tests.support.groups import SMALL, Nodes, eventually, free_ports, nodes, peers_text
from tests.support.one_core import OneCore, filled

HELLO = MemberHello("n0", "0.1.0", "g", "n0-a:1;n1-b:1", "0f", 1 << 20, 1 << 15)

MISMATCH = (
    "expected one list of peers in a group, found n0-a:1;n1-b:1 at n0 and {} at n1: "
    "correct peers, or set one commonPeers at all members"
)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"group": "h"}, "expected one group in a group, found g at n0 and h at n1: correct group or peers"),
        (
            {"cluster": "1f"},
            (
                "expected one cluster id in a group, found 0f at n0 and 1f at n1: two groups have one name, correct "
                "peers; or members were restored with different --new-group"
            ),
        ),
        (
            {"peers": "n0-a:1"},
            MISMATCH.format("n0-a:1"),
        ),
        (
            {"dataFileSize": 7},
            (
                "expected one data file size in a group, found 1048576 at n0 and 7 at n1: "
                "start an empty member with mappedFileSizeForEntryData of the group"
            ),
        ),
        ({"id": "n2"}, "expected member n1, found n2"),
        ({"cluster": ""}, None),
        ({"dataFileSize": 0, "indexFileSize": 0}, None),
        ({"indexFileSize": 7}, None),
        ({"version": "9"}, None),
        ({"peers": "n1-B.:1;n0-A:1"}, None),
        *(
            ({"peers": text}, MISMATCH.format(text))
            for text in ("n0-a:1;n1-b:2", "n0-a:1;n1-c:1", "?", "n0-a:1;n1-b.c:1")
        ),
    ],
)
def test_a_mismatch_names_both_values(change: dict[str, Any], text: str | None) -> None:
    other = replace(HELLO, **{"id": "n1", **change})
    assert HELLO.mismatch(other, "n1") == text
    assert read_hello(other.text()) == other


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("localhost:1", "127.0.0.1:1", True),
        ("[::1]:1", "LocalHost:01", True),
        ("[0:0:0::1]:1", "127.0.0.1:1", True),
        ("127.0.1.1:1", "127.0.0.1:1", False),
        ("[2001:DB8:0::7]:1", "[2001:db8::7]:1", True),
        ("[::ffff:10.0.0.1]:1", "10.0.0.1:1", True),
        ("[fe80::1%eth0]:1", "[fe80::1%en1]:1", True),
        ("Host.Example.:1", "host.example:1", True),
        ("10.0.0.1:1", "10.0.0.2:1", False),
        ("host.example:1", "10.0.0.1:1", False),
        ("localhost:1", "localhost:2", False),
    ],
)
def test_spellings_of_one_address_are_equal(first: str, second: str, is_same: bool) -> None:
    own, its = replace(HELLO, peers=f"n0-{first};n1-b:1"), replace(HELLO, id="n1", peers=f"n1-b:1;n0-{second}")
    assert (own.mismatch(its) is None) is is_same
    assert (its.mismatch(own) is None) is is_same


# Half of a surrogate pair, which no response could repeat.
JUNK = HELLO.text().replace('"n0"', '"\\ud800"')


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"id":1}', '{"id":"n0"}', '{"dataFileSize":true}', f'"{"x" * 70_000}"', "\ud800", JUNK]
)
def test_a_malformed_hello_is_an_error(text: str) -> None:
    with pytest.raises(WireError, match="expected"):
        read_hello(text)


def test_common_peers_replace_peers_that_differ() -> None:
    own, common = "n0-127.0.0.1:1;n1-127.0.0.1:2", "n1-B.example:2;n0-a.example:1"
    assert NodeConfig("g", "n0", own).compared_peers() == own
    assert NodeConfig("g", "n0", own, common_peers=common).compared_peers() == "n0-a.example:1;n1-b.example:2"
    with pytest.raises(OptionError, match=r"^commonPeers: expected the members n0, n1"):
        NodeConfig("g", "n0", own, common_peers="n0-a:1").compared_peers()


def test_a_member_with_other_common_peers_does_not_start(tmp_path: Path) -> None:
    async def run() -> None:
        peers = peers_text(free_ports(3))
        node = Node(NodeConfig("g", "n0", peers, store=tmp_path, common_peers="n0-a:1;n1-b:1;n4-c:1"))
        with pytest.raises(OptionError, match=r"^commonPeers: expected the members n0, n1, n2, found n0, n1, n4"):
            await node.start()

    asyncio.run(run())


def reasons(caplog: pytest.LogCaptureFixture, event: str) -> set[str]:
    return {each.fields["reason"] for each in caplog.records if each.getMessage() == event}  # type: ignore[attr-defined]


def test_members_may_have_index_files_of_other_sizes(tmp_path: Path) -> None:
    with closing(Nodes(tmp_path, 2)) as group:
        for number, node_id in enumerate(group.ids):
            group.start(node_id, store_options={**SMALL, "index_file_size": 320 << number})
        with closing(group.caller(group.leader())) as caller:
            assert caller.hello().append(*[b"%d" % number for number in range(50)]).code == 200
        eventually(lambda: min(group.status(each)["committedIndex"] for each in group.ids) >= 49)
        for node_id in group.ids:
            assert group.nodes[node_id].store.get(30).body


def test_members_of_other_lists_refuse_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """n1 knows n2, n0 does not: neither gets the other's vote, and both say why."""
    caplog.set_level(logging.WARNING, "pyspark_dledger.node")
    group = Nodes(tmp_path, 3)
    two, three = peers_text(group.ports[:2]), group.peers
    with closing(group):
        group.start("n0", peers=two)
        group.start("n1", peers=three)
        remedy = "correct peers, or set one commonPeers at all members"
        text = f"expected one list of peers in a group, found {two} at n0 and {three} at n1: {remedy}"
        back = f"expected one list of peers in a group, found {three} at n1 and {two} at n0: {remedy}"
        eventually(lambda: {text, back} <= reasons(caplog, "connection refused"))
        assert {group.status(node_id)["role"] for node_id in ("n0", "n1")} == {Role.CANDIDATE.value}
        # The side that connected gets the other's text.
        eventually(lambda: any(text in each for each in reasons(caplog, "peer unreachable")))


def test_two_groups_with_one_name_do_not_mix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyspark_dledger.node")
    with nodes(tmp_path, 2) as group:
        group.leader()
        stores = [node.store for node in group.nodes.values()]
        (cluster,) = eventually(lambda: len(ids := {each.cluster_id for each in stores}) == 1 and "" not in ids and ids)
        assert re.fullmatch("[0-9a-f]{32}", cluster)
        group.stop("n1")
        write_cluster_id(tmp_path / "dledger-n1", "0" * 32)
        group.start("n1")
        eventually(lambda: any("cluster id" in each for each in reasons(caplog, "connection refused")))
        time.sleep(0.3)
        assert group.status("n1")["leaderId"] is None
        group.stop("n1")
        (tmp_path / "dledger-n1" / CLUSTER).unlink()
        group.start("n1")
        group.leader()
        eventually(lambda: group.nodes["n1"].store.cluster_id == cluster)
    assert load_cluster_id(tmp_path / "dledger-n1") == cluster
    (tmp_path / "dledger-n1" / CLUSTER).write_text("nothing\n")
    with pytest.raises(StoreError, match="copy it from another member"):
        load_cluster_id(tmp_path / "dledger-n1")


def test_a_stranger_with_a_hello_is_refused(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, member_secret="of members") as group:
        hello = replace(group.nodes["n1"]._hello(), id="n1")
        for member in (hello.text(), "{}"):
            with closing(group.caller("n0")) as caller:
                caller.wire = WireConnection(member=lambda text=member: text)
                response = caller.call(MetadataRequest(local_id="n1"))
                assert isinstance(response, Rejection) and response.remark.startswith("expected ")
                assert caller.is_closed()


def test_the_cluster_id_is_made_once() -> None:
    group = Group(3)
    first = group.elect(0)
    group.until(lambda: all(node.store.cluster_id for node in group.nodes))
    (cluster,) = {node.store.cluster_id for node in group.nodes}
    first.stop("test")
    group.until(lambda: group.leaders() and group.leaders() != [first])
    first.start()
    group.world.run(10_000)
    assert {node.store.cluster_id for node in group.nodes} == {cluster}


@pytest.mark.parametrize("has_other", [False, True])
def test_no_cluster_id_is_made_unless_all_have_none(has_other: bool) -> None:
    group = Group(3)
    # The id of a leader that stopped before it gave it to others.
    group.nodes[2].store.cluster_id = "0f" if has_other else ""
    for number in (0, 1):
        group.start(number)
    group.until(lambda: group.leaders())
    group.world.run(5000)
    assert [node.store.cluster_id for node in group.nodes[:2]] == ["", ""]
    group.start(2)
    group.until(lambda: all(node.store.cluster_id for node in group.nodes))
    (cluster,) = {node.store.cluster_id for node in group.nodes}
    assert not has_other or cluster == "0f"


def test_no_cluster_id_is_made_before_the_list_of_members_is_committed() -> None:
    """Another leader can have made one, whose members this list lacks."""
    core = OneCore(filled(1, saved=2, committed=0))
    body = MemberList(1, 2, {"n0": "a:1", "n1": "b:1", "n2": "c:1"}).body()
    core.core.members.appending(1, 2, body)
    core.store.append_as_leader([body], 2, MEMBERS)
    core.core.members.refresh()
    for peer in ("n1", "n2"):
        core.core.set_peer_binary(peer, True, True)
    core.lead()
    found = []
    for index in (0, 1):
        core.store.update_committed_index(core.core.term, index)
        for send in core.sent:
            if isinstance(send.request, HeartBeatRequest):
                response = HeartBeatResponse(code=200, term=core.core.term, cluster_id="")
                core.core.handle_response(send.token, response, core.now)
        core.sent.clear()
        core.tick(5000)
        found.append(bool(core.store.cluster_id))
    assert found == [False, True]


def test_no_cluster_id_is_made_with_java_members() -> None:
    group = Group(3, is_java=True)
    group.elect(0)
    group.world.run(5000)
    assert not any(node.store.cluster_id for node in group.nodes)


def test_only_the_leader_of_the_present_term_gives_the_cluster_id() -> None:
    group = Group(3)
    leader = group.elect(0)
    group.until(lambda: len(group.followers()) == 2)
    follower, term = group.nodes[1], leader.store.curr_term
    for node in group.nodes:
        node.store.cluster_id = "0f" if node is leader else ""
    for sender, its_term, code in (("n2", term, 409), ("n0", term - 1, 403), ("n0", term, 200)):
        request = HeartBeatRequest(
            group="g", remote_id="n1", local_id=sender, leader_id=sender, term=its_term, cluster_id="0f"
        )
        response = group.response_of(follower, request)
        assert (response.code, response.cluster_id) == (code, "0f" if code == 200 else None)
        assert follower.store.cluster_id == (response.cluster_id or "")
    assert isinstance(group.appended(leader, b"x"), AppendResponse)
