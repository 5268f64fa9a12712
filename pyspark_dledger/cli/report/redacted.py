"""Redacts the facts of a report: quotes from a store become digests, by the rules of `output.redact`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.cli.output.redact import redactor
from pyspark_dledger.cli.output.rows import Row
from pyspark_dledger.cli.report.facts import Facts, Listed
from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison
from pyspark_dledger.log.diff.comparison import Comparison

# Texts of Java and of this package, versions, names of files that are positions, and counts.
_KEPT = (
    *("dialect", "committedFrom", "voteLeader", "javaDoes", "software", "version", "outcome", "reason", "notes"),
    *("kinds", "lost"),
)


def redacted(facts: Facts) -> Facts:
    """Facts with digests of one key for paths, topics, groups, and what findings expected and found."""
    redact = redactor(_KEPT)
    paths = {facts.path, *(item.path for item in (facts.comparison.standings if facts.comparison else ()))}
    digests = {path: str(redact({"path": path})["path"]) for path in paths | _absolute(paths)}
    # The longest first, and only whole paths: a path may be ``.`` or ``n0``.
    alternatives = "|".join(map(re.escape, sorted(digests, key=len, reverse=True)))
    of_path = re.compile(rf"(?<![\w./-])(?:{alternatives})(?![\w.-])")

    def without_paths(text: str | None) -> str | None:
        return of_path.sub(lambda path: digests[path[0]], text) if text is not None else None

    def listed(found: Listed) -> Listed:
        rows = {code: [redact(row) for row in examples] for code, examples in found.examples.items()}
        return Listed(found.counts, rows, without_paths(found.reason))

    def recovery(row: Row) -> Row:
        topics = {str(redact({"topic": topic})["topic"]): count for topic, count in row["lostTopics"].items()}
        texts = {"reason": without_paths(row["reason"]), "notes": [without_paths(note) for note in row["notes"]]}
        return {**row, **texts, "lostTopics": topics}

    def topic(row: Row) -> Row:
        return redact({name: value for name, value in row.items() if name != "tags"})

    def store(found: Facts) -> Facts:
        consumers = replace(
            found.consumers,
            groups=[redact(row) for row in found.consumers.groups],
            furthest=[redact(row) for row in found.consumers.furthest],
            reason=without_paths(found.consumers.reason),
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
            no_recovery=without_paths(found.no_recovery),
            comparison=_comparison(found.comparison, digests),
            comparison_sentences=[str(without_paths(text)) for text in found.comparison_sentences],
            commit_logs=_commit_logs(found.commit_logs, without_paths),
            name=without_paths(found.name),
            lost_queues=[redact(row) for row in found.lost_queues],
            others=[store(other) for other in found.others],
        )

    return store(facts)


def _commit_logs(found: CommitLogComparison | None, text: Callable[[str], str | None]) -> CommitLogComparison | None:
    """A comparison of CommitLogs without paths, and without the topic of the first difference."""
    if found is None:
        return None
    first = found.first_difference
    if first is not None:
        found = replace(found, first_difference=replace(first, topic=None, queue_id=None, queue_offset=None))

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: changed(getattr(value, each.name)) for each in fields(value)})
        if isinstance(value, (tuple, list)):
            return type(value)(changed(item) for item in value)
        return {changed(key): changed(item) for key, item in value.items()} if isinstance(value, dict) else value

    result: CommitLogComparison = changed(found)
    return result


def _absolute(paths: Iterable[str]) -> set[str]:
    """The full paths of `paths` and of their parent folders: texts may contain a broker's root."""
    full = {Path(function(path)) for path in paths for function in (os.path.abspath, os.path.realpath)}
    return {str(folder) for path in full for folder in (path, *path.parents) if folder.name}


def _comparison(found: Comparison | None, digests: dict[str, str]) -> Comparison | None:
    """A comparison without the folders of replicas and files."""
    if found is None:
        return None
    standings = tuple(replace(item, path=digests[item.path]) for item in found.standings)
    first = found.first_divergence
    if first is not None:
        places = {node: ("/".join(file.split("/")[-2:]), offset) for node, (file, offset) in first.places.items()}
        first = replace(first, places=places)
    members = tuple(replace(item, path=digests[item.path]) for item in found.verdict.members)
    verdict = replace(found.verdict, members=members)
    return replace(found, standings=standings, first_divergence=first, verdict=verdict)
