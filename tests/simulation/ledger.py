"""An application in the simulated world: it numbers the messages of each queue, and appends none twice.

A message is a mark, an identity, its queue and its offset there, and anything behind that. What is committed is folded
into tables as it becomes known; a leader has beside them what its log holds above.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core.application import Admitted, Rejected
from pyspark_dledger.store.dledger_store import AppendedEntries, DLedgerStore

MARK = b"\xb7"
# As long as a message with nothing behind it.
FILLER = b"\xb8filler".ljust(16)
_HEADER = struct.Struct(">cHIBq")
_POSITION = struct.Struct(">qqq")
STORE_HOST = bytes(8)


class Message(NamedTuple):
    """What the body of a message says; `offset` is 0 until a leader has numbered it."""

    identity: tuple[int, int]
    queue: int
    offset: int
    rest: bytes

    def body(self) -> bytes:
        return _HEADER.pack(MARK, *self.identity, self.queue, self.offset) + self.rest


def parse(body: bytes) -> Message | None:
    """The message that a body is, None for one that is no message."""
    if len(body) < _HEADER.size or body[:1] != MARK:
        return None
    _, client, number, queue, offset = _HEADER.unpack_from(body)
    return Message((client, number), queue, offset, body[_HEADER.size :])


def unpack(bodies: Bodies) -> list[bytes]:
    """The bodies themselves."""
    block, start, found = bytes(bodies.block), 4 * bodies.count, []
    for size in struct.unpack_from(f">{bodies.count}I", block):
        found.append(block[start : start + size])
        start += size
    return found


def pack(bodies: Sequence[bytes]) -> Bodies:
    return Bodies(len(bodies), struct.pack(f">{len(bodies)}I", *map(len, bodies)) + b"".join(bodies))


def positions(response: bytes) -> list[tuple[int, int, int]]:
    """Index, position and offset of each message of an answer."""
    return list(_POSITION.iter_unpack(response))


@dataclass
class Tables:
    """Where each message stands, by its identity, and the next offset of each queue."""

    where: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, store: DLedgerStore, first: int, last: int) -> None:
        """Take note of the messages of those entries."""
        for index in range(first, last + 1):
            entry = store.get(index)
            message = parse(entry.body)
            if message is not None:
                self.where[message.identity] = index, entry.pos, message.offset
                self.ends[message.queue] = message.offset + 1

    def copy(self) -> Tables:
        return Tables(dict(self.where), dict(self.ends))


class Ledger:
    """What one process of a node knows. A new leader that `is_slow` refuses its first put, as it is not ready yet."""

    is_slow = True

    def __init__(self) -> None:
        self.committed_tables = Tables()
        self.dispatched = -1
        self.tables: Tables | None = None
        self.is_ready = False
        self.copies: list[int] = []

    def started(self, store: DLedgerStore) -> None:
        self.store = store
        self._dispatch(store.committed_index)

    def stopped(self) -> None:
        self.tables = None

    def committed(self, index: int) -> None:
        assert index > self.dispatched, f"told of {index} after {self.dispatched}"
        self._dispatch(index)

    def _dispatch(self, index: int) -> None:
        self.committed_tables.add(self.store, self.dispatched + 1, index)
        self.dispatched = index

    def role_changed(self, is_leader: bool, term: int) -> None:
        assert is_leader or self.tables is not None, "told of an end without a beginning"
        self.tables = self.rebuilt() if is_leader else None
        self.is_ready = False

    def rebuilt(self) -> Tables:
        """The tables of a new leader: from everything it holds, committed or not."""
        found = self.committed_tables.copy()
        found.add(self.store, self.dispatched + 1, self.store.ledger_end_index)
        return found

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted | Rejected:
        assert self.tables is not None, "asked while it does not lead"
        if self.is_slow and not self.is_ready:
            self.is_ready = True
            return Rejected(ResponseCode.LEADER_NOT_READY, "it has only begun")
        found = list(map(parse, unpack(bodies)))
        messages = [message for message in found if message is not None]
        if len(messages) < len(found):
            return Rejected(ResponseCode.UNEXPECTED_ARGUMENT, "expected messages, found another body")
        return self.numbered(messages)

    def numbered(self, messages: Sequence[Message]) -> Admitted:
        """What is to be appended of these: each one that is new once, with the next offset of its queue."""
        assert self.tables is not None
        ends: dict[int, int] = {}
        new: dict[tuple[int, int], Message] = {}
        min_commit_index = -1
        for message in messages:
            if message.identity in self.tables.where:
                min_commit_index = max(min_commit_index, self.tables.where[message.identity][0])
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
        return b"".join(_POSITION.pack(*self.tables.where[message.identity]) for message in messages)

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes] | Rejected:
        return dict.fromkeys(names, queue_nums), STORE_HOST

    def config(self) -> Mapping[str, bytes]:
        assert self.tables is not None
        return {"dispatched": b"%d" % self.dispatched}

    def copied(self, files: Mapping[str, bytes]) -> None:
        assert self.tables is None, "a leader was given another's metadata"
        self.copies.append(int(files["dispatched"]))

    def filler(self) -> Bodies:
        return pack([FILLER])
