"""What a segment's witness knows decides about damage: for any split and batch size, in both engines."""

from __future__ import annotations

import dataclasses
import mmap
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format import codec
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.scan.frames import SPAN_WINDOW
from pyspark_dledger.format.scan.segment_file import MissingBytes
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, KnownEntries, Segment, SurveyRequest
from pyspark_dledger.format.store_file import PartialFile
from tests.format.test_engines import budget
from tests.format.test_resync import Row, check_splits, hostile_store, scan
from tests.support import generate
from tests.support.damage import write_log
from tests.support.generate import Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.true_witness import TrueWitness


@dataclass(frozen=True)
class NeverAsked:
    def known_entries(self, segment: Segment) -> KnownEntries:
        raise AssertionError(f"asked about {segment.path}")


@dataclass
class Counting:
    """Counts how often a witness is asked."""

    witness: TrueWitness
    asked: list[Segment] = field(default_factory=list)

    def known_entries(self, segment: Segment) -> KnownEntries:
        self.asked.append(segment)
        return self.witness.known_entries(segment)


def knowing(segment: Segment, rows: list[dict[str, Any]]) -> Segment:
    """The segment with a witness of these rows, by its present bytes."""
    data = Path(segment.path).read_bytes()
    extents = [(row["pos"], row["size"]) for row in rows]
    return dataclasses.replace(segment, witness=TrueWitness.of(extents, data, segment.base))


def entries(rows: list[Row]) -> list[object]:
    """The positions of rows that are not corrupt."""
    return [row[1] for row in rows if row[0] != "corrupt"]


def every_call(reader: Engine, segment: Segment, end: int) -> None:
    for search_all in (False, True):
        reader.log_end(segment, segment.base, search_all)
    scan(reader, segment, segment.base, end)
    reader.split(segment, segment.base, end, 60)
    reader.seek(segment, segment.base, end, 5)
    reader.term_runs(segment, segment.base, end)
    reader.survey(SurveyRequest(segment, segment.base, end))


# When it is asked.


@pytest.mark.parametrize("source", [DLEDGER, COMMITLOG])
def test_undamaged_segments_never_ask(reader: Engine, tmp_path: Path, source: str) -> None:
    messages = [mq_message(topic="T", body=b"b%d" % number) for number in range(60)]
    store = write_dledger(tmp_path, messages + [raw(b"x" * 500)] * 20) if source == DLEDGER else None
    store = store or write_commitlog(tmp_path, messages)
    assert len(store.segments) > 1
    for segment in store.segments:
        end = min(segment.end, store.end)
        every_call(reader, dataclasses.replace(segment, witness=NeverAsked()), end)


def test_a_large_undamaged_segment_never_asks(reader: Engine, tmp_path: Path) -> None:
    size, count = 64 * 1024, 24 * 16
    data = b"".join(codec.encode_entry(index, 1, index * size, b"." * (size - 48)) for index in range(count))
    path = tmp_path / "0"
    path.write_bytes(data + bytes(2**20))
    segment = Segment.local(str(path), "0", 0, len(data) + 2**20, DLEDGER, witness=NeverAsked())
    assert len(reader.split(segment, 0, len(data), 2 * SPAN_WINDOW + 1)) == 2
    assert reader.log_end(segment, 0, True).last_index == count - 1
    assert len(scan(reader, segment, 0, len(data))) == count


def test_a_damaged_segment_asks_once_per_call(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 20)] * 40)
    (segment,) = store.segments
    witness = Counting(TrueWitness.of([(row["pos"], row["size"]) for row in store.rows], bytes(4096), 0))
    for row in store.rows[3::7]:
        write_log(segment, row["pos"], bytes(ENTRY_HEADER_SIZE))
    segment = dataclasses.replace(segment, witness=witness)
    calls: list[Callable[[], object]] = [
        lambda: reader.log_end(segment, 0, False),
        lambda: scan(reader, segment, 0, store.end, max_batch_rows=2),
        lambda: reader.split(segment, 0, store.end, 60),
        lambda: reader.seek(segment, 0, store.end, 39),
        lambda: reader.term_runs(segment, 0, store.end),
        lambda: reader.survey(SurveyRequest(segment, 0, store.end)),
    ]
    for number, call in enumerate(calls):
        call()
        assert len(witness.asked) == number + 1


def test_missing_bytes_of_a_copy_are_no_damage(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 100)] * 600, file_size=16 * mmap.PAGESIZE)
    segment = store.segments[0]
    copy = PartialFile.of(segment.file, segment.path, ((0, mmap.PAGESIZE),))
    segment = dataclasses.replace(segment, file=copy, witness=NeverAsked())
    with pytest.raises(MissingBytes):
        scan(reader, segment, 0, segment.end)
    with pytest.raises(MissingBytes):
        reader.log_end(segment, 0, False)
    with pytest.raises(MissingBytes):
        reader.survey(SurveyRequest(segment, 0, segment.end))


@dataclass(frozen=True)
class Failing:
    error: Exception
    pos: tuple[int, ...] = ()

    def known_entries(self, segment: Segment) -> KnownEntries:
        if not self.pos:
            raise self.error
        pos = np.array(self.pos, np.int64)
        return KnownEntries(pos, pos + 100, np.ones(len(pos), np.bool_))


def test_errors_of_a_witness_are_raised(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 20)] * 5)
    (segment,) = store.segments
    write_log(segment, store.rows[2]["pos"], bytes(ENTRY_HEADER_SIZE))
    failing = dataclasses.replace(segment, witness=Failing(PermissionError("index")))
    with pytest.raises(PermissionError, match="index"):
        scan(reader, failing, 0, store.end)
    with pytest.raises(PermissionError, match="index"):
        reader.survey(SurveyRequest(failing, 0, store.end))
    for pos in ((100, 0), (0, 50)):
        unsorted = dataclasses.replace(segment, witness=Failing(ValueError(), pos))
        with pytest.raises(ValueError, match="expected known entries sorted by position and disjoint"):
            reader.log_end(unsorted, 0, False)


def test_segments_with_a_witness_are_values() -> None:
    segment = Segment.local("0", "0", 0, 100, DLEDGER, witness=TrueWitness(((0, 60, b"header"),)))
    again = pickle.loads(pickle.dumps(segment))
    assert (again, hash(again)) == (segment, hash(segment))
    assert again != dataclasses.replace(segment, witness=None)
    assert len(Segment.local("0", "0", 0, 100, DLEDGER).known_entries().pos) == 0


def test_known_entries_outside_the_segment_are_ignored() -> None:
    witness = Failing(ValueError(), (0, 100, 200, 300, 400))
    known = Segment.local("0", "0", 100, 250, DLEDGER, witness=witness).known_entries()
    assert known.pos.tolist() == [100, 200]


# What it decides.


def fixed_store(root: Path, count: int = 12, body: int = 20) -> tuple[Store, Segment]:
    """A store with one file, and its segment, whose witness knows every entry."""
    store = write_dledger(root, [raw(b"%020d" % number * (body // 20)) for number in range(count)])
    (segment,) = store.segments
    return store, knowing(segment, store.rows)


def test_a_body_with_the_better_chain_is_lost_with_its_entry(reader: Engine, tmp_path: Path) -> None:
    """Without a witness, the last entry of the log alone would not outrank the chain in the body."""

    def chain(at: int) -> bytes:
        body = b""
        for number in range(9):
            body += codec.encode_entry(4 + number, 1, at + len(body), b"")
        return body

    store = write_dledger(tmp_path, [raw(b"x" * 30)] * 3 + [generate.Payload("entry", chain)] + [raw(b"y")] * 2)
    (segment,) = store.segments
    segment = knowing(segment, store.rows)
    write_log(segment, store.rows[3]["pos"], bytes(ENTRY_HEADER_SIZE))
    write_log(segment, store.rows[4]["pos"], bytes(ENTRY_HEADER_SIZE))
    expected = [row["pos"] for row in store.rows if row["index"] not in (3, 4)]
    rows = scan(reader, segment, 0, store.end)
    assert entries(rows) == expected
    assert [row[0] for row in rows] == ["entry"] * 3 + ["corrupt", "entry"]
    end = reader.log_end(segment, 0, False)
    assert (end.pos, end.last_index, end.entries) == (store.end, 5, 4)


def test_a_damaged_index_costs_nothing(reader: Engine, tmp_path: Path) -> None:
    store, segment = fixed_store(tmp_path)
    row = store.rows[4]
    write_log(segment, row["pos"] + 8, (2**40).to_bytes(8, "big"))
    rows = scan(reader, segment, 0, store.end)
    assert entries(rows) == [row["pos"] for row in store.rows]
    end = reader.log_end(segment, 0, False)
    assert (end.pos, end.last_index, end.entries) == (store.end, 11, 11)


def test_an_earlier_entry_at_the_position_of_a_known_one_is_lost(reader: Engine, tmp_path: Path) -> None:
    """A sector with an entry of an earlier term came back."""
    store = write_dledger(tmp_path, [raw(b"x" * 20)] * 8, terms=[1, 1, 1, 3, 3, 3, 3, 3])
    (segment,) = store.segments
    segment = knowing(segment, store.rows)
    pos = store.rows[5]["pos"]
    write_log(segment, pos, codec.encode_entry(5, 2, pos, b"y" * 20))
    rows = scan(reader, segment, 0, store.end)
    assert entries(rows) == [row["pos"] for row in store.rows if row["index"] != 5]
    assert rows[5][4] == f"expected index 5 and term >= 3 at {pos}, found index 5 and term 2"
    survey = reader.survey(SurveyRequest(segment, 0, store.end))
    assert [(problem.code, problem.pos, problem.fact.sentence()) for problem in survey.problems] == [
        ("corruptBytes", pos, rows[5][4])
    ]


def test_an_entry_over_known_ones_is_lost(reader: Engine, tmp_path: Path) -> None:
    store, segment = fixed_store(tmp_path)
    third, fifth = store.rows[3]["pos"], store.rows[5]["pos"]
    write_log(segment, third, codec.encode_entry(9, 1, third, b"z" * (fifth + 10 - third - ENTRY_HEADER_SIZE)))
    assert entries(scan(reader, segment, 0, store.end)) == [
        row["pos"] for row in store.rows if row["index"] not in (3, 4, 5)
    ]
    # Only the one that it covers is known: that contradicts it, too.
    known = [row for row in store.rows if row["index"] in (6, 7)]
    part = dataclasses.replace(segment, witness=knowing(segment, known).witness)
    assert entries(scan(reader, part, 0, store.end))[-6:] == [row["pos"] for row in store.rows[-6:]]


def test_an_unknown_entry_between_known_ones_is_found(reader: Engine, tmp_path: Path) -> None:
    store, segment = fixed_store(tmp_path, 12)
    unknown = [row for row in store.rows if row["index"] not in (5, 6, 7)]
    segment = knowing(segment, unknown)
    for number in (4, 6):
        write_log(segment, store.rows[number]["pos"], bytes(ENTRY_HEADER_SIZE))
    assert entries(scan(reader, segment, 0, store.end)) == [
        row["pos"] for row in store.rows if row["index"] not in (4, 6)
    ]


def test_a_lost_last_entry_ends_the_log(reader: Engine, tmp_path: Path) -> None:
    store, segment = fixed_store(tmp_path)
    last = store.rows[-1]["pos"]
    write_log(segment, last, b"\x55" * ENTRY_HEADER_SIZE)
    rows = scan(reader, segment, 0, store.end)
    assert entries(rows) == [row["pos"] for row in store.rows[:-1]]
    assert rows[-1][:3] == ("corrupt", last, store.end - last)
    assert reader.log_end(segment, 0, False).pos == last


def test_known_entries_are_found_after_any_distance(reader: Engine, tmp_path: Path) -> None:
    first, far = codec.encode_entry(0, 1, 0, b"first"), 9 * 2**20
    path = tmp_path / "0"
    with path.open("wb") as file:
        file.write(first + b"noise")
        file.seek(far)
        file.write(codec.encode_entry(2, 1, far, b"far"))
        file.truncate(far + 1000)
    data = path.read_bytes()
    witness = TrueWitness.of([(0, len(first)), (far, 51)], data, 0)
    segment = Segment.local(str(path), "0", 0, far + 1000, DLEDGER, witness=witness)
    assert reader.log_end(segment, segment.base, False).pos == far + 51


def test_messages_of_an_old_commitlog(reader: Engine, tmp_path: Path) -> None:
    store = write_commitlog(tmp_path, [mq_message(topic="T", body=b"b%d" % number) for number in range(8)])
    segment = store.segments[0]
    rows = store.rows_of(segment)
    data = Path(segment.path).read_bytes()
    segment = dataclasses.replace(segment, witness=TrueWitness.of([(r["pos"], r["size"]) for r in rows], data, 0))
    write_log(segment, rows[2]["pos"], b"\x55" * 60)
    found = scan(reader, segment, segment.base, rows[-1]["pos"] + rows[-1]["size"])
    assert entries(found) == [row["pos"] for row in rows if row is not rows[2]]
    assert [row[0] for row in found].count("corrupt") == 1


def test_a_whole_entry_of_another_size_is_ignored(reader: Engine, tmp_path: Path) -> None:
    """Its header or the witness is wrong, so nothing is known about its end."""
    store = write_commitlog(tmp_path, [mq_message(topic="T", body=b"b%d" % number) for number in range(8)])
    segment = store.segments[0]
    rows = store.rows_of(segment)
    pos = rows[2]["pos"]
    write_log(segment, pos, (rows[2]["size"] + 300).to_bytes(4, "big"))
    data = Path(segment.path).read_bytes()
    extents = [(row["pos"], row["size"]) for row in rows[:2]] + [(pos, rows[2]["size"] + 300)]
    segment = dataclasses.replace(segment, witness=TrueWitness.of(extents, data, 0))
    found = scan(reader, segment, segment.base, rows[-1]["pos"] + rows[-1]["size"])
    assert entries(found) == [row["pos"] for row in rows if row is not rows[2]]


# Random damage and random known entries.


@pytest.mark.slow
@budget(50)
@given(
    seed=st.integers(0, 2**32),
    damage=generate.damages(),
    target=st.sampled_from([1, 60, 400, 3000]),
    share=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
)
def test_splits_batches_and_engines_change_nothing(
    folder: Callable[[], Path], seed: int, damage: Callable[[Store], None], target: int, share: float
) -> None:
    native, python = get_engine("native"), get_engine("python")
    rng = random.Random(seed)
    store = hostile_store(rng, folder())
    before = {segment.base: Path(segment.path).read_bytes() for segment in store.segments}
    known = {
        segment.base: knowing(segment, [row for row in store.rows_of(segment) if rng.random() < share])
        for segment in store.segments
    }
    damage(store)
    for segment in known.values():
        whole, cuts = check_splits(segment, target)
        for search_all in (False, True):
            log_end = native.log_end(segment, segment.base, search_all)
            assert python.log_end(segment, segment.base, search_all) == log_end
        for end in (segment.end, log_end.pos):
            request = SurveyRequest(segment, segment.base, end)
            assert python.survey(request) == native.survey(request)
        index = rng.randrange(100)
        for start in (segment.base, *cuts[:1]):
            assert python.seek(segment, start, segment.end, index) == native.seek(segment, start, segment.end, index)
            assert python.term_runs(segment, start, segment.end) == native.term_runs(segment, start, segment.end)
        if share == 1:
            check_rows(store, segment, before[segment.base], whole)


def check_rows(store: Store, segment: Segment, before: bytes, rows: list[Row]) -> None:
    """Every entry whose bytes are intact is a row, and no other begins elsewhere than an entry did."""
    data = Path(segment.path).read_bytes()
    originals = store.rows_of(segment)

    def is_intact(row: dict[str, Any]) -> bool:
        start, end = row["pos"] - segment.base, row["pos"] - segment.base + row["size"]
        return data[start:end] == before[start:end]

    found = set(entries(rows))
    assert {row["pos"] for row in originals if is_intact(row)} <= found <= {row["pos"] for row in originals}


# Truncated and rewritten logs.


def rewritten_tail(root: Path, larger: int) -> tuple[Segment, bytes, list[tuple[int, int]]]:
    """A log whose tail was truncated and written again with bodies that are larger by so many bytes.

    Whole entries of the old tail are after its end. Returns the segment, its bytes, and the extents of the log.
    """
    rng = random.Random(larger)
    bodies = [rng.randbytes(rng.choice([0, 20, 90, 300])) for _ in range(60)]
    data, extents = bytearray(), []
    for index, body in enumerate(bodies):
        data += codec.encode_entry(index, 1, len(data), body)
        extents.append((len(data) - ENTRY_HEADER_SIZE - len(body), ENTRY_HEADER_SIZE + len(body)))
    extents = extents[:30]
    at = sum(extents[-1])
    for index in range(30, 40):
        entry = codec.encode_entry(index, 2, at, bytes(max(len(bodies[index]) + larger, 0)))
        data[at : at + len(entry)] = entry
        extents.append((at, len(entry)))
        at += len(entry)
    data += bytes(2000)
    path = root / "0"
    path.write_bytes(data)
    return Segment.local(str(path), "0", 0, len(data), DLEDGER), bytes(data), extents


@pytest.mark.parametrize("larger", [-60, 7, 30])
@pytest.mark.parametrize("has_witness", [False, True])
def test_a_destroyed_header_hides_only_its_entry_before_a_stale_tail(
    reader: Engine, tmp_path: Path, has_witness: bool, larger: int
) -> None:
    segment, data, extents = rewritten_tail(tmp_path, larger)
    if has_witness:
        segment = dataclasses.replace(segment, witness=TrueWitness.of(extents, data, 0))
    end = sum(extents[-1])
    assert reader.log_end(segment, 0, False).pos == end
    for number, (pos, _) in enumerate(extents[:-1]):
        Path(segment.path).write_bytes(data[:pos] + bytes(ENTRY_HEADER_SIZE) + data[pos + ENTRY_HEADER_SIZE :])
        assert reader.log_end(segment, 0, False).pos == end
        rows = scan(reader, segment, 0, end)
        assert entries(rows) == [at for at, _ in extents[:number] + extents[number + 1 :]]


@pytest.mark.parametrize("bit", [2, 5, 20, 62])
@pytest.mark.parametrize("has_witness", [False, True])
def test_a_raised_term_makes_no_later_entry_stale(reader: Engine, tmp_path: Path, has_witness: bool, bit: int) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 20)] * 20, terms=[1] * 10 + [2] * 10)
    (segment,) = store.segments
    if has_witness:
        segment = knowing(segment, store.rows)
    data = Path(segment.path).read_bytes()
    for row in store.rows:
        write_log(segment, row["pos"] + 16, (row["term"] ^ (1 << bit)).to_bytes(8, "big"))
        end = reader.log_end(segment, 0, False)
        assert (end.pos, end.last_index) == (store.end, 19)
        assert entries(scan(reader, segment, 0, store.end)) == [row["pos"] for row in store.rows]
        Path(segment.path).write_bytes(data)


@pytest.mark.parametrize("field", [8, 16])
def test_a_flipped_bit_costs_one_entry_in_logs_with_the_positions_of_a_leader(
    reader: Engine, tmp_path: Path, field: int
) -> None:
    """The bodies contain entries. Only the distance to the leader's positions shows that they are not of the log."""

    def inner(index: int) -> Callable[[int], bytes]:
        return lambda _at: codec.encode_entry(index, 1, 5, b"x" * 20) * 3

    payloads = [generate.Payload("entry", inner(index + 1)) for index in range(12)]
    store = write_dledger(tmp_path, payloads, check_pos=False, pos_shift=-4096)
    segment = dataclasses.replace(store.segments[0], check_pos=False)
    data = Path(segment.path).read_bytes()
    for row in store.rows[1:-1]:
        for at in (0, 4, 44, field):
            pos = row["pos"] + at
            write_log(segment, pos, bytes([data[pos] ^ 16]))
            assert reader.log_end(segment, 0, False).pos == store.end
            found = set(entries(scan(reader, segment, 0, store.end)))
            assert {one["pos"] for one in store.rows if one is not row} <= found <= {one["pos"] for one in store.rows}
            Path(segment.path).write_bytes(data)
        write_log(segment, row["pos"], bytes(ENTRY_HEADER_SIZE))
        assert entries(scan(reader, segment, 0, store.end)) == [one["pos"] for one in store.rows if one is not row]
        Path(segment.path).write_bytes(data)


def test_a_term_that_is_raised_by_one_is_damaged_in_an_entry_of_its_own_size(reader: Engine, tmp_path: Path) -> None:
    """An entry of the next term has the size of the entry that it overwrote, where whole ones follow."""
    store = write_dledger(tmp_path, [raw(b"x" * 10 * number) for number in range(8)], terms=[2] * 8)
    (segment,) = store.segments
    write_log(segment, store.rows[4]["pos"] + 16, (3).to_bytes(8, "big"))
    assert reader.log_end(segment, 0, False).pos == store.end


@pytest.mark.parametrize("bit", [0, 3, 40])
def test_a_damaged_index_of_the_first_entry_makes_no_later_entry_stale(
    reader: Engine, tmp_path: Path, bit: int
) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 20)] * 8, first_index=4)
    (segment,) = store.segments
    write_log(segment, 8, (4 ^ (1 << bit)).to_bytes(8, "big"))
    end = reader.log_end(segment, 0, False)
    assert (end.pos, end.first_index, end.last_index, end.entries) == (store.end, 5, 11, 7)
    # The index of the second entry is the damaged one.
    write_log(segment, 8, (4).to_bytes(8, "big"))
    write_log(segment, store.rows[1]["pos"] + 8, (5 ^ (1 << bit)).to_bytes(8, "big"))
    end = reader.log_end(segment, 0, False)
    assert (end.pos, end.first_index, end.last_index, end.entries) == (store.end, 4, 11, 7)


def test_a_damaged_size_of_a_message_does_not_end_the_log(reader: Engine, tmp_path: Path) -> None:
    """It can lead into the bytes that were never written."""
    store = write_commitlog(tmp_path, [mq_message(topic="T", body=b"b%d" % number) for number in range(12)])
    segment = store.segments[0]
    rows = store.rows_of(segment)
    end = rows[-1]["pos"] + rows[-1]["size"]
    assert end + 200 < segment.end
    write_log(segment, end, bytes(segment.end - end))
    write_log(segment, rows[2]["pos"], (end + 100 - rows[2]["pos"]).to_bytes(4, "big"))
    assert reader.log_end(segment, 0, False).pos == end
    assert entries(scan(reader, segment, 0, end)) == [row["pos"] for row in rows if row is not rows[2]]


@pytest.mark.parametrize("terms", [(1, 2), (2, 3), (1, 4)])
def test_an_entry_of_the_next_term_ends_the_log_before_stale_ones(
    reader: Engine, tmp_path: Path, terms: tuple[int, int]
) -> None:
    old, new = terms
    store = write_dledger(tmp_path, [raw(b"x" * 20)] * 10, terms=[old] * 10)
    (segment,) = store.segments
    pos = store.rows[5]["pos"]
    write_log(segment, pos, codec.encode_entry(5, new, pos, b"y" * 20))
    assert reader.log_end(segment, 0, False).last_index == 5
    # The witness knows that the term is the right one, however large.
    write_log(segment, pos, codec.encode_entry(5, 2**40, pos, b"y" * 20))
    assert reader.log_end(segment, 0, False).last_index == 9
    assert reader.log_end(knowing(segment, store.rows[:6]), 0, False).last_index == 5


def test_a_message_in_the_body_of_a_destroyed_one_is_not_returned(reader: Engine, tmp_path: Path) -> None:
    """Fewer bytes than a message has are between its end and the next one."""

    def inner(at: int) -> bytes:
        return mq_message(topic="T", body=b"inner").make(at)

    def outer(pos: int) -> bytes:
        start = generate.mq_message(topic="T", body=b"x" * 200).make(pos)
        at = start.index(b"x" * 200)
        # The inner message is the last part of the body, with its real position.
        size = len(inner(0))
        return start[: at + 200 - size] + inner(pos + at + 200 - size) + start[at + 200 :]

    plain = [mq_message(topic="T", body=b"b%d" % number) for number in range(6)]
    store = write_commitlog(tmp_path, [*plain[:2], generate.Payload("message", outer), *plain[2:]])
    segment = store.segments[0]
    rows = store.rows_of(segment)
    write_log(segment, rows[2]["pos"], bytes(ENTRY_HEADER_SIZE))
    found = scan(reader, segment, 0, rows[-1]["pos"] + rows[-1]["size"])
    assert entries(found) == [row["pos"] for row in rows if row is not rows[2]]
