"""Reads a broker's configuration: topics, consumer groups and their offsets, in ``config/*.json`` or in a RocksDB.

A broker keeps the previous file as ``.bak``, and reads that if the file itself cannot be read. fastjson 1.2 writes maps
with numbers as keys as ``{0:12}``, which is not JSON. Sources: RocketMQ 5.3.3 ``ConfigManager``,
``TopicConfigManager``, ``ConsumerOffsetManager``, ``SubscriptionGroupManager``, ``ScheduleMessageService``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.common.fastjson import MAX_FILE_SIZE, parse_fastjson
from pyspark_dledger.common.integers import INT32_MAX, INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import SCHEDULE_TOPIC
from pyspark_dledger.log.io.files import read_start, unreadable
from pyspark_dledger.log.io.rocks_config import VERSION_2, rocks_tables
from pyspark_dledger.log.io.rocks_database import UnreadDatabaseError

FOLDER = "config"
FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
TOPICS, GROUPS, OFFSETS, DELAYS = FILES
TABLES = {TOPICS: "topicConfigTable", GROUPS: "subscriptionGroupTable", OFFSETS: "offsetTable"}
"""The table in each file that brokers also keep in a RocksDB."""
LIGHT_OFFSETS = "lmqConsumerOffset.json"
"""The offsets of all queues with ``enableLmq``, in place of consumerOffset.json (``LmqConsumerOffsetManager``)."""
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
"""RocketMQ's own consumer group of the delay topic (``MixAll.SCHEDULE_CONSUMER_GROUP``)."""
MAX_QUEUES = 65_536
_BAK = ".bak"


@dataclass(frozen=True)
class BrokerConfig:
    """The contents of the files. ``offsets`` is by topic and group, then by queue; ``delay_offsets`` by delay level.

    ``offsets_path`` is the file or the RocksDB that has the offsets.
    """

    topic_queues: dict[str, int] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    delay_offsets: dict[int, int] = field(default_factory=dict)
    offsets_path: Path = Path()

    @property
    def group_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """The next queue offset to read of each consumer group and topic, by queue; with the delivery of delays."""
        found = {(group, topic): queues for (topic, group), queues in self.offsets.items()}
        if self.delay_offsets:
            delays = {level - 1: offset for level, offset in self.delay_offsets.items()}
            found[SCHEDULE_GROUP, SCHEDULE_TOPIC] = delays
        return found


class ConfigFile(NamedTuple):
    """An intact file, or a table of a RocksDB, which has no ``data``; ``content`` is the object in the file.

    ``path`` is the file, its .bak, or the folder of the RocksDB.
    """

    data: bytes
    content: dict[str, Any]
    path: Path

    @property
    def counter(self) -> int:
        """The counter of the dataVersion, which changes raise: a start with a RocksDB takes over the highest one.

        That start takes a .bak for one without changes.
        """
        return _version_number(self, "counter", 0) if not self.path.name.endswith(_BAK) else 0

    @property
    def offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """The consumer offsets of a file or table of them, by topic and group, then by queue."""
        return {
            (topic, group): _numbers(queues)
            for key, queues in (*_table(self.content, TABLES[OFFSETS]), *_light_queues(self.content))
            for topic, separator, group in [key.partition("@")]
            if separator
        }


def read_config(root: Path) -> BrokerConfig:
    """The config of the broker at `root`. Raises StoreError without one, or if a file and its .bak are damaged."""
    folder = root / FOLDER
    files = [_read_offsets(folder) if name == OFFSETS else read_newest(folder, name) for name in FILES]
    if all(file is None for file in files):
        raise StoreError(
            f"{folder}: expected {', '.join(FILES[:-1])} or {FILES[-1]}, or a RocksDB of them, found none of them: a "
            "broker writes them below its storePathRootDir, copy them from there"
        )
    topics, groups, _, delays = (file.content if file is not None else {} for file in files)
    offsets = files[FILES.index(OFFSETS)]
    return BrokerConfig(
        topic_queues={
            topic: min(count, MAX_QUEUES)
            for topic, config in _table(topics, TABLES[TOPICS])
            if (count := _integer(config.get("readQueueNums"), INT32_MAX)) is not None
        },
        groups=tuple(group for group, _ in _table(groups, TABLES[GROUPS])),
        offsets=offsets.offsets if offsets is not None else {},
        delay_offsets=_numbers(delays.get("offsetTable")),
        offsets_path=offsets.path if offsets is not None else folder / OFFSETS,
    )


def config_if_intact(root: Path | None) -> BrokerConfig:
    """The config of a broker; empty if it is missing or damaged. Raises UnreadDatabaseError."""
    try:
        return read_config(root) if root is not None else BrokerConfig()
    except UnreadDatabaseError:
        raise
    except StoreError:
        return BrokerConfig()


def _read_offsets(folder: Path) -> ConfigFile | None:
    """The consumer offsets; of two files, the one that the broker wrote for its last start."""
    found = [file for name in (OFFSETS, LIGHT_OFFSETS) if (file := read_config_file(folder / name)) is not None]
    return _newest(folder, OFFSETS, max(found, key=_changed, default=None))


def read_newest(folder: Path, name: str) -> ConfigFile | None:
    """A file of a folder ``config``, or the same table in a RocksDB if that is newer; None without both.

    Raises StoreError if one of them cannot be read.
    """
    return _newest(folder, name, read_config_file(folder / name))


def _newest(folder: Path, name: str, file: ConfigFile | None) -> ConfigFile | None:
    found = [table for table in _tables(folder, name) if table.content[TABLES[name]]] if name in TABLES else []
    return _used([*found, *([file] if file is not None else [])])


def _tables(folder: Path, name: str) -> list[ConfigFile]:
    return [ConfigFile(b"", table.content, table.folder) for table in rocks_tables(folder, TABLES[name])]


def _used(found: list[ConfigFile]) -> ConfigFile | None:
    """What a start with a RocksDB uses. One of version 2 takes over nothing: the later one is used."""
    others = [each for each in found if each.path.name != VERSION_2]
    newest = [max(others, key=lambda each: each.counter)] if others else []
    return max([*(each for each in found if each.path.name == VERSION_2), *newest], key=_changed, default=None)


class UnusedOffsets(NamedTuple):
    """Consumer offsets that a start with a RocksDB drops: where they are, and what it uses in place of them.

    ``queues`` has the dropped and the used offset by topic, group and queue; -1 if none is used.
    """

    unused: ConfigFile
    used: ConfigFile
    queues: dict[tuple[str, str, int], tuple[int, int]]


def unused_offsets(root: Path) -> Iterator[UnusedOffsets]:
    """The consumer offsets in ``config`` that no start with a RocksDB uses, if they are higher than the used ones.

    Two sources that were never changed were never compared either: all their differences count. Raises StoreError.
    """
    folder = root / FOLDER
    databases, file = _tables(folder, OFFSETS), read_config_file(folder / OFFSETS)
    sources = [*databases, *([file] if file is not None else [])]
    used = _used(sources)
    if not databases or used is None:
        return
    known = used.offsets
    for each in sources:
        is_unchanged = each.counter == used.counter == 0
        queues = {
            (topic, group, queue): (offset, other)
            for (topic, group), offsets in sorted(each.offsets.items())
            for queue, offset in sorted(offsets.items())
            if (other := known.get((topic, group), {}).get(queue, -1)) < offset or (is_unchanged and other != offset)
        }
        if queues:
            yield UnusedOffsets(each, used, queues)


def _changed(file: ConfigFile) -> int:
    """The time in a file's dataVersion, which a start or a change sets."""
    return _version_number(file, "timestamp", -1)


def _version_number(file: ConfigFile, name: str, without: int) -> int:
    version = file.content.get("dataVersion")
    number = version.get(name) if isinstance(version, dict) else None
    return number if isinstance(number, int) else without


def _light_queues(offsets: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The offsets of light queues, which have one queue each, as those of other topics."""
    table = offsets.get("lmqOffsetTable")
    yield from ((key, {"0": offset}) for key, offset in table.items()) if isinstance(table, dict) else ()


def read_config_file(file: Path) -> ConfigFile | None:
    """A file, or its .bak if it is missing, empty or damaged; None if both are missing.

    Raises StoreError if neither is intact.
    """
    problems = []
    for candidate in (file, file.with_name(f"{file.name}{_BAK}")):
        try:
            data = read_start(candidate, MAX_FILE_SIZE + 1)
            return ConfigFile(data, parse_fastjson(data), candidate)
        except OSError as error:
            if unreadable(candidate, error) is not None:
                problems.append(f"{candidate.name} cannot be read ({error.strerror})")
        except ValueError as error:
            problems.append(f"{candidate.name}: {error}")
    if problems:
        raise StoreError(f"{file}: expected the JSON of a broker's config, found {'; '.join(problems)}: restore it")
    return None


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
        known, offset = _integer(key, INT32_MAX), _integer(value, INT64_MAX)
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
