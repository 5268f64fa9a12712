"""Rejects the target of an unfinished job: it looks like a store, but files of it are missing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.files import is_remote_path, path_of, read_start

MANIFEST = "_export.json"
"""The file in a target that says what is written there, and whether it is finished."""
RUNNING = "running"
BACKUP_MANIFEST = "backup.json"
"""The manifest of a finished backup."""

_COMMANDS = {"salvage": "salvage", "commitlog": "export", "restore": "restore"}
"""The commands that write a store, by the ``form`` in their manifest."""
# A segment file is in TARGET/dledger-<id>/data.
_MAX_DEPTH = 4
_MAX_MANIFEST = 4 * 1024 * 1024
_being_written: set[Path] = set()


@contextmanager
def written_here(target: Path) -> Iterator[None]:
    """Let this process read a store that it writes to `target`."""
    real = Path(os.path.realpath(target))
    _being_written.add(real)
    try:
        yield
    finally:
        _being_written.discard(real)


def check_finished(path: str) -> None:
    """Raises StoreError if `path` is in the target of an unfinished job. Not for remote paths."""
    given = path_of(path)
    if is_remote_path(given):
        return
    real = Path(os.path.realpath(given))
    for folder in islice((real, *real.parents), _MAX_DEPTH):
        command = _unfinished(folder / MANIFEST) if folder not in _being_written else None
        if command is not None:
            raise StoreError(
                f"{path}: expected a store, found an unfinished {command} in {folder}: run the same dledger {command} "
                "again to finish it"
            )


def _unfinished(manifest: Path) -> str | None:
    """The command whose manifest says that it is running, or was interrupted."""
    found = _read(manifest)
    return _COMMANDS.get(str(found.get("form"))) if found.get("state") == RUNNING else None


def salvaged_from(path: str) -> tuple[str, ...]:
    """The sources of the salvage that wrote the store at `path`; empty for any other store."""
    given = path_of(path)
    found = {} if is_remote_path(given) else _read(Path(os.path.realpath(given)) / MANIFEST)
    sources = found.get("sources")
    return tuple(map(str, sources)) if found.get("form") == "salvage" and isinstance(sources, list) else ()


def _read(manifest: Path) -> dict[str, Any]:
    """The object in a manifest; empty without one, or if it is damaged."""
    try:
        found = json.loads(read_start(manifest, _MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
