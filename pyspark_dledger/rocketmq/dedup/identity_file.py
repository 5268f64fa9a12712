"""Run files: the identities of a range of committed entries, sorted, beside the log and never in its folder ``data/``.

A file begins with `_HEADER`. Then come, each little-endian and 8 bytes wide: the producers, ascending; where the
identities of each begin; the two halves of the identities' hashes, by producer and then by hash; their entries'
indexes. Of everything that is in a file the log holds the original, so that a damaged one is dropped, and read anew.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.encode.puts import ID_SIZE
from pyspark_dledger.rocketmq.message_arrays import Longs

Words = npt.NDArray[np.uint64]

# Magic, first and last index, term of the last, first and last store timestamp, identities, producers; the CRC-32 of
# what follows the header; the CRC-32 of the header up to there.
_HEADER = struct.Struct("<8sqqqqqqqII")
_HEADER_CRC = struct.Struct("<I")
_MAGIC = b"DLIDRUN1"
_WORD = np.dtype("<u8")
_LONG = np.dtype("<i8")
_MOST_SHORT = 1 << 16
_SUFFIX = ".ids"
_UNFINISHED = ".tmp"


@dataclass(frozen=True)
class EntryRange:
    """The entries that a run covers: all of ``[first_index, last_index]``, with or without identities.

    ``last_term`` is that of the last entry. Store timestamps are the first and the last message's, in milliseconds.
    """

    first_index: int
    last_index: int
    last_term: int
    first_store_timestamp: int
    last_store_timestamp: int

    def contains(self, other: EntryRange) -> bool:
        return self.first_index <= other.first_index and other.last_index <= self.last_index


@dataclass(frozen=True)
class IdentityArrays:
    """Identities as three words each (producer, and the halves of the hash), and the indexes of their entries."""

    producer: Words
    first: Words
    second: Words
    index: Longs

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def is_one_producer(self) -> bool:
        return not len(self) or bool((self.producer == self.producer[0]).all())

    def take(self, which: npt.NDArray[np.int64]) -> IdentityArrays:
        return IdentityArrays(self.producer[which], self.first[which], self.second[which], self.index[which])


def identified(ids: bytes, index: Longs) -> IdentityArrays:
    """Identities of 24 bytes each, as they stand one behind the other."""
    words = np.frombuffer(ids, _WORD).reshape(-1, ID_SIZE // _WORD.itemsize)
    return IdentityArrays(words[:, 0], words[:, 1], words[:, 2], index)


def joined(parts: Sequence[IdentityArrays]) -> IdentityArrays:
    """All of several, in that order."""
    return IdentityArrays(
        np.concatenate([np.empty(0, _WORD), *(part.producer for part in parts)]),
        np.concatenate([np.empty(0, _WORD), *(part.first for part in parts)]),
        np.concatenate([np.empty(0, _WORD), *(part.second for part in parts)]),
        np.concatenate([np.empty(0, _LONG), *(part.index for part in parts)]),
    )


class IdentityFile:
    """A run file, mapped. Raises ValueError where it is damaged, OSError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
        self.range, self.count, producers, crc = _parsed(header)
        size = _HEADER.size + 2 * 8 * producers + 3 * 8 * self.count
        if path.stat().st_size != size:
            raise ValueError(f"{path}: expected {size} bytes, found {path.stat().st_size}")
        # Not as a memmap, of which each slice costs microseconds.
        data = np.asarray(np.memmap(path, np.uint8, "r")) if size > _HEADER.size else np.empty(0, np.uint8)
        if crc32(data[_HEADER.size :].data) != crc:
            raise ValueError(f"{path}: expected contents of CRC {crc}, found others")
        words = data[_HEADER.size :].view(_WORD)
        cuts = np.cumsum([producers, producers, self.count, self.count])
        self._producers, starts, self._first, self._second, index = np.split(words, cuts)
        self._starts = np.append(starts.view(_LONG), self.count)
        self._index: Longs = index.view(_LONG)
        self._asked = (-1, slice(0, 0))

    def has_producer(self, producer: int) -> bool:
        section = self._section(producer)
        return section.start < section.stop

    def _section(self, producer: int) -> slice:
        """Where the identities of a producer are; the last one that was asked for is asked for again and again."""
        if producer != self._asked[0]:
            self._asked = producer, self._find_section(producer)
        return self._asked[1]

    def _find_section(self, producer: int) -> slice:
        at = int(np.searchsorted(self._producers, np.uint64(producer)))
        if at == len(self._producers) or int(self._producers[at]) != producer:
            return slice(0, 0)
        return slice(int(self._starts[at]), int(self._starts[at + 1]))

    def find(self, producer: int, first: Words, second: Words) -> Longs:
        """The index of the last entry with each of one producer's identities; -1 where none is there."""
        section = self._section(producer)
        keys = self._first[section]
        found = np.full(len(first), -1, np.int64)
        if not len(keys):
            return found
        at = np.searchsorted(keys, first, "right") - 1
        same = np.flatnonzero((at >= 0) & (keys[at] == first))
        is_whole = self._second[section][at[same]] == second[same]
        found[same[is_whole]] = self._index[section][at[same[is_whole]]]
        # One hash in 2^64 has a neighbour with the same first half, so this is done one by one.
        for place in same[~is_whole].tolist():
            found[place] = self._last(section, int(at[place]), int(first[place]), int(second[place]))
        return found

    def _last(self, section: slice, at: int, first: int, second: int) -> int:
        keys, others = self._first[section], self._second[section]
        while at >= 0 and int(keys[at]) == first:
            if int(others[at]) == second:
                return int(self._index[section][at])
            at -= 1
        return -1

    def all(self) -> IdentityArrays:
        """Every identity of it, in the order of the file."""
        counts = np.diff(self._starts)
        return IdentityArrays(np.repeat(self._producers, counts), self._first, self._second, self._index)


def _parsed(header: bytes) -> tuple[EntryRange, int, int, int]:
    """The range, how many identities and producers, and the CRC of what follows."""
    if len(header) < _HEADER.size:
        raise ValueError(f"expected a header of {_HEADER.size} bytes, found {len(header)}")
    magic, first, last, term, begin, end, count, producers, crc, header_crc = _HEADER.unpack(header)
    if magic != _MAGIC or crc32(header[: -_HEADER_CRC.size]) != header_crc:
        raise ValueError("expected the header of a run of identities, found another")
    return EntryRange(first, last, term, begin, end), count, producers, crc


def write_run(folder: Path, covered: EntryRange, found: IdentityArrays, *, is_durable: bool) -> IdentityFile:
    """Write a run, and give it opened. Raises OSError where that fails; nothing, or all of it, is there then.

    What is ``is_durable`` survives a loss of power: a run that is put in the place of others has to.
    """
    order = _sorted_order(found)
    ordered = found.take(order)
    producers, starts = np.unique(ordered.producer, return_index=True)
    columns = (producers, starts, ordered.first, ordered.second, ordered.index)
    parts = [np.ascontiguousarray(column).astype("<i8" if column.dtype.kind == "i" else "<u8") for column in columns]
    crc = 0
    for part in parts:
        crc = crc32(part.data, crc)
    front = _HEADER.pack(
        _MAGIC,
        covered.first_index,
        covered.last_index,
        covered.last_term,
        covered.first_store_timestamp,
        covered.last_store_timestamp,
        len(found),
        len(producers),
        crc,
        0,
    )[: -_HEADER_CRC.size]
    path = folder / f"{covered.first_index:020}-{covered.last_index:020}{_SUFFIX}"
    unfinished = path.with_suffix(_UNFINISHED)
    with unfinished.open("wb") as file:
        file.write(front + _HEADER_CRC.pack(crc32(front)))
        for part in parts:
            file.write(part.data)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    return IdentityFile(path)


def _sorted_order(found: IdentityArrays) -> Longs:
    """By producer, hash and index: of what stands in the order of the log, equal ones stay in it."""
    order: Longs = np.argsort(found.first)
    ordered = found.first[order]
    if (ordered[1:] == ordered[:-1]).any():
        # Some are equal, as nearly never: only here does it matter what decides then.
        return np.lexsort((found.second, found.first, found.producer))
    if found.is_one_producer:
        return order
    producers, number = np.unique(found.producer, return_inverse=True)
    # Numbers of 16 bits are sorted by counting.
    short = number.astype(np.uint16 if len(producers) < _MOST_SHORT else np.int64)
    return order[np.argsort(short[order], kind="stable")]


def run_files(folder: Path) -> list[Path]:
    """The files of a folder that are runs by their names. Unfinished ones are deleted."""
    for unfinished in folder.glob(f"*{_UNFINISHED}"):
        unfinished.unlink()
    return sorted(folder.glob(f"*{_SUFFIX}"))
