"""Compares the bytes of CommitLogs, and where they differ, message by message.

Memory is bounded by one window of each replica and the frames of one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.layout import MIN_BLANK_SIZE
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.log.copies.segment_bytes import is_torn
from pyspark_dledger.log.diff.commit_log.frames import DAMAGED as DAMAGED_FRAME
from pyspark_dledger.log.diff.commit_log.frames import ODD, Frames, read_frames
from pyspark_dledger.log.diff.commit_log.replica import CommitLogReplica
from pyspark_dledger.log.io.files import OpenFile, open_file

PRESENT = "present"
DAMAGED = "damaged"
ENDED = "ended"
EXPIRED = "expired"
UNREAD = "unread"
"""States of a replica in a range: intact, lost or damaged, after its end, before its first file, unknown."""

_WINDOW = 256 * 1024


class PosRange(NamedTuple):
    """The positions ``[start, end)`` with one result. Tuples have a value for each replica.

    ``versions`` is the number of the first replica with the same intact bytes; None if the replica has none.
    ``messages`` counts those that begin here. ``byte`` is the first different one, None where none is known.
    ``is_message``: all replicas with an intact message here have one of the same extent. ``is_doubtful``: only one copy
    is left, and its queue does not know it; or copies with the same bytes fail their checks, and none is intact.
    """

    start: int
    end: int
    states: tuple[str, ...]
    versions: tuple[int | None, ...]
    messages: int
    byte: int | None = None
    is_message: bool = False
    is_doubtful: bool = False

    @property
    def holders(self) -> list[int]:
        """The replicas that have these bytes intact."""
        return [number for number, version in enumerate(self.versions) if version is not None]


def compare_positions(replicas: Sequence[CommitLogReplica]) -> Iterator[PosRange]:
    """The ranges that together cover every position of every replica once, in order.

    Raises StoreError if a file cannot be read.
    """
    epoch_starts = _epoch_starts(replicas)

    def joined(last: PosRange, part: PosRange) -> PosRange | None:
        if part.start in epoch_starts or not _continues(last, part):
            return None
        byte = last.byte if last.byte is not None else part.byte
        return last._replace(end=part.end, messages=last.messages + part.messages, byte=byte, is_message=False)

    yield from merge_adjacent(_ranges(replicas), joined)


def _epoch_starts(replicas: Sequence[CommitLogReplica]) -> set[int]:
    """Rows name the epoch, so a range is in one."""
    return {epoch.start for one in replicas for epoch in one.epochs}


def _continues(last: PosRange, part: PosRange) -> bool:
    """Whether two ranges are one. Single messages that differ stay apart: one alone is damage."""
    is_same = (last.end, *last[2:4], last.is_doubtful) == (part.start, *part[2:4], part.is_doubtful)
    differs = len({part.versions[number] for number in part.holders}) > 1
    return is_same and not (differs and (last.is_message or part.is_message))


def _ranges(replicas: Sequence[CommitLogReplica]) -> Iterator[PosRange]:
    edges = {edge for one in replicas for segment in one.segments for edge in (segment.base, segment.end)}
    edges |= {edge for one in replicas for edge in (one.begin, one.end, one.blank_end, one.proven_end)}
    edges |= {edge for one in replicas for extent in one.unread for edge in extent}
    edges |= _epoch_starts(replicas)
    low = min(one.begin for one in replicas)
    high = max(one.proven_end for one in replicas)
    cuts = sorted(edge for edge in edges | {low, high} if low <= edge <= high)
    frames = _FrameCache(replicas)
    for start, end in pairwise(cuts):
        states = tuple(_state(one, start) for one in replicas)
        present = [number for number, state in enumerate(states) if state == PRESENT]
        if present:
            yield from _Region(replicas, frames, states, start, end).ranges()
        else:
            yield PosRange(start, end, states, (None,) * len(replicas), 0)


def _state(replica: CommitLogReplica, pos: int) -> str:
    if any(low <= pos < high for low, high in replica.unread):
        return UNREAD
    if pos < replica.begin:
        return EXPIRED
    if pos >= replica.blank_end:
        return DAMAGED if pos < replica.proven_end else ENDED
    return PRESENT if replica.segment_at(pos) is not None else DAMAGED


class _FrameCache:
    """The frames of the last segment of each replica that was asked for."""

    def __init__(self, replicas: Sequence[CommitLogReplica]) -> None:
        self._replicas = replicas
        self._last: dict[int, tuple[int, Frames]] = {}

    def of(self, replica: int, pos: int) -> Frames:
        one = self._replicas[replica]
        number = one.segment_at(pos)
        assert number is not None
        if self._last.get(replica, (-1,))[0] != number:
            frames = read_frames(one.segments[number], one.scan_ends[number], one.engine)
            self._last[replica] = number, frames
        return self._last[replica][1]


class _Region:
    """Positions ``[start, end)`` in which every replica that is present has one segment."""

    def __init__(
        self,
        replicas: Sequence[CommitLogReplica],
        frames: _FrameCache,
        states: tuple[str, ...],
        start: int,
        end: int,
    ) -> None:
        self._frames = frames
        self._states = states
        self._start = start
        self._end = end
        self._present = [number for number, state in enumerate(states) if state == PRESENT]
        self._segments = {}
        for number in self._present:
            place = replicas[number].segment_at(start)
            assert place is not None
            self._segments[number] = replicas[number].segments[place]

    def ranges(self) -> Iterator[PosRange]:
        with ExitStack() as stack:
            files = {number: stack.enter_context(open_file(segment.path)) for number, segment in self._segments.items()}
            at = self._start
            for low, high in self._doubtful(files):
                if at < low:
                    yield self._equal(at, low)
                yield from self._compared(files, low, high)
                at = high
            if at < self._end:
                yield self._equal(at, self._end)

    def _of(self, number: int) -> Frames:
        return self._frames.of(number, self._start)

    def _read(self, files: dict[int, OpenFile], number: int, low: int, high: int) -> bytes:
        segment = self._segments[number]
        try:
            return files[number].read(low - segment.base, high - low)
        except OSError as error:
            raise UnreadableError(segment.path, error.strerror or str(error), low - segment.base) from None

    def _doubtful(self, files: dict[int, OpenFile]) -> list[tuple[int, int]]:
        """The parts with different or damaged bytes, widened to whole messages of all replicas."""
        found = self._of(self._present[0]).damaged(self._start, self._end)
        found += self._unequal(files)
        parts: list[tuple[int, int]] = []
        for part in sorted(found):
            low, high = self._widened(*part)
            while parts and low <= parts[-1][1]:
                before = parts.pop()
                low, high = min(low, before[0]), max(high, before[1])
            parts.append((low, high))
        return parts

    def _unequal(self, files: dict[int, OpenFile]) -> Iterator[tuple[int, int]]:
        first, *others = self._present
        for low in range(self._start, self._end, _WINDOW) if others else ():
            high = min(low + _WINDOW, self._end)
            data = self._read(files, first, low, high)
            if len(data) < high - low or any(self._read(files, number, low, high) != data for number in others):
                yield low, high

    def _widened(self, low: int, high: int) -> tuple[int, int]:
        low, high = max(low, self._start), min(high, self._end)
        before = (-1, -1)
        while (low, high) != before:
            before = low, high
            for number in self._present:
                low, high = self._of(number).widened(low, high)
            low, high = max(low, self._start), min(high, self._end)
        return low, high

    def _equal(self, low: int, high: int) -> PosRange:
        first = self._present[0]
        versions = tuple(first if state == PRESENT else None for state in self._states)
        return PosRange(low, high, self._states, versions, self._of(first).messages(low, high))

    def _compared(self, files: dict[int, OpenFile], low: int, high: int) -> Iterator[PosRange]:
        cuts = {low, high}
        for number in self._present:
            cuts |= self._of(number).cuts(low, high)
        edges = sorted(cuts)
        for start, end in pairwise(edges):
            yield self._piece(files, start, end)

    def _piece(self, files: dict[int, OpenFile], low: int, high: int) -> PosRange:
        """The result for positions that are in one frame, or one blank, of each replica."""
        keys: dict[int, object] = {}
        odd: set[int] = set()
        blanks: set[int] = set()
        data: dict[int, bytes] = {}
        extents: set[tuple[int, int] | None] = set()
        for number in self._present:
            frames = self._of(number)
            place = frames.at(low)
            data[number] = self._read(files, number, low, high)
            if place is None:
                # Only the header of a blank is defined.
                is_start = low == self._segments[number].base or frames.at(low - 1) is not None
                keys[number] = data[number][:MIN_BLANK_SIZE] if is_start else b""
                blanks.add(number)
                extents.add(None)
                continue
            extent = int(frames.starts[place]), int(frames.ends[place])
            if frames.states[place] == DAMAGED_FRAME or len(data[number]) < high - low:
                continue
            extents.add(extent)
            keys[number] = (extent, data[number])
            if frames.states[place] == ODD:
                odd.add(number)
        if len(set(keys.values())) > 1 and odd < set(keys):
            keys = {number: key for number, key in keys.items() if number not in odd}
        for number in data.keys() - keys.keys():
            # Intact bytes next to damage, in which the scan found no message.
            same = (other for other in data if other in keys and _is_same(data[number], data[other], other in blanks))
            if (holder := next(same, None)) is not None:
                keys[number] = keys[holder]
        suspects = [] if keys else _alike(data, low, high)
        keys |= dict.fromkeys(suspects, b"")
        firsts: dict[object, int] = {}
        versions = tuple(
            firsts.setdefault(keys[number], number) if number in keys else None for number in range(len(self._states))
        )
        states = tuple(
            DAMAGED if state == PRESENT and (number not in keys or number in suspects) else state
            for number, state in enumerate(self._states)
        )
        is_message = extents == {(low, high)}
        messages = max((self._of(number).messages(low, high) for number in keys), default=0)
        byte = _first_difference(list(data.values()))
        first_byte = None if byte is None else low + byte
        return PosRange(low, high, states, versions, messages, first_byte, is_message, bool(suspects))


def _alike(data: dict[int, bytes], low: int, high: int) -> list[int]:
    """The replicas that have the same message at ``[low, high)``, which has all its sectors; empty if others do."""
    copies: dict[bytes, list[int]] = {}
    for number, each in data.items():
        is_whole = has_message_magic(each, 0, len(each)) and int.from_bytes(each[:4], "big") == high - low
        if is_whole and not is_torn(low, each):
            copies.setdefault(each, []).append(number)
    several = [numbers for numbers in copies.values() if len(numbers) > 1]
    return several[0] if len(several) == 1 else []


def _is_same(damaged: bytes, intact: bytes, is_blank: bool) -> bool:
    return damaged[:MIN_BLANK_SIZE] == intact[:MIN_BLANK_SIZE] if is_blank else damaged == intact


def _first_difference(parts: list[bytes]) -> int | None:
    """The first offset at which the bytes differ or one of them ends; None without one."""
    if all(part == parts[0] for part in parts):
        return None
    size = min(map(len, parts))
    low = 0
    while low < size:
        high = min(low + 4096, size)
        if any(part[low:high] != parts[0][low:high] for part in parts):
            return next(at for at in range(low, high) if len({part[at] for part in parts}) > 1)
        low = high
    return size
