"""Findings about a node's index: units that differ from their entries, and units after the end of the log."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE, MAGIC_NOOP, MAGIC_NORMAL
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at, segment_at
from pyspark_dledger.log.verify.report import Report

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
            elif not self._is_listed(_code(unit, entry), file):
                self._differs(_code(unit, entry), file, entry, unit)

    def _is_listed(self, code: str, file: Segment) -> bool:
        if self._report.is_full(code, file.path):
            self._report.add_uncounted(code, file.path, 1)
            return True
        return False

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


def check_entry_beyond(index_files: DLedgerIndex, segments: list[Segment], index: int, report: Report) -> None:
    """Add a finding if the log ends before an entry that has another index than its unit, and nothing else wrong."""
    unit = index_files.unit(index)
    segment = segment_at(segments, unit.pos) if unit is not None else None
    if unit is None or segment is None:
        return
    header = entry_at(segment, unit.pos)
    if header is not None and (header.size, header.term) == (unit.size, unit.term) and header.index != index:
        text, offset = f"expected index {index}, found {header.index}", unit.pos - segment.base
        report.add("indexGap", segment.path, text, offset=offset, index=index, pos=unit.pos)


def _span(first: int, last: int) -> str:
    return f"index {first}" if first == last else f"index {first} to {last}"
