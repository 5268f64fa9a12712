"""Writes a broker's files of a salvaged store: ConsumeQueues, index of keys, checkpoint and configuration."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir, write_durably
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.epoch_file import FILE as EPOCHS
from pyspark_dledger.format.epoch_file import encode_epochs
from pyspark_dledger.log.io.epochs import is_of_controller_mode, read_epochs
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.broker.broker_metadata import TOPIC_NAME, TOPICS, BrokerMetadata
from pyspark_dledger.rocketmq.broker.config_files import FOLDER as CONFIG
from pyspark_dledger.rocketmq.broker.config_files import MAX_QUEUES, ConfigFile, read_config_file
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS
from pyspark_dledger.rocketmq.export.commit_log.broker_files import BROKER_FILES, sizes_of, write_checkpoint
from pyspark_dledger.rocketmq.index_file.tag_units import has_tag_units
from pyspark_dledger.rocketmq.rebuild import builder
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, UnitSpec

_BAK = ".bak"
# Folders of a broker that are not rebuilt from the log.
_LEFT_OUT = ("batchconsumequeue", "consumequeue_ext", "timerwheel", "timerlog", "rocksdbstore", "compaction")


def roots_of(stores: Iterable[StoreView]) -> list[Path]:
    """The storePathRootDirs of the sources, each once."""
    return list(dict.fromkeys(store.paths.root for store in stores if store.paths.root is not None))


def clear(target: Path) -> None:
    """Remove what an earlier run wrote."""
    for name in BROKER_FILES:
        path = target / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def unit_spec(stores: Sequence[StoreView], engine: str, topics_from_log: bool) -> UnitSpec | None:
    """What to extract from the log for queues and keys; None if no source has queues, and nothing needs them."""
    root = _root_with_queues(roots_of(stores))
    if root is None and not topics_from_log:
        return None
    return UnitSpec(True, DELAYS_MS, builder.batch_topics_of(root), engine, any(map(has_tag_units, stores)))


def write_broker_files(
    roots: Sequence[Path],
    log: StoreView,
    target: Path,
    units: Iterable[DispatchedUnits] | None,
    topics_from_log: bool,
) -> Iterator[str]:
    """Write the files of a broker if a source has them; returns notes. Raises StoreError, OSError.

    ``units`` are those of the log, as `unit_spec` says.
    """
    with_queues = _root_with_queues(roots)
    if units is not None:
        built = builder.build_from_units(units, log, target, builder.BuildSettings(*_sizes(roots)), with_queues)
        write_checkpoint(target, built.last_stored)
        yield from builder.notes_of_queues(built)
    yield from copy_config(roots, target)
    if topics_from_log and not (target / CONFIG / TOPICS).exists():
        yield _write_topics(roots, target)
    for name in _LEFT_OUT:
        having = next((root / name for root in roots if (root / name).exists()), None)
        if having is not None:
            yield f"{name} is not salvaged: if the broker needs it, copy {having}"
    sync_dir(target)


def write_epochs(sources: Sequence[StoreView], end: int, target: Path) -> Iterator[str]:
    """Write the epochs of a log that ends at `end`, if it is of controller mode; returns notes.

    They are those of the first of the `sources`, which have this log, with an intact file.
    """
    (target / EPOCHS).unlink(missing_ok=True)
    roots = [root for root in roots_of(sources) if is_of_controller_mode(root)]
    found = next((epochs for root in roots if (epochs := read_epochs(root)[0])), ())
    if found:
        # Java drops epochs that begin at the end of the log or after it.
        write_durably(target / EPOCHS, encode_epochs([epoch for epoch in found if epoch.start < end]))
    elif roots:
        yield f"{EPOCHS} is damaged in all sources: the result has none, so its master must be chosen by hand"


def _root_with_queues(roots: Sequence[Path]) -> Path | None:
    return next((root for root in roots if (root / QUEUES).is_dir()), None)


# The broker makes them itself.
_SYSTEM_TOPICS = re.compile(
    "(?i:rmq_sys_.*)|SCHEDULE_TOPIC_XXXX|TBW102|BenchmarkTest|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT"
)


def _write_topics(roots: Sequence[Path], target: Path) -> str:
    """Write ``topics.json`` for the queues of the result and of the sources; returns a note."""
    counts: dict[str, int] = {}
    for queue in (queue for root in (target, *roots) for queue in queues(root, lambda _: None)):
        if TOPIC_NAME.fullmatch(queue.topic) and not _SYSTEM_TOPICS.fullmatch(queue.topic):
            counts[queue.topic] = max(counts.get(queue.topic, 0), min(queue.queue_id + 1, MAX_QUEUES))
    BrokerMetadata(target).add_topics(counts)
    return (
        f"{CONFIG}/{TOPICS} is built from the log: {counted(len(counts), 'topic')}, each to read and write, with as "
        "many queues as its highest queue id shows, unordered; topics without messages are missing"
    )


def _sizes(roots: Sequence[Path]) -> tuple[int, int, int]:
    """Units of a ConsumeQueue file, slots and units of an index file: those of the first source that shows them."""
    default = sizes_of(None)
    units = next((count for root in roots if (count := builder.common_units_per_file(root))), default.units_per_file)
    index = next((sizes for root in roots if (sizes := _index_sizes(root))), None)
    return units, *(index or (default.hash_slots, default.index_units))


def _index_sizes(root: Path) -> tuple[int, int] | None:
    try:
        return builder.last_index_sizes(root)
    except (OSError, StoreError):
        return None


def copy_config(roots: Sequence[Path], target: Path) -> Iterator[str]:
    """Copy each ``config/*.json`` from the first source where it or its ``.bak`` is intact."""
    names = sorted({name for root in roots for name in _config_names(root / CONFIG)})
    for name in names:
        found = next((file for root in roots if (file := _intact(root / CONFIG / name)) is not None), None)
        if found is None:
            yield f"{CONFIG}/{name}: damaged in all sources, also its {_BAK}: it is left out"
            continue
        (target / CONFIG).mkdir(exist_ok=True)
        write_durably(target / CONFIG / name, found.data)
    if names:
        sync_dir(target / CONFIG)
    elif any((root / QUEUES).is_dir() for root in roots):
        yield f"no source has {CONFIG}/: topics and consumer offsets must be created again"


def _config_names(folder: Path) -> Iterator[str]:
    for file in folder.iterdir() if folder.is_dir() else ():
        name = file.name.removesuffix(_BAK)
        if name.endswith(".json"):
            yield name


def _intact(file: Path) -> ConfigFile | None:
    try:
        return read_config_file(file)
    except StoreError:
        return None
