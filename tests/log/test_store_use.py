"""A store in use: a lock that is taken, or files that change while they are read. Telling it changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_dledger.log import open_log
from pyspark_dledger.log.io import store_use
from pyspark_dledger.log.io.store_paths import find_store
from pyspark_dledger.log.io.store_use import StoreUse, StoreWatch, taken_locks
from pyspark_dledger.rocketmq.broker.root_files import RootLock
from tests.support.damage import write_at
from tests.support.golden import fingerprint
from tests.support.stores import opened

# What `FileChannel.tryLock(0, 1, false)` of a broker does.
TAKE = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); print(flush=True); input()"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A plain CommitLog with queues."""
    folder = tmp_path / "store"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (folder / "commitlog" / f"{0:020}").write_bytes(bytes(4096))
    (folder / "consumequeue" / "orders" / "0" / f"{0:020}").write_bytes(bytes(2000))
    (folder / "lock").write_bytes(b"lock")
    return folder


@contextmanager
def locked_by_another(file: Path) -> Iterator[None]:
    holder = subprocess.Popen([sys.executable, "-c", TAKE, str(file)], stdin=-1, stdout=-1)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        yield
    finally:
        holder.communicate(b"\n")


def test_a_store_that_nobody_uses(root: Path) -> None:
    before = fingerprint(root)
    watch = StoreWatch(find_store(str(root)))
    assert watch.use() is None
    assert fingerprint(root) == before


def test_the_lock_of_a_broker(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the broker is in another container: the kernel's list does not have its lock."""
    paths = find_store(str(root))
    with locked_by_another(root / "lock"):
        assert taken_locks(paths) == (root / "lock",)
        assert StoreWatch(paths).use() == StoreUse((root / "lock",), ())
        (tmp_path / "locks").write_text("")
        monkeypatch.setattr(store_use, "_LOCKS", tmp_path / "locks")
        assert taken_locks(paths) == (root / "lock",)
    assert taken_locks(paths) == ()


def test_a_lock_that_was_released_during_the_read(root: Path) -> None:
    with locked_by_another(root / "lock"):
        watch = StoreWatch(find_store(str(root)))
    assert watch.use() == StoreUse((root / "lock",), ())


def test_the_question_does_not_release_the_lock_of_this_process(root: Path) -> None:
    lock = RootLock(root)
    lock.lock()
    assert taken_locks(find_store(str(root))) == (root / "lock",)
    other = [sys.executable, "-c", TAKE.replace("LOCK_EX", "LOCK_EX | fcntl.LOCK_NB"), str(root / "lock")]
    assert subprocess.run(other, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 1
    lock.unlock()
    assert taken_locks(find_store(str(root))) == ()


def test_the_lock_of_a_node(tmp_path: Path) -> None:
    store = opened(tmp_path, data_file_size=1 << 16)
    store.append_as_leader([b"there"])
    node = tmp_path / "dledger-n0"
    assert taken_locks(find_store(str(node))) == (node / "lock",)
    assert taken_locks(find_store(str(node / "data"))) == (node / "lock",)
    store.shutdown()
    assert taken_locks(find_store(str(node))) == ()


def test_files_that_change(root: Path) -> None:
    paths = find_store(str(root))
    queue = root / "consumequeue" / "orders" / "0" / f"{0:020}"
    watch = StoreWatch(paths)
    write_at(queue, 0, b"unit")
    os.utime(queue, ns=(0, 1))
    (root / "checkpoint").write_bytes(bytes(24))
    assert watch.use() == StoreUse((), (root / "checkpoint", queue))
    watch = StoreWatch(paths)
    queue.unlink()
    assert watch.use() == StoreUse((), (queue,))


def test_an_append_that_changes_no_time(tmp_path: Path) -> None:
    """A file system in memory does not notice a write through a mapping."""
    store = opened(tmp_path, data_file_size=1 << 16)
    store.append_as_leader([b"there"])
    log = open_log(str(tmp_path / "dledger-n0"))
    segment, end = log.ends["dledger"]
    watch = StoreWatch(log.paths)
    watch.note_end(segment, end.pos)
    file = Path(segment.path)
    before = file.stat()
    store.append_as_leader([b"appended"])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    use = watch.use()
    assert use is not None
    assert file in use.changed
    store.shutdown()


def test_only_the_given_file_is_watched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    file = data / f"{0:020}"
    file.write_bytes(bytes(1000))
    watch = StoreWatch(find_store(str(file)))
    (data / f"{1000:020}").write_bytes(bytes(1000))
    assert watch.use() is None
    file.write_bytes(bytes(900))
    assert watch.use() == StoreUse((), (file,))
