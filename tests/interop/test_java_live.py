"""Groups of Java members over the network: streams and batches read what their responses prove to be committed.

The suite mixes three versions in one group. With DLEDGER_INTEROP=SECONDS each has a group of its own, too.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.tail.tail import NO_LIMITS, NOTHING, TailOffset, stream_options
from pyspark_dledger.raft.client import java_log
from pyspark_dledger.spark.group import group_log
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.group.group_partition import read_group_partition
from pyspark_dledger.spark.stream.group_tail import GroupTail
from tests.interop.java_group import QUICK, SMALL_FILES, JavaNode
from tests.interop.java_stores import prepare
from tests.support.groups import eventually, free_ports, peers_text
from tests.support.long_runs import SECONDS

MIXED = ("0.2.7", "0.3.1.2", "0.3.2")
ALONE = ("0.2.2", *MIXED) if SECONDS else ()
# A leader without followers stays one for seconds.
SETTINGS: dict[str, object] = {**QUICK, **SMALL_FILES, "heartBeatTimeIntervalMs": 500, "maxHeartBeatLeak": 8}


class JavaGroup:
    """A member of each of these versions; `nodes` are those that run."""

    def __init__(self, versions: tuple[str, ...], folder: Path) -> None:
        self.peers = peers_text(free_ports(len(versions)))
        self.nodes = {
            f"n{number}": JavaNode(version, "g", f"n{number}", self.peers, folder, SETTINGS)
            for number, version in enumerate(versions)
        }

    def leader(self) -> str:
        def found() -> str | None:
            return next((name for name, node in self.nodes.items() if node.state()["role"] == "LEADER"), None)

        return str(eventually(found))

    def append(self, count: int) -> dict[str, Any]:
        return self.nodes[self.leader()].append(count, 100)

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()


@contextmanager
def java_group(folder: Path, *versions: str) -> Iterator[JavaGroup]:
    for version in versions:
        prepare("RunServer", version, "0.3.1.2")
    group = JavaGroup(versions, folder)
    try:
        yield group
    finally:
        for node in group.nodes.values():
            node.close()


@contextmanager
def tail_of(group: JavaGroup, **options: str) -> Iterator[GroupTail]:
    given = {"group": "g", "peers": group.peers, "startingOffsets": "earliest", **options}
    tail = GroupTail(GroupAddress("g", group.peers), stream_options(parse_options(given), given), ("index", "body"))
    try:
        yield tail
    finally:
        tail.close()


def indexes(tail: GroupTail, start: TailOffset, end: TailOffset) -> list[int]:
    batches = [batch for part in tail.plan(start, end) for batch in read_group_partition(part)]
    return [index for batch in batches for index in batch.column("index").to_pylist()]


def batch_indexes(group: JavaGroup, **options: str) -> list[int]:
    source = dl.DefaultSource({"group": "g", "peers": group.peers, **options})
    reader: Any = source.reader(source.schema())
    return [
        index for part in reader.partitions() for batch in reader.read(part) for index in batch["index"].to_pylist()
    ]


@pytest.mark.parametrize("versions", [MIXED, *((version,) * 3 for version in ALONE)], ids=" ".join)
def test_java_group_is_read_up_to_what_is_proven(
    versions: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "_TIMEOUT_MS", 500)
    monkeypatch.setattr(java_log, "_SKIP_SECONDS", 0.5)
    with java_group(tmp_path, *versions) as group, tail_of(group, maxPartitionBytes="20k") as tail:
        # A leader can change in its first seconds on a busy machine, and then acknowledges none of its entries.
        eventually(lambda: group.append(500)["acknowledged"] == 500, 120)
        end = tail.latest(NOTHING, NO_LIMITS)
        count = group.nodes[group.leader()].state()["end"] + 1
        assert end.index == count - 1
        assert indexes(tail, NOTHING, end) == list(range(count))
        # Without followers the leader appends, and commits nothing. Java's GET returns such entries.
        leader = group.leader()
        followers = [node for name, node in group.nodes.items() if name != leader]
        for node in followers:
            node.send_signal(signal.SIGSTOP)
        assert group.nodes[leader].append(5, 100)["acknowledged"] == 0
        assert tail.latest(end, NO_LIMITS) == end
        for node in followers:
            node.send_signal(signal.SIGCONT)
        group.append(20)
        later = eventually(lambda: (found := tail.latest(end, NO_LIMITS)) != end and found)
        assert later.index is not None
        assert later.index <= max(node.state()["end"] for node in group.nodes.values())
        assert indexes(tail, end, later) == list(range(count, later.index + 1))
        # A new leader without entries of its term proves them only if all members are there.
        group.kill(group.leader())
        group.leader()
        assert tail.latest(later, NO_LIMITS) == later, "a proof stays valid"
        monkeypatch.setattr(group_log, "MAX_FIRST_WAIT", 1.0)
        with pytest.raises(GroupError, match=r"nothing proves yet what is committed: n\d leads in term \d+, its last"):
            batch_indexes(group)
        eventually(lambda: group.append(10)["acknowledged"] == 10)
        assert batch_indexes(group)[: later.index + 1] == list(range(later.index + 1))
        assert batch_indexes(group, startingOffsets="100", endingOffsets="110") == list(range(100, 110))
