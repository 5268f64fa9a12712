"""What can be wrong with a store: the catalogue of findings, which is the only home of codes, severities and texts.

What Java does is what its versions up to DLedger 0.3.2 did in the experiments of tests/goldens
(``corruption-java-behaviour.json``), and otherwise what their source says; 0.4.0 is named where it differs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyspark_dledger.log.tables.table import relative_file

if TYPE_CHECKING:
    from pyspark_dledger.log.io.store_paths import StorePaths

Severity = Literal["info", "warning", "error"]

INFO: Severity = "info"
WARNING: Severity = "warning"
ERROR: Severity = "error"
SEVERITIES: tuple[Severity, ...] = (INFO, WARNING, ERROR)
"""From the least to the most severe. What a healthy store has is at most `INFO`."""

# Of each code and file at most this many findings are listed; one more says how many there are beyond.
MOST_LISTED = 100


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
    DLedger entry that it is about.
    """

    severity: Severity
    code: str
    node: str | None
    file: str
    offset: int | None
    index: int | None
    expected: str | None
    found: str | None
    java_does: str


_NOT_NOTICED = "Not noticed: served as it is."
_SCAN_STOPS = (
    "In the last two data files: recovery truncates the log there and deletes what follows, committed or not; in the "
    "third to last: the process exits with code 255; before: not noticed until it is read."
)
_MESSAGE_UNSEEN = (
    "DLedger does not look into bodies; a broker that stumbles over it while dispatching skips the rest of its buffer "
    "too, so messages are missing from the ConsumeQueue (RocketMQ issue 8394)."
)

CATALOGUE: tuple[Code, ...] = (
    # Files
    Code(
        "fileGap",
        ERROR,
        "Data files are missing between two others: copy them from a replica that has them.",
        "Throws DISK_ERROR (414), check data file order failed; where the first files are missing it opens and begins "
        "at the first one that is left.",
    ),
    Code(
        "strayFile",
        ERROR,
        "A file has a segment's name and does not belong to this log: move it away.",
        "Throws DISK_ERROR (414), check data file order failed.",
    ),
    Code(
        "fileName",
        ERROR,
        "The entries of a file name another place in the log than its file name does: it was renamed or exchanged, "
        "name it as its first entry says.",
        "In the last three data files as for corruptBytes; before it opens, and reading an entry fails (414) or "
        "answers a wrong one.",
    ),
    Code(
        "fileSize",
        ERROR,
        "A file is not as long as the other files of its folder: compare it with a replica's.",
        "The process exits with code 255 when it loads the file.",
    ),
    Code(
        "shortFile",
        ERROR,
        "A segment file ends before its segment does: copy it from a replica, or fill it up with zeros if its end was "
        "never written.",
        "The process exits with code 255 when it loads the file.",
    ),
    Code(
        "foreignFile",
        ERROR,
        "A folder of segments holds a file or folder that is no segment: move it away.",
        "In data/ and index/ the process exits with code 255 when it loads the folder.",
    ),
    Code(
        "unreadableFile",
        ERROR,
        "A file or folder cannot be read, so nothing is known of what it holds: check its permissions and its disk.",
        "Cannot load it either.",
    ),
    # Entries
    Code(
        "corruptBytes",
        ERROR,
        "Bytes inside the log are neither entry nor blank, what stood there is lost on this replica: compare with "
        "others.",
        _SCAN_STOPS,
    ),
    Code(
        "indexGap",
        ERROR,
        "An entry's index is not the one after the entry before: entries are missing or doubled, compare with other "
        "replicas.",
        _SCAN_STOPS,
    ),
    Code(
        "segmentOrder",
        ERROR,
        "The first entry of a file does not follow the last one of the file before: one of the two files is of another "
        "time or another log, compare both with a replica.",
        _SCAN_STOPS,
    ),
    Code(
        "termOrder",
        ERROR,
        "An entry's term is smaller than the one before: the header of one of the two is damaged, compare with other "
        "replicas.",
        "In the last two data files recovery believes the larger term and truncates behind it, so its last term is "
        "wrong from then on; in the third to last: the process exits with code 255; before: not noticed.",
    ),
    Code(
        "posDiffers",
        INFO,
        "Headers name another position than where the entries stand: a follower of DLedger 0.4.0 keeps the leader's.",
        "0.4.0 does not check it; versions up to 0.3.2 truncate there.",
    ),
    Code(
        "headerField",
        WARNING,
        "A header's channel or chainCrc is not 0, though no version of DLedger writes anything else: the header may be "
        "damaged.",
        _NOT_NOTICED,
    ),
    Code(
        "bodyCrc",
        ERROR,
        "A header's bodyCrc is neither 0 nor the body's CRC: header or body is damaged, compare with other replicas.",
        _NOT_NOTICED,
    ),
    Code(
        "newerMagic",
        INFO,
        "The log holds entries of magic 2 (NOOP) or 3 (CONFIG_CHANGE), which only DLedger 0.4.0 knows: open it with no "
        "other version.",
        "0.4.0 skips a NOOP; versions up to 0.3.2 truncate the log at the first such entry and delete the files behind "
        "it.",
    ),
    # Messages
    Code(
        "messageStructure",
        ERROR,
        "A body begins as a message and cannot be parsed as one: it is damaged, compare with other replicas.",
        _MESSAGE_UNSEEN,
    ),
    Code(
        "messageOffset",
        ERROR,
        "A message names another physicalOffset than where it stands: it was copied from elsewhere or is damaged.",
        _MESSAGE_UNSEEN,
    ),
    Code(
        "messageCrc",
        ERROR,
        "A message's body does not have the CRC that was stored with it: it is damaged, copy it from a replica.",
        _MESSAGE_UNSEEN,
    ),
    Code(
        "propertyCrc",
        ERROR,
        "A message does not have the CRC that its property __CRC32# gives: it is damaged.",
        "Checked only with forceVerifyPropCRC.",
    ),
    Code(
        "messageTimestamp",
        WARNING,
        "A message was born or stored outside the years 1 to 9999: a client's clock or the message is wrong, and no "
        "reader by time finds it.",
        _NOT_NOTICED,
    ),
    # Behind the log
    Code(
        "blankSize",
        WARNING,
        "The blank at the end of a file does not give the bytes that are left of it: the blank is damaged, nothing is "
        "lost.",
        "Versions up to 0.3.2 ignore the size and go on with the next file; 0.4.0 follows it.",
    ),
    Code(
        "staleBytes",
        INFO,
        "Whole entries stand behind the end of the log, left there when it was truncated: they are no longer part of "
        "it, and readable with care.",
        "Recovery stops at them because their term is older; one with a fitting index and term is taken for the log.",
    ),
    Code(
        "trailingBytes",
        WARNING,
        "Bytes that are no entry stand behind the end of the log: an append was torn, or the last entry is damaged, "
        "see committedBeyondEnd.",
        "Recovery ends there, silently.",
    ),
    # Index
    Code(
        "indexFileMissing",
        ERROR,
        "An index file is missing whose entries are in the log: stop the node and move the whole index folder "
        "away, Java then rebuilds it.",
        "First file: opens, then get answers a wrong entry or none; in the middle: throws DISK_ERROR (414), check "
        "index file order failed; the last one, or all: rebuilt.",
    ),
    Code(
        "indexUnit",
        ERROR,
        "An index unit disagrees with its entry: readers by index get a wrong entry or none, move the index folder "
        "of the stopped node away to have it rebuilt.",
        "For entries of the last three data files the index is rewritten from there on; before: get fails or answers "
        "a wrong entry.",
    ),
    Code(
        "indexUnitMissing",
        ERROR,
        "Index units of entries in the log are zeros: move the index folder of the stopped node away to have it "
        "rebuilt.",
        "For entries of the last three data files the index is rewritten from there on; before: get throws "
        "BufferUnderflowException.",
    ),
    Code(
        "indexUnitMagic",
        INFO,
        "The index says magic 1 where the entry is a NOOP (2): the leaders of DLedger 0.4.0 write it so.",
        "0.4.0 rewrites the index from there on when it recovers.",
    ),
    Code(
        "indexUnitsBeyondEnd",
        INFO,
        "The index has units behind the end of the log, left there when it was truncated or cut: compare them with "
        "other replicas if the log should be longer.",
        "Overwrites them as the log grows.",
    ),
    # State
    Code(
        "checkpointMissing",
        INFO,
        "There is no checkpoint: DLedger 0.4.0 has none, and others write the first one after some seconds.",
        "Starts with committed index -1 until the group commits anew.",
    ),
    Code(
        "checkpointFromBackup",
        WARNING,
        "The checkpoint is missing while its .tmp or .bak is there: a crash came between deleting and renaming it, "
        "rename the copy.",
        "Ignores the copies and starts with committed index -1.",
    ),
    Code(
        "checkpointUnreadable",
        ERROR,
        "The checkpoint holds no number where one is expected: replace it by its .bak.",
        "Throws NumberFormatException for a committedIndex that is no number; takes an empty or missing one for -1.",
    ),
    Code(
        "committedBeyondEnd",
        WARNING,
        "The checkpoint's committed index is behind the end of the log: committed entries are lost here, or the log "
        "was truncated below it (DLedger issue 316); compare with other replicas before starting this one.",
        "Takes the end of the log for committed; 0.3.1.2 and before can store it again after a truncation, and a "
        "broker that becomes leader then waits for ever.",
    ),
    Code(
        "endBeyondLog",
        INFO,
        "The checkpoint knows a later end than the log has: entries were truncated or lost after it was written.",
        "Does not look at it.",
    ),
    Code(
        "checkpointStale",
        INFO,
        "The checkpoint's committed index is behind what the log and the ConsumeQueue show: it is written every three "
        "seconds and on a clean stop only.",
        "Starts with the checkpoint's index; a broker shows no message behind it until the group commits anew.",
    ),
    Code(
        "currtermMissing",
        INFO,
        "There is no currterm file: the node has not voted yet, or its vote is lost.",
        "Starts with term 0 and no vote, and may vote twice in a term.",
    ),
    Code(
        "currtermFromBackup",
        WARNING,
        "The currterm file is missing while its .tmp or .bak is there: a crash came between deleting and renaming it, "
        "rename the copy.",
        "Ignores the copies: starts with term 0 and no vote, and may vote twice in a term.",
    ),
    Code(
        "currtermUnreadable",
        WARNING,
        "The currterm file holds no number where one is expected: replace it by its .bak.",
        "Logs it and starts with term 0 and no vote, and may vote twice in a term.",
    ),
    Code(
        "currtermBelowLog",
        WARNING,
        "The current term is below the last entry's: currterm is of another time than the log.",
        "Refuses votes in terms below its last entry's (REJECT_TERM_SMALL_THAN_LEDGER).",
    ),
    Code(
        "leftoverFile",
        INFO,
        "A copy from replacing checkpoint or currterm: .bak is what the file was before, .tmp what a crash left.",
        "Overwrites it; never reads it.",
    ),
    # Around the log
    Code(
        "dividedOffset",
        ERROR,
        "The old CommitLog does not end where DLedger begins: files of one of them are missing or belong elsewhere.",
        "Reads what lies before the first DLedger file from the old CommitLog, and the rest from DLedger.",
    ),
    Code(
        "consumeQueueUnit",
        ERROR,
        "A ConsumeQueue unit points to no message of its size: consumers fail or skip there, the table audit "
        "says which messages are in no queue.",
        "Not noticed: a consumer of that offset gets nothing or a broken message.",
    ),
    Code(
        "consumeQueueBeyondEnd",
        WARNING,
        "ConsumeQueue units point behind the end of the log: the log lost its end after they were written, compare "
        "with other replicas.",
        "The broker truncates them when it recovers; up to 5.1 not after an unclean stop (RocketMQ issue 7355), from "
        "5.2 then more of them than necessary (issue 9084).",
    ),
    Code(
        "consumeQueueBelowStart",
        INFO,
        "ConsumeQueue units point below the first message that is left: their messages have expired.",
        "Moves the queues' minimum offset behind them; 4.9.3 leaves it at 0.",
    ),
    Code(
        "abortFile",
        INFO,
        "The broker is running, or was not stopped cleanly.",
        "In DLedger mode brokers up to 5.1 recover as after a clean stop; from 5.2 as after a crash, where 5.2.0 "
        "deletes the whole ConsumeQueue (RocketMQ issue 8032).",
    ),
)

CODES = {code.code: code for code in CATALOGUE}


def worst(findings: list[Finding]) -> Severity | None:
    """The highest severity among findings; None if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)


class Report:
    """Findings as they are collected: of each code and file at most `MOST_LISTED`, the others are counted."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._listed: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        code: str,
        path: Path | str,
        text: str = "",
        *,
        offset: int | None = None,
        index: int | None = None,
    ) -> None:
        """One finding; `text` is "expected X, found Y", with either half alone where there is no other."""
        file = self._shown(path)
        self._counts[code, file] += 1
        if self._counts[code, file] <= MOST_LISTED:
            expected, found = split_text(text)
            self._listed.append(self._finding(code, file, offset, index, expected, found))

    def add_uncounted(self, code: str, path: Path | str, count: int) -> None:
        """So many more findings of a code and file, which nobody looked at one by one."""
        if count > 0:
            file = self._shown(path)
            self._counts[code, file] = max(self._counts[code, file], MOST_LISTED) + count

    def is_full(self, code: str, path: Path | str) -> bool:
        """Whether no further finding of a code and file will be listed."""
        return self._counts[code, self._shown(path)] >= MOST_LISTED

    def findings(self) -> list[Finding]:
        """What was found, by file and offset, and for each code and file how many more there are."""
        more = [
            self._finding(code, file, None, None, f"at most {MOST_LISTED} listed", f"{count - MOST_LISTED} more")
            for (code, file), count in self._counts.items()
            if count > MOST_LISTED
        ]
        return sorted(self._listed, key=_place) + sorted(more, key=_place)

    def _finding(
        self, code: str, file: str, offset: int | None, index: int | None, expected: str | None, found: str | None
    ) -> Finding:
        known = CODES[code]
        return Finding(known.severity, code, self._paths.node, file, offset, index, expected, found, known.java_does)

    def _shown(self, path: Path | str) -> str:
        return relative_file(self._paths, str(path))


def split_text(text: str) -> tuple[str | None, str | None]:
    """The two halves of "expected X, found Y"; a text of another form is what was found."""
    expected, separator, found = text.removeprefix("expected ").partition(", found ")
    if separator and text.startswith("expected "):
        return expected, found
    return None, text.removeprefix("found ") or None


def _place(finding: Finding) -> tuple[str, int]:
    return finding.file, -1 if finding.offset is None else finding.offset
