"""Memory of a process that does one thing: what is freed is kept, to be used again."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Parameters of mallopt(3), as glibc numbers them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc takes: larger buffers come from the system each time.
_MOST_KEPT = 32 * 1024 * 1024
# Free memory that is kept to be used again; the system would have to clear each page of it anew.
_KEPT = 256 * 1024 * 1024


def keep_freed_memory() -> None:
    """Take buffers of some MiB from what was freed before, and not from the system: as costly as writing them.

    C libraries without ``mallopt`` are left as they are.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MOST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
