"""The look of all figures, their time axis and their numbers as text, and figures as PNG and SVG.

They use matplotlib without pyplot, which has global state. The colours suit people with colour blindness: Okabe and Ito
for kinds, viridis for amounts.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pyspark_dledger.common.plurals import plural
from pyspark_dledger.format.json_text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DURATIONS = (
    *((31_557_600_000, "years"), (86_400_000, "days"), (3_600_000, "h"), (60_000, "min")),
    *((1_000, "s"), (1, "ms")),
)
_DAY = 86_400_000
# A unit is used from this count on: 1400 ms, but 1.5 s.
_MIN_UNITS = 1.5
# Units longer than this are words.
_MAX_SYMBOL = 3


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
    unit: Literal["ms", "s", "m", "D"] = "ms" if step < 1000 else "s" if step < 60_000 else "m" if step < _DAY else "D"
    return str(np.datetime_as_string(np.datetime64(int(milliseconds), "ms"), unit)).replace("T", " ")


# Okabe and Ito, "Color Universal Design".
BLUE, ORANGE, GREEN, SKY, RED, PURPLE = "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7"
GREY = "#9aa3ad"
# `svg` replaces these colours by those of the page; nothing else has them.
INK, FAINT = "#1c2126", "#d3d9df"

DAY_MS = 86_400_000
_WIDTH = 8.6
_MAX_NAME = 32
_TICKS = 7
_DATE_TICKS = 5

_STYLE = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "figure.titlesize": 11.5,
    "figure.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "dledger",
    "svg.image_inline": True,
    "text.color": INK,
    # A dollar sign in a topic's name does not start a formula.
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.labelsize": 9,
    "ytick.color": INK,
    "ytick.labelsize": 9,
}


@contextmanager
def styled() -> Iterator[None]:
    """The look of all figures, independent of the user's matplotlibrc."""
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # The browser has letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def titled(height: float, title: str) -> Figure:
    figure = Figure(figsize=(_WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    figure.suptitle(_wrapped(title), x=0.012, ha="left")
    return figure


def _wrapped(title: str) -> str:
    return "\n".join(textwrap.wrap(title, 84))


def draw_time(axes: Axes, start: int, end: int, bins: str = "") -> None:
    """A time axis in UTC of ``[start, end)``, in milliseconds since 1970; its unit is seconds since `start`."""
    step = _time_step(end - start)
    ticks = list(range(-(-start // step) * step, end + 1, step))
    axes.set_xlim(0, (end - start) / 1000)
    axes.set_xticks([(tick - start) / 1000 for tick in ticks], _tick_labels(ticks, step))
    days = f"from {time_text(start, DAY_MS)} on" if start // DAY_MS != end // DAY_MS else time_text(start, DAY_MS)
    axes.set_xlabel(f"UTC, {days}{bins}")


_STEPS = [
    *(digit * power for power in (1, 10, 100, 1000) for digit in (1, 2, 5)),
    *(10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000),
    *(86_400_000 * digit * power for power in (1, 10, 100, 1000, 10_000, 100_000) for digit in (1, 2, 5)),
]


def _time_step(span: int) -> int:
    return next((step for step in _STEPS if span / step <= (_TICKS if step < DAY_MS else _DATE_TICKS)), _STEPS[-1])


def _tick_labels(ticks: Sequence[int], step: int) -> list[str]:
    """Times of day, with the date where the day changes; whole days as dates."""
    texts = [time_text(tick, step) for tick in ticks]
    if step >= DAY_MS:
        return texts
    times = [text.partition(" ")[2] for text in texts]
    days = [text.partition(" ")[0] for text in texts]
    return [
        f"{time}\n{day}" if number and day != days[number - 1] else time
        for number, (time, day) in enumerate(zip(times, days, strict=True))
    ]


def short_name(name: str) -> str:
    """A printable name; the middle of a long one is left out."""
    name = printable(name)
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}\u2026{name[-8:]}"


def png(figure: Figure) -> bytes:
    """A figure as a PNG image on white."""
    target = io.BytesIO()
    with styled():
        figure.savefig(target, format="png", facecolor="white", metadata={"Software": None})
    return target.getvalue()


_PROLOGUE = re.compile(r"^.*?(?=<svg )|<metadata>.*?</metadata>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_NAMES = re.compile(r"""(\bid="|href="#|url\(#)""")


def svg(figure: Figure, name: str) -> tuple[str, str]:
    """A figure's title, and an SVG element without the title, in the text colour of its page.

    Faint lines have the page's colour ``--line``. `name` makes the ids of a figure unique in the page. The same figure
    always gives the same text.
    """
    title = " ".join((figure.get_suptitle() or "").split())
    figure.suptitle("")
    target = io.StringIO()
    with styled():
        figure.savefig(target, format="svg", metadata={"Date": None})

    def adapted(tag: re.Match[str]) -> str:
        text = _NAMES.sub(rf"\1{name}-", tag[0])
        return text.replace(INK, "currentColor").replace(FAINT, f"var(--line, {FAINT})")

    # Only in tags: text between them may look like an attribute.
    opening, _, rest = _TAG.sub(adapted, _PROLOGUE.sub("", target.getvalue())).partition(">")
    labelled = opening.replace("<svg ", f'<svg role="img" aria-labelledby="{name}-title" ', 1)
    return title, f'{labelled}><title id="{name}-title">{html.escape(title)}</title>{rest.rstrip()}'
