"""Decides which copies of an entry are damaged.

A copy is damaged if its own checksum, structure or term shows it; a filler of a salvage is no copy. Where copies still
differ, header fields that Java never sets, index units, ConsumeQueue units and the index of keys decide. The number of
equal copies never decides, nor does their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAGIC_NOOP, MAGIC_NORMAL
from pyspark_dledger.log.copies.entry_slices import Array, EntrySlice, ReplicaShare, terms_of
from pyspark_dledger.log.copies.index_units import read_units
from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP, MessageUnits
from pyspark_dledger.log.io.entry_reads import DLedgerIndex

_UNIT_FIELDS = ("magic", "size", "term")


class Copies(NamedTuple):
    """The copies of `entries` entries from index `first`, on the replicas that have them.

    ``slices`` has the number of the replica and its entries. Arrays have a row for each of ``slices`` and a column for
    each entry; ``equal_to`` has the number in ``slices`` of the first equal copy.
    """

    slices: list[tuple[int, EntrySlice]]
    shares: Sequence[ReplicaShare]
    first: int
    entries: int
    equal_to: Array

    def column(self, name: str) -> Array:
        """A column of all copies."""
        return np.stack([entries.columns[name] for _, entries in self.slices])

    @property
    def roots(self) -> list[Path]:
        """The folders of local brokers."""
        return list(dict.fromkeys(share.root for share in self.shares if share.root is not None))

    def message(self, row: int, place: int) -> tuple[int, bytes]:
        """The position and the bytes of an entry's body."""
        entries = self.slices[row][1]
        return int(entries.columns["position"][place]) + ENTRY_HEADER_SIZE, entries.bodies[place].as_py()

    def units(self, places: Sequence[int]) -> MessageUnits:
        """What the replicas' queues and indexes of keys know of entries."""
        return MessageUnits(self.roots, (self.column("position")[:, places] + ENTRY_HEADER_SIZE).ravel().tolist())


def damaged_copies(copies: Copies) -> Array:
    """Which copies are damaged, or fillers."""
    damaged: Array = copies.column("isWrong") | copies.column("isFiller") | _wrong_terms(copies)
    for check in (_odd_fields, _by_index_units, _by_message_units):
        damaged = damaged | check(copies, damaged)
    return damaged


def _pairs(copies: Copies, damaged: Array) -> Iterator[tuple[int, int, Array]]:
    """Two rows, in both orders, and which entries have different copies of one term there that are not damaged."""
    terms = copies.column("term")
    for row in range(len(copies.slices)):
        for other in range(len(copies.slices)):
            differs = copies.equal_to[row] != copies.equal_to[other]
            differs &= (terms[row] == terms[other]) & ~damaged[row] & ~damaged[other]
            if other != row and differs.any():
                yield row, other, differs


def _wrong_terms(copies: Copies) -> Array:
    """Which copies have a term that does not fit the entries around them."""
    found = np.zeros(copies.equal_to.shape, bool)
    for row, (number, entries) in enumerate(copies.slices):
        terms = terms_of(copies.shares[number], copies.first, copies.entries)
        if terms is not None:
            found[row] = entries.columns["term"] != terms
    return found


def _odd_fields(copies: Copies, damaged: Array) -> Array:
    """Which copies have a field that Java never sets, or no valid time, where another copy has none of this."""
    found = np.zeros(damaged.shape, bool)
    for row, other, differs in _pairs(copies, damaged):
        is_odd, is_other_odd = (copies.slices[each][1].columns["isOdd"] for each in (row, other))
        found[row] |= differs & is_odd & ~is_other_odd
    return found


def _by_index_units(copies: Copies, damaged: Array) -> Array:
    """Which copies disagree with the replica's own index unit, where another replica's copy agrees with that unit."""
    found = np.zeros(damaged.shape, bool)
    for row, other, differs in _pairs(copies, damaged):
        number, entries = copies.slices[row]
        units = read_units(DLedgerIndex(copies.shares[number].index_folder), copies.first, copies.entries)
        is_there = units["index"] == np.arange(copies.first, copies.first + copies.entries)
        if "pos" in entries.columns:
            is_there &= units["pos"] == entries.columns["pos"]
        # 0.4.0 leaders write magic 1 for a NOOP.
        is_noop = (entries.columns["magic"] == MAGIC_NOOP) & (entries.columns["size"] == ENTRY_HEADER_SIZE)
        is_there &= ~(is_noop & (units["magic"] == MAGIC_NORMAL))
        found[row] |= differs & is_there & ~_agrees(units, entries) & _agrees(units, copies.slices[other][1])
    return found


def _agrees(units: Array, entries: EntrySlice) -> Array:
    agrees = np.ones(len(units), bool)
    for name in _UNIT_FIELDS:
        agrees &= units[name] == entries.columns[name]
    return agrees


def _by_message_units(copies: Copies, damaged: Array) -> Array:
    """Which copies of messages have less evidence in ConsumeQueues and IndexFiles than another one of their term."""
    found = np.zeros(damaged.shape, bool)
    pairs = list(_pairs(copies, damaged))
    if not pairs or not copies.roots:
        return found
    looked_up = np.flatnonzero(np.any([differs for _, _, differs in pairs], axis=0))[:MAX_LOOKED_UP].tolist()
    rows_of: dict[tuple[int, int], set[int]] = {}
    terms = copies.column("term")
    for row, other, differs in pairs:
        for place in looked_up:
            if differs[place]:
                rows_of.setdefault((place, int(terms[row, place])), set()).update((row, other))
    units = copies.units(looked_up)
    for (place, _), rows in rows_of.items():
        numbers = sorted(rows)
        found[numbers, place] = units.damaged([copies.message(row, place) for row in numbers])
    return found


def confirmed_entries(copies: Copies, damaged: Array, is_any_lost: bool) -> Array:
    """Which entries have an intact copy that an equal one or a checksum confirms; all where no copy is damaged.

    `is_any_lost`: a replica lost these entries. A checksum covers a message's body, so the only copy left must also be
    the one that its queue knows, if there are ConsumeQueues.
    """
    number = (~damaged).sum(axis=0)
    found: Array = np.any(~damaged & (copies.equal_to != np.arange(len(damaged))[:, None]), axis=0)
    for row, (_, entries) in enumerate(copies.slices):
        if "isChecked" in entries.columns:
            found |= entries.columns["isChecked"] & ~damaged[row]
    if not is_any_lost:
        found |= ~damaged.any(axis=0)
    doubtful = np.flatnonzero(found & (number == 1) & (is_any_lost | damaged.any(axis=0)))[:MAX_LOOKED_UP].tolist()
    units = copies.units(doubtful)
    for place in doubtful if units.has_queues else ():
        row = int(np.flatnonzero(~damaged[:, place])[0])
        if copies.slices[row][1].columns["size"][place] > ENTRY_HEADER_SIZE:
            found[place] = units.in_queue(*copies.message(row, place))
    return found
