"""Finds where the log of a store ends, in each source and in each segment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark_dledger.format.codec import IndexUnit, decode_blank, decode_entry_header
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MESSAGE_HEADER_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, NO_EVIDENCE, Evidence, LogEnd, PrecedingEntry, Segment
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at
from pyspark_dledger.log.io.state_files import read_current_term
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.store_segments import is_unwritten, last_confirmed_unit, last_entry, last_unit_below
from pyspark_dledger.log.witness.store_witness import StoreWitness

_SIGN_BYTES = 128
"""Headers of an entry and its message, with the time of the message."""

Signs = tuple[bytes, IndexUnit | None, int]

NO_ENTRY = LogEnd(0, 0, -1, -1, -1, -1, -1, -1)
"""The end of a log without entries."""


class LastEntry(NamedTuple):
    """The last entry of a source: the base of its segment, its position, index and term."""

    base: int
    pos: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int


@dataclass(frozen=True)
class KnownEnds:
    """What an earlier search found: the last entry of each source.

    ``signs`` are each end, and what changes when an entry is appended there. ``searched_for`` says why a whole segment
    was searched for entries after the end, if that found none. ``evidence`` is what the index then proved, by the base
    of a segment.
    """

    lasts: dict[str, LastEntry] = field(default_factory=dict)
    signs: dict[str, tuple[LogEnd, Signs]] = field(default_factory=dict)
    searched_for: tuple[Any, ...] | None = None
    evidence: dict[int, Evidence] = field(default_factory=dict)


class LogEnds:
    """The ends of the log. The search begins at the entries that `known` has, if they are still there."""

    def __init__(
        self,
        segments: list[Segment],
        paths: StorePaths,
        engine: Engine,
        index: DLedgerIndex,
        checkpoint: Checkpoint | None,
        known: KnownEnds,
    ) -> None:
        self._segments = segments
        self._paths = paths
        self._engine = engine
        self._index = index
        committed = checkpoint.committed_index if checkpoint is not None else None
        self._committed_index = -1 if committed is None else committed
        checkpoint_end = checkpoint.end_index if checkpoint is not None else None
        self._checkpoint_end = -1 if checkpoint_end is None else checkpoint_end
        self._known = known
        self._searched_for: tuple[Any, ...] | None = None
        # What the index proves, for segments with damage by their base.
        self._evidence: dict[int, Evidence] = {}
        self._seen: dict[str, tuple[LogEnd, Signs]] = {}

    @cached_property
    def by_source(self) -> dict[str, tuple[Segment, LogEnd]]:
        """For each source, its last segment with entries and where the log ends in it."""
        ends = {}
        for segment in reversed(self._segments):
            if segment.source in ends:
                continue
            end = self._end_in(segment)
            if end.entries > 0:
                ends[segment.source] = (segment, end)
        return ends

    def known(self) -> KnownEnds:
        """What a later search can begin with."""
        if "by_source" not in self.__dict__:
            return self._known
        lasts = {
            source: LastEntry(segment.base, end.last_pos, end.last_index, end.last_term)
            for source, (segment, end) in self.by_source.items()
        }
        for source, (segment, end) in self.by_source.items():
            signs = self._signs(segment, end) if source not in self._seen else None
            if signs is not None:
                self._seen[source] = end, signs
        return KnownEnds(lasts, self._seen, self._searched_for, self._evidence)

    def _signs(self, segment: Segment, end: LogEnd) -> Signs | None:
        """What changes if the log continues: the bytes after its end, the next index unit and the checkpoint.

        None if these bytes can be its next entry, written since.
        """
        head = segment.read(end.pos, _SIGN_BYTES)
        if segment.source == COMMITLOG:
            return None if has_message_magic(head, 0, len(head)) else (head, None, -1)
        header = decode_entry_header(head) if len(head) == _SIGN_BYTES else None
        if header is not None and header.index == end.last_index + 1 and header.term >= end.last_term:
            return None
        return head, self._index.unit(end.last_index + 1), self._checkpoint_end

    def segment_end(self, segment: Segment) -> int:
        """The position up to which a segment is walked: its end, or the end of the log."""
        last, end = self.by_source.get(segment.source, (None, NO_ENTRY))
        if last is not None and segment.base < last.base:
            return segment.end
        evidence = self._evidence.get(segment.base, NO_EVIDENCE) if segment.source == DLEDGER else NO_EVIDENCE
        segment_end = segment.end if evidence.log_end is None else evidence.log_end
        if last is None:
            # Only zeros are a log that was never written; other bytes are damage, which is shown.
            return segment.base if self._is_blank(segment) else segment_end
        if segment.base > last.base:
            return segment_end if self._lost_its_entries(segment, end) else segment.base
        if segment.is_short:
            return segment.end
        # Committed entries can be lost after the last one that is there.
        return max(end.pos, evidence.committed_end)

    def _end_in(self, segment: Segment) -> LogEnd:
        start = self._last_known_in(segment)
        if start > segment.base:
            seen = self._known.signs.get(segment.source)
            if seen is not None and seen[0].last_pos == start and seen[1] == self._signs(segment, seen[0]):
                self._seen[segment.source] = seen
                self._evidence.update(self._known.evidence)
                if segment.source == DLEDGER:
                    self._searched_for = self._known.searched_for
                return seen[0]
        else:
            start = self._committed_in(segment)
        return self._new_end_in(segment, start)

    def _new_end_in(self, segment: Segment, start: int) -> LogEnd:
        if isinstance(segment.witness, StoreWitness) and start > segment.base:
            segment = replace(segment, witness=segment.witness.since(start))
        # For a lone file, only a search shows whether the log continues after damage.
        end = self._search(segment, start, self._paths.only is not None)
        if end.entries == 0 and not self._is_blank(segment):
            # Its first entry may just have been written.
            end = self._search(segment, start, False)
            if end.entries == 0 and start > segment.base:
                return self._new_end_in(segment, segment.base)  # a file that was cut has not all of this entry
            if end.entries == 0:
                end = self._search(segment, start, True)
        if segment.source != DLEDGER:
            return end
        if end.entries == 1 and start == segment.base:
            end = self._beyond_damaged_first(segment, end)
        while end.entries > 0 and self._continues(segment, end):
            # A log that is being written has grown meanwhile; a damaged one still ends at the same entry.
            later = self._search(segment, end.last_pos, False)
            if later.last_index <= end.last_index:
                return self._searched_end(segment, start, end)
            end = later
        is_doubtful = self._has_gap(segment, start, end) or self._term_falls(segment, start, end)
        return self._end_by_index(segment, start, end) if is_doubtful else end

    def _search(self, segment: Segment, start: int, search_all: bool) -> LogEnd:
        """The end that an engine finds, which is at no entry with a later term than the node's: damage raised it."""
        end = self._engine.log_end(segment, start, search_all)
        while segment.source == DLEDGER and 0 <= self._current_term < end.last_term:
            found = self._engine.log_end(segment, end.pos, True)
            lost, room = found.last_index - end.last_index - found.entries, found.last_pos - end.pos
            if found.first_index <= end.last_index or not 0 <= lost * ENTRY_HEADER_SIZE <= room:
                break
            end = found._replace(
                entries=end.entries + found.entries, first_index=end.first_index, first_term=end.first_term
            )
        return end

    def _beyond_damaged_first(self, segment: Segment, end: LogEnd) -> LogEnd:
        """The end of the log after a segment's first entry, if that has a wrong index or term for the one before."""
        previous = next((one for one in self._segments if one.end == segment.base and one.source == DLEDGER), None)
        if previous is None or not any(segment.read(end.pos, _SIGN_BYTES)):
            return end
        before = last_entry(previous, segment.base, self._engine, self._index)
        if before is None or self._can_follow(before, end, 0, segment.base):
            return end
        found = self._engine.log_end(segment, end.pos, True)
        if found.entries == 0 or not self._can_follow(before, found, 1, found.last_pos - (end.pos - segment.base)):
            return end
        return found._replace(entries=found.entries + 1, first_index=end.first_index, first_term=end.first_term)

    def _can_follow(self, before: PrecedingEntry, end: LogEnd, more: int, pos: int) -> bool:
        """Whether entries up to `end` can follow an entry, after `more` entries and lost ones up to a position."""
        lost = end.first_index - before.index - 1 - more
        is_possible = 0 <= lost * ENTRY_HEADER_SIZE <= pos - before.end
        is_seen = end.last_term <= self._current_term or self._current_term < 0
        return is_possible and before.term <= end.first_term and is_seen

    def _has_gap(self, segment: Segment, start: int, end: LogEnd) -> bool:
        """Whether entries between the start of the search and the end are damaged."""
        if end.entries == 0:
            return not is_unwritten(segment)
        if end.last_index - end.first_index + 1 != end.entries:
            return True
        first = entry_at(segment, start)
        if first is None and start == segment.base:
            # DLedger 0.4.0 can begin a file with a blank.
            blank = segment.read(segment.base, MIN_BLANK_SIZE)
            size = decode_blank(blank) if len(blank) == MIN_BLANK_SIZE else None
            first = entry_at(segment, start + size) if size is not None else None
        return first is None or first.index != end.first_index

    def _searched_end(self, segment: Segment, start: int, end: LogEnd) -> LogEnd:
        """The end by a search of the whole segment, unless an earlier one for the same reasons found nothing.

        Java leaves index units of entries that it truncated.
        """
        unit = self._index.unit(end.last_index + 1)
        reasons = (end.pos, end.last_index, end.last_term, unit, self._checkpoint_end)
        if reasons == self._known.searched_for:
            self._searched_for = reasons
            self._evidence.update(self._known.evidence)
            return self._before_log_end(segment, start, end)
        found = self._end_by_index(segment, start, self._search(segment, start, True))
        self._searched_for = reasons if found.pos == end.pos else None
        return found

    def _end_by_index(self, segment: Segment, start: int, end: LogEnd) -> LogEnd:
        """The end of a segment with damage, or with stale entries after the log's end, as the index proves it."""
        if isinstance(segment.witness, StoreWitness):
            self._evidence[segment.base] = segment.witness.evidence(segment)
        return self._before_log_end(segment, start, end)

    def _before_log_end(self, segment: Segment, start: int, end: LogEnd) -> LogEnd:
        """The end without the stale entries after it, which can look like the log's next ones."""
        log_end = self._evidence.get(segment.base, NO_EVIDENCE).log_end
        if log_end is None or log_end >= end.pos:
            return end
        until = replace(segment, size=max(log_end, start) - segment.base)
        return self._search(until, start, True)

    def _term_falls(self, segment: Segment, start: int, end: LogEnd) -> bool:
        """Whether an entry of an earlier term follows a later one, and the node has a later term than the last one."""
        if end.entries == 0 or self._is_of_current_term(end.last_term):
            return False
        runs = self._engine.term_runs(segment, start, end.pos)
        return any(run.term > following.term for run, following in pairwise(runs))

    def _is_blank(self, segment: Segment) -> bool:
        """Whether a segment was only created ahead: it begins with zeros, and the index has no entry of it."""
        if not is_unwritten(segment):
            return False
        has_index = segment.source == DLEDGER and self._checkpoint_end >= 0
        unit = self._index.unit(self._checkpoint_end) if has_index else None
        return unit is None or unit.pos < segment.base

    def _committed_in(self, segment: Segment) -> int:
        """The position of the last entry up to the committed one that the index finds in the segment; else its base.

        Committed entries are never truncated, so the end is after it, and a large file need not be walked.
        """
        if segment.source != DLEDGER or not segment.check_pos:
            return segment.base
        last = self._committed_index
        unit = self._index.unit(last) if last >= 0 else None
        if unit is not None and unit.pos >= segment.end:  # of a lone file, a later one has it
            last = min(last, last_unit_below(self._index, segment.end))
        unit = last_confirmed_unit(self._index, segment, last)
        return unit.pos if unit is not None else segment.base

    def _last_known_in(self, segment: Segment) -> int:
        """The position of the last entry of an earlier search, if it is still there; else the segment's base."""
        last = self._known.lasts.get(segment.source)
        if last is None or last.base != segment.base:
            return segment.base
        if segment.source == COMMITLOG:
            head = segment.read(last.pos, MESSAGE_HEADER_SIZE)
            return last.pos if has_message_magic(head, 0, len(head)) else segment.base
        header = entry_at(segment, last.pos)
        is_same = header is not None and (header.index, header.term) == (last.index, last.term)
        return last.pos if is_same and self._is_of_current_term(last.term) else segment.base

    def _is_of_current_term(self, term: int) -> bool:
        """Whether `term` is still the current one: the leader of a later term may have truncated its entries.

        Java leaves the bytes of truncated entries in the file.
        """
        return self._current_term <= term

    @cached_property
    def _current_term(self) -> int:
        """The node's term, -1 if it is not known."""
        node_dir = self._paths.node_dir
        current = read_current_term(node_dir)[0] if node_dir is not None else None
        return -1 if current is None or current.curr_term is None else current.curr_term

    def _continues(self, segment: Segment, end: LogEnd) -> bool:
        """Whether the index or the checkpoint knows entries after this end, or a queue if bytes are left there.

        An index unit of an earlier term belongs to an entry that was truncated.
        """
        unit = self._index.unit(end.last_index + 1)
        if unit is not None and end.pos <= unit.pos < segment.end and unit.term >= end.last_term:
            return True
        is_last = self._paths.only is None and segment.path == self._segments[-1].path
        if is_last and self._checkpoint_end > end.last_index:
            return True
        return any(segment.read(end.pos, _SIGN_BYTES)) and bool((segment.known_entries().pos >= end.pos).any())

    def _lost_its_entries(self, segment: Segment, end: LogEnd) -> bool:
        """Whether a segment after the log's end had entries: it is too short, or written and the log continued."""
        if segment.is_short:
            return True
        continued = segment.source == DLEDGER and self._checkpoint_end > end.last_index
        return continued and not self._is_blank(segment)
