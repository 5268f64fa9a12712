"""The reference codec: layouts, records, messages, properties, hosts and text."""

from __future__ import annotations

import ipaddress
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.common.java_text import decode_utf8, host_text, ipv6_text
from pyspark_dledger.format import codec, layout, message
from pyspark_dledger.format.message import Message, parse_message, parse_properties
from tests.support import generate
from tests.support.puts import encode_properties

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

# Records.


@pytest.mark.parametrize(("name", "fields"), layout.LAYOUTS.items())
def test_layouts_have_no_gaps_and_the_given_sizes(name: str, fields: tuple[layout.Field, ...]) -> None:
    sizes = {
        "DLedger entry header": layout.ENTRY_HEADER_SIZE,
        "DLedger blank": layout.MIN_BLANK_SIZE,
        "DLedger index unit": layout.INDEX_UNIT_SIZE,
        "CommitLog message, fixed part": layout.MESSAGE_HEADER_SIZE,
        "ConsumeQueue unit": layout.CONSUME_QUEUE_UNIT_SIZE,
    }
    assert codec.record_struct(fields).size == codec.record_dtype(fields).itemsize == sizes[name]


def test_a_layout_with_a_gap_is_rejected() -> None:
    with pytest.raises(ValueError, match="without gaps"):
        codec.record_struct([layout.Field("a", 0, 4, ">i4"), layout.Field("b", 8, 4, ">i4")])


def test_an_entry_has_the_bytes_that_java_writes() -> None:
    # DLedger 0.3.1.2: index 0, term 1, body of 20 times 'a'.
    java = bytes.fromhex(
        "00000001 00000044 0000000000000000 0000000000000001 0000000000000000 00000000 00000000 00000000 00000014"
        + "61" * 20
    )
    assert codec.encode_entry(0, 1, 0, b"a" * 20) == java
    assert codec.decode_entry_header(java) == codec.EntryHeader(1, 68, 0, 1, 0, 0, 0, 0, 20)
    unit = bytes.fromhex("00000001 0000000000000000 00000044 0000000000000000 0000000000000001")
    assert codec.encode_index_unit(codec.IndexUnit(1, 0, 68, 0, 1)) == unit
    assert codec.encode_blank(49) == bytes.fromhex("ffffffff00000031")


@given(
    st.builds(codec.EntryHeader, INT32, INT32, INT64, INT64, INT64, INT32, INT32, INT32, INT32), st.binary(max_size=9)
)
def test_decoded_entry_headers_are_those_that_were_encoded(header: codec.EntryHeader, before: bytes) -> None:
    data = before + codec.encode_entry_header(header)
    assert codec.decode_entry_header(data, len(before)) == header
    (record,) = codec.decode_records(data[len(before) :] + b"rest", layout.ENTRY_HEADER)
    assert record.tolist() == tuple(header)


@given(st.builds(codec.IndexUnit, INT32, INT64, INT32, INT64, INT64))
def test_decoded_index_units_are_those_that_were_encoded(unit: codec.IndexUnit) -> None:
    assert codec.decode_index_unit(codec.encode_index_unit(unit)) == unit


@given(st.builds(codec.ConsumeQueueUnit, INT64, INT32, INT64))
def test_decoded_consume_queue_units_are_those_that_were_encoded(unit: codec.ConsumeQueueUnit) -> None:
    assert codec.decode_consume_queue_unit(codec.encode_consume_queue_unit(unit)) == unit


@given(INT32)
def test_decoded_blanks_are_those_that_were_encoded(size: int) -> None:
    assert codec.decode_blank(b"x" + codec.encode_blank(size), 1) == size
    assert codec.decode_blank(codec.encode_entry(0, 0, 0, b"")) is None


@pytest.mark.parametrize(
    "decode", [codec.decode_entry_header, codec.decode_index_unit, codec.decode_consume_queue_unit]
)
def test_a_truncated_record_is_an_error(decode: object) -> None:
    with pytest.raises(struct.error):
        decode(bytes(10))  # type: ignore[operator]


def test_records_are_decoded_without_a_copy() -> None:
    units = codec.encode_consume_queue_unit(codec.ConsumeQueueUnit(1, 2, 3)) * 1000
    records = codec.decode_records(units, layout.CONSUME_QUEUE_UNIT)
    assert np.shares_memory(records, np.frombuffer(units, np.uint8))
    assert len(records) == 1000


@given(st.binary(max_size=500), st.integers(0, 500))
def test_crc32_is_that_of_java_and_can_be_continued(data: bytes, cut: int) -> None:
    assert codec.crc32(data) == zlib.crc32(data)
    assert codec.crc32(data[cut:], codec.crc32(data[:cut])) == zlib.crc32(data)


def test_signed32() -> None:
    assert [codec.signed32(value) for value in (0, 2**31 - 1, 2**31, 2**32 - 1)] == [0, 2**31 - 1, -(2**31), -1]


# Messages.


@given(generate.mq_messages(in_commitlog=True), st.integers(0, 2**62))
def test_parsed_messages_are_those_that_were_encoded(payload: generate.Payload, position: int) -> None:
    data = payload.make(position)
    parsed = parse_message(b"..." + data + b"...", 3, len(data), position)
    assert isinstance(parsed, Message)
    expected = payload.expected(position)
    for attribute, column in {
        "total_size": "storeSize",
        "magic": "messageMagic",
        "body_crc": "messageCrc",
        "queue_id": "queueId",
        "flag": "flag",
        "queue_offset": "queueOffset",
        "physical_offset": "commitLogOffset",
        "sys_flag": "sysFlag",
        "reconsume_times": "reconsumeTimes",
        "prepared_transaction_offset": "preparedTransactionOffset",
    }.items():
        assert getattr(parsed, attribute) == expected[column]
    assert host_text(parsed.born_host) == expected["bornHost"]
    assert message.offset_msg_id(parsed.store_host, position) == expected["offsetMsgId"]
    topic = data[parsed.topic_start - 3 :][: parsed.topic_length]
    assert topic.decode() == expected["topic"]
    properties = data[parsed.properties_start - 3 :][: parsed.properties_length]
    assert list(parse_properties(properties).items()) == expected["properties"]
    crc = message.stored_property_crc(properties)
    assert crc is None or crc == zlib.crc32(data[:-20]) & 0x7FFFFFFF


def test_the_shortest_message() -> None:
    data = message.encode_message(b"", b"", 7)
    assert len(data) == layout.MIN_MESSAGE_SIZE
    assert isinstance(parse_message(data, 0, 91, 7), Message)


def test_topics_above_127_bytes_get_version_2() -> None:
    for length, magic in ((127, layout.MESSAGE_MAGIC_V1), (128, layout.MESSAGE_MAGIC_V2)):
        parsed = parse_message(data := message.encode_message(b"t" * length, b"", 0), 0, len(data), 0)
        assert isinstance(parsed, Message)
        assert (parsed.magic, parsed.topic_length) == (magic, length)


@given(st.binary(max_size=300), st.integers(91, 300), st.sampled_from(message.MESSAGE_MAGICS))
def test_the_parser_survives_any_bytes(noise: bytes, size: int, magic: int) -> None:
    head = size.to_bytes(4, "big") + magic.to_bytes(4, "big", signed=True)
    data = (head + noise).ljust(size, b"\0")[:size]
    parsed = parse_message(data, 0, size, 0)
    if isinstance(parsed, Message):
        assert parsed.properties_start + parsed.properties_length == size
    else:
        assert parsed.sentence().startswith("expected ")


def test_flags() -> None:
    assert [message.transaction(flag) for flag in (0, 4, 8, 12, 0x7FFFFFF3)] == [
        *("none", "prepared", "commit", "rollback"),
        "none",
    ]
    assert [message.compression(flag) for flag in (0, 0x300, 1, 0x101, 0x201, 0x301, 0x401, -1)] == [
        *("none", "none", "zlib", "lz4", "zstd", "zlib"),
        *(None, None),
    ]


# Properties: the results of MessageDecoder.string2messageProperties of RocketMQ 5.3.3.
PROPERTIES = [
    (b"", {}),
    (b"a\1b", {"a": "b"}),
    (b"a\1b\2", {"a": "b"}),
    (b"a\1b\2\2\2c\1d", {"a": "b", "c": "d"}),
    (b"a\1\2c\1d", {"c": "d"}),
    (b"\1b\2c\1d", {"c": "d"}),
    (b"a\2c\1d", {"c": "d"}),
    (b"a\1b\1c\2", {"a": "b\1c"}),
    (b"a\1\1\2", {"a": "\1"}),
    (b"\1\1b\2", {}),
    (b"\2\2", {}),
    (b"a\1b\2c\1d\2a\1e", {"a": "e", "c": "d"}),
    (b"a\xff\1b\2a\xfe\1c", {"a\ufffd": "c"}),
    ("标签\1值".encode(), {"标签": "值"}),
    (b"a\0\1\0", {"a\0": "\0"}),
]


@pytest.mark.parametrize(("raw", "expected"), PROPERTIES, ids=[repr(raw) for raw, _ in PROPERTIES])
def test_properties_are_parsed_as_in_java(raw: bytes, expected: dict[str, str]) -> None:
    assert list(parse_properties(raw).items()) == list(expected.items())


def test_properties_are_encoded_with_and_without_the_last_separator() -> None:
    assert encode_properties({"a": "b", "c": "d"}) == b"a\1b\2c\1d\2"
    assert encode_properties({"a": "b"}, trailing_separator=False) == b"a\1b"
    assert encode_properties({}) == b""


def test_a_property_crc_has_ten_digits_and_is_last() -> None:
    stored = message.encode_property_crc(123)
    assert stored == b"__CRC32#\x013210000000\x02"
    assert message.stored_property_crc(b"a\1b\2" + stored) == 123
    for other in (b"", stored[:-1], stored + b"\2", stored.replace(b"3", b"x"), b"__CRC32#\1123\2"):
        assert message.stored_property_crc(other) is None
    assert message.stored_property_crc(b"__CRC32#\x019999999999\x02") == 9999999999


# Text. The expected values are those of Java 17's new String(bytes, UTF_8).
JAVA_UTF8 = {
    "41": "A",
    "c3a9": "é",
    "f09f9880": "😀",
    "efbbbf41": "\ufeffA",
    "00": "\0",
    "c080": "??",
    "c3": "?",
    "c341": "?A",
    "80": "?",
    "e08080": "???",
    "e0a0": "?",
    "e0a041": "?A",
    "e18041": "?A",
    "eda080": "?",
    "eda0": "?",
    "eda041": "?A",
    "eda0bd": "?",
    "eda0bdedb880": "??",
    "edbfbf": "?",
    "ed9fbf": "\ud7ff",
    "ed80": "?",
    "f0808080": "????",
    "f09080": "?",
    "f0904141": "?AA",
    "f4908080": "????",
    "f5808080": "????",
    "f5": "?",
    "f580": "??",
    "ff": "?",
    "f8888080": "????",
    "fe41ff": "?A?",
}


@pytest.mark.parametrize(("data", "expected"), JAVA_UTF8.items())
def test_utf8_is_decoded_as_in_java(data: str, expected: str) -> None:
    assert decode_utf8(bytes.fromhex(data)) == expected.replace("?", "\ufffd")


@given(st.text())
def test_valid_utf8_is_not_changed(text: str) -> None:
    assert decode_utf8(text.encode(errors="replace")) == text.encode(errors="replace").decode()


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_to_valid_text(data: bytes) -> None:
    decode_utf8(data).encode()


# RFC 5952, with its examples.
IPV6 = [
    *("::", "::1", "1::", "2001:db8::1", "2001:db8:0:1:1:1:1:1", "2001:0:0:1::1", "2001:db8::1:0:0:1"),
    *("1:2:3:4:5:6:7:8", "::2:3:4:5:6:7:8", "1:2:3:4:5:6::", "fe80::abcd", "::ffff:1.2.3.4", "::fffe:102:304"),
]


@pytest.mark.parametrize("text", IPV6)
def test_ipv6_text_is_that_of_rfc_5952(text: str) -> None:
    expected = text.replace("::2:3", "0:2:3")  # one group of zeros is not shortened
    assert ipv6_text(ipaddress.IPv6Address(text).packed) == expected


@given(st.ip_addresses(v=6))
def test_ipv6_text_is_the_same_address(address: ipaddress.IPv6Address) -> None:
    assert ipaddress.IPv6Address(ipv6_text(address.packed)) == address


@given(generate.HOSTS)
def test_host_texts_have_address_and_port(host: tuple[str, int]) -> None:
    assert host_text(message.encode_host(*host)) == generate.host_text(host)
