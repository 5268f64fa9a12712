"""Findings about a broker's IndexFiles, ``checkpoint``, ``config``, and messages that wait.

All are read whole, in bounded memory. Messages that wait are half messages, which the broker checks, and timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.fastjson import MAX_FILE_SIZE, parse_fastjson
from pyspark_dledger.common.integers import INT32_MIN
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.arrow_functions import are_in
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    HALF_TOPIC,
    INDEX_FILE_HEADER_SIZE,
    INDEX_FILE_SLOT_SIZE,
    TIMER_TOPIC,
)
from pyspark_dledger.format.message import Message
from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.io import key_files
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.broker_config import TABLES, read_config, unused_offsets
from pyspark_dledger.log.io.entry_reads import message_at, read_existing
from pyspark_dledger.log.io.files import map_reads, raise_error
from pyspark_dledger.log.io.key_files import (
    IndexHeader,
    KeyFile,
    KeyUnit,
    key_units,
    message_starts,
)
from pyspark_dledger.log.io.queue_files import FOLDER, folder_entries, queue_of
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.io.rocks_config import rocks_tables
from pyspark_dledger.log.io.salvage_fillers import TOPIC, SalvageFillers
from pyspark_dledger.log.io.state_files import (
    CHECKPOINT,
    CHECKPOINT_MIN_SIZE,
    CHECKPOINT_SIZE,
    StoreCheckpoint,
    read_store_checkpoint,
)
from pyspark_dledger.log.io.store_engine import store_engine
from pyspark_dledger.log.io.store_paths import file_size
from pyspark_dledger.log.io.timer_files import CHECKPOINT as TIMER_CHECKPOINT
from pyspark_dledger.log.io.timer_files import read_timer_checkpoint, timer_units
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.time_ranges import has_message_of
from pyspark_dledger.log.verify.report import Report

_SAMPLE, _REMOTE_SAMPLE = 500, 50
"""Units of each IndexFile whose messages are read."""


def check_broker_files(store: StoreView, root: Path, log_end: int, report: Report) -> None:
    """Check what only brokers write; `log_end` is the position at which the log ends."""
    last = _last_message(store)
    _check_store_checkpoint(store, root, last.store_timestamp if last is not None else None, log_end, report)
    _check_config(root, report)
    if last is not None:
        _check_transactions(store, root, last.store_timestamp, report)
    _check_timers(root, log_end, report)
    files = key_files.index_files(root)
    if not files and (root / FOLDER).is_dir() and _have_keys(store):
        report.add("keyIndexMissing", root / key_files.FOLDER, "expected IndexFiles of the messages' keys, found none")
    for path in files:
        try:
            _check_key_file(store, path, log_end, report)
        except UnreadableError as error:
            report.add_unreadable(error)


def _have_keys(store: StoreView) -> bool:
    """Whether a message of the log has keys; what cannot be read has none."""
    engine = store_engine(store.options.engine)
    for segment in reversed(store.segments):
        end = store.segment_end(segment)
        request = ScanRequest(segment, segment.base, end, ("keys", "uniqKey"), verify_crc=False)
        with suppress(UnreadableError):
            for batch, _ in engine.scan(request):
                if any(batch[name].null_count < len(batch) for name in ("keys", "uniqKey")):
                    return True
    return False


def _check_config(root: Path, report: Report) -> None:
    for entry in sorted(folder_entries(root / CONFIG, report.add_unreadable), key=lambda entry: entry.name):
        if not entry.name.endswith((".json", ".json.bak")) or not entry.is_file():
            continue
        try:
            parse_fastjson(read_existing(entry.path, 0, MAX_FILE_SIZE + 1))
        except UnreadableError as error:
            report.add_unreadable(error)
        except ValueError as error:
            report.add("configInvalid", entry.path, str(error))
    for name in TABLES:
        try:
            rocks_tables(root / CONFIG, TABLES[name])
        except UnreadableError as error:
            report.add_unreadable(error)
    with suppress(StoreError):
        for each in unused_offsets(root):
            name, counter = each.used.path.name, each.used.counter
            for (topic, group, queue), (offset, used) in each.queues.items():
                text = f"expected {used if used >= 0 else 'no offset'} of {group} in {topic}/{queue} from {name}"
                text += f" (counter {counter}), found {offset} (counter {each.unused.counter})"
                report.add("consumerOffsetUnused", each.unused.path, text)


def _check_store_checkpoint(store: StoreView, root: Path, last: int | None, log_end: int, report: Report) -> None:
    """Check the broker's checkpoint; `last` is the storeTimestamp of the last message in milliseconds, if known."""
    size = file_size(root / CHECKPOINT)
    if size is not None and size < CHECKPOINT_MIN_SIZE:
        text = f"expected {CHECKPOINT_SIZE} bytes, found {size}"
        report.add("storeCheckpointShort", root / CHECKPOINT, text, offset=size)
    found = read_store_checkpoint(root)
    if size is not None and size >= CHECKPOINT_MIN_SIZE and found == StoreCheckpoint() and last is not None:
        report.add("storeCheckpointEmpty", root / CHECKPOINT, "expected the times of messages, found only zeros")
    if found.master_flushed_offset > log_end:
        text = f"expected masterFlushedOffset up to {log_end}, where the log ends, found {found.master_flushed_offset}"
        report.add("storeCheckpointBeyondEnd", root / CHECKPOINT, text)
    latest = max(found.physic_msg_timestamp, found.logics_msg_timestamp, found.index_msg_timestamp)
    if last is not None and latest > max(last, 0) and not has_message_of(store, latest):
        text = f"expected a message of storeTimestamp {latest}, found none, and the last one at {last}"
        report.add("storeCheckpointBeyondEnd", root / CHECKPOINT, text)


def _last_message(store: StoreView) -> Message | None:
    """The log's last message; None if the last entry is none, or a filler, of which nothing is known."""
    for _, end in store.ends.values():
        found = message_at(store.segments, end.last_pos + (0 if end.last_index < 0 else ENTRY_HEADER_SIZE))
        # A small filler has a part of the topic.
        is_filler = end.last_pos in SalvageFillers(store.paths).positions or (found and found.topic == TOPIC)
        return found if not is_filler else None
    return None


def _check_key_file(store: StoreView, path: Path, log_end: int, report: Report) -> None:
    header, file = key_files.read_header(path), KeyFile.opened(path)
    size = file_size(path) or 0
    if header is None:
        report.add("keyIndexHeader", path, f"expected at least {INDEX_FILE_HEADER_SIZE} bytes, found {size}", offset=0)
        return
    problem = _header_problem(header)
    if header.index_count <= 1 and problem is None:
        if key_files.has_slots_in_use(path) or (file is not None and any(file.read(1, 2).tobytes())):
            text = f"expected an indexCount that counts the units of the file, found {header.index_count}"
            report.add("keyIndexHeader", path, text, offset=0)
        return  # else created and not yet used
    if problem is None and file is None:
        problem = (
            f"expected a first unit of commitLogOffset {header.begin_phy_offset}, and a unit {header.index_count - 1} "
            f"of {header.end_phy_offset} as the last one of its slot, found other units"
        )
    if problem is not None or file is None:
        report.add("keyIndexHeader", path, problem or "", offset=0)
        return
    _check_slots(file, report)
    sampled: list[KeyUnit] = []
    step = max((header.index_count - 1) // (_REMOTE_SAMPLE if is_remote(store.path) else _SAMPLE), 1)
    for start, units in file.blocks(file.count):
        _check_units(file, start, units, log_end, report)
        sampled += [file.unit(start + number, units[number]) for number in range(-start % step, len(units), step)]
    # A message has a unit for each of its keys.
    offsets = list(dict.fromkeys(unit.offset for unit in sampled))
    hashes = map_reads(lambda offset: key_files.hashes_at(store.segments, offset), offsets, store.path)
    hashes_of = dict(zip(offsets, hashes, strict=True))
    for unit in sampled:
        of_message = hashes_of[unit.offset]
        # Of a hash of -2^31 Java's absolute value is negative.
        if of_message is not None and unit.key_hash not in of_message | {INT32_MIN}:
            expected = f"a key of the message at commitLogOffset {unit.offset}"
            report.add(
                "keyIndexUnit",
                path,
                f"expected {expected}, found keyHash {unit.key_hash}, which none has",
                offset=unit.position,
                pos=unit.offset,
            )


def _header_problem(header: IndexHeader) -> str | None:
    if header.end_timestamp < header.begin_timestamp:
        return f"expected an endTimestamp of at least {header.begin_timestamp}, found {header.end_timestamp}"
    if header.end_phy_offset < header.begin_phy_offset or header.begin_phy_offset < 0:
        return f"expected an endPhyOffset of at least {header.begin_phy_offset}, found {header.end_phy_offset}"
    if header.index_count < 0 or not 0 <= header.hash_slot_count <= max(header.index_count, 1):
        return f"expected a hashSlotCount up to indexCount {header.index_count}, found {header.hash_slot_count}"
    return None


def _check_slots(file: KeyFile, report: Report) -> None:
    """Check that the slots have numbers of units; read in blocks."""
    for start, numbers in file.slot_blocks():
        for first, last in _runs((numbers < 0) | (numbers >= file.capacity)):
            report.add(
                "keyIndexUnit",
                file.path,
                f"expected numbers of units below {file.capacity} in slots {start + first} to {start + last}, found "
                f"{int(numbers[first])}",
                offset=INDEX_FILE_HEADER_SIZE + (start + first) * INDEX_FILE_SLOT_SIZE,
            )


def _check_units(file: KeyFile, start: int, units: npt.NDArray[Any], log_end: int, report: Report) -> None:
    """Check the fields of units from number `start` on."""
    numbers = np.arange(start, start + len(units))
    wrong = (units["previous"] < 0) | (units["previous"] >= numbers) | (units["commitLogOffset"] < 0)
    for first, last in _runs(wrong):
        report.add(
            "keyIndexUnit",
            file.path,
            f"expected earlier units of their slots in units {start + first} to {start + last}, found previous "
            f"{int(units['previous'][first])} and commitLogOffset {int(units['commitLogOffset'][first])}",
            offset=file.position(start + first),
        )
    for first, last in _runs(~wrong & (units["commitLogOffset"] >= log_end)):
        report.add(
            "keyIndexBeyondEnd",
            file.path,
            f"expected units below the log's end at {log_end}, found commitLogOffset "
            f"{int(units['commitLogOffset'][first])} in units {start + first} to {start + last}",
            offset=file.position(start + first),
            pos=int(units["commitLogOffset"][first]),
        )


def _runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The first and the last number of consecutive flags that are set."""
    numbers = np.flatnonzero(flags)
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    yield from ((int(part[0]), int(part[-1])) for part in np.split(numbers, cuts) if len(part))


class KeyCheck:
    """Compares the messages of ``[low, high)``, in order, with the IndexFile units that point there."""

    def __init__(self, root: Path, low: int, high: int, report: Report) -> None:
        self._root = root
        self._report = report
        self._starts = message_starts(low, high, root)
        self._is_found = np.zeros(len(self._starts), bool)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Compare messages by their positions, ascending."""
        if len(offsets) and len(self._starts):
            low, high = np.searchsorted(self._starts, [offsets[0], offsets[-1] + 1]).tolist()
            self._is_found[low:high] = are_in(self._starts[low:high], offsets)

    def finish(self, damaged: list[tuple[int, int]]) -> None:
        """Report the units without a message, except those into damaged ranges: there the log is wrong."""
        for start, end in damaged:
            low, high = np.searchsorted(self._starts, [start, end]).tolist()
            self._is_found[low:high] = True
        wrong = self._starts[~self._is_found]
        of_wrong = partial(_points_to, wrong)
        for unit in key_units(self._root, of_wrong, raise_error) if len(wrong) else ():
            self._report.add(
                "keyIndexUnit",
                unit.file.path,
                f"expected a message at commitLogOffset {unit.offset} of unit {unit.number}, found none",
                offset=unit.position,
                pos=unit.offset,
            )


def _points_to(offsets: npt.NDArray[np.int64], units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.isin(units["commitLogOffset"], offsets)


# Messages that wait

_CHECKS = HALF_TOPIC, "CID_RMQ_SYS_TRANS"
_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS


def _check_transactions(store: StoreView, root: Path, last: int, report: Report) -> None:
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


def _check_timers(root: Path, log_end: int, report: Report) -> None:
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
        report.add("timerQueueBeyondEnd", root / TIMER_CHECKPOINT, text)
