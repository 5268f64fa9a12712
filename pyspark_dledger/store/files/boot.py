"""Tells how the last node flushed, and whether the machine was restarted since: that loses what was not on disk.

A Java node knows nothing of this file. When it replaces ``checkpoint`` or ``currterm``, it keeps the old one as
``.bak``, at the latest after 3 s or when it stops. A node of this package leaves no such copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.store.files.node_files import CHECKPOINT, CURRTERM, load_properties, write_properties

_BOOT = "boot"
_COPIES = (f"{CHECKPOINT}.bak", f"{CURRTERM}.bak")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of the machine's current run; "" if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Boot(NamedTuple):
    """The run of the machine in which a node of this package last opened the store, and its ``flush``.

    Both are "" if not known, ``flush`` also if a Java node has written since.
    """

    id: str
    flush: str


def load_boot(node_dir: Path) -> Boot:
    """What the last node of this package recorded, as far as that is still right.

    Raises StoreError for a wrong checksum.
    """
    try:
        found = load_properties(node_dir / _BOOT)
    except (OSError, ValueError):
        found = {}
    return Boot(found.get("bootId", ""), "" if _copies(node_dir) else found.get("flush", ""))


def write_boot(node_dir: Path, flush: str) -> None:
    """Record the machine's current run and the flush mode, durably. This node has written ``checkpoint`` before."""
    write_properties(node_dir / _BOOT, {"bootId": boot_id(), "flush": flush})
    if copies := _copies(node_dir):
        for file in copies:
            file.unlink()
        sync_dir(node_dir)


def _copies(node_dir: Path) -> list[Path]:
    return [node_dir / name for name in _COPIES if (node_dir / name).exists()]
