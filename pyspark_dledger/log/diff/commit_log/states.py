"""Facts about each replica of a CommitLog, and where Java would truncate one to follow another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommitLogState:
    """The state of one replica's CommitLog; positions in bytes.

    ``lag_bytes`` is what the longest replica has after its end. ``damaged_bytes`` it lost, or has damaged;
    ``diverged_bytes`` another master wrote, ``unread`` positions are of files that cannot be read. ``epoch`` is the
    last that begins in the log; it and ``confirm_offset`` are None if it has none. ``epoch_problem`` is what is wrong
    with its epoch file, ``unreadable`` what cannot be read of its log, checkpoint, queues and indexes.
    """

    node: str
    path: str
    begin: int
    end: int
    files: int
    missing: tuple[tuple[int, int], ...]
    short: tuple[str, ...]
    epoch: int | None
    epoch_problem: str | None
    confirm_offset: int | None
    lag_bytes: int
    damaged_bytes: int
    diverged_bytes: int
    abort: bool
    unread: tuple[tuple[int, int], ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class ConsistentPoint:
    """Where `slave` would truncate its log to follow `master` (``EpochFileCache.findConsistentPoint``).

    ``pos`` is None if Java finds no position: the slave then does not replicate. ``lost_bytes`` are those of the slave
    from there on, ``confirmed_bytes`` the part of them that it had confirmed. ``is_common``: both have the same bytes
    before it.
    """

    slave: str
    master: str
    pos: int | None
    lost_bytes: int
    confirmed_bytes: int
    is_common: bool
