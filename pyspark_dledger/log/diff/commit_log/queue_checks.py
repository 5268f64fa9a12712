"""Decides by ConsumeQueues and IndexFiles which copy of a message is damaged: its CRC is of the body only."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP, MessageUnits
from pyspark_dledger.log.diff.commit_log.ranges import DAMAGED, PosRange
from pyspark_dledger.log.diff.commit_log.replica import CommitLogReplica
from pyspark_dledger.log.io.files import path_of


def decided_by_units(replicas: Sequence[CommitLogReplica], ranges: Sequence[PosRange]) -> list[PosRange]:
    """The ranges; where units decide between versions of one message, the worse ones count as damaged."""
    # Logs of two masters can differ in millions of messages, for which units decide nothing.
    differing = [part for part in ranges if part.is_message and len({*part.versions} - {None}) > 1][:MAX_LOOKED_UP]
    roots = [path_of(one.root) for one in replicas if one.root is not None]
    units = MessageUnits(roots, (part.start for part in differing))
    decided = {part.start: _decided(replicas, part, units) for part in differing}
    return [decided.get(part.start, part) for part in ranges]


def _decided(replicas: Sequence[CommitLogReplica], part: PosRange, units: MessageUnits) -> PosRange:
    versions = sorted({version for version in part.versions if version is not None})
    damaged = units.damaged([(part.start, replicas[version].read(part.start, part.end)) for version in versions])
    worse = {version for version, is_damaged in zip(versions, damaged, strict=True) if is_damaged}
    kept = tuple(None if version in worse else version for version in part.versions)
    pairs = zip(part.versions, part.states, strict=True)
    return part._replace(
        versions=kept, states=tuple(DAMAGED if version in worse else state for version, state in pairs)
    )
