"""Finds entries, messages and blanks in a segment: the test at one position, and the search for the next.

The result depends on the segment's bytes alone, so every split of a scan sees the same. A search passes once over the
bytes: candidates come from numpy or ``bytes.find``, and each is tested in constant time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import EntryHeader, decode_blank, decode_entry_header, record_dtype, signed64
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.message import MESSAGE_MAGICS, Message, host_sizes, parse_message
from pyspark_dledger.format.scan.segment_file import SegmentFile
from pyspark_dledger.format.spec import DLEDGER

SPAN_WINDOW = layout.MAX_ENTRY_SIZE + 4096
"""Bytes that are more than any entry or closing blank has: a chain of this length is in no body, and zeros of this
length were never written."""
MIN_BODY_START = layout.MIN_MESSAGE_SIZE - 3
"""Bytes before the body of a message with IPv4 hosts. After it are at least two lengths."""
_FIRST_CHUNK = 4 * 1024
_LAST_CHUNK = 1024 * 1024
HEADER_DTYPE = record_dtype(layout.ENTRY_HEADER)
SECTOR_SIZE = 512
MAX_SHIFTS = 16
"""So many shifts of entries are compared."""
_MAGIC_OFFSET = layout.MESSAGE_HEADER[1].offset
_FLAGS_OFFSET = layout.MESSAGE_HEADER[7].offset
_MESSAGE_MAGIC_BYTES = [magic.to_bytes(4, "big", signed=True) for magic in MESSAGE_MAGICS]
_FILLER_MAGIC_BYTES = layout.MESSAGE_MAGIC_BLANK.to_bytes(4, "big", signed=True)


class Frame(NamedTuple):
    """An entry of a DLedger log or a message of an old CommitLog: its position, and its size in bytes."""

    pos: int
    size: int
    header: EntryHeader | None
    message: Message | None

    @property
    def end(self) -> int:
        return self.pos + self.size

    @property
    def shift(self) -> int:
        """The position in the header less the entry's own. Followers of DLedger 0.4.0 keep the leader's positions."""
        return self.header.pos - self.pos if self.header else 0


class DamagedFrame(NamedTuple):
    """A damaged header that has its own position. Another one can begin at ``end`` or later.

    ``frame`` is the header of an entry, as if its body was empty. The body of a message is in the message.
    """

    pos: int
    end: int
    frame: Frame | None


class Blank(NamedTuple):
    """Bytes that look like a blank, and the size in bytes that they give, which can be any."""

    pos: int
    size: int


class Frames(ABC):
    """The frames of one segment. All positions are those of the log."""

    name: str
    """What a frame is called in texts."""

    min_size: int
    """In bytes."""

    def __init__(self, data: SegmentFile) -> None:
        self.data = data
        self.segment = data.segment
        self._zeros = 0, 0

    @abstractmethod
    def examine(self, pos: int) -> Frame | Fact:
        """The frame at ``pos``, or why there is none."""

    def at(self, pos: int) -> Frame | None:
        """The frame at ``pos``, if there is one."""
        found = self.examine(pos)
        return None if isinstance(found, Fact) else found

    def is_moved(self, shift: int, expected: int | None) -> bool:
        """Whether an entry with this shift was moved with its sectors, because the log's entries have another one."""
        return False

    @property
    def usual_shift(self) -> int:
        """The shift of the entry before the segment, else that of most entries in its first bytes.

        Sectors can have been moved.
        """
        return 0

    @abstractmethod
    def damaged_at(self, pos: int) -> DamagedFrame | None:
        """The damaged header at ``pos``, if it has its own position."""

    @abstractmethod
    def blank_at(self, pos: int) -> Blank | None:
        """The blank, or bytes that look like one, at ``pos``."""

    @abstractmethod
    def follows(self, last: Frame, frame: Frame) -> bool:
        """Whether ``frame`` can be the next one after ``last`` in a log."""

    @abstractmethod
    def sizes_at(self, pos: int) -> tuple[int, ...]:
        """The frame's size in bytes by each header field that gives one, possible or not."""

    @abstractmethod
    def _frame_candidates(self, chunk: bytes, count: int, pos: int | None) -> Iterator[int]:
        """Offsets below ``count`` at which a frame may begin, ascending.

        With the chunk's position ``pos``, also those at which a damaged header may begin.
        """

    @abstractmethod
    def _blank_candidates(self, chunk: bytes, count: int) -> Iterator[int]:
        """Offsets below ``count`` at which a blank may begin, ascending."""

    def search(self, start: int, end: int) -> Iterator[Frame]:
        """Every frame that begins in ``[start, end)``, on the walk or not, ascending."""
        for begin, count, chunk in self._chunks(start, end):
            for offset in self._frame_candidates(chunk, count, None):
                if frame := self.at(begin + offset):
                    yield frame

    def search_headers(self, start: int, end: int) -> Iterator[Frame | DamagedFrame]:
        """Every frame and every damaged header with its own position in ``[start, end)``, ascending."""
        for begin, count, chunk in self._chunks(start, end):
            for offset in self._frame_candidates(chunk, count, begin):
                if found := self.at(begin + offset) or self.damaged_at(begin + offset):
                    yield found

    def search_blanks(self, start: int, end: int) -> Iterator[Blank]:
        """Everything in ``[start, end)`` that looks like a blank and fits its segment, ascending."""
        for begin, count, chunk in self._chunks(start, end):
            for offset in self._blank_candidates(chunk, count):
                blank = self.blank_at(begin + offset)
                if blank and blank.size >= layout.MIN_BLANK_SIZE and blank.pos + blank.size <= self.segment.end:
                    yield blank

    def _start(self, pos: int, size: int) -> bytes | None:
        """The ``size`` bytes at ``pos``; None if the file does not have all of them."""
        return self.data[pos : pos + size] if self.data.end - pos >= size else None

    def index_at(self, pos: int) -> int:
        """The index in the header at ``pos``, even of a damaged one; -1 without a header."""
        return -1

    def has_own_pos(self, pos: int, shift: int) -> bool:
        """Whether the header at ``pos`` has a valid magic and the position ``pos + shift``, even if damaged."""
        return False

    def is_leading(self, blank: Blank) -> bool:
        """Whether the blank begins the file and a frame follows it: DLedger 0.4.0 writes that after a snapshot.

        Such a blank has zeros; an entry of which only the magic is damaged has the rest of its header.
        """
        end, content = blank.pos + blank.size, blank.pos + layout.MIN_BLANK_SIZE
        if blank.pos != self.segment.base or content > end or end >= self.data.end:
            return False
        return self._is_zero(content, min(end, blank.pos + layout.ENTRY_HEADER_SIZE)) and self.at(end) is not None

    def is_closing(self, blank: Blank) -> bool:
        """Whether the blank reaches to the end of the file."""
        return blank.pos + blank.size in (self.segment.end, self.data.end)

    def is_closed_at(self, pos: int) -> bool:
        """Whether a log can end at ``pos``: at a blank up to the end, or at more zeros than a body can have.

        A frame never ends at the end of a complete file: there is always room for a blank.
        """
        if pos == self.segment.end:
            return False
        blank = self.blank_at(pos)
        if blank and self.is_closing(blank):
            return True
        return self._is_zero(pos, min(pos + SPAN_WINDOW, self.data.end))

    def _is_zero(self, pos: int, end: int) -> bool:
        """Whether all bytes are zeros. A long run of zeros is read once."""
        begin, stop = self._zeros
        at, size, rest = pos, _FIRST_CHUNK, b""
        while at < end and not rest:
            if begin <= at < stop:
                at = stop
                continue
            until = min(at + size, end, begin if at < begin else end)
            rest = self.data[at:until].lstrip(b"\0")
            at, size = until - len(rest), _LAST_CHUNK
        if at - pos > _FIRST_CHUNK:
            self._zeros = pos, at
        return not rest

    def _chunks(self, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Parts of ``[start, end)``: the begin, the number of positions, and their bytes with those of one more header.

        The first parts are small, because the next frame after damage is usually near.
        """
        length = _FIRST_CHUNK
        end = min(end, self.data.end)
        while start < end:
            count = min(length, end - start)
            yield start, count, self.data[start : min(start + count + layout.ENTRY_HEADER_SIZE - 1, self.data.end)]
            start += count
            length = min(length * 2, _LAST_CHUNK)


def frames_of(data: SegmentFile) -> Frames:
    """The frames of an open segment, by the segment's source."""
    return EntryFrames(data) if data.segment.source == DLEDGER else MessageFrames(data)


class EntryFrames(Frames):
    """Entries of DLedger."""

    name = "entry"
    min_size = layout.ENTRY_HEADER_SIZE

    def examine(self, pos: int) -> Frame | Fact:
        left = self.data.end - pos
        start = self._start(pos, layout.ENTRY_HEADER_SIZE)
        if start is None:
            return Fact(ProblemCode.NO_HEADER, pos, 0, left)
        header = decode_entry_header(start)
        if header.magic not in layout.ENTRY_MAGICS:
            if not any(start):
                return Fact(ProblemCode.NO_ENTRY, pos)
            return Fact(ProblemCode.ENTRY_MAGIC, pos, 0, header.magic)
        if header.body_size < 0 or header.size != layout.ENTRY_HEADER_SIZE + header.body_size:
            return Fact(ProblemCode.ENTRY_SIZE, pos, header.body_size, header.size)
        if header.size > left:
            return Fact(ProblemCode.ENTRY_END, pos, header.size, left)
        if header.index < 0 or header.term < -1:
            return Fact(ProblemCode.ENTRY_NUMBERS, pos, 0, header.index, 0, header.term)
        if self.segment.check_pos and header.pos != pos:
            return Fact(ProblemCode.ENTRY_POS, pos, pos, header.pos)
        frame = Frame(pos, header.size, header, None)
        # Other shifts at a file's begin are those of a follower.
        is_doubtful = pos == self.segment.base and header.pos != pos and frame.shift % SECTOR_SIZE == 0
        if is_doubtful and self.is_moved(frame.shift, None):
            following = self.at(frame.end)
            if following and following.shift == frame.shift and self.follows(frame, following):
                return Fact(ProblemCode.ENTRY_POS, pos, signed64(pos + self.usual_shift), header.pos)
        return frame

    def is_moved(self, shift: int, expected: int | None) -> bool:
        if self.segment.check_pos:
            return False
        difference = abs(shift - (self.usual_shift if expected is None else expected))
        return difference % SECTOR_SIZE == 0 and 0 < difference <= self.segment.size

    @cached_property
    def usual_shift(self) -> int:
        if self.segment.before and self.segment.before.shift is not None:
            return self.segment.before.shift
        end = min(self.segment.base + SPAN_WINDOW, self.data.end)
        counts = Counter(frame.shift for frame in self.search(self.segment.base + 1, end))
        most = sorted(counts, key=lambda shift: (counts[shift], shift))[-MAX_SHIFTS:]
        # Two sectors that changed places have shifts on both sides.
        swapped = {
            shift: sum(counts[one] for one in most if (one - shift) % SECTOR_SIZE == 0 and 2 * shift - one in most)
            for shift in most
        }
        # Only followers have another shift than 0.
        weights = {shift: counts[shift] * (2 if shift == 0 else 1) for shift in most}
        return max(most, key=lambda shift: (swapped[shift] - counts[shift], weights[shift], shift), default=0)

    def damaged_at(self, pos: int) -> DamagedFrame | None:
        header = self._header(pos)
        if header is None or not self.segment.check_pos or not self.has_own_pos(pos, 0):
            return None
        if header.index < 0 or header.term < -1:
            return None
        return DamagedFrame(pos, pos + self.min_size, Frame(pos, self.min_size, header, None))

    def _header(self, pos: int) -> EntryHeader | None:
        start = self._start(pos, layout.ENTRY_HEADER_SIZE)
        return None if start is None else decode_entry_header(start)

    def has_own_pos(self, pos: int, shift: int) -> bool:
        header = self._header(pos)
        return header is not None and header.magic in layout.ENTRY_MAGICS and header.pos == pos + shift

    def blank_at(self, pos: int) -> Blank | None:
        start = self._start(pos, layout.MIN_BLANK_SIZE)
        size = None if start is None else decode_blank(start)
        return None if size is None else Blank(pos, size)

    def follows(self, last: Frame, frame: Frame) -> bool:
        assert last.header and frame.header
        return frame.header.index == last.header.index + 1 and frame.header.term >= last.header.term

    def sizes_at(self, pos: int) -> tuple[int, ...]:
        header = self._header(pos)
        return () if header is None else (header.size, layout.ENTRY_HEADER_SIZE + header.body_size)

    def index_at(self, pos: int) -> int:
        header = self._header(pos)
        return -1 if header is None else header.index

    def _frame_candidates(self, chunk: bytes, count: int, pos: int | None) -> Iterator[int]:
        offsets, headers = entry_candidates(np.frombuffer(chunk, np.uint8), count)
        fitting = headers["size"].astype(np.int64) == headers["bodySize"].astype(np.int64) + layout.ENTRY_HEADER_SIZE
        if pos is not None:
            fitting |= headers["pos"] == offsets + pos
        yield from offsets[fitting].tolist()

    def _blank_candidates(self, chunk: bytes, count: int) -> Iterator[int]:
        data = np.frombuffer(chunk, np.uint8)
        count = min(count, len(data) - layout.MIN_BLANK_SIZE + 1)
        if count <= 0:
            return
        is_blank = data[:count] & data[1 : count + 1] & data[2 : count + 2] & data[3 : count + 3] == 0xFF
        # A size below 2^31 begins with a bit 0: without this test, bytes of 0xFF throughout would be slow.
        yield from np.flatnonzero(is_blank & (data[4 : count + 4] < 0x80)).tolist()


class MessageFrames(Frames):
    """Messages of an old CommitLog."""

    name = "message"
    min_size = layout.MIN_MESSAGE_SIZE

    def examine(self, pos: int) -> Frame | Fact:
        left = self.data.end - pos
        start = self._start(pos, layout.MIN_MESSAGE_SIZE)
        if start is None:
            return Fact(ProblemCode.MESSAGE_END, pos, 0, left)
        magic = _signed(start[_MAGIC_OFFSET : _MAGIC_OFFSET + 4])
        if magic not in MESSAGE_MAGICS:
            if not any(start):
                return Fact(ProblemCode.NO_MESSAGE, pos)
            return Fact(ProblemCode.MESSAGE_MAGIC, pos, 0, magic)
        total_size = _signed(start[:4])
        if not layout.MIN_MESSAGE_SIZE <= total_size <= left:
            return Fact(ProblemCode.MESSAGE_SIZE, pos, left, total_size)
        physical_offset = _signed(start[layout.PHYSICAL_OFFSET_AT :][:8])
        if self.segment.check_pos and physical_offset != pos:
            return Fact(ProblemCode.MESSAGE_ELSEWHERE, pos, pos, physical_offset)
        message = parse_message(self.data, pos, total_size, pos)
        return message if isinstance(message, Fact) else Frame(pos, total_size, None, message)

    def damaged_at(self, pos: int) -> DamagedFrame | None:
        header = self._start(pos, layout.MIN_MESSAGE_SIZE)
        if header is None or _signed(header[layout.PHYSICAL_OFFSET_AT :][:8]) != pos:
            return None
        if _signed(header[_MAGIC_OFFSET : _MAGIC_OFFSET + 4]) not in MESSAGE_MAGICS:
            return None
        start = MIN_BODY_START + sum(host_sizes(_signed(header[_FLAGS_OFFSET:][:4]))) - 2 * layout.HOST_SIZES[0]
        length = self.data[pos + start - 4 : pos + start] if self.data.end - pos >= start else b"\xff"
        size, body_size = _signed(header[:4]), _signed(length)
        is_likely = body_size >= 0 and start + body_size < size <= layout.MAX_ENTRY_SIZE
        return DamagedFrame(pos, pos + start + (body_size if is_likely else 0), None)

    def blank_at(self, pos: int) -> Blank | None:
        start = self._start(pos, layout.MIN_BLANK_SIZE)
        if start is None or start[_MAGIC_OFFSET:] != _FILLER_MAGIC_BYTES:
            return None
        return Blank(pos, _signed(start[:4]))

    def follows(self, last: Frame, frame: Frame) -> bool:
        return True

    def sizes_at(self, pos: int) -> tuple[int, ...]:
        start = self._start(pos, layout.MIN_MESSAGE_SIZE)
        return () if start is None else (_signed(start[:4]),)

    def _frame_candidates(self, chunk: bytes, count: int, pos: int | None) -> Iterator[int]:
        prefix = _MESSAGE_MAGIC_BYTES[0][:3]
        for offset in _occurrences(chunk, prefix, count):
            if chunk[offset + _MAGIC_OFFSET : offset + _MAGIC_OFFSET + 4] in _MESSAGE_MAGIC_BYTES:
                yield offset

    def _blank_candidates(self, chunk: bytes, count: int) -> Iterator[int]:
        yield from _occurrences(chunk, _FILLER_MAGIC_BYTES, count)


def entry_candidates(data: npt.NDArray[np.uint8], max_count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The offsets below ``max_count`` at which an entry's magic stands, and the headers there."""
    count = min(max_count, len(data) - layout.ENTRY_HEADER_SIZE + 1)
    if count <= 0:
        return np.empty(0, np.int64), np.empty(0, HEADER_DTYPE)
    # Unsigned: 0 - 1 wraps around, so only 1, 2 and 3 are left.
    offsets = np.flatnonzero(data[3 : 3 + count] - np.uint8(1) < len(layout.ENTRY_MAGICS))
    offsets = offsets[(data[offsets] | data[offsets + 1] | data[offsets + 2]) == 0]
    windows = np.lib.stride_tricks.sliding_window_view(data, layout.ENTRY_HEADER_SIZE)
    return offsets, windows[offsets].reshape(-1).view(HEADER_DTYPE)


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _occurrences(chunk: bytes, magic: bytes, count: int) -> Iterator[int]:
    """Offsets below ``count`` of records that have ``magic`` at `_MAGIC_OFFSET`."""
    offset = chunk.find(magic, _MAGIC_OFFSET)
    while 0 <= offset - _MAGIC_OFFSET < count:
        yield offset - _MAGIC_OFFSET
        offset = chunk.find(magic, offset + 1)
