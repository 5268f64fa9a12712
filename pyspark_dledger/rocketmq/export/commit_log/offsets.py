"""Lays messages out in a CommitLog file: without gaps and with new physical offsets, or at their old offsets.

A broker walks a file from message to message by their sizes. A DLedger entry has 48 bytes before its message, too few
for a message. So to preserve offsets, the message before is padded with separators after its properties, which brokers
ignore. Larger gaps are filled with rolled-back messages, which are in no queue and in no index. Sources: RocketMQ 4.9.8
and 5.3.3 ``CommitLog.checkMessageAndReturnSize``, ``MessageDecoder.string2messageProperties``,
``CommitLogDispatcherBuildConsumeQueue``, ``IndexService.buildIndex``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format import layout
from pyspark_dledger.format.dispatched_rows import Longs
from pyspark_dledger.format.distinct_numbers import distinct
from pyspark_dledger.format.encode.message_copies import CHANGED
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.message import MESSAGE_CRC_MASK, encode_message, encode_property_crc, stored_property_crc
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.rocketmq.export.commit_log import commit_log_part
from pyspark_dledger.rocketmq.export.commit_log.commit_log_part import FilePart, MessageBlock, PartOutcome, message_runs

FILLER_TOPIC = b"DLEDGER_EXPORT_FILLER"
MIN_FILLER_SIZE = layout.MIN_MESSAGE_SIZE + len(FILLER_TOPIC) + layout.PROPERTY_CRC_SIZE

_MAX_FILLER_SIZE = 1024 * 1024
_ROLLED_BACK = layout.TRANSACTION_FLAGS["rollback"]


class OutputBytes(NamedTuple):
    """The next bytes of a CommitLog file, and how many messages they contain, including fillers.

    With ``is_in_place`` they are the first bytes of the last reserved memory.
    """

    data: memoryview
    messages: int
    is_in_place: bool = False


Reserve = Callable[[int], memoryview]
"""Gives memory for the next bytes of the file, by their number."""


def pieces_of_file(part: FilePart, outcome: PartOutcome, reserve: Reserve) -> Iterator[OutputBytes]:
    """The contents of a part's file, from its start."""
    return _preserved(part, outcome) if part.preserves_offsets else _rewritten(part, outcome, reserve)


def _rewritten(part: FilePart, outcome: PartOutcome, reserve: Reserve) -> Iterator[OutputBytes]:
    engine = engine_of(part.engine, part.segment)
    end = part.segment.base
    for rows, starts, sizes in message_runs(engine, part, outcome):
        memory = reserve(int(sizes.sum()))
        copied = engine.copy_messages(part.segment, starts, sizes, memory, end)
        if (copied.outcomes == CHANGED).any():
            number = int(np.argmax(copied.outcomes == CHANGED))
            raise part.changed_bytes(int(starts[number]), int(sizes[number]))
        count = int(np.count_nonzero(outcome.record(rows, copied.outcomes)))
        outcome.rows += count
        end += copied.size
        if count:
            yield OutputBytes(memory[: copied.size], count, is_in_place=True)


def _preserved(part: FilePart, outcome: PartOutcome) -> Iterator[OutputBytes]:
    engine = get_engine(part.engine)
    end = part.segment.base
    for block, next_offset in _with_next(commit_log_part.message_blocks(part, outcome), part.header):
        first = int(block.pos[0]) + part.header
        if first - end >= MIN_FILLER_SIZE:
            yield from fillers(end, first, int(block.store_timestamps()[0]), outcome)
            end = first
        piece, end = _laid_out(engine, block, part.header, end, next_offset, outcome)
        outcome.rows += len(block)
        yield piece


def _with_next(blocks: Iterable[MessageBlock], header: int) -> Iterator[tuple[MessageBlock, int | None]]:
    """Each block, and the physical offset of the first message after it."""
    before = None
    for block in blocks:
        if before is not None:
            yield before, int(block.pos[0]) + header
        before = block
    if before is not None:
        yield before, None


def _laid_out(
    engine: Engine, block: MessageBlock, header: int, begin: int, next_offset: int | None, outcome: PartOutcome
) -> tuple[OutputBytes, int]:
    """The file's bytes for a block, from offset `begin` on, and the offset where they end.

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
    commit_log_part.put_numbers(data, ">u2", lengths_at, (properties + pads)[is_padded])
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
        for filler in fillers(start, int(offsets[number + 1]), stored, outcome):
            data[start - begin : start - begin + len(filler.data)] = np.frombuffer(filler.data, np.uint8)
            start += len(filler.data)
            count += filler.messages
    return OutputBytes(data[: end - begin].data, count), end


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


def _pad(data: commit_log_part.Bytes, stops: Longs, pads: Longs) -> None:
    """Write property separators after messages, which end at `stops`."""
    for pad in distinct(pads[pads > 0]).tolist():
        windows = np.ndarray((len(data) - pad + 1, pad), np.uint8, data, strides=(1, 1))
        windows[stops[pads == pad]] = layout.PROPERTY_SEPARATOR


def _end_with_crc(engine: Engine, message: commit_log_part.Bytes, pad: int) -> None:
    """Move the property CRC of a padded message to its end, and recompute it."""
    size = layout.PROPERTY_CRC_SIZE
    crc = message[len(message) - pad - size : len(message) - pad].copy()
    message[len(message) - pad - size : len(message) - size] = layout.PROPERTY_SEPARATOR
    if stored_property_crc(crc.tobytes()) is not None:
        value = engine.crc32(message[:-size].tobytes()) & MESSAGE_CRC_MASK
        crc = np.frombuffer(encode_property_crc(value), np.uint8)
    message[len(message) - size :] = crc


def fillers(start: int, end: int, store_timestamp: int, outcome: PartOutcome) -> Iterator[OutputBytes]:
    """Rolled-back messages that fill ``[start, end)``, which is at least `MIN_FILLER_SIZE` long."""
    count = -(-(end - start) // _MAX_FILLER_SIZE)
    cuts = [start + (end - start) * number // count for number in range(count + 1)]
    for offset, stop in pairwise(cuts):
        message = encode_message(
            FILLER_TOPIC,
            bytes(stop - offset - MIN_FILLER_SIZE),
            offset,
            sys_flag=_ROLLED_BACK,
            born_timestamp=store_timestamp,
            store_timestamp=store_timestamp,
            property_crc=True,  # required by brokers with forceVerifyPropCRC
        )
        outcome.counts[commit_log_part.FILLERS] += 1
        yield OutputBytes(memoryview(message), 1)
