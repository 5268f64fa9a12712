"""The options of a write, batch or stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_dledger.common.integers import INT32_MAX, INT64_MAX
from pyspark_dledger.common.options import (
    BOOLEAN,
    NAMES,
    TEXT,
    Option,
    by_key,
    choice,
    integer_from,
    nearest,
    option,
    options_of,
    parse_values,
    size_up_to,
)
from pyspark_dledger.common.retention import PRODUCER_ID_EXPIRY_MS
from pyspark_dledger.common.uris import local_target
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log import options as read
from pyspark_dledger.log.options import TLS_CA, TLS_CERT, TLS_KEY, is_sparks, read_paths
from pyspark_dledger.raft.tls import tls_of
from pyspark_dledger.spark.group.group_address import GroupAddress, group_address
from pyspark_dledger.spark.sink.control import is_everywhere
from pyspark_dledger.store.store_config import FLUSHES, StoreConfig

WRITE_AS = ("auto", "message", "raw")
_MAX_QUEUES = 16384
_MIN_LEASE_MS = 100
_MAX_PORT = 65534
_FILE_SIZE = size_up_to(INT32_MAX, str(INT32_MAX))
_PATH = ("path",)


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write to ``path``, or to ``group`` and ``peers``; times are ms, sizes bytes."""

    path: str | None = None
    write_as: str = option("auto", choice(WRITE_AS), "`message` if a topic is given, else `raw`")
    topic: str | None = option(None, TEXT, "topic of all rows; overrides the column")
    queue_nums: int = option(4, integer_from(1, _MAX_QUEUES), "queues of a new topic, up to 16384")
    ignore_extra_columns: bool = option(False, BOOLEAN, "ignore columns that cannot be written")
    id_columns: tuple[str, ...] = option((), NAMES, "columns that identify a row")
    txn_app_id: str | None = option(None, TEXT, "for batches: name of the writer")
    txn_version: int | None = option(None, integer_from(0, INT64_MAX), "ascending number of its write")
    required_acks: str = option("quorum", choice(("quorum",)), "written means committed")
    timeout_ms: int = option(3000, integer_from(1, INT32_MAX), "ms per attempt for the leader, then for its response")
    max_retries: int = option(10, integer_from(0, INT32_MAX), "retries, if certainly not written")
    group: str | None = option(None, TEXT, "group to write to, instead of a path")
    peers: str | None = option(None, TEXT, "its members, `n0-HOST:PORT;n1-HOST:PORT`")
    tls_cert: str | None = option(None, TEXT, TLS_CERT)
    tls_key: str | None = option(None, TEXT, TLS_KEY)
    tls_ca: str | None = option(None, TEXT, TLS_CA)
    self_id: str | None = option(None, TEXT, "id of the node; default: the store's, or `n0`", scope=_PATH)
    flush: str = option("sync", choice(FLUSHES), "`sync`: on disk before it counts as written", scope=_PATH)
    data_file_size: int = option(
        StoreConfig.data_file_size, _FILE_SIZE, "size of data files of a new store", scope=_PATH
    )
    index_file_size: int = option(
        StoreConfig.index_file_size, _FILE_SIZE, "size of its index files, a multiple of 32", scope=_PATH
    )
    producer_id_expiry_ms: int = option(
        PRODUCER_ID_EXPIRY_MS, integer_from(1, INT64_MAX), "ms for which a repeated message is recognized", scope=_PATH
    )
    lease_ms: int = option(
        30_000, integer_from(_MIN_LEASE_MS, INT32_MAX), "ms without a task until the store is released", scope=_PATH
    )
    listen: str | None = option(None, TEXT, "driver's address for tasks, or `0.0.0.0`; default: loopback", scope=_PATH)
    listen_port: int = option(0, integer_from(0, _MAX_PORT), "its port, and the next one; `0`: free ones", scope=_PATH)

    def group_address(self) -> GroupAddress:
        """Return the address of the group. Raises OptionError if it is incomplete."""
        return group_address(self.group, self.peers, self.tls_cert, self.tls_key, self.tls_ca)


WRITE_OPTIONS = options_of(WriteOptions)
"""All options of a write, in the order of the documentation."""

_BY_KEY = by_key(WRITE_OPTIONS)
_READ_OPTIONS = by_key(read.OPTIONS)


def parse_write_options(options: Mapping[str, Any]) -> WriteOptions:
    """Parse the options that Spark passes. Raises OptionError for unknown, wrong and contradictory ones."""
    values = parse_values({name: value for name, value in options.items() if not is_sparks(name)}, find_write_option)
    paths = read_paths(options)
    if len(paths) > 1:
        raise OptionError(f"expected one path to write to, found {len(paths)}: write a group with group and peers")
    parsed = WriteOptions(path=local_target(paths[0], "path") if paths else None, **values)
    _check_target(parsed, values)
    return parsed


def find_write_option(name: str) -> Option:
    """Return the option called `name` in any case. Raises OptionError, which names the nearest option."""
    found = _BY_KEY.get(name.lower())
    if found is not None:
        return found
    if name.lower() in _READ_OPTIONS:
        raise OptionError(
            f"option {_READ_OPTIONS[name.lower()].name} is for reading: leave it out; options of a write are "
            f"{', '.join(option.name for option in WRITE_OPTIONS)}"
        )
    raise OptionError(
        f"unknown option {name}: {nearest(name, (option.name for option in WRITE_OPTIONS), ' of a write')}"
    )


def write_only_option(name: str) -> str | None:
    """Return the spelling of an option that a write has and a read has not, else None."""
    found = _BY_KEY.get(name.lower())
    return found.name if found is not None and name.lower() not in _READ_OPTIONS else None


def _check_target(options: WriteOptions, given: Mapping[str, object]) -> None:
    is_group = options.group is not None or options.peers is not None
    if is_group and options.path is not None:
        raise OptionError(
            f"expected a path or a group, found path {options.path} and group {options.group}: "
            "leave save()'s path out to write to the group"
        )
    if not is_group and options.path is None:
        raise OptionError(
            "expected a path, or group and peers, found neither: use save(path), or name a group. "
            "saveAsTable needs a path and the extension, see pyspark_dledger.enable"
        )
    target, other = ("group", "path") if is_group else ("path", "group")
    for each in WRITE_OPTIONS:
        if each.field in given and each.scope == (other,):
            raise OptionError(f"option {each.name} is for a {other}, this is a write to a {target}: leave it out")
    if is_group:
        options.group_address()
    elif tls_of(options.tls_cert, options.tls_key, options.tls_ca) and is_everywhere(options.listen or ""):
        raise OptionError(
            f"option listen: expected an address that the certificate names (tlsCert), found {options.listen}: name one"
        )
    check_version(options)


def check_version(options: WriteOptions) -> None:
    """Raise OptionError unless both options of a version are given, or none."""
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise OptionError("options txnAppId and txnVersion belong together: give both, or none")
