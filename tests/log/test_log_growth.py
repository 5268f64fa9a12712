"""Finding the end of a growing log reads only what is new, also if entries are written meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark_dledger.format.scan.segment_file import Segment
from pyspark_dledger.log import open_log
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.stores import opened

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
