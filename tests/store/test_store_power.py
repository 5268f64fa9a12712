"""Power loss with flush="sync", and index units that are still in memory."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.format.scan.segment_file import FileBytes
from pyspark_dledger.store.files import mapped_files
from pyspark_dledger.store.log_files import LogFiles
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.recovery.log_walk import LogWalk
from pyspark_dledger.store.recovery.recover import Recovery
from pyspark_dledger.store.rules import entry_position
from tests.store.test_store_files import Disk
from tests.support import power_disk
from tests.support.long_runs import some
from tests.support.power import one_run
from tests.support.stores import (
    FILE,
    abandoned,
    bodies,
    content,
    data_files,
    entries,
    findings,
    index_files,
    opened,
    reopened,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "flush"), some([(0, "sync"), (50, "sync"), (0, "async"), (100, "sync"), (150, "sync"), (50, "async")], 3)
)
def test_power_loss_keeps_acknowledged_entries(tmp_path: Path, first: int, flush: str) -> None:
    assert sum(one_run(seed, tmp_path, flush) for seed in range(first, first + 50)) > 50


def early_units(files: LogFiles, first: int, units: bytes, _: bool) -> None:
    files.index.write(first * INDEX_UNIT_SIZE, units)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "problem"),
    [
        (LogFiles, "write_units", early_units, "nobody appended|rejected"),
        (LogFiles, "looks_torn", lambda *_: False, "acknowledged"),
        (LogWalk, "_torn_end", lambda _, end: end, "nobody appended"),
        (Recovery, "_sync_found", lambda *_: None, "nobody appended|acknowledged"),
    ],
)
def test_power_losses_find_a_store_with_another_write_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Any, problem: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError, match=problem):
        sum(one_run(seed, tmp_path) for seed in range(300))


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_bytes_of_a_rejected_append_do_not_come_back(tmp_path: Path, flush: str) -> None:
    """A power loss can show any version of a block since the last sync, so undoing an append is synced."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = power_disk.Disk(root, 4096, random.Random(1))
    with power_disk.connected(lambda _: disk):
        store = opened(root, flush=flush, data_file_size=64 * 1024)
        store.append_as_leader(bodies(0, 5))
        store.flush()
        disk.room = 2048
        with pytest.raises(DiskFullError):
            store.append_as_leader(bodies(90, 20))
        disk.room = None
        store.append_as_leader(bodies(5, 4))
        for number in range(20):
            disk.after_loss(tmp_path / f"{number}")
    for number in range(20):
        again = opened(tmp_path / f"{number}", flush=flush, data_file_size=64 * 1024)
        found = [entry.body for entry in entries(again)]
        assert found == bodies(0, 9)[: max(len(found), 5)]
        again.shutdown()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_restart_writes_again_what_a_failed_sync_lost(tmp_path: Path, flush: str) -> None:
    """The system has the bytes in memory, and calls them written after the sync failed."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = power_disk.Disk(root, 512, random.Random(1))
    with power_disk.connected(lambda _: disk):
        store = opened(root, flush=flush, data_file_size=64 * 1024)
        store.append_as_leader(bodies(0, 5))
        store.flush()
        store.write_checkpoint()
        store.append_as_leader(bodies(5, 20))
        disk.is_failing = True
        with pytest.raises(StoreError, match="Input/output error"):
            store.flush()
        again = abandoned(store)
        for number in range(10):
            disk.after_loss(tmp_path / f"{number}")
        again.shutdown()
    for number in range(10):
        last = opened(tmp_path / f"{number}", flush=flush, data_file_size=64 * 1024)
        assert [entry.body for entry in entries(last)] == bodies(0, 25)
        last.shutdown()


def test_a_start_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, flush="sync")
    store.append_as_leader(bodies(0, 5))
    disk = Disk(monkeypatch)
    disk.left = 0
    with pytest.raises(DiskFullError, match="make room"):
        abandoned(store)
    disk.left = None
    again = opened(tmp_path, flush="sync")
    assert [entry.body for entry in entries(again)] == bodies(0, 5)
    again.shutdown()


def index_units(store: MmapFileStore) -> int:
    """The number of units in the index files."""
    found = b"".join(content(index_files(store)).values())
    return sum(
        bool(found[start : start + INDEX_UNIT_SIZE].strip(b"\0")) for start in range(0, len(found), INDEX_UNIT_SIZE)
    )


def test_units_reach_the_index_after_their_data(tmp_path: Path) -> None:
    store = opened(tmp_path, flush="sync")
    store.append_as_leader(bodies(0, 7))
    assert index_units(store) == 0
    assert [entry.body for entry in entries(store)] == bodies(0, 7)
    assert store.read(1, 1 << 20).last_index == 4
    assert store.flush() == 6
    assert index_units(store) == 7
    store.append_as_leader(bodies(7, 10))
    store.truncate(9)
    store.append_as_leader(bodies(9, 2))
    assert [entry.body for entry in entries(store)] == bodies(0, 11)
    assert (index_units(store), store.term_at(10)) == (7, 0)
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 11)
    again.shutdown()
    assert findings(again) == []


def append_from_java(store: MmapFileStore, body: bytes) -> None:
    """Append an entry without a checksum."""
    index, size = store.ledger_end_index + 1, store._files.data.file_size
    pos = entry_position(store.end_pos, 48 + len(body), size)
    store.append_as_follower(encode_entry(index, 0, pos, body), 0)


def test_index_is_synced_before_zeros_are_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, flush="sync", data_file_size=1 << 16)
    synced: list[str] = []
    sync = mapped_files.MappedFile.sync
    monkeypatch.setattr(
        mapped_files.MappedFile, "sync", lambda file: (synced.append(file.path.parent.name), sync(file))
    )

    def flush() -> list[str]:
        synced.clear()
        store.flush()
        return list(synced)

    store.append_as_leader(bodies(0, 3))
    assert flush() == ["data", "index"], "the first flush makes the begin of the log durable"
    store.append_as_leader(bodies(3, 3))
    assert flush() == ["data"]
    store.append_as_leader([bytes(600)])
    assert flush() == ["data"], "its checksum proves it"
    append_from_java(store, bytes(600))
    assert flush() == ["data", "index"]
    store.append_as_leader(bodies(8, 1))
    assert flush() == ["data"]
    store.write_checkpoint()
    assert synced == ["data", "index"]
    store.shutdown()


def test_full_disk_leaves_units_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durable entries are acknowledged without their units; entries that look torn only after their units."""
    store = opened(tmp_path, flush="sync")
    store.append_as_leader(bodies(0, 2))
    store.flush()
    store.append_as_leader(bodies(2, 2))
    disk = Disk(monkeypatch)
    disk.left = 0
    assert store.flush() == 3
    disk.left = None
    append_from_java(store, bytes(600))
    disk.left = 0
    assert store.flush() == 3
    assert store.needs_flush
    disk.left = None
    assert store.flush() == 4
    again = reopened(store)
    assert [entry.body for entry in entries(again)] == [*bodies(0, 4), bytes(600)]
    again.shutdown()


def test_recovery_makes_all_entries_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process may have left entries that are only in the system's memory."""
    store = opened(tmp_path, flush="sync")
    store.append_as_leader(bodies(0, 12))
    synced: list[str] = []
    monkeypatch.setattr("pyspark_dledger.store.recovery.recover.sync_file", lambda file: synced.append(file.name))
    again = abandoned(store)
    assert again.flushed_index == 11
    assert {file.name for file in data_files(again)} <= set(synced)


# With the flush thread


def test_file_is_mapped_while_another_thread_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush thread may close the descriptor of any file except the last at any time."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 7))
    real = store._files.data._map_file

    def closing(path: str) -> FileBytes:
        store.flush()
        with (tmp_path / "other").open("wb"):  # gets the closed descriptor's number
            return real(path)

    monkeypatch.setattr(store._files.data, "_map_file", closing)
    assert [entry.body for entry in entries(store)] == bodies(0, 7)
    store.shutdown()


def test_folder_is_synced_after_its_file_was_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush during a file's creation does not mark its folder as synced."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 2))
    create, sync_dir = mapped_files.MappedFile.create, mapped_files.sync_dir
    seen: list[int] = []

    def creating(file: mapped_files.MappedFile) -> None:
        store.flush()
        create(file)

    def syncing(folder: Path) -> None:
        if folder.name == "data":
            seen.append(len(list(folder.iterdir())))
        sync_dir(folder)

    monkeypatch.setattr(mapped_files.MappedFile, "create", creating)
    monkeypatch.setattr(mapped_files, "sync_dir", syncing)
    store.append_as_leader(bodies(2, 6))
    store.flush()
    assert seen[-1] == 2
    store.shutdown()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_appends_and_reads_over_many_files_during_flushes(tmp_path: Path, flush: str) -> None:
    """Files are created, mapped and read while another thread syncs and closes them."""
    store = opened(tmp_path, flush=flush)
    stop = threading.Event()
    problems: list[Exception] = []

    def repeat() -> None:
        try:
            while not stop.is_set():
                store.flush()
        except (OSError, StoreError) as error:
            problems.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        for first in range(0, 600, 6):
            store.append_as_leader(bodies(first, 6))
            for index in (first // 2, first + 5):
                assert store.get(index).body == bodies(index, 1)[0]
            if first % 60 == 0:
                store.truncate(first + 3)
                store.append_as_leader(bodies(first + 3, 3))
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert store.end_pos > 100 * FILE
    again = reopened(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 600)
    again.shutdown()
