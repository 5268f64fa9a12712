"""Message identities as arrays, with the indexes of their entries.

Both halves of an identity's hash are as good as random. The producer id distinguishes messages with equal content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.dispatched_rows import Longs
from pyspark_dledger.format.encode.puts import ID_SIZE

Words = npt.NDArray[np.uint64]

WORD = np.dtype("<u8")
_LONG = np.dtype("<i8")


@dataclass(frozen=True)
class IdentityArrays:
    """Identities as three words each, the producer id and both halves of the hash; ``index`` is their entry's."""

    producer: Words
    first: Words
    second: Words
    index: Longs

    def __len__(self) -> int:
        return len(self.index)

    def ids(self) -> bytes:
        """Consecutive identities of 24 bytes each."""
        return np.stack((self.producer, self.first, self.second), axis=1).astype(WORD, copy=False).tobytes()

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
