"""Bloom filters of identities, one for sorted runs and a faster one for recent identities.

Both halves of an identity's hash are as good as random. The producer id distinguishes messages with equal content.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyspark_dledger.rocketmq.dedup.identity_arrays import IdentityArrays, Words
from pyspark_dledger.rocketmq.message_arrays import Longs

# At least so many bits per identity: about 2 of 100 unknown ones are then searched for in the runs.
_BITS_PER_ID = 16
_MIN_BITS = 1 << 20
_FLAGS_PER_ID = 64
_MIN_FLAGS = 1 << 16
_SEVEN, _THREE = np.uint64(7), np.uint64(3)
_BITS = np.left_shift(1, np.arange(8, dtype=np.uint8), dtype=np.uint8)


class BitFilter:
    """A Bloom filter with two bits for each identity."""

    def __init__(self, min_ids: int) -> None:
        size = _MIN_BITS
        while size < _BITS_PER_ID * min_ids:
            size *= 2
        self.capacity = size // _BITS_PER_ID
        self._bits = np.zeros(size // 8, np.uint8)
        self._mask = np.uint64(size - 1)

    def add(self, found: IdentityArrays) -> None:
        for positions in (
            self._first_bits(found.producer, found.first),
            self._second_bits(found.producer, found.second),
        ):
            bits = np.left_shift(1, (positions & _SEVEN).astype(np.uint8), dtype=np.uint8)
            np.bitwise_or.at(self._bits, (positions >> _THREE).view(np.int64), bits)

    def candidates(self, wanted: IdentityArrays) -> Longs:
        """The ordinals of those that may have been added."""
        which: Longs = np.flatnonzero(self._is_set(self._first_bits(wanted.producer, wanted.first)))
        if len(which):
            which = which[self._is_set(self._second_bits(wanted.producer[which], wanted.second[which]))]
        return which

    def _is_set(self, positions: Words) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (
            self._bits[(positions >> _THREE).view(np.int64)] & _BITS[positions & _SEVEN]
        ) != 0
        return found

    def _first_bits(self, producer: Words, first: Words) -> Words:
        return (first ^ producer) & self._mask

    def _second_bits(self, producer: Words, second: Words) -> Words:
        return (second + producer) & self._mask


class ByteFilter:
    """A Bloom filter with four flags of a byte for each identity: larger than `BitFilter`, and three times as fast."""

    def __init__(self, min_ids: int) -> None:
        size = _MIN_FLAGS
        while size < _FLAGS_PER_ID * min_ids:
            size *= 2
        self.capacity = size // _FLAGS_PER_ID
        self._flags = np.zeros(size, np.bool_)
        self._mask = np.uint64(size - 1)

    def add(self, found: IdentityArrays) -> None:
        for positions in self._positions(found):
            self._flags[positions] = True

    def candidates(self, wanted: IdentityArrays) -> Longs:
        """The ordinals of those that may have been added; of a million others about ten."""
        which: Longs = np.arange(len(wanted.first))
        for positions in self._positions(wanted):
            which = which[self._flags[positions[which]]]
            if not len(which):
                break
        return which

    def _positions(self, found: IdentityArrays) -> Iterator[Longs]:
        one, other = found.first ^ found.producer, found.second + found.producer
        for word in (one, other, one >> np.uint64(32), other >> np.uint64(32)):
            yield (word & self._mask).view(np.int64)
