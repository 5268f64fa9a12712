"""Surveys a segment in one pass: what each byte is, and every problem."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import header_kind
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.scan.frames import Frame, Frames
from pyspark_dledger.format.scan.row_values import Row, row_problems
from pyspark_dledger.format.scan.segment_file import SegmentFile
from pyspark_dledger.format.scan.walk import Span, Walk, odd_blank_reason
from pyspark_dledger.format.spec import COMMITLOG, Extent, Problem, Segment, Survey, SurveyRequest

EXTENT_KINDS = ("entry", "message", "blank", "unwritten", "stale", "corrupt")
_CHUNK = 1024 * 1024
_SHORT = (ProblemCode.SHORT_FILE, ProblemCode.UNREADABLE)


def take_survey(request: SurveyRequest, frames: Frames) -> Survey:
    """See `engine.Engine.survey`."""
    return _Surveyor(request, frames).survey()


class _Surveyor:
    def __init__(self, request: SurveyRequest, frames: Frames) -> None:
        self._request = request
        self._frames = frames
        self._segment: Segment = frames.segment
        self._data: SegmentFile = frames.data
        self._first: Frame | None = None
        self._last: Frame | None = None
        self._entries = 0
        self._messages = 0
        self._first_store_timestamp = -1
        self._last_store_timestamp = -1
        self._sizes = dict.fromkeys(EXTENT_KINDS, 0)
        self._extents: list[Extent] = []
        self._open: Extent | None = None
        self._problems: list[Problem] = []
        self._counts: dict[str, int] = {}
        # Bytes of damage since the last entry.
        self._gap = 0

    def survey(self) -> Survey:
        end = min(self._request.end, self._segment.end)
        self._after_end(self._log(self._request.start, end))
        if self._open and len(self._extents) < self._request.max_problems:
            self._extents.append(self._open)
        first = self._first.header if self._first else None
        last = self._last.header if self._last else None
        return Survey(
            self._entries,
            self._messages,
            first.index if first else -1,
            first.term if first else -1,
            self._first.pos if self._first else -1,
            last.index if last else -1,
            last.term if last else -1,
            self._last.pos if self._last else -1,
            self._first_store_timestamp,
            self._last_store_timestamp,
            self._sizes,
            self._extents,
            self._problems,
            self._counts,
        )

    def _add(self, kind: str, pos: int, size: int) -> None:
        """Bytes of a kind, which follow those of the last call."""
        if size <= 0:
            return
        self._sizes[kind] += size
        if self._open and self._open.kind == kind:
            self._open = self._open._replace(size=self._open.size + size)
            return
        if self._open and len(self._extents) < self._request.max_problems:
            self._extents.append(self._open)
        self._open = Extent(kind, pos, size)

    def _report(self, pos: int, size: int, index: int | None, fact: Fact, code: str = "") -> None:
        """Report a problem; `code` is the finding's, if the fact's is another."""
        code = code or fact.code.finding
        count = self._counts.get(code, 0)
        # With a wrong position in one entry, those of all entries are usually wrong: one example is enough.
        if count < self._request.max_problems and (code != "posDiffers" or count == 0):
            self._problems.append(Problem(code, pos, size, index, fact))
        self._counts[code] = count + 1

    def _log(self, start: int, end: int) -> int:
        """Survey the log. Returns its end: ``end``, or where the last frame or blank before it ends."""
        walk = Walk(self._frames, start, end)
        at = start
        damage: Span | None = None
        for span in walk:
            self._add("blank", at, span.pos - at)
            at = span.end
            if span.frame:
                self._report_damage(damage)
                damage = None
                self._frame(span, span.frame)
            elif damage and (damage.end, damage.problem) == (span.pos, span.problem):
                damage = damage._replace(size=damage.size + span.size)  # an extent too long for one row
            else:
                self._report_damage(damage)
                damage = span
        self._report_damage(damage)
        # After a snapshot DLedger 0.4.0 begins a file with a blank, before the file has entries.
        is_healthy = not self._segment.check_pos and walk.odd_blank and walk.odd_blank.pos == self._segment.base
        if walk.odd_blank and not is_healthy:
            reason = odd_blank_reason(self._frames, walk.odd_blank)
            self._report(walk.odd_blank.pos, end - walk.odd_blank.pos, None, reason)
        self._add("blank", at, walk.pos - at)
        return walk.pos

    def _report_damage(self, damage: Span | None) -> None:
        if damage is None:
            return
        assert damage.problem
        is_short = damage.problem.code in _SHORT
        self._gap += damage.size
        self._add("corrupt", damage.pos, damage.size)
        self._report(damage.pos, damage.size, None, damage.problem, "" if is_short else "corruptBytes")

    def _frame(self, span: Span, frame: Frame) -> None:
        row = Row(self._data, span, None)
        message = row.message
        for fact in chain(self._order_problems(frame), row_problems(row, self._request.verify_crc)):
            self._report(span.pos, span.size, _index(frame), fact)
        self._add("message" if message else "entry", span.pos, span.size)
        self._first = self._first or frame
        self._last, self._gap = frame, 0
        self._entries += 1
        if message:
            self._messages += 1
            self._last_store_timestamp = message.store_timestamp
            if self._messages == 1:
                self._first_store_timestamp = message.store_timestamp

    def _order_problems(self, frame: Frame) -> Iterator[Fact]:
        """Problems of a header, by itself and compared with the entry before."""
        header = frame.header
        if header is None:
            return
        before = self._last.header if self._last else None
        if before:
            low = high = before.index + 1
            high += self._gap // layout.ENTRY_HEADER_SIZE
            if not low <= header.index <= high:
                code, most = (ProblemCode.INDEX_GAP, 0) if low == high else (ProblemCode.INDEX_GAP_AFTER_DAMAGE, high)
                yield Fact(code, 0, min(low, INT64_MAX), header.index, min(most, INT64_MAX))
            if header.term < before.term:
                yield Fact(ProblemCode.TERM_ORDER, 0, before.term, header.term)
        if header.pos != frame.pos:
            yield Fact(ProblemCode.POS_DIFFERS, 0, frame.pos, header.pos)
        if (header.channel or header.chain_crc) and not header_kind(header):
            yield Fact(ProblemCode.HEADER_FIELD, 0, 0, header.channel, 0, header.chain_crc)

    def _after_end(self, end: int) -> None:
        """Survey the bytes after the log's end."""
        file_end = self._data.end
        at = end
        blank = self._frames.blank_at(at) if at < file_end else None
        if blank is None or not self._frames.is_closing(blank):
            at = self._stale(at, file_end)
            blank = self._frames.blank_at(at) if at < file_end else None
        if blank and self._frames.is_closing(blank):
            self._add("blank", at, file_end - at)
        elif at < file_end:
            written = _end_of_written(self._data, at, file_end)
            if written > at:
                self._report(at, written - at, None, Fact(ProblemCode.TRAILING_BYTES, at, 0, written - at))
            self._add("corrupt", at, written - at)
            self._add("unwritten", written, file_end - written)
        at = max(end, file_end)
        if at < self._segment.end:
            self._add("corrupt", at, self._segment.end - at)
            self._report(at, self._segment.end - at, None, self._data.shortage)

    def _stale(self, start: int, file_end: int) -> int:
        """Survey the frames that an earlier log left after this one's end. Returns their end."""
        at = start
        first: Frame | None = None
        count = 0
        for frame in self._frames.search(start, file_end):
            if first and frame.pos < at:
                continue  # inside another frame
            first = first or frame
            count += 1
            at = frame.end
        if first:
            code = ProblemCode.STALE_ENTRY if count == 1 else ProblemCode.STALE_ENTRIES
            if self._segment.source == COMMITLOG:
                code = ProblemCode.STALE_MESSAGE if count == 1 else ProblemCode.STALE_MESSAGES
            self._report(start, at - start, _index(first), Fact(code, start, 0, count, 0, at))
            self._add("stale", start, at - start)
        return at


def _index(frame: Frame) -> int | None:
    return frame.header.index if frame.header else None


def _end_of_written(data: SegmentFile, start: int, stop: int) -> int:
    """The end of the last byte in ``[start, stop)`` that is not zero, or ``start`` without one."""
    while stop > start:
        begin = max(start, stop - _CHUNK)
        chunk = data[begin:stop].rstrip(b"\0")
        if chunk:
            return begin + len(chunk)
        stop = begin
    return start
