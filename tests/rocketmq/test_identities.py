"""Identities of committed messages in sorted runs, and recent ones in memory: lookup, restarts, damage, expiry."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pyspark_dledger.common.clock import SteadyClock
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.encode.encoded import ID_SIZE, PRODUCER_SIZE
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.rocketmq.service import committed_identities
from pyspark_dledger.rocketmq.service.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.service.sorted_run import (
    CoveredRange,
    SortedRun,
    concatenated,
    identity_arrays,
    run_paths,
    write_run,
)

DAY = 24 * 3600 * 1000


class Clock:
    """Milliseconds since 1970; tests advance them."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


def identity(number: int, producer: str = "p") -> bytes:
    """The identity of message `number` of a producer."""
    digest = hashlib.blake2b(b"%d" % number, digest_size=ID_SIZE - PRODUCER_SIZE).digest()
    return hashlib.blake2b(producer.encode(), digest_size=PRODUCER_SIZE).digest() + digest


def ids_of(numbers: range, producer: str = "p") -> bytes:
    return b"".join(identity(number, producer) for number in numbers)


def entry_range(numbers: range, stored: int, term: int = 1) -> CoveredRange:
    return CoveredRange(numbers[0], numbers[-1], term, stored, stored)


def open_identities(
    folder: Path, clock: Clock, end: int = 1 << 40, needed_from: int = 0, **options: int
) -> CommittedIdentities:
    """The identities of a log whose entries up to `end` have term 1."""
    found = CommittedIdentities(folder, clock=clock, **options)
    found.load(lambda index, term: index <= end and term == 1, needed_from, needed_from)
    return found


def add(identities: CommittedIdentities, numbers: range, clock: Clock, producer: str = "p") -> None:
    """Commit messages whose indexes are their numbers."""
    identities.add(entry_range(numbers, clock.now), ids_of(numbers, producer), np.array(numbers, np.int64))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_run_has_the_identities_that_were_written(tmp_path: Path) -> None:
    parts = [identity_arrays(ids_of(range(n, n + 50), f"p{n % 3}"), np.arange(n, n + 50)) for n in range(0, 500, 50)]
    write_run(tmp_path, CoveredRange(0, 499, 7, 11, 22), concatenated(parts), is_durable=True)
    (path,) = run_paths(tmp_path)
    run = SortedRun(path)
    assert (run.range, run.count) == (CoveredRange(0, 499, 7, 11, 22), 500)
    for part in parts:
        producer = int(part.producer[0])
        assert run.has_producer(producer)
        assert run.find(producer, part.first, part.second).tolist() == part.index.tolist()
    assert not run.has_producer(1)
    unknown = identity_arrays(ids_of(range(1000, 1010), "p0"), np.arange(10))
    assert run.find(int(unknown.producer[0]), unknown.first, unknown.second).tolist() == [-1] * 10


@pytest.mark.parametrize("producers", [1, 3, 500])
def test_few_identities_are_found_as_many(tmp_path: Path, producers: int) -> None:
    """Few are searched for page by page."""
    parts = [identity_arrays(ids_of(range(4000), f"p{p}"), np.arange(4000)) for p in range(min(producers, 3))]
    small = [identity_arrays(ids_of(range(p, p + 3), f"p{p}"), np.arange(3)) for p in range(3, producers)]
    run = write_run(tmp_path, entry_range(range(4000), 1), concatenated([*parts, *small]), is_durable=True)
    wanted = identity_arrays(ids_of(range(3900, 4100), "p0"), np.arange(200))
    producer = int(wanted.producer[0])
    together = run.find(producer, wanted.first, wanted.second)
    assert together.tolist() == [*range(3900, 4000), *([-1] * 100)]
    for start in range(0, 200, 50):
        few = slice(start, start + 50)
        assert run.is_loaded(producer, wanted.first[few])
        assert (run.find(producer, wanted.first[few], wanted.second[few]) == together[few]).all()
    assert not run.is_loaded(producer, wanted.first)
    for part in small[:20]:
        assert run.find(int(part.producer[0]), part.first, part.second).tolist() == [0, 1, 2]
    extremes = np.array([0, 2**64 - 1], np.uint64)
    assert run.find(producer, extremes, extremes).tolist() == [-1, -1]


def test_a_run_that_the_disk_cannot_read_gives_no_answer(tmp_path: Path) -> None:
    """Otherwise a message would be written twice."""
    found = identity_arrays(ids_of(range(1000)), np.arange(1000))
    run = write_run(tmp_path, entry_range(range(1000), 1), found, is_durable=True)
    os.truncate(run.path, 4096)
    with pytest.raises(UnreadableError, match="cannot be read"):
        run.find(int(found.producer[0]), found.first, found.second)
    with pytest.raises(ValueError, match="expected"):
        SortedRun(run.path)
    np.array(run.all().index)
    with pytest.raises(UnreadableError):
        run.check_readable()


def test_the_last_of_equal_identities_is_found_and_half_a_hash_does_not_match(tmp_path: Path) -> None:
    one, other = identity(1), identity(2)
    near = one[:16] + other[16:]
    found = identity_arrays(one + near + one + other, np.array([3, 4, 5, 6]))
    run = write_run(tmp_path, CoveredRange(0, 9, 1, 0, 0), found, is_durable=False)
    wanted = identity_arrays(one + near + other + one[:16] + bytes(8), np.zeros(4, np.int64))
    assert run.find(int(wanted.producer[0]), wanted.first, wanted.second).tolist() == [5, 4, 6, -1]


@pytest.mark.parametrize("at", [72, 80, 88, 96], ids=["producer", "next producer", "start", "next start"])
def test_runs_in_another_order_are_rejected(tmp_path: Path, at: int) -> None:
    """Checksums of a run that a member sends do not prove its order; the merge of runs failed later."""
    parts = [identity_arrays(ids_of(range(2), producer), np.arange(2)) for producer in ("a", "b")]
    path = write_run(tmp_path, CoveredRange(0, 9, 1, 0, 0), concatenated(parts), is_durable=False).path
    data = bytearray(path.read_bytes())
    data[at : at + 8] = bytes(8) if at == 80 else b"\xff" * 8
    struct.pack_into("<I", data, 64, crc32(data[72:]))
    struct.pack_into("<I", data, 68, crc32(data[:68]))
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"expected (producers|identities)"):
        SortedRun(path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "header", "empty"])
def test_damaged_runs_are_rejected(tmp_path: Path, damage: str) -> None:
    write_run(
        tmp_path, CoveredRange(0, 99, 1, 0, 0), identity_arrays(ids_of(range(100)), np.arange(100)), is_durable=False
    )
    (path,) = run_paths(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "header":
        data[10] ^= 1
    path.write_bytes(bytes(data)[: {"cut": -8, "empty": 0}.get(damage, len(data))])
    with pytest.raises(ValueError, match="expected"):
        SortedRun(path)


def test_only_added_identities_are_found_with_their_indexes(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock, run_ids=100)
    for start in range(0, 3000, 60):
        add(identities, range(start, start + 60), clock, f"p{start % 7}")
    identities.flush()
    assert identities.covered == 2999
    for start in range(0, 3000, 60):
        ids = ids_of(range(start, start + 60), f"p{start % 7}")
        assert identities.find(ids) == {n: start + n for n in range(60)}
        # Equal contents of another producer have other identities.
        assert not identities.find(ids_of(range(start, start + 60), "other"))
    assert not identities.find(ids_of(range(5000, 9000), "p0"))


def test_a_lookup_can_be_limited_to_ordinals(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock, run_ids=10)
    add(identities, range(10), clock)
    assert identities.find(ids_of(range(10)), np.array([2, 5])) == {2: 2, 5: 5}


def test_runs_are_merged_and_stay_few(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock, run_ids=1)
    for number in range(600):
        clock.now += 10
        add(identities, range(number, number + 1), clock)
    files = run_paths(tmp_path)
    assert len(files) < 40
    ranges = [SortedRun(path).range for path in files]
    assert (ranges[0].first_index, ranges[-1].last_index) == (0, 599)
    assert all(one.last_index + 1 == other.first_index for one, other in pairwise(ranges))
    assert open_identities(tmp_path, clock).find(ids_of(range(600))) == {n: n for n in range(600)}


def test_no_run_covers_more_than_a_seventh_of_the_time(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock, expiry_ms=7 * DAY, run_ids=1)
    for number in range(60):
        clock.now += DAY // 10
        add(identities, range(number, number + 1), clock)
    spans = [SortedRun(path).range for path in run_paths(tmp_path)]
    assert max(span.last_store_timestamp - span.first_store_timestamp for span in spans) <= DAY
    assert len(spans) < 60


def test_expired_identities_are_new_again(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock, expiry_ms=DAY, run_ids=10)
    add(identities, range(10), clock)
    clock.now += DAY // 2
    add(identities, range(10, 20), clock)
    assert len(identities.find(ids_of(range(20)))) == 20
    clock.now += DAY // 2 + 1
    # Before runs are deleted, and after.
    assert identities.find(ids_of(range(20))) == {n: n for n in range(10, 20)}
    add(identities, range(20, 30), clock)
    assert len(run_paths(tmp_path)) == 2
    assert identities.find(ids_of(range(20))) == {n: n for n in range(10, 20)}


def test_no_identity_expires_while_the_clock_shows_a_time_days_ahead(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = [0.0]
    found = partial(SteadyClock, wall=lambda: clock() / 1000, steady=lambda: steady[0])
    monkeypatch.setattr(committed_identities, "SteadyClock", found)
    identities = CommittedIdentities(tmp_path, 7 * DAY, run_ids=10)
    identities.load(lambda _index, _term: True, 0, 0)
    add(identities, range(10), clock)
    clock.now += 8 * DAY
    assert len(identities.find(ids_of(range(10)))) == 10
    # It lasts, so it is the time.
    clock.now += DAY
    steady[0] += DAY / 1000
    assert identities.find(ids_of(range(10))) == {}


def test_a_run_of_older_messages_hides_no_earlier_run(tmp_path: Path, clock: Clock) -> None:
    """A leader's clock was wrong, or raw entries of a restored log keep their old store timestamps."""
    identities = open_identities(tmp_path, clock, expiry_ms=DAY, run_ids=10)
    add(identities, range(10), clock)
    identities.add(entry_range(range(10, 20), clock.now - 30 * DAY), ids_of(range(10, 20)), np.arange(10, 20))
    assert len(run_paths(tmp_path)) == 2
    assert identities.find(ids_of(range(20))) == {n: n for n in range(20)}
    clock.now += DAY + 1
    assert identities.find(ids_of(range(20))) == {}


def test_a_run_of_entries_without_identities_covers_them(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock)
    identities.add(entry_range(range(100), clock.now), b"", np.empty(0, np.int64))
    identities.flush()
    assert CommittedIdentities(tmp_path, clock=clock).load(lambda _index, _term: True, 0, 0) == 100


def load(
    folder: Path, clock: Clock, has_entry: Callable[[int, int], bool], needed_from: int = 0
) -> tuple[int, CommittedIdentities]:
    identities = CommittedIdentities(folder, clock=clock)
    return identities.load(has_entry, needed_from, needed_from), identities


@pytest.fixture
def three_runs(tmp_path: Path, clock: Clock) -> Path:
    """Indexes 0 to 29, ten in a file."""
    identities = open_identities(tmp_path, clock, run_ids=10)
    for start in (0, 10, 20):
        add(identities, range(start, start + 10), clock)
    assert len(run_paths(tmp_path)) == 3
    return tmp_path


def test_a_restart_continues_after_the_runs(three_runs: Path, clock: Clock) -> None:
    read_from, identities = load(three_runs, clock, lambda _index, _term: True)
    assert read_from == 30
    assert identities.find(ids_of(range(40))) == {n: n for n in range(30)}
    add(identities, range(30, 40), clock)
    identities.flush()
    assert identities.find(ids_of(range(40))) == {n: n for n in range(40)}


@pytest.mark.parametrize(("missing", "read_from"), [(0, 0), (1, 10), (2, 20)])
def test_the_log_is_read_from_a_missing_or_damaged_run_on(
    three_runs: Path, clock: Clock, missing: int, read_from: int
) -> None:
    path = run_paths(three_runs)[missing]
    path.write_bytes(path.read_bytes()[:-1])
    found, identities = load(three_runs, clock, lambda _index, _term: True)
    assert found == read_from
    assert identities.covered == read_from - 1
    assert len(run_paths(three_runs)) == missing


def test_runs_of_another_log_are_dropped(three_runs: Path, clock: Clock) -> None:
    # The log was truncated after 15: later entries may differ.
    read_from, identities = load(three_runs, clock, lambda index, _term: index <= 15)
    assert (read_from, identities.covered) == (10, 9)
    assert not identities.find(ids_of(range(10, 30)))


def test_runs_of_another_term_are_dropped(three_runs: Path, clock: Clock) -> None:
    read_from, identities = load(three_runs, clock, lambda _index, term: term == 2)
    assert read_from == 0
    assert not identities.find(ids_of(range(30)))
    assert not run_paths(three_runs)


def test_runs_of_expired_entries_may_be_missing(three_runs: Path, clock: Clock) -> None:
    run_paths(three_runs)[0].unlink()
    assert load(three_runs, clock, lambda _index, _term: True, needed_from=10)[0] == 30


def test_a_crash_between_merge_and_delete_leaves_runs_that_are_cleaned_up(three_runs: Path, clock: Clock) -> None:
    parts = [SortedRun(path).all() for path in run_paths(three_runs)]
    write_run(three_runs, entry_range(range(30), clock.now), concatenated(parts), is_durable=True)
    (three_runs / "00000000000000000030-00000000000000000040.tmp").write_bytes(b"half")
    read_from, identities = load(three_runs, clock, lambda _index, _term: True)
    assert read_from == 30
    assert len(list(three_runs.iterdir())) == 1
    assert identities.find(ids_of(range(30))) == {n: n for n in range(30)}


def test_a_range_that_is_added_twice_counts_once(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock)
    add(identities, range(10), clock)
    add(identities, range(10), clock)
    add(identities, range(5, 15), clock)
    identities.flush()
    (path,) = run_paths(tmp_path)
    assert (SortedRun(path).count, SortedRun(path).range.last_index) == (15, 14)


def test_pending_identities_are_those_above_the_runs(tmp_path: Path, clock: Clock) -> None:
    identities = open_identities(tmp_path, clock, run_ids=10)
    add(identities, range(12), clock)
    add(identities, range(12, 15), clock)
    assert identities.covered == 11
    assert [part.index.tolist() for part in identities.pending()] == [[12, 13, 14]]
    clock.now += 60_000
    add(identities, range(15, 16), clock)
    assert (identities.covered, identities.pending()) == (15, [])


def test_many_identities_are_found_as_the_filter_grows(tmp_path: Path, clock: Clock) -> None:
    """More identities than the first filter has capacity for."""
    identities = open_identities(tmp_path, clock, run_ids=40_000)
    rng = random.Random(5)
    ids = [identity(0)[:PRODUCER_SIZE] + rng.randbytes(16) for _ in range(160_000)]
    for start in range(0, len(ids), 40_000):
        part = range(start, start + 40_000)
        identities.add(entry_range(part, clock.now), b"".join(ids[start : start + 40_000]), np.array(part, np.int64))
    numbers = rng.sample(range(len(ids)), 2000)
    assert identities.find(b"".join(ids[n] for n in numbers)) == dict(enumerate(numbers))
    unknown = b"".join(ids[0][:PRODUCER_SIZE] + rng.randbytes(16) for _ in range(20_000))
    assert not identities.find(unknown)


def test_recent_identities_drop_what_runs_cover(reader: Engine) -> None:
    recent = reader.new_identity_table()
    for start in range(0, 40, 10):
        recent.add(ids_of(range(start, start + 10)), np.arange(start, start + 10))
    assert recent.find(ids_of(range(38, 42))) == {0: 38, 1: 39}
    recent.forget(25)
    assert len(recent) == 14
    assert recent.find(ids_of(range(40))) == {n: n for n in range(26, 40)}
    recent.forget(39)
    assert not len(recent)
    assert not recent.find(ids_of(range(40)))


def test_recent_identities_are_found_while_others_are_dropped(reader: Engine) -> None:
    recent = reader.new_identity_table()
    for start in range(0, 20_000, 100):
        recent.add(ids_of(range(start, start + 100)), np.arange(start, start + 100))
        recent.forget(start - 1500)
        assert recent.find(ids_of(range(start + 99, start + 101))) == {0: start + 99}
    assert len(recent) == 1599
    wanted = ids_of(range(19_000, 21_000))
    assert recent.find(wanted) == {n: 19_000 + n for n in range(1000)}
    near = bytearray(identity(19_999))
    near[-1] ^= 1
    assert not recent.find(bytes(near))


def test_the_last_index_of_equal_recent_identities_is_found(reader: Engine) -> None:
    recent = reader.new_identity_table()
    recent.add(ids_of(range(3)) + identity(1) + identity(9, "q"), np.array([0, 1, 2, 5, 7]))
    assert recent.find(ids_of(range(4))) == {0: 0, 1: 5, 2: 2}
    producer = int.from_bytes(identity(1)[:PRODUCER_SIZE], "little")
    ids, index = recent.of_producer(producer, 0)
    assert bytes(ids) == identity(1) + identity(2) + identity(1)
    assert np.frombuffer(index, np.int64).tolist() == [1, 2, 5]
    recent.forget(1)
    assert recent.find(ids_of(range(4))) == {1: 5, 2: 2}
    recent.forget(5)
    assert recent.find(ids_of(range(4)) + identity(9, "q")) == {4: 7}


def test_repeated_identities_name_the_first_of_each(reader: Engine) -> None:
    ids = b"".join(bytes([number]) * 24 for number in (1, 2, 0, 1, 0, 2, 1, 3))
    counts = np.array([True, True, False, True, False, True, True, True])
    assert reader.new_identity_table().repeats(ids, counts) == {3: 0, 5: 1, 6: 0}
    assert reader.new_identity_table().repeats(b"", np.ones(0, np.bool_)) == {}
    with pytest.raises((ValueError, IndexError)):
        reader.new_identity_table().repeats(ids, counts[1:])


def test_a_filter_finds_all_that_were_added_and_few_others(reader: Engine) -> None:
    rng = random.Random(7)
    bits = reader.new_identity_filter(70_000)
    assert bits.capacity >= 70_000
    ids = rng.randbytes(ID_SIZE * bits.capacity)
    bits.add(ids)
    assert np.frombuffer(bits.candidates(ids), np.int64).tolist() == list(range(bits.capacity))
    few = 50 if reader.NAME == "native" else 500
    assert len(np.frombuffer(bits.candidates(rng.randbytes(ID_SIZE * 10_000)), np.int64)) < few


def test_bytes_that_are_no_identities_are_rejected(reader: Engine) -> None:
    recent, bits = reader.new_identity_table(), reader.new_identity_filter(1)
    with pytest.raises(ValueError, match="one index for each"):
        recent.add(bytes(ID_SIZE), np.arange(2))
    for call in (recent.find, bits.add, bits.candidates):
        with pytest.raises(ValueError, match="identities of 24 bytes"):
            call(bytes(ID_SIZE - 1))
