"""Reads ``epochFileCheckpoint`` of a broker in controller mode."""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.format.epoch_file import FILE, FILES, Epoch, in_order, parse_epochs
from pyspark_dledger.log.io.files import is_there, read_start

# A line has at most 31 bytes; nobody has a million elections.
_MAX_BYTES = 32 * 1024 * 1024


def is_of_controller_mode(root: Path) -> bool:
    """Whether a broker ran in controller mode on a storePathRootDir: it has an epoch file, also a damaged one."""
    return any(is_there(root / name) for name in FILES)


def read_epochs(root: Path) -> tuple[tuple[Epoch, ...], str]:
    """The epochs of a storePathRootDir, ascending, and the name of their file; without epochs, the reason.

    Java reads ``.bak`` where the file has no epochs or is damaged.
    """
    problems = []
    for name in FILES:
        file = root / name
        try:
            if not file.is_file():
                continue
            found = parse_epochs(read_start(file, _MAX_BYTES))
        except OSError as error:
            problems.append(f"{name} cannot be read ({error.strerror})")
            continue
        if not isinstance(found, str) and found:
            return in_order(found), name
        problems.append(f"{name}: {found if isinstance(found, str) else 'no epoch'}")
    return (), "; ".join(problems) or f"no {FILE} file"
