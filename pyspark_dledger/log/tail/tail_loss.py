"""What became of an entry that was read and is no longer what stands in the log, and where reading goes on."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import TailOffset
from pyspark_dledger.log.tail.tail_view import EntryRef, View


@dataclass(frozen=True)
class Resumed:
    """Where reading goes on behind an offset: the position, None where that is not known yet.

    ``pinned`` is set where what was read is no longer what stands there: a batch from there is empty and ends here, so
    that the checkpoint holds a place in the log as it is now.
    """

    pos: int | None
    pinned: TailOffset | None = None


@dataclass(frozen=True)
class Lost:
    """What is wrong with an offset. ``cut_at`` is the first index that is known to be another entry now."""

    problem: str
    resumed: str
    to: Resumed
    cut_at: int | None = None


def expired_positions(view: View, start: TailOffset) -> Lost:
    """What follows `start` was deleted, and where it stood is all that is known of it."""
    return Lost(
        f"expected the log from {start} on, found that it begins at pos {view.begin}: what stood before has expired",
        f"reading goes on at pos {view.begin}, and what stood behind {start} is skipped",
        Resumed(view.begin),
    )


def lost_message(view: View, start: TailOffset) -> Lost:
    """What became of a message of the old CommitLog."""
    assert start.pos is not None
    divided = view.store.divided_commitlog_offset
    if view.store.ledger_segments and start.pos >= divided:
        at = max(divided, view.begin)
        return Lost(
            f"expected {start} in the old CommitLog, found that dividedCommitlogOffset is {divided} now",
            f"reading goes on there, with the first entry of DLedger at pos {at}",
            Resumed(None, TailOffset(pos=at)),
        )
    if start.pos < view.begin:
        return expired_positions(view, start)
    found = view.place(COMMITLOG, start.pos)
    return Lost(
        f"expected {start} with CRC {start.crc}, found {_shown(found)}: the log is another one, or was written anew",
        f"reading goes on behind {_named(view.end)}, and what the log holds up to there is skipped",
        Resumed(None, view.end.offset if view.end is not None else TailOffset(pos=view.begin)),
    )


def lost_entry(view: View, start: TailOffset, begin: int | None) -> Lost:
    """What became of an entry of DLedger."""
    assert start.index is not None and start.term is not None
    end = view.store.end
    if begin is not None and begin > start.index + 1:
        return Lost(
            f"expected index {start.index + 1} next, found that the log begins with {begin}: what was before expired",
            f"reading goes on with index {begin}, and indexes {start.index + 1} to {begin - 1} are skipped",
            Resumed(view.position_of(begin)),
        )
    if begin is None or start.index > end.last_index:
        now = f"that the log ends with index {end.last_index}: it was cut, or it is another one"
    else:
        now = f"{_shown(view.entry(start.index))}: the log was written anew from there or before, or it is another one"
    problem = f"expected {start} with CRC {start.crc}, found {now}"
    cut_at = _first_with_higher_term(view.store, start)
    if cut_at is not None:
        before = view.entry(cut_at - 1) if begin is not None and cut_at > begin else None
        return Lost(
            problem,
            f"reading goes on with index {cut_at}, the first of a later term; what was read from there to index "
            f"{start.index} is not in the log any more, and nothing is skipped",
            Resumed(None, before.offset if before is not None else TailOffset(pos=view.begin)),
            cut_at,
        )
    # What stands there counts as read, committed or not: nothing is to be read twice.
    place = view.entry(min(start.index, end.last_index)) if begin is not None else None
    return Lost(
        problem,
        f"reading goes on behind {_named(place)}; what was written anew up to there is skipped, and where that began "
        "is not known",
        Resumed(None, place.offset if place is not None else TailOffset(pos=view.begin)),
    )


def _first_with_higher_term(store: StoreView, start: TailOffset) -> int | None:
    """The first index up to that of `start` whose entry has a later term: what a leader elected since wrote."""
    assert start.index is not None and start.term is not None
    runs = store.term_runs()
    return next((run.index for run in runs if run.term > start.term and run.index <= start.index), None)


def _named(place: EntryRef | None) -> str:
    return str(place.offset) if place is not None else "the log's begin"


def _shown(place: EntryRef | None) -> str:
    return f"{place.offset} with CRC {place.offset.crc}" if place is not None else "nothing that fits"
