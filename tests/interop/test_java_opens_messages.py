"""RocketMQ opens the stores that our message mode wrote, sees every message and goes on; ours opens what it leaves.

The suite takes one course with each version; with DLEDGER_INTEROP=SECONDS random ones are taken for so long
(DLEDGER_INTEROP_SEED chooses them): ended in order or killed, with our ConsumeQueue and index files or without.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import pyspark_dledger as dl
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.raft.client import Client
from pyspark_dledger.rocketmq.service.message_service import MessageService
from tests.interop.java_broker import cluster
from tests.interop.java_store import COMPILED_WITH, MAIN_VERSIONS, JavaStore
from tests.interop.java_stores import JavaMissing, prepare
from tests.interop.written import (
    LONG_TOPIC,
    QUEUES,
    ROLLBACK,
    TOPICS,
    Row,
    Writer,
    Written,
    gaps,
    problems,
    random_rows,
)
from tests.support.groups import Served, eventually, free_ports, peers_text

SECONDS = float(os.environ.get("DLEDGER_INTEROP") or 0)
SEED = int(os.environ.get("DLEDGER_INTEROP_SEED") or 1)
JAVA_SIZES: dict[str, object] = {"mappedFileSizeCommitLog": 1 << 20}
# What a broker has where nothing is set, and ours.
DEFAULT_SIZES = {"mappedFileSizeConsumeQueue": 6_000_000, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
JAVA_TOPIC = "JavaTopic"
JAVA_PUTS = 30
# 4.9.8 knows no messages of the second version, which long topics need.
TOPICS_OF = {"4.9.8": TOPICS, "5.3.3": (*TOPICS, LONG_TOPIC)}


class Course(NamedTuple):
    """How a store is written, ended and opened again."""

    version: str
    nodes: int
    is_killed: bool
    """Ours, before RocketMQ opens it."""
    is_java_killed: bool
    without: tuple[str, ...]
    """Folders of ours that RocketMQ does not find."""

    @property
    def has_abort(self) -> bool:
        """RocketMQ 5.3.3 makes a ConsumeQueue anew only where its last end was unclean, or seems so."""
        return self.is_killed or "consumequeue" in self.without

    @property
    def has_all_keys(self) -> bool:
        """After an unclean end RocketMQ drops index files; nor does it make those anew that are missing."""
        return not self.has_abort and "index" not in self.without


SHORT = (Course("4.9.8", 1, False, True, ()), Course("5.3.3", 1, True, False, ()))
LOST = ((), ("consumequeue",), ("index",), ("consumequeue", "index"), ("consumequeue", "index", "checkpoint"))


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    try:
        for version in MAIN_VERSIONS:
            prepare("RunStore", version, COMPILED_WITH)
    except JavaMissing as reason:
        pytest.skip(f"no RocketMQ to open stores with: {reason}")


def test_rocketmq_opens_what_ours_wrote_and_ours_again(tmp_path: Path) -> None:
    """Both versions at once: most of the time each of them waits for its own timers."""
    folders = [tmp_path / str(number) for number in range(len(SHORT))]
    with ThreadPoolExecutor(len(SHORT)) as pool:
        for done in [pool.submit(take, *each, SEED) for each in zip(SHORT, folders, strict=True)]:
            done.result()


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS takes random courses for so long")
def test_rocketmq_opens_what_ours_wrote_in_any_course(tmp_path: Path) -> None:
    choice, number = random.Random(SEED), 0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        course = Course(
            choice.choice(MAIN_VERSIONS),
            choice.choice((1, 3)),
            choice.random() < 0.5,
            choice.random() < 0.5,
            choice.choice(LOST),
        )
        seed = choice.getrandbits(32)
        try:
            take(course, tmp_path / str(number), seed)
        except Exception as error:
            raise AssertionError(f"{course}, seed {seed}: {error}") from error
        shutil.rmtree(tmp_path / str(number))
        number += 1


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS starts a broker")
def test_a_broker_serves_what_ours_wrote_and_ours_what_it_did(tmp_path: Path) -> None:
    """A consumer gets every message, delayed ones, too, when the broker delivers them; then ours goes on."""
    ports = free_ports(1)
    rows = [numbered(number, 1 if number % 10 == 0 else None) for number in range(300)]
    with group(tmp_path, ports) as client:
        written = Writer(client).write(rows)
    with cluster(tmp_path, settings=JAVA_SIZES | DEFAULT_SIZES) as brokers:
        brokers.master()
        clients = brokers.clients
        eventually(lambda: len(clients.consume(TOPICS[0])) >= len(rows), 60)
        consumed = clients.consume(TOPICS[0])
        assert sorted(int(each.text) for each in consumed) == list(range(len(rows)))
        at_once = {(each.queue_offset, each.physical_offset) for each in written if each.topic == TOPICS[0]}
        assert at_once <= {(each.queue_offset, each.physical_offset) for each in consumed}
        clients.send_first(TOPICS[0])
        brokers.brokers["n0"].stop()
    with group(tmp_path, ports) as client:
        more = Writer(client).write([numbered(len(rows), None)])[0]
    queue = [row for row in rows_of(tmp_path / "n0", TOPICS[0]) if row["queueId"] == more.row["queueId"]]
    assert [row["queueOffset"] for row in queue] == list(range(more.queue_offset + 1))
    assert queue[-1]["pos"] == more.pos


def numbered(number: int, delay_level: int | None) -> Row:
    """A row whose body is a number."""
    row: Row = dict.fromkeys(PUT_SCHEMA.names)
    return row | {
        "topic": TOPICS[0],
        "body": b"%d" % number,
        "queueId": number % QUEUES,
        "keys": f"key{number}",
        "transaction": 0,
        "delayLevel": delay_level,
    }


def rows_of(root: Path, topic: str) -> list[Row]:
    columns = ["pos", "queueId", "queueOffset"]
    return [row for batch in dl.open_log(str(root)).scan(columns=columns, topic=topic) for row in batch.to_pylist()]


def take(course: Course, folder: Path, seed: int) -> None:
    """Ours writes, RocketMQ judges and writes; of a group of one ours judges and writes, and RocketMQ judges again."""
    choice = random.Random(seed)
    folder.mkdir(exist_ok=True)
    topics, ports = TOPICS_OF[course.version], free_ports(course.nodes)
    with group(folder, ports, course.is_killed) as client:
        writer = Writer(client)
        written = [each for _ in range(6) for each in writer.write(random_rows(choice, 150, topics))]
        client.append_batch(filler(folder / "nothing"))
        rows = random_rows(choice, 20, topics)
        bodies = writer.encode(rows)
        last = writer.put(bodies, rows)
        written += last
        wait_committed(client, ports, last[-1].index)
    for node in range(course.nodes):
        root = folder / f"n{node}"
        for name in course.without:
            forget(root / name)
        if course.has_abort:
            (root / "abort").touch()
        judge(course, root, f"n{node}", written)
        check_own_view(root, written)
    if course.nodes == 1:
        with group(folder, ports) as client:
            writer = Writer(client)
            assert writer.put(bodies, rows) == last
            written += writer.write(random_rows(choice, 200, topics))
        judge_again(course, folder / "n0", written)


def filler(root: Path) -> Bodies:
    """What a leader of ours writes where it has to write something: no message that anybody gets."""
    with closing(MessageService.open(root, "n0")) as service:
        return service.filler()


@contextmanager
def group(folder: Path, ports: Sequence[int], is_killed: bool = False) -> Iterator[Client]:
    """A group of ours that serves messages, each member with a root of its own; ended in order, or killed."""
    peers = peers_text(ports)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(closing(Served(f"n{node}", peers, folder / f"n{node}", "--messages")))
            for node in range(len(ports))
        ]
        for node in nodes:
            node.ready()
        with dl.connect("g", peers) as client:
            yield client
        for node in nodes:
            node.kill() if is_killed else node.process.terminate()
        for node in nodes:
            assert is_killed or node.process.wait(30) == 0, node.errors()


def wait_committed(client: Client, ports: Sequence[int], index: int) -> None:
    """Until every member has committed up to that index, which followers learn a little later."""
    for node in range(len(ports)):
        eventually(lambda node=node: client.status(f"n{node}").committed_index >= index)  # type: ignore[misc]


def forget(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def java(course: Course, root: Path, node: str) -> Iterator[JavaStore]:
    store = JavaStore(course.version, root, JAVA_SIZES, node=node)
    try:
        store.wait_started()
        store.lead()
        yield store
    finally:
        store.close()


def judge(course: Course, root: Path, node: str, written: list[Written]) -> None:
    """RocketMQ has every message by its place in the queue, its offset and its keys; and it goes on."""
    with java(course, root, node) as store:
        end = store.state()["end"]
        found = store.dump()
        assert problems(written, found.messages) == []
        assert gaps(found.messages) == {}
        assert found.missing_by_offset == []
        if course.has_all_keys:
            assert found.missing_by_key == []
            check_index(store, written)
        store.put(JAVA_PUTS, JAVA_TOPIC, 2)
        store.put(JAVA_PUTS, TOPICS[0], 2)
        eventually(lambda: len(store.dump().messages) == len(found.messages) + 2 * JAVA_PUTS)
        assert store.state()["end"] == end + 2 * JAVA_PUTS
        assert gaps(store.dump().messages) == {}
        if not course.is_java_killed:
            store.stop()


def check_index(store: JavaStore, written: list[Written]) -> None:
    """Messages that are in no queue: prepared ones are indexed, those that were rolled back are not."""
    for each in written:
        if not each.is_in_queue:
            for key in each.keys:
                is_indexed = each.physical_offset in store.by_key(each.topic, key)
                assert is_indexed == (each.row["transaction"] != ROLLBACK), each


def check_own_view(root: Path, written: list[Written]) -> None:
    """Our reader has what ours wrote and RocketMQ added, and the ConsumeQueue fits the log."""
    log = dl.open_log(str(root))
    rows = [row for batch in log.scan(columns=["pos", "topic", "problem"]) for row in batch.to_pylist()]
    assert {each.pos for each in written} <= {row["pos"] for row in rows}
    assert [row for row in rows if row["problem"]] == []
    assert sum(row["topic"] == JAVA_TOPIC for row in rows) == JAVA_PUTS
    command = [sys.executable, "-m", "pyspark_dledger", "audit", str(root)]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def judge_again(course: Course, root: Path, written: list[Written]) -> None:
    """The store that ours opened after RocketMQ, and ended in order."""
    with java(course, root, "n0") as store:
        found = store.dump()
        ours = [each for each in found.messages if each.properties.get("TAGS") != "java"]
        assert len(found.messages) - len(ours) == 2 * JAVA_PUTS
        assert problems(written, ours) == []
        assert gaps(found.messages) == {}
        assert found.missing_by_offset == []
        if course.has_all_keys:
            assert found.missing_by_key == []
            check_index(store, written)
