"""Stores for tests, written by Java's rules with the reference codec, and their expected rows.

Plain functions write stores of given payloads; the strategies below them draw payloads, stores and damage. The expected
rows come from what was asked to be written, never from decoding it.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from pyspark_dledger.format import codec, layout, message
from pyspark_dledger.format.columns import ALL_COLUMNS
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from tests.support.log_writer import CommitLogWriter, DLedgerWriter, Written, WrittenFiles
from tests.support.queues import unit_of, write_units

Row = dict[str, Any]

COLUMN_NAMES = tuple(column.name for column in ALL_COLUMNS)
YEAR_1 = -62135596800000
YEAR_10000 = 253402300800000

MAGIC_OF_KIND = {"noop": layout.MAGIC_NOOP, "config": layout.MAGIC_CONFIG_CHANGE}


@dataclass(frozen=True)
class Payload:
    """What to write as one entry or message: its bytes for a given position of the log, and the columns it gives.

    ``expected`` has the message columns; a payload of kind ``entry``, ``noop`` or ``config`` has none.
    """

    kind: str
    make: Callable[[int], bytes] = field(repr=False)
    expected: Callable[[int], Row] = field(repr=False, default=lambda _: {})
    note: str = ""


def raw(body: bytes, kind: str = "entry") -> Payload:
    """An entry whose body is no message."""
    return Payload(kind, lambda _: body, note=f"{kind} {body[:20]!r}")


def host_text(host: tuple[str, int]) -> str:
    """A host as the columns print it."""
    address = ipaddress.ip_address(host[0])
    if isinstance(address, ipaddress.IPv4Address):
        return f"{address}:{host[1]}"
    mapped = f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else address.compressed
    return f"[{mapped}]:{host[1]}"


def compress(body: bytes, kind: str) -> bytes:
    """A body as RocketMQ's compressors write it."""
    if kind == "zlib":
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


COMPRESSION_BITS = {"none": 0, "legacy": 0x1, "lz4": 0x101, "zstd": 0x201, "zlib": 0x301}


def mq_message(
    topic: str = "TopicTest",
    body: bytes | Callable[[int], bytes] = b"hello",
    *,
    properties: Sequence[tuple[str, str]] = (),
    trailing_separator: bool = True,
    compressed: str = "none",
    transaction: str = "none",
    other_flags: int = 0,
    born_host: tuple[str, int] = ("127.0.0.1", 4321),
    store_host: tuple[str, int] = ("127.0.0.1", 10911),
    born_timestamp: int = 1700000000000,
    store_timestamp: int = 1700000000137,
    queue_id: int = 0,
    queue_offset: int = 0,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    magic: int | None = None,
    property_crc: bool = False,
) -> Payload:
    """A CommitLog message. A callable ``body`` gets the message's position and must always give as many bytes."""
    sys_flag = other_flags | COMPRESSION_BITS[compressed]
    sys_flag |= {"none": 0, "prepared": 0x4, "commit": 0x8, "rollback": 0xC}[transaction]
    codec_of_body = {"legacy": "zlib"}.get(compressed, compressed)
    pairs = b"\x02".join(key.encode() + b"\x01" + value.encode() for key, value in properties)
    if pairs and (trailing_separator or property_crc):
        pairs += b"\x02"

    def body_at(position: int) -> bytes:
        # A compressed body must not change its length with the position.
        return body(position if compressed == "none" else 0) if callable(body) else body

    def stored_at(position: int) -> bytes:
        plain = body_at(position)
        return plain if compressed == "none" or not plain else compress(plain, codec_of_body)

    def make(position: int) -> bytes:
        return message.encode_message(
            topic.encode(),
            stored_at(position),
            position,
            magic=magic,
            queue_id=queue_id,
            flag=flag,
            queue_offset=queue_offset,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            born_host=message.encode_host(*born_host),
            store_timestamp=store_timestamp,
            store_host=message.encode_host(*store_host),
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            properties=pairs,
            property_crc=property_crc,
        )

    def expected(position: int) -> Row:
        known = dict(properties)
        if property_crc:
            crc = zlib.crc32(make(position)[:-20]) & 0x7FFFFFFF
            known["__CRC32#"] = f"{crc:010}"[::-1]
        store_address = ipaddress.ip_address(store_host[0]).packed
        v6 = 0x10 * (":" in born_host[0]) + 0x20 * (":" in store_host[0])
        return {
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": queue_offset,
            "commitLogOffset": position,
            "storeSize": len(make(position)),
            "messageMagic": magic or (-626843481 if len(topic.encode()) <= 127 else -626843477),
            "flag": flag,
            "sysFlag": sys_flag | v6,
            "reconsumeTimes": reconsume_times,
            "bornTimestamp": _micros(born_timestamp),
            "storeTimestamp": _micros(store_timestamp),
            "bornHost": host_text(born_host),
            "storeHost": host_text(store_host),
            "messageCrc": zlib.crc32(stored_at(position)) & 0x7FFFFFFF,
            "preparedTransactionOffset": prepared_transaction_offset,
            "transaction": transaction,
            "compression": codec_of_body,
            "tags": known.get("TAGS"),
            "keys": known.get("KEYS"),
            "uniqKey": known.get("UNIQ_KEY"),
            "offsetMsgId": (
                store_address + store_host[1].to_bytes(4, "big", signed=True) + position.to_bytes(8, "big")
            ).hex().upper(),
            "properties": list(known.items()),
            "body": body_at(position),
            "problem": _timestamp_problem(born_timestamp, store_timestamp),
        }  # fmt: skip

    return Payload("message", make, expected, note=f"message {topic[:20]!r}")


def _micros(millis: int) -> int | None:
    return millis * 1000 if YEAR_1 <= millis < YEAR_10000 else None


def _timestamp_problem(born: int, store: int) -> str | None:
    for name, millis in (("born", born), ("store", store)):
        if _micros(millis) is None:
            return f"expected {name}Timestamp within years 1 to 9999, found {millis} ms"
    return None


def entries_at(position: int, count: int = 3, body: bytes = b"not really an entry") -> bytes:
    """A log of DLedger entries that name the position at which they stand, as a body that looks like one holds."""
    size = layout.ENTRY_HEADER_SIZE + len(body)
    return b"".join(codec.encode_entry(index + 5, 1, position + index * size, body) for index in range(count))


def messages_at(position: int, count: int = 3) -> bytes:
    """Messages that name the position at which they stand."""
    log = b""
    for number in range(count):
        log += message.encode_message(b"Inner", b"inner %d" % number, position + len(log))
    return log


@dataclass
class Store:
    """A store on disk: the folder to open, its segments, and every row up to the logical end."""

    path: Path
    segments: list[Segment] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    end: int = 0
    """Log position after the last entry or message."""

    def rows_of(self, segment: Segment) -> list[Row]:
        return [row for row in self.rows if segment.base <= row["pos"] < segment.end]


def write_dledger(
    root: Path,
    payloads: Sequence[Payload],
    *,
    node: str = "n0",
    file_size: int = 4096,
    index_file_size: int = 32 * 64,
    base: int = 0,
    first_index: int = 0,
    terms: Sequence[int] | None = None,
    committed: int | None = None,
    checkpoint: bool = True,
    with_index: bool = True,
    leading_blank: int = 0,
    stale: Callable[[int], bytes] | None = None,
    check_pos: bool = True,
    pos_shift: int = 0,
) -> Store:
    """Writes ``root/dledger-<node>/{data,index,checkpoint,currterm}`` as Java 0.3.1.2 does; nothing exceeds a file.

    ``base`` is the first file's position, ``terms`` has a term for each payload, ``committed`` goes to the checkpoint
    (last index if None). ``stale`` gives the bytes of a file before anything is written to it, for its position.
    ``leading_blank`` and ``pos_shift`` (pos in headers less than where the entry stands) are 0.4.0's.
    """
    store, folder = Store(root), root / f"dledger-{node}"
    index = folder / "index"
    writer = DLedgerWriter(
        file_size,
        index_file_size // layout.INDEX_UNIT_SIZE,
        base,
        first_index,
        leading_blank,
        pos_shift,
        stale,
        lambda at: (index / f"{at:020}").read_bytes() if (index / f"{at:020}").exists() else b"",
    )
    terms = terms or [1] * len(payloads)
    for payload, term in zip(payloads, terms, strict=True):
        magic = MAGIC_OF_KIND.get(payload.kind, layout.MAGIC_NORMAL)
        store.rows.append(_entry_row(payload, writer.append(payload.make, term, magic), magic, writer.data))
    writer.data.save(folder / "data")
    store.segments = [Segment.local(*file, DLEDGER, check_pos) for file in _files(folder / "data", writer.data)]
    store.end = writer.at

    last = first_index + len(payloads) - 1
    if with_index:
        writer.index.save(index)
    if checkpoint:
        text = f"committedIndex={last if committed is None else committed}\nendIndex={last}\n"
        (folder / "checkpoint").write_text(text)
    (folder / "currterm").write_text(f"voteLeader={node}\ncurrTerm={max(terms, default=0)}\n")
    return store


def _files(folder: Path, files: WrittenFiles) -> list[tuple[str, str, int, int]]:
    """Path, name, base and size of each file."""
    return [(str(folder / f"{base:020}"), f"{base:020}", base, files.size) for base in sorted(files.files)]


def _entry_row(payload: Payload, entry: Written, magic: int, files: WrittenFiles) -> Row:
    pos, size, index, term = entry
    body = payload.make(pos + layout.ENTRY_HEADER_SIZE)
    row = dict.fromkeys(COLUMN_NAMES)
    row |= {
        "kind": payload.kind,
        "source": DLEDGER,
        "index": index,
        "term": term,
        "pos": pos,
        "size": size,
        "magic": magic,
        "channel": 0,
        "chainCrc": 0,
        "bodyCrc": 0,
        "bodySize": len(body),
        "segment": f"{files.base_of(pos):020}",
        "body": body,
        "entryBody": body,
    }
    return row | payload.expected(pos + layout.ENTRY_HEADER_SIZE)


def write_commitlog(
    root: Path,
    payloads: Sequence[Payload],
    *,
    file_size: int = 4096,
    base: int = 0,
    stale: Callable[[int], bytes] | None = None,
) -> Store:
    """Writes ``root/commitlog`` as a plain broker does; payloads are `mq_message` ones."""
    store, folder = Store(root), root / "commitlog"
    writer = CommitLogWriter(file_size, base, stale)
    for payload in payloads:
        pos, size, *_ = writer.append(payload.make)
        row: Row = dict.fromkeys(COLUMN_NAMES)
        row |= {"kind": "message", "source": COMMITLOG, "pos": pos, "size": size, "committed": True}
        row |= {"segment": f"{writer.data.base_of(pos):020}", "entryBody": payload.make(pos)} | payload.expected(pos)
        store.rows.append(row)
    writer.data.save(folder)
    store.segments = [Segment.local(*file, COMMITLOG) for file in _files(folder, writer.data)]
    store.end = writer.at
    return store


def write_consume_queue(root: Path, rows: Iterable[Row], file_size: int = 20 * 100) -> None:
    """Writes ``root/consumequeue``: a unit for each message row, at its queueOffset."""
    write_units(root, [unit_of(row) for row in rows if row["kind"] == "message"], file_size)


# Strategies.

HOSTS = st.tuples(
    st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.sampled_from(["::", "::1", "1::", "2001:db8::1:0:0:1", "0:0:1::1", "::ffff:10.1.2.3", "1:2:3:4:5:6:7:8"]),
    ),
    st.integers(-(2**31), 2**31 - 1),
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), min_size=1, max_size=12)
_NAMES = st.one_of(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "WAIT"]), _TEXT)
_LONGS = st.integers(-(2**63), 2**63 - 1)
_INTS = st.integers(-(2**31), 2**31 - 1)
_USUAL_TIMESTAMPS = st.integers(1699999999000, 1700000001000)
_TIMESTAMPS = st.one_of(
    *[_USUAL_TIMESTAMPS] * 6,
    st.sampled_from([0, -1, YEAR_1 - 1, YEAR_1, YEAR_10000 - 1, YEAR_10000, 2**63 - 1, -(2**63)]),
)
BODIES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=4), st.integers(1, 100)),
)


def _constant(data: bytes) -> Callable[[int], bytes]:
    return lambda _: data


def _header_at(at: int) -> bytes:
    return codec.encode_entry(7, 1, at, bytes(100))[: layout.ENTRY_HEADER_SIZE]


_SIZES = st.integers(0, 200)
_LOOK_ALIKES: st.SearchStrategy[Callable[[int], bytes]] = st.one_of(
    st.binary(max_size=9).map(_constant),
    _SIZES.map(codec.encode_blank).map(_constant),
    _SIZES.map(lambda size: size.to_bytes(4, "big") + b"\xcb\xd4\x31\x94").map(_constant),
    st.sampled_from([entries_at, messages_at, _header_at, _constant(b"\xff" * 12), _constant(b"\0\0\0\1" * 12)]),
)


@st.composite
def embedded_bodies(draw: st.DrawFn) -> Callable[[int], bytes]:
    """Bodies that look like entries, messages and blanks whose positions are right, with junk before and between."""
    parts = draw(st.lists(_LOOK_ALIKES, min_size=1, max_size=3))

    def make(at: int) -> bytes:
        data = b""
        for part in parts:
            data += part(at + len(data))
        return data

    return make


@st.composite
def mq_messages(draw: st.DrawFn, in_commitlog: bool = False) -> Payload:
    """Messages with all features; `__CRC32#` only where plain brokers write it."""
    topic = draw(
        st.one_of(st.sampled_from(["A", "OrderTopic", "标题"]), st.text("abcXYZ-_%", min_size=1, max_size=255))
    )
    return mq_message(
        topic,
        draw(st.one_of(BODIES, st.just(b""), embedded_bodies().map(_behind_ipv4_hosts))),
        properties=draw(st.lists(st.tuples(_NAMES, _TEXT), max_size=5)),
        trailing_separator=draw(st.booleans()),
        compressed=draw(st.sampled_from(["none", "none", *COMPRESSION_BITS])),
        transaction=draw(st.sampled_from(["none", "prepared", "commit", "rollback"])),
        other_flags=draw(st.sampled_from([0, 0x2, 0x40, 0x80, 0x400000])),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
        born_timestamp=draw(_TIMESTAMPS),
        store_timestamp=draw(_TIMESTAMPS),
        queue_id=draw(st.integers(0, 3)),
        queue_offset=draw(_LONGS),
        flag=draw(_INTS),
        reconsume_times=draw(_INTS),
        prepared_transaction_offset=draw(_LONGS),
        magic=draw(st.sampled_from([None, layout.MESSAGE_MAGIC_V2])),
        property_crc=in_commitlog and draw(st.booleans()),
    )


def _behind_ipv4_hosts(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """A message's body of look-alikes, which stand where they say if the hosts are IPv4."""
    return lambda position: make(position + layout.MIN_MESSAGE_SIZE - 3)


def entry_payloads() -> st.SearchStrategy[Payload]:
    """What DLedger entries hold."""
    return st.one_of(
        BODIES.map(raw),
        embedded_bodies().map(lambda make: Payload("entry", _no_message(make))),
        mq_messages(),
        st.sampled_from([raw(b"", "noop"), raw(b"", "config"), raw(b"\0\3peers", "config"), raw(b"")]),
    )


def _no_message(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """A body that begins with a message would be one."""
    return lambda position: b"." + make(position + 1)


@dataclass(frozen=True)
class Recipe:
    """How to write a store; `write` does it, as often as wanted."""

    source: str
    payloads: list[Payload]
    options: dict[str, Any]

    def write(self, root: Path) -> Store:
        write = write_dledger if self.source == DLEDGER else write_commitlog
        return write(root, self.payloads, **self.options)


@st.composite
def recipes(draw: st.DrawFn, max_entries: int = 25) -> Recipe:
    """Stores of both sources with small files, blanks, stale bytes and terms that grow."""
    in_commitlog = draw(st.booleans())
    payloads = draw(st.lists(mq_messages(True) if in_commitlog else entry_payloads(), max_size=max_entries))
    longest = max((len(payload.make(0)) for payload in payloads), default=0) + 48 + 8
    file_size = draw(st.integers(longest, max(4 * longest, 8192)))
    options: dict[str, Any] = {"file_size": file_size, "base": draw(st.sampled_from([0, file_size, 7 * file_size]))}
    if draw(st.booleans()):
        # Any of these may stand in the rest of a blank, and none there may become a row.
        options["stale"] = lambda start: (messages_at if in_commitlog else entries_at)(start, 60)
    if in_commitlog:
        return Recipe(COMMITLOG, payloads, options)
    steps = draw(st.lists(st.integers(0, 1), min_size=len(payloads), max_size=len(payloads)))
    term = draw(st.sampled_from([-1, 0, 1]))
    options["terms"] = [term := term + step for step in steps]
    options["first_index"] = draw(st.sampled_from([0, 1, 2**40]))
    options["with_index"] = False
    if draw(st.booleans()):
        options |= {"check_pos": False, "pos_shift": draw(st.integers(0, 100))}
    return Recipe(DLEDGER, payloads, options)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[Store], None]:
    """Something that happens to the files of a store: flipped bits, zeros, noise, wrong fields, truncation."""
    actions = draw(st.lists(_damage_actions(), max_size=4))

    def apply(store: Store) -> None:
        for share, offset, action in actions:
            if not store.segments:
                return
            segment = store.segments[int(share * len(store.segments))]
            rows = store.rows_of(segment)
            row = rows[int(share * 7919 % 1 * len(rows))] if rows else {"pos": segment.base}
            path = Path(segment.path)
            content = bytearray(path.read_bytes())
            at = max(0, min(row["pos"] - segment.base + offset, len(content)))
            action(content, at)
            path.write_bytes(content)

    return apply


def _damage_actions() -> st.SearchStrategy[tuple[float, int, Callable[[bytearray, int], None]]]:
    def overwrite(data: bytes) -> Callable[[bytearray, int], None]:
        def action(content: bytearray, at: int) -> None:
            end = min(at + len(data), len(content))
            content[at:end] = data[: end - at]

        return action

    def flip(bit: int) -> Callable[[bytearray, int], None]:
        def action(content: bytearray, at: int) -> None:
            if at < len(content):
                content[at] ^= 1 << bit

        return action

    def truncate(content: bytearray, at: int) -> None:
        del content[at:]

    numbers = st.one_of(st.integers(-300, 300), st.sampled_from([2**31 - 1, -(2**31), 48, 91]), _INTS)
    actions = st.one_of(
        st.integers(0, 7).map(flip),
        st.binary(min_size=1, max_size=64).map(overwrite),
        st.integers(1, 5000).map(lambda size: overwrite(bytes(size))),
        numbers.map(lambda number: overwrite(number.to_bytes(4, "big", signed=True))),
        numbers.map(lambda number: overwrite(codec.encode_blank(number))),
        numbers.map(lambda number: overwrite(number.to_bytes(4, "big", signed=True) + b"\xcb\xd4\x31\x94")),
        st.just(truncate),
    )
    offsets = st.one_of(st.integers(0, 120), st.sampled_from([0, 4, 8, 16, 24, 44, 48, 52, 76, 84, 132]))
    return st.tuples(st.floats(0, 1, exclude_max=True), offsets, actions)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of batches as they compare with expected ones: timestamps in microseconds, maps as pairs."""
    rows: list[Row] = []
    for batch in batches:
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            columns[name] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows
