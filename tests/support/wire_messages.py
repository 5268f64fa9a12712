"""Samples of every message class; tests/raft/wire has Java's frames of them."""

from __future__ import annotations

import struct
from typing import Any

from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.messages import PushType, Request, Response, VoteResult, WireMessage
from pyspark_dledger.raft.wire import FrameReader, Rejection, WireFrame, encode
from pyspark_dledger.store.dledger_store import Entry, EntryRun

IDS: dict[str, Any] = {"group": "g1", "remote_id": "n1", "local_id": "n0", "leader_id": "n0", "term": 3}


def one_body(body: bytes) -> Bodies:
    return Bodies(1, struct.pack(">I", len(body)) + body)


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(buffers)


def framed(kind: int, header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def only(data: Buffer) -> WireFrame:
    (found,) = FrameReader().feed(data)
    return found


def encoded(message: WireMessage, opaque: int, is_binary: bool) -> bytes:
    assert isinstance(message, (Request, Response))
    return joined(encode(message, opaque, is_binary))


TWO = bytes(range(2))
BATCH = b"".join(encode_entry(13 + number, 3, 8192 + number * 50, TWO) for number in range(3))
LONG_ENTRY = encode_entry(13, 3, 8192, bytes(range(100)))
JAVA_MESSAGES: dict[str, WireMessage] = {
    "metadata": m.MetadataRequest(**IDS),
    "metadata-answer": m.MetadataResponse(**IDS, peers={"n0": "127.0.0.1:20911", "n1": "[::1]:20912"}),
    "append": m.AppendRequest(**IDS, bodies=one_body(b"hello")),
    "append-empty": m.AppendRequest(**IDS, bodies=one_body(b"")),
    "append-every-byte": m.AppendRequest(**IDS, bodies=one_body(bytes(range(256)))),
    "append-answer": m.AppendResponse(**IDS, index=2**63 - 1, pos=1234567890123),
    "append-not-leader": m.AppendResponse(**IDS, code=404),
    "get": m.GetRequest(**IDS, begin_index=7),
    "get-answer": m.GetResponse(**IDS, entries=[Entry(7, 3, 4096, 1, bytes(range(5)))]),
    "get-out-of-range": m.GetResponse(code=410),
    "vote": m.VoteRequest(**IDS, ledger_end_index=41, ledger_end_term=2),
    **{f"vote-answer-{result.name}": m.VoteResponse(**IDS, vote_result=result) for result in VoteResult},
    "heart-beat": m.HeartBeatRequest(**IDS),
    "heart-beat-answer": m.HeartBeatResponse(**IDS),
    "push-commit": m.PushRequest(**IDS, type=PushType.COMMIT, commit_index=12),
    **{
        f"push-{kind.name.lower()}": m.PushRequest(**IDS, type=kind, first_index=13, count=1, data=LONG_ENTRY)
        for kind in (PushType.APPEND, PushType.COMPARE, PushType.TRUNCATE)
    },
    "push-batch": m.PushRequest(**IDS, first_index=13, count=3, data=BATCH),
    "push-batch-of-one": m.PushRequest(
        **IDS, first_index=13, count=1, data=encode_entry(13, 3, 8192, TWO), is_batch=True
    ),
    "push-answer": m.PushResponse(group="g1", term=3, index=13, count=3, begin_index=0, end_index=15),
    "push-commit-answer": m.PushResponse(group="g1", term=3),
    "transfer": m.TransferRequest(**IDS, transfer_id="n0", transferee_id="n1", take_leadership_ledger_index=0),
    "transfer-take": m.TransferRequest(**IDS, transfer_id="n0", transferee_id="n1", take_leadership_ledger_index=99),
    "transfer-answer": m.TransferResponse(**IDS, code=417),
    "text-0": m.HeartBeatRequest(group="".join(map(chr, range(256)))),
    "text-1": m.HeartBeatRequest(group="\u2027\u2028\u2029\u202a\ufeff\ufffe\uffff"),
    "text-2": m.HeartBeatRequest(group="\u4e2d\u6587 \U0001f600"),
    "text-3": m.HeartBeatRequest(group=""),
}
# Frames that are decoded to these, but that we encode differently.
READ_ONLY: dict[str, WireMessage | Rejection] = {
    "metadata-unknown-group": m.MetadataResponse(code=400),
    "append-nothing": m.AppendRequest(**IDS),
    "append-batch": m.AppendRequest(**IDS),
    "pull": Rejection(3, "request code 51003 is not supported"),
    "push-reference": m.PushRequest(**IDS, first_index=13, count=1, data=encode_entry(13, 3, 8192, TWO)),
    "refused-unsupported": Rejection(3, " request type 51006 not supported"),
    "refused-error": Rejection(1, 'java.lang.NullPointerException\n\tat "x"'),
}


SAMPLES: list[WireMessage] = [
    *JAVA_MESSAGES.values(),
    m.StatusRequest(**IDS),
    m.StatusResponse(**IDS, peers={"n0": "a:1", "n1": "b:2"}),
    m.StatusResponse(**IDS, peers={"n0": "a:1"}, problem="expected room, found none \u2713"),
    m.MembersRequest(**IDS, action="replace", member_id="n1", new_id="n3", address="db:1"),
    m.MembersResponse(**IDS, members='{"index":-1}', reason=None),
    m.ProducerRequest(**IDS, producer=b"producer", run=7, from_index=3),
    m.ProducerResponse(**IDS, count=3, other_runs=2, last_number=9, next_index=-1, ids=bytes(range(16))),
    m.ReadRequest(**IDS),
    m.ReadResponse(**IDS, first_index=13, count=3, data=BATCH),
    m.AppendRequest(**IDS, bodies=Bodies(3, struct.pack(">3I", 1, 2, 0) + b"abc")),
    m.AppendResponse(**IDS, count=3, runs=(EntryRun(1, 2), EntryRun(3, 4))),
    m.StatusResponse(**IDS, peers={}, serves_messages=True),
    m.TopicsRequest(**IDS, names=("Orders", "%RETRY%g"), queue_nums=8),
    m.TopicsResponse(**IDS, queue_counts={"Orders": 8, "%RETRY%g": 1}, store_host=bytes(range(8))),
    m.TopicsResponse(**IDS, code=411, reason="expected a topic, found none"),
    m.PutRequest(**IDS, bodies=Bodies(3, struct.pack(">3I", 1, 2, 0) + b"abc"), queue_nums=8),
    m.PutResponse(**IDS, index=5, pos=640, count=2, positions=struct.pack(">6q", 5, 640, 0, 6, 700, -1)),
    m.PutResponse(**IDS, code=505, reason="not ready"),
    m.ConfigRequest(**IDS),
    m.ConfigResponse(**IDS, files={"topics.json": b"{}", "delayOffset.json": b""}),
    m.SummaryRequest(**IDS, begin_index=5, snapshot=7, offset=1 << 20),
    m.SummaryResponse(**IDS, snapshot=7, offset=1 << 20, size=1 << 21, data=b"state"),
]
EXTENSIONS = (
    *(m.StatusRequest, m.StatusResponse, m.ReadRequest, m.ReadResponse, m.TopicsRequest, m.TopicsResponse),
    *(m.PutRequest, m.PutResponse, m.ConfigRequest, m.ConfigResponse, m.SummaryRequest, m.SummaryResponse),
    *(m.MembersRequest, m.MembersResponse),
    *(m.ProducerRequest, m.ProducerResponse),
)
"""Messages that Java does not have."""


def has_json_form(message: WireMessage) -> bool:
    """Whether it can be sent as JSON."""
    if type(message) is m.AppendRequest:
        return message.bodies.count == 1
    return not isinstance(message, EXTENSIONS)
