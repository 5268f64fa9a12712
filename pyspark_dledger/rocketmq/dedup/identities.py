"""Which identities stand in the log, and where: so that a message that comes again is answered and not written again.

What is committed is in run files (`identity_run`), each of a contiguous range of indexes, written by the thread that
dispatches. What is above the last run is in memory: `Identities.pending` what is committed, and at a leader `Recent`
all of it, committed or not. Everything can be read from the log anew, as far back as identities are kept.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.log_records import LOG
from pyspark_dledger.common.retention import PRODUCER_ID_EXPIRY_MS
from pyspark_dledger.format.encode.puts import ID_SIZE
from pyspark_dledger.rocketmq.dedup.identity_file import (
    EntryRange,
    IdentityArrays,
    IdentityFile,
    Words,
    identified,
    joined,
    run_files,
    write_run,
)
from pyspark_dledger.rocketmq.message_arrays import Longs

FOLDER = "identities"

_KEY = np.dtype(f"V{ID_SIZE}")
# Identities between two runs, and seconds where fewer come.
_RUN_IDS = 65_536
_RUN_MS = 10_000
# Of what is in one run: what sorting takes of memory, and of the time of the thread that dispatches, has to stay small.
_LARGEST_RUN = 1 << 22
_LEAST_MERGED = 4
# Times that a run may cover: what is in it expires with the last of it.
_EXPIRY_PARTS = 7
# Bits for each identity, at least: some 2 of 100 unknown ones are looked for in the runs, at most.
_FILTER_BITS = 16
_LEAST_FILTER = 1 << 20
_SEVEN, _THREE = np.uint64(7), np.uint64(3)
_BITS = np.left_shift(1, np.arange(8, dtype=np.uint8), dtype=np.uint8)
# Of the filter above the runs: places for each identity, and in all.
_MARKS_PER_ID = 64
_LEAST_MARKS = 1 << 16
# So many that may be duplicates are looked for one by one.
_FEW = 3


def milliseconds() -> int:
    """Now, since 1970."""
    return time.time_ns() // 1_000_000


class _Filter:
    """A Bloom filter of two bits an identity: what it does not have is in no run."""

    def __init__(self, least_ids: int) -> None:
        size = _LEAST_FILTER
        while size < _FILTER_BITS * least_ids:
            size *= 2
        self.room = size // _FILTER_BITS
        self._bits = np.zeros(size // 8, np.uint8)
        self._mask = np.uint64(size - 1)

    def add(self, found: IdentityArrays) -> None:
        for places in (self._one(found.producer, found.first), self._other(found.producer, found.second)):
            bits = np.left_shift(1, (places & _SEVEN).astype(np.uint8), dtype=np.uint8)
            np.bitwise_or.at(self._bits, (places >> _THREE).view(np.int64), bits)

    def has(self, found: IdentityArrays) -> Longs:
        """The numbers of those that may be there."""
        which: Longs = np.flatnonzero(self._is_set(self._one(found.producer, found.first)))
        if len(which):
            which = which[self._is_set(self._other(found.producer[which], found.second[which]))]
        return which

    def _is_set(self, places: Words) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self._bits[(places >> _THREE).view(np.int64)] & _BITS[places & _SEVEN]) != 0
        return found

    # The halves of the hash are as good as random; the producer tells those of equal content apart.

    def _one(self, producer: Words, first: Words) -> Words:
        return (first ^ producer) & self._mask

    def _other(self, producer: Words, second: Words) -> Words:
        return (second + producer) & self._mask


@dataclass
class _Pending:
    """Committed identities that are in no run yet, and what they cover."""

    parts: list[IdentityArrays]
    range: EntryRange | None = None
    count: int = 0
    since_ms: int = 0


class Identities:
    """The runs of a node, and what is committed above them.

    `add` and `flush` are for one thread, the one that dispatches; `find` and `pending` may be called from another.
    Identities are kept for ``expiry_ms`` after their entries were stored, and up to a seventh of that longer.
    """

    def __init__(
        self,
        folder: Path,
        expiry_ms: int = PRODUCER_ID_EXPIRY_MS,
        *,
        run_ids: int = _RUN_IDS,
        run_ms: int = _RUN_MS,
        clock: Callable[[], int] = milliseconds,
    ) -> None:
        self.folder = folder
        self._expiry_ms = expiry_ms
        self._run_ids, self._run_ms = run_ids, run_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: tuple[IdentityFile, ...] = ()
        self._filter = _Filter(0)
        self._filtered = 0
        self._pending = _Pending([])

    # Starting

    def load(self, holds: Callable[[int, int], bool], needed_from: int, proven_from: int) -> int:
        """Open the runs; the index from which `add` has to be told everything.

        ``holds(index, term)`` tells whether the log has that entry, or once had it. ``needed_from`` is the index of the
        first entry whose identity has not expired; runs that begin behind ``proven_from`` lack some. Runs that are
        damaged or of another log, and all that does not go on where the one before ends, are deleted.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        kept: list[IdentityFile] = []
        for run in self._opened():
            follows = run.range.first_index == kept[-1].range.last_index + 1 if kept else True
            if kept and kept[-1].range.contains(run.range):
                _delete(run.path)
            elif follows and holds(run.range.last_index, run.range.last_term):
                kept.append(run)
            else:
                self._drop(run.path, f"it is not of this log, or does not follow index {_last(kept)}")
        if kept and kept[0].range.first_index > proven_from:
            for run in kept:
                self._drop(run.path, f"what is before index {kept[0].range.first_index} is missing")
            kept = []
        self._publish(tuple(kept))
        self._expire()
        return max(self.covered + 1, needed_from)

    def _opened(self) -> list[IdentityFile]:
        """The intact ones by their first index; of those that begin with the same one the longest first."""
        runs = []
        for path in run_files(self.folder):
            try:
                runs.append(IdentityFile(path))
            except (OSError, ValueError) as error:
                self._drop(path, str(error))
        return sorted(runs, key=lambda run: (run.range.first_index, -run.range.last_index))

    def _drop(self, path: Path, reason: str) -> None:
        LOG.warning("identities dropped, to be read from the log", extra={"fields": {"file": path, "found": reason}})
        _delete(path)

    # Finding

    @property
    def covered(self) -> int:
        """The last index that the runs cover; -1 without one."""
        return _last(self._runs)

    def find(self, ids: bytes, which: Longs | None = None) -> dict[int, int]:
        """The index of the entry that has each identity, by its ordinal among `ids`, of those that runs have.

        ``which`` tells the ordinals that are asked for; None for all.
        """
        runs = self._runs
        if not runs:
            return {}
        asked = identified(ids, np.empty(0, np.int64))
        maybe = self._filter.has(asked)
        if which is not None:
            maybe = np.intersect1d(maybe, which, assume_unique=True)
        found: dict[int, int] = {}
        oldest = self._clock() - self._expiry_ms
        for producer, rest in _by_producer(asked.producer, maybe):
            for run in reversed(runs):
                if not len(rest):
                    break
                if run.range.last_store_timestamp < oldest:
                    continue  # and not the end: what was restored as raw entries is older than what stands before it
                index = run.find(producer, asked.first[rest], asked.second[rest])
                hits = index >= 0
                found.update(zip(rest[hits].tolist(), index[hits].tolist(), strict=True))
                rest = rest[~hits]
        return found

    def pending(self) -> list[IdentityArrays]:
        """What is committed and in no run yet, in the order of the log."""
        with self._lock:
            return list(self._pending.parts)

    # Adding

    def add(self, covered: EntryRange, ids: bytes, index: Longs) -> None:
        """Take what was committed next: the identities of a range of entries, with their indexes."""
        if covered.last_index <= self._added:
            return
        found = identified(ids, index)
        if covered.first_index <= self._added:
            found = found.take(np.flatnonzero(index > self._added))
        with self._lock:
            pending = self._pending
            if pending.range is None:
                pending.since_ms = self._clock()
            pending.range = _extended(pending.range, covered, self._added)
            pending.count += len(found)
            if len(found):
                pending.parts.append(found)
        if pending.count >= self._run_ids or self._clock() - pending.since_ms >= self._run_ms:
            self.flush()

    @property
    def _added(self) -> int:
        pending = self._pending.range
        return self.covered if pending is None else pending.last_index

    def flush(self) -> None:
        """Write a run of what is pending. Raises OSError where the disk fails."""
        pending = self._pending
        if pending.range is None:
            return
        found = joined(pending.parts)
        self.folder.mkdir(parents=True, exist_ok=True)
        run = write_run(self.folder, pending.range, found, is_durable=False)
        self._filtered += len(found)
        self._filter.add(found)
        with self._lock:
            self._publish((*self._runs, run))
            self._pending = _Pending([])
        self._merge()
        self._expire()

    def _publish(self, runs: tuple[IdentityFile, ...]) -> None:
        """Let others see these runs; the filter has what they have by then."""
        count = sum(run.count for run in runs)
        if self._filtered > self._filter.room or self._filtered < count:
            larger = _Filter(2 * count)
            for run in runs:
                larger.add(run.all())
            self._filter, self._filtered = larger, count
        self._runs = runs

    # Merging and expiry

    def _merge(self) -> None:
        """Put one run in the place of the last ones, where they have become many and none of them is most of it."""
        while (first := _mergeable(self._runs, self._expiry_ms // _EXPIRY_PARTS)) is not None:
            merged = self._runs[first:]
            covered = merged[0].range
            for run in merged[1:]:
                covered = _extended(covered, run.range, covered.last_index)
            run = write_run(self.folder, covered, joined([each.all() for each in merged]), is_durable=True)
            self._publish((*self._runs[:first], run))
            for each in merged:
                _delete(each.path)

    def _expire(self) -> None:
        """Delete the first runs that have expired. The last one stays: it tells how far the log has been read."""
        oldest = self._clock() - self._expiry_ms
        runs, count = self._runs, 0
        while count + 1 < len(runs) and runs[count].range.last_store_timestamp < oldest:
            count += 1
        self._runs = runs[count:]
        for run in runs[:count]:
            _delete(run.path)


def _by_producer(producers: Words, which: Longs) -> Iterator[tuple[int, Longs]]:
    """Ordinals by their producer; nearly always all have one."""
    while len(which):
        producer = producers[which[0]]
        is_same = producers[which] == producer
        yield int(producer), which[is_same]
        which = which[~is_same]


def _last(runs: Sequence[IdentityFile]) -> int:
    return runs[-1].range.last_index if runs else -1


def _extended(before: EntryRange | None, covered: EntryRange, added: int) -> EntryRange:
    """What both cover, one behind the other; `added` is the last index of all that was there, -1 without one."""
    stamps = covered.first_store_timestamp, covered.last_store_timestamp
    if before is not None:
        stamps = before.first_store_timestamp, max(before.last_store_timestamp, stamps[1])
    # What the log has no more between the two cannot be told, nor need it be.
    first = before.first_index if before is not None else added + 1 if added >= 0 else covered.first_index
    return EntryRange(first, covered.last_index, covered.last_term, *stamps)


def _mergeable(runs: Sequence[IdentityFile], longest_ms: int) -> int | None:
    """From which run on all are to be one; None where they stay. Of n identities there are some 4 log2(n) runs then."""
    total = largest = 0
    for number in range(len(runs) - 1, -1, -1):
        run = runs[number]
        # An empty run weighs something, too: else they would never be merged.
        weight = run.count + 1
        total, largest = total + weight, max(largest, weight)
        time = runs[-1].range.last_store_timestamp - run.range.first_store_timestamp
        if total > _LARGEST_RUN or time > longest_ms:
            return None
        if len(runs) - number >= _LEAST_MERGED and 2 * largest <= total:
            return number
    return None


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)


class _Marks:
    """A Bloom filter of a byte a place and four places an identity: larger than `_Filter`, and three times as fast."""

    def __init__(self, least_ids: int) -> None:
        size = _LEAST_MARKS
        while size < _MARKS_PER_ID * least_ids:
            size *= 2
        self.room = size // _MARKS_PER_ID
        self._marks = np.zeros(size, np.bool_)
        self._mask = np.uint64(size - 1)

    def add(self, found: IdentityArrays) -> None:
        for places in self._places(found):
            self._marks[places] = True

    def has(self, asked: IdentityArrays) -> Longs:
        """The numbers of those that may be there: of a million others some ten."""
        which: Longs = np.arange(len(asked.first))
        for places in self._places(asked):
            which = which[self._marks[places[which]]]
            if not len(which):
                break
        return which

    def _places(self, found: IdentityArrays) -> Iterator[Longs]:
        one, other = found.first ^ found.producer, found.second + found.producer
        for word in (one, other, one >> np.uint64(32), other >> np.uint64(32)):
            yield (word & self._mask).view(np.int64)


class _Generation:
    """Identities that are let go together: all up to ``last_index``."""

    def __init__(self) -> None:
        self.parts: list[tuple[bytes, IdentityArrays]] = []
        self.count = 0
        self.last_index = -1
        self._known: dict[bytes, int] = {}
        self._known_parts = 0

    def add(self, ids: bytes, found: IdentityArrays) -> None:
        self.parts.append((ids, found))
        self.count += len(found)
        self.last_index = int(found.index[-1])

    def find(self, keys: Mapping[int, bytes]) -> dict[int, int]:
        """The index of each key that is there, by the ordinals of those who ask."""
        for ids, found in self.parts[self._known_parts :]:
            self._known.update(zip(keys_of(ids), found.index.tolist(), strict=True))
        self._known_parts = len(self.parts)
        return {n: self._known[key] for n, key in keys.items() if key in self._known}

    def has(self, first: Words) -> bool:
        """Whether one of them begins with one of these few words."""
        return any(bool((found.first == word).any()) for _, found in self.parts for word in first)


class Recent:
    """At a leader: the identities above the runs, committed or not. Of one thread.

    Nearly all that are put are new, and a filter tells so. Only where some may not be, a generation's are looked at one
    by one, which takes as long as all the rest. What runs have come to cover is let go by generations.
    """

    def __init__(self, parts: Iterable[IdentityArrays] = (), generation_ids: int = _RUN_IDS) -> None:
        self._most = generation_ids
        self._generations: deque[_Generation] = deque()
        self._marks = _Marks(2 * generation_ids)
        self._marked = 0
        for part in parts:
            words = np.stack((part.producer, part.first, part.second), axis=1)
            self.add(words.astype("<u8").tobytes(), part.index)

    def __len__(self) -> int:
        return sum(generation.count for generation in self._generations)

    def add(self, ids: bytes, index: Longs) -> None:
        """Identities with the indexes of their entries, above all that is there."""
        if not len(index):
            return
        found = identified(ids, index)
        if not self._generations or self._generations[-1].count >= self._most:
            self._generations.append(_Generation())
        self._generations[-1].add(ids, found)
        self._marked += len(found)
        if self._marked > self._marks.room:
            self._mark_all()
        else:
            self._marks.add(found)

    def _mark_all(self) -> None:
        """Mark anew: what was let go is marked until then."""
        self._marked = len(self)
        self._marks = _Marks(2 * self._marked)
        for generation in self._generations:
            for _, found in generation.parts:
                self._marks.add(found)

    def find(self, ids: bytes, which: Longs | None = None) -> dict[int, int]:
        """As `Identities.find`: the index of the entry that has each identity, of those that are there."""
        if not self._generations:
            return {}
        asked = identified(ids, np.empty(0, np.int64))
        maybe = self._marks.has(asked)
        if which is not None:
            maybe = np.intersect1d(maybe, which, assume_unique=True)
        found: dict[int, int] = {}
        if not len(maybe):
            return found
        keys = {n: ids[n * ID_SIZE : (n + 1) * ID_SIZE] for n in maybe.tolist()}
        for generation in self._generations:
            if len(maybe) > _FEW or generation.has(asked.first[maybe]):
                found.update(generation.find(keys))
        return found

    def forget(self, covered: int) -> None:
        """Let go what runs cover by now, up to that index."""
        while self._generations and self._generations[0].last_index <= covered:
            self._generations.popleft()


def keys_of(ids: bytes) -> list[bytes]:
    """Identities one by one, without a loop of Python's."""
    keys: list[bytes] = np.frombuffer(ids, _KEY).tolist()
    return keys
