r"""Reads a node's ``checkpoint`` and ``currterm`` files as ``java.util.Properties`` does, and writes such files.

Java writes one ``key=value`` per line, in any order. It also reads ``#`` and ``!`` comments, ``=``, ``:`` or blanks
between key and value, lines continued by a backslash, and escapes such as ``\u0041``. Sources: DLedger 0.3.1.2
``DLedgerMmapFileStore.loadCheckPoint``, ``MemberState.loadTerm``; the JDK's ``Properties.load``.

Our files begin with the line ``crc``, a CRC-32 of the other keys and values. Java ignores it, and writes none: it
creates new ``Properties`` for every write (0.1 to 0.4.0).

Also the file of epochs of controller mode: which master epoch wrote which part of the log.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.encode.encoded import Buffer

# For all files of our own: by the native engine if it is built, else by zlib, which is slower.
_crc32: Callable[[Buffer, int], int] = zlib.crc32
try:
    import pyspark_dledger._native as _native
except ImportError:
    pass
else:
    _crc32 = _native.crc32


def crc32(data: Buffer, before: int = 0) -> int:
    """CRC-32 of bytes, unsigned; `before` is the CRC of the bytes before these."""
    return _crc32(data, before)


COMMITTED_INDEX = "committedIndex"
END_INDEX = "endIndex"
CURR_TERM = "currTerm"
VOTE_LEADER = "voteLeader"
MAX_TERM = 2**62
"""The highest term that a node takes, far below the overflow of a Java long."""
RESTORED = "restored"
"""The file of a member restored from a backup; its line is ``term=N``."""

_CRC = "crc"
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_BAD_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9A-Fa-f]{4})")
# A key ends at the first unescaped separator: blanks with at most one = or : among them.
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_LONG = re.compile(r"[+-]?[0-9]{1,40}")
_MAX_LONG = 2**63 - 1


class WrongChecksumError(ValueError):
    """The lines of a state file do not match its checksum."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's indexes; None for a missing or unreadable one, with the reason in ``problem``.

    Java reads a missing or empty ``committedIndex`` as -1, the value of a store without committed entries.
    """

    committed_index: int | None
    end_index: int | None
    problem: str | None = None


@dataclass(frozen=True)
class CurrentTerm:
    """A node's term, and the node that it voted for, or None. ``curr_term`` is None if it is unreadable.

    Nothing writes ``unknown`` keys: they can be damaged ones.
    """

    curr_term: int | None
    vote_leader: str | None
    problem: str | None = None
    unknown: tuple[str, ...] = ()


def parse_checkpoint(data: bytes) -> Checkpoint:
    """The content of a ``checkpoint`` file; never raises."""
    try:
        properties = parse_state_file(data)
    except ValueError as error:
        return Checkpoint(None, None, str(error))
    committed, problem = _long(properties, COMMITTED_INDEX)
    end, end_problem = _long(properties, END_INDEX)
    return Checkpoint(committed, end, problem or end_problem)


def parse_current_term(data: bytes) -> CurrentTerm:
    """The content of a ``currterm`` file; never raises."""
    try:
        properties = parse_state_file(data)
    except ValueError as error:
        return CurrentTerm(None, None, str(error))
    term, problem = _long(properties, CURR_TERM)
    unknown = tuple(sorted(properties.keys() - {CURR_TERM, VOTE_LEADER}))
    return CurrentTerm(term, properties.get(VOTE_LEADER) or None, problem, unknown)


def _long(properties: dict[str, str], key: str) -> tuple[int | None, str | None]:
    """A number as Java's ``Long.parseLong`` reads it, and the problem if it is none."""
    text = properties.get(key, "").strip()
    if not text:
        return None, f"expected a number for {key}, found none"
    if not _LONG.fullmatch(text) or not -_MAX_LONG - 1 <= int(text) <= _MAX_LONG:
        return None, f"expected a number for {key}, found {text[:40]!r}"
    return int(text), None


def encode_state_file(properties: Mapping[str, object]) -> bytes:
    """Lines of ``key=value``, after one with their checksum: so a file that lost its end does not match it."""
    lines = "".join(f"{key}={_escaped(str(value))}\n" for key, value in properties.items()).encode("ascii")
    # Of the values as they are read: half of a surrogate pair is read as another character.
    return f"{_CRC}={_checksum(parse_properties_file(lines))}\n".encode("ascii") + lines


def parse_state_file(data: bytes) -> dict[str, str]:
    """The keys and values of a file, with or without a checksum. Raises WrongChecksumError, and ValueError."""
    properties = parse_properties_file(data)
    expected = properties.pop(_CRC, None)
    if expected is not None and expected != (found := _checksum(properties)):
        raise WrongChecksumError(f"expected lines with {_CRC} {expected[:40]}, found {found}")
    return properties


def _checksum(properties: Mapping[str, str]) -> str:
    """In hex, of the sorted keys and values: the order of lines is not a part of them."""
    text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
    return f"{crc32(text.encode()):08x}"


def _escaped(value: str) -> str:
    """A value on one line of ASCII, as ``java.util.Properties`` reads it; names come from other nodes."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if value[:1] in (" ", "\t", "\f"):
        value = f"\\{value}"
    units = memoryview(value.encode("utf-16", "surrogatepass")).cast("H")[1:]
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in units)


def parse_properties_file(data: bytes) -> dict[str, str]:
    r"""The keys and values of a properties file in ISO 8859-1; the last of equal keys wins.

    A ``\u`` without four hex digits raises ValueError, as in Java.
    """
    return {key: value for _, key, value in property_lines(data)}


def property_lines(data: bytes) -> Iterator[tuple[int, str, str]]:
    """Each key and value of a properties file, with the number of its (first) line.

    Raises ValueError like `parse_properties_file`.
    """
    for number, line in _logical_lines(data.decode("latin-1")):
        if bad := _BAD_UNICODE.search(line):
            found = line[bad.end() - 2 : bad.end() + 4]
            raise ValueError(f"expected four hex digits after \\u, found {found!r}")
        parts = _KEY_AND_VALUE.fullmatch(line)
        assert parts is not None  # every part of the pattern may be empty
        yield number, _unescape(parts[1]), _unescape(parts[2])


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments, blank lines and leading blanks; continued lines are joined."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = line.lstrip(_BLANKS)
        if not parts:
            first = number
            if not line or line[0] in "#!":
                continue
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if is_continued else line)
        if not is_continued:
            yield first, "".join(parts)
            parts = []
    if any(parts):
        yield first, "".join(parts)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units = _ESCAPED.sub(_unescaped, text)
    # \ud83d\ude00 is one character; half of such a pair has no UTF-8 form.
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _ESCAPES.get(found[2], found[2])


# ``epochFileCheckpoint`` of controller mode has the number of epochs, the CRC-32 of the rest (without its sign bit),
# then ``epoch-startOffset`` in ascending order. Source: RocketMQ 5.0.0 to 5.3.3 ``CheckpointFile``, ``EpochFileCache``.

EPOCH_FILE = "epochFileCheckpoint"
EPOCH_FILES = (EPOCH_FILE, f"{EPOCH_FILE}.bak")
"""The names of the file and of its copy."""
_NUMBER = re.compile(r"[+-]?\d{1,10}")
_EPOCH = re.compile(r"(\d{1,10})-(\d{1,19})")
_CRC_MASK = 0x7FFFFFFF
_MAX_EPOCH = 2**31 - 1
# CheckpointFile does not check this CRC.
_NO_CRC = 0


class Epoch(NamedTuple):
    """A master epoch and the position of its first byte in the log."""

    epoch: int
    start: int


def parse_epochs(data: bytes) -> tuple[Epoch, ...] | str:
    """The epochs of the file in its order, or the problem that makes Java reject it."""
    try:
        lines = re.split(r"\r\n|\r|\n", data.decode("utf-8"))
    except UnicodeDecodeError:
        return "expected text in UTF-8, found other bytes"
    if not _NUMBER.fullmatch(lines[0]):
        return f"expected the number of epochs, found {lines[0][:40] or 'an empty line'!r}"
    if not lines[-1]:
        lines.pop()
    crc, rest = lines[1] if len(lines) > 1 else "", lines[2:]
    if not _NUMBER.fullmatch(crc):
        return f"expected a CRC in line 2, found {crc[:40] or 'an empty line'!r}"
    found = [Epoch(int(match[1]), int(match[2])) for match in map(_EPOCH.fullmatch, rest) if match]
    if len(found) != int(lines[0]):
        return f"expected {lines[0]} epochs, found {len(found)}"
    if any(epoch.epoch > _MAX_EPOCH or epoch.start > INT64_MAX for epoch in found):
        return "expected epochs of 4 bytes and positions of 8, found larger ones"
    computed = crc32("".join(f"{line}\n" for line in rest).encode()) & _CRC_MASK
    if int(crc) not in (_NO_CRC, computed):
        return f"expected CRC {crc}, found {computed}"
    return tuple(found)


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    """The file with these epochs, as Java writes it."""
    rest = "".join(f"{epoch.epoch}-{epoch.start}\n" for epoch in epochs)
    return f"{len(epochs)}\n{crc32(rest.encode()) & _CRC_MASK}\n{rest}".encode()


def in_order(epochs: Iterable[Epoch]) -> tuple[Epoch, ...]:
    """The epochs as Java's EpochFileCache has them: ascending, of equal ones the last."""
    return tuple(Epoch(*item) for item in sorted(dict(epochs).items()))


def epoch_ends(epochs: Sequence[Epoch], log_end: int) -> dict[int, tuple[int, int]]:
    """The extent ``[start, end)`` of each epoch in a log that ends at `log_end`."""
    starts = [epoch.start for epoch in epochs]
    last = log_end if epochs and epochs[-1].start <= log_end else INT64_MAX
    return {epoch.epoch: (epoch.start, end) for epoch, end in zip(epochs, [*starts[1:], last], strict=False)}


def epoch_at(epochs: Sequence[Epoch], pos: int) -> int | None:
    """The epoch that wrote the byte at `pos`, or None."""
    return next((epoch.epoch for epoch in reversed(epochs) if epoch.start <= pos), None)


def consistent_point(slave: Sequence[Epoch], slave_end: int, master: Sequence[Epoch], master_end: int) -> int | None:
    """Where a slave truncates its log when it connects to a master; None if Java finds no such position.

    It is the end of the last epoch that both began at the same position (``EpochFileCache.findConsistentPoint``).
    """
    here, there = epoch_ends(slave, slave_end), epoch_ends(master, master_end)
    for epoch in sorted(here, reverse=True):
        if epoch in there and there[epoch][0] == here[epoch][0]:
            return min(here[epoch][1], there[epoch][1])
    return None


def diverged_at(one: Sequence[Epoch], two: Sequence[Epoch]) -> int | None:
    """The position from which two logs are of different histories, as their epochs say; None if they do not.

    It is where the first epoch begins that only one of both has, after one that both have.
    """
    common = max(({*one} & {*two}), default=None)
    later = [each.start for each in {*one} ^ {*two} if common is not None and each.epoch > common.epoch]
    return min(later, default=None)
