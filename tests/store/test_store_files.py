"""A store on disk: its files, restarts, folders, full disks, one writer, cleaning and flushing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.common.clock import SteadyClock
from pyspark_dledger.errors import DiskFullError, OptionError, StoreError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.scan.segment_file import FileBytes
from pyspark_dledger.format.state_files import CurrentTerm
from pyspark_dledger.store.files import mapped_files, pending_units, services
from pyspark_dledger.store.files.node_files import load_current_term, write_current_term
from pyspark_dledger.store.files.services import CleanSpaceService, FlushDataService
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.damage import write_at
from tests.support.long_runs import examples
from tests.support.sparse_copy import copy_tree
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
    where,
)

KIB_FILE = 10 * 1024 + 8


def names(store: MmapFileStore) -> list[int]:
    return [int(file.name) for file in data_files(store)]


# The cases of Java's DLedgerMappedFileStoreTest


def test_committed_index_survives(tmp_path: Path) -> None:
    """testCommittedIndex: 100 entries, committed up to index 90."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 100))
    store.update_committed_index(0, 90)
    again = reopened(store)
    assert (again.committed_index, again.ledger_end_index) == (90, 99)
    again.shutdown()


def test_normal_recovery(tmp_path: Path, engine: str) -> None:
    """testNormalRecovery: begin, end and every entry are the same."""
    store = opened(tmp_path, engine=engine)
    for number in range(10):
        store.append_as_leader(bodies(number, 1))
    before, all_entries = where(store), entries(store)
    again = reopened(store)
    assert where(again) == before
    assert entries(again) == all_entries
    again.shutdown()


def test_abnormal_recovery(tmp_path: Path, engine: str) -> None:
    """testAbnormalRecovery: without the last two of 12 files the log ends at 89; without any it is empty."""
    store = opened(tmp_path, data_file_size=KIB_FILE, index_file_size=32 * 1024, engine=engine)
    store.append_as_leader([b"x" * 1024] * 100)
    store.shutdown()
    assert len(names(store)) == 12
    for file in data_files(store)[-2:]:
        file.unlink()
    with pytest.raises(StoreError, match="entries up to 99 were on disk"):
        opened(tmp_path, engine=engine)
    (store.config.node_dir / "boot").unlink()  # as in a store of Java, whose checkpoint proves less
    again = opened(tmp_path, engine=engine)
    assert (len(names(again)), again.ledger_begin_index, again.ledger_end_index) == (10, 0, 89)
    assert entries(again)[-1].body == b"x" * 1024
    again.append_as_leader([b"y" * 1024] * 20)
    again.shutdown()
    assert findings(again) == []
    for file in data_files(again):
        file.unlink()
    last = opened(tmp_path, engine=engine)
    assert where(last) == (-1, -1, -1, -1, 0)
    assert last.append_as_leader([b"z"]).first_index == 0
    last.shutdown()
    assert findings(last) == []


def test_truncate_removes_later_files(tmp_path: Path) -> None:
    """testTruncate: in the middle of a file, to the end of one, to nothing."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 23))
    for index, files_left in ((18, 4), (15, 3), (7, 2)):
        store.truncate(index)
        assert (store.ledger_end_index, len(names(store))) == (index - 1, files_left)
        rest = data_files(store)[-1].read_bytes()[store.end_pos % FILE :]
        assert not rest.strip(b"\0")
    again = reopened(store)
    assert (again.ledger_end_index, [entry.body for entry in entries(again)]) == (6, bodies(0, 7))
    again.truncate(0)
    assert where(reopened(again)) == (-1, -1, -1, -1, 0)
    assert findings(again) == []


def test_flushed_index_after_truncate_and_start(tmp_path: Path) -> None:
    """testReviseWherePosition, DLedgerManagedFileStoreTruncateTest."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 20))
    assert (store.flush(), store.flushed_index) == (19, 19)
    store.append_as_leader(bodies(20, 5))
    store.truncate(22)
    assert store.flushed_index == 19
    store.truncate(13)
    assert (store.flushed_index, store.end_pos) == (12, 2 * FILE + 3 * 148)
    again = abandoned(store)
    assert (again.flushed_index, again.end_pos) == (12, 2 * FILE + 3 * 148)
    again.shutdown()


def test_the_end_of_an_entry_is_known_until_it_is_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 23))
    last = store.ledger_end_index
    ends = [store.end_of(index) for index in range(last + 1)]
    assert ends == [store.get(index).pos + len(store.get(index).body) + 48 for index in range(last + 1)]
    assert ends[-1] == store.end_pos
    store.truncate(18)
    assert [store.end_of(index) for index in (-1, 17, 18)] == [None, ends[17], None]
    store.shutdown()


def test_file_begins_and_ends_with_its_positions(tmp_path: Path) -> None:
    """MmapFileListTest, DefaultMmapFileTest: files of one size; a slice of one is read as it was written."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    assert names(store) == [0, FILE, 2 * FILE]
    assert {file.stat().st_size for file in data_files(store)} == {FILE}
    part = store.read(6, 200)
    assert bytes(part.data) == data_files(store)[1].read_bytes()[148:296]
    assert data_files(store)[0].read_bytes()[-8:] == b"\xff\xff\xff\xff\0\0\0\x08"
    store.shutdown()


def test_end_and_begin_after_reset(tmp_path: Path) -> None:
    """testResetOffsetAndRecover: the log begins at a file's start, or inside a file."""
    for name, pos in (("front", 7 * FILE), ("inside", 7 * FILE + 300)):
        store = opened(tmp_path / name)
        store.append_as_leader(bodies(0, 12))
        store.reset(560, pos)
        store.append_as_follower(encode_entry(560, 2, pos, b"first"), 2)
        store.append_as_leader(bodies(561, 9), 2)
        before, all_entries = where(store), entries(store)
        again = reopened(store)
        assert where(again) == before
        assert entries(again) == all_entries
        assert names(again)[0] == 7 * FILE
        again.shutdown()
        if name == "front":
            assert findings(again) == []


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_log_never_begins_with_a_file_without_entries(tmp_path: Path, flush: str, is_flushed: bool) -> None:
    """After a reset to the inside of a file and a truncation, a body that does not fit begins the next file."""
    store = opened(tmp_path / "store", flush=flush)
    store.append_as_leader(bodies(0, 3), 1)
    old = entries(store)
    store.reset(9, 5 * FILE + 200)
    store.append_as_follower(encode_entry(9, 1, 5 * FILE + 200, b"first"), 1)
    if is_flushed:
        store.flush()
    store.truncate(9)
    assert store.append_as_leader([b"x" * (FILE - 200 - 55)], 2).runs == ((9, 6 * FILE),)
    before, all_entries = where(store), entries(store)
    if not is_flushed:
        # An entry with its unit finishes a reset; else a restart finds the old log, without a gap in its files.
        copy = opened(copy_tree(tmp_path / "store", tmp_path / "copy"))
        assert entries(copy) == (all_entries if flush == "async" else old)
        copy.shutdown()
        store.flush()
    assert names(store) == [6 * FILE]
    for restart in (abandoned, reopened):
        store = restart(store)
        assert where(store) == before
        assert entries(store) == all_entries
        assert findings(store) == []


def test_a_change_in_one_folder_is_durable_before_one_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be on two disks. A power loss must not leave a file without the files before it."""
    durable: dict[str, list[int]] = {}

    def synced(folder: Path) -> None:
        durable[folder.name] = sorted(int(file.name) for file in folder.iterdir() if file.is_file())

    monkeypatch.setattr(mapped_files, "sync_dir", synced)
    folders = [tmp_path / "a", tmp_path / "b"]
    log = mapped_files.MappedFileList([], 10, lambda base: folders[base // 10 % 2], FileBytes)
    for base in (0, 10, 20):
        log.write(base, b"x")
    assert (durable["a"], durable["b"]) == ([0], [10])
    log.delete_before(20)
    assert (durable["a"], durable["b"]) == ([20], [10])
    log.sync()
    assert (durable["a"], durable["b"]) == ([20], [])
    log.close()


# Restarts


def lines(base_dir: Path, name: str) -> list[str]:
    """The lines of a state file after that of its checksum."""
    first, *rest = (base_dir / "dledger-n0" / name).read_text().splitlines()
    assert first.startswith("crc=")
    return rest


def test_nothing_changes_when_a_store_is_only_opened(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 33))
    store.update_committed_index(0, 30)
    store.shutdown()
    before = content([*data_files(store), *index_files(store)])
    opened(tmp_path).shutdown()
    assert content([*data_files(store), *index_files(store)]) == before
    assert lines(tmp_path, "checkpoint") == ["committedIndex=30", "endIndex=32"]
    assert findings(store) == []


def test_existing_files_keep_their_sizes(tmp_path: Path) -> None:
    opened(tmp_path).shutdown()
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    again = reopened(store, data_file_size=4096, index_file_size=64)
    again.append_as_leader(bodies(12, 12))
    again.shutdown()
    assert names(again) == [FILE * number for number in range(5)]
    assert findings(again) == []


def test_killed_store_keeps_what_was_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 33))
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 33)
    assert (again.flushed_index, again.committed_index) == (32, -1)
    again.shutdown()


def test_reset_without_an_entry_is_undone_by_a_restart(tmp_path: Path) -> None:
    """Else a member would lose entries that it helped to commit, and could vote for a leader that lacks them."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12), 3)
    store.save_term(3, None)
    store.update_committed_index(3, 9)
    before = where(store)
    store.flush()
    store.write_checkpoint()
    store.reset(100, 9 * FILE)
    assert where(reopened(store)) == before


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_second_reset_replaces_the_first(tmp_path: Path, flush: str) -> None:
    """Until an entry of the second one is durable, a restart finds the log from before both, without a gap."""
    store = opened(tmp_path, flush=flush)
    store.append_as_leader(bodies(0, 3), 1)
    store.flush()
    old = entries(store)
    store.reset(100, 9 * FILE)
    store.append_as_follower(encode_entry(100, 2, 9 * FILE, b"first"), 2)
    store.reset(200, 15 * FILE + 20)
    assert names(store) == [0]
    store = abandoned(store)
    assert entries(store) == old
    store.reset(200, 15 * FILE + 20)
    store.reset(300, 12 * FILE)
    store.append_as_follower(encode_entry(300, 2, 12 * FILE, b"last"), 2)
    store.flush()
    assert names(store) == [12 * FILE]
    assert where(abandoned(store))[:3] == (300, 300, 2)


def test_reset_is_finished_by_its_first_durable_entry(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12), 3)
    store.save_term(3, None)
    store.update_committed_index(3, 9)
    store.flush()
    store.write_checkpoint()
    store.reset(100, 9 * FILE)
    store.append_as_follower(encode_entry(100, 3, 9 * FILE, b"a"), 3)
    killed = abandoned(store)
    assert (killed.ledger_begin_index, killed.ledger_end_index, names(killed)) == (100, 100, [9 * FILE])
    killed.shutdown()


def test_reset_into_the_files_that_are_there(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    store.reset(3, FILE)
    store.append_as_leader(bodies(3, 9))
    assert [entry.pos for entry in entries(reopened(store))][:2] == [FILE, FILE + 148]


def test_a_file_that_was_just_being_created(tmp_path: Path) -> None:
    """Killed between creating a file and giving it its size."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    store.shutdown()
    (tmp_path / "dledger-n0" / "data" / f"{3 * FILE:020}").touch()
    assert opened(tmp_path).ledger_end_index == 11


# State files


def test_term_and_vote_survive(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save_term(7, "n2")
    again = abandoned(store)
    assert (again.curr_term, again.vote_leader) == (7, "n2")
    again.save_term(8, None)
    last = abandoned(again)
    assert (last.curr_term, last.vote_leader) == (8, None)
    assert lines(tmp_path, "currterm") == ["voteLeader=", "currTerm=8"]
    last.shutdown()


@given(leader=st.text(min_size=1).filter(lambda text: text == text.encode("utf-8", "replace").decode()))
@settings(max_examples=examples(30), deadline=None)
def test_any_name_can_be_voted_for(tmp_path_factory: pytest.TempPathFactory, leader: str) -> None:
    folder = tmp_path_factory.mktemp("vote")
    write_current_term(folder, 7, leader)
    assert load_current_term(folder) == CurrentTerm(7, leader)


def test_a_node_that_lost_its_term_votes_for_nobody_else(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 3), 5)
    store.save_term(5, "n1")
    store.shutdown()
    (tmp_path / "dledger-n0" / "currterm").unlink()
    again = opened(tmp_path)
    assert (again.curr_term, again.vote_leader) == (5, "n0")
    again.shutdown()


def test_unreadable_term_is_rejected(tmp_path: Path) -> None:
    opened(tmp_path).shutdown()
    (tmp_path / "dledger-n0" / "currterm").write_text("currTerm=many\n")
    with pytest.raises(StoreError, match=r"currterm: expected the lines currTerm=N.*highest term"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["currterm", "checkpoint"])
def test_killed_while_a_state_file_was_written_for_the_first_time(tmp_path: Path, name: str) -> None:
    (tmp_path / "dledger-n0").mkdir()
    (tmp_path / "dledger-n0" / f"{name}.tmp").write_text("voteLea")
    store = opened(tmp_path)
    assert (store.curr_term, store.vote_leader, store.committed_index) == (0, None, -1)
    store.shutdown()


def test_checkpoint_is_never_ahead_of_durable_entries(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 5))
    store.flush()
    store.append_as_leader(bodies(5, 5))
    store.update_committed_index(0, 8)
    store.write_checkpoint()
    assert lines(tmp_path, "checkpoint") == ["committedIndex=4", "endIndex=4"]
    store.shutdown()
    assert lines(tmp_path, "checkpoint") == ["committedIndex=8", "endIndex=9"]


# One writer


def test_second_writer_is_rejected_with_the_process_id_of_the_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        opened(tmp_path)
    script = (
        "import sys; from pathlib import Path; from tests.support.stores import opened\n"
        "try: opened(Path(sys.argv[1]))\nexcept Exception as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"in use by process {os.getpid()}" in found.stdout
    store.shutdown()
    opened(tmp_path).shutdown()


def test_closed_store_is_not_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.shutdown()
    for call in (lambda: store.append_as_leader([b"a"]), lambda: store.save_term(1, None), lambda: store.reset(1, 0)):
        with pytest.raises(StoreError, match="the store is closed"):
            call()


# Several folders


def several(folder: Path, **more: Any) -> dict[str, Any]:
    return {"data_dirs": (folder / "a", folder / "b", folder / "c"), **more}


def test_files_take_turns_in_several_folders(tmp_path: Path) -> None:
    """MultiPathMmapFileList: file k is in folder k mod n."""
    store = opened(tmp_path, **several(tmp_path))
    store.append_as_leader(bodies(0, 34))
    folders = [(file.parent.name, int(file.name) // FILE) for file in data_files(store)]
    assert folders == [("a", 0), ("b", 1), ("c", 2), ("a", 3), ("b", 4), ("c", 5), ("a", 6)]
    again = reopened(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 34)
    again.shutdown()
    assert findings(again) == []


def test_no_file_is_created_in_read_only_and_full_folders(tmp_path: Path) -> None:
    store = opened(tmp_path, **several(tmp_path))
    store.append_as_leader(bodies(0, 15))
    again = reopened(store, **several(tmp_path, read_only_data_dirs=(tmp_path / "b",)))
    again.set_disk_state(False, frozenset({tmp_path / "c"}))
    again.append_as_leader(bodies(15, 15))
    assert [file.parent.name for file in data_files(again)] == ["a", "b", "c", "a", "a", "a"]
    again.set_disk_state(False, frozenset({tmp_path / "a", tmp_path / "c"}))
    again.append_as_leader(bodies(30, 6))
    assert [file.parent.name for file in data_files(again)][6:] == ["a", "c"]
    assert [entry.body for entry in entries(reopened(again))] == bodies(0, 36)


# Full disks


class Disk:
    """A disk with room for `left` more bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._pwrite = os.pwrite
        monkeypatch.setattr(mapped_files.os, "pwrite", self.pwrite)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        if self.left is None or not bytes(memoryview(data)[:4096]).strip(b"\0"):
            return self._pwrite(descriptor, data, offset)
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = min(self.left, len(data))
        self.left -= size
        return self._pwrite(descriptor, memoryview(data)[:size], offset)


@pytest.mark.parametrize("left", [0, 1, 48, 500, FILE, FILE + 20, 3 * FILE, 3 * FILE + 8])
def test_full_disk_appends_nothing_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 3))
    before = where(store)
    disk = Disk(monkeypatch)
    disk.left = left
    with pytest.raises(DiskFullError, match="make room"):
        store.append_as_leader(bodies(3, 40))
    assert (where(store), names(store)) == (before, [0])
    assert not data_files(store)[0].read_bytes()[store.end_pos :].strip(b"\0")
    disk.left = None
    store.append_as_leader(bodies(3, 40))
    again = reopened(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 43)
    again.shutdown()
    assert findings(again) == []


def test_follower_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.append_as_leader([b"a"])
    disk = Disk(monkeypatch)
    disk.left = 30
    with pytest.raises(DiskFullError):
        store.append_as_follower(encode_entry(1, 0, 49, b"b"), 0)
    disk.left = None
    assert store.append_as_follower(encode_entry(1, 0, 49, b"b"), 0) == 1
    assert [entry.body for entry in entries(reopened(store))] == [b"a", b"b"]


def test_disk_above_its_ratio_rejects_appends_until_there_is_room(tmp_path: Path) -> None:
    store = opened(tmp_path)
    used = {"ratio": 0.91}
    cleaner = CleanSpaceService(store, store.config, used=lambda _: used["ratio"])
    cleaner.run_once()
    with pytest.raises(DiskFullError, match="more than 90% full"):
        store.append_as_leader([b"a"])
    assert store.ledger_end_index == -1
    used["ratio"] = 0.3
    cleaner.run_once()
    assert store.append_as_leader([b"a"]).first_index == 0
    store.shutdown()


def test_failing_disk_rejects_everything_except_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 3))

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(mapped_files, "_sync_data", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        store.flush()
    for call in (store.flush, lambda: store.append_as_leader([b"a"]), lambda: store.truncate(1)):
        with pytest.raises(StoreError, match="flushing failed"):
            call()
    assert [entry.body for entry in entries(store)] == bodies(0, 3)
    store.shutdown()


# Damage in files that were read before


@pytest.mark.parametrize(
    ("at", "data", "found"),
    [
        (0, b"\xff\xff\0\1", "magic=-65535 size=148 index=7"),
        (4, b"\0\0\0\x95", "magic=1 size=149 index=7"),
        (15, b"\x08", "index=8"),
        (31, b"\0", "pos=1024"),
        (47, b"\x65", "bodySize=101"),
    ],
)
def test_get_and_read_reject_a_damaged_header(tmp_path: Path, engine: str, at: int, data: bytes, found: str) -> None:
    store = opened(tmp_path, engine=engine)
    store.append_as_leader(bodies(0, 34))
    store.flush()
    write_at(data_files(store)[1], 2 * 148 + at, data)
    text = f"{FILE:020} at byte 296: expected the entry of index 7, magic=1 size=148 index=7 term=0 pos=1044 "
    text += "bodySize=100, "
    for reading in (lambda: store.get(7), lambda: store.read(7, 1), lambda: store.read(7, FILE)):
        with pytest.raises(StoreError, match=rf"{text}found .*{found}.* copy its folder from another member"):
            reading()
    assert (store.read(5, FILE).last_index, len(store.read(5, FILE).data)) == (6, 2 * 148)
    assert store.read(8, FILE).last_index == 9 and store.get(6).index == 6


def test_read_stops_before_a_falling_term(tmp_path: Path, engine: str) -> None:
    store = opened(tmp_path, engine=engine)
    store.append_as_leader(bodies(0, 34), 3)
    store.flush()
    write_at(data_files(store)[1], 2 * 148 + 23, b"\x02")
    assert store.read(5, FILE).last_index == 6
    with pytest.raises(StoreError, match="index 7"):
        store.read(7, FILE)


# Cleaning


@pytest.fixture
def old(tmp_path: Path) -> MmapFileStore:
    """Seven files, changed ten days ago, committed up to the middle of the fifth."""
    store = opened(tmp_path, delete_when="04", file_reserved_hours=72)
    store.append_as_leader(bodies(0, 34))
    store.flush()
    store.update_committed_index(0, 22)
    for file in data_files(store):
        os.utime(file, (time.time() - 240 * 3600,) * 2)
    return store


def at_hour(hour: int) -> Callable[[], float]:
    now = list(time.localtime())
    now[3:6] = [hour, 30, 0]
    return lambda: time.mktime(time.struct_time(now))


def test_expired_files_are_deleted_at_their_hour(old: MmapFileStore) -> None:
    assert CleanSpaceService(old, old.config, at_hour(5), lambda _: 0.1).run_once() == 0
    assert CleanSpaceService(old, old.config, at_hour(4), lambda _: 0.1).run_once() == 4
    assert (old.ledger_begin_index, names(old)[0]) == (20, 4 * FILE)
    assert min(int(file.name) for file in index_files(old)) == 640
    again = reopened(old)
    assert (again.ledger_begin_index, again.ledger_end_index, again.committed_index) == (20, 33, 22)
    assert [entry.index for entry in entries(again)] == list(range(20, 34))
    again.shutdown()
    assert findings(again) == []


def test_nothing_expires_while_the_clock_shows_a_time_days_ahead(
    old: MmapFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, wall, steady = 24 * 3600, [at_hour(4)()], [0.0]
    for file in data_files(old):
        os.utime(file, (wall[0], wall[0]))
    clock = partial(SteadyClock, wall=lambda: wall[0], steady=lambda: steady[0])
    monkeypatch.setattr(services, "SteadyClock", clock)
    cleaner = CleanSpaceService(old, old.config, used=lambda _: 0.1)
    wall[0] += 4 * day
    assert cleaner.run_once() == 0
    # It lasts, so it is the time.
    wall[0] += day
    steady[0] += day
    assert cleaner.run_once() == 4


def test_files_stay_while_an_older_log_has_any(old: MmapFileStore, tmp_path: Path) -> None:
    older = tmp_path / "commitlog"
    cleaner = CleanSpaceService(old, replace(old.config, old_log_dir=older), at_hour(4), lambda _: 0.1)
    older.mkdir()
    (older / f"{0:020}").touch()
    # Other files never expire, so nothing waits for them.
    (older / ".DS_Store").touch()
    assert cleaner.run_once() == 0
    (older / f"{0:020}").unlink()
    assert cleaner.run_once() == 4


def test_recent_files_and_later_ones_stay(old: MmapFileStore) -> None:
    os.utime(data_files(old)[2])
    assert CleanSpaceService(old, old.config, at_hour(4), lambda _: 0.1).run_once() == 2
    assert old.ledger_begin_index == 10


def test_filling_disk_is_cleaned_at_any_hour(old: MmapFileStore, caplog: pytest.LogCaptureFixture) -> None:
    assert CleanSpaceService(old, old.config, at_hour(5), lambda _: 0.75).run_once() == 4
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "deleted 4 data files with entries 0 to 19 to make room: disk used 75 %, expired files only True"
    )


def test_force_deletes_recent_files_but_only_committed_ones(old: MmapFileStore) -> None:
    for file in data_files(old):
        os.utime(file)
    assert CleanSpaceService(old, old.config, at_hour(5), lambda _: 0.75).run_once() == 0
    assert CleanSpaceService(old, old.config, at_hour(5), lambda _: 0.86).run_once() == 4
    old.update_committed_index(0, 33)
    assert CleanSpaceService(old, old.config, at_hour(5), lambda _: 0.86).run_once() == 2
    assert names(old) == [6 * FILE]
    assert old.get(30).body == bodies(30, 1)[0]


def test_expired_entries_are_out_of_range(old: MmapFileStore) -> None:
    old.delete_expired(time.time(), force=True)
    with pytest.raises(LookupError, match="the log has 20 to 33"):
        old.get(19)


# Threads


def test_appends_wake_a_sync_flush(tmp_path: Path) -> None:
    store = MmapFileStore(StoreConfig(tmp_path, flush="sync", check_point_interval_ms=60_000))
    flushed: list[int] = []
    changed = threading.Condition()

    def on_flushed(index: int) -> None:
        with changed:
            flushed.append(index)
            changed.notify()

    store.on_flushed(on_flushed)
    store.startup(services=True)
    for number in range(50):
        store.append_as_leader(bodies(number, 1))
    with changed:
        assert changed.wait_for(lambda: flushed[-1:] == [49], 10)
    assert flushed == sorted(set(flushed))
    assert store.flushed_index == 49
    store.shutdown()


def test_checkpoint_is_written_from_time_to_time(tmp_path: Path) -> None:
    store = MmapFileStore(StoreConfig(tmp_path, check_point_interval_ms=20))
    store.startup(services=True)
    store.append_as_leader(bodies(0, 5))
    store.update_committed_index(0, 3)
    checkpoint = tmp_path / "dledger-n0" / "checkpoint"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() or "committedIndex=3" not in checkpoint.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert lines(tmp_path, "checkpoint") == ["committedIndex=3", "endIndex=4"]
    store.shutdown()


def test_failing_flush_ends_the_thread_and_not_the_process() -> None:
    class Broken:
        flushed_index, needs_flush = -1, True

        def flush(self) -> int:
            raise StoreError("no")

        def write_checkpoint(self) -> None: ...

    service = FlushDataService(Broken(), 1, 1000, lambda _: None)
    service.start()
    service._thread.join(10)
    assert not service._thread.is_alive()


def test_checkpoint_that_cannot_be_written_is_retried() -> None:
    tried = threading.Semaphore(0)

    class Full:
        flushed_index, needs_flush = -1, False

        def flush(self) -> int:
            return -1

        def write_checkpoint(self) -> None:
            tried.release()
            raise DiskFullError("no")

    service = FlushDataService(Full(), 1, 1, lambda _: None)
    service.start()
    assert all(tried.acquire(timeout=10) for _ in range(3))
    service.stop()


def test_flush_while_the_log_is_truncated_and_cleaned(tmp_path: Path) -> None:
    """Flush and clean threads run while a writer appends and truncates: nothing breaks, nothing is lost."""
    store = opened(tmp_path)
    stop = threading.Event()
    problems: list[str] = []

    def repeat(call: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                call()
        finally:
            if not stop.is_set():
                problems.append("a thread ended early")

    threads = [
        threading.Thread(target=repeat, args=(call,))
        for call in (store.flush, lambda: store.delete_expired(time.time() + 9, True), store.write_checkpoint)
    ]
    for thread in threads:
        thread.start()
    for number in range(150):
        end = store.ledger_end_index
        store.append_as_leader(bodies(end + 1, 7))
        store.update_committed_index(0, end + 3)
        if number % 3 == 0:
            store.truncate(store.committed_index + 2)
        assert store.get(store.ledger_end_index).body == bodies(store.ledger_end_index, 1)[0]
        assert store.flushed_index <= store.ledger_end_index
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    end = store.ledger_end_index
    again = reopened(store)
    assert again.ledger_end_index == end
    assert [entry.body for entry in entries(again)] == bodies(
        again.ledger_begin_index, end + 1 - again.ledger_begin_index
    )


# Configuration


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_file_size", 55),
        ("data_file_size", 2**31),
        ("index_file_size", 33),
        ("index_file_size", 0),
        ("flush", "sometimes"),
        ("engine", "fast"),
        ("delete_when", "24"),
        ("delete_when", "4am"),
        ("truncate_at", -1),
        ("self_id", "a/b"),
        ("file_reserved_hours", 0),
        ("flush_file_interval_ms", 0),
        ("check_point_interval_ms", 0),
    ],
)
def test_invalid_configuration_is_rejected(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{name}: expected .* found "):
        StoreConfig(tmp_path, **{name: value})


def test_a_store_is_made_from_public_names_and_text_paths(tmp_path: Path) -> None:
    from pyspark_dledger.store import MemoryStore, MmapFileStore, StoreConfig

    folders: dict[str, Any] = {"base_dir": str(tmp_path), "data_dirs": [str(tmp_path / "disk")]}
    config = StoreConfig(**folders)
    assert (config.base_dir, config.data_dirs) == (tmp_path, (tmp_path / "disk",))
    for store in (MmapFileStore(config), MemoryStore()):
        store.startup()
        store.append_as_leader([b"one"])
        assert store.get(0).body == b"one"
        store.shutdown()
    with pytest.raises(ImportError):
        from pyspark_dledger.store import Nothing  # type: ignore[attr-defined] # noqa: F401


def test_ratios_are_limited_as_java_limits_them(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path, disk_space_ratio_to_force_clean=0.3)
    assert (config.force_clean_ratio, round(config.disk_full_ratio, 2)) == (0.5, 0.35)
    assert StoreConfig(tmp_path, disk_space_ratio_to_force_clean=0.97).disk_full_ratio == 0.95


def test_a_view_outlives_its_file(old: MmapFileStore) -> None:
    """Bytes that are being sent stay valid when their file expires."""
    part = old.read(0, 1 << 20)
    before = bytes(part.data)
    assert old.delete_expired(time.time(), force=True) == 4
    assert bytes(part.data) == before
    assert sum(file.bytes is not None for file in old._files.data._mapped) == 0


def test_more_files_are_read_than_stay_mapped(tmp_path: Path) -> None:
    store = opened(tmp_path, index_file_size=32 * 1024)
    store.append_as_leader(bodies(0, 500))
    assert [entry.body for entry in entries(store)] == bodies(0, 500)
    assert sum(file.bytes is not None for file in store._files.data.files) <= 64
    assert [entry.body for entry in entries(store)] == bodies(0, 500)
    store.shutdown()


def test_index_units_that_wait_for_a_flush_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next append first makes their entries durable: no client fills the memory of a node with a slow disk."""
    monkeypatch.setattr(pending_units, "_FULL_BYTES", 3200)
    store = opened(tmp_path, flush="sync", data_file_size=1 << 20)
    found = []
    for number in range(10):
        found.append((store.append_may_wait, len(store._files.pending._units) // 32))
        store.append_as_leader(bodies(60 * number, 60))
    assert found[:4] == [(False, 0), (False, 60), (True, 120), (False, 60)]
    assert max(count for _, count in found) == 120
    assert (store.flushed_index, [entry.body for entry in entries(store)]) == (-1, bodies(0, 600))
    assert store.append_may_wait
    with monkeypatch.context() as patch:
        patch.setattr(store._files.index, "write", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(DiskFullError):
            store.append_as_leader(bodies(0, 60))
    assert (store.ledger_end_index, store.failure) == (599, None)
    store.append_as_leader(bodies(0, 1))
    assert len(entries(reopened(store))) == 601
