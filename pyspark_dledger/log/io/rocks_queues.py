"""ConsumeQueues in a RocksDB (``storeType=defaultRocksDB``, ``rocksdbCQDoubleWriteEnable``), read as files of units.

A key has the topic's length, the topic, queueId and queueOffset; a value has the unit's fields and the storeTimestamp.
The column family ``offset`` has the first and the last unit of each queue, by which a broker goes. Source: RocketMQ
5.5.0 ``RocksDBConsumeQueueTable``, ``RocksDBConsumeQueueOffsetTable``, ``StorePathConfigHelper``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.files import names_in
from pyspark_dledger.log.io.rocks_database import Database, check_end, has_database, open_database, rocks_errors

FOLDERS = ("consumequeue", "consumequeue_rocksdb")
"""Below storePathRootDir; the second one with ``useSeparateStorePathForRocksdbCQ`` from 5.5.0 on."""

_ADVICE = (
    "copy the folder from a replica, or move it away while the broker is stopped: a broker builds it from the log when "
    "it starts"
)
_LENGTH, _OFFSET, _PLACE = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">qq")
_BOUNDS_FAMILY, _MIN, _MAX = "offset", b"min", b"max"
_VALUE_SIZE = 28
# Each unit takes at least some bits of a file, so that a damaged key does not promise any number of units.
_MAX_UNITS_PER_BYTE = 64


class RocksQueue(NamedTuple):
    """A queue in a RocksDB: ``prefix`` begins its keys, ``[first, end)`` are its queueOffsets, as a broker sees it."""

    topic: str
    queue_id: int
    prefix: bytes
    first: int
    end: int


class UnitPlace(NamedTuple):
    """A unit: the position in the log that it points to, and its queueOffset."""

    position: int
    queue_offset: int


class QueueBounds(NamedTuple):
    """The first and the last unit of a queue as the broker stored them, and the last one up to there."""

    first: UnitPlace | None = None
    last: UnitPlace | None = None
    last_unit: UnitPlace | None = None


def rocks_folders(root: Path) -> list[Path]:
    """The folders below a storePathRootDir that are a RocksDB of queues."""
    with suppress(OSError):
        return [root / name for name in sorted({*FOLDERS} & {*names_in(root)}) if has_database(root / name)]
    return []


def rocks_queues(folder: Path) -> list[RocksQueue]:
    """The queues that have units, by topic and queue id. Raises UnreadableError."""
    database = open_database(folder, _ADVICE)
    with rocks_errors(folder, _ADVICE):
        return [queue for queue, _ in _queues_in(database, _stored_bounds(database))]


def queue_bounds(folder: Path) -> dict[tuple[str, int], QueueBounds]:
    """The bounds of each queue that has units or stored bounds, by topic and queue id. Raises UnreadableError."""
    database = open_database(folder, _ADVICE)
    with rocks_errors(folder, _ADVICE):
        found = _stored_bounds(database)
        for queue, unit in _queues_in(database, found):
            name = queue.topic, queue.queue_id
            found[name] = found.get(name, QueueBounds())._replace(last_unit=unit)
    return found


def _stored_bounds(database: Database) -> dict[tuple[str, int], QueueBounds]:
    """What the broker stored as bounds, without keys and values of another form, which a broker ignores."""
    found: dict[tuple[str, int], QueueBounds] = {}
    for key, value in database.rows(_BOUNDS_FAMILY):
        length = _LENGTH.unpack_from(key)[0] if len(key) >= _LENGTH.size else -1
        end = _LENGTH.size + 1 + length
        kind = key[end + 1 : end + 4]
        if 0 <= length == len(key) - 14 and kind in (_MIN, _MAX) and len(value) == _PLACE.size:
            topic = key[_LENGTH.size + 1 : end].decode(errors="surrogateescape")
            name = topic, _LENGTH.unpack_from(key, end + 5)[0]
            place = UnitPlace(*_PLACE.unpack(value))
            bounds = found.get(name, QueueBounds())
            found[name] = bounds._replace(first=place) if kind == _MIN else bounds._replace(last=place)
    return found


def _queues_in(
    database: Database, bounds: dict[tuple[str, int], QueueBounds]
) -> Iterator[tuple[RocksQueue, UnitPlace]]:
    """The queues that have units, each with its last one.

    It ends at the stored maximum: a start that truncates the log leaves units after that.
    """
    cursor = database.cursor()
    cursor.seek_to_first()
    while cursor.valid():
        prefix, topic, queue_id, first = _parts(bytes(cursor.key()))
        stored = bounds.get((topic, queue_id), QueueBounds()).last
        limit = stored.queue_offset if stored is not None and stored.queue_offset >= 0 else INT64_MAX
        cursor.seek_for_prev(prefix + _OFFSET.pack(limit))
        if cursor.valid() and bytes(cursor.key()).startswith(prefix):
            last = _parts(bytes(cursor.key()))[3]
            if last - first >= database.size * _MAX_UNITS_PER_BYTE:
                text = f"expected queueOffsets of a database of {database.size} bytes, found {first} to {last}"
                raise ValueError(f"{topic}/{queue_id}: {text}")
            value = bytes(cursor.value())
            position = _OFFSET.unpack_from(value)[0] if len(value) == _VALUE_SIZE else -1
            yield RocksQueue(topic, queue_id, prefix, first, last + 1), UnitPlace(position, last)
        cursor.seek_for_prev(prefix + _OFFSET.pack(INT64_MAX))
        cursor.next()
    check_end(cursor)


def _parts(key: bytes) -> tuple[bytes, str, int, int]:
    """The part of a key that all units of the queue have, and the key's topic, queueId and queueOffset."""
    length = _LENGTH.unpack_from(key)[0] if len(key) >= _LENGTH.size else -1
    at = _LENGTH.size + 1 + length
    name = key[_LENGTH.size + 1 : at]
    topic = name.decode(errors="surrogateescape")
    if 0 <= length == len(key) - 19 and is_utf8(topic) and (key[4], key[at], key[at + 5]) == (1, 1, 1):
        queue_id, offset = _LENGTH.unpack_from(key, at + 1)[0], _OFFSET.unpack_from(key, at + 6)[0]
        if queue_id >= 0 and offset >= 0:
            return key[: at + 6], topic, queue_id, offset
    raise ValueError(f"expected the key of a ConsumeQueue unit, found {key[:64].hex()}")


@final
class OpenRocksUnits(OpenFile):
    """The units of a queue as the bytes of a ConsumeQueue file that begins with `first`; zeros where a unit is missing.

    Raises UnreadableError where the folder is no sound RocksDB.
    """

    def __init__(self, folder: Path, prefix: bytes, first: int, units: int) -> None:
        self._folder, self._prefix, self._first, self._units = folder, prefix, first, units
        self._database = open_database(folder, _ADVICE)

    def size(self) -> int:
        return self._units * CONSUME_QUEUE_UNIT_SIZE

    def read(self, offset: int, size: int) -> bytes:
        first = offset // CONSUME_QUEUE_UNIT_SIZE
        stop = min(-(-(offset + size) // CONSUME_QUEUE_UNIT_SIZE), self._units)
        data = self._read_units(first, stop) if first < stop else b""
        start = offset - first * CONSUME_QUEUE_UNIT_SIZE
        return bytes(data[start : start + size])

    def _read_units(self, first: int, stop: int) -> bytearray:
        data = bytearray((stop - first) * CONSUME_QUEUE_UNIT_SIZE)
        begin = len(self._prefix)
        with rocks_errors(self._folder, _ADVICE):
            cursor = self._database.cursor()
            cursor.seek(self._prefix + _OFFSET.pack(self._first + first))
            while cursor.valid():
                key, value = cursor.key(), cursor.value()
                if not key.startswith(self._prefix) or len(key) != begin + _OFFSET.size:
                    break
                at = (_OFFSET.unpack_from(key, begin)[0] - self._first - first) * CONSUME_QUEUE_UNIT_SIZE
                if at >= len(data):
                    break
                if len(value) == _VALUE_SIZE:
                    data[at : at + CONSUME_QUEUE_UNIT_SIZE] = value[:CONSUME_QUEUE_UNIT_SIZE]
                cursor.next()
            check_end(cursor)
        return data
