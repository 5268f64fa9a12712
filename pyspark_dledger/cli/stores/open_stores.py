"""Opening the stores that the command line names, with its options."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator

from pyspark_dledger.errors import OptionError
from pyspark_dledger.log import Log
from pyspark_dledger.log.option_uses import check_use
from pyspark_dledger.log.options import parse_options

MIN_EPOCH_MS = 10**12
"""A number from here on is milliseconds since 1970 (2001 and later), a smaller one an index."""
_POSITION = re.compile(r"(index|pos)=(\d+)")


def read_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of a read: those of ``-o``, and those that have an argument of their own."""
    options: dict[str, str] = {}
    for text in args.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"-o {text}: expected NAME=VALUE, found no =")
        set_option(options, name, value)
    for name in ("table", "topic", "tags", "queueId"):
        if (value := getattr(args, name, None)) is not None:
            set_option(options, name, value)
    for which in ("starting", "ending"):
        if (position := getattr(args, which, None)) is not None:
            set_option(options, *position_option(which, position))
    return options


def set_option(options: dict[str, str], name: str, value: str) -> None:
    """Set an option that is not set yet. Raises OptionError."""
    if name.lower() in map(str.lower, options):
        raise OptionError(f"option {name} is given twice: give it once")
    options[name] = value


def position_option(which: str, text: str) -> tuple[str, str]:
    """The option for a position: an index, ``pos=N``, ``earliest``, ``latest``, or a time (ISO 8601, epoch ms)."""
    if match := _POSITION.fullmatch(text):
        return f"{which}Offsets", f'{{"{match[1]}": {match[2]}}}'
    if text.lower() in ("earliest", "latest") or (text.isdecimal() and int(text) < MIN_EPOCH_MS):
        return f"{which}Offsets", text
    return f"{which}Timestamp", text


def open_store(args: argparse.Namespace, use: str | None = None) -> Log:
    """The store at the first path; further paths are its replicas.

    Raises OptionError for an option without an effect on `use`, by default the table that the options name.
    """
    options = read_options(args)
    first, *others = args.path
    if others:
        set_option(options, "replicas", json.dumps(others))
    parsed = parse_options(options)
    check_use(parsed, use or f"table {parsed.table}")
    return Log(first, parsed)


def open_stores(args: argparse.Namespace, use: str) -> Iterator[Log]:
    """The store at each path. Raises OptionError for an option without an effect on `use`."""
    options = parse_options(read_options(args))
    check_use(options, use)
    return (Log(path, options) for path in args.path)
