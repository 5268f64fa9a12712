"""Reads, status and leadership transfers of a client."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError, UnknownOutcomeError
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.messages import (
    GetRequest,
    GetResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Role,
    StatusRequest,
    StatusResponse,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.support.clients import BOTH, NOT_LEADER, connected
from tests.support.fake_members import ACK, FakeMember
from tests.support.groups import HOST


def test_get_is_retried_until_the_leader_responds() -> None:
    fake = FakeMember()
    responses = deque(
        [GetResponse(code=505), GetResponse(code=NOT_LEADER), GetResponse(code=419), GetResponse(code=410)]
    )
    requests: list[GetRequest] = []

    def response(request: Request) -> GetResponse:
        assert isinstance(request, GetRequest)
        requests.append(request)
        return responses.popleft()

    fake.responses[GetRequest] = response
    with connected(fake) as client:
        with pytest.raises(IndexRangeError, match="index 7 has expired"):
            client.get(7)
        with pytest.raises(IndexRangeError, match="index 8 is not in the log"):
            client.get(8)
        responses.append(GetResponse(code=500))
        with pytest.raises(GroupError, match="INTERNAL_ERROR"):
            client.get(8)
    assert all(request.is_committed for request in requests)


def test_get_without_response_is_retried() -> None:
    fake = FakeMember(script=deque([ACK]))
    silent = deque([None, None])
    fake.responses[GetRequest] = lambda request: (
        silent.popleft() if silent else GetResponse(group="g", entries=[fake.log.get(request.begin_index)])  # type: ignore[attr-defined]
    )
    with connected(fake, timeout_ms=400) as client:
        client.append(b"x")
        assert client.get(0).body == b"x"


def test_read_and_status_of_binary_and_java_members() -> None:
    binary, java = FakeMember("n0", "n0"), FakeMember("n1", "n0", is_binary=False)
    binary.responses[StatusRequest] = lambda _: StatusResponse(
        group="g", role=Role.LEADER, term=3, leader_id="n0", begin_index=1, end_index=5, end_term=3, committed_index=4,
        problem="disk broken",
    )  # fmt: skip
    binary.responses[ReadRequest] = lambda request: ReadResponse(group="g", begin_index=1, committed_index=4, code=(
        200 if request.first_index else 419))  # type: ignore[attr-defined]  # fmt: skip
    with connected(java, binary) as client:
        assert client.status("n0") == ("n0", Role.LEADER, 3, "n0", 1, 5, 3, 4, "disk broken", False, {})
        found = client.read(5)
        assert (found.first_index, found.count, found.committed_index, list(found.entries())) == (5, 0, 4, [])
        with pytest.raises(IndexRangeError, match="index 0 has expired"):
            client.read(0, "n0")
        for call in (lambda: client.status("n1"), lambda: client.read(0, "n1")):
            with pytest.raises(GroupError, match="found n1 to be a Java node"):
                call()
        with pytest.raises(OptionError, match="expected a member of n1, n0, found 'n9'"):
            client.status("n9")


@BOTH
def test_transfer(is_binary: bool) -> None:
    members = [FakeMember(f"n{number}", "n0", is_binary=is_binary) for number in range(2)]
    term = 4
    requests: list[TransferRequest] = []

    def transferred(request: Request) -> TransferResponse:
        assert isinstance(request, TransferRequest)
        requests.append(request)
        if request.term != 5:
            return TransferResponse(code=ResponseCode.INCONSISTENT_TERM)
        for member in members:
            member.leader_id = "n1"
        return TransferResponse()

    def voted(request: Request) -> VoteResponse:
        assert isinstance(request, VoteRequest) and request.leader_id == "client" and request.term == -1
        return VoteResponse(term=term, vote_result=VoteResult.REJECT_UNKNOWN_LEADER)

    members[0].responses = {
        TransferRequest: transferred,
        VoteRequest: voted,
        StatusRequest: lambda _: StatusResponse(term=term),
    }
    with connected(*members) as client:
        with pytest.raises(GroupError, match=r"rejected a transfer of leadership to n1 with INCONSISTENT_TERM"):
            client.transfer("n1")
        term = 5
        client.transfer("n1")
        assert (requests[-1].transfer_id, requests[-1].transferee_id) == ("n0", "n1")
        client.transfer("n1")  # n1 is the leader already
        assert len(requests) == 2
        assert client.append(b"x").index == 0
        with pytest.raises(OptionError, match="to transfer to, found 'n7'"):
            client.transfer("n7")
    assert members[1].appends and not members[0].appends


@BOTH
@pytest.mark.parametrize("code", [302, 300, 403, 418, 500, -1, 999])
def test_codes_with_unknown_transfer_outcome(is_binary: bool, code: int) -> None:
    fake = FakeMember(is_binary=is_binary, peers={"n0": f"{HOST}:1", "n1": f"{HOST}:1"})
    fake.responses = {
        TransferRequest: lambda _: TransferResponse(code=code),
        VoteRequest: lambda _: VoteResponse(term=1),
        StatusRequest: lambda _: StatusResponse(term=1),
    }
    with (
        connected(fake) as client,
        pytest.raises(UnknownOutcomeError, match="look at the leader with metadata") as caught,
    ):
        client.transfer("n1")
    assert caught.value.code == code and "nothing was changed" not in str(caught.value)


def test_transfer_without_response_is_unknown() -> None:
    fake = FakeMember(peers={"n0": f"{HOST}:1", "n1": f"{HOST}:1"})
    is_requested = threading.Event()
    fake.responses = {TransferRequest: lambda _: is_requested.set(), StatusRequest: lambda _: StatusResponse(term=1)}
    for end in (fake.disconnect, lambda: client.close()):
        is_requested.clear()
        with connected(fake) as client:
            errors: list[BaseException] = []

            def transfer(client: Client = client, errors: list[BaseException] = errors) -> None:
                with pytest.raises(UnknownOutcomeError, match="look at the leader with metadata") as caught:
                    client.transfer("n1")
                errors.append(caught.value)

            thread = threading.Thread(target=transfer)
            thread.start()
            assert is_requested.wait(30)
            end()
            thread.join(30)
            assert errors
        fake = FakeMember(peers=fake.peers, responses=fake.responses)
