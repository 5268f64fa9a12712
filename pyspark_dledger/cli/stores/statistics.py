"""Counts the messages of a log in one pass, with memory that does not grow with the log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_dledger.cli.output.rows import Row, plain_time
from pyspark_dledger.cli.output.stream import ProgressBar
from pyspark_dledger.cli.stores.row_printer import with_progress
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.arrow_functions import grouped
from pyspark_dledger.log import Log

COLUMNS = (
    *("kind", "index", "term", "pos", "size", "problem", "topic", "queueId", "storeSize"),
    *("bornTimestamp", "storeTimestamp", "tags"),
)
_BATCH_ROWS = 100_000
# The buckets of a histogram are 1/64 of the natural logarithm wide: a percentile is right within 0.8 %.
BUCKETS_PER_E = 64
# A log may have a topic, queue, tag or term for each message. Those above the limit are counted together.
_MAX_TAGS = 10_000
_MAX_TOPICS = 50_000
_MAX_QUEUES = 100_000
_MAX_TERMS = 50_000


@dataclass
class BucketCounts:
    """Non-negative numbers in logarithmic buckets: a number n is in bucket `BUCKETS_PER_E` * ln(n + 1)."""

    buckets: Counter[int] = field(default_factory=Counter)
    maximum: int | None = None

    def add(self, bucket: int, count: int, maximum: int) -> None:
        self.buckets[bucket] += count
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)

    def percentile(self, fraction: float) -> int | None:
        """The number that `fraction` of all do not exceed, within the width of a bucket."""
        wanted = fraction * self.buckets.total()
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(round(math.exp(bucket / BUCKETS_PER_E) - 1), self.maximum or 0)
        return None


@dataclass
class _TimeRange:
    """In milliseconds since 1970."""

    first: int | None = None
    last: int | None = None

    def add(self, first: int | None, last: int | None) -> None:
        if first is not None and last is not None:
            self.first = first if self.first is None else min(self.first, first)
            self.last = last if self.last is None else max(self.last, last)


@dataclass
class _MessageCounts:
    """Counts of the messages of a topic, or of all."""

    messages: int = 0
    size: int = 0
    times: _TimeRange = field(default_factory=_TimeRange)
    sizes: BucketCounts = field(default_factory=BucketCounts)
    latencies: BucketCounts = field(default_factory=BucketCounts)
    tags: Counter[str] = field(default_factory=Counter)
    other_tags: int = 0
    queues: set[int] = field(default_factory=set)

    def add_tag(self, tag: str, count: int) -> None:
        if tag in self.tags or len(self.tags) < _MAX_TAGS:
            self.tags[tag] += count
        else:
            self.other_tags += count

    def row(self) -> Row:
        """Sizes in bytes as stored; latencies in milliseconds from born to stored."""
        span = (self.times.last or 0) - (self.times.first or 0)
        return {
            "firstStoreTimestamp": plain_time(self.times.first),
            "lastStoreTimestamp": plain_time(self.times.last),
            "messagesPerSecond": round(self.messages * 1000 / span, 3) if span else None,
            "sizeP50": self.sizes.percentile(0.5),
            "sizeP99": self.sizes.percentile(0.99),
            "sizeMax": self.sizes.maximum,
            "bornToStoreP50": self.latencies.percentile(0.5),
            "bornToStoreP99": self.latencies.percentile(0.99),
            "bornToStoreMax": self.latencies.maximum,
        }

    def topic_row(self, topic: str | None) -> Row:
        row: Row = {"topic": topic, "queues": len(self.queues), "messages": self.messages, "bytes": self.size}
        return row | self.row() | {"tags": dict(self.tags.most_common()), "otherTags": self.other_tags}


@dataclass
class _TermCounts:
    """Counts of the entries of a term."""

    entries: int = 0
    size: int = 0
    first_index: int | None = None
    last_index: int | None = None
    times: _TimeRange = field(default_factory=_TimeRange)

    def row(self, term: int | None) -> Row:
        return {
            "term": term,
            "entries": self.entries,
            "bytes": self.size,
            "firstIndex": self.first_index,
            "lastIndex": self.last_index,
            "firstStoreTimestamp": plain_time(self.times.first),
            "lastStoreTimestamp": plain_time(self.times.last),
        }


class Statistics:
    """Counts of batches with `COLUMNS`. Topics and terms after the first 50,000 are counted together."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.problems = 0
        self.size = 0
        self.terms: dict[int, _TermCounts] = {}
        self.other_terms = _TermCounts()
        self.topics: dict[str, _MessageCounts] = {}
        self.other_topics = _MessageCounts()

    def add(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        self.problems += batch.num_rows - batch.column("problem").null_count
        self.size += pc.sum(table["size"]).as_py() or 0
        for group in pc.value_counts(batch.column("kind")).to_pylist():
            self.kinds[group["values"]] += group["counts"]
        born, stored = (_milliseconds(table[name]) for name in ("bornTimestamp", "storeTimestamp"))
        table = table.set_column(table.schema.get_field_index("storeTimestamp"), "stored", stored)
        latency = pc.subtract(stored, born)
        table = table.append_column("latency", pc.if_else(pc.less(latency, 0), 0, latency))
        self._add_terms(table)
        self._add_topics(pc.filter(table, pc.is_valid(table["topic"])))

    def _add_terms(self, table: pa.Table) -> None:
        for group in _grouped(table, ["term"], ["size:sum", "index:min", "index:max", "stored:min", "stored:max"]):
            if group["term"] is not None:
                term = self._term(group["term"])
                term.entries += group["count_all"]
                term.size += group["size_sum"]
                term.first_index = group["index_min"] if term.first_index is None else term.first_index
                term.last_index = group["index_max"]
                term.times.add(group["stored_min"], group["stored_max"])

    def _add_topics(self, table: pa.Table) -> None:
        for group in _grouped(table, ["topic", "queueId", "tags"], ["storeSize:sum", "stored:min", "stored:max"]):
            topic, count = self._topic(group["topic"]), group["count_all"]
            topic.messages += count
            topic.size += group["storeSize_sum"]
            topic.times.add(group["stored_min"], group["stored_max"])
            if len(topic.queues) < _MAX_QUEUES:
                topic.queues.add(group["queueId"])
            if group["tags"] is not None:
                topic.add_tag(group["tags"], count)
        for name in ("storeSize", "latency"):
            for group in _grouped(_with_bucket(table, name), ["topic", "bucket"], [f"{name}:max"]):
                topic = self._topic(group["topic"])
                histogram = topic.sizes if name == "storeSize" else topic.latencies
                if group["bucket"] is not None:
                    histogram.add(group["bucket"], group["count_all"], group[f"{name}_max"])

    def _term(self, term: int) -> _TermCounts:
        if term not in self.terms and len(self.terms) >= _MAX_TERMS:
            return self.other_terms
        return self.terms.setdefault(term, _TermCounts())

    def _topic(self, name: str) -> _MessageCounts:
        if name not in self.topics and len(self.topics) >= _MAX_TOPICS:
            return self.other_topics
        return self.topics.setdefault(name, _MessageCounts())

    def total_row(self, path: str) -> Row:
        """The totals of the log at `path`."""
        messages = self._total()
        row: Row = {"path": path, "entries": self.kinds.total(), "bytes": self.size}
        row |= {"kinds": dict(self.kinds.most_common()), "problems": self.problems}
        return row | {"messages": messages.messages, "messageBytes": messages.size} | messages.row()

    def term_rows(self) -> list[Row]:
        """A row for each term, then one without a term for those above the limit."""
        rows = [self.terms[term].row(term) for term in sorted(self.terms)]
        return [*rows, self.other_terms.row(None)] if self.other_terms.entries else rows

    def topic_rows(self) -> Iterator[Row]:
        """A row for each topic, the largest first, then one without a topic for those above the limit."""
        for name, topic in sorted(self.topics.items(), key=lambda item: (-item[1].size, item[0])):
            yield topic.topic_row(name)
        if self.other_topics.messages:
            yield self.other_topics.topic_row(None)

    def _total(self) -> _MessageCounts:
        total = _MessageCounts()
        for topic in (*self.topics.values(), self.other_topics):
            total.messages += topic.messages
            total.size += topic.size
            total.times.add(topic.times.first, topic.times.last)
            for histogram, own in ((total.sizes, topic.sizes), (total.latencies, topic.latencies)):
                for bucket, count in own.buckets.items():
                    histogram.add(bucket, count, own.maximum or 0)
        return total


def _milliseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(pc.cast(column, pa.int64()), 1000)


def _with_bucket(table: pa.Table, name: str) -> pa.Table:
    logarithm = pc.ln(pc.add(pc.cast(table[name], pa.float64()), 1.0))
    return table.append_column("bucket", pc.cast(pc.round(pc.multiply(logarithm, float(BUCKETS_PER_E))), pa.int32()))


def _grouped(table: pa.Table, by: list[str], wanted: list[str]) -> list[dict[str, Any]]:
    """The groups with their counts, and each wanted ``COLUMN:FUNCTION`` as ``COLUMN_FUNCTION``."""
    return grouped(table, by, [(column, function) for column, _, function in (text.partition(":") for text in wanted)])


def scan_counted(log: Log, progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The rows of a log with `COLUMNS`."""
    batches = log.scan(COLUMNS, maxBatchRows=_BATCH_ROWS, maxBatchBytes="64m")
    return with_progress(log, batches, progress)
