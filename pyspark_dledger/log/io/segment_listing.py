"""Lists segments, and lists them again only if a folder has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.format.spec import Segment, Witness
from pyspark_dledger.log.io.files import FolderEntry, is_remote_path
from pyspark_dledger.log.io.store_paths import entry_size, list_segments

Stamps = tuple[tuple[int, int, int], ...]
"""Device, inode and time of change (ns) of some folders."""

# The resolution of a file system's times is a few milliseconds, at most two seconds (FAT).
_SETTLED_NS = 3_000_000_000


def folder_stamps(folders: Iterable[Path]) -> Stamps | None:
    """Stamps that change with every file that is created in, or removed from, one of the folders.

    None if a folder does not exist, and for remote folders.
    """
    watched = list(folders)
    if any(map(is_remote_path, watched)):
        return None
    try:
        found = [folder.stat() for folder in watched]
    except OSError:
        return None
    return tuple((status.st_dev, status.st_ino, status.st_mtime_ns) for status in found)


def is_settled(stamps: Stamps | None) -> bool:
    """Whether the last change is old enough that another one would give other stamps."""
    now = time.time_ns()
    return stamps is not None and all(now - changed > _SETTLED_NS for _, _, changed in stamps)


@dataclass(frozen=True)
class Listing:
    """The segments of some folders, and the stamps that show a change."""

    segments: tuple[Segment, ...]
    request: tuple[tuple[Path, ...], str, bool, Witness | None]
    stamps: Stamps | None


def listing(
    dirs: Iterable[Path],
    source: str,
    check_pos: bool,
    before: Listing | None,
    witness: Witness | None = None,
    size_of: Callable[[FolderEntry], int | None] = entry_size,
) -> Listing:
    """List segments as `store_paths.list_segments`, with its errors; `before` itself if nothing has changed."""
    request = (tuple(dirs), source, check_pos, witness)
    stamps = folder_stamps(request[0])
    if before is not None and before.request == request and before.stamps is not None and before.stamps == stamps:
        return before
    segments = list_segments(*request, size_of)
    # A file gets its size just after it is created, so a list of recent files is not reused.
    return Listing(tuple(segments), request, stamps if is_settled(stamps) else None)
