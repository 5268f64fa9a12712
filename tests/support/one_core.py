"""One core whose peers the test plays."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core import Core, CoreConfig, Reply, Send
from pyspark_dledger.raft.core.application import Application
from pyspark_dledger.raft.messages import (
    AppendRequest,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    PushRequest,
    PushResponse,
    PushType,
    Request,
    Response,
    Role,
    StatusRequest,
    StatusResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.store.memory_store import MemoryStore

SIZE = 48 + 4


def entry(index: int, term: int, pos: int | None = None, body: bytes | None = None) -> bytes:
    body = b"%04d" % index if body is None else body
    return encode_entry(index, term, index * SIZE if pos is None else pos, body)


class OneCore:
    """A core, n0; the test plays its peers."""

    def __init__(
        self, store: MemoryStore | None = None, peers: int = 3, application: Application | None = None, **options: Any
    ) -> None:
        self.store = store or MemoryStore()
        self.now = 0
        config = CoreConfig("g", "n0", tuple(f"n{number}" for number in range(peers)), **options)
        self.core = Core(config, self.store, Random(7), 0, {"n0": "127.0.0.1:1"}, application)
        self.sent: list[Send] = []
        self.responses: list[Response] = []

    def drain(self) -> None:
        for effect in self.core.drain():
            if isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, Reply):
                self.responses.append(effect.response)

    def request(self, request: Request, remote: str | None = "n0", group: str | None = "g") -> Response | None:
        """The response to a request, if it comes at once."""
        request.remote_id, request.group = remote, group
        self.responses.clear()
        self.core.handle(request, object(), self.now)
        self.drain()
        return self.responses[0] if self.responses else None

    def push(self, kind: PushType, *data: bytes, term: int = 3, leader: str = "n1", **fields: Any) -> Response | None:
        first = struct.unpack_from(">q", data[0], 8)[0] if data else -1
        request = PushRequest(
            leader_id=leader, term=term, type=kind, first_index=first, count=len(data), data=b"".join(data), **fields
        )
        return self.request(request)

    def code(self, kind: PushType, *data: bytes, **fields: Any) -> int:
        response = self.push(kind, *data, **fields)
        assert response is not None
        return response.code

    def follow(self, term: int = 3) -> None:
        self.request(HeartBeatRequest(leader_id="n1", term=term))
        self.request(HeartBeatRequest(leader_id="n1", term=term))
        assert self.core.role is Role.FOLLOWER

    def confirm_expired(self, code: int = 419) -> None:
        """The leader's response to the question whether the entries before a reset have expired."""
        asked = next(send for send in self.sent if isinstance(send.request, GetRequest))
        self.sent.remove(asked)
        self.core.handle_response(asked.token, GetResponse(code=code), self.now)
        self.drain()

    def reset_code(self, data: bytes) -> int:
        """The code of a TRUNCATE that removes all entries, once the leader has confirmed it."""
        assert self.push(PushType.TRUNCATE, data) is None
        self.confirm_expired()
        (response,) = self.responses
        return response.code

    def tick(self, time: int) -> None:
        for _ in range(time // 10):
            self.now += 10
            self.core.tick(self.now)
            self.drain()

    def lead(self) -> None:
        self.tick(300)
        vote = next(send for send in self.sent if isinstance(send.request, VoteRequest))
        response = VoteResponse(vote_result=VoteResult.ACCEPT, term=self.core.term)
        self.core.handle_response(vote.token, response, self.now)
        self.drain()
        assert self.core.role is Role.LEADER

    def append(self, *bodies: bytes) -> Response | None:
        block = struct.pack(f">{len(bodies)}I", *map(len, bodies)) + b"".join(bodies)
        return self.request(AppendRequest(bodies=Bodies(len(bodies), block)))


def filled(*terms: int, committed: int = -1, saved: int = 0, file_size: int = 1 << 30) -> MemoryStore:
    """A store with an entry of each of these terms; `saved` is the saved term."""
    store = MemoryStore(data_file_size=file_size)
    for index, term in enumerate(terms):
        store.append_as_leader([b"%04d" % index], term)
    store.flush()
    store.update_committed_index(saved or 9, committed)
    store.save_term(saved, None)
    return store


def requested_terms(core: OneCore) -> list[int]:
    """The terms of the vote requests to n1 since the last call."""
    terms = [send.request.term for send in core.sent if isinstance(send.request, VoteRequest) and send.peer_id == "n1"]
    core.sent.clear()
    return terms


def problem_of(core: OneCore) -> str:
    response = core.request(StatusRequest())
    assert isinstance(response, StatusResponse) and response.problem == core.core.status().problem
    return response.problem


def pushes(core: OneCore, kind: PushType, peer: str = "n1") -> list[tuple[int, PushRequest]]:
    """Pushes of that kind to a peer since the last call, with their tokens."""
    found = [
        (send.token, send.request)
        for send in core.sent
        if send.peer_id == peer and isinstance(send.request, PushRequest) and send.request.type is kind
    ]
    core.sent.clear()
    return found


def respond_push(core: OneCore, token: int, code: int = 200, begin: int = -1, end: int = -1) -> None:
    response = PushResponse(code=code, term=core.core.term, begin_index=begin, end_index=end)
    core.core.handle_response(token, response, core.now)
    core.drain()


def lead_with_equal_peer(**options: Any) -> OneCore:
    """A leader with the same log as n1."""
    core = OneCore(filled(0, 0), **options)
    core.lead()
    ((token, _),) = pushes(core, PushType.COMPARE)
    respond_push(core, token, begin=0, end=1)
    return core
