"""``dledger stats``: what a log holds, counted in one pass with memory that does not grow with the log."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import open_each
from pyspark_dledger.cli.output.output import Output, Row, plain_time, print_fields, print_table
from pyspark_dledger.cli.output.progress import ProgressBar
from pyspark_dledger.cli.output.row_printer import watched
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log import Log

COLUMNS = (
    *("kind", "index", "term", "pos", "size", "problem", "topic", "queueId", "storeSize"),
    *("bornTimestamp", "storeTimestamp", "tags"),
)
_BATCH_ROWS = 100_000
# Buckets of a histogram are as wide as a 64th of the natural logarithm: a percentile is right within 0.8 %.
BUCKETS_PER_E = 64
# What fits a terminal of each topic; --json has more.
_TOPIC_COLUMNS = (
    *("topic", "queues", "messages", "bytes", "messagesPerSecond", "sizeP50", "sizeP99", "bornToStoreP50"),
    *("bornToStoreP99", "lastStoreTimestamp", "tags"),
)
# A log that was made to have a topic, a queue, a tag or a term for each message is counted with bounded memory, too:
# what is beyond is counted together.
_MOST_TAGS = 10_000
_MOST_TOPICS = 50_000
_MOST_QUEUES = 100_000
_MOST_TERMS = 50_000
_SHOWN_TAGS = 5


@dataclass
class Spread:
    """Non-negative numbers, counted in buckets that grow with them: `BUCKETS_PER_E` times the logarithm of 1 more."""

    buckets: Counter[int] = field(default_factory=Counter)
    highest: int | None = None

    def add(self, bucket: int, count: int, highest: int) -> None:
        self.buckets[bucket] += count
        self.highest = highest if self.highest is None else max(self.highest, highest)

    def percentile(self, part: float) -> int | None:
        """The number that `part` of all do not exceed, within the width of a bucket."""
        wanted = part * self.buckets.total()
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(round(math.exp(bucket / BUCKETS_PER_E) - 1), self.highest or 0)
        return None


@dataclass
class _Times:
    """The first and last of some times, in milliseconds since 1970."""

    first: int | None = None
    last: int | None = None

    def add(self, first: int | None, last: int | None) -> None:
        if first is not None and last is not None:
            self.first = first if self.first is None else min(self.first, first)
            self.last = last if self.last is None else max(self.last, last)


@dataclass
class _Messages:
    """What is counted of messages: of a topic, or of all."""

    messages: int = 0
    size: int = 0
    times: _Times = field(default_factory=_Times)
    sizes: Spread = field(default_factory=Spread)
    latencies: Spread = field(default_factory=Spread)
    tags: Counter[str] = field(default_factory=Counter)
    other_tags: int = 0
    queues: set[int] = field(default_factory=set)

    def add_tag(self, tag: str, count: int) -> None:
        if tag in self.tags or len(self.tags) < _MOST_TAGS:
            self.tags[tag] += count
        else:
            self.other_tags += count

    def row(self) -> Row:
        """What is told of them: sizes as stored in bytes, latencies from born to stored in milliseconds."""
        span = (self.times.last or 0) - (self.times.first or 0)
        return {
            "firstStoreTimestamp": plain_time(self.times.first),
            "lastStoreTimestamp": plain_time(self.times.last),
            "messagesPerSecond": round(self.messages * 1000 / span, 3) if span else None,
            "sizeP50": self.sizes.percentile(0.5),
            "sizeP99": self.sizes.percentile(0.99),
            "sizeMax": self.sizes.highest,
            "bornToStoreP50": self.latencies.percentile(0.5),
            "bornToStoreP99": self.latencies.percentile(0.99),
            "bornToStoreMax": self.latencies.highest,
        }


@dataclass
class _Term:
    entries: int = 0
    size: int = 0
    first_index: int | None = None
    last_index: int | None = None
    times: _Times = field(default_factory=_Times)

    def row(self) -> Row:
        return {
            "entries": self.entries,
            "bytes": self.size,
            "firstIndex": self.first_index,
            "lastIndex": self.last_index,
            "firstStoreTimestamp": plain_time(self.times.first),
            "lastStoreTimestamp": plain_time(self.times.last),
        }


class Stats:
    """What batches with `COLUMNS` hold, counted: topics and terms beyond the first 50,000 of them together."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.problems = 0
        self.size = 0
        self.terms: dict[int, _Term] = {}
        self.other_terms = _Term()
        self.topics: dict[str, _Messages] = {}
        self.other_topics = _Messages()

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches([batch])
        self.problems += batch.num_rows - batch.column("problem").null_count
        self.size += pc.sum(table["size"]).as_py() or 0
        for group in pc.value_counts(batch.column("kind")).to_pylist():
            self.kinds[group["values"]] += group["counts"]
        born, stored = (_milliseconds(table[name]) for name in ("bornTimestamp", "storeTimestamp"))
        table = table.set_column(table.schema.get_field_index("storeTimestamp"), "stored", stored)
        table = table.append_column("latency", pc.max_element_wise(pc.subtract(stored, born), 0, skip_nulls=False))
        self._add_terms(table)
        self._add_topics(table.filter(pc.is_valid(table["topic"])))

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
        wanted = ["storeSize:sum", "stored:min", "stored:max"]
        for group in _grouped(table, ["topic", "queueId", "tags"], wanted):
            topic, count = self._topic(group["topic"]), group["count_all"]
            topic.messages += count
            topic.size += group["storeSize_sum"]
            topic.times.add(group["stored_min"], group["stored_max"])
            if len(topic.queues) < _MOST_QUEUES:
                topic.queues.add(group["queueId"])
            if group["tags"] is not None:
                topic.add_tag(group["tags"], count)
        for name in ("storeSize", "latency"):
            for group in _grouped(_with_bucket(table, name), ["topic", "bucket"], [f"{name}:max"]):
                topic = self._topic(group["topic"])
                spread = topic.sizes if name == "storeSize" else topic.latencies
                if group["bucket"] is not None:
                    spread.add(group["bucket"], group["count_all"], group[f"{name}_max"])

    def _term(self, term: int) -> _Term:
        if term not in self.terms and len(self.terms) >= _MOST_TERMS:
            return self.other_terms
        return self.terms.setdefault(term, _Term())

    def _topic(self, name: str) -> _Messages:
        if name not in self.topics and len(self.topics) >= _MOST_TOPICS:
            return self.other_topics
        return self.topics.setdefault(name, _Messages())

    def total_row(self, path: str) -> Row:
        """What the log at `path` holds in all."""
        messages = self.total()
        row: Row = {"path": path, "entries": self.kinds.total(), "bytes": self.size}
        row |= {"kinds": dict(self.kinds.most_common()), "problems": self.problems}
        return row | {"messages": messages.messages, "messageBytes": messages.size} | messages.row()

    def term_rows(self) -> list[Row]:
        """A row for each term, and at last one without a term for those beyond the most that are counted apart."""
        rows = [{"term": term, **self.terms[term].row()} for term in sorted(self.terms)]
        return [*rows, {"term": None, **self.other_terms.row()}] if self.other_terms.entries else rows

    def topic_rows(self) -> Iterator[Row]:
        """A row for each topic, the largest first, and at last one without a topic, as for terms."""
        for name, topic in sorted(self.topics.items(), key=lambda item: (-item[1].size, item[0])):
            yield _topic_row(name, topic)
        if self.other_topics.messages:
            yield _topic_row(None, self.other_topics)

    def total(self) -> _Messages:
        """What is counted of all messages."""
        total = _Messages()
        for topic in (*self.topics.values(), self.other_topics):
            total.messages += topic.messages
            total.size += topic.size
            total.times.add(topic.times.first, topic.times.last)
            for spread, own in ((total.sizes, topic.sizes), (total.latencies, topic.latencies)):
                for bucket, count in own.buckets.items():
                    spread.add(bucket, count, own.highest or 0)
        return total


def _milliseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.divide(column.cast("int64"), 1000)


def _with_bucket(table: pa.Table, name: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    logarithm = pc.ln(pc.add(table[name].cast(pa.float64()), 1.0))
    return table.append_column("bucket", pc.round(pc.multiply(logarithm, float(BUCKETS_PER_E))).cast(pa.int32()))


def _grouped(table: pa.Table, by: list[str], wanted: list[str]) -> list[dict[str, Any]]:
    """The groups with their counts, and each ``COLUMN:FUNCTION`` that is wanted as ``COLUMN_FUNCTION``."""
    functions = [tuple(text.split(":")) for text in wanted]
    groups: list[dict[str, Any]] = table.group_by(by).aggregate([([], "count_all"), *functions]).to_pylist()
    return groups


def stats(given: argparse.Namespace, out: Output) -> int:
    """Prints the totals, then a row for each term and each topic."""
    code = CLEAN
    for log in open_each(given):
        found = _count(log, out.progress)
        code = FINDINGS if found.problems else code
        total, terms, topics = found.total_row(log.path), found.term_rows(), list(found.topic_rows())
        if given.json:
            for kind, rows in (("total", [total]), ("term", terms), ("topic", topics)):
                for row in rows:
                    out.line(json_line({"of": kind, **row}))
        else:
            _print_text(out, total, terms, topics)
    return code


def _count(log: Log, progress: ProgressBar) -> Stats:
    found = Stats()
    for batch in scanned(log, progress):
        found.add(batch)
    return found


def scanned(log: Log, progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The rows of a log with `COLUMNS`, and the progress told."""
    # CRCs are for `verify`, which says what is wrong; here they would cost most of the time.
    return watched(log, log.scan(COLUMNS, verifyCrc=False, maxBatchRows=_BATCH_ROWS, maxBatchBytes="64m"), progress)


def _topic_row(name: str | None, topic: _Messages) -> Row:
    row: Row = {"topic": name, "queues": len(topic.queues), "messages": topic.messages, "bytes": topic.size}
    return row | topic.row() | {"tags": dict(topic.tags.most_common()), "otherTags": topic.other_tags}


def _print_text(out: Output, total: Row, terms: list[Row], topics: list[Row]) -> None:
    print_fields(out, {name: value for name, value in total.items() if value is not None})
    shown = [{**row, "tags": _most(row["tags"], row["otherTags"])} for row in topics]
    for rows in (terms, [{name: row[name] for name in _TOPIC_COLUMNS} for row in shown]):
        if rows:
            out.line("")
            print_table(out, rows)


def _most(tags: dict[str, int], others: int) -> str:
    """The tags that come most, and how many more there are."""
    shown = [f"{tag} {count}" for tag, count in list(tags.items())[:_SHOWN_TAGS]]
    more = len(tags) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") + (f", others {others}" if others else "")
