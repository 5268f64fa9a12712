"""Shows that nobody can know a log: another one, damaged at the same bytes, gives the same files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from pyspark_dledger.format.codec import decode_index_unit
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.log.io.state_files import read_checkpoint, read_current_term
from tests.support.witnesses.damages import Damage
from tests.support.witnesses.log_writer import Written
from tests.support.witnesses.lost_headers import LogBytes
from tests.support.witnesses.originals import Original

TRUNCATED = ("rewritten", "older_terms")
"""The classes of stores in which entries were truncated."""


def can_be_log(original: Original, damage: Damage, found: list[Written]) -> bool:
    """Whether a log with the entries ``found``, and with others in between, gives the same files after the damage.

    Only for DLedger stores. Where the header of an entry is damaged, the other log has the one that was written. The
    headers of the others must be in damaged bytes, or have the bytes that are left. What is in their bodies can be
    anything. What follows the last one can be stale only in stores with truncated entries, and of another term. Index
    units that are left must be of this log. False if it is not certain.
    """
    if not found or any(entry.index < 0 for entry in found) or len({file.parent for file in original.data_files}) > 1:
        return False
    damaged = _ranges(original, damage, original.data_files)
    written = {entry.pos: entry for entry in original.entries}
    files = {original.base_of(file): file.read_bytes() for file in original.data_files}
    log = LogBytes(files, damaged, written)
    intact = damage.intact(original)
    entries = [written[entry.pos] if entry.pos in written.keys() - intact else entry for entry in found]
    first = original.entries[0]
    before = Written(first.pos, 0, first.index - 1, -1)
    if not all(log.allows(last, entry) for last, entry in pairwise([before, *entries])):
        return False
    last = entries[-1]
    return (
        _can_be_stale(original, intact, last)
        and _agrees_with_state(original, log, last)
        and _agrees_with_index(original, damage, entries)
    )


def _ranges(original: Original, damage: Damage, files: list[Path]) -> list[tuple[int, int]]:
    """The damaged bytes of files as positions, joined."""
    return _joined(
        sorted(
            (original.base_of(path) + offset, original.base_of(path) + offset + len(before))
            for path, offset, before in damage.changed
            if path in files
        )
    )


def _can_be_stale(original: Original, intact: set[int], last: Written) -> bool:
    """Whether the intact entries after the last one that was found can have been truncated."""
    rest = [entry for entry in original.entries if entry.pos >= last.pos + last.size and entry.pos in intact]
    return not rest or (original.name in TRUNCATED and rest[0].term != last.term)


def _agrees_with_index(original: Original, damage: Damage, found: list[Written]) -> bool:
    """Whether the undamaged index units up to the last entry are of the entries that were found, or of lost ones."""
    files = [path for path in original.index_files if path.exists()]
    damaged = _ranges(original, damage, files)
    by_index = {entry.index: entry for entry in found}
    if len(by_index) < len(found):
        return False
    for path in files:
        base, data = int(path.name), path.read_bytes()
        for at in range(0, len(data), INDEX_UNIT_SIZE):
            unit = decode_index_unit(data, at)
            number = (base + at) // INDEX_UNIT_SIZE
            is_damaged = any(low < base + at + INDEX_UNIT_SIZE and base + at < high for low, high in damaged)
            if is_damaged or not any(data[at : at + INDEX_UNIT_SIZE]) or number > found[-1].index:
                continue
            one = by_index.get(number)
            if one is not None and (one.pos, one.size, one.term) != (unit.pos, unit.size, unit.term):
                return False
            if one is None and any(
                other.pos < unit.pos + unit.size and unit.pos < other.pos + other.size for other in found
            ):
                return False
    return True


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _agrees_with_state(original: Original, log: LogBytes, last: Written) -> bool:
    """Whether checkpoint and currterm can be those of a log that ends with this entry.

    More entries can be lost after it. A checkpoint can be older than the log.
    """
    for node in original.path.glob("dledger-*"):
        checkpoint, current = read_checkpoint(node)[0], read_current_term(node)[0]
        end = last.pos + last.size
        end_index = checkpoint.end_index if checkpoint is not None else None
        room = next((high - end for low, high in log.damaged if low <= end < high), 0)
        after = Written(end + room, 0, last.index if end_index is None else end_index + 1, last.term)
        if after.index > last.index + 1 and not log.allows(last, after):
            return False
        if current is not None and current.curr_term is not None and current.curr_term < last.term:
            return False
    return True
