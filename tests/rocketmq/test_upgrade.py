"""The first start of DLedger over an old CommitLog, and how both logs are read and cleaned together."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.common.retention import Retention
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK
from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.broker.queue_writer import QueueWriter
from pyspark_dledger.rocketmq.broker.root_files import FileCleaner, LogSegments, begin_over_old_log
from pyspark_dledger.rocketmq.tables import read_table
from pyspark_dledger.store import MmapFileStore, StoreConfig
from pyspark_dledger.store.files.services import CleanSpaceService
from tests.support.damage import flip
from tests.support.dispatching import Messages, dispatch, dispatcher, units
from tests.support.generate import Store, write_commitlog, write_dledger
from tests.support.golden import unpack
from tests.support.message_reader import MessageReader

SIZE = 2048
FILLER = struct.Struct(">ii")
HOUR = 3600.0


def old_log(root: Path, count: int = 30) -> Store:
    return write_commitlog(root, Messages().some(count), file_size=SIZE)


def data_dir(root: Path) -> Path:
    return root / "dledger-n0" / "data"


def begin(root: Path) -> int:
    return begin_over_old_log(root, [data_dir(root)])


def old_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def open_store(root: Path, **more: object) -> MmapFileStore:
    store = MmapFileStore(StoreConfig(root, old_log_dir=root / "commitlog", **more))  # type: ignore[arg-type]
    store.append_hook = get_engine().patch_physical_offsets
    store.startup()
    return store


# As Java


def test_java_closes_the_old_log_in_the_same_way(tmp_path: Path) -> None:
    """A store that RocketMQ upgraded, reverted and upgraded again: equal to the byte."""
    root = unpack("mq-53-upgrade", tmp_path)
    java, files = open_log(str(root)), old_files(root)
    shutil.rmtree(root / "dledger-n0")
    old = [segment for segment in java.segments if segment.source == "commitlog"]
    end = get_engine().log_end(old[-1], old[-1].base, False).pos
    with open(old[-1].path, "r+b") as file:
        file.seek(end - old[-1].base)
        assert FILLER.unpack(file.read(8)) == (old[-1].end - end, MESSAGE_MAGIC_BLANK)
        file.seek(end - old[-1].base)
        file.write(bytes(8))
    assert begin(root) == java.divided_commitlog_offset == 393216
    assert old_files(root) == files
    assert [path.name for path in data_dir(root).iterdir()] == [f"{393216:020}"]
    assert (data_dir(root) / f"{393216:020}").stat().st_size == old[-1].size


def test_only_a_filler_is_written_to_a_plain_brokers_files(tmp_path: Path) -> None:
    root = unpack("mq-plain", tmp_path)
    before = old_files(root)
    end = open_log(str(root)).state.max_offset
    divided = begin(root)
    after = old_files(root)
    last = max(name for name in before if int(name) <= end)
    assert divided == int(last) + len(before[last])
    at = end - int(last)
    expected = dict(before)
    expected[last] = before[last][:at] + FILLER.pack(divided - end, MESSAGE_MAGIC_BLANK) + before[last][at + 8 :]
    assert after == {name: data for name, data in expected.items() if int(name) <= end}


# Where DLedger begins


def test_dledger_begins_after_the_old_log(tmp_path: Path) -> None:
    old = old_log(tmp_path)
    divided = begin(tmp_path)
    assert divided == old.segments[-1].end
    for _ in range(2):  # also when nothing was appended before the next start
        store = open_store(tmp_path)
        assert (store.ledger_end_index, store.end_pos) == (-1, divided)
        store.shutdown()
        assert begin(tmp_path) == divided
    store = open_store(tmp_path)
    assert store.append_as_leader([b"one", b"two"]).pos == divided
    store.shutdown()
    assert begin(tmp_path) == divided
    store = open_store(tmp_path)
    assert (store.ledger_begin_index, store.get(1).body) == (0, b"two")
    store.shutdown()
    assert open_log(str(tmp_path)).divided_commitlog_offset == divided


def test_both_logs_are_read_as_one(tmp_path: Path) -> None:
    messages = Messages()
    old = write_commitlog(tmp_path, messages.some(30), file_size=SIZE)
    divided = begin(tmp_path)
    later = messages.some(30)
    store = open_store(tmp_path)
    store.append_as_leader([payload.make(0) for payload in later])
    store.update_committed_index(0, 29)
    end = store.end_pos
    # First the old log is dispatched, then DLedger's.
    dispatch(tmp_path, end, -1)
    store.shutdown()
    dispatch(tmp_path, end, 29)
    assert [row for batch in read_table(open_log(str(tmp_path)), "audit") for row in batch.to_pylist()] == []
    reader = MessageReader(tmp_path, [data_dir(tmp_path)], lambda: end)
    found = reader.by_queue("Orders", 1, 0, 100)
    expected = [payload.make(0) for payload in [*old_payloads(30), *later] if b"Orders" in payload.make(0)]
    assert len(found.messages) == sum(int.from_bytes(data[12:16], "big") == 1 for data in expected)
    assert [int.from_bytes(data[20:28], "big") for data in found.messages] == list(range(len(found.messages)))
    positions = [unit[0] for unit in units(tmp_path, "Orders", 1)]
    assert sum(pos < divided for pos in positions) > 3
    assert sum(pos > divided for pos in positions) > 3
    assert old.end < divided


def old_payloads(count: int) -> list:
    return Messages().some(count)


def test_queues_catch_up_with_the_old_log(tmp_path: Path) -> None:
    """As in RocketMQ's own MixCommitlogTest.testFallBehindCQ."""
    store = old_log(tmp_path)
    begin(tmp_path)
    assert dispatch(tmp_path, store.segments[-1].end, -1)[-1].end_pos == store.segments[-1].end
    wanted = {row["commitLogOffset"] for row in store.rows if row["topic"] == "Orders"}
    found = {unit[0] for queue_id in range(3) for unit in units(tmp_path, "Orders", queue_id)}
    assert found == wanted
    again = dispatcher(tmp_path)
    again.recover(store.segments[-1].end, False)
    assert again.dispatched_offset >= max(found)
    again.stop()


def test_without_an_old_log_nothing_is_closed(tmp_path: Path) -> None:
    assert begin(tmp_path) == -1
    assert not data_dir(tmp_path).exists()
    store = write_dledger(tmp_path, Messages().some(3), base=8192)
    assert begin(tmp_path) == store.segments[0].base == 8192


# Damage and conflicts


def test_a_torn_tail_is_truncated(tmp_path: Path) -> None:
    """A message whose last bytes never reached the disk, and garbage after it."""
    store = old_log(tmp_path)
    last = store.rows[-1]
    path = Path(store.segments[-1].path)
    data = bytearray(path.read_bytes())
    at = last["pos"] - store.segments[-1].base
    data[at + last["size"] // 2 : at + last["size"]] = bytes(last["size"] - last["size"] // 2)
    data[at + last["size"] : at + last["size"] + 20] = b"\x07" * 20
    path.write_bytes(data)
    divided = begin(tmp_path)
    assert divided == store.segments[-1].end
    after = path.read_bytes()
    assert FILLER.unpack_from(after, at) == (SIZE - at, MESSAGE_MAGIC_BLANK)
    assert after[:at] + data[at : at + 8] + after[at + 8 :] == data
    rows = [row for batch in open_log(str(tmp_path)).scan(columns=["pos", "kind"]) for row in batch.to_pylist()]
    assert [row["pos"] for row in rows if row["kind"] == "message"] == [row["pos"] for row in store.rows[:-1]]


def test_messages_after_damage_are_kept(tmp_path: Path) -> None:
    """Java ends the log at the damage, and deletes the rest."""
    store = old_log(tmp_path)
    bad = store.rows[-4]
    path = tmp_path / "commitlog" / bad["segment"]
    flip(path, bad["pos"] - int(bad["segment"]) + 4, 0xFF)
    assert begin(tmp_path) == store.segments[-1].end
    rows = [row for batch in open_log(str(tmp_path)).scan(columns=["pos", "kind"]) for row in batch.to_pylist()]
    assert [row["pos"] for row in rows if row["kind"] == "message"] == [
        row["pos"] for row in store.rows if row is not bad
    ]


def test_a_file_created_ahead_is_deleted(tmp_path: Path) -> None:
    """RocketMQ creates the next file early; DLedger begins at its position."""
    store = old_log(tmp_path)
    ahead = tmp_path / "commitlog" / f"{store.segments[-1].end:020}"
    ahead.write_bytes(bytes(SIZE))
    assert begin(tmp_path) == store.segments[-1].end
    assert not ahead.exists()


def test_a_file_without_messages_is_one_filler(tmp_path: Path) -> None:
    """A crash right after the first write to it."""
    store = old_log(tmp_path)
    torn = tmp_path / "commitlog" / f"{store.segments[-1].end:020}"
    torn.write_bytes(b"\x01\x02\x03\x04torn".ljust(SIZE, b"\0"))
    assert begin(tmp_path) == store.segments[-1].end + SIZE
    assert FILLER.unpack_from(torn.read_bytes()) == (SIZE, MESSAGE_MAGIC_BLANK)


def test_an_interrupted_start_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = tmp_path / "complete"
    old_log(complete)
    ahead = complete / "commitlog" / f"{(1 << 20) - (1 << 20) % SIZE:020}"
    divided = begin(complete)
    assert not ahead.exists()
    for step in range(9):
        root = tmp_path / str(step)
        old_log(root)
        count = 0

        def dying(_: int, *, step: int = step) -> None:
            nonlocal count
            if count == step:
                raise KeyboardInterrupt
            count += 1

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", dying)
            try:
                begin(root)
            except KeyboardInterrupt:
                pass
            else:
                assert step > 4
        assert begin(root) == divided
        assert old_files(root) == old_files(complete)
        store = open_store(root)
        assert store.end_pos == divided
        store.shutdown()


def test_an_empty_data_file_is_created_again(tmp_path: Path) -> None:
    store = old_log(tmp_path)
    data_dir(tmp_path).mkdir(parents=True)
    (data_dir(tmp_path) / f"{store.segments[-1].end:020}").touch()
    assert begin(tmp_path) == store.segments[-1].end
    assert open_store(tmp_path).end_pos == store.segments[-1].end


def test_the_first_file_is_in_the_folder_whose_turn_it_is(tmp_path: Path) -> None:
    store = old_log(tmp_path)
    dirs = [tmp_path / name for name in ("c", "a", "b")]
    divided = begin_over_old_log(tmp_path, dirs)
    ours = next(path for folder in dirs for path in (folder.iterdir() if folder.is_dir() else ()))
    assert ours.parent == sorted(dirs)[divided // SIZE % 3]
    opened = MmapFileStore(StoreConfig(tmp_path, data_dirs=tuple(dirs)))
    opened.startup()
    assert opened.end_pos == divided == store.segments[-1].end
    opened.shutdown()


def test_no_file_is_created_in_read_only_folders(tmp_path: Path) -> None:
    store = old_log(tmp_path)
    dirs = [tmp_path / name for name in ("a", "b", "c")]
    turn = store.segments[-1].end // SIZE
    read_only = dirs[turn % 3]
    divided = begin_over_old_log(tmp_path, dirs, read_only=[read_only])
    writable = [folder for folder in dirs if folder != read_only]
    assert [path.parent for folder in dirs if folder.is_dir() for path in folder.iterdir()] == [writable[turn % 2]]
    opened = MmapFileStore(StoreConfig(tmp_path, data_dirs=tuple(dirs), read_only_data_dirs=(read_only,)))
    opened.startup()
    assert opened.end_pos == divided == store.segments[-1].end
    opened.shutdown()


def test_the_old_log_is_unchanged_if_no_file_can_be_created(tmp_path: Path) -> None:
    old_log(tmp_path)
    before = old_files(tmp_path)
    with pytest.raises(StoreError, match="found read-only ones only"):
        begin_over_old_log(tmp_path, [tmp_path / "a"], read_only=[tmp_path / "a"])
    assert old_files(tmp_path) == before


def test_dledger_started_without_the_old_log_is_rejected(tmp_path: Path) -> None:
    write_dledger(tmp_path, Messages().some(5))
    old_log(tmp_path)
    before = old_files(tmp_path)
    with pytest.raises(StoreError, match="expected the old CommitLog to end before 0"):
        begin(tmp_path)
    assert old_files(tmp_path) == before


def test_names_that_are_no_multiple_of_the_size_are_rejected(tmp_path: Path) -> None:
    write_commitlog(tmp_path, Messages().some(3), file_size=SIZE, base=100)
    with pytest.raises(StoreError, match="multiple of the file size 2048"):
        begin(tmp_path)


# Expired files


@pytest.fixture
def both(tmp_path: Path) -> Callable[[], tuple[Path, MmapFileStore, FileCleaner]]:
    def make() -> tuple[Path, MmapFileStore, FileCleaner]:
        messages = Messages()
        write_commitlog(tmp_path, messages.some(200), file_size=SIZE)
        begin(tmp_path)
        store = open_store(tmp_path, file_reserved_hours=1)
        store.append_as_leader([payload.make(0) for payload in messages.some(40)])
        store.flush()
        store.update_committed_index(0, 39)
        files = LogSegments(tmp_path, [data_dir(tmp_path)])
        settings = Retention(file_reserved_hours=1)
        queues, index = QueueWriter(tmp_path), IndexWriter(tmp_path)
        cleaner = FileCleaner(tmp_path, files, settings, queues, index, used=lambda _: 0.8)
        return tmp_path, store, cleaner

    return make


def age(root: Path, folder: str, hours: float) -> None:
    for path in (root / folder).iterdir():
        changed = path.stat().st_mtime - hours * HOUR
        os.utime(path, (changed, changed))


def test_old_files_are_deleted_before_dledgers(
    both: Callable[[], tuple[Path, MmapFileStore, FileCleaner]],
) -> None:
    root, store, cleaner = both()
    ledger = CleanSpaceService(store, store.config, used=lambda _: 0.8)
    age(root, "dledger-n0/data", 2)
    assert len(store._files.data.files) > 3
    assert ledger.run_once() == 0
    assert cleaner.run_once().old_files == 0  # not expired yet
    age(root, "commitlog", 2)
    assert len(old_files(root)) > 10
    assert cleaner.run_once().old_files == 10
    while old_files(root):
        assert ledger.run_once() == 0
        assert cleaner.run_once().old_files > 0
    assert ledger.run_once() > 0
    assert store.ledger_begin_index > 0
    store.shutdown()
    assert open_log(str(root)).state.begin_index > 0


def test_a_full_disk_deletes_old_files_early(
    both: Callable[[], tuple[Path, MmapFileStore, FileCleaner]],
) -> None:
    root, store, cleaner = both()
    assert cleaner.run_once().old_files == 0
    cleaner.used = lambda _: 0.9
    assert cleaner.run_once().old_files == 10
    ledger = CleanSpaceService(store, store.config, used=lambda _: 0.9)
    assert old_files(root)
    assert ledger.run_once() == 0
    store.shutdown()
