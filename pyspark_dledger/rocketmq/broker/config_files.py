"""Writes a broker's ``config/*.json``: topics, consumer groups and their offsets, which followers copy from the leader.

A broker replaces each file every few seconds. Sources: RocketMQ 5.3.3 ``ConfigManager``, ``SlaveSynchronize``,
``MixAll.string2File``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.durable import PRIVATE_FOLDER, replace_durably
from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.common.log_records import record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import MAX_DELAY_LEVEL, SCHEDULE_TOPIC
from pyspark_dledger.log.io.broker_config import FILES, FOLDER, MAX_QUEUES, TOPICS, ConfigFile, read_newest

_NUMBER = re.compile(r"-?[0-9]+")


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


def as_file(found: ConfigFile) -> ConfigFile:
    """A table of a RocksDB as a file with a higher version, as brokers take over no other one; a file as it is."""
    return found if found.data else with_higher_counter(found)


def with_higher_counter(found: ConfigFile) -> ConfigFile:
    """The file of a table or file, with a higher counter of its version and the same time."""
    known = found.content.get("dataVersion")
    version = {**next_version(known), "timestamp": known.get("timestamp", 0) if isinstance(known, dict) else 0}
    content = {**found.content, "dataVersion": version}
    return ConfigFile(fastjson_text(content).encode(), content, found.path)


def write_config_file(file: Path, data: bytes) -> None:
    """Replace a file, unless it has that content; keep the previous one as ``.bak``. Each is complete and durable."""
    file.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        previous = file.read_bytes()
        if previous == data:
            return
        replace_durably(file.with_name(f"{file.name}.bak"), previous)
    replace_durably(file, data)


TOPIC_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")

_READ_AND_WRITE = 6
# All files together: they are sent in one frame.
_MAX_COPIED_SIZE = 12 * 1024 * 1024
# Encoding more topics for a copy takes too long for the node's thread: 100,000 take 3 s.
_MAX_ENCODED = 2000
_FIRST_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class BrokerMetadata:
    """Topics with their queue counts, and the config files of a broker's root. Not thread-safe.

    What is in a RocksDB is read from there, and written to files, which are then newer.
    ``write`` runs the work that encodes and writes files: at once, or in a thread of its own, in order.
    """

    def __init__(self, root: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> None:
        self._folder = root / FOLDER
        self._write = write
        self._warned: set[str] = set()
        # Replaced and never modified: another thread may be writing it.
        self._topics: dict[str, Any] = {}
        # The topics of the last file, and its bytes.
        self._encoded: tuple[dict[str, Any], bytes] = {}, b""
        self._is_saving = False
        self._counts: dict[str, int] = {}
        topics = read_newest(self._folder, TOPICS)
        self._set_topics(*(as_file(topics)[:2] if topics is not None else (b"", {})))

    def _set_topics(self, data: bytes, content: Mapping[str, Any]) -> None:
        topics = {"dataVersion": _FIRST_VERSION, **content}
        table = topics.get("topicConfigTable")
        if not isinstance(table, dict):
            table = topics["topicConfigTable"] = {}
        self._topics = topics
        if data:
            self._encoded = topics, data
        self._counts = {name: count for name, config in table.items() if (count := _queue_count(config))}
        self._counts[SCHEDULE_TOPIC] = max(self._counts.get(SCHEDULE_TOPIC, 0), MAX_DELAY_LEVEL)

    # Topics

    def queue_count(self, topic: str) -> int | None:
        """How many queues a topic has (the larger of those to read and to write); None for an unknown one."""
        return self._counts.get(topic)

    @property
    def topic_count(self) -> int:
        """The number of topics."""
        return len(self._counts)

    @property
    def all_queues(self) -> int:
        """The number of queues of all topics."""
        return sum(self._counts.values())

    def add_topics(self, counts: Mapping[str, int]) -> None:
        """Create topics with so many queues, or set the counts of existing ones; written to ``topics.json``."""
        table = {**self._topics["topicConfigTable"]}
        for name, count in counts.items():
            known = table.get(name)
            config = known if isinstance(known, dict) else _new_topic(name)
            table[name] = {**config, "readQueueNums": count, "writeQueueNums": count}
            self._counts[name] = count
        version = next_version(self._topics.get("dataVersion"))
        self._topics = {**self._topics, "topicConfigTable": table, "dataVersion": version}
        if not self._is_saving:
            self._is_saving = True
            self._write(self._save_topics)

    def _save_topics(self) -> None:
        """Write the current topics: encoding thousands takes too long for each put."""
        self._is_saving = False
        self._write_files({TOPICS: self._encoded_topics()})

    def _encoded_topics(self) -> bytes:
        topics, (known, data) = self._topics, self._encoded
        if known is not topics:
            data = fastjson_text(topics).encode()
            self._encoded = topics, data
        return data

    # Copies

    def files(self) -> dict[str, bytes]:
        """The files by name, without missing and damaged ones."""
        found: dict[str, bytes] = {}
        # A later copy has the topics that the last file lacks.
        topics = self._encoded_topics() if len(self._counts) <= _MAX_ENCODED else self._encoded[1]
        for name in FILES:
            data = topics if name == TOPICS else self._intact(name)
            if not data:
                continue
            if sum(map(len, found.values())) + len(data) > _MAX_COPIED_SIZE:
                self._warn_once(name, f"expected at most {_MAX_COPIED_SIZE} bytes of metadata to copy, found more")
                continue
            found[name] = data
        return found

    def _intact(self, name: str) -> bytes | None:
        try:
            file = read_newest(self._folder, name)
        except StoreError as error:
            self._warn_once(name, str(error))
            return None
        return as_file(file).data if file is not None else None

    def take_over(self, files: Mapping[str, bytes]) -> None:
        """Replace own files by a leader's; unknown names and equal files are skipped."""
        changed: dict[str, bytes] = {}
        for name, data in files.items():
            try:
                if name in FILES and data != self._present(name):
                    content = parse_fastjson(data)
                    if name == TOPICS:
                        self._set_topics(bytes(data), content)
                    changed[name] = bytes(data)
            except ValueError as error:
                self._warn_once(name, f"copied from the leader: {error}")
        if changed:
            self._write(lambda: self._write_files(changed))

    def _present(self, name: str) -> bytes | None:
        with suppress(OSError):
            return (self._folder / name).read_bytes()
        return None

    def _write_files(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            try:
                write_config_file(self._folder / name, data)
            except OSError as error:
                # A leader without the file finds the queues of a topic in the log.
                record(logging.ERROR, "metadata not written", file=name, found=str(error))

    def _warn_once(self, name: str, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            record(logging.WARNING, "metadata", file=name, found=problem)


def _queue_count(config: object) -> int:
    if not isinstance(config, dict):
        return 0
    counts = [config.get(name) for name in ("readQueueNums", "writeQueueNums")]
    return max((count for count in counts if type(count) is int and 0 < count <= MAX_QUEUES), default=0)


def _new_topic(name: str) -> dict[str, Any]:
    """A topic like one of ``TopicConfigManager.createTopicInSendMessageMethod``."""
    return {
        "attributes": {},
        "order": False,
        "perm": _READ_AND_WRITE,
        "readQueueNums": 0,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": 0,
    }


def next_version(version: object) -> dict[str, Any]:
    """``DataVersion.nextVersion``."""
    known = version if isinstance(version, dict) else {}
    counter = known.get("counter")
    return {
        **known,
        "counter": (counter if type(counter) is int else 0) + 1,
        "stateVersion": known.get("stateVersion", 0),
        "timestamp": now_ms(),
    }


class LimitError(ValueError):
    """A limit was reached; ``limit`` is "topics" or "queues"."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class TopicLimits(NamedTuple):
    """The maximum of topics, and of the queues of all topics; None is no limit."""

    topics: int | None = None
    queues: int | None = None

    def check(self, metadata: BrokerMetadata, wanted: Mapping[str, int]) -> None:
        """Raises LimitError if topics with these queue counts would be too many."""
        if not wanted:
            return
        known = {name: metadata.queue_count(name) for name in wanted}
        topics = metadata.topic_count + sum(count is None for count in known.values())
        if self.topics is not None and None in known.values() and topics > self.topics:
            first = next(name for name, count in known.items() if count is None)
            text = f"expected at most {self.topics} topics (maxTopics), found {topics} with {first}"
            raise LimitError("topics", text)
        more = sum(count - (known[name] or 0) for name, count in wanted.items())
        if self.queues is not None and more > 0 and metadata.all_queues + more > self.queues:
            found = f"{metadata.all_queues + more} with {next(iter(wanted))}"
            raise LimitError("queues", f"expected at most {self.queues} queues (maxQueues), found {found}")
