"""Identities of puts in memory: a table of recent ones, and a filter of all others.

The classes are the Python engine's. Those of the native engine have the same methods.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.encode.puts import ID_SIZE, PRODUCER_SIZE

_ID = np.dtype(f"V{ID_SIZE}")
_LONG = np.dtype("<i8")
_WORDS = np.dtype("<u8")
_MIN_BITS = 1 << 20
_BITS_PER_ID = 16


class IdentityTable(Protocol):
    """Identities with the indexes of their entries. ``ids`` are consecutive identities of 24 bytes."""

    def __len__(self) -> int: ...

    def add(self, ids: bytes, index: npt.NDArray[np.int64]) -> None:
        """Add identities whose indexes ascend, above all earlier ones."""

    def find(self, ids: bytes) -> dict[int, int]:
        """The last index of each known identity, by the identity's ordinal among `ids`."""

    def repeats(self, ids: bytes, counts: npt.NDArray[np.bool_]) -> dict[int, int]:
        """The ordinals of identities that equal an earlier one of `ids`, with the first such. Only `counts` count."""

    def forget(self, covered: int) -> None:
        """Drop the identities up to that index."""

    def of_producer(self, producer: int, covered: int) -> tuple[bytes, bytes | bytearray]:
        """The identities of a producer with an index above `covered`, and their indexes of 8 bytes."""


class IdentityFilter(Protocol):
    """A Bloom filter. ``capacity`` identities can be added until it finds too many others."""

    @property
    def capacity(self) -> int: ...

    def add(self, ids: bytes) -> None: ...

    def candidates(self, ids: bytes) -> bytes | bytearray:
        """The ordinals, of 8 bytes each, of those that may have been added."""


class PythonTable:
    """An `IdentityTable`."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._records: deque[tuple[bytes, int]] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, ids: bytes, index: npt.NDArray[np.int64]) -> None:
        if len(ids) != ID_SIZE * len(index):
            raise ValueError("expected one index for each identity, found another number")
        records = list(zip(split_ids(ids), index.tolist(), strict=True))
        self._records.extend(records)
        self._known.update(records)

    def find(self, ids: bytes) -> dict[int, int]:
        found = ((n, self._known.get(each)) for n, each in enumerate(split_ids(ids)))
        return {n: index for n, index in found if index is not None}

    def repeats(self, ids: bytes, counts: npt.NDArray[np.bool_]) -> dict[int, int]:
        first: dict[bytes, int] = {}
        firsts = ((n, first.setdefault(each, n)) for n, each in enumerate(split_ids(ids)) if counts[n])
        return {n: other for n, other in firsts if n != other}

    def forget(self, covered: int) -> None:
        while self._records and self._records[0][1] <= covered:
            each, index = self._records.popleft()
            if self._known[each] == index:
                del self._known[each]

    def of_producer(self, producer: int, covered: int) -> tuple[bytes, bytes]:
        wanted = producer.to_bytes(PRODUCER_SIZE, "little")
        found = [(each, index) for each, index in self._records if index > covered and each.startswith(wanted)]
        return b"".join(each for each, _ in found), np.array([index for _, index in found], _LONG).tobytes()


class PythonFilter:
    """An `IdentityFilter` with two bits for each identity."""

    def __init__(self, min_ids: int) -> None:
        size = _MIN_BITS
        while size < _BITS_PER_ID * min_ids:
            size *= 2
        self.capacity = size // _BITS_PER_ID
        self._is_set = np.zeros(size, np.bool_)

    def add(self, ids: bytes) -> None:
        for bits in self._bits(ids):
            self._is_set[bits] = True

    def candidates(self, ids: bytes) -> bytes:
        one, other = self._bits(ids)
        return np.flatnonzero(self._is_set[one] & self._is_set[other]).astype(_LONG).tobytes()

    def _bits(self, ids: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        _check(ids)
        producer, first, second = np.frombuffer(ids, _WORDS).reshape(-1, 3).T
        mask = np.uint64(len(self._is_set) - 1)
        return ((first ^ producer) & mask).view(np.int64), ((second + producer) & mask).view(np.int64)


def split_ids(ids: bytes) -> list[bytes]:
    """Consecutive identities one by one, split without a Python loop."""
    _check(ids)
    keys: list[bytes] = np.frombuffer(ids, _ID).tolist()
    return keys


def _check(ids: bytes) -> None:
    if len(ids) % ID_SIZE:
        raise ValueError(f"expected identities of {ID_SIZE} bytes, found {len(ids)} bytes")
