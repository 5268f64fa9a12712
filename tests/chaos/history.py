"""A history of client operations, and whether it is linearizable.

Bodies are unique. A history is linearizable if each operation can be assigned one moment between call and return
such that all results are those of a single log. For a log this means: results agree with the final log, and the moments
increase with the index.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

NEVER = float("inf")

Log = Sequence[bytes | None]
"""Bodies by index; None for entries of the group itself, which clients read as b""."""


@dataclass(slots=True)
class Append:
    """``outcome``: acknowledged (at ``index``), rejected (certainly not in the log) or unknown. Times are seconds."""

    body: bytes
    called: float
    returned: float = NEVER
    outcome: str = "unknown"
    index: int = -1


@dataclass(slots=True)
class Get:
    """The result of a read of ``index``; ``body`` None: not committed."""

    index: int
    called: float
    returned: float
    body: bytes | None


@dataclass
class History:
    """Operations of many threads."""

    appends: list[Append] = field(default_factory=list)
    gets: list[Get] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, operation: Append | Get) -> None:
        with self.lock:
            (self.appends if isinstance(operation, Append) else self.gets).append(operation)  # type: ignore[arg-type]


def violations(history: History, log: Log) -> list[str]:
    """The results that contradict this final log; empty if the history is linearizable."""
    found = [*_wrong_indexes(history, log), *_wrong_reads(history, log)]
    return found or list(_wrong_order(history, log))


def _wrong_indexes(history: History, log: Log) -> Iterator[str]:
    indexes: dict[bytes | None, list[int]] = {}
    for index, body in enumerate(log):
        indexes.setdefault(body, []).append(index)
    known = {append.body for append in history.appends}
    for append in history.appends:
        at = indexes.get(append.body, [])
        if append.outcome == "acknowledged" and at != [append.index]:
            yield f"{append.body!r} was acknowledged at {append.index}, but is at {at or 'no index'}"
        elif append.outcome == "rejected" and at:
            yield f"{append.body!r} was rejected, but is at {at}"
        elif len(at) > 1:
            yield f"{append.body!r} was appended once, but is at {at}"
    for body, at in indexes.items():
        if body is not None and body not in known:
            yield f"{body!r} at {at} was never appended"


def _wrong_reads(history: History, log: Log) -> Iterator[str]:
    for get in history.gets:
        if get.body is not None and (get.index >= len(log) or (log[get.index] or b"") != get.body):
            found = repr(log[get.index]) if get.index < len(log) else "no such entry"
            yield f"index {get.index} was read as {get.body!r}, but the log has {found}"


def _wrong_order(history: History, log: Log) -> Iterator[str]:
    """Each entry is appended between `earliest` and `latest`; the moments must increase with the index."""
    by_body = {append.body: append for append in history.appends}
    appends = [None if body is None else by_body[body] for body in log]
    earliest = [-NEVER if append is None else append.called for append in appends]
    latest = [
        append.returned if append is not None and append.outcome == "acknowledged" else NEVER for append in appends
    ]
    for get in history.gets:
        if get.index >= len(log):
            continue
        if get.body is None:
            earliest[get.index] = max(earliest[get.index], get.called)
        else:
            latest[get.index] = min(latest[get.index], get.returned)
    moment, since = -NEVER, -1
    for index, (low, high) in enumerate(zip(earliest, latest, strict=True)):
        if low > moment:
            moment, since = low, index
        if moment > high:
            yield f"index {index} existed at {high:.6f}, but index {since} did not before {moment:.6f}"
