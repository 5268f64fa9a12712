"""The options of an export, in addition to those of its read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark_dledger.common.options import BOOLEAN, NAMES, by_key, choice, nearest, option, options_of, parse_values
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import COLUMN_BY_NAME
from pyspark_dledger.log.option_uses import USES, check_use
from pyspark_dledger.log.options import OPTIONS, ReadOptions, parse_options

FORMS = {
    "commitlog": "a storePathRootDir that a broker without DLedger opens",
    "parquet": "Parquet files, partitioned by topic and day",
    "jsonl": "JSON lines, as `dledger dump --json` prints them",
}
"""The forms, and what each writes."""
COMPRESSIONS = ("none", "gzip", "zstd")

_COLUMNAR, _COMMIT_LOG = ("parquet", "jsonl"), ("commitlog",)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options that only an export has; their scope is the forms that have them."""

    columns: tuple[str, ...] | None = option(
        None,
        NAMES,
        "parquet, jsonl: columns of the log table; default: all, entryBody with includeEntryBody only",
        scope=_COLUMNAR,
    )
    compression: str | None = option(
        None,
        choice(COMPRESSIONS),
        "parquet, jsonl: how the files are compressed; default: parquet `zstd`, jsonl `none`",
        scope=_COLUMNAR,
    )
    preserve_offsets: bool = option(
        False,
        BOOLEAN,
        "commitlog: keep physical offsets where possible; filler between messages",
        scope=_COMMIT_LOG,
    )
    commit_log_only: bool = option(
        False,
        BOOLEAN,
        "commitlog: without consumequeue/ and index/, which the broker builds at its first start",
        scope=_COMMIT_LOG,
    )


EXPORT_OPTIONS = options_of(ExportOptions)
"""The options that only an export has, in the order of the documentation."""

_BY_KEY = by_key(EXPORT_OPTIONS)


class ParsedOptions(NamedTuple):
    """The options of the read, and those of the export by the fields of `ExportOptions`."""

    read: ReadOptions
    export: dict[str, Any]


def parse_form(name: object) -> str:
    """The form with a name, in any case. Raises OptionError, which lists all forms."""
    known = {form.lower(): form for form in FORMS}
    if not isinstance(name, str) or name.lower() not in known:
        listed = "; ".join(f"{form}: {meaning}" for form, meaning in FORMS.items())
        raise OptionError(f"expected a form to export to, found {name or 'none'}: {listed}")
    return known[name.lower()]


def parse_export_options(form: str, options: Mapping[str, Any]) -> ParsedOptions:
    """Parse the options of an export to `form`; names are in any case.

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
            raise OptionError(f"unknown column {name}: {nearest(name, COLUMN_BY_NAME)}")
    others = {name: value for name, value in options.items() if name.lower() not in _BY_KEY}
    use = f"an export to {form}"
    for name in others:
        if name.lower() not in by_key(OPTIONS):
            names = [*(each.name for each in EXPORT_OPTIONS), *sorted(USES[use])]
            raise OptionError(f"unknown option {name}: {nearest(name, names, ' of an export')}")
    read = parse_options(others)
    check_use(read, use)
    return ParsedOptions(read, export)
