"""The results of a client's methods."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pyspark_dledger.errors import UnknownOutcomeError
from pyspark_dledger.format.codec import decode_entry_header, header_kind
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.messages import Role
from pyspark_dledger.store.dledger_store import Entry, EntryRun

_POSITION = struct.Struct(">qqq")


class Appended(NamedTuple):
    """The index, position and term of a committed entry."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    term: int


class AppendedRange(NamedTuple):
    """``count`` bodies of a batch that were appended together, from body number ``first`` on.

    Their indexes are consecutive; positions continue in a new run where the log continues in a new file.
    """

    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    runs: tuple[EntryRun, ...]


class BatchResult:
    """The positions of a batch in the log. Iterating yields an `Appended` for each body, in the batch's order.

    Entries of other clients may be between two ranges. A leader of this package keeps the batch's order. Java's leader
    handles requests concurrently, so indexes need not ascend.
    """

    def __init__(self, sizes: array[int], ranges: Iterable[AppendedRange]) -> None:
        self._sizes = sizes
        self.ranges = tuple(sorted(ranges))

    def __len__(self) -> int:
        """The number of appended bodies."""
        return sum(part.count for part in self.ranges)

    def __iter__(self) -> Iterator[Appended]:
        for part in self.ranges:
            sizes = self._sizes[part.first : part.first + part.count]
            yield from positions(part.index, part.term, part.runs, sizes)

    def __repr__(self) -> str:
        return f"BatchResult({len(self)} entries, indexes {self.first_index} to {self.last_index})"

    @property
    def first_index(self) -> int:
        """The lowest index of the batch; -1 if nothing was appended."""
        return min((part.index for part in self.ranges), default=-1)

    @property
    def last_index(self) -> int:
        """The highest index of the batch; -1 if nothing was appended."""
        return max((part.index + part.count - 1 for part in self.ranges), default=-1)


def positions(index: int, term: int, runs: tuple[EntryRun, ...], sizes: Iterable[int]) -> Iterator[Appended]:
    """The positions of consecutive entries with bodies of these sizes, the first with `index`."""
    pos, starts = runs[0].pos, dict(runs)
    for size in sizes:
        pos = starts.get(index, pos)
        yield Appended(index, pos, term)
        index += 1
        pos += ENTRY_HEADER_SIZE + size


class Put(NamedTuple):
    """The index, position and queue offset of a committed message."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int


class PutRange(NamedTuple):
    """``count`` messages of a put that were acknowledged together, from message number ``first`` on.

    ``positions`` has index, pos and queueOffset (i64, big-endian) of each.
    """

    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    positions: bytes


class PutResult:
    """The positions of the messages of a put. Iterating yields a `Put` for each, in their order.

    A duplicate has its first position, so positions need not ascend.
    """

    def __init__(self, ranges: Iterable[PutRange]) -> None:
        self.ranges = tuple(sorted(ranges))

    def __len__(self) -> int:
        """The number of committed messages."""
        return sum(part.count for part in self.ranges)

    def __iter__(self) -> Iterator[Put]:
        for part in self.ranges:
            yield from map(Put._make, _POSITION.iter_unpack(part.positions))

    def __repr__(self) -> str:
        return f"PutResult({len(self)} messages, indexes {self.first_index} to {self.last_index})"

    @property
    def count(self) -> int:
        """The number of committed messages."""
        return len(self)

    @property
    def positions(self) -> bytes:
        """Index, pos and queueOffset (i64, big-endian) of each, in their order."""
        return b"".join(part.positions for part in self.ranges)

    @property
    def first_index(self) -> int:
        """The lowest index of the put; -1 if no message is committed."""
        return min(self._indexes(), default=-1)

    @property
    def last_index(self) -> int:
        """The highest index of the put; -1 if no message is committed."""
        return max(self._indexes(), default=-1)

    def _indexes(self) -> array[int]:
        numbers = array("q", self.positions)
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers[::3]


class Topics(NamedTuple):
    """The number of queues of topics, by name, and the store host of messages: 8 or 20 bytes."""

    queue_counts: dict[str, int]
    store_host: bytes


class PartialAppendError(UnknownOutcomeError):
    """A batch or put failed after some bodies were appended, or may have been.

    ``acknowledged`` has the positions of acknowledged bodies. ``unknown`` has the numbers of bodies that may be in the
    log, now or later, or never. ``not_appended`` has those that are certainly not, and may be sent again.
    """

    def __init__(
        self,
        text: str,
        code: int,
        leader_id: str | None,
        acknowledged: BatchResult | PutResult,
        unknown: tuple[range, ...],
        not_appended: tuple[range, ...],
    ) -> None:
        super().__init__(text, code, leader_id)
        self.acknowledged = acknowledged
        self.unknown = unknown
        self.not_appended = not_appended

    def __reduce__(self) -> tuple[object, ...]:
        outcome = (self.acknowledged, self.unknown, self.not_appended)
        return type(self), (str(self), self.code, self.leader_id, *outcome)


class Metadata(NamedTuple):
    """The leader of a group, as far as the responding member knows, and the address of each member by its id."""

    group: str
    leader_id: str | None
    peers: dict[str, str]


class MemberStatus(NamedTuple):
    """The state of a member. A missing index or term is -1; ``problem`` is "" if there is none.

    ``serves_messages``: it accepts puts as leader. ``members`` has the addresses of the members that it knows, by id.
    """

    node_id: str
    role: Role
    term: int
    leader_id: str | None
    begin_index: int
    end_index: int
    end_term: int
    committed_index: int
    problem: str = ""
    serves_messages: bool = False
    members: Mapping[str, str] = {}


class GroupMembers(NamedTuple):
    """The members of a group, with their addresses by id, from entry ``index`` on (-1: those that it started with).

    Learners become voters when they have all entries, then ``leaving`` is removed. ``is_committed``: of that entry.
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    voters: dict[str, str]
    learners: dict[str, str]
    leaving: str
    is_committed: bool

    @property
    def is_final(self) -> bool:
        """Whether the latest change is complete."""
        return self.is_committed and not self.learners and not self.leaving


class CommittedRange(NamedTuple):
    """``count`` committed entries of one member, from ``first_index`` on; none after a timeout.

    ``data`` has the encoded entries; `entries` yields them as values.
    """

    first_index: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    begin_index: int
    committed_index: int
    data: Buffer

    def entries(self) -> Iterator[Entry]:
        view = memoryview(self.data)
        offset = 0
        for _ in range(self.count):
            header = decode_entry_header(bytes(view[offset : offset + ENTRY_HEADER_SIZE]))
            body = bytes(view[offset + ENTRY_HEADER_SIZE : offset + header.size])
            yield Entry(header.index, header.term, header.pos, header.magic, body, header_kind(header))
            offset += header.size
