"""The engines read what was written, agree on damage, and give the same rows for all splits and batch sizes."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import mmap
import os
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import MalformedError, OptionError, StoreError, UnreadableError
from pyspark_dledger.format import codec, layout, message
from pyspark_dledger.format import engine as engines
from pyspark_dledger.format.columns import COLUMN_BY_NAME, arrow_schema
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.facts import ProblemCode
from pyspark_dledger.format.scan.bodies import expand
from pyspark_dledger.format.spec import (
    COMMITLOG,
    DLEDGER,
    KINDS,
    MODES,
    Filters,
    IntFilter,
    LogEnd,
    ScanRequest,
    Segment,
    TermRun,
)
from tests.support import generate
from tests.support.damage import write_at
from tests.support.generate import (
    COLUMN_NAMES,
    Row,
    Store,
    mq_message,
    raw,
    rows_of,
    write_commitlog,
    write_dledger,
)
from tests.support.long_runs import examples

READ_FACTS = ("problemCode", "problemExpected", "problemFound", "problemErrno")

Damage = Callable[[Store], None]


def budget(count: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples(count),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture
def both() -> tuple[Engine, Engine]:
    return get_engine("native"), get_engine("python")


def request_of(segment: Segment, **options: Any) -> ScanRequest:
    defaults: dict[str, Any] = {"start": segment.base, "end": segment.end, "columns": COLUMN_NAMES}
    return ScanRequest(segment, **(defaults | options))


def read(reader: Engine, request: ScanRequest) -> list[Row]:
    return rows_of(expand(reader.scan(request), request))


def end_of(store: Store, segment: Segment) -> int:
    return min(segment.end, store.end)


def outcome(reader: Engine, request: ScanRequest) -> tuple[list[tuple[pa.RecordBatch, Any]], str | None]:
    """All rows of a scan, and the error that ended it."""
    batches: list[tuple[pa.RecordBatch, Any]] = []
    try:
        batches.extend(reader.scan(request))
    except (StoreError, MalformedError) as error:
        return batches, f"{type(error).__name__}: {error}"
    return batches, None


# Intact logs.


@pytest.mark.slow
@budget(40)
@given(recipe=generate.recipes())
def test_rows_are_those_that_were_written(reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe) -> None:
    store = recipe.write(folder())
    rows = []
    for segment in store.segments:
        rows += read(reader, request_of(segment, end=end_of(store, segment), end_is_boundary=True))
    assert rows == store.rows


@pytest.mark.slow
@budget(15)
@given(recipe=generate.recipes())
def test_log_end_and_term_runs_are_those_that_were_written(
    reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe
) -> None:
    recipe.options.pop("stale", None)
    store = recipe.write(folder())
    for segment in store.segments:
        rows = store.rows_of(segment)
        first, last = rows[0], rows[-1]
        end = last["pos"] + last["size"]
        if recipe.source == DLEDGER:
            ends = first["index"], first["term"], last["index"], last["term"], last["pos"], -1
        else:
            written = [payload for payload, row in zip(recipe.payloads, store.rows, strict=True) if row is last]
            millis = int.from_bytes(store_timestamp_bytes(written[0].make(last["pos"])), "big", signed=True)
            ends = -1, -1, -1, -1, last["pos"], millis
        for search_all in (False, True):
            assert reader.log_end(segment, segment.base, search_all) == LogEnd(end, len(rows), *ends)
        runs = [] if recipe.source == COMMITLOG else runs_of(rows)
        assert reader.term_runs(segment, segment.base, segment.end) == runs


def store_timestamp_bytes(message: bytes) -> bytes:
    at = 68 if message[39] & layout.FLAG_BORN_HOST_V6 else 56
    return message[at : at + 8]


def runs_of(rows: list[Row]) -> list[TermRun]:
    runs: dict[int, list[Row]] = {}
    for row in rows:
        runs.setdefault(row["term"], []).append(row)
    return [TermRun(term, of[0]["index"], of[0]["pos"], len(of)) for term, of in runs.items()]


def test_committed_depends_on_the_index(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"a"), raw(b"b"), raw(b"c")], first_index=7)
    (segment,) = store.segments
    for committed, expected in ((None, [None] * 3), (7, [True, False, False]), (-1, [False] * 3), (99, [True] * 3)):
        request = request_of(segment, columns=("committed",), end=store.end, committed_index=committed)
        assert [row["committed"] for row in read(reader, request)] == expected


def test_a_leading_blank_is_skipped(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"a"), raw(b"b")], leading_blank=1000, check_pos=False)
    (segment,) = store.segments
    assert read(reader, request_of(segment, end=store.end)) == store.rows
    assert reader.log_end(segment, segment.base, False).entries == 2
    assert reader.split(segment, segment.base, store.end, 40) == [1000, 1049]


def test_a_first_entry_with_the_magic_of_a_blank_is_no_leading_blank(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"a"), raw(b"b")])
    (segment,) = store.segments
    path = Path(segment.path)
    path.write_bytes(b"\xff" * 4 + path.read_bytes()[4:])
    first, second = read(reader, request_of(segment, end=store.end))
    assert (first["kind"], first["pos"], second["index"]) == ("corrupt", 0, 1)


def test_a_file_with_only_a_leading_blank_has_no_entries(reader: Engine, tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(codec.encode_blank(1000) + bytes(3992))
    segment = Segment.local(str(path), "0", 0, 4000, DLEDGER, check_pos=False)
    assert reader.log_end(segment, segment.base, True) == LogEnd(0, 0, -1, -1, -1, -1, -1, -1)
    assert read(reader, request_of(segment)) == []


def test_seek_finds_the_first_entry_with_at_least_the_index(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * n) for n in range(50)], file_size=2**14, first_index=100)
    (segment,) = store.segments
    for index in (-1, 0, 99, 100, 101, 149):
        expected = store.rows[max(0, index - 100)]["pos"]
        assert reader.seek(segment, segment.base, store.end, index) == expected
    assert reader.seek(segment, segment.base, store.end, 150) == store.end
    assert reader.seek(segment, store.rows[5]["pos"], store.rows[9]["pos"], 150) == store.rows[9]["pos"]
    commitlog = write_commitlog(tmp_path, [mq_message()])
    assert reader.seek(commitlog.segments[0], 0, commitlog.end, 0) == commitlog.end
    assert reader.term_runs(commitlog.segments[0], 0, commitlog.end) == []


def test_log_end_stops_at_stale_entries_of_an_older_term(reader: Engine, tmp_path: Path) -> None:
    old = write_dledger(tmp_path / "old", [raw(b"old")] * 30, terms=[1] * 30)
    stale = Path(old.segments[0].path).read_bytes()
    store = write_dledger(tmp_path, [raw(b"new")] * 9, terms=[1] * 5 + [2] * 4, stale=lambda _: stale)
    found = reader.log_end(store.segments[0], store.segments[0].base, True)
    assert (found.pos, found.entries, found.last_index, found.last_term) == (store.end, 9, 8, 2)


def test_log_end_continues_after_damage(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 100)] * 20)
    (segment,) = store.segments
    write_at(segment.path, 148 * 3, bytes(148 * 2 + 4))
    found = reader.log_end(segment, segment.base, False)
    assert (found.pos, found.entries, found.last_index) == (store.end, 17, 19)


def test_log_end_searches_8_mib_or_all(reader: Engine, tmp_path: Path) -> None:
    first, far = codec.encode_entry(0, 1, 0, b"first"), 9 * 2**20
    path = tmp_path / "0"
    with path.open("wb") as file:
        file.write(first)
        file.seek(far)
        file.write(codec.encode_entry(2, 1, far, b"far"))
        file.truncate(far + 1000)
    segment = Segment.local(str(path), "0", 0, far + 1000, DLEDGER)
    assert reader.log_end(segment, segment.base, False).pos == len(first)
    assert reader.log_end(segment, segment.base, True).pos == far + 51


# Damage.


@pytest.mark.slow
@budget(60)
@given(recipe=generate.recipes(), damage=generate.damages(), data=st.data())
def test_engines_agree(
    both: tuple[Engine, Engine],
    folder: Callable[[], Path],
    recipe: generate.Recipe,
    damage: Damage,
    data: st.DataObject,
) -> None:
    native, python = both
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        for search_all in (False, True):
            assert native.log_end(segment, segment.base, search_all) == python.log_end(
                segment, segment.base, search_all
            )
        end = data.draw(st.sampled_from([segment.end, end_of(store, segment), segment.base + segment.size // 2]))
        target = data.draw(st.sampled_from([1, 50, 333, 4096]))
        assert native.split(segment, segment.base, end, target) == python.split(segment, segment.base, end, target)
        assert native.term_runs(segment, segment.base, end) == python.term_runs(segment, segment.base, end)
        index = data.draw(st.integers(-1, 30))
        assert native.seek(segment, segment.base, end, index) == python.seek(segment, segment.base, end, index)
        assert_same(native, python, data.draw(requests(segment, end)))


def assert_same(native: Engine, python: Engine, request: ScanRequest) -> None:
    theirs, their_error = outcome(native, request)
    ours, our_error = outcome(python, request)
    assert their_error == our_error
    assert [batch.to_pydict() for batch, _ in theirs] == [batch.to_pydict() for batch, _ in ours]
    assert [batch.num_rows for batch, _ in theirs] == [batch.num_rows for batch, _ in ours]
    assert [compressed for _, compressed in theirs] == [compressed for _, compressed in ours]
    for batch, _ in theirs + ours:
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(request.columns))


_LIMITS = st.one_of(st.integers(-5, 300), st.sampled_from([-(2**63), INT64_MAX]))
_INT_FILTERS = st.one_of(
    st.builds(IntFilter, _LIMITS, _LIMITS),
    st.builds(IntFilter, values=st.lists(st.integers(-2, 300), max_size=4).map(tuple)),
    st.just(IntFilter()),
)


@st.composite
def filters(draw: st.DrawFn) -> Filters:
    """Usually one condition, because more leave no rows."""

    def maybe(strategy: st.SearchStrategy[Any]) -> Any:
        return draw(strategy) if draw(st.integers(0, 7)) == 0 else None

    return Filters(
        index=maybe(_INT_FILTERS),
        term=maybe(_INT_FILTERS),
        pos=maybe(_INT_FILTERS),
        queue_id=maybe(_INT_FILTERS),
        store_timestamp=maybe(st.builds(IntFilter, st.just(1700000000000000), st.just(INT64_MAX))),
        kind=maybe(st.lists(st.sampled_from(KINDS), max_size=3).map(tuple)),
        topic=maybe(st.sampled_from([(), ("OrderTopic",), ("A", "标题")])),
        tags=maybe(st.sampled_from([(), ("\ufffd",), ("0", "00")])),
        committed=maybe(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn, segment: Segment, end: int) -> ScanRequest:
    return request_of(
        segment,
        end=end,
        columns=draw(st.one_of(st.just(COLUMN_NAMES), st.lists(st.sampled_from(COLUMN_NAMES), unique=True).map(tuple))),
        filters=draw(filters()),
        mode=draw(st.sampled_from(MODES)),
        verify_crc=draw(st.booleans()),
        committed_index=draw(st.sampled_from([None, 3])),
        max_batch_rows=draw(st.sampled_from([1, 2, 7, 10_000])),
        max_batch_bytes=draw(st.sampled_from([1, 100, 1000, 10**7])),
        end_is_boundary=draw(st.booleans()),
    )


@budget(40)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(0, 3000),
    source=st.sampled_from([DLEDGER, COMMITLOG]),
    check_pos=st.booleans(),
    alphabet=st.sampled_from(
        [b"\0\1", b"\0\0\0\0\0\0\1\x30\xff", b"\xff", bytes(range(256)), b"\xda\xa3\x20\xa7\xab\0"]
    ),
)
def test_engines_agree_on_random_bytes(
    both: tuple[Engine, Engine],
    folder: Callable[[], Path],
    seed: int,
    size: int,
    source: str,
    check_pos: bool,
    alphabet: bytes,
) -> None:
    native, python = both
    path = folder() / "0"
    path.write_bytes(bytes(random.Random(seed).choices(alphabet, k=size)))
    segment = Segment.local(str(path), "0", 0, size, source, check_pos)
    assert native.log_end(segment, segment.base, True) == python.log_end(segment, segment.base, True)
    assert native.split(segment, 0, size, 100) == python.split(segment, 0, size, 100)
    assert_same(native, python, request_of(segment))


@pytest.mark.slow
@budget(25)
@given(recipe=generate.recipes(), damage=generate.damages(), target=st.sampled_from([1, 60, 200, 1000, 5000]))
def test_splits_change_nothing(
    reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe, damage: Damage, target: int
) -> None:
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        whole = read(reader, request_of(segment))
        boundaries = reader.split(segment, segment.base, segment.end, target)
        assert boundaries == sorted(set(boundaries))
        assert all(segment.base < boundary < segment.end for boundary in boundaries)
        ends = [*boundaries, segment.end]
        parts = []
        for start, end in zip([segment.base, *boundaries], ends, strict=True):
            parts += read(reader, request_of(segment, start=start, end=end, end_is_boundary=end in boundaries))
        assert parts == whole


@pytest.mark.slow
@budget(15)
@given(
    recipe=generate.recipes(),
    damage=generate.damages(),
    rows=st.integers(1, 9),
    size=st.sampled_from([1, 200, 2000]),
    mode=st.sampled_from(MODES),
)
def test_batch_sizes_change_nothing(
    reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe, damage: Damage, rows: int, size: int, mode: str
) -> None:
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        request = request_of(segment, mode=mode)
        expected, error = collect(reader, request)
        small = dataclasses.replace(request, max_batch_rows=rows, max_batch_bytes=size)
        assert collect(reader, small) == (expected, error)
        for batch, _ in outcome(reader, small)[0]:
            assert 1 <= batch.num_rows <= rows
            sizes = [row["size"] for row in rows_of([batch]) if row["kind"] != "corrupt"]
            assert len(sizes) <= 1 or sum(sizes) <= size


def collect(reader: Engine, request: ScanRequest) -> tuple[list[Row], str | None]:
    rows: list[Row] = []
    try:
        for batch in expand(reader.scan(request), request):
            rows += rows_of([batch])
    except (StoreError, MalformedError) as error:
        return rows, str(error)
    return rows, None


@pytest.mark.slow
@budget(25)
@given(recipe=generate.recipes(), damage=generate.damages(), data=st.data())
def test_filters_and_columns_select_from_all_rows(
    reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe, damage: Damage, data: st.DataObject
) -> None:
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        where = data.draw(filters())
        columns = tuple(data.draw(st.lists(st.sampled_from(COLUMN_NAMES), unique=True, min_size=1)))
        everything = read(reader, request_of(segment, committed_index=3))
        request = request_of(segment, committed_index=3, filters=where, columns=columns)
        expected = [{name: row[name] for name in columns} for row in everything if meets(row, where)]
        assert read(reader, request) == expected


def meets(row: Row, where: Filters) -> bool:
    names = {"queue_id": "queueId", "store_timestamp": "storeTimestamp"}
    for item in dataclasses.fields(where):
        condition, value = getattr(where, item.name), row[names.get(item.name, item.name)]
        if condition is None:
            continue
        if value is None:
            return False
        if isinstance(condition, IntFilter):
            in_range = condition.low <= value <= condition.high
            if not in_range or (condition.values is not None and value not in condition.values):
                return False
        elif value not in (condition if isinstance(condition, tuple) else (condition,)):
            return False
    return True


@pytest.mark.slow
@budget(15)
@given(recipe=generate.recipes(), damage=generate.damages(), columns=st.sampled_from([COLUMN_NAMES, ("pos", "kind")]))
def test_modes_drop_or_raise_rows_with_a_problem(
    reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe, damage: Damage, columns: tuple[str, ...]
) -> None:
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        marked = read(reader, request_of(segment))
        intact = [{name: row[name] for name in columns} for row in marked if row["problem"] is None]
        dropped = request_of(segment, mode="DROPMALFORMED", columns=columns)
        assert read(reader, dropped) == intact
        rows, error = collect(reader, request_of(segment, mode="FAILFAST", columns=columns))
        first = next((number for number, row in enumerate(marked) if row["problem"]), None)
        if first is None:
            assert (rows, error) == (intact, None)
        else:
            bad = marked[first]
            assert rows == intact[:first]
            assert error == (
                f"{segment.path}: {bad['kind']} at {bad['pos']}: {bad['problem']}; "
                "mode=PERMISSIVE keeps such rows with their problem, DROPMALFORMED drops them"
            )


def test_failfast_ignores_rows_that_are_filtered_out(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("A"), mq_message("B"), mq_message("A")])
    (segment,) = store.segments
    content = bytearray(Path(segment.path).read_bytes())
    bad = store.rows[1]
    content[bad["pos"] + 48 + 88] ^= 1  # in the body
    Path(segment.path).write_bytes(content)
    request = request_of(segment, end=store.end, mode="FAILFAST", filters=Filters(topic=("A",)))
    assert len(read(reader, request)) == 2
    with pytest.raises(MalformedError, match=f"message at {bad['pos']}: expected message CRC"):
        read(reader, dataclasses.replace(request, filters=Filters()))


def test_failfast_names_the_extent_after_a_blank(reader: Engine, tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(codec.encode_entry(0, 0, 0, b"") + codec.encode_blank(30).ljust(30, b"\0"))
    segment = Segment.local(str(path), "0", 0, 88, DLEDGER)
    rows, error = collect(reader, request_of(segment, mode="FAILFAST", columns=("pos",)))
    assert rows == [{"pos": 0}]
    assert error is not None
    assert error.startswith(f"{path}: corrupt at 78: expected 88 bytes in 0, found 78; ")


# Problem texts.

PROBLEMS = [
    (0, b"\0\0\0\x09", "expected magic 1, 2, 3 or -1 at 53, found 9"),
    (4, b"\0\0\0\x01", "expected size 48 + bodySize 5 at 53, found 1"),
    (44, b"\xff\xff\xff\xff", "expected size 48 + bodySize -1 at 53, found 53"),
    (4, b"\x7f\xff\xff\xff" + bytes(8) + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\x35" + bytes(12) + b"\x7f\xff\xff\xcf",
     "expected an entry of 2147483647 bytes at 53, found 4043 bytes up to the end of the file"),
    (8, b"\xff" * 8, "expected index >= 0 and term >= -1 at 53, found index -1 and term 1"),
    (16, b"\xff" * 7 + b"\xfe", "expected index >= 0 and term >= -1 at 53, found index 1 and term -2"),
    (24, bytes(8), "expected pos 53, found 0"),
    (0, bytes(48), "expected an entry at 53, found zeros"),
    (0, b"\xff\xff\xff\xff\0\0\0\x63", "expected a blank of 4043 bytes at 53, found 99"),
    (0, b"\xff\xff\xff\xff\xff\xff\xff\xff", "expected a blank of 4043 bytes at 53, found -1"),
]  # fmt: skip


@pytest.mark.parametrize(("offset", "data", "problem"), PROBLEMS, ids=[problem for _, _, problem in PROBLEMS])
def test_damage_loses_one_entry_and_has_a_problem_text(
    reader: Engine, tmp_path: Path, offset: int, data: bytes, problem: str
) -> None:
    store = write_dledger(tmp_path, [raw(b"12345")] * 4)
    (segment,) = store.segments
    write_at(segment.path, 53 + offset, data)
    rows = read(reader, request_of(segment, end=store.end))
    corrupt = dict.fromkeys(COLUMN_NAMES) | {
        "kind": "corrupt",
        "source": DLEDGER,
        "pos": 53,
        "size": 53,
        "problem": problem,
        "segment": segment.name,
    }
    assert rows == [store.rows[0], corrupt, *store.rows[2:]]


def test_an_incomplete_header_and_unwritten_bytes_have_problem_texts(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"12345")], file_size=100, stale=lambda _: b"\x01" * 100)
    (segment,) = store.segments
    assert [row["problem"] for row in read(reader, request_of(segment))] == [
        None,
        "expected an entry header of 48 bytes at 53, found 47 bytes up to the end of the file",
    ]
    zeros = write_dledger(tmp_path / "zeros", [raw(b"12345")])
    assert read(reader, request_of(zeros.segments[0]))[1:] == [
        dict.fromkeys(COLUMN_NAMES)
        | {"kind": "corrupt", "source": DLEDGER, "pos": 53, "size": 4096 - 53, "segment": "0" * 20}
        | {"problem": "expected an entry at 53, found zeros"}
    ]


def with_header_crc(crc: int) -> bytes:
    return codec.encode_entry(0, 1, 0, b"12345", body_crc=crc)


def test_a_header_crc_is_checked_unless_it_is_zero(reader: Engine, tmp_path: Path) -> None:
    path = tmp_path / "0"
    crc = codec.signed32(codec.crc32(b"12345"))
    for stored, problem in ((0, None), (crc, None), (crc ^ 1, f"expected bodyCrc {crc ^ 1}, found {crc}")):
        path.write_bytes(with_header_crc(stored))
        segment = Segment.local(str(path), "0", 0, 53, DLEDGER)
        assert [row["problem"] for row in read(reader, request_of(segment))] == [problem]
        assert [row["problem"] for row in read(reader, request_of(segment, verify_crc=False))] == [None]


def patched(content: bytes, offset: int, data: bytes) -> bytes:
    return content[:offset] + data + content[offset + len(data) :]


def test_an_entry_with_a_malformed_message_is_of_kind_entry(reader: Engine, tmp_path: Path) -> None:
    message = mq_message("T", b"body", properties=[("a", "b")]).make(48)  # body at 88, topic 93, properties 96
    cases = {
        "expected a message of at least 91 bytes at 48, found 90": message[:90],
        "expected totalSize 100 at 48, found 7": patched(message, 0, b"\0\0\0\7"),
        "expected a bodyLength that fits 100 bytes at 48, found -2": patched(message, 84, b"\xff\xff\xff\xfe"),
        "expected a bodyLength that fits 100 bytes at 48, found 13": patched(message, 84, b"\0\0\0\x0d"),
        "expected a topicLength that fits 100 bytes at 48, found -1": patched(message, 84, b"\0\0\0\x0c"),
        "expected a topicLength that fits 100 bytes at 48, found 255": patched(message, 92, b"\xff"),
        "expected a propertiesLength that fits 100 bytes at 48, found -1": patched(message, 92, b"\x06"),
        "expected a propertiesLength that fits 100 bytes at 48, found 65535": patched(message, 94, b"\xff\xff"),
        "expected a message of 100 bytes at 48, found 98": patched(message, 94, b"\0\2"),
    }
    assert len(message) == 100
    for problem, body in cases.items():
        path = tmp_path / "0"
        path.write_bytes(codec.encode_entry(0, 1, 0, body))
        (row,) = read(reader, request_of(Segment.local(str(path), "0", 0, path.stat().st_size, DLEDGER)))
        assert (row["problem"], row["kind"], row["body"], row["topic"]) == (problem, "entry", body, None)
    v6 = patched(message, 36, b"\0\0\0\x30")  # hosts of 20 bytes leave no room for the length of the body
    path.write_bytes(codec.encode_entry(0, 1, 0, patched(v6[:91], 0, b"\0\0\0\x5b")))
    (row,) = read(reader, request_of(Segment.local(str(path), "0", 0, path.stat().st_size, DLEDGER)))
    assert row["problem"] == "expected a bodyLength that fits 91 bytes at 48, found -1"


def test_a_wrong_offset_and_a_wrong_property_crc_have_problem_texts(reader: Engine, tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(codec.encode_entry(0, 1, 0, mq_message().make(1000)))
    (row,) = read(reader, request_of(Segment.local(str(path), "0", 0, path.stat().st_size, DLEDGER)))
    assert (row["kind"], row["problem"]) == ("message", "expected physicalOffset 48, found 1000")

    message = mq_message(property_crc=True, queue_id=1).make(0)
    digits = int(message[-11:-1][::-1])
    path.write_bytes(patched(message, 15, b"\2"))
    (row,) = read(reader, request_of(Segment.local(str(path), "0", 0, path.stat().st_size, COMMITLOG)))
    assert row["problem"].startswith(f"expected property CRC {digits}, found ")
    path.write_bytes(
        codec.encode_entry(0, 1, 0, patched(mq_message(property_crc=True, queue_id=1).make(48), 15, b"\2"))
    )
    (row,) = read(reader, request_of(Segment.local(str(path), "0", 0, path.stat().st_size, DLEDGER)))
    assert row["problem"] is None  # DLedger's serializer writes none, so it is the sender's own property


# Files that change.


@pytest.mark.slow
@budget(15)
@given(recipe=generate.recipes(), share=st.floats(0, 1))
def test_a_file_truncated_before_the_scan_ends_in_one_corrupt_row(
    reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe, share: float
) -> None:
    store = recipe.write(folder())
    for segment in store.segments:
        size = int(share * segment.size)
        os.truncate(segment.path, size)
        rows = read(reader, request_of(segment))
        whole = [row for row in store.rows_of(segment) if row["pos"] + row["size"] <= segment.base + size]
        assert rows[: len(whole)] == whole or "stale" in recipe.options
        shortage = f"expected {segment.size} bytes in {segment.name}, found {size}"
        holes = [row for row in rows if row["problem"] == shortage]
        assert len(holes) <= 1
        if holes:
            assert holes == rows[-1:]
            assert holes[0]["pos"] + holes[0]["size"] == segment.end


@pytest.mark.parametrize("cut", [0, 10, 700_000, 4_000_000, 7_999_000])
def test_a_file_truncated_during_a_scan_ends_in_one_corrupt_row(reader: Engine, tmp_path: Path, cut: int) -> None:
    store = write_dledger(tmp_path, [raw(bytes(1000))] * 7000, file_size=8_000_000, with_index=False)
    (segment,) = store.segments
    request = request_of(segment, max_batch_rows=500, columns=("index", "pos", "size", "problem", "body"))
    rows = []
    for number, (batch, _) in enumerate(reader.scan(request)):
        rows += rows_of([batch])
        if number == 1:
            os.truncate(segment.path, cut)
    assert rows[-1]["problem"] == f"expected 8000000 bytes in {segment.name}, found {cut}"
    assert rows[-1]["pos"] + rows[-1]["size"] == segment.end
    # Some entries after the cut may have been read before it.
    intact = min(7000, max(1000, cut // 1048))
    assert intact <= len(rows) - 1 <= min(7000, intact + 65536 // 1048)
    assert [row["index"] for row in rows[:-1]] == list(range(len(rows) - 1))
    assert [row["problem"] for row in rows[:-1]] == [None] * (len(rows) - 1)


def test_an_extent_above_2_gib_is_several_rows(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"a")])
    segment = dataclasses.replace(store.segments[0], size=2**31 + 48)
    os.truncate(segment.path, 49)
    rows = read(reader, request_of(segment))[1:]
    assert [(row["pos"], row["size"]) for row in rows] == [(49, 2**31 - 1)]
    segment = dataclasses.replace(segment, size=2**31 + 49)
    rows = read(reader, request_of(segment, max_batch_rows=1))[1:]
    assert [(row["pos"], row["size"]) for row in rows] == [(49, 2**30), (49 + 2**30, 2**30)]
    assert {row["problem"] for row in rows} == {f"expected {segment.size} bytes in {segment.name}, found 49"}
    segment = dataclasses.replace(segment, size=2**31 + 59)
    rows = read(reader, request_of(segment))[1:]
    assert [row["size"] for row in rows] == [2**30, 2**30, 10]


def test_a_longer_file_is_read_to_the_end_of_its_segment(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"a")] * 3)
    segment = dataclasses.replace(store.segments[0], size=49 * 2)
    assert read(reader, request_of(segment)) == store.rows[:2]
    assert read(reader, request_of(segment, end=10**6)) == store.rows[:2]


@pytest.mark.parametrize("name", ["missing", "a folder"])
def test_a_file_that_cannot_be_opened_raises_a_store_error(reader: Engine, tmp_path: Path, name: str) -> None:
    (tmp_path / "a folder").mkdir()
    segment = Segment.local(str(tmp_path / name), name, 0, 100, DLEDGER)
    calls: list[Callable[[], Any]] = [
        lambda: list(reader.scan(request_of(segment))),
        lambda: reader.log_end(segment, segment.base, False),
        lambda: reader.split(segment, 0, 100, 10),
        lambda: reader.seek(segment, 0, 100, 1),
        lambda: reader.term_runs(segment, 0, 100),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"^[^\n]+$") as raised:
            call()
        assert str(raised.value).startswith(f"{segment.path}: ")


def test_a_split_off_a_boundary_raises_after_the_rows_before(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"12345")] * 4, file_size=250)
    (segment,) = store.segments
    request = request_of(segment, end=60, end_is_boundary=True, columns=("pos",))
    rows, error = collect(reader, request)
    assert rows == [{"pos": 0}]
    assert error == (
        f"{segment.path}: a split at 60 is not on an entry boundary: the entry at 53 ends at 106; "
        "was the file changed after it was planned?"
    )


# Speed and bounds.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "unit"),
    [
        (DLEDGER, b"\0\0\0\1"),
        (DLEDGER, b"\xff"),
        (DLEDGER, b"\xff\xff\xff\xff\0\1\0\0"),
        (DLEDGER, b"\0\0\0\1\0\0\0\x30"),
        (COMMITLOG, b"\xda\xa3\x20\xa7"),
        (COMMITLOG, b"\0\0\1\0\xcb\xd4\x31\x94"),
        (COMMITLOG, b"\0"),
    ],
)
def test_the_search_is_linear(engine: str, tmp_path: Path, source: str, unit: bytes) -> None:
    """If each byte led to a search up to the end, this would take hours."""
    reader, path = get_engine(engine), tmp_path / "0"
    size = 2**20 if engine == "native" else 2**17
    path.write_bytes(unit * (size // len(unit)))
    segment = Segment.local(str(path), "0", 0, size, source)
    began = time.process_time()
    rows = read(reader, request_of(segment, columns=("size", "kind")))
    reader.split(segment, 0, size, 2**16)
    reader.log_end(segment, segment.base, True)
    assert time.process_time() - began < 60
    assert rows in ([{"size": size, "kind": "corrupt"}], [])


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_columns_are_counted(reader: Engine, tmp_path: Path, mode: str) -> None:
    payloads = [raw(b"a")] * 3 + [mq_message("T", compressed="zlib"), mq_message("T", b"x" * 100, compressed="zlib")]
    store = write_dledger(tmp_path, payloads)
    (segment,) = store.segments
    content = bytearray(Path(segment.path).read_bytes())
    content[store.rows[3]["pos"] + 48 + 88] ^= 0xFF
    crc = codec.crc32(bytes(content[store.rows[3]["pos"] + 136 :][: store.rows[3]["storeSize"] - 92])) & 0x7FFFFFFF
    content[store.rows[3]["pos"] + 56 : store.rows[3]["pos"] + 60] = crc.to_bytes(4, "big")
    Path(segment.path).write_bytes(content)
    request = request_of(segment, columns=(), end=store.end, mode=mode if mode != "FAILFAST" else "PERMISSIVE")
    batches = list(expand(reader.scan(request), request))
    assert [batch.num_rows for batch in batches] == [5 if mode != "DROPMALFORMED" else 4]


def test_messages_with_alike_texts_are_read_one_by_one(both: tuple[Engine, Engine], tmp_path: Path) -> None:
    pairs = b"TAGS\1ab\2KEYS\1cd\2e\1f\2"
    texts = [
        *[pairs, b"TAGS\1xy\2KEYS\1zz\2e\1g\2", b"TAGz\1ab\2KEYS\1cd\2e\1f\2", b"TAGS\1ab\2TAGS\1cd\2e\1f\2"],
        *[b"TAGS\2ab\1KEYS\1cd\2e\1f\2", b"TAGS\1ab\2KEYS\2cd\1e\1f\2", b"TAGS\1ab\2\2\2\2\2\1cd\2e\1f\2"],
        *[pairs.replace(b"ab", "é".encode()), pairs.replace(b"ab", b"\xff\xfe"), pairs.replace(b"f", b"\0")],
        *[pairs[:-1] + b"x", b"\1" + pairs[1:], b"", b"\2"],
        *[b"UNIQ_KEY\1" + b"u" * size + b"\2WAIT\1true\2" for size in (15, 16, 31, 32, 33, 63, 64, 65, 600)],
        *[b"".join(b"%d\1v\2" % number for number in range(count)) for count in (32, 33, 60)],
    ]
    hosts = [
        ("0.0.0.0", 0),
        ("10.200.255.9", 10911),
        ("10.200.25.9", 10911),
        ("1.1.1.1", -1),
        ("::", 0),
        ("fe80::1", 7),
    ]
    random_choice = random.Random(3).choice
    messages = [
        message.encode_message(
            random_choice([b"T" * 9, "тема".encode(), b"\xff", b"t" * 300]),
            *(b"body", 0),
            properties=random_choice(texts),
            born_host=message.encode_host(*random_choice(hosts)),
            store_host=message.encode_host(*random_choice(hosts)),
        )
        for _ in range(1500)
    ]
    store = write_dledger(tmp_path, [raw(content) for content in messages], file_size=2**20)
    names = ("topic", "tags", "keys", "uniqKey", "properties", "bornHost", "storeHost", "offsetMsgId")
    native, python = (read(engine, request_of(store.segments[0], columns=names, end=store.end)) for engine in both)
    assert len(native) == len(messages)
    assert native == python


@pytest.mark.parametrize("name", COLUMN_NAMES)
def test_every_column_can_be_read_alone(reader: Engine, tmp_path: Path, name: str) -> None:
    payloads = [raw(b"a"), raw(b"", "noop"), mq_message("T", properties=[("TAGS", "x")]), raw(b"c", "config")]
    store = write_dledger(tmp_path, payloads)
    request = request_of(store.segments[0], columns=(name,), end=store.end)
    (batch,) = expand(reader.scan(request), request)
    assert batch.schema == pa.schema([(name, COLUMN_BY_NAME[name].type)])
    assert rows_of([batch]) == [{name: row[name]} for row in store.rows]


# Longer than one chunk of the search.


@pytest.mark.parametrize("source", [DLEDGER, COMMITLOG])
@pytest.mark.parametrize("piece", [4096, 4096 * 3, 4096 * 7, 65536])
def test_a_frame_is_found_at_any_end_of_damage(reader: Engine, tmp_path: Path, source: str, piece: int) -> None:
    path = tmp_path / "0"
    for at in range(piece - 60, piece + 8):
        frame = codec.encode_entry(1, 1, at, b"") if source == DLEDGER else mq_message("T").make(at)
        path.write_bytes(b"\x55" * at + frame)
        segment = Segment.local(str(path), "0", 0, at + len(frame), source)
        rows = read(reader, request_of(segment, columns=("pos", "kind")))
        assert rows == [
            {"pos": 0, "kind": "corrupt"},
            {"pos": at, "kind": "entry" if source == DLEDGER else "message"},
        ]


@pytest.mark.slow
def test_no_split_is_inside_the_longest_entries(reader: Engine, tmp_path: Path) -> None:
    longest = layout.MAX_ENTRY_SIZE - layout.ENTRY_HEADER_SIZE

    def log_at(at: int) -> bytes:
        entries = generate.entries_at(at, longest // 1024, bytes(1024 - 48))
        return entries.ljust(longest, b"\0")

    inside = generate.Payload("entry", log_at)
    payloads = [raw(b"a"), inside, inside, raw(b"b"), inside]
    store = write_dledger(tmp_path, payloads, file_size=14 * 2**20, with_index=False)
    (segment,) = store.segments
    starts = [row["pos"] for row in store.rows]
    for target in (2**20, 3 * 2**20, 5 * 2**20):
        boundaries = reader.split(segment, 0, store.end, target)
        assert boundaries
        assert set(boundaries) <= set(starts)
    assert reader.split(segment, 0, store.end, 2**20) == starts[2:4]


def test_a_read_error_ends_in_one_corrupt_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_dledger(tmp_path, [raw(bytes(1000))] * 200, file_size=2**18)
    (segment,) = store.segments

    def pread(file: int, size: int, offset: int, whole: Callable[[int, int, int], bytes] = os.pread) -> bytes:
        if offset + size > 100_000:
            raise OSError(5, "Input/output error")
        return whole(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    rows = read(get_engine("python"), request_of(segment))
    assert rows[:95] == store.rows[:95]
    (hole,) = rows[95:]
    (facts,) = read(get_engine("python"), request_of(segment, columns=(*COLUMN_NAMES, *READ_FACTS)))[95:]
    assert facts["problemCode"] == ProblemCode.UNREADABLE
    assert (facts["problemErrno"], f" {facts['problemFound']} " in hole["problem"]) == (errno.EIO, True)
    assert (hole["pos"], hole["pos"] + hole["size"]) == (95 * 1048, segment.end)
    assert hole["problem"].startswith(f"expected 262144 bytes in {segment.name}, found ")
    assert hole["problem"].endswith(" readable bytes (Input/output error)")


def test_a_failing_page_of_a_mapping_is_named(tmp_path: Path) -> None:
    """The mapping of a running scan gets pages of an empty file: reading them is SIGBUS, as on a failing disk."""
    store = write_dledger(tmp_path, [raw(bytes(1000))] * 1000, file_size=2**20)
    (segment,) = store.segments
    columns = (*COLUMN_NAMES, *READ_FACTS)
    scan = get_engine("native").scan(request_of(segment, max_batch_rows=5, columns=columns))
    rows = next(scan)[0].num_rows
    (line,) = [each for each in Path("/proc/self/maps").read_text().splitlines() if each.endswith(segment.path)]
    begin = int(line.partition("-")[0], 16)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    empty = os.memfd_create("empty")
    at, size = ctypes.c_void_p(begin + 2**19), ctypes.c_size_t(2**19)
    assert libc.mmap(at, size, mmap.PROT_READ, mmap.MAP_SHARED | 0x10, empty, ctypes.c_long(0)) == begin + 2**19
    os.close(empty)
    *batches, (last, _) = scan
    rows += sum(batch.num_rows for batch, _ in batches) + last.num_rows
    assert rows == 2**19 // 1048 + 1
    text = f"expected {2**20} bytes in {segment.name}, found {2**19} readable bytes (Input/output error)"
    assert last["problem"][-1].as_py() == text
    facts = [last[name][-1].as_py() for name in READ_FACTS]
    assert facts == [ProblemCode.UNREADABLE, 2**20, 2**19, errno.EIO]


@pytest.mark.parametrize("name", ["log_end", "seek", "term_runs"])
def test_an_end_that_cannot_be_read_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_dledger(tmp_path, [raw(bytes(1000))] * 200, file_size=2**18)
    (segment,) = store.segments

    def pread(file: int, size: int, offset: int, whole: Callable[[int, int, int], bytes] = os.pread) -> bytes:
        if offset + size > 100_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    more = {"log_end": (0, True), "seek": (0, segment.end, 150), "term_runs": (0, segment.end)}
    with pytest.raises(UnreadableError, match="Input/output error"):
        getattr(get_engine("python"), name)(segment, *more[name])


# Choosing an engine.


def test_crc32_is_that_of_zlib(reader: Engine) -> None:
    for data in (b"", b"123456789", bytes(range(256)) * 40, os.urandom(100_001)):
        assert reader.crc32(data) == codec.crc32(data)
        for cut in (0, 7, len(data)):
            assert reader.crc32(memoryview(data)[cut:], reader.crc32(data[:cut])) == codec.crc32(data)
    assert reader.crc32(b"123456789") == 0xCBF43926


def test_an_unknown_engine_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="expected engine auto, native or python, found 'fast'"):
        get_engine("fast")
    assert get_engine("Python").NAME == "python"


def test_auto_warns_once_if_native_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_NATIVE_MODULE", "pyspark_dledger.no_such_module")
    monkeypatch.setattr(engines, "_warned", False)
    with pytest.warns(RuntimeWarning, match="native engine is not built"):
        assert get_engine("auto").NAME == "python"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_engine().NAME == "python"
    with pytest.raises(OptionError, match="the native engine is not built"):
        get_engine("native")
