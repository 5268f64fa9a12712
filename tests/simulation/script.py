"""Runs one core with a script of its inputs and the expected outputs.

One step per line; ``#`` begins a comment. Entry `i` of term `t` always has the same bytes.

    node n0 of n0 n1 n2 sync serves max_pending_requests_num=2   settings; the first line; `serves`: has an application
    log 0 0 1:7@0                terms of the entries on disk, from index 0 or that of an earlier `begin 3`
    saved 2 n1                   term and vote on disk (`-`: no vote)
    committed 1                  the committed index on disk
    start                        the core starts
    n1 > VOTE term=3 ledger_end_index=2           a request of n1; also HEART_BEAT, COMPARE, TRUNCATE, APPEND, COMMIT,
    n1 > APPEND term=3 entries=3:1,4:3            TRANSFER; `entries` are index:term, index:term:7@0 is message 7 with
                                 queue offset 0, index:term:filler a filler
    client > APPEND bodies=2     a client's request; also GET, METADATA, STATUS, TRANSFER, TOPICS, CONFIG
    client > PUT messages=7,8    puts these messages of one queue
    < code=200 term=3            the next response has these values; `< nothing`: none; `positions` are index@offset
    > n1 APPEND entries=3:1      the next such request to n1 has these values; `> n1 APPEND nothing`: none
    n1 < code=200                n1 responds to the last matched request; `n1 < nothing`: it is unreachable
    tick 300                     time passes, in steps of 10 ms
    until 20000 VOTE             the same, until such a request is sent
    persisted 3                  the disk has flushed up to this index
    disk full 1, disk fails 1    this many of the next operations fail
    crash                        the core restarts with the durable state
    binary n1                    n1 uses the binary dialect
    is role=LEADER term=3 vote=n0 log=0,0,1 committed=2    the state of the core
"""

from __future__ import annotations

from random import Random
from typing import Any

from pyspark_dledger.raft.core import Core, CoreConfig, Reply, Send
from pyspark_dledger.raft.messages import (
    AppendRequest,
    ConfigRequest,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    MetadataRequest,
    PushRequest,
    PushType,
    PutRequest,
    PutResponse,
    Request,
    Response,
    StatusRequest,
    TopicsRequest,
    TransferRequest,
    VoteRequest,
    VoteResult,
)
from tests.simulation import ledger
from tests.simulation.checker import HEADER_SIZE, Checker
from tests.simulation.disk import SimStore
from tests.simulation.ledger import FILLER, Ledger, Message, pack
from tests.support.stores import leaders_entry

PUSHES = ("COMPARE", "TRUNCATE", "APPEND", "COMMIT")
REQUESTS: dict[str, type[Request]] = {
    "VOTE": VoteRequest,
    "HEART_BEAT": HeartBeatRequest,
    "TRANSFER": TransferRequest,
    "GET": GetRequest,
    "METADATA": MetadataRequest,
    "STATUS": StatusRequest,
    "TOPICS": TopicsRequest,
    "CONFIG": ConfigRequest,
}
BODY_SIZE = 16
TICK = 10


def message(number: int, offset: int = 0) -> bytes:
    """The message with this number in scripts."""
    return Message((1, number), 0, offset, b"").body()


def entry(index: int, term: int, what: str = "") -> bytes:
    """The entry `index:term`, or `index:term:what`, of a script."""
    body = b"%011d@%04d" % (index, term)
    if what:
        body = FILLER if what == "filler" else message(*map(int, what.split("@")))
    return leaders_entry(index, term, index * (HEADER_SIZE + BODY_SIZE), body)


def entries(text: str) -> tuple[int, bytes]:
    """The first index and the bytes of ``3:1,4:3``."""
    parts = [(int(index), int(term), *what) for index, term, *what in (part.split(":") for part in text.split(","))]
    return parts[0][0], b"".join(entry(*part) for part in parts)


def values(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


class _FirstChoice(Random):
    """Always takes the first choice: only durable state survives a crash."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Script:
    """Runs the lines of a script; an AssertionError names the line."""

    def __init__(self) -> None:
        self.now = 1000
        self.store = SimStore("n0", False, 1 << 30, Checker())
        self.core: Core | None = None
        self.sent: list[Send] = []
        self.responses: list[Response] = []
        self.matched: dict[str, Send] = {}
        self.begin = 0

    def run(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split("#")[0].split()
            if words:
                try:
                    self.step(words)
                except AssertionError as error:
                    raise AssertionError(f"line {number}: {line.strip()}\n{error}") from error

    def step(self, words: list[str]) -> None:
        first, *rest = words
        if first == "<":
            self.expect_response(rest)
        elif first == ">":
            self.expect_request(rest)
        elif rest and rest[0] == ">":
            self.request(first, rest[1], rest[2:])
        elif rest and rest[0] == "<":
            self.response(first, rest[1:])
        else:
            getattr(self, f"do_{first}")(*rest)

    # The disk, before the start

    def do_node(self, self_id: str, of: str, *words: str) -> None:
        assert of == "of"
        peers = tuple(word for word in words if word.startswith("n") and "=" not in word)
        options = {key: self._option(value) for key, value in values([word for word in words if "=" in word]).items()}
        is_sync = "sync" in words
        self.serves = "serves" in words
        self.config = CoreConfig(group="g", self_id=self_id, peers=peers, is_sync=is_sync, **options)
        self.store.is_sync = is_sync

    def _option(self, text: str) -> Any:
        if text.startswith("n"):
            return tuple(text.split(","))
        return {"True": True, "False": False}[text] if text in ("True", "False") else int(text)

    def do_begin(self, index: str) -> None:
        self.begin = int(index)
        self.store.reset(self.begin, self.begin * (HEADER_SIZE + BODY_SIZE))

    def do_log(self, *terms: str) -> None:
        parts = [term.split(":") for term in terms]
        data = b"".join(entry(index, int(term), *what) for index, (term, *what) in enumerate(parts, start=self.begin))
        self.store.append_as_follower(data, int(parts[-1][0]))
        self.store.flushed_index = self.store.ledger_end_index

    def do_saved(self, term: str, vote: str) -> None:
        self.store.save_term(int(term), None if vote == "-" else vote)

    def do_committed(self, index: str) -> None:
        self.store.update_committed_index(self.store.ledger_end_term, int(index))
        self.store.checkpoint = int(index)

    def do_start(self) -> None:
        addresses = {peer: f"127.0.0.1:{20911 + at}" for at, peer in enumerate(self.config.peers)}
        application = Ledger() if self.serves else None
        if application is not None:
            # Scripts are not about leaders that are not ready.
            application.is_slow = False
            application.started(self.store)
        self.core = Core(self.config, self.store, Random(1), self.now, addresses, application)
        self._drain()

    # Inputs

    def request(self, sender: str, kind: str, words: list[str]) -> None:
        given: dict[str, Any] = dict(values(words))
        assert self.core is not None
        fields: dict[str, Any] = {"group": "g", "remote_id": self.config.self_id}
        if sender != "client":
            fields |= {"local_id": sender, "leader_id": sender}
        cls: type[Request]
        if sender == "client" and kind == "APPEND":
            cls, fields["bodies"] = AppendRequest, pack([b"%016d" % at for at in range(int(given.pop("bodies", "1")))])
        elif kind == "PUT":
            numbers = map(int, given.pop("messages").split(","))
            cls, fields["bodies"] = PutRequest, pack([message(number) for number in numbers])
        elif kind in PUSHES:
            cls, fields["type"] = PushRequest, PushType[kind]
            if "entries" in given:
                fields["count"] = given["entries"].count(",") + 1
                fields["first_index"], fields["data"] = entries(given.pop("entries"))
        else:
            cls = REQUESTS[kind]
        fields |= {name: self._value(value) for name, value in given.items()}
        self.responses.clear()
        self.core.handle(cls(**fields), "token", self.now)
        self._drain()

    def _value(self, text: str) -> Any:
        if text in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[text]
        if text in VoteResult.__members__:
            return VoteResult[text]
        return int(text) if text.lstrip("-").isdigit() else text

    def response(self, peer: str, words: list[str]) -> None:
        assert self.core is not None
        send = self.matched.pop(peer)
        response: Response | None = None
        if words != ["nothing"]:
            request = send.request
            fields: dict[str, Any] = {"group": "g", "local_id": peer, "leader_id": request.leader_id}
            fields["term"] = request.term
            if isinstance(request, PushRequest):
                fields["index"] = request.first_index if request.count else None
                fields["count"] = request.count
            fields |= {name: self._value(value) for name, value in values(words).items()}
            response = type(request).response(**fields)
        self.core.handle_response(send.token, response, self.now)
        self._drain()

    def do_tick(self, time: str) -> None:
        assert self.core is not None
        for _ in range(int(time) // TICK):
            self.now += TICK
            self.core.tick(self.now)
            self._drain()

    def do_until(self, time: str, kind: str) -> None:
        for _ in range(int(time) // TICK):
            if any(self._kind(send.request) == kind for send in self.sent):
                return
            self.do_tick(str(TICK))
        raise AssertionError(f"no {kind} within {time} ms")

    def do_persisted(self, index: str) -> None:
        assert self.core is not None
        self.store.flushed_index = max(self.store.flushed_index, int(index))
        self.core.persisted(int(index), self.now)
        self._drain()

    def do_disk(self, what: str, count: str) -> None:
        if what == "full":
            self.store.full = int(count)
        else:
            self.store.failures = int(count)

    def do_binary(self, peer: str) -> None:
        assert self.core is not None
        self.core.set_peer_binary(peer, True)

    def do_crash(self) -> None:
        self.store = self.store.survive(_FirstChoice())
        self.sent.clear()
        self.matched.clear()
        self.do_start()

    def _drain(self) -> None:
        assert self.core is not None
        for effect in self.core.drain():
            if isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, Reply):
                self.responses.append(effect.response)

    # Expected outputs

    def expect_response(self, words: list[str]) -> None:
        if words == ["nothing"]:
            assert not self.responses, f"found {self.responses}"
            return
        assert self.responses, "there is no response"
        self._compare(self.responses.pop(0), words)

    def expect_request(self, words: list[str]) -> None:
        peer, kind, *expected = words
        found = [send for send in self.sent if send.peer_id == peer and self._kind(send.request) == kind]
        if expected == ["nothing"]:
            assert not found, f"found {found}"
            return
        assert found, f"there is none, only {[(send.peer_id, self._kind(send.request)) for send in self.sent]}"
        self.matched[peer] = found[0]
        self.sent = [send for send in self.sent if send is not found[0]]
        self._compare(found[0].request, expected)

    def _kind(self, request: Request) -> str:
        if isinstance(request, PushRequest):
            return request.type.name
        return next(name for name, cls in REQUESTS.items() if type(request) is cls)

    def _compare(self, message: Request | Response, words: list[str]) -> None:
        for name, text in values(words).items():
            if name == "entries":
                assert isinstance(message, PushRequest)
                found: Any = (message.first_index, bytes(message.data))
                assert found == entries(text), f"found {message}"
            elif name == "positions":
                assert isinstance(message, PutResponse)
                positions = ",".join(
                    f"{index}@{offset}" for index, _, offset in ledger.positions(bytes(message.positions))
                )
                assert positions == text, f"positions are {positions}"
            elif name == "read":
                assert isinstance(message, GetResponse)
                assert [f"{found.index}:{found.term}" for found in message.entries] == [text], f"found {message}"
            else:
                found = getattr(message, name)
                assert found == self._value(text), f"{name} is {found} in {message}"

    def do_is(self, *words: str) -> None:
        core, store = self.core, self.store
        assert core is not None
        begin, end = store.ledger_begin_index, store.ledger_end_index
        terms = [] if begin < 0 else [store.term_at(index) for index in range(begin, end + 1)]
        found = {
            "role": core.role.name,
            "term": core.term,
            "saved": store.curr_term,
            "vote": store.vote_leader,
            "leader": core.leader_id,
            "committed": core.committed_index,
            "begin": begin,
            "end": end,
            "log": ",".join(map(str, terms)),
            "transferee": core.transferee,
        }
        for name, text in values(list(words)).items():
            assert str(found[name]) == text, f"{name} is {found[name]}"
