"""The replicas of CommitLogs, and the comparison of their messages."""

from __future__ import annotations

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.log.copies.commit_log_replica import CommitLogReplica
from pyspark_dledger.log.copies.lost_ends import commit_log_replicas
from pyspark_dledger.log.copies.segment_copy import SegmentCopy, read_copy
from pyspark_dledger.log.diff.copy_ranges import CopyRange, CopyRanges, LogBounds
from pyspark_dledger.log.salvage.compared_stores import ComparedStores
from pyspark_dledger.log.salvage.histories import Histories


class CommitLogGroup:
    """The replicas, numbered in the order given, and the ranges of positions that each has alike.

    ``foremost`` is the last master: of the last epoch, then the longest one.
    """

    def __init__(self, compared: ComparedStores, replicas: list[CommitLogReplica]) -> None:
        self.replicas = replicas
        self.histories = compared.histories(COMMITLOG) or Histories(COMMITLOG, (), {}, ())
        self.names = tuple(one.name for one in replicas)
        # Rows name the epoch, so a range is in one.
        starts = {epoch.start for one in replicas for epoch in one.epochs}
        self.copies = CopyRanges(self.histories, [_bounds(one) for one in replicas], starts, self._has_blank)
        self.ranges = list(self.copies)
        self.foremost = min(range(len(replicas)), key=self.rank)

    def rank(self, number: int) -> tuple[int, int, str]:
        """The order of replicas, the foremost first."""
        one = self.replicas[number]
        return -(-1 if one.last_epoch is None else one.last_epoch), -one.end, one.name

    def diverged(self, _: int, holder: int) -> bool:
        """Whether what `holder` has at its end is of no other history; of the main one, the master sends it."""
        return self.copies.history_of(holder, INT64_MAX) > 0

    def contradicts(self, _: CopyRange) -> bool:
        """Nothing shows that messages are committed."""
        return False

    def messages(self, found: CopyRange) -> int:
        """The intact messages of a range on the replica that has most."""
        return self.copies.messages(found, self._count)

    def _has_blank(self, number: int, start: int, end: int) -> bool:
        expected = (end - start).to_bytes(4, "big") + MESSAGE_MAGIC_BLANK.to_bytes(4, "big", signed=True)
        return self.replicas[number].read(start, start + MIN_BLANK_SIZE) == expected[: end - start]

    def _count(self, number: int, start: int, end: int) -> int:
        one = self.replicas[number]
        place = one.segment_at(start)
        if place is None:
            return 0
        entries, _ = read_copy(SegmentCopy(number, one.segments[place], end), one.engine, [(start, end)])
        return int((entries.is_intact & (entries.pos >= start) & (entries.pos < end)).sum())


def commit_log_group(compared: ComparedStores) -> CommitLogGroup | None:
    """The CommitLogs of stores; None if they have none, or not all can have one."""
    replicas = commit_log_replicas(compared.stores)
    return CommitLogGroup(compared, replicas) if replicas else None


def _bounds(one: CommitLogReplica) -> LogBounds:
    unread = tuple((low, high if high == INT64_MAX else high - 1) for low, high in one.unread)
    end = max(one.proven_end, one.blank_end)
    return LogBounds(one.begin, end - 1, unread) if end > one.begin else LogBounds(-1, -1, unread)
