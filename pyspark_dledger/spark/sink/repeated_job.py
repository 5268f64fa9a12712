"""What the driver writes when a job is committed: rows that its tasks left to it.

Those are all rows of a repeated job: they are compared with the log, and the missing ones are written. With
``txnAppId`` it is also the last row of each partition: the last message gets an identity with the number of the
version, which says that the version is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.identities import content_keys, numbered_id, read_ids, replace_ids, words_of
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.client.results import PutResult
from pyspark_dledger.spark.sink.job_identity import JobClaim

_CODEC = "zstd"
# Bytes of messages that are put together.
_MAX_PUT = 64 * 1024 * 1024


class PackedBodies(NamedTuple):
    """Encoded messages in a commit message, compressed."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    size: int
    data: bytes

    @classmethod
    def of(cls, bodies: Bodies) -> PackedBodies:
        return cls(bodies.count, len(bodies.block), pa.compress(bytes(bodies.block), _CODEC, asbytes=True))

    def unpack(self) -> Bodies:
        return Bodies(self.count, pa.decompress(self.data, self.size, _CODEC, asbytes=True))


class LeftRows(NamedTuple):
    """What one task left to the driver; ``is_repeated``: all its rows. ``title`` and ``producer`` are of the job.

    ``key_tag`` is given with ``idColumns``: the run in the identities (`put_ids`). ``run`` is the job's, if another one
    has other identities.
    """

    title: str
    producer: bytes
    is_repeated: bool
    key_tag: int | None
    rows: tuple[PackedBodies, ...] = ()
    run: int | None = None


def complete(
    client: Client, left: Sequence[LeftRows], sent: int, queue_nums: int, version: tuple[bytes, int] | None
) -> list[PutResult]:
    """Write what the log lacks of the rows that tasks left. ``sent`` is the number of messages that tasks have sent.

    ``version`` is a producer, and the number of the version that is complete with the last message. Raises DLedgerError
    if the log has rows that are not the job's, before anything is written, or if ``idColumns`` do not identify rows.
    """
    job = left[0]
    if job.run is None:
        return _complete(client, left, sent, queue_nums, version, client.put_messages)
    claim = JobClaim(client, job.title, job.producer, job.run)
    # An earlier run may have written until the claim.
    return claim.repeated(
        lambda: _complete(client, left, sent, queue_nums, version, claim.put), is_first_run=not job.is_repeated
    )


def _complete(
    client: Client,
    left: Sequence[LeftRows],
    sent: int,
    queue_nums: int,
    version: tuple[bytes, int] | None,
    put: Callable[[Bodies, int], PutResult],
) -> list[PutResult]:
    job = left[0]
    messages = list(_missing(client, left))
    is_marked = version is not None and bool(messages)
    results = [put(part, queue_nums) for part in _parts(messages[: len(messages) - is_marked])]
    rows = sum(part.count for each in left for part in each.rows)
    if job.key_tag is not None:
        _check_keys(client, job, sent + rows - is_marked)
    if version is not None and is_marked:
        producer, number = version
        last = replace_ids(Bodies.of(messages[-1:]), producer, numbered_id(number))
        results.append(client.put_messages(last, queue_nums))
    return results


def needs_driver(left: Sequence[LeftRows]) -> bool:
    """Whether `complete` has something to do."""
    return any(each.is_repeated or each.rows or each.key_tag is not None for each in left)


def _missing(client: Client, left: Sequence[LeftRows]) -> Iterator[bytes]:
    """Yield the messages that the log lacks."""
    job = left[0]
    if any(each.is_repeated != job.is_repeated for each in left):
        raise DLedgerError(f"another run wrote messages of {job.title} at the same time: end it, and repeat this one")
    logged = Counter(_logged(client, job.producer) if job.is_repeated or job.key_tag is not None else ())
    count, rows, found = logged.total(), 0, []
    for each in left:
        for part in each.rows:
            bodies = part.unpack()
            rows += bodies.count
            for key, body in zip(content_keys(read_ids(bodies)), get_engine().unpack_bodies(bodies), strict=True):
                if logged[key]:
                    logged[key] -= 1
                else:
                    found.append(bytes(body))
    if job.is_repeated and (others := logged.total()):
        raise DLedgerError(
            f"an earlier attempt wrote {count} messages of {job.title}; {others} of them are not among the {rows} rows "
            "of this attempt: the source returned other rows, or equal rows are in other partitions. Nothing was "
            "written. Repeat it with the cores, split sizes and source of the earlier attempt; for later batches set "
            "idColumns"
        )
    yield from found


def _logged(client: Client, producer: bytes) -> Iterator[bytes]:
    """Yield the content of each identity of the job in the log."""
    from_index = 0
    while from_index >= 0:
        state = client.producer(producer, from_index=from_index)
        yield from content_keys(words_of(state.ids))
        from_index = state.next_index


def _parts(messages: Sequence[bytes]) -> Iterator[Bodies]:
    start, size = 0, 0
    for number, message in enumerate(messages):
        if size and size + len(message) > _MAX_PUT:
            yield Bodies.of(messages[start:number])
            start, size = number, 0
        size += len(message)
    if size:
        yield Bodies.of(messages[start:])


def _check_keys(client: Client, job: LeftRows, expected: int) -> None:
    assert job.key_tag is not None
    found = client.producer(job.producer, job.key_tag).count
    if found < expected:
        raise DLedgerError(
            f"{job.title}: expected other values of idColumns in each of its {expected} rows, found {found} different "
            "ones: of rows with equal values only one was written; name columns that identify a row"
        )
