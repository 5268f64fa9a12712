"""Members of a running group are added, removed and replaced."""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import pyspark_dledger as dledger
import pyspark_dledger.raft.client as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, OptionError, StoreError, UnknownOutcomeError
from pyspark_dledger.format.codec import MEMBERS
from pyspark_dledger.format.state_files import CurrentTerm, encode_state_file
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    MembersRequest,
    MembersResponse,
    PushType,
    Role,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.rocketmq.backup import backup
from pyspark_dledger.rocketmq.jobs.store_files import write_current_term
from pyspark_dledger.store.files.node_files import load_members, write_members
from tests.support.groups import FASTER, HOST, Nodes, data_of, eventually, free_ports, nodes, remove
from tests.support.one_core import SIZE, OneCore, entry, filled, problem_of
from tests.support.scrapes import reason, scrape


def start_new(group: Nodes, node_id: str) -> tuple[str, str]:
    """Start a node that is no member yet. Returns its peers and address."""
    (port,) = free_ports(1)
    peers = f"{group.peers};{node_id}-{HOST}:{port}"
    group.start(node_id, peers=peers, join=True)
    return peers, f"{HOST}:{port}"


def problem(client: dl.Client, node_id: str) -> str:
    """The problem of a member; none while it is not reached."""
    with suppress(GroupError):
        return client.status(node_id).problem
    return ""


def voters(client: dl.Client) -> list[str]:
    eventually(lambda: client.members().is_final)
    return sorted(client.members().voters)


def test_a_dead_member_is_replaced(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, core_options=FASTER) as group, dl.connect("g", group.peers, timeout_ms=2000) as client:
        bodies = [b"%d" % number for number in range(5)]
        client.append_batch(bodies)
        leader = group.leader()
        gone, stays = (node_id for node_id in group.ids if node_id != leader)
        eventually(lambda: all(group.status(each)["endIndex"] == 4 for each in group.ids))
        group.stop(gone)
        peers, address = start_new(group, "n3")
        found = client.replace_member(gone, "n3", address)
        assert (list(found.learners), found.leaving) == (["n3"], gone)
        assert client.replace_member(gone, "n3", address).index >= found.index
        expected = sorted([leader, stays, "n3"])
        assert voters(client) == expected
        # Members start with their old lists of peers; the log decides.
        group.stop(stays)
        group.start(stays)
        group.stop("n3")
        group.start("n3", peers=peers)
        leader = group.leader()
        client.append(b"after")
        end = client.status(leader).end_index
        eventually(lambda: {group.status(each)["committedIndex"] for each in expected} == {end})
        assert load_members(tmp_path / f"dledger-{stays}") == tuple(expected)
        rows = [entry for entry in client.read(0).entries() if not entry.channel]
        assert [entry.body for entry in rows] == [*bodies, b"after"]
    assert data_of(tmp_path, "n3") == data_of(tmp_path, stays)
    batches = dledger.open_log(str(tmp_path / "dledger-n3")).scan(columns=["kind"])
    kinds = [row["kind"] for batch in batches for row in batch.to_pylist()]
    assert kinds.count("config") >= 3 and kinds.count("entry") == 6


def replace(group: Nodes, client: dl.Client, gone: str, new: str) -> str:
    """Replace a member by a new one, then stop it. Returns the new one's peers."""
    peers, address = start_new(group, new)
    eventually(lambda: replaced(client, gone, new, address))
    eventually(lambda: appended(client, b"x") and client.members().is_final)
    group.stop(gone)
    return peers


def replaced(client: dl.Client, gone: str, new: str, address: str) -> bool:
    with suppress(GroupError):
        return client.replace_member(gone, new, address).index >= 0
    return False


def is_level(group: Nodes, client: dl.Client, node_id: str) -> bool:
    ends = [group.status(each)["committedIndex"] for each in group.nodes]
    return appended(client, b"y") and group.status(node_id)["committedIndex"] >= max(ends)


def transferred(client: dl.Client, node_id: str) -> bool:
    """Whether a member leads now. One that started after the first election joins for a moment, and cannot."""
    try:
        client.transfer(node_id)
    except GroupError:
        return False
    return True


@pytest.mark.parametrize("is_given_present_peers", [False, True])
def test_members_catch_up_although_all_others_were_replaced_since_their_lists(
    tmp_path: Path, is_given_present_peers: bool
) -> None:
    """One slept through it, one loses its disk, one joins: both meet the old lists in the log."""
    with nodes(tmp_path, 3, core_options=FASTER) as group, dl.connect("g", group.peers, timeout_ms=2000) as client:
        client.append_batch([b"%d" % number for number in range(20)])
        sleeper, *others = "n2", "n0", "n1"
        if group.leader() == sleeper:
            eventually(lambda: transferred(client, "n0"))
        eventually(lambda: group.status(sleeper)["endIndex"] == 19)
        group.stop(sleeper)
        peers = {new: replace(group, client, gone, new) for gone, new in zip(others, ("n3", "n4"), strict=True)}
        present = f"{group.peers.split(';')[2]};{peers['n4'].split(';')[-1]}"
        if is_given_present_peers:
            with pytest.raises(OptionError, match="while this one was down, add --join"):
                group.start("n2", peers=present)
            group.start("n2", peers=present, join=True)
        else:
            group.start("n2")
        eventually(lambda: is_level(group, client, sleeper))
        assert voters(client) == [sleeper, "n3", "n4"]
        peers[sleeper] = group.peers
        replaced_disk = next(each for each in ("n3", "n4") if each != group.leader())
        group.stop(replaced_disk)
        shutil.rmtree(tmp_path / f"dledger-{replaced_disk}")
        group.start(replaced_disk, peers=";".join({*";".join(peers.values()).split(";")}), join=True)
        eventually(lambda: is_level(group, client, replaced_disk))
        _, address = start_new(group, "n5")
        client.add_member("n5", address)
        eventually(lambda: is_level(group, client, "n5") and "n5" in client.members().voters)


def test_a_group_of_one_grows_and_its_leader_leaves(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options=FASTER) as group, dl.connect("g", group.peers, timeout_ms=2000) as client:
        client.append(b"one")
        for node_id in ("n1", "n2"):
            _, address = start_new(group, node_id)
            client.add_member(node_id, address)
            eventually(lambda: client.members().is_final)
        assert voters(client) == ["n0", "n1", "n2"]
        client.remove_member("n0")
        eventually(lambda: {group.status(each)["leaderId"] for each in ("n1", "n2")} <= {"n1", "n2"})
        assert voters(client) == ["n1", "n2"]
        client.append(b"two")
        assert group.status("n0")["role"] == "CANDIDATE"


def test_changes_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, core_options=FASTER) as group, dl.connect("g", group.peers, max_retries=2) as client:
        client.append(b"x")
        for change, code, text in (
            (lambda: client.add_member("n1", f"{HOST}:1"), 411, "n1 is a member already"),
            (lambda: client.add_member("n5", group.peers.split("-")[-1]), 411, "another member has the address"),
            (lambda: client.add_member("n 5", f"{HOST}:1"), 411, "n 5"),
            (lambda: client.replace_member("n7", "n5", f"{HOST}:1"), 401, "'n7' never was a member of n0, n1"),
        ):
            with pytest.raises(GroupError, match=text) as caught:
                change()
            assert caught.value.code == code
        # Another change is under way: its member never comes.
        client.add_member("n5", f"{HOST}:{free_ports(1)[0]}")
        with pytest.raises(GroupError, match=r"another change is under way .n5 is joining.*give it up with remove n5"):
            client.add_member("n6", f"{HOST}:1")
        client.remove_member("n5")
        assert voters(client) == ["n0", "n1"]


def test_a_group_with_a_member_that_may_be_java_keeps_its_members(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, core_options=FASTER) as group, dl.connect("g", group.peers, max_retries=2) as client:
        client.append(b"x")
        leader = group.leader()
        group.stop()
        others = [node_id for node_id in group.ids if node_id != leader]
        for node_id in group.ids:
            node_dir = tmp_path / f"dledger-{node_id}"
            write_members(node_dir, load_members(node_dir))
        group.start(leader, others[0])
        client.append(b"y")
        with pytest.raises(GroupError, match=f"{others[1]} may be Java members") as caught:
            client.remove_member(others[1])
        assert caught.value.code == ResponseCode.UNSUPPORTED


def test_members_given_by_force_are_appended_to_the_log(tmp_path: Path) -> None:
    """After a change by the log, a group that lost its majority continues with the members that an operator gives."""
    with nodes(tmp_path, 2, core_options=FASTER) as group, dl.connect("g", group.peers, timeout_ms=2000) as client:
        client.append(b"one")
        _, address = start_new(group, "n2")
        client.add_member("n2", address)
        assert voters(client) == ["n0", "n1", "n2"]
        before = client.members().index
        group.stop()
        own = group.peers.split(";")[0]
        group.start("n0", peers=own, change_members=True)
        assert voters(client) == ["n0"]
        eventually(lambda: client.members().index > before)
        client.append(b"two")
        group.stop("n0")
        group.start("n0")
        assert voters(client) == ["n0"]


LISTED = MemberList(5, 2, {"n0": "a:1", "n1": "b:1"})


def reset_at_9(core: OneCore, members: str | None) -> int:
    """The code of a TRUNCATE that removes all entries; the log then begins with entry 9."""
    core.core.set_peer_binary("n1", True, True)
    core.follow(3)
    assert core.push(PushType.TRUNCATE, entry(9, 3), members=members) is None
    core.confirm_expired()
    (response,) = core.responses
    return response.code


def test_a_store_of_another_group_is_refused_unless_the_group_gets_another_name(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, core_options=FASTER) as group:
        group.leader()
        group.stop()
        with pytest.raises(OptionError, match="group: expected g, whose member this store is of, found y: use that"):
            group.start("n0", group="y")
        group.start(group="y", change_members=True)
        group.leader()
        group.stop()
        with pytest.raises(OptionError, match="group: expected y"):
            group.start("n0")
        group.start("n0", group="y")


def test_the_store_of_a_group_of_one_may_get_another_group(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options=FASTER) as group:
        group.stop()
        group.start(group="y")


def test_a_reset_log_has_the_list_of_its_leader_before_its_begin() -> None:
    core = OneCore(filled(1, 1, saved=3))
    assert reset_at_9(core, LISTED.told(8)) == ResponseCode.SUCCESS
    assert core.core.members.current == LISTED
    assert OneCore(core.store).core.members.current == LISTED


@pytest.mark.parametrize("index", [-1, 5])
def test_earlier_lists_of_a_reset_log_end(index: int) -> None:
    """They can have been rolled back in the group."""
    core = OneCore(filled(1, saved=3))
    core.core.members.appending(1, 1, LISTED.body())
    core.store.append_as_leader([LISTED.body()], 1, MEMBERS)
    core.core.members.refresh()
    assert core.core.members.current.index == 1
    first = MemberList(-1, -1, dict.fromkeys(("n0", "n1", "n2"), ""))
    assert reset_at_9(core, (first if index < 0 else LISTED).told(8)) == ResponseCode.SUCCESS
    for members in (core.core.members, OneCore(core.store).core.members):
        assert members.current.index == index


def test_the_lists_of_a_log_count_until_its_reset_is_complete() -> None:
    """The list is saved before: a crash can come in between."""
    core = OneCore(filled(1, 1, saved=3))
    core.core.members.resetting(9, LISTED)
    again = OneCore(core.store)
    assert again.core.members.current.index == -1
    core.store.reset(9, 9 * SIZE)
    assert OneCore(core.store).core.members.current == LISTED


@pytest.mark.parametrize("members", ["{", LISTED._replace(index=9).told(9)])
def test_a_reset_with_a_list_that_is_not_of_before_is_rejected(members: str) -> None:
    core = OneCore(filled(1, 1, saved=3))
    core.core.set_peer_binary("n1", True, True)
    core.follow(3)
    assert core.code(PushType.TRUNCATE, entry(9, 3), members=members) == ResponseCode.INCONSISTENT_STATE
    assert core.store.ledger_end_index == 1 and "expected" in problem_of(core)


def test_a_stranger_is_followed_and_elected_only_after_its_hello() -> None:
    """It may be in a later list of the log, which it has then pushed to nobody who tells."""
    core = OneCore(filled(1, saved=2))
    vote = {"leader_id": "n7", "term": 3, "ledger_end_index": 5, "ledger_end_term": 2}
    for code, result in (
        (ResponseCode.UNKNOWN_MEMBER, VoteResult.REJECT_UNKNOWN_LEADER),
        (ResponseCode.SUCCESS, VoteResult.ACCEPT),
    ):
        response = core.request(VoteRequest(**vote))
        assert isinstance(response, VoteResponse) and response.vote_result is result
        response = core.request(HeartBeatRequest(leader_id="n7", term=3))
        assert response is not None and response.code == code
        core.core.heard("n7", "", core.now, is_rejection=False)
    assert core.core.leader_id == "n7"


def test_what_has_expired_counts_as_committed_after_a_restart() -> None:
    store = filled(1, saved=2)
    store.reset(9, 9 * SIZE)
    store.append_as_leader([b"x"], 2)
    assert store.committed_index == -1
    members = OneCore(store).core.members
    assert json.loads(members.shown(members.committed))["committed"] == 8


def test_other_members_hear_only_committed_lists() -> None:
    core = OneCore(filled(1, saved=2, committed=0))
    core.core.set_peer_binary("n1", True, True)
    core.core.set_peer_binary("n2", True, True)
    core.lead()
    body = MemberList(1, 2, {"n0": "a:1", "n1": "b:1"}).body()
    core.core.members.appending(1, 2, body)
    core.store.append_as_leader([body], 2, MEMBERS)
    core.core.members.refresh()
    assert core.core.members.current.index == 1
    assert core.core.members.told_by_log == ""
    response = core.request(MembersRequest())
    assert isinstance(response, MembersResponse)
    assert json.loads(response.members or "")["index"] == 1
    core.store.update_committed_index(2, 1)
    assert json.loads(core.core.members.told_by_log)["index"] == 1


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_voter_that_a_list_leaves_out_leads_until_it_is_committed(is_committed: bool) -> None:
    """The log of one with the list can be too short, and the others can need the vote of this one."""
    core = OneCore(filled(1, saved=2, committed=0))
    body = MemberList(1, 2, {"n1": "b:1", "n2": "c:1"}).body()
    core.core.members.appending(1, 2, body)
    core.store.append_as_leader([body], 2, MEMBERS)
    if is_committed:
        core.store.update_committed_index(2, 1)
    core.core.members.refresh()
    core.tick(300)
    votes = [send for send in core.sent if isinstance(send.request, VoteRequest)]
    assert [send.peer_id for send in votes] == ([] if is_committed else ["n1", "n2"])
    for send, role in zip(votes, (Role.CANDIDATE, Role.LEADER), strict=False):
        accepted = VoteResponse(vote_result=VoteResult.ACCEPT, term=core.core.term)
        core.core.handle_response(send.token, accepted, core.now)
        assert core.core.role is role


@pytest.mark.parametrize("returns", [True, False])
def test_a_list_whose_append_failed_counts_if_its_entry_is_in_the_log_after_a_restart(returns: bool) -> None:
    core = OneCore(filled(1, saved=2))
    body = MemberList(1, 2, {"n0": "a:1", "n1": "b:1"}).body()
    core.core.members.appending(1, 2, body)
    core.core.members.truncated()
    core.core.members.refresh()
    assert core.core.members.current.index == -1
    core.store.members_hook = lambda *_: None
    core.store.append_as_leader([body if returns else b"another entry of that term"], 2, MEMBERS if returns else 0)
    expected = 1 if returns else -1
    assert OneCore(core.store).core.members.current.index == expected
    assert OneCore(core.store).core.members.current.index == expected


def test_of_two_lists_whose_appends_failed_that_of_the_log_counts() -> None:
    core = OneCore(filled(1, saved=2))
    first, second = (MemberList(1, 2, {"n0": "a:1", name: "b:1"}) for name in ("n1", "n2"))
    for each in (first, second):
        core.core.members.appending(1, 2, each.body())
        core.core.members.truncated()
        core.core.members.refresh()
    core.store.members_hook = lambda *_: None
    core.store.append_as_leader([first.body()], 2, MEMBERS)
    assert OneCore(core.store).core.members.current == first


def test_a_list_whose_append_failed_ends_before_its_index_expires() -> None:
    core = OneCore(filled(1, saved=2))
    core.core.members.appending(1, 2, MemberList(1, 2, {"n0": "a:1"}).body())
    core.core.members.truncated()
    core.core.members.refresh()
    core.follow(3)
    assert core.code(PushType.COMPARE, entry(0, 1)) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(1, 3), entry(2, 3), commit_index=2) == ResponseCode.SUCCESS
    del core.store._entries[:2]
    assert len(OneCore(core.store).core.members.current.voters) == 3


def test_an_entry_stays_until_the_file_of_members_has_no_other_list_of_its_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the entry, the list would count as an expired one after a restart."""
    core = OneCore(filled(1, saved=2))
    core.core.members.appending(1, 2, MemberList(1, 2, {"n0": "a:1"}).body())
    core.core.members.truncated()
    core.core.members.refresh()
    core.follow(3)
    assert core.code(PushType.COMPARE, entry(0, 1)) == ResponseCode.SUCCESS

    def fail(*_: object) -> None:
        raise StoreError("the disk failed")

    monkeypatch.setattr(core.store, "save_member_ids", fail)
    assert core.code(PushType.APPEND, entry(1, 3), entry(2, 3), commit_index=2) == ResponseCode.SUCCESS
    assert core.store.keeps_from == 1
    assert OneCore(core.store).store.keeps_from == 1
    monkeypatch.undo()
    assert core.code(PushType.APPEND, entry(3, 3), commit_index=3) == ResponseCode.SUCCESS
    assert core.store.keeps_from == sys.maxsize


def test_a_leader_that_no_list_has_is_asked_where_it_says_it_is() -> None:
    """Without its address it could not confirm that entries have expired, and this member would stay behind."""
    core = OneCore(filled(1, 1, saved=3))
    core.core.heard("n7", "", core.now, is_rejection=False)
    for _ in range(2):
        core.request(HeartBeatRequest(leader_id="n7", term=3))
    assert core.push(PushType.TRUNCATE, entry(9, 3), leader="n7", members=LISTED.told(8, "h:7")) is None
    assert core.core.members.known_addresses["n7"] == "h:7"
    assert core.sent[-1].peer_id == "n7"


def test_an_address_of_the_list_is_not_replaced_by_what_a_leader_says() -> None:
    core = OneCore(filled(1, 1, saved=3))
    core.core.members.led_from("n0", "h:7")
    assert core.core.members.known_addresses["n0"] == "127.0.0.1:1"


def test_a_list_whose_entry_is_damaged_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    core = OneCore(filled(1, saved=2))
    found = MemberList(1, 2, {"n0": "a:1", "n1": "b:1"})
    core.core.members.appending(1, 2, found.body())
    core.store.append_as_leader([found.body()], 2, MEMBERS)

    def damaged(_: int) -> int:
        raise StoreError("entry 1 is damaged")

    monkeypatch.setattr(core.store, "term_at", damaged)
    core.core.members.refresh()
    assert core.core.members.current == found


def test_a_list_of_the_log_counts_although_the_file_of_members_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = OneCore(filled(1, saved=2))
    found = MemberList(1, 2, {f"n{number}": f"a:{number + 1}" for number in range(5)})
    core.core.members.appending(1, 2, found.body())

    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(core.store, "save_member_ids", fail)
    monkeypatch.setattr(core.store, "members_hook", lambda *_: None)
    core.store.append_as_leader([found.body()], 2, MEMBERS)
    core.core.members.refresh()
    assert (core.core.members.current, core.core._member.quorum) == (found, 3)
    monkeypatch.undo()
    core.core._member.commit(1)
    assert core.store.member_ids == tuple(found.voters)


def test_the_only_voter_that_others_left_acknowledges_what_its_disk_has() -> None:
    core = OneCore(filled(1, saved=2, committed=0), is_sync_alone=True)
    core.lead()
    core.append(b"others will have it")
    assert core.core.committed_index == 0 and core.core._member.durable_index == 1
    found = MemberList(2, core.core.term, {"n0": "a:1"})
    core.core.members.appending(2, core.core.term, found.body())
    core.store.append_as_leader([found.body()], core.core.term, MEMBERS)
    core.core.members.refresh()
    core.append(b"only this one has it")
    assert core.core.committed_index == 0
    core.core.persisted(core.store.flush(), core.now)
    assert core.core.committed_index == 3


def test_the_verb_waits_until_a_change_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with nodes(tmp_path, 2, core_options=FASTER) as group:
        _, address = start_new(group, "n2")
        flags = ["--group", "g", "--peers", group.peers, "--json"]
        assert main(["member", "add", f"n2-{address}", *flags]) == 0
        assert [row["voter"] for row in json.loads(capsys.readouterr().out)["members"]] == [True] * 3
        assert main(["member", "remove", "n2", *flags]) == 0
        assert main(["member", "list", *flags]) == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert listed[0] == listed[1]
        assert [row["id"] for row in listed[1]["members"]] == ["n0", "n1"]
        assert main(["member", "add", "n3-127.0.0.1:1", "--wait", "0", *flags]) == 1
        assert "the change is not complete yet" in capsys.readouterr().err
        for given, expected in [
            (["replace", "n1"], "expected ID ID-HOST:PORT, such as n3-10.0.0.4:20911 for a new member, found n1"),
            (["add", "n9"], "member add: expected ID-HOST:PORT, such as n3-10.0.0.4:20911 for a new member, found n9"),
            (["add", "n9-h:1;n8-h:2"], "member add: n9: expected an IPv6 address in brackets"),
            (["add", "n9-h"], "member add: n9: expected HOST:PORT with a port from 1 to 65535, found 'h'"),
            (["list", "n1"], "member list: expected nothing, found n1"),
        ]:
            assert main(["member", *given, *flags]) == 2
            assert expected in capsys.readouterr().err
        assert main(["member", "remove", "n3", *flags]) == 0
        assert main(["member", "remove", "n9", *flags]) == 2
        assert "'n9' never was a member of n0, n1" in capsys.readouterr().err


def test_the_verb_says_why_a_new_member_gets_no_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = free_ports(3)
    added = [f"n9-{HOST}:{port}" for port in ports]
    with nodes(tmp_path, 2, core_options=FASTER) as group:
        group.start("n9", group="y", peers=added[1], store=tmp_path / "y")
        other, group.nodes["y"] = group.nodes.pop("n9"), None
        group.start("n9", peers=added[2], store=tmp_path / "another-g")
        eventually(lambda: group.status("n9")["role"] == "LEADER")
        group.nodes["y"] = other
        flags = ["--group", "g", "--peers", group.peers, "--wait", "1"]
        for member, expected in zip(
            added,
            (
                f"cannot reach n9: {HOST}:{ports[0]}: Connection refused",
                f"expected member n9 of group g at {HOST}:{ports[1]}, found UNKNOWN_GROUP",
                "n9 follows n9, so it is of another group: start it with an empty disk",
            ),
            strict=True,
        ):
            assert main(["member", "add", member, *flags]) == 1
            assert capsys.readouterr().err.count(expected) == 1
            assert main(["member", "remove", "n9", *flags]) == 0
            assert main(["metadata", *flags[:3], f"{group.peers};{member}"]) == 0
            assert "n9" not in capsys.readouterr().out


def test_members_change_with_their_secret_and_the_error_names_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes(tmp_path, 2, core_options=FASTER, secret="of clients", member_secret="of members") as group:
        flags = ["--group", "g", "--peers", group.peers, "--secret-file"]
        for secret in ("of clients", "of members"):
            (tmp_path / secret).write_text(secret)
        gone = next(each for each in group.ids if each != group.leader())
        assert main(["member", "remove", gone, *flags, str(tmp_path / "of clients")]) == 2
        assert "found none: give it with --secret-file" in capsys.readouterr().err
        eventually(lambda: main(["member", "remove", gone, *flags, str(tmp_path / "of members")]) == 0)


def appended(client: dl.Client, body: bytes) -> bool:
    with suppress(GroupError, UnknownOutcomeError):
        return client.append(body).index >= 0
    return False


@pytest.mark.parametrize("is_restored", [False, True])
def test_two_members_continue_after_one_lost_its_disk(tmp_path: Path, is_restored: bool) -> None:
    with nodes(tmp_path, 2, core_options=FASTER) as group, dl.connect("g", group.peers, timeout_ms=2000) as client:
        client.append_batch([b"one", b"two"])
        eventually(lambda: group.status("n1")["committedIndex"] == 1)
        if is_restored:
            eventually(lambda: not (tmp_path / "dledger-n1" / "reset").exists())
            backup(tmp_path / "dledger-n1", tmp_path / "backup")
        client.append(b"three")
        term = group.status("n0")["term"]
        group.stop("n1")
        eventually(lambda: group.status("n0")["leaderId"] is None)
        new = tmp_path / "new"
        if is_restored:
            given = ("--group", "g", "--peers", group.peers, "--id", "n1", "--to", new)
            assert main(["restore", str(tmp_path / "backup"), *map(str, given)]) == 0
        else:
            (new / "dledger-n1").mkdir(parents=True)
            write_current_term(new / "dledger-n1", CurrentTerm(term + 1, None))
        group.start("n1", store=new, join=not is_restored)
        assert group.leader() == "n0"
        eventually(lambda: appended(client, b"four"))
        # Each can lead again, with all that was acknowledged, once it votes.
        eventually(lambda: group.status("n1")["endIndex"] == group.status("n0")["endIndex"])
        eventually(lambda: not client.status("n1").problem)
        client.transfer("n1")
        assert group.leader() == "n1"
        rows = [entry.body for entry in client.read(0, "n1").entries() if not entry.channel]
        # Without time for heartbeats an append can have an unknown outcome, and is repeated.
        assert rows[:3] == [b"one", b"two", b"three"] and set(rows[3:]) == {b"four"}


def test_a_removed_member_says_so(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, core_options=FASTER, metrics=True) as group, dl.connect("g", group.peers) as client:
        client.append(b"x")
        leader = group.leader()
        gone, other = (each for each in group.ids if each != leader)
        port = group.metrics_ports[gone]
        eventually(lambda: reason(port) == "")  # it joins for a moment, if it did not vote for the first leader
        remove(group, client, gone)
        assert eventually(lambda: reason(port)) == "the group removed this member: stop it"
        index = client.members().index
        text = f"the group removed this member, by entry {index}: stop it"
        eventually(lambda: client.status(gone).problem == text)
        assert group.status(gone)["removed"] and scrape(port)["dledger_removed"] == 1
        # So does one that was down meanwhile, and it calls for no more elections.
        group.stop(gone)
        group.start(gone)
        eventually(lambda: group.status(gone).get("removed"))
        elections = scrape(port)["dledger_elections_total"]
        time.sleep(1)
        assert scrape(port)["dledger_elections_total"] == elections
        assert all("removed" not in group.status(each) for each in (leader, other))
        # A member again, it has no problem.
        client.add_member(gone, f"{HOST}:{group.port(gone)}")
        eventually(lambda: client.members().is_final)
        eventually(lambda: not reason(port) and "removed" not in group.status(gone))


def test_a_member_with_another_port_than_the_group_has_says_so(tmp_path: Path) -> None:
    with nodes(tmp_path, 4, core_options=FASTER) as group, dl.connect("g", group.peers) as client:
        client.append(b"x")
        first, last = group.ids[0], group.ids[-1]
        remove(group, client, first)
        eventually(lambda: client.members().is_final)
        eventually(lambda: client.status(last).committed_index >= client.members().index)
        group.stop(last)
        (port,) = free_ports(1)
        listed = f"{HOST}:{group.port(last)}"
        peers = group.peers.replace(listed, f"{HOST}:{port}")
        group.start(last, peers=peers)
        text = f"the group has this member at {listed}, and it was started with {HOST}:{port}: correct peers"
        with dl.connect("g", peers) as other:
            eventually(lambda: text in problem(other, last))


def test_a_member_that_others_refuse_says_why(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, core_options=FASTER) as group, dl.connect("g", group.peers) as client:
        client.append(b"x")
        *_, last = group.ids
        files = [tmp_path / f"dledger-{each}" / "cluster" for each in group.ids]
        eventually(lambda: all(file.exists() for file in files))
        group.stop(last)
        files[-1].write_bytes(encode_state_file({"cluster": "f" * 32}))
        group.start(last)
        eventually(lambda: "expected one cluster id in a group" in problem(client, last))


def test_a_leader_that_removes_itself_says_so(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, core_options=FASTER) as group, dl.connect("g", group.peers) as client:
        client.append(b"x")
        leader = group.leader()
        remove(group, client, leader)
        eventually(lambda: group.status(leader).get("removed"))
        other = next(each for each in group.ids if each != leader)
        eventually(lambda: group.status(other)["role"] == "LEADER")


def test_a_removal_can_be_repeated_but_names_a_member(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, core_options=FASTER) as group, dl.connect("g", group.peers, timeout_ms=2000) as client:
        client.append(b"x")
        gone = next(each for each in group.ids if each != group.leader())
        remove(group, client, gone)
        found = client.remove_member(gone)
        assert gone not in found.voters and client.remove_member(gone).index == found.index
        with pytest.raises(GroupError, match="'n9' never was a member of n") as caught:
            client.remove_member("n9")
        assert caught.value.code == ResponseCode.UNKNOWN_MEMBER


def test_a_member_that_is_refused_learns_only_that_it_was_removed() -> None:
    core = OneCore(filled(1, 1, saved=2))
    others = {"index": 5, "term": 2, "voters": {"n1": "b:1"}, "learners": {}, "leaving": "", "committed": 5}
    core.core.heard("n1", json.dumps({**others, "voters": {"n0": "a:1"}}), 0, is_rejection=True)
    assert len(core.core.members.current.voters) == 3
    core.core.heard("n1", "{", 0, is_rejection=True)
    assert not core.core.is_removed
    core.core.heard("n1", json.dumps(others), 0, is_rejection=True)
    assert len(core.core.members.current.voters) == 3
    core.tick(20_000)
    assert core.core.is_removed and core.core.status().elections == 0
    assert "removed this member, by entry 5: stop it" in problem_of(core)
    # A leader that pushes shows that this is wrong.
    core.follow(3)
    assert core.code(PushType.COMPARE, entry(1, 1), term=3) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(2, 3), term=3, commit_index=2) == ResponseCode.SUCCESS
    core.tick(1100)
    assert not core.core.is_removed and problem_of(core) == ""


def test_a_learner_connects_to_its_leader_by_a_list_from_before_it_was_added() -> None:
    """A leader connects when it appends the list with the learner, and says the committed one before."""
    core = OneCore(filled(1, saved=2, committed=0))
    told = MemberList(5, 3, {"n4": "e:1", "n5": "f:1"}).told(5)
    core.core.heard("n4", told, 0, is_rejection=False)
    assert core.core.members.known_addresses["n4"] == "e:1"
    assert not core.core.is_removed
    core.core.heard("n4", told, 0, is_rejection=True)
    assert core.core.is_removed
