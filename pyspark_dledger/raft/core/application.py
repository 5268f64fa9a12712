"""What a node serves beside raw entries: puts that are checked, numbered and told apart by whoever implements this.

The core knows nothing of what entries mean. An application looks at a put before it becomes entries, and is told what
is committed. All calls come from the thread that drives the core. Whatever an application raises ends its node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark_dledger.format.encode.admission import Admitted, Refused
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.store.dledger_store import AppendedEntries, DLedgerStore

__all__ = ["Admitted", "Application", "Refused"]


class Application(Protocol):
    """What makes entries of puts (a broker's ``DLedgerCommitLog.putMessage``)."""

    def started(self, store: DLedgerStore) -> None:
        """The node has opened its store, and asks for anything only after this. It may set ``store.append_hook``."""

    def stopped(self) -> None:
        """The node asks for nothing more, and closes its store next. Told once for each `started`."""

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted | Refused:
        """Check a put. LEADER_NOT_READY until a new leader's tables are rebuilt."""

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        """The put was appended (None: there was nothing to append): take note, and give the places of all its bodies.

        For each body, in the put's order: index, pos and queueOffset, each i64 big-endian.
        """

    def role_changed(self, is_leader: bool, term: int) -> None:
        """The node leads that term now, or no longer leads. What it held for the leadership before is void.

        Told before anything is asked of the new leader, and before anything is known to be committed in that term.
        """

    def committed(self, index: int) -> None:
        """Every entry up to that index is committed; told of leaders and followers, in rising order.

        Not told is what was known to be committed when the store was opened.
        """

    def filler(self) -> Bodies:
        """Bodies that mean nothing to anybody, of which a leader makes entries where nothing else does.

        Entries of former terms are committed by one of the leader's own term (Raft 5.4.2). A put whose bodies are all
        there already brings none: where such puts wait for entries of former terms, the filler is appended. It takes
        no place in any queue, and `appended` is not called for it.
        """

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes] | Refused:
        """How many queues each topic has, unknown ones made with so many, and the host that messages are stored with.

        The host is 8 or 20 bytes: address and port (i32).
        """

    def config(self) -> Mapping[str, bytes]:
        """The metadata that followers copy, by file name."""

    def copied(self, files: Mapping[str, bytes]) -> None:
        """The metadata of the leader that this member follows, as it is there now."""
