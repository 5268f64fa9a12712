"""The catalogue of problems of bytes: a code for each, the finding that it is, and its sentence for people.

Both engines give facts, a code with values, and make sentences from this catalogue. No code reads a sentence.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import NamedTuple

_CORRUPT = "corruptBytes"
_STRUCTURE = "messageStructure"
_AT_END = "{found} bytes up to the end of the file"
_FITS = "that fits {expected} bytes at {at}, found {found}"


class ProblemCode(IntEnum):
    """A kind of problem: the code of its finding, empty without one, and its sentence with the values of a `Fact`.

    ``{name}`` is the file's name, ``{reason}`` is for `UNREADABLE` the system's text of the error number. The native
    engine has the codes up to `TRAILING_BYTES`, with the same numbers (native/facts.hpp).
    """

    finding: str
    sentence: str

    def __new__(cls, finding: str, sentence: str) -> ProblemCode:  # noqa: PYI034 - Self needs Python 3.11
        number = len(cls.__members__) + 1
        code = int.__new__(cls, number)
        code._value_ = number
        code.finding, code.sentence = finding, sentence
        return code

    # Bytes that are no entry: `corruptBytes`, but for the first two, and a blank with nothing after it
    SHORT_FILE = "shortFile", "expected {expected} bytes in {name}, found {found}"
    UNREADABLE = "unreadableFile", "expected {expected} bytes in {name}, found {found} readable bytes ({reason})"
    BLANK_SIZE = "blankSize", "expected a blank of {expected} bytes at {at}, found {found}"
    ORDER = (
        _CORRUPT,
        "expected index {expected} and term >= {also_expected} at {at}, found index {found} and term {also_found}",
    )
    NO_HEADER = _CORRUPT, f"expected an entry header of 48 bytes at {{at}}, found {_AT_END}"
    NO_ENTRY = _CORRUPT, "expected an entry at {at}, found zeros"
    ENTRY_MAGIC = _CORRUPT, "expected magic 1, 2, 3 or -1 at {at}, found {found}"
    ENTRY_SIZE = _CORRUPT, "expected size 48 + bodySize {expected} at {at}, found {found}"
    ENTRY_END = _CORRUPT, f"expected an entry of {{expected}} bytes at {{at}}, found {_AT_END}"
    ENTRY_NUMBERS = (
        _CORRUPT,
        "expected index >= 0 and term >= -1 at {at}, found index {found} and term {also_found}",
    )
    ENTRY_POS = _CORRUPT, "expected pos {expected}, found {found}"
    MESSAGE_END = _CORRUPT, f"expected a message of at least 91 bytes at {{at}}, found {_AT_END}"
    NO_MESSAGE = _CORRUPT, "expected a message at {at}, found zeros"
    MESSAGE_MAGIC = _CORRUPT, "expected message magic -626843481 or -626843477 at {at}, found {found}"
    MESSAGE_SIZE = _CORRUPT, "expected a totalSize from 91 to {expected} at {at}, found {found}"
    MESSAGE_ELSEWHERE = _CORRUPT, "expected physicalOffset {expected}, found {found}"
    # Entries and messages; of a CommitLog, bytes without the structure of a message are `corruptBytes`, too
    SHORT_MESSAGE = _STRUCTURE, "expected a message of at least 91 bytes at {at}, found {found}"
    TOTAL_SIZE = _STRUCTURE, "expected totalSize {expected} at {at}, found {found}"
    BODY_LENGTH = _STRUCTURE, f"expected a bodyLength {_FITS}"
    TOPIC_LENGTH = _STRUCTURE, f"expected a topicLength {_FITS}"
    PROPERTIES_LENGTH = _STRUCTURE, f"expected a propertiesLength {_FITS}"
    MESSAGE_LENGTHS = _STRUCTURE, "expected a message of {expected} bytes at {at}, found {found}"
    BODY_CRC = "bodyCrc", "expected bodyCrc {expected}, found {found}"
    MESSAGE_OFFSET = "messageOffset", "expected physicalOffset {expected}, found {found}"
    MESSAGE_CRC = "messageCrc", "expected message CRC {expected}, found {found}"
    PROPERTY_CRC = "propertyCrc", "expected property CRC {expected}, found {found}"
    BORN_TIME = "messageTimestamp", "expected bornTimestamp within years 1 to 9999, found {found} ms"
    STORE_TIME = "messageTimestamp", "expected storeTimestamp within years 1 to 9999, found {found} ms"
    # The order of entries, and the bytes after the log; only a survey looks for these.
    INDEX_GAP = "indexGap", "expected index {expected}, found {found}"
    INDEX_GAP_AFTER_DAMAGE = "indexGap", "expected index {expected} to {also_expected}, found {found}"
    TERM_ORDER = "termOrder", "expected term >= {expected}, found {found}"
    POS_DIFFERS = "posDiffers", "expected pos {expected}, found {found}"
    HEADER_FIELD = (
        "headerField",
        "expected channel 0 and chainCrc 0, found channel {found} and chainCrc {also_found}",
    )
    STALE_ENTRY = (
        "staleBytes",
        "expected zeros after the log's end at {at}, found 1 whole entry up to {also_found}",
    )
    STALE_ENTRIES = (
        "staleBytes",
        "expected zeros after the log's end at {at}, found {found} whole entries up to {also_found}",
    )
    STALE_MESSAGE = (
        "staleBytes",
        "expected zeros after the log's end at {at}, found 1 whole message up to {also_found}",
    )
    STALE_MESSAGES = (
        "staleBytes",
        "expected zeros after the log's end at {at}, found {found} whole messages up to {also_found}",
    )
    TRAILING_BYTES = "trailingBytes", "expected zeros after the log's end at {at}, found {found} bytes"
    # Found after the scan: decompression, files that are missing, copies that contradict each other
    COMPRESSION_TYPE = "", "expected compression type 0 to 3, found {found}"
    BODY_SIZE = "", "expected a body of at most {expected} bytes decompressed, found more"
    NOT_DECOMPRESSED = "", "expected a {name} body of {expected} bytes to decompress, found {reason}"
    NO_FILE = "fileGap", "expected the segment {name} and {expected} bytes up to {at}, found no file"
    UNDECIDED = "", "{reason}"


PROBLEM_CODES = tuple(ProblemCode)
"""A code has the number of its place, counted from 1."""

PROBLEM_COLUMNS = ("problem", "problemCode", "problemExpected", "problemFound", "problemErrno")
"""The columns of a row that say what its problem is; null in others."""

TIMES = frozenset((ProblemCode.BORN_TIME, ProblemCode.STORE_TIME))
"""Problems of messages that are whole: producers set the time of birth. A copy with a valid time is better."""


class Fact(NamedTuple):
    """A problem with its values; those that its sentence does not have are 0.

    ``at`` is a position in the log. Of `ProblemCode.UNREADABLE`, ``found`` is the offset of the first byte of the file
    that cannot be read, and ``also_found`` the system's error number.
    """

    code: ProblemCode
    at: int = 0
    expected: int = 0
    found: int = 0
    also_expected: int = 0
    also_found: int = 0

    def sentence(self, name: str = "", reason: str = "") -> str:
        """What was expected and found."""
        if self.code is ProblemCode.UNREADABLE:
            reason = os.strerror(self.also_found)
        return self.code.sentence.format(**self._asdict(), name=name, reason=reason)

    def columns(self, name: str = "", reason: str = "") -> dict[str, int | str | None]:
        """The values of `PROBLEM_COLUMNS`."""
        errno = self.also_found if self.code is ProblemCode.UNREADABLE else None
        values = self.sentence(name, reason), int(self.code), self.expected, self.found, errno
        return dict(zip(PROBLEM_COLUMNS, values, strict=True))
