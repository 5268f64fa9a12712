"""Feeds damaged responses of name servers and brokers to the client of a cluster.

Only WireError is allowed, within a few seconds of CPU. A route that is read only has queues of its brokers. Messages
that are counted have the same rows with both engines.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from pyspark_dledger.cluster import codes, rows
from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.connection import Response
from pyspark_dledger.cluster.producer import Batch, BatchMessage, Producer, _Attempt
from pyspark_dledger.cluster.pulls import count_messages
from pyspark_dledger.cluster.routes import Queue, parse_route, parse_topics
from pyspark_dledger.common.memory_file import memory_file
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import scan_template
from pyspark_dledger.raft.wire import FrameReader, WireError
from pyspark_dledger.raft.wire.remoting import Command, decode_command
from tests.fuzz.wire import OPAQUE, PATIENCE, Harm, damage
from tests.support.fake_cluster import Answer, response
from tests.support.generate import mq_message
from tests.support.seeds import Kit, Result

TOPIC, QUEUE_ID, OFFSET, MESSAGES = "Orders", 3, 7, 5
_SCANNED = tuple(column.name for column in rows.CLUSTER_COLUMNS if column != rows.BROKER)
_TEMPLATE = scan_template(_SCANNED, ReadOptions(), Filters())
_ROUTE = {
    "queueDatas": [{"brokerName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4} for name in ("a", "b")],
    "brokerDatas": [
        {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1", "2": "127.0.0.1:2"}}
        for name in ("a", "b")
    ],
}
_BODY = b"".join(
    mq_message(
        TOPIC, b"body", queue_id=QUEUE_ID, queue_offset=OFFSET + number, properties=[("TAGS", "a"), ("KEYS", "k 1")]
    ).make(1000 * number)
    for number in range(MESSAGES)
)


def check_route(found: Response) -> None:
    route = parse_route(TOPIC, bytes(found.body))
    if not all(queue.broker in route.brokers for queue in route.queues):
        raise Harm(f"queues without a broker: {route}")


def check_offset(found: Response) -> None:
    if not -(2**63) <= found.number("offset") < 2**63:
        raise Harm(f"an offset of more than 64 bits: {found.fields}")


def check_messages(found: Response) -> None:
    count, size, _ = count_messages(found.body, QUEUE_ID, OFFSET, MESSAGES)
    if not 1 <= count <= MESSAGES or size > len(found.body):
        raise Harm(f"{count} messages in {size} of {len(found.body)} bytes")
    native, python = (engine_rows(found.body[:size], engine) for engine in ("native", "python"))
    if native != python or not 1 <= len(native) <= count:
        raise Harm(f"{count} messages are read as {native} and {python}")


def engine_rows(data: memoryview, engine: str) -> list[dict[str, Any]]:
    chunk, scan = rows._Chunk("b", [data]), rows.ClusterScan(ClusterAddress(()), _TEMPLATE, engine)
    with memory_file() as fill:
        return [row for batch in rows._rows(chunk, fill(chunk.parts), scan) for row in batch.to_pylist()]


def check_sent(found: Response) -> None:
    batch = Batch.of(Queue(TOPIC, "a", QUEUE_ID), [BatchMessage(b"", b"", 0)] * MESSAGES)
    if found.code != BrokerCode.SUCCESS:
        return
    sent = Producer(Cluster(ClusterAddress(())))._stored(_Attempt(batch, batch.queue), found)
    if not sent.problem and not len(sent.offsets) == len(sent.ids) == MESSAGES:
        raise Harm(f"{MESSAGES} messages are acknowledged as {sent}")


RESPONSES: dict[str, tuple[int, Answer, Callable[[Response], object]]] = {
    "route": (codes.GET_ROUTE_OF_TOPIC, (0, {}, json.dumps(_ROUTE).encode()), check_route),
    "topics": (
        codes.GET_ALL_TOPICS,
        (0, {}, b'{"topicList":["Orders","b"]}'),
        lambda found: parse_topics(bytes(found.body)),
    ),
    "sent": (
        codes.SEND_BATCH,
        (0, {"msgId": ",".join(["0" * 32] * MESSAGES), "queueId": QUEUE_ID, "queueOffset": OFFSET}, b""),
        check_sent,
    ),
    "offset": (codes.GET_MAX_OFFSET, (0, {"offset": 2**40}, b""), check_offset),
    "messages": (codes.PULL_MESSAGE, (0, {"nextBeginOffset": 12, "maxOffset": 12}, _BODY), check_messages),
}


def check_case(seed: int) -> str:
    """Damage a response and read it. Returns what it was, and whether it was read. Raises Harm."""
    random = Random(seed)
    name = random.choice(list(RESPONSES))
    code, answer, check = RESPONSES[name]
    data = damage(random, response(Command(code, OPAQUE), answer))
    started = time.process_time()
    outcome = "rejected"
    try:
        for frame in FrameReader().feed(data):
            command = decode_command(frame.header)
            check(Response(command.code, command.fields, command.remark, frame.body))
            outcome = "read"
    except WireError:
        pass
    except Exception as error:
        raise Harm(f"{data!r:.3000}: {type(error).__name__}: {error}") from error
    if time.process_time() - started > PATIENCE:
        raise Harm(f"expected an end within {PATIENCE} s of CPU, found none: {data!r:.3000}")
    return f"{name} {outcome}"


def check_seed(seed: int, _folder: Path, _options: argparse.Namespace) -> Result:
    return Result(counts=Counter([check_case(seed)]))


KIT = Kit("tests.fuzz.cluster", check_seed, __doc__, 1_000_000)

if __name__ == "__main__":
    sys.exit(KIT.main())
