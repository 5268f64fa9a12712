"""Lays out the entries that no source has: as index units know them, else in the space that is left for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.format.message import message_in
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.io.salvage_fillers import TOPIC as FILLER_TOPIC

# A damaged checkpoint can promise any number of entries.
_MAX_AT_END = 1_000_000


class LostEntry(NamedTuple):
    """An entry, or old messages, that no source has intact. It is replaced by a filler of the same extent.

    ``is_known``: an index unit has its extent and term; else they are chosen so that the log is contiguous. Old
    messages have index and term -1, and one of these stands for any number of them.
    """

    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    is_known: bool


class Gap(NamedTuple):
    """The indexes ``[first_index, last_index]`` at positions ``[start, end)``, with terms from ``low`` to ``high``."""

    start: int
    end: int
    first_index: int
    last_index: int
    low: int
    high: int

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1


def lost_entries(gap: Gap, index_files: Sequence[DLedgerIndex], file_size: int) -> list[LostEntry]:
    """The entries of a gap. Raises StoreError if so many entries do not fit into it.

    Units that contradict what follows the gap are of another log: the last files are left out first.
    """
    for count in range(len(index_files), 0, -1):
        with suppress(StoreError):
            return _laid_out(gap, index_files[:count], file_size)
    return _laid_out(gap, (), file_size)


def _laid_out(gap: Gap, index_files: Sequence[DLedgerIndex], file_size: int) -> list[LostEntry]:
    found: list[LostEntry] = []
    at, index, term = gap.start, gap.first_index, gap.low
    for known in _known(gap, index_files):
        if known.index < index or known.pos < at or known.term < term:
            continue  # contradicts the units before it
        is_adjacent = known.pos == at or known.pos == file_end(at, file_size)
        is_inside = known.pos % file_size + known.size + MIN_BLANK_SIZE <= file_size
        if (known.index == index) != is_adjacent or not is_inside:
            continue
        if known.index > index:
            found += _chosen(index, known.index - index, at, known.pos, term, file_size)
        found.append(known)
        at, index, term = known.pos + known.size, known.index + 1, known.term
    if index <= gap.last_index:
        found += _chosen(index, gap.last_index - index + 1, at, gap.end, term, file_size)
    elif gap.end not in (at, file_end(at, file_size)):
        raise StoreError(f"expected entry {index} at {at}, where index units end the one before it, not at {gap.end}")
    return found


def known_after(index: int, pos: int, term: int, last: int, files: DLedgerIndex, file_size: int) -> list[LostEntry]:
    """The entries after `index`, which ends at `pos`, up to `last`, that units show without a hole."""
    count = min(last - index, _MAX_AT_END)
    known = _known(Gap(pos, 2**62, index + 1, index + count, term, 2**62), [files]) if count > 0 else ()
    return entries_after(index, pos, term, known, file_size)


def entries_after(index: int, pos: int, term: int, known: Iterable[LostEntry], file_size: int) -> list[LostEntry]:
    """The `known` entries, by index, that continue a log after the entry `index`, which ends at `pos`."""
    found: list[LostEntry] = []
    for each in known:
        is_adjacent = each.pos == pos or each.pos == file_end(pos, file_size)
        is_inside = each.pos % file_size + each.size + MIN_BLANK_SIZE <= file_size
        if each.index != index + 1 or not is_adjacent or not is_inside or each.term < term:
            break
        found.append(each)
        pos, index, term = each.pos + each.size, each.index, each.term
    return found


def entries_before(index: int, start: int, pos: int, term: int, files: DLedgerIndex) -> int | None:
    """The number of entries in ``[start, pos)`` before the entry `index`, as units show without a hole."""
    count = min(index, (pos - start) // ENTRY_HEADER_SIZE)
    units = list(_known(Gap(start, pos, index - count, index - 1, -1, term), [files])) if count > 0 else []
    before = 0
    for known in reversed(units):
        if known.index != index - before - 1 or known.pos + known.size != pos:
            return None
        before, pos = before + 1, known.pos
        if pos == start:
            return before
    return None


def _known(gap: Gap, index_files: Sequence[DLedgerIndex]) -> Iterator[LostEntry]:
    """The entries of a gap that units know, by index; of several units for an index the first valid one."""
    count = gap.entries
    columns = {name: np.zeros(count, np.int64) for name in ("pos", "size", "term")}
    is_known = np.zeros(count, np.bool_)
    for files in index_files:
        units = files.read(gap.first_index, count)
        pos, size, term = (units[name].astype(np.int64) for name in columns)
        is_valid = (units["index"] == np.arange(gap.first_index, gap.last_index + 1)) & (pos >= gap.start)
        is_valid &= (size >= ENTRY_HEADER_SIZE) & (size <= MAX_ENTRY_SIZE) & (pos + size <= gap.end)
        is_valid &= (term >= gap.low) & (term <= gap.high) & ~is_known
        for column, values in zip(columns.values(), (pos, size, term), strict=True):
            column[is_valid] = values[is_valid]
        is_known |= is_valid
    for row in np.flatnonzero(is_known).tolist():
        at, length, own_term = (int(column[row]) for column in columns.values())
        yield LostEntry(at, length, gap.first_index + row, own_term, True)


def file_end(pos: int, file_size: int) -> int:
    """The end of the file in which the byte before `pos` or at it is, if it leaves space for a blank."""
    end = -(-pos // file_size) * file_size
    return end if end - pos >= MIN_BLANK_SIZE else -1


def _chosen(index: int, count: int, start: int, end: int, term: int, file_size: int) -> Iterator[LostEntry]:
    """`count` entries that fill ``[start, end)``, where nothing shows their extents."""
    parts = []
    at = start
    while at < end:
        stop = min((at // file_size + 1) * file_size, end)
        parts.append((at, stop))
        at = stop
    needed = [0 if _is_blank(part, file_size) else -(-(part[1] - part[0]) // MAX_ENTRY_SIZE) for part in parts]
    spare = count - sum(needed)
    counts = []
    for (low, high), least in zip(parts, needed, strict=True):
        more = max(0, min(spare, (high - low - MIN_BLANK_SIZE) // ENTRY_HEADER_SIZE - least))
        counts.append(least + more)
        spare -= more
    if spare:
        raise StoreError(
            f"expected {count} entries from index {index} on at positions {start} to {end}, found space for "
            f"{count - spare}: the sources are of different logs, or the entries around them are damaged"
        )
    for part, number in zip(parts, counts, strict=True):
        low, high = part
        space = high - low - (MIN_BLANK_SIZE if high % file_size == 0 else 0)
        size, longer = divmod(space, number) if number else (0, 0)
        for place in range(number):
            own = min(size + (place < longer), MAX_ENTRY_SIZE)
            yield LostEntry(low, own, index, term, False)
            low, index = low + own, index + 1


def _is_blank(part: tuple[int, int], file_size: int) -> bool:
    """Whether a blank can fill the part: it ends the file, and the file has entries before it."""
    start, end = part
    return end % file_size == 0 and start % file_size != 0 and end - start >= MIN_BLANK_SIZE


ReadSource = Callable[[int, int, int], bytes]
"""The bytes of a source, by its number, from a position of the log up to another; fewer if it does not have them."""

PlaceOf = Callable[[int, bytes], int | None]
"""Where the message begins that queues have at the place of the given copy at a position."""

IsElsewhere = Callable[[int, bytes], bool]
"""Whether a queue has another message where the one at a position of the log says that it is."""


class Repair(NamedTuple):
    """An entry whose header is written again by its index unit; its message is copied from the source ``donor``."""

    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    donor: int
    sources: tuple[int, ...]


def has_damaged_header(expected: LostEntry, index: int, term: int) -> bool:
    """Whether a header at the place of the entry, with another index or term, is damaged and not of a diverged log.

    A term has one leader, so it has one entry there. A diverged log has entries of lower terms.
    """
    if index == expected.index:
        return term > expected.term
    return term == expected.term


def repaired(
    lost: Iterable[LostEntry], sources: Iterable[int], read: ReadSource, is_elsewhere: IsElsewhere
) -> tuple[list[LostEntry], list[Repair]]:
    """What remains lost, and the entries that can be repaired: those of which all intact messages are the same.

    No checksum covers what says where a message is in the queues: the messages that they have elsewhere are damaged.
    """
    remaining: list[LostEntry] = []
    repairs: list[Repair] = []
    numbers = tuple(sources)
    for each in lost:
        found: dict[bytes, list[int]] = {}
        for number in numbers if each.is_known and each.index >= 0 else ():
            body = read(number, each.pos + ENTRY_HEADER_SIZE, each.pos + each.size)
            start = each.pos + ENTRY_HEADER_SIZE
            if _is_intact(body, start, each.size - ENTRY_HEADER_SIZE) and not is_elsewhere(start, body):
                found.setdefault(body, []).append(number)
        if len(found) == 1:
            (having,) = found.values()
            repairs.append(Repair(each.pos, each.size, each.index, each.term, having[0], tuple(having)))
        else:
            remaining.append(each)
    return remaining, repairs


def _is_intact(body: bytes, position: int, size: int) -> bool:
    """Whether the body is a message for this position whose checksum agrees, and no filler."""
    message = message_in(body) if len(body) == size else None
    if message is None or message.physical_offset != position or message.topic == FILLER_TOPIC:
        return False
    return message.has_right_crc
