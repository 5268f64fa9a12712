"""Tells whether the index of keys has units of tags, as RocketMQ writes from 5.5.0 on."""

from __future__ import annotations

from contextlib import suppress

from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.key_files import hash_of_tags, hash_slots, index_files, read_header, read_units
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.dispatched import message_at

_MAX_UNITS, _MAX_MESSAGES = 10_000, 16


def has_tag_units(log: StoreView) -> bool:
    """Whether one of the newest messages with tags has a unit of them; False without index or such messages."""
    with suppress(StoreError, OSError):
        for path in reversed(index_files(log.paths.root) if log.paths.root is not None else []):
            header, slots = read_header(path), hash_slots(path)
            if header is None or slots is None or header.index_count <= 1:
                continue
            units = read_units(path, slots, max(header.index_count - _MAX_UNITS, 1), header.index_count)
            hashes: dict[int, set[int]] = {}
            for offset, key_hash in zip(units["commitLogOffset"].tolist(), units["keyHash"].tolist(), strict=True):
                hashes.setdefault(offset, set()).add(key_hash)
            tagged = 0
            for offset in sorted(hashes, reverse=True):
                found = message_at(log, offset)
                expected = hash_of_tags(found.topic, found.properties) if found is not None else set()
                if expected & hashes[offset]:
                    return True
                tagged += bool(expected)
                if tagged == _MAX_MESSAGES:
                    return False
    return False
