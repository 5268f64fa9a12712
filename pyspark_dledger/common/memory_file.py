"""Bytes as a file, for what reads only files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_dledger.common.durable import write_all

_OWN_FILES = Path("/proc/self/fd")


@contextmanager
def memory_file(parts: Iterable[bytes | bytearray | memoryview]) -> Iterator[str]:
    """Give these bytes a path for the scan: of a file in memory if the system has them, else of a temporary file."""
    if hasattr(os, "memfd_create") and _OWN_FILES.is_dir():
        with open(os.memfd_create("dledger-bytes", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            for part in parts:
                write_all(memory.fileno(), part)
            yield str(_OWN_FILES / str(memory.fileno()))
    else:
        with tempfile.NamedTemporaryFile(prefix="dledger-bytes-", buffering=0) as file:
            for part in parts:
                write_all(file.fileno(), part)
            yield file.name
