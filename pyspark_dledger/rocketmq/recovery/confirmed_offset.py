"""What load() does with the log after the confirmed offset of controller mode.

Source: RocketMQ 5.2.0 to 5.5.0 ``ConsumeQueueStore.compensateForHA``: it reads every message from there on, and knows
only those of version 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from pyspark_dledger.log.recovery.java_files import JavaFile
from pyspark_dledger.rocketmq.recovery.java_messages import JavaMessage, JavaRules, read_message

_HEAD_SIZE = 8
_MAX_INT = 2**31 - 1


def unconfirmed_problem(files: Sequence[JavaFile], confirmed: int, end: int, rules: JavaRules) -> str | None:
    """Why load() fails on the log from the offset `confirmed` to its `end`; None if it does not."""
    pos = confirmed
    while (file := next((each for each in files if each.base <= pos < each.base + each.size), None)) is not None:
        at = pos - file.base
        # How far Java takes the file to be written.
        written = min(end - file.base, file.size)
        if at + 4 > written:
            return None
        head = file.read(at, _HEAD_SIZE).ljust(_HEAD_SIZE, b"\0")
        size, magic = (int.from_bytes(part, "big", signed=True) for part in (head[:4], head[4:]))
        if written < at + size <= _MAX_INT:
            return None
        where = f"commitlog/{file.name} at byte {at}, after the confirmed offset {confirmed}"
        if not _HEAD_SIZE <= size <= _MAX_INT - at:
            return f"load() reads {where}, and finds no message there"
        if magic == MESSAGE_MAGIC_V2:
            return f"load() does not know the message in {where}: its topic has more than 127 bytes"
        if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_BLANK):
            return f"load() reads {where}, and finds no message there"
        if magic == MESSAGE_MAGIC_V1 and not isinstance(read_message(file, at, rules), JavaMessage):
            return None
        pos += size
    return None
