"""The result of comparing CommitLogs: states of replicas, differences, what is lost, and what Java would truncate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.message import Message, message_in
from pyspark_dledger.format.state_files import consistent_point, epoch_ends
from pyspark_dledger.log.copies.commit_log_replica import CommitLogReplica
from pyspark_dledger.log.copies.lost_ends import LostEnd
from pyspark_dledger.log.diff.commit_log_group import (
    CommitLogGroup,
    CommitLogState,
    ConsistentPoint,
    PosRow,
    commit_log_group,
    pos_rows,
)
from pyspark_dledger.log.diff.copy_ranges import DAMAGED
from pyspark_dledger.log.diff.diff_table import BEHIND, DIVERGED, EXPIRED, OTHER_BYTES, SAME
from pyspark_dledger.log.diff.replica_group import compared
from pyspark_dledger.log.diff.verdict import MAY_START, GroupVerdict, judge_commit_logs, short_files
from pyspark_dledger.log.store_view import StoreView

# Listed rows; further ones are counted.
MAX_LISTED = 1_000
DIFFERENCES = (DAMAGED, OTHER_BYTES, DIVERGED)
_MAX_MESSAGE = 64 * 1024 * 1024


@dataclass(frozen=True)
class FirstDifference:
    """The first range with a difference. ``byte`` is the position of the first different byte; None if files miss it.

    ``places`` has file and offset of that byte, or of ``pos``, for each node with the file. ``topic``, ``queue_id`` and
    ``queue_offset`` are those of the message at ``pos`` on the first node that has it intact; None without one.
    ``difference`` is the first field that differs, with its values, if intact copies differ.
    """

    verdict: str
    pos: int
    byte: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    places: dict[str, tuple[str, int]]
    difference: str | None


@dataclass(frozen=True)
class CommitLogComparison:
    """The result of a comparison.

    ``common_prefix`` is the position before which no replica that has the bytes differs. ``bytes`` counts those of each
    verdict. ``rows`` are the first `MAX_LISTED`; ``more_rows`` is the number of further ones. ``epochs`` has the
    extents ``[start, end)`` of each epoch by node; an end of 2^63-1 is after the log's end. ``is_old``: DLedger follows
    the CommitLog. ``lost_ends`` are logs that were longer, also those of no row. ``log_of`` is the replica whose log a
    salvage is to be told to restore; None if it need not be. ``is_empty``: no replica has an intact message.
    """

    states: tuple[CommitLogState, ...]
    is_old: bool
    first_difference: FirstDifference | None
    common_prefix: int
    epochs: dict[int, dict[str, tuple[int, int]]]
    consistent_points: tuple[ConsistentPoint, ...]
    bytes: dict[str, int]
    verdict: GroupVerdict
    rows: tuple[PosRow, ...]
    more_rows: int
    lost_ends: tuple[LostEnd, ...]
    log_of: str | None
    is_empty: bool

    @property
    def is_lagging_only(self) -> bool:
        """Whether replicas differ by a lag and by expired files at most, and all may start without a loss."""
        is_same = set(self.bytes) <= {SAME, BEHIND, EXPIRED} and not self.lost_ends
        return is_same and _is_harmless(self.verdict)


def compare_commit_logs(
    store: StoreView, on_row: Callable[[PosRow], object] | None = None
) -> CommitLogComparison | None:
    """Compare the CommitLogs of a store and its replicas; None if they have none. Each is read once or twice.

    `on_row` gets each row of the table ``diff``.

    Raises StoreError if a file cannot be read.
    """
    return compare_commit_log_group(commit_log_group(compared(store)), on_row)


def compare_commit_log_group(
    group: CommitLogGroup | None, on_row: Callable[[PosRow], object] | None = None
) -> CommitLogComparison | None:
    """The result of the comparison of a group; None without one."""
    if group is None:
        return None
    replicas = group.replicas
    rows = list(pos_rows(group))
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.verdict] = sizes.get(row.verdict, 0) + row.bytes
        if on_row is not None:
            on_row(row)
    different = [row for row in rows if row.verdict in DIFFERENCES]
    ends = [one.end for one in replicas if one.segments]
    states = tuple(_state(one, replicas, rows) for one in replicas)
    points = tuple(_consistent_points(replicas, rows))
    return CommitLogComparison(
        states=states,
        is_old=any(one.is_old for one in replicas),
        first_difference=_first(different[0], replicas) if different else None,
        common_prefix=different[0].first_pos if different else min(ends, default=0),
        epochs=_epochs(replicas),
        consistent_points=points,
        bytes=sizes,
        verdict=judge_commit_logs(group, states, points),
        rows=tuple(rows[:MAX_LISTED]),
        more_rows=max(len(rows) - MAX_LISTED, 0),
        lost_ends=group.lost_ends,
        log_of=group.histories.log_to_choose(group.names, group.foremost),
        is_empty=not group.histories.found,
    )


def _is_harmless(verdict: GroupVerdict) -> bool:
    return all(
        member.start in MAY_START
        and not (member.truncation and (member.truncation.lost_bytes or member.truncation.equal_bytes))
        for member in verdict.members
    )


def _state(replica: CommitLogReplica, replicas: Sequence[CommitLogReplica], rows: Sequence[PosRow]) -> CommitLogState:
    def size(verdict: str) -> int:
        return sum(row.bytes for row in rows if row.verdict == verdict and replica.name in row.nodes)

    return CommitLogState(
        node=replica.name,
        path=replica.path,
        begin=replica.begin,
        end=replica.end,
        files=len(replica.segments),
        missing=replica.missing,
        short=short_files(replica.segments, [one.segments for one in replicas]),
        epoch=replica.last_epoch,
        epoch_problem=replica.epoch_problem,
        confirm_offset=replica.confirm_offset,
        lag_bytes=max(one.end for one in replicas) - replica.end,
        damaged_bytes=size(DAMAGED),
        diverged_bytes=size(DIVERGED),
        abort=replica.abort,
        unread=replica.unread,
        unreadable=replica.unreadable,
    )


def _first(row: PosRow, replicas: Sequence[CommitLogReplica]) -> FirstDifference:
    at = row.first_byte if row.first_byte is not None else row.first_pos
    places = {}
    message = None
    for one in replicas:
        number = one.segment_at(at)
        if number is None or at >= one.end:
            continue
        segment = one.segments[number]
        places[one.name] = segment.path, at - segment.base
        if message is None and one.name in row.terms:
            message = _message(one, row.first_pos)
    return FirstDifference(
        verdict=row.verdict,
        pos=row.first_pos,
        byte=row.first_byte,
        topic=message.topic if message is not None else None,
        queue_id=message.queue_id if message is not None else None,
        queue_offset=message.queue_offset if message is not None else None,
        places=places,
        difference=row.first_difference,
    )


def _message(replica: CommitLogReplica, pos: int) -> Message | None:
    number = replica.segment_at(pos)
    if number is None:
        return None
    segment = replica.segments[number]
    size = int.from_bytes(segment.read(pos, 4), "big", signed=True)
    if not 0 < size <= min(_MAX_MESSAGE, segment.end - pos):
        return None
    data = segment.read(pos, size)
    return message_in(data) if len(data) == size else None


def _epochs(replicas: Sequence[CommitLogReplica]) -> dict[int, dict[str, tuple[int, int]]]:
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for one in replicas:
        for epoch, extent in epoch_ends(one.epochs, one.end).items():
            found.setdefault(epoch, {})[one.name] = extent
    return dict(sorted(found.items()))


def _consistent_points(replicas: Sequence[CommitLogReplica], rows: Sequence[PosRow]) -> Iterator[ConsistentPoint]:
    for slave, master in permutations(replicas, 2):
        if not slave.epochs or not master.epochs or slave.is_end_unread or master.is_end_unread:
            continue
        pos = consistent_point(slave.epochs, slave.end, master.epochs, master.end)
        before = INT64_MAX if pos is None else pos
        differs = any(
            row.verdict in DIFFERENCES and row.first_pos < before and {slave.name, master.name} & set(row.nodes)
            for row in rows
        )
        confirmed = min(slave.confirm_offset or 0, slave.end)
        begin = max(slave.begin, master.begin) if pos is None else pos
        equal = _equal_bytes(rows, begin, min(slave.end, master.end), {slave.name, master.name})
        yield ConsistentPoint(
            slave=slave.name,
            master=master.name,
            pos=pos,
            lost_bytes=0 if pos is None else max(slave.end - pos - equal, 0),
            confirmed_bytes=0 if pos is None else max(confirmed - pos - equal, 0),
            is_common=pos is not None and not differs,
            equal_bytes=equal,
        )


def _equal_bytes(rows: Sequence[PosRow], start: int, end: int, nodes: set[str]) -> int:
    """The number of bytes of ``[start, end)`` if `nodes` have the same there, else 0."""
    found = [row for row in rows if row.first_pos < end and row.last_pos >= start]
    differ = any(row.verdict in DIFFERENCES and nodes & set(row.nodes) for row in found)
    return 0 if differ or not all(nodes <= set(row.terms) for row in found) else max(end - start, 0)
