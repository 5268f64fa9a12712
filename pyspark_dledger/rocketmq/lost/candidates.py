"""Names lost messages: texts whose hashes their units have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error
from pyspark_dledger.log.io.queue_files import FOLDER, folders_in
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage


def topics_of(log: StoreView, on_unreadable: OnUnreadable = ignore_error) -> list[str]:
    """The topics that have a folder for their ConsumeQueues."""
    root = log.paths.root
    return sorted(folder.name for folder in folders_in(root / FOLDER, on_unreadable)) if root is not None else []


class Candidates:
    """Keys, uniqKeys and tags that lost messages may have had."""

    def __init__(self, lines: Iterable[str], logs: Sequence[StoreView]) -> None:
        self._lines = list(dict.fromkeys(lines))
        self._logs = logs
        self._keys: dict[str, dict[int, list[str]]] = {}

    def keys_of(self, lost: LostMessage) -> list[str]:
        """The lines that can be a key or uniqKey of a message; without its topic, those of any topic."""
        if not lost.key_hashes:
            return []
        topics = [lost.topic] if lost.topic is not None else self._topics
        found = {
            line for topic in topics for number in lost.key_hashes for line in self._by_hash(topic).get(number, [])
        }
        return [line for line in self._lines if line in found] if found else []

    def tags_of(self, lost: LostMessage) -> list[str]:
        """The lines that can be the tag of a message."""
        return self._tags.get(lost.tags_code, []) if lost.tags_code else []

    @cached_property
    def _topics(self) -> list[str]:
        return sorted({topic for log in self._logs for topic in topics_of(log)})

    @cached_property
    def _tags(self) -> dict[int, list[str]]:
        tags: dict[int, list[str]] = {}
        for line in self._lines:
            tags.setdefault(java_hash(line), []).append(line)
        return tags

    def _by_hash(self, topic: str) -> dict[int, list[str]]:
        if topic not in self._keys:
            hashes: dict[int, list[str]] = {}
            for line in self._lines:
                hashes.setdefault(key_hash(topic, line), []).append(line)
            self._keys[topic] = hashes
        return self._keys[topic]
