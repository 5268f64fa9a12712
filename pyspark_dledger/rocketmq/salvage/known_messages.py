"""What the sources' ConsumeQueues and index of keys know of messages that are lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_dledger.format.json_text import time_texts
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.log.salvage.plan_rows import problems_within
from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, Places, add_key_units, add_queue_units

KnownMessages = dict[int, KnownMessage]


def known_messages(roots: Sequence[Path], ranges: Iterable[tuple[int, int]]) -> KnownMessages:
    """The messages in ranges of the log that units of any source point to, by physical offset."""
    known: KnownMessages = {}
    places = Places(iter(sorted(ranges)))
    for root in roots if len(places) else ():
        add_queue_units(root, places, known, lambda _: None)
        add_key_units(root, places, known, lambda _: None)
    return known


def lost_rows(plan: SalvagePlan, roots: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """A row for each entry that becomes a filler, with the messages that units know there."""
    lost = [(log, each) for log in plan.logs for each in log.lost]
    known = known_messages(roots, ((each.pos, each.pos + each.size) for _, each in lost))
    offsets = sorted(known)
    problems = problems_within(plan)
    for log, each in lost:
        inside = [offset for offset in offsets if each.pos <= offset < each.pos + each.size]
        yield {
            "source": log.source,
            "index": each.index if each.index >= 0 else None,
            "term": each.term if each.index >= 0 else None,
            "pos": each.pos,
            "size": each.size,
            "isExtentKnown": each.is_known,
            "problems": problems(log, each.pos, each.pos + each.size),
            "messages": [_message_row(known[offset]) for offset in inside],
        }


def chosen_rows(plan: SalvagePlan) -> Iterator[dict[str, Any]]:
    """A row for each entry that the request decided, with the sources of each copy."""
    for log, piece in plan.chosen:
        yield {
            "source": log.source,
            "index": piece.first_index if piece.first_index >= 0 else None,
            "term": piece.term if piece.first_index >= 0 else None,
            "pos": piece.start,
            "size": piece.end - piece.start,
            "why": piece.why,
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
        "keyHashes": known.key_hashes,
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
