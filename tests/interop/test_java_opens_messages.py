"""RocketMQ opens stores of our message mode, reads every message and appends. Our node then opens them again.

The suite runs one course with each version. DLEDGER_INTEROP=SECONDS runs random courses that long
(DLEDGER_INTEROP_SEED is the seed): clean shutdown or kill, with our ConsumeQueue and index files or deleted.
"""

from __future__ import annotations

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
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.raft.client import Client
from pyspark_dledger.rocketmq.backup import backup, restore
from pyspark_dledger.rocketmq.service.message_service import MessageService
from tests.interop.java_broker import cluster
from tests.interop.java_store import COMPILED_WITH, MAIN_VERSIONS, JavaStore, serving_store
from tests.interop.java_stores import prepare
from tests.interop.message_writer import (
    LONG_TOPIC,
    QUEUES,
    ROLLBACK,
    TOPICS,
    Row,
    Writer,
    WrittenMessage,
    problems,
    queues_with_gaps,
    random_rows,
)
from tests.support.groups import Served, eventually, free_ports, peers_text
from tests.support.long_runs import SECONDS, SEED

JAVA_SIZES: dict[str, object] = {"mappedFileSizeCommitLog": 1 << 20}
# Defaults of a broker, and ours.
DEFAULT_SIZES = {"mappedFileSizeConsumeQueue": 6_000_000, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
JAVA_TOPIC = "JavaTopic"
JAVA_PUTS = 30
# Long topics need version 2 of the message format, which 4.9.8 lacks.
TOPICS_OF = {"4.9.8": TOPICS, "5.3.3": (*TOPICS, LONG_TOPIC)}


class Course(NamedTuple):
    """How a store is written, ended and reopened."""

    version: str
    nodes: int
    is_killed: bool
    """Our nodes are killed before RocketMQ opens the store."""
    is_java_killed: bool
    deleted: tuple[str, ...]
    """Files and folders deleted before RocketMQ opens the store."""
    is_restored: bool = False
    """RocketMQ opens what `restore` makes of a backup."""

    @property
    def has_abort(self) -> bool:
        """RocketMQ 5.3.3 rebuilds a ConsumeQueue only after an unclean end or with an abort file."""
        return self.is_killed or self.is_restored or "consumequeue" in self.deleted

    @property
    def has_all_keys(self) -> bool:
        """RocketMQ drops index files after an unclean end and does not rebuild missing ones."""
        return not self.has_abort and "index" not in self.deleted


SUITE_COURSES = (Course("4.9.8", 1, False, True, ()), Course("5.3.3", 1, True, False, (), True))
DELETED = ((), ("consumequeue",), ("index",), ("consumequeue", "index"), ("consumequeue", "index", "checkpoint"))


@pytest.fixture(scope="module", autouse=True)
def _rocketmq() -> None:
    for version in MAIN_VERSIONS:
        prepare("RunStore", version, COMPILED_WITH)


def test_rocketmq_opens_our_message_stores(tmp_path: Path) -> None:
    """Runs both versions at once: each mostly waits for its own timers."""
    folders = [tmp_path / str(number) for number in range(len(SUITE_COURSES))]
    with ThreadPoolExecutor(len(SUITE_COURSES)) as pool:
        for done in [pool.submit(run_course, *each, SEED) for each in zip(SUITE_COURSES, folders, strict=True)]:
            done.result()


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS runs random courses")
def test_rocketmq_opens_our_message_stores_after_random_courses(tmp_path: Path) -> None:
    choice, number = random.Random(SEED), 0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        course = Course(
            choice.choice(MAIN_VERSIONS),
            choice.choice((1, 3)),
            choice.random() < 0.5,
            choice.random() < 0.5,
            choice.choice(DELETED),
            choice.random() < 0.5,
        )
        seed = choice.getrandbits(32)
        try:
            run_course(course, tmp_path / str(number), seed)
        except Exception as error:
            raise AssertionError(f"{course}, seed {seed}: {error}") from error
        shutil.rmtree(tmp_path / str(number))
        number += 1


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS starts a broker")
def test_broker_serves_our_messages_and_our_node_appends_after_it(tmp_path: Path) -> None:
    """A consumer gets every message, delayed ones when due. Our node then appends to the store."""
    ports = free_ports(1)
    rows = [numbered_row(number, 1 if number % 10 == 0 else None) for number in range(300)]
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
        more = Writer(client).write([numbered_row(len(rows), None)])[0]
    queue = [row for row in read_rows(tmp_path / "n0", TOPICS[0]) if row["queueId"] == more.row["queueId"]]
    assert [row["queueOffset"] for row in queue] == list(range(more.queue_offset + 1))
    assert queue[-1]["pos"] == more.pos


def numbered_row(number: int, delay_level: int | None) -> Row:
    """Returns a row with a number as body."""
    row: Row = dict.fromkeys(PUT_SCHEMA.names)
    return row | {
        "topic": TOPICS[0],
        "body": b"%d" % number,
        "queueId": number % QUEUES,
        "keys": f"key{number}",
        "transaction": 0,
        "delayLevel": delay_level,
    }


def read_rows(root: Path, topic: str) -> list[Row]:
    columns = ["pos", "queueId", "queueOffset"]
    return [row for batch in dl.open_log(str(root)).scan(columns=columns, topic=topic) for row in batch.to_pylist()]


def run_course(course: Course, folder: Path, seed: int) -> None:
    """Writes with our nodes, checks with RocketMQ and, for one node, writes and checks again."""
    choice = random.Random(seed)
    folder.mkdir(exist_ok=True)
    topics, ports = TOPICS_OF[course.version], free_ports(course.nodes)
    with group(folder, ports, course.is_killed) as client:
        writer = Writer(client)
        written = [each for _ in range(6) for each in writer.write(random_rows(choice, 150, topics))]
        client.append_batch(filler(folder / "nothing"))
        # Two lists of members, as messages for nobody.
        client.add_member("n9", "127.0.0.1:1")
        client.remove_member("n9")
        rows = random_rows(choice, 20, topics)
        bodies = writer.encode(rows)
        last = writer.put(bodies, rows)
        written += last
        wait_committed(client, ports, last[-1].index)
    for node in range(course.nodes):
        root = folder / f"n{node}"
        if course.is_restored:
            # What a killed node had not dispatched is committed, but nothing on disk proves it.
            backup(root, folder / f"backup{node}", options=ReadOptions(committed_bound="end"))
            root.rename(folder / f"before{node}")
            restore(folder / f"backup{node}", root, f"n{node}", new_group="again")
        for name in course.deleted:
            remove(root / name)
        if course.has_abort:
            (root / "abort").touch()
        check_in_rocketmq(course, root, f"n{node}", written)
        check_in_our_reader(root, written)
    if course.nodes == 1:
        with group(folder, ports) as client:
            writer = Writer(client)
            assert writer.put(bodies, rows) == last
            written += writer.write(random_rows(choice, 200, topics))
        check_again_in_rocketmq(course, folder / "n0", written)


def filler(root: Path) -> Bodies:
    """Returns the entry that our leader appends in a new term: not a message for consumers."""
    with closing(MessageService.open(root, "n0")) as service:
        return service.filler()


@contextmanager
def group(folder: Path, ports: Sequence[int], is_killed: bool = False) -> Iterator[Client]:
    """Runs our group in message mode, each member with its own root. Ends it cleanly or kills it."""
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
    """Waits until every member has committed up to `index`; followers learn it a little later."""
    for node in range(len(ports)):
        eventually(lambda node=node: client.status(f"n{node}").committed_index >= index)  # type: ignore[misc]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check_in_rocketmq(course: Course, root: Path, node: str, written: list[WrittenMessage]) -> None:
    """Checks that RocketMQ finds every message by queue, offset and key, and appends more."""
    with serving_store(course.version, root, JAVA_SIZES, node=node) as store:
        end = store.state()["end"]
        found = store.dump()
        assert problems(written, found.messages) == []
        assert queues_with_gaps(found.messages) == {}
        assert found.missing_by_offset == []
        if course.has_all_keys:
            assert found.missing_by_key == []
            check_index(store, written)
        store.put(JAVA_PUTS, JAVA_TOPIC, 2)
        store.put(JAVA_PUTS, TOPICS[0], 2)
        eventually(lambda: len(store.dump().messages) == len(found.messages) + 2 * JAVA_PUTS)
        assert store.state()["end"] == end + 2 * JAVA_PUTS
        assert queues_with_gaps(store.dump().messages) == {}
        if not course.is_java_killed:
            store.stop()


def check_index(store: JavaStore, written: list[WrittenMessage]) -> None:
    """Checks messages outside queues: prepared ones are indexed, rolled back ones are not."""
    for each in written:
        if not each.is_in_queue:
            for key in each.keys:
                is_indexed = each.physical_offset in store.by_key(each.topic, key)
                assert is_indexed == (each.row["transaction"] != ROLLBACK), each


def check_in_our_reader(root: Path, written: list[WrittenMessage]) -> None:
    """Checks that our reader finds our and RocketMQ's messages and that the ConsumeQueue matches the log."""
    log = dl.open_log(str(root))
    rows = [row for batch in log.scan(columns=["pos", "topic", "problem"]) for row in batch.to_pylist()]
    assert {each.pos for each in written} <= {row["pos"] for row in rows}
    assert [row for row in rows if row["problem"]] == []
    assert sum(row["topic"] == JAVA_TOPIC for row in rows) == JAVA_PUTS
    command = [sys.executable, "-m", "pyspark_dledger", "audit", str(root)]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def check_again_in_rocketmq(course: Course, root: Path, written: list[WrittenMessage]) -> None:
    """Checks the store again after our node opened it and shut down."""
    with serving_store(course.version, root, JAVA_SIZES) as store:
        found = store.dump()
        ours = [each for each in found.messages if each.properties.get("TAGS") != "java"]
        assert len(found.messages) - len(ours) == 2 * JAVA_PUTS
        assert problems(written, ours) == []
        assert queues_with_gaps(found.messages) == {}
        assert found.missing_by_offset == []
        if course.has_all_keys:
            assert found.missing_by_key == []
            check_index(store, written)
