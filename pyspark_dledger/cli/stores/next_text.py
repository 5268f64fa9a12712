"""The next command in lines: the command alone, which works when pasted, then what it does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from pyspark_dledger.common.plurals import enumerated
from pyspark_dledger.log import next_step
from pyspark_dledger.log.next_step import NextStep

_SENTENCES = {
    next_step.READABLE: "it lists the files that cannot be read: make them readable, then repeat this command",
    next_step.STOP: "first stop the broker of {names}: while it writes, nothing can tell what is damaged",
    next_step.APART: "{names} are of several groups: check each group by itself, with all of its replicas; keep all "
    "stores, and export each (docs/incident.md)",
    next_step.CHOOSE: "choose the log of one of {names}: nothing tells which log the last master wrote. dledger diff "
    "shows both, and dledger salvage PATH... --plan --log-of ID restores that of ID",
    next_step.PLAN: "it writes nothing: it shows what can be restored, and from which store",
    next_step.COPY: "a salvage does not write stores of DLedger 0.4.0: stop {names}; of each, move its folder away, "
    "copy that of {donors} there (cp -a --sparse=always), rename dledger-ID in it, and keep its own currterm "
    "(docs/operations.md, copy a peer)",
    next_step.KEEP: "a salvage does not write stores of DLedger 0.4.0, and no member is known to be complete: keep all "
    "stores of {names}, compare the copies that differ with dledger diff and dledger dump, and save the messages of "
    "each with dledger export",
    next_step.SALVAGE: "it only reads these stores, and writes a healthy one",
    next_step.EMPTY: "{names} have nothing that a salvage could restore: restore a backup (dledger restore)",
    next_step.UNDECIDED: "it takes the bytes that most copies have; of different copies without a majority, it takes "
    "one, and nothing shows that it is right: --take INDEX=ID, of a CommitLog --take POS=ID, takes the copy of a store "
    "instead",
    next_step.CHECK: "it says what may be started, and what is lost: give all replicas of a group",
    next_step.COMPARE_QUEUES: "it writes nothing: it shows what a rebuild would change",
    next_step.REBUILD: "stop the broker first; the old files are kept",
    next_step.DETAILS: "it says what to do about each finding",
    next_step.SAVE: "it saves what {names} would lose as a slave; then start the others first",
    next_step.REPAIR: "do what is written above after {names}, then run dledger check again",
    next_step.UNCHANGED: "a rebuild would change nothing",
    next_step.FIRST_FILES: "if the first files of {names} expired, start all members instead; if they are lost, this "
    "command shows what a salvage restores",
    next_step.START: "start {names}",
    next_step.LEAD: "start {names} first; the other members follow",
    next_step.EMPTY_MAJORITY: "most members have no entries, and would begin a new log: start {names} with only so "
    "many of them that a majority runs (docs/operations.md, a majority lost its disks)",
    next_step.REPLACE: "start this store instead of {names}, and replace other damaged members by a copy of it "
    "(docs/operations.md, copy a peer)",
}


def next_lines(found: NextStep) -> Iterator[str]:
    """``next:`` with a command and a line about it, or with what to choose; ``done:`` if nothing is left to run."""
    text = next_sentence(found)
    if not found.arguments:
        yield f"{'next' if found.step == next_step.CHOOSE else 'done'}: {text}"
        return
    yield f"next: {found.command}"
    yield f"  {text}"
    if found.before:
        yield f"  before it, save what this log leaves out: {shlex.join(found.before)}"


def next_sentence(found: NextStep) -> str:
    """What the next step does."""
    donors = " or ".join(found.donors) or "a complete member"
    return _SENTENCES[found.step].format(names=enumerated(found.names or ("it",)), donors=donors)


def step_text(found: NextStep) -> str:
    """The next step as one sentence, with its command if it has one."""
    return f"{found.command}: {next_sentence(found)}" if found.arguments else next_sentence(found)
