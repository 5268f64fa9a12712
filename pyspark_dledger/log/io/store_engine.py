"""The engine of a store. For a remote store it reads partial copies of segments, which are fetched in windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark_dledger.common.uris import RemoteUri, is_remote
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.scan.segment_file import MissingBytes
from pyspark_dledger.format.spec import Compressed, LogEnd, ScanRequest, Segment, Survey, SurveyRequest, TermRun
from pyspark_dledger.log.io.healed_path import HealedPath

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.encode.message_copies import CopiedMessages, Longs
    from pyspark_dledger.log.io.fetched_segment import FetchedSegment

WINDOW = 32 * 1024 * 1024
"""Bytes of one window; the next one is fetched during the scan of a window."""

_Result = TypeVar("_Result")


def read_engine(name: str) -> Engine:
    """The engine `name` (see `engine.get_engine`), which also reads remote segments."""
    return cast(Engine, _ReadEngine(get_engine(name)))


def engine_over(paths: Iterable[str], name: str) -> Engine:
    """The engine `name` for the store at `paths`."""
    return read_engine(name) if any(map(is_remote, paths)) else get_engine(name)


def engine_of(name: str, segment: Segment) -> Engine:
    """The engine `name` for a segment."""
    if isinstance(segment.path, HealedPath):
        from pyspark_dledger.log.io.healed_engine import HealedEngine  # few reads need it

        return cast(Engine, HealedEngine(read_engine(name)))
    return read_engine(name) if isinstance(segment.path, RemoteUri) else get_engine(name)


class _ReadEngine:
    """An engine that fetches what its calls read of remote segments; calls for local segments are passed on.

    A call that needs bytes which were not fetched is repeated with them, so its result is the same as with all bytes.
    Messages that a scan has just found are copied from the chunks that it fetched.
    """

    def __init__(self, engine: Engine) -> None:
        self.NAME = engine.NAME
        self._engine = engine
        self._scanned: dict[Segment, FetchedSegment] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def scan(self, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
        if not isinstance(request.segment.path, RemoteUri):
            yield from self._engine.scan(request)
            return
        end = min(request.end, request.segment.end)
        with _fetched(request.segment) as copy:
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

    def log_end(self, segment: Segment, start: int, search_all: bool) -> LogEnd:
        return self._on(segment, lambda found: self._engine.log_end(found, start, search_all))

    def split(self, segment: Segment, start: int, end: int, target_bytes: int) -> list[int]:
        return self._on(segment, lambda found: self._engine.split(found, start, end, target_bytes))

    def seek(self, segment: Segment, start: int, end: int, index: int) -> int:
        return self._on(segment, lambda found: self._engine.seek(found, start, end, index))

    def term_runs(self, segment: Segment, start: int, end: int) -> list[TermRun]:
        return self._on(segment, lambda found: self._engine.term_runs(found, start, end), (start, end))

    def survey(self, request: SurveyRequest) -> Survey:
        whole = request.segment.base, request.segment.end
        return self._on(request.segment, lambda found: self._engine.survey(replace(request, segment=found)), whole)

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
        if not isinstance(segment.path, RemoteUri):
            return call(segment)
        with _fetched(segment) as copy:
            if needed is not None:
                copy.prefetch(*needed)
            return _repeated(copy, call)


def _fetched(segment: Segment) -> FetchedSegment:
    from pyspark_dledger.log.io.fetched_segment import FetchedSegment  # imports pyarrow's file systems

    return FetchedSegment(segment)


def _repeated(copy: FetchedSegment, call: Callable[[Segment], _Result]) -> _Result:
    """The result of `call`, which is repeated until all the bytes that it reads were fetched."""
    while True:
        try:
            return call(copy.segment)
        except MissingBytes as missing:
            copy.fetch_missing(missing.offset)
