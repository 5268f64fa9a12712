"""Fillers for messages that no source has: rolled-back messages, which are in no queue and in no index.

Brokers read them like any message and pass over them (``CommitLogDispatcherBuildConsumeQueue``,
``IndexService.buildIndex`` of RocketMQ 4.9.8 and 5.3.3).
"""

from __future__ import annotations

from itertools import pairwise

from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    MIN_MESSAGE_SIZE,
    PROPERTY_CRC_SIZE,
    TRANSACTION_FLAGS,
)
from pyspark_dledger.format.message import encode_message
from pyspark_dledger.log.io.salvage_fillers import TOPIC
from pyspark_dledger.log.salvage.lost_entries import LostEntry

_TOPIC = TOPIC.encode()
MIN_SIZE = MIN_MESSAGE_SIZE + 1
"""Bytes of the smallest filler: its topic has one character."""

_ROLLED_BACK = TRANSACTION_FLAGS["rollback"]
_MAX_SIZE = 1024 * 1024


def entry_filler(lost: LostEntry, has_messages: bool, store_timestamp: int) -> bytes:
    """The DLedger entry for a lost one. Its body is a message if the log has messages and it fits, else zeros."""
    size = lost.size - ENTRY_HEADER_SIZE
    position = lost.pos + ENTRY_HEADER_SIZE
    body = message_filler(size, position, store_timestamp) if has_messages and size >= MIN_SIZE else bytes(size)
    return encode_entry(lost.index, lost.term, lost.pos, body)


def message_fillers(lost: LostEntry, store_timestamp: int) -> bytes:
    """Messages of a CommitLog that fill the extent of lost ones, which is at least `MIN_SIZE` long."""
    count = -(-lost.size // _MAX_SIZE)
    cuts = [lost.pos + lost.size * number // count for number in range(count + 1)]
    return b"".join(message_filler(stop - start, start, store_timestamp) for start, stop in pairwise(cuts))


def message_filler(size: int, position: int, store_timestamp: int) -> bytes:
    """A rolled-back message of `size` bytes at a position of the log; its storeTimestamp is in milliseconds."""
    space = size - MIN_MESSAGE_SIZE
    # With a CRC for brokers with forceVerifyPropCRC, if there is space.
    has_crc = space > PROPERTY_CRC_SIZE + len(_TOPIC)
    space -= PROPERTY_CRC_SIZE if has_crc else 0
    topic = _TOPIC[:space]
    return encode_message(
        topic,
        bytes(space - len(topic)),
        position,
        sys_flag=_ROLLED_BACK,
        born_timestamp=store_timestamp,
        store_timestamp=store_timestamp,
        property_crc=has_crc,
    )
