"""Stores to write in tests: opened, closed and opened again, and looked at byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark_dledger.format.codec import crc32, encode_entry, signed32
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.store.dledger_store import DLedgerStore, Entry
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig

# Five bodies of 100 bytes fit a data file; an index file holds ten units.
FILE = 5 * 148 + 8
INDEX_FILE = 320


def opened(base_dir: Path, **config: Any) -> MmapFileStore:
    """A started store of small files, without threads."""
    store = MmapFileStore(StoreConfig(base_dir, **{"data_file_size": FILE, "index_file_size": INDEX_FILE, **config}))
    store.startup()
    return store


def reopened(store: MmapFileStore, **config: Any) -> MmapFileStore:
    """The store closed and opened again."""
    store.shutdown()
    return opened(store.config.base_dir, **{**options(store), **config})


def options(store: MmapFileStore) -> dict[str, Any]:
    """The options of a store that say where and how large its files are."""
    names = ("self_id", "data_dirs", "read_only_data_dirs", "engine", "flush", "data_file_size", "index_file_size")
    return {name: getattr(store.config, name) for name in names}


def abandoned(store: MmapFileStore, **config: Any) -> MmapFileStore:
    """The store as a killed process leaves it, opened again: nothing is flushed, no checkpoint written."""
    store._lock.release()
    store._is_started = False
    return opened(store.config.base_dir, **{**options(store), **config})


def bodies(first: int, count: int, size: int = 100) -> list[bytes]:
    """Bodies that all differ and hold no zeros."""
    return [(b"%d," % (first + number)).ljust(size, b"x") for number in range(count)]


def leaders_entry(index: int, term: int, pos: int, body: bytes) -> bytes:
    """An entry as a leader of this package writes it."""
    return encode_entry(index, term, pos, body, body_crc=signed32(crc32(body)))


def entries(store: DLedgerStore) -> list[Entry]:
    """All entries, one by one."""
    if store.ledger_begin_index < 0:
        return []
    return [store.get(index) for index in range(store.ledger_begin_index, store.ledger_end_index + 1)]


def where(store: DLedgerStore) -> tuple[int, ...]:
    """Begin, end, end term, committed index and end position."""
    return (
        store.ledger_begin_index,
        store.ledger_end_index,
        store.ledger_end_term,
        store.committed_index,
        store.end_pos,
    )


def data_files(store: MmapFileStore) -> list[Path]:
    folders = store.config.all_data_dirs
    return sorted((file for folder in folders for file in folder.iterdir()), key=lambda file: file.name)


def index_files(store: MmapFileStore) -> list[Path]:
    return sorted((store.config.node_dir / "index").iterdir())


def content(files: Iterable[Path]) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in files}


def log_of(store: MmapFileStore) -> Log:
    """The store as our own reader opens it."""
    folders = [str(path) for path in store.config.data_dirs]
    return open_log(str(store.config.node_dir), **({"dataDirs": folders} if folders else {}))


def findings(store: MmapFileStore) -> list[tuple[str, str, str]]:
    """What `dledger verify` says of the store as it lies on disk, without what is only worth knowing."""
    log = log_of(store)
    return [(found.code, found.file, str(found.found)) for found in log.findings() if found.severity != "info"]
