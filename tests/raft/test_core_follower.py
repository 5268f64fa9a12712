"""The core of a follower: pushed entries, durability, and leaders that contradict themselves."""

from __future__ import annotations

import struct

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.codec import crc32
from pyspark_dledger.raft.core.pushed_entries import are_equal, only_entry, split
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    PushRequest,
    PushResponse,
    PushType,
)
from pyspark_dledger.store.memory_store import MemoryStore
from tests.support.one_core import SIZE, OneCore, entry, filled, problem_of


@pytest.mark.parametrize(
    "data",
    [
        b"",
        entry(0, 1)[:47],
        entry(0, 1)[:-1],
        entry(0, 1) + entry(2, 1),
        entry(0, 1) + b"\0" * 48,
        struct.pack(">ii", 1, -1) + bytes(44),
        struct.pack(">ii", 1, 47) + bytes(44),
        struct.pack(">iiqqq", 1, 48, -1, 0, 0) + bytes(16),
        struct.pack(">iiqqq", 1, 48, 0, 0, -1) + bytes(16),
    ],
)
def test_malformed_entries_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        split(data)
    core = OneCore()
    core.follow()
    for kind in (PushType.APPEND, PushType.COMPARE, PushType.TRUNCATE):
        request = PushRequest(leader_id="n1", term=3, type=kind, first_index=0, count=1, data=data)
        response = core.request(request)
        assert isinstance(response, PushResponse) and response.code == ResponseCode.INCONSISTENT_STATE
        response = core.request(PushRequest(leader_id="n1", term=3, type=kind))
        assert response is not None and response.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert core.store.ledger_end_index == -1


def test_entries_are_split() -> None:
    assert [found.index for found in split(memoryview(entry(4, 1) + entry(5, 2)))] == [4, 5]
    with pytest.raises(ValueError, match="found 2"):
        only_entry(entry(4, 1) + entry(5, 2))


def test_the_channel_makes_entries_differ_but_checksums_do_not() -> None:
    one = entry(1, 1)
    assert are_equal(one, one[:36] + b"12345678" + one[44:])
    assert not are_equal(one, one[:35] + b"1" + one[36:])
    assert not are_equal(one, entry(1, 1, body=b"else"))
    assert not are_equal(one, entry(1, 1, body=b"longer"))


def test_entries_of_two_files_in_one_push_are_appended() -> None:
    """Java makes batches by size only."""
    leader = filled(*[1] * 12, file_size=5 * SIZE + 8)
    core = OneCore(MemoryStore(data_file_size=5 * SIZE + 8))
    core.follow()
    entries = [bytes(leader.read(index, 1).data) for index in range(12)]
    assert core.code(PushType.APPEND, *entries) == ResponseCode.SUCCESS
    assert [core.store.get(index) for index in range(12)] == [leader.get(index) for index in range(12)]


def test_a_push_with_a_wrong_count_is_rejected() -> None:
    core = OneCore()
    core.follow()
    data = entry(0, 3) + entry(1, 3)
    request = PushRequest(leader_id="n1", term=3, first_index=0, count=9, data=data)
    response = core.request(request)
    assert response is not None and response.code == ResponseCode.UNEXPECTED_ARGUMENT


def test_duplicate_entries_are_accepted() -> None:
    core = OneCore()
    core.follow()
    entries = [entry(index, 3) for index in range(6)]
    assert core.code(PushType.APPEND, *entries[:4]) == ResponseCode.SUCCESS
    checksum = crc32(entries[4][48:]).to_bytes(4, "big")
    changed = [data[:40] + checksum + data[44:] for data in entries]
    for pushed in (entries[:2], entries[1:3], changed[:4], changed[2:5], entries[1:], entries):
        assert core.code(PushType.APPEND, *pushed) == ResponseCode.SUCCESS
    assert core.store.ledger_end_index == 5
    assert [bytes(core.store.read(index, 1).data) for index in (0, 3, 5)] == [entries[0], entries[3], entries[5]]


def test_entries_are_overwritten_from_the_first_difference_on() -> None:
    core = OneCore(filled(1, 1, 1, 1))
    core.follow()
    assert core.code(PushType.COMPARE, entry(0, 1)) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(1, 1), entry(2, 2)) == ResponseCode.SUCCESS
    assert [core.store.term_at(index) for index in range(3)] == [1, 1, 2]
    assert core.store.ledger_end_index == 2


def test_a_comparison_is_acknowledged_once_the_entry_is_durable() -> None:
    store = filled(1, 1)
    store.append_as_leader([b"0002"], 1)
    core = OneCore(store, is_sync=True)
    core.follow()
    assert core.code(PushType.COMPARE, entry(1, 1)) == ResponseCode.SUCCESS
    assert core.push(PushType.COMPARE, entry(2, 1)) is None
    store.flush()
    core.core.persisted(2, core.now)
    core.drain()
    assert [response.code for response in core.responses] == [ResponseCode.SUCCESS]


def test_a_late_flush_does_not_count_for_overwritten_entries() -> None:
    store = filled(1, 1, 1)
    core = OneCore(store, is_sync=True)
    core.follow()
    core.push(PushType.COMPARE, entry(0, 1))
    assert core.push(PushType.APPEND, entry(1, 3), entry(2, 3)) is None
    core.core.persisted(2, core.now)
    core.drain()
    assert core.responses == []
    store.flush()
    core.core.persisted(2, core.now)
    core.drain()
    assert [response.code for response in core.responses] == [ResponseCode.SUCCESS]


def test_responses_that_wait_for_the_disk_end_with_their_term() -> None:
    core = OneCore(is_sync=True)
    core.follow()
    assert core.push(PushType.APPEND, entry(0, 3)) is None
    core.core.handle(HeartBeatRequest(leader_id="n2", term=4, remote_id="n0", group="g"), 1, core.now)
    core.drain()
    assert [response.code for response in core.responses] == [ResponseCode.EXPIRED_TERM, ResponseCode.TERM_NOT_READY]


def test_a_leader_cannot_overwrite_its_own_entries() -> None:
    core = OneCore()
    core.follow()
    core.push(PushType.APPEND, entry(0, 3), entry(1, 3))
    assert core.code(PushType.APPEND, entry(0, 3), entry(1, 2)) == ResponseCode.INCONSISTENT_STATE
    assert core.code(PushType.TRUNCATE, entry(1, 2)) == ResponseCode.INCONSISTENT_STATE
    assert core.store.get(1).term == 3
    assert "dledger diff" in core.core.problems[0] and core.core.status().problems == 2


def test_a_late_first_entry_does_not_reset_a_matched_log() -> None:
    core = OneCore()
    core.follow()
    assert core.code(PushType.TRUNCATE, entry(9, 3)) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(10, 3)) == ResponseCode.SUCCESS
    assert core.code(PushType.TRUNCATE, entry(5, 2)) == ResponseCode.INCONSISTENT_STATE
    assert (core.store.ledger_begin_index, core.store.ledger_end_index) == (9, 10)
    assert core.code(PushType.APPEND, entry(8, 2), entry(9, 3), entry(10, 3)) == ResponseCode.SUCCESS


def test_the_next_entry_of_the_same_term_is_appended_without_a_comparison() -> None:
    core = OneCore(filled(1, 2, saved=2))
    core.follow()
    assert core.code(PushType.TRUNCATE, entry(2, 2)) == ResponseCode.SUCCESS
    assert (core.store.ledger_begin_index, core.store.ledger_end_index) == (0, 2)


def test_a_first_entry_after_a_log_that_may_differ_begins_a_new_log() -> None:
    core = OneCore(filled(1, 1, saved=2))
    core.follow()
    assert core.reset_code(entry(2, 2)) == ResponseCode.SUCCESS
    assert (core.store.ledger_begin_index, core.store.ledger_end_index) == (2, 2)


def test_a_follower_with_another_file_size_reports_it_until_it_can_append() -> None:
    core = OneCore(filled(3, 3, saved=3, file_size=3 * SIZE + 8))
    core.follow()
    for _ in range(5):
        assert core.code(PushType.COMPARE, entry(1, 3)) == ResponseCode.SUCCESS
        assert core.code(PushType.APPEND, entry(2, 3, 4096)) == ResponseCode.INCONSISTENT_STATE
        core.now += 500
    expected = (
        "APPEND of leader n1 cannot be accepted: expected entries at 104 or 164, found pos 4096: data file sizes must "
        "be equal at every member, here they are 164 bytes"
    )
    assert (list(core.core.problems), core.core.status().problems, problem_of(core)) == ([expected], 5, expected)
    core.now = 10_000
    core.push(PushType.APPEND, entry(2, 3, 4096))
    assert len(core.core.problems) == 2
    assert core.code(PushType.APPEND, entry(1, 3)) == ResponseCode.SUCCESS and problem_of(core) == expected
    assert core.code(PushType.APPEND, entry(2, 3)) == ResponseCode.SUCCESS and problem_of(core) == ""


def test_a_problem_that_does_not_recur_is_resolved() -> None:
    core = OneCore(filled(3, saved=3))
    core.follow()
    core.push(PushType.APPEND, entry(1, 3, 4096))
    core.now = 59_000
    assert "found pos 4096" in problem_of(core)
    core.now = 60_000
    assert problem_of(core) == "" and len(core.core.problems) == 1


def test_a_reset_log_reports_the_entries_that_it_never_gets() -> None:
    core = OneCore(filled(1, 1, saved=2))
    core.follow()
    assert core.reset_code(entry(9, 3)) == ResponseCode.SUCCESS
    (problem,) = core.core.problems
    assert problem == "entries 2 to 8 have expired at leader n1: this log restarts at 9" and problem_of(core) == problem
    new = OneCore()
    new.follow()
    assert new.code(PushType.TRUNCATE, entry(0, 3)) == ResponseCode.SUCCESS
    assert not new.core.problems
