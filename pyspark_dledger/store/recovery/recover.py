"""What recovery does with what it finds at the end of a log: it goes on, refuses, or repairs.

Unlike Java's, this recovery cuts only a torn or invalid tail above what is known to be committed, and refuses where
anything else is wrong. Nothing is written before that is decided.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.io.files import data_extents
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList, sync_file
from pyspark_dledger.store.files.node_files import write_checkpoint
from pyspark_dledger.store.recovery.log_walk import BLANK, LogWalk, NextEntry, segment_of, text_of

_COPIED = 8 * 1024 * 1024


@dataclass(frozen=True)
class Recovered:
    """A log after recovery; ``begin_index`` and ``end_term`` are -1 without entries, ``cut`` names what was cut."""

    begin_index: int
    next_index: int
    end_term: int
    end_pos: int
    committed_index: int
    cut: str | None = None


class Recovery(LogWalk):
    """One recovery: `run` looks, then refuses or repairs, and says where the log stands.

    `useless` are index files that are to be deleted. Raises StoreError where the store is damaged at or below what is
    committed, or beyond what a torn tail can be.
    """

    def __init__(
        self,
        node_dir: Path,
        data: MappedFileList,
        index: MappedFileList,
        engine: Engine,
        checkpoint: Checkpoint,
        truncate_at: int | None,
        useless: list[Path],
    ) -> None:
        super().__init__(data, index, engine, checkpoint)
        self._node_dir = node_dir
        self._truncate_at = truncate_at
        self._useless = useless

    def run(self) -> Recovered:
        begin = self._begin()
        if begin is None:
            return self._without_entries()
        if self._has_damaged_begin:
            return self._give_up_all(begin)
        end = self._find_end(begin)
        if self._truncate_at is not None:
            end = self._asked_cut(self._truncate_at, begin, end)
        else:
            self._check_end(begin, end)
        return self._repair(begin, end)

    def _without_entries(self) -> Recovered:
        """A store in which nothing was ever written, or whose files are gone."""
        if self._committed >= 0 and self._truncate_at != 0:
            raise StoreError(
                f"{self._node_dir}: expected entries up to index {self._committed}, which is committed, found none: "
                "copy the folder from another member of the group, or accept the loss with --truncate-at 0"
            )
        return self._empty(0, None)

    def _give_up_all(self, begin: NextEntry) -> Recovered:
        """The log begins with damage. Raises StoreError unless the operator gives all of it up."""
        file = self._data.files[0]
        if self._truncate_at != begin.index:
            self._refuse(file, begin.pos, begin.index, f"{text_of(self._read(file, begin.pos))}, and entries behind it")
        return self._empty(begin.index, self._keep_cut(begin.pos))

    def _empty(self, next_index: int, cut: str | None) -> Recovered:
        files = self._data.files
        pos = files[0].base if files else 0
        self._lower_checkpoint(-1, next_index)
        if files:
            self._data.cut(pos)
        self._has_index = False
        self._drop_index()
        self._data.sync()
        return Recovered(-1, next_index, -1, pos, -1, cut)

    # Deciding.

    def _check_end(self, begin: NextEntry, end: NextEntry) -> None:
        """Raises StoreError where more than a torn tail would be lost."""
        is_unknown = self._goes_on and self._checkpoint.committed_index is None
        if end.index <= self._committed or self._is_early or is_unknown or (self._goes_on and end.pos == begin.pos):
            file, pos = self._stop(end)
            self._refuse(file, pos, end.index, text_of(self._read(file, pos)))

    def _stop(self, end: NextEntry) -> tuple[MappedFile, int]:
        """The file and the position where an entry is missing."""
        file = self._data.find(end.pos)
        assert file is not None
        following = self._data.find(file.end)
        if following is not None and self._read(file, end.pos)[:4] == BLANK:
            return following, following.base
        return file, end.pos

    def _refuse(self, file: MappedFile, pos: int, index: int, found: str) -> NoReturn:
        known = f"{self._committed} is committed"
        if self._checkpoint.committed_index is None:
            known = f"what is committed is not known ({self._checkpoint.problem})"
        raise StoreError(
            f"{file.path} at byte {pos - file.base}: expected the entry of index {index}, found {found}; {known}: "
            f"copy the folder {self._node_dir.name} from another member of the group, or give up index {index} and all "
            f"behind it with --truncate-at {index}"
        )

    def _asked_cut(self, index: int, begin: NextEntry, end: NextEntry) -> NextEntry:
        """The place of the entry that the operator gives up. Raises StoreError unless the store needs that."""
        if end.index > self._committed and not self._goes_on and not self._is_early:
            raise StoreError(
                f"{self._node_dir}: expected damage for --truncate-at {index} to repair, found none up to the end at "
                f"{end.index - 1}: start without it"
            )
        if not begin.index <= index <= end.index:
            raise StoreError(
                f"{self._node_dir}: expected an index from {begin.index} to {end.index} for --truncate-at, found "
                f"{index}: the damage stands at {end.index}"
            )
        self._goes_on = True  # what is cut is kept
        return self._place_of(index) if index < end.index else end

    def _place_of(self, index: int) -> NextEntry:
        for file in reversed(self._data.files):
            header = self._header(file, file.base)
            if header is not None and header.index <= index:
                pos = self._engine.seek(segment_of(file, None), file.base, file.end, index)
                found = self._header(file, pos)
                if found is not None and found.index == index:
                    return NextEntry(index, pos, found.term)
        raise StoreError(f"{self._node_dir}: expected the entry of index {index}, found none: check --truncate-at")

    # Repairing.

    def _repair(self, begin: NextEntry, end: NextEntry) -> Recovered:
        cut = self._keep_cut(end.pos) if self._goes_on else None
        committed = min(self._committed, end.index - 1)
        committed = committed if committed >= begin.index else -1
        self._lower_checkpoint(committed, end.index)
        self._cut_index(begin, end)
        self._data.cut(end.pos)
        self._sync_found(begin)
        self._write_index(end)
        self._index.sync()
        if end.index == begin.index:
            return Recovered(-1, end.index, -1, end.pos, -1, cut)
        last = self._unit(end.index - 1)
        assert last is not None, "every unit up to the end was compared or written"
        return Recovered(begin.index, end.index, last.term, end.pos, committed, cut)

    def _lower_checkpoint(self, committed: int, end_index: int) -> None:
        """Let the checkpoint name nothing from an index on, before that is cut: it vouches for what it names."""
        if max(self._committed, self._durable) >= end_index:
            write_checkpoint(self._node_dir, committed, end_index - 1)

    def _sync_found(self, begin: NextEntry) -> None:
        """Make durable what is kept: the process that wrote it may have been killed before it could."""
        self._data.sync()
        for file in self._data.files:
            sync_file(file.path)
        for file in self._index.files:
            if file.end > begin.index * INDEX_UNIT_SIZE:
                sync_file(file.path)
        for folder in {file.path.parent for file in (*self._data.files, *self._index.files)}:
            sync_dir(folder)

    def _cut_index(self, begin: NextEntry, end: NextEntry) -> None:
        """Let the index say nothing beyond the end, durably, before the data is cut there."""
        self._drop_index()
        self._index.drop_before(begin.index * INDEX_UNIT_SIZE)
        if self._index.files:
            self._index.cut(end.index * INDEX_UNIT_SIZE)
        self._index.sync()

    def _write_index(self, end: NextEntry) -> None:
        """Make the index say what the data says."""
        for stretch in self._unindexed:
            if stretch.first.pos < end.pos:
                units = self._units_of(stretch._replace(end=min(stretch.end, end.pos)))
                self._index.write(stretch.first.index * INDEX_UNIT_SIZE, units)

    def _drop_index(self) -> None:
        """Delete index files that cannot be used: all of them where they do not hold the first entry's unit."""
        for path in self._useless:
            path.unlink()
        if not self._has_index:
            self._index.delete(self._index.release())
            self._has_index = True

    def _keep_cut(self, pos: int) -> str:
        """Copy what stands from a position on into a side file, durably, holes as holes; its path."""
        number = 0
        while (path := self._node_dir / f"cut-{pos}-{number}.bin").exists():
            number += 1
        with path.open("wb") as side:
            for file in self._data.files:
                if file.end > pos:
                    _copy(file, max(pos, file.base), side.fileno(), pos)
            os.fsync(side.fileno())
        sync_dir(self._node_dir)
        return str(path)


def _copy(file: MappedFile, start: int, target: int, origin: int) -> None:
    """Copy a file's data from a position on to where it stands behind `origin`."""
    source = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for low, high in data_extents(source, start - file.base, file.size):
            for offset in range(low, high, _COPIED):
                data = os.pread(source, min(_COPIED, high - offset), offset)
                os.pwrite(target, data, file.base + offset - origin)
    finally:
        os.close(source)
