"""Damaged entries of a member are replaced by copies of other members."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import StoreError
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushType,
    ReadRequest,
    ReadResponse,
    Role,
)
from pyspark_dledger.store.dledger_store import EntryRange, OtherEntryError
from pyspark_dledger.store.files.node_files import write_checkpoint
from pyspark_dledger.store.memory_store import MemoryStore
from tests.support.damage import write_at
from tests.support.groups import FAST, NEVER_CAMPAIGNS, SMALL, eventually, nodes
from tests.support.one_core import OneCore, entry, filled, lead_with_equal_peer, problem_of
from tests.support.scrapes import scrape


class Repaired(MemoryStore):
    """A store that takes the copies that the test calls right."""

    def __init__(self, right: bytes) -> None:
        super().__init__()
        self.right = right

    def repair(self, index: int, data: object) -> None:
        if data != self.right:
            raise ValueError("another entry")


@pytest.fixture
def core() -> OneCore:
    """A core with three entries, of which 1 is damaged; n1 and n2 are of this package."""
    store = Repaired(b"right")
    store.append_as_leader([b"0000", b"0001", b"0002"], 1)
    core = OneCore(store)
    for peer in ("n1", "n2"):
        core.core.set_peer_binary(peer, True)
    core.core.found_damage({1: "a wrong body"}, core.now)
    return core


def asked(core: OneCore) -> list[tuple[str, int]]:
    """The members that were asked in the next 2 s, and for which entries."""
    before = len(core.sent)
    for _ in range(20):
        core.now += 100
        core.core.tick(core.now)
        core.drain()
    return [(s.peer_id, s.request.first_index) for s in core.sent[before:] if isinstance(s.request, ReadRequest)]


def respond(core: OneCore, data: bytes, **fields: object) -> None:
    token = next(send.token for send in reversed(core.sent) if isinstance(send.request, ReadRequest))
    response = ReadResponse(**{"group": "g", "first_index": 1, "count": 1, "data": data, **fields})  # type: ignore[arg-type]
    core.core.handle_response(token, response, core.now)


def test_members_are_asked_in_turn_until_one_gives_the_entry(core: OneCore) -> None:
    assert asked(core) == [("n1", 1), ("n2", 1)]
    assert "damaged entries: 1, the first is 1 (a wrong body)" in problem_of(core)
    respond(core, b"", code=ResponseCode.DISK_ERROR, count=0)
    assert asked(core)
    respond(core, b"other")
    assert core.core.damaged_entries == 1
    assert asked(core)
    respond(core, b"right", first_index=2)
    assert core.core.damaged_entries == 1
    assert asked(core)
    respond(core, b"right")
    assert (core.core.damaged_entries, problem_of(core)) == (0, "")
    assert asked(core) == []
    assert any("entry 1 was damaged and has been repaired with the copy of n" in text for text in core.core.problems)


def test_java_members_are_not_asked(core: OneCore) -> None:
    core.core.set_peer_binary("n1", False)
    assert asked(core) == [("n2", 1)] * 2
    core.core.set_peer_binary("n2", False)
    assert asked(core) == []
    assert core.core.damaged_entries == 1


def test_expired_entries_are_forgotten() -> None:
    core = OneCore(filled(1, 1))
    core.core.found_damage({0: "bad"}, 0)
    core.store.reset(5, 0)
    assert asked(core) == []
    assert core.core.damaged_entries == 0


class Unreadable(MemoryStore):
    """A store whose entry 1 of term 2 is damaged: no copy of another entry repairs it."""

    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        if first_index == 1 and self.term_at(1) == 2:
            raise StoreError("entry 1 is damaged")
        return super().read(first_index, max_bytes if first_index > 1 else 1)

    def repair(self, index: int, data: object) -> None:
        raise OtherEntryError("the copy of another entry")


def unreadable() -> OneCore:
    store = Unreadable()
    store.append_as_leader([b"0000", b"0001", b"0002"], 2)
    store.save_term(2, None)
    return OneCore(store)


def test_a_leader_that_cannot_push_a_damaged_entry_steps_down() -> None:
    """Nobody gives an entry that is not committed; a member without it, or with a copy, can lead."""
    core = lead_with_equal_peer()
    led_ms = 0
    while core.core.role is Role.LEADER:
        core.core._member.on_damage({1: "a push could not read it"})
        core.tick(500)
        led_ms += 500
        for send in core.sent:
            if isinstance(send.request, HeartBeatRequest):
                core.core.handle_response(send.token, HeartBeatResponse(term=core.core.term), core.now)
        core.sent.clear()
    assert led_ms == 10_000
    assert "this leader steps down" in problem_of(core)


def test_a_damaged_entry_that_is_not_the_leaders_is_replaced() -> None:
    core = unreadable()
    core.follow()
    assert core.code(PushType.COMPARE, entry(1, 3)) == ResponseCode.INCONSISTENT_STATE
    assert core.code(PushType.COMPARE, entry(0, 2)) == ResponseCode.SUCCESS
    assert core.code(PushType.TRUNCATE, entry(0, 2)) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(1, 3)) == ResponseCode.SUCCESS
    assert core.store.term_at(1) == 3


def test_scrubber_repairs_a_damaged_follower(tmp_path: Path) -> None:
    with (
        nodes(tmp_path, 3, flush="sync", store_options=SMALL, metrics=True) as group,
        dl.connect("g", group.peers) as client,
    ):
        last = list(client.append_batch([b"entry %d " % number * 20 for number in range(50)]))[-1]
        leader = group.leader()
        follower = next(node_id for node_id in group.ids if node_id != leader)
        eventually(lambda: group.status(follower)["committedIndex"] == last.index)
        pos = client.get(20).pos
        group.stop(follower)
        file = tmp_path / f"dledger-{follower}" / "data" / f"{0:020}"
        before = file.read_bytes()
        write_at(file, pos + 60, b"?")
        group.start(follower)
        eventually(lambda: file.read_bytes() == before)
        eventually(lambda: group.status(follower)["damagedEntries"] == 0)
        port = group.metrics_ports[follower]
        eventually(lambda: scrape(port)["dledger_damaged_entries_repaired_total"] == 1)
        found = scrape(port)
        assert (found["dledger_damaged_entries_found_total"], found["dledger_damaged_entries"]) == (1, 0)
        assert found["dledger_scrub_checked_bytes_total"] == found["dledger_scrub_pass_bytes"]
        assert found["dledger_scrub_pass_bytes"] == found["dledger_scrub_log_bytes"] == len(before.rstrip(b"\0"))
        assert time.time() - 60 < found["dledger_scrub_last_pass_timestamp_seconds"] <= time.time()


@pytest.mark.parametrize("leads", [False, True])
def test_a_damaged_entry_that_may_not_be_committed_stops_no_group(tmp_path: Path, leads: bool) -> None:
    """The last entry of n1 is damaged, and n1 does not know that it was committed; n2 is away."""
    with nodes(tmp_path, 3, store_options=SMALL) as group, dl.connect("g", group.peers) as client:
        last = list(client.append_batch([b"entry %d " % number * 20 for number in range(10)]))[-1]
        eventually(lambda: {group.status(node_id)["committedIndex"] for node_id in group.ids} == {last.index})
        pos = client.get(last.index).pos
        group.stop()
        file = tmp_path / "dledger-n1" / "data" / f"{0:020}"
        before = file.read_bytes()
        write_at(file, pos + 60, b"?")
        write_checkpoint(tmp_path / "dledger-n1", 5, last.index)
        for node_id, campaigns in (("n0", not leads), ("n1", leads)):
            group.start(node_id, core_options=FAST if campaigns else {**FAST, **NEVER_CAMPAIGNS})
        assert group.leader() == ("n1" if leads else "n0")
        next(iter(client.append_batch([b"one more"])))
        assert file.read_bytes()[: pos + 100] == before[: pos + 100]
        eventually(lambda: group.status("n1")["damagedEntries"] == 0)
