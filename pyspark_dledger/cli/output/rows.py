"""Rows as plain values, as lines of text, and as cells of a table."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal

from pyspark_dledger.cli.output.stream import Output, uninterrupted
from pyspark_dledger.common.fields import json_of
from pyspark_dledger.format.json_text import NOT_PRINTABLE, BytesForm, bytes_text, escape, json_line, printable

Row = dict[str, Any]

BODY_COLUMNS = ("body", "entryBody")

_EPOCH = datetime(1970, 1, 1)
# A byte that is not UTF-8 is U+DC00 plus the byte in Python's text.
_FIRST_BYTE = 0xDC00


def bytes_form(form: str) -> BytesForm:
    """The form of bytes in JSON for a value of ``--body``; with ``none`` that of columns other than bodies."""
    return "hex" if form == "hex" else "base64" if form == "base64" else "text"


def body_form(form: str, as_json: bool) -> Callable[[bytes], str]:
    """The function that turns bytes into text."""
    in_json = bytes_form(form)
    if as_json or in_json != "text":
        return bytes_text(in_json)
    # `shown` makes backslash escapes of the bytes that are not UTF-8.
    return lambda data: data.decode("utf-8", "surrogateescape")


def plain_time(milliseconds: int | None) -> str | None:
    """Milliseconds since 1970, within the years 1 to 9999, as columns show a time."""
    if milliseconds is None:
        return None
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


_encode = json.JSONEncoder(ensure_ascii=False).encode


def row_line(row: Row, as_json: bool) -> str:
    """A row on one line; as text without its nulls."""
    if as_json:
        return json_line(row)
    return " ".join(f"{name}={shown(value)}" for name, value in row.items() if value is not None)


def shown(value: object) -> str:
    """A value of a line: plain text if it is one word, else quoted as in JSON."""
    if isinstance(value, str) and value and " " not in value and '"' not in value and value.isprintable():
        return value
    return NOT_PRINTABLE.sub(_escape_bytes, _encode(value))


def cell(value: object) -> str:
    """A value of a table; empty for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value))
    return printable(str(value))


def _escape_bytes(found: re.Match[str]) -> str:
    """Escapes a character as JSON does, and a byte that is not UTF-8 as its hex digits."""
    byte = ord(found[0]) - _FIRST_BYTE
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else escape(found)


def range_text(first: int, last: int) -> str:
    """A range of indexes, both inclusive."""
    return str(first) if first == last else f"{first} to {last}"


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


def without_empty(rows: Sequence[Row]) -> list[Row]:
    """The rows without the columns that have a value in none."""
    used = {name for row in rows for name, value in row.items() if value not in (None, [])}
    return [{name: row[name] for name in row if name in used} for row in rows]


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


def print_report(out: Output, report: Any, lines: Iterable[str], as_json: bool, after: Iterable[str] = ()) -> None:
    """Print the report of a job: as JSON, or `lines`, its notes, what a broker.conf needs for it, and `after`."""
    out.progress.clear()
    if as_json:
        out.line(json_line(json_of(report)))
        return
    out.lines(lines)
    out.lines(f"note: {text}" for text in report.notes)
    if needed := getattr(report, "broker_conf", None):
        out.lines(["broker.conf needs:", *(f"  {name}={value}" for name, value in needed.items())])
    out.lines(after)
