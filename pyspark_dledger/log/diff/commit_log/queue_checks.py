"""Decides by ConsumeQueues which copy of a message is damaged in bytes without a CRC: topic, queue, offset, tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import Message, parse_message, parse_properties
from pyspark_dledger.log.diff.commit_log.ranges import DAMAGED, PosRange
from pyspark_dledger.log.diff.commit_log.replica import CommitLogReplica
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.queue_files import FOLDER, queue_files, read_units

# Its tags code is a time.
_SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
# Logs of two masters can differ in millions of messages, for which queues decide nothing.
_MAX_CHECKED = 10_000


def decided_by_queues(replicas: Sequence[CommitLogReplica], ranges: Iterable[PosRange]) -> Iterator[PosRange]:
    """The ranges; where the queues confirm one version of a message only, the other ones count as damaged."""
    roots = [path_of(one.root) for one in replicas if one.root is not None]
    checked = 0
    for part in ranges:
        versions = {part.versions[number] for number in part.holders}
        if not part.is_message or len(versions) < 2 or checked >= _MAX_CHECKED:
            yield part
            continue
        checked += 1
        confirmed = {
            version for version in versions if version is not None and _is_confirmed(replicas[version], part, roots)
        }
        yield _with_damaged(part, confirmed) if len(confirmed) == 1 else part


def _with_damaged(part: PosRange, confirmed: set[int]) -> PosRange:
    kept = [version if version in confirmed else None for version in part.versions]
    states = [
        DAMAGED if version is not None and version not in confirmed else state
        for version, state in zip(part.versions, part.states, strict=True)
    ]
    return part._replace(versions=tuple(kept), states=tuple(states))


def _is_confirmed(replica: CommitLogReplica, part: PosRange, roots: Sequence[Path]) -> bool:
    """Whether a ConsumeQueue of any replica has the message where its copy says that it is."""
    number = replica.segment_at(part.start)
    if number is None:
        return False
    segment, size = replica.segments[number], part.end - part.start
    data = read_at(segment.path, part.start - segment.base, size)
    message = parse_message(data, 0, size, part.start) if len(data) == size else None
    if not isinstance(message, Message):
        return False
    topic = decode_utf8(data[message.topic_start : message.topic_start + message.topic_length])
    tags = _tags_code(data[message.properties_start : message.properties_start + message.properties_length], topic)
    return any(_has_unit(root, topic, message, part.start, size, tags) for root in roots)


def _tags_code(properties: bytes, topic: str) -> int | None:
    """The tags code of a message's unit; None if it is not known here."""
    if topic == _SCHEDULE_TOPIC:
        return None
    tags = parse_properties(properties).get("TAGS") if properties else None
    return int(get_engine("auto").java_hashes(pa.array([tags], pa.string()))[0])


def _has_unit(root: Path, topic: str, message: Message, pos: int, size: int, tags: int | None) -> bool:
    if not topic or "/" in topic or "\0" in topic or topic in (".", ".."):
        return False
    for file in queue_files(root / FOLDER / topic / str(message.queue_id)):
        number = message.queue_offset - file.first
        if 0 <= number < file.units:
            units = next(read_units(file, number, number + 1), ())
            return any(
                (unit["commitLogOffset"], unit["size"]) == (pos, size) and (tags is None or unit["tagsCode"] == tags)
                for unit in units
            )
    return False
