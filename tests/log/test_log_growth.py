"""Finding the end of a growing log reads only what is new, also if entries are written meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.format.scan.segment_file import Segment
from pyspark_dledger.log import open_log
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.stores import data_files, opened

FILE_SIZE = 1 << 20


class Growing:
    """An engine; the log grows each time right after a search for its end."""

    def __init__(self, engine: Any, store: MmapFileStore, times: int) -> None:
        self._engine, self._store, self._left = engine, store, times
        self.searched_all: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def log_end(self, segment: Segment, start: int, search_all: bool) -> Any:
        found = self._engine.log_end(segment, start, search_all)
        self.searched_all.append(search_all)
        if self._left:
            self._left -= 1
            self._store.append_as_leader([b"grown"] * 3)
        return found


def test_growth_during_the_search_is_not_damage(tmp_path: Path) -> None:
    """The new entries are the end, and no file is searched for entries after damage."""
    store = opened(tmp_path, data_file_size=FILE_SIZE)
    store.append_as_leader([b"there"] * 5)
    log = open_log(str(tmp_path / "dledger-n0"))
    growing = Growing(log.engine, store, times=2)
    log.engine = growing
    assert log.end.last_index == store.ledger_end_index
    assert growing.searched_all
    assert not any(growing.searched_all)
    store.shutdown()


def test_file_before_the_committed_entry_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a lone file is searched from the last entry that the index finds in it."""
    store = opened(tmp_path, data_file_size=1 << 12)
    store.append_as_leader([b"body"] * 200)
    store.update_committed_index(0, 199)
    store.shutdown()
    log = open_log(data_files(store)[0])
    searched: list[int] = []
    real = log.engine.log_end

    def log_end(segment: Segment, start: int, search_all: bool) -> Any:
        searched.append(start)
        return real(segment, start, search_all)

    monkeypatch.setattr(log.engine, "log_end", log_end)
    assert log.end.last_index < 199
    assert searched == [log.end.last_pos]
    assert sum(map(len, log.scan(["index"]))) == log.end.last_index + 1
