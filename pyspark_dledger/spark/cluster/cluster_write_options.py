"""The options of a write to a cluster, batch or stream; those that it shares with writes to logs are `WriteOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.options import AccessOptions
from pyspark_dledger.cluster.producer import NOT_FLUSHED, SendSettings
from pyspark_dledger.common.options import (
    BOOLEAN,
    Option,
    Parser,
    by_key,
    items_of,
    nearest,
    option,
    options_of,
    parse_text,
    parse_values,
    size_up_to,
)
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE
from pyspark_dledger.log.options import is_sparks, read_paths
from pyspark_dledger.spark.sink.write_options import WRITE_OPTIONS, WriteOptions, check_version

_SHARED_FIELDS = (
    *("topic", "queue_nums", "ignore_extra_columns", "id_columns", "txn_app_id", "txn_version"),
    *("tls_cert", "tls_key", "tls_ca"),
)
_STATUSES = ", ".join(NOT_FLUSHED)


def _statuses(value: object) -> frozenset[BrokerCode]:
    names = [parse_text(item).upper() for item in items_of(value)]
    if not set(names) <= NOT_FLUSHED.keys():
        raise ValueError
    return frozenset(NOT_FLUSHED[name] for name in names)


@dataclass(frozen=True, repr=False)
class ClusterWriteOptions(AccessOptions):
    """The parsed options of a write to a cluster."""

    accept_status: frozenset[BrokerCode] = option(
        frozenset(),
        Parser(_STATUSES, _statuses),
        f"written, too: {_STATUSES}",
        shown="",
    )
    auto_create: bool = option(False, BOOLEAN, "let brokers make a missing topic, with `queueNums` queues each")
    max_message_size: int = option(
        MAX_BODY_SIZE,
        size_up_to(MAX_BODY_SIZE, str(MAX_BODY_SIZE)),
        "largest body or batch that brokers take",
    )
    write: WriteOptions = field(default_factory=WriteOptions)

    @property
    def address(self) -> ClusterAddress:
        return self.address_with(self.write)

    @property
    def sending(self) -> SendSettings:
        new_queues = self.write.queue_nums if self.auto_create else None
        return SendSettings(self.accept_status, new_queues=new_queues)


CLUSTER_WRITE_OPTIONS = options_of(ClusterWriteOptions)
SHARED_OPTIONS = tuple(each for each in WRITE_OPTIONS if each.field in _SHARED_FIELDS)
_BY_KEY = by_key([*CLUSTER_WRITE_OPTIONS, *SHARED_OPTIONS])


def parse_cluster_write_options(options: Mapping[str, Any]) -> ClusterWriteOptions:
    """Parse `options`, whose names are in any case. Raises OptionError; no error has a secret."""
    values = parse_values({name: value for name, value in options.items() if not is_sparks(name)}, _find_option)
    shared = {name: values.pop(name) for name in _SHARED_FIELDS if name in values}
    parsed = ClusterWriteOptions(**values, write=WriteOptions(write_as="message", **shared))
    _ = parsed.address
    if read_paths(options):
        raise OptionError("a cluster has no path: name it with nameServer, and use save() or start() without a path")
    check_version(parsed.write)
    return parsed


def _find_option(name: str) -> Option:
    found = _BY_KEY.get(name.lower())
    if found is None:
        names = (each.name for each in _BY_KEY.values())
        raise OptionError(f"unknown option {name}: {nearest(name, names, ' of a write to a cluster')}")
    return found
