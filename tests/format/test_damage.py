"""Damage loses only damaged entries: intact ones are returned, look-alikes are not, and every byte has a kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pyspark_dledger.format import codec
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE
from pyspark_dledger.format.scan.bodies import expand
from pyspark_dledger.format.spec import ScanRequest, Segment, SurveyRequest
from pyspark_dledger.log import open_log
from tests.support.damage import write_log
from tests.support.generate import Payload, Store, mq_message, raw, rows_of, write_dledger
from tests.support.long_runs import examples

PAGE = 4096
PLACE_COLUMNS = ("kind", "index", "pos", "size")


def scan(reader: Engine, segment: Segment, end: int) -> list[dict[str, object]]:
    request = ScanRequest(segment, segment.base, end, PLACE_COLUMNS)
    return rows_of(expand(reader.scan(request), request))


# Bodies that look like entries.

OUTER = 3


def whole_entry(index: int) -> Callable[[int], bytes]:
    return lambda pos: codec.encode_entry(index, 1, pos, b"x" * 120)


def chain(first: int, count: int, rest: bytes) -> Callable[[int], bytes]:
    def make(pos: int) -> bytes:
        log = b""
        for index in range(first, first + count):
            log += codec.encode_entry(index, 1, pos + len(log), b"y" * 30)
        return log + rest

    return make


HOSTILE = {
    "the entry's own index": whole_entry(OUTER),
    "the next index": whole_entry(OUTER + 1),
    "an earlier index": whole_entry(0),
    "a far index": whole_entry(10**9),
    "a chain from its own index": chain(OUTER, 3, b""),
    "a chain from the next index": chain(OUTER + 1, 2, b"z" * 20),
    "a long chain of an old log": chain(0, 20, b""),
    "two indexes ahead, one entry": chain(OUTER + 2, 1, b"z" * 20),
}
HEADER_DAMAGE = {
    **{field.name: (field.offset, b"\x55" * field.length) for field in ENTRY_HEADER if field.name in ("magic", "size")},
    "bodySize": (44, b"\x55" * 4),
    "pos": (24, b"\x55" * 8),
    "both sizes": (4, b"\x55" * 4 + b"\x11" * 36 + b"\x55" * 4),
    "all of it": (0, bytes(ENTRY_HEADER_SIZE)),
    "a blank's magic": (0, b"\xff" * 4),
}


@pytest.mark.parametrize("damage", HEADER_DAMAGE)
@pytest.mark.parametrize("body", HOSTILE)
def test_entries_inside_bodies_are_never_returned(reader: Engine, tmp_path: Path, body: str, damage: str) -> None:
    payloads = [raw(b"12345" * 10)] * OUTER + [Payload("entry", HOSTILE[body])] + [raw(b"67890" * 10)] * 8
    store = write_dledger(tmp_path, payloads)
    (segment,) = store.segments
    offset, data = HEADER_DAMAGE[damage]
    write_log(segment, store.rows[OUTER]["pos"] + offset, data)
    rows = scan(reader, segment, store.end)
    assert [row["kind"] for row in rows] == ["entry"] * OUTER + ["corrupt"] + ["entry"] * 8
    assert [row["pos"] for row in rows] == [row["pos"] for row in store.rows]
    assert [row["size"] for row in rows] == [row["size"] for row in store.rows]


def test_damage_at_the_start_of_a_file_is_resolved_by_the_file_before(tmp_path: Path, engine: str) -> None:
    """Without the entry before, an entry in a body with the same index could not be distinguished."""
    per_file = 4096 // (ENTRY_HEADER_SIZE + 168)
    payloads = [Payload("entry", lambda pos, index=index: whole_entry(index)(pos)) for index in range(2 * per_file)]
    store = write_dledger(tmp_path, payloads)
    second = store.segments[1]
    first = store.rows_of(second)[0]
    write_log(second, first["pos"], bytes(ENTRY_HEADER_SIZE))
    found = [row for batch in open_log(tmp_path, engine=engine).scan(list(PLACE_COLUMNS)) for row in batch.to_pylist()]
    assert [row["pos"] for row in found] == [row["pos"] for row in store.rows]
    assert [row["pos"] for row in found if row["kind"] == "corrupt"] == [first["pos"]]


# Every byte has a kind.


def test_every_byte_has_exactly_one_kind(reader: Engine, tmp_path: Path) -> None:
    payloads = [mq_message(topic="T", body=b"b%d" % number) for number in range(10)] + [raw(b"12345" * 9)] * 60
    store = write_dledger(tmp_path, payloads)
    first, last = store.segments[0], store.segments[-1]
    write_log(first, store.rows[2]["pos"], bytes(ENTRY_HEADER_SIZE))
    stale = codec.encode_entry(5, 0, store.end, b"stale")
    write_log(last, store.end, stale + b"noise")
    kinds = set()
    for segment in store.segments:
        survey = reader.survey(SurveyRequest(segment, segment.base, min(segment.end, store.end)))
        extents = survey.extents
        assert extents[0].pos == segment.base
        assert all(before.pos + before.size == after.pos for before, after in pairwise(extents))
        assert extents[-1].pos + extents[-1].size == segment.end
        sizes: dict[str, int] = {}
        for extent in extents:
            sizes[extent.kind] = sizes.get(extent.kind, 0) + extent.size
        assert sizes == {kind: size for kind, size in survey.sizes.items() if size}
        kinds |= set(sizes)
    assert kinds == {"entry", "message", "blank", "unwritten", "stale", "corrupt"}


# Random damage.


def flipped_bit(rng: random.Random, content: bytearray, used: int) -> None:
    content[rng.randrange(used)] ^= 1 << rng.randrange(8)


def zeroed_page(rng: random.Random, content: bytearray, _used: int) -> None:
    page = rng.randrange(len(content) // PAGE) * PAGE
    content[page : page + PAGE] = bytes(PAGE)


def torn_write(rng: random.Random, content: bytearray, used: int) -> None:
    at = rng.randrange(used)
    size = min(rng.choice([16, 64, 512, 3000]), len(content) - at)
    content[at : at + size] = rng.randbytes(size)


def swapped_pages(rng: random.Random, content: bytearray, _used: int) -> None:
    a, b = (rng.randrange(len(content) // PAGE) * PAGE for _ in range(2))
    content[a : a + PAGE], content[b : b + PAGE] = content[b : b + PAGE], content[a : a + PAGE]


DAMAGES = (flipped_bit, zeroed_page, torn_write, swapped_pages)


def damage(rng: random.Random, store: Store) -> dict[str, bytes]:
    """Damage some files and remove others. Returns the intact entries of each."""
    for _ in range(rng.randint(1, 4)):
        segment = rng.choice(store.segments)
        path = Path(segment.path)
        if not path.exists():
            continue
        if rng.random() < 0.1 and segment not in (store.segments[0], store.segments[-1]):
            path.unlink()
            continue
        content = bytearray(path.read_bytes())
        rng.choice(DAMAGES)(rng, content, max(min(store.end, segment.end) - segment.base, 1))
        path.write_bytes(content)
    return {segment.name: Path(segment.path).read_bytes() for segment in store.segments if Path(segment.path).exists()}


def positions_of(store: Store) -> set[tuple[int, int, int]]:
    return {(row["index"], row["pos"], row["size"]) for row in store.rows}


@pytest.mark.parametrize("seed", range(examples(60)))
def test_random_damage_loses_no_intact_entry(tmp_path: Path, engine: str, seed: int) -> None:
    rng = random.Random(seed)
    payloads = [raw(rng.randbytes(rng.choice([0, 10, 100, 700]))) for _ in range(rng.randint(60, 200))]
    terms = sorted(rng.choices([1, 2, 3], k=len(payloads)))
    store = write_dledger(tmp_path, payloads, file_size=4 * PAGE, terms=terms)
    before = {segment.name: Path(segment.path).read_bytes() for segment in store.segments}
    after = damage(rng, store)
    bases = {segment.name: segment.base for segment in store.segments}
    intact = set()
    for row in store.rows:
        start = row["pos"] - bases[row["segment"]]
        extent = slice(start, start + row["size"])
        if row["segment"] in after and after[row["segment"]][extent] == before[row["segment"]][extent]:
            intact.add((row["index"], row["pos"], row["size"]))
    batches = open_log(tmp_path, engine=engine).scan([*PLACE_COLUMNS])
    found = [row for batch in batches for row in batch.to_pylist() if row["kind"] != "corrupt"]
    returned = {(row["index"], row["pos"], row["size"]) for row in found}
    assert intact <= returned
    # An entry with a damaged index is returned at its position. No entry is returned at another position.
    assert {(pos, size) for _, pos, size in returned} <= {(pos, size) for _, pos, size in positions_of(store)}
