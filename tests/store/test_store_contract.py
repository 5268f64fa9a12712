"""What every store does, in memory and on disk: appending, reading, truncating, terms, and rejected calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_dledger.errors import InconsistentError, IndexRangeError
from pyspark_dledger.format.codec import crc32, decode_entry_header, decode_index_unit, encode_entry, signed32
from pyspark_dledger.format.encode import entry_encoding
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.store.dledger_store import DLedgerStore, Entry, EntryRun
from pyspark_dledger.store.memory_store import MemoryStore
from tests.support.stores import FILE, bodies, entries, leaders_entry, opened, where

Make = Callable[[str], DLedgerStore]


@pytest.fixture(params=["memory", "native", "python", "sync"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes started stores of one kind, each by its name."""
    made: list[DLedgerStore] = []

    def new(name: str) -> DLedgerStore:
        if request.param == "memory":
            made.append(MemoryStore(data_file_size=FILE))
        elif request.param == "sync":
            made.append(opened(tmp_path / name, flush="sync"))
        else:
            made.append(opened(tmp_path / name, engine=request.param))
        return made[-1]

    yield new
    for store in made:
        store.shutdown()


@pytest.fixture
def store(make: Make) -> DLedgerStore:
    return make("one")


def replicate(leader: DLedgerStore, follower: DLedgerStore, term: int, max_bytes: int = 1 << 20) -> None:
    """Copy a leader's entries to a follower, range by range."""
    index = max(follower.ledger_end_index + 1, 0)
    while index <= leader.ledger_end_index:
        part = leader.read(index, max_bytes)
        assert (part.first_index, part.pos) == (index, leader.get(index).pos)
        index = follower.append_as_follower(part.data, term) + 1
        assert index == part.last_index + 1


def test_new_store_is_empty(store: DLedgerStore) -> None:
    assert where(store) == (-1, -1, -1, -1, 0)
    assert (store.curr_term, store.vote_leader, store.flushed_index) == (0, None, -1)


def test_entries_are_contiguous(store: DLedgerStore) -> None:
    """DLedgerMappedFileStoreTest.testAppendAsLeader."""
    for number in range(10):
        appended = store.append_as_leader([b"hello %d" % number])
        assert (appended.first_index, appended.last_index, appended.pos) == (number, number, number * 55)
        assert where(store) == (0, number, 0, -1, number * 55 + 55)
    assert entries(store) == [Entry(number, 0, number * 55, 1, b"hello %d" % number) for number in range(10)]


def test_batch_positions(make: Make, tmp_path: Path) -> None:
    """AppendAndPushTest.testBatchAppend: entry i is at 48 * i + 128 * i * (i + 1) / 2 of one file."""
    on_disk = not isinstance(make("small"), MemoryStore)
    store = opened(tmp_path / "large", data_file_size=1 << 20) if on_disk else MemoryStore()
    store.append_as_leader([b"x" * 128 * (number + 1) for number in range(10)])
    assert [entry.pos for entry in entries(store)] == [48 * i + 128 * i * (i + 1) // 2 for i in range(10)]
    store.shutdown()


def test_batch_over_files_begins_a_run_in_each(store: DLedgerStore) -> None:
    appended = store.append_as_leader(bodies(0, 12))
    assert appended.runs == (EntryRun(0, 0), EntryRun(5, FILE), EntryRun(10, 2 * FILE))
    more = store.append_as_leader(bodies(12, 4))
    assert more.runs == (EntryRun(12, 2 * FILE + 2 * 148), EntryRun(15, 3 * FILE))
    assert [entry.body for entry in entries(store)] == bodies(0, 16)


def test_packed_bodies_are_appended_as_lists_are(make: Make) -> None:
    one, other = make("one"), make("other")
    assert one.append_as_leader(entry_encoding.pack_bodies(bodies(0, 7))) == other.append_as_leader(bodies(0, 7))
    assert entries(one) == entries(other)


def test_term_can_be_given(store: DLedgerStore) -> None:
    store.save_term(3, "n0")
    assert store.append_as_leader([b"a"]).term == 3
    assert store.append_as_leader([b"b"], term=4).term == 4
    assert [store.term_at(index) for index in (0, 1)] == [3, 4]
    assert (store.ledger_end_term, store.curr_term) == (4, 3)


def test_largest_body_of_a_file(store: DLedgerStore) -> None:
    store.append_as_leader([b"x" * (FILE - 56)])
    assert store.append_as_leader([b""]).pos == FILE


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "at least one body"),
        ([b"a", b"x" * (FILE - 55)], f"{FILE - 56} bytes"),
        (Bodies(2, b"\0\0\0\1\0\0\0\1a"), "10 bytes|9"),
        (Bodies(0, b""), "."),
    ],
)
def test_bodies_that_every_store_rejects(store: DLedgerStore, given: list[bytes] | Bodies, text: str) -> None:
    store.append_as_leader([b"before"])
    before = where(store)
    with pytest.raises(ValueError, match=text):
        store.append_as_leader(given)
    assert where(store) == before
    assert store.append_as_leader([b"after"]).first_index == 1


def test_append_hook_sees_entries_and_changes_bodies(store: DLedgerStore) -> None:
    """DLedgerMappedFileStoreTest.testAppendHook, for whole chunks: the entries' bytes and positions."""
    seen: list[tuple[int, int, int]] = []

    def hook(data: bytearray, units: bytearray) -> None:
        start = 0
        for at in range(0, len(units), 32):
            unit = decode_index_unit(bytes(units), at)
            seen.append((unit.index, unit.pos, unit.size))
            assert decode_entry_header(bytes(data), start).index == unit.index
            data[start + 48 : start + 50] = b"%02d" % len(seen)
            start += unit.size
        assert start == len(data)

    store.append_hook = hook
    store.append_as_leader([b"..aaa", b"..bbbb"])
    store.append_as_leader([b"..c"])
    assert seen == [(0, 0, 53), (1, 53, 54), (2, 107, 51)]
    assert [entry.body for entry in entries(store)] == [b"01aaa", b"02bbbb", b"03c"]


def test_leader_writes_checksums_of_the_bodies_as_stored(store: DLedgerStore) -> None:
    """Also of bodies that the hook has changed. The CRC of an empty body is 0, which means no checksum."""

    def hook(data: bytearray, _: bytearray) -> None:
        data[48] += 1

    store.append_as_leader([b"before", b""])
    store.append_hook = hook
    store.append_as_leader([b"a"])
    headers = [decode_entry_header(bytes(store.read(index, 1).data)) for index in range(3)]
    assert [header.body_crc for header in headers] == [signed32(crc32(body)) for body in (b"before", b"", b"b")]
    assert [(header.channel, header.chain_crc) for header in headers] == [(0, 0)] * 3


def test_failing_hook_appends_nothing(store: DLedgerStore) -> None:
    store.append_as_leader(bodies(0, 3))

    def hook(*_: object) -> None:
        raise RuntimeError("no")

    store.append_hook = hook
    with pytest.raises(RuntimeError):
        store.append_as_leader(bodies(3, 9))
    store.append_hook = None
    assert where(store) == (0, 2, 0, -1, 3 * 148)
    store.append_as_leader(bodies(3, 9))
    assert [entry.body for entry in entries(store)] == bodies(0, 12)


@pytest.mark.parametrize("max_bytes", [0, 300, 1 << 20])
def test_follower_becomes_equal(make: Make, max_bytes: int) -> None:
    """DLedgerMappedFileStoreTest.testAppendAsFollower."""
    leader, follower = make("leader"), make("follower")
    for term in range(3):
        leader.append_as_leader(bodies(term * 13, 13), term)
        leader.append_as_leader([b"", b"x" * (FILE - 56)], term)
    replicate(leader, follower, 2, max_bytes)
    assert entries(follower) == entries(leader)
    assert where(follower) == where(leader)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "at least"),
        (b"x" * 20, "header|48"),
        (encode_entry(2, 1, 49, b"b"), "index"),
        (encode_entry(0, 1, 49, b"b"), "index"),
        (encode_entry(1, 1, 48, b"b"), "48"),
        (encode_entry(1, 1, 50, b"b"), "50"),
        (encode_entry(1, 1, 2 * FILE, b"b"), str(2 * FILE)),
        (encode_entry(1, 0, 49, b"b"), "term"),
        (encode_entry(1, 3, 49, b"b"), "term"),
        (encode_entry(1, 1, 49, b"b", magic=2), "magic"),
        (encode_entry(1, 1, 49, b"b")[:-1], "size|bytes"),
        (encode_entry(1, 1, 49, b"b") + encode_entry(3, 1, 98, b"c"), "index"),
        (encode_entry(1, 1, 49, b"b") + encode_entry(2, 1, 99, b"c"), "pos"),
        (encode_entry(1, 2, 49, b"b") + encode_entry(2, 1, 98, b"c"), "term"),
        (encode_entry(1, 2, 49, b"x" * (FILE - 49 - 48 - 7)), "data file"),
        (leaders_entry(1, 1, 49, b"b")[:-1] + b"c", f"CRC {signed32(crc32(b'b'))} in entry 1"),
        (leaders_entry(1, 1, 49, b"b") + encode_entry(2, 1, 98, b"c", body_crc=5), "CRC 5 in entry 2"),
    ],
)
def test_follower_rejects_entries_that_do_not_continue_its_log(store: DLedgerStore, data: bytes, text: str) -> None:
    store.append_as_leader([b"a"], 1)
    before = where(store)
    with pytest.raises(InconsistentError, match=text):
        store.append_as_follower(data, 2)
    assert where(store) == before
    assert store.append_as_follower(encode_entry(1, 2, 49, b"b"), 2) == 1


def test_follower_continues_in_the_next_file_if_its_leader_does(store: DLedgerStore) -> None:
    """A Java leader that recovered after a blank skips the rest of the file."""
    store.append_as_leader([b"a"], 1)
    assert store.append_as_follower(encode_entry(1, 1, FILE, b"b"), 1) == 1
    assert [entry.pos for entry in entries(store)] == [0, FILE]


def test_ranges_are_of_one_file_and_of_at_most_the_requested_bytes(store: DLedgerStore) -> None:
    store.append_as_leader(bodies(0, 12))
    found = [
        store.read(index, size)[:3] for index, size in ((0, 1 << 20), (1, 300), (1, 296), (1, 295), (4, 0), (10, 999))
    ]
    assert found == [(0, 4, 0), (1, 2, 148), (1, 2, 148), (1, 1, 148), (4, 4, 592), (10, 11, 2 * FILE)]
    part = store.read(1, 300)
    wanted = b"".join(leaders_entry(index, 0, 148 * index, body) for index, body in enumerate(bodies(0, 3)))
    assert bytes(part.data) == wanted[148:]


@pytest.mark.parametrize("index", [-1, 8, 100])
def test_index_outside_the_log_is_rejected(store: DLedgerStore, index: int) -> None:
    store.append_as_leader(bodies(0, 8))
    for call in (store.get, store.term_at, store.truncate, lambda index: store.read(index, 100)):
        with pytest.raises(IndexRangeError, match=f"found {index}: the log has 0 to 7"):
            call(index)


def test_empty_log_has_no_index(store: DLedgerStore) -> None:
    with pytest.raises(IndexRangeError, match="the log is empty"):
        store.get(0)


@pytest.mark.parametrize("index", [0, 1, 4, 5, 6, 11])
def test_truncate(make: Make, index: int) -> None:
    """DLedgerMappedFileStoreTest.testTruncate: in the middle of a file, at the front of one, at the end."""
    store, other = make("store"), make("other")
    store.append_as_leader(bodies(0, 12), 1)
    store.flush()
    store.truncate(index)
    if index:
        other.append_as_leader(bodies(0, index), 1)
    assert where(store) == where(other)
    assert store.flushed_index == index - 1
    assert entries(store) == entries(other)
    for each in (store, other):
        each.append_as_leader(bodies(50, 9), 2)
    assert entries(store) == entries(other)


def test_committed_entries_are_never_truncated(store: DLedgerStore) -> None:
    store.append_as_leader(bodies(0, 8))
    store.update_committed_index(0, 4)
    with pytest.raises(ValueError, match="above the committed index 4"):
        store.truncate(4)
    store.truncate(5)
    assert where(store)[:4] == (0, 4, 0, 4)


def test_committed_index_only_rises_and_never_above_the_end(store: DLedgerStore) -> None:
    store.update_committed_index(0, 3)
    assert store.committed_index == -1
    store.append_as_leader(bodies(0, 8), 2)
    updates = [(2, 3), (2, 1), (1, 7), (2, -1), (2, 100), (3, 5)]
    found = []
    for term, index in updates:
        store.update_committed_index(term, index)
        found.append(store.committed_index)
    assert found == [3, 3, 3, 3, 7, 7]


@pytest.mark.parametrize("begin", [(0, 0), (9, FILE + 200)])
def test_a_malformed_block_changes_nothing(store: DLedgerStore, begin: tuple[int, int]) -> None:
    """Not the start of an empty log either, for any length that the block claims."""
    store.reset(*begin)
    before = where(store)
    with pytest.raises(ValueError, match="expected"):
        store.append_as_leader(Bodies(1, b"\xff\xff\xff\xff"))
    assert where(store) == before
    store.append_as_leader([b"first"])
    assert where(store)[4] == begin[1] + 53


def test_reset_begins_a_new_log(store: DLedgerStore) -> None:
    store.append_as_leader(bodies(0, 8))
    store.update_committed_index(0, 5)
    store.reset(100, 9 * FILE)
    assert where(store) == (-1, -1, -1, -1, 9 * FILE)
    assert store.append_as_follower(encode_entry(100, 3, 9 * FILE, b"a"), 3) == 100
    store.append_as_leader(bodies(101, 7), 3)
    assert where(store) == (100, 107, 3, -1, 10 * FILE + 3 * 148)
    assert [entry.index for entry in entries(store)] == list(range(100, 108))
    with pytest.raises(IndexRangeError, match="the log has 100 to 107"):
        store.get(99)


@pytest.mark.parametrize(("index", "pos"), [(-1, 0), (0, -1), (3, FILE - 55), (2, 0)])
def test_reset_to_an_impossible_position_is_rejected(store: DLedgerStore, index: int, pos: int) -> None:
    store.append_as_leader(bodies(0, 4))
    store.update_committed_index(0, 2)
    with pytest.raises(ValueError, match="expected"):
        store.reset(index, pos)


def test_term_and_vote(store: DLedgerStore) -> None:
    store.save_term(7, "n2")
    assert (store.curr_term, store.vote_leader) == (7, "n2")
    store.save_term(8, None)
    assert (store.curr_term, store.vote_leader) == (8, None)


def test_flush_returns_the_durable_index(store: DLedgerStore) -> None:
    assert store.flush() == -1
    store.append_as_leader(bodies(0, 3))
    assert store.flushed_index == -1
    assert store.flush() == store.flushed_index == 2
    store.append_as_leader(bodies(3, 3))
    store.truncate(4)
    assert (store.flushed_index, store.flush()) == (2, 3)
