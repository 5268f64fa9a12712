"""Rows as JSON: one object a line, in UTF-8, with nothing in it that a terminal would obey.

Times are ISO 8601 text in UTC with milliseconds, bytes are text as the caller says, maps are objects.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

BytesForm = Literal["base64", "hex", "text"]
"""How bytes become text: ``text`` is UTF-8, with what is none as a backslash, x and two digits for each byte."""

# Control characters, what ends a line, what is invisible or turns the direction of text, and halves of pairs.
NOT_PRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# Bytes that stand for themselves in a JSON text: ASCII without control characters, the quote and the backslash.
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
# What does not: as NOT_PRINTABLE, for RE2, which knows no halves of pairs.
_NOT_PLAIN = (
    r'["\\\x00-\x1f\x7f-\x{9f}\x{ad}\x{61c}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{206f}\x{feff}'
    r"\x{fff9}-\x{fffb}]"
)
# Text is addressed with 32 bits, and a byte of it is at most six characters.
_PIECE_BYTES = 64 * 1024 * 1024
_NULL = "null"

_encode = json.JSONEncoder(ensure_ascii=False).encode


def json_line(row: object) -> str:
    """One JSON object, without a character that a terminal would obey."""
    return printable(_encode(row))


def printable(text: str) -> str:
    """Text without a character that a terminal would obey: those are as JSON escapes them."""
    return text if text.isprintable() else NOT_PRINTABLE.sub(escape, text)


def escape(found: re.Match[str]) -> str:
    """One character as JSON escapes it."""
    return json.dumps(found[0])[1:-1]


def base64_text(data: bytes) -> str:
    """Bytes in base64, on one line."""
    return binascii.b2a_base64(data, newline=False).decode()


def bytes_text(form: BytesForm) -> Callable[[bytes], str]:
    """How bytes become text in a form."""
    if form == "base64":
        return base64_text
    return bytes.hex if form == "hex" else lambda data: data.decode("utf-8", "backslashreplace")


def time_texts(column: pa.Array) -> list[str | None]:
    """A timestamp column as ``2026-07-21T03:12:00.000Z``, far faster than by a datetime for each."""
    import pyarrow as pa

    texts = column.cast(pa.timestamp("ms"), safe=False).cast(pa.string()).to_pylist()
    return [text and f"{text[:10]}T{text[11:]}Z" for text in texts]


def json_lines(batch: pa.RecordBatch, form: BytesForm) -> Iterator[bytes]:
    """The rows of a batch in order, each as `json_line` has it and a newline, in UTF-8 and in pieces of whole lines.

    They are made column by column, which is far faster. Raises ValueError for a time outside the years 1 to 9999.
    """
    body = bytes_text(form)
    step = max(batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1), 1)
    for start in range(0, batch.num_rows, step):
        yield _lines(batch.slice(start, step), body)


def _lines(batch: pa.RecordBatch, body: Callable[[bytes], str]) -> bytes:
    import pyarrow.compute as pc

    if not batch.num_columns:
        return b"{}\n" * batch.num_rows
    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        parts += [f"{', ' if number else '{'}{json_line(name)}: ", _texts(column, body)]
    data: bytes = pc.binary_join_element_wise(*parts, "}\n", "").buffers()[2].to_pybytes()
    return data


def _texts(column: pa.Array, body: Callable[[bytes], str]) -> pa.StringArray:
    """Each value of a column in JSON."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        texts = _times(column)
    elif pa.types.is_string(kind):
        texts = _quoted(column)
    elif pa.types.is_binary(kind) and body is base64_text:
        texts = _in_base64(column)
    elif pa.types.is_binary(kind):
        texts = _quoted(pa.array((None if each is None else body(each) for each in column.to_pylist()), pa.string()))
    elif pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        texts = _objects(column, body)
    else:
        return pa.array(map(json_line, column.to_pylist()), pa.string())
    return texts.fill_null(_NULL)


def _times(column: pa.TimestampArray) -> pa.StringArray:
    """Times as `time_texts` has them, quoted; null stays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from pyspark_dledger.format.scan.row_values import MAX_TIMESTAMP, MIN_TIMESTAMP

    times = column.cast(pa.timestamp("ms"), safe=False)
    for found in pc.min_max(times.cast(pa.int64())).as_py().values():
        if found is not None and not MIN_TIMESTAMP <= found <= MAX_TIMESTAMP:
            raise ValueError(f"expected a time within the years 1 to 9999, found {found} ms")
    texts = pc.utf8_replace_slice(times.cast(pa.string()), 10, 11, "T")
    return pc.binary_join_element_wise('"', texts, 'Z"', "")


def _in_base64(column: pa.BinaryArray) -> pa.StringArray:
    """Bytes as texts in base64, in which there is nothing to escape; null stays."""
    import pyarrow as pa

    encoded = (
        None if each is None else b'"%b"' % binascii.b2a_base64(each, newline=False) for each in column.to_pylist()
    )
    return pa.array(encoded, pa.binary()).cast(pa.string())


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    """Texts as `json_line` has them; null stays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    data = texts.buffers()[2]
    if data is None or data.to_pybytes().translate(None, _PLAIN) == b"":
        return quoted
    is_other = pc.match_substring_regex(texts, _NOT_PLAIN).fill_null(False)
    others = [printable(encode_basestring(text)) for text in texts.filter(is_other).to_pylist()]
    return pc.replace_with_mask(quoted, is_other, pa.array(others, pa.string()))


def _objects(column: pa.MapArray, body: Callable[[bytes], str]) -> pa.StringArray:
    """Maps, no key of which is there twice, as objects; null stays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    there = column.drop_null()
    first, last = (there.offsets[place].as_py() for place in (0, len(there)))
    keys, items = (_texts(child[first:last], body) for child in (there.keys, there.items))
    offsets = pc.subtract(there.offsets, first)
    pairs = pa.ListArray.from_arrays(offsets, pc.binary_join_element_wise(keys, items, ": "))
    objects = pc.binary_join_element_wise("{", pc.binary_join(pairs, ", "), "}", "")
    if not column.null_count:
        return objects
    empty = pa.array([""] * len(column), pa.string())
    return pc.replace_with_mask(pc.if_else(column.is_valid(), empty, None), column.is_valid(), objects)
