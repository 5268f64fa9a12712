"""What proves that a CommitLog was longer than its last intact message: ConsumeQueues, checkpoint, or bytes.

Also where a DLedger log ends by its own files.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format.spec import Segment
from pyspark_dledger.format.state_files import diverged_at
from pyspark_dledger.log.copies.commit_log_replica import CommitLogReplica, own_replicas
from pyspark_dledger.log.copies.segment_copy import CopyEntries, SegmentCopy, read_copy
from pyspark_dledger.log.io.files import ignore_error, last_data, open_file, path_of
from pyspark_dledger.log.io.queue_files import FILLER_SIZE, UNIT_DTYPE, Queue, Units, queues, readable_units
from pyspark_dledger.log.io.state_files import read_current_term
from pyspark_dledger.log.store_view import StoreView

# A damaged message keeps most of its bytes; other messages have few in common.
_SIMILAR = 0.75
_MAX_FILE = 2**30
"""Bytes, by default of RocketMQ."""


@dataclass(frozen=True)
class LostEnd:
    """A replica whose log was longer: ``proof`` says what shows it, ``donors`` are those with a log so long.

    ``is_row``: its positions are known, and are a row of the comparison. ``is_sure`` is false where the proof itself
    is damaged.
    """

    node: str
    proof: str
    donors: tuple[str, ...]
    is_row: bool
    is_sure: bool

    @property
    def is_after_all(self) -> bool:
        """Whether messages at unknown positions are after the end of every log."""
        return self.is_sure and not (self.donors or self.is_row)

    @property
    def text(self) -> str:
        """That messages were after the end of every log."""
        return f"the end of {self.node}, which no replica has: {self.proof}"


def lost_ends_of(replicas: Sequence[CommitLogReplica], doubtful: Container[int] = ()) -> Iterator[LostEnd]:
    """The replicas that lost their end. The times of `doubtful` messages, by their positions, show nothing."""
    for one in replicas:
        diverged = {other.name: diverged_at(one.epochs, other.epochs) for other in replicas}
        is_alone = {name for name, pos in diverged.items() if pos is not None and pos < one.proven_end}
        longer = [other for other in replicas if other.end > one.end and other.name not in is_alone]
        known = one.lost_until
        if one.proven_by:
            proof = f"its {one.proven_by} shows messages up to {one.proven_end}, but the log ends at {one.end}"
            longer = [other for other in longer if other.end >= one.proven_end]
        elif one.is_confirmed_impossible:
            proof = f"the checkpoint says that {one.confirm_offset} is confirmed, but the log ends at {one.end}"
            longer = []
        elif one.is_closed and longer:
            proof = "its last file ends with a blank, so a later one existed"
        elif known is not None and one.last_pos not in doubtful:
            proof = (
                f"the checkpoint says that a message of {known} ms was on disk, which is later than the last one of "
                "the log"
            )
            longer = [other for other in longer if other.last_time >= known]
        else:
            continue
        donors = tuple(sorted(other.name for other in longer))
        yield LostEnd(one.name, proof, donors, bool(one.proven_by), not one.is_confirmed_impossible)


def commit_log_replicas(stores: Sequence[StoreView]) -> list[CommitLogReplica]:
    """The CommitLogs of replicas with `proven_end` and `proven_by`; see `own_replicas`.

    In controller mode only the confirmed offset is a proof: a slave truncates what another master wrote, and its queues
    and its bytes still show that.
    """
    replicas = own_replicas(stores)
    return [one if one.is_old else _with_lost_end(one, replicas) for one in replicas]


def _with_lost_end(one: CommitLogReplica, replicas: Sequence[CommitLogReplica]) -> CommitLogReplica:
    if one.is_end_unread or one.epochs:
        return one
    proofs = [(one.end, ""), (_end_by_queues(one), "ConsumeQueue")]
    proofs += [(_end_by_bytes(one, other), f"data, equal to that of {other.name},") for other in replicas]
    end, proof = max(proofs, key=lambda found: found[0])
    return replace(one, proven_end=end, proven_by=proof)


def _end_by_queues(one: CommitLogReplica) -> int:
    """The highest end of a message in the ConsumeQueues that can be read; 0 unless they have the one at the log's end.

    A truncation leaves units of the messages that it cut, and later messages overwrite only some of them.
    """
    if one.root is None:
        return 0
    after = [units for queue in queues(path_of(one.root), ignore_error) if len(units := _units_after(queue, one.end))]
    number = one.segment_at(one.end)
    following = {one.end, one.segments[number].end if number is not None else one.end}
    if not after or min(int(units["commitLogOffset"].min()) for units in after) not in following:
        return 0
    units = np.sort(np.concatenate(after), order="commitLogOffset")
    starts = units["commitLogOffset"].astype(np.int64)
    ends = np.maximum.accumulate(starts + units["size"].astype(np.int64))
    # A unit far from the others is damaged: no message is longer than a file.
    far = np.flatnonzero(
        starts[1:] - ends[:-1] > 2 * max((segment.size for segment in one.segments), default=_MAX_FILE)
    )
    return int(ends[far[0]] if len(far) else ends[-1])


def _units_after(queue: Queue, end: int) -> Units:
    """The units of a queue whose messages begin at `end` or after it, without damaged ones that are not in order."""
    found: list[Units] = []
    for file in reversed(queue.files):
        units = [part[(part["size"] > 0) & (part["size"] < FILLER_SIZE)] for part in readable_units(file)]
        later = [part[part["commitLogOffset"] >= end] for part in units]
        found = [*later, *found]
        if sum(map(len, later)) < sum(map(len, units)):
            break
    after = np.concatenate(found) if found else np.empty(0, UNIT_DTYPE)
    is_before_next = np.append(after["commitLogOffset"][:-1] < after["commitLogOffset"][1:], True)[: len(after)]
    return after[is_before_next]


def _end_by_bytes(one: CommitLogReplica, other: CommitLogReplica) -> int:
    """The end of the last message of `other` of which `one` has most bytes after its own end; 0 without one.

    Both must have the same last message before that end: else the bytes are from before a truncation.
    """
    if (
        other.end <= one.end
        or one.last_pos < 0
        or _equal_bytes(one, other, one.last_pos, one.end) < one.end - one.last_pos
    ):
        return 0
    for number in range(len(one.segments) - 1, -1, -1):
        segment = one.segments[number]
        place = other.segment_at(segment.base)
        if segment.end <= one.end:
            break
        if place is None or other.segments[place].base != segment.base or not _has_data(segment, one.end):
            continue
        entries, _ = read_copy(SegmentCopy(0, other.segments[place], other.scan_ends[place]), other.engine)
        found = _last_same(one, other, entries)
        if found:
            return found
    return 0


def _has_data(segment: Segment, end: int) -> bool:
    start = max(end - segment.base, 0)
    try:
        with open_file(segment.path) as file:
            return last_data(file, start, file.size()) > start
    except OSError:
        return False


def _last_same(one: CommitLogReplica, other: CommitLogReplica, entries: CopyEntries) -> int:
    for number in range(len(entries) - 1, -1, -1):
        start = int(entries.pos[number])
        end = start + int(entries.size[number])
        if start < one.end:
            break
        if entries.is_intact[number] and _equal_bytes(one, other, start, end) >= _SIMILAR * (end - start):
            return end
    return 0


def _equal_bytes(one: CommitLogReplica, other: CommitLogReplica, start: int, end: int) -> int:
    """How many bytes of ``[start, end)`` are the same."""
    data = []
    for replica in (one, other):
        number = replica.segment_at(start)
        if number is None:
            return 0
        segment = replica.segments[number]
        data.append(np.frombuffer(segment.read(start, end - start), np.uint8))
    size = min(map(len, data))
    return int((data[0][:size] == data[1][:size]).sum())


class OwnEnd(NamedTuple):
    """The last entry of a source's own log, and the end index in its checkpoint; -1 where unknown."""

    last_index: int
    last_pos: int
    last_term: int
    checkpoint_end: int

    def is_at(self, index: int) -> bool:
        """Whether the log ends with this entry; its checkpoint can be some seconds older."""
        return self.last_index == index >= self.checkpoint_end


def own_end(store: StoreView) -> OwnEnd:
    """The ends of a store's log, as it and its checkpoint say."""
    end = store.checkpoint.end_index if store.checkpoint is not None else None
    return OwnEnd(store.end.last_index, store.end.last_pos, store.end.last_term, -1 if end is None else end)


def current_terms(stores: Iterable[StoreView]) -> dict[int, int]:
    """The current term of each node that knows its own."""
    folders = ((number, store.paths.node_dir) for number, store in enumerate(stores))
    read = ((number, *read_current_term(folder)) for number, folder in folders if folder is not None)
    found = ((number, term.curr_term) for number, term, file in read if term is not None and file == "currterm")
    return {number: term for number, term in found if term is not None}
