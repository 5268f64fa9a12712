"""Arguments and results of the engines that read segments: plain, picklable values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format.facts import Fact
from pyspark_dledger.format.store_file import LocalFile, StoreFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DLEDGER = "dledger"
COMMITLOG = "commitlog"
KINDS = ("message", "entry", "noop", "config", "corrupt")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


class PrecedingEntry(NamedTuple):
    """The last known entry before a segment: index, term, the position after it, and its header's less its own."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    end: int
    shift: int | None = None


class FollowingEntry(NamedTuple):
    """Index and term of the first entry of the next segment."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int


class Witness(Protocol):
    """Knows entries of a segment without the segment's help. A plain value: picklable, hashable, compared by value."""

    def known_entries(self, segment: Segment) -> KnownEntries:
        """The entries of the segment that this witness can prove.

        An engine asks at the first damage that it finds, at most once per call. ``segment`` is the one of that call,
        with its whole file.
        """


@dataclass(frozen=True)
class Segment:
    """One file of the log, with the log's positions ``[base, base + size)``.

    ``check_pos`` is false for DLedger 0.4.0 stores, whose followers keep the leader's ``pos``, and for messages that a
    broker sent: they stand at other positions than in its log. ``before`` is given if the segment begins with damage:
    it decides which entries can follow. ``after`` is given if the next segment begins with an entry: it decides which
    entries can be the last. The ``witness`` decides about damaged bytes; without one, continuity of the entries does.
    """

    file: StoreFile
    name: str
    base: int
    size: int
    source: str
    check_pos: bool = True
    before: PrecedingEntry | None = None
    after: FollowingEntry | None = field(default=None, repr=False)  # an export of a log that grows compares plans
    witness: Witness | None = None

    @classmethod
    def local(cls, path: str, *values: Any, **named: Any) -> Segment:
        """A segment in the local file at `path`; the other values are those of the fields."""
        return cls(LocalFile(path), *values, **named)

    @property
    def path(self) -> str:
        """The path of its file, for messages."""
        return self.file.path

    def read(self, pos: int, size: int) -> bytes:
        """The bytes at position `pos` of the log, see `StoreFile.read`."""
        return self.file.read(pos - self.base, size)

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def is_short(self) -> bool:
        """Whether the file is shorter than the segment, or missing."""
        return (self.file.size() or 0) < self.size

    def known_entries(self) -> KnownEntries:
        """The entries that the witness knows, none without one. Raises ValueError if they are not sorted."""
        if self.witness is None:
            return no_known_entries()
        whole = self if self.file.extents is None else replace(self, file=self.file.whole)
        return inside(self.witness.known_entries(whole), self.base, self.end)


@dataclass(frozen=True)
class IntFilter:
    """Keeps rows whose value is in ``[low, high]`` (both inclusive) and, if given, in ``values``; drops nulls."""

    low: int = INT64_MIN
    high: int = INT64_MAX
    values: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Filters:
    """Conditions that a row must all meet; ``None`` is no condition. A null value meets none.

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


class Fingerprint(NamedTuple):
    """``size`` bytes at position ``pos`` as a plan found them, with their CRC-32; an entry there has index and term."""

    pos: int
    size: int
    crc: int
    index: int | None = None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int | None = None


@dataclass(frozen=True)
class ScanRequest:
    """A range of a segment, and the rows and columns to read.

    Rows that begin in ``[start, end)`` are read; ``start`` is an entry boundary. With ``end_is_boundary`` the walk must
    arrive at ``end`` exactly, as it does at positions of `Engine.split`. A reader of a plan compares the
    ``fingerprints``; engines ignore them.
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
    fingerprints: tuple[Fingerprint, ...] = field(default=(), repr=False)


class Compressed(NamedTuple):
    """A compressed body of a batch: its row, its type of compression, the stored bytes, and ``pos`` of the row.

    The type is a key of `COMPRESSIONS`, or unknown.
    """

    row: int
    type: int
    stored: bytes
    pos: int


class LogEnd(NamedTuple):
    """The end of a log inside a segment: ``pos`` is the position after the last entry.

    ``entries`` and the first entry are counted from the start of the search. Without entries ``pos`` is that start, and
    the other fields are -1. Old messages have no index and no term, so these are -1; ``last_store_timestamp``, in
    milliseconds since 1970, is only for them.
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
    """Consecutive entries of one term: index and position of the first, and their number."""

    term: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    entries: int

    def joined(self, following: TermRun) -> TermRun | None:
        """Both runs as one; None if their terms differ."""
        return self._replace(entries=self.entries + following.entries) if self.term == following.term else None


class Extent(NamedTuple):
    """Adjacent bytes of one kind: entry, message, blank, unwritten, stale or corrupt."""

    kind: str
    pos: int
    size: int


class Problem(NamedTuple):
    """A problem in the ``size`` bytes at ``pos``: a finding's code, and what was expected and found.

    ``index`` is that of the entry with the problem, if any.
    """

    code: str
    pos: int
    size: int
    index: int | None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    fact: Fact


@dataclass(frozen=True)
class SurveyRequest:
    """A segment to survey: ``[start, end)`` is the log, the bytes up to the segment's end are after it.

    At most ``max_problems`` problems of each code and at most as many extents are listed; all are counted.
    """

    segment: Segment
    start: int
    end: int
    verify_crc: bool = True
    max_problems: int = 1_000


class Survey(NamedTuple):
    """The contents of a segment. Sizes are in bytes; -1 means no entry or no timestamp.

    ``entries`` counts entries and old messages, ``messages`` only messages. Timestamps are those of the first and the
    last message, in milliseconds since 1970. ``counts`` has the number of problems of each code.
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


class KnownEntries(NamedTuple):
    """Entries (or old messages) of the log, by the evidence of a witness; stale entries are never among them.

    If the witness knows where the log ends, the last one is all bytes after that, and is not whole.

    Three arrays of one length, sorted by position: the bytes ``[pos, end)`` of each entry, disjoint, in positions of
    the log. ``is_whole`` says that the header at ``pos`` is exactly the one that the witness gives. Otherwise an entry
    stood there, but its header is damaged.
    """

    pos: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    is_whole: npt.NDArray[np.bool_]


def no_known_entries() -> KnownEntries:
    """What a witness knows that knows nothing."""
    import numpy as np  # most readers do not need it

    return KnownEntries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


def inside(known: KnownEntries, start: int, end: int) -> KnownEntries:
    """The known entries in ``[start, end)``, as contiguous arrays. Raises ValueError if they are not sorted."""
    import numpy as np

    pos, ends = np.ascontiguousarray(known.pos, np.int64), np.ascontiguousarray(known.end, np.int64)
    is_whole = np.ascontiguousarray(known.is_whole, np.bool_)
    if not len(pos) == len(ends) == len(is_whole):
        raise ValueError(f"expected arrays of one length, found {len(pos)}, {len(ends)} and {len(is_whole)}")
    if (pos >= ends).any() or (pos[1:] < ends[:-1]).any():
        raise ValueError("expected known entries sorted by position and disjoint")
    first, last = int(np.searchsorted(pos, start)), int(np.searchsorted(ends, end, "right"))
    return KnownEntries(pos[first:last], ends[first:last], is_whole[first:last])


class Evidence(NamedTuple):
    """What the index proves about the end of the log in a segment.

    ``last_index``, ``last_term`` and ``last_end`` are of the last entry that it knows, ``committed_end`` is the end of
    the last one that the checkpoint proves committed; -1 without one. Both can be lost. ``log_end`` is set if the log
    ends in the segment and units of truncated entries follow. ``ends_in_gap`` says that nothing which is there
    continues the last entry, ``ends_index`` that the index has room after its last unit, and did not use it.
    """

    last_index: int
    last_term: int
    last_end: int
    committed_end: int
    log_end: int | None
    ends_in_gap: bool
    ends_index: bool

    def is_contradicted_by(self, end: LogEnd) -> bool:
        """Whether the last entry that a search found is stale: the one that the index knows is of a later log."""
        is_other = end.last_index <= self.last_index or end.last_term < self.last_term
        return 0 <= self.last_end < end.pos and is_other


NO_EVIDENCE = Evidence(-1, -1, -1, -1, None, False, False)
