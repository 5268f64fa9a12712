"""Splits rows of the log by topic and UTC day of storeTimestamp."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_DAY_US = 24 * 3600 * 1_000_000
_EPOCH = date(1970, 1, 1)


class TopicDay(NamedTuple):
    """A topic, and a day in days since 1970. None for rows without."""

    topic: str | None
    day: int | None

    @property
    def iso_day(self) -> str | None:
        """The day as ``YYYY-MM-DD``."""
        return None if self.day is None else (_EPOCH + timedelta(days=self.day)).isoformat()


def by_topic_and_day(batch: pa.RecordBatch) -> Iterator[tuple[TopicDay, pa.RecordBatch]]:
    """The rows of a batch for each topic and day, in the order of their first rows."""
    if not batch.num_rows:
        return
    topics = batch["topic"].dictionary_encode()
    names = [*topics.dictionary.to_pylist(), None]
    times = batch["storeTimestamp"]
    numbers, day = np.unique(np.asarray(times.cast(pa.int64()).fill_null(0)) // _DAY_US, return_inverse=True)
    days = [*numbers.tolist(), None]
    day = np.where(np.asarray(times.is_null()), len(numbers), day.astype(np.int64))
    key = np.asarray(topics.indices.cast(pa.int64()).fill_null(len(names) - 1)) * len(days) + day
    groups, firsts = np.unique(key, return_index=True)
    for group in groups[np.argsort(firsts)].tolist():
        rows = batch if len(groups) == 1 else batch.take(pa.array(np.flatnonzero(key == group)))
        yield TopicDay(names[group // len(days)], days[group % len(days)]), rows
