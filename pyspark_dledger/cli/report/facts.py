"""Gathers the facts of a report from a store's log and tables. Memory does not grow with the log.

For other readers the facts are redacted: quotes from a store become digests, by the rules of `output.redact`.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark_dledger.cli.output.redact import redactor
from pyspark_dledger.cli.output.rows import Row, plain_time
from pyspark_dledger.cli.output.stream import ProgressBar
from pyspark_dledger.cli.report.timeline import Timeline
from pyspark_dledger.cli.report.verdict import (
    TROUBLE,
    Verdict,
    contents_text,
    group_verdicts,
    lag_verdicts,
    lost_verdicts,
    store_verdicts,
)
from pyspark_dledger.cli.stores.check_text import store_kind
from pyspark_dledger.cli.stores.diff_text import commit_log_sentences, cut_logs, sentences
from pyspark_dledger.cli.stores.queue_rows import gap_units, lost_queues, lost_queues_of_positions
from pyspark_dledger.cli.stores.row_printer import table_batches
from pyspark_dledger.cli.stores.statistics import Statistics, scan_counted
from pyspark_dledger.common.fields import fields_row, json_of
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison
from pyspark_dledger.log.diff.comparison import Comparison
from pyspark_dledger.log.tables.store_tables import FINDING_COLUMNS
from pyspark_dledger.log.tables.table import row_of
from pyspark_dledger.rocketmq.check import CheckReport, MemberCheck, check_stores
from pyspark_dledger.rocketmq.check.restart import all_versions, restart_of

if TYPE_CHECKING:
    from pyspark_dledger.log import Log

_MAX_CONSUMERS = 1_000


@dataclass
class Listed:
    """Rows of a table by code: their count and the first ones; or the reason why the table cannot be read."""

    counts: Counter[str]
    examples: dict[str, list[Row]]
    reason: str | None = None


@dataclass
class Consumers:
    """A row for each group, and the queues with the largest lag; or the reason why there are none."""

    groups: list[Row] = field(default_factory=list)
    furthest: list[Row] = field(default_factory=list)
    reason: str | None = None


@dataclass
class Facts:
    """All facts on a page. Rows have the columns of the tables of the same names."""

    path: str
    name: str
    """What `check` calls this store."""
    kind: str
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
    fillers: int
    """Units after the first message of their queue that stand for messages missing from the log."""
    checked: list[Verdict]
    """What `check` says of this store."""
    all_checked: list[Verdict] = field(default_factory=list)
    """What `check` says of all stores; of the first one only."""
    is_clean: bool = True
    """Whether `check` finds nothing wrong with any store."""
    comparison: Comparison | None = None
    comparison_sentences: list[str] = field(default_factory=list)
    commit_logs: CommitLogComparison | None = None
    lost_queues: list[Row] = field(default_factory=list)
    """Ranges of queue offsets that the group has lost for good."""
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

    @property
    def verdicts(self) -> list[Verdict]:
        """The answers about this store."""
        return [*self.checked, *lag_verdicts(self.consumers.groups)]

    @property
    def group_verdicts(self) -> list[Verdict]:
        """The answers about all stores."""
        return [*self.all_checked, *lost_verdicts(self.lost_queues)]

    @property
    def is_trouble(self) -> bool:
        """Whether `check` finds something, or an answer about a store is a warning or an error."""
        answers = [*self.group_verdicts, *(each for member in self.members for each in member.verdicts)]
        return not self.is_clean or any(verdict.level in TROUBLE for verdict in answers)

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
    replicas = compared.replicas if compared is not None else []
    report = check_stores(compared or log, progress=progress, is_whole=False)
    stores = zip((log, *replicas), report.members, strict=True)
    found, *found.others = [_gather_one(store, member, progress) for store, member in stores]
    if compared is not None:
        _compare(found, report, compared)
    found.is_clean, found.all_checked = report.is_clean, group_verdicts(report)
    return found


def _compare(facts: Facts, report: CheckReport, compared: Log) -> None:
    """Add what the comparison of the replicas found."""
    logs = [compared, *compared.replicas]
    facts.comparison, facts.commit_logs = report.comparison, report.commit_logs
    if report.comparison is not None:
        facts.comparison_sentences = [*(text.strip() for text in sentences(report.comparison)), *cut_logs(compared)]
        facts.lost_queues += lost_queues(logs, report.comparison.verdict)
    if report.commit_logs is not None:
        facts.lost_queues += lost_queues_of_positions(logs, report.commit_logs.verdict.lost_entries)


def _gather_one(log: Log, member: MemberCheck, progress: ProgressBar) -> Facts:
    stats, timeline, checked = Statistics(), Timeline(), member.facts
    for batch in scan_counted(log, progress):
        stats.add(batch)
        timeline.add(batch)
    findings = {code: [row_of(FINDING_COLUMNS, each) for each in same] for code, same in checked.examples.items()}
    no_queues = checked.queues.reason if checked.queues.is_there else f"{log.path}: no broker's store, it has no queues"
    fillers, _ = gap_units(log) if no_queues is None and not checked.unreadable else (0, 0)
    total, segments = stats.total_row(log.path), list(_rows(log, "segments", progress))
    # This table names what cannot be read.
    consumers = _consumers(type(log)(log.path, replace(log.options, unread=None)), progress)
    recoveries, no_recovery = _recoveries(log)
    return Facts(
        path=log.path,
        name=member.name,
        kind=store_kind(checked.state, checked.is_broker),
        is_broker=checked.is_broker,
        state=next(iter(_rows(log, "state", progress))),
        total=total,
        terms=stats.term_rows(),
        topics=list(stats.topic_rows()),
        segments=segments,
        findings=Listed(checked.findings, findings),
        recoveries=recoveries,
        no_recovery=no_recovery,
        audit=Listed(checked.queues.counts, checked.queues.examples, no_queues),
        consumers=consumers,
        timeline=timeline,
        fillers=fillers,
        checked=list(store_verdicts(member, contents_text(total, len(segments)), fillers)),
    )


def _rows(log: Log, table: str, progress: ProgressBar) -> Iterable[Row]:
    for batch in table_batches(log, table, progress):
        yield from rows_of(batch, bytes)


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

    def counted() -> Iterator[Row]:
        for row in _rows(log, "consumers", progress):
            name = row["consumerGroup"]
            group = groups.setdefault(name, {"consumerGroup": name, "queues": 0, "lag": 0, "lost": 0})
            if row["topic"] is not None:
                group["queues"] += 1
                group["lag"] += max(row["lag"] or 0, 0)
                group["lost"] += row["lost"] or 0
                yield row

    try:
        furthest = heapq.nlargest(_MAX_CONSUMERS, counted(), lambda row: (row["lost"] or 0, row["lag"] or 0))
    except DLedgerError as error:
        return Consumers(reason=str(error))
    return Consumers(
        sorted(groups.values(), key=lambda row: (-row["lost"], -row["lag"], row["consumerGroup"])), furthest
    )


_Value = TypeVar("_Value")

# Texts of Java and of this package, versions, names of files that are positions, and counts.
_KEPT = (
    *("dialect", "committedFrom", "voteLeader", "javaDoes", "software", "version", "outcome", "reason", "notes"),
    *("kinds", "lost"),
)
# Words of this package. A store's folder may have such a name.
_OWN_WORDS = frozenset(("verdict", "start", "elect", "lost", "source", "engine", "proof", "proven_by", "kind", "code"))
# What copies of an entry have: fields of comparisons.
_QUOTES = frozenset(("topic", "queue_id", "queue_offset", "difference", "first_difference"))
_TOPIC = re.compile(r"(?<=consumequeue/)[^/\s]+")


def redacted(facts: Facts) -> Facts:
    """Facts with digests of one key for paths, topics, groups, and what findings expected and found."""
    redact = redactor(_KEPT)
    paths = {path for store in facts.members for path in (store.path, *store.path.split(","))}
    digests = {path: str(redact({"path": path})["path"]) for path in paths | _absolute(paths)}
    # The longest first, and only whole paths: a path may be ``.`` or ``n0``.
    alternatives = "|".join(map(re.escape, sorted(digests, key=len, reverse=True)))
    of_path = re.compile(rf"(?<![\w./-])(?:{alternatives})(?![\w.-])")

    def rows(found: Iterable[Row]) -> list[Row]:
        return [redact(row) for row in found]

    def listed(found: Listed) -> Listed:
        return replace(found, examples={code: rows(same) for code, same in found.examples.items()})

    def recovery(row: Row) -> Row:
        topics = {str(redact({"topic": topic})["topic"]): count for topic, count in row["lostTopics"].items()}
        return {**row, "lostTopics": topics}

    def store(found: Facts) -> Facts:
        consumers = replace(
            found.consumers, groups=rows(found.consumers.groups), furthest=rows(found.consumers.furthest)
        )
        return replace(
            found,
            path=digests[found.path],
            state=redact(found.state),
            total=redact(found.total),
            topics=rows({name: row[name] for name in row if name != "tags"} for row in found.topics),
            segments=rows(found.segments),
            findings=listed(found.findings),
            audit=listed(found.audit),
            consumers=consumers,
            recoveries=list(map(recovery, found.recoveries)),
            lost_queues=rows(found.lost_queues),
            others=[store(other) for other in found.others],
        )

    def text(found: str) -> str:
        """Names of replicas and sentences contain paths, too, and files of queues their topic."""
        found = of_path.sub(lambda path: digests[path[0]], found)
        return _TOPIC.sub(lambda topic: str(redact({"topic": topic[0]})["topic"]), found)

    return _with_texts(store(facts), text)


def _with_texts(value: _Value, change: Callable[[str], str], name: object = None) -> _Value:
    """A value with changed texts, also those in its dataclasses, tuples, lists and dicts, but not `_OWN_WORDS`.

    Dataclasses are without `_QUOTES`.
    """
    found: Any = value
    if isinstance(found, str):
        found = found if name in _OWN_WORDS else change(found)
    elif is_dataclass(found):
        values = {each.name: getattr(found, each.name) for each in fields(found)}
        shown = {name: each for name, each in values.items() if name not in _QUOTES or is_dataclass(each)}
        parts = dict.fromkeys(values) | {name: _with_texts(each, change, name) for name, each in shown.items()}
        found = replace(found, **parts)  # type: ignore[type-var]
    elif isinstance(found, dict):
        items = {_with_texts(key, change): _with_texts(item, change, key) for key, item in found.items()}
        found = type(found)(items)  # also a Counter
    elif isinstance(found, (list, tuple)):
        texts = [_with_texts(item, change) for item in found]
        found = type(found)(*texts) if hasattr(found, "_fields") else type(found)(texts)
    return found


def _absolute(paths: Iterable[str]) -> set[str]:
    """The full paths of `paths` and of their parent folders: texts may contain a broker's root."""
    full = {Path(function(path)) for path in paths for function in (os.path.abspath, os.path.realpath)}
    return {str(folder) for path in full for folder in (path, *path.parents) if folder.name}
