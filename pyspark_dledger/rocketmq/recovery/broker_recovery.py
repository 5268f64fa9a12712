"""Models the start of a RocketMQ broker in DLedger mode on a store: DLedger's recovery, then the broker's own.

A broker looks for ``abort`` (an unclean end), deletes IndexFiles, checks its ConsumeQueues, lets DLedger recover, and
truncates the queues to the recovered log. Sources: RocketMQ 4.5.1 to 5.3.3 ``DLedgerCommitLog``, ``CommitLog``,
``DefaultMessageStore.load`` and ``recover``, ``IndexService``, ``ConsumeQueue``, ``ConsumeQueueStore``.

Modelled: deleted IndexFiles, ConsumeQueues after load(), and where DLedger begins. 5.4 and 5.5 are modelled as 5.3.3.

Not modelled: the dispatch of committed messages after load(), units of light message queues (4.9.4 and later),
BatchConsumeQueue, ConsumeQueueExt, queues in RocksDB, the timer and compaction stores, other settings than the defaults
(``duplicationEnable``, ``messageIndexSafe``, ``checkCRCOnRecover``), the deletion of expired files, IndexFiles of
another size than configured, and before 4.9.0 ConsumeQueue files of another size than the others.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MESSAGE_MAGIC_V1, segment_name
from pyspark_dledger.format.message import MESSAGE_MAGICS
from pyspark_dledger.log.io.unread_files import unread_file
from pyspark_dledger.log.recovery.java_files import JavaFile, paths_in
from pyspark_dledger.log.recovery.recovery_preview import RecoveryPreview, preview
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.recovery.broker_start import BrokerStart, JavaMessage, scan_messages

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
        start = _Start(log, root, version.strip(), recovery)
        problem = start.problem if recovery.outcome == "opens" else None
        return replace(recovery, rocketmq=start.run(), reason=problem or recovery.reason)
    except StoreError as error:
        return RecoveryPreview.unknown(dledger, unread_file(error, log.unread, log.segments))


class _Start(BrokerStart):
    """`run` models load() of a broker with DLedger."""

    def __init__(self, log: StoreView, root: Path, version: str, recovery: RecoveryPreview) -> None:
        release = tuple(int(number) for number in version.split("-")[0].split("."))
        super().__init__(log, root, version, release)
        self.recovery = recovery
        self.is_abnormal = self.abort and release >= (5, 2)
        self.wants_duplicate_info = self.is_abnormal and release[:2] == (5, 2)
        self.problem = self.queue_file_of_other_size()
        self.old_deleted: list[str] = []
        self.created: str | None = None

    def run(self) -> dict[str, Any]:
        """What load() does in addition to DLedger's recovery, as the command line prints it.

        ``starts``: whether load() succeeds. ``consumeQueueCutAt``: queues lose their units from this offset of the log
        on; None if the broker does not truncate them. ``queues`` lists those whose number of units changes.
        ``oldFilesDeleted`` and ``dataFileCreated``: the first start over an old CommitLog.
        """
        index_files: list[str] = []
        divided = -1
        opens = self.recovery.outcome == "opens" and self.problem is None
        if self.problem is None:
            index_files = self.deleted_index_files()
            self.queues.recover()
        if self.problem is not None:
            self.notes.append("the broker ends with exit code 253 before DLedger opens the store: nothing is changed")
        elif opens:
            files = self._files(self.log.paths.data_dirs, self.recovery.data_files_after)
            divided = self._over_dledger(files) if files else self._over_old_commitlog()
        else:
            self.notes.append(
                "DLedger does not open the store, so the broker does not start; before that, it deletes IndexFiles"
            )
        if self.abort and not self.is_abnormal:
            self.notes.append(
                "abort exists, but this version recovers as after a clean end: ConsumeQueue units that were not on "
                "disk stay missing if another queue is ahead"
            )
        return {
            "version": self.version,
            "dledger": self.recovery.java,
            "abort": self.abort,
            "recovery": "abnormal" if self.is_abnormal else "normal",
            "starts": opens,
            "dividedCommitlogOffset": divided,
            "consumeQueueCutAt": self.cut_at,
            "consumeQueueUnitsBefore": self.queues.units_before,
            "consumeQueueUnitsAfter": self.queues.units,
            "queues": self.queues.changes(),
            "indexFilesDeleted": index_files,
            "oldFilesDeleted": self.old_deleted,
            "dataFileCreated": self.created,
            "notes": self.notes,
        }

    def _files(self, dirs: Iterable[Path], names: Container[str] | None = None) -> list[JavaFile]:
        """The files of the log in `dirs`, in order; with `names` only those."""
        return [
            JavaFile(int(path.name), path.stat().st_size, path.name, path)
            for path in paths_in(dirs)
            if path.name.isdecimal() and path.is_file() and (names is None or path.name in names)
        ]

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
        # In DLedger a first message of V2 does not count here.
        magics, shift = ((MESSAGE_MAGIC_V1,), ENTRY_HEADER_SIZE) if in_dledger else (MESSAGE_MAGICS, 0)
        start = self.covered_file(files, magics, shift)
        rules = replace(self.rules, wants_duplicate_info=self.wants_duplicate_info and in_dledger)
        return scan_messages(files[start:], rules, self.dispatch, shift)[0]

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

        def take(message: JavaMessage) -> None:
            if self.dispatches_rest and message.offset > highest:
                self.dispatch(message)

        return scan_messages(files[-3:], self.rules, take)[0]
