"""Rows become puts: the bytes of RocketMQ, and identities that a retry repeats."""

from __future__ import annotations

import base64
import hashlib
import mmap
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format import layout
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies, producer_of
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA, murmur128
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import (
    Message,
    parse_message,
    parse_properties,
)
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from tests.support.engines import NATIVE, PYTHON, unhurried
from tests.support.golden import ALL, Golden
from tests.support.puts import (
    BORN,
    PRODUCER,
    QUEUES,
    V4,
    V6,
    Row,
    batch_of,
    encode,
    encode_properties,
    ids_of,
    messages_of,
    one,
    patched,
    properties_of,
    raw_properties_of,
    read,
    settings_of,
    stamp,
    topic_of,
)

# Messages of brokers.


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
    """Position and bytes of each message."""
    found = []
    for path in sorted(folder.rglob("[0-9]" * 20)):
        if path.parent.name != "data":
            continue
        segment = Segment.local(str(path), path.name, int(path.name), path.stat().st_size, DLEDGER, True)
        request = ScanRequest(segment, segment.base, segment.end, ("kind", "pos", "entryBody"))
        for batch, _ in NATIVE.scan(request):
            found += [(r["pos"] + 48, r["entryBody"]) for r in batch.to_pylist() if r["kind"] == "message"]
    return found


def is_like_a_put(message: Message, raw: bytes) -> bool:
    """Whether it can be a producer's first send: not retried, not committed at an offset, not compressed."""
    is_fresh = message.reconsume_times == 0 and message.prepared_transaction_offset == 0
    written = encode_properties(parse_properties(raw))
    return is_fresh and message.sys_flag & ~0x3C == 0 and raw in (written, written[:-1])


MESSAGE_STORES = ("mq-498-single", "mq-53-single", "mq-53-upgrade")


@pytest.mark.parametrize("case", MESSAGE_STORES)
def test_messages_are_encoded_as_brokers_wrote_them(case: str, case_folder: Callable[[str], Path]) -> None:
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
def test_delayed_messages_are_encoded_as_brokers_wrote_them(case: str, case_folder: Callable[[str], Path]) -> None:
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
        # Only the order of properties differs: Java's comes from a hash map.
        assert properties_of(made, ours) == properties
        assert ours[1:6] == (*message[1:5], 0)
        assert (ours.sys_flag, *ours[8:10]) == (message.sys_flag & ~0x20, *message[8:10])
        assert made[ours.body_start :][: ours.body_length] == row["body"]
        assert (ours.queue_id, topic_of(made, ours)) == (int(level) - 1, layout.SCHEDULE_TOPIC)
        levels.add(int(level))
    assert len(levels) > 5


BROKERS = [golden for golden in ALL if golden.case in MESSAGE_STORES]


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_logs_of_brokers_have_no_identities(golden: Golden, case_folder: Callable[[str], Path]) -> None:
    for path in case_folder(golden.case).rglob("data/" + "[0-9]" * 20):
        segment = Segment.local(str(path), path.name, int(path.name), path.stat().st_size, DLEDGER, True)
        for engine in (NATIVE, PYTHON):
            request = ScanRequest(segment, segment.base, segment.end, ("putId",))
            assert not any(len(batch["putId"].drop_null()) for batch, _ in engine.scan(request))


# The message of a row.


def test_the_values_of_a_row_are_those_of_its_message() -> None:
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


def test_missing_values_get_defaults() -> None:
    body, message = one({"topic": "U"}, round_robin=7)
    assert (message.queue_id, message.flag, message.sys_flag, message.born_timestamp) == (1, 0, 0, BORN)
    assert (message.body_length, message.body_crc) == (0, 0)
    assert list(properties_of(body, message)) == ["__DLEDGER_ID"]
    body, message = one({"topic": "U"}, producer=None)
    assert message.properties_length == 0
    assert len(body) == layout.MIN_MESSAGE_SIZE + 1


@pytest.mark.parametrize(("length", "magic", "width"), [(127, "V1", 1), (128, "V2", 2), (255, "V2", 2)])
def test_long_topics_get_version_2(length: int, magic: str, width: int) -> None:
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


def test_the_trailing_separator_is_a_setting() -> None:
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


def test_rows_of_the_schedule_topic_are_not_changed() -> None:
    properties = [("DELAY", "3"), ("REAL_TOPIC", "T"), ("REAL_QID", "1")]
    body, message = one({"topic": layout.SCHEDULE_TOPIC, "queueId": 2, "properties": properties}, producer=None)
    assert (topic_of(body, message), message.queue_id) == (layout.SCHEDULE_TOPIC, 2)
    assert list(properties_of(body, message).items()) == properties


def test_queues_are_given_or_chosen_by_keys_or_in_turn() -> None:
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


def test_the_bytes_of_an_identity_do_not_change() -> None:
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


def test_hashes_are_those_of_murmur3() -> None:
    # From the reference implementation, MurmurHash3_x64_128.
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
def test_ordinals_continue_from_batch_to_batch(name: str) -> None:
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


def test_every_value_is_part_of_the_identity() -> None:
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


def test_slices_are_encoded_as_their_rows() -> None:
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


def test_columns_can_be_in_any_order_and_missing() -> None:
    rows = [{"topic": "T", "body": b"b", "flag": 3}]
    batch = batch_of(rows)
    assert encode(batch.select(["flag", "topic", "body"])) == encode(rows)


def test_columns_of_a_map_can_be_slices() -> None:
    names = pa.array(["drop", "a", "b", "c"])[1:]
    values = pa.array(["x", "drop", "1", None, "3"])[2:]
    maps = pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), names, values)
    batch = pa.record_batch([pa.array(["T", "T"]), maps], names=["topic", "properties"])
    rows = [{"topic": "T", "properties": [("a", "1"), ("b", None)]}, {"topic": "T", "properties": [("c", "3")]}]
    assert encode(batch) == encode(rows)


# Invalid rows.


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
        "expected property a once, found it twice: remove one, in properties or in its own column",
    ),
    (
        {"topic": "T", "properties": [(f"p{number % 19}", "1") for number in range(20)]},
        "expected property p0 once, found it twice: remove one, in properties or in its own column",
    ),
    (
        {"topic": "T", "properties": [("TAGS", "1")], "tags": "2"},
        "expected property TAGS once, found it twice: remove one, in properties or in its own column",
    ),
    (
        {"topic": "T", "properties": [("KEYS", "1")], "keys": "2"},
        "expected property KEYS once, found it twice: remove one, in properties or in its own column",
    ),
    (
        {"topic": "T", "properties": [("REAL_TOPIC", "1")], "delayLevel": 2},
        "expected property REAL_TOPIC once, found it twice: remove one, in properties or in its own column",
    ),
    (
        {"topic": "T", "properties": [("nul\0", "1"), ("nul\0", "2")]},
        "expected property nul\0 once, found it twice: remove one, in properties or in its own column",
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
def test_an_invalid_row_is_rejected_with_its_number(row: Row, text: str) -> None:
    assert encode([{"topic": "T"}, row, {"topic": None}]) == ("ValueError", f"row 1: {text}")
    assert encode([row], first_row=2**40) == ("ValueError", f"row {2**40}: {text}")


def test_the_longest_properties_and_messages_are_accepted() -> None:
    _, message = one({"topic": "T", "tags": "a" * 32715})
    assert message.properties_length == 32767
    _, message = one({"topic": "T", "body": bytes(MAX_BODY_SIZE - 92 - 46)})
    assert message.total_size == MAX_BODY_SIZE


def test_invalid_utf8_is_rejected() -> None:
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


def test_more_rows_than_fit_a_block_are_rejected() -> None:
    """Only the native engine, which reads no body before; the bodies are memory that is never used."""
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
def test_a_rejected_batch_does_not_change_the_ordinals(name: str) -> None:
    engine = get_engine(name)
    ordinals = engine.new_ordinals()
    with pytest.raises(ValueError, match=r"row 1:"):
        engine.encode_messages(batch_of([{"topic": "T"}, {"topic": ""}]), settings_of(), ordinals)
    assert len(ordinals) == 0
    assert ids_of(engine.encode_messages(batch_of([{"topic": "T"}]), settings_of(), ordinals)) == ids_of(
        encode([{"topic": "T"}])
    )


def test_wrong_columns_are_rejected() -> None:
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
def test_invalid_settings_are_rejected(change: dict[str, Any], text: str) -> None:
    assert encode([{"topic": "T"}], **change) == ("ValueError", text)


# Any rows.

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
def test_engines_encode_any_rows_the_same(
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
