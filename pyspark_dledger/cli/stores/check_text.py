"""The result of ``dledger check`` in at most 15 lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import cell, range_text
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.verdict_text import lost_count, lost_text, member_text
from pyspark_dledger.common.plurals import counted, enumerated
from pyspark_dledger.log.verify.findings import ERROR, WARNING
from pyspark_dledger.rocketmq.check.check_report import NOTHING, SOME, CheckReport
from pyspark_dledger.rocketmq.check.member_check import MemberCheck
from pyspark_dledger.rocketmq.check.restart import ASSUMED, Restart, Version
from pyspark_dledger.rocketmq.check.store_facts import NO, UNKNOWN, YES

if TYPE_CHECKING:
    from pyspark_dledger.log.state import State
    from pyspark_dledger.rocketmq.lost.group_losses import GroupLosses

MAX_LINES = 15
_MAX_MEMBERS = 7
_MAX_CODES = 4


def check_lines(report: CheckReport) -> Iterator[str]:
    """What it is, what is lost, each member, a restart, what consumers miss, the next command, what was not checked."""
    yield _what(report)
    yield f"lost for good: {_lost(report)}"
    shown = sorted(report.members, key=lambda member: member.is_clean)[:_MAX_MEMBERS]
    for member in (member for member in report.members if member in shown):
        yield f"{_shown_name(member)} {_member(member)}"
    if more := [member for member in report.members if member not in shown]:
        clean = sum(member.is_clean for member in more)
        yield f"{counted(len(more), 'other member')}: nothing is wrong with {clean}; --json lists them"
    yield from _restarts(report.members)
    yield from _consumers(report.members)
    yield from next_lines(report.next)
    yield f"not checked: {'; '.join(report.not_checked)}"


def store_kind(state: State, is_broker: bool) -> str:
    """What a store is."""
    if state.dialect != "commitlog":
        return "RocketMQ broker in DLedger mode" if is_broker else "DLedger log"
    return "CommitLog of RocketMQ in controller mode" if state.epochs else "Plain CommitLog of RocketMQ"


def _what(report: CheckReport) -> str:
    states = [member.facts.state for member in report.members]
    kinds = list(dict.fromkeys(store_kind(member.facts.state, member.facts.is_broker) for member in report.members))
    count = f"{len(states)} replicas: " if len(states) > 1 else ""
    ends = [f"index {state.begin_index} to {state.end_index}" for state in states if state.dialect != "commitlog"]
    ends += [f"pos {state.min_offset} to {state.max_offset}" for state in states if state.dialect == "commitlog"]
    committed = [state.committed_index for state in states if state.committed_index is not None]
    bound = f"; committed up to {max(committed)}" if committed else ""
    used = [member.name for member in report.members if member.facts.is_in_use]
    use = f"; in use: {enumerated(used)}" if used else ""
    return f"{count}{', '.join(kinds)}; {', '.join(dict.fromkeys(ends))}{bound}{use}"


def _lost(report: CheckReport) -> str:
    parts = []
    if report.comparison is not None:
        parts.append(lost_text(report.comparison.verdict))
    if report.commit_logs is not None:
        place = "in the old CommitLog: " if report.commit_logs.is_old else ""
        parts.append(f"{place}{lost_text(report.commit_logs.verdict)}")
    if report.losses is not None:
        parts.append(_lost_alone(report, report.losses))
    return "; ".join(parts)


def _lost_alone(report: CheckReport, losses: GroupLosses) -> str:
    if report.lost == NOTHING:
        return "nothing"
    known = lost_count(lost for lost in losses.messages if lost.is_for_good)
    text = f"{known}, as far as this store knows" if report.lost == SOME else "cannot tell"
    return f"{text}: give the paths of all replicas"


def _shown_name(member: MemberCheck) -> str:
    name = PurePath(member.facts.path.partition(",")[0]).name
    is_path = member.name in (name, member.facts.path) or name == f"dledger-{member.name}"
    return member.name if is_path else f"{member.name} ({cell(member.facts.path)})"


_ALONE = {YES: "may start", NO: "must not start as it is", UNKNOWN: "cannot tell if it may start"}


def _member(member: MemberCheck) -> str:
    facts = member.facts
    parts = [member_text(member.entries, see_recovery=False)] if member.entries is not None else []
    parts += [member_text(member.bytes, see_recovery=False)] if member.bytes is not None else []
    if not parts:
        parts.append(
            {NO: "must not start as it is", UNKNOWN: "cannot tell if it may start"}.get(member.start, "may start")
        )
    if facts.unreadable and member.entries is None and member.bytes is None:
        parts.append(f"cannot be read: {', '.join(map(cell, facts.unreadable[:_MAX_CODES]))}")
    counts = {severity: facts.count(severity) for severity in (ERROR, WARNING)}
    if faults := facts.faults:
        listed = ", ".join(f"{code} {count}" for code, count in list(faults.items())[:_MAX_CODES])
        more = f" and {len(faults) - _MAX_CODES} more codes" if len(faults) > _MAX_CODES else ""
        numbers = ", ".join(f"{counted(count, severity)}" for severity, count in counts.items() if count)
        parts.append(f"verify: {numbers} ({listed}{more})")
    return "; ".join(parts)


def _restarts(members: Sequence[MemberCheck]) -> Iterator[str]:
    """What a restart would change, a line for each version."""
    known = sorted(members, key=lambda member: (member.facts.version.software, member.facts.version.version))
    for _, same in groupby(known, key=lambda member: (member.facts.version.software, member.facts.version.version)):
        listed = list(same)
        texts: dict[str, list[str]] = {}
        for member in sorted(listed, key=members.index):
            texts.setdefault(_restart(member), []).append(member.name)
        changes = texts.items() if len(members) > 1 else [(text, []) for text in texts]
        text = "; ".join(f"{enumerated(names)} {text}" if names else text for text, names in changes)
        yield f"restart with {_version(listed[0].facts.version)}: {text}"


def _version(version: Version) -> str:
    name = f"{version.software} {version.version}"
    reasons = ["assumed"] if version.known == ASSUMED else []
    return (
        f"{name} ({', '.join([*reasons, *filter(None, [version.evidence])])})" if reasons or version.evidence else name
    )


def _restart(member: MemberCheck) -> str:
    found, facts = member.facts.restart, member.facts
    if found is None:
        return f"cannot tell ({facts.no_restart})"
    if found.starts is None:
        return f"cannot tell ({found.reason})"
    if not found.starts:
        return f"would not start: {found.reason}"
    parts = []
    if found.dropped or found.lost:
        parts.append(f"would drop {_dropped(found)}")
    if found.consume_queue_units_cut:
        parts.append(f"would cut {counted(found.consume_queue_units_cut, 'ConsumeQueue unit')}")
    if facts.silent:
        parts.append(f"would serve {counted(facts.silent, 'damaged entry')}, which it does not notice")
    return ", ".join(parts) or "would change nothing"


def _dropped(found: Restart) -> str:
    spans = [range_text(*span) for span in found.lost[:_MAX_CODES]]
    if found.max_phy_offset is not None:
        return f"{counted(found.dropped, 'message')}, positions {', '.join(spans)}"
    committed = f", of them committed: {', '.join(spans)}" if spans else ", none of them proven committed"
    return f"{counted(found.dropped, 'entry')}{committed}"


_AUDIT = {
    "messageNotInQueue": "messages that are in no queue",
    "unitWithoutMessage": "units without a message",
    "wrongSize": "units of a wrong size",
    "wrongTagsCode": "units with wrong tags",
    "wrongQueue": "units of other queues",
    "queueOffsetGap": "gaps in queues",
    "wrongFileSize": "files of a wrong size",
}


def _consumers(members: Sequence[MemberCheck]) -> Iterator[str]:
    """What consumers miss of the logs of brokers."""
    texts: dict[str, list[str]] = {}
    for member in members:
        if member.serve is not None:
            texts.setdefault(_missed(member), []).append(member.name)
    if texts:
        names = len(members) > 1
        text = "; ".join(f"{enumerated(who)}: {text}" if names else text for text, who in texts.items())
        yield f"consumers miss: {text}"


def _missed(member: MemberCheck) -> str:
    queues = member.facts.queues
    if queues.reason is not None:
        return f"cannot tell ({queues.reason})"
    return ", ".join(f"{count} {_AUDIT.get(code, code)}" for code, count in queues.counts.most_common()) or "nothing"
