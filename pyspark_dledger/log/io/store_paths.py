"""Finds a store from a path, and lists its segments, again only if a folder has changed."""

from __future__ import annotations

import glob
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import itemgetter
from pathlib import Path

from pyspark_dledger.common.fields import changed
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.common.java_text import escaped_path, is_utf8
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_blank
from pyspark_dledger.format.layout import ENTRY_MAGICS, is_segment_name
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment, Witness
from pyspark_dledger.format.store_file import regular_size
from pyspark_dledger.log.io.files import (
    FolderEntry,
    file_at,
    is_readable,
    is_remote_path,
    is_there,
    names_in,
    path_of,
    read_start,
    scan_folder,
    without_bucket,
)

BACKUP_MANIFEST = "backup.json"
"""The manifest of a finished backup."""

_NODE_PREFIX = "dledger-"
_ACCEPTED = "a storePathRootDir, a dledger-<id>/ folder, a data/ or commitlog/ folder, or one segment file"
# What Spark's users write for several paths.
_PATTERN = re.compile(r"[*?\[{]")
_MAX_SHOWN = 8
# Bytes. After a longer hole, a file does not belong to the log.
_MAX_HOLE = 2**44
# Adding a size to such a position does not overflow.
HIGHEST_BASE = 2**62
ROOT_FOLDERS = {
    "consumequeue": 3,
    "batchconsumequeue": 3,
    "consumequeue_ext": 3,
    "index": 1,
    "config": 1,
    "timerlog": 1,
    "compaction": 1,
}
"""The folders of a storePathRootDir, in addition to the log's, and how deep their files are."""


@dataclass(frozen=True)
class StorePaths:
    """The parts of a store that exist.

    ``node`` is the id in ``dledger-<id>``; None for a plain CommitLog or a single folder. ``only`` is set if the path
    is one segment file.
    """

    path: str
    node: str | None = None
    node_dir: Path | None = None
    root: Path | None = None
    data_dirs: tuple[Path, ...] = ()
    commitlog_dirs: tuple[Path, ...] = ()
    only: Path | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the store has a CommitLog and no DLedger node."""
        return self.node_dir is None and bool(self.commitlog_dirs)


def with_data_dirs(path: str) -> tuple[str, tuple[str, ...]]:
    """The path of a store, and the further data folders that follow it after commas, as in broker.conf.

    A path that exists is one path, and so is a remote one.
    """
    first, *more = path.split(",")
    if not more or is_remote(path) or is_there(path_of(path)):
        return path, ()
    return first, tuple(more)


_ENTRY_STARTS = [magic.to_bytes(4, "big") for magic in ENTRY_MAGICS]


def find_store(path: str, self_id: str | None = None, data_dirs: tuple[str, ...] | None = None) -> StorePaths:
    """Find the parts of the store at `path`.

    Raises StoreError if the path is missing, unreadable, empty or no store, or not UTF-8, or if a root has several
    nodes and `self_id` does not choose one.
    """
    found = _find(path, self_id, data_dirs)
    only = () if found.only is None else (found.only,)
    for part in (*found.data_dirs, *found.commitlog_dirs, *only):
        _check_utf8(str(part))
    return found


def _check_utf8(path: str) -> None:
    if not is_utf8(path):
        raise StoreError(
            f"{escaped_path(path)}: expected a path in UTF-8, found other bytes: rename it, or give it another "
            "name by a link or a bind mount"
        )


def _find(path: str, self_id: str | None, data_dirs: tuple[str, ...] | None) -> StorePaths:
    given = path_of(path).absolute()
    if not is_there(given):
        nothing = without_bucket(given) or _pattern(path) or "nothing there: check the path"
        raise StoreError(f"{path}: expected {_ACCEPTED}, found {nothing}")
    extra = tuple(_existing_dir(folder) for folder in data_dirs or ())
    if given.is_file():
        if not is_readable(given):
            raise StoreError(f"{path}: cannot be read (Permission denied): check its permissions")
        return _of_folder(path, given.parent, (), only=given)
    names = _names(given)
    if not names:
        raise StoreError(f"{path}: expected {_ACCEPTED}, found an empty folder")
    if _looks_like_node(given, names):
        return _of_node(path, given, extra)
    if given.name == "index" and _has(given.parent, "data"):
        raise StoreError(
            f"{path}: expected {_ACCEPTED}, found the index of a node: give the node's folder {given.parent}"
        )
    if any(is_segment_name(name) for name in names) or given.name in ("data", "commitlog"):
        return _of_folder(path, given, extra)
    return _of_root(path, given, names, self_id, extra)


def _pattern(path: str) -> str:
    """What a pattern of names matches, which no log is; an empty text for another path."""
    # A URI has hidden credentials before the path, and its parameters after a question mark.
    if not _PATTERN.search(path.partition("://")[2].partition("/")[2].partition("?")[0] if is_remote(path) else path):
        return ""
    found = [] if is_remote(path) else sorted(glob.glob(path))  # noqa: PTH207  # Path.glob raises for some patterns
    matches = f" of {', '.join(found[:_MAX_SHOWN])}{', ...' if len(found) > _MAX_SHOWN else ''}" if found else ""
    return f"a pattern{matches}: a log is one store, so name its path, or load([a, b]) with its replicas"


def _existing_dir(folder: str) -> Path:
    found = path_of(folder)
    if not found.is_dir():
        nothing = without_bucket(found) or "none: check the path"
        raise StoreError(f"dataDirs: expected a folder with segment files at {folder}, found {nothing}")
    _names(found)
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(names_in(folder))
    except OSError as error:
        raise _no_folder(folder, error) from None


def _no_folder(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"{folder}: cannot be read ({error.strerror}): check its type and its permissions")


def _looks_like_node(folder: Path, names: list[str]) -> bool:
    if folder.name.startswith(_NODE_PREFIX):
        return True
    return "data" in names and ("index" in names or "currterm" in names)


def _node_id(folder: Path) -> str | None:
    return folder.name.removeprefix(_NODE_PREFIX) if folder.name.startswith(_NODE_PREFIX) else None


def _of_folder(path: str, folder: Path, extra: tuple[Path, ...], only: Path | None = None) -> StorePaths:
    """The store with a given data/ or commitlog/ folder; only the segments of that folder are read."""
    node_dir = folder.parent if _looks_like_node(folder.parent, []) or _has(folder.parent, "currterm") else None
    dirs = (folder, *extra)
    source = _source_of(dirs, only)
    if source == COMMITLOG:
        return StorePaths(path, root=folder.parent, commitlog_dirs=dirs, only=only)
    if node_dir is None:
        return StorePaths(path, data_dirs=dirs, only=only)
    return StorePaths(path, _node_id(node_dir), node_dir, node_dir.parent, dirs, only=only)


def _has(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def _source_of(dirs: Iterable[Path], only: Path | None) -> str:
    """Whether segments are DLedger's or the CommitLog's: by their first bytes, else by the folder's name."""
    files = [folder / name for folder in dirs for name in _names(folder) if is_segment_name(name)]
    for file in [only] if only is not None else files:
        if not file.is_file():
            continue
        head = read_start(file, 8)
        if has_message_magic(head, 0, len(head)):
            return COMMITLOG
        if (len(head) == 8 and decode_blank(head) is not None) or head[:4] in _ENTRY_STARTS:
            return DLEDGER
    return COMMITLOG if any(folder.name == "commitlog" for folder in dirs) else DLEDGER


def _of_node(path: str, node_dir: Path, extra: tuple[Path, ...]) -> StorePaths:
    own = node_dir / "data"
    more = tuple(folder for folder in extra if not own.is_dir() or not folder.samefile(own))
    dirs = ((own,) if own.is_dir() else ()) + more
    if not dirs:
        raise StoreError(
            f"{path}: expected a data/ folder in {node_dir.name}, found {_listed(_names(node_dir))}: if the broker "
            f"sets storePathDLedgerCommitLog, give its folders, too (dataDirs): {_with_folders(path, node_dir.parent)}"
        )
    return StorePaths(path, _node_id(node_dir), node_dir, node_dir.parent, dirs)


def node_folders(root: Path, names: Iterable[str]) -> dict[str, Path]:
    """The folders ``dledger-<id>`` in a root whose contents are `names`, by id."""
    folders = [root / name for name in names if name.startswith(_NODE_PREFIX) and (root / name).is_dir()]
    return {folder.name.removeprefix(_NODE_PREFIX): folder for folder in folders}


def _of_root(path: str, root: Path, names: list[str], self_id: str | None, extra: tuple[Path, ...]) -> StorePaths:
    nodes = node_folders(root, names)
    if self_id is not None and self_id.removeprefix(_NODE_PREFIX) not in nodes:
        raise StoreError(f"{path}: expected a node {self_id} (selfId), found {_listed(nodes) or 'no node'}")
    if len(nodes) > 1 and self_id is None:
        raise StoreError(f"{path}: expected one node, found {_listed(nodes)}: choose one with the option selfId")
    old = root / "commitlog"
    commitlog_dirs = (old,) if old.is_dir() else ()
    if nodes:
        node = self_id.removeprefix(_NODE_PREFIX) if self_id is not None else next(iter(nodes))
        found = _of_node(path, nodes[node], extra)
        return StorePaths(path, node, found.node_dir, root, found.data_dirs, commitlog_dirs)
    if commitlog_dirs or extra:
        return StorePaths(path, root=root, commitlog_dirs=commitlog_dirs + extra)
    inner = [name for name in names if (root / name).is_dir() and _is_store(root / name)]
    if inner:
        raise StoreError(
            f"{path}: expected {_ACCEPTED}, found stores in {_listed(inner)}: give the path of one of them, "
            "or to compare, of each"
        )
    if BACKUP_MANIFEST in names:
        raise StoreError(
            f"{path}: expected {_ACCEPTED}, found a backup: dledger verify checks it, dledger restore reads it"
        )
    is_broker = not ROOT_FOLDERS.keys().isdisjoint(names)
    own = f"; if the broker sets storePathCommitLog, give its folders, too (dataDirs): {_with_folders(path, root)}"
    raise StoreError(
        f"{path}: expected {_ACCEPTED}, found {_listed(names)}: this is not a store{own if is_broker else ''}"
    )


def _with_folders(path: str, root: Path) -> str:
    """The command for a store whose log is in other folders: those in its root, if there are any."""
    inner = [root / name for name in _names(root) if (root / name).is_dir()]
    found = [str(folder) for folder in inner if any(map(is_segment_name, _names(folder)))]
    return shlex.join(["dledger", "check", ",".join([path, *(found or ("FOLDER", "FOLDER"))])])


def _is_store(folder: Path) -> bool:
    names = names_in(folder) if is_readable(folder) else []
    return "commitlog" in names or any(name.startswith(_NODE_PREFIX) for name in names)


def _listed(names: Iterable[str]) -> str:
    """At most eight names, for an error message."""
    shown = list(names)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return ", ".join(shown[:8]) + more


def entry_size(entry: FolderEntry) -> int | None:
    """The size of a regular file in a folder, see `file_size`."""
    return regular_size(entry.path, entry.stat)


def list_segments(
    dirs: Iterable[Path],
    source: str,
    check_pos: bool,
    witness: Witness | None = None,
    size_of: Callable[[FolderEntry], int | None] = entry_size,
) -> list[Segment]:
    """The segments in `dirs` by base. Each has its full size, also where the file is shorter; a scan finds that.

    Files with other names are ignored. `size_of` is called for the last file first. Raises StoreError for two files
    with one base, for a base that is too far away for this log, and for a file that is too long for Java: a sparse one
    would be read for hours.
    """
    named = [(int(entry.name), entry) for folder in dirs for entry in _entries(folder) if is_segment_name(entry.name)]
    named.sort(key=itemgetter(0))
    found = [
        (base, entry.path, entry.name, size) for base, entry in reversed(named) if (size := size_of(entry)) is not None
    ][::-1]
    usual = usual_size({base: size for base, _, _, size in found})
    segments = []
    template = Segment.local("", "", 0, 0, source, check_pos, witness=witness)
    for (base, path, name, file_size), following in zip_longest(found, found[1:]):
        if file_size > INT32_MAX:
            raise StoreError(f"{path}: expected a segment below 2 GiB, found {file_size} bytes: move it away")
        size = max(file_size, usual)
        if following is not None:
            distance = following[0] - base
            size = min(size, distance)
            if distance == 0:
                raise StoreError(f"{following[1]}: expected one segment at {base}, found {path} as well: remove one")
            if distance > _MAX_HOLE:
                where = f"{following[1]}: expected a segment near {base + size}"
                raise StoreError(f"{where}, found one far after it: move it away")
        if base > HIGHEST_BASE:
            raise StoreError(f"{path}: expected a base of at most 2^62, found {base}: move it away")
        segments.append(changed(template, file=file_at(path), name=name, base=base, size=size))
    return segments


def not_files(dirs: Iterable[Path]) -> list[Path]:
    """What has the name of a segment but is a folder, a broken link or a device. A remote store has none."""
    found = (entry for folder in dirs if not is_remote_path(folder) for entry in _entries(folder))
    names = sorted(entry.path for entry in found if not _is_plain_file(entry) and is_segment_name(entry.name))
    return [path for path in map(Path, names) if file_size(path) is None and is_there(path)]


def _entries(folder: Path) -> list[FolderEntry]:
    try:
        return scan_folder(folder)
    except OSError as error:
        raise _no_folder(folder, error) from None


def _is_plain_file(entry: FolderEntry) -> bool:
    """Whether an entry of a local folder is a file or a link to one, without a look at it if the folder says so."""
    try:
        return entry.is_file()
    except OSError:
        return False


def file_size(file: Path) -> int | None:
    """The size of a regular file in bytes; None for anything else, and for a file that no longer exists."""
    return regular_size(file, file.stat)


def usual_size(sizes: dict[int, int]) -> int:
    """The size in bytes that files are created with, from their sizes by base; 0 without files.

    It is the size of most files, else the smallest distance of two bases.
    """
    if not sizes:
        return 0
    size, count = Counter(sizes.values()).most_common(1)[0]
    if 2 * count > len(sizes):
        return size
    return min(after - before for before, after in pairwise(sorted(sizes)))


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
