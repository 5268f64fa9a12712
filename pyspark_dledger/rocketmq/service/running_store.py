"""What the message service uses of its node's store and of an append."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark_dledger.rocketmq.dedup.log_entries import LogEntries


class RunningStore(LogEntries, Protocol):
    """The store of a running node (`store.DLedgerStore`), used in the node's thread only."""

    append_hook: Callable[[bytearray, bytearray], None] | None

    @property
    def committed_index(self) -> int: ...

    @property
    def end_pos(self) -> int: ...


class AppendedEntries(Protocol):
    """The entries of one append (`store.Appended`)."""

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def runs(self) -> Sequence[tuple[int, int]]: ...
