"""Messages in one thread, without nodes: rows become puts, and a leader checks and stamps them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.measure import PeerMissing, Result, Seconds, alternate, rounded, timed
from benchmarks.peers import Process, java_command
from pyspark_dledger.format.encode.encoded import Bodies, PutSettings, producer_of
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host

ROWS = 10_000  # of a batch, as from Spark
UNIT = 1000  # messages, about as many as a leader gets at once
BATCHES = 20
WARM_UPS = 5  # rounds until Java's compiler is done
HOST = encode_host("10.1.2.3", 10911)


class Java(Process):
    """RocketMQ 5.3.3's encoder of brokers in DLedger mode."""

    def __init__(self) -> None:
        super().__init__(java_command("EncodeMessages", "-Xms1g", "-Xmx1g", "-XX:+AlwaysPreTouch", pom="rocketmq.xml"))

    def seconds(self, size: int) -> float:
        return float(self.ask(f"{ROWS * BATCHES} {size}")["seconds"])


def batch_of(size: int) -> pa.RecordBatch:
    """Different rows with tags, keys and two properties."""
    source = random.Random(size)
    rows = [
        {
            "topic": "OrderTopic",
            "body": source.randbytes(size),
            "tags": "paid",
            "keys": f"order-{number}",
            "properties": [("UNIQ_KEY", f"7F00000100002A139A55{number:012X}"), ("region", "eu-west")],
        }
        for number in range(ROWS)
    ]
    names = list(rows[0])
    return pa.record_batch(
        [pa.array([row[name] for row in rows], PUT_SCHEMA.field(name).type) for name in names], names
    )


def encode_all(batch: pa.RecordBatch, settings: PutSettings) -> None:
    """Encode the same rows repeatedly, each time with new ordinals."""
    engine = get_engine("native")
    for _ in range(BATCHES):
        engine.encode_messages(batch, settings, engine.new_ordinals())


def take_all(bodies: Bodies) -> None:
    """A leader's work on the puts, unit by unit: check, stamp, encode and write positions."""
    engine = get_engine("native")
    keep, offsets = np.ones(bodies.count, np.bool_), np.arange(bodies.count)
    for _ in range(ROWS * BATCHES // UNIT):
        engine.read_puts(bodies)
        stamped = engine.stamp_puts(bodies, keep, offsets, 1_700_000_000_000, HOST)
        encoded = engine.encode_entries(stamped, 0, 0, 0, 0, 2**40)
        engine.patch_physical_offsets(encoded.data, encoded.units)


def copy_all(data: bytes) -> None:
    for _ in range(BATCHES):
        bytes(memoryview(data))


def encode(name: str, size: int) -> Result:
    """Bytes of bodies a second, with identities, compared with Java's encoder and with a plain copy."""
    engine, batch = get_engine("native"), batch_of(size)
    settings = PutSettings(producer_of("benchmark", 0), 1_700_000_000_000, HOST, HOST, {"OrderTopic": 4})
    puts = engine.encode_messages(batch, settings, engine.new_ordinals())
    unit = engine.encode_messages(batch.slice(0, UNIT), settings, engine.new_ordinals())
    sides: dict[str, Seconds] = {
        "ours": timed(partial(encode_all, batch, settings)),
        "without": timed(partial(encode_all, batch, settings._replace(producer=None))),
        "taken": timed(partial(take_all, unit)),
        "copy": timed(partial(copy_all, bytes(puts.block))),
    }
    detail: dict[str, str] = {}
    try:
        with closing(Java()) as java:
            found = alternate({**sides, "java": partial(java.seconds, size)}, warm_ups=WARM_UPS)
    except PeerMissing as reason:
        found, detail = alternate(sides), {"peerSkipped": str(reason)}
    speeds = {side: ROWS * BATCHES * size / seconds / 1e9 for side, seconds in found.items()}
    names = {"withoutIdentityGBps": "without", "takenByLeaderGBps": "taken", "copyGBps": "copy"}
    rest = {name: rounded(speeds[side]) for name, side in names.items()}
    peer = "RocketMQ 5.3.3, MessageSerializer" if "java" in speeds else None
    return Result(name, speeds["ours"], "GB/s", peer, speeds.get("java"), detail={**rest, **detail}).with_ratio_goal(1)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"encode-1k": partial(encode, size=1024)}
