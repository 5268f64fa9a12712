"""What can be wrong with a store: the catalogue of findings, which is the only home of codes, severities and texts.

What Java does is what its versions up to DLedger 0.3.2 did in the experiments of tests/goldens
(``corruption-java-behaviour.json``), and otherwise what their source says; 0.4.0 is named where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["info", "warning", "error"]

INFO: Severity = "info"
WARNING: Severity = "warning"
ERROR: Severity = "error"
SEVERITIES: tuple[Severity, ...] = (INFO, WARNING, ERROR)
"""From the least to the most severe. What a healthy store has is at most `INFO`."""


class Code(NamedTuple):
    """A kind of finding: what it means and what to do about it, and what Java does when it meets it."""

    code: str
    severity: Severity
    text: str
    java_does: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing; the fields are the columns of the table ``findings``, in its order.

    ``node`` is the id in ``dledger-<id>``, None for a plain CommitLog. ``file`` is relative to the store's root, as
    ``dledger-n0/data/00000000000000000000``; absolute where the file lies outside. ``offset`` is in bytes from the
    beginning of that file, as a hex editor wants it; None where it is about no single place. ``index`` is of the
    DLedger entry that it is about. ``pos`` is the position in the log that it is about, or that a unit points to;
    ``size`` are the bytes from there on that are damaged or missing. None where it is not about the log.
    """

    severity: Severity
    code: str
    node: str | None
    file: str
    offset: int | None
    index: int | None
    pos: int | None
    size: int | None
    expected: str | None
    found: str | None
    java_does: str

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset is not None else ""
        index = f" (index {self.index})" if self.index is not None else ""
        values = (("expected", self.expected), ("found", self.found))
        what = ", ".join(f"{name} {value}" for name, value in values if value is not None)
        return f"{self.severity} {self.code}: {self.file}{place}{index}{f': {what}' if what else ''}"

    @property
    def count(self) -> int:
        """How many findings it stands for."""
        return 1


@dataclass(frozen=True)
class UnlistedFindings(Finding):
    """Stands for findings of its code and file that are not listed."""

    unlisted: int

    @property
    def count(self) -> int:
        return self.unlisted


_NOT_NOTICED = "Not noticed."
_SCAN_STOPS = (
    "Last two data files: truncates there and deletes what follows, committed or not. Third to last: exits with code "
    "255. Earlier: not noticed."
)
_MESSAGE_UNSEEN = (
    "Not noticed by DLedger. A broker that fails on it skips the rest of its buffer: messages are missing from the "
    "ConsumeQueue (RocketMQ issue 8394)."
)

_NO_TIMES = "After a crash, it may recover from the first file on."

CATALOGUE: tuple[Code, ...] = (
    # Files
    Code(
        "fileGap",
        ERROR,
        "Data files are missing between two others. Copy them from a replica.",
        "Throws DISK_ERROR (414), check data file order failed. First files missing: opens and begins at the first one "
        "left.",
    ),
    Code(
        "strayFile",
        ERROR,
        "A file has a segment's name but does not belong to this log. Move it away.",
        "Throws DISK_ERROR (414), check data file order failed.",
    ),
    Code(
        "fileName",
        ERROR,
        "A file's entries belong at another position than its name: it was renamed or swapped. Name it after its first "
        "entry.",
        "Last three data files: as corruptBytes. Earlier: opens, but reading an entry fails (414) or returns a wrong "
        "one.",
    ),
    Code(
        "fileSize",
        ERROR,
        "A file's size differs from that of the others in its folder. Compare replicas.",
        "Exits with code 255 on loading it.",
    ),
    Code(
        "shortFile",
        ERROR,
        "A segment file is too short. Copy it from a replica, or pad it with zeros if its end was never written.",
        "Exits with code 255 on loading it.",
    ),
    Code(
        "foreignFile",
        ERROR,
        "A folder of segments contains something else. Move it away.",
        "Exits with code 255 in data/ and dledger-<id>/index/.",
    ),
    Code(
        "unreadableFile",
        ERROR,
        "A file or folder cannot be read. Check its permissions and its disk.",
        "Cannot load it either.",
    ),
    # Entries
    Code(
        "corruptBytes",
        ERROR,
        "Bytes inside the log are neither entry nor blank: data is lost on this replica. Compare replicas.",
        _SCAN_STOPS,
    ),
    Code(
        "witnessesDisagree",
        WARNING,
        'Files contradict each other about damaged bytes. The log is read by the value after "expected". Compare '
        "replicas.",
        _NOT_NOTICED,
    ),
    Code(
        "indexGap",
        ERROR,
        "An entry's index does not follow the one before: entries are missing or duplicated. Compare replicas.",
        _SCAN_STOPS,
    ),
    Code(
        "segmentOrder",
        ERROR,
        "A file does not continue the file before it: one of the two is from another time or another log. Compare "
        "replicas.",
        _SCAN_STOPS,
    ),
    Code(
        "termOrder",
        ERROR,
        "An entry's term is smaller than the one before: a header is damaged. Compare replicas.",
        "Last two data files: keeps the larger term and truncates after it; its last term stays wrong. Third to "
        "last: exits with code 255. Earlier: not noticed.",
    ),
    Code(
        "posDiffers",
        INFO,
        "Headers give wrong positions: a follower of DLedger 0.4.0 keeps the leader's.",
        "0.4.0 does not check. Up to 0.3.2: truncates there.",
    ),
    Code(
        "headerField",
        WARNING,
        "A header's channel or chainCrc is wrong: the header may be damaged.",
        _NOT_NOTICED,
    ),
    Code(
        "bodyCrc",
        ERROR,
        "A header's bodyCrc is neither 0 nor the body's CRC: one is damaged. Compare replicas.",
        _NOT_NOTICED,
    ),
    Code(
        "newerMagic",
        INFO,
        "The log has NOOP (magic 2) or CONFIG_CHANGE (3) entries. Open it only with DLedger 0.4.0.",
        "0.4.0 skips a NOOP. Up to 0.3.2: truncates at the first such entry and deletes later files.",
    ),
    # Messages
    Code(
        "messageStructure",
        ERROR,
        "A body starts like a message but cannot be parsed. Compare replicas.",
        _MESSAGE_UNSEEN,
    ),
    Code(
        "messageOffset",
        ERROR,
        "A message's physicalOffset is not its position: it was copied or is damaged.",
        _MESSAGE_UNSEEN,
    ),
    Code(
        "messageCrc",
        ERROR,
        "A message's body does not match its stored CRC. Copy it from a replica.",
        _MESSAGE_UNSEEN,
    ),
    Code(
        "propertyCrc",
        ERROR,
        "A message does not match the CRC in its property __CRC32#. Compare replicas.",
        "Checked only with forceVerifyPropCRC.",
    ),
    Code(
        "messageTimestamp",
        INFO,
        "A message's born or store time is outside years 1 to 9999: a client set it, or it is damaged. Reads by time "
        "miss it.",
        _NOT_NOTICED,
    ),
    Code(
        "decidedCopy",
        INFO,
        "A check of this entry fails; the salvage that wrote the store was told to take it (decided.jsonl).",
        _MESSAGE_UNSEEN,
    ),
    # Behind the log
    Code(
        "blankSize",
        WARNING,
        "The blank at a file's end has a wrong size. Nothing is lost.",
        "Up to 0.3.2: continues with the next file. 0.4.0: follows it.",
    ),
    Code(
        "staleBytes",
        INFO,
        "Whole entries remain after the end of the log: a truncation left them there.",
        "Recovery stops there. One that continues index, position and term becomes part of the log.",
    ),
    Code(
        "trailingBytes",
        WARNING,
        "Bytes after the end of the log are no entry: a torn append, or a damaged last entry.",
        "Recovery ends there silently.",
    ),
    # Index
    Code(
        "indexFileMissing",
        ERROR,
        "An index file is missing. Stop the node and move dledger-<id>/index/ away; Java rebuilds it.",
        "First file: opens, then get returns a wrong entry or none. In the middle: throws DISK_ERROR (414). Last "
        "file or all: rebuilt.",
    ),
    Code(
        "indexUnit",
        ERROR,
        "An index unit disagrees with its entry. Stop the node and move dledger-<id>/index/ away; Java rebuilds it.",
        "Last three data files: rewrites the index from there on. Earlier: get fails or returns a wrong entry.",
    ),
    Code(
        "indexUnitMissing",
        ERROR,
        "Index units of entries in the log are zeros. Stop the node and move dledger-<id>/index/ away; Java "
        "rebuilds it.",
        "Last three data files: rewrites the index from there on. Earlier: get fails or returns a wrong entry.",
    ),
    Code(
        "indexUnitMagic",
        INFO,
        "The index has magic 1 for a NOOP entry (2): leaders of DLedger 0.4.0 write it so.",
        "0.4.0 rewrites the index from there on.",
    ),
    Code(
        "indexUnitsBeyondEnd",
        INFO,
        "The index has units after the end of the log. A truncation left them, or the end of the log was destroyed: "
        "compare replicas to find out.",
        "Overwrites them as the log grows.",
    ),
    # State
    Code(
        "checkpointMissing",
        INFO,
        "No checkpoint: DLedger 0.4.0 has none, others write it after some seconds.",
        "Starts with committed index -1 until the group commits again.",
    ),
    Code(
        "checkpointFromBackup",
        WARNING,
        "The checkpoint is missing but its .tmp or .bak exists, after a crash. Rename the copy.",
        "Starts with committed index -1 until the group commits again.",
    ),
    Code(
        "checkpointUnreadable",
        ERROR,
        "The checkpoint has no valid number. Replace it with its .bak.",
        "Throws NumberFormatException. An empty or missing number counts as -1.",
    ),
    Code(
        "committedBeyondEnd",
        WARNING,
        "The checkpoint's committed index is after the end of the log: entries are lost here, or the log was truncated "
        "(DLedger issue 316). Compare replicas before a start.",
        "Takes the end of the log as committed. Up to 0.3.1.2: may store it again after a truncation; as leader, a "
        "broker then waits forever.",
    ),
    Code(
        "confirmedBeyondEnd",
        ERROR,
        "Controller mode: the broker's confirmed offset is after the end of the log: messages are lost here. Compare "
        "replicas before a start.",
        "Lowers the offset to the log's end.",
    ),
    Code(
        "epochFileUnreadable",
        ERROR,
        "The epoch file has no valid epochs. Replace it with its .bak.",
        "Reads .bak, or does not start if a number is wrong. Without epochs a slave follows without truncating.",
    ),
    Code(
        "epochsWrong",
        ERROR,
        "Epochs do not ascend, or begin after the log's end: the file is of another store, or the log lost its end.",
        "Truncates at a wrong position, or does not follow.",
    ),
    Code(
        "endBeyondLog",
        INFO,
        "The checkpoint gives a later end than the log has: entries were truncated or lost since.",
        "Ignores it.",
    ),
    Code(
        "checkpointStale",
        INFO,
        "The checkpoint is older than the log: other files prove that more entries are committed. Java writes the "
        "checkpoint every three seconds.",
        "Starts with it. A broker shows no later message until the group commits again.",
    ),
    Code(
        "currtermMissing",
        INFO,
        "No currterm file: the node has not voted yet, or its vote is lost.",
        "Starts with term 0 and may vote twice in a term.",
    ),
    Code(
        "currtermFromBackup",
        WARNING,
        "The currterm file is missing but its .tmp or .bak exists, after a crash. Rename the copy.",
        "Starts with term 0 and may vote twice in a term.",
    ),
    Code(
        "currtermUnreadable",
        WARNING,
        "The currterm file has no valid number. Replace it with its .bak.",
        "Starts with term 0 and may vote twice in a term.",
    ),
    Code(
        "currtermBelowLog",
        WARNING,
        "The current term is below the last entry's: currterm and log are from different times.",
        "Refuses votes in terms below its last entry's (REJECT_TERM_SMALL_THAN_LEDGER).",
    ),
    Code(
        "leftoverFile",
        INFO,
        "A copy from replacing checkpoint or currterm: .bak is the previous file, .tmp is left by a crash.",
        "Overwrites it, never reads it.",
    ),
    # Around the log
    Code(
        "dividedOffset",
        ERROR,
        "The old CommitLog does not end where DLedger begins: files are missing or belong elsewhere.",
        "Reads the old CommitLog below the first DLedger file.",
    ),
    Code(
        "consumeQueueUnit",
        ERROR,
        "A ConsumeQueue unit points to no message of its size: consumers fail or skip there.",
        "A consumer of that offset gets nothing or a broken message.",
    ),
    Code(
        "messageQueue",
        ERROR,
        "A message names another topic, queue or offset than its ConsumeQueue unit: its CRC does not cover them.",
        "Delivers it by the unit; a rebuild of the queues delivers it by the message.",
    ),
    Code(
        "consumeQueueTags",
        ERROR,
        "A ConsumeQueue unit's tagsCode is neither the hash of its message's tags nor its delivery time. Run dledger "
        "rebuild consumequeue.",
        "Consumers that select tags miss the message; a delayed one is delivered at another time.",
    ),
    Code(
        "consumeQueuePlace",
        WARNING,
        "A ConsumeQueue unit is of a message that belongs elsewhere, or in no queue. Run dledger rebuild consumequeue.",
        "Delivers the message by each of its units.",
    ),
    Code(
        "consumeQueueGap",
        ERROR,
        "ConsumeQueue units were never written, but later ones were. Run dledger rebuild consumequeue.",
        "The queue ends at the gap: consumers miss what follows.",
    ),
    Code(
        "consumeQueueFileSize",
        ERROR,
        "A ConsumeQueue file's size differs from that of the others. Run dledger rebuild consumequeue.",
        "The broker does not start (exit code 253).",
    ),
    Code(
        "messageNotInQueue",
        ERROR,
        "Messages of the log have no ConsumeQueue unit, but later messages do, or all queues are missing. Run dledger "
        "rebuild consumequeue.",
        "Consumers miss them. After an unclean stop, the broker writes the units of the last files again.",
    ),
    Code(
        "messagesNotDispatched",
        WARNING,
        "The last committed messages have no ConsumeQueue unit: the broker was stopped before it wrote them.",
        "Writes the units when it starts; until then consumers miss the messages.",
    ),
    Code(
        "queueOffsetRepeated",
        WARNING,
        "Messages have a queueOffset that an earlier message of their queue has: no rebuild gives them a unit.",
        "Writes no unit for them: no consumer gets them.",
    ),
    Code(
        "queueBeganAgain",
        INFO,
        "Messages have no ConsumeQueue unit, because their queue began again after them: its topic was deleted.",
        "Delivers only later messages.",
    ),
    Code(
        "topicDeleted",
        INFO,
        "Messages have no ConsumeQueue, because their topic was deleted: the broker does not know it.",
        "Does not deliver them.",
    ),
    Code(
        "consumeQueueBeyondEnd",
        WARNING,
        "ConsumeQueue units point after the end of the log: the log lost its end later. Compare replicas.",
        "The broker truncates them. After an unclean stop: up to 5.1 none (RocketMQ issue 7355), from 5.2 too many "
        "(issue 9084).",
    ),
    Code(
        "consumeQueueBelowStart",
        INFO,
        "ConsumeQueue units point below the first remaining message: their messages have expired.",
        "Moves the queues' minimum offset past them. 4.9.3 leaves it at 0.",
    ),
    Code(
        "keyIndexHeader",
        ERROR,
        "An IndexFile's header disagrees with its units. Run dledger rebuild index.",
        "Queries by key miss messages.",
    ),
    Code(
        "keyIndexUnit",
        ERROR,
        "An IndexFile unit is damaged, or its message lacks the key. If the log is intact, run dledger rebuild index.",
        "Queries by key miss messages.",
    ),
    Code(
        "keyIndexBeyondEnd",
        WARNING,
        "IndexFile units point after the log's end. Compare replicas.",
        "Queries by key miss messages.",
    ),
    Code(
        "storeCheckpointBeyondEnd",
        WARNING,
        "The broker's checkpoint names later messages than the log has. Compare replicas.",
        "Recovers from its time after a crash.",
    ),
    Code(
        "storeCheckpointShort",
        WARNING,
        "The broker's checkpoint is shorter than its numbers.",
        _NO_TIMES,
    ),
    Code(
        "storeCheckpointEmpty",
        INFO,
        "The broker's checkpoint has only zeros.",
        _NO_TIMES,
    ),
    Code(
        "configInvalid",
        ERROR,
        "A config/ file is no JSON object. Replace it with a good copy.",
        "Reads the .bak, else uses defaults.",
    ),
    Code(
        "storeInUse",
        INFO,
        "A process uses the store. What it writes meanwhile is not checked: run dledger verify again when it stopped.",
        "Locks the store while it runs.",
    ),
    Code(
        "abortFile",
        INFO,
        "The broker is running, or was not stopped cleanly.",
        "Up to 5.1: recovers as after a clean stop. From 5.2: as after a crash; 5.2.0 deletes the whole ConsumeQueue "
        "(RocketMQ issue 8032).",
    ),
)

AFTER_END = frozenset(("staleBytes", "trailingBytes", "indexUnitsBeyondEnd", "endBeyondLog"))
"""Findings about what is after the log's end, which a write in progress can look like."""

CODES = {code.code: code for code in CATALOGUE}


def worst(findings: list[Finding]) -> Severity | None:
    """The highest severity among findings; None without findings."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)
