"""Compares the native engine with the Python one on damaged segments.

The segment and the call of a disagreement are written to build/fuzz/differential.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.columns import SCANNED_COLUMNS
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.scan.frames import SPAN_WINDOW
from pyspark_dledger.format.spec import KINDS, MODES, Filters, IntFilter, ScanRequest, Segment, SurveyRequest
from tests.fuzz.build import BUILD
from tests.fuzz.corpus import Piece, pieces
from tests.fuzz.logs import Log, damage, random_log
from tests.support.seeds import Kit, Result
from tests.support.true_witness import TrueWitness

NAMES = tuple(SCANNED_COLUMNS)
REPRODUCERS = BUILD / "differential"

NATIVE = get_engine("native")
PYTHON = get_engine("python")


class Call(NamedTuple):
    """A call of both engines, and its arguments."""

    name: str
    arguments: tuple[Any, ...]


class Disagreement(Exception):
    """The engines differ, or both are wrong; the text says how."""


def result_of(engine: Any, call: Call) -> Any:
    """The result of a call, in a form that can be compared; an error is its text."""
    try:
        if call.name == "scan":
            return _scan(engine, *call.arguments)
        return getattr(engine, call.name)(*call.arguments)
    except DLedgerError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # no bytes may cause any other error
        raise Disagreement(f"{engine.NAME} raised\n{traceback.format_exc()}") from error


def _scan(engine: Any, request: ScanRequest) -> tuple[list[pa.RecordBatch], list[Any], str | None]:
    batches, compressed, error = [], [], None
    try:
        for batch, bodies in engine.scan(request):
            batch.validate(full=True)
            batches.append(batch)
            compressed.append(bodies)
    except DLedgerError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return batches, compressed, error


def calls_on(random: Random, segment: Segment, rows: list[dict[str, Any]], is_large: bool) -> Iterator[Call]:
    """Every kind of call on a segment, at positions of rows and elsewhere."""
    positions = [segment.base, *(row["pos"] for row in rows)]
    start = random.choice(positions)
    end = random.choice((segment.end, random.choice(positions), random.randint(segment.base, segment.end)))
    for search_all in (False, True):
        yield Call("log_end", (segment, segment.base, search_all))
    yield Call("log_end", (segment, start, True))
    known = [row["index"] for row in rows if row["index"] is not None] or [0]
    for index in (-1, random.choice(known), random.choice(known) + random.choice((-1, 1)), 5):
        yield Call("seek", (segment, segment.base, end, min(index, 2**63 - 1)))
    yield Call("term_runs", (segment, segment.base, end))
    yield Call("term_runs", (segment, start, segment.end))
    targets = (100_000, SPAN_WINDOW, 2 * SPAN_WINDOW + 1, 9_000_000) if is_large else (1, 60, 333, 2000)
    yield Call("split", (segment, segment.base, end, random.choice(targets)))
    max_problems = random.choice((0, 1, 3, 1000))
    for survey_end in {end, NATIVE.log_end(segment, segment.base, True).pos}:
        yield Call("survey", (SurveyRequest(segment, segment.base, survey_end, random.random() < 0.8, max_problems),))
    yield Call("survey", (SurveyRequest(segment, start, segment.end),))
    yield Call("scan", (_request(random, segment, segment.base, end),))
    yield Call("scan", (_request(random, segment, start, segment.end),))


def _request(random: Random, segment: Segment, start: int, end: int) -> ScanRequest:
    columns = NAMES if random.random() < 0.5 else tuple(random.sample(NAMES, random.randrange(8)))
    return ScanRequest(
        segment,
        start,
        max(start, end),
        columns,
        _filters(random),
        random.choice(MODES),
        random.random() < 0.7,
        random.choice((None, 3, 2**40 + 3)),
        max_batch_rows=random.choice((1, 2, 7, 128, 10_000)),
        max_batch_bytes=random.choice((1, 100, 1000, 10**7)),
        end_is_boundary=random.random() < 0.3,
    )


def _filters(random: Random) -> Filters:
    numbers = random.choice((IntFilter(0, 3), IntFilter(1), IntFilter(values=(0, 1, 6)), IntFilter(2**40)))
    conditions: dict[str, Any] = {
        **dict.fromkeys(("index", "term", "pos", "queue_id"), numbers),
        "store_timestamp": IntFilter(1_700_000_000_000_000),
        "kind": tuple(random.sample(KINDS, 2)),
        "topic": random.choice(((), ("OrderTopic", "A"), ("标题",))),
        "tags": random.choice(((), ("A",), ("\ufffd", "标题"))),
        "committed": random.random() < 0.5,
    }
    chosen = random.sample(sorted(conditions), random.choice((0, 0, 1, 1, 2)))
    return Filters(**{name: conditions[name] for name in chosen})


def check_case(seed: int, folder: Path) -> str:
    """Make one case and compare. Returns its sort. Raises Disagreement after writing the reproducer."""
    random = Random(seed)
    log = random_log(random, golden_pieces())
    original = bytes(log.data)
    damage(random, log)
    path = folder / "segment"
    path.write_bytes(log.data)
    size = len(log.data) + log.missing
    segment = Segment.local(str(path), f"{log.base:020}", log.base, size, log.source, log.check_pos, log.before)
    segment = replace(segment, witness=_witness(random, log, original))
    call: Any = "all rows"
    try:
        rows = whole_rows(segment)
        check_rows(segment, rows)
        check_intact(log, original, rows)
        for call in calls_on(random, segment, rows, log.name == "large"):
            native, python = result_of(NATIVE, call), result_of(PYTHON, call)
            if not same(native, python):
                raise Disagreement(f"{difference(native, python)}")
            if call.name == "split" and isinstance(native, list):
                check_splits(segment, call.arguments[2], native, rows)
            if call.name == "scan" and isinstance(native, tuple):
                check_lines(native[0])
    except Disagreement as error:
        where = write_reproducer(str(seed), log, call, error)
        raise Disagreement(f"{log.name}: {', '.join(log.steps)}, {call}\n{error}\nreproducer: {where}") from None
    return log.name


def _witness(random: Random, log: Log, original: bytes) -> TrueWitness | None:
    """Knows some of the written frames, or none."""
    share = random.choice((0.0, 0.0, 0.3, 0.9, 1.0))
    known = [frame for frame in log.frames if random.random() < share]
    return TrueWitness.of(known, original, log.base) if known else None


def same(native: Any, python: Any) -> bool:
    if isinstance(native, tuple) and native and isinstance(native[0], list):
        (ours, our_bodies, our_error), (theirs, their_bodies, their_error) = native, python
        return (
            len(ours) == len(theirs)
            and all(a.equals(b) for a, b in zip(ours, theirs, strict=True))
            and (our_bodies, our_error) == (their_bodies, their_error)
        )
    return bool(native == python)


def difference(native: Any, python: Any) -> str:
    """Both results, or the first difference of long ones."""
    if isinstance(native, tuple) and isinstance(python, tuple) and len(native) == len(python):
        for number, (ours, theirs) in enumerate(zip(native, python, strict=True)):
            if ours == theirs:
                continue
            if isinstance(ours, list) and ours and isinstance(ours[0], pa.RecordBatch):
                ours, theirs = ([row for batch in batches for row in batch.to_pylist()] for batches in (ours, theirs))
            if isinstance(ours, list):
                for ours_item, theirs_item in itertools.zip_longest(ours, theirs):
                    if ours_item != theirs_item:
                        return f"part {number}: native {ours_item!s:.2000}\npython {theirs_item!s:.2000}"
            return f"part {number}: native {ours!s:.2000}\npython {theirs!s:.2000}"
    return f"native {native!s:.2000}\npython {python!s:.2000}"


POSITION_COLUMNS = ("pos", "size", "kind", "index", "term", "problem")


def rows_between(segment: Segment, start: int, end: int, is_boundary: bool = False) -> list[dict[str, Any]]:
    """The rows of the native engine, with only their positions and kinds."""
    rows: list[dict[str, Any]] = []
    try:
        for batch, _ in NATIVE.scan(ScanRequest(segment, start, end, POSITION_COLUMNS, end_is_boundary=is_boundary)):
            rows += batch.to_pylist()
    except DLedgerError as error:
        raise Disagreement(f"a scan of {start} to {end} raised {error}") from error
    return rows


def whole_rows(segment: Segment) -> list[dict[str, Any]]:
    return rows_between(segment, segment.base, segment.end)


def check_rows(segment: Segment, rows: list[dict[str, Any]]) -> None:
    """Rows are in order inside the segment and do not overlap."""
    at = segment.base
    for row in rows:
        if row["pos"] < at or row["size"] <= 0 or row["pos"] + row["size"] > segment.end:
            raise Disagreement(f"expected rows in order inside the segment, found {row} at {at}")
        at = row["pos"] + row["size"]


def check_lines(batches: list[pa.RecordBatch]) -> None:
    """Both engines make the same lines of damaged rows. Only the first batch, because the Python engine is slow."""
    for batch in batches[:1]:
        native, python = (b"".join(engine.json_lines(batch, "text")) for engine in (NATIVE, PYTHON))
        if native != python:
            raise Disagreement(difference(native.splitlines(), python.splitlines()))


def check_splits(segment: Segment, end: int, boundaries: list[int], rows: list[dict[str, Any]]) -> None:
    """The rows of all splits are those of the whole range."""
    cuts = [segment.base, *boundaries, end]
    parts = []
    for start, stop in itertools.pairwise(cuts):
        parts += rows_between(segment, start, stop, stop in boundaries)
    expected = rows if end == segment.end else rows_between(segment, segment.base, end)
    if parts != expected:
        raise Disagreement(
            f"expected the rows of {len(cuts) - 1} parts as of the whole, {difference((parts,), (expected,))}"
        )


def check_intact(log: Log, original: bytes, rows: list[dict[str, Any]]) -> None:
    """Damage loses no intact entry, and adds none.

    Exceptions are bodies that could continue the log, and damaged headers that still fit.
    """
    found = {(row["pos"], row["size"]): row["index"] for row in rows if row["kind"] != "corrupt"}
    if (
        not log.knows_frames
        or log.is_hostile
        or any(
            index is not None and index != decode_entry_header(original, pos - log.base).index
            for (pos, _), index in found.items()
        )
    ):
        return
    for pos, size in log.frames:
        at = pos - log.base
        if log.data[at : at + size] == original[at : at + size] and (pos, size) not in found:
            raise Disagreement(f"expected the intact entry of {size} bytes at {pos}, found none")
    written = {pos for pos, _ in log.frames}
    for pos, size in sorted(found):
        if pos not in written:
            raise Disagreement(f"expected no entry of {size} bytes at {pos}: none was written")


def write_reproducer(name: str, log: Log, call: Any, error: Disagreement) -> Path:
    folder = REPRODUCERS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "segment").write_bytes(log.data)
    facts = f"{log.source} base={log.base} missing={log.missing} check_pos={log.check_pos} before={log.before}"
    (folder / "call.txt").write_text(f"{facts}\n{log.steps}\n{call}\n\n{error}\n")
    return folder


@cache
def golden_pieces() -> list[Piece]:
    with tempfile.TemporaryDirectory() as folder:
        return list(pieces(Path(folder)))


def check_seed(seed: int, folder: Path, _options: argparse.Namespace) -> Result:
    return Result(counts=Counter([check_case(seed, folder)]))


KIT = Kit("tests.fuzz.differential", check_seed, __doc__, 1_000_000, is_in_memory=True)

if __name__ == "__main__":
    sys.exit(KIT.main())
