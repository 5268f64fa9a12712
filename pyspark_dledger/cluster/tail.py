"""The tail of a cluster, as a stream reads it: new messages of all queues, and the parts of a micro-batch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, final

from pyspark_dledger.cluster.bounds import find_queues, partitioned, ranges_between, start_offsets
from pyspark_dledger.cluster.cluster import MAX_WAIT, Cluster, Waiting
from pyspark_dledger.cluster.offsets import ClusterOffsets, limited
from pyspark_dledger.cluster.options import ClusterOptions
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.cluster.rows import ClusterPartition, ClusterScan
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.log.tail.tail import Limits, Tail

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterProgress:
    """The unread messages of each queue after the last trigger, and how many that one adds."""

    lag: ClusterOffsets
    entries: int

    def to_json(self) -> dict[str, Any]:
        return {"lagEntries": sum(self.lag.values()), "entries": self.entries, "lag": self.lag.to_json()}


@final
class ClusterTail(Tail[ClusterOffsets]):
    """A trigger asks each broker for the ends of its queues.

    A queue is read from the trigger after the one that finds it: its begin is then in the checkpoint. Without
    `tells_start` a query does not say where it is after a restart. Then a trigger reads new queues up to their ends,
    and their begins are found when it is planned.
    """

    def __init__(self, scan: ClusterScan, options: ClusterOptions, tells_start: bool = True) -> None:
        self._cluster = Cluster(scan.address, options.prefers_slave)
        super().__init__(self._cluster.name, options.read)
        self._options = options
        self._scan = scan
        self._ends = ClusterOffsets()
        self._progress = ClusterProgress(ClusterOffsets(), 0)
        # Queues without a broker that were waited for.
        self._gone: set[Queue] = set()
        self._tells_start = tells_start
        # Whether a begin was given out: queues that are found later are new.
        self._has_begun = False

    def close(self) -> None:
        self._cluster.close()

    def only_pins_the_end(self, start: ClusterOffsets) -> bool:
        return not start

    def latest(self, start: ClusterOffsets, limits: Limits[ClusterOffsets]) -> ClusterOffsets:
        """See `Tail.latest`. Raises ClusterError if a broker is away for a minute."""
        if not start and not self._has_begun:
            self._progress = ClusterProgress(ClusterOffsets(), 0)
            self._has_begun = True
            return self._begin() if self._tells_start else self.available()
        self._has_begun = True
        queues = self._queues(start)
        known = [queue for queue in queues if queue in start]
        self._ends = ends = ClusterOffsets({**start, **self._cluster.max_offsets(known)})
        for queue in known:
            if ends[queue] < start[queue]:
                ends[queue] = self._end_after_loss(queue, start[queue])
        if limits.until is not None:
            highest = start.furthest(limits.until)
            ends = ClusterOffsets({queue: min(end, highest[queue]) for queue, end in ends.items()})
        if limits.entries is not None:
            ends = limited(start, ends, limits.entries)
        lag = ClusterOffsets({queue: max(self._ends[queue] - end, 0) for queue, end in ends.items()})
        self._progress = ClusterProgress(lag, sum(max(end - start[queue], 0) for queue, end in ends.items()))
        new = [queue for queue in queues if queue not in start]
        bounds = self._cluster.min_offsets(new) if self._tells_start else self._cluster.max_offsets(new)
        return ClusterOffsets({**ends, **bounds})

    def plan(self, start: ClusterOffsets, end: ClusterOffsets) -> list[ClusterPartition]:
        """See `Tail.plan`."""
        if not self._tells_start:
            new = [queue for queue in end if queue not in start]
            start = ClusterOffsets({**start, **self._cluster.min_offsets(new)}) if start else self._begin()
        ranges = ranges_between(start, end)
        return [ClusterPartition(self._scan, part) for part in partitioned(ranges, self.options.min_partitions)]

    def available(self) -> ClusterOffsets:
        """See `Tail.available`."""
        queues = find_queues(self._cluster, self._options, needs_all=self.options.fail_on_data_loss)
        return ClusterOffsets(self._cluster.max_offsets(queues))

    def progress(self) -> ClusterProgress:
        return self._progress

    def report_read(self, end: ClusterOffsets) -> None:
        """Report the offsets of a committed batch to the brokers, for tools that show a group's lag."""
        if self._options.consumer_group is not None:
            try:
                present = {queue: offset for queue, offset in end.items() if queue not in self._gone}
                self._cluster.commit_offsets(present, self._options.consumer_group)
            except ClusterError as error:
                log.warning("the offsets of group %s are not reported: %s", self._options.consumer_group, error)

    def _begin(self) -> ClusterOffsets:
        return start_offsets(self._cluster, self._options, find_queues(self._cluster, self._options))

    def _queues(self, start: ClusterOffsets) -> list[Queue]:
        """The present queues. Waits for those of `start` whose broker or topic is away."""
        waiting = Waiting(MAX_WAIT)
        while True:
            queues = find_queues(self._cluster, self._options, needs_all=False)
            found = self._gone.union(queues)
            missing = [queue for queue in start if queue not in found]
            if not missing:
                self._gone -= set(queues)
                return queues
            if waiting.is_over:
                problem = (
                    f"{self.name}: expected {missing[0]} and {len(missing) - 1} more queues, found no route to them "
                    f"within {waiting.seconds:g} s"
                )
                if self.options.fail_on_data_loss:
                    raise ClusterError(
                        f"{problem}: start their brokers, then the query again; if they were removed for good, set "
                        "failOnDataLoss=false"
                    )
                log.warning("%s (failOnDataLoss=false): the query continues with the other queues", problem)
                self._gone.update(missing)
                return queues
            waiting.pause()

    def _end_after_loss(self, queue: Queue, read: int) -> int:
        """The end of a queue that is before what was read: a slave lags, or messages were lost."""
        end = self._cluster.end_at_master(queue)
        if end is None or end >= read:
            return read
        self.report_loss(
            queue, f"{queue}: expected at least {read} messages, found {end}", f"reading continues with offset {end}"
        )
        return end
