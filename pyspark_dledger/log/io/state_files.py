"""Reads a node's state files: ``checkpoint`` and ``currterm``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark_dledger.format.state_files import Checkpoint, CurrentTerm, parse_checkpoint, parse_current_term
from pyspark_dledger.log.io.files import read_start

# Java writes about fifty bytes.
_MAX_BYTES = 64 * 1024

Parsed = TypeVar("Parsed", Checkpoint, CurrentTerm)


def read_checkpoint(node_dir: Path) -> tuple[Checkpoint | None, str]:
    """The checkpoint and the name of its file; without a readable one, None and the reason."""
    return _read_replaced(node_dir, "checkpoint", parse_checkpoint)


def read_current_term(node_dir: Path) -> tuple[CurrentTerm | None, str]:
    """The current term and vote and the name of their file; without a readable one, None and the reason."""
    return _read_replaced(node_dir, "currterm", parse_current_term)


def _read_replaced(node_dir: Path, name: str, parse: Callable[[bytes], Parsed]) -> tuple[Parsed | None, str]:
    """Read a file that Java replaces: it writes .tmp, copies the old file to .bak, deletes it, and renames .tmp.

    A crash in between leaves .tmp, which is newer, and .bak (IOUtils.string2File).
    """
    problems = []
    for candidate in (name, f"{name}.tmp", f"{name}.bak"):
        file = node_dir / candidate
        try:
            if not file.exists():
                continue
            if not file.is_file():
                problems.append(f"{candidate} is no file")
                continue
            data = read_start(file, _MAX_BYTES)
        except OSError as error:
            problems.append(f"{candidate} cannot be read ({error.strerror})")
            continue
        parsed = parse(data)
        if parsed.problem is None:
            return parsed, candidate
        problems.append(f"{candidate}: {parsed.problem}")
    return None, "; ".join(problems) or f"no {name} file"
