"""Local copies of remote segments, of which only what an engine asks for is fetched."""

from __future__ import annotations

import mmap
import os
import tempfile
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import groupby
from types import TracebackType
from typing import final

from pyspark_dledger.common.uris import RemoteUri
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import PartialCopy, Segment
from pyspark_dledger.log.io.remote import check_unchanged, fetch_later, size_of

CHUNK = 1024 * 1024
# Of one request.
_MOST_CHUNKS = 8
# Of one demand, which are several requests side by side.
_LONGEST_DEMAND = 32


def no_room(uri: RemoteUri, error: OSError) -> StoreError:
    """What is raised where the copy cannot be written."""
    folder = tempfile.tempdir or "a folder for temporary files"  # unset where there is none that can be written to
    return StoreError(
        f"{uri}: cannot be copied to {folder} ({error.strerror}): make room, or set TMPDIR to a folder that has some"
    )


@final
class FetchedSegment:
    """A file without a name on this machine, as long as a remote segment's file, with the chunks of it that came.

    Chunks are whole mebibytes. What has not come cannot be read as zeros: the engine raises MissingBytes.
    """

    def __init__(self, segment: Segment) -> None:
        assert isinstance(segment.path, RemoteUri)
        self._segment = segment
        self._uri = segment.path
        check_unchanged(self._uri)
        self._size = size_of(self._uri)
        self._chunks: dict[int, Future[None]] = {}
        self._demand = (-1, 1)  # the chunk behind the last demand, and how many chunks that was
        self._again = -1  # the last chunk that was demanded while it was on its way
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
        wait(self._chunks.values())  # nothing may write to the descriptor once it is closed
        self._file.close()

    @property
    def segment(self) -> Segment:
        """The segment as it can be read now."""
        done = sorted(number for number, chunk in self._chunks.items() if chunk.done() and chunk.exception() is None)
        extents = []
        for _, run in groupby(enumerate(done), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in run]
            extents.append((numbers[0] * CHUNK, min((numbers[-1] + 1) * CHUNK, self._size)))
        return replace(self._segment, copy=PartialCopy(f"/dev/fd/{self._file.fileno()}", tuple(extents)))

    def want(self, start: int, stop: int) -> None:
        """Begin to fetch the positions ``[start, stop)`` of the log, as far as the file holds them."""
        missing = [number for number in self._numbers(start, stop) if number not in self._chunks]
        for _, run in groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in run]
            for at in range(0, len(numbers), _MOST_CHUNKS):
                self._fetch(numbers[at : at + _MOST_CHUNKS])

    def hold(self, start: int, stop: int) -> None:
        """Wait until the positions ``[start, stop)`` are there. Raises StoreError where they cannot be fetched."""
        self.want(start, stop)
        for number in self._numbers(start, stop):
            self._chunks[number].result()

    def demand(self, offset: int) -> None:
        """Have the byte at an offset of the file, and what follows: more each time that a demand goes on."""
        first = offset // CHUNK
        behind, count = self._demand
        if first in self._chunks:
            self._chunks[first].result()  # it was on its way, or could not be fetched
            assert self._again != first, "the engine does not see a chunk that is there"
            self._again = first
            return
        count = min(2 * count, _LONGEST_DEMAND) if first == behind else 1
        base = self._segment.base
        self.hold(base + first * CHUNK, base + (first + count) * CHUNK)
        while first in self._chunks:
            first += 1
        self._demand = (first, count)

    def drop(self, stop: int) -> None:
        """Forget whole chunks before position `stop`, where the file system can give back their room."""
        numbers = [number for number in self._chunks if (number + 1) * CHUNK <= stop - self._segment.base]
        wait([self._chunks[number] for number in numbers])
        for number in numbers:
            if not self._punch(number * CHUNK):
                return
            del self._chunks[number]

    def _punch(self, start: int) -> bool:
        """Whether the room of a chunk was given back."""
        try:
            with mmap.mmap(self._file.fileno(), CHUNK, offset=start) as mapped:
                mapped.madvise(mmap.MADV_REMOVE)
        except (AttributeError, OSError, ValueError):
            return False  # not on macOS: the file grows up to the size of the segment
        return True

    def _numbers(self, start: int, stop: int) -> range:
        first = max(start - self._segment.base, 0) // CHUNK
        return range(first, -(-min(stop - self._segment.base, self._size) // CHUNK))

    def _fetch(self, numbers: list[int]) -> None:
        chunk = fetch_later(self._uri, numbers[0] * CHUNK, len(numbers) * CHUNK, self._put)
        for number in numbers:
            self._chunks[number] = chunk

    def _put(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            raise no_room(self._uri, error) from None
