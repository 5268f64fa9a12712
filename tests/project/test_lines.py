"""`make lines` counts every module of the package in one room, and the words that `make lint` limits."""

from __future__ import annotations

from pathlib import Path

from tools.lines import ANALYSIS, PACKAGE, ROOMS, report, row, table
from tools.words import DOCS, DOCS_WORDS


def numbers(name: str) -> tuple[int, int]:
    """Lines and modules of a row."""
    lines, modules = next(cells[1:3] for cells in table() if cells[0] == name)
    return int(lines.replace(",", "")), int(modules.replace(",", ""))


def test_the_rooms_are_the_whole_package() -> None:
    rooms = [numbers(f"{room}/") for room in ROOMS] + [numbers("other modules of the package")]
    assert tuple(map(sum, zip(*rooms, strict=True))) == numbers("the whole package")
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(ROOMS)


def test_the_analysis_has_a_sum() -> None:
    rooms = [numbers(f"{room}/") for room in ANALYSIS]
    assert tuple(map(sum, zip(*rooms, strict=True))) == numbers(" + ".join(ANALYSIS))


def test_a_row_counts_lines(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.py").write_text("line\n" * number)
    assert row("room/", tmp_path.iterdir()) == ("room/", "3", "3", "1")
    assert row("room/", ()) == ("room/", "0", "0", "0")


def test_the_words_are_those_of_the_limit() -> None:
    words = sum(len(page.read_text().split()) for page in DOCS)
    assert report().splitlines()[-1].endswith(f"docs/ {words:,} of {DOCS_WORDS:,}")
