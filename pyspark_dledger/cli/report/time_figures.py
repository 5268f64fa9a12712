"""Figures of what happened when: throughput, latencies and terms. Each answers a question; its title is the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.ticker
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, LogNorm

from pyspark_dledger.cli.output.quantities import DAY_MS, count_text, duration_text, number_text, time_text
from pyspark_dledger.cli.report.drawing import BLUE, RED, draw_time, styled, titled
from pyspark_dledger.cli.report.timeline import LATENCY_ROWS, Bins, Gap, Timeline, latency_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_TERMS = 30
# The width of a label, as a fraction of the axis.
_LABEL_WIDTH = 0.08
# A title mentions gaps that are at least this fraction of the shown time.
_LONG_GAP = 0.02
_MIN_ROWS = 9
_LATENCY_LABELS = 8
_LATENCY_TICKS = (
    *(1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 10 * DAY_MS, 100 * DAY_MS),
    *(31_557_600_000, 315_576_000_000, 3_155_760_000_000, 31_557_600_000_000, 315_576_000_000_000),
)
# Units of a rate in milliseconds. Rare messages are counted by the hour or day.
_RATES = ((1_000, "second"), (60_000, "minute"), (3_600_000, "hour"), (DAY_MS, "day"))
# Without the ends, which are hard to see on a dark page or on a light one.
_AMOUNTS = ListedColormap(colormaps["viridis"](np.linspace(0.2, 0.97, 256)), "amounts")


def throughput(timeline: Timeline) -> Figure:
    """Stored messages over time, with the start of each term. Needs a message."""
    with styled():
        figure = titled(3.4, throughput_title(timeline))
        axes = figure.subplots()
        _draw_throughput(axes, timeline.counts(), timeline)
        return figure


def latency_map(timeline: Timeline) -> Figure:
    """Latencies from born to stored, over time. Needs a message with a latency."""
    with styled():
        figure = titled(3.8, latency_title(timeline))
        axes = figure.subplots()
        _draw_latencies(figure, axes, timeline.latencies(), timeline)
        return figure


def time_axis(timeline: Timeline) -> Figure:
    """Throughput, latencies and terms on one time axis. Needs a message with a latency."""
    with styled():
        most = duration_text(timeline.latency_percentile(0.99))
        title = f"{throughput_title(timeline)} 99 % of the messages were stored within {most} of their birth."
        title += _old_births(timeline)
        figure = titled(6.4, title)
        upper, lower = figure.subplots(2, 1, sharex=True)
        counts, latencies = timeline.counts(), timeline.latencies()
        _draw_throughput(upper, counts, timeline)
        _draw_latencies(figure, lower, latencies, timeline)
        upper.set_xlabel("")
        start, end = min(counts.start, latencies.start), max(counts.end, latencies.end)
        lower.set_xlim(0, (end - start) / 1000)
        return figure


def throughput_title(timeline: Timeline) -> str:
    """The throughput in a sentence or two."""
    bins = timeline.counts()
    peak = int(np.argmax(bins.messages))
    text = f"The peak is {_peak_text(int(bins.messages[peak]), bins.width)} "
    text += _moment(bins.start + peak * bins.width, bins, bins.width)
    gaps = timeline.long_gaps(_LONG_GAP)
    changes = [(term, _gap_before(gaps, time)) for term, time in timeline.changes()]
    until = {gap: f", until term {term} began" for term, gap in changes if gap is not None}
    for number, gap in enumerate(sorted({*gaps[:1], *list(until)[:1]}, reverse=True)):
        text += ", and for " if number else "; nothing was stored for "
        text += f"{duration_text(gap.length)} from {_moment(gap.start, bins)} on{until.get(gap, '')}"
    return f"{text}.{_outside(bins)}"


def _peak_text(messages: int, width: int) -> str:
    """The messages of a bin, as a rate unless that would be more than the count."""
    if 1000 <= width < messages * 1000:
        return f"{number_text(messages * 1000 / width)} messages/s at"
    return f"{count_text(messages, 'message')} within {duration_text(width)} from"


def _gap_before(gaps: Sequence[Gap], time: int) -> Gap | None:
    """The gap that contains or ends at `time`."""
    return next((gap for gap in gaps if gap.start < time <= gap.end), None)


def _moment(time: int, bins: Bins, step: int = 1) -> str:
    """A time, without its date if all bins are of one day."""
    text = time_text(time, step)
    return text.partition(" ")[2] or text if bins.start // DAY_MS == bins.end // DAY_MS else text


def latency_title(timeline: Timeline) -> str:
    """The latencies in a sentence or two."""
    half, most, slowest = (duration_text(timeline.latency_percentile(part)) for part in (0.5, 0.99, 1.0))
    if half == slowest:
        text = f"Every message was stored within {slowest} of its birth."
    else:
        text = f"Half of the messages were stored within {half} of their birth, 99 % within {most}, "
        text += f"the slowest after {slowest}."
    text += _old_births(timeline)
    if timeline.born_later:
        born_later = count_text(timeline.born_later, "message was", "messages were")
        text += f" {born_later} born after being stored: clocks differ."
    return text


def _old_births(timeline: Timeline) -> str:
    """A sentence if half of the messages are born more than a day before they were stored."""
    if timeline.latency_percentile(0.5) <= DAY_MS:
        return ""
    return " Such old births mean that clocks differ, messages were stored again, or times are not real."


def _outside(bins: Bins) -> str:
    if not bins.outside:
        return ""
    outside = count_text(bins.outside, "message is", "messages are")
    return f" {outside} not drawn: stored at times far from all others."


def _draw_throughput(axes: Axes, bins: Bins, timeline: Timeline) -> None:
    edges = np.arange(len(bins.messages) + 1) * (bins.width / 1000)
    peak = int(bins.messages.max())
    length, unit = next((each for each in _RATES if peak * each[0] >= bins.width), _RATES[-1])
    axes.stairs(bins.messages * length / bins.width, edges, fill=True, color=BLUE)
    axes.set_ylabel(f"messages per {unit}")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda value, _: number_text(value))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    draw_time(axes, bins.start, bins.end, f"; bins of {duration_text(bins.width)}")
    _draw_terms(axes, bins, timeline)


def _draw_latencies(figure: Figure, axes: Axes, bins: Bins, timeline: Timeline) -> None:
    filled = np.flatnonzero(bins.messages.any(axis=1))
    room = max(_MIN_ROWS - int(filled[-1] - filled[0]), 2) // 2
    low, high = max(int(filled[0]) - room, 0), min(int(filled[-1]) + 1 + room, LATENCY_ROWS)
    counts = np.ma.masked_equal(bins.messages[low:high], 0)
    extent = (0, (bins.end - bins.start) / 1000, low, high)
    norm = LogNorm(1, max(int(counts.max()), 2))
    image = axes.imshow(
        counts, aspect="auto", origin="lower", extent=extent, interpolation="none", norm=norm, cmap=_AMOUNTS
    )
    ticks = {latency_row(each): duration_text(each) for each in _LATENCY_TICKS}
    shown = {row: text for row, text in ticks.items() if low <= row <= high}
    step = math.ceil(len(shown) / _LATENCY_LABELS)
    axes.set_yticks(list(shown)[::step], list(shown.values())[::step])
    axes.set_ylabel("from born to stored")
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=25)
    bar.set_label("messages")
    most = int(norm.vmax or 1)
    places = [*(10**power for power in range(len(str(most)))), *([most] if most < 10 else [])]
    bar.set_ticks(places, labels=list(map(number_text, places)))
    bar.minorticks_off()
    bar.outline.set_visible(False)
    draw_time(axes, bins.start, bins.end, f"; bins of {duration_text(bins.width)}")
    _draw_terms(axes, bins, timeline)


def _draw_terms(axes: Axes, bins: Bins, timeline: Timeline) -> None:
    """A line where each term but the first begins, unless there are too many."""
    shown = [(term, time) for term, time in timeline.changes() if bins.start <= time < bins.end]
    if len(shown) > _MAX_TERMS:
        return
    labelled = -math.inf
    for term, time in sorted(shown, key=lambda item: item[1]):
        place = (time - bins.start) / 1000
        axes.axvline(place, color=RED, linewidth=1.2, linestyle=(0, (4, 2)))
        if (time - labelled) / (bins.end - bins.start) >= _LABEL_WIDTH:
            labelled = time
            text = f" term {term}"
            axes.text(place, 1.0, text, fontsize=8.5, va="bottom", transform=axes.get_xaxis_transform())
