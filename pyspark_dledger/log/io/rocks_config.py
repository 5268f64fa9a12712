"""Reads a broker's topics, groups and offsets from a RocksDB below ``config``, as the content of its JSON files.

A broker has one database for each (``storeType=defaultRocksDB``), one for all (``useSingleRocksDBForAllConfigs``, from
5.4.0 on), or one of another format (``configManagerVersion=v2``). Sources: RocketMQ 5.5.0
``RocksDBConfigManager``, ``RocksDBConsumerOffsetManager``, ``ConfigStorage``, ``ConsumerOffsetManagerV2``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.common.fastjson import MAX_FILE_SIZE, parse_fastjson
from pyspark_dledger.log.io.files import names_in
from pyspark_dledger.log.io.rocks_database import (
    DEFAULT_FAMILY,
    Database,
    has_database,
    open_database,
    rocks_errors,
)

ALL_TABLES = "metadata"
VERSION_2 = "rdb"
FORBIDDEN = "forbiddenTable"

_ADVICE = "copy the folder from a replica while the broker is stopped"
_FORBIDDEN_FAMILY = "forbidden"
_VERSION_KEY = b"kvDataVersionKey"
_VERSION_OF_2 = struct.Struct(">qqq")
_KEY_OF_2 = struct.Struct(">bhb")
_TABLE, _VERSION_RECORD, _DATA_RECORD = 1, 1, 2
_JSON = 1
_SHORT, _QUEUE, _OFFSET = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")


class _Table(NamedTuple):
    """Where a table is: its own folder, its column family in the folder of all, and its id in version 2."""

    folder: str
    family: str
    table_id: int


_OFFSETS = "offsetTable"
_GROUPS = "subscriptionGroupTable"
_TABLES = {
    "topicConfigTable": _Table("topics", "topic", 3),
    _GROUPS: _Table("subscriptionGroups", "subscriptionGroup", 4),
    _OFFSETS: _Table("consumerOffsets", "consumerOffset", 1),
}


class RocksTable(NamedTuple):
    """A table, which may have no rows: the folder of its database, and its content as in the JSON file."""

    folder: Path
    content: dict[str, Any]


def config_databases(folder: Path) -> list[Path]:
    """The databases in a folder ``config``."""
    names = (*(table.folder for table in _TABLES.values()), ALL_TABLES, VERSION_2)
    with suppress(OSError):
        return [folder / name for name in sorted({*names} & {*names_in(folder)}) if has_database(folder / name)]
    return []


def rocks_tables(folder: Path, name: str) -> list[RocksTable]:
    """A table in the databases of a folder ``config``: in that of all, in its own one, and in that of version 2.

    `name` is the table's in its JSON file. Raises UnreadableError.
    """
    table = _TABLES[name]
    readers = {ALL_TABLES: _from_all, table.folder: _from_own, VERSION_2: _from_version_2}
    present, found = config_databases(folder), []
    for database, reader in readers.items():
        if folder / database in present:
            opened = open_database(folder / database, _ADVICE)
            with rocks_errors(folder / database, _ADVICE):
                found.append(RocksTable(folder / database, reader(opened, name, table)))
    return found


def _from_all(database: Database, name: str, table: _Table) -> dict[str, Any]:
    return _version_1(database, name, table.family, f"{table.family}Version")


def _from_own(database: Database, name: str, _: _Table) -> dict[str, Any]:
    return _version_1(database, name, DEFAULT_FAMILY, "kvDataVersion")


def _version_1(database: Database, name: str, family: str, version_family: str) -> dict[str, Any]:
    versions = dict(_limited(database.rows(version_family)))
    rows = {key.decode(errors="replace"): parse_fastjson(value) for key, value in _limited(database.rows(family))}
    if name == _OFFSETS:
        rows = {key: row.get(_OFFSETS, {}) for key, row in rows.items()}
    content: dict[str, Any] = {name: rows}
    if name == _GROUPS:
        forbidden = _limited(database.rows(_FORBIDDEN_FAMILY))
        content[FORBIDDEN] = {key.decode(errors="replace"): parse_fastjson(value) for key, value in forbidden}
    if _VERSION_KEY in versions:
        content["dataVersion"] = parse_fastjson(versions[_VERSION_KEY])
    return content


def _from_version_2(database: Database, name: str, table: _Table) -> dict[str, Any]:
    prefix = _KEY_OF_2.pack(_TABLE, table.table_id, _DATA_RECORD)
    rows = _limited(database.rows(prefix=prefix))
    content = {name: _offsets_of_2(rows) if name == _OFFSETS else dict(_configs_of_2(rows))}
    for _, value in database.rows(prefix=_KEY_OF_2.pack(_TABLE, table.table_id, _VERSION_RECORD)):
        state, time, counter = _VERSION_OF_2.unpack(value)
        content["dataVersion"] = {"counter": counter, "stateVersion": state, "timestamp": time}
    return content


def _configs_of_2(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in rows:
        name, rest = _text(key, _KEY_OF_2.size)
        if rest != len(key) or value[:1] != bytes([_JSON]):
            raise ValueError(f"expected a name and JSON, found the key {key[:64].hex()} and {value[:64].hex()}")
        yield name, parse_fastjson(value[1:])


def _offsets_of_2(rows: Iterator[tuple[bytes, bytes]]) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for key, value in rows:
        group, after_group = _text(key, _KEY_OF_2.size)
        topic, after_topic = _text(key, after_group + 1)
        if len(key) != after_topic + 1 + _QUEUE.size or len(value) != _OFFSET.size:
            raise ValueError(f"expected group, topic, queueId and offset, found the key {key[:64].hex()}")
        queue_id = _QUEUE.unpack_from(key, after_topic + 1)[0]
        offsets.setdefault(f"{topic}@{group}", {})[str(queue_id)] = _OFFSET.unpack(value)[0]
    return offsets


def _text(key: bytes, at: int) -> tuple[str, int]:
    """A text with its length before it, and where it ends."""
    begin = at + _SHORT.size
    end = begin + _SHORT.unpack_from(key, at)[0]
    return key[begin:end].decode(errors="replace"), end


def _limited(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table. Raises ValueError if they have more bytes than a JSON file may have."""
    size = 0
    for key, value in rows:
        size += len(key) + len(value)
        if size > MAX_FILE_SIZE:
            raise ValueError(f"expected at most {MAX_FILE_SIZE} bytes of configuration, found more")
        yield key, value
