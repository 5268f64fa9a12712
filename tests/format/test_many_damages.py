"""Many damages in one file, without index files: only what they hit is lost, and the search reads little twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.format import codec
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.scan.frames import EntryFrames, Frame
from pyspark_dledger.format.scan.segment_file import SegmentFile
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment

SECTOR = 512
Log = tuple[bytearray, list[int]]


def log_of(rng: random.Random, count: int) -> Log:
    """A log of small entries, and where they begin."""
    data, starts, term = bytearray(), [], 1
    for index in range(count):
        starts.append(len(data))
        term += rng.random() < 0.02
        data += codec.encode_entry(index, term, len(data), rng.randbytes(rng.choice([0, 8, 30, 90])))
    return data, starts


def zeroed_header(_rng: random.Random, data: bytearray, pos: int) -> None:
    data[pos : pos + ENTRY_HEADER_SIZE] = bytes(ENTRY_HEADER_SIZE)


def flipped_bit(rng: random.Random, data: bytearray, pos: int) -> None:
    data[pos + rng.randrange(ENTRY_HEADER_SIZE)] ^= 1 << rng.randrange(8)


def zeroed_sector(_rng: random.Random, data: bytearray, pos: int) -> None:
    begin = pos // SECTOR * SECTOR
    data[begin : begin + SECTOR] = bytes(min(SECTOR, len(data) - begin))


DAMAGES = (zeroed_header, flipped_bit, zeroed_sector)
DISTANCES = {"each distance from 1 to 50": (range(1, 51), 8), "more than 32 far damages": ((3, 100), 40)}
"""Entries between damages, and damages of a file."""


def segment_of(path: Path, data: bytes | bytearray) -> Segment:
    path.write_bytes(data)
    return Segment.local(str(path), path.name, 0, len(data), DLEDGER)


def positions(reader: Engine, segment: Segment) -> set[int]:
    request = ScanRequest(segment, 0, segment.end, ("kind", "pos"))
    rows = [row for batch, _ in reader.scan(request) for row in batch.to_pylist()]
    return {row["pos"] for row in rows if row["kind"] != "corrupt"}


@pytest.mark.parametrize("distances", DISTANCES)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_only_damaged_entries_are_lost(
    reader: Engine, tmp_path: Path, damage: Callable[[random.Random, bytearray, int], None], distances: str
) -> None:
    each, damages = DISTANCES[distances]
    for distance in each:
        rng = random.Random(f"{damage.__name__} {distance}")
        whole, starts = log_of(rng, (damages + 1) * distance)
        data = bytearray(whole)
        for pos in starts[distance::distance]:
            damage(rng, data, pos)
        ends = [*starts[1:], len(data)]
        intact = {pos for pos, end in zip(starts, ends, strict=True) if data[pos:end] == whole[pos:end]}
        found = positions(reader, segment_of(tmp_path / "0", data))
        assert (distance, sorted(intact - found), sorted(found - set(starts))) == (distance, [], [])


# The work of a search


def header(index: int, pos: int, size: int) -> bytes:
    return codec.encode_entry(index, 1, pos, bytes(size - ENTRY_HEADER_SIZE))[:ENTRY_HEADER_SIZE]


def in_order() -> bytes:
    """Each entry is in the body of one whose header is lost."""
    data = bytearray()
    for number in range(500):
        body = b"x" * 128
        data += bytes(ENTRY_HEADER_SIZE) + codec.encode_entry(2 * number, 1, len(data) + ENTRY_HEADER_SIZE, body)
    return bytes(data)


def equal_logs_in_bodies() -> bytes:
    data = bytearray()
    for _ in range(300):
        data += bytes(ENTRY_HEADER_SIZE)
        for index in range(5, 10):
            data += codec.encode_entry(index, 1, len(data), b"x" * 16)
    return bytes(data)


def long_chains() -> bytes:
    """Each search sees a long chain that contradicts what is before it."""
    data = bytearray()
    for index in range(0, 60, 2):
        data += codec.encode_entry(index, 1, len(data), b"") + bytes(ENTRY_HEADER_SIZE)
    for index in range(31, 2000):
        data += codec.encode_entry(index, 1, len(data), b"x" * 16)
    return bytes(data)


def headers_to_zeros() -> bytes:
    """All headers lead to the same zeros, of fewer bytes than prove an end."""
    data, count, zeros = bytearray(b"damaged"), 100, 2**21
    end = len(data) + count * ENTRY_HEADER_SIZE
    for number in range(count):
        data += header(7 * number, len(data), end - len(data))
    data += bytes(zeros)
    return bytes(data + codec.encode_entry(5, 1, len(data), b""))


def headers_to_chain(step: int, count: int = 200, length: int = 2000) -> bytes:
    """Each header leads into the same chain, `step` entries after the one that the header before leads to."""
    size, first = ENTRY_HEADER_SIZE, 10**12
    data = bytearray(b"".join(header(index, index * size, size) for index in range(20)) + b"damaged")
    begin = len(data) + count * size
    for number in range(count):
        data += header(first + number * step - 1, len(data), begin + number * step * size - len(data))
    for number in range(length):
        data += header(first + number, len(data), size)
    return bytes(data + b"x" * 100)


def headers_between_gaps(count: int = 200, length: int = 2000) -> bytes:
    """After each gap, a header leads into a chain at the end, which no entry can follow."""
    data, size, first = bytearray(), ENTRY_HEADER_SIZE, 10**12
    begin = count * (2 * size + 16)
    for number in range(count):
        data += header(number, len(data), size) + b"x" * 16
        data += header(first - 1, len(data), begin - len(data))
    for number in range(length):
        data += header(first + number, len(data), size)
    return bytes(data + header(first + length + 5, len(data), size))


def many_damages(distance: int) -> bytes:
    data, starts = log_of(random.Random(distance), 1000)
    for pos in starts[distance::distance]:
        data[pos : pos + ENTRY_HEADER_SIZE] = bytes(ENTRY_HEADER_SIZE)
    return bytes(data)


# At most so many positions are examined for 48 bytes of the file, and so many bytes are read for each of its bytes.
WORK: dict[str, tuple[Callable[[], bytes], float, float]] = {
    "in order": (in_order, 4, 80),
    "equal logs": (equal_logs_in_bodies, 4, 40),
    "long chains": (long_chains, 3, 8),
    "zeros": (headers_to_zeros, 1, 4),
    "one chain": (lambda: headers_to_chain(0), 25, 15),
    "all of a chain": (lambda: headers_to_chain(9), 20, 12),
    "between gaps": (headers_between_gaps, 5, 5),
    "each second": (lambda: many_damages(2), 5, 120),
    "each tenth": (lambda: many_damages(10), 2, 30),
    "each 100th": (lambda: many_damages(100), 2, 4),
}


@pytest.mark.parametrize("what", WORK)
def test_work_is_proportional_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Counted in the Python engine, which has the same rules as the native one and keeps less for the next search."""
    make, most_examined, most_read = WORK[what]
    data = make()
    examined = read = 0
    examine, follows, get = EntryFrames.examine, EntryFrames.follows, SegmentFile.__getitem__

    def counting_examine(frames: EntryFrames, pos: int) -> Frame | str:
        nonlocal examined
        examined += 1
        return examine(frames, pos)

    def counting_follows(frames: EntryFrames, last: Frame, frame: Frame) -> bool:
        nonlocal examined
        examined += 1
        return follows(frames, last, frame)

    def counting_get(file: SegmentFile, key: slice) -> bytes:
        nonlocal read
        read += key.stop - key.start
        return get(file, key)

    monkeypatch.setattr(EntryFrames, "examine", counting_examine)
    monkeypatch.setattr(EntryFrames, "follows", counting_follows)
    monkeypatch.setattr(SegmentFile, "__getitem__", counting_get)
    positions(get_engine("python"), segment_of(tmp_path / "0", data))
    assert examined * ENTRY_HEADER_SIZE <= most_examined * len(data)
    assert read <= most_read * len(data)


@pytest.mark.parametrize("what", WORK)
def test_native_walks_are_proportional_to_the_file(tmp_path: Path, what: str) -> None:
    native = pytest.importorskip("pyspark_dledger._native")
    data = WORK[what][0]()
    before = native.chain_visits()
    positions(get_engine("native"), segment_of(tmp_path / "0", data))
    visits = native.chain_visits() - before
    assert visits * ENTRY_HEADER_SIZE <= 10 * len(data)
