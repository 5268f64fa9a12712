"""Tells whether the machine was restarted since a node last ran: a restart loses what was not yet on disk."""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.store.files.node_files import write_properties

_BOOT = "boot"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of the machine's current run; "" if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def load_boot(node_dir: Path) -> str:
    """The boot id in which a node of this package last opened the store; "" if not known."""
    try:
        lines = (node_dir / _BOOT).read_text("ascii").split()
    except (OSError, ValueError):
        return ""
    return next((line.removeprefix("bootId=") for line in lines if line.startswith("bootId=")), "")


def write_boot(node_dir: Path) -> None:
    """Record the current boot id, durably."""
    write_properties(node_dir / _BOOT, {"bootId": boot_id()})
