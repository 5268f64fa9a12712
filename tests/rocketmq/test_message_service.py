"""Messages served by real nodes: locations, duplicates, restarts, changes of leadership."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, StoreError
from pyspark_dledger.format.encode.encoded import Bodies, ProducerState, PutIds
from pyspark_dledger.format.encode.identities import CLAIM, numbered_id, read_ids, replace_ids, tagged, words_of
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import Message, parse_message
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import Client, connect
from pyspark_dledger.raft.client.results import Put, PutResult
from pyspark_dledger.raft.messages import AppendRequest, PutRequest
from pyspark_dledger.rocketmq.broker.root_files import LogSegments
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchedPart
from pyspark_dledger.rocketmq.service import leader_tables
from pyspark_dledger.rocketmq.service.leader_tables import covered_range, read_tail
from pyspark_dledger.rocketmq.service.message_service import MessageService
from pyspark_dledger.rocketmq.tables import read_table
from pyspark_dledger.store import MmapFileStore, StoreConfig
from pyspark_dledger.store.files.node_files import load_members, write_members
from tests.support.damage import write_at
from tests.support.generate import mq_message, write_commitlog, write_dledger
from tests.support.groups import FAST, SMALL, Served, eventually, free_ports, peers_text
from tests.support.message_nodes import (
    HOST_BYTES,
    SMALL_QUEUES,
    MessageNodes,
    joined,
    message_nodes,
    puts,
    rows,
)

ELECTION_SECONDS = (3 * FAST["heart_beat_time_interval_ms"] + FAST["max_vote_interval_ms"]) / 1000


@contextmanager
def client_of(group: MessageNodes | str) -> Iterator[Client]:
    peers = group if isinstance(group, str) else group.peers
    with connect(group="g", peers=peers) as client:
        yield client


@pytest.fixture
def one(tmp_path: Path) -> Iterator[tuple[MessageNodes, Client]]:
    """A group of one, and a client of it."""
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        yield group, client


def message_at(group: MessageNodes, put: Put, node_id: str = "n0") -> tuple[Any, Message]:
    """The entry of a put, and its message."""

    async def entry() -> Any:
        return group.nodes[node_id].store.get(put.index)

    found = group.run(entry())
    message = parse_message(found.body, 0, len(found.body), 0)
    assert isinstance(message, Message), message
    return found, message


def body_of(entry: Any, message: Message) -> bytes:
    return bytes(entry.body[message.body_start : message.body_start + message.body_length])


def end_index(group: MessageNodes, node_id: str = "n0") -> int:
    end: int = group.status(node_id)["endIndex"]
    return end


def rejection(group: MessageNodes, bodies: Bodies, queue_nums: int = 4) -> tuple[int, str]:
    """The code and reason with which the leader rejects a put."""
    caller = group.caller("n0").hello()
    try:
        response = caller.call(PutRequest(bodies=bodies, queue_nums=queue_nums))
        return response.code, response.reason
    finally:
        caller.close()


def contents(root: Path) -> list[tuple[str, int, int, bytes]]:
    """Topic, queue, offset and body of every message of a store, in the order of the log."""
    log = open_log(root, committedBound="end")
    columns = ["kind", "topic", "queueId", "queueOffset", "body"]
    found = [row for batch in log.scan(columns=columns) for row in batch.to_pylist()]
    return [tuple(row[name] for name in columns[1:]) for row in found if row["topic"] != "SELF_TEST_TOPIC"]


# Puts


def test_the_response_locates_the_messages(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    before = time.time_ns() // 1_000_000
    # More than one data file.
    found = list(client.put_messages(puts(rows(900, size=1200))))
    assert [put.index for put in found] == list(range(900))
    stored = []
    for number in (0, 1, 2, 3, 400, *range(880, 900)):
        entry, message = message_at(group, found[number])
        assert entry.pos == found[number].pos
        assert message.physical_offset == entry.pos + 48
        assert message.queue_offset == found[number].queue_offset
        assert message.store_host == HOST_BYTES
        assert body_of(entry, message).startswith(b"%010d" % number)
        stored.append(message.store_timestamp)
    assert before <= min(stored) <= max(stored) <= time.time_ns() // 1_000_000
    assert found[-1].pos > SMALL["data_file_size"]


def test_queue_offsets_continue_by_topic_and_queue(one: tuple[MessageNodes, Client]) -> None:
    _, client = one
    first = client.put_messages(puts(rows(6, topic="A", queueId=[0, 1, 0, 0, 1, 2])))
    assert [put.queue_offset for put in first] == [0, 0, 1, 2, 1, 0]
    parts = [puts(rows(2, 6, topic="A", queueId=[0, 1]), job="a"), puts(rows(2, topic="B", queueId=[0, 0]), job="b")]
    second = client.put_messages(joined(parts))
    assert [put.queue_offset for put in second] == [3, 2, 0, 1]


def test_prepared_and_rolled_back_messages_use_no_queue_offset(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    kinds = [0, 4, 0, 12, 8, 0]
    found = list(client.put_messages(puts(rows(6, queueId=[0] * 6, transaction=kinds))))
    assert [put.queue_offset for put in found] == [0, 0, 1, 0, 2, 3]
    assert [message_at(group, put)[1].sys_flag & 0xC for put in found] == kinds


def test_delayed_messages_are_numbered_in_the_queue_of_their_level(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    levels = [3, 3, 0, 18, 3]
    found = list(client.put_messages(puts(rows(5, queueId=[1] * 5, delayLevel=levels))))
    assert [put.queue_offset for put in found] == [0, 1, 0, 0, 2]
    assert [message_at(group, put)[1].queue_id for put in found] == [2, 2, 1, 17, 2]


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        (lambda: puts(rows(1, queueId=[4]), queues=5), "expected a queueId below 4, found 4"),
        (lambda: _cut(puts(rows(1))), "message 0: expected"),
        (lambda: Bodies(1, b"\0\0\0\3abc"), "message 0: expected"),
    ],
    ids=["queue", "cut", "none"],
)
def test_an_invalid_put_is_rejected_with_a_reason(one: tuple[MessageNodes, Client], bodies: Any, reason: str) -> None:
    group, client = one
    client.topics(["Orders"], 4)
    before = end_index(group)
    code, found = rejection(group, bodies())
    assert code == ResponseCode.UNEXPECTED_ARGUMENT
    assert reason in found
    assert end_index(group) == before
    assert [put.queue_offset for put in client.put_messages(puts(rows(1, queueId=[0])))] == [0]


def _cut(bodies: Bodies) -> Bodies:
    block = bytes(bodies.block)
    size = len(block) - 4 - 1
    return Bodies(1, struct.pack(">I", size) + block[4:-1])


def test_messages_above_the_brokers_limit_are_rejected(tmp_path: Path) -> None:
    group = MessageNodes(tmp_path, 1)
    group.settings = replace(SMALL_QUEUES, max_message_size=1000)
    try:
        group.start()
        group.ready_leader()
        code, reason = rejection(group, puts(rows(1, size=1000)))
        assert (code, reason.split(",")[0]) == (411, "expected messages of at most 1000 bytes")
        with client_of(group) as client:
            assert len(client.put_messages(puts(rows(3, size=700)))) == 3
    finally:
        group.close()


# Topics


def test_topics_are_created_once_and_written_like_a_broker(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    topics = client.topics(["A", "%RETRY%group"], 6)
    assert (topics.queue_counts, topics.store_host) == ({"A": 6, "%RETRY%group": 6}, HOST_BYTES)
    file = group.root("n0") / "config" / "topics.json"
    eventually(file.exists)
    assert client.topics(["A", "B"], 2).queue_counts == {"A": 6, "B": 2}
    eventually(lambda: file.exists() and '"B"' in file.read_text())
    assert '\t\t"A":{\n\t\t\t"attributes":{},\n\t\t\t"order":false,\n\t\t\t"perm":6,' in file.read_text()
    assert '"A"' in file.with_name("topics.json.bak").read_text()
    assert client.config()["topics.json"] == file.read_bytes()


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "a/b", "é"])
def test_invalid_names_of_topics_are_rejected(one: tuple[MessageNodes, Client], name: str) -> None:
    with pytest.raises(GroupError, match="expected a topic of 1 to 255"):
        one[1].topics([name], 4)


def test_a_restart_knows_the_topics(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        client.topics(["A"], 6)
        group.stop()
        group.start()
        assert client.topics(["A"], 2).queue_counts == {"A": 6}


def test_queues_in_the_log_count_for_their_topic(tmp_path: Path) -> None:
    """A leader without metadata accepts the queues of an earlier leader."""
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        client.topics(["A"], 8)
        client.put_messages(puts(rows(1, topic="A", queueId=[7]), 8))
        group.stop()
        shutil.rmtree(group.root("n0") / "config")
        group.start()
        assert [put.queue_offset for put in client.put_messages(puts(rows(1, 1, topic="A", queueId=[7]), 8))] == [1]
        assert client.topics(["A"], 4).queue_counts == {"A": 8}


OFFSETS = '{\n\t"offsetTable":{\n\t\t"Orders@group":{0:12,1:2\n\t\t}\n\t}\n}'
COPIED = {**FAST, "copy_config_first_ms": 20, "copy_config_every_ms": 50}


def test_followers_copy_the_leaders_metadata(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 2, core_options=COPIED) as group, client_of(group) as client:
        leader = group.leader()
        (other,) = (node_id for node_id in group.ids if node_id != leader)
        client.topics(["Orders"], 6)
        _config(group, leader, "topics.json", lambda text: '"Orders"' in text)
        # As a broker writes it for consumers, twice.
        for number, text in enumerate((OFFSETS, OFFSETS.replace("12", "13"))):
            # In one step: a follower may copy the file at any time.
            offsets = group.root(leader) / "config" / "consumerOffset.json"
            offsets.with_suffix(".new").write_text(text)
            offsets.with_suffix(".new").rename(offsets)
            _config(group, other, "consumerOffset.json", lambda found, text=text: found == text)
            bak = group.root(other) / "config" / "consumerOffset.json.bak"
            assert bak.exists() == bool(number)
        assert bak.read_text() == OFFSETS
        _config(group, other, "topics.json", lambda text: '"Orders"' in text)
        client.transfer(other)
        assert client.topics(["Orders"], 2).queue_counts == {"Orders": 6}


def _config(group: MessageNodes, node_id: str, name: str, is_wanted: Callable[[str], bool]) -> None:
    """Wait until a config file of a node has the wanted text."""
    file = group.root(node_id) / "config" / name
    eventually(lambda: file.exists() and is_wanted(file.read_text()))


# Duplicates


def test_a_duplicate_put_gets_the_same_response_and_is_not_appended(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    first = list(client.put_messages(puts(rows(50))))
    assert list(client.put_messages(puts(rows(50)))) == first
    assert end_index(group) == 49
    # Another order, and new ones between them.
    mixed = joined([puts(rows(5, 40)), puts(rows(3, 100, queueId=[0] * 3)), puts(rows(2, 7))])
    found = list(client.put_messages(mixed))
    assert found[:5] == first[40:45]
    assert [put.index for put in found[5:8]] == [50, 51, 52]
    assert found[8:] == first[7:9]


def test_equal_rows_are_several_messages_and_a_repeated_message_is_one(
    one: tuple[MessageNodes, Client],
) -> None:
    group, client = one
    ordinals = get_engine().new_ordinals()
    equal = [puts(rows(1), ordinals=ordinals) for _ in range(3)]
    assert [put.index for put in client.put_messages(joined(equal))] == [0, 1, 2]
    twice = puts(rows(2, 10))
    found = list(client.put_messages(joined([twice, twice])))
    assert found[:2] == found[2:]
    assert [put.index for put in found[:2]] == [3, 4]
    assert end_index(group) == 4


@pytest.mark.parametrize("seed", range(3))
def test_random_puts_get_the_responses_of_a_simple_leader(tmp_path: Path, seed: int) -> None:
    """Any mix of duplicates, repeats, messages without identity and transactions, with new leaderships."""
    rng = random.Random(seed)
    store = MmapFileStore(StoreConfig(tmp_path, **SMALL))
    service = MessageService.open(tmp_path, "n0", HOST_BYTES, settings=SMALL_QUEUES)
    store.startup()
    service.started(store)
    ends: dict[tuple[str, int], int] = {}
    known: dict[bytes, tuple[int, int]] = {}
    pool = _pool(rng)
    try:
        for turn in range(60):
            if turn % 15 == 0:
                # Entries that are not committed are read from the log.
                service.committed(_commit(store, rng.randint(store.committed_index, store.ledger_end_index)))
                service.role_changed(False, 1)
                service.role_changed(True, 1)
                eventually(lambda: service.is_ready)
            given = [rng.choice(pool) for _ in range(rng.randint(1, 40))]
            bodies = joined(given)
            admitted = service.admit(bodies, 4)
            expected = _simple_leader(bodies, store.ledger_end_index + 1, ends, known)
            appended = store.append_as_leader(admitted.bodies, 1) if admitted.bodies is not None else None
            found = list(struct.iter_unpack(">qqq", service.appended(admitted, appended)))
            assert [(index, queue_offset) for index, _, queue_offset in found] == expected
            assert [pos for _, pos, _ in found] == [store.get(index).pos for index, _, _ in found]
        assert store.ledger_end_index > 300
    finally:
        service.stopped()
        store.shutdown()
        service.close()


def test_a_damaged_first_copy_is_known_without_its_location(one: tuple[MessageNodes, Client]) -> None:
    """The message is not appended again."""
    group, client = one
    first = list(client.put_messages(puts(rows(3))))
    file = group.root("n0") / "dledger-n0" / "data" / "00000000000000000000"
    write_at(file, first[1].pos, b"\xff" * 8)
    found = [tuple(put) for put in client.put_messages(puts(rows(3)))]
    assert found == [tuple(first[0]), (1, -1, -1), tuple(first[2])]
    assert end_index(group) == 2


@pytest.mark.parametrize("is_restarted", [False, True])
def test_damaged_first_copies_do_not_affect_others(tmp_path: Path, is_restarted: bool) -> None:
    """A store returns its newest entries unchecked, and older ones up to the first damaged one."""
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        first = [tuple(put) for put in client.put_messages(puts(rows(300, size=900)))]
        if is_restarted:
            group.stop("n0")
            group.start("n0")
        file = group.root("n0") / "dledger-n0" / "data" / "00000000000000000000"
        damaged = (0, 17, 18, 90)
        with file.open("r+b") as stream:
            for number, field in zip(damaged, (0, 4, 8, 44), strict=True):
                stream.seek(first[number][1] + field)
                stream.write(b"\x7f" * 4)
        expected = [(n, -1, -1) if n in damaged else put for n, put in enumerate(first)]
        assert [tuple(put) for put in client.put_messages(puts(rows(300, size=900)))] == expected
        assert end_index(group) == 299


def _pool(rng: random.Random) -> list[Bodies]:
    """Messages of one row each, some without an identity."""
    pool = []
    for number in range(400):
        columns = {"queueId": [rng.randrange(4)], "transaction": [rng.choice((0, 0, 0, 4, 8, 12))]}
        job = None if number % 10 == 0 else f"job{number % 3}"
        pool.append(puts(rows(1, number, topic=rng.choice(("A", "B")), size=rng.randint(10, 3000), **columns), job=job))
    return pool


def _commit(store: MmapFileStore, index: int) -> int:
    store.update_committed_index(1, index)
    return store.committed_index


def _simple_leader(
    bodies: Bodies, index: int, ends: dict[tuple[str, int], int], known: dict[bytes, tuple[int, int]]
) -> list[tuple[int, int]]:
    """Index and queueOffset of each, one by one; the next entry has `index`."""
    read = get_engine().read_puts(bodies)
    locations = []
    for number in range(bodies.count):
        identity = read.ids[24 * number : 24 * number + 24]
        if read.has_id[number] and identity in known:
            locations.append(known[identity])
            continue
        queue, offset = read.queues[read.queue[number]], 0
        if read.sys_flag[number] & 0xC in (0, 8):
            offset = ends.get(queue, 0)
            ends[queue] = offset + 1
        locations.append((index, offset))
        if read.has_id[number]:
            known[identity] = locations[-1]
        index += 1
    return locations


def test_a_claim_of_a_later_run_rejects_new_messages_of_earlier_ones(tmp_path: Path) -> None:
    producer, other = b"producer", b"another."
    ids = read_ids(puts(rows(6)))

    def put(client: Client, run: int, count: int, producer: bytes = producer) -> None:
        batch = rows(6).slice(0, count)
        client.put_messages(replace_ids(puts(batch), producer, tagged(ids[:count], run, 0)))

    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        assert client.producer(producer, 1, CLAIM) == ProducerState(term=0)
        put(client, 1, 3)
        assert client.producer(producer, 2, CLAIM).other_runs == 3
        assert client.producer(producer, 1, CLAIM) == ProducerState(3, 0, term=0) == client.producer(producer, 1)
        put(client, 1, 3)
        put(client, 1, 6, other)
        put(client, 2, 2)
        with pytest.raises(GroupError, match="expected messages of the job's last run"):
            put(client, 1, 4)
        assert client.producer(producer).count == 5
        client.producer(producer, 3, CLAIM)
        for run in (1, 2):
            with pytest.raises(GroupError, match="expected messages of the job's last run"):
                put(client, run, 5)


def test_the_state_of_a_producer_has_its_runs_and_identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From sorted runs on disk, and from memory; also after a restart."""
    monkeypatch.setattr(leader_tables, "_MAX_IDS", 4)
    batch, producer = rows(6), b"producer"
    ids = read_ids(puts(batch))
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        assert client.producer(producer, 1) == ProducerState(term=0)
        for run in (1, 2):
            client.put_messages(replace_ids(puts(batch), producer, tagged(ids, run, 0)))
            if run == 1:
                assert client.producer(producer, 1) == ProducerState(6, term=0)
                assert client.producer(producer, 9).other_runs == 6
        client.put_messages(puts(rows(3)))
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        client.put_messages(replace_ids(puts(batch), producer, numbered_id(7).repeat(6, axis=0)))
        state = client.producer(producer, 2)
        assert (state.count, state.other_runs, state.ids) == (13, 7, b"")
        found, index = [], 0
        while index >= 0:
            state = client.producer(producer, 2, index)
            found.append(words_of(state.ids))
            index = state.next_index
        assert [len(page) for page in found] == [4, 4, 4, 1]
        expected = [*tagged(ids, 1, 0), *tagged(ids, 2, 0), *numbered_id(7)]
        assert (np.concatenate(found) == np.array(expected)).all()


def test_equal_rows_of_another_job_are_appended(one: tuple[MessageNodes, Client]) -> None:
    _, client = one
    client.put_messages(puts(rows(5)))
    assert [put.index for put in client.put_messages(puts(rows(5), job="other"))] == list(range(5, 10))
    assert [put.index for put in client.put_messages(puts(rows(5), job=None), is_idempotent=False)] == [*range(10, 15)]
    assert [put.index for put in client.put_messages(puts(rows(5), job=None), is_idempotent=False)] == [*range(15, 20)]


def test_duplicates_are_located_after_a_restart(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        first = list(client.put_messages(puts(rows(100))))
        group.stop()
        group.start()
        assert list(client.put_messages(puts(rows(100)))) == first
        found = client.put_messages(puts(rows(1, 100, queueId=[0])))
        queue_ends = max(put.queue_offset for n, put in enumerate(first) if n % 4 == 0) + 1
        assert [(put.index, put.queue_offset) for put in found] == [(100, queue_ends)]


@pytest.mark.parametrize("what", ["identities", "consumequeue", "both", "damaged"])
def test_lost_state_is_rebuilt_from_the_log(tmp_path: Path, what: str) -> None:
    with message_nodes(tmp_path, 1) as group, client_of(group) as client:
        first = list(client.put_messages(puts(rows(60))))
        group.stop()
        root = group.root("n0")
        if what in ("identities", "both"):
            shutil.rmtree(root / "dledger-n0" / "identities")
        if what in ("consumequeue", "both"):
            shutil.rmtree(root / "consumequeue")
        if what == "damaged":
            for path in (root / "dledger-n0" / "identities").iterdir():
                path.write_bytes(path.read_bytes()[:-8])
        group.start()
        assert list(client.put_messages(puts(rows(60)))) == first
        assert [put.queue_offset for put in client.put_messages(puts(rows(4, 60, queueId=[0, 1, 2, 3])))] == [15] * 4
        group.stop()
        assert not [row for batch in read_table(open_log(root), "audit") for row in batch.to_pylist()]


def test_messages_with_expired_identities_are_appended_again(tmp_path: Path) -> None:
    group = MessageNodes(tmp_path, 1)
    group.settings = replace(SMALL_QUEUES, producer_id_expiry_ms=400)
    try:
        group.start()
        with client_of(group) as client:
            client.put_messages(puts(rows(5)))
            group.stop()
            time.sleep(0.6)
            group.start()
            assert [put.index for put in client.put_messages(puts(rows(5)))] == list(range(5, 10))
    finally:
        group.close()


def test_a_killed_node_knows_what_it_acknowledged(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    peers = peers_text([port])
    flags = ("--messages", "--data-file-size", "1m")
    served = Served("n0", peers, tmp_path, *flags)
    try:
        served.ready()
        with client_of(peers) as client:
            first = list(client.put_messages(puts(rows(500))))
            served.kill()
            served.close()
            served = Served("n0", peers, tmp_path, *flags)
            served.ready()
            assert list(client.put_messages(puts(rows(500)))) == first
            client.put_messages(puts(rows(10, 500)))
        assert served.terminate() == 0
    finally:
        served.close()
    assert [found[3][:10] for found in contents(tmp_path)] == [b"%010d" % n for n in range(510)]
    assert not (tmp_path / "abort").exists()
    assert not [row for batch in read_table(open_log(tmp_path), "audit") for row in batch.to_pylist()]


def test_read_only_folders_may_be_among_the_others(tmp_path: Path) -> None:
    """In a broker.conf storePathDLedgerCommitLog names all folders, readOnlyCommitLogStorePaths some of them."""
    dirs, read_only = (tmp_path / "a", tmp_path / "b"), (tmp_path / "b",)
    store = MmapFileStore(StoreConfig(tmp_path, **SMALL, data_dirs=dirs, read_only_data_dirs=read_only))
    service = MessageService.open(tmp_path, "n0", HOST_BYTES, dirs, SMALL_QUEUES, read_only)
    store.startup()
    service.started(store)
    try:
        service.role_changed(True, 1)
        for start in (0, 3):
            bodies = puts(rows(3, start, queueId=[0] * 3))
            eventually(lambda: service.is_ready)
            admitted = service.admit(bodies, 4)
            assert admitted.bodies is not None
            found = service.appended(admitted, store.append_as_leader(admitted.bodies, 1))
            assert [offset for _, _, offset in struct.iter_unpack(">qqq", found)] == [*range(start, start + 3)]
            service.committed(_commit(store, store.ledger_end_index))
            service.role_changed(True, 1)
    finally:
        service.stopped()
        store.shutdown()
        service.close()


def test_a_root_is_used_by_one_node_only(one: tuple[MessageNodes, Client]) -> None:
    with pytest.raises(StoreError, match="the store is open in this process"):
        MessageService.open(one[0].root("n0"), "n1")


def test_a_root_with_the_queues_of_another_node_is_rejected(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    client.put_messages(puts(rows(4)))
    group.stop()
    root = group.root("n0")
    before = contents(root)
    with pytest.raises(StoreError, match="expected no queues of another node, found those of dledger-n0: give n1 a"):
        MessageService.open(root, "n1")
    MessageService.open(root, "n0").close()
    assert contents(root) == before and not (root / "dledger-n1").exists()


def test_a_log_continues_an_old_commitlog(tmp_path: Path) -> None:
    """Its queues continue, and nothing is served before they are known."""
    payloads = [mq_message("Orders", b"old", queue_id=n % 2, queue_offset=n // 2) for n in range(40)]
    old = write_commitlog(tmp_path / "n0", payloads)
    with message_nodes(tmp_path, 1, store_options={"index_file_size": 32 * 1024}) as group, client_of(group) as client:
        found = list(client.put_messages(puts(rows(4, queueId=[0, 1, 2, 0]))))
        divided = old.segments[-1].end
        assert [(put.index, put.queue_offset) for put in found] == [(0, 20), (1, 20), (2, 0), (3, 21)]
        assert found[0].pos == divided
        group.stop()
        group.start()
        assert list(client.put_messages(puts(rows(4, queueId=[0, 1, 2, 0])))) == found
    assert [row[3] for row in contents(tmp_path / "n0")][:40] == [b"old"] * 40


@pytest.mark.parametrize(
    ("folder", "flags", "text"),
    [
        ("dledger-n0", ("--messages",), "started without --messages"),
        ("n0/dledger-n0", (), "started with --messages"),
        ("n0/dledger-n0", ("--messages",), "use --nodes 1"),
    ],
)
def test_a_cluster_keeps_its_kind_of_service(tmp_path: Path, folder: str, flags: tuple[str, ...], text: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--nodes", "2", "--store", str(tmp_path), *flags]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert text in run.stderr


def test_a_cluster_gives_each_member_a_root(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--json", "--nodes", "1", "--messages"]
    line += ["--store", str(tmp_path), "--base-port", str(port), "--data-file-size", "1m"]
    run = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        row = json.loads(run.stdout.readline())
        with client_of(row["peers"]) as client:
            assert len(client.put_messages(puts(rows(5)))) == 5
    finally:
        run.terminate()
        assert run.wait(30) == 0
        assert run.stdout is not None
        run.stdout.close()
    assert [row[3][:10] for row in contents(tmp_path / "n0")] == [b"%010d" % n for n in range(5)]
    assert (tmp_path / "n0" / "consumequeue" / "Orders").is_dir()


# Leadership


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [True, False], ids=["new messages", "duplicates only"])
def test_leadership_moves_with_uncommitted_entries_at_the_end(tmp_path: Path, is_new: bool) -> None:
    """One of three is down, and the other two transfer leadership while their last entries are not committed.

    A leader that waits for these blocks the next put, which would commit them: RocketMQ 5.3.3 never serves again.
    """
    with message_nodes(tmp_path, 3) as group, client_of(group) as client:
        leader = group.leader()
        other, down = (node_id for node_id in group.ids if node_id != leader)
        first = list(client.put_messages(puts(rows(10))))
        group.stop(down, other)
        unread = _put_uncommitted(group, leader, rows(15, 10))
        group.stop(leader)
        for node_id in (leader, other):
            # The member that is down could be a Java member, so no NOOP is appended.
            node_dir = group.root(node_id) / f"dledger-{node_id}"
            write_members(node_dir, load_members(node_dir))
        group.start(leader, other)
        # Only the old leader has the longer log; its last entries are of an older term, so nothing commits them.
        assert group.leader() == leader
        eventually(lambda: end_index(group, other) == 24)
        client.transfer(other)
        assert group.leader() == other
        assert {group.status(node_id)["committedIndex"] for node_id in (leader, other)} == {9}
        bodies = joined([unread, puts(rows(5, 25, queueId=[0] * 5))]) if is_new else unread
        caller = group.caller(other).hello()
        try:
            request = PutRequest(bodies=bodies, queue_nums=4)
            response = eventually(lambda: _accepted(caller.call(request)), 2 * ELECTION_SECONDS)
        finally:
            caller.close()
        locations = struct.iter_unpack(">qqq", response.positions)
        assert [index for index, _, _ in locations] == list(range(10, 30 if is_new else 25))
        assert list(client.put_messages(puts(rows(10)))) == first
    for node_id in (leader, other):
        found = contents(group.root(node_id))
        assert [row[3][:10] for row in found] == [b"%010d" % n for n in range(30 if is_new else 25)]
        offsets = [row[2] for row in found if row[1] == 0]
        assert offsets == list(range(len(offsets)))


def _put_uncommitted(group: MessageNodes, leader: str, batch: Any) -> Bodies:
    """Messages that only a leader has."""
    bodies, end = puts(batch), end_index(group, leader)
    caller = group.caller(leader).hello()
    try:
        caller.send(PutRequest(bodies=bodies, queue_nums=4))
        eventually(lambda: end_index(group, leader) == end + bodies.count)
    finally:
        caller.close()
    return bodies


def _accepted(response: Any) -> Any:
    return response if response.code == ResponseCode.SUCCESS else None


def test_every_leader_finds_duplicates(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 3) as group, client_of(group) as client:
        first = list(client.put_messages(puts(rows(40))))
        for _ in range(2):
            target = next(node_id for node_id in group.ids if node_id != group.leader())
            eventually(lambda node_id=target: end_index(group, node_id) == 39)
            client.transfer(target)
            assert group.leader() == target
            assert list(client.put_messages(puts(rows(40)))) == first
        found = client.put_messages(puts(rows(4, 40, queueId=[0, 1, 2, 3])))
        assert [put.queue_offset for put in found] == [10] * 4


@pytest.mark.slow
def test_queue_offsets_of_lost_entries_are_reused(tmp_path: Path) -> None:
    """Entries that only the old leader has are truncated when it follows, with their identities."""
    with message_nodes(tmp_path, 3) as group, client_of(group) as client:
        leader = group.leader()
        client.put_messages(puts(rows(4, queueId=[0] * 4)))
        others = [node_id for node_id in group.ids if node_id != leader]
        group.stop(*others)
        lost = _put_uncommitted(group, leader, rows(3, 4, queueId=[0] * 3))
        group.stop(leader)
        group.start(*others)
        assert [put.queue_offset for put in client.put_messages(puts(rows(2, 50, queueId=[0, 0])))] == [4, 5]
        group.start(leader)
        eventually(lambda: end_index(group, leader) == 5)
        group.leader()
        client.transfer(leader)
        assert [(put.index, put.queue_offset) for put in client.put_messages(lost)] == [(6, 6), (7, 7), (8, 8)]


def _ends_and_commits(client: Client, members: Iterable[str]) -> set[int]:
    """The members' last and committed indexes: one index once all have everything."""
    found = [client.status(node_id) for node_id in members]
    return {index for status in found for index in (status.end_index, status.committed_index)}


@pytest.mark.slow
def test_every_message_is_in_the_log_once_when_leaders_are_killed(tmp_path: Path) -> None:
    ports = free_ports(3)
    peers = peers_text(ports)

    def serve(node_id: str) -> Served:
        return Served(node_id, peers, tmp_path / node_id, "--messages")

    members = {node_id: serve(node_id) for node_id in ("n0", "n1", "n2")}
    units = [puts(rows(40, 40 * n), round_robin=40 * n) for n in range(60)]
    try:
        for member in members.values():
            member.ready()
        with client_of(peers) as client, ThreadPoolExecutor(1) as pool:
            client.topics(["Orders"], 4)
            done: list[PutResult] = []
            putting = pool.submit(lambda: [done.append(client.put_messages(unit)) for unit in units])
            for goal in (10, 30):
                eventually(lambda goal=goal: len(done) >= goal, 60)
                leader = client.metadata().leader_id
                assert leader is not None
                members[leader].kill()
                members[leader].close()
                members[leader] = serve(leader)
                members[leader].ready()
            putting.result(120)
            located = [put for result in done for put in result]
            assert len({put.index for put in located}) == 40 * 60
            # The current leader returns the same locations for all of them.
            assert [put for unit in units for put in client.put_messages(unit)] == located
            eventually(lambda: len(_ends_and_commits(client, members)) == 1, 60)
        assert {member.terminate() for member in members.values()} == {0}
    finally:
        for member in members.values():
            member.close()
    for node_id in members:
        found = contents(tmp_path / node_id)
        assert sorted(row[3][:10] for row in found) == [b"%010d" % n for n in range(40 * 60)]
        for queue in range(4):
            offsets = [row[2] for row in found if row[1] == queue]
            assert offsets == list(range(len(offsets)))
        assert not [row for batch in read_table(open_log(tmp_path / node_id), "audit") for row in batch.to_pylist()]


@pytest.mark.slow
def test_a_duplicate_waits_until_the_first_copy_is_committed(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 2, core_options={**FAST, "max_wait_ack_time_ms": 700}) as group:
        leader = group.leader()
        (other,) = (node_id for node_id in group.ids if node_id != leader)
        caller = group.caller(leader).hello()
        try:
            group.stop(other)
            bodies = puts(rows(3))
            code = caller.call(PutRequest(bodies=bodies, queue_nums=4)).code
            assert code == ResponseCode.WAIT_QUORUM_ACK_TIMEOUT
            # It is in the log and not committed: no response may acknowledge it.
            assert caller.call(PutRequest(bodies=bodies, queue_nums=4)).code != ResponseCode.SUCCESS
        finally:
            caller.close()
        group.start(other)
        with client_of(group) as client:
            assert [put.index for put in client.put_messages(bodies)] == [0, 1, 2]


def test_raw_entries_and_messages_share_a_log(one: tuple[MessageNodes, Client]) -> None:
    group, client = one
    caller = group.caller("n0").hello()
    try:
        client.put_messages(puts(rows(2, queueId=[0, 0])))
        assert caller.append(b"raw").index == 2
        assert [put.queue_offset for put in client.put_messages(puts(rows(1, 2, queueId=[0])))] == [2]
        assert caller.call(AppendRequest(bodies=Bodies(1, b"\0\0\0\0"))).index == 4
    finally:
        caller.close()


def test_queue_offsets_continue_after_messages_in_raw_entries(one: tuple[MessageNodes, Client]) -> None:
    """A log is restored as raw entries, then its leader accepts puts."""
    group, client = one
    caller = group.caller("n0").hello()
    try:
        messages = [mq_message("Orders", queue_id=1, queue_offset=n).make(0) for n in range(5)]
        eventually(lambda: caller.append(*messages).code == ResponseCode.SUCCESS)
        unit = group.root("n0") / "consumequeue" / "Orders" / "1" / "00000000000000000000"
        eventually(lambda: unit.exists() and any(unit.read_bytes()[80:100]))
        assert [put.queue_offset for put in client.put_messages(puts(rows(2, queueId=[1, 1])))] == [5, 6]
    finally:
        caller.close()
    eventually(lambda: any(unit.read_bytes()[120:140]))


def test_the_times_of_a_part_include_old_messages_among_new_ones() -> None:
    now = time.time_ns() // 1_000_000
    for stamps in ([now - 5, now, 1_000], [now + 10**9, now - 5], []):
        ids = PutIds(np.arange(len(stamps)), b"", np.array(stamps, np.int64))
        found = covered_range(DispatchedPart(3, 8, 2, 900, {}, ids, now - 5, 1_000))
        assert (found.first_index, found.last_index, found.last_term) == (3, 8, 2)
        assert found.first_store_timestamp == min([*stamps, now - 5])
        assert found.last_store_timestamp == 1_000 if not stamps else found.last_store_timestamp >= now


@pytest.mark.parametrize("queue_offset", [2**62, 2**63 - 1])
def test_a_queue_offset_out_of_range_is_ignored(tmp_path: Path, queue_offset: int) -> None:
    store = write_dledger(tmp_path, [mq_message("A", queue_offset=3), mq_message("A", queue_offset=queue_offset)])
    tail = read_tail(get_engine(), LogSegments(tmp_path, [tmp_path / "dledger-n0" / "data"]), 0, store.end)
    assert tail is not None
    assert tail.ends == {("A", 0): 4}


def test_results_are_in_the_order_of_the_messages(one: tuple[MessageNodes, Client]) -> None:
    found = one[1].put_messages(puts(rows(3)))
    assert isinstance(found, PutResult)
    assert (found.count, found.first_index, found.last_index) == (3, 0, 2)


def test_the_put_of_the_client_page_runs_and_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    code = page.partition("## Messages")[2].split("```python\n")[1].split("```")[0]
    with message_nodes(tmp_path, 1) as group:
        group.ready_leader()
        for _ in range(2):
            exec(code, {"peers": group.peers})
    first, again = capsys.readouterr().out.splitlines()
    assert first == again and first.startswith("[Put(index=")
