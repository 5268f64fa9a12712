"""The scrubber finds damaged entries on disk, and intact copies replace them."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.scrub import ScrubbedRange, ScrubService
from tests.support.damage import write_at
from tests.support.generate import mq_message
from tests.support.stores import bodies, content, data_files, entries, index_files, leaders_entry, opened

COUNT = 38


@pytest.fixture(params=["native", "python"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MmapFileStore:
    """A store of eight data files and four index files; all is committed and durable."""
    store = opened(tmp_path, engine=request.param)
    store.append_as_leader(bodies(0, COUNT))
    store.flush()
    store.update_committed_index(0, COUNT - 1)
    return store


def damaged(store: MmapFileStore) -> dict[int, str]:
    """What a pass over the store finds."""
    found: dict[int, str] = {}
    first, last = store._scrub_bounds()
    while first <= last:
        part = store.scrub(first, last)
        assert part.next_index > first
        found |= part.damaged
        first = part.next_index
    return found


def test_units_that_a_full_disk_keeps_in_memory_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, flush="sync")
    store.append_as_leader(bodies(0, 5))
    store.flush()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(store._files.index, "write", full)
        store.append_as_leader(bodies(5, 3))
        assert store.flush() == 7
    store.update_committed_index(0, 7)
    assert damaged(store) == {}
    assert store._scrub_bounds() == (0, 4)
    store.flush()
    store.append_as_leader(bodies(8, 1))
    store.flush()
    assert store._scrub_bounds() == (0, 7)
    assert damaged(store) == {}
    store.shutdown()


def test_intact_store_has_no_damage(store: MmapFileStore) -> None:
    assert damaged(store) == {}
    store.shutdown()


def test_another_body_with_its_checksum_is_no_copy(store: MmapFileStore) -> None:
    """A peer that lies overwrote a committed entry: index, term, position and size were right."""
    intact = bytes(store.read(12, 1).data)
    other = bytearray(intact[:48] + b"?" * (len(intact) - 48))
    store._reader._engine.write_body_crcs(other)
    file, offset = data_files(store)[2], 2 * 148
    write_at(file, offset + 60, bytes([file.read_bytes()[offset + 60] ^ 64]))
    with pytest.raises(ValueError, match="expected a body with CRC"):
        store.repair(12, bytes(other))
    store.repair(12, intact)
    assert damaged(store) == {}
    store.shutdown()


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (48 + 99, "match its checksum"),
        (41, "match its checksum"),
        (15, "found "),
        (22, "found "),
        (0, "found "),
        (35, "expected channel and chainCrc 0"),
        (36, "expected channel and chainCrc 0"),
    ],
    ids=["body", "bodyCrc", "index", "term", "magic", "channel", "chainCrc"],
)
def test_damaged_entry_is_found_and_repaired(store: MmapFileStore, at: int, text: str) -> None:
    intact = bytes(store.read(12, 1).data)
    before = content(data_files(store))
    file, offset = data_files(store)[2], 2 * 148
    write_at(file, offset + at, bytes([file.read_bytes()[offset + at] ^ 64]))
    found = damaged(store)
    assert list(found) == [12]
    assert text in found[12]
    assert f"{file} at byte 296: " in found[12]
    store.repair(12, intact)
    assert damaged(store) == {}
    assert content(data_files(store)) == before
    store.shutdown()


@pytest.mark.parametrize("index", [0, 12, 20, COUNT - 1])
@pytest.mark.parametrize("at", [3, 4, 11, 15, 23, 24], ids=["magic", "far pos", "pos", "size", "index", "term"])
def test_damaged_index_unit_is_found_and_repaired(store: MmapFileStore, at: int, index: int) -> None:
    intact = bytes(store.read(index, 1).data)
    before = content(index_files(store))
    offset = index * 32 % index_files(store)[0].stat().st_size
    file = index_files(store)[index * 32 // index_files(store)[0].stat().st_size]
    write_at(file, offset + at, bytes([file.read_bytes()[offset + at] ^ 64]))
    found = damaged(store)
    assert set(found) & {index, index + 1}
    for each in sorted({index, *found}):
        store.repair(each, intact if each == index else bytes(store.read(each, 1).data))
    assert damaged(store) == {}
    assert content(index_files(store)) == before
    assert store.get(index).body == bodies(index, 1)[0]
    store.shutdown()


@pytest.mark.parametrize("order", [(12, 13, 14), (14, 13, 12), (13, 14, 12)])
@pytest.mark.parametrize(("at", "data"), [(0, bytes(32)), (4, b"\1"), (12, b"\7"), (23, b"?")])
def test_adjacent_damaged_units_are_repaired_in_any_order(
    store: MmapFileStore, order: tuple[int, ...], at: int, data: bytes
) -> None:
    copies = {index: bytes(store.read(index, 1).data) for index in order}
    before = content(index_files(store))
    for index in order:
        write_at(index_files(store)[1], index % 10 * 32 + at, data)
    for index in order:
        store.repair(index, copies[index])
    assert content(index_files(store)) == before
    assert damaged(store) == {}
    store.shutdown()


@pytest.mark.parametrize(
    "copy",
    [
        leaders_entry(13, 0, 1792, bodies(12, 1)[0]),
        leaders_entry(12, 1, 1792, bodies(12, 1)[0]),
        leaders_entry(12, 0, 1793, bodies(12, 1)[0]),
        leaders_entry(12, 0, 1792, bodies(12, 1)[0][:-1]),
        leaders_entry(12, 0, 1792, bodies(12, 1)[0])[:-1] + b"?",
        leaders_entry(12, 0, 1792, bodies(12, 1)[0]) + b"more",
        encode_entry(12, 0, 1792, bodies(12, 1)[0]),
        b"",
    ],
    ids=["index", "term", "pos", "size", "body", "more", "no checksum", "nothing"],
)
def test_only_the_same_entry_with_a_right_checksum_is_taken(store: MmapFileStore, copy: bytes) -> None:
    write_at(data_files(store)[2], 2 * 148 + 60, b"?")
    before = content(data_files(store))
    with pytest.raises(ValueError, match="expected"):
        store.repair(12, copy)
    assert content(data_files(store)) == before
    store.shutdown()


def test_repair_does_not_trust_a_damaged_unit(store: MmapFileStore) -> None:
    """It would overwrite another entry."""
    write_at(index_files(store)[1], 2 * 32 + 4, (1792 - 148).to_bytes(8, "big"))
    found = damaged(store)
    assert list(found) == [12]
    assert "expected the index unit of index 12" in found[12]
    with pytest.raises(ValueError, match="continue its neighbours"):
        store.repair(12, leaders_entry(12, 0, 1792 - 148, bodies(12, 1)[0]))
    for index in (1, 3):
        write_at(index_files(store)[1], index * 32, bytes(32))
    with pytest.raises(ValueError, match="expected an entry as its index unit"):
        store.repair(12, leaders_entry(12, 0, 1792 - 148, bodies(12, 1)[0]))
    store.shutdown()


@pytest.mark.parametrize("index", [0, 9, 10, 12, COUNT - 1], ids=["first", "last of file", "next file", "", "last"])
@pytest.mark.parametrize(("at", "data"), [(4, b"\1"), (0, bytes(32)), (12, b"\7"), (27, b"?"), (31, b"?")])
def test_damaged_unit_is_rebuilt_from_its_entry(store: MmapFileStore, index: int, at: int, data: bytes) -> None:
    """Also at a member without peers."""
    before = content(index_files(store))
    write_at(index_files(store)[index // 10], index % 10 * 32 + at, data)
    reported: dict[int, str] = {}
    service = ScrubService(store._scrub_bounds, store.scrub, reported.update, store.rebuild_unit, 1 << 40)
    service._pass()
    assert (service.rebuilt_units, reported) == (1, {})
    assert content(index_files(store)) == before
    assert damaged(store) == {}
    assert [entry.body for entry in entries(store)] == bodies(0, COUNT)
    store.shutdown()


def test_entries_that_the_writer_needs_are_not_deleted(store: MmapFileStore) -> None:
    store.keeps_from = 10
    assert store.delete_expired(0, force=True) and store.ledger_begin_index == 10
    assert store.delete_expired(0, force=True) == 0


def test_a_unit_that_points_to_a_deleted_file_is_rebuilt(store: MmapFileStore) -> None:
    store.expiry_hook = lambda *_: 10
    assert store.delete_expired(0, force=True) and store.ledger_begin_index == 10
    before = content(index_files(store))
    write_at(index_files(store)[0], 4, bytes(8))
    reported: dict[int, str] = {}
    service = ScrubService(store._scrub_bounds, store.scrub, reported.update, store.rebuild_unit, 1 << 40)
    service._pass()
    assert (service.rebuilt_units, reported) == (1, {})
    assert content(index_files(store)) == before
    store.shutdown()


def test_entries_that_expire_while_they_are_read_are_not_damaged() -> None:
    bounds, found = [(5, 9)], []

    def check(*_: int) -> ScrubbedRange:
        bounds.append((9, 9))
        return ScrubbedRange(10, 10, {5: "expired", 9: "bad"})

    ScrubService(lambda: bounds[-1], check, found.append, lambda _: False, 1 << 40)._pass()
    assert found == [{9: "bad"}]


@pytest.mark.parametrize("at", [2, 15, 23, 31, 60])
def test_unit_is_not_rebuilt_from_a_damaged_entry(store: MmapFileStore, at: int) -> None:
    write_at(index_files(store)[1], 2 * 32 + 4, b"\1")
    write_at(data_files(store)[2], 2 * 148 + at, b"\7")
    before = content(index_files(store))
    assert not store.rebuild_unit(12)
    assert not store.rebuild_unit(COUNT + 1)
    assert content(index_files(store)) == before
    assert list(damaged(store)) == [12]
    store.shutdown()


def test_only_committed_and_durable_entries_are_read(store: MmapFileStore) -> None:
    store.append_as_leader(bodies(COUNT, 3))
    write_at(data_files(store)[-1], 4 * 148 + 60, b"?")
    assert damaged(store) == {}
    with pytest.raises(IndexRangeError):
        store.repair(COUNT + 1, b"")
    # A durable one that is not committed can be repaired.
    store.flush()
    store.repair(COUNT + 1, leaders_entry(COUNT + 1, 0, store.read(COUNT, 1).pos + 148, bodies(COUNT + 1, 1)[0]))
    assert [entry.body for entry in entries(store)] == bodies(0, COUNT + 3)
    store.shutdown()


def test_messages_without_a_body_checksum_are_checked_by_their_own(tmp_path: Path) -> None:
    store = opened(tmp_path, data_file_size=4096)
    message = mq_message(body=b"x" * 200).make(0)
    size = 48 + len(message)
    copies = [encode_entry(number, 0, number * size, message) for number in range(5)]
    store.append_as_follower(b"".join(copies), 0)
    store.flush()
    store.update_committed_index(0, 4)
    write_at(data_files(store)[0], 3 * size + 48 + message.index(b"xxx"), b"y")
    assert list(damaged(store)) == [3]
    store.repair(3, copies[3])
    assert damaged(store) == {}
    assert [entry.body for entry in entries(store)] == [message] * 5
    store.shutdown()


def test_bytes_that_cannot_be_read_are_damage(store: MmapFileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.scrub.__globals__["scrub"].__globals__["read_at"]
    bad = str(data_files(store)[2])
    monkeypatch.setattr(
        "pyspark_dledger.store.scrub.read_at", lambda path, *rest: b"" if path == bad else real(path, *rest)
    )
    assert list(damaged(store)) == [10, 11, 12, 13, 14]
    store.shutdown()


def test_service_reads_again_and_again_at_its_rate() -> None:
    bounds, read, found = (5, 9), [], []
    is_done = threading.Event()

    def check(first: int, last: int) -> ScrubbedRange:
        read.append((first, last))
        if len(read) == 4:
            is_done.set()
        return ScrubbedRange(first + 3, 10, {first: "bad"} if first == 8 else {})

    service = ScrubService(lambda: bounds, check, found.append, lambda index: index == 7, 10_000, min_pass_seconds=0.0)
    service.start()
    assert is_done.wait(10)
    service.stop()
    assert read[:4] == [(5, 9), (8, 9), (5, 9), (8, 9)]
    assert found[0] == {8: "bad"}
