"""The messages of one segment, as they go into the CommitLog file of its name: read, filtered, and accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.encode.message_copies import (
    LONG_PROPERTIES,
    LONG_TOPIC,
    LONGEST_TOPIC_V1,
    LONGEST_TOPIC_V2,
    MOST_PROPERTY_BYTES,
    V1,
    V2,
)
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.message import offset_msg_id, parse_message
from pyspark_dledger.format.spec import DLEDGER, Filters, ScanRequest, Segment
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.rocketmq.arrow_values import is_valid, values_of
from pyspark_dledger.rocketmq.export.commit_log.message_block import Bytes, Flags, MessageBlock
from pyspark_dledger.rocketmq.export.forms import MOST_SKIPPED
from pyspark_dledger.rocketmq.message_arrays import Longs
from pyspark_dledger.rocketmq.rebuild.parts import WantedUnits

MOVED = "moved"
VERSION_2 = "version2"
FILLERS = "fillers"
"""What `Account` counts."""

_COLUMNS = ("kind", "pos", "size", "index", "problem")
_AT_ONCE = 4 * 1024 * 1024
# So few that what was read of usual messages is in the processor's cache still when it is copied.
_ROWS_AT_ONCE = 8192
# Of DLedger 0.4 alone, and nothing that anybody wrote into the log.
_SILENT_KINDS = pa.array(["noop", "config"])
_NO_ROOM = f"expected room for a filler of {layout.MIN_BLANK_SIZE} bytes behind it in the file, found less"
# The first problem of a message in which everything else is right; a producer may say any time, and brokers serve it.
_HARMLESS = "expected bornTimestamp "

_IS_WRITTEN = ": does a broker cut or delete files of this log? Export it when it is stopped, or a copy"


@dataclass(frozen=True)
class FilePart:
    """What goes into one CommitLog file: the messages that begin in ``[start, end)`` of a segment.

    The file has the base and the size of the segment. ``is_last`` is the log's last file, which ends in zeros. Where a
    file of the log is missing, ``hole`` says so, and there is nothing to read. ``wanted`` is what queues and index take
    of the messages, None where none are made.
    """

    engine: str
    segment: Segment
    start: int
    end: int
    filters: Filters
    mode: str
    is_last: bool
    preserves_offsets: bool
    hole: str | None = None
    # No part of the repr, by which a plan is known again: the topics of a live broker change.
    wanted: WantedUnits | None = field(default=None, repr=False)

    @property
    def header(self) -> int:
        """Bytes before a message, in its entry."""
        return layout.ENTRY_HEADER_SIZE if self.segment.source == DLEDGER else 0

    @property
    def most(self) -> int:
        """Where an entry may end at most, so that its file has room for a filler if it needs one."""
        comes_closer = self.segment.source == DLEDGER and not self.preserves_offsets
        return self.segment.end - (0 if comes_closer or self.is_last else layout.MIN_BLANK_SIZE)

    def missing_bytes(self, pos: int, count: int) -> StoreError:
        return StoreError(f"{self.segment.path}: expected {count} bytes at {pos}, found less{_IS_WRITTEN}")

    def changed_bytes(self, pos: int, count: int) -> StoreError:
        text = f"expected the message of {count} bytes at {pos} that stood there before, found other bytes"
        return StoreError(f"{self.segment.path}: {text}{_IS_WRITTEN}")


@dataclass
class Account:
    """What became of the rows of a part: how many were written, and which were left out and why; see `PartReport`."""

    rows: int = 0
    skipped: int = 0
    first_skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def leave_out(self, batch: pa.RecordBatch, which: Flags, why: str | None = None) -> None:
        """Note rows of a batch that are not written, by their problem where nothing else is said."""
        self.skipped += int(np.count_nonzero(which))
        for number in np.flatnonzero(which)[: MOST_SKIPPED - len(self.first_skipped)].tolist():
            row = {name: batch[name][number].as_py() for name in _COLUMNS}
            text = why or row["problem"] or f"expected a message, found {row['kind']}"
            self.skip_line(row["pos"], row["index"], text)

    def tell(self, batch: pa.RecordBatch, outcomes: npt.NDArray[Any]) -> Flags:
        """Note what became of messages, as `format.place` numbers it; which of them are written."""
        for outcome, name in ((LONG_TOPIC, "topic"), (LONG_PROPERTIES, "properties")):
            is_wrong = outcomes == outcome
            if is_wrong.any():
                self.leave_out(batch, is_wrong, f"expected a length of its {name} that a broker can read, found more")
        self.counts[VERSION_2] += int(np.count_nonzero(outcomes == V2))
        is_written: Flags = outcomes <= V2
        return is_written

    def skip_line(self, pos: int, index: int | None, why: str) -> None:
        self.first_skipped.append(f"pos={pos} index={'' if index is None else index}: {why}")

    def note_moved(self, message: Bytes, pos: int, before: int, now: int) -> None:
        """Note that a message could not keep its physical offset; `message` is the whole of it."""
        self.counts[MOVED] += 1
        parsed = parse_message(message.tobytes(), 0, len(message), now)
        if len(self.notes) < MOST_SKIPPED and not isinstance(parsed, str):
            ids = [offset_msg_id(parsed.store_host, offset) for offset in (before, now)]
            self.notes.append(f"pos={pos}: offsetMsgId {ids[0]} is now {ids[1]}")


def spans_of_messages(
    engine: Engine, part: FilePart, account: Account
) -> Iterator[tuple[pa.RecordBatch, Longs, Longs]]:
    """The messages that can be written, some MiB of the log at a time: their rows, where they begin, their sizes."""
    for batch in _whole_messages(engine, part, account):
        own = values_of(batch["pos"]) + part.header
        sizes = values_of(batch["size"]).astype(np.int64) - part.header
        for first, stop in _pieces(own, own + sizes):
            yield batch.slice(first, stop - first), own[first:stop], sizes[first:stop]


def blocks_of_log(part: FilePart, account: Account) -> Iterator[MessageBlock]:
    """The messages that can be written, in blocks of the log's bytes as they are; what is no message stands between."""
    for rows, own, sizes in spans_of_messages(engine_of(part.engine, part.segment), part, account):
        data = _log_bytes(part, int(own[0]), int(own[-1] + sizes[-1]))
        block = _readable(rows, MessageBlock(data, own - own[0], sizes, values_of(rows["pos"])), account)
        if len(block):
            yield block


def _pieces(own: Longs, ends: Longs) -> Iterator[tuple[int, int]]:
    """Rows that follow each other, as many as are within some MiB of the log; one at least."""
    first = 0
    while first < len(own):
        stop = max(int(np.searchsorted(ends, own[first] + _AT_ONCE, "right")), first + 1)
        yield first, stop
        first = stop


def _log_bytes(part: FilePart, start: int, end: int) -> Bytes:
    data = bytearray(read_at(part.segment.path, start - part.segment.base, end - start))
    if len(data) != end - start:
        raise part.missing_bytes(start, end - start)
    return np.frombuffer(data, np.uint8)


def _whole_messages(engine: Engine, part: FilePart, account: Account) -> Iterator[pa.RecordBatch]:
    """Batches with nothing but messages that are right in their bytes; the other rows are noted.

    Raises StoreError for a segment that cannot be read, MalformedError with mode=FAILFAST.
    """
    request = ScanRequest(
        part.segment, part.start, part.end, _COLUMNS, part.filters, part.mode, max_batch_rows=_ROWS_AT_ONCE
    )
    for batch, _ in engine.scan(request):
        if batch["problem"].null_count < len(batch) or pc.any(pc.not_equal(batch["kind"], "message")).as_py():
            is_whole = _is_whole(batch)
            is_silent = np.asarray(pc.is_in(batch["kind"], _SILENT_KINDS)) & ~is_valid(batch["problem"])
            account.leave_out(batch, ~is_whole & ~is_silent)
            batch = batch.filter(pa.array(is_whole))
        has_room = values_of(batch["pos"]) + values_of(batch["size"]) <= part.most
        if not has_room.all():
            account.leave_out(batch, ~has_room, _NO_ROOM)
            batch = batch.filter(pa.array(has_room))
        if len(batch):
            yield batch


def _is_whole(batch: pa.RecordBatch) -> Flags:
    problem = batch["problem"]
    is_harmless = pc.fill_null(pc.starts_with(problem, _HARMLESS), True)
    return np.asarray(pc.and_(pc.equal(batch["kind"], "message"), is_harmless))


def is_intact(batch: pa.RecordBatch) -> bool:
    """Whether all rows of a batch with kind and problem are messages that are right in their bytes."""
    return bool(_is_whole(batch).all())


def _readable(batch: pa.RecordBatch, block: MessageBlock, account: Account) -> MessageBlock:
    """Those messages of which a broker can read the lengths; it would take the log to end at another."""
    topic, properties = block.lengths()
    is_second = block.is_version_2()
    outcomes = np.where(is_second, V2, V1)
    outcomes[properties > MOST_PROPERTY_BYTES] = LONG_PROPERTIES
    outcomes[topic > np.where(is_second, LONGEST_TOPIC_V2, LONGEST_TOPIC_V1)] = LONG_TOPIC
    is_good = account.tell(batch, outcomes)
    return block if is_good.all() else block.only(is_good)
