"""A node whose disk does not answer: its event loop runs on, and nothing is acknowledged before it is durable."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.codec import MEMBERS, encode_entry, mark_control
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import (
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    MetadataRequest,
    PushRequest,
    PushType,
    ReadRequest,
    Role,
    VoteRequest,
    VoteResult,
)
from pyspark_dledger.rocketmq.service.message_service import MessageService
from pyspark_dledger.rocketmq.service.sorted_run import SortedRun
from pyspark_dledger.store import entry_reader
from pyspark_dledger.store.files import mapped_files
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.groups import FASTER, NEVER_CAMPAIGNS, THREE, Caller, Nodes, eventually, nodes, packed
from tests.support.message_nodes import message_nodes, puts, rows
from tests.support.scrapes import reason, scrape

SIZE = 48 + 4


class Disk:
    """Holds operations while `is_held`, and knows which ran in a thread that must not wait."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.loop_thread = -1
        self.in_loop: list[str] = []
        self.waiting = 0
        self._answers = threading.Event()
        self._answers.set()
        self._held: tuple[str, ...] = ()
        for where, name in ((os, "fsync"), (mapped_files, "_sync_data"), (entry_reader, "_load")):
            patch.setattr(where, name, self._slow(name, getattr(where, name)))

    def _slow(self, name: str, work: Any) -> Any:
        def slow(*arguments: Any) -> Any:
            if threading.get_ident() == self.loop_thread:
                self.in_loop.append(name)
            elif name in self._held:
                self.waiting += 1
                self._answers.wait(30)
                self.waiting -= 1
            return work(*arguments)

        return slow

    def hold(self, *names: str) -> None:
        self._held = names
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk(monkeypatch)
    yield found
    found.answer()


def watched(group: Nodes, disk: Disk) -> None:
    """From here on no operation may run in the event loop."""
    disk.loop_thread = group._thread.ident or -1


def entry(index: int, term: int) -> bytes:
    return encode_entry(index, term, index * SIZE, b"%04d" % index)


def push(kind: PushType, *data: bytes, term: int, leader: str, first: int, **fields: Any) -> PushRequest:
    return PushRequest(
        leader_id=leader, term=term, type=kind, first_index=first, count=len(data), data=b"".join(data), **fields
    )


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Nodes]:
    """One member of three; the test plays the others."""
    options: dict[str, object] = {**FASTER, **NEVER_CAMPAIGNS, "heart_beat_time_interval_ms": 20_000}
    group = Nodes(tmp_path, 3, core_options=options)
    try:
        yield group.start("n0")
    finally:
        group.close()


def lead(caller: Caller, leader: str, term: int) -> None:
    """Make the node follow a leader."""
    for _ in range(2):
        caller.call(HeartBeatRequest(leader_id=leader, term=term))


def test_a_follower_waits_for_its_disk_and_its_event_loop_does_not(follower: Nodes, disk: Disk) -> None:
    watched(follower, disk)
    with closing(follower.caller("n0").hello()) as caller, closing(follower.caller("n0")) as other:
        disk.hold("fsync")
        vote = caller.send(VoteRequest(leader_id="n1", term=3, ledger_end_index=-1, ledger_end_term=-1))
        eventually(lambda: disk.waiting)
        # The loop runs: it takes connections and bytes. Requests wait for the core.
        waiting = other.send(MetadataRequest())
        assert follower.status("n0")["term"] == 0
        disk.answer()
        assert (caller.receive(vote).vote_result, other.receive(waiting).term) == (VoteResult.ACCEPT, 3)
        lead(caller, "n1", 3)
        entries = [entry(index, 3) for index in range(4)]
        assert caller.call(push(PushType.APPEND, *entries, term=3, leader="n1", first=0, commit_index=0)).code == 200
        lead(caller, "n2", 4)
        disk.hold("fsync", "_sync_data")
        truncate = caller.send(push(PushType.TRUNCATE, entry(1, 3), term=4, leader="n2", first=1, commit_index=0))
        eventually(lambda: disk.waiting)
        assert follower.status("n0")["endIndex"] in (1, 3)
        disk.answer()
        assert caller.receive(truncate).code == 200
    assert follower.status("n0")["endIndex"] == 1
    assert disk.in_loop == []
    disk.loop_thread = -1


def test_a_list_of_members_is_saved_while_the_event_loop_runs(follower: Nodes, disk: Disk) -> None:
    watched(follower, disk)
    with closing(follower.caller("n0").hello()) as caller:
        lead(caller, "n1", 3)
        data = bytearray(encode_entry(1, 3, SIZE, MemberList(1, 3, {"n0": "a:1", "n1": "b:1"}).body()))
        mark_control(data, MEMBERS)
        append = partial(push, PushType.APPEND, term=3, leader="n1")
        assert caller.call(append(entry(0, 3), first=0)).code == 200
        disk.hold("fsync")
        waiting = caller.send(append(bytes(data), first=1, commit_index=1))
        eventually(lambda: disk.waiting)
        disk.answer()
        assert caller.receive(waiting).code == 200
    assert disk.in_loop == []
    disk.loop_thread = -1


def test_old_entries_are_read_while_the_event_loop_runs(tmp_path: Path, disk: Disk) -> None:
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        with closing(group.caller("n0")) as caller:
            for number in range(3):
                caller.append(b"%d" % number)
        group.stop("n0")
        group.start("n0")
        group.leader()
        watched(group, disk)
        disk.hold("_load")
        with closing(group.caller("n0").hello()) as caller:
            first, second = caller.send(GetRequest(begin_index=1)), caller.send(ReadRequest(first_index=0))
            eventually(lambda: disk.waiting)
            # Other requests do not wait.
            assert caller.call(MetadataRequest()).leader_id == "n0"
            disk.answer()
            assert caller.receive(first).entries[0].body == b"1"
            response = caller.receive(second)
            assert (response.code, response.count) == (200, 3)
        assert disk.in_loop == []
        disk.loop_thread = -1


def test_a_leader_sends_heartbeats_while_it_reads_for_a_slow_follower(tmp_path: Path, disk: Disk) -> None:
    with nodes(tmp_path, 3, core_options=FASTER) as group:
        leader = group.leader()
        late = next(each for each in THREE if each != leader)
        group.stop(late)
        with closing(group.caller(leader)) as caller:
            assert caller.hello().append(*[bytes(100)] * 10).code == 200
        # The leader's log counts as old.
        store = group.nodes[leader].store
        store._recent.first_index = 1 << 40  # type: ignore[attr-defined]  # of MmapFileStore
        disk.hold("_load")
        group.start(late)
        watched(group, disk)
        eventually(lambda: disk.waiting)
        term = group.status(leader)["term"]
        driver = group.nodes[leader]._driver
        assert driver is not None
        ticks = driver._ticks
        eventually(lambda: driver._ticks > ticks + 60)
        assert (group.status(leader)["role"], group.status(leader)["term"]) == (Role.LEADER.value, term)
        disk.answer()
        eventually(lambda: group.status(late)["committedIndex"] == group.status(leader)["committedIndex"])
        assert disk.in_loop == []
        disk.loop_thread = -1


def test_a_failed_append_is_removed_while_the_event_loop_runs(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its response waits until nothing of it can come back."""
    with nodes(tmp_path, 1, flush="sync", core_options={}) as group:
        group.leader()
        with closing(group.caller("n0").hello()) as caller, closing(group.caller("n0").hello()) as other:
            assert caller.append(b"first").code == 200
            write = mapped_files.MappedFile.write

            def torn(file: mapped_files.MappedFile, pos: int, data: bytes) -> None:
                write(file, pos, bytes(data)[:100])
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(mapped_files.MappedFile, "write", torn)
            watched(group, disk)
            disk.hold("_sync_data")
            failed = caller.send(AppendRequest(bodies=packed(bytes(500))))
            eventually(lambda: disk.waiting)
            monkeypatch.setattr(mapped_files.MappedFile, "write", write)
            metadata = other.send(MetadataRequest())
            driver = group.nodes["n0"]._driver
            assert driver is not None
            ticks = driver._ticks
            eventually(lambda: driver._ticks > ticks + 10)
            caller.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                caller.receive(failed)
            caller.sock.settimeout(10)
            disk.answer()
            assert caller.receive(failed).code == ResponseCode.DISK_FULL
            assert other.receive(metadata).code == 200
            assert caller.append(b"second").code == 200
        assert disk.in_loop == []
        disk.loop_thread = -1


def test_a_data_file_in_another_folder_is_created_while_the_event_loop_runs(tmp_path: Path, disk: Disk) -> None:
    """The files before it must be durable in their folder."""
    folders = [tmp_path / "a", tmp_path / "b"]
    options = {"data_dirs": folders, "data_file_size": 4096, "index_file_size": 1 << 16}
    with nodes(tmp_path, 1, flush="async", core_options={}, store_options=options) as group:
        group.leader()
        watched(group, disk)
        with closing(group.caller("n0").hello()) as caller:
            for number in range(12):
                assert caller.append(b"%02d" % number * 1000).code == 200
        assert {len(list(folder.iterdir())) for folder in folders} == {6}
        assert disk.in_loop == []
        disk.loop_thread = -1


@pytest.mark.parametrize("is_loaded", [True, False])
def test_identities_are_read_from_disk_while_the_event_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    with message_nodes(tmp_path, 1) as group, dl.connect("g", group.peers) as client:
        group.ready_leader()
        batches = [puts(rows(20, start=20 * number)) for number in range(3)]
        first = [list(client.put_messages(bodies)) for bodies in batches]
        service = group.nodes["n0"]._application
        assert isinstance(service, MessageService)
        identities = service._puts.identities
        last = max(put.index for result in first for put in result)
        eventually(lambda: identities.flush() or identities.covered >= last)
        threads, find = set(), SortedRun.find

        def watched_find(*arguments: Any) -> Any:
            threads.add(threading.get_ident())
            return find(*arguments)

        monkeypatch.setattr(SortedRun, "find", watched_find)
        monkeypatch.setattr(SortedRun, "is_loaded", lambda *_: is_loaded)
        assert [list(client.put_messages(bodies)) for bodies in batches] == first
        assert (threads == {group._thread.ident}) is is_loaded
        assert is_loaded or group._thread.ident not in threads
        # A put of a log that was not read for a long time, too.
        group.nodes["n0"].store._recent.first_index = 1 << 40  # type: ignore[attr-defined]  # of MmapFileStore
        threads.clear()
        assert list(client.put_messages(batches[0])) == first[0]
        assert threads - {group._thread.ident}


def test_a_store_is_opened_and_closed_while_the_event_loop_runs(tmp_path: Path, disk: Disk) -> None:
    """The loop may serve other nodes."""
    with closing(Nodes(tmp_path, 1, flush="async", core_options={})) as group:
        watched(group, disk)
        for _ in range(2):
            group.start()
            group.leader()
            with closing(group.caller("n0")) as caller:
                assert caller.append(b"some").code == 200
            group.stop()
        assert disk.in_loop == []
        disk.loop_thread = -1


def test_a_member_whose_disk_hangs_is_healthy_but_not_ready(tmp_path: Path, disk: Disk) -> None:
    with nodes(tmp_path, 1, core_options={}, metrics=True) as group:
        group.leader()
        port = group.metrics_ports["n0"]
        driver = group.nodes["n0"]._driver
        assert driver is not None
        disk.hold("fsync")
        save = partial(group.nodes["n0"].store.save_term, 9, None)
        group._loop.call_soon_threadsafe(driver._run, save, lambda: True)
        assert eventually(lambda: reason(port)) == "the disk does not respond for more than 1 s"
        assert reason(port, "/healthz") == ""
        assert scrape(port)["dledger_event_loop_delay_seconds_count"] > 0
        disk.answer()
        eventually(lambda: not reason(port))


@pytest.mark.slow
def test_a_leader_whose_disk_hangs_is_replaced_and_follows(tmp_path: Path) -> None:
    """It sends no heartbeats while its core waits, so the others elect another leader."""
    with nodes(tmp_path, 3, core_options=FASTER) as group:
        old = group.leader()
        with closing(group.caller(old)) as caller:
            assert caller.hello().append(b"before").code == 200
        driver, answers = group.nodes[old]._driver, threading.Event()
        assert driver is not None
        group._loop.call_soon_threadsafe(driver._run, lambda: answers.wait(10), lambda: True)
        others = [each for each in group.ids if each != old]
        (new,) = eventually(lambda: [each for each in others if group.status(each)["role"] == Role.LEADER.value])
        with closing(group.caller(new)) as caller:
            assert caller.hello().append(b"after").code == 200
            answers.set()
            committed = group.status(new)["committedIndex"]
            eventually(lambda: group.status(old)["committedIndex"] == committed)
            assert [group.status(each)["role"] for each in (old, new)] == [Role.FOLLOWER.value, Role.LEADER.value]


def test_changes_without_a_pause_delay_no_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that wait for the disk follow each other: the first is acknowledged while the others run."""
    append = MmapFileStore.append_as_leader
    monkeypatch.setattr(MmapFileStore, "append_may_wait", True)
    with nodes(tmp_path, 1) as group, ExitStack() as stack:
        group.leader()
        callers = [stack.enter_context(closing(group.caller("n0").hello())) for _ in range(12)]
        monkeypatch.setattr(
            MmapFileStore,
            "append_as_leader",
            lambda *given: time.sleep(0.03) or append(*given),  # type: ignore[func-returns-value]
        )
        opaques = [caller.send(AppendRequest(bodies=packed(b"x"))) for caller in callers]
        assert callers[0].receive(opaques[0]).code == 200
        assert group.nodes["n0"].store.ledger_end_index < len(callers) // 2
        assert all(callers[at].receive(opaques[at]).code == 200 for at in range(1, len(callers)))
