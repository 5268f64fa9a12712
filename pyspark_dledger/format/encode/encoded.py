"""Blocks of bodies, encoded entries, and puts: arguments and results of the engines.

A put is a message that a producer sends to a leader: a CommitLog message whose queueOffset, physicalOffset and
storeTimestamp are 0 until the leader stamps them. The schema of rows that become puts is in `put_rows`, which needs
Arrow.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format import layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# In bytes. Java's encode buffer limits a body with its header.
MAX_BODY_SIZE = layout.MAX_ENTRY_SIZE - layout.ENTRY_HEADER_SIZE
MAX_BLOCK_SIZE = 2**30
LENGTH_SIZE = 4

Buffer = bytes | bytearray | memoryview


class Bodies(NamedTuple):
    """Packed bodies of entries: ``count`` lengths (u32, big-endian), then the bodies without gaps."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    block: Buffer

    @classmethod
    def of(cls, bodies: Sequence[Buffer]) -> Bodies:
        """Pack bodies without checks."""
        lengths = struct.pack(f">{len(bodies)}I", *map(len, bodies))
        return cls(len(bodies), b"".join([lengths, *bodies]))

    @property
    def parts(self) -> BodyParts:
        """Views of the lengths and of the bodies."""
        view = memoryview(self.block).cast("B")
        return BodyParts(self.count, view[: LENGTH_SIZE * self.count], view[LENGTH_SIZE * self.count :])


class BodyParts(NamedTuple):
    """Packed bodies whose lengths and bytes are not in one block, so that they can be sent without a copy."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    lengths: Buffer
    data: Buffer

    @property
    def parts(self) -> BodyParts:
        return self

    def packed(self) -> Bodies:
        """Copy them into a block."""
        return Bodies(self.count, b"".join((self.lengths, self.data)))


class EncodedEntries(NamedTuple):
    """Consecutive entries of the first ``count`` bodies, and the 32-byte index unit of each."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    data: bytearray
    units: bytearray


class CheckedEntries(NamedTuple):
    """Entries that can follow a log: their number, the term of the last, and the 32-byte index unit of each.

    ``members_at`` is the offset of the first entry with the channel of members entries, -1 without one.
    """

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    last_term: int
    units: bytearray
    members_at: int = -1


class Admitted(NamedTuple):
    """A put that can be appended. The application changes nothing before its ``appended`` is called.

    ``bodies`` become entries; None if the log has all of them already. ``min_commit_index`` is the highest index of
    those in the log, or -1: the put is acknowledged when that entry is committed too. Only the application uses
    ``details``.
    """

    bodies: Bodies | None
    min_commit_index: int
    details: object


class RejectedError(Exception):
    """A request that is rejected. Nothing was appended. The response has the code, and the reason if it has a field."""

    def __init__(self, code: int = ResponseCode.INCONSISTENT_STATE, reason: str = "") -> None:
        super().__init__(reason)
        self.code = ResponseCode(code)


class DiskNeededError(Exception):
    """A request that must not wait for the disk would have to. Nothing was appended."""


PRODUCER_SIZE = 8
CONTENT_SIZE = 16
ID_SIZE = PRODUCER_SIZE + CONTENT_SIZE
"""Bytes of a put's identity: its producer (`producer_of`), then a hash of its content and its ordinal (`Ordinals`)."""


MAX_STATE_IDS = 512 * 1024
"""Bytes of identities in one `ProducerState`."""


class MalformedPut(Exception):
    """A row or body is not a valid put; the text gives what was expected and found."""


class PutSettings(NamedTuple):
    """Settings for all messages of a batch.

    ``queue_counts`` has every topic of the batch. Rows without a queueId and without keys go to the topic's queues in
    turn, from queue ``round_robin`` on; the caller adds the rows of each batch to it. With ``has_trailing_separator``,
    properties end with 0x02, as in RocketMQ up to 4.9.1 and from 5.2.0 on. ``first_row`` is the number of the batch's
    first row in errors.
    """

    producer: bytes | None
    """8 bytes (`producer_of`), or None for messages without an identity, whose duplicates are not found."""
    born_timestamp: int
    """In milliseconds since 1970, for rows without one."""
    born_host: bytes
    """Address (4 or 16 bytes) and port (4 bytes)."""
    store_host: bytes
    queue_counts: Mapping[str, int]
    round_robin: int = 0
    has_trailing_separator: bool = True
    first_row: int = 0


class Puts(NamedTuple):
    """What a leader needs to know of puts, in their order; ``queue`` has numbers of ``queues``.

    Identities are 24 bytes each, zeros if ``has_id`` is False. ``sys_flag`` has the transaction's bits.
    """

    queues: list[tuple[str, int]]
    queue: npt.NDArray[np.int32]
    sys_flag: npt.NDArray[np.int32]
    ids: bytes
    has_id: npt.NDArray[np.bool_]


class NumberedPuts(NamedTuple):
    """The queue offset of each put, and the next one of each queue."""

    queue_offsets: npt.NDArray[np.int64]
    ends: list[int]


class PutIds(NamedTuple):
    """Identities of entries, 24 bytes each, their indexes, ascending, and their store timestamps in milliseconds."""

    index: npt.NDArray[np.int64]  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    ids: bytes
    store_timestamps: npt.NDArray[np.int64]


class ProducerState(NamedTuple):
    """What a log has of the messages of one producer.

    ``other_runs``: how many are of other runs than the requested one. ``last_number``: the highest number in their
    identities, see `numbered_id`. ``ids``: identities without the producer, 16 bytes each, in the order of the log;
    more follow from ``next_index`` on, none if that is -1. ``last_index``: the last entry that was counted, -1 if the
    counts are those of one run. ``term``: of the leader that a client asked.
    """

    count: int = 0  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    other_runs: int = 0
    last_number: int = -1
    next_index: int = -1
    ids: Buffer = b""
    last_index: int = -1
    term: int = -1


class Ordinals:
    """Counts equal contents in one attempt of a task: the ordinal distinguishes equal rows.

    The Python engine's; each engine takes only its own, made by ``new_ordinals``.
    """

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """The number of distinct contents."""
        return len(self._counts)

    def next(self, content: bytes) -> int:
        """The ordinal of this content: how often it was counted before."""
        self._counts[content] += 1
        return self._counts[content] - 1


def producer_of(job: str, partition: int) -> bytes:
    """The first 8 bytes of all identities of one partition of a job, the same for every attempt."""
    return hashlib.blake2b(job.encode() + b"\0" + str(partition).encode(), digest_size=64).digest()[:PRODUCER_SIZE]


def check_stamps(
    bodies: Bodies,
    keep: npt.NDArray[np.bool_],
    queue_offsets: npt.NDArray[np.int64],
    store_timestamp: int,
    store_host: bytes,
) -> None:
    """Raises TypeError or ValueError for arrays that do not fit the bodies, and for invalid stamps."""
    import numpy as np  # only this function needs it

    for name, values, kind in (("keep", keep, np.bool_), ("queue_offsets", queue_offsets, np.int64)):
        if not isinstance(values, np.ndarray) or values.dtype != kind or values.ndim != 1:
            raise TypeError(f"expected {name} as an array of {kind.__name__}, found {type(values).__name__}")
        if len(values) != bodies.count:
            raise ValueError(f"expected {bodies.count} values of {name}, found {len(values)}")
    if not keep.any():
        raise ValueError("expected at least one message to keep, found none")
    if not INT64_MIN <= store_timestamp <= INT64_MAX:
        raise ValueError(f"expected store_timestamp of 64 bits, found {store_timestamp}")
    if len(store_host) not in layout.HOST_SIZES:
        raise ValueError(f"expected store_host of 8 or 20 bytes, found {len(store_host)}")
