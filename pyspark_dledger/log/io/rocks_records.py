"""Reads the popped messages and the timers that a broker keeps in a RocksDB instead of topics and a timer log.

``kvStore`` has the popped messages that are not acknowledged (``popConsumerKVServiceEnable``, from 5.3.2 on),
``rocksdbstore`` the timers of a week (``timerRocksDBEnable``, from 5.4.0 on). Sources: RocketMQ 5.3.3
``PopConsumerRecord``, ``PopConsumerRocksdbStore``; 5.4.0 ``TimerRocksDBRecord``, ``MessageRocksDBStorage``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.common.integers import INT32_MAX, INT64_MAX
from pyspark_dledger.log.io.files import scan_folder
from pyspark_dledger.log.io.rocks_database import has_database, open_database, rocks_errors

POPS, TIMERS = "kvStore", "rocksdbstore"
_POP_FAMILY, _TIMER_FAMILY = "popState", "timer"
_ADVICE = "copy the folder from a replica while the broker is stopped"
_RETRY_TOPICS = {0: "{topic}", 1: "%RETRY%{group}_{topic}", 2: "%RETRY%{group}+{topic}"}
_TIME, _PLACE = struct.Struct(">q"), struct.Struct(">iq")
_NEXT_TIMER = b"timeline_checkpoint"


class PopRecord(NamedTuple):
    """A popped message that is not acknowledged; times in milliseconds since 1970."""

    topic: str
    group: str
    queue_id: int
    queue_offset: int
    popped: int
    visible: int


class TimerRecord(NamedTuple):
    """A timer that waits: when it is due (ms since 1970), and its message."""

    due: int
    uniq_key: str
    offset: int
    size: int


def pop_records(root: Path) -> Iterator[PopRecord]:
    """The popped messages in a RocksDB, by the time when they are visible again. Raises UnreadableError."""
    with rocks_errors(root / POPS, _ADVICE):
        yield from (_pop(parse_fastjson(value)) for _, value in _rows(root / POPS, _POP_FAMILY))


def timer_records(root: Path) -> Iterator[TimerRecord]:
    """The timers in a RocksDB that the broker has not delivered, by their time. Raises UnreadableError."""
    with rocks_errors(root / TIMERS, _ADVICE):
        rows = dict(_rows(root / TIMERS, _TIMER_FAMILY))
        delivered = rows.get(_NEXT_TIMER, b"")
        first = _TIME.unpack(delivered)[0] if len(delivered) == _TIME.size else 0
        for key, value in rows.items():
            if len(value) == _PLACE.size and len(key) > _TIME.size:
                (due,), (size, offset) = _TIME.unpack_from(key), _PLACE.unpack(value)
                if due >= first:
                    yield TimerRecord(due, key[_TIME.size :].decode(errors="replace"), offset, size)


def _rows(folder: Path, family: str) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a column family; nothing from a database into which nothing was written."""
    if has_database(folder) and _is_written(folder):
        yield from open_database(folder, _ADVICE).rows(family)


def _is_written(folder: Path) -> bool:
    with suppress(OSError):
        return any(file.name.endswith((".sst", ".log")) and file.stat().st_size for file in scan_folder(folder))
    return False


def _pop(fields: Mapping[str, Any]) -> PopRecord:
    retry, topic, group = (fields.get(name) for name in ("retryFlag", "topicId", "groupId"))
    if retry not in _RETRY_TOPICS or not isinstance(topic, str) or not isinstance(group, str):
        raise ValueError(f"expected a popped message, found {str(dict(fields))[:200]}")
    popped, invisible, offset = (
        _number(fields, each, INT64_MAX >> 1) for each in ("popTime", "invisibleTime", "offset")
    )
    name = _RETRY_TOPICS[retry].format(group=group, topic=topic)
    return PopRecord(name, group, _number(fields, "queueId", INT32_MAX), offset, popped, popped + invisible)


def _number(fields: Mapping[str, Any], name: str, limit: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"expected a number as {name}, found {str(value)[:40]}")
    return value
