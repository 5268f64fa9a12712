"""Stored units: what the ConsumeQueues of a store have, and the offsets of consumer groups in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.dispatched_rows import Longs, QueueName
from pyspark_dledger.log.io.broker_config import (
    DELAYS,
    SCHEDULE_GROUP,
    TABLES,
    TOPICS,
    BrokerConfig,
    read_config,
    read_newest,
)
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.files import OnUnreadable, path_of, raise_error
from pyspark_dledger.log.io.key_files import hash_of_tags, index_files, key_files
from pyspark_dledger.log.io.queue_files import FOLDER, UNIT_DTYPE, QueueFile, Units, batch_queues, queues
from pyspark_dledger.log.io.queue_units import QueueUnits, is_filler, is_written
from pyspark_dledger.log.io.state_files import read_store_checkpoint
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView

# Topics of brokers themselves.
_SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_")
# Only brokers write these.
_BROKER_FOLDERS = (CONFIG, "compaction")
_MAX_TAG_UNITS, _MAX_TAGGED = 10_000, 16
# Longer queues are not searched for units that do not ascend.
_MAX_SEARCHED_UNITS = 4_000_000


def queue_root(log: StoreView) -> Path:
    """The storePathRootDir that has the queues. Raises StoreError if it is unknown."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir with the folder {FOLDER}, found a log folder without its root: "
            "give the root's path"
        )
    return root


def are_missing(root: Path) -> bool:
    """Whether a storePathRootDir has no queues, although other files show that its broker had some.

    ``lock`` and ``abort`` show none: a node without a broker has them, too.
    """
    try:
        if (root / FOLDER).exists():
            return False
        if any((root / name).is_dir() for name in _BROKER_FOLDERS) or any(index_files(root)):
            return True
        return read_store_checkpoint(root).logics_msg_timestamp > 0
    except (OSError, StoreError):
        return False


def is_selected(topic: str, queue_id: int, options: ReadOptions) -> bool:
    """Whether the options topic and queueId select a queue."""
    return (options.topic is None or topic in options.topic) and (
        options.queue_id is None or queue_id in options.queue_id
    )


class StoredUnits(NamedTuple):
    """Written units that are no fillers; ``queue`` is the number of a queue."""

    offset: Longs
    size: Longs
    tags_code: Longs
    queue: Longs
    queue_offset: Longs

    def take(self, which: npt.NDArray[Any]) -> StoredUnits:
        return StoredUnits(*(values[which] for values in self))

    def joined(self, *others: StoredUnits) -> StoredUnits:
        """These and other units, by position."""
        found = StoredUnits(*(np.concatenate(values) for values in zip(self, *others, strict=True)))
        return found.take(np.argsort(found.offset, kind="stable"))


class Unwritten(NamedTuple):
    """The queueOffsets ``[first, last]`` of a queue that were never written, before others that were."""

    queue: int
    first: int
    last: int


class StoredQueues:
    """The queues of a storePathRootDir by number. `on_unreadable` is called for what cannot be read."""

    def __init__(self, root: Path, on_unreadable: OnUnreadable = raise_error) -> None:
        self.root, self._folder = root, root / FOLDER
        self._on_unreadable = on_unreadable
        self._unread: list[tuple[str, ...]] = []
        self.queues = [QueueUnits(queue, self._note) for queue in queues(root, self._note)]
        self.batch_topics = frozenset(queue.topic for queue in batch_queues(root, self._note))
        self._numbers = {queue.name: number for number, queue in enumerate(self.queues)}
        self._searched: tuple[int, Longs] = (-1, np.empty(0, np.int64))

    def _note(self, error: UnreadableError) -> None:
        path = path_of(error.path)
        self._unread.append(path.relative_to(self._folder).parts[:2] if path.is_relative_to(self._folder) else ())
        self._on_unreadable(error)

    @cached_property
    def _topics(self) -> frozenset[str] | None:
        """The topics that the broker knows; None if its file is missing or damaged."""
        try:
            file = read_newest(self.root / CONFIG, TOPICS)
        except StoreError:
            return None
        known = file.content.get(TABLES[TOPICS]) if file is not None else None
        return frozenset(map(str, known)) if known and isinstance(known, dict) else None

    def is_deleted(self, topic: str) -> bool:
        """Whether a topic was deleted: it has no queue, and the broker does not know it."""
        if topic.startswith(_SYSTEM_PREFIXES) or any(queue.queue.topic == topic for queue in self.queues):
            return False
        return self._topics is not None and topic not in self._topics

    def is_unread(self, name: QueueName) -> bool:
        """Whether a queue could not be read as a whole. Without batchconsumequeue, no topic is known to have none."""
        parts, queue = (name[0], str(name[1])), self.get(name)
        has_failed = queue is not None and queue.has_failed
        return has_failed or any(parts[: len(unread)] == unread for unread in self._unread)

    def get(self, name: QueueName) -> QueueUnits | None:
        """A queue by its name."""
        number = self._numbers.get(name)
        return None if number is None else self.queues[number]

    def units_at(self, name: QueueName, first: int, count: int) -> Units:
        """`count` units of a queue from a queueOffset on; zeros for unwritten ones."""
        queue = self.get(name)
        return queue.at(first, count) if queue is not None else np.zeros(count, UNIT_DTYPE)

    def files_of_other_sizes(self, usual: int | None = None) -> Iterator[tuple[QueueUnits, QueueFile, int]]:
        """The files whose size differs from the usual one, in bytes, by default that of most.

        A broker does not start with them. Java deletes a last file that is empty.
        """
        found = [(queue, file) for queue in self.queues for file in queue.queue.files if not file.database]
        found = [(queue, file) for queue, file in found if file.size or file != queue.queue.files[-1]]
        sizes = Counter(file.size for _, file in found)
        usual = usual or max(sizes, key=lambda size: (sizes[size], size), default=0)
        yield from ((queue, file, usual) for queue, file in found if file.size != usual)

    def files_after_the_end(self) -> Iterator[QueueFile]:
        """The first file after the last unit of each queue; a file without a byte is none for Java."""
        for queue in self.queues:
            is_whole = queue.count and not self.is_unread(queue.queue.name)
            following = queue.queue.files[len(queue.files) :] if is_whole else ()
            yield from (file for file in following[:1] if file.size)

    def topics_without_config(self) -> list[str]:
        """The topics with units that the broker does not know, in order; empty if its file of topics is not known."""
        known = self._topics
        names = {queue.queue.topic for queue in self.queues if queue.count}
        return sorted(name for name in names - (known or names) if not name.startswith((*_SYSTEM_PREFIXES, "%")))

    def bounds(self, position: int) -> list[int]:
        """The rank of the first unit of each queue that points to a position of the log, or after it.

        At the highest position the end of each queue: its last units may point to no message.
        """
        if position == INT64_MAX:
            return [queue.count for queue in self.queues]
        return [queue.lower_bound(position) for queue in self.queues]

    def between(self, starts: list[int], stops: list[int], first: int = 0) -> tuple[StoredUnits, list[Unwritten]]:
        """The units with ranks in ``[start, stop)`` of each queue, by position, and the gaps before them.

        Units of messages before the position `first` of the log are left out.
        """
        unwritten: list[Unwritten] = []
        parts = [StoredUnits(*(np.empty(0, np.int64) for _ in StoredUnits._fields))]
        for number, (queue, start, stop) in enumerate(zip(self.queues, starts, stops, strict=True)):
            if start >= stop:
                continue
            # A queue may begin with any queueOffset.
            before = queue.queue_offset(start - 1) if start else -1
            queue_offsets, units = queue.read(start, stop)
            which = is_written(units)
            written, offsets = units[which], queue_offsets[which]
            if not self.is_unread(queue.name):
                unwritten += _gaps(number, np.concatenate([[before], offsets]), is_first=start == 0)
            is_expired = (written["commitLogOffset"] >= 0) & (written["commitLogOffset"] < first)
            which = ~is_filler(written) & ~is_expired
            offset, size, tags_code = (
                written[name][which].astype(np.int64) for name in ("commitLogOffset", "size", "tagsCode")
            )
            queue_number = np.full(len(offset), number, np.int64)
            parts.append(StoredUnits(offset, size, tags_code, queue_number, offsets[which]))
        return parts[0].joined(*parts[1:]), unwritten

    def positions_of(self, number: int) -> Longs:
        """The sorted positions in the log that a queue points to; none of a very long queue."""
        if self._searched[0] != number:
            queue = self.queues[number]
            chunks = queue.chunks(0, queue.count if queue.count <= _MAX_SEARCHED_UNITS else 0)
            parts = [units["commitLogOffset"][units["size"] > 0].astype(np.int64) for _, units in chunks]
            self._searched = number, np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
        return self._searched[1]


def _gaps(number: int, offsets: Longs, is_first: bool) -> Iterator[Unwritten]:
    for gap in np.flatnonzero(np.diff(offsets) > 1).tolist():
        if gap or not is_first:
            yield Unwritten(number, int(offsets[gap]) + 1, int(offsets[gap + 1]) - 1)


def has_tag_units(log: StoreView) -> bool:
    """Whether the index of keys has units of tags, as RocketMQ writes from 5.5.0 on.

    One of the newest messages with tags shows it; False without index or such messages.
    """
    with suppress(StoreError, OSError):
        files = list(key_files(log.paths.root)) if log.paths.root is not None else []
        for file in reversed([file for file in files if file.count > 1]):
            units = file.read(max(file.count - _MAX_TAG_UNITS, 1), file.count)
            hashes: dict[int, set[int]] = {}
            for offset, key_hash in zip(units["commitLogOffset"].tolist(), units["keyHash"].tolist(), strict=True):
                hashes.setdefault(offset, set()).add(key_hash)
            tagged = 0
            for offset in sorted(hashes, reverse=True):
                found = message_at(log.segments, offset, log.segment_end)
                expected = hash_of_tags(found.topic, found.properties) if found is not None else set()
                if expected & hashes[offset]:
                    return True
                tagged += bool(expected)
                if tagged == _MAX_TAGGED:
                    return False
    return False


class PassedEnd(NamedTuple):
    """The offset of a consumer group in a queue that ends before it; ``path`` is where the offset is stored."""

    group: str
    topic: str
    queue_id: int
    offset: int
    end: int
    path: Path


def passed_ends(root: Path, stored: StoredQueues, undispatched: int = 0) -> Iterator[PassedEnd]:
    """The offsets in the configuration of a broker that are after the ends of its queues.

    A broker that starts gives units to at most `undispatched` messages more. A queue without files ends at 0 if its
    topic is known. Nothing is known without queues, or if a file cannot be read.
    """
    config = BrokerConfig()
    with suppress(StoreError):
        config = read_config(root)
    for (group, topic), offsets in sorted(config.group_offsets.items()) if stored.queues else ():
        path = root / CONFIG / DELAYS if group == SCHEDULE_GROUP else config.offsets_path
        for queue_id, offset in sorted(offsets.items()):
            queue = stored.get((topic, queue_id))
            is_known = queue is not None or (topic in config.topic_queues and topic not in stored.batch_topics)
            end = queue.end if queue is not None else 0
            if is_known and offset > end + undispatched and not stored.is_unread((topic, queue_id)):
                yield PassedEnd(group, topic, queue_id, offset, end, path)
