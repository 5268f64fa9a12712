"""The journal of a part of a replay: what is being sent, and what became of it, durable before it counts.

A line ``{"batch": n, ...}`` is synced before the batch is sent. A line ``{"sent": n, ...}`` is written after the
response. A batch without the second line was in flight when the process ended: its messages are unknown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.cluster.producer import Batch, Sent
from pyspark_dledger.cluster.replay.replayed import Origin
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.common.durable import open_own, sync_dir, write_all
from pyspark_dledger.errors import StoreError
from pyspark_dledger.rocketmq.jobs.target_folder import parsed

_READ_BYTES = 1 << 20


class Outcome(NamedTuple):
    """What became of a batch: the first messages are at `offsets` of `queue`. `is_unknown` is about the others.

    With `is_rejected`, the broker does not take the next one, and the others were not sent.
    """

    queue: Queue
    origins: tuple[Origin, ...]
    offsets: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    status: str = ""
    may_repeat: bool = False
    is_unknown: bool = True
    is_rejected: bool = False

    @property
    def acknowledged(self) -> Sequence[Origin]:
        return self.origins[: len(self.offsets)]

    @property
    def unknown(self) -> Sequence[Origin]:
        return self.origins[len(self.offsets) :] if self.is_unknown else ()

    @property
    def rejected(self) -> Sequence[Origin]:
        return self.origins[len(self.offsets) :][:1] if self.is_rejected else ()


class _Ended(NamedTuple):
    sent: int
    offsets: tuple[int, ...]
    ids: tuple[str, ...]
    status: str
    may_repeat: bool
    is_unknown: bool
    is_rejected: bool


class Journal:
    """For one process. A last line that was being written when a process ended is removed. Close it.

    Raises OSError, and StoreError for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # By the positions of the messages in the log.
        self.acknowledged: set[int] = set()
        self.rejected: dict[int, tuple[Origin, Queue]] = {}
        unknown: dict[int, tuple[Origin, Queue]] = {}
        self._next = 0
        for outcome in self.outcomes():
            self.acknowledged.update(origin.pos for origin in outcome.acknowledged)
            unknown.update((origin.pos, (origin, outcome.queue)) for origin in outcome.unknown)
            self.rejected.update((origin.pos, (origin, outcome.queue)) for origin in outcome.rejected)
            self._next += 1
        self.unknown = {pos: found for pos, found in unknown.items() if pos not in self.acknowledged}
        self._descriptor = open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        os.ftruncate(self._descriptor, _whole_lines(self._descriptor))
        sync_dir(path.parent)

    def close(self) -> None:
        os.close(self._descriptor)

    def begin(self, batches: Sequence[tuple[Batch, Sequence[Origin]]]) -> list[int]:
        """Note batches that are about to be sent. Returns their numbers."""
        numbers = list(range(self._next, self._next + len(batches)))
        self._next += len(batches)
        self._write(
            {"batch": number, "queue": batch.queue, "origins": origins}
            for number, (batch, origins) in zip(numbers, batches, strict=True)
        )
        os.fsync(self._descriptor)
        return numbers

    def end(self, number: int, sent: Sent) -> None:
        """Note what became of a batch; `sync` makes it durable, and so does the next `begin`."""
        is_unknown = bool(sent.problem) and sent.may_repeat
        offsets, ids = tuple(sent.offsets), tuple(sent.ids)
        found = _Ended(number, offsets, ids, sent.status.name, sent.may_repeat, is_unknown, sent.is_rejected)
        self._write([found._asdict()])

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def _write(self, lines: Any) -> None:
        write_all(self._descriptor, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def outcomes(self) -> Iterator[Outcome]:
        """What became of each batch of the file, in the order of the responses; those without one at the end."""
        begun: dict[int, Outcome] = {}
        for number, line in enumerate(_lines(self.path), 1):
            try:
                row = json.loads(line)
                if "batch" in row:
                    begun[row["batch"]] = Outcome(Queue(*row["queue"]), tuple(map(_origin, row["origins"])))
                    continue
                ended: _Ended = parsed(_Ended, row)
                outcome = begun.pop(ended.sent)._replace(**{name: getattr(ended, name) for name in _Ended._fields[1:]})
                if not len(ended.offsets) == len(ended.ids) <= len(outcome.origins):
                    raise ValueError(f"{len(ended.offsets)} offsets")
            except (ValueError, KeyError, TypeError, RecursionError):
                raise StoreError(
                    f"{self.path}: line {number} is damaged: nothing is sent, because it could have been sent before: "
                    "restore the file"
                ) from None
            yield outcome
        yield from begun.values()


def _origin(values: Sequence[Any]) -> Origin:
    found = Origin(*values)
    if tuple(map(type, found)) != (int, str, int, int, str):
        raise ValueError(f"{values!r} where a message is expected")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a file; none if there is no file."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _whole_lines(descriptor: int) -> int:
    """The size of a file up to the end of its last whole line."""
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(end - _READ_BYTES, 0)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
