"""The position up to which the log is committed: any thread advances it, the dispatcher's thread follows."""

from __future__ import annotations

import threading

from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.rocketmq.log_files import LogFiles


class CommittedEnd:
    """``pos`` is the end of the committed entry ``index``. Of the dispatcher's thread, but `advance` and `wake`."""

    def __init__(self, engine: Engine, files: LogFiles) -> None:
        self._engine = engine
        self._files = files
        self._changed = threading.Condition()
        self._committed: tuple[int, int | None] = (-1, None)
        self._is_woken = False
        self.pos = 0
        self.index = -1

    def begin(self, pos: int, index: int) -> None:
        """Start at a position; all of an old CommitLog is committed."""
        self.pos, self.index = max(pos, self._files.divided) if self._files.divided >= 0 else pos, index

    def advance(self, index: int, end_pos: int | None) -> None:
        """Everything up to `index` is committed; `end_pos` is the end of its entry, if known."""
        with self._changed:
            if index > self._committed[0]:
                self._committed = (index, end_pos)
                self._changed.notify()

    def update(self, start: int) -> int:
        """The position up to which everything is committed, searched from `start` on if the end is unknown."""
        with self._changed:
            index, end_pos = self._committed
        if index > self.index:
            found = end_pos if end_pos is not None else self._end_of(index, max(self.pos, start))
            if found is not None:
                self.pos, self.index = max(self.pos, found), index
        return self.pos

    def _end_of(self, index: int, pos: int) -> int | None:
        """The end of the entry of an index, searched from `pos` on; None if the files do not have it yet."""
        while (segment := self._files.at(pos)) is not None and segment.source == DLEDGER:
            start = max(pos, self._files.first_in(self._engine, segment) if pos <= segment.base else pos)
            end = self._engine.log_end(segment, start, False)
            if end.entries and end.last_index >= index:
                return self._engine.seek(segment, start, end.pos, index + 1)
            pos = segment.end
        return None

    def wait(self, seconds: float) -> None:
        """Wait until more is committed, but not once `wake` was called."""
        with self._changed:
            if self._committed[0] <= self.index and not self._is_woken and seconds > 0:
                self._changed.wait(seconds)

    def wake(self) -> None:
        """End `wait`, now and from now on."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()
