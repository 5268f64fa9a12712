"""Flipped bits of a member's disk: of bodies and headers of entries, and of their index units."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import IndexUnit, control_kind_at, decode_index_unit, record_struct
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_NORMAL
from pyspark_dledger.store.dledger_store import Entry, EntryRange, OtherEntryError
from pyspark_dledger.store.memory_store import MemoryStore
from pyspark_dledger.store.scrub import entry_problem, unit_in

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

_UNIT = record_struct(INDEX_UNIT)
# A start compares the headers and units of so many last entries: those of the last files.
COMPARED_AT_START = 20


class DamagedEntry(NamedTuple):
    """An entry as it is on the disk, and its index unit."""

    data: bytes
    unit: IndexUnit

    def problem(self, engine: Engine, index: int) -> str | None:
        """What a store finds wrong; None if it cannot see the damage."""
        if self.unit.index != index:
            return f"expected the unit of index {index}, found that of {self.unit.index}"
        return entry_problem(engine, self.data, self.unit)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged(random: Random, index: int, term: int, pos: int, data: bytes) -> tuple[str, DamagedEntry]:
    """An entry with one flipped bit in its body, its header or its unit, and which of them it is."""
    what = random.choice(("body", "header", "unit"))
    unit = _UNIT.pack(MAGIC_NORMAL, pos, len(data), index, term)
    if what == "unit":
        # The magic of a unit is read by nobody.
        unit = flipped(unit, random.randrange(32, 8 * INDEX_UNIT_SIZE))
    elif what == "body" and len(data) > ENTRY_HEADER_SIZE:
        data = flipped(data, random.randrange(8 * ENTRY_HEADER_SIZE, 8 * len(data)))
    else:
        data = flipped(data, random.randrange(8 * ENTRY_HEADER_SIZE))
    return what, DamagedEntry(data, decode_index_unit(unit))


class DamagedStore(MemoryStore):
    """A store in memory with damaged entries: it sees of them what a store on disk sees."""

    def __init__(self, node_id: str, data_file_size: int, checker: Checker) -> None:
        super().__init__(data_file_size=data_file_size)
        self.node_id = node_id
        self.checker = checker
        # What bit flips made of entries; the log has them as they were written.
        self.damage: dict[int, DamagedEntry] = {}
        # Entries that a read may have found damaged before its response.
        self.repaired: set[int] = set()
        # The last entry that an earlier process wrote.
        self.started_end = -1

    def startup(self) -> None:
        """Raises StoreError for damage near the end that a start sees."""
        self.started_end = self.ledger_end_index
        if self._will_refuse(self.ledger_end_index - COMPARED_AT_START):
            self.checker.count("starts with damage refused")
            raise StoreError("an entry is damaged: copy the folder from another member")

    def _will_refuse(self, first: int) -> bool:
        """Whether header and unit of an entry after `first` cannot both be right."""
        return any(unit_in(data) != unit for index, (data, unit) in self.damage.items() if index > first)

    def flip_bit(self, random: Random, index: int) -> str | None:
        """Damage an entry. Returns what of it; None if there is nothing."""
        pos, term, data = self._at(index)
        what, self.damage[index] = damaged(random, index, term, pos, data)
        return what

    def rebuild_index(self) -> None:
        """As after the files of the index were deleted."""
        for index, found in list(self.damage.items()):
            if found.data == self._at(index).data:
                del self.damage[index]
                self.repaired.add(index)
            else:
                self.damage[index] = found._replace(unit=self._unit(index))

    def _unit(self, index: int) -> IndexUnit:
        """The index unit as it was written."""
        pos, term, data = self._at(index)
        return IndexUnit(MAGIC_NORMAL, pos, len(data), index, term)

    def is_damaged(self, index: int) -> bool:
        return index in self.damage

    @property
    def has_damaged_unit(self) -> bool:
        return any(found.unit != self._unit(index) for index, found in self.damage.items())

    def is_seen(self, index: int) -> bool:
        """Whether readers find the damage of an entry."""
        return self._problem(index) is not None

    def _problem(self, index: int) -> str | None:
        """What a reader finds wrong with an entry."""
        found = self.damage.get(index)
        return None if found is None else found.problem(self._engine, index)

    def _check(self, index: int) -> None:
        if (problem := self._problem(index)) is not None:
            self.checker.count("damage found by a read")
            raise StoreError(f"entry {index}: {problem}")

    def get(self, index: int) -> Entry:
        if index in self.damage:
            self._check(index)
            data = self.damage[index].data
            return super().get(index)._replace(body=data[ENTRY_HEADER_SIZE:], channel=control_kind_at(data))
        return super().get(index)

    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        found = super().read(first_index, max_bytes)
        if not self.damage:
            return found
        parts: list[bytes] = []
        for index in range(first_index, found.last_index + 1):
            if self._problem(index) is not None:
                if index == first_index:
                    self._check(index)
                break
            parts.append(self.damage[index].data if index in self.damage else self._at(index).data)
        return EntryRange(first_index, first_index + len(parts) - 1, found.pos, b"".join(parts))

    def term_at(self, index: int) -> int:
        if index in self.damage:
            self._check(index)
        return super().term_at(index)

    def repair(self, index: int, data: Buffer) -> None:
        unit = self._unit(index)
        known = self.damage[index].unit if index in self.damage else unit
        own = self.damage[index].data if index in self.damage else self._at(index).data
        if unit_in(data) not in (known, unit_in(own)):
            raise OtherEntryError(f"the log has another entry {index}")
        if (problem := entry_problem(self._engine, data, known)) is not None or known != unit:
            raise ValueError(problem or "the index unit is damaged")
        self.checker.repairing(self.node_id, index, bytes(data), self._at(index).data)
        self.damage.pop(index, None)
        self.repaired.add(index)

    def _keep_damage(self, first: int, last: int) -> None:
        """Only these entries are in the log."""
        if self.damage:
            self.damage = {index: found for index, found in self.damage.items() if first <= index <= last}
