"""Writable stores: a log on disk or in memory, owned by one process, in the format of the Java DLedger.

Modules are loaded on first use, because `raft.messages` needs only the types of `dledger_store`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_dledger.store.dledger_store import DLedgerStore
    from pyspark_dledger.store.memory_store import MemoryStore
    from pyspark_dledger.store.mmap_file_store import MmapFileStore
    from pyspark_dledger.store.store_config import StoreConfig

__all__ = ["DLedgerStore", "MemoryStore", "MmapFileStore", "StoreConfig"]

_MODULES = {
    "DLedgerStore": "dledger_store",
    "MemoryStore": "memory_store",
    "MmapFileStore": "mmap_file_store",
    "StoreConfig": "store_config",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
