"""The catalogue of verdicts: what is lost, who may start, and why, of DLedger logs and of CommitLogs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import cell, range_text
from pyspark_dledger.common.plurals import counted, enumerated
from pyspark_dledger.log.diff.copy_ranges import ALIKE, DIFFER, ONLY_COPY, UNREAD

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log_group import ConsistentPoint
    from pyspark_dledger.log.diff.copy_ranges import Ranges
    from pyspark_dledger.log.diff.replica_group import Loss
    from pyspark_dledger.log.diff.salvage_doubts import SalvageDoubts
    from pyspark_dledger.log.diff.verdict import GroupVerdict, MemberVerdict
    from pyspark_dledger.log.io.store_use import KnownLoss
    from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage

_MAX_RANGES = 5
_FILES = "checkpoint, index or a ConsumeQueue"
_SEE_RECOVERY = "dledger recovery says if a restart truncates its log there"


def verdict_lines(found: GroupVerdict, begin: int = 0, *, queues: str = "", is_old: bool = False) -> Iterator[str]:
    """The verdict: first what is lost for good, and of which `queues`; then each member. Logs begin at a position.

    `is_old`: DLedger follows the CommitLog, so only members that must not start are told.
    """
    texts = [lost_text(found), *([before_text(begin)] if begin else [])]
    yield f"lost for good{' in the old CommitLog' if is_old else ''}: {'; '.join(texts)}"
    if queues and not found.is_restorable:
        yield f"  {queues}"
    for member in shown_members(found, is_old):
        yield f"{shown_name(member.node, member.path)} {member_text(member)}{first_files_text(member)}"


def shown_members(found: GroupVerdict, is_old: bool) -> list[MemberVerdict]:
    """The members with a verdict of their own. Who may lead an old CommitLog is a question about the DLedger log."""
    return [each for each in found.members if not is_old or each.start not in ("master", "slave")]


def shown_name(name: str, path: str) -> str:
    """The name of a member, and its path where the last folder has another name."""
    folder = PurePath(path.partition(",")[0]).name
    return name if name in (folder, path) or folder == f"dledger-{name}" else f"{name} ({cell(path)})"


# What is lost


def lost_text(found: GroupVerdict) -> str:
    """What no replica has intact."""
    if found.strangers:
        return f"cannot tell: {enumerated(found.strangers)} are not replicas of one log; no member may start by this"
    lost, filled = found.lost_entries, found.filled_entries
    parts = ["nothing"] if found.is_restorable else []
    if lost.entries:
        parts.append(f"{_places(found, lost)}: intact on no replica")
    if filled.entries:
        parts.append(f"{_places(found, filled)}: replaced by fillers of a salvage")
    if found.restorable.entries:
        parts.append(headers_text(found.restorable))
    if found.lost_end is not None:
        parts.append(
            f"entries {range_text(*found.lost_end)}: {_FILES} of {found.lost_end_from} shows them, but they are after "
            "the end of every log"
        )
    parts += [each.text for each in found.lost_ends]
    if found.unclear_entries.entries:
        what = "positions" if found.is_plain else ""
        parts.append(unclear_text(found.unclear_entries, found.unclear_reasons, what))
    parts += unread_ends_text(found.members)
    parts += rivals_text(sorted(member.node for member in found.members if member.rivals))
    if found.is_emptied and not parts:
        parts.append("cannot tell: no entry is left on any member, and nothing shows how many there were")
    if parts and found.missing_members:
        parts.append(f"{found.missing_members} of the group's members were not given, and may have them")
    yet = [
        f"{member.node} would lose {member.truncation.confirmed_bytes} confirmed bytes as slave of {member.ahead[0]}"
        for member in found.members
        if member.truncation is not None and member.truncation.confirmed_bytes
    ]
    yet += [
        f"{member.node} has {member.confirmed_alone} confirmed bytes that the log of {enumerated(member.ahead)} lacks"
        for member in found.members
        if member.confirmed_alone and member.truncation is None and member.ahead
    ]
    if yet and not parts:
        parts.append("nothing yet")
    return "; ".join([*parts, *yet]) or "nothing"


def rivals_text(names: Sequence[str]) -> list[str]:
    """That one of the logs that diverged is the group's, and nothing tells which: only what one lost is known."""
    which = "nothing tells which log the last master wrote, so what only the other one lost is not listed"
    return [f"cannot tell for the logs of {enumerated(names)}: {which}"] if names else []


def before_text(pos: int) -> str:
    """That no log begins before a position."""
    return f"what was before position {pos} expired, or its files are lost: cannot tell"


def _places(found: GroupVerdict, ranges: Ranges) -> str:
    """``3 entries, 7 to 8, 12``, or ``positions 4 to 9``."""
    what = "positions" if found.is_plain else f"{counted(ranges.entries, 'entry')},"
    return f"{what} {ranges_text(ranges)}"


def headers_text(ranges: Ranges) -> str:
    """That these entries are not lost for good."""
    return f"only headers are damaged of {ranges_text(ranges)}: dledger salvage restores them"


def unread_ends_text(members: Sequence[MemberVerdict]) -> list[str]:
    """That logs may have been longer: what proves it cannot be read."""
    names = enumerated([member.node for member in members if member.unreadable])
    return [f"cannot tell if a log was longer: files of {names} cannot be read"] if names else []


_UNDECIDED = {
    DIFFER: "copies differ, and no check shows which one is right",
    ONLY_COPY: "only one copy is left, and no check covers it",
    ALIKE: "equal copies fail their checksum",
    UNREAD: "a file that can have them cannot be read",
}


def unclear_text(ranges: Ranges, reasons: Iterable[str], what: str = "") -> str:
    """That nothing tells whether these entries, or `what` is at these positions, are lost, and why."""
    found = what or f"{counted(ranges.entries, 'entry')},"
    return f"cannot tell for {found} {ranges_text(ranges)}: {', or '.join(_UNDECIDED[each] for each in reasons)}"


def doubts_text(name: str, found: SalvageDoubts) -> str:
    """What nobody knew when a salvage wrote a store, or the one that it was exported from."""
    own, source = _doubts(found, found.entries, found.positions), f"the store that {name} was exported from"
    before = _doubts(found, found.source_entries, found.source_positions)
    wrote = ((name, own), (source, before))
    return "; ".join(f"when a salvage wrote {what}: {'; '.join(texts)}" for what, texts in wrote if texts)


def _doubts(found: SalvageDoubts, entries: Ranges, positions: Ranges) -> list[str]:
    kinds = ((entries, ""), (positions, "positions"))
    return [unclear_text(ranges, found.reasons, what) for ranges, what in kinds if ranges.entries]


def lost_count(found: Iterable[LostMessage]) -> str:
    """The number of lost messages, at least; what is between known ones can have had more."""
    from pyspark_dledger.rocketmq.lost.lost_messages import count_of

    listed = list(found)
    count, is_all = count_of(listed)
    if not listed:
        return "nothing"
    places = sum(lost.entries is None for lost in listed)
    messages = counted(count, "message")
    if is_all:
        return messages
    return f"at least {messages}; nothing tells what was in {counted(places, 'damaged place')}"


# Who may start


def member_text(member: MemberVerdict, *, see_recovery: bool = True) -> str:
    """What may be done with a member as it is, and why; with `see_recovery` also which verb says more."""
    if member.start == "no":
        return f"must not start as it is: {'; '.join([reasons_text(member), *_hint(member, see_recovery)])}"
    if member.strangers:
        return f"cannot tell if it may start: it is not a replica of the log of {enumerated(member.strangers)}"
    if member.start == "unknown" and member.rivals:
        return (
            f"cannot tell if it may start: its log diverged from that of {enumerated(member.rivals)}, and neither "
            "epochs nor times tell which one the last master wrote"
        )
    if member.start == "unknown" and not member.unclear.entries:
        return unreadable_text(member.unreadable)
    return _MEMBERS[member.start](member)


def reasons_text(member: MemberVerdict) -> str:
    """Why a member must not start."""
    return "; ".join(text for reason in _REASONS for text in [reason(member)] if text)


def _hint(member: MemberVerdict, see_recovery: bool) -> Iterator[str]:
    """Where to see more of damage that a restart could cut off."""
    if see_recovery and (member.is_plain or member.damaged.entries > member.silent.entries) and member.damaged.entries:
        yield _SEE_RECOVERY


def _unclear(member: MemberVerdict) -> str:
    where = f"{'positions ' if member.is_plain else ''}{ranges_text(member.unclear)}"
    lead = "be the master" if member.is_plain else "lead before you know"
    return f"may be damaged: nothing tells if its copy of {where} is right; do not let it {lead}"


def _electable(member: MemberVerdict) -> str:
    fillers = ""
    if member.fillers.entries:
        fillers = f"; fillers of a salvage take the place of {ranges_text(member.fillers)}"
    if not member.can_win:
        ahead = (
            f": {enumerated(member.ahead)} {'is' if len(member.ahead) == 1 else 'are'} ahead" if member.ahead else ""
        )
        return f"may start, and cannot be elected{ahead}{fillers}"
    if member.elect == "no":
        return f"may start only after another member leads: elected, {_losses_text(member.losses)}{fillers}"
    losses = _losses_text(member.losses) or "no replica would lose anything"
    return f"may start and be elected: {losses}{fillers}"


def _master(member: MemberVerdict) -> str:
    losers = " and ".join(member.overwritten)
    losses = f"{losers} would lose positions {ranges_text(member.overwrites)}, which another master wrote"
    return f"may start and be the master: {losses if losers else 'no replica would lose anything'}"


def _slave(member: MemberVerdict) -> str:
    point = member.truncation
    by = f"is ahead by {member.ahead_bytes} bytes" if member.ahead_bytes > 0 else "is of a later epoch"
    text = f"may start, and must not be the master: {member.ahead[0]} {by}"
    if point is not None and (point.lost_bytes or point.equal_bytes or not point.is_common):
        return f"{text}; as its slave, {truncation_text(point)}"
    return text


_MEMBERS: dict[str, Callable[[MemberVerdict], str]] = {
    "yes": _electable,
    "master": _master,
    "slave": _slave,
    "unknown": _unclear,
}
"""What may be done with a member that has no reason not to start."""


def first_files_text(member: MemberVerdict) -> str:
    """That a log can have lost its first files, if another one begins before; empty if none does."""
    if not member.begins_later:
        return ""
    text = f"; its log begins at {member.begin}, and another one at {member.first_begin}"
    if not member.may_lack_first_files:
        return text
    return (
        f"{text}: cannot tell if its first files expired or are lost, because its index begins at {member.index_begin}"
    )


# Why a member must not start: each reason is a function that gives a sentence, empty if it does not apply.


def _damaged(member: MemberVerdict) -> str:
    count, where = member.damaged.entries, ranges_text(member.damaged)
    if not count:
        return ""
    if member.is_plain:
        intact = f", intact on {enumerated(member.donors)}" if member.donors else ""
        return f"{count} bytes damaged or missing, positions {where}{intact}"
    how = "intact or filled" if member.is_filled else "intact"
    intact = f", {how} on {enumerated(member.donors)}" if member.donors and member.in_log.entries else ""
    if not member.in_log.entries:
        intact = ", of its diverged tail"
    elif member.in_log.entries < count:
        intact = f"{intact}; of its diverged tail are all but {ranges_text(member.in_log)}"
    return f"{counted(count, 'entry')} damaged, {where}{intact}"


def _emptied(member: MemberVerdict) -> str:
    return "none of its entries is left, and its files show that it had some" if member.is_emptied else ""


def _left_out(member: MemberVerdict) -> str:
    if not member.left_out.entries:
        return ""
    donors = f", which {enumerated(member.donors)} {_has(member.donors)} intact" if member.donors else ""
    where = ranges_text(member.left_out)
    if member.is_plain:
        return f"the salvage that wrote it left out positions {where}: fillers took their place"
    return f"the salvage that wrote it left out {where}{donors}: fillers took their place"


def _silent(member: MemberVerdict) -> str:
    if member.is_plain or not member.silent.entries:
        return ""
    where = ranges_text(member.silent)
    return f"Java would not notice {where}: it would serve what is damaged, and as leader push it to the others"


def _unread(member: MemberVerdict) -> str:
    is_unread = member.is_unread if member.is_plain else bool(member.unreadable)
    return unknown_files_text(member.unreadable) if is_unread else ""


def _short(member: MemberVerdict) -> str:
    if not member.short:
        return ""
    who = "a broker" if member.is_plain else "Java"
    return f"{who} does not load {', '.join(map(cell, member.short))}: shorter than the other files"


def _blanks(member: MemberVerdict) -> str:
    if not member.damaged_blanks:
        return ""
    more = f" and {len(member.damaged_blanks) - 1} more" if len(member.damaged_blanks) > 1 else ""
    return f"the end of a data file is damaged at position {member.damaged_blanks[0]}{more}, where no entry was"


def _lost_end(member: MemberVerdict) -> str:
    end = member.lost_end
    if end is None:
        return ""
    if isinstance(end, tuple):
        return f"its end is lost: {_FILES} shows entries {range_text(*end)}"
    more = f"; {enumerated(end.donors)} {_has(end.donors)} more" if end.donors else ""
    return f"its end is lost: {end.proof}{more}"


def _elected(member: MemberVerdict) -> str:
    return f"elected, {_losses_text(member.losses)}" if member.losses else ""


def _epochs(member: MemberVerdict) -> str:
    problem = member.epoch_problem
    return f"its epochFileCheckpoint is wrong: {problem}" if problem is not None else ""


def _follows(member: MemberVerdict) -> str:
    if not member.is_plain:
        return ""
    point = member.truncation
    if point is not None and point.pos is None:
        remedy = "; without epochFileCheckpoint and its .bak it follows" if point.equal_bytes else ""
        return f"it cannot follow {member.ahead[0]}: {truncation_text(point)}{remedy}"
    if member.missing is not None:
        where = range_text(*member.missing)
        return f"it cannot follow {member.ahead[0]}, which no longer has positions {where}"
    if member.can_follow:
        return ""
    where = ranges_text(member.diverged)
    return f"another master wrote its messages at positions {where}, and nothing truncates them all"


_REASONS: tuple[Callable[[MemberVerdict], str], ...] = (
    *(_damaged, _emptied, _left_out, _silent, _unread, _short, _blanks, _lost_end, _elected, _epochs, _follows),
)


_LACKS_EPOCH = "one of their files lacks an epoch (RocketMQ issue 9689)"


def truncation_text(point: ConsistentPoint) -> str:
    """Where Java truncates a slave, and what that loses; or that it does not follow."""
    if point.pos is None:
        why = f": {_LACKS_EPOCH}" if point.equal_bytes else ""
        return f"Java finds no consistent point in their epochs{why}"
    confirmed = f", {point.confirmed_bytes} of them confirmed" if point.confirmed_bytes else ""
    effects = [f"loses {point.lost_bytes} bytes{confirmed}"] if point.lost_bytes else []
    if point.equal_bytes:
        effects.append(f"copies {point.equal_bytes} equal bytes again: {_LACKS_EPOCH}")
    differs = "" if point.is_common else "; Java does not notice that their bytes differ before that position"
    return f"Java truncates it at {point.pos}, and it {', and '.join(effects) or 'loses nothing'}{differs}"


def unreadable_text(problems: Sequence[str]) -> str:
    """That a member with files that cannot be read cannot be judged."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"cannot tell if it may start: {cell(problems[0])}{more}"


def unknown_files_text(problems: Sequence[str]) -> str:
    """That nothing can tell what files have."""
    return f"cannot tell what it has in files that cannot be read: {', '.join(map(cell, problems))}"


def ranges_text(ranges: Ranges) -> str:
    """The first ranges of indexes."""
    shown = [range_text(first, last) for first, last in ranges.ranges[:_MAX_RANGES]]
    return ", ".join(shown) + (" and more" if len(ranges.ranges) > _MAX_RANGES else "")


def _losses_text(losses: Sequence[Loss]) -> str:
    return "; ".join(
        f"{loss.node} would lose {range_text(loss.first_index, loss.last_index)}"
        f"{', committed' if loss.committed else ', on a majority' if loss.on_majority else ''}"
        for loss in losses
    )


def _has(nodes: Sequence[str]) -> str:
    return "has" if len(nodes) == 1 else "have"


def known_loss_text(name: str, loss: KnownLoss) -> str:
    """What a salvage could not restore at the end of a log."""
    what = f"committed entries up to {loss.last_index}" if loss.last_index >= 0 else f"positions up to {loss.last_pos}"
    return f"{what}, after the end of the log that a salvage wrote as {name}"
