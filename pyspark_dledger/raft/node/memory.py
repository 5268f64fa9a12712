"""Memory of a process that does nothing but run nodes."""

from __future__ import annotations

import gc

from pyspark_dledger.common.freed_memory import keep_freed_memory


def settle_memory() -> None:
    """Make the memory of this process ready for serving; to be called once, when everything is loaded.

    The collector need not look again at what was loaded, which would cost milliseconds now and then. Buffers of frames
    and entries, of about a MiB each, are kept.
    """
    gc.collect()
    gc.freeze()
    keep_freed_memory()
