"""Memory and open files of other processes, on Linux."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def peak_memory(process_id: int) -> int:
    """The most memory that a process had, in bytes."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def open_files(process_id: int) -> int:
    """How many files and sockets a process has open."""
    return len(list(Path(f"/proc/{process_id}/fd").iterdir()))


def settled(measure: Callable[[], int], enough: int, quiet_seconds: float = 2.0) -> int:
    """A measure that reached `enough`, or that did not change for so many seconds."""
    found, since = measure(), time.monotonic()
    while found < enough and time.monotonic() - since < quiet_seconds:
        time.sleep(0.02)
        if (latest := measure()) != found:
            found, since = latest, time.monotonic()
    return found
