"""Figures of what is where: files, topics and replicas. Each answers a question; its title is the answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib.ticker
import numpy as np
from matplotlib.patches import Patch

from pyspark_dledger.cli.output.quantities import (
    byte_scale,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    percent_text,
    short_name,
    time_text,
)
from pyspark_dledger.cli.report.drawing import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    draw_time,
    styled,
    titled,
)
from pyspark_dledger.cli.report.verdict import agreement_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison
    from pyspark_dledger.log.diff.comparison import Comparison

Row = dict[str, Any]

_MAX_FILES = 60
_MIN_BARS = 6
_MAX_TOPICS = 12

# Files

_KINDS = (
    ("usedBytes", "entries and messages", BLUE),
    ("blankBytes", "blank", SKY),
    ("staleBytes", "stale", ORANGE),
    ("corruptBytes", "corrupt", RED),
    ("unwrittenBytes", "unwritten", FAINT),
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
    wrong = sum(row["findings"] for row in rows)
    if wrong and not totals["corruptBytes"]:
        text += f"; {count_text(wrong, 'warning or error', 'warnings and errors')}"
    return f"{text[0].upper()}{text[1:]}{'' if wrong or totals['corruptBytes'] else '; nothing is corrupt'}."


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


# Replicas


@dataclass(frozen=True)
class Overlay:
    """Parts of the bars of replicas in another colour: place of the replica, start, and end."""

    label: str
    color: str
    parts: Sequence[tuple[int, int, int]]


def draw_replicas(
    title: str,
    bars: Sequence[tuple[str, int, int]],
    overlays: Iterable[Overlay],
    x_label: str,
    line: tuple[str, int] | None = None,
) -> Figure:
    """A bar for each replica, from start to end, with overlays, and a line for all."""
    with styled():
        figure = titled(1.5 + 0.42 * len(bars), title)
        axes = figure.subplots()
        for place, (_, start, end) in enumerate(bars):
            if start < end:
                axes.barh(place, end - start, left=start, height=0.55, color=BLUE)
        handles = [Patch(color=BLUE, label="present")]
        for overlay in overlays:
            for place, start, end in overlay.parts:
                axes.barh(place, end - start, left=start, height=0.55, color=overlay.color)
            if overlay.parts:
                handles.append(Patch(color=overlay.color, label=overlay.label))
        if line is not None:
            axes.axvline(line[1], color=GREEN, linewidth=1.6)
            handles.append(Patch(color=GREEN, label=line[0]))
        axes.set_yticks(range(len(bars)), [short_name(name) for name, *_ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1, handleheight=1)
        return figure


def _parts(found: Sequence[Any], kinds: Iterable[tuple[str, str, str]]) -> list[Overlay]:
    """The ranges of each kind (name of the field, label, colour) on each replica."""
    return [
        Overlay(
            label,
            color,
            [(n, first, last + 1) for n, item in enumerate(found) for first, last in getattr(item, name).ranges],
        )
        for name, label, color in kinds
    ]


_ENTRIES = (
    ("alone", "only on this replica", ORANGE),
    ("damaged", "damaged", RED),
    ("unclear", "cannot tell", PURPLE),
    ("stale", "stale", GREY),
)
_POSITIONS = (
    ("diverged", "of another master", ORANGE),
    ("damaged", "damaged or missing", RED),
    ("unclear", "cannot tell", PURPLE),
)


def replica_ranges(comparison: Comparison) -> Figure:
    """The indexes on each replica, and those that no other replica has."""
    standings, committed = comparison.standings, comparison.committed_index
    is_known = committed is not None and committed >= 0
    line = (f"committed up to {number_text(committed)}", committed + 1) if is_known and committed is not None else None
    bars = [(item.node, max(item.begin_index, 0), item.end_index + 1) for item in standings]
    return draw_replicas(agreement_text(comparison), bars, _parts(standings, _ENTRIES), "index", line)


def replica_positions(found: CommitLogComparison) -> Figure:
    """The positions of CommitLogs on each replica, and those that are damaged or that another master wrote."""
    bars = [(state.node, state.begin, state.end) for state in found.states]
    overlays = _parts(found.verdict.members, _POSITIONS)
    return draw_replicas(agreement_text(found), bars, overlays, "byte of the CommitLog")
