"""Findings about one segment: its bytes, its first index and term, and the units that point to its entries.

Also a node's index: units that differ from their entries, and units after the end of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.codec import decode_blank
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, MAGIC_NOOP, MAGIC_NORMAL, MIN_BLANK_SIZE
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment, Survey, SurveyRequest
from pyspark_dledger.log.committed import damaged_after_end
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at
from pyspark_dledger.log.io.salvage_fillers import TIE, UNCONFIRMED, unproven_entries
from pyspark_dledger.log.io.store_engine import store_engine
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.io.unread_files import check_fact
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.dispatched import COLUMNS
from pyspark_dledger.log.verify.broker_checks import KeyCheck
from pyspark_dledger.log.verify.findings import Finding
from pyspark_dledger.log.verify.queue_checks import QueueCheck, QueueScope
from pyspark_dledger.log.verify.report import MAX_LISTED, Report

Numbers = npt.NDArray[np.int64]

FIELDS = ("index", "term", "pos", "size", "magic")
_MAX_INDEX = 2**62 // INDEX_UNIT_SIZE


@dataclass
class _ZeroUnits:
    """Consecutive units of one file that are zeros."""

    file: Segment
    first: int
    last: int


class IndexCheck:
    """Compares the entries of a segment, in order, with their units. Units without an index file are ignored."""

    def __init__(self, index: DLedgerIndex, report: Report) -> None:
        self._index = index
        self._report = report
        self._zeros: _ZeroUnits | None = None

    def add(self, entries: dict[str, Numbers]) -> None:
        """Compare entries, given as columns by the names of `FIELDS`."""
        indexes = entries["index"]
        breaks = np.flatnonzero(np.diff(indexes) != 1) + 1
        for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(indexes)], strict=True):
            if start < stop:
                self._add_consecutive({name: values[start:stop] for name, values in entries.items()})

    def finish(self) -> None:
        zeros, self._zeros = self._zeros, None
        if zeros is not None:
            units = f"the unit{'s' * (zeros.last > zeros.first)} of {_span(zeros.first, zeros.last)}"
            self._report.add(
                "indexUnitMissing",
                zeros.file.path,
                f"expected {units}, found zeros",
                offset=zeros.first * INDEX_UNIT_SIZE - zeros.file.base,
                index=zeros.first,
            )

    def _add_consecutive(self, entries: dict[str, Numbers]) -> None:
        """Compare entries with consecutive indexes."""
        first = int(entries["index"][0])
        stop = min(first + len(entries["index"]), _MAX_INDEX)
        for block in self._index.blocks(first, stop, self._on_unreadable, with_holes=True):
            start = block.first - first
            part = slice(start, start + len(block.units))
            self._compare(block.file, {name: values[part] for name, values in entries.items()}, block.units)

    def _on_unreadable(self, error: UnreadableError) -> None:
        """Report what cannot be read. A file that cannot be opened is reported by the check of all files."""
        if error.offset is not None:
            self._report.add_unreadable(error)

    def _compare(self, file: Segment, entries: dict[str, Numbers], units: npt.NDArray[Any]) -> None:
        differs = np.zeros(len(units), bool)
        for name in FIELDS:
            differs |= units[name] != entries[name]
        for number in np.flatnonzero(differs).tolist():
            unit = {name: int(units[name][number]) for name in FIELDS}
            entry = {name: int(entries[name][number]) for name in FIELDS}
            if not any(unit.values()):
                self._add_zeros(file, entry["index"])
            elif not self._report.only_counts(_code(unit, entry), file.path):
                self._differs(_code(unit, entry), file, entry, unit)

    def _differs(self, code: str, file: Segment, entry: dict[str, int], unit: dict[str, int]) -> None:
        names = [name for name in FIELDS if unit[name] != entry[name]]
        expected, found = (", ".join(f"{name} {values[name]}" for name in names) for values in (entry, unit))
        self._report.add(
            code,
            file.path,
            f"expected {expected}, found {found}",
            offset=entry["index"] * INDEX_UNIT_SIZE - file.base,
            index=entry["index"],
        )

    def _add_zeros(self, file: Segment, index: int) -> None:
        zeros = self._zeros
        if zeros is not None and zeros.file == file and zeros.last + 1 == index:
            zeros.last = index
            return
        self.finish()
        self._zeros = _ZeroUnits(file, index, index)


def _code(unit: dict[str, int], entry: dict[str, int]) -> str:
    as_leader = {**entry, "magic": MAGIC_NORMAL}
    return "indexUnitMagic" if entry["magic"] == MAGIC_NOOP and unit == as_leader else "indexUnit"


def check_units_beyond(index: DLedgerIndex, last_index: int, report: Report) -> None:
    """Add a finding for each file with units after the end of the log."""
    blocks = index.blocks(max(last_index + 1, 0), _MAX_INDEX)  # the check of all files reports what cannot be read
    for file, of_file in groupby(blocks, key=lambda block: block.file):
        numbers = np.concatenate([block.first + np.flatnonzero(block.is_written) for block in of_file])
        count = len(numbers)
        if count:
            first = int(numbers[0])
            report.add(
                "indexUnitsBeyondEnd",
                file.path,
                f"expected zeros after index {last_index}, found {count} unit{'s' * (count > 1)} of "
                f"{_span(first, int(numbers[-1]))}",
                offset=first * INDEX_UNIT_SIZE - file.base,
                index=first,
            )


def check_entry_beyond(store: StoreView, report: Report) -> None:
    """Add a finding if the log ends before an entry of which only the index is damaged."""
    found = damaged_after_end(store)
    if found is not None:
        segment, unit, header = found
        text, offset = f"expected index {unit.index}, found {header.index}", unit.pos - segment.base
        report.add("indexGap", segment.path, text, offset=offset, index=unit.index, pos=unit.pos)


def _span(first: int, last: int) -> str:
    return f"index {first}" if first == last else f"index {first} to {last}"


_BATCH_ROWS = 16 * 1024


@dataclass(frozen=True)
class SegmentCheckPart:
    """One segment ``[base, end)`` of the log, and the units of index and ConsumeQueues that point to it.

    `queues` are the ConsumeQueues of the log, with the positions to which the units point that are checked here; None
    if there are none. `key_root` is the folder with the IndexFiles of the log. `before` is the adjacent segment before,
    if there is one. `log_end` is the end of the log.
    """

    path: str
    options: ReadOptions
    paths: StorePaths
    segment: Segment
    end: int
    before: Segment | None
    queues: QueueScope | None
    key_root: Path | None
    log_end: int

    @property
    def size(self) -> int:
        """Bytes of the log that the part covers."""
        return self.segment.size


def segment_findings(part: SegmentCheckPart) -> list[Finding]:
    """The findings of a segment, by file and offset."""
    report = Report(part.paths)
    engine = store_engine(part.options.engine)
    node_dir = part.paths.node_dir if part.segment.source == DLEDGER else None
    index = DLedgerIndex(node_dir / "index" if node_dir is not None else None)
    request = SurveyRequest(part.segment, part.segment.base, part.end, part.options.verify_crc, MAX_LISTED)
    try:
        survey = engine.survey(request)
        unproven = unproven_entries(part.paths, part.segment.source)
        _add_problems(part.segment, survey, report, {row["pos"] for row in unproven if row.get("isSuspect")})
        _add_unproven(part, unproven, report)
        if part.before is not None and part.segment.source == DLEDGER and survey.entries:
            _check_order(engine, part.before, part.segment, index, survey, report)
        _check_units(engine, part, index, survey, report)
        _add_contradictions(part.segment, survey, report)
    except UnreadableError as error:
        report.add_unreadable(error)
    except (OSError, StoreError) as error:
        report.add("unreadableFile", part.segment.path, str(error).removeprefix(f"{part.segment.path}: "))
    return report.findings()


def messages_elsewhere(part: SegmentCheckPart) -> list[tuple[int, int]]:
    """Where entries and old messages begin and end that have the finding messageQueue. Raises StoreError."""
    engine = store_engine(part.options.engine)
    check = _queue_check(part, engine, Report(part.paths))
    if check is None or part.segment.base >= part.end:
        return []
    request = ScanRequest(part.segment, part.segment.base, part.end, COLUMNS, verify_crc=False)
    for batch, _ in engine.scan(request):
        check.add(batch)
    check.finish()
    header = ENTRY_HEADER_SIZE if part.segment.source == DLEDGER else 0
    return [(start - header, start + size) for start, size in sorted(check.contradicted.items())]


def _queue_check(part: SegmentCheckPart, engine: Engine, report: Report) -> QueueCheck | None:
    if part.queues is None or part.queues.low >= part.queues.high:
        return None
    return QueueCheck(part.queues, partial(StoreView, part.path, part.options), engine, report, part.log_end)


_TAKEN_TEXTS = {
    TIE: "one of several different copies that pass all checks",
    UNCONFIRMED: "the only copy that was left, which no checksum covers",
}


def _add_unproven(part: SegmentCheckPart, unproven: Iterable[Mapping[str, Any]], report: Report) -> None:
    """Report the entries that pass all checks, and of which nobody knows if the salvage took the right copy."""
    base = part.segment.base
    for row in unproven:
        pos, text = row["pos"], _TAKEN_TEXTS.get(row.get("why", ""))
        if text is not None and base <= pos < part.end:
            report.add("decidedCopy", part.segment.path, text, offset=pos - base, index=row.get("index"), pos=pos)


def _add_problems(segment: Segment, survey: Survey, report: Report, suspect: Collection[int]) -> None:
    """Report what a survey found. Raises UnreadableError if the rest of the file cannot be read.

    A salvage took the `suspect` entries at these positions, although their checks fail.
    """
    listed: dict[str, int] = {}
    for problem in survey.problems:
        check_fact(segment, problem.fact)
        if problem.code == "blankSize" and problem.pos == segment.base and not segment.check_pos:
            continue  # after a snapshot, 0.4.0 begins a file like this and has not yet written entries after it
        report.add(
            "decidedCopy" if problem.pos in suspect else problem.code,
            segment.path,
            problem.fact.sentence(segment.name),
            offset=problem.pos - segment.base,
            index=problem.index,
            pos=problem.pos,
            size=problem.size,
        )
        listed[problem.code] = listed.get(problem.code, 0) + 1
    for code, count in survey.counts.items():
        # One posDiffers stands for all.
        if code != "posDiffers" and count > MAX_LISTED:
            report.add_uncounted(code, segment.path, count - listed.get(code, 0))
    size = segment.file.size()
    if size is not None and size < segment.size and "shortFile" not in survey.counts:
        text = Fact(ProblemCode.SHORT_FILE, 0, segment.size, size).sentence(segment.name)
        report.add("shortFile", segment.path, text, offset=size, pos=segment.base + size, size=segment.size - size)


def _damaged(survey: Survey) -> list[tuple[int, int]]:
    """The ranges ``[start, end)`` of corrupt bytes that are listed."""
    damaged = [problem for problem in survey.problems if problem.code == "corruptBytes"]
    return [(problem.pos, problem.pos + problem.size) for problem in damaged]


def _add_contradictions(segment: Segment, survey: Survey, report: Report) -> None:
    """Report where files of the store contradict each other about damaged bytes."""
    ranges = _damaged(survey)
    if not ranges:
        return
    from pyspark_dledger.log.witness.claims import contradictions

    for each in contradictions(segment, ranges):
        more = f", and {each.pairs - 1} more in these bytes" if each.pairs > 1 else ""
        neither = "" if each.is_decided else "; neither counts"
        report.add(
            "witnessesDisagree",
            segment.path,
            f"expected {each.first}, found {each.second}{neither}{more}",
            offset=each.first.pos - segment.base,
            index=each.first.index if each.first.index >= 0 else None,
        )


def _check_order(
    engine: Engine, before: Segment, segment: Segment, index: DLedgerIndex, survey: Survey, report: Report
) -> None:
    """Check that the first entry of a segment follows the last one of the segment before."""
    last = _last_by_index(index, before, survey.first_index - 1) or _last_by_scan(engine, before)
    if last is None:
        return
    last_index, term, end = last
    # Damage at the end of one segment or at the beginning of the other may have been entries of at least 48 bytes.
    lost = before.end - end if not _is_closed(before, end) else 0
    lost += survey.first_pos - segment.base if survey.sizes.get("corrupt", 0) else 0
    if not 0 <= survey.first_index - last_index - 1 <= lost // ENTRY_HEADER_SIZE or survey.first_term < term:
        report.add(
            "segmentOrder",
            segment.path,
            f"expected index {last_index + 1} and a term of at least {term} after {before.name}, found index "
            f"{survey.first_index} and term {survey.first_term}",
            offset=survey.first_pos - segment.base,
            index=survey.first_index,
        )


def _last_by_index(files: DLedgerIndex, segment: Segment, index: int) -> tuple[int, int, int] | None:
    """Index, term and end of the entry `index`, if its index unit shows that it is the last one of the segment."""
    unit = files.unit(index) if index >= 0 else None
    header = entry_at(segment, unit.pos) if unit is not None and segment.check_pos else None
    if unit is None or header is None or header.index != index or not _is_closed(segment, unit.pos + header.size):
        return None
    return header.index, header.term, unit.pos + header.size


def _last_by_scan(engine: Engine, segment: Segment) -> tuple[int, int, int] | None:
    """Index, term and end of the last entry of a segment."""
    last = None
    request = ScanRequest(segment, segment.base, segment.end, FIELDS, verify_crc=False, max_batch_rows=_BATCH_ROWS)
    for batch, _ in engine.scan(request):
        entries = _entries(_known(batch))
        if len(entries["pos"]):
            last = {name: int(values[-1]) for name, values in entries.items()}
    return (last["index"], last["term"], last["pos"] + last["size"]) if last is not None else None


def _is_closed(segment: Segment, end: int) -> bool:
    """Whether there is the blank that closes a file at `end`, or the file is full."""
    head = segment.read(end, MIN_BLANK_SIZE)
    return end == segment.end or (len(head) == MIN_BLANK_SIZE and decode_blank(head) == segment.end - end)


def _check_units(engine: Engine, part: SegmentCheckPart, files: DLedgerIndex, survey: Survey, report: Report) -> None:
    """Compare the entries of a segment with the units of index, ConsumeQueues and IndexFiles that point to them."""
    segment = part.segment
    index = IndexCheck(files, report)
    magics = _NewerMagics()
    check = _queue_check(part, engine, report)
    keys = KeyCheck(part.key_root, segment.base, part.end, report) if part.key_root is not None else None
    columns: tuple[str, ...] = FIELDS if segment.source == DLEDGER else ("storeSize", "pos", "size")
    columns = tuple(dict.fromkeys((*columns, *COLUMNS))) if check is not None else columns
    if segment.source == DLEDGER or check is not None or keys is not None:
        request = ScanRequest(segment, segment.base, part.end, columns, verify_crc=False, max_batch_rows=_BATCH_ROWS)
        for batch, _ in engine.scan(request) if segment.base < part.end else ():
            batch = _known(batch)
            entries = _entries(batch)
            header = 0
            if segment.source == DLEDGER:
                header = ENTRY_HEADER_SIZE
                index.add(entries)
                magics.add(entries)
            if check is not None:
                check.add(batch)
            if keys is not None:
                keys.add(entries["pos"] + header)
    index.finish()
    if check is not None:
        check.finish()
    if keys is not None and survey.counts.get("corruptBytes", 0) <= MAX_LISTED:
        keys.finish(_damaged(survey))
    magics.report(segment, report)


def _known(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without its corrupt rows."""
    # Corrupt rows lack an index, and in a CommitLog a message.
    known = batch.column("index" if "index" in batch.schema.names else "storeSize")
    return pc.filter(batch, pc.is_valid(known)) if known.null_count else batch


def _entries(batch: pa.RecordBatch) -> dict[str, Numbers]:
    """The columns of a batch about entries, as 64-bit integers."""
    return {
        name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        for name in batch.schema.names
        if name not in COLUMNS or name == "pos"
    }


class _NewerMagics:
    """Counts the entries with magic 2 and 3, and keeps the first."""

    def __init__(self) -> None:
        self._count = 0
        self._first: dict[str, int] = {}

    def add(self, entries: dict[str, Numbers]) -> None:
        rows = np.flatnonzero(entries["magic"] != MAGIC_NORMAL)
        self._count += len(rows)
        if len(rows) and not self._first:
            self._first = {name: int(values[rows[0]]) for name, values in entries.items()}

    def report(self, segment: Segment, report: Report) -> None:
        if self._first:
            more = f", and {self._count - 1} more of magic 2 or 3" if self._count > 1 else ""
            report.add(
                "newerMagic",
                segment.path,
                f"expected magic {MAGIC_NORMAL}, found {self._first['magic']}{more}",
                offset=self._first["pos"] - segment.base,
                index=self._first["index"],
            )
