"""Finds the parts of a log that have messages with some keys, by a broker's IndexFiles.

An IndexFile covers the log from its first unit's message to its last one's, if it is intact: its units are in the order
of the log, those with a key's hash are exactly those to which the key's hash slot leads, and the log has the messages
of these, the first and the last. The rest of the log is searched. Nothing proves that the broker indexed each message
in between: it leaves out those of rolled back transactions, and all while ``messageIndexEnable`` is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.format.message import message_in
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.files import is_remote_path
from pyspark_dledger.log.io.key_files import (
    KeyFile,
    hash_of_tags,
    hashes_of_keys,
    index_files,
    newest_unit,
)
from pyspark_dledger.log.store_view import RowRange, StoreView

_MAX_CHAIN = 10_000
_MAX_HASHES = 256
# A plan reads all their units, 400 MB in a full file.
_MAX_FILES = 64

Span = tuple[int, int]


def key_spans(store: StoreView, topics: Iterable[str], keys: Iterable[str]) -> list[Span]:
    """Positions ``[start, end)``, ascending, where rows of these topics with one of these keys or uniqKeys can be."""
    root = store.paths.root
    names = list(keys)
    hashes = {key_hash(topic, key) for topic in topics for key in names}
    try:
        files = index_files(root) if root is not None and not is_remote_path(root) else []
    except UnreadableError:
        files = []
    if not 0 < len(hashes) <= _MAX_HASHES or not all(names) or len(files) > _MAX_FILES:
        return [(0, INT64_MAX)]
    covered: list[tuple[RowRange, RowRange]] = []
    rows: list[RowRange] = []
    for file in files:
        found = _covered(store, file, hashes)
        if found is not None:
            covered.append(found[0])
            rows += found[1]
    return sorted({*_between(covered), *rows})


def _between(covered: list[tuple[RowRange, RowRange]]) -> Iterator[Span]:
    """What is outside the covered parts, given by their first and last row. These can have units in two files."""
    lasts = {last for _, last in covered}
    at = 0
    for first, last in sorted(covered):
        start = first.start if first in lasts else first.end
        if at < start:
            yield at, start
        at = max(at, last.start)
    yield at, INT64_MAX


def _covered(store: StoreView, path: Path, hashes: set[int]) -> tuple[tuple[RowRange, RowRange], list[RowRange]] | None:
    """The first and last row that an IndexFile has, and those with these hashes.

    None if it is not intact, or the log there.
    """
    try:
        file = KeyFile.opened(path)
        if file is None:
            return None
        units, linked = _ordered(file, hashes, store.min_offset), _linked(file, hashes)
        if units is None or linked is None:
            return None
        linked = {number: unit for number, unit in linked.items() if unit.offset >= store.min_offset}
        if units.wanted != {number: unit for number, unit in linked.items() if unit.key_hash in hashes}:
            return None
        if not all(unit.key_hash in _keys_at(store, unit.offset) for unit in (*linked.values(), *units.ends)):
            return None
        first, last = (store.row_of_message(unit.offset) for unit in units.ends)
        rows = [store.row_of_message(unit.offset) for unit in units.wanted.values()]
    except StoreError:
        return None
    found = [row for row in rows if row is not None]
    if first is None or last is None or len(found) < len(rows):
        return None
    return (first, last), found


class _Unit(NamedTuple):
    """The hash of a key, and the offset of its message."""

    key_hash: int
    offset: int


class _OrderedUnits(NamedTuple):
    """The first and the last unit of a file whose messages have not expired, and the wanted ones by number."""

    ends: tuple[_Unit, _Unit]
    wanted: dict[int, _Unit]


def _ordered(file: KeyFile, hashes: set[int], min_offset: int) -> _OrderedUnits | None:
    """The units of messages from `min_offset` on, of which those with these hashes are wanted.

    None without any, if units are not in the order of the log, or if the ends are not those of the header.
    """
    header = file.header
    sorted_hashes = np.array(sorted(hashes), np.int64)
    wanted: dict[int, _Unit] = {}
    first = last = None
    before = header.begin_phy_offset
    following = 1
    for start, units in file.blocks(header.index_count):
        offsets = units["commitLogOffset"].astype(np.int64)
        if start != following or not len(units) or (np.diff(offsets, prepend=before) < 0).any():
            return None
        following = start + len(units)
        if start == 1 and offsets[0] != before:
            return None
        before, begin = int(offsets[-1]), int(np.searchsorted(offsets, min_offset))
        if begin < len(units):
            first, last = first or _unit_of(units[begin]), _unit_of(units[-1])
        for place in np.flatnonzero(np.isin(units["keyHash"], sorted_hashes) & (offsets >= min_offset)).tolist():
            wanted[start + place] = _unit_of(units[place])
    is_whole = following == header.index_count
    if not is_whole or first is None or last is None or last.offset != header.end_phy_offset:
        return None
    return _OrderedUnits((first, last), wanted)


def _unit_of(unit: Any) -> _Unit:
    return _Unit(int(unit["keyHash"]), int(unit["commitLogOffset"]))


def _keys_at(store: StoreView, offset: int) -> set[int]:
    """The hashes of the keys of a message; none if it is damaged."""
    row, segment = store.row_of_message(offset), segment_at(store.segments, offset)
    if row is None or segment is None:
        return set()
    data = segment.read(offset, row.end - offset)
    message = message_in(data)
    if message is None:
        return set()
    topic, properties = message.topic, message.properties
    return hashes_of_keys(topic, properties) | hash_of_tags(topic, properties)


def _linked(file: KeyFile, hashes: set[int]) -> dict[int, _Unit] | None:
    """The units in these hashes' slots by their numbers; None if a slot's chain is broken."""
    found: dict[int, _Unit] = {}
    slots = file.slots
    for slot in {value % slots for value in hashes}:
        number = newest_unit(file.path, slot)
        for _ in range(_MAX_CHAIN):
            if number <= 0:
                break
            units = file.read(number, number + 1)
            if number >= file.header.index_count or not len(units) or int(units["keyHash"][0]) % slots != slot:
                return None
            found[number] = _unit_of(units[0])
            following = int(units["previous"][0])
            if following >= number:
                return None
            number = following
        else:
            return None
    return found
