"""Encoding and decoding: Java's frames byte for byte, round trips in both dialects, and malformed input."""

from __future__ import annotations

import base64
import json
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.messages import (
    PushType,
    Request,
    RequestCode,
    Response,
    Role,
    VoteResult,
    WireMessage,
)
from pyspark_dledger.raft.wire import (
    MAX_FRAME_SIZE,
    EncodeError,
    FrameReader,
    ReceivedRequest,
    ReceivedResponse,
    Rejection,
    WireConnection,
    WireError,
    decode,
    encode,
    encode_rejection,
    framing,
)
from pyspark_dledger.raft.wire.binary_layout import own_texts
from pyspark_dledger.raft.wire.json_bodies import decode_request, decode_response
from pyspark_dledger.store.dledger_store import Entry, EntryRun
from tests.fuzz import wire as fuzz_wire
from tests.support.wire_messages import (
    BATCH,
    EXTENSIONS,
    IDS,
    JAVA_MESSAGES,
    READ_ONLY,
    SAMPLES,
    encoded,
    framed,
    joined,
    one_body,
    only,
)

DATA = Path(__file__).resolve().parent / "wire"


def sent(message: WireMessage, is_binary: bool) -> WireMessage | Rejection | None:
    """The message, encoded and decoded."""
    outstanding = {7: message.request_code} if isinstance(message, Response) else {}
    return decode(only(encoded(message, 7, is_binary)), outstanding).message


# Encoding as in Java


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


JAVA_FRAMES = {row["name"]: row for row in rows("java-frames.jsonl")}


def test_every_java_frame_has_an_expected_message() -> None:
    assert JAVA_FRAMES.keys() == JAVA_MESSAGES.keys() | READ_ONLY.keys()


@pytest.mark.parametrize("name", JAVA_FRAMES)
def test_java_frames_are_decoded(name: str) -> None:
    row = JAVA_FRAMES[name]
    expected = JAVA_MESSAGES.get(name, READ_ONLY.get(name))
    found = decode(only(base64.b64decode(row["frame"])), {row["opaque"]: row["code"]})
    if isinstance(expected, m.PushRequest):
        # A decoded push does not say how its entries were written.
        expected = replace(expected, is_batch=False)
    assert found.message == expected
    assert (found.opaque, found.request_code) == (row["opaque"], row["code"])
    assert not found.is_binary
    assert not found.offers_binary


@pytest.mark.parametrize("name", JAVA_MESSAGES)
def test_frames_are_encoded_as_in_java(name: str) -> None:
    """Byte for byte, except that the header names another language."""
    row = JAVA_FRAMES[name]
    java = only(base64.b64decode(row["frame"]))
    encoded_frame = only(encoded(JAVA_MESSAGES[name], row["opaque"], is_binary=False))
    assert bytes(encoded_frame.body) == bytes(java.body)
    assert bytes(encoded_frame.header) == bytes(java.header).replace(b'"JAVA"', b'"PYTHON"')


@pytest.mark.parametrize("name", ["refused-unsupported", "refused-error"])
def test_refusals_are_encoded_as_in_java(name: str) -> None:
    row, rejection = JAVA_FRAMES[name], READ_ONLY[name]
    assert isinstance(rejection, Rejection)
    frame = joined(encode_rejection(rejection, row["opaque"]))
    assert frame[8:] == base64.b64decode(row["frame"])[8:].replace(b'"JAVA"', b'"PYTHON"')


def test_captured_bodies_are_encoded_byte_for_byte() -> None:
    """Captured between two Java nodes."""
    compare = m.PushRequest(
        **(IDS | {"term": 1}), type=PushType.COMPARE, first_index=0, count=1, data=encode_entry(0, 1, 0, b"hello0")
    )
    assert bytes(only(encoded(compare, 0, False)).body) == (
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":-1,"count":1,"entry":{"body":"aGVsbG8w","bodyCrc":0,'
        b'"chainCrc":0,"channel":0,"index":0,"magic":1,"pos":0,"size":54,"term":1},"firstEntryIndex":0,"group":"g1",'
        b'"lastEntryIndex":0,"leaderId":"n0","localId":"n0","remoteId":"n1","term":1,"totalSize":0,"type":"COMPARE"}'
    )
    response = m.PushResponse(group="g1", term=1, code=406, index=0, count=1)
    assert bytes(only(encoded(response, 0, False)).body) == (
        b'{"beginIndex":-1,"code":406,"count":1,"endIndex":-1,"group":"g1","index":0,"term":1}'
    )


# Decoding as in Java


READERS: dict[str, tuple[Callable[[int, bytes], WireMessage], RequestCode]] = {
    "HeartBeatRequest": (decode_request, RequestCode.HEART_BEAT),
    "VoteResponse": (decode_response, RequestCode.VOTE),
    "AppendEntryRequest": (decode_request, RequestCode.APPEND),
    "PushEntryRequest": (decode_request, RequestCode.PUSH),
    "PushEntryResponse": (decode_response, RequestCode.PUSH),
    "GetEntriesRequest": (decode_request, RequestCode.GET),
    "GetEntriesResponse": (decode_response, RequestCode.GET),
    "MetadataResponse": (decode_response, RequestCode.METADATA),
}
# Java reads these, some of them wrongly; no DLedger writes them.
REJECTED = {
    # not JSON
    *('{"term":007}', '{"term":+5}', '{"term":5L}', '{"term":NaN}', '{"group":"\\x41"}', "{\"group\":'g'}"),
    *('{group:"g"}', '{"group":"g",}', '/*c*/{"group":"g"}', '{"peers":{n0:"a"}}', "{\"body\":x'6869'}"),
    # no number
    *('{"term":5.9}', '{"code":5.5}', '{"term":""}', '{"term":"null"}', '{"term":"1,234"}'),
    *('{"term":99999999999999999999999}', '{"term":"99999999999999999999"}'),
    # no text
    *('{"group":5}', '{"group":true}', '{"group":[1,"a"]}', '{"group":{"a":1}}', '{"group":"\\ud800"}'),
    *('{"peers":{"n0":5}}', '{"peers":{"n0":null}}'),
    # no bytes
    *(f'{{"body":{value}}}' for value in ('"aGk=="', '"aG k="', '"aG\\nk="', '"a"', '"=aGk"', '"aGk=aGk="', '"===="')),
    *(f'{{"body":{value}}}' for value in ('"aG=k"', '"aGk=\\n"', '" aGk="', "[104,105]", "[104,-1]", "[]")),
    # Java's responses to these pushes are errors
    *('{"type":"INSTALL_SNAPSHOT"}', '{"type":null}', '{"type":"commit"}', '{"entry":{"$ref":"$.nothing"}}'),
    *('{"entry":{}}', '{"entry":[]}', '{"entry":{"body":null,"index":3}}', '{"entries":[null]}', '{"entries":[{}]}'),
}
# Decoded differently than in Java: as this JSON.
DECODED_DIFFERENTLY = {
    '{"GROUP":"g"}': "{}",  # keys are case-sensitive
    '{"remote_id":"n1"}': "{}",
    '{"@type":"java.lang.Object","group":"g"}': '{"group":"g"}',  # an unknown key
    '{"voteResult":"accept"}': '{"voteResult":"UNKNOWN"}',
    # the spelling of 0.1; later versions read null
    '{"voteResult":"REJECT_ALREADY__HAS_LEADER"}': '{"voteResult":"REJECT_ALREADY_HAS_LEADER"}',
    # a missing index is -1 as everywhere, not 0
    '{"index":null}': '{"beginIndex":-1,"endIndex":-1}',
    '{"index":"7"}': '{"index":7}',
    '{"count":3}': '{"count":3}',
}


def decoded(kind: str, body: str) -> WireMessage | None:
    read, code = READERS[kind]
    try:
        return read(code, body.encode())
    except WireError:
        return None


@pytest.mark.parametrize("row", rows("java-reads.jsonl"), ids=lambda row: f"{row['kind']}-{row['body']}")
def test_bodies_are_decoded_as_in_java(row: dict[str, Any]) -> None:
    kind, body, java = row["kind"], row["body"], row["java"]
    found = decoded(kind, body)
    if kind == "PushEntryResponse" and body == "{}":
        assert found == m.PushResponse()
    elif body in DECODED_DIFFERENTLY:
        assert found is not None
        assert found == decoded(kind, DECODED_DIFFERENTLY[body])
    elif (
        body in REJECTED or java in (None, "null") or (kind, body) == ("PushEntryRequest", f'{{"batchEntry":{ENTRY}}}')
    ):
        assert found is None
    else:
        assert found is not None
        assert found == decoded(kind, java)


ENTRY = '{"body":"aGk=","bodyCrc":0,"chainCrc":0,"channel":0,"index":5,"magic":1,"pos":9,"size":50,"term":1}'
HI = encode_entry(5, 1, 9, b"hi")


@pytest.mark.parametrize(
    ("body", "count", "data"),
    [
        (f'{{"entry":{ENTRY}}}', 1, HI),
        (f'{{"type":"COMPARE","entry":{ENTRY}}}', 1, HI),
        (f'{{"type":"COMPARE","batchEntry":[{ENTRY}]}}', 0, b""),
        (f'{{"batchEntry":[{ENTRY}]}}', 1, HI),
        (f'{{"entry":{{"$ref":"$.batchEntry[0]"}},"batchEntry":[{ENTRY}]}}', 1, HI),
        (f'{{"entry":{ENTRY},"batchEntry":[{{"$ref":"$.entry"}}]}}', 1, HI),
        (f'{{"type":"COMMIT","entry":{ENTRY}}}', 0, b""),
        (f'{{"type":"APPEND","entries":[{ENTRY}]}}', 0, b""),  # 0.4.0
        (f'{{"entry":{ENTRY.replace(":50", ":77")}}}', 1, HI),  # the size is the body's
    ],
)
def test_entries_of_a_push(body: str, count: int, data: bytes) -> None:
    found = decode_request(RequestCode.PUSH, body.encode())
    assert isinstance(found, m.PushRequest)
    assert (found.count, found.data, found.first_index) == (count, data, 5 if count else -1)


def test_entry_fields_that_java_leaves_empty_are_kept() -> None:
    fields = ENTRY.replace('"channel":0', '"channel":-1').replace('Crc":0', 'Crc":7')
    found = decode_request(RequestCode.PUSH, f'{{"entry":{fields}}}'.encode())
    assert isinstance(found, m.PushRequest)
    assert struct.unpack(">iii", found.data[32:44]) == (-1, 7, 7)
    assert bytes(only(encoded(found, 0, False)).body).count(b'Crc":7') == 2


# Round trips

INT64 = st.integers(-(2**63), 2**63 - 1)
INDEX = st.integers(-1, 2**63 - 1)
COUNT = st.integers(0, 2**31 - 1)
UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BASE: dict[str, st.SearchStrategy[Any]] = {
    "group": TEXT,
    "remote_id": TEXT,
    "local_id": TEXT,
    "leader_id": TEXT,
    "code": st.integers(-(2**31), 2**31 - 1),
    "term": INT64,
}
PEERS = st.dictionaries(NAME, NAME, max_size=4)
BODY = st.binary(max_size=60)


def build(kind: type[WireMessage], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[WireMessage]:
    return st.builds(kind, **BASE, **fields)


@st.composite
def entries(draw: st.DrawFn, most: int) -> dict[str, Any]:
    """The entries' fields of a push or a read."""
    bodies = draw(st.lists(BODY, max_size=most))
    first = draw(st.integers(0, 2**62)) if bodies else -1
    pos = draw(st.integers(0, 2**62))
    data = b""
    for number, body in enumerate(bodies):
        data += encode_entry(first + number, draw(INT64), pos + len(data), body)
    return {"first_index": first, "count": len(bodies), "data": data}


@st.composite
def with_entries(draw: st.DrawFn, kind: type[WireMessage], most: int, **fields: st.SearchStrategy[Any]) -> WireMessage:
    named = {name: draw(strategy) for name, strategy in (BASE | fields).items()}
    return kind(**named, **draw(entries(most)))


BOTH = st.one_of(
    build(m.MetadataRequest),
    build(m.MetadataResponse, peers=PEERS),
    build(m.AppendRequest, bodies=BODY.map(one_body)),
    build(m.AppendResponse, index=INDEX, pos=INDEX),
    build(m.GetRequest, begin_index=INT64),
    build(
        m.GetResponse,
        entries=st.lists(
            st.builds(Entry, INT64, INT64, INT64, st.integers(-1, 3), BODY, st.integers(-(2**31), 2**31 - 1)),
            max_size=3,
        ),
    ),
    build(m.VoteRequest, ledger_end_index=INT64, ledger_end_term=INT64),
    build(m.VoteResponse, vote_result=st.sampled_from(VoteResult)),
    build(m.HeartBeatRequest),
    build(m.HeartBeatResponse),
    with_entries(m.PushRequest, 4, type=st.just(PushType.APPEND), commit_index=INT64),
    with_entries(m.PushRequest, 1, type=st.sampled_from([PushType.COMPARE, PushType.TRUNCATE]), commit_index=INT64),
    build(m.PushRequest, type=st.just(PushType.COMMIT), commit_index=INT64),
    build(m.PushResponse, index=st.none() | INT64, count=COUNT, begin_index=INT64, end_index=INT64),
    build(m.TransferRequest, transfer_id=TEXT, transferee_id=TEXT, take_leadership_ledger_index=INT64),
    build(m.TransferResponse),
)


@st.composite
def many_bodies(draw: st.DrawFn) -> Bodies:
    bodies = draw(st.lists(BODY, max_size=5))
    return Bodies(len(bodies), struct.pack(f">{len(bodies)}I", *map(len, bodies)) + b"".join(bodies))


@st.composite
def append_responses(draw: st.DrawFn) -> WireMessage:
    runs = draw(st.lists(st.builds(EntryRun, INT64, INT64), max_size=4))
    named = {name: draw(strategy) for name, strategy in BASE.items()}
    count = draw(st.integers(max(len(runs), 1), 2**32 - 1))
    return m.AppendResponse(**named, index=draw(INT64), pos=draw(INT64), count=count, runs=tuple(runs))


@st.composite
def put_responses(draw: st.DrawFn) -> WireMessage:
    named = {name: draw(strategy) for name, strategy in BASE.items()}
    count = draw(st.integers(0, 4))
    positions = draw(st.sampled_from([b"", bytes(range(24)) * count]))
    return m.PutResponse(
        **named, index=draw(INT64), pos=draw(INT64), count=count, positions=positions, reason=draw(TEXT)
    )


BINARY = st.one_of(
    BOTH,
    build(m.AppendRequest, bodies=many_bodies(), is_restart=st.booleans()),
    append_responses(),
    build(m.GetRequest, begin_index=INT64, is_committed=st.booleans()),
    build(m.VoteResponse, vote_result=st.sampled_from(VoteResult), is_without_log=st.booleans()),
    build(m.StatusRequest),
    build(
        m.StatusResponse,
        role=st.sampled_from(Role),
        begin_index=INT64,
        end_index=INT64,
        end_term=INT64,
        committed_index=INT64,
        peers=PEERS,
        serves_messages=st.booleans(),
    ),
    build(m.HeartBeatRequest, cluster_id=TEXT),
    build(m.HeartBeatResponse, cluster_id=TEXT),
    with_entries(m.PushRequest, 1, type=st.just(PushType.TRUNCATE), commit_index=INT64, members=TEXT),
    build(m.MembersRequest, action=TEXT, member_id=TEXT, new_id=TEXT, address=TEXT),
    build(m.MembersResponse, members=TEXT, reason=TEXT),
    build(m.ReadRequest, first_index=INT64, max_bytes=st.integers(0, 2**32 - 1), wait_ms=st.integers(0, 2**32 - 1)),
    with_entries(m.ReadResponse, 4, begin_index=INT64, committed_index=INT64),
    build(m.TopicsRequest, names=st.lists(NAME, max_size=4).map(tuple), queue_nums=UINT32),
    build(
        m.TopicsResponse,
        queue_counts=st.dictionaries(NAME, UINT32, max_size=4),
        store_host=st.sampled_from([b"", bytes(range(8)), bytes(range(20))]),
        reason=TEXT,
    ),
    build(m.PutRequest, bodies=many_bodies(), is_restart=st.booleans(), queue_nums=UINT32),
    put_responses(),
    build(m.ProducerRequest, producer=st.binary(min_size=8, max_size=8), run=UINT32, from_index=INT64),
    build(
        m.ProducerResponse,
        count=INT64,
        other_runs=INT64,
        last_number=INT64,
        next_index=INT64,
        ids=st.integers(0, 3).map(lambda count: bytes(range(16)) * count),
        reason=TEXT,
    ),
    build(m.ConfigRequest),
    build(m.ConfigResponse, files=st.dictionaries(NAME, BODY, max_size=4)),
    build(m.SummaryRequest, begin_index=INT64, snapshot=INT64, offset=INT64),
    build(m.SummaryResponse, snapshot=INT64, offset=INT64, size=INT64, data=BODY),
)


@given(BOTH)
def test_json_round_trip(message: WireMessage) -> None:
    assert sent(message, is_binary=False) == message


@given(BINARY)
def test_binary_round_trip(message: WireMessage) -> None:
    assert sent(message, is_binary=True) == message


@settings(max_examples=50)
@given(st.lists(BINARY, min_size=1, max_size=8), st.data())
def test_frames_do_not_depend_on_how_the_bytes_arrive(messages: list[WireMessage], data: st.DataObject) -> None:
    stream = b"".join(encoded(message, number, True) for number, message in enumerate(messages))
    reader, found, start = FrameReader(), [], 0
    while start < len(stream):
        size = data.draw(st.integers(1, 200))
        found += reader.feed(stream[start : start + size])
        assert reader.is_between_frames == (start + size >= len(stream) or is_boundary(stream, start + size))
        start += size
    outstanding = {number: message.request_code for number, message in enumerate(messages)}
    assert [decode(frame, outstanding).message for frame in found] == messages


def is_boundary(stream: bytes, offset: int) -> bool:
    start = 0
    while start < offset:
        start += 4 + int.from_bytes(stream[start : start + 4], "big")
    return start == offset


def test_every_message_class_has_samples() -> None:
    java = {type(message) for message in JAVA_MESSAGES.values()}
    assert {each for kind in m.REQUESTS.values() for each in (kind, kind.response)} == java | set(EXTENSIONS)
    assert {type(message) for message in SAMPLES} == java | set(EXTENSIONS)


def test_binary_copies_no_entries() -> None:
    data = bytearray(b"".join(encode_entry(5 + number, 1, number * 1072, bytes(1024)) for number in range(100)))
    push = m.PushRequest(**IDS, first_index=5, count=100, data=data)
    _, body = encode(push, 1, is_binary=True)
    assert body is data
    block = bytearray(4 + 1000)
    block[2:4] = (1000).to_bytes(2, "big")
    assert encode(m.AppendRequest(bodies=Bodies(1, block)), 1, is_binary=True)[1] is block
    found = only(encoded(push, 1, True))
    received = decode(found).message
    assert isinstance(received, m.PushRequest)
    assert received.data is found.body


@pytest.mark.parametrize("kind", [m.PutResponse, m.TopicsResponse])
def test_reasons_are_shortened_to_fit(kind: Any) -> None:
    assert sent(kind(reason="x" * 5000), is_binary=True) == kind(reason="x" * 4096)
    assert sent(kind(reason="\ud800 \u20ac"), is_binary=True) == kind(reason="? \u20ac")


# Messages that cannot be encoded


@pytest.mark.parametrize(
    ("message", "is_binary"),
    [
        *((kind(), False) for kind in EXTENSIONS),
        (m.PutRequest(bodies=one_body(b"x")), False),
        (m.TopicsRequest(names=("x" * 5000,)), True),
        (m.TopicsRequest(names=("x",) * 65536), True),
        (m.TopicsRequest(queue_nums=-1), True),
        (m.TopicsResponse(queue_counts={"x": 2**32}), True),
        (m.ConfigResponse(files={"x": bytes(MAX_FRAME_SIZE)}), True),
        (m.AppendRequest(), False),
        (m.AppendRequest(bodies=Bodies(2, bytes(8))), False),
        (m.AppendRequest(bodies=Bodies(1, struct.pack(">I", 5))), False),
        (m.PushRequest(first_index=5, count=2, data=HI), False),
        (m.PushRequest(first_index=5, count=1, data=HI[:-1]), False),
        (m.PushRequest(first_index=5, count=1, data=HI[:40]), False),
        (m.PushRequest(type=PushType.COMPARE, first_index=5, count=2, data=HI * 2), False),
        (m.HeartBeatRequest(group="\ud800"), False),
        (m.HeartBeatRequest(group="\ud800"), True),
        (m.HeartBeatRequest(group="x" * 5000), True),
        (m.HeartBeatRequest(term=2**63), True),
        (m.AppendRequest(bodies=Bodies(1, bytes(MAX_FRAME_SIZE))), True),
        (m.AppendRequest(bodies=one_body(bytes(13 * 1024 * 1024))), False),
    ],
)
def test_what_cannot_be_sent_is_refused(message: WireMessage, is_binary: bool) -> None:
    with pytest.raises(EncodeError, match="expected"):
        encoded(message, 0, is_binary)


def test_the_largest_frame() -> None:
    overhead = len(encoded(m.AppendRequest(bodies=Bodies(1, b"")), 0, True))
    block = bytes(MAX_FRAME_SIZE - overhead)
    frame = encoded(m.AppendRequest(bodies=Bodies(1, block)), 0, True)
    assert len(frame) == MAX_FRAME_SIZE
    assert len(only(frame).body) == len(block)
    with pytest.raises(EncodeError, match="16777216"):
        encode(m.AppendRequest(bodies=Bodies(1, block + b"x")), 0, True)


def test_the_offer_goes_with_metadata_in_json_only() -> None:
    with pytest.raises(EncodeError, match="METADATA"):
        encode(m.HeartBeatRequest(), 0, offers_binary=True)
    with pytest.raises(EncodeError, match="METADATA"):
        encode(m.MetadataRequest(), 0, is_binary=True, offers_binary=True)


# Input that is wrong

JSON_HEADER = b'{"code":51002,"flag":0,"opaque":1}'
BINARY_HEART_BEAT = bytes(only(encoded(m.HeartBeatRequest(), 1, True)).header)
TEXTS = b"\xff\xff" * 4


def binary_header(code: int, own: bytes, flags: int = 0, version: int = 1, texts: bytes = TEXTS) -> bytes:
    return struct.pack(">BBHiiq", version, flags, code, 1, 200, 1) + own + texts


FATAL = {
    "no length": struct.pack(">iI", 0, 0),
    "negative length": struct.pack(">iI", -1, 0),
    "too long": struct.pack(">iI", MAX_FRAME_SIZE - 3, 0),
    "HTTP": b"GET / HTTP/1.1\r\n",
    "TLS": bytes.fromhex("16030100f5010000f1"),
    "header longer than the frame": struct.pack(">iI", 8, 5),
    "header too long": struct.pack(">iI", 70000, 66000),
    "RocketMQ's binary header": framed(1, bytes(20)),
    "unknown kind": framed(7, b"{}"),
    "empty header": framed(0, b""),
    "header with a leading zero": framed(
        0, b'{"code":051002,"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":0}'
    ),
    "header is no JSON": framed(0, b"\x00\xff"),
    "header is a list": framed(0, b"[]"),
    "header is null": framed(0, b"null"),
    "header without code": framed(0, b'{"opaque":1}'),
    "header without opaque": framed(0, b'{"code":51002}'),
    "code is text": framed(0, b'{"code":"x","opaque":1}'),
    "opaque is too large": framed(0, b'{"code":51002,"opaque":2147483648}'),
    "flag is a list": framed(0, b'{"code":51002,"opaque":1,"flag":[1]}'),
    "deep header": framed(0, b"[" * 60000),
    "binary header too short": framed(0x44, bytes(19)),
    "binary header without texts": framed(0x44, BINARY_HEART_BEAT[:-1]),
    "binary header with more": framed(0x44, BINARY_HEART_BEAT + b"x"),
    "binary heart beat with a body": framed(0x44, BINARY_HEART_BEAT, b"x"),
    "binary version": framed(0x44, binary_header(51002, b"", version=2)),
    "binary response to an unknown code": framed(0x44, binary_header(1, b"", flags=1)),
    "binary text is no UTF-8": framed(0x44, binary_header(51002, b"", texts=b"\x00\x01\xff" + TEXTS[2:])),
    "binary text too long": framed(0x44, binary_header(51002, b"", texts=b"\x10\x01" + bytes(4097) + TEXTS[2:])),
    "push without own fields": framed(0x44, binary_header(51004, b"")),
    "push type": framed(0x44, binary_header(51004, struct.pack(">BqqI", 4, 0, -1, 0))),
    "push of more than there is": framed(0x44, binary_header(51004, struct.pack(">BqqI", 0, 0, 5, 2)), HI),
    "push of endlessly many": framed(0x44, binary_header(51004, struct.pack(">BqqI", 0, 0, 5, 2**32 - 1)), HI),
    "push of another index": framed(0x44, binary_header(51004, struct.pack(">BqqI", 0, 0, 6, 1)), HI),
    "push of none with data": framed(0x44, binary_header(51004, struct.pack(">BqqI", 0, 0, 5, 0)), HI),
    "compare of two": framed(0x44, binary_header(51004, struct.pack(">BqqI", 2, 0, 5, 2)), HI * 2),
    "commit with an entry": framed(0x44, binary_header(51004, struct.pack(">BqqI", 1, 0, 5, 1)), HI),
    "append of more than there is": framed(0x44, binary_header(50001, struct.pack(">IB", 2, 1)), bytes(7)),
    "append of endlessly many": framed(0x44, binary_header(50001, struct.pack(">IB", 2**32 - 1, 1)), bytes(7)),
    "append of none with data": framed(0x44, binary_header(50001, struct.pack(">IB", 0, 1)), bytes(7)),
    "put of more than there is": framed(0x44, binary_header(58004, struct.pack(">IBI", 2, 1, 4)), bytes(7)),
    "put of endlessly many": framed(0x44, binary_header(58004, struct.pack(">IBI", 2**32 - 1, 1, 4)), bytes(7)),
    "names that are not there": framed(0x44, binary_header(58003, struct.pack(">HI", 2, 4)), b"\0\1x"),
    "a name that is none": framed(0x44, binary_header(58003, struct.pack(">HI", 1, 4)), b"\xff\xff"),
    "more than names": framed(0x44, binary_header(58003, struct.pack(">HI", 1, 4)), b"\0\1xy"),
}


@pytest.mark.parametrize("name", FATAL)
def test_malformed_frames_end_the_connection(name: str) -> None:
    connection = WireConnection()
    connection.peer_is_binary = True
    with pytest.raises(WireError, match="expected"):
        connection.feed(FATAL[name])


FATAL_RESPONSES = {
    "vote result": (51001, struct.pack(">BB", 12, 0), b""),
    "role": (58001, struct.pack(">BqqqqHB", 3, 0, 0, 0, 0, 0, 0), b"\0\0"),
    "positions of too few": (58004, struct.pack(">qqI", 0, 0, 2), bytes(24)),
    "half a position": (58004, struct.pack(">qqI", 0, 0, 1), bytes(23)),
    "topics that are not there": (58003, struct.pack(">H", 65535), b""),
    "topics without names": (58003, struct.pack(">H", 1), bytes(4)),
    "a host that is none": (58003, struct.pack(">H", 0), bytes(7)),
    "files that are not there": (58005, struct.pack(">H", 1), b"\0\0\0\2\0\1xy"),
    "more than files": (58005, struct.pack(">H", 0), b"x"),
    "peers that are not there": (50000, struct.pack(">H", 65535), b""),
    "peers without an address": (50000, struct.pack(">H", 1), b"\x00\x01a\xff\xff"),
    "more than peers": (50000, struct.pack(">H", 0), b"\x00\x01a"),
    "entries that are not there": (50002, struct.pack(">I", 2**32 - 1), HI),
    "an entry with more body than there is": (50002, struct.pack(">I", 1), HI[:-1]),
    "an entry of negative size": (50002, struct.pack(">I", 1), HI[:44] + b"\xff\xff\xff\xff" + HI[48:]),
    "more than entries": (50002, struct.pack(">I", 1), HI + b"x"),
    "half a run": (50001, struct.pack(">qqI", 0, 0, 1), bytes(15)),
    "more runs than entries": (50001, struct.pack(">qqI", 0, 0, 1), bytes(32)),
    "entries of another index": (58002, struct.pack(">qIqq", 6, 1, 0, 0), HI),
}


@pytest.mark.parametrize("name", FATAL_RESPONSES)
def test_unreadable_binary_responses_raise_an_error(name: str) -> None:
    code, own, body = FATAL_RESPONSES[name]
    texts = TEXTS + b"\xff\xff" * len(own_texts(m.REQUESTS[code].response))
    with pytest.raises(WireError, match=r"expected (?![45] texts)"):
        decode(only(framed(0x44, binary_header(code, own, flags=1, texts=texts), body)), {1: code})


@pytest.mark.parametrize("body", [b'{"count":-1}', b"[]", b"", b'{"index":true}'])
def test_unreadable_json_responses_raise_an_error(body: bytes) -> None:
    with pytest.raises(WireError, match="expected"):
        decode(only(framed(0, b'{"code":200,"flag":1,"opaque":1}', body)), {1: RequestCode.PUSH})


def test_a_reference_to_a_reference_is_rejected() -> None:
    body = b'{"entry":{"$ref":"$.batchEntry[0]"},"batchEntry":[{"$ref":"$.entry"}]}'
    with pytest.raises(WireError, match="body"):
        decode_request(RequestCode.PUSH, body)


def test_a_response_to_another_request_is_fatal() -> None:
    frame = only(encoded(m.VoteResponse(), 1, True))
    with pytest.raises(WireError, match="51004"):
        decode(frame, {1: RequestCode.PUSH})
    assert decode(frame, {2: RequestCode.VOTE}).message is None


UNREADABLE_BODIES = {
    "nothing": b"",
    "noise": b"\x00\xff\xfe",
    "a list": b"[]",
    "cut": b'{"term":1',
    "more": b"{}{}",
    "deep lists": b'{"a":' + b"[" * 100000,
    "deep objects": b'{"a":' * 100000,
    "deep within bounds": b'{"group":' + b"[" * 3000 + b"]" * 3000 + b',"term":' + b" " * 900000 + b"1}",
    "many lists": b'{"a":[' + b"[]," * 1000000 + b"[]]}",
    "many numbers": b'{"a":[' + b"1," * 1000000 + b"1]}",
    "many keys": b"{" + b",".join(b'"%d":0' % number for number in range(200000)) + b"}",
    "braces in text": b'{"group":"' + b"{" * 15000 + b'","a":[' + b"1," * 400000 + b"1]}",
    "endless number": b'{"term":' + b"9" * 1000000 + b"}",
    "endless fraction": b'{"term":0.5' + b"0" * 1000000 + b"}",
    "large exponent": b'{"term":1e400}',
    "inexact fraction": b'{"term":9007199254740993.0}',
    "endless name": b'{"group":"' + b"x" * 5000 + b'"}',
    "half a pair": b'{"group":"\\udc00"}',
    "wrong UTF-8": b'{"group":"\xc0\x80"}',
    "true": b'{"term":true}',
    "an object": b'{"term":{"a":1}}',
}


@pytest.mark.parametrize("name", UNREADABLE_BODIES)
def test_an_unreadable_request_gets_a_refusal_as_in_java(name: str) -> None:
    """As in Java, the response is a remoting code and the connection stays open. Time and memory are bounded."""
    connection = WireConnection()
    frame = framed(0, JSON_HEADER, UNREADABLE_BODIES[name])
    tracemalloc.start()
    started = time.perf_counter()
    (found,) = connection.feed(frame)
    elapsed, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, ReceivedRequest)
    assert isinstance(found.request, Rejection)
    assert found.request.code == 1
    assert len(found.request.remark) < 500
    assert elapsed < 2
    assert peak < 10 * len(frame) + (1 << 20)
    (response,) = FrameReader().feed(joined(connection.reject(found, found.request)))
    assert decode(response, {1: RequestCode.HEART_BEAT}).message == found.request
    assert connection.feed(encoded(m.HeartBeatRequest(), 2, False))


def test_a_batch_cannot_refer_to_one_entry_many_times() -> None:
    large = ENTRY.replace("aGk=", base64.b64encode(bytes(1 << 20)).decode())
    references = ",".join(['{"$ref":"$.entry"}'] * 5000)
    body = f'{{"entry":{large},"batchEntry":[{references}]}}'
    tracemalloc.start()
    with pytest.raises(WireError, match="expected index 6"):
        decode_request(RequestCode.PUSH, body.encode())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * len(body)


@pytest.mark.parametrize("code", [51003, 51006, 59999, 58001, 58002, 58003, 58004, 58005, 58006, 58008, 1, -1])
def test_unknown_requests_get_a_refusal(code: int) -> None:
    (found,) = WireConnection().feed(framed(0, b'{"code":%d,"flag":0,"opaque":9}' % code, b"{}"))
    assert isinstance(found, ReceivedRequest)
    assert found.request == Rejection(3, f"request code {code} is not supported")


@pytest.mark.parametrize("is_binary", [False, True])
def test_an_announced_size_takes_little_memory(is_binary: bool) -> None:
    start = struct.pack(">iI", MAX_FRAME_SIZE - 4, (0x44 if is_binary else 0) << 24 | 20) + bytes(20000)
    readers = [FrameReader() for _ in range(20)]
    tracemalloc.start()
    for reader in readers:
        assert reader.feed(start) == []
        assert reader.get_buffer()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * (3 << 20)


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_frames_do_no_harm(seed: int) -> None:
    done = Counter(outcome for case in range(2000) for outcome in fuzz_wire.check_case(2000 * seed + case))
    assert all(done[outcome] > 100 for outcome in ("request", "answer", "refused", "no frame", "unreadable")), done


# A connection


def exchange(
    client: WireConnection, server: WireConnection, request: Request, response: Response
) -> tuple[ReceivedRequest, ReceivedResponse]:
    opaque, buffers = client.request(request)
    (at_server,) = server.feed(joined(buffers))
    assert isinstance(at_server, ReceivedRequest)
    (at_client,) = client.feed(joined(server.respond(at_server, response)))
    assert isinstance(at_client, ReceivedResponse)
    assert at_client.opaque == at_server.opaque == opaque
    assert client.outstanding() == []
    return at_server, at_client


@pytest.mark.parametrize("client_offers", [False, True])
@pytest.mark.parametrize("server_offers", [False, True])
def test_both_sides_agree_on_the_binary_dialect(client_offers: bool, server_offers: bool) -> None:
    client, server = WireConnection(client_offers), WireConnection(server_offers)
    first, received = exchange(client, server, m.HeartBeatRequest(**IDS), m.HeartBeatResponse(code=416))
    assert (first.request, received.response) == (m.HeartBeatRequest(**IDS), m.HeartBeatResponse(code=416))
    assert not first.is_binary
    hello, _ = exchange(client, server, m.MetadataRequest(**IDS), m.MetadataResponse(code=400))
    agreed = client_offers and server_offers
    assert (hello.is_binary, hello.offers_binary) == (False, client_offers)
    assert (client.is_binary, client.peer_is_binary, server.peer_is_binary) == (agreed, agreed, agreed)
    assert not server.is_binary
    push = m.PushRequest(**IDS, first_index=13, count=3, data=BATCH)
    later, received = exchange(client, server, push, m.PushResponse(index=13, count=3))
    assert later.is_binary == agreed
    assert (later.request, received.response) == (push, m.PushResponse(index=13, count=3))
    again, _ = exchange(client, server, m.MetadataRequest(**IDS), m.MetadataResponse())
    assert again.is_binary == agreed


def test_java_does_not_accept_the_binary_dialect() -> None:
    client = WireConnection()
    opaque, buffers = client.request(m.MetadataRequest(**IDS))
    assert b'"extFields":{"dledgerBinary":"1"}' in joined(buffers)
    java = bytearray(base64.b64decode(JAVA_FRAMES["metadata-answer"]["frame"]))
    frame = bytes(java).replace(b'"opaque":7', b'"opaque":%d' % opaque)
    (received,) = client.feed(frame)
    assert isinstance(received, ReceivedResponse)
    assert not client.is_binary


def test_only_the_hello_has_the_secret() -> None:
    client, server = WireConnection(secret='s"\\1'), WireConnection()
    heart_beat, _ = exchange(client, server, m.HeartBeatRequest(**IDS), m.HeartBeatResponse())
    hello, _ = exchange(client, server, m.MetadataRequest(**IDS), m.MetadataResponse())
    again, _ = exchange(client, server, m.MetadataRequest(**IDS), m.MetadataResponse())
    assert (heart_beat.secret, hello.secret, again.secret) == (None, 's"\\1', None)
    assert hello.offers_binary and again.is_binary
    unsaid, _ = exchange(WireConnection(), WireConnection(), m.MetadataRequest(**IDS), m.MetadataResponse())
    assert unsaid.secret is None


def test_both_hellos_of_members_are_in_the_first_exchange() -> None:
    client, server = WireConnection(member=lambda: '{"a":"\u2713"}'), WireConnection(member=lambda: "s")
    heart_beat, _ = exchange(client, server, m.HeartBeatRequest(**IDS), m.HeartBeatResponse())
    assert heart_beat.member is None
    hello, response = exchange(client, server, m.MetadataRequest(**IDS), m.MetadataResponse())
    assert (hello.member, response.member) == ('{"a":"\u2713"}', "s")
    # A client says nothing, and is told nothing.
    hello, response = exchange(WireConnection(), server, m.MetadataRequest(**IDS), m.MetadataResponse())
    assert (hello.member, response.member) == (None, None)


@pytest.mark.parametrize("value", [b"7", b"null", b'["s"]', b"{}"])
def test_a_secret_that_is_no_text_is_ignored(value: bytes) -> None:
    header = b'{"code":50000,"extFields":{"dledgerSecret":%s},"flag":0,"opaque":1}' % value
    (found,) = WireConnection().feed(framed(0, header, b"{}"))
    assert isinstance(found, ReceivedRequest)
    assert found.secret is None


def test_an_unrequested_offer_is_ignored() -> None:
    client = WireConnection(offers_binary=False)
    opaque, _ = client.request(m.MetadataRequest())
    assert client.feed(joined(encode(m.MetadataResponse(), opaque, offers_binary=True)))
    assert not client.is_binary
    assert not client.peer_is_binary


def test_a_later_version_may_offer_several_versions() -> None:
    header = b'{"code":50000,"extFields":{"dledgerBinary":"%s"},"flag":0,"opaque":1}'
    for offer, expected in ((b"1", True), (b"1,2", True), (b"2", False), (b"", False)):
        server = WireConnection()
        server.feed(framed(0, header % offer, b"{}"))
        assert server.peer_is_binary == expected


def test_binary_without_a_hello_is_fatal() -> None:
    with pytest.raises(WireError, match="JSON"):
        WireConnection().feed(encoded(m.HeartBeatRequest(), 1, True))


def test_a_binary_response_to_a_json_request_is_fatal() -> None:
    client = WireConnection()
    opaque, _ = client.request(m.HeartBeatRequest())
    with pytest.raises(WireError, match="JSON"):
        client.feed(encoded(m.HeartBeatResponse(), opaque, True))


def test_late_responses_are_dropped() -> None:
    client, server = WireConnection(), WireConnection()
    opaque, buffers = client.request(m.HeartBeatRequest())
    other, _ = client.request(m.VoteRequest())
    (received,) = server.feed(joined(buffers))
    assert isinstance(received, ReceivedRequest)
    client.forget(opaque)
    assert client.outstanding() == [other]
    response = joined(server.respond(received, m.HeartBeatResponse()))
    assert client.feed(response) == []
    assert client.feed(encoded(m.VoteResponse(), other, False)) == [ReceivedResponse(other, m.VoteResponse())]
    assert client.feed(encoded(m.VoteResponse(), other, False)) == []


def test_refusals_are_matched_to_their_requests() -> None:
    client, server = WireConnection(), WireConnection()
    for _ in range(2):
        opaque, buffers = client.request(m.VoteRequest())
        (received,) = server.feed(joined(buffers))
        assert isinstance(received, ReceivedRequest)
        refused = server.reject(received, Rejection(2, "busy \u4e2d"))
        assert client.feed(joined(refused)) == [ReceivedResponse(opaque, Rejection(2, "busy \u4e2d"))]
        exchange(client, server, m.MetadataRequest(), m.MetadataResponse())
    assert client.is_binary


def test_an_unknown_binary_request_gets_a_refusal() -> None:
    server = WireConnection()
    server.peer_is_binary = True
    (found,) = server.feed(framed(0x44, binary_header(58099, b"anything")))
    assert isinstance(found, ReceivedRequest)
    assert found.request == Rejection(3, "request code 58099 is not supported")
    assert found.is_binary
    assert only(joined(server.reject(found, Rejection(3, "")))).kind == framing.KIND_BINARY


def test_one_way_requests_are_marked() -> None:
    (found,) = WireConnection().feed(framed(0, b'{"code":51002,"flag":2,"opaque":9}', b"{}"))
    assert isinstance(found, ReceivedRequest)
    assert found.is_one_way


def test_opaques_wrap_around_and_skip_outstanding_ones() -> None:
    client = WireConnection()
    first, _ = client.request(m.HeartBeatRequest())
    client._next_opaque = 2**31 - 1
    assert client.request(m.HeartBeatRequest())[0] == 2**31 - 1
    assert client.request(m.HeartBeatRequest())[0] == first + 1


def test_frames_stay_valid_after_later_ones() -> None:
    reader = FrameReader()
    messages = [m.AppendRequest(bodies=one_body(bytes([number % 256]) * (number * 37 % 5000))) for number in range(400)]
    held = []
    for number, message in enumerate(messages):
        held += reader.feed(encoded(message, number, True))
    assert [decode(frame).message for frame in held] == messages


def test_a_large_frame_is_received_in_place() -> None:
    frame = encoded(m.AppendRequest(bodies=one_body(bytes(1 << 20))), 1, True)
    reader = FrameReader()
    assert reader.feed(frame[:20000]) == []
    room = reader.get_buffer()
    assert len(room) == len(frame) - 20000
    room[:] = frame[20000:]
    (found,) = reader.buffer_updated(len(room))
    assert found.body.obj is room.obj
