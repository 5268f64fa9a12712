"""Counts the messages that an export cannot have, because their bytes are damaged or missing."""

from __future__ import annotations

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import is_selected
from pyspark_dledger.rocketmq.lost.damaged_ranges import damaged_ranges
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, count_of, lost_messages


def count_lost(log: StoreView, options: ReadOptions, start: int, end: int) -> tuple[int, bool]:
    """How many messages are lost that `options` select of ``[start, end)``, and whether that is all.

    Scans the range again. Units that cannot be read are no witnesses.
    """
    found = lost_messages(log, damaged_ranges(log, start, end), ignore_error)
    selected = [_is_wanted(lost, options) for lost in found]
    count, is_all = count_of(lost for lost, is_wanted in zip(found, selected, strict=True) if is_wanted)
    return count, is_all and None not in selected


def _is_wanted(lost: LostMessage, options: ReadOptions) -> bool | None:
    """Whether the options select a lost message; None if too little is known of it."""
    if options.topic is None and options.queue_id is None and options.tags is None:
        return True
    if lost.topic is None or lost.queue_id is None or (options.tags is not None and lost.tags_code is None):
        return None
    tags = options.tags
    has_tag = tags is None or lost.tags_code in {java_hash(tag) for tag in tags}
    return is_selected(lost.topic, lost.queue_id, options) and has_tag
