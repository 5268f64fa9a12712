"""ConsumeQueues for tests, written by the rules of RocketMQ's ``ConsumeQueue`` and ``CommitLog``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.format import codec, layout

FILE_SIZE = 20 * 100
DELAYS = (1, 5, 10, 30, *(60 * minutes for minutes in range(1, 11)), 1200, 1800, 3600, 7200)
FILLER = (0, 0x7FFFFFFF, 0)


class Unit(NamedTuple):
    """A unit with its queue and queueOffset."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    size: int
    tags_code: int


def java_hash(text: str) -> int:
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + high * 256 + low) % 2**32
    return value - 2**32 if value >= 2**31 else value


def tags_code(row: dict[str, Any]) -> int:
    """The tagsCode that a broker writes for a message."""
    if row["topic"] == "SCHEDULE_TOPIC_XXXX":
        return row["storeTimestamp"] // 1000 + 1000 * DELAYS[row["queueId"]]
    return java_hash(row["tags"] or "")


def unit_of(row: dict[str, Any]) -> Unit:
    """The unit of a message row."""
    place = row["topic"], row["queueId"], row["queueOffset"]
    return Unit(*place, row["commitLogOffset"], row["storeSize"], tags_code(row))


def units_of(rows: Iterable[dict[str, Any]]) -> list[Unit]:
    """The units of message rows; prepared and rolled back messages have none."""
    return [unit_of(row) for row in rows if row["kind"] == "message" and row["transaction"] in ("none", "commit")]


def write_units(root: Path, units: Iterable[Unit], file_size: int = FILE_SIZE) -> None:
    """Writes ``root/consumequeue``; files have Java's size, and zeros between units."""
    for unit in units:
        path = file_of(root, unit.topic, unit.queue_id, unit.queue_offset, file_size)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(file_size)
            file.seek(unit.queue_offset * layout.CONSUME_QUEUE_UNIT_SIZE % file_size)
            file.write(codec.encode_consume_queue_unit(codec.ConsumeQueueUnit(*unit[3:])))


def file_of(root: Path, topic: str, queue_id: int, queue_offset: int, file_size: int = FILE_SIZE) -> Path:
    at = queue_offset * layout.CONSUME_QUEUE_UNIT_SIZE
    return root / "consumequeue" / topic / str(queue_id) / f"{at - at % file_size:020}"
