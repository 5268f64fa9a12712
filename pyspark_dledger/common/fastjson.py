"""Parses JSON as fastjson 1.2 writes it: maps with numbers as keys are ``{0:12}``, which is not JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pyspark_dledger.common.integers import INT64_MAX

# A broker with 100,000 groups of 16 queues writes some 30 MB. Parsed, a file takes some 20 times as much.
MAX_FILE_SIZE = 64 * 1024 * 1024
# Objects and lists have at least so many bytes on average: an empty list takes 20 times its bytes.
_BYTES_OF_OBJECT = 8
# An escape, a quote, or a number before a colon: a key unless it is in a string. They are found in linear time, as no
# search starts inside a number. A pattern of a whole string would take 100 bytes for each of its characters.
_QUOTE_OR_KEY = re.compile(r'\\.|"|(?<![0-9])(-?[0-9]{1,19})(?![0-9])(?=\s*:)', re.DOTALL)
# A pair of escaped surrogates, half of one, or another escape. Half of one is no text.
_SURROGATES = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(\\.)", re.DOTALL
)


def parse_fastjson(data: bytes) -> dict[str, Any]:
    """The object in `data`. Raises ValueError for anything else, and for more than 64 MiB."""
    if len(data) > MAX_FILE_SIZE:
        raise ValueError(f"expected at most {MAX_FILE_SIZE} bytes, found more")
    if not data.strip(b" \t\r\n\0"):
        raise ValueError("expected an object, found an empty file")
    if (count := data.count(b"{") + data.count(b"[")) > _BYTES_OF_OBJECT + len(data) // _BYTES_OF_OBJECT:
        raise ValueError(f"expected a broker's config, found {count} objects and lists in {len(data)} bytes")
    text = _with_quoted_keys(data.decode(errors="replace"))
    if r"\ud" in text.lower():
        text = _SURROGATES.sub(lambda found: found[1] or found[2] or r"\ufffd", text)
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("expected an object, found one nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def _with_quoted_keys(text: str) -> str:
    """The text with quotes around keys that are numbers."""
    parts: list[str] = []
    start, is_in_string = 0, False
    for found in _QUOTE_OR_KEY.finditer(text):
        if found[0] == '"':
            is_in_string = not is_in_string
        elif found[1] and not is_in_string:
            parts += (text[start : found.start()], f'"{found[1]}"')
            start = found.end()
    return "".join((*parts, text[start:]))


def number_in(fields: Mapping[str, Any], name: str, limit: int = INT64_MAX >> 1) -> int:
    """The number in a field of an object, 0 to `limit`. Raises ValueError for anything else."""
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"expected a number as {name}, found {str(value)[:40]}")
    return value
