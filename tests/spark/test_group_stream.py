"""A live group as a stream: what triggers and tasks read, from which member, and how they report lost data."""

from __future__ import annotations

import logging
import os
import pickle
import random
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_dledger as dl
from pyspark_dledger.errors import DataLossError, GroupError, OptionError, StoreError
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.log import open_log
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.tail.tail import NO_LIMITS, NOTHING, Limits, TailOffset, stream_options
from pyspark_dledger.raft.client import Client
from pyspark_dledger.spark.group import group_partition
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.group.group_log import GroupLog, begin_index
from pyspark_dledger.spark.group.group_partition import read_group_partition
from pyspark_dledger.spark.group.group_plan import check_group_options
from pyspark_dledger.spark.schema import log_schema
from pyspark_dledger.spark.source import DLedgerDataSource
from pyspark_dledger.spark.stream.group_tail import GroupStreamReader, GroupTail
from pyspark_dledger.spark.stream.stream_reader import _TriggerDelay
from tests.support.certificates import make_tls
from tests.support.fake_members import FakeMember
from tests.support.generate import mq_message
from tests.support.groups import HOST, Nodes, eventually, free_ports, nodes, peers_text

INDEX = ("index",)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes with 900 entries, among them messages, in several files. Tests only read them."""
    with nodes(tmp_path_factory.mktemp("group"), 3) as started:
        append(started, bodies())
        await_commit(started, 899)
        yield started


def bodies(count: int = 900) -> list[bytes]:
    """Return raw entries and messages, one stored every second."""
    chance = random.Random(5)
    made = []
    for number in range(count):
        if number % 3 == 0:
            made.append(chance.randbytes(chance.choice((0, 10, 1000, 20_000))))
            continue
        payload = mq_message(
            f"Topic{number % 2}",
            b"%d " % number * 50,
            properties=[("TAGS", "a"), ("KEYS", f"k{number}")],
            compressed=chance.choice(("none", "zlib", "lz4", "zstd")),
            store_timestamp=1_700_000_000_000 + 1000 * number,
        )
        made.append(payload.make(0))
    return made


def append(group: Nodes, entries: list[bytes]) -> None:
    with dl.connect(group="g", peers=group.peers) as client:
        client.append_batch(entries)


def await_commit(group: Nodes, index: int) -> None:
    """Wait until every running member knows that it is committed."""
    eventually(lambda: all(group.status(node)["committedIndex"] >= index for node in group.nodes))


def options_of(peers: str, **options: Any) -> Any:
    given = {"group": "g", "peers": peers, **options}
    return stream_options(parse_options(given), given)


def tail_of(group: Nodes | str, columns: tuple[str, ...] = INDEX, **options: Any) -> GroupTail:
    peers = group if isinstance(group, str) else group.peers
    tail = GroupTail(GroupAddress("g", peers), options_of(peers, **options), columns)
    _open_tails.append(tail)
    return tail


_open_tails: list[GroupTail] = []


@pytest.fixture(autouse=True)
def _close_tails() -> Iterator[None]:
    yield
    while _open_tails:
        _open_tails.pop().close()


def rows(tail: GroupTail, start: TailOffset, end: TailOffset) -> list[dict[str, Any]]:
    """Return what tasks read of a plan. Each part is pickled, as by Spark."""
    parts = [pickle.loads(pickle.dumps(part)) for part in tail.plan(start, end)]
    return [row for part in parts for batch in read_group_partition(part) for row in batch.to_pylist()]


def indexes(tail: GroupTail, start: TailOffset, end: TailOffset) -> list[int]:
    return [row["index"] for row in rows(tail, start, end)]


# What is read


@pytest.mark.parametrize("extra", [{}, {"topic": "Topic1"}, {"mode": "DROPMALFORMED"}])
def test_rows_are_those_of_the_store_of_a_member(group: Nodes, engine: str, extra: dict[str, str]) -> None:
    names = (*DEFAULT_NAMES, "entryBody")
    tail = tail_of(group, names, startingOffsets="earliest", engine=engine, maxPartitionBytes="300k", **extra)
    found = rows(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS))
    log = open_log(group.folder / "dledger-n0")
    expected = [row for batch in log.scan(names, committedBound="end", **extra) for row in batch.to_pylist()]
    assert {row.pop("segment") for row in found} == {"g"}
    for row in expected:
        del row["segment"]
    assert found == expected
    assert len(found) >= 300


def test_rows_are_the_same_without_files_in_memory(group: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = tail_of(group, ("index", "body"), startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    in_memory = rows(tail, NOTHING, end)
    monkeypatch.delattr(os, "memfd_create")
    assert rows(tail, NOTHING, end) == in_memory


def test_tasks_cover_every_entry_once_in_parts_of_the_given_size(group: Nodes) -> None:
    tail = tail_of(group, startingOffsets="earliest", maxPartitionBytes="100k")
    parts = tail.plan(NOTHING, tail.latest(NOTHING, NO_LIMITS))
    covered = [index for part in parts for index in range(part.first_index, part.last_index + 1)]
    assert covered == list(range(900))
    with GroupLog(GroupAddress("g", group.peers)) as log:
        sizes = [log.entry(part.last_index).end - log.entry(part.first_index).pos for part in parts]
        following = [log.entry(part.last_index + 1).end - log.entry(part.first_index).pos for part in parts[:-1]]
    assert max(sizes) <= 100 * 1024
    assert min(following) > 100 * 1024


def test_min_partitions_cuts_smaller_parts(group: Nodes) -> None:
    tail = tail_of(group, startingOffsets="earliest", minPartitions="5")
    assert len(tail.plan(NOTHING, tail.latest(NOTHING, NO_LIMITS))) >= 5


def test_tasks_of_a_batch_begin_with_different_members(group: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str | None] = Counter()
    read = Client.read

    def counted(self: Client, first_index: int, node_id: str | None = None, **more: Any) -> Any:
        asked[node_id] += 1
        return read(self, first_index, node_id, **more)

    tail = tail_of(group, startingOffsets="earliest", maxPartitionBytes="400k")
    parts = tail.plan(NOTHING, tail.latest(NOTHING, NO_LIMITS))
    monkeypatch.setattr(Client, "read", counted)
    for part in parts:
        list(read_group_partition(part))
    assert set(asked) == {"n0", "n1", "n2"}


def test_reader_is_pickled_without_its_connections(group: Nodes) -> None:
    reader = GroupStreamReader(options_of(group.peers, startingOffsets="earliest"), log_schema(False))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start))
    in_task = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in parts for batch in in_task.read(part)]
    reader.stop()
    assert sum(batch.num_rows for batch in batches) == 900
    assert batches[0].schema.names == list(DEFAULT_NAMES)


# The end of a trigger


def test_limits_of_entries_and_bytes_apply_together(group: Nodes) -> None:
    tail = tail_of(group, ("index", "size"), startingOffsets="earliest")
    start, seen = NOTHING, []
    while (end := tail.latest(start, Limits(entries=40, size=64 * 1024))) != start:
        batch = rows(tail, start, end)
        assert len(batch) <= 40
        assert sum(row["size"] for row in batch) <= 64 * 1024 or len(batch) == 1
        assert len(batch) == 40 or end.index == 899 or sum(row["size"] for row in batch) > 43 * 1024
        seen += batch
        start = end
    assert [row["index"] for row in seen] == list(range(900))


def test_entry_larger_than_the_limit_is_read_alone(group: Nodes) -> None:
    tail = tail_of(group, startingOffsets="earliest")
    assert tail.latest(NOTHING, Limits(size=1)).index == 0


def test_trigger_waits_for_the_minimum(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as group:
        append(group, [b"a", b"b"])
        tail = tail_of(group, startingOffsets="earliest", minOffsetsPerTrigger="3")
        delay = _TriggerDelay(tail.options)
        first = delay.latest(tail, NOTHING, NO_LIMITS)
        append(group, [b"c", b"d"])
        assert delay.latest(tail, first, NO_LIMITS) == first
        assert tail.progress().lag_entries == 2
        append(group, [b"e"])
        assert indexes(tail, first, delay.latest(tail, first, NO_LIMITS)) == [2, 3, 4]


def test_available_now_ends_where_the_log_ended_at_its_start(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as group:
        append(group, [b"a", b"b"])
        tail = tail_of(group, startingOffsets="earliest")
        until = tail.available()
        append(group, [b"c"])
        first = tail.latest(NOTHING, Limits(until=until))
        assert indexes(tail, NOTHING, first) == [0, 1]
        assert tail.latest(first, Limits(until=until)) == first
        assert indexes(tail, first, tail.latest(first, NO_LIMITS)) == [2]


def test_idle_trigger_asks_each_member_at_most_once(group: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = tail_of(group, startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    asked: Counter[str] = Counter()
    for name in ("read", "status"):
        method = getattr(Client, name)

        def counted(self: Client, *args: Any, _name: str = name, _method: Any = method, **more: Any) -> Any:
            asked[_name] += 1
            return _method(self, *args, **more)

        monkeypatch.setattr(Client, name, counted)
    assert tail.latest(end, NO_LIMITS) == end
    assert asked == {"read": 1, "status": 3}


def test_offsets_are_those_of_a_stream_by_path(group: Nodes) -> None:
    """A query can continue by path with the checkpoint of a group, and back."""
    tail = tail_of(group)
    end = tail.latest(NOTHING, NO_LIMITS)
    log = open_log(group.folder / "dledger-n1")
    (last,) = [row for batch in log.scan(startingOffsets=899) for row in batch.to_pylist()]
    assert (end.index, end.term, end.pos) == (last["index"], last["term"], last["pos"])


def test_progress_has_the_lag(group: Nodes) -> None:
    tail = tail_of(group, startingOffsets="earliest")
    with GroupLog(GroupAddress("g", group.peers)) as log:
        lag, size = log.entry(899).pos - log.entry(9).pos, log.entry(9).end
    first = tail.latest(NOTHING, Limits(entries=10))
    log_state = {"committed": 899, "end": 899, "lagEntries": 890, "lagBytes": lag}
    assert tail.progress().to_json() == {**log_state, "entries": 10, "bytes": size, "expired": 0}
    tail.latest(first, NO_LIMITS)
    progress = tail.progress()
    assert (progress.entries, progress.bytes, progress.lag_entries) == (890, lag, 0)


# The start of a stream


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "250"}, 250),
        ({"startingOffsets": '{"pos": 1}'}, 1),
        ({"startingTimestamp": "1700000000000"}, 1),
        ({"startingTimestamp": "1700000500000"}, 500),
        ({"startingTimestamp": "1700000509001"}, 511),  # 510 is no message
        ({"startingTimestamp": "1700000100000", "startingOffsets": "300"}, 301),  # 300 is no message
    ],
)
def test_stream_begins_at_the_given_start(group: Nodes, options: dict[str, str], first: int) -> None:
    tail = tail_of(group, **options)
    assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == list(range(first, 900))
    # A retried first batch begins there, too, although it ends earlier.
    if first < 890:
        early = tail.latest(NOTHING, Limits(entries=10))
        assert indexes(tail_of(group, **options), NOTHING, early) == list(range(first, first + 10))


@pytest.mark.parametrize("options", [{"startingOffsets": "5000"}, {"startingTimestamp": "1800000000000"}])
def test_stream_waits_for_its_start(group: Nodes, options: dict[str, str]) -> None:
    tail = tail_of(group, **options)
    assert tail.latest(NOTHING, NO_LIMITS) == NOTHING
    assert tail.latest(NOTHING, NO_LIMITS) == NOTHING


def test_latest_pins_the_start_and_reads_what_comes_after_it(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as group:
        group.leader()
        tail = tail_of(group)
        empty = tail.latest(NOTHING, NO_LIMITS)
        assert empty == TailOffset(pos=0)
        append(group, [b"a", b"b"])
        end = tail.latest(empty, NO_LIMITS)
        assert indexes(tail, empty, end) == [0, 1]
        pinned = tail_of(group).latest(NOTHING, NO_LIMITS)
        assert pinned == end
        assert tail.plan(NOTHING, pinned) == []


# Members


@pytest.mark.slow
def test_stream_continues_with_any_remaining_member(tmp_path: Path) -> None:
    """Reading committed entries, and waiting for more, needs neither a leader nor a majority."""
    with nodes(tmp_path, 3) as group:
        append(group, bodies(30))
        await_commit(group, 29)
        tail = tail_of(group, startingOffsets="earliest")
        end = tail.latest(NOTHING, Limits(entries=10))
        leader = group.leader()
        survivor = next(node for node in group.ids if node != leader)
        group.stop(*(node for node in group.ids if node != survivor))
        last = tail.latest(end, NO_LIMITS)
        assert indexes(tail, end, last) == list(range(10, 30))
        assert tail.latest(last, NO_LIMITS) == last
        group.start(leader)
        append(group, [b"more"])
        eventually(lambda: tail.latest(last, NO_LIMITS) != last)
        assert indexes(tail, last, tail.latest(last, NO_LIMITS)) == [30]


def test_stream_waits_for_a_member_with_a_lower_committed_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, until the member hears from a leader."""
    with nodes(tmp_path, 3) as group:
        append(group, bodies(30))
        await_commit(group, 29)
        end = tail_of(group).latest(NOTHING, NO_LIMITS)
        ahead = TailOffset(31, end.term, 10**6, 1)
        with pytest.raises(DataLossError, match=r"expected index 31.*found logs that end at index 29 on a majority"):
            tail_of(group).latest(ahead, NO_LIMITS)
        tail = tail_of(group)
        real = tail._log._client
        monkeypatch.setattr(tail._log, "_client", _LowerCommitted(real, 20))
        assert tail.latest(end, NO_LIMITS) == end
        monkeypatch.setattr(tail._log, "_client", real)


class _LowerCommitted:
    """A client whose members have the committed index `committed`."""

    def __init__(self, client: Client, committed: int) -> None:
        self._client, self._committed = client, committed

    def read(self, first_index: int, node_id: str, max_bytes: int) -> Any:
        found = self._client.read(first_index, node_id, max_bytes=max_bytes)
        if first_index <= self._committed:
            return found
        return found._replace(count=0, committed_index=self._committed, data=b"")

    def status(self, node_id: str) -> Any:
        return self._client.status(node_id)._replace(committed_index=self._committed)


def test_group_of_java_members_is_rejected_with_advice() -> None:
    java = FakeMember(is_binary=False)
    try:
        with pytest.raises(
            OptionError, match=r"nothing proves what its Java members have committed.*tail the store of one of them"
        ):
            tail_of(java.peer).latest(NOTHING, NO_LIMITS)
    finally:
        java.server.close()


def test_members_of_ours_are_read_in_a_mixed_group(tmp_path: Path) -> None:
    java = FakeMember("j0", is_binary=False)
    try:
        with nodes(tmp_path, 1) as group:
            append(group, [b"a", b"b"])
            tail = tail_of(f"{java.peer};{group.peers}", startingOffsets="earliest")
            assert indexes(tail, NOTHING, tail.latest(NOTHING, NO_LIMITS)) == [0, 1]
    finally:
        java.server.close()


def test_silent_member_is_skipped_while_another_responds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_dledger.spark.group.group_log._TIMEOUT_MS", 300)
    with socket.create_server((HOST, 0)) as silent, nodes(tmp_path, 1) as group:
        append(group, [b"a", b"b"])
        tail = tail_of(f"s0-{HOST}:{silent.getsockname()[1]};{group.peers}", startingOffsets="earliest")
        end = tail.latest(NOTHING, NO_LIMITS)
        assert indexes(tail_of(group), TailOffset(pos=0), end) == [0, 1]
        for _ in range(5):
            assert tail.latest(end, NO_LIMITS) == end
        silent.settimeout(0.2)
        silent.accept()[0].close()
        with pytest.raises(TimeoutError):
            silent.accept()


def test_group_without_a_response_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_dledger.spark.group.group_log.MAX_FIRST_WAIT", 0.2)
    reasons = (
        r"no member responded within .* s: .*cannot reach n0: .*refused; .*n1: .*refused.*: check that its nodes run"
    )
    tail = tail_of(peers_text(free_ports(2)))
    with pytest.raises(GroupError, match=reasons):
        tail.latest(NOTHING, NO_LIMITS)
    with pytest.raises(GroupError, match=reasons):
        indexes(tail, TailOffset(pos=0), TailOffset(0, 1, 0, 0))


def test_group_of_another_name_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_dledger.spark.group.group_log.MAX_WAIT", 1e6)
    with nodes(tmp_path, 1) as group:
        reader = GroupStreamReader(options_of(group.peers, group="other"), log_schema(False))
        with pytest.raises(
            GroupError, match=r"group other: all members that respond are of another group .*UNKNOWN_GROUP"
        ):
            reader.latestOffset(reader.initialOffset())
        reader.stop()


def test_group_with_tls_is_tailed_with_certificates(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    with nodes(tmp_path, 1, tls=tls) as group:
        with dl.connect(group="g", peers=group.peers, tls=tls) as client:
            client.append(b"a")
        files = {"tlsCert": str(tls.cert), "tlsKey": str(tls.key), "tlsCa": str(tls.ca)}
        reader = GroupStreamReader(options_of(group.peers, startingOffsets="earliest", **files), log_schema(False))
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start))
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 1
        reader.stop()


# Lost data


def expire(group: Nodes) -> int:
    """Delete all files of each member except the last; return the first remaining index."""
    for node in group.nodes.values():
        while node.store.delete_expired(0, force=True):
            pass
    begin = min(node.store.ledger_begin_index for node in group.nodes.values())
    assert 10 < begin < 890
    return begin


def test_entries_that_expire_unread_are_an_error_or_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nodes(tmp_path, 1, flush="sync") as group:
        append(group, bodies())
        tail = tail_of(group, startingOffsets="earliest")
        end = tail.latest(NOTHING, Limits(entries=10))
        planned = tail.plan(end, tail.latest(end, NO_LIMITS))
        begin = expire(group)
        match = f"expected entry 10, found all before index {begin} expired.*failOnDataLoss=false"
        with pytest.raises(DataLossError, match=match):
            tail.latest(end, NO_LIMITS)
        with pytest.raises(DataLossError, match=f"expected entries 10 to {begin - 1}, found them expired"):
            list(read_group_partition(planned[0]))
        with pytest.raises(StoreError, match=f"startingOffsets: expected index 5, found the first entry .*{begin}"):
            tail_of(group, startingOffsets="5").latest(NOTHING, NO_LIMITS)
        careless = tail_of(group, failOnDataLoss="false")
        with caplog.at_level(logging.WARNING):
            last = careless.latest(end, NO_LIMITS)
            assert indexes(careless, end, last) == list(range(begin, 900))
        assert f"indexes 10 to {begin - 1} are skipped" in caplog.text
        assert indexes(careless, end, last)[0] == begin
        started = tail_of(group, failOnDataLoss="false", startingOffsets="5")
        assert started.latest(NOTHING, NO_LIMITS) == last


def test_task_skips_entries_that_expired_since_it_was_planned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nodes(tmp_path, 1, flush="sync") as group:
        append(group, bodies())
        tail = tail_of(group, startingOffsets="earliest", failOnDataLoss="false")
        (part,) = tail.plan(NOTHING, tail.latest(NOTHING, NO_LIMITS))
        begin = expire(group)
        with caplog.at_level(logging.WARNING):
            found = [row["index"] for batch in read_group_partition(part) for row in batch.to_pylist()]
        assert found == list(range(begin, 900))
        assert f"expected entries 0 to {begin - 1}, found them expired at every member" in caplog.text


def test_begin_index_ignores_a_member_without_entries() -> None:
    statuses = {
        "n0": SimpleNamespace(begin_index=100, end_index=900),
        "n1": SimpleNamespace(begin_index=-1, end_index=-1),
    }
    assert begin_index(statuses) == 100
    assert begin_index({"n1": statuses["n1"]}) == 0


def test_expired_entries_that_were_read_are_no_loss(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, flush="sync") as group:
        append(group, bodies())
        tail = tail_of(group, startingOffsets="earliest")
        begin = expire(group)
        end = TailOffset(begin - 1, 0, 1, 1)
        assert indexes(tail, end, tail.latest(end, NO_LIMITS)) == list(range(begin, 900))


def test_replaced_group_is_a_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nodes(tmp_path / "old", 1) as old:
        append(old, [b"old %d" % number for number in range(5)])
        tail = tail_of(old, startingOffsets="earliest")
        end = tail.latest(NOTHING, NO_LIMITS)
    with nodes(tmp_path / "new", 1) as new:
        append(new, [b"new %d" % number for number in range(9)])
        with pytest.raises(DataLossError, match=r"expected index 4 .* with CRC \d+, found index 4 .* with CRC"):
            tail_of(new).latest(end, NO_LIMITS)
        with pytest.raises(DataLossError, match=r"the batch ends with index 4 .*: expected CRC \d+ there, found"):
            tail_of(new, startingOffsets="earliest").plan(NOTHING, end)
        careless = tail_of(new, failOnDataLoss="false")
        with caplog.at_level(logging.WARNING):
            pinned = careless.latest(end, NO_LIMITS)
        assert "reading continues after index 4 (term 0, pos" in caplog.text
        assert careless.plan(end, pinned) == []
        assert tail_of(new, startingOffsets="earliest", failOnDataLoss="false").plan(NOTHING, end) == []
        append(new, [b"more"])
        last = careless.latest(pinned, NO_LIMITS)
        assert indexes(careless, pinned, last) == [5, 6, 7, 8, 9]
        assert indexes(careless, end, last) == [5, 6, 7, 8, 9], "as PySpark 4.0 plans it after a restart"


def test_shorter_log_is_a_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nodes(tmp_path, 1) as group:
        append(group, [b"a", b"b"])
        lost = TailOffset(7, 0, 700, 1)
        with pytest.raises(DataLossError, match=r"expected index 7 .*, found logs that end at index 1 on a majority"):
            tail_of(group).latest(lost, NO_LIMITS)
        careless = tail_of(group, failOnDataLoss="false")
        with caplog.at_level(logging.WARNING):
            pinned = careless.latest(lost, NO_LIMITS)
        assert "reading continues after index 1" in caplog.text
        assert careless.plan(lost, pinned) == []
        append(group, [b"c"])
        assert indexes(careless, pinned, careless.latest(pinned, NO_LIMITS)) == [2]


def test_tail_that_was_overwritten_in_a_later_term_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nodes(tmp_path, 3) as group:
        append(group, [b"a", b"b"])
        tail = tail_of(group, failOnDataLoss="false")
        term = tail.latest(NOTHING, NO_LIMITS).term
        with dl.connect(group="g", peers=group.peers) as client:
            client.transfer(next(node for node in group.ids if node != group.leader()))
        append(group, [b"c", b"d", b"e"])
        await_commit(group, 4)
        for index in (3, 4):
            lost = TailOffset(index, term, 10**4, 1)
            with caplog.at_level(logging.WARNING):
                pinned = tail.latest(lost, NO_LIMITS)
            assert tail.plan(lost, pinned) == []
            assert indexes(tail, pinned, tail.latest(pinned, NO_LIMITS)) == [2, 3, 4]
        assert "reading continues with index 2, the first of a later term" in caplog.text


# Options


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"peers": None}, "option group needs option peers"),
        ({"group": None}, "option peers needs option group"),
        ({"peers": "n0"}, "peers: expected ID-HOST:PORT"),
        ({"selfId": "n0"}, "option selfId has no effect on a stream of a live group"),
        ({"committedBound": "end"}, "option committedBound has no effect on a stream of a live group"),
        ({"isolationLevel": "read_uncommitted"}, "committed entries only"),
        ({"tlsCert": "a.pem"}, "tlsKey and tlsCa together, found no tlsKey and no tlsCa"),
    ],
)
def test_options_for_a_store_are_rejected(options: dict[str, Any], match: str) -> None:
    given = {"group": "g", "peers": "n0-127.0.0.1:20911", **options}
    with pytest.raises(OptionError, match=match):
        check_group_options(stream_options(parse_options(given), given))


def test_path_and_group_together_are_rejected() -> None:
    source = DLedgerDataSource({"group": "g", "peers": "n0-127.0.0.1:20911", "path": "/data"})
    with pytest.raises(OptionError, match="a path and options group and peers are both given"):
        source.streamReader(log_schema(False))


# In Spark


def stream(spark: SparkSession, peers: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("dledger").option("group", "g").option("peers", peers)
    return reader.options(**options).schema("index long, topic string, body binary").load()


def test_query_reads_each_entry_once_across_restarts_and_leaders(spark: SparkSession, tmp_path: Path) -> None:
    with nodes(tmp_path / "store", 3) as group:
        append(group, bodies(60))

        def run(**options: str) -> None:
            frame = stream(spark, group.peers, startingOffsets="earliest", **options)
            writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
            assert query.awaitTermination(120)

        run(maxOffsetsPerTrigger="40")
        leader = group.leader()
        group.stop(leader)
        append(group, bodies(20))
        eventually(lambda: all(group.status(node)["committedIndex"] >= 79 for node in group.nodes))
        group.start(leader)
        run()
        found = pq.read_table(tmp_path / "rows").sort_by("index").to_pylist()
        assert [row["index"] for row in found] == list(range(80))
        assert {row["topic"] for row in found} == {None, "Topic0", "Topic1"}
        raw = [body for number, body in enumerate(bodies(60)) if number % 3 == 0]
        assert [row["body"] for row in found if row["topic"] is None][:20] == raw


@pytest.mark.slow
def test_rows_do_not_depend_on_the_size_of_requests_and_chunks(group: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = tail_of(group, startingOffsets="earliest")
    end = tail.latest(NOTHING, NO_LIMITS)
    for request, chunk in ((1, 1), (1, 50_000), (30_000, 10_000_000)):
        monkeypatch.setattr(group_partition, "_REQUEST_BYTES", request)
        monkeypatch.setattr(group_partition, "_CHUNK_BYTES", chunk)
        assert indexes(tail, NOTHING, end) == list(range(900))
