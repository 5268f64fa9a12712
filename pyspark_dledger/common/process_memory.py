"""Memory settings for a process with one purpose: a node, or an export."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

# Parameters of mallopt(3), as glibc numbers them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# glibc's maximum; larger buffers are mapped and unmapped each time.
_MAX_MMAP_THRESHOLD = 32 * 1024 * 1024
# Freed memory that the process keeps; the system would have to clear each page before it is used again.
_KEPT_BYTES = 256 * 1024 * 1024


def keep_freed_memory() -> None:
    """Reuse freed buffers of some MiB instead of mapping new ones, which costs as much as writing to them.

    C libraries without ``mallopt`` are left as they are.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def prepare_memory_for_serving() -> None:
    """Call once, after all modules are loaded: the garbage collector skips them, and freed buffers are kept."""
    gc.collect()
    gc.freeze()
    keep_freed_memory()
