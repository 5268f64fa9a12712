"""Partial local copies of remote segments: only the chunks that an engine reads are fetched."""

from __future__ import annotations

import mmap
import tempfile
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import groupby
from types import TracebackType
from typing import final

from pyspark_dledger.common.durable import write_at
from pyspark_dledger.common.uris import RemoteUri
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import PartialCopy, Segment
from pyspark_dledger.log.io.remote_reads import check_unchanged, fetch_later, size_of

CHUNK = 1024 * 1024
_MAX_REQUEST_CHUNKS = 8
# Read ahead, by several requests at the same time.
_MAX_READ_AHEAD_CHUNKS = 32


def no_room(uri: RemoteUri, error: OSError) -> StoreError:
    """The error for a copy that cannot be written."""
    folder = tempfile.tempdir or "a folder for temporary files"  # unset if no folder is writable
    return StoreError(
        f"{uri}: cannot be copied to {folder} ({error.strerror}): make room, or set TMPDIR to a folder that has some"
    )


@final
class FetchedSegment:
    """An unnamed local file with the size of a remote segment's file, and the chunks of it that were fetched.

    Chunks are whole mebibytes. Missing chunks are not read as zeros: the engine raises MissingBytes.
    """

    def __init__(self, segment: Segment) -> None:
        assert isinstance(segment.path, RemoteUri)
        self._segment = segment
        self._uri = segment.path
        check_unchanged(self._uri)
        self._size = size_of(self._uri)
        self._chunks: dict[int, Future[None]] = {}
        self._read_ahead = (-1, 1)  # the chunk after the last demanded ones, and how many these were
        self._waited_for = -1  # the last chunk that was demanded while it was being fetched
        try:
            self._file = tempfile.TemporaryFile(prefix="dledger-")  # noqa: SIM115 - closed with this object
            self._file.truncate(self._size)
        except OSError as error:
            raise no_room(self._uri, error) from None

    def __enter__(self) -> FetchedSegment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for chunk in self._chunks.values():
            chunk.cancel()
        wait(self._chunks.values())  # a thread must not write to a closed descriptor
        self._file.close()

    @property
    def segment(self) -> Segment:
        """The segment, with the extents that were fetched so far."""
        done = sorted(number for number, chunk in self._chunks.items() if chunk.done() and chunk.exception() is None)
        extents = []
        for _, run in groupby(enumerate(done), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in run]
            extents.append((numbers[0] * CHUNK, min((numbers[-1] + 1) * CHUNK, self._size)))
        return replace(self._segment, copy=PartialCopy(f"/dev/fd/{self._file.fileno()}", tuple(extents)))

    def prefetch(self, start: int, stop: int) -> None:
        """Begin to fetch the positions ``[start, stop)`` of the log that are in the file."""
        missing = [number for number in self._numbers(start, stop) if number not in self._chunks]
        for _, run in groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in run]
            for at in range(0, len(numbers), _MAX_REQUEST_CHUNKS):
                self._request(numbers[at : at + _MAX_REQUEST_CHUNKS])

    def fetch(self, start: int, stop: int) -> None:
        """Wait for the positions ``[start, stop)``. Raises StoreError if they cannot be fetched."""
        self.prefetch(start, stop)
        for number in self._numbers(start, stop):
            self._chunks[number].result()

    def fetch_missing(self, offset: int) -> None:
        """Fetch the chunk with an offset of the file, and read ahead: twice as far if it continues the last demand."""
        first = offset // CHUNK
        expected, count = self._read_ahead
        if first in self._chunks:
            self._chunks[first].result()  # raises if it could not be fetched
            assert self._waited_for != first, "the engine does not see a fetched chunk"
            self._waited_for = first
            return
        count = min(2 * count, _MAX_READ_AHEAD_CHUNKS) if first == expected else 1
        base = self._segment.base
        self.fetch(base + first * CHUNK, base + (first + count) * CHUNK)
        while first in self._chunks:
            first += 1
        self._read_ahead = (first, count)

    def free(self, stop: int) -> None:
        """Free the chunks before position `stop`, if the file system supports it."""
        numbers = [number for number in self._chunks if (number + 1) * CHUNK <= stop - self._segment.base]
        wait([self._chunks[number] for number in numbers])
        for number in numbers:
            if not self._punch(number * CHUNK):
                return
            del self._chunks[number]

    def _punch(self, start: int) -> bool:
        """Free the disk space of a chunk; false if that is not supported."""
        try:
            with mmap.mmap(self._file.fileno(), CHUNK, offset=start) as mapped:
                mapped.madvise(mmap.MADV_REMOVE)
        except (AttributeError, OSError, ValueError):
            return False  # as on macOS: the file grows up to the size of the segment
        return True

    def _numbers(self, start: int, stop: int) -> range:
        first = max(start - self._segment.base, 0) // CHUNK
        return range(first, -(-min(stop - self._segment.base, self._size) // CHUNK))

    def _request(self, numbers: list[int]) -> None:
        chunk = fetch_later(self._uri, numbers[0] * CHUNK, len(numbers) * CHUNK, self._put)
        for number in numbers:
            self._chunks[number] = chunk

    def _put(self, offset: int, data: bytes) -> None:
        try:
            write_at(self._file.fileno(), data, offset)
        except OSError as error:
            raise no_room(self._uri, error) from None
