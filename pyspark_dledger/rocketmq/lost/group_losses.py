"""What replicas have lost: the rows of the comparison that call an entry damaged or undecided on one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.diff.commit_log_group import commit_log_group
from pyspark_dledger.log.diff.copy_ranges import Ranges
from pyspark_dledger.log.diff.diff_table import LogEvidence
from pyspark_dledger.log.diff.replica_group import ReplicaGroup
from pyspark_dledger.log.replicas import check_distinct
from pyspark_dledger.log.salvage.compared_stores import ComparedStores, map_in_threads
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.compared_log import ComparedLog
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, lost_messages

Progress = Callable[[int, int], None]


class GroupLosses(NamedTuple):
    """What replicas have lost, and the entries and the positions for which no check tells which copy is intact."""

    messages: list[LostMessage]
    unclear: Ranges
    unclear_positions: Ranges
    unclear_reasons: tuple[str, ...] = ()


def lost_in_group(log: StoreView, progress: Progress | None = None) -> GroupLosses:
    """What a store and its replicas have lost, in the order of the log, with the replicas that lost it and have it.

    What is neither intact nor unclear on any of them is lost for good. Nothing is said of what cannot be read; see
    `StoreView.unread`. Raises StoreError.
    """
    stores = [log, *log.replicas]
    check_distinct(stores, "replica")
    compared = ComparedStores(stores, map_in_threads, progress)
    ledger, old = ReplicaGroup(compared, log.options.group_size), commit_log_group(compared)
    logs = [ComparedLog(compared, COMMITLOG, old)] if old is not None else []
    logs.append(ComparedLog(compared, DLEDGER, ledger))
    messages = [lost for each in logs for lost in lost_messages(each, log.on_unreadable)]
    # A broker that is running has appended meanwhile.
    ends = [(store.max_offset, store.refreshed().max_offset) for store in stores]
    now = dict(zip(compared.names, ends, strict=True))
    messages = [lost for lost in messages if not any(now[name][0] <= lost.pos < now[name][1] for name in lost.lost_on)]
    of_bytes = LogEvidence(old.ranges if old is not None else (), MIN_MESSAGE_SIZE)
    of_entries = LogEvidence(ledger.ranges)
    return GroupLosses(
        sorted(messages, key=lambda lost: (lost.pos, lost.size or 0)),
        of_entries.unclear.ranges_found(),
        of_bytes.unclear.ranges_found(),
        tuple(sorted({*of_entries.unclear_reasons, *of_bytes.unclear_reasons})),
    )
