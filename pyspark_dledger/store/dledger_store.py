"""The interface of a store (``DLedgerStore`` of the Java DLedger) and its value types."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.histogram import Histogram
from pyspark_dledger.format.encode.encoded import Bodies, Buffer


class ScrubProgress(NamedTuple):
    """Bytes that the scrubber has read since the start and in this pass, and those that a pass reads.

    ``last_pass`` is when the last whole pass ended, in seconds since 1970; 0 for none. ``rebuilt_units`` counts index
    units since the start.
    """

    checked_bytes: int = 0
    pass_bytes: int = 0
    log_bytes: int = 0
    last_pass: float = 0.0
    rebuilt_units: int = 0


class StoreMetrics(NamedTuple):
    """A store in memory has no flushes and no folders."""

    is_disk_full: bool = False
    folders: tuple[Path, ...] = ()
    flushes: Histogram | None = None
    scrub: ScrubProgress = ScrubProgress()


# Called before a write with the encoded entries, whose bodies it may change, and their index units of 32 bytes each,
# which have their positions (`patch_physical_offsets`).
AppendHook = Callable[[bytearray, bytearray], None]
# Called with entries read from disk: the offset of the first one that must not be served or pushed, or None.
ReadCheck = Callable[[Buffer], int | None]
# Called before a members entry is written, with its index, term and body.
MembersHook = Callable[[int, int, bytes], None]
# Called in any thread before entries below an index are deleted, and whether the disk needs room: the first index that
# must stay.
ExpiryHook = Callable[[int, bool], int]


class OtherEntryError(ValueError):
    """The copy for a repair is of another entry than the damaged one: neither its header nor its index unit fits."""


class EntryRun(NamedTuple):
    """The first index and position of contiguous entries."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int


class AppendedEntries(NamedTuple):
    """Entries that were appended, ``[first_index, last_index]``; each data file begins a new run."""

    first_index: int
    last_index: int
    term: int
    runs: tuple[EntryRun, ...]

    @property
    def pos(self) -> int:
        """The position of the first entry."""
        return self.runs[0].pos


class Entry(NamedTuple):
    """One entry of a log; ``pos`` is its position in bytes. ``channel``: not 0 in entries of the group itself."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    magic: int
    body: bytes
    channel: int = 0


class EntryRange(NamedTuple):
    """The bytes of consecutive entries ``[first_index, last_index]`` of one file, which begin at ``pos``.

    ``data`` may be a view of a mapped file. It is valid until the next truncate or shutdown.
    """

    first_index: int
    last_index: int
    pos: int
    data: Buffer


class DLedgerStore(ABC):
    """A log of entries, written by one thread. A missing index or term is -1.

    Appended entries are readable at once and durable after the next `flush`. Methods that take an index raise
    IndexRangeError if the log does not have it. Writing raises DiskFullError (nothing is appended then), and StoreError
    if the disk fails.

    ``flushed_index`` is the highest index that survives a power loss, ``end_pos`` the position after the last entry,
    ``curr_term`` the last saved term (0 for a new store), and ``vote_leader`` this node's vote in it.
    ``cluster_id`` and ``member_ids`` are of its group, empty until they are known. ``member_state`` is what the core
    saved with the member ids.
    ``restored_term`` is above every term of the member before it was restored from a backup, -1 if it was not restored.

    Another thread may call `read` and `term_at`. The result counts only if ``removals``, the number of truncations and
    resets, is the same before and after.
    """

    append_hook: AppendHook | None = None
    read_check: ReadCheck | None = None
    expiry_hook: ExpiryHook | None = None
    keeps_from: int = sys.maxsize
    """The first entry that its writer still needs: it is not deleted, and no later one."""
    removals = 0
    is_undo_deferred = False
    """Whether what a failed append wrote stays until `finish_undo`, because that may wait for the disk."""
    members_hook: MembersHook | None = None
    committed_index: int
    flushed_index: int
    end_pos: int
    curr_term: int
    vote_leader: str | None
    restored_term: int = -1
    cluster_id: str
    member_ids: tuple[str, ...]
    member_state: str

    @abstractmethod
    def startup(self) -> None:
        """Load and recover. Raises StoreError if the store is in use, or damaged at or below the committed index."""

    @abstractmethod
    def shutdown(self) -> None:
        """Flush, write the checkpoint and close. May be called twice."""

    @property
    def failure(self) -> str | None:
        """Why everything except reading raises StoreError until a restart; None if nothing failed."""
        return None

    @property
    def is_disk_full(self) -> bool:
        """Whether appends are rejected because the disk is too full."""
        return False

    def metrics(self) -> StoreMetrics:
        return StoreMetrics()

    @property
    @abstractmethod
    def ledger_begin_index(self) -> int: ...

    @property
    @abstractmethod
    def ledger_end_index(self) -> int: ...

    @property
    @abstractmethod
    def ledger_end_term(self) -> int: ...

    @abstractmethod
    def save_term(self, term: int, vote_leader: str | None) -> None:
        """Replace term and vote, atomically and durably."""

    @abstractmethod
    def save_cluster_id(self, cluster_id: str) -> None:
        """Set the cluster id, durably. It is set once."""

    @abstractmethod
    def save_member_ids(self, member_ids: tuple[str, ...], state: str = "") -> None:
        """Replace member ids and member state, atomically and durably."""

    @property
    def file_sizes(self) -> tuple[int, int]:
        """The sizes of data and index files in bytes; 0 without files."""
        return 0, 0

    @abstractmethod
    def append_as_leader(
        self, bodies: Bodies | Sequence[Buffer], term: int | None = None, control: int = 0
    ) -> AppendedEntries:
        """Append one entry per body, all or none, with the next indexes and `term` (default: `curr_term`).

        With `control` the only body becomes a control entry of that kind. Raises ValueError without a body, and for a
        body that is above 4 MiB with its header or fits no data file.
        """

    @abstractmethod
    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        """Append a leader's consecutive entries, all or none. Returns the last index.

        Raises InconsistentError unless index and position continue this log, terms never fall, and no term is above the
        leader's.
        """

    @property
    def needs_undo(self) -> bool:
        """Whether `finish_undo` has something to do."""
        return False

    @property
    def append_may_wait(self) -> bool:
        """Whether the next append may wait for the disk: for `finish_undo`, or to create a file."""
        return False

    def finish_undo(self) -> None:  # noqa: B027  # stores that undo at once need none
        """Remove what a failed append wrote, durably. Raises StoreError if that fails: its outcome is then unknown.

        The next append, truncation or reset does so, too.
        """

    @abstractmethod
    def get(self, index: int) -> Entry: ...

    @abstractmethod
    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        """Entries of one file from `first_index` on: at most `max_bytes`, but at least one entry.

        Raises StoreError if that one is damaged; the range ends before a later damaged one.
        """

    @abstractmethod
    def term_at(self, index: int) -> int: ...

    def is_recent(self, index: int) -> bool:
        """Whether reading needs no disk: the entry was written a short time ago, or is not in the log."""
        return True

    def end_of(self, index: int) -> int | None:
        """The position after an entry; None if it is not known without the disk."""
        return None

    @abstractmethod
    def truncate(self, index: int) -> None:
        """Remove this entry and all later ones, durably. Raises ValueError at or below the committed index."""

    @abstractmethod
    def reset(self, index: int, pos: int) -> None:
        """Remove every entry, durably; the next entry gets this index and position.

        For a follower whose log ends before the leader's begins: the entries between have expired. Raises ValueError at
        or below the committed index.
        """

    @abstractmethod
    def start_scrubbing(self, on_damage: Callable[[dict[int, str]], None]) -> None:
        """Search for damaged entries until shutdown, if the store can have some.

        `on_damage` gets what is wrong with them, by index. Another thread may call it.
        """

    def repair(self, index: int, data: Buffer) -> None:
        """Replace the bytes of a damaged entry with an intact copy, durably.

        Raises ValueError unless it is that entry and matches a checksum, OtherEntryError if it is certainly another.
        """
        raise ValueError(f"expected a store that can repair entry {index}, found {type(self).__name__}")

    @abstractmethod
    def update_committed_index(self, term: int, index: int) -> None:
        """Raise the committed index: never above the end, never down, and not for a term below the last entry's."""

    @abstractmethod
    def flush(self) -> int:
        """Make all appended entries durable. Returns the flushed index. May be called from another thread."""

    def flush_soon(self) -> None:
        """Flush, in another thread if that may wait for a disk."""
        self.flush()
