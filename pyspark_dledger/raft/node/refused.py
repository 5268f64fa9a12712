"""Counts what a node has refused, for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Literal

ConnectionRefusal = Literal["descriptors", "handshake", "hello", "limit", "malformed", "secret", "timeout"]
"""Why a connection was refused or closed; ``hello``: its sender is no member of this group."""


class Refused:
    """Counters since the start."""

    def __init__(self) -> None:
        self.connections: Counter[ConnectionRefusal] = Counter()
        # Requests whose response is an error, by its code: a `ResponseCode`, or that of a `Refusal`.
        self.requests: Counter[int] = Counter()
        # Requests of members that came from others, by the name of the request.
        self.member_requests: Counter[str] = Counter()
