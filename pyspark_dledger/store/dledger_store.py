"""What every store can do (``DLedgerStore`` of the Java DLedger), and what it takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Bodies, Buffer

# Sees entries before they are written, one behind the other, of which it may change what stands in the bodies, and
# their index units of 32 bytes each, which tell where each of them is going to stand (`patch_physical_offsets`).
AppendHook = Callable[[bytearray, bytearray], None]


class EntryRun(NamedTuple):
    """Entries that stand one behind the other from ``pos`` on, the first with ``index``."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int


class AppendedEntries(NamedTuple):
    """Entries that were appended, ``[first_index, last_index]``; a new run begins wherever a new file does."""

    first_index: int
    last_index: int
    term: int
    runs: tuple[EntryRun, ...]

    @property
    def pos(self) -> int:
        """Where the first of them stands."""
        return self.runs[0].pos


class Entry(NamedTuple):
    """One entry of a log; ``pos`` is where it stands, ``body`` what was appended."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    magic: int
    body: bytes


class EntryRange(NamedTuple):
    """Consecutive entries ``[first_index, last_index]`` of one file, as they stand in the log from ``pos`` on.

    ``data`` may be a view of a mapped file: it is not to be kept beyond the next truncate or shutdown, but may be sent.
    """

    first_index: int
    last_index: int
    pos: int
    data: Buffer


class DLedgerStore(ABC):
    """A log of entries, written by one thread. Indexes and terms are -1 where there is none.

    Appending makes entries readable at once, and durable with the next `flush`. Every method that takes an index raises
    IndexRangeError where the log does not hold it; writing raises DiskFullError where there is no room (nothing is
    appended then) and StoreError where the disk fails.
    """

    append_hook: AppendHook | None = None

    @abstractmethod
    def startup(self) -> None:
        """Load and recover. Raises StoreError where the store is in use, or damaged below what is committed."""

    @abstractmethod
    def shutdown(self) -> None:
        """Flush, write the checkpoint and let go. May be called twice."""

    @property
    def failure(self) -> str | None:
        """Why everything but reading raises StoreError until a restart; None while all is well."""
        return None

    @property
    @abstractmethod
    def ledger_begin_index(self) -> int: ...

    @property
    @abstractmethod
    def ledger_end_index(self) -> int: ...

    @property
    @abstractmethod
    def ledger_end_term(self) -> int: ...

    @property
    @abstractmethod
    def committed_index(self) -> int: ...

    @property
    @abstractmethod
    def flushed_index(self) -> int:
        """The highest index that survives a loss of power."""

    @property
    @abstractmethod
    def end_pos(self) -> int:
        """The position right behind the last entry."""

    @property
    @abstractmethod
    def curr_term(self) -> int:
        """The term that was saved last; 0 for a new store."""

    @property
    @abstractmethod
    def vote_leader(self) -> str | None:
        """For whom this node voted in `curr_term`."""

    @abstractmethod
    def save_term(self, term: int, vote_leader: str | None) -> None:
        """Replace term and vote, atomically and durably, before this returns."""

    @abstractmethod
    def append_as_leader(self, bodies: Bodies | Sequence[Buffer], term: int | None = None) -> AppendedEntries:
        """Append one entry for each body, all or none, with the next indexes and that term (`curr_term` by default).

        Raises ValueError for no body, one above 4 MiB with its header, or one too large for a data file.
        """

    @abstractmethod
    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        """Append a leader's consecutive entries, all or none; the index of the last.

        Raises InconsistentError unless index and position go on where this log ends, and terms do not fall and are not
        above the leader's.
        """

    @abstractmethod
    def get(self, index: int) -> Entry: ...

    @abstractmethod
    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        """Entries from that index on, of at most `max_bytes`, but at least one, and of one file only."""

    @abstractmethod
    def term_at(self, index: int) -> int: ...

    @abstractmethod
    def truncate(self, index: int) -> None:
        """Remove the entry of that index and all behind it, durably. At or below the committed index: ValueError."""

    @abstractmethod
    def reset(self, index: int, pos: int) -> None:
        """Remove every entry, durably; the next one gets this index and position.

        For a follower whose log ends before the leader's begins: entries between have expired. At or below the
        committed index: ValueError.
        """

    @abstractmethod
    def update_committed_index(self, term: int, index: int) -> None:
        """Raise the committed index, never beyond the end, never down, and not by a leader older than the log's end."""

    @abstractmethod
    def update_ledger_end_index_and_term(self) -> None:
        """Take end index and end term anew from what is stored."""

    @abstractmethod
    def flush(self) -> int:
        """Make everything that was appended durable; the flushed index. May be called from another thread."""
