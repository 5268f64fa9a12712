"""READ requests at any member: returns committed entries at once, or waits until they are committed."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER
from pyspark_dledger.raft.messages import ReadRequest, ReadResponse
from pyspark_dledger.raft.node.callers import Caller, LocalCaller
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.raft.node.inbound import Inbound
from pyspark_dledger.store.dledger_store import DLedgerStore, EntryRange

# The maximum size of a response's entries in bytes; one entry, of 4 MiB or less, is always returned.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_WAIT_MS = 60_000
_SIZE = struct.Struct(">i")
_SIZE_OFFSET = next(field.offset for field in ENTRY_HEADER if field.name == "size")


class Cancellable(Protocol):
    """What `CallLater` returns (``asyncio.TimerHandle``)."""

    def cancel(self) -> None: ...


# Calls a function after a time in seconds (``asyncio.AbstractEventLoop.call_later``).
CallLater = Callable[[float, Callable[[], object]], Cancellable]


@dataclass(order=True)
class _WaitingRead:
    first_index: int
    order: int
    request: ReadRequest = field(compare=False)
    caller: Caller | LocalCaller = field(compare=False)
    timer: Cancellable | None = field(compare=False, default=None)
    is_over: bool = field(compare=False, default=False)


class CommittedReads:
    """Responds to READ requests from a store. `committed` must be called when its committed index rises."""

    def __init__(
        self, store: DLedgerStore, threads: DiskThreads, group: str, self_id: str, call_later: CallLater
    ) -> None:
        self._store = store
        self._call_later = call_later
        self._threads = threads
        self._group = group
        self._self_id = self_id
        # A heap. Those that are over stay in it until they are half of it: thousands can time out at once.
        self._waiting: list[_WaitingRead] = []
        self._over = 0
        self._orders = count()

    def read(self, request: ReadRequest, caller: Caller | LocalCaller) -> None:
        """Respond now, when the entry is committed, or after the timeout."""
        if (code := self._error_code(request)) is not None:
            caller.respond(ReadResponse(group=request.group, local_id=self._self_id, code=code))
            return
        if request.first_index <= self._store.committed_index or request.wait_ms <= 0 or request.first_index < 0:
            self._respond(request, caller)
            return
        waiting = _WaitingRead(request.first_index, next(self._orders), request, caller)
        seconds = min(request.wait_ms, _MAX_WAIT_MS) / 1000
        waiting.timer = self._call_later(seconds, lambda: self._time_out(waiting))
        heapq.heappush(self._waiting, waiting)

    def committed(self, index: int) -> None:
        """Respond to all requests that wait for entries up to that index."""
        while self._waiting and self._waiting[0].first_index <= index:
            waiting = heapq.heappop(self._waiting)
            if waiting.is_over:
                self._over -= 1
                continue
            if waiting.timer is not None:
                waiting.timer.cancel()
            # Its timeout may be due in this turn of the event loop.
            waiting.is_over = True
            self._respond(waiting.request, waiting.caller)

    def drop(self, inbound: Inbound) -> None:
        """Drop the waiting requests of a lost connection."""
        for waiting in self._waiting:
            if waiting.caller.inbound is inbound and not waiting.is_over:
                if waiting.timer is not None:
                    waiting.timer.cancel()
                self._end(waiting)
        self._remove_ended()

    def _end(self, waiting: _WaitingRead) -> None:
        waiting.is_over = True
        self._over += 1

    def _remove_ended(self) -> None:
        if 2 * self._over > len(self._waiting):
            self._waiting = [waiting for waiting in self._waiting if not waiting.is_over]
            heapq.heapify(self._waiting)
            self._over = 0

    def _error_code(self, request: ReadRequest) -> ResponseCode | None:
        """The core's code for requests to another member or group."""
        if request.remote_id != self._self_id:
            return ResponseCode.UNKNOWN_MEMBER
        return ResponseCode.UNKNOWN_GROUP if request.group != self._group else None

    def _time_out(self, waiting: _WaitingRead) -> None:
        if self._threads.is_busy:
            self._threads.when_idle(lambda: self._time_out(waiting))
            return
        if waiting.is_over:
            return
        self._end(waiting)
        self._remove_ended()
        self._respond(waiting.request, waiting.caller)

    def _respond(self, request: ReadRequest, caller: Caller | LocalCaller) -> None:
        """Respond when there is memory: even a small `max_bytes` gets an entry of any size."""
        store, first = self._store, request.first_index
        if store.is_recent(first) or not store.ledger_begin_index <= first <= store.committed_index:
            caller.when_room(_MAX_BYTES, lambda: caller.respond(self._response(request, store.read)))
            return

        def done(found: EntryRange | Exception) -> None:
            removals = store.removals

            def respond() -> None:
                if store.removals != removals:
                    # Other entries may have replaced uncommitted ones of the range, and be committed.
                    self._respond(request, caller)
                else:
                    caller.respond(self._response(request, lambda _first, _size: found))

            caller.when_room(_MAX_BYTES, respond)

        self._threads.read(first, _size_of(request), done)

    def _response(self, request: ReadRequest, read: Callable[[int, int], EntryRange | Exception]) -> ReadResponse:
        store = self._store
        response = ReadResponse(
            group=self._group,
            local_id=self._self_id,
            begin_index=store.ledger_begin_index,
            committed_index=store.committed_index,
        )
        if request.first_index > store.committed_index:
            return response
        if request.first_index < store.ledger_begin_index:
            response.code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
            return response
        try:
            found = read(request.first_index, _size_of(request))
            if isinstance(found, Exception):
                raise found
            found = self._committed_part(found)
        except IndexRangeError:
            response.code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN  # expired in the meantime
            return response
        except StoreError:
            response.code = ResponseCode.DISK_ERROR
            return response
        response.first_index, response.data = found.first_index, found.data
        response.count = found.last_index - found.first_index + 1
        return response

    def _committed_part(self, found: EntryRange) -> EntryRange:
        """The entries up to the committed index, which the range has."""
        committed = self._store.committed_index
        if found.last_index <= committed:
            return found
        if self._store.is_recent(committed):
            last = self._store.read(committed, 1)
            end = last.pos + len(last.data) - found.pos
        else:
            end = 0
            for _ in range(found.first_index, committed + 1):
                end += _SIZE.unpack_from(found.data, end + _SIZE_OFFSET)[0]
        return found._replace(last_index=committed, data=memoryview(found.data)[:end])


def _size_of(request: ReadRequest) -> int:
    return max(1, min(request.max_bytes, _MAX_BYTES))
