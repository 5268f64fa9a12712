"""A leader checks and stamps puts, and finds their identities in its log."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies, PutIds, Puts
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.dispatch.log_part import UnitRules, read_part
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.engines import NATIVE, PYTHON, result_of, unhurried
from tests.support.puts import (
    BORN,
    ID,
    V4,
    V6,
    block_of,
    changed,
    encode,
    ids_of,
    messages_of,
    patched,
    put,
    read,
    stamp,
)


@pytest.fixture(params=[NATIVE, PYTHON], ids=["native", "python"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


# Checks.


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


def test_valid_messages_are_accepted() -> None:
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
def test_invalid_messages_are_rejected(body: bytes, text: str) -> None:
    assert read(block_of(put(), body, put())) == ("ValueError", f"message 1: {text}")


def test_a_block_with_wrong_lengths_is_rejected() -> None:
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
def test_engines_read_any_bytes_the_same(body: bytes, at: int, value: bytes, cut: int) -> None:
    at = min(at, len(body) - len(value))
    damaged = changed(body, at, value)[: len(body) - cut]
    bodies = block_of(put(), damaged)
    if isinstance(read(bodies), Puts):
        assert stamp(bodies, [True, True], [1, 2], 3, V6).count == 2
    else:
        stamp(bodies, [True, True], [1, 2], 3, V6)  # the same by both engines


# Stamps and positions.


@pytest.mark.parametrize("put_host", [V4, V6])
@pytest.mark.parametrize("host", [V4, V6])
def test_puts_get_queue_offset_store_time_and_host(put_host: bytes, host: bytes) -> None:
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


@pytest.mark.parametrize("host", [V4, V6])
@pytest.mark.parametrize("kept", [(True, True, True), (True, False, True)])
def test_a_received_block_is_stamped_as_a_copy(host: bytes, kept: tuple[bool, ...]) -> None:
    """A writable memoryview may be changed, if all messages stay and keep their sizes."""
    bodies = block_of(put(), put(topic=b"T" * 200), put(body=b""))
    arguments = np.array(kept), np.arange(7, 10), 99, host
    expected = PYTHON.stamp_puts(bodies, *arguments)
    received = memoryview(bytearray(bodies.block))
    stamped = NATIVE.stamp_puts(Bodies(bodies.count, received), *arguments)
    assert (stamped.count, bytes(stamped.block)) == (expected.count, bytes(expected.block))
    assert (stamped.block is received) == (host == V4 and all(kept))
    assert stamped.block is received or received == bodies.block


def test_arrays_with_a_step_are_read_correctly() -> None:
    bodies = block_of(put(), put(), put())
    keep, offsets = np.array([True, False, False, True, True, True])[::2], np.arange(6)[::2]
    for engine in (NATIVE, PYTHON):
        stamped = engine.stamp_puts(bodies, keep, offsets, 1, V4)
        assert [message.queue_offset for _, message in messages_of(stamped)] == [0, 4]


def test_a_stamped_message_can_have_the_maximum_size() -> None:
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
def test_wrong_stamps_are_rejected(changes: dict[str, Any], kind: str, text: str) -> None:
    given = {"keep": np.array([True]), "offsets": np.array([0], np.int64), "time": 0, "host": V4} | changes
    for engine in (NATIVE, PYTHON):
        found = result_of(engine.stamp_puts, block_of(put()), *given.values())
        assert found == (kind, text.replace("array of bool", f"array of {np.bool_.__name__}"))


def test_only_the_physical_offset_of_messages_is_changed() -> None:
    like_one = changed(put(), 0, struct.pack(">i", 5))  # with a wrong totalSize
    bodies = [put(), b"", b"raw" * 50, like_one, put(topic=b"T" * 200), put(body=b"")[:91]]
    data = patched(block_of(*bodies), 5, 4096)
    at = 4096
    for body in bodies:
        stored, data = data[48 : 48 + len(body)], data[48 + len(body) :]
        is_one = body in (bodies[0], bodies[4])
        assert stored == (changed(body, 28, struct.pack(">q", at + 48)) if is_one else body)
        at += 48 + len(body)


def test_units_that_do_not_fit_the_entries_are_rejected() -> None:
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
            assert result_of(engine.patch_physical_offsets, data, units) == ("ValueError", text)
            assert data == before


# Numbers and locations.


def test_puts_are_numbered_by_queue(engine: Engine) -> None:
    queues = [("T", 0), ("T", 1)]
    puts = Puts(queues, np.int32([0, 1, 0, 1, 0, 0]), np.int32([0, 8, 4, 0, 0, 12]), b"", np.zeros(6, np.bool_))
    keep = np.array([True, True, True, False, True, True])
    offsets, ends = engine.number_puts(puts, keep, [7, 2**40])
    assert (offsets.tolist(), ends) == ([7, 2**40, 0, 0, 8, 0], [9, 2**40 + 1])


def test_queues_without_an_end_are_rejected(engine: Engine) -> None:
    for queue in (-3, 2):
        puts = Puts([], np.int32([queue]), np.int32([0]), b"", np.zeros(1, np.bool_))
        with pytest.raises((ValueError, IndexError)):
            engine.number_puts(puts, np.ones(1, np.bool_), [0, 0])


def test_locations_continue_until_the_next_file(engine: Engine) -> None:
    located = engine.locate_puts(block_of(b"12345", b"", b"x", b"yz"), 9, [(9, 100), (11, 4096)], np.arange(4))
    assert list(struct.iter_unpack(">qqq", located)) == [(9, 100, 0), (10, 153, 1), (11, 4096, 2), (12, 4145, 3)]
    for bodies in (Bodies(4, b"\0\0\0\1x"), Bodies(1, b"\0\0\0\2x")):
        with pytest.raises(ValueError, match="expected"):
            engine.locate_puts(bodies, 9, [(9, 100)], np.arange(bodies.count))


# Identities in a log.


def segment_of(folder: Path, data: bytes, base: int) -> Segment:
    path = folder / f"{base:020d}"
    path.write_bytes(data)
    return Segment.local(str(path), path.name, base, len(data), DLEDGER, True)


def ids_in(segment: Segment, start: int, end: int) -> PutIds:
    """The identities that dispatch finds, with lists instead of arrays."""
    parts = [read_part(engine, segment, start, end, UnitRules()).rows.ids for engine in (NATIVE, PYTHON)]
    plain = [PutIds(ids.index.tolist(), ids.ids, ids.store_timestamps.tolist()) for ids in parts]
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
        put(properties=(ID + "\x02__DLEDGER_ID\x01no").encode()),  # the last of two counts
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


def test_damage_loses_only_the_identities_in_it(tmp_path: Path) -> None:
    made = encode([{"topic": "T", "body": b"x" * 50, "flag": number} for number in range(9)])
    data = bytearray(patched(made, 0, 0))
    size = len(data) // 9
    data[3 * size : 3 * size + 60] = bytes(60)
    segment = segment_of(tmp_path, bytes(data), 0)
    assert ids_in(segment, 0, segment.end).index == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["native", "python"])
def test_a_store_writes_valid_messages(name: str, tmp_path: Path) -> None:
    """The store's hook writes the position into each message, over many files."""
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


def test_hashes_are_those_of_java() -> None:
    # From java.lang.String, OpenJDK 17.
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
