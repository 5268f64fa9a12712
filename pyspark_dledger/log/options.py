"""The options of a read, declared once for Spark, plain Python and the command line, and the uses that they affect."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, NamedTuple

from pyspark_dledger.common.integers import INT32_MAX, INT32_MIN, INT64_MAX, MAX_TIMESTAMP, MIN_TIMESTAMP
from pyspark_dledger.common.options import (
    BOOLEAN,
    COUNT,
    DURATION,
    NAMES,
    SIZE,
    TEXT,
    Option,
    Parser,
    by_key,
    checked,
    choice,
    distinct,
    integer_from,
    items_of,
    nearest,
    one_of,
    option,
    options_of,
    parse_integer,
    parse_json,
    parse_text,
    parse_values,
    size_up_to,
)
from pyspark_dledger.common.uris import store_path
from pyspark_dledger.errors import OptionError, UnreadableError
from pyspark_dledger.format.spec import MODES, Filters, IntFilter

TABLES = (
    "log",
    "segments",
    "state",
    "findings",
    "indexUnits",
    "consumeQueue",
    "indexFile",
    "audit",
    "consumers",
    "lost",
    "diff",
    "transactions",
    "timers",
    "pop",
    "trace",
    "controllerEvents",
)
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
COMMITTED_BOUNDS = ("auto", "checkpoint", "consumeQueue", "quorum", "end")
ENGINES = ("auto", "native", "python")

# What these options of a connection to a group say, for reads and writes.
TLS_CERT = "client certificate, PEM, on every executor"
TLS_KEY = "its key"
TLS_CA = "CA of the nodes' certificates"

# Spark passes these on to every source.
SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname"})

OF_BATCHES, OF_STREAMS, OF_GROUPS = ("batch",), ("stream",), ("group",)
_MEBIBYTE = 1024 * 1024
# An Arrow batch addresses its strings and bodies with 32 bits; the engines take no more than this for one batch.
_MAX_BATCH_BYTES = 512 * _MEBIBYTE
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)

_ISO_8601 = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)? ?(Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)


class Offset(NamedTuple):
    """A place in the log: ``earliest``, ``latest``, or the first row at or after an ``index`` or a ``pos``."""

    kind: str
    value: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind in ("earliest", "latest") else f"{self.kind} {self.value}"


EARLIEST = Offset("earliest")
LATEST = Offset("latest")


def _path_list(value: object) -> tuple[str, ...]:
    items = items_of(str(value) if isinstance(value, os.PathLike) else value)
    return distinct([store_path(parse_text(str(item) if isinstance(item, os.PathLike) else item)) for item in items])


def _queue_ids(value: object) -> tuple[int, ...]:
    return distinct([checked(parse_integer(item), INT32_MIN, INT32_MAX) for item in items_of(value)])


def _parse_table(value: object) -> str:
    name = value if isinstance(value, str) else repr(value)
    known = {table.lower(): table for table in TABLES}.get(name.lower())
    if known is None:
        raise OptionError(f"option table: unknown table {name}, {nearest(name, TABLES)}")
    return known


def _parse_bound(value: object) -> str | int:
    try:
        return checked(parse_integer(value), -1, INT64_MAX)
    except ValueError:
        name: str = choice(COMMITTED_BOUNDS).parse(value)
        return name


def _parse_offset(value: object) -> Offset:
    if isinstance(value, Offset):
        return value
    if isinstance(value, str):
        if value.lower() in ("earliest", "latest"):
            return Offset(value.lower())
        if value.startswith("{"):
            value = parse_json(value, dict)
    if not isinstance(value, Mapping):
        return Offset("index", checked(parse_integer(value), 0, INT64_MAX))
    if len(value) != 1:
        raise ValueError
    ((kind, number),) = value.items()
    if kind not in ("index", "pos") or isinstance(number, str):
        raise ValueError
    return Offset(kind, checked(parse_integer(number), 0, INT64_MAX))


def _parse_timestamp(value: object) -> int:
    if isinstance(value, datetime):
        return microseconds(value)
    if isinstance(value, date):
        return microseconds(datetime(value.year, value.month, value.day, tzinfo=timezone.utc))
    match = _ISO_8601.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return 1000 * checked(parse_integer(value), MIN_TIMESTAMP, MAX_TIMESTAMP)
    day, minute, second, fraction, zone = match.groups()
    text = f"{day} {minute or '00:00'}:{second or '00'}.{fraction or '':0<6}"
    zone = "+00:00" if zone is None or zone in "Zz" else f"{zone[:3]}:{zone[-2:]}"
    return microseconds(datetime.fromisoformat(text + zone))


_PATHS = Parser('a JSON list of paths such as ["/data/a", "/data/b"], or a comma list', _path_list)
_OFFSET = Parser('earliest, latest, an index, {"index": n} or {"pos": n}', _parse_offset)
_TIMESTAMP = Parser(
    "ISO 8601 such as 2026-07-21T03:12:00Z (UTC without a zone) or milliseconds since 1970", _parse_timestamp
)


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a read. None is "not set" where the default depends on something else."""

    table: str = option("log", Parser(one_of(TABLES), _parse_table), "table to read")
    mode: str = option("PERMISSIVE", choice(MODES), "what happens to rows with a `problem`")
    verify_crc: bool = option(True, BOOLEAN, "check message CRCs")
    isolation_level: str | None = option(
        None,
        choice(ISOLATION_LEVELS),
        "`read_uncommitted`: to the end of the log, default of a batch; `read_committed`: default of a stream",
    )
    committed_bound: str | int = option(
        "auto",
        Parser(f"{', '.join(COMMITTED_BOUNDS)} or an index", _parse_bound),
        "proof that an entry is committed; an index is inclusive, in batches only",
    )
    replicas: tuple[str, ...] | None = option(None, _PATHS, "list of the other replicas; same as `load([a, b, c])`")
    group_size: int | None = option(None, COUNT, "members of the group; default: number of replicas given")
    heal: bool = option(False, BOOLEAN, "damaged ranges come from an intact replica, as a salvage restores them")
    starting_offsets: Offset = option(EARLIEST, _OFFSET, "offset of the first row; default of a stream: `latest`")
    ending_offsets: Offset = option(LATEST, _OFFSET, "offset of the end, exclusive", scope=OF_BATCHES)
    starting_timestamp: int | None = option(None, _TIMESTAMP, "time: storeTimestamp at or after it")
    ending_timestamp: int | None = option(None, _TIMESTAMP, "time: storeTimestamp before it", scope=OF_BATCHES)
    clock_tolerance: int = option(60_000, DURATION, "how far a leader's clock [may jump](#times)", shown="1m")
    topic: tuple[str, ...] | None = option(None, NAMES, "list: only these topics")
    queue_id: tuple[int, ...] | None = option(
        None, Parser("a comma list of 32-bit integers", _queue_ids), "list: only these queues"
    )
    tags: tuple[str, ...] | None = option(None, NAMES, "list: only messages with one of these")
    max_partition_bytes: int | None = option(
        None, SIZE, "size above which a segment is split; 1g if selective", shown="128m"
    )
    min_partitions: int | None = option(None, integer_from(1, INT32_MAX), "minimum number of partitions")
    default_parallelism: int | None = option(
        None, integer_from(1, INT32_MAX), "cores to split for; the extension sets it", scope=OF_BATCHES
    )
    max_batch_rows: int = option(10_000, integer_from(1, 1_000_000), "maximum rows of an Arrow batch, up to 1000000")
    max_batch_bytes: int = option(
        10 * _MEBIBYTE, size_up_to(_MAX_BATCH_BYTES, "512m"), "maximum size of an Arrow batch, up to 512m"
    )
    max_offsets_per_trigger: int | None = option(None, COUNT, "maximum entries of a micro-batch", scope=OF_STREAMS)
    max_bytes_per_trigger: int | None = option(None, SIZE, "maximum size of a micro-batch", scope=OF_STREAMS)
    min_offsets_per_trigger: int | None = option(
        None, COUNT, "a micro-batch waits for so many entries", scope=OF_STREAMS
    )
    max_trigger_delay: int = option(
        15 * 60 * 1000,
        DURATION,
        "a micro-batch waits at most so long after the last one",
        scope=OF_STREAMS,
        shown="15m",
    )
    fail_on_data_loss: bool = option(True, BOOLEAN, "fail if unread entries are lost")
    trust_key_index: bool = option(False, BOOLEAN, "find [keys](#filter-pushdown) by IndexFiles", scope=OF_BATCHES)
    self_id: str | None = option(None, TEXT, "which node, if the root has several")
    data_dirs: tuple[str, ...] | None = option(
        None, _PATHS, "list of further data folders; or the path is `STORE,DIR,DIR`"
    )
    include_entry_body: bool = option(False, BOOLEAN, "add the column `entryBody`")
    max_body_bytes: int = option(
        64 * _MEBIBYTE,
        size_up_to(INT32_MAX, str(INT32_MAX)),
        "maximum size of a decompressed body; else null, with a `problem`",
    )
    group: str | None = option(None, TEXT, "live group to read instead of a path", scope=OF_GROUPS)
    peers: str | None = option(None, TEXT, "its members, `n0-HOST:PORT;n1-HOST:PORT`", scope=OF_GROUPS)
    tls_cert: str | None = option(None, TEXT, TLS_CERT, scope=OF_GROUPS)
    tls_key: str | None = option(None, TEXT, TLS_KEY, scope=OF_GROUPS)
    tls_ca: str | None = option(None, TEXT, TLS_CA, scope=OF_GROUPS)
    engine: str = option("auto", choice(ENGINES), "`native` is C++; `auto`: C++ if it is built")
    unread: tuple[UnreadableError, ...] | None = None
    """Files of logs that are left out because a read of them failed; None: such a read raises the error."""


OPTIONS = options_of(ReadOptions)
"""Every option of a read, in the order of the documentation."""

_BY_KEY = by_key(OPTIONS)


def parse_options(options: Mapping[str, Any]) -> ReadOptions:
    """Parse `options`, whose names are in any case and whose values are text or native values.

    None means "not set". The second and further paths of Spark's ``load([a, b])`` become replicas.
    """
    values = parse_values({name: value for name, value in options.items() if not is_sparks(name)}, find_option)
    more_paths = read_paths(options)[1:]
    if more_paths:
        values["replicas"] = (*more_paths, *values.get("replicas", ()))
    parsed = ReadOptions(**values)
    _check_ranges(parsed)
    return parsed


def is_sparks(name: str) -> bool:
    """Whether it is one of Spark's own options, which every source is given."""
    return name.lower() in SPARK_OPTIONS


def find_option(name: str) -> Option:
    """Return the option called `name` in any case, or raise an OptionError that names the nearest."""
    found = _BY_KEY.get(name.lower())
    if found is None:
        raise OptionError(f"unknown option {name}: {nearest(name, (option.name for option in OPTIONS))}")
    return found


def read_paths(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths that Spark's ``load`` was given: the one to read, then its replicas."""
    given = {name.lower(): value for name, value in options.items()}
    path, paths = given.get("path"), given.get("paths")
    return (*((store_path(str(path)),) if path else ()), *(_path_list(paths) if paths else ()))


def option_filters(options: ReadOptions) -> Filters:
    """Return the row filters that the options ask for: topic, queueId, tags and the timestamps."""
    queue_id = None
    if options.queue_id is not None:
        queue_id = IntFilter(min(options.queue_id), max(options.queue_id), tuple(sorted(options.queue_id)))
    store_timestamp = None
    if options.starting_timestamp is not None or options.ending_timestamp is not None:
        bounds = IntFilter()
        if options.starting_timestamp is not None:
            bounds = IntFilter(options.starting_timestamp, bounds.high)
        if options.ending_timestamp is not None:
            bounds = IntFilter(bounds.low, options.ending_timestamp - 1)
        store_timestamp = bounds
    return Filters(queue_id=queue_id, store_timestamp=store_timestamp, topic=options.topic, tags=options.tags)


def microseconds(value: datetime) -> int:
    """Return `value` in microseconds since 1970; without a zone it counts as UTC."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // _MICROSECOND


def _check_ranges(options: ReadOptions) -> None:
    start, end = options.starting_offsets, options.ending_offsets
    if start.kind == end.kind and start.value > end.value:
        raise OptionError(
            f"option startingOffsets ({start}) is after option endingOffsets ({end}): swap them, the end is exclusive"
        )
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger ({least}) is above option maxOffsetsPerTrigger ({most}): no micro-batch has "
            "so many, lower it"
        )
    first, last = options.starting_timestamp, options.ending_timestamp
    if first is not None and last is not None and first > last:
        raise OptionError(
            f"option startingTimestamp ({_EPOCH + first * _MICROSECOND}) is after option endingTimestamp "
            f"({_EPOCH + last * _MICROSECOND}): swap them, the end is exclusive"
        )


# What follows says which options have an effect on which use. Elsewhere they are rejected.

_STORE = frozenset({"selfId", "dataDirs", "engine"})
_BOUND = frozenset({"committedBound", "replicas", "groupSize"})
_PARTITIONS = frozenset({"maxPartitionBytes", "minPartitions"})
_SPARK = frozenset({"defaultParallelism"})
_BATCHES = frozenset({"maxBatchRows", "maxBatchBytes"})
_VALUES = frozenset({"verifyCrc", "maxBodyBytes", "includeEntryBody"})
_QUEUES = frozenset({"topic", "queueId"})
_START = frozenset({"startingOffsets", "startingTimestamp", "failOnDataLoss"})
_END = frozenset({"endingOffsets", "endingTimestamp"})
_TRIGGER = frozenset({"maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"})
_GROUP = frozenset({"group", "peers", "tlsCert", "tlsKey", "tlsCa"})

_ROWS = frozenset({"mode", "isolationLevel", "tags"}) | _QUEUES | _START | _VALUES | _BATCHES | _PARTITIONS
_CLUSTER = (_QUEUES | _BATCHES | _VALUES | _START | {"mode", "tags", "minPartitions", "engine"}) - {"includeEntryBody"}
_CLUSTER |= {"tlsCert", "tlsKey", "tlsCa"}
_LOG = _STORE | _BOUND | _ROWS | _END | {"heal", "clockTolerance"}
_LAKE = _STORE | _ROWS - _PARTITIONS - {"isolationLevel"} | {"committedBound", "clockTolerance"}

_OF_TABLES = {
    "log": _LOG,
    "segments": _STORE | {"verifyCrc"},
    "state": _STORE | _BOUND,
    "findings": _STORE | {"verifyCrc"},
    "indexUnits": _STORE | {"maxBatchRows"},
    "consumeQueue": _STORE | _QUEUES | {"maxBatchRows"},
    "indexFile": _STORE | {"maxBatchRows"},
    "audit": _STORE | _BOUND | _QUEUES | _BATCHES | _PARTITIONS | {"verifyCrc"},
    "consumers": _STORE | _QUEUES | {"maxBatchRows"},
    "lost": _STORE | {"replicas", "maxBatchRows"},
    "diff": _STORE | {"replicas", "groupSize"},
    "trace": _STORE | _PARTITIONS | {"maxBatchRows"},
    **dict.fromkeys(("transactions", "timers", "pop"), _STORE | {"maxBatchRows"}),
    "controllerEvents": _STORE | _BOUND | {"maxBatchRows"},
}
SPARK_LOG = "spark.read of table log"
STREAM = "a stream"
GROUP_READ = "spark.read of a live group"
GROUP_STREAM = "a stream of a live group"
CLUSTER_READ = "spark.read of a RocketMQ cluster"
CLUSTER_STREAM = "a stream of a RocketMQ cluster"
SCAN = "open_log and scan"
RECOVERY = "dledger recovery"
STATISTICS = "dledger stats"
FIND = "dledger find"
FOLLOW = "dledger follow"
DIGESTS = "dledger diff --md5"
REPORT = "dledger report"
CHECK = "dledger check"
REBUILD = "a rebuild"
SALVAGE = "a salvage"
BACKUP = "a backup"
REPLAY = "a replay"

USES = {
    **{f"table {name}": _OF_TABLES[name] for name in TABLES},
    SPARK_LOG: _LOG | _SPARK | {"trustKeyIndex"},
    STREAM: _STORE | _ROWS | _TRIGGER | {"committedBound", "clockTolerance"},
    GROUP_READ: _ROWS | _END | _GROUP | _SPARK | {"engine"},
    GROUP_STREAM: _ROWS | _TRIGGER | _GROUP | {"engine"},
    CLUSTER_READ: _CLUSTER | _END,
    CLUSTER_STREAM: _CLUSTER | _TRIGGER - {"maxBytesPerTrigger"},
    "an export to commitlog": _LOG - _BATCHES - _PARTITIONS - {"maxBodyBytes", "includeEntryBody"},
    "an export to parquet": _LOG,
    "an export to jsonl": _LOG,
    **dict.fromkeys(("an export to iceberg", "an export to delta"), _LAKE),
    SCAN: _LOG,
    REBUILD: _STORE | _BOUND,
    SALVAGE: frozenset({"engine"}),
    BACKUP: _STORE | _BOUND,
    REPLAY: _LOG - {"mode", "verifyCrc", "includeEntryBody"} | {"tlsCert", "tlsKey", "tlsCa"},
    RECOVERY: _STORE | _BOUND,
    STATISTICS: _LOG - _BATCHES - _VALUES,
    FIND: (_LOG - _PARTITIONS) | {"trustKeyIndex"},
    FOLLOW: _LOG - _PARTITIONS - {"heal"},
    DIGESTS: _STORE,
    CHECK: _STORE | {"replicas", "groupSize"},
    REPORT: _STORE | _BOUND | {"verifyCrc"},
}
"""Every use by the name that errors give it, with the options that have an effect on it."""

_DEFAULTS = ReadOptions()


def check_use(options: ReadOptions, use: str) -> None:
    """Raise OptionError for an option with no effect on `use`, unless it has its default value."""
    effective = USES[use] | ({"table"} if use == f"table {options.table}" else set())
    for given in OPTIONS:
        if given.name not in effective and getattr(options, given.field) != getattr(_DEFAULTS, given.field):
            why = f", only on {_uses(given.name)}: leave it out"
            if given.name == "heal" and use in (FOLLOW, STREAM):
                why = ", which reads one store while it grows: heal in a batch read, such as dledger dump"
            raise OptionError(f"option {given.name} has no effect on {use}{why}")
    if options.group_size is not None and options.replicas is None:
        raise OptionError("option groupSize has no effect without option replicas: give both, or neither")
    if options.max_trigger_delay != _DEFAULTS.max_trigger_delay and options.min_offsets_per_trigger is None:
        raise OptionError(
            "option maxTriggerDelay has no effect without option minOffsetsPerTrigger: give both, or neither"
        )
    if options.heal:
        _check_heal(options)


def _check_heal(options: ReadOptions) -> None:
    """Raises OptionError without a replica, and for other proofs of what is committed."""
    if options.replicas is None:
        raise OptionError(
            "option heal has no effect without option replicas: give the replicas as further paths, or leave it out"
        )
    for name, is_given in (
        ("groupSize", options.group_size is not None),
        ("committedBound", options.committed_bound in ("checkpoint", "consumeQueue", "quorum")),
    ):
        if is_given:
            raise OptionError(
                f"option {name} has no effect with option heal: what any replica proves committed counts; leave it out"
            )


def _uses(name: str) -> str:
    """The tables and streams that an option has an effect on."""
    if name == "table":
        return "spark.read and dledger dump"
    if name in _SPARK:
        return f"{SPARK_LOG} and {GROUP_READ}"
    if name == "trustKeyIndex":
        return f"{SPARK_LOG} and {FIND}"
    if name in _GROUP:
        return "a live group"
    tables = [table for table, names in _OF_TABLES.items() if name in names]
    return " and ".join(
        [*([f"table {', '.join(tables)}"] if tables else []), *([STREAM] if name in USES[STREAM] else [])]
    )
