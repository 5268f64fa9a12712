"""Redacts the facts of a report: quotes from a store become digests, by the rules of `output.redact`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pyspark_dledger.cli.output.redact import redactor
from pyspark_dledger.cli.output.rows import Row
from pyspark_dledger.cli.report.facts import Facts, Listed
from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison
from pyspark_dledger.log.diff.comparison import Comparison

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
