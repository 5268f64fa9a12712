"""Shows that nobody can know a log: another one, damaged at the same bytes, gives the same files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from pyspark_dledger.format.codec import decode_index_unit
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.log.io.state_files import read_checkpoint, read_current_term
from tests.support.log_writer import Written
from tests.support.witnesses.damages import Damage
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
    first = original.entries[0]
    before = Written(first.pos, 0, first.index - 1, -1)
    entries = [before, *(written[entry.pos] if entry.pos in written.keys() - intact else entry for entry in found)]
    if not all(log.allows(last, entry) for last, entry in pairwise(entries[:-1])):
        return False
    # The header of the last one can also be the one that is read.
    return any(
        log.allows(entries[-2], last)
        and _can_be_stale(original, intact, log, last)
        and _agrees_with_state(original, log, last)
        and _agrees_with_index(original, damage, [*entries[1:-1], last])
        for last in {entries[-1], found[-1]}
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


def _can_be_stale(original: Original, intact: set[int], log: LogBytes, last: Written) -> bool:
    """Whether the intact entries after the last one that was found can have been truncated.

    The log then has an entry of another term before them: the last one, or a lost one in the damaged bytes after it.
    """
    rest = [entry for entry in original.entries if entry.pos >= last.pos + last.size and entry.pos in intact]
    if not rest or original.name not in TRUNCATED:
        return not rest
    one_lost = Written(log.gap_end(last), 0, last.index + 2, last.term)
    return rest[0].term != last.term or (_current_term(original) > last.term and log.allows(last, one_lost))


def _current_term(original: Original) -> int:
    found = [read_current_term(node)[0] for node in original.path.glob("dledger-*")]
    return max((one.curr_term for one in found if one is not None and one.curr_term is not None), default=-1)


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
        end_index = checkpoint.end_index if checkpoint is not None else None
        after = Written(log.gap_end(last), 0, last.index if end_index is None else end_index + 1, last.term)
        if after.index > last.index + 1 and not log.allows(last, after):
            return False
        if current is not None and current.curr_term is not None and current.curr_term < last.term:
            return False
    return True
