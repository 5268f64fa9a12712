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
from typing import Any, NamedTuple

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
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import message_at, read_existing
from pyspark_dledger.log.io.files import OnUnreadable, is_there, map_reads, raise_error
from pyspark_dledger.log.io.queue_files import folder_entries
from pyspark_dledger.log.io.store_paths import file_size

FOLDER = "index"

_HEADER = record_struct(INDEX_FILE_HEADER)
_NAME = re.compile(r"\d{17}")  # yyyyMMddHHmmssSSS
# RocketMQ's default is four units to a slot (5,000,000 slots); files with another ratio are searched.
_UNITS_PER_SLOT = 4
_UNITS_PER_READ = 64 * 1024
_FIRST_BYTES = 256 * 1024
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


def has_slots_in_use(path: Path) -> bool:
    """Whether one of the first slots of a file leads to a unit."""
    return any(read_existing(str(path), INDEX_FILE_HEADER_SIZE, _FIRST_BYTES))


def unit_position(slots: int, number: int) -> int:
    """Where a unit begins in a file with so many slots, in bytes."""
    return INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE + number * INDEX_FILE_UNIT_SIZE


def hashes_of_keys(topic: str, properties: Mapping[str, str]) -> set[int]:
    """The hashes that the units of a message have: those of its uniqKey and its keys."""
    keys = [properties.get(PROPERTY_UNIQ_KEY), *(properties.get(PROPERTY_KEYS) or "").split(" ")]
    return {key_hash(topic, key) for key in keys if key}


def hash_of_tags(topic: str, properties: Mapping[str, str]) -> set[int]:
    """The hash that RocketMQ writes for a message's tags from 5.5.0 on (``IndexService.buildKey``); empty without."""
    tags = properties.get(PROPERTY_TAGS)
    return {key_hash(topic, f"T#{tags}")} if tags else set()


def hashes_at(segments: list[Segment], offset: int) -> set[int] | None:
    """The hashes that the units of the message at a position of the log have; None if it is expired or damaged."""
    found = message_at(segments, offset)
    if found is None:
        return None
    return hashes_of_keys(found.topic, found.properties) | hash_of_tags(found.topic, found.properties)


class KeyFile:
    """The units of an IndexFile by their numbers; number 0 is never used. Reads raise UnreadableError.

    ``count`` is the next unit's number by the header, at most the file's capacity. ``stop`` is the same, or the
    capacity if the header's number is damaged.
    """

    def __init__(self, path: Path, header: IndexHeader, slots: int, size: int) -> None:
        self.path, self.header, self.slots = path, header, slots
        self._is_whole = slots > 0 and not (size - self.position(0)) % INDEX_FILE_UNIT_SIZE
        self.capacity = (size - self.position(0)) // INDEX_FILE_UNIT_SIZE
        self.count = max(min(header.index_count, self.capacity), 1)
        self.stop = header.index_count if 1 <= header.index_count < self.capacity else self.capacity

    @classmethod
    def opened(cls, path: Path) -> KeyFile | None:
        """A file with a header and slots that fit its units; else None. Raises UnreadableError.

        The number of slots follows from the positions of the first and the last unit.
        """
        header, size = read_header(path), file_size(path)
        if header is None or size is None or size <= INDEX_FILE_HEADER_SIZE:
            return None
        by_default = INDEX_FILE_SLOT_SIZE + _UNITS_PER_SLOT * INDEX_FILE_UNIT_SIZE
        slots, rest = divmod(size - INDEX_FILE_HEADER_SIZE, by_default)
        usual = cls(path, header, slots, size)
        if usual.is_consistent():
            return usual
        found = (cls(path, header, slots, size) for slots in _possible_slots(path, header, size))
        return next((file for file in found if file.is_consistent()), usual if not rest else None)

    def is_consistent(self) -> bool:
        """Whether header, first and last unit, and the last unit's slot agree."""
        if not self._is_whole or not self.has_ends():
            return False
        last = self.header.index_count - 1
        return self.newest(int(self.read(last, last + 1)["keyHash"][0]) % self.slots) == last

    def has_ends(self) -> bool:
        """Whether the first and the last unit are those of the header."""
        header, last = self.header, self.header.index_count - 1
        if not 1 <= last < self.capacity:
            return False
        ends = [self.read(number, number + 1)["commitLogOffset"].tolist() for number in (1, last)]
        return ends == [[header.begin_phy_offset], [header.end_phy_offset]]

    def position(self, number: int) -> int:
        """Where a unit begins in the file."""
        return unit_position(self.slots, number)

    def newest(self, slot: int) -> int:
        """The number in a slot: that of its newest unit."""
        position = INDEX_FILE_HEADER_SIZE + slot * INDEX_FILE_SLOT_SIZE
        return int.from_bytes(read_existing(str(self.path), position, INDEX_FILE_SLOT_SIZE), "big", signed=True)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The units ``[start, stop)``; fewer at the file's end."""
        size = (stop - start) * INDEX_FILE_UNIT_SIZE
        return decode_records(read_existing(str(self.path), self.position(start), size), INDEX_FILE_UNIT)

    def unit(self, number: int, record: Any) -> KeyUnit:
        """The unit with a number, and this record."""
        return KeyUnit(self, number, int(record["keyHash"]), int(record["commitLogOffset"]), int(record["seconds"]))

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


class KeyUnit(NamedTuple):
    """A unit of an IndexFile by its number: a key's hash, its message's offset, and seconds after the file's begin."""

    file: KeyFile
    number: int
    key_hash: int
    offset: int
    seconds: int

    @property
    def position(self) -> int:
        """Where it begins in the file."""
        return self.file.position(self.number)

    @property
    def stored(self) -> tuple[int, int]:
        """The first and the last microsecond since 1970 of the second in which its message was stored."""
        first = (self.file.header.begin_timestamp + self.seconds * 1000) * 1000
        return first, first + 999_999


def _possible_slots(path: Path, header: IndexHeader, size: int) -> Iterator[int]:
    """Numbers of slots with which the first unit follows the empty one with number 0."""
    # Units lie in steps of 20 bytes up to the end of the file, wherever the slots end.
    first = INDEX_FILE_HEADER_SIZE + (size - INDEX_FILE_HEADER_SIZE) % INDEX_FILE_UNIT_SIZE
    for start in range(first, size, _UNITS_PER_READ * INDEX_FILE_UNIT_SIZE):
        data = read_existing(str(path), start, (_UNITS_PER_READ + 1) * INDEX_FILE_UNIT_SIZE)
        cells = decode_records(data, INDEX_FILE_UNIT)
        # A key can have the hash 0, and a message the position 0.
        is_unit = (cells["commitLogOffset"][1:] != 0) | (cells["keyHash"][1:] != 0)
        is_first = is_unit & (cells["commitLogOffset"][1:] == header.begin_phy_offset)
        for number in np.flatnonzero(is_first).tolist():
            if not cells[number : number + 1].view(np.uint8).any():
                yield (start + number * INDEX_FILE_UNIT_SIZE - INDEX_FILE_HEADER_SIZE) // INDEX_FILE_SLOT_SIZE


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


def key_units(
    root: Path, choose: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]], on_unreadable: OnUnreadable
) -> Iterator[KeyUnit]:
    """The units of all IndexFiles that `choose` selects, oldest first."""
    for file in key_files(root, on_unreadable):
        try:
            for first, units in file.blocks(file.stop):
                yield from (file.unit(first + place, units[place]) for place in np.flatnonzero(choose(units)).tolist())
        except UnreadableError as error:
            on_unreadable(error)
