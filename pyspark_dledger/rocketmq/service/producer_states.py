"""What a leader's log has of the messages of one producer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.encode.identities import CLAIM, runs_of
from pyspark_dledger.format.encode.puts import CONTENT_SIZE, MAX_STATE_IDS, ProducerState
from pyspark_dledger.rocketmq.dedup.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.dedup.identity_arrays import WORD, IdentityArrays, concatenated, identity_arrays
from pyspark_dledger.rocketmq.service.leader_tables import LeaderTables

_MAX_IDS = MAX_STATE_IDS // CONTENT_SIZE
# Each task of a micro-batch asks about its job: more than so many jobs at once are counted again.
_MAX_KNOWN = 1024
# The leader forgets the claims of earlier jobs.
_MAX_CLAIMED = 1 << 16


def producer_state(
    tables: LeaderTables, identities: CommittedIdentities, producer: bytes, run: int, from_index: int
) -> ProducerState:
    """The state of a producer, committed or not. It may read the disk, if an earlier run's messages are asked for."""
    number = int.from_bytes(producer, "little")
    if from_index == CLAIM:
        _claim(tables, number, run)
    tables.recent.forget(identities.covered)
    old, covered = identities.of_producer(number)
    ids, index = tables.recent.of_producer(number, covered)
    found = concatenated([old, identity_arrays(bytes(ids), np.frombuffer(index, np.int64))])
    if from_index < 0 and tables.only_runs.get(number) == run:
        return ProducerState(len(found))
    others = np.count_nonzero(runs_of(found.first, found.second) != run)
    if not others:
        _remember(tables, number, run)
        if from_index < 0:
            return ProducerState(len(found))
    last_number = min(int(found.first.max()), INT64_MAX) if len(found) else -1
    state = ProducerState(len(found), int(others), last_number, last_index=int(found.index.max()) if len(found) else -1)
    return state if from_index < 0 else _with_ids(state, found, from_index)


def _claim(tables: LeaderTables, producer: int, run: int) -> None:
    """Make a run the last one of its job, unless another one has claimed the job since this one did."""
    runs = tables.claims.setdefault(producer, [])
    if run not in runs:
        runs.append(run)
        # Until now only the last run wrote.
        tables.only_runs.pop(producer, None)
    if len(tables.claims) > _MAX_CLAIMED:
        del tables.claims[next(iter(tables.claims))]


def check_claims(tables: LeaderTables, ids: bytes, new: npt.NDArray[np.bool_]) -> None:
    """Raise ValueError if one of these `new` messages is of another run of its job than the last that claimed it."""
    if not tables.claims or not new.any():
        return
    words = np.frombuffer(ids, WORD).reshape(-1, 3)[new]
    is_one = (words[:, 0] == words[0, 0]).all()
    for producer in np.unique(words[: 1 if is_one else None, 0]).tolist():
        runs = tables.claims.get(producer)
        if runs is None:
            continue
        mine = words[words[:, 0] == producer]
        if (runs_of(mine[:, 1], mine[:, 2]) != runs[-1]).any():
            raise ValueError("expected messages of the job's last run, found new ones of another run: end that one")


def _remember(tables: LeaderTables, producer: int, run: int) -> None:
    known = tables.only_runs
    known[producer] = run
    if len(known) > _MAX_KNOWN:
        del known[next(iter(known))]


def _with_ids(state: ProducerState, found: IdentityArrays, from_index: int) -> ProducerState:
    order = np.argsort(found.index, kind="stable")
    order = order[np.searchsorted(found.index[order], from_index) :]
    page = found.take(order[:_MAX_IDS])
    ids = np.stack((page.first, page.second), axis=1).astype(WORD).tobytes()
    next_index = int(found.index[order[_MAX_IDS]]) if len(order) > _MAX_IDS else -1
    return state._replace(ids=ids, next_index=next_index)
