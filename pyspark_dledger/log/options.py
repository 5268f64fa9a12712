"""The options of a read: one table of names, defaults, parsers and meaning, for Spark and for plain Python alike."""

from __future__ import annotations

import difflib
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, NamedTuple

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.spec import INT64_MAX, MODES, Filters, IntFilter
from pyspark_dledger.log.io.uris import store_path, without_secrets

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
    "diff",
)
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
COMMITTED_BOUNDS = ("auto", "checkpoint", "consumeQueue", "quorum", "end")
ENGINES = ("auto", "native", "python")

# Spark passes these on to every source.
SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname"})

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_MEBIBYTE = 1024 * 1024
# An Arrow batch addresses its strings and bodies with 32 bits; the engines take no more than this for one batch.
_MAX_BATCH_BYTES = 512 * _MEBIBYTE
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Names that are less like each other have nothing to do with each other.
_NEAR = 0.5
_MICROSECOND = timedelta(microseconds=1)
# The years 1 to 9999 in milliseconds since 1970.
_MS_MIN, _MS_MAX = -62135596800000, 253402300799999

_INTEGER = re.compile(r"[+-]?[0-9]+")
_SIZE = re.compile(r"([0-9]+) ?([kmgt]?)i?b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1024, "m": _MEBIBYTE, "g": 1024 * _MEBIBYTE, "t": 1024 * 1024 * _MEBIBYTE}
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


class Parser(NamedTuple):
    """What an option accepts, in words, and the function that turns a value into its type or raises ValueError."""

    accepts: str
    parse: Callable[[object], Any]


class Option(NamedTuple):
    """One option. ``default`` is written as a user would; ``scope`` is ``batch``, ``stream`` or ``both``."""

    name: str
    default: str | None
    parser: Parser
    doc: str
    scope: str = "both"

    @property
    def field(self) -> str:
        """The name of its field in `ReadOptions`."""
        return re.sub("[A-Z]", lambda match: "_" + match.group().lower(), self.name)


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a read. None is "not set" where the default depends on something else."""

    table: str = "log"
    mode: str = "PERMISSIVE"
    verify_crc: bool = True
    isolation_level: str | None = None
    committed_bound: str | int = "auto"
    replicas: tuple[str, ...] | None = None
    group_size: int | None = None
    starting_offsets: Offset = EARLIEST
    ending_offsets: Offset = LATEST
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    topic: tuple[str, ...] | None = None
    queue_id: tuple[int, ...] | None = None
    tags: tuple[str, ...] | None = None
    max_partition_bytes: int | None = None
    min_partitions: int | None = None
    max_batch_rows: int = 10_000
    max_batch_bytes: int = 10 * _MEBIBYTE
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    self_id: str | None = None
    data_dirs: tuple[str, ...] | None = None
    include_entry_body: bool = False
    max_body_bytes: int = 64 * _MEBIBYTE
    group: str | None = None
    peers: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    engine: str = "auto"


def parse_options(options: Mapping[str, Any]) -> ReadOptions:
    """Parse `options`, whose names are in any case and whose values are text or native values.

    None means "not set". The second and further paths of Spark's ``load([a, b])`` become replicas.
    """
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower() in SPARK_OPTIONS:
            continue
        option = find_option(name)
        if value is None:
            continue
        if option.field in values:
            raise OptionError(f"option {option.name} is given twice, in different case: give it once")
        values[option.field] = parse_value(option, value)
    more_paths = read_paths(options)[1:]
    if more_paths:
        values["replicas"] = (*more_paths, *values.get("replicas", ()))
    parsed = ReadOptions(**values)
    _check_ranges(parsed)
    return parsed


def find_option(name: str) -> Option:
    """Return the option called `name` in any case, or raise an OptionError that names the nearest."""
    option = _BY_KEY.get(name.lower())
    if option is None:
        raise OptionError(f"unknown option {name}: {nearest(name, (option.name for option in OPTIONS))}")
    return option


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


def similar(name: str, candidates: Iterable[str], likeness: float) -> str | None:
    """The candidate most like `name`, without regard to case, in its own spelling; None where none is that like it.

    ``likeness`` is 1 for equal names and 0 for such that have nothing in common.
    """
    by_key = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), by_key, n=1, cutoff=likeness)
    return by_key[found[0]] if found else None


def nearest(name: str, candidates: Iterable[str], of: str = "") -> str:
    """``the nearest is NAME``, or all names where none is near; ``of`` says what they are names of."""
    names = list(candidates)
    near = similar(name, names, _NEAR)
    return f"the nearest{of} is {near}" if near is not None else f"those{of} are {', '.join(names)}"


def microseconds(value: datetime) -> int:
    """Return `value` in microseconds since 1970; without a zone it counts as UTC."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // _MICROSECOND


def parse_value(option: Option, value: object) -> Any:
    try:
        return option.parser.parse(value.strip() if isinstance(value, str) else value)
    except OptionError:
        raise
    except ValueError:
        found = without_secrets(repr(value))
        found = found if len(found) <= 200 else f"{found[:200]}..."
        raise OptionError(f"option {option.name}: expected {option.parser.accepts}, found {found}") from None


def _check_ranges(options: ReadOptions) -> None:
    start, end = options.starting_offsets, options.ending_offsets
    if start.kind == end.kind and start.value > end.value:
        raise OptionError(f"startingOffsets ({start}) is behind endingOffsets ({end}): swap them, the end is exclusive")
    first, last = options.starting_timestamp, options.ending_timestamp
    if first is not None and last is not None and first > last:
        raise OptionError(
            f"startingTimestamp ({_EPOCH + first * _MICROSECOND}) is later than endingTimestamp "
            f"({_EPOCH + last * _MICROSECOND}): swap them, the end is exclusive"
        )


def _any_integer(value: object) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, (str, bool)):
        raise ValueError
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError from None


def _checked(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError
    return number


def integer_from(low: int, high: int) -> Parser:
    accepts = f"an integer from {low} to {high}" if high < INT64_MAX else f"an integer of at least {low}"
    return Parser(accepts, lambda value: _checked(_any_integer(value), low, high))


def parse_size(value: object) -> int:
    """A size in bytes, written as 65536, 64k, 128m or 1g; raises ValueError for anything else."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    number = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else _any_integer(value)
    return _checked(number, 1, INT64_MAX)


def size_up_to(high: int, shown: str | None = None) -> Parser:
    limit = f" from 1 to {shown}" if shown else ""
    return Parser(
        f"a size in bytes{limit}, such as 65536, 64k, 128m or 1g", lambda value: _checked(parse_size(value), 1, high)
    )


def choice(values: tuple[str, ...]) -> Parser:
    by_key = {value.lower(): value for value in values}

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in by_key:
            raise ValueError
        return by_key[value.lower()]

    return Parser(_one_of(values), parse)


def _one_of(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}" if len(values) > 1 else values[0]


def parse_boolean(value: object) -> bool:
    """True or false, as a text in any case or as such; raises ValueError for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _items(value: object) -> list[object]:
    """Return the items of a list, a JSON list, a comma list or a single value."""
    if isinstance(value, str):
        if value.startswith("["):
            return list(_json(value, list))
        return [item.strip() for item in value.split(",")]
    return list(value) if isinstance(value, Iterable) else [value]


def _json(text: str, kind: type) -> Any:
    value = json.loads(text)  # its JSONDecodeError is a ValueError
    if not isinstance(value, kind):
        raise ValueError
    return value


def _distinct(items: list[Any]) -> tuple[Any, ...]:
    if not items:
        raise ValueError
    return tuple(dict.fromkeys(items))


def _string_list(value: object) -> tuple[str, ...]:
    return _distinct([_parse_text(item) for item in _items(value)])


def _path_list(value: object) -> tuple[str, ...]:
    items = _items(str(value) if isinstance(value, os.PathLike) else value)
    return _distinct([store_path(_parse_text(str(item) if isinstance(item, os.PathLike) else item)) for item in items])


def _queue_ids(value: object) -> tuple[int, ...]:
    return _distinct([_checked(_any_integer(item), _INT32_MIN, _INT32_MAX) for item in _items(value)])


def _parse_table(value: object) -> str:
    name = value if isinstance(value, str) else repr(value)
    known = {table.lower(): table for table in TABLES}.get(name.lower())
    if known is None:
        raise OptionError(f"option table: unknown table {name}, {nearest(name, TABLES)}")
    return known


def _parse_bound(value: object) -> str | int:
    try:
        return _checked(_any_integer(value), -1, INT64_MAX)
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
            value = _json(value, dict)
    if not isinstance(value, Mapping):
        return Offset("index", _checked(_any_integer(value), 0, INT64_MAX))
    if len(value) != 1:
        raise ValueError
    ((kind, number),) = value.items()
    if kind not in ("index", "pos") or isinstance(number, str):
        raise ValueError
    return Offset(kind, _checked(_any_integer(number), 0, INT64_MAX))


def _parse_timestamp(value: object) -> int:
    if isinstance(value, datetime):
        return microseconds(value)
    if isinstance(value, date):
        return microseconds(datetime(value.year, value.month, value.day, tzinfo=timezone.utc))
    match = _ISO_8601.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return 1000 * _checked(_any_integer(value), _MS_MIN, _MS_MAX)
    day, minute, second, fraction, zone = match.groups()
    text = f"{day} {minute or '00:00'}:{second or '00'}.{fraction or '':0<6}"
    zone = "+00:00" if zone is None or zone in "Zz" else f"{zone[:3]}:{zone[-2:]}"
    return microseconds(datetime.fromisoformat(text + zone))


_COUNT = integer_from(1, INT64_MAX)
BOOLEAN = Parser("true or false", parse_boolean)
TEXT = Parser("some text", _parse_text)
_NAMES = Parser("a comma list or a JSON list of strings", _string_list)
_PATHS = Parser('a JSON list of paths such as ["/data/a", "/data/b"], or a comma list', _path_list)
_OFFSET = Parser('earliest, latest, an index, {"index": n} or {"pos": n}', _parse_offset)
_TIMESTAMP = Parser(
    "ISO 8601 such as 2026-07-21T03:12:00Z (UTC without a zone) or milliseconds since 1970", _parse_timestamp
)

OPTIONS = (
    Option("table", "log", Parser(_one_of(TABLES), _parse_table), "table to read"),
    Option(
        "mode",
        "PERMISSIVE",
        choice(MODES),
        "rows with a `problem`",
    ),
    Option("verifyCrc", "true", BOOLEAN, "check message CRCs"),
    Option(
        "isolationLevel",
        None,
        choice(ISOLATION_LEVELS),
        "`read_uncommitted`: to the end of the log, default of a batch; `read_committed`: default of a stream",
    ),
    Option(
        "committedBound",
        "auto",
        Parser(f"{', '.join(COMMITTED_BOUNDS)} or an index", _parse_bound),
        "proof that an entry is committed; an index is inclusive, in batches only",
    ),
    Option("replicas", None, _PATHS, "list of the other replicas; same as `load([a, b, c])`"),
    Option("groupSize", None, _COUNT, "members of the group; default: number of replicas given"),
    Option(
        "startingOffsets",
        "earliest",
        _OFFSET,
        "offset of the first row; default of a stream: `latest`",
    ),
    Option("endingOffsets", "latest", _OFFSET, "offset of the end, exclusive", "batch"),
    Option("startingTimestamp", None, _TIMESTAMP, "time: storeTimestamp at or after it"),
    Option("endingTimestamp", None, _TIMESTAMP, "time: storeTimestamp before it", "batch"),
    Option("topic", None, _NAMES, "list: only these topics"),
    Option(
        "queueId",
        None,
        Parser("a comma list of 32-bit integers", _queue_ids),
        "list: only these queues",
    ),
    Option("tags", None, _NAMES, "list: only messages with one of these"),
    Option(
        "maxPartitionBytes",
        "128m",
        size_up_to(INT64_MAX),
        "size above which a segment is split; grows for a selective scan",
    ),
    Option("minPartitions", None, integer_from(1, _INT32_MAX), "minimum number of partitions, by splitting"),
    Option("maxBatchRows", "10000", integer_from(1, 1_000_000), "maximum rows of an Arrow batch, up to 1000000"),
    Option("maxBatchBytes", "10m", size_up_to(_MAX_BATCH_BYTES, "512m"), "maximum size of an Arrow batch, up to 512m"),
    Option("maxOffsetsPerTrigger", None, _COUNT, "maximum entries of a micro-batch", "stream"),
    Option("maxBytesPerTrigger", None, size_up_to(INT64_MAX), "maximum size of a micro-batch", "stream"),
    Option("failOnDataLoss", "true", BOOLEAN, "streams: fail if unread entries are lost"),
    Option("selfId", None, TEXT, "which node, if the root has several"),
    Option("dataDirs", None, _PATHS, "list of further data folders"),
    Option("includeEntryBody", "false", BOOLEAN, "add the column `entryBody`"),
    Option(
        "maxBodyBytes",
        "64m",
        size_up_to(_INT32_MAX, "2147483647"),
        "maximum size of a decompressed body; else null, with a `problem`",
    ),
    Option("group", None, TEXT, "live group to read instead of a path", "stream"),
    Option("peers", None, TEXT, "its members, `n0-HOST:PORT;n1-HOST:PORT`", "stream"),
    Option("tlsCert", None, TEXT, "client certificate, PEM, on every executor", "stream"),
    Option("tlsKey", None, TEXT, "its key", "stream"),
    Option("tlsCa", None, TEXT, "CA of the nodes' certificates", "stream"),
    Option("engine", "auto", choice(ENGINES), "`native` is C++; `auto`: C++ if it is built"),
)
"""Every option of a read, in the order of the documentation."""

_BY_KEY = {option.name.lower(): option for option in OPTIONS}
