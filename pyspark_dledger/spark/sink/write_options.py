"""The options of a write, batch or stream: one table of names, defaults, parsers and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.spec import INT64_MAX
from pyspark_dledger.log import options as read
from pyspark_dledger.log.io.uris import local_target
from pyspark_dledger.log.options import (
    BOOLEAN,
    SPARK_OPTIONS,
    TEXT,
    Option,
    choice,
    integer_from,
    nearest,
    parse_value,
    read_paths,
    size_up_to,
)
from pyspark_dledger.store.store_config import FLUSHES

WRITE_AS = ("auto", "message", "raw")
_INT32_MAX = 2**31 - 1
_MOST_QUEUES = 16384
_LEAST_LEASE_MS = 100
_DAY_MS = 24 * 3600 * 1000

WRITE_OPTIONS = (
    Option("writeAs", "auto", choice(WRITE_AS), "`message` if a topic is given, else `raw`"),
    Option("topic", None, TEXT, "topic of all rows; overrides the column"),
    Option("queueNums", "4", integer_from(1, _MOST_QUEUES), "queues of a new topic, up to 16384"),
    Option("ignoreExtraColumns", "false", BOOLEAN, "ignore columns that cannot be written"),
    Option("requiredAcks", "quorum", choice(("quorum",)), "written means committed"),
    Option(
        "timeoutMs",
        "3000",
        integer_from(1, _INT32_MAX),
        "ms per attempt for the leader, then for its response",
    ),
    Option("maxRetries", "10", integer_from(0, _INT32_MAX), "retries, if certainly not written"),
    Option("group", None, TEXT, "group to write to, instead of a path"),
    Option("peers", None, TEXT, "its members, `n0-HOST:PORT;n1-HOST:PORT`"),
    Option("tlsCert", None, TEXT, "client certificate, PEM, on every executor"),
    Option("tlsKey", None, TEXT, "its key"),
    Option("tlsCa", None, TEXT, "CA of the nodes' certificates"),
    Option("selfId", None, TEXT, "id of the node; default: the store's, or `n0`"),
    Option("flush", "sync", choice(FLUSHES), "`sync`: on disk before it counts as written"),
    Option("dataFileSize", "1g", size_up_to(_INT32_MAX, str(_INT32_MAX)), "size of data files of a new store"),
    Option(
        "indexFileSize",
        "160m",
        size_up_to(_INT32_MAX, str(_INT32_MAX)),
        "size of its index files, a multiple of 32",
    ),
    Option(
        "producerIdExpiryMs",
        str(7 * _DAY_MS),
        integer_from(1, INT64_MAX),
        "ms for which a repeated message is recognized",
    ),
    Option(
        "leaseMs",
        "30000",
        integer_from(_LEAST_LEASE_MS, _INT32_MAX),
        "ms without a task until the store is released",
    ),
    Option(
        "listen",
        None,
        TEXT,
        "driver's address for tasks; default: `spark.driver.host`, or loopback",
    ),
)
"""Every option of a write, in the order of the documentation."""

_BY_KEY = {option.name.lower(): option for option in WRITE_OPTIONS}
_OF_READS = {option.name.lower(): option.name for option in read.OPTIONS}
_OF_PATHS = (
    "self_id", "flush", "data_file_size", "index_file_size", "producer_id_expiry_ms", "lease_ms", "listen"
)  # fmt: skip
_OF_GROUPS = ("tls_cert", "tls_key", "tls_ca")


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write to ``path``, or to ``group`` and ``peers``; times are ms, sizes bytes."""

    path: str | None = None
    write_as: str = "auto"
    topic: str | None = None
    queue_nums: int = 4
    ignore_extra_columns: bool = False
    required_acks: str = "quorum"
    timeout_ms: int = 3000
    max_retries: int = 10
    group: str | None = None
    peers: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    self_id: str | None = None
    flush: str = "sync"
    data_file_size: int = 1 << 30
    index_file_size: int = 160 << 20
    producer_id_expiry_ms: int = 7 * _DAY_MS
    lease_ms: int = 30_000
    listen: str | None = None


def parse_write_options(options: Mapping[str, Any]) -> WriteOptions:
    """Parse what Spark hands over. Raises OptionError for what is unknown, of a read, wrong, or does not fit."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower() not in SPARK_OPTIONS and value is not None:
            option = find_write_option(name)
            values[option.field] = parse_value(option, value)
    paths = read_paths(options)
    if len(paths) > 1:
        raise OptionError(f"expected one path to write to, found {len(paths)}: a group is written with group and peers")
    parsed = WriteOptions(path=local_target(paths[0], "path") if paths else None, **values)
    _check_target(parsed, values)
    return parsed


def find_write_option(name: str) -> Option:
    """The option called `name` in any case. Raises OptionError, which says what is one of a read, or the nearest."""
    option = _BY_KEY.get(name.lower())
    if option is not None:
        return option
    if name.lower() in _OF_READS:
        raise OptionError(
            f"option {_OF_READS[name.lower()]} is one of a read: leave it out; those of a write are "
            f"{', '.join(option.name for option in WRITE_OPTIONS)}"
        )
    raise OptionError(
        f"unknown option {name}: {nearest(name, (option.name for option in WRITE_OPTIONS), ' of a write')}"
    )


def is_write_only(name: str) -> str | None:
    """The spelling of an option that a write has and a read has not."""
    option = _BY_KEY.get(name.lower())
    return option.name if option is not None and option.name.lower() not in _OF_READS else None


def _check_target(options: WriteOptions, given: Mapping[str, object]) -> None:
    is_group = options.group is not None or options.peers is not None
    if is_group and options.path is not None:
        raise OptionError(
            f"expected a path or a group, found path {options.path} and group {options.group}: "
            "leave save()'s path out to write to the group"
        )
    if is_group and (options.group is None or options.peers is None):
        missing = "group" if options.group is None else "peers"
        raise OptionError(f"expected group and peers together, found no {missing}: say it, as the group's nodes do")
    if not is_group and options.path is None:
        raise OptionError("expected a path, or group and peers, found neither: say save(path), or name a group")
    strange = [_named(field) for field in (_OF_PATHS if is_group else _OF_GROUPS) if field in given]
    if strange:
        target, instead = ("a group", "it is a setting of its nodes") if is_group else ("a path", "it is of a group")
        raise OptionError(f"option {strange[0]}: expected none for {target}, found one: leave it out, {instead}")
    tls = [field for field in _OF_GROUPS if field in given]
    if tls and len(tls) < len(_OF_GROUPS):
        raise OptionError(f"expected tlsCert, tlsKey and tlsCa, found {', '.join(map(_named, tls))}: say all, or none")


def _named(field: str) -> str:
    return next(option.name for option in WRITE_OPTIONS if option.field == field)
