"""The engine of a store, whose segments can be local, remote or healed, and a scan that reads a file only once.

A scan of one part of a file after the other gets the same pages. New ones can cost more than reading: the host of a
virtual machine takes back free memory, and gives it again page by page.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyspark_dledger.common.durable import drop_cached
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import OF_SEGMENTS, Engine, get_engine, map_whole
from pyspark_dledger.format.spec import Compressed, ScanRequest, Segment, Survey, SurveyRequest

if TYPE_CHECKING:
    import pyarrow as pa


def store_engine(name: str) -> Engine:
    """The engine `name` (see `engine.get_engine`), which reads segments of all kinds of files."""
    return cast("Engine", StoreEngine(get_engine(name)))


def engine_over(paths: Iterable[str], name: str) -> Engine:
    """The engine `name` for the store at `paths`."""
    return store_engine(name) if any(map(is_remote, paths)) else get_engine(name)


def engine_of(name: str, segment: Segment) -> Engine:
    """The engine `name` for a segment."""
    return segment.file.over(get_engine(name))


class StoreEngine:
    """Passes each call to the engine that reads the segment's file."""

    def __init__(self, engine: Engine) -> None:
        self.NAME = engine.NAME
        self._engine = engine
        self._engines: dict[type, Engine] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in OF_SEGMENTS:
            return getattr(self._engine, name)
        return lambda segment, *values: getattr(self._of(segment), name)(segment, *values)

    def scan(self, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
        return self._of(request.segment).scan(request)

    def survey(self, request: SurveyRequest) -> Survey:
        return self._of(request.segment).survey(request)

    def _of(self, segment: Segment) -> Engine:
        """The engine for a segment; one for each kind of file, because it can keep what it has fetched."""
        kind = type(segment.file)
        if kind not in self._engines:
            self._engines[kind] = segment.file.over(self._engine)
        return self._engines[kind]


# More than the kernel reads ahead, and than the search for the end of a part reads.
_PART_BYTES = 32 * 1024 * 1024
_SEARCHED_BYTES = 8 * 1024 * 1024
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14


def scan_once(engine: Engine, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
    """As `Engine.scan`. A broker's own pages stay: those that a process has mapped are not dropped."""
    if not request.segment.file.is_local or request.end - request.start < 2 * _PART_BYTES:
        yield from engine.scan(request)
        return
    try:
        file = map_whole(request.segment.path)
        descriptor = os.open(request.segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, StoreError):
        yield from engine.scan(request)  # raises the error of a scan
        return
    try:
        base = request.segment.base
        start: int | None = request.start
        while start is not None:
            is_cold = not file.is_loaded(start - base + _PART_BYTES * 3 // 4)
            if is_cold:
                _load(descriptor, start - base, _PART_BYTES + _SEARCHED_BYTES)
            cut = _end_of_part(engine, request, start)
            part = request if cut is None else replace(request, end=cut, end_is_boundary=True)
            yield from engine.scan(replace(part, start=start))
            if is_cold and cut is not None:
                drop_cached(descriptor, start - base, cut - start)
            start = cut
    finally:
        os.close(descriptor)


def _load(descriptor: int, start: int, size: int) -> None:
    """Load bytes into large pages, in their order: the search for the end of a part begins in its middle."""
    begin = start // mmap.PAGESIZE * mmap.PAGESIZE
    end = min(start + size, os.fstat(descriptor).st_size)
    # Not all kernels can load pages without reading them, and a disk can fail: the scan says so.
    with suppress(OSError, ValueError), mmap.mmap(descriptor, end - begin, prot=mmap.PROT_READ, offset=begin) as pages:
        pages.madvise(_POPULATE_READ)


def _end_of_part(engine: Engine, request: ScanRequest, start: int) -> int | None:
    """An entry boundary about a part after `start`; None to read up to the end."""
    stop = min(start + 2 * _PART_BYTES, request.end)
    cuts = engine.split(request.segment, start, stop, _PART_BYTES)
    return cuts[0] if cuts else None
