"""Rows become puts, puts become entries: RocketMQ's bytes, identities that a retry repeats, and nothing is believed."""

from __future__ import annotations

import base64
import hashlib
import mmap
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.format.encode.puts import PutIds, Puts, PutSettings, producer_of
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import (
    Message,
    encode_host,
    encode_message,
    encode_properties,
    parse_message,
    parse_properties,
)
from pyspark_dledger.format.murmur3 import murmur128
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.log import open_log
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.golden import ALL, Golden

NATIVE, PYTHON = get_engine("native"), get_engine("python")
PRODUCER = producer_of("job", 0)
V4, V6 = encode_host("10.1.2.3", 10911), encode_host("2001:db8::1", 10911)
QUEUES = {"T": 4, "U": 3, "t%|_-9": 1, "V" * 127: 2, "W" * 128: 2, "X" * 255: 2, layout.SCHEDULE_TOPIC: 18}
BORN = 1_700_000_000_123

Row = dict[str, Any]

unhurried = settings(deadline=None)  # a busy machine is no failure


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as a batch of the columns that any of them has."""
    names = [name for name in PUT_SCHEMA.names if any(name in row for row in rows)]
    arrays = [pa.array([row.get(name) for row in rows], PUT_SCHEMA.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def settings_of(**changes: Any) -> PutSettings:
    return PutSettings(PRODUCER, BORN, V4, V4, QUEUES)._replace(**changes)


def answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, or its error as the kind and the text."""
    try:
        return call(*arguments)
    except (ValueError, TypeError) as error:
        return type(error).__name__, str(error)


def encode(rows: Sequence[Row] | pa.RecordBatch, **changes: Any) -> Any:
    """What both engines make of rows, one after the other and from the beginning."""
    batch = rows if isinstance(rows, pa.RecordBatch) else batch_of(rows)
    made = [
        answer(engine.encode_messages, batch, settings_of(**changes), engine.new_ordinals())
        for engine in (NATIVE, PYTHON)
    ]
    assert made[0] == made[1]
    return made[0]


def messages_of(bodies: Bodies) -> list[tuple[bytes, Message]]:
    found = []
    for body in PYTHON.unpack_bodies(bodies):
        message = parse_message(body, 0, len(body), 0)
        assert isinstance(message, Message)
        found.append((body, message))
    return found


def topic_of(body: bytes, message: Message) -> str:
    return body[message.topic_start :][: message.topic_length].decode()


def raw_properties_of(body: bytes, message: Message) -> bytes:
    return body[message.properties_start :][: message.properties_length]


def properties_of(body: bytes, message: Message) -> dict[str, str]:
    return parse_properties(raw_properties_of(body, message))


def one(row: Row, **changes: Any) -> tuple[bytes, Message]:
    return messages_of(encode([row], **changes))[0]


def read(bodies: Bodies) -> Any:
    """What both engines read of puts."""
    found = [answer(engine.read_puts, bodies) for engine in (NATIVE, PYTHON)]
    for puts in found:
        if isinstance(puts, Puts):
            assert (puts.queue.dtype, puts.sys_flag.dtype, puts.has_id.dtype) == (np.int32, np.int32, np.bool_)
    plain = [
        Puts(p.queues, p.queue.tolist(), p.sys_flag.tolist(), p.ids, p.has_id.tolist()) if isinstance(p, Puts) else p
        for p in found
    ]
    assert plain[0] == plain[1]
    return plain[0]


def stamp(bodies: Bodies, keep: Sequence[bool], offsets: Sequence[int], time: int, host: bytes) -> Any:
    arrays = np.array(keep, np.bool_), np.array(offsets, np.int64)
    stamped = [answer(engine.stamp_puts, bodies, *arrays, time, host) for engine in (NATIVE, PYTHON)]
    assert stamped[0] == stamped[1]
    return stamped[0]


def patched(bodies: Bodies, index: int, pos: int) -> bytes:
    """The bodies as entries, as they stand at a position."""
    results = []
    for engine in (NATIVE, PYTHON):
        encoded = engine.encode_entries(bodies, 0, index, 1, pos, 2**40)
        engine.patch_physical_offsets(encoded.data, encoded.units)
        results.append(bytes(encoded.data))
    assert results[0] == results[1]
    return results[0]


def ids_of(bodies: Bodies) -> list[bytes]:
    ids = read(bodies).ids
    return [ids[at : at + 24] for at in range(0, len(ids), 24)]


# What brokers wrote: our bytes are theirs.


def as_row(message: Message, topic: str, body: bytes, properties: dict[str, str]) -> Row:
    return {
        "topic": topic,
        "body": body,
        "queueId": message.queue_id,
        "properties": list(properties.items()),
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "transaction": message.sys_flag & 0xC,
    }


def entry_bodies(folder: Path) -> list[tuple[int, bytes]]:
    """Position and bytes of every entry's body that is a message."""
    found = []
    for path in sorted(folder.rglob("[0-9]" * 20)):
        if path.parent.name != "data":
            continue
        segment = Segment(str(path), path.name, int(path.name), path.stat().st_size, DLEDGER, True)
        request = ScanRequest(segment, segment.base, segment.end, ("kind", "pos", "entryBody"))
        for batch, _ in NATIVE.scan(request):
            found += [(r["pos"] + 48, r["entryBody"]) for r in batch.to_pylist() if r["kind"] == "message"]
    return found


def is_like_a_put(message: Message, raw: bytes) -> bool:
    """Whether a producer's send alone can have made it: nothing was retried, committed at an offset or compressed."""
    is_fresh = message.reconsume_times == 0 and message.prepared_transaction_offset == 0
    written = encode_properties(parse_properties(raw))
    return is_fresh and message.sys_flag & ~0x3C == 0 and raw in (written, written[:-1])


MESSAGE_STORES = ("mq-498-single", "mq-53-single", "mq-53-upgrade")


@pytest.mark.parametrize("case", MESSAGE_STORES)
def test_messages_are_the_bytes_that_brokers_wrote(case: str, case_folder: Callable[[str], Path]) -> None:
    queues = Counter[str]()
    compared = 0
    for pos, body in entry_bodies(case_folder(case))[:500]:
        message = parse_message(body, 0, len(body), 0)
        assert isinstance(message, Message)
        topic, raw = topic_of(body, message), raw_properties_of(body, message)
        if not is_like_a_put(message, raw) or (message.topic_length > 127) != (
            message.magic == layout.MESSAGE_MAGIC_V2
        ):
            continue
        stored = body[message.body_start :][: message.body_length]
        queues[topic] = max(queues[topic], message.queue_id + 1)
        bodies = encode(
            [as_row(message, topic, stored, parse_properties(raw))],
            producer=None,
            queue_counts=queues,
            born_host=message.born_host,
            has_trailing_separator=raw.endswith(b"\x02"),
        )
        assert read(bodies).queues == [(topic, message.queue_id)]
        stamped = stamp(bodies, [True], [message.queue_offset], message.store_timestamp, message.store_host)
        assert patched(stamped, 7, pos - 48)[48:] == body
        compared += 1
    assert compared > 100


@pytest.mark.parametrize("case", MESSAGE_STORES)
def test_delayed_messages_are_as_brokers_wrote_them(case: str, case_folder: Callable[[str], Path]) -> None:
    levels = set()
    for _, body in entry_bodies(case_folder(case)):
        message = parse_message(body, 0, len(body), 0)
        assert isinstance(message, Message)
        properties = properties_of(body, message)
        if topic_of(body, message) != layout.SCHEDULE_TOPIC:
            continue
        level, topic, queue_id = (properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID"))
        given = {name: value for name, value in properties.items() if name not in ("DELAY", "REAL_TOPIC", "REAL_QID")}
        row = as_row(message, topic, body[message.body_start :][: message.body_length], given)
        made, ours = one(
            {**row, "queueId": int(queue_id), "delayLevel": int(level)},
            producer=None,
            queue_counts={topic: 16},
            born_host=message.born_host,
            has_trailing_separator=body.endswith(b"\x02"),
        )
        # Only the order of properties differs: Java's is that of a hash map.
        assert properties_of(made, ours) == properties
        assert ours[1:6] == (*message[1:5], 0)
        assert (ours.sys_flag, *ours[8:10]) == (message.sys_flag & ~0x20, *message[8:10])
        assert made[ours.body_start :][: ours.body_length] == row["body"]
        assert (ours.queue_id, topic_of(made, ours)) == (int(level) - 1, layout.SCHEDULE_TOPIC)
        levels.add(int(level))
    assert len(levels) > 5


BROKERS = [golden for golden in ALL if golden.case in MESSAGE_STORES]


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_logs_of_brokers_hold_no_identity(golden: Golden, case_folder: Callable[[str], Path]) -> None:
    for path in case_folder(golden.case).rglob("data/" + "[0-9]" * 20):
        segment = Segment(str(path), path.name, int(path.name), path.stat().st_size, DLEDGER, True)
        for engine in (NATIVE, PYTHON):
            found = engine.put_ids(segment, segment.base, segment.end)
            assert (len(found.index), found.ids, len(found.store_timestamps)) == (0, b"", 0)


# What a row becomes.


def test_a_row_becomes_a_message_as_a_broker_takes_it() -> None:
    body, message = one(
        {
            "topic": "T",
            "body": b"hello",
            "queueId": 2,
            "tags": "paid",
            "keys": "k1 k2",
            "properties": [("b", "1"), ("a", ""), ("none", None)],
            "flag": -7,
            "bornTimestamp": -1,
            "transaction": 8,
        }
    )
    assert message[:10] == (len(body), layout.MESSAGE_MAGIC_V1, 0x3610A686, 2, -7, 0, 0, 8, -1, V4)
    assert (message.store_timestamp, message.store_host, message.reconsume_times) == (0, V4, 0)
    assert (message.prepared_transaction_offset, body[message.body_start :][:5]) == (0, b"hello")
    raw = raw_properties_of(body, message)
    assert raw[: raw.index(b"__")] == b"b\x011\x02a\x01\x02KEYS\x01k1 k2\x02TAGS\x01paid\x02"
    assert raw[raw.index(b"__") :][:13] == b"__DLEDGER_ID\x01"
    assert raw[-1:] == b"\x02"


def test_what_a_row_leaves_out_is_filled_in() -> None:
    body, message = one({"topic": "U"}, round_robin=7)
    assert (message.queue_id, message.flag, message.sys_flag, message.born_timestamp) == (1, 0, 0, BORN)
    assert (message.body_length, message.body_crc) == (0, 0)
    assert list(properties_of(body, message)) == ["__DLEDGER_ID"]
    body, message = one({"topic": "U"}, producer=None)
    assert message.properties_length == 0
    assert len(body) == layout.MIN_MESSAGE_SIZE + 1


@pytest.mark.parametrize(("length", "magic", "width"), [(127, "V1", 1), (128, "V2", 2), (255, "V2", 2)])
def test_long_topics_are_of_version_2(length: int, magic: str, width: int) -> None:
    topic = {127: "V", 128: "W", 255: "X"}[length] * length
    body, message = one({"topic": topic, "body": b"b"}, producer=None)
    assert message.magic == getattr(layout, f"MESSAGE_MAGIC_{magic}")
    assert topic_of(body, message) == topic
    assert len(body) == 90 + width + length + 1


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
def test_hosts_have_their_widths(born: bytes, store: bytes) -> None:
    body, message = one({"topic": "T", "transaction": 12}, born_host=born, store_host=store, producer=None)
    assert (message.born_host, message.store_host) == (born, store)
    assert message.sys_flag == 12 | 16 * (born == V6) | 32 * (store == V6)
    assert len(body) == 76 + len(born) + len(store)


def test_separators_end_properties_where_the_version_writes_them() -> None:
    row = {"topic": "T", "properties": [("a", "b")]}
    for producer in (PRODUCER, None):
        with_it, its = one(row, producer=producer)
        without, ours = one(row, producer=producer, has_trailing_separator=False)
        assert raw_properties_of(with_it, its) == raw_properties_of(without, ours) + b"\x02"


@pytest.mark.parametrize(
    ("level", "transaction", "expected"),
    [
        (1, 0, ("SCHEDULE_TOPIC_XXXX", 0, {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"})),
        (18, 8, ("SCHEDULE_TOPIC_XXXX", 17, {"DELAY": "18", "REAL_TOPIC": "T", "REAL_QID": "3"})),
        (99, 0, ("SCHEDULE_TOPIC_XXXX", 17, {"DELAY": "18", "REAL_TOPIC": "T", "REAL_QID": "3"})),
        (99, 4, ("T", 3, {"DELAY": "99"})),
        (2, 12, ("T", 3, {"DELAY": "2"})),
        (0, 0, ("T", 3, {})),
        (None, 0, ("T", 3, {})),
    ],
)
def test_a_delayed_message_waits_in_the_queue_of_its_level(
    level: int | None, transaction: int, expected: tuple[str, int, dict[str, str]]
) -> None:
    row = {"topic": "T", "queueId": 3, "delayLevel": level, "transaction": transaction}
    body, message = one(row, producer=None)
    assert (topic_of(body, message), message.queue_id, properties_of(body, message)) == expected
    assert message.sys_flag == transaction


def test_rows_of_the_topic_of_delays_are_written_as_they_are() -> None:
    properties = [("DELAY", "3"), ("REAL_TOPIC", "T"), ("REAL_QID", "1")]
    body, message = one({"topic": layout.SCHEDULE_TOPIC, "queueId": 2, "properties": properties}, producer=None)
    assert (topic_of(body, message), message.queue_id) == (layout.SCHEDULE_TOPIC, 2)
    assert list(properties_of(body, message).items()) == properties


def test_queues_are_given_or_by_keys_or_in_turn() -> None:
    # "polygenelubricants".hashCode() is -2^31, "paid".hashCode() 3433164.
    rows: list[Row] = [
        {"topic": "T", "queueId": 3, "keys": "paid"},
        {"topic": "U", "keys": "paid"},
        {"topic": "U", "keys": "polygenelubricants"},
        {"topic": "U", "properties": [("KEYS", "paid")]},
        *({"topic": topic, "keys": keys} for topic in ("T", "U") for keys in (None, "", None, None, None)),
    ]
    found = [message.queue_id for _, message in messages_of(encode(rows, round_robin=6))]
    assert found == [3, 3433164 % 3, 2**31 % 3, 3433164 % 3, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1]


# Identities.


def test_an_identity_is_what_it_has_been() -> None:
    row = {
        "topic": "T",
        "body": b"hello",
        "tags": "t",
        "keys": "k",
        "properties": [("a", "b"), ("c", None)],
        "flag": 1,
        "bornTimestamp": 2,
        "transaction": 4,
        "delayLevel": 5,
        "queueId": 1,
    }
    content = b"\x02\0\0\0T" + b"\x06\0\0\0" + bytes(16) + murmur128(b"hello") + b"\x02\0\0\0t" + b"\x02\0\0\0k"
    content += b"\x03\0\0\0" + b"\x02\0\0\0a" + b"\x02\0\0\0b" + b"\x02\0\0\0c" + bytes(4)
    content += b"".join(b"\x01" + struct.pack("<q", number) for number in (1, 2, 4, 5, 1))
    for ordinal, identity in enumerate(ids_of(encode([row, row]))):
        assert identity == PRODUCER + murmur128(murmur128(content) + struct.pack("<Q", ordinal))
    assert hashlib.blake2b(b"job\x000").digest()[:8] == PRODUCER
    body, message = one(row)
    text = properties_of(body, message)["__DLEDGER_ID"]
    assert base64.urlsafe_b64decode(text) == ids_of(encode([row]))[0]
    assert text == "nnCo7mtFtxpvbn7zAFzR9z9Gok0YW-tB"


def test_hashes_are_those_of_the_algorithm() -> None:
    # Of the reference implementation, MurmurHash3_x64_128.
    assert murmur128(b"") == bytes(16)
    assert murmur128(b"foo") == (168394135621993849475852668931176482145).to_bytes(16, "little")
    assert (
        murmur128(b"The quick brown fox jumps over the lazy dog")
        == bytes.fromhex("e34bbc7bbc071b6c")[::-1] + bytes.fromhex("7a433ca9c49a9347")[::-1]
    )


def some_rows() -> list[Row]:
    return [
        {"topic": topic, "body": body, "keys": keys, "tags": tags}
        for topic in ("T", "U")
        for body in (None, b"", b"x", b"y" * 1000)
        for keys in (None, "", "k")
        for tags in ("a", "a", None)
    ]


def test_a_retry_gives_the_same_identities_in_any_order() -> None:
    rows = some_rows()
    first = ids_of(encode(rows))
    assert len(set(first)) == len(rows)
    assert sorted(ids_of(encode(rows[::-1]))) == sorted(first)
    assert ids_of(encode(rows, born_timestamp=5, born_host=V6, store_host=V6, round_robin=3)) == first
    assert ids_of(encode(rows, queue_counts={"T": 9, "U": 9}, has_trailing_separator=False)) == first


@pytest.mark.parametrize("name", ["native", "python"])
def test_ordinals_go_on_from_batch_to_batch(name: str) -> None:
    engine, rows = get_engine(name), some_rows()
    whole = ids_of(engine.encode_messages(batch_of(rows), settings_of(), engine.new_ordinals()))
    ordinals = engine.new_ordinals()
    parts = [engine.encode_messages(batch_of(rows[at : at + 7]), settings_of(), ordinals) for at in range(0, 72, 7)]
    assert [identity for part in parts for identity in ids_of(part)] == whole
    assert len(ordinals) == 48


def test_other_jobs_and_partitions_have_other_identities() -> None:
    rows = [{"topic": "T"}, {"topic": "T"}]
    producers = [producer_of(job, partition) for job in ("job", "other") for partition in (0, 1)]
    ids = [identity for producer in producers for identity in ids_of(encode(rows, producer=producer))]
    assert len(set(ids)) == 8
    assert [identity[:8] for identity in ids[::2]] == producers


def test_every_value_that_is_given_counts() -> None:
    rows: list[Row] = [
        {"topic": "T"},
        {"topic": "U"},
        {"topic": "T", "body": b""},
        {"topic": "T", "body": b"a"},
        {"topic": "T", "tags": ""},
        {"topic": "T", "tags": "a"},
        {"topic": "T", "keys": ""},
        {"topic": "T", "keys": "a"},
        {"topic": "T", "properties": []},
        {"topic": "T", "properties": [("a", None)]},
        {"topic": "T", "properties": [("a", "b")]},
        {"topic": "T", "properties": [("a", "b"), ("c", "d")]},
        {"topic": "T", "properties": [("c", "d"), ("a", "b")]},
        *({"topic": "T", name: 0} for name in ("queueId", "flag", "bornTimestamp", "transaction", "delayLevel")),
        {"topic": "T", "flag": 1},
        {"topic": "T", "bornTimestamp": BORN},
        {"topic": "T", "queueId": 1},
    ]
    for engine in (NATIVE, PYTHON):
        ordinals = engine.new_ordinals()
        engine.encode_messages(batch_of(rows), settings_of(), ordinals)
        assert len(ordinals) == len(rows)


def test_many_contents_are_counted() -> None:
    rows = [{"topic": "T", "flag": number * number % 1709} for number in range(5000)]
    ids = ids_of(encode(rows))
    assert len(set(ids)) == 5000


# Batches of every shape.


def test_slices_are_their_rows() -> None:
    rows = [
        {
            "topic": "TU"[number % 2],
            "body": None if number % 5 == 0 else bytes([number]) * number,
            "queueId": None if number % 3 else number % 3,
            "tags": None if number % 7 == 0 else f"t{number}",
            "keys": None if number % 4 == 0 else f"k{number}",
            "properties": None if number % 6 == 0 else [(f"p{at}", f"v{number}") for at in range(number % 4)],
            "flag": number if number % 2 else None,
            "bornTimestamp": number if number % 8 else None,
            "transaction": 8 if number % 9 == 0 else None,
            "delayLevel": number % 3 if number % 10 else None,
        }
        for number in range(60)
    ]
    batch = batch_of(rows)
    whole = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
    for start, count in [(0, 60), (1, 59), (9, 17), (33, 1), (59, 1)]:
        expected = encode(rows[start : start + count])
        assert encode(batch.slice(start, count)) == expected
        assert encode(batch.slice(start).slice(0, count)) == expected
        assert encode(pa.RecordBatch.from_struct_array(whole.slice(start, count))) == expected


def test_columns_come_in_any_order_and_number() -> None:
    rows = [{"topic": "T", "body": b"b", "flag": 3}]
    batch = batch_of(rows)
    assert encode(batch.select(["flag", "topic", "body"])) == encode(rows)


def test_columns_of_a_map_may_be_slices_themselves() -> None:
    names = pa.array(["drop", "a", "b", "c"])[1:]
    values = pa.array(["x", "drop", "1", None, "3"])[2:]
    maps = pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), names, values)
    batch = pa.record_batch([pa.array(["T", "T"]), maps], names=["topic", "properties"])
    rows = [{"topic": "T", "properties": [("a", "1"), ("b", None)]}, {"topic": "T", "properties": [("c", "3")]}]
    assert encode(batch) == encode(rows)


# What is no message.


BAD_ROWS: list[tuple[Row, str]] = [
    ({"topic": None}, "expected a topic, found null: set one in every row, or one for all rows"),
    ({"topic": ""}, "expected a topic of 1 to 255 characters, found 0: choose another name"),
    ({"topic": "a" * 256}, "expected a topic of 1 to 255 characters, found 256: choose another name"),
    ({"topic": "a b"}, "expected a topic of %|a-zA-Z0-9_-, found byte 32 in it: choose another name"),
    ({"topic": "ä"}, "expected a topic of %|a-zA-Z0-9_-, found byte 195 in it: choose another name"),
    ({"topic": "unknown"}, "expected the number of queues of topic unknown, found none: request it from the leader"),
    (
        {"topic": "U", "queueId": 3},
        "expected a queueId from 0 to 2, found 3: add queues to the topic, or leave queueId null",
    ),
    (
        {"topic": "U", "queueId": -1},
        "expected a queueId from 0 to 2, found -1: add queues to the topic, or leave queueId null",
    ),
    ({"topic": "T", "transaction": 5}, "expected transaction 0, 4, 8 or 12, found 5: 0 is none"),
    ({"topic": "T", "transaction": -4}, "expected transaction 0, 4, 8 or 12, found -4: 0 is none"),
    ({"topic": "T", "delayLevel": -1}, "expected a delayLevel of at least 0, found -1: 0 is none"),
    (
        {"topic": "T", "properties": [("", "v")]},
        "expected a property with a name, found an empty name: remove the property",
    ),
    (
        {"topic": "T", "properties": [("a\x01", "v")]},
        "expected no character 1 or 2 in the name of a property, found one: these separate properties",
    ),
    (
        {"topic": "T", "properties": [("a", "1234567\x02")]},
        "expected no character 1 or 2 in the value of a property, found one: these separate properties",
    ),
    (
        {"topic": "T", "tags": "a\x02"},
        "expected no character 1 or 2 in the value of a property, found one: these separate properties",
    ),
    (
        {"topic": "T", "keys": "größer\x01"},
        "expected no character 1 or 2 in the value of a property, found one: these separate properties",
    ),
    (
        {"topic": "T", "properties": [("a", "1"), ("a", "2")]},
        "expected property a once, found it twice: set it in properties or in its own column, not in both",
    ),
    (
        {"topic": "T", "properties": [(f"p{number % 19}", "1") for number in range(20)]},
        "expected property p0 once, found it twice: set it in properties or in its own column, not in both",
    ),
    (
        {"topic": "T", "properties": [("TAGS", "1")], "tags": "2"},
        "expected property TAGS once, found it twice: set it in properties or in its own column, not in both",
    ),
    (
        {"topic": "T", "properties": [("KEYS", "1")], "keys": "2"},
        "expected property KEYS once, found it twice: set it in properties or in its own column, not in both",
    ),
    (
        {"topic": "T", "properties": [("REAL_TOPIC", "1")], "delayLevel": 2},
        "expected property REAL_TOPIC once, found it twice: set it in properties or in its own column, not in both",
    ),
    (
        {"topic": "T", "properties": [("nul\0", "1"), ("nul\0", "2")]},
        "expected property nul\0 once, found it twice: set it in properties or in its own column, not in both",
    ),
    (
        {"topic": "T", "properties": [("__DLEDGER_ID", "1")]},
        "expected no property __DLEDGER_ID, found one: remove it, messages get their own",
    ),
    (
        {"topic": "T", "properties": [("DELAY", "1")]},
        "expected no property DELAY, found one: use the column delayLevel",
    ),
    (
        {"topic": "T", "tags": "a" * 32716},
        "expected at most 32767 bytes of properties, found 32768: move long values into the body",
    ),
    (
        {"topic": "T", "body": bytes(MAX_BODY_SIZE - 92 - 45)},
        f"expected a message of at most {MAX_BODY_SIZE} bytes, found {MAX_BODY_SIZE + 1}: shorten or compress the body",
    ),
]


@pytest.mark.parametrize(("row", "text"), BAD_ROWS, ids=[text.split(":")[0][9:60] for _, text in BAD_ROWS])
def test_a_row_that_is_no_message_is_named(row: Row, text: str) -> None:
    assert encode([{"topic": "T"}, row, {"topic": None}]) == ("ValueError", f"row 1: {text}")


def test_the_longest_properties_and_messages_are_taken() -> None:
    _, message = one({"topic": "T", "tags": "a" * 32715})
    assert message.properties_length == 32767
    _, message = one({"topic": "T", "body": bytes(MAX_BODY_SIZE - 92 - 46)})
    assert message.total_size == MAX_BODY_SIZE


def test_text_that_is_not_utf8_is_named() -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<iii", 0, 1, 2)), pa.py_buffer(b"a\xff")]
    )
    for name in ("tags", "keys"):
        batch = pa.record_batch([pa.array(["T", "T"]), bad], names=["topic", name])
        text = "row 1: expected UTF-8 as the value of a property, found other bytes: encode them as text"
        assert encode(batch) == ("ValueError", text)
    names = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), bad, pa.array(["", ""]))
    batch = pa.record_batch([pa.array(["T", "T"]), names], names=["topic", "properties"])
    text = "row 1: expected UTF-8 as the name of a property, found other bytes: encode them as text"
    assert encode(batch) == ("ValueError", text)


def test_more_than_a_block_holds_is_refused() -> None:
    """By the native engine, which looks at no body before; the bodies are memory that nobody has touched."""
    count, size = 257, 4_193_000
    bodies = mmap.mmap(-1, count * size)
    offsets = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    body = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(bodies)])
    batch = pa.record_batch([pa.array(["T"] * count), body], names=["topic", "body"])
    ordinals = NATIVE.new_ordinals()
    with pytest.raises(ValueError, match=r"expected at most 1073741824 bytes of messages .* encode fewer rows at once"):
        NATIVE.encode_messages(batch, settings_of(), ordinals)
    assert len(ordinals) == 0


@pytest.mark.parametrize("name", ["native", "python"])
def test_a_batch_with_a_bad_row_counts_nothing(name: str) -> None:
    engine = get_engine(name)
    ordinals = engine.new_ordinals()
    with pytest.raises(ValueError, match=r"row 1:"):
        engine.encode_messages(batch_of([{"topic": "T"}, {"topic": ""}]), settings_of(), ordinals)
    assert len(ordinals) == 0
    assert ids_of(engine.encode_messages(batch_of([{"topic": "T"}]), settings_of(), ordinals)) == ids_of(
        encode([{"topic": "T"}])
    )


def test_what_is_no_batch_of_puts_is_refused() -> None:
    text = pa.array(["T"])
    columns = ", ".join(PUT_SCHEMA.names)
    assert encode(pa.record_batch([text, text], names=["topic", "Body"])) == (
        "TypeError",
        f"expected each column once of {columns}, found Body",
    )
    assert encode(pa.record_batch([text, text], names=["topic", "topic"])) == (
        "TypeError",
        f"expected each column once of {columns}, found topic",
    )
    assert encode(pa.record_batch([pa.array(["T"], pa.large_string())], names=["topic"])) == (
        "TypeError",
        "expected column topic of type string, found large_string",
    )
    assert encode(pa.record_batch([pa.array([], pa.string())], names=["topic"])) == (
        "ValueError",
        "expected at least one row, found none",
    )
    for engine, other in ((NATIVE, PYTHON), (PYTHON, NATIVE)):
        with pytest.raises(TypeError, match="expected ordinals of this engine's new_ordinals, found"):
            engine.encode_messages(batch_of([{"topic": "T"}]), settings_of(), other.new_ordinals())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"producer": b"short"}, "expected a producer of 8 bytes, found 5"),
        ({"born_host": bytes(9)}, "expected born_host of 8 or 20 bytes, found 9"),
        ({"store_host": b""}, "expected store_host of 8 or 20 bytes, found 0"),
        ({"born_timestamp": 2**63}, f"expected born_timestamp of 64 bits, found {2**63}"),
        ({"round_robin": -1}, f"expected round_robin from 0 to {2**63 - 1}, found -1"),
        ({"queue_counts": {"T": 0}}, f"expected from 1 to {2**31 - 1} queues of topic T, found 0"),
    ],
)
def test_settings_that_no_message_has_are_refused(change: dict[str, Any], text: str) -> None:
    assert encode([{"topic": "T"}], **change) == ("ValueError", text)


# Everything at once: both engines make the same of any rows.

TEXTS = st.text(st.sampled_from("aK \x01\x02\0é€\U0001f600"), max_size=12)
NAMES = st.sampled_from(["a", "b", "KEYS", "TAGS", "DELAY", "REAL_TOPIC", "__DLEDGER_ID", "UNIQ_KEY", ""]) | TEXTS
PAIRS = st.lists(st.tuples(NAMES, st.none() | TEXTS), max_size=20)
TOPICS = st.sampled_from([*QUEUES, "T", "T", "T", "T", "no queues", "unknown", "", None])
ROWS = st.fixed_dictionaries(
    {"topic": TOPICS},
    optional={
        "body": st.none() | st.binary(max_size=100),
        "queueId": st.none() | st.integers(-1, 4),
        "tags": st.none() | TEXTS,
        "keys": st.none() | TEXTS,
        "properties": st.none() | PAIRS,
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "bornTimestamp": st.none() | st.integers(-(2**63), 2**63 - 1),
        "transaction": st.none() | st.sampled_from([0, 4, 8, 12]) | st.integers(-20, 20),
        "delayLevel": st.none() | st.integers(-1, 20),
    },
)
HOSTS = st.sampled_from([V4, V6])


@unhurried
@given(
    rows=st.lists(ROWS, min_size=1, max_size=6),
    born=HOSTS,
    store=HOSTS,
    producer=st.sampled_from([PRODUCER, None]),
    round_robin=st.integers(0, 2**63 - 1),
    separator=st.booleans(),
)
def test_engines_make_the_same_of_any_rows(
    rows: list[Row], born: bytes, store: bytes, producer: bytes | None, round_robin: int, separator: bool
) -> None:
    made = encode(
        rows,
        born_host=born,
        store_host=store,
        producer=producer,
        round_robin=round_robin,
        has_trailing_separator=separator,
    )
    if isinstance(made, Bodies):
        puts = read(made)
        assert puts.has_id == [producer is not None] * len(rows)
        assert len(set(ids_of(made))) == (len(rows) if producer else 1)


# Puts from the wire.


def put(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"properties": b"a\x01b\x02", "born_host": V4, "store_host": V4, **changes}
    return encode_message(fields.pop("topic", b"T"), fields.pop("body", b"body"), 0, **fields)


def block_of(*bodies: bytes) -> Bodies:
    return PYTHON.pack_bodies(bodies)


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


ID = "__DLEDGER_ID\x01" + "aA0_-" * 6 + "zz"
GOOD_PUTS = [
    put(),
    put(topic=b"T" * 255, born_host=V6, store_host=V6),
    put(sys_flag=0x70F, body=b""),
    put(properties=b""),
    put(properties=b"a\x01b"),
    put(properties="größe\x01\x02".encode()),
    put(properties=ID.encode()),
    put(properties=b"a\x01\x02" + ID.encode() + b"\x02b\x01c\x02"),
    put(queue_offset=-5, store_timestamp=-5, queue_id=2**31 - 1, flag=-1),
]
SHORT = f"expected a message of at least {layout.MIN_MESSAGE_SIZE} bytes at 0, found"
NO_PROPERTY = "expected a name, character 1 and a value as property {}, found other bytes"
BAD_PUTS: list[tuple[bytes, str]] = [
    (b"", f"{SHORT} 0"),
    (bytes(90), f"{SHORT} 90"),
    (bytes(91), "expected message magic -626843481 or -626843477, found 0"),
    (put() + b"x", f"expected totalSize {len(put()) + 1} at 0, found {len(put())}"),
    (changed(put(), 84, struct.pack(">i", -1)), f"expected a bodyLength that fits {len(put())} bytes at 0, found -1"),
    (changed(put(), 92, b"\xff"), f"expected a topicLength that fits {len(put())} bytes at 0, found 255"),
    (changed(put(), 94, b"\x80\0"), f"expected a propertiesLength that fits {len(put())} bytes at 0, found 32768"),
    (changed(put(), 94, b"\0\3"), f"expected a message of {len(put())} bytes at 0, found {len(put()) - 1}"),
    (put(topic=b""), "expected a topic of 1 to 255 characters, found 0"),
    (put(topic=b"a/b"), "expected a topic of %|a-zA-Z0-9_-, found byte 47 in it"),
    (put(topic=b"a" * 256), "expected a topic of 1 to 255 characters, found 256"),
    (
        put(topic=b"a" * 128, magic=layout.MESSAGE_MAGIC_V1),
        "expected magic -626843477 for a topic of 128 bytes, found -626843481",
    ),
    (put(magic=layout.MESSAGE_MAGIC_V2), "expected magic -626843481 for a topic of 1 bytes, found -626843477"),
    (put(queue_id=-1), "expected a queueId of at least 0, found -1"),
    (put(sys_flag=0x80), "expected only bits of 0x73f in sysFlag, found 0x80"),
    (put(sys_flag=-(2**31)), "expected only bits of 0x73f in sysFlag, found 0x80000000"),
    (put(body_crc=5), "expected message CRC 5, found 1537739698"),
    (put(body_crc=1537739698 - 2**31), "expected message CRC -609743950, found 1537739698"),
    (put(properties=b"a\x01b\x02" * 8192), "expected at most 32767 bytes of properties, found 32768"),
    (put(properties=b"a\x01\xff\x02"), "expected UTF-8 as properties, found other bytes"),
    (put(properties=b"\x02"), NO_PROPERTY.format(0)),
    (put(properties=b"\x01b\x02"), NO_PROPERTY.format(0)),
    (put(properties=b"a\x01b\x02\x02"), NO_PROPERTY.format(1)),
    (put(properties=b"a\x01b\x02c\x02"), NO_PROPERTY.format(1)),
    (put(properties=b"a\x01b\x01c\x02"), NO_PROPERTY.format(0)),
    (
        put(properties=ID[:-1].encode()),
        "expected 32 characters of a-zA-Z0-9_- as __DLEDGER_ID, found other bytes",
    ),
    (
        put(properties=ID[:-1].encode() + b"+"),
        "expected 32 characters of a-zA-Z0-9_- as __DLEDGER_ID, found other bytes",
    ),
    (put(properties=ID.encode() + b"\x02" + ID.encode()), "expected property __DLEDGER_ID once, found it twice"),
]


def test_whole_messages_are_taken() -> None:
    puts = read(block_of(*GOOD_PUTS))
    identity = base64.urlsafe_b64decode(ID[-32:])
    assert puts == Puts(
        [("T", 0), ("T" * 255, 0), ("T", 2**31 - 1)],
        [0, 1, 0, 0, 0, 0, 0, 0, 2],
        [0, 0x30, 0x70F, 0, 0, 0, 0, 0, 0],
        bytes(144) + identity * 2 + bytes(24),
        [False] * 6 + [True] * 2 + [False],
    )


@pytest.mark.parametrize(("body", "text"), BAD_PUTS, ids=[text[9:60] for _, text in BAD_PUTS])
def test_what_is_no_whole_message_is_refused(body: bytes, text: str) -> None:
    assert read(block_of(put(), body, put())) == ("ValueError", f"message 1: {text}")


def test_a_block_whose_lengths_do_not_fit_is_refused() -> None:
    good = block_of(put())
    for bodies in (Bodies(2, good.block), Bodies(1, bytes(good.block)[:-1]), Bodies(0, b"")):
        kind, text = read(bodies)
        assert (kind, text[:8]) == ("ValueError", "expected")


@unhurried
@given(
    body=st.sampled_from(GOOD_PUTS),
    at=st.integers(0, 200),
    value=st.binary(min_size=1, max_size=4),
    cut=st.integers(0, 60),
)
@example(body=GOOD_PUTS[0], at=200, value=b"x", cut=0)
def test_engines_read_the_same_of_any_bytes(body: bytes, at: int, value: bytes, cut: int) -> None:
    at = min(at, len(body) - len(value))
    damaged = changed(body, at, value)[: len(body) - cut]
    bodies = block_of(put(), damaged)
    if isinstance(read(bodies), Puts):
        assert stamp(bodies, [True, True], [1, 2], 3, V6).count == 2
    else:
        stamp(bodies, [True, True], [1, 2], 3, V6)  # both engines the same, whatever that is


# What a store writes into them.


@pytest.mark.parametrize("put_host", [V4, V6])
@pytest.mark.parametrize("host", [V4, V6])
def test_puts_get_their_place_in_the_queue_and_the_stores_time_and_host(put_host: bytes, host: bytes) -> None:
    bodies = [put(store_host=put_host, sys_flag=8, topic=b"T" * length, born_host=V6) for length in (1, 5, 200)]
    stamped = stamp(block_of(*bodies), [True, False, True], [77, 0, 2**62], 1234567890123, host)
    assert stamped.count == 2
    for (body, message), length, offset in zip(messages_of(stamped), (1, 200), (77, 2**62), strict=True):
        assert (message.queue_offset, message.store_timestamp, message.store_host) == (offset, 1234567890123, host)
        expected = put(
            store_host=host,
            sys_flag=8,
            topic=b"T" * length,
            born_host=V6,
            queue_offset=offset,
            store_timestamp=1234567890123,
        )
        assert body == expected


def test_arrays_with_a_step_are_read_by_their_values() -> None:
    bodies = block_of(put(), put(), put())
    keep, offsets = np.array([True, False, False, True, True, True])[::2], np.arange(6)[::2]
    for engine in (NATIVE, PYTHON):
        stamped = engine.stamp_puts(bodies, keep, offsets, 1, V4)
        assert [message.queue_offset for _, message in messages_of(stamped)] == [0, 4]


def test_a_message_may_grow_up_to_the_largest_body() -> None:
    longest = put(body=bytes(MAX_BODY_SIZE - len(put(body=b""))))
    largest = put(body=bytes(MAX_BODY_SIZE - len(put(body=b"")) - 12))
    assert len(longest) == MAX_BODY_SIZE
    (stamped,) = messages_of(stamp(block_of(largest), [True], [0], 0, V6))
    assert stamped[1].total_size == MAX_BODY_SIZE
    text = f"message 1: expected at most {MAX_BODY_SIZE} bytes with the store's host, found {MAX_BODY_SIZE + 12}"
    assert stamp(block_of(put(), longest), [True, True], [0, 0], 0, V6) == ("ValueError", text)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"keep": np.array([False])}, "ValueError", "expected at least one message to keep, found none"),
        ({"keep": np.array([True, True])}, "ValueError", "expected 1 values of keep, found 2"),
        ({"keep": [True]}, "TypeError", "expected keep as an array of bool, found list"),
        (
            {"offsets": np.array([1], np.int32)},
            "TypeError",
            "expected queue_offsets as an array of int64, found ndarray",
        ),
        ({"offsets": np.array([], np.int64)}, "ValueError", "expected 1 values of queue_offsets, found 0"),
        ({"time": 2**63}, "ValueError", f"expected store_timestamp of 64 bits, found {2**63}"),
        ({"host": bytes(16)}, "ValueError", "expected store_host of 8 or 20 bytes, found 16"),
    ],
)
def test_stamps_that_fit_no_puts_are_refused(changes: dict[str, Any], kind: str, text: str) -> None:
    given = {"keep": np.array([True]), "offsets": np.array([0], np.int64), "time": 0, "host": V4} | changes
    for engine in (NATIVE, PYTHON):
        found = answer(engine.stamp_puts, block_of(put()), *given.values())
        assert found == (kind, text.replace("array of bool", f"array of {np.bool_.__name__}"))


def test_messages_get_their_position_and_nothing_else_changes() -> None:
    like_one = changed(put(), 0, struct.pack(">i", 5))  # of another length than it says
    bodies = [put(), b"", b"raw" * 50, like_one, put(topic=b"T" * 200), put(body=b"")[:91]]
    data = patched(block_of(*bodies), 5, 4096)
    at = 4096
    for body in bodies:
        stored, data = data[48 : 48 + len(body)], data[48 + len(body) :]
        is_one = body in (bodies[0], bodies[4])
        assert stored == (changed(body, 28, struct.pack(">q", at + 48)) if is_one else body)
        at += 48 + len(body)


def test_units_that_do_not_fit_the_entries_are_refused() -> None:
    encoded = PYTHON.encode_entries(block_of(put(), put()), 0, 0, 0, 0, 2**30)
    small = bytearray(encoded.units)
    small[12:16] = struct.pack(">i", 47)
    size = len(encoded.data)
    cases = [
        (encoded.data, encoded.units[:-1], "expected units of 32 bytes, found 63 bytes"),
        (encoded.data, encoded.units[:-32], f"expected {size // 2} bytes of entries by their units, found {size}"),
        (encoded.data[:-1], encoded.units, f"expected {size} bytes of entries by their units, found {size - 1}"),
        (encoded.data, small, "unit 0: expected a size of at least 48, found 47"),
    ]
    for data, units, text in cases:
        for engine in (NATIVE, PYTHON):
            before = bytes(data)
            assert answer(engine.patch_physical_offsets, data, units) == ("ValueError", text)
            assert data == before


# What a leader finds again in its log.


def segment_of(folder: Path, data: bytes, base: int) -> Segment:
    path = folder / f"{base:020d}"
    path.write_bytes(data)
    return Segment(str(path), path.name, base, len(data), DLEDGER, True)


def ids_in(segment: Segment, start: int, end: int) -> PutIds:
    found = [engine.put_ids(segment, start, end) for engine in (NATIVE, PYTHON)]
    for one_of_them in found:
        assert (one_of_them.index.dtype, one_of_them.store_timestamps.dtype) == (np.int64, np.int64)
    plain = [PutIds(p.index.tolist(), p.ids, p.store_timestamps.tolist()) for p in found]
    assert plain[0] == plain[1]
    return plain[0]


def test_identities_are_found_in_the_log(tmp_path: Path) -> None:
    made = encode([{"topic": "T", "body": b"x" * number} for number in range(6)])
    ours = PYTHON.unpack_bodies(stamp(made, [True] * 6, range(6), 99, V6))
    others = [
        b"raw",
        b"",
        put(),
        put(properties=ID.encode()[:-1]),
        put(properties=(ID + "\x02__DLEDGER_ID\x01no").encode()),  # of two the last counts, as everywhere
        changed(ours[0], 0, bytes(4)),
    ]
    both = [body for pair in zip(ours, others, strict=True) for body in pair]
    data = patched(block_of(*both), 100, 8192)
    segment = segment_of(tmp_path, data + codec.encode_blank(100).ljust(100, b"\1"), 8192)
    found = ids_in(segment, segment.base, segment.end)
    assert found == PutIds([100, 102, 104, 106, 108, 110], b"".join(ids_of(made)), [99] * 6)
    half = NATIVE.seek(segment, segment.base, segment.end, 106)
    parts = ids_in(segment, segment.base, half), ids_in(segment, half, segment.end)
    assert PutIds(*(first + second for first, second in zip(*parts, strict=True))) == found


def test_damage_costs_the_identities_in_it_and_no_others(tmp_path: Path) -> None:
    made = encode([{"topic": "T", "body": b"x" * 50, "flag": number} for number in range(9)])
    data = bytearray(patched(made, 0, 0))
    size = len(data) // 9
    data[3 * size : 3 * size + 60] = bytes(60)
    segment = segment_of(tmp_path, bytes(data), 0)
    assert ids_in(segment, 0, segment.end).index == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["native", "python"])
def test_a_store_writes_messages_that_are_whole(name: str, tmp_path: Path) -> None:
    """From rows to the log: through the store's hook each message says where it stands, over many files."""
    engine = get_engine(name)
    rows = [{"topic": "T", "body": b"b" * (37 * number % 700), "keys": f"k{number}"} for number in range(64)]
    stamped = stamp(encode(rows), [True] * 64, range(64), BORN, V4)
    store = MmapFileStore(StoreConfig(tmp_path, data_file_size=4096, index_file_size=3200, engine=name))
    store.startup(services=False)
    store.append_hook = engine.patch_physical_offsets
    store.append_as_leader(stamped)
    store.shutdown()
    log = open_log(tmp_path)
    found = [
        row
        for batch in log.scan(columns=["problem", "pos", "commitLogOffset", "keys"], engine=name)
        for row in batch.to_pylist()
    ]
    assert [(row["problem"], row["keys"]) for row in found] == [(None, f"k{number}") for number in range(64)]
    assert all(row["commitLogOffset"] == row["pos"] + 48 for row in found)
    assert len(list(tmp_path.rglob("data/*"))) > 5


# Java's hashes.


def test_strings_have_the_hashes_of_java() -> None:
    # Of java.lang.String, OpenJDK 17.
    known = {
        "": 0,
        "a": 97,
        "paid": 3433164,
        "polygenelubricants": -(2**31),
        "é": 233,
        "€uro": 249288006,
        "😀": 1772899,
        "a😀z日本": -240160803,
    }
    for engine in (NATIVE, PYTHON):
        hashes = engine.java_hashes(pa.array([*known, None]))
        assert hashes.dtype == np.int32
        assert hashes.tolist() == [*known.values(), 0]
        assert engine.java_hashes(pa.array(["x", *known])[1:]).tolist() == list(known.values())
        assert len(engine.java_hashes(pa.array([], pa.string()))) == 0


@unhurried
@given(st.lists(st.none() | st.binary(max_size=12), max_size=5))
def test_engines_hash_any_bytes_the_same(texts: list[bytes | None]) -> None:
    strings = pa.array(texts, pa.binary()).view(pa.string())
    assert NATIVE.java_hashes(strings).tolist() == PYTHON.java_hashes(strings).tolist()
