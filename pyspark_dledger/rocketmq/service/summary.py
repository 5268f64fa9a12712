"""The summary of a member: what its log no longer tells once entries have expired.

The file ``summary`` in a node's folder has the next queueOffsets, and which identities the member has, up to an index.
With the log after that index it gives the present state. The identities themselves are in sorted runs.

Another member gets all of that as a stream of records: the summary, the runs, and config files. A record is a header of
kind, name length, size and CRC-32, then name and content.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir, open_own, replace_durably, write_at
from pyspark_dledger.common.fastjson import MAX_FILE_SIZE
from pyspark_dledger.common.summary_part import MAX_SUMMARY_PART, SummaryPart
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import MAX_QUEUE_OFFSET, QueueName, is_valid_queue
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import map_whole
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.io.broker_config import FILES
from pyspark_dledger.log.io.files import read_start
from pyspark_dledger.rocketmq.service.sorted_run import CoveredRange, SortedRun, copy_run

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
    identities: tuple[CoveredRange, ...] = ()

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


def _ranges(runs: list[list[int]]) -> Iterator[CoveredRange]:
    for first, last, stored in runs:
        if not all(_is_integer(value, -1, _INT63) for value in (first, last, stored)) or first > last:
            raise ValueError("expected first and last index and a time of each run, found something else")
        yield CoveredRange(first, last, -1, stored, stored)


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


def ranges_of(runs: Sequence[CoveredRange], index: int) -> tuple[CoveredRange, ...]:
    """The ranges up to an index."""
    return tuple(run for run in runs if run.first_index <= index)


_SUMMARY_RECORD, _RUN_RECORD, _CONFIG_RECORD = 1, 2, 3

_RECORD = struct.Struct("<BBQI")


class Snapshot:
    """A stream that is read in parts. Runs are mapped files, so only the rest takes memory."""

    def __init__(self, number: int, summary: bytes, runs: Sequence[Buffer], config: Mapping[str, bytes]) -> None:
        self.number = number
        records = [(_SUMMARY_RECORD, "", summary), *((_RUN_RECORD, "", run) for run in runs)]
        records += [(_CONFIG_RECORD, name, data) for name, data in config.items()]
        self._pieces = [memoryview(piece) for record in records for piece in _pieces(*record)]
        self._ends = list(accumulate(map(len, self._pieces)))
        self.size = self._ends[-1]

    def read(self, offset: int, size: int = MAX_SUMMARY_PART) -> bytes:
        """At most `size` bytes from `offset` on; none outside the stream."""
        found = bytearray()
        if not 0 <= offset < self.size:
            return b""
        number = bisect_right(self._ends, offset)
        while number < len(self._pieces) and len(found) < size:
            start = max(offset - (self._ends[number] - len(self._pieces[number])), 0)
            found += self._pieces[number][start : start + size - len(found)]
            number += 1
        return bytes(found)


def _pieces(kind: int, name: str, content: Buffer) -> tuple[bytes, Buffer]:
    encoded = name.encode()
    return _RECORD.pack(kind, len(encoded), len(content), crc32(content)) + encoded, content


def records_of(stream: memoryview) -> Iterator[tuple[int, str, memoryview]]:
    """Kind, name and content of each record of a whole stream. Raises ValueError for one that is damaged."""
    start = 0
    while start < len(stream):
        if start + _RECORD.size > len(stream):
            raise ValueError(f"expected a record at byte {start}, found {len(stream) - start} bytes")
        kind, name_size, size, crc = _RECORD.unpack_from(stream, start)
        begin = start + _RECORD.size + name_size
        start = begin + size
        content = stream[begin:start]
        if start > len(stream) or crc32(content) != crc:
            raise ValueError(f"expected a record of {size} bytes with CRC {crc:08x} at byte {begin}, found another")
        yield kind, bytes(stream[begin - name_size : begin]).decode(), content


_INCOMING = "summary.incoming"
# n identities are in about 8 log2(n) runs. Each takes a file, a sync and a mapping.
_MAX_RUNS = 1000


@dataclass
class ReceivedSummary:
    """What a stream contains; the runs are in the folder of identities, durably."""

    summary: Summary
    runs: list[SortedRun] = field(default_factory=list)
    config: dict[str, bytes] = field(default_factory=dict)


class IncomingStream:
    """The parts of one snapshot, in a file of the node's folder, which is deleted at the end."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _INCOMING
        self._descriptor = -1
        self._end = self._size = 0

    @property
    def is_complete(self) -> bool:
        return self._descriptor >= 0 and self._end == self._size

    def add(self, part: SummaryPart) -> bool:
        """Write the next part; one at offset 0 begins a new snapshot. Raises OSError.

        Returns False if it does not follow the last one, or if the disk has no room for the snapshot.
        """
        if part.offset == 0:
            self.close()
            if 2 * part.size > shutil.disk_usage(self._file.parent).free:
                return False
            self._descriptor = open_own(self._file, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self._size = part.size
        if self._descriptor < 0 or (part.offset, part.size) != (self._end, self._size) or part.end > part.size:
            return False
        write_at(self._descriptor, part.data, part.offset)
        self._end = part.end
        return True

    def unpack(self, identities: Path) -> ReceivedSummary:
        """Check the whole stream, and write its runs. Raises ValueError if it is damaged, OSError if the disk fails."""
        records = records_of(map_whole(str(self._file)).view)
        first, _, data = next(records)
        if first != _SUMMARY_RECORD:
            raise ValueError(f"expected a summary first, found a record of kind {first}")
        received = ReceivedSummary(parse_summary(data))
        for kind, name, content in records:
            if kind == _RUN_RECORD and len(received.runs) == _MAX_RUNS:
                raise ValueError(f"expected at most {_MAX_RUNS} runs of identities, found more")
            if kind == _RUN_RECORD:
                received.runs.append(copy_run(identities, content))
            elif kind == _CONFIG_RECORD and name in FILES and len(content) <= MAX_FILE_SIZE:
                received.config[name] = bytes(content)
        return received

    def close(self) -> None:
        """Delete the file. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._end, self._size = -1, 0, 0
        self._file.unlink(missing_ok=True)
