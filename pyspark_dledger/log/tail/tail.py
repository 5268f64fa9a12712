"""What every tail of a log shares: its offsets, its limits, and what becomes of data that is lost below an offset.

Where the bytes come from differs: `store_tail.StoreTail` reads a store on disk, and a live group has a tail of its own.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark_dledger.errors import DataLossError, OptionError
from pyspark_dledger.log.options import EARLIEST, LATEST, ReadOptions, find_option

_LOG = logging.getLogger(__name__)
_FIELDS = ("index", "term", "pos", "crc")
_FORM = '{"index": n, "term": n, "pos": n, "crc": n}'
# What ends a batch, and what needs all of the log at every look.
_NOT_FOR_A_STREAM = ("endingOffsets", "endingTimestamp", "replicas", "groupSize")


class TailOffset(NamedTuple):
    """The last entry that was read: index, term, position in bytes, and the CRC-32 of all its bytes, header included.

    In old CommitLog index and term are None, and the bytes are the message's. Two forms say that nothing was read yet:
    `NOTHING`, all None, where reading begins as the options of the start say; and ``pos`` alone, where it begins with
    the first row at or behind that position.
    """

    index: int | None = None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int | None = None
    pos: int | None = None
    crc: int | None = None

    @property
    def is_entry(self) -> bool:
        """Whether something was read: an entry or a message."""
        return self.crc is not None

    def to_json(self) -> dict[str, int | None]:
        """As Spark keeps it in a checkpoint; always with the same keys in the same order."""
        return self._asdict()

    def __str__(self) -> str:
        """As errors name it."""
        if self.index is not None:
            return f"index {self.index} (term {self.term}, pos {self.pos})"
        if self.pos is not None:
            return f"the message at pos {self.pos}" if self.is_entry else f"pos {self.pos}"
        return "the start"


NOTHING = TailOffset()


def offset_from_json(value: Mapping[str, Any] | None) -> TailOffset:
    """The offset of a checkpoint; None is `NOTHING`. Raises OptionError for what is none."""
    if value is None:
        return NOTHING
    fields = [value.get(name) for name in _FIELDS] if isinstance(value, Mapping) and set(value) == set(_FIELDS) else []
    if not fields or not all(field is None or (type(field) is int) for field in fields):
        raise OptionError(
            f"expected an offset {_FORM} in the checkpoint, found {value!r}: give the query a checkpointLocation of "
            "its own"
        )
    offset = TailOffset(*fields)
    is_known = offset.pos is not None and (offset.index is None) == (offset.term is None)
    if offset != NOTHING and not (is_known and (offset.index is None or offset.is_entry)):
        raise OptionError(f"expected an offset {_FORM} in the checkpoint, found {value!r}: it was changed by hand")
    return offset


def furthest(*offsets: TailOffset) -> TailOffset:
    """The offset that reaches furthest into the log."""
    return max(offsets, key=lambda offset: -1 if offset.pos is None else offset.pos)


@dataclass(frozen=True)
class Limits:
    """How far one trigger may go; all that are given are kept at once. At least one entry is read if there is one.

    ``entries`` counts rows of the log, before any filter; ``size`` is in bytes of the log; nothing behind ``until`` is
    read (``Trigger.AvailableNow``).
    """

    entries: int | None = None
    size: int | None = None
    until: TailOffset | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class TailProgress:
    """How a log stood when it was last looked at; None where there is no such index, or none is known.

    ``lag_entries`` and ``lag_bytes`` are what may be read behind the offset that `Tail.latest` gave last.
    """

    committed: int | None
    end: int | None
    lag_entries: int | None
    lag_bytes: int | None

    def to_json(self) -> dict[str, int | None]:
        """As Spark shows it in ``sources[].latestOffset`` of a query's progress."""
        return {
            "committed": self.committed,
            "end": self.end,
            "lagEntries": self.lag_entries,
            "lagBytes": self.lag_bytes,
        }


class Tail(ABC):
    """A growing log, as one stream reads it. For one thread. Offsets are enough to continue with another tail.

    `name` is the path or the group, for errors; `options` are those of a stream (`stream_options`).
    """

    def __init__(self, name: str, options: ReadOptions) -> None:
        self.name = name
        self.options = options
        self._warned: set[TailOffset] = set()

    def only_pins_the_end(self, start: TailOffset) -> bool:
        """Whether a batch from `start` is empty, and ends where the log ends: the first one from ``latest``."""
        return start == NOTHING and self.options.starting_offsets == LATEST

    def report_loss(self, offset: TailOffset, problem: str, resumed: str) -> None:
        """Report data that was lost at or after `offset`: see `report_loss`. Warns once for each offset."""
        if self.options.fail_on_data_loss or offset not in self._warned:
            report_loss(f"{self.name}: {problem}", resumed, self.options.fail_on_data_loss)
        self._warned.add(offset)

    @abstractmethod
    def latest(self, start: TailOffset, limits: Limits) -> TailOffset:
        """Where a trigger that begins behind `start` ends; `start` itself where there is nothing to read.

        Looks at the log anew. From `NOTHING` with startingOffsets=latest it is the last entry that may be read, and the
        batch between them is empty: it pins the start in the checkpoint. Raises DataLossError where what was read up to
        `start` is no longer what stands there, or what follows it is gone, unless failOnDataLoss is false.
        """

    @abstractmethod
    def plan(self, start: TailOffset, end: TailOffset) -> list[Any]:
        """The parts that together hold each row behind `start` up to `end` once: picklable values, one for a task.

        The same offsets give the same rows, in this process or in another. Raises DataLossError as `latest`.
        """

    @abstractmethod
    def available(self) -> TailOffset:
        """The last entry that may be read now: where a query of ``Trigger.AvailableNow`` ends."""

    @abstractmethod
    def progress(self) -> TailProgress:
        """How the log stood when `latest` last looked."""

    def close(self) -> None:  # noqa: B027 - most tails hold nothing
        """Free what is held."""


def report_loss(problem: str, resumed: str, fail: bool) -> None:
    """Say that data was lost below an offset.

    `problem` names the log, what was expected and found; `resumed` says where reading goes on and what is skipped.
    Raises DataLossError where a stream is to `fail`, else warns.
    """
    if fail:
        raise DataLossError(
            f"{problem}: restore the log, start a new checkpointLocation, or set failOnDataLoss=false, and then "
            f"{resumed}"
        )
    _LOG.warning("%s (failOnDataLoss=false): %s", problem, resumed)


def stream_options(options: ReadOptions, given: Mapping[str, Any]) -> ReadOptions:
    """The options of a stream, whose defaults are read_committed and, without a start, ``latest``.

    `given` are the options as the user wrote them. Raises OptionError for what is of a batch only.
    """
    names = {name.lower() for name, value in given.items() if value is not None}
    for name in _NOT_FOR_A_STREAM:
        if name.lower() in names:
            raise OptionError(
                f"option {find_option(name).name} is for a batch, a stream has no use for it: leave it out"
            )
    if options.table != "log":
        raise OptionError(
            f"expected table log for a stream, found {options.table}: read it as a batch, with spark.read"
        )
    if isinstance(options.committed_bound, int) or options.committed_bound == "quorum":
        raise OptionError(
            f"expected committedBound auto, checkpoint, consumeQueue or end for a stream, found "
            f"{options.committed_bound}: it is for a batch"
        )
    has_start = "startingoffsets" in names
    if options.starting_timestamp is not None and has_start and options.starting_offsets == LATEST:
        raise OptionError("startingTimestamp and startingOffsets=latest are both given: give one of them")
    start = options.starting_offsets
    if not has_start:
        start = EARLIEST if options.starting_timestamp is not None else LATEST
    return replace(options, starting_offsets=start, isolation_level=options.isolation_level or "read_committed")
