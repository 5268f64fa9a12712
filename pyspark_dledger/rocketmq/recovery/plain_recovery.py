"""Models load() of a RocketMQ broker without DLedger (master, slave, controller mode) on a store; it is only read.

Sources: RocketMQ 4.9.0 to 5.5.0, ``DefaultMessageStore.load``, ``start`` and ``recover``, ``CommitLog.recoverNormally``
and ``recoverAbnormally``, ``MappedFileQueue``, ``ConsumeQueueStore``, ``ConsumeQueue``, ``IndexService``.

Not modelled: settings other than the defaults (``duplicationEnable``, ``messageIndexSafe``, ``checkCRCOnRecover``,
``forceVerifyPropCRC``, ``recheckReputOffsetFromCq``), the dispatch after load(), light message queues,
BatchConsumeQueue, ConsumeQueueExt, queues in RocksDB, the timer and compaction stores, and expired files; a message
with a damaged physicalOffset that 5.5.0 dispatches twice, and topics with NUL in 4.9.8.

A store with an epoch file starts in controller mode: load() dispatches, and start() begins, by the confirmed offset.
5.2.0 to 5.5.0 ``ConsumeQueueStore.compensateForHA`` reads every message after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.state_files import CHECKPOINT, epoch_file_problem, is_of_controller_mode
from pyspark_dledger.log.io.unread_files import unread_file
from pyspark_dledger.log.recovery.java_files import JavaFile, JavaThrows, configured_size, parse_long, paths_in
from pyspark_dledger.log.recovery.recovery_preview import counted_topics, topics_between, truncated
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.recovery.broker_start import (
    BrokerStart,
    JavaMessage,
    MessageRules,
    Stop,
    newest,
    read_message,
    scan_messages,
)

LINES = ("4.9.8", "5.0.0", "5.1.4", "5.3.1", "5.3.3", "5.4.0", "5.5.0")
"""A version of each line with the same behaviour."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_FIRST, _LAST = (4, 9, 0), (5, 5)
_DEFAULT_FILE_SIZE = 1024**3
# From 5.5 on: commitLogRecoverMaxNum, and where the checkpoint has logicsPhysicalOffset (offset, size).
_MAX_FILES = 10
_LOGICS_OFFSET = (40, 8)
_HEAD_BYTES = 8


@dataclass(frozen=True)
class PlainRecovery:
    """What load() and start() of a broker do to a store; positions are bytes of the log.

    ``outcome``: ``loads``; ``fails``: load() returns false and the broker ends; ``unknown``: a file cannot be read.
    ``recovery``: ``abnormal`` if the
    file abort exists. ``scan_from`` is the file in which the scan begins; those before are not checked.
    ``max_phy_offset`` is the log's end afterwards, ``dispatch_from`` where start() begins to dispatch; None if it
    fails. ``consume_queue_cut_at``: queues lose their units from this offset on. ``consume_queue_max_offsets`` has the
    end of each queue that is not empty, by ``topic/queueId``. ``lost`` are ranges of positions, inclusive, with intact
    messages that are not in the log afterwards; ``lost_topics`` counts these messages. ``truncated`` are the positions
    that the log loses at its end, inclusive, also damaged and missing messages. ``confirm_offset_before`` and
    ``confirm_offset`` are the confirmed offset of controller mode; None in other modes and versions before 5.1.1.
    ``epoch_problem``: what is wrong with its epoch file. ``not_dispatched`` are positions of messages that no
    ConsumeQueue gets. ``is_too_old``: the scan stops at a message that only later versions write.
    """

    rocketmq: str
    outcome: str
    recovery: str
    scan_from: str | None = None
    max_phy_offset_before: int | None = None
    max_phy_offset: int | None = None
    dispatch_from: int | None = None
    reason: str = ""
    files_after: list[str] = field(default_factory=list)
    files_deleted: list[str] = field(default_factory=list)
    index_files_deleted: list[str] = field(default_factory=list)
    consume_queue_cut_at: int | None = None
    consume_queue_units_before: int = 0
    consume_queue_units_after: int = 0
    queues: list[dict[str, Any]] = field(default_factory=list)
    consume_queue_max_offsets: dict[str, int] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)
    lost_topics: dict[str, int] = field(default_factory=dict)
    truncated: tuple[int, int] | None = None
    confirm_offset_before: int | None = None
    confirm_offset: int | None = None
    epoch_problem: str | None = None
    is_too_old: bool = False
    not_dispatched: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The object that the command line prints."""
        return fields_row(self)

    @property
    def starts(self) -> bool:
        """Whether load() succeeds."""
        return self.outcome == "loads"

    @property
    def is_trouble(self) -> bool:
        """Whether it does not start, the log loses messages, confirmed ones are missing, or epochs are wrong."""
        missing = (self.confirm_offset_before or 0) > (self.max_phy_offset or 0)
        is_cut = bool(self.lost or self.truncated)
        return not self.starts or is_cut or missing or self.epoch_problem is not None


# Scans and notes of versions can differ where their results do not.
_RESULT = (
    *("outcome", "max_phy_offset", "not_dispatched", "files_after", "files_deleted", "index_files_deleted"),
    *("consume_queue_max_offsets", "lost", "truncated"),
)


def families(found: Iterable[PlainRecovery]) -> list[list[PlainRecovery]]:
    """The recoveries of one store by several versions, those with the same result together."""
    result: list[list[PlainRecovery]] = []
    for item in found:
        same = (each for each in result if all(getattr(each[0], name) == getattr(item, name) for name in _RESULT))
        if (family := next(same, None)) is not None:
            family.append(item)
        else:
            result.append([item])
    return result


def preview_plain(log: StoreView, version: str, file_size: int | None = None) -> PlainRecovery:
    """What a broker of RocketMQ `version` would do at its start on a plain store.

    `file_size` is the configured mappedFileSizeCommitLog in bytes; by default that of the files. Raises StoreError if
    the store has no root, OptionError for an unknown version.
    """
    found = _VERSION.fullmatch(version.strip())
    release = (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)
    if not release >= _FIRST or release[:2] > _LAST:
        raise OptionError(f"expected a RocketMQ version from 4.9.0 to 5.5.0, found {version!r}")
    if log.paths.root is None or log.paths.only is not None or not log.paths.is_plain:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir with a commitlog folder, found something else: give the root"
        )
    try:
        return _Load(log, log.paths.root, version.strip(), release, file_size).run()
    except StoreError as error:
        reason = f"cannot tell: {unread_file(error, log.unread, log.segments)}"
        return PlainRecovery(version.strip(), "unknown", "unknown", reason=reason)


class _LoadFails(Exception):
    """load() returns false."""


class _Load(BrokerStart):
    """`run` models load() and start() of a broker without DLedger."""

    def __init__(
        self, log: StoreView, root: Path, version: str, release: tuple[int, int, int], file_size: int | None
    ) -> None:
        super().__init__(log, root, version, release)
        self.dirs = log.paths.commitlog_dirs
        self.file_size = file_size or configured_size(self.dirs, _DEFAULT_FILE_SIZE)
        self.deleted: list[str] = []
        self.stop: Stop | None = None
        self.scan_from: str | None = None
        self.not_dispatched: tuple[int, int] | None = None
        is_confirmed = release >= (5, 1, 1) and is_of_controller_mode(root)
        self.confirmed = self.checkpoint.confirm_phy_offset if is_confirmed else None

    def run(self) -> PlainRecovery:
        found = PlainRecovery(
            rocketmq=self.version,
            outcome="fails",
            recovery="abnormal" if self.abort else "normal",
            max_phy_offset_before=self.log.max_offset,
            files_deleted=self.deleted,
            consume_queue_units_before=self.queues.units_before,
            consume_queue_units_after=self.queues.units_before,
            confirm_offset_before=self.confirmed,
            notes=self.notes,
        )
        try:
            files = self._load_files()
            wrong = self.queue_file_of_other_size()
            if wrong is not None:
                raise _LoadFails(wrong)
        except _LoadFails as error:
            return replace(found, reason=str(error), files_after=self._names())
        found = replace(found, index_files_deleted=self.deleted_index_files())
        self.queues.recover()
        end = self._recover(files)
        problem = self._load_problem(files, end)
        if problem is not None:
            return replace(found, reason=problem, files_after=self._names())
        dispatch_from = self._dispatch_from(files, end)
        last = self.log.max_offset
        lost = [(end, last - 1)] if any(topics_between(self.log, "pos", end, last)) else []
        cut = truncated(self.log, end)
        return replace(
            found,
            outcome="loads",
            scan_from=self.scan_from,
            max_phy_offset=end,
            dispatch_from=dispatch_from,
            not_dispatched=self.not_dispatched,
            reason=self._reason(cut),
            files_after=self._names(),
            consume_queue_cut_at=self.cut_at,
            consume_queue_units_after=self.queues.units,
            queues=self.queues.changes(),
            consume_queue_max_offsets=self.queues.max_offsets(),
            lost=lost,
            lost_topics=counted_topics(self.log, "pos", lost),
            truncated=cut,
            confirm_offset=self.confirmed,
            epoch_problem=self._epoch_problem(end),
            is_too_old=self.stop is not None and self.stop[2].is_too_old,
        )

    # load

    def _names(self) -> list[str]:
        """The names in the folder afterwards."""
        return [path.name for path in paths_in(self.dirs) if path.name not in self.deleted]

    def _load_files(self) -> list[JavaFile]:
        """The mapped files in order. Raises _LoadFails."""
        files: list[JavaFile] = []
        paths = paths_in(self.dirs)
        for path in paths:
            if path.is_dir() and self.release >= (5, 1):
                continue
            size = path.stat().st_size
            if size == 0 and path is paths[-1] and self.release >= (5, 1, 3):
                self.deleted.append(path.name)
                continue
            if size != self.file_size:
                if self.release == (4, 9, 2):
                    self.notes.append(f"4.9.2 ignores commitlog/{path.name} and all files after it: wrong size")
                    break
                raise _LoadFails(f"commitlog/{path.name} has {size} bytes, not {self.file_size}")
            try:
                base = parse_long(path.name)
            except JavaThrows:
                raise _LoadFails(f"commitlog/{path.name}: its name is no number") from None
            files.append(JavaFile(base, size, path.name, path))
        return files

    # recover

    def _load_problem(self, files: list[JavaFile], end: int) -> str | None:
        """Why load() fails after the recovery; None if it does not."""
        problem = None
        if self.confirmed is not None and self.release >= (5, 2):
            kept = [file for file in files if file.base <= end]
            problem = _unconfirmed_problem(kept, self.confirmed, end, self.rules)
        if problem is None and (5,) <= self.release < (5, 5):
            # ``ConsumeQueue.correctMinOffset`` reads the unit before its position 0.
            for (topic, queue_id), queue in sorted(self.queues.by_key.items()):
                if queue.has_empty_last_file:
                    return (
                        f"load() reads the last unit of consumequeue/{topic}/{queue_id}, whose last file has none left"
                    )
        return problem

    def _recover(self, files: list[JavaFile]) -> int:
        """Scan the log, truncate files and queues; returns the log's end."""
        if not files:
            self.notes.append("the CommitLog has no file: all ConsumeQueues are deleted")
            self.queues.delete()
            return 0
        highest = self.queues.max_physical
        start = self._abnormal_start(files) if self.abort else self._normal_start(files, highest)
        self.scan_from = files[start].name
        if start:
            self.notes.append(f"files before {self.scan_from} are not checked")
        end, confirmable = self._scan(files[start:], highest)
        if self.confirmed is not None:
            # load() moves it into the log.
            self.confirmed = max(files[0].base, min(self.confirmed, confirmable if self.abort else end))
        # From 5.4 on, what was dispatched counts too.
        if (self.queues.max_physical if self.release >= (5, 4) else highest) >= end:
            self.cut_at = end if highest >= end else None
            self.queues.truncate(end)
        self.deleted += [file.name for file in files if file.base > end]
        return end

    def _normal_start(self, files: list[JavaFile], highest: int) -> int:
        if self.release < (5, 3, 2):
            return max(len(files) - 3, 0)
        if self.release >= (5, 4):
            return self._newest(files, lambda message: message.offset <= highest)
        return newest(files, lambda file: file.base <= highest)

    def _abnormal_start(self, files: list[JavaFile]) -> int:
        """The newest file whose first message the store checkpoint covers."""
        if self.release >= (5, 5):
            logics = int.from_bytes(read_at(str(self.root / CHECKPOINT), *_LOGICS_OFFSET), "big", signed=True)
            limit = self.checkpoint.logics_msg_timestamp
            return self._newest(
                files,
                lambda message: message.offset <= logics if logics > 0 else message.store_timestamp <= limit,
            )
        if self.release >= (5, 4):
            return self._newest(files, lambda message: message.store_timestamp <= self.covered_until)
        return self.covered_file(files, self.rules.magics)

    def _newest(self, files: list[JavaFile], matches: Callable[[JavaMessage], bool]) -> int:
        """The newest file whose first message is intact and matches; from 5.5 on, of the newest ten."""
        oldest = max(len(files) - _MAX_FILES, 0) if self.release >= (5, 5) else 0

        def is_wanted(file: JavaFile) -> bool:
            message = read_message(file, 0, self.rules)
            return isinstance(message, JavaMessage) and message.store_timestamp != 0 and matches(message)

        return oldest + newest(files[oldest:], is_wanted)

    def _scan(self, files: list[JavaFile], highest: int) -> tuple[int, int]:
        """Read messages up to the first that is damaged, and dispatch them.

        Returns the end, and the end of the last message below the confirmed offset.
        """
        confirmable = files[0].base

        def take(message: JavaMessage) -> None:
            nonlocal confirmable
            if self.abort:
                if self.confirmed is None or message.offset + message.size <= self.confirmed:
                    self.dispatch(message)
                    confirmable = message.offset + message.size
            elif self.dispatches_rest and message.offset > highest:
                self.dispatch(message)
            elif self.dispatches_rest and message.offset == highest:
                self.notes.append(
                    f"the message at {highest} is the first that no ConsumeQueue has, and stays out of them: this "
                    "version dispatches those after it"
                )

        end, self.stop = scan_messages(files, self.rules, take)
        return end, confirmable

    def _dispatch_from(self, files: list[JavaFile], end: int) -> int:
        """Where start() begins to dispatch: from 5.0 on at the log's end, before after the queues' last message.

        In controller mode at the confirmed offset.
        """
        begin = files[0].base if files else 0
        highest = max(self.queues.max_physical, begin, 0)
        if self.release < (5,):
            return highest
        start = end if self.confirmed is None else self.confirmed
        if not self.abort and self.release < (5, 3, 2) and any(topics_between(self.log, "pos", highest, start)):
            self.not_dispatched = highest, start - 1
            self.notes.append(
                f"messages from {highest} on stay out of the ConsumeQueues: this version dispatches from {start} on"
            )
        if self.confirmed is not None:
            self._note_confirmed(max(highest, start), end)
        return start

    def _epoch_problem(self, end: int) -> str | None:
        """What is wrong with the epoch file, which start() reads."""
        problem = epoch_file_problem(self.root, end) if self.release >= (5,) else None
        if problem is None:
            return None
        effect = "the broker may truncate its log at a wrong position" if problem[0] else "start() may fail"
        self.notes.append(f"epochFileCheckpoint: {problem[1]}: {effect}")
        return problem[1]

    def _note_confirmed(self, dispatched: int, end: int) -> None:
        known = self.checkpoint.confirm_phy_offset
        if known > end:
            self.notes.append(f"confirmed messages up to {known} are missing: the log ends at {end}")
        if dispatched < end:
            self.notes.append(
                f"messages from {dispatched} to {end} are not confirmed: consumers get them when the broker leads, or "
                "its master confirms them"
            )

    def _reason(self, cut: tuple[int, int] | None) -> str:
        if self.stop is None:
            return ""
        file, at, stop = self.stop
        if stop.heap:
            self.notes.append(f"the broker needs {stop.heap} bytes of heap, or ends with OutOfMemoryError")
        return "" if cut is None else f"the scan stops in commitlog/{file.name} at byte {at}: {stop.text}"


def _unconfirmed_problem(files: Sequence[JavaFile], confirmed: int, end: int, rules: MessageRules) -> str | None:
    """Why load() fails on the log from the offset `confirmed` to its `end`; None if it does not."""
    pos = confirmed
    while (file := next((each for each in files if each.base <= pos < each.base + each.size), None)) is not None:
        at = pos - file.base
        # How far Java takes the file to be written.
        written = min(end - file.base, file.size)
        if at + 4 > written:
            return None
        head = file.read(at, _HEAD_BYTES).ljust(_HEAD_BYTES, b"\0")
        size, magic = (int.from_bytes(part, "big", signed=True) for part in (head[:4], head[4:]))
        if written < at + size <= INT32_MAX:
            return None
        where = f"commitlog/{file.name} at byte {at}, after the confirmed offset {confirmed}"
        if not _HEAD_BYTES <= size <= INT32_MAX - at:
            return f"load() reads {where}, and finds no message there"
        if magic == MESSAGE_MAGIC_V2:
            return f"load() does not know the message in {where}: its topic has more than 127 bytes"
        if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_BLANK):
            return f"load() reads {where}, and finds no message there"
        if magic == MESSAGE_MAGIC_V1 and not isinstance(read_message(file, at, rules), JavaMessage):
            return None
        pos += size
    return None
