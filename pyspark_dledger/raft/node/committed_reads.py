"""Reading what is committed, at any member: entries that are there at once, those to come when they are committed."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from itertools import count

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.raft.messages import ReadRequest, ReadResponse
from pyspark_dledger.raft.node.inbound import Caller, OwnCaller
from pyspark_dledger.store.dledger_store import DLedgerStore, EntryRange

# An answer's entries in bytes, at most; one entry, of 4 MiB or less, is always answered.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_WAIT_MS = 60_000


@dataclass(order=True)
class _Waiting:
    first_index: int
    order: int
    request: ReadRequest = field(compare=False)
    caller: Caller | OwnCaller = field(compare=False)
    timer: asyncio.TimerHandle | None = field(compare=False, default=None)


class Tails:
    """Answers READ requests out of a store, whose committed index `committed` tells to have risen."""

    def __init__(self, store: DLedgerStore, group: str, self_id: str) -> None:
        self._store = store
        self._group = group
        self._self_id = self_id
        self._waiting: list[_Waiting] = []
        self._orders = count()

    def read(self, request: ReadRequest, caller: Caller | OwnCaller) -> None:
        """Answer now, or when the entry is committed, or when the time to wait is over."""
        if (code := self._refusal(request)) is not None:
            caller.response(ReadResponse(group=request.group, local_id=self._self_id, code=code))
            return
        if request.first_index <= self._store.committed_index or request.wait_ms <= 0 or request.first_index < 0:
            caller.response(self._answer(request))
            return
        waiting = _Waiting(request.first_index, next(self._orders), request, caller)
        seconds = min(request.wait_ms, _MAX_WAIT_MS) / 1000
        waiting.timer = asyncio.get_running_loop().call_later(seconds, self._give_up, waiting)
        heapq.heappush(self._waiting, waiting)

    def committed(self, index: int) -> None:
        """Answer all that wait for entries up to that one."""
        while self._waiting and self._waiting[0].first_index <= index:
            waiting = heapq.heappop(self._waiting)
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.caller.response(self._answer(waiting.request))

    def forget(self, callers_gone: object) -> None:
        """Let go of what waits for a connection that is gone."""
        kept = [waiting for waiting in self._waiting if waiting.caller.inbound is not callers_gone]
        if len(kept) < len(self._waiting):
            for waiting in self._waiting:
                if waiting.caller.inbound is callers_gone and waiting.timer is not None:
                    waiting.timer.cancel()
            heapq.heapify(kept)
            self._waiting = kept

    def _refusal(self, request: ReadRequest) -> ResponseCode | None:
        """As the core refuses what is for another member or another group."""
        if request.remote_id != self._self_id:
            return ResponseCode.UNKNOWN_MEMBER
        return ResponseCode.UNKNOWN_GROUP if request.group != self._group else None

    def _give_up(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        heapq.heapify(self._waiting)
        waiting.caller.response(self._answer(waiting.request))

    def _answer(self, request: ReadRequest) -> ReadResponse:
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
            found = _committed_part(store, request.first_index, max(1, min(request.max_bytes, _MAX_BYTES)))
        except IndexRangeError:
            response.code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN  # expired meanwhile
            return response
        except StoreError:
            response.code = ResponseCode.DISK_ERROR
            return response
        response.first_index, response.data = found.first_index, found.data
        response.count = found.last_index - found.first_index + 1
        return response


def _committed_part(store: DLedgerStore, first_index: int, max_bytes: int) -> EntryRange:
    """Entries from that index on, without those that are not committed yet."""
    found = store.read(first_index, max_bytes)
    committed = store.committed_index
    if found.last_index <= committed:
        return found
    last = store.read(committed, 1)
    end = last.pos + len(last.data) - found.pos
    return found._replace(last_index=committed, data=memoryview(found.data)[:end])
