"""The binary dialect between members and clients of this package; `binary_layout` has its layouts.

One codec serves the numbers and texts of all messages. Bodies have one each, because most are not copied.

Entries are sent as in a data file, and bodies as the store takes them. Neither is copied or checked here, so received
entries are only as trustworthy as the peer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import CONTENT_SIZE, PRODUCER_SIZE, Bodies, Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE
from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.message_fields import wire_fields
from pyspark_dledger.raft.messages import PushType, WireMessage
from pyspark_dledger.raft.wire import binary_layout as layout
from pyspark_dledger.raft.wire.json_values import MAX_TEXT_SIZE
from pyspark_dledger.raft.wire.remoting import Rejection, not_supported
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError
from pyspark_dledger.store.dledger_store import Entry, EntryRun

Texts = tuple[str | None, ...]
Values = dict[str, Any]
"""A message's own fields by their names, while it is decoded."""

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
_PUSH_NUMBERS = {kind: number for number, kind in enumerate(PushType)}
_FLAG = "has"

# A text that only people read: it is shortened where needed, so that the message can be sent.
_FOR_PEOPLE = "reason"
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
    message: WireMessage | Rejection


class _Layout(NamedTuple):
    """How one message class is packed and unpacked.

    `names` are those of the fields after the opaque: numbers, then texts. `from_wire` has the numbers that are sent as
    others. A `_FLAG` before the number `optional` says that it is not None.
    """

    packer: struct.Struct
    names: tuple[str, ...]
    text_count: int
    to_texts: Callable[[Any], Texts]
    to_numbers: Callable[[Any], Sequence[Any]]
    from_wire: tuple[tuple[str, Callable[[Any], Any]], ...]
    optional: str | None
    body: Callable[[Any], Sequence[Buffer]]
    read_body: Callable[[Values, memoryview], None]


def encode(message: WireMessage, opaque: int, is_one_way: bool = False) -> tuple[bytes, list[Buffer]]:
    """Header and body of a message's frame. Raises EncodeError for values that do not fit the layout."""
    kind = type(message)
    packing = _LAYOUTS[kind]
    flags = (0 if isinstance(message, m.Request) else layout.FLAG_RESPONSE) | layout.FLAG_ONE_WAY * is_one_way
    texts: Texts = packing.to_texts(message)
    own = packing.to_numbers(message)
    try:
        fixed = packing.packer.pack(layout.VERSION, flags, kind.request_code, opaque, message.code, message.term, *own)
        body = packing.body(message)
    except struct.error as error:
        raise EncodeError(f"expected values that fit their fields, found another in {kind.__name__}: {error}") from None
    return fixed + _texts_bytes(texts), [part for part in body if len(part)]


def encode_rejection(rejection: Rejection, request_code: int, opaque: int) -> tuple[bytes, list[Buffer]]:
    """Header and body of a rejection's frame."""
    flags = layout.FLAG_RESPONSE | layout.FLAG_REJECTION
    fixed = _COMMON.pack(layout.VERSION, flags, request_code, opaque, rejection.code, -1)
    return fixed + _texts_bytes((_fitting(rejection.remark),)), []


def decode(header: memoryview, body: memoryview) -> BinaryFrame:
    """The message of a frame; entries and bodies in it are views of ``body``. Raises WireError."""
    if len(header) < _COMMON.size:
        raise WireError(f"expected a binary header of at least {_COMMON.size} bytes, found {len(header)}")
    version, flags, request_code = _PEEK.unpack_from(header)
    if version != layout.VERSION:
        raise WireError(f"expected version {layout.VERSION} of the binary frames, found {version}")
    is_response = bool(flags & layout.FLAG_RESPONSE)
    if flags & layout.FLAG_REJECTION:
        if not is_response:
            raise WireError("expected a rejection as a response, found one as a request")
        *_, opaque, code, _ = _COMMON.unpack_from(header)
        (remark,) = _texts(header[_COMMON.size :], 1)
        return BinaryFrame(request_code, opaque, is_response, False, Rejection(code, remark or ""))
    request = m.REQUESTS.get(request_code)
    if request is None:
        return _unknown(header, request_code, is_response)
    kind = request.response if is_response else request
    packing = _LAYOUTS[kind]
    if len(header) < packing.packer.size:
        raise WireError(f"expected a header of at least {packing.packer.size} bytes, found {len(header)}")
    fixed = packing.packer.unpack_from(header)
    texts = _texts(header[packing.packer.size :], packing.text_count)
    values: Values = dict(zip(packing.names, fixed[4:] + texts, strict=True))
    if packing.optional is not None and not values.pop(_FLAG):
        values[packing.optional] = None
    for name, convert in packing.from_wire:
        values[name] = convert(values[name])
    packing.read_body(values, body)
    opaque, message = fixed[3], kind(**values)
    return BinaryFrame(request_code, opaque, is_response, bool(flags & layout.FLAG_ONE_WAY), message)


def _unknown(header: memoryview, request_code: int, is_response: bool) -> BinaryFrame:
    """The rejection of an unknown request. Raises WireError for a response to one."""
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


def _peers_bytes(peers: dict[str, str]) -> bytes:
    return b"".join(_text_bytes(text) for pair in peers.items() for text in pair)


def _peers(count: int, body: memoryview, more: int = 0) -> tuple[dict[str, str], list[str]]:
    """The peers in ``body``, and `more` texts after them. Raises WireError unless they fill it."""
    found, end = _names(bytes(body), 0, 2 * count + more)
    if end != len(body):
        raise WireError(f"expected {count} ids and addresses in {len(body)} bytes, found {end} bytes of them")
    pairs = found[: 2 * count]
    return dict(zip(pairs[::2], pairs[1::2], strict=True)), found[2 * count :]


def _read_metadata(values: Values, body: memoryview) -> None:
    values["peers"], _ = _peers(values["peers"], body)


def _status_body(response: m.StatusResponse) -> Sequence[Buffer]:
    return (_peers_bytes(response.peers) + _text_bytes(_fitting(response.problem)),)


def _read_status(values: Values, body: memoryview) -> None:
    values["peers"], (values["problem"],) = _peers(values["peers"], body, 1)


def _read_bodies(values: Values, body: memoryview) -> None:
    count = values["bodies"]
    if len(body) < count * _LENGTH_SIZE:
        raise WireError(f"expected the lengths of {count} bodies, found {len(body)} bytes")
    if not count:
        _check_empty(body)
    values["bodies"] = Bodies(count, body)


def _read_runs(values: Values, body: memoryview) -> None:
    count = values["count"]
    if len(body) % _RUN.size or len(body) // _RUN.size > max(count, 1):
        raise WireError(f"expected at most {count} runs of {_RUN.size} bytes, found {len(body)} bytes")
    values["runs"] = tuple(EntryRun(*run) for run in _RUN.iter_unpack(body))


def _entries_body(response: m.GetResponse) -> Sequence[Buffer]:
    parts: list[Buffer] = []
    for entry in response.entries:
        size = len(entry.body)
        header = (entry.magic, ENTRY_HEADER_SIZE + size, entry.index, entry.term, entry.pos, entry.channel, 0, 0, size)
        parts += (_ENTRY.pack(*header), entry.body)
    return parts


def _read_entries(values: Values, body: memoryview) -> None:
    count = values["entries"]
    if len(body) < count * ENTRY_HEADER_SIZE:
        raise WireError(f"expected {count} entries, found {len(body)} bytes")
    entries = values["entries"] = []
    start = 0
    for _ in range(count):
        header = _ENTRY.unpack_from(body, start) if start + ENTRY_HEADER_SIZE <= len(body) else None
        if header is None or header[8] < 0 or start + ENTRY_HEADER_SIZE + header[8] > len(body):
            raise WireError(f"expected a whole entry at byte {start}, found {len(body) - start} bytes")
        magic, _, index, term, pos, channel, *_, size = header
        begin, start = start + ENTRY_HEADER_SIZE, start + ENTRY_HEADER_SIZE + size
        entries.append(Entry(index, term, pos, magic, bytes(body[begin:start]), channel))
    _check_empty(body[start:])


def _read_push(values: Values, body: memoryview) -> None:
    kind, count = values["type"], values["count"]
    if kind is not PushType.APPEND and count > (kind is not PushType.COMMIT):
        raise WireError(f"expected at most one entry for COMPARE or TRUNCATE and none for COMMIT, found {count}")
    _read_data(values, body)


def _push_request_numbers(request: m.PushRequest) -> Sequence[Any]:
    return _PUSH_NUMBERS[request.type], request.commit_index, request.first_index, request.count


def _push_response_numbers(response: m.PushResponse) -> Sequence[Any]:
    index = response.index
    return index is not None, -1 if index is None else index, response.count, response.begin_index, response.end_index


def _read_data(values: Values, body: memoryview) -> None:
    _check_entries(values["first_index"], values["count"], body)
    values["data"] = body


def _read_names(values: Values, body: memoryview) -> None:
    names, end = _names(bytes(body), 0, values["names"])
    _check_empty(body[end:])
    values["names"] = tuple(names)


def _topics_body(response: m.TopicsResponse) -> Sequence[Buffer]:
    counts = response.queue_counts
    numbers = struct.pack(f">{len(counts)}I", *counts.values())
    return numbers, b"".join(map(_text_bytes, counts)), response.store_host


def _read_topics(values: Values, body: memoryview) -> None:
    count = values["queue_counts"]
    numbers = _numbers(count, body, "a number of queues")
    names, end = _names(bytes(body), count * _LENGTH_SIZE, count)
    host = values["store_host"] = bytes(body[end:])
    if len(host) not in _HOST_SIZES:
        raise WireError(f"expected a host of 8 or 20 bytes, or none, found {len(host)} bytes")
    values["queue_counts"] = dict(zip(names, numbers, strict=True))


def _read_producer(values: Values, body: memoryview) -> None:
    if len(body) != PRODUCER_SIZE:
        raise WireError(f"expected a producer of {PRODUCER_SIZE} bytes, found {len(body)}")
    values["producer"] = bytes(body)


def _read_ids(values: Values, body: memoryview) -> None:
    if len(body) % CONTENT_SIZE:
        raise WireError(f"expected identities of {CONTENT_SIZE} bytes, found {len(body)} bytes")
    values["ids"] = body


def _read_positions(values: Values, body: memoryview) -> None:
    count = values["count"]
    if len(body) not in (0, count * m.POSITION_SIZE):
        raise WireError(f"expected {count} positions of {m.POSITION_SIZE} bytes, found {len(body)} bytes")
    values["positions"] = body


def _files_body(response: m.ConfigResponse) -> Sequence[Buffer]:
    files = response.files
    sizes = struct.pack(f">{len(files)}I", *map(len, files.values()))
    return sizes, b"".join(map(_text_bytes, files)), *files.values()


def _read_files(values: Values, body: memoryview) -> None:
    count = values["files"]
    sizes = _numbers(count, body, "the size of a file")
    names, start = _names(bytes(body), count * _LENGTH_SIZE, count)
    if start + sum(sizes) != len(body):
        raise WireError(f"expected {sum(sizes)} bytes of files, found {len(body) - start}")
    files = values["files"] = {}
    for name, size in zip(names, sizes, strict=True):
        files[name] = bytes(body[start : start + size])
        start += size


def _read_summary(values: Values, body: memoryview) -> None:
    values["data"] = body


def _read_nothing(_: Values, body: memoryview) -> None:
    _check_empty(body)


_BODIES: dict[type[WireMessage], tuple[Callable[[Any], Sequence[Buffer]], Callable[[Values, memoryview], None]]] = {
    m.MetadataResponse: (lambda response: (_peers_bytes(response.peers),), _read_metadata),
    m.AppendRequest: (lambda request: request.bodies[1:], _read_bodies),
    m.AppendResponse: (lambda response: [_RUN.pack(*run) for run in response.runs], _read_runs),
    m.GetResponse: (_entries_body, _read_entries),
    m.PushRequest: (lambda request: (request.data,), _read_push),
    m.StatusResponse: (_status_body, _read_status),
    m.ReadResponse: (lambda response: (response.data,), _read_data),
    m.TopicsRequest: (lambda request: (b"".join(map(_text_bytes, request.names)),), _read_names),
    m.TopicsResponse: (_topics_body, _read_topics),
    m.PutRequest: (lambda request: request.bodies[1:], _read_bodies),
    m.PutResponse: (lambda response: (response.positions,), _read_positions),
    m.ProducerRequest: (lambda request: (request.producer,), _read_producer),
    m.ProducerResponse: (lambda response: (response.ids,), _read_ids),
    m.ConfigResponse: (_files_body, _read_files),
    m.SummaryResponse: (lambda response: (response.data,), _read_summary),
}


# Those of the messages of each append, written out: they are encoded most often.
_FAST_NUMBERS: dict[type[WireMessage], Callable[[Any], Sequence[Any]]] = {
    m.AppendRequest: lambda request: (request.bodies.count, request.is_restart),
    m.PutRequest: lambda request: (request.bodies.count, request.is_restart, request.queue_nums),
    m.PushRequest: _push_request_numbers,
    m.PushResponse: _push_response_numbers,
}


def _layout_of(kind: type[WireMessage]) -> _Layout:
    defaults = {each.name: each.default for each in fields(kind)}
    wires = wire_fields(kind)
    numbers = [name for name, wire in wires.items() if wire.format]
    optional = next((name for name in numbers if defaults[name] is None), None)
    texts = ("group", "remote_id", "local_id", "leader_id", *(name for name, wire in wires.items() if wire.is_text))
    to_wire: list[Callable[[Any], Any] | None] = []
    from_wire: list[tuple[str, Callable[[Any], Any]]] = []
    for name in numbers:
        default, convert = defaults[name], wires[name].to_count
        if isinstance(default, bool):
            from_wire.append((name, bool))
        elif isinstance(default, Enum):
            members = list(type(default))
            convert = members.index
            from_wire.append((name, _reader(members, layout.camel_case(name))))
        to_wire.append(convert)

    def to_numbers(message: WireMessage) -> Sequence[Any]:
        found = [getattr(message, name) for name in numbers]
        return [each if convert is None else convert(each) for each, convert in zip(found, to_wire, strict=True)]

    body, read_body = _BODIES.get(kind, (lambda _: (), _read_nothing))
    flag = () if optional is None else (_FLAG,)
    return _Layout(
        packer=layout.fixed_struct(layout.own_numbers(kind)),
        names=("code", "term", *flag, *numbers, *texts),
        text_count=len(texts),
        to_texts=_texts_for_people(texts) if _FOR_PEOPLE in texts else attrgetter(*texts),
        to_numbers=_FAST_NUMBERS.get(kind) or (_plain(numbers) if not any(to_wire) else to_numbers),
        from_wire=tuple(from_wire),
        optional=optional,
        body=body,
        read_body=read_body,
    )


def _texts_for_people(names: tuple[str, ...]) -> Callable[[Any], Texts]:
    def to_texts(message: WireMessage) -> Texts:
        found: list[str | None] = [getattr(message, name) for name in names]
        at = names.index(_FOR_PEOPLE)
        reason = found[at]
        return (*found[:at], None if reason is None else _fitting(reason), *found[at + 1 :])

    return to_texts


def _plain(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """The function that gives these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda message: (getattr(message, names[0]),)) if names else (lambda _: ())


def _reader(members: Sequence[Enum], name: str) -> Callable[[int], Enum]:
    """A function that gives the value of a number."""

    def read(number: int) -> Enum:
        if number >= len(members):
            raise WireError(f"expected {name} from 0 to {len(members) - 1}, found {number}")
        return members[number]

    return read


_LAYOUTS: dict[type[WireMessage], _Layout] = {
    kind: _layout_of(kind) for request in m.REQUESTS.values() for kind in (request, request.response)
}
