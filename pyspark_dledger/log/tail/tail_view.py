"""A store at one refresh of its tail: what is committed, and up to where it may be read."""

from __future__ import annotations

from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.committed import Bound
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.entry_ref import EntryRef, entry_ref


class TailView:
    """A store at one refresh. ``end`` is the last entry that may be read, ``last_known`` that of the refresh before."""

    def __init__(self, store: StoreView, bound: Bound, last_known: EntryRef | None) -> None:
        self.store = store
        self.bound = bound
        self.last_known = last_known
        self.end: EntryRef | None = None

    @property
    def begin(self) -> int:
        """The position of the first row."""
        return self.store.min_offset

    @property
    def begin_index(self) -> int | None:
        """The first index of the log; None without one."""
        first = next(filter(None, map(self.store.first_entry, self.store.ledger_segments)), None)
        return first[1] if first is not None and self.store.end.entries > 0 else None

    def entry_ref(self, source: str, pos: int) -> EntryRef | None:
        """The entry or message at a position of a source, or None."""
        return entry_ref(self.store, source, pos)

    def position_of(self, index: int) -> int:
        """The position of the first entry with at least `index`; without a walk if the index file has it."""
        end, known = self.store.end, self.last_known
        if index == end.last_index:
            return end.last_pos
        indexed = self.store.indexed(index)
        if indexed is not None:
            return indexed
        is_before = known is not None and known.offset.index is not None and known.offset.index <= index
        if known is not None and is_before and index <= end.last_index and known.end <= end.pos:
            segment = segment_at(self.store.ledger_segments, known.pos)
            if segment is not None and self.entry_ref(DLEDGER, known.pos) == known:
                stop = self.store.segment_end(segment)
                pos = self.store.engine.seek(segment, known.pos, stop, index)
                if pos < stop:
                    return pos
        return self.store.position_of(index)

    def entry(self, index: int) -> EntryRef | None:
        """The entry `index`, or the first one after it if that entry is damaged."""
        return self.entry_ref(DLEDGER, self.position_of(index))

    def last_old_message(self) -> EntryRef | None:
        """The last message of the old CommitLog."""
        found = self.store.ends.get(COMMITLOG)
        return self.entry_ref(COMMITLOG, found[1].last_pos) if found is not None else None
