"""How many requests and bytes a second the clients of one network address may have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# With more addresses, those that use nothing are forgotten, once in so many seconds.
_MAX_ADDRESSES = 1024
_FORGET_SECONDS = 1.0


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
        # Refused requests by the quota that was used up: requests or bytes.
        self.refused: Counter[str] = Counter()

    @property
    def are_on(self) -> bool:
        return self._requests is not None or self._size is not None

    def refusal(self, host: str | None, now: float) -> str | None:
        """Count a request. Returns why it is refused."""
        usage = self._usage(host, now)
        if self._size is not None and usage.size < 0:
            self.refused["bytes"] += 1
            return f"clients at {host} may send and receive {self._size} bytes a second: send less, or later"
        if self._requests is not None and usage.requests < 1:
            self.refused["requests"] += 1
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
