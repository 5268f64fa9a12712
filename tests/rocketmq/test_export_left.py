"""The files that the parts of an export leave for its end exist as long as needed, and are verified before use."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import Keys
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.export.commit_log_form import CommitLogForm
from pyspark_dledger.rocketmq.export.forms import ExportReport
from tests.support.attempts import run_at_once
from tests.support.damage import flip
from tests.support.generate import mq_message, write_consume_queue, write_dledger
from tests.support.long_runs import mostly_slow

PARTS = 3
TOPICS = ("Orders", "Bills")
Change = Callable[[Path], None]
Content = list[tuple[str, bytes]]

pytestmark = [pytest.mark.usefixtures("no_fsync"), pytest.mark.slow]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log of three files with messages of two queues, which have keys; queues and index have small files."""
    root = tmp_path / "store"
    payloads = [
        mq_message(TOPICS[number % 2], b"x" * 600, properties=[("KEYS", f"k{number}")], queue_offset=number // 2)
        for number in range(15)
    ]
    store = write_dledger(root, payloads)
    assert len(store.segments) == PARTS
    write_consume_queue(root, store.rows)
    index = IndexWriter(root, hash_slots=7, index_units=5)
    index.put(Keys(np.array([0]), np.array([1700000000000]), np.array([1])))
    index.flush()
    index.close()
    return root


@pytest.fixture
def whole(source: Path, tmp_path: Path, engine: str) -> Content:
    """The result of an uninterrupted export."""
    exported(source, tmp_path / "whole", engine)
    return content_of(tmp_path / "whole")


def exported(source: Path, target: Path, engine: str = "auto", **options: Any) -> ExportReport:
    return export(source, target, "commitlog", engine=engine, **options)


def content_of(target: Path) -> Content:
    """The exported files and their bytes; names of index files, which are times, are left out."""
    files = [path for path in sorted(target.rglob("*")) if path.is_file()]
    names = [path.relative_to(target).parts for path in files]
    return [
        ("index" if parts[0] == "index" else "/".join(parts), path.read_bytes())
        for parts, path in zip(names, files, strict=True)
        if not parts[0].startswith("_export")
    ]


def left_of(target: Path) -> list[str]:
    return sorted(path.name for path in target.rglob("*.left"))


def interrupt(source: Path, target: Path, when: str, engine: str = "auto") -> None:
    """Start an export and interrupt it: in the last part, or before or after `Form.finish`."""
    write, finish = CommitLogForm.write, CommitLogForm.finish

    def write_but_last(self: CommitLogForm, part: Any, number: int, target: Path) -> Any:
        if number == PARTS - 1 and when == "in the last part":
            raise KeyboardInterrupt
        return write(self, part, number, target)

    def finish_never(self: CommitLogForm, *given: Any) -> Any:
        if when == "after the end":
            finish(self, *given)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLogForm, "write", write_but_last)
        patch.setattr(CommitLogForm, "finish", finish_never)
        with pytest.raises(KeyboardInterrupt):
            exported(source, target, engine)


WHEN = pytest.mark.parametrize("when", ["in the last part", "before the end", "after the end"])


def done_parts(when: str) -> int:
    return PARTS - (when == "in the last part")


# As long as needed.


def test_a_finished_export_leaves_no_such_file(source: Path, tmp_path: Path, engine: str) -> None:
    exported(source, tmp_path / "target", engine)
    assert left_of(tmp_path / "target") == []
    assert sorted(path.name for path in (tmp_path / "target" / "_export").iterdir()) == [
        f"part-{number:05d}.json" for number in range(PARTS)
    ]


@WHEN
def test_each_finished_part_leaves_a_file(source: Path, tmp_path: Path, when: str) -> None:
    interrupt(source, tmp_path / "target", when)
    assert left_of(tmp_path / "target") == [f"part-{number:05d}.left" for number in range(done_parts(when))]


@WHEN
def test_an_export_continues_with_the_left_files(
    source: Path, tmp_path: Path, whole: Content, when: str, engine: str
) -> None:
    target = tmp_path / "target"
    interrupt(source, target, when, engine)
    report = exported(source, target, engine)
    assert report.resumed == done_parts(when)
    assert content_of(target) == whole
    assert left_of(target) == []


def test_both_engines_leave_the_same_files(source: Path, tmp_path: Path) -> None:
    left = []
    for engine in ("native", "python"):
        interrupt(source, tmp_path / engine, "before the end", engine)
        left.append([file.read_bytes() for file in sorted((tmp_path / engine).rglob("*.left"))])
    assert left[0] == left[1]


def test_concurrent_attempts_at_a_part_leave_the_same_files(source: Path, tmp_path: Path, whole: Content) -> None:
    """Spark starts a slow task a second time."""
    exported(source, tmp_path / "target", run=run_at_once)
    assert content_of(tmp_path / "target") == whole


def test_an_export_of_the_log_only_leaves_no_such_files(source: Path, tmp_path: Path, engine: str) -> None:
    target, seen = tmp_path / "target", []
    report = exported(source, target, engine, commitLogOnly=True, progress=lambda *_: seen.extend(left_of(target)))
    assert report.rows == 15
    assert (seen, left_of(target)) == ([], [])
    names = {path.name for path in target.iterdir()}
    assert names == {"commitlog", "abort", "_export", "_export.json"}


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_other_forms_leave_no_such_files(source: Path, tmp_path: Path, form: str) -> None:
    target, seen = tmp_path / "target", []
    export(source, target, form, progress=lambda *_: seen.extend(left_of(target)))
    assert seen == []


# Verified before use.


def delete(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def empty(file: Path) -> None:
    file.write_bytes(b"")


@WHEN
@pytest.mark.parametrize("change", mostly_slow([delete, truncate, grow, empty], 2))
def test_a_part_whose_left_file_is_missing_or_has_another_size_is_written_again(
    source: Path, tmp_path: Path, whole: Content, when: str, change: Change, engine: str
) -> None:
    target = tmp_path / "target"
    interrupt(source, target, when, engine)
    change(target / "_export" / "part-00001.left")
    report = exported(source, target, engine)
    assert report.resumed == done_parts(when) - 1
    assert content_of(target) == whole
    assert left_of(target) == []


def change_at(fraction: float) -> Change:
    """Changes the byte at a fraction of the file: 0 is its first, 1 its last byte."""

    def change(file: Path) -> None:
        flip(file, int(fraction * (file.stat().st_size - 1)))

    return change


@WHEN
@pytest.mark.parametrize("fraction", mostly_slow([0.5, 0, 1, 0.1, 0.9], 1, suite=3))
def test_a_left_file_with_other_bytes_is_an_error(
    source: Path, tmp_path: Path, whole: Content, when: str, fraction: float, engine: str
) -> None:
    target = tmp_path / "target"
    file = target / "_export" / "part-00001.left"
    interrupt(source, target, when, engine)
    wanted = file.stat().st_size, zlib.crc32(file.read_bytes())
    change_at(fraction)(file)
    found = file.stat().st_size, zlib.crc32(file.read_bytes())
    for _ in range(2):  # files of the first attempt are not taken for the result
        with pytest.raises(StoreError) as caught:
            exported(source, target, engine)
        assert str(caught.value) == (
            "{}: expected {} bytes with CRC-32 {:08x}, found {} with {:08x}: check the disk; delete the file to write "
            "its part again"
        ).format(file, *wanted, *found)
    file.unlink()
    report = exported(source, target, engine)
    assert report.resumed == PARTS - 1
    assert content_of(target) == whole
    assert left_of(target) == []


def test_the_left_file_of_another_part_is_rejected(source: Path, tmp_path: Path, whole: Content) -> None:
    """The first two parts have the same number of messages and bytes."""
    target = tmp_path / "target"
    interrupt(source, target, "before the end")
    first, second = (target / "_export" / f"part-{number:05d}.left" for number in range(2))
    assert first.stat().st_size == second.stat().st_size
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(StoreError, match=f"{first}: expected [0-9]+ bytes with CRC-32"):
        exported(source, target)
    first.write_bytes(content)
    exported(source, target)
    assert content_of(target) == whole


# Reports.


@pytest.fixture
def precious(source: Path, tmp_path: Path) -> Path:
    """A foreign file of the same size as one of the export."""
    interrupt(source, tmp_path / "other", "before the end")
    (tmp_path / "precious").write_bytes((tmp_path / "other" / "_export" / "part-00000.left").read_bytes())
    return tmp_path / "precious"


def change_report(target: Path, **changes: Any) -> Path:
    file = target / "_export" / "part-00000.json"
    report = json.loads(file.read_text())
    report["left"] |= changes
    file.write_text(json.dumps(report))
    return file


@pytest.mark.parametrize("name", ["../precious", "_export/../../precious", "{precious}", "_export/part-00001.left", ""])
def test_a_report_with_the_left_file_of_another_part_is_rejected(
    source: Path, tmp_path: Path, precious: Path, whole: Content, name: str
) -> None:
    target, content = tmp_path / "target", precious.read_bytes()
    interrupt(source, target, "before the end")
    report = change_report(target, path=name.format(precious=precious))
    with pytest.raises(StoreError) as caught:
        exported(source, target)
    assert str(caught.value) == (f"{report}: not a report of a part, or damaged: delete it to write the part again")
    assert precious.read_bytes() == content
    assert len(left_of(target)) == PARTS
    report.unlink()
    assert exported(source, target).resumed == PARTS - 1
    assert content_of(target) == whole
    assert precious.read_bytes() == content


@pytest.mark.parametrize("left", [5, [], {}, "part-00000.left", True, {"path": 1, "size": 1, "crc32": 1, "rows": 1}])
def test_a_report_without_a_valid_left_file_is_rejected(source: Path, tmp_path: Path, left: Any) -> None:
    interrupt(source, tmp_path / "target", "before the end")
    file = tmp_path / "target" / "_export" / "part-00000.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"left": left}))
    with pytest.raises(StoreError, match=r"part-00000\.json: not a report of a part, or damaged"):
        exported(source, tmp_path / "target")


@pytest.mark.parametrize("changes", [{"size": -1}, {"size": 1.5}, {"crc32": "1"}, {"rows": None}, {"more": 1}])
def test_a_report_with_wrong_numbers_of_its_left_file_is_rejected(
    source: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    interrupt(source, tmp_path / "target", "before the end")
    change_report(tmp_path / "target", **changes)
    with pytest.raises(StoreError, match=r"part-00000\.json: not a report of a part, or damaged"):
        exported(source, tmp_path / "target")


def test_a_left_file_that_cannot_be_deleted_is_no_error(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".left" and path.exists():
            raise PermissionError(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    report = exported(source, tmp_path / "target")
    assert report.rows == 15
    assert len(left_of(tmp_path / "target")) == PARTS
