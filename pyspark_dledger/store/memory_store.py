"""A store in memory (``DLedgerMemoryStore``). It behaves like the one on disk, without files, threads or a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark_dledger.format.codec import control_kind_at, decode_entry_header, encode_entry, mark_control, record_struct
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT, MAGIC_NORMAL
from pyspark_dledger.store.dledger_store import AppendedEntries, DLedgerStore, Entry, EntryRange, EntryRun
from pyspark_dledger.store.rules import (
    AppendPosition,
    announce_members,
    check_index,
    check_lengths,
    check_next_entries,
    check_reset,
    check_truncate,
    entry_position,
    raised_committed_index,
)

_UNIT = record_struct(INDEX_UNIT)


class _Stored(NamedTuple):
    """An encoded entry."""

    pos: int
    term: int
    data: bytes

    @property
    def end(self) -> int:
        return self.pos + len(self.data)


class MemoryStore(DLedgerStore):
    """Keeps each entry's bytes. Positions are those of a store with data files of `data_file_size` bytes.

    `shutdown` and `startup` keep the entries. The flushed index is the end of the log at the last `flush`.
    """

    def __init__(self, *, data_file_size: int = 1 << 30, engine: str = "auto") -> None:
        self._engine = get_engine(engine)
        self._file_size = data_file_size
        self._entries: list[_Stored] = []
        self._next_index = 0
        self.end_pos = 0
        self.committed_index = -1
        self.flushed_index = -1
        self.curr_term = 0
        self.vote_leader: str | None = None
        self.cluster_id = ""
        self.member_ids: tuple[str, ...] = ()
        self.member_state = ""

    def startup(self) -> None:
        """Does nothing: there is nothing to load."""

    def shutdown(self) -> None:
        self.flush()

    @property
    def ledger_begin_index(self) -> int:
        return self._next_index - len(self._entries) if self._entries else -1

    @property
    def ledger_end_index(self) -> int:
        return self._next_index - 1 if self._entries else -1

    @property
    def ledger_end_term(self) -> int:
        return self._entries[-1].term if self._entries else -1

    def save_term(self, term: int, vote_leader: str | None) -> None:
        self.curr_term, self.vote_leader = term, vote_leader

    def save_cluster_id(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id

    def save_member_ids(self, member_ids: tuple[str, ...], state: str = "") -> None:
        self.member_ids, self.member_state = member_ids, state

    def append_as_leader(
        self, bodies: Bodies | Sequence[Buffer], term: int | None = None, control: int = 0
    ) -> AppendedEntries:
        term = self.curr_term if term is None else term
        stored: list[_Stored] = []
        runs: list[EntryRun] = []
        pos = self.end_pos
        for body in self._bodies(bodies):
            index = self._next_index + len(stored)
            at = entry_position(pos, ENTRY_HEADER_SIZE + len(body), self._file_size)
            if not runs or at != pos:
                runs.append(EntryRun(index, at))
            data = self._after_hook(encode_entry(index, term, at, bytes(body)), index, term, at, control)
            stored.append(_Stored(at, term, data))
            pos = stored[-1].end
        first = self._next_index
        self._extend(stored)
        return AppendedEntries(first, self._next_index - 1, term, tuple(runs))

    def _bodies(self, bodies: Bodies | Sequence[Buffer]) -> Sequence[Buffer]:
        if isinstance(bodies, Bodies):
            bodies = self._engine.unpack_bodies(bodies)
        if not bodies:
            raise ValueError("expected at least one body, found none")
        check_lengths(map(len, bodies), self._file_size)
        return bodies

    def _after_hook(self, data: bytes, index: int, term: int, pos: int, control: int) -> bytes:
        changed = bytearray(data)
        if self.append_hook is not None:
            self.append_hook(changed, bytearray(_UNIT.pack(MAGIC_NORMAL, pos, len(data), index, term)))
        if control:
            mark_control(changed, control)
        self._engine.write_body_crcs(changed)
        return bytes(changed)

    def _extend(self, stored: list[_Stored]) -> None:
        self._entries += stored
        self._next_index += len(stored)
        self.end_pos = stored[-1].end

    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        view = bytes(data)
        pos, checked = check_next_entries(
            self._engine,
            view,
            leader_term,
            AppendPosition(self._next_index, self.end_pos, self.ledger_end_term, not self._entries),
            self._file_size,
        )
        announce_members(self.members_hook, view, checked)
        self._extend(
            [
                _Stored(at, term, view[at - pos : at - pos + size])
                for _, at, size, _, term in _UNIT.iter_unpack(checked.units)
            ]
        )
        return self._next_index - 1

    def get(self, index: int) -> Entry:
        stored = self._at(index)
        header = decode_entry_header(stored.data)
        body = stored.data[ENTRY_HEADER_SIZE:]
        return Entry(index, header.term, stored.pos, header.magic, body, control_kind_at(stored.data))

    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        first = self._at(first_index)
        parts = [first.data]
        left = max_bytes - len(first.data)
        start = first_index - self.ledger_begin_index + 1
        end = first.end
        for at in range(start, len(self._entries)):
            stored = self._entries[at]
            left -= len(stored.data)
            if left < 0 or stored.pos != end:
                break
            parts.append(stored.data)
            end = stored.end
        return EntryRange(first_index, first_index + len(parts) - 1, first.pos, b"".join(parts))

    def term_at(self, index: int) -> int:
        return self._at(index).term

    def _at(self, index: int) -> _Stored:
        begin = self.ledger_begin_index
        check_index(index, begin, self.ledger_end_index)
        return self._entries[index - begin]

    def start_scrubbing(self, on_damage: Callable[[dict[int, str]], None]) -> None:
        """Does nothing: memory is not damaged."""

    def truncate(self, index: int) -> None:
        begin = self.ledger_begin_index
        check_truncate(index, begin, self.ledger_end_index, self.committed_index)
        self.removals += 1
        self.end_pos = self._entries[index - begin].pos if index == begin else self._entries[index - begin - 1].end
        del self._entries[index - begin :]
        self._next_index = index
        self.flushed_index = min(self.flushed_index, self.ledger_end_index)

    def reset(self, index: int, pos: int) -> None:
        check_reset(index, pos, self._file_size, self.committed_index)
        self.removals += 1
        self._entries.clear()
        self._next_index, self.end_pos = index, pos
        self.committed_index = self.flushed_index = -1

    def update_committed_index(self, term: int, index: int) -> None:
        self.committed_index = raised_committed_index(
            self.committed_index, self.ledger_begin_index, self.ledger_end_index, self.ledger_end_term, term, index
        )

    def flush(self) -> int:
        self.flushed_index = self.ledger_end_index
        return self.flushed_index
