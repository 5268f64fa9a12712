"""Tables and fields as text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal

from pyspark_dledger.cli.output.rows import Row, cell
from pyspark_dledger.cli.output.stream import Output, uninterrupted
from pyspark_dledger.format.json_text import json_line

_ANY_WIDTH = 100_000
# The first rows determine the widths of the columns.
_TABLE_ROWS = 500
# A longer text moves the rest of its line only.
_MAX_WIDTH = 40


def print_rows(out: Output, rows: Iterable[Row], as_json: bool) -> int:
    """Print rows as JSON lines or as a table; returns how many."""
    if as_json:
        count = 0
        for row in rows:
            out.line(json_line(row))
            count += 1
        return count
    return print_table(out, rows)


def print_fields(out: Output, row: Row) -> None:
    """Print the values of one row, a line each."""
    width = max(map(len, row))
    for name, value in row.items():
        out.line(f"{name:{width}}  {'-' if value is None else cell(value)}")


def print_table(out: Output, rows: Iterable[Row]) -> int:
    """Print rows under the names of their columns; returns how many. On a terminal that is wide enough, with rules."""
    remaining = iter(rows)
    count = 0
    while chunk := list(islice(remaining, _TABLE_ROWS)):
        cells = [[cell(value) for value in row.values()] for row in chunk]
        right = [all(isinstance(row[name], (int, float, type(None))) for row in chunk) for name in chunk[0]]
        names = list(chunk[0])
        if not (out.is_terminal and _print_rich(out, names, cells, right)):
            _print_aligned(out, names, cells, right, with_names=out.is_terminal or count == 0)
        count += len(chunk)
    return count


def _print_aligned(
    out: Output, names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], with_names: bool
) -> None:
    table = [names, *cells]
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in zip(*table, strict=True)]
    for line in table if with_names else cells:
        parts = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        )
        out.line("  ".join(parts).rstrip())


def _print_rich(out: Output, names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> bool:
    """Print a table with long texts folded, if the terminal is wide enough; returns whether it was."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_right, column in zip(names, right, zip(*cells, strict=True), strict=True):
        widest = max(map(len, (name, *column)))
        justify: Literal["left", "right"] = "right" if is_right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", min_width=min(widest, _MAX_WIDTH))
    for line in cells:
        table.add_row(*map(Text, line))
    console = Console(file=sys.stdout, highlight=False)
    if console.measure(table, options=console.options.update_width(_ANY_WIDTH)).minimum > console.width:
        return False
    out.flush()
    out.progress.clear()
    with uninterrupted():
        console.print(table)
    return True
