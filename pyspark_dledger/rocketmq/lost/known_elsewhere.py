"""What replicas that have lost messages intact say of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.format.spec import DLEDGER, Filters
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_between, read_judged
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.damaged_ranges import COLUMNS, damaged_rows, row_at
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage

REPLICAS = "replicas"
# More messages of lost bytes stay one row.
_MAX_LISTED = 100_000

Row = dict[str, Any]
_Range = tuple[int, int]


def completed_by_replicas(found: Iterable[LostMessage], logs: Mapping[str, StoreView]) -> list[LostMessage]:
    """The messages with what the first replica that has them intact says; lost bytes become its messages there.

    Raises StoreError.
    """
    listed = list(found)
    wanted: defaultdict[str, list[LostMessage]] = defaultdict(list)
    for lost in listed:
        if lost.intact_on and (lost.topic is None or lost.size is None or lost.entries != 1):
            wanted[lost.intact_on[0]].append(lost)
    rows = {name: _rows(logs[name], those) for name, those in wanted.items()}
    completed: list[LostMessage] = []
    for lost in listed:
        completed += _completed(lost, rows.get(lost.intact_on[0], {}) if lost.intact_on else {})
    return completed


def _completed(lost: LostMessage, rows: Mapping[tuple[str, int], Row]) -> Iterator[LostMessage]:
    if lost.entries == 1:
        key = ("index", lost.index) if lost.index is not None else ("pos", lost.pos)
        row = rows.get(key)  # none if it is known already
        yield lost if row is None else _with(lost, row)
        return
    here = [row for (kind, pos), row in rows.items() if kind == "pos" and lost.pos <= pos < lost.end]
    if not here or len(here) > _MAX_LISTED:
        yield lost
    else:
        yield from (_with(replace(lost, entries=1, size=None), row) for row in here)


def _with(lost: LostMessage, row: Row) -> LostMessage:
    stored = row["storeTimestamp"]
    is_placed = lost.size is not None
    return replace(
        lost,
        index=row["index"],
        pos=lost.pos if is_placed else row["pos"],
        size=lost.size if is_placed else row["size"],
        topic=row["topic"] if lost.topic is None else lost.topic,
        queue_id=row["queueId"] if lost.topic is None else lost.queue_id,
        queue_offset=row["queueOffset"] if lost.topic is None else lost.queue_offset,
        first_store_timestamp=lost.first_store_timestamp if stored is None else stored,
        last_store_timestamp=lost.last_store_timestamp if stored is None else stored,
        witnesses=(*lost.witnesses, REPLICAS),
    )


def _rows(log: StoreView, wanted: Iterable[LostMessage]) -> dict[tuple[str, int], Row]:
    """The intact rows of messages, by index and by pos."""
    options = ReadOptions(engine=log.options.engine)
    found: dict[tuple[str, int], Row] = {}
    for start, end in _places(log, wanted):
        for partition in plan_between(log, COLUMNS, options, Filters(), None, start, end):
            for batch in read_judged(partition):
                damaged = set(damaged_rows(batch))
                for number in sorted({*range(batch.num_rows)} - damaged):
                    row = row_at(batch, number)
                    found["pos", row["pos"]] = found["index", row["index"]] = row
    return found


def _places(log: StoreView, wanted: Iterable[LostMessage]) -> list[_Range]:
    """Where the messages are in a replica; adjacent ones are one range."""
    indexes, places = [], []
    for lost in wanted:
        if lost.source == DLEDGER and lost.index is not None and lost.entries == 1:
            indexes.append((lost.index, lost.index + 1))
        else:
            places.append((lost.pos, max(lost.end, lost.pos + 1)))
    runs = merge_adjacent(iter(sorted(indexes)), _joined)
    places += [(log.position_of(first), log.position_of(stop)) for first, stop in runs]
    return list(merge_adjacent(iter(sorted(places)), _joined))


def _joined(first: _Range, second: _Range) -> _Range | None:
    return (first[0], max(first[1], second[1])) if second[0] <= first[1] else None
