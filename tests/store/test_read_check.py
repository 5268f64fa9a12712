"""A store with a check of what it reads: damaged messages are neither served nor pushed."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format import codec
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.store import MmapFileStore, StoreConfig
from pyspark_dledger.store.dledger_store import OtherEntryError
from tests.support import stores
from tests.support.damage import flip, write_at
from tests.support.generate import mq_message
from tests.support.stores import opened, reopened

COUNT = 30
MESSAGE = mq_message(body=b"x" * 200).make(0)
SIZE = ENTRY_HEADER_SIZE + len(MESSAGE)


def store_in(folder: Path) -> MmapFileStore:
    store = MmapFileStore(StoreConfig(self_id="n0", base_dir=folder, data_file_size=64 * 1024))
    store.startup()
    return store


@pytest.fixture
def store(tmp_path: Path) -> MmapFileStore:
    """A restarted store whose entry 9 has a wrong byte in its message's body."""
    first = store_in(tmp_path)
    first.append_as_leader([MESSAGE] * COUNT)
    first.shutdown()
    write_at(next(tmp_path.rglob(f"data/{0:020}")), 9 * SIZE + ENTRY_HEADER_SIZE + 120, b"y")
    again = store_in(tmp_path)
    again.read_check = get_engine().find_damaged
    return again


def test_a_range_ends_before_a_damaged_message(store: MmapFileStore) -> None:
    found = store.read(0, 1 << 20)
    assert (found.last_index, len(found.data)) == (8, 9 * SIZE)
    assert store.read(10, 1 << 20).last_index == COUNT - 1
    assert store.get(8).body == MESSAGE
    store.shutdown()


def test_a_damaged_message_is_not_served(store: MmapFileStore) -> None:
    for call in (lambda: store.get(9), lambda: store.read(9, 1 << 20)):
        with pytest.raises(StoreError, match="expected the body of index 9 to match its checksum"):
            call()
    store.shutdown()


def test_without_a_check_bodies_are_not_looked_at(store: MmapFileStore) -> None:
    store.read_check = None
    assert store.read(0, 1 << 20).last_index == COUNT - 1
    assert store.get(9).body != MESSAGE
    store.shutdown()


def test_entries_that_this_process_wrote_are_not_checked(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    calls = []
    store.read_check = calls.append
    store.append_as_leader([MESSAGE] * 5)
    assert store.read(0, 1 << 20).last_index == 4
    assert calls == []
    store.shutdown()


def test_bodies_that_do_not_match_their_checksum_are_not_served(tmp_path: Path) -> None:
    """The default check: bodies that are no messages."""
    first = store_in(tmp_path)
    first.append_as_leader([b"x" * 200] * COUNT)
    first.shutdown()
    write_at(next(tmp_path.rglob(f"data/{0:020}")), 9 * 248 + 100, b"y")
    again = store_in(tmp_path)
    assert (again.read(0, 1 << 20).last_index, again.read(10, 1 << 20).last_index) == (8, COUNT - 1)
    for call in (lambda: again.get(9), lambda: again.read(9, 1 << 20)):
        with pytest.raises(StoreError, match="expected the body of index 9 to match its checksum"):
            call()
    again.shutdown()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_term_is_compared_with_the_index_unit(tmp_path: Path, flush: str) -> None:
    """The header of the last entry gets another term while the store runs; pending units count too."""
    config = StoreConfig(self_id="n0", base_dir=tmp_path, data_file_size=64 * 1024, flush=flush)
    store = MmapFileStore(config)
    store.startup()
    store.append_as_leader([b"x" * 200] * COUNT, 1)
    store.shutdown()
    store.startup()
    store.append_as_leader([b"x" * 200] * COUNT, 1)
    write_at(next(tmp_path.rglob(f"data/{0:020}")), (COUNT - 1) * 248 + 22, b"\1")
    assert store.read(0, COUNT * 248).last_index == COUNT - 2
    assert store.read(COUNT, 1 << 20).last_index == 2 * COUNT - 1
    with pytest.raises(StoreError, match=r"index=29 term=1 .* found .* term=257"):
        store.get(COUNT - 1)
    store.shutdown()


# The check


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("is_recent", [True, False], ids=["recent", "old"])
def test_entries_that_the_disk_cannot_read_are_an_error(tmp_path: Path, engine: str, is_recent: bool) -> None:
    """A file that becomes shorter stands for a bad sector: a mapped read of either is a SIGBUS."""
    store = stores.opened(tmp_path, engine=engine, data_file_size=1 << 20, index_file_size=1 << 16)
    written = stores.bodies(0, 100, 1000)
    store.append_as_leader(written)
    if not is_recent:
        store = stores.reopened(store)
    assert store.get(99).body == written[99]
    os.truncate(stores.data_files(store)[0], 40 * 1048 + 500)
    for index in (40, 99):
        for read in (store.get, lambda index: store.read(index, 1)):
            with pytest.raises(UnreadableError, match="found the end of the file"):
                read(index)
    part = store.read(30, 1 << 20)
    assert (part.last_index, len(part.data)) == (39, 10 * 1048) or (part.last_index, len(part.data)) == (30, 1048)
    assert [store.get(index).body for index in range(40)] == written[:40]
    os.truncate(stores.data_files(store)[0], 1 << 20)
    os.truncate(stores.index_files(store)[0], 50 * 32)
    with pytest.raises(UnreadableError, match="found the end of the file"):
        store.term_at(50)
    assert store.get(39).body == written[39]


def entries(*bodies: bytes, body_crc: int = 0) -> bytes:
    data = b""
    for index, body in enumerate(bodies):
        data += codec.encode_entry(index, 1, len(data), body, body_crc=body_crc)
    return data


@pytest.fixture(params=["native", "python"])
def reader(request: pytest.FixtureRequest) -> Engine:
    return get_engine(request.param)


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:8] + struct.pack(">i", 7) + body[12:],  # its CRC
        lambda body: body[:100] + b"?" + body[101:],  # its body
        lambda body: struct.pack(">i", len(body) + 1) + body[4:],  # its totalSize
    ],
    ids=["crc", "body", "size"],
)
def test_the_first_damaged_message_is_found(reader: Engine, damage: Callable[[bytes], bytes]) -> None:
    assert reader.find_damaged(entries(MESSAGE, MESSAGE)) is None
    assert reader.find_damaged(entries(MESSAGE, damage(MESSAGE), damage(MESSAGE))) == SIZE


def test_other_bodies_are_damaged_by_their_entrys_crc_only(reader: Engine) -> None:
    crc = codec.signed32(codec.crc32(b"abc"))
    assert reader.find_damaged(entries(b"abc", b"", b"1234567", mq_message(body=b"").make(0))) is None
    assert reader.find_damaged(entries(b"abc", b"abd", body_crc=crc)) == ENTRY_HEADER_SIZE + 3
    assert reader.find_damaged(b"") is None


def test_incomplete_entries_are_rejected(reader: Engine) -> None:
    with pytest.raises(ValueError, match="entry 1"):
        reader.find_damaged(entries(MESSAGE, MESSAGE)[:-1])


def test_damaged_messages_are_found_in_any_place(reader: Engine) -> None:
    bad = bytearray(MESSAGE)
    start = MESSAGE.index(b"x" * 200)
    for place in (start, start + 199):
        bad[place] ^= 1
        assert reader.find_damaged(entries(MESSAGE, bytes(bad))) == SIZE
        bad[place] ^= 1


@pytest.fixture
def small(tmp_path: Path) -> MmapFileStore:
    """A restarted store with four entries of term 4."""
    store = opened(tmp_path)
    store.append_as_leader([b"%04d" % index for index in range(4)], 4)
    return reopened(store)


@pytest.mark.parametrize(("at", "value"), [(31, b"\x05"), (15, b"\x33")], ids=["term", "size"])
def test_a_flipped_index_unit_tells_no_term_and_no_end(small: MmapFileStore, at: int, value: bytes) -> None:
    write_at(next((small.config.node_dir / "index").iterdir()), 2 * INDEX_UNIT_SIZE + at, value)
    for call in (lambda: small.term_at(2), lambda: small.truncate(3)):
        with pytest.raises(StoreError, match="expected the entry of index 2"):
            call()
    assert (small.ledger_end_index, small.term_at(3)) == (3, 4)
    small.shutdown()


@pytest.mark.parametrize("pos", [4 * (ENTRY_HEADER_SIZE + 4), 1000, 4096], ids=["new", "after", "far after"])
def test_a_unit_that_points_to_what_this_process_writes_is_damage(small: MmapFileStore, pos: int) -> None:
    """Entries of an earlier process are checked, wherever their units point to."""
    write_at(next((small.config.node_dir / "index").iterdir()), 3 * INDEX_UNIT_SIZE + 4, pos.to_bytes(8, "big"))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"expected the entry of index 3|the index unit of 3 is damaged"):
            small.read(3, 1 << 20)
        assert small.read(0, 1 << 20).last_index == 2
        small.append_as_leader([b"0004", b"0005"], 4)
    assert small.read(4, 1 << 20).last_index == 7
    small.shutdown()


@pytest.mark.parametrize("at", [0, 4, 9, 15, 16, 23, 31])
def test_a_damaged_index_unit_stops_only_the_ranges_that_reach_it(tmp_path: Path, at: int) -> None:
    """That byte of any unit is flipped, and ranges of any length are read."""
    store = opened(tmp_path)
    store.append_as_leader([b"%04d" % index for index in range(10)], 4)
    store = reopened(store)
    size, file = ENTRY_HEADER_SIZE + 4, next((store.config.node_dir / "index").iterdir())
    intact = bytes(store.read(0, 1 << 20).data)
    for damaged in range(10):
        flip(file, damaged * INDEX_UNIT_SIZE + at)
        for first, count in product(range(10), (1, 3, 5, 10)):
            if first == damaged:
                with pytest.raises(StoreError):
                    store.read(first, count * size)
                continue
            found = store.read(first, count * size)
            assert found.last_index < damaged or first > damaged
            assert bytes(found.data) == intact[first * size : (found.last_index + 1) * size]
        flip(file, damaged * INDEX_UNIT_SIZE + at)
    store.shutdown()


def test_only_a_copy_of_the_same_entry_repairs_a_damaged_one(small: MmapFileStore) -> None:
    """Header or index unit say which entry it is; one of them may be damaged."""
    size, file = ENTRY_HEADER_SIZE + 4, next((small.config.node_dir / "data").iterdir())
    copy = bytes(small.read(2, 1).data)
    other = bytearray(codec.encode_entry(2, 5, 2 * size, b"0002"))
    get_engine().write_body_crcs(other)
    write_at(file, 2 * size + ENTRY_HEADER_SIZE, b"?")
    with pytest.raises(OtherEntryError, match="found another entry"):
        small.repair(2, other)
    write_at(file, 2 * size + 23, b"\x05")
    with pytest.raises(ValueError, match="expected an entry as its index unit"):
        small.repair(2, other)
    small.repair(2, copy)
    assert small.get(2).body == b"0002"
    small.shutdown()
