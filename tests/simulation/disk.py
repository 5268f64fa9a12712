"""A store whose simulated disk loses unflushed data in a crash, can fail, and can lose power in an operation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from random import Random
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.store.dledger_store import AppendedEntries
from tests.simulation.damage import DamagedStore

if TYPE_CHECKING:
    from tests.simulation.checker import Checker


# Operations in which a disk or the power fails: any (""), or mostly the rare ones.
OPERATIONS = ("", "", "append", "save_term", "truncate", "truncate", "reset", "reset")


class PowerCut(BaseException):
    """The process of a node ended in an operation of its store. No core may catch it."""


class SimStore(DamagedStore):
    """The disk as one process of a node sees it; `survive` returns it as the next process finds it.

    With `is_sync` a crash keeps the flushed entries and any prefix of the others, otherwise all. Term, vote and
    truncations are durable at once, a reset with the next entry, the committed index with a checkpoint.
    """

    # A real store on a simulated disk: see `PowerStore`.
    has_lost_power = False
    flushes_in_background = False
    waits_for_others = False

    def __init__(self, node_id: str, is_sync: bool, data_file_size: int, checker: Checker) -> None:
        super().__init__(node_id, data_file_size, checker)
        self.is_sync = is_sync
        self.checkpoint = -1
        # Whether an fsync runs, and the last index that it covers.
        self.is_flushing = False
        self.flushing = -1
        # Whether the core asked for a flush, without `is_sync`.
        self.needs_flush_soon = False
        # The log before a reset: a crash restores it until a new entry is durable.
        self.before_reset: SimStore | None = None
        self.resets = 0
        # What the application saved before entries expired.
        self.summary: bytes | None = None
        # The last index before an append in which the process ended.
        self.torn_after: int | None = None
        # Operations until the power is cut, 0: never; and whether it is cut after the last one, not before.
        self.power_cut_in = 0
        self.is_power_cut_after = False
        # The number of next appends that find the disk full, and of next operations that fail.
        self.full = 0
        self.failures = 0
        # The operations of that kind that succeed before.
        self.successes = 0
        # The operation that fails or loses power, "" for all.
        self.failing_operation = ""
        self.power_cut_operation = ""
        # The disk gets full in the next append, after so many entries, and whether these can be removed.
        self.room: int | None = None
        self.is_removable = True
        # Entries of a failed append that are on the disk.
        self.leftover: list[Any] = []
        # The next fsync fails.
        self.is_flush_failing = False
        self._failure: str | None = None

    def is_recent(self, index: int) -> bool:
        """As of a store on disk: entries of earlier processes are read in another thread."""
        return index > self.started_end or index < self.ledger_begin_index

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def durable_index(self) -> int:
        """The last index that certainly survives a crash."""
        return self.flushed_index if self.is_sync else self.ledger_end_index

    # Called by the core

    def append_as_leader(
        self, bodies: Bodies | Sequence[Buffer], term: int | None = None, control: int = 0
    ) -> AppendedEntries:
        is_last = self._before("append", is_append=True)
        end_pos = self.end_pos
        done = super().append_as_leader(bodies, term, control)
        self._appended(done.last_index - done.first_index + 1, is_last, end_pos)
        return done

    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        is_last = self._before("append", is_append=True)
        before, end_pos = self._next_index, self.end_pos
        last = super().append_as_follower(data, leader_term)
        self._appended(last - before + 1, is_last, end_pos)
        return last

    def truncate(self, index: int) -> None:
        is_last = self._before("truncate")
        self.checker.truncating(self, index)
        super().truncate(index)
        self._keep_damage(0, index - 1)
        self._forget(index - 1)
        self._after(is_last, "truncate")

    def reset(self, index: int, pos: int) -> None:
        is_last = self._before("reset")
        self.checker.resetting(self, index)
        if self.before_reset is None:
            self.before_reset = copy(self)
            self.before_reset._entries = self._entries.copy()
        super().reset(index, pos)
        self.resets += 1
        self.damage = {}
        self._forget(-1)
        self._after(is_last, "reset")

    def save_term(self, term: int, vote_leader: str | None) -> None:
        is_last = self._before("save_term")
        self.checker.saving_term(self, term, vote_leader)
        super().save_term(term, vote_leader)
        self._after(is_last, "save_term")

    def save_cluster_id(self, cluster_id: str) -> None:
        is_last = self._before("save_term")
        self.checker.saving_cluster_id(self, cluster_id)
        super().save_cluster_id(cluster_id)
        self._after(is_last, "save_term")

    def save_member_ids(self, member_ids: tuple[str, ...], state: str = "") -> None:
        is_last = self._before("save_members")
        super().save_member_ids(member_ids, state)
        self._after(is_last, "save_members")

    def flush(self) -> int:
        raise AssertionError("the core called flush: the simulation does")

    def flush_soon(self) -> None:
        self.needs_flush_soon = True

    # Called by the world

    def find_damage(self) -> dict[int, str]:
        """What the scrubber finds."""
        last = min(self.committed_index, self.durable_index)
        return {index: "damaged" for index in self.damage if index <= last and self.is_seen(index)}

    def cut_power(self, random: Random, operation: str | None = None) -> None:
        """Lose power in one of the next operations, or in the next one of that kind."""
        self.power_cut_operation = random.choice(OPERATIONS) if operation is None else operation
        self.power_cut_in = 1 if self.power_cut_operation else random.choice((1, 1, 2, 3, 6))
        self.is_power_cut_after = random.random() < 0.6

    def fill(self, random: Random) -> None:
        """The disk gets full within the next append. Sometimes what was written cannot be removed."""
        self.room, self.is_removable = random.choice((0, 1, 1, 2)), random.random() < 0.4

    def mend(self) -> None:
        """No operation fails from here on."""
        self.power_cut_in = self.full = self.failures = self.successes = 0
        self.room, self.is_flush_failing = None, False

    def take_term(self, old: SimStore) -> None:
        """Get the term and the vote of a disk that is replaced."""
        self.curr_term, self.vote_leader = old.curr_term, old.vote_leader

    def begin_flush(self) -> bool:
        """Start an fsync of all written entries. False if one runs already or there is nothing new."""
        if self.is_flushing or self.flushed_index >= self.ledger_end_index or self._failure is not None:
            return False
        self.is_flushing, self.needs_flush_soon = True, False
        self.flushing = self.ledger_end_index
        return True

    def end_flush(self) -> int:
        """End the fsync. Returns the last durable index, -1 if there is none because of truncations since.

        Raises StoreError if it fails: what it should have made durable may be lost, and no later fsync tells.
        """
        self.is_flushing = False
        if self.is_flush_failing:
            self.is_flush_failing = False
            self.flush_failed()
        self.flushed_index = max(self.flushed_index, self.flushing)
        if self.flushed_index >= 0:
            self.before_reset = None
        return self.flushed_index

    def flush_failed(self) -> None:
        self.checker.count("fsyncs that failed")
        self._failure = "flushing failed"
        raise StoreError("the simulated fsync failed")

    def write_checkpoint(self) -> None:
        """Make the committed index durable, as far as its entries are flushed."""
        self.checkpoint = max(self.checkpoint, min(self.committed_index, self.durable_index))

    def close(self) -> None:
        """A clean shutdown: flush all entries and write the checkpoint."""
        self.flushed_index = self.ledger_end_index
        self.checkpoint = self.committed_index
        if self._entries:
            self.before_reset = None

    def expire(self, index: int) -> int:
        """Remove committed and flushed entries below that index. Returns how many."""
        index = min(index, self.keeps_from, self.committed_index, self.durable_index)
        if not self._entries or index <= self.ledger_begin_index:
            return 0
        index = self.expiry_hook(index, False) if self.expiry_hook is not None else index
        count = index - self.ledger_begin_index
        if count > 0:
            del self._entries[:count]
            self._keep_damage(index, self.ledger_end_index)
            return count
        return 0

    def backup(self) -> SimStore:
        """A copy that ends with the last entry that is committed and durable, and has no vote."""
        saved = type(self)(self.node_id, self.is_sync, self._file_size, self.checker)
        saved.summary = self.summary
        saved.cluster_id, saved.member_ids, saved.member_state = self.cluster_id, self.member_ids, self.member_state
        saved._entries = self._entries[: min(self.committed_index, self.durable_index) - self.ledger_begin_index + 1]
        if saved._entries:
            saved._next_index = self.ledger_begin_index + len(saved._entries)
            saved.end_pos = saved._entries[-1].end
            saved.flushed_index = saved.committed_index = saved.checkpoint = saved.ledger_end_index
        return saved

    def survive(self, random: Random) -> SimStore:
        """The store as the next process finds it after a crash, or after `close`."""
        self._add_leftover()
        begin, end = self.ledger_begin_index, self.ledger_end_index
        durable = self.durable_index if self.torn_after is None else min(self.durable_index, self.torn_after)
        kept = self._kept(random, max(durable, begin - 1), end)
        if self.before_reset is not None and kept < max(begin, 0):
            self.checker.count("resets undone by a crash")
            self.before_reset.curr_term, self.before_reset.vote_leader = self.curr_term, self.vote_leader
            self.before_reset.cluster_id, self.before_reset.member_ids = self.cluster_id, self.member_ids
            self.before_reset.member_state = self.member_state
            self.before_reset.power_cut_in = 0
            self.before_reset.summary, self.before_reset.restored_term = self.summary, self.restored_term
            return self.before_reset.survive(random)
        after = type(self)(self.node_id, self.is_sync, self._file_size, self.checker)
        after.curr_term, after.vote_leader = self.curr_term, self.vote_leader
        after.summary, after.restored_term = self.summary, self.restored_term
        after.cluster_id, after.member_ids, after.member_state = self.cluster_id, self.member_ids, self.member_state
        # Faults of rare operations still happen.
        after.failures, after.failing_operation = self.failures, self.failing_operation
        after.successes = self.successes
        after.power_cut_in, after.power_cut_operation, after.is_power_cut_after = (
            self.power_cut_in,
            self.power_cut_operation,
            self.is_power_cut_after,
        )
        after._entries = self._entries[: kept - begin + 1] if begin >= 0 else []
        if after._entries:
            after._next_index = begin + len(after._entries)
            after.end_pos = after._entries[-1].end
            after.flushed_index = after.ledger_end_index
            after.committed_index = after.checkpoint = min(self.checkpoint, after.ledger_end_index)
            after.damage = self.damage
            after._keep_damage(begin, after.ledger_end_index)
        self.checker.survived(self, after)
        return after

    def _add_leftover(self) -> None:
        """The next process finds what a failed append could not remove."""
        leftover, self.leftover = self.leftover, []
        if leftover:
            self.checker.count("entries of failed appends in the log")
            self._extend(leftover)
            self.checker.appended(self, self._entries, len(self._entries) - len(leftover))

    def _kept(self, random: Random, durable: int, end: int) -> int:
        if durable >= end:
            return end
        return random.choice((durable, end, random.randint(durable, end)))

    # Faults of operations

    def _before(self, what: str, is_append: bool = False) -> bool:
        """Raise the faults of this operation. Returns whether the power is cut after it."""
        if self._failure is not None and what not in ("save_term", "save_members"):
            raise StoreError(f"the store has failed ({self._failure})")
        if self.full and is_append:
            self.full -= 1
            self.checker.count("disk full")
            raise DiskFullError("the simulated disk is full")
        if self.failures and self.failing_operation in ("", what):
            if self.successes:
                self.successes -= 1
                return False
            self.failures -= 1
            self.checker.count(f"disk failed in {what}")
            raise StoreError("the simulated disk failed")
        if self.power_cut_in and self.power_cut_operation in ("", what):
            self.power_cut_in -= 1
            if not self.power_cut_in:
                if not self.is_power_cut_after:
                    self.checker.count(f"power cut before {what}")
                    raise PowerCut
                return True
        return False

    def _after(self, is_last: bool, what: str) -> None:
        if is_last:
            self.checker.count(f"power cut after {what}")
            raise PowerCut

    def _appended(self, count: int, is_last: bool, end_pos: int) -> None:
        if self.room is not None:
            self._fail_partly(count, end_pos)
        self.checker.appended(self, self._entries, len(self._entries) - count)
        if not self.is_sync:
            self.before_reset = None
        if is_last:
            self.torn_after = self.ledger_end_index - count
        self._after(is_last, "append")

    def _fail_partly(self, count: int, end_pos: int) -> None:
        """The disk got full within an append. Its first entries are removed, or the store must not be used again."""
        written = self._entries[-count:][: self.room]
        del self._entries[-count:]
        self._next_index -= count
        self.end_pos, self.room = end_pos, None
        if self.is_removable:
            self.checker.count("partial appends removed from a full disk")
            raise DiskFullError("the simulated disk is full")
        self.checker.count("partial appends that stay on a full disk")
        self.leftover = written
        self.cannot_remove()

    def cannot_remove(self) -> None:
        self._failure = "an append failed, and so did undoing it"
        raise StoreError(f"the store has failed ({self._failure})")

    def _forget(self, end: int) -> None:
        """Entries after `end` are not durable, even if a running fsync covered earlier ones there."""
        self.flushing = min(self.flushing, end)
        self.flushed_index = min(self.flushed_index, end)
        self.checkpoint = min(self.checkpoint, end)
