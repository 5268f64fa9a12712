"""The first field in which copies of an entry differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.message import encode_message, message_crc
from pyspark_dledger.log.copies.first_difference import Difference, first_difference
from tests.support.generate import mq_message, write_dledger

MESSAGE = encode_message(b"Orders", b"body", 48, queue_offset=5, properties=b"KEYS\x01k1\x02TAGS\x01a\x02")
CRC = message_crc(b"body")
ENTRY = encode_entry(7, 2, 0, MESSAGE)


def changed(offset: int, data: bytes) -> bytes:
    return ENTRY[:offset] + data + ENTRY[offset + len(data) :]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (changed(19, b"\7"), (19, "term", ("2", str((7 << 32) + 2)))),
        (changed(23, b"\3"), (23, "term", ("2", "3"))),
        (changed(48 + 27, b"\6"), (75, "queueOffset", ("5", "6"))),
        (changed(48 + 8, bytes(3)), (56, "message bodyCrc", (str(CRC), str(CRC & 255)))),
        (changed(48 + 48, b"\x7f"), (96, "bornHost", ("00" * 8, "7f" + "00" * 7))),
        (changed(ENTRY.index(b"body") + 1, b"u"), (ENTRY.index(b"body") + 1, "body", ("ody", "udy"))),
        (changed(ENTRY.index(b"Orders"), b"B"), (ENTRY.index(b"Orders"), "topic", ("Orders", "Brders"))),
        (changed(ENTRY.index(b"k1") + 1, b"2"), (ENTRY.index(b"k1") + 1, "properties", ("KEYS=k1", "KEYS=k2"))),
        (changed(len(ENTRY) - 2, b"b"), (len(ENTRY) - 2, "properties", ("TAGS=a", "TAGS=b"))),
        (encode_entry(7, 2, 0, b"raw"), (7, "size", (str(len(ENTRY)), "51"))),
    ],
)
def test_fields(other: bytes, expected: tuple[int, str, tuple[str, ...]]) -> None:
    assert first_difference([ENTRY, other]) == Difference(*expected)


def test_the_values_of_a_long_property_show_where_they_differ() -> None:
    one, other = (
        encode_entry(7, 2, 0, encode_message(b"T", b"", 48, properties=b"KEYS\x01" + b"k" * 60 + end + b"\x02"))
        for end in (b"1", b"2")
    )
    found = first_difference([one, other])
    assert found is not None and found.values == ("KEYS=kkk...1", "KEYS=kkk...2")


def test_equal_entries_and_bodies_that_are_no_messages() -> None:
    assert first_difference([ENTRY, ENTRY]) is None
    copies = [encode_entry(7, 2, 0, data) for data in (b"abc", b"abd", b"abc")]
    assert first_difference(copies) == Difference(50, "body", ("c", "d", "c"))


def test_diff_names_field_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for node, (five, nine) in enumerate([(5, 9), (6, 9), (5, 2)]):
        offsets = {5: five, 9: nine}
        payloads = [mq_message("T", b"body", queue_offset=offsets.get(number, number)) for number in range(12)]
        write_dledger(tmp_path / f"n{node}", payloads, node=f"n{node}")
        paths.append(str(tmp_path / f"n{node}"))
    assert main(["diff", *paths]) == 1
    text = capsys.readouterr().out
    assert "  index 5 differs from byte 75 on, queueOffset: n0 and n2 5, n1 6\n" in text
    assert "  index 9 differs from byte 75 on, queueOffset: n0 and n1 9, n2 2\n" in text
    assert main(["diff", *paths, "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["firstByte"], row["firstDifference"]) for row in rows if row["verdict"] == "otherBytes"] == [
        (75, "queueOffset: n0 and n2 5, n1 6"),
        (75, "queueOffset: n0 and n1 9, n2 2"),
    ]
