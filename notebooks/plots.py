"""Figures that only the notebooks need, in the look of those of ``dledger report``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pyspark_dledger.cli.report.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    draw_time,
    styled,
    titled,
)
from pyspark_dledger.cli.report.number_words import bytes_text, duration_text, number_text, percent_text
from pyspark_dledger.cli.report.timeline import Timeline


def _milliseconds(times: pd.Series) -> np.ndarray:
    """Milliseconds since 1970; times without a zone, as Spark gives them in a session of that zone, are UTC."""
    return pd.to_datetime(times, utc=True).astype("datetime64[ms, UTC]").astype("int64").to_numpy()


# 01: an incident


def proven_ends(log: pd.DataFrame, checkpoint: int, queues: int) -> Figure:
    """How far checkpoint and ConsumeQueue prove the log committed; `log` has `index` and `storeTimestamp`."""
    log = log.dropna(subset=["index", "storeTimestamp"])
    times, indexes = _milliseconds(log["storeTimestamp"]), log["index"].to_numpy()
    last = int(indexes[-1])
    behind = times[-1] - times[indexes == checkpoint][0]
    title = (
        f"When the broker was killed, its checkpoint was {last - checkpoint} entries and {duration_text(behind)} "
        f"behind the log; the ConsumeQueue proves {'all' if queues == last else f'up to {queues}'} of them committed."
    )
    with styled():
        figure = titled(3.5, title)
        axes = figure.subplots()
        start = int(times[0])
        seconds = (times - start) / 1000
        axes.axhspan(checkpoint, queues, color=ORANGE, alpha=0.18, linewidth=0)
        axes.step(seconds, indexes, where="post", color=BLUE, linewidth=1.6)
        for index, proof, color in ((checkpoint, "checkpoint", ORANGE), (queues, "ConsumeQueue", GREEN)):
            axes.axhline(index, color=color, linewidth=1.4)
            text = f"{proof}: {index} is committed"
            axes.annotate(text, (0, index), xytext=(6, 3), textcoords="offset points", fontsize=9, va="bottom")
        axes.set_ylabel("index of the last entry")
        axes.set_ylim(0, last * 1.12)
        axes.yaxis.set_major_formatter(lambda value, _: number_text(value))
        draw_time(axes, start, int(times[-1]) + 1)
        return figure


def units_kept(rows: Sequence[dict[str, Any]]) -> Figure:
    """How many ConsumeQueue units each version keeps; rows have `rocketmq`, `unitsBefore` and `unitsAfter`."""
    worst = min(rows, key=lambda row: row["unitsAfter"])
    safe = [row["rocketmq"] for row in rows if row["unitsAfter"] == row["unitsBefore"]]
    title = (
        f"On this store {worst['rocketmq']} would throw away {worst['unitsBefore'] - worst['unitsAfter']} of "
        f"{worst['unitsBefore']} ConsumeQueue units before it serves; {_and(safe) if safe else 'no version'} would "
        "keep all."
    )
    with styled():
        figure = titled(1.5 + 0.34 * len(rows), title)
        axes = figure.subplots()
        for place, row in enumerate(rows):
            cut = row["unitsBefore"] - row["unitsAfter"]
            axes.barh(place, row["unitsAfter"], height=0.62, color=BLUE)
            axes.barh(place, cut, left=row["unitsAfter"], height=0.62, color=ORANGE)
            text = f"{cut} thrown away, then dispatched again" if cut else "all kept"
            axes.annotate(
                text, (row["unitsBefore"], place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9
            )
        axes.set_yticks(range(len(rows)), [f"RocketMQ {row['rocketmq']}" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, rows[0]["unitsBefore"] * 1.62)
        axes.set_xticks(np.arange(0, rows[0]["unitsBefore"] + 1, 200))
        axes.spines["bottom"].set_bounds(0, rows[0]["unitsBefore"])
        axes.set_xlabel("ConsumeQueue units", loc="left")
        return figure


def cut_by_recovery(segments: pd.DataFrame, damage: tuple[int, int], keeps: int, lost: tuple[int, int]) -> Figure:
    """What a restart keeps and cuts of the DLedger files.

    `damage` are the first and last position of the damaged bytes, `keeps` where the log would end, `lost` the committed
    indexes that would be gone.
    """
    count = lost[1] - lost[0] + 1
    size = damage[1] - damage[0] + 1
    files = segments[segments["source"] == "dledger"]
    ends = files["baseOffset"] + files["usedBytes"] + files["corruptBytes"]
    cut = sum(max(end - max(base, keeps), 0) for base, end in zip(files["baseOffset"], ends, strict=True))
    title = (
        f"{size:,} damaged bytes would cost {count} committed messages: a restart cuts {bytes_text(cut)} from index "
        f"{lost[0]} on, {percent_text(cut - size, cut)} of which is intact."
    )
    with styled():
        figure = titled(3.6, title)
        axes = figure.subplots()
        for place, (base, end) in enumerate(zip(files["baseOffset"], ends, strict=True)):
            kept = max(min(end, keeps) - base, 0)
            axes.barh(place, kept / 1024, height=0.66, color=BLUE)
            axes.barh(place, (end - base - kept) / 1024, left=kept / 1024, height=0.66, color=ORANGE)
            if base <= damage[0] < end:
                axes.barh(place, size / 1024, left=(damage[0] - base) / 1024, height=0.66, color=RED)
        axes.set_yticks(range(len(files)), [f"{base:,}" for base in files["baseOffset"]])
        axes.set_ylim(len(files) - 0.4, -0.6)
        axes.set_ylabel("file, by base offset")
        axes.set_xlabel("KiB in the file")
        handles = [
            Patch(color=BLUE, label="kept"),
            Patch(color=RED, label="damaged"),
            Patch(color=ORANGE, label="intact, and cut"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=3, handlelength=1, handleheight=1)
        return figure


# 02: replicas


def histories(logs: dict[str, pd.DataFrame], branch: int) -> Figure:
    """When each replica's entries were stored; `branch` is the first index at which two hold different ones.

    Each of `logs` has `index`, `term` and `storeTimestamp`. Replicas that hold the same share a line.
    """
    branches: dict[tuple[int, ...], list[str]] = {}
    for name, log in logs.items():
        branches.setdefault(tuple(_milliseconds(log["storeTimestamp"])), []).append(name)
    first, second = sorted(branches, key=lambda times: times[branch])
    title = (
        f"{_and(branches[first])} took {len(first) - branch} messages from index {branch} on alone; "
        f"{duration_text(second[branch] - first[branch])} later {_and(branches[second])} went on from the same index, "
        f"in term {logs[branches[second][0]]['term'].iloc[branch]}."
    )
    start, end = min(first + second), max(first + second)
    margin = (end - start) // 40
    start, end = int(start - margin), int(end + margin)
    parts = [(first[:branch], 0, sorted(logs), GREEN), (first[branch:], branch, branches[first], ORANGE)]
    parts.append((second[branch:], branch, branches[second], BLUE))
    with styled():
        figure = titled(3.9, title)
        axes = figure.subplots()
        axes.axhline(branch - 0.5, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=0)
        for times, index, names, color in parts:
            seconds = (np.array(times) - start) / 1000
            indexes = np.arange(index, index + len(times))
            axes.plot(seconds, indexes, "o", color=color, markersize=4, markeredgewidth=0)
            term = logs[names[0]]["term"].iloc[index]
            text = f"{_and(names)}:\n{indexes[0]} to {indexes[-1]}, term {term}"
            is_left = seconds[-1] * 2000 < end - start
            axes.annotate(
                text,
                (seconds[-1], indexes[-1]),
                xytext=(10 if is_left else -14, 2 if is_left else -2),
                textcoords="offset points",
                ha="left" if is_left else "right",
                va="bottom" if index + len(times) < len(second) else "top",
            )
        axes.set_ylabel("index")
        axes.set_ylim(0, None)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        draw_time(axes, start, end)
        return figure


def _and(names: Sequence[str]) -> str:
    """``n0``, ``n0 and n1``, ``n0, n1 and n2``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# 03: log and ConsumeQueue


def unreachable(messages: pd.DataFrame) -> Figure:
    """Which messages no consumer gets; `messages` has `topic`, `queueId`, `storeTimestamp` and `isMissing`."""
    messages = messages.sort_values(["topic", "queueId", "storeTimestamp"])
    queues = list(messages.groupby(["topic", "queueId"]).groups)
    missing = messages[messages["isMissing"]]
    by_queue = missing.groupby(["topic", "queueId"]).size()
    worst = by_queue.idxmax()
    title = (
        f"{len(missing)} of {number_text(len(messages))} messages are in the log and reach no consumer; "
        f"{by_queue.max()} of them are of queue {worst[1]} of {worst[0]}."
    )
    with styled():
        figure = titled(1.5 + 0.24 * len(queues), title)
        axes = figure.subplots()
        times = _milliseconds(messages["storeTimestamp"])
        start, end = int(times.min()), int(times.max())
        for is_missing, color, height in ((False, BLUE, 0.52), (True, RED, 0.86)):
            part = messages[messages["isMissing"] == is_missing]
            places = [queues.index(queue) for queue in zip(part["topic"], part["queueId"], strict=True)]
            seconds = (_milliseconds(part["storeTimestamp"]) - start) / 1000
            low, high = np.array(places) - height / 2, np.array(places) + height / 2
            axes.vlines(seconds, low, high, color=color, linewidth=0.8, alpha=1 if is_missing else 0.45)
        axes.set_yticks(range(len(queues)), [f"{topic} {queue}" for topic, queue in queues])
        axes.set_ylim(len(queues) - 0.4, -0.6)
        draw_time(axes, start, end + 1)
        handles = [Patch(color=BLUE, label="in its queue"), Patch(color=RED, label="in the log only")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1, handleheight=1)
        return figure


def lags(consumers: pd.DataFrame) -> Figure:
    """How far each consumer group is behind, by topic; `consumers` is the table of that name."""
    consumers = consumers.dropna(subset=["lag"])
    by_topic = consumers.groupby(["consumerGroup", "topic"])[["lag", "consumerOffset"]].sum().reset_index()
    by_group = by_topic.groupby("consumerGroup")["lag"].sum().sort_values(ascending=False)
    worst, *others = by_group.index
    title = ", ".join(
        [f"{worst} has {number_text(by_group[worst])} messages still to read"]
        + [f"{group} {number_text(by_group[group]) if by_group[group] else 'none'}" for group in others]
    )
    rows = by_topic.sort_values(["lag", "consumerOffset"], ascending=False).reset_index(drop=True)
    with styled():
        figure = titled(1.6 + 0.3 * len(rows), f"{title}.")
        axes = figure.subplots()
        for place, row in rows.iterrows():
            axes.barh(place, row["consumerOffset"], height=0.62, color=BLUE)
            axes.barh(place, row["lag"], left=row["consumerOffset"], height=0.62, color=ORANGE)
            axes.annotate(
                number_text(row["lag"]) if row["lag"] else "0",
                (row["consumerOffset"] + row["lag"], place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_yticks(range(len(rows)), [f"{row.consumerGroup}: {row.topic}" for row in rows.itertuples()])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("messages in the queues of the topic")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        handles = [Patch(color=BLUE, label="read"), Patch(color=ORANGE, label="lag")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1, handleheight=1)
        return figure


# 04: time


_DONE = ("burst", "held", "goes on", "nobody", "killed", "new leader", "started again", "analytics leaves")


def told_and_done(timeline: Timeline, done: pd.DataFrame) -> Figure:
    """The log's throughput with what was really done to the group; `done` has `time` and `what`."""
    done = done.assign(ms=_milliseconds(done["time"]))
    bins = timeline.counts()
    killed = int(done["ms"][done["what"].str.contains("killed")].iloc[0])
    gap = next(gap for gap in timeline.gaps if abs(gap.start - killed) < gap.length)
    title = (
        f"From the kill to the next message that was stored {duration_text(gap.end - killed)} went by; the log alone "
        f"shows a pause of {duration_text(gap.length)}."
    )
    marks = done[[any(word in what for word in _DONE) for what in done["what"]]]
    height = 0.2 * len(marks)
    with styled():
        figure = titled(3 + height, title)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, height])
        width = bins.width / 1000
        edges = np.arange(len(bins.messages) + 1) * width
        upper.stairs(bins.messages / width, edges, fill=True, color=BLUE)
        upper.set_ylabel("messages per second")
        upper.set_ylim(0, None)
        upper.grid(axis="y")
        upper.set_axisbelow(True)
        upper.tick_params(bottom=False)
        for place, (ms, what) in enumerate(zip(marks["ms"], marks["what"], strict=True)):
            at = (ms - bins.start) / 1000
            upper.axvline(at, color=GREY, linewidth=0.8)
            lower.plot((at, at), (-1, place), color=GREY, linewidth=0.8, clip_on=False, zorder=0)
            lower.plot(at, place, "o", color=RED, markersize=4.5)
            is_late = at > edges[-1] * 0.55
            lower.annotate(
                what,
                (at, place),
                xytext=(-8 if is_late else 8, 0),
                textcoords="offset points",
                ha="right" if is_late else "left",
                va="center",
                fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
        lower.set_ylim(len(marks) - 0.4, -0.9)
        lower.set_yticks([])
        lower.spines["left"].set_visible(False)
        draw_time(lower, bins.start, bins.end)
        return figure
