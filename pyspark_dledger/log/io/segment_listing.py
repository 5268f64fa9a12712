"""Lists of segments that are made anew only when a folder has changed: what looking at a log again and again costs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.files import is_remote_path
from pyspark_dledger.log.io.store_paths import list_segments

Stamps = tuple[tuple[int, int, int], ...]
"""Device, inode and time of change, in nanoseconds, of some folders."""

# A file system tells times apart that are a few milliseconds, at most two seconds (FAT), from each other.
_SETTLED_NS = 3_000_000_000


def folder_stamps(folders: Iterable[Path]) -> Stamps | None:
    """What changes with every file that is created in, or removed from, one of the folders.

    None where one is gone, and for remote folders, which have no such thing.
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
    """Whether the last change is so old that another one would give other stamps."""
    now = time.time_ns()
    return stamps is not None and all(now - changed > _SETTLED_NS for _, _, changed in stamps)


@dataclass(frozen=True)
class Listing:
    """The segments of some folders as they were listed, and by what a change is told."""

    segments: tuple[Segment, ...]
    wanted: tuple[tuple[Path, ...], str, bool]
    stamps: Stamps | None


def listing(dirs: Iterable[Path], source: str, check_pos: bool, before: Listing | None) -> Listing:
    """The segments as `find.list_segments` gives them; `before` itself where nothing changed since. Raises as that."""
    wanted = (tuple(dirs), source, check_pos)
    stamps = folder_stamps(wanted[0])
    if before is not None and before.wanted == wanted and before.stamps is not None and before.stamps == stamps:
        return before
    segments = list_segments(*wanted)
    # Sizes count too, and a file gets its own just after it was created: a list of fresh files is made again.
    return Listing(tuple(segments), wanted, stamps if is_settled(stamps) else None)
