"""Both engines make the same JSON lines of a batch, which are those of `json_line` for each row."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspark_dledger as dl
from pyspark_dledger.format import json_text, native_engine
from pyspark_dledger.format.columns import PROPERTIES, TIMESTAMP
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.json_text import BytesForm, bytes_text, json_line, rows_of
from tests.support import golden
from tests.support.long_runs import examples

ENGINES = get_engine("native"), get_engine("python")
FORMS: tuple[BytesForm, ...] = ("base64", "hex", "text")
TYPES = (pa.int32(), pa.int64(), pa.bool_(), TIMESTAMP, pa.string(), pa.binary(), PROPERTIES)
EPOCH = datetime(1970, 1, 1)
FIRST_DAY, LAST_DAY = -719162, 2932896
DAY = 86_400_000_000  # microseconds
ODD = ['"', "\\", "\n", "\x00", "\x7f", "\x9f", "\xa0", "\xad", "\u200b", "\u2028", "\ufeff", "é", "中", "😀"]

Value = Any

many_examples = settings(deadline=None, max_examples=examples(80))


def text_of(engine: Engine, batch: pa.RecordBatch, form: BytesForm = "base64") -> str:
    return b"".join(engine.json_lines(batch, form)).decode()


def expected(batch: pa.RecordBatch, form: BytesForm = "base64") -> str:
    return "".join(f"{json_line(row)}\n" for row in rows_of(batch, bytes_text(form)))


def check(batch: pa.RecordBatch, form: BytesForm = "base64") -> None:
    """Both engines make the lines of the rows, one by one."""
    wanted = expected(batch, form)
    for engine in ENGINES:
        assert text_of(engine, batch, form) == wanted, engine.NAME


def batch_of(**columns: Sequence[Value] | pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("case", ["mq-53-upgrade", "raw-killed", "mq-oldest"])
@pytest.mark.parametrize("form", FORMS)
def test_lines_of_a_batch_are_those_of_its_rows(case: str, form: BytesForm, case_folder: Callable[[str], Path]) -> None:
    path = case_folder(case) / next(each.folder for each in golden.ALL if each.case == case)
    for batch in dl.open_log(path).scan(includeEntryBody=True):
        for part in (batch, batch.slice(1, 7), batch.slice(3), batch.slice(0, 0)):
            check(part, form)


odd_texts = st.text(st.sampled_from([*ODD, "x"]), max_size=20) | st.text(max_size=20)
long_texts = st.builds(str.__mul__, odd_texts, st.integers(0, 1000))
texts = odd_texts | long_texts
values = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    TIMESTAMP: st.integers(FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1),
    pa.string(): texts,
    pa.binary(): st.binary(max_size=70) | texts.map(str.encode),
    PROPERTIES: st.dictionaries(texts, st.none() | texts, max_size=4).map(lambda pairs: list(pairs.items())),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A slice of a batch with any columns, and with nulls."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=8))
    named = odd_texts.filter(lambda name: "\0" not in name)  # NUL ends a name in C
    names = draw(st.lists(named, min_size=len(types), max_size=len(types), unique=True))
    count = draw(st.integers(0, 12))
    columns = [draw(st.lists(st.none() | values[each], min_size=count, max_size=count)) for each in types]
    arrays = [pa.array(column, each) for column, each in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names).slice(draw(st.integers(0, count)), draw(st.integers(0, count)))


@pytest.mark.slow
@many_examples
@given(batches(), st.sampled_from(FORMS))
def test_lines_of_any_batch_are_those_of_its_rows(batch: pa.RecordBatch, form: BytesForm) -> None:
    check(batch, form)
    parsed = [json.loads(line) for line in text_of(ENGINES[0], batch, form).splitlines()]
    assert parsed == list(rows_of(batch, bytes_text(form)))


def test_every_character_is_escaped_as_by_json_line() -> None:
    codes = (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)
    whole = "".join(map(chr, codes))
    check(batch_of(text=[whole[at : at + 199] for at in range(0, len(whole), 199)]))


def test_a_character_is_escaped_at_any_position() -> None:
    positions = [*range(20), *range(4080, 4100)]
    check(batch_of(text=["x" * position + odd + "y" * 9 for position in positions for odd in ODD]))


def test_columns_of_types_that_the_log_table_does_not_have() -> None:
    texts = [*ODD, "", None, "plain"]
    check(
        batch_of(
            text=texts,
            list=[[text] for text in texts],
            terms=pa.array([[("n0", 1), ("n1", None)]] * len(texts), pa.map_(pa.string(), pa.int64())),
            seconds=pa.array([0] * len(texts), pa.timestamp("s")),
            small=pa.array([7] * len(texts), pa.uint8()),
        )
    )


def test_bytes_of_every_length_become_text() -> None:
    data = bytes(range(256)) * 40
    lengths = [*range(70), *range(4090, 4103), 10_000]
    for form in FORMS:
        check(batch_of(data=[data[length % 7 :][:length] for length in lengths]), form)


@many_examples
@given(st.lists(st.binary(max_size=12) | texts.map(lambda text: text.encode()[1:-1]), max_size=20))
def test_bytes_that_are_not_utf_8_are_escaped(data: list[bytes]) -> None:
    check(batch_of(data=pa.array(data, pa.binary())), "text")


def test_days_of_the_calendar() -> None:
    days = [*range(FIRST_DAY, LAST_DAY, 97), *range(-800, 800), LAST_DAY]
    batch = batch_of(time=pa.array([day * DAY + 3_723_004_000 for day in days], TIMESTAMP))
    times = [json.loads(line)["time"] for line in text_of(ENGINES[0], batch).splitlines()]
    wanted = [(EPOCH + timedelta(days=day)).strftime("%Y-%m-%d") for day in days]
    assert times == [f"{day.rjust(10, '0')}T01:02:03.004Z" for day in wanted]
    check(batch)


@pytest.mark.parametrize("micros", [FIRST_DAY * DAY - 1000, (LAST_DAY + 1) * DAY, 2**63 - 1, -(2**63)])
def test_a_time_outside_the_years_1_to_9999_is_rejected(reader: Engine, micros: int) -> None:
    batch = batch_of(time=pa.array([None, 0, micros], TIMESTAMP))
    with pytest.raises(ValueError, match=r"expected a time within the years 1 to 9999, found -?\d+ ms"):
        text_of(reader, batch)


def test_rows_without_columns_are_empty_objects(reader: Engine) -> None:
    batch = batch_of(pos=[1, 2, 3]).select([])
    assert text_of(reader, batch) == "{}\n" * 3
    assert list(reader.json_lines(batch.slice(0, 0), "base64")) == []


def test_pieces_are_whole_lines(reader: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(text=["x" * size for size in range(300)], number=list(range(300)))
    monkeypatch.setattr(native_engine, "_JSON_PIECE_BYTES", 1000)
    monkeypatch.setattr(json_text, "_PIECE_BYTES", 1000)
    pieces = list(reader.json_lines(batch, "base64"))
    assert len(pieces) > 20
    assert all(piece.endswith(b"}\n") for piece in pieces)
    assert b"".join(pieces).decode() == expected(batch)


def test_lines_keep_their_batch_alive() -> None:
    batch = batch_of(text=["text" * 1000] * 1000)
    wanted = expected(batch)
    lines = ENGINES[0].json_lines(batch, "base64")
    first = next(lines)
    del batch
    assert (first + b"".join(lines)).decode() == wanted


def buffers_of(offsets: Sequence[int]) -> tuple[pa.Buffer, Callable[[], None]]:
    """A buffer of offsets that are 0 until the function is called, because Arrow checks them in between."""
    data = bytearray(4 * len(offsets))
    return pa.py_buffer(data), lambda: struct.pack_into(f"={len(offsets)}i", data, 0, *offsets)


def refused(batch: pa.RecordBatch, spoil: Callable[[], None]) -> None:
    spoil()
    with pytest.raises(ValueError, match=r"(?i)offset"):
        text_of(ENGINES[0], batch)


@pytest.mark.parametrize("offsets", [[0, 8, 4, 10], [4, 2, 6, 10], [-4, 2, 6, 10], [0, 4, 99, 10], [0, 4, 6, 11]])
def test_offsets_outside_their_bytes_are_rejected(offsets: list[int]) -> None:
    texts = pa.array(list("0123456789"))
    pairs = pa.StructArray.from_arrays(
        [texts, texts], fields=[pa.field("key", pa.string(), False), pa.field("value", pa.string())]
    )
    for kind in (pa.string(), pa.binary()):
        ends, spoil = buffers_of(offsets)
        refused(batch_of(column=pa.Array.from_buffers(kind, 3, [None, ends, pa.py_buffer(b"0123456789")])), spoil)
    ends, spoil = buffers_of(offsets)
    refused(batch_of(column=pa.Array.from_buffers(PROPERTIES, 3, [None, ends], children=[pairs])), spoil)


@pytest.mark.parametrize(
    ("offsets", "used"),
    [([0, 8, 4, 10], 3), ([4, 2, 6, 10], 3), ([0, 4, 99, 10], 3), ([0, 2, 2_000_000_000, 10], 2)],
)
def test_offsets_of_properties_that_do_not_ascend_are_rejected(offsets: list[int], used: int) -> None:
    """Also those that ascend as far as a map uses them, and lead outside the bytes."""
    ends, spoil = buffers_of(offsets)
    texts = pa.Array.from_buffers(pa.string(), 3, [None, ends, pa.py_buffer(b"0123456789")])
    column = pa.MapArray.from_arrays([0, used], pa.array(list("abc")), texts)
    refused(batch_of(column=column), spoil)
