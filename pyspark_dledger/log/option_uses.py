"""Which options of a read have an effect on which use. Elsewhere they are refused."""

from __future__ import annotations

from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import OPTIONS, TABLES, ReadOptions

_STORE = frozenset({"selfId", "dataDirs", "engine"})
_BOUND = frozenset({"committedBound", "replicas", "groupSize"})
_PARTITIONS = frozenset({"maxPartitionBytes", "minPartitions"})
_SPARK = frozenset({"pushFilters", "defaultParallelism"})
_BATCHES = frozenset({"maxBatchRows", "maxBatchBytes"})
_VALUES = frozenset({"verifyCrc", "maxBodyBytes", "includeEntryBody"})
_QUEUES = frozenset({"topic", "queueId"})
_START = frozenset({"startingOffsets", "startingTimestamp", "failOnDataLoss"})
_END = frozenset({"endingOffsets", "endingTimestamp"})
_TRIGGER = frozenset({"maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"})
_GROUP = frozenset({"group", "peers", "tlsCert", "tlsKey", "tlsCa"})

_ROWS = frozenset({"mode", "isolationLevel", "tags"}) | _QUEUES | _START | _VALUES | _BATCHES | _PARTITIONS
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
}
SPARK_LOG = "spark.read of table log"
STREAM = "a stream"
GROUP_READ = "spark.read of a live group"
GROUP_STREAM = "a stream of a live group"
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

USES = {
    **{f"table {name}": _OF_TABLES[name] for name in TABLES},
    SPARK_LOG: _LOG | _SPARK | {"trustKeyIndex"},
    STREAM: _STORE | _ROWS | _TRIGGER | {"committedBound", "clockTolerance"},
    GROUP_READ: _ROWS | _END | _GROUP | _SPARK | {"engine"},
    GROUP_STREAM: _ROWS | _TRIGGER | _GROUP | {"engine"},
    "an export to commitlog": _LOG - _BATCHES - _PARTITIONS - {"maxBodyBytes", "includeEntryBody"},
    "an export to parquet": _LOG,
    "an export to jsonl": _LOG,
    **dict.fromkeys(("an export to iceberg", "an export to delta"), _LAKE),
    SCAN: _LOG,
    REBUILD: _STORE | _BOUND,
    SALVAGE: frozenset({"engine"}),
    BACKUP: _STORE | _BOUND,
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
    for option in OPTIONS:
        if option.name not in effective and getattr(options, option.field) != getattr(_DEFAULTS, option.field):
            why = f", only on {_uses(option.name)}: leave it out"
            if option.name == "heal" and use in (FOLLOW, STREAM):
                why = ", which reads one store while it grows: heal in a batch read, such as dledger dump"
            raise OptionError(f"option {option.name} has no effect on {use}{why}")
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
