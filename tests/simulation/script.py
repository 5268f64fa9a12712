"""Plays one core by a script: what it is sent, how much time passes, what it must send, answer and be.

One step a line; ``#`` begins a comment. Entry `i` of term `t` has the same bytes wherever a script names it.

    node n0 of n0 n1 n2 sync serves max_pending_requests_num=2   settings; the first line; `serves`: has an application
    log 0 0 1:7@0                terms of the entries that the disk holds, from `begin 3` on if that was said
    saved 2 n1                   term and vote on the disk (`-`: no vote)
    committed 1                  the committed index on the disk
    start                        the core begins
    n1 > VOTE term=3 ledger_end_index=2           a request of n1; also HEART_BEAT, COMPARE, TRUNCATE, APPEND, COMMIT,
    n1 > APPEND term=3 entries=3:1,4:3            TRANSFER; `entries` are index:term, index:term:7@0 is message 7, with
                                 offset 0 in its queue, index:term:filler a filler
    client > APPEND bodies=2     a client's request; also GET, METADATA, STATUS, TRANSFER, TOPICS, CONFIG
    client > PUT messages=7,8    puts these, all of one queue
    < code=200 term=3            the next answer has that; `< nothing`: there is none; `places` are index@offset
    > n1 APPEND entries=3:1      the next request to n1 of that kind has that; `> n1 APPEND nothing`: there is none
    n1 < code=200                n1 answers the request that was matched last; `n1 < nothing`: it cannot be reached
    tick 300                     time passes, 10 ms by 10 ms
    until 20000 VOTE             the same, until a request of that kind is on its way
    persisted 3                  the disk has flushed up to there
    disk full 1, disk fails 1    so many of the next operations fail
    crash                        the core begins again on what is durable
    ours n1                      n1 is of our own kind
    is role=LEADER term=3 vote=n0 log=0,0,1 committed=2    how it stands
"""

from __future__ import annotations

from random import Random
from typing import Any

from pyspark_dledger.format.codec import encode_entry
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
from pyspark_dledger.raft.wire import message_kinds
from tests.simulation import ledger
from tests.simulation.disk import SimStore
from tests.simulation.judge import HEADER_SIZE, Judge
from tests.simulation.ledger import FILLER, Ledger, Message, pack

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
ANSWERS: dict[type[Request], type[Response]] = {
    message_kinds.REQUESTS[code]: message_kinds.ANSWERS[code] for code in message_kinds.REQUESTS
}
BODY_SIZE = 16
TICK = 10


def message(number: int, offset: int = 0) -> bytes:
    """The message that scripts mean by its number."""
    return Message((1, number), 0, offset, b"").body()


def entry(index: int, term: int, what: str = "") -> bytes:
    """The entry that scripts mean by `index:term`, or `index:term:what`."""
    body = b"%011d@%04d" % (index, term)
    if what:
        body = FILLER if what == "filler" else message(*map(int, what.split("@")))
    return encode_entry(index, term, index * (HEADER_SIZE + BODY_SIZE), body)


def entries(text: str) -> tuple[int, bytes]:
    """The first index and the bytes of ``3:1,4:3``."""
    parts = [(int(index), int(term), *what) for index, term, *what in (part.split(":") for part in text.split(","))]
    return parts[0][0], b"".join(entry(*part) for part in parts)


def values(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


class _Shortest(Random):
    """Chooses the first of all choices: after a crash only what was durable is left."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Script:
    """Plays the lines of a script; AssertionError names the line that does not hold."""

    def __init__(self) -> None:
        self.now = 1000
        self.store = SimStore("n0", False, 1 << 30, Judge())
        self.core: Core | None = None
        self.sent: list[Send] = []
        self.answers: list[Response] = []
        self.matched: dict[str, Send] = {}
        self.begin = 0

    def play(self, text: str) -> None:
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
            self.expect_answer(rest)
        elif first == ">":
            self.expect_request(rest)
        elif rest and rest[0] == ">":
            self.request(first, rest[1], rest[2:])
        elif rest and rest[0] == "<":
            self.answer(first, rest[1:])
        else:
            getattr(self, f"do_{first}")(*rest)

    # The disk, before the start.

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
        self.store._flushed = self.store.ledger_end_index

    def do_saved(self, term: str, vote: str) -> None:
        self.store.save_term(int(term), None if vote == "-" else vote)

    def do_committed(self, index: str) -> None:
        self.store.update_committed_index(self.store.ledger_end_term, int(index))
        self.store.checkpoint = int(index)

    def do_start(self) -> None:
        addresses = {peer: f"127.0.0.1:{20911 + at}" for at, peer in enumerate(self.config.peers)}
        application = Ledger() if self.serves else None
        if application is not None:
            # Rules are about others than a leader that has only begun.
            application.is_slow = False
            application.started(self.store)
        self.core = Core(self.config, self.store, Random(1), self.now, addresses, application)
        self._drain()

    # What happens to it.

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
        self.answers.clear()
        self.core.handle(cls(**fields), "token", self.now)
        self._drain()

    def _value(self, text: str) -> Any:
        if text in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[text]
        if text in VoteResult.__members__:
            return VoteResult[text]
        return int(text) if text.lstrip("-").isdigit() else text

    def answer(self, peer: str, words: list[str]) -> None:
        assert self.core is not None
        send = self.matched.pop(peer)
        answer: Response | None = None
        if words != ["nothing"]:
            request = send.request
            fields: dict[str, Any] = {"group": "g", "local_id": peer, "leader_id": request.leader_id}
            fields["term"] = request.term
            if isinstance(request, PushRequest):
                fields["index"] = request.first_index if request.count else None
                fields["count"] = request.count
            fields |= {name: self._value(value) for name, value in values(words).items()}
            answer = ANSWERS[type(request)](**fields)
        self.core.answered(send.token, answer, self.now)
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
        self.store._flushed = max(self.store._flushed, int(index))
        self.core.persisted(int(index), self.now)
        self._drain()

    def do_disk(self, what: str, count: str) -> None:
        if what == "full":
            self.store.full = int(count)
        else:
            self.store.broken = int(count)

    def do_ours(self, peer: str) -> None:
        assert self.core is not None
        self.core.peer_is_ours(peer, True)

    def do_crash(self) -> None:
        self.store = self.store.survive(_Shortest())
        self.sent.clear()
        self.matched.clear()
        self.do_start()

    def _drain(self) -> None:
        assert self.core is not None
        for effect in self.core.drain():
            if isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, Reply):
                self.answers.append(effect.answer)

    # What must come of it.

    def expect_answer(self, words: list[str]) -> None:
        if words == ["nothing"]:
            assert not self.answers, f"found {self.answers}"
            return
        assert self.answers, "there is no answer"
        self._compare(self.answers.pop(0), words)

    def expect_request(self, words: list[str]) -> None:
        peer, kind, *wanted = words
        there = [send for send in self.sent if send.peer_id == peer and self._kind(send.request) == kind]
        if wanted == ["nothing"]:
            assert not there, f"found {there}"
            return
        assert there, f"there is none, only {[(send.peer_id, self._kind(send.request)) for send in self.sent]}"
        self.matched[peer] = there[0]
        self.sent = [send for send in self.sent if send is not there[0]]
        self._compare(there[0].request, wanted)

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
            elif name == "places":
                assert isinstance(message, PutResponse)
                places = ",".join(f"{index}@{offset}" for index, _, offset in ledger.places(bytes(message.places)))
                assert places == text, f"places are {places}"
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
