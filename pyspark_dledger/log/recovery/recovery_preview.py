"""Previews what the Java DLedger would do to a store when it opens it; the store is only read.

Version lines with the same behaviour: 0.1; 0.2 (0.2.0 to 0.2.7); 0.3 (0.3.0 to 0.3.1.2); 0.3.2; 0.4 (0.4.0). The model
covers load and recover of ``DLedgerMmapFileStore``, with a JDK that can unmap files (8, or later ones with
``--add-opens``; 0.3.2 and 0.4.0 need neither). Not modelled: elections, snapshots of 0.4.0 (loaded afterwards), files
that Java may not read or delete, and DLedger's cleaner, which can delete expired files afterwards.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.errors import DLedgerError, OptionError, StoreError, UnreadableError
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.layout import ENTRY_MAGICS, INDEX_UNIT_SIZE, segment_name
from pyspark_dledger.format.spec import DLEDGER, SurveyRequest
from pyspark_dledger.log.committed import Bound, committed_bound
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import check_fact, unread_file
from pyspark_dledger.log.options import Offset, option_filters
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.recovery.java_files import JavaEnds, JavaExits, JavaFileList, configured_size
from pyspark_dledger.log.recovery.java_opening import JavaOpening
from pyspark_dledger.log.recovery.java_scan import JavaRules
from pyspark_dledger.log.store_view import StoreView

_RULES = {
    "0.1": JavaRules(committed_from="entry", names_begin=False, first_term=-1),
    "0.2": JavaRules(),
    "0.3": JavaRules(),
    "0.3.2": JavaRules(),
    "0.4": JavaRules(magics=ENTRY_MAGICS, checks_pos=False, sized_blanks=True, committed_from=None),
}
LINES = tuple(_RULES)
# These read the committed entry itself, as 0.1 does.
_EARLY_0_2 = JavaRules(committed_from="entry")

_DEFAULT_DATA_FILE_SIZE = 1024**3
_DEFAULT_INDEX_FILE_SIZE = INDEX_UNIT_SIZE * 5 * 1024 * 1024
_VERSION = re.compile(r"(\d+)\.(\d+)((?:\.\d+)*)")
_ONE_DATA_DIR = ("0.1", "0.2", "0.2.0", "0.2.1", "0.2.2", "0.2.3")


@dataclass(frozen=True)
class RecoveryPreview:
    """The result of one opening: the fields of ``dledger recovery --json``, in snake case.

    ``outcome``: ``opens``; ``exits`` (the process ends, code 255); ``throws``; ``hangs`` (0.4.0 follows a cycle of
    damaged blanks); ``unknown`` (a file cannot be read). Indexes and terms are None unless it opens, and -1 if Java has
    none; ``write_pos`` is the position after the last byte. The files after it include foreign ones; index files can
    change even if it does not open.
    ``lost`` are inclusive ranges of committed indexes that are in the log or the index before, and not in the log
    afterwards; ``lost_topics`` counts their intact messages. ``dropped`` counts all entries that are not in the log
    afterwards, and ``truncated`` are the positions that it loses at its end, inclusive: entries, damaged bytes after
    them, and messages that ConsumeQueues point to. ``reason`` is empty if nothing is wrong.
    """

    java: str
    outcome: str
    begin_index: int | None = None
    end_index: int | None = None
    end_term: int | None = None
    committed_index: int | None = None
    write_pos: int | None = None
    curr_term: int = -1
    vote_leader: str | None = None
    data_files_after: list[str] = field(default_factory=list)
    index_files_after: list[str] = field(default_factory=list)
    data_files_deleted: list[str] = field(default_factory=list)
    index_files_deleted: list[str] = field(default_factory=list)
    reason: str = ""
    lost: list[tuple[int, int]] = field(default_factory=list)
    lost_topics: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    truncated: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)
    rocketmq: dict[str, Any] | None = None

    @classmethod
    def unknown(cls, line: str, error: UnreadableError) -> RecoveryPreview:
        """The result where a file cannot be read that Java would read."""
        return cls(line, "unknown", reason=f"cannot tell: {error}")

    @property
    def starts(self) -> bool:
        """Whether the process starts: DLedger opens the store, and the broker loads it."""
        return self.outcome == "opens" and bool((self.rocketmq or {}).get("starts", True))

    @property
    def is_trouble(self) -> bool:
        """Whether it does not start, or the log loses something, committed or not."""
        return not self.starts or bool(self.lost or self.dropped or self.truncated)

    def as_json(self) -> dict[str, Any]:
        """The object that the command line prints."""
        return fields_row(self)


def java_line(version: str) -> str:
    """The line of a DLedger version: ``0.3.1.2`` gives ``0.3``. Raises OptionError for an unknown version."""
    found = _VERSION.fullmatch(version.strip())
    if found is None or not (found[1] == "0" and 1 <= int(found[2]) <= 4):
        raise OptionError(f"expected a DLedger version from 0.1 to 0.4.0, found {version!r}")
    minor, rest = int(found[2]), found[3].lstrip(".").split(".")
    if minor == 3 and rest[0].isdigit() and int(rest[0]) >= 2:
        return "0.3.2"
    return f"0.{minor}"


def preview(
    store: StoreView, line: str, data_file_size: int | None = None, index_file_size: int | None = None
) -> RecoveryPreview:
    """Preview what Java DLedger of `line` (one of `LINES`, or a version) would do when it opens the store.

    The sizes in bytes are those that Java is configured with; by default those of the files, or DLedger's defaults
    without files. Raises StoreError if there is no DLedger node, OptionError for an unknown version.
    """
    paths = store.paths
    if paths.node_dir is None or not paths.data_dirs or paths.only is not None:
        raise StoreError(
            f"{store.path}: expected a DLedger node's folder (dledger-<id>, or the storePathRootDir around it), found "
            "something else: what Java does depends on the index, the checkpoint and all data files"
        )
    rules = _EARLY_0_2 if re.fullmatch(r"0\.2\.[0-2]", line) else _RULES[java_line(line)]
    try:
        return _preview(store, paths.node_dir, line, rules, data_file_size, index_file_size)
    except StoreError as error:
        return RecoveryPreview.unknown(line, unread_file(error, store.unread, store.segments))


def _preview(
    store: StoreView,
    node_dir: Path,
    line: str,
    rules: JavaRules,
    data_file_size: int | None,
    index_file_size: int | None,
) -> RecoveryPreview:
    paths = store.paths
    index_dirs = (node_dir / "index",)
    sizes = (
        data_file_size or configured_size(paths.data_dirs, _DEFAULT_DATA_FILE_SIZE),
        index_file_size or configured_size(index_dirs, _DEFAULT_INDEX_FILE_SIZE, INDEX_UNIT_SIZE),
    )
    opening = JavaOpening(
        node_dir,
        JavaFileList(paths.data_dirs, sizes[0], rules.sized_blanks),
        JavaFileList(index_dirs, sizes[1], rules.sized_blanks),
        rules,
        store.engine,
    )
    try:
        opening.run()
        ended = None
    except JavaEnds as error:
        ended = error
    notes = _notes(store, line, opening, index_file_size is not None)
    return _recovery(store, line, opening, ended, notes)


def _recovery(
    store: StoreView, line: str, opening: JavaOpening, ended: JavaEnds | None, notes: list[str]
) -> RecoveryPreview:
    result = RecoveryPreview(
        java=line,
        outcome="opens" if ended is None else ended.outcome,
        curr_term=opening.curr_term,
        vote_leader=opening.vote_leader,
        data_files_after=opening.data.names_after,
        index_files_after=opening.index.names_after,
        data_files_deleted=opening.data.names_deleted,
        index_files_deleted=opening.index.names_deleted,
        reason=_reason(opening, ended),
        notes=notes,
    )
    if ended is not None:
        return result
    bound, end = committed_bound(store, store.options), opening.data.wrote_end
    lost, cut = _lost(store, opening, bound, notes), truncated(store, end)
    if bound.index is not None and bound.index > opening.committed_index and not lost:
        notes.append(
            f"Java starts with {opening.committed_index} as committed, although {bound.index} is proven "
            f"({bound.source}): later entries count again after a leader has committed them"
        )
    return replace(
        result,
        begin_index=opening.begin_index,
        end_index=opening.end_index,
        end_term=opening.end_term,
        committed_index=opening.committed_index,
        write_pos=end,
        reason=_reason(opening, ended, lost or cut),
        lost=lost,
        lost_topics=counted_topics(store, "index", lost),
        dropped=_dropped(store, opening),
        truncated=cut,
    )


def _dropped(store: StoreView, opening: JavaOpening) -> int:
    """How many entries of the log are gone afterwards."""
    # An empty log begins and ends at -1, or where a snapshot does.
    before = range(max(store.begin_index, 0), store.end.last_index + 1)
    kept = range(max(before.start, opening.begin_index), min(before.stop, opening.end_index + 1))
    return len(before) - len(kept)


def _reason(opening: JavaOpening, ended: JavaEnds | None, loses: object = None) -> str:
    """Why Java does not open the store, or what it truncates and rewrites."""
    parts = [text for text in (ended.message, ended.detail) if text] if ended is not None else []
    scan = opening.scan
    is_cut = bool(opening.data.names_deleted or loses) or isinstance(ended, JavaExits)
    if scan is not None and scan.stop is not None and is_cut:
        parts.append(f"the scan stops in data/{scan.stop.file} at byte {scan.stop.offset}: {scan.stop.text}")
    if scan is not None and scan.rewrite is not None:
        parts.append(f"the index is rewritten from {scan.rewrite.first}: {scan.rewrite.text}")
    return "; ".join(parts)


def _notes(store: StoreView, line: str, opening: JavaOpening, knows_index_size: bool) -> list[str]:
    """The assumptions of the model, and what Java does not check."""
    notes = []
    if not opening.index.names_before and not knows_index_size:
        size = opening.index.file_size
        notes.append(f"there is no index file: DLedger's default size of {size} bytes is assumed")
    if len(store.paths.data_dirs) > 1 and line in _ONE_DATA_DIR:
        notes.append("versions before 0.2.4 support one data folder: the preview assumes that they find all files")
    if opening.scan is not None and opening.data.names_before.index(opening.scan.first_file) > 0:
        notes.append(f"Java does not check the data files before {opening.scan.first_file} when it opens the store")
    wanted = store.checkpoint_committed_index
    if wanted > store.end.last_index:
        notes.append(f"the checkpoint says that {wanted} is committed, and the log ends at {store.end.last_index}")
    return notes


def _lost(store: StoreView, opening: JavaOpening, bound: Bound, notes: list[str]) -> list[tuple[int, int]]:
    """The committed entries that are in the log or the index, and not in the log after Java has opened it."""
    begin = store.begin_index if store.begin_index >= 0 else opening.begin_index
    committed = _committed(store, bound)
    if committed is None:
        if opening.end_index < store.end.last_index:
            truncated = f"{max(opening.end_index + 1, begin)} to {store.end.last_index}"
            notes.append(f"{truncated} would be truncated; it is not known if they are committed: {bound.reason}")
        return []
    ranges = []
    if opening.begin_index > begin:
        ranges.append((begin, min(opening.begin_index - 1, committed)))
    ranges.append((max(opening.end_index + 1, opening.begin_index, begin, 0), committed))
    return [(first, last) for first, last in ranges if first <= last]


def _committed(store: StoreView, bound: Bound) -> int | None:
    """The best known committed index.

    After the end of the log, up to the checkpoint's committed index, entries with an index unit count: their bytes are
    damaged or their file is missing. Entries without a unit never existed.
    """
    checkpointed = store.checkpoint_committed_index
    if bound.index is None or bound.index < store.end.last_index or checkpointed <= bound.index:
        return bound.index
    after = range(bound.index + 1, checkpointed + 1)
    return bound.index + bisect_left(after, True, key=lambda index: store.index_files.unit(index) is None)


def counted_topics(store: StoreView, kind: str, lost: list[tuple[int, int]]) -> dict[str, int]:
    """The number of intact messages in inclusive ranges, by topic."""
    found = Counter(topic for first, last in lost for topic in topics_between(store, kind, first, last + 1))
    return dict(sorted(found.items()))


def topics_between(store: StoreView, kind: str, start: int, end: int) -> Iterator[str]:
    """The topics of the intact messages with an index or a position, as `kind` says, in ``[start, end)``."""
    if start >= end:
        return
    options = replace(
        store.options,
        starting_offsets=Offset(kind, start),
        ending_offsets=Offset(kind, end),
        fail_on_data_loss=False,
    )
    try:
        for partition in plan_read(store, ("topic",), options, option_filters(options)):
            for batch in read_partition(partition):
                yield from (topic for topic in batch.column(0).to_pylist() if topic is not None)
    except DLedgerError:
        return  # the ranges show the loss without topics


SILENT_CODES = frozenset(("bodyCrc", "messageStructure", "messageOffset", "messageCrc", "propertyCrc"))
"""Findings about such entries."""
MAX_LISTED = 100
"""Entries listed of each file and kind; `verify` counts the others."""


@dataclass(frozen=True)
class SilentDamage:
    """A damaged entry or place. ``code`` is that of a finding, ``text`` says what was expected and found."""

    index: int | None
    pos: int
    file: str
    code: str
    text: str

    @property
    def looks_whole(self) -> bool:
        """Whether Java would not notice it even when it reads the entry."""
        return self.code in SILENT_CODES


def silent_damage(store: StoreView) -> Iterator[SilentDamage]:
    """What a start does not notice where it does not truncate it: damaged entries and places, and missing files.

    In the order of the log, which is read as a whole. Raises StoreError.
    """
    last = None
    for segment in store.segments:
        if last is not None and last.source == segment.source and last.end < segment.base:
            gap = Fact(ProblemCode.NO_FILE, segment.base, segment.base - last.end)
            yield SilentDamage(None, last.end, segment.path, gap.code.finding, gap.sentence(segment_name(last.end)))
        last = segment
        end = store.segment_end(segment)
        if segment.base >= end:
            continue
        request = SurveyRequest(segment, segment.base, end, verify_crc=True, max_problems=MAX_LISTED)
        for problem in engine_of(store.engine.NAME, segment).survey(request).problems:
            check_fact(segment, problem.fact)
            is_moved = problem.code == "messageOffset" and segment.source == DLEDGER and not segment.check_pos
            if problem.code in (*SILENT_CODES, "corruptBytes") and not is_moved:
                yield SilentDamage(problem.index, problem.pos, segment.path, problem.code, problem.fact.sentence())


def truncated(store: StoreView, end: int) -> tuple[int, int] | None:
    """The positions, inclusive, that a start truncates which ends the log at `end`; None if it truncates nothing."""
    last = store.claimed_end - 1
    return (end, last) if end <= last else None
