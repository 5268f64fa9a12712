"""The options that only a read of a cluster has; those that it shares with reads of logs are in `log.options`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from pyspark_dledger.cluster.address import ClusterAddress, Credentials
from pyspark_dledger.cluster.offsets import FORM, ClusterOffsets
from pyspark_dledger.cluster.pulls import DEFAULT_GROUP, PullSettings
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.options import (
    TEXT,
    Parser,
    by_key,
    choice,
    distinct,
    nearest,
    option,
    options_of,
    parse_text,
    parse_values,
    size_up_to,
)
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import (
    CLUSTER_READ,
    CLUSTER_STREAM,
    OF_BATCHES,
    USES,
    ReadOptions,
    check_use,
    find_option,
    is_sparks,
    parse_options,
)
from pyspark_dledger.raft.peers import Address, parse_address
from pyspark_dledger.raft.tls import Tls

EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"
FROM_MASTER, FROM_SLAVE = "master", "slave"
# In JSON, as Kafka's source has them.
_LATEST_NUMBER, _EARLIEST_NUMBER = -1, -2
_MEBIBYTE = 1024 * 1024


class Bound(NamedTuple):
    """Where a read begins or ends in each queue: a kind, or ``offsets`` of some queues."""

    kind: str
    offsets: ClusterOffsets = ClusterOffsets()


def _name_servers(value: object) -> tuple[Address, ...]:
    parts = [part.strip() for part in re.split("[;,]", parse_text(value))]
    return distinct([parse_address(part, "option nameServer") for part in parts if part])


def _pattern(value: object) -> re.Pattern[str]:
    try:
        return re.compile(parse_text(value))
    except re.error:
        raise ValueError from None


def _bound(value: object) -> Bound:
    text = parse_text(json.dumps(value) if isinstance(value, Mapping) else value)
    if text.lower() in (EARLIEST, LATEST, COMMITTED):
        return Bound(text.lower())
    try:
        offsets = ClusterOffsets.from_json(json.loads(text))
    except RecursionError:
        raise ValueError from None
    if not all(_EARLIEST_NUMBER <= offset <= INT64_MAX for offset in offsets.values()):
        raise ValueError
    return Bound("offsets", offsets)


_BOUND = Parser(
    f"{EARLIEST}, {LATEST}, {COMMITTED}, or offsets of queues as JSON {FORM} (-1: latest, -2: earliest)", _bound
)


@dataclass(frozen=True, repr=False)
class AccessOptions:
    """How a read or a write reaches its cluster. TLS is in the options that it shares with those of logs."""

    name_server: tuple[Address, ...] | None = option(
        None, Parser("HOST:PORT of one or more name servers, separated by ;", _name_servers), "`HOST:PORT;HOST:PORT`"
    )
    access_key: str | None = option(None, TEXT, "account of the ACL")
    secret_key: str | None = option(None, TEXT, "its secret")
    security_token: str | None = option(None, TEXT, "its token, if it is temporary")

    def __repr__(self) -> str:
        """Without secrets."""
        return f"{type(self).__name__}({self.name_server})"

    def address_with(self, tls: TlsOptions) -> ClusterAddress:
        """The address of the cluster. Raises OptionError if an option is missing."""
        if self.name_server is None:
            raise OptionError("option nameServer is missing: give HOST:PORT of the cluster's name servers")
        if (self.access_key is None) != (self.secret_key is None):
            raise OptionError("options accessKey and secretKey belong together: give both, or neither")
        if self.security_token is not None and self.access_key is None:
            raise OptionError("option securityToken has no effect without accessKey and secretKey: give all, or none")
        credentials = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token)
        return ClusterAddress(self.name_server, credentials, _tls(tls))


class TlsOptions(Protocol):
    """Options of a read or a write."""

    @property
    def tls_cert(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...
    @property
    def tls_ca(self) -> str | None: ...


@dataclass(frozen=True, repr=False)
class ClusterOptions(AccessOptions):
    """The parsed options of a read of a cluster. `read` has those that it shares with reads of logs."""

    topic_pattern: re.Pattern[str] | None = option(
        None, Parser("a regular expression", _pattern), "instead of `topic`: regular expression of whole names"
    )
    starting_offsets: Bound | None = option(
        None, _BOUND, f"default: `earliest`, of a stream `latest`; `committed`: of consumerGroup; or `{FORM}`"
    )
    ending_offsets: Bound | None = option(None, _BOUND, "the same for the end, exclusive", scope=OF_BATCHES)
    consumer_group: str | None = option(
        None, TEXT, "pulls as this group; a stream reports its offsets to the brokers", shown=DEFAULT_GROUP
    )
    read_from: str = option(
        FROM_MASTER, choice((FROM_MASTER, FROM_SLAVE)), "whom to ask first: `master` or `slave`; the other takes over"
    )
    max_fetch_bytes: int = option(
        32 * _MEBIBYTE, size_up_to(1024 * _MEBIBYTE, "1g"), "memory of a task for messages that wait for earlier ones"
    )
    read: ReadOptions = field(default_factory=ReadOptions)

    @property
    def address(self) -> ClusterAddress:
        return self.address_with(self.read)

    @property
    def prefers_slave(self) -> bool:
        return self.read_from == FROM_SLAVE

    @property
    def pulls(self) -> PullSettings:
        return PullSettings(self.consumer_group or DEFAULT_GROUP, self.max_fetch_bytes, self.read.fail_on_data_loss)


CLUSTER_OPTIONS = options_of(ClusterOptions)
_BY_KEY = by_key(CLUSTER_OPTIONS)


def parse_cluster_options(options: Mapping[str, Any], is_stream: bool) -> ClusterOptions:
    """Parse `options`, whose names are in any case. Raises OptionError; no error has a secret."""
    given = {name: value for name, value in options.items() if not is_sparks(name)}
    use = CLUSTER_STREAM if is_stream else CLUSTER_READ
    for name in given:
        if name.lower() not in _BY_KEY:
            _check_known(name, use)
        elif is_stream and _BY_KEY[name.lower()].scope == OF_BATCHES:
            raise OptionError(f"option {name} has no effect on {use}: leave it out")
    own = {name: value for name, value in given.items() if name.lower() in _BY_KEY}
    values = parse_values(own, lambda name: _BY_KEY[name.lower()])
    read = parse_options({name: value for name, value in given.items() if name not in own})
    check_use(read, use)
    parsed = ClusterOptions(**values, read=read)
    _check(parsed)
    default = Bound(LATEST if is_stream and read.starting_timestamp is None else EARLIEST)
    return replace(parsed, starting_offsets=parsed.starting_offsets or default)


def _check_known(name: str, use: str) -> None:
    names = sorted({*(each.name for each in CLUSTER_OPTIONS), *USES[use]})
    try:
        find_option(name)
    except OptionError:
        raise OptionError(f"unknown option {name}: {nearest(name, names)}") from None


def _check(options: ClusterOptions) -> None:
    _ = options.address
    if (options.read.topic is None) == (options.topic_pattern is None):
        both = "neither is" if options.read.topic is None else "both are"
        raise OptionError(f"expected option topic or option topicPattern, {both} given: give one of them")
    if options.read.starting_timestamp is not None and options.starting_offsets is not None:
        raise OptionError("startingTimestamp and startingOffsets are both given: give one of them")
    uses_group = COMMITTED in {bound.kind for bound in (options.starting_offsets, options.ending_offsets) if bound}
    if uses_group and options.consumer_group is None:
        raise OptionError("offsets that are committed need option consumerGroup: give the group's name")


def _tls(given: TlsOptions) -> Tls | None:
    """TLS if tlsCa is given; a certificate of this side is optional."""
    if (given.tls_cert is None) != (given.tls_key is None) or (given.tls_cert is not None and given.tls_ca is None):
        raise OptionError("expected option tlsCa, and for a client certificate tlsCert and tlsKey, too: give these")
    if given.tls_ca is None:
        return None
    from pathlib import Path

    cert, key = (None if file is None else Path(file) for file in (given.tls_cert, given.tls_key))
    return Tls(cert, key, Path(given.tls_ca))
