"""Lines and modules of Python by room, of C++ and of tests, and the words of the docs: ``make lines``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.words import DOCS, DOCS_WORDS, README, README_WORDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pyspark_dledger"
ANALYSIS = ("log", "rocketmq", "cli", "format")
"""The rooms that answer questions about stores. Their sum has a row of its own."""
ROOMS = (*ANALYSIS, "common", "store", "raft", "cluster", "spark")
NATIVE = (".cpp", ".hpp", ".h")
HEAD = ("", "lines", "modules", "lines each")


def row(name: str, files: Iterable[Path]) -> tuple[str, str, str, str]:
    """The lines of some files, how many files these are, and their mean."""
    counts = [len(file.read_bytes().splitlines()) for file in files]
    return name, f"{sum(counts):,}", f"{len(counts):,}", str(sum(counts) // max(len(counts), 1))


def python(*folders: Path) -> list[Path]:
    """The modules below some folders."""
    return [file for folder in folders for file in folder.rglob("*.py")]


def words(files: Iterable[Path]) -> int:
    """The words of some pages, those of their code and tables included."""
    return sum(len(file.read_text().split()) for file in files)


def table() -> Iterator[tuple[str, str, str, str]]:
    """The head, then a row for each room."""
    yield HEAD
    for room in ROOMS:
        yield row(f"{room}/", python(PACKAGE / room))
    yield row("other modules of the package", (file for file in PACKAGE.glob("*.py")))
    yield row(" + ".join(ANALYSIS), python(*(PACKAGE / room for room in ANALYSIS)))
    yield row("the whole package", python(PACKAGE))
    yield row("native/", (file for file in (ROOT / "native").rglob("*") if file.suffix in NATIVE))
    yield row("tests/", python(ROOT / "tests"))
    yield row("benchmarks/, tools/", python(ROOT / "benchmarks", ROOT / "tools"))


def report() -> str:
    """What ``make lines`` prints."""
    rows = list(table())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:<{widths[0]}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in rows
    ]
    lines.append(f"words: README.md {words([README]):,} of {README_WORDS:,}, docs/ {words(DOCS):,} of {DOCS_WORDS:,}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(report())
