"""Which files of a folder are opened, by any process. Needs Linux."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_MAX_EVENTS_BYTES = 1 << 16


@contextmanager
def opened_files(folder: Path) -> Iterator[list[str]]:
    """Yields a list. At the end it has the names of the files in `folder` that were opened, in order."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK)
    names: list[str] = []
    try:
        if libc.inotify_add_watch(queue, os.fsencode(folder), _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        yield names
        with suppress(BlockingIOError):
            while events := os.read(queue, _MAX_EVENTS_BYTES):
                names += _names(events)
    finally:
        os.close(queue)


def _names(events: bytes) -> Iterator[str]:
    at = 0
    while at < len(events):
        *_, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size + length
        yield events[at - length : at].rstrip(b"\0").decode()
