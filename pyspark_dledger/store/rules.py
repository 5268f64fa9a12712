"""What every store checks before it writes or answers, with the words in which it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark_dledger.errors import InconsistentError, IndexRangeError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import Buffer, Checked
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE, MIN_BLANK_SIZE

_HEADER = record_struct(ENTRY_HEADER)

_SAME_SIZES = "data file sizes must be equal at every member"


def check_held(index: int, begin: int, end: int) -> None:
    """Raises IndexRangeError unless a log of the entries ``[begin, end]`` holds that index."""
    if not 0 <= begin <= index <= end:
        there = f"the log holds {begin} to {end}" if begin >= 0 else "the log is empty"
        raise IndexRangeError(f"expected an index that the log holds, found {index}: {there}")


def check_lengths(lengths: Iterable[int], file_size: int) -> None:
    """Raises ValueError for a body that is too long for an entry, or whose entry fits no data file of that size."""
    limit = min(MAX_ENTRY_SIZE, file_size - MIN_BLANK_SIZE) - ENTRY_HEADER_SIZE
    for number, length in enumerate(lengths):
        if length > limit:
            raise ValueError(
                f"expected body {number} of at most {limit} bytes in a data file of {file_size}, found {length}"
            )


def check_cut(index: int, begin: int, end: int, committed: int) -> None:
    """Raises ValueError where the entry of that index is committed, IndexRangeError where there is none."""
    if 0 <= index <= committed:
        raise ValueError(
            f"expected an index above {committed}, which is committed, found {index}: what is committed is never cut"
        )
    check_held(index, begin, end)


def check_reset(index: int, pos: int, file_size: int, committed: int) -> None:
    """Raises ValueError for an index that is committed, and for what no entry has in data files of that size."""
    if 0 <= index <= committed:
        raise ValueError(f"expected an index above {committed}, which is committed, found {index}")
    if index < 0 or pos < 0:
        raise ValueError(f"expected an index and a position of at least 0, found {index} and {pos}")
    last = file_size - ENTRY_HEADER_SIZE - MIN_BLANK_SIZE
    if pos % file_size > last:
        raise ValueError(
            f"expected a position at most {last} bytes into a data file of {file_size}, found {pos % file_size}: "
            f"{_SAME_SIZES}"
        )


def risen_commit(committed: int, begin: int, end: int, end_term: int, term: int, index: int) -> int:
    """The committed index after a leader of that term said that `index` is committed.

    It never falls, never passes the end, and does not listen to a leader older than the log's last entry.
    """
    index = min(index, end)
    return index if term >= end_term and index > committed and index >= begin else committed


def place(pos: int, size: int, file_size: int) -> int:
    """Where an entry of that size is written when the log ends at `pos`: there, or at the front of the next file.

    An entry fits while it leaves room for a blank's 8 bytes (``MmapFileList.preAppend``).
    """
    left = file_size - pos % file_size
    return pos if size + MIN_BLANK_SIZE <= left else pos + left


class End(NamedTuple):
    """Where a log ends: index and position of the entry that comes next, and the term of the last."""

    next_index: int
    pos: int
    term: int
    is_empty: bool


def check_following(engine: Engine, data: Buffer, leader_term: int, end: End, file_size: int) -> tuple[int, Checked]:
    """Where a leader's entries begin, and what they are. Raises InconsistentError unless they can follow that end."""
    size = len(data)
    if size < ENTRY_HEADER_SIZE:
        raise InconsistentError(f"expected at least one entry, {ENTRY_HEADER_SIZE} bytes or more, found {size} bytes")
    pos = _HEADER.unpack_from(data)[4]
    _check_place(pos, size, end, file_size)
    try:
        return pos, engine.check_entries(data, end.next_index, pos, end.term, leader_term)
    except ValueError as error:
        raise InconsistentError(str(error)) from None


def _check_place(pos: int, size: int, end: End, file_size: int) -> None:
    """Raises InconsistentError unless a leader's `size` bytes of entries, the first at `pos`, can follow an end.

    They stand right there, or at the front of the next file even where the first would have fitted: a Java leader that
    recovered behind a blank goes on there. An empty log begins where it is. They leave room for a blank in their file.
    """
    next_file = end.pos - end.pos % file_size + file_size
    if pos != end.pos and (end.is_empty or pos != next_file):
        places = end.pos if end.is_empty else f"{end.pos} or {next_file}"
        raise InconsistentError(
            f"expected entries at {places}, found pos {pos}: {_SAME_SIZES}, here they are {file_size} bytes"
        )
    left = file_size - pos % file_size - MIN_BLANK_SIZE
    if size > left:
        raise InconsistentError(
            f"expected at most {left} bytes of entries at {pos} in a data file of {file_size} bytes, found {size}: "
            f"{_SAME_SIZES}"
        )
