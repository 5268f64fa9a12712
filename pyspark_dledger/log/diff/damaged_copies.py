"""Decides which copies of an entry are damaged.

A copy is damaged if its own checksum, structure or term shows it. Where copies still differ, header fields that Java
never sets, index units, ConsumeQueue units and the index of keys decide. The number of equal copies never decides, nor
does their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyspark_dledger.common.java_text import decode_utf8, java_hash
from pyspark_dledger.format.codec import decode_consume_queue_unit, decode_records
from pyspark_dledger.format.layout import (
    CONSUME_QUEUE_UNIT_SIZE,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_NOOP,
    MAGIC_NORMAL,
    PROPERTY_TAGS,
)
from pyspark_dledger.format.message import has_message_magic, parse_message, parse_properties
from pyspark_dledger.log.diff.entry_slices import Array, EntrySlice, ReplicaShare, terms_of
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, read_at, segment_at
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.key_files import hashes_of_keys, key_units
from pyspark_dledger.log.io.queue_files import Queue, queues

# Differing entries that are looked up in ConsumeQueues; further ones stay undecided.
MAX_LOOKED_UP = 10_000
_UNIT_FIELDS = ("magic", "size", "term")

_Queues = dict[tuple[str, int], Queue]


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


def damaged_copies(copies: Copies) -> Array:
    """Which copies are damaged."""
    damaged: Array = copies.column("isWrong") | _wrong_terms(copies)
    for check in (_odd_fields, _by_index_units, _by_queues, _by_keys):
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
    """Which copies have a channel or chainCrc, where another has none: no version of Java sets them."""
    found = np.zeros(damaged.shape, bool)
    for row, other, differs in _pairs(copies, damaged):
        is_set = [
            (entries.columns["channel"] != 0) | (entries.columns["chainCrc"] != 0)
            for _, entries in (copies.slices[row], copies.slices[other])
        ]
        found[row] |= differs & is_set[0] & ~is_set[1]
    return found


def _by_index_units(copies: Copies, damaged: Array) -> Array:
    """Which copies disagree with the replica's own index unit, where another replica's copy agrees with that unit."""
    found = np.zeros(damaged.shape, bool)
    for row, other, differs in _pairs(copies, damaged):
        number, entries = copies.slices[row]
        units = _read_units(copies.shares[number].index_folder, copies.first, copies.entries)
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


def _read_units(folder: Path | None, first: int, count: int) -> Array:
    """The units of `count` indexes; zeros where there is none."""
    data = bytearray(count * INDEX_UNIT_SIZE)
    files = DLedgerIndex(folder).files
    at, end = first * INDEX_UNIT_SIZE, (first + count) * INDEX_UNIT_SIZE
    while at < end:
        file = segment_at(files, at)
        if file is None:
            at = min((other.base for other in files if other.base > at), default=end)
            continue
        stop = min(end, file.end)
        part = read_at(file.path, at - file.base, stop - at)
        offset = at - first * INDEX_UNIT_SIZE
        data[offset : offset + len(part)] = part
        at = stop
    return decode_records(bytes(data), INDEX_UNIT)


def _by_queues(copies: Copies, damaged: Array) -> Array:
    """Which copies have fewer fields that a ConsumeQueue confirms than another copy of the entry."""
    found = np.zeros(damaged.shape, bool)
    pairs = list(_pairs(copies, damaged))
    known = _known_queues(copies) if pairs else []
    if not known:
        return found
    scores = np.zeros(damaged.shape, np.int8)
    for row in {row for row, _, _ in pairs}:
        which = np.any([differs for first, _, differs in pairs if first == row], axis=0)
        for place in np.flatnonzero(which)[:MAX_LOOKED_UP].tolist():
            scores[row, place] = _score(copies, row, place, known)
    for row, other, differs in pairs:
        found[row] |= differs & (scores[row] < scores[other])
    return found


def _by_keys(copies: Copies, damaged: Array) -> Array:
    """Which copies have other keys than the replicas' IndexFiles say, where another copy has exactly these."""
    found = np.zeros(damaged.shape, bool)
    pairs = list(_pairs(copies, damaged))
    roots = {share.root for share in copies.shares if share.root is not None}
    if not pairs or not roots:
        return found
    looked_up = np.flatnonzero(np.any([differs for _, _, differs in pairs], axis=0))[:MAX_LOOKED_UP]
    positions = copies.column("position")[:, looked_up] + ENTRY_HEADER_SIZE
    known = _known_hashes(roots, np.unique(positions))
    has_keys = np.zeros(damaged.shape, bool)
    for row, (_, entries) in enumerate(copies.slices):
        for place, position in zip(looked_up.tolist(), positions[row].tolist(), strict=True):
            hashes = known.get(position)
            has_keys[row, place] = bool(hashes) and hashes == _hashes_of(entries.bodies[place].as_py(), position)
    for row, other, differs in pairs:
        found[row] |= differs & ~has_keys[row] & has_keys[other]
    return found


def _known_hashes(roots: Iterable[Path], offsets: Array) -> dict[int, set[int]]:
    """The hashes of keys that IndexFiles have for the messages at `offsets`."""
    found: dict[int, set[int]] = {}
    for root in roots:
        for unit in key_units(root, lambda units: np.isin(units["commitLogOffset"], offsets), ignore_error):
            found.setdefault(unit.offset, set()).add(unit.key_hash)
    return found


def _hashes_of(body: bytes, position: int) -> set[int] | None:
    """The hashes of a message's keys; None if it is no message."""
    message: Any = parse_message(body, 0, len(body), position) if has_message_magic(body, 0, len(body)) else ""
    if isinstance(message, str):
        return None
    topic = decode_utf8(body[message.topic_start : message.topic_start + message.topic_length])
    raw = body[message.properties_start : message.properties_start + message.properties_length]
    return hashes_of_keys(topic, parse_properties(raw))


def confirmed_entries(copies: Copies, damaged: Array, is_any_lost: bool) -> Array:
    """Which entries have an intact copy that a second one or a checksum confirms; all where no copy is damaged.

    `is_any_lost`: a replica lost these entries. A checksum covers a message's body, so the only copy left must also be
    the one that its queue knows, if there are ConsumeQueues.
    """
    number = (~damaged).sum(axis=0)
    found: Array = number > 1
    for row, (_, entries) in enumerate(copies.slices):
        if "isChecked" in entries.columns:
            found |= entries.columns["isChecked"] & ~damaged[row]
    if not is_any_lost:
        found |= ~damaged.any(axis=0)
    doubtful = np.flatnonzero(found & (number == 1) & (is_any_lost | damaged.any(axis=0)))[:MAX_LOOKED_UP].tolist()
    known = _known_queues(copies) if doubtful else []
    for place in doubtful if known else ():
        row = int(np.flatnonzero(~damaged[:, place])[0])
        if copies.slices[row][1].columns["size"][place] > ENTRY_HEADER_SIZE:
            found[place] = _score(copies, row, place, known) > 0
    return found


def _known_queues(copies: Copies) -> list[_Queues]:
    """The ConsumeQueues of the replicas, by topic and queue id."""
    roots = {share.root for share in copies.shares if share.root is not None}
    found = [{(queue.topic, queue.queue_id): queue for queue in queues(root)} for root in roots]
    return [by_name for by_name in found if by_name]


def _score(copies: Copies, row: int, place: int, known: list[_Queues]) -> int:
    """How far a ConsumeQueue of a replica confirms a copy: see `_confirmed_by`."""
    entries = copies.slices[row][1]
    position = int(entries.columns["position"][place]) + ENTRY_HEADER_SIZE
    body = entries.bodies[place].as_py()
    return max(_confirmed_by(by_name, body, position) for by_name in known)


def _confirmed_by(by_name: _Queues, body: bytes, position: int) -> int:
    """2 if the unit at a message's queue offset has its position, size and tags; 1 without the tags; else 0."""
    message: Any = parse_message(body, 0, len(body), position) if has_message_magic(body, 0, len(body)) else ""
    if isinstance(message, str):
        return 0
    topic = decode_utf8(body[message.topic_start : message.topic_start + message.topic_length])
    queue, offset = by_name.get((topic, message.queue_id)), message.queue_offset
    file = next((file for file in (queue.files if queue else ()) if 0 <= offset - file.first < file.units), None)
    size = CONSUME_QUEUE_UNIT_SIZE
    data = read_at(file.path, (offset - file.first) * size, size) if file is not None else b""
    if len(data) < size:
        return 0
    unit = decode_consume_queue_unit(data)
    if (unit.commit_log_offset, unit.size) != (position, len(body)):
        return 0
    raw = body[message.properties_start : message.properties_start + message.properties_length]
    return 2 if unit.tags_code == java_hash(parse_properties(raw).get(PROPERTY_TAGS, "")) else 1
