"""Packing, encoding and checking entries: Java's bytes, the same by both engines, and every input is checked."""

from __future__ import annotations

import array
import itertools
import mmap
import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.codec import CHANNEL_OFFSET, MEMBERS, NOOP, mark_control
from pyspark_dledger.format.encode.encoded import MAX_BLOCK_SIZE, MAX_BODY_SIZE, Bodies, CheckedEntries, EncodedEntries
from pyspark_dledger.format.engine import Engine
from tests.support.engines import NATIVE, PYTHON, result_of, unhurried
from tests.support.golden import ALL, Golden, Record

INT64_MAX = 2**63 - 1
MAX_POSITION = 2**62

BODIES = st.lists(st.binary(max_size=60) | st.integers(0, 2000).map(bytes), min_size=1, max_size=8)
POSITIONS = st.integers(0, 2000) | st.integers(0, MAX_POSITION)
TERMS = st.integers(-1, 5) | st.integers(-1, INT64_MAX)


def block_of(*bodies: bytes) -> Bodies:
    lengths = b"".join(len(body).to_bytes(4, "big") for body in bodies)
    return Bodies(len(bodies), lengths + b"".join(bodies))


def entries_of(*bodies: bytes, index: int = 5, pos: int = 1000, terms: tuple[int, ...] = ()) -> bytearray:
    data = bytearray()
    for number, body in enumerate(bodies):
        data += codec.encode_entry(index + number, terms[number] if terms else 3, pos + len(data), body)
    return data


def both(name: str, *arguments: Any) -> Any:
    native, python = (result_of(getattr(engine, name), *arguments) for engine in (NATIVE, PYTHON))
    assert native == python
    return native


# Entries of Java.


class File:
    """A data file of a golden: the rows that Java read, and their bytes."""

    def __init__(self, path: Path, rows: list[Record]) -> None:
        self.base, content = int(path.name), path.read_bytes()
        self.end = self.base + len(content)
        self.rows = rows
        self.data = content[rows[0]["pos"] - self.base : rows[-1]["pos"] + rows[-1]["size"] - self.base]

    def bodies(self) -> list[bytes]:
        starts = [row["pos"] - self.rows[0]["pos"] for row in self.rows]
        return [
            self.data[start + layout.ENTRY_HEADER_SIZE : start + row["size"]]
            for start, row in zip(starts, self.rows, strict=True)
        ]


def files_of(golden: Golden, folder: Path) -> list[File]:
    data = [path for path in folder.rglob("[0-9]" * 20) if path.parent.name.startswith(("data", "path"))]
    paths = sorted(
        (path for path in data if "dledger-" not in str(path) or golden.folder in str(path)), key=lambda path: path.name
    )
    rows = golden.expected().entries
    files = []
    for path in paths:
        own = [row for row in rows if 0 <= row["pos"] - int(path.name) < path.stat().st_size]
        files += [File(path, own)] if own else []
    assert sum(len(file.rows) for file in files) == len(rows)
    return files


def units_of(golden: Golden, folder: Path, first: int, count: int) -> bytes:
    """The units of `count` entries in Java's index files."""
    units = b""
    for path in sorted((folder / golden.folder / "index").iterdir()):
        content = path.read_bytes()
        start = first * layout.INDEX_UNIT_SIZE + len(units) - int(path.name)
        if 0 <= start < len(content):
            units += content[start : start + count * layout.INDEX_UNIT_SIZE - len(units)]
    return units


JAVA = [golden for golden in ALL if golden.is_raw and not golden.version.startswith("0.4")]


@pytest.mark.parametrize("golden", JAVA, ids=str)
def test_bodies_are_encoded_as_java_wrote_them(
    golden: Golden, reader: Engine, case_folder: Callable[[str], Path]
) -> None:
    folder = case_folder(golden.case)
    files = files_of(golden, folder)
    for file, following in itertools.zip_longest(files, files[1:]):
        rows, bodies, done = file.rows, file.bodies(), 0
        for term, run in itertools.groupby(rows, lambda row: row["term"]):
            count = len(list(run))
            # The first entry of the next file does not fit into this one.
            is_last = following and done + count == len(rows)
            block = reader.pack_bodies(bodies[done : done + count] + (following.bodies()[:1] if is_last else []))
            pos, first = rows[done]["pos"], rows[done]["index"]
            encoded = reader.encode_entries(block, 0, first, term, pos, file.end - pos)
            start = pos - rows[0]["pos"]
            assert encoded.count == count
            assert encoded.data == file.data[start : start + len(encoded.data)]
            assert encoded.units == units_of(golden, folder, first, count)
            done += count


@pytest.mark.parametrize("golden", JAVA, ids=str)
def test_entries_of_java_pass_the_checks(golden: Golden, reader: Engine, case_folder: Callable[[str], Path]) -> None:
    folder = case_folder(golden.case)
    for file in files_of(golden, folder):
        first, last = file.rows[0], file.rows[-1]
        checked = reader.check_entries(file.data, first["index"], first["pos"], first["term"], last["term"])
        assert checked == CheckedEntries(
            len(file.rows), last["term"], units_of(golden, folder, first["index"], len(file.rows))
        )
        assert reader.check_entries(file.data, first["index"], first["pos"], -1, INT64_MAX) == checked


# Encoding.


@unhurried
@given(BODIES)
def test_unpacked_bodies_are_those_that_were_packed(bodies: list[bytes]) -> None:
    packed = both("pack_bodies", bodies)
    assert packed == block_of(*bodies)
    assert both("unpack_bodies", packed) == bodies


@unhurried
@given(BODIES, st.integers(0, 7), st.integers(0, MAX_POSITION), TERMS, POSITIONS, st.integers(0, 5000))
def test_entries_are_encoded_as_by_the_codec(
    bodies: list[bytes], first: int, index: int, term: int, pos: int, space: int
) -> None:
    first %= len(bodies)
    encoded = both("encode_entries", block_of(*bodies), first, index, term, pos, space)
    chosen = bodies[first : first + encoded.count]
    expected, units = bytearray(), bytearray()
    for number, body in enumerate(chosen):
        at = pos + len(expected)
        units += codec.encode_index_unit(codec.IndexUnit(1, at, 48 + len(body), index + number, term))
        expected += codec.encode_entry(index + number, term, at, body)
    assert encoded == EncodedEntries(len(chosen), expected, units)
    assert isinstance(encoded.data, bytearray)
    assert isinstance(encoded.units, bytearray)
    assert not chosen or len(expected) + layout.MIN_BLANK_SIZE <= space
    if encoded.count < len(bodies) - first:
        assert len(expected) + 48 + len(bodies[first + encoded.count]) + layout.MIN_BLANK_SIZE > space
    if chosen:
        assert both("check_entries", encoded.data, index, pos, -1, INT64_MAX) == CheckedEntries(
            len(chosen), term, units
        )


@pytest.mark.parametrize(("space", "count"), [(0, 0), (57, 0), (58, 1), (108, 1), (109, 2), (156, 2), (157, 3)])
def test_entries_leave_space_for_a_blank(reader: Engine, space: int, count: int) -> None:
    encoded = reader.encode_entries(block_of(b"ab", b"abc", b""), 0, 0, 0, 0, space)
    assert (encoded.count, len(encoded.data)) == (count, (0, 50, 101, 149)[count])


def test_the_largest_body_fits(reader: Engine) -> None:
    body = random.Random(1).randbytes(MAX_BODY_SIZE)
    packed = reader.pack_bodies([body, b"x"])
    encoded = reader.encode_entries(packed, 0, 0, 1, 0, MAX_POSITION)
    assert encoded.data[:-49] == codec.encode_entry(0, 1, 0, body)
    assert reader.check_entries(encoded.data, 0, 0, 1, 1).count == 2
    assert reader.unpack_bodies(packed) == [body, b"x"]


@pytest.mark.parametrize(
    "make",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: memoryview(b"ab" + data)[2:],
        lambda data: array.array("I", data),
        lambda data: np.frombuffer(data, ">i4").reshape(2, -1),
    ],
)
def test_objects_with_contiguous_bytes_are_accepted(reader: Engine, make: Callable[[bytes], Any]) -> None:
    body = b"body" * 4
    packed = reader.pack_bodies([body, make(body)])
    assert packed == block_of(body, body)
    assert reader.unpack_bodies(Bodies(2, make(bytes(packed.block)))) == [body, body]
    data = reader.encode_entries(Bodies(2, make(bytes(packed.block))), 0, 5, 3, 1000, 9999).data
    assert data == entries_of(body, body)
    assert reader.check_entries(make(bytes(data)), 5, 1000, 3, 3).count == 2
    assert reader.find_torn(make(bytes(data)), 1000) is None


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_arrays_without_bytes_are_empty_bodies(reader: Engine, shape: tuple[int, ...]) -> None:
    assert reader.pack_bodies([np.zeros(shape)]) == block_of(b"")  # type: ignore[list-item]


def test_a_mapped_file_is_accepted(reader: Engine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(entries_of(b"a", b"b"))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert reader.check_entries(mapped, 5, 1000, 3, 3).count == 2  # type: ignore[arg-type]


def test_bodies_can_be_any_sequence(reader: Engine) -> None:
    for bodies in ((b"a", b"b"), {b"a": 0, b"b": 1}, (body for body in (b"a", b"b"))):
        assert reader.pack_bodies(bodies) == block_of(b"a", b"b")  # type: ignore[arg-type]


@pytest.mark.parametrize("body", ["text", None, 7, memoryview(b"abcd")[::2], np.zeros((3, 3), order="F")[:2]])
def test_a_body_without_contiguous_bytes_is_rejected(reader: Engine, body: Any) -> None:
    name = type(body).__name__
    with pytest.raises(TypeError, match=rf"^expected contiguous bytes as body 1, found {name}$"):
        reader.pack_bodies([b"x", body])
    for call in (lambda: reader.check_entries(body, 0, 0, 0, 0), lambda: reader.find_torn(body, 0)):
        with pytest.raises(TypeError, match=rf"^expected contiguous bytes as entries, found {name}$"):
            call()
    for call in (
        lambda: reader.unpack_bodies(Bodies(1, body)),
        lambda: reader.encode_entries(Bodies(1, body), 0, 0, 0, 0, 9999),
    ):
        with pytest.raises(TypeError, match=rf"^expected contiguous bytes as block, found {name}$"):
            call()


def test_bodies_above_the_limits_are_rejected(reader: Engine) -> None:
    with pytest.raises(ValueError, match=r"^expected at least one body, found none$"):
        reader.pack_bodies([])
    with pytest.raises(ValueError, match=r"^expected body 1 of at most 4194256 bytes, found 4194257$"):
        reader.pack_bodies([b"", bytes(MAX_BODY_SIZE + 1)])
    body = bytes(MAX_BODY_SIZE)
    with pytest.raises(ValueError, match=r"^expected at most 1073741824 bytes of bodies with their lengths, found"):
        reader.pack_bodies([body] * (MAX_BLOCK_SIZE // MAX_BODY_SIZE + 1))


# Checks of input from the network.

HOSTILE_BLOCKS = [
    (0, b"", "expected count from 1 to 268435456, found 0"),
    (-1, b"", "expected count from 1 to 268435456, found -1"),
    (2**28 + 1, b"", "expected count from 1 to 268435456, found 268435457"),
    (2**80, b"", f"expected count from 1 to 268435456, found {2**80}"),
    (2**28, b"abc", "expected 1073741824 bytes of lengths for 268435456 bodies, found 3"),
    (1, b"", "expected 4 bytes of lengths for 1 bodies, found 0"),
    (2, bytes(7), "expected 8 bytes of lengths for 2 bodies, found 7"),
    (2, bytes(9), "expected 8 bytes of bodies with their lengths, found 9"),
    (2, struct.pack(">II", 1, 1) + b"x", "expected 10 bytes of bodies with their lengths, found 9"),
    (2, struct.pack(">II", 0, 2**32 - 1), "expected body 1 of at most 4194256 bytes, found 4294967295"),
    (1, struct.pack(">I", MAX_BODY_SIZE + 1), "expected body 0 of at most 4194256 bytes, found 4194257"),
    (1, struct.pack(">I", MAX_BODY_SIZE), "expected 4194260 bytes of bodies with their lengths, found 4"),
]


@pytest.mark.parametrize(("count", "block", "text"), HOSTILE_BLOCKS)
def test_a_block_with_wrong_lengths_is_rejected(count: int, block: bytes, text: str) -> None:
    assert both("unpack_bodies", Bodies(count, block)) == ("ValueError", text)
    assert both("encode_entries", Bodies(count, block), 0, 0, 0, 0, MAX_POSITION) == ("ValueError", text)


@unhurried
@given(st.integers(-1, 5), st.binary(max_size=40), st.integers(-1, 5))
def test_engines_agree_on_any_block(count: int, block: bytes, first: int) -> None:
    both("unpack_bodies", Bodies(count, block))
    both("encode_entries", Bodies(count, block), first, 1, 2, 3, 200)


@unhurried
@given(BODIES, st.data())
def test_engines_agree_on_damaged_blocks(bodies: list[bytes], data: st.DataObject) -> None:
    block = bytearray(block_of(*bodies).block)
    at = data.draw(st.integers(0, len(block) - 1))
    block[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    found = both("unpack_bodies", Bodies(len(bodies), block))
    both("encode_entries", Bodies(len(bodies), block), 0, 0, 0, 0, MAX_POSITION)
    if isinstance(found, list):
        assert block_of(*found).block == block


NUMBERS = [
    ("first", 1, (-1, 2, 2**70)),
    ("index", 2, (-1, MAX_POSITION + 1, 2**63, -(2**64))),
    ("term", 3, (-2, 2**63)),
    ("pos", 4, (-1, MAX_POSITION + 1)),
    ("space", 5, (-1, MAX_POSITION + 1)),
]


@pytest.mark.parametrize(("name", "at", "wrong"), NUMBERS)
def test_numbers_out_of_range_are_rejected(name: str, at: int, wrong: tuple[int, ...]) -> None:
    for value in wrong:
        arguments: list[Any] = [block_of(b"a", b"b"), 0, 0, 0, 0, 1000]
        arguments[at] = value
        kind, text = both("encode_entries", *arguments)
        assert kind == "ValueError"
        assert text.startswith(f"expected {name} from ")
        assert text.endswith(f", found {value}")
        arguments[at] = str(value)
        assert both("encode_entries", *arguments)[0] == "TypeError"


def test_the_highest_numbers_are_accepted(reader: Engine) -> None:
    encoded = reader.encode_entries(block_of(b"a"), 0, MAX_POSITION, INT64_MAX, MAX_POSITION, MAX_POSITION)
    assert reader.check_entries(encoded.data, MAX_POSITION, MAX_POSITION, INT64_MAX, INT64_MAX).last_term == INT64_MAX
    for arguments in ((-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -(2**63) - 1, 0), (0, 0, 0, 2**63)):
        with pytest.raises(ValueError, match=r"^expected (index|pos|min_term|max_term) from .*, found -?[0-9]+$"):
            reader.check_entries(encoded.data, *arguments)
    with pytest.raises(ValueError, match=r"^expected pos from 0 to "):
        reader.find_torn(encoded.data, -1)


def replaced(data: bytearray, at: int, value: bytes) -> bytearray:
    return data[:at] + value + data[at + len(value) :]


# Two entries of 52 and 50 bytes at 1000 and 1052, with index 5 and 6, and term 3 and 4.
GOOD = entries_of(b"body", b"xy", terms=(3, 4))
BAD_ENTRIES = [
    (b"", "expected at least one entry, found none"),
    (GOOD[:47], "entry 0: expected a header of 48 bytes, found 47 bytes"),
    (GOOD[:51], "entry 0: expected 52 bytes, found 51 bytes"),
    (GOOD[:53], "entry 1: expected a header of 48 bytes, found 1 bytes"),
    (GOOD[:-1], "entry 1: expected 50 bytes, found 49 bytes"),
    (GOOD + b"\0", "entry 2: expected a header of 48 bytes, found 1 bytes"),
    (GOOD + bytes(48), "entry 2: expected magic 1, found 0"),
    (replaced(GOOD, 52, b"\xff\xff\xff\xff"), "entry 1: expected magic 1, found -1"),
    (replaced(GOOD, 3, b"\2"), "entry 0: expected magic 1, found 2"),
    (replaced(GOOD, 7, b"\63"), "entry 0: expected size 48 + bodySize 4, found 51"),
    (replaced(GOOD, 44, b"\xff\xff\xff\xff"), "entry 0: expected size 48 + bodySize -1, found 52"),
    (replaced(GOOD, 4, b"\x80\0\0\0"), "entry 0: expected size 48 + bodySize 4, found -2147483648"),
    (
        replaced(replaced(GOOD, 4, b"\x7f\xff\xff\xff"), 44, b"\x7f\xff\xff\xcf"),
        "entry 0: expected size of at most 4194304, found 2147483647",
    ),
    (replaced(GOOD, 15, b"\6"), "entry 0: expected index 5, found 6"),
    (replaced(GOOD, 52 + 8, b"\xff"), f"entry 1: expected index 6, found {6 - 2**56}"),
    (replaced(GOOD, 31, b"\0"), "entry 0: expected pos 1000, found 768"),
    (replaced(GOOD, 23, b"\1"), "entry 0: expected term from 2 to 4, found 1"),
    (replaced(GOOD, 23, b"\5"), "entry 0: expected term from 2 to 4, found 5"),
    (replaced(GOOD, 52 + 23, b"\2"), "entry 1: expected term from 3 to 4, found 2"),
    (replaced(GOOD, 52 + 23, b"\5"), "entry 1: expected term from 3 to 4, found 5"),
]


@pytest.mark.parametrize(("data", "text"), BAD_ENTRIES, ids=[text for _, text in BAD_ENTRIES])
def test_entries_out_of_order_are_rejected(data: bytearray, text: str) -> None:
    assert both("check_entries", data, 5, 1000, 2, 4) == ("ValueError", text)


def test_channel_and_crcs_are_not_checked(reader: Engine) -> None:
    """Entries of a Java store can have them, and they are part of the log."""
    data = replaced(GOOD, 32, b"\1" * 12)
    assert reader.check_entries(data, 5, 1000, 2, 4) == reader.check_entries(GOOD, 5, 1000, 2, 4)


@unhurried
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.lists(st.integers(-1, 3), min_size=4, max_size=4),
    st.sampled_from([(5, 1000), (5, 1000), (4, 1000), (5, 1001)]),
    st.integers(-2, 2),
    st.integers(0, 3),
)
def test_entries_are_accepted_if_index_pos_and_terms_are_in_order(
    bodies: list[bytes], terms: list[int], first: tuple[int, int], min_term: int, max_term: int
) -> None:
    data = entries_of(*bodies, terms=tuple(terms))
    index, pos = first
    found = both("check_entries", data, index, pos, min_term, max_term)
    given_terms = terms[: len(bodies)]
    is_right = first == (5, 1000) and [min_term, *given_terms] == sorted([min_term, *given_terms])
    assert isinstance(found, CheckedEntries) == (is_right and given_terms[-1] <= max_term)


@unhurried
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_engines_agree_on_damaged_entries(bodies: list[bytes], data: st.DataObject) -> None:
    entries = entries_of(*bodies)
    at = data.draw(st.integers(0, len(entries) - 1))
    entries[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    both("check_entries", entries, 5, 1000, 3, 3)
    both("find_torn", entries, 1000)


# Torn entries.


def torn_by_definition(bodies: list[bytes], pos: int) -> int | None:
    """The reference: groups the bytes of each body by sector. Without one, a sector may begin in the header's end."""
    offset = 0
    for body in bodies:
        if not body and -(pos + offset + 32) % 512 < 8:
            return offset
        positions = enumerate(body, pos + offset + layout.ENTRY_HEADER_SIZE)
        for _, sector in itertools.groupby(positions, lambda position: position[0] // 512):
            if not any(byte for _, byte in sector):
                return offset
        offset += layout.ENTRY_HEADER_SIZE + len(body)
    return None


MOSTLY_FULL = st.tuples(st.integers(0, 1500), st.sets(st.integers(0, 1499), max_size=3)).map(
    lambda made: bytes(0 if at in made[1] else 1 for at in range(made[0]))
)
SPARSE = st.tuples(st.integers(0, 2500), st.sets(st.integers(0, 2499), max_size=9)).map(
    lambda made: bytes(at in made[1] for at in range(made[0]))
)


@unhurried
@given(st.lists(MOSTLY_FULL | SPARSE, max_size=5), st.integers(0, 1100) | st.integers(0, MAX_POSITION))
@example([b"\1" * 400, bytes(64) + b"\1" * 500], 0)  # the first 64 bytes end a sector
@example([b"\1" * 463 + b"\0"], 0)
@example([b"\1" * 464 + b"\0"], 0)
@example([b"", b""], 512 - 47)
@example([b"\1", b""], 512 - 49 - 32)
@example([b""], 512 - 40)
def test_an_entry_is_torn_if_a_sector_of_its_body_is_zero(bodies: list[bytes], pos: int) -> None:
    assert both("find_torn", entries_of(*bodies, pos=pos), pos) == torn_by_definition(bodies, pos)


def test_find_torn_rejects_incomplete_entries() -> None:
    for data, text in BAD_ENTRIES[1:13]:
        assert both("find_torn", data, 1000) == ("ValueError", text)
    assert both("find_torn", b"", 0) is None
    assert both("find_torn", entries_of(b"", b""), 0) is None


# Checksums.


def with_crcs(engine: Engine, *bodies: bytes) -> bytearray:
    data = entries_of(*bodies)
    engine.write_body_crcs(data)
    return data


@unhurried
@given(st.lists(st.binary(max_size=60) | SPARSE, max_size=5), st.data())
def test_engines_agree_on_checksums(bodies: list[bytes], data: st.DataObject) -> None:
    entries = with_crcs(NATIVE, *bodies)
    assert entries == with_crcs(PYTHON, *bodies)
    assert entries == b"".join(
        codec.encode_entry(5 + number, 3, 1000 + before, body, body_crc=codec.signed32(codec.crc32(body)))
        for number, body in enumerate(bodies)
        for before in [sum(48 + len(each) for each in bodies[:number])]
    )
    # A checksum proves zeros as well.
    calls = [("find_wrong_body",), ("find_wrong_body", True), ("find_torn", 1000), ("find_damaged",)]
    suspect = torn_by_definition([body and b"\1" * len(body) for body in bodies], 1000)
    assert [both(name, entries, *more) for name, *more in calls] == [None, None, suspect, None]
    places = [
        at for at in range(len(entries)) if at not in {start + at for start in starts(bodies) for at in range(48)}
    ]
    if places:
        at = data.draw(st.sampled_from(places))
        entries[at] ^= 1 << data.draw(st.integers(0, 7))
        damaged = max(start for start in starts(bodies) if start < at)
        torn = damaged if suspect is None else min(suspect, damaged)
        assert [both(name, entries, *more) for name, *more in calls] == [damaged, damaged, torn, damaged]


def test_flipped_bits_of_channel_and_chain_crc_are_found() -> None:
    members, empty = with_crcs(NATIVE, b"members"), with_crcs(NATIVE, b"")
    mark_control(members, MEMBERS)
    mark_control(empty, NOOP)
    for entry in (with_crcs(NATIVE, b"abc"), members, empty):
        assert both("find_wrong_body", bytes(entry)) is None
        for bit in range(8 * CHANNEL_OFFSET, 8 * (CHANNEL_OFFSET + 8)):
            changed = bytearray(entry)
            changed[bit // 8] ^= 1 << bit % 8
            assert both("find_wrong_body", bytes(changed)) == both("find_damaged", bytes(changed)) == 0, bit


def starts(bodies: list[bytes]) -> list[int]:
    return [sum(48 + len(body) for body in bodies[:number]) for number in range(len(bodies))]


def test_only_a_check_that_needs_checksums_misses_them() -> None:
    data = with_crcs(NATIVE, b"abc", b"") + codec.encode_entry(7, 3, 1099, b"without")
    assert both("find_wrong_body", data) is None
    assert both("find_wrong_body", data, True) == 99
    for bad, text in BAD_ENTRIES[1:13]:
        assert both("find_wrong_body", bad) == ("ValueError", text)
        assert both("write_body_crcs", bytearray(bad)) == ("ValueError", text)


# Memory of the caller.


REFUSALS: dict[str, Callable[[bytearray], object]] = {
    "pack": lambda data: NATIVE.pack_bodies([data, "text"]),  # type: ignore[list-item]
    "long": lambda data: NATIVE.pack_bodies([data, bytes(MAX_BODY_SIZE + 1)]),
    "unpack": lambda data: NATIVE.unpack_bodies(Bodies(1, data)),
    "encode": lambda data: NATIVE.encode_entries(Bodies(1, data), 0, 0, 0, 0, 0),
    "check": lambda data: NATIVE.check_entries(data, 0, 0, 0, 0),
    "torn": lambda data: NATIVE.find_torn(data, 0),
}


@pytest.mark.parametrize("call", REFUSALS.values(), ids=REFUSALS)
def test_buffers_are_released_after_an_error(call: Callable[[bytearray], object]) -> None:
    data = bytearray(9)
    with pytest.raises((ValueError, TypeError)):
        call(data)
    data += b"a BufferError while a view exists"


def test_buffers_are_released() -> None:
    data = bytearray(entries_of(b"x"))
    bodies = NATIVE.pack_bodies([data, data])
    NATIVE.check_entries(data, 5, 1000, 3, 3)
    NATIVE.find_torn(data, 1000)
    block = bytearray(bodies.block)
    NATIVE.unpack_bodies(Bodies(2, block))
    encoded = NATIVE.encode_entries(Bodies(2, block), 0, 0, 0, 0, 9999)
    for held in (data, block, encoded.data, encoded.units):
        held += b"x"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encode", "check", "torn"])
def test_bytes_that_change_while_they_are_read_do_not_crash(name: str) -> None:
    """The lock is released for so many bytes, and another thread overwrites the lengths."""
    packed = NATIVE.pack_bodies([b"x" * 452] * 20_000)
    entries = NATIVE.encode_entries(packed, 0, 0, 1, 0, MAX_POSITION).data
    data = bytearray(packed.block) if name == "encode" else entries
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: NATIVE.encode_entries(Bodies(packed.count, data), 0, 0, 1, 0, MAX_POSITION),
        "check": lambda: NATIVE.check_entries(data, 0, 0, -1, 5),
        "torn": lambda: NATIVE.find_torn(data, 0),
    }
    steps = {"encode": (4, 2), "check": (500, 46), "torn": (500, 46)}[name]
    done = threading.Event()

    def disturb() -> None:
        chance = random.Random(1)
        while not done.is_set():
            at = chance.randrange(20_000) * steps[0] + steps[1]
            kept = data[at]
            data[at] = 255
            data[at] = kept

    thread = threading.Thread(target=disturb)
    thread.start()
    until = time.monotonic() + 0.3
    outcomes = set()
    while time.monotonic() < until:
        try:
            calls[name]()
            outcomes.add("read")
        except ValueError as error:
            text = str(error)
            outcomes.add("changed" if text == "the block was changed while it was read" else text.split()[0])
    done.set()
    thread.join()
    assert outcomes <= {"read", "changed", "expected", "entry"}
