"""A member that cannot write: as leader it hands leadership over, and it leaves elections to others."""

from __future__ import annotations

import errno
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core import CoreConfig, Send
from pyspark_dledger.raft.core.disk_health import DiskHealth
from pyspark_dledger.raft.messages import (
    AppendRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    Role,
    TransferRequest,
    TransferResponse,
)
from pyspark_dledger.store.files.mapped_files import MappedFile
from pyspark_dledger.store.memory_store import MemoryStore
from tests.support.groups import FAST, THREE, Nodes, eventually, nodes, packed
from tests.support.one_core import OneCore, filled, lead_with_equal_peer, requested_terms


def fill(core: OneCore) -> None:
    core.store.__class__ = FullStore


class FullStore(MemoryStore):
    """A store whose disk is full."""

    is_disk_full = True


def transfers(core: OneCore) -> list[Send]:
    found = [send for send in core.sent if isinstance(send.request, TransferRequest)]
    core.sent = [send for send in core.sent if send not in found]
    return found


def live(core: OneCore, *peers: str) -> None:
    """These peers respond to heartbeats."""
    for send in core.sent:
        if isinstance(send.request, HeartBeatRequest) and send.peer_id in peers:
            core.core.handle_response(send.token, HeartBeatResponse(code=200, term=core.core.term), core.now)


def test_a_damaged_member_does_not_campaign_before_the_others_had_time_to() -> None:
    """Their vote intervals can be longer than a problem counts otherwise."""
    config = CoreConfig("g", "n0", ("n0", "n1"), max_vote_interval_ms=8000)
    health = DiskHealth(config, MemoryStore(), 0)
    health.has_damage(0)
    assert health.problem(config.patience_ms - 1)
    assert not health.problem(config.patience_ms)


def test_a_leader_with_a_full_disk_hands_leadership_to_the_peer_that_has_its_log() -> None:
    core = lead_with_equal_peer()
    core.tick(2000)
    live(core, "n1", "n2")
    core.tick(20)
    assert transfers(core) == []
    fill(core)
    core.tick(20)
    (sent,) = transfers(core)
    assert (sent.peer_id, core.core.transferee) == ("n1", "n1")
    assert "its disk is full: leadership is handed over to n1" in core.core.problems
    # It refuses: no other peer has the log, so this one is asked again after a while.
    core.core.handle_response(sent.token, TransferResponse(code=ResponseCode.DISK_FULL, term=core.core.term), core.now)
    core.tick(3000)
    assert (core.core.role, transfers(core)) == (Role.LEADER, [])


def test_a_member_with_a_full_disk_refuses_leadership() -> None:
    core = OneCore(filled(0, saved=3))
    core.follow()
    fill(core)
    core.tick(20)
    response = core.request(TransferRequest(transfer_id="n1", transferee_id="n0", leader_id="n1", term=core.core.term))
    assert response is not None and response.code == ResponseCode.DISK_FULL


def test_a_member_with_a_full_disk_leaves_elections_to_others_for_a_while() -> None:
    core = OneCore(filled(0))
    fill(core)
    core.tick(21_000)
    assert requested_terms(core) == []
    core.tick(3000)
    assert requested_terms(core)


def without_room(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From here on no write to files below a folder finds room."""
    write = MappedFile.write

    def full(file: MappedFile, pos: int, data: bytes) -> None:
        if file.path.is_relative_to(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, pos, data)

    patch.setattr(MappedFile, "write", full)


def moved(group: Nodes, leader: str) -> str:
    """The next leader."""
    return eventually(lambda: next((each for each in [group.leader()] if each != leader), ""), 20)


def test_a_leader_without_room_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes(tmp_path, 3) as group:
        old = group.leader()
        with closing(group.caller(old)) as caller:
            assert caller.append(b"before").code == 200
            without_room(monkeypatch, tmp_path / f"dledger-{old}")
            assert caller.append(b"refused").code == ResponseCode.DISK_FULL
        new = moved(group, old)
        with closing(group.caller(new)) as caller:
            assert caller.append(b"after").code == 200


def test_a_leader_whose_disk_is_too_slow_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes(tmp_path, 3, flush="sync", core_options={**FAST, "max_flush_time_ms": 200}) as group:
        old = group.leader()
        with closing(group.caller(old)) as caller:
            assert caller.append(b"before").code == 200
        folder, sync, goes_on = tmp_path / f"dledger-{old}", MappedFile.sync, threading.Event()

        def slow(file: MappedFile) -> None:
            if file.path.is_relative_to(folder):
                goes_on.wait(30)
            sync(file)

        monkeypatch.setattr(MappedFile, "sync", slow)
        try:
            with closing(group.caller(old)) as caller:
                # The others have it, so it is committed.
                assert caller.append(b"slow").code == 200
                new = moved(group, old)
        finally:
            goes_on.set()
        assert new in THREE


def test_appends_to_a_full_disk_are_rejected_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in another thread. None overtakes one that was rejected."""
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        with closing(group.caller("n0").hello()) as caller:
            writes = count()
            write = MappedFile.write

            def sometimes_full(file: MappedFile, pos: int, data: bytes) -> None:
                if next(writes) < 2:
                    raise OSError(errno.ENOSPC, "No space left on device")
                write(file, pos, data)

            monkeypatch.setattr(MappedFile, "write", sometimes_full)
            assert caller.append(b"first").code == ResponseCode.DISK_FULL
            requests = [AppendRequest(bodies=packed(b"%d" % number), is_restart=not number) for number in range(5)]
            opaques = [caller.send(request) for request in requests]
            assert {caller.receive(opaque).code for opaque in opaques} == {ResponseCode.DISK_FULL}
            assert caller.append(b"last").code == 200
