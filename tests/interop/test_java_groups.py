"""Groups of Java DLedger nodes and ours, and clients of each on groups of the other.

The suite runs short courses of some mixes, `make breadth` of all. DLEDGER_INTEROP=SECONDS runs all, and random courses
of random mixes that long (DLEDGER_INTEROP_SEED is the seed).
"""

from __future__ import annotations

import base64
import random
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import IndexRangeError
from tests.interop import damages
from tests.interop.java_group import QUICK, SMALL_FILES, JavaClient, JavaNode
from tests.interop.java_stores import prepare
from tests.interop.mixed_group import GROUP, OURS, Group, Load, differing_files, lost_indexes, stored_entries
from tests.support.groups import free_ports, peers_text
from tests.support.long_runs import SECONDS, SEED, first, some
from tests.support.stores import opened

NEW, OLD = "0.3.1.2", "0.2.2"
BATCHES = {"enableBatchPush": True, "maxBatchPushSize": 65536}


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    for version in (NEW, OLD):
        for program in ("RunServer", "RunClient"):
            prepare(program, version, NEW)


def test_java_nodes_form_a_group(tmp_path: Path) -> None:
    """Checks the Java programs of the other tests without our code."""
    ports = dict(zip(("n0", "n1", "n2"), free_ports(3), strict=True))
    settings: dict[str, object] = {**QUICK, **SMALL_FILES}
    versions = (NEW, OLD, NEW)
    nodes = {
        node: JavaNode(version, GROUP, node, peers_text(ports), tmp_path, settings)
        for node, version in zip(ports, versions, strict=True)
    }
    try:
        leader = _java_leader(nodes)
        assert nodes[leader].append(500, 100) == {"acknowledged": 500, "refused": 0}
        _wait_committed(nodes, 499)
        assert len({node.digest(0, 499) for node in nodes.values()}) == 1
        nodes.pop(leader).kill()
        leader = _java_leader(nodes)
        assert nodes[leader].append(500, 100)["acknowledged"] == 500
        other = next(node for node in nodes if node != leader)
        _transfer(nodes, other)
        for node in nodes.values():
            node.stop()
    finally:
        for node in nodes.values():
            node.close()
    assert differing_files([tmp_path / f"dledger-{node}" for node in nodes]) == []


PATIENCE = 120
"""Seconds until a test gives up: no test measures them, and a machine under load is slow."""


def _java_leader(nodes: dict[str, JavaNode]) -> str:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for name, node in nodes.items():
            if node.state()["role"] == "LEADER":
                return name
        time.sleep(0.02)
    raise AssertionError("no leader")


def _transfer(nodes: dict[str, JavaNode], wanted: str) -> None:
    """Transfers leadership. Retries: Java rejects (417) or fails (418) a transfer while the member lags."""
    until, answers = time.monotonic() + PATIENCE, list[dict[str, Any]]()
    while (leader := _java_leader(nodes)) != wanted:
        assert time.monotonic() < until, answers
        answers.append(nodes[leader].transfer(wanted))
        time.sleep(0.1)


def _wait_committed(nodes: dict[str, JavaNode], index: int) -> None:
    until = time.monotonic() + PATIENCE
    while any(node.state()["committed"] < index for node in nodes.values()):
        assert time.monotonic() < until
        time.sleep(0.02)


MIXES = {
    "two of ours, one Java": ({"n0": OURS, "n1": OURS, "n2": NEW}, {}),
    "one of ours, two Java": ({"n0": OURS, "n1": NEW, "n2": NEW}, BATCHES),
    "ours and two versions": ({"n0": OURS, "n1": OLD, "n2": NEW}, {}),
}


@pytest.mark.parametrize("mix", MIXES if SECONDS else some(MIXES, 2))
def test_mixed_group(mix: str, tmp_path: Path) -> None:
    """Each kind leads under load, is killed, restarts and transfers leadership. The logs end equal."""
    kinds, settings = MIXES[mix]
    ours = "n0"
    java = next(node for node, kind in kinds.items() if kind != OURS)
    with Group(tmp_path, kinds, settings) as group:
        group.leader()
        with Load(group, "a") as load:
            for leader in (ours, java):
                group.transfer(leader)
                load.wait_for(100)
                group.kill(leader)
                group.leader()
                load.wait_for(100)
                group.start(leader)
                load.wait_for(100)
            group.transfer(ours)
            load.wait_for(100)
        end = group.settle()
        group.stop()
    _check_logs(group, load, end)
    assert differing_files(group.folders()) == []
    _check_checksums(group)


def _check_checksums(group: Group) -> None:
    """Our leaders write checksums, Java's do not; Java followers and leaders keep those of ours."""
    entries = list(stored_entries(group.folders()[-1]))
    with_checksum = [entry for entry in entries if entry.body_crc]
    assert 0 < len(with_checksum) < len(entries)
    assert all(entry.has_right_crc for entry in with_checksum)


@pytest.mark.skipif(not SECONDS, reason="make interop runs it")
@pytest.mark.parametrize("version", ["0.2.7", NEW, "0.3.2"])
def test_java_pushes_checksums_of_our_leader(version: str, tmp_path: Path) -> None:
    """A Java leader gives a new member of ours the entries that ours wrote; Java opens the store that it wrote."""
    with Group(tmp_path, {"n0": OURS, "n1": version, "n2": OURS}) as group:
        group.leader()
        group.transfer("n0")
        with Load(group, "a") as load:
            load.wait_for(50)
            group.transfer("n1")
            load.wait_for(50)
            group.kill("n2")
            shutil.rmtree(tmp_path / "dledger-n2" / "data")
            shutil.rmtree(tmp_path / "dledger-n2" / "index")
            (tmp_path / "dledger-n2" / "checkpoint").unlink(missing_ok=True)
            (tmp_path / "dledger-n2" / "boot").unlink()
            group.start("n2")
            load.wait_for(50)
            group.kill("n1")
            group.leader()
            group.start("n1")
            load.wait_for(50)
        end = group.settle()
        group.stop()
    _check_logs(group, load, end)
    _check_checksums(group)


NEW_MEMBERS = [(NEW, OURS), (OURS, NEW), (OURS, OLD), (OURS, OURS)]


@pytest.mark.parametrize(("leader", "new_member"), NEW_MEMBERS if SECONDS else some(NEW_MEMBERS, 2))
def test_new_member_gets_a_log_with_expired_front(
    leader: str, new_member: str, case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its log begins where the leader's does, for both kinds of leader and of new member."""
    data_size, index_size = damages.file_sizes("raw-expired")
    settings: dict[str, object] = {
        "mappedFileSizeForEntryData": data_size,
        "mappedFileSizeForEntryIndex": index_size,
    }
    for node in ("n0", "n1"):
        # Copied without file times: old files would expire.
        store = case_folder("raw-expired") / "dledger-n0"
        shutil.copytree(store, tmp_path / f"dledger-{node}", copy_function=shutil.copy)
    if (leader, new_member) == (NEW, OURS):
        # It was away so long that the others have none of its entries: it asks Java's leader before it resets its log.
        old = opened(tmp_path, self_id="n2", data_file_size=data_size, index_file_size=index_size)
        old.append_as_leader([b"old"] * 20, 0)
        old.update_committed_index(0, 19)
        old.shutdown()
    group = Group(tmp_path, {"n0": leader, "n1": NEW, "n2": new_member}, settings)
    try:
        group.start("n0", "n1")
        group.leader()
        group.transfer("n0")
        with Load(group, "a") as load:
            load.wait_for(50)
            group.start("n2")
            load.wait_for(50)
            group.wait(lambda: group.state("n2")["end"] > 1100, 20, "log of the new member")
        assert group.settle() > 1100
        assert {state["begin"] for state in group.states().values()} == {296}
        group.stop()
    finally:
        group.close()
    assert lost_indexes(load.acknowledged, tmp_path / "dledger-n2") == []
    assert differing_files(group.folders()) == []


def _check_logs(group: Group, load: Load, end: int) -> None:
    assert not load.failures
    assert [entry.index for entry in stored_entries(group.folders()[0])] == list(range(end + 1))
    assert lost_indexes(load.acknowledged, group.folders()[0]) == []
    assert _different_logs(group.folders()) == []


def _different_logs(folders: list[Path]) -> list[str]:
    """Returns differing files. Bytes after the end may be old entries of a truncated log, so entries decide."""
    names = differing_files(folders)
    if not names:
        return []
    logs = [list(stored_entries(folder)) for folder in folders]
    return names if any(log != logs[0] for log in logs) else []


def test_our_client_on_a_java_group(tmp_path: Path) -> None:
    with Group(tmp_path, dict.fromkeys(("n0", "n1", "n2"), NEW)) as group:
        group.leader()
        with dl.connect(GROUP, group.peers) as client:
            first = client.append(b"first")
            assert (first.index, first.pos, first.term) == (0, 0, group.state(group.leader())["term"])
            futures = [client.submit(b"%d" % number) for number in range(200)]
            by_index = {future.result().index: b"%d" % number for number, future in enumerate(futures)}
            assert sorted(by_index) == list(range(1, 201))
            bodies = [b"batch %d" % number for number in range(200)]
            result = client.append_batch(bodies)
            assert len(result) == 200
            in_batch = {appended.index: body for appended, body in zip(result, bodies, strict=True)}
            assert client.get(0).body == b"first"
            assert client.get(17).body == by_index[17]
            with pytest.raises(IndexRangeError):
                client.get(401)
            assert client.metadata().leader_id == group.leader()
            other = next(node for node in group.kinds if node != group.leader())
            group.transfer(other)
            assert client.append(b"after").index == 401
        group.settle()
        group.stop()
    entries = list(stored_entries(group.folders()[0]))
    assert {entry.index: entry.body for entry in entries[1:401]} == {**by_index, **in_batch}
    assert _different_logs(group.folders()) == []


@pytest.mark.parametrize("version", first([NEW, OLD], 1))
def test_java_client_on_a_group_of_ours(version: str, tmp_path: Path) -> None:
    with Group(tmp_path, dict.fromkeys(("n0", "n1", "n2"), OURS)) as group:
        leader = group.leader()
        client = JavaClient(version, GROUP, group.peers)
        try:
            term = group.state(leader)["term"]
            body = base64.b64encode(b"hello").decode()
            assert client.ask(f"append {body}") == {"code": 200, "index": 0, "pos": 0, "term": term}
            assert client.ask("get 0") == {"code": 200, "index": 0, "term": term, "pos": 0, "body": body}
            assert client.ask("get 1") == {"code": 410}
            client.ask("load 8 300 java")
            group.wait(lambda: client.ask("acknowledged")["acknowledged"] > 300, 20, "appends of Java's client")
            loaded = client.ask("unload")
            assert loaded["others"] == {}
            other = next(node for node in group.kinds if node != leader)
            assert client.ask(f"transfer {leader} {other} {term}") == {"code": 200}
            assert group.leader() == other
            assert client.ask(f"append {body}")["code"] == 200
        finally:
            client.close()
        group.settle()
        group.stop()
    bodies = {entry.index: entry.body for entry in stored_entries(group.folders()[0])}
    for index, _, text in loaded["acknowledged"]:
        assert bodies[index].startswith(text.encode() + b" ")
    assert differing_files(group.folders()) == []


@pytest.mark.skipif(not SECONDS, reason="make interop runs it")
def test_random_courses(tmp_path: Path) -> None:
    choice = random.Random(SEED)
    ends = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < ends:
        folder = tmp_path / str(number)
        folder.mkdir()
        _random_course(choice, folder)
        number += 1


def _random_course(choice: random.Random, folder: Path) -> None:
    others = [choice.choice((OURS, "0.2.7", NEW, "0.3.2", OLD)) for _ in range(choice.choice((2, 2, 4)))]
    kinds = {f"n{number}": kind for number, kind in enumerate([OURS, *others])}
    # A 0.2.2 leader with batch push never updates lagging followers (DLedger issue 162).
    settings = dict(BATCHES) if OLD not in kinds.values() and choice.random() < 0.5 else {}
    flush = choice.choice(("sync", "async"))
    course: list[str] = []
    try:
        with Group(folder, kinds, settings, flush) as group:
            group.leader()
            with Load(group, "a", size=choice.choice((10, 300, 20_000))) as load:
                for _ in range(choice.randrange(3, 9)):
                    course.append(_random_step(choice, group, load))  # noqa: PERF401  # partial list is in the failure message
            end = group.settle(60)
            group.stop()
        _check_logs(group, load, end)
    except AssertionError as failure:
        raise AssertionError(f"{kinds} {settings} {flush} after {course}") from failure


def _random_step(choice: random.Random, group: Group, load: Load) -> str:
    node = choice.choice(list(group.kinds))
    if choice.random() < 0.5:
        # A 0.2.2 follower that lags catches up more slowly than the load appends.
        with load.held() if group.kinds[node] == OLD else nullcontext():
            group.transfer(node)
        load.wait_for(50)
        return f"transfer to {node}"
    if choice.random() < 0.3:
        with group.paused(node):
            load.wait_for(50)
        load.wait_for(50)
        return f"pause {node}"
    group.kill(node)
    group.leader()
    load.wait_for(50)
    group.start(node)
    load.wait_for(50)
    return f"kill {node}"
