"""The state of a store: its node, its indexes and offsets, and what is committed."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.log.committed import Bound, committed_bound
from pyspark_dledger.log.io.state_files import read_current_term
from pyspark_dledger.log.store_view import StoreView


@dataclass(frozen=True)
class State:
    """What a store is and where its log begins and ends; -1 for an index or offset that does not exist.

    Offsets are positions in the log, in bytes; indexes are DLedger's. ``committed_index`` is None where no bound is
    known; ``committed_from`` then gives the reason. ``min_offset`` is where the first row begins, ``max_offset`` where
    the log ends.
    """

    node: str | None
    path: str
    dialect: str
    begin_index: int
    end_index: int
    end_term: int
    committed_index: int | None
    committed_from: str | None
    checkpoint_committed_index: int | None
    checkpoint_end_index: int | None
    curr_term: int | None
    vote_leader: str | None
    divided_commitlog_offset: int
    data_file_size: int | None
    index_file_size: int | None
    min_offset: int
    max_offset: int
    abort: bool


def state_of(store: StoreView) -> State:
    """The state of a store; its options choose the committed bound."""
    ledger, paths, checkpoint = store.ledger_segments, store.paths, store.checkpoint
    bound = committed_bound(store, store.options) if ledger else Bound(None, None)
    term = read_current_term(paths.node_dir)[0] if paths.node_dir is not None else None
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
        abort=paths.root is not None and (paths.root / "abort").exists(),
    )
