"""The result of ``dledger check`` in at most 15 lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import cell, range_text
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.verdict_text import (
    before_text,
    doubts_text,
    first_files_text,
    known_loss_text,
    lost_text,
    member_text,
    reasons_text,
    shown_name,
)
from pyspark_dledger.common.plurals import counted, enumerated
from pyspark_dledger.log.diff.verdict import MAY_START
from pyspark_dledger.log.next_step import PLAN, is_damage
from pyspark_dledger.log.verify.findings import ERROR, WARNING
from pyspark_dledger.rocketmq.check.check_report import NOTHING, CheckReport, MemberCheck, start_of
from pyspark_dledger.rocketmq.check.restart import ASSUMED, Restart, Version
from pyspark_dledger.rocketmq.check.store_facts import NO, UNKNOWN, YES

if TYPE_CHECKING:
    from pyspark_dledger.log.state import State

_MAX_MEMBERS = 7
_MAX_CODES = 4


def check_lines(report: CheckReport) -> Iterator[str]:
    """What it is, what is lost, each member, a restart, what consumers miss, the next command, what was not checked."""
    yield what_text(report)
    yield f"lost for good: {lost_for_good(report)}"
    shown = sorted(report.members, key=lambda member: member.is_clean)[:_MAX_MEMBERS]
    for member in (member for member in report.members if member in shown):
        yield f"{shown_name(member.name, member.facts.path)} {start_text(member, report)}"
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


def what_text(report: CheckReport) -> str:
    """What the stores are, how far their logs go, and which of them are in use."""
    states = [member.facts.state for member in report.members]
    kinds = list(dict.fromkeys(store_kind(member.facts.state, member.facts.is_broker) for member in report.members))
    is_one = not any(each.verdict.strangers for each in (report.comparison, report.commit_logs) if each is not None)
    what = "replicas" if is_one else "stores, not replicas of one log"
    count = f"{len(states)} {what}: " if len(states) > 1 else ""
    ledgers = [state for state in states if state.dialect != "commitlog"]
    ends = [
        f"index {each.begin_index} to {each.end_index}" if each.end_index >= 0 else "no entries" for each in ledgers
    ]
    ends += [f"pos {state.min_offset} to {state.max_offset}" for state in states if state.dialect == "commitlog"]
    committed = [state.committed_index for state in states if state.committed_index is not None]
    bound = f"; committed up to {max(committed)}" if committed else ""
    used = [member.name for member in report.members if member.facts.is_in_use]
    use = f"; in use: {enumerated(used)}" if used else ""
    return f"{count}{', '.join(kinds)}; {', '.join(dict.fromkeys(ends))}{bound}{use}"


def lost_for_good(report: CheckReport) -> str:
    """What no replica has intact."""
    parts = []
    if report.comparison is not None:
        parts.append(lost_text(report.comparison.verdict))
    if report.commit_logs is not None:
        place = "in the old CommitLog: " if report.commit_logs.is_old else ""
        text = lost_text(report.commit_logs.verdict)
        if text != NOTHING:
            parts = [*(each for each in parts if each != NOTHING), f"{place}{text}"]
        parts = parts or [NOTHING]
    doubts = {member.name: member.facts.doubts for member in report.members if member.facts.doubts is not None}
    if (report.known_losses or doubts) and NOTHING in parts:
        parts.remove(NOTHING)
    parts += [known_loss_text(name, loss) for name, loss in report.known_losses.items()]
    parts += [doubts_text(*each) for each in doubts.items()]
    if begin := min(member.facts.state.min_offset for member in report.members):
        parts = [*(parts or [NOTHING]), before_text(begin)]
    if len(report.members) == 1 and report.lost_in_logs != NOTHING:
        parts.append("give the paths of all replicas, which can have it")
    return "; ".join(parts) or NOTHING


_ALONE = {YES: "may start", NO: "must not start as it is", UNKNOWN: "cannot tell if it may start"}


_DAMAGED = "verify finds errors in its log"
_WRONG_QUEUES = "a broker does not load ConsumeQueue files of a wrong size"
_OTHER_QUEUES = "its ConsumeQueue files have another size than those of most members, whose brokers would not load them"


def _fails(member: MemberCheck) -> str:
    """Why the version that is given or assumed would not start; empty if it would."""
    found, version = member.facts.restart, member.facts.version
    is_failure = found is not None and found.starts is False
    return f"{version.software} {version.version} would not start: {found.reason}" if found and is_failure else ""


def start_text(member: MemberCheck, report: CheckReport) -> str:
    """What may be done with a member, by the comparison, by verify and by the recovery model."""
    facts, compared = member.facts, start_of(member.entries, member.bytes)
    verdicts = [each for each in (member.entries, member.bytes) if each is not None]
    if compared != YES:
        # What the other log alone would allow is no help.
        verdicts = [each for each in verdicts if each.start not in MAY_START]
    parts = [member_text(each, see_recovery=False) for each in verdicts]
    if [each.start for each in verdicts] == [NO, NO]:
        parts[1] = f"in the old CommitLog: {reasons_text(verdicts[1])}"
    if member.start == NO and compared != NO and (not member.is_alone or _fails(member)):
        # What the log alone would allow is no help.
        parts = [text for each, text in zip(verdicts, parts, strict=True) if each.start == UNKNOWN]
        wrong = _OTHER_QUEUES if member.has_other_queue_files else _WRONG_QUEUES
        reason = _fails(member) or (_DAMAGED if member.is_damaged else wrong)
        parts.insert(0, f"{_ALONE[NO]}: {reason}")
    elif not parts or (member.is_alone and compared == YES):
        parts = [_ALONE[member.start]]
    if member.entries is not None:
        parts[0] += first_files_text(member.entries)
    if facts.unreadable and not member.entries and not member.bytes:
        parts.append(f"cannot be read: {', '.join(map(cell, facts.unreadable[:_MAX_CODES]))}")
    if member.lost_keys:
        parts.append("it lost its index of keys, so queries by key find nothing")
    elif facts.findings["keyIndexMissing"]:
        parts.append("it has no index of keys, although its messages have keys")
    if faults := facts.faults:
        listed = ", ".join(f"{code} {count}" for code, count in list(faults.items())[:_MAX_CODES])
        more = f" and {len(faults) - _MAX_CODES} more codes" if len(faults) > _MAX_CODES else ""
        numbers = [counted(facts.count(each), each) for each in (ERROR, WARNING) if facts.count(each)]
        is_reason = member.start == YES and report.next.step == PLAN and is_damage(faults)
        reason = ", which a salvage repairs" if is_reason else ""
        parts.append(f"verify: {', '.join(numbers)} ({listed}{more}){reason}")
    return "; ".join(parts)


def _restarts(members: Sequence[MemberCheck]) -> Iterator[str]:
    """What a restart would change, a line for each version."""
    known = sorted(members, key=lambda member: (member.facts.version.software, member.facts.version.version))
    for _, same in groupby(known, key=lambda member: (member.facts.version.software, member.facts.version.version)):
        listed = list(same)
        texts: dict[str, list[str]] = {}
        for member in sorted(listed, key=members.index):
            texts.setdefault(restart_text(member), []).append(member.name)
        changes = texts.items() if len(members) > 1 else [(text, []) for text in texts]
        text = "; ".join(f"{enumerated(names)} {text}" if names else text for text, names in changes)
        yield f"restart with {version_text(listed[0].facts.version)}: {text}"


def version_text(version: Version) -> str:
    """A version, and how it is known."""
    name = f"{version.software} {version.version}"
    reasons = ["assumed"] if version.known == ASSUMED else []
    return (
        f"{name} ({', '.join([*reasons, *filter(None, [version.evidence])])})" if reasons or version.evidence else name
    )


def restart_text(member: MemberCheck) -> str:
    """What a restart would change in a member."""
    found, facts = member.facts.restart, member.facts
    if found is None:
        return f"cannot tell ({facts.no_restart})"
    if found.starts is None:
        return f"cannot tell ({found.reason})"
    if not found.starts:
        return f"would not start: {found.reason}"
    parts = []
    if found.dropped or found.lost:
        parts.append(_dropped(found))
    if found.consume_queue_units_cut:
        parts.append(f"would cut {counted(found.consume_queue_units_cut, 'ConsumeQueue unit')}")
    if facts.silent:
        parts.append(f"would serve {counted(facts.silent, 'damaged entry')}, which it does not notice")
    return ", ".join(parts) or ("would change nothing in the log" if member.serve == NO else "would change nothing")


def _dropped(found: Restart) -> str:
    spans = [range_text(*span) for span in found.lost[:_MAX_CODES]]
    if found.max_phy_offset is not None:
        return f"would drop {counted(found.dropped, 'message')}, positions {', '.join(spans)}"
    if not found.dropped:
        return f"would start without the committed entries {', '.join(spans)}"
    committed = f", of them committed: {', '.join(spans)}" if spans else ", none of them proven committed"
    return f"would drop {counted(found.dropped, 'entry')}{committed}"


_AUDIT = {
    "messageNotInQueue": ("message that is in no queue", "messages that are in no queue"),
    "unitWithoutMessage": ("unit without a message", "units without a message"),
    "wrongSize": ("unit of a wrong size", "units of a wrong size"),
    "wrongTagsCode": ("unit with wrong tags", "units with wrong tags"),
    "wrongQueue": ("unit of another queue", "units of other queues"),
    "queueOffsetGap": ("gap in a queue", "gaps in queues"),
    "wrongFileSize": ("file of a wrong size", "files of a wrong size"),
}


def _consumers(members: Sequence[MemberCheck]) -> Iterator[str]:
    """What consumers miss of the logs of brokers."""
    texts: dict[str, list[str]] = {}
    for member in members:
        if member.serve is not None:
            texts.setdefault(missed_text(member), []).append(member.name)
    if texts:
        names = len(members) > 1
        text = "; ".join(f"{enumerated(who)}: {text}" if names else text for text, who in texts.items())
        yield f"consumers miss: {text}"


def missed_text(member: MemberCheck) -> str:
    """What consumers miss of the log of a broker."""
    queues = member.facts.queues
    if queues.reason is not None:
        return f"cannot tell ({queues.reason})"
    parts = [counted(count, *_AUDIT.get(code, (code, code))) for code, count in queues.counts.most_common()]
    if count := member.facts.findings["consumerOffsetBeyondEnd"]:
        offsets = counted(count, "offset of a consumer group is", "offsets of consumer groups are")
        parts.append(f"new messages, where {offsets} after the end of the queue")
    if count := member.facts.findings["consumerOffsetUnused"]:
        offsets = counted(count, "offset of a consumer group", "offsets of consumer groups")
        parts.append(f"messages, where a start with a RocksDB drops {offsets}")
    return ", ".join(parts) or "nothing"
