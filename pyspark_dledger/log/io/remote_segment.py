"""Remote segments: an engine reads partial local copies of them, whose chunks are fetched as it needs them."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from pyspark_dledger.common.durable import write_at
from pyspark_dledger.common.uris import RemoteUri
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import OF_SEGMENTS, Engine
from pyspark_dledger.format.scan.segment_file import MissingBytes
from pyspark_dledger.format.spec import Compressed, ScanRequest, Segment, Survey, SurveyRequest, TermRun
from pyspark_dledger.format.store_file import PartialFile, StoreFile
from pyspark_dledger.log.io.remote_reads import check_unchanged, fetch_later, read_remote, size_of

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.message import CopiedMessages, Longs

WINDOW = 32 * 1024 * 1024
"""Bytes of one window; the next one is fetched during the scan of a window."""

CHUNK = 1024 * 1024
_MAX_REQUEST_CHUNKS = 8
# Read ahead, by several requests at the same time.
_MAX_READ_AHEAD_CHUNKS = 32

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RemoteFile(StoreFile):
    """A file on a remote file system."""

    path: RemoteUri
    is_remote = True

    def read(self, offset: int, size: int) -> bytes:
        try:
            return read_remote(self.path, offset, size)
        except FileNotFoundError:
            return b""

    def size(self) -> int | None:
        try:
            return size_of(self.path)
        except FileNotFoundError:
            return None

    def over(self, engine: _Result) -> _Result:
        return cast(_Result, _RemoteEngine(cast(Engine, engine)))


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
        self._segment = segment
        self._uri = cast("RemoteFile", segment.file).path
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

    def __exit__(self, *_: object) -> None:
        for chunk in self._chunks.values():
            chunk.cancel()
        wait(self._chunks.values())  # a thread must not write to a closed descriptor
        self._file.close()

    @property
    def segment(self) -> Segment:
        """The segment, with the extents that were fetched so far."""
        done = sorted(number for number, chunk in self._chunks.items() if chunk.done() and chunk.exception() is None)
        extents = [(run[0] * CHUNK, min((run[-1] + 1) * CHUNK, self._size)) for run in _adjacent(done)]
        file = PartialFile.of(self._segment.file, f"/dev/fd/{self._file.fileno()}", tuple(extents))
        return replace(self._segment, file=file)

    def prefetch(self, start: int, stop: int) -> None:
        """Begin to fetch the positions ``[start, stop)`` of the log that are in the file."""
        missing = [number for number in self._numbers(start, stop) if number not in self._chunks]
        for numbers in _adjacent(missing):
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


def _adjacent(numbers: list[int]) -> Iterator[list[int]]:
    """Ascending numbers, each list without a gap."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]


class _RemoteEngine:
    """An engine that fetches what its calls read of remote segments.

    A call that needs bytes which were not fetched is repeated with them, so its result is the same as with all bytes.
    Messages that a scan has just found are copied from the chunks that it fetched.
    """

    def __init__(self, engine: Engine) -> None:
        self.NAME = engine.NAME
        self._engine = engine
        self._scanned: dict[Segment, FetchedSegment] = {}

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._engine, name)
        if name not in OF_SEGMENTS:
            return call
        return lambda segment, *values: self._on(segment, lambda found: call(found, *values))

    def scan(self, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
        end = min(request.end, request.segment.end)
        with FetchedSegment(request.segment) as copy:
            self._scanned[request.segment] = copy
            try:
                yield from self._windows(copy, request, end)
            finally:
                self._scanned.pop(request.segment, None)

    def _windows(
        self, copy: FetchedSegment, request: ScanRequest, end: int
    ) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
        start = request.start
        while True:
            cut = self._window_end(copy, start, end)
            copy.fetch(start, cut)
            is_last = cut >= end
            is_boundary = request.end_is_boundary if is_last else True
            stop = request.end if is_last else cut
            yield from self._rows(copy, replace(request, start=start, end=stop, end_is_boundary=is_boundary))
            if is_last:
                return
            copy.free(cut)
            start = cut

    def _window_end(self, copy: FetchedSegment, start: int, end: int) -> int:
        """An entry boundary about one window after `start`; begins to fetch what follows it."""
        reach = 2 * WINDOW
        while end - start > WINDOW + WINDOW // 4:
            stop = min(start + reach, end)
            copy.prefetch(start, stop)
            cuts = self._cuts(copy, start, stop)
            if cuts:
                return cuts[0]
            if stop == end:
                break
            reach *= 2
        return end

    def _cuts(self, copy: FetchedSegment, start: int, stop: int) -> list[int]:
        return _repeated(copy, lambda segment: self._engine.split(segment, start, stop, WINDOW))

    def _rows(self, copy: FetchedSegment, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
        """The batches of a window, each once: a repeated scan yields the same batches."""
        yielded = 0
        while True:
            try:
                scan = self._engine.scan(replace(request, segment=copy.segment))
                for number, batch in enumerate(scan):
                    if number >= yielded:
                        yielded += 1
                        yield batch
                return
            except MissingBytes as missing:
                copy.fetch_missing(missing.offset)

    def survey(self, request: SurveyRequest) -> Survey:
        whole = request.segment.base, request.segment.end
        return self._on(request.segment, lambda found: self._engine.survey(replace(request, segment=found)), whole)

    def term_runs(self, segment: Segment, start: int, end: int) -> list[TermRun]:
        return self._on(segment, lambda found: self._engine.term_runs(found, start, end), (start, end))

    def copy_messages(
        self, segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
    ) -> CopiedMessages:
        def copied(found: Segment) -> CopiedMessages:
            return self._engine.copy_messages(found, starts, sizes, into, position)

        scanned = self._scanned.get(segment)
        return self._on(segment, copied) if scanned is None else _repeated(scanned, copied)

    def _on(
        self, segment: Segment, call: Callable[[Segment], _Result], needed: tuple[int, int] | None = None
    ) -> _Result:
        """The result of an engine's call for a segment; the positions `needed` are fetched ahead."""
        with FetchedSegment(segment) as copy:
            if needed is not None:
                copy.prefetch(*needed)
            return _repeated(copy, call)


def _repeated(copy: FetchedSegment, call: Callable[[Segment], _Result]) -> _Result:
    """The result of `call`, which is repeated until all the bytes that it reads were fetched."""
    while True:
        try:
            return call(copy.segment)
        except MissingBytes as missing:
            copy.fetch_missing(missing.offset)
