"""Where messages stand in a CommitLog file: close together with new physical offsets, or where they stood before.

A broker walks a file from message to message by their sizes. An entry of DLedger has 48 bytes before its message, too
few for a message, so where offsets are preserved the message before is made longer: by separators behind its
properties, between which a broker finds nothing. Larger gaps hold messages that were rolled back, which are in no queue
and in no index. Sources: RocketMQ 4.9.8 and 5.3.3 ``CommitLog.checkMessageAndReturnSize``,
``MessageDecoder.string2messageProperties``, ``CommitLogDispatcherBuildConsumeQueue``, ``IndexService.buildIndex``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format import layout
from pyspark_dledger.format.encode.message_copies import CHANGED, MOST_PROPERTY_BYTES
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.message import encode_message
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.rocketmq.export.commit_log.commit_log_part import (
    FILLERS,
    Account,
    FilePart,
    blocks_of_log,
    spans_of_messages,
)
from pyspark_dledger.rocketmq.export.commit_log.message_block import (
    Bytes,
    MessageBlock,
    put_numbers,
    renew_property_crc,
)
from pyspark_dledger.rocketmq.message_arrays import Longs

FILLER_TOPIC = b"DLEDGER_EXPORT_FILLER"
LEAST_FILLER = layout.MIN_MESSAGE_SIZE + len(FILLER_TOPIC) + layout.PROPERTY_CRC_SIZE

_LARGEST_FILLER = 1024 * 1024
_ROLLED_BACK = layout.TRANSACTION_FLAGS["rollback"]


class OutputBytes(NamedTuple):
    """Bytes of a CommitLog file, and how many messages they are, fillers among them; pieces follow each other.

    With ``is_in_room`` the bytes are the first ones of the memory that was asked for last.
    """

    data: memoryview
    messages: int
    is_in_room: bool = False


Room = Callable[[int], memoryview]
"""Gives memory of so many bytes, where those that the file goes on with are to be."""


def pieces_of_file(part: FilePart, account: Account, room: Room) -> Iterator[OutputBytes]:
    """The messages of a part as they stand in its file, from its beginning on."""
    return _preserved(part, account) if part.preserves_offsets else _rewritten(part, account, room)


def _rewritten(part: FilePart, account: Account, room: Room) -> Iterator[OutputBytes]:
    engine = engine_of(part.engine, part.segment)
    end = part.segment.base
    for rows, starts, sizes in spans_of_messages(engine, part, account):
        memory = room(int(sizes.sum()))
        placed = engine.place_messages(part.segment, starts, sizes, memory, end)
        if (placed.outcomes == CHANGED).any():
            number = int(np.argmax(placed.outcomes == CHANGED))
            raise part.changed_bytes(int(starts[number]), int(sizes[number]))
        count = int(np.count_nonzero(account.tell(rows, placed.outcomes)))
        account.rows += count
        end += placed.size
        if count:
            yield OutputBytes(memory[: placed.size], count, is_in_room=True)


def _preserved(part: FilePart, account: Account) -> Iterator[OutputBytes]:
    engine = get_engine(part.engine)
    end = part.segment.base
    for block, behind in _with_next(blocks_of_log(part, account), part.header):
        first = int(block.pos[0]) + part.header
        if first - end >= LEAST_FILLER:
            yield from fillers(end, first, int(block.store_timestamps()[0]), account)
            end = first
        piece, end = _laid_out(engine, block, part.header, end, behind, account)
        account.rows += len(block)
        yield piece


def _with_next(blocks: Iterable[MessageBlock], header: int) -> Iterator[tuple[MessageBlock, int | None]]:
    """Each block with the physical offset of the first message behind it."""
    before = None
    for block in blocks:
        if before is not None:
            yield before, int(block.pos[0]) + header
        before = block
    if before is not None:
        yield before, None


def _laid_out(
    engine: Engine, block: MessageBlock, header: int, begin: int, behind: int | None, account: Account
) -> tuple[OutputBytes, int]:
    """The messages of a block and what is between them, from `begin` on, and where they end.

    `behind` is where the next message is to stand. What is missing up to there is left to the next block, unless the
    last message can be made longer by it.
    """
    own = block.pos + header
    _, properties = block.lengths()
    places, pads = _places(own, block.sizes, properties, begin, behind)
    stops = places + block.sizes
    end = int(stops[-1] + pads[-1])
    data = np.zeros(max(end, int(stops[-1]), int(own[-1] + block.sizes[-1])) - begin, np.uint8)
    data[own[0] - begin : own[-1] + block.sizes[-1] - begin] = block.data[block.starts[0] : block.ends[-1]]
    is_moved = places != own
    for number in np.flatnonzero(is_moved).tolist():
        place = places[number] - begin
        data[place : place + block.sizes[number]] = block.data[block.starts[number] : block.ends[number]]

    has_crc = block.has_property_crc()
    _pad(data, stops - begin, pads)
    moved = MessageBlock(data, places - begin, block.sizes + pads, block.pos)
    moved.set_field("physicalOffset", ">i8", places)
    moved.set_field("totalSize", ">i4", block.sizes + pads)
    is_padded = pads > 0
    lengths_at = (stops - begin - properties - 2)[is_padded]
    put_numbers(data, ">u2", lengths_at, (properties + pads)[is_padded])
    for number in np.flatnonzero(has_crc & (is_padded | is_moved)).tolist():
        _end_with_crc(engine, data[moved.starts[number] : moved.ends[number]], int(pads[number]))
    for number in np.flatnonzero(is_moved).tolist():
        whole = data[moved.starts[number] : moved.ends[number]]
        account.note_moved(whole, int(block.pos[number]), int(own[number]), int(places[number]))

    count = len(block)
    stored = int(block.store_timestamps()[0])
    gaps = places[1:] - (stops + pads)[:-1]
    for number in np.flatnonzero(gaps).tolist():
        start = int(stops[number] + pads[number])
        for filler in fillers(start, int(places[number + 1]), stored, account):
            data[start - begin : start - begin + len(filler.data)] = np.frombuffer(filler.data, np.uint8)
            start += len(filler.data)
            count += filler.messages
    return OutputBytes(data[: end - begin].data, count), end


def _places(own: Longs, sizes: Longs, properties: Longs, begin: int, behind: int | None) -> tuple[Longs, Longs]:
    """Where messages come to stand, and by how many bytes each is made longer.

    They stand at their `own` places; one before which a gap is left that neither the message before nor a filler can
    take stands at the end of that message instead, and the gap behind it.
    """
    places = own.copy()
    places[0] = begin
    gaps = np.append(own[1:], own[-1] + sizes[-1] if behind is None else behind) - places - sizes

    def takes(number: int) -> bool:
        gap = int(gaps[number])
        return gap == 0 or gap >= LEAST_FILLER or gap + int(properties[number]) <= MOST_PROPERTY_BYTES

    too_long = (gaps > 0) & (gaps < LEAST_FILLER) & (gaps + properties > MOST_PROPERTY_BYTES)
    for number in np.flatnonzero(too_long).tolist():
        while number + 1 < len(own) and not takes(number):
            gaps[number + 1] += gaps[number]
            places[number + 1] -= gaps[number]
            gaps[number] = 0
            number += 1
    if behind is None:
        gaps[-1] = 0
    is_longer = (gaps > 0) & (gaps < LEAST_FILLER) & (gaps + properties <= MOST_PROPERTY_BYTES)
    return places, np.where(is_longer, gaps, 0)


def _pad(data: Bytes, stops: Longs, pads: Longs) -> None:
    """Write property separators behind messages, which end at `stops`."""
    for pad in np.unique(pads[pads > 0]).tolist():
        every = np.ndarray((len(data) - pad + 1, pad), np.uint8, data, strides=(1, 1))
        every[stops[pads == pad]] = layout.PROPERTY_SEPARATOR


def _end_with_crc(engine: Engine, message: Bytes, pad: int) -> None:
    """Let a message that was made longer end with its property CRC again, made anew."""
    size = layout.PROPERTY_CRC_SIZE
    crc = message[len(message) - pad - size : len(message) - pad].copy()
    message[len(message) - pad - size : len(message) - size] = layout.PROPERTY_SEPARATOR
    message[len(message) - size :] = crc
    renew_property_crc(engine, message)


def fillers(start: int, end: int, store_timestamp: int, account: Account) -> Iterator[OutputBytes]:
    """Messages that fill ``[start, end)``, which has room for one at least, and that nobody gets."""
    count = -(-(end - start) // _LARGEST_FILLER)
    cuts = [start + (end - start) * number // count for number in range(count + 1)]
    for place, stop in pairwise(cuts):
        message = encode_message(
            FILLER_TOPIC,
            bytes(stop - place - LEAST_FILLER),
            place,
            sys_flag=_ROLLED_BACK,
            born_timestamp=store_timestamp,
            store_timestamp=store_timestamp,
            property_crc=True,  # a broker with forceVerifyPropCRC reads nothing without
        )
        account.counts[FILLERS] += 1
        yield OutputBytes(memoryview(message), 1)
