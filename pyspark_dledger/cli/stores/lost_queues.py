"""The queues and queue offsets of the messages that a group has lost for good, as far as indexes and queues know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import Row, cell, range_text
from pyspark_dledger.common.adjacent import merge_adjacent

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.ranges import Ranges
    from pyspark_dledger.log.diff.verdict import GroupVerdict

MAX_QUEUES = 20
_QueuePlace = tuple[str | None, int | None, int | None]


def lost_queues(logs: Sequence[Log], verdict: GroupVerdict) -> list[Row]:
    """A row for each range of queue offsets that is lost: topic, queueId, firstQueueOffset and lastQueueOffset.

    Empty if nothing is lost, or no index and queue knows what it was.
    """
    from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
    from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, entries_of_index

    if verdict.lost != "some":
        return []
    wanted = [*verdict.lost_entries.ranges, *verdict.filled_entries.ranges]
    wanted += [verdict.lost_end] if verdict.lost_end is not None else []
    known: dict[int, KnownMessage] = {}
    for log in logs:
        for first, last in wanted:
            for entry in entries_of_index(log.index_files, first, last, _ignore):
                known.setdefault(entry.offset, entry)
    found = _in_queues(logs, ((offset, offset + 1) for offset in sorted(known)))
    found |= {place for log in logs for place in SalvageFillers(log.paths).queue_offsets(verdict.filled_entries.ranges)}
    return list(_ranges(found))


def lost_queues_of_positions(logs: Sequence[Log], lost: Ranges) -> list[Row]:
    """The same for positions of CommitLogs that are intact nowhere."""
    return list(_ranges(_in_queues(logs, ((first, last + 1) for first, last in lost.ranges))))


def _in_queues(logs: Sequence[Log], places: Iterator[tuple[int, int]]) -> set[_QueuePlace]:
    """Topic, queue and queue offset of the messages that begin in places of the log."""
    from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, Places, add_queue_units

    known: dict[int, KnownMessage] = {}
    wanted = Places(places)
    for root in {log.paths.root for log in logs}:
        # Remote queues are not listed.
        if isinstance(root, Path):
            add_queue_units(root, wanted, known, _ignore)
    return {(each.topic, each.queue_id, each.queue_offset) for each in known.values() if each.topic is not None}


def _ignore(_: Exception) -> None:
    """What cannot be read knows nothing."""


def _ranges(known: Iterable[_QueuePlace]) -> Iterator[Row]:
    ordered = sorted(known, key=lambda item: (item[0] or "", item[1] or 0, item[2] or 0))
    rows: Iterator[Row] = (
        {"topic": topic, "queueId": queue_id, "firstQueueOffset": offset, "lastQueueOffset": offset}
        for topic, queue_id, offset in ordered
    )
    return merge_adjacent(rows, _joined)


def _joined(last: Row, row: Row) -> Row | None:
    is_next = (last["topic"], last["queueId"]) == (row["topic"], row["queueId"])
    is_next = is_next and last["lastQueueOffset"] + 1 == row["firstQueueOffset"]
    return {**last, "lastQueueOffset": row["lastQueueOffset"]} if is_next else None


def queues_text(rows: Sequence[Row]) -> str:
    """The first ranges in words."""
    shown = []
    for row in rows[:MAX_QUEUES]:
        offsets = range_text(row["firstQueueOffset"], row["lastQueueOffset"])
        shown.append(f"{cell(row['topic'])} queue {row['queueId']} offset {offsets}")
    return ", ".join(shown) + (f" and {len(rows) - MAX_QUEUES} more" if len(rows) > MAX_QUEUES else "")
