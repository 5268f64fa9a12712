"""The interface of an application: it checks, numbers and deduplicates puts, and makes entries of them.

The core does not know what entries mean. All calls come from the thread that drives the core. Methods for requests
raise RejectedError for those that are not executed. Any other exception of an application ends its node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.format.encode.encoded import Admitted, Bodies, ProducerState
from pyspark_dledger.store.dledger_store import AppendedEntries, DLedgerStore


class Application(Protocol):
    """Makes entries of puts (a broker's ``DLedgerCommitLog.putMessage``)."""

    def started(self, store: DLedgerStore) -> None:
        """The node has opened its store. Called before all other methods. May set ``store.append_hook``."""

    def stopped(self) -> None:
        """The node makes no more calls and closes its store next. Called once after each `started`."""

    may_wait: bool = True
    """Whether `admit` may wait for the disk. Else it raises DiskNeededError instead."""

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted:
        """Check a put. Rejects with LEADER_NOT_READY until the tables of a new leader are rebuilt."""

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        """The put was appended; `appended` is None if it had no new entries. Returns the positions of all its bodies.

        For each body, in the put's order: index, pos and queueOffset, each i64 big-endian.
        """

    def check_entries(self, bodies: Bodies) -> object:
        """Check raw entries before they are appended. The result is passed to `entries_appended`."""

    def entries_appended(self, checked: object) -> None:
        """Raw entries that `check_entries` accepted were appended."""

    def role_changed(self, is_leader: bool, term: int) -> None:
        """The node began or stopped leading in that term. State of an earlier leadership is invalid.

        Called before any other call for the new leadership, and before any entry of that term is committed.
        """

    def committed(self, index: int) -> None:
        """All entries up to that index are committed. Called at leaders and followers, with rising indexes.

        Not called for entries that were already committed when the store was opened.
        """

    def filler(self) -> Bodies:
        """Bodies without meaning, which a leader appends if no other entries are appended.

        Entries of earlier terms are committed only by an entry of the leader's own term (Raft 5.4.2). A put whose
        bodies are all duplicates appends none. If such puts wait for entries of earlier terms, the leader appends the
        filler. It gets no queue offset, and `appended` is not called for it.
        """

    def control(self, content: bytes) -> Bodies:
        """One body that contains `content` unchanged, and is no message for applications, as in `filler`."""

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes]:
        """The number of queues of each topic, and the store host of messages. New topics get `queue_nums` queues.

        The host is 8 or 20 bytes: address and port (i32).
        """

    def producer(self, producer: bytes, run: int, from_index: int) -> ProducerState:
        """What the log, committed or not, has of a producer's messages."""

    def config(self) -> Mapping[str, bytes]:
        """The metadata that followers copy, by file name."""

    def copied(self, files: Mapping[str, bytes]) -> None:
        """The current metadata of the leader that this member follows."""

    @property
    def is_ready(self) -> bool:
        """Whether a leader accepts puts."""

    def metrics(self) -> Mapping[str, float | Mapping[tuple[str, ...], float]]:
        """Values of its metrics by name, those with labels by the labels' values, found in constant time."""

    @property
    def needs_summary(self) -> bool:
        """Whether state of entries before the log's first one is missing: this member must not lead."""

    def summary(self, begin_index: int, snapshot: int, offset: int) -> SummaryPart:
        """A part of the state of all committed entries, for a member that needs it; ``snapshot`` 0 makes a new one.

        Its log begins at ``begin_index``. Rejects as `SummaryResponse` says.
        """

    def take_summary(self, part: SummaryPart) -> bool:
        """The next part of another member's summary; one at offset 0 begins a new one. Returns False if it is unusable.

        After the last part, ``needs_summary`` becomes false, at once or later, if the summary fits this log.
        """
