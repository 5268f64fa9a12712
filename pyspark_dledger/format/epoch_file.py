"""Parses and writes ``epochFileCheckpoint`` of controller mode: which master epoch wrote which part of the log.

Lines: the number of epochs, the CRC-32 of the rest (without its sign bit), then ``epoch-startOffset`` in ascending
order. Source: RocketMQ 5.0.0 to 5.3.3 ``CheckpointFile``, ``EpochFileCache``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.codec import crc32

FILE = "epochFileCheckpoint"
FILES = (FILE, f"{FILE}.bak")
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
