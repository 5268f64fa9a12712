"""The page of a report: one HTML document without scripts or links to other files.

Text of a store is not trusted: the template escapes it, and invisible characters and those that change the direction of
text are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from pyspark_dledger import __version__
from pyspark_dledger.cli.output.quantities import bytes_text, duration_text, number_text, percent_text
from pyspark_dledger.cli.output.rows import Row, cell, plain_time
from pyspark_dledger.cli.report import MARKER, drawing, store_figures, time_figures
from pyspark_dledger.cli.report.facts import Facts, Listed
from pyspark_dledger.cli.report.page_tables import COLUMNS, replica_tables
from pyspark_dledger.cli.report.timeline import Timeline
from pyspark_dledger.cli.report.verdict import member_section
from pyspark_dledger.cli.stores.diff_text import difference_sentences
from pyspark_dledger.common.plurals import enumerated
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.log.verify.findings import CODES, SEVERITIES
from pyspark_dledger.rocketmq.check.store_facts import MAX_EXAMPLES
from pyspark_dledger.rocketmq.tables.audit_table import AUDIT_CODES

_LONG_GAP = 0.005
_STATE_NAMES = {
    "node": "Node",
    "dialect": "Format",
    "beginIndex": "First index",
    "endIndex": "Last index",
    "endTerm": "Last term",
    "committedIndex": "Committed index",
    "committedFrom": "Proof",
    "checkpointCommittedIndex": "Committed index in the checkpoint",
    "currTerm": "Current term",
    "voteLeader": "Voted for",
    "dividedCommitlogOffset": "DLedger begins at byte",
    "minOffset": "First byte",
    "maxOffset": "End of the log, byte",
    "dataFileSize": "Size of a data file",
    "indexFileSize": "Size of an index file",
    "abort": "Abort file",
    "consumeQueueEnd": "End of the ConsumeQueues, byte",
    "confirmOffset": "Confirmed up to byte",
}
_DETAILS = {"state": "State", "findings": "Findings", "restart": "Restart", "files": "Files"}
_SIZES = ("dataFileSize", "indexFileSize")
# -1 means none.
_NONE_IS_MINUS_1 = ("beginIndex", "endIndex", "endTerm", "dividedCommitlogOffset", "consumeQueueEnd")
_OF_DLEDGER = frozenset(
    ("node", "beginIndex", "endIndex", "endTerm", "committedIndex", "committedFrom", "checkpointCommittedIndex")
) | frozenset(("currTerm", "voteLeader", "dividedCommitlogOffset", "indexFileSize"))


def shown(value: Any, kind: str) -> str:
    """A value as the page shows it. Counts have separators of thousands, ids do not."""
    if kind == "bytes":
        return bytes_text(value) if value else "0"
    if kind == "ms":
        return duration_text(value)
    if kind == "time":
        return str(value).replace("T", " ").removesuffix("Z")
    if kind == "rate" and not value:
        return "under 0.001"
    if kind in ("int", "rate"):
        return number_text(value)
    return cell(value)


def _printable(value: object) -> object:
    """A text of a store without characters that nobody sees, or that change others. Drawings are made of such texts."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(facts: Facts, made: str) -> str:
    """The page. `made` is the time, in the only line in which two pages of the same facts differ."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=False, undefined=jinja2.StrictUndefined, finalize=_printable
    )
    environment.filters["shown"] = shown
    environment.filters["with_values"] = lambda columns, rows: [each for each in columns if each.has_values(rows)]
    template = environment.from_string((files(__package__) / "template.html").read_text("utf-8"))
    members = [_member(store, number, len(facts.members)) for number, store in enumerate(facts.members)]
    return template.render(
        marker=MARKER,
        kind="Group report" if facts.others else "Store report",
        name=printable(", ".join(member["node"] for member in members) if facts.others else facts.path),
        about=_about(facts),
        made=f"Made by dledger report of pyspark_dledger {__version__}{made}.",
        facts=_with_shares(facts),
        sections=_sections(facts, members),
        verdicts=[*facts.group_verdicts, *([] if facts.others else facts.verdicts)],
        members=members,
        columns=COLUMNS,
        gaps=_gaps(facts.timeline),
        groups=[row for row in facts.consumers.groups if row["queues"]],
        idle_groups=", ".join(printable(row["consumerGroup"]) for row in facts.consumers.groups if not row["queues"]),
        replica_tables=replica_tables(facts),
        replica_notes=_replica_notes(facts),
        figures=_figures(facts),
    )


def _member(facts: Facts, number: int, count: int) -> dict[str, Any]:
    """What the page shows of one store; `number` is its place among `count`."""
    prefix = f"{member_section(number)}-" if count > 1 else ""
    return {
        "id": member_section(number),
        "prefix": prefix,
        "node": facts.name,
        "path": printable(facts.path),
        "facts": facts,
        "verdicts": [replace(each, section=_of_member(prefix, each.section)) for each in facts.verdicts],
        "state": _state(facts),
        "findings": _findings(facts),
        "recoveries": _recoveries(facts),
        "recovery_notes": _recovery_notes(facts),
        "audits": _audits(facts.audit),
        "figures": _file_figures(facts, prefix),
    }


def _of_member(prefix: str, section: str) -> str:
    """The id of a section of a member; consumers have one for the group."""
    return section if section == "consumers" else prefix + section


def _about(facts: Facts) -> str:
    if facts.others:
        return f"{facts.kind}, {len(facts.members)} members compared"
    return facts.kind if facts.state["node"] is None else f"{facts.kind}, node {printable(str(facts.state['node']))}"


def _sections(facts: Facts, members: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The ids and titles of the contents: details of one store, or a part for each member of a group."""
    wanted = [("verdict", "Verdict", True), ("replicas", "Replicas", bool(facts.others))]
    if facts.others:
        wanted += [(member["id"], f"Member {printable(member['node'])}", True) for member in members]
    else:
        wanted += [(name, title, True) for name, title in _DETAILS.items()]
        wanted.append(("queues", "ConsumeQueue", facts.is_broker))
    wanted += [
        ("time", "Time and terms", bool(facts.timeline.messages or facts.terms)),
        ("topics", "Topics", bool(facts.topics)),
        ("consumers", "Consumers", facts.is_broker),
    ]
    return [(name, title) for name, title, is_there in wanted if is_there]


def _state(facts: Facts) -> list[tuple[str, str | None]]:
    state = facts.state
    is_plain = state["dialect"] == "commitlog"
    return [
        (title, _state_value(name, state[name]))
        for name, title in _STATE_NAMES.items()
        if not (is_plain and name in _OF_DLEDGER)
        and (facts.is_broker or name != "abort")
        and (is_plain or name not in ("consumeQueueEnd", "confirmOffset"))
        and (state["epochs"] or name != "confirmOffset")
    ]


def _state_value(name: str, value: Any) -> str | None:
    if value is None or (name in _NONE_IS_MINUS_1 and value == -1):
        return None
    if name in _SIZES:
        return bytes_text(value)
    if name == "abort":
        return "exists" if value else "none"
    if name in ("endTerm", "currTerm") or not isinstance(value, int):
        return printable(str(value))
    return number_text(value)


def _with_shares(facts: Facts) -> Facts:
    total = sum(row["bytes"] for row in facts.topics)
    topics = [{**row, "share": percent_text(row["bytes"], total)} for row in facts.topics]
    return replace(facts, topics=topics)


def _findings(facts: Facts) -> list[Row]:
    """The findings by severity, the worst first, then in the order of the catalogue."""
    return [
        {
            "code": code,
            "severity": severity,
            "count": facts.findings.counts[code],
            "text": CODES[code].text,
            "java_does": CODES[code].java_does,
            "where": _where(facts.findings, code),
            "rows": facts.findings.examples[code],
        }
        for severity in reversed(SEVERITIES)
        for code in CODES
        if facts.findings.counts[code] and CODES[code].severity == severity
    ]


def _replica_notes(facts: Facts) -> list[str]:
    """What the comparison found, in sentences; the verdict and the tables have the rest."""
    found = facts.commit_logs
    texts = list(difference_sentences(found, with_points=False)) if found is not None else []
    return [text.strip() for text in (*texts, *([] if facts.is_plain else facts.comparison_sentences))]


def _gaps(timeline: Timeline) -> list[Row]:
    """The gaps that are long compared with the time span of the log."""
    gaps = timeline.long_gaps(_LONG_GAP) if timeline.messages else []
    return [{"length": gap.length, "start": plain_time(gap.start), "end": plain_time(gap.end)} for gap in gaps]


def _audits(listed: Listed) -> list[Row]:
    return [
        {
            "code": code,
            "count": count,
            "text": f"{AUDIT_CODES[code][0].upper()}{AUDIT_CODES[code][1:]}.",
            "where": _where(listed, code),
            "rows": listed.examples[code],
        }
        for code, count in listed.counts.most_common()
    ]


def _where(listed: Listed, code: str) -> str:
    count = listed.counts[code]
    return "Where" if count <= MAX_EXAMPLES else f"Where: the first {MAX_EXAMPLES} of {number_text(count)}"


def _recoveries(facts: Facts) -> list[Row]:
    """The recovery of each version, the worst first."""

    def badness(row: Row) -> tuple[bool, bool, int, int, int]:
        lost = sum(last - first + 1 for first, last in row["lost"])
        return not row["isTooOld"], not row["starts"], lost, row["dropped"], row["consumeQueueUnitsCut"]

    return [_recovery(row, facts.is_plain) for row in sorted(facts.recoveries, key=badness, reverse=True)]


def _recovery(row: Row, is_plain: bool) -> Row:
    """The columns of a recovery; what it drops are messages and positions without DLedger."""
    dropped = row["dropped"] if row["starts"] else None
    spans = [" to ".join(map(number_text, dict.fromkeys(span))) for span in row["lost"]]
    return {
        **row,
        "name": f"{row['software']} {row['version']}",
        "committedIndex": None if row["committedIndex"] == -1 else row["committedIndex"],
        "dropped": None if is_plain else dropped,
        "droppedMessages": dropped if is_plain else None,
        "lost": [] if is_plain else spans,
        "lostPositions": spans if is_plain else [],
    }


def _recovery_notes(facts: Facts) -> list[str]:
    """Why entries are dropped or a store is not opened, then other notes. Names the versions unless all agree."""
    sources: dict[str, dict[str, list[str]]] = {}
    for row in facts.recoveries:
        for text in filter(None, (row["reason"], *row["notes"])):
            sources.setdefault(printable(text), {}).setdefault(row["software"], []).append(row["version"])
    reasons = {printable(row["reason"]) for row in facts.recoveries if row["reason"]}

    def versions(text: str) -> str:
        if sum(map(len, sources[text].values())) == len(facts.recoveries):
            return ""
        return f"{', '.join(f'{software} {enumerated(which)}' for software, which in sources[text].items())}: "

    return [versions(text) + text for text in sorted(sources, key=lambda text: text not in reasons)]


@dataclass(frozen=True)
class _Drawing:
    question: str
    title: str
    svg: Markup


def _drawn(prefix: str, *wanted: tuple[str, str, Callable[[Any], Figure], Any]) -> Iterator[_Drawing]:
    """The figures that have data. Each is wanted by its name, the question that it answers, and how it is drawn."""
    for name, question, draw, data in wanted:
        if data:
            title, svg = drawing.svg(draw(data), prefix + name)
            # matplotlib escapes every text in it.
            yield _Drawing(question, title, Markup(svg))  # noqa: S704


def _file_figures(facts: Facts, prefix: str) -> list[_Drawing]:
    timed = [row for row in facts.segments if row["firstStoreTimestamp"] is not None]
    bytes_drawing = "bytes", "what is in the files?", store_figures.bytes_by_file, facts.segments
    times_drawing = "retention", "which times are in the files?", store_figures.retention, timed
    return list(_drawn(prefix, bytes_drawing, times_drawing))


def _figures(facts: Facts) -> dict[str, list[_Drawing]]:
    """The figures about all stores, by section."""
    stored = facts.timeline if facts.timeline.messages else None
    timed = facts.timeline if facts.timeline.timed else None
    named = [row for row in facts.topics if row["topic"] is not None]
    positions, ranges = store_figures.replica_positions, store_figures.replica_ranges
    wanted: dict[str, list[tuple[str, str, Callable[[Any], Figure], Any]]] = {
        "time": [
            ("throughput", "how much was stored when?", time_figures.throughput, stored),
            ("latency", "how long did it take to store messages?", time_figures.latency_map, timed),
        ],
        "topics": [("shares", "which topics are largest?", store_figures.topic_shares, named)],
        "replicas": [
            ("positions", "which bytes does each replica have?", positions, facts.commit_logs),
            ("ranges", "which indexes does each replica have?", ranges, facts.comparison),
        ],
    }
    return {section: list(_drawn("", *listed)) for section, listed in wanted.items()}
