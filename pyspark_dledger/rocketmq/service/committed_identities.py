"""The identities of committed messages: in sorted runs on disk, and in memory those after the last run.

The thread that dispatches writes the runs, each of a contiguous range of indexes. Everything can be read again from the
log, as far back as identities are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyspark_dledger.common.clock import SteadyClock
from pyspark_dledger.common.durable import PRIVATE_FOLDER, sync_dir, sync_file
from pyspark_dledger.common.log_records import LOG
from pyspark_dledger.common.retention import PRODUCER_ID_EXPIRY_MS
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import Longs
from pyspark_dledger.format.encode.encoded import DiskNeededError
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.rocketmq.service.sorted_run import (
    CoveredRange,
    IdentityArrays,
    SortedRun,
    Words,
    concatenated,
    identity_arrays,
    run_paths,
    write_run,
)

FOLDER = "identities"

RUN_IDS = 65_536
"""Identities after which a run is written; fewer are written after `_RUN_MS`."""
_RUN_MS = 10_000
# Sorting a merged run must not take too much memory, or too much time of the thread that dispatches.
_MAX_RUN_IDS = 1 << 22
# Merging costs more than looking into more runs: the filter answers for almost all new identities.
_MIN_MERGED_RUNS = 8
# A run covers at most this part of the expiry time: it expires as a whole, with its last identity.
_EXPIRY_PARTS = 7


@dataclass
class _Pending:
    """Committed identities that are in no run yet, and the entries they cover."""

    parts: list[IdentityArrays]
    range: CoveredRange | None = None
    count: int = 0
    since_ms: int = 0


class CommittedIdentities:
    """The identities of a node's committed messages.

    One thread calls `add`, another may call `find`. Any thread may call the other methods. Identities are kept for
    ``expiry_ms`` after their entries were stored, and up to a seventh longer.
    """

    def __init__(
        self,
        folder: Path,
        expiry_ms: int = PRODUCER_ID_EXPIRY_MS,
        *,
        run_ids: int = RUN_IDS,
        run_ms: int = _RUN_MS,
        clock: Callable[[], int] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.folder = folder
        self._engine = engine or get_engine()
        self._expiry_ms = expiry_ms
        self._run_ids, self._run_ms = run_ids, run_ms
        self._clock = clock or SteadyClock().ms
        self._lock = threading.Lock()
        # Of those that change the runs; taken before `_lock`.
        self._writer = threading.RLock()
        self._runs: tuple[SortedRun, ...] = ()
        self._filter = self._engine.new_identity_filter(0)
        self._filtered = 0
        self._pending = _Pending([])

    # Start

    def load(self, has_entry: Callable[[int, int], bool], needed_from: int, proven_from: int) -> int:
        """Open the runs. Returns the index from which `add` needs every entry.

        ``has_entry(index, term)`` says whether the log has that entry, or had it before it expired. ``needed_from`` is
        the index of the first entry whose identity has not expired. Runs that begin after ``proven_from`` are
        incomplete. Deleted are runs that are damaged, of another log, or after a gap.
        """
        self.folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        kept: list[SortedRun] = []
        for run in self._open_runs():
            # Runs that were copied from another member may overlap the first own one.
            follows = run.range.first_index <= kept[-1].range.last_index + 1 if kept else True
            if kept and kept[-1].range.contains(run.range):
                run.path.unlink(missing_ok=True)
            elif follows and has_entry(run.range.last_index, run.range.last_term):
                kept.append(run)
            else:
                self._drop(run.path, f"it is not of this log, or does not follow index {_last_index(kept)}")
        if kept and kept[0].range.first_index > proven_from:
            for run in kept:
                self._drop(run.path, f"identities before index {kept[0].range.first_index} are missing")
            kept = []
        self._publish(tuple(kept))
        self._expire()
        return max(self.covered + 1, needed_from)

    def _open_runs(self) -> list[SortedRun]:
        """The intact runs by first index; of those with the same first index the longest comes first."""
        runs = []
        for path in run_paths(self.folder):
            try:
                runs.append(SortedRun(path))
            except (OSError, StoreError, ValueError) as error:
                self._drop(path, str(error))
        return sorted(runs, key=lambda run: (run.range.first_index, -run.range.last_index))

    def _drop(self, path: Path, reason: str) -> None:
        LOG.warning("identities dropped, to be read from the log", extra={"fields": {"file": path, "found": reason}})
        path.unlink(missing_ok=True)

    # Lookup

    @property
    def covered(self) -> int:
        """The last index that the runs cover; -1 without a run."""
        return _last_index(self._runs)

    def find(self, ids: bytes, which: Longs | None = None, *, may_wait: bool = True) -> dict[int, int]:
        """The index of the entry with each identity that a run has, by the identity's ordinal among `ids`.

        ``which`` limits the lookup to these ordinals. Raises DiskNeededError if it must not wait for the disk.
        """
        runs = self._runs
        if not runs:
            return {}
        candidates = np.frombuffer(self._filter.candidates(ids), np.int64)
        if not len(candidates):
            return {}
        wanted = identity_arrays(ids, np.empty(0, np.int64))
        if which is not None:
            candidates = np.intersect1d(candidates, which, assume_unique=True)
        found: dict[int, int] = {}
        oldest = self._clock() - self._expiry_ms
        for producer, rest in _by_producer(wanted.producer, candidates):
            for run in reversed(runs):
                if not len(rest):
                    break
                if run.range.last_store_timestamp < oldest:
                    continue  # earlier runs may be newer: restored raw entries keep their old times
                if not may_wait and not run.is_loaded(producer, wanted.first[rest]):
                    raise DiskNeededError
                index = run.find(producer, wanted.first[rest], wanted.second[rest])
                hits = index >= 0
                found.update(zip(rest[hits].tolist(), index[hits].tolist(), strict=True))
                rest = rest[~hits]
        return found

    def of_producer(self, producer: int) -> tuple[IdentityArrays, int]:
        """The identities of a producer in the runs, and the last index that these cover. It may read the disk."""
        runs = self._runs
        oldest, covered = self._clock() - self._expiry_ms, -1
        parts = []
        for run in runs:
            if run.range.last_store_timestamp >= oldest and run.has_producer(producer):
                found = run.of_producer(producer)
                # Runs that were copied from another member may overlap own ones.
                parts.append(found.take(np.flatnonzero(found.index > covered)))
                run.check_readable()
            covered = max(covered, run.range.last_index)
        return concatenated(parts), covered

    def pending(self) -> list[IdentityArrays]:
        """The committed identities that are in no run yet, in the order of the log."""
        with self._lock:
            return list(self._pending.parts)

    # Writing

    def add(self, covered: CoveredRange, ids: bytes, index: Longs) -> None:
        """Add the identities of the range that was committed next, with the indexes of their entries."""
        with self._writer:
            if covered.last_index <= self._added:
                return
            found = identity_arrays(ids, index)
            if covered.first_index <= self._added:
                found = found.take(np.flatnonzero(index > self._added))
            with self._lock:
                pending = self._pending
                if pending.range is None:
                    pending.since_ms = self._clock()
                pending.range = _extended(pending.range, self._stamped(covered), self._added)
                pending.count += len(found)
                if len(found):
                    pending.parts.append(found)
            if pending.count >= self._run_ids or self._clock() - pending.since_ms >= self._run_ms:
                self.flush()

    def _stamped(self, covered: CoveredRange) -> CoveredRange:
        """The range, stored after the ones before it: a leader's clock can have been wrong."""
        newest = max((run.range.last_store_timestamp for run in self._runs), default=0)
        stamp = max(covered.last_store_timestamp, min(newest, self._clock()))
        return replace(covered, last_store_timestamp=stamp)

    @property
    def _added(self) -> int:
        pending = self._pending.range
        return self.covered if pending is None else pending.last_index

    def flush(self) -> None:
        """Write the pending identities as a run. Raises OSError if the disk fails."""
        with self._writer:
            pending = self._pending
            if pending.range is None:
                return
            found = concatenated(pending.parts)
            self.folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            run = write_run(self.folder, pending.range, found, is_durable=False)
            self._filtered += len(found)
            self._filter.add(found.ids())
            with self._lock:
                self._publish((*self._runs, run))
                self._pending = _Pending([])
            self._merge()
            self._expire()

    def sync(self) -> tuple[SortedRun, ...]:
        """Write everything, durably. Returns the runs. Raises OSError if the disk fails."""
        with self._writer:
            self.flush()
            for run in self._runs:
                sync_file(run.path)
            sync_dir(self.folder)
            return self._runs

    def adopt(self, runs: Sequence[SortedRun]) -> None:
        """Take over another member's runs, which are in the folder; own ones stay as far as they cover more."""
        with self._writer:
            last = _last_index(runs)
            kept = [run for run in self._runs if run.range.last_index > last]
            dropped = {run.path for run in self._runs} - {run.path for run in (*runs, *kept)}
            with self._lock:
                self._publish((*runs, *kept))
                if self._pending.range is not None and self._pending.range.last_index <= last:
                    self._pending = _Pending([])
            for path in dropped:
                path.unlink(missing_ok=True)

    def covers(self, ranges: Sequence[CoveredRange]) -> bool:
        """Whether the runs have all identities of these ranges that have not expired."""
        oldest = self._clock() - self._expiry_ms
        needed = [each for each in ranges if each.last_store_timestamp >= oldest]
        if not needed or not self._runs:
            return not needed
        return self._runs[0].range.first_index <= needed[0].first_index and needed[-1].last_index <= self.covered

    def _publish(self, runs: tuple[SortedRun, ...]) -> None:
        """Make these runs visible to `find`, once the filter has their identities."""
        count = sum(run.count for run in runs)
        if self._filtered > self._filter.capacity or self._filtered < count:
            larger = self._engine.new_identity_filter(2 * count)
            for run in runs:
                larger.add(run.all().ids())
                run.check_readable()
            self._filter, self._filtered = larger, count
        self._runs = runs

    def _merge(self) -> None:
        """Replace the last runs by one merged run, as long as there are many of similar size."""
        while (first := _mergeable(self._runs, self._expiry_ms // _EXPIRY_PARTS)) is not None:
            merged = self._runs[first:]
            covered = merged[0].range
            for run in merged[1:]:
                covered = _extended(covered, run.range, covered.last_index)
            found = concatenated([each.all() for each in merged])
            for each in merged:
                each.check_readable()
            run = write_run(self.folder, covered, found, is_durable=True)
            self._publish((*self._runs[:first], run))
            for each in merged:
                each.path.unlink(missing_ok=True)

    def _expire(self) -> None:
        """Delete the first runs that have expired. The last one stays: it says how far the log has been read."""
        oldest = self._clock() - self._expiry_ms
        runs, count = self._runs, 0
        while count + 1 < len(runs) and runs[count].range.last_store_timestamp < oldest:
            count += 1
        self._runs = runs[count:]
        for run in runs[:count]:
            run.path.unlink(missing_ok=True)


def _by_producer(producers: Words, which: Longs) -> Iterator[tuple[int, Longs]]:
    """Ordinals by producer id; usually all have the same."""
    while len(which):
        producer = producers[which[0]]
        is_same = producers[which] == producer
        yield int(producer), which[is_same]
        which = which[~is_same]


def _last_index(runs: Sequence[SortedRun]) -> int:
    return runs[-1].range.last_index if runs else -1


def _extended(before: CoveredRange | None, covered: CoveredRange, added: int) -> CoveredRange:
    """Both ranges as one. Without `before`, the range begins after `added`, the last index so far (-1 for none)."""
    stamps = covered.first_store_timestamp, covered.last_store_timestamp
    if before is not None:
        stamps = before.first_store_timestamp, max(before.last_store_timestamp, stamps[1])
    # Entries between both ranges are missing in the log: they cannot and need not be covered.
    first = before.first_index if before is not None else added + 1 if added >= 0 else covered.first_index
    return CoveredRange(first, covered.last_index, covered.last_term, *stamps)


def _mergeable(runs: Sequence[SortedRun], max_ms: int) -> int | None:
    """From which run on all are merged; None to merge none. n identities are then in about 8 log2(n) runs."""
    total = largest = 0
    for number in range(len(runs) - 1, -1, -1):
        run = runs[number]
        # Empty runs count as one identity, else they would never be merged.
        weight = run.count + 1
        total, largest = total + weight, max(largest, weight)
        time = runs[-1].range.last_store_timestamp - run.range.first_store_timestamp
        if total > _MAX_RUN_IDS or time > max_ms:
            return None
        if len(runs) - number >= _MIN_MERGED_RUNS and 2 * largest <= total:
            return number
    return None
