"""The result of comparing replicas: states, differences, and what each election would lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark_dledger.log.diff.copy_ranges import MAX_LISTED, RangeCounter, Ranges
from pyspark_dledger.log.diff.diff_table import (
    COMMITTED,
    CONTRADICTS,
    DIVERGED,
    ON_MAJORITY,
    OTHER_BYTES,
    SAME,
    STALE,
    DiffRow,
    LogEvidence,
    MemberEvidence,
    ledger_rows,
    member_evidence,
)
from pyspark_dledger.log.diff.replica_group import Candidate, ReplicaGroup, candidates, group_of, missing_entries
from pyspark_dledger.log.diff.verdict import GroupVerdict, judge
from pyspark_dledger.log.store_view import StoreView

_DIFFERENCES = (CONTRADICTS, DIVERGED, OTHER_BYTES)


@dataclass(frozen=True)
class Divergence:
    """The first index at which two replicas have different entries. ``pos`` is its position on the first that has it.

    ``byte`` is the first different byte of the entry; None if terms differ or an entry cannot be read. ``places`` has
    file and offset of that byte, or of the entry, for each node that has it.
    """

    index: int
    verdict: str
    pos: int | None
    terms: dict[str, int]
    byte: int | None
    places: dict[str, tuple[str, int]]


@dataclass(frozen=True)
class ReplicaState:
    """The state of one replica; -1 for an index or term that does not exist.

    ``alone`` are intact entries that no other replica has. ``damaged`` are entries that it lost within its log or has
    damaged, ``unclear`` those for which no check tells if its copy is intact, ``stale`` entries after its end.
    ``lag_entries`` and ``lag_bytes`` are what the foremost replica has after the last common entry; None without a
    common index.
    """

    node: str
    path: str
    begin_index: int
    end_index: int
    end_term: int
    committed_index: int | None
    committed_from: str | None
    lag_entries: int | None
    lag_bytes: int | None
    alone: Ranges
    damaged: Ranges
    unclear: Ranges
    stale: Ranges


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    ``entries`` counts the indexes of each verdict. ``rows`` are the first `MAX_LISTED` rows of the table ``diff``,
    ``more_rows`` the number of further ones. ``committed_index`` is None if none is proven. ``majority_doubt`` says
    why the majority alone does not prove ``majority_index`` (-1: none) committed; empty if it does. ``log_of`` is the
    replica whose log a salvage is to be told to restore; None if it need not be. ``is_empty``: no replica has an intact
    entry.
    """

    standings: tuple[ReplicaState, ...]
    group_size: int
    foremost: str
    first_divergence: Divergence | None
    committed_index: int | None
    committed_from: str | None
    majority_index: int
    majority_nodes: tuple[str, ...]
    majority_doubt: str
    candidates: tuple[Candidate, ...]
    verdict: GroupVerdict
    entries: dict[str, int]
    rows: tuple[DiffRow, ...]
    more_rows: int
    notes: tuple[str, ...]
    log_of: str | None
    is_empty: bool

    @property
    def is_same(self) -> bool:
        """Whether all replicas have all entries, with the same bytes."""
        return set(self.entries) <= {SAME}

    @property
    def is_proven(self) -> bool:
        """Whether all entries on a majority are proven committed."""
        return self.committed_index is not None and self.majority_index <= self.committed_index


def compare(store: StoreView, on_row: Callable[[DiffRow], object] | None = None) -> Comparison:
    """Compare a store with its replicas; each is read once. `on_row` gets each row of the table ``diff``.

    Raises OptionError without replicas, StoreError if one cannot be opened.
    """
    return compare_group(group_of(store), on_row)


def compare_group(group: ReplicaGroup, on_row: Callable[[DiffRow], object] | None = None) -> Comparison:
    """The result of the comparison of a group."""
    counts = _Counts(group.names)
    evidence = member_evidence(group.ranges, group.names)
    rows: list[DiffRow] = []
    more_rows = 0
    for row in ledger_rows(group):
        counts.count_row(row)
        if on_row is not None:
            on_row(row)
        if len(rows) < MAX_LISTED:
            rows.append(row)
        else:
            more_rows += 1
    elections = tuple(candidates(group))
    return Comparison(
        standings=tuple(_state(group, number, found, counts) for number, found in enumerate(evidence)),
        group_size=group.size,
        foremost=group.names[group.foremost],
        first_divergence=_divergence(counts.first, group),
        committed_index=group.committed_index,
        committed_from=group.committed_from,
        majority_index=group.majority_index,
        majority_nodes=_majority_nodes(group),
        majority_doubt=group.doubt,
        candidates=elections,
        verdict=judge(group, evidence, elections, LogEvidence(group.ranges)),
        entries=dict(counts.entries),
        rows=tuple(rows),
        more_rows=more_rows,
        notes=tuple(_notes(group)),
        log_of=group.histories.log_to_choose(group.names, group.foremost),
        is_empty=not group.histories.found,
    )


class _Counts:
    """Counts entries for each verdict."""

    def __init__(self, names: Sequence[str]) -> None:
        self.entries: Counter[str] = Counter()
        self.first: DiffRow | None = None
        self.stale = {name: RangeCounter() for name in names}

    def count_row(self, row: DiffRow) -> None:
        if row.verdict == STALE:
            self.stale[row.nodes[0]].add(row.first_index, row.last_index, 0)
        elif row.verdict not in (COMMITTED, ON_MAJORITY):
            self.entries[row.verdict] += row.entries
            if row.verdict in _DIFFERENCES and self.first is None:
                self.first = row


def _state(group: ReplicaGroup, number: int, found: MemberEvidence, counts: _Counts) -> ReplicaState:
    member = group.members[number]
    lag = missing_entries(group, group.foremost, number)
    return ReplicaState(
        node=member.node,
        path=member.path,
        begin_index=member.begin,
        end_index=member.end,
        end_term=member.end_term,
        committed_index=member.committed,
        committed_from=member.committed_from,
        lag_entries=lag[1] - lag[0] + 1 if lag is not None else None,
        lag_bytes=lag[2] if lag is not None else None,
        alone=found.alone.ranges_found(),
        damaged=found.damaged.ranges_found(),
        unclear=found.unclear.ranges_found(),
        stale=counts.stale[member.node].ranges_found(),
    )


def _majority_nodes(group: ReplicaGroup) -> tuple[str, ...]:
    holder = group.majority_holder
    if holder is None:
        return ()
    numbers = range(len(group.members))
    return tuple(group.names[number] for number in numbers if group.agrees(holder, number, group.majority_index))


def _divergence(row: DiffRow | None, group: ReplicaGroup) -> Divergence | None:
    if row is None:
        return None
    entries = {member.node: member.entry(row.first_index) for member in group.members if member.node in row.terms}
    found = {node: entry for node, entry in entries.items() if entry is not None}
    byte = row.first_byte if row.verdict == OTHER_BYTES else None
    places = {node: (each.segment.path, each.pos - each.segment.base + (byte or 0)) for node, each in found.items()}
    return Divergence(row.first_index, row.verdict, row.first_pos, row.terms, byte, places)


def _notes(group: ReplicaGroup) -> Iterator[str]:
    """Facts that no verdict has."""
    yield from group.notes
    numbers = range(len(group.members))
    for number in numbers:
        for before in range(number):
            if group.foreign(before, number):
                yield (
                    f"{group.names[number]} has no entry in common with {group.names[before]}, although their indexes "
                    "overlap: of another group"
                )
    foremost = group.members[group.foremost]
    for number, member in enumerate(group.members):
        index = max(member.begin, foremost.begin)
        if index < 0 or not group.agrees(group.foremost, number, index):
            continue
        here, there = member.position(index), foremost.position(index)
        if here != there:
            yield (
                f"{group.names[number]} has entry {index} at {here}, {foremost.node} at {there}: normal in DLedger "
                "0.4.0 after a snapshot was installed, whose headers keep the leader's pos"
            )
