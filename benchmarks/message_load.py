"""``python -m benchmarks.message_load GROUP PEERS``: puts messages with our client, one round for each line of input.

``put COUNT SIZE`` encodes COUNT messages with bodies of SIZE bytes and with identities, and puts them with
``put_messages``; ``append COUNT SIZE`` appends the same bytes with ``append_batch``. Encoding is not timed.
One JSON object a round: the seconds until the last response, and the number of acknowledged messages.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError
from pyspark_dledger.format.encode.encoded import Bodies, PutSettings, producer_of
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host

TOPIC = "Bench"
QUEUES = 4
BORN = 1_700_000_000_000
ROWS_AT_ONCE = 10_000
PATIENCE, PAUSE = 20.0, 0.05  # seconds


class Load:
    """A writer. Each round is another job, so that no message is a duplicate."""

    def __init__(self, client: dl.Client) -> None:
        self._client = client

    def put(self, count: int, size: int) -> dict[str, Any]:
        return self._round(lambda bodies: self._client.put_messages(bodies, QUEUES), count, size)

    def append(self, count: int, size: int) -> dict[str, Any]:
        return self._round(self._client.append_batch, count, size)

    def _round(self, send: Callable[[Bodies], Any], count: int, size: int) -> dict[str, Any]:
        body = random.Random(size).randbytes(size)
        blocks = [encoded([body] * min(ROWS_AT_ONCE, count - first)) for first in range(0, count, ROWS_AT_ONCE)]
        acknowledged, start = 0, time.perf_counter()
        for block in blocks:
            acknowledged += len(send(block))
        return {"seconds": time.perf_counter() - start, "acknowledged": acknowledged}


def encoded(bodies: Sequence[bytes]) -> Bodies:
    """Messages of one job, to the queues in turn."""
    engine = get_engine()
    host = encode_host("127.0.0.1", 10911)
    settings = PutSettings(producer_of(uuid.uuid4().hex, 0), BORN, host, host, {TOPIC: QUEUES})
    rows = len(bodies)
    columns = {"topic": [TOPIC] * rows, "body": bodies, "queueId": [number % QUEUES for number in range(rows)]}
    schema = pa.schema([PUT_SCHEMA.field(name) for name in columns])
    return engine.encode_messages(pa.RecordBatch.from_pydict(columns, schema), settings, engine.new_ordinals())


def wait_for_leader(client: dl.Client) -> None:
    """Wait until the nodes have started."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            if client.metadata().leader_id is not None:
                return
        except GroupError:
            if time.monotonic() > ends:
                raise
        time.sleep(PAUSE)


def main() -> None:
    _, group, peers = sys.argv
    with dl.connect(group, peers, timeout_ms=round(PATIENCE * 1e3)) as client:
        wait_for_leader(client)
        load = Load(client)
        rounds: dict[str, Callable[[int, int], dict[str, Any]]] = {"put": load.put, "append": load.append}
        print(json.dumps({"started": True}), flush=True)
        for line in sys.stdin:
            name, count, size = line.split()
            print(json.dumps(rounds[name](int(count), int(size))), flush=True)


if __name__ == "__main__":
    main()
