"""A rebuilt folder replaces the old one atomically, after verification, and never in a store that is in use."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.log.io.key_files import index_files
from pyspark_dledger.log.io.state_files import StoreCheckpoint, read_store_checkpoint
from pyspark_dledger.rocketmq.broker.queue_writer import QueueWriter
from pyspark_dledger.rocketmq.broker.root_files import RootLock, locked, write_store_checkpoint
from pyspark_dledger.rocketmq.rebuild import builder, compare, rebuild, swap
from tests.support.damage import write_at
from tests.support.dispatching import Messages, dispatch, files_of, with_noise
from tests.support.generate import write_dledger
from tests.support.rebuilds import SMALL, WHATS, index_bytes, store_of
from tests.support.sparse_copy import copy_tree

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.mark.parametrize("what", WHATS)
def test_the_old_folder_is_kept_next_to_the_new_one(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    store_of(root)
    file = next(path for path in (root / what).rglob("*") if path.is_file())
    file.write_bytes(b"damaged")
    before = files_of(root, what)
    log = files_of(root, "dledger-n0")
    done = rebuild(root, what, files=SMALL)
    assert done.before is not None
    kept = {name.replace(done.before, what, 1): data for name, data in files_of(root, done.before).items()}
    assert kept == before
    assert compare(root, what).is_equal
    assert files_of(root, "dledger-n0") == log
    assert not list(root.glob("*.rebuilding"))
    assert done.before in os.listdir(root)


@pytest.mark.parametrize("what", WHATS)
def test_a_folder_that_would_not_change_stays(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    store_of(root)
    before, inode = files_of(root, *WHATS), (root / what).stat().st_ino
    done = rebuild(root, what)
    assert done.before is None
    assert done.notes[0] == "nothing changed: the old folder is the same, byte for byte, and stays"
    assert (files_of(root, *WHATS), (root / what).stat().st_ino) == (before, inode)
    assert not list(root.glob(f"{what}.*")), "no new and no old folder is next to it"


def _change_a_byte(files: list[Path]) -> None:
    data = files[-1].read_bytes()
    files[-1].write_bytes(data[:-1] + b"\x55")


def _lengthen(files: list[Path]) -> None:
    with files[0].open("ab") as file:
        file.write(bytes(20))


def _link(files: list[Path]) -> None:
    elsewhere = files[0].parents[5] / "elsewhere"
    files[0].rename(elsewhere)
    files[0].symlink_to(elsewhere)


def _rename(files: list[Path]) -> None:
    files[-1].rename(files[-1].with_name("9" * 20))


def _add(files: list[Path]) -> None:
    (files[0].parent / "notes").touch()


@pytest.mark.parametrize("change", [_change_a_byte, _lengthen, _link, _rename, _add])
def test_a_folder_with_any_difference_is_replaced(tmp_path: Path, change: Callable[[list[Path]], Any]) -> None:
    root = tmp_path / "store" / "root"
    store_of(root)
    before = files_of(root, "consumequeue")
    change(sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file()))
    done = rebuild(root, "consumequeue", files=SMALL)
    assert done.before is not None
    assert not any(text.startswith("nothing changed") for text in done.notes)
    assert files_of(root, "consumequeue") == before


def test_the_names_of_index_files_are_no_difference(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    for number, file in enumerate(index_files(root)):
        file.rename(file.with_name(f"{number:017d}"))
    before = files_of(root, "index")
    assert rebuild(root, "index").before is None
    assert files_of(root, "index") == before


def test_queue_files_that_stay_get_the_times_of_their_messages(tmp_path: Path) -> None:
    """RocketMQ before 5.1 needs the times, and a copy of a store may not have them."""
    root = tmp_path / "root"
    store_of(root)
    files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
    times = [file.stat().st_mtime_ns for file in files]
    for file in files[:2]:
        os.utime(file, (5, 5))
    done = rebuild(root, "consumequeue")
    assert done.before is None
    assert done.notes[0].endswith("and stays; 2 of its files got the times of their last messages")
    assert [file.stat().st_mtime_ns for file in files] == times


def test_queue_files_whose_times_cannot_be_set_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    store_of(root)

    def refuse(_new: Path, _old: Path) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(swap, "copy_times", refuse)
    done = rebuild(root, "consumequeue")
    assert done.before is not None
    assert (root / done.before).is_dir()


class _Killed(BaseException):
    """Ends a run like a kill: nothing catches it."""


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    root, start = tmp_path / "root", tmp_path / "start"
    store_of(start)
    new = files_of(start, "consumequeue")
    shutil.rmtree(start / "consumequeue" / "Pays")
    old = files_of(start, "consumequeue")
    seen = set()
    for step in range(1, 50):
        shutil.rmtree(root, ignore_errors=True)
        copy_tree(start, root)
        with monkeypatch.context() as patched:
            _kill_at(patched, step, can_exchange)
            try:
                rebuild(root, "consumequeue")
                break
            except _Killed:
                pass
        there = files_of(root, "consumequeue")
        kept = [name for name in os.listdir(root) if ".before-" in name]
        # If names cannot be exchanged, there is neither for a moment; the old one is kept then.
        is_between = not can_exchange and not there and len(kept) == 1
        assert there in (old, new) or is_between
        seen.add("between" if is_between else "new" if there == new else "old")
        done = rebuild(root, "consumequeue")
        assert files_of(root, "consumequeue") == new
        assert not list(root.glob("*.rebuilding"))
        seen |= {text.partition(" its ")[0] for text in done.notes if text.startswith("an earlier")}
        keeps = [name for name in sorted(os.listdir(root)) if ".before-" in name]
        assert any(_named(root, name) == old for name in keeps)
    else:
        pytest.fail("the run has more steps than were tried")
    assert step > 8
    notes = [f"an earlier run was interrupted {when}" for when in ("before", "after", "while it put")]
    assert seen == ({"old", "new", *notes[:2]} if can_exchange else {"old", "new", "between", *notes})


def _named(root: Path, name: str) -> dict[str, bytes]:
    return {path.replace(name, "consumequeue", 1): data for path, data in files_of(root, name).items()}


def _kill_at(patched: pytest.MonkeyPatch, step: int, can_exchange: bool) -> None:
    """Kill a run before its n-th call that changes names or makes them durable."""
    remaining = [step]

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            remaining[0] -= 1
            if not remaining[0]:
                raise _Killed
            return function(*args, **kwargs)

        return call

    patched.setattr(Path, "rename", killing(Path.rename))
    patched.setattr(swap, "sync_dir", killing(swap.sync_dir))
    patched.setattr(builder, "sync_dir", killing(builder.sync_dir))
    patched.setattr(swap, "_exchange", killing(swap._exchange) if can_exchange else lambda *_: False)
    patched.setattr(swap.shutil, "rmtree", killing(shutil.rmtree))


def test_a_killed_process_leaves_the_old_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)
    code = """
import os, signal, sys
from pyspark_dledger.rocketmq.rebuild import rebuild
rebuild(sys.argv[1], "index", progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""
    killed = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (root / "index.rebuilding").is_dir()
    assert files_of(root, *WHATS) == before
    done = rebuild(root, "index")
    assert done.notes[0].startswith("an earlier run was interrupted before its index was in place")
    assert compare(root, "index").is_equal


def test_a_store_in_use_is_rejected(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)
    take = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); print(); input()"
    line = [sys.executable, "-c", take, str(root / "lock")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreError, match="in use by a broker, a node or a job"):
            rebuild(root, "index")
        rebuild(root, "index", out=tmp_path / "out")
        assert compare(root, "index").is_equal
        holder.communicate("\n")
    with locked(root), pytest.raises(StoreError, match="the store is open in this process"):
        rebuild(root, "index")
    assert files_of(root, *WHATS) == before
    rebuild(root, "index")


def test_if_the_log_changes_meanwhile_the_old_folder_stays(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root, 40)
    before = files_of(root, *WHATS)

    def grow(_done: int, _total: int) -> None:
        write_dledger(root, with_noise(Messages().some(45)), file_size=4096)

    with pytest.raises(StoreError, match="the log changed during the rebuild"):
        rebuild(root, "consumequeue", progress=grow)
    assert files_of(root, *WHATS) == before


def test_a_folder_that_differs_when_read_back_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)

    def damage(folder: str, at: int) -> None:
        path = next(path for path in sorted((root / f"{folder}.rebuilding").rglob("*")) if path.is_file())
        write_at(path, at, b"\x55")

    sync = QueueWriter.sync
    monkeypatch.setattr(QueueWriter, "sync", lambda self: (sync(self), damage("consumequeue", 25)))
    with pytest.raises(StoreError, match=r"the file differs when read back: expected \d+ bytes with CRC-32"):
        rebuild(root, "consumequeue")
    verify = builder.IndexSink._verify
    for at, error in (
        (40 + 7 * 4 + 20 * 3 + 11, "the keys differ when read back"),
        (40 + 3, "slots that lead to all units"),
    ):
        monkeypatch.setattr(
            builder.IndexSink, "_verify", lambda self, files, at=at: (damage("index", at), verify(self, files))
        )
        with pytest.raises(StoreError, match=error):
            rebuild(root, "index")
    assert files_of(root, *WHATS) == before


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_full_disk_leaves_only_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_outside: bool
) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, *WHATS)

    def full(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for what in WHATS:
        out = tmp_path / "out" / what if is_outside else None
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            # The lock of a store is also written.
            patched.setattr(RootLock, "lock", lambda _: None)
            with pytest.raises(DiskFullError, match=r"cannot be written: no space left \(No space left on device\)"):
                rebuild(root, what, out=out)
        assert files_of(root, *WHATS) == before
        assert not list(root.glob("*.rebuilding/*"))
        rebuild(root, what, out=out)


def test_the_store_checkpoint_is_adjusted_to_the_new_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = store_of(root)
    last = next(row["storeTimestamp"] for row in reversed(store.rows) if row["kind"] == "message")
    millis = int(last.timestamp() * 1000) if hasattr(last, "timestamp") else last // 1000
    # After a crash RocketMQ deletes index files that are newer than this.
    old = StoreCheckpoint(millis, millis, millis - 9000, 0, 5)
    write_store_checkpoint(root, old)
    rebuild(root, "consumequeue")
    assert read_store_checkpoint(root) == old
    rebuild(root, "index")
    assert read_store_checkpoint(root) == old._replace(index_msg_timestamp=millis)
    # Dispatch continues where the queues end.
    rebuild(root, "consumequeue", options={"committedBound": 10})
    assert read_store_checkpoint(root).logics_msg_timestamp < millis
    assert read_store_checkpoint(root).physic_msg_timestamp == millis


def test_links_and_files_are_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    (root / "index").rename(tmp_path / "elsewhere")
    (root / "index").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="found a link or a mounted file system"):
        rebuild(root, "index")
    (root / "index").unlink()
    (root / "index").write_text("x")
    with pytest.raises(StoreError, match="expected a folder, found a file"):
        rebuild(root, "index")


def test_another_folder_must_be_empty_and_outside_the_store(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    for out, error in ((root, "is in the store"), (root / "new", "is in the store"), (tmp_path, "new or empty")):
        with pytest.raises(StoreError, match=error):
            rebuild(root, "index", out=out)
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(StoreError, match="is in the store"):
        rebuild(root, "index", out=tmp_path / "link" / "new")


@pytest.mark.parametrize("is_unclean", [False, True])
def test_a_node_continues_where_the_rebuilt_files_end(tmp_path: Path, is_unclean: bool) -> None:
    payloads = Messages().some(90)
    ours, other = tmp_path / "ours", tmp_path / "other"
    for root in (ours, other):
        write_dledger(root, payloads, file_size=4096, committed=59)
    for what in WHATS:
        rebuild(ours, what, files=SMALL)
    store = write_dledger(tmp_path / "end", payloads, file_size=4096)
    for root in (ours, other):
        dispatch(root, store.end, 89, is_unclean=is_unclean)
    assert files_of(ours, "consumequeue") == files_of(other, "consumequeue")
    assert index_bytes(ours) == index_bytes(other)
