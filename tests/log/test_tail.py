"""The tail of a store: its start, the limits of a trigger, and data loss."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import DataLossError, OptionError, StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log import open_log
from pyspark_dledger.log.committed import proven_by_queues
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import read_partition
from pyspark_dledger.log.tail import store_tail as module
from pyspark_dledger.log.tail.store_tail import StoreTail
from pyspark_dledger.log.tail.tail import NOTHING, Limits, TailOffset, offset_from_json, stream_options
from pyspark_dledger.log.tail.tail_view import QueueTails
from pyspark_dledger.store.files.node_files import write_checkpoint
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.crashes import body_of, config
from tests.support.damage import write_at
from tests.support.generate import mq_message, raw, write_commitlog, write_dledger
from tests.support.golden import ALL, Golden, unpack
from tests.support.queues import Unit, file_of, units_of, write_units
from tests.support.sparse_copy import copy_tree
from tests.support.stores import bodies, data_files, opened

NO_LIMITS = Limits()
SIZE = 148  # of each entry of the fixture `store`
COLUMNS = ("source", "index", "term", "pos", "size", "kind", "committed", "body")


def tail_of(path: Path, columns: tuple[str, ...] = COLUMNS, **options: Any) -> StoreTail:
    return StoreTail(str(path), stream_options(parse_options(options), options), columns)


def rows(tail: StoreTail, start: TailOffset, end: TailOffset) -> list[dict[str, Any]]:
    batches = (batch for part in tail.plan(start, end) for batch in read_partition(part))
    return [row for batch in batches for row in batch.to_pylist()]


def indexes(tail: StoreTail, start: TailOffset, end: TailOffset) -> list[int]:
    return [row["index"] for row in rows(tail, start, end)]


def triggers(
    tail: StoreTail, limits: Limits = NO_LIMITS, start: TailOffset = NOTHING
) -> Iterator[tuple[TailOffset, TailOffset]]:
    """Micro-batches until there is nothing new."""
    while (end := tail.latest(start, limits)) != start:
        yield start, end
        start = end


def all_rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in open_log(path).scan(COLUMNS, **options) for row in batch.to_pylist()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MmapFileStore]:
    """Twenty entries of term 1, five in each file, committed up to 11 according to the checkpoint."""
    found = opened(tmp_path)
    found.save_term(1, "n0")
    found.append_as_leader(bodies(0, 20), 1)
    commit(found, 11)
    yield found
    found.shutdown()


def commit(store: MmapFileStore, index: int) -> None:
    store.update_committed_index(store.curr_term, index)
    store.flush()
    store.write_checkpoint()


def path_of(store: MmapFileStore) -> Path:
    return store.config.base_dir


def forget(store: MmapFileStore, last: int) -> None:
    """Truncate the store's log after `last`, as in recovery or as a follower of another log."""
    store.shutdown()
    write_checkpoint(store.config.node_dir, last, last)
    store.startup()
    if store.ledger_end_index > last:
        store.truncate(last + 1)


# Offsets


def test_an_offset_is_the_last_entry_with_the_crc_of_all_its_bytes(store: MmapFileStore) -> None:
    end = tail_of(path_of(store), startingOffsets="earliest").latest(NOTHING, NO_LIMITS)
    found = open_log(path_of(store)).position_of(11)
    file = data_files(store)[found // store.config.data_file_size]
    raw = file.read_bytes()[found % store.config.data_file_size :][:SIZE]
    assert end.to_json() == {"index": 11, "term": 1, "pos": found, "crc": zlib.crc32(raw), "version": 1}


@pytest.mark.parametrize(
    "offset",
    [NOTHING, TailOffset(pos=7), TailOffset(None, None, 7, 2**32 - 1), TailOffset(0, -1, 0, 0)],
    ids=["nothing", "position", "message", "entry"],
)
def test_an_offset_has_the_same_json_after_a_round_trip(offset: TailOffset) -> None:
    text = json.dumps(offset.to_json())
    assert offset_from_json(json.loads(text)) == offset
    assert json.dumps(offset_from_json(json.loads(text)).to_json()) == text


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"index": 1, "version": 1},
        {"index": 1, "term": 1, "pos": 1, "crc": 1},
        {"index": "1", "term": 1, "pos": 1, "crc": 1, "version": 1},
        {"index": True, "term": 1, "pos": 1, "crc": 1, "version": 1},
        {"index": 1, "term": 1, "pos": 1, "crc": None, "version": 1},
        {"index": 1, "term": None, "pos": 1, "crc": 1, "version": 1},
        {"index": None, "term": None, "pos": None, "crc": 1, "version": 1},
        {"index": 1, "term": 1, "pos": 1, "crc": 1, "version": 0},
        {"index": 1, "term": 1, "pos": 1, "crc": 1, "version": "2"},
        [1, 2, 3, 4],
    ],
)
def test_a_malformed_offset_is_rejected(value: Any) -> None:
    with pytest.raises(OptionError, match=r"expected an offset .* in the checkpoint, found"):
        offset_from_json(value)


def test_an_offset_of_a_later_version_is_refused() -> None:
    value = {"index": 5, "term": 1, "pos": 70, "crc": 9, "version": 1}
    assert offset_from_json(value) == TailOffset(5, 1, 70, 9)
    with pytest.raises(OptionError, match=r"at most version 1 in the checkpoint, found version 2, of a later release"):
        offset_from_json({**value, "version": 2, "another": []})


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "5"}, "option endingOffsets has no effect on a stream, only on table log: leave it out"),
        ({"ENDINGTIMESTAMP": "5"}, "option endingTimestamp has no effect on a stream"),
        ({"replicas": "/a"}, "option replicas has no effect on a stream"),
        ({"table": "segments"}, "option table has no effect on a stream, only on spark.read"),
        ({"committedBound": "7"}, "expected committedBound auto, .* found 7"),
        ({"committedBound": "quorum"}, "expected committedBound auto, .* found quorum"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "both given"),
    ],
)
def test_options_of_batch_reads_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        stream_options(parse_options(options), options)


def test_a_stream_begins_at_the_end_and_reads_committed_entries(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store))
    pinned = tail.latest(NOTHING, NO_LIMITS)
    assert pinned.index == 11
    assert rows(tail, NOTHING, pinned) == []
    commit(store, 14)
    end = tail.latest(pinned, NO_LIMITS)
    assert indexes(tail, pinned, end) == [12, 13, 14]
    assert all(row["committed"] is True for row in rows(tail, pinned, end))


# The start


def test_earliest_begins_with_the_first_entry(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == list(range(12))


@pytest.mark.parametrize("start", [0, 4, 5, 11])
def test_an_index_begins_with_that_entry(store: MmapFileStore, start: int) -> None:
    tail = tail_of(path_of(store), startingOffsets=start)
    assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == list(range(start, 12))


def test_a_stream_waits_for_a_starting_index_that_is_not_committed_yet(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="13")
    assert tail.latest(NOTHING, NO_LIMITS) == NOTHING
    commit(store, 15)
    assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == [13, 14, 15]


def test_a_position_begins_with_the_first_row_at_or_after_it(store: MmapFileStore) -> None:
    at = open_log(path_of(store)).position_of(6)
    for pos, first in ((at - 1, 6), (at, 6), (at + 1, 7)):
        tail = tail_of(path_of(store), startingOffsets={"pos": pos})
        assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == list(range(first, 12))


def test_a_timestamp_begins_with_the_first_row_at_or_after_it(case_folder: Callable[[str], Path]) -> None:
    path = case_folder("mq-53-upgrade")
    times = [row["storeTimestamp"] for batch in open_log(path).scan(["storeTimestamp"]) for row in batch.to_pylist()]
    wanted = times[700]
    tail = tail_of(path, startingTimestamp=wanted)
    found = rows(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS))
    first = next(place for place, time in enumerate(times) if time >= wanted)
    assert found == all_rows(path)[first:]


def test_a_stream_waits_for_a_starting_timestamp_that_is_not_reached_yet(case_folder: Callable[[str], Path]) -> None:
    tail = tail_of(case_folder("mq-53-single"), startingTimestamp="2100-01-01")
    assert tail.latest(NOTHING, NO_LIMITS) == NOTHING
    assert tail.latest(NOTHING, NO_LIMITS) == NOTHING


def test_a_start_below_the_first_entry_is_rejected_unless_data_may_be_lost(store: MmapFileStore) -> None:
    store.delete_expired(0, force=True)
    first = store.ledger_begin_index
    assert first == 10
    with pytest.raises(StoreError, match=r"startingOffsets: expected index 3, found the first entry with index 10"):
        tail_of(path_of(store), startingOffsets="3").latest(NOTHING, NO_LIMITS)
    tail = tail_of(path_of(store), startingOffsets="3", failOnDataLoss="false")
    assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == [10, 11]


def test_an_empty_log_pins_the_start_so_that_the_first_entry_is_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save_term(1, "n0")
    store.write_checkpoint()
    pinned = tail_of(tmp_path).latest(NOTHING, NO_LIMITS)
    assert pinned == TailOffset(pos=0)
    store.append_as_leader(bodies(0, 3), 1)
    commit(store, 2)
    tail = tail_of(tmp_path)
    assert indexes(tail, pinned, tail.latest(pinned, NO_LIMITS)) == [0, 1, 2]
    store.shutdown()


# The limits of a trigger


@pytest.mark.parametrize(("entries", "size"), [(5, None), (1, None), (None, 400), (None, 1), (3, 10_000), (100, 296)])
def test_both_limits_are_kept_and_one_entry_is_read_at_least(
    store: MmapFileStore, entries: int | None, size: int | None
) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    seen = []
    for start, end in triggers(tail, Limits(entries, size)):
        found = rows(tail, start, end)
        assert entries is None or len(found) <= entries
        assert size is None or len(found) == 1 or sum(row["size"] for row in found) <= size
        # The next entry would exceed the limit.
        following = len(seen) + len(found)
        if following < 12:
            most = sum(row["size"] for row in found) + SIZE
            assert (entries is not None and len(found) == entries) or (size is not None and most > size)
        seen += [row["index"] for row in found]
    assert seen == list(range(12))


def test_an_available_now_query_reads_nothing_after_its_end(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    until = tail.available()
    commit(store, 19)
    batches = list(triggers(tail, Limits(entries=5, until=until)))
    assert [index for start, end in batches for index in indexes(tail, start, end)] == list(range(12))
    assert batches[-1][1] == until
    assert tail_of(path_of(store)).latest(NOTHING, Limits(until=until)) == until


def test_an_available_now_query_waits_for_the_end_of_the_log(store: MmapFileStore) -> None:
    (store.config.node_dir / "checkpoint").unlink()
    tail = tail_of(path_of(store))
    until = tail.available()
    assert until == NOTHING
    commit(store, 13)
    assert tail.latest(NOTHING, Limits(until=until)).index == 13


def test_an_available_now_query_ends_even_if_its_end_was_overwritten(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    start = tail.latest(NOTHING, Limits(entries=4))
    until = tail.available()
    forget(store, 8)
    store.append_as_leader(bodies(1000, 9), 1)
    commit(store, 14)
    end = tail.latest(start, Limits(until=until))
    assert end.index == 14
    commit(store, 17)
    assert tail.latest(end, Limits(until=until)) == end


GOLDENS = [golden for golden in ALL if golden.case not in ("raw-multipath", "raw-040-snapshot-blank")]


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_micro_batches_of_any_size_have_the_rows_of_a_batch(golden: Golden, case_folder: Callable[[str], Path]) -> None:
    """Old CommitLog, DLedger after it, expired files, stale entries: each committed row once, in order."""
    path = case_folder(golden.case) / golden.folder
    is_unknown = open_log(path).state.committed_index is None
    options = {"committedBound": "end"} if is_unknown else {}
    draw = random.Random(str(golden))
    limits = [Limits(draw.randrange(150, 500)), Limits(draw.choice([None, 300]), size=60_000)]
    expected = all_rows(path, isolationLevel="read_committed", **options)
    for limit in limits:
        found = []
        for start, end in triggers(tail_of(path, startingOffsets="earliest", **options), limit):
            # Each is planned by a new tail, as after a restart.
            found += rows(tail_of(path, startingOffsets="earliest", **options), start, end)
        assert found == expected


def test_offsets_in_old_commitlog_have_no_index(case_folder: Callable[[str], Path]) -> None:
    tail = tail_of(case_folder("mq-53-upgrade"), startingOffsets="earliest")
    ends = [end for _, end in triggers(tail, Limits(entries=100))]
    old = [end for end in ends if end.index is None]
    assert old and all(end.term is None and end.crc is not None and end.pos < 393216 for end in old)
    assert [end.index is None for end in ends] == sorted((end.index is None for end in ends), reverse=True)
    assert ends[-1].index == 538


def test_a_commitlog_that_becomes_dledger_is_followed_into_it(tmp_path: Path) -> None:
    path = unpack("mq-53-upgrade", tmp_path)
    expected = all_rows(path)
    (path / "dledger-n0").rename(tmp_path / "later")
    tail = tail_of(path, startingOffsets="earliest")
    first = tail.latest(NOTHING, NO_LIMITS)
    found = rows(tail, NOTHING, first)
    assert first.index is None and len(found) == 543
    assert tail.latest(first, NO_LIMITS) == first
    (tmp_path / "later").rename(path / "dledger-n0")
    assert found + rows(tail, first, tail.latest(first, NO_LIMITS)) == expected


def test_a_growing_commitlog_has_only_complete_messages(tmp_path: Path) -> None:
    path = unpack("mq-plain", tmp_path)
    expected = all_rows(path)
    files = sorted((path / "commitlog").iterdir())
    whole = {file: file.read_bytes() for file in files}
    for file in files:
        file.write_bytes(bytes(len(whole[file])))
    tail = tail_of(path, startingOffsets="earliest")
    start, found = NOTHING, []
    for file in files:
        for at in range(0, len(whole[file]), 20_001):
            write_at(file, at, whole[file][at : at + 20_001])
            end = tail.latest(start, NO_LIMITS)
            found += rows(tail, start, end)
            assert found == expected[: len(found)]
            # A new reader finds the same end.
            assert tail_of(path, startingOffsets="earliest").latest(start, NO_LIMITS) == end
            start = end
    assert found == expected


def test_a_message_without_properties_is_complete(tmp_path: Path) -> None:
    """Its last bytes are zeros, like those of a message that is being written."""
    path = write_commitlog(tmp_path, [mq_message("T", b"x", properties=[])] * 3).path
    tail = tail_of(path, startingOffsets="earliest")
    assert len(rows(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS))) == 3


def test_damage_is_a_row_of_one_micro_batch(tmp_path: Path) -> None:
    path = unpack("mq-53-three", tmp_path) / "n1"
    write_at(path / "dledger-n1/data/00000000000000393216", 40960, bytes(4096))
    tail = tail_of(path, startingOffsets="earliest")
    found = [row for start, end in triggers(tail, Limits(entries=7)) for row in rows(tail, start, end)]
    expected = all_rows(path, isolationLevel="read_committed")
    assert [row for row in expected if row["kind"] == "corrupt"]
    assert found == expected


def test_damage_at_the_committed_index_shows_nothing_uncommitted(store: MmapFileStore) -> None:
    at = open_log(path_of(store)).position_of(11)
    file_size = store.config.data_file_size
    write_at(data_files(store)[at // file_size], at % file_size, bytes(40))
    tail = tail_of(path_of(store), startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    assert indexes(tail, NOTHING, end) == list(range(11))
    assert tail.latest(end, NO_LIMITS) == end
    commit(store, 13)
    assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == [None, 12, 13]


def test_progress_has_the_committed_index_the_end_and_the_lag(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    end = tail.latest(NOTHING, Limits(entries=4))
    behind = 8 * SIZE
    blanks = 2 * 8
    progress = tail.progress()
    assert (end.index, progress.committed, progress.end, progress.lag_entries) == (3, 11, 19, 8)
    assert behind <= progress.lag_bytes <= behind + blanks
    assert (progress.entries, progress.bytes, progress.expired) == (4, 4 * SIZE, 0)
    last = tail.latest(end, NO_LIMITS)
    progress = tail.progress()
    assert (progress.entries, progress.lag_entries) == (8, 0)
    assert behind <= progress.bytes <= behind + blanks
    tail.latest(last, NO_LIMITS)
    nothing = {"lagEntries": 0, "lagBytes": 0, "entries": 0, "bytes": 0, "expired": 0}
    assert tail.progress().to_json() == {"committed": 11, "end": 19, **nothing}


# What proves an entry committed


def test_a_stream_waits_for_a_committed_index_and_says_so_once(
    store: MmapFileStore, caplog: pytest.LogCaptureFixture
) -> None:
    (store.config.node_dir / "checkpoint").unlink()
    tail = tail_of(path_of(store), startingOffsets="earliest")
    with caplog.at_level(logging.WARNING):
        assert [tail.latest(NOTHING, NO_LIMITS) for _ in range(3)] == [NOTHING] * 3
    assert len(caplog.records) == 1
    assert "expected a committed index, found none" in caplog.text and "committedBound=end" in caplog.text
    commit(store, 13)
    assert tail.latest(NOTHING, NO_LIMITS).index == 13


@pytest.mark.parametrize("case", ["raw-single-040", "raw-040-snapshot-keep"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_stream_over_dledger_040_fails_at_start(case_folder: Callable[[str], Path], case: str, start: str) -> None:
    path = case_folder(case) / "dledger-n0"
    with pytest.raises(StoreError, match=r"0\.4\.0 keeps it in memory only, committedBound=end"):
        tail_of(path, startingOffsets=start).latest(NOTHING, NO_LIMITS)


def test_a_lower_committed_index_is_a_stall_and_not_a_loss(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    write_checkpoint(store.config.node_dir, 5, 19)
    for reader in (tail, tail_of(path_of(store), startingOffsets="earliest")):
        assert reader.latest(end, NO_LIMITS) == end
    (store.config.node_dir / "checkpoint").unlink()
    assert tail.latest(end, NO_LIMITS) == end
    commit(store, 15)
    assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == [12, 13, 14, 15]


def messages(path: Path) -> list[Unit]:
    wanted = ("kind", "topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tags", "storeTimestamp")
    found = [row for batch in open_log(path).scan([*wanted, "transaction"]) for row in batch.to_pylist()]
    for row in found:
        row["storeTimestamp"] = int(row["storeTimestamp"].timestamp() * 1e6)
    return units_of(found)


@pytest.fixture
def broker(tmp_path: Path) -> tuple[Path, list[Unit]]:
    """A broker's store without checkpoint and queues, and the units that its queues had."""
    root = unpack("mq-53-single", tmp_path)
    units = messages(root)
    shutil.rmtree(root / "consumequeue")
    for name in ("checkpoint", "checkpoint.bak"):
        (root / "dledger-n0" / name).unlink(missing_ok=True)
    return root, sorted(units, key=lambda unit: unit.commit_log_offset)


def test_units_that_a_broker_adds_prove_their_messages(broker: tuple[Path, list[Unit]]) -> None:
    """Each refresh finds the new units, in old and new files of old and new queues."""
    root, units = broker
    tail = tail_of(root, startingOffsets="earliest")
    expected = {row["pos"]: row["index"] for row in all_rows(root)}
    start, written = NOTHING, 0
    for count in (1, 1, 30, 200, 0, 300):
        write_units(root, units[written : written + count])
        written += count
        end = tail.latest(start, NO_LIMITS)
        assert end.index == expected[units[written - 1].commit_log_offset - 48]
        start = end


def test_queues_are_read_only_after_their_last_unit(
    broker: tuple[Path, list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, units = broker
    write_units(root, units[:400])
    tails = QueueTails(root)
    tails.refresh()
    for folder in [root / "consumequeue", *(root / "consumequeue").iterdir()]:
        os.utime(folder, (1, 1))  # nothing was added for long
    tails.refresh()
    read: list[tuple[int, int]] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read.append((size, offset)) or pread(fd, size, offset))
    tails.refresh()
    queues = {(unit.topic, unit.queue_id) for unit in units[:400]}
    assert len(read) == len(queues)
    last = {(unit.topic, unit.queue_id): unit for unit in units[:400]}
    at = sorted(unit.queue_offset * CONSUME_QUEUE_UNIT_SIZE % 2000 for unit in last.values())
    assert sorted(offset for _, offset in read) == at


def test_a_stall_costs_a_read_of_one_queue(broker: tuple[Path, list[Unit]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker dispatches in order: while the next entry's unit is missing, no other queue has a new one."""
    root, units = broker
    write_units(root, units[:400])
    tail = tail_of(root, startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    monkeypatch.setattr(QueueTails, "refresh", None)
    assert tail.latest(end, NO_LIMITS) == end
    monkeypatch.undo()
    write_units(root, units[400:402])
    assert indexes(tail, end, tail.latest(end, NO_LIMITS))[-1] > end.index


def test_a_truncated_or_deleted_queue_proves_its_remaining_units(broker: tuple[Path, list[Unit]]) -> None:
    root, units = broker
    write_units(root, units[:300])
    segments = open_log(root).ledger_segments
    tails = QueueTails(root)
    tails.refresh()
    proven = {row["pos"] + 48: row["index"] for row in all_rows(root)}
    assert tails.proven_index(segments, INT64_MAX) == proven[units[299].commit_log_offset]
    last = units[299]
    file = file_of(root, last.topic, last.queue_id, last.queue_offset)
    write_at(file, last.queue_offset * CONSUME_QUEUE_UNIT_SIZE % 2000, bytes(CONSUME_QUEUE_UNIT_SIZE))
    tails.refresh()
    tails.refresh()
    assert tails.proven_index(segments, INT64_MAX) == proven[units[298].commit_log_offset]
    shutil.rmtree(root / "consumequeue" / units[298].topic / str(units[298].queue_id))
    tails.refresh()
    tails.refresh()
    left = [unit for unit in units[:299] if (unit.topic, unit.queue_id) != units[298][:2]]
    assert tails.proven_index(segments, INT64_MAX) == proven[left[-1].commit_log_offset]


def test_a_queue_without_files_is_found_when_it_has_files_again(broker: tuple[Path, list[Unit]]) -> None:
    root, units = broker
    write_units(root, units[:300])
    segments = open_log(root).ledger_segments
    tails = QueueTails(root)
    tails.refresh()
    before = tails.proven_index(segments, INT64_MAX)
    queue = root / "consumequeue" / units[299].topic / str(units[299].queue_id)
    cut = [unit for unit in units[:300] if (unit.topic, unit.queue_id) == units[299][:2]]
    for file in queue.iterdir():
        file.unlink()
    for folder in (root / "consumequeue", queue.parent, queue):
        os.utime(folder, (1, 1))
    tails.refresh()
    tails.refresh()
    assert tails.proven_index(segments, INT64_MAX) < before
    write_units(root, cut)
    tails.refresh()
    assert tails.proven_index(segments, INT64_MAX) == before


def test_a_queue_proves_new_entries_and_not_truncated_ones(store: MmapFileStore) -> None:
    def proven(_: list[Segment], end: int) -> int:
        return 25 if end == INT64_MAX else 7

    log = open_log(path_of(store))
    assert log.end.last_index == 19
    assert proven_by_queues(log, proven) == 7
    store.append_as_leader(bodies(20, 6), 1)
    assert proven_by_queues(log, proven) == 25


# The cost of a refresh


def test_waiting_for_a_position_after_the_end_reads_nothing(
    store: MmapFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = tail_of(path_of(store), startingOffsets={"pos": 10**6})
    monkeypatch.setattr(open_log(path_of(store)).engine, "scan", None)
    assert tail.latest(NOTHING, NO_LIMITS) == NOTHING


def test_a_refresh_walks_only_new_entries(store: MmapFileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, 19)
    tail = tail_of(path_of(store), startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    walked: list[int] = []
    engine = open_log(path_of(store)).engine

    def log_end(segment: Segment, start: int, search_all: bool) -> Any:
        walked.append(start)
        return real(segment, start, search_all)

    real = engine.log_end
    monkeypatch.setattr(engine, "log_end", log_end)
    for name in ("seek", "split", "term_runs", "survey", "scan"):
        monkeypatch.setattr(engine, name, None)  # none of them is called
    assert tail.latest(end, NO_LIMITS) == end
    store.append_as_leader(bodies(20, 2), 1)
    commit(store, 21)
    new = tail.latest(end, NO_LIMITS)
    assert (new.index, {start >= end.pos for start in walked}) == (21, {True})


def test_bytes_left_by_a_truncation_are_searched_once(
    case_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java leaves data and index units of truncated entries; the rest of the file is not searched each time."""
    path = case_folder("raw-truncated-tail") / "dledger-n1"
    tail = tail_of(path, startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    engine = open_log(path).engine
    assert open_log(path).index_files.unit(open_log(path).end.last_index + 1) is not None
    real = engine.log_end
    searched: list[bool] = []
    monkeypatch.setattr(
        engine, "log_end", lambda segment, start, all_: searched.append(all_) or real(segment, start, all_)
    )
    assert [tail.latest(end, NO_LIMITS) for _ in range(3)] == [end] * 3
    assert True not in searched


def test_a_plan_reads_only_its_range(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    first = tail.latest(NOTHING, Limits(entries=7))
    second = tail.latest(first, Limits(entries=3))
    log = open_log(path_of(store))
    ranges = [(part.start, part.end) for planned in tail.plan(first, second) for part in planned.ranges]
    assert ranges == [(log.position_of(7), log.position_of(9) + SIZE)]


def test_large_batches_are_planned_as_partitions(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest", maxPartitionBytes="300")
    end = tail.latest(NOTHING, NO_LIMITS)
    parts = tail.plan(NOTHING, end)
    assert len(parts) >= 4
    assert indexes(tail, NOTHING, end) == list(range(12))


# Data loss


def lost(path: Path, start: TailOffset, caplog: pytest.LogCaptureFixture) -> tuple[str, StoreTail, TailOffset]:
    """The error; and with failOnDataLoss=false, the tail that continues and the end of its next batch."""
    with pytest.raises(DataLossError, match="failOnDataLoss=false") as error:
        tail_of(path, startingOffsets="earliest").latest(start, NO_LIMITS)
    tail = tail_of(path, startingOffsets="earliest", failOnDataLoss="false")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        end = tail.latest(start, NO_LIMITS)
    assert len(caplog.records) == 1, "warned once"
    return str(error.value), tail, end


def test_expired_files_are_noticed(store: MmapFileStore, caplog: pytest.LogCaptureFixture) -> None:
    start = tail_of(path_of(store), startingOffsets="earliest").latest(NOTHING, Limits(entries=3))
    store.delete_expired(0, force=True)
    message, tail, end = lost(path_of(store), start, caplog)
    assert "expected index 3 next, found that the log begins with 10" in message
    assert "indexes 3 to 9 are skipped" in caplog.text
    assert tail.progress().expired == 7, "each is counted once"
    assert indexes(tail, start, end) == [10, 11]


def test_expiry_up_to_the_next_entry_is_not_a_loss(store: MmapFileStore) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest")
    start = tail.latest(NOTHING, Limits(entries=10))
    assert start.index == 9
    store.delete_expired(0, force=True)
    assert store.ledger_begin_index == 10
    for reader in (tail, tail_of(path_of(store), startingOffsets="earliest")):
        assert indexes(reader, start, reader.latest(start, NO_LIMITS)) == [10, 11]


def test_an_entry_of_another_term_is_noticed(store: MmapFileStore, caplog: pytest.LogCaptureFixture) -> None:
    start = tail_of(path_of(store), startingOffsets="earliest").latest(NOTHING, NO_LIMITS)
    forget(store, 8)
    store.save_term(2, "n0")
    store.append_as_leader(bodies(9, 6), 2)
    commit(store, 14)
    message, tail, end = lost(path_of(store), start, caplog)
    assert "expected index 11 (term 1" in message and "found index 11 (term 2" in message
    assert end.index == 8 and rows(tail, start, end) == []
    assert "reading continues with index 9" in caplog.text and "nothing is skipped" in caplog.text
    last = tail.latest(end, NO_LIMITS)
    assert indexes(tail, end, last) == [9, 10, 11, 12, 13, 14]
    assert indexes(tail, start, last) == [9, 10, 11, 12, 13, 14], "as PySpark 4.0 plans it after a restart"


def test_a_later_leader_can_bring_entries_of_an_earlier_term(
    store: MmapFileStore, caplog: pytest.LogCaptureFixture
) -> None:
    forget(store, 8)
    store.save_term(2, "n0")
    store.append_as_leader(bodies(9, 3), 2)
    start = tail_of(path_of(store), startingOffsets="earliest", isolationLevel="read_uncommitted").latest(
        NOTHING, NO_LIMITS
    )
    assert (start.index, start.term) == (11, 2)
    forget(store, 8)
    store.append_as_leader(bodies(9, 1), 1)
    store.save_term(3, "n1")
    store.append_as_leader(bodies(10, 3), 3)
    commit(store, 12)
    _, _, end = lost(path_of(store), start, caplog)
    assert end.index == 9 and "reading continues with index 10" in caplog.text
    assert "nothing tells if others, before index 10, were overwritten" in caplog.text


def test_bytes_that_java_leaves_after_a_truncation_are_not_in_the_log(tmp_path: Path) -> None:
    """After the shorter log of a new leader, the old end and its index units are still in the files."""
    path = write_dledger(tmp_path, [raw(b"x" * 100)] * 20, committed=8).path
    tail = tail_of(path, startingOffsets="earliest")
    uncommitted = tail_of(path, startingOffsets="earliest", isolationLevel="read_uncommitted")
    start, far = (reader.latest(NOTHING, NO_LIMITS) for reader in (tail, uncommitted))
    assert (start.index, far.index) == (8, 19)
    (file,) = (path / "dledger-n0" / "data").iterdir()
    left = file.read_bytes()
    new = [raw(b"x" * 100)] * 9 + [raw(b"y")] * 13
    for count, last in ((11, 9), (22, 20)):
        terms = [1] * 9 + [2] * (count - 9)
        write_dledger(tmp_path, new[:count], terms=terms, committed=last, stale=lambda _: left)
        assert file.read_bytes()[far.pos : far.pos + SIZE] == left[far.pos : far.pos + SIZE]
        end = tail.latest(start, NO_LIMITS)
        assert indexes(tail, start, end) == list(range(start.index + 1, last + 1))
        assert {row["term"] for row in rows(tail, start, end)} == {2}
        for reader in (uncommitted, tail_of(path, isolationLevel="read_uncommitted")):
            with pytest.raises(DataLossError, match=r"expected index 19 \(term 1"):
                reader.latest(far, NO_LIMITS)
        start = end


def test_other_bytes_of_the_same_term_are_noticed(store: MmapFileStore, caplog: pytest.LogCaptureFixture) -> None:
    """A one-node group never raises its term."""
    start = tail_of(path_of(store), startingOffsets="earliest").latest(NOTHING, NO_LIMITS)
    forget(store, 8)
    store.append_as_leader(bodies(1000, 6), 1)
    commit(store, 14)
    message, tail, end = lost(path_of(store), start, caplog)
    assert f"with CRC {start.crc}, found index 11 (term 1" in message
    assert rows(tail, start, end) == []
    assert "continues after index 11" in caplog.text and "overwritten entries up to there are skipped" in caplog.text
    assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == [12, 13, 14]


def test_a_shorter_log_is_noticed(store: MmapFileStore, caplog: pytest.LogCaptureFixture) -> None:
    start = tail_of(path_of(store), startingOffsets="earliest").latest(NOTHING, NO_LIMITS)
    forget(store, 8)
    message, tail, end = lost(path_of(store), start, caplog)
    assert "found that the log ends with index 8" in message
    assert end.index == 8 and rows(tail, start, end) == []
    store.append_as_leader(bodies(9, 2), 1)
    commit(store, 10)
    assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == [9, 10]


def test_a_replaced_store_is_noticed_while_the_tail_runs(
    store: MmapFileStore, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(store)
    tail = tail_of(path, startingOffsets="earliest")
    start = tail.latest(NOTHING, NO_LIMITS)
    store.shutdown()
    shutil.rmtree(path / "dledger-n0")
    store.startup()
    store.save_term(1, "n0")
    store.append_as_leader(bodies(500, 13), 1)
    commit(store, 12)
    with pytest.raises(DataLossError, match=r"found index 11 .* or replaced"):
        tail.latest(start, NO_LIMITS)
    assert lost(path, start, caplog)[2].index == 11


def test_entries_that_are_no_longer_committed_are_not_read_twice(
    store: MmapFileStore, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart, a node's committed index is lower than what the stream has read."""
    start = tail_of(path_of(store), startingOffsets="earliest").latest(NOTHING, NO_LIMITS)
    forget(store, 9)
    write_checkpoint(store.config.node_dir, 4, 9)
    _, tail, end = lost(path_of(store), start, caplog)
    assert end.index == 9 and rows(tail, start, end) == []
    assert tail.latest(end, NO_LIMITS) == end
    store.append_as_leader(bodies(10, 2), 1)
    commit(store, 11)
    assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == [10, 11]


def test_loss_between_a_plan_and_its_retry_is_noticed(store: MmapFileStore) -> None:
    """The batch is in the checkpoint, its end is no longer in the log."""
    tail = tail_of(path_of(store), startingOffsets="earliest")
    start = tail.latest(NOTHING, Limits(entries=5))
    end = tail.latest(start, NO_LIMITS)
    forget(store, 8)
    store.append_as_leader(bodies(1000, 6), 1)
    commit(store, 14)
    with pytest.raises(DataLossError, match="expected index 11"):
        tail_of(path_of(store), startingOffsets="earliest").plan(start, end)
    tolerant = tail_of(path_of(store), startingOffsets="earliest", failOnDataLoss="false")
    assert rows(tolerant, start, end) == []


def test_a_file_that_expires_before_it_is_read_is_noticed(
    store: MmapFileStore, caplog: pytest.LogCaptureFixture
) -> None:
    tail = tail_of(path_of(store), startingOffsets="earliest", failOnDataLoss="false", maxPartitionBytes="300")
    parts = tail.plan(NOTHING, tail.latest(NOTHING, NO_LIMITS))
    store.delete_expired(0, force=True)
    with pytest.raises(DataLossError, match="found the file deleted"):
        list(read_partition(replace(parts[0], fails=True)))
    found = [row for part in parts for batch in read_partition(part) for row in batch.to_pylist()]
    assert [row["index"] for row in found] == [10, 11]
    assert "found the file deleted" in caplog.text and "they are skipped" in caplog.text


def test_an_expired_or_overwritten_old_commitlog_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = unpack("mq-53-upgrade", tmp_path)
    tail = tail_of(path, startingOffsets="earliest")
    start = tail.latest(NOTHING, Limits(entries=100))
    assert start.index is None
    old = sorted((path / "commitlog").iterdir())
    assert len(old) > 2
    old[0].unlink()
    old[1].unlink()
    begin = int(old[2].name)
    message, tail, end = lost(path, start, caplog)
    assert f"found that it begins at pos {begin}" in message
    found = rows(tail, start, end)
    assert found[0]["pos"] == begin and found[-1]["index"] == 538


def test_a_changed_divided_offset_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A position of the old CommitLog is in DLedger now: the first file of data/ begins before the offset."""
    path = unpack("mq-53-upgrade", tmp_path)
    tail = tail_of(path, startingOffsets="earliest")
    start = [end for _, end in triggers(tail, Limits(entries=50)) if end.index is None][-1]
    shutil.rmtree(path / "dledger-n0")
    other = opened(tmp_path / "other", self_id="n0", data_file_size=65536)
    other.save_term(3, "n0")
    base = 65536 * (start.pos // 65536)
    other.reset(0, base)
    other.append_as_leader(bodies(0, 10), 3)
    commit(other, 9)
    other.shutdown()
    copy_tree(tmp_path / "other" / "dledger-n0", path / "dledger-n0")
    message, tail, end = lost(path, start, caplog)
    assert f"found that dividedCommitlogOffset is {base} now" in message
    assert end == TailOffset(pos=base)
    assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == list(range(10))


# Entries that may be incomplete


def torn(store: MmapFileStore) -> tuple[Path, int, bytes]:
    """Truncate the body of the last entry; returns the file, the offset of the missing rest, and the rest."""
    last = data_files(store)[-1]
    at = open_log(path_of(store)).position_of(19) - int(last.name) + 100
    rest = last.read_bytes()[at : at + SIZE - 100]
    write_at(last, at, bytes(len(rest)))
    return last, at, rest


def test_an_uncommitted_entry_without_its_index_unit_is_not_read_yet(store: MmapFileStore) -> None:
    file, at, rest = torn(store)
    index = max((store.config.node_dir / "index").iterdir())
    unit = index.read_bytes()[32 * 9 : 32 * 10]
    write_at(index, 32 * 9, bytes(32))
    tail = tail_of(path_of(store), startingOffsets="earliest", isolationLevel="read_uncommitted")
    first = tail.latest(NOTHING, NO_LIMITS)
    assert first.index == 18
    assert tail.latest(first, NO_LIMITS) == first
    write_at(file, at, rest)
    write_at(index, 32 * 9, unit)
    (row,) = rows(tail, first, tail.latest(first, NO_LIMITS))
    assert (row["body"], row["committed"]) == (bodies(19, 1)[0], False)


def test_without_an_index_an_entry_is_not_read_while_its_bytes_change(
    store: MmapFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, at, rest = torn(store)
    shutil.rmtree(store.config.node_dir / "index")
    monkeypatch.setattr(module.time, "sleep", lambda _: write_at(file, at, rest))
    tail = tail_of(path_of(store), startingOffsets="earliest", committedBound="end")
    first = tail.latest(NOTHING, NO_LIMITS)
    assert first.index == 18
    (row,) = rows(tail, first, tail.latest(first, NO_LIMITS))
    assert row["body"] == bodies(19, 1)[0]


# A store that another process writes


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_store_that_is_written_expired_and_killed_is_read_completely_and_once(tmp_path: Path, flush: str) -> None:
    draw = random.Random(flush)
    reached = -1
    tail = tail_of(tmp_path, ("index", "body"), startingOffsets="earliest")
    start = NOTHING
    seen = 0
    for attempt in range(3):
        child = os.fork()
        if child == 0:
            try:
                write_and_expire(tmp_path, flush, attempt)
            finally:
                os._exit(1)
        try:
            wanted = reached + 400
            while reached < wanted:
                if not (tmp_path / "dledger-n0" / "data").is_dir():
                    continue
                if draw.random() < 0.1:
                    tail = tail_of(tmp_path, ("index", "body"), startingOffsets="earliest")
                end = tail.latest(start, Limits(entries=draw.choice([None, 50, 700])))
                for row in rows(tail, start, end):
                    assert row["index"] == reached + 1, "in order, without a gap"
                    assert row["body"] == body_of(row["index"], 0), "whole"
                    reached, seen = row["index"], seen + 1
                start = end
                if reached >= 0:
                    (tmp_path / "read").write_text(str(reached))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert seen == reached + 1 >= 1200
    assert open_log(tmp_path).state.begin_index > 0, "files expired meanwhile"


def write_and_expire(folder: Path, flush: str, attempt: int) -> None:
    """Write until killed, not too far ahead of the reader; the same bodies in every attempt. Read files expire."""
    store = MmapFileStore(config(folder, flush))
    store.startup(services=True)
    if attempt == 0:
        store.save_term(1, "n0")
    draw = random.Random(attempt)
    while True:
        first, read = store.ledger_end_index + 1, folder / "read"
        reached = int(read.read_text() or -1) if read.exists() else -1
        if first < reached + 1000:
            count = draw.randrange(1, 60)
            store.append_as_leader([body_of(first + number, 0) for number in range(count)], 1)
            if flush == "sync":
                store.flush()
            store.update_committed_index(1, store.ledger_end_index)
        for file, following in pairwise(data_files(store)):
            header = decode_entry_header(following.read_bytes()[:48])
            if header.magic != 1 or header.index > reached:
                break
            os.utime(file, (1, 1))
        store.delete_expired(2, force=False)
