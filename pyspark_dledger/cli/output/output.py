"""What is printed: whole lines to standard output, rows as JSON or text, tables, and notes to standard error."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from pyspark_dledger.cli.output.progress import ProgressBar
from pyspark_dledger.format.json_text import (
    NOT_PRINTABLE,
    BytesForm,
    bytes_text,
    escape,
    json_line,
    printable,
    time_texts,
)

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

BODY_FORMS = ("text", "hex", "base64", "none")
BODY_COLUMNS = ("body", "entryBody")

_ANY_WIDTH = 100_000
_EPOCH = datetime(1970, 1, 1)
# A pipe takes this much at once.
_BLOCK = 64 * 1024
# Widths of a table are those of its first rows.
_TABLE_ROWS = 500
# A longer text moves the rest of its line only.
_WIDEST = 40
_FIRST_BYTE = 0xDC00


class Output:
    """Standard output, in whole lines: who interrupts or leaves never sees half of one. And how far the work is."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.progress = ProgressBar()
        self._lines: list[str] = []
        self._size = 0

    def line(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text) + 1
        if self.is_terminal or self._size >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            text = "\n".join(self._lines) + "\n"
            self._lines.clear()
            self._size = 0
            self.progress.clear()
            with _uninterrupted():
                _write(text)


def _write(text: str) -> None:
    """All of `text` to standard output: Python's own unbuffered stream forgets the rest when a signal comes."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # a stream that is no file
        sys.stdout.write(text)
        return
    data = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait for the end of the block; the second one does not wait, for whoever reads may be stuck."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def wait(_signal: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def note(text: str) -> None:
    """A line for the one who looks on, on standard error."""
    print(f"dledger: {printable(text)}", file=sys.stderr, flush=True)


def rows_of(batch: pa.RecordBatch, body: Callable[[bytes], object]) -> Iterator[Row]:
    """The rows of a batch as plain values: times as ISO 8601 text with milliseconds, bytes as `body` gives them."""
    columns = [_values(column, body) for column in batch.columns]
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _values(column: pa.Array, body: Callable[[bytes], object]) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return time_texts(column)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if value is None else body(value) for value in column.to_pylist()]
    if pa.types.is_map(column.type):
        return _maps(column)
    values: list[Any] = column.to_pylist()
    return values


def _maps(column: pa.MapArray) -> list[dict[Any, Any] | None]:
    """Maps as dicts, some twenty times faster than one by one."""
    keys, items, ends = column.keys.to_pylist(), column.items.to_pylist(), column.offsets.to_pylist()
    return [
        dict(zip(keys[start:end], items[start:end], strict=True)) if is_valid else None
        for start, end, is_valid in zip(ends, ends[1:], column.is_valid().to_pylist(), strict=False)
    ]


def bytes_form(form: str) -> BytesForm:
    """How JSON has bytes in one of `BODY_FORMS`; with ``none`` those of other columns."""
    return "hex" if form == "hex" else "base64" if form == "base64" else "text"


def body_form(form: str, as_json: bool) -> Callable[[bytes], str]:
    """How bytes become text; in the form ``text`` what is not UTF-8 comes out as backslash escapes."""
    in_json = bytes_form(form)
    if as_json or in_json != "text":
        return bytes_text(in_json)
    # A line of text has escapes of its own, which `shown` makes of it.
    return lambda data: data.decode("utf-8", "surrogateescape")


def camel_case(name: str) -> str:
    """A field's name as the columns are spelled: ``end_index`` is ``endIndex``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def plain_time(milliseconds: int | None) -> str | None:
    """Milliseconds since 1970, within the years 1 to 9999, as the columns show a time."""
    if milliseconds is None:
        return None
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


_encode = json.JSONEncoder(ensure_ascii=False).encode


def text_line(row: Row) -> str:
    """A row's columns that are not null."""
    return " ".join(f"{name}={shown(value)}" for name, value in row.items() if value is not None)


def shown(value: object) -> str:
    """A value of a line: text as it is, or quoted as JSON does where it would not be one word."""
    if isinstance(value, str) and value and " " not in value and '"' not in value and value.isprintable():
        return value
    return NOT_PRINTABLE.sub(_escape_bytes, _encode(value))


def cell(value: object) -> str:
    """A value of a table: nothing for null, lists and maps in words."""
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
    """As `escape`, but a byte that is not UTF-8, which Python keeps as half of a pair, as the byte that it is."""
    byte = ord(found[0]) - _FIRST_BYTE
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else escape(found)


def print_rows(out: Output, rows: Iterable[Row], as_json: bool) -> int:
    """Rows as JSON lines or as a table; returns how many."""
    if as_json:
        count = 0
        for row in rows:
            out.line(json_line(row))
            count += 1
        return count
    return print_table(out, rows)


def print_fields(out: Output, row: Row) -> None:
    """The values of one row, a line each."""
    width = max(map(len, row))
    for name, value in row.items():
        out.line(f"{name:{width}}  {'-' if value is None else cell(value)}")


def print_table(out: Output, rows: Iterable[Row]) -> int:
    """Rows under the names of their columns; returns how many. What fits a terminal is drawn as a table there."""
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
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(*table, strict=True)]
    for line in table if with_names else cells:
        parts = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        )
        out.line("  ".join(parts).rstrip())


def _print_rich(out: Output, names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> bool:
    """Whether it fits the terminal, with long texts on several lines; then it is printed."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_right, column in zip(names, right, zip(*cells, strict=True), strict=True):
        widest = max(map(len, (name, *column)))
        justify: Literal["left", "right"] = "right" if is_right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", min_width=min(widest, _WIDEST))
    for line in cells:
        table.add_row(*map(Text, line))
    console = Console(file=sys.stdout, highlight=False)
    if console.measure(table, options=console.options.update_width(_ANY_WIDTH)).minimum > console.width:
        return False
    out.flush()
    out.progress.clear()
    with _uninterrupted():
        console.print(table)
    return True
