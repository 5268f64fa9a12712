"""The core with an application: puts, topics, metadata, and exceptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Admitted, Bodies, ProducerState, RejectedError
from pyspark_dledger.raft.core import Send
from pyspark_dledger.raft.core.application_caller import ApplicationError
from pyspark_dledger.raft.messages import (
    ConfigRequest,
    ConfigResponse,
    ProducerRequest,
    ProducerResponse,
    PutRequest,
    PutResponse,
    Request,
    Role,
    TopicsRequest,
    TopicsResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.store.dledger_store import AppendedEntries
from pyspark_dledger.store.memory_store import MemoryStore
from tests.simulation.ledger import Ledger, Message, pack, positions
from tests.support.one_core import OneCore


class Raising(Ledger):
    """An application that raises in the method named `in_method`."""

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

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted:
        self._check("admit")
        if self.in_method == "strange code":
            raise RejectedError(999, "no code of DLedger")
        return super().admit(bodies, queue_nums)

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        self._check("appended")
        found = super().appended(admitted, appended)
        return found[:-1] if self.in_method == "short positions" else found

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes]:
        self._check("topics")
        if names == ("bad name",):
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, "expected a topic, found bad name")
        return super().topics(names, queue_nums)

    def producer(self, producer: bytes, run: int, from_index: int) -> ProducerState:
        self._check("producer")
        if run == 1:
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, "expected another run")
        return ProducerState(3, 2, 1, -1, bytes(16), last_index=from_index)

    def config(self) -> Mapping[str, bytes]:
        self._check("config")
        return {"topics.json": b"{}"}


def puts(*numbers: int) -> PutRequest:
    return PutRequest(bodies=pack([Message((1, number), 0, 0, b"").body() for number in numbers]))


def core_with_application(**options: Any) -> tuple[OneCore, Raising]:
    application = Raising()
    store = MemoryStore()
    application.started(store)
    return OneCore(store, application=application, **options), application


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        *((method, puts(1)) for method in ("role_changed", "committed", "admit", "appended")),
        *((method, puts(1)) for method in ("strange code", "short positions")),
        ("topics", TopicsRequest()),
        ("producer", ProducerRequest()),
        ("config", ConfigRequest()),
    ],
)
def test_an_exception_of_the_application_ends_the_core(method: str, request_: Request) -> None:
    """Also exceptions that would be a disk failure if the store raised them."""
    core, application = core_with_application(peers=1)
    application.in_method = method

    def lead_and_request() -> None:
        core.tick(1000)
        core.request(request_)

    with pytest.raises(ApplicationError, match=r"the application raised|expected"):
        lead_and_request()


def test_the_state_of_a_producer_is_that_of_acknowledged_messages() -> None:
    core, _ = core_with_application(peers=1)
    assert core.request(ProducerRequest()).code == ResponseCode.NOT_LEADER
    core.tick(1000)
    response = core.request(ProducerRequest())
    assert isinstance(response, ProducerResponse)
    found = (response.code, response.count, response.other_runs, response.last_number, response.ids)
    assert found == (ResponseCode.SUCCESS, 3, 2, 1, bytes(16))
    # An entry that is not committed may be lost.
    assert core.request(ProducerRequest(from_index=7)).code == ResponseCode.LEADER_NOT_READY
    rejected = core.request(ProducerRequest(run=1))
    assert isinstance(rejected, ProducerResponse)
    assert (rejected.code, rejected.reason) == (ResponseCode.UNEXPECTED_ARGUMENT, "expected another run")


def test_an_application_learns_of_its_leadership_before_its_first_put() -> None:
    """Even before the driver executes the effects of the election."""
    core, application = core_with_application(peers=3)
    core.tick(300)
    vote = next(send for send in core.sent if isinstance(send.request, VoteRequest))
    core.core.handle_response(vote.token, VoteResponse(vote_result=VoteResult.ACCEPT, term=core.core.term), core.now)
    assert core.core.role is Role.LEADER
    request = puts(1)
    request.remote_id, request.group = "n0", "g"
    assert core.core.handle(request, object(), core.now)
    assert application.tables is not None
    assert list(application.tables.messages) == [(1, 1)]


def test_a_group_of_one_acknowledges_a_put_at_once() -> None:
    core, _ = core_with_application(peers=1)
    core.tick(1000)
    response = core.request(puts(1, 2))
    assert isinstance(response, PutResponse)
    assert [place[0::2] for place in positions(bytes(response.positions))] == [(0, 0), (1, 1)]
    again = core.request(puts(2, 3))
    assert isinstance(again, PutResponse)
    assert (again.index, again.count) == (2, 2)
    assert [place[0::2] for place in positions(bytes(again.positions))] == [(1, 1), (2, 2)]


def test_a_put_is_rejected_with_the_applications_reason() -> None:
    core, _ = core_with_application(peers=1)
    core.tick(1000)
    response = core.request(PutRequest(bodies=pack([b"no message"])))
    assert isinstance(response, PutResponse)
    assert (response.code, response.reason) == (
        ResponseCode.UNEXPECTED_ARGUMENT,
        "expected messages, found another body",
    )
    assert core.store.ledger_end_index == -1
    topics = core.request(TopicsRequest(names=("bad name",)))
    assert isinstance(topics, TopicsResponse)
    assert (topics.code, topics.reason) == (ResponseCode.UNEXPECTED_ARGUMENT, "expected a topic, found bad name")
    assert any("expected messages" in text for text in core.core.problems)
    assert core.core.status().problem == ""


def test_a_put_with_a_term_is_taken_only_in_that_term() -> None:
    core, _ = core_with_application(peers=1)
    core.tick(1000)
    request = puts(1)
    request.term = core.core.term + 1
    assert core.request(request).code == ResponseCode.EXPIRED_TERM
    assert core.store.ledger_end_index == -1
    request.term -= 1
    assert core.request(request).code == ResponseCode.SUCCESS


def test_a_leader_returns_topics_and_metadata() -> None:
    core, _ = core_with_application(peers=1)
    core.tick(1000)
    topics = core.request(TopicsRequest(names=("a", "b"), queue_nums=3))
    assert isinstance(topics, TopicsResponse)
    assert topics.queue_counts == {"a": 3, "b": 3}
    config = core.request(ConfigRequest())
    assert isinstance(config, ConfigResponse)
    assert config.files == {"topics.json": b"{}"}


def test_raw_entries_and_messages_share_a_log() -> None:
    core, application = core_with_application(peers=1)
    core.tick(1000)
    assert core.append(b"raw") is not None
    response = core.request(puts(1))
    assert isinstance(response, PutResponse) and response.index == 1
    assert application.dispatched == 1


def test_a_put_that_fits_no_data_file_is_rejected() -> None:
    core = OneCore(MemoryStore(data_file_size=100), peers=1, application=(application := Raising()))
    application.started(core.store)
    core.tick(1000)
    large = PutRequest(bodies=pack([Message((1, 1), 0, 0, bytes(200)).body()]))
    response = core.request(large)
    assert response is not None and response.code == ResponseCode.UNEXPECTED_ARGUMENT
    response = core.request(puts(1))
    assert isinstance(response, PutResponse) and positions(bytes(response.positions)) == [(0, 0, 0)]


def test_waiting_duplicates_count_as_pending_bytes() -> None:
    """Repeated puts of the same messages cannot fill the memory while nothing is committed."""
    core, _ = core_with_application(max_pending_bytes=400)
    core.lead()
    assert core.request(puts(*range(5))) is None
    assert [core.request(puts(*range(5))) for _ in range(3)] == [None] * 3
    response = core.request(puts(*range(5)))
    assert response is not None and response.code == ResponseCode.LEADER_PENDING_FULL


def config_requests(core: OneCore) -> list[Send]:
    found = [send for send in core.sent if isinstance(send.request, ConfigRequest)]
    core.sent.clear()
    return found


def test_a_follower_copies_its_leaders_metadata_periodically() -> None:
    core, application = core_with_application(copy_config_first_ms=300, copy_config_every_ms=1000)
    core.core.set_peer_binary("n1", True)
    core.follow()
    core.tick(290)
    assert not config_requests(core)
    core.tick(10)
    (first,) = config_requests(core)
    assert first.peer_id == "n1"
    core.core.handle_response(first.token, ConfigResponse(files={"dispatched": b"7"}, term=3), core.now)
    core.tick(990)
    assert not config_requests(core) and application.copies == [7]
    core.tick(10)
    (second,) = config_requests(core)
    core.core.handle_response(second.token, ConfigResponse(code=ResponseCode.NOT_LEADER), core.now)
    core.tick(1000)
    (third,) = config_requests(core)
    core.core.handle_response(third.token, None, core.now)
    core.tick(1000)
    (fourth,) = config_requests(core)
    # After it stopped following, it ignores the response.
    core.request(VoteRequest(leader_id="n2", term=4, ledger_end_index=0, ledger_end_term=0))
    core.core.handle_response(fourth.token, ConfigResponse(files={"dispatched": b"8"}, term=3), core.now)
    core.tick(2000)
    assert application.copies == [7]
    assert not config_requests(core)


def test_metadata_is_requested_only_for_an_application_and_not_from_java() -> None:
    core, _ = core_with_application(copy_config_first_ms=0)
    core.follow()
    core.tick(2000)
    assert not config_requests(core)
    plain = OneCore(copy_config_first_ms=0)
    plain.core.set_peer_binary("n1", True)
    plain.follow()
    plain.tick(2000)
    assert not config_requests(plain)


def test_an_application_that_fails_to_copy_ends_the_core() -> None:
    core, _ = core_with_application(copy_config_first_ms=0)
    core.core.set_peer_binary("n1", True)
    core.follow()
    core.tick(10)
    (send,) = config_requests(core)
    with pytest.raises(ApplicationError, match="the application raised"):
        core.core.handle_response(send.token, ConfigResponse(files={"strange": b""}, term=3), core.now)
