"""Writes to a running RocketMQ broker: our sink, RocketMQ's own producer, and Spark end to end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

from pyspark.sql import DataFrame

from benchmarks.cluster_reads import Side, broker
from benchmarks.measure import Result, alternate, rounded, timed
from benchmarks.peers import Process, java_command
from benchmarks.spark_jobs import spark
from tests.support.groups import eventually

TOPIC = "Bench"
COUNT, SIZE, QUEUES = 100_000, 1024, 8
THREADS = 2
"""Of RocketMQ's producer, and our processes: Spark's tasks are processes of one thread."""

# Messages of a batch of RocketMQ's producer: a usual number, and as many as ours. The faster one is the peer.
BATCHES = (100, 900)
# The broker and Spark compile their code in the first rounds.
ROUNDS, WARM_UPS = 5, 8


def together(writers: list[Process]) -> None:
    """Each process sends its part; raises AssertionError unless all messages were acknowledged."""
    with ThreadPoolExecutor(len(writers)) as pool:
        found = pool.map(lambda writer: writer.ask(f"write {COUNT // len(writers)} {SIZE}"), writers)
        rows = sum(each["rows"] for each in found)
    if rows != COUNT:
        raise AssertionError(f"expected {COUNT} acknowledged messages, found {rows}")


def sent_by(producer: Process, batch: int) -> None:
    """RocketMQ's producer sends as many messages; raises AssertionError unless it succeeds."""
    answer = producer.ask(f"send {COUNT} {SIZE} {batch} {THREADS}")
    if "seconds" not in answer:
        raise AssertionError(f"the producer failed: {answer}")


def saved(frame: DataFrame, address: str) -> None:
    frame.write.format("rocketmq").mode("append").options(nameServer=address, topic=TOPIC).save()


def writes(name: str) -> Result:
    """As many messages in batches, acknowledged, by two threads or processes of each side, and by Spark."""
    with broker() as (address, pid), ExitStack() as stack:
        java = java_command("SendMessages", "-Xmx2g", pom="client.xml")
        producer = stack.enter_context(closing(Process([*java, address, TOPIC, str(QUEUES)])))
        eventually(lambda: "seconds" in producer.ask(f"send 100 {SIZE} 1 1"), 120)
        command = [sys.executable, "-m", "benchmarks.cluster_write_load", address, TOPIC]
        writers = [stack.enter_context(closing(Process(command))) for _ in range(THREADS)]
        sides = {"ours": Side(pid, lambda: [writer.pid for writer in writers], partial(together, writers))}
        for batch in BATCHES:
            send = partial(sent_by, producer, batch)
            sides[f"java{batch}"] = Side(pid, lambda: [producer.pid], send)
        seconds = alternate({side: each.seconds for side, each in sides.items()}, ROUNDS, WARM_UPS)
        session = spark()
        body = f"unhex(repeat(sha2(string(id), 256), {SIZE // 32})) as body"
        frame = session.range(0, COUNT, numPartitions=THREADS).selectExpr(body, "concat('tag', id % 4) as tags").cache()
        frame.count()
        seconds |= alternate({"spark": timed(lambda: saved(frame, address))}, ROUNDS, WARM_UPS)
        frame.unpersist()
    rate = {side: COUNT / taken for side, taken in seconds.items()}
    detail = {
        "processorSeconds": {side: each.processor() for side, each in sides.items()},
        **{f"java{batch}": rounded(rate[f"java{batch}"]) for batch in BATCHES},
        "spark": rounded(rate["spark"]),
    }
    peer = max(rate[f"java{batch}"] for batch in BATCHES)
    return Result(name, rate["ours"], "messages/s", "DefaultMQProducer", peer, detail=detail).with_ratio_goal(1.5)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"cluster-write-1k": writes}
