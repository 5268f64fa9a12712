"""Figures that only the notebooks have, in the style of those of ``dledger report``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pyspark_dledger.cli.output.quantities import bytes_text, count_text, duration_text, number_text, percent_text
from pyspark_dledger.cli.report.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, draw_time, styled, titled
from pyspark_dledger.cli.report.timeline import Timeline
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.log.salvage.plan_rows import LEFT_OUT, PlanRow, plan_rows

_MAX_BARS = 24
"""A figure has at most this many rows of bars."""


def milliseconds(times: pd.Series) -> np.ndarray:
    """Milliseconds since 1970; times without a zone, as a Spark session in UTC gives them, are UTC."""
    return pd.to_datetime(times, utc=True).astype("datetime64[ms, UTC]").astype("int64").to_numpy()


def _and(names: Sequence[str]) -> str:
    """``n0``, ``n0 and n1``, ``n0, n1 and n2``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:30]}\u2026{name[-9:]}"


# 01: an incident


def proven_ends(log: pd.DataFrame, checkpoint: int | None, committed: int | None, source: str) -> Figure:
    """How far the checkpoint and `source` prove the log committed.

    `log` has `index` and `storeTimestamp`, at least one row with both.
    """
    log = log.dropna(subset=["index", "storeTimestamp"])
    times, indexes = milliseconds(log["storeTimestamp"]), log["index"].to_numpy().astype(np.int64)
    last = int(indexes[-1])
    with styled():
        figure = titled(3.5, _proof_title(times, indexes, checkpoint, committed, source))
        axes = figure.subplots()
        start = int(times[0])
        axes.step((times - start) / 1000, indexes, where="post", color=BLUE, linewidth=1.6)
        proofs = [(checkpoint, "checkpoint", ORANGE)]
        if committed is not None and committed != checkpoint:
            proofs.append((committed, source, GREEN))
            if checkpoint is not None:
                axes.axhspan(checkpoint, committed, color=ORANGE, alpha=0.18, linewidth=0)
        for index, proof, color in proofs:
            if index is not None:
                axes.axhline(index, color=color, linewidth=1.4)
                text = f"{proof}: {index} is committed"
                axes.annotate(text, (0, index), xytext=(6, 3), textcoords="offset points", fontsize=9, va="bottom")
        axes.set_ylabel("index of the last entry")
        low = min(int(indexes[0]), *(index for index, *_ in proofs if index is not None), last)
        axes.set_ylim(low if low > last / 2 else 0, last + max((last - low) * 0.12, 1))
        axes.yaxis.set_major_formatter(lambda value, _: number_text(value))
        draw_time(axes, start, int(times[-1]) + 1)
        return figure


def _proof_title(
    times: np.ndarray, indexes: np.ndarray, checkpoint: int | None, committed: int | None, source: str
) -> str:
    last = int(indexes[-1])
    if checkpoint is None or checkpoint < 0:
        title = "The store has no checkpoint"
    elif checkpoint >= last:
        title = "The checkpoint covers the whole log"
    else:
        title = f"The checkpoint is {count_text(last - checkpoint, 'entry', 'entries')}"
        at = times[indexes == checkpoint]
        title += f" and {duration_text(int(times[-1] - at[0]))}" if len(at) else ""
        title += " before the end of the log"
    if committed is None:
        return f"{title}; no entry is proven committed."
    extent = "all entries" if committed >= last else f"entries up to {committed}"
    return f"{title}; the {source} proves {extent} committed."


def units_kept(rows: Sequence[dict[str, Any]]) -> Figure:
    """How many ConsumeQueue units each version keeps; rows have `rocketmq`, `unitsBefore` and `unitsAfter`."""
    worst = min(rows, key=lambda row: row["unitsAfter"])
    cuts = {row["rocketmq"]: row["unitsBefore"] - row["unitsAfter"] for row in rows}
    safe = [version for version, cut in cuts.items() if not cut]
    if len(safe) == len(rows):
        title = f"All versions would keep all {worst['unitsBefore']} ConsumeQueue units."
    else:
        title = (
            f"RocketMQ {worst['rocketmq']} would delete {cuts[worst['rocketmq']]} of {worst['unitsBefore']} "
            f"ConsumeQueue units at its start; {_and(safe) if safe else 'no version'} would keep all."
        )
    with styled():
        figure = titled(1.5 + 0.34 * len(rows), title)
        axes = figure.subplots()
        for place, row in enumerate(rows):
            cut = cuts[row["rocketmq"]]
            axes.barh(place, row["unitsAfter"], height=0.62, color=BLUE)
            axes.barh(place, cut, left=row["unitsAfter"], height=0.62, color=ORANGE)
            text = f"{cut} deleted, then dispatched again" if cut else "all kept"
            at = (row["unitsBefore"], place)
            axes.annotate(text, at, xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
        before = rows[0]["unitsBefore"]
        axes.set_yticks(range(len(rows)), [f"RocketMQ {row['rocketmq']}" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, before * 1.62)
        axes.set_xticks([tick for tick in MaxNLocator(5, integer=True).tick_values(0, before) if 0 <= tick <= before])
        axes.spines["bottom"].set_bounds(0, before)
        axes.set_xlabel("ConsumeQueue units", loc="left")
        return figure


def truncated_by_recovery(segments: pd.DataFrame, damage: tuple[int, int], end: int, lost: tuple[int, int]) -> Figure:
    """What a restart keeps and truncates of the DLedger files.

    `damage` are the first and last position of the damaged bytes. `end` is where the log would end. `lost` are the
    first and last committed index that would be gone.
    """
    count = lost[1] - lost[0] + 1
    size = damage[1] - damage[0] + 1
    files = segments[segments["source"] == "dledger"]
    files = files.assign(end=files["baseOffset"] + files["usedBytes"] + files["corruptBytes"])
    cut = sum(max(file.end - max(file.baseOffset, end), 0) for file in files.itertuples())
    title = (
        f"{size:,} damaged bytes would cost {count} committed messages: a restart truncates {bytes_text(cut)} from "
        f"index {lost[0]} on, and {percent_text(cut - size, cut)} of them are intact."
    )
    shown = list(files.tail(_MAX_BARS).itertuples())
    with styled():
        figure = titled(1.6 + 0.2 * max(len(shown), 4), title)
        axes = figure.subplots()
        for place, file in enumerate(shown):
            base, kept = file.baseOffset, max(min(file.end, end) - file.baseOffset, 0)
            axes.barh(place, kept / 1024, height=0.66, color=BLUE)
            axes.barh(place, (file.end - base - kept) / 1024, left=kept / 1024, height=0.66, color=ORANGE)
            if base <= damage[0] < file.end:
                axes.barh(place, size / 1024, left=(damage[0] - base) / 1024, height=0.66, color=RED)
        axes.set_yticks(range(len(shown)), [f"{file.baseOffset:,}" for file in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_ylabel("file, by base offset")
        axes.set_xlabel("KiB in the file")
        handles = [
            Patch(color=BLUE, label="kept"),
            Patch(color=RED, label="damaged"),
            Patch(color=ORANGE, label="intact, but truncated"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=3, handlelength=1, handleheight=1)
        return figure


# 02: replicas


def histories(logs: dict[str, pd.DataFrame], branch: int) -> Figure:
    """When each replica's entries were stored; `branch` is the first index at which replicas differ.

    Each of `logs` has `index`, `term` and `storeTimestamp`, and at least two have an entry at `branch`. Replicas with
    the same term and time at `branch` share a line.
    """
    versions: dict[tuple[int, int], list[str]] = {}
    for name, log in logs.items():
        first = log[log["index"] == branch]
        if len(first):
            key = int(milliseconds(first["storeTimestamp"])[0]), int(first["term"].iloc[0])
            versions.setdefault(key, []).append(name)
    # Of each version the replica with the most entries, the oldest version first.
    lines = []
    for (time, term), names in sorted(versions.items()):
        log = max((logs[name] for name in names), key=len)
        lines.append((names, time, term, log[log["index"] >= branch]))
    holders = [name for name, log in logs.items() if (log["index"] < branch).any()]
    shared = max((log[log["index"] < branch] for log in logs.values()), key=len)
    parts = [(holders, shared, int(shared["term"].iloc[0]), GREEN)] if holders else []
    parts += [
        (names, log, term, color)
        for (names, _, term, log), color in zip(lines, (ORANGE, BLUE, PURPLE, SKY, RED), strict=False)
    ]
    every = np.concatenate([milliseconds(log["storeTimestamp"]) for _, log, _, _ in parts])
    margin = (every.max() - every.min()) // 40 + 1
    start, end = int(every.min() - margin), int(every.max() + margin)
    with styled():
        figure = titled(3.9, _histories_title(lines, branch))
        axes = figure.subplots()
        axes.axhline(branch - 0.5, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=0)
        highest = max(int(log["index"].max()) for _, log, _, _ in parts)
        for names, log, term, color in parts:
            seconds, indexes = (milliseconds(log["storeTimestamp"]) - start) / 1000, log["index"].to_numpy()
            axes.plot(seconds, indexes, "o", color=color, markersize=4, markeredgewidth=0)
            text = f"{_and([_short(name) for name in names])}:\n{indexes[0]} to {indexes[-1]}, term {term}"
            is_left = seconds[-1] * 2000 < end - start
            axes.annotate(
                text,
                (seconds[-1], indexes[-1]),
                xytext=(10 if is_left else -14, 2 if is_left else -2),
                textcoords="offset points",
                ha="left" if is_left else "right",
                va="bottom" if indexes[-1] < highest else "top",
            )
        lowest = min(int(log["index"].min()) for _, log, _, _ in parts)
        axes.set_ylabel("index")
        axes.set_ylim(lowest if lowest > highest / 2 else 0, None)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        draw_time(axes, start, end)
        return figure


def _histories_title(lines: Sequence[tuple[list[str], int, int, pd.DataFrame]], branch: int) -> str:
    if len(lines) == 1:
        return f"From index {branch} on the replicas differ in bytes, not in term or time."
    texts = []
    for names, time, term, log in lines:
        has = "has" if len(names) == 1 else "have"
        text = (
            f"{_and([_short(name) for name in names])} {has} {count_text(len(log), 'entry', 'entries')} of term {term}"
        )
        texts.append(f"{text}, the first stored {duration_text(time - lines[0][1])} later" if texts else text)
    return f"From index {branch} on the replicas differ: {'; '.join(texts)}."


# 03: log and ConsumeQueue


def unreachable(messages: pd.DataFrame) -> Figure:
    """Which messages no consumer gets; `messages` has `topic`, `queueId`, `storeTimestamp` and `isMissing`."""
    by_queue = messages.groupby(["topic", "queueId"])["isMissing"].sum().sort_values(ascending=False, kind="stable")
    worst = by_queue.index[0]
    count = int(by_queue.sum())
    title = (
        f"{number_text(count)} of {count_text(len(messages), 'message')} "
        f"{'is' if count == 1 else 'are'} in the log and reach{'es' if count == 1 else ''} no consumer; "
        f"{number_text(int(by_queue.iloc[0]))} of them belong to queue {worst[1]} of {_short(worst[0])}."
    )
    queues = sorted(by_queue.index[:_MAX_BARS])
    with styled():
        figure = titled(1.5 + 0.24 * max(len(queues), 3), title)
        axes = figure.subplots()
        times = milliseconds(messages["storeTimestamp"])
        start, end = int(times.min()), int(times.max())
        for is_missing, color, height in ((False, BLUE, 0.52), (True, RED, 0.86)):
            for place, (topic, queue) in enumerate(queues):
                part = messages[
                    (messages["isMissing"] == is_missing)
                    & (messages["topic"] == topic)
                    & (messages["queueId"] == queue)
                ]
                seconds = (milliseconds(part["storeTimestamp"]) - start) / 1000
                alpha = 1 if is_missing else 0.45
                axes.vlines(seconds, place - height / 2, place + height / 2, color=color, linewidth=0.8, alpha=alpha)
        axes.set_yticks(range(len(queues)), [f"{_short(topic)} {queue}" for topic, queue in queues])
        axes.set_ylim(len(queues) - 0.4, -0.6)
        draw_time(axes, start, end + 1)
        handles = [Patch(color=BLUE, label="in its queue"), Patch(color=RED, label="in the log only")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1, handleheight=1)
        return figure


def lags(consumers: pd.DataFrame) -> Figure:
    """The lag of each consumer group, by topic; `consumers` has rows of the table of that name, at least one lag."""
    consumers = consumers.dropna(subset=["lag"])
    by_topic = consumers.groupby(["consumerGroup", "topic"])[["lag", "consumerOffset"]].sum().reset_index()
    by_group = by_topic.groupby("consumerGroup")["lag"].sum().sort_values(ascending=False)
    texts = [f"{_short(group)} {number_text(lag) if lag else 'none'}" for group, lag in by_group.iloc[:3].items()]
    more = len(by_group) - len(texts)
    title = f"Messages still to read: {', '.join(texts)}{f', and {more} more groups' if more else ''}."
    rows = by_topic.sort_values(["lag", "consumerOffset"], ascending=False).reset_index(drop=True).head(_MAX_BARS)
    with styled():
        figure = titled(1.6 + 0.3 * len(rows), title)
        axes = figure.subplots()
        for place, row in rows.iterrows():
            axes.barh(place, row["consumerOffset"], height=0.62, color=BLUE)
            axes.barh(place, row["lag"], left=row["consumerOffset"], height=0.62, color=ORANGE)
            text = number_text(row["lag"]) if row["lag"] else "0"
            at = (row["consumerOffset"] + row["lag"], place)
            axes.annotate(text, at, xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(
            range(len(rows)), [f"{_short(row.consumerGroup)}: {_short(row.topic)}" for row in rows.itertuples()]
        )
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("messages in the queues of the topic")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        handles = [Patch(color=BLUE, label="read"), Patch(color=ORANGE, label="lag")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1, handleheight=1)
        return figure


# 04: time


_SHOWN_EVENTS = (
    *("burst", "held", "goes on", "continues", "nobody"),
    *("killed", "new leader", "started again", "analytics leaves"),
)
_EVENT_WORDS = {
    "is held (SIGSTOP)": "is suspended (SIGSTOP)",
    "goes on (SIGCONT)": "continues (SIGCONT)",
    "nobody produces: 0 a second": "the producer is silent",
    "takes messages as the new leader": "is the new leader",
}


def log_and_events(timeline: Timeline, events: pd.DataFrame) -> Figure:
    """The log's throughput with what was done to the group; `events` has `time` and `what`."""
    events = events.assign(ms=milliseconds(events["time"]))
    bins = timeline.counts()
    killed = int(events["ms"][events["what"].str.contains("killed")].iloc[0])
    gap = next(gap for gap in timeline.gaps if abs(gap.start - killed) < gap.length)
    title = (
        f"The next message was stored {duration_text(gap.end - killed)} after the kill; the log shows a pause of "
        f"{duration_text(gap.length)}."
    )
    marks = events[[any(word in what for word in _SHOWN_EVENTS) for what in events["what"]]]
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
                _event_text(what),
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


def _event_text(what: str) -> str:
    for recorded, text in _EVENT_WORDS.items():
        what = what.replace(recorded, text)
    return what


# 05: a salvage


def salvage_ranges(plan: SalvagePlan) -> Figure:
    """Where each source has no intact copy, and which one each range of the restored log comes from.

    Thin ranges are drawn a little wider, so that they can be seen.
    """
    rows = [row for row in plan_rows(plan) if row.action != LEFT_OUT]
    start, end = min(row.pos for row in rows), max(row.pos + row.size for row in rows)
    least = (end - start) / 300
    names = list(plan.names)
    colors = dict(zip(names, (BLUE, GREEN, PURPLE, SKY, ORANGE), strict=False))
    donors = {row.donor for row in rows}
    damaged = {name: [row for row in rows if name not in row.sources] for name in names}
    with styled():
        figure = titled(1.7 + 0.36 * len(names), _salvage_title(damaged, rows))
        axes = figure.subplots()
        for place, name in enumerate(names):
            axes.barh(
                place, (end - start) / 1024, height=0.6, left=start / 1024, color=colors.get(name, GREY), alpha=0.3
            )
            for row in damaged[name]:
                axes.barh(place, max(row.size, least) / 1024, height=0.6, left=row.pos / 1024, color=RED)
        for row in sorted(rows, key=lambda row: -row.size):
            color = colors.get(row.donor, GREY) if row.donor is not None else RED
            axes.barh(len(names), max(row.size, least) / 1024, height=0.6, left=row.pos / 1024, color=color)
        axes.set_yticks(range(len(names) + 1), [*map(_short, names), "result"])
        axes.set_ylim(len(names) + 0.6, -0.6)
        axes.set_xlabel("position in the log, KiB; white in the result: the unused end of a file")
        handles = [
            Patch(color=RED, label="not intact"),
            *(Patch(color=colors[n], label=f"from {_short(n)}") for n in sorted(colors.keys() & donors)),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=4, handlelength=1, handleheight=1)
        return figure


def _salvage_title(damaged: dict[str, list[PlanRow]], rows: Sequence[PlanRow]) -> str:
    parts = [f"{_short(name)} in {count_text(len(found), 'range')}" for name, found in damaged.items() if found]
    if not parts:
        return "Each replica has the whole log intact."
    lost = sum(row.donor is None for row in rows)
    outcome = f"{count_text(lost, 'range')} is intact nowhere" if lost == 1 else f"{lost} ranges are intact nowhere"
    return f"Not intact: {_and(parts)}; {outcome if lost else 'each range is intact on another replica'}."
