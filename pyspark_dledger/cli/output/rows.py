"""Rows as plain values, as lines of text, and as cells of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from pyspark_dledger.format.json_text import (
    NOT_PRINTABLE,
    BytesForm,
    bytes_text,
    escape,
    json_line,
    printable,
)

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
