"""Reads small files of state: a node's ``checkpoint`` and ``currterm``, a broker's ``checkpoint`` and epochs.

A broker's ``checkpoint`` has the storeTimestamps up to which its files are on disk. It is one page of 4096 bytes;
RocketMQ overwrites the numbers at its beginning. Source: RocketMQ 5.3.3 ``StoreCheckpoint``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import record
from pyspark_dledger.format.state_files import (
    EPOCH_FILE,
    EPOCH_FILES,
    Checkpoint,
    CurrentTerm,
    Epoch,
    in_order,
    parse_checkpoint,
    parse_current_term,
    parse_epochs,
)
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import OnUnreadable, is_there, raise_error, read_start

# Java writes about fifty bytes.
_MAX_BYTES = 64 * 1024

_Parsed = TypeVar("_Parsed")


def read_checkpoint(node_dir: Path) -> tuple[Checkpoint | None, str]:
    """The checkpoint and the name of its file; without a readable one, None and the reason."""
    return _first_valid(
        node_dir, _replaced("checkpoint"), lambda data: (found := parse_checkpoint(data)).problem or found, _MAX_BYTES
    )


def read_current_term(node_dir: Path) -> tuple[CurrentTerm | None, str]:
    """The current term and vote and the name of their file; without a readable one, None and the reason."""
    return _first_valid(
        node_dir, _replaced("currterm"), lambda data: (found := parse_current_term(data)).problem or found, _MAX_BYTES
    )


def _replaced(name: str) -> tuple[str, ...]:
    """The names of a file that Java replaces: it writes .tmp, copies the file to .bak, deletes it, and renames .tmp.

    A crash in between leaves .tmp, which is newer, and .bak (IOUtils.string2File).
    """
    return name, f"{name}.tmp", f"{name}.bak"


def _first_valid(
    folder: Path, names: Sequence[str], parse: Callable[[bytes], _Parsed | str], max_bytes: int
) -> tuple[_Parsed | None, str]:
    """The first file that `parse` takes, and its name; else None and the problems. `parse` returns one as text."""
    problems = []
    for name in names:
        file = folder / name
        try:
            if not file.exists():
                continue
            if not file.is_file():
                problems.append(f"{name} is no file")
                continue
            parsed = parse(read_start(file, max_bytes))
        except OSError as error:
            problems.append(f"{name} cannot be read ({error.strerror})")
            continue
        if not isinstance(parsed, str):
            return parsed, name
        problems.append(f"{name}: {parsed}")
    return None, "; ".join(problems) or f"no {names[0]} file"


CHECKPOINT = "checkpoint"
CHECKPOINT_SIZE = 4096
MARGIN_MS = 3000
"""Reading from a timestamp begins so much earlier: timestamps of messages stored together do not ascend."""

CHECKPOINT_LAYOUT = record(
    "i8 physicMsgTimestamp; i8 logicsMsgTimestamp; i8 indexMsgTimestamp; i8 masterFlushedOffset; i8 confirmPhyOffset"
)
_STRUCT = record_struct(CHECKPOINT_LAYOUT)
CHECKPOINT_MIN_SIZE = _STRUCT.size
"""A shorter file lacks numbers, which Java reads as zeros: it maps a whole page."""


class StoreCheckpoint(NamedTuple):
    """Timestamps in milliseconds since 1970: the last message that log, queues and index have on disk.

    Offsets are bytes of the log. ``confirm_phy_offset`` is the end of the confirmed part (from 5.1.1). 0 means none.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    def pack(self) -> bytes:
        """The numbers as they are on disk."""
        return _STRUCT.pack(*self)


def read_store_checkpoint(root: Path) -> StoreCheckpoint:
    """The checkpoint of a storePathRootDir; zeros if it is missing or too short. Raises UnreadableError."""
    data = read_existing(str(root / CHECKPOINT), 0, _STRUCT.size)
    return StoreCheckpoint(*_STRUCT.unpack(data)) if len(data) == _STRUCT.size else StoreCheckpoint()


# A line has at most 31 bytes; nobody has a million elections.
_MAX_EPOCH_BYTES = 32 * 1024 * 1024


def is_of_controller_mode(root: Path) -> bool:
    """Whether a broker ran in controller mode on a storePathRootDir: it has an epoch file, also a damaged one."""
    return any(is_there(root / name) for name in EPOCH_FILES)


def epoch_file_problem(root: Path, log_end: int) -> tuple[bool, str] | None:
    """What is wrong with the epoch file of a log that ends at `log_end`: whether Java can read it, and the problem."""
    file = root / EPOCH_FILE
    if not is_there(file) and not is_there(root / EPOCH_FILES[1]):
        return None
    try:
        found = parse_epochs(read_start(file, _MAX_EPOCH_BYTES)) if is_there(file) else read_epochs(root)[0]
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
    found, text = _first_valid(root, EPOCH_FILES, lambda data: parse_epochs(data) or "no epoch", _MAX_EPOCH_BYTES)
    return in_order(found or ()), text


def confirmed_end(root: Path, on_unreadable: OnUnreadable = raise_error) -> int:
    """From where on the log is not confirmed in controller mode; 2^63-1 in other modes, 0 if that is unknown."""
    try:
        confirmed = read_store_checkpoint(root).confirm_phy_offset if is_of_controller_mode(root) else 0
    except UnreadableError as error:
        on_unreadable(error)
        return 0
    return confirmed or INT64_MAX
