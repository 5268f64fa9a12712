"""Recovers a log when its store starts: opens it, rejects it, or repairs it.

Unlike Java's, this recovery truncates only a torn or invalid tail above the committed index, and rejects any other
damage. It decides before it writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pyspark_dledger.common.durable import sync_dir, sync_file, write_at
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import INDEX_UNIT, INDEX_UNIT_SIZE
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.io.files import data_extents
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList
from pyspark_dledger.store.files.node_files import load_members, write_checkpoint
from pyspark_dledger.store.recovery.log_view import BLANK, LogView, describe, segment_of
from pyspark_dledger.store.recovery.log_walk import LogWalk, NextEntry, WrongHeader

_COPIED_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Recovered:
    """A log after recovery. Without entries ``begin_index`` and ``end_term`` are -1.

    ``saved_tail`` is the path of the side file with a truncated tail.
    """

    begin_index: int
    next_index: int
    end_term: int
    end_pos: int
    committed_index: int
    saved_tail: str | None = None


class Recovery:
    """One recovery: `run` returns the end of the log, after any repair.

    `unusable` index files are deleted. `is_sync`, `is_rebooted`, `is_same_boot`: see `LogWalk`. `is_own`: a node of
    this package wrote the checkpoint. Raises StoreError for damage that is more than a torn tail: checkpoint, index
    unit or later entries contradict that.
    """

    def __init__(
        self,
        node_dir: Path,
        data: MappedFileList,
        index: MappedFileList,
        engine: Engine,
        checkpoint: Checkpoint,
        truncate_at: int | None,
        unusable: list[Path],
        *,
        is_sync: bool,
        is_rebooted: bool,
        is_same_boot: bool,
        is_own: bool,
    ) -> None:
        self._node_dir = node_dir
        self._data = data
        self._index = index
        self._engine = engine
        self._checkpoint = checkpoint
        self._truncate_at = truncate_at
        self._unusable = unusable
        self._view = LogView(data, index)
        self._walk = walk = LogWalk(
            self._view, engine, checkpoint, is_sync=is_sync, is_rebooted=is_rebooted, is_same_boot=is_same_boot
        )
        # Then the system's memory can have entries that a failed sync did not write, and no later one writes.
        self._is_same_run = is_own and not is_rebooted
        # Java's checkpoint names entries that may not be durable yet.
        self._vouched = max(walk.committed, walk.durable) if is_own else walk.committed

    def run(self) -> Recovered:
        walk = self._walk
        begin = walk.find_begin()
        if begin is None:
            return self._without_entries()
        if walk.has_damaged_begin:
            return self._give_up_all(begin)
        end = walk.find_end(begin)
        if self._truncate_at is None:
            self._check_end(begin, end)
            return self._repair(begin, end, keeps_tail=walk.has_later_entries or walk.has_torn_unit)
        return self._repair(begin, self._requested_end(self._truncate_at, begin, end), keeps_tail=True)

    def _without_entries(self) -> Recovered:
        """A new store, or one without its data files."""
        if self._walk.committed >= 0 and self._truncate_at != 0:
            raise StoreError(
                f"{self._node_dir}: expected entries up to the committed index {self._walk.committed}, found none: "
                "copy the folder from another member of the group, or accept the loss with --truncate-at 0"
            )
        return self._empty(0, None)

    def _give_up_all(self, begin: NextEntry) -> Recovered:
        """The begin of the log is damaged. Raises StoreError unless the operator gives up the whole log."""
        file = self._data.files[0]
        if self._truncate_at != begin.index:
            found = f"{describe(self._view.read(file, begin.pos))}, and its index unit or later entries"
            self._reject(file, begin.pos, begin.index, found)
        return self._empty(begin.index, self._save_tail(begin.pos))

    def _empty(self, next_index: int, saved_tail: str | None) -> Recovered:
        files = self._data.files
        pos = files[0].base if files else 0
        self._lower_checkpoint(-1, next_index)
        if files:
            self._data.truncate(pos)
        self._view.has_index = False
        self._delete_unusable_index()
        self._data.sync()
        return Recovered(-1, next_index, -1, pos, -1, saved_tail)

    # Deciding

    def _check_end(self, begin: NextEntry, end: NextEntry) -> None:
        """Raises StoreError if more than a torn tail would be lost."""
        walk = self._walk
        if walk.wrong_header is not None:
            self._reject_wrong_header(walk.wrong_header)
        has_more = walk.has_later_entries
        is_unknown = has_more and self._checkpoint.committed_index is None
        if end.index <= self._vouched or walk.is_damaged_early or is_unknown or (has_more and end.pos == begin.pos):
            file, pos = self._missing_entry(end)
            self._reject(file, pos, end.index, describe(self._view.read(file, pos)))

    def _missing_entry(self, end: NextEntry) -> tuple[MappedFile, int]:
        """The file and the position of the missing entry."""
        file = self._data.find(end.pos)
        assert file is not None
        following = self._data.find(file.end)
        if following is not None and self._view.read(file, end.pos)[:4] == BLANK:
            return following, following.base
        return file, end.pos

    def _reject_wrong_header(self, found: WrongHeader) -> NoReturn:
        unit, file = found
        text = " ".join(f"{field.name}={getattr(unit, field.name)}" for field in INDEX_UNIT)
        header = describe(self._view.read(file, unit.pos))
        self._reject(file, unit.pos, unit.index, f"{header}, and the index unit {text}")

    def _reject(self, file: MappedFile, pos: int, index: int, found: str) -> NoReturn:
        committed = f"the committed index is {self._walk.committed}"
        if self._vouched > self._walk.committed:
            committed += f", and entries up to {self._vouched} were on disk"
        if self._checkpoint.committed_index is None:
            committed = f"the committed index is unknown ({self._checkpoint.problem})"
        raise StoreError(
            f"{file.path} at byte {pos - file.base}: expected the entry of index {index}, found {found}; {committed}: "
            f"copy the folder {self._node_dir.name} from another member of the group{self._donors(index)}, or give up "
            f"index {index} and all later ones with --truncate-at {index}"
        )

    def _donors(self, index: int) -> str:
        """Which members can have an entry."""
        others = [f"dledger-{node_id}" for node_id in load_members(self._node_dir)]
        others = [name for name in others if name != self._node_dir.name]
        if not others:
            return ""
        return f" ({' or '.join(others)}: 'dledger metadata' shows which has endIndex {index} or more)"

    def _requested_end(self, index: int, begin: NextEntry, end: NextEntry) -> NextEntry:
        """The entry that the operator truncates at. Raises StoreError unless the store needs that."""
        walk = self._walk
        is_damaged = walk.has_later_entries or walk.is_damaged_early or walk.wrong_header is not None
        if end.index > self._vouched and not is_damaged:
            raise StoreError(
                f"{self._node_dir}: expected damage for --truncate-at {index} to repair, found none up to the end at "
                f"{end.index - 1}: start without it"
            )
        if not begin.index <= index <= end.index:
            raise StoreError(
                f"{self._node_dir}: expected an index from {begin.index} to {end.index} for --truncate-at, found "
                f"{index}: the damage is at {end.index}"
            )
        return self._entry_at(index) if index < end.index else end

    def _entry_at(self, index: int) -> NextEntry:
        for file in reversed(self._data.files):
            header = self._view.header(file, file.base)
            if header is not None and header.index <= index:
                pos = self._engine.seek(segment_of(file, None), file.base, file.end, index)
                found = self._view.header(file, pos)
                if found is not None and found.index == index:
                    return NextEntry(index, pos, found.term)
        raise StoreError(f"{self._node_dir}: expected the entry of index {index}, found none: check --truncate-at")

    # Repairing

    def _repair(self, begin: NextEntry, end: NextEntry, keeps_tail: bool) -> Recovered:
        saved_tail = self._save_tail(end.pos) if keeps_tail else None
        committed = min(self._walk.committed, end.index - 1)
        committed = committed if committed >= begin.index else -1
        self._lower_checkpoint(committed, end.index)
        self._truncate_index(begin, end)
        self._data.truncate(end.pos)
        is_doubtful = self._is_same_run and self._walk.durable + 1 < end.index
        if is_doubtful:
            _write_again(self._data, self._last_durable_pos(begin), end.pos)
        self._sync_found(begin)
        self._write_index(end)
        if is_doubtful:
            first = max(self._walk.durable + 1, begin.index)
            _write_again(self._index, first * INDEX_UNIT_SIZE, end.index * INDEX_UNIT_SIZE)
        self._index.sync()
        if end.index == begin.index:
            return Recovered(-1, end.index, -1, end.pos, -1, saved_tail)
        last = self._view.unit(end.index - 1)
        assert last is not None, "every unit up to the end was compared or written"
        return Recovered(begin.index, end.index, last.term, end.pos, committed, saved_tail)

    def _last_durable_pos(self, begin: NextEntry) -> int:
        """The position of the last durable entry; without its unit, an earlier one in the last files."""
        index = self._walk.durable
        unit = self._view.unit(index) if index >= begin.index else None
        file = self._data.find(unit.pos) if unit is not None else None
        header = self._view.header(file, unit.pos) if file is not None and unit is not None else None
        if header is not None and header.index == index:
            return header.pos
        return max(begin.pos, self._data.files[-3:][0].base)

    def _lower_checkpoint(self, committed: int, end_index: int) -> None:
        """Lower the checkpoint before entries from `end_index` on are removed, because it vouches for them."""
        if max(self._walk.committed, self._walk.durable) >= end_index:
            write_checkpoint(self._node_dir, committed, end_index - 1)

    def _sync_found(self, begin: NextEntry) -> None:
        """Make all files durable: the process that wrote them may have been killed before a sync."""
        self._data.sync()
        for file in self._data.files:
            sync_file(file.path)
        for file in self._index.files:
            if file.end > begin.index * INDEX_UNIT_SIZE:
                sync_file(file.path)
        for folder in {file.path.parent for file in (*self._data.files, *self._index.files)}:
            sync_dir(folder)

    def _truncate_index(self, begin: NextEntry, end: NextEntry) -> None:
        """Remove units before the begin and after the end, durably, before the data is truncated."""
        self._delete_unusable_index()
        self._index.delete_before(begin.index * INDEX_UNIT_SIZE)
        if self._index.files:
            self._index.truncate(end.index * INDEX_UNIT_SIZE)
        self._index.sync()

    def _write_index(self, end: NextEntry) -> None:
        """Write the missing units."""
        for file, first, stop in self._walk.unindexed:
            if first.pos < end.pos:
                part = self._data.read(file, first.pos, min(stop, end.pos))
                units = self._engine.check_entries(part, first.index, first.pos, first.term, INT64_MAX).units
                self._index.write(first.index * INDEX_UNIT_SIZE, units)

    def _delete_unusable_index(self) -> None:
        """Delete unusable index files: all of them if they do not contain the first entry's unit."""
        for path in self._unusable:
            path.unlink()
        if not self._view.has_index:
            self._index.delete(self._index.release())
            self._view.has_index = True

    def _save_tail(self, pos: int) -> str:
        """Copy the bytes from a position on to a side file, durably; holes stay holes. Returns its path."""
        number = 0
        while (path := self._node_dir / f"cut-{pos}-{number}.bin").exists():
            number += 1
        with path.open("xb") as side:
            for file in self._data.files:
                if file.end > pos:
                    _copy(file, max(pos, file.base), side.fileno(), pos)
            os.fsync(side.fileno())
        sync_dir(self._node_dir)
        return str(path)


def _write_again(files: MappedFileList, start: int, stop: int) -> None:
    """Write the bytes ``[start, stop)`` of a log again, so that the next sync writes them to the disk."""
    for file in files.files:
        low, high = max(start, file.base), min(stop, file.end)
        for pos in range(low, high, _COPIED_BYTES):
            file.write(pos, bytes(files.read(file, pos, min(pos + _COPIED_BYTES, high))))


def _copy(file: MappedFile, start: int, target: int, origin: int) -> None:
    """Copy a file's data from a position on; `origin` is the position of the target's first byte."""
    source = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for low, high in data_extents(source, start - file.base, file.size):
            for offset in range(low, high, _COPIED_BYTES):
                data = os.pread(source, min(_COPIED_BYTES, high - offset), offset)
                write_at(target, data, file.base + offset - origin)
    finally:
        os.close(source)
