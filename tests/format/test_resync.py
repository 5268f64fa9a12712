"""Resynchronisation after damage in logs whose bodies contain logs, for any split, batch size and engine."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format import codec
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE
from pyspark_dledger.format.scan.frames import SPAN_WINDOW
from pyspark_dledger.format.spec import DLEDGER, PrecedingEntry, ScanRequest, Segment
from pyspark_dledger.log import open_log
from tests.format.test_engines import budget
from tests.support import generate
from tests.support.generate import Payload, Store, raw, write_dledger
from tests.support.long_runs import examples

COLUMNS = ("kind", "pos", "size", "index", "problem")
Row = tuple[object, ...]


def scan(reader: Engine, segment: Segment, start: int, end: int, **options: object) -> list[Row]:
    request = ScanRequest(segment, start, end, COLUMNS, **options)  # type: ignore[arg-type]
    return [tuple(row.values()) for batch, _ in reader.scan(request) for row in batch.to_pylist()]


def check_splits(segment: Segment, target: int) -> tuple[list[Row], list[int]]:
    """Check that engines, batch sizes and splits change no rows; returns the rows and where the splits are."""
    native, python = get_engine("native"), get_engine("python")
    whole = scan(native, segment, segment.base, segment.end)
    assert scan(python, segment, segment.base, segment.end) == whole
    assert scan(native, segment, segment.base, segment.end, max_batch_rows=2) == whole
    assert scan(native, segment, segment.base, segment.end, max_batch_bytes=70) == whole
    cuts = native.split(segment, segment.base, segment.end, target)
    assert python.split(segment, segment.base, segment.end, target) == cuts
    for reader in (native, python):
        parts = []
        for start, end in zip([segment.base, *cuts], [*cuts, segment.end], strict=True):
            parts += scan(reader, segment, start, end, end_is_boundary=end in cuts)
        assert parts == whole
    return whole, cuts


def log_inside(rng: random.Random) -> Payload:
    """A body that contains a log, whose entries have their real positions."""
    count, size = rng.randint(1, 12), rng.choice([0, 5, 40])
    first, term = rng.choice([0, 1, 5, rng.randint(0, 80)]), rng.choice([0, 1, 1, 2, 9])
    before, after = rng.choice([0, 0, 1, 13, 60]), rng.choice([0, 0, 7, 200])

    def make(at: int) -> bytes:
        body = b"." * before
        for number in range(count):
            body += codec.encode_entry(first + number, term, at + len(body), b"x" * size)
        return body + bytes(after)

    return Payload("entry", make)


def hostile_store(rng: random.Random, root: Path) -> Store:
    payloads = [
        log_inside(rng) if rng.random() < 0.4 else raw(rng.randbytes(rng.choice([0, 1, 10, 100, 300])))
        for _ in range(rng.randint(5, 60))
    ]
    terms = sorted(rng.randint(1, 4) for _ in payloads)
    first_index = rng.choice([0, 5, 1000, 2**40])
    return write_dledger(root, payloads, file_size=rng.choice([4096, 8192]), first_index=first_index, terms=terms)


WOUNDED = [(field.offset, field.length) for field in ENTRY_HEADER if field.name in ("magic", "size", "pos", "bodySize")]


def wound(rng: random.Random, header: bytes) -> bytes:
    """The header with one field or all of it overwritten."""
    offset, length = rng.choice([*WOUNDED, (0, ENTRY_HEADER_SIZE)])
    data = rng.choice([b"\x55" * length] + ([bytes(length)] if any(header[offset:][:length]) else []))
    return header[:offset] + data + header[offset + length :]


@pytest.mark.parametrize("seed", range(examples(100)))
def test_a_destroyed_header_loses_only_its_entry(tmp_path: Path, engine: str, seed: int) -> None:
    rng = random.Random(seed)
    store = hostile_store(rng, tmp_path)
    # Not the first entry of the log, because nothing would tell its position; not the last one of a file.
    between = [
        row
        for segment in store.segments
        for row in store.rows_of(segment)[:-1]
        if row["index"] != store.rows[0]["index"]
    ]
    row = rng.choice(between)
    (segment,) = (segment for segment in store.segments if segment.base <= row["pos"] < segment.end)
    content = bytearray(Path(segment.path).read_bytes())
    at = row["pos"] - segment.base
    content[at : at + ENTRY_HEADER_SIZE] = wound(rng, bytes(content[at : at + ENTRY_HEADER_SIZE]))
    Path(segment.path).write_bytes(content)
    found = [
        (one["kind"], one["pos"], one["size"])
        for batch in open_log(tmp_path, engine=engine).scan(["kind", "pos", "size"])
        for one in batch.to_pylist()
    ]
    assert found == [("corrupt" if one is row else "entry", one["pos"], one["size"]) for one in store.rows]


@pytest.mark.slow
@budget(50)
@given(
    seed=st.integers(0, 2**32),
    damage=generate.damages(),
    target=st.sampled_from([1, 60, 400, 3000]),
    known=st.booleans(),
)
def test_splits_batches_and_engines_change_nothing(
    folder: Callable[[], Path], seed: int, damage: Callable[[Store], None], target: int, known: bool
) -> None:
    store = hostile_store(random.Random(seed), folder())
    damage(store)
    for segment in store.segments:
        if known:
            segment = dataclasses.replace(segment, before=PrecedingEntry(3, 1, segment.base))
        check_splits(segment, target)


def long_log(root: Path, damaged: int, inside: bool) -> Segment:
    """A file of 48 MiB with entries of 64 KiB; one header is destroyed, and bodies can contain entries."""
    size, count = 64 * 1024, 48 * 16
    data = bytearray()
    for index in range(count):
        pos = index * size
        fake = codec.encode_entry(index + 1, 1, pos + 100, b"fake") if inside else b""
        data += codec.encode_entry(index, 1, pos, (b"." * 52 + fake).ljust(size - ENTRY_HEADER_SIZE, b"."))
    data[damaged * size : damaged * size + ENTRY_HEADER_SIZE] = bytes(ENTRY_HEADER_SIZE)
    path = root / "0"
    path.write_bytes(data)
    return Segment.local(str(path), "0", 0, len(data), DLEDGER)


@pytest.mark.parametrize("damaged", [0, 300, 301, 449, 450, 451, 500])
def test_distant_splits_are_found_without_reading_all_bytes_before(
    reader: Engine, tmp_path: Path, damaged: int
) -> None:
    segment = long_log(tmp_path, damaged, inside=False)
    target = 2 * SPAN_WINDOW + 20 * 2**20
    cuts = reader.split(segment, 0, segment.end, target)
    assert len(cuts) == 1
    assert target <= cuts[0] < target + 2 * SPAN_WINDOW
    parts = scan(reader, segment, 0, cuts[0], end_is_boundary=True) + scan(reader, segment, cuts[0], segment.end)
    assert parts == scan(reader, segment, 0, segment.end)
    assert [row[0] for row in parts].count("corrupt") == 1


def test_no_distant_split_if_bodies_contain_entries(reader: Engine, tmp_path: Path) -> None:
    segment = long_log(tmp_path, 300, inside=True)
    assert reader.split(segment, 0, segment.end, 2 * SPAN_WINDOW + 20 * 2**20) == []


@pytest.mark.parametrize("size", [64, 200])
def test_logs_in_the_bodies_of_destroyed_entries_do_not_hang_the_search(
    reader: Engine, tmp_path: Path, size: int
) -> None:
    """Linear work takes a second, quadratic work hours. `make bench ARGS=hostile` measures it."""
    data = bytearray()
    for _ in range(2000):
        block = bytes(ENTRY_HEADER_SIZE)
        for inner in range(3):
            block += codec.encode_entry(5 + inner, 1, len(data) + len(block), b"x" * (size - ENTRY_HEADER_SIZE))
        data += block
    path = tmp_path / "0"
    path.write_bytes(data)
    began = time.monotonic()
    rows = scan(reader, Segment.local(str(path), "0", 0, len(data), DLEDGER), 0, len(data))
    assert time.monotonic() - began < 60
    assert sum(int(str(size)) for _, _, size, *_ in rows) == len(data)
