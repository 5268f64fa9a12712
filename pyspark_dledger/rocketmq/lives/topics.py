"""The topics that brokers keep messages in before and after they are delivered, and the readers of their messages.

Sources: RocketMQ 5.3.3 ``TopicValidator``, ``TransactionalMessageUtil``, ``TimerMessageStore``, ``PopAckConstants``,
``MixAll``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.arrow_functions import values_of
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import Message
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.queue_units import QueueUnits, is_possible
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView

CHECKED_TOO_OFTEN_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
RETRY_PREFIX, DEAD_PREFIX = "%RETRY%", "%DLQ%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_HEADERS = (0, ENTRY_HEADER_SIZE)

PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TIMER_OUT = "TIMER_OUT_MS"


def integer(text: str | None) -> int | None:
    """The number in a property; None for anything else."""
    return int(text) if text is not None and len(text) < 20 and text.isascii() and text.isdecimal() else None


def stored_times(log: StoreView) -> tuple[int | None, int | None]:
    """When the first and the last message of a log were stored (ms since 1970); None where that is not known."""
    firsts = [segment.base + header for segment in log.segments[:1] for header in _HEADERS]
    lasts = [end.last_pos + header for _, end in log.ends.values() for header in _HEADERS]
    first, last = (
        [message.store_timestamp for offset in offsets if (message := message_at(log.segments, offset)) is not None]
        for offsets in (firsts, lasts)
    )
    return next(iter(first), None), max(last, default=None)


def queue_messages(
    log: StoreView, prefixes: Iterable[str], first: int, tags: Iterable[str]
) -> Iterator[tuple[int, Message]]:
    """The messages with some tags of topics with some prefixes, by their queues, with their commitLogOffsets.

    They begin at position `first` of the log or later, each queue in order. Messages that are no longer in the log are
    left out. Raises StoreError.
    """
    codes = np.array([java_hash(each) for each in tags], np.int64)
    root, starts = log.paths.root, tuple(prefixes)
    for queue in queues(root) if root is not None else ():
        units = QueueUnits(queue) if queue.topic.startswith(starts) else None
        for _, block in units.chunks(units.lower_bound(first), units.count) if units is not None else ():
            for offset in block["commitLogOffset"][is_possible(block) & np.isin(block["tagsCode"], codes)].tolist():
                message = message_at(log.segments, offset, log.segment_end) if offset >= first else None
                if message is not None and message.topic == queue.topic:
                    yield offset, message


def scanned_messages(
    log: StoreView, prefixes: Iterable[str], *, commits: bool = False
) -> Iterator[tuple[int, Message]]:
    """The messages of a log whose topics have some prefixes, in order, with their commitLogOffsets; also commits.

    The scan reads a few columns of all messages, without bodies. Raises StoreError.
    """
    starts = tuple(prefixes)
    for partition in plan_read(log, ("topic", "transaction", "commitLogOffset"), log.options, Filters()):
        for batch in read_partition(partition):
            for row in np.flatnonzero(_wanted(batch, starts, commits)).tolist():
                offset = batch.column("commitLogOffset")[row].as_py()
                message = message_at(log.segments, offset, log.segment_end)
                if message is not None:
                    yield offset, message


def _wanted(batch: pa.RecordBatch, starts: tuple[str, ...], commits: bool) -> npt.NDArray[np.bool_]:
    """The rows of a batch with a topic that begins so; with `commits` also committed messages of other topics."""
    wanted = np.zeros(len(batch), bool)
    encoded = pc.dictionary_encode(batch.column("topic"))
    known = [each.startswith(starts) for each in encoded.dictionary.to_pylist()]
    if any(known):
        numbers = values_of(encoded.indices.fill_null(len(known)))
        wanted = np.array([*known, False])[numbers]
    if commits:
        wanted[pc.indices_nonzero(pc.equal(batch.column("transaction"), "commit")).to_pylist()] = True
    return wanted
