"""Healed segments, whose parts come from several replicas: each is read from the replica that has it."""

from __future__ import annotations

import hashlib
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.facts import ProblemCode
from pyspark_dledger.format.scan.row_values import malformed
from pyspark_dledger.format.spec import Compressed, ScanRequest, Segment
from pyspark_dledger.format.store_file import PartialFile, StoreFile
from pyspark_dledger.log.gaps import FileGap, gap_batches
from pyspark_dledger.log.io.store_engine import StoreEngine

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.message import CopiedMessages, Longs

_Batch = tuple["pa.RecordBatch", list[Compressed]]
_UNUSED = ("log_end", "term_runs", "survey")
_Engine = TypeVar("_Engine")


class HealedPart(NamedTuple):
    """Positions ``[start, end)`` of a log, which a replica has in ``segment``; None if no replica has the file.

    ``healed_from`` names the replica unless it is the first one. A ``header`` replaces the one of an entry. No replica
    has a part intact that ``is_lost``. ``problem`` says that copies of an entry differ and nothing decides.
    """

    start: int
    end: int
    segment: Segment | None
    healed_from: str | None = None
    header: bytes = b""
    is_lost: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class HealedFile(StoreFile):
    """The file of a healed segment: its ``parts`` by position, from ``base`` on."""

    path: str
    base: int
    parts: tuple[HealedPart, ...] = field(hash=False)

    @property
    def opened(self) -> str:
        raise NotImplementedError(f"{self.path}: a healed segment is not one file")

    def __repr__(self) -> str:
        """The path with a digest of its parts: the plan of an export is compared by it."""
        parts = "\n".join(repr((*part[:2], part.segment and part.segment.path, *part[3:])) for part in self.parts)
        digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
        return f"HealedFile({self.path!r}, {digest})"

    def within(self, start: int, end: int) -> Iterator[HealedPart]:
        """The parts with positions in ``[start, end)``."""
        first = max(bisect_right(self.parts, start, key=lambda part: part.start) - 1, 0)
        for part in self.parts[first:]:
            if part.start >= end:
                return
            if part.end > start:
                yield part

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`; zeros between the parts, and where a part cannot be read."""
        at, end = self.base + offset, self.base + offset + size
        data = b""
        for part in self.within(at, end):
            low, high = max(at + len(data), part.start), min(end, part.end)
            data = data.ljust(low - at, b"\0") + part.header[low - part.start : high - part.start]
            if part.segment is not None:
                data += part.segment.read(at + len(data), high - at - len(data))
            data = data.ljust(high - at, b"\0")
        return data

    def size(self) -> int | None:
        return self.parts[-1].end - self.base

    def over(self, engine: _Engine) -> _Engine:
        return cast("_Engine", _HealedEngine(StoreEngine(cast("Engine", engine))))


class _HealedEngine:
    """An engine that reads healed segments. Splits lie within or between parts."""

    def __init__(self, engine: Engine) -> None:
        self.NAME = engine.NAME
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name in _UNUSED:
            raise NotImplementedError(f"{name} of a healed segment")
        return getattr(self._engine, name)

    def scan(self, request: ScanRequest) -> Iterator[_Batch]:
        for part in _file(request.segment).within(request.start, request.end):
            start, end = max(request.start, part.start), min(request.end, part.end)
            is_boundary = not part.is_lost and (request.end_is_boundary or end == part.end)
            within = replace(request, start=start, end=end, end_is_boundary=is_boundary)
            for batch, compressed in self._rows(part, within):
                yield _marked(batch, part), compressed

    def _rows(self, part: HealedPart, request: ScanRequest) -> Iterator[_Batch]:
        if part.segment is None:
            gap = FileGap(request, request.start, request.end, request.segment.source)
            yield from ((batch, []) for batch in gap_batches(gap))
            return
        mode, columns = request.mode, request.columns
        if part.is_lost and "size" in columns and "pos" not in columns:
            request = replace(request, columns=(*columns, "pos"))
        with _opened(part, part.segment) as segment:
            if part.problem is not None:
                request = replace(request, mode="PERMISSIVE")
            for batch, compressed in self._engine.scan(replace(request, segment=segment)):
                if part.problem is not None and len(batch) and mode == "FAILFAST":
                    raise malformed(request, "entry", part.start, part.problem)
                if part.problem is None or mode == "PERMISSIVE":
                    yield (_clipped(batch, part.end, columns) if part.is_lost else batch), compressed

    def split(self, segment: Segment, start: int, end: int, target_bytes: int) -> list[int]:
        cuts = [start]
        for part in _file(segment).within(start, end):
            low, high = max(start, part.start), min(end, part.end)
            is_one = part.segment is None or part.is_lost or part.header or part.problem is not None
            own = [] if is_one or part.segment is None else self._engine.split(part.segment, low, high, target_bytes)
            for cut in (low, *own):
                if cut - cuts[-1] >= max(target_bytes, 1):
                    cuts.append(cut)
        return cuts[1:]

    def seek(self, segment: Segment, start: int, end: int, index: int) -> int:
        for part in _file(segment).within(start, end):
            low, high = max(start, part.start), min(end, part.end)
            if part.header:
                found = low if decode_entry_header(part.header).index >= index else high
            else:
                found = high if part.segment is None else self._engine.seek(part.segment, low, high, index)
            if found < high:
                return found
        return end

    def copy_messages(
        self, segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
    ) -> CopiedMessages:
        """As `Engine.copy_messages`, for messages of one part: those of a batch of a scan are."""
        first = int(starts[0])
        parts = _file(segment).within(first, first + 1)
        own = next(part.segment for part in parts if part.segment is not None)
        return self._engine.copy_messages(own, starts, sizes, into, position)


def _file(segment: Segment) -> HealedFile:
    return cast("HealedFile", segment.file)


def _clipped(batch: pa.RecordBatch, end: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The rows with `columns`, none beyond `end`: damage of one replica can continue where another one is intact."""
    import pyarrow as pa

    from pyspark_dledger.format.arrow_functions import compute as pc

    if "size" not in columns:
        return batch
    size = pc.min_element_wise(batch["size"], pc.subtract(pa.scalar(end), batch["pos"])).cast(pa.int32())
    return batch.set_column(batch.schema.names.index("size"), "size", size).select(columns)


def _marked(batch: pa.RecordBatch, part: HealedPart) -> pa.RecordBatch:
    """The rows with the part's values of the columns healedFrom and problem."""
    import pyarrow as pa

    from pyspark_dledger.format.arrow_functions import compute as pc

    names = batch.schema.names

    def with_column(name: str, value: pa.Array) -> pa.RecordBatch:
        return batch.set_column(names.index(name), batch.schema.field(name), value)

    if part.healed_from is not None and "healedFrom" in names:
        batch = with_column("healedFrom", pa.repeat(pa.scalar(part.healed_from, pa.string()), len(batch)))
    for name, value in (("problem", part.problem), ("problemCode", int(ProblemCode.UNDECIDED))):
        if part.problem is not None and name in names:
            batch = with_column(name, pc.fill_null(batch[name], value))
    return batch


@contextmanager
def _opened(part: HealedPart, segment: Segment) -> Iterator[Segment]:
    """The segment to read a part from. An entry with another header is copied to a temporary file."""
    if not part.header:
        yield segment
        return
    skipped = part.start + len(part.header)
    body = segment.read(skipped, part.end - skipped)
    with tempfile.TemporaryFile(prefix="dledger-") as file:
        file.write(part.header + body)
        file.flush()
        size = part.end - part.start
        copy = PartialFile.of(segment.file, f"/dev/fd/{file.fileno()}", ((0, size),))
        yield replace(segment, file=copy, base=part.start, size=size, before=None, witness=None)
