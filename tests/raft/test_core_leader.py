"""The core of a leader: replication, transfers, and reads of damaged entries."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.messages import (
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    PushResponse,
    PushType,
    PutRequest,
    Role,
    StatusRequest,
    StatusResponse,
    TransferRequest,
    TransferResponse,
)
from pyspark_dledger.store.memory_store import MemoryStore
from tests.support.one_core import OneCore, filled, lead_with_equal_peer, problem_of, pushes, respond_push


def test_a_malformed_block_of_bodies_is_rejected() -> None:
    core = OneCore()
    core.lead()
    for bodies in (Bodies(2, bytes(4)), Bodies(1, b"\0\0\0\5abc"), Bodies(-1, b"")):
        request = AppendRequest(bodies=bodies)
        response = core.request(request)
        assert response is not None and response.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert core.store.ledger_end_index == -1


@pytest.mark.parametrize("kind", [AppendRequest, PutRequest])
def test_an_append_that_makes_too_many_bytes_is_rejected(kind: type[AppendRequest]) -> None:
    """Empty bodies: each is 4 bytes on the wire, and 80 in the store."""
    core = OneCore()
    core.lead()
    response = core.request(kind(bodies=Bodies(1_000_000, bytes(4_000_000))))
    assert response is not None and response.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert core.store.ledger_end_index == -1


def test_the_status_of_a_leader_lists_its_peers() -> None:
    core = OneCore()
    core.core.set_peer_binary("n2", True)
    core.lead()
    core.append(b"one")
    status = core.core.status()
    assert (status.role, status.end_index, status.pending_appends) == (Role.LEADER, 0, 1)
    assert [(peer.peer_id, peer.match_index, peer.is_live, peer.is_binary) for peer in status.peers] == [
        ("n1", -1, False, False),
        ("n2", -1, False, True),
    ]
    response = core.request(StatusRequest())
    assert isinstance(response, StatusResponse) and response.peers == {"n0": "127.0.0.1:1"}


def test_invalid_transfers_are_rejected() -> None:
    core = OneCore()
    core.lead()
    for transfer, transferee, code in (("n0", "n9", 401), ("n0", "n0", 411), ("n1", "n2", 411), ("n1", "n0", 409)):
        request = TransferRequest(transfer_id=transfer, transferee_id=transferee, term=core.core.term)
        response = core.request(request)
        assert response is not None and response.code == code
    assert core.core.transferee is None


def test_a_transfer_without_a_response_ends() -> None:
    core = OneCore(max_heart_beat_leak=1000)
    core.lead()
    assert core.request(TransferRequest(transfer_id="n0", transferee_id="n1", term=core.core.term)) is None
    assert core.core.transferee == "n1"
    response = core.append(b"one")
    assert response is not None and response.code == ResponseCode.LEADER_TRANSFERRING
    core.tick(10_000)
    assert core.core.transferee is None
    core.tick(30_000)
    assert ResponseCode.NETWORK_ERROR in [response.code for response in core.responses]


def test_clients_get_few_transfers_and_none_to_a_member_that_is_down() -> None:
    core = OneCore(max_heart_beat_leak=10)

    def ask() -> int | None:
        request = TransferRequest(transfer_id="n0", transferee_id="n1", term=core.core.term)
        response = core.request(request)
        return None if response is None else response.code

    def fail() -> None:
        sent = next(each for each in core.sent if isinstance(each.request, TransferRequest))
        core.sent.remove(sent)
        core.core.handle_response(sent.token, TransferResponse(code=ResponseCode.FALL_BEHIND_TOO_MUCH), core.now)
        core.drain()

    core.lead()
    for _ in range(3):
        assert ask() is None
        fail()
    assert ask() == ResponseCode.LEADER_TRANSFERRING
    assert core.append(b"accepted") is None and core.core.transferee is None
    again = OneCore(max_heart_beat_leak=2, heart_beat_time_interval_ms=100)
    again.lead()
    again.tick(200)
    request = TransferRequest(transfer_id="n0", transferee_id="n1", term=again.core.term)
    again.now += 1
    response = again.request(request)
    assert response is not None and response.code == ResponseCode.NETWORK_ERROR


class Damaged(MemoryStore):
    """A store with unreadable entries."""

    def get(self, index: int) -> Any:
        raise StoreError("file 0 at byte 0: damaged")

    def read(self, first_index: int, max_bytes: int) -> Any:
        raise StoreError("file 0 at byte 0: damaged")


def test_damaged_entries_are_a_problem_and_a_code() -> None:
    store = Damaged()
    store.append_as_leader([b"one"], 0)
    core = OneCore(store)
    core.lead()
    response = core.request(GetRequest(begin_index=0, is_committed=False))
    assert response is not None and response.code == ResponseCode.DISK_ERROR
    core.tick(3000)
    assert sorted(core.core.problems) == [
        (
            "damaged entries: 1, the first is 0 (file 0 at byte 0: damaged): neither served nor pushed until another "
            "member gives a copy"
        ),
        "entries for n1 cannot be read: file 0 at byte 0: damaged",
        "entries for n2 cannot be read: file 0 at byte 0: damaged",
        "entry 0 cannot be read: file 0 at byte 0: damaged",
    ]
    assert core.core.status().problems > 6


@pytest.mark.parametrize("is_committed", [False, True])
def test_damaged_entries_are_a_code_for_every_get(is_committed: bool) -> None:
    store = Damaged()
    store.append_as_leader([b"one"], 0)
    core = OneCore(store, peers=1)
    core.tick(50)
    response = core.request(GetRequest(begin_index=0, is_committed=is_committed))
    assert response is not None and response.code == ResponseCode.DISK_ERROR


@pytest.mark.parametrize("enabled", [True, False])
def test_an_old_java_follower_gets_batches_or_single_entries_as_it_accepts_them(enabled: bool) -> None:
    core = lead_with_equal_peer(enable_batch_push=enabled)
    core.append(b"one")
    ((token, request),) = pushes(core, PushType.APPEND)
    assert request.is_batch is enabled
    respond_push(core, token, code=ResponseCode.UNEXPECTED_ARGUMENT)
    core.tick(100)
    ((token, _),) = pushes(core, PushType.COMPARE)
    respond_push(core, token, code=406, begin=0, end=1)
    ((token, _),) = pushes(core, PushType.COMPARE)
    respond_push(core, token, begin=0, end=1)
    ((_, request),) = pushes(core, PushType.APPEND)
    assert request.is_batch is not enabled


def reject_pushes(core: OneCore, times: int) -> None:
    """The peer has entry 1, and rejects the next one several times."""
    for _ in range(times):
        for token, _ in pushes(core, PushType.APPEND):
            respond_push(core, token, code=ResponseCode.INCONSISTENT_STATE, begin=0, end=1)
        while not (compared := pushes(core, PushType.COMPARE)):
            core.tick(10)
        respond_push(core, compared[0][0], code=ResponseCode.INCONSISTENT_STATE, begin=0, end=1)
        ((token, _),) = pushes(core, PushType.COMPARE)
        core.core.handle_response(
            token, PushResponse(code=200, term=core.core.term, begin_index=0, end_index=1), core.now
        )
        core.drain()


def test_a_peer_that_rejects_every_push_is_a_problem() -> None:
    core = lead_with_equal_peer(max_heart_beat_leak=1000)
    core.append(b"one")
    reject_pushes(core, 4)
    assert not core.core.problems
    reject_pushes(core, 3)
    (problem,) = core.core.problems
    assert problem.startswith("n1 rejected entry 2 5 times in a row (INCONSISTENT_STATE)")
    assert "its log ends at 1" in problem and "data file sizes must be equal" in problem
    assert "rejected entry 2 7 times" in problem_of(core)
    ((token, _),) = pushes(core, PushType.APPEND)
    respond_push(core, token, begin=0, end=2)
    assert problem_of(core) == ""


def test_pushes_without_a_response_are_repeated_once_before_a_comparison() -> None:
    core = lead_with_equal_peer()
    core.append(b"one")
    assert len(pushes(core, PushType.APPEND)) == 1
    core.tick(1000)
    ((first, request),) = pushes(core, PushType.APPEND)
    assert request.first_index == 2
    core.tick(1600)
    ((token, request),) = pushes(core, PushType.COMPARE)
    assert request.first_index == 2
    # The response is stale: the request was sent before the comparison.
    respond_push(core, first, begin=0, end=2)
    assert core.core.committed_index == 1
    respond_push(core, token, begin=0, end=2)
    assert core.core.committed_index == 2


def test_an_entry_that_expires_at_a_peer_during_a_comparison_truncates_nothing() -> None:
    """Entries 7 and 8 can be common, and the peer may be one of those that committed them."""
    core = OneCore(filled(*[0] * 10))
    core.core.set_peer_binary("n1", True)
    core.lead()
    ((token, request),) = pushes(core, PushType.COMPARE)
    respond_push(core, token, code=ResponseCode.INCONSISTENT_STATE, begin=0, end=request.first_index)
    ((token, request),) = pushes(core, PushType.COMPARE)
    assert request.first_index < 7
    respond_push(core, token, code=ResponseCode.INCONSISTENT_STATE, begin=7, end=9)
    ((token, request),) = pushes(core, PushType.COMPARE)
    assert request.first_index in (7, 8)


def test_a_peer_that_lost_entries_is_detected_by_its_response_to_commit() -> None:
    core = lead_with_equal_peer()
    core.append(b"one")
    ((token, _),) = pushes(core, PushType.APPEND)
    respond_push(core, token, begin=0, end=2)
    core.tick(100)
    ((token, request),) = pushes(core, PushType.COMMIT)
    assert request.commit_index == 2
    respond_push(core, token, begin=0, end=0)
    core.tick(100)
    assert len(pushes(core, PushType.COMPARE)) == 1


def test_a_leader_whose_clock_goes_back_sends_heartbeats_in_time() -> None:
    core = OneCore(heart_beat_time_interval_ms=1000)
    core.lead()
    core.sent.clear()
    core.now -= 60_000
    core.tick(1100)
    assert any(isinstance(send.request, HeartBeatRequest) for send in core.sent)
