"""Memory of a process: its address space, its collector, settings for one with one purpose (a node, an export)."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark_dledger.common.integers import INT64_MAX

# Parameters of mallopt(3), as glibc numbers them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# glibc's maximum; larger buffers are mapped and unmapped each time.
_MAX_MMAP_THRESHOLD = 32 * 1024 * 1024
# Of a node: requests of clients and pushes have about 1 MiB. Larger ones return their memory, which would otherwise
# stay in pieces that fit no other.
_NODE_MMAP_THRESHOLD = 2_500_000
# Freed memory that the process keeps; the system would have to clear each page before it is used again.
_KEPT_BYTES = 256 * 1024 * 1024


def keep_freed_memory(max_size: int = _MAX_MMAP_THRESHOLD) -> None:
    """Reuse freed buffers up to `max_size` bytes instead of mapping new ones, which costs as much as writing to them.

    C libraries without ``mallopt`` are left as they are. Arrow's memory is kept if Arrow is loaded afterwards.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, max_size)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def prepare_memory_for_serving() -> None:
    """Call once, after all modules are loaded: the garbage collector skips them, and freed buffers are kept."""
    gc.collect()
    gc.freeze()
    keep_freed_memory(_NODE_MMAP_THRESHOLD)


def free_address_space() -> int:
    """Bytes that the process can still map: Spark limits its Python workers (spark.executor.pyspark.memory)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return INT64_MAX
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # only Linux counts it
        return INT64_MAX
    return max(limit - pages * resource.getpagesize(), 0)


_MANY_OBJECTS = 10_000


@contextmanager
def collector_paused() -> Iterator[None]:
    """For code that makes many objects without cycles: the collector would visit all of them several times.

    It pauses in all threads. It stays off if the caller has turned it off. If there are many objects, they count as old
    afterwards: else the collector would visit all at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _MANY_OBJECTS and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
