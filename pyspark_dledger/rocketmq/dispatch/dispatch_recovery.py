"""Where dispatch continues after a restart, and what is truncated before.

The queues themselves show where to continue, after an unclean end the store checkpoint does, too, as in RocketMQ.
Unlike there, missing units and keys are rebuilt. Source: RocketMQ 5.3.3 ``DefaultMessageStore.recover``,
``CommitLog.recoverAbnormally``, ``IndexService.load``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.log.io.key_files import IndexHeader
from pyspark_dledger.log.io.state_files import MARGIN_MS, read_store_checkpoint
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.broker.queue_writer import DispatchedMessage, QueueWriter
from pyspark_dledger.rocketmq.broker.root_files import LogSegments, write_store_checkpoint
from pyspark_dledger.rocketmq.dispatch.log_part import stored_at

_LOG = logging.getLogger(__name__)


class DispatchPosition(NamedTuple):
    """A position in the log, and the index of the entry before it; -1 for none."""

    pos: int
    index_before: int


class DispatchStart(NamedTuple):
    """Where dispatch continues: queues at `start`, the index of keys at `index_pos`.

    Before `complete_from` is dispatched again, queues may have holes before their last units; 0 without holes.
    """

    start: DispatchPosition
    index_pos: int
    complete_from: int


@dataclass
class DispatchRecovery:
    """Recovers queues and index before dispatch starts."""

    root: Path
    engine: Engine
    files: LogSegments
    queues: QueueWriter
    index: IndexWriter
    chunk_bytes: int
    has_index: bool

    def __post_init__(self) -> None:
        self._checkpoint = read_store_checkpoint(self.root)

    def run(self, log_end: int, is_unclean: bool, listen_from: int | None) -> DispatchStart:
        """Truncate queues and index to a log that ends at `log_end`; see `Dispatcher.recover`."""
        self.files.refresh()
        first = self._first()
        progress = self.queues.truncate(log_end)
        start = self._after(progress.complete_to, first)
        if is_unclean:
            start = min(start, self._covered(log_end, first))
        complete_from = progress.end if start.pos < progress.end else 0
        index_pos = self._recover_index(log_end, is_unclean, start, first) if self.has_index else start.pos
        if listen_from is not None:
            start = min(start, self._position_of(listen_from, start, first))
        self.queues.rewind(start.pos)
        return DispatchStart(start, min(index_pos, start.pos), complete_from)

    # Queues

    def _first(self) -> DispatchPosition:
        """The beginning of the log."""
        pos = self.files.begin(self.engine)
        return DispatchPosition(pos, self._index_before(pos))

    def _index_before(self, pos: int) -> int:
        segment = self.files.at(pos)
        header = entry_at(segment, pos) if segment is not None and segment.source == DLEDGER else None
        return header.index - 1 if header is not None else -1

    def _after(self, message: DispatchedMessage | None, first: DispatchPosition) -> DispatchPosition:
        """The position after a message that a queue has; `first` if the log does not have that message."""
        if message is None or message.end <= first.pos:
            return first
        pos = self.files.pos_of(message.offset)
        segment = self.files.at(pos)
        if segment is not None and segment.source == COMMITLOG:
            return DispatchPosition(message.end, -1)
        header = entry_at(segment, pos) if segment is not None else None
        if header is None or header.body_size != message.size:
            _LOG.warning(
                "the last unit of a queue points to %d, expected a message of %d bytes there, found none: all queues "
                "are rebuilt",
                message.offset,
                message.size,
            )
            return first
        return DispatchPosition(message.end, header.index)

    def _covered(self, log_end: int, first: DispatchPosition) -> DispatchPosition:
        """The last position, in steps of a chunk, before which the checkpoint covers every message.

        RocketMQ decides by time. Here it is also at most the position up to which queues were on disk, because clocks
        of several leaders differ. RocketMQ itself stores a later position there, or none.
        """
        for segment in reversed(self.files.segments):
            begin = self.files.first_in(self.engine, segment)
            if not self._is_covered(segment, begin):
                continue
            inside = self.engine.split(segment, begin, max(min(segment.end, log_end), begin), self.chunk_bytes)
            pos = next((each for each in reversed(inside) if self._is_covered(segment, each)), begin)
            return DispatchPosition(pos, self._index_before(pos))
        return first

    def _is_covered(self, segment: Segment, pos: int) -> bool:
        checkpoint = self._checkpoint
        if 0 < checkpoint.confirm_phy_offset < pos:
            return False
        stored = stored_at(self.engine, segment, pos)
        return stored is not None and stored <= checkpoint.logics_msg_timestamp - MARGIN_MS

    def _position_of(self, index: int, start: DispatchPosition, first: DispatchPosition) -> DispatchPosition:
        """The position of the entry of an index, if it is before `start`."""
        if index > start.index_before:
            return start
        for segment in reversed([each for each in self.files.segments if each.source == DLEDGER]):
            pos = self.files.first_in(self.engine, segment)
            before = self._index_before(pos)
            if pos < start.pos and before < index:
                pos = self.engine.seek(segment, pos, min(segment.end, start.pos), index)
                return DispatchPosition(pos, index - 1)
        return first

    # The index of keys

    def _recover_index(self, log_end: int, is_unclean: bool, start: DispatchPosition, first: DispatchPosition) -> int:
        """Delete wrong IndexFiles, and after an unclean end those that the checkpoint does not cover.

        Returns the position from which keys are indexed. The checkpoint is updated before files are deleted, so that
        another unclean end finds that it covers less of the index than of the queues.
        """
        checkpoint = self._checkpoint
        covered = checkpoint.index_msg_timestamp

        def is_wrong(header: IndexHeader) -> bool:
            is_newer = is_unclean and header.end_timestamp > covered
            return is_newer or header.end_phy_offset >= log_end or self._is_foreign(header.end_phy_offset, first)

        kept, wrong = self.index.sort_out(is_wrong)
        is_incomplete = is_unclean and covered < checkpoint.logics_msg_timestamp
        if wrong:
            _LOG.warning("%d IndexFiles from %s on are rebuilt from the log", len(wrong), wrong[0].name)
            stored = min(covered, kept.end_timestamp) if kept is not None else 0
            write_store_checkpoint(self.root, checkpoint._replace(index_msg_timestamp=stored))
            for path in wrong:
                path.unlink()
        self.index.resume()
        if not wrong and not is_incomplete:
            return start.pos
        last = self.files.pos_of(kept.end_phy_offset) if kept is not None else first.pos
        return min(start.pos, max(last, first.pos))

    def _is_foreign(self, offset: int, first: DispatchPosition) -> bool:
        """Whether the last message of an IndexFile is not of this log; expired messages count as of this log."""
        pos = self.files.pos_of(offset)
        if pos < first.pos:
            return False
        segment = self.files.at(pos)
        return segment is None or (segment.source == DLEDGER and entry_at(segment, pos) is None)
