"""The verdict on a store and on a group: a sentence for each question that an operator asks first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_dledger.cli.output.rows import Row
from pyspark_dledger.cli.report.drawing import bytes_text, count_text, number_text
from pyspark_dledger.cli.report.facts import Facts
from pyspark_dledger.cli.stores.diff_text import difference_sentences
from pyspark_dledger.cli.stores.next_text import step_text
from pyspark_dledger.cli.stores.queue_rows import queues_text
from pyspark_dledger.cli.stores.verdict_text import lost_text, member_text, verdict_lines
from pyspark_dledger.common.plurals import enumerated
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison
from pyspark_dledger.log.diff.commit_log_verdict import MemberVerdict as CommitLogMember
from pyspark_dledger.log.diff.comparison import Comparison
from pyspark_dledger.log.diff.copy_ranges import DAMAGED, FILLER
from pyspark_dledger.log.diff.diff_table import CONTRADICTS, DIVERGED, OTHER_BYTES
from pyspark_dledger.log.diff.verdict import MemberVerdict
from pyspark_dledger.log.recovery.recovery_preview import SILENT_CODES
from pyspark_dledger.log.verify.findings import CODES, ERROR, INFO, WARNING
from pyspark_dledger.rocketmq.tables.audit_table import MESSAGE_NOT_IN_QUEUE

GOOD, NEUTRAL, WARN, BAD = "good", "info", "warning", "error"
TROUBLE = (WARN, BAD)
"""Levels that make the exit code `FINDINGS`."""


@dataclass(frozen=True)
class Verdict:
    """The answer to one question: `level` is ``good``, ``info``, ``warning`` or ``error``.

    `section` is the id of the part of the page that has the details.
    """

    level: str
    question: str
    answer: str
    section: str


def verdicts(facts: Facts) -> list[Verdict]:
    """The answers to all questions that apply to one store, in the order of the page."""
    rules = (_contents, _damage, _committed, _stop, restart, _queues, _consumers)
    return [found for rule in rules for found in rule(facts)]


def _contents(facts: Facts) -> Iterator[Verdict]:
    total = facts.total
    text = f"{_kinds(total['kinds'])}, {bytes_text(total['bytes'])} in {count_text(len(facts.segments), 'file')}"
    if total["firstStoreTimestamp"] is not None:
        first, last = _second(total["firstStoreTimestamp"]), _second(total["lastStoreTimestamp"])
        day = f"{first.partition(' ')[0]} "
        text += (
            f", stored at {first} UTC" if first == last else f", stored from {first} to {last.removeprefix(day)} UTC"
        )
    yield Verdict(NEUTRAL, "What is in the store?", f"{text}." if total["entries"] else "Nothing.", "files")


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


def _damage(facts: Facts) -> Iterator[Verdict]:
    if facts.findings.reason is not None:
        yield Verdict(WARN, "Is anything wrong?", f"It could not be verified: {facts.findings.reason}.", "findings")
        return
    counts = {severity: facts.count_findings(severity) for severity in (ERROR, WARNING, INFO)}
    listed = [
        f"{code} {number_text(count)}"
        for code, count in facts.findings.counts.most_common()
        if CODES[code].severity != INFO
    ]
    text = f"{count_text(counts[ERROR], 'error')}, {count_text(counts[WARNING], 'warning')}"
    notes = f"{number_text(counts[INFO])} info"
    if not listed:
        yield Verdict(GOOD, "Is anything wrong?", f"No: {text}, {notes}.", "findings")
        return
    level = BAD if counts[ERROR] else WARN
    yield Verdict(level, "Is anything wrong?", f"{text}: {', '.join(listed)}; {notes}.", "findings")


def _committed(facts: Facts) -> Iterator[Verdict]:
    state = facts.state
    if state["dialect"] == "commitlog" or state["endIndex"] < 0:
        return
    question, end, known = "How far is it committed?", state["endIndex"], state["committedIndex"]
    promised = state["checkpointCommittedIndex"]
    if promised is not None and promised > end:
        text = f"The checkpoint says up to index {number_text(promised)}, but the log ends at {number_text(end)}: its "
        yield Verdict(BAD, question, f"{text}end is lost, or was truncated.", "state")
    elif known is None:
        text = f"Unknown ({state['committedFrom']}); the log ends at index {number_text(end)}."
        yield Verdict(NEUTRAL, question, text, "state")
    elif known >= end:
        text = f"To its end, index {number_text(end)}; proof: {_proof(state['committedFrom'])}."
        yield Verdict(GOOD, question, text, "state")
    else:
        text = f"Up to index {number_text(known)}; proof: {_proof(state['committedFrom'])}. For the last "
        text += f"{count_text(end - known, 'entry')} it is unknown."
        yield Verdict(NEUTRAL, question, text, "state")


def _proof(source: str) -> str:
    return {"consumeQueue": "ConsumeQueue"}.get(source, source)


def _stop(facts: Facts) -> Iterator[Verdict]:
    if not facts.is_broker:
        return
    question = "Was the broker stopped cleanly?"
    if facts.state["abort"]:
        yield Verdict(NEUTRAL, question, "No, or it is running: an abort file exists.", "state")
    else:
        yield Verdict(GOOD, question, "Yes: no abort file exists.", "state")


def restart(facts: Facts) -> Iterator[Verdict]:
    """What the versions for this store would do, the worst ones named."""
    question = "What would a restart do?"
    rows = relevant_recoveries(facts)
    if not rows:
        return
    worst = rows[0]
    same = ("starts", "dropped", "lost")
    alike = sorted(row["version"] for row in rows if all(row[name] == worst[name] for name in same))
    names = f"{worst['software']} {enumerated(alike)}"
    if not worst["starts"]:
        how = "" if facts.is_plain or worst["outcome"] == "opens" else f" ({worst['outcome']})"
        text = f"{names} would not start{how}: {worst['reason']}."
        yield Verdict(BAD, question, text, "restart")
    elif worst["lost"] or worst["dropped"]:
        spans = ", ".join(span_text(*span) for span in worst["lost"])
        committed = f"; {spans} are committed" if worst["lost"] else ""
        what = f"{count_text(worst['dropped'], 'entry', 'entries')}{committed}"
        if facts.is_plain:
            what = f"{count_text(worst['dropped'], 'message')}, positions {spans}"
        text = f"{names} would drop {what}."
        yield Verdict(BAD if worst["lost"] else WARN, question, text, "restart")
    else:
        cut = max(row["consumeQueueUnitsCut"] for row in rows)
        units = f", cut up to {count_text(cut, 'ConsumeQueue unit')} and rebuild them" if cut else ""
        damaged = sum(facts.findings.counts[code] for code in SILENT_CODES)
        also = f", {count_text(damaged, 'damaged one')} too, and serve what is damaged" if damaged else ""
        entry = "message" if facts.is_plain else "entry"
        kept = f"keep every {entry}{also}" if facts.total["entries"] else "open it and find no entries"
        yield Verdict(WARN if damaged else GOOD, question, f"{names} would {kept}{units}.", "restart")


def relevant_recoveries(facts: Facts) -> list[Row]:
    """The recoveries of software for this kind of store, the worst first: brokers, else DLedger of this format."""
    brokers = [row for row in facts.recoveries if row["software"] == "RocketMQ"]
    # Versions older than the store cannot have run on it.
    brokers = [row for row in brokers if not row.get("isTooOld")] or brokers
    kinds = facts.total["kinds"]
    is_04 = facts.state["dialect"] == "0.4" or "noop" in kinds or "config" in kinds
    return worst_first(brokers or [row for row in facts.recoveries if row["version"].startswith("0.4") == is_04])


def worst_first(rows: list[Row]) -> list[Row]:
    """Recoveries, those that lose the most first."""

    def badness(row: Row) -> tuple[bool, int, int, int]:
        lost = sum(last - first + 1 for first, last in row["lost"])
        return not row["starts"], lost, row["dropped"], row["consumeQueueUnitsCut"]

    return sorted(rows, key=badness, reverse=True)


def _queues(facts: Facts) -> Iterator[Verdict]:
    question = "Do log and ConsumeQueue agree?"
    if not facts.is_broker or not facts.total["messages"]:
        return
    counts = facts.audit.counts
    if facts.audit.reason is not None:
        yield Verdict(NEUTRAL, question, "They could not be compared.", "queues")
    elif not counts and not facts.fillers:
        yield Verdict(GOOD, question, "Yes.", "queues")
    elif not counts:
        yield Verdict(WARN, question, f"Yes, but {_fillers(facts)}.", "queues")
    else:
        listed = ", ".join(f"{code} {number_text(count)}" for code, count in counts.most_common())
        missed = counts[MESSAGE_NOT_IN_QUEUE]
        text = f"No: {listed}."
        if missed:
            text += f" Consumers never see {count_text(missed, 'message')} of the log."
        if facts.fillers:
            text += f" Also, {_fillers(facts)}."
        yield Verdict(BAD, question, text, "queues")


def _fillers(facts: Facts) -> str:
    units = count_text(facts.fillers, "unit is a filler", "units are fillers")
    return f"{units} for messages missing from the log"


def _consumers(facts: Facts) -> Iterator[Verdict]:
    question = "Do consumers lag?"
    groups = [row for row in facts.consumers.groups if row["queues"]]
    if not groups:
        return
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
    else:
        yield Verdict(GOOD, question, f"No: {count_text(len(groups), 'group')}, no lag.", "consumers")


def span_text(first: int, last: int) -> str:
    """A range of indexes."""
    return number_text(first) if first == last else f"{number_text(first)} to {number_text(last)}"


_LOST_LEVELS = {"nothing": GOOD, "unknown": WARN, "some": BAD}
_SAID = {
    "yes": ("yes", GOOD),
    "master": ("yes", GOOD),
    "slave": ("yes", GOOD),
    "unknown": ("cannot tell", WARN),
    "no": ("no", BAD),
}


def group_verdicts(facts: Facts) -> list[Verdict]:
    """The answers about the group; empty without replicas."""
    found = facts.commit_logs if facts.is_plain else facts.comparison
    if facts.comparison is None or found is None:
        return []
    old = [] if facts.is_plain else _old_commit_logs(facts)
    agreement = _agreement(found) if isinstance(found, CommitLogComparison) else _replicas(found)
    return [_lost(facts, found), *old, *_members(facts, found), *_next(facts), agreement]


def is_trouble(facts: Facts) -> bool:
    """Whether an answer about the group or one of its members is a warning or an error."""
    answers = [*group_verdicts(facts), *(each for member in facts.members for each in verdicts(member))]
    return any(verdict.level in TROUBLE for verdict in answers)


def member_section(number: int) -> str:
    """The id of the part of the page about a member."""
    return f"member-{number}"


def _lost(facts: Facts, found: Comparison | CommitLogComparison) -> Verdict:
    is_plain = isinstance(found, CommitLogComparison)
    text = lost_text(found.verdict)
    level = _LOST_LEVELS[found.verdict.answer]
    # Something is lost yet, or is restored by a salvage only.
    level = WARN if level == GOOD and text != "nothing" else level
    if text == "nothing" and any(member.damaged.entries for member in found.verdict.members):
        text = f"nothing: another member has each damaged {'message' if is_plain else 'entry'} intact"
    if facts.lost_queues:
        text += f": {queues_text(facts.lost_queues)}"
    return Verdict(level, "Is anything lost for good?", _sentence(text), "replicas")


def _old_commit_logs(facts: Facts) -> Iterator[Verdict]:
    found = facts.commit_logs
    if found is not None:
        level = GOOD if found.is_lagging_only else BAD if found.verdict.lost.entries else WARN
        differs = found.first_difference is not None
        text = "; ".join(
            [
                *verdict_lines(found.verdict, is_old=found.is_old),
                *(() if differs else [next(difference_sentences(found))]),
            ]
        )
        yield Verdict(level, "Do the CommitLogs agree?", _sentence(text), "replicas")


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


def _members(facts: Facts, found: Comparison | CommitLogComparison) -> Iterator[Verdict]:
    """The answer for each member, with what `verify` found in its store."""
    members: Sequence[MemberVerdict | CommitLogMember] = found.verdict.members
    for number, (store, member) in enumerate(zip(facts.members, members, strict=True)):
        said, level = _SAID[member.start]
        if isinstance(member, CommitLogMember):
            is_cut = member.start == "slave" and member.truncation is not None and member.truncation.lost_bytes
            level = WARN if is_cut else level
        more = [f"verify: {errors}"] if (errors := _errors(store)) else []
        more += [each.answer.rstrip(".") for each in restart(store) if store.is_plain and each.level in TROUBLE]
        level = WARN if more and level == GOOD else level
        text = "; ".join([f"{said}: {_reason(member_text(member, see_recovery=False))}", *more])
        yield Verdict(level, f"May {printable(member.node)} start?", _sentence(text), member_section(number))


def _reason(text: str) -> str:
    """A sentence about a member without what the question says."""
    return text.removeprefix("must not start as it is: ").removeprefix("cannot tell if it may start: ")


def _errors(store: Facts) -> str:
    if store.findings.reason is not None:
        return f"the store could not be verified ({store.findings.reason})"
    errors = [(code, count) for code, count in store.findings.counts.most_common() if CODES[code].severity == ERROR]
    return ", ".join(f"{code} {number_text(count)}" for code, count in errors)


def _next(facts: Facts) -> Iterator[Verdict]:
    if facts.next is not None:
        text = step_text(facts.next)
        yield Verdict(NEUTRAL, "What to do?", text if facts.next.arguments else _sentence(text), "replicas")


def _replicas(found: Comparison) -> Verdict:
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
        return Verdict(BAD, question, f"{'; '.join([f'No, entries differ: {listed}', *behind])}.", "replicas")
    agree = "Yes, at every index that they share"
    return Verdict(NEUTRAL if behind else GOOD, question, f"{'; '.join([agree, *behind])}.", "replicas")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
