"""Parses JSON as fastjson 1.2 writes it: maps with numbers as keys are ``{0:12}``, which is not JSON."""

from __future__ import annotations

import json
import re
from typing import Any

# A broker with 100,000 groups of 16 queues writes some 30 MB. Parsed, a file takes some 20 times as much.
MAX_FILE_SIZE = 64 * 1024 * 1024
# Objects and lists have at least so many bytes on average: an empty list takes 20 times its bytes.
_BYTES_OF_OBJECT = 8
# A string, so that nothing in it counts as a key; or a number before a colon. Both are found in linear time: a string
# may lack its end, and no search starts inside a number.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*"?|(?<![0-9])(-?[0-9]{1,19})(?![0-9])(?=\s*:)', re.DOTALL)
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
    text = _STRING_OR_KEY.sub(lambda found: f'"{found[1]}"' if found[1] else found[0], data.decode(errors="replace"))
    if r"\ud" in text.lower():
        text = _SURROGATES.sub(lambda found: found[1] or found[2] or r"\ufffd", text)
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("expected an object, found one nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value
