"""Small rules of the core that scripts and the simulation say nothing of: bad input, files, durability, restarts."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError, OptionError, StoreError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core import Core, CoreConfig, Reply, Send
from pyspark_dledger.raft.core.application import Admitted, Application, Refused
from pyspark_dledger.raft.core.pushed_entries import only_entry, same, split
from pyspark_dledger.raft.core.serving import ApplicationError
from pyspark_dledger.raft.messages import (
    AppendRequest,
    ConfigRequest,
    ConfigResponse,
    GetRequest,
    HeartBeatRequest,
    MetadataRequest,
    PushRequest,
    PushResponse,
    PushType,
    PutRequest,
    PutResponse,
    ReadRequest,
    Request,
    Response,
    Role,
    StatusRequest,
    StatusResponse,
    TopicsRequest,
    TopicsResponse,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.store.dledger_store import AppendedEntries
from pyspark_dledger.store.memory_store import MemoryStore
from tests.simulation.ledger import Ledger, Message, pack, places

SIZE = 48 + 4


def entry(index: int, term: int, pos: int | None = None, body: bytes | None = None) -> bytes:
    body = b"%04d" % index if body is None else body
    return encode_entry(index, term, index * SIZE if pos is None else pos, body)


class OneCore:
    """One core whose peers are the test."""

    def __init__(
        self, store: MemoryStore | None = None, peers: int = 3, application: Application | None = None, **options: Any
    ) -> None:
        self.store = store or MemoryStore()
        self.now = 0
        config = CoreConfig("g", "n0", tuple(f"n{number}" for number in range(peers)), **options)
        self.core = Core(config, self.store, Random(7), 0, {"n0": "127.0.0.1:1"}, application)
        self.sent: list[Send] = []
        self.answers: list[Response] = []

    def drain(self) -> None:
        for effect in self.core.drain():
            if isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, Reply):
                self.answers.append(effect.answer)

    def ask(self, request: Request, remote: str | None = "n0", group: str | None = "g") -> Response | None:
        """The answer to a request where there is one at once."""
        request.remote_id, request.group = remote, group
        self.answers.clear()
        self.core.handle(request, object(), self.now)
        self.drain()
        return self.answers[0] if self.answers else None

    def push(self, kind: PushType, *data: bytes, term: int = 3, leader: str = "n1", **fields: Any) -> Response | None:
        first = struct.unpack_from(">q", data[0], 8)[0] if data else -1
        request = PushRequest(
            leader_id=leader, term=term, type=kind, first_index=first, count=len(data), data=b"".join(data), **fields
        )
        return self.ask(request)

    def code(self, kind: PushType, *data: bytes, **fields: Any) -> int:
        answer = self.push(kind, *data, **fields)
        assert answer is not None
        return answer.code

    def follow(self, term: int = 3) -> None:
        self.ask(HeartBeatRequest(leader_id="n1", term=term))
        self.ask(HeartBeatRequest(leader_id="n1", term=term))
        assert self.core.role is Role.FOLLOWER

    def tick(self, time: int) -> None:
        for _ in range(time // 10):
            self.now += 10
            self.core.tick(self.now)
            self.drain()

    def lead(self) -> None:
        self.tick(300)
        vote = next(send for send in self.sent if isinstance(send.request, VoteRequest))
        answer = VoteResponse(vote_result=VoteResult.ACCEPT, term=self.core.term)
        self.core.answered(vote.token, answer, self.now)
        self.drain()
        assert self.core.role is Role.LEADER

    def append(self, *bodies: bytes) -> Response | None:
        block = struct.pack(f">{len(bodies)}I", *map(len, bodies)) + b"".join(bodies)
        return self.ask(AppendRequest(bodies=Bodies(len(bodies), block)))


def filled(*terms: int, committed: int = -1, saved: int = 0, file_size: int = 1 << 30) -> MemoryStore:
    store = MemoryStore(data_file_size=file_size)
    for index, term in enumerate(terms):
        store.append_as_leader([b"%04d" % index], term)
    store.flush()
    store.update_committed_index(saved or 9, committed)
    store.save_term(saved, None)
    return store


# Entries from the wire


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
def test_what_is_no_entries_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        split(data)
    core = OneCore()
    core.follow()
    for kind in (PushType.APPEND, PushType.COMPARE, PushType.TRUNCATE):
        request = PushRequest(leader_id="n1", term=3, type=kind, first_index=0, count=1, data=data)
        answer = core.ask(request)
        assert isinstance(answer, PushResponse) and answer.code == ResponseCode.INCONSISTENT_STATE
        answer = core.ask(PushRequest(leader_id="n1", term=3, type=kind))
        assert answer is not None and answer.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert core.store.ledger_end_index == -1


def test_entries_are_taken_apart() -> None:
    assert [piece.index for piece in split(memoryview(entry(4, 1) + entry(5, 2)))] == [4, 5]
    with pytest.raises(ValueError, match="found 2"):
        only_entry(entry(4, 1) + entry(5, 2))


def test_checksums_do_not_make_entries_differ_but_the_channel_does() -> None:
    one = entry(1, 1)
    assert same(one, one[:36] + b"12345678" + one[44:])
    assert not same(one, one[:35] + b"1" + one[36:])
    assert not same(one, entry(1, 1, body=b"else"))
    assert not same(one, entry(1, 1, body=b"longer"))


def test_entries_of_two_files_in_one_push_are_appended() -> None:
    """Java batches them by size alone."""
    leader = filled(*[1] * 12, file_size=5 * SIZE + 8)
    core = OneCore(MemoryStore(data_file_size=5 * SIZE + 8))
    core.follow()
    entries = [bytes(leader.read(index, 1).data) for index in range(12)]
    assert core.code(PushType.APPEND, *entries) == ResponseCode.SUCCESS
    assert [core.store.get(index) for index in range(12)] == [leader.get(index) for index in range(12)]


def test_a_push_that_counts_wrong_is_refused() -> None:
    core = OneCore()
    core.follow()
    data = entry(0, 3) + entry(1, 3)
    request = PushRequest(leader_id="n1", term=3, first_index=0, count=9, data=data)
    answer = core.ask(request)
    assert answer is not None and answer.code == ResponseCode.UNEXPECTED_ARGUMENT


def test_entries_that_are_here_already_are_taken_again() -> None:
    core = OneCore()
    core.follow()
    entries = [entry(index, 3) for index in range(6)]
    assert core.code(PushType.APPEND, *entries[:4]) == ResponseCode.SUCCESS
    changed = [data[:36] + b"checksum" + data[44:] for data in entries]
    for pushed in (entries[:2], entries[1:3], changed[:4], changed[2:5], entries[1:], entries):
        assert core.code(PushType.APPEND, *pushed) == ResponseCode.SUCCESS
    assert core.store.ledger_end_index == 5
    assert [bytes(core.store.read(index, 1).data) for index in (0, 3, 5)] == [entries[0], entries[3], entries[5]]


def test_what_differs_is_replaced_from_the_first_difference_on() -> None:
    core = OneCore(filled(1, 1, 1, 1))
    core.follow()
    assert core.code(PushType.COMPARE, entry(0, 1)) == ResponseCode.SUCCESS
    assert core.code(PushType.APPEND, entry(1, 1), entry(2, 2)) == ResponseCode.SUCCESS
    assert [core.store.term_at(index) for index in range(3)] == [1, 1, 2]
    assert core.store.ledger_end_index == 2


# What is durable


def test_a_comparison_is_answered_once_the_entry_is_durable() -> None:
    store = filled(1, 1)
    store.append_as_leader([b"0002"], 1)
    core = OneCore(store, is_sync=True)
    core.follow()
    assert core.code(PushType.COMPARE, entry(1, 1)) == ResponseCode.SUCCESS
    assert core.push(PushType.COMPARE, entry(2, 1)) is None
    store.flush()
    core.core.persisted(2, core.now)
    core.drain()
    assert [answer.code for answer in core.answers] == [ResponseCode.SUCCESS]


def test_a_late_notice_of_the_disk_does_not_count_for_what_replaced_the_entries() -> None:
    store = filled(1, 1, 1)
    core = OneCore(store, is_sync=True)
    core.follow()
    core.push(PushType.COMPARE, entry(0, 1))
    assert core.push(PushType.APPEND, entry(1, 3), entry(2, 3)) is None
    core.core.persisted(2, core.now)
    core.drain()
    assert core.answers == []
    store.flush()
    core.core.persisted(2, core.now)
    core.drain()
    assert [answer.code for answer in core.answers] == [ResponseCode.SUCCESS]


def test_answers_that_wait_for_the_disk_end_with_their_term() -> None:
    core = OneCore(is_sync=True)
    core.follow()
    assert core.push(PushType.APPEND, entry(0, 3)) is None
    core.core.handle(HeartBeatRequest(leader_id="n2", term=4, remote_id="n0", group="g"), 1, core.now)
    core.drain()
    assert [answer.code for answer in core.answers] == [ResponseCode.EXPIRED_TERM, ResponseCode.TERM_NOT_READY]


# A leader that contradicts itself, or a log that begins behind


def test_what_a_leader_pushed_before_is_not_replaced_by_the_same_leader() -> None:
    core = OneCore()
    core.follow()
    core.push(PushType.APPEND, entry(0, 3), entry(1, 3))
    assert core.code(PushType.APPEND, entry(0, 3), entry(1, 2)) == ResponseCode.INCONSISTENT_STATE
    assert core.code(PushType.TRUNCATE, entry(1, 2)) == ResponseCode.INCONSISTENT_STATE
    assert core.store.get(1).term == 3
    assert "dledger diff" in core.core.problems[0] and core.core.status().problems == 2


def test_a_late_first_entry_does_not_reset_what_was_matched_since() -> None:
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


def test_a_first_entry_behind_a_log_that_may_differ_begins_a_new_log() -> None:
    core = OneCore(filled(1, 1, saved=2))
    core.follow()
    assert core.code(PushType.TRUNCATE, entry(2, 2)) == ResponseCode.SUCCESS
    assert (core.store.ledger_begin_index, core.store.ledger_end_index) == (2, 2)


class FullAfterReset(MemoryStore):
    """Has room again when told so."""

    is_full = False

    def append_as_follower(self, data: Any, leader_term: int) -> int:
        if self.is_full:
            raise DiskFullError("no room")
        return super().append_as_follower(data, leader_term)


def test_an_emptied_log_is_no_reason_to_vote_for_a_shorter_one() -> None:
    store = FullAfterReset()
    for term in (1, 1, 2):
        store.append_as_leader([b"0000"], term)
    core = OneCore(store)
    core.follow()
    store.is_full = True
    assert core.code(PushType.TRUNCATE, entry(9, 3)) == ResponseCode.INCONSISTENT_STATE
    assert store.ledger_end_index == -1
    request = VoteRequest(leader_id="n2", term=4, ledger_end_index=1, ledger_end_term=2)
    answer = core.ask(request)
    assert isinstance(answer, VoteResponse) and answer.vote_result is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    core.sent.clear()
    core.tick(10_000)
    assert core.sent == []


# Terms and restarts


def asked_terms(core: OneCore) -> list[int]:
    """The terms of the votes that were asked of n1, and forgets them."""
    terms = [send.request.term for send in core.sent if isinstance(send.request, VoteRequest) and send.peer_id == "n1"]
    core.sent.clear()
    return terms


@pytest.mark.parametrize("saved", [4, 0])
def test_a_member_that_may_have_led_a_term_does_not_lead_it_again(saved: int) -> None:
    """Also where the term was lost, and with it the vote."""
    store = filled(1, 4)
    store.save_term(saved, "n0" if saved else None)
    core = OneCore(store)
    core.tick(300)
    vote = core.sent[0].token
    assert asked_terms(core) == [4]
    core.core.answered(vote, VoteResponse(vote_result=VoteResult.ACCEPT, term=4), core.now)
    assert core.core.role is Role.CANDIDATE
    core.tick(10)
    assert asked_terms(core) == [5] and (store.curr_term, store.vote_leader) == (5, "n0")


def test_a_member_that_may_have_led_leaves_a_leader_alone() -> None:
    store = filled(1, 4)
    store.save_term(4, "n0")
    core = OneCore(store)
    core.tick(300)
    answer = VoteResponse(vote_result=VoteResult.REJECT_ALREADY_HAS_LEADER, term=4)
    core.core.answered(core.sent[0].token, answer, core.now)
    core.tick(2000)
    assert asked_terms(core) == [4]
    core.follow(4)
    assert (core.core.term, core.core.leader_id) == (4, "n1")


def test_a_member_that_voted_for_another_stands_in_that_term_but_does_not_lead_it() -> None:
    store = filled(1, 4)
    store.save_term(4, "n2")
    core = OneCore(store)
    core.tick(300)
    for send in list(core.sent):
        core.core.answered(send.token, VoteResponse(vote_result=VoteResult.ACCEPT, term=4), core.now)
    assert asked_terms(core) == [4] and core.core.role is Role.CANDIDATE
    core.tick(10)
    assert asked_terms(core) == [5]


def test_one_node_keeps_its_term() -> None:
    store = MemoryStore()
    for _ in range(3):
        core = OneCore(store, peers=1)
        core.tick(10)
        assert (core.core.role, core.core.term) == (Role.LEADER, 0)
        answer = core.append(b"a", b"b")
        assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert core.core.committed_index == 5


def test_a_lost_term_is_taken_from_the_log_and_nobody_else_gets_its_vote() -> None:
    store = filled(1, 7, saved=0)
    core = OneCore(store)
    assert (store.curr_term, core.core.term) == (7, 7)
    request = VoteRequest(leader_id="n1", term=7, ledger_end_index=9, ledger_end_term=7)
    answer = core.ask(request)
    assert isinstance(answer, VoteResponse) and answer.vote_result is VoteResult.REJECT_ALREADY_VOTED


@pytest.mark.parametrize("term", [2**62 + 1, 2**63 - 1])
def test_a_term_that_leaves_no_room_is_not_adopted(term: int) -> None:
    core = OneCore()
    for request in (
        VoteRequest(leader_id="n1", term=term),
        HeartBeatRequest(leader_id="n1", term=term),
        PushRequest(leader_id="n1", term=term, type=PushType.COMMIT),
    ):
        assert core.ask(request) is not None
    assert core.core.term == 0


class BrokenTerm(MemoryStore):
    """Cannot save terms."""

    def save_term(self, term: int, vote_leader: str | None) -> None:
        raise StoreError("disk broken")


def test_without_a_saved_term_nothing_is_answered_or_asked() -> None:
    core = OneCore(BrokenTerm())
    assert core.ask(VoteRequest(leader_id="n1", term=1)) is None
    assert core.ask(HeartBeatRequest(leader_id="n1", term=1)) is None
    assert core.push(PushType.COMMIT, term=1) is None
    core.tick(5000)
    assert core.sent == [] and core.core.term == 0
    assert "disk broken" in core.core.problems[0]


# Requests


def test_requests_to_somebody_else_are_refused() -> None:
    core = OneCore()
    for request in (VoteRequest(), MetadataRequest(), PushRequest(), Request(), StatusRequest()):
        answer = core.ask(request, remote="n1")
        assert answer is not None and answer.code == ResponseCode.UNKNOWN_MEMBER
        answer = core.ask(request, group="h")
        assert answer is not None and answer.code == ResponseCode.UNKNOWN_GROUP
    for request in (Request(), ReadRequest()):
        answer = core.ask(request)
        assert answer is not None and answer.code == ResponseCode.UNSUPPORTED


def test_whoever_is_no_other_member_is_refused() -> None:
    core = OneCore()
    for leader, code in ((None, 401), ("n9", 401), ("n0", 402)):
        request = PushRequest(leader_id=leader, term=5, type=PushType.COMMIT)
        answer = core.ask(request)
        assert answer is not None and answer.code == code
    assert core.core.term == 0


def test_handle_tells_at_once_of_refused_appends_only() -> None:
    core = OneCore()
    request = AppendRequest(group="g", remote_id="n0", bodies=Bodies(1, bytes(4)))
    assert not core.core.handle(request, 1, 0)
    assert not core.core.handle(AppendRequest(group="h", remote_id="n0"), 1, 0)
    assert core.core.handle(GetRequest(group="g", remote_id="n0"), 1, 0)
    core.lead()
    assert core.core.handle(request, 1, core.now)


def test_a_block_that_is_no_bodies_is_refused() -> None:
    core = OneCore()
    core.lead()
    for bodies in (Bodies(2, bytes(4)), Bodies(1, b"\0\0\0\5abc"), Bodies(-1, b"")):
        request = AppendRequest(bodies=bodies)
        answer = core.ask(request)
        assert answer is not None and answer.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert core.store.ledger_end_index == -1


def test_status_tells_how_a_leader_sees_its_peers() -> None:
    core = OneCore()
    core.core.peer_is_ours("n2", True)
    core.lead()
    core.append(b"one")
    status = core.core.status()
    assert (status.role, status.end_index, status.pending_appends) == (Role.LEADER, 0, 1)
    assert [(peer.peer_id, peer.match_index, peer.is_live, peer.is_ours) for peer in status.peers] == [
        ("n1", -1, False, False),
        ("n2", -1, False, True),
    ]
    answer = core.ask(StatusRequest())
    assert isinstance(answer, StatusResponse) and answer.peers == {"n0": "127.0.0.1:1"}


def test_transfers_that_make_no_sense_are_refused() -> None:
    core = OneCore()
    core.lead()
    for transfer, transferee, code in (("n0", "n9", 401), ("n0", "n0", 411), ("n1", "n2", 411), ("n1", "n0", 409)):
        request = TransferRequest(transfer_id=transfer, transferee_id=transferee, term=core.core.term)
        answer = core.ask(request)
        assert answer is not None and answer.code == code
    assert core.core.transferee is None


def test_a_transfer_that_nobody_answers_ends() -> None:
    core = OneCore(max_heart_beat_leak=1000)
    core.lead()
    assert core.ask(TransferRequest(transfer_id="n0", transferee_id="n1", term=core.core.term)) is None
    assert core.core.transferee == "n1"
    answer = core.append(b"one")
    assert answer is not None and answer.code == ResponseCode.LEADER_TRANSFERRING
    core.tick(10_000)
    assert core.core.transferee is None
    core.tick(30_000)
    assert ResponseCode.NETWORK_ERROR in [answer.code for answer in core.answers]


@pytest.mark.parametrize(
    "options",
    [
        {"peers": ("n1",)},
        {"peers": ("n0", "n0")},
        {"min_vote_interval_ms": 1000},
        {"max_push_bytes": 0},
        {"max_take_leadership_vote_interval_ms": 30},
    ],
)
def test_settings_that_fit_no_group(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        CoreConfig(**{"group": "g", "self_id": "n0", "peers": ("n0",), **options})


# What an operator is told


def problem_of(core: OneCore) -> str:
    answer = core.ask(StatusRequest())
    assert isinstance(answer, StatusResponse) and answer.problem == core.core.status().problem
    return answer.problem


def test_a_follower_with_other_data_files_says_so_until_it_goes_on() -> None:
    core = OneCore(filled(3, 3, saved=3, file_size=3 * SIZE + 8))
    core.follow()
    for _ in range(5):
        assert core.code(PushType.COMPARE, entry(1, 3)) == ResponseCode.SUCCESS
        assert core.code(PushType.APPEND, entry(2, 3, 4096)) == ResponseCode.INCONSISTENT_STATE
        core.now += 500
    expected = (
        "APPEND of leader n1 cannot be taken: expected entries at 104 or 164, found pos 4096: data file sizes must be "
        "equal at every member, here they are 164 bytes"
    )
    assert (list(core.core.problems), core.core.status().problems, problem_of(core)) == ([expected], 5, expected)
    core.now = 10_000
    core.push(PushType.APPEND, entry(2, 3, 4096))
    assert len(core.core.problems) == 2
    assert core.code(PushType.APPEND, entry(1, 3)) == ResponseCode.SUCCESS and problem_of(core) == expected
    assert core.code(PushType.APPEND, entry(2, 3)) == ResponseCode.SUCCESS and problem_of(core) == ""


def test_a_problem_that_is_not_met_again_is_over() -> None:
    core = OneCore(filled(3, saved=3))
    core.follow()
    core.push(PushType.APPEND, entry(1, 3, 4096))
    core.now = 59_000
    assert "found pos 4096" in problem_of(core)
    core.now = 60_000
    assert problem_of(core) == "" and len(core.core.problems) == 1


def test_a_log_that_begins_anew_says_which_entries_it_never_gets() -> None:
    core = OneCore(filled(1, 1, saved=2))
    core.follow()
    assert core.code(PushType.TRUNCATE, entry(9, 3)) == ResponseCode.SUCCESS
    (problem,) = core.core.problems
    assert (
        problem == ("entries 2 to 8 are gone at the leader (expired), this log begins anew at 9: the leader is n1")
        and problem_of(core) == problem
    )
    new = OneCore()
    new.follow()
    assert new.code(PushType.TRUNCATE, entry(0, 3)) == ResponseCode.SUCCESS
    assert not new.core.problems


class Damaged(MemoryStore):
    """Its entries cannot be read."""

    def get(self, index: int) -> Any:
        raise StoreError("file 0 at byte 0: damaged")

    def read(self, first_index: int, max_bytes: int) -> Any:
        raise StoreError("file 0 at byte 0: damaged")


def test_damaged_entries_are_a_problem_and_a_code() -> None:
    store = Damaged()
    store.append_as_leader([b"one"], 0)
    core = OneCore(store)
    core.lead()
    answer = core.ask(GetRequest(begin_index=0, is_committed=False))
    assert answer is not None and answer.code == ResponseCode.DISK_ERROR
    core.tick(3000)
    assert sorted(core.core.problems) == [
        "entries for n1 cannot be read: file 0 at byte 0: damaged",
        "entries for n2 cannot be read: file 0 at byte 0: damaged",
        "entry 0 cannot be read: file 0 at byte 0: damaged",
    ]
    assert core.core.status().problems > 6


@pytest.mark.parametrize("is_committed", [False, True])
def test_damaged_entries_are_a_code_whatever_is_asked_for(is_committed: bool) -> None:
    store = Damaged()
    store.append_as_leader([b"one"], 0)
    core = OneCore(store, peers=1)
    core.tick(50)
    answer = core.ask(GetRequest(begin_index=0, is_committed=is_committed))
    assert answer is not None and answer.code == ResponseCode.DISK_ERROR


# Peers


def pushes(core: OneCore, kind: PushType, peer: str = "n1") -> list[tuple[int, PushRequest]]:
    """Pushes of that kind to a peer since they were last asked for, with their tokens."""
    found = [
        (send.token, send.request)
        for send in core.sent
        if send.peer_id == peer and isinstance(send.request, PushRequest) and send.request.type is kind
    ]
    core.sent.clear()
    return found


def answer_push(core: OneCore, token: int, code: int = 200, begin: int = -1, end: int = -1) -> None:
    answer = PushResponse(code=code, term=core.core.term, begin_index=begin, end_index=end)
    core.core.answered(token, answer, core.now)
    core.drain()


def lead_with_equal_peer(**options: Any) -> OneCore:
    """A leader whose log is n1's too."""
    core = OneCore(filled(0, 0), **options)
    core.lead()
    ((token, _),) = pushes(core, PushType.COMPARE)
    answer_push(core, token, begin=0, end=1)
    return core


@pytest.mark.parametrize("enabled", [True, False])
def test_an_old_java_follower_gets_entries_the_way_it_takes_them(enabled: bool) -> None:
    core = lead_with_equal_peer(enable_batch_push=enabled)
    core.append(b"one")
    ((token, request),) = pushes(core, PushType.APPEND)
    assert request.is_batch is enabled
    answer_push(core, token, code=ResponseCode.UNEXPECTED_ARGUMENT)
    core.tick(100)
    ((token, _),) = pushes(core, PushType.COMPARE)
    answer_push(core, token, code=406, begin=0, end=1)
    ((token, _),) = pushes(core, PushType.COMPARE)
    answer_push(core, token, begin=0, end=1)
    ((_, request),) = pushes(core, PushType.APPEND)
    assert request.is_batch is not enabled


def refuse_pushes(core: OneCore, times: int) -> None:
    """The peer has entry 1, and refuses what follows again and again."""
    for _ in range(times):
        for token, _ in pushes(core, PushType.APPEND):
            answer_push(core, token, code=ResponseCode.INCONSISTENT_STATE, begin=0, end=1)
        while not (compared := pushes(core, PushType.COMPARE)):
            core.tick(10)
        answer_push(core, compared[0][0], code=ResponseCode.INCONSISTENT_STATE, begin=0, end=1)
        ((token, _),) = pushes(core, PushType.COMPARE)
        core.core.answered(token, PushResponse(code=200, term=core.core.term, begin_index=0, end_index=1), core.now)
        core.drain()


def test_a_peer_that_refuses_every_push_is_a_problem() -> None:
    core = lead_with_equal_peer(max_heart_beat_leak=1000)
    core.append(b"one")
    refuse_pushes(core, 4)
    assert not core.core.problems
    refuse_pushes(core, 3)
    (problem,) = core.core.problems
    assert problem.startswith("expected n1 to take entry 2, found it refused 5 times in a row (INCONSISTENT_STATE)")
    assert "its log ends at 1" in problem and "data file sizes must be equal" in problem
    assert "refused 7 times" in problem_of(core)
    ((token, _),) = pushes(core, PushType.APPEND)
    answer_push(core, token, begin=0, end=2)
    assert problem_of(core) == ""


def test_pushes_without_an_answer_are_sent_once_more_before_the_logs_are_compared() -> None:
    core = lead_with_equal_peer()
    core.append(b"one")
    assert len(pushes(core, PushType.APPEND)) == 1
    core.tick(1000)
    ((first, request),) = pushes(core, PushType.APPEND)
    assert request.first_index == 2
    core.tick(1600)
    ((token, request),) = pushes(core, PushType.COMPARE)
    assert request.first_index == 2
    # Late, and of a time before the comparison: it does not count.
    answer_push(core, first, begin=0, end=2)
    assert core.core.committed_index == 1
    answer_push(core, token, begin=0, end=2)
    assert core.core.committed_index == 2


def test_a_peer_that_lost_entries_is_found_by_its_answer_to_commit() -> None:
    core = lead_with_equal_peer()
    core.append(b"one")
    ((token, _),) = pushes(core, PushType.APPEND)
    answer_push(core, token, begin=0, end=2)
    core.tick(100)
    ((token, request),) = pushes(core, PushType.COMMIT)
    assert request.commit_index == 2
    answer_push(core, token, begin=0, end=0)
    core.tick(100)
    assert len(pushes(core, PushType.COMPARE)) == 1


def test_a_silent_member_does_not_hold_up_an_election() -> None:
    core = OneCore()
    core.tick(300)
    vote = next(send for send in core.sent if send.peer_id == "n1")
    core.sent.clear()
    answer = VoteResponse(vote_result=VoteResult.REJECT_ALREADY_VOTED, term=0)
    core.core.answered(vote.token, answer, core.now)
    core.tick(300 + 1000)
    assert core.core.term == 1 and core.sent


def test_a_leader_leaves_its_transferee_alone_and_does_not_stand_against_it() -> None:
    core = lead_with_equal_peer()
    core.sent.clear()
    core.ask(TransferRequest(transfer_id="n0", transferee_id="n1", term=0))
    core.tick(1990)
    assert {send.peer_id for send in core.sent if isinstance(send.request, HeartBeatRequest)} <= {"n2"}
    core.sent.clear()
    core.ask(VoteRequest(leader_id="n1", term=1, ledger_end_index=0, ledger_end_term=0))
    assert (core.core.role, core.core.term) == (Role.CANDIDATE, 1)
    core.tick(2000)
    assert core.sent == []
    core.tick(1200)
    assert core.sent


def hostile(random: Random) -> Request:
    """Any request: fields that fit, fields that do not, entries and parts of entries."""
    number = lambda: random.choice([-(2**63), -2, -1, 0, 1, 2, 3, 5, 9, 2**62, 2**63 - 1])  # noqa: E731
    node = lambda: random.choice([None, "", "n0", "n1", "n2", "n9"])  # noqa: E731
    index = random.randrange(6)
    data = b"".join(entry(index + at, random.randrange(4)) for at in range(random.randrange(4)))
    data = data[: random.choice([len(data), len(data), len(data), random.randrange(200)])]
    leader = random.choice(["n1", "n1", "n2", node()])
    term = random.choice([3, 3, 3, number()])
    base: dict[str, Any] = {"leader_id": leader, "term": term}
    kind = random.randrange(11)
    if kind == 0:
        return VoteRequest(**base, ledger_end_index=number(), ledger_end_term=number())
    if kind == 1:
        return HeartBeatRequest(**base)
    if kind == 2:
        return TransferRequest(**base, transfer_id=node(), transferee_id=node(), take_leadership_ledger_index=number())
    if kind == 3:
        return GetRequest(begin_index=number(), is_committed=random.random() < 0.5)
    if kind == 4:
        return AppendRequest(bodies=Bodies(random.randrange(-1, 3), random.randbytes(random.randrange(12))))
    if kind == 8:
        return PutRequest(bodies=Bodies(random.randrange(-1, 3), random.randbytes(random.randrange(12))))
    if kind == 9:
        return random.choice([TopicsRequest(names=("x",)), ConfigRequest()])
    count = random.choice([len(data) // SIZE, number()])
    first = random.choice([index, index, number()])
    return PushRequest(
        **base, type=random.choice(list(PushType)), commit_index=number(), first_index=first, count=count, data=data
    )


@pytest.mark.parametrize("seed", range(40))
def test_no_request_and_no_answer_breaks_the_core(seed: int) -> None:
    random = Random(seed)
    store = filled(*sorted(random.randrange(3) for _ in range(random.randrange(5))), saved=2)
    core = OneCore(store, is_sync=random.random() < 0.5)
    for _ in range(400):
        core.ask(hostile(random))
        if core.sent and random.random() < 0.5:
            send = core.sent.pop(random.randrange(len(core.sent)))
            answers = [
                VoteResponse(vote_result=VoteResult.ACCEPT),
                PushResponse(index=1, end_index=random.randrange(-2, 9)),
            ]
            answer = random.choice([None, Response(), *answers])
            if answer is not None:
                answer.code = random.choice([200, 200, 200, 406, 411, 416, 9])
                answer.term = random.choice([core.core.term, -1, 2**63 - 1])
            core.core.answered(send.token, answer, core.now)
        core.tick(10 * random.randrange(20))
        store.flush()
        core.core.persisted(store.flushed_index, core.now)
        assert store.committed_index <= store.ledger_end_index or store.ledger_end_index == -1


# An application


class Raising(Ledger):
    """Raises in one of its methods, from when it is told to."""

    is_slow = False
    in_method = ""

    def _check(self, method: str) -> None:
        if method == self.in_method:
            raise OSError("broken")

    def role_changed(self, is_leader: bool, term: int) -> None:
        self._check("role_changed")
        super().role_changed(is_leader, term)

    def committed(self, index: int) -> None:
        self._check("committed")
        super().committed(index)

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted | Refused:
        self._check("admit")
        if self.in_method == "strange code":
            return Refused(999, "no code of DLedger")
        return super().admit(bodies, queue_nums)

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        self._check("appended")
        found = super().appended(admitted, appended)
        return found[:-1] if self.in_method == "short places" else found

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes] | Refused:
        self._check("topics")
        if names == ("bad name",):
            return Refused(ResponseCode.UNEXPECTED_ARGUMENT, "expected a topic, found bad name")
        return super().topics(names, queue_nums)

    def config(self) -> Mapping[str, bytes]:
        self._check("config")
        return {"topics.json": b"{}"}


def puts(*numbers: int) -> PutRequest:
    return PutRequest(bodies=pack([Message((1, number), 0, 0, b"").body() for number in numbers]))


def serving(**options: Any) -> tuple[OneCore, Raising]:
    application = Raising()
    store = MemoryStore()
    application.started(store)
    return OneCore(store, application=application, **options), application


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        *((method, puts(1)) for method in ("role_changed", "committed", "admit", "appended")),
        *((method, puts(1)) for method in ("strange code", "short places")),
        ("topics", TopicsRequest()),
        ("config", ConfigRequest()),
    ],
)
def test_what_an_application_raises_ends_the_core(method: str, request_: Request) -> None:
    """Also what would be taken for a disk that fails, if the store raised it."""
    core, application = serving(peers=1)
    application.in_method = method

    def lead_and_ask() -> None:
        core.tick(1000)
        core.ask(request_)

    with pytest.raises(ApplicationError, match="expected"):
        lead_and_ask()


def test_an_application_is_told_of_its_leadership_before_it_is_asked() -> None:
    """Although nobody has taken yet what came of the election."""
    core, application = serving(peers=3)
    core.tick(300)
    vote = next(send for send in core.sent if isinstance(send.request, VoteRequest))
    core.core.answered(vote.token, VoteResponse(vote_result=VoteResult.ACCEPT, term=core.core.term), core.now)
    assert core.core.role is Role.LEADER
    request = puts(1)
    request.remote_id, request.group = "n0", "g"
    assert core.core.handle(request, object(), core.now)
    assert application.tables is not None
    assert list(application.tables.where) == [(1, 1)]


def test_a_group_of_one_acknowledges_a_put_at_once() -> None:
    core, _ = serving(peers=1)
    core.tick(1000)
    answer = core.ask(puts(1, 2))
    assert isinstance(answer, PutResponse)
    assert [place[0::2] for place in places(bytes(answer.places))] == [(0, 0), (1, 1)]
    again = core.ask(puts(2, 3))
    assert isinstance(again, PutResponse)
    assert (again.index, again.count) == (2, 2)
    assert [place[0::2] for place in places(bytes(again.places))] == [(1, 1), (2, 2)]


def test_a_put_is_refused_with_the_application_s_reason() -> None:
    core, _ = serving(peers=1)
    core.tick(1000)
    answer = core.ask(PutRequest(bodies=pack([b"no message"])))
    assert isinstance(answer, PutResponse)
    assert (answer.code, answer.reason) == (
        ResponseCode.UNEXPECTED_ARGUMENT,
        "expected messages, found another body",
    )
    assert core.store.ledger_end_index == -1
    topics = core.ask(TopicsRequest(names=("bad name",)))
    assert isinstance(topics, TopicsResponse)
    assert (topics.code, topics.reason) == (ResponseCode.UNEXPECTED_ARGUMENT, "expected a topic, found bad name")
    assert any("expected messages" in text for text in core.core.problems)
    assert core.core.status().problem == ""


def test_a_leader_tells_topics_and_metadata() -> None:
    core, _ = serving(peers=1)
    core.tick(1000)
    topics = core.ask(TopicsRequest(names=("a", "b"), queue_nums=3))
    assert isinstance(topics, TopicsResponse)
    assert topics.queue_counts == {"a": 3, "b": 3}
    config = core.ask(ConfigRequest())
    assert isinstance(config, ConfigResponse)
    assert config.files == {"topics.json": b"{}"}


def test_raw_entries_are_appended_beside_messages() -> None:
    core, application = serving(peers=1)
    core.tick(1000)
    assert core.append(b"raw") is not None
    answer = core.ask(puts(1))
    assert isinstance(answer, PutResponse) and answer.index == 1
    assert application.dispatched == 1


def test_a_put_that_no_data_file_holds_is_refused() -> None:
    core = OneCore(MemoryStore(data_file_size=100), peers=1, application=(application := Raising()))
    application.started(core.store)
    core.tick(1000)
    large = PutRequest(bodies=pack([Message((1, 1), 0, 0, bytes(200)).body()]))
    answer = core.ask(large)
    assert answer is not None and answer.code == ResponseCode.UNEXPECTED_ARGUMENT
    answer = core.ask(puts(1))
    assert isinstance(answer, PutResponse) and places(bytes(answer.places)) == [(0, 0, 0)]


def test_duplicates_that_wait_count_as_pending_bytes() -> None:
    """Who puts the same again and again, while nothing is committed, fills no memory with its places."""
    core, _ = serving(max_pending_bytes=400)
    core.lead()
    assert core.ask(puts(*range(5))) is None
    assert [core.ask(puts(*range(5))) for _ in range(3)] == [None] * 3
    answer = core.ask(puts(*range(5)))
    assert answer is not None and answer.code == ResponseCode.LEADER_PENDING_FULL


# Metadata


def asked_for_config(core: OneCore) -> list[Send]:
    found = [send for send in core.sent if isinstance(send.request, ConfigRequest)]
    core.sent.clear()
    return found


def test_a_follower_copies_its_leader_s_metadata_now_and_then() -> None:
    core, application = serving(copy_config_first_ms=300, copy_config_every_ms=1000)
    core.core.peer_is_ours("n1", True)
    core.follow()
    core.tick(290)
    assert not asked_for_config(core)
    core.tick(10)
    (first,) = asked_for_config(core)
    assert first.peer_id == "n1"
    core.core.answered(first.token, ConfigResponse(files={"dispatched": b"7"}, term=3), core.now)
    core.tick(990)
    assert not asked_for_config(core) and application.copies == [7]
    core.tick(10)
    (second,) = asked_for_config(core)
    core.core.answered(second.token, ConfigResponse(code=ResponseCode.NOT_LEADER), core.now)
    core.tick(1000)
    (third,) = asked_for_config(core)
    core.core.answered(third.token, None, core.now)
    core.tick(1000)
    (fourth,) = asked_for_config(core)
    # Who no longer follows takes nothing.
    core.ask(VoteRequest(leader_id="n2", term=4, ledger_end_index=0, ledger_end_term=0))
    core.core.answered(fourth.token, ConfigResponse(files={"dispatched": b"8"}, term=3), core.now)
    core.tick(2000)
    assert application.copies == [7]
    assert not asked_for_config(core)


def test_nobody_asks_java_for_metadata_nor_without_an_application() -> None:
    core, _ = serving(copy_config_first_ms=0)
    core.follow()
    core.tick(2000)
    assert not asked_for_config(core)
    plain = OneCore(copy_config_first_ms=0)
    plain.core.peer_is_ours("n1", True)
    plain.follow()
    plain.tick(2000)
    assert not asked_for_config(plain)


def test_an_application_that_cannot_copy_ends_the_core() -> None:
    core, _ = serving(copy_config_first_ms=0)
    core.core.peer_is_ours("n1", True)
    core.follow()
    core.tick(10)
    (asked,) = asked_for_config(core)
    with pytest.raises(ApplicationError, match="expected"):
        core.core.answered(asked.token, ConfigResponse(files={"strange": b""}, term=3), core.now)
