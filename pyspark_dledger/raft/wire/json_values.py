"""JSON values as fastjson 1.x writes them, read with its tolerance."""

from __future__ import annotations

import binascii
import json
import re
import reprlib
import sys
from typing import Any, NoReturn

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

MAX_TEXT_SIZE = 4096
"""The maximum size of a name or an address, in bytes of UTF-8."""

# The values in a large body are limited by what Java writes: entries, objects of more than 90 bytes with 8 commas each.
# Without a limit, a frame of 16 MiB could take a hundred times its size in memory, and seconds of CPU time.
_SMALL = 4096
_BYTES_OF_OBJECT = 64
_COMMAS = 1000
_COMMAS_OF_OBJECT = 16

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_MAX_DIGITS = 20
_EXACT = 2.0**53
_BITS = {32: (-(2**31), 2**31 - 1), 64: (-(2**63), 2**63 - 1)}
_SHOWN = 60
# The characters that fastjson escapes: control characters of both ranges, and line ends of JavaScript.
_SPECIAL = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def parse_object(data: Buffer, what: str) -> dict[str, Any] | None:
    """A JSON object; None for ``null`` or nothing. Raises WireError for all other bytes."""
    raw = bytes(data)
    if not raw or raw.isspace():
        return None
    if len(raw) > _SMALL:
        _check_shape(raw, what)
    try:
        value = _DECODER.decode(raw.removeprefix(_BYTE_ORDER_MARK).decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"expected {what} as a JSON object, found {shown(raw)}: {_first_line(error)}") from None
    if value is not None and not isinstance(value, dict):
        raise WireError(f"expected {what} as a JSON object, found {shown(raw)}")
    return value


def integer(value: Any, name: str, bits: int) -> int:
    """A signed integer of that many bits. As in Java, it may be a string of digits or a float without a fraction.

    Raises WireError.
    """
    if type(value) is not int:
        value = _as_integer(value, name)
    minimum, maximum = _BITS[bits]
    if not minimum <= value <= maximum:
        raise WireError(f"expected {name} from {minimum} to {maximum}, found {shown(value)}")
    return int(value)


def text(value: Any, name: str) -> str:
    """A string of at most `MAX_TEXT_SIZE` bytes of UTF-8. Raises WireError."""
    if not isinstance(value, str):
        raise WireError(f"expected {name} as a string, found {shown(value)}")
    if len(value) > MAX_TEXT_SIZE or not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise WireError(f"expected {name} as Unicode text, found half of a surrogate pair") from None
        if size > MAX_TEXT_SIZE:
            raise WireError(f"expected {name} of at most {MAX_TEXT_SIZE} bytes, found {size}")
    return value


def base64_bytes(value: Any, name: str) -> bytes:
    """The bytes of a base64 string of the standard alphabet, with or without padding. Raises WireError."""
    if not isinstance(value, str):
        raise WireError(f"expected {name} as a base64 string, found {shown(value)}")
    if len(value) % 4 and not value.endswith("="):
        value += "=" * (-len(value) % 4)
    try:
        data = binascii.a2b_base64(value)
    except ValueError as error:  # binascii.Error is one, and so is a character that is not ASCII
        raise WireError(f"expected {name} in base64, found {shown(value)}: {_first_line(error)}") from None
    padding = 2 if value.endswith("==") else value.endswith("=")
    # The decoder skips other characters silently, which shows in the length.
    if len(value) % 4 or len(data) != len(value) // 4 * 3 - padding:
        raise WireError(f"expected {name} in base64, found {shown(value)} with characters that are not")
    return data


def quote(value: str) -> str:
    """A JSON string as fastjson writes it. Raises EncodeError for half of a surrogate pair."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EncodeError(f"expected Unicode text, found half of a surrogate pair in {value[:_SHOWN]!r}") from None
    elif value.isalnum():
        return f'"{value}"'  # as most are, and much faster
    return f'"{_SPECIAL.sub(_escaped, value)}"'


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return _ESCAPES.get(character) or f"\\u{ord(character):04X}"


def _as_integer(value: Any, name: str) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    raise WireError(f"expected a whole number for {name}, found {shown(value)}")


def _check_shape(raw: bytes, what: str) -> None:
    """Raises WireError for more values than the size allows, before any value is parsed."""
    objects = raw.count(b"{")
    lists, commas = raw.count(b"["), raw.count(b",")
    if objects + lists > len(raw) // _BYTES_OF_OBJECT or commas > _COMMAS + _COMMAS_OF_OBJECT * objects:
        raise WireError(
            f"expected {what} as DLedger writes it, found {objects} objects, {lists} lists and {commas} commas "
            f"in {len(raw)} bytes"
        )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


# Newer releases of Python reject too many digits themselves, and are much faster with the built-in `int`.
_PARSE_INT = int if hasattr(sys, "get_int_max_str_digits") else _bounded_int
# Not strict: like fastjson, it accepts control characters in strings.
_DECODER = json.JSONDecoder(parse_int=_PARSE_INT, parse_constant=_no_constant, strict=False)


def shown(value: object) -> str:
    """The beginning of a value, which may be too long or too nested for `repr`."""
    return reprlib.repr(value[:_SHOWN] if isinstance(value, bytes) else value)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][: 2 * _SHOWN]
