"""What the clients of a node may use of it: time, memory, requests and bytes a second. Times are in seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_dledger.common.summary_part import MAX_SUMMARY_PART
from pyspark_dledger.format.encode.encoded import MAX_STATE_IDS
from pyspark_dledger.raft.messages import (
    POSITION_SIZE,
    ConfigRequest,
    GetRequest,
    ProducerRequest,
    PutRequest,
    Request,
    SummaryRequest,
    TopicsRequest,
)
from pyspark_dledger.raft.wire import MAX_FRAME_SIZE, Rejection

# With a tick that is later than this, clients wait for the next turn of the event loop.
_MAX_LATE_SECONDS = 0.1
FREE_BYTES = 64 * 1024
"""Every connection may use this much, independent of all others."""

# Connections that wait for memory and are tried at a time.
_TRIED = 16
_SHORTAGE_SECONDS = 1.0
# With more addresses, those that use nothing are forgotten, once in so many seconds.
_MAX_ADDRESSES = 1024
_FORGET_SECONDS = 1.0
# A transfer has stopped if fewer bytes than these passed in its timeout.
_MIN_PROGRESS = 64 * 1024


# The maximum of a response with one entry, also in base64.
_ENTRY_BYTES = 6 * 1024 * 1024
_TOPIC_BYTES = 512
_MAX_RESPONSES: dict[type[Any], Callable[[Any], int]] = {
    GetRequest: lambda _: _ENTRY_BYTES,
    ConfigRequest: lambda _: MAX_FRAME_SIZE,
    SummaryRequest: lambda _: MAX_SUMMARY_PART,
    ProducerRequest: lambda request: MAX_STATE_IDS if request.from_index >= 0 else 0,
    PutRequest: lambda request: request.bodies.count * POSITION_SIZE,
    TopicsRequest: lambda request: len(request.names) * _TOPIC_BYTES,
}


def max_response_size(request: Request | Rejection) -> int:
    """The maximum size of a response that is made at once, in bytes; 0 for small ones."""
    size = _MAX_RESPONSES.get(type(request))
    return 0 if size is None else size(request)


class Waiters:
    """What waits, each once; the smallest is called first."""

    def __init__(self) -> None:
        self._sizes: dict[Callable[[], None], int] = {}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, work: Callable[[], None], size: int) -> None:
        self._sizes[work] = size

    def forget(self, work: Callable[[], None]) -> None:
        self._sizes.pop(work, None)

    def clear(self) -> None:
        self._sizes.clear()

    def call(self, is_over: Callable[[], bool] = lambda: False, max_count: int | None = None) -> None:
        """Call those that wait now, until `is_over`. They can add themselves again."""
        for work in sorted(self._sizes, key=self._sizes.__getitem__)[:max_count]:
            if is_over():
                return
            if self._sizes.pop(work, None) is not None:
                work()


class Turns:
    """The connections of clients that wait for their turn.

    One turn of the event loop can bring a large request of each connection. Without limit the timers wait for all.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.tick_due = self._loop.time()
        self._waiting = Waiters()
        self._is_due = False

    @property
    def is_late(self) -> bool:
        """Whether the timers wait too long for a further request."""
        return self._loop.time() - self.tick_due > _MAX_LATE_SECONDS

    def wait(self, retry: Callable[[], None], size: int) -> None:
        """Call `retry` in one of the next turns; `size` is the received bytes of the connection."""
        self._waiting.add(retry, size)
        self._wake_later()

    def _wake_later(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_due = False
        self._waiting.call(lambda: self.is_late)
        self._wake_later()


class MemoryBudget:
    """Counts bytes above `FREE_BYTES` of each connection.

    The log's memory is in addition: one append is encoded at a time, and its pending index units have their own limit.

    A connection may use as much as it leaves free. So a few large users get much, many get little, and a new one gets
    something.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        # By the bytes that each uses.
        self._waiting = Waiters()
        self._is_wake_due = False
        self._short_since: float | None = None

    def is_short(self, now: float) -> bool:
        """Whether some connection has waited for memory all the time for a second; `now` is in seconds."""
        return self._short_since is not None and now - self._short_since > _SHORTAGE_SECONDS

    def allows(self, used: int, more: int) -> bool:
        """Whether a connection that uses so many bytes may use `more`."""
        return used + more <= self.limit - self.used - more

    def add(self, change: int) -> None:
        """Count bytes, or remove them if negative."""
        self.used += change
        if change < 0:
            self.wake_later()

    def wait(self, retry: Callable[[], None], used: int) -> None:
        """Call `retry` when memory was freed; it calls this method again if that was not enough."""
        self._waiting.add(retry, used)
        if self._short_since is None:
            self._short_since = asyncio.get_running_loop().time()

    def forget(self, retry: Callable[[], None]) -> None:
        self._waiting.forget(retry)
        self._update_shortage()

    def _update_shortage(self) -> None:
        if not self._waiting:
            self._short_since = None

    def wake_later(self) -> None:
        """Try some of the connections that wait."""
        if self._waiting and not self._is_wake_due:
            self._is_wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_wake_due = False
        self._waiting.call(max_count=_TRIED)
        self._update_shortage()


@dataclass(slots=True)
class Usage:
    """What an address may still use: it gets a second's quota in a second, and saves up no more than that."""

    requests: float
    size: float
    at: float


class Quotas:
    """Judges the requests of clients; None is no limit. Times are in seconds."""

    def __init__(self, requests: int | None, size: int | None) -> None:
        self._requests = requests
        self._size = size
        self._used: dict[str | None, Usage] = {}
        self._forget_at = 0.0
        # Rejected requests by the quota that was used up: requests or bytes.
        self.rejected: Counter[str] = Counter()

    @property
    def are_on(self) -> bool:
        return self._requests is not None or self._size is not None

    def rejection(self, host: str | None, now: float) -> str | None:
        """Count a request. Returns why it is rejected."""
        usage = self._usage(host, now)
        if self._size is not None and usage.size < 0:
            self.rejected["bytes"] += 1
            return f"clients at {host} may send and receive {self._size} bytes a second: send less, or later"
        if self._requests is not None and usage.requests < 1:
            self.rejected["requests"] += 1
            return f"clients at {host} may send {self._requests} requests a second: send fewer, or later"
        usage.requests -= 1
        return None

    def add_bytes(self, host: str | None, size: int, now: float) -> None:
        """Count bytes that were received or sent. A large frame or response uses the quota of several seconds."""
        self._usage(host, now).size -= size

    def _usage(self, host: str | None, now: float) -> Usage:
        requests, size = float(self._requests or 0), float(self._size or 0)
        usage = self._used.get(host)
        if usage is None:
            if len(self._used) >= _MAX_ADDRESSES and now >= self._forget_at:
                self._forget_at = now + _FORGET_SECONDS
                self._forget(now)
            usage = self._used[host] = Usage(requests, size, now)
        passed, usage.at = now - usage.at, now
        usage.requests = min(requests, usage.requests + passed * requests)
        usage.size = min(size, usage.size + passed * size)
        return usage

    def _forget(self, now: float) -> None:
        """Forget the addresses that have their whole quota again."""
        for host in list(self._used):
            usage = self._usage(host, now)
            if usage.requests >= (self._requests or 0) and usage.size >= (self._size or 0):
                del self._used[host]


class TransferProgress:
    """Bytes that passed on one connection, and when each direction last made progress. Times are in seconds."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._sent_mark = self._received_mark = 0
        self._taken_at = self._received_at = 0.0

    def begin(self, now: float) -> None:
        self._taken_at = self._received_at = now

    def unread(self, unsent: int, now: float, timeout: float) -> str | None:
        """Why the other side does not read: `unsent` bytes were written and not taken."""
        taken = self.sent - unsent
        if not unsent or taken - self._sent_mark >= _MIN_PROGRESS:
            self._sent_mark, self._taken_at = taken, now
        elif now - self._taken_at > timeout:
            return f"expected responses to be read, found {unsent} bytes unread for more than {timeout:g} s"
        return None

    def incomplete(self, is_incomplete: bool, active_at: float, now: float, timeout: float) -> str | None:
        """Why the rest of a frame does not come; `active_at` is the time of the last bytes."""
        if not is_incomplete:
            self._received_mark, self._received_at = self.received, now
        elif self.received - self._received_mark >= _MIN_PROGRESS:
            self._received_mark, self._received_at = self.received, active_at
        elif now - self._received_at > timeout:
            return f"expected the rest of a frame, found fewer than {_MIN_PROGRESS} bytes in {timeout:g} s"
        return None
