"""Damaged and hostile segments compared with intact ones: verification, resynchronisation, random bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.generate import BUILD, MESSAGES_1K, RAW_1K, Bytes, Ints, Store, ensure, warm
from benchmarks.measure import Result, alternate, rounded, timed
from benchmarks.scans import HEADER
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import record_dtype
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment, SurveyRequest

VERSION = 1  # of the written bytes
EVERY = 1000
SMALL = 64
HOSTILE_SIZE = 256 * 1024 * 1024
ROUNDS = 5
HEADER_DTYPE = record_dtype(layout.ENTRY_HEADER)


def segment_of(path: Path, size: int) -> Segment:
    return Segment.local(str(path), path.name, 0, size, DLEDGER)


def intact(store: Store) -> Segment:
    ensure(store)
    return segment_of(store.segment(0), store.segment_size)


def survey(segment: Segment) -> float:
    """The size of the entries and messages, in GB."""
    sizes = get_engine("native").survey(SurveyRequest(segment, segment.base, segment.end)).sizes
    return (sizes["entry"] + sizes["message"]) / 1e9


def scan(segment: Segment, columns: tuple[str, ...]) -> int:
    request = ScanRequest(segment, segment.base, segment.end, columns)
    return sum(batch.num_rows for batch, _ in get_engine("native").scan(request))


def made(name: str, write: Callable[[Path], None]) -> Segment:
    """A file in the page cache; it is written if it does not exist."""
    path = BUILD / f"damage-v{VERSION}" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_path = path.with_suffix(".partial")
        write(partial_path)
        partial_path.rename(path)
    warm(path)
    return segment_of(path, path.stat().st_size)


def damaged(source: Segment, path: Path) -> None:
    """A copy of the segment in which every 1,000th header is zeros."""
    data = np.fromfile(source.path, np.uint8)
    starts = entry_starts(data)
    for start in starts[EVERY // 2 :: EVERY].tolist():
        data[start : start + layout.ENTRY_HEADER_SIZE] = 0
    data.tofile(path)


def entry_starts(data: Bytes) -> Ints:
    starts, at = [], 0
    sizes = data.data
    while at + layout.ENTRY_HEADER_SIZE <= data.size and bytes(sizes[at : at + 4]) == b"\0\0\0\1":
        starts.append(at)
        at += int.from_bytes(sizes[at + 4 : at + 8], "big")
    return np.array(starts)


def random_bytes(path: Path) -> None:
    np.random.default_rng(7).integers(0, 256, HOSTILE_SIZE, np.uint8).tofile(path)


def zeros(path: Path) -> None:
    np.zeros(HOSTILE_SIZE, np.uint8).tofile(path)


def entries_in_bodies(path: Path, with_headers: bool = True, inner: int = 1024 - 48, steps: bool = False) -> None:
    """Entries of 1 KiB whose bodies contain complete entries of `inner` bytes with their real positions.

    Their own headers are zeros without `with_headers`. With `steps` the indexes inside grow like real ones.
    """
    count = HOSTILE_SIZE // 1024
    data = np.random.default_rng(7).integers(32, 127, (count, 1024), np.uint8)
    number = np.arange(count)
    outer = header_rows(number, number * 1024, 1024)
    data[:, :48] = outer.view(np.uint8).reshape(count, 48) if with_headers else 0
    for begin in range(48, 1024 - inner + 1, inner):
        index = number * 2 if steps else np.full(count, 5) + begin // inner
        data[:, begin : begin + 48] = header_rows(index, number * 1024 + begin, inner).view(np.uint8).reshape(count, 48)
    data.tofile(path)


def entries_of(size: int, path: Path) -> None:
    """An intact segment with entries of this size."""
    number = np.arange(HOSTILE_SIZE // size)
    data = np.random.default_rng(7).integers(32, 127, (len(number), size), np.uint8)
    data[:, :48] = header_rows(number, number * size, size).view(np.uint8).reshape(-1, 48)
    data.tofile(path)


def header_rows(index: np.ndarray, pos: np.ndarray, size: int) -> np.ndarray:
    rows = np.zeros(len(index), HEADER_DTYPE)
    rows["magic"], rows["size"], rows["bodySize"] = layout.MAGIC_NORMAL, size, size - layout.ENTRY_HEADER_SIZE
    rows["index"], rows["term"], rows["pos"] = index, 1, pos
    return rows


HOSTILE: dict[str, Callable[[Path], None]] = {
    "random": random_bytes,
    "zeros": zeros,
    "bodies": entries_in_bodies,
    "bodiesDamaged": partial(entries_in_bodies, with_headers=False),
    "bodiesDamagedInOrder": partial(entries_in_bodies, with_headers=False, steps=True),
    "logsDamaged": partial(entries_in_bodies, with_headers=False, inner=SMALL),
}
# The peer of each: an intact segment with entries of the size that a scan returns.
PEERS = {what: SMALL if what == "logsDamaged" else 1024 for what in HOSTILE}


def verify(name: str) -> Result:
    segment, raw = intact(MESSAGES_1K), intact(RAW_1K)
    gigabytes, raw_gigabytes = survey(segment), survey(raw)
    seconds = alternate({"messages": timed(lambda: survey(segment)), "raw": timed(lambda: survey(raw))})
    detail = {"rawEntriesGBps": rounded(raw_gigabytes / seconds["raw"])}
    return Result(name, gigabytes / seconds["messages"], "GB/s", detail=detail).with_least(2.5)


def resync(name: str) -> Result:
    """The speed relative to an undamaged store, for the slowest kind of reading."""
    whole = intact(MESSAGES_1K)
    broken = made("every-1000th", partial(damaged, whole))
    expected = scan(whole, ("pos",))
    if scan(broken, ("pos",)) != expected:
        raise AssertionError("damage of one entry cost more than one row")
    actions: dict[str, Callable[[Segment], object]] = {
        "survey": survey,
        "headers": partial(scan, columns=HEADER),
        "allColumns": partial(scan, columns=DEFAULT_NAMES),
    }
    speeds = {}
    for what, action in actions.items():
        taken = alternate({"intact": timed(partial(action, whole)), "damaged": timed(partial(action, broken))})
        speeds[what] = tuple(whole.size / 1e9 / taken[side] for side in ("damaged", "intact"))
    value, peer = min(speeds.values(), key=lambda pair: pair[0] / pair[1])
    detail = {what: rounded(ours / theirs) for what, (ours, theirs) in speeds.items()}
    return Result(name, value, "GB/s", "the same undamaged", peer, detail=detail).with_ratio_goal(0.5)


def hostile(name: str) -> Result:
    """The slowest of several hostile files, relative to an intact one of the same size."""
    files = {what: made(what, write) for what, write in HOSTILE.items()}
    peers = {size: made(f"intact-{size}", partial(entries_of, size)) for size in set(PEERS.values())}
    actions: dict[str, Callable[[Segment], object]] = {"survey": survey, "scan": partial(scan, columns=DEFAULT_NAMES)}
    detail: dict[str, float | None] = {}
    speeds = []
    for how, action in actions.items():
        sides = files | {str(size): segment for size, segment in peers.items()}
        taken = alternate({side: timed(partial(action, segment)) for side, segment in sides.items()}, ROUNDS)
        for what, size in PEERS.items():
            speeds.append((HOSTILE_SIZE / 1e9 / taken[what], HOSTILE_SIZE / 1e9 / taken[str(size)]))
            detail[f"{how}.{what}"] = rounded(speeds[-1][0] / speeds[-1][1])
    value, peer = min(speeds, key=lambda pair: pair[0] / pair[1])
    return Result(name, value, "GB/s", "an intact segment", peer, detail=detail)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"verify": verify, "resync": resync, "hostile": hostile}
