"""Message identities as arrays, with the indexes of their entries, and Bloom filters of them.

Both halves of an identity's hash are as good as random. The producer id distinguishes messages with equal content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.encode.puts import ID_SIZE
from pyspark_dledger.rocketmq.message_arrays import Longs

Words = npt.NDArray[np.uint64]

WORD = np.dtype("<u8")
_LONG = np.dtype("<i8")
_ID = np.dtype(f"V{ID_SIZE}")
# At least so many bits per identity: about 2 of 100 unknown ones are then searched for in the runs.
_BITS_PER_ID = 16
_MIN_BITS = 1 << 20
_FLAGS_PER_ID = 64
_MIN_FLAGS = 1 << 16
_SEVEN, _THREE = np.uint64(7), np.uint64(3)
_BITS = np.left_shift(1, np.arange(8, dtype=np.uint8), dtype=np.uint8)


@dataclass(frozen=True)
class IdentityArrays:
    """Identities as three words each, the producer id and both halves of the hash; ``index`` is their entry's."""

    producer: Words
    first: Words
    second: Words
    index: Longs

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def is_one_producer(self) -> bool:
        return not len(self) or bool((self.producer == self.producer[0]).all())

    def take(self, which: npt.NDArray[np.int64]) -> IdentityArrays:
        return IdentityArrays(self.producer[which], self.first[which], self.second[which], self.index[which])


def identity_arrays(ids: bytes, index: Longs) -> IdentityArrays:
    """Arrays of consecutive identities of 24 bytes each."""
    words = np.frombuffer(ids, WORD).reshape(-1, ID_SIZE // WORD.itemsize)
    return IdentityArrays(words[:, 0], words[:, 1], words[:, 2], index)


def concatenated(parts: Sequence[IdentityArrays]) -> IdentityArrays:
    """All identities of the parts, in their order."""
    return IdentityArrays(
        np.concatenate([np.empty(0, WORD), *(part.producer for part in parts)]),
        np.concatenate([np.empty(0, WORD), *(part.first for part in parts)]),
        np.concatenate([np.empty(0, WORD), *(part.second for part in parts)]),
        np.concatenate([np.empty(0, _LONG), *(part.index for part in parts)]),
    )


def split_ids(ids: bytes) -> list[bytes]:
    """Consecutive identities one by one, split without a Python loop."""
    keys: list[bytes] = np.frombuffer(ids, _ID).tolist()
    return keys


class BitFilter:
    """A Bloom filter with two bits for each identity, for sorted runs."""

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
    """A filter of recent identities, with four flags of a byte for each: larger than `BitFilter`, but faster."""

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
