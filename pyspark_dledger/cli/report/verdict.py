"""The verdict on a page: what `check` says of the stores, as answers to the questions that an operator asks first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_dledger.cli.output.quantities import bytes_text, count_text, number_text, short_name
from pyspark_dledger.cli.output.rows import Row
from pyspark_dledger.cli.stores.check_text import (
    lost_for_good,
    missed_text,
    restart_text,
    start_text,
    version_text,
    what_text,
)
from pyspark_dledger.cli.stores.next_text import step_text
from pyspark_dledger.cli.stores.queue_rows import queues_text
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison
from pyspark_dledger.log.diff.comparison import Comparison
from pyspark_dledger.rocketmq.check import CheckReport, MemberCheck
from pyspark_dledger.rocketmq.check.check_report import NOTHING, SOME
from pyspark_dledger.rocketmq.check.store_facts import NO, UNKNOWN, YES

GOOD, NEUTRAL, WARN, BAD = "good", "info", "warning", "error"
TROUBLE = (WARN, BAD)
"""Levels that make the exit code `FINDINGS`."""
_LOST = {NOTHING: GOOD, UNKNOWN: WARN, SOME: BAD}
_ANSWERS = {YES: GOOD, UNKNOWN: WARN, NO: BAD}


@dataclass(frozen=True)
class Verdict:
    """The answer to one question: `level` is ``good``, ``info``, ``warning`` or ``error``.

    `section` is the id of the part of the page that has the details.
    """

    level: str
    question: str
    answer: str
    section: str


def group_verdicts(report: CheckReport) -> list[Verdict]:
    """What `check` says of all stores."""
    is_group = len(report.members) > 1
    about = "replicas" if is_group else "state"
    lost = lost_for_good(report)
    # Something is lost yet, or is restored by a salvage only.
    level = WARN if report.lost == NOTHING and lost != NOTHING else _LOST[report.lost]
    step = step_text(report.next)
    return [
        Verdict(NEUTRAL, "What is it?", _sentence(what_text(report)), about),
        Verdict(level, "Is anything lost for good?", _sentence(lost), about),
        *(_start(member, report, number) for number, member in enumerate(report.members)),
        Verdict(NEUTRAL, "What to do?", step if report.next.arguments else _sentence(step), about),
        *(_agreement(each) for each in (report.comparison, report.commit_logs) if each is not None and is_group),
    ]


def _start(member: MemberCheck, report: CheckReport, number: int) -> Verdict:
    """Whether a member may start; the details are in its section, of one store in that of its findings."""
    level = WARN if member.start == YES and not member.is_clean else _ANSWERS[member.start]
    section = member_section(number) if len(report.members) > 1 else "findings"
    return Verdict(level, f"May {printable(member.name)} start?", _sentence(start_text(member, report)), section)


def store_verdicts(member: MemberCheck, contents: str, fillers: int) -> Iterator[Verdict]:
    """What `check` says of one store, after its contents; its queues have `fillers`."""
    yield Verdict(NEUTRAL, "What is in the store?", contents, "files")
    question = f"What would a restart with {version_text(member.facts.version)} do?"
    yield Verdict(_restart_level(member), question, _sentence(restart_text(member)), "restart")
    if member.serve is not None:
        missed = missed_text(member)
        if fillers:
            units = count_text(fillers, "unit is a filler", "units are fillers")
            missed += f"; {units} for messages missing from the log"
        level = WARN if fillers and member.serve == YES else _ANSWERS[member.serve]
        yield Verdict(level, "What do consumers miss?", _sentence(missed), "queues")


def _restart_level(member: MemberCheck) -> str:
    found = member.facts.restart
    if found is None or found.starts is None:
        return WARN
    if not found.starts or found.lost:
        return BAD
    return WARN if found.dropped or member.facts.silent else GOOD


def contents_text(total: Row, files: int) -> str:
    """What a log has, by the totals of its rows."""
    if not total["entries"]:
        return "Nothing."
    text = f"{_kinds(total['kinds'])}, {bytes_text(total['bytes'])} in {count_text(files, 'file')}"
    if total["firstStoreTimestamp"] is None:
        return f"{text}."
    first, last = _second(total["firstStoreTimestamp"]), _second(total["lastStoreTimestamp"])
    if first == last:
        return f"{text}, stored at {first} UTC."
    return f"{text}, stored from {first} to {last.removeprefix(first.partition(' ')[0] + ' ')} UTC."


def _second(time: str) -> str:
    """A time of a table to the second."""
    return time.partition(".")[0].replace("T", " ")


_KINDS = {
    "message": ("message", "messages"),
    "entry": ("entry without a message", "entries without a message"),
    "noop": ("no-op", "no-ops"),
    "config": ("config entry", "config entries"),
    "corrupt": ("corrupt range", "corrupt ranges"),
}


def _kinds(kinds: dict[str, int]) -> str:
    return ", ".join(count_text(count, *_KINDS[kind]) for kind, count in kinds.items())


def lost_verdicts(lost_queues: Sequence[Row]) -> Iterator[Verdict]:
    """Which messages are lost for good, as far as queues know them."""
    if lost_queues:
        yield Verdict(BAD, "Which messages are lost?", f"{queues_text(lost_queues)}.", "replicas")


def lag_verdicts(groups: Sequence[Row]) -> Iterator[Verdict]:
    """How far consumer groups lag."""
    question, groups = "Do consumers lag?", [row for row in groups if row["queues"]]
    lag, lost = sum(row["lag"] for row in groups), sum(row["lost"] for row in groups)
    if lost:
        text = f"{count_text(lost, 'message')} expired before their groups read them; "
        text += f"the lag of all groups is {number_text(lag)}."
        yield Verdict(WARN, question, text, "consumers")
    elif lag:
        most = max(groups, key=lambda row: row["lag"])
        text = f"{printable(most['consumerGroup'])} lags by {count_text(most['lag'], 'message')}; all "
        text += f"{count_text(len(groups), 'group')} by {number_text(lag)}."
        yield Verdict(NEUTRAL, question, text, "consumers")
    elif groups:
        yield Verdict(GOOD, question, f"No: {count_text(len(groups), 'group')}, no lag.", "consumers")


def _agreement(found: Comparison | CommitLogComparison) -> Verdict:
    """Whether replicas agree, and how far they lag."""
    logs = "CommitLogs" if isinstance(found, CommitLogComparison) else "replicas"
    level = BAD if _difference(found) or _damaged(found) else NEUTRAL if _behind(found) else GOOD
    return Verdict(level, f"Do the {logs} agree?", agreement_text(found), "replicas")


def agreement_text(found: Comparison | CommitLogComparison) -> str:
    """Where replicas differ, what is damaged, and who is behind, in a sentence; their figure has it as its title."""
    text = "No replica contradicts another"
    if isinstance(found, CommitLogComparison):
        text = "Where replicas have the same position, they have the same bytes"
    if where := _difference(found):
        text = f"The replicas differ from {where}"
    return f"{'; '.join([text, *_damaged(found)])}; {', '.join(_behind(found)) or 'none is behind'}."


def _difference(found: Comparison | CommitLogComparison) -> str:
    """The first place where replicas differ; empty if they agree."""
    if isinstance(found, Comparison):
        divergence = found.first_divergence
        return f"index {number_text(divergence.index)} on ({divergence.verdict})" if divergence is not None else ""
    first = found.first_difference
    if first is None:
        return ""
    return f"byte {number_text(found.common_prefix if first.byte is None else first.byte)} on ({first.verdict})"


def _damaged(found: Comparison | CommitLogComparison) -> list[str]:
    if isinstance(found, Comparison):
        counts = [(each.node, each.damaged.entries) for each in found.standings]
        texts = [(name, count_text(count, "damaged entry", "damaged entries")) for name, count in counts if count]
    else:
        sizes = [(each.node, each.damaged_bytes) for each in found.states]
        texts = [(name, f"{bytes_text(size)} damaged or missing") for name, size in sizes if size]
    return [f"{short_name(name)} has {text}" for name, text in texts]


def _behind(found: Comparison | CommitLogComparison) -> list[str]:
    if isinstance(found, Comparison):
        lags = [(each.node, each.lag_entries, found.foremost) for each in found.standings]
        return [_is_behind(name, count_text(lag, "entry"), ahead) for name, lag, ahead in lags if lag]
    members = [each for each in found.verdict.members if each.ahead_bytes]
    return [_is_behind(each.node, bytes_text(each.ahead_bytes), each.ahead[0]) for each in members]


def _is_behind(name: str, lag: str, ahead: str) -> str:
    return f"{short_name(name)} is {lag} behind {short_name(ahead)}"


def member_section(number: int) -> str:
    """The id of the part of the page about a member."""
    return f"member-{number}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
