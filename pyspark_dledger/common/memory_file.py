"""Bytes as a file, for what reads only files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_dledger.common.durable import write_all

Fill = Callable[[Iterable[bytes | bytearray | memoryview]], str]

_OWN_FILES = Path("/proc/self/fd")


@contextmanager
def memory_file() -> Iterator[Fill]:
    """Give a function that makes a file of bytes and returns its path.

    The file is in memory if the system has such files, else it is a temporary one. Each call replaces the bytes of the
    last one, whose memory is used again.
    """
    if hasattr(os, "memfd_create") and _OWN_FILES.is_dir():
        with open(os.memfd_create("dledger-bytes", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            yield _fill(memory.fileno(), str(_OWN_FILES / str(memory.fileno())))
    else:
        with tempfile.NamedTemporaryFile(prefix="dledger-bytes-", buffering=0) as file:
            yield _fill(file.fileno(), file.name)


def _fill(descriptor: int, path: str) -> Fill:
    def fill(parts: Iterable[bytes | bytearray | memoryview]) -> str:
        os.lseek(descriptor, 0, os.SEEK_SET)
        for part in parts:
            write_all(descriptor, part)
        os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
        return path

    return fill
