"""Segments larger than the windows in which the native engine maps them where the address space is limited."""

from __future__ import annotations

import random
import resource
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.spec import COMMITLOG, Filters, IntFilter, ScanRequest, Segment, SurveyRequest
from tests.support.generate import mq_message, raw, write_commitlog, write_dledger

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("limited_address_space")]

MIB = 1 << 20
FILE = 72 * MIB
COLUMNS = ("kind", "index", "pos", "size", "problem", "keys", "body")
MAX_BODY = 4 * MIB - 48


@pytest.fixture
def limited_address_space() -> Iterator[None]:
    """A limit that no test reaches."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 45, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sizes(rng: random.Random, limit: int, count: int = 40) -> list[int]:
    return [rng.choice([rng.randrange(200), rng.randrange(limit), limit]) for _ in range(count)]


def of_dledger(root: Path) -> Segment:
    rng = random.Random(1)
    return write_dledger(root, [raw(rng.randbytes(size)) for size in sizes(rng, MAX_BODY)], file_size=FILE).segments[0]


def of_commit_log(root: Path) -> Segment:
    rng = random.Random(2)
    payloads = [
        mq_message(body=rng.randbytes(size), properties=[("KEYS", f"key{size}")]) for size in sizes(rng, 3 * MIB)
    ]
    return write_commitlog(root, payloads, file_size=FILE).segments[0]


def results(engine: Engine, segment: Segment) -> Iterator[Any]:
    """What the calls of an engine return."""
    end = engine.log_end(segment, segment.base, True)
    yield end
    yield engine.split(segment, segment.base, end.pos, 9 * MIB)
    yield engine.term_runs(segment, segment.base, end.pos)
    yield engine.seek(segment, segment.base, end.pos, max(end.last_index - 1, 0))
    yield engine.survey(SurveyRequest(segment, segment.base, end.pos))
    for columns in (COLUMNS, ("pos",)):
        request = ScanRequest(segment, segment.base, end.pos, columns, max_batch_bytes=100 * MIB)
        rows = [row for batch, _ in engine.scan(request) for row in batch.to_pylist()]
        yield [{**row, "body": row.get("body") and zlib.crc32(row["body"])} for row in rows]


@pytest.fixture(scope="module", params=[of_dledger, of_commit_log])
def segment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Segment:
    write: Callable[[Path], Segment] = request.param
    return write(tmp_path_factory.mktemp("windows"))


def damaged(segment: Segment, folder: Path, damage: str) -> Segment:
    rng = random.Random(damage)
    data = bytearray(Path(segment.path).read_bytes())
    if damage == "short":
        del data[40 * MIB :]
    elif damage != "none":
        for start in (5 * MIB, 16 * MIB - 100, 33 * MIB):
            size = 20 * MIB if damage == "long" and start == 16 * MIB - 100 else 5000
            data[start : start + size] = bytes(size) if damage == "zeros" else rng.randbytes(size)
    file = folder / segment.name
    file.write_bytes(data)
    return Segment.local(str(file), segment.name, segment.base, segment.size, segment.source)


@pytest.mark.parametrize("damage", ["none", "short", "zeros", "noise", "long"])
def test_engines_agree_across_windows(segment: Segment, tmp_path: Path, damage: str) -> None:
    copy = damaged(segment, tmp_path, damage)
    for native, python in zip(*(results(get_engine(name), copy) for name in ("native", "python")), strict=True):
        assert native == python
    if damage == "none" and segment.source != COMMITLOG:
        assert native[-1]["pos"] > 3 * 16 * MIB


@pytest.mark.parametrize("chosen", [tuple(range(40)), (0, 20, 39)])
def test_rows_of_one_batch_come_from_many_windows(tmp_path: Path, chosen: tuple[int, ...]) -> None:
    bodies = [b"%02d" % number * (MAX_BODY // 2) for number in range(40)]
    (segment,) = write_dledger(tmp_path, [raw(body) for body in bodies], file_size=170 * MIB).segments
    request = ScanRequest(
        segment,
        segment.base,
        segment.end,
        ("index", "body"),
        Filters(index=IntFilter(0, 39, chosen)),
        max_batch_bytes=512 * MIB,
    )
    batches = [batch for batch, _ in get_engine("native").scan(request) if batch.num_rows]
    assert len(batches) == 1
    found = [(row["index"], zlib.crc32(row["body"])) for row in batches[0].to_pylist()]
    assert found == [(index, zlib.crc32(bodies[index])) for index in chosen]
