"""Reads ``epochFileCheckpoint`` of a broker in controller mode."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.state_files import EPOCH_FILE, EPOCH_FILES, Epoch, in_order, parse_epochs
from pyspark_dledger.log.io.files import OnUnreadable, is_there, raise_error, read_start
from pyspark_dledger.log.io.store_checkpoint import read_store_checkpoint

# A line has at most 31 bytes; nobody has a million elections.
_MAX_BYTES = 32 * 1024 * 1024


def is_of_controller_mode(root: Path) -> bool:
    """Whether a broker ran in controller mode on a storePathRootDir: it has an epoch file, also a damaged one."""
    return any(is_there(root / name) for name in EPOCH_FILES)


def epoch_file_problem(root: Path, log_end: int) -> tuple[bool, str] | None:
    """What is wrong with the epoch file of a log that ends at `log_end`: whether Java can read it, and the problem."""
    file = root / EPOCH_FILE
    if not is_there(file) and not is_there(root / EPOCH_FILES[1]):
        return None
    try:
        found = parse_epochs(read_start(file, _MAX_BYTES)) if is_there(file) else read_epochs(root)[0]
    except OSError as error:
        return False, f"expected a readable file, found {error.strerror}"
    if isinstance(found, str) or not found:
        return False, found if isinstance(found, str) else "expected epochs, found none"
    for before, after in pairwise(found):
        if not (before.epoch < after.epoch and before.start < after.start):
            return True, f"expected ascending epochs, found {_text(before)}, then {_text(after)}"
    if found[-1].start > log_end:
        return True, f"expected epochs up to the log's end {log_end}, found {_text(found[-1])}"
    return None


def _text(epoch: Epoch) -> str:
    return f"epoch {epoch.epoch} from {epoch.start} on"


def read_epochs(root: Path) -> tuple[tuple[Epoch, ...], str]:
    """The epochs of a storePathRootDir, ascending, and the name of their file; without epochs, the reason.

    Java reads ``.bak`` where the file has no epochs or is damaged.
    """
    problems = []
    for name in EPOCH_FILES:
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
    return (), "; ".join(problems) or f"no {EPOCH_FILE} file"


def confirmed_end(root: Path, on_unreadable: OnUnreadable = raise_error) -> int:
    """From where on the log is not confirmed in controller mode; 2^63-1 in other modes, 0 if that is unknown."""
    try:
        confirmed = read_store_checkpoint(root).confirm_phy_offset if is_of_controller_mode(root) else 0
    except UnreadableError as error:
        on_unreadable(error)
        return 0
    return confirmed or INT64_MAX
