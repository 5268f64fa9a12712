"""Identities of puts: a table of recent ones, a filter of all others, and those of jobs.

The classes are the Python engine's. Those of the native engine have the same methods.

Messages that may be written again by another run of their job, with other partitions, have the job as producer. The
other 16 bytes are two words: 64 bits of the hash of the content and its ordinal, then 20 more bits of it, 24 of the run
and 20 of the partition. Equal rows of one batch thus have different identities, and a later run finds the rows of an
earlier one in any partition. The second word is mixed with the first one, because filters need random words.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.encode.encoded import CONTENT_SIZE, ID_SIZE, LENGTH_SIZE, PRODUCER_SIZE, Bodies, Buffer

_ID = np.dtype(f"V{ID_SIZE}")
_LONG = np.dtype("<i8")
_MIN_BITS = 1 << 20
_BITS_PER_ID = 16


class IdentityTable:
    """Identities with the indexes of their entries. ``ids`` are consecutive identities of 24 bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._records: deque[tuple[bytes, int]] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, ids: bytes, index: npt.NDArray[np.int64]) -> None:
        """Add identities whose indexes ascend, above all earlier ones."""
        if len(ids) != ID_SIZE * len(index):
            raise ValueError("expected one index for each identity, found another number")
        records = list(zip(split_ids(ids), index.tolist(), strict=True))
        self._records.extend(records)
        self._known.update(records)

    def find(self, ids: bytes) -> dict[int, int]:
        """The last index of each known identity, by the identity's ordinal among `ids`."""
        found = ((n, self._known.get(each)) for n, each in enumerate(split_ids(ids)))
        return {n: index for n, index in found if index is not None}

    def repeats(self, ids: bytes, counts: npt.NDArray[np.bool_]) -> dict[int, int]:
        """The ordinals of identities that equal an earlier one of `ids`, with the first such. Only `counts` count."""
        first: dict[bytes, int] = {}
        firsts = ((n, first.setdefault(each, n)) for n, each in enumerate(split_ids(ids)) if counts[n])
        return {n: other for n, other in firsts if n != other}

    def forget(self, covered: int) -> None:
        """Drop the identities up to that index."""
        while self._records and self._records[0][1] <= covered:
            each, index = self._records.popleft()
            if self._known[each] == index:
                del self._known[each]

    def of_producer(self, producer: int, covered: int) -> tuple[bytes, bytes]:
        """The identities of a producer with an index above `covered`, and their indexes of 8 bytes."""
        wanted = producer.to_bytes(PRODUCER_SIZE, "little")
        found = [(each, index) for each, index in self._records if index > covered and each.startswith(wanted)]
        return b"".join(each for each, _ in found), np.array([index for _, index in found], _LONG).tobytes()


class IdentityFilter:
    """A Bloom filter, with two bits for each identity, for at least `min_ids` of them.

    ``capacity`` identities can be added until it finds too many others.
    """

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
        """The ordinals, of 8 bytes each, of those that may have been added."""
        one, other = self._bits(ids)
        return np.flatnonzero(self._is_set[one] & self._is_set[other]).astype(_LONG).tobytes()

    def _bits(self, ids: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        _check(ids)
        producer, first, second = np.frombuffer(ids, _WORD).reshape(-1, 3).T
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


Words = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.void]

MAX_PARTITIONS = 1 << 20
CLAIM = -2
"""As ``from_index`` of a request: the leader takes new messages of the producer from this run only, until a later one
claims it, or until it stops leading."""
_RUN_BITS, _PARTITION_BITS = 24, 20
_TAG_BITS = _RUN_BITS + _PARTITION_BITS
_RUN_MASK = np.uint64((1 << _RUN_BITS) - 1)
_WORD = np.dtype("<u8")
_TEXT_SIZE = ID_SIZE * 4 // 3
_TEXT = np.dtype(f"V{_TEXT_SIZE}")
# The identity is the last property, and 0x02 ends properties.
_FROM_END = _TEXT_SIZE + 1
# Of splitmix64.
_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_HALF, _SHIFT = np.uint64(32), np.uint64(29)


def digest_word(text: str) -> bytes:
    """The first 8 bytes of a hash, as those of a producer."""
    return hashlib.blake2b(text.encode(), digest_size=64).digest()[:PRODUCER_SIZE]


def run_tag(run: str) -> int:
    """24 bits that distinguish a run from the others of its job."""
    return int.from_bytes(digest_word(run), "little") >> (64 - _RUN_BITS)


def read_ids(bodies: Bodies) -> Words:
    """The identities of encoded messages, without the producer: two words each."""
    found = base64.urlsafe_b64decode(_texts(bodies.block, bodies.count).tobytes())
    return np.frombuffer(found, _WORD).reshape(-1, 3)[:, 1:]


def replace_ids(bodies: Bodies, producer: bytes, ids: Words) -> Bodies:
    """Encoded messages with other identities of the same size."""
    words = np.empty((bodies.count, 3), _WORD)
    words[:, 0] = np.frombuffer(producer, _WORD)
    words[:, 1:] = ids
    block = bytearray(bodies.block)
    texts = np.frombuffer(base64.urlsafe_b64encode(words.tobytes()), _TEXT)
    _every_text(block)[_text_starts(block, bodies.count)] = texts
    return Bodies(bodies.count, block)


def tagged(ids: Words, run: int, partition: int) -> Words:
    """Identities with a run and a partition; both must fit their bits."""
    found = np.empty_like(ids)
    found[:, 0] = ids[:, 0]
    tag = np.uint64(run << _PARTITION_BITS | partition)
    packed = (ids[:, 1] >> np.uint64(_TAG_BITS) << np.uint64(_TAG_BITS)) | tag
    found[:, 1] = packed ^ _mixed(ids[:, 0])
    return found


def runs_of(first: Words, second: Words) -> Words:
    """The run of each identity."""
    runs: Words = ((second ^ _mixed(first)) >> np.uint64(_PARTITION_BITS)) & _RUN_MASK
    return runs


def content_keys(ids: Words) -> list[bytes]:
    """What identities of one content have in common, in all runs and partitions."""
    found = ids.copy()
    found[:, 1] = (ids[:, 1] ^ _mixed(ids[:, 0])) >> np.uint64(_TAG_BITS)
    keys: list[bytes] = np.frombuffer(found.tobytes(), f"V{CONTENT_SIZE}").tolist()
    return keys


def words_of(ids: Buffer) -> Words:
    """Identities without their producers, 16 bytes each, as words."""
    return np.frombuffer(ids, _WORD).reshape(-1, 2)


def numbered_id(number: int) -> Words:
    """The identity with a number that `ProducerState.last_number` finds."""
    return np.array([[number, int.from_bytes(digest_word(str(number)), "little")]], _WORD)


def _mixed(first: Words) -> Words:
    mixed: Words = (first ^ (first >> _HALF)) * _FACTOR
    return mixed ^ (mixed >> _SHIFT)


def _texts(block: Buffer, count: int) -> _Bytes:
    texts: _Bytes = _every_text(block)[_text_starts(block, count)]
    return texts


def _every_text(block: Buffer) -> _Bytes:
    """A view of all slices of the size of an identity's text."""
    return np.ndarray((len(block) - _TEXT_SIZE + 1,), _TEXT, block, 0, (1,))


def _text_starts(block: Buffer, count: int) -> npt.NDArray[np.int64]:
    sizes = np.frombuffer(block, ">u4", count).astype(np.int64)
    return LENGTH_SIZE * count + np.cumsum(sizes) - _FROM_END
