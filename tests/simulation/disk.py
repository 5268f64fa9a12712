"""A store whose disk forgets what was not fsynced, fails when told to, and can lose power inside an operation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from random import Random
from typing import TYPE_CHECKING

from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.store.dledger_store import AppendedEntries
from pyspark_dledger.store.memory_store import MemoryStore

if TYPE_CHECKING:
    from tests.simulation.judge import Judge


class PowerCut(BaseException):
    """The process of a node ended inside an operation of its store. No core may catch it."""


class SimStore(MemoryStore):
    """What one process of a node sees of its disk; `survive` gives what the next one finds.

    Under `is_sync` a crash keeps what was flushed and any prefix of the rest, otherwise all that was written. Term and
    vote and truncations are durable at once, a reset with the first entry behind it, the committed index as of the last
    checkpoint.
    """

    def __init__(self, node_id: str, is_sync: bool, data_file_size: int, judge: Judge) -> None:
        super().__init__(data_file_size=data_file_size)
        self.node_id = node_id
        self.is_sync = is_sync
        self.judge = judge
        self.checkpoint = -1
        # Whether an fsync is under way, and the end as it saw it (less what was cut since).
        self.is_flushing = False
        self.flushing = -1
        # What a reset took away: it comes back with a crash before a new entry is durable.
        self.aside: SimStore | None = None
        self.resets = 0
        # The end before an append in whose middle the process ended.
        self.torn_behind: int | None = None
        # Operations until the power goes, 0: never; and whether the last of them still happens.
        self.fuse = 0
        self.is_cut_after = False
        # Appends that find no room, and operations that the disk fails, before it is well again.
        self.full = 0
        self.broken = 0
        # What fails or is cut off, "" for every operation.
        self.broken_in = ""
        self.fuse_in = ""

    @property
    def durable_index(self) -> int:
        """The highest index that a crash now would leave in any case."""
        return self._flushed if self.is_sync else self.ledger_end_index

    # What the core calls.

    def append_as_leader(self, bodies: Bodies | Sequence[Buffer], term: int | None = None) -> AppendedEntries:
        is_last = self._before("append", is_append=True)
        done = super().append_as_leader(bodies, term)
        self._appended(done.last_index - done.first_index + 1, is_last)
        return done

    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        is_last = self._before("append", is_append=True)
        before = self._next_index
        last = super().append_as_follower(data, leader_term)
        self._appended(last - before + 1, is_last)
        return last

    def truncate(self, index: int) -> None:
        is_last = self._before("truncate")
        self.judge.truncating(self, index)
        super().truncate(index)
        self._forget(index - 1)
        self._after(is_last, "truncate")

    def reset(self, index: int, pos: int) -> None:
        is_last = self._before("reset")
        self.judge.resetting(self, index)
        if self.aside is None:
            self.aside = copy(self)
            self.aside._entries = self._entries.copy()
        super().reset(index, pos)
        self.resets += 1
        self._forget(-1)
        self._after(is_last, "reset")

    def save_term(self, term: int, vote_leader: str | None) -> None:
        is_last = self._before("save_term")
        self.judge.saving_term(self, term, vote_leader)
        super().save_term(term, vote_leader)
        self._after(is_last, "save_term")

    def flush(self) -> int:
        """The core has no business flushing: the disk does, in its own time."""
        raise AssertionError("the core called flush")

    # What the world does.

    def begin_flush(self) -> bool:
        """Starts an fsync of all that is written; false where one is under way or nothing is new."""
        if self.is_flushing or self._flushed >= self.ledger_end_index:
            return False
        self.is_flushing = True
        self.flushing = self.ledger_end_index
        return True

    def end_flush(self) -> int:
        """The index that the fsync which ends now made durable; -1 where all of it has been cut since."""
        self.is_flushing = False
        self._flushed = max(self._flushed, self.flushing)
        if self._flushed >= 0:
            self.aside = None
        return self._flushed

    def write_checkpoint(self) -> None:
        """The committed index is kept over a crash from here on, as far as it is flushed."""
        self.checkpoint = max(self.checkpoint, min(self._committed, self.durable_index))

    def close(self) -> None:
        """An orderly end: everything is flushed and the checkpoint written."""
        self._flushed = self.ledger_end_index
        self.checkpoint = self._committed
        if self._entries:
            self.aside = None

    def expire(self, index: int) -> int:
        """Removes entries below that index, as files expire; the number of them. Committed and flushed ones only."""
        count = min(index, self._committed, self.durable_index) - self.ledger_begin_index
        if self._entries and count > 0:
            del self._entries[:count]
            return count
        return 0

    def survive(self, random: Random) -> SimStore:
        """The store as the next process of the node finds it after a crash (after `close`: an orderly end)."""
        begin, end = self.ledger_begin_index, self.ledger_end_index
        sure = self.durable_index if self.torn_behind is None else min(self.durable_index, self.torn_behind)
        kept = self._kept(random, max(sure, begin - 1), end)
        if self.aside is not None and kept < max(begin, 0):
            self.judge.count("resets undone by a crash")
            self.aside._term, self.aside._vote_leader = self._term, self._vote_leader
            self.aside.fuse = 0
            return self.aside.survive(random)
        after = SimStore(self.node_id, self.is_sync, self._file_size, self.judge)
        after._term, after._vote_leader = self._term, self._vote_leader
        # What is to happen in rare operations is still to come.
        after.broken, after.broken_in = self.broken, self.broken_in
        after.fuse, after.fuse_in, after.is_cut_after = self.fuse, self.fuse_in, self.is_cut_after
        after._entries = self._entries[: kept - begin + 1] if begin >= 0 else []
        if after._entries:
            after._next_index = begin + len(after._entries)
            after._end_pos = after._entries[-1].end
            after._flushed = after.ledger_end_index
            after._committed = after.checkpoint = min(self.checkpoint, after.ledger_end_index)
        self.judge.survived(self, after)
        return after

    def _kept(self, random: Random, durable: int, end: int) -> int:
        if durable >= end:
            return end
        return random.choice((durable, end, random.randint(durable, end)))

    # Faults around every operation.

    def _before(self, what: str, is_append: bool = False) -> bool:
        """Whether power goes in this operation, but behind it. Raises what the disk is told to fail with."""
        if self.full and is_append:
            self.full -= 1
            self.judge.count("disk full")
            raise DiskFullError("the simulated disk is full")
        if self.broken and self.broken_in in ("", what):
            self.broken -= 1
            self.judge.count(f"disk failed in {what}")
            raise StoreError("the simulated disk failed")
        if self.fuse and self.fuse_in in ("", what):
            self.fuse -= 1
            if not self.fuse:
                if not self.is_cut_after:
                    self.judge.count(f"power cut before {what}")
                    raise PowerCut
                return True
        return False

    def _after(self, is_last: bool, what: str) -> None:
        if is_last:
            self.judge.count(f"power cut after {what}")
            raise PowerCut

    def _appended(self, count: int, is_last: bool) -> None:
        self.judge.appended(self, self._entries, len(self._entries) - count)
        if not self.is_sync:
            self.aside = None
        if is_last:
            self.torn_behind = self.ledger_end_index - count
        self._after(is_last, "append")

    def _forget(self, end: int) -> None:
        """A fsync that is under way no longer vouches for what is written behind `end` from now on."""
        self.flushing = min(self.flushing, end)
        self._flushed = min(self._flushed, end)
        self.checkpoint = min(self.checkpoint, end)
