"""A broker's ``config/*.json``: topics, consumer groups and their offsets.

A broker replaces each file every few seconds and keeps the previous one as ``.bak``. It reads that if the file itself
cannot be read. fastjson 1.2 writes maps with numbers as keys as ``{0:12}``, which is not JSON. Sources: RocketMQ 5.3.3
``ConfigManager``, ``TopicConfigManager``, ``ConsumerOffsetManager``, ``SubscriptionGroupManager``,
``ScheduleMessageService``, ``MixAll.string2File``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.common.durable import PRIVATE_FOLDER, replace_durably
from pyspark_dledger.common.fastjson import MAX_FILE_SIZE, parse_fastjson
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.files import read_start, unreadable

FOLDER = "config"
FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
"""RocketMQ's own consumer group of the delay topic (``MixAll.SCHEDULE_CONSUMER_GROUP``)."""
MAX_QUEUES = 65_536

_NUMBER = re.compile(r"-?[0-9]+")
_INT32, _INT64 = 2**31 - 1, 2**63 - 1


def fastjson_text(value: object, depth: int = 0) -> str:
    """Text as from ``RemotingSerializable.toJson(obj, true)``: tabs, and maps with numbers as keys in one line."""
    inside, outside = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, dict) and value:
        if all(_NUMBER.fullmatch(str(key)) for key in value):
            numbered = ",".join(f"{key}:{fastjson_text(item, depth + 1)}" for key, item in value.items())
            return f"{{{numbered}{outside}}}"
        named = ",".join(f"{inside}{_quoted(str(key))}:{fastjson_text(item, depth + 1)}" for key, item in value.items())
        return f"{{{named}{outside}}}"
    if isinstance(value, list) and value:
        return f"[{','.join(inside + fastjson_text(item, depth + 1) for item in value)}{outside}]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class BrokerConfig:
    """The contents of the files. ``offsets`` is by topic and group, then by queue; ``delay_offsets`` by delay level."""

    topic_queues: dict[str, int] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    delay_offsets: dict[int, int] = field(default_factory=dict)


class ConfigFile(NamedTuple):
    """An intact file: its bytes, and the object in it."""

    data: bytes
    content: dict[str, Any]


def read_config(root: Path) -> BrokerConfig:
    """The config of the broker at `root`. Raises StoreError without one, or if a file and its .bak are damaged."""
    folder = root / FOLDER
    files = [read_config_file(folder / name) for name in FILES]
    if all(file is None for file in files):
        raise StoreError(
            f"{folder}: expected {', '.join(FILES[:-1])} or {FILES[-1]}, found none of them: a broker writes them "
            "below its storePathRootDir, copy them from there"
        )
    topics, groups, offsets, delays = (file.content if file is not None else {} for file in files)
    return BrokerConfig(
        topic_queues={
            topic: min(count, MAX_QUEUES)
            for topic, config in _table(topics, "topicConfigTable")
            if (count := _integer(config.get("readQueueNums"), _INT32)) is not None
        },
        groups=tuple(group for group, _ in _table(groups, "subscriptionGroupTable")),
        offsets={
            (topic, group): _numbers(queues)
            for key, queues in _table(offsets, "offsetTable")
            for topic, separator, group in [key.partition("@")]
            if separator
        },
        delay_offsets=_numbers(delays.get("offsetTable")),
    )


def read_config_file(file: Path) -> ConfigFile | None:
    """A file, or its .bak if it is missing, empty or damaged; None if both are missing.

    Raises StoreError if neither is intact.
    """
    problems = []
    for candidate in (file, file.with_name(f"{file.name}.bak")):
        try:
            data = read_start(candidate, MAX_FILE_SIZE + 1)
            return ConfigFile(data, parse_fastjson(data))
        except OSError as error:
            if unreadable(candidate, error) is not None:
                problems.append(f"{candidate.name} cannot be read ({error.strerror})")
        except ValueError as error:
            problems.append(f"{candidate.name}: {error}")
    if problems:
        raise StoreError(f"{file}: expected the JSON of a broker's config, found {'; '.join(problems)}: restore it")
    return None


def write_config_file(file: Path, data: bytes) -> None:
    """Replace a file, unless it has that content; keep the previous one as ``.bak``. Each is complete and durable."""
    file.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        previous = file.read_bytes()
        if previous == data:
            return
        replace_durably(file.with_name(f"{file.name}.bak"), previous)
    replace_durably(file, data)


def _table(content: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a table whose values are objects."""
    table = content.get(name)
    for key, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, dict):
            yield key, value


def _numbers(table: object) -> dict[int, int]:
    """A map of queues or levels to offsets, without entries that are no numbers."""
    numbers = {}
    for key, value in table.items() if isinstance(table, dict) else ():
        known, offset = _integer(key, _INT32), _integer(value, _INT64)
        if known is not None and offset is not None:
            numbers[known] = offset
    return numbers


def _integer(value: object, limit: int) -> int | None:
    """A number up to `limit`, also as text; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -limit - 1 <= value <= limit:
        return None
    return value
