"""A small store, which a test then makes hostile."""

from __future__ import annotations

from pathlib import Path

from tests.support.generate import mq_message, write_dledger


def write_store(root: Path, count: int = 20) -> Path:
    """A store of so many messages in one queue; returns its root."""
    messages = [mq_message("Orders", b"%d" % number, queue_offset=number) for number in range(count)]
    return write_dledger(root, messages).path
