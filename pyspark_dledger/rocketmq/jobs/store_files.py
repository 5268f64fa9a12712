"""Writes the files of a new store other than its log: those of a broker, and those of a DLedger node."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir, write_durably, write_in_place
from pyspark_dledger.common.plurals import counted, enumerated
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, INDEX_UNIT_SIZE, segment_name
from pyspark_dledger.format.state_files import (
    COMMITTED_INDEX,
    CURR_TERM,
    END_INDEX,
    VOTE_LEADER,
    CurrentTerm,
    encode_epochs,
    encode_state_file,
)
from pyspark_dledger.format.state_files import EPOCH_FILE as EPOCHS
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.broker_config import (
    MAX_QUEUES,
    TABLES,
    TOPICS,
    ConfigFile,
    read_newest,
)
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.io.files import data_extents, is_remote_path, is_there
from pyspark_dledger.log.io.key_files import FOLDER as INDEX
from pyspark_dledger.log.io.queue_files import FOLDER as QUEUES
from pyspark_dledger.log.io.queue_files import file_queues
from pyspark_dledger.log.io.rocks_config import config_databases
from pyspark_dledger.log.io.rocks_database import UnreadDatabaseError
from pyspark_dledger.log.io.salvage_fillers import DECIDED_FILE, LOST_FILE
from pyspark_dledger.log.io.state_files import (
    CHECKPOINT,
    StoreCheckpoint,
    is_of_controller_mode,
    read_current_term,
    read_epochs,
)
from pyspark_dledger.log.io.store_use import MANIFEST
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.broker.config_files import (
    TOPIC_NAME,
    BrokerMetadata,
    as_file,
    with_higher_counter,
)
from pyspark_dledger.rocketmq.broker.index_writer import HASH_SLOTS, INDEX_UNITS
from pyspark_dledger.rocketmq.broker.queue_writer import UNITS_PER_FILE
from pyspark_dledger.rocketmq.broker.root_files import ABORT, write_store_checkpoint
from pyspark_dledger.rocketmq.jobs.new_files import BLOCK_BYTES, BlockFile, file_report, read_back_error
from pyspark_dledger.rocketmq.jobs.target_folder import STATE_FOLDER, FileReport, new_file
from pyspark_dledger.rocketmq.rebuild import builder
from pyspark_dledger.rocketmq.rebuild.builder import BuildReport, BuildSettings
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits

LEFT_OUT = {
    "batchconsumequeue": "messages of its topics are in the log but in no queue",
    "consumequeue_ext": "messages are filtered by tags without it",
    "timerlog": "the broker finds messages of timers in rmq_sys_wheel_timer, and may deliver each more than once",
    "timerwheel": "the broker builds it from timerlog",
    "rocksdbstore": "the broker needs it where it keeps timers, transactions or keys there",
    "kvStore": "popped messages that are not acknowledged are not delivered again",
    "compaction/compactionLog": "topics that are compacted need it",
}
"""The folders of a broker that are neither copied nor built from the log, and what that means."""

_WITH_POSITIONS = ("batchconsumequeue", "timerlog", "timerwheel", "rocksdbstore")

Row = Mapping[str, object]
_WRITTEN = (QUEUES, INDEX, CONFIG, CHECKPOINT, ABORT)
_BAK = ".bak"
_DEFAULT_FILE_SIZE = 1024**3
# The broker makes them itself.
SYSTEM_TOPICS = re.compile(
    "(?i:rmq_sys_.*)|SCHEDULE_TOPIC_XXXX|TBW102|BenchmarkTest|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT"
)


def roots_of(stores: Iterable[StoreView]) -> list[Path]:
    """The storePathRootDirs of the sources, each once."""
    return list(dict.fromkeys(store.paths.root for store in stores if store.paths.root is not None))


def root_with_queues(roots: Iterable[Path]) -> Path | None:
    """The first root that has ConsumeQueues."""
    return next((root for root in roots if (root / QUEUES).is_dir()), None)


def clear(target: Path) -> None:
    """Remove what an earlier run wrote."""
    for name in _WRITTEN:
        path = target / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def small_files(target: Path) -> list[FileReport]:
    """The reports of the written files that are neither queues nor index. Raises OSError."""
    paths = [target / CHECKPOINT, target / ABORT, *sorted((target / CONFIG).glob("*"))]
    return [file_report(path, str(path.relative_to(target)), 0) for path in paths if path.exists()]


def write_lists(target: Path, lost: Iterable[Row], decided: Iterable[Row]) -> list[FileReport]:
    """Write what a salvage lost and what it had no proof for, a JSON object a line; no file without rows."""
    reports = []
    for name, rows in ((LOST_FILE, lost), (DECIDED_FILE, decided)):
        (target / name).unlink(missing_ok=True)
        if text := "".join(f"{json.dumps(row)}\n" for row in rows):
            write_durably(target / name, text.encode())
            reports.append(file_report(target / name, name, 0))
    return reports


# Queues and index


def sizes_of(roots: Sequence[Path]) -> BuildSettings:
    """Units of a ConsumeQueue file, as most roots have; slots and units of an index file, of the first with one."""
    units = builder.common_units_per_file(roots) or UNITS_PER_FILE
    index = next((sizes for root in roots if (sizes := _index_sizes(root))), (HASH_SLOTS, INDEX_UNITS))
    return BuildSettings(units, *index)


def _index_sizes(root: Path) -> tuple[int, int] | None:
    try:
        return builder.last_index_sizes(root)
    except (OSError, StoreError):
        return None


def build_queues_and_index(
    units: Iterable[DispatchedUnits],
    log: StoreView,
    target: Path,
    sizes: BuildSettings,
    keep_from: Path | None,
    ends: Mapping[QueueName, int] | None = None,
) -> BuildReport:
    """Build ConsumeQueues and index of the log at the target from its units, and write the checkpoint.

    The checkpoint says that log, queues and index are on disk, and, for controller mode, that all of the log is
    confirmed: without that, RocketMQ 5.2 to 5.5 reads the whole log at each start, and rejects messages of version 2.

    Raises StoreError, OSError.
    """
    built = builder.build(log, target, settings=sizes, units=units, keep_from=keep_from, ends=ends)
    last = built.last_stored
    write_store_checkpoint(target, StoreCheckpoint(last, last, last, confirm_phy_offset=max(log.max_offset, 0)))
    sync_dir(target)
    return built


def write_abort(target: Path) -> None:
    """Let a broker recover as after a crash: 5.x builds missing queues only then."""
    write_durably(target / ABORT, b"")
    sync_dir(target)


def write_epochs(sources: Sequence[StoreView], end: int, target: Path) -> Iterator[str]:
    """Write the epochs of a log that ends at `end`, if it is of controller mode; returns notes.

    All `sources` have this log, and each can lack its last epochs, so those of the latest one are written.
    """
    (target / EPOCHS).unlink(missing_ok=True)
    roots = [root for root in roots_of(sources) if is_of_controller_mode(root)]
    # Java drops epochs that begin at the end of the log or after it.
    known = ([epoch for epoch in read_epochs(root)[0] if epoch.start < end] for root in roots)
    found = max(known, key=lambda epochs: epochs[-1:], default=[])
    if found:
        write_durably(target / EPOCHS, encode_epochs(found))
    elif roots:
        yield f"{EPOCHS} is damaged in all sources: the result has none, so its master must be chosen by hand"


# Configuration


def copy_config(roots: Sequence[Path], target: Path, *, for_new_broker: bool = False) -> Iterator[str]:
    """Copy each ``config/*.json`` from the first source where it or its ``.bak`` is intact; returns notes.

    They have topics, subscription groups and consumer offsets. Those in a RocksDB become files. A new broker may keep
    them in a RocksDB, and takes over no file with the counter 0, as after few commits: that is raised.
    """
    names = sorted({name for root in roots for name in _config_names(root / CONFIG)})
    converted = []
    for name in names:
        problems: list[StoreError] = []
        found = next((file for root in roots if (file := _intact(root / CONFIG, name, problems)) is not None), None)
        if found is None:
            yield from _left_out(name, problems)
            continue
        (target / CONFIG).mkdir(exist_ok=True)
        is_raised = for_new_broker and not found.counter and bool(found.content.get(TABLES.get(name, "")))
        write_durably(target / CONFIG / name, (with_higher_counter if is_raised else as_file)(found).data)
        if not found.data:
            converted.append(name)
    if converted:
        yield (
            f"{CONFIG}/: what was in a RocksDB is in {enumerated(converted)}, which a broker takes over when it "
            "starts, but not with configManagerVersion=v2"
        )
    if (target / CONFIG).is_dir():
        sync_dir(target / CONFIG)
    elif not names and root_with_queues(roots) is not None:
        yield f"no source has {CONFIG}/: topics and consumer offsets must be created again"


def _config_names(folder: Path) -> Iterator[str]:
    """The files in a folder ``config``, and those that its databases can have the content of."""
    for file in folder.iterdir() if folder.is_dir() else ():
        name = file.name.removesuffix(_BAK)
        if name.endswith(".json"):
            yield name
    yield from TABLES if config_databases(folder) else ()


def _intact(folder: Path, name: str, problems: list[StoreError]) -> ConfigFile | None:
    """The file, its ``.bak`` or its RocksDB; None without one.

    None and an error in `problems` if it is damaged, or if one is a link, which could lead anywhere.
    """
    sources = (folder / name, folder / f"{name}{_BAK}", *config_databases(folder))
    try:
        if not is_remote_path(folder) and any(path.is_symlink() for path in sources):
            raise StoreError(f"{folder / name}: expected files, found a link")
        return read_newest(folder, name)
    except StoreError as error:
        problems.append(error)
        return None


def _left_out(name: str, problems: Sequence[StoreError]) -> Iterator[str]:
    unread = next((problem for problem in problems if isinstance(problem, UnreadDatabaseError)), None)
    if unread is not None:
        yield f"{CONFIG}/{name} is left out: its content is in a RocksDB, and {unread.reason}"
    elif problems:
        yield f"{CONFIG}/{name}: damaged or a link in all sources, also its {_BAK}: it is left out"


def write_topics(roots: Sequence[Path], target: Path) -> Iterator[str]:
    """Write ``topics.json`` for the queues of the result and of the sources, if it has none; returns a note."""
    if (target / CONFIG / TOPICS).exists():
        return
    counts: dict[str, int] = {}
    for queue in (queue for root in (target, *roots) for queue in file_queues(root, lambda _: None)):
        if TOPIC_NAME.fullmatch(queue.topic) and not SYSTEM_TOPICS.fullmatch(queue.topic):
            counts[queue.topic] = max(counts.get(queue.topic, 0), min(queue.queue_id + 1, MAX_QUEUES))
    BrokerMetadata(target).add_topics(counts)
    yield (
        f"{CONFIG}/{TOPICS} is built from the log: {counted(len(counts), 'topic')}, each to read and write, with as "
        "many queues as its highest queue id shows, unordered; topics without messages are missing"
    )


def notes_of_left_out(roots: Sequence[Path], done: str, has_moved: bool = False) -> Iterator[str]:
    """Notes on folders of the sources that the result does not have, because they are not `done`, such as copied.

    If it `has_moved` messages, positions in such a folder are wrong for it.
    """
    for name, meaning in LEFT_OUT.items():
        having = next((root / name for root in roots if _has_content(root / name)), None)
        if having is not None:
            is_wrong = has_moved and name in _WITH_POSITIONS
            advice = "do not copy it, its positions are old" if is_wrong else f"if the broker needs it, copy {having}"
            yield f"{name} is not {done}: {advice}; {meaning}"


def _has_content(path: Path) -> bool:
    """Whether a file or folder is there and not empty: brokers make some folders that they never use."""
    return any(path.iterdir()) if path.is_dir() else is_there(path)


def broker_conf(target: Path, file_size: int, sizes: BuildSettings) -> dict[str, str]:
    """The settings that a broker needs to serve a storePathRootDir with files of these sizes."""
    sizes_and_defaults = {
        "mappedFileSizeCommitLog": (file_size, _DEFAULT_FILE_SIZE),
        "mappedFileSizeConsumeQueue": (
            sizes.units_per_file * CONSUME_QUEUE_UNIT_SIZE,
            UNITS_PER_FILE * CONSUME_QUEUE_UNIT_SIZE,
        ),
        "maxHashSlotNum": (sizes.hash_slots, HASH_SLOTS),
        "maxIndexNum": (sizes.index_units, INDEX_UNITS),
    }
    return {
        "enableDLegerCommitLog": "false",
        **paths_in_conf(target),
        **{name: str(value) for name, (value, default) in sizes_and_defaults.items() if value != default},
    }


def paths_in_conf(target: Path) -> dict[str, str]:
    """The settings of a broker that name its store."""
    return {"storePathRootDir": str(target), "storePathCommitLog": str(target / "commitlog")}


def copy_rest(source: Path, target: Path) -> None:
    """Copy all files of a finished job that another one with the same log has not, and read them back.

    Holes stay holes. Raises StoreError for a copy that differs, OSError.
    """
    clear(target)
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source)
        if file.is_file() and name.parts[0] not in (MANIFEST, STATE_FOLDER) and not (target / name).exists():
            with new_file(target, str(name)) as temporary:
                _copy_file(file, temporary, str(target / name))
                shutil.copymode(file, temporary)


def _copy_file(source: Path, target: Path, name: str) -> None:
    size = source.stat().st_size
    with source.open("rb") as file, BlockFile(target) as copy:
        for start, end in data_extents(file.fileno(), 0, size):
            copy.skip_to(start)
            for offset in range(start, end, BLOCK_BYTES):
                copy.write(os.pread(file.fileno(), min(BLOCK_BYTES, end - offset), offset))
        copy.finish(name, size, size)


INDEX_FILE_SIZE = 32 * 5 * 1024 * 1024
"""DLedger's default, in bytes."""


def index_file_size(stores: Iterable[StoreView]) -> int:
    """The size of most index files of the stores; DLedger's default without any."""
    sizes = Counter(
        file.size
        for store in stores
        for file in store.index_files.files
        if file.size and not file.size % INDEX_UNIT_SIZE
    )
    return sizes.most_common(1)[0][0] if sizes else INDEX_FILE_SIZE


def write_index(folder: Path, first_index: int, chunks: Iterable[bytes], file_size: int) -> int:
    """Write index units from `first_index` on, and read them back. Returns the number of files. Raises OSError."""
    folder.mkdir(parents=True)
    at = first_index * INDEX_UNIT_SIZE
    names = set()
    for chunk in chunks:
        offset = 0
        while offset < len(chunk):
            base = (at + offset) // file_size * file_size
            part = chunk[offset : offset + base + file_size - (at + offset)]
            file = folder / segment_name(base)
            names.add(file.name)
            write_in_place(file, part, at + offset - base, file_size, 0o644)
            offset += len(part)
        found = DLedgerIndex(folder).read(at // INDEX_UNIT_SIZE, len(chunk) // INDEX_UNIT_SIZE).tobytes()
        if found != chunk:
            raise read_back_error(str(folder), f"the units from index {at // INDEX_UNIT_SIZE} on", "others")
        at += len(chunk)
    sync_dir(folder)
    return len(names)


def write_checkpoint(node_dir: Path, committed_index: int, end_index: int) -> None:
    """Write the checkpoint of a new store. Raises OSError."""
    data = encode_state_file({COMMITTED_INDEX: committed_index, END_INDEX: end_index})
    write_durably(node_dir / "checkpoint", data)


def current_term(stores: Sequence[StoreView], node: str, last_term: int) -> tuple[CurrentTerm, str | None]:
    """The term and vote of the new node, and a note if they are not those of the node's own file.

    A node that forgets its vote could vote twice in one term. So it gets its own term and vote if a source has them,
    else the highest term of all sources and the vote in it.
    """
    found = [(store.paths.node, read_current_term(store.paths.node_dir)[0]) for store in stores if store.paths.node_dir]
    known = [(name, term) for name, term in found if term is not None and term.curr_term is not None]
    own = next((term for name, term in known if name == node), None)
    if own is not None and own.curr_term is not None and own.curr_term >= last_term:
        return own, None
    highest = max((term for _, term in known), key=lambda term: term.curr_term or 0, default=None)
    own_text = "no source has one" if highest is None else f"no source has that of {node}"
    if own is not None:
        own_text = f"that of {node} has term {own.curr_term}, before that of the last entry, {last_term}"
    if highest is not None and highest.curr_term is not None and highest.curr_term >= last_term:
        return highest, f"currterm: {own_text}; {node} gets term {highest.curr_term}, the highest of all"
    return CurrentTerm(last_term, None), f"currterm: {own_text}; {node} gets term {last_term}, that of the last entry"


def write_current_term(node_dir: Path, term: CurrentTerm) -> None:
    """Write the current term and vote of a new store. Raises OSError."""
    data = encode_state_file({VOTE_LEADER: term.vote_leader or "", CURR_TERM: term.curr_term})
    write_durably(node_dir / "currterm", data)


def check_node_id(node: str | None) -> str:
    """The id of the new node. Raises StoreError without one."""
    if not node or "/" in node:
        raise StoreError("the first source has no node id: give one (--id), such as n0")
    return node.removeprefix("dledger-")
