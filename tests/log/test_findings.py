"""Findings: for each code of the catalogue, a damaged store that has it and a similar sound one."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyspark_dledger as dl
from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.dispatched_rows import Keys
from pyspark_dledger.log.io import key_files, queue_files
from pyspark_dledger.log.io.queue_files import queues, read_units, written_units
from pyspark_dledger.log.io.state_files import StoreCheckpoint
from pyspark_dledger.log.verify import queue_checks as verify_queues
from pyspark_dledger.log.verify import verify_store
from pyspark_dledger.log.verify.findings import (
    CATALOGUE,
    CODES,
    ERROR,
    INFO,
    SEVERITIES,
    WARNING,
    Finding,
    worst,
)
from pyspark_dledger.log.verify.report import MAX_LISTED
from pyspark_dledger.log.verify.verify_store import plan_findings, read_findings, verify
from pyspark_dledger.rocketmq.broker.index_writer import IndexWriter
from pyspark_dledger.rocketmq.broker.root_files import RootLock
from tests.support import golden
from tests.support.damage import write_at
from tests.support.generate import (
    YEAR_10000,
    Recipe,
    Store,
    damages,
    entries_at,
    mq_message,
    raw,
    recipes,
    write_commitlog,
    write_consume_queue,
    write_dledger,
)
from tests.support.sparse_copy import copy_tree

FILE = 4096
NODE = Path("dledger-n0")
DATA = NODE / "data"
INDEX = NODE / "index"
UNIT = layout.INDEX_UNIT_SIZE
CQ_UNIT = layout.CONSUME_QUEUE_UNIT_SIZE


# Stores

NOW = 1_700_000_000_137


def entries(count: int = 20, size: int = 500) -> list[Any]:
    return [raw(bytes([65 + number % 26]) * size) for number in range(count)]


def messages(count: int, first: int = 0, **given: Any) -> list[Any]:
    numbers = range(first, first + count)
    return [mq_message("Orders", b"body %d" % number, queue_offset=number, **given) for number in numbers]


def plain(root: Path, **options: Any) -> Store:
    """Twenty entries in three files (7, 7 and 6), all committed, with an index of three files."""
    return write_dledger(root, options.pop("payloads", entries()), index_file_size=UNIT * 8, **options)


def broker(root: Path, count: int = 60, **options: Any) -> Store:
    """Messages of one queue in several files, and their ConsumeQueue."""
    store = write_dledger(root, messages(count), **options)
    write_consume_queue(root, store.rows)
    return store


def keyed(root: Path) -> Store:
    """Messages with keys, their ConsumeQueue, and their IndexFile."""
    payloads = [mq_message("Orders", b"x", queue_offset=n, properties=[("UNIQ_KEY", f"K{n}")]) for n in range(20)]
    store = write_dledger(root, payloads)
    write_consume_queue(root, store.rows)
    offsets = np.array([row["commitLogOffset"] for row in store.rows])
    hashes = np.array([key_files.key_hash("Orders", f"K{number}") for number in range(20)])
    writer = IndexWriter(root, 16, 100, now=lambda: NOW)
    writer.put(Keys(offsets, np.full(20, NOW), hashes))
    writer.flush()
    writer.close()
    return store


def test_units_of_tags_are_no_finding(tmp_path: Path) -> None:
    """RocketMQ writes them from 5.5.0 on; those of other tags are wrong."""
    properties = [("UNIQ_KEY", "K"), ("TAGS", "paid")]
    store = write_dledger(tmp_path, [mq_message("Orders", b"x", properties=properties)])
    write_consume_queue(tmp_path, store.rows)
    offset = store.rows[0]["commitLogOffset"]
    for tags in ("paid", "other"):
        hashes = np.array([key_files.key_hash("Orders", key) for key in ("K", f"T#{tags}")])
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        writer = IndexWriter(tmp_path, 16, 100, now=lambda: NOW)
        writer.put(Keys(np.full(2, offset), np.full(2, NOW), hashes))
        writer.flush()
        writer.close()
        found = [finding.code for finding in dl.open_log(tmp_path).findings() if finding.severity == ERROR]
        assert found == ([] if tags == "paid" else ["keyIndexUnit"])


def patch_keys(root: Path, offset: int, data: bytes) -> None:
    (file,) = (root / "index").iterdir()
    write_at(file, offset, data)


def upgraded(root: Path) -> Store:
    """An old CommitLog, filled up to where DLedger begins."""
    old = write_commitlog(root, messages(40))
    divided = FILE * len(old.segments)
    left = divided - old.end
    write_at(Path(old.segments[-1].path), old.end - old.segments[-1].base, filler(left))
    new = write_dledger(root, messages(30, 40), base=divided)
    write_consume_queue(root, [*old.rows, *new.rows])
    return new


def version_040(root: Path, **options: Any) -> Store:
    store = plain(root, checkpoint=False, check_pos=False, **options)
    (root / NODE / "snapshot").mkdir()
    return store


def filler(size: int) -> bytes:
    return size.to_bytes(4, "big") + layout.MESSAGE_MAGIC_BLANK.to_bytes(4, "big", signed=True)


def place(store: Store, number: int) -> tuple[Path, int]:
    """The file of a row, and its offset in the file."""
    pos = store.rows[number]["pos"]
    segment = next(segment for segment in store.segments if segment.base <= pos < segment.end)
    return Path(segment.path), pos - segment.base


def patch_row(store: Store, number: int, offset: int, data: bytes) -> None:
    file, start = place(store, number)
    write_at(file, start + offset, data)


def patch_unit(root: Path, index: int, unit: codec.IndexUnit | None) -> None:
    file = root / INDEX / f"{index // 8 * 8 * UNIT:020}"
    write_at(file, index % 8 * UNIT, codec.encode_index_unit(unit) if unit else bytes(UNIT))


def patch_queue(root: Path, number: int, offset: int, size: int) -> None:
    file = root / "consumequeue/Orders/0" / f"{number // 100 * 2000:020}"
    unit = codec.ConsumeQueueUnit(offset, size, 0)
    write_at(file, number % 100 * CQ_UNIT, codec.encode_consume_queue_unit(unit))


def unit_of(store: Store, number: int, **changes: int) -> codec.IndexUnit:
    row = store.rows[number] | changes
    return codec.IndexUnit(row["magic"], row["pos"], row["size"], row["index"], row["term"])


def write_state(root: Path, name: str, text: str) -> None:
    (root / NODE / name).write_text(text)


def codes_of(path: Path, engine: str = "native", **options: Any) -> list[str]:
    return sorted({finding.code for finding in dl.open_log(path, engine=engine, **options).findings()})


# Each code: a store that has it, and a similar sound one


class Case(NamedTuple):
    """`damaged` and `sound` write a store at a path; `codes` are all of the first and none of the second."""

    codes: set[str]
    damaged: Callable[[Path], object]
    sound: Callable[[Path], object]


def missing_file(root: Path) -> None:
    plain(root)
    (root / DATA / f"{FILE:020}").unlink()


def first_file_expired(root: Path) -> None:
    plain(root)
    (root / DATA / f"{0:020}").unlink()


def far_file(root: Path) -> None:
    plain(root)
    (root / DATA / f"{FILE * 1000:020}").write_bytes(bytes(FILE))


def created_ahead(root: Path) -> None:
    plain(root)
    (root / DATA / f"{FILE * 3:020}").write_bytes(bytes(FILE))


def exchanged_files(root: Path) -> None:
    store = plain(root, payloads=entries(30))
    first, second = (Path(store.segments[number].path) for number in (1, 2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def longer_file(root: Path) -> None:
    store = plain(root)
    with Path(store.segments[1].path).open("ab") as stream:
        stream.write(b"\0")


def short_file(root: Path) -> None:
    store = plain(root)
    os.truncate(store.segments[0].path, FILE - 100)  # inside the blank


def foreign_file(root: Path) -> None:
    plain(root)
    (root / DATA / "notes.txt").write_text("do not touch")


def foreign_folder(root: Path) -> None:
    plain(root)
    (root / INDEX / "old").mkdir()


def folders_of_a_broker(root: Path) -> None:
    broker(root)
    (root / "config").mkdir()
    (root / "lock").write_text("lock")


def dangling_link(root: Path) -> None:
    plain(root)
    (root / DATA / "link").symlink_to(root / "nowhere")


def wrong_magic(root: Path) -> None:
    patch_row(plain(root), 10, 0, b"\x7f")


def entry_in_a_body(root: Path) -> None:
    """Complete entries inside a body, with their own position in the header."""
    payloads = entries()
    payloads[5] = raw(b"")
    store = plain(root, payloads=payloads)
    position = store.rows[10]["pos"] + 48
    patch_row(store, 10, 48, entries_at(position))


def skipped_index(root: Path) -> None:
    patch_row(plain(root), 10, 8, (99).to_bytes(8, "big"))


def index_of_a_short_log(root: Path) -> None:
    plain(root, first_index=100, base=FILE * 20)


def other_file_in_between(root: Path) -> None:
    plain(root)
    other = write_dledger(root.with_name("other"), entries(14), base=FILE, first_index=100)
    shutil.copy(other.segments[0].path, root / DATA / f"{FILE:020}")


def falling_term(root: Path) -> None:
    plain(root, terms=[1] * 10 + [2] + [1] * 9)


def rising_terms(root: Path) -> None:
    plain(root, terms=[1] * 10 + [2] * 5 + [7] * 5)


def header_crc(correct: bool) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        store = plain(root)
        crc = zlib.crc32(store.rows[10]["entryBody"]) if correct else 12345
        patch_row(store, 10, 40, crc.to_bytes(4, "big"))

    return write


def noop(root: Path) -> None:
    plain(root, payloads=[*entries(5), raw(b"", "noop"), *entries(5)])


def noop_as_a_leader_writes_it(root: Path) -> None:
    store = plain(root, payloads=[*entries(5), raw(b"", "noop"), *entries(5)])
    patch_unit(root, 5, unit_of(store, 5, magic=1))


def body_like_a_message(root: Path) -> None:
    body = (200).to_bytes(4, "big") + layout.MESSAGE_MAGIC_V1.to_bytes(4, "big", signed=True) + b"?" * 192
    plain(root, payloads=[*entries(5), raw(body), *entries(5)])


def moved_message(root: Path) -> None:
    patch_row(broker(root), 10, 48 + 28, (77).to_bytes(8, "big"))


def damaged_body(root: Path) -> Store:
    store = broker(root)
    file, offset = place(store, 10)
    at = file.read_bytes().index(b"body 10", offset)
    write_at(file, at, b"B")
    return store


def damaged_and_decided(root: Path) -> None:
    row = {"source": "dledger", "pos": damaged_body(root).rows[10]["pos"], "isSuspect": True}
    (root / "decided.jsonl").write_text(json.dumps(row))


def damaged_old_message(root: Path) -> None:
    store = write_commitlog(root, messages(10, property_crc=True))
    patch_row(store, 5, 12, (3).to_bytes(4, "big"))  # queueId


def blank_of(size: int) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        store = plain(root)
        used = store.rows[6]["pos"] + store.rows[6]["size"]
        write_at(Path(store.segments[0].path), used, codec.encode_blank(size or FILE - used))

    return write


def stale_tail(root: Path) -> None:
    """Entries 18 and 19 of term 1 after a log that was truncated at 17 and then got one entry of term 2."""
    old = plain(root.with_name("before"))
    contents = {segment.base: Path(segment.path).read_bytes() for segment in old.segments}
    plain(root, payloads=entries(18), terms=[1] * 17 + [2], stale=contents.__getitem__)


def noise_after_the_end(root: Path) -> None:
    store = plain(root)
    write_at(Path(store.segments[-1].path), store.end - store.segments[-1].base, b"noise" * 20)


def missing_index_file(number: int) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        plain(root)
        (root / INDEX / f"{UNIT * 8 * number:020}").unlink()

    return write


def no_index(root: Path) -> None:
    plain(root, with_index=False)


def truncated_index_file(root: Path) -> None:
    plain(root)
    os.truncate(root / INDEX / f"{UNIT * 16:020}", 70)


def short_index_of_an_empty_log(root: Path) -> None:
    nothing_committed(root)
    (root / INDEX).mkdir()
    (root / INDEX / f"{0:020}").write_bytes(b"index")


def wrong_unit(root: Path) -> None:
    store = plain(root)
    patch_unit(root, 9, unit_of(store, 9, pos=77))


def stale_units_below_the_log(root: Path) -> None:
    """Units of expired entries, whose data files were deleted."""
    first_file_expired(root)
    patch_unit(root, 2, codec.IndexUnit(1, 5, 6, 7, 8))


def zeroed_units(root: Path) -> None:
    plain(root)
    patch_unit(root, 9, None)
    patch_unit(root, 10, None)


def units_beyond(root: Path) -> None:
    store = plain(root)
    patch_unit(root, 21, unit_of(store, 9, index=21))


def blank_before_the_units(root: Path) -> None:
    """The blank that 0.4.0 writes at the beginning of an index after a snapshot."""
    store = version_040(root, first_index=3, leading_blank=1644)
    assert store.rows[0]["pos"] == 1644
    write_at(root / INDEX / f"{0:020}", 0, codec.encode_blank(3 * UNIT))


def without(name: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        plain(root)
        (root / NODE / name).unlink()

    return write


def renamed(name: str, suffix: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        plain(root)
        (root / NODE / name).rename(root / NODE / f"{name}{suffix}")

    return write


def state(name: str, text: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        plain(root)
        write_state(root, name, text)

    return write


def nothing_committed(root: Path) -> None:
    (root / DATA).mkdir(parents=True)
    write_state(root, "checkpoint", "committedIndex=-1\nendIndex=-1\n")


def gap_before_dledger(root: Path) -> None:
    write_commitlog(root, messages(40))
    write_dledger(root, messages(30), base=FILE * 100)


def unfilled(root: Path) -> None:
    old = write_commitlog(root, messages(40))
    write_dledger(root, messages(30), base=FILE * len(old.segments))


def overlapping(root: Path) -> None:
    write_commitlog(root, messages(40))
    write_dledger(root, messages(30), base=FILE)


TAKEN: list[RootLock] = []


@pytest.fixture(autouse=True)
def release_locks() -> Iterator[None]:
    yield
    while TAKEN:
        TAKEN.pop().unlock()


def used(root: Path) -> None:
    broker(root)
    TAKEN.append(RootLock(root))
    TAKEN[-1].lock()


def lock_of_a_clean_stop(root: Path) -> None:
    used(root)
    TAKEN.pop().unlock()


def misplaced_unit(root: Path) -> None:
    store = broker(root)
    patch_queue(root, 10, store.rows[10]["commitLogOffset"] + 4, store.rows[10]["storeSize"])


def message_without_its_magic(root: Path) -> None:
    patch_row(broker(root), 10, 48 + 4, bytes(4))


def unit_of_another_size(root: Path) -> None:
    store = broker(root)
    patch_queue(root, 10, store.rows[10]["commitLogOffset"], 1)


def another_topic(root: Path) -> None:
    store = broker(root)
    patch_row(store, 10, store.rows[10]["entryBody"].index(b"Orders") + 48, b"B")


def another_queue_offset(root: Path) -> None:
    store = broker(root)
    patch_row(store, 10, 48 + 20, (70).to_bytes(8, "big"))


def messages_in_two_queues(root: Path) -> None:
    """The messages are not damaged."""
    store = broker(root)
    write_consume_queue(root, [row | {"topic": "Other"} for row in store.rows])


def lost_header_and_a_unit_of_another_size(root: Path) -> None:
    store = broker(root)
    patch_row(store, 10, 0, bytes(48))
    patch_queue(root, 10, store.rows[10]["commitLogOffset"], store.rows[10]["storeSize"] + 7)


def zeroed_key_header(root: Path) -> None:
    keyed(root)
    patch_keys(root, 0, bytes(40))


def wrong_key_header(root: Path) -> None:
    keyed(root)
    patch_keys(root, 16, (5).to_bytes(8, "big"))


def wrong_hash(root: Path) -> None:
    keyed(root)
    patch_keys(root, key_files.unit_position(16, 7), (77).to_bytes(4, "big"))


def no_key_files(root: Path) -> None:
    keyed(root)
    shutil.rmtree(root / "index")


def key_of_no_message(root: Path) -> None:
    store = keyed(root)
    patch_keys(root, key_files.unit_position(16, 7) + 4, (store.rows[6]["commitLogOffset"] + 1).to_bytes(8, "big"))


def key_after_the_log(root: Path) -> None:
    keyed(root)
    patch_keys(root, key_files.unit_position(16, 7) + 4, (10**9).to_bytes(8, "big"))


def broker_checkpoint(*values: int) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        keyed(root)
        (root / "checkpoint").write_bytes(b"".join(value.to_bytes(8, "big") for value in values) + bytes(4056))

    return write


def clock_that_went_back(time: int) -> Callable[[Path], None]:
    """A broker's checkpoint has the `time` of a message, after which the leader's clock went back."""

    def write(root: Path) -> None:
        first, second = messages(10, store_timestamp=NOW + 60_000), messages(10, 10, store_timestamp=NOW)
        store = write_dledger(root, [*first, *second])
        write_consume_queue(root, store.rows)
        values = (time, time, time, 0, 0)
        (root / "checkpoint").write_bytes(b"".join(value.to_bytes(8, "big") for value in values) + bytes(4056))

    return write


def short_broker_checkpoint(root: Path) -> None:
    keyed(root)
    (root / "checkpoint").write_bytes(b"garbage")


def offset_of(offset: int) -> Callable[[Path], None]:
    """A consumer group whose offset is in a queue of 60 messages."""

    def write(root: Path) -> None:
        broker(root)
        (root / "config").mkdir()
        table = json.dumps({"offsetTable": {"Orders@billing": {0: offset}}})
        (root / "config" / "consumerOffset.json").write_text(table)

    return write


def config_of(text: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        keyed(root)
        (root / "config").mkdir()
        (root / "config" / "consumerOffset.json").write_text(text)

    return write


def without_first_queue_file(log_file_size: int) -> Callable[[Path], None]:
    """A queue without the file of its first hundred messages."""

    def write(root: Path) -> None:
        broker(root, count=150, file_size=log_file_size)
        (root / "consumequeue/Orders/0" / f"{0:020}").unlink()

    return write


def unit_out_of_order(root: Path) -> None:
    """A unit that points to a message that has another unit."""
    store = broker(root)
    patch_queue(root, 10, store.rows[55]["commitLogOffset"], store.rows[55]["storeSize"])


def two_queues(root: Path) -> Store:
    """Messages of two queues in turn, and a third one after them."""
    payloads = [mq_message("Orders", b"x", queue_id=n % 2, queue_offset=n // 2) for n in range(60)]
    store = write_dledger(root, [*payloads, mq_message("Last", b"x")])
    write_consume_queue(root, store.rows)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Orders":{},"Last":{}}}')
    return store


def missing_queue(root: Path) -> None:
    two_queues(root)
    shutil.rmtree(root / "consumequeue/Orders/1")


def no_queues(root: Path) -> None:
    """The folder of a broker's queues is lost; `config` stays."""
    two_queues(root)
    shutil.rmtree(root / "consumequeue")


def messages_of_a_node_without_a_broker(root: Path) -> None:
    write_dledger(root, [mq_message("Orders", b"x", queue_offset=n) for n in range(60)])
    (root / "lock").touch()


def zeroed_last_units(root: Path) -> None:
    two_queues(root)
    write_at(root / "consumequeue/Orders/1" / f"{0:020}", 20 * CQ_UNIT, bytes(10 * CQ_UNIT))


def deleted_topic(root: Path) -> None:
    two_queues(root)
    shutil.rmtree(root / "consumequeue/Orders")
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Last":{}}}')


def unit_of_zeros(root: Path) -> None:
    broker(root)
    write_at(root / "consumequeue/Orders/0" / f"{0:020}", 10 * CQ_UNIT, bytes(CQ_UNIT))


def another_tags_code(root: Path) -> None:
    broker(root)
    write_at(root / "consumequeue/Orders/0" / f"{0:020}", 10 * CQ_UNIT + 12, (7).to_bytes(8, "big"))


def prepared_message(root: Path) -> Store:
    store = write_dledger(root, [*messages(20), mq_message("Orders", b"x", transaction="prepared")])
    write_consume_queue(root, store.rows[:20])
    return store


def unit_of_a_prepared_message(root: Path) -> None:
    row = prepared_message(root).rows[20]
    patch_queue(root, 20, row["commitLogOffset"], row["storeSize"])


def queue_in_files(root: Path) -> Store:
    return broker(root, count=150)


def cut_queue_file(root: Path) -> None:
    queue_in_files(root)
    os.truncate(root / "consumequeue/Orders/0" / f"{2000:020}", 1000)


def last_file_without_a_unit(root: Path) -> None:
    queue_in_files(root)
    (root / "consumequeue/Orders/0" / f"{4000:020}").write_bytes(bytes(2000))


def topics_of(*topics: str) -> Callable[[Path], None]:
    """A queue of the topic Orders, and a broker's config of some topics."""

    def write(root: Path) -> None:
        broker(root)
        (root / "config").mkdir()
        (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {name: {} for name in topics}}))

    return write


def half_messages_over(hours: int) -> Callable[[Path], None]:
    """Half messages stored in so many hours, of which the broker checked none."""

    def write(root: Path) -> None:
        times = (NOW, NOW + hours * 3_600_000 + 1)
        halves = [
            mq_message(layout.HALF_TOPIC, queue_offset=n, store_timestamp=time, born_timestamp=time)
            for n, time in enumerate(times)
        ]
        write_consume_queue(root, write_dledger(root, halves).rows)
        (root / "config").mkdir()
        table = json.dumps({"offsetTable": {f"{layout.HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: 0}}})
        (root / "config" / "consumerOffset.json").write_text(table)

    return write


def timers(*, offset: int = 48, queue_offset: int = 60) -> Callable[[Path], None]:
    """A unit of the timer log of a message at `offset`, and a checkpoint with a queue offset of the timer topic."""

    def write(root: Path) -> None:
        payloads = [mq_message(layout.TIMER_TOPIC, queue_offset=n) for n in range(60)]
        write_consume_queue(root, write_dledger(root, payloads).rows)
        for name in ("timerlog", "config"):
            (root / name).mkdir()
        unit = struct.pack(">iqiqiqiiq", layout.TIMER_UNIT_SIZE, -1, 1, NOW, 1000, offset, 100, 0, 0)
        (root / "timerlog" / f"{0:020}").write_bytes(unit.ljust(4096, b"\0"))
        (root / "config" / "timercheck").write_bytes(struct.pack(">4q", NOW, 52, queue_offset, queue_offset))

    return write


def messages_after_the_last_unit(root: Path) -> None:
    store = write_dledger(root, messages(60))
    write_consume_queue(root, store.rows[:50])


def repeated_queue_offset(root: Path) -> None:
    store = write_dledger(root, [*messages(20), *messages(1, 5), *messages(20, 20)])
    write_consume_queue(root, [*store.rows[:20], *store.rows[21:]])


def queue_offset_too_far(root: Path) -> None:
    store = write_dledger(root, [*messages(20), *messages(1, 10**6), *messages(20, 20)])
    write_consume_queue(root, [*store.rows[:20], *store.rows[21:]])


def queue_with_an_appended_message(root: Path) -> None:
    """Java appends a message with queueOffset 0, wherever its queue ends."""
    store = write_dledger(root, [*messages(20), *messages(1), *messages(20, 21)])
    write_consume_queue(root, [*store.rows[:20], store.rows[20] | {"queueOffset": 20}, *store.rows[21:]])


def queue_that_began_again(root: Path) -> None:
    """Its topic was deleted and created again."""
    store = write_dledger(root, [*messages(20), *messages(10)])
    write_consume_queue(root, store.rows[20:])


def queue_that_begins_in_a_file(root: Path) -> None:
    """A queue whose first units were never written: Java fills the file up to the first one."""
    store = write_dledger(root, messages(60))
    write_consume_queue(root, store.rows[30:])
    for number in range(30):
        patch_queue(root, number, 0, 0x7FFFFFFF)


def units_beyond_the_log(root: Path) -> None:
    store = broker(root)
    patch_queue(root, 60, store.end + 48, 200)
    patch_queue(root, 61, store.end + 300, 200)


def expired_messages(root: Path) -> None:
    store = broker(root)
    Path(store.segments[0].path).unlink()


def aborted(root: Path) -> None:
    plain(root)
    (root / "abort").touch()


def abort_of_a_clean_stop(root: Path) -> None:
    plain(root)
    (root / "abort.bak").touch()


def controller(epochs: str, confirmed: int = 0) -> Callable[[Path], None]:
    """A store of a broker in controller mode, with an epoch file without CRC."""

    def write(root: Path) -> None:
        write_commitlog(root, messages(10))
        (root / "epochFileCheckpoint").write_text(epochs)
        (root / "checkpoint").write_bytes(StoreCheckpoint(1, confirm_phy_offset=confirmed).pack())

    return write


CASES: dict[str, Case] = {
    "a data file is missing": Case({"fileGap"}, missing_file, first_file_expired),
    "a file far away": Case({"strayFile"}, far_file, created_ahead),
    "two files were exchanged": Case({"fileName", "corruptBytes"}, exchanged_files, plain),
    "a file is longer": Case({"fileSize"}, longer_file, created_ahead),
    "a file is shorter": Case({"shortFile"}, short_file, plain),
    "a foreign file in data/": Case({"foreignFile"}, foreign_file, folders_of_a_broker),
    "a foreign folder in index/": Case({"foreignFile"}, foreign_folder, folders_of_a_broker),
    "a file cannot be read": Case({"unreadableFile"}, dangling_link, plain),
    "wrong magic": Case({"corruptBytes"}, wrong_magic, entry_in_a_body),
    "an index is skipped": Case({"indexGap"}, skipped_index, index_of_a_short_log),
    "a file of another log": Case({"segmentOrder"}, other_file_in_between, first_file_expired),
    "a term falls": Case({"termOrder"}, falling_term, rising_terms),
    "0.4.0's pos": Case({"posDiffers"}, lambda root: version_040(root, pos_shift=100), version_040),
    "channel": Case({"headerField"}, lambda root: patch_row(plain(root), 10, 32, b"\0\0\0\5"), plain),
    "chainCrc": Case({"headerField"}, lambda root: patch_row(plain(root), 10, 36, b"\0\0\0\5"), plain),
    "bodyCrc": Case({"bodyCrc"}, header_crc(False), header_crc(True)),
    "a NOOP": Case({"newerMagic"}, noop, lambda root: plain(root, payloads=[*entries(5), raw(b"")])),
    "a NOOP's unit": Case({"newerMagic", "indexUnitMagic"}, noop_as_a_leader_writes_it, plain),
    "no message": Case({"messageStructure"}, body_like_a_message, plain),
    "a message from elsewhere": Case({"messageOffset"}, moved_message, broker),
    "a damaged body": Case({"messageCrc"}, damaged_body, broker),
    "a damaged body that a salvage was told to take": Case({"decidedCopy"}, damaged_and_decided, broker),
    "a damaged old message": Case(
        {"propertyCrc"}, damaged_old_message, lambda root: write_commitlog(root, messages(10, property_crc=True))
    ),
    "a far time": Case(
        {"messageTimestamp"},
        lambda root: write_dledger(root, messages(5, store_timestamp=YEAR_10000)),
        lambda root: write_dledger(root, messages(5, store_timestamp=YEAR_10000 - 1)),
    ),
    "a blank's size": Case({"blankSize"}, blank_of(100), blank_of(0)),
    "entries after the end": Case({"staleBytes"}, stale_tail, created_ahead),
    "noise after the end": Case({"trailingBytes"}, noise_after_the_end, plain),
    "the first index file is missing": Case({"indexFileMissing"}, missing_index_file(0), index_of_a_short_log),
    "an index file is missing": Case({"indexFileMissing"}, missing_index_file(1), plain),
    "the last index file is missing": Case({"indexFileMissing"}, missing_index_file(2), plain),
    "an index file is cut": Case({"fileSize"}, truncated_index_file, plain),
    "an index of five bytes": Case({"fileSize"}, short_index_of_an_empty_log, nothing_committed),
    "no index at all": Case({"indexFileMissing"}, no_index, nothing_committed),
    "a unit disagrees": Case({"indexUnit"}, wrong_unit, stale_units_below_the_log),
    "units are zeros": Case({"indexUnitMissing"}, zeroed_units, plain),
    "units after the end": Case({"indexUnitsBeyondEnd"}, units_beyond, blank_before_the_units),
    "no checkpoint": Case({"checkpointMissing"}, without("checkpoint"), version_040),
    "only a checkpoint's copy": Case({"checkpointFromBackup"}, renamed("checkpoint", ".bak"), without("checkpoint")),
    "an empty checkpoint": Case({"checkpointUnreadable"}, state("checkpoint", ""), nothing_committed),
    "a checkpoint of noise": Case({"checkpointUnreadable"}, state("checkpoint", "committedIndex=x"), plain),
    "committed beyond the end": Case(
        {"committedBeyondEnd"}, state("checkpoint", "committedIndex=20\nendIndex=19\n"), plain
    ),
    "a later end": Case({"endBeyondLog"}, state("checkpoint", "committedIndex=19\nendIndex=20\n"), plain),
    "a stale checkpoint": Case({"checkpointStale"}, state("checkpoint", "committedIndex=5\nendIndex=5\n"), plain),
    "no currterm": Case({"currtermMissing", "currtermBelowLog"}, without("currterm"), nothing_committed),
    "only a currterm's copy": Case(
        {"currtermFromBackup", "currtermBelowLog"}, renamed("currterm", ".tmp"), without("checkpoint")
    ),
    "a currterm of noise": Case({"currtermUnreadable"}, state("currterm", "currTerm=?"), plain),
    "a currterm with a damaged key": Case(
        {"currtermUnreadable"}, state("currterm", "currTerm=9\nvoteL\x10ader=n0"), state("currterm", "currTerm=9")
    ),
    "an older term": Case({"currtermBelowLog"}, state("currterm", "currTerm=0"), state("currterm", "currTerm=9")),
    "a copy of a state file": Case({"leftoverFile"}, state("checkpoint.bak", "committedIndex=18"), plain),
    "a gap before DLedger": Case({"dividedOffset"}, gap_before_dledger, upgraded),
    "an old log that is not filled": Case({"dividedOffset"}, unfilled, upgraded),
    "old files after the divided offset": Case({"dividedOffset"}, overlapping, upgraded),
    "a unit into a message": Case({"consumeQueueUnit"}, misplaced_unit, broker),
    "a unit of an entry that is no message": Case({"consumeQueueUnit"}, message_without_its_magic, broker),
    "a unit of a later message": Case({"consumeQueuePlace", "messageNotInQueue"}, unit_out_of_order, broker),
    "messages of another queue": Case({"consumeQueuePlace"}, messages_in_two_queues, broker),
    "a unit of a prepared message": Case({"consumeQueuePlace"}, unit_of_a_prepared_message, prepared_message),
    "another tags code": Case({"consumeQueueTags"}, another_tags_code, broker),
    "a unit of zeros": Case({"consumeQueueGap", "messageNotInQueue"}, unit_of_zeros, broker),
    "a queue file of another size": Case({"consumeQueueFileSize"}, cut_queue_file, queue_in_files),
    "a last queue file without a unit": Case({"consumeQueueEmptyFile"}, last_file_without_a_unit, queue_in_files),
    "a topic that no config names": Case({"topicWithoutConfig"}, topics_of("Other"), topics_of("Other", "Orders")),
    "half messages that are not checked": Case(
        {"transactionsUnchecked"}, half_messages_over(24), half_messages_over(23)
    ),
    "a timer after the end": Case({"timerBeyondEnd"}, timers(offset=1 << 40), timers()),
    "a timer checkpoint after the end": Case({"timerQueueBeyondEnd"}, timers(queue_offset=61), timers()),
    "a queue that is missing": Case({"messageNotInQueue"}, missing_queue, two_queues),
    "all queues are missing": Case({"messageNotInQueue"}, no_queues, messages_of_a_node_without_a_broker),
    "a queue without its first file": Case({"expiredFileLeft"}, without_first_queue_file(1 << 14), queue_in_files),
    "a queue without a file of several files of the log": Case(
        {"expiredFileLeft", "messageNotInQueue"}, without_first_queue_file(1 << 13), queue_in_files
    ),
    "a queue without its last units": Case({"messageNotInQueue"}, zeroed_last_units, two_queues),
    "messages after the last unit": Case({"messagesNotDispatched"}, messages_after_the_last_unit, broker),
    "two messages of one queue offset": Case({"queueOffsetRepeated"}, repeated_queue_offset, broker),
    "a message far after its queue": Case({"queueOffsetTooFar"}, queue_offset_too_far, broker),
    "a queue that began again": Case({"queueBeganAgain"}, queue_that_began_again, broker),
    "a topic that was deleted": Case({"topicDeleted"}, deleted_topic, two_queues),
    "a unit of another size": Case({"consumeQueueUnit"}, unit_of_another_size, queue_that_begins_in_a_file),
    "a message of another topic": Case({"messageQueue"}, another_topic, broker),
    "a message of another queue offset": Case({"messageQueue"}, another_queue_offset, queue_with_an_appended_message),
    "units that disagree": Case(
        {"corruptBytes", "consumeQueueUnit", "witnessesDisagree"}, lost_header_and_a_unit_of_another_size, broker
    ),
    "units after the log": Case({"consumeQueueBeyondEnd"}, units_beyond_the_log, broker),
    "units of expired messages": Case({"consumeQueueBelowStart"}, expired_messages, broker),
    "no epochs": Case({"epochFileUnreadable"}, controller("1\n0\n"), controller("1\n0\n1-0\n")),
    "epochs of another store": Case({"epochsWrong"}, controller("2\n0\n1-0\n2-99999\n"), controller("1\n0\n1-0\n")),
    "confirmed after the end": Case(
        {"confirmedBeyondEnd"}, controller("1\n0\n1-0\n", 99999), controller("1\n0\n1-0\n", 1)
    ),
    "messages after the confirmed offset": Case(
        {"unconfirmedTail"}, controller("1\n0\n1-0\n", 1), controller("1\n0\n1-0\n")
    ),
    "a header of zeros": Case({"keyIndexHeader"}, zeroed_key_header, keyed),
    "a header of other keys": Case({"keyIndexHeader"}, wrong_key_header, keyed),
    "no index of keys": Case({"keyIndexMissing"}, no_key_files, broker),
    "a unit of another key": Case({"keyIndexUnit"}, wrong_hash, keyed),
    "a key of no message": Case({"keyIndexUnit"}, key_of_no_message, keyed),
    "a key after the log": Case({"keyIndexBeyondEnd"}, key_after_the_log, keyed),
    "later messages in the broker's checkpoint": Case(
        {"storeCheckpointBeyondEnd"}, broker_checkpoint(NOW + 1, NOW, NOW, 0, 0), broker_checkpoint(NOW, NOW, NOW, 0, 0)
    ),
    "a time of no message in the broker's checkpoint": Case(
        {"storeCheckpointBeyondEnd"}, clock_that_went_back(NOW + 60_001), clock_that_went_back(NOW + 60_000)
    ),
    "an impossible time in the broker's checkpoint": Case(
        {"storeCheckpointBeyondEnd"}, broker_checkpoint(2**62, 0, 0, 0, 0), broker_checkpoint(NOW, 0, 0, 0, 0)
    ),
    "a later end in the broker's checkpoint": Case(
        {"storeCheckpointBeyondEnd"}, broker_checkpoint(0, 0, 0, 10**9, 0), broker_checkpoint(1, 0, 0, 0, 0)
    ),
    "a broker's checkpoint that is cut": Case(
        {"storeCheckpointShort"}, short_broker_checkpoint, broker_checkpoint(1, 0, 0, 0, 0)
    ),
    "a broker's checkpoint of zeros": Case(
        {"storeCheckpointEmpty"}, broker_checkpoint(0, 0, 0, 0, 0), broker_checkpoint(1, 0, 0, 0, 0)
    ),
    "a config that is cut": Case({"configInvalid"}, config_of('{"offsetTable":{'), config_of('{"offsetTable":{0:1}}')),
    "an offset after the end of its queue": Case({"consumerOffsetBeyondEnd"}, offset_of(61), offset_of(60)),
    "abort": Case({"abortFile"}, aborted, abort_of_a_clean_stop),
    "a lock that is taken": Case({"storeInUse"}, used, lock_of_a_clean_stop),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_damage_has_its_codes(tmp_path: Path, engine: str, name: str) -> None:
    case = CASES[name]
    case.damaged(tmp_path / "root")
    assert codes_of(tmp_path / "root", engine) == sorted(case.codes)


@pytest.mark.parametrize("name", CASES)
def test_a_similar_sound_store_has_no_such_code(tmp_path: Path, engine: str, name: str) -> None:
    case = CASES[name]
    case.sound(tmp_path / "root")
    found = set(codes_of(tmp_path / "root", engine))
    assert not found & case.codes
    assert all(CODES[code].severity == INFO for code in found)


OF_ROCKSDB = {"consumeQueuesDiffer", "consumeQueueBounds", "consumerOffsetUnused", "messageBeforeDatabase"}
"""A RocksDB needs an extra: tests/rocketmq/test_rocksdb.py and test_rocks_config.py have these cases."""


def test_every_code_has_a_case() -> None:
    assert set().union(*(case.codes for case in CASES.values())) == set(CODES) - OF_ROCKSDB


@pytest.mark.parametrize("is_listed", [False, True])
def test_nothing_is_known_of_a_message_whose_filler_is_last(tmp_path: Path, is_listed: bool) -> None:
    """A small filler has only a part of the topic of fillers."""
    last = mq_message("DLEDG", b"", store_timestamp=0, transaction="rollback")
    store = write_dledger(tmp_path, [*messages(5, store_timestamp=NOW), last])
    (tmp_path / "checkpoint").write_bytes(StoreCheckpoint(NOW + 1, NOW, NOW).pack())
    if is_listed:
        (tmp_path / "lost.jsonl").write_text(json.dumps({"pos": store.rows[-1]["pos"]}))
    assert ("storeCheckpointBeyondEnd" in codes_of(tmp_path)) != is_listed


def test_queues_that_are_missing_are_one_finding_of_each_segment_with_a_count(tmp_path: Path, engine: str) -> None:
    no_queues(tmp_path)
    found = [each for each in dl.open_log(tmp_path, engine=engine).findings() if each.code == "messageNotInQueue"]
    assert {(each.file, each.found) for each in found} == {("consumequeue", "no queue")}
    assert len(found) == len(list(tmp_path.glob("dledger-*/data/*")))
    assert found[0].expected is not None and "messages of 2 queues" in found[0].expected


def test_the_catalogue_is_well_formed() -> None:
    assert len(CODES) == len(CATALOGUE)
    for code in CATALOGUE:
        assert re.fullmatch("[a-z]+([A-Z][a-z]+)*", code.code)
        assert code.severity in SEVERITIES
        assert code.text.endswith(".") and code.java_does.endswith(".")


_ACTIONS = re.compile(
    "Compare replicas|Copy|Move|Name it|Check its|Replace|Rename|[Rr]un dledger|Stop the|stop the\\sbroker|Start|Send|"
    "Write the lines|Nothing is lost"
)


def test_each_warning_and_error_says_what_to_do() -> None:
    assert [code.code for code in CATALOGUE if code.severity != INFO and not _ACTIONS.search(code.text)] == []


def test_the_fields_are_the_columns_of_the_table() -> None:
    columns = ["severity", "code", "node", "file", "offset", "index", "pos", "size", "expected", "found", "java_does"]
    assert [field.name for field in fields(Finding)] == columns


# Exact fields


def found(path: Path, engine: str, code: str, **options: Any) -> Finding:
    (finding,) = (f for f in dl.open_log(path, engine=engine, **options).findings() if f.code == code)
    assert (finding.severity, finding.java_does) == (CODES[code].severity, CODES[code].java_does)
    return finding


def test_corrupt_bytes_are_where_a_hex_editor_shows_them(tmp_path: Path, engine: str) -> None:
    store = plain(tmp_path)
    patch_row(store, 10, 0, b"\x7f")
    finding = found(tmp_path, engine, "corruptBytes")
    assert (finding.severity, finding.node, finding.index) == ("error", "n0", None)
    assert finding.file == f"dledger-n0/data/{FILE:020}"
    assert finding.offset == 3 * 548
    assert finding.expected == f"magic 1, 2, 3 or -1 at {FILE + 3 * 548}"
    assert finding.found == str(0x7F000001)


def test_an_index_unit_has_its_offset_in_the_index_file(tmp_path: Path, engine: str) -> None:
    wrong_unit(tmp_path)
    finding = found(tmp_path, engine, "indexUnit")
    assert (finding.file, finding.offset, finding.index) == (f"dledger-n0/index/{8 * UNIT:020}", UNIT, 9)
    assert (finding.expected, finding.found) == (f"pos {FILE + 2 * 548}", "pos 77")


def test_units_that_are_zeros_are_one_finding(tmp_path: Path, engine: str) -> None:
    zeroed_units(tmp_path)
    finding = found(tmp_path, engine, "indexUnitMissing")
    assert (finding.offset, finding.index) == (UNIT, 9)
    assert (finding.expected, finding.found) == ("the units of index 9 to 10", "zeros")


def test_a_queue_unit_has_its_offset_in_the_queue_file(tmp_path: Path, engine: str) -> None:
    store = broker(tmp_path)
    row = store.rows[10]
    patch_queue(tmp_path, 10, row["commitLogOffset"], 1)
    finding = found(tmp_path, engine, "consumeQueueUnit")
    assert (finding.file, finding.offset, finding.index) == (f"consumequeue/Orders/0/{0:020}", 10 * CQ_UNIT, 10)
    assert finding.expected == f"a message of 1 bytes at commitLogOffset {row['commitLogOffset']} (queue offset 10)"
    assert finding.found == f"one of {row['storeSize']} bytes"


def test_a_stray_file_is_named_and_not_its_neighbours(tmp_path: Path, engine: str) -> None:
    plain(tmp_path)
    (tmp_path / DATA / f"{5000:020}").write_bytes(bytes(FILE))
    findings = dl.open_log(tmp_path, engine=engine).findings()
    assert [f.file for f in findings if f.code == "strayFile"] == [f"dledger-n0/data/{5000:020}"]
    assert not [f for f in findings if f.code in ("fileGap", "fileSize")]


def test_a_gap_names_the_first_missing_file(tmp_path: Path, engine: str) -> None:
    plain(tmp_path, payloads=entries(40))
    for number in (1, 2):
        (tmp_path / DATA / f"{FILE * number:020}").unlink()
    finding = found(tmp_path, engine, "fileGap")
    assert (finding.file, finding.offset) == (f"dledger-n0/data/{FILE:020}", None)
    assert finding.expected == f"2 files of {FILE} bytes up to {FILE * 3}"


def test_a_file_outside_the_root_has_its_whole_path(tmp_path: Path, engine: str) -> None:
    store = plain(tmp_path / "root")
    patch_row(store, 10, 0, b"\x7f")
    folders = [tmp_path / "disk0", tmp_path / "disk1"]
    for number, segment in enumerate(store.segments):
        folders[number % 2].mkdir(exist_ok=True)
        shutil.move(segment.path, folders[number % 2])
    (tmp_path / "root" / DATA).rmdir()
    finding = found(tmp_path / "root", engine, "corruptBytes", dataDirs=[str(folder) for folder in folders])
    assert finding.file == str(folders[1] / f"{FILE:020}")


def test_a_stale_checkpoint_names_the_index_that_the_consume_queue_proves(tmp_path: Path, engine: str) -> None:
    broker(tmp_path, committed=20)
    finding = found(tmp_path, engine, "checkpointStale")
    assert (finding.expected, finding.found) == ("committedIndex 59, as the ConsumeQueue proves", "20")


# Parts of stores


@pytest.mark.parametrize("part", ["", "dledger-n0", "dledger-n0/data", f"dledger-n0/data/{FILE:020}"])
def test_every_path_of_a_store_verifies(tmp_path: Path, engine: str, part: str) -> None:
    root = tmp_path / "root"
    plain(root)
    assert codes_of(root / part, engine) == []
    patch_unit(root, 9, None)
    assert codes_of(root / part, engine) == ["indexUnitMissing"]


def test_a_node_with_an_old_commitlog_lacks_no_units(tmp_path: Path, engine: str) -> None:
    upgraded(tmp_path)
    assert codes_of(tmp_path / NODE, engine) == codes_of(tmp_path / "commitlog", engine) == []


def test_queues_of_a_root_with_several_nodes_are_not_checked(tmp_path: Path, engine: str) -> None:
    """With several nodes in one root, it is not known whose messages the queues have."""
    broker(tmp_path)
    write_dledger(tmp_path, entries(3), node="n1")
    assert codes_of(tmp_path, engine, selfId="n1") == []


# A store in use


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_write_in_progress_is_no_finding(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """An append is half written when the file is read, and whole some milliseconds later."""
    store = plain(tmp_path, committed=10, with_index=False)
    file, _ = place(store, 19)
    whole = file.read_bytes()
    patch_row(store, 19, 20, bytes(528))
    monkeypatch.setattr(verify_store.time, "sleep", lambda _: file.write_bytes(whole) if goes_on else None)
    assert ("trailingBytes" in codes_of(tmp_path, engine)) == (not goes_on)


def test_damage_of_a_store_in_use_is_a_finding(tmp_path: Path, engine: str) -> None:
    used(tmp_path)
    patch_queue(tmp_path, 10, 1, 1)
    assert codes_of(tmp_path, engine) == ["consumeQueueUnit", "storeInUse"]


# The whole verification


def test_parts_are_picklable_and_together_have_all_findings(tmp_path: Path, engine: str) -> None:
    store = broker(tmp_path)
    patch_queue(tmp_path, 10, 1, 1)
    patch_row(store, 30, 0, b"?")
    log = dl.open_log(tmp_path, engine=engine)
    parts = [pickle.loads(pickle.dumps(part)) for part in plan_findings(log)]
    assert len(parts) == 1 + len(store.segments)
    assert [finding for part in parts for finding in read_findings(part)] == log.findings() != []


def test_progress_counts_the_bytes_of_the_log(tmp_path: Path) -> None:
    store = plain(tmp_path)
    calls: list[tuple[int, int]] = []
    assert list(verify(dl.open_log(tmp_path), lambda done, total: calls.append((done, total)))) == []
    total = FILE * len(store.segments)
    assert calls == [(0, total), *((FILE * number, total) for number in range(len(store.segments))), (total, total)]


def test_at_most_some_findings_are_listed_for_each_code_and_file(tmp_path: Path, engine: str) -> None:
    store = write_dledger(tmp_path, [raw(b"x")] * 170, file_size=2**14, index_file_size=2**14)
    for number in range(150):
        patch_row(store, number, 32, b"\0\0\0\5")
        write_at(tmp_path / INDEX / f"{0:020}", number * UNIT + 4, b"\0\1")
    findings = dl.open_log(tmp_path, engine=engine).findings()
    for code in ("headerField", "indexUnit"):
        listed = [finding for finding in findings if finding.code == code]
        assert len(listed) == MAX_LISTED + 1
        assert [finding.index for finding in listed[:-1]] == list(range(MAX_LISTED))
        assert (listed[-1].found, listed[-1].offset, listed[-1].index) == ("50 more", None, None)
        assert listed[-1].severity == CODES[code].severity
        assert [finding.count for finding in listed] == [1] * MAX_LISTED + [50]


def test_units_of_a_completely_wrong_queue_are_counted(tmp_path: Path, engine: str) -> None:
    store = broker(tmp_path, count=300)
    for number, row in enumerate(store.rows):
        patch_queue(tmp_path, number, row["commitLogOffset"] + 1, row["storeSize"])
    findings = dl.open_log(tmp_path, engine=engine).findings()
    assert len(findings) == 300 and {finding.code for finding in findings} == {"consumeQueueUnit"}


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 700, FILE * 3])
def test_queues_are_checked_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Wrong and misplaced units are found with any window size."""
    monkeypatch.setattr(verify_queues, "_WINDOW", window)
    monkeypatch.setattr(queue_files, "UNITS_AT_ONCE", 7)
    numbers = [(queue_id, n) for n in range(120) for queue_id in ([0] if n % 3 else [0, 1])]
    payloads = [mq_message("Orders", b"x", queue_id=q, queue_offset=n // 3 if q else n) for q, n in numbers]
    store = write_dledger(tmp_path, payloads)
    write_consume_queue(tmp_path, store.rows)
    assert codes_of(tmp_path) == []
    wrong = {4: 5, 40: 0, 77: store.end * 5, 101: -9, 119: 2**62}
    for number, offset in wrong.items():
        patch_queue(tmp_path, number, offset, 100)
    patch_queue(tmp_path, 61, store.rows[7]["commitLogOffset"], store.rows[7]["storeSize"])
    found: dict[str, set[int]] = {}
    for finding in dl.open_log(tmp_path).findings():
        assert "/0/" in finding.file
        found.setdefault(finding.code, set()).add(finding.offset // CQ_UNIT)
    units = found.pop("consumeQueueUnit") | found.pop("consumeQueueBeyondEnd")
    assert units == {number % 100 for number in wrong}
    assert found == {"consumeQueuePlace": {61}, "messageNotInQueue": {61}}


def test_a_file_that_is_deleted_meanwhile_is_a_finding(tmp_path: Path, engine: str) -> None:
    store = plain(tmp_path)
    parts = plan_findings(dl.open_log(tmp_path, engine=engine))
    Path(store.segments[1].path).unlink()
    (finding,) = read_findings(parts[2])
    assert (finding.code, finding.file) == ("unreadableFile", f"dledger-n0/data/{FILE:020}")
    assert finding.found == "cannot be opened: No such file or directory"


def test_a_pipe_is_not_waited_for(tmp_path: Path, engine: str) -> None:
    plain(tmp_path)
    os.mkfifo(tmp_path / DATA / f"{FILE * 3:020}")
    (tmp_path / NODE / "checkpoint").unlink()
    os.mkfifo(tmp_path / NODE / "checkpoint")
    assert set(codes_of(tmp_path, engine)) == {"foreignFile", "unreadableFile"}


def test_verifying_writes_nothing(tmp_path: Path, engine: str) -> None:
    broker(tmp_path)
    before = golden.fingerprint(tmp_path)
    codes_of(tmp_path, engine)
    assert golden.fingerprint(tmp_path) == before


# Any store


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(recipes().filter(lambda recipe: recipe.payloads))
def test_a_store_as_written_is_sound(tmp_path: Path, recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        for name in ("with_index", "stale"):
            recipe.options.pop(name, None)
        recipe.write(Path(folder))
        if not recipe.options.get("check_pos", True):
            (Path(folder) / NODE / "snapshot").mkdir()
        found = {engine: codes_of(Path(folder), engine) for engine in ("native", "python")}
    assert found["native"] == found["python"]
    # Messages of any time and entries of any version are generated.
    assert all(CODES[code].severity == INFO for code in found["native"])


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(recipes(), damages())
def test_no_damage_raises(tmp_path: Path, recipe: Recipe, damage: Callable[[Store], None]) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        recipe.options.pop("with_index", None)
        damage(recipe.write(Path(folder)))
        native, python = (dl.open_log(folder, engine=engine).findings() for engine in ("native", "python"))
    assert native == python


def overwritten(path: Path, share: float, data: bytes) -> None:
    """Overwrite bytes of a file; without bytes, truncate it."""
    at = int(share * path.stat().st_size)
    if data:
        write_at(path, at, data)
    else:
        os.truncate(path, at)


WRITTEN = st.one_of(
    st.just(b""),
    st.binary(min_size=1, max_size=40),
    st.integers(1, 3000).map(bytes),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: number.to_bytes(8, "big", signed=True)),
)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1), WRITTEN), min_size=1, max_size=5))
def test_no_damage_of_any_file_raises(tmp_path: Path, written: list[tuple[float, float, bytes]]) -> None:
    """Index, ConsumeQueue, state and old CommitLog as well."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        upgraded(Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        for which, share, data in written:
            overwritten(files[int(which * len(files))], share, data)
        native, python = (dl.open_log(folder, engine=engine).findings() for engine in ("native", "python"))
    assert native == python


# The goldens


def options_of(store: golden.Golden, path: Path) -> dict[str, Any]:
    is_spread = store.case == "raw-multipath"
    return {"dataDirs": [str(folder) for folder in sorted(path.parent.glob("path*"))]} if is_spread else {}


@pytest.mark.parametrize("store", golden.ALL, ids=str)
def test_a_golden_has_at_most_infos(store: golden.Golden, case_folder: Callable[[str], Path], engine: str) -> None:
    path = case_folder(store.case) / store.folder
    findings = dl.open_log(path, engine=engine, **options_of(store, path)).findings()
    assert [finding for finding in findings if finding.severity != INFO] == []
    assert {finding.node for finding in findings} <= {path.name.removeprefix("dledger-"), store.node or "n0"}


@pytest.mark.parametrize("store", [store for store in golden.ALL if store.is_raw], ids=str)
def test_a_root_of_nodes_has_at_most_infos(store: golden.Golden, case_folder: Callable[[str], Path]) -> None:
    path = case_folder(store.case) / store.folder
    findings = dl.open_log(path.parent, selfId=store.node or "n0", **options_of(store, path)).findings()
    assert worst(findings) in (None, INFO)


GOLDEN_FINDINGS = {
    "raw-truncated-tail.n1": [
        ("indexUnitsBeyondEnd", "dledger-n1/index/00000000000000000000", 6720, 210),
        ("staleBytes", "dledger-n1/data/00000000000000000000", 62493, 210),
    ],
    "raw-killed": [("checkpointStale", "dledger-n0/checkpoint", None, 1249)],
    "raw-040-snapshot-keep.n2": [("posDiffers", "dledger-n2/data/00000000000000065536", 17113, 552)],
    "mq-53-retention": [("consumeQueueBelowStart", "consumequeue", None, None)],
    "mq-498-upgrade-killed": [
        ("abortFile", "abort", None, None),
        ("checkpointStale", "dledger-n0/checkpoint", None, 491),
    ],
    "raw-single": [],
}


@pytest.mark.parametrize("name", GOLDEN_FINDINGS)
def test_a_golden_has_its_findings(name: str, case_folder: Callable[[str], Path], engine: str) -> None:
    (store,) = (store for store in golden.ALL if str(store) == name)
    findings = dl.open_log(case_folder(store.case) / store.folder, engine=engine).findings()
    listed = [(f.code, f.file, f.offset, f.index) for f in findings if f.code != "leftoverFile"]
    assert listed == GOLDEN_FINDINGS[name]


# What Java does with damaged stores

DAMAGES = {case["name"]: case for case in json.loads((golden.GOLDENS / "corruption-java-behaviour.json").read_text())}


def damage(node: Path, operations: list[dict[str, Any]]) -> None:
    """The operations of a case of ``corruption-java-behaviour.json``, applied to a node's folder."""
    for operation in operations:
        file = node / operation["file"]
        match operation["op"]:
            case "write":
                write_at(file, operation["offset"], bytes.fromhex(operation["hex"]))
            case "zero":
                write_at(file, operation["offset"], bytes(operation["length"]))
            case "truncate":
                os.truncate(file, operation["length"])
            case "append":
                with file.open("ab") as stream:
                    stream.write(bytes(operation["zeros"]))
            case "create":
                file.write_bytes(operation["text"].encode() if "text" in operation else bytes(operation["zeros"]))
            case "delete":
                file.unlink()
            case "mkdir":
                file.mkdir()
            case "swap":
                other = node / operation["other"]
                content, in_other = file.read_bytes(), other.read_bytes()
                file.write_bytes(in_other)
                other.write_bytes(content)


@pytest.fixture(scope="session")
def raw_single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("raw-single", tmp_path_factory.mktemp("damages")) / NODE


@pytest.fixture
def damaged(raw_single: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        copy_tree(raw_single, tmp_path / NODE)
        damage(tmp_path / NODE, DAMAGES[name]["operations"])
        return tmp_path / NODE

    return copy


# Damage that no file shows: bodies that are not messages have no CRC, and the first file could have expired.
UNSEEN = {"body-last-file", "body-middle-file", "zero-page-last-file", "delete-first-data-file"}
ALL_RIGHT_FOR_JAVA = {"untouched", "extra-zero-data-file", "checkpoint-committed-below-end"}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_that_harms_java_is_found(damaged: Callable[[str], Path], name: str) -> None:
    node = damaged(name)
    native, python = (dl.open_log(node, engine=engine).findings() for engine in ("native", "python"))
    assert native == python
    java = DAMAGES[name]["java"]
    if name in UNSEEN | ALL_RIGHT_FOR_JAVA:
        assert worst(native) in (None, INFO)
    else:
        assert worst(native) in ((ERROR,) if java["outcome"] != "opens" else (WARNING, ERROR))


EXPECTED_CODES = {
    "index-last-entry": {"committedBeyondEnd", "endBeyondLog", "indexUnitsBeyondEnd", "indexGap", "indexUnit"},
    "delete-last-data-file": {"committedBeyondEnd", "endBeyondLog", "indexUnitsBeyondEnd"},
    "last-file-cut": {"committedBeyondEnd", "endBeyondLog", "indexUnitsBeyondEnd", "shortFile"},
    "forged-entry-behind-end": {"checkpointStale", "indexUnitMissing"},
    "swap-middle-files": {"fileName", "corruptBytes"},
    "crc-fields-last-file": {"headerField", "bodyCrc"},
    "zero-first-index-file": {"indexUnitMissing"},
    "delete-middle-data-file": {"fileGap"},
}


@pytest.mark.parametrize("name", EXPECTED_CODES)
def test_damage_of_a_golden_has_its_codes(damaged: Callable[[str], Path], engine: str, name: str) -> None:
    assert set(codes_of(damaged(name), engine)) - {"leftoverFile"} == EXPECTED_CODES[name]


# Reading ConsumeQueues


def test_units_are_read_in_chunks_up_to_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_files, "UNITS_AT_ONCE", 32)
    store = broker(tmp_path, count=150)
    (queue,) = queues(tmp_path)
    assert (queue.topic, queue.queue_id) == ("Orders", 0)
    assert [(file.first, file.units, written_units(file)) for file in queue.files] == [(0, 100, 100), (100, 100, 50)]
    chunks = [units for file in queue.files for units in read_units(file)]
    assert [len(units) for units in chunks] == [32, 32, 32, 4, 32, 18]
    offsets = [offset for units in chunks for offset in units["commitLogOffset"].tolist()]
    assert offsets == [row["commitLogOffset"] for row in store.rows]
    assert [len(units) for units in read_units(queue.files[0], 90, 1000)] == [10]


def test_a_sparse_queue_file_ends_at_its_last_unit(tmp_path: Path) -> None:
    broker(tmp_path, count=3)
    (queue,) = queues(tmp_path)
    os.truncate(queue.files[0].path, CQ_UNIT * 10_000_000)
    (queue,) = queues(tmp_path)
    assert (queue.files[0].units, written_units(queue.files[0])) == (10_000_000, 3)
    assert written_units(replace(queue.files[0], path=str(tmp_path / "none"))) == 0
    assert list(read_units(replace(queue.files[0], path=str(tmp_path / "none")), 0, 5)) == []


def test_folders_that_are_not_queues_are_ignored(tmp_path: Path) -> None:
    broker(tmp_path, count=3)
    folder = tmp_path / "consumequeue"
    (folder / "Orders" / "x").mkdir()
    (folder / "Orders" / "1").mkdir()
    (folder / "Orders" / "0" / "notes").write_text("?")
    (folder / "notes").write_text("?")
    (queue,) = queues(tmp_path)
    assert [file.name for file in queue.files] == [f"{0:020}"]
    assert queues(tmp_path / "nowhere") == []
