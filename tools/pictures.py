"""Draws the pictures of docs/ from tables of its pages: ``python -m tools.pictures``, a part of ``make docs``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH = 840
_LINE = 18
_CHARACTER = 6.7
"""Pixels that a character of 13 px needs at most, on average, in the fonts that systems have."""
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.name { font: bold 13px ui-monospace, monospace }
.small { fill: #59636e }
rect { stroke: #59636e; fill: #f6f8fa }
.a { fill: #ddf4ff } .b { fill: #fff8c5 } .c { fill: #dafbe1 }
path { stroke: #59636e; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #b1bac4 }
rect { stroke: #8b949e; fill: #21262d }
.a { fill: #0c2d6b } .b { fill: #4b3600 } .c { fill: #033a16 }
path { stroke: #8b949e }
}
"""


@dataclass(frozen=True)
class Room:
    """A folder of the package in the picture: its row, its columns of eight, and how many rows it takes."""

    row: int
    columns: range
    rows: int = 1


ROOMS = {
    "cli/": Room(0, range(8)),
    "spark/": Room(1, range(8)),
    "cluster/": Room(2, range(8)),
    "raft/": Room(3, range(5)),
    "store/": Room(4, range(5)),
    "rocketmq/": Room(3, range(5, 8), rows=2),
    "log/": Room(5, range(8)),
    "format/, native/": Room(6, range(8)),
    "common/": Room(7, range(8)),
}
OUTSIDE = {"cli/": "a shell", "spark/": "Spark", "cluster/": "RocketMQ clusters", "raft/": "DLedger members"}
KINDS = {"a": "the log", "b": "built from the log", "c": "state"}
FILES = {
    "storePathRootDir": "",
    "commitlog/": "a",
    "dledger-n0/data/": "a",
    "dledger-n0/index/": "b",
    "dledger-n0/checkpoint": "c",
    "dledger-n0/currterm": "c",
    "consumequeue/TOPIC/QUEUE/": "b",
    "index/": "b",
    "checkpoint": "c",
    "config/": "c",
    "abort": "c",
}


def rows_of(page: str, head: str) -> dict[str, str]:
    """The first two columns of a table, which begins with `head`, without marks of Markdown."""
    table = (DOCS / page).read_text().partition(f"{head}\n")[2].partition("\n\n")[0]
    cells = [[re.sub(r"`|\[(.*?)\]\(.*?\)", r"\1", cell).strip() for cell in line.split("|")] for line in
             table.splitlines()[1:]]  # fmt: skip
    return {row[1]: row[2] for row in cells}


def architecture() -> str:
    """The folders of the package as a stack, from the table in architecture.md."""
    texts = rows_of("architecture.md", "| folder | contains | does not know |")
    left, top, height, gap = 150, 44, 52, 8
    step = (WIDTH - left) / 8
    parts = [_text(left, 24, "A folder imports only folders that are below it.", "small")]
    for name, room in ROOMS.items():
        x, y = left + room.columns.start * step, top + room.row * (height + gap)
        width, size = len(room.columns) * step - gap, room.rows * (height + gap) - gap
        parts += [_box(x, y, width, size, "a"), _text(x + 12, y + 21, name, "name")]
        parts += _wrapped(x + 12, y + 40, texts[name], width - 24)
        if name in OUTSIDE:
            parts += [_text(0, y + height / 2 + 5, OUTSIDE[name], "small")]
            parts += [f'<path d="M{left - 22} {y + height / 2}H{left - 4}m-6 -4l6 4l-6 4"/>']
    below = top + 8 * (height + gap)
    parts += [_box(left, below, WIDTH - left - gap, 30, ""), _text(left + 12, below + 20, "files of stores", "small")]
    return _svg("The folders of pyspark_dledger", below + 40, parts)


def store() -> str:
    """The files of a store as a tree, from the table in glossary.md."""
    parts = [part for number, (kind, text) in enumerate(KINDS.items()) for part in
             (_box(300 + number * 170, 10, 14, 14, kind), _text(322 + number * 170, 22, text, "small"))]  # fmt: skip
    y, folder = 40, ""
    for name, text in rows_of("glossary.md", "| file | contains |").items():
        kind = FILES[name]
        inside, _, own = name.partition("/") if name.startswith("dledger-") else ("", "", name)
        if inside not in ("", folder):
            parts += [_text(42, y + 16, f"{inside}/", "name")]
            y += 26
        folder = inside
        x = 64 if inside else 20 if kind else 0
        parts += [_box(x, y + 4, 14, 14, kind)] if kind else []
        parts += [_text(x + 22 if kind else x, y + 16, own, "name"), *_wrapped(300, y + 16, text, WIDTH - 300)]
        y += 26
    return _svg("The files of a store of RocketMQ in DLedger mode", y + 8, parts)


PICTURES = {"architecture.svg": architecture, "store.svg": store}


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _wrapped(x: float, y: float, text: str, width: float) -> Iterator[str]:
    for number, line in enumerate(textwrap.wrap(text, int(width / _CHARACTER))):
        yield _text(x, y + number * _LINE, line)


def _svg(title: str, height: float, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *parts, "</svg>\n"])


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw())
