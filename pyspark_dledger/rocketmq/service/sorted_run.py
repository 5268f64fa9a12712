"""Sorted runs: immutable files with the identities of a range of committed entries, outside the folder ``data/``.

A file begins with `_HEADER`. Then follow, little-endian and 8 bytes each: the producer ids, ascending; the start of
each producer's identities; both halves of the identities' hashes, by producer and hash; the indexes of their entries.
The log has everything that a run has, so a damaged run is deleted and read again from the log.

Both halves of an identity's hash are as good as random. The producer id distinguishes messages with equal content.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.durable import open_own, write_durably
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.dispatched_rows import Longs
from pyspark_dledger.format.encode.encoded import ID_SIZE, Buffer
from pyspark_dledger.format.engine import map_whole
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.io.files import read_start

Words = npt.NDArray[np.uint64]

WORD = np.dtype("<u8")
_LONG = np.dtype("<i8")


@dataclass(frozen=True)
class IdentityArrays:
    """Identities as three words each, the producer id and both halves of the hash; ``index`` is their entry's."""

    producer: Words
    first: Words
    second: Words
    index: Longs

    def __len__(self) -> int:
        return len(self.index)

    def ids(self) -> bytes:
        """Consecutive identities of 24 bytes each."""
        return np.stack((self.producer, self.first, self.second), axis=1).astype(WORD, copy=False).tobytes()

    def take(self, which: npt.NDArray[np.int64]) -> IdentityArrays:
        return IdentityArrays(self.producer[which], self.first[which], self.second[which], self.index[which])


def identity_arrays(ids: bytes, index: Longs) -> IdentityArrays:
    """Arrays of consecutive identities of 24 bytes each."""
    words = np.frombuffer(ids, WORD).reshape(-1, ID_SIZE // WORD.itemsize)
    return IdentityArrays(words[:, 0], words[:, 1], words[:, 2], index)


def concatenated(parts: Sequence[IdentityArrays]) -> IdentityArrays:
    """All identities of the parts, in their order."""
    return IdentityArrays(
        np.concatenate([np.empty(0, WORD), *(part.producer for part in parts)]),
        np.concatenate([np.empty(0, WORD), *(part.first for part in parts)]),
        np.concatenate([np.empty(0, WORD), *(part.second for part in parts)]),
        np.concatenate([np.empty(0, _LONG), *(part.index for part in parts)]),
    )


# Magic, first and last index, term of the last, first and last store timestamp, identities, producers; the CRC-32 of
# what follows the header; the CRC-32 of the header up to here.
_HEADER = struct.Struct("<8sqqqqqqqII")
_HEADER_CRC = struct.Struct("<I")
_MAGIC = b"DLIDRUN1"
_MAX_UINT16_PRODUCERS = 1 << 16
_SUFFIX = ".ids"
# Up to so many identities are searched for one by one, each in one page.
_FEW = 64
_PAGE_WORDS = 512
_UNFINISHED = ".tmp"


@dataclass(frozen=True)
class CoveredRange:
    """The entries that a run covers: all of ``[first_index, last_index]``, with or without identities.

    ``last_term`` is that of the last entry. Store timestamps are the first and the last message's, in milliseconds.
    """

    first_index: int
    last_index: int
    last_term: int
    first_store_timestamp: int
    last_store_timestamp: int

    def contains(self, other: CoveredRange) -> bool:
        return self.first_index <= other.first_index and other.last_index <= self.last_index


class SortedRun:
    """A memory-mapped run. Raises ValueError if it is damaged, OSError or StoreError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.range, self.count, producers, crc = _parsed(read_start(path, _HEADER.size))
        size = _HEADER.size + 2 * 8 * producers + 3 * 8 * self.count
        if path.stat().st_size != size:
            raise ValueError(f"{path}: expected {size} bytes, found {path.stat().st_size}")
        self._file = map_whole(str(path))
        self.data = self._file.view
        """All bytes of the file, also after it was deleted."""
        data = np.frombuffer(self.data, np.uint8)
        if (found := crc32(data[_HEADER.size :].data)) != crc:
            raise ValueError(f"{path}: expected contents with CRC {crc:08x}, found {found:08x}")
        words = data[_HEADER.size :].view(WORD)
        self._first_at = _HEADER.size + 2 * 8 * producers
        cuts = np.cumsum([producers, producers, self.count, self.count])
        self._producers, starts, self._first, self._second, index = np.split(words, cuts)
        # In memory: producers, and the first identity of each page.
        self._producers = self._producers.copy()
        self._heads = self._first[::_PAGE_WORDS].copy()
        self._starts = np.append(starts.view("<i8"), self.count)
        self._index: Longs = index.view("<i8")
        self._last_section = (-1, slice(0, 0))
        # The checksum does not prove that a member wrote it so.
        if (producers and self._starts[0] != 0) or (self._producers[1:] <= self._producers[:-1]).any():
            raise ValueError(f"{path}: expected producers in ascending order, found others")
        if (np.diff(self._starts) < 0).any():
            raise ValueError(f"{path}: expected identities by producer, found others")

    def check_readable(self) -> None:
        """Raises UnreadableError if any byte so far could not be read: the identities may then be wrong.

        A node ends with it. When it starts, it drops the run, and reads the identities from the log.
        """
        if not self._file.is_intact():
            raise UnreadableError(str(self.path), "the file has become shorter, or the disk has failed")

    def has_producer(self, producer: int) -> bool:
        section = self._section(producer)
        return section.start < section.stop

    def _section(self, producer: int) -> slice:
        """The identities of a producer; cached for the last producer, which most calls repeat."""
        if producer != self._last_section[0]:
            at = int(np.searchsorted(self._producers, np.uint64(producer)))
            is_there = at < len(self._producers) and int(self._producers[at]) == producer
            section = slice(int(self._starts[at]), int(self._starts[at + 1])) if is_there else slice(0, 0)
            self._last_section = producer, section
        return self._last_section[1]

    def find(self, producer: int, first: Words, second: Words) -> Longs:
        """The index of the last entry with each of one producer's identities; -1 for unknown ones.

        Raises UnreadableError.
        """
        section = self._section(producer)
        keys = self._first[section]
        found = np.full(len(first), -1, np.int64)
        if not len(keys):
            self.check_readable()
            return found
        at = self._search(section, first)
        same = np.flatnonzero((at >= 0) & (keys[at] == first))
        is_equal = self._second[section][at[same]] == second[same]
        found[same[is_equal]] = self._index[section][at[same[is_equal]]]
        # One hash in 2^64 has a neighbour with the same first half, so these are searched one by one.
        for number in same[~is_equal].tolist():
            found[number] = self._find_before(section, int(at[number]), int(first[number]), int(second[number]))
        self.check_readable()
        return found

    def _search(self, section: slice, first: Words) -> Longs:
        """Where in a section the last identity at or before each of these is; -1 before the section."""
        if len(first) > _FEW:
            return np.searchsorted(self._first[section], first, "right") - 1
        at = np.empty(len(first), np.int64)
        for number, word in enumerate(first):
            low, high = self._page(section, word)
            at[number] = low + np.searchsorted(self._first[low:high], word, "right") - 1 - section.start
        return at

    def _page(self, section: slice, word: np.uint64) -> tuple[int, int]:
        """The part of a section, at most a page, that has the last identity at or before `word`."""
        head, end = -(-section.start // _PAGE_WORDS), -(-section.stop // _PAGE_WORDS)
        after = int(np.searchsorted(self._heads[head:end], word, "right"))
        low = (head + after - 1) * _PAGE_WORDS if after else section.start
        return low, min((head + after) * _PAGE_WORDS, section.stop)

    def is_loaded(self, producer: int, first: Words) -> bool:
        """Whether `find` needs no disk for these identities; False for many."""
        section = self._section(producer)
        if len(first) > _FEW:
            return section.start == section.stop
        is_loaded, base = self._file.is_loaded, self._first_at
        for word in first if section.start < section.stop else ():
            low, high = self._page(section, word)
            if not all(is_loaded(base + 8 * at) for at in (low, max(high - 1, low))):
                return False
            at = low + int(np.searchsorted(self._first[low:high], word, "right")) - 1
            columns = (1, 2) if at >= section.start and self._first[at] == word else ()
            if not all(is_loaded(base + 8 * (column * self.count + at)) for column in columns):
                return False
        return True

    def _find_before(self, section: slice, at: int, first: int, second: int) -> int:
        keys, others = self._first[section], self._second[section]
        while at >= 0 and int(keys[at]) == first:
            if int(others[at]) == second:
                return int(self._index[section][at])
            at -= 1
        return -1

    def of_producer(self, producer: int) -> IdentityArrays:
        """The identities of a producer. Call `check_readable` after they were read."""
        section = self._section(producer)
        first = self._first[section]
        producers = np.full(len(first), producer, WORD)
        return IdentityArrays(producers, first, self._second[section], self._index[section])

    def all(self) -> IdentityArrays:
        """All identities, in the order of the file. Call `check_readable` after they were read."""
        counts = np.diff(self._starts)
        return IdentityArrays(np.repeat(self._producers, counts), self._first, self._second, self._index)


def _parsed(header: bytes) -> tuple[CoveredRange, int, int, int]:
    """The range, the numbers of identities and producers, and the CRC of what follows."""
    if len(header) < _HEADER.size:
        raise ValueError(f"expected a header of {_HEADER.size} bytes, found {len(header)}")
    magic, first, last, term, begin, end, count, producers, crc, header_crc = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise ValueError(f"expected the magic {_MAGIC!r} of a sorted run, found {magic!r}")
    if (found := crc32(header[: -_HEADER_CRC.size])) != header_crc:
        raise ValueError(f"expected a header with CRC {header_crc:08x}, found {found:08x}")
    if count < 0 or producers < 0:
        raise ValueError(f"expected numbers of identities and producers, found {count} and {producers}")
    return CoveredRange(first, last, term, begin, end), count, producers, crc


def write_run(folder: Path, covered: CoveredRange, found: IdentityArrays, *, is_durable: bool) -> SortedRun:
    """Write a run and open it. Raises OSError if that fails; the file then does not exist.

    A run with ``is_durable`` survives a power loss, which one that replaces others has to.
    """
    order = _sorted_order(found)
    ordered = found.take(order)
    starts = _starts(ordered.producer)
    producers = ordered.producer[starts]
    columns = (producers, starts, ordered.first, ordered.second, ordered.index)
    parts = [np.ascontiguousarray(column, "<i8" if column.dtype.kind == "i" else "<u8") for column in columns]
    crc = 0
    for part in parts:
        crc = crc32(part.data, crc)
    packed = _HEADER.pack(_MAGIC, *astuple(covered), len(found), len(producers), crc, 0)
    header = packed[: -_HEADER_CRC.size]
    path = _path_of(folder, covered)
    unfinished = path.with_suffix(_UNFINISHED)
    with open(open_own(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(header + _HEADER_CRC.pack(crc32(header)))
        for part in parts:
            file.write(part.data)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    return SortedRun(path)


def copy_run(folder: Path, data: Buffer) -> SortedRun:
    """Write the bytes of another member's run, durably, and open it. Raises ValueError if they are damaged, OSError."""
    covered, *_ = _parsed(bytes(data[: _HEADER.size]))
    if not 0 <= covered.first_index <= covered.last_index:
        raise ValueError(f"expected a run of entries, found indexes {covered.first_index} to {covered.last_index}")
    path = _path_of(folder, covered)
    unfinished = path.with_suffix(_UNFINISHED)
    write_durably(unfinished, data)
    run = SortedRun(unfinished)
    unfinished.replace(path)
    run.path = path
    return run


def _path_of(folder: Path, covered: CoveredRange) -> Path:
    return folder / f"{covered.first_index:020}-{covered.last_index:020}{_SUFFIX}"


def _sorted_order(found: IdentityArrays) -> Longs:
    """By producer, hash and index: equal identities keep the order of the log."""
    order: Longs = np.argsort(found.first)
    starts = _starts(found.producer)
    if len(starts) > 1:
        # Messages of one producer often follow each other: then few producers are sorted.
        producers, number = np.unique(found.producer[starts], return_inverse=True)
        # numpy sorts 16-bit numbers by counting.
        short = number.astype(np.uint16 if len(producers) < _MAX_UINT16_PRODUCERS else np.int64)
        short = np.repeat(short, np.diff(starts, append=len(order)))
        order = order[np.argsort(short[order], kind="stable")]
    first, producer = found.first[order], found.producer[order]
    if ((first[1:] == first[:-1]) & (producer[1:] == producer[:-1])).any():
        # Rare; only equal first halves of one producer need the full comparison.
        return np.lexsort((found.second, found.first, found.producer))
    return order


def _starts(values: Words) -> Longs:
    """Where consecutive equal values begin."""
    return np.flatnonzero(np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]]))


def run_paths(folder: Path) -> list[Path]:
    """The sorted runs of a folder, by name. Unfinished files are deleted."""
    for unfinished in folder.glob(f"*{_UNFINISHED}"):
        unfinished.unlink()
    return sorted(folder.glob(f"*{_SUFFIX}"))
