"""A store with a killed process, and one on a disk that is really full."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_dledger.errors import DiskFullError
from tests.support.stores import entries, findings, opened, reopened, where

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path, flush: str) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.support.crashes",
        "--rounds",
        "8",
        "--flush",
        flush,
        "--keep",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"8  killed$", done.stdout, re.MULTILINE)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a disk of its own takes the right to mount one: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_store_on_a_disk_that_is_really_full(small_disk: Path) -> None:
    store = opened(small_disk, data_file_size=128 * 1024, index_file_size=32 * 1024)

    def fill() -> None:
        for _ in range(100):
            store.append_as_leader([b"x" * 3000] * 20)

    with pytest.raises(DiskFullError, match="make room"):
        fill()
    full = where(store)
    assert full[1] > 200
    for _ in range(3):
        with pytest.raises(DiskFullError):
            store.append_as_leader([b"y" * 3000] * 20)
    assert where(store) == full
    store.update_committed_index(0, full[1])
    assert store.delete_expired(0, force=True) == 0, "nothing is durable yet"
    store.flush()
    assert store.delete_expired(0, force=True) > 3
    store.append_as_leader([b"y" * 3000] * 20)
    there = entries(store)
    again = reopened(store)
    assert entries(again) == there
    again.shutdown()
    assert findings(again) == []


def test_store_on_a_disk_that_others_filled(small_disk: Path) -> None:
    """The last bytes of a disk: appends fail at every position, and the store opens again."""
    store = opened(small_disk, data_file_size=128 * 1024, index_file_size=32 * 1024)
    store.append_as_leader([b"x" * 3000] * 20)
    other = small_disk / "other"
    left = shutil.disk_usage(small_disk).free
    for room in (0, 4096, 8192, 20_000, 50_000, 100_000, 140_000):
        other.write_bytes(b"o" * max(left - room, 0))
        before = where(store)
        try:
            store.append_as_leader([b"y" * 3000] * 30)
        except DiskFullError:
            assert where(store) == before
        other.unlink()
        left = shutil.disk_usage(small_disk).free
    there = entries(store)
    again = reopened(store)
    assert entries(again) == there
    again.shutdown()
    assert findings(again) == []
