"""Models what the starts of all brokers have in common, with DLedger and without, in memory only.

They read messages with Java's signed lengths, and read, extend and truncate ConsumeQueues. Sources: RocketMQ 4.9.0 to
5.3.3 ``CommitLog.checkMessageAndReturnSize``; CRC of bodies only, as by default. 4.9.8 and 5.3.3
``ConsumeQueue.recover``, ``putMessagePositionInfo``, ``truncateDirtyLogicFiles``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, MESSAGE_HEADER, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from pyspark_dledger.format.message import host_sizes, message_crc, parse_properties, transaction
from pyspark_dledger.log.io.key_files import read_header
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    UNIT_DTYPE,
    QueueFile,
    Units,
    file_queues,
    folders_in,
    read_units,
    usual_units,
)
from pyspark_dledger.log.io.rocks_queues import rocks_folders
from pyspark_dledger.log.io.state_files import MARGIN_MS, read_store_checkpoint
from pyspark_dledger.log.recovery.java_files import JavaFile, list_folder
from pyspark_dledger.log.store_view import StoreView

_HEADER = record_struct(MESSAGE_HEADER)
_SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
# Properties that Java parses as numbers.
_NUMBERS = (b"DELAY", b"INNER_")
_SIZE_AND_MAGIC = struct.Struct(">ii")
# After the fixed header: bornHost, storeTimestamp, storeHost, 12 bytes, bodyLength.
_MIDDLE = {
    (born, store): struct.Struct(f">{born}xq{store + 12}xi")
    for born in layout.HOST_SIZES
    for store in layout.HOST_SIZES
}
# How far into a message its storeTimestamp can end.
_TIMESTAMP_END = layout.MESSAGE_HEADER_SIZE + 20 + 8
_BLANK = layout.MAGIC_BLANK.to_bytes(4, "big", signed=True)
_JAVA_INT = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class MessageRules:
    """How one RocketMQ version reads messages.

    ``allocates``: it allocates ``totalSize`` bytes before it looks whether the file has them. ``magics`` are those of
    messages. ``wants_duplicate_info``: a message with properties counts as damaged, because none has this information
    (apache/rocketmq issue 8032).
    """

    magics: tuple[int, ...]
    allocates: bool
    has_batches: bool
    wants_duplicate_info: bool = False


class JavaMessage(NamedTuple):
    """A message that the scan accepts. ``offset`` is its own physicalOffset, wherever it is; sizes are in bytes."""

    topic: bytes
    queue_id: int
    queue_offset: int
    offset: int
    size: int
    sys_flag: int
    store_timestamp: int


class ScanStop(NamedTuple):
    """Why the scan ends: the text, and the bytes of memory that the broker needs to say so; 0 for few.

    ``is_too_old``: only later versions read the message there.
    """

    text: str
    heap: int = 0
    is_too_old: bool = False


def read_message(file: JavaFile, at: int, rules: MessageRules) -> JavaMessage | ScanStop | None:
    """The message at byte `at` of a file; None for the blank at the end of its messages."""
    head = file.read(at, 8)
    if len(head) < 8:
        return ScanStop("the file ends")
    size, magic = _SIZE_AND_MAGIC.unpack(head)
    if magic == layout.MESSAGE_MAGIC_BLANK and (rules.allocates or size <= file.size - at):
        return None
    if magic not in rules.magics and magic == MESSAGE_MAGIC_V2:
        text = "a message with a topic of more than 127 bytes, which versions before 5.1 do not read"
        return ScanStop(text, is_too_old=True)
    if magic not in rules.magics:
        return ScanStop("no message begins here" if head.strip(b"\0") else "unwritten bytes")
    heap = size if rules.allocates and size > file.size else 0
    if size > file.size - at:
        return ScanStop(f"totalSize {size} is beyond the end of the file", heap)
    data = file.read(at, size) if size > 0 else b""
    found = _parse(data, size, magic, rules)
    return ScanStop(found, heap) if isinstance(found, str) else found


def _parse(data: bytes, size: int, magic: int, rules: MessageRules) -> JavaMessage | str:
    """The message in `data`, or why Java rejects it."""
    if len(data) < layout.MIN_MESSAGE_SIZE:
        return f"totalSize {size} is too small"
    _, _, body_crc, queue_id, _, queue_offset, offset, sys_flag, _ = _HEADER.unpack_from(data)
    middle = _MIDDLE[host_sizes(sys_flag)]
    start = _HEADER.size + middle.size
    store_timestamp, body_length = middle.unpack_from(data, _HEADER.size) if start <= size else (0, 0)
    at = start + body_length if body_length > 0 else start
    if at > start and message_crc(data[start:at]) != body_crc:
        return f"message CRC is {message_crc(data[start:at])}, not {body_crc}"
    width = 2 if magic == MESSAGE_MAGIC_V2 else 1
    topic_start = at + width
    topic_length = int.from_bytes(data[at:topic_start], "big", signed=True)
    at = topic_start + topic_length if topic_length > 0 else topic_start
    topic = data[topic_start:at]
    properties_start = at + 2
    properties_length = int.from_bytes(data[at:properties_start], "big", signed=True)
    at = properties_start + properties_length if properties_length > 0 else properties_start
    raw = data[properties_start:at]
    if topic_length < 0 or at != size:
        return f"its lengths add up to {at}, not {size}"
    if raw and any(name in raw for name in _NUMBERS) and not _are_numbers(parse_properties(raw), topic, rules):
        return "a property is no number"
    if raw and rules.wants_duplicate_info:
        return "it has no duplicate information"
    return JavaMessage(topic, queue_id, queue_offset, offset, size, sys_flag, store_timestamp)


def _are_numbers(properties: dict[str, str], topic: bytes, rules: MessageRules) -> bool:
    """Whether Java can parse the properties that are numbers."""
    delay = properties.get("DELAY")
    if topic == _SCHEDULE_TOPIC and delay is not None and not _is_number(delay, 32):
        return False
    base, number = properties.get("INNER_BASE"), properties.get("INNER_NUM")
    if rules.has_batches and base is not None and number is not None:
        return _is_number(base, 64) and _is_number(number, 16)
    return True


def _is_number(text: str, bits: int) -> bool:
    return bool(_JAVA_INT.fullmatch(text)) and -(1 << bits - 1) <= int(text) < 1 << bits - 1


Stop = tuple[JavaFile, int, ScanStop]
"""Where a scan ends: the file, the byte in it, and why."""


def scan_messages(
    files: Sequence[JavaFile], rules: MessageRules, take: Callable[[JavaMessage], None], shift: int = 0
) -> tuple[int, Stop | None]:
    """Call `take` for each message of `files`, up to the first that is damaged.

    Returns the end that the broker computes: the base of the last file plus the sizes of its messages, in bytes. It
    does not count the `shift` bytes of DLedger before each message.
    """
    end = files[0].base
    for file in files:
        end, at = file.base, 0
        while True:
            is_blank = shift and file.read(at, 4) == _BLANK
            message = None if is_blank else read_message(file, at + shift, rules)
            if not isinstance(message, JavaMessage):
                break
            take(message)
            end += message.size
            at += shift + message.size
        if message is not None:
            return end, (file, at, message)
    return end, None


def newest(files: Sequence[JavaFile], matches: Callable[[JavaFile], bool]) -> int:
    """The number of the newest file that matches, else of the first file."""
    return next((number for number in range(len(files) - 1, 0, -1) if matches(files[number])), 0)


def first_message(file: JavaFile, shift: int = 0) -> tuple[int, int] | None:
    """Magic and store timestamp (ms since 1970) of a file's first message; None if the file is too short."""
    head = file.read(shift, _TIMESTAMP_END)
    if len(head) < _TIMESTAMP_END:
        return None
    _, magic, _, _, _, _, _, sys_flag, _ = _HEADER.unpack_from(head)
    at = _HEADER.size + host_sizes(sys_flag)[0]
    return magic, int.from_bytes(head[at : at + 8], "big", signed=True)


# ConsumeQueues

_FILES_SCANNED = 3
# RocketMQ's default: 300,000 units.
_DEFAULT_FILE_SIZE = 300_000 * CONSUME_QUEUE_UNIT_SIZE


class RecoveredQueue:
    """One queue: its files, and how many bytes of each the broker counts as written.

    ``max_physical`` is the end in the log of the last message that the queue points to; -1 for none.
    """

    def __init__(self, files: list[QueueFile], file_size: int) -> None:
        self.file_size = file_size
        self.max_physical = -1
        self._files = {int(file.name): file for file in files}
        self._added: dict[int, list[tuple[int, int]]] = {}
        self._wrote = dict.fromkeys(self._files, file_size)
        if files:
            self._wrote[max(self._files)] = len(self._leading_units(max(self._files))) * CONSUME_QUEUE_UNIT_SIZE

    @property
    def max_offset(self) -> int:
        """The queueOffset after the last unit."""
        last = max(self._wrote, default=0)
        return (last + self._wrote.get(last, 0)) // CONSUME_QUEUE_UNIT_SIZE

    @property
    def has_empty_last_file(self) -> bool:
        """Whether nothing is left in the last file, which is not the first possible one."""
        last = max(self._wrote, default=0)
        return last > 0 and not self._wrote[last]

    @property
    def units(self) -> int:
        """The number of units, with fillers."""
        return sum(self._wrote.values()) // CONSUME_QUEUE_UNIT_SIZE

    def recover(self) -> None:
        """Find the end, the first unit in the last three files without a message. Later files are deleted."""
        bases = sorted(self._files)
        for base in bases[-_FILES_SCANNED:]:
            units = self._leading_units(base)
            if len(units):
                self.max_physical = int(units[-1]["commitLogOffset"]) + int(units[-1]["size"])
            self._wrote[base] = len(units) * CONSUME_QUEUE_UNIT_SIZE
            if self._wrote[base] < self.file_size:
                for later in bases[bases.index(base) + 1 :]:
                    self._delete(later)
                return

    def put(self, queue_offset: int, offset: int, size: int) -> None:
        """Add the unit of a dispatched message, unless the queue has it already."""
        if offset + size <= self.max_physical:
            return
        end = self.max_offset * CONSUME_QUEUE_UNIT_SIZE
        wanted = queue_offset * CONSUME_QUEUE_UNIT_SIZE
        if not self._wrote and queue_offset:
            end = wanted  # a new queue has fillers up to its first unit
        elif queue_offset and wanted < end:
            return
        base = end - end % self.file_size
        self._wrote[base] = end - base + CONSUME_QUEUE_UNIT_SIZE
        self._added.setdefault(base, []).append((offset, size))
        self.max_physical = offset + size

    def truncate(self, end: int) -> None:
        """Remove the units of messages at or after `end`, file by file from the last one."""
        self.max_physical = end
        while self._wrote:
            base = max(self._wrote)
            kept = self._kept(base, end)
            if kept:
                self._wrote[base] = kept
                return
            self._delete(base)

    def delete(self) -> None:
        """Delete all files."""
        self.max_physical = -1
        for base in list(self._wrote):
            self._delete(base)

    def _delete(self, base: int) -> None:
        self._files.pop(base, None)
        self._wrote.pop(base, None)
        self._added.pop(base, None)

    def _kept(self, base: int, end: int) -> int:
        """How many bytes of a file stay. The first unit counts even if it is empty."""
        offsets, sizes = self._content(base)
        stays = (offsets >= 0) & (offsets < end) & (sizes > 0)
        if not len(offsets) or offsets[0] >= end:
            return 0
        stays[0] = True
        kept = _leading(stays)
        self.max_physical = int(offsets[kept - 1] + sizes[kept - 1])
        return kept * CONSUME_QUEUE_UNIT_SIZE

    def _content(self, base: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Offsets and sizes of all units of a file, also of those after its end, which an older log can have left."""
        records = self._records(base)
        offsets, sizes = (np.zeros(self.file_size // CONSUME_QUEUE_UNIT_SIZE, np.int64) for _ in range(2))
        offsets[: len(records)] = records["commitLogOffset"]
        sizes[: len(records)] = records["size"]
        if base in self._added:
            units = self._wrote[base] // CONSUME_QUEUE_UNIT_SIZE
            first = units - len(self._added[base])
            # A new queue begins with fillers, which point to 0.
            sizes[len(records) : first] = FILLER_SIZE
            offsets[first:units], sizes[first:units] = np.array(self._added[base], np.int64).T
        return offsets, sizes

    def _leading_units(self, base: int) -> Units:
        """The units before the first one without a message."""
        records = self._records(base)
        return records[: _leading((records["commitLogOffset"] >= 0) & (records["size"] > 0))]

    def _records(self, base: int) -> Units:
        file, count = self._files.get(base), self.file_size // CONSUME_QUEUE_UNIT_SIZE
        blocks = read_units(file, 0, count) if file is not None else ()
        return np.concatenate([np.empty(0, UNIT_DTYPE), *blocks])


class RecoveredQueues:
    """The queues of a store, by topic and queue id."""

    def __init__(self, root: Path) -> None:
        found = file_queues(root)
        usual = usual_units(found) * CONSUME_QUEUE_UNIT_SIZE or _DEFAULT_FILE_SIZE
        self.by_key: dict[tuple[str, int], RecoveredQueue] = {
            (queue.topic, queue.queue_id): RecoveredQueue(
                [file for file in queue.files if file.units],
                queue.files[0].units * CONSUME_QUEUE_UNIT_SIZE or usual,
            )
            for queue in found
        }
        # Java loads a folder without files as a queue, too: a truncation sets its end in the log.
        for topic in folders_in(root / FOLDER):
            for queue_id in (folder.name for folder in folders_in(root / FOLDER / topic.name)):
                if queue_id.isdecimal():
                    self.by_key.setdefault((topic.name, int(queue_id)), RecoveredQueue([], usual))
        self._before = self._max_offsets()
        self.units_before = self.units

    @property
    def units(self) -> int:
        return sum(queue.units for queue in self.by_key.values())

    @property
    def max_physical(self) -> int:
        """The end in the log of the last message of any queue; -1 for none."""
        return max((queue.max_physical for queue in self.by_key.values()), default=-1)

    def recover(self) -> None:
        for queue in self.by_key.values():
            queue.recover()

    def put(self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> None:
        """Dispatch a message."""
        key = (topic, queue_id)
        if key not in self.by_key:
            file_size = next((queue.file_size for queue in self.by_key.values()), _DEFAULT_FILE_SIZE)
            self.by_key[key] = RecoveredQueue([], file_size)
        self.by_key[key].put(queue_offset, offset, size)

    def truncate(self, end: int) -> None:
        for queue in self.by_key.values():
            queue.truncate(end)

    def delete(self) -> None:
        for queue in self.by_key.values():
            queue.delete()

    def changes(self) -> list[dict[str, Any]]:
        """The queues whose length has changed."""
        after = self._max_offsets()
        return [
            {
                "topic": topic,
                "queueId": queue_id,
                "maxOffsetBefore": self._before.get((topic, queue_id), 0),
                "maxOffsetAfter": max_offset,
            }
            for (topic, queue_id), max_offset in sorted(after.items())
            if max_offset != self._before.get((topic, queue_id), 0)
        ]

    def max_offsets(self) -> dict[str, int]:
        """The queueOffset after the last unit of each queue that has one, by ``topic/queueId``."""
        return {f"{topic}/{queue_id}": end for (topic, queue_id), end in sorted(self._max_offsets().items()) if end}

    def _max_offsets(self) -> dict[tuple[str, int], int]:
        return {key: queue.max_offset for key, queue in self.by_key.items()}


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first false one."""
    return int(np.argmin(good)) if not good.all() else len(good)


class BrokerStart:
    """One start of a broker of a release on the store in `root`.

    ``abort``: it was not closed cleanly. ``cut_at``: queues lose their units from this offset on, None if none does.
    """

    def __init__(self, log: StoreView, root: Path, version: str, release: tuple[int, ...]) -> None:
        self.log = log
        self.root = root
        self.version = version
        self.release = release
        magics = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) if release >= (5, 1) else (MESSAGE_MAGIC_V1,)
        self.rules = MessageRules(magics, allocates=release < (5, 3, 2), has_batches=release >= (5,))
        self.abort = (root / "abort").exists()
        # Messages after those of all queues are dispatched even after a clean end.
        self.dispatches_rest = release >= (5, 3, 2)
        self.checkpoint = read_store_checkpoint(root)
        self.queues = RecoveredQueues(root)
        self.notes: list[str] = []
        if rocks_folders(root):
            self.notes.append("queues in RocksDB are not modelled: the queues here are those in files")
        self.cut_at: int | None = None

    def deleted_index_files(self) -> list[str]:
        """After an unclean end: the IndexFiles whose last message is newer than the store checkpoint."""
        paths = list_folder(self.root / "index") if self.abort else []
        headers = ((path.name, read_header(path)) for path in paths if path.name.isdecimal() and path.is_file())
        limit = self.checkpoint.index_msg_timestamp
        return sorted(name for name, header in headers if header is not None and header.end_timestamp > limit)

    def queue_file_of_other_size(self) -> str | None:
        """A file of a ConsumeQueue with another size than the others, with which load() fails; None without one.

        4.9.2 ignores it; earlier lines are not modelled.
        """
        if self.release < (4, 9) or self.release == (4, 9, 2):
            return None
        found = file_queues(self.root)
        usual = usual_units(found) * CONSUME_QUEUE_UNIT_SIZE
        for queue in found:
            for file in queue.files:
                is_deleted = file.size == 0 and file is queue.files[-1] and self.release >= (5, 1, 3)
                if file.size != usual and not is_deleted:
                    where = f"consumequeue/{queue.topic}/{queue.queue_id}/{file.name}"
                    return f"{where} has {file.size} bytes, not {usual}"
        return None

    @property
    def covered_until(self) -> int:
        """The store timestamp up to which the store checkpoint covers messages, in ms since 1970."""
        covered = min(self.checkpoint.physic_msg_timestamp, self.checkpoint.logics_msg_timestamp)
        return max(covered - MARGIN_MS, 0)

    def covered_file(self, files: list[JavaFile], magics: tuple[int, ...], shift: int = 0) -> int:
        """The number of the newest file whose first message the store checkpoint covers, else of the first file."""

        def is_covered(file: JavaFile) -> bool:
            magic, time = first_message(file, shift) or (0, 0)
            return magic in magics and 0 != time <= self.covered_until

        return newest(files, is_covered)

    def dispatch(self, message: JavaMessage) -> None:
        """Add the message's unit to its queue."""
        if transaction(message.sys_flag) in ("none", "commit"):
            topic = decode_utf8(message.topic)
            self.queues.put(topic, message.queue_id, message.queue_offset, message.offset, message.size)
