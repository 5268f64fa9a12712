"""The queues and queue offsets of the messages that a group has lost for good, as far as indexes and queues know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import Row, cell, range_text
from pyspark_dledger.errors import DLedgerError

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.verdict import GroupVerdict

MAX_QUEUES = 20


def lost_queues(logs: Sequence[Log], verdict: GroupVerdict) -> list[Row]:
    """A row for each range of queue offsets that is lost: topic, queueId, firstQueueOffset and lastQueueOffset.

    Empty if nothing is lost, or no index and queue knows what it was.
    """
    from pyspark_dledger.rocketmq.lost.group_losses import lost_in_group

    if verdict.lost != "some":
        return []
    try:
        found = lost_in_group(logs, lambda _: None)
    except DLedgerError:
        return []
    wanted = [*verdict.lost_entries.ranges, *([verdict.lost_end] if verdict.lost_end is not None else [])]
    known = {
        (lost.topic, lost.queue_id, lost.queue_offset)
        for lost in found
        if lost.topic is not None and lost.queue_offset is not None and not lost.intact_on
        if lost.index is None or any(first <= lost.index <= last for first, last in wanted)
    }
    return list(_ranges(known))


def _ranges(known: Iterable[tuple[str | None, int | None, int | None]]) -> Iterator[Row]:
    last: Row | None = None
    for topic, queue_id, offset in sorted(known, key=lambda item: (item[0] or "", item[1] or 0, item[2] or 0)):
        if last is not None and (last["topic"], last["queueId"], last["lastQueueOffset"] + 1) == (
            *(topic, queue_id, offset),
        ):
            last["lastQueueOffset"] = offset
            continue
        if last is not None:
            yield last
        last = {"topic": topic, "queueId": queue_id, "firstQueueOffset": offset, "lastQueueOffset": offset}
    if last is not None:
        yield last


def queues_text(rows: Sequence[Row]) -> str:
    """The first ranges in words."""
    shown = []
    for row in rows[:MAX_QUEUES]:
        offsets = range_text(row["firstQueueOffset"], row["lastQueueOffset"])
        shown.append(f"{cell(row['topic'])} queue {row['queueId']} offset {offsets}")
    return ", ".join(shown) + (f" and {len(rows) - MAX_QUEUES} more" if len(rows) > MAX_QUEUES else "")
