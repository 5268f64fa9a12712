"""What a client gives back."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark_dledger.errors import UnknownOutcomeError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.messages import Role
from pyspark_dledger.store.dledger_store import Entry, EntryRun

_POSITION = struct.Struct(">qqq")


class Appended(NamedTuple):
    """An entry that is committed: where it stands in the log, for good."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    term: int


class AppendedRange(NamedTuple):
    """Bodies of a batch that were appended in one go: ``count`` from the body with ordinal ``first`` on.

    They have consecutive indexes; of positions a new run begins where a new file of the log does.
    """

    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    runs: tuple[EntryRun, ...]


class BatchResult:
    """Where the bodies of a batch stand in the log; iterating gives an `Appended` for each, in the batch's order.

    Between two pieces entries of other clients may stand. A leader of ours keeps the batch's order; Java's handles
    requests side by side, so the indexes of a batch need not ascend there.
    """

    def __init__(self, sizes: array[int], pieces: Iterable[AppendedRange]) -> None:
        self._sizes = sizes
        self.ranges = tuple(sorted(pieces))

    def __len__(self) -> int:
        """How many bodies were appended."""
        return sum(piece.count for piece in self.ranges)

    def __iter__(self) -> Iterator[Appended]:
        for piece in self.ranges:
            sizes = self._sizes[piece.first : piece.first + piece.count]
            yield from positions(piece.index, piece.term, piece.runs, sizes)

    def __repr__(self) -> str:
        return f"BatchResult({len(self)} entries, indexes {self.first_index} to {self.last_index})"

    @property
    def first_index(self) -> int:
        """The lowest index of an entry of the batch; -1 where nothing was appended."""
        return min((piece.index for piece in self.ranges), default=-1)

    @property
    def last_index(self) -> int:
        """The highest index of an entry of the batch; -1 where nothing was appended."""
        return max((piece.index + piece.count - 1 for piece in self.ranges), default=-1)


def positions(index: int, term: int, runs: tuple[EntryRun, ...], sizes: Iterable[int]) -> Iterator[Appended]:
    """Where entries with bodies of these sizes stand, the first of which has `index`."""
    pos, starts = runs[0].pos, dict(runs)
    for size in sizes:
        pos = starts.get(index, pos)
        yield Appended(index, pos, term)
        index += 1
        pos += ENTRY_HEADER_SIZE + size


class Put(NamedTuple):
    """A message that is committed: where it stands in the log, and in its queue."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int


class PutRange(NamedTuple):
    """Messages of a put that were acknowledged in one go: ``count`` from the one with ordinal ``first`` on.

    ``positions`` has index, pos and queueOffset (i64, big-endian) of each.
    """

    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    positions: bytes


class PutResult:
    """Where the messages of a put stand; iterating gives a `Put` for each, in their order.

    A message that was there already has the place that it got then, so places need not ascend.
    """

    def __init__(self, pieces: Iterable[PutRange]) -> None:
        self.ranges = tuple(sorted(pieces))

    def __len__(self) -> int:
        """How many messages are committed."""
        return sum(piece.count for piece in self.ranges)

    def __iter__(self) -> Iterator[Put]:
        for piece in self.ranges:
            yield from map(Put._make, _POSITION.iter_unpack(piece.positions))

    def __repr__(self) -> str:
        return f"PutResult({len(self)} messages, indexes {self.first_index} to {self.last_index})"

    @property
    def count(self) -> int:
        """How many messages are committed."""
        return len(self)

    @property
    def positions(self) -> bytes:
        """Index, pos and queueOffset (i64, big-endian) of each, in their order."""
        return b"".join(piece.positions for piece in self.ranges)

    @property
    def first_index(self) -> int:
        """The lowest index of a message of the put; -1 where none is committed."""
        return min(self._indexes(), default=-1)

    @property
    def last_index(self) -> int:
        """The highest index of a message of the put; -1 where none is committed."""
        return max(self._indexes(), default=-1)

    def _indexes(self) -> array[int]:
        numbers = array("q", self.positions)
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers[::3]


class Topics(NamedTuple):
    """How many queues topics have, by name, and the host that messages are to be stored with: 8 or 20 bytes."""

    queue_counts: dict[str, int]
    store_host: bytes


class PartialAppendError(UnknownOutcomeError):
    """A batch, or a put, that ended midway: some of it is acknowledged, or nobody knows.

    ``acknowledged`` is where the acknowledged bodies stand. ``unknown`` are the ordinals of bodies that may be in the
    log, now or later, or never; ``not_appended`` those of bodies that certainly are not, and may be sent again.
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
    """Who leads a group, as far as the member knew that was asked, and the address of each member by its id."""

    group: str
    leader_id: str | None
    peers: dict[str, str]


class MemberStatus(NamedTuple):
    """How a member stands. Indexes and terms are -1 where there is none; ``problem`` is "" while there is none.

    ``serves_messages``: it takes puts while it leads.
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


class CommittedRange(NamedTuple):
    """Committed entries of one member, ``count`` from ``first_index`` on; none where none was committed in time.

    ``data`` is what the log holds: entries with their headers, one behind the other; iterate over `entries` for values.
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
            yield Entry(header.index, header.term, header.pos, header.magic, body)
            offset += header.size
