"""A plan is read from the log that it was made of, or not at all."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.errors import DataLossError, StoreError
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log import open_log
from pyspark_dledger.log import origin as module
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import Partition, read_partition
from tests.support.generate import mq_message, write_commitlog
from tests.support.golden import unpack
from tests.support.opened_files import opened_files
from tests.support.stores import FILE, bodies, data_files, opened

COUNT = 50
Plan = list[Partition]


def write_log(
    path: Path, first: int = 0, count: int = COUNT, committed: int | None = None, **config: object
) -> list[Path]:
    """A log of bodies that differ for each `first`; returns its data files."""
    store = opened(path, **config)
    store.append_as_leader(bodies(first, count), 0)
    store.update_committed_index(0, count - 1 if committed is None else committed)
    store.shutdown()
    return data_files(store)


def plan(path: Path, **options: object) -> Plan:
    """A plan as a task gets it, one range in each partition."""
    parsed = parse_options({"maxPartitionBytes": FILE, **options})
    parts = open_log(path, dataDirs=parsed.data_dirs).plan(DEFAULT_NAMES, parsed, Filters())
    return [pickle.loads(pickle.dumps(part)) for part in parts]


def rows(parts: Plan) -> list[tuple[int, bytes]]:
    found = [row for part in parts for batch in read_partition(part) for row in batch.to_pylist()]
    return [(row["index"], row["body"]) for row in found]


def refused(parts: Plan) -> str:
    """The error of each partition is the same kind; returns that of the first."""
    errors = []
    for part in parts:
        with pytest.raises(StoreError) as error:
            rows([part])
        assert not isinstance(error.value, DataLossError) and "failOnDataLoss" not in str(error.value)
        errors.append(str(error.value))
    return errors[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def move_away(path: Path) -> Path:
    return path.rename(path.with_name(path.name + "-elsewhere"))


@pytest.mark.parametrize("fails", ["true", "false"])
def test_no_row_of_another_log_is_read(path: Path, fails: str) -> None:
    write_log(path)
    parts = plan(path, failOnDataLoss=fails)
    move_away(path)
    write_log(path, first=COUNT)
    text = refused(parts)
    host = module.socket.gethostname()
    assert "expected index 0 (term 0, CRC-32 " in text and f"as planned on {host}, found index 0" in text
    assert str(path / "dledger-n0" / "data") in text and f" on {host}: " in text


def test_a_copy_of_the_log_is_the_same_log(path: Path) -> None:
    write_log(path)
    parts = plan(path)
    expected = rows(parts)
    shutil.copytree(move_away(path), path)
    assert len(expected) == COUNT and rows(parts) == expected


def test_a_log_that_grows_is_the_same_log(path: Path) -> None:
    for count in (1, 3, 5, 7):
        shutil.rmtree(path, ignore_errors=True)
        write_log(path, count=count)
        parts = plan(path)
        store = opened(path)
        store.append_as_leader(bodies(count, COUNT), 0)
        store.shutdown()
        assert [index for index, _ in rows(parts)] == list(range(count))


def test_a_log_of_one_entry_is_told_from_another(path: Path) -> None:
    write_log(path, count=1)
    parts = plan(path)
    move_away(path)
    write_log(path, first=1, count=1)
    refused(parts)


def test_splits_of_one_segment_are_compared_each(path: Path) -> None:
    """The log differs only from its second half on: as a replica that diverged."""
    (file,) = write_log(path, data_file_size=1 << 16)
    parts = plan(path, maxPartitionBytes=2048)
    assert len(parts) > 3
    data = bytearray(file.read_bytes())
    half = parts[len(parts) // 2].ranges[0].start
    data[half : half + 100] = bytes(value ^ 1 for value in data[half : half + 100])
    file.write_bytes(data)
    refused([part for part in parts if part.ranges[0].start <= half < part.ranges[0].end])
    assert rows(parts[:1])


def test_a_shorter_copy_of_a_file_is_refused(path: Path) -> None:
    files = write_log(path)
    parts = plan(path)
    files[1].write_bytes(files[1].read_bytes()[: FILE - 30])
    assert "found 34 of 64 bytes" in refused(parts[1:2])


def test_another_end_of_a_file_is_refused(path: Path) -> None:
    files = write_log(path)
    parts = plan(path)
    files[1].write_bytes(files[1].read_bytes()[:-8] + b"another ")
    assert "of 64 bytes" in refused(parts[1:2])


def test_a_plan_opens_files_that_the_log_has_left_once(path: Path) -> None:
    left = write_log(path)[:-2]
    with opened_files(path / "dledger-n0" / "data") as names:
        plan(path)
    assert {names.count(file.name) for file in left} == {1}


def test_a_later_plan_sees_what_a_new_leader_wrote(path: Path) -> None:
    write_log(path, committed=10)
    before = open_log(path)
    options = parse_options({"maxPartitionBytes": FILE})
    before.plan(DEFAULT_NAMES, options, Filters())
    store = opened(path)
    store.truncate(COUNT - 8)
    store.append_as_leader([b"another".ljust(100, b".")] * 20, 3)
    store.shutdown()
    parts = before.refreshed().plan(DEFAULT_NAMES, options, Filters())
    assert len(rows(parts)) == COUNT + 12


def test_another_last_entry_is_refused(path: Path) -> None:
    """The entries were never committed, and another leader wrote others there."""
    write_log(path, committed=10)
    parts = plan(path)
    store = opened(path)
    store.truncate(COUNT - 1)
    store.append_as_leader(bodies(1000, 1), 3)
    store.shutdown()
    refused(parts[-1:])
    assert len(rows(parts[:-1])) == COUNT - len(rows(plan(path)[-1:]))


@pytest.mark.parametrize("absent", ["log", "log/dledger-n0/data"])
def test_an_absent_folder_is_refused(path: Path, absent: str) -> None:
    write_log(path)
    parts = plan(path, failOnDataLoss="false")
    move_away(path.parent / absent)
    assert f"{path}/dledger-n0/data: expected the folder as planned on" in refused(parts)


def test_an_empty_folder_is_refused(path: Path) -> None:
    """As a mount point without its mount."""
    (file, *_) = write_log(path)
    parts = plan(path, failOnDataLoss="false")
    move_away(path)
    file.parent.mkdir(parents=True)
    assert "found no readable file (No such file or directory)" in refused(parts)


@pytest.mark.parametrize("is_empty", [True, False])
def test_one_of_several_folders_without_its_mount_is_refused(path: Path, is_empty: bool) -> None:
    dirs = (path / "data", path / "more")
    files = write_log(path, data_dirs=dirs)
    assert {file.parent for file in files} == set(dirs)
    parts = plan(path, failOnDataLoss="false", dataDirs=[str(folder) for folder in dirs])
    first = files[0].parent
    move_away(first)
    if is_empty:
        first.mkdir()
    refused([part for part in parts if Path(part.ranges[0].segment.path).parent == first])


def test_expired_files_are_skipped_or_an_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = write_log(path)
    strict, careless = plan(path), plan(path, failOnDataLoss="false")
    expected = rows(strict)
    for file in files[:2]:
        file.unlink()
    with pytest.raises(DataLossError, match="found the file deleted: plan the read again, or set failOnDataLoss"):
        rows(strict[:1])
    with caplog.at_level(logging.WARNING):
        assert rows(careless) == expected[10:]
    assert caplog.text.count("they are skipped") == 2
    log = open_log(path, failOnDataLoss="false")
    assert len([row for batch in log.scan(["index"]) for row in batch.to_pylist()]) == COUNT - 10


def test_a_missing_file_between_others_has_not_expired(path: Path) -> None:
    files = write_log(path)
    parts = plan(path, failOnDataLoss="false")
    files[3].unlink()
    assert "and a log that begins at pos 0: mount" in refused(parts[3:4])


def test_files_of_another_log_are_not_expired(path: Path) -> None:
    """Another log at the path begins after what was planned."""
    files = write_log(path)
    parts = plan(path, failOnDataLoss="false")
    keep = files[-1].name
    move_away(path)
    for file in write_log(path, first=COUNT):
        if file.name != keep:
            file.unlink()
    refused(parts)


def old_log(root: Path, text: bytes) -> None:
    write_commitlog(root, [mq_message(body=text % number) for number in range(40)], file_size=1024)


@pytest.mark.parametrize("write", [old_log])
def test_no_message_of_another_commit_log_is_read(path: Path, write: Callable[[Path, bytes], None]) -> None:
    write(path, b"first %d")
    parts = plan(path, maxPartitionBytes=1024)
    assert len(parts) > 3 and len(rows(parts)) == 40
    move_away(path)
    write(path, b"other %d")
    refused(parts)


def test_replicas_differ_in_what_was_never_committed(tmp_path: Path) -> None:
    root = unpack("raw-three-diverged", tmp_path)
    nodes = sorted(root.rglob("dledger-*"))
    path = tmp_path / "path"
    plans = {}
    for node in nodes:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(node, path)
        plans[node] = plan(path, maxPartitionBytes=1 << 20)
        assert rows(plans[node])
    for planned, parts in plans.items():
        for node in nodes:
            shutil.rmtree(path)
            shutil.copytree(node, path)
            own = rows(plan(path, maxPartitionBytes=1 << 20))
            shutil.rmtree(path)
            shutil.copytree(planned, path)
            expected = rows(parts)
            shutil.rmtree(path)
            shutil.copytree(node, path)
            if own == expected:
                assert rows(parts) == own
            elif len(own) <= len(expected):
                refused(parts[-1:])


def test_damage_at_the_begin_of_a_range_is_planned_damage(path: Path) -> None:
    files = write_log(path)
    data = bytearray(files[2].read_bytes())
    data[:60] = b"\xaa" * 60
    files[2].write_bytes(data)
    parts = plan(path)
    assert len(rows(parts)) == COUNT
    files[2].write_bytes(bytes(data[:100]) + b"\xbb" * 60 + bytes(data[160:]))
    refused(parts[2:3])
