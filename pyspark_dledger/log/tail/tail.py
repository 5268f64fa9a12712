"""The interface of a tail, its offsets and limits, and how data loss is reported.

`store_tail.StoreTail` tails a store on disk, `spark.stream.group_tail` a live group, `cluster.tail` a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.gaps import OF_STREAMS, report_loss
from pyspark_dledger.log.options import EARLIEST, GROUP_STREAM, LATEST, STREAM, ReadOptions, check_use

if TYPE_CHECKING:
    from typing_extensions import Self

_FIELDS = ("index", "term", "pos", "crc")
_VERSION = "version"
OFFSET_VERSION = 1
"""Of offsets in checkpoints."""
_FORM = f'{{"index": n, "term": n, "pos": n, "crc": n, "version": {OFFSET_VERSION}}}'


class Offset(Protocol):
    """A place in a growing log, of what a stream has read."""

    def to_json(self) -> Mapping[str, Any]:
        """The form in a Spark checkpoint."""

    def furthest(self, other: Self) -> Self:
        """The place that both are at or before."""


AnyOffset = TypeVar("AnyOffset", bound=Offset)


class TailOffset(NamedTuple):
    """The last entry that was read: index, term, position in bytes, and the CRC-32 of all its bytes with the header.

    For a message of the old CommitLog, index and term are None. Two forms mean that nothing was read yet: `NOTHING`,
    all None, begins as the start options say; ``pos`` alone begins with the first row at or after that position.
    """

    index: int | None = None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int | None = None
    pos: int | None = None
    crc: int | None = None

    @property
    def is_entry(self) -> bool:
        """Whether this is an entry or a message that was read."""
        return self.crc is not None

    def to_json(self) -> dict[str, int | None]:
        """The form in a Spark checkpoint; always with the same keys in the same order."""
        return {**self._asdict(), _VERSION: OFFSET_VERSION}

    def furthest(self, other: TailOffset) -> TailOffset:
        """The offset with the higher position."""
        return max(self, other, key=lambda offset: -1 if offset.pos is None else offset.pos)

    def __str__(self) -> str:
        """The form in errors."""
        if self.index is not None:
            return f"index {self.index} (term {self.term}, pos {self.pos})"
        if self.pos is not None:
            return f"the message at pos {self.pos}" if self.is_entry else f"pos {self.pos}"
        return "the start"


NOTHING = TailOffset()


def offset_from_json(value: Mapping[str, Any] | None) -> TailOffset:
    """The offset from a checkpoint; None is `NOTHING`. Raises OptionError for anything else, and newer versions."""
    if value is None:
        return NOTHING
    version = value.get(_VERSION) if isinstance(value, Mapping) else None
    if type(version) is int and version > OFFSET_VERSION:
        raise OptionError(
            f"expected offsets of at most version {OFFSET_VERSION} in the checkpoint, found version {version}, of a "
            "later release: use that release, or another checkpointLocation"
        )
    is_offset = version == OFFSET_VERSION and set(value) == {*_FIELDS, _VERSION}
    fields = [value.get(name) for name in _FIELDS] if is_offset else []
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


@dataclass(frozen=True)
class Limits(Generic[AnyOffset]):
    """The limits of one trigger, which all apply. At least one entry is read if there is one.

    ``entries`` counts rows of the log before filters, ``size`` bytes of the log. ``until`` is the last offset to read
    (``Trigger.AvailableNow``).
    """

    entries: int | None = None
    size: int | None = None
    until: AnyOffset | None = None


NO_LIMITS: Limits[Any] = Limits()


class Progress(Protocol):
    """A log and how much of it is unread."""

    def to_json(self) -> dict[str, Any]:
        """The form in ``sources[].latestOffset`` of a query's progress."""


@dataclass(frozen=True)
class TailProgress:
    """The log at the last refresh; None for a number that does not exist or is not known.

    ``lag_entries`` and ``lag_bytes`` count what may be read after the last result of `Tail.latest`; ``entries`` and
    ``bytes`` what that result adds, before filters; ``expired`` the expired entries that all calls skipped.
    """

    committed: int | None
    end: int | None
    lag_entries: int | None
    lag_bytes: int | None
    entries: int | None = None
    bytes: int | None = None
    expired: int = 0

    def to_json(self) -> dict[str, int | None]:
        """The form in ``sources[].latestOffset`` of a query's progress."""
        return fields_row(self)


class Tail(ABC, Generic[AnyOffset]):
    """A growing log, as one stream reads it. For one thread. Offsets are enough to continue with another tail.

    `name` is the path or the group, for errors; `options` are those of a stream (`stream_options`).
    """

    def __init__(self, name: str, options: ReadOptions) -> None:
        self.name = name
        self.options = options
        # Entries that expired before they were read.
        self._expired = 0
        self._warned: set[object] = set()
        # The advice in errors about lost data.
        self.remedy = OF_STREAMS

    def only_pins_the_end(self, start: AnyOffset) -> bool:
        """Whether a batch from `start` is empty and ends at the log's end: the first with startingOffsets=latest."""
        return start == NOTHING and self.options.starting_offsets == LATEST

    def report_loss(self, offset: object, problem: str, resumed: str, expired: int = 0) -> None:
        """Report data that was lost at or after `offset`: see `report_loss`. Warns once for each offset.

        `expired` entries are skipped.
        """
        if self.options.fail_on_data_loss or offset not in self._warned:
            report_loss(f"{self.name}: {problem}", resumed, self.options.fail_on_data_loss, self.remedy)
            self._expired += expired
        self._warned.add(offset)

    @abstractmethod
    def latest(self, start: AnyOffset, limits: Limits[AnyOffset]) -> AnyOffset:
        """The end of a trigger that begins after `start`; `start` itself if there is nothing to read.

        Refreshes the view of the log. From `NOTHING` with startingOffsets=latest the result is the last entry that may
        be read; the batch is empty and pins the start in the checkpoint. Raises DataLossError if the entry `start` or
        what follows it is no longer in the log, unless failOnDataLoss is false.
        """

    @abstractmethod
    def plan(self, start: AnyOffset, end: AnyOffset) -> list[Any]:
        """Parts that together have each row after `start` up to `end` once: picklable values, one for each task.

        The same offsets give the same rows in every process. Raises DataLossError as `latest`.
        """

    @abstractmethod
    def available(self) -> AnyOffset:
        """The last entry that may be read: the end of a query with ``Trigger.AvailableNow``."""

    @abstractmethod
    def progress(self) -> Progress:
        """The log at the last call of `latest`."""

    def close(self) -> None:
        """Free resources."""


def stream_options(options: ReadOptions, given: Mapping[str, Any]) -> ReadOptions:
    """The options of a stream: the defaults are read_committed and startingOffsets=latest.

    `given` are the options as the user wrote them. Raises OptionError for options of batch reads.
    """
    if isinstance(options.committed_bound, int) or options.committed_bound == "quorum":
        raise OptionError(
            f"expected committedBound auto, checkpoint, consumeQueue or end for a stream, found "
            f"{options.committed_bound}: use it for batch reads"
        )
    check_use(options, GROUP_STREAM if options.group or options.peers else STREAM)
    has_start = any(name.lower() == "startingoffsets" and value is not None for name, value in given.items())
    if options.starting_timestamp is not None and has_start and options.starting_offsets == LATEST:
        raise OptionError("startingTimestamp and startingOffsets=latest are both given: give one of them")
    start = options.starting_offsets
    if not has_start:
        start = EARLIEST if options.starting_timestamp is not None else LATEST
    return replace(options, starting_offsets=start, isolation_level=options.isolation_level or "read_committed")


def whole_segments(options: ReadOptions) -> ReadOptions:
    """Options for a walk with one partition for each segment that continues after damage."""
    return replace(options, max_partition_bytes=INT64_MAX, min_partitions=None, mode="PERMISSIVE")
