"""Corrects where logs and terms of replicas begin and end, as the other replicas show."""

from __future__ import annotations

from bisect import bisect_right

from pyspark_dledger.format.codec import decode_blank
from pyspark_dledger.format.layout import MIN_BLANK_SIZE
from pyspark_dledger.log.committed import own_bound
from pyspark_dledger.log.copies.stale_tails import Bounds, highest_term, is_stale, own_end
from pyspark_dledger.log.diff.replica import Replica
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.store_view import StoreView


def cut_stale_tails(replicas: list[Replica]) -> None:
    """A log ends before entries that its node wrote as the leader of a term that is over, which damage hides.

    Only the ends of other logs show that.
    """
    ends = [own_end(replica.store) for replica in replicas]
    for shorter in sorted(replicas, key=lambda replica: replica.end):
        longer = [replica for replica in replicas if replica.end > shorter.end >= 0]
        tails = [(replica, replica.first_after(shorter.end)) for replica in longer]
        if not tails or any(header is None or header.index == shorter.end + 1 for _, header in tails):
            continue
        committed = max(
            max(own_bound(each.store).index or -1, each.store.checkpoint_committed_index) for each in replicas
        )
        bounds = Bounds(committed, highest_term(replica.store for replica in replicas))
        for replica, header in tails:
            is_single = [other for _, other in tails].count(header) == 1
            if header and is_single and is_stale(header.index, replica.end_term, shorter.end, ends, bounds):
                replica.cut_after(shorter.end, shorter.end_term)


def include_damaged_fronts(replicas: list[Replica]) -> None:
    """A log whose file begins with damage begins before the damage: its first entries are damaged, not expired."""
    for replica in replicas:
        if not replica.firsts:
            continue
        pos, segment = replica.firsts[0][0], replica.store.ledger_segments[0]
        head = segment.read(segment.base, MIN_BLANK_SIZE)
        if pos == segment.base or (len(head) == MIN_BLANK_SIZE and decode_blank(head) == pos - segment.base):
            continue
        others = (_first_index_at(other.store, segment.base) for other in replicas if other is not replica)
        lost = [index for index in others if index is not None and index < replica.begin]
        replica.begin = max(lost, default=max(replica.begin - 1, 0)) if segment.base else 0


def _first_index_at(store: StoreView, base: int) -> int | None:
    """The index with which a file begins; by the file before if its first entry is damaged. None if unknown."""
    segment, before = (segment_at(store.ledger_segments, pos) for pos in (base, base - 1))
    header = entry_at(segment, base) if segment is not None else None
    if header is not None:
        return header.index
    end = store.engine.log_end(before, before.base, True) if before is not None and segment is not None else None
    return end.last_index + 1 if end is not None and end.entries else None


def align_terms(replicas: list[Replica]) -> None:
    """Let a term begin where it does on another replica, if the entries from there on are damaged here."""
    for replica in replicas:
        for run in [run for other in replicas if other is not replica for run in other.terms.runs]:
            runs = replica.terms.runs
            place = bisect_right(runs, run.index, key=lambda each: each.index)
            if not 0 < place < len(runs) or not runs[place - 1].term < run.term <= runs[place].term:
                continue
            after = runs[place]
            if not replica.has_any(run.index, after.index - 1):
                runs[place : place + (after.term == run.term)] = [after._replace(term=run.term, index=run.index)]
