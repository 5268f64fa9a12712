"""Both engines copy messages into a new CommitLog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.format import layout
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.message import (
    CHANGED,
    LONG_PROPERTIES,
    LONG_TOPIC,
    V1,
    V2,
    CopiedMessages,
    encode_message,
    message_crc,
    parse_message,
    stored_property_crc,
)
from pyspark_dledger.format.spec import COMMITLOG, Segment
from pyspark_dledger.log.io.store_engine import store_engine

BASE = 1 << 20
POSITION = 7 << 30

messages = st.builds(
    encode_message,
    st.binary(max_size=300),
    st.binary(max_size=200),
    st.integers(0, 2**40) | st.just(POSITION),
    magic=st.sampled_from([layout.MESSAGE_MAGIC_V1, layout.MESSAGE_MAGIC_V2]),
    born_host=st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    store_host=st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    properties=st.binary(max_size=60),
    property_crc=st.booleans(),
) | st.just(encode_message(b"T", b"", 5, properties=bytes(2**15 - 20), property_crc=True))


def segment_of(folder: Path, data: bytes) -> Segment:
    path = folder / f"{BASE:020d}"
    path.write_bytes(data)
    return Segment.local(str(path), path.name, BASE, max(len(data), 1), COMMITLOG)


def copies(reader: Engine, segment: Segment, starts: list[int], sizes: list[int]) -> tuple[CopiedMessages, bytes]:
    into = bytearray(b"\xee" * (sum(sizes) + 3))
    found = reader.copy_messages(segment, np.array(starts, np.int64), np.array(sizes, np.int64), into, POSITION)
    return found, bytes(into[: found.size])


def consecutive(contents: list[bytes]) -> tuple[list[int], list[int]]:
    sizes = [len(content) for content in contents]
    return [BASE + sum(sizes[:number]) for number in range(len(sizes))], sizes


def test_copies_are_consecutive_and_have_new_offsets(reader: Engine, tmp_path: Path) -> None:
    contents = [encode_message(b"T", bytes([number]) * number, 99, queue_offset=number) for number in range(50)]
    between = b"\xaa" * 48
    segment = segment_of(tmp_path, b"".join(between + content for content in contents))
    sizes = [len(content) for content in contents]
    starts = [BASE + sum(sizes[:number]) + 48 * (number + 1) for number in range(50)]
    found, data = copies(reader, segment, starts, sizes)
    assert found.outcomes.tolist() == [V1] * 50
    expected = [
        encode_message(b"T", bytes([number]) * number, POSITION + sum(sizes[:number]), queue_offset=number)
        for number in range(50)
    ]
    assert data == b"".join(expected)


def test_the_property_crc_is_that_of_the_copy(reader: Engine, tmp_path: Path) -> None:
    content = encode_message(b"T", b"body", 99, properties=b"A\1b\2", property_crc=True)
    _, data = copies(reader, segment_of(tmp_path, content), [BASE], [len(content)])
    assert data == encode_message(b"T", b"body", POSITION, properties=b"A\1b\2", property_crc=True)
    assert stored_property_crc(data) == message_crc(data[: -layout.PROPERTY_CRC_SIZE]) != stored_property_crc(content)


def test_a_message_that_keeps_its_offset_is_not_changed(reader: Engine, tmp_path: Path) -> None:
    content = encode_message(b"T", b"body", POSITION, property_crc=True)
    wrong = content[:-3] + b"000"[: len(content[-3:-1])] + content[-1:]
    found, data = copies(reader, segment_of(tmp_path, wrong), [BASE], [len(wrong)])
    assert (found.outcomes.tolist(), data) == ([V1], wrong)


def test_messages_with_lengths_that_a_broker_reads_as_negative_are_left_out(reader: Engine, tmp_path: Path) -> None:
    v1, v2 = layout.MESSAGE_MAGIC_V1, layout.MESSAGE_MAGIC_V2
    cases = [
        (encode_message(b"t" * 127, b"", 0, magic=v1), V1),
        (encode_message(b"t" * 128, b"", 0, magic=v1), LONG_TOPIC),
        (encode_message(b"t" * 128, b"", 0, magic=v2), V2),
        (encode_message(b"t" * 32767, b"", 0, magic=v2), V2),
        (encode_message(b"t" * 32768, b"", 0, magic=v2), LONG_TOPIC),
        (encode_message(b"t", b"", 0, properties=bytes(32767)), V1),
        (encode_message(b"t", b"", 0, properties=bytes(32768)), LONG_PROPERTIES),
        (encode_message(b"t" * 200, b"", 0, magic=v1, properties=bytes(65535)), LONG_TOPIC),
        (encode_message(b"last", b"", 0), V1),
    ]
    contents = [content for content, _ in cases]
    found, data = copies(reader, segment_of(tmp_path, b"".join(contents)), *consecutive(contents))
    assert found.outcomes.tolist() == [outcome for _, outcome in cases]
    assert len(data) == sum(len(content) for content, outcome in cases if outcome in (V1, V2))
    assert data.endswith(encode_message(b"last", b"", POSITION + len(data) - len(contents[-1])))


@pytest.mark.parametrize(
    "change",
    [(0, b"\0\0\0\7"), (4, b"\0\0\0\0"), (39, b"\x10"), (84, b"\x7f"), (84, b"\xff"), (88, b"\xff")],
    ids=["totalSize", "magic", "sysFlag", "bodyLength", "negative bodyLength", "topicLength"],
)
def test_bytes_that_are_not_a_message_of_the_size_are_left_out(
    reader: Engine, tmp_path: Path, change: tuple[int, bytes]
) -> None:
    at, value = change
    content = encode_message(b"", b"", 0)
    broken = content[:at] + value + content[at + len(value) :]
    found, data = copies(reader, segment_of(tmp_path, broken + content), *consecutive([broken, content]))
    assert found.outcomes.tolist() == [CHANGED, V1]
    assert data == encode_message(b"", b"", POSITION)


def test_positions_outside_the_file_are_left_out(reader: Engine, tmp_path: Path) -> None:
    content = encode_message(b"T", b"body", 0)
    size, highest = len(content), 2**63 - 1
    segment = replace(segment_of(tmp_path, content), size=1 << 20)
    starts = [BASE - 1, BASE, BASE + 1, BASE + size, BASE + (1 << 20), 0, -1, -highest, highest]
    found, data = copies(reader, segment, starts, [size] * len(starts))
    assert found.outcomes.tolist() == [CHANGED, V1, *[CHANGED] * 7]
    assert data == encode_message(b"T", b"body", POSITION)


def test_no_messages_give_no_copies(reader: Engine, tmp_path: Path) -> None:
    found, data = copies(reader, segment_of(tmp_path, b"some"), [], [])
    assert (found.size, found.outcomes.tolist(), data) == (0, [], b"")


@pytest.mark.parametrize("sizes", [[-1], [5, -1], [11], [6, 5], [2**63 - 1, 2**63 - 1]])
def test_a_buffer_that_is_too_small_is_rejected(reader: Engine, tmp_path: Path, sizes: list[int]) -> None:
    segment, starts = segment_of(tmp_path, bytes(100)), np.full(len(sizes), BASE, np.int64)
    with pytest.raises(ValueError, match="the sizes do not fit a buffer of 10 bytes"):
        reader.copy_messages(segment, starts, np.array(sizes, np.int64), bytearray(10), 0)


def test_different_numbers_of_starts_and_sizes_are_rejected(reader: Engine, tmp_path: Path) -> None:
    starts, sizes = np.full(2, BASE, np.int64), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="expected as many starts as sizes, found 2 and 3"):
        reader.copy_messages(segment_of(tmp_path, bytes(100)), starts, sizes, bytearray(10), 0)


def test_arrays_can_be_slices_with_a_step(reader: Engine, tmp_path: Path) -> None:
    contents = [encode_message(b"T", bytes(number), 0) for number in range(10)]
    starts, sizes = consecutive(contents)
    segment, into = segment_of(tmp_path, b"".join(contents)), memoryview(bytearray(5000))
    found = reader.copy_messages(segment, np.array(starts)[::3], np.array(sizes)[::3], into, 0)
    assert found.size == sum(sizes[::3])


@settings(deadline=None)
@given(st.data())
def test_both_engines_copy_the_same(folder: Callable[[], Path], data: st.DataObject) -> None:
    """With damaged messages and with any positions."""
    contents = data.draw(st.lists(messages.map(bytearray), max_size=8))
    for content in contents:
        if data.draw(st.integers(0, 3)) == 0:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    starts, sizes = consecutive([bytes(content) for content in contents])
    for number in range(len(sizes)):
        if data.draw(st.integers(0, 5)) == 0:
            starts[number] += data.draw(st.integers(-300, 300))
            sizes[number] = max(0, sizes[number] + data.draw(st.integers(-300, 300)))
    segment = segment_of(folder(), b"".join(contents))
    native, python = (copies(get_engine(name), segment, starts, sizes) for name in ("native", "python"))
    assert native[1] == python[1]
    assert (native[0].size, native[0].outcomes.tolist()) == (python[0].size, python[0].outcomes.tolist())
    at = 0
    for size, outcome in zip(sizes, native[0].outcomes.tolist(), strict=True):
        if outcome <= V2:
            message = parse_message(native[1], at, size, 0)
            assert not isinstance(message, str)
            assert message.physical_offset == POSITION + at
            at += size


def test_the_engine_of_remote_stores_copies_from_local_segments(engine: str, tmp_path: Path) -> None:
    content = encode_message(b"T", b"body", 0)
    found, data = copies(store_engine(engine), segment_of(tmp_path, content), [BASE], [len(content)])
    assert (found.outcomes.tolist(), data) == ([V1], encode_message(b"T", b"body", POSITION))
