"""A time range leaves parts of the log out, and no row that a full scan has."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pyspark_dledger import open_log
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log import time_ranges
from pyspark_dledger.log.options import option_filters, parse_options
from tests.support.generate import Payload, Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.long_runs import examples, some

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def written(root: Path, chosen: random.Random) -> Store:
    """A log of leaders with clocks hours apart, with messages up to 59 s out of order; or a plain CommitLog."""
    is_ledger = chosen.random() < 0.8
    payloads: list[Payload] = []
    terms: list[int] = []
    now = START_MS
    for term in range(1, chosen.randint(2, 5) if is_ledger else 2):
        clock = chosen.choice((0, 0, -8 * HOUR_MS, 8 * HOUR_MS, -3 * DAY_MS, DAY_MS))
        if is_ledger and chosen.random() < 0.5:
            payloads.append(raw(b"", "noop"))
        for _ in range(chosen.randint(1, 60)):
            now += chosen.choice((0, 1, 1000, 5 * MINUTE_MS, HOUR_MS))
            if is_ledger and chosen.random() < 0.1:
                payloads.append(raw(bytes(chosen.randint(0, 200))))
            else:
                time = now + clock - chosen.choice((0, 0, 0, 59_000))
                payloads.append(mq_message(body=bytes(chosen.randint(0, 300)), store_timestamp=time))
        terms += [term] * (len(payloads) - len(terms))
    size = chosen.choice((700, 2000, 8000))
    if not is_ledger:
        return write_commitlog(root, payloads, file_size=size)
    return write_dledger(root, payloads, file_size=size, terms=terms, with_index=chosen.random() < 0.5)


def damaged(store: Store, chosen: random.Random) -> int:
    """Write wrong bytes into the beginning of one row; returns its position."""
    row = chosen.choice(store.rows)
    (segment,) = [each for each in store.segments if each.base <= row["pos"] < each.end]
    with open(segment.path, "r+b") as file:
        file.seek(row["pos"] - segment.base + chosen.randrange(min(row["size"], 120)))
        file.write(chosen.randbytes(chosen.choice((1, 1, 8))))
    return int(row["pos"])


def all_times(path: Path) -> list[tuple[int, datetime]]:
    batches = open_log(path).scan(["pos", "storeTimestamp"])
    found = [row for batch in batches for row in batch.to_pylist()]
    return [(row["pos"], row["storeTimestamp"]) for row in found if row["storeTimestamp"] is not None]


def between(path: Path, start: datetime, end: datetime) -> list[int]:
    batches = open_log(path).scan(["pos"], startingTimestamp=start, endingTimestamp=end)
    return [pos for batch in batches for pos in batch["pos"].to_pylist()]


def planned(path: Path, **options: object) -> int:
    """Bytes of a plan for all rows that pass."""
    parsed = parse_options(options)
    return sum(part.size for part in open_log(path).plan(("pos",), parsed, option_filters(parsed)))


@pytest.mark.parametrize("seed", some(range(300), examples(8)))
def test_time_range_has_the_rows_of_a_full_scan(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr(time_ranges, "_MIN_BYTES", chosen.choice((200, 2000)))
    store = written(tmp_path, chosen)
    wrong = damaged(store, chosen) if chosen.random() < 0.5 else -1
    times = all_times(tmp_path)
    for _ in range(6):
        first = chosen.choice(times)[1] + timedelta(milliseconds=chosen.choice((-1, 0, 1, HOUR_MS)))
        last = first + timedelta(milliseconds=chosen.choice((0, 1, 10 * MINUTE_MS, HOUR_MS, DAY_MS)))
        wanted = {pos for pos, time in times if first <= time < last} - {wrong}
        assert set(between(tmp_path, first, last)) - {wrong} == wanted, (first, last)


@pytest.mark.parametrize("with_index", [True, False])
def test_part_of_a_segment_is_planned(tmp_path: Path, with_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ranges, "_MIN_BYTES", 1000)
    payloads = [mq_message(body=bytes(100), store_timestamp=START_MS + number * MINUTE_MS) for number in range(1000)]
    write_dledger(tmp_path, payloads, file_size=512 * 1024, with_index=with_index)
    start = _EPOCH + timedelta(milliseconds=START_MS + 500 * MINUTE_MS)
    end = start + timedelta(minutes=10)
    assert len(between(tmp_path, start, end)) == 10
    assert planned(tmp_path, startingTimestamp=start, endingTimestamp=end) < 10_000


def test_clock_tolerance_is_how_far_a_clock_may_go_back(tmp_path: Path) -> None:
    """The clock jumps two hours back within a segment and then forward: its ends do not show that."""
    minutes = [*range(10), *range(-120, -110), *range(10, 300)]
    payloads = [mq_message(body=bytes(50), store_timestamp=START_MS + minute * MINUTE_MS) for minute in minutes]
    write_dledger(tmp_path, payloads, file_size=8192)
    options = {"endingTimestamp": START_MS - HOUR_MS}
    tolerant = open_log(tmp_path).scan(["pos"], **options, clockTolerance="3h")
    assert sum(batch.num_rows for batch in tolerant) == 10
    assert planned(tmp_path, **options) == 0


def test_log_without_messages_is_read_whole(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(bytes(100)) for _ in range(100)], file_size=2048)
    assert planned(tmp_path, startingTimestamp="2100-01-01") > 0.9 * store.end


def test_other_filters_leave_nothing_out(tmp_path: Path) -> None:
    payloads = [mq_message(store_timestamp=START_MS + hour * HOUR_MS) for hour in range(50)]
    write_dledger(tmp_path, payloads, file_size=1024)
    parsed = parse_options({})
    log = open_log(tmp_path)
    sizes = [
        sum(part.size for part in log.plan(("pos",), parsed, filters))
        for filters in (option_filters(parsed), Filters(store_timestamp=IntFilter()))
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("hour", "wrong", "wanted"), [(40, 31, 39), (30, 39, 31)])
def test_one_damaged_time_leaves_nothing_out(tmp_path: Path, hour: int, wrong: int, wanted: int) -> None:
    """The message of an hour begins a segment, and says a wrong hour that its neighbours allow."""
    payloads = [mq_message(body=bytes(800), store_timestamp=START_MS + number * HOUR_MS) for number in range(100)]
    store = write_dledger(tmp_path, payloads, file_size=10 * 1000)
    row = store.rows[hour]
    (segment,) = [each for each in store.segments if each.base == row["pos"]]
    with open(segment.path, "r+b") as file:
        file.seek(48 + 56)
        file.write((START_MS + wrong * HOUR_MS).to_bytes(8, "big"))
    start = _EPOCH + timedelta(milliseconds=START_MS + wanted * HOUR_MS)
    assert store.rows[wanted]["pos"] in between(tmp_path, start, start + timedelta(seconds=1))
