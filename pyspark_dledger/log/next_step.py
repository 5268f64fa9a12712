"""The next command after a verb has judged stores: one decision for all verbs, as data; `cli` has the sentences."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_dledger.log.io.files import is_remote_path, path_of
from pyspark_dledger.log.verify.findings import CODES, ERROR, INFO

READABLE = "readable"
"""Files cannot be read: the command lists them."""
STOP = "stop"
"""A store is in use: the same command, after its broker was stopped."""
APART = "apart"
"""Stores are no replicas of one log: check those that are."""
CHOOSE = "choose"
"""Logs diverged, and nothing tells which one the last master wrote: the user names it to a salvage."""
PLAN = "plan"
"""Something is damaged: what can be restored from where."""
COPY = "copy"
"""Something is damaged in stores that no salvage writes: copy a complete member by hand."""
KEEP = "keep"
"""As `COPY`, and no member is known to be complete: keep all stores."""
SALVAGE = "salvage"
"""Write what the plan shows."""
EMPTY = "empty"
"""No store has an intact entry, so there is nothing to salvage."""
UNDECIDED = "undecided"
"""Write it, with a decision for the entries of which nothing says that a copy is right."""
CHECK = "check"
"""Check what was written, or all of a group."""
COMPARE_QUEUES = "compareQueues"
"""Only ConsumeQueues or IndexFiles are wrong: what a rebuild would change."""
REBUILD = "rebuild"
"""Write what the comparison shows."""
DETAILS = "details"
"""Something else is wrong: the command says what to do about it."""
SAVE = "save"
"""Save what a member would lose when it follows another one."""
REPAIR = "repair"
"""Do by hand what the findings say, whose codes are its names; then check again."""
UNCHANGED = "unchanged"
"""A rebuild would change nothing."""
FIRST_FILES = "firstFiles"
"""First files of a member expired or are lost, and nothing tells which: what can be restored if they are lost."""
START = "start"
"""Nothing is left to do before a start."""
LEAD = "lead"
"""Start the members that may lead before the others, which follow them."""
EMPTY_MAJORITY = "emptyMajority"
"""Start the members with entries, and of the others no more than they need to be elected."""
STARTS = (START, LEAD, EMPTY_MAJORITY)
"""What is left to do if nothing is wrong."""
REPLACE = "replace"
"""Start a salvaged store instead of the damaged ones."""

QUEUES, KEYS = "consumequeue", "index"
_TARGET = "healthy"


QUEUE_CODES = frozenset(
    (
        *("consumeQueueUnit", "consumeQueueTags", "consumeQueuePlace", "consumeQueueGap", "consumeQueueFileSize"),
        *("messageNotInQueue", "messagesNotDispatched", "consumeQueueEmptyFile"),
    )
)
NO_UNIT_CODES = frozenset(("queueOffsetRepeated", "queueOffsetTooFar", "messageBeforeDatabase", "expiredFileLeft"))
"""Findings about messages to which no rebuild gives a unit, or none that they need."""
KEY_CODES = frozenset(("keyIndexHeader", "keyIndexUnit"))
"""Findings that a rebuild of the queues or of the index of keys repairs."""
BESIDE_LOG = frozenset(
    (
        *("configInvalid", "indexFileMissing", "indexUnit", "indexUnitMissing", "epochFileUnreadable"),
        *("checkpointUnreadable", "messageQueue"),
    )
)
"""Further errors of files other than the log, with which Java starts; replicas judge a message that its queue has at
another place."""


@dataclass(frozen=True)
class NextStep:
    """What to do next: ``arguments`` are a command that works as it is, empty if nothing is to be run.

    ``names`` are the members that ``step`` is about, ``donors`` those to copy. ``before`` is a command that saves what
    the step leaves out.
    """

    step: str
    arguments: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    donors: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command as a shell takes it; empty without one."""
        return shlex.join(self.arguments)


@dataclass(frozen=True)
class Condition:
    """What decides about the next step of one store.

    ``is_damaged``: it must not be started as it is, or its log, its index or its state is wrong. ``rebuild`` is
    `QUEUES` or `KEYS` if only those are wrong, ``has_findings`` if anything else is. ``strangers`` are the members of
    which it is no replica, ``rivals`` those of which nothing tells if their logs are of a later master.
    ``may_lack_first_files``: its first files expired or are lost, and nothing tells which. ``is_empty``: its log has
    no entries.
    """

    name: str
    path: str
    is_unreadable: bool = False
    is_in_use: bool = False
    strangers: tuple[str, ...] = ()
    is_damaged: bool = False
    rebuild: str | None = None
    has_findings: bool = False
    may_lead: bool = True
    may_lack_first_files: bool = False
    is_empty: bool = False
    save: tuple[str, int] | None = None
    rivals: tuple[str, ...] = ()


def next_step(
    members: Sequence[Condition],
    *,
    is_lost: bool = False,
    can_salvage: bool = True,
    is_empty: bool = False,
    log_of: str | None = None,
) -> NextStep:
    """The next step for the stores of a group, or for one store, by the first rule that applies.

    `is_lost`: no member has all that the group had. `can_salvage` is false for stores that a salvage does not write.
    `is_empty`: the group lost all that it had.
    `log_of` is the member whose log is restored if the logs diverged.
    """
    damaged = [each for each in members if each.is_damaged]
    healthy = [each for each in members if not each.is_damaged]
    paths = [each.path for each in (*damaged, *healthy)]
    if unreadable := [each for each in members if each.is_unreadable]:
        return _step(READABLE, ["verify", *_paths(unreadable), "--least", "warning"], unreadable)
    if strangers := [each for each in members if each.strangers]:
        return _step(APART, ["check", *_paths(_largest_group(members))], strangers)
    in_use = [each for each in members if each.is_in_use]
    if in_use and (is_lost or damaged or any(each.rebuild for each in members)):
        return _step(STOP, ["check", *_paths(members)], in_use)
    if can_salvage and (rivals := [each for each in members if each.rivals]):
        return NextStep(CHOOSE, names=tuple(each.name for each in rivals))
    if damaged or is_lost:
        if is_empty:
            return NextStep(EMPTY, names=tuple(each.name for each in members))
        if not can_salvage:
            donors = tuple(each.name for each in healthy if each.may_lead)
            is_possible = bool(damaged and (donors or len(members) == 1))
            names = tuple(each.name for each in (damaged if is_possible else members))
            return NextStep(COPY if is_possible else KEEP, names=names, donors=donors)
        chosen = ["--log-of", log_of] if log_of is not None else []
        left_out = [each for each in members if each.save is not None and chosen]
        before = _save(left_out[0]).arguments if left_out else ()
        return replace(_step(PLAN, ["salvage", *paths, *chosen, "--plan"], damaged), before=before)
    for each in members:
        if each.rebuild is not None:
            others = [other.path for other in members if other is not each]
            return _step(COMPARE_QUEUES, ["rebuild", each.rebuild, each.path, *others, "--dry-run"], [each])
    if found := [each for each in members if each.has_findings]:
        return _step(DETAILS, ["verify", *_paths(found), "--least", "warning"], found)
    for each in members:
        if each.save is not None:
            return _save(each)
    lacking = [each for each in members if each.may_lack_first_files]
    if lacking and can_salvage:
        complete = [each for each in members if each not in lacking]
        return _step(FIRST_FILES, ["salvage", *_paths([*lacking, *complete]), "--plan"], lacking)
    filled = [each for each in members if not each.is_empty]
    if filled and 2 * len(filled) < len(members):
        return NextStep(EMPTY_MAJORITY, names=tuple(each.name for each in filled))
    leaders = [each for each in members if each.may_lead] or members
    return NextStep(START if len(leaders) == len(members) else LEAD, names=tuple(each.name for each in leaders))


def _largest_group(members: Sequence[Condition]) -> list[Condition]:
    """The first of the largest groups of members that are replicas of one log."""
    groups = ([each for each in members if each is one or each.name not in one.strangers] for one in members)
    return max(groups, key=len)


def _save(member: Condition) -> NextStep:
    """Save what a member would lose as a slave, or in a salvage of another log."""
    assert member.save is not None
    return _step(SAVE, export_from(*member.save), [member])


def export_from(source: str, pos: int) -> list[str]:
    """The arguments that save a log from a position on."""
    target, start = unused(f"{path_of(source).name}-rest", [source]), f'startingOffsets={{"pos": {pos}}}'
    return ["export", source, target, "--to", "jsonl", "--option", start]


def after_plan(arguments: Sequence[str], sources: Sequence[str], has_undecided: bool) -> NextStep:
    """The step after a plan of a salvage of `sources` with `arguments`, which do not name a target."""
    decision = ("--undecided", "majority") if has_undecided else ()
    step = UNDECIDED if has_undecided else SALVAGE
    return NextStep(step, ("dledger", "salvage", *arguments, *decision, "--to", unused(_TARGET, sources)))


def after_choice(arguments: Sequence[str], log_of: str) -> NextStep:
    """The step after a salvage with `arguments` that must be told which log to restore."""
    return NextStep(PLAN, ("dledger", "salvage", *arguments, "--log-of", log_of, "--plan"))


def after_findings(paths: Sequence[str], codes: AbstractSet[str]) -> NextStep | None:
    """The step after the findings with `codes` of the stores at `paths`; None if nothing is wrong."""
    faults = {code for code in codes if CODES[code].severity != INFO}
    if not is_damage(faults) and QUEUE_CODES.isdisjoint(faults) and KEY_CODES.isdisjoint(faults):
        return NextStep(REPAIR, names=tuple(sorted(faults))) if faults else None
    return check_of(*paths)


def is_damage(codes: Iterable[str]) -> bool:
    """Whether there is an error that no rebuild of queues or of the index of keys repairs."""
    return any(CODES[code].severity == ERROR for code in codes if code not in QUEUE_CODES | KEY_CODES)


def after_comparison(arguments: Sequence[str], is_equal: bool) -> NextStep:
    """The step after a dry run of a rebuild with `arguments`."""
    return NextStep(UNCHANGED) if is_equal else NextStep(REBUILD, ("dledger", *arguments))


def check_of(*paths: str) -> NextStep:
    """The step after something was written."""
    return NextStep(CHECK, ("dledger", "check", *paths))


def unused(name: str, stores: Iterable[str]) -> str:
    """A path that no file has: `name`, or one like it, in the working directory, or above it if that is in a store."""
    folders = {path_of(path) for store in stores for path in store.split(",")}
    within = {path.resolve() for path in folders if not is_remote_path(path)}
    here = Path.cwd()
    outside = (folder for folder in (here, *here.parents) if within.isdisjoint((folder, *folder.parents)))
    path = os.path.relpath(next(outside, here) / name)
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = f"{path}-{number}"
    return found


def as_given(path: str) -> str:
    """A path below the working directory as a relative one, which is shorter to paste."""
    given, here = path_of(path), Path.cwd()
    return path if is_remote_path(given) or not given.is_relative_to(here) else str(given.relative_to(here))


def _paths(members: Sequence[Condition]) -> list[str]:
    return [each.path for each in members]


def _step(step: str, arguments: Sequence[str], members: Sequence[Condition]) -> NextStep:
    return NextStep(step, ("dledger", *arguments), tuple(each.name for each in members))
