"""Building ConsumeQueues and the index of keys from a log, in one go over its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.consume_queue.queue_writer import UNITS_PER_FILE, QueueWriter, first_file_end
from pyspark_dledger.rocketmq.consume_queue.store_queues import batch_queues
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS
from pyspark_dledger.rocketmq.index_file.index_file import FOLDER as INDEX
from pyspark_dledger.rocketmq.index_file.index_file import hash_slots, index_files, read_header
from pyspark_dledger.rocketmq.index_file.index_writer import HASH_SLOTS, INDEX_UNITS, IndexWriter
from pyspark_dledger.rocketmq.rebuild.index_check import units_in, unlinked_units
from pyspark_dledger.rocketmq.rebuild.kept import ExpiredUnits
from pyspark_dledger.rocketmq.rebuild.parts import PartCounts, TakenUnits, WantedUnits, in_order, plan_parts
from pyspark_dledger.rocketmq.rebuild.queue_files import BuiltFiles, ExistingQueues, ExtAddresses, UnitFiles
from pyspark_dledger.rocketmq.rebuild.queue_times import QueueTimes
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

Progress = Callable[[int, int], None]
"""Told how many bytes of the log are done, and how many there are."""

_PARTS = "rebuild.parts"
# Keys between two times that full index files are written to disk and closed.
_FLUSHED_KEYS = 10_000_000
# A part that is read elsewhere; here a segment is one, which need not be walked to find where to cut it.
_PART_BYTES = 128 * 1024 * 1024
_WHOLE = 2**62


@dataclass(frozen=True)
class BuildSettings:
    """How files are built, with RocketMQ's defaults.

    ``units_per_file``, ``hash_slots`` and ``index_units`` are those of every file. ``delays_ms`` are the delay levels
    in milliseconds, from 1 on. ``to`` is the position of the log at which to end; None for its end.
    """

    units_per_file: int = UNITS_PER_FILE
    hash_slots: int = HASH_SLOTS
    index_units: int = INDEX_UNITS
    delays_ms: tuple[int, ...] = DELAYS_MS
    to: int | None = None


@dataclass(frozen=True)
class Built:
    """What was built, and of what.

    ``messages`` are those that the log has; ``units`` those in queues, of which ``kept`` are of messages that expired
    before the log's beginning, and ``ext_units`` kept their address in consumequeue_ext. ``fillers`` stand for messages
    that the log does not have, and so do the ``led_over`` places, which are copies of the unit behind (see
    `queue_writer`). ``repeated`` messages have a queueOffset that their queue had passed already: as in
    RocketMQ they are in no queue. ``batches`` are messages of batchconsumequeue, which are in none of these queues.
    ``skipped`` rows of the log are no messages, or none that a queue can have: ``first_skipped`` says what the first of
    them is. ``missing_bytes`` of the log are in files that are gone.

    ``last_stored`` is the storeTimestamp of the last message in milliseconds, 0 without one. ``end`` is the position of
    the log at which it was ended.
    """

    messages: int = 0
    units: int = 0
    kept: int = 0
    ext_units: int = 0
    fillers: int = 0
    led_over: int = 0
    repeated: int = 0
    batches: int = 0
    skipped: int = 0
    first_skipped: str = ""
    missing_bytes: int = 0
    keys: int = 0
    queue_files: int = 0
    index_files: int = 0
    last_stored: int = 0
    end: int = 0


def build(
    log: StoreView,
    target: Path,
    *,
    queues: bool = True,
    index: bool = True,
    settings: BuildSettings | None = None,
    run: MapParts = map_here,
    keep_from: Path | None = None,
    progress: Progress | None = None,
) -> Built:
    """Build ``target/consumequeue`` and ``target/index`` of the messages of a log, and read them back from the disk.

    Neither may be there yet; everything is durable in the end. `keep_from` is a storePathRootDir whose ConsumeQueue has
    units of messages before the log's beginning, and addresses in consumequeue_ext: both stay as they are. Raises
    StoreError where the log cannot be read, where a folder is there, and where not everything that was written is read
    back; OSError where the disk fails.
    """
    settings = settings or BuildSettings()
    wanted = [folder for folder, is_selected in ((QUEUES, queues), (INDEX, index)) if is_selected]

    def fill(sinks: Sequence[UnitSink]) -> Built:
        return go_through(log, settings, sinks, keep_from, run, target / _PARTS, progress)

    return _build(log, target, wanted, settings, keep_from, fill)


def build_of(
    taken: Iterable[TakenUnits], log: StoreView, target: Path, settings: BuildSettings, keep_from: Path | None = None
) -> Built:
    """As `build` queues and index, of what was taken of the messages of the log before, in its order.

    ``end`` of the result is 0.
    """
    return _build(log, target, (QUEUES, INDEX), settings, keep_from, lambda sinks: _give(taken, sinks, Built()))


def _build(
    log: StoreView,
    target: Path,
    wanted: Sequence[str],
    settings: BuildSettings,
    keep_from: Path | None,
    fill: Callable[[Sequence[UnitSink]], Built],
) -> Built:
    for folder in wanted:
        if (target / folder).exists():
            raise StoreError(f"{target / folder}: expected none, found one: move it away, or choose another place")
    target.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        sinks: list[UnitSink] = []
        if QUEUES in wanted:
            size, times = settings.units_per_file * CONSUME_QUEUE_UNIT_SIZE, QueueTimes(log, keep_from)
            files = BuiltFiles(target, size, times, ext_addresses(keep_from))
            writer = QueueWriter(target, settings.units_per_file, files, first_file_end(log.segments))
            sinks.append(QueueSink(writer, files, log, keep_from))
        if INDEX in wanted:
            sinks.append(_Index(target, settings))
        for sink in sinks:
            opened.callback(sink.close)
        built = fill(sinks)
    for folder in wanted:
        (target / folder).mkdir(exist_ok=True)  # where there is nothing to write
        sync_dir(target / folder)
    sync_dir(target)
    return built


class UnitSink(Protocol):
    """What takes the messages of a log, chunk by chunk in its order, and says in the end what it has of them."""

    needs_keys: bool

    def put(self, taken: TakenUnits) -> None: ...

    def finish(self, built: Built) -> Built: ...

    def close(self) -> None: ...


def go_through(
    log: StoreView,
    settings: BuildSettings,
    sinks: Sequence[UnitSink],
    root: Path | None,
    run: MapParts = map_here,
    parts_folder: Path | None = None,
    progress: Progress | None = None,
) -> Built:
    """Give the messages of a log to sinks; `root` is where its ConsumeQueues are, which say what topics are of batches.

    `parts_folder` is where parts leave what they have that are read elsewhere.
    """
    parts, missing = plan_parts(log, settings.to, _WHOLE if run is map_here else _PART_BYTES)
    needs_keys = any(sink.needs_keys for sink in sinks)
    wanted = WantedUnits(needs_keys, settings.delays_ms, batch_topics_of(root), log.engine.NAME)
    built = Built(missing_bytes=missing, end=parts[-1].end if parts else 0)
    total = sum(part.end - part.start for part in parts)

    def taken() -> Iterator[TakenUnits]:
        done = 0
        for part, chunks in in_order(wanted, parts, parts_folder, run):
            for chunk in chunks:
                yield chunk
                if progress is not None:
                    progress(done + min(chunk.end, part.end) - part.start, total)
            done += part.end - part.start

    return _give(taken(), sinks, built)


def _give(taken: Iterable[TakenUnits], sinks: Sequence[UnitSink], built: Built) -> Built:
    """Give what was taken to the sinks; `built` as it is when they have it."""
    for chunk in taken:
        built = _with_counts(built, chunk.counts)
        for sink in sinks:
            sink.put(chunk)
    for sink in sinks:
        built = sink.finish(built)
    return built


def notes_of_queues(built: Built) -> Iterator[str]:
    """What one has to know of queues that were built, or would be."""
    if built.fillers:
        yield f"{built.fillers} units are fillers, for messages that the log does not have: consumers pass over them"
    if built.led_over:
        yield (
            f"{built.led_over} units are copies of the unit behind them, for messages that the log does not have in "
            "its first file: consumers may get the message behind once more for each"
        )
    if built.fillers or built.led_over:
        yield "a replica may hold those messages (dledger diff tells): restore the log from it, and build again"
    if built.repeated:
        text = "messages have a queueOffset that their queue had passed already: as with RocketMQ they are in no queue"
        yield f"{built.repeated} {text}"


def _with_counts(built: Built, counts: PartCounts) -> Built:
    return replace(
        built,
        messages=built.messages + counts.messages,
        skipped=built.skipped + counts.skipped,
        first_skipped=built.first_skipped or counts.first_skipped,
        batches=built.batches + counts.batches,
        last_stored=counts.last_stored or built.last_stored,
    )


def batch_topics_of(root: Path | None) -> frozenset[str]:
    """The topics that have a batchconsumequeue."""
    return frozenset(queue.topic for queue in batch_queues(root)) if root is not None else frozenset()


def ext_addresses(root: Path | None) -> ExtAddresses | None:
    """The addresses that units have, where a broker has used consumequeue_ext (``enableConsumeQueueExt``)."""
    if root is None or not (root / "consumequeue_ext").is_dir():
        return None
    return ExtAddresses(ExistingQueues(root))


class QueueSink:
    """ConsumeQueues that are written, or compared, by the files of a writer."""

    needs_keys = False

    def __init__(self, writer: QueueWriter, files: UnitFiles, log: StoreView, keep_from: Path | None) -> None:
        self._writer, self._files = writer, files
        begin = log.segments[0].base if log.segments else 0
        self._expired = ExpiredUnits(keep_from, begin) if keep_from is not None else None
        self._given = self._kept = 0

    def put(self, taken: TakenUnits) -> None:
        if self._expired is not None:
            self._keep_before(self._expired, taken)
        self._given += len(taken.queue)
        self._writer.put(taken.names, taken.queue, taken.queue_offset, taken.units)

    def _keep_before(self, expired: ExpiredUnits, taken: TakenUnits) -> None:
        """Write what is kept of queues of which these are the first messages."""
        for number in np.flatnonzero([name in expired for name in taken.names]).tolist():
            places = taken.queue_offset[taken.queue == number]
            if len(places):
                self._kept += expired.into(self._writer, taken.names[number], int(places[0]))

    def finish(self, built: Built) -> Built:
        if self._expired is not None:
            self._kept += sum(self._expired.into(self._writer, name) for name in self._expired.names)
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
            repeated=self._given + self._kept - units,
            queue_files=self._files.count,
        )

    def close(self) -> None:
        self._writer.close()


@dataclass
class _KeysWritten:
    """How many keys were given to the index, and the CRC-32 of their offsets and hashes in order."""

    count: int = 0
    crc: int = 0

    def add(self, offset: npt.NDArray[Any], key_hash: npt.NDArray[Any]) -> None:
        self.count += len(offset)
        self.crc = crc32((offset.astype(np.int64) << 32 ^ key_hash.astype(np.int64)).tobytes(), self.crc)


class _Index:
    """The index of keys that is built."""

    needs_keys = True

    def __init__(self, target: Path, settings: BuildSettings) -> None:
        self._target = target
        self._writer = IndexWriter(target, settings.hash_slots, settings.index_units)
        self._written = _KeysWritten()
        self._slots = settings.hash_slots
        self._flush_at = _FLUSHED_KEYS

    def put(self, taken: TakenUnits) -> None:
        self._written.add(taken.keys.offset, taken.keys.key_hash)
        self._writer.put(taken.keys)
        if self._written.count >= self._flush_at:
            self._writer.flush()
            self._flush_at = self._written.count + _FLUSHED_KEYS

    def finish(self, built: Built) -> Built:
        self._writer.flush()
        files = index_files(self._target)
        self._verify(files)
        return replace(built, keys=self._written.count, index_files=len(files))

    def _verify(self, files: list[Path]) -> None:
        """Read all units back. Raises StoreError where they are not those that were given, or are not found."""
        found = _KeysWritten()
        for path in files:
            header = read_header(path)
            assert header is not None, path
            for _, units in units_in(path, self._slots, header.index_count):
                found.add(units["commitLogOffset"], units["keyHash"])
            unlinked = unlinked_units(path, self._slots, header.index_count)
            if hash_slots(path) != self._slots or unlinked:
                raise StoreError(
                    f"{path}: expected {self._slots} slots that lead to all units, found {unlinked} to which none "
                    "leads: check the disk, and build once more"
                )
        if found != self._written:
            raise StoreError(
                f"{self._target / INDEX}: expected the {self._written.count} keys that were written, found "
                f"{found.count}, or other ones: check the disk, and build once more"
            )

    def close(self) -> None:
        self._writer.close()
