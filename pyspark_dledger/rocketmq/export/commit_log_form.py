"""The export form ``commitlog``: a store for a broker without DLedger.

Each file of the log becomes a CommitLog file of the same name and size. Messages keep everything but their physical
offset. They always fit, because the 48 bytes of an entry before each message go away. Messages follow each other from
the start of the file. After the last one, a filler (``int`` bytes up to the end of the file, ``int`` -875286124) says
that the log continues in the next file; the last file of the log ends in zeros. Each file has its full size, which
brokers require, and is sparse. ConsumeQueues, index, checkpoint and configuration are exported as well. Source:
RocketMQ 5.3.3 ``CommitLog``, ``MappedFileQueue.load``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pyarrow as pa

from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import MalformedError, OptionError, StoreError
from pyspark_dledger.format.codec import encode_message_blank
from pyspark_dledger.format.dispatched_rows import DISPATCHED_COLUMNS
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import segment_name
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.io.salvage_fillers import DECIDED_FILE, LOST_FILE, exported_list
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.dispatch.log_part import UnitRules, all_rows, part_of
from pyspark_dledger.rocketmq.export.commit_log_part import (
    FILLERS,
    MOVED,
    VERSION_2,
    FilePart,
    PartOutcome,
    is_intact,
    write_at_old_offsets,
    write_messages,
)
from pyspark_dledger.rocketmq.export.forms import MAX_SKIPPED, ExportSettings, FinishReport, Form
from pyspark_dledger.rocketmq.jobs import store_files
from pyspark_dledger.rocketmq.jobs.new_files import DirectFile, WrittenRange, leave, left_file, written_ranges
from pyspark_dledger.rocketmq.jobs.target_folder import FileReport, PartReport, new_file
from pyspark_dledger.rocketmq.rebuild.builder import (
    BuildReport,
    BuildSettings,
    advice_on_lost,
    batch_topics_of,
    notes_of_queues,
)
from pyspark_dledger.rocketmq.rebuild.dispatched_units import load_units, save_all, units_of_chunk

# Missing files of the log become sparse files of full size, up to this number.
_MAX_MISSING = 10_000


class CommitLogForm(Form):
    """Writes a storePathRootDir; a part is one file of the CommitLog."""

    name = "commitlog"

    def plan(self, log: StoreView, settings: ExportSettings) -> list[FilePart]:
        """One part for each file of the log, including files missing in between.

        Raises OptionError for options with which a broker could not serve the result, StoreError for files of different
        sizes, MalformedError for a missing file with mode=FAILFAST.
        """
        _check_options(settings.options)
        units = None
        if not settings.commit_log_only:
            units = UnitRules(batch_topics=batch_topics_of(_keep_from(log, settings)))
        found = list(_ranges(log, settings))
        if not found:
            raise StoreError(f"{log.path}: the options of the read select no message: check them")
        _check_sizes([segment for segment, _, _ in found])
        last = found[-1][0]
        parts: list[FilePart] = []
        for segment, start, end in found:
            if parts:
                parts += _missing(log, settings, parts[-1].segment, segment)
            mode = "FAILFAST" if settings.options.mode == "FAILFAST" else "PERMISSIVE"
            chosen = settings.filters, mode, segment == last, settings.preserve_offsets
            parts.append(FilePart(log.engine.NAME, segment, start, end, *chosen, units=units))
        return parts

    def write(self, part: FilePart, number: int, target: Path) -> PartReport:
        """Write the file of a part, sync it, and read it back, if the part has messages that can be written.

        Raises StoreError if the source cannot be read or the file differs when it is read back, MalformedError with
        mode=FAILFAST, OSError.
        """
        outcome = PartOutcome()
        file: FileReport | None = None
        left: FileReport | None = None
        if part.hole is not None:
            outcome.skipped = 1
            outcome.skip_line(part.segment.base, None, part.hole)
        else:
            with suppress(_NoMessage):
                file, left = _write_file(part, outcome, number, target)
        return PartReport(
            number,
            (file,) if file is not None else (),
            part.end - part.start,
            outcome.skipped,
            tuple(outcome.first_skipped),
            tuple(outcome.notes),
            counts=dict(outcome.counts),
            left=left,
        )

    def finish(
        self, log: StoreView, settings: ExportSettings, target: Path, reports: Sequence[PartReport]
    ) -> FinishReport:
        """Write the broker's other files, and CommitLog files without messages between others.

        Raises StoreError for a log without messages.
        """
        parts = self.plan(log, settings)
        store_files.clear(target)
        empty = list(_empty_files(parts, reports, target))
        counts = sum((Counter(report.counts) for report in reports), Counter[str]())
        roots = store_files.roots_of([log])
        sizes = store_files.sizes_of(roots)
        built = None
        if settings.commit_log_only:
            store_files.write_abort(target)
        else:
            built = _built(log, settings, target, sizes, reports)
        config = list(store_files.copy_config(roots, target, for_new_broker=True))
        notes = [*_notes(log, settings, counts, reports), *_notes_of_broker(built, target), *config]
        has_moved = bool(log.ledger_segments) and not settings.preserve_offsets
        notes += store_files.notes_of_left_out(roots, "exported", has_moved)
        conf = store_files.broker_conf(target, parts[0].segment.size, sizes)
        lists = store_files.write_lists(target, *(exported_list(log.paths, name) for name in (LOST_FILE, DECIDED_FILE)))
        return FinishReport((*empty, *lists, *store_files.small_files(target)), tuple(notes), conf)


def _built(
    log: StoreView, settings: ExportSettings, target: Path, sizes: BuildSettings, reports: Sequence[PartReport]
) -> BuildReport:
    """Queues and index, from what the parts left. Raises StoreError if that does not have all messages."""
    result = StoreView(str(target / _FOLDER), ReadOptions(engine=log.engine.NAME))
    units = chain.from_iterable(load_units(left_file(target, each.left)) for each in reports if each.left is not None)
    built = store_files.build_queues_and_index(units, result, target, sizes, _keep_from(log, settings))
    messages = sum(report.rows + report.counts.get(FILLERS, 0) for report in reports)
    found = built.messages + built.skipped
    if found != messages:
        raise StoreError(f"{target}: expected {messages} messages in the new log, found {found}: check the disk")
    return built


def _keep_from(log: StoreView, settings: ExportSettings) -> Path | None:
    """The root whose queues have units of expired messages to keep; None if only some queues are exported."""
    return log.paths.root if settings.options.topic is None and settings.options.queue_id is None else None


def _check_options(options: ReadOptions) -> None:
    if options.tags is not None:
        raise OptionError(
            "option tags: an export to commitlog takes whole queues, because a queue cannot have holes; use topic and "
            "queueId to choose queues"
        )
    if not options.verify_crc:
        raise OptionError(
            "option verifyCrc: expected true in an export to commitlog, found false: for a broker the log ends at the "
            "first message with a wrong CRC"
        )


def _ranges(log: StoreView, settings: ExportSettings) -> Iterator[tuple[Segment, int, int]]:
    """The segments in the exported range, with start and end."""
    for segment in log.segments:
        start, end = max(segment.base, settings.start), min(log.segment_end(segment), settings.end)
        if start < end:
            yield segment, start, end


def _check_sizes(segments: list[Segment]) -> None:
    size = segments[0].size
    for segment in segments:
        if segment.size != size:
            raise StoreError(
                f"{segment.path}: expected {size} bytes like {segments[0].path}, found {segment.size}: a broker needs "
                "files of one size; use startingOffsets and endingOffsets to choose some of one size"
            )
        if segment.base % size or size > INT32_MAX:
            raise StoreError(
                f"{segment.path}: expected a name that is a multiple of the file's size, and at most {INT32_MAX} "
                f"bytes, found {size} bytes: a broker cannot open this file"
            )


def _missing(log: StoreView, settings: ExportSettings, before: Segment, after: Segment) -> Iterator[FilePart]:
    """Parts for the files missing between two."""
    bases = range(before.end, after.base, before.size)
    if not bases:
        return
    first = segment_name(before.end)
    hole = f"expected the segment {first} and all others before {after.name}, found none"
    if settings.options.mode == "FAILFAST":
        raise MalformedError(f"{log.path}: {hole}; mode=PERMISSIVE leaves it out")
    if len(bases) > _MAX_MISSING:
        raise StoreError(
            f"{log.path}: {hole}: {len(bases)} files are missing, at most {_MAX_MISSING} can be filled in; let "
            "startingOffsets begin after them"
        )
    for base in bases:
        name = segment_name(base)
        segment = Segment.local("", name, base, before.size, COMMITLOG)
        text = f"expected the segment {name}, found no file"
        yield FilePart(log.engine.NAME, segment, base, base, settings.filters, "PERMISSIVE", False, False, text)


def _empty_files(parts: list[FilePart], reports: Sequence[PartReport], target: Path) -> Iterator[FileReport]:
    """Write files without messages between others, and one more if the log ends in a full file.

    Raises StoreError if no file has a message.
    """
    written = [number for number, report in enumerate(reports) if report.files]
    if not written:
        raise StoreError(f"{target}: no message can be exported: the reports in _export list the reasons")
    last = written[-1]
    for number in range(written[0], min(last + 2, len(parts))):
        if not reports[number].files:
            segment = parts[number].segment
            yield _write_empty_file(target, segment.base, segment.size, number > last)


def _notes(
    log: StoreView, settings: ExportSettings, counts: Counter[str], reports: Sequence[PartReport]
) -> Iterator[str]:
    """Notes on the messages."""
    if settings.preserve_offsets:
        yield (
            f"physical offsets are preserved except for {counted(counts[MOVED], 'message')}, the first of each DLedger "
            f"file; the gaps have {counted(counts[FILLERS], 'message')} of topic DLEDGER_EXPORT_FILLER, in no queue"
        )
        yield from [note for report in reports for note in report.notes][:MAX_SKIPPED]
    elif log.ledger_segments:
        yield (
            "messages from DLedger have new physical offsets and so a new offsetMsgId; all else is unchanged, also "
            "uniqKey (the client's msgId) and preparedTransactionOffset"
        )
    if counts[VERSION_2]:
        yield (
            f"{counted(counts[VERSION_2], 'message has', 'messages have')} a topic of more than 127 bytes: "
            "for a broker before 5.1 the log ends at the first of them; use the option topic to leave them out"
        )


def _notes_of_broker(built: BuildReport | None, target: Path) -> Iterator[str]:
    """Notes for the start of a broker."""
    if built is None:
        yield "the broker builds consumequeue/ and index/ at its first start: they begin at the first existing message"
    else:
        yield from notes_of_queues(built)
        yield from advice_on_lost(built)
    if built is not None and built.skipped:
        yield f"{counted(built.skipped, 'message')} cannot be in a queue; the first: {built.first_skipped}"
    if not (target / "config").is_dir():
        yield (
            "no config/*.json was found with the log: before it serves consumers, the broker needs topics, "
            "subscription groups and consumer offsets"
        )


_FOLDER = "commitlog"

_CHECKED_COLUMNS = ("kind", "pos", "size", "problem", "problemCode")


class _NoMessage(Exception):
    """The file would have no message, so it is not written."""


def _write_empty_file(target: Path, base: int, size: int, is_last: bool) -> FileReport:
    """Write a file without messages: brokers skip it or, if it is the last, append to it."""
    path = f"{_FOLDER}/{segment_name(base)}"
    with new_file(target, path) as temporary, DirectFile(temporary) as file:
        ranges = list(_end_file(file, WrittenRange(0, 0, 0), size, is_last))
        for _ in file.read_back(path, ranges):
            pass
    return FileReport(path, size, ranges[-1].crc if ranges else 0, 0)


def _write_file(
    part: FilePart, outcome: PartOutcome, number: int, target: Path
) -> tuple[FileReport, FileReport | None]:
    """Write the file, and the units for queues and index if they are built. Raises _NoMessage."""
    path, engine = f"{_FOLDER}/{segment_name(part.segment.base)}", get_engine(part.engine)
    with new_file(target, path) as temporary, DirectFile(temporary) as file:
        write = write_at_old_offsets if part.preserves_offsets else write_messages
        ranges = list(written_ranges(write(part, outcome, file)))
        if not ranges:
            raise _NoMessage
        ranges += _end_file(file, ranges[-1], part.segment.size, part.is_last)
        checked = _checked(engine, file, path, part, ranges)
        left = None
        if part.units is None:
            for _ in checked:
                pass
        else:
            rules = part.units
            parts = (part_of(engine, request, batch, rules) for request, batch in checked)
            units = (units_of_chunk(rules, each) for each in parts)
            left, _ = leave(target, number, lambda stream: save_all(stream, units))
    return FileReport(path, part.segment.size, ranges[-1].crc, outcome.rows), left


def _end_file(file: DirectFile, last: WrittenRange, size: int, is_last: bool) -> Iterator[WrittenRange]:
    """Write the filler if another file follows, extend the file to its size, and sync it."""
    if not is_last:
        filler = encode_message_blank(size - last.end)
        file.append(filler)
        yield WrittenRange(last.end, last.end + len(filler), crc32(filler, last.crc))
    file.finish(size)


def _checked(
    engine: Engine, file: DirectFile, path: str, part: FilePart, ranges: list[WrittenRange]
) -> Iterator[tuple[ScanRequest, pa.RecordBatch]]:
    """The rows of each written range as read back. Raises StoreError unless they are contiguous intact messages."""
    columns = _CHECKED_COLUMNS if part.units is None else tuple(dict.fromkeys((*DISPATCHED_COLUMNS, *_CHECKED_COLUMNS)))
    base = part.segment.base
    for written, window in file.read_back(path, ranges):
        if not written.rows:
            continue
        segment = Segment.local(window.path, path, base + window.start, window.end - window.start, COMMITLOG)
        request = ScanRequest(segment, base + written.start, base + written.end, columns, end_is_boundary=True)
        batch = all_rows(engine, request)
        _check_messages(path, batch, request.end, written.rows)
        yield request, batch


def _check_messages(path: str, batch: pa.RecordBatch, end: int, messages: int) -> None:
    """Raises StoreError unless the rows are that many intact messages and end at position `end` of the log."""
    if not is_intact(batch):
        bad = next(row for row in batch.to_pylist() if row["kind"] != "message" or row["problem"])
        raise StoreError(f"{path}: expected intact messages, found at {bad['pos']}: {bad['problem']}")
    last = batch["pos"][-1].as_py() + batch["size"][-1].as_py() if len(batch) else None
    if (len(batch), last) != (messages, end):
        raise StoreError(
            f"{path}: expected {messages} messages up to {end}, found {len(batch)} up to {last}: does a broker write "
            "the exported log? Stop it, or export a copy"
        )
