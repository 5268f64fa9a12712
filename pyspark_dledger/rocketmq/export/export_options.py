"""The options of an export, beside those of the read that it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import COLUMN_BY_NAME
from pyspark_dledger.log.options import (
    BOOLEAN,
    OPTIONS,
    Option,
    ReadOptions,
    choice,
    find_option,
    nearest,
    parse_options,
    parse_value,
)

FORMS = {
    "commitlog": "a storePathRootDir that a broker without DLedger opens",
    "parquet": "Parquet files, partitioned by topic and day",
    "jsonl": "JSON lines, as `dledger dump --json` prints them",
}
"""Every form, and what it gives."""
COMPRESSIONS = ("none", "gzip", "zstd")

EXPORT_OPTIONS = (
    Option(
        "columns",
        None,
        find_option("topic").parser,
        "parquet, jsonl: columns of the log table; default: all, entryBody with includeEntryBody only",
    ),
    Option(
        "compression",
        None,
        choice(COMPRESSIONS),
        "parquet, jsonl: how the files are compressed; default: parquet `zstd`, jsonl `none`",
    ),
    Option(
        "preserveOffsets",
        "false",
        BOOLEAN,
        "commitlog: physical offsets stay as far as that can be, with filler between the messages",
    ),
    Option(
        "commitLogOnly",
        "false",
        BOOLEAN,
        "commitlog: without consumequeue/ and index/, which the broker builds at its first start",
    ),
)
"""Every option that only an export has, in the order of the documentation."""

_BY_KEY = {option.name.lower(): option for option in EXPORT_OPTIONS}
_FORMS_OF = {
    "columns": ("parquet", "jsonl"),
    "compression": ("parquet", "jsonl"),
    "preserve_offsets": ("commitlog",),
    "commit_log_only": ("commitlog",),
}


class ParsedOptions(NamedTuple):
    """The options of the read, and those of the export by the names of `ExportSettings`."""

    read: ReadOptions
    export: dict[str, Any]


def parse_form(name: object) -> str:
    """The form called `name` in any case. Raises OptionError, which lists all."""
    known = {form.lower(): form for form in FORMS}
    if not isinstance(name, str) or name.lower() not in known:
        listed = "; ".join(f"{form}: {meaning}" for form, meaning in FORMS.items())
        raise OptionError(f"expected a form to export to, found {name or 'none'}: {listed}")
    return known[name.lower()]


def parse_export_options(form: str, options: Mapping[str, Any]) -> ParsedOptions:
    """Parse options of an export to `form`, whose names are in any case.

    Raises OptionError for what is unknown, wrong, of a stream, or of another form.
    """
    read: dict[str, Any] = {}
    export: dict[str, Any] = {}
    for name, value in options.items():
        option = _BY_KEY.get(name.lower())
        if option is None:
            read[_of_read(name)] = value
        elif value is not None:
            if option.field in export:
                raise OptionError(f"option {option.name} is given twice, in different case: give it once")
            export[option.field] = parse_value(option, value)
    for field in export:
        if form not in _FORMS_OF[field] and export[field] is not False:
            option = next(option for option in EXPORT_OPTIONS if option.field == field)
            forms = " and ".join(_FORMS_OF[field])
            raise OptionError(f"option {option.name}: is of an export to {forms}, found {form}: leave it out")
    for name in export.get("columns") or ():
        if name not in COLUMN_BY_NAME:
            raise OptionError(f"unknown column {name}: {nearest(name, COLUMN_BY_NAME)}")
    return ParsedOptions(parse_options(read), export)


def _of_read(name: str) -> str:
    """The name, if it is an option that the read of an export can have. Raises OptionError."""
    names = [
        option.name for option in (*OPTIONS, *EXPORT_OPTIONS) if option.scope != "stream" and option.name != "table"
    ]
    if name.lower() in map(str.lower, names):
        return name
    if name.lower() in (option.name.lower() for option in OPTIONS):
        option = find_option(name)
        why = "an export is of the log" if option.name == "table" else "it is of a stream"
        raise OptionError(f"option {option.name}: {why}: leave it out")
    raise OptionError(f"unknown option {name}: {nearest(name, names, ' of an export')}")
