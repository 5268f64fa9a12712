"""The files checkpoint and currterm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format.state_files import (
    Checkpoint,
    CurrentTerm,
    WrongChecksumError,
    encode_state_file,
    parse_checkpoint,
    parse_current_term,
    parse_properties_file,
    parse_state_file,
)


@pytest.mark.parametrize(
    "text",
    [
        "committedIndex=19\nendIndex=21\n",
        "endIndex=21\ncommittedIndex=19",
        "#a comment\n!another\n\n  committedIndex : 19\r\nendIndex\t21\r",
        "committedIndex=+19\nendIndex=00021 \n",
        "committed\\\n   Index=1\\\n  9\nendIndex=\\u0032\\u0031",
        "committedIndex=7\nendIndex=21\ncommittedIndex=19\nsomething=else\n",
    ],
)
def test_a_checkpoint_is_read_in_every_form(text: str) -> None:
    assert parse_checkpoint(text.encode()) == Checkpoint(19, 21)


def test_a_checkpoint_without_committed_entries_has_minus_one() -> None:
    assert parse_checkpoint(b"committedIndex=-1\nendIndex=-1\n") == Checkpoint(-1, -1)


NUMBERS = [
    (b"", "expected a number for committedIndex, found none"),
    (b"\0" * 40, "expected a number for committedIndex, found none"),
    (b"endIndex=21", "expected a number for committedIndex, found none"),
    (b"committedIndex=\nendIndex=21", "expected a number for committedIndex, found none"),
    (b"committedIndex=abc\nendIndex=21", "expected a number for committedIndex, found 'abc'"),
    (b"committedIndex=1_0\nendIndex=21", "expected a number for committedIndex, found '1_0'"),
    (
        b"committedIndex=9223372036854775808\nendIndex=21",
        "expected a number for committedIndex, found '922337203685477",
    ),
    (b"committedIndex=\xb2\nendIndex=21", "expected a number for committedIndex, found '\xb2'"),
    (b"committedIndex=\\u12\nendIndex=21", "expected four hex digits after \\u, found '\\\\u12'"),
]


@pytest.mark.parametrize(("data", "problem"), NUMBERS, ids=[problem for _, problem in NUMBERS])
def test_a_number_that_java_cannot_read_is_a_problem(data: bytes, problem: str) -> None:
    found = parse_checkpoint(data)
    assert found.committed_index is None
    assert found.problem is not None
    assert found.problem.startswith(problem)


def test_readable_numbers_are_read_despite_problems() -> None:
    assert parse_checkpoint(b"committedIndex=5") == Checkpoint(5, None, "expected a number for endIndex, found none")


def test_current_terms() -> None:
    assert parse_current_term(b"voteLeader=n0\ncurrTerm=3\n") == CurrentTerm(3, "n0")
    assert parse_current_term(b"currTerm=-1\nvoteLeader=\n") == CurrentTerm(-1, None)
    assert parse_current_term(b"voteLeader=n0") == CurrentTerm(None, "n0", "expected a number for currTerm, found none")
    assert parse_current_term(b"\\u") == CurrentTerm(None, None, "expected four hex digits after \\u, found '\\\\u'")


# The results of Java 17's Properties.load, except for half of a surrogate pair, which has no UTF-8 form.
PROPERTIES_FILES = [
    ("a=b", {"a": "b"}),
    ("a = b ", {"a": "b "}),
    ("a:b=c", {"a": "b=c"}),
    ("a b:c", {"a": "b:c"}),
    ("a\\=b=c", {"a=b": "c"}),
    ("a\\ b c", {"a b": "c"}),
    ("a==b", {"a": "=b"}),
    ("a\n\nb", {"a": "", "b": ""}),
    ("=b", {"": "b"}),
    ("a=\\", {"a": ""}),
    ("a=b\\\n#c", {"a": "b#c"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=\\x\\t\\n\\\\", {"a": "x\t\n\\"}),
    ("a=\\u00e9\xe9", {"a": "éé"}),
    ("a=\\\\u12", {"a": "\\u12"}),
    ("a=\\uD83D\\uDE00", {"a": "😀"}),
    ("a=\\uD83D", {"a": "\ufffd"}),
    ("\f a=b", {"a": "b"}),
    (" #a=b", {}),
]


@pytest.mark.parametrize(("text", "expected"), PROPERTIES_FILES, ids=[repr(text) for text, _ in PROPERTIES_FILES])
def test_properties_files_are_read_as_in_java(text: str, expected: dict[str, str]) -> None:
    assert parse_properties_file(text.encode("latin-1")) == expected


_TOKENS = st.sampled_from(
    ["committedIndex", "endIndex", "=", ":", " ", "\\", "\n", "\r", "#", "\\u0041", "\\u1", "9", "é"]
)


@given(st.one_of(st.binary(), st.lists(_TOKENS).map(lambda tokens: "".join(tokens).encode("latin-1"))))
def test_no_bytes_raise(data: bytes) -> None:
    parse_checkpoint(data)
    parse_current_term(data)


# Checksums


def test_a_file_begins_with_the_checksum_of_its_other_lines() -> None:
    assert encode_state_file({"voteLeader": "n1", "currTerm": 7}) == b"crc=369415b5\nvoteLeader=n1\ncurrTerm=7\n"


def test_the_order_of_lines_and_comments_are_no_part_of_the_checksum() -> None:
    data = b"currTerm=7\n# written by hand\nvoteLeader=n1\ncrc=369415b5\n"
    assert parse_current_term(data) == CurrentTerm(7, "n1")


def test_files_of_java_have_no_checksum() -> None:
    assert parse_state_file(b"voteLeader=n1\ncurrTerm=7\n") == {"voteLeader": "n1", "currTerm": "7"}


def test_other_lines_are_wrong() -> None:
    data = b"crc=369415b5\nvoteLeader=n1\ncurrTerm=8\n"
    with pytest.raises(WrongChecksumError, match=r"^expected lines with crc 369415b5, found [0-9a-f]{8}$"):
        parse_state_file(data)
    assert parse_current_term(data).curr_term is None
    assert parse_checkpoint(encode_state_file({"committedIndex": 5, "endIndex": 7}).replace(b"5\ne", b"6\ne")) == (
        Checkpoint(None, None, "expected lines with crc f14171d0, found 4c8b1d1e")
    )


_VALUES = st.one_of(st.integers(-1, 2**63).map(str), st.text(max_size=8), st.sampled_from(["", "n0", "n1;n2", "sync"]))
_FILES = st.one_of(
    st.fixed_dictionaries({"committedIndex": st.integers(-1, 2**62), "endIndex": st.integers(-1, 2**62)}),
    st.fixed_dictionaries({"voteLeader": _VALUES, "currTerm": st.integers(-1, 2**62)}),
    st.dictionaries(st.sampled_from(["members", "state", "cluster", "term", "bootId", "flush", "pos"]), _VALUES),
)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(_FILES)
def test_a_flipped_bit_or_a_missing_end_never_gives_other_values(properties: dict[str, object]) -> None:
    data = encode_state_file(properties)
    written = parse_state_file(data)
    assert {key: str(value) for key, value in properties.items()}.keys() == written.keys()
    changed = [flipped(data, bit) for bit in range(8 * len(data))]
    for found in (*changed, *(data[:size] for size in range(len(b"crc=01234567"), len(data)))):
        try:
            values = parse_state_file(found)
        except ValueError:
            continue
        assert {key: values.get(key) for key in written} == written
