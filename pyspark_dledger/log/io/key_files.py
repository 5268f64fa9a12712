"""Reads RocketMQ's index of message keys, the IndexFiles ``index/<time>``.

A file is a header, hash slots of 4 bytes and units of 20 bytes. A slot has the number of the newest unit of its hashes,
a unit the number of the previous one. The numbers of slots and units are a setting of the broker and in no file.
Sources: RocketMQ 5.3.3 ``IndexFile`` (with ``selectPhyOffset``), ``IndexHeader``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.arrow_functions import distinct
from pyspark_dledger.format.codec import decode_records, record_struct
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.format.layout import (
    INDEX_FILE_HEADER,
    INDEX_FILE_HEADER_SIZE,
    INDEX_FILE_SLOT_SIZE,
    INDEX_FILE_UNIT,
    INDEX_FILE_UNIT_SIZE,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import OnUnreadable, is_there, map_reads, raise_error
from pyspark_dledger.log.io.queue_files import folder_entries
from pyspark_dledger.log.io.store_paths import file_size

FOLDER = "index"

_HEADER = record_struct(INDEX_FILE_HEADER)
_NAME = re.compile(r"\d{17}")  # yyyyMMddHHmmssSSS
# RocketMQ's default is four units to a slot (5,000,000 slots); files with another ratio are searched.
_UNITS_PER_SLOT = 4
_UNITS_PER_READ = 64 * 1024
_PROBE = 1024
"""Units of one probe, 20 KiB: a damaged page of 4 KiB does not decide it."""


@dataclass(frozen=True)
class IndexHeader:
    """The first 40 bytes of a file; times in milliseconds since 1970. ``index_count`` is the next unit's number."""

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int


def index_files(root: Path) -> list[Path]:
    """The IndexFiles of a broker, oldest first. Raises UnreadableError, also for a folder in place of a file."""
    names = sorted(entry.name for entry in folder_entries(root / FOLDER) if _NAME.fullmatch(entry.name))
    paths = [root / FOLDER / name for name in names]
    for path in paths:
        if file_size(path) is None and is_there(path):
            raise UnreadableError(str(path), "not a file")
    return paths


def read_header(path: Path) -> IndexHeader | None:
    """The header; None for a shorter file. Like all reads here, raises UnreadableError."""
    data = read_existing(str(path), 0, INDEX_FILE_HEADER_SIZE)
    return IndexHeader(*_HEADER.unpack(data)) if len(data) == INDEX_FILE_HEADER_SIZE else None


def index_capacity(size: int, slots: int) -> int:
    """How many units fit into a file of `size` bytes, including number 0, which is never used."""
    return (size - unit_position(slots, 0)) // INDEX_FILE_UNIT_SIZE


def unit_position(slots: int, number: int) -> int:
    """Where a unit begins in a file with so many slots, in bytes."""
    return INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE + number * INDEX_FILE_UNIT_SIZE


def read_units(path: Path, slots: int, start: int, stop: int) -> npt.NDArray[Any]:
    """The units ``[start, stop)`` of a file; fewer if it is shorter."""
    data = read_existing(str(path), unit_position(slots, start), (stop - start) * INDEX_FILE_UNIT_SIZE)
    return decode_records(data, INDEX_FILE_UNIT)


def newest_unit(path: Path, slot: int) -> int:
    """The number in a slot: that of its newest unit."""
    position = INDEX_FILE_HEADER_SIZE + slot * INDEX_FILE_SLOT_SIZE
    return int.from_bytes(read_existing(str(path), position, INDEX_FILE_SLOT_SIZE), "big", signed=True)


def hash_slots(path: Path) -> int | None:
    """How many hash slots a file has, derived from the positions of its first and last unit; None if nothing fits."""
    header, size = read_header(path), file_size(path)
    if header is None or size is None or size <= INDEX_FILE_HEADER_SIZE:
        return None
    usual, rest = divmod(size - INDEX_FILE_HEADER_SIZE, INDEX_FILE_SLOT_SIZE + _UNITS_PER_SLOT * INDEX_FILE_UNIT_SIZE)
    if _fits(path, header, size, usual):
        return usual
    # Units lie in steps of 20 bytes up to the end of the file, wherever the slots end.
    first = INDEX_FILE_HEADER_SIZE + (size - INDEX_FILE_HEADER_SIZE) % INDEX_FILE_UNIT_SIZE
    for start in range(first, size, _UNITS_PER_READ * INDEX_FILE_UNIT_SIZE):
        data = read_existing(str(path), start, (_UNITS_PER_READ + 1) * INDEX_FILE_UNIT_SIZE)
        cells = decode_records(data, INDEX_FILE_UNIT)
        is_first = (cells["commitLogOffset"][1:] == header.begin_phy_offset) & (cells["keyHash"][1:] != 0)
        for number in np.flatnonzero(is_first).tolist():
            slots = (start + number * INDEX_FILE_UNIT_SIZE - INDEX_FILE_HEADER_SIZE) // INDEX_FILE_SLOT_SIZE
            if not cells[number : number + 1].view(np.uint8).any() and _fits(path, header, size, slots):
                return slots
    return usual if not rest else None


def _fits(path: Path, header: IndexHeader, size: int, slots: int) -> bool:
    """Whether, with so many slots, header, first and last unit, and the last unit's slot agree."""
    last = header.index_count - 1
    if (
        slots < 1
        or (size - unit_position(slots, 0)) % INDEX_FILE_UNIT_SIZE
        or not 1 <= last < index_capacity(size, slots)
    ):
        return False
    units = [read_units(path, slots, number, number + 1) for number in (1, last)]
    if not all(map(len, units)):
        return False
    return (
        int(units[0]["commitLogOffset"][0]) == header.begin_phy_offset
        and int(units[1]["commitLogOffset"][0]) == header.end_phy_offset
        and newest_unit(path, int(units[1]["keyHash"][0]) % slots) == last
    )


def hashes_of_keys(topic: str, properties: Mapping[str, str]) -> set[int]:
    """The hashes that the units of a message have: those of its uniqKey and its keys."""
    keys = [properties.get(PROPERTY_UNIQ_KEY), *(properties.get(PROPERTY_KEYS) or "").split(" ")]
    return {key_hash(topic, key) for key in keys if key}


def hash_of_tags(topic: str, properties: Mapping[str, str]) -> set[int]:
    """The hash that RocketMQ writes for a message's tags from 5.5.0 on (``IndexService.buildKey``); empty without."""
    tags = properties.get(PROPERTY_TAGS)
    return {key_hash(topic, f"T#{tags}")} if tags else set()


class KeyFile:
    """The units of an IndexFile by their numbers; number 0 is never used. Reads raise UnreadableError.

    ``count`` is the next unit's number by the header, at most the file's capacity. ``stop`` is the same, or the
    capacity if the header's number is damaged.
    """

    def __init__(self, path: Path, header: IndexHeader, slots: int) -> None:
        self.path, self.header, self.slots = path, header, slots
        self.capacity = index_capacity(file_size(path) or 0, slots)
        self.count = max(min(header.index_count, self.capacity), 1)
        self.stop = header.index_count if 1 <= header.index_count < self.capacity else self.capacity

    @classmethod
    def opened(cls, path: Path) -> KeyFile | None:
        """A file with a header and slots that fit its units; else None. Raises UnreadableError."""
        header, slots = read_header(path), hash_slots(path)
        return cls(path, header, slots) if header is not None and slots is not None else None

    def position(self, number: int) -> int:
        """Where a unit begins in the file."""
        return unit_position(self.slots, number)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The units ``[start, stop)``; fewer at the file's end."""
        return read_units(self.path, self.slots, start, stop)

    def blocks(self, stop: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The units before number `stop` in blocks, each with the number of its first unit."""
        for first in range(1, stop, _UNITS_PER_READ):
            yield first, self.read(first, min(first + _UNITS_PER_READ, stop))

    def slot_blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The numbers of units in the slots, in blocks, each with the number of its first slot."""
        for first in range(0, self.slots, _UNITS_PER_READ):
            count = min(_UNITS_PER_READ, self.slots - first)
            at = INDEX_FILE_HEADER_SIZE + first * INDEX_FILE_SLOT_SIZE
            yield first, np.frombuffer(read_existing(str(self.path), at, count * INDEX_FILE_SLOT_SIZE), ">i4")

    def unlinked(self) -> int:
        """The number of units that no slot and no later unit points to.

        A slot has the number of its newest unit, and each unit that of the previous one in its slot. Units before an
        unlinked one may not be found either.
        """
        slot_of = np.full(self.count, -1, np.int32)
        linked = np.zeros(self.count, bool)
        for first, units in self.blocks(self.count):
            numbers = np.arange(first, first + len(units))
            slot_of[numbers] = units["keyHash"].astype(np.int64) % self.slots
            previous = units["previous"].astype(np.int64)
            is_before = (previous > 0) & (previous < numbers)
            numbers, previous = numbers[is_before], previous[is_before]
            linked[previous[slot_of[previous] == slot_of[numbers]]] = True
        for first, table in self.slot_blocks():
            heads = np.flatnonzero((table > 0) & (table < self.count))
            newest = table[heads].astype(np.int64)
            linked[newest[slot_of[newest] == heads + first]] = True
        return int(np.count_nonzero(slot_of >= 0) - np.count_nonzero(linked & (slot_of >= 0)))

    def offsets_in(self, start: int, end: int) -> Iterator[npt.NDArray[np.int64]]:
        """The positions of messages in ``[start, end)`` of the log: units are in its order, some can be damaged."""
        probes = range(-(-self.stop // _PROBE))
        first = max(bisect_left(probes, start, key=self._median) - 1, 0)
        for probe in probes[first:]:
            offsets = self._offsets(probe)
            is_inside = (offsets >= start) & (offsets < end)
            if probe > first + 1 and not is_inside.any():
                return
            yield offsets[is_inside]

    def _median(self, probe: int) -> int:
        offsets = self._offsets(probe)
        return int(np.median(offsets)) if len(offsets) else -1

    def _offsets(self, probe: int) -> npt.NDArray[np.int64]:
        units = self.read(max(probe * _PROBE, 1), min((probe + 1) * _PROBE, self.stop))
        return np.asarray(units["commitLogOffset"].astype(np.int64))


def key_files(root: Path, on_unreadable: OnUnreadable = raise_error) -> Iterator[KeyFile]:
    """The IndexFiles of a broker whose units can be read, oldest first."""
    try:
        paths = index_files(root)
    except UnreadableError as error:
        on_unreadable(error)
        return
    for path in paths:
        try:
            file = KeyFile.opened(path)
        except UnreadableError as error:
            on_unreadable(error)
        else:
            if file is not None:
                yield file


def message_starts(start: int, end: int, root: Path) -> npt.NDArray[np.int64]:
    """The positions in ``[start, end)`` that units of any IndexFile have, ascending, each once.

    A unit has the position of its message, not the size. What cannot be read is left out.
    """

    def starts_in(path: Path) -> list[npt.NDArray[np.int64]]:
        try:
            file = KeyFile.opened(path)
            return list(file.offsets_in(start, end)) if file is not None else []
        except UnreadableError:
            return []

    try:
        paths = index_files(root)
    except UnreadableError:
        paths = []
    parts = [part for found in map_reads(starts_in, paths, str(root)) for part in found]
    return distinct(np.concatenate([np.empty(0, np.int64), *parts]))


@dataclass(frozen=True)
class KeyUnit:
    """A unit of an IndexFile: a key's hash, its message's offset, and its time to a second, in microseconds.

    ``number`` is its number in the file, ``position`` where it begins there.
    """

    file: Path
    number: int
    position: int
    key_hash: int
    offset: int
    first_stored: int
    last_stored: int


def key_units(
    root: Path, choose: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]], on_unreadable: OnUnreadable
) -> Iterator[KeyUnit]:
    """The units of all IndexFiles that `choose` selects, oldest first."""
    for file in key_files(root, on_unreadable):
        begin = file.header.begin_timestamp
        try:
            for first, units in file.blocks(file.stop):
                for place in np.flatnonzero(choose(units)).tolist():
                    number, stored = first + place, (begin + int(units["seconds"][place]) * 1000) * 1000
                    key_hash, offset = int(units["keyHash"][place]), int(units["commitLogOffset"][place])
                    at = file.position(number)
                    yield KeyUnit(file.path, number, at, key_hash, offset, stored, stored + 999_999)
        except UnreadableError as error:
            on_unreadable(error)
