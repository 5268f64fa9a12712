"""Checks the stores of a group at the end: equal bytes, no damage, and queues without gaps."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark_dledger as dl
from pyspark_dledger.rocketmq.tables import read_table
from tests.chaos.damage import problems, units
from tests.chaos.group import Group
from tests.chaos.load import TOPIC

_MAX_SHOWN = 5


def wrong_stores(group: Group, queue_offsets: Mapping[bytes, int]) -> Iterator[str]:
    """What is wrong with the stores of stopped members. ``queue_offsets``: of acknowledged messages."""
    digests = {node: _digest(group.store(node)) for node in group.ids}
    if len(set(digests.values())) > 1:
        yield f"the logs differ: {digests}"
    for node in group.ids:
        yield from (f"{node}: verify finds {finding}" for finding in problems(group.root(node))[:_MAX_SHOWN])
        if group.messages:
            yield from _wrong_queues(node, group.root(node), queue_offsets)


def bodies_of(root: Path) -> list[bytes | None]:
    """The bodies of a log; None for entries of the group itself, also for the message of a new leader."""
    columns = ["index", "kind", "topic", "body"]
    rows = (row for batch in dl.open_log(root).scan(columns=columns) for row in batch.to_pylist())
    return [
        None if row["kind"] in ("noop", "config") or row["topic"] not in (None, TOPIC) else row["body"] for row in rows
    ]


def _digest(store: Path) -> tuple[int, str]:
    """The number of entries of a log, and a digest of their bytes and index units."""
    data = {int(path.name): path.read_bytes() for path in (store / "data").iterdir()}
    digest, found = hashlib.sha256(), units(store)
    for unit in found:
        base = max(base for base in data if base <= unit.fields.pos)
        start = unit.fields.pos - base
        digest.update(repr(unit.fields).encode())
        digest.update(data[base][start : start + unit.fields.size])
    return len(found), digest.hexdigest()


def _wrong_queues(node: str, root: Path, queue_offsets: Mapping[bytes, int]) -> Iterator[str]:
    next_offsets: Counter[int] = Counter()
    wrong = []
    for batch in dl.open_log(root).scan(["queueId", "queueOffset", "body"], topic=TOPIC):
        for row in batch.to_pylist():
            queue, body, offset = row["queueId"], row["body"], row["queueOffset"]
            if not offset == next_offsets[queue] == queue_offsets.get(body, offset):
                expected = {next_offsets[queue], queue_offsets.get(body, offset)}
                wrong.append(f"{node}: {body!r} has queue offset {offset} of queue {queue}, expected {expected}")
            next_offsets[queue] += 1
    yield from wrong[:_MAX_SHOWN]
    rows = [row for batch in read_table(dl.open_log(root), "audit") for row in batch.to_pylist()]
    yield from (f"{node}: audit finds {row}" for row in rows[:_MAX_SHOWN])
