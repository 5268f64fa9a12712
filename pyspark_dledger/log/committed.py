"""Which entries are known to be committed, and by what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyspark_dledger.format.state_files import Checkpoint, CurrentTerm, parse_checkpoint, parse_current_term

# Java writes some fifty bytes.
_LONGEST_STATE_FILE = 64 * 1024

Parsed = TypeVar("Parsed", Checkpoint, CurrentTerm)


@dataclass(frozen=True)
class Bound:
    """A committed index (inclusive) and what proves it; without an index, the reason why none is known."""

    index: int | None
    source: str | None
    reason: str = ""


def read_checkpoint(node_dir: Path) -> tuple[Checkpoint | None, str]:
    """The node's checkpoint and the name of the file that held it; without one, the reason."""
    return _read_replaced(node_dir, "checkpoint", parse_checkpoint)


def read_current_term(node_dir: Path) -> tuple[CurrentTerm | None, str]:
    """The node's current term and vote, and the name of the file that held them; without one, the reason."""
    return _read_replaced(node_dir, "currterm", parse_current_term)


def _read_replaced(node_dir: Path, name: str, parse: Callable[[bytes], Parsed]) -> tuple[Parsed | None, str]:
    """A file that Java replaces by writing .tmp, copying the old one to .bak, deleting it and renaming.

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
            with file.open("rb") as stream:
                data = stream.read(_LONGEST_STATE_FILE)
        except OSError as error:
            problems.append(f"{candidate} cannot be read ({error.strerror})")
            continue
        parsed = parse(data)
        if parsed.problem is None:
            return parsed, candidate
        problems.append(f"{candidate}: {parsed.problem}")
    return None, "; ".join(problems) or f"no {name} file"


def best(bounds: list[Bound], end_index: int) -> Bound:
    """The bound that proves most, never beyond the end; without any, one that joins the reasons."""
    known = [bound for bound in bounds if bound.index is not None]
    if not known:
        return Bound(None, None, "; ".join(bound.reason for bound in bounds if bound.reason))
    index, source = max(
        ((bound.index, bound.source) for bound in known if bound.index is not None), key=lambda pair: pair[0]
    )
    return Bound(min(index, end_index), source)
