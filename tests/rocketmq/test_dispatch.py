"""Dispatch: ConsumeQueues, the index of keys and the store checkpoint, built from the log as RocketMQ builds them."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_dledger.common.retention import Retention
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.dispatched_rows import Keys
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.key_files import index_files, read_header
from pyspark_dledger.log.io.state_files import StoreCheckpoint, read_store_checkpoint
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.broker.queue_writer import QueueWriter
from pyspark_dledger.rocketmq.broker.root_files import FileCleaner, LogSegments, RootLock, write_store_checkpoint
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchedPart, DispatchSettings, _SkippedEntries
from tests.support.damage import flip, write_at
from tests.support.dispatching import (
    LONG_AGO,
    SMALL,
    STEP_MS,
    Messages,
    abandon,
    audit,
    dispatch,
    dispatcher,
    end_of,
    files_of,
    index_units,
    units,
    with_noise,
)
from tests.support.generate import Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.golden import ALL, Golden
from tests.support.queues import FILLER, java_hash
from tests.support.sparse_copy import copy_tree

BOTH = ("consumequeue", "index")
# What every golden was written with.
JAVA = DispatchSettings(units_per_file=100, hash_slots=500, index_units=1000)
# The first files were deleted, with the messages of some queues and IndexFiles.
EXPIRED = "mq-53-retention"
# 4.5.1 counts slots in its own way: `hashSlotCount` of a header.
OLDEST = "mq-oldest"
GOLDENS = [golden for golden in ALL if not golden.is_raw and not golden.case.startswith("mq-plain")]


def store_of(root: Path, count: int = 60, **more: Any) -> Store:
    return write_dledger(root, with_noise(Messages().some(count)), file_size=4096, **more)


def last(store: Store) -> int:
    return store.rows[-1]["index"]


def cleaner(root: Path) -> FileCleaner:
    files = LogSegments(root, [root / "dledger-n0" / "data"])
    return FileCleaner(root, files, Retention(), QueueWriter(root), IndexWriter(root))


# As RocketMQ


def linked(source: Path, root: Path) -> Path:
    """A root with only the log of another one."""
    root.mkdir()
    for path in source.iterdir():
        if path.name.startswith("dledger-") or path.name == "commitlog":
            (root / path.name).symlink_to(path)
    return root


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_queues_and_index_equal_rocketmqs_byte_for_byte(
    case_folder: Callable[[str], Path], tmp_path: Path, golden: Golden
) -> None:
    source = case_folder(golden.case) / golden.folder
    root = linked(source, tmp_path / "root")
    log = open_log(str(source))
    committed = log.state.committed_index
    assert committed is not None
    dirs = [root / path.relative_to(source) for path in log.paths.data_dirs]
    dispatch(root, log.state.max_offset, committed, settings=JAVA, dirs=dirs)

    assert audit(root, committedBound=committed) == []
    if golden.case == EXPIRED:
        return
    assert files_of(root, "consumequeue") == files_of(source, "consumequeue")
    ours, java = ([path.read_bytes() for path in index_files(each)] for each in (root, source))
    if golden.case == OLDEST:
        ours, java = ([data[:32] + data[36:] for data in files] for files in (ours, java))
    assert ours == java


def test_expired_units_are_fillers_and_the_others_equal_rocketmqs(
    case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = case_folder(EXPIRED)
    root = linked(source, tmp_path / "root")
    state = open_log(str(source)).state
    assert state.committed_index is not None
    dispatch(root, state.max_offset, state.committed_index, settings=JAVA)
    compared = 0
    for name, ours in files_of(root, "consumequeue").items():
        java = (source / name).read_bytes()
        for at in range(0, len(java), 20):
            unit = struct.unpack_from(">qiq", ours, at)
            assert unit == (FILLER if unit == FILLER else struct.unpack_from(">qiq", java, at))
            is_expired = struct.unpack_from(">q", java, at)[0] < state.min_offset and any(java[at : at + 20])
            assert (unit == FILLER) == is_expired
            compared += 1
    assert compared > 1000


def test_an_old_commitlog_is_dispatched_before_dledger(tmp_path: Path) -> None:
    messages = Messages()
    old = write_commitlog(tmp_path, messages.some(20), file_size=2048)
    base = old.segments[-1].end
    store = write_dledger(tmp_path, messages.some(20), file_size=2048, base=base)
    dispatch(tmp_path, store.end, last(store))
    assert audit(tmp_path) == []
    places = {
        row["commitLogOffset"] for row in old.rows + store.rows if row["topic"] == "Orders" and row["queueId"] == 0
    }
    assert {unit[0] for unit in units(tmp_path)} == places


# Contents of queues and index


def test_the_audit_of_dispatched_queues_is_empty(tmp_path: Path) -> None:
    store = store_of(tmp_path, 150)
    dispatch(tmp_path, store.end, last(store))
    assert audit(tmp_path) == []


def test_only_committed_entries_are_dispatched(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    parts = dispatch(tmp_path, store.end, 30)
    assert parts[-1].last_index == 30
    assert parts[-1].end_pos == end_of(store, 30)
    highest = max(unit[0] for queue_id in range(3) for unit in units(tmp_path, "Orders", queue_id))
    assert highest < end_of(store, 30)
    assert max(offset for _, offset in index_units(tmp_path)) < end_of(store, 30)


def test_small_steps_give_the_same_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    store = store_of(one)
    copy_tree(one, other)
    dispatch(one, store.end, last(store))
    parts: list[DispatchedPart] = []
    running = dispatcher(other, parts.append)
    running.recover(store.end, False)
    for index in range(0, last(store) + 1, 3):
        running.committed(index, end_of(store, index) if index % 2 else None)
        running._step()
    running.start()
    running.committed(last(store))
    assert running.stop(60)
    assert files_of(other, "consumequeue") == files_of(one, "consumequeue")
    assert [path.read_bytes() for path in index_files(other)] == [path.read_bytes() for path in index_files(one)]
    # The listener got every entry once, in order.
    parts = [part for part in parts if part.last_index >= 0]
    assert parts[0].first_index == 0
    assert [part.first_index for part in parts[1:]] == [part.last_index + 1 for part in parts[:-1]]
    assert running.dispatched_index == last(store)
    assert running.dispatched_offset == store.end


def test_the_listener_gets_the_ends_of_queues(tmp_path: Path) -> None:
    messages = Messages()
    store = write_dledger(tmp_path, messages.some(60), file_size=4096)
    ends: dict[tuple[str, int], int] = {}
    stored = []
    for part in dispatch(tmp_path, store.end, last(store)):
        ends.update(part.ends)
        stored += [part.first_store_timestamp, part.last_store_timestamp]
    assert ends == {name: count for name, count in messages.next_offsets.items() if count}
    assert stored == sorted(stored)
    assert (stored[0], stored[-1]) == (LONG_AGO + STEP_MS, messages.stored)
    again = dispatcher(tmp_path)
    again.recover(store.end, False)
    assert again.queue_ends == ends
    again.stop()


def test_delayed_messages_have_their_delivery_time_as_tags_code(tmp_path: Path) -> None:
    levels = [("1", 1_000), ("18", 7_200_000), ("25", 7_200_000), ("0", None), ("-1", None), ("x", None), (None, None)]
    payloads = [
        mq_message(
            "SCHEDULE_TOPIC_XXXX",
            queue_offset=number,
            properties=[("TAGS", "t"), *([("DELAY", level)] if level is not None else [])],
        )
        for number, (level, _) in enumerate(levels)
    ]
    store = write_dledger(tmp_path, payloads)
    dispatch(tmp_path, store.end, last(store))
    stored = LONG_AGO
    codes = [unit[2] for unit in units(tmp_path, "SCHEDULE_TOPIC_XXXX")]
    assert codes == [stored + delay if delay is not None else java_hash("t") for _, delay in levels]


def test_a_delay_in_another_topic_is_ignored(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Orders", properties=[("TAGS", "t"), ("DELAY", "3")])])
    dispatch(tmp_path, store.end, 0)
    assert units(tmp_path)[0][2] == java_hash("t")


def test_a_queue_that_begins_inside_a_file_has_fillers_before(tmp_path: Path) -> None:
    payloads = [mq_message("Orders", queue_offset=number) for number in (27, 28)]
    store = write_dledger(tmp_path, payloads, file_size=4096, base=4096)
    dispatch(tmp_path, store.end, 1)
    assert sorted(path.name for path in (tmp_path / "consumequeue/Orders/0").iterdir()) == [f"{20 * 20:020}"]
    assert units(tmp_path)[:7] == [FILLER] * 7
    assert [unit[0] for unit in units(tmp_path)[7:]] == [row["commitLogOffset"] for row in store.rows]


@pytest.mark.parametrize("base", [0, 4096])
def test_gaps_in_a_queue_get_fillers_or_copies_of_the_next_unit(tmp_path: Path, base: int) -> None:
    """For RocketMQ a queue ends at the first unwritten unit, and it would truncate it there.

    With a filler in the same pull it would skip messages in a first file at 0: there copies of the next unit are used.
    """
    numbers = (0, 1, 4, 35)
    payloads = [mq_message("Orders", queue_offset=number) for number in numbers]
    store = write_dledger(tmp_path, payloads, file_size=4096, base=base)
    dispatch(tmp_path, store.end, 3)
    offsets = [row["commitLogOffset"] for row in store.rows]
    first, second = (FILLER[0], FILLER[0]) if base else (offsets[2], offsets[3])
    expected = [*offsets[:2], first, first, offsets[2], *[FILLER[0]] * 25, *[second] * 5, offsets[3]]
    assert [unit[0] for unit in units(tmp_path)] == expected
    before = files_of(tmp_path, "consumequeue")
    write_store_checkpoint(tmp_path, StoreCheckpoint())
    dispatch(tmp_path, store.end, 3, is_unclean=True)
    assert files_of(tmp_path, "consumequeue") == before


def test_of_two_messages_with_one_queue_offset_the_first_stays(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Orders", queue_offset=number) for number in (0, 1, 1, 2)])
    dispatch(tmp_path, store.end, 3)
    offsets = [row["commitLogOffset"] for row in store.rows]
    assert [unit[0] for unit in units(tmp_path)] == [offsets[0], offsets[1], offsets[3]]


@pytest.mark.parametrize("first", [0, 2, 3, 4])
def test_a_message_with_queue_offset_0_is_appended(tmp_path: Path, first: int) -> None:
    """As Java does, which then drops the message with queueOffset 2; also if it is dispatched again."""
    store = write_dledger(tmp_path, [mq_message("Orders", queue_offset=number) for number in (0, 1, 1, 0, 2)])
    for committed in (first, 4):
        dispatch(tmp_path, store.end, committed)
    offsets = [row["commitLogOffset"] for row in store.rows]
    assert [unit[0] for unit in units(tmp_path)] == [offsets[0], offsets[1], offsets[3]]


def test_keys_are_indexed_as_rocketmq_does(tmp_path: Path) -> None:
    properties = [
        [("UNIQ_KEY", "u"), ("KEYS", " a  b a ")],
        [("KEYS", "c")],
        [("UNIQ_KEY", "v")],
        [],
        [("KEYS", "d")],
        [("KEYS", "e")],
        [("KEYS", "键 𝛼")],
    ]
    kinds = ["none", "none", "none", "none", "rollback", "prepared", "commit"]
    store = write_dledger(
        tmp_path,
        [
            mq_message("T", properties=each, transaction=kind, queue_offset=number)
            for number, (each, kind) in enumerate(zip(properties, kinds, strict=True))
        ],
    )
    dispatch(tmp_path, store.end, last(store))
    keys = [(0, "u"), (0, "a"), (0, "b"), (0, "a"), (1, "c"), (2, "v"), (5, "e"), (6, "键"), (6, "𝛼")]
    offsets = [row["commitLogOffset"] for row in store.rows]
    assert index_units(tmp_path) == [(abs(java_hash(f"T#{key}")), offsets[number]) for number, key in keys]


def test_a_new_index_file_follows_a_full_one(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    headers = [read_header(path) for path in index_files(tmp_path)]
    assert len(headers) > 3
    assert [header.index_count for header in headers[:-1] if header] == [SMALL.index_units] * (len(headers) - 1)
    for path in index_files(tmp_path):
        assert path.stat().st_size == 40 + 4 * SMALL.hash_slots + 20 * SMALL.index_units


def test_names_of_index_files_ascend_if_the_clock_goes_back(tmp_path: Path) -> None:
    times = iter([1_700_000_000_000, 1_600_000_000_000, 1_800_000_000_000])
    writer = IndexWriter(tmp_path, hash_slots=3, index_units=3, now=lambda: next(times))
    numbers = np.arange(6)
    writer.put(Keys(numbers, 1_700_000_000_000 + numbers, numbers))
    writer.flush()
    writer.close()
    first, second, third = (int(path.name) for path in index_files(tmp_path))
    assert (second, third > second) == (first + 1, True)


# Other entries and damage


def test_other_entries_are_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    payloads = [
        mq_message("Orders"),
        raw(b"no message"),
        mq_message("../Orders"),
        mq_message(".."),
        mq_message("a/b"),
        mq_message("Orders", queue_id=-1),
        mq_message("Orders", queue_offset=-5),
        mq_message("Orders", queue_offset=1),
    ]
    store = write_dledger(tmp_path / "root", payloads)
    (parts,) = dispatch(tmp_path / "root", store.end, last(store))
    assert parts.last_index == last(store)
    assert len(units(tmp_path / "root")) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"root"}
    assert {path.name for path in (tmp_path / "root" / "consumequeue").iterdir()} == {"Orders"}
    assert "6 entries are in no queue" in caplog.text
    assert f"at {store.rows[1]['pos']}, no message that can be read" in caplog.text


def test_entries_without_a_queue_are_logged_once_and_counted_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that appends them for days adds no record every few seconds."""
    minutes = itertools.count(0, 60)
    monkeypatch.setattr("pyspark_dledger.rocketmq.dispatch.dispatcher.time.monotonic", lambda: next(minutes))
    part: Any = SimpleNamespace(
        rows=SimpleNamespace(skipped=1), segment=SimpleNamespace(path="file"), first_skipped="at 5"
    )
    skipped = _SkippedEntries()
    for _ in range(4):
        skipped.add(part)
    assert caplog.messages == ["1 entry is in no queue: no message of one; the first is file at 5"]
    skipped.report()
    assert caplog.messages[1:] == ["3 entries are in no queue: no message of one; the first is file at 5"]


def test_of_a_damaged_log_only_the_damaged_entry_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = write_dledger(tmp_path, Messages().some(40), file_size=2048)
    bad = store.rows[17]
    file = tmp_path / "dledger-n0" / "data" / bad["segment"]
    data = bytearray(file.read_bytes())
    at = bad["pos"] - int(bad["segment"])
    data[at : at + 12] = b"\xff" * 12
    file.write_bytes(data)
    parts = dispatch(tmp_path, store.end, last(store))
    assert parts[-1].last_index == last(store)
    assert [row["code"] for row in audit(tmp_path)] == []
    assert "1 entry is in no queue" in caplog.text
    assert f"at {bad['pos']}, no message that can be read" in caplog.text


def test_dispatch_passes_a_damaged_end(tmp_path: Path) -> None:
    """A new leader waits until the committed index is dispatched, even if its entry cannot be read."""
    store = write_dledger(tmp_path, Messages().some(20))
    bad = store.rows[-1]
    write_at(tmp_path / "dledger-n0" / "data" / bad["segment"], bad["pos"] - int(bad["segment"]), b"\xff" * 12)
    one = dispatcher(tmp_path)
    one.recover(store.end, False)
    one.committed(last(store), store.end)
    while one._step():
        pass
    assert (one.dispatched_index, one.dispatched_offset) == (last(store), store.end)
    one.stop()


# Restarts


def test_a_restart_continues_after_a_stop(tmp_path: Path) -> None:
    store = store_of(tmp_path, 80)
    dispatch(tmp_path, store.end, 40)
    files = files_of(tmp_path, *BOTH)
    parts = dispatch(tmp_path, store.end, 60)
    # Entries after the last one in a queue are read again.
    assert parts[0].first_index > 40 - 6
    assert dispatch(tmp_path, store.end, last(store))[0].first_index > 60 - 6
    assert all(files_of(tmp_path, *BOTH)[name][:40] for name in files)
    assert audit(tmp_path) == []
    one = tmp_path / "at once"
    store_of(one, 80)
    dispatch(one, store.end, last(store))
    assert files_of(tmp_path, "consumequeue") == files_of(one, "consumequeue")
    assert index_units(tmp_path) == index_units(one)


@pytest.mark.parametrize("kept", [0, 1, 13, 33, 34, 59])
def test_queues_and_index_are_truncated_to_the_end_of_the_log(tmp_path: Path, kept: int) -> None:
    """A log that was truncated, and continued with other messages."""
    before = Messages().some(60)
    store = write_dledger(tmp_path, before, file_size=2048)
    dispatch(tmp_path, store.end, last(store))
    shutil.rmtree(tmp_path / "dledger-n0")
    messages = Messages()
    others = [*messages.some(kept), *messages.some(30, store_host=("10.0.0.9", 1))]
    store = write_dledger(tmp_path, others, file_size=2048)
    end = store.rows[kept]["pos"]
    cut = dispatcher(tmp_path)
    cut.recover(end, False)
    cut.stop()
    assert all(unit[0] < end for queue_id in range(3) for unit in units(tmp_path, "Orders", queue_id))
    assert all(offset < end for _, offset in index_units(tmp_path))

    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    one = tmp_path / "one"
    write_dledger(one, others, file_size=2048)
    dispatch(one, store.end, last(store))
    assert files_of(tmp_path, "consumequeue") == files_of(one, "consumequeue")
    assert index_units(tmp_path) == index_units(one)


@pytest.mark.parametrize("flush_after", [None, 1, 4, 9])
def test_after_a_kill_everything_is_restored(tmp_path: Path, flush_after: int | None) -> None:
    store = store_of(tmp_path, 100)
    abandon(tmp_path, store.end, last(store), flush_after=flush_after)
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    one = tmp_path / "one"
    store_of(one, 100)
    dispatch(one, store.end, last(store))
    assert files_of(tmp_path, "consumequeue") == files_of(one, "consumequeue")
    assert index_units(tmp_path) == index_units(one)


def test_units_lost_in_a_power_loss_are_restored(tmp_path: Path) -> None:
    """Units after the checkpoint that never reached the disk, while other queues have later ones."""
    store = store_of(tmp_path, 100)
    abandon(tmp_path, store.end, last(store), flush_after=5)
    checkpoint = read_store_checkpoint(tmp_path)
    lost = 0
    for path in sorted((tmp_path / "consumequeue/Orders/1").iterdir()):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 20):
            if struct.unpack_from(">q", data, at)[0] >= checkpoint.confirm_phy_offset:
                data[at : at + 20] = bytes(20)
                lost += 1
        path.write_bytes(data)
    assert lost > 5
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    assert audit(tmp_path) == []


def test_after_an_unclean_end_without_checkpoint_everything_is_rebuilt(tmp_path: Path) -> None:
    """As in RocketMQ's own test: an abort file, a checkpoint of zeros, and one file of a queue is missing."""
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    before = files_of(tmp_path, "consumequeue"), index_units(tmp_path)
    write_store_checkpoint(tmp_path, StoreCheckpoint())
    (tmp_path / "consumequeue/Orders/1" / f"{0:020}").unlink()
    shutil.rmtree(tmp_path / "consumequeue/Pays")
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    assert (files_of(tmp_path, "consumequeue"), index_units(tmp_path)) == before


def unclean_start(root: Path, store: Store) -> int:
    """The position where dispatch begins after an unclean end."""
    (first, *_) = dispatch(root, store.end, last(store), is_unclean=True)
    return next(row["pos"] for row in store.rows if row["index"] == first.first_index)


def test_an_unclean_start_begins_just_before_the_end_of_what_the_checkpoint_covers(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    checkpoint = read_store_checkpoint(tmp_path)
    covered = LONG_AGO + 60 * STEP_MS
    write_store_checkpoint(tmp_path, checkpoint._replace(logics_msg_timestamp=covered, confirm_phy_offset=0))
    margin = next(row["pos"] for row in store.rows if (row["storeTimestamp"] or 0) // 1000 > covered - 3000)
    started = unclean_start(tmp_path, store)
    assert margin - 2 * SMALL.chunk_bytes < started <= margin


def test_an_unclean_start_never_begins_too_late_because_of_clocks(tmp_path: Path) -> None:
    """A leader whose clock is slower than that of the leader before it."""
    fast, slow = Messages(LONG_AGO + 10**6), Messages(LONG_AGO)
    payloads = fast.some(40)
    slow.next_offsets = fast.next_offsets
    store = write_dledger(tmp_path, [*payloads, *slow.some(60)], file_size=4096)
    dispatch(tmp_path, end_of(store, 39), 39)
    on_disk = read_store_checkpoint(tmp_path).confirm_phy_offset
    assert on_disk == end_of(store, 39)
    checkpoint = read_store_checkpoint(tmp_path)
    dispatch(tmp_path, store.end, last(store))
    write_store_checkpoint(tmp_path, checkpoint)
    assert unclean_start(tmp_path, store) <= on_disk


def test_index_files_newer_than_the_checkpoint_are_rebuilt(tmp_path: Path) -> None:
    """RocketMQ deletes them; 4.9.8 never rebuilds them."""
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    complete = index_units(tmp_path)
    headers = [read_header(path) for path in index_files(tmp_path)]
    assert headers[1] is not None
    kept = index_files(tmp_path)[1].read_bytes()
    checkpoint = read_store_checkpoint(tmp_path)
    write_store_checkpoint(tmp_path, checkpoint._replace(index_msg_timestamp=headers[1].end_timestamp))
    for path in index_files(tmp_path)[2:]:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))
    # Killed at once, twice: the missing keys must not be forgotten.
    for _ in range(2):
        killed = dispatcher(tmp_path)
        killed.recover(store.end, True)
        assert len(index_files(tmp_path)) == 2
        assert read_store_checkpoint(tmp_path).index_msg_timestamp == headers[1].end_timestamp
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    assert index_files(tmp_path)[1].read_bytes() == kept
    assert index_units(tmp_path) == complete


@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_slots_newer_than_their_header_lead_back_to_older_units(tmp_path: Path, count: int) -> None:
    """Killed between both writes: units that the header does not count are written again, and no chain is lost."""
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    complete = index_units(tmp_path), index_files(tmp_path)[-1].read_bytes()
    path = index_files(tmp_path)[-1]
    fields = list(struct.unpack(">4q2i", path.read_bytes()[:40]))
    last_count = fields[5] - count
    units = path.read_bytes()[40 + 4 * SMALL.hash_slots :]
    fields[5] = last_count
    fields[3] = struct.unpack_from(">q", units, 20 * (last_count - 1) + 4)[0]
    fields[1] = fields[0] + 1000 * struct.unpack_from(">i", units, 20 * (last_count - 1) + 12)[0]
    write_at(path, 0, struct.pack(">4q2i", *fields))
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    assert index_units(tmp_path) == complete[0]
    # All but the number of used slots, which units alone do not show.
    assert index_files(tmp_path)[-1].read_bytes()[40:] == complete[1][40:]


def test_an_inconsistent_index_file_is_rebuilt(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    for at in (20, 28, 39, 41, 45):
        dispatch(tmp_path, store.end, last(store))
        complete = index_units(tmp_path)
        path = index_files(tmp_path)[-1]
        flip(path, at, 0x7F)
        dispatch(tmp_path, store.end, last(store), is_unclean=True)
        assert index_units(tmp_path) == complete
        shutil.rmtree(tmp_path / "index")
        shutil.rmtree(tmp_path / "consumequeue")


def test_a_hole_at_the_end_of_a_queue_is_filled_from_the_log(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    before = files_of(tmp_path, "consumequeue")
    path = max((tmp_path / "consumequeue/Orders/2").iterdir())
    write_at(path, 20, bytes(40))
    dispatch(tmp_path, store.end, last(store))
    assert files_of(tmp_path, "consumequeue") == before


def test_queues_of_another_log_are_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_of(tmp_path, 60)
    dispatch(tmp_path, store.end, last(store))
    shutil.rmtree(tmp_path / "dledger-n0")
    # As many messages, each a little longer: no unit points to one of them.
    store = write_dledger(tmp_path, Messages().some(90, flag=1, born_host=("::1", 1)), file_size=4096)
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    assert "all queues are rebuilt" in caplog.text
    assert audit(tmp_path) == []


def test_a_listener_can_start_before_the_end_of_the_queues(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    before = files_of(tmp_path, *BOTH)
    for wanted in (0, 37, last(store), last(store) + 1):
        parts: list[DispatchedPart] = []
        one = dispatcher(tmp_path, parts.append)
        one.recover(store.end, False, listen_from=wanted)
        one.start()
        one.committed(last(store))
        assert one.stop(60)
        assert (parts[0].first_index if parts else last(store) + 1) <= wanted
        assert wanted < 90 or not parts or parts[0].first_index > 90
        assert files_of(tmp_path, *BOTH) == before


def test_a_listener_that_starts_early_causes_no_unclean_end(tmp_path: Path) -> None:
    store = store_of(tmp_path, 60)
    dispatch(tmp_path, store.end, last(store))
    one = dispatcher(tmp_path)
    one.recover(store.end, False, listen_from=0)
    assert one.stop()
    dispatch(tmp_path, store.end, last(store))
    assert audit(tmp_path) == []


def test_expired_files_do_not_stop_dispatch(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, end_of(store, 9), 9)
    for segment in store.segments[:3]:
        Path(segment.path).unlink()
    begin = store.segments[3].base
    dispatch(tmp_path, store.end, last(store))
    offsets = {row["commitLogOffset"] for row in store.rows if row["topic"] == "Orders" and row["pos"] >= begin}
    found = {unit[0] for queue_id in range(3) for unit in units(tmp_path, "Orders", queue_id)}
    assert offsets <= found
    # Queue files before the hole, which no message can fill, are deleted.
    cleaner(tmp_path).run_once()
    assert audit(tmp_path) == []


@pytest.mark.parametrize("written", range(1, 8))
def test_a_message_whose_keys_fill_several_index_files_is_continued(tmp_path: Path, written: int) -> None:
    offsets = np.array([148, 520, 520, 520, 520, 520, 900])
    keys = Keys(offsets, np.full(7, LONG_AGO), np.arange(1, 8))
    for part in (keys[:written], keys):  # the second time as after an unclean end: all keys are put again
        writer = IndexWriter(tmp_path, hash_slots=7, index_units=3)
        assert writer.sort_out(lambda _: False)[1] == []
        writer.resume()
        writer.put(part)
        writer.flush()
        writer.close()
    assert index_units(tmp_path) == list(zip(range(1, 8), offsets.tolist(), strict=True))


class DispatcherLives:
    """Runs dispatchers on one root, one after the other; some end in a kill or a power loss."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store = root, store
        self.is_unclean = False
        self.committed = -1

    def live(self, committed: int, chunks: int, end: str, flush_after: int, draw: Callable[[int], int]) -> None:
        """Dispatch some chunks up to a committed index, then end ``cleanly``, by a ``kill`` or a ``power`` loss."""
        self.committed = max(self.committed, committed)
        one = dispatcher(self.root)
        one.recover(self.store.end, self.is_unclean)
        one.committed(self.committed)
        before: dict[str, bytes] = {}
        for number in range(chunks):
            if number == flush_after:
                one.flush()
                before = files_of(self.root, *BOTH)
            if not one._step():
                break
        if end == "cleanly":
            self.is_unclean = not one.stop()
            return
        one._queues.close()
        self.is_unclean = True
        if end == "power" and before:
            self._lose_power(before, draw)

    def _lose_power(self, before: dict[str, bytes], draw: Callable[[int], int]) -> None:
        """Of the bytes written since the last flush, some blocks of 20 reached the disk, others did not."""
        for name, data in files_of(self.root, *BOTH).items():
            old = before.get(name, b"").ljust(len(data), b"\0")
            blocks = [(old if draw(3) == 0 else data)[at : at + 20] for at in range(0, len(data), 20)]
            if name not in before and draw(4) == 0:
                (self.root / name).unlink()
            else:
                (self.root / name).write_bytes(b"".join(blocks))


@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("DLEDGER_EXAMPLES", "12")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_queues_and_index_are_complete_after_any_sequence_of_ends(
    folder: Callable[[], Path], data: st.DataObject
) -> None:
    root, other = folder(), folder()
    count = data.draw(st.integers(5, 60))
    store = write_dledger(root, Messages().some(count), file_size=2048)
    write_dledger(other, Messages().some(count), file_size=2048)
    lives = DispatcherLives(root, store)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(data.draw(st.integers(1, 5))):
        end = data.draw(st.sampled_from(["cleanly", "kill", "power"]))
        committed, chunks, flush_after = data.draw(
            st.tuples(st.integers(0, count - 1), st.integers(0, 12), st.integers(0, 12))
        )
        lives.live(committed, chunks, end, flush_after, chance.randrange)
    dispatch(root, store.end, last(store), is_unclean=lives.is_unclean)
    dispatch(other, store.end, last(store))
    assert files_of(root, "consumequeue") == files_of(other, "consumequeue")
    assert index_units(root) == index_units(other)
    assert audit(root) == []


# Failures


def test_writes_to_a_full_disk_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path, 60)
    fails = iter([3, 5, 9, 11, 14, 15, 17, 22, 31, 32, 40])
    count, fail_at, pwrite = 0, next(fails), os.pwrite

    def failing(descriptor: int, data: Any, offset: int) -> int:
        nonlocal count, fail_at
        count += 1
        if count == fail_at:
            fail_at = next(fails, -1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr("pyspark_dledger.rocketmq.dispatch.dispatcher._RETRY_SECONDS", 0.01)
    monkeypatch.setattr(os, "pwrite", failing)
    one = dispatcher(tmp_path)
    one.recover(store.end, False)
    one.committed(last(store))
    while one.dispatched_index < last(store):
        one._try(one._step)
    assert fail_at == -1
    one.start()
    assert one.stop(60)
    other = tmp_path / "other"
    store_of(other, 60)
    dispatch(other, store.end, last(store))
    assert files_of(tmp_path, "consumequeue") == files_of(other, "consumequeue")
    assert [path.read_bytes() for path in index_files(tmp_path)] == [path.read_bytes() for path in index_files(other)]


def test_a_part_is_repeated_after_a_listeners_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_dledger.rocketmq.dispatch.dispatcher._RETRY_SECONDS", 0.01)
    store = store_of(tmp_path, 60)
    taken: list[DispatchedPart] = []
    failures = 0

    def listener(part: DispatchedPart) -> None:
        nonlocal failures
        if part.first_index > 20 and failures < 3:
            failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(part)

    one = dispatcher(tmp_path, listener)
    one.recover(store.end, False)
    one.committed(last(store))
    while one.dispatched_index < last(store):
        one._try(one._step)
    assert failures == 3
    assert one.stop()
    assert [part.first_index for part in taken[1:]] == [part.last_index + 1 for part in taken[:-1]]
    other = tmp_path / "other"
    store_of(other, 60)
    dispatch(other, store.end, last(store))
    assert index_units(tmp_path) == index_units(other)


def test_a_listener_that_fails_ends_dispatch(tmp_path: Path) -> None:
    store = store_of(tmp_path, 60)

    def listener(part: DispatchedPart) -> None:
        raise KeyError(part.first_index)

    one = dispatcher(tmp_path, listener)
    one.recover(store.end, False)
    one.start()
    one.committed(last(store))
    assert not one.stop(60)
    assert one.failure == "KeyError: 0"
    assert one.dispatched_index == -1


def test_an_unfinished_rebuild_of_the_index_is_an_unclean_end(tmp_path: Path) -> None:
    store = store_of(tmp_path, 100)
    dispatch(tmp_path, store.end, last(store))
    complete = index_units(tmp_path)
    write_store_checkpoint(tmp_path, read_store_checkpoint(tmp_path)._replace(index_msg_timestamp=0))
    for steps in (0, 1, 3):
        one = dispatcher(tmp_path)
        one.recover(store.end, True)
        for _ in range(steps):
            assert one._step()
        assert not one.stop(0)
        checkpoint = read_store_checkpoint(tmp_path)
        assert checkpoint.index_msg_timestamp < checkpoint.logics_msg_timestamp
        assert len(index_units(tmp_path)) < len(complete)
    dispatch(tmp_path, store.end, last(store), is_unclean=True)
    assert index_units(tmp_path) == complete


# The store checkpoint, abort and lock


def test_the_store_checkpoint_equals_rocketmqs(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    source = case_folder("mq-498-single")
    java = (source / "checkpoint").read_bytes()
    checkpoint = read_store_checkpoint(source)
    assert (checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp) == (1795230472770, 1795230472336)
    write_store_checkpoint(tmp_path, checkpoint)
    assert (tmp_path / "checkpoint").read_bytes() == java
    assert read_store_checkpoint(tmp_path / "nowhere") == StoreCheckpoint()


def test_the_checkpoint_covers_flushed_files(tmp_path: Path) -> None:
    store = store_of(tmp_path, 60)
    write_store_checkpoint(tmp_path, StoreCheckpoint(master_flushed_offset=77))
    dispatch(tmp_path, store.end, last(store))
    stored = LONG_AGO + 60 * STEP_MS
    assert read_store_checkpoint(tmp_path) == StoreCheckpoint(stored, stored, stored, 77, store.end)


def test_abort_exists_while_a_store_is_open(tmp_path: Path) -> None:
    lock = RootLock(tmp_path)
    assert not lock.acquire()
    assert (tmp_path / "abort").exists()
    with pytest.raises(StoreError, match="the store is open in this process"):
        RootLock(tmp_path).acquire()
    lock.release(is_clean=False)
    assert lock.acquire()
    lock.release(is_clean=True)
    assert not (tmp_path / "abort").exists()
    assert not lock.acquire()
    lock.release(is_clean=True)


def test_the_lock_is_compatible_with_javas(tmp_path: Path) -> None:
    """A POSIX lock of the first byte, like ``FileChannel.tryLock(0, 1, false)``."""
    take = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    lock = RootLock(tmp_path)
    lock.acquire()
    other = [sys.executable, "-c", take, str(tmp_path / "lock")]
    assert subprocess.run(other, capture_output=True, check=False).returncode == 1
    lock.release(is_clean=True)
    assert subprocess.run(other, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "lock").read_bytes() == b"lock"

    holder = subprocess.Popen([*other[:2], take + "; print(flush=True); input()", other[3]], stdin=-1, stdout=-1)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        with pytest.raises(StoreError, match="in use by a broker, a node or a job"):
            lock.acquire()
    finally:
        holder.communicate(b"\n")


# Expired files


def test_files_of_expired_messages_are_deleted_from_queues_and_index(tmp_path: Path) -> None:
    store = store_of(tmp_path, 150)
    dispatch(tmp_path, store.end, last(store))
    for segment in store.segments[:4]:
        Path(segment.path).unlink()
    begin = store.segments[4].base
    one = cleaner(tmp_path)
    cleaned = one.run_once()
    assert cleaned.queue_files > 0
    assert cleaned.index_files > 0
    assert one.run_once() == (0, 0, 0)
    for queue_id in range(3):
        left = units(tmp_path, "Orders", queue_id)
        assert sum(unit[0] < begin for unit in left) < SMALL.units_per_file
    headers = [read_header(path) for path in index_files(tmp_path)]
    assert all(header is not None and header.end_phy_offset >= begin for header in headers)
    assert audit(tmp_path) == []


def test_a_queue_of_expired_messages_keeps_its_queue_offset(tmp_path: Path) -> None:
    messages = Messages()
    old = [messages.make("Rare", 0) for _ in range(25)]
    store = write_dledger(tmp_path, [*old, *messages.some(60)], file_size=2048)
    dispatch(tmp_path, store.end, last(store))
    begin = next(row["pos"] for row in store.rows if row["topic"] == "Orders")
    expired = [segment for segment in store.segments if segment.end <= begin + 4096]
    assert any(row["topic"] == "Rare" for row in store.rows)
    for segment in expired:
        Path(segment.path).unlink()
    cleaner(tmp_path).run_once()
    again = dispatcher(tmp_path)
    again.recover(store.end, False)
    assert again.queue_ends["Rare", 0] == 25
    again.stop()


def test_queue_files_of_several_sizes_are_rejected(tmp_path: Path) -> None:
    store = store_of(tmp_path, 60)
    dispatch(tmp_path, store.end, last(store))
    path = max((tmp_path / "consumequeue/Orders/2").iterdir())
    path.write_bytes(path.read_bytes() + bytes(200))
    with pytest.raises(StoreError, match="expected a ConsumeQueue file of 10 units like most others, found 20"):
        dispatcher(tmp_path)


def test_without_has_index_no_index_is_written(tmp_path: Path) -> None:
    store = store_of(tmp_path, 60)
    dispatch(tmp_path, store.end, last(store), settings=replace(SMALL, has_index=False))
    assert not (tmp_path / "index").exists()
    assert audit(tmp_path) == []


def test_an_hour_out_of_range_is_rejected() -> None:
    with pytest.raises(OptionError, match="found '24'"):
        Retention(delete_when="24")


def test_both_engines_dispatch_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one, other = tmp_path / "native", tmp_path / "python"
    store = store_of(one)
    store_of(other)
    dispatch(one, store.end, last(store))
    dispatch(other, store.end, last(store), settings=replace(SMALL, engine="python"))
    assert files_of(other, "consumequeue") == files_of(one, "consumequeue")
    assert index_units(other) == index_units(one)
