"""Writes logs as Java does, with truncation: what was truncated stays in the files until it is overwritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.dispatched_rows import Keys, key_hash
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from tests.support.queues import Unit, write_units

Body = Callable[[int], bytes]
"""A body for the position at which it begins; always of the same length."""

MIN_BLANK = layout.MIN_BLANK_SIZE
KEYS_PER_FILE = 150
NOW_MS = 1_700_000_000_137


class Written(NamedTuple):
    """An entry or old message of the log."""

    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int


class WrittenFiles:
    """Files of one size, by base. A file is made of `stale` bytes for its base, else of zeros."""

    def __init__(self, size: int, base: int = 0, stale: Callable[[int], bytes] | None = None) -> None:
        self.size = size
        self.first = base
        self.files: dict[int, bytearray] = {}
        self._stale = stale

    def base_of(self, pos: int) -> int:
        return pos - (pos - self.first) % self.size

    def write(self, pos: int, data: bytes) -> None:
        base = self.base_of(pos)
        if base not in self.files:
            stale = self._stale(base) if self._stale else b""
            self.files[base] = bytearray(stale[: self.size].ljust(self.size, b"\0"))
        content = self.files[base]
        assert pos + len(data) <= base + self.size, "it does not fit a file"
        content[pos - base : pos - base + len(data)] = data

    def drop_from(self, pos: int) -> None:
        """Remove the files that begin at or after `pos`, as Java's truncation does."""
        self.files = {base: content for base, content in self.files.items() if base < pos}

    def save(self, *folders: Path) -> None:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        for number, (base, content) in enumerate(sorted(self.files.items())):
            (folders[number % len(folders)] / f"{base:020}").write_bytes(content)


class DLedgerWriter:
    """A DLedger log and its index. `pos_shift` is what a 0.4.0 leader's positions are less than the own ones."""

    def __init__(
        self,
        file_size: int,
        index_units: int,
        base: int = 0,
        first_index: int = 0,
        leading_blank: int = 0,
        pos_shift: int = 0,
        stale: Callable[[int], bytes] | None = None,
        stale_index: Callable[[int], bytes] | None = None,
    ) -> None:
        self.data = WrittenFiles(file_size, base, stale)
        self.index = WrittenFiles(index_units * layout.INDEX_UNIT_SIZE, 0, stale_index)
        self.entries: list[Written] = []
        self.at = base
        self._next = first_index
        self._pos_shift = pos_shift
        if leading_blank:
            self.data.write(base, codec.encode_blank(leading_blank))
            self.at += leading_blank

    def append(self, body: Body, term: int, magic: int = layout.MAGIC_NORMAL) -> Written:
        size = layout.ENTRY_HEADER_SIZE + len(body(0))
        left = self.data.base_of(self.at) + self.data.size - self.at
        if size + MIN_BLANK > left:
            self.data.write(self.at, codec.encode_blank(left))
            self.at += left
        pos, index = self.at, self._next
        content = body(pos + layout.ENTRY_HEADER_SIZE)
        self.data.write(pos, codec.encode_entry(index, term, pos - self._pos_shift, content, magic=magic))
        unit = codec.IndexUnit(magic, pos, size, index, term)
        self.index.write(index * layout.INDEX_UNIT_SIZE, codec.encode_index_unit(unit))
        self.entries.append(Written(pos, size, index, term))
        self.at += size
        self._next += 1
        return self.entries[-1]

    def truncate(self, kept: int) -> None:
        """Keep the first `kept` entries."""
        self.at = self.entries[kept].pos
        self._next = self.entries[kept].index
        del self.entries[kept:]
        self.data.drop_from(self.at)
        self.index.drop_from(self._next * layout.INDEX_UNIT_SIZE)

    def save(
        self,
        node: Path,
        data_dirs: tuple[Path, ...] = (),
        committed: int | None = None,
        end_index: int | None = None,
        current_term: int | None = None,
    ) -> None:
        """Write the files; by default the checkpoint's end and the current term are those of the last entry."""
        self.data.save(*(data_dirs or (node / "data",)))
        self.index.save(node / "index")
        last = self.entries[-1]
        end_index = last.index if end_index is None else end_index
        current_term = last.term if current_term is None else current_term
        if committed is not None:
            (node / "checkpoint").write_text(f"committedIndex={committed}\nendIndex={end_index}\n")
        (node / "currterm").write_text(f"voteLeader=n0\ncurrTerm={current_term}\n")


class CommitLogWriter:
    """The old CommitLog of a broker."""

    def __init__(self, file_size: int, base: int = 0, stale: Callable[[int], bytes] | None = None) -> None:
        self.data = WrittenFiles(file_size, base, stale)
        self.entries: list[Written] = []
        self.at = base

    def append(self, message: Body) -> Written:
        size = len(message(0))
        left = self.data.base_of(self.at) + self.data.size - self.at
        if size + MIN_BLANK > left:
            self.fill()
        pos = self.at
        self.data.write(pos, message(pos))
        self.entries.append(Written(pos, size, -1, -1))
        self.at += size
        return self.entries[-1]

    def fill(self) -> None:
        """Write the filler up to the end of the file."""
        left = self.data.base_of(self.at) + self.data.size - self.at
        filler = left.to_bytes(4, "big") + layout.MESSAGE_MAGIC_BLANK.to_bytes(4, "big", signed=True)
        self.data.write(self.at, filler)
        self.at += left


class QueueWriter:
    """The ConsumeQueues of a broker, and its IndexFiles."""

    def __init__(self, root: Path, units: int = 100) -> None:
        self._root = root
        self._file_size = units * layout.CONSUME_QUEUE_UNIT_SIZE
        self._units: list[Unit] = []
        self._counts: Counter[tuple[str, int]] = Counter()
        self._keys: list[tuple[int, int]] = []

    def offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next message."""
        return self._counts[topic, queue_id]

    def add(self, topic: str, queue_id: int, offset: int, size: int) -> None:
        self._units.append(Unit(topic, queue_id, self.offset(topic, queue_id), offset, size, 0))
        self._counts[topic, queue_id] += 1

    def add_key(self, topic: str, key: str, offset: int) -> None:
        self._keys.append((offset, key_hash(topic, key)))

    def save(self) -> None:
        if self._keys:
            offset, hashes = np.array(self._keys, np.int64).T
            index = IndexWriter(self._root, 16, KEYS_PER_FILE, now=lambda: NOW_MS)
            index.put(Keys(offset, np.full(len(offset), NOW_MS), hashes))
            index.flush()
            index.close()
        write_units(self._root, self._units, self._file_size)
