"""The committed index of a store that is tailed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.committed import Bound, best, checkpoint_bound, proven_by_queues, queue_bound
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.entry_ref import entry_ref, message_of
from pyspark_dledger.log.tail.tail_view import TailView

if TYPE_CHECKING:
    from pyspark_dledger.log.tail.queue_tail import QueueTails


class TailBound:
    """Finds the committed index as `committed.committed_bound` does, but reads only what is new in the queues."""

    def __init__(self, committed_bound: int | str) -> None:
        self._wanted = committed_bound
        self._queues: QueueTails | None = None

    def find(self, store: StoreView, before: TailView | None) -> Bound:
        """The committed index of the store; `before` is the last view of it."""
        if self._wanted == "end":
            return Bound(store.end.last_index, "end")
        bounds = [] if self._wanted == "consumeQueue" else [checkpoint_bound(store)]
        known = bounds[0].index if bounds else None
        # If the checkpoint has the last entry, the queues cannot add anything.
        if self._wanted != "checkpoint" and (known is None or known < store.end.last_index):
            bounds.append(self._queue_bound(store, _committed_before(store, before)))
        return best(bounds, store.end.last_index)

    def _queue_bound(self, store: StoreView, before: int | None) -> Bound:
        """What the queues prove; `before` is the highest index that was known to be committed before."""
        root, index = store.paths.root, None
        if root is not None and store.paths.node_dir is not None:
            from pyspark_dledger.log.tail.queue_tail import QueueTails  # imports numpy, which is slow to load

            if self._queues is None or self._queues.root != root:
                self._queues = QueueTails(root)
            following = message_of(store, before + 1) if before is not None else None
            if following is not None and self._queues.has_unit_of(following) is False:
                return queue_bound(before)
            self._queues.refresh()
            index = proven_by_queues(store, self._queues.proven_index)
        return queue_bound(index)


def _committed_before(store: StoreView, before: TailView | None) -> int | None:
    """The highest index that was known to be committed before; None if the log was replaced since."""
    if before is None or before.end is None or before.end.offset.index is None:
        return None
    is_there = entry_ref(store, DLEDGER, before.end.pos) == before.end
    return before.bound.index if is_there else None
