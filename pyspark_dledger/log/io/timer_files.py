"""Reads a broker's timer files: ``timerlog/``, ``timerwheel`` and ``config/timercheck``.

The timer log has a unit for each message that waits for its time. The wheel has a slot for each second (or other
precision) of two weeks, with its first and last unit. The checkpoint says up to which time messages were delivered.
Sources: RocketMQ 5.3.3 ``TimerLog``, ``TimerWheel``, ``Slot``, ``TimerCheckpoint``, ``TimerMessageStore``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import (
    TIMER_BLANK_MAGIC,
    TIMER_SLOT,
    TIMER_SLOT_SIZE,
    TIMER_UNIT,
    TIMER_UNIT_SIZE,
    is_segment_name,
)
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import is_there, opened_existing
from pyspark_dledger.log.io.queue_files import folder_entries

FOLDER = "timerlog"
WHEEL = "timerwheel"
CHECKPOINT = "config/timercheck"
MAGIC_MESSAGE, MAGIC_ROLL, MAGIC_DELETE = 1, 2, 4
_MAGICS = (1, 3, 5, 7)
"""A message, and what more it is: it rolls (it waits longer than the wheel turns), or deletes another one."""

_CHECKPOINT = struct.Struct(">qqqq")
_UNITS_AT_ONCE = 64 * 1024
_BLANK_MAGIC = TIMER_BLANK_MAGIC - 2**32 if TIMER_BLANK_MAGIC > INT32_MAX else TIMER_BLANK_MAGIC


class TimerCheckpoint(NamedTuple):
    """Up to which time (ms since 1970) the broker delivered, and what it has of the timer log and its queue."""

    read_time: int
    log_position: int
    queue_offset: int
    master_queue_offset: int


@dataclass(frozen=True)
class TimerFile:
    """A file of the timer log: ``base`` is the position of its first unit."""

    path: str
    base: int
    size: int


@dataclass(frozen=True)
class TimerUnits:
    """Adjacent units of the timer log, the first one at ``position``."""

    file: TimerFile
    position: int
    units: npt.NDArray[Any]

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        return self.position + TIMER_UNIT_SIZE * np.arange(len(self.units), dtype=np.int64)

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """When each message is due, in milliseconds since 1970."""
        with np.errstate(over="ignore"):
            return self.units["writtenTime"].astype(np.int64) + self.units["delay"].astype(np.int64)


def read_timer_checkpoint(root: Path) -> TimerCheckpoint | None:
    """The checkpoint of a storePathRootDir; None if it is missing or too short. Raises UnreadableError."""
    data = read_existing(str(root / CHECKPOINT), 0, _CHECKPOINT.size)
    return TimerCheckpoint(*_CHECKPOINT.unpack(data)) if len(data) == _CHECKPOINT.size else None


def timer_files(root: Path) -> list[TimerFile]:
    """The files of the timer log, in order. Raises UnreadableError."""
    entries = [entry for entry in folder_entries(root / FOLDER) if is_segment_name(entry.name)]
    files = [TimerFile(entry.path, int(entry.name), entry.stat().st_size) for entry in entries if entry.is_file()]
    return sorted(files, key=lambda file: file.base)


def timer_units(root: Path) -> Iterator[TimerUnits]:
    """The units of the timer log in order, up to the first bytes of each file that are none. Raises UnreadableError."""
    for file in timer_files(root):
        at = 0
        with opened_existing(file.path) as opened:
            while opened is not None and at < file.size:
                units = decode_records(opened.read(at, _UNITS_AT_ONCE * TIMER_UNIT_SIZE), TIMER_UNIT)
                valid = (units["size"] == TIMER_UNIT_SIZE) & np.isin(units["magic"], _MAGICS)
                count = len(units) if valid.all() else int(np.argmin(valid))
                if count:
                    yield TimerUnits(file, file.base + at, units[:count])
                if count < _UNITS_AT_ONCE:
                    break
                at += count * TIMER_UNIT_SIZE


class TimerWheel:
    """The slots of the wheel that were written, by their number."""

    def __init__(self, slots: int, numbers: npt.NDArray[np.int64], records: npt.NDArray[Any]) -> None:
        self.slots = slots
        self._numbers, self._records = numbers, records

    @classmethod
    def opened(cls, root: Path) -> TimerWheel | None:
        """The wheel of a storePathRootDir; None without one. Holes are not read. Raises UnreadableError."""
        if not is_there(root / WHEEL):
            return None
        numbers, records = [np.empty(0, np.int64)], [decode_records(b"", TIMER_SLOT)]
        with opened_existing(str(root / WHEEL)) as opened:
            if opened is None:
                return None
            size = opened.size() // TIMER_SLOT_SIZE * TIMER_SLOT_SIZE
            end = 0
            for low, high in opened.extents(0, size):
                start = max(low // TIMER_SLOT_SIZE * TIMER_SLOT_SIZE, end)
                end = min(-(-high // TIMER_SLOT_SIZE) * TIMER_SLOT_SIZE, size)
                found = decode_records(opened.read(start, end - start), TIMER_SLOT)
                written = np.flatnonzero(found["time"] > 0)
                numbers.append(written + start // TIMER_SLOT_SIZE)
                records.append(found[written])
        return cls(size // TIMER_SLOT_SIZE, np.concatenate(numbers), np.concatenate(records))

    def has(self, positions: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which units a slot of their time leads to, as far as its ends tell."""
        result = np.zeros(len(times), bool)
        if not self.slots or not len(self._numbers):
            return result
        for precision in _PRECISIONS:
            places = np.searchsorted(self._numbers, times // precision % self.slots)
            records = self._records[np.minimum(places, len(self._records) - 1)]
            is_slot = records["time"] == times // precision
            result |= is_slot & (records["first"] <= positions) & (positions <= records["last"])
        return result


# timerPrecisionMs is in no file; 1,000 is the default.
_PRECISIONS = (1000, 500, 200, 100)
