"""Jobs whose target has no space left: each says so, and is continued once there is some."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_dledger.errors import DiskFullError, UnreadableError
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.rocketmq.backup import backup, restore
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.jobs.target_folder import target_errors
from pyspark_dledger.rocketmq.rebuild import rebuild
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.support.golden import unpack
from tests.support.long_runs import BREADTH

MIB = 1 << 20
# Steps that are no multiple of a file's size: jobs fail in different places.
SIZES = range(16 * 1024, 3 * MIB, (52 if BREADTH else 104) * 1024)
COMMITTED = ReadOptions(committed_bound="end")


@contextmanager
def file_system(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system in memory of that many bytes; the function changes them. Only root can mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")

    def resize(size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def jobs(root: Path, folder: Path) -> dict[str, Callable[[Path], object]]:
    """Each job, from a golden below `root`, to a target."""
    members = [root / "mq-53-three" / name for name in ("n0", "n1", "n2")]
    brokers = [root / "mq-53-controller" / name for name in ("b2", "b3")]
    backup(members[0], folder / "backup", options=COMMITTED)
    exports: dict[str, Callable[[Path], object]] = {
        f"export {form} {compression}": lambda to, form=form, options=options: export(members[0], to, form, **options)  # type: ignore[misc]
        for form, compression, options in (
            ("commitlog", "", {}),
            ("jsonl", "", {}),
            ("jsonl", "zstd", {"compression": "zstd"}),
            ("parquet", "", {}),
        )
    }
    return {
        "salvage": lambda to: salvage(SalvageRequest.of(members), to),
        "salvage of brokers": lambda to: salvage(SalvageRequest.of(brokers), to),
        "salvage as commitlog": lambda to: salvage(SalvageRequest.of(members, store_as="commitlog"), to),
        **exports,
        "rebuild consumequeue": lambda to: rebuild(members[0], "consumequeue", out=to),
        "rebuild index": lambda to: rebuild(members[0], "index", out=to),
        "backup": lambda to: backup(members[0], to, options=COMMITTED),
        "restore": lambda to: restore(folder / "backup", to, "n0", term=100),
    }


NAMES = (
    "salvage",
    "salvage of brokers",
    "salvage as commitlog",
    "export commitlog ",
    "export jsonl ",
    "export jsonl zstd",
    "export parquet ",
    "rebuild consumequeue",
    "rebuild index",
    "backup",
    "restore",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_full_target_is_named_with_the_reason_and_the_job_continues(tmp_path: Path, name: str) -> None:
    for case in ("mq-53-three", "mq-53-controller"):
        unpack(case, tmp_path)
    job = jobs(tmp_path, tmp_path)[name]
    verb = name.partition(" ")[0]
    errors = []
    with file_system(tmp_path / "full", SIZES[0]) as resize:
        for size in SIZES:
            resize(size)
            if (error := failure(job, tmp_path / "full" / "target")) is None:
                break
            errors.append(error)
        else:
            pytest.fail(f"it fails with enough space, too: {errors[-1]}")
    texts = list(map(str, errors))
    assert texts
    assert all(text.startswith(str(tmp_path / "full")) for text in texts)
    no_space = rf"no space left \(.*No space left on device\): free some, then run the same {verb} again to continue"
    pattern = re.compile(rf".*: cannot be written: ({no_space}|expected room for \d+ bytes, found \d+: make room)")
    assert [text for text in texts if not pattern.fullmatch(text)] == []


def failure(job: Callable[[Path], object], to: Path) -> DiskFullError | None:
    try:
        job(to)
    except DiskFullError as error:
        return error
    return None


def test_a_file_that_cannot_be_read_is_no_full_disk_while_there_is_space(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"), target_errors(tmp_path, "salvage"):
        raise UnreadableError(str(tmp_path / "file"), "Input/output error", 0)
