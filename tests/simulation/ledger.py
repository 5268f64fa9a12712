"""The application of the simulation: it numbers the messages of each queue, and appends no duplicates.

A message is a mark, an identity, its queue, its queue offset, and any other bytes. Committed messages are added to
tables; a leader has its own copy of the tables, with its uncommitted messages. Before entries expire, the tables are
saved. A member whose log begins after its saved tables fetches those of another one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.format.encode.encoded import Admitted, Bodies, ProducerState, RejectedError
from pyspark_dledger.store.dledger_store import AppendedEntries, DLedgerStore

if TYPE_CHECKING:
    from tests.simulation.disk import SimStore

MARK = b"\xb7"
# As long as a message without other bytes.
FILLER = b"\xb8filler".ljust(16)
_HEADER = struct.Struct(">cHIBq")
_POSITION = struct.Struct(">qqq")
STORE_HOST = bytes(8)


class Message(NamedTuple):
    """`offset` is 0 until a leader has numbered the message."""

    identity: tuple[int, int]
    queue: int
    offset: int
    rest: bytes

    def body(self) -> bytes:
        return _HEADER.pack(MARK, *self.identity, self.queue, self.offset) + self.rest


def parse(body: bytes) -> Message | None:
    """The message of a body, None if it is not a message."""
    if len(body) < _HEADER.size or body[:1] != MARK:
        return None
    _, client, number, queue, offset = _HEADER.unpack_from(body)
    return Message((client, number), queue, offset, body[_HEADER.size :])


def unpack(bodies: Bodies) -> list[bytes]:
    """The bodies as a list."""
    block, start, found = bytes(bodies.block), 4 * bodies.count, []
    for size in struct.unpack_from(f">{bodies.count}I", block):
        found.append(block[start : start + size])
        start += size
    return found


def pack(bodies: Sequence[bytes]) -> Bodies:
    return Bodies(len(bodies), struct.pack(f">{len(bodies)}I", *map(len, bodies)) + b"".join(bodies))


def positions(response: bytes) -> list[tuple[int, int, int]]:
    """Index, position and queue offset of each message of a put response."""
    return list(_POSITION.iter_unpack(response))


@dataclass
class Tables:
    """Index, position and offset of each message by its identity, and the next offset of each queue."""

    messages: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, store: DLedgerStore, first: int, last: int) -> None:
        """Add the messages of these entries."""
        for index in range(first, last + 1):
            entry = store.get(index)
            message = parse(entry.body)
            if message is not None:
                self.messages[message.identity] = index, entry.pos, message.offset
                self.raise_end(message.queue, message.offset + 1)

    def raise_end(self, queue: int, end: int) -> None:
        self.ends[queue] = max(end, self.ends.get(queue, 0))

    def copy(self) -> Tables:
        return Tables(dict(self.messages), dict(self.ends))

    def to_bytes(self, index: int) -> bytes:
        """These tables, of all entries up to an index."""
        messages = [[*identity, *place] for identity, place in self.messages.items()]
        return json.dumps([index, messages, list(self.ends.items())]).encode()

    def add_bytes(self, data: bytes) -> int:
        """Add tables; returns the index up to which they are complete."""
        index, messages, ends = json.loads(data)
        self.messages.update(((client, number), (at, pos, offset)) for client, number, at, pos, offset in messages)
        for queue, end in ends:
            self.raise_end(queue, end)
        return int(index)


class Ledger:
    """The application of one process of a node. With `is_slow` a new leader rejects its first put as not ready."""

    is_slow = True
    part_size = 300

    def __init__(self) -> None:
        self.committed_tables = Tables()
        self.dispatched = -1
        # The tables have all messages up to this index.
        self.complete = -1
        self.snapshots = 0
        self.snapshot: bytes | None = None
        self.incoming = b""
        self.tables: Tables | None = None
        self.is_ready = False
        self.copies: list[int] = []

    def started(self, store: SimStore) -> None:
        self.store = store
        store.expiry_hook = self.before_expiry
        if (summary := getattr(store, "summary", None)) is not None:
            self.complete = self.committed_tables.add_bytes(summary)
        self._dispatch(store.committed_index)

    def stopped(self) -> None:
        self.tables = None

    def committed(self, index: int) -> None:
        assert index > self.dispatched, f"committed {index} after {self.dispatched}"
        self._dispatch(index)

    def _dispatch(self, index: int) -> None:
        self.committed_tables.add(self.store, max(self.dispatched + 1, self.store.ledger_begin_index), index)
        self.dispatched = index
        if not self.needs_summary:
            self.complete = max(self.complete, index)

    @property
    def needs_summary(self) -> bool:
        return self.store.ledger_begin_index > self.complete + 1

    def before_expiry(self, first: int, force: bool) -> int:
        """Save the tables; entries from the returned index on must stay."""
        if self.needs_summary:
            return first if force else -1
        self.save()
        return min(first, self.complete + 1)

    def save(self) -> None:
        self.store.summary = self.committed_tables.to_bytes(self.complete)

    def summary(self, begin_index: int, snapshot: int, offset: int) -> SummaryPart:
        if self.needs_summary or self.complete + 1 < begin_index:
            raise RejectedError(ResponseCode.INDEX_OUT_OF_RANGE, "incomplete")
        if not snapshot and self.snapshot is None:
            self.snapshots += 1
            self.snapshot = self.committed_tables.to_bytes(self.complete)
            raise RejectedError(ResponseCode.LEADER_NOT_READY, "it is being made")
        if self.snapshot is None or snapshot not in (0, self.snapshots):
            raise RejectedError(ResponseCode.REPEATED_REQUEST, "the snapshot is gone")
        data = self.snapshot
        part = SummaryPart(self.snapshots, offset, len(data), data[offset : offset + self.part_size])
        if part.end == part.size:
            self.snapshot = None
        return part

    def take_summary(self, part: SummaryPart) -> bool:
        self.incoming = (self.incoming if part.offset else b"") + bytes(part.data)
        if part.end < part.size:
            return True
        found = self.committed_tables.copy()
        index = found.add_bytes(self.incoming)
        if self.store.ledger_begin_index > index + 1:
            return False
        self.committed_tables, self.complete = found, max(index, self.dispatched)
        self.save()
        self.store.checker.count("summaries taken")
        return True

    def role_changed(self, is_leader: bool, term: int) -> None:
        assert is_leader or self.tables is not None, "not the leader before"
        self.tables = self.rebuilt() if is_leader else None
        self.is_ready = False

    def rebuilt(self) -> Tables:
        """The tables of a new leader: with all its entries, committed or not."""
        found = self.committed_tables.copy()
        first = max(self.dispatched + 1, self.store.ledger_begin_index)
        found.add(self.store, first, self.store.ledger_end_index)
        return found

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted:
        assert self.tables is not None, "admit while it is not the leader"
        if self.is_slow and not self.is_ready:
            self.is_ready = True
            raise RejectedError(ResponseCode.LEADER_NOT_READY, "the leader is not ready")
        found = list(map(parse, unpack(bodies)))
        messages = [message for message in found if message is not None]
        if len(messages) < len(found):
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, "expected messages, found another body")
        return self.numbered(messages)

    def numbered(self, messages: Sequence[Message]) -> Admitted:
        """The new messages among these, each once, with the next offset of its queue."""
        assert self.tables is not None
        ends: dict[int, int] = {}
        new: dict[tuple[int, int], Message] = {}
        min_commit_index = -1
        for message in messages:
            if message.identity in self.tables.messages:
                min_commit_index = max(min_commit_index, self.tables.messages[message.identity][0])
            elif message.identity not in new:
                offset = ends.get(message.queue, self.tables.ends.get(message.queue, 0))
                new[message.identity] = message._replace(offset=offset)
                ends[message.queue] = offset + 1
        bodies = pack([message.body() for message in new.values()]) if new else None
        return Admitted(bodies, min_commit_index, messages)

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        assert self.tables is not None
        assert (appended is None) == (admitted.bodies is None)
        if appended is not None:
            self.tables.add(self.store, appended.first_index, appended.last_index)
        messages = admitted.details
        assert isinstance(messages, list)
        return b"".join(_POSITION.pack(*self.tables.messages[message.identity]) for message in messages)

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes]:
        return dict.fromkeys(names, queue_nums), STORE_HOST

    def producer(self, producer: bytes, run: int, from_index: int) -> ProducerState:
        return ProducerState()

    def config(self) -> Mapping[str, bytes]:
        assert self.tables is not None
        return {"dispatched": b"%d" % self.dispatched}

    def copied(self, files: Mapping[str, bytes]) -> None:
        assert self.tables is None, "a leader got the metadata of another"
        self.copies.append(int(files["dispatched"]))

    def check_entries(self, bodies: Bodies) -> object:
        return None

    def entries_appended(self, checked: object) -> None:
        assert checked is None

    def filler(self) -> Bodies:
        return pack([FILLER])

    def control(self, content: bytes) -> Bodies:
        return pack([b"\xb9" + content])
