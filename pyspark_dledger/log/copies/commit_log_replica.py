"""One replica of a CommitLog: its files, where it begins and ends, and what proves that it was longer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import encode_message_blank
from pyspark_dledger.format.layout import MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG, Segment
from pyspark_dledger.format.state_files import Epoch, epoch_at
from pyspark_dledger.log.io.state_files import StoreCheckpoint, epoch_file_problem, read_epochs, read_store_checkpoint
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.time_ranges import has_message_of

MAX_LOST_END = 2**44
"""Bytes. No log loses more at its end."""
_DAY = 24 * 3600


@dataclass(frozen=True)
class CommitLogReplica:
    """A replica's CommitLog; positions in bytes. ``end`` is after its last message, which begins at ``last_pos``.

    ``is_old``: DLedger follows it. ``scan_ends`` are the ends of the walks of ``segments``. ``last_time`` is the store
    timestamp of the last message (ms), or the checkpoint's later one if a message has it. ``missing`` are the positions
    between its files. ``is_closed``: its last file ends with a blank. ``epoch_problem``: what is wrong with its epoch
    file.
    ``proven_end`` is where the log ended as ``proven_by`` shows, at least ``end``.
    ``unread`` are the positions of files that cannot be read, ``unreadable`` is that, and what cannot be read of its
    checkpoint, queues and indexes.
    """

    name: str
    path: str
    root: str | None
    engine: str
    segments: tuple[Segment, ...]
    scan_ends: tuple[int, ...]
    is_old: bool
    begin: int
    end: int
    last_pos: int
    last_time: int
    missing: tuple[tuple[int, int], ...]
    epochs: tuple[Epoch, ...]
    epoch_problem: str | None
    checkpoint: StoreCheckpoint
    abort: bool
    is_closed: bool
    proven_end: int
    proven_by: str
    unread: tuple[tuple[int, int], ...]
    unreadable: tuple[str, ...]

    @property
    def is_end_unread(self) -> bool:
        """Whether the end of the log cannot be read."""
        return any(end == INT64_MAX for _, end in self.unread)

    @property
    def lost_until(self) -> int | None:
        """The checkpoint's time (ms) of a message on disk that is later than the last one of the log; None without one.

        A truncation in controller mode leaves such a time. A time in the future is damaged.
        """
        known = self.checkpoint.physic_msg_timestamp
        is_last = not self.is_old and not self.is_end_unread and known < 1000 * (time.time() + _DAY)
        return known if is_last and not self.epochs and known > self.last_time else None

    @property
    def blank_end(self) -> int:
        """The end of the intact blank after a log that lost its end; without one, ``end``."""
        return self.segments[-1].end if self.is_closed and self.proven_end > self.end else self.end

    @property
    def confirm_offset(self) -> int | None:
        """The end of what was confirmed by the last checkpoint; None outside controller mode, and if there is none."""
        return self.checkpoint.confirm_phy_offset or None

    @property
    def last_epoch(self) -> int | None:
        """The last epoch that begins in the log as it was."""
        return epoch_at(self.epochs, self.proven_end)

    @property
    def is_confirmed_impossible(self) -> bool:
        """Whether the confirmed offset is so far after the log's end that the checkpoint is damaged."""
        return not self.is_end_unread and (self.confirm_offset or 0) - self.end > MAX_LOST_END

    def segment_at(self, pos: int) -> int | None:
        """The number of the segment with position `pos`; None without one."""
        return next((n for n, segment in enumerate(self.segments) if segment.base <= pos < segment.end), None)

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)`` of one file; fewer where it ends or is missing."""
        number = self.segment_at(start)
        segment = self.segments[number] if number is not None else None
        return segment.read(start, end - start) if segment is not None else b""


def own_replicas(stores: Sequence[StoreView]) -> list[CommitLogReplica]:
    """The CommitLogs of replicas, each by its own files; empty unless all can have one and some do.

    A path to a ``dledger-<id>`` folder leaves the old CommitLog out, so it is not compared then.
    """
    has_folders = all(store.paths.commitlog_dirs or store.paths.node_dir is None for store in stores)
    if not has_folders or not any(store.paths.commitlog_dirs for store in stores):
        return []
    return [_replica(name, store) for name, store in zip(replica_names(stores), stores, strict=True)]


def _replica(name: str, store: StoreView) -> CommitLogReplica:
    segments = tuple(segment for segment in store.segments if segment.source == COMMITLOG)
    found = store.ends[COMMITLOG][1] if COMMITLOG in store.ends else None
    begin = segments[0].base if segments else 0
    end = found.pos if found is not None else begin
    if store.ledger_segments:
        # DLedger begins where the last file of the old CommitLog ends.
        end = store.divided_commitlog_offset
        begin = segments[0].base if segments else end
    root = store.paths.root
    epochs = read_epochs(root)[0] if root is not None else ()
    problem = epoch_file_problem(root, end) if root is not None and not store.unread.has_end else None
    unread = store.unread
    lows = [low for low, _ in unread.extents if low < end]
    begin = min([begin, *lows]) if segments else begin
    edges = [*((segment.base, segment.end) for segment in segments if segment.base < end), (end, end)]
    checkpoint = _checkpoint(root) if root is not None else StoreCheckpoint()
    known, last_time = checkpoint.physic_msg_timestamp, found.last_store_timestamp if found is not None else -1
    replica = CommitLogReplica(
        name=name,
        path=store.argument,
        root=str(root) if root is not None and store.paths.only is None else None,
        engine=store.engine.NAME,
        segments=segments,
        scan_ends=tuple(store.segment_end(segment) for segment in segments),
        is_old=bool(store.ledger_segments),
        begin=begin,
        end=end,
        last_pos=found.last_pos if found is not None else -1,
        last_time=known if known > last_time and has_message_of(store, known) else last_time,
        missing=tuple(part for (_, low), (high, _) in pairwise(edges) for part in unread.known_parts(low, high)),
        epochs=epochs,
        epoch_problem=problem[1] if problem is not None else None,
        checkpoint=checkpoint,
        abort=root is not None and (root / "abort").exists(),
        is_closed=not store.ledger_segments and not epochs and not unread.has_end and _is_closed(segments, end),
        proven_end=end,
        proven_by="",
        unread=tuple(unread.extents_of(COMMITLOG)),
        unreadable=(*unread.segment_texts(COMMITLOG), *unread.witnesses()),
    )
    return _with_confirmed_end(replica)


def _with_confirmed_end(one: CommitLogReplica) -> CommitLogReplica:
    confirmed = one.confirm_offset or 0
    is_longer = confirmed > one.end and not (one.is_old or one.is_end_unread or one.is_confirmed_impossible)
    return replace(one, proven_end=confirmed, proven_by="checkpoint") if is_longer else one


def _checkpoint(root: Path) -> StoreCheckpoint:
    try:
        return read_store_checkpoint(root)
    except UnreadableError:
        return StoreCheckpoint()  # `unreadable` names it


def _is_closed(segments: Sequence[Segment], end: int) -> bool:
    """Whether a log ends with the blank of its last file: a broker writes it when it goes to the next file."""
    if not segments:
        return False
    segment = segments[-1]
    if not segment.base <= end <= segment.end - MIN_BLANK_SIZE:
        return False
    return segment.read(end, MIN_BLANK_SIZE) == encode_message_blank(segment.end - end)
