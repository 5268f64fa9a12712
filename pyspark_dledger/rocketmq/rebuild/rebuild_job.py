"""Rebuilds the ConsumeQueues or the index of keys of a store from its log, which is only read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pyspark_dledger.common.options import BOOLEAN, Parser, by_key, integer_from, option, options_of, parse_values
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import as_uri, is_remote, without_file_scheme
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log.committed import Bound, committed_bound
from pyspark_dledger.log.io.files import is_remote_path
from pyspark_dledger.log.io.key_files import FOLDER as INDEX
from pyspark_dledger.log.io.key_files import index_files, read_header
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import file_queues, skip_too_large
from pyspark_dledger.log.io.rocks_queues import rocks_folders
from pyspark_dledger.log.io.state_files import read_store_checkpoint
from pyspark_dledger.log.options import REBUILD, check_use, parse_options
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import has_tag_units, queue_root
from pyspark_dledger.rocketmq.broker.broker_conf import read_dispatch_settings
from pyspark_dledger.rocketmq.broker.root_files import locked, write_store_checkpoint
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchSettings
from pyspark_dledger.rocketmq.jobs import MapParts, Progress, map_here
from pyspark_dledger.rocketmq.jobs.target_folder import target_errors
from pyspark_dledger.rocketmq.rebuild import builder, swap
from pyspark_dledger.rocketmq.rebuild.builder import BuildReport, BuildSettings
from pyspark_dledger.rocketmq.rebuild.comparison import IndexDifference, QueueDifference, compare_index, compare_queues

WHATS = (QUEUES, INDEX)

# Light message queues have units of messages of other queues (MixAll.LMQ_PREFIX).
_LIGHT_PREFIX = "%LMQ%"
_MAX_INDEX_UNITS = 2**31 - 1


@dataclass(frozen=True)
class FileSettings:
    """The sizes of new files, and of what they are; the scope of an option is what it has an effect on.

    None stands for the size of existing files; else it comes from ``broker_conf``, a broker.conf, which also has the
    delay levels; else it is RocketMQ's default.
    """

    units_per_file: int | None = option(
        None, integer_from(1, builder.MAX_UNITS), "units of a ConsumeQueue file", scope=(QUEUES,)
    )
    hash_slots: int | None = option(None, integer_from(1, _MAX_INDEX_UNITS), "slots of an index file", scope=(INDEX,))
    index_units: int | None = option(None, integer_from(2, _MAX_INDEX_UNITS), "units of an index file", scope=(INDEX,))
    broker_conf: Path | None = option(None, Parser("a path", lambda value: Path(str(value))), "a broker.conf")
    index_tags: bool | None = option(
        None, BOOLEAN, "the index has tags, as from RocketMQ 5.5.0 on; default: as existing files", scope=(INDEX,)
    )

    @classmethod
    def taken_from(cls, options: Mapping[str, Any], what: str) -> tuple[FileSettings, dict[str, Any]]:
        """The settings among options, and the other options. Names are in any case.

        Raises OptionError for an invalid value, or one without an effect on `what`.
        """
        known = by_key(options_of(cls))
        given = {name: value for name, value in options.items() if name.lower() in known}
        settings = parse_values(given, lambda name: known[name.lower()])
        for each in known.values():
            if each.field in settings and what in WHATS and what not in (each.scope or WHATS):
                raise OptionError(
                    f"option {each.name} has no effect on a rebuild of {what}, only of {each.scope[0]}: leave it out"
                )
        return cls(**settings), {name: value for name, value in options.items() if name not in given}


@dataclass(frozen=True)
class RebuildReport:
    """The result of a rebuild.

    ``folder`` was built. ``before`` is the new name of the old folder; None if there was none, or if it was the same
    and stays, as a note says ("nothing changed"). ``committed`` says up to where the log was read, and why.
    """

    what: str
    folder: str
    before: str | None
    committed: str
    built: BuildReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompareReport:
    """What a rebuild would change and build. Of an index, ``built.index_files`` counts the existing files."""

    what: str
    folder: str
    committed: str
    built: BuildReport
    differences: tuple[QueueDifference | IndexDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether a rebuild would change nothing."""
        return all(row.is_equal for row in self.differences)

    @property
    def has_keys_outside(self) -> bool:
        """Whether one of the differences is of keys outside the ranges of all index files."""
        return any(isinstance(row, IndexDifference) and row.file is None for row in self.differences)


def compare(
    path: str | os.PathLike[str],
    what: str,
    *,
    files: FileSettings | None = None,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompareReport:
    """Compare ``consumequeue`` or ``index`` of a store with its log. Writes nothing.

    `options` are those of a read that choose a store and its committed bound. Raises StoreError if the store cannot be
    read or its committed bound is unknown; OptionError for a wrong `what` or option.
    """
    store = _Store(path, what, files or FileSettings(), options or {})
    differences: Sequence[QueueDifference | IndexDifference]
    if what == QUEUES:
        built, differences = compare_queues(store.log, store.root, store.settings, progress)
    else:
        built, differences = compare_index(store.log, store.root, store.settings, progress)
    notes = (*store.size_notes(), *_notes(store.root, what, built))
    return CompareReport(what, str(store.root / what), store.committed, built, tuple(differences), notes)


def rebuild(
    path: str | os.PathLike[str],
    what: str,
    *,
    out: str | os.PathLike[str] | None = None,
    files: FileSettings | None = None,
    run: MapParts = map_here,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> RebuildReport:
    """Build ``consumequeue`` or ``index`` of a store from its log, and replace the old folder.

    The old folder is kept next to the new one; if both are the same, byte for byte, the old one stays in place. With
    `out`, a new or empty folder, it is built there and the store is only read. `options` are those of a read that
    choose a store and its committed bound.

    Raises StoreError if a broker or a node has the store open, if the log changes meanwhile, if the committed bound is
    unknown, or if the disk fails; OptionError for a wrong `what` or option.
    """
    store = _Store(path, what, files or FileSettings(), options or {})
    target = _checked_out(store.root, out) if out is not None else swap.building_folder(store.root, what)
    if out is None:
        store.check_can_be_replaced()
    with target_errors(target, "rebuild"), locked(store.root) if out is None else nullcontext():
        leftover = swap.finish_interrupted(store.root, what, builder.PARTS) if out is None else None
        notes = [*([leftover] if leftover is not None else []), *store.size_notes()]
        built = store.build(target, run, progress)
        shutil.rmtree(target / builder.PARTS, ignore_errors=True)  # of an earlier run
        before, note = store.put_in_place(built) if out is None else (None, None)
        notes += [note] if note is not None else []
    folder = (store.root if out is None else target) / what
    return RebuildReport(what, str(folder), before, store.committed, built, (*notes, *_notes(store.root, what, built)))


def _checked_out(root: Path, out: str | os.PathLike[str]) -> Path:
    """The folder to build in. Raises StoreError if it is in the store, or has more than an interrupted rebuild left."""
    text = os.fspath(out)
    if is_remote(text):
        raise OptionError(f"out: expected a local folder, found the URI {as_uri(text)}")
    target = Path(without_file_scheme(text)).absolute()
    if not is_remote_path(root) and target.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{target}: the folder is in the store {root}: name another folder")
    if target.exists() and (not target.is_dir() or {path.name for path in target.iterdir()} - {builder.PARTS}):
        raise StoreError(f"{target}: expected a new or empty folder: name another one")
    return target


class _Store:
    """A store, and what is rebuilt in it."""

    def __init__(
        self, path: str | os.PathLike[str], what: str, files: FileSettings, options: Mapping[str, Any]
    ) -> None:
        if what not in WHATS:
            raise OptionError(f"expected {QUEUES} or {INDEX} to rebuild, found {what}")
        read_options = parse_options(options)
        check_use(read_options, REBUILD)
        self.what = what
        self.log = StoreView(os.fspath(path), read_options)
        self.root = queue_root(self.log)
        databases = rocks_folders(self.root) if what == QUEUES else []
        if databases:
            raise StoreError(
                f"{databases[0]}: expected ConsumeQueue files, found a RocksDB, which only a broker can build: stop "
                "the broker, move the folder away, create the empty file abort, and start it with "
                "commitLogRecoverMaxNum above the number of CommitLog files"
            )
        self._roots = [self.root]
        if files.broker_conf is None:
            # The members of a group have files of one size, unless a broker.conf says otherwise.
            self._roots += [each.paths.root for each in self.log.replicas if each.paths.root is not None]
        self.bound = self._find_bound()
        end = None if self.bound is None else self.log.position_of((self.bound.index or 0) + 1)
        self._files, self._end = files, end
        _settings(self._roots, files)  # raises for wrong ones before anything is locked

    def _find_bound(self) -> Bound | None:
        """The committed bound; None for a plain CommitLog, which is committed as a whole."""
        if not self.log.ledger_segments:
            return None
        bound = committed_bound(self.log, self.log.options)
        if bound.index is None:
            raise StoreError(
                f"{self.log.path}: the committed index is unknown ({bound.reason}), and a broker's queues and index "
                "have only committed messages: committedBound=end trusts the end of the log"
            )
        return bound

    @property
    def settings(self) -> BuildSettings:
        """The sizes as given, or of the existing files."""
        given = self._files.index_tags
        index_tags = self.what == INDEX and (has_tag_units(self.log) if given is None else given)
        return replace(_settings(self._roots, self._files), to=self._end, index_tags=index_tags)

    def size_notes(self) -> Iterator[str]:
        """Notes on sizes that are neither given nor known from existing files."""
        files, settings = self._files, self.settings
        if files.broker_conf is not None:
            return
        are_known = files.units_per_file or builder.common_units_per_file(self._roots)
        if self.what == QUEUES and not are_known:
            yield (
                f"files have {settings.units_per_file} units, RocketMQ's default: a broker with another "
                "mappedFileSizeConsumeQueue does not start on them (set it with --units-per-file or --broker-conf)"
            )
        is_given = files.hash_slots is not None and files.index_units is not None
        if self.what == INDEX and not is_given and _first(builder.last_index_sizes, self._roots) is None:
            yield (
                f"files have {settings.hash_slots} slots and {settings.index_units} units, by default RocketMQ's: a "
                "broker with another maxHashSlotNum or maxIndexNum does not find keys in them (set them with "
                "--hash-slots and --index-units, or --broker-conf)"
            )

    @property
    def committed(self) -> str:
        if self.bound is None:
            return "all of the CommitLog"
        return f"up to index {self.bound.index} ({self.bound.source})"

    def check_can_be_replaced(self) -> None:
        """Raises StoreError if the folder cannot be replaced, or has queues that are not rebuilt."""
        if is_remote_path(self.root):
            raise StoreError(
                f"{self.root}: expected a local store, found a remote one, which is only read: build elsewhere (out, "
                "--out)"
            )
        swap.check_replaceable(self.root, self.what)
        light = next(
            (queue for queue in file_queues(self.root, skip_too_large) if queue.topic.startswith(_LIGHT_PREFIX)), None
        )
        if self.what == QUEUES and light is not None:
            raise StoreError(
                f"{self.root / QUEUES}: the light message queue {light.topic} is not rebuilt and would be lost: build "
                "elsewhere (out, --out), and copy that queue"
            )

    def build(self, target: Path, run: MapParts, progress: Progress | None) -> BuildReport:
        """Build, and check that the log is unchanged."""
        try:
            built = builder.build(
                self.log,
                target,
                folders=(self.what,),
                settings=self.settings,
                run=run,
                keep_from=self.root,
                progress=progress,
            )
            self._check_unchanged()
        except (Exception, KeyboardInterrupt):
            # The disk may be full.
            shutil.rmtree(target / self.what, ignore_errors=True)
            raise
        return built

    def _check_unchanged(self) -> None:
        if _extent(self.log.refreshed()) != _extent(self.log):
            raise StoreError(
                f"{self.root}: the log changed during the rebuild: stop the program that writes it, and rebuild again"
            )

    def put_in_place(self, built: BuildReport) -> tuple[str | None, str | None]:
        """Replace the old folder, and adjust the store's checkpoint to the new one.

        Returns the new name of the old folder, or a note if it stays.
        """
        checkpoint = read_store_checkpoint(self.root)
        if self.what == QUEUES and built.last_stored < checkpoint.logics_msg_timestamp:
            # A broker that crashed begins its dispatch there.
            write_store_checkpoint(self.root, checkpoint._replace(logics_msg_timestamp=built.last_stored))
        note = self._leave_if_same()
        before = swap.swap_in(self.root, self.what) if note is None else None
        if self.what == INDEX:
            # After a crash RocketMQ deletes index files that are newer than this.
            headers = [read_header(path) for path in index_files(self.root)]
            last = max((header.end_timestamp for header in headers if header is not None), default=0)
            if last > checkpoint.index_msg_timestamp:
                write_store_checkpoint(self.root, checkpoint._replace(index_msg_timestamp=last))
        return before, note

    def _leave_if_same(self) -> str | None:
        """Remove the new folder if the old one is the same. Returns a note then, else None."""
        built, old = swap.building_folder(self.root, self.what) / self.what, self.root / self.what
        # The names of index files are their creation times.
        if not swap.has_same_files(built, old, has_fixed_names=self.what == QUEUES):
            return None
        try:
            changed = swap.copy_times(built, old) if self.what == QUEUES else 0
        except OSError:
            return None  # times of another user's files cannot be set
        swap.drop_built(self.root, self.what)
        times = f"; {changed} of its files got the times of their last messages" if changed else ""
        return f"nothing changed: the old folder is the same, byte for byte, and stays{times}"


def _extent(log: StoreView) -> tuple[object, ...]:
    """The beginning and end of a log, which change when it is written, truncated, or expires."""
    ends = [(segment.base, end.pos, end.last_index, end.last_term) for segment, end in log.ends.values()]
    return ([segment.base for segment in log.segments], sorted(ends))


def _notes(root: Path, what: str, built: BuildReport) -> Iterator[str]:
    """Notes on what was built."""
    if built.missing_bytes:
        yield f"{built.missing_bytes} bytes of the log are in missing files: their messages are left out"
    if built.skipped:
        yield f"{counted(built.skipped, 'row')} of the log cannot be in a queue; the first: {built.first_skipped}"
    if what != QUEUES:
        return
    yield from builder.notes_of_queues(built)
    yield from builder.advice_on_lost(built)
    if built.kept:
        yield f"kept: {counted(built.kept, 'unit')} of expired messages"
    if built.ext_units:
        units = counted(built.ext_units, "unit has", "units have")
        yield f"{units} an address in consumequeue_ext, which is not rebuilt"
    topics = sorted(builder.batch_topics_of(root))
    if built.batches or topics:
        text = f", such as those of {', '.join(topics[:8])}," if topics else ""
        messages = counted(built.batches, "message is", "messages are")
        yield f"{messages} in batchconsumequeue: its queues{text} are not rebuilt"


_Sizes = TypeVar("_Sizes")


def _first(sizes_of: Callable[[Path], _Sizes | None], roots: Sequence[Path]) -> _Sizes | None:
    """The sizes that the files of the first root show that has any."""
    return next((sizes for sizes in map(sizes_of, roots) if sizes is not None), None)


def _settings(roots: Sequence[Path], files: FileSettings) -> BuildSettings:
    """The given sizes, else those of existing files, else the broker's."""
    conf = read_dispatch_settings(files.broker_conf) if files.broker_conf is not None else DispatchSettings()
    units = files.units_per_file or builder.common_units_per_file(roots) or conf.units_per_file
    slots, index_units = _first(builder.last_index_sizes, roots) or (conf.hash_slots, conf.index_units)
    return BuildSettings(
        units_per_file=units,
        hash_slots=files.hash_slots or slots,
        index_units=files.index_units or index_units,
        delays_ms=conf.delays_ms,
    )
