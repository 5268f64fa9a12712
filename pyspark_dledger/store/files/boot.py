"""Tells how the last node flushed, and whether the machine was restarted since: that loses what was not on disk."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.store.files.node_files import write_properties

_BOOT = "boot"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of the machine's current run; "" if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Boot(NamedTuple):
    """The run of the machine in which a node last opened the store, and its ``flush``; "" if not known."""

    id: str
    flush: str


def load_boot(node_dir: Path) -> Boot:
    """What the last node of this package recorded."""
    try:
        lines = (node_dir / _BOOT).read_text("ascii").split()
    except (OSError, ValueError):
        lines = []
    found = dict(line.partition("=")[::2] for line in lines)
    return Boot(found.get("bootId", ""), found.get("flush", ""))


def write_boot(node_dir: Path, flush: str) -> None:
    """Record the machine's current run and the flush mode, durably."""
    write_properties(node_dir / _BOOT, {"bootId": boot_id(), "flush": flush})
