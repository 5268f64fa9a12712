"""What a broker keeps beside its log, in ``config/*.json``: written as fastjson writes it, and copied from the leader.

Sources: RocketMQ 5.3.3 ``ConfigManager.persist``, ``MixAll.string2File``, ``TopicConfigManager``, ``SlaveSynchronize``.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.log_records import record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import MAX_DELAY_LEVEL, SCHEDULE_TOPIC
from pyspark_dledger.rocketmq.broker.config_files import FILES, FOLDER, parse_json

TOPICS = FILES[0]
MAX_QUEUES = 65_536
TOPIC_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")

_READ_AND_WRITE = 6
# What all files may have together, to be told in one frame.
_MOST_COPIED = 12 * 1024 * 1024
_FIRST_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
_NUMBER = re.compile(r"-?[0-9]+")


class BrokerMetadata:
    """The topics with their queue counts, and the files of a broker's root. All methods are for one thread.

    ``write`` runs what encodes and writes files, at once or in a thread of its own, one after the other.
    """

    def __init__(self, root: Path, write: Callable[[Callable[[], None]], object] = lambda work: work()) -> None:
        self._folder = root / FOLDER
        self._write = write
        self._told: set[str] = set()
        # Never changed, but replaced: what writes it may be another thread.
        self._topics: dict[str, Any] = {}
        self._encoded: tuple[dict[str, Any], bytes] = {}, b""
        self._is_saving = False
        self._counts: dict[str, int] = {}
        self._load_topics(_read(self._folder / TOPICS))

    def _load_topics(self, data: bytes | None) -> None:
        topics = {"dataVersion": _FIRST_VERSION, **(parse_json(data) if data is not None else {})}
        table = topics.get("topicConfigTable")
        if not isinstance(table, dict):
            table = topics["topicConfigTable"] = {}
        self._topics = topics
        self._counts = {name: count for name, config in table.items() if (count := _queue_count(config))}
        self._counts[SCHEDULE_TOPIC] = max(self._counts.get(SCHEDULE_TOPIC, 0), MAX_DELAY_LEVEL)

    # Topics

    def queue_count(self, topic: str) -> int | None:
        """How many queues a topic has (the larger of those to read and to write); None for an unknown one."""
        return self._counts.get(topic)

    def add_topics(self, counts: Mapping[str, int]) -> None:
        """Make topics with so many queues, or give more to those that there are; written to ``topics.json``."""
        table = {**self._topics["topicConfigTable"]}
        for name, count in counts.items():
            known = table.get(name)
            fresh = _new_topic(name) if not isinstance(known, dict) else known
            table[name] = {**fresh, "readQueueNums": count, "writeQueueNums": count}
            self._counts[name] = count
        version = _next_version(self._topics.get("dataVersion"))
        self._topics = {**self._topics, "topicConfigTable": table, "dataVersion": version}
        if not self._is_saving:
            self._is_saving = True
            self._write(self._save_topics)

    def _save_topics(self) -> None:
        """Write the topics as they are by now: to encode thousands takes longer than anybody who puts should wait."""
        self._is_saving = False
        self._write_files({TOPICS: self._encoded_topics()})

    def _encoded_topics(self) -> bytes:
        topics, (known, data) = self._topics, self._encoded
        if known is not topics:
            data = fastjson(topics).encode()
            self._encoded = topics, data
        return data

    # Copies

    def files(self) -> dict[str, bytes]:
        """The files as they stand, by name; those that are missing or damaged are left out."""
        found: dict[str, bytes] = {}
        for name in FILES:
            data = self._encoded_topics() if name == TOPICS else self._intact(name)
            if data is None:
                continue
            if sum(map(len, found.values())) + len(data) > _MOST_COPIED:
                self._tell_once(name, f"expected at most {_MOST_COPIED} bytes of metadata to copy, found more")
                continue
            found[name] = data
        return found

    def _intact(self, name: str) -> bytes | None:
        try:
            return _read(self._folder / name)
        except StoreError as error:
            self._tell_once(name, str(error))
            return None

    def take_over(self, files: Mapping[str, bytes]) -> None:
        """Put a leader's files in the place of one's own; what is no such file, or the same, is passed over."""
        changed: dict[str, bytes] = {}
        for name, data in files.items():
            try:
                if name in FILES and data != self._present(name):
                    parse_json(data)
                    changed[name] = bytes(data)
            except ValueError as error:
                self._tell_once(name, f"copied from the leader: {error}")
        if TOPICS in changed:
            self._load_topics(changed[TOPICS])
        if changed:
            self._replace(changed)

    def _present(self, name: str) -> bytes | None:
        with suppress(OSError):
            return (self._folder / name).read_bytes()
        return None

    def _replace(self, files: Mapping[str, bytes]) -> None:
        self._write(lambda: self._write_files(files))

    def _write_files(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            try:
                write_config(self._folder / name, data)
            except OSError as error:
                # The log has the messages: without the file a leader asks for the queues of a topic anew.
                record(logging.ERROR, "metadata not written", file=name, found=str(error))

    def _tell_once(self, name: str, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            record(logging.WARNING, "metadata", file=name, found=problem)


def write_config(file: Path, data: bytes) -> None:
    """Replace a config file; the one before stays as ``.bak``. Each is whole at any time, and durable."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        _replace_durably(file.with_name(f"{file.name}.bak"), file.read_bytes())
    _replace_durably(file, data)


def _replace_durably(file: Path, data: bytes) -> None:
    unfinished = file.with_name(f"{file.name}.tmp")
    with unfinished.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)


def _read(file: Path) -> bytes | None:
    """A file's bytes, or its .bak's where it is missing or damaged. Raises StoreError where both are damaged."""
    problems = []
    for candidate in (file, file.with_name(f"{file.name}.bak")):
        try:
            data = candidate.read_bytes()
            parse_json(data)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{candidate.name}: {error}")
        else:
            return data
    if problems:
        raise StoreError(f"{file}: expected the JSON of a broker's config, found {'; '.join(problems)}: restore it")
    return None


def _queue_count(config: object) -> int:
    if not isinstance(config, dict):
        return 0
    counts = [config.get(name) for name in ("readQueueNums", "writeQueueNums")]
    return max((count for count in counts if type(count) is int and 0 < count <= MAX_QUEUES), default=0)


def _new_topic(name: str) -> dict[str, Any]:
    """A topic as ``TopicConfigManager.createTopicInSendMessageMethod`` makes it."""
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


def _next_version(version: object) -> dict[str, Any]:
    """``DataVersion.nextVersion``."""
    known = version if isinstance(version, dict) else {}
    counter = known.get("counter")
    return {
        **known,
        "counter": (counter if type(counter) is int else 0) + 1,
        "stateVersion": known.get("stateVersion", 0),
        "timestamp": now_ms(),
    }


def fastjson(value: object, depth: int = 0) -> str:
    """Text as ``RemotingSerializable.toJson(obj, true)`` has it: tabs, and maps with numbers as keys in one line."""
    inside, outside = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, dict) and value:
        if all(_NUMBER.fullmatch(str(key)) for key in value):
            numbered = ",".join(f"{key}:{fastjson(item, depth + 1)}" for key, item in value.items())
            return f"{{{numbered}{outside}}}"
        named = ",".join(f"{inside}{_quoted(str(key))}:{fastjson(item, depth + 1)}" for key, item in value.items())
        return f"{{{named}{outside}}}"
    if isinstance(value, list) and value:
        return f"[{','.join(inside + fastjson(item, depth + 1) for item in value)}{outside}]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
