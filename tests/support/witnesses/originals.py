"""Undamaged stores of every class: generated ones and the goldens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_dledger.format import codec, layout, message
from pyspark_dledger.log import open_log
from tests.support import golden
from tests.support.log_writer import Body, CommitLogWriter, DLedgerWriter, QueueWriter, Written

PLACE = ("kind", "index", "pos", "size")
TOPICS = ("Orders", "Payments", "T")


@dataclass
class Original:
    """An undamaged store: what to open, its entries, and the files that are damaged."""

    name: str
    path: Path
    entries: list[Written]
    data_files: list[Path]
    index_files: list[Path]
    index_folders: list[Path]
    options: dict[str, Any] = field(default_factory=dict)
    key_folders: list[Path] = field(default_factory=list)

    def base_of(self, file: Path) -> int:
        return int(file.name)


def _files_below(*folders: Path) -> list[Path]:
    found = [path for folder in folders for path in folder.rglob("*") if layout.is_segment_name(path.name)]
    return sorted(path for path in found if path.is_file())


def original_of(name: str, path: Path, entries: list[Written], **options: Any) -> Original:
    """The store at `path`, with the files that it has."""
    nodes = [path] if (path / "data").is_dir() else sorted(path.glob("dledger-*"))
    data = [*(node / "data" for node in nodes), path / "commitlog", *map(Path, options.get("dataDirs", ()))]
    indexes = [*(node / "index" for node in nodes), path / "consumequeue"]
    data_files = [file for file in _files_below(*data) if _is_written(file, entries)]
    present = [folder for folder in indexes if folder.is_dir()]
    keys = [] if path in nodes else [folder for folder in (path / "index",) if folder.is_dir()]
    return Original(name, path, entries, data_files, _files_below(*present), present, options, keys)


def _is_written(file: Path, entries: list[Written]) -> bool:
    base, size = int(file.name), file.stat().st_size
    return any(base <= entry.pos < base + size for entry in entries)


# Bodies


def _plain(rng: random.Random, size: int) -> Body:
    content = rng.randbytes(size)
    return lambda _: content


def _log_inside(rng: random.Random, near_index: int, term: int) -> Body:
    """A body with entries that name their own positions, as a backup of a log or a stored segment has them."""
    sizes = [rng.choice([0, 10, 30, 60]) for _ in range(rng.randint(1, 6))]
    first = near_index + rng.choice([-1, 0, 1, 1, 2, 3])
    lead, trail = rng.choice([0, 0, 7]), rng.choice([0, 0, 20])
    filler = rng.randbytes(60)

    def make(at: int) -> bytes:
        data = bytes(lead)
        for number, size in enumerate(sizes):
            data += codec.encode_entry(max(first + number, 0), term, at + len(data), filler[:size])
        return data + filler[:trail]

    return make


def _messages_inside(rng: random.Random) -> Body:
    sizes = [rng.choice([0, 20, 50]) for _ in range(rng.randint(1, 3))]

    def make(at: int) -> bytes:
        data = b""
        for size in sizes:
            data += message.encode_message(b"Inner", b"i" * size, at + len(data), store_timestamp=1700000000137)
        return data

    return make


def _message(rng: random.Random, queues: QueueWriter, embedded: bool) -> tuple[Body, str, int, str]:
    topic, queue_id = rng.choice(TOPICS), rng.randrange(2)
    # Clients give each message a key; few messages have none.
    key = f"{rng.getrandbits(64):016X}" if rng.random() < 0.98 else ""
    properties = b"UNIQ_KEY\x01%s\x02" % key.encode() if key else b""
    offset = queues.offset(topic, queue_id)
    inner = _messages_inside(rng) if embedded and rng.random() < 0.3 else _plain(rng, rng.choice([0, 20, 100, 300]))
    # The body begins after the fixed fields.
    start = len(message.encode_message(topic.encode(), b"", 0)) - len(topic) - 3

    def make(at: int) -> bytes:
        return message.encode_message(
            topic.encode(),
            inner(at + start),
            at,
            queue_id=queue_id,
            queue_offset=offset,
            born_timestamp=1700000000000,
            store_timestamp=1700000000137,
            properties=properties,
        )

    return make, topic, queue_id, key


# Generated stores


def _count(rng: random.Random) -> int:
    return rng.choice([60, 120, 200, 400])


def _append_entries(rng: random.Random, log: DLedgerWriter, count: int, term: int, embedded: float) -> None:
    sizes = rng.choice([[40], [0, 10, 100, 700], [0], [200, 210], [5, 1500]])
    for _ in range(count):
        index = log.entries[-1].index + 1 if log.entries else 0
        body = _log_inside(rng, index, term) if rng.random() < embedded else _plain(rng, rng.choice(sizes))
        log.append(body, term)


def _writer(rng: random.Random, **options: int) -> DLedgerWriter:
    return DLedgerWriter(rng.choice([4096, 16384, 65536]), rng.choice([64, 1024]), **options)


def _log_with_terms(rng: random.Random, log: DLedgerWriter, embedded: float = 0.0) -> int:
    term = rng.choice([-1, 0, 1])
    for _ in range(rng.randint(1, 4)):
        _append_entries(rng, log, max(_count(rng) // 3, 1), term, embedded)
        term += rng.choice([1, 1, 2])
    return term


def _saved(name: str, root: Path, log: DLedgerWriter, rng: random.Random) -> Original:
    committed = rng.choice([None, log.entries[-1].index, log.entries[rng.randrange(len(log.entries))].index])
    log.save(root / "dledger-n0", committed=committed)
    return original_of(name, root, log.entries)


def terms(rng: random.Random, root: Path) -> Original:
    log = _writer(rng)
    _log_with_terms(rng, log)
    return _saved("terms", root, log, rng)


def bodies(rng: random.Random, root: Path) -> Original:
    log = _writer(rng)
    _log_with_terms(rng, log, embedded=rng.choice([0.1, 0.5, 1.0]))
    return _saved("bodies", root, log, rng)


def rewritten(rng: random.Random, root: Path) -> Original:
    """Truncated once or twice, and written again with entries of a later term."""
    log = DLedgerWriter(rng.choice([16384, 65536, 65536]), rng.choice([64, 1024]))
    embedded = rng.choice([0.0, 0.0, 0.1])
    term = _log_with_terms(rng, log, embedded)
    kept = len(log.entries)
    for _ in range(rng.choice([1, 1, 2])):
        # Of a shorter log, one zeroed page leaves only what was truncated.
        kept = rng.randrange(max(kept - 150, min(30, kept - 1)), kept)
        log.truncate(kept)
        _append_entries(rng, log, rng.choice([1, 2, 5, 20, 60]), term, embedded)
        term += 1
    # What is committed was never truncated.
    committed = rng.choice([None, kept - 1, log.entries[-1].index])
    log.save(root / "dledger-n0", committed=committed)
    return original_of("rewritten", root, log.entries)


def older_terms(rng: random.Random, root: Path) -> Original:
    """Entries of a leader that was alone are overwritten by entries of an earlier term, which a later leader has."""
    log = DLedgerWriter(rng.choice([16384, 65536, 65536]), rng.choice([64, 1024]))
    embedded = rng.choice([0.0, 0.0, 0.1])
    term = _log_with_terms(rng, log, embedded)
    kept = len(log.entries)
    _append_entries(rng, log, rng.choice([5, 20, 150]), term + 1, embedded)
    stale = log.entries[kept:]
    log.truncate(kept)
    _append_entries(rng, log, rng.choice([1, 2, 5, 20, 60]), term, embedded)
    if rng.random() < 0.2:
        _append_entries(rng, log, rng.choice([1, 3]), term + 2, embedded)
    # Java, too, takes a stale entry that follows the last one for the log's next one.
    while any((old.pos, old.index) == (log.at, log.entries[-1].index + 1) for old in stale):
        log.append(_plain(rng, rng.choice([11, 51])), log.entries[-1].term)
    last = log.entries[-1].index
    committed, end = rng.choice([(None, None), (kept - 1, stale[-1].index), (kept - 1, last), (last, last)])
    log.save(root / "dledger-n0", committed=committed, end_index=end, current_term=term + 2)
    return original_of("older_terms", root, log.entries)


def version_040(rng: random.Random, root: Path) -> Original:
    blank = rng.choice([0, 0, 500, 3000])
    first = rng.choice([0, 10]) if not blank else rng.randrange(5, 40)
    log = _writer(rng, first_index=first, leading_blank=blank, pos_shift=rng.choice([0, 0, 512, 4096]))
    term = 1
    for _ in range(_count(rng)):
        if rng.random() < 0.05:
            term += 1
            log.append(lambda _: b"", term, magic=layout.MAGIC_NOOP)
        else:
            log.append(_plain(rng, rng.choice([0, 10, 100, 700])), term)
    log.save(root / "dledger-n0")
    (root / "dledger-n0" / "snapshot").mkdir()
    return original_of("version_040", root, log.entries)


def multi_path(rng: random.Random, root: Path) -> Original:
    log = DLedgerWriter(4096, 64)
    _log_with_terms(rng, log)
    node = root / "dledger-n0"
    dirs = tuple(root / f"path{number}" for number in range(3))
    log.save(node, dirs, committed=log.entries[-1].index)
    return original_of("multi_path", root, log.entries, dataDirs=list(map(str, dirs)))


def messages(rng: random.Random, root: Path) -> Original:
    log, queues = _writer(rng), QueueWriter(root)
    _append_messages(rng, log, queues)
    queues.save()
    return _saved("messages", root, log, rng)


def _append_messages(rng: random.Random, log: DLedgerWriter, queues: QueueWriter) -> None:
    embedded = rng.random() < 0.5
    for _ in range(_count(rng)):
        body, topic, queue_id, key = _message(rng, queues, embedded)
        entry = log.append(body, 1)
        header = layout.ENTRY_HEADER_SIZE
        _dispatch(queues, topic, queue_id, key, entry.pos + header, entry.size - header)


def commit_log(rng: random.Random, root: Path) -> Original:
    log, queues = CommitLogWriter(rng.choice([4096, 16384])), QueueWriter(root)
    _append_old(rng, log, queues)
    log.data.save(root / "commitlog")
    queues.save()
    return original_of("commit_log", root, log.entries)


def _append_old(rng: random.Random, log: CommitLogWriter, queues: QueueWriter) -> None:
    embedded = rng.random() < 0.5
    for _ in range(_count(rng)):
        body, topic, queue_id, key = _message(rng, queues, embedded)
        written = log.append(body)
        _dispatch(queues, topic, queue_id, key, written.pos, written.size)


def _dispatch(queues: QueueWriter, topic: str, queue_id: int, key: str, offset: int, size: int) -> None:
    queues.add(topic, queue_id, offset, size)
    if key:
        queues.add_key(topic, key, offset)


def upgraded(rng: random.Random, root: Path) -> Original:
    old, queues = CommitLogWriter(4096), QueueWriter(root)
    _append_old(rng, old, queues)
    old.fill()
    log = DLedgerWriter(4096, 64, base=old.at)
    _append_messages(rng, log, queues)
    old.data.save(root / "commitlog")
    queues.save()
    original = _saved("upgraded", root, log, rng)
    return original_of("upgraded", root, old.entries + original.entries)


GENERATED: dict[str, Callable[[random.Random, Path], Original]] = {
    make.__name__: make
    for make in (terms, bodies, rewritten, older_terms, version_040, multi_path, messages, commit_log, upgraded)
}


# Goldens


def golden_names(prefix: str) -> list[golden.Golden]:
    """The goldens of a class, ``raw-`` or ``mq-``, that have entries."""
    return [store for store in golden.ALL if store.case.startswith(prefix) and store.expected().entries]


def unpacked(store: golden.Golden, folder: Path) -> Original:
    """A golden, unpacked below `folder`; its entries are what Java finds."""
    place = folder / store.case
    if not place.exists():
        golden.unpack(store.case, folder)
    options = {}
    paths = sorted(str(path) for path in place.glob("path*"))
    if paths:
        options["dataDirs"] = paths
    return original_of(str(store), place / store.folder, list(_entries_of(place / store.folder, options)), **options)


def _entries_of(path: Path, options: dict[str, Any]) -> Iterator[Written]:
    for batch in open_log(path, **options).scan(PLACE):
        for row in batch.to_pylist():
            assert row["kind"] != "corrupt"
            yield Written(row["pos"], row["size"], -1 if row["index"] is None else row["index"], -1)
