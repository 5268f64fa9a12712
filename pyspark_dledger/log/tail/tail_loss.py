"""Data loss: an entry that was read is no longer in the log. Finds out why, and where reading continues."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import TailOffset
from pyspark_dledger.log.tail.tail_view import EntryRef, TailView


@dataclass(frozen=True)
class ResumePoint:
    """The position at which reading continues; None if it is not known yet.

    ``pinned`` is set if the entry that was read is no longer in the log. The next batch is then empty and ends at
    ``pinned``, so that the checkpoint has an offset of the present log.
    """

    pos: int | None
    pinned: TailOffset | None = None


@dataclass(frozen=True)
class DataLoss:
    """The problem with an offset, and how reading continues, both as text.

    ``truncated_at`` is the first index that is known to have another entry now; ``expired`` entries are skipped.
    """

    problem: str
    resumed: str
    resume: ResumePoint
    truncated_at: int | None = None
    expired: int = 0


def expired_positions(view: TailView, start: TailOffset) -> DataLoss:
    """The loss for a `start` that is only a position, below the beginning of the log."""
    return DataLoss(
        f"expected the log from {start} on, found that it begins at pos {view.begin}: older data has expired",
        f"reading continues at pos {view.begin}, and data from {start} up to there is skipped",
        ResumePoint(view.begin),
    )


def lost_message(view: TailView, start: TailOffset) -> DataLoss:
    """The loss for a message of the old CommitLog."""
    assert start.pos is not None
    divided = view.store.divided_commitlog_offset
    if view.store.ledger_segments and start.pos >= divided:
        at = max(divided, view.begin)
        return DataLoss(
            f"expected {start} in the old CommitLog, found that dividedCommitlogOffset is {divided} now",
            f"reading continues there, with the first entry of DLedger at pos {at}",
            ResumePoint(None, TailOffset(pos=at)),
        )
    if start.pos < view.begin:
        return expired_positions(view, start)
    found = view.entry_ref(COMMITLOG, start.pos)
    return DataLoss(
        f"expected {start} with CRC {start.crc}, found {_with_crc(found)}: the log was replaced or overwritten",
        f"reading continues after {_offset_of(view.end)}, and the log up to there is skipped",
        ResumePoint(None, view.end.offset if view.end is not None else TailOffset(pos=view.begin)),
    )


def lost_entry(view: TailView, start: TailOffset, begin: int | None) -> DataLoss:
    """The loss for an entry of DLedger; `begin` is the first index of the log."""
    assert start.index is not None and start.term is not None
    end = view.store.end
    if begin is not None and begin > start.index + 1:
        return DataLoss(
            f"expected index {start.index + 1} next, found that the log begins with {begin}: older ones have expired",
            f"reading continues with index {begin}, and indexes {start.index + 1} to {begin - 1} are skipped",
            ResumePoint(view.position_of(begin)),
            expired=begin - start.index - 1,
        )
    if begin is None or start.index > end.last_index:
        found = f"that the log ends with index {end.last_index}: it was truncated or replaced"
    else:
        found = f"{_with_crc(view.entry(start.index))}: the log was overwritten from there or before, or replaced"
    problem = f"expected {start} with CRC {start.crc}, found {found}"
    truncated_at = _first_with_higher_term(view.store, start)
    if truncated_at is not None:
        before = view.entry(truncated_at - 1) if begin is not None and truncated_at > begin else None
        return DataLoss(
            problem,
            f"reading continues with index {truncated_at}, the first of a later term; the entries read before, from "
            f"there to index {start.index}, are no longer in the log, and nothing is skipped",
            ResumePoint(None, before.offset if before is not None else TailOffset(pos=view.begin)),
            truncated_at,
        )
    # The entry there counts as read, committed or not, so that nothing is read twice.
    last = view.entry(min(start.index, end.last_index)) if begin is not None else None
    return DataLoss(
        problem,
        f"reading continues after {_offset_of(last)}; overwritten entries up to there are skipped, and the first of "
        "them is not known",
        ResumePoint(None, last.offset if last is not None else TailOffset(pos=view.begin)),
    )


def _first_with_higher_term(store: StoreView, start: TailOffset) -> int | None:
    """The first index up to that of `start` whose entry has a later term: a leader elected since wrote it."""
    assert start.index is not None and start.term is not None
    runs = store.term_runs()
    return next((run.index for run in runs if run.term > start.term and run.index <= start.index), None)


def _offset_of(entry: EntryRef | None) -> str:
    return str(entry.offset) if entry is not None else "the log's begin"


def _with_crc(entry: EntryRef | None) -> str:
    return f"{entry.offset} with CRC {entry.offset.crc}" if entry is not None else "no entry"
