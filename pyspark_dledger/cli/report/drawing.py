"""The look of all figures, their time axis, and figures as PNG and SVG.

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
from typing import TYPE_CHECKING

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pyspark_dledger.cli.output.quantities import DAY_MS, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito, "Color Universal Design".
BLUE, ORANGE, GREEN, SKY, RED, PURPLE = "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7"
GREY = "#9aa3ad"
# `svg` replaces these colours by those of the page; nothing else has them.
INK, FAINT = "#1c2126", "#d3d9df"

_WIDTH = 8.6
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
