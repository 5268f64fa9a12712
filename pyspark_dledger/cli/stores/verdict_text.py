"""The verdict on a group of replicas in sentences: what is lost, who may start, what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import cell, range_text
from pyspark_dledger.common.plurals import counted

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log.verdict import MemberVerdict as CommitLogMember
    from pyspark_dledger.log.diff.elections import Loss
    from pyspark_dledger.log.diff.ranges import Ranges
    from pyspark_dledger.log.diff.verdict import GroupVerdict, MemberVerdict
    from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage


_MAX_RANGES = 5
SEE_RECOVERY = "dledger recovery says if a restart truncates its log there"


def verdict_lines(found: GroupVerdict, queues: str = "") -> Iterator[str]:
    """The verdict: first what is lost for good, and of which `queues`; then each member."""
    yield f"lost for good: {lost_text(found)}"
    if queues and not found.is_restorable:
        yield f"  {queues}"
    for member in found.members:
        yield f"{shown_name(member)} {member_text(member)}{first_files_text(member, found.members)}"


def shown_name(member: MemberVerdict) -> str:
    """The id of a member, and its path where the last folder has another name."""
    name = PurePath(member.path.partition(",")[0]).name
    return member.node if name in (member.node, f"dledger-{member.node}") else f"{member.node} ({cell(member.path)})"


def lost_text(found: GroupVerdict) -> str:
    """What no replica has intact."""
    parts = ["nothing"] if found.is_restorable else []
    if found.lost_entries.entries:
        count = counted(found.lost_entries.entries, "entry")
        parts.append(f"{count}, damaged on every replica: {ranges_text(found.lost_entries)}")
    if found.filled_entries.entries:
        count = counted(found.filled_entries.entries, "entry")
        parts.append(f"{count}, replaced by fillers of a salvage: {ranges_text(found.filled_entries)}")
    if found.restorable.entries:
        parts.append(headers_text(found.restorable))
    if found.lost_end is not None:
        parts.append(
            f"{range_text(*found.lost_end)}: committed, says the checkpoint of {found.lost_end_from}, but after the "
            "end of every log"
        )
    if found.unclear_entries.entries:
        parts.append(unclear_text(found.unclear_entries))
    parts += unread_ends_text(found.members)
    if parts and found.missing_members:
        parts.append(f"{found.missing_members} of the group's members were not given, and may have them")
    return "; ".join(parts) or "nothing"


def headers_text(ranges: Ranges) -> str:
    """That these entries are not lost for good."""
    return f"only headers are damaged of {ranges_text(ranges)}: dledger salvage restores them"


def unread_ends_text(members: Sequence[MemberVerdict | CommitLogMember]) -> list[str]:
    """That logs may have been longer: what proves it cannot be read."""
    names = _names([member.node for member in members if member.unreadable])
    return [f"cannot tell if a log was longer: files of {names} cannot be read"] if names else []


def unreadable_text(problems: Sequence[str]) -> str:
    """That a member with files that cannot be read cannot be judged."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"cannot tell if it may start: {cell(problems[0])}{more}"


def unknown_files_text(problems: Sequence[str]) -> str:
    """That nothing can tell what files have."""
    return f"cannot tell what it has in files that cannot be read: {', '.join(map(cell, problems))}"


def unclear_text(ranges: Ranges) -> str:
    """That nothing tells whether these entries are lost."""
    return (
        f"cannot tell for {counted(ranges.entries, 'entry')}, {ranges_text(ranges)}: copies differ, only one is left, "
        "equal ones fail their checksum, or a file cannot be read"
    )


def member_text(member: MemberVerdict, *, see_recovery: bool = True) -> str:
    """What may be done with a member as it is, and why; with `see_recovery` also which verb says more."""
    if member.start == "no":
        return f"must not start as it is: {'; '.join(_reasons(member, see_recovery))}"
    if member.start == "unknown" and not member.unclear.entries:
        return unreadable_text(member.unreadable)
    if member.start == "unknown":
        return (
            f"may be damaged: no check tells if its copy of {ranges_text(member.unclear)} is intact; do not let it "
            "lead before you know"
        )
    fillers = ""
    if member.fillers.entries:
        fillers = f"; fillers of a salvage take the place of {ranges_text(member.fillers)}"
    if not member.can_win:
        ahead = f": {_names(member.ahead)} {'is' if len(member.ahead) == 1 else 'are'} ahead" if member.ahead else ""
        return f"may start, and cannot be elected{ahead}{fillers}"
    if member.elect == "no":
        return f"may start only after another member leads: elected, {_losses_text(member.losses)}{fillers}"
    losses = _losses_text(member.losses) or "no replica would lose anything"
    return f"may start and be elected: {losses}{fillers}"


def first_files_text(member: MemberVerdict, members: Sequence[MemberVerdict]) -> str:
    """That a log can have lost its first files, if another one begins before; empty if none does."""
    begins = [other.begin for other in members if 0 <= other.begin < member.begin]
    if not begins:
        return ""
    own = f", its own index has units from {member.index_begin} on" if 0 <= member.index_begin < member.begin else ""
    return f"; its first files are missing or expired: cannot tell, entries from {min(begins)} on are on others{own}"


def _reasons(member: MemberVerdict, see_recovery: bool) -> Iterator[str]:
    if member.damaged.entries:
        how = "intact or filled" if member.is_filled else "intact"
        donors = f", {how} on {_names(member.donors)}" if member.donors and member.in_log.entries else ""
        if member.in_log.entries < member.damaged.entries:
            donors = f"{donors}; of its diverged tail are all but {ranges_text(member.in_log)}"
        if not member.in_log.entries:
            donors = ", of its diverged tail"
        yield f"{counted(member.damaged.entries, 'entry')} damaged, {ranges_text(member.damaged)}{donors}"
    if member.left_out.entries:
        donors = f", which {_names(member.donors)} {_has(member.donors)} intact" if member.donors else ""
        yield f"the salvage that wrote it left out {ranges_text(member.left_out)}{donors}: fillers took their place"
    if member.silent.entries:
        shown = ranges_text(member.silent)
        yield f"Java would not notice {shown}: it would serve what is damaged, and as leader push it to the others"
    if see_recovery and member.damaged.entries > member.silent.entries:
        yield SEE_RECOVERY
    if member.unreadable:
        yield unknown_files_text(member.unreadable)
    if member.short:
        yield f"Java does not load {', '.join(member.short)}: shorter than the other files"
    if member.lost_end is not None:
        yield f"its end is lost: {range_text(*member.lost_end)}, committed as its checkpoint says"
    if member.losses:
        yield f"elected, {_losses_text(member.losses)}"


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


def _names(nodes: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(nodes[:-1]), nodes[-1]))) if nodes else ""


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
