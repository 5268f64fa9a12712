"""Builds ConsumeQueues and the index of keys from a log, reading it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.io import key_files
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.key_files import FOLDER as INDEX
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import batch_queues, file_queues, usual_units
from pyspark_dledger.log.io.salvage_fillers import decided_offsets
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.broker.index_writer import HASH_SLOTS, INDEX_UNITS, IndexWriter
from pyspark_dledger.rocketmq.broker.queue_writer import UNITS_PER_FILE, QueueWriter, first_file_end
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS, UnitRules
from pyspark_dledger.rocketmq.jobs import MapParts, Progress, map_here
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, plan_ranges, units_in_order
from pyspark_dledger.rocketmq.rebuild.new_queue_files import (
    BuiltFiles,
    ExpiredUnits,
    QueueTimes,
    UnitFiles,
    ext_addresses,
    kept_ends,
)

PARTS = "rebuild.parts"
"""The folder of what other processes read of the log, in the folder that is built."""

# After so many keys the full index files are written to disk and closed.
_KEYS_PER_FLUSH = 10_000_000
# The range of one task. In this process it is a whole segment, so that no segment is walked to find where to split it.
_PART_BYTES = 128 * 1024 * 1024
_WHOLE = 2**62


@dataclass(frozen=True)
class BuildSettings:
    """The sizes of the files, by default RocketMQ's.

    ``delays_ms`` are the delay levels from 1 on, in milliseconds. ``to`` is the position of the log at which to end;
    None for its end. ``index_tags``: the index has tags, as from RocketMQ 5.5.0 on.
    """

    units_per_file: int = UNITS_PER_FILE
    hash_slots: int = HASH_SLOTS
    index_units: int = INDEX_UNITS
    delays_ms: tuple[int, ...] = DELAYS_MS
    to: int | None = None
    index_tags: bool = False


@dataclass(frozen=True)
class BuildReport:
    """The numbers of what was read and built.

    - ``messages`` are in the log. ``units`` are in queues; ``kept`` of them are of messages that expired from the log,
      and ``ext_units`` keep their address in consumequeue_ext.
    - For messages that the log does not have, there are ``fillers``, and ``led_over`` copies of a neighbouring unit
      (see `queue_writer`).
    - ``repeated`` messages have a queueOffset that an earlier message of their queue has: they are in no queue, as in
      RocketMQ.
    - ``too_far`` messages are in no queue either: see `queue_writer`.
    - ``batches`` are messages of batchconsumequeue, which are in none of these queues.
    - ``skipped`` rows are no messages, or no queue can have them; ``first_skipped`` describes the first one.
    - ``missing_bytes`` of the log are in missing files.

    ``last_stored`` is the storeTimestamp of the last message in milliseconds, 0 without messages. ``end`` is the
    position of the log up to which it was read.
    """

    messages: int = 0
    units: int = 0
    kept: int = 0
    ext_units: int = 0
    fillers: int = 0
    led_over: int = 0
    repeated: int = 0
    too_far: int = 0
    batches: int = 0
    skipped: int = 0
    first_skipped: str = ""
    missing_bytes: int = 0
    keys: int = 0
    queue_files: int = 0
    index_files: int = 0
    last_stored: int = 0
    end: int = 0


MAX_UNITS = 2**31 // CONSUME_QUEUE_UNIT_SIZE
"""A broker maps whole files, of at most 2 GiB."""


def common_units_per_file(roots: Iterable[Path]) -> int | None:
    """How many units the ConsumeQueue files of most storePathRootDirs have, of equally many the first; None without."""
    counts = Counter(filter(None, (usual_units(file_queues(root, ignore_error)) for root in roots)))
    return max(counts, key=counts.__getitem__, default=None)


def last_index_sizes(root: Path) -> tuple[int, int] | None:
    """The numbers of slots and units of the last index file that shows them; None without one."""
    files = map(key_files.KeyFile.opened, reversed(key_files.index_files(root)))
    return next(((file.slots, file.capacity) for file in files if file is not None), None)


def build(
    log: StoreView,
    target: Path,
    *,
    folders: Collection[str] = (QUEUES, INDEX),
    settings: BuildSettings | None = None,
    units: Iterable[DispatchedUnits] | None = None,
    run: MapParts = map_here,
    keep_from: Path | None = None,
    ends: Mapping[QueueName, int] | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build ``target/consumequeue`` and ``target/index`` from a log, sync them, and read them back.

    `units` were extracted from the log before, in its order: then it is not read, and ``end`` of the result is 0.
    `keep_from` is a storePathRootDir whose ConsumeQueues have units of expired messages, and addresses in
    consumequeue_ext; both are kept. `ends` are known ends of queues whose last messages are lost. Raises StoreError if
    the log cannot be read, if a folder exists already, or if the files differ when read back; OSError if the disk
    fails.
    """
    settings = settings or BuildSettings()
    for folder in folders:
        if (target / folder).exists():
            raise StoreError(f"{target / folder}: the folder exists already: move it away, or build elsewhere")
    target.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        sinks: list[UnitSink] = []
        if QUEUES in folders:
            size, times = settings.units_per_file * CONSUME_QUEUE_UNIT_SIZE, QueueTimes(log, keep_from)
            files = BuiltFiles(target, size, times, ext_addresses(keep_from))
            writer = queue_writer(log, target, settings.units_per_file, files)
            sinks.append(QueueSink(writer, files, log, keep_from, ends or {}))
        if INDEX in folders:
            sinks.append(IndexSink(target, settings))
        for sink in sinks:
            opened.callback(sink.close)
        if units is not None:
            built = _feed(units, sinks, BuildReport())
        else:
            built = read_log(log, settings, sinks, keep_from, run, target / PARTS, progress)
    for folder in folders:
        (target / folder).mkdir(exist_ok=True)  # if there was nothing to write
        sync_dir(target / folder)
    sync_dir(target)
    return built


class UnitSink(Protocol):
    """Receives the units of a log, chunk by chunk in its order; `finish` adds its numbers to the report."""

    needs_keys: bool

    def put(self, chunk: DispatchedUnits) -> None: ...

    def finish(self, built: BuildReport) -> BuildReport: ...

    def close(self) -> None: ...


def read_log(
    log: StoreView,
    settings: BuildSettings,
    sinks: Sequence[UnitSink],
    root: Path | None,
    run: MapParts = map_here,
    parts_folder: Path | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Pass the units of a log to sinks. Topics with a batchconsumequeue below `root` have no units.

    Other processes leave their units in `parts_folder`.
    """
    ranges, missing = plan_ranges(log, settings.to, _WHOLE if run is map_here else _PART_BYTES)
    needs_keys = any(sink.needs_keys for sink in sinks)
    rules = UnitRules(settings.delays_ms, settings.index_tags, batch_topics_of(root), needs_keys)
    built = BuildReport(missing_bytes=missing, end=ranges[-1].end if ranges else 0)
    total = sum(each.end - each.start for each in ranges)

    def all_chunks() -> Iterator[DispatchedUnits]:
        done = 0
        for each, chunks in units_in_order(rules, log.engine.NAME, ranges, parts_folder, run):
            for chunk in chunks:
                yield chunk
                if progress is not None:
                    progress(done + min(chunk.end, each.end) - each.start, total)
            done += each.end - each.start

    return _feed(all_chunks(), sinks, built)


def _feed(chunks: Iterable[DispatchedUnits], sinks: Sequence[UnitSink], built: BuildReport) -> BuildReport:
    """Pass chunks to the sinks. Returns the report with their numbers."""
    for chunk in chunks:
        rows = chunk.rows
        built = replace(
            built,
            messages=built.messages + rows.messages,
            skipped=built.skipped + rows.skipped,
            first_skipped=built.first_skipped or chunk.first_skipped,
            batches=built.batches + rows.batches,
            last_stored=rows.last_stored or built.last_stored,
        )
        for sink in sinks:
            sink.put(chunk)
    for sink in sinks:
        built = sink.finish(built)
    return built


def notes_of_queues(built: BuildReport) -> Iterator[str]:
    """Notes on queues that were built, or would be."""
    if built.fillers:
        units = counted(built.fillers, "unit is a filler", "units are fillers")
        yield f"{units}, for messages that the log does not have: consumers skip fillers"
    if built.led_over:
        yield (
            f"{counted(built.led_over, 'unit is a copy', 'units are copies')} of a neighbouring unit, in place of lost "
            "messages, where a filler would hide others: consumers can get the message of that unit again"
        )
    if built.repeated:
        yield (
            f"{counted(built.repeated, 'message has', 'messages have')} a queueOffset that an earlier "
            "message of their queue has: RocketMQ writes no unit for them, and neither does a rebuild"
        )
    if built.too_far:
        yield (
            f"{counted(built.too_far, 'message has', 'messages have')} a queueOffset so far after the queue's last one "
            "that the log has no room for the messages between, or a salvage chose the copy: they are in no queue"
        )


def advice_on_lost(built: BuildReport) -> Iterator[str]:
    """What to do about messages that queues had, but the log does not."""
    if built.fillers or built.led_over:
        yield "a replica may have these messages (see dledger diff): restore the log from it, and build again"


def batch_topics_of(root: Path | None) -> frozenset[str]:
    """The topics with a batchconsumequeue."""
    return frozenset(queue.topic for queue in batch_queues(root)) if root is not None else frozenset()


def queue_writer(log: StoreView, target: Path, units_per_file: int, files: UnitFiles) -> QueueWriter:
    """A writer for all units of a log."""
    size = sum(log.segment_end(segment) - segment.base for segment in log.segments)
    return QueueWriter(target, units_per_file, files, first_file_end(log.segments), size, decided_offsets(log.paths))


class QueueSink:
    """Passes units to a writer of ConsumeQueues, whose `files` write or compare them."""

    needs_keys = False

    def __init__(
        self,
        writer: QueueWriter,
        files: UnitFiles,
        log: StoreView,
        keep_from: Path | None,
        ends: Mapping[QueueName, int],
    ) -> None:
        self._writer, self._files, self._log, self._keep_from, self._ends = writer, files, log, keep_from, ends
        begin = log.segments[0].base if log.segments else 0
        self._expired = ExpiredUnits(keep_from, begin) if keep_from is not None else None
        self._received = self._kept = 0

    def put(self, chunk: DispatchedUnits) -> None:
        if self._expired is not None:
            self._keep_expired(self._expired, chunk)
        rows = chunk.rows
        self._received += len(rows.units)
        self._writer.put(rows.queues, rows.counts, rows.queue_offset, rows.units)

    def _keep_expired(self, expired: ExpiredUnits, chunk: DispatchedUnits) -> None:
        """Write the units of expired messages, for queues that have their first messages in this chunk."""
        first = 0
        for name, count in zip(chunk.rows.queues, chunk.rows.counts, strict=True):
            if name in expired:
                self._kept += expired.write_to(self._writer, name, int(chunk.rows.queue_offset[first]))
            first += count

    def finish(self, built: BuildReport) -> BuildReport:
        if self._expired is not None:
            self._kept += sum(self._expired.write_to(self._writer, name) for name in self._expired.names)
        kept = kept_ends(self._keep_from, self._writer.ends) if self._keep_from is not None else ()
        for name, end in (*kept, *self._ends.items()):
            self._writer.keep_end(name, end, self._log.max_offset)
        self._writer.sync()
        self._files.verify()
        led_over = self._writer.gap_copies.total()
        units = self._files.units - led_over
        return replace(
            built,
            units=units,
            kept=self._kept,
            ext_units=self._files.ext_units,
            fillers=self._files.fillers,
            led_over=led_over,
            repeated=self._received + self._kept - units - self._writer.too_far,
            too_far=self._writer.too_far,
            queue_files=self._files.count,
        )

    def close(self) -> None:
        self._writer.close()


@dataclass
class _KeyChecksum:
    """The number of keys, and the CRC-32 of their offsets and hashes in order."""

    count: int = 0
    crc: int = 0

    def add(self, offset: npt.NDArray[Any], key_hash: npt.NDArray[Any]) -> None:
        self.count += len(offset)
        self.crc = crc32((offset.astype(np.int64) << 32 ^ key_hash.astype(np.int64)).tobytes(), self.crc)


class IndexSink:
    """Writes an index of keys."""

    needs_keys = True

    def __init__(self, target: Path, settings: BuildSettings) -> None:
        self._target = target
        self._writer = IndexWriter(target, settings.hash_slots, settings.index_units)
        self._written = _KeyChecksum()
        self._slots = settings.hash_slots
        self._flush_at = _KEYS_PER_FLUSH

    def put(self, chunk: DispatchedUnits) -> None:
        keys = chunk.rows.keys
        self._written.add(keys.offset, keys.key_hash)
        self._writer.put(keys)
        if self._written.count >= self._flush_at:
            self._writer.flush()
            self._flush_at = self._written.count + _KEYS_PER_FLUSH

    def finish(self, built: BuildReport) -> BuildReport:
        self._writer.flush()
        files = key_files.index_files(self._target)
        self._verify(files)
        return replace(built, keys=self._written.count, index_files=len(files))

    def _verify(self, files: list[Path]) -> None:
        """Read all units back. Raises StoreError if they differ, or no hash slot leads to one."""
        found = _KeyChecksum()
        for path in files:
            file = key_files.KeyFile.opened(path)
            assert file is not None, path
            for _, units in file.blocks(file.count):
                found.add(units["commitLogOffset"], units["keyHash"])
            unlinked = file.unlinked()
            if file.slots != self._slots or unlinked:
                raise StoreError(
                    f"{path}: expected {self._slots} slots that lead to all units, found {unlinked} units that no slot "
                    "leads to: check the disk, and build again"
                )
        if found != self._written:
            raise StoreError(
                f"{self._target / INDEX}: the keys differ when read back: expected {self._written.count} with CRC-32 "
                f"{self._written.crc:08x}, found {found.count} with {found.crc:08x}: check the disk, and build again"
            )

    def close(self) -> None:
        self._writer.close()
