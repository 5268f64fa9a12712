"""Puts for tests: rows and messages, encoded, read and stamped by both engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_dledger.format import layout
from pyspark_dledger.format.encode.encoded import Bodies, Puts, PutSettings, producer_of
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.format.message import (
    Message,
    encode_host,
    encode_message,
    parse_message,
    parse_properties,
)
from tests.support.engines import NATIVE, PYTHON, result_of

PRODUCER = producer_of("job", 0)
V4, V6 = encode_host("10.1.2.3", 10911), encode_host("2001:db8::1", 10911)
QUEUES = {"T": 4, "U": 3, "t%|_-9": 1, "V" * 127: 2, "W" * 128: 2, "X" * 255: 2, layout.SCHEDULE_TOPIC: 18}
BORN = 1_700_000_000_123

Row = dict[str, Any]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """A batch with the columns that any of the rows has."""
    names = [name for name in PUT_SCHEMA.names if any(name in row for row in rows)]
    arrays = [pa.array([row.get(name) for row in rows], PUT_SCHEMA.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def settings_of(**changes: Any) -> PutSettings:
    return PutSettings(PRODUCER, BORN, V4, V4, QUEUES)._replace(**changes)


def encode(rows: Sequence[Row] | pa.RecordBatch, **changes: Any) -> Any:
    """The result of both engines, which must be the same, with new ordinals."""
    batch = rows if isinstance(rows, pa.RecordBatch) else batch_of(rows)
    results = [
        result_of(engine.encode_messages, batch, settings_of(**changes), engine.new_ordinals())
        for engine in (NATIVE, PYTHON)
    ]
    assert results[0] == results[1]
    return results[0]


def messages_of(bodies: Bodies) -> list[tuple[bytes, Message]]:
    found = []
    for body in PYTHON.unpack_bodies(bodies):
        message = parse_message(body, 0, len(body), 0)
        assert isinstance(message, Message)
        found.append((body, message))
    return found


def topic_of(body: bytes, message: Message) -> str:
    return body[message.topic_start :][: message.topic_length].decode()


def raw_properties_of(body: bytes, message: Message) -> bytes:
    return body[message.properties_start :][: message.properties_length]


def properties_of(body: bytes, message: Message) -> dict[str, str]:
    return parse_properties(raw_properties_of(body, message))


def one(row: Row, **changes: Any) -> tuple[bytes, Message]:
    return messages_of(encode([row], **changes))[0]


def read(bodies: Bodies) -> Any:
    """The result of both engines, which must be the same, with lists instead of arrays."""
    results = [result_of(engine.read_puts, bodies) for engine in (NATIVE, PYTHON)]
    for puts in results:
        if isinstance(puts, Puts):
            assert (puts.queue.dtype, puts.sys_flag.dtype, puts.has_id.dtype) == (np.int32, np.int32, np.bool_)
    plain = [
        Puts(p.queues, p.queue.tolist(), p.sys_flag.tolist(), p.ids, p.has_id.tolist()) if isinstance(p, Puts) else p
        for p in results
    ]
    assert plain[0] == plain[1]
    return plain[0]


def stamp(bodies: Bodies, keep: Sequence[bool], offsets: Sequence[int], time: int, host: bytes) -> Any:
    arrays = np.array(keep, np.bool_), np.array(offsets, np.int64)
    results = [result_of(engine.stamp_puts, bodies, *arrays, time, host) for engine in (NATIVE, PYTHON)]
    assert results[0] == results[1]
    return results[0]


def patched(bodies: Bodies, index: int, pos: int) -> bytes:
    """The bodies as entries from a position on, with physical offsets."""
    results = []
    for engine in (NATIVE, PYTHON):
        encoded = engine.encode_entries(bodies, 0, index, 1, pos, 2**40)
        engine.patch_physical_offsets(encoded.data, encoded.units)
        results.append(bytes(encoded.data))
    assert results[0] == results[1]
    return results[0]


def ids_of(bodies: Bodies) -> list[bytes]:
    ids = read(bodies).ids
    return [ids[at : at + 24] for at in range(0, len(ids), 24)]


def put(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"properties": b"a\x01b\x02", "born_host": V4, "store_host": V4, **changes}
    return encode_message(fields.pop("topic", b"T"), fields.pop("body", b"body"), 0, **fields)


def block_of(*bodies: bytes) -> Bodies:
    return PYTHON.pack_bodies(bodies)


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


ID = "__DLEDGER_ID\x01" + "aA0_-" * 6 + "zz"


def encode_properties(properties: Mapping[str, str], *, trailing_separator: bool = True) -> bytes:
    """The inverse of `parse_properties`; versions 4.9.2 to 5.1 omit the last separator."""
    parts = [name.encode() + b"\x01" + value.encode() for name, value in properties.items()]
    return b"\x02".join(parts) + (b"\x02" if parts and trailing_separator else b"")
