"""A node's small files: ``checkpoint`` and ``currterm`` as Java writes them; our notes of a reset and the members.

Each is replaced as a whole: written beside, synced, renamed, and the folder synced (``IOUtils.string2File`` of the Java
DLedger syncs nothing and leaves a moment without the file).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.state_files import (
    COMMITTED_INDEX,
    CURR_TERM,
    END_INDEX,
    VOTE_LEADER,
    Checkpoint,
    CurrentTerm,
    parse_properties_file,
)
from pyspark_dledger.log.committed import read_checkpoint, read_current_term

CHECKPOINT = "checkpoint"
CURRTERM = "currterm"
RESET = "reset"
MEMBERS = "members"


class Reset(NamedTuple):
    """A log that is about to begin anew, with the entry of that index and position."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int


def write_properties(file: Path, properties: dict[str, object]) -> None:
    """Replace a file atomically and durably by ``key=value`` lines. Raises OSError, and then the old one stays."""
    temporary = file.with_name(f"{file.name}.tmp")
    data = "".join(f"{key}={_escaped(str(value))}\n" for key, value in properties.items()).encode("ascii")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(file)
    sync_dir(file.parent)


def _escaped(value: str) -> str:
    """A value as ``java.util.Properties`` reads it back, on one line of ASCII; names come from other nodes."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if value[:1] in (" ", "\t", "\f"):
        value = f"\\{value}"
    units = memoryview(value.encode("utf-16", "surrogatepass")).cast("H")[1:]
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in units)


def write_checkpoint(node_dir: Path, committed_index: int, end_index: int) -> None:
    """Both indexes; what they say has to be durable already."""
    write_properties(node_dir / CHECKPOINT, {COMMITTED_INDEX: committed_index, END_INDEX: end_index})


def write_current_term(node_dir: Path, term: int, vote_leader: str | None) -> None:
    """Term and vote."""
    write_properties(node_dir / CURRTERM, {VOTE_LEADER: vote_leader or "", CURR_TERM: term})


def load_checkpoint(node_dir: Path) -> Checkpoint:
    """The checkpoint: -1 where there is none, as Java takes it, and None where what is there cannot be read."""
    checkpoint, reason = read_checkpoint(node_dir)
    if checkpoint is not None:
        return checkpoint
    return Checkpoint(None, None, reason) if _was_written(node_dir / CHECKPOINT) else Checkpoint(-1, -1)


def load_current_term(node_dir: Path) -> CurrentTerm:
    """Term and vote; 0 and none where nothing was ever written. Raises StoreError where what was written is lost."""
    current, reason = read_current_term(node_dir)
    if current is not None:
        return current
    if _was_written(node_dir / CURRTERM):
        raise StoreError(
            f"{node_dir / CURRTERM}: expected the lines currTerm=N and voteLeader=ID, found no readable file "
            f"({reason}): a node that forgot its vote could vote twice; write into it the highest term that any member "
            "of the group shows"
        )
    return CurrentTerm(0, None)


def _was_written(file: Path) -> bool:
    """Whether a file was ever there. One that was being written for the first time only leaves ``.tmp`` behind."""
    return file.exists() or file.with_name(f"{file.name}.bak").exists()


def write_members(node_dir: Path, member_ids: Sequence[str]) -> None:
    """Note which group the node is of: whoever would write its store without the others is to know."""
    if load_members(node_dir) != tuple(member_ids):
        write_properties(node_dir / MEMBERS, {MEMBERS: ";".join(member_ids)})


def load_members(node_dir: Path) -> tuple[str, ...]:
    """The members of the group that a node of ours last ran in; none where none did, or the file says none."""
    try:
        text = parse_properties_file((node_dir / MEMBERS).read_bytes()).get(MEMBERS, "")
    except (OSError, ValueError):
        return ()
    return tuple(filter(None, text.split(";")))


def write_reset(node_dir: Path, reset: Reset) -> None:
    """Note durably that the log begins anew."""
    write_properties(node_dir / RESET, reset._asdict())


def load_reset(node_dir: Path) -> Reset | None:
    """The reset that was not finished, if any. Raises StoreError for a file that says none."""
    file = node_dir / RESET
    if not file.exists():
        return None
    try:
        properties = parse_properties_file(file.read_bytes())
        return Reset(int(properties["index"]), int(properties["pos"]))
    except (KeyError, ValueError) as error:
        raise StoreError(f"{file}: expected the lines index=N and pos=P, found {error}: move it away") from None


def remove_reset(node_dir: Path) -> None:
    """Forget the reset, durably."""
    (node_dir / RESET).unlink(missing_ok=True)
    sync_dir(node_dir)
