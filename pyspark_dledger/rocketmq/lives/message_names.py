"""What names one message: an offsetMsgId, or TOPIC/QUEUE/OFFSET. Other names are keys."""

from __future__ import annotations

import re
from typing import NamedTuple

# Hex digits of host, port and offset, of 28 bytes with IPv6 addresses; the port takes two of its four bytes.
OFFSET_MSG_ID = re.compile(r"(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{32})0000[0-9A-Fa-f]{4}([0-7][0-9A-Fa-f]{15})")
QUEUE_OFFSET = re.compile(r"([^/]+)/(\d{1,10})/(\d{1,18})")


class PlaceName(NamedTuple):
    """A topic, a queue id and a queue offset."""

    topic: str
    queue_id: int
    queue_offset: int


def place_name(name: str) -> PlaceName | None:
    """The place that ``TOPIC/QUEUE/OFFSET`` names; None for another name."""
    found = QUEUE_OFFSET.fullmatch(name)
    return PlaceName(found[1], int(found[2]), int(found[3])) if found is not None else None


def offset_of_id(name: str) -> int | None:
    """The commitLogOffset in an offsetMsgId; None for another name."""
    found = OFFSET_MSG_ID.fullmatch(name)
    return int(found[1], 16) if found is not None else None
