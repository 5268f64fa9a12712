"""Looks up a key in IndexFiles. Source: RocketMQ 5.3.3 ``IndexFile.selectPhyOffset``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.rocketmq.index_file.index_file import hash_slots, newest_unit, read_header, read_units

_MAX_HASH = 2**31 - 1


def offsets_of_key(path: Path, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
    """The commitLogOffsets of the units with a key's hash, newest first.

    Yields nothing if the file has no message stored in ``[begin, end]``, in milliseconds since 1970.
    """
    header, slots = read_header(path), hash_slots(path)
    if header is None or slots is None or header.end_timestamp < begin or header.begin_timestamp > end:
        return
    key_hash = abs(java_hash(f"{topic}#{key}"))
    key_hash = 0 if key_hash > _MAX_HASH else key_hash
    number = newest_unit(path, key_hash % slots)
    limit = header.index_count
    # Numbers in a chain only fall, so that a damaged chain cannot loop.
    while 0 < number < limit:
        limit = number
        units = read_units(path, slots, number, number + 1)
        if not len(units):
            return
        if int(units["keyHash"][0]) == key_hash:
            yield int(units["commitLogOffset"][0])
        number = int(units["previous"][0])
