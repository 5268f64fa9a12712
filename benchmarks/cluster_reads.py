"""Reads of a running RocketMQ broker: our source, RocketMQ's own pull consumer, and Spark end to end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from benchmarks.generate import Store, new_folder
from benchmarks.measure import PeerMissing, Result, alternate, rounded, timed
from benchmarks.peers import Process, java_command
from benchmarks.spark_jobs import against_ceiling, job, spark
from tests.interop.java_broker import JavaBroker, JavaClients
from tests.support.fake_cluster import FakeServer
from tests.support.groups import HOST, eventually

TOPIC = "Bench"
# Of RocketMQ's consumer, see PullMessages.java.
_PEER_PART = 0.8
COUNT, SIZE, QUEUES = 200_000, 1024, 8
SAME_ROWS = Store("messages-1k-256m", SIZE, messages=True, segment_size=256 << 20)
"""About as many messages for Spark's transport, without a broker."""

THREADS = 2
"""Of RocketMQ's consumer, and our processes: Spark's executors read with as many as they have cores."""

MANY_QUEUES = 10_000
# The broker and Spark compile their code in the first rounds.
ROUNDS, WARM_UPS = 5, 8
_TICKS = os.sysconf("SC_CLK_TCK")
# As brokers run, and not as tests start them: with the optimizing compiler.
_BROKER_OPTIONS = ("-Xmx2g",)


class Side:
    """Processes that read all messages together, and the processor time that they and the broker took."""

    def __init__(self, broker: int, pids: Callable[[], list[int]], read: Callable[[], object]) -> None:
        self._broker, self._pids, self._read = broker, pids, read
        self.broker_seconds: list[float] = []
        self.own_seconds: list[float] = []

    def seconds(self) -> float:
        before = processor_seconds(self._broker), sum(map(processor_seconds, self._pids()))
        taken = timed(self._read)()
        self.broker_seconds.append(processor_seconds(self._broker) - before[0])
        self.own_seconds.append(sum(map(processor_seconds, self._pids())) - before[1])
        return taken

    def processor(self) -> dict[str, float | None]:
        """Seconds of a round: of the broker and of the readers, the least."""
        return {"broker": rounded(min(self.broker_seconds)), "reader": rounded(min(self.own_seconds))}


def processor_seconds(pid: int) -> float:
    fields = process_fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def process_fields(pid: int) -> list[str]:
    """What the kernel says of a process, after its name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return ["0"] * 20


def spark_pids() -> list[int]:
    """The JVM and its Python workers."""
    return [
        pid
        for child in children(os.getpid())
        if b"org.apache.spark" in Path(f"/proc/{child}/cmdline").read_bytes()
        for pid in (child, *children(child))
    ]


def children(pid: int) -> list[int]:
    """Processes that a process or its children have started."""
    numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    found = [number for number in numbers if process_fields(number)[1] == str(pid)]
    return found + [each for child in found for each in children(child)]


@contextmanager
def broker() -> Iterator[tuple[str, int]]:
    """A name server and a broker with the messages: the address, and the broker's process id."""
    with new_folder("cluster-reads") as folder, ExitStack() as stack:
        try:
            names = stack.enter_context(closing(JavaClients(folder)))
            process = stack.enter_context(
                closing(JavaBroker(folder / "store", names.port, {}, options=_BROKER_OPTIONS))
            )
        except pytest.skip.Exception as reason:
            raise PeerMissing(str(reason)) from None
        process.wait_started()
        yield f"{HOST}:{names.port}", process.pid


def together(readers: list[Process], how: str) -> None:
    """Each process reads its part; raises AssertionError unless all messages were read."""
    with ThreadPoolExecutor(len(readers)) as pool:
        found = pool.map(lambda item: item[1].ask(f"{how} {item[0]} {len(readers)}"), enumerate(readers))
        rows = sum(each["rows"] for each in found)
    if rows != COUNT:
        raise AssertionError(f"expected {COUNT} messages, found {rows}")


def loaded(address: str, **options: str) -> DataFrame:
    return spark().read.format("rocketmq").options(nameServer=address, topic=TOPIC, **options).load()


def reads(name: str) -> Result:
    """All messages of a topic from the broker's page cache, by two threads or processes of each side, and by Spark."""
    with broker() as (address, pid), ExitStack() as stack:
        java = java_command("PullMessages", "-Xmx2g", pom="client.xml")
        consumer = stack.enter_context(closing(Process([*java, address, TOPIC, str(THREADS)])))
        # The name server knows the broker after a while.
        eventually(lambda: "seconds" in consumer.ask(f"fill {COUNT} {SIZE} {QUEUES}"), 120)
        command = [sys.executable, "-m", "benchmarks.cluster_load", address, TOPIC]
        readers = [stack.enter_context(closing(Process(command))) for _ in range(THREADS)]
        source = partial(loaded, address)
        wanted = int(COUNT * _PEER_PART)
        sides = {
            "arrow": Side(pid, lambda: [reader.pid for reader in readers], partial(together, readers, "arrow")),
            "bytes": Side(pid, lambda: [reader.pid for reader in readers], partial(together, readers, "bytes")),
            "spark": Side(pid, spark_pids, job(source)),
            "empty": Side(pid, spark_pids, job(partial(source, startingOffsets="latest"))),
            "java": Side(pid, lambda: [consumer.pid], lambda: consumer.ask(f"pull {wanted}")["seconds"]),
        }
        seconds = alternate({side: each.seconds for side, each in sides.items()}, ROUNDS, WARM_UPS)
    ceiling = against_ceiling(name, SAME_ROWS).peer_value or 0.0
    rate = {side: COUNT / taken for side, taken in seconds.items()}
    rate["java"] *= _PEER_PART
    limits = {"transport": ceiling, "broker": rate["bytes"]}
    lower = min(limits, key=lambda each: limits[each])
    detail = {
        "processorSeconds": {side: each.processor() for side, each in sides.items()},
        "notDecoded": rounded(rate["bytes"]),
        "spark": rounded(rate["spark"]),
        "sparkLessEmptyJob": rounded(COUNT / (seconds["spark"] - seconds["empty"])),
        "sparkOfLimit": rounded(rate["spark"] / limits[lower]),
        "limit": lower,
        "ceiling": rounded(ceiling),
    }
    return Result(
        name, rate["arrow"], "messages/s", "DefaultLitePullConsumer", rate["java"], detail=detail
    ).with_ratio_goal(2)


def memory(name: str) -> Result:
    """The peak of one process that reads 10,000 queues as one partition."""
    with FakeServer() as server:
        for queue in range(MANY_QUEUES):
            server.add(TOPIC, queue, 4, SIZE)
        with closing(Process([sys.executable, "-m", "benchmarks.cluster_load", server.address, TOPIC])) as reader:
            found: dict[str, Any] = reader.ask("memory")
    detail = {"rows": found["rows"], "seconds": rounded(found["seconds"])}
    return Result(name, found["peak"] / 1e6, "MB", detail=detail).with_most(200)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"cluster-read-1k": reads, "cluster-read-memory": memory}
