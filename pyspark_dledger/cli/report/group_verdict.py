"""The verdict on a group: is anything lost, which member may start, what to do, do the replicas agree."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_dledger.cli.report.facts import Facts
from pyspark_dledger.cli.report.number_words import bytes_text, count_text, number_text
from pyspark_dledger.cli.report.verdict import BAD, GOOD, NEUTRAL, TROUBLE, WARN, Verdict, restart, verdicts
from pyspark_dledger.cli.stores import commit_log_text
from pyspark_dledger.cli.stores.commit_log_text import commit_log_sentences
from pyspark_dledger.cli.stores.lost_queues import queues_text
from pyspark_dledger.cli.stores.next_text import step_text
from pyspark_dledger.cli.stores.verdict_text import lost_text, member_text
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison
from pyspark_dledger.log.diff.comparison import Comparison
from pyspark_dledger.log.diff.copy_ranges import DAMAGED, FILLER
from pyspark_dledger.log.diff.diff_table import CONTRADICTS, DIVERGED, OTHER_BYTES
from pyspark_dledger.log.diff.verdict import MemberVerdict
from pyspark_dledger.log.verify.findings import CODES, ERROR

_LOST_LEVELS = {"nothing": GOOD, "unknown": WARN, "some": BAD}
_START_LEVELS = {"yes": GOOD, "unknown": WARN, "no": BAD}
_PLAIN_LEVELS = {"master": GOOD, "slave": GOOD, "unknown": WARN, "no": BAD}


def group_verdicts(facts: Facts) -> list[Verdict]:
    """The answers about the group; empty without replicas."""
    found = facts.comparison
    if found is None:
        return []
    if facts.is_plain:
        return [*_plain_group(facts)]
    return [
        *_lost(facts, found),
        *_old_commit_logs(facts),
        *_members(facts, found),
        *_next(facts),
        *_replicas(found),
    ]


def is_trouble(facts: Facts) -> bool:
    """Whether an answer about the group or one of its members is a warning or an error."""
    answers = [*group_verdicts(facts), *(each for member in facts.members for each in verdicts(member))]
    return any(verdict.level in TROUBLE for verdict in answers)


def member_section(number: int) -> str:
    """The id of the part of the page about a member."""
    return f"member-{number}"


def _lost(facts: Facts, found: Comparison) -> Iterator[Verdict]:
    text = lost_text(found.verdict)
    if facts.lost_queues:
        text += f": {queues_text(facts.lost_queues)}"
    has_damage = any(member.damaged.entries for member in found.verdict.members)
    if text == "nothing" and has_damage:
        text = "nothing: another member has each damaged entry intact"
    level = WARN if found.verdict.is_restorable else _LOST_LEVELS[found.verdict.lost]
    yield Verdict(level, "Is anything lost for good?", _sentence(text), "replicas")


def _old_commit_logs(facts: Facts) -> Iterator[Verdict]:
    found = facts.commit_logs
    if found is not None:
        level = GOOD if found.is_lagging_only else BAD if found.verdict.lost.entries else WARN
        text = "; ".join(
            text for text in commit_log_sentences(found) if not text.startswith((" ", "first ", "common "))
        )
        yield Verdict(level, "Do the CommitLogs agree?", _sentence(text), "replicas")


def _plain_group(facts: Facts) -> Iterator[Verdict]:
    """The answers about CommitLogs without DLedger."""
    found = facts.commit_logs
    if found is None:
        return
    verdict = found.verdict
    lost = commit_log_text.lost_text(verdict)
    if facts.lost_queues:
        lost += f": {queues_text(facts.lost_queues)}"
    has_damage = any(member.damaged.entries for member in verdict.members)
    if lost == "nothing" and has_damage:
        lost = "nothing: another member has each damaged message intact"
    level = BAD if verdict.lost.entries or verdict.lost_ends else GOOD if lost.partition(":")[0] == "nothing" else WARN
    yield Verdict(level, "Is anything lost for good?", _sentence(lost), "replicas")
    for number, (store, member) in enumerate(zip(facts.members, verdict.members, strict=True)):
        level, text = _PLAIN_LEVELS[member.start], commit_log_text.member_text(member, see_recovery=False)
        said = {"no": "no", "unknown": "cannot tell"}.get(member.start, "yes")
        loses = member.start == "slave" and member.truncation is not None and member.truncation.lost_bytes
        text = f"{said}: {_reason(text)}"
        yield _may_start(number, member.node, WARN if loses and level == GOOD else level, text, store)
    yield from _next(facts)
    yield _agreement(found)


def _agreement(found: CommitLogComparison) -> Verdict:
    question = "Do the CommitLogs agree?"
    sizes = [
        f"{name} {bytes_text(found.bytes[name])}" for name in (DIVERGED, OTHER_BYTES, DAMAGED) if name in found.bytes
    ]
    behind = [
        f"{printable(member.node)} is {bytes_text(member.ahead_bytes)} behind {printable(member.ahead or '')}"
        for member in found.verdict.members
        if member.ahead_bytes
    ]
    if sizes:
        text = f"No: {', '.join(sizes)}; the same up to byte {number_text(found.common_prefix)}"
        return Verdict(BAD, question, f"{'; '.join([text, *behind])}.", "replicas")
    text = "; ".join(["Yes, at every position that they share", *behind])
    return Verdict(NEUTRAL if behind else GOOD, question, f"{text}.", "replicas")


def _members(facts: Facts, found: Comparison) -> Iterator[Verdict]:
    for number, (store, member) in enumerate(zip(facts.members, found.verdict.members, strict=True)):
        text = f"{_said(member)}: {_reason(member_text(member, see_recovery=False))}"
        yield _may_start(number, member.node, _START_LEVELS[member.start], text, store)


def _reason(text: str) -> str:
    """A sentence about a member without what the question says."""
    return text.removeprefix("must not start as it is: ").removeprefix("cannot tell if it may start: ")


def _may_start(number: int, node: str, level: str, text: str, store: Facts) -> Verdict:
    """The answer for one member, with what `verify` found in its store."""
    more = [f"verify: {found}" for found in (_errors(store),) if found]
    more += [each.answer.rstrip(".") for each in restart(store) if store.is_plain and each.level in TROUBLE]
    if more:
        level = WARN if level == GOOD else level
        text = "; ".join([text, *more])
    return Verdict(level, f"May {printable(node)} start?", _sentence(text), member_section(number))


def _said(member: MemberVerdict) -> str:
    return {"yes": "yes", "no": "no", "unknown": "cannot tell"}[member.start]


def _errors(store: Facts) -> str:
    if store.findings.reason is not None:
        return f"the store could not be verified ({store.findings.reason})"
    errors = [(code, count) for code, count in store.findings.counts.most_common() if CODES[code].severity == ERROR]
    return ", ".join(f"{code} {number_text(count)}" for code, count in errors)


def _next(facts: Facts) -> Iterator[Verdict]:
    if facts.next is not None:
        text = step_text(facts.next)
        yield Verdict(NEUTRAL, "What to do?", text if facts.next.arguments else _sentence(text), "replicas")


def _replicas(found: Comparison) -> Iterator[Verdict]:
    question = "Do the replicas agree?"
    kinds = [CONTRADICTS, DIVERGED, OTHER_BYTES, DAMAGED]
    # Fillers that all members have are the same entries.
    kinds += [FILLER] if any(member.left_out.entries for member in found.verdict.members) else []
    differing = {verdict: found.entries.get(verdict, 0) for verdict in kinds}
    listed = ", ".join(f"{verdict} {number_text(count)}" for verdict, count in differing.items() if count)
    behind = [
        f"{printable(item.node)} is {count_text(item.lag_entries, 'entry')} behind {printable(found.foremost)}"
        for item in found.standings
        if item.lag_entries
    ]
    if listed:
        yield Verdict(BAD, question, f"{'; '.join([f'No, entries differ: {listed}', *behind])}.", "replicas")
    else:
        agree = "Yes, at every index that they share"
        yield Verdict(NEUTRAL if behind else GOOD, question, f"{'; '.join([agree, *behind])}.", "replicas")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
