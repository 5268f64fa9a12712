"""What clients of a log did and were told, and whether one log could have answered so.

Bodies are unique. A history is linearizable if every operation can be given one moment between its call and its
answer so that all answers are those of a single log. For a log that reduces to: the bodies in the final log, what was
told about each index, and moments that rise with the index.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

NEVER = float("inf")


@dataclass(slots=True)
class Append:
    """``outcome``: acknowledged (at ``index``), refused (certainly not in the log) or unknown. Times in seconds."""

    body: bytes
    called: float
    answered: float = NEVER
    outcome: str = "unknown"
    index: int = -1


@dataclass(slots=True)
class Get:
    """What a read of ``index`` gave; ``body`` None means: certainly not there (not committed)."""

    index: int
    called: float
    answered: float
    body: bytes | None


@dataclass
class History:
    """Operations of any number of threads."""

    appends: list[Append] = field(default_factory=list)
    gets: list[Get] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, operation: Append | Get) -> None:
        with self.lock:
            (self.appends if isinstance(operation, Append) else self.gets).append(operation)  # type: ignore[arg-type]


def violations(history: History, log: Sequence[bytes]) -> list[str]:
    """Everything in the history that this final log (bodies by index) cannot explain; empty if linearizable."""
    found = [*_wrong_places(history, log), *_wrong_reads(history, log)]
    return found or list(_wrong_order(history, log))


def _wrong_places(history: History, log: Sequence[bytes]) -> Iterator[str]:
    places: dict[bytes, list[int]] = {}
    for index, body in enumerate(log):
        places.setdefault(body, []).append(index)
    known = {append.body for append in history.appends}
    for append in history.appends:
        at = places.get(append.body, [])
        if append.outcome == "acknowledged" and at != [append.index]:
            yield f"{append.body!r} was acknowledged at {append.index}, and stands at {at or 'no index'}"
        elif append.outcome == "refused" and at:
            yield f"{append.body!r} was refused, and stands at {at}"
        elif len(at) > 1:
            yield f"{append.body!r} was appended once, and stands at {at}"
    for body, at in places.items():
        if body not in known:
            yield f"{body!r} at {at} was appended by nobody"


def _wrong_reads(history: History, log: Sequence[bytes]) -> Iterator[str]:
    for get in history.gets:
        if get.body is not None and (get.index >= len(log) or log[get.index] != get.body):
            there = repr(log[get.index]) if get.index < len(log) else "nothing"
            yield f"index {get.index} was read as {get.body!r}, and the log has {there}"


def _wrong_order(history: History, log: Sequence[bytes]) -> Iterator[str]:
    """An entry comes to be between `earliest` and `latest`; the moments chosen there have to rise with the index."""
    by_body = {append.body: append for append in history.appends}
    earliest = [by_body[body].called for body in log]
    latest = [by_body[body].answered if by_body[body].outcome == "acknowledged" else NEVER for body in log]
    for get in history.gets:
        if get.index >= len(log):
            continue
        if get.body is None:
            earliest[get.index] = max(earliest[get.index], get.called)
        else:
            latest[get.index] = min(latest[get.index], get.answered)
    moment, since = -NEVER, -1
    for index, (low, high) in enumerate(zip(earliest, latest, strict=True)):
        if low > moment:
            moment, since = low, index
        if moment > high:
            yield f"index {index} was there at {high:.6f}, but index {since} cannot have been before {moment:.6f}"
