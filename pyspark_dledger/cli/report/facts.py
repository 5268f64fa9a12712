"""Gathers the facts of a report from a store's log and tables. Memory does not grow with the log.

For other readers the facts are redacted: quotes from a store become digests, by the rules of `output.redact`.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark_dledger.cli.output.redact import redactor
from pyspark_dledger.cli.output.rows import Row, plain_time
from pyspark_dledger.cli.output.stream import ProgressBar
from pyspark_dledger.cli.report.timeline import Timeline
from pyspark_dledger.cli.stores.diff_text import commit_log_sentences, cut_logs, sentences
from pyspark_dledger.cli.stores.queue_rows import count_fillers, lost_queues, lost_queues_of_positions
from pyspark_dledger.cli.stores.row_printer import table_batches
from pyspark_dledger.cli.stores.statistics import Statistics, scan_counted
from pyspark_dledger.common.fields import fields_row, json_of
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison, compare_commit_logs
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.log.next_step import NextStep
from pyspark_dledger.log.verify.findings import CODES
from pyspark_dledger.rocketmq.check.check_report import step_after_comparison
from pyspark_dledger.rocketmq.check.restart import all_versions, is_broker, restart_of

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log import Log

MAX_EXAMPLES = 20
"""How many rows of one code are listed; the others are counted."""
_MAX_CONSUMERS = 1_000


@dataclass
class Listed:
    """Rows of a table by code: their count and the first `MAX_EXAMPLES`; or the reason why it cannot be read."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Row]] = field(default_factory=dict)
    reason: str | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        from pyspark_dledger.format.arrow_functions import compute as pc

        codes = batch.column("code")
        for group in pc.value_counts(codes).to_pylist():
            code, examples = group["values"], self.examples.setdefault(group["values"], [])
            self.counts[code] += group["counts"]
            if len(examples) < MAX_EXAMPLES:
                same = batch.filter(pc.equal(codes, code))
                examples += rows_of(same.slice(0, MAX_EXAMPLES - len(examples)), bytes)


@dataclass
class Consumers:
    """A row for each group, and the queues with the largest lag; or the reason why there are none."""

    groups: list[Row] = field(default_factory=list)
    furthest: list[Row] = field(default_factory=list)
    queues: int = 0
    reason: str | None = None


@dataclass
class Facts:
    """All facts on a page. Rows have the columns of the tables of the same names."""

    path: str
    is_broker: bool
    state: Row
    total: Row
    terms: list[Row]
    topics: list[Row]
    segments: list[Row]
    findings: Listed
    recoveries: list[Row]
    no_recovery: str | None
    audit: Listed
    consumers: Consumers
    timeline: Timeline
    fillers: int = 0
    """Units after the first message of their queue that stand for messages missing from the log."""
    comparison: Comparison | None = None
    comparison_sentences: list[str] = field(default_factory=list)
    commit_logs: CommitLogComparison | None = None
    name: str | None = None
    """What a comparison of CommitLogs calls this store."""
    lost_queues: list[Row] = field(default_factory=list)
    """Ranges of queue offsets that the group has lost for good."""
    next: NextStep | None = None
    """What to do next with the group."""
    others: list[Facts] = field(default_factory=list)
    """The facts of the replicas, without a comparison."""

    @property
    def members(self) -> list[Facts]:
        """The facts of this store and of its replicas."""
        return [self, *self.others]

    @property
    def is_plain(self) -> bool:
        """Whether no member has a DLedger log."""
        return all(store.state["dialect"] == "commitlog" for store in self.members)

    def count_findings(self, severity: str) -> int:
        """The number of findings with that severity."""
        return sum(count for code, count in self.findings.counts.items() if CODES[code].severity == severity)

    def as_json(self) -> Row:
        """The object that ``--json`` prints."""
        timeline = self.timeline
        return {
            "path": self.path,
            "isBroker": self.is_broker,
            "state": self.state,
            "total": self.total,
            "terms": self.terms,
            "topics": self.topics,
            "segments": self.segments,
            "findings": _listed_json(self.findings),
            "recovery": _or_reason(self.recoveries, self.no_recovery),
            "audit": _listed_json(self.audit),
            "consumers": _or_reason(self.consumers.groups, self.consumers.reason),
            "gaps": [
                {"start": plain_time(gap.start), "end": plain_time(gap.end), "milliseconds": gap.length}
                for gap in timeline.gaps
            ],
            "replicas": json_of(self.comparison),
            "commitLogs": list(commit_log_sentences(self.commit_logs)) if self.commit_logs is not None else [],
            "commitLogReplicas": json_of(self.commit_logs),
            "lostQueues": self.lost_queues,
            "others": [other.as_json() for other in self.others],
        }


def _listed_json(listed: Listed) -> Row:
    if listed.reason is not None:
        return {"reason": listed.reason}
    return {"counts": dict(sorted(listed.counts.items())), "examples": listed.examples}


def _or_reason(rows: list[Row], reason: str | None) -> list[Row] | Row:
    return rows if reason is None else {"reason": reason}


def gather(log: Log, compared: Log | None, progress: ProgressBar) -> Facts:
    """The facts of the store of `log`; `compared` is the same store with its replicas, whose facts are gathered too.

    Raises StoreError where the store or a replica cannot be read. Parts that a store lacks (ConsumeQueues, a broker's
    config, a DLedger node) have a reason instead.
    """
    found = _gather_one(log, progress)
    if compared is not None:
        found.comparison = compare(compared)
        found.comparison_sentences = list(_comparison_sentences(compared, found.comparison))
        logs = [compared, *compared.replicas]
        found.lost_queues = lost_queues([compared, *compared.replicas], found.comparison.verdict)
        found.others = [_gather_one(replica, progress) for replica in compared.replicas]
        _compare_commit_logs(found, compared)
        of_plain = found.commit_logs if found.is_plain else None
        found.next = step_after_comparison(of_plain or found.comparison, logs)
    return found


def _compare_commit_logs(facts: Facts, compared: Log) -> None:
    facts.commit_logs = compare_commit_logs(compared)
    if facts.commit_logs is not None:
        facts.lost_queues += lost_queues_of_positions([compared, *compared.replicas], facts.commit_logs.verdict.lost)
        for store, state in zip(facts.members, facts.commit_logs.states, strict=True):
            store.name = state.node


def _gather_one(log: Log, progress: ProgressBar) -> Facts:
    stats, timeline = Statistics(), Timeline()
    for batch in scan_counted(log, progress):
        stats.add(batch)
        timeline.add(batch)
    recoveries, no_recovery = _recoveries(log)
    # These tables name what cannot be read.
    strict = type(log)(log.path, replace(log.options, unread=None))
    audit = _audit(strict, progress)
    return Facts(
        path=log.path,
        is_broker=is_broker(log),
        state=next(iter(_rows(log, "state", progress))),
        total=stats.total_row(log.path),
        terms=stats.term_rows(),
        topics=list(stats.topic_rows()),
        segments=list(_rows(log, "segments", progress)),
        findings=_listed(strict, "findings", progress),
        recoveries=recoveries,
        no_recovery=no_recovery,
        audit=audit,
        consumers=_consumers(strict, progress),
        timeline=timeline,
        fillers=count_fillers(log) if audit.reason is None else 0,
    )


def _comparison_sentences(compared: Log, comparison: Comparison) -> Iterable[str]:
    yield from (text.strip() for text in sentences(comparison))
    yield from cut_logs(compared)


def _rows(log: Log, table: str, progress: ProgressBar) -> Iterable[Row]:
    for batch in table_batches(log, table, progress):
        yield from rows_of(batch, bytes)


def _listed(log: Log, table: str, progress: ProgressBar) -> Listed:
    listed = Listed()
    try:
        for batch in table_batches(log, table, progress):
            listed.add(batch)
    except DLedgerError as error:
        return Listed(reason=str(error))
    return listed


def _audit(log: Log, progress: ProgressBar) -> Listed:
    root = log.paths.root
    if root is None or not (root / "consumequeue").is_dir():
        return Listed(reason=f"{log.path}: there is no consumequeue folder next to the log")
    return _listed(log, "audit", progress)


def _recoveries(log: Log) -> tuple[list[Row], str | None]:
    """What each line of versions would do at its start; or why that is unknown."""
    try:
        found = [restart_of(log, *version) for version in all_versions(log)]
    except DLedgerError as error:
        return [], str(error)
    unread = next((each.reason for each in found if each.starts is None), None)
    return ([], unread) if unread is not None else ([fields_row(each) for each in found], None)


def _consumers(log: Log, progress: ProgressBar) -> Consumers:
    groups: dict[str, Row] = {}
    furthest: list[tuple[int, int, int, Row]] = []
    count = 0
    try:
        for count, row in enumerate(_rows(log, "consumers", progress), 1):
            _add_consumer(groups, row)
            behind = (row["lost"] or 0, row["lag"] or 0, -count, row)
            if row["topic"] is None:
                continue
            if len(furthest) < _MAX_CONSUMERS:
                heapq.heappush(furthest, behind)
            else:
                heapq.heappushpop(furthest, behind)
    except DLedgerError as error:
        return Consumers(reason=str(error))
    rows = [row for *_, row in sorted(furthest, key=lambda item: item[:3], reverse=True)]
    ordered = sorted(groups.values(), key=lambda row: (-row["lost"], -row["lag"], row["consumerGroup"]))
    return Consumers(ordered, rows, count)


def _add_consumer(groups: dict[str, Row], row: Row) -> None:
    name = row["consumerGroup"]
    group = groups.setdefault(name, {"consumerGroup": name, "queues": 0, "lag": 0, "lost": 0})
    if row["topic"] is not None:
        group["queues"] += 1
        group["lag"] += max(row["lag"] or 0, 0)
        group["lost"] += row["lost"] or 0


_Value = TypeVar("_Value")

# Texts of Java and of this package, versions, names of files that are positions, and counts.
_KEPT = (
    *("dialect", "committedFrom", "voteLeader", "javaDoes", "software", "version", "outcome", "reason", "notes"),
    *("kinds", "lost"),
)
# Words of this package. A store's folder may have such a name.
_OWN_WORDS = frozenset(("verdict", "start", "elect", "lost", "source", "engine", "proof", "proven_by", "kind", "code"))
_TOPIC = re.compile(r"(?<=consumequeue/)[^/\s]+")


def redacted(facts: Facts) -> Facts:
    """Facts with digests of one key for paths, topics, groups, and what findings expected and found."""
    redact = redactor(_KEPT)
    paths = {store.path for store in (facts, *facts.others)}
    paths.update(standing.path for standing in (facts.comparison.standings if facts.comparison else ()))
    old = facts.commit_logs.verdict.members if facts.commit_logs is not None else ()
    paths.update(path for member in old for path in member.path.split(","))
    digests = {path: str(redact({"path": path})["path"]) for path in paths | _absolute(paths)}
    # The longest first, and only whole paths: a path may be ``.`` or ``n0``.
    alternatives = "|".join(map(re.escape, sorted(digests, key=len, reverse=True)))
    of_path = re.compile(rf"(?<![\w./-])(?:{alternatives})(?![\w.-])")

    def listed(found: Listed) -> Listed:
        rows = {code: [redact(row) for row in examples] for code, examples in found.examples.items()}
        return replace(found, examples=rows)

    def recovery(row: Row) -> Row:
        topics = {str(redact({"topic": topic})["topic"]): count for topic, count in row["lostTopics"].items()}
        return {**row, "lostTopics": topics}

    def topic(row: Row) -> Row:
        return redact({name: value for name, value in row.items() if name != "tags"})

    def store(found: Facts) -> Facts:
        consumers = replace(
            found.consumers,
            groups=[redact(row) for row in found.consumers.groups],
            furthest=[redact(row) for row in found.consumers.furthest],
        )
        return replace(
            found,
            path=digests[found.path],
            state=redact(found.state),
            total=redact(found.total),
            topics=[topic(row) for row in found.topics],
            segments=[redact(row) for row in found.segments],
            findings=listed(found.findings),
            audit=listed(found.audit),
            consumers=consumers,
            recoveries=[recovery(row) for row in found.recoveries],
            comparison=_comparison(found.comparison, digests),
            commit_logs=_commit_logs(found.commit_logs),
            lost_queues=[redact(row) for row in found.lost_queues],
            others=[store(other) for other in found.others],
        )

    def text(found: str) -> str:
        """Names of replicas and sentences contain paths, too, and files of queues their topic."""
        found = of_path.sub(lambda path: digests[path[0]], found)
        return _TOPIC.sub(lambda topic: str(redact({"topic": topic[0]})["topic"]), found)

    return _with_texts(store(facts), text)


def _with_texts(value: _Value, change: Callable[[str], str], name: object = None) -> _Value:
    """A value with changed texts, also those in its dataclasses, tuples, lists and dicts, but not `_OWN_WORDS`."""
    found: Any = value
    if isinstance(found, str):
        found = found if name in _OWN_WORDS else change(found)
    elif is_dataclass(found):
        parts = {each.name: _with_texts(getattr(found, each.name), change, each.name) for each in fields(found)}
        found = replace(found, **parts)  # type: ignore[type-var]
    elif isinstance(found, dict):
        items = {_with_texts(key, change): _with_texts(item, change, key) for key, item in found.items()}
        found = type(found)(items)  # also a Counter
    elif isinstance(found, (list, tuple)):
        texts = [_with_texts(item, change) for item in found]
        found = type(found)(*texts) if hasattr(found, "_fields") else type(found)(texts)
    return found


def _commit_logs(found: CommitLogComparison | None) -> CommitLogComparison | None:
    """A comparison of CommitLogs without the values that differ, and the topic of the first difference."""
    if found is None:
        return None
    first = found.first_difference
    if first is not None:
        first = replace(first, topic=None, queue_id=None, queue_offset=None, difference=None)
    rows = [replace(row, first_difference=None) for row in found.rows]
    return replace(found, first_difference=first, rows=type(found.rows)(rows))


def _absolute(paths: Iterable[str]) -> set[str]:
    """The full paths of `paths` and of their parent folders: texts may contain a broker's root."""
    full = {Path(function(path)) for path in paths for function in (os.path.abspath, os.path.realpath)}
    return {str(folder) for path in full for folder in (path, *path.parents) if folder.name}


def _comparison(found: Comparison | None, digests: dict[str, str]) -> Comparison | None:
    """A comparison without the folders of replicas and files, and without the values that differ."""
    if found is None:
        return None
    standings = tuple(replace(item, path=digests[item.path]) for item in found.standings)
    first = found.first_divergence
    if first is not None:
        places = {node: ("/".join(file.split("/")[-2:]), offset) for node, (file, offset) in first.places.items()}
        first = replace(first, places=places)
    pairs = zip(found.verdict.members, standings, strict=True)
    members = tuple(replace(item, path=standing.path) for item, standing in pairs)
    verdict = replace(found.verdict, members=members)
    rows = [replace(row, first_difference=None) for row in found.rows]
    return replace(found, standings=standings, first_divergence=first, verdict=verdict, rows=type(found.rows)(rows))
