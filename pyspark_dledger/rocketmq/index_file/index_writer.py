"""Writes RocketMQ's index of message keys, file after file.

What a file's header says is on disk. Source: RocketMQ 5.3.3 ``IndexService.buildIndex``,
``retryGetAndCreateIndexFile``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.rocketmq.index_file.index_file import FOLDER, IndexHeader, Keys, index_files, read_header
from pyspark_dledger.rocketmq.index_file.index_file_writer import IndexFileWriter, has_units, slots_of

HASH_SLOTS = 5_000_000
INDEX_UNITS = 20_000_000
"""RocketMQ's defaults (``maxHashSlotNum``, ``maxIndexNum``). The unit with number 0 is never used."""


class IndexWriter:
    """Writes the files below ``root/index``, from one thread. Raises OSError if the disk fails.

    The last file keeps its numbers of slots and units; new files get those given. `now` returns the milliseconds since
    1970 that name a new file.
    """

    def __init__(
        self,
        root: Path,
        hash_slots: int = HASH_SLOTS,
        index_units: int = INDEX_UNITS,
        now: Callable[[], int] = now_ms,
    ) -> None:
        self._root = root
        self._slots, self._units = hash_slots, index_units
        self._now = now
        self._file: IndexFileWriter | None = None
        self._full: list[IndexFileWriter] = []  # not flushed yet
        # The last message whose keys are written, and how many of them.
        self._done, self._done_keys = -1, 0

    def sort_out(self, is_wrong: Callable[[IndexHeader], bool]) -> tuple[IndexHeader | None, list[Path]]:
        """The header of the last sound file, and the files after it, which the caller deletes.

        A file is wrong if `is_wrong` says so, or if its header, slots and units do not match; then all later files are
        wrong, too. Files without units are deleted here.
        """
        kept: list[tuple[Path, IndexHeader]] = []
        wrong: list[Path] = []
        for path in index_files(self._root):
            header = read_header(path)
            if header is not None and header.index_count <= 1:
                path.unlink()
            elif wrong or header is None or is_wrong(header) or not has_units(path, header):
                wrong.append(path)
            else:
                kept.append((path, header))
        if kept and slots_of(*kept[-1]) is None:
            wrong.insert(0, kept.pop()[0])
        return (kept[-1][1] if kept else None), wrong

    def resume(self) -> None:
        """Continue in the last file, which `sort_out` has found sound, after its last message."""
        files = index_files(self._root)
        if not files:
            return
        file = IndexFileWriter.open(files[-1])
        self._done, self._done_keys = file.header.end_phy_offset, file.count_last()
        self._done_keys += _count_before(files[:-1], file)
        if file.room:
            self._file = file
        else:
            self._full.append(file)

    def put(self, keys: Keys) -> None:
        """Add keys in the order of the log, those of a message together; keys that are there already are skipped."""
        low, high = np.searchsorted(keys.offset, [self._done, self._done + 1]).tolist()
        keys = keys[min(low + self._done_keys, high) :]
        while len(keys):
            file = self._writable()
            part, keys = keys[: file.room], keys[file.room :]
            file.put(part)
            self._note_done(part)

    def _note_done(self, part: Keys) -> None:
        last = int(part.offset[-1])
        count = len(part) - int(np.searchsorted(part.offset, last))
        self._done_keys = count + (self._done_keys if last == self._done else 0)
        self._done = last

    def _writable(self) -> IndexFileWriter:
        if self._file is not None and self._file.room:
            return self._file
        if self._file is not None:
            self._full.append(self._file)
        before = self._full[-1].header if self._full else None
        self._file = IndexFileWriter.create(self._new_path(), self._slots, self._units, before)
        return self._file

    def _new_path(self) -> Path:
        """The local time in milliseconds, or the next name after all others."""
        folder = self._root / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        last = max((path.name for path in index_files(self._root)), default="")
        name = _file_name(self._now())
        # A local clock goes back each autumn.
        return folder / (name if name > last else f"{int(last) + 1:0{len(last)}}")

    def flush(self) -> None:
        """Write slots and headers, and make everything durable."""
        for file in self._full:
            file.flush()
        # A new file's header begins with the end of the last full one, which therefore stays open until there is one.
        for file in self._full[:-1] if self._file is None else self._full:
            file.close()
        self._full = self._full[-1:] if self._file is None else []
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        for file in (*self._full, *([self._file] if self._file is not None else [])):
            file.close()
        self._file, self._full = None, []

    def delete_before(self, min_offset: int) -> int:
        """Delete files of messages before a position of the log, but not the last file. Returns how many."""
        count = 0
        for path in index_files(self._root)[:-1]:
            header = read_header(path)
            if header is None or header.end_phy_offset >= min_offset:
                break
            path.unlink()
            count += 1
        return count


def _count_before(files: list[Path], last: IndexFileWriter) -> int:
    """How many keys of the last message are in files before the last one."""
    count, offset, has_more = 0, last.header.end_phy_offset, last.has_one_message
    for path in reversed(files):
        header = read_header(path)
        if not has_more or header is None or header.end_phy_offset != offset:
            break
        before = IndexFileWriter.open(path)
        count, has_more = count + before.count_last(), before.has_one_message
        before.close()
    return count


def _file_name(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{rest:03}"
