"""What cannot be read of a store: it is a finding, never clean, and does not end an answer from the other files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.layout import MAX_ENTRY_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.format.state_files import EPOCH_FILES
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import is_remote_path, is_there, map_reads, path_of
from pyspark_dledger.log.io.queue_files import FOLDER, folder_entries
from pyspark_dledger.log.io.rocks_queues import FOLDERS as QUEUE_FOLDERS
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE, ROOT_FOLDERS, StorePaths, not_files

if TYPE_CHECKING:
    import pyarrow as pa

UnreadSegment = tuple[Segment, UnreadableError]

_FILES = ("checkpoint", "abort", "lock", *EPOCH_FILES, "timerwheel")
# Names that are only given to files; and those of files with digits, where files are expected.
_FILE_NAME = re.compile(
    r"(checkpoint|currterm|position-checkpoint|epochFileCheckpoint|.+\.json)(\.bak|\.tmp)?|abort|lock|timerwheel|"
    r"snapshot_meta"
)
_NUMBERED = re.compile(r"\d{17}|\d{20}")
_MAX_DEPTH = 8
_MAX_LINKED_DEPTH = 3

READ_COLUMNS = ("problemFound", "problemErrno")
"""The columns of a scan that show whether the rest of a file cannot be read."""


def unreadable_files(paths: StorePaths) -> Iterator[UnreadableError]:
    """Open each file of a store that is no segment, and read its first byte; gives the failures.

    Of segments, it gives those that are no files. Raises StoreError for a remote folder that cannot be listed.
    """
    errors: list[UnreadableError] = []
    files = [str(file) for file in _files(paths, errors)]
    yield from errors
    for error in map_reads(_first_byte, files, paths.path):
        if error is not None:
            yield error


def unread_segments(
    paths: StorePaths, segments: Sequence[Segment], known: Sequence[UnreadableError]
) -> tuple[UnreadSegment, ...]:
    """The segments of a local store that cannot be read, by base: `known` errors, first bytes, and what is no file."""
    errors = {error.path: error for error in known}
    found = [
        (segment, error)
        for segment in segments
        if (error := errors.get(segment.path) or _first_byte(segment.path)) is not None
    ]
    sources = [(DLEDGER, paths.data_dirs), (COMMITLOG, paths.commitlog_dirs)] if paths.only is None else []
    for source, dirs in sources:
        size = max((segment.size for segment in segments if segment.source == source), default=1)
        for path in not_files(dirs):
            base = int(path.name)
            following = min((each.base for each in segments if each.base > base), default=INT64_MAX)
            if base <= HIGHEST_BASE:
                segment = Segment.local(str(path), path.name, base, min(size, following - base), source)
                found.append((segment, UnreadableError(str(path), "not a file")))
    return tuple(sorted(found, key=lambda each: each[0].base))


def read_error(segment: Segment, batch: pa.RecordBatch) -> UnreadableError | None:
    """The error if the last row of a batch with `READ_COLUMNS` is that the rest of the file cannot be read."""
    if not len(batch) or not batch["problemErrno"][-1].is_valid:
        return None
    reason = os.strerror(batch["problemErrno"][-1].as_py())
    return UnreadableError(segment.path, reason, batch["problemFound"][-1].as_py())


def check_fact(segment: Segment, fact: Fact) -> None:
    """Raises UnreadableError if a problem is that the rest of a file cannot be read."""
    if fact.code is ProblemCode.UNREADABLE:
        raise UnreadableError(segment.path, os.strerror(fact.also_found), fact.found)


def check_whole(segment: Segment) -> None:
    """Raises UnreadableError if bytes of a file cannot be read."""
    for offset in range(0, segment.size, MAX_ENTRY_SIZE):
        read_existing(segment.path, offset, MAX_ENTRY_SIZE)


class UnreadFiles:
    """What cannot be read of one store: the files of its log that were left out, and all others.

    `last_base` gives that of the last file that has entries and can be read. `indexes_in` gives the first and last
    index that can be in a segment, None without any.
    """

    def __init__(
        self,
        paths: StorePaths,
        segments: Sequence[UnreadSegment] = (),
        last_base: Callable[[], int] = lambda: -1,
        indexes_in: Callable[[Segment], tuple[int, int] | None] = lambda _: None,
    ) -> None:
        self._paths = paths
        self._indexes_in = indexes_in
        self._last_base = last_base
        self.segments = list(segments)
        self._added: dict[str, UnreadableError] = {}

    @property
    def files(self) -> list[Segment]:
        """The files of the log."""
        return [segment for segment, _ in self.segments]

    @property
    def extents(self) -> list[tuple[int, int]]:
        """The positions ``[start, end)`` that are unknown; an end of 2^63-1: no entry that can be read follows."""
        last = self._last_base() if self.files else -1
        return [(each.base, each.end if each.base < last else INT64_MAX) for each in self.files]

    @property
    def has_end(self) -> bool:
        """Whether the end of the log cannot be read."""
        return any(end == INT64_MAX for _, end in self.extents)

    def add(self, error: UnreadableError) -> None:
        """Add what a read of another file found."""
        self._added.setdefault(error.path, error)

    def add_segment(self, segment: Segment, error: UnreadableError) -> None:
        """Add a file of the log of which a read failed; all of it counts as unknown."""
        if segment not in self.files:
            self.segments = sorted([*self.segments, (segment, error)], key=lambda each: each[0].base)

    @cached_property
    def _others(self) -> list[UnreadableError]:
        # In a remote store the read itself fails.
        found = () if is_remote(self._paths.path) else unreadable_files(self._paths)
        left_out = {segment.path for segment, _ in self.segments}
        return [error for error in found if error.path not in left_out]

    def _errors(self, names: Container[str] | None) -> list[UnreadableError]:
        listed = self._others if names is not None else ()
        others = {
            error.path: error
            for error in listed
            if not names or any(part in names for part in self._relative(error).parts)
        }
        return list({**others, **self._added}.values())

    def extents_of(self, source: str) -> list[tuple[int, int]]:
        """The extents of files of a source."""
        return [extent for extent, each in zip(self.extents, self.files, strict=True) if each.source == source]

    def segment_texts(self, source: str | None = None) -> tuple[str, ...]:
        """Each file of the log, or of a source, with the reason, and what of the log is unknown because of it."""
        parts = zip(self.segments, self.extents, strict=True)
        return tuple(
            f"{_text(error)}{self._unknown(segment, *extent)}"
            for (segment, error), extent in parts
            if source in (None, segment.source)
        )

    def texts(self, names: Container[str] | None = ()) -> list[str]:
        """Files of the log, then others, each with the reason.

        Others are all, or those in folders `names` or with such a name; None: only those that a read met.
        """
        return [*self.segment_texts(), *map(_text, self._errors(names))]

    def queue_texts(self) -> tuple[str, ...]:
        """Each file of ConsumeQueues, and each database of them, that a read met, with the reason."""
        found = ((self._relative(error), error) for error in self._added.values())
        return tuple(f"{file}: {_reason(error)}" for file, error in found if {*file.parts[:1]} & {*QUEUE_FOLDERS})

    def witnesses(self) -> tuple[str, ...]:
        """What cannot be read of the files that know messages, each with the reason."""
        found = ((self._relative(error), error) for error in self._others)
        return tuple(f"{file} cannot be read ({_reason(error)})" for file, error in found if file.parts[0] != "config")

    def lines(self, question: str, names: Container[str] | None = ()) -> Iterator[str]:
        """That nothing can tell the answer to `question`, and each file; nothing if all can be read."""
        if texts := self.texts(names):
            yield f"{self._paths.path}: cannot tell {question}: {counted(len(texts), 'file')} cannot be read"
            yield from (f"  {text}" for text in texts)

    def covers(self, start: int, end: int) -> bool:
        """Whether a position of ``[start, end)`` is unknown."""
        return any(low < end and start < high for low, high in self.extents)

    def known_parts(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of ``[start, end)`` that are not unknown."""
        for low, high in self.extents:
            if low < end and start < high:
                if start < low:
                    yield start, low
                start = high
        if start < end:
            yield start, end

    def _unknown(self, segment: Segment, start: int, end: int) -> str:
        indexes = self._indexes_in(segment)
        texts = [f"index {_span(*indexes)}"] if indexes is not None else []
        return f"; unknown: {', '.join([*texts, f'pos {_span(start, end if end == INT64_MAX else end - 1)}'])}"

    def _relative(self, error: UnreadableError) -> Path:
        root = self._paths.root or self._paths.node_dir or path_of(self._paths.path)
        path = path_of(error.path)
        return path.relative_to(root) if path.is_relative_to(root) else path


def _span(first: int, last: int) -> str:
    return f"{first} and after" if last == INT64_MAX else str(first) if first == last else f"{first} to {last}"


def _text(error: UnreadableError) -> str:
    return f"{error.path}: {_reason(error)}"


def _reason(error: UnreadableError) -> str:
    return error.reason if error.offset is None else f"{error.reason} at byte {error.offset}"


def _first_byte(file: str) -> UnreadableError | None:
    try:
        read_existing(file, 0, 1)
    except UnreadableError as error:
        return UnreadableError(error.path, error.reason)
    return None


def _files(paths: StorePaths, errors: list[UnreadableError]) -> Iterator[Path]:
    walk = _Walk(errors)
    if paths.only is None:
        dirs = (*paths.data_dirs, *paths.commitlog_dirs)
        errors.extend(UnreadableError(str(path), "not a file") for path in not_files(dirs))
    if paths.node_dir is not None:
        yield from walk.below(paths.node_dir / "index", 1)
        if paths.only is None:
            for entry in folder_entries(paths.node_dir, errors.append):
                if entry.name not in ("data", "index"):
                    yield from walk.at(paths.node_dir / entry.name, _MAX_DEPTH)
    root = paths.root
    if root is None or not (paths.commitlog_dirs or is_there(root / FOLDER)) or _has_other_nodes(paths, root):
        return
    for name, depth in ROOT_FOLDERS.items() if paths.only is None else [(FOLDER, 3)]:
        if is_there(root / name) and not (root / name).is_dir():
            errors.append(UnreadableError(str(root / name), "not a folder"))
        else:
            yield from walk.below(root / name, depth)
    for name in _FILES if paths.only is None else ():
        if is_there(root / name):
            yield from walk.at(root / name, 0)


def _has_other_nodes(paths: StorePaths, root: Path) -> bool:
    """Whether the queues of a root may belong to another node's log."""
    nodes = [path for path in root.glob("dledger-*") if path.is_dir()]
    return len(nodes) > (paths.node_dir is not None)


class _Walk:
    """The files of some folders, each folder once. A depth is 0 where files are expected."""

    def __init__(self, errors: list[UnreadableError]) -> None:
        self._errors = errors
        self._seen: set[tuple[int, int]] = set()

    def below(self, folder: Path, depth: int, min_depth: int = -_MAX_DEPTH) -> Iterator[Path]:
        """The files below a folder. A link can lead anywhere: below it, only as deep as a store has files."""
        if not is_remote_path(folder):
            if folder.is_symlink():
                depth, min_depth = min(depth, _MAX_LINKED_DEPTH), 0
            if self._is_seen(folder):
                return
        for entry in folder_entries(folder, self._errors.append):
            yield from self.at(path_of(entry.path), depth - 1, min_depth)

    def at(self, path: Path, depth: int, min_depth: int = -_MAX_DEPTH) -> Iterator[Path]:
        """The files at or below a path."""
        try:
            is_folder, is_file = path.is_dir(), path.is_file()
        except OSError as error:
            self._errors.append(UnreadableError(str(path), error.strerror or str(error)))
            return
        if is_file:
            yield path
        elif is_folder and not _is_of_file(path.name, depth) and depth > min_depth:
            yield from self.below(path, depth, min_depth)
        elif is_there(path):
            self._errors.append(UnreadableError(str(path), "not a file"))

    def _is_seen(self, folder: Path) -> bool:
        try:
            found = folder.stat()
        except OSError:
            return False  # whoever lists it reports that
        known = (found.st_dev, found.st_ino) in self._seen
        self._seen.add((found.st_dev, found.st_ino))
        return known


def _is_of_file(name: str, depth: int) -> bool:
    return bool(_FILE_NAME.fullmatch(name) or (not depth and _NUMBERED.fullmatch(name)))


def unread_file(error: StoreError, unread: UnreadFiles, segments: Sequence[Segment]) -> UnreadableError:
    """What could not be read, if that is the reason for an error; else raises the error."""
    if isinstance(error, UnreadableError):
        return error
    failed = (found for segment in segments if (found := _first_byte(segment.path)) is not None)
    for found in (*(each for _, each in unread.segments), *failed):
        return found
    raise error
