"""What the sources' ConsumeQueues and index of keys know of messages that are lost, or whose copies differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format.json_text import time_texts
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    PROPERTY_TAGS,
    SCHEDULE_TOPIC,
)
from pyspark_dledger.format.message import parse_message, parse_properties
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.io.entry_reads import read_at, segment_at
from pyspark_dledger.log.io.key_files import hashes_of_keys
from pyspark_dledger.log.salvage.evidence import Run
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.log.salvage.plan_rows import problems_within
from pyspark_dledger.log.store_view import StoreView
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


def confirmed_by_units(
    stores: Sequence[StoreView], roots: Sequence[Path], runs: Sequence[Run], source: str
) -> dict[int, tuple[int, ...]]:
    """The sources of each run, by its start, whose copy alone is the message that queue and index units know."""
    header = ENTRY_HEADER_SIZE if source == DLEDGER else 0
    known = known_messages(roots, ((run.start + header, run.end) for run in runs))
    found: dict[int, tuple[int, ...]] = {}
    for run in runs:
        message = known.get(run.start + header)
        if message is None:
            continue
        fitting = [group for group in run.variants if _fits(stores[group[0]], run, header, source, message)]
        if len(fitting) == 1:
            found[run.start] = fitting[0]
    return found


def _fits(store: StoreView, run: Run, header: int, source: str, known: KnownMessage) -> bool:
    """Whether a copy is a message with the queue, tag and keys that units know."""
    segment = segment_at([segment for segment in store.segments if segment.source == source], run.start)
    data = read_at(segment.path, run.start - segment.base, run.end - run.start) if segment is not None else b""
    message = parse_message(data, header, len(data) - header, run.start + header)
    if isinstance(message, str):
        return False
    topic = data[message.topic_start : message.topic_start + message.topic_length].decode(errors="replace")
    raw = data[message.properties_start : message.properties_start + message.properties_length]
    properties = parse_properties(raw)
    if known.topic is not None and not known.topic.startswith("%LMQ%"):
        place = topic, message.queue_id, message.queue_offset
        if place != (known.topic, known.queue_id, known.queue_offset):
            return False
        if topic != SCHEDULE_TOPIC and known.tags_code not in (None, java_hash(properties.get(PROPERTY_TAGS, ""))):
            return False
    return not known.key_hashes or hashes_of_keys(topic, properties) == set(known.key_hashes)
