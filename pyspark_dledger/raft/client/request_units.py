"""The bodies of append requests, and the calls that wait for them."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar, cast

from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import LENGTH_SIZE, MAX_BODY_SIZE, Bodies, BodyParts, Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.client.append_future import AppendFuture
from pyspark_dledger.raft.client.results import (
    AppendedRange,
    BatchResult,
    PartialAppendError,
    PutRange,
    PutResult,
    positions,
)
from pyspark_dledger.raft.messages import POSITION_SIZE, AppendRequest, AppendResponse, PutRequest, PutResponse
from pyspark_dledger.store.dledger_store import EntryRun

AnyResult = TypeVar("AnyResult", bound="BatchResult | PutResult")

# Log bytes in one request: enough to make its overhead negligible, but several requests can be in flight.
UNIT_BYTES = 1024 * 1024
# Log bytes of one batch in outstanding requests: limits its memory.
_MAX_OUTSTANDING_BYTES = 16 * UNIT_BYTES


class Owner(Protocol):
    """Waits for units. Its methods are called by the client's own thread."""

    @property
    def is_finished(self) -> bool:
        """Whether no more units are to be sent, because an earlier one failed."""

    def acknowledged(self, unit: RequestUnit, response: AppendResponse | PutResponse) -> None: ...

    def failed(self, unit: RequestUnit, error: GroupError | UnknownOutcomeError) -> None: ...


class RequestUnit:
    """The bodies of one request, appended all or none; ``first`` is the number of its first body in the call.

    They are messages if ``queue_nums`` is set; then ``term`` is that of the request. An idempotent unit may be sent
    again after an unknown outcome, the latest of which is ``unknown_outcome``.
    """

    __slots__ = (
        "attempts",
        "bodies",
        "first",
        "is_idempotent",
        "leaderless_since",
        "owner",
        "queue_nums",
        "size",
        "term",
        "unknown_outcome",
    )

    def __init__(
        self,
        owner: Owner,
        first: int,
        bodies: Bodies | BodyParts,
        queue_nums: int | None = None,
        is_idempotent: bool = False,
        term: int = -1,
    ) -> None:
        self.owner = owner
        self.first = first
        self.bodies = bodies
        self.queue_nums = queue_nums
        self.is_idempotent = is_idempotent
        self.term = term
        self.unknown_outcome: UnknownOutcomeError | None = None
        self.size = sum(map(len, bodies[1:])) + ENTRY_HEADER_SIZE * bodies.count
        self.attempts = 0
        # When the first unsuccessful search for a leader began, by the loop's clock in seconds.
        self.leaderless_since: float | None = None

    @property
    def count(self) -> int:
        return self.bodies.count

    @property
    def ordinals(self) -> range:
        """The numbers of its bodies in the call."""
        return range(self.first, self.first + self.count)

    @property
    def are_messages(self) -> bool:
        return self.queue_nums is not None

    def request(self, group: str, member_id: str, is_restart: bool) -> AppendRequest:
        # The wire sends both alike.
        bodies = cast("Bodies", self.bodies)
        if self.queue_nums is None:
            return AppendRequest(group=group, remote_id=member_id, bodies=bodies, is_restart=is_restart)
        return PutRequest(
            group=group,
            remote_id=member_id,
            bodies=bodies,
            is_restart=is_restart,
            queue_nums=self.queue_nums,
            term=self.term,
        )

    def matches(self, response: object) -> bool:
        """Whether the response has the positions of these bodies."""
        if isinstance(response, PutResponse):
            return self.are_messages and len(response.positions) == self.count * POSITION_SIZE
        if self.are_messages or not isinstance(response, AppendResponse):
            return False
        return response.count == self.count and response.index >= 0

    def failed(self, error: GroupError | UnknownOutcomeError) -> None:
        """Report the final error. After an unknown outcome the bodies may be in the log, also if a retry failed."""
        if self.unknown_outcome is not None and not isinstance(error, UnknownOutcomeError):
            error = UnknownOutcomeError(f"{self.unknown_outcome}; then: {error}", error.code, error.leader_id)
        self.owner.failed(self, error)

    def split(self) -> list[RequestUnit]:
        """A unit for each body, for a leader that accepts one per request."""
        engine = get_engine()
        units = []
        for ordinal, body in enumerate(engine.unpack_bodies(self.bodies.parts.packed())):
            unit = RequestUnit(self.owner, self.first + ordinal, engine.pack_bodies([body]))
            unit.attempts, unit.leaderless_since = self.attempts, self.leaderless_since
            units.append(unit)
        return units


class SingleAppends:
    """Single appends in one request; each has its own result."""

    is_finished = False

    def __init__(self, bodies: Sequence[bytes], futures: Sequence[AppendFuture]) -> None:
        self._sizes = list(map(len, bodies))
        self._futures = futures

    def acknowledged(self, unit: RequestUnit, response: AppendResponse | PutResponse) -> None:
        assert isinstance(response, AppendResponse)
        chosen = slice(unit.first, unit.first + unit.count)
        found = positions(response.index, response.term, runs_of(response), self._sizes[chosen])
        for future, appended in zip(self._futures[chosen], found, strict=True):
            future.set_result(appended)

    def failed(self, unit: RequestUnit, error: GroupError | UnknownOutcomeError) -> None:
        for future in self._futures[unit.first : unit.first + unit.count]:
            # A copy for each: raising an exception changes its traceback.
            future.set_exception(copy(error))


class BulkCall(ABC, Generic[AnyResult]):
    """The bodies of one call; the calling thread waits for them.

    A call that fails raises GroupError if nothing was appended, else PartialAppendError.
    """

    _what: str

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._outstanding = 0
        # Ordinals.
        self._done: list[range] = []
        self._unknown: list[range] = []
        self._error: GroupError | UnknownOutcomeError | None = None
        # Of the first error.
        self._code = 0
        self._is_finished = False

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    @abstractmethod
    def _unit(self, first: int, bodies: Bodies | BodyParts) -> RequestUnit: ...

    @abstractmethod
    def _add_response(self, unit: RequestUnit, response: Any) -> None:
        """Keep the positions of a response."""

    @abstractmethod
    def _found(self) -> AnyResult:
        """The positions of all bodies that were appended."""

    def unit(self, first: int, bodies: Bodies | BodyParts) -> RequestUnit:
        """A new unit of this call, which waits for it."""
        unit = self._unit(first, bodies)
        with self._changed:
            self._outstanding += unit.size
        return unit

    def wait_for_room(self) -> bool:
        """Wait until one more unit may be sent. Returns False if the call has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding < _MAX_OUTSTANDING_BYTES or self._is_finished)
            return not self._is_finished

    def abandon(self) -> None:
        """The call has ended: unsent units are not sent."""
        self._is_finished = True

    def acknowledged(self, unit: RequestUnit, response: AppendResponse | PutResponse) -> None:
        with self._changed:
            self._done.append(unit.ordinals)
            self._add_response(unit, response)
            self._finish_unit(unit)

    def failed(self, unit: RequestUnit, error: GroupError | UnknownOutcomeError) -> None:
        is_unknown = isinstance(error, UnknownOutcomeError)
        with self._changed:
            self._is_finished = True
            if is_unknown:
                self._unknown.append(unit.ordinals)
            if self._error is None:
                self._error, self._code = error, error.code
            elif is_unknown and not isinstance(self._error, UnknownOutcomeError):
                self._error = error
            self._finish_unit(unit)

    def _finish_unit(self, unit: RequestUnit) -> None:
        self._outstanding -= unit.size
        self._changed.notify_all()

    def result(self) -> AnyResult:
        """Wait for all units. Raises GroupError or PartialAppendError."""
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding == 0)
        result = self._found()
        if self._error is None:
            return result
        unknown, done = _merged(self._unknown), _merged(self._done)
        if not (unknown or done):
            raise self._error
        rest = _complement([*unknown, *done], self._count)
        text = f"of {self._count} {self._what} {len(result)} were appended, "
        text += f"{sum(map(len, unknown))} have an unknown outcome, "
        text += f"and {sum(map(len, rest))} were not appended: {self._error}"
        raise PartialAppendError(text, self._code, self._error.leader_id, result, unknown, rest) from self._error


class BatchCall(BulkCall[BatchResult]):
    """The bodies of one ``append_batch``."""

    _what = "entries"

    def __init__(self, sizes: array[int]) -> None:
        super().__init__(len(sizes))
        self._sizes = sizes
        self._ranges: list[AppendedRange] = []

    def _unit(self, first: int, bodies: Bodies | BodyParts) -> RequestUnit:
        return RequestUnit(self, first, bodies)

    def _add_response(self, unit: RequestUnit, response: AppendResponse) -> None:
        self._ranges.append(AppendedRange(unit.first, unit.count, response.index, response.term, runs_of(response)))

    def _found(self) -> BatchResult:
        return BatchResult(self._sizes, self._ranges)


class PutCall(BulkCall[PutResult]):
    """The messages of one ``put_messages``."""

    _what = "messages"

    def __init__(self, count: int, queue_nums: int, is_idempotent: bool, term: int) -> None:
        super().__init__(count)
        self._term = term
        self._queue_nums = queue_nums
        self._is_idempotent = is_idempotent
        self._ranges: list[PutRange] = []

    def _unit(self, first: int, bodies: Bodies | BodyParts) -> RequestUnit:
        return RequestUnit(self, first, bodies, self._queue_nums, self._is_idempotent, self._term)

    def _add_response(self, unit: RequestUnit, response: PutResponse) -> None:
        self._ranges.append(PutRange(unit.first, unit.count, bytes(response.positions)))

    def _found(self) -> PutResult:
        return PutResult(self._ranges)


def runs_of(response: AppendResponse) -> tuple[EntryRun, ...]:
    """The runs of the acknowledged entries; Java's response has only the position of its one entry."""
    return response.runs or (EntryRun(response.index, response.pos),)


def _merged(ranges: Sequence[range]) -> tuple[range, ...]:
    """The ranges, ascending, with adjacent ones merged."""
    joined: list[range] = []
    for part in sorted(ranges, key=lambda part: part.start):
        if joined and joined[-1].stop == part.start:
            joined[-1] = range(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def _complement(ranges: Sequence[range], count: int) -> tuple[range, ...]:
    """The parts of ``range(count)`` that are in none of the ranges."""
    rest = []
    start = 0
    for part in (*sorted(ranges, key=lambda part: part.start), range(count, count)):
        if start < part.start:
            rest.append(range(start, part.start))
        start = part.stop
    return tuple(rest)


def check_body(body: Buffer) -> bytes:
    """A body as immutable bytes. Raises TypeError and ValueError."""
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(f"body: expected bytes, a bytearray or a memoryview, found {type(body).__name__}")
        body = bytes(body)
    if len(body) > MAX_BODY_SIZE:
        raise ValueError(f"body: expected at most {MAX_BODY_SIZE} bytes, found {len(body)}")
    return body


def sizes_of(bodies: BodyParts | Sequence[Buffer]) -> array[int]:
    """The size of each body of a batch, in bytes. Raises TypeError and ValueError for invalid bodies."""
    sizes = _packed_sizes(bodies) if isinstance(bodies, BodyParts) else array("I", map(_size, bodies))
    if not sizes:
        raise ValueError("bodies: expected at least one, found none")
    if (largest := max(sizes)) > MAX_BODY_SIZE:
        raise ValueError(
            f"bodies: expected at most {MAX_BODY_SIZE} bytes each, found {largest} in body {sizes.index(largest)}"
        )
    return sizes


def _size(body: Buffer) -> int:
    if isinstance(body, (bytes, bytearray)):
        return len(body)
    if isinstance(body, memoryview):
        return body.nbytes
    raise TypeError(f"bodies: expected bytes, bytearrays or memoryviews, found {type(body).__name__}")


def _packed_sizes(bodies: BodyParts) -> array[int]:
    sizes = array("I", bytes(bodies.lengths))
    if sys.byteorder == "little":
        sizes.byteswap()
    expected, found = LENGTH_SIZE * bodies.count + sum(sizes), len(bodies.lengths) + len(bodies.data)
    if len(sizes) != bodies.count or expected != found:
        raise ValueError(f"bodies: expected a block of {expected} bytes for {bodies.count} lengths, found {found}")
    return sizes


def split_batch(bodies: BodyParts | Sequence[Buffer], sizes: array[int]) -> Iterator[tuple[int, Bodies | BodyParts]]:
    """Yield a batch in parts of about `UNIT_BYTES`: the number of the first body, and the bodies."""
    ends = list(accumulate(map(ENTRY_HEADER_SIZE.__add__, sizes)))
    first = start = 0
    while first < len(sizes):
        last = max(first + 1, bisect_right(ends, start + UNIT_BYTES, first))
        yield first, _part(bodies, first, last, start, ends[last - 1])
        first, start = last, ends[last - 1]


def _part(bodies: BodyParts | Sequence[Buffer], first: int, last: int, start: int, end: int) -> Bodies | BodyParts:
    """Bodies ``[first, last)``; as entries they would be the bytes ``[start, end)`` of the batch."""
    if not isinstance(bodies, BodyParts):
        return get_engine().pack_bodies(bodies[first:last])
    lengths, data = memoryview(bodies.lengths).cast("B"), memoryview(bodies.data).cast("B")
    return BodyParts(
        last - first,
        lengths[LENGTH_SIZE * first : LENGTH_SIZE * last],
        data[start - ENTRY_HEADER_SIZE * first : end - ENTRY_HEADER_SIZE * last],
    )
