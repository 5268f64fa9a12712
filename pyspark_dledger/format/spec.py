"""What the two engines are asked and what they answer: plain, picklable values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN

DLEDGER = "dledger"
COMMITLOG = "commitlog"
KINDS = ("message", "entry", "noop", "config", "corrupt")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


class PrecedingEntry(NamedTuple):
    """The last entry that is known before a segment: its index and term, and the position right behind it."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    end: int


class PartialCopy(NamedTuple):
    """A local file that stands for another one of the same size, and holds only the bytes of some extents of it.

    ``extents`` are ``(start, end)`` in bytes from the file's beginning, ascending, apart, and whole mebibytes but for
    the file's last. An engine that needs other bytes raises `segment_file.MissingBytes`.
    """

    path: str
    extents: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Segment:
    """One file of the log, at ``[base, base + size)`` of the log's positions.

    ``check_pos`` is false for DLedger 0.4.0 stores, whose followers keep the leader's ``pos``. ``before`` is known
    where the segment does not begin with an entry: it tells which entries can go on behind damage at ``base``. With a
    ``copy`` the bytes are read from that, and errors name ``path``.
    """

    path: str
    name: str
    base: int
    size: int
    source: str
    check_pos: bool = True
    before: PrecedingEntry | None = None
    copy: PartialCopy | None = None

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True)
class IntFilter:
    """Keeps rows whose value is in ``[low, high]`` (both inclusive) and, if given, in ``values``; never null."""

    low: int = INT64_MIN
    high: int = INT64_MAX
    values: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Filters:
    """A conjunction; ``None`` means no condition. A null value never passes a condition.

    ``store_timestamp`` is in microseconds since 1970; a timestamp outside years 1 to 9999 is null.
    """

    index: IntFilter | None = None
    term: IntFilter | None = None
    pos: IntFilter | None = None
    queue_id: IntFilter | None = None
    store_timestamp: IntFilter | None = None
    kind: tuple[str, ...] | None = None
    topic: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    committed: bool | None = None


@dataclass(frozen=True)
class ScanRequest:
    """One range of one segment, and which rows and columns of it are wanted.

    Rows that start in ``[start, end)`` are read; ``start`` is an entry boundary. With ``end_is_boundary`` the walk has
    to arrive at ``end`` exactly, which holds for every split that `split` proposed.
    """

    segment: Segment
    start: int
    end: int
    columns: tuple[str, ...]
    filters: Filters = field(default_factory=Filters)
    mode: str = "PERMISSIVE"
    verify_crc: bool = True
    committed_index: int | None = None
    max_body_bytes: int = 64 * 1024 * 1024
    max_batch_rows: int = 10_000
    max_batch_bytes: int = 10 * 1024 * 1024
    end_is_boundary: bool = False


class Compressed(NamedTuple):
    """A compressed body left out of a batch: its row in the batch, its codec, the stored bytes, and ``pos`` of the row.

    The codec is one of `COMPRESSIONS`, or ``unknown N``.
    """

    row: int
    codec: str
    stored: bytes
    pos: int


class LogEnd(NamedTuple):
    """Where a log ends inside a segment: ``pos`` is the first byte behind the last entry.

    ``entries`` and the first entry count from where the search began. Without any entry ``pos`` is that start, and the
    other fields are -1. CommitLog messages have no index and no term: those fields stay -1; ``last_store_timestamp`` is
    theirs only, in milliseconds since 1970.
    """

    pos: int
    entries: int
    first_index: int
    first_term: int
    last_index: int
    last_term: int
    last_pos: int
    last_store_timestamp: int


class TermRun(NamedTuple):
    """Consecutive entries of one term: index and position of the first, and how many."""

    term: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    entries: int


class Extent(NamedTuple):
    """Bytes of one kind: entry, message, blank, unwritten, stale or corrupt. Neighbours of a kind are one extent."""

    kind: str
    pos: int
    size: int


class Problem(NamedTuple):
    """Something wrong with the bytes of a segment: what was expected and found, at ``pos``, over ``size`` bytes.

    ``index`` is the index of the entry that it is about; None where it is about none.
    """

    code: str
    pos: int
    size: int
    index: int | None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    text: str


@dataclass(frozen=True)
class SurveyRequest:
    """One segment to account for: ``[start, end)`` is the log, what follows up to the segment's end lies behind it.

    Of each code at most ``max_problems`` are listed, and at most as many extents; all are counted.
    """

    segment: Segment
    start: int
    end: int
    verify_crc: bool = True
    max_problems: int = 1_000


class Survey(NamedTuple):
    """What a segment holds, byte for byte. Sizes are in bytes; -1 stands for no entry and no timestamp.

    ``entries`` counts entries and old messages, ``messages`` those that are messages. Timestamps are the first and last
    message's, in milliseconds since 1970. ``counts`` gives for each code how many problems there are.
    """

    entries: int
    messages: int
    first_index: int
    first_term: int
    first_pos: int
    last_index: int
    last_term: int
    last_pos: int
    first_store_timestamp: int
    last_store_timestamp: int
    sizes: dict[str, int]
    extents: list[Extent]
    problems: list[Problem]
    counts: dict[str, int]
