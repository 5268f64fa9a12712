"""Lists the segments of a store: those of the old CommitLog, then those of DLedger."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.common.fields import changed
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.process_memory import collector_paused
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import EntryHeader, IndexUnit, decode_blank
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, FollowingEntry, PrecedingEntry, Segment
from pyspark_dledger.format.store_file import read_ranges
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at, entry_in, unnamed_segment
from pyspark_dledger.log.io.files import FolderEntry, map_reads, path_of
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE, Listing, StorePaths, entry_size, listing
from pyspark_dledger.log.witness.store_witness import witness_of

if TYPE_CHECKING:
    from pyspark_dledger.log.io.unread_files import UnreadSegment

HEAD_BYTES = 256
"""Bytes of a file's beginning that a list of segments keeps: an entry, and the store time of its message."""
TAIL_BYTES = 64
"""Bytes of a segment's end that it keeps."""

_BLANK_BYTES = 64 * 1024
_MAX_UNITS_TRIED = 1_000


class FileEnds(NamedTuple):
    """The first bytes of a file, the DLedger entry there, and the last bytes of its segment, if these are final."""

    head: bytes
    entry: EntryHeader | None
    tail: bytes


@dataclass(frozen=True)
class StoreSegments:
    """The segments of a store, in order, and the folder listings they come from.

    ``divided`` is where the first DLedger file begins, None without one. ``unread`` are the segments that cannot be
    read and were left out. ``known_ends`` are those of files by their paths, as far as read.
    """

    segments: list[Segment]
    divided: int | None
    listings: tuple[Listing, Listing]
    unread: tuple[UnreadSegment, ...] = ()
    known_ends: dict[str, FileEnds] = field(default_factory=dict, repr=False)

    def file_ends(self, segment: Segment, is_final: bool) -> FileEnds:
        """The `HEAD_BYTES` and `TAIL_BYTES` of a segment's file; fewer of a shorter one.

        The tail is read if it ``is_final``, which means that the log continues in the next file.
        """
        known = self.known_ends.get(segment.path)
        if known is None:
            if is_final and segment.file.is_local and segment.size >= TAIL_BYTES:
                head, tail = read_ranges(segment.path, ((0, HEAD_BYTES), (segment.size - TAIL_BYTES, TAIL_BYTES)))
            else:
                head, tail = segment.read(segment.base, HEAD_BYTES), b""
            entry = entry_in(head, segment, segment.base) if segment.source == DLEDGER else None
            known = self.known_ends[segment.path] = FileEnds(head, entry, tail)
        return known


class _FileReads:
    """Reads both ends of local files while they are listed, except of those that are `known`.

    An open file tells its size, so none is looked at before. ``found`` has the size, head and tail by path.
    """

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self.found: dict[str, tuple[int, bytes, bytes]] = {}

    def size_of(self, entry: FolderEntry) -> int | None:
        """See `store_paths.entry_size`."""
        path = entry.path
        if path in self._known or is_remote(path) or not entry.is_file():
            return entry_size(entry)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return entry_size(entry)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            head = os.pread(descriptor, HEAD_BYTES, 0)
            self.found[path] = size, head, os.pread(descriptor, TAIL_BYTES, max(size - TAIL_BYTES, 0))
        except OSError:
            return entry_size(entry)
        finally:
            os.close(descriptor)
        return size

    def ends(self, segments: Sequence[Segment]) -> Iterator[tuple[str, FileEnds]]:
        """The ends of segments by path. A tail counts if the next file had an entry when it was read."""
        next_pos = -1
        for segment in reversed(segments):
            size, head, tail = self.found.get(segment.path, (0, b"", b""))
            base = segment.base
            entry = entry_in(head, segment, base)
            is_final = base + size == next_pos and size == segment.size
            if head:
                yield segment.path, FileEnds(head, entry, tail if is_final else b"")
            next_pos = base if entry is not None else -1


@collector_paused()
def list_store(
    paths: StorePaths,
    check_pos: bool,
    engine: Engine,
    index: DLedgerIndex,
    before: StoreSegments | None,
    known_unread: Sequence[UnreadableError] | None = None,
) -> StoreSegments:
    """List the segments at `paths`, each with its witness; what `before` has and did not change is not read again.

    `check_pos` says whether DLedger entries have their true position. Those of `known_unread`, and more that cannot be
    read, are in ``unread`` only; None leaves nothing out. Raises OSError, and StoreError for a file that is no segment.
    """
    earlier = before.listings if before is not None else (None, None)
    witness = witness_of(paths)
    # The beginning of the last file can have been written since.
    seen = before.segments[:-1] if before is not None else []
    read = before.known_ends if before is not None else {}
    heads = {each.path: read[each.path] for each in seen if each.path in read}
    # A leader can truncate the last files, and write other entries into them.
    kept = {path: ends._replace(tail=b"") for path, ends in heads.items() if ends.head.strip(b"\0")}
    reads = _FileReads(kept)
    size_of = reads.size_of if paths.only is None else entry_size
    listings = (
        listing(paths.data_dirs, DLEDGER, check_pos, earlier[0], witness, size_of),
        listing(paths.commitlog_dirs, COMMITLOG, True, earlier[1], witness),
    )
    # A listing that was made earlier has a witness that keeps its answers.
    ledger, old = (
        [each if each.witness is witness else changed(each, witness=witness) for each in found.segments]
        for found in listings
    )
    unread: tuple[UnreadSegment, ...] = ()
    if known_unread is not None and not is_remote(paths.path):
        from pyspark_dledger.log.io.unread_files import unread_segments  # imports numpy, which is slow to load

        unread = unread_segments(paths, [*old, *ledger], known_unread)
    left_out = {segment.path for segment, _ in unread}
    divided = min((each.base for each in (*ledger, *(one for one, _ in unread if one.source == DLEDGER))), default=None)
    old, ledger = ([each for each in found if each.path not in left_out] for found in (old, ledger))
    known = {changed(segment, before=None, after=None): segment for segment in seen}
    kept.update(reads.ends(ledger))
    found = StoreSegments([], divided, listings, known_ends=kept)

    def is_read(three: tuple[Segment | None, Segment, Segment | None]) -> bool:
        _, segment, following = three
        if known and segment in known and (following is None or following in known):
            return False
        return paths.only is None or path_of(segment.path) == paths.only

    def with_neighbours(three: tuple[Segment | None, Segment, Segment | None]) -> Segment:
        if is_read(three):
            return _with_neighbours(*three, found, engine, index)
        return known.get(three[1], three[1])

    # Backwards: when a file is read, the next one shows whether the log has left it.
    triples = list(zip([None, *ledger], ledger, [*ledger[1:], None], strict=False))[::-1]
    if is_remote(paths.path):
        # Before, so that the threads for a file and for the one before it do not both request its begin.
        begins = {each: None for three in triples if is_read(three) for each in three[1:] if each is not None}
        list(map_reads(lambda segment: found.file_ends(segment, False), list(begins), paths.path))
    ledger = list(map_reads(with_neighbours, triples, paths.path))[::-1]
    if paths.only is not None:
        listed = [segment for segment in ledger + old if path_of(segment.path) == paths.only]
        source = DLEDGER if paths.data_dirs else COMMITLOG
        segments = listed or [replace(unnamed_segment(paths.only, source), witness=witness)]
    else:
        if divided is not None:
            # From the first DLedger file on the log is DLedger's, even where commitlog/ has files.
            old = [replace(part, size=min(part.size, divided - part.base)) for part in old if part.base < divided]
        segments = old + ledger
        unread = tuple(each for each in unread if each[0].source == DLEDGER or each[0].base < (divided or HIGHEST_BASE))
    return replace(found, segments=segments, unread=unread)


def is_unwritten(segment: Segment) -> bool:
    """Whether a segment begins with zeros only, as a file that was created ahead does."""
    return not segment.read(segment.base, _BLANK_BYTES).strip(b"\0")


def _with_neighbours(
    previous: Segment | None,
    segment: Segment,
    following: Segment | None,
    listed: StoreSegments,
    engine: Engine,
    index: DLedgerIndex,
) -> Segment:
    """The segment with the next one's first entry; if it begins with damage, with the last entry of the one before."""
    first = None
    known = listed.known_ends.get  # nearly all of them
    if following is not None and following.base == segment.base + segment.size:
        first = (known(following.path) or listed.file_ends(following, False)).entry
    head, entry, _ = known(segment.path) or listed.file_ends(segment, first is not None)
    if first is not None:
        segment = changed(segment, after=FollowingEntry(first.index, first.term))
    if previous is None or entry is not None:
        return segment
    if (len(head) >= MIN_BLANK_SIZE and decode_blank(head) is not None) or is_unwritten(segment):
        return segment
    return replace(segment, before=last_entry(previous, segment.base, engine, index))


def last_entry(segment: Segment, end: int, engine: Engine, index: DLedgerIndex) -> PrecedingEntry | None:
    """The last entry of a segment below `end`: the last that index files confirm, else the last that a walk finds."""
    unit = last_confirmed_unit(index, segment, last_unit_below(index, end))
    if unit is not None:
        return PrecedingEntry(unit.index, unit.term, unit.pos + unit.size, _shift_at(segment, unit.pos))
    if segment.end != end:
        return None
    found = engine.log_end(segment, segment.base, True)
    if found.entries == 0:
        return None
    return PrecedingEntry(found.last_index, found.last_term, found.pos, _shift_at(segment, found.last_pos))


def _shift_at(segment: Segment, pos: int) -> int | None:
    """The position in an entry's header less its own."""
    header = entry_at(segment, pos)
    return None if header is None else header.pos - pos


def last_confirmed_unit(index: DLedgerIndex, segment: Segment, last: int) -> IndexUnit | None:
    """The last index unit up to index `last` that an entry of the segment confirms, of the last `_MAX_UNITS_TRIED`."""
    for number in range(last, max(last - _MAX_UNITS_TRIED, -1), -1):
        unit = index.unit(number)
        if unit is not None and unit.pos < segment.base:
            return None
        if unit is not None and index.confirmed_unit(segment, number) is not None:
            return unit
    return None


def last_unit_below(index: DLedgerIndex, pos: int) -> int:
    """The last index whose unit has a position below `pos`, by binary search; -1 without one."""
    if not index.files:
        return -1

    def pos_of(number: int) -> int:
        unit = index.unit(number)
        return INT64_MAX if unit is None else unit.pos

    numbers = range(index.files[0].base // INDEX_UNIT_SIZE, index.files[-1].end // INDEX_UNIT_SIZE)
    return numbers.start + bisect_left(numbers, pos, key=pos_of) - 1
