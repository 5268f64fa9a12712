"""Bytes of a file that becomes shorter while it is read. For mapped bytes, a bad sector of the disk is the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import get_engine, map_whole

SIZE = 20 * 4096
CONTENT = bytes(number % 251 for number in range(SIZE))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("cut", [5 * 4096, 5 * 4096 + 100, 0])
def test_missing_bytes_are_an_error_and_others_are_read(file: Path, engine: str, cut: int) -> None:
    mapped = get_engine(engine).map_file(str(file))
    before = mapped.read(0, SIZE)
    assert before == CONTENT
    os.truncate(file, cut)
    for start in (cut, SIZE - 1, 0):
        with pytest.raises(OSError, match="found the end of the file"):
            mapped.read(start, SIZE)
    assert mapped.read(0, cut) == CONTENT[:cut]
    assert bytes(before[:cut]) == CONTENT[:cut]
    bytes(before)
    file.write_bytes(CONTENT)
    assert mapped.read(100, SIZE) == CONTENT[100:]


@pytest.mark.parametrize("engine", ["native", "python"])
def test_ranges_outside_a_file_are_an_error(file: Path, engine: str) -> None:
    mapped = get_engine(engine).map_file(str(file))
    for start, stop in ((0, SIZE + 1), (SIZE, SIZE + 4096), (-1, 5)):
        with pytest.raises(OSError, match=r"Invalid|end of the file"):
            mapped.read(start, stop)
    assert mapped.read(SIZE, SIZE) == b""


def test_bytes_of_a_deleted_file_stay(file: Path) -> None:
    mapped = map_whole(str(file))
    file.unlink()
    assert mapped.view == CONTENT
    assert mapped.is_intact()


def test_whole_file_that_becomes_shorter_is_not_intact(file: Path) -> None:
    mapped = map_whole(str(file))
    assert mapped.is_intact()
    assert mapped.is_loaded(SIZE - 1)
    assert not mapped.is_loaded(SIZE)
    os.truncate(file, 4096)
    assert bytes(mapped.view) == CONTENT[:4096] + bytes(SIZE - 4096)
    assert not mapped.is_intact()


def test_only_files_are_mapped(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_whole(str(tmp_path / "missing"))
    with pytest.raises(StoreError, match="is not a readable file"):
        map_whole(str(tmp_path))
