"""Conditions that a plan looks up in a broker's files, to read only a part of the log. The scan does not know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_dledger.common.frozen import changed
from pyspark_dledger.format.spec import Filters, IntFilter, ScanRequest
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.key_spans import key_spans
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.queue_window import queue_window
from pyspark_dledger.log.store_view import StoreView

Span = tuple[int, int]


@dataclass(frozen=True)
class Lookup:
    """Rows with other ``queue_offsets``, or with none of these ``keys`` as a key or uniqKey, need not be read.

    Both have an effect only with topics of the filters, queue offsets also with queues, and keys with trustKeyIndex.
    """

    queue_offsets: IntFilter | None = None
    keys: tuple[str, ...] | None = None


def looked_up(
    store: StoreView, ranges: Iterable[ScanRequest | FileGap], options: ReadOptions, filters: Filters, lookup: Lookup
) -> list[ScanRequest | FileGap]:
    """What of the ranges has to be read."""
    parts = list(ranges)
    if lookup.queue_offsets is not None:
        parts = list(_within(parts, [queue_window(store, filters, lookup.queue_offsets)]))
    is_trusted = options.trust_key_index and not options.heal  # other replicas may have messages that no unit has
    if is_trusted and lookup.keys is not None and filters.topic is not None:
        parts = list(_within(parts, key_spans(store, filters.topic, lookup.keys)))
    return parts


def _within(parts: Iterable[ScanRequest | FileGap], spans: list[Span]) -> Iterator[ScanRequest | FileGap]:
    """The parts of ranges that are in one of the spans, which are ascending and can overlap."""
    for part in parts:
        if isinstance(part, FileGap):
            yield part
            continue
        at = part.start
        for start, end in spans:
            start, end = max(start, at), min(end, part.end)
            if start < end:
                yield changed(part, start=start, end=end)
                at = end
