"""Our messages equal, byte for byte, those of the encoder of RocketMQ brokers in DLedger mode."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_dledger.format.encode.encoded import PutSettings
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host
from tests.interop.java_group import JavaProcess

# RocketMQ 4.9.2 to 5.1 omit the last separator of properties. V2, for topics over 127 bytes, exists since 5.1.
VERSIONS = {"4.9.8": (False, 127), "5.3.3": (True, 255)}
MESSAGES = 400
HOSTS = (("10.1.2.3", 10911), ("255.255.255.255", 0), ("2001:db8::1:2", 65535), ("fe80::1", 1))
TEXTS = ("", "a", "größe 日本 \U0001f600", "k1 k2", "x" * 300, "\t\n\0 \x03=")
TOPIC_BYTES = "%|abcXYZ019_-"


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest) -> Iterator[tuple[str, JavaProcess]]:
    process = JavaProcess("EncodeMessages", request.param, compiled_with="5.3.3")
    yield request.param, process
    process.close()


def random_row(choice: random.Random, max_topic_bytes: int) -> dict[str, Any]:
    length = choice.choice((1, 5, 126, 127, 128, 200, 255, choice.randrange(1, 256)))
    names = choice.sample([f"n{number}" for number in range(8)] + ["größe", "UNIQ_KEY"], choice.randrange(9))
    return {
        "topic": "".join(choice.choices(TOPIC_BYTES, k=min(length, max_topic_bytes))),
        "body": choice.choice((None, b"", b"x", choice.randbytes(choice.randrange(3000)))),
        "queueId": choice.choice((0, 1, 2**31 - 2)),
        "tags": choice.choice((None, *TEXTS)),
        "keys": choice.choice((None, *TEXTS)),
        "properties": choice.choice((None, [(name, choice.choice((None, *TEXTS))) for name in names])),
        "flag": choice.choice((0, 1, -1, 2**31 - 1, -(2**31))),
        "bornTimestamp": choice.choice((0, -1, 1_700_000_000_123, 2**63 - 1)),
        "transaction": choice.choice((0, 4, 8, 12)),
    }


def base64_of(value: str | bytes | None) -> str:
    data = value.encode() if isinstance(value, str) else value
    return "-" if data is None else base64.b64encode(data).decode()


def command(row: dict[str, Any], born: tuple[str, int], store: tuple[str, int], offset: int, time: int) -> str:
    pairs = [*(row["properties"] or ()), ("KEYS", row["keys"]), ("TAGS", row["tags"])]
    fields = (
        *(row["topic"], base64_of(row["body"]), row["queueId"], offset, row["flag"], row["transaction"]),
        *(row["bornTimestamp"], *born, time, *store),
        *(base64_of(text) for pair in pairs for text in pair),
    )
    return "\t".join(map(str, fields))


def test_messages_equal_rocketmqs_encoder(java: tuple[str, JavaProcess]) -> None:
    version, process = java
    has_trailing_separator, max_topic_bytes = VERSIONS[version]
    engine, choice = get_engine(), random.Random(version)
    for _ in range(MESSAGES):
        row, born, store = random_row(choice, max_topic_bytes), choice.choice(HOSTS), choice.choice(HOSTS)
        offset, time = choice.choice((0, 7, 2**62)), choice.choice((0, 1_700_000_000_456))
        settings = PutSettings(
            None, 0, encode_host(*born), encode_host(*choice.choice(HOSTS)), {row["topic"]: 2**31 - 1}, 0,
            has_trailing_separator,
        )  # fmt: skip
        names = list(row)
        batch = pa.record_batch([pa.array([row[name]], PUT_SCHEMA.field(name).type) for name in names], names)
        puts = engine.encode_messages(batch, settings, engine.new_ordinals())
        stamped = engine.stamp_puts(puts, np.array([True]), np.array([offset]), time, encode_host(*store))
        answer = process.ask(command(row, born, store, offset, time))
        assert engine.unpack_bodies(stamped) == [base64.b64decode(answer["data"])]
        assert engine.java_hashes(pa.array([row["topic"]])).tolist() == [answer["hash"]]
