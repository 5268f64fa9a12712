"""Java's classes read our messages and write them again with equal bytes."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterator

import pytest

from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.wire import encode
from pyspark_dledger.store.dledger_store import Entry
from tests.interop.java_group import JavaProcess

TEXTS = (None, "", "n0", 'dLedger"\\ \t\n\x01 -/', "Größe 日本 \U0001f600", "a" * 300)
CLASSES = {
    m.MetadataRequest: "MetadataRequest",
    m.MetadataResponse: "MetadataResponse",
    m.AppendRequest: "AppendEntryRequest",
    m.AppendResponse: "AppendEntryResponse",
    m.GetRequest: "GetEntriesRequest",
    m.GetResponse: "GetEntriesResponse",
    m.VoteRequest: "VoteRequest",
    m.VoteResponse: "VoteResponse",
    m.HeartBeatRequest: "HeartBeatRequest",
    m.HeartBeatResponse: "HeartBeatResponse",
    m.PushRequest: "PushEntryRequest",
    m.PushResponse: "PushEntryResponse",
    m.TransferRequest: "LeadershipTransferRequest",
    m.TransferResponse: "LeadershipTransferResponse",
}


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProcess]:
    process = JavaProcess("EchoMessages", "0.3.1.2")
    yield process
    process.close()


@pytest.mark.parametrize("kind", CLASSES, ids=CLASSES.get)
def test_java_reads_and_writes_equal_bytes(kind: type[m.WireMessage], java: JavaProcess) -> None:
    choice = random.Random(CLASSES[kind])
    for opaque in range(60):
        message = _message(kind, choice)
        if isinstance(message, m.Request):
            frame = b"".join(encode(message, opaque))
            expected = {"code": int(m.RequestCode[_code_name(message)]), "flag": 0}
        else:
            assert isinstance(message, m.Response)
            frame = b"".join(encode(message, opaque))
            expected = {"code": 200, "flag": 1}
        echo = java.ask(f"{CLASSES[kind]} {base64.b64encode(frame[4:]).decode()}")
        body = base64.b64decode(echo.pop("body"))
        header_size = int.from_bytes(frame[5:8], "big")
        # Java writes the size of its own batch and does not read that of a received one.
        assert re.sub(rb'"totalSize":\d+', b'"totalSize":0', frame[8 + header_size :]) == body
        assert echo == {**expected, "opaque": opaque}


def _code_name(request: m.Request) -> str:
    names = {m.HeartBeatRequest: "HEART_BEAT", m.TransferRequest: "LEADERSHIP_TRANSFER"}
    return names.get(type(request), type(request).__name__.removesuffix("Request").upper())


def _message(kind: type[m.WireMessage], choice: random.Random) -> m.WireMessage:
    text = choice.choice
    message = kind(
        group=text(TEXTS),
        remote_id=text(TEXTS),
        local_id=text(TEXTS),
        code=choice.choice((200, -1, 404, 506)),
        leader_id=text(TEXTS),
        term=_number(choice),
    )
    if isinstance(message, m.MetadataResponse):
        # At most one: Java writes peers in hash map order.
        message.peers = choice.choice(({}, {"n0": "127.0.0.1:20911"}))
    elif isinstance(message, m.AppendRequest):
        body = choice.randbytes(choice.randrange(40))
        message.bodies = Bodies(1, len(body).to_bytes(4, "big") + body)
    elif isinstance(message, m.AppendResponse):
        message.index, message.pos = _number(choice), _number(choice)
    elif isinstance(message, m.GetRequest):
        message.begin_index = _number(choice)
    elif isinstance(message, m.GetResponse):
        message.entries = [Entry(_number(choice), 3, 99, 1, choice.randbytes(20))][: choice.randrange(2)]
    elif isinstance(message, m.VoteRequest):
        message.ledger_end_index, message.ledger_end_term = _number(choice), _number(choice)
    elif isinstance(message, m.VoteResponse):
        message.vote_result = choice.choice(list(m.VoteResult))
    elif isinstance(message, m.PushRequest):
        _fill_push(message, choice)
    elif isinstance(message, m.PushResponse):
        message.index = choice.choice((None, _number(choice)))
        message.count, message.begin_index, message.end_index = choice.randrange(9), _number(choice), _number(choice)
    elif isinstance(message, m.TransferRequest):
        message.transfer_id, message.transferee_id = text(TEXTS), text(TEXTS)
        message.take_leadership_ledger_index = _number(choice)
    return message


def _number(choice: random.Random) -> int:
    return choice.choice((-1, 0, 1, choice.randrange(1 << 31), 2**63 - 1, -(2**63)))


def _fill_push(message: m.PushRequest, choice: random.Random) -> None:
    message.type = choice.choice(list(m.PushType))
    message.commit_index = _number(choice)
    if message.type is m.PushType.COMMIT:
        return
    message.is_batch = message.type is m.PushType.APPEND and choice.random() < 0.5
    message.count = choice.randrange(1, 5) if message.type is m.PushType.APPEND else 1
    message.first_index = choice.randrange(1 << 40)
    pos, parts = choice.randrange(1 << 40), []
    for index in range(message.first_index, message.first_index + message.count):
        parts.append(encode_entry(index, 3, pos, choice.randbytes(choice.randrange(30))))
        pos += len(parts[-1])
    message.data = b"".join(parts)
