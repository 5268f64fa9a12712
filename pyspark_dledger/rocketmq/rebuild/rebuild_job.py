"""Rebuilding the ConsumeQueues or the index of keys of a store from its log. The log itself is only read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.uris import as_uri, is_remote, without_file_scheme
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log.committed import Bound, committed_bound
from pyspark_dledger.log.io.files import is_remote_path
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.option_uses import REBUILD, check_use
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.broker.broker_conf import read_dispatch_settings
from pyspark_dledger.rocketmq.broker.store_lock import locked
from pyspark_dledger.rocketmq.consume_queue.store_queues import queue_root
from pyspark_dledger.rocketmq.dispatch.dispatch_settings import DispatchSettings
from pyspark_dledger.rocketmq.index_file.index_file import FOLDER as INDEX
from pyspark_dledger.rocketmq.index_file.index_file import index_files, read_header
from pyspark_dledger.rocketmq.rebuild.builder import (
    BuildSettings,
    Built,
    Progress,
    batch_topics_of,
    build,
    notes_of_queues,
)
from pyspark_dledger.rocketmq.rebuild.differences import IndexDifference, QueueDifference, compare_index, compare_queues
from pyspark_dledger.rocketmq.rebuild.same import is_same, take_times
from pyspark_dledger.rocketmq.rebuild.sizes import MOST_UNITS, usual_index, usual_units
from pyspark_dledger.rocketmq.rebuild.swap import (
    building_folder,
    check_place,
    clear_leftover,
    drop_built,
    swap_in,
)
from pyspark_dledger.rocketmq.store_checkpoint import read_store_checkpoint, write_store_checkpoint
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

WHATS = (QUEUES, INDEX)

# What chooses a store, and how much of it is committed.
# Queues of a light message queue hold units of messages that stand in other queues (MixAll.LMQ_PREFIX).
_LIGHT_PREFIX = "%LMQ%"
_MOST_INDEX_UNITS = 2**31 - 1


@dataclass(frozen=True)
class FileSettings:
    """Sizes of the files that are built; None for those of the files that are there, else the broker's.

    ``units_per_file`` of a ConsumeQueue file, ``hash_slots`` and ``index_units`` of an index file. ``broker_conf`` is a
    broker.conf, which says them and the delay levels where nothing else does; without one RocketMQ's defaults hold.
    """

    units_per_file: int | None = None
    hash_slots: int | None = None
    index_units: int | None = None
    broker_conf: Path | None = None

    @classmethod
    def taken_from(cls, options: Mapping[str, Any]) -> tuple[FileSettings, dict[str, Any]]:
        """The settings among options (unitsPerFile, hashSlots, indexUnits, brokerConf), and what else there is.

        Names are in any case. Raises OptionError for a number that is none.
        """
        settings: dict[str, Any] = {}
        others = {}
        for name, value in options.items():
            field = _FILE_OPTIONS.get(name.lower())
            if field is None:
                others[name] = value
            elif value is not None:
                settings[field] = Path(value) if field == "broker_conf" else _number(name, value)
        return cls(**settings), others


_FILE_OPTIONS = {field.replace("_", ""): field for field in FileSettings.__dataclass_fields__}


def _number(name: str, value: object) -> int:
    if not re.fullmatch("[0-9]{1,10}", str(value)):
        raise OptionError(f"{name}: expected a whole number, found {value!r}")
    return int(str(value))


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild has done.

    ``folder`` is what was built, ``before`` the name under which the folder that was there is kept. It is None where
    there was none, and where what was there is the same and stays: a note says so then ("nothing changed").
    ``committed`` says up to where the log was taken, and why. ``notes`` are what one has to know.
    """

    what: str
    folder: str
    before: str | None
    committed: str
    built: Built
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """What a rebuild would change, and what it would build. ``index_files`` of an index are those that are there."""

    what: str
    folder: str
    committed: str
    built: Built
    differences: tuple[QueueDifference | IndexDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether nothing would change."""
        return all(row.is_equal for row in self.differences)


def compare(
    path: str | os.PathLike[str],
    what: str,
    *,
    files: FileSettings | None = None,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compared:
    """Hold ``consumequeue`` or ``index`` of a store against its log; nothing is written.

    `options` are those of a read that choose a store and its committed bound. Raises StoreError where the store cannot
    be read, or no committed bound is known; OptionError for a wrong `what` or option.
    """
    store = _Store(path, what, files or FileSettings(), options or {})
    differences: Sequence[QueueDifference | IndexDifference]
    if what == QUEUES:
        built, differences = compare_queues(store.log, store.root, store.settings, progress)
    else:
        built, differences = compare_index(store.log, store.root, store.settings, progress)
    notes = (*store.size_notes(), *_notes(store.root, what, built))
    return Compared(what, str(store.root / what), store.committed, built, tuple(differences), notes)


def rebuild(
    path: str | os.PathLike[str],
    what: str,
    *,
    out: str | os.PathLike[str] | None = None,
    files: FileSettings | None = None,
    run: MapParts = map_here,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Rebuilt:
    """Build ``consumequeue`` or ``index`` of a store anew from its log, and put it in the place of the old one.

    The old folder is kept beside it; where what was built is the same, byte for byte, it stays instead. With `out`, an
    empty or absent folder elsewhere, it is built there, and the store is only read. `options` are those of a read that
    choose a store and its committed bound.

    Raises StoreError where a broker or a node has the store, where it is written meanwhile, where no committed bound is
    known, where the disk fails; OptionError for a wrong `what` or option.
    """
    store = _Store(path, what, files or FileSettings(), options or {})
    target = _checked_out(store.root, out) if out is not None else building_folder(store.root, what)
    if out is None:
        store.check_can_be_replaced()
    try:
        with locked(store.root) if out is None else nullcontext():
            leftover = clear_leftover(store.root, what) if out is None else None
            notes = [*([leftover] if leftover is not None else []), *store.size_notes()]
            built = store.build(target, run, progress)
            before, note = store.put_in_place(built) if out is None else (None, None)
            notes += [note] if note is not None else []
    except OSError as error:
        raise StoreError(
            f"{error.filename or target}: expected to write {what}, found {error.strerror}: check the disk, and begin "
            "again"
        ) from error
    folder = (store.root if out is None else target) / what
    return Rebuilt(what, str(folder), before, store.committed, built, (*notes, *_notes(store.root, what, built)))


def _checked_out(root: Path, out: str | os.PathLike[str]) -> Path:
    """Raises StoreError where the folder is in the store, or has something in it."""
    text = os.fspath(out)
    if is_remote(text):
        raise OptionError(f"out {as_uri(text)}: expected a folder of this machine, found a URI")
    target = Path(without_file_scheme(text)).absolute()
    if not is_remote_path(root) and target.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{target}: expected a folder outside of the store {root}, found one in it: choose another")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target}: expected an empty folder, or none, found something there: choose another")
    return target


class _Store:
    """A store of which something is rebuilt."""

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
        self.bound = self._find_bound()
        end = None if self.bound is None else self.log.position_of((self.bound.index or 0) + 1)
        self._files, self._end = files, end
        _settings(self.root, files)  # wrong ones are told before anything is locked

    def _find_bound(self) -> Bound | None:
        """What is committed; None for a plain CommitLog, all of which is."""
        if not self.log.ledger_segments:
            return None
        bound = committed_bound(self.log, self.log.options)
        if bound.index is None:
            raise StoreError(
                f"{self.log.path}: expected a committed index, because a broker puts only what is committed into its "
                f"queues and index, found none ({bound.reason}): committedBound=end trusts the end of the log"
            )
        return bound

    @property
    def settings(self) -> BuildSettings:
        """Sizes as given, or of the files that are there now."""
        return replace(_settings(self.root, self._files), to=self._end)

    def size_notes(self) -> Iterator[str]:
        """What one has to know where nothing tells the sizes of files."""
        files, settings = self._files, self.settings
        if files.broker_conf is not None:
            return
        if self.what == QUEUES and files.units_per_file is None and usual_units(self.root) is None:
            yield (
                f"files have {settings.units_per_file} units, RocketMQ's default: with another "
                "mappedFileSizeConsumeQueue a broker does not start on them (say it with --units-per-file or "
                "--broker-conf)"
            )
        is_told = files.hash_slots is not None and files.index_units is not None
        if self.what == INDEX and not is_told and usual_index(self.root) is None:
            yield (
                f"files have {settings.hash_slots} slots and {settings.index_units} units, RocketMQ's default where "
                "nothing was said: with another maxHashSlotNum or maxIndexNum a broker does not find keys in them (say "
                "it with --hash-slots and --index-units, or --broker-conf)"
            )

    @property
    def committed(self) -> str:
        if self.bound is None:
            return "all of the CommitLog"
        return f"up to index {self.bound.index} ({self.bound.source})"

    def check_can_be_replaced(self) -> None:
        """Raises StoreError where the folder cannot be replaced, or has what is not built anew."""
        if is_remote_path(self.root):
            raise StoreError(
                f"{self.root}: expected a store on this machine, found a remote one, which is only read: build "
                "elsewhere (out, --out)"
            )
        check_place(self.root, self.what)
        light = next((queue for queue in queues(self.root) if queue.topic.startswith(_LIGHT_PREFIX)), None)
        if self.what == QUEUES and light is not None:
            raise StoreError(
                f"{self.root / QUEUES}: expected queues of which each message is in one, found the light message queue "
                f"{light.topic}, which would be lost: build elsewhere (out, --out), and copy that queue"
            )

    def build(self, target: Path, run: MapParts, progress: Progress | None) -> Built:
        """Build, and look whether the log is still the same."""
        is_queues = self.what == QUEUES
        try:
            built = build(
                self.log,
                target,
                queues=is_queues,
                index=not is_queues,
                settings=self.settings,
                run=run,
                keep_from=self.root,
                progress=progress,
            )
            self._check_unchanged()
        except (Exception, KeyboardInterrupt):
            # It may be the disk that is full.
            shutil.rmtree(target / self.what, ignore_errors=True)
            raise
        return built

    def _check_unchanged(self) -> None:
        if _extent(self.log.refreshed()) != _extent(self.log):
            raise StoreError(
                f"{self.root}: expected a log that nobody writes, found that it has changed meanwhile: stop who writes "
                "it, and begin again"
            )

    def put_in_place(self, built: Built) -> tuple[str | None, str | None]:
        """Replace the old folder, and let the store's checkpoint say no more and no less than what is there then.

        The name under which the old one is kept, and a note where it stays instead.
        """
        checkpoint = read_store_checkpoint(self.root)
        if self.what == QUEUES and built.last_stored < checkpoint.logics_msg_timestamp:
            # A broker that was not stopped begins its dispatch there.
            write_store_checkpoint(self.root, checkpoint._replace(logics_msg_timestamp=built.last_stored))
        note = self._leave_if_same()
        before = swap_in(self.root, self.what) if note is None else None
        if self.what == INDEX:
            # After an unclean end RocketMQ deletes the index files that are newer than this.
            headers = [read_header(path) for path in index_files(self.root)]
            last = max((header.end_timestamp for header in headers if header is not None), default=0)
            if last > checkpoint.index_msg_timestamp:
                write_store_checkpoint(self.root, checkpoint._replace(index_msg_timestamp=last))
        return before, note

    def _leave_if_same(self) -> str | None:
        """Remove what was built where the same is there already, and say so; None where it is not."""
        built, old = building_folder(self.root, self.what) / self.what, self.root / self.what
        # The names of index files are the times when they were made.
        if not is_same(built, old, has_fixed_names=self.what == QUEUES):
            return None
        try:
            changed = take_times(built, old) if self.what == QUEUES else 0
        except OSError:
            return None  # who may write in a folder may not set the times of files that are another's
        drop_built(self.root, self.what)
        times = f"; {changed} of its files got the times of their last messages" if changed else ""
        return f"nothing changed: what was built is, byte for byte, what is there, which stays{times}"


def _extent(log: StoreView) -> tuple[object, ...]:
    """Where a log begins and ends, by which is seen that it was written, cut, or has expired further."""
    ends = [(segment.base, end.pos, end.last_index, end.last_term) for segment, end in log.ends.values()]
    return ([segment.base for segment in log.segments], sorted(ends))


def _notes(root: Path, what: str, built: Built) -> Iterator[str]:
    """What one has to know of what was built."""
    if built.missing_bytes:
        yield f"{built.missing_bytes} bytes of the log are in files that are gone: their messages are left out"
    if built.skipped:
        yield f"{built.skipped} rows of the log are no messages of a queue: the first is {built.first_skipped}"
    if what != QUEUES:
        return
    yield from notes_of_queues(built)
    if built.kept:
        yield f"{built.kept} units of messages that have expired are kept"
    if built.ext_units:
        yield f"{built.ext_units} units keep their address in consumequeue_ext, which is not rebuilt"
    topics = sorted(batch_topics_of(root))
    if built.batches or topics:
        text = f", such as those of {', '.join(topics[:8])}" if topics else ""
        yield f"{built.batches} messages are in batchconsumequeue: its queues{text}, are not rebuilt"


def _settings(root: Path, files: FileSettings) -> BuildSettings:
    """Sizes that were given, else those of the files that are there, else the broker's."""
    conf = read_dispatch_settings(files.broker_conf) if files.broker_conf is not None else DispatchSettings()
    units = _checked("units_per_file", files.units_per_file, MOST_UNITS) or usual_units(root) or conf.units_per_file
    slots, index_units = usual_index(root) or (conf.hash_slots, conf.index_units)
    return BuildSettings(
        units_per_file=units,
        hash_slots=_checked("hash_slots", files.hash_slots, _MOST_INDEX_UNITS) or slots,
        index_units=_checked("index_units", files.index_units, _MOST_INDEX_UNITS, 2) or index_units,
        delays_ms=conf.delays_ms,
    )


def _checked(name: str, number: int | None, most: int, least: int = 1) -> int | None:
    if number is not None and not least <= number <= most:
        raise OptionError(f"{name}: expected a number from {least} to {most}, found {number}")
    return number
