"""How much is lost, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark_dledger.common.plurals import counted

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage


def lost_count(found: Iterable[LostMessage]) -> str:
    """The number of lost messages, at least; what is between known ones can have had more."""
    from pyspark_dledger.rocketmq.lost.lost_messages import count_of

    listed = list(found)
    count, is_all = count_of(listed)
    if not listed:
        return "nothing"
    places = sum(lost.entries is None for lost in listed)
    messages = counted(count, "message")
    if is_all:
        return messages
    return f"at least {messages}; nothing tells what was in {counted(places, 'damaged place')}"
