"""The options of an export, and the interface of the export forms: their settings and their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.options import (
    BOOLEAN,
    NAMES,
    SIZE,
    TEXT,
    Parser,
    by_key,
    choice,
    nearest,
    option,
    options_of,
    parse_json,
    parse_values,
)
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import COLUMN_BY_NAME, DEFAULT_NAMES, ENTRY_BODY
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import OPTIONS, USES, ReadOptions, check_use, option_filters, parse_options
from pyspark_dledger.log.plan import Partition, plan_between
from pyspark_dledger.rocketmq.jobs.target_folder import FileReport, PartReport

if TYPE_CHECKING:
    from pyspark_dledger.log.store_view import StoreView


def _properties(option_name: str) -> Parser:
    """Texts by name. Errors do not show them: they can contain secrets."""
    accepts = "NAME=VALUE,NAME=VALUE or a JSON object"

    def parse(value: object) -> dict[str, str]:
        try:
            return _parse_properties(value)
        except ValueError:
            raise OptionError(f"option {option_name}: expected {accepts} of texts, found something else") from None

    return Parser(accepts, parse)


def _parse_properties(value: object) -> dict[str, str]:
    if isinstance(value, str) and value.startswith("{"):
        value = parse_json(value, dict)
    elif isinstance(value, str):
        pairs = [text.partition("=") for text in value.split(",")]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError
        value = {name.strip(): text for name, _, text in pairs}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in (*value, *value.values())):
        raise ValueError
    return dict(value)


FORMS = {
    "commitlog": "a storePathRootDir that a broker without DLedger opens",
    "parquet": "Parquet files, partitioned by topic and day",
    "jsonl": "JSON lines, as `dledger dump --json` prints them",
    "iceberg": "[appends](lakes.md) to an Iceberg table",
    "delta": "[appends](lakes.md) to a Delta table",
}
"""The forms, and what each writes."""
LAKES = ("iceberg", "delta")
"""The forms that are tables: a run appends what was committed since the last one."""
COMPRESSIONS = ("none", "gzip", "zstd")

_FILES, _COMMIT_LOG = ("parquet", "jsonl"), ("commitlog",)
_COLUMNAR, _PARTITIONED, _ICEBERG, _DELTA = (*_FILES, *LAKES), ("parquet", *LAKES), ("iceberg",), ("delta",)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options that only an export has; their scope is the forms that have them."""

    columns: tuple[str, ...] | None = option(
        None,
        NAMES,
        "columns of the log table; default: all, entryBody with includeEntryBody only",
        scope=_COLUMNAR,
    )
    compression: str | None = option(
        None,
        choice(COMPRESSIONS),
        "parquet, jsonl: how the files are compressed; default: parquet `zstd`, jsonl `none`",
        scope=_FILES,
    )
    flat: bool = option(False, BOOLEAN, "not partitioned by topic and day", scope=_PARTITIONED)
    preserve_offsets: bool = option(
        False, BOOLEAN, "commitlog: keep physical offsets where possible; filler between messages", scope=_COMMIT_LOG
    )
    commit_log_only: bool = option(
        False,
        BOOLEAN,
        "commitlog: without consumequeue/ and index/, which the broker builds at its first start",
        scope=_COMMIT_LOG,
    )
    commit_bytes: int = option(
        256 * 1024 * 1024, SIZE, "bytes of the log in a commit; needs 4 times the memory", scope=LAKES
    )
    catalog: str | None = option(None, TEXT, "iceberg: the catalog's name; default `default`", scope=_ICEBERG)
    catalog_properties: dict[str, str] | None = option(
        None,
        _properties("catalogProperties"),
        "iceberg: its properties, in addition to pyiceberg's configuration",
        scope=_ICEBERG,
    )
    storage_options: dict[str, str] | None = option(
        None,
        _properties("storageOptions"),
        "delta: options of the storage, in addition to the environment",
        scope=_DELTA,
    )


EXPORT_OPTIONS = options_of(ExportOptions)
_BY_KEY = by_key(EXPORT_OPTIONS)


def parse_form(name: object) -> str:
    """The form with a name, in any case. Raises OptionError, which lists all forms."""
    known = {form.lower(): form for form in FORMS}
    if not isinstance(name, str) or name.lower() not in known:
        listed = "; ".join(f"{form}: {meaning}" for form, meaning in FORMS.items())
        raise OptionError(f"form: expected a form to export to, found {name or 'none'}: {listed}")
    return known[name.lower()]


def parse_export_options(form: str, options: Mapping[str, Any]) -> tuple[ReadOptions, dict[str, Any]]:
    """The options of the read, and those of the export by the fields of `ExportOptions`; names are in any case.

    Raises OptionError for an option that is unknown, wrong, or has no effect on this export.
    """
    export = parse_values(
        {name: value for name, value in options.items() if name.lower() in _BY_KEY}, lambda name: _BY_KEY[name.lower()]
    )
    for found in EXPORT_OPTIONS:
        if form not in found.scope and export.get(found.field, False) is not False:
            forms = " and ".join(found.scope)
            raise OptionError(f"option {found.name} is only for an export to {forms}, not to {form}: leave it out")
    for name in export.get("columns") or ():
        if name not in COLUMN_BY_NAME:
            raise OptionError(f"option columns: unknown column {name}: {nearest(name, COLUMN_BY_NAME)}")
    others = {name: value for name, value in options.items() if name.lower() not in _BY_KEY}
    use = f"an export to {form}"
    for name in others:
        if name.lower() not in by_key(OPTIONS):
            names = [*(each.name for each in EXPORT_OPTIONS), *sorted(USES[use])]
            raise OptionError(f"unknown option {name}: {nearest(name, names, ' of an export')}")
    read = parse_options(others)
    check_use(read, use)
    return read, export


_PARTITION_BYTES = 128 * 1024 * 1024
MAX_SKIPPED = 100
"""How many of the rows that were left out are listed, for a part and for an export."""


@dataclass(frozen=True)
class ExportSettings(ExportOptions):
    """What is exported and how; the same in every run that continues an export.

    Rows that begin at positions ``[start, end)`` and pass the filters of `options` are exported. ``committed_index`` is
    the committed bound when the export began, None if it was unknown; with isolationLevel=read_committed ``end`` is not
    after it. These three replace the offsets and the bound of `options`.
    """

    options: ReadOptions
    start: int
    end: int
    committed_index: int | None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns to export, each once; by default those of the log table."""
        chosen = self.columns or DEFAULT_NAMES
        return tuple(dict.fromkeys((*chosen, ENTRY_BODY.name) if self.options.include_entry_body else chosen))

    @property
    def filters(self) -> Filters:
        """The filters of the read: topic, queueId, tags and times."""
        return option_filters(self.options)

    def parts(
        self, log: StoreView, names: tuple[str, ...], needed: tuple[str, ...], compression: str
    ) -> list[RowsPart]:
        """Parts with the columns `names`, and `needed` ones; the same even if the log has grown. See `plan_parts`."""
        columns = tuple(dict.fromkeys((*names, *needed)))
        found = plan_parts(log, columns, self.options, self.committed_index, self.start, self.end)
        chosen = names, self.compression or compression, self.options.mode, self.flat
        return [RowsPart(partition, *chosen) for partition in found]


def plan_parts(
    log: StoreView, columns: tuple[str, ...], options: ReadOptions, committed_index: int | None, start: int, end: int
) -> list[Partition]:
    """The parts of a job over the rows in ``[start, end)``; small segments form one, up to maxPartitionBytes."""
    sized = replace(options, max_partition_bytes=options.max_partition_bytes or _PARTITION_BYTES)
    return plan_between(log, columns, sized, option_filters(options), committed_index, start, end)


@dataclass(frozen=True)
class RowsPart:
    """A partition of the log, the columns of its files, their compression, and whether there are no folders."""

    partition: Partition
    columns: tuple[str, ...]
    compression: str
    mode: str
    flat: bool


@dataclass(frozen=True)
class FinishReport:
    """The files written after all parts, notes for the user, and the settings that a broker needs for the result."""

    files: tuple[FileReport, ...] = ()
    notes: tuple[str, ...] = ()
    broker_conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """The report of a finished export.

    ``rows`` were written, ``problems`` of them with a ``problem``; ``skipped`` were left out, see `PartReport`. One row
    can stand for many messages: ``lost`` counts those of damaged places as far as indexes and queues know them, all of
    them if ``lost_is_all``.
    ``beyond_committed`` counts exported entries after the committed bound ``committed_index``; both are None if the
    bound is unknown. ``bytes`` is the size of all ``files`` except consumequeue/ and index/, ``source_bytes`` that of
    their part of the log. ``resumed`` counts the parts of earlier runs; ``seconds`` is the time of this run.
    ``lost_after`` and ``lost_until`` are those of the salvage that wrote the source, see its report.
    For a table ``parts`` are the commits of this run; files are not counted, and ``lost`` is 0.
    """

    source: str
    target: str
    form: str
    rows: int
    problems: int
    skipped: int = 0
    first_skipped: tuple[str, ...] = ()
    lost: int = 0
    lost_is_all: bool
    committed_index: int | None
    beyond_committed: int | None = 0
    parts: int
    resumed: int = 0
    files: int = 0
    bytes: int = 0
    source_bytes: int
    seconds: float
    notes: tuple[str, ...]
    lost_after: int | None = None
    lost_until: int | None = None
    broker_conf: dict[str, str] = field(default_factory=dict)


class Form:
    """A form that a log is exported to. Instances have no state and can be pickled."""

    name: str
    """The user's name for it, such as ``parquet``."""

    def plan(self, log: StoreView, settings: ExportSettings) -> list[Any]:
        """The parts, one for each task: picklable values whose repr is the same for the same plan.

        Raises StoreError and OptionError if the log cannot be exported in this form. Writes nothing.
        """
        raise NotImplementedError

    def write(self, part: Any, number: int, target: Path) -> PartReport:
        """Write a part from its start, see `WritePart`. Another attempt writes the same bytes."""
        raise NotImplementedError

    def finish(
        self, _log: StoreView, _settings: ExportSettings, _target: Path, _reports: Sequence[PartReport]
    ) -> FinishReport:
        """The work after all parts are written. Runs again from its start if it was interrupted."""
        return FinishReport()

    def seal(
        self, _settings: ExportSettings, _target: Path, _reports: Sequence[PartReport], _manifest: dict[str, Any]
    ) -> bool:
        """Keep the manifest of the finished export in a file of the form; False: the form has no place for it."""
        return False
