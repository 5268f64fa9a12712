"""The small files of a node: ``checkpoint`` and ``currterm`` in Java's format, and our own.

These are ``reset``, ``members``, ``cluster`` and ``lock``.

All but the lock are replaced atomically: written to a temporary file, synced, renamed, and the folder synced. (Java's
``IOUtils.string2File`` syncs nothing, and for a moment the file is missing.) They have a checksum, and a store with a
wrong one does not start: an older term allows a second vote, another checkpoint vouches for other entries.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyspark_dledger.common.durable import open_own, replace_durably, sync_dir
from pyspark_dledger.errors import StoreError, StoreInUseError
from pyspark_dledger.format.state_files import (
    COMMITTED_INDEX,
    CURR_TERM,
    END_INDEX,
    RESTORED,
    VOTE_LEADER,
    Checkpoint,
    CurrentTerm,
    WrongChecksumError,
    encode_state_file,
    parse_state_file,
)
from pyspark_dledger.log.io.files import MAX_STATE_SIZE, read_start
from pyspark_dledger.log.io.state_files import read_checkpoint, read_current_term

T = TypeVar("T")

CHECKPOINT = "checkpoint"
CURRTERM = "currterm"
RESET = "reset"
MEMBERS = "members"
CLUSTER = "cluster"
_STATE = "state"
_DURABLE = "durable"


class Reset(NamedTuple):
    """An unfinished reset: index and position of the first entry of the new log.

    ``is_durable``: the new log is durable, and files of the old one may be missing.
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    is_durable: bool = False


def write_properties(file: Path, properties: Mapping[str, object]) -> None:
    """Replace a file atomically and durably with ``key=value`` lines. Raises OSError; the old file stays then."""
    file.with_name(f"{file.name}.tmp").unlink(missing_ok=True)  # left by a crash, or a link
    replace_durably(file, encode_state_file(properties))


def load_properties(file: Path) -> dict[str, str]:
    """The lines of a file. Raises StoreError for a wrong checksum, else OSError or ValueError if it is unreadable."""
    try:
        return parse_state_file(read_start(file, MAX_STATE_SIZE))
    except WrongChecksumError as error:
        raise StoreError(
            f"{file}: {error}: the file is damaged: replace this member as if its disk was lost, or correct the lines "
            "and remove that of crc"
        ) from None


def _check_checksum(file: Path) -> None:
    """Raises StoreError for a wrong checksum; what else is wrong with a file, its reader tells."""
    with suppress(OSError, ValueError):
        load_properties(file)


def write_checkpoint(node_dir: Path, committed_index: int, end_index: int) -> None:
    """Write both indexes; the entries up to them are durable already."""
    write_properties(node_dir / CHECKPOINT, {COMMITTED_INDEX: committed_index, END_INDEX: end_index})


def write_current_term(node_dir: Path, term: int, vote_leader: str | None) -> None:
    """Write term and vote."""
    write_properties(node_dir / CURRTERM, {VOTE_LEADER: vote_leader or "", CURR_TERM: term})


def load_checkpoint(node_dir: Path) -> Checkpoint:
    """The checkpoint: -1 without a file, as in Java, and None for a file that cannot be read.

    Raises StoreError for a wrong checksum.
    """
    _check_checksum(node_dir / CHECKPOINT)
    checkpoint, reason = read_checkpoint(node_dir)
    if checkpoint is not None:
        return checkpoint
    return Checkpoint(None, None, reason) if _was_written(node_dir / CHECKPOINT) else Checkpoint(-1, -1)


def load_current_term(node_dir: Path) -> CurrentTerm:
    """Term and vote; 0 and None if none was ever written. Raises StoreError if they were written and are lost."""
    _check_checksum(node_dir / CURRTERM)
    current, reason = read_current_term(node_dir)
    if current is not None and reason != CURRTERM and (node_dir / CURRTERM).exists():
        current, reason = None, f"{reason} can have an older vote"
    if current is not None:
        return current
    if _was_written(node_dir / CURRTERM):
        raise StoreError(
            f"{node_dir / CURRTERM}: expected the lines currTerm=N and voteLeader=ID, found no readable file "
            f"({reason}): without its vote the node could vote twice; write currTerm=N into it, one above the highest "
            "term of any member of the group"
        )
    return CurrentTerm(0, None)


def _was_written(file: Path) -> bool:
    """Whether a file was ever complete. A first write that was interrupted leaves only ``.tmp``."""
    return file.exists() or file.with_name(f"{file.name}.bak").exists()


def write_members(node_dir: Path, member_ids: Sequence[str], state: str = "") -> None:
    """Write the member ids of the node's group, so that a job that opens the store alone can be warned."""
    if (load_members(node_dir), load_member_state(node_dir)) != (tuple(member_ids), state):
        properties: dict[str, object] = {MEMBERS: ";".join(member_ids)}
        write_properties(node_dir / MEMBERS, properties | ({_STATE: state} if state else {}))


def load_members(node_dir: Path) -> tuple[str, ...]:
    """The member ids that the last node of this package wrote; empty without a readable file.

    Raises StoreError for a wrong checksum.
    """
    return tuple(filter(None, _members_property(node_dir, MEMBERS).split(";")))


def load_member_state(node_dir: Path) -> str:
    """What the core wrote with the member ids; empty without a readable file. Raises StoreError as `load_members`."""
    return _members_property(node_dir, _STATE)


def _members_property(node_dir: Path, name: str) -> str:
    try:
        return load_properties(node_dir / MEMBERS).get(name, "")
    except (OSError, ValueError):
        return ""


def write_cluster_id(node_dir: Path, cluster_id: str) -> None:
    """Write the id of the node's group."""
    write_properties(node_dir / CLUSTER, {CLUSTER: cluster_id})


def load_cluster_id(node_dir: Path) -> str:
    """The id of the node's group, "" if it has none. Raises StoreError for an unreadable file."""
    file, advice = node_dir / CLUSTER, "copy it from another member"
    return _loaded(file, lambda lines: lines[CLUSTER], "", "line cluster=ID", advice)


def load_restored_term(node_dir: Path) -> int:
    """The term with which the member was restored from a backup, -1 without one. Raises StoreError."""
    file, advice = node_dir / RESTORED, "restore the backup again"
    return _loaded(file, lambda lines: int(lines["term"]), -1, "line term=N", advice)


def write_reset(node_dir: Path, reset: Reset) -> None:
    """Write durably how far a reset is."""
    durable = {_DURABLE: "true"} if reset.is_durable else {}
    write_properties(node_dir / RESET, {"index": reset.index, "pos": reset.pos, **durable})


def load_reset(node_dir: Path) -> Reset | None:
    """The unfinished reset, if any. Raises StoreError for an unreadable file."""

    def parse(lines: dict[str, str]) -> Reset:
        return Reset(int(lines["index"]), int(lines["pos"]), lines.get(_DURABLE) == "true")

    return _loaded(node_dir / RESET, parse, None, "lines index=N and pos=P", "move it away")


def _loaded(file: Path, parse: Callable[[dict[str, str]], T], missing: T, expected: str, advice: str) -> T:
    """What a file of our own says; `missing` without one. Raises StoreError for an unreadable file."""
    try:
        return parse(load_properties(file))
    except FileNotFoundError:
        return missing
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"{file}: expected the {expected}, found {error}: {advice}") from None


def remove_reset(node_dir: Path) -> None:
    """End the reset, durably."""
    (node_dir / RESET).unlink(missing_ok=True)
    sync_dir(node_dir)


class StoreLock:
    """Held from `acquire` to `release`. The file stays and contains the process id of the last owner."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1

    def acquire(self) -> None:
        """Raises StoreInUseError with the process id if another process has the store open, else StoreError."""
        try:
            descriptor = open_own(self._file, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"{self._file}: cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreInUseError(
                f"{self._file.parent}: the store is in use by process {owner}: stop that process, or use another folder"
            ) from None
        with suppress(OSError):  # a full disk; the lock is held without it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


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

    A restart of the machine since then loses what was not on disk. Both are "" if not known, ``flush`` also if a Java
    node has written since: when it replaces ``checkpoint`` or ``currterm``, it keeps the old one as ``.bak``, at the
    latest after 3 s or when it stops. A node of this package leaves no such copy.
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
