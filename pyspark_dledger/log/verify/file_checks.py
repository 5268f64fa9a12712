"""Findings about the files of a store: their names and sizes, gaps, foreign files, and the state of node and broker."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import decode_blank, decode_entry_header, encode_message_blank
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, LogEnd, Segment
from pyspark_dledger.format.state_files import (
    CURR_TERM,
    EPOCH_FILE,
    VOTE_LEADER,
    Checkpoint,
    CurrentTerm,
    parse_checkpoint,
    parse_current_term,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import is_remote_path, is_there, path_of, read_start, scan_folder
from pyspark_dledger.log.io.queue_files import proven_index
from pyspark_dledger.log.io.state_files import (
    CHECKPOINT,
    epoch_file_problem,
    is_of_controller_mode,
    read_store_checkpoint,
)
from pyspark_dledger.log.io.store_paths import usual_size
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.report import Report


@dataclass(frozen=True)
class _File:
    """A file with a segment's name; size in bytes."""

    path: Path
    base: int
    size: int


def check_segment_files(dirs: Iterable[Path], source: str, check_pos: bool, report: Report) -> None:
    """Check names, sizes and contents of the files of a log. Short files are found when they are read."""
    files = _list(dirs, report)
    usual = _usual_size(files)
    strays = _strays(files, usual, source, check_pos)
    for file in strays:
        report.add("strayFile", file.path, _stray_text(file, files, usual))
    files = [file for file in files if file not in strays]
    for file in files:
        if file.size > usual:
            report.add("fileSize", file.path, f"expected {usual} bytes, found {file.size}", offset=usual)
        claimed = _claimed_base(file, source) if check_pos else None
        if claimed is not None and claimed != file.base:
            report.add(
                "fileName",
                file.path,
                f"expected entries from {file.base}, found entries from {claimed}",
                offset=0,
                pos=file.base,
                size=usual,
            )
    for before, after in pairwise(files):
        missing = after.base - before.base - usual
        if usual and missing > 0:
            first = before.base + usual
            count = -(-missing // usual)
            report.add(
                "fileGap",
                before.path.with_name(layout.segment_name(first)),
                f"expected {count} file{'s' * (count > 1)} of {usual} bytes up to {after.base}, found none",
                pos=first,
                size=missing,
            )


def check_index_files(folder: Path, first_index: int, last_index: int, report: Report) -> None:
    """Check names and sizes of a node's index files, and that all from `first_index` to `last_index` exist."""
    if not folder.is_dir():
        if first_index <= last_index:
            report.add("indexFileMissing", folder, _whole_index(first_index, last_index))
        return
    files = _list([folder], report)
    usual = _usual_size(files)
    for file in files:
        if file.size != usual or usual % layout.INDEX_UNIT_SIZE or not usual:
            wanted = usual if usual and usual % layout.INDEX_UNIT_SIZE == 0 else "a multiple of 32"
            report.add("fileSize", file.path, f"expected {wanted} bytes, found {file.size}", offset=file.size)
    if first_index <= last_index and not files:
        report.add("indexFileMissing", folder, _whole_index(first_index, last_index))
    if not files or not usual:
        return
    bases = [file.base for file in files]
    needed = first_index * layout.INDEX_UNIT_SIZE // usual * usual, last_index * layout.INDEX_UNIT_SIZE
    low, high = min(needed[0], bases[0]), max(needed[1] + 1, bases[-1])
    if first_index > last_index:
        low, high = bases[0], bases[-1]
    for start, stop in _missing_ranges(bases, usual, low, high):
        count = -(-(stop - start) // usual)
        report.add(
            "indexFileMissing",
            folder / layout.segment_name(start),
            f"expected {count} file{'s' * (count > 1)} of {usual} bytes, found none",
            index=start // layout.INDEX_UNIT_SIZE,
        )


def _whole_index(first: int, last: int) -> str:
    return f"expected the index of {last - first + 1} entries, found no file"


def check_divided_offset(
    dirs: Iterable[Path], divided: int, old_end: tuple[Segment, LogEnd] | None, report: Report
) -> None:
    """Check that the old CommitLog ends where DLedger begins, and is filled up to there."""
    files = _list(dirs, None)
    if not files:
        return
    last = max(files, key=lambda file: file.base)
    end = last.base + max(last.size, _usual_size(files))
    if end != divided:
        report.add(
            "dividedOffset", last.path, f"expected an end at {divided}, where DLedger begins, found one at {end}"
        )
    elif old_end is not None and old_end[0].end == divided:
        segment, pos = old_end[0], old_end[1].pos
        head = segment.read(pos, layout.MIN_BLANK_SIZE)
        filler = divided - pos
        if filler and head != encode_message_blank(filler):
            report.add(
                "dividedOffset",
                last.path,
                f"expected a filler of {filler} bytes after the last message, found {head.hex() or 'no byte'}",
                offset=pos - segment.base,
            )


def _list(dirs: Iterable[Path], report: Report | None) -> list[_File]:
    """The files of `dirs` with a segment's name, by base; adds a finding for each other file."""
    files = []
    for folder in dirs:
        try:
            entries = sorted(scan_folder(folder), key=lambda entry: entry.name)
        except OSError as error:
            if report is not None:
                report.add_unreadable(UnreadableError(str(folder), error.strerror or str(error)))
            continue
        for entry in entries:
            file = path_of(entry.path)
            try:
                is_segment = entry.is_file() and layout.is_segment_name(entry.name)
                size = entry.stat().st_size
            except OSError as error:
                if report is not None:
                    report.add_unreadable(UnreadableError(str(file), error.strerror or str(error)))
                continue
            if is_segment:
                files.append(_File(file, int(entry.name), size))
            elif report is not None:
                kind = "a folder" if entry.is_dir() else f"a file of {size} bytes"
                report.add("foreignFile", file, f"expected only files whose name has 20 digits, found {kind}")
    return sorted(files, key=lambda file: (file.base, str(file.path)))


def _usual_size(files: list[_File]) -> int:
    return usual_size({file.base: file.size for file in files})


def _strays(files: list[_File], usual: int, source: str, check_pos: bool) -> list[_File]:
    """The files that are not of the log: not aligned with the others, or far from them and without its entries."""
    if not usual or len(files) < 2:
        return []
    steps = Counter(file.base % usual for file in files)
    highest = max(steps.values())
    step = next(file.base % usual for file in files if steps[file.base % usual] == highest)
    strays = [file for file in files if file.base % usual != step]
    groups: list[list[_File]] = []
    for file in files:
        if file.base % usual == step:
            if not groups or file.base - groups[-1][-1].base > usual:
                groups.append([])
            groups[-1].append(file)
    largest = max(groups, key=len)
    for group in groups:
        if group is not largest and not any(_is_of_log(file, source, check_pos) for file in group):
            strays += group
    return strays


def _is_of_log(file: _File, source: str, check_pos: bool) -> bool:
    """Whether a file begins as one of the log: with an entry or message of its position, or with a blank."""
    named = _head_pos(file, 0, source)
    if named is not None and (named == file.base or not check_pos):
        return True
    head = read_at(str(file.path), 0, layout.MIN_BLANK_SIZE)
    return len(head) == layout.MIN_BLANK_SIZE and decode_blank(head) is not None


def _stray_text(file: _File, files: list[_File], usual: int) -> str:
    bases = sorted({other.base for other in files if other != file})
    near = layout.segment_name(bases[max(bisect_left(bases, file.base) - 1, 0)])
    return f"expected consecutive segments of {usual} bytes (the nearest is {near}), found one at {file.base}"


def _claimed_base(file: _File, source: str) -> int | None:
    """The base of a file according to its first two entries or messages; None if they do not agree."""
    first = _head_pos(file, 0, source)
    size = _head_size(file, source) if first is not None else None
    if first is None or size is None or not 0 <= first < 2**62:
        return None
    return first if _head_pos(file, size, source) == first + size else None


def _head_pos(file: _File, offset: int, source: str) -> int | None:
    """The position in the entry or message at an offset."""
    head = read_at(str(file.path), offset, layout.ENTRY_HEADER_SIZE)
    if len(head) < layout.ENTRY_HEADER_SIZE:
        return None
    if source == COMMITLOG:
        named = int.from_bytes(head[layout.PHYSICAL_OFFSET_AT : layout.PHYSICAL_OFFSET_AT + 8], "big", signed=True)
        return named if has_message_magic(head, 0, len(head)) else None
    header = decode_entry_header(head)
    fits = header.magic in layout.ENTRY_MAGICS and header.size == layout.ENTRY_HEADER_SIZE + header.body_size
    return header.pos if fits and header.body_size >= 0 else None


def _head_size(file: _File, source: str) -> int | None:
    """The size of a file's first entry or message."""
    at = 4 if source == DLEDGER else 0
    size = int.from_bytes(read_at(str(file.path), at, 4), "big", signed=True)
    return size if size > 0 else None


def _missing_ranges(bases: list[int], usual: int, low: int, high: int) -> list[tuple[int, int]]:
    """The parts of ``[low, high)`` without a file; files begin at `bases` and have `usual` bytes."""
    missing = []
    at = low
    for base in bases:
        if at < base and at < high:
            missing.append((at, min(base, high)))
        at = max(at, base + usual)
    if at < high:
        missing.append((at, high))
    return missing


_COPIES = (".tmp", ".bak")
_MAX_BYTES = 64 * 1024

Parsed = TypeVar("Parsed", Checkpoint, CurrentTerm)


def check_state(store: StoreView, report: Report) -> None:
    """Check the state files of a node against its log."""
    node_dir, root = store.paths.node_dir, store.paths.root
    if node_dir is not None:
        _check_checkpoint(store, node_dir, report)
        _check_current_term(store, node_dir, report)
    if root is not None and node_dir is None and not is_remote_path(root):
        _check_controller(store, root, report)
    if root is not None and is_there(root / "abort"):
        report.add("abortFile", root / "abort", "found a file that a clean stop removes")


def _check_controller(store: StoreView, root: Path, report: Report) -> None:
    """Check the epochs and the confirmed offset of controller mode."""
    if not is_of_controller_mode(root):
        return
    problem = epoch_file_problem(root, store.max_offset)
    if problem is not None:
        is_readable, text = problem
        report.add("epochsWrong" if is_readable else "epochFileUnreadable", root / EPOCH_FILE, text)
    try:
        confirmed = read_store_checkpoint(root).confirm_phy_offset
    except UnreadableError:
        return  # another finding
    if confirmed > store.max_offset:
        text = f"expected a confirmed offset up to {store.max_offset}, found {confirmed}"
        report.add("confirmedBeyondEnd", root / CHECKPOINT, text)
    elif 0 < confirmed < store.max_offset:
        text = f"expected a confirmed offset of {store.max_offset}, where the log ends, found {confirmed}"
        report.add("unconfirmedTail", root / CHECKPOINT, text)


def _check_checkpoint(store: StoreView, node_dir: Path, report: Report) -> None:
    file = node_dir / "checkpoint"
    if not file.exists() and not _copies(file) and store.dialect == "0.4":
        return
    checkpoint = _read(file, "checkpoint", parse_checkpoint, store.end.entries > 0, report)
    if checkpoint is None:
        return
    committed, end = checkpoint.committed_index, checkpoint.end_index
    assert committed is not None and end is not None
    last = store.end.last_index
    if committed > last:
        report.add(
            "committedBeyondEnd", file, f"expected committedIndex up to {last}, found {committed}", index=committed
        )
    if end > last:
        report.add("endBeyondLog", file, f"expected endIndex up to {last}, found {end}", index=end)
    proven = (
        proven_index(store.paths.root, store.ledger_segments, store.end.pos) if store.paths.root is not None else None
    )
    if committed < last:
        is_proven = proven is not None and proven > committed
        expected = f"{proven}, as the ConsumeQueue proves" if is_proven else f"up to {last}, where the log ends"
        report.add(
            "checkpointStale",
            file,
            f"expected committedIndex {expected}, found {committed}",
            index=committed,
        )


def _check_current_term(store: StoreView, node_dir: Path, report: Report) -> None:
    file = node_dir / "currterm"
    current = _read(file, "currterm", parse_current_term, store.end.entries > 0, report)
    if current is not None and current.unknown:
        text = f"expected the keys {CURR_TERM} and {VOTE_LEADER}, found {current.unknown[0][:40]!r}"
        report.add("currtermUnreadable", file, text)
    # Without the file, Java begins with term 0.
    term = current.curr_term if current is not None else (None if file.exists() else 0)
    if term is not None and term < store.end.last_term:
        found = f"{term}" if current is not None else "no currterm file, so 0"
        report.add("currtermBelowLog", file, f"expected currTerm of at least {store.end.last_term}, found {found}")


def _read(file: Path, name: str, parse: Callable[[bytes], Parsed], is_expected: bool, report: Report) -> Parsed | None:
    """The content of a state file; adds findings about it and its copies."""
    copies = _copies(file)
    if not file.exists():
        if copies:
            found = " and ".join(copy.name for copy in copies)
            report.add(f"{name}FromBackup", file, f"expected {name}, found {found} only")
        elif is_expected:
            report.add(f"{name}Missing", file, f"expected {name}, found no file")
        return None
    for copy in copies:
        report.add("leftoverFile", copy, f"found a copy of {name}")
    if not file.is_file():
        report.add_unreadable(UnreadableError(str(file), "not a file"))
        return None
    try:
        parsed = parse(read_start(file, _MAX_BYTES))
    except OSError as error:
        report.add_unreadable(UnreadableError(str(file), error.strerror or str(error)))
        return None
    if parsed.problem is not None:
        report.add(f"{name}Unreadable", file, parsed.problem)
        return None
    return parsed


def _copies(file: Path) -> list[Path]:
    return [copy for copy in (file.with_name(file.name + suffix) for suffix in _COPIES) if copy.exists()]
