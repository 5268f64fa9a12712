"""The binary dialect between members and clients of this package; `binary_layout` has its layouts.

Entries are sent as in a data file, and bodies as the store takes them. Neither is copied or checked here, so received
entries are only as trustworthy as the peer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import CONTENT_SIZE, PRODUCER_SIZE, Bodies, Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE
from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.messages import PushType, WireMessage
from pyspark_dledger.raft.wire import binary_layout as layout
from pyspark_dledger.raft.wire.fastjson import MAX_TEXT_SIZE
from pyspark_dledger.raft.wire.message_kinds import REQUEST_CODES, REQUESTS, RESPONSES
from pyspark_dledger.raft.wire.remoting import Refusal, not_supported
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError
from pyspark_dledger.store.dledger_store import Entry, EntryRun

Texts = tuple[str | None, ...]
Values = tuple[Any, ...]

_COMMON = layout.fixed_struct()
_PEEK = struct.Struct(">BBH")
_RUN = struct.Struct(">qq")
_ENTRY = record_struct(ENTRY_HEADER)
_ENTRY_INDEX = struct.Struct(">q")
_ENTRY_INDEX_OFFSET = ENTRY_HEADER[2].offset
_TEXT_SIZE = 2
_NO_TEXT = layout.NO_TEXT.to_bytes(_TEXT_SIZE, "big")
_LENGTH_SIZE = 4
_HOST_SIZES = (0, 8, 20)
_PUSH_NUMBERS = {kind: place for place, kind in enumerate(layout.PUSH_TYPES)}
_VOTE_NUMBERS = {kind: place for place, kind in enumerate(layout.VOTE_RESULTS)}
_ROLE_NUMBERS = {kind: place for place, kind in enumerate(layout.ROLES)}

# Texts that only people read: they are shortened where needed, so that the message can be sent.
_FOR_PEOPLE = ("reason",)
# Every message has the same few names, so their bytes are cached. A full cache is emptied: new names cost no memory.
_MAX_CACHED = 256
_MAX_CACHED_SIZE = 512
_packed_texts: dict[Texts, bytes] = {}
_read_texts: dict[bytes, Texts] = {}


class BinaryFrame(NamedTuple):
    """A decoded binary frame."""

    request_code: int
    opaque: int
    is_response: bool
    is_one_way: bool
    message: WireMessage | Refusal


class _Layout(NamedTuple):
    """How one message class is packed and unpacked: its own fixed fields, its own texts, and its body."""

    packer: struct.Struct
    own_texts: tuple[str, ...]
    to_bytes: Callable[[Any], tuple[Values, Sequence[Buffer]]]
    from_bytes: Callable[[Values, memoryview], dict[str, Any]]


def encode(message: WireMessage, opaque: int, is_one_way: bool = False) -> tuple[bytes, list[Buffer]]:
    """Header and body of a message's frame. Raises EncodeError for values that do not fit the layout."""
    kind = type(message)
    request_code = REQUEST_CODES[kind]
    packing = _LAYOUTS[kind]
    flags = (0 if isinstance(message, m.Request) else layout.FLAG_RESPONSE) | layout.FLAG_ONE_WAY * is_one_way
    texts: Texts = (message.group, message.remote_id, message.local_id, message.leader_id)
    if packing.own_texts:
        texts += tuple(_own_text(message, name) for name in packing.own_texts)
    try:
        own, body = packing.to_bytes(message)
        fixed = packing.packer.pack(layout.VERSION, flags, request_code, opaque, message.code, message.term, *own)
    except struct.error as error:
        raise EncodeError(f"expected values that fit their fields, found another in {kind.__name__}: {error}") from None
    return fixed + _texts_bytes(texts), [part for part in body if len(part)]


def encode_refusal(refusal: Refusal, request_code: int, opaque: int) -> tuple[bytes, list[Buffer]]:
    """Header and body of a refusal's frame."""
    flags = layout.FLAG_RESPONSE | layout.FLAG_REFUSAL
    fixed = _COMMON.pack(layout.VERSION, flags, request_code, opaque, refusal.code, -1)
    return fixed + _texts_bytes((_fitting(refusal.remark),)), []


def decode(header: memoryview, body: memoryview) -> BinaryFrame:
    """The message of a frame; entries and bodies in it are views of ``body``. Raises WireError."""
    if len(header) < _COMMON.size:
        raise WireError(f"expected a binary header of at least {_COMMON.size} bytes, found {len(header)}")
    version, flags, request_code = _PEEK.unpack_from(header)
    if version != layout.VERSION:
        raise WireError(f"expected version {layout.VERSION} of the binary frames, found {version}")
    is_response = bool(flags & layout.FLAG_RESPONSE)
    if flags & layout.FLAG_REFUSAL:
        if not is_response:
            raise WireError("expected a refusal as a response, found one as a request")
        *_, opaque, code, _ = _COMMON.unpack_from(header)
        (remark,) = _texts(header[_COMMON.size :], 1)
        return BinaryFrame(request_code, opaque, is_response, False, Refusal(code, remark or ""))
    kind = (RESPONSES if is_response else REQUESTS).get(request_code)
    if kind is None:
        return _unknown(header, request_code, is_response)
    packing = _LAYOUTS[kind]
    if len(header) < packing.packer.size:
        raise WireError(f"expected a header of at least {packing.packer.size} bytes, found {len(header)}")
    _, _, _, opaque, code, term, *own = packing.packer.unpack_from(header)
    own_texts = packing.own_texts
    group, remote_id, local_id, leader_id, *others = _texts(header[packing.packer.size :], 4 + len(own_texts))
    message = kind(
        group=group,
        remote_id=remote_id,
        local_id=local_id,
        code=code,
        leader_id=leader_id,
        term=term,
        **packing.from_bytes(tuple(own), body),
        **dict(zip(own_texts, others, strict=True)),
    )
    return BinaryFrame(request_code, opaque, is_response, bool(flags & layout.FLAG_ONE_WAY), message)


def _unknown(header: memoryview, request_code: int, is_response: bool) -> BinaryFrame:
    """The refusal of an unknown request. Raises WireError for a response to one."""
    if is_response:
        raise WireError(f"expected a response to a known request, found request code {request_code}")
    _, flags, _, opaque, *_ = _COMMON.unpack_from(header)
    return BinaryFrame(request_code, opaque, False, bool(flags & layout.FLAG_ONE_WAY), not_supported(request_code))


def _texts_bytes(texts: Texts) -> bytes:
    packed = _packed_texts.get(texts)
    if packed is None:
        packed = b"".join(map(_text_bytes, texts))
        if len(_packed_texts) >= _MAX_CACHED:
            _packed_texts.clear()
        if len(packed) <= _MAX_CACHED_SIZE:
            _packed_texts[texts] = packed
    return packed


def _own_text(message: WireMessage, name: str) -> str | None:
    text: str | None = getattr(message, name)
    return text if text is None or name not in _FOR_PEOPLE else _fitting(text)


def _fitting(text: str) -> str:
    """A text for people, shortened and made encodable."""
    return text.encode(errors="replace")[:MAX_TEXT_SIZE].decode(errors="ignore")


def _text_bytes(text: str | None) -> bytes:
    if text is None:
        return _NO_TEXT
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise EncodeError(f"expected Unicode text, found half of a surrogate pair in {text[:60]!r}") from None
    if len(raw) > MAX_TEXT_SIZE:
        raise EncodeError(f"expected a text of at most {MAX_TEXT_SIZE} bytes, found {len(raw)}")
    return len(raw).to_bytes(_TEXT_SIZE, "big") + raw


def _texts(data: memoryview, count: int) -> Texts:
    """`count` texts that fill ``data``. Raises WireError."""
    raw = bytes(data)
    found = _read_texts.get(raw)
    if found is None or len(found) != count:
        texts, end = _parse_texts(raw, 0, count)
        if end != len(raw):
            raise WireError(f"expected {count} texts of {end} bytes at the end of the header, found {len(raw)} bytes")
        found = tuple(texts)
        if len(_read_texts) >= _MAX_CACHED:
            _read_texts.clear()
        if len(raw) <= _MAX_CACHED_SIZE:
            _read_texts[raw] = found
    return found


def _parse_texts(raw: bytes, start: int, count: int) -> tuple[list[str | None], int]:
    """`count` texts from `start` on, and their end."""
    found: list[str | None] = []
    for _ in range(count):
        body = start + _TEXT_SIZE
        size = int.from_bytes(raw[start:body], "big")
        start = body if size == layout.NO_TEXT else body + size
        if start > len(raw) or MAX_TEXT_SIZE < size != layout.NO_TEXT:
            raise WireError(f"expected {count} texts of at most {MAX_TEXT_SIZE} bytes, found {len(raw)} bytes in all")
        try:
            found.append(None if size == layout.NO_TEXT else raw[body:start].decode())
        except UnicodeDecodeError:
            raise WireError(f"expected text in UTF-8, found {raw[body:start][:60]!r}") from None
    return found, start


def _names(raw: bytes, start: int, count: int) -> tuple[list[str], int]:
    """`count` texts from `start` on, none of them null, and their end."""
    texts, end = _parse_texts(raw, start, count)
    if None in texts:
        raise WireError(f"expected {count} texts, found null")
    return texts, end  # type: ignore[return-value]  # None was rejected


def _numbers(count: int, body: memoryview, what: str) -> tuple[int, ...]:
    """`count` numbers (u32) at the start of ``body``. Raises WireError."""
    if len(body) < count * _LENGTH_SIZE:
        raise WireError(f"expected {what} {count} times, found {len(body)} bytes")
    found: tuple[int, ...] = struct.unpack_from(f">{count}I", body)
    return found


def _enum_value(values: Sequence[Any], number: int, name: str) -> Any:
    if number >= len(values):
        raise WireError(f"expected {name} from 0 to {len(values) - 1}, found {number}")
    return values[number]


def _check_empty(body: memoryview) -> None:
    if len(body):
        raise WireError(f"expected a message without a body, found one of {len(body)} bytes")


def _check_entries(first_index: int, count: int, data: memoryview) -> None:
    """Raises WireError unless `data` is large enough for the entries and begins with `first_index`. A cheap check."""
    if not count:
        _check_empty(data)
        return
    if len(data) < count * ENTRY_HEADER_SIZE:
        raise WireError(f"expected {count} entries, found {len(data)} bytes")
    index = _ENTRY_INDEX.unpack_from(data, _ENTRY_INDEX_OFFSET)[0]
    if index != first_index:
        raise WireError(f"expected entries from index {first_index} on, found index {index}")


def _nothing(_message: WireMessage) -> tuple[Values, Sequence[Buffer]]:
    return (), ()


def _no_values(_own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    return {}


def _peers_bytes(peers: dict[str, str]) -> bytes:
    return b"".join(_text_bytes(text) for pair in peers.items() for text in pair)


def _peers(count: int, body: memoryview, more: int = 0) -> tuple[dict[str, str], list[str]]:
    """The peers in ``body``, and `more` texts after them. Raises WireError unless they fill it."""
    found, end = _names(bytes(body), 0, 2 * count + more)
    if end != len(body):
        raise WireError(f"expected {count} ids and addresses in {len(body)} bytes, found {end} bytes of them")
    pairs = found[: 2 * count]
    return dict(zip(pairs[::2], pairs[1::2], strict=True)), found[2 * count :]


def _metadata_response(response: m.MetadataResponse) -> tuple[Values, Sequence[Buffer]]:
    return (len(response.peers),), (_peers_bytes(response.peers),)


def _from_metadata_response(own: Values, body: memoryview) -> dict[str, Any]:
    return {"peers": _peers(own[0], body)[0]}


def _append_request(request: m.AppendRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.bodies.count, request.is_restart), request.bodies[1:]


def _from_append_request(own: Values, body: memoryview) -> dict[str, Any]:
    count, is_restart = own
    if len(body) < count * _LENGTH_SIZE:
        raise WireError(f"expected the lengths of {count} bodies, found {len(body)} bytes")
    if not count:
        _check_empty(body)
    return {"bodies": Bodies(count, body), "is_restart": bool(is_restart)}


def _append_response(response: m.AppendResponse) -> tuple[Values, Sequence[Buffer]]:
    return (response.index, response.pos, response.count), [_RUN.pack(*run) for run in response.runs]


def _from_append_response(own: Values, body: memoryview) -> dict[str, Any]:
    index, pos, count = own
    if len(body) % _RUN.size or len(body) // _RUN.size > max(count, 1):
        raise WireError(f"expected at most {count} runs of {_RUN.size} bytes, found {len(body)} bytes")
    return {"index": index, "pos": pos, "count": count, "runs": tuple(EntryRun(*run) for run in _RUN.iter_unpack(body))}


def _get_request(request: m.GetRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.begin_index, request.is_committed), ()


def _from_get_request(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    return {"begin_index": own[0], "is_committed": bool(own[1])}


def _get_response(response: m.GetResponse) -> tuple[Values, Sequence[Buffer]]:
    parts: list[Buffer] = []
    for entry in response.entries:
        size = len(entry.body)
        header = (entry.magic, ENTRY_HEADER_SIZE + size, entry.index, entry.term, entry.pos, entry.channel, 0, 0, size)
        parts += (_ENTRY.pack(*header), entry.body)
    return (len(response.entries),), parts


def _from_get_response(own: Values, body: memoryview) -> dict[str, Any]:
    (count,) = own
    if len(body) < count * ENTRY_HEADER_SIZE:
        raise WireError(f"expected {count} entries, found {len(body)} bytes")
    entries = []
    start = 0
    for _ in range(count):
        header = _ENTRY.unpack_from(body, start) if start + ENTRY_HEADER_SIZE <= len(body) else None
        if header is None or header[8] < 0 or start + ENTRY_HEADER_SIZE + header[8] > len(body):
            raise WireError(f"expected a whole entry at byte {start}, found {len(body) - start} bytes")
        magic, _, index, term, pos, channel, *_, size = header
        begin, start = start + ENTRY_HEADER_SIZE, start + ENTRY_HEADER_SIZE + size
        entries.append(Entry(index, term, pos, magic, bytes(body[begin:start]), channel))
    _check_empty(body[start:])
    return {"entries": entries}


def _vote_request(request: m.VoteRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.ledger_end_index, request.ledger_end_term), ()


def _from_vote_request(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    return {"ledger_end_index": own[0], "ledger_end_term": own[1]}


def _vote_response(response: m.VoteResponse) -> tuple[Values, Sequence[Buffer]]:
    return (_VOTE_NUMBERS[response.vote_result], response.is_without_log), ()


def _from_vote_response(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    result = _enum_value(layout.VOTE_RESULTS, own[0], "voteResult")
    return {"vote_result": result, "is_without_log": bool(own[1])}


def _push_request(request: m.PushRequest) -> tuple[Values, Sequence[Buffer]]:
    own = _PUSH_NUMBERS[request.type], request.commit_index, request.first_index, request.count
    return own, (request.data,)


def _from_push_request(own: Values, body: memoryview) -> dict[str, Any]:
    number, commit_index, first_index, count = own
    kind = _enum_value(layout.PUSH_TYPES, number, "type")
    if kind is not PushType.APPEND and count > (kind is not PushType.COMMIT):
        raise WireError(f"expected at most one entry for COMPARE or TRUNCATE and none for COMMIT, found {count}")
    _check_entries(first_index, count, body)
    return {"type": kind, "commit_index": commit_index, "first_index": first_index, "count": count, "data": body}


def _push_response(response: m.PushResponse) -> tuple[Values, Sequence[Buffer]]:
    index = response.index
    own = index is not None, -1 if index is None else index, response.count, response.begin_index, response.end_index
    return own, ()


def _from_push_response(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    has_index, index, count, begin_index, end_index = own
    found = index if has_index else None
    return {"index": found, "count": count, "begin_index": begin_index, "end_index": end_index}


def _transfer_request(request: m.TransferRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.take_leadership_ledger_index,), ()


def _from_transfer_request(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    return {"take_leadership_ledger_index": own[0]}


def _status_response(response: m.StatusResponse) -> tuple[Values, Sequence[Buffer]]:
    own = (
        *(_ROLE_NUMBERS[response.role], response.begin_index, response.end_index, response.end_term),
        *(response.committed_index, len(response.peers), response.serves_messages),
    )
    return own, (_peers_bytes(response.peers) + _text_bytes(_fitting(response.problem)),)


def _from_status_response(own: Values, body: memoryview) -> dict[str, Any]:
    role, begin_index, end_index, end_term, committed_index, count, serves_messages = own
    peers, (problem,) = _peers(count, body, 1)
    return {
        "role": _enum_value(layout.ROLES, role, "role"),
        "begin_index": begin_index,
        "end_index": end_index,
        "end_term": end_term,
        "committed_index": committed_index,
        "peers": peers,
        "problem": problem,
        "serves_messages": bool(serves_messages),
    }


def _read_request(request: m.ReadRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.first_index, request.max_bytes, request.wait_ms), ()


def _from_read_request(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    return {"first_index": own[0], "max_bytes": own[1], "wait_ms": own[2]}


def _read_response(response: m.ReadResponse) -> tuple[Values, Sequence[Buffer]]:
    own = response.first_index, response.count, response.begin_index, response.committed_index
    return own, (response.data,)


def _from_read_response(own: Values, body: memoryview) -> dict[str, Any]:
    first_index, count, begin_index, committed_index = own
    _check_entries(first_index, count, body)
    return {
        "first_index": first_index,
        "count": count,
        "begin_index": begin_index,
        "committed_index": committed_index,
        "data": body,
    }


def _topics_request(request: m.TopicsRequest) -> tuple[Values, Sequence[Buffer]]:
    return (len(request.names), request.queue_nums), (b"".join(map(_text_bytes, request.names)),)


def _from_topics_request(own: Values, body: memoryview) -> dict[str, Any]:
    count, queue_nums = own
    names, end = _names(bytes(body), 0, count)
    _check_empty(body[end:])
    return {"names": tuple(names), "queue_nums": queue_nums}


def _topics_response(response: m.TopicsResponse) -> tuple[Values, Sequence[Buffer]]:
    counts = response.queue_counts
    numbers = struct.pack(f">{len(counts)}I", *counts.values())
    return (len(counts),), (numbers, b"".join(map(_text_bytes, counts)), response.store_host)


def _from_topics_response(own: Values, body: memoryview) -> dict[str, Any]:
    (count,) = own
    numbers = _numbers(count, body, "a number of queues")
    names, end = _names(bytes(body), count * _LENGTH_SIZE, count)
    host = bytes(body[end:])
    if len(host) not in _HOST_SIZES:
        raise WireError(f"expected a host of 8 or 20 bytes, or none, found {len(host)} bytes")
    return {"queue_counts": dict(zip(names, numbers, strict=True)), "store_host": host}


def _producer_request(request: m.ProducerRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.run, request.from_index), (request.producer,)


def _from_producer_request(own: Values, body: memoryview) -> dict[str, Any]:
    run, from_index = own
    if len(body) != PRODUCER_SIZE:
        raise WireError(f"expected a producer of {PRODUCER_SIZE} bytes, found {len(body)}")
    return {"producer": bytes(body), "run": run, "from_index": from_index}


def _producer_response(response: m.ProducerResponse) -> tuple[Values, Sequence[Buffer]]:
    numbers = (response.count, response.other_runs, response.last_number, response.next_index)
    return numbers, (response.ids,)


def _from_producer_response(own: Values, body: memoryview) -> dict[str, Any]:
    if len(body) % CONTENT_SIZE:
        raise WireError(f"expected identities of {CONTENT_SIZE} bytes, found {len(body)} bytes")
    names = ("count", "other_runs", "last_number", "next_index")
    return {**dict(zip(names, own, strict=True)), "ids": body}


def _put_request(request: m.PutRequest) -> tuple[Values, Sequence[Buffer]]:
    (count, is_restart), body = _append_request(request)
    return (count, is_restart, request.queue_nums), body


def _from_put_request(own: Values, body: memoryview) -> dict[str, Any]:
    *append, queue_nums = own
    return {**_from_append_request(tuple(append), body), "queue_nums": queue_nums}


def _put_response(response: m.PutResponse) -> tuple[Values, Sequence[Buffer]]:
    return (response.index, response.pos, response.count), (response.positions,)


def _from_put_response(own: Values, body: memoryview) -> dict[str, Any]:
    index, pos, count = own
    if len(body) not in (0, count * m.POSITION_SIZE):
        raise WireError(f"expected {count} positions of {m.POSITION_SIZE} bytes, found {len(body)} bytes")
    return {"index": index, "pos": pos, "count": count, "positions": body}


def _config_response(response: m.ConfigResponse) -> tuple[Values, Sequence[Buffer]]:
    files = response.files
    sizes = struct.pack(f">{len(files)}I", *map(len, files.values()))
    return (len(files),), (sizes, b"".join(map(_text_bytes, files)), *files.values())


def _from_config_response(own: Values, body: memoryview) -> dict[str, Any]:
    (count,) = own
    sizes = _numbers(count, body, "the size of a file")
    names, start = _names(bytes(body), count * _LENGTH_SIZE, count)
    if start + sum(sizes) != len(body):
        raise WireError(f"expected {sum(sizes)} bytes of files, found {len(body) - start}")
    files = {}
    for name, size in zip(names, sizes, strict=True):
        files[name] = bytes(body[start : start + size])
        start += size
    return {"files": files}


def _summary_request(request: m.SummaryRequest) -> tuple[Values, Sequence[Buffer]]:
    return (request.begin_index, request.snapshot, request.offset), ()


def _from_summary_request(own: Values, body: memoryview) -> dict[str, Any]:
    _check_empty(body)
    begin_index, snapshot, offset = own
    return {"begin_index": begin_index, "snapshot": snapshot, "offset": offset}


def _summary_response(response: m.SummaryResponse) -> tuple[Values, Sequence[Buffer]]:
    return (response.snapshot, response.offset, response.size), (response.data,)


def _from_summary_response(own: Values, body: memoryview) -> dict[str, Any]:
    snapshot, offset, size = own
    return {"snapshot": snapshot, "offset": offset, "size": size, "data": body}


_CODECS: dict[type[WireMessage], tuple[Callable[[Any], Any], Callable[[Values, memoryview], dict[str, Any]]]] = {
    m.MetadataRequest: (_nothing, _no_values),
    m.MetadataResponse: (_metadata_response, _from_metadata_response),
    m.AppendRequest: (_append_request, _from_append_request),
    m.AppendResponse: (_append_response, _from_append_response),
    m.GetRequest: (_get_request, _from_get_request),
    m.GetResponse: (_get_response, _from_get_response),
    m.VoteRequest: (_vote_request, _from_vote_request),
    m.VoteResponse: (_vote_response, _from_vote_response),
    m.HeartBeatRequest: (_nothing, _no_values),
    m.HeartBeatResponse: (_nothing, _no_values),
    m.PushRequest: (_push_request, _from_push_request),
    m.PushResponse: (_push_response, _from_push_response),
    m.TransferRequest: (_transfer_request, _from_transfer_request),
    m.TransferResponse: (_nothing, _no_values),
    m.StatusRequest: (_nothing, _no_values),
    m.StatusResponse: (_status_response, _from_status_response),
    m.ReadRequest: (_read_request, _from_read_request),
    m.ReadResponse: (_read_response, _from_read_response),
    m.TopicsRequest: (_topics_request, _from_topics_request),
    m.TopicsResponse: (_topics_response, _from_topics_response),
    m.PutRequest: (_put_request, _from_put_request),
    m.PutResponse: (_put_response, _from_put_response),
    m.ProducerRequest: (_producer_request, _from_producer_request),
    m.ProducerResponse: (_producer_response, _from_producer_response),
    m.ConfigRequest: (_nothing, _no_values),
    m.ConfigResponse: (_config_response, _from_config_response),
    m.SummaryRequest: (_summary_request, _from_summary_request),
    m.SummaryResponse: (_summary_response, _from_summary_response),
    m.IdentityRequest: (_nothing, _no_values),
    m.IdentityResponse: (_nothing, _no_values),
    m.MembersRequest: (_nothing, _no_values),
    m.MembersResponse: (_nothing, _no_values),
}
_ATTRIBUTES = {
    "transferId": "transfer_id",
    "transfereeId": "transferee_id",
    "reason": "reason",
    "clusterId": "cluster_id",
    "action": "action",
    "memberId": "member_id",
    "newId": "new_id",
    "address": "address",
    "members": "members",
}


def _layout_of(kind: type[WireMessage]) -> _Layout:
    key = REQUEST_CODES[kind], issubclass(kind, m.Response)
    own_texts = tuple(_ATTRIBUTES[name] for name in layout.OWN_TEXTS.get(key, ()))
    return _Layout(layout.fixed_struct(layout.OWN[key]), own_texts, *_CODECS[kind])


_LAYOUTS: dict[type[WireMessage], _Layout] = {kind: _layout_of(kind) for kind in _CODECS}
