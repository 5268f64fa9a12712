"""The identities that a leader knows above the sorted runs, of entries committed or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from pyspark_dledger.format.encode.puts import ID_SIZE
from pyspark_dledger.rocketmq.dedup.committed_identities import RUN_IDS
from pyspark_dledger.rocketmq.dedup.identity_arrays import (
    ByteFilter,
    IdentityArrays,
    Words,
    concatenated,
    identity_arrays,
    split_ids,
)
from pyspark_dledger.rocketmq.message_arrays import Longs

# Up to so many candidates are looked up one by one.
_FEW = 3


class RecentIdentities:
    """Identities in generations, which are dropped once runs cover them. Not thread-safe.

    Most identities of a put are new, and a filter says so. The others are looked up one by one, which takes as long as
    everything else.
    """

    def __init__(self, parts: Iterable[IdentityArrays] = (), generation_ids: int = RUN_IDS) -> None:
        self._generation_ids = generation_ids
        self._generations: deque[_Generation] = deque()
        self._filter = ByteFilter(2 * generation_ids)
        self._filtered = 0
        for part in parts:
            words = np.stack((part.producer, part.first, part.second), axis=1)
            self.add(words.astype("<u8").tobytes(), part.index)

    def __len__(self) -> int:
        return sum(generation.count for generation in self._generations)

    def add(self, ids: bytes, index: Longs) -> None:
        """Add identities with the indexes of their entries, which are above all earlier ones."""
        if not len(index):
            return
        found = identity_arrays(ids, index)
        if not self._generations or self._generations[-1].count >= self._generation_ids:
            self._generations.append(_Generation())
        self._generations[-1].add(ids, found)
        self._filtered += len(found)
        if self._filtered > self._filter.capacity:
            self._rebuild_filter()
        else:
            self._filter.add(found)

    def _rebuild_filter(self) -> None:
        """Replace the filter by one without the identities that were dropped."""
        self._filtered = len(self)
        self._filter = ByteFilter(2 * self._filtered)
        for generation in self._generations:
            for _, found in generation.parts:
                self._filter.add(found)

    def find(self, ids: bytes, which: Longs | None = None) -> dict[int, int]:
        """The index of the entry with each known identity; as `CommittedIdentities.find`."""
        if not self._generations:
            return {}
        wanted = identity_arrays(ids, np.empty(0, np.int64))
        candidates = self._filter.candidates(wanted)
        if which is not None:
            candidates = np.intersect1d(candidates, which, assume_unique=True)
        found: dict[int, int] = {}
        if not len(candidates):
            return found
        keys = {n: ids[n * ID_SIZE : (n + 1) * ID_SIZE] for n in candidates.tolist()}
        for generation in self._generations:
            if len(candidates) > _FEW or generation.has_any(wanted.first[candidates]):
                found.update(generation.find(keys))
        return found

    def of_producer(self, producer: int, covered: int) -> IdentityArrays:
        """The identities of a producer with an index above `covered`."""
        found = []
        for generation in self._generations:
            for _, part in generation.parts:
                if not part.is_one_producer or int(part.producer[0]) == producer:
                    found.append(part.take(np.flatnonzero((part.producer == producer) & (part.index > covered))))
        return concatenated(found)

    def forget(self, covered: int) -> None:
        """Drop the generations that runs cover, up to that index."""
        while self._generations and self._generations[0].last_index <= covered:
            self._generations.popleft()


class _Generation:
    """Identities that are dropped together: all up to ``last_index``."""

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
        """The index of each known key, by the key's ordinal."""
        for ids, found in self.parts[self._known_parts :]:
            self._known.update(zip(split_ids(ids), found.index.tolist(), strict=True))
        self._known_parts = len(self.parts)
        return {n: self._known[key] for n, key in keys.items() if key in self._known}

    def has_any(self, first: Words) -> bool:
        """Whether any identity has one of these first halves of the hash."""
        return any(bool((found.first == word).any()) for _, found in self.parts for word in first)
