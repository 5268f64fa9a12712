"""Messages that a client puts: none twice, whatever became of them before, and none where they are not served."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.entry_encoding import pack_bodies
from pyspark_dledger.raft.client import Client, PartialAppendError, Put, PutResult, appender, request_units
from pyspark_dledger.raft.messages import (
    ConfigRequest,
    ConfigResponse,
    MetadataRequest,
    MetadataResponse,
    PutRequest,
    ReadRequest,
    Request,
    TopicsRequest,
)
from pyspark_dledger.raft.wire import SYSTEM_BUSY, SYSTEM_ERROR, Refusal
from pyspark_dledger.raft.wire.message_kinds import REQUEST_CODES, RESPONSES
from pyspark_dledger.store import MmapFileStore, StoreConfig
from tests.raft.test_client import batch_of, connected
from tests.simulation.ledger import FILLER, Ledger, Message, pack, parse
from tests.support.fake_members import ACK, APPENDED_AND_CUT, CUT, SILENT, Act, Fake, appended_but, refuse
from tests.support.groups import FAST, FASTER, SMALL, Nodes, eventually, nodes

UNSUPPORTED, DISK_FULL = ResponseCode.UNSUPPORTED, ResponseCode.DISK_FULL


def serving(**options: Any) -> Fake:
    """A member that serves messages; equal bodies are the same message."""
    return Fake(serves_messages=True, **options)


def messages_of(number: int) -> list[bytes]:
    return [b"message %d" % each for each in range(number)]


# What is put, and where it stands.


@pytest.mark.parametrize("form", [list, tuple, pack_bodies, iter])
def test_put(form: Callable[[list[bytes]], Any]) -> None:
    fake = serving()
    bodies = messages_of(200)
    with connected(fake) as client:
        result = client.put_messages(form(bodies), queue_nums=8)
        again = client.put_messages([bodies[7], b"new", bodies[3]])
    assert fake.log.bodies == [*bodies, b"new"]
    assert (len(result), result.count, result.first_index, result.last_index) == (200, 200, 0, 199)
    assert list(result) == [Put(index, fake.log.get(index).pos, index % 100) for index in range(200)]
    assert [put.index for put in again] == [7, 200, 3]
    assert (again.first_index, again.last_index) == (3, 200)
    assert len(result.positions) == 200 * 24
    assert [seen.queue_nums for seen in fake.seen] == [8, 4]


def test_a_large_put_goes_in_several_requests_in_order() -> None:
    fake = serving()
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(12))]
    with connected(fake) as client:
        result = client.put_messages(bodies)
        client.append(b"raw")
    assert fake.log.bodies == [*bodies, b"raw"]
    assert [put.index for put in result] == list(range(24))
    assert [seen.is_restart for seen in fake.seen] == [True] + [False] * 12


def test_results_of_nothing() -> None:
    assert (PutResult([]).first_index, PutResult([]).last_index, len(PutResult([])), list(PutResult([]))) == (
        *(-1, -1, 0),
        [],
    )


@pytest.mark.parametrize(
    ("bodies", "queue_nums", "error"),
    [
        ([], 4, ValueError),
        ([1], 4, TypeError),
        ([bytes(request_units.MAX_BODY_SIZE + 1)], 4, ValueError),
        (Bodies(2, b""), 4, ValueError),
        ([b"x"], 0, OptionError),
        ([b"x"], "4", OptionError),
    ],
)
def test_what_cannot_be_put_is_said_before_anything_is_sent(bodies: Any, queue_nums: Any, error: type) -> None:
    fake = serving()
    with connected(fake) as client, pytest.raises(error):
        client.put_messages(bodies, queue_nums)
    assert not fake.seen


def test_topics() -> None:
    asked: list[TopicsRequest] = []
    fake = serving()
    with connected(fake) as client:
        topics = client.topics(["a", "%RETRY%g"], 8)
        assert topics.queue_counts == {"a": 8, "%RETRY%g": 8}
        assert topics.store_host == bytes(range(8))
        assert client.topics([]).queue_counts == {}
        with pytest.raises(TypeError, match="expected a sequence of texts, found 'a'"):
            client.topics("a")
        with pytest.raises(OptionError, match="queue_nums"):
            client.topics(["a"], 0)

        def not_ready(request: Request) -> Any:
            assert isinstance(request, TopicsRequest)
            asked.append(request)
            fake.responses.clear() if len(asked) == 2 else None
            return refusal(TopicsRequest, ResponseCode.LEADER_NOT_READY)

        fake.responses[TopicsRequest] = not_ready
        assert client.topics(["b"]).queue_counts == {"b": 4}
        fake.responses[TopicsRequest] = lambda _: refusal(TopicsRequest, 411, "expected a topic, found 'b b'")
        with pytest.raises(GroupError, match=r"UNEXPECTED_ARGUMENT.*: expected a topic, found 'b b'"):
            client.topics(["b b"])
    assert len(asked) == 2


@pytest.mark.parametrize("names", [["x" * 5000], ["\ud800"], ["x"] * 65536], ids=["long", "surrogate", "many"])
def test_topics_that_cannot_be_asked_for(names: list[str]) -> None:
    with connected(serving()) as client:
        started = time.monotonic()
        with pytest.raises(GroupError, match=r"^group g: expected") as caught:
            client.topics(names)
        assert caught.value.code == ResponseCode.UNEXPECTED_ARGUMENT
        assert time.monotonic() - started < 2


def refusal(kind: type[Request], code: int, reason: str | None = None) -> Any:
    return RESPONSES[REQUEST_CODES[kind]](group="g", code=code, reason=reason)  # type: ignore[call-arg]


def test_config() -> None:
    fake = serving()
    fake.responses[ConfigRequest] = lambda _: ConfigResponse(group="g", files={"topics.json": b"{}"})
    with connected(fake) as client:
        assert client.config() == {"topics.json": b"{}"}


# What is put again.


@pytest.mark.parametrize(
    "act",
    [
        *(CUT, APPENDED_AND_CUT, SILENT, appended_but(501), appended_but(502), appended_but(414), Act(count_off=1)),
        *(refuse(404), refuse(503), refuse(505), refuse(506), refuse(415)),
        *(Act(refusal=Refusal(SYSTEM_ERROR, "?")), Act(is_appended=False, refusal=Refusal(SYSTEM_BUSY, ""))),
    ],
    ids=str,
)
def test_what_is_not_acknowledged_is_put_again(act: Act) -> None:
    fake = serving(script=deque([act, ACK, act, act, ACK, ACK, act]))
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(8))]
    with connected(fake, timeout_ms=500, max_retries=5) as client:
        result = client.put_messages(bodies)
    assert sorted(fake.log.bodies) == sorted(bodies)
    assert [fake.log.bodies[put.index] for put in result] == bodies
    assert len(fake.seen) > 8


def test_attempts_that_bring_nothing_end() -> None:
    fake = serving(script=deque([ACK] + [appended_but(502)] * 100))
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(2))]
    with connected(fake, max_retries=3) as client, pytest.raises(PartialAppendError) as caught:
        client.put_messages(bodies)
    error = caught.value
    assert (error.code, error.unknown, error.not_appended) == (502, (range(2, 4),), ())
    assert str(error).startswith("of 4 messages 2 were appended, of 2 it is unknown, and 0 were not appended")
    assert [put.index for put in error.acknowledged] == [0, 1]
    # Together with what went on, and then one attempt and three more.
    assert sum(seen.bodies == bodies[2:] for seen in fake.seen) == 5
    again = pickle.loads(pickle.dumps(error))
    assert list(again.acknowledged) == list(error.acknowledged)
    assert (again.unknown, again.code) == (error.unknown, error.code)


def test_attempts_count_anew_where_something_goes_on() -> None:
    # One request is acknowledged in each round, and there are many more rounds than retries.
    fake = serving(script=deque([ACK, CUT] * 12))
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(14))]
    with connected(fake, max_retries=2) as client:
        client.put_messages(bodies)
    assert sorted(fake.log.bodies) == sorted(bodies)


def test_what_has_no_identity_is_not_put_again() -> None:
    fake = serving(script=deque([APPENDED_AND_CUT]))
    with connected(fake) as client:
        with pytest.raises(PartialAppendError) as caught:
            client.put_messages([b"anonymous"], is_idempotent=False)
        assert caught.value.unknown == (range(1),)
        # Certain refusals are tried again all the same.
        fake.script.append(refuse(503))
        assert client.put_messages([b"anonymous"], is_idempotent=False).first_index == 1
    assert fake.log.bodies == [b"anonymous"] * 2


def test_what_is_said_to_be_idempotent_and_is_not_may_come_twice() -> None:
    """The other side of it, of which the documentation warns."""
    fake = serving(script=deque([APPENDED_AND_CUT]))
    with connected(fake) as client:
        client.put_messages([b"anonymous"])
    assert fake.log.bodies == [b"anonymous"] * 2


def test_a_message_that_is_refused_for_good_says_why() -> None:
    fake = serving(script=deque([refuse(ResponseCode.UNEXPECTED_ARGUMENT)]))
    with connected(fake) as client, pytest.raises(GroupError) as caught:
        client.put_messages([b"x"])
    assert caught.value.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert str(caught.value) == (
        "group g: expected n0 to take messages, found UNEXPECTED_ARGUMENT (411): "
        "message 3: expected a topic, found none"
    )


def test_a_put_that_was_sent_in_vain_is_not_said_to_be_missing() -> None:
    """First nobody knows, then it is refused for good: it may be in the log all the same."""
    fake = serving(script=deque([appended_but(502), refuse(ResponseCode.UNEXPECTED_ARGUMENT)]))
    with connected(fake) as client, pytest.raises(PartialAppendError) as caught:
        client.put_messages([b"x"])
    assert caught.value.unknown == (range(1),)
    assert "WAIT_QUORUM_ACK_TIMEOUT (502)" in str(caught.value) and "UNEXPECTED_ARGUMENT (411)" in str(caught.value)
    assert caught.value.code == ResponseCode.UNEXPECTED_ARGUMENT


def test_closing_says_what_is_unknown() -> None:
    fake = serving(script=deque([Act(code=None)] * 100))
    errors: list[Exception] = []

    def put() -> None:
        try:
            client.put_messages([b"x"])
        except (GroupError, UnknownOutcomeError) as error:
            errors.append(error)

    with connected(fake, timeout_ms=300) as client:
        thread = threading.Thread(target=put)
        thread.start()
        eventually(lambda: fake.seen)
        client.close()
        thread.join(10)
    assert [type(error) for error in errors] == [PartialAppendError]


# Leaders that serve no messages.


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "java"])
def test_a_leader_that_serves_no_messages_gets_none(is_ours: bool) -> None:
    fake = Fake(is_ours=is_ours)
    with connected(fake) as client:
        for call in (
            lambda: client.put_messages([b"x"]),
            lambda: client.put_messages(batch_of(20), is_idempotent=False),
            lambda: client.topics(["x"]),
        ):
            started = time.monotonic()
            with pytest.raises(GroupError, match="or write with a RocketMQ producer where brokers lead") as caught:
                call()
            assert caught.value.code == UNSUPPORTED
            assert not isinstance(caught.value, UnknownOutcomeError)
            assert time.monotonic() - started < 5
        assert fake.log.bodies == []
        if not is_ours:
            assert not fake.seen
        assert client.append(b"raw").index == 0


def test_an_older_node_of_ours_that_knows_no_messages() -> None:
    fake = serving(script=deque([Act(is_appended=False, refusal=Refusal(3, "request code 58004 is not supported"))]))
    with connected(fake) as client, pytest.raises(GroupError, match="RocketMQ producer") as caught:
        client.put_messages([b"x"])
    assert caught.value.code == UNSUPPORTED


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "java"])
def test_leadership_that_moves_to_who_serves_none_ends_a_put_in_the_middle(is_ours: bool) -> None:
    first = serving(script=deque([ACK, ACK, refuse(404, "n1")]))
    second = Fake("n1", "n1", is_ours=is_ours)
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(20))]

    def says(_: Request) -> MetadataResponse:
        leader = "n0" if first.script else "n1"
        return MetadataResponse(group="g", leader_id=leader, peers=first.peers)

    first.responses[MetadataRequest] = second.responses[MetadataRequest] = says
    with connected(first, second) as client, pytest.raises(PartialAppendError, match="RocketMQ producer") as caught:
        client.put_messages(bodies)
    error = caught.value
    assert error.code == UNSUPPORTED
    assert isinstance(error.acknowledged, PutResult)
    assert [put.index for put in error.acknowledged] == [0, 1, 2, 3]
    assert (error.unknown, error.not_appended) == ((), (range(4, 40),))
    assert first.log.bodies == bodies[:4]


def test_leadership_that_moves_among_those_that_serve_goes_on() -> None:
    first = serving(script=deque([ACK, ACK, APPENDED_AND_CUT]))
    second = serving(node_id="n1", leader_id="n1")
    bodies = [b"%04d" % number + body for number, body in enumerate(batch_of(20))]

    def says(_: Request) -> MetadataResponse:
        leader = "n0" if first.script else "n1"
        return MetadataResponse(group="g", leader_id=leader, peers=first.peers)

    first.responses[MetadataRequest] = second.responses[MetadataRequest] = says
    with connected(first, second) as client:
        result = client.put_messages(bodies)
    assert sorted(first.log.bodies) == sorted(bodies)
    assert [first.log.bodies[put.index] for put in result] == bodies


ACTS = [
    *(ACK, ACK, ACK, CUT, APPENDED_AND_CUT, appended_but(501), appended_but(502), Act(delay=0.005)),
    *(refuse(404), refuse(404, "n1"), refuse(503), refuse(505), refuse(506), appended_but(414)),
]


@pytest.mark.parametrize("seed", range(10))
def test_every_message_is_there_once_whatever_members_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(appender, "_MAX_PAUSE", 0.004)
    monkeypatch.setattr(request_units, "UNIT_BYTES", 2000)
    chance = random.Random(seed)
    members = [serving(node_id=f"n{number}", leader_id=f"n{number}") for number in range(2)]
    for member in members:
        member.script = deque(chance.choices(ACTS, k=chance.randrange(60)))
    made: list[bytes] = []
    raw: list[bytes] = []
    with connected(*members, max_retries=60) as client:
        for turn in range(15):
            new = [b"%d-%d " % (turn, n) + bytes(chance.randrange(300)) for n in range(chance.randrange(1, 40))]
            chosen = new + chance.sample(made, min(len(made), 3))
            result = client.put_messages(chosen)
            assert [members[0].log.bodies[put.index] for put in result] == chosen
            made += new
            try:
                raw.append(b"raw %d" % turn)
                client.append(raw[-1])
            except UnknownOutcomeError:
                pass
    log = members[0].log.bodies
    assert sorted(body for body in log if body not in raw) == sorted(made)


# A group of real nodes, whose application is that of the simulation.


class Application(Ledger):
    """As in the simulation; it has the name of its node, and can be told to fail."""

    is_broken = False

    def __init__(self, node_id: str = "n0") -> None:
        super().__init__()
        self.node_id = node_id
        self.is_running = False

    def started(self, store: Any) -> None:
        super().started(store)
        self.is_running = True

    def stopped(self) -> None:
        assert self.is_running
        self.is_running = False

    def admit(self, bodies: Bodies, queue_nums: int) -> Any:
        if self.is_broken:
            raise OSError("broken")
        return super().admit(bodies, queue_nums)


def message(number: int, client: int = 1, size: int = 900) -> bytes:
    return Message((client, number), number % 3, 0, bytes(size)).body()


def test_puts_in_a_group_whose_leaders_go(tmp_path: Path) -> None:
    """Leaders stop under load: every message stands in the log once, and its queue is numbered without gaps."""
    failures: list[DLedgerError] = []
    done: list[int] = []
    told: dict[int, Put] = {}
    with (
        nodes(tmp_path, 3, application=Application, core_options=FASTER) as group,
        dl.connect("g", group.peers, timeout_ms=2000, max_retries=20) as client,
    ):
        is_over = threading.Event()

        def put() -> None:
            for turn in count():
                if is_over.is_set():
                    return
                numbers = list(range(50 * turn, 50 * turn + 50)) + done[-3:]
                try:
                    result = client.put_messages([message(number) for number in numbers])
                except DLedgerError as error:
                    failures.append(error)
                    return
                for number, place in zip(numbers, result, strict=True):
                    assert told.setdefault(number, place) == place
                done.extend(numbers[:50])

        thread = threading.Thread(target=put)
        thread.start()
        for _ in range(3):
            leader = group.leader()
            time.sleep(0.3)
            group.stop(leader)
            group.leader()
            time.sleep(0.3)
            group.start(leader)
        is_over.set()
        thread.join(60)
        assert not failures and len(done) > 100
        check_log(client, told)


def check_log(client: Client, told: dict[int, Put]) -> None:
    """Every message is in the log once, where it was said to be, and the offsets of its queue have no gap."""
    last = client.append(b"end").index
    found: dict[int, Put] = {}
    ends = [0, 0, 0]
    index = 0
    while index <= last:
        for entry in client.read(index, wait_ms=1000).entries():
            index = entry.index + 1
            if (known := parse(entry.body)) is not None:
                assert known.identity[1] not in found, f"{known.identity} is there twice"
                assert known.offset == ends[known.queue]
                ends[known.queue] += 1
                found[known.identity[1]] = Put(entry.index, entry.pos, known.offset)
    assert found == told


def write_uncommitted(folder: Path, node_id: str, bodies: list[bytes]) -> None:
    """The store of a member that has entries of n2's term, and does not know whether they are committed."""
    store = MmapFileStore(StoreConfig(folder, node_id, **SMALL))  # type: ignore[arg-type]
    store.startup()
    store.save_term(1, "n2")
    store.append_as_leader(bodies, 1)
    store.shutdown()


def test_duplicates_alone_are_committed_with_one_member_down(tmp_path: Path) -> None:
    """The last unit of a job: its leader fell before it was committed, and nobody puts anything else."""
    bodies = [Message((1, number), 0, number, b"").body() for number in range(10)]
    group = Nodes(tmp_path, 3, application=Application, core_options={**FAST, "max_wait_ack_time_ms": 1000})
    for node_id in ("n0", "n1"):
        write_uncommitted(tmp_path, node_id, bodies)
    try:
        leader = group.start("n0", "n1").leader()
        with dl.connect("g", group.peers, max_retries=2) as client:
            time.sleep(0.3)
            assert group.status(leader)["committedIndex"] == -1
            result = client.put_messages(bodies)
            assert [(put.index, put.queue_offset) for put in result] == [(index, index) for index in range(10)]
            assert client.get(10).body == FILLER
            new = client.put_messages([Message((1, 10), 0, 0, b"").body(), bodies[3]])
            assert [(put.index, put.queue_offset) for put in new] == [(11, 10), (3, 3)]
    finally:
        group.close()


def test_a_restarted_node_still_knows_what_was_put(tmp_path: Path) -> None:
    bodies = [message(number) for number in range(30)]
    with nodes(tmp_path, 1, application=Application) as group:
        with dl.connect("g", group.peers) as client:
            first = list(client.put_messages(bodies))
            status = client.status("n0")
            assert status.serves_messages and status.committed_index == 29
            assert client.topics(["x"], 3).queue_counts == {"x": 3}
        node = group.nodes["n0"]
        group.stop("n0")
        assert not node._application.is_running  # type: ignore[union-attr]
        group.start("n0")
        with dl.connect("g", group.peers) as client:
            assert list(client.put_messages(bodies)) == first
            assert client.append(b"raw").index == 30


def test_an_application_that_raises_ends_its_node(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, application=Application) as group:
        group.leader()
        node = group.nodes["n0"]
        with dl.connect("g", group.peers, timeout_ms=300, max_retries=0) as client:
            client.topics(["x"])
            node._application.is_broken = True  # type: ignore[union-attr]
            with pytest.raises(PartialAppendError) as caught:
                client.put_messages([message(1)])
            assert caught.value.unknown == (range(1),)
        eventually(node.failed.done)
        assert "the application raised OSError('broken')" in str(node.failed.result())


def test_followers_copy_the_leader_s_metadata(tmp_path: Path) -> None:
    options = {**FAST, "copy_config_first_ms": 100, "copy_config_every_ms": 200}
    with nodes(tmp_path, 3, application=Application, core_options=options) as group:
        leader = group.leader()
        followers = [group.nodes[node_id]._application for node_id in group.ids if node_id != leader]
        for follower in followers:
            assert isinstance(follower, Application)
            eventually(lambda follower=follower: len(follower.copies) > 1)  # type: ignore[misc]
        assert group.nodes[leader]._application.copies == []  # type: ignore[union-attr]


def test_metadata_that_no_frame_holds_is_said_at_the_leader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Large(Application):
        def config(self) -> dict[str, bytes]:
            return {"topics.json": bytes(17 << 20)}

    with nodes(tmp_path, 1, application=Large) as group, dl.connect("g", group.peers) as client:
        group.leader()
        with caplog.at_level("ERROR", "pyspark_dledger.node"), pytest.raises(GroupError, match="look at the log"):
            client.config()
    (record,) = caplog.records
    assert record.getMessage() == "answer not sent"
    assert "expected a frame of at most 16777216 bytes" in record.fields["reason"]  # type: ignore[attr-defined]  # an extra


def test_a_process_asks_its_own_node(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, application=Application) as group:
        group.leader()
        node = group.nodes["n0"]

        def ask(request: Request) -> Any:
            return group.run(node.request(request))

        response = ask(PutRequest(bodies=pack([message(1)])))
        if response.code == ResponseCode.LEADER_NOT_READY:
            response = ask(PutRequest(bodies=pack([message(1)])))
        assert (response.code, response.index, response.count) == (ResponseCode.SUCCESS, 0, 1)
        assert ask(ReadRequest(first_index=0)).count == 1
        waiting = asyncio.run_coroutine_threadsafe(
            node.request(ReadRequest(first_index=9, wait_ms=50_000)), group._loop
        )
        group.stop("n0")
        with pytest.raises(GroupError, match="found that it does not run"):
            waiting.result(10)
        with pytest.raises(GroupError, match="found that it does not run"):
            ask(PutRequest(bodies=pack([message(1)])))


def test_an_application_that_cannot_start_or_stop_leaves_no_store_open(tmp_path: Path) -> None:
    class Stubborn(Application):
        fails_in = "started"

        def started(self, store: Any) -> None:
            if self.fails_in == "started":
                raise DLedgerError("cannot start")
            super().started(store)

        def stopped(self) -> None:
            super().stopped()
            raise DLedgerError("cannot stop")

    group = Nodes(tmp_path, 1, application=Stubborn)
    try:
        with pytest.raises(DLedgerError, match="cannot start"):
            group.start()
        Stubborn.fails_in = ""
        group.start()
        with pytest.raises(DLedgerError, match="cannot stop"):
            group.stop("n0")
        group.start(application=None)
        assert group.leader() == "n0"
    finally:
        group.close()
