"""Models the start of a RocketMQ broker in DLedger mode on a store: DLedger's recovery, then the broker's own.

A broker looks for ``abort`` (an unclean end), deletes IndexFiles, checks its ConsumeQueues, lets DLedger recover, and
truncates the queues to the recovered log. Sources: RocketMQ 4.5.1 to 5.3.3 ``DLedgerCommitLog``, ``CommitLog``,
``DefaultMessageStore.load`` and ``recover``, ``IndexService``, ``ConsumeQueue``, ``ConsumeQueueStore``.

Modelled: deleted IndexFiles, ConsumeQueues after load(), and where DLedger begins. 5.4 and 5.5 are modelled as 5.3.3.

Not modelled: the dispatch of committed messages after load(), units of light message queues (4.9.4 and later),
BatchConsumeQueue, ConsumeQueueExt, queues in RocksDB, the timer and compaction stores, other settings than the defaults
(``duplicationEnable``, ``messageIndexSafe``, ``checkCRCOnRecover``), the deletion of expired files, and ConsumeQueue or
IndexFiles of another size than configured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.layout import MESSAGE_MAGIC_V1, segment_name
from pyspark_dledger.format.message import MESSAGE_MAGICS, Message, message_crc, parse_message, transaction
from pyspark_dledger.log.io.key_files import read_header
from pyspark_dledger.log.io.store_checkpoint import MARGIN_MS, read_store_checkpoint
from pyspark_dledger.log.io.unread_files import unread_file
from pyspark_dledger.log.recovery.java_files import JavaFile, list_folder
from pyspark_dledger.log.recovery.recovery_preview import RecoveryPreview, preview
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.recovery.recovery_queues import RecoveredQueues

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-ALPHA|-PREVIEW)?")
# DLedger's version from each version of RocketMQ on; from pom.xml of each tag.
_DLEDGER_OF = (
    ((4, 5, 0), "0.1"),
    ((4, 8, 0), "0.2.2"),
    ((4, 9, 3), "0.2.3"),
    ((4, 9, 4), "0.2.6"),
    ((4, 9, 5), "0.3.1.2"),
    ((5, 0, 0), "0.3.1"),
    ((5, 1, 1), "0.3.1.2"),
    ((5, 4, 0), "0.3.2"),
)
_DLEDGER_OF_EARLY_5 = {"5.0.0-ALPHA": "0.2.3", "5.0.0-PREVIEW": "0.2.2"}
_NEWEST = (5, 5)


@dataclass(frozen=True)
class BrokerRecovery:
    """What load() of a broker does in addition to DLedger's recovery; offsets are bytes of the log.

    ``starts``: whether load() succeeds. ``consume_queue_cut_at``: queues lose their units from this offset on; None if
    the broker does not truncate them. ``queues`` lists those whose number of units changes. ``old_files_deleted`` and
    ``data_file_created``: the first start over an old CommitLog.
    """

    version: str
    dledger: str
    abort: bool
    recovery: str
    starts: bool
    divided_commitlog_offset: int
    consume_queue_cut_at: int | None
    consume_queue_units_before: int
    consume_queue_units_after: int
    queues: list[dict[str, Any]] = field(default_factory=list)
    index_files_deleted: list[str] = field(default_factory=list)
    old_files_deleted: list[str] = field(default_factory=list)
    data_file_created: str | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The object under ``rocketmq`` that the command line prints."""
        return fields_row(self)


def dledger_of_rocketmq(version: str) -> str:
    """The DLedger version of a RocketMQ release, such as ``0.3.1.2`` of ``5.3.3``. Raises OptionError if unknown."""
    wanted = version.strip().upper()
    found = _VERSION.fullmatch(wanted)
    numbers = (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)
    if found and wanted in _DLEDGER_OF_EARLY_5:
        return _DLEDGER_OF_EARLY_5[wanted]
    if not found or found[4] or numbers < _DLEDGER_OF[0][0] or numbers[:2] > _NEWEST:
        raise OptionError(f"expected a RocketMQ version with DLedger, 4.5.0 to 5.5.0, found {version!r}")
    return next(dledger for since, dledger in reversed(_DLEDGER_OF) if numbers >= since)


def preview_broker(
    log: StoreView, version: str, data_file_size: int | None = None, index_file_size: int | None = None
) -> RecoveryPreview:
    """What a broker of RocketMQ `version` would do at its start on a store; the broker's own part is in ``rocketmq``.

    Sizes as in `preview`. Raises StoreError if the store is no storePathRootDir with a DLedger node, OptionError for an
    unknown version.
    """
    dledger = dledger_of_rocketmq(version)
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir, found a log folder without its root: give the root's path"
        )
    recovery = preview(log, dledger, data_file_size, index_file_size)
    if recovery.outcome == "unknown":
        return recovery
    try:
        return replace(recovery, rocketmq=_Start(log, root, version.strip(), recovery).run().as_json())
    except StoreError as error:
        return RecoveryPreview.unknown(dledger, unread_file(error, log.unread, log.segments))


class _Start:
    """One start of a broker; `run` models its load()."""

    def __init__(self, log: StoreView, root: Path, version: str, recovery: RecoveryPreview) -> None:
        self.log = log
        self.root = root
        self.version = version
        self.recovery = recovery
        self.abort = (root / "abort").exists()
        release = tuple(int(number) for number in version.split("-")[0].split("."))
        self.is_abnormal = self.abort and release >= (5, 2)
        self.wants_duplicate_info = self.is_abnormal and release[:2] == (5, 2)
        self.magics = MESSAGE_MAGICS if release >= (5, 1) else (MESSAGE_MAGIC_V1,)
        # Messages of an old CommitLog after those of all queues are dispatched even after a clean end.
        self.dispatches_rest = release >= (5, 3, 2)
        self.checkpoint = read_store_checkpoint(root)
        self.queues = RecoveredQueues(root)
        self.notes: list[str] = []
        self.cut_at: int | None = None
        self.old_deleted: list[str] = []
        self.created: str | None = None

    def run(self) -> BrokerRecovery:
        index_files = self._deleted_index_files()
        self.queues.recover()
        opens = self.recovery.outcome == "opens"
        divided = -1
        if opens:
            files = self._files(self.log.paths.data_dirs, self.recovery.data_files_after)
            divided = self._over_dledger(files) if files else self._over_old_commitlog()
        else:
            self.notes.append(
                "DLedger does not open the store, so the broker does not start; IndexFiles are deleted before"
            )
        if self.abort and not self.is_abnormal:
            self.notes.append(
                "abort exists, but this version recovers as after a clean end: ConsumeQueue units that were not on "
                "disk stay missing if another queue is ahead"
            )
        return BrokerRecovery(
            version=self.version,
            dledger=self.recovery.java,
            abort=self.abort,
            recovery="abnormal" if self.is_abnormal else "normal",
            starts=opens,
            divided_commitlog_offset=divided,
            consume_queue_cut_at=self.cut_at,
            consume_queue_units_before=self.queues.units_before,
            consume_queue_units_after=self.queues.units,
            queues=self.queues.changes(),
            index_files_deleted=index_files,
            old_files_deleted=self.old_deleted,
            data_file_created=self.created,
            notes=self.notes,
        )

    def _files(self, dirs: Iterable[Path], names: Container[str] | None = None) -> list[JavaFile]:
        """The files of the log in `dirs`, in order; with `names` only those."""
        paths = sorted((path for folder in dirs for path in list_folder(folder)), key=lambda path: path.name)
        return [
            JavaFile(int(path.name), path.stat().st_size, path.name, path)
            for path in paths
            if path.name.isdecimal() and path.is_file() and (names is None or path.name in names)
        ]

    def _deleted_index_files(self) -> list[str]:
        """After an unclean end: the IndexFiles whose last message is newer than the store checkpoint."""
        return sorted(
            path.name
            for path in (list_folder(self.root / "index") if self.abort else [])
            if path.name.isdecimal() and path.is_file() and _index_end(path) > self.checkpoint.index_msg_timestamp
        )

    def _over_dledger(self, files: list[JavaFile]) -> int:
        """DLedger has files: the queues are truncated to its end. Returns where DLedger begins."""
        assert self.recovery.write_pos is not None  # it opened
        highest, end = self.queues.max_physical, self.recovery.write_pos
        if self.is_abnormal:
            end = self._rescan(files, True)
            self._note_rescan(end, self.recovery.write_pos)
            if not self.wants_duplicate_info:
                self.notes.append("the scan indexes keys again: if no IndexFile has room, load() creates a new one")
        self._truncate_queues(highest, end)
        if self._files(self.log.paths.commitlog_dirs):
            self.notes.append("the old CommitLog has files: DLedger does not delete its own expired files")
        return files[0].base

    def _rescan(self, files: list[JavaFile], in_dledger: bool) -> int:
        """Dispatch the files again, from the newest one on that the store checkpoint covers; returns the found end."""
        covered = min(self.checkpoint.physic_msg_timestamp, self.checkpoint.logics_msg_timestamp)
        start = 0
        for number in range(len(files) - 1, -1, -1):
            message = first_message(files[number], in_dledger)
            # In DLedger a first message of V2 does not count here.
            known = message is not None and (
                message[0] == MESSAGE_MAGIC_V1 if in_dledger else message[0] in MESSAGE_MAGICS
            )
            if known and message is not None and 0 != message[1] <= max(covered - MARGIN_MS, 0):
                start = number
                break
        return walk_messages(files[start:], in_dledger, self.wants_duplicate_info and in_dledger, self.queues.put)

    def _note_rescan(self, end: int, write_pos: int) -> None:
        if self.wants_duplicate_info:
            self.notes.append(
                "5.2 expects duplicate information, which no message has (apache/rocketmq issue 8032): it finds the "
                f"log's end at {end}; later committed messages are dispatched again afterwards"
            )
        elif end < write_pos:
            self.notes.append(
                "the scan does not count the 48 bytes before each message (apache/rocketmq issue 9084): it finds the "
                f"log's end at {end}, not at {write_pos}; later committed messages are dispatched again afterwards"
            )

    def _truncate_queues(self, highest: int, end: int) -> None:
        """Truncate the queues at `end` if any of them reached it before the scan."""
        if highest >= end:
            self.cut_at = end
            self.queues.truncate(end)

    def _over_old_commitlog(self) -> int:
        """The first start in DLedger mode: the old log is closed. Returns where DLedger begins."""
        files = self._files(self.log.paths.commitlog_dirs)
        if not files:
            self.notes.append("neither DLedger nor an old CommitLog has files: all ConsumeQueues are deleted")
            self.queues.delete()
            return -1
        highest = self.queues.max_physical
        end = self._rescan(files, False) if self.is_abnormal else self._scan_last(files, highest)
        self._truncate_queues(highest, end)
        self.old_deleted = [file.name for file in files if file.base > end]
        last = [file for file in files if file.base <= end][-1]
        divided = last.base + last.size
        self.created = segment_name(divided)
        self.notes.append(
            f"commitlog/{last.name} is closed with a filler from byte {end - last.base} on, unless it has one; DLedger "
            f"begins at {divided}"
        )
        return divided

    def _scan_last(self, files: list[JavaFile], highest: int) -> int:
        """Find the end of the old log in its last three files."""

        def dispatch(topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> None:
            if offset > highest:
                self.queues.put(topic, queue_id, queue_offset, offset, size)

        return walk_messages(files[-3:], False, False, dispatch if self.dispatches_rest else None, self.magics)


def _index_end(path: Path) -> int:
    """The store timestamp of an IndexFile's last message; 0 without a header."""
    header = read_header(path)
    return header.end_timestamp if header is not None else 0


_BLANK = layout.MAGIC_BLANK.to_bytes(4, "big", signed=True)
# Position of a message's storeTimestamp; 12 bytes later if bornHost is IPv6.
_STORE_TIMESTAMP = 56
_V6_LONGER = 12
_HEAD_SIZE = _STORE_TIMESTAMP + _V6_LONGER + 8

Dispatch = Callable[[str, int, int, int, int], None]
"""Called with topic, queue id, queueOffset, position in the log, and size in bytes."""


def walk_messages(
    files: list[JavaFile],
    in_dledger: bool,
    wants_duplicate_info: bool,
    dispatch: Dispatch | None,
    magics: tuple[int, ...] = MESSAGE_MAGICS,
) -> int:
    """Scan the messages of `files`, and dispatch each that belongs in a queue.

    Returns the end that the broker computes: the base of the last file plus the sizes of its messages, in bytes.
    `in_dledger`: each has 48 bytes of DLedger before it, which the broker does not count. `wants_duplicate_info`: a
    message with properties counts as damaged, because none has duplicate information. `magics` are those that the
    version knows.
    """
    shift = layout.ENTRY_HEADER_SIZE if in_dledger else 0
    end = files[0].base
    for file in files:
        end, at = file.base, 0
        while (size := _message_size(file, at, in_dledger, magics)) > 0:
            data = file.read(at + shift, size)
            message = _intact_message(data, size, file.base + at + shift)
            if message is None or (wants_duplicate_info and message.properties_length):
                return end
            if dispatch is not None and transaction(message.sys_flag) in ("none", "commit"):
                topic = decode_utf8(data[message.topic_start : message.topic_start + message.topic_length])
                dispatch(topic, message.queue_id, message.queue_offset, message.physical_offset, size)
            end += size
            at += shift + size
        if size < 0:
            break
    return end


def first_message(file: JavaFile, in_dledger: bool) -> tuple[int, int] | None:
    """Magic and store timestamp (ms since 1970) of a file's first message; None if the file is too short."""
    head = file.read(layout.ENTRY_HEADER_SIZE if in_dledger else 0, _HEAD_SIZE)
    if len(head) < _HEAD_SIZE:
        return None
    born_v6 = int.from_bytes(head[36:40], "big") & layout.FLAG_BORN_HOST_V6
    at = _STORE_TIMESTAMP + (_V6_LONGER if born_v6 else 0)
    return int.from_bytes(head[4:8], "big", signed=True), int.from_bytes(head[at : at + 8], "big", signed=True)


def _message_size(file: JavaFile, at: int, in_dledger: bool, magics: tuple[int, ...]) -> int:
    """The size of the message at `at`; 0 for the blank at the end of a file, -1 for anything else."""
    if in_dledger:
        if file.read(at, 4) == _BLANK:
            return 0
        at += layout.ENTRY_HEADER_SIZE
    head = file.read(at, 8)
    size, magic = (int.from_bytes(part, "big", signed=True) for part in (head[:4], head[4:]))
    if magic == layout.MESSAGE_MAGIC_BLANK:
        return 0
    return size if magic in magics and 0 < size <= file.size - at else -1


def _intact_message(data: bytes, size: int, pos: int) -> Message | None:
    """The message that fills `data`, if its lengths and its body's CRC are correct."""
    message = parse_message(data, 0, size, pos) if len(data) == size else None
    if not isinstance(message, Message):
        return None
    body = data[message.body_start : message.body_start + message.body_length]
    return message if not body or message_crc(body) == message.body_crc else None
