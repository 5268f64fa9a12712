"""tools/words.py finds what is too long in README.md and docs/, and nothing else."""

from __future__ import annotations

import re

import pytest

from tools.words import (
    DOCS,
    FIRST_WORDS,
    LINE_LENGTH,
    PARAGRAPH_LINES,
    README,
    README_WORDS,
    SENTENCE_WORDS,
    has_introduction,
    problems,
    sentences,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One two. Three!", ["One two.", "Three!"]),
        ("One\ntwo\n\nthree", ["One two", "three"]),
        ("- one\n  two\n- three\n1. four", ["one two", "three", "four"]),
        ("# Head\n\n| a | b |\n\n```\n$ code. Code\n```\ntext", ["text"]),
        ("`a b. c` [of a\nlink](x.md#y), e.g. here", ["code of a link, e.g here"]),
        ("<!-- columns -->\ntext\n<!-- /columns -->", ["text"]),
    ],
)
def test_sentences_are_those_of_the_prose(text: str, found: list[str]) -> None:
    assert list(sentences(text)) == found


def test_long_sentences_and_lines_are_problems() -> None:
    assert list(problems("p", "word " * SENTENCE_WORDS)) == []
    assert "31 words" in next(problems("p", "word " * (SENTENCE_WORDS + 1)))
    assert list(problems("p", "x" * LINE_LENGTH)) == []
    assert "161 characters" in next(problems("p", "x" * (LINE_LENGTH + 1)))
    assert list(problems("p", f"| {'x' * LINE_LENGTH} |")) == []


def test_long_paragraphs_are_problems() -> None:
    assert list(problems("p", "Short.\n" * PARAGRAPH_LINES)) == []
    assert "6 lines" in next(problems("p", "Short.\n" * (PARAGRAPH_LINES + 1)))
    assert list(problems("p", "- Short.\n" * 10)) == []


@pytest.mark.parametrize(
    ("text", "is_introduced"),
    [
        ("# Title\n\n" + "word " * FIRST_WORDS + "\n\nmore", True),
        ("# Title\n\n" + "word " * (FIRST_WORDS - 1) + "\n\nmore", False),
        ("# Title\n\n- " + "word " * FIRST_WORDS, False),
        ("# Title\n\n```\n" + "word " * FIRST_WORDS + "\n```", False),
        ("# Title\n\n| " + "word " * FIRST_WORDS + "|", False),
        ("# Title\n", False),
    ],
)
def test_a_page_begins_with_a_paragraph(text: str, is_introduced: bool) -> None:
    assert has_introduction(text) == is_introduced


def test_the_vocabulary_is_short() -> None:
    """At most 60 words, each explained once: each idea has one word, and each word one idea."""
    page = next(page for page in DOCS if page.name == "architecture.md").read_text()
    words = re.findall(r"\*\*([^*]+)\*\*", page.partition("## Words\n")[2].partition("\n## ")[0])
    assert 40 <= len(words) <= 60
    assert len(set(words)) == len(words)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= README_WORDS
