"""Findings about messages that wait: prepared ones that the broker no longer checks, and units of the timer log."""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.layout import HALF_TOPIC, TIMER_TOPIC
from pyspark_dledger.log.io.broker_config import read_config
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.queue_files import FOLDER, queue_of
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.io.timer_files import CHECKPOINT, read_timer_checkpoint, timer_units
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.report import Report

_CHECKS = HALF_TOPIC, "CID_RMQ_SYS_TRANS"
_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS


def check_transactions(store: StoreView, root: Path, last: int, report: Report) -> None:
    """Check how far the broker's check of half messages is behind the log's last message, stored at `last` (ms)."""
    try:
        offsets = read_config(root).offsets.get(_CHECKS, {})
        queues = {queue_id: QueueUnits(queue_of(root, HALF_TOPIC, queue_id)) for queue_id in offsets}
    except StoreError:
        return  # a finding of the file or of the queues
    for queue_id, offset in offsets.items():
        folder, units = root / FOLDER / HALF_TOPIC / str(queue_id), queues[queue_id]
        rank = units.rank_of(offset)
        at = int(units.at(offset, 1)["commitLogOffset"][0]) if rank is not None and rank < units.count else -1
        message = message_at(store.segments, at)
        if message is not None and last - message.store_timestamp > _DAY_MS:
            text = f"expected a check of all half messages older than a day, found {units.end - offset} from offset "
            hours = (last - message.store_timestamp) // _HOUR_MS
            report.add("transactionsUnchecked", folder, f"{text}{offset} on, the first {hours} hours old")


def check_timers(root: Path, log_end: int, report: Report) -> None:
    """Check the units of the timer log that still wait, and the timer checkpoint; the log ends at `log_end`."""
    checkpoint = read_timer_checkpoint(root)
    read_time = checkpoint.read_time if checkpoint is not None else 0
    for block in timer_units(root):
        ends = block.units["commitLogOffset"].astype("i8") + block.units["messageSize"]
        for number in ((block.times >= read_time) & (ends > log_end)).nonzero()[0].tolist():
            offset, position = int(block.units["commitLogOffset"][number]), int(block.positions[number])
            text = f"expected units below the log's end at {log_end}, found commitLogOffset {offset}"
            report.add("timerBeyondEnd", block.file.path, text, offset=position - block.file.base, pos=offset)
    if checkpoint is None:
        return
    try:
        end = QueueUnits(queue_of(root, TIMER_TOPIC, 0)).end
    except UnreadableError:
        return  # a finding of the queues
    if (root / FOLDER).is_dir() and checkpoint.queue_offset > end:
        text = f"expected a lastTimerQueueOffset up to {end}, where {TIMER_TOPIC} ends, found {checkpoint.queue_offset}"
        report.add("timerQueueBeyondEnd", root / CHECKPOINT, text)
