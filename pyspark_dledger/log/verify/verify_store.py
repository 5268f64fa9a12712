"""Verifies a store: finds all problems of `findings.CATALOGUE`, in parts that can run in parallel.

Damage and unreadable files are findings, not errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.committed import own_bound
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.files import ignore_error, is_remote_path
from pyspark_dledger.log.io.key_files import FOLDER as KEYS_FOLDER
from pyspark_dledger.log.io.queue_files import BATCH_FOLDER, FOLDER
from pyspark_dledger.log.io.rocks_config import config_databases
from pyspark_dledger.log.io.rocks_database import why_unread
from pyspark_dledger.log.io.rocks_queues import rocks_folders
from pyspark_dledger.log.io.state_files import CHECKPOINT, confirmed_end
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.io.store_use import StoreWatch, taken_locks
from pyspark_dledger.log.io.unread_files import unreadable_files
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import PassedEnd, StoredQueues, are_missing, passed_ends
from pyspark_dledger.log.verify.broker_checks import check_broker_files
from pyspark_dledger.log.verify.file_checks import (
    check_divided_offset,
    check_index_files,
    check_segment_files,
    check_state,
)
from pyspark_dledger.log.verify.findings import AFTER_END, INFO, Finding
from pyspark_dledger.log.verify.queue_checks import (
    QueueScope,
    check_bounds,
    check_consumer_offsets,
    check_databases,
    check_outside,
    check_queue_files,
    dispatched_end,
    report_failed_read,
)
from pyspark_dledger.log.verify.report import Report
from pyspark_dledger.log.verify.segment_checks import (
    SegmentCheckPart,
    check_entry_beyond,
    check_units_beyond,
    segment_findings,
)

# A write of an entry takes less.
_WRITE_SECONDS = 0.05

Progress = Callable[[int, int], None]
"""Called with the bytes of the log that are done, and the total."""


@dataclass(frozen=True)
class StoreCheckPart:
    """The store as a whole: its files, its state, and units outside the log."""

    path: str
    options: ReadOptions
    size: int = 0


FindingsPart = StoreCheckPart | SegmentCheckPart


def verify(store: StoreView, on_progress: Progress | None = None) -> Iterator[Finding]:
    """All findings of a store: first those about the whole store, then those of each segment by offset."""
    parts = plan_findings(store)
    total = sum(part.size for part in parts)
    done = 0
    for part in parts:
        if on_progress is not None:
            on_progress(done, total)
        yield from read_findings(part)
        done += part.size
    if on_progress is not None:
        on_progress(total, total)


def plan_findings(store: StoreView) -> list[FindingsPart]:
    """The parts of a verification, in the order of the log: one for the store, then one for each segment."""
    log_end = _log_end(store)
    queue_scope, key_root = _queue_scope(store, log_end), _broker_root(store.paths)
    parts: list[FindingsPart] = [StoreCheckPart(store.path, store.options)]
    for number, segment in enumerate(store.segments):
        before = store.segments[number - 1] if number else None
        after = store.segments[number + 1] if number + 1 < len(store.segments) else None
        is_adjacent = before is not None and before.source == segment.source and before.end == segment.base
        high = after.base if after is not None else log_end
        parts.append(
            SegmentCheckPart(
                path=store.path,
                options=store.options,
                paths=store.paths,
                segment=segment,
                end=_end_of(store, segment),
                before=before if is_adjacent else None,
                queues=replace(queue_scope, low=min(segment.base, log_end), high=min(high, log_end))
                if queue_scope is not None
                else None,
                key_root=key_root if key_root is not None and (key_root / KEYS_FOLDER).is_dir() else None,
                log_end=log_end,
            )
        )
    return parts


def read_findings(part: FindingsPart) -> Iterator[Finding]:
    """The findings of a part, by file and offset; counts of further findings are last.

    A write in progress is no finding: in a store in use, only what a second check confirms is one.
    """
    if isinstance(part, SegmentCheckPart):
        found = segment_findings(part)
        yield from _confirmed(found, part) if _can_be_writes(found) and _is_written(part) else found
        return
    watch = StoreWatch(StoreView(part.path, part.options).paths)
    found = _store_findings(part)
    use = watch.use()
    if use is not None and _can_be_writes(found):
        found = _confirmed(found, part)
    if use is not None:
        report = Report(StoreView(part.path, part.options).paths)
        text = "a lock that is taken" if use.locks else "a file that changed while the store was read"
        report.add("storeInUse", (*use.locks, *use.changed)[0], f"found {text}")
        yield from report.findings()
    yield from found


def not_checked(store: StoreView) -> Iterator[str]:
    """What `verify` does not check of a store, with the verb that does."""
    paths, root = store.paths, store.paths.root
    if paths.only is not None:
        yield "other files than the given one"
        return
    if root is None:
        return
    has_database, reason = bool(rocks_folders(root)), why_unread(root)
    if reason is not None and has_database:
        yield f"queues in RocksDB: {reason}"
    if reason is not None and config_databases(root / CONFIG):
        yield f"topics, consumer groups and their offsets in RocksDB: {reason}"
    if is_remote_path(root):
        return
    if _broker_root(paths) is None:
        yield "queues and index of keys, because the root has several nodes"
        return
    has = {name for name in _NOT_CHECKED_BY if _is_there(root / name)}
    if CHECKPOINT in has and FOLDER not in has and not has_database and not are_missing(root):
        yield "queues, because there are none: a broker builds them when it starts"
    elif (FOLDER in has or are_missing(root)) and store.ledger_segments and not _committed_end(store, root):
        yield "if queues have all messages, because the committed index is unknown"
    if has_database and reason is None:
        yield "what a start does with queues in RocksDB"
    yield from (text for name, text in _NOT_CHECKED_BY.items() if text and name in has)


# Files and folders of a broker, and what is not checked if they exist.
_NOT_CHECKED_BY = {
    CHECKPOINT: None,
    FOLDER: None,
    BATCH_FOLDER: "queues of batch messages",
    KEYS_FOLDER: "if the index of keys has all keys (dledger rebuild index --dry-run)",
}


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # a finding


def _can_be_writes(found: list[Finding]) -> bool:
    return any(finding.severity != INFO or finding.code in AFTER_END for finding in found)


def _is_written(part: SegmentCheckPart) -> bool:
    """Whether a process has locked the store, or the end of its log has moved."""
    if taken_locks(part.paths):
        return True
    if part.segment.base <= part.log_end <= part.segment.end:
        time.sleep(_WRITE_SECONDS)
    return _log_end(StoreView(part.path, part.options)) != part.log_end


def _confirmed(found: list[Finding], part: FindingsPart) -> list[Finding]:
    """What a second check of a part finds, if the first one found it too."""
    known = {_place(finding) for finding in found}
    return [finding for finding in _checked_again(part) if _place(finding) in known]


def _place(finding: Finding) -> tuple[str, str, int | None, int | None]:
    return finding.code, finding.file, finding.offset, finding.pos


def _checked_again(part: FindingsPart) -> list[Finding]:
    if isinstance(part, StoreCheckPart):
        return _store_findings(part)
    parts = (each for each in plan_findings(StoreView(part.path, part.options)) if isinstance(each, SegmentCheckPart))
    again = next((each for each in parts if each.segment.path == part.segment.path), None)
    return segment_findings(again) if again is not None else []


def _end_of(store: StoreView, segment: Segment) -> int:
    """The end of the log in a segment; the end of the segment if it cannot be read."""
    try:
        return store.segment_end(segment)
    except (OSError, StoreError):
        return segment.end


def _log_end(store: StoreView) -> int:
    """The end of the log; its beginning if nothing was written."""
    segments = store.segments
    ends = ((_end_of(store, segment), segment.base) for segment in segments)
    return max((end for end, base in ends if end > base), default=segments[0].base if segments else 0)


def _queue_root(paths: StorePaths) -> Path | None:
    """The root whose ConsumeQueues belong to the log at `paths`, and only to it."""
    root = _broker_root(paths)
    if root is None:
        return None
    return root if (root / FOLDER).is_dir() or are_missing(root) else None


def _queue_scope(store: StoreView, log_end: int) -> QueueScope | None:
    """The ConsumeQueues of a log, and which messages must be in them."""
    root = _queue_root(store.paths)
    if root is None:
        return None
    committed = min(_committed_end(store, root), log_end)
    if are_missing(root):
        return QueueScope(root, 0, 0, committed, committed)
    dispatched = dispatched_end(StoredQueues(root, ignore_error), store.segments, log_end)
    return QueueScope(root, 0, 0, dispatched, committed)


def passed_queue_ends(store: StoreView, root: Path, stored: StoredQueues) -> list[PassedEnd]:
    """The offsets of consumer groups after the ends of the queues, as they are once the broker has started."""
    scope = _queue_scope(store, _log_end(store))
    undispatched = max(scope.committed - scope.dispatched, 0) // MIN_MESSAGE_SIZE if scope is not None else 0
    return list(passed_ends(root, stored, undispatched))


def _committed_end(store: StoreView, root: Path) -> int:
    """The end of what is committed, and so what a broker dispatches when it starts; 0 if that is unknown."""
    try:
        if not store.ledger_segments:
            return confirmed_end(root)
        bound = own_bound(store)
        return 0 if bound.index is None else store.position_of(bound.index + 1)
    except (OSError, StoreError):
        return 0


def _broker_root(paths: StorePaths) -> Path | None:
    """The root whose files belong to the log at `paths`, and only to it."""
    root = paths.root
    if root is None:
        return None
    nodes = [folder for folder in root.glob("dledger-*") if folder.is_dir()]
    return root if len(nodes) == (paths.node_dir is not None) else None


def _store_findings(part: StoreCheckPart) -> list[Finding]:
    # Units are counted before the log's end is read: on a running broker, the log is ahead of its queues.
    first = StoreView(part.path, part.options)
    queue_root = _queue_root(first.paths)
    is_whole = first.paths.only is None
    failed: list[UnreadableError] = []
    stored = StoredQueues(queue_root, failed.append) if queue_root is not None and is_whole else None
    store = StoreView(part.path, part.options)
    report = Report(store.paths)
    for error in unreadable_files(store.paths):
        report.add_unreadable(error)
    checks = [
        lambda: _check_files(store, report),
        lambda: _check_index(store, report),
        lambda: check_state(store, report),
    ]
    if queue_root is not None and stored is not None:
        checks.append(lambda: _check_queues(store, queue_root, stored, report))
    root = _broker_root(store.paths)
    if root is not None:
        checks.append(lambda: check_broker_files(store, root, _log_end(store), report))
    for check in checks if is_whole else []:
        try:
            check()
        except UnreadableError as error:
            report.add_unreadable(error)
        except (OSError, StoreError) as error:
            report.add("unreadableFile", store.path, str(error))
    for each in failed:
        report_failed_read(report, each)
    return report.findings()


def _check_files(store: StoreView, report: Report) -> None:
    check_segment_files(store.paths.commitlog_dirs, COMMITLOG, True, report)
    check_segment_files(store.paths.data_dirs, DLEDGER, store.dialect != "0.4", report)
    if store.ledger_segments:
        check_divided_offset(
            store.paths.commitlog_dirs, store.divided_commitlog_offset, store.ends.get(COMMITLOG), report
        )


def _check_index(store: StoreView, report: Report) -> None:
    if store.paths.node_dir is None:
        return
    begin = max(store.begin_index, 0)
    check_index_files(store.paths.node_dir / "index", begin, store.end.last_index, report)
    check_units_beyond(store.index_files, store.end.last_index, report)
    if store.checkpoint_committed_index <= store.end.last_index:
        # Else it is a finding of the segment.
        check_entry_beyond(store, report)


def _check_queues(store: StoreView, root: Path, stored: StoredQueues, report: Report) -> None:
    is_old_part_left_out = not store.paths.commitlog_dirs and (root / "commitlog").is_dir()
    low = store.segments[0].base if store.segments and not is_old_part_left_out else None
    check_queue_files(stored, report)
    check_databases(root, report)
    if low is not None:
        check_bounds(root, low, report)
    check_consumer_offsets(passed_queue_ends(store, root, stored), report)
    check_outside(stored, store.segments, low, _log_end(store), root, report)
