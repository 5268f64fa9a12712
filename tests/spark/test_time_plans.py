"""Plans by time look at few segments. The data source is called without a Spark session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.spark.test_plans import batch, rows, stream
from tests.support.generate import mq_message, write_dledger
from tests.support.opened_files import opened_files

HOUR_MS = 3_600_000
FIRST_HOUR_MS = 1_700_000_000_000
SEGMENTS = 100
MESSAGES = 6  # of one segment of `TIMED_FILE` bytes, ten minutes apart
TIMED_FILE = 1024

# Times


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of `SEGMENTS` segments of one hour each; to be read only."""
    root = tmp_path_factory.mktemp("timed")
    times = range(FIRST_HOUR_MS, FIRST_HOUR_MS + SEGMENTS * HOUR_MS, HOUR_MS // MESSAGES)
    payloads = [mq_message(body=b"%d" % time, store_timestamp=time) for time in times]
    assert len(write_dledger(root, payloads, file_size=TIMED_FILE).segments) == SEGMENTS
    return root


LAST_HOUR = {"startingTimestamp": FIRST_HOUR_MS + (SEGMENTS - 1) * HOUR_MS}
TIMES = {
    "last hour": (LAST_HOUR, MESSAGES),
    "first hour": ({"endingTimestamp": FIRST_HOUR_MS + HOUR_MS}, MESSAGES),
    "an hour between": (
        {"startingTimestamp": FIRST_HOUR_MS + 50 * HOUR_MS, "endingTimestamp": FIRST_HOUR_MS + 51 * HOUR_MS},
        MESSAGES,
    ),
    "future": ({"startingTimestamp": "2100-01-01"}, 0),
    "past": ({"endingTimestamp": "1980-01-01"}, 0),
}

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")


@only_linux
@pytest.mark.parametrize("case", TIMES)
def test_time_range_reads_few_segments(timed: Path, case: str) -> None:
    options, count = TIMES[case]
    planned = batch(timed, **{**options, "maxPartitionBytes": TIMED_FILE})
    with opened_files(timed / "dledger-n0" / "data") as names:
        found = rows(planned)
    assert len(found) == count
    assert len(set(names)) <= 3, f"{len(set(names))} segments are read for {count} rows"


@only_linux
def test_stream_finds_its_starting_time_in_few_segments(timed: Path) -> None:
    """Opening the log may look at each segment once; a binary search of 100 segments looks at 7 of them."""
    opened_by = {}
    for case, options in {"earliest": {}, "last hour": LAST_HOUR}.items():
        with opened_files(timed / "dledger-n0" / "data") as opened_by[case]:
            planned = stream(timed, **{**options, "maxPartitionBytes": TIMED_FILE})
    assert len(rows(planned)) == MESSAGES
    more = len(opened_by["last hour"]) - len(opened_by["earliest"])
    assert more <= 25, f"{more} segments are opened to find the first row"
