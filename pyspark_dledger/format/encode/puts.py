"""Messages on their way into a log: what the engines take and give when rows become puts, and puts become entries.

A put is a whole CommitLog message without its places: queueOffset, physicalOffset and storeTimestamp are 0 until the
leader that takes it stamps them. `PUT_SCHEMA`, whose rows become puts, is in `put_rows`: it needs Arrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyspark_dledger.format.encode.encoded import Bodies

PRODUCER_SIZE = 8
CONTENT_SIZE = 16
ID_SIZE = PRODUCER_SIZE + CONTENT_SIZE
"""Bytes of a put's identity: who wrote it (`producer_of`), then a hash of what was written and of how often before."""

HOST_SIZES = (8, 20)
"""Bytes of a host: an address of IPv4 or IPv6, and a port."""

MAX_PROPERTIES_SIZE = 32767
MAX_TOPIC_SIZE = 255
LONGEST_V1_TOPIC = 127


class PutSettings(NamedTuple):
    """What the messages of a batch have in common.

    ``queue_counts`` has every topic of the batch. ``round_robin`` is where each topic begins to go round its queues
    for rows without a queueId and without keys: who encodes batch after batch adds the rows of each to it. RocketMQ
    ends properties with 0x02 up to 4.9.1 and from 5.2.0 on (``has_trailing_separator``), and not in between.
    """

    producer: bytes | None
    """8 bytes (`producer_of`); None: messages without an identity, whose repetition nobody notices."""
    born_timestamp: int
    """In milliseconds, where a row gives none."""
    born_host: bytes
    """Address (4 or 16 bytes) and port (4 bytes)."""
    store_host: bytes
    queue_counts: Mapping[str, int]
    round_robin: int = 0
    has_trailing_separator: bool = True


class Puts(NamedTuple):
    """What a leader has to know of puts, by their ordinals; ``queue`` counts into ``queues``.

    Identities are 24 bytes each, zeros where ``has_id`` is False. ``sys_flag`` tells the kind of transaction.
    """

    queues: list[tuple[str, int]]
    queue: npt.NDArray[np.int32]
    sys_flag: npt.NDArray[np.int32]
    ids: bytes
    has_id: npt.NDArray[np.bool_]


class PutIds(NamedTuple):
    """Identities of entries of a log, 24 bytes each, with the entries' indexes, ascending.

    Store timestamps in milliseconds.
    """

    index: npt.NDArray[np.int64]  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    ids: bytes
    store_timestamps: npt.NDArray[np.int64]


class Ordinals(Protocol):
    """How often each content came so far in one attempt of a task: what tells equal rows apart.

    Each engine has its own, made by ``new_ordinals``, and takes no other.
    """

    def __len__(self) -> int:
        """How many distinct contents came."""


def producer_of(job: str, partition: int) -> bytes:
    """The 8 bytes that all identities of one partition of a job begin with, whichever attempt writes it."""
    return hashlib.blake2b(job.encode() + b"\0" + str(partition).encode(), digest_size=64).digest()[:PRODUCER_SIZE]


def check_stamps(
    bodies: Bodies,
    keep: npt.NDArray[np.bool_],
    queue_offsets: npt.NDArray[np.int64],
    store_timestamp: int,
    store_host: bytes,
) -> None:
    """Raises TypeError or ValueError for arrays that do not belong to the bodies, and for stamps that none can have."""
    import numpy as np  # whoever has arrays has it loaded; the other names of this module need none

    for name, values, kind in (("keep", keep, np.bool_), ("queue_offsets", queue_offsets, np.int64)):
        if not isinstance(values, np.ndarray) or values.dtype != kind or values.ndim != 1:
            raise TypeError(f"expected {name} as an array of {kind.__name__}, found {type(values).__name__}")
        if len(values) != bodies.count:
            raise ValueError(f"expected {bodies.count} values of {name}, found {len(values)}")
    if not keep.any():
        raise ValueError("expected at least one message to keep, found none")
    if not INT64_MIN <= store_timestamp <= INT64_MAX:
        raise ValueError(f"expected store_timestamp of 64 bits, found {store_timestamp}")
    if len(store_host) not in HOST_SIZES:
        raise ValueError(f"expected store_host of 8 or 20 bytes, found {len(store_host)}")
