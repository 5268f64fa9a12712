"""Which entries are known to be committed, and what proves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import EntryHeader, IndexUnit
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.replicas import Terms, agreement, entry_of, majority_index, same_entry, superseding
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.witness.store_witness import StoreWitness

_SAMPLES, _MAX_TRIED = 16, 1_000


@dataclass(frozen=True)
class Bound:
    """A committed index (inclusive) and what proves it; without an index, the reason why none is known."""

    index: int | None
    source: str | None
    reason: str = ""


def committed_bound(
    store: StoreView, options: ReadOptions, of_queues: Callable[[StoreView], Bound] | None = None
) -> Bound:
    """The committed index under `options`, never beyond the end of the log; by default `of_queues` reads all queues."""
    wanted, last_index = options.committed_bound, store.end.last_index
    if isinstance(wanted, int):
        return Bound(min(wanted, last_index), "option")
    if wanted == "end":
        return Bound(last_index, "end")
    if store.restored_committed is not None:
        return Bound(store.restored_committed, "replicas")
    proofs: dict[str, Callable[[StoreView], Bound]] = {
        "checkpoint": checkpoint_bound,
        "consumeQueue": of_queues or _consume_queue_bound,
        "quorum": partial(_quorum_bound, group_size=options.group_size),
    }
    names = [wanted] if wanted != "auto" else ["checkpoint", "consumeQueue", *(["quorum"] if store.replicas else [])]
    bounds: list[Bound] = []
    for name in names:
        bounds.append(proofs[name](store))
        index = bounds[-1].index
        if index is not None and index >= last_index:
            break  # the others cannot add anything
    return best(bounds, last_index)


def own_bound(store: StoreView) -> Bound:
    """What the store's own files prove, without its replicas."""
    return best([checkpoint_bound(store), _consume_queue_bound(store)], store.end.last_index)


def checkpoint_bound(store: StoreView) -> Bound:
    """The checkpoint's committed index, which can be beyond the end of the log."""
    if store.checkpoint is None:
        return Bound(None, None, f"checkpoint: {store.checkpoint_file}")
    return Bound(store.checkpoint.committed_index, store.checkpoint_file)


def promised_committed(store: StoreView) -> int:
    """The highest index that checkpoint or ConsumeQueues say is committed, also after a damaged end; -1 without one."""
    return max(store.checkpoint_committed_index, _dispatched_after_end(store))


def promised_end(store: StoreView) -> int:
    """The last index that the log had, as its files say; -1 without one.

    That is the committed one, or the one after the log's end of which only the index is damaged; the last one of the
    checkpoint if files after the end of the log lost entries, and of the index if no entry is left.
    """
    files = [each for each in store.ledger_segments if each.base >= store.end.pos]
    is_lost = store.checkpoint is not None and any(store.segment_end(each) > each.base for each in files)
    last = store.checkpoint.end_index if is_lost and store.checkpoint is not None else None
    damaged = damaged_after_end(store)
    known = (last, damaged[1].index if damaged is not None else None)
    of_index = _last_in_index(store) if store.end.last_index < 0 else -1
    return max(promised_committed(store), of_index, *(-1 if each is None else each for each in known))


def _last_in_index(store: StoreView) -> int:
    """The last index of the log by the units that point into the written files, without truncated ones; -1 without."""
    written = (each for each in store.ledger_segments if store.segment_end(each) > each.base)
    known = ((each, each.witness) for each in written)
    return max((one.evidence(each).last_index for each, one in known if isinstance(one, StoreWitness)), default=-1)


def first_after_expired(stores: Sequence[StoreView]) -> int:
    """The first index that logs without an entry had in their files, as index units say; 0 if nothing tells."""
    found = (store.index_files.index_at(store.min_offset) if store.min_offset else 0 for store in stores)
    return min((index for index in found if index >= 0), default=0)


def damaged_after_end(store: StoreView) -> tuple[Segment, IndexUnit, EntryHeader] | None:
    """The entry after the log's end, if it has another index than its unit, and nothing else wrong; None without it."""
    index = store.end.last_index + 1
    unit = store.index_files.unit(index)
    segment = segment_at(store.ledger_segments, unit.pos) if unit is not None else None
    header = entry_at(segment, unit.pos) if unit is not None and segment is not None else None
    if unit is None or segment is None or header is None or header.index == index:
        return None
    return (segment, unit, header) if (header.size, header.term) == (unit.size, unit.term) else None


def _dispatched_after_end(store: StoreView) -> int:
    """The last index after the log's end of which the index and a ConsumeQueue have the place; -1 without one."""
    root, end = store.paths.root, store.end
    if root is None or store.paths.node_dir is None or not (root / "consumequeue").is_dir():
        return -1
    from pyspark_dledger.log.io.queue_files import dispatched_after  # imports numpy, which is slow to load

    index = dispatched_after(root, store.index_files, end.last_index, end.pos)
    # The queues are read after the log's end was found.
    return index if index > end.last_index and index > store.refreshed().end.last_index else -1


def _consume_queue_bound(store: StoreView) -> Bound:
    root, index = store.paths.root, None
    if root is not None and store.paths.node_dir is not None and (root / "consumequeue").is_dir():
        from pyspark_dledger.log.io.queue_files import proven_index  # imports numpy, which is slow to load

        index = proven_by_queues(store, partial(proven_index, root))
    return queue_bound(index)


def queue_bound(index: int | None) -> Bound:
    """The bound for the `index` that the ConsumeQueues prove committed."""
    if index is None:
        return Bound(None, None, "consumeQueue: no unit that points to an entry of this log")
    return Bound(index, "consumeQueue")


def proven_by_queues(store: StoreView, proven: Callable[[list[Segment], int], int | None]) -> int | None:
    """The index that ConsumeQueues prove committed; `proven` finds it in segments, below a position.

    The queues are read after the log's end was found, so they can have units of entries written since. A queue that is
    ahead of a truncated log can point to bytes that Java left there.
    """
    index = proven(store.ledger_segments, INT64_MAX)
    if index is None or index <= store.end.last_index or index <= store.refreshed().end.last_index:
        return index
    return proven(store.ledger_segments, store.end.pos)


def _quorum_bound(store: StoreView, group_size: int | None) -> Bound:
    """The highest index that a majority has with the same term, where that proves it committed.

    It does if all members are given and no replica with a higher last term lacks the index. Such a replica could still
    be elected and overwrite the entry (Raft, figure 8).
    """
    members = [Terms(member) for member in (store, *store.replicas)]
    size = group_size if group_size is not None else len(members)
    if len(members) < 2:
        return Bound(None, None, "quorum: expected the other members of the group in replicas, found none")
    if len(members) != size:
        return Bound(None, None, f"quorum: expected all {size} members of the group, found {len(members)} replicas")
    index, holder = max(((majority_index(member, members), member) for member in members), key=lambda pair: pair[0])
    if index < 0:
        return Bound(None, None, "quorum: no index is on a majority")
    rival = superseding(members, index, holder.at(index))
    if rival is not None:
        reason = f"{rival.store.path} lacks it and ends with term {rival.at(rival.last)}"
        return Bound(None, None, f"quorum: index {index} is on a majority, not proven committed: {reason}")
    agreed = agreement(members[0], holder)
    if agreed is None:
        return Bound(None, None, f"quorum: {store.path} has no index in common with {holder.store.path}")
    return Bound(min(index, agreed), "quorum")


def best(bounds: list[Bound], end_index: int) -> Bound:
    """The bound with the highest index, at most `end_index`; without an index, one that joins the reasons."""
    known = [bound for bound in bounds if bound.index is not None]
    if not known:
        return Bound(None, None, "; ".join(bound.reason for bound in bounds if bound.reason))
    index, source = max(
        ((bound.index, bound.source) for bound in known if bound.index is not None), key=lambda pair: pair[0]
    )
    return Bound(min(index, end_index), source)


def check_replicas(store: StoreView, committed: int | None) -> None:
    """Raises StoreError if a replica contradicts `store` at or below `committed`, or is of another group.

    Above its own committed index a replica cannot contradict: an old leader keeps uncommitted entries for a while.
    Damaged and missing entries contradict nothing.
    """
    mine = Terms(store)
    for other in store.replicas:
        theirs = Terms(other)
        agreed, begin = agreement(mine, theirs), max(mine.first, theirs.first)
        if agreed is None:
            continue
        parts = range(_SAMPLES + 1 if agreed >= begin else 0)
        samples = {begin + (agreed - begin) * part // _SAMPLES for part in parts}
        same = {index: same_entry(store, other, index) for index in sorted(samples)}
        problem = "this replica is of another group, or one of them is damaged: run dledger diff with all of them"
        if False in same.values() and True not in same.values():
            index = next(index for index, is_same in same.items() if is_same is False)
            raise StoreError(f"{other.path}: expected the entry {index} of {store.path}, found other bytes: {problem}")
        own = own_bound(other).index
        limit = min(mine.last, theirs.last, *(-1 if bound is None else bound for bound in (committed, own)))
        for index in range(max(agreed + 1, begin), min(agreed + _MAX_TRIED, limit) + 1):
            one, two = entry_of(store, index), entry_of(other, index)
            if one is not None and two is not None and one.header.term != two.header.term:
                raise StoreError(
                    f"{other.path}: expected index {index} with term {one.header.term} as in {store.path}, found term "
                    f"{two.header.term}, and both say that it is committed: {problem}"
                )
