"""The state of a store: its node, its indexes and offsets, and what is committed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.common.fields import column
from pyspark_dledger.common.integers import MAX_TIMESTAMP
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.log.committed import Bound, committed_bound
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.state_files import StoreCheckpoint, read_current_term, read_epochs, read_store_checkpoint
from pyspark_dledger.log.store_view import StoreView

_ON_DISK = "last message whose bytes, ConsumeQueue unit or keys are on disk, by the broker's checkpoint"


@dataclass(frozen=True)
class State:
    """What a store is and where its log begins and ends; -1 for an index or offset that does not exist.

    The fields are the columns of the table ``state``. Offsets are positions in the log, in bytes; indexes are
    DLedger's. Timestamps are in milliseconds since 1970; None where the broker has none. Where ``problem`` names files
    that cannot be read, the state may differ with them.
    """

    node: str | None = column("id of the node; null for a plain CommitLog")
    path: str = column("as given")
    dialect: str = column("`0.3` (and before), `0.4` or `commitlog`")
    begin_index: int = column("first and last index; -1 without entries")
    end_index: int = column("first and last index; -1 without entries")
    end_term: int = column("term of the last entry")
    committed_index: int | None = column("highest index proven committed; null without proof")
    committed_from: str | None = column("the proof, such as `checkpoint`; or why there is none")
    checkpoint_committed_index: int | None = column("from the checkpoint; null without one")
    checkpoint_end_index: int | None = column("from the checkpoint; null without one")
    curr_term: int | None = column("the node's term")
    vote_leader: str | None = column("its vote in that term; null for none")
    divided_commitlog_offset: int = column("where DLedger begins; -1 without DLedger")
    data_file_size: int | None = column("bytes of a segment file")
    index_file_size: int | None = column("bytes of an index file; null without one")
    min_offset: int = column("first position of the log")
    max_offset: int = column("position after the last entry")
    abort: bool = column("the broker runs, or was not stopped cleanly")
    epochs: dict[int, int] | None = column("controller mode: first position of each master epoch; else null")
    confirm_offset: int | None = column("end of the confirmed log at the broker's last checkpoint (from 5.1.1)")
    consume_queue_end: int = column("end of the last message in a ConsumeQueue; -1 without one")
    physic_msg_timestamp: int | None = column(_ON_DISK)
    logics_msg_timestamp: int | None = column(_ON_DISK)
    index_msg_timestamp: int | None = column(_ON_DISK)
    problem: str | None = column("files that cannot be read; null if all can")


def state_of(store: StoreView) -> State:
    """The state of a store; its options choose the committed bound."""
    ledger, paths, checkpoint = store.ledger_segments, store.paths, store.checkpoint
    bound = committed_bound(store, store.options) if ledger else Bound(None, None)
    term = read_current_term(paths.node_dir)[0] if paths.node_dir is not None else None
    root = paths.root
    known = _store_checkpoint(root)
    return State(
        node=paths.node,
        path=store.path,
        dialect=store.dialect if ledger or paths.node_dir is not None else "commitlog",
        begin_index=store.begin_index,
        end_index=store.end.last_index,
        end_term=store.end.last_term,
        committed_index=bound.index,
        committed_from=bound.source or bound.reason or None,
        checkpoint_committed_index=checkpoint.committed_index if checkpoint is not None else None,
        checkpoint_end_index=checkpoint.end_index if checkpoint is not None else None,
        curr_term=term.curr_term if term is not None else None,
        vote_leader=term.vote_leader if term is not None else None,
        divided_commitlog_offset=store.divided_commitlog_offset,
        data_file_size=max((segment.size for segment in ledger or store.segments), default=None),
        index_file_size=max((file.size for file in store.index_files.files), default=None),
        min_offset=store.min_offset,
        max_offset=store.max_offset,
        abort=root is not None and (root / "abort").exists(),
        epochs=dict(read_epochs(root)[0]) or None if root is not None else None,
        confirm_offset=known.confirm_phy_offset or None,
        consume_queue_end=_queue_end(root) if root is not None else -1,
        physic_msg_timestamp=_time(known.physic_msg_timestamp),
        logics_msg_timestamp=_time(known.logics_msg_timestamp),
        index_msg_timestamp=_time(known.index_msg_timestamp),
        problem=_problem(store),
    )


def _store_checkpoint(root: Path | None) -> StoreCheckpoint:
    try:
        return read_store_checkpoint(root) if root is not None else StoreCheckpoint()
    except UnreadableError:
        return StoreCheckpoint()  # `problem` names it


def _queue_end(root: Path) -> int:
    """The end of the last message in a ConsumeQueue; -1 without one."""
    from pyspark_dledger.log.io.queue_files import FILLER_SIZE, last_units  # loads numpy

    found = last_units(root, ignore_error)  # `problem` names what cannot be read
    ends = (unit.commit_log_offset + unit.size for unit in found if unit.size < FILLER_SIZE)
    return max(ends, default=-1)


def _time(milliseconds: int) -> int | None:
    """A time of a checkpoint; None for 0, which means none, and outside the years 1970 to 9999."""
    return milliseconds if 0 < milliseconds <= MAX_TIMESTAMP else None


def _problem(store: StoreView) -> str | None:
    """What cannot be read of a local store; in a remote one the read itself fails."""
    found = store.unread.texts()
    more = f"; {len(found) - 1} more: run dledger verify" if len(found) > 1 else ""
    return f"cannot be read: {found[0]}{more}" if found else None
