"""Judges copies of messages by ConsumeQueues and IndexFiles: a message's CRC is of its body only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP, MessageUnits
from pyspark_dledger.log.diff.commit_log.frames import DAMAGED as DAMAGED_FRAME
from pyspark_dledger.log.diff.commit_log.frames import read_frames
from pyspark_dledger.log.diff.commit_log.ranges import DAMAGED, PosRange
from pyspark_dledger.log.diff.commit_log.replica import CommitLogReplica
from pyspark_dledger.log.io.files import path_of


def decided_by_units(replicas: Sequence[CommitLogReplica], ranges: Sequence[PosRange]) -> list[PosRange]:
    """The ranges; where units decide between versions of one message, the worse ones count as damaged.

    The only copy left of a message that others lost is doubtful unless its queue knows it.
    """
    # Logs of two masters can differ in millions of messages, for which units decide nothing.
    differing = [part for part in ranges if part.is_message and len({*part.versions} - {None}) > 1][:MAX_LOOKED_UP]
    roots = [path_of(one.root) for one in replicas if one.root is not None]
    units = MessageUnits(roots, (part.start for part in differing))
    decided = {part.start: _decided(replicas, part, units) for part in differing}
    looked_up = iter(range(MAX_LOOKED_UP))
    found = []
    for part in ranges:
        if part.start in decided:
            found.append(decided[part.start])
        elif DAMAGED in part.states and len(part.holders) == 1 and units.has_queues:
            found += _without_doubt(replicas[part.holders[0]], part, units, looked_up)
        else:
            found.append(part)
    return found


def _without_doubt(
    replica: CommitLogReplica, part: PosRange, units: MessageUnits, looked_up: Iterator[int]
) -> Iterator[PosRange]:
    """A range of which one replica has the only copy; messages that no queue knows are ranges of their own."""
    at, counted, messages = part.start, 0, list(_messages(replica, part))
    for number, ((start, end), _) in enumerate(zip(messages, looked_up, strict=False)):
        if not units.in_queue(start, replica.read(start, end)):
            if at < start:
                yield part._replace(start=at, end=start, messages=number - counted)
            yield part._replace(start=start, end=end, messages=1, is_doubtful=True)
            at, counted = end, number + 1
    if at < part.end:
        yield part._replace(start=at, messages=part.messages - counted)


def _messages(replica: CommitLogReplica, part: PosRange) -> Iterator[tuple[int, int]]:
    """Where the intact messages of a range begin and end."""
    for segment, end in zip(replica.segments, replica.scan_ends, strict=True):
        if segment.base < part.end and part.start < segment.end:
            frames = read_frames(segment, min(part.end, end), replica.engine, max(part.start, segment.base))
            is_inside = (frames.ends <= part.end) & (frames.states != DAMAGED_FRAME)
            yield from zip(frames.starts[is_inside].tolist(), frames.ends[is_inside].tolist(), strict=True)


def _decided(replicas: Sequence[CommitLogReplica], part: PosRange, units: MessageUnits) -> PosRange:
    versions = sorted({version for version in part.versions if version is not None})
    damaged = units.damaged([(part.start, replicas[version].read(part.start, part.end)) for version in versions])
    worse = {version for version, is_damaged in zip(versions, damaged, strict=True) if is_damaged}
    kept = tuple(None if version in worse else version for version in part.versions)
    pairs = zip(part.versions, part.states, strict=True)
    return part._replace(
        versions=kept, states=tuple(DAMAGED if version in worse else state for version, state in pairs)
    )
