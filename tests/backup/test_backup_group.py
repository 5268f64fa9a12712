"""A running group: backups while it writes, elects and expires files, and members restored into it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.client import connect
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import MembersRequest, MembersResponse, StatusRequest, StatusResponse
from pyspark_dledger.rocketmq.backup import backup, restore
from tests.support.fake_members import FakeMember, fakes
from tests.support.groups import FASTER, HOST, Nodes, eventually, free_ports, nodes, remove

FILES = {"data_file_size": 1 << 16, "index_file_size": 1 << 12, "check_point_interval_ms": 50}

# Only two members can vote for each other: on a busy machine their rounds must last longer than a response takes.
PATIENT = {"heart_beat_time_interval_ms": 500, "min_vote_interval_ms": 300, "max_vote_interval_ms": 2000}


class Writer:
    """Appends until `stop`; ``acknowledged`` has the body of each index."""

    def __init__(self, group: Nodes) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self._client = connect("g", group.peers, timeout_ms=500)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_stopping:
            number += 1
            batch = [b"%d-%d" % (number, each) + bytes(200) for each in range(40)]
            try:
                done = self._client.append_batch(batch)
            except (GroupError, UnknownOutcomeError):
                continue
            self.acknowledged.update(zip((each.index for each in done), batch, strict=True))

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join(30)
        self._client.close()


@pytest.mark.slow
def test_a_member_restored_under_load_loses_no_acknowledged_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes(tmp_path / "group", 3, core_options=FASTER, store_options=FILES) as group:
        leader = group.leader()
        writer = Writer(group)
        before = dict(writer.acknowledged)
        follower = next(each for each in group.ids if each != leader)
        source, target = tmp_path / "group" / f"dledger-{follower}", tmp_path / "backup"
        eventually(lambda: group.status(follower)["committedIndex"] > 500)
        seen = group.status(follower)["committedIndex"]
        first = backup(source, target)
        assert first.last_index >= seen
        killed = threading.Thread(target=group.stop, args=(leader,))
        killed.start()
        for node_id in group.ids:
            if node_id != leader:
                group.nodes[node_id]._store.delete_expired(0, True)
        second = backup(source, target)
        killed.join()
        assert second.first_index > 0 and second.last_index >= first.last_index
        group.start(leader)
        eventually(lambda: max(writer.acknowledged, default=0) > second.last_index + 500)
        given = ("--group", "g", "--peers", group.peers, "--id", follower, "--to", tmp_path / "new", "--json")
        assert main(["restore", str(target), *map(str, given)]) == 2
        assert f"found that {follower} runs: stop it first" in capsys.readouterr().err
        group.stop(follower)
        assert main(["restore", str(target), *map(str, given)]) == 0
        report = json.loads(capsys.readouterr().out)
        terms = [group.status(each)["term"] for each in group.ids if each != follower]
        assert report["votesFrom"] == report["term"] > max(terms) - 1
        group.start(follower, store=tmp_path / "new")
        began = time.monotonic()
        member = group.nodes[follower]._store
        eventually(lambda: member.ledger_end_term >= report["term"])
        assert time.monotonic() - began < 20
        writer.stop()
        leader = group.leader()
        end = group.status(leader)["endIndex"]
        eventually(lambda: group.status(follower)["endIndex"] == end)
        others = [each for each in group.ids if each != follower]
        group.stop(others[0])
        group.leader()
        with connect("g", group.peers) as client:
            begin = max(group.status(each)["beginIndex"] for each in group.nodes)
            checked = sorted(index for index in writer.acknowledged if index >= begin)
            assert len(checked) > 500 and before.keys() <= writer.acknowledged.keys()
            for index in [*checked[:50], *checked[50:-50:40], *checked[-50:]]:
                assert client.get(index).body == writer.acknowledged[index]


def test_a_member_of_an_idle_group_is_restored_and_no_second_one_before_it_can_vote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes(tmp_path / "group", 3, core_options=FASTER, store_options=FILES) as group:
        with connect("g", group.peers) as client:
            client.append_batch([b"%d" % number for number in range(20)])
        leader = group.leader()
        eventually(lambda: all(group.status(each)["committedIndex"] == 19 for each in group.ids))
        first, other = (each for each in group.ids if each != leader)
        backup(tmp_path / "group" / f"dledger-{leader}", tmp_path / "backup")

        def restore_to(folder: str, node_id: str) -> int:
            given = ("--group", "g", "--peers", group.peers, "--id", node_id, "--to", tmp_path / folder)
            return main(["restore", str(tmp_path / "backup"), *map(str, given)])

        group.stop(first)
        assert restore_to("first", first) == 0
        group.stop(leader)
        group.start(first, store=tmp_path / "first")
        eventually(lambda: group.nodes[first].core.status().problem)
        assert restore_to("second", leader) == 2
        assert f"found one of {first} (this member was restored" in capsys.readouterr().err
        group.start(leader)
        # Nobody appends: the leader does it.
        eventually(lambda: group.leader() and not group.nodes[first].core.status().problem)
        group.stop(leader)
        assert group.leader() in (first, other)


def test_a_voter_of_two_is_not_restored_while_a_third_member_joins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learner has no vote, so the other voter could not lead again until the restored one votes."""
    others = [FakeMember("n0", "n0"), FakeMember("n2", "n0")]
    peers = {fake.node_id: f"{HOST}:{fake.port}" for fake in others} | {"n1": f"{HOST}:{free_ports(1)[0]}"}
    found = MemberList(7, 1, {each: peers[each] for each in ("n0", "n1")}, {"n2": peers["n2"]}, "n1")
    for fake in others:
        fake.peers = peers
        fake.responses[StatusRequest] = lambda _: StatusResponse(group="g", leader_id="n0", peers=peers)
        fake.responses[MembersRequest] = lambda _: MembersResponse(group="g", members=found.told(7))
    given = ["--group", "g", "--id", "n1", "--to", str(tmp_path / "new")]
    with fakes(*others):
        given += ["--peers", ";".join(f"{node_id}-{address}" for node_id, address in peers.items())]
        assert main(["restore", str(tmp_path), *given]) == 2
    assert "expected a majority of the voters n0, n1 without n1, found n0" in capsys.readouterr().err


def test_a_backup_from_before_a_member_was_replaced_is_refused_whether_that_one_is_named_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes(tmp_path / "group", 3, core_options=FASTER, store_options=FILES) as group:
        with connect("g", group.peers) as client:
            client.append(b"one")
            leader = group.leader()
            removed, restored = (each for each in group.ids if each != leader)
            eventually(lambda: group.status(restored)["committedIndex"] == 0)
            backup(tmp_path / "group" / f"dledger-{restored}", tmp_path / "backup")
            remove(group, client, removed)
            eventually(lambda: client.members().is_final)
        group.stop(removed, restored)
        given = ["restore", str(tmp_path / "backup"), "--id", restored, "--to", str(tmp_path / "new"), "--group", "g"]
        others = ";".join(each for each in group.peers.split(";") if not each.startswith(removed))
        for peers in (group.peers, others):
            assert main([*given, "--peers", peers]) == 2
            error = capsys.readouterr().err
            assert f"the group has other members ({', '.join(sorted((leader, restored)))}, says {leader})" in error
            assert "start an empty member with --join" in error and "start it" not in error


def test_a_group_restored_whole_has_the_members_that_it_is_started_with(tmp_path: Path) -> None:
    """The log has lists of members, at other addresses."""
    old = nodes(tmp_path / "old", 2, core_options=FASTER, store_options=FILES)
    with old as group, connect("g", group.peers) as client:
        client.append(b"one")
        leader = group.leader()
        remove(group, client, next(each for each in group.ids if each != leader))
        eventually(lambda: client.members().is_final and client.append(b"two").index > 1)
        backup(tmp_path / "old" / f"dledger-{leader}", tmp_path / "backup")
    new = Nodes(tmp_path / "new", 3, core_options=PATIENT, store_options=FILES)
    try:
        for node_id in new.ids:
            restore(tmp_path / "backup", tmp_path / node_id, node_id, new_group="again")
            new.start(node_id, store=tmp_path / node_id)
        with connect("g", new.peers) as client:
            client.append(b"three")
            eventually(lambda: client.members().index > 1)
            assert sorted(client.members().voters) == new.ids
        new.stop("n0", "n1")
        new.start("n0", store=tmp_path / "n0")
        new.leader()
        with connect("g", new.peers) as client:
            assert client.append(b"four").index > 3
    finally:
        new.close()


def test_a_group_restored_whole_begins_again_at_the_backup(tmp_path: Path) -> None:
    with nodes(tmp_path / "group", 3, core_options=PATIENT, store_options=FILES) as group:
        group.leader()
        with connect("g", group.peers) as client:
            client.append_batch([b"%d" % number for number in range(100)])
            eventually(lambda: group.status("n1")["committedIndex"] == 99)
            report = backup(tmp_path / "group" / "dledger-n1", tmp_path / "backup")
            client.append_batch([b"later"])
        assert report.last_index == 99
        group.stop("n0", "n1")
        for node_id in ("n0", "n1"):
            target = tmp_path / node_id
            given = ("--id", node_id, "--to", target, "--new-group", "again", "--json")
            assert main(["restore", str(tmp_path / "backup"), *map(str, given)]) == 0
            group.start(node_id, store=target)
        # The old member is of another cluster: it neither leads the new group nor follows it.
        eventually(lambda: group.status("n0")["role"] == "LEADER" or group.status("n1")["role"] == "LEADER")
        with connect("g", group.peers) as client:
            assert client.append(b"again").index == 100
            assert [client.get(index).body for index in (99, 100)] == [b"99", b"again"]
