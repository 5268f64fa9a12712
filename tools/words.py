"""Keeps README.md and docs/ short: ``python -m tools.words``, a part of ``make lint``. Words are those of ``wc -w``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

README_WORDS = 900
"""Five minutes of reading, examples included: who decides whether to use the package gives it no more."""
DOCS_WORDS = 29_800
"""All pages together: two hours of reading. A page that grows makes another one shorter."""
SENTENCE_WORDS = 30
"""Two lines of text. Longer sentences have nested clauses, which readers of a second language lose."""
PARAGRAPH_LINES = 5
"""A longer paragraph is a list, a table, or two paragraphs."""
FIRST_WORDS = 15
"""Each page of docs/ begins with a paragraph of at least so many words: what it is for, for whom, and when not."""
LINE_LENGTH = 160
"""A diff of two versions fits side by side on a wide screen. Tables and code cannot be wrapped."""

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
# Generated tables and blocks of code are no prose.
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->")
_TABLE_OR_HEADING = re.compile(r"^(\||#)")
_ITEM = re.compile(r"^\s*([-*]|\d+\.)\s+")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[*)\"]*\s+(?=\S)")
# A dot after these ends no sentence.
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|vs|etc)\.")


def prose_lines(text: str) -> Iterator[str]:
    """The lines of a page outside of blocks of code, tables and headings; an empty line for each of these."""
    for line in _COMMENT.sub("", _FENCED.sub("", text)).splitlines():
        yield "" if _TABLE_OR_HEADING.match(line) else line


def paragraphs(text: str) -> Iterator[list[str]]:
    """The lines of each paragraph of a page's prose. An item of a list is a paragraph."""
    paragraph: list[str] = []
    for line in [*prose_lines(text), ""]:
        if paragraph and (not line.strip() or _ITEM.match(line)):
            yield paragraph
            paragraph = []
        if line.strip():
            paragraph.append(_ITEM.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose. Code and the text of a link are one word."""
    for paragraph in paragraphs(text):
        whole = _CODE.sub("code", _LINK.sub(r"\1", " ".join(paragraph)))
        yield from _END_OF_SENTENCE.split(_ABBREVIATED.sub(r"\1", whole))


def has_introduction(text: str) -> bool:
    """Whether a paragraph, not a table, a list or code, follows the title."""
    first = text.partition("\n\n")[2].partition("\n\n")[0]
    is_prose = not first.startswith(("|", "#", "```", "<!--")) and not _ITEM.match(first)
    return is_prose and len(first.split()) >= FIRST_WORDS


def problems(page: str, text: str) -> Iterator[str]:
    """What is too long on one page, a line for each."""
    for paragraph in paragraphs(text):
        if len(paragraph) > PARAGRAPH_LINES:
            yield f"{page}: a paragraph of {len(paragraph)} lines, at most {PARAGRAPH_LINES}: {paragraph[0]}"
    for sentence in sentences(text):
        if (count := len(sentence.split())) > SENTENCE_WORDS:
            yield f"{page}: a sentence of {count} words, at most {SENTENCE_WORDS}: {sentence}"
    for line in prose_lines(text):
        if len(line) > LINE_LENGTH:
            yield f"{page}: a line of {len(line)} characters, at most {LINE_LENGTH}: {line[:60]}..."


def all_problems() -> Iterator[str]:
    """What is too long on any page, or in all of them together."""
    readme = len(README.read_text().split())
    if readme > README_WORDS:
        yield f"README.md: {readme} words, at most {README_WORDS}"
    docs = sum(len(page.read_text().split()) for page in DOCS)
    if docs > DOCS_WORDS:
        yield f"docs/: {docs} words, at most {DOCS_WORDS}"
    for page in (README, *DOCS):
        yield from problems(str(page.relative_to(ROOT)), page.read_text())
    for page in DOCS:
        if not has_introduction(page.read_text()):
            yield f"{page.relative_to(ROOT)}: expected a paragraph of at least {FIRST_WORDS} words after the title"


if __name__ == "__main__":
    found = list(all_problems())
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    sys.exit(1 if found else 0)
