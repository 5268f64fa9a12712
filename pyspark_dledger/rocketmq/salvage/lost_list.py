"""Lists what a salvage lost and what no check proves, and finds where queues ended whose last messages are lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.json_text import time_texts
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.log.io.broker_config import read_config
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.log.salvage.plan_rows import problems_within
from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, known_messages


class LostList:
    """What the sources' ConsumeQueues and indexes of keys know of the messages that no source has.

    `roots` are the storePathRootDirs of the sources.
    """

    def __init__(self, plan: SalvagePlan, roots: Sequence[Path]) -> None:
        self._plan, self._roots = plan, roots
        self._lost = [(log, each) for log in plan.logs for each in log.lost]

    @cached_property
    def _known(self) -> dict[int, KnownMessage]:
        """The messages that units know in lost entries, and after the end of a log that was longer."""
        ranges = [(each.pos, each.pos + each.size) for _, each in self._lost]
        ends = [(log.end, INT64_MAX) for log in self._plan.logs[-1:] if log.is_longer]
        return known_messages(self._roots, (*ranges, *ends))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each entry that becomes a filler, with the messages that units know there."""
        offsets = sorted(self._known)
        problems = problems_within(self._plan)
        for log, each in self._lost:
            inside = [offset for offset in offsets if each.pos <= offset < each.pos + each.size]
            yield {
                "source": log.source,
                "index": each.index if each.index >= 0 else None,
                "term": each.term if each.index >= 0 else None,
                "pos": each.pos,
                "size": each.size,
                "isExtentKnown": each.is_known,
                "problems": problems(log, each.pos, each.pos + each.size),
                "messages": [_message_row(self._known[offset]) for offset in inside],
            }

    def queue_ends(self) -> dict[QueueName, int]:
        """Where queues ended that have lost messages, as units and the offsets of consumer groups show."""
        ends: dict[QueueName, int] = {}
        for each in self._known.values():
            if each.topic is not None and each.queue_id is not None and each.queue_offset is not None:
                name = each.topic, each.queue_id
                ends[name] = max(ends.get(name, 0), each.queue_offset + 1)
        # A client can set any offset: what was lost must have had room for the messages.
        room = self._room()
        limits = {name: max(end, ends.get(name, 0)) + room for name, end in self._stored_ends.items()}
        for name, offset in chain.from_iterable(map(_group_offsets, self._roots if room else ())):
            if ends.get(name, 0) < offset <= limits.get(name, 0):
                ends[name] = offset
        return ends

    @cached_property
    def _stored_ends(self) -> dict[QueueName, int]:
        """The end of each queue in the source where it is longest."""
        found = (QueueUnits(queue, ignore_error) for root in self._roots for queue in queues(root, ignore_error))
        ends: dict[QueueName, int] = {}
        for each in found:
            ends[each.name] = max(ends.get(each.name, 0), each.end)
        return ends

    def _room(self) -> int:
        """How many messages were lost at most."""
        last = self._plan.logs[-1] if self._plan.logs else None
        after = max((last.lost_until or 0) - last.end, 0) // MIN_MESSAGE_SIZE if last is not None else 0
        entries = (last.lost_after or 0) - last.last_index if last is not None and last.lost_after is not None else 0
        return sum(each.size for _, each in self._lost) // MIN_MESSAGE_SIZE + after + entries


def _group_offsets(root: Path) -> Iterator[tuple[QueueName, int]]:
    """The offsets of consumer groups in each queue; none if the configuration cannot be read."""
    with suppress(StoreError):
        for (_, topic), offsets in read_config(root).group_offsets.items():
            yield from (((topic, queue_id), offset) for queue_id, offset in offsets.items())


def unproven_rows(plan: SalvagePlan) -> Iterator[dict[str, Any]]:
    """A row for each entry of which no check shows that the copy is right, with the sources of each copy.

    Last copies that follow each other are one row.
    """
    for log, piece in plan.unproven:
        yield {
            "source": log.source,
            "index": piece.first_index if piece.first_index >= 0 else None,
            "lastIndex": piece.last_index if piece.last_index >= 0 else None,
            "term": piece.term if piece.first_index >= 0 else None,
            "pos": piece.start,
            "size": piece.end - piece.start,
            "why": piece.why,
            "isSuspect": piece.is_suspect,
            "sources": [plan.names[number] for number in piece.sources],
            "others": [[plan.names[number] for number in group] for group in piece.others],
        }


def _message_row(known: KnownMessage) -> dict[str, Any]:
    first, last = _time_text(known.first_stored), _time_text(known.last_stored)
    return {
        "commitLogOffset": known.offset,
        "storeSize": known.size,
        "topic": known.topic,
        "queueId": known.queue_id,
        "queueOffset": known.queue_offset,
        "tagsCode": known.tags_code,
        "keyHashes": sorted(known.key_hashes),
        "firstStoreTimestamp": first,
        "lastStoreTimestamp": last,
        "witnesses": known.witnesses,
    }


def _time_text(microseconds: int | None) -> str | None:
    """A time since 1970; None for one that no calendar has: units can be damaged."""
    try:
        return time_texts(pa.array([microseconds], pa.timestamp("us", "UTC")))[0]
    except (ValueError, OverflowError):
        return None
