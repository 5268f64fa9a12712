"""The engine of a store, whose segments can be local, remote or healed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.spec import Compressed, ScanRequest, Segment, Survey, SurveyRequest

if TYPE_CHECKING:
    import pyarrow as pa

_OF_SEGMENTS = ("log_end", "split", "seek", "term_runs", "copy_messages")


def store_engine(name: str) -> Engine:
    """The engine `name` (see `engine.get_engine`), which reads segments of all kinds of files."""
    return cast(Engine, StoreEngine(get_engine(name)))


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
        if name not in _OF_SEGMENTS:
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
