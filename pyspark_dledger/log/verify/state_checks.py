"""Findings about a node's ``checkpoint`` and ``currterm`` and a broker's ``abort`` file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.state_files import EPOCH_FILE, Checkpoint, CurrentTerm, parse_checkpoint, parse_current_term
from pyspark_dledger.log.io.files import is_remote_path, is_there, read_start
from pyspark_dledger.log.io.queue_files import proven_index
from pyspark_dledger.log.io.state_files import (
    CHECKPOINT,
    epoch_file_problem,
    is_of_controller_mode,
    read_store_checkpoint,
)
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.report import Report

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
