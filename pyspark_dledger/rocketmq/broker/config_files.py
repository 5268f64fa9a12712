"""A broker's ``config/*.json``: topics, consumer groups and how far they have read.

fastjson writes maps with numbers as keys as ``{0:12}``, which is not JSON. A broker writes such a file anew every few
seconds and keeps the one before as ``.bak``, from which it starts where the file itself cannot be read. Sources:
RocketMQ 5.3.3 ``ConfigManager``, ``TopicConfigManager``, ``ConsumerOffsetManager``, ``SubscriptionGroupManager``,
``ScheduleMessageService``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_dledger.errors import StoreError

FOLDER = "config"
FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
"""The name that RocketMQ gives to its own reading of the delay topic (``MixAll.SCHEDULE_CONSUMER_GROUP``)."""

# A broker with 100,000 groups of 16 queues writes some 30 MB.
_LONGEST_FILE = 256 * 1024 * 1024
# A string, so that nothing in it is taken for a key; or a number with a colon behind it.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(-?[0-9]+)(?=\s*:)', re.DOTALL)
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_MOST_QUEUES = 65_536


@dataclass(frozen=True)
class BrokerConfig:
    """What the files say. ``offsets`` is by topic and group, then by queue; ``delay_offsets`` by delay level."""

    topic_queues: dict[str, int] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    delay_offsets: dict[int, int] = field(default_factory=dict)


def read_config(root: Path) -> BrokerConfig:
    """The config of the broker at `root`. Raises StoreError where there is none, or a file and its .bak are damaged."""
    folder = root / FOLDER
    files = {name: _read(folder / name) for name in FILES}
    if all(content is None for content in files.values()):
        raise StoreError(
            f"{folder}: expected {', '.join(FILES[:-1])} or {FILES[-1]}, found none of them: a broker writes them "
            "below its storePathRootDir, copy them from there"
        )
    topics, groups, offsets, delays = (content or {} for content in files.values())
    return BrokerConfig(
        topic_queues={
            topic: min(count, _MOST_QUEUES)
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


def _read(file: Path) -> dict[str, Any] | None:
    """A file's object, or its .bak's where it is missing, empty or damaged; None where there is neither."""
    problems = []
    for candidate in (file, file.with_name(f"{file.name}.bak")):
        try:
            with candidate.open("rb") as stream:
                data = stream.read(_LONGEST_FILE + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{candidate.name} cannot be read ({error.strerror})")
            continue
        try:
            return parse_json(data)
        except ValueError as error:
            problems.append(f"{candidate.name}: {error}")
    if problems:
        raise StoreError(f"{file}: expected the JSON of a broker's config, found {'; '.join(problems)}: restore it")
    return None


def parse_json(data: bytes) -> dict[str, Any]:
    """The object that fastjson wrote. Raises ValueError for anything else, and for more than 256 MiB."""
    if len(data) > _LONGEST_FILE:
        raise ValueError(f"expected at most {_LONGEST_FILE} bytes, found more")
    if not data.strip(b" \t\r\n\0"):
        raise ValueError("expected an object, found an empty file")
    text = _STRING_OR_KEY.sub(lambda found: f'"{found[1]}"' if found[1] else found[0], data.decode(errors="replace"))
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("expected an object, found one nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def _table(content: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a table whose values are objects; what is none is left out."""
    table = content.get(name)
    for key, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, dict):
            yield key, value


def _numbers(table: object) -> dict[int, int]:
    """A map of queues or levels to offsets; what is no number is left out."""
    numbers = {}
    for key, value in table.items() if isinstance(table, dict) else ():
        known, offset = _integer(key, _INT32), _integer(value, _INT64)
        if known is not None and offset is not None:
            numbers[known] = offset
    return numbers


def _integer(value: object, most: int) -> int | None:
    """A number up to `most`, also as text; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -most - 1 <= value <= most:
        return None
    return value
