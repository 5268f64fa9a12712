"""Pauses Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

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
