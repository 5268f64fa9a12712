"""The JSON bodies of DLedger 0.3.1.2's messages: written byte for byte as by fastjson, and read like it.

Keys are sorted, absent values are omitted, bytes are base64, enums are names. Requests also contain the values of
Java's getters (``count``, ``firstEntryIndex``, ...), which readers ignore like any unknown key. Missing and null values
get the defaults of `messages`.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE
from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.message_fields import wire_fields
from pyspark_dledger.raft.messages import PushRequest, PushType, Request, Response, VoteResult, WireMessage
from pyspark_dledger.raft.wire.binary_layout import camel_case
from pyspark_dledger.raft.wire.json_values import base64_bytes, integer, parse_object, quote, shown, text
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError
from pyspark_dledger.store.dledger_store import Entry

Write = Callable[[Any], bytes | None]
"""The JSON of one value of a message; None omits its key."""
Read = Callable[[Any, str], Any]
"""The attribute's value from a JSON value that is not null, and the key for errors. Raises WireError."""
AnyEnum = TypeVar("AnyEnum", bound=Enum)
AnyMessage = TypeVar("AnyMessage", bound=WireMessage)

_HEADER = record_struct(ENTRY_HEADER)
_HEADER_BITS = {"magic": 32, "index": 64, "term": 64, "pos": 64, "channel": 32, "chainCrc": 32, "bodyCrc": 32}
_LENGTH_SIZE = 4
_REFERENCE = re.compile(r"\$\.([A-Za-z]+)(?:\[([0-9]{1,6})\])?")
# 0.1 spells this one with two underscores.
_OLD_VOTE_RESULTS = {"REJECT_ALREADY__HAS_LEADER": VoteResult.REJECT_ALREADY_HAS_LEADER}


class JsonField(NamedTuple):
    """One key of a message's JSON. Without `read` it is only written, because Java derives it."""

    key: str
    write: Write
    attribute: str | None = None
    read: Read | None = None


def encode_body(message: WireMessage) -> bytes:
    """A message as JSON. Raises EncodeError for a message that Java does not have."""
    writers = _WRITERS.get(type(message))
    if writers is None:
        raise EncodeError(
            f"expected a message that Java has, found {type(message).__name__}, which needs the binary dialect"
        )
    parts = []
    for key, write in writers:
        value = write(message)
        if value is not None:
            parts.append(key + value)
    return b"{" + b",".join(parts) + b"}"


def decode_request(code: int, body: Buffer) -> Request:
    """The request of that code. Raises WireError for an unreadable body, and for a code that Java does not have."""
    return _decode(_kind_of(code), body)


def decode_response(code: int, body: Buffer) -> Response:
    """The response to a request of that code. Raises WireError."""
    return _decode(_kind_of(code).response, body)


def _kind_of(code: int) -> type[Request]:
    kind = m.REQUESTS.get(code)
    if kind is None or m.is_extension(code):
        raise WireError(f"expected a request code that is sent as JSON, found {code}")
    return kind


def _decode(kind: type[AnyMessage], body: Buffer) -> AnyMessage:
    fields = parse_object(body, kind.__name__)
    if fields is None:
        raise WireError(f"expected {kind.__name__} as a JSON object, found nothing")
    values = {}
    for key, attribute, read in _READERS[kind]:
        value = fields.get(key)
        if value is not None:
            values[attribute] = read(value, key)
    finish = _FINISHERS.get(kind)
    if finish is not None:
        finish(fields, values)
    return kind(**values)


def _number(key: str, attribute: str, bits: int = 64, is_count: bool = False) -> JsonField:
    get = attrgetter(attribute)

    def write(message: WireMessage) -> bytes | None:
        value = get(message)
        return None if value is None else b"%d" % value

    def read(value: Any, name: str) -> int:
        number = integer(value, name, bits)
        if is_count and number < 0:
            raise WireError(f"expected {name} of at least 0, found {number}")
        return number

    return JsonField(key, write, attribute, read)


def _text(key: str, attribute: str) -> JsonField:
    get = attrgetter(attribute)

    def write(message: WireMessage) -> bytes | None:
        value = get(message)
        return None if value is None else quote(value).encode()

    return JsonField(key, write, attribute, text)


def _enum(
    key: str, attribute: str, kind: type[AnyEnum], unknown: AnyEnum | None, others: dict[str, AnyEnum]
) -> JsonField:
    """An enum by name; also read by its ordinal. A name that Java reads as null gives `unknown`, or is rejected."""
    get = attrgetter(attribute)
    by_name = {member.name: member for member in kind} | others
    by_ordinal = list(kind)

    def read(value: Any, name: str) -> AnyEnum:
        if type(value) is int and 0 <= value < len(by_ordinal):
            return by_ordinal[value]
        found = by_name.get(value) if isinstance(value, str) else None
        if found is None and isinstance(value, str):
            found = unknown
        if found is None:
            raise WireError(f"expected {name} from {', '.join(by_name)}, found {shown(value)}")
        return found

    return JsonField(key, lambda message: b'"%b"' % get(message).name.encode(), attribute, read)


_COMMON = (
    _text("group", "group"),
    _text("remoteId", "remote_id"),
    _text("localId", "local_id"),
    _number("code", "code", 32),
    _text("leaderId", "leader_id"),
    _number("term", "term"),
)


def _entry_json(header: tuple[int, ...], body: Buffer) -> bytes:
    magic, size, index, term, pos, channel, chain_crc, body_crc, _ = header
    return (
        b'{"body":"%b","bodyCrc":%d,"chainCrc":%d,"channel":%d,"index":%d,"magic":%d,"pos":%d,"size":%d,"term":%d}'
        % (
            binascii.b2a_base64(body, newline=False),
            *(body_crc, chain_crc, channel, index, magic, pos, size, term),
        )
    )


def _entries_json(data: Buffer, count: int) -> list[bytes]:
    """Encoded entries, each as JSON. Raises EncodeError unless `data` is exactly `count` entries."""
    view = memoryview(data)
    found = []
    start = 0
    while start < len(view):
        header = _HEADER.unpack_from(view, start) if start + ENTRY_HEADER_SIZE <= len(view) else None
        if header is None or header[8] < 0 or header[1] != header[8] + ENTRY_HEADER_SIZE:
            raise EncodeError(f"expected complete entries to send, found other bytes at {start} of {len(view)}")
        found.append(_entry_json(header, view[start + ENTRY_HEADER_SIZE : start + header[1]]))
        start += header[1]
    if len(found) != count or start != len(view):
        raise EncodeError(f"expected {count} entries to send, found {len(found)}")
    return found


def _push_entry(request: PushRequest) -> bytes | None:
    if request.count == 1 and request.type is not PushType.COMMIT and not _is_batch(request):
        return _entries_json(request.data, 1)[0]
    return None


def _is_batch(request: PushRequest) -> bool:
    return _count(request) > 1 or (request.is_batch and request.count == 1 and request.type is PushType.APPEND)


def _push_batch(request: PushRequest) -> bytes:
    if not _is_batch(request):
        return b"[]"
    if request.type is not PushType.APPEND:
        raise EncodeError(f"expected one entry for {request.type.name}, found {request.count}")
    return b"[%b]" % b",".join(_entries_json(request.data, request.count))


def _count(request: PushRequest) -> int:
    return 0 if request.type is PushType.COMMIT else request.count


def _bodies_json(request: m.AppendRequest) -> bytes:
    """One body; Java accepts batches only within a process."""
    count, block = request.bodies.parts.packed()
    view = memoryview(block)
    if count != 1 or len(view) < _LENGTH_SIZE or int.from_bytes(view[:_LENGTH_SIZE], "big") != len(view) - _LENGTH_SIZE:
        raise EncodeError(f"expected one body to append in JSON, found {count} in {len(view)} bytes")
    return b'"%b"' % binascii.b2a_base64(view[_LENGTH_SIZE:], newline=False)


def _get_entries_json(response: m.GetResponse) -> bytes:
    parts = []
    for entry in response.entries:
        size = len(entry.body)
        header = (entry.magic, ENTRY_HEADER_SIZE + size, entry.index, entry.term, entry.pos, entry.channel, 0, 0, size)
        parts.append(_entry_json(header, entry.body))
    return b"[%b]" % b",".join(parts)


def _peers_json(response: m.MetadataResponse) -> bytes:
    """In the given order; Java's order is that of a hash map."""
    return b"{%b}" % ",".join(f"{quote(key)}:{quote(value)}" for key, value in response.peers.items()).encode()


def _read_peers(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise WireError(f"expected {name} as an object of ids and addresses, found {type(value).__name__}")
    return {text(key, name): text(address, f"{name}.{key[:60]}") for key, address in value.items()}


def _read_bodies(value: Any, name: str) -> Bodies:
    body = base64_bytes(value, name)
    return Bodies(1, len(body).to_bytes(_LENGTH_SIZE, "big") + body)


class _Item(NamedTuple):
    """An entry of a message: its header as in a data file, and the entry."""

    header: bytes
    entry: Entry


def _read_entry(value: Any, name: str) -> _Item:
    """An entry from its JSON; its size comes from its body, ``size`` is ignored. Raises WireError."""
    if not isinstance(value, dict):
        raise WireError(f"expected {name} as an object, found {type(value).__name__}")
    body = base64_bytes(value.get("body"), f"{name}.body")
    size = ENTRY_HEADER_SIZE + len(body)
    if size > MAX_ENTRY_SIZE:
        raise WireError(f"expected {name} of at most {MAX_ENTRY_SIZE} bytes, found {size}")
    numbers = [value.get(key, 0) for key in _HEADER_BITS]
    if set(map(type, numbers)) != {int}:
        numbers = _checked(numbers)
    magic, index, term, pos, channel, chain_crc, body_crc = numbers
    try:
        header = _HEADER.pack(magic, size, index, term, pos, channel, chain_crc, body_crc, len(body))
    except struct.error:
        _checked(numbers)
        raise
    return _Item(header, Entry(index, term, pos, magic, body, channel))


def _checked(numbers: list[Any]) -> list[int]:
    """The numbers of an entry's header, in the order of `_HEADER_BITS`. Raises WireError."""
    named = zip(numbers, _HEADER_BITS.items(), strict=True)
    return [0 if number is None else integer(number, key, bits) for number, (key, bits) in named]


def _read_get_entries(value: Any, name: str) -> list[Entry]:
    if not isinstance(value, list):
        raise WireError(f"expected {name} as a list, found {type(value).__name__}")
    return [_read_entry(item, name).entry for item in value]


def _finish_push(fields: dict[str, Any], values: dict[str, Any]) -> None:
    """Take entries from ``batchEntry`` for an APPEND that has one, else from ``entry``; COMMIT has none."""
    kind = values.get("type", None if "type" in fields else PushType.APPEND)
    if kind is None:
        raise WireError("expected a push type, found null")
    if kind is PushType.COMMIT:
        return
    batch = fields.get("batchEntry")
    if kind is PushType.APPEND and batch:
        if not isinstance(batch, list):
            raise WireError(f"expected batchEntry as a list, found {type(batch).__name__}")
        items = batch
    else:
        entry = fields.get("entry")
        items = [] if entry is None else [entry]
    if items:
        values.update(_packed([_resolved(fields, item) for item in items]))


def _packed(items: list[Any]) -> dict[str, Any]:
    """The entries' fields of a `PushRequest`. Raises WireError unless the indexes are consecutive.

    Each entry is checked before the next is read: many references to one large entry would take its size many times.
    """
    first = _read_entry(items[0], "entry")
    data = bytearray(first.header + first.entry.body)
    expected = first.entry.index
    for item in items[1:]:
        header, entry = _read_entry(item, "entry")
        expected += 1
        if entry.index != expected:
            raise WireError(f"expected index {expected} next in batchEntry, found {entry.index}")
        data += header
        data += entry.body
    return {"first_index": first.entry.index, "count": len(items), "data": data}


def _resolved(fields: dict[str, Any], item: Any) -> Any:
    """The object of a reference such as ``{"$ref": "$.batchEntry[0]"}``: fastjson writes each object once.

    Raises WireError.
    """
    reference = item.get("$ref") if isinstance(item, dict) else None
    if reference is None:
        return item
    path = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    found = fields.get(path[1]) if path else None
    if path and path[2] is not None:
        found = found[int(path[2])] if isinstance(found, list) and int(path[2]) < len(found) else None
    if not isinstance(found, dict):
        raise WireError(f"expected a reference to an entry of this message, found {shown(reference)}")
    return found


# What `messages` does not say: fields that are sent in another form than a number or text, and what Java derives.
_OWN_FORMS: dict[type[WireMessage], tuple[JsonField, ...]] = {
    m.MetadataResponse: (JsonField("peers", _peers_json, "peers", _read_peers),),
    m.AppendRequest: (JsonField("body", _bodies_json, "bodies", _read_bodies),),
    m.GetRequest: (JsonField("maxSize", lambda _: b"0"),),
    m.GetResponse: (JsonField("entries", _get_entries_json, "entries", _read_get_entries),),
    m.VoteResponse: (_enum("voteResult", "vote_result", VoteResult, VoteResult.UNKNOWN, _OLD_VOTE_RESULTS),),
    m.PushRequest: (
        JsonField("batch", lambda request: b"true" if _is_batch(request) else b"false"),
        JsonField("batchEntry", _push_batch),
        JsonField("count", lambda request: b"%d" % _count(request)),
        JsonField("entry", _push_entry),
        JsonField("firstEntryIndex", lambda request: b"%d" % (request.first_index if _count(request) else -1)),
        JsonField("lastEntryIndex", lambda request: b"%d" % (request.last_index if _count(request) else -1)),
        # Java adds up the sizes of batches only.
        JsonField("totalSize", lambda request: b"%d" % (len(request.data) if _is_batch(request) else 0)),
        _enum("type", "type", PushType, None, {}),
    ),
}


def _fields(kind: type[WireMessage]) -> list[JsonField]:
    """The fields of a message's JSON."""
    found = {field.key: field for field in (*_COMMON, *_OWN_FORMS.get(kind, ()))}
    for name, wire in wire_fields(kind).items():
        key = camel_case(name)
        if wire.in_json and not wire.to_count and key not in found:
            is_count = wire.format == "I"
            found[key] = _text(key, name) if wire.is_text else _number(key, name, 32 if is_count else 64, is_count)
    return list(found.values())


_FIELDS = {
    kind: _fields(kind)
    for code, request in m.REQUESTS.items()
    if not m.is_extension(code)
    for kind in (request, request.response)
}
_WRITERS: dict[type[WireMessage], list[tuple[bytes, Write]]] = {
    kind: [(f'"{key}":'.encode(), write) for key, write, *_ in sorted(own, key=lambda field: field.key)]
    for kind, own in _FIELDS.items()
}
_READERS: dict[type[WireMessage], list[tuple[str, str, Read]]] = {
    kind: [(field.key, field.attribute, field.read) for field in own if field.attribute and field.read]
    for kind, own in _FIELDS.items()
}
_FINISHERS: dict[type[WireMessage], Callable[[dict[str, Any], dict[str, Any]], None]] = {PushRequest: _finish_push}
