"""Figures about a store. Each one answers a question; the answer is its title.

They use matplotlib without pyplot, which has global state. The colours suit people with colour blindness: Okabe and Ito
for kinds, viridis for amounts.
"""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib.style
import matplotlib.ticker
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from pyspark_dledger.cli.report.number_words import (
    byte_scale,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    percent_text,
    time_text,
)
from pyspark_dledger.cli.report.timeline import LATENCY_ROWS, Bins, Gap, Timeline, latency_row
from pyspark_dledger.format.json_text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyspark_dledger.log.diff.comparison import Comparison

Row = dict[str, Any]

# Okabe and Ito, "Color Universal Design".
BLUE, ORANGE, GREEN, SKY, RED, PURPLE = "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7"
GREY = "#9aa3ad"
# `svg` replaces these colours by those of the page; nothing else has them.
_INK, _FAINT = "#1c2126", "#d3d9df"

_DAY = 86_400_000
_WIDTH = 8.6
_MAX_FILES = 60
_MIN_BARS = 6
_MAX_TOPICS = 12
_MAX_TERMS = 30
# The width of a label, as a fraction of the axis.
_LABEL_WIDTH = 0.08
_MAX_NAME = 32
_TICKS = 7
_DATE_TICKS = 5
# A title mentions gaps that are at least this fraction of the shown time.
_LONG_GAP = 0.02
_MIN_ROWS = 9
_LATENCY_LABELS = 8
_LATENCY_TICKS = (
    *(1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 10 * _DAY, 100 * _DAY),
    *(31_557_600_000, 315_576_000_000, 3_155_760_000_000, 31_557_600_000_000, 315_576_000_000_000),
)
# Units of a rate in milliseconds. Rare messages are counted by the hour or day.
_RATES = ((1_000, "second"), (60_000, "minute"), (3_600_000, "hour"), (_DAY, "day"))

_STYLE = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
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
    "grid.color": _FAINT,
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "dledger",
    "svg.image_inline": True,
    "text.color": _INK,
    # A dollar sign in a topic's name does not start a formula.
    "text.parse_math": False,
    "xtick.color": _INK,
    "xtick.labelsize": 9,
    "ytick.color": _INK,
    "ytick.labelsize": 9,
}


# Without the ends, which are hard to see on a dark page or on a light one.
_AMOUNTS = ListedColormap(colormaps["viridis"](np.linspace(0.2, 0.97, 256)), "amounts")


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


# Time


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
    told = {gap: f", until term {term} began" for term, gap in changes if gap is not None}
    for number, gap in enumerate(sorted({*gaps[:1], *list(told)[:1]}, reverse=True)):
        text += ", and for " if number else "; nothing was stored for "
        text += f"{duration_text(gap.length)} from {_moment(gap.start, bins)} on{told.get(gap, '')}"
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
    return text.partition(" ")[2] or text if bins.start // _DAY == bins.end // _DAY else text


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
    if timeline.latency_percentile(0.5) <= _DAY:
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


def draw_time(axes: Axes, start: int, end: int, bins: str = "") -> None:
    """A time axis in UTC of ``[start, end)``, in milliseconds since 1970; its unit is seconds since `start`."""
    step = _time_step(end - start)
    ticks = list(range(-(-start // step) * step, end + 1, step))
    axes.set_xlim(0, (end - start) / 1000)
    axes.set_xticks([(tick - start) / 1000 for tick in ticks], _tick_labels(ticks, step))
    days = f"from {time_text(start, _DAY)} on" if start // _DAY != end // _DAY else time_text(start, _DAY)
    axes.set_xlabel(f"UTC, {days}{bins}")


_STEPS = [
    *(digit * power for power in (1, 10, 100, 1000) for digit in (1, 2, 5)),
    *(10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000),
    *(86_400_000 * digit * power for power in (1, 10, 100, 1000, 10_000, 100_000) for digit in (1, 2, 5)),
]


def _time_step(span: int) -> int:
    return next((step for step in _STEPS if span / step <= (_TICKS if step < _DAY else _DATE_TICKS)), _STEPS[-1])


def _tick_labels(ticks: Sequence[int], step: int) -> list[str]:
    """Times of day, with the date where the day changes; whole days as dates."""
    texts = [time_text(tick, step) for tick in ticks]
    if step >= _DAY:
        return texts
    times = [text.partition(" ")[2] for text in texts]
    days = [text.partition(" ")[0] for text in texts]
    return [
        f"{time}\n{day}" if number and day != days[number - 1] else time
        for number, (time, day) in enumerate(zip(times, days, strict=True))
    ]


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


# Files

_KINDS = (
    ("usedBytes", "entries and messages", BLUE),
    ("blankBytes", "blank", SKY),
    ("staleBytes", "stale", ORANGE),
    ("corruptBytes", "corrupt", RED),
    ("unwrittenBytes", "unwritten", _FAINT),
)


def bytes_by_file(segments: Iterable[Row]) -> Figure:
    """The kinds of bytes in each file; `segments` are rows of the table of that name, at least one."""
    rows = list(segments)
    with styled():
        figure = titled(3.2, bytes_title(rows))
        axes = figure.subplots()
        groups = _grouped(rows)
        places = np.arange(len(groups))
        bottom = np.zeros(len(groups))
        scale, unit = byte_scale(max(sum(row[name] or 0 for row in group for name, _, _ in _KINDS) for group in groups))
        shown = []
        for name, label, color in _KINDS:
            sizes = np.array([sum(row[name] or 0 for row in group) for group in groups]) / scale
            if sizes.any():
                axes.bar(places, sizes, bottom=bottom, width=0.86, color=color)
                shown.append(Patch(color=color, label=label))
                bottom += sizes
        damaged = [place for place, group in enumerate(groups) if any(row["corruptBytes"] for row in group)]
        if damaged:
            # Makes small damage visible.
            axes.plot(places[damaged], bottom[damaged] * 1.04, "v", color=RED, markersize=6, clip_on=False)
        axes.set_ylabel(unit)
        # The size of a file is a power of two.
        step = 2 ** math.ceil(math.log2(max(bottom.max(), 1) / 5))
        axes.yaxis.set_major_locator(matplotlib.ticker.MultipleLocator(step))
        axes.yaxis.set_major_formatter(lambda value, _: number_text(value))
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        _name_files(axes, groups)
        figure.legend(handles=shown, loc="outside lower left", ncols=len(shown), handlelength=1, handleheight=1)
        return figure


def bytes_title(rows: Sequence[Row]) -> str:
    """The kinds of bytes in all files, in a sentence."""
    totals = {name: sum(row[name] or 0 for row in rows) for name, _, _ in _KINDS}
    size = sum(totals.values())
    files = count_text(len(rows), "file")
    text = f"{percent_text(totals['usedBytes'], size)} of {bytes_text(size)} in {files} is entries and messages"
    for name, label in (("corruptBytes", "corrupt"), ("staleBytes", "stale")):
        if totals[name]:
            count = sum(bool(row[name]) for row in rows)
            text += f"; {bytes_text(totals[name])} {label}, in {count} of them"
    return f"{text[0].upper()}{text[1:]}{'' if totals['corruptBytes'] else '; nothing is corrupt'}."


def retention(segments: Iterable[Row]) -> Figure:
    """The store times of each file; `segments` are rows of the table of that name, at least one with a time."""
    rows = [row for row in segments if row["firstStoreTimestamp"] is not None and row["lastStoreTimestamp"] is not None]
    with styled():
        groups = _grouped(rows)
        spans = [(_ms(group[0]["firstStoreTimestamp"]), _ms(group[-1]["lastStoreTimestamp"])) for group in groups]
        start, end = min(min(span) for span in spans), max(max(span) for span in spans)
        figure = titled(max(2.2, min(1.5 + 0.2 * len(groups), 7)), retention_title(rows))
        axes = figure.subplots()
        for place, (group, (first, last)) in enumerate(zip(groups, spans, strict=True)):
            color = BLUE if group[0]["source"] == "dledger" else ORANGE
            length = max(last - first, (end - start) / 400, 1) / 1000
            axes.barh(place, length, left=(first - start) / 1000, height=0.7, color=color)
        draw_time(axes, start, max(end, start + 1))
        step = math.ceil(len(groups) / 16)
        names = [_file_label(group[0]["baseOffset"]) for group in groups]
        axes.set_yticks(range(0, len(groups), step), names[::step])
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_ylabel("file, by base offset")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        if {row["source"] for row in rows} == {"dledger", "commitlog"}:
            handles = [Patch(color=ORANGE, label="old CommitLog"), Patch(color=BLUE, label="DLedger")]
            figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1, handleheight=1)
        return figure


def retention_title(rows: Sequence[Row]) -> str:
    """How far back the files reach, and how fast one fills, in a sentence."""
    first = min(_ms(row["firstStoreTimestamp"]) for row in rows)
    last = max(_ms(row["lastStoreTimestamp"]) for row in rows)
    if last <= first:
        return f"All messages were stored at {time_text(first)}."
    text = f"The log holds {duration_text(last - first)} of messages, from {time_text(first, 1000)} on"
    full = sorted(_ms(row["lastStoreTimestamp"]) - _ms(row["firstStoreTimestamp"]) for row in rows[:-1])
    if full:
        text += f"; a file is full after {duration_text(max(full[len(full) // 2], 0))} at the median"
    return f"{text}."


def _grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """The files, in groups of neighbours if there are too many for one bar each."""
    together = math.ceil(len(rows) / _MAX_FILES)
    return [list(rows[start : start + together]) for start in range(0, len(rows), together)]


def _name_files(axes: Axes, groups: Sequence[Sequence[Row]]) -> None:
    step = math.ceil(len(groups) / 10)
    axes.set_xticks(range(0, len(groups), step), [_file_label(group[0]["baseOffset"]) for group in groups[::step]])
    room = max(_MIN_BARS - len(groups), 0) / 2
    axes.set_xlim(-0.6 - room, len(groups) - 0.4 + room)
    together = len(groups[0])
    axes.set_xlabel("file, by base offset" if together == 1 else f"{together} files together, by first base offset")


def _file_label(base: int) -> str:
    """A base offset in a unit that makes it short."""
    scale, unit = byte_scale(base)
    return f"{base / scale:.5g} {unit}" if base else "0"


def _ms(time: Any) -> int:
    """A timestamp of a table, or its text, in milliseconds since 1970."""
    moment = np.datetime64(time.removesuffix("Z") if isinstance(time, str) else time.replace(tzinfo=None), "ms")
    return int(moment.astype(np.int64))


# Topics


def topic_shares(topics: Iterable[Row]) -> Figure:
    """The topics with the most bytes; rows with ``topic``, ``messages`` and ``bytes`` as stored, at least one."""
    rows = sorted(topics, key=lambda row: (-row["bytes"], row["topic"]))
    total = sum(row["bytes"] for row in rows)
    shown, others = rows[:_MAX_TOPICS], rows[_MAX_TOPICS:]
    bars = [(short_name(row["topic"]), row["bytes"], BLUE) for row in shown]
    if others:
        bars.append((f"{len(others)} others", sum(row["bytes"] for row in others), GREY))
    with styled():
        figure = titled(max(2, 1.3 + 0.27 * len(bars)), topics_title(rows))
        axes = figure.subplots()
        scale, unit = byte_scale(max(size for _, size, _ in bars))
        places = range(len(bars))
        axes.barh(places, [size / scale for _, size, _ in bars], height=0.72, color=[color for *_, color in bars])
        for place, (_, size, _) in enumerate(bars):
            axes.annotate(
                percent_text(size, total),
                (size / scale, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        axes.set_yticks(places, [name for name, *_ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.margins(x=0.12)
        axes.set_xlabel(f"{unit} as stored")
        axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        return figure


def topics_title(rows: Sequence[Row]) -> str:
    """The largest topics in a sentence; `rows` are ordered by size."""
    total = sum(row["bytes"] for row in rows)
    first = f"{short_name(rows[0]['topic'])} holds {percent_text(rows[0]['bytes'], total)} of the bytes"
    if len(rows) == 1:
        return f"{first}: there is no other topic."
    held, count = 0, 0
    while held < total * 0.9:
        held += rows[count]["bytes"]
        count += 1
    return f"{first}; {count} of {len(rows)} topics hold{'s' if count == 1 else ''} 90 %."


def short_name(name: str) -> str:
    """A printable name; the middle of a long one is left out."""
    name = printable(name)
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}\u2026{name[-8:]}"


# Replicas


def replica_ranges(comparison: Comparison) -> Figure:
    """The indexes on each replica, and those that no other replica has."""
    with styled():
        standings = comparison.standings
        figure = titled(1.5 + 0.42 * len(standings), replicas_title(comparison))
        axes = figure.subplots()
        for place, item in enumerate(standings):
            if item.end_index >= 0:
                axes.barh(place, item.end_index - item.begin_index + 1, left=item.begin_index, height=0.55, color=BLUE)
            for ranges, color in ((item.alone, ORANGE), (item.damaged, RED), (item.stale, GREY)):
                for first, last in ranges.ranges:
                    axes.barh(place, last - first + 1, left=first, height=0.55, color=color)
        handles = [Patch(color=BLUE, label="present")]
        for name, label, color in (
            ("alone", "only on this replica", ORANGE),
            ("damaged", "damaged", RED),
            ("stale", "stale", GREY),
        ):
            if any(getattr(item, name).entries for item in standings):
                handles.append(Patch(color=color, label=label))
        if comparison.committed_index is not None and comparison.committed_index >= 0:
            axes.axvline(comparison.committed_index + 1, color=GREEN, linewidth=1.6)
            handles.append(Patch(color=GREEN, label=f"committed up to {number_text(comparison.committed_index)}"))
        axes.set_yticks(range(len(standings)), [short_name(item.node) for item in standings])
        axes.set_ylim(len(standings) - 0.4, -0.6)
        axes.set_xlabel("index")
        axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1, handleheight=1)
        return figure


def replicas_title(comparison: Comparison) -> str:
    """Whether the replicas agree, and how far they lag, in a sentence or two."""
    first = comparison.first_divergence
    text = (
        "No replica contradicts another"
        if first is None
        else f"The replicas differ from index {number_text(first.index)} on ({first.verdict})"
    )
    behind = [
        f"{short_name(item.node)} is {count_text(item.lag_entries, 'entry', 'entries')} behind "
        f"{short_name(comparison.foremost)}"
        for item in comparison.standings
        if item.lag_entries
    ]
    return f"{text}; {', '.join(behind) or 'none is behind'}."


# Output


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
        return text.replace(_INK, "currentColor").replace(_FAINT, f"var(--line, {_FAINT})")

    # Only in tags: text between them may look like an attribute.
    opening, _, rest = _TAG.sub(adapted, _PROLOGUE.sub("", target.getvalue())).partition(">")
    labelled = opening.replace("<svg ", f'<svg role="img" aria-labelledby="{name}-title" ', 1)
    return title, f'{labelled}><title id="{name}-title">{html.escape(title)}</title>{rest.rstrip()}'
