"""Reads the messages for one CommitLog file, and lays them out: without gaps and with new offsets, or at the old ones.

A broker walks a file from message to message by their sizes. A DLedger entry has 48 bytes before its message, too few
for a message. So to preserve offsets, the message before is padded with separators after its properties, which brokers
ignore. Larger gaps are filled with rolled-back messages, which are in no queue and in no index. Sources: RocketMQ 4.9.8
and 5.3.3 ``CommitLog.checkMessageAndReturnSize``, ``MessageDecoder.string2messageProperties``,
``CommitLogDispatcherBuildConsumeQueue``, ``IndexService.buildIndex``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.arrow_functions import distinct, is_valid, values_of
from pyspark_dledger.format.dispatched_rows import Longs
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.facts import ProblemCode
from pyspark_dledger.format.message import (
    CHANGED,
    LONG_PROPERTIES,
    LONG_TOPIC,
    MESSAGE_CRC_MASK,
    V1,
    V2,
    encode_property_crc,
    filler_messages,
    message_in,
    offset_msg_id,
    stored_property_crc,
)
from pyspark_dledger.format.spec import DLEDGER, Filters, ScanRequest, Segment
from pyspark_dledger.format.store_file import LocalFile
from pyspark_dledger.log.copies.segment_copy import is_damage
from pyspark_dledger.log.io.store_engine import engine_of, scan_once
from pyspark_dledger.rocketmq.dispatch.log_part import UnitRules
from pyspark_dledger.rocketmq.export.forms import MAX_SKIPPED
from pyspark_dledger.rocketmq.jobs.new_files import DirectFile

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_AT = {field.name: field.offset for field in layout.MESSAGE_HEADER}
# Offsets with IPv4 hosts; an IPv6 host is 12 bytes longer.
_STORE_TIMESTAMP_AT = 56
_BODY_LENGTH_AT = 84
_LONGER_HOST = 12
_LENGTH_SIZE = 4
_PROPERTIES_LENGTH_SIZE = 2


def numbers_at(block: Bytes, dtype: str, positions: Longs) -> npt.NDArray[Any]:
    """The numbers of a type, such as ``>i4``, at positions of a block, which need not be aligned."""
    view, clipped = _unaligned(block, dtype, positions)
    return view[clipped]


def put_numbers(block: Bytes, dtype: str, positions: Longs, values: Longs) -> None:
    view, clipped = _unaligned(block, dtype, positions)
    view[clipped] = values


def _unaligned(block: Bytes, dtype: str, positions: Longs) -> tuple[npt.NDArray[Any], Longs]:
    """A view with a number at every byte of a block, and the positions limited to it."""
    count = max(len(block) - np.dtype(dtype).itemsize + 1, 0)
    return np.ndarray((count,), dtype, block, strides=(1,)), np.clip(positions, 0, max(count - 1, 0))


@dataclass(frozen=True)
class MessageBlock:
    """Messages at ``starts`` of ``data``, of ``sizes`` bytes; ``pos`` are the positions of their entries in the log.

    ``data`` is writable.
    """

    data: Bytes
    starts: Longs
    sizes: Longs
    pos: Longs

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> Longs:
        return self.starts + self.sizes

    def only(self, which: Flags) -> MessageBlock:
        """A block of some of the messages, with the same data."""
        return MessageBlock(self.data, self.starts[which], self.sizes[which], self.pos[which])

    def field(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """A field of the fixed part of each message."""
        return numbers_at(self.data, dtype, self.starts + _AT[name])

    def set_field(self, name: str, dtype: str, values: Longs) -> None:
        put_numbers(self.data, dtype, self.starts + _AT[name], values)

    def is_version_2(self) -> Flags:
        is_second: Flags = self.field("magic", ">i4") == layout.MESSAGE_MAGIC_V2
        return is_second

    def lengths(self) -> tuple[Longs, Longs]:
        """The bytes of each message's topic, and of its properties."""
        flags = self.field("sysFlag", ">i4")
        longer = ((flags & layout.FLAG_BORN_HOST_V6) != 0).astype(np.int64)
        longer += (flags & layout.FLAG_STORE_HOST_V6) != 0
        at = self.starts + _BODY_LENGTH_AT + _LONGER_HOST * longer
        at = at + _LENGTH_SIZE + numbers_at(self.data, ">i4", at)
        second = self.is_version_2()
        topic = numbers_at(self.data, ">u1", at).astype(np.int64)
        if second.any():
            topic[second] = numbers_at(self.data, ">u2", at[second])
        properties_start = at + 1 + second + topic + _PROPERTIES_LENGTH_SIZE
        return topic, self.ends - properties_start

    def store_timestamps(self) -> Longs:
        """The store timestamp of each message, in milliseconds since 1970."""
        longer = (self.field("sysFlag", ">i4") & layout.FLAG_BORN_HOST_V6) != 0
        stored = numbers_at(self.data, ">i8", self.starts + _STORE_TIMESTAMP_AT + _LONGER_HOST * longer)
        return stored.astype(np.int64)

    def has_property_crc(self) -> Flags:
        """Which messages seem to end with `layout.PROPERTY_CRC`."""
        name = np.frombuffer(layout.PROPERTY_CRC.encode(), ">u8")[0]
        has_crc: Flags = numbers_at(self.data, ">u8", self.ends - layout.PROPERTY_CRC_SIZE) == name
        return has_crc


MOVED = "moved"
VERSION_2 = "version2"
FILLERS = "fillers"
"""Names in `PartOutcome.counts`."""

_COLUMNS = ("kind", "pos", "size", "index", "problem", "problemCode")
_BATCH_BYTES = 4 * 1024 * 1024
# Few enough that typical messages are still in the processor's cache when they are copied.
_BATCH_ROWS = 8192
# Written by DLedger 0.4 itself, not by producers.
_SILENT_KINDS = pa.array(["noop", "config"])
_NO_SPACE = f"expected space for a filler of {layout.MIN_BLANK_SIZE} bytes after it in the file, found less"


@dataclass(frozen=True)
class FilePart:
    """The messages for one CommitLog file: those that begin in ``[start, end)`` of a segment.

    The file has the base and the size of the segment. The log's last file (``is_last``) ends in zeros. ``hole`` says
    that a file of the log is missing; then there is nothing to read. ``units`` are the rules of its units for
    queues and index; None if they are not built.
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
    # Not in the repr, which identifies a plan: the topics of a running broker change.
    units: UnitRules | None = field(default=None, repr=False)

    @property
    def header(self) -> int:
        """Bytes of an entry before its message."""
        return layout.ENTRY_HEADER_SIZE if self.segment.source == DLEDGER else 0

    @property
    def key(self) -> str:
        """What its file depends on, whichever replica of the log has the segment."""
        place = replace(self.segment, file=LocalFile(""), before=None, after=None, witness=None)
        return repr(replace(self, segment=place))

    @property
    def max_end(self) -> int:
        """Where the last entry may end, so that the file has space for a filler if it needs one."""
        shrinks = self.segment.source == DLEDGER and not self.preserves_offsets
        return self.segment.end - (0 if shrinks or self.is_last else layout.MIN_BLANK_SIZE)

    def is_written(self, text: str) -> StoreError:
        """An error for bytes of the segment that change meanwhile."""
        advice = "does a broker truncate or delete files of this log? Stop it, or export a copy"
        return StoreError(f"{self.segment.path}: {text}: {advice}")


@dataclass
class PartOutcome:
    """Which rows of a part were written, and which were left out and why; see `PartReport`."""

    rows: int = 0
    skipped: int = 0
    first_skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def skip(self, batch: pa.RecordBatch, which: Flags, why: str | None = None) -> None:
        """Record rows that are left out; `why` is their problem by default."""
        self.skipped += int(np.count_nonzero(which))
        for number in np.flatnonzero(which)[: MAX_SKIPPED - len(self.first_skipped)].tolist():
            row = {name: batch[name][number].as_py() for name in _COLUMNS}
            text = why or row["problem"] or f"expected a message, found {row['kind']}"
            self.skip_line(row["pos"], row["index"], text)

    def record(self, batch: pa.RecordBatch, outcomes: npt.NDArray[Any]) -> Flags:
        """Record the outcomes (of `format.message`) of messages. Returns which of them are written."""
        for outcome, name in ((LONG_TOPIC, "topic"), (LONG_PROPERTIES, "properties")):
            is_wrong = outcomes == outcome
            if is_wrong.any():
                self.skip(batch, is_wrong, f"the length of its {name} is more than a broker can read")
        self.counts[VERSION_2] += int(np.count_nonzero(outcomes == V2))
        is_written: Flags = outcomes <= V2
        return is_written

    def skip_line(self, pos: int, index: int | None, why: str) -> None:
        self.first_skipped.append(f"pos={pos} index={'' if index is None else index}: {why}")

    def record_moved(self, message: Bytes, pos: int, old: int, new: int) -> None:
        """Record a message that has a new physical offset."""
        self.counts[MOVED] += 1
        parsed = message_in(message.tobytes())
        if len(self.notes) < MAX_SKIPPED and parsed is not None:
            ids = [offset_msg_id(parsed.store_host, offset) for offset in (old, new)]
            self.notes.append(f"pos={pos}: offsetMsgId {ids[0]} is now {ids[1]}")


def message_batches(
    engine: Engine, part: FilePart, outcome: PartOutcome
) -> Iterator[tuple[pa.RecordBatch, Longs, Longs]]:
    """The rows, physical offsets and sizes of the messages that can be written, in batches up to `_BATCH_BYTES`."""
    for batch in _whole_messages(engine, part, outcome):
        offsets = values_of(batch["pos"]) + part.header
        sizes = values_of(batch["size"]).astype(np.int64) - part.header
        for first, stop in _batches(offsets, offsets + sizes):
            yield batch.slice(first, stop - first), offsets[first:stop], sizes[first:stop]


def _message_blocks(part: FilePart, outcome: PartOutcome) -> Iterator[MessageBlock]:
    """The messages that can be written, in blocks of unchanged bytes of the log, other entries between them."""
    for rows, offsets, sizes in message_batches(engine_of(part.engine, part.segment), part, outcome):
        data = _log_bytes(part, int(offsets[0]), int(offsets[-1] + sizes[-1]))
        block = _readable(rows, MessageBlock(data, offsets - offsets[0], sizes, values_of(rows["pos"])), outcome)
        if len(block):
            yield block


def _batches(offsets: Longs, ends: Longs) -> Iterator[tuple[int, int]]:
    """Ranges of rows within `_BATCH_BYTES` of the log, with at least one row."""
    first = 0
    while first < len(offsets):
        stop = max(int(np.searchsorted(ends, offsets[first] + _BATCH_BYTES, "right")), first + 1)
        yield first, stop
        first = stop


def _log_bytes(part: FilePart, start: int, end: int) -> Bytes:
    data = bytearray(part.segment.read(start, end - start))
    if len(data) != end - start:
        raise part.is_written(f"expected {end - start} bytes at {start}, found {len(data)}")
    return np.frombuffer(data, np.uint8)


def _whole_messages(engine: Engine, part: FilePart, outcome: PartOutcome) -> Iterator[pa.RecordBatch]:
    """Batches of intact messages; other rows are recorded in `outcome`.

    Raises StoreError if the segment cannot be read, MalformedError with mode=FAILFAST.
    """
    request = ScanRequest(
        part.segment, part.start, part.end, _COLUMNS, part.filters, part.mode, max_batch_rows=_BATCH_ROWS
    )
    for batch, _ in scan_once(engine, request):
        if batch["problem"].null_count < len(batch) or pc.any(pc.not_equal(batch["kind"], "message")).as_py():
            is_whole = _is_whole(batch)
            is_silent = np.asarray(pc.is_in(batch["kind"], _SILENT_KINDS)) & ~is_valid(batch["problem"])
            outcome.skip(batch, ~is_whole & ~is_silent)
            batch = batch.filter(pa.array(is_whole))
        has_space = values_of(batch["pos"]) + values_of(batch["size"]) <= part.max_end
        if not has_space.all():
            outcome.skip(batch, ~has_space, _NO_SPACE)
            batch = batch.filter(pa.array(has_space))
        if len(batch):
            yield batch


def _is_whole(batch: pa.RecordBatch) -> Flags:
    # Reported only for messages without other problems.
    return np.asarray(pc.equal(batch["kind"], "message")) & ~is_damage(batch["problemCode"], {ProblemCode.BORN_TIME})


def is_intact(batch: pa.RecordBatch) -> bool:
    """Whether all rows of a batch with columns kind and problemCode are intact messages."""
    return bool(_is_whole(batch).all())


def _readable(batch: pa.RecordBatch, block: MessageBlock, outcome: PartOutcome) -> MessageBlock:
    """The messages whose lengths a broker can read; for a broker the log would end at any other."""
    topic, properties = block.lengths()
    is_second = block.is_version_2()
    outcomes = np.where(is_second, V2, V1)
    outcomes[properties > layout.MAX_PROPERTIES_SIZE] = LONG_PROPERTIES
    outcomes[topic > np.where(is_second, layout.MAX_V2_TOPIC_SIZE, layout.MAX_V1_TOPIC_SIZE)] = LONG_TOPIC
    is_good = outcome.record(batch, outcomes)
    return block if is_good.all() else block.only(is_good)


FILLER_TOPIC = b"DLEDGER_EXPORT_FILLER"
MIN_FILLER_SIZE = layout.MIN_MESSAGE_SIZE + len(FILLER_TOPIC) + layout.PROPERTY_CRC_SIZE


Written = Iterator[tuple[memoryview, int]]
"""The next bytes of a CommitLog file, and how many messages they contain, including fillers."""


def write_messages(part: FilePart, outcome: PartOutcome, file: DirectFile) -> Written:
    """Write the messages of a part to its file, from its start: without gaps and at new offsets."""
    engine = engine_of(part.engine, part.segment)
    end = part.segment.base
    for rows, starts, sizes in message_batches(engine, part, outcome):
        memory = file.reserve(int(sizes.sum()))
        copied = engine.copy_messages(part.segment, starts, sizes, memory, end)
        if (copied.outcomes == CHANGED).any():
            number = int(np.argmax(copied.outcomes == CHANGED))
            raise part.is_written(f"the message of {sizes[number]} bytes at {starts[number]} changed during the export")
        count = int(np.count_nonzero(outcome.record(rows, copied.outcomes)))
        outcome.rows += count
        end += copied.size
        if count:
            yield memory[: copied.size], count
            file.advance(copied.size)


def write_at_old_offsets(part: FilePart, outcome: PartOutcome, file: DirectFile) -> Written:
    """As `write_messages`, but at the old offsets, as far as possible."""
    for data, count in _laid_out_blocks(part, outcome):
        yield data, count
        file.append(data)


def _laid_out_blocks(part: FilePart, outcome: PartOutcome) -> Written:
    engine = get_engine(part.engine)
    end = part.segment.base
    for block, next_offset in _with_next(_message_blocks(part, outcome), part.header):
        first = int(block.pos[0]) + part.header
        if first - end >= MIN_FILLER_SIZE:
            for filler in _fillers(end, first, int(block.store_timestamps()[0]), outcome):
                yield memoryview(filler), 1
            end = first
        data, count = _laid_out(engine, block, part.header, end, next_offset, outcome)
        outcome.rows += len(block)
        end += len(data)
        yield data, count


def _with_next(blocks: Iterable[MessageBlock], header: int) -> Iterator[tuple[MessageBlock, int | None]]:
    """Each block, and the physical offset of the first message after it."""
    for block, following in pairwise(chain(blocks, (None,))):
        assert block is not None
        yield block, None if following is None else int(following.pos[0]) + header


def _laid_out(
    engine: Engine, block: MessageBlock, header: int, begin: int, next_offset: int | None, outcome: PartOutcome
) -> tuple[memoryview, int]:
    """The file's bytes for a block, from offset `begin` on, and how many messages they contain, including fillers.

    The next message will be at `next_offset`. The gap up to there is left to the next block, unless it fits into
    padding of the last message.
    """
    own = block.pos + header
    _, properties = block.lengths()
    offsets, pads = _offsets(own, block.sizes, properties, begin, next_offset)
    stops = offsets + block.sizes
    end = int(stops[-1] + pads[-1])
    data = np.zeros(max(end, int(stops[-1]), int(own[-1] + block.sizes[-1])) - begin, np.uint8)
    data[own[0] - begin : own[-1] + block.sizes[-1] - begin] = block.data[block.starts[0] : block.ends[-1]]
    is_moved = offsets != own
    for number in np.flatnonzero(is_moved).tolist():
        start = offsets[number] - begin
        data[start : start + block.sizes[number]] = block.data[block.starts[number] : block.ends[number]]

    has_crc = block.has_property_crc()
    _pad(data, stops - begin, pads)
    moved = MessageBlock(data, offsets - begin, block.sizes + pads, block.pos)
    moved.set_field("physicalOffset", ">i8", offsets)
    moved.set_field("totalSize", ">i4", block.sizes + pads)
    is_padded = pads > 0
    lengths_at = (stops - begin - properties - 2)[is_padded]
    put_numbers(data, ">u2", lengths_at, (properties + pads)[is_padded])
    for number in np.flatnonzero(has_crc & (is_padded | is_moved)).tolist():
        _end_with_crc(engine, data[moved.starts[number] : moved.ends[number]], int(pads[number]))
    for number in np.flatnonzero(is_moved).tolist():
        whole = data[moved.starts[number] : moved.ends[number]]
        outcome.record_moved(whole, int(block.pos[number]), int(own[number]), int(offsets[number]))

    count = len(block)
    stored = int(block.store_timestamps()[0])
    gaps = offsets[1:] - (stops + pads)[:-1]
    for number in np.flatnonzero(gaps).tolist():
        start = int(stops[number] + pads[number])
        for filler in _fillers(start, int(offsets[number + 1]), stored, outcome):
            data[start - begin : start - begin + len(filler)] = np.frombuffer(filler, np.uint8)
            start += len(filler)
            count += 1
    return data[: end - begin].data, count


def _offsets(own: Longs, sizes: Longs, properties: Longs, begin: int, next_offset: int | None) -> tuple[Longs, Longs]:
    """The new offset of each message, and by how many bytes it is padded.

    Messages keep their `own` offsets. Only if a gap fits neither into padding nor a filler, the message after it moves
    to the start of the gap, and the gap to its end.
    """
    offsets = own.copy()
    offsets[0] = begin
    gaps = np.append(own[1:], own[-1] + sizes[-1] if next_offset is None else next_offset) - offsets - sizes

    def can_fill(number: int) -> bool:
        gap = int(gaps[number])
        return gap == 0 or gap >= MIN_FILLER_SIZE or gap + int(properties[number]) <= layout.MAX_PROPERTIES_SIZE

    too_long = (gaps > 0) & (gaps < MIN_FILLER_SIZE) & (gaps + properties > layout.MAX_PROPERTIES_SIZE)
    for number in np.flatnonzero(too_long).tolist():
        while number + 1 < len(own) and not can_fill(number):
            gaps[number + 1] += gaps[number]
            offsets[number + 1] -= gaps[number]
            gaps[number] = 0
            number += 1
    if next_offset is None:
        gaps[-1] = 0
    is_padded = (gaps > 0) & (gaps < MIN_FILLER_SIZE) & (gaps + properties <= layout.MAX_PROPERTIES_SIZE)
    return offsets, np.where(is_padded, gaps, 0)


def _pad(data: Bytes, stops: Longs, pads: Longs) -> None:
    """Write property separators after messages, which end at `stops`."""
    for pad in distinct(pads[pads > 0]).tolist():
        windows = np.ndarray((len(data) - pad + 1, pad), np.uint8, data, strides=(1, 1))
        windows[stops[pads == pad]] = layout.PROPERTY_SEPARATOR


def _end_with_crc(engine: Engine, message: Bytes, pad: int) -> None:
    """Move the property CRC of a padded message to its end, and recompute it."""
    size = layout.PROPERTY_CRC_SIZE
    crc = message[len(message) - pad - size : len(message) - pad].copy()
    message[len(message) - pad - size : len(message) - size] = layout.PROPERTY_SEPARATOR
    if stored_property_crc(crc.tobytes()) is not None:
        value = engine.crc32(message[:-size].tobytes()) & MESSAGE_CRC_MASK
        crc = np.frombuffer(encode_property_crc(value), np.uint8)
    message[len(message) - size :] = crc


def _fillers(start: int, end: int, store_timestamp: int, outcome: PartOutcome) -> Iterator[bytes]:
    """Rolled-back messages that fill ``[start, end)``, which is at least `MIN_FILLER_SIZE` long."""
    for message in filler_messages(FILLER_TOPIC, start, end, store_timestamp):
        outcome.counts[FILLERS] += 1
        yield message
