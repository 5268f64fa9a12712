"""Re-reads a log at a limited rate and finds damaged entries. Runs in its own thread, and changes nothing.

It reads with ``pread``: for a bad sector of the disk a mapped read would kill the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import (
    CHANNEL_OFFSET,
    IndexUnit,
    control_kind,
    control_kind_at,
    decode_index_unit,
    record_dtype,
    record_struct,
)
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_NORMAL,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.store.files.mapped_files import MappedFileList

_LOG = logging.getLogger(__name__)
_HEADER = record_struct(ENTRY_HEADER)
_UNIT = record_dtype(INDEX_UNIT)
Units = npt.NDArray[np.void]
_CHUNK_BYTES = 1 << 20
_UNITS_AT_ONCE = 4096
# A small log is not read again and again.
_MIN_PASS_SECONDS = 3600.0


class ScrubbedRange(NamedTuple):
    """What was read: `size` bytes of entries before index `next_index`; a text for each damaged one."""

    next_index: int
    size: int
    damaged: dict[int, str]


def scrub(data: MappedFileList, index: MappedFileList, engine: Engine, first: int, last: int) -> ScrubbedRange:
    """Check some of the entries ``[first, last]`` of one data file against their index units and checksums.

    Entries of files that expire in the meantime may be among the damaged ones.
    """
    units = _units(index, first, min(last, first + _UNITS_AT_ONCE - 1))
    if units is None:
        return ScrubbedRange(last + 1, 0, {})
    wrong_unit = _wrong_unit(units, first, data.file_size)
    has_wrong_unit, units = wrong_unit < len(units), units[:wrong_unit]
    found = _scrub_entries(data, engine, first, units) if wrong_unit else ScrubbedRange(first, 0, {})
    if has_wrong_unit and found.next_index == first + wrong_unit:
        text = f"expected the index unit of index {found.next_index}, which continues the one before, found other bytes"
        found = ScrubbedRange(found.next_index + 1, found.size, {**found.damaged, found.next_index: text})
    return found


def _scrub_entries(data: MappedFileList, engine: Engine, first: int, units: Units) -> ScrubbedRange:
    """Check the entries of some of these units, at least of the first one."""
    pos = int(units["pos"][0])
    data_file = data.find(pos)
    if data_file is None:
        return ScrubbedRange(first + 1, 0, {first: f"expected a position in the log, found {pos} in the unit"})
    ends = units["pos"] + units["size"]
    count = max(int(np.searchsorted(ends, min(pos + _CHUNK_BYTES, data_file.end), "right")), 1)
    units = units[:count]
    size = int(ends[count - 1]) - pos
    path, base = str(data_file.path), data_file.base
    read = read_at(path, pos - base, size)
    damaged = {}
    if not _is_intact(engine, read, units) and data_file.path.exists():
        for unit in map(decode_index_unit, (units[number : number + 1].tobytes() for number in range(count))):
            part = read_at(path, unit.pos - base, unit.size)
            if (text := entry_problem(engine, part, unit)) is not None:
                damaged[unit.index] = f"{path} at byte {unit.pos - base}: {text}"
    return ScrubbedRange(first + count, size, damaged)


def entry_problem(engine: Engine, data: Buffer, unit: IndexUnit) -> str | None:
    """Why the bytes are not the intact entry of an index unit; None if they are."""
    if len(data) < unit.size:
        return f"expected {unit.size} bytes, found {len(data)} that can be read"
    header = _HEADER.unpack_from(data)
    expected = (MAGIC_NORMAL, unit.size, unit.index, unit.term, unit.pos)
    if header[:5] != expected or header[8] != unit.size - ENTRY_HEADER_SIZE:
        return f"expected magic, size, index, term and pos {expected}, found {header[:5]}"
    if header[5:7] != (0, 0) and not control_kind(header):
        return f"expected channel and chainCrc 0, or those of an entry of the group itself, found {header[5:7]}"
    if engine.find_damaged(data) is not None:
        return "expected the body to match its checksum, found other bytes"
    return None


def unit_in(data: Buffer) -> IndexUnit | None:
    """The index unit that fits the header at the start of `data`; None if that is too short."""
    if len(data) < ENTRY_HEADER_SIZE:
        return None
    magic, size, index, term, pos = _HEADER.unpack_from(data)[:5]
    return IndexUnit(magic, pos, size, index, term)


def _is_intact(engine: Engine, data: bytes, units: Units) -> bool:
    first = units[0]
    try:
        checked = engine.check_entries(data, int(first["index"]), int(first["pos"]), int(first["term"]), 2**63 - 1)
    except ValueError:
        return False
    if checked.units != units.tobytes() or engine.find_damaged(data) is not None:
        return False
    # Entries of applications have zeros as channel and chainCrc.
    offsets = units["pos"] - first["pos"] + CHANNEL_OFFSET
    sealed = offsets[np.frombuffer(data, np.uint8)[offsets[:, None] + np.arange(8)].any(axis=1)] - CHANNEL_OFFSET
    return all(control_kind_at(data, int(offset)) for offset in sealed)


def _units(index: MappedFileList, first: int, last: int) -> Units | None:
    """The units from index `first` on in its file; None if that has expired."""
    file = index.find(first * INDEX_UNIT_SIZE)
    if file is None:
        return None
    size = min((last + 1) * INDEX_UNIT_SIZE, file.end) - first * INDEX_UNIT_SIZE
    data = read_at(str(file.path), first * INDEX_UNIT_SIZE - file.base, size)
    units = np.frombuffer(data[: len(data) // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE], _UNIT)
    return units if len(units) else None


def _wrong_unit(units: Units, first: int, file_size: int) -> int:
    """The number of the first unit that cannot be right; the number of units if all can."""
    wrong = (units["index"] != np.arange(first, first + len(units))) | (units["size"] < ENTRY_HEADER_SIZE)
    wrong |= (units["magic"] != MAGIC_NORMAL) | (units["pos"] < 0)
    # An entry begins where the one before ends, or a file.
    wrong[1:] |= (units["pos"][1:] != (units["pos"] + units["size"])[:-1]) & (units["pos"][1:] % file_size != 0)
    return int(np.flatnonzero(wrong)[0]) if wrong.any() else len(units)


class ScrubService:
    """A thread that scrubs ``bounds()`` again and again at `bytes_per_second`.

    `check` reads a range and returns what it found. `rebuild` repairs the index unit of an entry, if it can: the range
    is then read again. `on_damage` gets the damaged entries of each range, in this thread.
    """

    def __init__(
        self,
        bounds: Callable[[], tuple[int, int]],
        check: Callable[[int, int], ScrubbedRange],
        on_damage: Callable[[dict[int, str]], None],
        rebuild: Callable[[int], bool],
        bytes_per_second: int,
        min_pass_seconds: float = _MIN_PASS_SECONDS,
    ) -> None:
        self._bounds = bounds
        self._check = check
        self._on_damage = on_damage
        self._rebuild = rebuild
        self._rate = bytes_per_second
        self._min_pass_seconds = min_pass_seconds
        self.next_index = -1
        """The next entry to read; -1 before the first pass."""
        self.checked_bytes = self.pass_bytes = 0
        self.last_pass = 0.0
        self.rebuilt_units = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ScrubService", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._pass()
            self._stopping.wait(max(began + self._min_pass_seconds - time.monotonic(), 1.0))

    def _pass(self) -> None:
        """Read the whole log once."""
        self.next_index = self._bounds()[0]
        self.pass_bytes = 0
        while not self._stopping.is_set():
            begin, end = self._bounds()
            first = max(self.next_index, begin)
            if begin < 0 or first > end:
                self.last_pass = time.time()
                return
            try:
                found = self._check(first, end)
                begin = self._bounds()[0]
                damaged = {index: text for index, text in found.damaged.items() if 0 <= begin <= index}
                if any(self._is_rebuilt(index, text) for index, text in damaged.items()):
                    continue
            except OSError as error:
                _LOG.warning("scrubbing stopped at index %d until the next pass: %s", first, error)
                return
            if damaged:
                self._on_damage(damaged)
            self.next_index = found.next_index
            self.checked_bytes += found.size
            self.pass_bytes += found.size
            self._stopping.wait(found.size / self._rate)

    def _is_rebuilt(self, index: int, text: str) -> bool:
        if not self._rebuild(index):
            return False
        self.rebuilt_units += 1
        _LOG.warning("rebuilt the index unit of entry %d: %s", index, text)
        return True
