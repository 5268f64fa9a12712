"""Numbers, sizes, durations, times and names as people read them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pyspark_dledger.common.plurals import plural
from pyspark_dledger.format.json_text import printable

_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DURATIONS = (
    *((31_557_600_000, "years"), (86_400_000, "days"), (3_600_000, "h"), (60_000, "min")),
    *((1_000, "s"), (1, "ms")),
)
DAY_MS = 86_400_000
# A unit is used from this count on: 1400 ms, but 1.5 s.
_MIN_UNITS = 1.5
# Units longer than this are words.
_MAX_SYMBOL = 3
_MAX_NAME = 32


def number_text(value: float) -> str:
    """``1234567`` as ``1,234,567``; a fraction with three significant digits."""
    if value == int(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.3g}"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: ``1 file``, ``2,000 files``; `many` as in `plural`."""
    return f"{number_text(count)} {plural(count, one, many)}"


def bytes_text(count: int) -> str:
    """A size in bytes: ``64.0 KiB``, below 1 KiB as ``999 bytes``."""
    value, unit = byte_scale(count)
    if value == 1:
        return f"{count} byte{'' if count == 1 else 's'}"
    return f"{count / value:.{1 if count / value < 100 else 0}f} {unit}"


def byte_scale(highest: int) -> tuple[int, str]:
    """The unit for sizes up to `highest`, as its bytes and its name."""
    # A value that would be rounded to 1024 is 1 of the next unit.
    rounded = highest if highest < 1024 else highest + (1 << int(highest).bit_length() - 11)
    power = min(max(int(rounded).bit_length() - 1, 0) // 10, len(_SIZES) - 1)
    return 1024**power, _SIZES[power]


def percent_text(part: int, total: int) -> str:
    """A share in percent. 100 % and 0 % are exact."""
    if not total:
        return "0 %"
    share = 100 * part / total
    if 0 < share < 0.1:
        return "under 0.1 %"
    if 99.9 < share < 100:
        return "over 99.9 %"
    return f"{share:.1f} %".replace(".0 %", " %")


def duration_text(milliseconds: float) -> str:
    """A duration with two or three significant digits: ``250 ms``, ``6.4 s``, ``1 h``, ``3.1 days``."""
    for length, unit in _DURATIONS:
        if milliseconds == length or milliseconds >= length * (_MIN_UNITS if length > 1000 else 1):
            value = milliseconds / length
            text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}".removesuffix(".0")
            return f"{text} {unit.removesuffix('s') if text == '1' and len(unit) > _MAX_SYMBOL else unit}"
    return "0 ms"


def time_text(milliseconds: int, step: int = 1) -> str:
    """A time in UTC of any year, as precise as steps of `step` milliseconds need; for whole days only the date."""
    unit: Literal["ms", "s", "m", "D"] = "ms" if step < 1000 else "s" if step < 60_000 else "m"
    unit = unit if step < DAY_MS else "D"
    return str(np.datetime_as_string(np.datetime64(int(milliseconds), "ms"), unit)).replace("T", " ")


def short_name(name: str) -> str:
    """A printable name; the middle of a long one is left out."""
    name = printable(name)
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}\u2026{name[-8:]}"
