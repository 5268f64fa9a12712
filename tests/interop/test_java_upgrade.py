"""First start of message mode on the CommitLog of a broker without DLedger, compared with RocketMQ's own.

DLEDGER_INTEROP=SECONDS damages the old log in random ways for that long (DLEDGER_INTEROP_SEED is the seed).
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.rocketmq.broker.root_files import begin_over_old_log
from tests.interop.java_store import JavaStore, Received, serving_store
from tests.interop.message_writer import LONG_TOPIC, TOPICS, Writer, problems, random_rows
from tests.support.golden import Golden
from tests.support.groups import Served, free_ports, peers_text
from tests.support.long_runs import SECONDS, SEED
from tests.support.sparse_copy import copy_tree

VERSION = "5.3.3"
# The suite runs the first, make interop both.
CASES = ("mq-plain", "mq-plain-crc") if SECONDS else ("mq-plain",)
JAVA_TOPIC = "JavaTopic"
# A node deletes old files at four o'clock or if the disk is full.
KEPT_FLAGS = ("--set", "fileReservedHours=1000000", "--set", "enableDiskForceClean=false")

Unpack = Callable[[str], Path]


@pytest.mark.parametrize("case", CASES)
def test_upgrade_of_an_old_log_equals_rocketmqs(case: str, case_folder: Unpack, tmp_path: Path) -> None:
    """RocketMQ upgrades one copy, we another. RocketMQ then reads all messages in ours and appends."""
    theirs, ours = (copy_tree(case_folder(case), tmp_path / name) for name in ("theirs", "ours"))
    config = Golden(case, "").meta["config"]
    with serving_store(VERSION, theirs, config) as java:
        divided = java.state()["dividedOffset"]
        old = java.dump().messages
    rows = random_rows(random.Random(case), 300, (*TOPICS, LONG_TOPIC, old[0].topic))
    peers = peers_text(free_ports(1))
    flags = ("--messages", "--data-file-size", config["mappedFileSizeCommitLog"], *KEPT_FLAGS)
    with closing(Served("n0", peers, ours, *flags)) as node:
        node.ready()
        with dl.connect("g", peers) as client:
            written = Writer(client).write(rows)
        assert node.terminate() == 0, node.errors()
    assert written[0].pos == divided
    assert dl.open_log(str(ours)).state.divided_commitlog_offset == divided
    assert contents(ours / "commitlog") == contents(theirs / "commitlog")
    with serving_store(VERSION, ours, config) as java:
        assert java.state()["dividedOffset"] == divided
        found = java.dump()
        assert [each for each in by_offset(found.messages) if each.physical_offset < divided] == by_offset(old)
        assert problems(written, [each for each in found.messages if each.physical_offset >= divided]) == []
        assert found.missing_by_offset == []
        assert found.missing_by_key == []
        java.put(20, JAVA_TOPIC, 2)
        java.put(20, old[0].topic, 1)
        java.settle()
        assert unordered_queues(java.dump().messages) == []


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS damages old logs for so long")
def test_damaged_old_log_ends_where_rocketmq_ends_it(case_folder: Unpack, tmp_path: Path) -> None:
    choice, ends = random.Random(SEED), time.monotonic() + SECONDS
    compared = 0
    while time.monotonic() < ends:
        case = choice.choice(CASES)
        theirs = copy_tree(case_folder(case), tmp_path / "theirs")
        done = damage(theirs, choice)
        ours = copy_tree(theirs, tmp_path / "ours")
        divided = rocketmq_divided_offset(case, theirs)
        if divided is not None:
            data = ours / "dledger-n0" / "data"
            assert begin_over_old_log(ours, [data]) == divided, f"{case} after {done}"
            assert contents(ours / "commitlog") == contents(theirs / "commitlog"), f"{case} after {done}"
            assert sorted(file.name for file in data.iterdir()) == [f"{divided:020d}"], f"{case} after {done}"
            compared += 1
        for copy in (theirs, ours):
            shutil.rmtree(copy)
    assert compared > 0


def rocketmq_divided_offset(case: str, root: Path) -> int | None:
    """Returns the offset at which RocketMQ starts DLedger; None if it does not start."""
    with closing(JavaStore(VERSION, root, Golden(case, "").meta["config"])) as java:
        try:
            return int(java.state()["dividedOffset"])
        except (AssertionError, ConnectionError):
            return None


def damage(root: Path, choice: random.Random) -> list[str]:
    """Damages an old log like a crash or a manual copy without the last files.

    Damage before intact messages is left out: RocketMQ ends the log there and loses them, our code skips it.
    """
    files = sorted((root / "commitlog").iterdir())
    done = []
    for kind in choice.sample(("torn", "shorter", "abort"), choice.randrange(1, 4)):
        file = files[-1]
        data = bytearray(file.read_bytes())
        used = len(data.rstrip(b"\0"))
        at = choice.randrange(max(used, 1))
        if kind == "torn":
            data[at:] = bytes(len(data) - at)
        elif kind == "shorter" and len(files) > 1:
            file.unlink()
            files.pop()
        elif kind == "abort":
            (root / "abort").touch()
        if file.exists():
            file.write_bytes(data)
        done.append(f"{kind} {file.name} at {at}")
    return done


def by_offset(messages: list[Received]) -> list[Received]:
    return sorted(messages, key=lambda each: each.physical_offset)


def contents(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def unordered_queues(messages: list[Received]) -> list[tuple[str, int]]:
    """Returns the queues with gaps or descending offsets in log order. They may begin at any offset."""
    queues = dict[tuple[str, int], list[int]]()
    for each in by_offset(messages):
        queues.setdefault(each.queue, []).append(each.queue_offset)
    return [name for name, found in queues.items() if found != list(range(found[0], found[0] + len(found)))]
