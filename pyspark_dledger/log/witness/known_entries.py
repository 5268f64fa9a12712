"""Finds the entries of a segment that the store's other files know."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAGIC_BLANK
from pyspark_dledger.format.spec import DLEDGER, NO_EVIDENCE, Evidence, KnownEntries, Segment, no_known_entries
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.state_files import read_checkpoint, read_current_term
from pyspark_dledger.log.witness.headers import ENTRY_DTYPE, Longs, frames_between, is_frame, read_headers
from pyspark_dledger.log.witness.index_units import IndexUnits, SegmentUnits, Units
from pyspark_dledger.log.witness.known_messages import chosen, has_no_gap, known_by_units, merged
from pyspark_dledger.log.witness.stale_tail import log_end_of
from pyspark_dledger.log.witness.unit_chains import LogUnits, NodeState, units_of_log


class Answer(NamedTuple):
    """The entries that are known, and what the index proves about the log's end."""

    known: KnownEntries
    evidence: Evidence


def look_up(segment: Segment, start: int, node_dir: str | None, root: str | None) -> Answer:
    """What a store's files know about a segment from position `start` on; see `store_witness.StoreWitness`."""
    known, evidence = no_known_entries(), NO_EVIDENCE
    if segment.source == DLEDGER and node_dir is not None:
        folder = path_of(node_dir)
        state = _state_of(folder)
        found = _units_of_log(segment, start, folder, state)
        known, evidence = _with_lone_gaps(segment, found), _evidence_of(segment, found, folder, state)
        evidence = evidence._replace(log_end=log_end_of(segment, start, known, evidence, state))
        if not segment.check_pos:
            known = merged(known, _misplaced(segment, start, known, found.units))
    if root is None or has_no_gap(known, start if segment.check_pos else None):
        return Answer(_ended(segment, known, evidence.log_end), evidence)
    more = known_by_units(segment, start, path_of(root))
    return Answer(_ended(segment, merged(known, more), evidence.log_end), evidence)


def _ended(segment: Segment, known: KnownEntries, log_end: int | None) -> KnownEntries:
    """The entries up to a proven end of the log, and the bytes after it as a lost one."""
    if log_end is None:
        return known
    known = chosen(known, known.end <= log_end)
    ends = np.array([log_end]), np.array([segment.end]), np.array([False])
    return KnownEntries(*map(np.append, known, ends)) if log_end < segment.end else known


def _evidence_of(segment: Segment, found: LogUnits, node_dir: Path, state: NodeState) -> Evidence:
    units = found.units
    ends = units.pos + units.size
    if not len(ends):
        return NO_EVIDENCE._replace(log_end=found.end)
    committed_ends = ends[units.index <= state.committed_index]
    last_index, last_term = int(units.index[-1]), int(units.term[-1])
    return Evidence(
        last_index=last_index,
        last_term=last_term,
        last_end=int(ends[-1]),
        committed_end=int(committed_ends[-1]) if len(committed_ends) else -1,
        log_end=found.end,
        ends_in_gap=state.committed_index <= last_index
        and not IndexUnits(node_dir / "index").has_file_after(last_index)
        and not _is_continued(segment, ends[-1:], last_index, last_term),
    )


def _is_continued(segment: Segment, end: Longs, index: int, term: int) -> bool:
    """Whether at `end` the next entry is, or a blank."""
    headers = read_headers(segment, end, ENTRY_DTYPE)
    is_next = is_frame(headers, end, segment) & (headers["index"] == index + 1) & (headers["term"] >= term)
    return bool((is_next | (headers["magic"] == MAGIC_BLANK)).any())


def _state_of(node_dir: Path) -> NodeState:
    checkpoint, current = read_checkpoint(node_dir)[0], read_current_term(node_dir)[0]
    known = (
        checkpoint.committed_index if checkpoint is not None else None,
        checkpoint.end_index if checkpoint is not None else None,
        current.curr_term if current is not None else None,
    )
    return NodeState(*(-1 if value is None else value for value in known))


def _units_of_log(segment: Segment, start: int, node_dir: Path, state: NodeState) -> LogUnits:
    """The units of the node's index with entries of a segment from `start` on."""
    index = IndexUnits(node_dir / "index")
    found = _judged(segment, index.of(segment, start), state)
    if found.is_whole.any():
        return found
    # The search was misled by damaged or stale units, or the whole segment is damaged.
    return _judged(segment, index.all_of(segment, start), state)


def _judged(segment: Segment, near: SegmentUnits, state: NodeState) -> LogUnits:
    headers = read_headers(segment, near.inside.pos, ENTRY_DTYPE)
    return units_of_log(near.inside, headers, segment, near.before, state)


def _with_lone_gaps(segment: Segment, found: LogUnits) -> KnownEntries:
    """The entries of units, and each entry that fills a gap of one index because its own unit is damaged."""
    units = found.units
    ends = units.pos + units.size
    gaps = np.flatnonzero(np.diff(units.index) == 2)
    pos, end = ends[gaps], units.pos[gaps + 1]
    headers = read_headers(segment, pos, ENTRY_DTYPE)
    is_whole = is_frame(headers, pos, segment) & (headers["index"] == units.index[gaps] + 1)
    is_whole &= headers["size"] == end - pos
    return KnownEntries(
        np.insert(units.pos, gaps + 1, pos),
        np.insert(ends, gaps + 1, end),
        np.insert(found.is_whole, gaps + 1, is_whole),
    )


def _misplaced(segment: Segment, start: int, known: KnownEntries, units: Units) -> KnownEntries:
    """What looks like an entry between known ones, but has an index that cannot be there: it was moved there.

    Only for 0.4.0, where an entry's header may have any position.
    """
    ends = units.pos + units.size
    found = [no_known_entries()]
    starts, stops = np.append(start, known.end), np.append(known.pos, segment.end)
    for gap in np.flatnonzero(stops - starts >= ENTRY_HEADER_SIZE).tolist():
        pos, headers = frames_between(segment, int(starts[gap]), int(stops[gap]))
        size, index = headers["size"].astype(np.int64), headers["index"].astype(np.int64)
        after = np.searchsorted(units.pos, pos)
        # Entries of at least a header are lost between it and its neighbours.
        low = index - np.append(-1, units.index)[after] - 1
        high = np.append(units.index, INT64_MAX)[after] - index - 1
        is_moved = (low < 0) | (high < 0)
        is_moved |= (after > 0) & (low > (pos - np.append(0, ends)[after]) // ENTRY_HEADER_SIZE)
        is_moved |= (after < len(ends)) & (high > (np.append(units.pos, 0)[after] - pos - size) // ENTRY_HEADER_SIZE)
        is_moved &= pos + size <= stops[gap]
        shift = (pos - headers["pos"])[is_moved]
        pos, size = pos[is_moved], size[is_moved]
        # What was moved by the same distance was moved together, with the damaged entries in between.
        cuts = np.flatnonzero(np.diff(shift)) + 1
        first, last = np.append(0, cuts)[: len(pos)], np.append(cuts, len(pos))[: len(pos)] - 1
        found.append(KnownEntries(pos[first], (pos + size)[last], np.zeros(len(first), bool)))
    pos, reach = np.concatenate([part.pos for part in found]), np.concatenate([part.end for part in found])
    reach = np.maximum.accumulate(reach)
    starts_new = np.append(True, pos[1:] >= reach[:-1])[: len(pos)]
    first = np.flatnonzero(starts_new)
    last = np.append(first[1:], len(pos))[: len(first)] - 1
    return KnownEntries(pos[first], reach[last], np.zeros(len(first), bool))
