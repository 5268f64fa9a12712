"""The files checkpoint and currterm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format.state_files import (
    Checkpoint,
    CurrentTerm,
    parse_checkpoint,
    parse_current_term,
    parse_properties_file,
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
