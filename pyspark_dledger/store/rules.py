"""Checks that all stores share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark_dledger.errors import InconsistentError, IndexRangeError
from pyspark_dledger.format.codec import MEMBERS, control_kind, record_struct
from pyspark_dledger.format.encode.encoded import Buffer, CheckedEntries
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.store.dledger_store import MembersHook

_HEADER = record_struct(ENTRY_HEADER)

_SAME_SIZES = "data file sizes must be equal at every member"


def check_index(index: int, begin: int, end: int) -> None:
    """Raises IndexRangeError unless `index` is in a log with the entries ``[begin, end]``."""
    if not 0 <= begin <= index <= end:
        bounds = f"the log has {begin} to {end}" if begin >= 0 else "the log is empty"
        raise IndexRangeError(f"expected an index of the log, found {index}: {bounds}")


def check_lengths(lengths: Iterable[int], file_size: int) -> None:
    """Raises ValueError for a body that is too long for an entry or for a data file of that size."""
    limit = min(MAX_ENTRY_SIZE, file_size - MIN_BLANK_SIZE) - ENTRY_HEADER_SIZE
    for number, length in enumerate(lengths):
        if length > limit:
            raise ValueError(
                f"expected body {number} of at most {limit} bytes in a data file of {file_size}, found {length}"
            )


def check_truncate(index: int, begin: int, end: int, committed: int) -> None:
    """Raises ValueError if the entry is committed, IndexRangeError if the log does not have it."""
    if 0 <= index <= committed:
        raise ValueError(
            f"expected an index above the committed index {committed}, found {index}: committed entries are never "
            "truncated"
        )
    check_index(index, begin, end)


def check_reset(index: int, pos: int, file_size: int, committed: int) -> None:
    """Raises ValueError for a committed index, and for a position that no entry can have."""
    if 0 <= index <= committed:
        raise ValueError(f"expected an index above the committed index {committed}, found {index}")
    if index < 0 or pos < 0:
        raise ValueError(f"expected an index and a position of at least 0, found {index} and {pos}")
    last = file_size - ENTRY_HEADER_SIZE - MIN_BLANK_SIZE
    if pos % file_size > last:
        raise ValueError(
            f"expected a position at most {last} bytes into a data file of {file_size}, found {pos % file_size}: "
            f"{_SAME_SIZES}"
        )


def raised_committed_index(committed: int, begin: int, end: int, end_term: int, term: int, index: int) -> int:
    """The committed index after a leader of `term` committed `index`: see `DLedgerStore.update_committed_index`."""
    index = min(index, end)
    return index if term >= end_term and index > committed and index >= begin else committed


def entry_position(end_pos: int, size: int, file_size: int) -> int:
    """The position of the next entry: the end of the log, or the start of the next file.

    An entry fits if it leaves the 8 bytes of a blank (``MmapFileList.preAppend``).
    """
    left = file_size - end_pos % file_size
    return end_pos if size + MIN_BLANK_SIZE <= left else end_pos + left


class AppendPosition(NamedTuple):
    """Where entries are appended: index and position of the next entry, and the term of the last one."""

    next_index: int
    pos: int
    term: int
    is_empty: bool


def check_next_entries(
    engine: Engine, data: Buffer, leader_term: int, end: AppendPosition, file_size: int
) -> tuple[int, CheckedEntries]:
    """The position of a leader's entries, and what they are. Raises InconsistentError unless they continue the log."""
    size = len(data)
    if size < ENTRY_HEADER_SIZE:
        raise InconsistentError(f"expected at least one entry, {ENTRY_HEADER_SIZE} bytes or more, found {size} bytes")
    pos = _HEADER.unpack_from(data)[4]
    _check_position(pos, size, end, file_size)
    try:
        checked = engine.check_entries(data, end.next_index, pos, end.term, leader_term)
    except ValueError as error:
        raise InconsistentError(str(error)) from None
    wrong = engine.find_wrong_body(data)
    if wrong is not None:
        header = _HEADER.unpack_from(data, wrong)
        raise InconsistentError(f"expected a body with CRC {header[7]} in entry {header[2]}, found other bytes")
    return pos, checked


def announce_members(hook: MembersHook | None, data: Buffer, checked: CheckedEntries) -> None:
    """Call the hook for each members entry of a leader's entries."""
    at = checked.members_at
    if hook is None or at < 0:
        return
    while at < len(data):
        header = _HEADER.unpack_from(data, at)
        if control_kind(header) == MEMBERS:
            hook(header[2], header[3], bytes(data[at + ENTRY_HEADER_SIZE : at + header[1]]))
        at += header[1]


def _check_position(pos: int, size: int, end: AppendPosition, file_size: int) -> None:
    """Raises InconsistentError unless a leader's `size` bytes of entries can begin at `pos`.

    They begin at the end of the log, or at the start of the next file even if the first entry would fit: a Java leader
    that recovered after a blank continues there. The first entry of an empty log begins at its end. The entries leave
    room for a blank in their file.
    """
    next_file = end.pos - end.pos % file_size + file_size
    if pos != end.pos and (end.is_empty or pos != next_file):
        expected = end.pos if end.is_empty else f"{end.pos} or {next_file}"
        raise InconsistentError(
            f"expected entries at {expected}, found pos {pos}: {_SAME_SIZES}, here they are {file_size} bytes"
        )
    left = file_size - pos % file_size - MIN_BLANK_SIZE
    if size > left:
        raise InconsistentError(
            f"expected at most {left} bytes of entries at {pos} in a data file of {file_size} bytes, found {size}: "
            f"{_SAME_SIZES}"
        )
