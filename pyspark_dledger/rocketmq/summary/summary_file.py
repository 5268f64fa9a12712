"""The file ``summary`` in a node's folder: next queueOffsets, and which identities the member has, up to an index.

With the log after that index it gives the present state. The identities themselves are in sorted runs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir, replace_durably
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.dispatched_rows import MAX_QUEUE_OFFSET, QueueName, is_valid_queue
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.log.io.files import read_start
from pyspark_dledger.rocketmq.dedup.sorted_run import EntryRange

SUMMARY = "summary"
MAX_SUMMARY_SIZE = 64 * 1024 * 1024
"""Bytes of the file. A queue takes about 10 bytes, and its topic once its name."""

# Magic, index, its entry's term, size and CRC-32 of the JSON that follows; the CRC-32 of the header up to here.
_HEADER = struct.Struct("<8sqqQI")
_CRC = struct.Struct("<I")
_MAGIC = b"DLSUMRY1"
_HEADER_SIZE = _HEADER.size + _CRC.size
_INT63 = 2**63


@dataclass(frozen=True)
class Summary:
    """The state of all entries up to ``index``, which is of ``term``; both are -1 before the first entry.

    ``ends`` has the next queueOffset of each queue. ``identities`` are the ranges of the runs that the member has.
    """

    index: int
    term: int
    ends: dict[QueueName, int]
    identities: tuple[EntryRange, ...] = ()

    def to_bytes(self) -> bytes:
        """The content of the file. Raises StoreError if it is too large."""
        topics: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in self.ends.items():
            topics.setdefault(topic, {})[str(queue_id)] = end
        runs = [[run.first_index, run.last_index, run.last_store_timestamp] for run in self.identities]
        body = json.dumps({"queues": topics, "identities": runs}, separators=(",", ":")).encode()
        if len(body) > MAX_SUMMARY_SIZE - _HEADER_SIZE:
            raise StoreError(f"expected queues that take {MAX_SUMMARY_SIZE} bytes at most, found {len(body)}")
        header = _HEADER.pack(_MAGIC, self.index, self.term, len(body), crc32(body))
        return header + _CRC.pack(crc32(header)) + body


def parse_summary(data: Buffer) -> Summary:
    """Raises ValueError unless `data` is a whole, intact summary."""
    view = memoryview(data)
    if len(view) < _HEADER_SIZE or len(view) > MAX_SUMMARY_SIZE:
        raise ValueError(f"expected {_HEADER_SIZE} to {MAX_SUMMARY_SIZE} bytes, found {len(view)}")
    magic, index, term, size, crc = _HEADER.unpack_from(view)
    if magic != _MAGIC or _CRC.unpack_from(view, _HEADER.size)[0] != crc32(view[: _HEADER.size]):
        raise ValueError(f"expected the header of a summary, found {bytes(view[:_HEADER_SIZE]).hex()}")
    body = view[_HEADER_SIZE:]
    if len(body) != size or crc32(body) != crc:
        raise ValueError(f"expected {size} bytes with CRC {crc:08x}, found {len(body)} with {crc32(body):08x}")
    try:
        content = json.loads(bytes(body))
        return Summary(index, term, dict(_ends(content["queues"])), tuple(_ranges(content["identities"])))
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected queues and identities, found {error!r}") from None


def _ends(topics: dict[str, dict[str, int]]) -> Iterator[tuple[QueueName, int]]:
    for topic, queues in topics.items():
        for text, end in queues.items():
            name = topic, int(text)
            if not is_valid_queue(name) or name[1] >= 2**31 or not _is_integer(end, 0, MAX_QUEUE_OFFSET + 2):
                raise ValueError(f"expected a queue and its end, found {topic[:60]!r} {text[:20]!r}")
            yield name, end


def _ranges(runs: list[list[int]]) -> Iterator[EntryRange]:
    for first, last, stored in runs:
        if not all(_is_integer(value, -1, _INT63) for value in (first, last, stored)) or first > last:
            raise ValueError("expected first and last index and a time of each run, found something else")
        yield EntryRange(first, last, -1, stored, stored)


def _is_integer(value: Any, start: int, stop: int) -> bool:
    return type(value) is int and start <= value < stop


def read_summary(folder: Path) -> Summary | None:
    """The summary in a node's folder; None without one. Raises ValueError if it is damaged, OSError if unreadable."""
    try:
        return parse_summary(read_start(folder / SUMMARY, MAX_SUMMARY_SIZE + 1))
    except FileNotFoundError:
        return None


def write_summary(folder: Path, summary: Summary) -> None:
    """Replace the summary in a node's folder, durably. Raises OSError, or StoreError if it is too large."""
    data = summary.to_bytes()
    make_dir(folder, PRIVATE_FOLDER)
    replace_durably(folder / SUMMARY, data)


def ranges_of(runs: Sequence[EntryRange], index: int) -> tuple[EntryRange, ...]:
    """The ranges up to an index."""
    return tuple(run for run in runs if run.first_index <= index)
