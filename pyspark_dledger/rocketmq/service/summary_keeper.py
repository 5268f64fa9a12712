"""Keeps the summary of a member: writes it before entries expire, sends it to members, and takes over another one's.

A member lacks state if its log begins after the entry up to which its summary is complete. It then must not lead.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pyspark_dledger.common.log_records import record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.format.layout import PROPERTY_ID
from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.log.io.queue_files import file_queues
from pyspark_dledger.log.io.store_paths import list_segments
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata
from pyspark_dledger.rocketmq.broker.root_files import OLD_FOLDER
from pyspark_dledger.rocketmq.service.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.service.leader_tables import NO_ENTRY, DispatchedTables, EntryId
from pyspark_dledger.rocketmq.service.log_entries import RunningStore, has_entry
from pyspark_dledger.rocketmq.service.summary import (
    IncomingStream,
    ReceivedSummary,
    Snapshot,
    Summary,
    ranges_of,
    read_summary,
    write_summary,
)

# A new request gets the last snapshot if it is not older; one that nobody reads is dropped later.
_SNAPSHOT_SECONDS = 10.0
_UNUSED_SECONDS = 60.0
_MIN_WRITE_SECONDS = 1.0
_FLUSH_SECONDS = 1.0
_POLL_SECONDS = 0.005
# Of the log's begin and end, in which an identity shows that a node of this package served messages.
_SEARCHED_BYTES = 256 * 1024


class SummaryKeeper:
    """The summary of one node. The node's thread calls all methods but `before_expiry`."""

    def __init__(
        self,
        root: Path,
        dispatched: DispatchedTables,
        identities: CommittedIdentities,
        metadata: BrokerMetadata,
        worker: ThreadPoolExecutor,
    ) -> None:
        self._root = root
        self._folder = identities.folder.parent
        self._dispatched = dispatched
        self._identities = identities
        self._metadata = metadata
        self._worker = worker
        self._store: RunningStore | None = None
        self._is_stopped = False
        self._knows_old_log = False
        self._seen_begin = -1
        self._begins_late = 0
        self._lock = threading.Lock()
        self._written_index = -1
        self._written_at = 0.0
        self._snapshot: Future[Snapshot] | None = None
        self._made_at = self._used_at = 0.0
        self._made_index = -1
        self._incoming = IncomingStream(self._folder)
        self._installing: Future[ReceivedSummary] | None = None

    # Start

    def begin(self, store: RunningStore, *, is_served: bool, accept_lost_state: bool) -> None:
        """Find out which state this member has, before dispatch starts.

        ``is_served``: a node of this package has served messages from this store. Raises OSError if the disk fails.
        """
        self._store = store
        self._incoming.close()
        summary = self._load(store)
        old = self._root / OLD_FOLDER
        has_old_log = any(segment.size for segment in (list_segments([old], COMMITLOG, True) if old.is_dir() else ()))
        self._knows_old_log = summary is not None or has_old_log
        self.check_begin()
        last = NO_ENTRY
        if summary is not None:
            self._written_index = summary.index
            if self.log_begin() <= summary.index + 1:
                last = EntryId(summary.index, summary.term)
        self._dispatched.merge(last, summary.ends if summary is not None else {})
        if self._is_missing() and not is_served and self._is_of_broker(store):
            self._accept("state of a broker")
        elif self._is_missing() and accept_lost_state:
            self._accept("lost state accepted", logging.WARNING)
        elif self._is_missing():
            record(logging.WARNING, "state missing", beginIndex=store.ledger_begin_index)
        elif has_old_log and summary is None:
            self._write()
        store.expiry_hook = self.before_expiry

    def _load(self, store: RunningStore) -> Summary | None:
        """The summary on disk; None if it is missing, damaged or of another log.

        Without its identities it counts as one of before the first entry.
        """
        try:
            summary = read_summary(self._folder)
        except (OSError, ValueError) as error:
            record(logging.WARNING, "summary dropped", found=str(error))
            return None
        if summary is None:
            return None
        is_in_log = 0 <= summary.index <= store.ledger_end_index and summary.term >= 0
        if is_in_log and not has_entry(store, summary.index, summary.term):
            record(logging.WARNING, "summary dropped", found=f"no entry {summary.index} of term {summary.term}")
            return None
        if not self._identities.covers(summary.identities):
            record(logging.WARNING, "identities missing", found="others than the summary names")
            return replace(summary, index=-1, term=-1)
        return summary

    def _is_of_broker(self, store: RunningStore) -> bool:
        """Whether a Java broker served this store, so that its queues have all ends, and no message has an identity."""
        if not file_queues(self._root):
            return False
        last = max(store.ledger_end_index - 100, store.ledger_begin_index)
        try:
            parts = [bytes(store.read(index, _SEARCHED_BYTES).data) for index in (store.ledger_begin_index, last)]
        except StoreError:
            return False
        return not any(PROPERTY_ID.encode() in part for part in parts)

    def _accept(self, event: str, level: int = logging.INFO) -> None:
        """Take what this member knows for complete."""
        begin = self.log_begin()
        self._dispatched.merge(EntryId(begin - 1, -1), {})
        self._write()
        record(level, event, beginIndex=begin, queues=len(self._dispatched.complete_state()[1]))

    def stop(self) -> None:
        """From here on nothing may expire: nobody would write the summary."""
        self._is_stopped, self._snapshot = True, None
        self._incoming.close()

    # State

    def log_begin(self) -> int:
        """The log's first index; one more if messages before it are on no disk of this member. Of any thread."""
        assert self._store is not None
        begin = self._store.ledger_begin_index
        return begin + self._begins_late if begin == 0 else begin

    def check_begin(self) -> None:
        """The log may have got its first entry. Called before entries count as committed."""
        store = self._store
        if store is None or store.ledger_begin_index == self._seen_begin:
            return
        self._seen_begin = store.ledger_begin_index
        self._begins_late = 0
        if self._seen_begin == 0 and not self._knows_old_log:
            with suppress(StoreError):
                # Entry 0 is not at position 0 if an old CommitLog comes before it.
                self._begins_late = int(store.read(0, 1).pos > 0)

    def _is_missing(self) -> bool:
        return self.log_begin() > self._dispatched.complete_index + 1

    @property
    def is_needed(self) -> bool:
        """Whether this member needs another one's summary."""
        if self._store is None or self._is_stopped:
            return False
        self._drop_unused()
        self.check_begin()
        self._end_installing()
        return self._is_missing()

    # Before entries expire

    def before_expiry(self, first: int, force: bool) -> int:
        """Write the summary before entries below `first` are deleted. Returns the first index that must stay.

        Without the state of earlier entries, all stay until the disk needs room: that of another member can end
        before later ones. Called in any thread. Raises OSError or StoreError if it cannot be written.
        """
        if self._store is None or self._is_stopped:
            return -1
        if self._is_missing():
            return first if force else -1
        end = self._dispatched.complete_index + 1
        is_early = end < first and time.monotonic() - self._written_at < _MIN_WRITE_SECONDS
        if self._written_index + 1 < first and not is_early:
            self._write(self._store)
        return min(first, self._written_index + 1)

    def before_old_expiry(self) -> None:
        """Write the summary before files of an old CommitLog are deleted. Called in the thread that dispatches."""
        if not self._is_missing():
            self._write()

    def _write(self, store: RunningStore | None = None) -> None:
        """Write the summary, with `store` only once its log is durable as far as that.

        Otherwise, a power loss could leave identities of entries that the log lacks, which a start drops.
        """
        with self._lock:
            summary, _ = self._state()
            last, deadline = max(summary.index, self._identities.covered), time.monotonic() + _FLUSH_SECONDS
            while store is not None and store.flushed_index < last:
                if time.monotonic() > deadline:
                    raise StoreError(f"expected entry {last} on disk, found {store.flushed_index} as the last one")
                time.sleep(_POLL_SECONDS)
            write_summary(self._folder, summary)
            self._written_index, self._written_at = summary.index, time.monotonic()
        record(logging.INFO, "summary written", index=summary.index, queues=len(summary.ends))

    def _state(self) -> tuple[Summary, list[memoryview]]:
        """The present summary, and the durable runs of its identities."""
        last, ends = self._dispatched.complete_state()
        runs = self._identities.sync()
        ranges = ranges_of([run.range for run in runs], last.index)
        return Summary(last.index, last.term, ends, ranges), [run.data for run in runs]

    # For other members

    def part(self, begin_index: int, snapshot: int, offset: int) -> SummaryPart:
        """See `Application.summary`."""
        end = self._dispatched.complete_index
        if self._store is None or self._is_missing() or end + 1 < begin_index:
            raise RejectedError(ResponseCode.INDEX_OUT_OF_RANGE, "this member lacks state itself")
        now = time.monotonic()
        is_old = now - self._made_at > _SNAPSHOT_SECONDS or self._made_index + 1 < begin_index
        if self._snapshot is None or (not snapshot and is_old):
            self._snapshot = self._worker.submit(self._take_snapshot, dict(self._metadata.files()))
            self._made_at, self._made_index = now, end
        self._used_at = now
        if not self._snapshot.done():
            raise RejectedError(ResponseCode.LEADER_NOT_READY, "the summary is being made")
        try:
            found = self._snapshot.result()
        except (OSError, StoreError) as error:
            self._snapshot = None
            record(logging.WARNING, "summary not sent", found=str(error))
            raise RejectedError(ResponseCode.DISK_ERROR, str(error)) from None
        if snapshot not in (0, found.number):
            raise RejectedError(ResponseCode.REPEATED_REQUEST, "the snapshot is gone")
        return SummaryPart(found.number, offset, found.size, found.read(offset))

    def _take_snapshot(self, config: dict[str, bytes]) -> Snapshot:
        summary, runs = self._state()
        return Snapshot(random.SystemRandom().randrange(1, 2**62), summary.to_bytes(), runs, config)

    def _drop_unused(self) -> None:
        if self._snapshot is not None and time.monotonic() - self._used_at > _UNUSED_SECONDS:
            self._snapshot = None

    # From another member

    def take(self, part: SummaryPart) -> bool:
        """See `Application.take_summary`."""
        if self._installing is not None or self._store is None:
            return False
        try:
            is_next = self._incoming.add(part)
        except OSError as error:
            record(logging.WARNING, "summary not taken", found=str(error))
            return False
        if is_next and self._incoming.is_complete:
            self._installing = self._worker.submit(self._install, self._store)
        return is_next

    def _end_installing(self) -> None:
        if self._installing is None or not self._installing.done():
            return
        done, self._installing = self._installing, None
        try:
            received = done.result()
            self._incoming.close()
            self._metadata.take_over(received.config)
            summary = received.summary
            record(logging.INFO, "summary taken", index=summary.index, queues=len(summary.ends))
        except (OSError, ValueError, StoreError) as error:
            self._incoming.close()
            record(logging.WARNING, "summary not taken", found=str(error))

    def _check(self, store: RunningStore, summary: Summary) -> None:
        """Raises ValueError for a summary that does not fit this log."""
        begin = self.log_begin()
        if summary.index + 1 < begin:
            raise ValueError(f"expected the state of entries up to {begin - 1}, found up to {summary.index}")
        is_committed = store.ledger_begin_index <= summary.index <= store.committed_index
        if is_committed and summary.term >= 0 and not has_entry(store, summary.index, summary.term):
            raise ValueError(f"expected the state of this log, found entry {summary.index} of term {summary.term}")

    def _install(self, store: RunningStore) -> ReceivedSummary:
        """Check and take over what was received. Called in a thread, because it waits for the disk."""
        received = self._incoming.unpack(self._identities.folder)
        summary = received.summary
        self._check(store, summary)
        self._identities.adopt(received.runs)
        if not self._identities.covers(summary.identities):
            raise ValueError("expected the identities that the summary names, found others")
        self._dispatched.merge(EntryId(summary.index, summary.term), summary.ends)
        self._write()
        return received
